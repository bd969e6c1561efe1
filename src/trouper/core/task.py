"""Tasks: the durable records of background runs, from a spilled call or a spawned one to the end (B2-B5, B8, B10-B13).

A task is owned by one *attempt* of its run. Whoever writes says which attempt it is; a superseded one changes nothing, its end included (I28).
A running task keeps its permit over a crash, so re-attaching never needs a second one, and the limits hold at every prefix (I19).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias, assert_never

from trouper._errors import CommandRejected
from trouper.core import task_text
from trouper.core.ids import TaskId
from trouper.core.lifecycle import move
from trouper.core.messages import Fault

# The words of this lifecycle are part of its surface: `task.CreateTask`, `task.TaskSucceeded`, `task.Tasks`.
from trouper.core.task_events import *  # noqa: F403
from trouper.core.task_events import (
    TRANSITIONS,
    AddTaskArtifact,
    AnswerTaskInput,
    AskTaskInput,
    BeatTask,
    CancelTask,
    CreateTask,
    EndTask,
    LinkTask,
    MessageTask,
    RecoverTask,
    ReportTaskProgress,
    StartTask,
    SweepTasks,
    TaskArtifactAdded,
    TaskBeat,
    TaskCancelled,
    TaskCancelRequested,
    TaskCommand,
    TaskCreated,
    TaskEndedLate,
    TaskEvent,
    TaskFailed,
    TaskInputAnswered,
    TaskInputRequested,
    TaskInterrupted,
    TaskLinked,
    TaskMessaged,
    TaskOutputWritten,
    TaskProgressed,
    TaskReattached,
    TasksArchived,
    TaskSpilled,
    TaskStarted,
    TaskSucceeded,
    TaskUpdateRefused,
    WriteTaskOutput,
)
from trouper.core.task_record import *  # noqa: F403
from trouper.core.task_record import (
    ARTIFACTS_MAX,
    DETAIL_MAX_CHARS,
    ENTRIES_MAX,
    LINKS_MAX,
    MESSAGES_MAX,
    REFUSALS_MAX,
    TAIL_MAX_CHARS,
    End,
    Entry,
    NewTask,
    Task,
    TaskLimits,
    TaskMessage,
    Tasks,
    TaskState,
    append_output,
)
from trouper.core.values import changed as change
from trouper.core.values import frozen

S = TaskState

_ENDS: Mapping[End, type[TaskSucceeded | TaskFailed | TaskCancelled | TaskInterrupted]] = {
    "succeeded": TaskSucceeded,
    "failed": TaskFailed,
    "cancelled": TaskCancelled,
    "interrupted": TaskInterrupted,
}


# --- work ---


@frozen
class RunTask:
    """This attempt should be running. A spilled call's first attempt is the very execution that already is (B2)."""

    task_id: TaskId
    attempt: int


@frozen
class AwaitTaskStopped:
    """A cancelled run that has not reported within the grace period is ended without it (I24)."""

    task_id: TaskId
    attempt: int


TaskWork: TypeAlias = RunTask | AwaitTaskStopped


def outstanding(tasks: Tasks) -> dict[tuple[str, TaskId, int], TaskWork]:
    """The runs that should be running. A cancelled one is wanted no more, which cancels its scope; its end is still awaited."""
    work: dict[tuple[str, TaskId, int], TaskWork] = {}
    for task in tasks.live.values():
        if task.state is S.QUEUED:
            continue
        if task.cancel_requested_at is None:
            work["run", task.id, task.attempt] = RunTask(task.id, task.attempt)
        else:
            work["stop", task.id, task.attempt] = AwaitTaskStopped(task.id, task.attempt)
    return work


def abandon(tasks: Tasks, at: float, reason: str, saved: tuple[TaskId, ...] = ()) -> tuple[TaskEvent, ...]:
    """The end of every live task: a session that closes leaves none behind (I20). `saved`: those whose files are there."""
    return tuple(
        TaskCancelled(
            task.id,
            task.attempt,
            at,
            summary=reason,
            result_path=task_text.result_path(task.about) if task.id in saved else None,
        )
        for task in tasks.live.values()
    )


# --- decide ---


def check_new(tasks: Tasks, new: NewTask) -> None:
    if tasks.get(new.id) is not None:
        raise CommandRejected(f"task {new.id!r} exists already; give each task a fresh id", task_id=new.id)


