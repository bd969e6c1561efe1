"""What tools print and log while a command runs them: it must come neither between the rows that a chat draws, nor into what a program reads on stdout. Nor may they read what is
typed into a chat; with other commands nobody else reads it, and `breakpoint()` works.

In the command line only: the stdout of a host that embeds Trouper is the host's own.
"""

from __future__ import annotations

import codecs
import io
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol, TextIO

import trio

from trouper.tools.errors import ToolError

if TYPE_CHECKING:
    from trouper.cli.chat_screen import Screen

#: Lines that the screen has not come to show: a tool may print faster than a terminal draws.
LINES_WAITING_MAX = 1_000
#: Of a line; no more is kept, however late its end comes.
LINE_CHARS_MAX = 2_000
_MARK = "  | "


class Shown(Protocol):
    """How far the screen is with what else it has to show: a call has begun, say, before its tool prints."""

    @property
    def happened(self) -> int: ...

    @property
    def shown(self) -> int: ...


class Printed:
    """Where it goes: to stderr, or to the screen that has taken the terminal. From whatever thread it comes."""

    def __init__(self) -> None:
        # Reentrant: an object that is collected, or a handler of a signal, may print in the midst of it.
        self._lock = threading.RLock()
        self._screen: Screen | None = None
        self._loop: trio.lowlevel.TrioToken | None = None
        self._pid = os.getpid()
        self._events: Shown | None = None
        self._streams: list[_Stream] = []
        #: Lines, each with what had happened by then.
        self._waiting: deque[tuple[int, str]] = deque()
        self._left_out = 0

    @contextmanager
    def shown_on(self, screen: Screen, events: Shown | None = None) -> Iterator[None]:
        """Around the time for which a screen has the terminal. Whoever shows `events` on it calls `show_due` after each."""
        with self._lock:
            self._screen, self._loop, self._events = screen, trio.lowlevel.current_trio_token(), events
        try:
            yield
        finally:
            with self._lock:
                for stream in self._streams:
                    self._add([stream.rest()])
                self._show()
                self._screen = self._loop = self._events = None

    @property
    def is_shown(self) -> bool:
        return self._screen is not None

    @property
    def is_forked(self) -> bool:
        """Whether this is a process that a tool has forked: the screen is not its to draw on, and a lock that a thread held then is never free in it."""
        return os.getpid() != self._pid

    def take(self, stream: _Stream, text: str) -> None:
        with self._lock:
            if self._loop is None or not stream.is_shown:
                with suppress(OSError):  # Nobody listens any more: no reason for a tool to fail.
                    stream.own.write(text)
                return
            self._add(stream.lines(text))
            if self._waiting:
                # Not here: this may be another thread, or come in the midst of a drawing.
                with suppress(trio.RunFinishedError):
                    self._loop.run_sync_soon(self.show_due, idempotent=True)

    def _add(self, lines: list[str]) -> None:
        happened = 0 if self._events is None else self._events.happened
        for line in filter(str.strip, lines):
            if len(self._waiting) < LINES_WAITING_MAX:
                self._waiting.append((happened, line if len(line) <= LINE_CHARS_MAX else f"{line[:LINE_CHARS_MAX]}…"))
            else:
                self._left_out += 1

    def show_due(self) -> None:
        """What was printed before anything that is yet to be shown."""
        if self._waiting:
            with self._lock:
                events = self._events
                self._show(None if events is None or events.shown >= events.happened else events.shown)

    def _show(self, until: int | None = None) -> None:
        lines: list[str] = []
        with self._lock:
            while self._waiting and (until is None or self._waiting[0][0] <= until):
                lines.append(f"{_MARK}{self._waiting.popleft()[1]}")
            left_out, self._left_out = (0, self._left_out) if self._waiting else (self._left_out, 0)
        if left_out:
            lines.append(f"{_MARK}({left_out} more lines were printed faster than they could be shown)")
        if lines and self._screen is not None:
            with suppress(OSError):  # The terminal has gone: that is for the chat to find, and here nobody could.
                self._screen.say("\n".join(lines), "dim")


class _Stream(io.RawIOBase):
    """What stands below `sys.stdout` or `sys.stderr`."""

    def __init__(self, printed: Printed, own: TextIO, *, on_screen: bool) -> None:
        super().__init__()
        self.own = own
        self._printed = printed
        self._on_screen = on_screen
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._open = ""
        printed._streams.append(self)

    @property
    def is_shown(self) -> bool:
        """Whether the screen shows it: stderr goes on into the file that somebody has sent it to."""
        return self._on_screen and self._printed.is_shown

    def lines(self, text: str) -> list[str]:
        """The lines that have ended with this."""
        *ended, self._open = (self._open + text).split("\n")
        # Of a line that is written again and again, as progress is, the last time counts.
        self._open = _last_time(self._open)[: LINE_CHARS_MAX + 1]
        return [_last_time(line).rstrip("\r") for line in ended]

    def rest(self) -> str:
        rest, self._open = self._open, ""
        return rest

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self._printed.is_forked:
            with suppress(OSError):
                os.write(self.own.fileno(), data)
            return len(data)
        self._printed.take(self, self._decode(bytes(data)))
        return len(data)

    def flush(self) -> None:
        super().flush()
        if not (self.is_shown or self._printed.is_forked):
            with suppress(OSError):
                self.own.flush()

    def isatty(self) -> bool:
        return not self.is_shown and self.own.isatty()

    def fileno(self) -> int:
        return self.own.fileno()


class _NoInput(io.RawIOBase):
    """What stands below `sys.stdin`. Whoever read from it took keys away from the chat, in a thread that nobody can stop."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        raise ToolError("a tool cannot read from stdin; what it wants to know, it asks by `context.ask_user(...)`")


def _last_time(line: str) -> str:
    """The last of what is written over itself in a row; with the return that may follow it."""
    return line[line.rstrip("\r").rfind("\r") + 1 :]


@contextmanager
def printed_aside() -> Iterator[Printed]:
    """Around all that loads and runs tools. Whoever writes to stdout on purpose has taken it before."""
    out, err = sys.stdout, sys.stderr
    printed = Printed()
    sys.stdout = _text(_Stream(printed, err, on_screen=True))
    sys.stderr = _text(_Stream(printed, err, on_screen=err.isatty()))
    # The log that was asked for writes to the stderr that was there when it began.
    logs = [
        each for each in logging.getLogger().handlers if isinstance(each, logging.StreamHandler) and each.stream is err
    ]
    for handler in logs:
        handler.setStream(sys.stderr)
    try:
        yield printed
    finally:
        for handler in logs:
            handler.setStream(err)
        sys.stdout, sys.stderr = out, err


@contextmanager
def typed_aside() -> Iterator[TextIO]:
    """Around all that loads and runs tools while somebody else reads stdin: it is handed over."""
    typed = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BufferedReader(_NoInput()), encoding="utf-8")
    try:
        yield typed
    finally:
        sys.stdin = typed


def _text(stream: _Stream) -> TextIO:
    return io.TextIOWrapper(stream, encoding="utf-8", errors="backslashreplace", write_through=True)  # type: ignore[type-var]
