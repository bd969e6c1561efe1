"""Deadlines are kept to the second, by one actor for all work, however often they are moved (L12)."""

from __future__ import annotations

import math

import trio
from trio.testing import MockClock

from trouper.actors import open_supervisor
from trouper.actors.deadlines import Deadlines
from trouper.actors.running import Lane, Running


class Stage:
    """Pieces of work that never end by themselves, and when each was given up."""

    def __init__(self) -> None:
        self.deadlines = Deadlines()
        self.ended: dict[str, float] = {}

    async def work(self, name: str, running: Running, deadline: float) -> None:
        with Lane(self.deadlines) as lane:
            assert running.begin(lane)
            with running.until(deadline):
                await trio.sleep_forever()
            self.ended[name] = trio.current_time()


async def test_each_piece_of_work_is_given_up_at_its_own_deadline(autojump_clock: MockClock) -> None:
    stage = Stage()
    async with open_supervisor() as supervisor, trio.open_nursery() as nursery:
        supervisor.spawn("deadlines", stage.deadlines.run)
        for name, deadline in (("late", 9.5), ("soon", 2.0), ("same", 2.0), ("last", 1e6)):
            nursery.start_soon(stage.work, name, Running(), deadline)
    assert stage.ended == {"soon": 2.0, "same": 2.0, "late": 9.5, "last": 1e6}


async def test_a_deadline_moves_with_its_work(autojump_clock: MockClock) -> None:
    """A model's words put the deadline of its stream off; the end of its silence may also bring it forward."""
    stage = Stage()
    puts_off, hastens = Running(), Running()
    async with open_supervisor() as supervisor, trio.open_nursery() as nursery:
        supervisor.spawn("deadlines", stage.deadlines.run)
        nursery.start_soon(stage.work, "put off", puts_off, 3.0)
        nursery.start_soon(stage.work, "hastened", hastens, 90.0)
        await trio.sleep(2)
        puts_off.extend(20.0)
        hastens.extend(2.5)
        await trio.sleep(5)
        assert stage.ended == {"hastened": 2.5}
    assert stage.ended["put off"] == 20.0


async def test_a_deadline_that_is_lifted_never_comes(autojump_clock: MockClock) -> None:
    stage = Stage()
    running = Running()
    async with open_supervisor() as supervisor, trio.open_nursery() as nursery:
        supervisor.spawn("deadlines", stage.deadlines.run)
        nursery.start_soon(stage.work, "lifted", running, 3.0)
        await trio.sleep(1)
        running.extend(math.inf)
        await trio.sleep(3_600)
        assert not stage.ended
        running.stop()


async def test_work_that_began_before_the_actor_is_watched_too(autojump_clock: MockClock) -> None:
    """After a restart there may be work already."""
    stage = Stage()
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
