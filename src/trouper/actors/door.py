"""What is due goes first: the door that everybody else waits at meanwhile.

One core does everything here, and the scheduler knows no order of precedence: a hundred turns that begin at one instant would all stand before a budget that runs out meanwhile.
So whoever is about to bring about more work, and finds that something is due, queues up here, and is let in when nothing is: a few in each round of the scheduler. The actor that
keeps the deadlines (`actors/deadlines.py`) keeps the door, since it knows when something is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from trouper.actors.alarm import Alarm
from trouper.actors.request import ki_safe

#: So many of those who wait are let in in each round of the scheduler, and so much of what is due is seen to: whoever comes in the same round has no order.
AT_ONCE_MAX = 4


class Door:
    """Shut while something is due, or somebody goes first. What runs already never comes here."""

    __slots__ = ("_ahead", "_alarm", "_clock", "_is_kept", "_new", "_queue")

    def __init__(self, alarm: Alarm, clock: Callable[[], float]) -> None:
        #: Goes off when something is due.
        self._alarm = alarm
        self._clock = clock
        #: Those who let others go first: turns that are under way, and turns that are to begin.
        self._queue: deque[trio.lowlevel.Task] = deque()
        self._new: deque[trio.lowlevel.Task] = deque()
        #: How many are on their way whom nobody may overtake.
        self._ahead = 0
        #: Whether anybody is there to let them in.
        self._is_kept = False

    @property
    def is_shut(self) -> bool:
        """Whether there is something that has to go first."""
        return self._is_kept and (self._alarm.at <= self._clock() or self._ahead > 0)

    @property
    def is_crowded(self) -> bool:
        """Whether something has to go first, or others wait for that already."""
        return bool(self._queue) or bool(self._new) or self.is_shut

    def hurry(self) -> None:
        """What was started just now has to go first: in the next round of the scheduler it does."""
        self._alarm.hasten(self._clock())

    @contextmanager
    def going_first(self) -> Iterator[None]:
        """Nobody is let in meanwhile: while somebody waits for the disk, the thread that writes it would have to share the interpreter with all of them."""
        self._ahead += 1
        try:
            yield
        finally:
            self._ahead -= 1
            self.hurry()

    # -- for those who wait. A Ctrl-C does not come down in here: it would leave in the queue who waits somewhere else by then.

    @ki_safe
    async def give_way(self) -> None:
        """Let go first what has to, and those who came before. Only where `is_shut` or `is_crowded` says so: nobody lets in who comes unasked."""
        self._queue.append(trio.lowlevel.current_task())
        await _wait_in(self._queue)

    @ki_safe
    async def give_way_once_more(self) -> None:
        """The same for somebody who has waited already: he is the next."""
        self._queue.appendleft(trio.lowlevel.current_task())
        await _wait_in(self._queue)

    @ki_safe
    async def give_way_to_turns(self) -> None:
        """The same for a turn that is to begin."""
        self._new.append(trio.lowlevel.current_task())
        await _wait_in(self._new)

    # -- for who keeps it

    @contextmanager
    def kept(self) -> Iterator[None]:
        """There is somebody to let them in meanwhile. After that nobody waits."""
        self._is_kept = True
        try:
            yield
        finally:
            self._is_kept = False
            while self._queue or self._new:
                self._let_in(len(self._queue))

    def let_some_in(self) -> bool:
        """A few, unless somebody goes first. Whether there were any."""
        if self._ahead or not (self._queue or self._new):
            return False
        self._let_in(AT_ONCE_MAX - 1)
        return True

    def _let_in(self, under_way: int) -> None:
        """So many of the turns under way, and one that is new: what was begun goes before what was not, and keeps nobody out."""
        for _ in range(min(under_way, len(self._queue))):
            trio.lowlevel.reschedule(self._queue.popleft())
        if self._new:
            trio.lowlevel.reschedule(self._new.popleft())


async def _wait_in(queue: deque[trio.lowlevel.Task]) -> None:
    task = trio.lowlevel.current_task()

    def give_up(_raise_cancel: object) -> trio.lowlevel.Abort:
        queue.remove(task)
        return trio.lowlevel.Abort.SUCCEEDED

    await trio.lowlevel.wait_task_rescheduled(give_up)
