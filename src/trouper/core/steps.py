"""A turn from step to step: ask the model, take in its reply or its failure, run the calls, and ask again."""

from __future__ import annotations

from trouper._errors import CommandRejected
from trouper.core import background, compacting, compaction
from trouper.core.calls import ENDED, HELD, REQUESTED, RUNNING, Call, CallPhase, startable
from trouper.core.commands import DeliverFault, DeliverReply, DeliverResult, DeliverSummary
from trouper.core.decision import Decision
from trouper.core.ending import ended
from trouper.core.events import (
    ApprovalRequested,
    ArgumentsRepaired,
    BudgetWarned,
    CallEnded,
    CallHeld,
    CallStarted,
    CallWasLate,
    CompactionStarted,
    InputsTaken,
    LoopWarned,
    ModelFailed,
    ModelReplied,
    OutputMismatched,
    StepStarted,
    ToolsSettled,
    TurnEnded,
    TurnStarted,
)
from trouper.core.ids import CallId, NotificationId
from trouper.core.messages import Fault, Media, Message, ProviderPart
from trouper.core.session import THINKING, State, Turn, budgeted, cap_told, is_spent
from trouper.core.settings import WARN_SHARE, TurnOptions

TIME_IS_UP = Fault("budget", "the time for this turn is up; raise Budget.wall_s to allow more")


def start_turn(decision: Decision, at: float, options: TurnOptions, carrying: tuple[NotificationId, ...] = ()) -> None:
    decision.emit(
        TurnStarted(
            turn=decision.state.turns + 1,
            at=at,
            options=options,
            deadline_at=None if options.wall_s is None else at + options.wall_s,
            carrying=carrying,
        )
    )
    next_step(decision, at)


def next_step(decision: Decision, at: float) -> None:
    """Between two steps: take in what waits, look at budgets and room, then ask the model."""
    turn = decision.state.in_turn
    if turn.options.max_steps and turn.step >= turn.options.max_steps:
        # What waits is left where it is: no model would see it in this turn, so it gets one of its own (L10, I26).
        ended(decision, TurnEnded(turn.number, "max_steps", at))
        return
    _take_inputs(decision)
    if _spent_out(decision, turn, at) or compacting.make_room(decision, turn.options):
        return
    decision.emit(StepStarted(turn.number, turn.step + 1, at))


def _take_inputs(decision: Decision) -> None:
    if decision.state.queue:
        decision.emit(InputsTaken(decision.state.in_turn.number))


def _spent_out(decision: Decision, turn: Turn, at: float, *, again: bool = False) -> bool:
    """Warns at 80 % of each cap, once; ends the turn when one is spent (L25). `again`: the step that follows has been counted among the steps already."""
    options = turn.options
    if options.wall_s == 0:
        # No timer is needed for that; any other time is for one to tell, as the clock of the records may leap.
        ended(decision, TurnEnded(turn.number, "budget", at, TIME_IS_UP))
        return True
    step_cap = None if again else options.step_cap
    if options.token_cap is None and step_cap is None and options.call_cap is None:
        return False
    spent = decision.state.spent
    for what, used, cap in budgeted(spent, options.token_cap, step_cap, options.call_cap):
        # One step may take it from less than that to the end: the warning comes first all the same. Of nothing there is no share.
        if cap and used >= cap * WARN_SHARE and cap_told(what, cap) not in decision.state.warned:
            decision.emit(BudgetWarned(what, used, cap))
        if used >= cap:
            fault = is_spent(what, used, cap)
            ended(decision, TurnEnded(turn.number, "budget", at, fault))
            return True
    return False


# --- the model's answers ---


def is_current(state: State, turn: int, step_number: int) -> bool:
    running = state.turn
    return state.phase is THINKING and running is not None and running.number == turn and running.step == step_number


