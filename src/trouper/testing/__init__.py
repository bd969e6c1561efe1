"""The testing kit: what Trouper's own tests run on, for testing tools and agents that are built with it.

- `CrashDisk`: a disk in memory that loses unsynced writes, fails, fills up and stalls.
- `run_simulated`, `scheduled`: trio in virtual time, with the order of tasks chosen by a seed or drawn by a test.
- `VirtualWall`, `CountedIds`, `seeded`: time, ids and randomness that repeat.
- `Chaos`: a model that misbehaves in every way that providers do.
- `simulate`: the whole runtime in virtual time, from one seed; with tools of your own, if you like.
- `check_invariants`: what must hold of every journal.
- `trouper.testing.strategies`: histories, tools and JSON for hypothesis; `trouper.testing.server`: providers on loopback.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trouper.testing.chaos import Chaos
from trouper.testing.crash_disk import CrashDisk, Fate, PowerCut
from trouper.testing.invariants import Violation, check_invariants
from trouper.testing.schedule import call_inline, run_simulated, scheduled
from trouper.testing.sources import CountedIds, VirtualWall, seeded

if TYPE_CHECKING:
    from trouper.testing.simulation import SimulationFailed, simulate

__all__ = [
    "Chaos",
    "CountedIds",
    "CrashDisk",
    "Fate",
    "PowerCut",
    "SimulationFailed",
    "Violation",
    "VirtualWall",
    "call_inline",
    "check_invariants",
    "run_simulated",
    "scheduled",
    "seeded",
    "simulate",
]


def __getattr__(name: str) -> Any:
    # The simulator needs the whole runtime, the strategies need hypothesis: both are loaded when first asked for.
    import importlib

    if name in ("SimulationFailed", "simulate"):
        return getattr(importlib.import_module("trouper.testing.simulation"), name)
    if name in ("server", "strategies"):
        return importlib.import_module(f"trouper.testing.{name}")
    raise AttributeError(f"module 'trouper.testing' has no attribute {name!r}")
