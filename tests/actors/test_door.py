"""The door: what is due goes first, those who give way to it are let in a few at a time, in their order, and nobody waits for ever (B1, I24)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import trio
import trio.testing
from trio.testing import MockClock

from pressed_keys import CtrlC, press_at_every_line
from trouper.actors import open_supervisor
from trouper.actors.deadlines import Deadlines
from trouper.actors.door import AT_ONCE_MAX, Door, _wait_in

#: Virtual seconds: a wait that reaches this bound hangs.
HANG_S = 1e7


@asynccontextmanager
async def kept(deadlines: Deadlines) -> AsyncIterator[trio.Nursery]:
    """With the actor that keeps them and their door, until all that is started in the nursery has ended."""
    with trio.fail_after(HANG_S):
        async with open_supervisor() as supervisor, trio.open_nursery() as nursery:
            supervisor.spawn("deadlines", deadlines.run)
            yield nursery


class Due:
    """Has a deadline, and notes when it is told that this has come."""

    def __init__(self, deadline: float, told: list[str], name: str) -> None:
        self.deadline = deadline
        self.told = told
        self.name = name

    def time_out(self) -> None:
        self.told.append(self.name)


async def giving_way(door: Door, told: list[str], name: str) -> None:
    """Some work that looks before it begins."""
    if door.is_crowded:
        await door.give_way()
    told.append(name)


async def test_what_is_due_goes_before_all_who_have_not_begun_and_in_its_own_order(autojump_clock: MockClock) -> None:
    """B1: also if the scheduler has not seen yet that the time is up."""
    deadlines, told = Deadlines(), list[str]()
    due = [Due(1.0 + n / 1_000, told, f"due {n}") for n in range(3 * AT_ONCE_MAX)]
    async with kept(deadlines) as nursery:
        await trio.testing.wait_all_tasks_blocked()
        for each in reversed(due):
            deadlines.add(each)
        assert not deadlines.door.is_crowded
        for name in ("one", "another", "a third"):
            nursery.start_soon(giving_way, deadlines.door, told, name)
        autojump_clock.jump(2)
    assert told[: len(due)] == [each.name for each in due]
    assert sorted(told[len(due) :]) == ["a third", "another", "one"]


async def test_who_waits_is_let_in_a_few_at_a_time_in_the_order_of_coming(autojump_clock: MockClock) -> None:
    """Whoever is let in may start something that must not wait for all the others: it gets a round of the scheduler."""
    deadlines, told = Deadlines(), list[str]()
    names = [f"{n:02}" for n in range(4 * AT_ONCE_MAX)]

    async def started_by(name: str) -> None:
        told.append(f"started by {name}")

    async with trio.open_nursery() as nursery:

        async def work(name: str) -> None:
            await deadlines.door.give_way()
            told.append(name)
            nursery.start_soon(started_by, name)

        for name in names:
            nursery.start_soon(work, name)
            await trio.testing.wait_all_tasks_blocked()
        async with kept(deadlines):
            await trio.testing.wait_all_tasks_blocked()
    for n, name in enumerate(names[: -2 * AT_ONCE_MAX]):
        assert told.index(name) < told.index(names[n + AT_ONCE_MAX])
        assert told.index(f"started by {name}") < told.index(names[n + 2 * AT_ONCE_MAX])


async def test_turns_under_way_go_before_new_ones_and_keep_none_out(autojump_clock: MockClock) -> None:
    """What was begun is brought on first; but one new turn is let in with every few of the others, however many these are."""
    deadlines, told = Deadlines(), list[str]()

    async def begin(name: str) -> None:
        await deadlines.door.give_way_to_turns()
        told.append(name)

    async def go_on(name: str) -> None:
        await deadlines.door.give_way()
        told.append(name)

    async def go_on_at_last(name: str) -> None:
        await deadlines.door.give_way_once_more()
        told.append(name)

    async with trio.open_nursery() as nursery:
        for work, name in (
            *((begin, f"new {n}") for n in range(20)),
            *((go_on, f"old {n}") for n in range(20)),
            (go_on_at_last, "next"),
        ):
            nursery.start_soon(work, name)
            await trio.testing.wait_all_tasks_blocked()
        async with kept(deadlines):
            await trio.testing.wait_all_tasks_blocked()
    assert "next" in told[:AT_ONCE_MAX]
    assert told.index("new 1") < told.index("old 10") < told.index("new 10")


async def test_who_is_cancelled_while_it_gives_way_waits_no_more(autojump_clock: MockClock) -> None:
    """I8: every await can be cancelled; and nobody else is let in less for it."""
    deadlines, told = Deadlines(), list[str]()
    async with kept(deadlines) as nursery:
        await trio.testing.wait_all_tasks_blocked()
        deadlines.door.hurry()
        with trio.CancelScope() as scope:
            nursery.start_soon(giving_way, deadlines.door, told, "other")
            scope.cancel()
            await deadlines.door.give_way()
        assert scope.cancelled_caught
    assert told == ["other"] and not deadlines.door.is_crowded


async def test_nobody_waits_for_an_actor_that_is_gone(autojump_clock: MockClock) -> None:
    """I24: those who wait when it ends go on, and after that nobody waits at all."""
    deadlines, told = Deadlines(), list[str]()

    async def work(name: str) -> None:
        await deadlines.door.give_way()
        told.append(name)

    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as nursery:
            for n in range(3 * AT_ONCE_MAX):
                nursery.start_soon(work, str(n))
            await trio.testing.wait_all_tasks_blocked()
            async with open_supervisor() as supervisor:
                supervisor.cancel(supervisor.spawn("deadlines", deadlines.run))
            deadlines.add(Due(0.0, told, "never"))
            assert not deadlines.door.is_shut
    assert len(told) == 3 * AT_ONCE_MAX


async def test_nobody_is_let_in_while_somebody_goes_first(autojump_clock: MockClock) -> None:
    """B1: what was let go of waits for the disk, and the model is asked, before others bring about more work; however long that takes."""
    deadlines, told = Deadlines(), list[str]()
    async with kept(deadlines) as nursery:
        await trio.testing.wait_all_tasks_blocked()
        with deadlines.door.going_first():
            for name in ("one", "two"):
                nursery.start_soon(giving_way, deadlines.door, told, name)
            await trio.sleep(3)
            told.append("first")
        await trio.testing.wait_all_tasks_blocked()
        assert told[0] == "first" and len(told) == 3


def test_a_ctrl_c_at_any_line_of_the_wait_leaves_nobody_in_the_queue() -> None:
    """I23: whoever has left must not be let in, wherever he waits by now."""

    async def one_try(ctrl_c: CtrlC) -> None:
        deadlines = Deadlines()
        async with kept(deadlines):
            await trio.testing.wait_all_tasks_blocked()
            with ctrl_c.pressed():
                deadlines.door.hurry()
                await deadlines.door.give_way_to_turns()
            with suppress(KeyboardInterrupt):
                await trio.lowlevel.checkpoint()
            began = trio.current_time()
            await trio.sleep(1)
            assert trio.current_time() - began == 1 and not deadlines.door.is_crowded

    press_at_every_line(one_try, Door.give_way_to_turns, _wait_in)


def test_a_ctrl_c_at_any_line_of_who_keeps_the_door_lets_everybody_in() -> None:
    """I24: the program hears of it at its next checkpoint, and nobody who waits is forgotten."""

    async def one_try(ctrl_c: CtrlC) -> None:
        deadlines, told = Deadlines(), list[str]()
        async with kept(deadlines) as nursery:
            await trio.testing.wait_all_tasks_blocked()
            with ctrl_c.pressed():
                deadlines.add(Due(trio.current_time(), told, "due"))
                for name in ("one", "another"):
                    nursery.start_soon(giving_way, deadlines.door, told, name)
                await trio.sleep(1)
            with suppress(KeyboardInterrupt):
                await trio.sleep(1)
            assert sorted(told) == ["another", "due", "one"]

    press_at_every_line(one_try, Deadlines._look, Door.let_some_in, Door._let_in)
