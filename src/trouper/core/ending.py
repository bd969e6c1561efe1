"""How a turn ends, wherever it is: every open call has its outcome, the history stays sound (L21)."""

from __future__ import annotations

from typing import NamedTuple

from trouper.core import background, compacting
from trouper.core.calls import Call, CallPhase
from trouper.core.decision import Decision
from trouper.core.events import CallEnded, ToolsSettled, TurnEnded
from trouper.core.messages import NO_USAGE, Fault, Message, Outcome, Part, Text, Thinking, Usage
from trouper.core.session import Phase, Turn


class CutShort(NamedTuple):
    """What a model is told of a call that was not let end."""

    begun: str
    waiting: str

    def told_of(self, call: Call) -> str:
        return self.begun if call.is_begun else self.waiting


def end_turn(
    decision: Decision,
    at: float,
    stop_reason: str,
    cut_short: CutShort,
    *,
    fault: Fault | None = None,
    partial: Message | None = None,
    detail: str | None = None,
    usage: Usage = NO_USAGE,
    unasked: bool = False,
) -> None:
    """End the turn wherever it is: every open call gets its outcome, the history stays sound (L21)."""
    state = decision.state
    turn = state.in_turn
    if state.phase is Phase.ACTING:
        for call in turn.calls:
            if call.phase is not CallPhase.ENDED:
                decision.emit(CallEnded(call.id, Outcome.CANCELLED, cut_short.told_of(call)))
        decision.emit(ToolsSettled(turn.number, turn.step))
    if state.phase is Phase.COMPACTING and usage != NO_USAGE:
        compacting.give_up(decision, usage)
        usage = NO_USAGE
    kept = partial if state.phase is Phase.THINKING else None
    if kept is None and state.phase is Phase.THINKING:
        kept = draft_of(turn)
    # Of a step that was begun more than once, the model was asked before.
    unasked = unasked and turn.asks == turn.step
    ended(decision, TurnEnded(turn.number, stop_reason, at, fault, kept, detail or None, usage, unasked))


def ended(decision: Decision, event: TurnEnded) -> None:
    carried = decision.state.carrying
    attempts = decision.state.in_turn.options.notification_attempts
    decision.emit(event)
    if carried:
        background.settle_carried(decision, carried, event.stop_reason, event.at, attempts)


def draft_of(turn: Turn) -> Message | None:
    """What the journal knows of the unfinished reply; without visible text there is nothing worth keeping."""
    if not turn.draft_text.strip():
        return None
    parts: tuple[Part, ...] = (Text(turn.draft_text),)
    if turn.draft_thinking:
        parts = (Thinking(turn.draft_thinking), *parts)
    return Message("assistant", parts, "cut_short")
