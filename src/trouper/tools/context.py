"""What a tool is handed besides its arguments (T7): who is calling, and the services of its host.

A tool asks for the context by annotating a parameter, and says which services it cannot do without:

    @tool(needs=("files",))
    async def count_lines(path: str, context: ToolContext) -> int:
        ...
        context.report_progress(current=3, total=10, unit="files")

A need that the host does not meet is found out when the registry is checked, before any model hears of the tool. A service that was not declared and
is not there raises an error that says so.

The protocols below are small on purpose: a host implements the ones it has, with whatever stands behind them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import attrs
from attrs import field, frozen

from trouper import checks
from trouper._errors import ToolDefinitionError, UsageError
from trouper.core.ids import CallId, NotificationId, SessionId, TaskId
from trouper.core.messages import Json

if TYPE_CHECKING:
    from trouper.home import Home
    from trouper.tools.registry import Registry
    from trouper.tools.session_files import SessionFiles

_S = TypeVar("_S")


class Files(Protocol):
    """Where a host has the files of one session. Tools read and write them with `context.files`, never by joining paths themselves (T17)."""

    @property
    def root(self) -> Path:
        """The directory that the session's files are confined to."""


class KeyValue(Protocol):
    """A small store of the session's own (B24). Keys are names as in B22."""

    async def get(self, key: str) -> Json | None: ...
    async def set(self, key: str, value: Json) -> None: ...
    async def delete(self, key: str) -> bool: ...
    async def keys(self) -> Sequence[str]: ...


class Secrets(Protocol):
    """Values that never reach the journal, the logs or the model (B24). A tool may use one; it must not return it."""

    async def get(self, name: str) -> str | None: ...
    async def set(self, name: str, value: str) -> None: ...
    async def delete(self, name: str) -> bool: ...
    async def names(self) -> Sequence[str]: ...


@frozen
class Memo:
    """One entry of the memory (B21)."""

    scope: str
    key: str
    value: Json
    created: datetime
    updated: datetime
    summary: str = ""
    metadata: Mapping[str, Json] = field(factory=dict)


class Memory(Protocol):
    """What outlives the session (B21): scope + key -> any JSON value."""

    async def remember(
        self,
        scope: str,
        key: str,
        value: Json,
        *,
        summary: str = "",
        metadata: Mapping[str, Json] | None = None,
        ttl_s: float | None = None,
    ) -> Memo: ...
    async def recall(self, scope: str, key: str) -> Memo | None: ...
    async def forget(self, scope: str, key: str) -> bool: ...
    async def list(self, scope: str, *, limit: int = 50) -> Sequence[Memo]: ...
    async def search(self, text: str, *, scope: str | None = None, limit: int = 20) -> Sequence[Memo]: ...


class Notifications(Protocol):
    """The session's durable queue (B14)."""

    async def notify(
        self, title: str, body: str = "", *, kind: str = "generic", dedupe_key: str | None = None
    ) -> NotificationId: ...


class Background(Protocol):
    """Starts background runs of tools (B6). Refusals (unknown tool, limit reached...) are `ToolError`s."""

    async def spawn(
        self,
        tool: str,
        arguments: Mapping[str, Json],
        *,
        title: str | None = None,
        schedule: Mapping[str, Json] | None = None,
        signal_on_completion: bool = True,
        call: CallId | None = None,
    ) -> Mapping[str, Json]:
        """At once: run id, task id, title, status, artifact directory, log path, result path (B7)."""


class Subagents(Protocol):
    """Starts child sessions (T15). Refusals (depth, number of descendants) are `ToolError`s."""

    async def start(
        self,
        prompt: str,
        *,
        title: str | None = None,
        tools: Sequence[str] | None = None,
        system: str | None = None,
        background: bool = False,
    ) -> Json:
        """The child's final answer; or, in the background, the ids of its task and session."""


