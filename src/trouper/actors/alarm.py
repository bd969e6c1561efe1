"""A time that may be put forward while somebody sleeps until it.

For the actors that do something for all the work of a runtime every so often: a timer of its own for each piece of work would cost more than many a piece.
"""

from __future__ import annotations

import math
from contextlib import suppress

import trio

from trouper.actors.reference import Inbox


class Alarm:
    """One task sleeps until it; anybody may have it go off earlier, but not later."""

    __slots__ = ("_sleep", "at")

    def __init__(self) -> None:
        self._sleep = trio.CancelScope()
        #: When it goes off.
        self.at = math.inf

    def hasten(self, at: float) -> None:
        """Have it go off by then."""
        if at < self.at:
            self.at = self._sleep.deadline = at

    async def wait(self, inbox: Inbox[None, None]) -> bool:
        """Until it goes off; then it is not set. False if the actor of this inbox, which nobody tells anything, is to stop."""
        with suppress(trio.EndOfChannel):
            self._sleep = trio.CancelScope(deadline=self.at)
            with self._sleep:
                await inbox.receive()
            self.at = math.inf
            return True
        return False
