"""What happens beside the turns: tasks, notifications and schedules as parts of one session, decided together.

Each part has its own lifecycle (`task`, `notification`, `schedule`). Here is what ties them: the end of a run and its notification are one decision, so
no crash can come between them (B4); a fire and what it starts are one decision (B18); a spill ends the call and creates the task at once (B2).
"""

from __future__ import annotations

from trouper._errors import CommandRejected
from trouper.core import notification, schedule, task, task_text
from trouper.core.calls import RUNNING
from trouper.core.commands import ActFire, DeliverResult, Recover, SpillCalls
from trouper.core.decision import Decision
from trouper.core.events import CallEnded
from trouper.core.ids import NotificationId, ScheduleId, SessionId, TaskId
from trouper.core.messages import Outcome
from trouper.core.notification import (
    AcknowledgeNotifications,
    NotificationCommand,
    NotificationLimits,
    NotificationState,
    RequeueNotifications,
)
from trouper.core.schedule import (
    CompleteFire,
    DeferFire,
    FireState,
    RecoverFires,
    ResumeFires,
    ScheduleCommand,
    ScheduledMessage,
)
from trouper.core.task_events import CancelTask, CreateTask, RecoverTask, TaskCommand, TaskSpilled
from trouper.core.task_record import Task

#: Ends of a turn after which nobody can say that the model has heard of what it carried: with a budget that is spent it is not even asked.
_REQUEUE = frozenset({"interrupt", "error", "budget"})


def decide_task(decision: Decision, command: TaskCommand) -> None:
    """A task's events, each followed by the notification that it calls for; and a place that came free is for the fire that has waited longest (I32)."""
    active = decision.state.tasks.active if decision.state.schedules.active else 0
    for event in task.decide(decision.state.tasks, command):
        decision.emit(event)
        task_id = getattr(event, "task_id", None)
        about = decision.state.tasks.get(task_id) if task_id is not None else None
        if about is None:
            continue
        is_full = decision.state.notifications.is_full()
        told = notification.about_task(about, event, _notification_id(decision, about), is_full=is_full)
        if told is not None:
            decide_notification(decision, told)
    # At a start they are tried by their timers, or they would at once count as tried twice (I17).
    if active and not isinstance(command, RecoverTask):
        _give_places(decision, active - decision.state.tasks.active, command.at)


def _give_places(decision: Decision, count: int, at: float) -> None:
    if count > 0 and decision.state.schedules.active:
        decide_schedule(decision, ResumeFires(count, at))


def _notification_id(decision: Decision, about: Task) -> NotificationId:
    """Derived, so that a replay gives the same: tasks have unique ids, and each entry of a task happens once."""
    return NotificationId(f"note_{about.id}_{about.entries[-1].n}")


def decide_notification(decision: Decision, command: NotificationCommand) -> None:
    for event in notification.decide(decision.state.notifications, command):
        decision.emit(event)


def decide_schedule(decision: Decision, command: ScheduleCommand) -> None:
    for event in schedule.decide(decision.state.schedules, command):
        decision.emit(event)


# --- calls that go on ---


def spill(decision: Decision, command: SpillCalls) -> None:
    """Let the turn go on without these calls, in their order. For those that have no permit it waits on (B2); some may have ended in the last moment."""
    session, budget_ms = SessionId(decision.state.session), command.budget_ms
    turn = decision.state.turn
    calls = () if turn is None else turn.calls
    named = {each.call: each.task_id for each in command.calls}
    active_in_runtime = command.active_in_runtime
    for call in calls:
        request = call.request
        if call.phase is not RUNNING or request.id not in named:
            continue
        new = task_text.spilled_task(
            named[request.id],
            session,
            request.id,
            request.name,
            request.arguments,
            budget_ms=budget_ms,
            reattachable=call.preparation.side_effect != "at_most_once",
            call_attempt=call.attempt,
        )
        try:
            task.check_new(decision.state.tasks, new)
            task.check_permit(decision.state.tasks, active_in_runtime, command.limits)
        except CommandRejected:
            continue
        active_in_runtime += 1
        said = task_text.spill_progress(request.name, budget_ms)
        decision.emit(TaskSpilled(new, command.owner, command.at, said))
        notice = task_text.spill_notice(request.name, new.id, budget_ms)
        decision.emit(CallEnded(request.id, Outcome.OK, notice, latency_ms=float(budget_ms), task=new.id))


def spilled_end(decision: Decision, command: DeliverResult) -> bool:
    """The end of an execution whose call spilled: the task's end, and its one notification. False if there is no such task."""
    for found in decision.state.tasks.live.values():
        if found.about.kind == "tool" and found.about.origin_call == command.call and found.attempt == 1:
            end = task_text.end_command(
                found, 1, command.outcome, command.content, at=command.at, saved=False, internal=command.internal
            )
            decide_task(decision, end)
            return True
    return False


