"""Heavy work that is pure, out of the event loop's way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

#: It is all computing: more threads would only take turns.
_THREADS_MAX = 2
_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("trouper_heavy_threads")
_T = TypeVar("_T")


async def off_loop(work: Callable[[], _T]) -> _T:
    """The result of `work`, from a thread. Given up at once on cancel, since nobody misses it. Under virtual time, whose clock would run on meanwhile, it is done on the spot."""
    if getattr(trio.lowlevel.current_clock(), "autojump_threshold", None) is not None:
        await trio.lowlevel.checkpoint()
        return work()
    try:
        limiter = _limiter.get()
    except LookupError:
        limiter = trio.CapacityLimiter(_THREADS_MAX)
        _limiter.set(limiter)
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)
