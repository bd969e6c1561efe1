"""When and how a session makes its context smaller: the decisions. What becomes of the messages is in `compaction` (L26-L32)."""

from __future__ import annotations

from trouper._errors import CommandRejected
from trouper.core import compaction
from trouper.core.commands import Compact, DeliverSummary
from trouper.core.decision import Decision
from trouper.core.events import CompactionEnded, CompactionStarted, HistoryMasked
from trouper.core.messages import NO_USAGE, Fault, Message, Usage
from trouper.core.session import Phase, budgeted, is_spent
from trouper.core.settings import TurnOptions


def make_room(decision: Decision, options: TurnOptions) -> bool:
    """True if the step has to wait for a summary (L26-L29)."""
    policy = options.compaction
    limit = compaction.limit(policy, options.window)
    if limit is None or decision.state.tokens <= limit:
        return False
    mask(decision, policy.mask_after_turns, policy.mask_min_saving)
    state = decision.state
    if state.tokens <= limit:
        return False
    since = state.in_turn.since
    split = compaction.pick_split(state.history.messages, policy.keep_pairs, policy.min_messages, since)
    if not split:
        return False
    decision.emit(CompactionStarted(split, state.tokens))
    return True


def mask(decision: Decision, turns: int, min_saving: int) -> None:
    state = decision.state
    before = compaction.mask_boundary(state.history.messages, turns)
    _, saved = compaction.mask(state.history.messages, before)
    # Nothing is never worth an event, also where any saving is welcome (I35).
    if saved and saved >= min_saving:
        decision.emit(HistoryMasked(before, state.tokens, state.tokens - saved))


def compact(decision: Decision, command: Compact) -> None:
    state = decision.state
    if state.phase is not Phase.IDLE:
        raise CommandRejected(
            f"session {state.session!r} is busy; compact() between turns, or let the turn compact by itself",
            session=state.session,
        )
    mask(decision, command.compaction.mask_after_turns, command.compaction.mask_min_saving)
    state = decision.state
    policy = command.compaction
    split = compaction.pick_split(state.history.messages, policy.keep_pairs, policy.min_messages)
    if split:
        decision.emit(CompactionStarted(split, state.tokens))
        # In a turn, this was looked at before it began.
        for what, used, cap in budgeted(state.spent, command.token_cap, command.step_cap, command.call_cap):
            if used >= cap:
                give_up(decision, fault=is_spent(what, used, cap))
                return


def install(decision: Decision, command: DeliverSummary) -> None:
    """The summary if it is smaller; else the oldest turns go, with a note; else nothing changes (L31, I35)."""
    state = decision.state
    if command.fault is not None and command.fault.kind == "budget":
        # Nobody was asked, and who raises the budget can have a summary: nothing is lost for want of one.
        give_up(decision, command.usage, command.fault)
        return
    messages = state.history.messages
    kept = compaction.questions(messages, None if state.turn is None else state.turn.since, command.split)
    candidates: list[tuple[str, Message]] = []
    if command.text is not None and command.text.strip():
        candidates.append(("summary", compaction.summary_message(command.text)))
    candidates.append(("dropped", compaction.dropped_message(messages[: command.split])))
    for how, summary in candidates:
        history = compaction.installed(state.history, command.split, summary, kept)
        if history.tokens < state.history.tokens and history.sound:
            decision.emit(
                CompactionEnded(
                    split=command.split,
                    tokens_before=state.history.tokens,
                    tokens_after=history.tokens,
                    messages_before=len(messages),
                    messages_after=len(history.messages),
                    how=how,
                    summary=summary,
                    kept=kept,
                    usage=command.usage,
                    fault=command.fault,
                )
            )
            return
    give_up(decision, command.usage, command.fault)


def give_up(decision: Decision, usage: Usage = NO_USAGE, fault: Fault | None = None) -> None:
    """Leave everything as it is. `usage`: what the summary that came to nothing has cost (L24)."""
    state = decision.state
    split = state.compacting.split if state.compacting is not None else 0
    tokens, count = state.history.tokens, len(state.history.messages)
    decision.emit(
        CompactionEnded(
            split=split,
            tokens_before=tokens,
            tokens_after=tokens,
            messages_before=count,
            messages_after=count,
            how="unchanged",
            usage=usage,
            fault=fault,
        )
    )