def cancel_by_id(decision: Decision, id: str, at: float, reason: str) -> bool:
    """Cancel a task by its own id, or all that go back to the call of this id; false if there is none. What has ended stays as it is (B5)."""
    tasks = decision.state.tasks
    by_id = tasks.get(id)
    found = [t for t in tasks if t.about.origin_call == id] if by_id is None else [by_id]
    for each in found:
        decide_task(decision, CancelTask(each.id, at, reason))
    return bool(found)


# --- fires ---


def act_on_fire(decision: Decision, command: ActFire) -> None:
    found = decision.state.schedules.active.get(command.schedule_id)
    if found is None or command.fire not in found.claims:
        return  # Cancelled or given up meanwhile.
    if found.claims[command.fire].state is FireState.WAITING:
        return
    refusal, task_id = command.refusal, None
    if isinstance(found.action, ScheduledMessage):
        _tell_fire(decision, command, found.action.text)
    elif command.task is not None:
        limits = command.limits
        # Where there are no places at all, none will come free.
        if (
            limits.per_session
            and limits.per_runtime
            and not task.has_place(decision.state.tasks, command.active_in_runtime, limits)
        ):
            decide_schedule(decision, DeferFire(command.schedule_id, command.fire, command.at))
            return
        try:
            decide_task(
                decision,
                CreateTask(command.task, command.at, command.owner, command.active_in_runtime, command.limits),
            )
            task_id = command.task.id
        except CommandRejected as error:
            refusal = str(error)
    if refusal:
        _tell_fire(decision, command, f"It was due, but nothing could be started: {refusal}")
    decide_schedule(decision, CompleteFire(command.schedule_id, command.fire, command.at, task_id, refusal))
    # The place that it might have had, or the next one, if there is one more.
    active_in_runtime = command.active_in_runtime + (task_id is not None)
    if task.has_place(decision.state.tasks, active_in_runtime, command.limits):
        _give_places(decision, 1, command.at)


def _tell_fire(decision: Decision, command: ActFire, text: str) -> None:
    found = decision.state.schedules.active[command.schedule_id]
    name = NotificationId(f"note_{found.id}_{command.fire}")
    if decision.state.notifications.get(name) is None:
        decide_notification(decision, notification.about_fire(found, command.fire, text, name, command.at))


# --- ends and beginnings ---


def settle_carried(
    decision: Decision, carried: tuple[NotificationId, ...], stop_reason: str, at: float, attempts: int
) -> None:
    """The turn that carried them is over: done with, or to be told again (B15)."""
    pending = decision.state.notifications.pending
    ids = tuple(id for id in carried if id in pending and pending[id].state is NotificationState.DELIVERED)
    if not ids:
        return
    if stop_reason in _REQUEUE:
        limits = NotificationLimits(attempts=attempts)
        decide_notification(decision, RequeueNotifications(ids, f"the turn ended as {stop_reason}", at, limits))
    else:
        decide_notification(decision, AcknowledgeNotifications(ids, at))


def recover(decision: Decision, command: Recover) -> None:
    """Take over what the dead process ran: re-attach or interrupt its runs, requeue what it had delivered, claim its fires anew (B10)."""
    active = decision.state.tasks.active
    for task_id, found in tuple(decision.state.tasks.live.items()):
        if command.owner is not None:
            decide_task(
                decision,
                RecoverTask(
                    task_id,
                    command.owner,
                    task_id in command.reattachable,
                    command.at,
                    # Without those that have just ended: each that ends makes room for another.
                    command.active_in_runtime - (active - decision.state.tasks.active),
                    command.task_limits,
                    task_text.result_path(found.about) if task_id in command.saved else None,
                ),
            )
    # What a resumed turn still carries is settled when that turn ends.
    carried = decision.state.carrying
    orphans = tuple(item.id for item in decision.state.notifications.delivered if item.id not in carried)
    if orphans:
        limits = NotificationLimits(attempts=command.notification_attempts)
        gone = "the process that had delivered it ended"
        decide_notification(decision, RequeueNotifications(orphans, gone, command.at, limits))
    if decision.state.schedules.active:
        decide_schedule(decision, RecoverFires(command.at))


def close(decision: Decision, at: float, reason: str, saved: tuple[TaskId, ...]) -> None:
    """A closed session leaves nothing behind (I20)."""
    for event in task.abandon(decision.state.tasks, at, reason or "The session was closed.", saved):
        decision.emit(event)
    for schedule_id in tuple(decision.state.schedules.active):
        decide_schedule(decision, schedule.CancelSchedule(ScheduleId(schedule_id), at, "the session was closed"))
