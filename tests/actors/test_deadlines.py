"""Deadlines are kept to the second, by one actor for all work, however often they are moved (L12)."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio.testing import MockClock

from trouper.actors import open_supervisor
from trouper.actors.deadlines import LOOK_AHEAD_S, Deadlines
from trouper.actors.running import Lane, Running
from trouper.testing.sources import seeded

#: Virtual seconds. No deadline below is as late: a wait that reaches this bound hangs.
HANG_S = 1e7


class Stage:
    """Pieces of work that never end by themselves, and when each was given up."""

    def __init__(self) -> None:
        self.deadlines = Deadlines()
        self.ended: dict[str, float] = {}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[trio.Nursery]:
        """With the actor that keeps the deadlines, until all work has ended."""
        with trio.fail_after(HANG_S):
            async with open_supervisor() as supervisor, trio.open_nursery() as nursery:
                supervisor.spawn("deadlines", self.deadlines.run)
                yield nursery

    async def work(self, name: str, running: Running, deadline: float) -> None:
        with Lane(self.deadlines) as lane:
            assert running.begin(lane)
            with running.until(deadline):
                await trio.sleep_forever()
            self.ended[name] = trio.current_time()


async def test_each_piece_of_work_is_given_up_at_its_own_deadline(autojump_clock: MockClock) -> None:
    stage = Stage()
    async with stage.open() as nursery:
        for name, deadline in (("late", 9.5), ("soon", 2.0), ("same", 2.0), ("last", 1e6)):
            nursery.start_soon(stage.work, name, Running(), deadline)
    assert stage.ended == {"soon": 2.0, "same": 2.0, "late": 9.5, "last": 1e6}


async def test_a_deadline_moves_with_its_work(autojump_clock: MockClock) -> None:
    """A model's words put the deadline of its stream off; the end of its silence may also bring it forward."""
    stage = Stage()
    puts_off, hastens = Running(), Running()
    async with stage.open() as nursery:
        nursery.start_soon(stage.work, "put off", puts_off, 3.0)
        nursery.start_soon(stage.work, "hastened", hastens, 90.0)
        await trio.sleep(2)
        puts_off.extend(20.0)
        hastens.extend(2.5)
        await trio.sleep(5)
        assert stage.ended == {"hastened": 2.5}
    assert stage.ended["put off"] == 20.0


async def test_a_deadline_that_was_looked_at_and_moves_is_not_forgotten(autojump_clock: MockClock) -> None:
    """It was soon to come when the one before it passed, and nothing else brings the actor to look again."""
    stage = Stage()
    moves = Running()
    async with stage.open() as nursery:
        nursery.start_soon(stage.work, "first", Running(), 9.5)
        nursery.start_soon(stage.work, "moved", moves, 9.5 + LOOK_AHEAD_S / 2)
        await trio.sleep(9.75)
        moves.extend(30.0)
    assert stage.ended == {"first": 9.5, "moved": 30.0}


async def test_a_deadline_that_is_lifted_never_comes(autojump_clock: MockClock) -> None:
    stage = Stage()
    running = Running()
    async with stage.open() as nursery:
        nursery.start_soon(stage.work, "lifted", running, 3.0)
        await trio.sleep(1)
        running.extend(math.inf)
        await trio.sleep(3_600)
        assert not stage.ended
        running.stop()


async def test_work_that_began_before_the_actor_is_watched_too(autojump_clock: MockClock) -> None:
    """After a restart there may be work already."""
    stage = Stage()
    with trio.fail_after(HANG_S):
        async with open_supervisor() as supervisor, trio.open_nursery() as nursery:
            nursery.start_soon(stage.work, "early", Running(), 3.0)
            await trio.sleep(1)
            supervisor.spawn("deadlines", stage.deadlines.run)
    assert stage.ended == {"early": 3.0}


async def test_it_stops_at_once_when_it_is_asked_to(autojump_clock: MockClock) -> None:
    """I24: no grace is spent on it."""
    stage = Stage()
    async with open_supervisor() as supervisor:
        supervisor.spawn("deadlines", stage.deadlines.run)
        await trio.sleep(1)
    assert trio.current_time() == 1


class Counted(Running):
    """Counts how often anybody looks at a deadline."""

    looks = 0
    _deadline = math.inf

    @property
    def deadline(self) -> float:  # type: ignore[override]
        Counted.looks += 1
        return self._deadline

    @deadline.setter
    def deadline(self, deadline: float) -> None:
        self._deadline = deadline


async def test_many_deadlines_that_pass_one_by_one_cost_about_as_much_as_one_each(autojump_clock: MockClock) -> None:
    """How cost must grow: a provider that is down lets the deadlines of all sessions pass within seconds."""
    stage = Stage()
    count = 400
    async with stage.open() as nursery:
        for number in range(count):
            nursery.start_soon(stage.work, str(number), Counted(), 10 + number / 100)
    assert stage.ended == {str(number): 10 + number / 100 for number in range(count)}
    assert Counted.looks < 20 * count


async def test_deadlines_are_exact_however_they_are_moved(autojump_clock: MockClock) -> None:
    """From a seed: each is put off and brought forward, within the look ahead and beyond it, and comes when it was last said."""
    stage = Stage()
    random = seeded(7, "deadlines")
    due: dict[str, float] = {}

    async def moved(name: str) -> None:
        running = Running()
        nursery.start_soon(stage.work, name, running, trio.current_time() + 100.0)
        for _ in range(random.randrange(6)):
            await trio.sleep(random.choice((0.25, 0.5, 1.5)))
            due[name] = trio.current_time() + random.choice((2.0, 2.5, 3.0, 7.0, 50.0))
            running.extend(due[name])

    async with stage.open() as nursery:
        for number in range(100):
            due[str(number)] = 100.0
            nursery.start_soon(moved, str(number))
    assert stage.ended == due
