"""What follows from a command: the events, or a refusal.

`decide` raises `CommandRejected` for misuse (a turn while one runs) and returns nothing for an answer that nobody waits for any more (a reply
of a discarded step). A decision often needs the state after its own first events (once the tools have settled, is there room for another step?),
so it is built up event by event, each folded in at once; `step` hands out both, so that an actor need not fold again.
"""

from __future__ import annotations

from typing import assert_never, get_args

from trouper._errors import CommandRejected
from trouper.core import background, compacting, recovery, steps
from trouper.core.calls import ASKING, HELD
from trouper.core.commands import (
    ActFire,
    Approve,
    CancelCall,
    Close,
    Command,
    Compact,
    Configure,
    DeliverDue,
    DeliverFault,
    DeliverReply,
    DeliverResult,
    DeliverResults,
    DeliverSummary,
    Deny,
    EndTurn,
    Interrupt,
    LapseCall,
    NoteBudget,
    NoteProgress,
    NoteRetry,
    OpenSession,
    Recover,
    SpillCalls,
    Submit,
    TurnCommand,
)
from trouper.core.decision import Decision
from trouper.core.ending import CutShort, end_turn
from trouper.core.events import (
    ApprovalGiven,
    BudgetWarned,
    CallEnded,
    InputReceived,
    ModelProgressed,
    ModelRetried,
    SessionClosed,
    SessionConfigured,
    SessionOpened,
)
from trouper.core.ids import CallId
from trouper.core.messages import Outcome
from trouper.core.notification import (
    DeliverNotifications,
    ExpireNotifications,
    NotificationCommand,
    NotificationsDelivered,
    prompt_text,
)
from trouper.core.schedule import ScheduleCommand
from trouper.core.session import CLOSED, IDLE, NEW, TIDYING, Event, State
from trouper.core.task_events import TaskCommand

INTERRUPTED = CutShort(
    "The user interrupted this turn before the call had ended; it was cancelled and may have done part of its work.",
    "The user interrupted this turn before the call was started; it did nothing.",
)
CANCELLED = CutShort(
    "This call was cancelled on request; it may have done part of its work.",
    "This call was cancelled on request before it was started; it did nothing.",
)
TURN_ENDED = CutShort(
    "The turn ended before the call had; it was cancelled and may have done part of its work.",
    "The turn ended before the call was started; it did nothing.",
)
DENIED = "Permission was denied."
UNAPPROVED = "Nobody answered in time."
UNANSWERED = "The application was to carry out this call, and has not said in time that it did."


_TASK_COMMANDS = get_args(TaskCommand)
_NOTIFICATION_COMMANDS = get_args(NotificationCommand)
_SCHEDULE_COMMANDS = get_args(ScheduleCommand)
_TURN_COMMANDS = frozenset(get_args(TurnCommand))


def decide(state: State, command: Command) -> tuple[Event, ...]:
    """The events that follow from `command`; none if it is stale."""
    return step(state, command)[0]


def step(state: State, command: Command) -> tuple[tuple[Event, ...], State]:
    """`decide`, with the state that its events lead to."""
    decision = Decision(state)
    if type(command) in _TURN_COMMANDS:
        _dispatch(decision, command)  # type: ignore[arg-type]
    else:
        _dispatch_part(decision, command)
    return tuple(decision.events), decision.state


def _dispatch_part(decision: Decision, command: Command) -> None:
    """A command to one part of the session: tasks, notifications or schedules."""
    state = decision.state
    if state.phase is NEW or state.phase is CLOSED:
        raise CommandRejected(
            f"session {state.session!r} is {state.phase.value}; open another one", session=state.session
        )
    if isinstance(command, _TASK_COMMANDS):
        background.decide_task(decision, command)
    elif isinstance(command, _NOTIFICATION_COMMANDS):
        background.decide_notification(decision, command)
    elif isinstance(command, _SCHEDULE_COMMANDS):
        background.decide_schedule(decision, command)
    else:
        raise AssertionError(f"{type(command).__name__} is no command")


