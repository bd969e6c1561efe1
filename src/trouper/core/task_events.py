"""What can be asked of tasks (commands), what can happen to them (events), and the table of what may happen when (B11)."""

from __future__ import annotations

from typing import TypeAlias

from trouper.core.ids import TaskId
from trouper.core.lifecycle import Table
from trouper.core.messages import Fault, Json
from trouper.core.task_record import (
    DEFAULT_LIMITS,
    Direction,
    End,
    Link,
    NewTask,
    Owner,
    Progress,
    TaskLimits,
    TaskMessage,
    TaskState,
)
from trouper.core.values import frozen

# --- commands ---


@frozen
class CreateTask:
    """With an owner it starts at once, if there is a permit; without one it is queued."""

    task: NewTask
    at: float
    owner: Owner | None = None
    #: Runs of *all* sessions that hold a permit now, this one not included.
    active_in_runtime: int = 0
    limits: TaskLimits = DEFAULT_LIMITS


@frozen
class StartTask:
    task_id: TaskId
    owner: Owner
    at: float
    active_in_runtime: int = 0
    limits: TaskLimits = DEFAULT_LIMITS


@frozen
class RecoverTask:
    """The owner is gone, as the lease says: run it again if that is safe, or end it (B10)."""

    task_id: TaskId
    owner: Owner
    #: Its tool is registered here, runs in the background, and is idempotent or read-only.
    reattachable: bool
    at: float
    #: Runs of all sessions that hold a permit now, this one *included*: it never gave its own back.
    active_in_runtime: int = 1
    limits: TaskLimits = DEFAULT_LIMITS
    #: Where its result would be read, if it ends here.
    result_path: str | None = None


@frozen
class ReportTaskProgress:
    task_id: TaskId
    attempt: int
    at: float
    detail: str | None = None
    progress: Progress | None = None


@frozen
class WriteTaskOutput:
    task_id: TaskId
    attempt: int
    stream: str
    delta: str
    at: float


@frozen
class BeatTask:
    task_id: TaskId
    attempt: int
    at: float


@frozen
class AddTaskArtifact:
    task_id: TaskId
    attempt: int
    path: str
    at: float


@frozen
class LinkTask:
    task_id: TaskId
    link: Link
    at: float


@frozen
class AskTaskInput:
    task_id: TaskId
    attempt: int
    request: Json
    at: float


@frozen
class AnswerTaskInput:
    task_id: TaskId
    answer: Json
    at: float


@frozen
class MessageTask:
    """To a task from anyone, or from a task (then with its attempt)."""

    task_id: TaskId
    direction: Direction
    text: str
    at: float
    attempt: int | None = None


@frozen
class CancelTask:
    task_id: TaskId
    at: float
    reason: str = ""


@frozen
class EndTask:
    task_id: TaskId
    attempt: int
    end: End
    at: float
    summary: str = ""
    result: Json = None
    result_path: str | None = None
    error: Fault | None = None
    #: What went wrong inside, for the journal and the log; never shown to the model (L20, B9).
    internal: str | None = None


@frozen
class SweepTasks:
    """Archive the ended tasks that are older than the retention. Nothing is swept but by this command (B13)."""

    at: float
    limits: TaskLimits = DEFAULT_LIMITS


TaskCommand: TypeAlias = (
    CreateTask
    | StartTask
    | RecoverTask
    | ReportTaskProgress
    | WriteTaskOutput
    | BeatTask
    | AddTaskArtifact
    | LinkTask
    | AskTaskInput
    | AnswerTaskInput
    | MessageTask
    | CancelTask
    | EndTask
    | SweepTasks
)


# --- events ---


@frozen
class TaskCreated:
    """A background run was asked for."""

    task: NewTask
    at: float


@frozen
class TaskStarted:
    """Its work has begun."""

    task_id: TaskId
    attempt: int
    owner: Owner
    at: float


@frozen
class TaskSpilled:
    """A call that the turn has let go of goes on as this task, in its first attempt: created, started, and why (B3)."""

    task: NewTask
    owner: Owner
    at: float
    reason: str


@frozen
class TaskReattached:
    """Another process has taken it up; `attempt` counts."""

    task_id: TaskId
    attempt: int
    owner: Owner
    at: float


@frozen
class TaskProgressed:
    """How far it has come."""

    task_id: TaskId
    at: float
    detail: str | None = None
    progress: Progress | None = None


@frozen
class TaskOutputWritten:
    """More of its output."""

    task_id: TaskId
    stream: str
    delta: str
    at: float


