"""Pieces of work that share a scope: whoever stops one stops that one, and nothing that comes before or after it (I8, L21)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trouper.actors import open_supervisor
from trouper.actors.deadlines import Deadlines
from trouper.actors.running import Lane, Running


@asynccontextmanager
async def watched() -> AsyncIterator[Deadlines]:
    """Deadlines, with the actor that keeps them."""
    deadlines = Deadlines()
    async with open_supervisor() as supervisor:
        supervisor.spawn("deadlines", deadlines.run)
        yield deadlines


def begun(lane: Lane) -> Running:
    running = Running()
    assert running.begin(lane)
    return running


@contextmanager
def undisturbed() -> Iterator[None]:
    """No cancel gets out of it: one that did would end the test without a word."""
    try:
        yield
    except trio.Cancelled:
        pytest.fail("it was cancelled")


async def test_pieces_of_work_in_a_row_share_a_scope_as_long_as_none_is_stopped() -> None:
    with undisturbed(), Lane(Deadlines()) as lane:
        with begun(lane).until():
            first = lane.scope
        with begun(lane).until():
            assert lane.scope is first


async def test_a_stop_ends_the_block_and_the_next_piece_of_work_is_not_touched() -> None:
    with undisturbed(), Lane(Deadlines()) as lane:
        stopped = begun(lane)
        with stopped.until():
            stopped.stop()
            await trio.sleep_forever()
        assert stopped.cancelled_caught and stopped.stopped
        await trio.lowlevel.checkpoint()
        following = begun(lane)
        with following.until():
            await trio.lowlevel.checkpoint()
        assert not following.cancelled_caught


async def test_a_stop_that_comes_too_late_touches_nothing() -> None:
    """Neither what is between two pieces of work, the wait for the disk above all, nor the next one."""
    with undisturbed(), Lane(Deadlines()) as lane:
        over = begun(lane)
        with over.until():
            pass
        over.stop()
        await trio.lowlevel.checkpoint()
        with begun(lane).until():
            over.stop()
            await trio.lowlevel.checkpoint()


async def test_a_stop_after_the_last_wait_of_a_block_lets_it_end_and_touches_nothing_after_it() -> None:
    """I9: the result is there; it is for the session to record it as late."""
    with undisturbed(), Lane(Deadlines()) as lane:
        running = begun(lane)
        with running.until():
            await trio.lowlevel.checkpoint()
            running.stop()
        assert not running.cancelled_caught
        await trio.lowlevel.checkpoint()
        with begun(lane).until():
            await trio.lowlevel.checkpoint()


async def test_work_that_is_stopped_before_it_begins_never_begins() -> None:
    with undisturbed(), Lane(Deadlines()) as lane:
        running = Running()
        running.stop()
        assert not running.begin(lane)


async def test_work_that_is_stopped_between_two_of_its_blocks_is_cancelled_in_the_next() -> None:
    with undisturbed(), Lane(Deadlines()) as lane:
        running = begun(lane)
        with running.until():
            pass
        running.stop()
        with running.until():
            await trio.sleep_forever()
        assert running.cancelled_caught


async def test_a_deadline_ends_its_block_and_is_no_stop(autojump_clock: MockClock) -> None:
    async with watched() as deadlines:
        with undisturbed(), Lane(deadlines) as lane:
            running = begun(lane)
            with running.until(trio.current_time() + 5):
                await trio.sleep_forever()
            assert running.cancelled_caught and not running.stopped
            assert trio.current_time() == 5
            with running.until(trio.current_time() + 5):
                await trio.sleep(4)
            assert not running.cancelled_caught


async def test_a_deadline_that_passes_after_its_block_touches_nothing(autojump_clock: MockClock) -> None:
    async with watched() as deadlines:
        with undisturbed(), Lane(deadlines) as lane:
            running = begun(lane)
            with running.until(trio.current_time() + 5):
                await trio.sleep(1)
            await trio.sleep(10)
            running.extend(trio.current_time() + 1)
            await trio.sleep(10)
            with begun(lane).until():
                await trio.sleep(10)


async def test_a_cancel_from_outside_goes_on_up() -> None:
    with trio.CancelScope() as outside:
        with Lane(Deadlines()) as lane, begun(lane).until():
            outside.cancel()
            await trio.sleep_forever()
    assert outside.cancelled_caught


async def test_an_error_leaves_no_scope_behind() -> None:
    with trio.CancelScope() as around:
        with pytest.raises(ValueError, match="its own"), Lane(Deadlines()) as lane, begun(lane).until():
            raise ValueError("its own")
        await trio.lowlevel.checkpoint()
    assert not around.cancel_called


async def test_an_error_in_a_block_that_was_stopped_is_raised_on() -> None:
    with undisturbed(), Lane(Deadlines()) as lane:
        running = begun(lane)
        with pytest.raises(ValueError, match="while it was cancelled"), running.until():
            running.stop()
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("while it was cancelled")
        await trio.lowlevel.checkpoint()


async def test_a_scope_that_foreign_code_leaves_open_ends_with_its_block(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """I23: an async generator that is not read to its end keeps its time-out in the task, for whoever comes next."""

    async def ticks() -> AsyncIterator[int]:
        with trio.move_on_after(1):
            while True:
                yield 1

    unread = ticks()
    with undisturbed(), Lane(Deadlines()) as lane:
        with begun(lane).until():
            await anext(unread)
        await trio.sleep(5)
        with begun(lane).until():
            await trio.sleep(5)
    assert "left a cancel scope open" in caplog.text
    await unread.aclose()  # type: ignore[attr-defined]


async def test_a_scope_that_foreign_code_leaves_open_and_runs_into_is_an_error(autojump_clock: MockClock) -> None:
    """I23: a cancel that nobody around the block asked for goes no further; the session begins again."""

    async def ticks() -> AsyncIterator[int]:
        with trio.move_on_after(1):
            while True:
                yield 1

    unread = ticks()
    with pytest.raises(RuntimeError, match="Cancel scope stack corrupted"), Lane(Deadlines()) as lane:
        with begun(lane).until():
            await anext(unread)
            await trio.sleep(5)
    await trio.lowlevel.checkpoint()
    await unread.aclose()  # type: ignore[attr-defined]


async def test_a_deadline_around_all_of_it_is_left_alone(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """I24: a stop gives the session's task one."""
    with trio.move_on_after(5) as around:
        with Lane(Deadlines()) as lane:
            for _ in range(3):
                with begun(lane).until():
                    await trio.sleep(2)
    assert around.cancelled_caught and trio.current_time() == 5
    assert not caplog.records


async def test_who_waits_for_the_end_is_told_once_it_is_there() -> None:
    running = Running()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(running.wait_done)
        await wait_all_tasks_blocked()
        running.end()
    await running.wait_done()
