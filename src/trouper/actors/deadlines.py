"""When the time of a piece of work is up.

One actor for all the work of a runtime: to register each deadline with trio, and to move it with every word of a model, would cost more than most of that work
takes. It sleeps until the earliest deadline that it knows of; most have moved on by then, or their work has ended.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from trouper.actors.reference import Inbox

if TYPE_CHECKING:
    from trouper.actors.running import Running


class Deadlines:
    """The pieces of work that have one."""

    __slots__ = ("_alarm", "_watched", "next")

    def __init__(self) -> None:
        self._watched: dict[Running, None] = {}
        self._alarm = trio.CancelScope()
        #: When the actor looks next: no later than the earliest deadline.
        self.next = math.inf

    def add(self, running: Running) -> None:
        self._watched[running] = None
        if running.deadline < self.next:
            self.hasten(running.deadline)

    def discard(self, running: Running) -> None:
        self._watched.pop(running, None)

    def hasten(self, deadline: float) -> None:
        """Have it look as early as this."""
        self.next = self._alarm.deadline = deadline

    async def run(self, inbox: Inbox[None, None]) -> None:
        # Nobody tells it anything; the inbox says when to stop.
        with suppress(trio.EndOfChannel):
            while True:
                self.next = self._expire(trio.current_time())
                self._alarm = trio.CancelScope(deadline=self.next)
                with self._alarm:
                    await inbox.receive()

    def _expire(self, now: float) -> float:
        """Stop what is overdue; when the next one will be."""
        for running in [each for each in self._watched if each.deadline <= now]:
            running.time_out()
        return min((each.deadline for each in self._watched), default=math.inf)
