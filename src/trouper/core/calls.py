"""One tool call from request to outcome: its lifecycle, and which calls of a step may run now.

    requested -> running -> ended
    requested -> asking -> running | held | ended   (policy: someone has to approve)
    requested -> held -> ended                      (client-side: the host answers, in time or never)

A call that spills ends here with a notice to the model; its execution goes on as a task (B2).
"""

from __future__ import annotations

from enum import Enum
from typing import Literal, TypeAlias

from trouper.core.ids import CallId
from trouper.core.messages import Json, Media, Outcome, ToolAnswer, ToolCall
from trouper.core.values import frozen

SideEffect: TypeAlias = Literal["pure", "idempotent", "at_most_once"]


class CallPhase(Enum):
    __hash__ = object.__hash__

    REQUESTED = "requested"
    ASKING = "asking"
    HELD = "held"
    RUNNING = "running"
    ENDED = "ended"


#: By their names alone: to look up a member of an `Enum` in its class takes eight times as long, and every decision does so again and again.
REQUESTED, ASKING, HELD, RUNNING, ENDED = CallPhase


@frozen(frequent=True)
class Preparation:
    """What registry, repair, policy and hooks said of one requested call, before anything ran."""

    verdict: Literal["run", "ask", "hold", "refuse"] = "run"
    side_effect: SideEffect = "at_most_once"
    #: Seconds that the turn waits before the call goes on in the background; `None`: it cannot.
    budget_s: float | None = None
    timeout_s: float | None = None
    concurrency_class: str | None = None
    #: What was repaired in the arguments (L17).
    notes: tuple[str, ...] = ()
    #: For "refuse": how it ends, and what the model is told.
    outcome: Outcome = Outcome.ERROR
    content: Json = None
    #: For "ask": once it is approved, the call is held for the host to run.
    client_side: bool = False
    #: How long the host has to answer a call that is held for it; `None`: as long as it likes.
    answer_s: float | None = None


@frozen(frequent=True)
class Call:
    """A call of the current step."""

    request: ToolCall
    preparation: Preparation
    phase: CallPhase = REQUESTED
    attempt: int = 0
    answer: ToolAnswer | None = None
    #: While it is held: when the host is no longer waited for.
    answer_by: float | None = None

    @property
    def id(self) -> CallId:
        return self.request.id

    @property
    def is_begun(self) -> bool:
        """Whether somebody may have done something for it: we, or the host."""
        return self.phase is not REQUESTED and self.phase is not ASKING


def answer(call: ToolCall, outcome: Outcome, content: Json, images: tuple[Media, ...] = ()) -> ToolAnswer:
    return ToolAnswer(call.id, call.name, outcome, content, images, call.provider_id)


def startable(calls: tuple[Call, ...], limit: int) -> tuple[Call, ...]:
    """The requested calls that may start now, in declared order (L8): at most `limit` at once, and within a concurrency class one after the other."""
    running = 0
    busy: set[str] = set()
    ready: list[Call] = []
    for call in calls:
        if call.phase is ENDED:
            continue
        kind = call.preparation.concurrency_class
        if call.phase is REQUESTED and call.preparation.verdict == "run":
            if running < limit and (kind is None or kind not in busy):
                ready.append(call)
                running += 1
        elif call.phase is RUNNING:
            running += 1
        # Calls of one class keep their order even while an earlier one still waits for its approval.
        if kind is not None:
            busy.add(kind)
    return tuple(ready)
