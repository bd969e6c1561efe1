"""After a crash: close what the dead process left open, or go on with it, so that the session serves again (J12, I3)."""

from __future__ import annotations

from trouper.core import background, compacting, steps
from trouper.core.calls import Call, CallPhase
from trouper.core.commands import Recover
from trouper.core.decision import Decision
from trouper.core.ending import draft_of, ended
from trouper.core.events import CallEnded, CallStarted, RecoveryNoted, ToolsSettled, TurnEnded
from trouper.core.messages import Fault, Outcome
from trouper.core.schedule import ScheduledRun
from trouper.core.session import Phase, State

UNKNOWN = "The process ended while this call ran: nobody knows whether it did its work. Check before you repeat it."
NEVER_STARTED = "The process ended before this call was started; it did nothing."
REATTACH_MAX = 3
#: A step in which so many processes have ended is not tried once more: it may well be what they died of.
RESTARTS_MAX = 3


def recover(decision: Decision, command: Recover) -> None:
    """Close what the dead process left open, so that the session serves again (J12, I3). Doing it twice changes nothing more (I17)."""
    _recover_turn(decision, command)
    background.recover(decision, command)


def _recover_turn(decision: Decision, command: Recover) -> None:
    state = decision.state
    if state.phase is Phase.TIDYING:
        decision.emit(RecoveryNoted(command.at, None))
        compacting.give_up(decision)
        return
    turn = state.turn
    if turn is None:
        return
    open_calls = tuple(call for call in turn.calls if call.phase is not CallPhase.ENDED)
    decision.emit(RecoveryNoted(command.at, turn.number, tuple(call.id for call in open_calls)))
    if command.resume and not _is_given_up(decision.state):
        _resume_calls(decision, open_calls, command.at)
        return
    for call in open_calls:
        started = call.phase is CallPhase.RUNNING
        outcome = Outcome.UNKNOWN if started else Outcome.CANCELLED
        decision.emit(CallEnded(call.id, outcome, UNKNOWN if started else NEVER_STARTED))
    told = "the process ended during this turn; what was recorded until then is kept"
    if command.resume and turn.restarts + 1 >= RESTARTS_MAX:
        told = f"{RESTARTS_MAX} processes have ended during this step, which is not tried again; what was recorded until then is kept"
    fault = Fault("process_ended", told)
    if open_calls or state.phase is Phase.ACTING:
        decision.emit(ToolsSettled(turn.number, turn.step))
    kept = draft_of(turn) if state.phase is Phase.THINKING else None
    ended(decision, TurnEnded(turn.number, "error", command.at, fault, kept))


def tools_needed(state: State, *, resume: bool) -> frozenset[str]:
    """The tools that are needed to go on with what is open: with runs that may be taken up again, with schedules, and with the calls of a turn that is resumed."""
    runs = [
        task.about.tool
        for task in state.tasks.live.values()
        if task.about.spec.get("reattachable") and task.cancel_requested_at is None
    ]
    actions = [found.action for found in state.schedules.active.values()]
    calls = state.turn.calls if resume and state.turn is not None else ()
    return frozenset(
        [
            *runs,
            *(action.tool for action in actions if isinstance(action, ScheduledRun)),
            *(call.request.name for call in calls if _may_run(call)),
        ]
    )


def _may_run(call: Call) -> bool:
    """Whether a call that is open is begun, or begun again, when its turn is resumed; by us, and not by the host."""
    prepared = call.preparation
    if call.phase is CallPhase.RUNNING:
        return prepared.side_effect != "at_most_once"
    is_waiting = call.phase in (CallPhase.REQUESTED, CallPhase.ASKING)
    return is_waiting and prepared.verdict in ("run", "ask") and not prepared.client_side


def _is_given_up(state: State) -> bool:
    """Whether the model is not asked once more for what it was asked for as the process ended."""
    turn = state.in_turn
    # Output that a user has seen is never produced twice (L13).
    if state.phase is Phase.THINKING and turn.progressed:
        return True
    return state.phase is not Phase.ACTING and turn.restarts >= RESTARTS_MAX


def _resume_calls(decision: Decision, open_calls: tuple[Call, ...], at: float) -> None:
    for call in open_calls:
        if call.phase is not CallPhase.RUNNING:
            continue
        if call.preparation.side_effect != "at_most_once" and call.attempt < REATTACH_MAX:
            decision.emit(CallStarted(call.id, at, call.attempt + 1))
        else:
            decision.emit(CallEnded(call.id, Outcome.UNKNOWN, UNKNOWN))
    if decision.state.phase is Phase.ACTING:
        steps.go_on_with_calls(decision, at)