def take_reply(decision: Decision, command: DeliverReply) -> None:
    if not is_current(decision.state, command.turn, command.step):
        return
    decision.emit(
        ModelReplied(
            command.turn,
            command.step,
            command.message,
            command.stop_reason,
            command.usage,
            command.detail,
            command.preparations,
            command.cuts,
            command.mismatch,
            command.retried,
        )
    )
    calls = decision.state.in_turn.calls
    if calls:
        _open_calls(decision, command, calls)
    else:
        _finish_or_go_on(decision, command)


def _open_calls(decision: Decision, command: DeliverReply, calls: tuple[Call, ...]) -> None:
    for call in calls:
        if call.preparation.notes:
            decision.emit(ArgumentsRepaired(call.id, call.preparation.notes))
    for call in calls:
        prepared = call.preparation
        match prepared.verdict:
            case "refuse":
                decision.emit(CallEnded(call.id, prepared.outcome, prepared.content))
            case "ask":
                decision.emit(ApprovalRequested(call.id, command.at + command.approval_s))
            case "hold":
                _hold(decision, call, command.at)
            case "run":
                pass  # Started below, as far as the limits allow.
    go_on_with_calls(decision, command.at)


def _hold(decision: Decision, call: Call, at: float) -> None:
    answer_s = call.preparation.answer_s
    decision.emit(CallHeld(call.id, None if answer_s is None else at + answer_s))


def hold_if_approved(decision: Decision, call_id: CallId, at: float) -> None:
    """An approval makes a client-side call no call of ours: it is still the host's to run (T4)."""
    call = find_call(decision.state, call_id, REQUESTED)
    if call is not None and call.preparation.client_side:
        _hold(decision, call, at)


def _finish_or_go_on(decision: Decision, command: DeliverReply) -> None:
    """A reply without calls ends the turn, unless there is more to say: a provider's pause, a schema that it missed, steering input."""
    turn = decision.state.in_turn
    more_steps = not turn.options.max_steps or turn.step < turn.options.max_steps
    # A pause with nothing before it is none: who goes on after it would do so for ever.
    if _says_nothing(command.message) and command.stop_reason not in ("refusal", "max_tokens"):
        fault = Fault(
            "silent_stop", "the model ended its reply without a word and without a call; try again or rephrase"
        )
        ended(decision, TurnEnded(turn.number, "error", command.at, fault))
    elif more_steps and command.stop_reason == "pause_turn":
        next_step(decision, command.at)
    elif command.mismatch is not None and command.stop_reason not in ("refusal", "max_tokens"):
        if turn.corrected or not more_steps:
            fault = Fault("invalid_output", f"the reply does not follow the schema: {command.mismatch}")
            ended(decision, TurnEnded(turn.number, "error", command.at, fault))
        else:
            decision.emit(OutputMismatched(turn.number, command.mismatch))
            next_step(decision, command.at)
    elif more_steps and decision.state.queue:
        next_step(decision, command.at)
    else:
        ended(decision, TurnEnded(turn.number, command.stop_reason, command.at, detail=command.detail))


def _says_nothing(message: Message) -> bool:
    return not message.text.strip() and not any(isinstance(part, Media | ProviderPart) for part in message.parts)


def take_fault(decision: Decision, command: DeliverFault) -> None:
    state = decision.state
    if not is_current(state, command.turn, command.step):
        return
    turn = state.in_turn
    decision.emit(ModelFailed(command.turn, command.step, command.fault, command.partial, command.usage))
    if command.fault.kind == "context_overflow" and not turn.forced and not command.progressed:
        before = decision.state.tokens
        compacting.mask(decision, 1, 1)
        messages = decision.state.history.messages
        split = compaction.forced_split(messages, turn.options.compaction.keep_pairs, turn.since)
        if split:
            if not _spent_out(decision, turn, command.at, again=True):
                decision.emit(CompactionStarted(split, before, forced=True))
            return
    ended(decision, TurnEnded(turn.number, "error", command.at, command.fault))


