"""When the time of a piece of work is up.

One actor for all the work of a runtime: to register each deadline with trio, and to move it with every word of a model, would cost more than most of that work
takes. It sleeps until the earliest deadline that it knows of; most have moved on by then, or their work has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from trouper.actors.alarm import Alarm
from trouper.actors.reference import Inbox

if TYPE_CHECKING:
    from trouper.actors.running import Running


class Deadlines:
    """The pieces of work that have one."""

    __slots__ = ("_alarm", "_watched")

    def __init__(self) -> None:
        self._watched: dict[Running, None] = {}
        self._alarm = Alarm()

    def add(self, running: Running) -> None:
        """Watch it, or look again when its time is up: it may be up earlier now."""
        self._watched[running] = None
        if running.deadline < self._alarm.at:
            self._alarm.hasten(running.deadline)

    def discard(self, running: Running) -> None:
        self._watched.pop(running, None)

    async def run(self, inbox: Inbox[None, None]) -> None:
        self._set_alarm()
        while await self._alarm.wait(inbox):
            now = trio.current_time()
            for running in [each for each in self._watched if each.deadline <= now]:
                running.time_out()
                self.discard(running)
            self._set_alarm()

    def _set_alarm(self) -> None:
        for running in self._watched:
            self._alarm.hasten(running.deadline)
