"""The testing kit: what Trouper's own tests run on, for testing tools and agents that are built with it.

- `CrashDisk`: a disk in memory that loses unsynced writes, fails, fills up and stalls.
"""

from trouper.testing.crash_disk import CrashDisk, Fate, PowerCut

__all__ = ["CrashDisk", "Fate", "PowerCut"]