def check_permit(tasks: Tasks, active_in_runtime: int, limits: TaskLimits) -> None:
    """Raise unless one more run may start (B6, I19)."""
    if tasks.active >= limits.per_session:
        raise CommandRejected(
            f"this session already has {tasks.active!r} active background runs, and {limits.per_session} is the limit; "
            "wait for one to end, or cancel one",
            scope="session",
            limit=limits.per_session,
            active=tasks.active,
        )
    if active_in_runtime >= limits.per_runtime:
        raise CommandRejected(
            f"this runtime already has {active_in_runtime!r} active background runs, and {limits.per_runtime} is the limit; "
            "try again when one has ended",
            scope="runtime",
            limit=limits.per_runtime,
            active=active_in_runtime,
        )


def has_place(tasks: Tasks, active_in_runtime: int, limits: TaskLimits) -> bool:
    """Whether one more run may start now."""
    return tasks.active < limits.per_session and active_in_runtime < limits.per_runtime


def decide(tasks: Tasks, command: TaskCommand) -> tuple[TaskEvent, ...]:
    match command:
        case CreateTask():
            return _create(tasks, command)
        case StartTask():
            return _start(tasks, command)
        case RecoverTask():
            return _recover(tasks, command)
        case SweepTasks(at=at, limits=limits):
            return _sweep(tasks, at, limits)
        case CancelTask(task_id=task_id, at=at, reason=reason):
            return _cancel(_known(tasks, task_id), at, reason)
        case LinkTask(task_id=task_id, link=link, at=at):
            task = _not_ended(tasks, task_id, "linked")
            if link in task.links:
                return ()
            if len(task.links) >= LINKS_MAX:
                raise CommandRejected(
                    f"task {task_id!r} has {LINKS_MAX} links already; keep the rest elsewhere", task_id=task_id
                )
            return (TaskLinked(task_id, link, at),)
        case AnswerTaskInput(task_id=task_id, answer=answer, at=at):
            task = _known(tasks, task_id)
            if task.state is not S.AWAITING_INPUT:
                raise CommandRejected(
                    f"task {task_id!r} is {task.state.value} and asks for nothing; send it a message instead",
                    task_id=task_id,
                )
            return (TaskInputAnswered(task_id, answer, at),)
        case MessageTask(task_id=task_id, direction="to_task", text=text, at=at):
            _not_ended(tasks, task_id, "sent messages")
            return (TaskMessaged(task_id, TaskMessage("to_task", text, at)),)
        case _:
            return _report(tasks, command)


def _create(tasks: Tasks, command: CreateTask) -> tuple[TaskEvent, ...]:
    new = command.task
    check_new(tasks, new)
    created = TaskCreated(new, command.at)
    if command.owner is not None:
        check_permit(tasks, command.active_in_runtime, command.limits)
        return (created, TaskStarted(new.id, 1, command.owner, command.at))
    if len(tasks.live) - tasks.active >= command.limits.queued:
        raise CommandRejected(
            f"this session already has {command.limits.queued!r} queued tasks; wait for some to start, or cancel some",
            scope="queue",
            limit=command.limits.queued,
        )
    return (created,)


def _start(tasks: Tasks, command: StartTask) -> tuple[TaskEvent, ...]:
    task = tasks.live.get(command.task_id)
    if task is None or task.state is not S.QUEUED:
        return ()  # Stale: cancelled, or started by now.
    check_permit(tasks, command.active_in_runtime, command.limits)
    return (TaskStarted(task.id, task.attempt + 1, command.owner, command.at),)


def _recover(tasks: Tasks, command: RecoverTask) -> tuple[TaskEvent, ...]:
    task, at, limits = tasks.live.get(command.task_id), command.at, command.limits
    if task is None or task.state is S.QUEUED:
        return ()
    if task.owner == command.owner:
        return ()  # Ours, and alive: this is the second recovery of two (J12).
    if task.cancel_requested_at is not None:
        return (
            TaskCancelled(
                task.id,
                task.attempt,
                at,
                summary="Cancelled; the process ended before the run had stopped.",
                result_path=command.result_path,
            ),
        )
    if not command.reattachable and task.about.spec.get("reattachable"):
        why = f"the one that took it over has no tool {task.about.tool!r} that it may run again"
    elif not command.reattachable:
        why = "its tool cannot safely be run a second time"
    elif task.attempt >= limits.attempts:
        why = f"it has been tried {task.attempt} times, and {limits.attempts} is the limit"
    elif tasks.active > limits.per_session or command.active_in_runtime > limits.per_runtime:
        why = "there are more runs than the limits now allow"
    else:
        return (TaskReattached(task.id, task.attempt + 1, command.owner, at),)
    message = f"The process that ran it ended, and {why}. It may have done part of its work."
    fault = Fault("interrupted", message)
    return (TaskInterrupted(task.id, task.attempt, at, summary=message, result_path=command.result_path, error=fault),)


