"""Schedules that are inputs: different by seed, the same again on demand, and short once shrunk."""

from __future__ import annotations

import doctest

import pytest
import trio
from hypothesis import find, settings
from hypothesis import strategies as st
from trio._core import _run

import trouper.testing.schedule
from trouper.testing.schedule import call_inline, run_simulated, scheduled


async def order_of_three() -> str:
    order: list[str] = []

    async def note(name: str) -> None:
        for _ in range(2):
            order.append(name)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(note, name)
    return "".join(order)


async def lost_update() -> int:
    total = 0

    async def add(delay: int) -> None:
        nonlocal total
        for _ in range(delay):
            await trio.lowlevel.checkpoint()
        seen = total
        await trio.lowlevel.checkpoint()
        total = seen + 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(add, 0)
        nursery.start_soon(add, 1)
    return total


def test_the_example_in_the_docstring_runs() -> None:
    assert doctest.testmod(trouper.testing.schedule).failed == 0


def test_seeds_give_many_schedules_and_each_the_same_again() -> None:
    runs = [run_simulated(order_of_three, seed=seed) for seed in range(60)]
    assert len(set(runs)) > 15
    assert runs == [run_simulated(order_of_three, seed=seed) for seed in range(60)]


def test_no_choices_mean_first_in_first_out() -> None:
    assert run_simulated(order_of_three, choices=[]) == "abcabc"


def test_a_drawn_schedule_finds_a_race_and_shrinks() -> None:
    """How-section of the invariants: draw the schedule too, or one schedule is all that is ever tried."""
    choices = find(
        st.lists(st.integers(0, 7), max_size=40),
        lambda drawn: run_simulated(lost_update, choices=drawn) != 2,
        settings=settings(max_examples=500, database=None, deadline=None),
    )
    assert run_simulated(lost_update, choices=choices) == 1
    assert sum(choices) <= 1
    assert len(choices) <= 4


def test_what_trio_had_is_put_back() -> None:
    before = _run._r, _run._ALLOW_DETERMINISTIC_SCHEDULING
    with pytest.raises(ZeroDivisionError), scheduled(seed=3):
        assert _run._r is not before[0]
        raise ZeroDivisionError
    assert (_run._r, _run._ALLOW_DETERMINISTIC_SCHEDULING) == before


def test_a_failure_says_how_to_repeat_it() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        run_simulated(fail, seed=41)
    assert "seed=41" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="no") as caught:
        run_simulated(fail, choices=[1, 2])
    assert "choices=[1, 2]" in caught.value.__notes__[0]


def test_waiting_takes_no_time() -> None:
    async def wait_an_hour() -> float:
        begin = trio.current_time()
        await trio.sleep(3_600)
        return trio.current_time() - begin

    assert run_simulated(wait_an_hour) == 3_600


def test_an_inline_call_is_a_checkpoint() -> None:
    async def main() -> int:
        with trio.CancelScope() as scope:
            scope.cancel()
            await call_inline(pytest.fail, "a cancelled caller does not call")
        return await call_inline(max, 1, 2)

    assert run_simulated(main) == 2
