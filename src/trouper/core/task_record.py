"""What a task is: the record itself, all tasks of a session, and what can be asked of them without changing any (B3, B12, B13)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Literal, TypeAlias

from trouper.core.ids import CallId, SessionId, TaskId
from trouper.core.messages import Fault, Json
from trouper.core.values import frozen

LOG_MAX_CHARS = 262_144
TAIL_MAX_CHARS = 2_048
#: What the state keeps of a task's past; the journal has all of it.
ENTRIES_MAX = 50
MESSAGES_MAX = 100
ARTIFACTS_MAX = 256
LINKS_MAX = 64
#: Refused updates are counted in the journal up to this many per task: a run-away writer that was fenced off must not fill the disk.
REFUSALS_MAX = 16
DETAIL_MAX_CHARS = 1_000

Wake: TypeAlias = Literal["silent", "on_terminal", "on_activity"]
Direction: TypeAlias = Literal["to_task", "from_task"]
End: TypeAlias = Literal["succeeded", "failed", "cancelled", "interrupted"]


class TaskState(Enum):
    # By identity: `Enum` would hash the name, in Python, on every look-up in the table.
    __hash__ = object.__hash__

    QUEUED = "queued"
    RUNNING = "running"
    AWAITING_INPUT = "awaiting_input"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


TERMINAL = frozenset((TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED, TaskState.INTERRUPTED))


@frozen
class TaskLimits:
    per_session: int = 5
    per_runtime: int = 64
    #: Tasks of a session that wait for a permit.
    queued: int = 64
    #: Attempts in all for one run, the first included (B10).
    attempts: int = 3
    #: How long ended tasks are kept; 0 means for ever (B13).
    retention_s: float = 30 * 86_400.0


DEFAULT_LIMITS = TaskLimits()


@frozen
class Owner:
    """The runtime that carries out an attempt. Whether it is gone is for a lease to say, never for its pid (B10)."""

    instance: str
    pid: int
    started_at: float


@frozen
class Progress:
    current: float
    total: float | None = None
    unit: str | None = None
    label: str | None = None


@frozen
class Link:
    """What a task has to do with: `schedule`, `session`, `parent`..., and its id."""

    rel: str
    target: str


@frozen
class TaskMessage:
    direction: Direction
    text: str
    at: float


@frozen
class Entry:
    """One line of a task's past, for people."""

    at: float
    what: str
    text: str = ""
    #: Its number, which goes on rising when older lines are dropped.
    n: int = 0


@frozen
class NewTask:
    """What a task is about. Never changes."""

    id: TaskId
    session: SessionId
    #: "tool" for a spilled call, "background" for spawn_background, "subagent", "monitor"; hosts may have their own.
    kind: str
    title: str
    #: {tool, arguments, reattachable...}: what a new attempt needs.
    spec: Mapping[str, Json]
    #: `bg_...` for a spawned run; else the task's id. Names its directory.
    run_id: str = ""
    instructions: str = ""
    requested_by: str = ""
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Json] = {}
    origin_call: CallId | None = None
    wake: Wake = "on_terminal"
    links: tuple[Link, ...] = ()

    @property
    def tool(self) -> str:
        return str(self.spec.get("tool", ""))

    @property
    def directory(self) -> str:
        """Where the run's files are, within the session's."""
        return f".background/{self.run_id or self.id}"


@frozen
class Output:
    """What a run has written. The log itself is a file; here are its live tail and how long it is."""

    tail: str = ""
    chars: int = 0
    stream: str = ""
    truncated: bool = False


@frozen
class Task:
    about: NewTask
    state: TaskState
    created_at: float
    updated_at: float
    started_at: float | None = None
    finished_at: float | None = None
    attempt: int = 0
    owner: Owner | None = None
    heartbeat_at: float | None = None
    detail: str = ""
    progress: Progress | None = None
    output: Output = Output()
    input_request: Json = None
    cancel_requested_at: float | None = None
    summary: str = ""
    result: Json = None
    result_path: str | None = None
    error: Fault | None = None
    artifacts: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    messages: tuple[TaskMessage, ...] = ()
    entries: tuple[Entry, ...] = ()
    #: Updates of superseded attempts, or after the end, that were turned away.
    refused: int = 0
    #: Attempts whose end came too late (I9).
    late: tuple[int, ...] = ()

    @property
    def id(self) -> TaskId:
        return self.about.id

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL


@frozen
class Tasks:
    """All tasks of one session. The live ones apart: there are few of them, and they change often."""

    live: Mapping[TaskId, Task] = {}
    ended: Mapping[TaskId, Task] = {}
    archived: int = 0

    def get(self, task_id: str) -> Task | None:
        return self.live.get(TaskId(task_id)) or self.ended.get(TaskId(task_id))

    @property
    def active(self) -> int:
        """How many hold a permit."""
        return sum(task.state is not TaskState.QUEUED for task in self.live.values())

    def __iter__(self) -> Iterator[Task]:
        yield from self.live.values()
        yield from self.ended.values()


# --- queries ---


@frozen
class Page:
    tasks: tuple[Task, ...]
    #: Hand it back as `before` for the next page; `None` at the end.
    before: tuple[float, TaskId] | None = None

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)


def listing(
    tasks: Iterable[Task],
    *,
    state: TaskState | None = None,
    kind: str | None = None,
    session: SessionId | None = None,
    limit: int = 50,
    before: tuple[float, TaskId] | None = None,
) -> Page:
    """Newest first (B13). Pages stay right while tasks come and go: a page goes on after an instant and an id, not after a count."""
    chosen = sorted(
        (
            task
            for task in tasks
            if (state is None or task.state is state)
            and (kind is None or task.about.kind == kind)
            and (session is None or task.about.session == session)
            and (before is None or _age(task) < before)
        ),
        key=_age,
        reverse=True,
    )
    page = tuple(chosen[:limit])
    return Page(page, _age(page[-1]) if page and len(chosen) > limit else None)


def _age(task: Task) -> tuple[float, TaskId]:
    return task.created_at, task.id


# --- output ---


def append_output(output: Output, stream: str, delta: str) -> tuple[Output, str]:
    """The output with `delta` at its end, and the text that belongs into the log: what still fits, and one visible note when it is full (B8)."""
    if not delta:
        return output, ""
    text = delta if stream == output.stream else f"{_line_break(output)}[{stream}] {delta}"
    fits = text[: max(0, LOG_MAX_CHARS - output.chars)]
    logged = fits
    if len(fits) < len(text) and not output.truncated:
        logged += f"\n[system] output truncated at {LOG_MAX_CHARS} characters\n"
    return (
        Output(
            tail=(output.tail + text)[-TAIL_MAX_CHARS:],
            chars=output.chars + len(fits),
            stream=stream,
            truncated=output.truncated or len(fits) < len(text),
        ),
        logged,
    )


def _line_break(output: Output) -> str:
    return "\n" if output.tail and not output.tail.endswith("\n") else ""
