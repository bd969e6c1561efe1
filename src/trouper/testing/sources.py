"""Time, ids and randomness for tests: repeatable, and as wrong as a test wants them to be.

>>> ids = CountedIds()
>>> ids.new("session_") < ids.new("session_")
True
>>> wall = VirtualWall(trio.testing.MockClock())
>>> wall.leap(hours=-1)
>>> wall() - START_MS
-3600000
"""

from __future__ import annotations

import random

import attrs
import trio
import trio.testing

#: When virtual time begins: 2026-01-01 00:00 UTC, in ms since the epoch.
START_MS = 1_767_225_600_000


@attrs.define(eq=False)
class VirtualWall:
    """Wall time that follows a run's own clock, in ms since the epoch, and that can leap as a wall clock may.

    A runtime counts in seconds: `Environment(now=lambda: wall() / 1000)`.

    The clock is handed in rather than looked up, so that a thread can ask for the time too.
    """

    clock: trio.abc.Clock
    start_ms: int = START_MS
    offset_ms: int = 0

    def __call__(self) -> int:
        return self.start_ms + self.offset_ms + round(self.clock.current_time() * 1000)

    def leap(self, *, hours: float = 0, years: float = 0) -> None:
        """Set the clock forward or back, as an administrator or a time server may at any moment."""
        self.offset_ms += round((hours + years * 365.25 * 24) * 3_600_000)


@attrs.define(eq=False)
class CountedIds:
    """Ids that count: an `IdSource` whose ids sort by birth and are the same in every run."""

    count: int = 0

    def new(self, prefix: str) -> str:
        """The next id."""
        self.count += 1
        return f"{prefix}{self.count:026d}"


def seeded(seed: int, purpose: str) -> random.Random:
    """Randomness for one purpose. Each purpose has a stream of its own, so that one more draw here changes nothing there."""
    return random.Random(f"{seed}/{purpose}")