def _sweep(tasks: Tasks, at: float, limits: TaskLimits) -> tuple[TaskEvent, ...]:
    if limits.retention_s <= 0:
        return ()
    old = tuple(task.id for task in tasks.ended.values() if at - _ended_at(task) >= limits.retention_s)
    return (TasksArchived(old, at),) if old else ()


def _cancel(task: Task, at: float, reason: str) -> tuple[TaskEvent, ...]:
    if task.ended or task.cancel_requested_at is not None:
        return ()
    if task.state is S.QUEUED:
        return (TaskCancelled(task.id, task.attempt, at, summary=reason or "Cancelled before it started."),)
    return (TaskCancelRequested(task.id, at, reason),)


_Report: TypeAlias = (
    ReportTaskProgress | WriteTaskOutput | BeatTask | AddTaskArtifact | AskTaskInput | MessageTask | EndTask
)


def _report(tasks: Tasks, command: _Report) -> tuple[TaskEvent, ...]:
    """What a run says of itself, fenced by its attempt (B8)."""
    task, at = tasks.get(command.task_id), command.at
    if task is None:
        return ()  # Archived long ago.
    if task.ended or command.attempt != task.attempt or task.state is S.QUEUED:
        return _refuse(task, command)
    match command:
        case ReportTaskProgress(detail=detail, progress=progress):
            return (TaskProgressed(task.id, at, None if detail is None else detail[:DETAIL_MAX_CHARS], progress),)
        case WriteTaskOutput(stream=stream, delta=delta):
            if not delta:
                return ()
            # Past the cap the log takes no more, so only what the live tail can show is worth a record.
            return (
                TaskOutputWritten(task.id, stream, delta[-TAIL_MAX_CHARS:] if task.output.truncated else delta, at),
            )
        case BeatTask():
            return (TaskBeat(task.id, at),)
        case AddTaskArtifact(path=path):
            if path in task.artifacts:
                return ()
            if len(task.artifacts) >= ARTIFACTS_MAX:
                raise CommandRejected(
                    f"task {task.id!r} has {ARTIFACTS_MAX} artifacts already; put the rest into one archive",
                    task_id=task.id,
                )
            return (TaskArtifactAdded(task.id, path, at),)
        case AskTaskInput(request=request):
            if task.state is S.AWAITING_INPUT:
                raise CommandRejected(f"task {task.id!r} has asked already; wait for the answer", task_id=task.id)
            return (TaskInputRequested(task.id, request, at),)
        case MessageTask(text=text):
            return (TaskMessaged(task.id, TaskMessage("from_task", text, at)),)
        case EndTask(end=end):
            return (
                _ENDS[end](
                    task.id,
                    command.attempt,
                    at,
                    summary=command.summary,
                    result=command.result,
                    result_path=command.result_path,
                    error=command.error,
                    internal=command.internal,
                ),
            )
        case _:
            assert_never(command)


def _refuse(task: Task, command: _Report) -> tuple[TaskEvent, ...]:
    attempt = command.attempt or 0
    if isinstance(command, EndTask):
        if attempt in task.late or (task.ended and attempt == task.attempt and command.end == task.state.value):
            return ()  # The same end again, not a late one.
        return (TaskEndedLate(task.id, attempt, command.end, command.at, command.summary),)
    if task.refused >= REFUSALS_MAX:
        return ()
    return (TaskUpdateRefused(task.id, attempt, type(command).__name__, command.at),)


def _known(tasks: Tasks, task_id: TaskId) -> Task:
    task = tasks.get(task_id)
    if task is None:
        raise CommandRejected(
            f"there is no task {task_id!r} in this session; list the tasks to see their ids", task_id=task_id
        )
    return task


def _not_ended(tasks: Tasks, task_id: TaskId, done: str) -> Task:
    task = _known(tasks, task_id)
    if task.ended:
        raise CommandRejected(
            f"task {task_id!r} is {task.state.value} and cannot be {done}; start a new one", task_id=task_id
        )
    return task


def _ended_at(task: Task) -> float:
    return task.updated_at if task.finished_at is None else task.finished_at


# --- evolve ---


