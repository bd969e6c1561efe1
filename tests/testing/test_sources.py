"""Time, ids and randomness that repeat."""

from __future__ import annotations

import doctest

import trio
import trio.testing

import trouper.testing.sources
from trouper.testing.schedule import run_simulated
from trouper.testing.sources import START_MS, CountedIds, VirtualWall, seeded


def test_the_example_in_the_docstring_runs() -> None:
    assert doctest.testmod(trouper.testing.sources).failed == 0


def test_wall_time_follows_virtual_time_and_leaps() -> None:
    clock = trio.testing.MockClock(autojump_threshold=0)
    wall = VirtualWall(clock)

    async def main() -> list[int]:
        found = [wall()]
        await trio.sleep(90)
        found.append(wall())
        wall.leap(hours=-1)
        found.append(wall())
        wall.leap(years=10)
        found.append(wall())
        found.append(await trio.to_thread.run_sync(wall))
        return [at - START_MS for at in found]

    in_ten_years = round(10 * 365.25 * 86_400_000)
    assert run_simulated(main, clock=clock) == [
        0,
        90_000,
        90_000 - 3_600_000,
        90_000 - 3_600_000 + in_ten_years,
        90_000 - 3_600_000 + in_ten_years,
    ]


def test_counted_ids_sort_by_birth() -> None:
    ids = CountedIds()
    made = [ids.new("task_") for _ in range(1000)]
    assert made == sorted(made)
    assert {len(name) for name in made} == {len("task_") + 26}
    assert made[:2] == [CountedIds().new("task_"), made[1]]


def test_each_purpose_has_its_own_randomness() -> None:
    first = seeded(1, "model")
    first.random()
    assert seeded(1, "disk").random() == seeded(1, "disk").random()
    assert seeded(1, "disk").random() != seeded(1, "model").random()
    assert seeded(1, "disk").random() != seeded(2, "disk").random()
