"""The executions of one session that can outlive their turn, and how each is brought to its end (B1-B5, B8-B10).

The session actor starts and stops work; here is what a run does between the two. Ends come in one order: what was said is put on the record, the artifacts are written,
and then the end is told to the session, which records it together with its notification.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Container
from typing import Any, Protocol

import orjson
import trio

from trouper.actors.allowance import Allowance
from trouper.actors.deadlines import Deadlines
from trouper.actors.reporter import Reporter
from trouper.actors.run import Run
from trouper.actors.running import Running
from trouper.actors.tool_call import CallHost, run_tool
from trouper.actors.watches import Watches
from trouper.core import task_text
from trouper.core.calls import Call
from trouper.core.commands import Command, DeliverResult, Recover
from trouper.core.decisions import step
from trouper.core.ids import CallId, SessionId, TaskId
from trouper.core.live import LiveEvent
from trouper.core.messages import Json, Outcome
from trouper.core.notification import NotificationQueued, NotificationsRequeued
from trouper.core.outstanding import RunCall, Work
from trouper.core.session import State
from trouper.core.settings import Limits
from trouper.core.task import RunTask
from trouper.core.task_events import (
    EndTask,
    TaskCancelled,
    TaskFailed,
    TaskInputAnswered,
    TaskInputRequested,
    TaskInterrupted,
    TaskMessaged,
    TaskSpilled,
    TaskSucceeded,
)
from trouper.core.task_record import End, NewTask, Task
from trouper.home import Home
from trouper.redaction import Redactor
from trouper.threads import check_cancelled
from trouper.tools.context import ToolContext
from trouper.tools.contract import Tool
from trouper.tools.guards.rooted import RootedFiles

logger = logging.getLogger("trouper.runs")

#: How long an end waits for its files when many are to be written, or the disk does not answer. The grace is for tools that take their time to stop, and may be nothing.
_SAVE_S = 5.0
_NOT_IN_TIME = "Cancelled; it did not stop in time."

#: The events that concern executions under way.
OBSERVED = frozenset(
    {
        TaskSpilled,
        TaskMessaged,
        TaskInputRequested,
        TaskInputAnswered,
        TaskSucceeded,
        TaskFailed,
        TaskCancelled,
        TaskInterrupted,
        NotificationQueued,
        NotificationsRequeued,
    }
)


class RunGround(Protocol):
    """What runs need of their runtime."""

    #: Cuts secrets out of whatever is written (J8).
    redact: Redactor
    #: Sees to it that work ends when its time is up.
    deadlines: Deadlines
    #: The loop that all of it runs in, for what tools say from threads of their own.
    home: Home

    @property
    def has_files(self) -> bool:
        """Whether sessions have files."""

    def services(self, session: str) -> Any: ...
    def files_of(self, session: str) -> RootedFiles | None:
        """Where the session's files are; `None` if it has none."""

    async def in_run_thread(self, work: Callable[[], Any]) -> Any:
        """What blocks at the end of a run, out of the way; no more of it at once than the event loop bears. Given up on a cancel, though it may go on."""

    def input_answered(self, session: str, task_id: TaskId, answer: Json) -> None:
        """Somebody has answered what a task had asked for."""

    def call_went_on(self, session: str, call: CallId, task_id: TaskId) -> None:
        """The turn has let go of a call, which goes on as this task."""


class RunHost(CallHost, Protocol):
    """What runs need of their session."""

    session: str
    state: State
    watches: Watches

    @property
    def run_ground(self) -> RunGround: ...
    @property
    def limits(self) -> Limits: ...
    def post(self, command: Command) -> bool: ...
    def publish_live(self, event: Any) -> None: ...
    def start(self, function: Callable[..., Awaitable[None]], *args: Any) -> None: ...
    async def settle(self) -> None:
        """Until everything that the session was told so far has been decided."""


