"""How long a turn waits for calls that can go on without it (B1)."""

from __future__ import annotations

from typing import Any, cast

from attrs import frozen
from trio.testing import MockClock

from trouper.actors.allowance import TOGETHER_S, Allowance
from trouper.actors.deadlines import Deadlines
from trouper.actors.run import Run
from trouper.core.ids import CallId


@frozen
class Begun:
    call: CallId


def begin(allowance: Allowance, name: str) -> None:
    allowance.begin(cast("Run", Begun(CallId(name))))


def nobody(_: Any) -> None:
    raise AssertionError("it was not over")


async def test_the_last_of_those_that_begin_together_has_its_whole_budget(mock_clock: MockClock) -> None:
    """B1: in time is in time, however many there are."""
    allowance = Allowance(0.3, Deadlines(), nobody)
    begin(allowance, "first")
    mock_clock.jump(TOGETHER_S / 2)
    assert allowance.has_room(0.3)
    begin(allowance, "second")
    assert allowance.deadline == mock_clock.current_time() + 0.3


async def test_who_comes_later_or_has_another_budget_does_not_put_the_others_off(mock_clock: MockClock) -> None:
    """B1: a call that begins all the time would otherwise keep the turn from ever going on."""
    allowance = Allowance(0.3, Deadlines(), nobody)
    begin(allowance, "first")
    assert not allowance.has_room(0.2)
    mock_clock.jump(TOGETHER_S / 2)
    begin(allowance, "second")
    mock_clock.jump(TOGETHER_S)
    assert not allowance.has_room(0.3)


async def test_what_is_over_takes_nobody_in(mock_clock: MockClock) -> None:
    """A budget may be shorter than the time within which calls begin together; and when its last call has ended, nobody watches it any more."""
    short = Allowance(TOGETHER_S / 10, Deadlines(), nobody)
    begin(short, "first")
    mock_clock.jump(TOGETHER_S / 10)
    assert not short.has_room(TOGETHER_S / 10)
    ended = Allowance(0.3, Deadlines(), nobody)
    begin(ended, "first")
    ended.end(CallId("first"))
    assert not ended.has_room(0.3)
