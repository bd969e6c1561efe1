"""One execution that is a background run, or may become one: what it reports on the way, and what it leaves behind (B2, B8, B9).

A call of a tool that can go on in the background begins as any other call does. If it takes longer than the turn waits, its task is recorded, and the very same
execution goes on as that task's first attempt: `attach` is all that happens to it. What a run says is passed on live, and written to its task's record at most a few times a second
(see `reporter`); the tool never waits for that. A superseded attempt writes nothing, since every report carries its attempt (I28).
"""

from __future__ import annotations

import math
from collections import deque
from typing import Protocol

import trio

from trouper import checks
from trouper.actors.running import Running
from trouper.actors.sink import LiveSink
from trouper.core.commands import Command
from trouper.core.ids import CallId, TaskId
from trouper.core.live import LiveEvent
from trouper.core.task_events import (
    AddTaskArtifact,
    BeatTask,
    LinkTask,
    MessageTask,
    ReportTaskProgress,
    WriteTaskOutput,
)
from trouper.core.task_record import (
    ARTIFACTS_MAX,
    DETAIL_MAX_CHARS,
    LINKS_MAX,
    LOG_MAX_CHARS,
    TAIL_MAX_CHARS,
    Link,
    Output,
    Progress,
    append_output,
)
from trouper.tools.contract import Tool

#: A word that was the last one for so many reports is taken for whole.
_LOOKS_AT_A_PAUSE = 2
_NO_OUTPUT = Output()


class RunHome(Protocol):
    """What a run needs of the session that it belongs to."""

    def now(self) -> float: ...
    def post(self, command: Command) -> bool: ...
    def publish_live(self, event: LiveEvent) -> None: ...
    def redact_text(self, text: str) -> str: ...
    def said(self) -> None:
        """There is something for the record."""

    def settled(self, text: str, paused: bool) -> int:
        """How much of a text that goes on may be written down by itself (J8)."""