class Runs:
    """All of them, by call and by task. New with each start of the session's actor: what ran before ended with it."""

    def __init__(self, host: RunHost, let_go: Callable[[Allowance], Awaitable[None]]) -> None:
        self._host = host
        self._calls: dict[CallId, Run] = {}
        self._tasks: dict[TaskId, Run] = {}
        #: Tasks that somebody is about to end, and whether he is done with their files: he alone writes them, so that they say what the record will.
        self._ending: dict[TaskId, trio.Event] = {}
        self._reporter = Reporter(host.limits.heartbeat_s)
        self._let_go = let_go
        host.watches.no_runs()
        #: That of the calls that began last.
        self._allowance: Allowance | None = None

    # -- executions

    async def run_call(
        self, tool: Tool, call: Call, running: Running, *, timeout_s: float, budget_s: float
    ) -> Command | None:
        """A call that the turn may let go of. The end of its task if it did, else the call's own."""
        run = self._calls[call.id] = Run(call.id, self, tool, running)
        host = self._host
        context = ToolContext(
            session_id=SessionId(host.session),
            call_id=call.id,
            services=host.run_ground.services(host.session),
            sink=run,
            attempt=call.attempt,
            run=run,
            home=host.run_ground.home,
        )
        allowance = self._allow(run, budget_s)
        try:
            ended = await run_tool(
                tool,
                call.id,
                call.request.arguments,
                context,
                running,
                host,
                timeout_s=timeout_s,
                output_bytes=host.limits.tool_output_bytes,
            )
        finally:
            allowance.end(call.id)
        if ended is None:
            return None  # Stopped: see `after_stop`.
        if run.spilling and run.task_id is None:
            # Whether the turn has let it go is being decided right now.
            await host.settle()
        found = None if run.task_id is None else host.state.tasks.get(run.task_id)
        if found is None:
            self._forget(run)
            return ended
        return await self._finished(run, found, ended)

    async def run_task(self, tool: Tool | None, task_id: TaskId, attempt: int, running: Running) -> Command | None:
        """A run from its record: a spawned one, or any after a restart."""
        host = self._host
        found = host.state.tasks.live.get(task_id)
        if found is None:
            return None
        about = found.about
        if tool is None:
            gone = f"The tool {about.tool!r} is not there any more."
            return task_text.end_command(found, attempt, Outcome.ERROR, gone, at=host.now(), saved=False)
        # A spilled call is the same call in each attempt, also to the other side of an idempotent tool.
        call = about.origin_call if about.kind == "tool" and about.origin_call else CallId(task_id)
        run = Run(call, self, tool, running)
        for message in found.messages:
            if message.direction == "to_task":
                run.take_message(message.text)
        self._attach(run, task_id, attempt)
        context = ToolContext(
            session_id=SessionId(host.session),
            call_id=call,
            services=host.run_ground.services(host.session),
            sink=run,
            attempt=attempt,
            task_id=task_id,
            run=run,
            home=host.run_ground.home,
        )
        ended = await run_tool(
            tool,
            call,
            about.spec.get("arguments"),  # type: ignore[arg-type]
            context,
            running,
            host,
            timeout_s=tool.timeout_s or math.inf,
            output_bytes=host.limits.tool_output_bytes,
            background=True,
        )
        if ended is None:
            return None
        return await self._finished(run, host.state.tasks.get(task_id) or found, ended)

    def _allow(self, run: Run, budget_s: float) -> Allowance:
        allowance = self._allowance
        if allowance is None or not allowance.has_room(budget_s):
            allowance = self._allowance = Allowance(budget_s, self._host.run_ground.deadlines, self._time_out)
        allowance.begin(run)
        return allowance

    def _time_out(self, allowance: Allowance) -> None:
        self._host.start(self._let_go, allowance)

    # -- ends

    async def _finished(self, run: Run, found: Task, ended: DeliverResult) -> EndTask:
        self._end(run)
        end = task_text.end_of(ended.outcome, ended.content)
        attempt = run.attempt
        # What comes after the task's end is late: it is noted, and changes neither the record nor the files (I9).
        is_late = found.ended or found.attempt != attempt
        if not is_late and not self._claim(found.id):
            is_late = True
            await self._wait_ended(found.id)
        saved = not is_late and await self._save(found.about, run.log, end, ended.content)
        self._forget(run)
        return task_text.end_command(
            found,
            attempt,
            ended.outcome,
            # Summed up after redaction: half a secret would not be known as one.
            self._host.run_ground.redact.value(ended.content),
            at=self._host.now(),
            saved=saved,
            internal=ended.internal,
        )

    async def after_stop(self, work: Work) -> Command | None:
        """A run that was cancelled says so itself, at once: nobody has to wait for its grace period to end (B5)."""
        host = self._host
        match work:
            case RunTask(task_id, attempt):
                run, found = self._tasks.get(task_id), host.state.tasks.live.get(task_id)
            case RunCall(call):
                attempt = 1
                run = self._calls.get(call.id)
                live = host.state.tasks.live.values()
                found = next((t for t in live if t.about.kind == "tool" and t.about.origin_call == call.id), None)
            case _:
                return None
        if run is not None:
            self._end(run)
            self._forget(run)
        if found is None or found.cancel_requested_at is None or found.attempt != attempt or not self._claim(found.id):
            return None
        saved = await self._save(found.about, run.log if run is not None else "", "cancelled", "Cancelled.")
        return EndTask(
            found.id,
            attempt,
            "cancelled",
            host.now(),
            summary=task_text.summary_text(found.about, "cancelled", None),
            result_path=task_text.result_path(found.about) if saved else None,
        )

    async def after_grace(self, task_id: TaskId, attempt: int) -> EndTask:
        """A run that was cancelled and has not stopped in time is ended without it; what it has written so far is kept (B9, I24)."""
        host = self._host
        run, found, result_path = self._tasks.get(task_id), host.state.tasks.live.get(task_id), None
        if not self._claim(task_id):
            # It has stopped after all, and its files are being written: this waits no longer than they do.
            await trio.sleep(_SAVE_S)
        elif run is not None and found is not None:
            run.flush(final=True)
            if await self._save(found.about, run.log, "cancelled", _NOT_IN_TIME):
                result_path = task_text.result_path(found.about)
        else:
            self._ending[task_id].set()
        return EndTask(task_id, attempt, "cancelled", host.now(), summary=_NOT_IN_TIME, result_path=result_path)

    async def save_abandoned(self, but: Container[TaskId]) -> tuple[TaskId, ...]:
        """Write the files of the runs that end because their session is closed, with what they have written so far. Before they end, as in `save_lost`.

        `but`: what ends before the session does. A session that is told to close does, whatever state it is in: so what is claimed here ends with it, and
        nobody in `_wait_ended` waits in vain.
        """
        saved: list[TaskId] = []

        async def save(found: Task, log: str | None) -> None:
            if not self._claim(found.id):
                # It has ended by itself, and is too late to say so: its files are written over as soon as they are there.
                with trio.move_on_after(_SAVE_S):
                    await self._ending[found.id].wait()
            if await self._save(found.about, log, "cancelled", "The session was closed."):
                saved.append(found.id)

        async with trio.open_nursery() as nursery:
            for task_id, found in self._host.state.tasks.live.items():
                run = self._tasks.get(task_id)
                if (run is not None or task_id in self._ending) and task_id not in but:
                    nursery.start_soon(save, found, None if run is None else run.log)
        return tuple(sorted(saved))

    def _claim(self, task_id: TaskId) -> bool:
        """Whether its end is ours to bring about."""
        if task_id in self._ending:
            return False
        self._ending[task_id] = trio.Event()
        return True

    async def _wait_ended(self, task_id: TaskId) -> None:
        """Until the end that somebody else brings about is on record: ours is not to come before it."""
        while task_id in self._host.state.tasks.live and await self._host.watches.wait_task(task_id):
            pass

    async def _save(self, about: NewTask, log: str | None, end: End, content: Json) -> bool:
        """Write `output.log`, unless it is there already, and `result.json`; whether they are there (B9)."""
        try:
            return await self._write(about, log, end, content)
        finally:
            if about.id in self._ending:
                self._ending[about.id].set()

    async def _write(self, about: NewTask, log: str | None, end: End, content: Json) -> bool:
        """Shielded: they belong to the end, which is already certain."""
        files = self._host.run_ground.files_of(self._host.session)
        if files is None:
            return False
        redact = self._host.run_ground.redact

        def write() -> None:
            document = orjson.dumps(
                redact.value(task_text.result_document(end, content)),
                option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE,
            )
            if log is not None:
                files.write(task_text.log_path(about), redact.text(log).encode("utf-8", "replace"))
                check_cancelled()  # Whoever comes too late says nothing of an end that may have been another.
            files.write(task_text.result_path(about), document)

        with trio.move_on_after(_SAVE_S) as scope:
            scope.shield = True
            try:
                await self._host.run_ground.in_run_thread(write)
                return True
            except Exception as error:  # A full disk or a quota must not keep a run from ending.
                logger.warning("the artifacts of task %s were not written: %s", about.id, error)
        if scope.cancelled_caught:
            logger.warning(
                "the artifacts of task %s were not written in time: too many others, or a slow disk", about.id
            )
        return False

    async def save_lost(self, recover: Recover) -> tuple[TaskId, ...]:
        """Write the files of the runs that this is going to end: of their logs, what the record still shows. Before they end, so that the end can say where they are (B9)."""
        tasks = self._host.state.tasks
        saved: list[TaskId] = []
        for event in step(self._host.state, recover)[0] if tasks.live else ():
            match event:
                case TaskInterrupted(task_id=task_id, summary=told):
                    end: End = "interrupted"
                case TaskCancelled(task_id=task_id, summary=told):
                    end = "cancelled"
                case _:
                    continue
            found = tasks.live[task_id]
            if await self._save(found.about, task_text.last_output(found.output), end, told):
                saved.append(task_id)
        return tuple(saved)

    # -- what the session records

    def observe(self, event: Any) -> None:
        """An event of `OBSERVED` has become part of the state."""
        host = self._host
        match event:
            case TaskSpilled(task=spilled) if spilled.origin_call in self._calls:
                run = self._calls[spilled.origin_call]
                if run.tool.timeout_s is None:
                    # The time-out of a session's calls is for those that somebody waits for.
                    run.running.extend(math.inf)
                self._attach(run, spilled.id, 1)
                host.run_ground.call_went_on(host.session, run.call, spilled.id)
            case TaskMessaged(task_id=task_id, message=message) if message.direction == "to_task":
                if task_id in self._tasks:
                    self._tasks[task_id].take_message(message.text)
            case TaskInputAnswered(task_id=task_id, answer=answer):
                host.run_ground.input_answered(host.session, task_id, answer)
            case TaskSucceeded() | TaskFailed() | TaskCancelled() | TaskInterrupted():
                self._ending.pop(event.task_id, None)
                host.watches.task_changed(event.task_id)
            case TaskInputRequested():
                host.watches.task_changed(event.task_id)
            case NotificationQueued() | NotificationsRequeued():
                host.watches.notified()
            case _:
                pass

    # -- what each run needs of its session (see `RunHome`)

    def now(self) -> float:
        return self._host.now()

    def post(self, command: Command) -> bool:
        return self._host.post(command)

    def publish_live(self, event: LiveEvent) -> None:
        self._host.publish_live(event)

    def redact_text(self, text: str) -> str:
        return self._host.redact_text(text)

    def said(self) -> None:
        self._reporter.said()

    def settled(self, text: str, paused: bool) -> int:
        return self._host.run_ground.redact.settled(text, paused)

    # -- beginnings and ends in its books

    def _attach(self, run: Run, task_id: TaskId, attempt: int) -> None:
        run.attach(task_id, attempt)
        self._tasks[task_id] = run
        self._host.watches.run_began(task_id, run.running.task)
        if self._reporter.add(run):
            self._host.start(self._reporter.report)

    def _end(self, run: Run) -> None:
        """It says no more: what it has said is on its way to the record."""
        run.flush(final=True)
        self._reporter.discard(run)

    def _forget(self, run: Run) -> None:
        self._calls.pop(run.call, None)
        if run.task_id is not None and self._tasks.get(run.task_id) is run:
            del self._tasks[run.task_id]
            self._host.watches.run_ended(run.task_id)
