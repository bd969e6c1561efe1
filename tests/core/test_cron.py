"""When schedules are due (B18): parsing, zones, changes of clocks."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from trouper._errors import CommandRejected
from trouper.core.cron import (
    Cron,
    InvalidSchedule,
    OneShot,
    count_fires,
    fires,
    newest_fires,
    next_fire,
    parse_instant,
    parse_when,
    shortest_interval_s,
)

NOW = datetime(2026, 1, 1, tzinfo=ZoneInfo("UTC")).timestamp()


def at(text: str, zone: str = "UTC", fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def walls(cron: Cron, start: str, count: int) -> list[str]:
    zone = ZoneInfo(cron.zone)
    found = fires(cron, at(start, cron.zone))
    return [datetime.fromtimestamp(next(found), zone).strftime("%m-%d %H:%M%z") for _ in range(count)]


# --- parsing ---


def test_exactly_one_of_cron_and_time() -> None:
    """B18."""
    with pytest.raises(InvalidSchedule, match="exactly one of cron"):
        parse_when(now=NOW)
    with pytest.raises(InvalidSchedule, match="give one of the two"):
        parse_when(now=NOW, cron="* * * * *", at="2030-01-01T00:00:00Z")
    assert parse_when(now=NOW, cron=" */10  * * * * ", zone="America/Chicago") == Cron(
        "*/10 * * * *", "America/Chicago"
    )
    assert parse_when(now=NOW, at="2030-01-01T00:00:00Z") == OneShot(at("2030-01-01T00:00:00"))
    assert parse_when(now=NOW, cron="* * * * *", at="", zone="") == Cron("* * * * *")


def test_bad_input_is_the_callers_to_mend() -> None:
    """B18: bad input is a clear error."""
    assert issubclass(InvalidSchedule, CommandRejected)


@pytest.mark.parametrize(
    "text",
    [
        "tomorrow at noon", "2026-04-16", "2026-04-16T15:30:00", "2026-04-16T15:30Z", "20260416T153000Z", "2026-02-30T00:00:00Z",
        "2026-04-16T25:00:00Z", "2026-04-16T15:30:00+99:00", "2026-W01-1T00:00:00Z", "٢٠٢٦-04-16T15:30:00Z", 17, True, [], "0001-01-01T00:00:00+23:59\n;",
    ],
)  # fmt: skip
def test_what_is_not_rfc_3339_is_refused(text: object) -> None:
    with pytest.raises(InvalidSchedule, match="write it like"):
        parse_instant(text)


@pytest.mark.parametrize(
    "text",
    [
        "2026-04-16T15:30:00Z",
        "2026-04-16t15:30:00z",
        "2026-04-16 15:30:00Z",
        "2026-04-16T17:30:00+02:00",
        " 2026-04-16T15:30:00.000000000Z ",
    ],
)
def test_what_is_rfc_3339_is_understood(text: str) -> None:
    assert parse_instant(text) == at("2026-04-16T15:30:00")


def test_fractions_count() -> None:
    assert parse_instant("2026-04-16T15:30:00.25Z") == at("2026-04-16T15:30:00") + 0.25


def test_the_past_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match="is in the past"):
        parse_when(now=NOW, at="2025-12-31T23:59:59Z")


@pytest.mark.parametrize(
    "cron",
    [
        "",
        "* * * *",
        "* * * * * *",
        "61 * * * *",
        "*/0 * * * *",
        "@hourly",
        "a b c d e",
        "5-1 * * * *",
        "* * 31 2 *",
        7,
        ["*"],
        "* " * 500,
    ],
)
def test_bad_cron_is_refused(cron: object) -> None:
    with pytest.raises(InvalidSchedule):
        parse_when(now=NOW, cron=cron)


def test_cron_that_never_comes_true_is_refused() -> None:
    with pytest.raises(InvalidSchedule):
        parse_when(now=NOW, cron="0 0 30 2 *")


@pytest.mark.parametrize(
    "zone", ["Mars/Olympus", "../../etc/passwd", "/etc/passwd", "America", "localtime", 3, "Europe/Berlin\0"]
)
def test_unknown_zones_are_refused(zone: object) -> None:
    """B18: bad input is a clear error, also where a time says its own offset."""
    with pytest.raises(InvalidSchedule, match="IANA"):
        parse_when(now=NOW, cron="* * * * *", zone=zone)
    with pytest.raises(InvalidSchedule, match="IANA"):
        parse_when(now=NOW, at="2030-01-01T00:00:00Z", zone=zone)


def test_the_shortest_interval_is_heeded_wherever_it_hides() -> None:
    """B18: shortest interval 60 s by default."""
    assert parse_when(now=NOW, cron="* * * * *") == Cron("* * * * *")
    for cron in ("*/4 * * * *", "0,1 0 1 1 *", "0 0,23 * * *"):
        with pytest.raises(InvalidSchedule, match="3601 s is the shortest allowed"):
            parse_when(now=NOW, cron=cron, min_interval_s=3_601)
    assert parse_when(now=NOW, cron="0 */2 * * *", min_interval_s=3_601)
    assert shortest_interval_s("0,1 0 1 1 *", NOW) == 60
    assert shortest_interval_s("0 0,23 * * *", NOW) == 3_600


# --- zones ---


def test_a_fixed_time_that_is_skipped_fires_at_the_end_of_the_gap() -> None:
    """B18: DST gaps."""
    assert walls(Cron("30 2 * * *", "Europe/Berlin"), "2024-03-30T12:00:00", 2) == [
        "03-31 03:00+0200",
        "04-01 02:30+0200",
    ]


def test_two_fixed_times_in_one_gap_fire_once() -> None:
    assert walls(Cron("0,30 2 * * *", "Europe/Berlin"), "2024-03-30T12:00:00", 2) == [
        "03-31 03:00+0200",
        "04-01 02:00+0200",
    ]


def test_a_fixed_time_that_comes_twice_fires_the_first_time_only() -> None:
    """B18: DST repeats."""
    cron = Cron("30 2 * * *", "Europe/Berlin")
    assert walls(cron, "2024-10-26T12:00:00", 2) == ["10-27 02:30+0200", "10-28 02:30+0100"]
    # Asked in the middle of the second pass, it does not return to the first.
    assert next_fire(cron, at("2024-10-27T02:10:00", "Europe/Berlin", fold=1)) == at(
        "2024-10-28T02:30:00", "Europe/Berlin"
    )


def test_a_starred_time_fires_at_each_pass_and_at_none_that_is_skipped() -> None:
    cron = Cron("30 * * * *", "America/New_York")
    assert walls(cron, "2024-11-03T00:45:00", 3) == ["11-03 01:30-0400", "11-03 01:30-0500", "11-03 02:30-0500"]
    assert walls(cron, "2024-03-10T00:45:00", 2) == ["03-10 01:30-0500", "03-10 03:30-0400"]


def test_zones_that_shift_by_half_an_hour_lose_nothing() -> None:
    cron = Cron("*/10 2 * * *", "Australia/Lord_Howe")
    assert [text[6:11] for text in walls(cron, "2024-04-06T23:00:00", 6)] == [
        "02:00",
        "02:10",
        "02:20",
        "02:30",
        "02:40",
        "02:50",
    ]


def test_a_day_that_never_was_is_made_up_for_once() -> None:
    """Samoa went from 29 to 31 December 2011."""
    assert walls(Cron("0 9 * * *", "Pacific/Apia"), "2011-12-28T12:00:00", 3) == [
        "12-29 09:00-1000",
        "12-31 00:00+1400",
        "12-31 09:00+1400",
    ]


def _matches(expression: str, wall: datetime) -> bool:
    return bool(next(CronSim(expression, wall - timedelta(seconds=1))) == wall)


def _by_watching_the_clock(cron: Cron, start: int, hours: int) -> list[float]:
    """The specification, minute by minute: slow, and plain to see."""
    zone, found = ZoneInfo(cron.zone), []
    starred = any(field.startswith("*") for field in cron.expression.split()[:2])
    latest = datetime.fromtimestamp(start, zone).replace(tzinfo=None, fold=0)
    for instant in range(start + 60, start + hours * 3_600 + 1, 60):
        wall = datetime.fromtimestamp(instant, zone).replace(tzinfo=None, fold=0)
        if starred:
            due = _matches(cron.expression, wall)
        else:  # Whatever the hand of the clock moved onto, or past, for the first time.
            due, minute = False, latest + timedelta(minutes=1)
            while minute <= wall:
                due = due or _matches(cron.expression, minute)
                minute += timedelta(minutes=1)
            latest = max(latest, wall)
        if due:
            found.append(float(instant))
    return found


CHANGES = [
    ("Europe/Berlin", "2024-03-30T20:00:00"),
    ("Europe/Berlin", "2024-10-26T20:00:00"),
    ("Australia/Lord_Howe", "2024-04-06T20:00:00"),
    ("Australia/Lord_Howe", "2024-10-05T20:00:00"),
    ("America/Sao_Paulo", "2018-11-03T20:00:00"),  # The gap is at midnight.
    ("America/Sao_Paulo", "2018-02-17T20:00:00"),
    ("Antarctica/Casey", "2023-03-08T20:00:00"),  # Three hours at once.
    ("Africa/Cairo", "2024-10-31T20:00:00"),
]


@pytest.mark.parametrize(("zone", "start"), CHANGES)
@pytest.mark.parametrize(
    "expression",
    [
        "*/10 2 * * *",
        "30 2 * * *",
        "*/30 * * * *",
        "0 0 * * *",
        "*/7 0-3 * * *",
        "0,30 1,2,3 * * *",
        "15 0,1,23 * * *",
        "0 */2 * * *",
    ],
)
def test_around_a_change_of_clocks_it_agrees_with_watching_the_clock(expression: str, zone: str, start: str) -> None:
    """B18: DST gaps and repeats, from every half hour on."""
    cron, begin = Cron(expression, zone), int(at(start, zone))
    expected = _by_watching_the_clock(cron, begin, 12)
    assert _until(cron, begin, begin + 12 * 3_600) == expected
    for after in range(begin, begin + 11 * 3_600, 1_800):
        known = next((fire for fire in expected if fire > after), None)
        if known is not None:
            assert next_fire(cron, after + 0.5) == next(fire for fire in expected if fire > after + 0.5)


def _until(cron: Cron, after: float, until: float) -> list[float]:
    found = []
    for fire in fires(cron, after):
        if fire > until:
            break
        found.append(fire)
    return found


# --- many at once ---


def test_the_newest_of_a_decade_of_minutes_are_found_at_once() -> None:
    cron, until = Cron("* * * * *"), NOW + 10 * 366 * 86_400
    assert newest_fires(cron, NOW, until, 3) == (until - 120, until - 60, until)
    assert count_fires(cron, NOW, until, 500) == 500


def test_the_newest_of_a_few_are_all_of_them() -> None:
    cron = Cron("0 0 1 1 *")
    first = at("2027-01-01T00:00:00")
    assert newest_fires(cron, first, at("2029-06-01T00:00:00"), 10) == (
        first, at("2028-01-01T00:00:00"), at("2029-01-01T00:00:00"),
    )  # fmt: skip
    assert newest_fires(cron, first, first, 10) == (first,)
    assert count_fires(cron, first, at("2029-06-01T00:00:00"), 10) == 3


def test_one_shots_are_due_once() -> None:
    assert next_fire(OneShot(5.0), 4.9) == 5.0 and next_fire(OneShot(5.0), 5.0) is None
    assert newest_fires(OneShot(5.0), 5.0, 99.0, 10) == (5.0,) and count_fires(OneShot(5.0), 5.0, 99.0, 10) == 1
