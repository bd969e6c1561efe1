"""When the time of a piece of work is up.

One actor for all the work of a runtime: to register each deadline with trio, and to move it with every word of a model, would cost more than most of that work
takes. It sleeps until the earliest deadline that it knows of; most have moved on by then, or their work has ended.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import trio

from trouper.actors.alarm import Alarm
from trouper.actors.reference import Inbox

if TYPE_CHECKING:
    from trouper.actors.running import Running

#: All work is looked through at most this often, however many deadlines pass meanwhile: a provider that is down lets thousands pass within seconds.
LOOK_AHEAD_S = 1.0


class Deadlines:
    """The pieces of work that have one."""

    __slots__ = ("_alarm", "_later", "_looked_up_to", "_soon", "_watched", "clock")

    def __init__(self) -> None:
        # The clock itself, which `trio.current_time` would look up each time.
        self.clock = trio.lowlevel.current_clock().current_time
        self._watched: dict[Running, None] = {}
        #: Those with a deadline up to here are in the heap `_soon`, by a deadline that they have or had; of the others none is before `_later`.
        self._looked_up_to = -math.inf
        self._soon: list[tuple[float, int, Running]] = []
        self._later = math.inf
        self._alarm = Alarm()

    def add(self, running: Running) -> None:
        """Watch it, or hear that its time is up earlier than it was."""
        self._watched[running] = None
        deadline = running.deadline
        if deadline <= self._looked_up_to:
            heappush(self._soon, (deadline, id(running), running))
        elif deadline < self._later:
            self._later = deadline
        if deadline < self._alarm.at:
            self._alarm.hasten(deadline)

    def discard(self, running: Running) -> None:
        self._watched.pop(running, None)

    async def run(self, inbox: Inbox[None, None]) -> None:
        self._look(trio.current_time())
        while await self._alarm.wait(inbox):
            self._look(trio.current_time())

    def _look(self, now: float) -> None:
        """Stop what is overdue, and set the alarm for the next."""
        if now >= self._looked_up_to:
            self._look_ahead(now + LOOK_AHEAD_S)
        soon = self._soon
        while soon and soon[0][0] <= now:
            _, _, running = heappop(soon)
            if running in self._watched:
                if running.deadline <= now:
                    running.time_out()
                    self.discard(running)
                else:
                    self.add(running)  # It has moved on.
        self._alarm.hasten(soon[0][0] if soon else self._later)

    def _look_ahead(self, up_to: float) -> None:
        """Look through all of them."""
        self._looked_up_to, self._later = up_to, math.inf
        self._soon.clear()
        for running in self._watched:
            self.add(running)
