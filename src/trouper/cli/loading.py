"""Modules are loaded when they are needed; a Ctrl-C meanwhile ends the program at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from trouper.cli.endings import INTERRUPTED


@contextmanager
def loading() -> Iterator[None]:
    """Around imports, while nothing is open that wants closing.

    An exception that rises out of just any line is no way to end there: the import of an extension may crash on it, or make another error of it.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield  # Whoever takes or ignores Ctrl-C goes on doing so; and only the main thread may change that.
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(INTERRUPTED)
