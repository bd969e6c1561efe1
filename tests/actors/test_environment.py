"""A wall clock may leap anywhere, and what is written down stays a date (J6)."""

from __future__ import annotations

import math
import time
from typing import Any

import attrs
import pytest

from trouper import ConfigError
from trouper.actors.environment import EARLIEST_S, LATEST_S, within_calendar
from trouper.models import Scripted, reply

YEAR_10000_S = 253_402_300_800.0


@pytest.mark.parametrize("at", [YEAR_10000_S, 1.7e12, -1e12, math.inf, -math.inf, math.nan, None, "noon", True])
async def test_a_clock_that_says_no_date_is_refused_by_name(autojump_clock: Any, open_checked: Any, at: Any) -> None:
    """1.7e12 is a clock of milliseconds."""
    environment = attrs.evolve(open_checked.environment(), now=lambda: at)
    with pytest.raises(ConfigError, match="give seconds since the epoch"):
        async with open_checked(environment=environment):
            raise AssertionError("opened")


@pytest.mark.parametrize("leap", [YEAR_10000_S, 1e300, math.inf, math.nan, 0.0, -5.0, -1e12, -math.inf])
async def test_a_clock_that_leaps_while_a_session_is_open_keeps_nobody_from_going_on(
    autojump_clock: Any, open_checked: Any, leap: float
) -> None:
    """J6, B20: a session that had something to tell failed for good, and the memory with a bare ValueError."""
    at = 1.7e9
    model = Scripted([reply("Noted.")], exhausted="repeat")
    async with open_checked(model, environment=attrs.evolve(open_checked.environment(), now=lambda: at)) as runtime:
        session = await runtime.session("s")
        await session.ask("go")
        at = leap
        await session.notify("Ding", "dong")
        async for _ in session.events():
            if not session.pending_notifications():
                break
        await session.create_schedule(title="Daily", cron="0 9 * * *", message="Good morning")
        await runtime.memory.remember("scope", "key", 1)
        assert (await runtime.memory.recall("scope", "key")).value == 1
        assert (await session.ask("go on")).text == "Noted."


def test_a_time_that_has_no_date_is_the_last_one_that_has() -> None:
    told = [within_calendar(lambda at=at: at)() for at in (5.0, math.inf, -math.inf, math.nan)]  # type: ignore[misc]
    assert told == [5.0, LATEST_S, EARLIEST_S, EARLIEST_S]
    assert within_calendar(time.time) is time.time