class Tasks(Protocol):
    """The session's task records (B12), as plain data."""

    async def list(
        self, *, state: str | None = None, kind: str | None = None, limit: int = 50
    ) -> Sequence[Mapping[str, Json]]: ...
    async def get(self, task_id: str, *, events: int = 20) -> Mapping[str, Json] | None: ...
    async def cancel(self, task_id: str, *, reason: str = "") -> bool: ...
    async def message(self, task_id: str, text: str) -> None: ...
    async def wait(self, task_id: str, *, timeout_s: float) -> Mapping[str, Json]: ...


class Schedules(Protocol):
    """The session's schedules (B18), as plain data. Exactly one of `cron` and `at`, exactly one of `tool` and `message`."""

    async def create(
        self,
        *,
        title: str,
        cron: str | None = None,
        at: str | None = None,
        timezone: str = "UTC",
        tool: str | None = None,
        arguments: Mapping[str, Json] | None = None,
        message: str | None = None,
        missed: str = "once",
        signal_on_completion: bool = True,
    ) -> Mapping[str, Json]: ...
    async def list(self) -> Sequence[Mapping[str, Json]]: ...
    async def cancel(self, schedule_id: str) -> bool: ...


@frozen
class Question:
    """One thing to ask the user (T16). With `choices`: one of them, or several if `multiple`; else free text; a `secret` is never shown again."""

    text: str
    header: str = ""
    choices: tuple[str, ...] = ()
    multiple: bool = False
    secret: bool = False


@frozen
class Reply:
    """The user's reply. The values are in the order of the questions; a secret's is a reference into the secret store, never the value itself."""

    status: Literal["answered", "declined", "timed_out"]
    values: tuple[Json, ...] = ()


class Asker(Protocol):
    """Puts 1-4 questions to the user and waits (T16)."""

    async def ask(
        self, questions: Sequence[Question], *, timeout_s: float | None = None, call: CallId | None = None
    ) -> Reply:
        """`call`: the call that asks. One that goes on in the background makes its task wait for input (B11)."""


class Sink(Protocol):
    """Where a running call reports to. Never blocks: a sink that is behind drops or merges, it does not hold up the tool."""

    def progress(self, current: float | None, total: float | None, unit: str, label: str) -> None:
        """How far the work has come."""

    def status(self, text: str) -> None:
        """What it is doing now."""

    def output(self, stream: str, delta: str) -> None:
        """More live output."""


class RunLine(Protocol):
    """What an execution that can go on in the background has besides its sink: messages, both ways (B12)."""

    async def receive(self) -> str:
        """The next message sent to the task; waits for one."""

    def say(self, text: str) -> bool:
        """A message from the task. False if it is no background run (yet), or cannot be taken just now."""

    def artifact(self, path: str) -> None:
        """A file that the run has made, for its task's record."""

    def link(self, rel: str, target: str) -> None:
        """Something that the run has to do with, for its task's record."""


class SilentSink:
    """Reports to nobody: for tests, and for calls that nobody watches."""

    def progress(self, current: float | None, total: float | None, unit: str, label: str) -> None:
        pass

    def status(self, text: str) -> None:
        pass

    def output(self, stream: str, delta: str) -> None:
        pass


class Offered(Protocol):
    """What a host offers to the tools of one session. `None`: not offered. It may make each when it is first asked for."""

    @property
    def files(self) -> Files | None: ...
    @property
    def memory(self) -> Memory | None: ...
    @property
    def kv(self) -> KeyValue | None: ...
    @property
    def secrets(self) -> Secrets | None: ...
    @property
    def notifications(self) -> Notifications | None: ...
    @property
    def background(self) -> Background | None: ...
    @property
    def subagents(self) -> Subagents | None: ...
    @property
    def tasks(self) -> Tasks | None: ...
    @property
    def schedules(self) -> Schedules | None: ...
    @property
    def asker(self) -> Asker | None: ...
    @property
    def registry(self) -> Registry | None: ...
    @property
    def clock(self) -> Callable[[], datetime] | None:
        """The wall clock, handed in: aware, in UTC."""


