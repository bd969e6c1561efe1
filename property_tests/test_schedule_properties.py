"""I32 and B18: any cron in any zone, any policy; clocks, crashes and cancels drawn by hypothesis."""

from __future__ import annotations

from collections import Counter
from functools import reduce

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trouper._errors import CommandRejected
from trouper.core import schedule as s
from trouper.core.cron import count_fires, fires, newest_fires, next_fire
from trouper.core.ids import ScheduleId

T0 = 1_767_225_600.0
DAY = 86_400.0
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "Africa/Cairo",
    "Antarctica/Troll",
]

minutes = st.sampled_from(["0", "30", "*/15", "*/7", "5,50", "10-20/5", "*"])
hours = st.sampled_from(["*", "2", "0", "1,2,3", "*/6", "0-3", "23"])
days = st.sampled_from(["*", "1", "*/10", "L", "15,31"])
weekdays = st.sampled_from(["*", "1-5", "0", "SUN#1"])
crons = st.builds(
    lambda minute, hour, day, weekday, zone: s.Cron(f"{minute} {hour} {day} * {weekday}", zone),
    minutes, hours, days, weekdays, st.sampled_from(ZONES),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(crons, st.floats(T0, T0 + 400 * DAY))
def test_fires_rise_and_none_hides_between_two(cron: s.Cron, after: float) -> None:
    """The next fire after any instant between two fires is the second of them: what is asked when changes nothing."""
    first = next_fire(cron, after)
    assert first is not None and first > after and first % 60 == 0
    second = next_fire(cron, first)
    assert second is not None and second >= first + 60
    for share in (0.001, 0.5, 0.999):
        assert next_fire(cron, first + (second - first) * share) == second
    assert next_fire(cron, first - 0.001) == first


@settings(max_examples=100, deadline=None)
@given(crons, st.integers(1, 30), st.integers(0, 40), st.integers(1, 12))
def test_the_newest_and_the_count_agree_with_the_list(cron: s.Cron, start_day: int, days_long: int, limit: int) -> None:
    first = next_fire(cron, T0 + start_day * DAY)
    assert first is not None
    until = first + days_long * 3_600.0
    listed = [first]
    for fire in fires(cron, first):
        if fire > until:
            break
        listed.append(fire)
    assert newest_fires(cron, first, until, limit) == tuple(listed[-limit:])
    assert count_fires(cron, first, until, 10_000) == len(listed)


class ScheduleMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = s.Schedules()
        self.records: list[s.ScheduleEvent] = []
        self.acts: Counter[tuple[ScheduleId, int]] = Counter()
        self.cancelled: set[ScheduleId] = set()
        self.clock = T0
        self.made = 0

    def step(self, command: s.ScheduleCommand) -> tuple[s.ScheduleEvent, ...]:
        events = s.decide(self.state, command)
        assert s.decide(self.state, command) == events
        self.records += events
        self.state = reduce(s.evolve, events, self.state)
        return events

    @rule(cron=crons, missed=st.sampled_from(["skip", "once", "all"]), once=st.booleans(), ahead=st.floats(1, 3 * DAY))
    def create(self, cron: s.Cron, missed: s.Missed, once: bool, ahead: float) -> None:
        self.made += 1
        when = s.OneShot(self.clock + ahead) if once else cron
        command = s.CreateSchedule(
            ScheduleId(f"sch_{self.made}"), "x", when, s.ScheduledMessage("x"), self.clock, missed
        )
        try:
            self.step(command)
        except CommandRejected:
            assert len(self.state.active) == 5

    @rule(seconds=st.floats(0, 2 * DAY))
    def wait(self, seconds: float) -> None:
        self.clock += seconds

    @rule(seconds=st.floats(0, DAY / 2))
    def set_the_clock_back(self, seconds: float) -> None:
        self.clock = max(T0, self.clock - seconds)

    @rule()
    def claim(self) -> None:
        self.step(s.ClaimFires(self.clock))
        assert self.step(s.ClaimFires(self.clock)) == ()

    @rule()
    def find_no_place(self) -> None:
        for work in s.outstanding(self.state).values():
            if isinstance(work, s.ActOnFire):
                assert self.step(s.DeferFire(work.schedule_id, work.fire, self.clock))
                self.acts.pop(
                    (work.schedule_id, work.fire), None
                )  # Nothing was done; what comes is a claim of its own.

    @rule(count=st.integers(1, 5))
    def leave_places(self, count: int) -> None:
        waiting = sorted(
            (claim.due, schedule.id)
            for schedule in self.state.active.values()
            for claim in schedule.claims.values()
            if claim.state is s.FireState.WAITING
        )
        resumed = self.step(s.ResumeFires(count, self.clock))
        assert [event.schedule_id for event in resumed] == [name for _, name in waiting[:count]]

    @rule(dies=st.booleans())
    def act(self, dies: bool) -> None:
        for work in s.outstanding(self.state).values():
            if isinstance(work, s.ActOnFire):
                assert work.schedule_id not in self.cancelled  # I32
                self.acts[work.schedule_id, work.fire] += 1
                if dies:
                    self.crash()
                    return
                self.step(s.CompleteFire(work.schedule_id, work.fire, self.clock))

    @rule()
    def crash(self) -> None:
        self.state = reduce(s.evolve, self.records, s.Schedules())
        self.step(s.RecoverFires(self.clock))

    @precondition(lambda self: self.state.active)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(tuple(self.state.active)))
        self.step(s.CancelSchedule(name, self.clock))
        self.cancelled.add(name)

    @invariant()
    def limits_and_claims_hold(self) -> None:
        assert len(self.state.active) <= 5
        assert all(count <= 2 for count in self.acts.values())  # I32: per claim at most twice.
        for schedule in self.state.active.values():
            assert len(schedule.claims) <= s.CLAIMS_MAX
            assert schedule.next_at is not None or schedule.claims

    def teardown(self) -> None:
        assert reduce(s.evolve, self.records, s.Schedules()) == self.state
        for schedule in self.state.active.values():
            mine = [event for event in self.records if getattr(event, "schedule_id", None) == schedule.id]
            claimed = [event.due for event in mine if isinstance(event, s.ScheduleFireClaimed)]
            skips = [event for event in mine if isinstance(event, s.ScheduleFiresSkipped)]
            assert claimed == sorted(set(claimed))
            if any(isinstance(event, s.ScheduleRebased) for event in mine) or not all(skip.exact for skip in skips):
                continue
            until = schedule.next_at if schedule.next_at is not None else float("inf")
            due = 0
            for fire in fires(schedule.when, schedule.created_at):
                if fire >= until:
                    break
                due += 1
            assert len(claimed) + sum(skip.count for skip in skips) == due  # Each due time exactly once.


TestSchedules = ScheduleMachine.TestCase
TestSchedules.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
