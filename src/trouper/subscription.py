"""Following something from any point on: what the journal holds first, then what comes, with no gap and no repeat (I33).

An object rather than a generator: whoever stops reading in the middle leaves nothing behind that has to be closed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Generic, TypeVar

import trio

from trouper._errors import UsageError
from trouper.actors.feed import Feed, Lagged

T = TypeVar("T")

#: Read from the journal without letting anybody else run.
_BURST = 64
#: What is missing before something that was told already comes within this time, or is read from the journal.
_LATE_S = 0.05


class Subscription(Generic[T]):
    """Iterate it with `async for`. A reader that is too slow for the live feed reads on from the journal; nobody ever waits for it."""

    def __init__(
        self,
        feeds: list[Feed],
        limit: int,
        after: int,
        *,
        number: Callable[[T], int],
        settle: Callable[[T | None], Awaitable[None]],
        past: Callable[[int, T | None], Iterator[T | None]],
        is_over: Callable[[], bool],
        check_here: Callable[[], None],
    ) -> None:
        if not isinstance(after, int):
            raise UsageError(f"after={after!r} is no number; give that of the last one you have seen")
        self._feeds = feeds
        self._feed = Feed(limit)
        self._limit = limit
        self._after = after
        #: Told too early, by their numbers. Several sessions tell of their records each when it hears that its own is safe: not always in the order of the journal.
        self._early: dict[int, T] = {}
        self._number = number
        #: Waits until this one is in the journal for good; or, of `None`, everything that was handed over.
        self._settle = settle
        #: What the journal holds after a number, as far as everybody may know of it; with what was read last, from which to go on. `None`: others may run.
        self._past = past
        self._is_over = is_over
        #: Raises `WrongLoop` to whoever reads in a loop that nobody here may wake.
        self._check_here = check_here
        self._last: T | None = None
        self._backlog: Iterator[T | None] | None = None
        self._is_live = False
        self._burst = 0
        feeds.append(self._feed)

    def __aiter__(self) -> Subscription[T]:
        return self

    async def __anext__(self) -> T:
        while True:
            if not self._is_live:
                item = await self._next_past()
            else:
                item = await (self._next_in_order() if self._early else self._next_told())
            if item is None:
                continue
            number = self._number(item)
            if self._is_live and number > self._after + 1:
                self._early[number] = item
            elif number > self._after:
                # Progress is told before it is safe. A number that was lost is given to something else, which nobody would hear of who goes on from it.
                await self._settle(item)
                self._after = number
                self._last = item
                return item

    async def _next_past(self) -> T | None:
        if self._backlog is None:
            await self._settle(None)
            self._backlog = self._past(self._after, self._last)
        self._burst += 1
        if self._burst % _BURST == 0:
            await trio.lowlevel.checkpoint()
        try:
            item = next(self._backlog)
        except StopIteration:
            self._backlog, self._is_live = None, True
            return None
        if item is None:
            await trio.lowlevel.checkpoint()
        return item

    async def _next_in_order(self) -> T | None:
        """When some were told too early."""
        item = self._early.pop(self._after + 1, None)
        if item is not None:
            return item
        if len(self._early) < self._limit:
            with trio.move_on_after(_LATE_S), suppress(StopAsyncIteration):
                return await self._next_told()
        # Nobody will tell it: whoever should have has crashed, say, or it is still on its way to the disk.
        self._read_on()
        return None

    def _read_on(self) -> None:
        """From the journal: whatever was told by now stands there."""
        self._is_live = False
        self._early.clear()

    async def _next_told(self) -> T | None:
        if not self._feed.batch:
            # What the reader has taken over already is its own, wherever it is.
            self._check_here()
        if self._is_over() and not self._feed.waiting and not self._feed.lagged:
            self.close()
            raise StopAsyncIteration
        try:
            item: T = await self._feed.receive()
            return item
        except Lagged:
            self._read_on()
            return None
        except StopAsyncIteration:
            self.close()
            raise

    def close(self) -> None:
        """Stop listening. Not needed at the end of a program; it is what the end of the object does."""
        if self._feed in self._feeds:
            self._feeds.remove(self._feed)

    def __del__(self) -> None:
        if hasattr(self, "_feed"):  # Else it never began.
            self.close()

    async def aclose(self) -> None:
        self.close()

    async def __aenter__(self) -> Subscription[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