@frozen
class Services:
    """`Offered`, put together by hand."""

    files: Files | None = None
    memory: Memory | None = None
    kv: KeyValue | None = None
    secrets: Secrets | None = None
    notifications: Notifications | None = None
    background: Background | None = None
    subagents: Subagents | None = None
    tasks: Tasks | None = None
    schedules: Schedules | None = None
    asker: Asker | None = None
    registry: Registry | None = None
    clock: Callable[[], datetime] | None = None

    @property
    def provided(self) -> frozenset[str]:
        """The needs that this host meets: what `Registry.check_needs` compares with."""
        return frozenset(name for name in SERVICE_NAMES if getattr(self, name) is not None)


#: Every need that a tool can declare.
SERVICE_NAMES: tuple[str, ...] = tuple(attribute.name for attribute in attrs.fields(Services))
NO_SERVICES = Services()
_SILENT = SilentSink()
_SESSION, _CALL = SessionId("session"), CallId("call_1_1_0")


@frozen
class ToolContext:
    """Who is calling, and with what. One per execution; cheap to make. All defaults are there so that a unit test can write `ToolContext()`."""

    session_id: SessionId = _SESSION
    call_id: CallId = _CALL
    services: Offered = NO_SERVICES
    sink: Sink = _SILENT
    #: The same for every attempt at this call, so that the other side can tell a repeat from a second order.
    idempotency_key: str = field()
    #: 1, and one more for each re-attachment after a restart (B10).
    attempt: int = 1
    #: The task that records this execution, if it was started in the background.
    task_id: TaskId | None = None
    #: The line of an execution that is a background run or may become one.
    run: RunLine | None = None
    #: The loop in which reports are made, from whichever thread they come. `None`: where they are said.
    home: Home | None = None

    @idempotency_key.default
    def _default_key(self) -> str:
        return f"{self.session_id}/{self.call_id}"

    # Services, each present or a clear error.

    @property
    def files(self) -> SessionFiles:
        """The session's files: `await context.files.write("report.md", text)`."""
        # Loaded when it is used: most tools have nothing to do with files.
        from trouper.tools.session_files import SessionFiles

        return SessionFiles(self._met("files", self.services.files))

    @property
    def memory(self) -> Memory:
        """What is remembered across sessions."""
        return self._met("memory", self.services.memory)

    @property
    def kv(self) -> KeyValue:
        """The key-value store."""
        return self._met("kv", self.services.kv)

    @property
    def secrets(self) -> Secrets:
        """The secret store."""
        return self._met("secrets", self.services.secrets)

    @property
    def notifications(self) -> Notifications:
        """Notifications to the session."""
        return self._met("notifications", self.services.notifications)

    @property
    def background(self) -> Background:
        """Background runs of the session."""
        return self._met("background", self.services.background)

    @property
    def subagents(self) -> Subagents:
        """Child sessions."""
        return self._met("subagents", self.services.subagents)

    @property
    def tasks(self) -> Tasks:
        """The session's tasks."""
        return self._met("tasks", self.services.tasks)

    @property
    def schedules(self) -> Schedules:
        """The session's schedules."""
        return self._met("schedules", self.services.schedules)

    @property
    def asker(self) -> Asker:
        """Questions to the user."""
        return self._met("asker", self.services.asker)

    @property
    def registry(self) -> Registry:
        """The tools of the session."""
        return self._met("registry", self.services.registry)

    def now(self) -> datetime:
        """The time of the host's clock: aware, in UTC."""
        return self._met("clock", self.services.clock)()

    # Reports. Plain calls, from any thread: they never wait for whoever listens, and do nothing when nobody does.

    def report_progress(
        self, current: float | None = None, total: float | None = None, unit: str = "", label: str = ""
    ) -> None:
        """How far the work has come: `current` of `total` `unit`."""
        self._said(
            self.sink.progress,
            _number(current, "current"),
            _number(total, "total"),
            checks.text(unit, "unit"),
            checks.text(label, "label"),
        )

    def status(self, text: str) -> None:
        """One line that says what the tool is doing now."""
        self._said(self.sink.status, checks.text(text, "status"))

    def output(self, stream: str, delta: str) -> None:
        """More live output, of `stdout`, `stderr` or a stream of the tool's own naming."""
        self._said(self.sink.output, checks.text(stream, "stream", checks.NAME_MAX), checks.text(delta, "delta"))

    # Shorthands for the services that have one verb.

    async def notify(self, title: str, body: str = "", *, dedupe_key: str | None = None) -> NotificationId:
        """Queue a notification for the session's model."""
        return await self.notifications.notify(title, body, dedupe_key=dedupe_key)

    async def spawn(self, tool: str, arguments: Mapping[str, Json], **options: Any) -> Mapping[str, Json]:
        """Start a background run of another tool."""
        return await self.background.spawn(tool, arguments, call=self.call_id, **options)

    async def ask_user(self, *questions: Question, timeout_s: float | None = None) -> Reply:
        """Ask the user, and wait for the answers."""
        return await self.asker.ask(questions, timeout_s=timeout_s, call=self.call_id)

    async def receive_message(self) -> str:
        """The next message that the model or the host has sent to this run's task."""
        if self.run is None:
            raise ToolDefinitionError(
                f"call {self.call_id!r} of session {self.session_id!r} has no task that messages could be sent to; "
                "write @tool(background=True): what may go on in the background has one",
                call=self.call_id,
                session=self.session_id,
            )
        return await self.run.receive()

    def say(self, text: str) -> bool:
        """A message from this run's task to its session. A plain call; false if nobody could take it."""
        return self.run is not None and bool(self._said(self.run.say, checks.text(text, "a message")))

    def add_artifact(self, path: str | os.PathLike[str]) -> None:
        """A file of the session that this run has made: listed on its task's record. A plain call; a call that ends in its turn has no such record."""
        named = checks.word(os.fspath(path) if isinstance(path, os.PathLike) else path, "the path of an artifact")
        if self.run is not None:
            self._said(self.run.artifact, named)

    def link(self, rel: str, target: str) -> None:
        """Something outside that this run has to do with, `link("order", "17")`: listed likewise."""
        kind, named = checks.word(rel, "the kind of a link"), checks.word(target, "the target of a link")
        if self.run is not None:
            self._said(self.run.link, kind, named)

    def in_thread(self) -> ToolContext:
        """The same context, for a function that runs in a worker thread: what it says is carried over."""
        if self.home is not None:
            return self
        from trouper.home import Home

        return attrs.evolve(self, home=Home())

    def _said(self, report: Callable[..., _S], *values: object) -> _S | None:
        return report(*values) if self.home is None else self.home.call(report, *values)

    def _met(self, need: str, service: _S | None) -> _S:
        if service is None:
            raise ToolDefinitionError(
                f"the host of session {self.session_id!r} offers no {need!r}; declare it, @tool(needs=({need!r},)), "
                "so that the tool is refused before it is advertised, or have the host offer it",
                need=need,
                session=self.session_id,
            )
        return service


# What a tool says is written down as it is said: so it is looked at while the tool is there to blame.


def _number(value: object, what: str) -> float | None:
    if value is None or type(value) is float:
        return value
    if not isinstance(value, int | Real):
        raise UsageError(f"{what} is a number, not {value!r}; leave it out if there is none", what=what)
    try:
        number = float(value)  # One of some library would not be read again as what it is.
    except OverflowError:
        raise UsageError(f"{what} is too large for a number; count in a larger unit", what=what) from None
    return value if type(value) is int else number
