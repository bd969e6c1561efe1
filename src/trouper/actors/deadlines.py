"""When the time of a piece of work is up.

One actor for all the work of a runtime: to register each deadline with trio, and to move it with every word of a model, would cost more than most of that work
takes. It sleeps until the earliest deadline that it knows of; most have moved on by then, or their work has ended.

What is due goes first, so the actor keeps the door that all others wait at meanwhile (`actors/door.py`).
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import Protocol

import trio

from trouper.actors.alarm import Alarm
from trouper.actors.door import AT_ONCE_MAX, Door
from trouper.actors.reference import Inbox
from trouper.actors.request import ki_safe

#: All work is looked through at most this often, however many deadlines pass meanwhile: a provider that is down lets thousands pass within seconds.
LOOK_AHEAD_S = 1.0


class Timed(Protocol):
    """What has a deadline. Another one, if it is earlier, has to be added again."""

    deadline: float

    def time_out(self) -> None:
        """It has come. Must not wait for anything."""


class Deadlines:
    """The pieces of work that have one."""

    __slots__ = (
        "_alarm",
        "_later",
        "_looked_up_to",
        "_soon",
        "_watched",
        "clock",
        "door",
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
        self.door = Door(self._alarm, self.clock)

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

    @ki_safe  # A Ctrl-C halfway would forget somebody who waits, or whose time is up.
    async def run(self, inbox: Inbox[None, None]) -> None:
        with self.door.kept():
            await self._see_to_them(inbox)
            while await self._alarm.wait(inbox):
                await self._see_to_them(inbox)

    async def _see_to_them(self, inbox: Inbox[None, None]) -> None:
        """Until nothing is due and nobody waits."""
        while not inbox.stopping and (self._look(self.clock()) or self.door.let_some_in()):
            await trio.lowlevel.checkpoint()

    def _look(self, now: float) -> bool:
        """Stop what is overdue, or let go of it, in the order of its deadlines: a few in each round. Set the alarm for the next. Whether there was anything."""
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
