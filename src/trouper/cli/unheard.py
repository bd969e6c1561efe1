"""A signal that the loop does not hear: a tool that blocks it holds up everything, also the end that somebody asks for by it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from time import monotonic
from types import FrameType

import trio

#: Signals that come closer together than this are one: whoever started us may hand on what the terminal has sent to us as well.
ONE_S = 0.2
HELD_UP = (
    "ended at once, as by a kill: something did not let the program go on; a tool that blocks is to be a plain `def`"
)


@contextmanager
def ended_if_unheard(codes: Mapping[int, int], before_end: Callable[[], None]) -> Iterator[None]:
    """Around a block in which the loop takes these signals. When it has not so much as noticed one of them by the time that the next one comes, the process ends, with that one's code.

    Nothing is lost by that: what was not recorded by then, the next process finds open, as after any crash (J12).
    """
    loop = trio.lowlevel.current_trio_token()
    # Of the first signal that the loop has not noticed yet.
    unheard: list[float] = []

    def take(number: int, frame: FrameType | None) -> None:
        now = monotonic()
        if unheard and now - unheard[0] >= ONE_S:
            with suppress(Exception):  # In the midst of whatever the program was about: perhaps of writing.
                before_end()
            os._exit(codes[number])
        unheard.append(now)
        with suppress(trio.RunFinishedError):
            loop.run_sync_soon(unheard.clear)
        handlers[number](number, frame)

    # Those that nobody takes do what they always do.
    handlers = {number: handler for number in codes if callable(handler := signal.getsignal(number))}
    for number in handlers:
        signal.signal(number, take)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
