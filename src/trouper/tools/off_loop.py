"""Heavy work that is pure, out of the event loop's way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

from trouper.threads import in_thread

#: It is all computing: more threads would only take turns.
_THREADS_MAX = 2
_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("trouper_heavy_threads")
_T = TypeVar("_T")


async def off_loop(work: Callable[[], _T]) -> _T:
    """The result of `work`, from a thread. Given up at once on cancel, since nobody misses it."""
    try:
        limiter = _limiter.get()
    except LookupError:
        limiter = trio.CapacityLimiter(_THREADS_MAX)
        _limiter.set(limiter)
    return await in_thread(work, abandon_on_cancel=True, limiter=limiter)