class Run:
    """The sink of one execution, and its line to the session. Tools see it as `Sink` and `RunLine`.

    There may be a thousand of them, most of which say nothing and are told nothing: what takes up words and messages is made when the first one comes.
    """

    __slots__ = (
        "_added",
        "_detail",
        "_held",
        "_home",
        "_log",
        "_looks",
        "_message_came",
        "_messages",
        "_output",
        "_progress",
        "_tail",
        "_unsaid",
        "attempt",
        "call",
        "running",
        "spilling",
        "task_id",
        "tool",
    )

    def __init__(self, call: CallId, home: RunHome, tool: Tool, running: Running) -> None:
        self.call = call
        self.tool = tool
        self.running = running
        self.task_id: TaskId | None = None
        self.attempt = 1
        #: The turn has asked for it to be let go; whether that was granted is known when the session has decided.
        self.spilling = False
        self._home = home
        #: Characters that wait for what they may be the beginning of, and how often they were found unchanged.
        self._held = self._looks = 0
        self._output = _NO_OUTPUT
        self._log: list[str] | None = None
        self._unsaid: list[tuple[str, str]] | None = None
        self._tail = ("", "")
        self._detail: str | None = None
        self._progress: Progress | None = None
        #: Artifacts, by path, and links.
        self._added: list[str | Link] | None = None
        self._messages: deque[str] | None = None
        self._message_came: trio.Event | None = None

    # -- what the tool says; never blocks

    @property
    def _live(self) -> LiveSink:
        return LiveSink(self.call, self._home.publish_live, self._home.redact_text)

    def progress(self, current: float | None, total: float | None, unit: str, label: str) -> None:
        self._live.progress(current, total, unit, label)
        if current is not None and math.isfinite(current):
            self._progress = Progress(current, total, self._brief(unit) or None, self._brief(label) or None)
        elif label:
            self._detail = self._brief(label)
        self._home.said()

    def status(self, text: str) -> None:
        self._live.status(text)
        self._detail = self._brief(text)
        self._home.said()

    def _brief(self, text: str) -> str:
        # Cut after redaction: half a secret would not be known as one.
        return text if len(text) <= DETAIL_MAX_CHARS else self._home.redact_text(text)[:DETAIL_MAX_CHARS]

    def output(self, stream: str, delta: str) -> None:
        if not delta:
            return
        self._live.output(stream, delta)
        was_full = self._output.truncated
        self._output, logged = append_output(self._output, stream, delta)
        if logged:
            self._log = self._log or []
            self._log.append(logged)
        if was_full:
            # The log takes no more; the record's live tail is all that is left to feed.
            self._tail = (stream, _ending(self._tail[1] + delta))
        else:
            if len(delta) > LOG_MAX_CHARS + TAIL_MAX_CHARS:
                delta = delta[: LOG_MAX_CHARS + 1] + "\n" + _ending(delta)
            self._unsaid = self._unsaid or []
            if self._unsaid and self._unsaid[-1][0] == stream:
                delta = self._unsaid.pop()[1] + delta
            self._unsaid.append((stream, delta))
        self._home.said()

    # -- what it has made, and what it has to do with (B12)

    def artifact(self, path: str) -> None:
        self._add(path)

    def link(self, rel: str, target: str) -> None:
        self._add(Link(rel, target))

    def _add(self, what: str | Link) -> None:
        self._added = self._added or []
        if what not in self._added and len(self._added) < ARTIFACTS_MAX + LINKS_MAX:
            self._added.append(what)
            self._home.said()

    # -- messages (B12)

    async def receive(self) -> str:
        """The next message that somebody has sent to the task."""
        while not self._messages:
            if self._message_came is None:
                self._message_came = trio.Event()
            await self._message_came.wait()
        return self._messages.popleft()

    def say(self, text: str) -> bool:
        """A message from the task, kept with it; false if it is no task, or the session cannot take it now."""
        if self.task_id is None:
            return False
        said = checks.brief(text, self._home.redact_text, checks.MESSAGE_MAX)
        return self._home.post(MessageTask(self.task_id, "from_task", said, self._home.now(), self.attempt))

    def take_message(self, text: str) -> None:
        self._messages = self._messages or deque()
        self._messages.append(text)
        if self._message_came is not None:
            self._message_came.set()
            self._message_came = None

    # -- the record

    def attach(self, task_id: TaskId, attempt: int) -> None:
        """From here on it is this attempt of this task."""
        self.task_id, self.attempt = task_id, attempt

    def beat(self) -> None:
        """Say that it is alive."""
        if self.task_id is not None:
            self._home.post(BeatTask(self.task_id, self.attempt, self._home.now()))

    @property
    def has_news(self) -> bool:
        """Whether something was said that is not on the record."""
        return bool(
            self._unsaid or self._added or self._tail[1] or self._detail is not None or self._progress is not None
        )

    def flush(self, *, final: bool = False) -> None:
        """Put what was said since the last time on the record; what finds no room waits for the next time. `final`: nothing more comes."""
        if self.task_id is None:
            return
        while self._unsaid:
            stream, delta = self._unsaid[0]
            # What is said last may be half a secret; its other half is waited for (J8).
            if not final and len(self._unsaid) == 1:
                self._looks = self._looks + 1 if len(delta) == self._held else 0
                end = self._home.settled(delta, self._looks >= _LOOKS_AT_A_PAUSE)
            else:
                end = len(delta)
            self._held = len(delta) - end
            if self._held and self._looks < _LOOKS_AT_A_PAUSE:
                self._home.said()  # To be looked at again: what is not continued soon was whole.
            if not end:
                break
            if not self._home.post(WriteTaskOutput(self.task_id, self.attempt, stream, delta[:end], self._home.now())):
                return
            del self._unsaid[0]
            if end < len(delta):
                self._unsaid.insert(0, (stream, delta[end:]))
                break
        stream, delta = self._tail
        if delta and self._home.post(WriteTaskOutput(self.task_id, self.attempt, stream, delta, self._home.now())):
            self._tail = ("", "")
        if self._detail is not None or self._progress is not None:
            told = ReportTaskProgress(self.task_id, self.attempt, self._home.now(), self._detail, self._progress)
            if self._home.post(told):
                self._detail = self._progress = None
        while self._added and self._home.post(self._adding(self.task_id, self._added[0])):
            del self._added[0]

    def _adding(self, task_id: TaskId, what: str | Link) -> Command:
        if isinstance(what, Link):
            return LinkTask(task_id, what, self._home.now())
        return AddTaskArtifact(task_id, self.attempt, what, self._home.now())

    @property
    def log(self) -> str:
        """All that was written, as `output.log` has it: within its cap, with a note where it was cut."""
        return "".join(self._log or ())


def _ending(text: str) -> str:
    """The last of what is too long, from where a word begins if there is one soon: half a secret would not be known as one (J8)."""
    start = max(len(text) - TAIL_MAX_CHARS, 0)
    if not start:
        return text
    breaks = [at + 1 for at in (text.find(mark, start, start + TAIL_MAX_CHARS // 2) for mark in " \n") if at >= 0]
    return text[min(breaks, default=start) :]
