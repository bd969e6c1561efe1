"""Blocking work, out of the event loop's way.

A mock clock runs on while a thread works, and time-outs that nobody reached would pass. So under virtual time the work is done on the spot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

T = TypeVar("T")


def is_virtual_time() -> bool:
    return getattr(trio.lowlevel.current_clock(), "autojump_threshold", None) is not None


async def in_thread(
    work: Callable[[], T], *, limiter: trio.CapacityLimiter | None = None, abandon_on_cancel: bool = False
) -> T:
    """The result of `work`, from a worker thread. Unless it is abandoned on cancel, the thread is waited for: a write is whole when the call is over."""
    if is_virtual_time():
        await trio.lowlevel.checkpoint()
        return work()
    return await trio.to_thread.run_sync(work, limiter=limiter, abandon_on_cancel=abandon_on_cancel)


def check_cancelled() -> None:
    """For long work, as it goes: raises `trio.Cancelled` if nobody waits for it any more."""
    try:
        trio.from_thread.check_cancelled()
    except RuntimeError:
        return  # Done on the spot: there is no thread, and nobody else runs who could cancel it.
