"""A turn as its users hold it: its events as they come, and how it ended. Where some shape was asked for, the result has an object of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import trio

from trouper import past
from trouper._errors import UsageError, WorldError
from trouper.actors import structured
from trouper.actors.feed import Feed, Lagged
from trouper.core.events import TurnEnded
from trouper.core.live import CaughtUp, LiveEvent
from trouper.core.messages import NO_USAGE, Fault, Json, Usage
from trouper.core.session import Event
from trouper.core.values import frozen
from trouper.foreign import from_outside
from trouper.tools.complaint import clipped
from trouper.tools.validation import compiled

if TYPE_CHECKING:
    from trouper.session import Session

#: Turns that end so have no output of the wanted shape: they were cut short, or refused.
_WITHOUT_OUTPUT = frozenset({"interrupt", "max_steps", "max_tokens", "budget", "refusal", "error"})

#: Of what a caller's class says about a reply that it does not take.
_PROBLEM_CHARS = 2_000


class TurnFailed(WorldError):
    """A turn ended in an error; `fault` says which."""


@frozen
class TurnResult:
    """How a turn ended. A failed turn is a result too: see `error`, or call `raise_for_error()`."""

    text: str
    stop_reason: str
    usage: Usage
    steps: int
    error: Fault | None = None
    detail: str | None = None
    #: The part of `usage` that went into making the context smaller.
    compaction_usage: Usage = NO_USAGE
    #: The parsed output, where the turn asked for some shape.
    output: Any = None

    def raise_for_error(self) -> TurnResult:
        """This result, or `TurnFailed` if the turn failed."""
        if self.error is not None:
            raise TurnFailed(
                f"the turn failed ({self.error.kind}): {self.error.message}", fault=self.error, result=self
            )
        return self


class Turn:
    """A running turn: iterate it for its events, live ones and recorded ones; then look at `result`."""

    __slots__ = ("_feed", "_session", "_shape", "number", "result")

    def __init__(self, session: Session, feed: Feed, number: int, shape: Any) -> None:
        self.number = number
        self.result: TurnResult | None = None
        self._session = session
        self._feed = feed
        self._shape = shape

    def __aiter__(self) -> Turn:
        self._session._check_here()
        return self

    async def __anext__(self) -> Event | LiveEvent:
        if self.result is not None:
            raise StopAsyncIteration
        try:
            batch = self._feed.batch
            event: Event | LiveEvent = batch.pop() if batch else await self._feed.receive()
        except Lagged:
            running = self._session._state.turn
            if running is None or running.number != self.number:
                self._finish()
            return CaughtUp()
        except StopAsyncIteration:
            await trio.lowlevel.checkpoint_if_cancelled()
            raise self._session._gone("ended before its turn did; open it again to see what became of it") from None
        if type(event) is TurnEnded and event.turn == self.number:
            self._finish()
        return event

    async def wait_ended(self) -> TurnResult:
        """Drain the events and return the result."""
        async for _ in self:
            pass
        assert self.result is not None
        return self.result

    def _behind(self) -> list[Event | LiveEvent]:
        """What has happened in its session behind its end, by the time that was read: whoever follows the session further from here on has not missed it."""
        return self._feed.unread()

    def _finish(self) -> None:
        last = self._session._state.last
        if last is None or last.number != self.number:
            # Another turn has ended since, before this one was read to its end.
            last = past.ended_turn(self._session._ground.log, self._session.id, self.number)
        output, error = None, last.fault
        if self._shape is not None and error is None and last.stop_reason not in _WITHOUT_OUTPUT:
            try:
                output = structured.built(last.text, self._shape)
            except BaseException as problem:  # The class is the caller's, and may refuse more than its schema says.
                if (outside := from_outside(problem)) is not None:
                    raise outside from None
                error = Fault(
                    "invalid_output",
                    f"the reply follows the schema, but no object can be made of it: {clipped(structured.said_by(problem), _PROBLEM_CHARS)}",
                )
        self.result = TurnResult(
            text=last.text,
            stop_reason=last.stop_reason,
            usage=last.usage,
            steps=last.steps,
            error=error,
            detail=last.detail,
            compaction_usage=last.compaction,
            output=output,
        )


def schema_of_output(output: type | Mapping[str, Json] | None) -> Mapping[str, Json] | None:
    """What the final text of a turn has to follow, if anything."""
    if output is None:
        return None
    if isinstance(output, Mapping):
        try:
            compiled(output)
        except Exception as error:
            # Without the schema itself, which may be long, or too deep to be shown.
            raise UsageError(f"output is no valid JSON Schema: {clipped(str(error), 200)}; correct it") from None
        return output
    from trouper.tools.schema import schema_of

    return schema_of(output, "output")
