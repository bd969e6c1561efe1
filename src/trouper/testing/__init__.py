"""The testing kit: what Trouper's own tests run on, for testing tools and agents that are built with it.

- `CrashDisk`: a disk in memory that loses unsynced writes, fails, fills up and stalls.
- `run_simulated`, `scheduled`: trio in virtual time, with the order of tasks chosen by a seed or drawn by a test.
- `VirtualWall`, `CountedIds`, `seeded`: time, ids and randomness that repeat.
"""

from trouper.testing.crash_disk import CrashDisk, Fate, PowerCut
from trouper.testing.schedule import call_inline, run_simulated, scheduled
from trouper.testing.sources import CountedIds, VirtualWall, seeded

__all__ = [
    "CountedIds",
    "CrashDisk",
    "Fate",
    "PowerCut",
    "VirtualWall",
    "call_inline",
    "run_simulated",
    "scheduled",
    "seeded",
]