def _dispatch(decision: Decision, command: TurnCommand) -> None:
    state = decision.state
    if state.phase is NEW and not isinstance(command, OpenSession):
        raise CommandRejected("this session was never opened; open it first", session=state.session)
    if state.phase is CLOSED:
        _after_close(decision, command)
        return
    match command:
        case DeliverReply():
            steps.take_reply(decision, command)
        case DeliverResult():
            steps.take_result(decision, command)
        case DeliverResults(results):
            steps.take_results(decision, results)
        case Submit():
            _submit(decision, command)
        case NoteRetry(turn, step_number, attempt, fault, delay_s):
            if steps.is_current(state, turn, step_number):
                decision.emit(ModelRetried(turn, step_number, attempt, fault, delay_s))
        case NoteProgress(turn, step_number, text, thinking):
            if steps.is_current(state, turn, step_number):
                decision.emit(ModelProgressed(turn, step_number, text, thinking))
        case NoteBudget(what, spent, cap, turn):
            if state.turn is not None and turn in (None, state.turn.number):
                decision.emit(BudgetWarned(what, spent, cap))
        case DeliverFault():
            steps.take_fault(decision, command)
        case DeliverSummary():
            steps.take_summary(decision, command)
        case Approve(call, at, by, always):
            steps.require_phase(state, call, ASKING, "is not waiting for an approval")
            if _has_lapsed(state, call, at):
                decision.emit(CallEnded(call, Outcome.DENIED, f"{DENIED} {UNAPPROVED}"))
            else:
                decision.emit(ApprovalGiven(call, by, always))
                steps.hold_if_approved(decision, call, at)
            steps.go_on_with_calls(decision, at)
        case Deny(call, at, reason):
            if steps.find_call(state, call, ASKING) is not None:
                told = f"{DENIED} {reason}" if reason else DENIED
                decision.emit(CallEnded(call, Outcome.DENIED, told))
                steps.go_on_with_calls(decision, at)
        case LapseCall(call, at):
            if steps.find_call(state, call, HELD) is not None:
                decision.emit(CallEnded(call, Outcome.TIMEOUT, UNANSWERED))
                steps.go_on_with_calls(decision, at)
        case CancelCall(call, at, reason):
            if (found := steps.open_call(state, call)) is not None:
                told = CANCELLED.told_of(found)
                decision.emit(CallEnded(call, Outcome.CANCELLED, f"{told} {reason}" if reason else told))
                steps.go_on_with_calls(decision, at)
            elif not background.cancel_by_id(decision, call, at, reason):
                raise CommandRejected(
                    f"session {state.session!r} has no open call or task {call!r}; list its tasks to see their ids",
                    id=call,
                )
        case SpillCalls():
            background.spill(decision, command)
            if decision.events:
                steps.go_on_with_calls(decision, command.at)
        case DeliverDue():
            _deliver_due(decision, command)
        case ActFire():
            background.act_on_fire(decision, command)
        case Interrupt():
            if state.turn is not None and command.turn in (None, state.turn.number):
                end_turn(
                    decision,
                    command.at,
                    "interrupt",
                    INTERRUPTED,
                    partial=command.partial,
                    detail=command.reason,
                    usage=command.usage,
                )
            elif state.phase is TIDYING and command.turn in (None, 0):
                compacting.give_up(decision, command.usage)
        case EndTurn():
            if state.turn is not None and state.turn.number == command.turn:
                end_turn(
                    decision,
                    command.at,
                    command.stop_reason,
                    TURN_ENDED,
                    partial=command.partial,
                    fault=command.fault,
                    usage=command.usage,
                    unasked=command.unasked,
                )
        case Compact():
            compacting.compact(decision, command)
        case Recover():
            recovery.recover(decision, command)
        case Configure(system, own, budget):
            if (system, own, budget) != (state.system, state.own, state.budget):
                decision.emit(SessionConfigured(system, own, budget))
        case OpenSession():
            if state.phase is not NEW:
                raise CommandRejected(f"session {state.session!r} is open already", session=state.session)
            decision.emit(
                SessionOpened(command.session, command.at, command.system, command.parent, command.own, command.budget)
            )
        case Close(at, reason, partial, usage, saved):
            if state.turn is not None:
                end_turn(decision, at, "interrupt", TURN_ENDED, partial=partial, detail=reason, usage=usage)
            elif state.phase is TIDYING:
                compacting.give_up(decision, usage)
            background.close(decision, at, reason, saved)
            decision.emit(SessionClosed(reason, at))
        case _:
            assert_never(command)


def _after_close(decision: Decision, command: TurnCommand) -> None:
    """Closed is final (I16): new work is refused, answers are stale, closing again changes nothing."""
    if isinstance(command, OpenSession | Submit | Compact | Configure | Approve):
        session = decision.state.session
        raise CommandRejected(f"session {session!r} is closed; open another one", session=session)


def _has_lapsed(state: State, call: CallId, at: float) -> bool:
    """Whether an approval comes too late. The timer may not have told: it begins anew with each process, and stands still while the machine sleeps."""
    return any(id == call and at >= expires_at for id, expires_at in state.approvals)


# --- input and turns ---


def _submit(decision: Decision, command: Submit) -> None:
    state = decision.state
    busy = state.phase is not IDLE
    if busy and not command.steer:
        doing = (
            "is being compacted; wait for that, call interrupt(), or send()"
            if state.phase is TIDYING
            else "is mid-turn; wait for the turn, call interrupt(), or send() to steer it"
        )
        raise CommandRejected(f"session {state.session!r} {doing}", session=state.session)
    # Between turns nothing has to wait: the turn that begins takes in all that an interrupt left behind.
    if busy and len(state.queue) >= command.queue_max:
        raise CommandRejected(
            f"session {state.session!r} has {len(state.queue)} messages waiting; wait until the turn has taken them in",
            session=state.session,
        )
    decision.emit(InputReceived(command.text, command.at, command.attachments, command.kind))
    if not busy:
        steps.start_turn(decision, command.at, command.options)


def _deliver_due(decision: Decision, command: DeliverDue) -> None:
    """All that is queued goes to the model in one turn (I26, I31)."""
    if decision.state.phase is not IDLE:
        return
    background.decide_notification(decision, ExpireNotifications(command.at, command.limits))
    background.decide_notification(decision, DeliverNotifications(command.at, limits=command.limits))
    # Others may be out too, with a host that takes them itself (B16).
    last = decision.events[-1] if decision.events else None
    ids = last.ids if isinstance(last, NotificationsDelivered) else ()
    carried = tuple(decision.state.notifications.pending[id] for id in ids)
    if carried:
        decision.emit(InputReceived(prompt_text(carried), command.at, kind="notification"))
    if carried or (decision.state.queue and not decision.state.held):
        steps.start_turn(decision, command.at, command.options, tuple(item.id for item in carried))
