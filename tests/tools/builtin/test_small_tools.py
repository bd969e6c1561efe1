"""Clock, arithmetic, weather, todos, echo and progress (T12)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tool_bench import Heard, call, context_at

from trouper.tools import InvalidArguments, ToolContext, ToolError
from trouper.tools.builtin import (
    add,
    divide,
    echo,
    get_current_time,
    get_forecast,
    get_weather,
    multiply,
    report_progress,
    subtract,
    write_todos,
)


@pytest.mark.parametrize(
    ("zone", "time", "offset"),
    [
        ("UTC", "2026-03-29T00:59:30+00:00", "+00:00"),
        # Thirty seconds before summer time begins in Berlin.
        ("Europe/Berlin", "2026-03-29T01:59:30+01:00", "+01:00"),
        ("Asia/Kathmandu", "2026-03-29T06:44:30+05:45", "+05:45"),
        ("America/St_Johns", "2026-03-28T22:29:30-02:30", "-02:30"),
        ("+02:00", "2026-03-29T02:59:30+02:00", "+02:00"),
        ("UTC-3", "2026-03-28T21:59:30-03:00", "-03:00"),
    ],
)
async def test_time_is_told_in_any_zone(zone: str, time: str, offset: str, tmp_path: Path) -> None:
    told = await call(get_current_time, context_at(tmp_path), timezone=zone)
    assert (told["time"], told["utc_offset"], told["unix_s"]) == (time, offset, 1774745970)


@pytest.mark.parametrize(
    "zone", ["Mars/Base", "../../etc/passwd", "/etc/passwd", "America", "+99:00", "Europe/Berlin\0", "é"]
)
async def test_unknown_zone_is_an_error_for_the_model(zone: str, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="not known"):
        await call(get_current_time, context_at(tmp_path), timezone=zone)


@pytest.mark.parametrize(
    ("tool", "a", "b", "expected"),
    [
        (add, 5, 3, 8),
        (add, 0.5, 1, 1.5),
        (subtract, 5, 8, -3),
        (multiply, 12345678901, 3, 37037036703),
        (multiply, 2**62, 4, float(2**64)),
        (divide, 6, 3, 2),
        (divide, 1, 4, 0.25),
        (divide, -7, 2, -3.5),
        (divide, 2**63 - 1, 1, 2**63 - 1),
        (add, -(2**63), 1, -(2**63) + 1),
        (add, 2**63 - 1, 2, 2**63 + 1),
        (subtract, -(2**63), 1, float(-(2**63) - 1)),
    ],
)
async def test_arithmetic(tool: Any, a: float, b: float, expected: float) -> None:
    found = (await call(tool, a=a, b=b))["result"]
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("tool", "a", "b", "said"),
    [
        (divide, 1, 0, "by zero"),
        (divide, 1.5, 0.0, "by zero"),
        (multiply, 1e308, 10, "too large"),
        (add, 1.7e308, 1.7e308, "too large"),
        (add, 2**64, 1, "64 bits"),
        (divide, 1e308, 1e-10, "too large"),
    ],
)
async def test_arithmetic_that_cannot_be_told_is_an_error(tool: Any, a: float, b: float, said: str) -> None:
    """T12: out-of-range arguments are errors, not silent zeros."""
    with pytest.raises(ToolError, match=said):
        await call(tool, a=a, b=b)


@pytest.mark.parametrize(
    "arguments", [{"a": "one", "b": 2}, {"a": True, "b": 2}, {"a": 1}, {"a": [1], "b": 2}, {"a": 1, "b": 2, "c": 3}]
)
async def test_arithmetic_on_what_is_no_number_is_an_error(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArguments):
        await call(add, **arguments)


async def test_weather_is_the_same_twice_and_says_that_it_is_made_up() -> None:
    once, twice = await call(get_weather, location="Berlin"), await call(get_weather, location="  berlin ")
    assert once | {"location": ""} == twice | {"location": ""}
    assert "Demo data" in once["note"]
    other = await call(get_weather, location="Berlin", units="fahrenheit")
    assert other["temperature"] == round(once["temperature"] * 9 / 5 + 32)


async def test_forecast_has_the_days_asked_for() -> None:
    assert [day["day"] for day in (await call(get_forecast, location="Oslo", days=14))["forecast"]] == list(
        range(1, 15)
    )
    for days in (0, 15, -1):
        with pytest.raises(InvalidArguments):
            await call(get_forecast, location="Oslo", days=days)
    with pytest.raises(ToolError, match="blank"):
        await call(get_forecast, location="  ")


async def test_todos_are_checked_and_shown() -> None:
    heard = Heard()
    todos = [
        {"content": "plan", "status": "completed"},
        {"content": "build", "status": "in_progress"},
        {"content": "rest"},
    ]
    told = await call(write_todos, ToolContext(sink=heard), todos=todos)
    assert (told["completed"], told["total"], told["todos"][2]["status"]) == (1, 3, "pending")
    assert heard.reports == [(1, 3, "todos", "build")]


@pytest.mark.parametrize(
    ("todos", "said"),
    [
        ([{"content": "a", "status": "in_progress"}, {"content": "b", "status": "in_progress"}], "one at a time"),
        ([{"content": "a"}, {"content": "a"}], "twice"),
    ],
)
async def test_todos_that_make_no_plan_are_errors(todos: list[dict[str, str]], said: str) -> None:
    with pytest.raises(ToolError, match=said):
        await call(write_todos, todos=todos)


async def test_echo_says_it_back() -> None:
    assert await call(echo, message="hällo") == {"echoed": "hällo"}


async def test_progress_reaches_whoever_listens() -> None:
    heard = Heard()
    await call(report_progress, ToolContext(sink=heard), message="Reading", percent=40)
    await call(report_progress, ToolContext(sink=heard), message="Thinking")
    assert heard.reports == [(40, 100, "%", "Reading"), (None, None, "", "Thinking")]
    with pytest.raises(InvalidArguments):
        await call(report_progress, message="x", percent=101)
