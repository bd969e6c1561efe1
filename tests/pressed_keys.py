"""A Ctrl-C at a chosen line of a chosen function."""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import trio
from trio.testing import MockClock


class CtrlC:
    """Pressed at the n-th line that a function comes to; `lines` tells how many it came to."""

    def __init__(self, function: Callable[..., Any], nth: int) -> None:
        self._code = function.__code__
        self._nth = nth
        self.lines = 0

    @contextmanager
    def pressed(self) -> Iterator[None]:
        """At that line, if it is reached in the block. A Ctrl-C that was put off is heard at the next checkpoint."""
        self.lines = 0
        before = sys.gettrace()
        sys.settrace(self._on_call)
        try:
            yield
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)

    def _on_call(self, frame: FrameType, what: str, value: object) -> Any:
        return self._on_line if frame.f_code is self._code else None

    def _on_line(self, frame: FrameType, what: str, value: object) -> Any:
        if what == "line":
            self.lines += 1
            if self.lines == self._nth:
                signal.raise_signal(signal.SIGINT)
        return self._on_line


def press_at_every_line(one_try: Callable[[CtrlC], Awaitable[None]], *functions: Callable[..., Any]) -> None:
    """A run in virtual time for each line that each of these functions comes to in it."""
    for function in functions:
        for nth in range(1, 100):
            ctrl_c = CtrlC(function, nth)
            trio.run(one_try, ctrl_c, clock=MockClock(autojump_threshold=0))
            if ctrl_c.lines < nth:
                break
        assert 2 < nth < 99, f"{function.__qualname__} came to {nth - 1} lines"
