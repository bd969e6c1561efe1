"""When a schedule is due: once, or by cron in a time zone (B18). Pure: the present is handed in.

What happens at a change of clocks follows Debian's cron. A job at fixed times ("30 2 * * *") fires once a day: at the end of the gap if its time is skipped, and the first
time if its time comes twice. A job with a star in minute or hour ("*/10 * * * *") fires at every minute that the clock on the wall really shows and that matches.

cronsim knows the calendar; it is only ever given wall time without a zone. Its own handling of zones loses fires in zones that shift by half an hour, and can return
an instant of the past within a repeated hour.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import copy
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice, pairwise
from typing import TypeAlias
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from trouper._errors import CommandRejected
from trouper.core.values import frozen

MIN_INTERVAL_S = 60.0
EXPRESSION_MAX_CHARS = 200
#: Longer than any repeated or skipped stretch of wall time, a dropped day included.
_SHIFT_MAX_S = 25 * 3_600
#: One day has 1,440 minutes; a few more fires than that show every interval within a day, and across midnight.
_INTERVAL_SAMPLE = 1_500
_SECOND = timedelta(seconds=1)
_CALENDAR_ENDS = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(\.\d+)?([Zz]|[+-]\d\d:\d\d)\Z", re.ASCII)


class InvalidSchedule(CommandRejected):
    """A schedule that cannot be: bad expression, zone or time; or neither of cron and time, or both."""


@frozen
class OneShot:
    at: float


@frozen
class Cron:
    """Five fields: minute, hour, day of month, month, day of week; read in `zone`, an IANA name."""

    expression: str
    zone: str = "UTC"


When: TypeAlias = OneShot | Cron


def parse_when(
    *,
    now: float,
    cron: object = None,
    at: object = None,
    zone: object = None,
    min_interval_s: float = MIN_INTERVAL_S,
) -> When:
    """Exactly one of `cron` and `at` (RFC 3339). What is wrong with anything else is said so that a model can put it right."""
    if (cron in (None, "")) == (at in (None, "")):
        raise InvalidSchedule(
            "a schedule has exactly one of cron (recurring) and at (once); give one of the two", cron=cron, at=at
        )
    # Also of a time, which says its own offset: an unknown one is a mistake that should not go unseen.
    known_zone = _checked_zone(zone)
    if at not in (None, ""):
        instant = parse_instant(at)
        if instant <= now:
            raise InvalidSchedule(f"{at!r} is in the past; give a time to come", at=at)
        if instant >= _CALENDAR_ENDS:
            raise InvalidSchedule(f"{at!r} is further off than calendars go; give a time before the year 9999", at=at)
        return OneShot(instant)
    when = Cron(_checked_expression(cron), known_zone)
    if next_fire(when, now) is None:
        raise InvalidSchedule(f"cron expression {cron!r} never comes true; change its day or month", cron=cron)
    shortest = shortest_interval_s(when.expression, now) if min_interval_s > MIN_INTERVAL_S else MIN_INTERVAL_S
    if shortest < min_interval_s:
        raise InvalidSchedule(
            f"cron expression {cron!r} fires every {shortest:g} s at its densest, and {min_interval_s:g} s is the shortest allowed; "
            "fire less often",
            cron=cron,
        )
    return when


def parse_instant(text: object) -> float:
    """Seconds since 1970 of an RFC 3339 time. It has to say its offset: a time without one means nothing here."""
    found = _RFC3339.match(text.strip()) if isinstance(text, str) else None
    if found is not None:
        day, clock, fraction, offset = found.groups()
        try:
            whole = datetime.fromisoformat(f"{day}T{clock}{'+00:00' if offset in 'Zz' else offset}")
            return whole.timestamp() + float(fraction or 0)
        except (ValueError, OverflowError):
            pass
    raise InvalidSchedule(
        f"{text!r} is not an RFC 3339 time; write it like '2026-04-16T15:30:00Z' or '2026-04-16T17:30:00+02:00'",
        at=text,
    )


def next_fire(when: When, after: float) -> float | None:
    """The first time it is due, strictly after `after`; `None` if never."""
    if isinstance(when, OneShot):
        return when.at if when.at > after else None
    zone = _zone(when.zone)
    wall = _wall(zone, after)
    if when.zone == "UTC":
        return next((found.replace(tzinfo=UTC).timestamp() for found in _walls(when.expression, wall)), None)
    if _is_fixed(when.expression):
        fires = (_once(zone, found) for found in _walls(when.expression, wall))
        return next((fire for fire in fires if fire > after), None)
    fire = _first_real(when.expression, zone, wall, after)
    change = _change(zone, int(after), int(after) + _SHIFT_MAX_S)
    if change is None or (fire is not None and fire < change):
        return fire
    # Past the change the wall may show a time that it has shown before, so the search starts again from there.
    return _first_real(when.expression, zone, _wall(zone, change) - _SECOND, change - 1)


def fires(when: When, after: float) -> Iterator[float]:
    """All that are due strictly after `after`, in order."""
    fire = next_fire(when, after)
    while fire is not None:
        yield fire
        fire = next_fire(when, fire)


def newest_fires(when: When, first: float, until: float, limit: int) -> tuple[float, ...]:
    """The newest `limit` fires of `first`, which is one, to `until`, both included. Quick however long ago `first` is."""
    for back_s in (3_600.0, 86_400.0, 31 * 86_400.0, 366 * 86_400.0):
        start = until - back_s
        if start <= first:
            break
        found = _up_to(when, start, until)
        if len(found) >= limit:
            return found[-limit:]
    return (first, *_up_to(when, first, until))[-limit:]


def count_fires(when: When, first: float, until: float, limit: int) -> int:
    """How many are due from `first`, which is one, to `until`; no more than `limit` are counted."""
    count = 1
    for fire in islice(fires(when, first), limit - 1):
        if fire > until:
            break
        count += 1
    return count


def shortest_interval_s(expression: str, now: float) -> float:
    """The least time between two fires, by the calendar alone."""
    start = datetime.fromtimestamp(now, UTC).replace(tzinfo=None)
    walls = tuple(islice(_walls(expression, start), _INTERVAL_SAMPLE))
    return min(((b - a).total_seconds() for a, b in pairwise(walls)), default=float("inf"))


def _up_to(when: When, after: float, until: float) -> tuple[float, ...]:
    found: list[float] = []
    for fire in fires(when, after):
        if fire > until:
            break
        found.append(fire)
    return tuple(found)


def _first_real(expression: str, zone: ZoneInfo, wall: datetime, after: float) -> float | None:
    """The first instant after `after` at which the wall shows a matching time later than `wall`."""
    for found in _walls(expression, wall):
        for fold in (0, 1):
            instant = found.replace(tzinfo=zone, fold=fold).timestamp()
            if instant > after and _wall(zone, instant) == found:
                return instant
    return None


def _once(zone: ZoneInfo, wall: datetime) -> float:
    """The instant of a wall time: the first of two, and the end of the gap if there is none."""
    instant = wall.replace(tzinfo=zone, fold=0).timestamp()
    if _wall(zone, instant) == wall:
        return instant
    # Read with the new offset, a skipped time lies before the change; read with the old one, after it.
    change = _change(zone, int(wall.replace(tzinfo=zone, fold=1).timestamp()), int(instant))
    return instant if change is None else float(change)


def _change(zone: ZoneInfo, low: int, high: int) -> int | None:
    """The first second after `low` with another offset than `low`, if `high` has another one."""
    old = _offset(zone, low)
    if _offset(zone, high) == old:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(zone, middle) == old:
            low = middle
        else:
            high = middle
    return high


def _walls(expression: str, after: datetime) -> Iterator[datetime]:
    # Parsing takes as long as the search for the next day; a copy with another start does without it.
    walls = copy(_parsed(expression))
    walls.dt = after.replace(microsecond=0)
    return walls


@lru_cache(maxsize=256)
def _parsed(expression: str) -> CronSim:
    return CronSim(expression, datetime(2000, 1, 1))


def _wall(zone: ZoneInfo, at: float) -> datetime:
    return datetime.fromtimestamp(at, zone).replace(tzinfo=None, fold=0, microsecond=0)


def _offset(zone: ZoneInfo, at: int) -> timedelta | None:
    return datetime.fromtimestamp(at, zone).utcoffset()


def _is_fixed(expression: str) -> bool:
    minute, hour, *_ = expression.split()
    return not minute.startswith("*") and not hour.startswith("*")


def _checked_expression(cron: object) -> str:
    if isinstance(cron, str) and len(cron) <= EXPRESSION_MAX_CHARS:
        expression = " ".join(cron.split())
        reason = "it needs 5 fields"
        if expression.count(" ") == 4:
            try:
                _parsed(expression)
                return expression
            except (CronSimError, AssertionError, ValueError) as error:
                reason = str(error).lower() or "it makes no sense"
    else:
        reason = f"it is text of at most {EXPRESSION_MAX_CHARS} characters"
    shown = cron[:60] if isinstance(cron, str) else cron
    raise InvalidSchedule(
        f"cron expression {shown!r} is not valid ({reason}); write minute, hour, day, month and weekday, like '*/10 * * * *'",
        cron=cron,
    )


def _checked_zone(zone: object) -> str:
    if zone is None or zone == "":
        return "UTC"
    if isinstance(zone, str) and zone != "localtime":
        try:
            _zone(zone)
            return zone
        except (KeyError, ValueError, OSError):
            pass
    raise InvalidSchedule(f"time zone {zone!r} is not known; give an IANA name like 'Europe/Berlin'", zone=zone)


def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)  # Cached by zoneinfo itself.
