"""When the time of a piece of work is up.

One actor for all the work of a runtime: to register each deadline with trio, and to move it with every word of a model, would cost more than most of that work
takes. It sleeps until the earliest deadline that it knows of; most have moved on by then, or their work has ended.

What is due goes first. One core does everything here, and the scheduler knows no order of precedence: a hundred turns that begin at one instant would all stand before a budget that
runs out meanwhile. So whoever is about to bring about more work, and finds that something is due, queues up here, and is let in when nothing is: a few in each round of the scheduler.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import Protocol

import trio

from trouper.actors.alarm import Alarm
from trouper.actors.reference import Inbox

#: All work is looked through at most this often, however many deadlines pass meanwhile: a provider that is down lets thousands pass within seconds.
LOOK_AHEAD_S = 1.0
#: What is due is stopped or let go of in the order of its deadlines, so many in each round of the scheduler, and so many of those who wait are let in: whoever comes in the same
#: round has no order.
AT_ONCE_MAX = 4


class Timed(Protocol):
    """What has a deadline. Another one, if it is earlier, has to be added again."""

    deadline: float

    def time_out(self) -> None:
        """It has come. Must not wait for anything."""


class Deadlines:
    """The pieces of work that have one."""

    __slots__ = (
        "_ahead",
        "_alarm",
        "_is_kept",
        "_later",
        "_looked_up_to",
        "_new",
        "_queue",
        "_soon",
        "_watched",
        "clock",
    )

    def __init__(self) -> None:
        # The clock itself, which `trio.current_time` would look up each time.
        self.clock = trio.lowlevel.current_clock().current_time
        self._watched: dict[Timed, None] = {}
        #: Those with a deadline up to here are in the heap `_soon`, by a deadline that they have or had; of the others none is before `_later`.
        self._looked_up_to = -math.inf
        self._soon: list[tuple[float, int, Timed]] = []
        self._later = math.inf
        self._alarm = Alarm()
        #: Those who let others go first: turns that are under way, and turns that are to begin.
        self._queue: deque[trio.lowlevel.Task] = deque()
        self._new: deque[trio.lowlevel.Task] = deque()
        #: How many are on their way whom nobody may overtake.
        self._ahead = 0
        #: Whether the actor is there to let them in.
        self._is_kept = False

    def add(self, running: Timed) -> None:
        """Watch it, or hear that its time is up earlier than it was."""
        self._watched[running] = None
        deadline = running.deadline
        if deadline <= self._looked_up_to:
            heappush(self._soon, (deadline, id(running), running))
        elif deadline < self._later:
            self._later = deadline
        if deadline < self._alarm.at:
            self._alarm.hasten(deadline)

    def discard(self, running: Timed) -> None:
        self._watched.pop(running, None)

    # -- what is due goes first

    @property
    def is_due(self) -> bool:
        """Whether there is something that has to go first."""
        return self._is_kept and (self._alarm.at <= self.clock() or self._ahead > 0)

    @property
    def is_crowded(self) -> bool:
        """Whether something has to go first, or others wait for that already."""
        return bool(self._queue) or bool(self._new) or self.is_due

    def hurry(self) -> None:
        """What was started just now has to go first: in the next round of the scheduler it does."""
        self._alarm.hasten(self.clock())

    @contextmanager
    def going_first(self) -> Iterator[None]:
        """Nobody is let in meanwhile: while somebody waits for the disk, the thread that writes it would have to share the interpreter with all of them."""
        self._ahead += 1
        try:
            yield
        finally:
            self._ahead -= 1
            self.hurry()

    async def give_way(self) -> None:
        """Let go first what has to, and those who came before. Only where `is_due` or `is_crowded` says so: nobody lets in who comes unasked."""
        self._queue.append(trio.lowlevel.current_task())
        await _wait_in(self._queue)

    async def give_way_once_more(self) -> None:
        """The same for somebody who has waited already: he is the next."""
        self._queue.appendleft(trio.lowlevel.current_task())
        await _wait_in(self._queue)

    async def give_way_to_turns(self) -> None:
        """The same for a turn that is to begin."""
        self._new.append(trio.lowlevel.current_task())
        await _wait_in(self._new)

    async def run(self, inbox: Inbox[None, None]) -> None:
        self._is_kept = True
        try:
            await self._see_to_them(inbox)
            while await self._alarm.wait(inbox):
                await self._see_to_them(inbox)
        finally:
            self._is_kept = False
            while self._queue or self._new:
                self._let_in(len(self._queue))

    async def _see_to_them(self, inbox: Inbox[None, None]) -> None:
        """Until nothing is due and nobody waits."""
        while not inbox.stopping:
            if not self._look(self.clock()):
                if self._ahead or not (self._queue or self._new):
                    return
                self._let_in(AT_ONCE_MAX - 1)
            await trio.lowlevel.checkpoint()

    def _let_in(self, under_way: int) -> None:
        """So many of the turns under way, and one that is new: what was begun goes before what was not, and keeps nobody out."""
        for _ in range(min(under_way, len(self._queue))):
            trio.lowlevel.reschedule(self._queue.popleft())
        if self._new:
            trio.lowlevel.reschedule(self._new.popleft())

    def _look(self, now: float) -> bool:
        """Stop what is overdue, and set the alarm for the next. Whether there was anything."""
        self._alarm.at = math.inf
        found = 0
        if now >= self._looked_up_to:
            self._look_ahead(now + LOOK_AHEAD_S)
        soon = self._soon
        while soon and soon[0][0] <= now and found < AT_ONCE_MAX:
            _, _, running = heappop(soon)
            if running in self._watched:
                if running.deadline <= now:
                    running.time_out()
                    self.discard(running)
                    found += 1
                else:
                    self.add(running)  # It has moved on.
        if found:
            # Due until the next look, in the next round: then what was let go of has had its turn.
            self._alarm.hasten(now)
        else:
            self._alarm.hasten(soon[0][0] if soon else self._later)
        return bool(found)

    def _look_ahead(self, up_to: float) -> None:
        """Look through all of them."""
        self._looked_up_to, self._later = up_to, math.inf
        self._soon.clear()
        for running in self._watched:
            self.add(running)


async def _wait_in(queue: deque[trio.lowlevel.Task]) -> None:
    task = trio.lowlevel.current_task()

    def give_up(_raise_cancel: object) -> trio.lowlevel.Abort:
        queue.remove(task)
        return trio.lowlevel.Abort.SUCCEEDED

    await trio.lowlevel.wait_task_rescheduled(give_up)