@frozen
class TaskBeat:
    """It is alive, and has nothing to say."""

    task_id: TaskId
    at: float


@frozen
class TaskArtifactAdded:
    """It has made a file."""

    task_id: TaskId
    path: str
    at: float


@frozen
class TaskLinked:
    """What it has to do with."""

    task_id: TaskId
    link: Link
    at: float


@frozen
class TaskInputRequested:
    """It waits for an answer."""

    task_id: TaskId
    request: Json
    at: float


@frozen
class TaskInputAnswered:
    """It got its answer."""

    task_id: TaskId
    answer: Json
    at: float


@frozen
class TaskMessaged:
    """A message to it, or from it."""

    task_id: TaskId
    message: TaskMessage

    @property
    def at(self) -> float:
        """When it was said."""
        return self.message.at


@frozen
class TaskCancelRequested:
    """Somebody wants it stopped; its end is an event of its own."""

    task_id: TaskId
    at: float
    reason: str = ""


@frozen
class TaskEnded:
    """What the four ends have in common; never made itself, so that the table can tell them apart."""

    task_id: TaskId
    attempt: int
    at: float
    summary: str = ""
    result: Json = None
    result_path: str | None = None
    error: Fault | None = None
    internal: str | None = None


@frozen
class TaskSucceeded(TaskEnded):
    """It ended with a result."""


@frozen
class TaskFailed(TaskEnded):
    """It ended in an error."""


@frozen
class TaskCancelled(TaskEnded):
    """It was stopped, as somebody wanted."""


@frozen
class TaskInterrupted(TaskEnded):
    """It was cut off, by the end of its process or session, and not taken up again."""


@frozen
class TaskEndedLate:
    """A run reported its end after the task had ended, or after a newer attempt took over: noted, and nothing else (B5, I9)."""

    task_id: TaskId
    attempt: int
    end: End
    at: float
    summary: str = ""


@frozen
class TaskUpdateRefused:
    """An attempt that no longer counts wanted to report something."""

    task_id: TaskId
    attempt: int
    update: str
    at: float


@frozen
class TasksArchived:
    """The records of tasks that ended long ago were put away."""

    task_ids: tuple[TaskId, ...]
    at: float


TaskEvent: TypeAlias = (
    TaskCreated
    | TaskStarted
    | TaskSpilled
    | TaskReattached
    | TaskProgressed
    | TaskOutputWritten
    | TaskBeat
    | TaskArtifactAdded
    | TaskLinked
    | TaskInputRequested
    | TaskInputAnswered
    | TaskMessaged
    | TaskCancelRequested
    | TaskSucceeded
    | TaskFailed
    | TaskCancelled
    | TaskInterrupted
    | TaskEndedLate
    | TaskUpdateRefused
    | TasksArchived
)

_S = TaskState
_LIVE = (_S.QUEUED, _S.RUNNING, _S.AWAITING_INPUT)
_HELD = (_S.RUNNING, _S.AWAITING_INPUT)

#: The whole lifecycle. Whatever is not here cannot happen (B11, I28).
TRANSITIONS: Table[TaskState] = {
    (None, TaskCreated): _S.QUEUED,
    (None, TaskSpilled): _S.RUNNING,
    (_S.QUEUED, TaskStarted): _S.RUNNING,
    (_S.RUNNING, TaskInputRequested): _S.AWAITING_INPUT,
    (_S.AWAITING_INPUT, TaskInputAnswered): _S.RUNNING,
    (_S.RUNNING, TaskReattached): _S.RUNNING,
    (_S.AWAITING_INPUT, TaskReattached): _S.RUNNING,
    (_S.RUNNING, TaskSucceeded): _S.SUCCEEDED,
    (_S.AWAITING_INPUT, TaskSucceeded): _S.SUCCEEDED,
    (_S.RUNNING, TaskFailed): _S.FAILED,
    (_S.AWAITING_INPUT, TaskFailed): _S.FAILED,
    **{(state, TaskCancelled): _S.CANCELLED for state in _LIVE},
    **{(state, TaskInterrupted): _S.INTERRUPTED for state in _LIVE},
    **{
        (state, event): state
        for event in (TaskProgressed, TaskOutputWritten, TaskBeat, TaskArtifactAdded, TaskCancelRequested)
        for state in _HELD
    },
    **{(state, event): state for event in (TaskMessaged, TaskLinked) for state in _LIVE},
    **{(state, event): state for event in (TaskEndedLate, TaskUpdateRefused) for state in _S},
}