def take_summary(decision: Decision, command: DeliverSummary) -> None:
    """The context is smaller, or as it was: the step that waited for it is asked, with what came in meanwhile (L10)."""
    before = decision.state
    started = before.compacting
    if started is None or started.split != command.split:
        return
    compacting.install(decision, command)
    turn = decision.state.turn
    if turn is None:
        return
    if not started.forced:
        _take_inputs(decision)
        if not _spent_out(decision, turn, command.at):
            decision.emit(StepStarted(turn.number, turn.step + 1, command.at))
    elif decision.state.history.tokens < before.history.tokens or before.tokens < started.tokens_before:
        # Shorter by a summary, or by the old results that were masked when it began.
        # The step that was refused for its size is asked again, under its own number.
        _take_inputs(decision)
        if not _spent_out(decision, turn, command.at, again=True):
            decision.emit(StepStarted(turn.number, turn.step, command.at))
    else:
        fault = Fault(
            "context_overflow", "the conversation does not fit into the model's window and cannot be made smaller"
        )
        ended(decision, TurnEnded(turn.number, "error", command.at, fault))


# --- tools ---


def find_call(state: State, call_id: CallId, phase: CallPhase) -> Call | None:
    if state.turn is None:
        return None
    for call in state.turn.calls:
        if call.request.id == call_id and call.phase is phase:
            return call
    return None


def open_call(state: State, call_id: CallId) -> Call | None:
    calls = state.turn.calls if state.turn is not None else ()
    return next((call for call in calls if call.id == call_id and call.phase is not ENDED), None)


def require_phase(state: State, call_id: CallId, phase: CallPhase, complaint: str) -> None:
    if find_call(state, call_id, phase) is None:
        raise CommandRejected(f"call {call_id!r} {complaint}; it may have ended or lapsed", call=call_id)


def take_result(decision: Decision, command: DeliverResult) -> None:
    if _is_call_ended(decision, command):
        go_on_with_calls(decision, command.at)


def take_results(decision: Decision, results: tuple[DeliverResult, ...]) -> None:
    """They came at one moment: what follows, follows from all of them."""
    ended = [result for result in results if _is_call_ended(decision, result)]
    if ended:
        go_on_with_calls(decision, ended[-1].at)


def _is_call_ended(decision: Decision, command: DeliverResult) -> bool:
    """Take the result in; whether a call of the turn has ended by it."""
    state = decision.state
    if command.is_answer:
        require_phase(state, command.call, HELD, "is not waiting for an answer")
    running = find_call(state, command.call, RUNNING) or find_call(state, command.call, HELD)
    if running is None:
        if not background.spilled_end(decision, command):
            decision.emit(CallWasLate(command.call, command.outcome))
        return False
    decision.emit(
        CallEnded(
            command.call,
            command.outcome,
            command.content,
            command.images,
            command.latency_ms,
            None,  # No task goes on with it.
            command.full_output,
            command.internal,
        )
    )
    return True


def _start_calls(decision: Decision, turn: Turn, at: float) -> None:
    for call in startable(turn.calls, turn.options.parallel_calls):
        decision.emit(CallStarted(call.request.id, at, call.attempt + 1))


def go_on_with_calls(decision: Decision, at: float) -> None:
    """Start what may start; when every call has its outcome, settle, look for loops, and go on."""
    turn = decision.state.in_turn
    for call in turn.calls:
        if call.phase is not ENDED:
            _start_calls(decision, turn, at)
            return
    decision.emit(ToolsSettled(turn.number, turn.step))
    turn = decision.state.in_turn
    options = turn.options
    if options.loop_warn and turn.repeats >= options.loop_warn + options.loop_end:
        fault = Fault("no_progress", f"the same tool call gave the same result {turn.repeats} times in a row")
        ended(decision, TurnEnded(turn.number, "error", at, fault))
        return
    if options.loop_warn and turn.repeats == options.loop_warn:
        decision.emit(LoopWarned(turn.number, turn.repeats))
    next_step(decision, at)
