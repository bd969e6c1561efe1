"""What the world still owes a session's state: a model call, tool calls, timers, deliveries."""

from __future__ import annotations

from typing import Any, TypeAlias

from trouper.core import notification, schedule, task
from trouper.core.calls import HELD, RUNNING, Call
from trouper.core.ids import CallId
from trouper.core.notification import DeliverBatch
from trouper.core.schedule import ScheduleWork
from trouper.core.session import ACTING, IDLE, THINKING, State
from trouper.core.settings import WARN_SHARE
from trouper.core.task import TaskWork
from trouper.core.task_record import Task
from trouper.core.values import frozen


@frozen(frequent=True)
class CallModel:
    turn: int
    step: int


@frozen
class Summarise:
    split: int


@frozen
class TakeQueued:
    """Input that was accepted, and that no turn has taken in: it gets one of its own (I26)."""


@frozen(frequent=True)
class RunCall:
    call: Call


@frozen
class AwaitApproval:
    call: CallId
    expires_at: float


@frozen
class AwaitAnswer:
    """The host's answer to a client-side call, which the session does without from then on."""

    call: CallId
    expires_at: float


@frozen
class AwaitDeadline:
    turn: int
    at: float


@frozen
class AwaitWarning:
    """When 80 % of a turn's time are over, the user is told (L25)."""

    turn: int
    at: float
    wall_s: float


Work: TypeAlias = (
    CallModel
    | Summarise
    | TakeQueued
    | RunCall
    | AwaitApproval
    | AwaitAnswer
    | AwaitDeadline
    | AwaitWarning
    | TaskWork
    | DeliverBatch
    | ScheduleWork
)
WorkKey: TypeAlias = tuple[Any, ...]


def outstanding(state: State) -> dict[WorkKey, Work]:
    """The work that this state waits for. Live actors run it; a replay only reads it. Keys tell one piece of work from its successor."""
    work: dict[WorkKey, Work] = {}
    turn = state.turn
    if turn is not None:
        if state.phase is THINKING:
            work["model", turn.number, turn.asks] = CallModel(turn.number, turn.step)
        elif state.phase is ACTING:
            for call in turn.calls:
                if call.phase is RUNNING:
                    work["call", call.request.id, call.attempt] = RunCall(call)
                elif call.phase is HELD and call.answer_by is not None:
                    work["answer", call.request.id] = AwaitAnswer(call.request.id, call.answer_by)
        if turn.deadline_at is not None:
            work["deadline", turn.number] = AwaitDeadline(turn.number, turn.deadline_at)
            wall_s = turn.deadline_at - turn.started_at
            if not turn.time_warned:
                at = turn.started_at + WARN_SHARE * wall_s
                work["warning", turn.number] = AwaitWarning(turn.number, at, wall_s)
    if state.compacting is not None:
        work["summary", state.turns, state.compacting.split] = Summarise(state.compacting.split)
    if state.queue and state.phase is IDLE and not state.held:
        work["queued", state.turns] = TakeQueued()
    for call_id, expires_at in state.approvals:
        work["approval", call_id] = AwaitApproval(call_id, expires_at)
    if state.tasks.live:
        for key, owed in task.outstanding(state.tasks).items():
            work[_execution(state.tasks.live[owed.task_id], key)] = owed
    if state.notifications.pending and state.phase is IDLE:
        work.update(notification.outstanding(state.notifications))
    if state.schedules.active:
        work.update(schedule.outstanding(state.schedules))
    return work


def is_at_rest(state: State) -> bool:
    """Whether nothing is under way and nothing is owed to it: to take it up again (`Recover`) would change nothing, so nobody can tell whether it was."""
    return (
        state.phase is IDLE
        and not state.tasks.live
        and not state.schedules.active
        and not state.notifications.delivered
        and not outstanding(state)
    )


def _execution(found: Task, key: WorkKey) -> WorkKey:
    """A spilled call's first attempt is the execution that runs already, under the key that it always had (B2)."""
    if key[0] == "run" and found.about.kind == "tool" and found.attempt == 1:
        return ("call", found.about.origin_call, found.about.metadata.get("call_attempt", 1))
    return key
