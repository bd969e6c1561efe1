"""Following something from any point on (I33): whatever order it is told in, and whoever forgets to tell."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio
import trio.testing

from trouper.actors.feed import Feed
from trouper.subscription import Subscription


class Numbers:
    """A journal of numbers, of which some are told."""

    def __init__(self, upto: int, *, limit: int = 100, after: int = 0) -> None:
        self.feeds: list[Feed] = []
        self.upto = upto
        self.is_over = False
        self.read_from: list[int] = []
        self.following: Subscription[int] = Subscription(
            self.feeds,
            limit,
            after,
            number=lambda number: number,
            settle=self._settle,
            past=self._past,
            is_over=lambda: self.is_over,
            check_here=lambda: None,
        )

    async def _settle(self, number: int | None) -> None:
        await trio.lowlevel.checkpoint()

    def _past(self, after: int, last: int | None) -> Iterator[int]:
        self.read_from.append(after)
        return iter(range(after + 1, self.upto + 1))

    def tell(self, *numbers: int) -> None:
        self.upto = max(self.upto, *numbers)
        for number in numbers:
            for feed in self.feeds:
                feed.push((number,))

    async def tell_later(self, *numbers: int) -> None:
        await trio.testing.wait_all_tasks_blocked()
        self.tell(*numbers)

    async def read(self, count: int) -> list[int]:
        with trio.fail_after(5):
            return [await anext(self.following) for _ in range(count)]


async def test_what_is_told_in_any_order_comes_in_the_order_of_the_journal(autojump_clock):
    """I33: and nothing is read for it that was told."""
    numbers = Numbers(2)
    assert await numbers.read(2) == [1, 2]
    numbers.tell(5, 3, 7, 4, 6)
    assert await numbers.read(5) == [3, 4, 5, 6, 7]
    numbers.tell(8, 10)
    assert await numbers.read(1) == [8]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(numbers.tell_later, 9)
        assert await numbers.read(2) == [9, 10]
    assert numbers.read_from == [0]


async def test_what_nobody_tells_is_read_from_the_journal(autojump_clock):
    """I33: whoever should have told it has crashed."""
    numbers = Numbers(2)
    assert await numbers.read(2) == [1, 2]
    numbers.tell(4, 5)
    assert await numbers.read(3) == [3, 4, 5]
    numbers.tell(6, 7)
    assert await numbers.read(2) == [6, 7]
    assert numbers.read_from == [0, 2]


async def test_no_more_is_kept_in_mind_than_a_feed_holds(autojump_clock):
    """I25"""
    numbers = Numbers(1, limit=4)
    assert await numbers.read(1) == [1]
    begun = trio.current_time()
    numbers.tell(3, 4)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(numbers.tell_later, 5, 6)
        assert await numbers.read(5) == [2, 3, 4, 5, 6]
    assert trio.current_time() - begun < 0.05 and numbers.read_from == [0, 1]


async def test_the_end_does_not_hide_what_was_told_too_early(autojump_clock):
    """I33"""
    numbers = Numbers(1)
    assert await numbers.read(1) == [1]
    numbers.tell(3)
    numbers.is_over = True
    for feed in numbers.feeds:
        feed.end()
    assert await numbers.read(2) == [2, 3]
    with pytest.raises(StopAsyncIteration):
        await anext(numbers.following)


async def test_a_reader_that_lags_at_the_end_reads_the_rest_from_the_journal(autojump_clock):
    """I33"""
    numbers = Numbers(1, limit=2)
    assert await numbers.read(1) == [1]
    numbers.tell(2, 3, 4, 5)
    numbers.is_over = True
    for feed in numbers.feeds:
        feed.end()
    assert await numbers.read(4) == [2, 3, 4, 5]
    with pytest.raises(StopAsyncIteration):
        await anext(numbers.following)