def evolve(tasks: Tasks, event: TaskEvent) -> Tasks:
    match event:
        case TaskCreated(task=new, at=at):
            state = move(TRANSITIONS, None, event)
            task = Task(new, state, at, at, links=new.links, entries=(Entry(at, "created", new.title),))
            return change(tasks, live={**tasks.live, new.id: task})
        case TaskSpilled():
            return change(tasks, live={**tasks.live, event.task.id: _spilled(event)})
        case TasksArchived(task_ids=gone):
            kept = {task_id: task for task_id, task in tasks.ended.items() if task_id not in frozenset(gone)}
            return change(tasks, ended=kept, archived=tasks.archived + len(gone))
        case _:
            task = tasks.live.get(event.task_id) or tasks.ended[event.task_id]
            was_ended = task.ended
            task = _evolve_task(task, event)
    if was_ended:
        return change(tasks, ended={**tasks.ended, task.id: task})
    if task.ended:
        live = {task_id: other for task_id, other in tasks.live.items() if task_id != task.id}
        return change(tasks, live=live, ended={**tasks.ended, task.id: task})
    return change(tasks, live={**tasks.live, task.id: task})


def _spilled(event: TaskSpilled) -> Task:
    new, at, detail = event.task, event.at, event.reason[:DETAIL_MAX_CHARS]
    return Task(
        new,
        move(TRANSITIONS, None, event),
        at,
        at,
        attempt=1,
        owner=event.owner,
        started_at=at,
        heartbeat_at=at,
        detail=detail,
        links=new.links,
        entries=(
            Entry(at, "created", new.title),
            Entry(at, "started", "attempt 1", 1),
            Entry(at, "progress", detail, 2),
        ),
    )


def _evolve_task(task: Task, event: TaskEvent) -> Task:
    state = move(TRANSITIONS, task.state, event)
    match event:
        case TaskOutputWritten(stream=stream, delta=delta, at=at):
            return change(task, output=append_output(task.output, stream, delta)[0], updated_at=at)
        case TaskBeat(at=at):
            return change(task, heartbeat_at=at)
        case TaskProgressed(at=at, detail=detail, progress=progress):
            entries = task.entries if detail is None else _noted(task, Entry(at, "progress", detail))
            return change(
                task,
                detail=task.detail if detail is None else detail,
                progress=progress or task.progress,
                entries=entries,
                updated_at=at,
            )
        case TaskStarted(attempt=attempt, owner=owner, at=at) | TaskReattached(attempt=attempt, owner=owner, at=at):
            return change(
                task,
                state=state,
                attempt=attempt,
                owner=owner,
                started_at=at if task.started_at is None else task.started_at,
                heartbeat_at=at,
                input_request=None,
                entries=_noted(task, Entry(at, "started" if attempt == 1 else "reattached", f"attempt {attempt}")),
                updated_at=at,
            )
        case TaskArtifactAdded(path=path, at=at):
            return change(
                task,
                artifacts=(*task.artifacts, path),
                entries=_noted(task, Entry(at, "artifact", path)),
                updated_at=at,
            )
        case TaskLinked(link=link, at=at):
            return change(task, links=(*task.links, link), updated_at=at)
        case TaskInputRequested(request=request, at=at):
            return change(
                task,
                state=state,
                input_request=request,
                entries=_noted(task, Entry(at, "input requested")),
                updated_at=at,
            )
        case TaskInputAnswered(at=at):
            return change(
                task, state=state, input_request=None, entries=_noted(task, Entry(at, "input answered")), updated_at=at
            )
        case TaskMessaged(message=message):
            return change(
                task,
                messages=(*task.messages, message)[-MESSAGES_MAX:],
                entries=_noted(task, Entry(message.at, f"message {message.direction.replace('_', ' ')}", message.text)),
                updated_at=message.at,
            )
        case TaskCancelRequested(at=at, reason=reason):
            return change(
                task, cancel_requested_at=at, entries=_noted(task, Entry(at, "cancel requested", reason)), updated_at=at
            )
        case TaskSucceeded() | TaskFailed() | TaskCancelled() | TaskInterrupted():
            return change(
                task,
                state=state,
                summary=event.summary,
                result=event.result,
                result_path=event.result_path,
                error=event.error,
                input_request=None,
                finished_at=event.at,
                entries=_noted(task, Entry(event.at, state.value)),
                updated_at=event.at,
            )
        case TaskEndedLate(attempt=attempt, end=end, at=at):
            return change(task, late=(*task.late, attempt), entries=_noted(task, Entry(at, "ended late", end)))
        case TaskUpdateRefused():
            return change(task, refused=task.refused + 1)
        case TaskCreated() | TaskSpilled() | TasksArchived():
            raise AssertionError(event)  # Handled by `evolve`.
        case _:
            assert_never(event)


def _noted(task: Task, entry: Entry) -> tuple[Entry, ...]:
    number = task.entries[-1].n + 1
    return (*task.entries[-(ENTRIES_MAX - 1) :], Entry(entry.at, entry.what, entry.text[:DETAIL_MAX_CHARS], number))
