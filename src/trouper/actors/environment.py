"""What the runtime takes from the world, in one place: wall time, ids, randomness, how long a disk takes. A simulation hands in its own.

Time comes twice. Deadlines use trio's clock, which only moves forward; what is written down uses the wall clock, which may leap.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attrs import field

from trouper.core.ids import IdSource, time_ordered_id
from trouper.core.values import frozen


class SystemIds:
    """Ids from the system's clock and randomness."""

    def new(self, prefix: str) -> str:
        return time_ordered_id(prefix, time.time_ns() // 1_000_000, secrets.randbits(80))


#: What is told and written down as a date. The calendar of Python ends with the year 9999, and schedules look ahead.
EARLIEST_S = datetime(2, 1, 1, tzinfo=UTC).timestamp()
LATEST_S = datetime(9900, 1, 1, tzinfo=UTC).timestamp()


def within_calendar(clock: Callable[[], float]) -> Callable[[], float]:
    """The same clock; where it leaps to a time that has no date, it stands still at the last one that has. The system's own cannot be set so far."""
    if clock is time.time:
        return clock

    def now() -> float:
        at = clock()
        if not at >= EARLIEST_S:  # Nor is "not a number".
            return EARLIEST_S
        return min(at, LATEST_S)

    return now


@frozen
class Environment:
    #: Wall time, seconds since the epoch.
    now: Callable[[], float] = time.time
    ids: IdSource = field(factory=SystemIds)
    #: For jitter only; nothing secret comes from it.
    random: random.Random = field(factory=random.Random)
    pid: int = field(factory=os.getpid)
    #: Where sessions' files, memory and secrets are, if not under the runtime's root: for a journal on a simulated disk.
    directory: Path | None = None
    #: Keeps secrets instead of a file, if there is one: `import keyring`, or one of its backends (B24).
    keyring: Any = None
    #: How long the next sync of a simulated disk takes, in virtual seconds; `None`: the disk itself says, by taking as long as it takes.
    sync_latency: Callable[[], float] | None = None

    def utc(self) -> datetime:
        return datetime.fromtimestamp(self.now(), UTC)
