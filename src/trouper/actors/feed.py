"""How a session's events reach those who watch it, without ever waiting for them (I33).

A feed is a bounded queue with one reader. Whoever publishes never blocks: a reader that lags behind the bound is cut off, is told so, and reads on
from the journal.
"""

from __future__ import annotations

from typing import Any

import trio

from trouper._errors import UsageError


class Lagged(Exception):
    """The reader fell behind by more than the feed holds. `missed_from` is the first event that it did not get."""


class Feed:
    """One reader's queue. `push` is a plain call; `receive` waits only when there is nothing."""

    __slots__ = ("_ended", "_lagged", "_limit", "_only", "_queue", "_reader", "attended", "batch")

    def __init__(self, limit: int, only: type | None = None, *, attended: bool = True) -> None:
        #: Whether the reader is somebody who can be asked something.
        self.attended = attended
        #: What is being read, newest first. A reader may pop from it directly: saves a coroutine for each item.
        self.batch: list[Any] = []
        # What came since, oldest first. Two lists, since an empty deque takes more room than the rest of a feed and its reader.
        self._queue: list[Any] = []
        self._limit = limit
        # The one kind of event that the reader wants, if it wants but one.
        self._only = only
        # The task asleep in receive(). While there is one, both lists are empty.
        self._reader: trio.lowlevel.Task | None = None
        self._lagged = False
        self._ended = False

    def push(self, items: tuple[Any, ...]) -> None:
        """What has happened now, in order: all events of a record at once."""
        if self._lagged or self._ended:
            return
        if self._only is not None:
            items = tuple([item for item in items if type(item) is self._only])
        room = self._limit - len(self._queue) - len(self.batch)
        if len(items) > room:
            self._lagged = True
            items = items[:room]
        self._queue += items
        if self._queue and self._reader is not None:
            reader, self._reader = self._reader, None
            trio.lowlevel.reschedule(reader)

    def end(self) -> None:
        """Nothing more will come; what is queued is still read."""
        self._ended = True
        if self._reader is not None:
            reader, self._reader = self._reader, None
            trio.lowlevel.reschedule(reader)

    async def receive(self) -> Any:
        """The next item; `Lagged` once after a cut-off, `StopAsyncIteration` at the end."""
        while not self.waiting:
            if self._lagged:
                self._lagged = False
                raise Lagged
            if self._ended:
                raise StopAsyncIteration
            if self._reader is not None:
                raise UsageError(
                    "two tasks read the events of one turn or subscription; let one of them read, or open a second one"
                )
            self._reader = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        if not self.batch:
            self._queue.reverse()
            self.batch, self._queue = self._queue, self.batch
        return self.batch.pop()

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._reader = None
        return trio.lowlevel.Abort.SUCCEEDED

    def __aiter__(self) -> Feed:
        return self

    async def __anext__(self) -> Any:
        return await self.receive()

    def unread(self) -> list[Any]:
        """All that waits to be read, oldest first; whoever takes it has read it."""
        left = [*reversed(self.batch), *self._queue]
        self.batch, self._queue = [], []
        return left

    @property
    def waiting(self) -> int:
        return len(self._queue) + len(self.batch)

    @property
    def lagged(self) -> bool:
        """Whether the reader has missed something, and was not told so yet."""
        return self._lagged
