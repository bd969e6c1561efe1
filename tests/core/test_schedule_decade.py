"""B18, B20, I32: a decade of schedules in three zones, with crashes, downtime and a clock that gets set; every due time accounted for once."""

from __future__ import annotations

import random
from collections import Counter
from datetime import date, datetime
from functools import reduce
from zoneinfo import ZoneInfo

import pytest

from trouper.core import schedule as s
from trouper.core.cron import fires
from trouper.core.ids import ScheduleId

START, END = date(2026, 1, 1), date(2036, 1, 1)
DAYS = (END - START).days
DAY = 86_400.0


def midnight(day: date, zone: str) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)).timestamp()


BERLIN = s.Cron("30 2 * * *", "Europe/Berlin")
NEW_YORK = s.Cron("0 */6 * * *", "America/New_York")
LORD_HOWE = s.Cron("*/30 2 * * *", "Australia/Lord_Howe")


class World:
    """A wall clock that can be wrong, a disk that holds records, and a process that dies in between."""

    def __init__(self, missed: s.Missed, seed: int) -> None:
        self.random = random.Random(seed)
        self.records: list[s.ScheduleEvent] = []
        self.schedules = self.snapshot = s.Schedules()
        self.snapshot_at = 0
        self.acted: Counter[tuple[ScheduleId, int]] = Counter()
        self.true_time = midnight(START, "UTC") - DAY
        self.error = 0.0
        for number, cron in enumerate((BERLIN, NEW_YORK, LORD_HOWE)):
            name = ScheduleId(f"sch_{number}")
            self.step(s.CreateSchedule(name, "tick", cron, s.ScheduledMessage("tick"), self.now, missed))

    @property
    def now(self) -> float:
        return self.true_time + self.error

    def step(self, command: s.ScheduleCommand) -> None:
        events = s.decide(self.schedules, command)
        self.records.extend(events)
        self.schedules = reduce(s.evolve, events, self.schedules)

    def run(self, until: float) -> None:
        while self.true_time < until:
            timers = [work.at for work in s.outstanding(self.schedules).values() if isinstance(work, s.AwaitDue)]
            self.true_time = max(self.true_time, min(timers) - self.error)
            chance = self.random.random()
            if chance < 0.01:  # The clock is set, by up to an hour, either way; or set right.
                self.error = self.random.choice((0.0, self.random.uniform(-3_600, 3_600)))
            elif chance < 0.015:  # The process is down for a while.
                self.true_time += self.random.choice((60.0, 3_600.0, 3 * DAY)) * self.random.random()
                self.restart()
            self.step(s.ClaimFires(at=self.now))
            self.act(dies=self.random.random() < 0.002)

    def act(self, dies: bool) -> None:
        for work in s.outstanding(self.schedules).values():
            if isinstance(work, s.ActOnFire):
                self.acted[work.schedule_id, work.fire] += 1
                if dies:  # After the act, before its completion is on disk.
                    self.restart()
                    return self.act(dies=False)
                self.step(s.CompleteFire(work.schedule_id, work.fire, at=self.now))
        return None

    def restart(self) -> None:
        # From the last snapshot and what came after it (I12).
        rebuilt = reduce(s.evolve, self.records[self.snapshot_at :], self.snapshot)
        assert rebuilt == self.schedules
        self.schedules = self.snapshot = rebuilt
        self.snapshot_at = len(self.records)
        self.step(s.RecoverFires(at=self.now))


def test_the_calendar_of_a_decade_is_what_arithmetic_says() -> None:
    """Counted without any cron: a fixed time fires once a day; a starred one loses what ten springs skip, and nothing else."""
    counts = {}
    for cron in (BERLIN, NEW_YORK, LORD_HOWE):
        start, end = midnight(START, cron.zone), midnight(END, cron.zone)
        count = 0
        for fire in fires(cron, start - 1):
            if fire >= end:
                break
            count += 1
        counts[cron.zone] = count
    assert counts == {"Europe/Berlin": DAYS, "America/New_York": 4 * DAYS, "Australia/Lord_Howe": 2 * DAYS - 10}


@pytest.mark.parametrize(("missed", "seed"), [("once", 1), ("skip", 2), ("all", 3)])
def test_a_decade_with_crashes_and_wrong_clocks_accounts_for_every_due_time_once(missed: s.Missed, seed: int) -> None:
    world = World(missed, seed)
    until = midnight(date(2036, 1, 1) if missed == "once" else date(2028, 1, 1), "UTC")
    world.run(until)
    assert reduce(s.evolve, world.records, s.Schedules()) == world.schedules  # I10
    for number, cron in enumerate((BERLIN, NEW_YORK, LORD_HOWE)):
        name = ScheduleId(f"sch_{number}")
        mine = [event for event in world.records if getattr(event, "schedule_id", None) == name]
        claimed = [event.due for event in mine if isinstance(event, s.ScheduleFireClaimed)]
        skipped = sum(event.count for event in mine if isinstance(event, s.ScheduleFiresSkipped))
        schedule = world.schedules.active[name]
        assert schedule.next_at is not None
        expected = []
        for fire in fires(cron, schedule.created_at):
            if fire >= schedule.next_at:
                break
            expected.append(fire)
        assert claimed == sorted(set(claimed)) and set(claimed) <= set(expected)
        assert len(claimed) + skipped == len(expected)
        assert skipped < len(expected) / 10 and (skipped > 0 or missed == "all")
        acts = [world.acted[name, event.fire] for event in mine if isinstance(event, s.ScheduleFireClaimed)]
        assert set(acts) <= {1, 2}  # Each claim was acted on, and no claim more than twice (I32).
        assert schedule.abandoned == 0 and not schedule.claims
    assert 2 in world.acted.values()  # Crashes did come between act and completion.
