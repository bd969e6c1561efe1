"""Schedules (B18-B20, I32) at the level of decide and evolve."""

from __future__ import annotations

from functools import reduce

import pytest
from attrs import evolve as change

from trouper._errors import CommandRejected, InternalError
from trouper.core import schedule as s
from trouper.core.ids import ScheduleId, TaskId
from trouper.core.lifecycle import terminal_states

ID = ScheduleId("sch_1")
#: A whole hour, so that cron is easy to follow.
T0 = 1_767_225_600.0
HOURLY = s.Cron("0 * * * *")
RUN = s.ScheduledRun("dig", {"depth": 2}, "dig a little")
HOUR = 3_600.0


def create(when: s.When = HOURLY, number: int = 1, **changes: object) -> s.CreateSchedule:
    command = s.CreateSchedule(ScheduleId(f"sch_{number}"), "digging", when, RUN, at=T0)
    return change(command, **changes)  # type: ignore[arg-type]


def run(state: s.Schedules, *commands: s.ScheduleCommand) -> s.Schedules:
    for command in commands:
        state = reduce(s.evolve, s.decide(state, command), state)
    return state


def the(schedules: s.Schedules, number: int = 1) -> s.Schedule:
    found = schedules.get(f"sch_{number}")
    assert found is not None
    return found


def dues(schedules: s.Schedules) -> list[float]:
    return [claim.due for claim in the(schedules).claims.values()]


def test_a_schedule_waits_for_its_time_and_claims_before_it_acts() -> None:
    """B18: claimed and journaled before it acts, completed after; B19: a fire starts the run directly."""
    schedules = run(s.Schedules(), create())
    assert s.outstanding(schedules) == {("due", ID, T0 + HOUR): s.AwaitDue(ID, T0 + HOUR)}
    assert s.decide(schedules, s.ClaimFires(at=T0 + HOUR - 1)) == ()
    (claimed,) = s.decide(schedules, s.ClaimFires(at=T0 + HOUR + 0.1))
    assert claimed == s.ScheduleFireClaimed(ID, 1, T0 + HOUR, T0 + 2 * HOUR, T0 + HOUR + 0.1)
    schedules = s.evolve(schedules, claimed)
    assert s.ActOnFire(ID, 1, T0 + HOUR, RUN) in s.outstanding(schedules).values()
    schedules = run(schedules, s.CompleteFire(ID, 1, at=T0 + HOUR + 1, task_id=TaskId("task_1")))
    assert s.outstanding(schedules) == {("due", ID, T0 + 2 * HOUR): s.AwaitDue(ID, T0 + 2 * HOUR)}
    assert the(schedules).runs == ("task_1",)


def test_a_due_time_is_claimed_once() -> None:
    schedules = run(s.Schedules(), create(), s.ClaimFires(at=T0 + HOUR))
    assert s.decide(schedules, s.ClaimFires(at=T0 + HOUR)) == ()


def test_a_one_shot_is_over_when_its_fire_is_completed() -> None:
    schedules = run(s.Schedules(), create(s.OneShot(T0 + 5)), s.ClaimFires(at=T0 + 5))
    assert the(schedules).state is s.ScheduleState.ACTIVE
    schedules = run(schedules, s.CompleteFire(ID, 1, at=T0 + 6))
    assert the(schedules).state is s.ScheduleState.FINISHED and not schedules.active and s.outstanding(schedules) == {}


def test_a_sixth_active_schedule_is_refused_until_one_is_over() -> None:
    """B18: at most 5 active per session."""
    schedules = run(s.Schedules(), *(create(number=number) for number in range(5)))
    with pytest.raises(CommandRejected, match="5 is the limit; cancel one first"):
        s.decide(schedules, create(number=9))
    schedules = run(schedules, s.CancelSchedule(ScheduleId("sch_0"), at=T0), create(number=9))
    assert len(schedules.active) == 5


def test_an_id_is_used_once_and_a_time_has_to_come() -> None:
    with pytest.raises(CommandRejected, match="exists already"):
        s.decide(run(s.Schedules(), create()), create())
    with pytest.raises(s.InvalidSchedule, match="never due from now on"):
        s.decide(s.Schedules(), create(s.OneShot(T0 - 1)))


# --- missed fires ---

LATE = T0 + 4.5 * HOUR  # 1:00, 2:00, 3:00 and 4:00 have passed.


def test_missed_fires_are_made_up_for_once_by_default() -> None:
    """B18: missed fires: once (default)."""
    schedules = run(s.Schedules(), create(), s.ClaimFires(at=LATE))
    assert dues(schedules) == [T0 + 4 * HOUR]
    assert the(schedules).skipped == 3 and the(schedules).next_at == T0 + 5 * HOUR


def test_missed_fires_can_be_skipped() -> None:
    """B18: skip."""
    schedules = run(s.Schedules(), create(missed="skip"), s.ClaimFires(at=LATE))
    assert dues(schedules) == [] and the(schedules).skipped == 4
    on_time = run(s.Schedules(), create(missed="skip"), s.ClaimFires(at=T0 + 4 * HOUR + 59))
    assert dues(on_time) == [T0 + 4 * HOUR] and the(on_time).skipped == 3


def test_missed_fires_can_all_be_made_up_for_up_to_a_cap() -> None:
    """B18: all up to a cap."""
    schedules = run(s.Schedules(), create(missed="all"), s.ClaimFires(at=LATE))
    assert dues(schedules) == [T0 + n * HOUR for n in (1, 2, 3, 4)] and the(schedules).skipped == 0
    capped = run(s.Schedules(), create(missed="all"), s.ClaimFires(at=LATE, limits=s.ScheduleLimits(catch_up=2)))
    assert dues(capped) == [T0 + 3 * HOUR, T0 + 4 * HOUR] and the(capped).skipped == 2
    assert list(the(capped).claims) == [1, 2]


def test_a_missed_one_shot_follows_the_policy_too() -> None:
    when = s.OneShot(T0 + 10)
    assert dues(run(s.Schedules(), create(when), s.ClaimFires(at=LATE))) == [T0 + 10]
    skipped = run(s.Schedules(), create(when, missed="skip"), s.ClaimFires(at=LATE))
    assert the(skipped).state is s.ScheduleState.FINISHED and the(skipped).skipped == 1


def test_a_decade_of_missed_minutes_is_counted_no_further_than_it_helps() -> None:
    minutely = create(s.Cron("* * * * *"))
    events = s.decide(run(s.Schedules(), minutely), s.ClaimFires(at=T0 + 10 * 365 * 86_400.0))
    skipped, claimed = events
    assert isinstance(skipped, s.ScheduleFiresSkipped) and (skipped.count, skipped.exact) == (s.COUNT_MAX, False)
    assert isinstance(claimed, s.ScheduleFireClaimed) and claimed.due == T0 + 10 * 365 * 86_400.0


def test_fires_that_find_no_room_are_skipped_and_counted() -> None:
    schedules = run(s.Schedules(), create())
    for hour in range(1, 21):
        schedules = run(schedules, s.ClaimFires(at=T0 + hour * HOUR))
    assert len(the(schedules).claims) == s.CLAIMS_MAX and the(schedules).skipped == 4
    (skipped,) = s.decide(schedules, s.ClaimFires(at=T0 + 21 * HOUR))
    assert isinstance(skipped, s.ScheduleFiresSkipped) and skipped.reason == "busy"


def test_fires_that_wait_for_a_place_are_tried_again_the_longest_due_first() -> None:
    """I32: one for each place that came free, and one more after a while. A restart changes nothing about them (I17)."""
    schedules = run(s.Schedules(), create(missed="all"), s.ClaimFires(at=T0 + 3 * HOUR))
    begun = set(s.outstanding(schedules))
    for fire in (3, 1, 2):
        schedules = run(schedules, s.DeferFire(ID, fire, T0 + 3 * HOUR))
    assert not s.decide(schedules, s.DeferFire(ID, 1, T0 + 3 * HOUR))
    assert [type(work) for work in s.outstanding(schedules).values()] == [s.AwaitDue, s.AwaitDue]
    (resumed,) = s.decide(schedules, s.ResumeFires(1, T0 + 3 * HOUR))
    assert resumed == s.ScheduleFireResumed(ID, 1, T0 + 3 * HOUR)
    tried = run(schedules, s.ResumeFires(1, T0 + 3 * HOUR))
    # New work, even in the same moment.
    assert not {key for key, work in s.outstanding(tried).items() if isinstance(work, s.ActOnFire)} & begun
    assert [event.fire for event in s.decide(tried, s.ResumeFires(9, T0 + 3 * HOUR))] == [2, 3]
    assert not s.decide(schedules, s.ClaimFires(at=T0 + 3 * HOUR + s.WAIT_S / 2))
    for at in (T0 + 3 * HOUR + s.WAIT_S, T0 + HOUR):  # The second: the clock was set back.
        assert s.decide(schedules, s.ClaimFires(at=at)) == (s.ScheduleFireResumed(ID, 1, at),)
        assert not s.decide(run(schedules, s.ClaimFires(at=at)), s.ClaimFires(at=at))  # One shows it for all.
    assert not s.decide(schedules, s.RecoverFires(at=T0 + 3 * HOUR))
    schedules = run(schedules, s.CancelSchedule(ID, T0 + 3 * HOUR))
    assert not s.outstanding(schedules) and not s.decide(schedules, s.ResumeFires(9, T0 + 4 * HOUR))


# --- crashes and clocks ---


def test_a_crash_between_claim_and_act_fires_again_at_most_once_per_claim() -> None:
    """B18, I32."""
    schedules = run(s.Schedules(), create(), s.ClaimFires(at=T0 + HOUR))
    first = set(s.outstanding(schedules))
    schedules = run(schedules, s.RecoverFires(at=T0 + HOUR + 5))
    assert the(schedules).claims[1].state is s.FireState.RECLAIMED
    assert set(s.outstanding(schedules)) != first  # New work, so that it is started again.
    (abandoned,) = s.decide(schedules, s.RecoverFires(at=T0 + HOUR + 9))
    assert abandoned == s.ScheduleFireAbandoned(ID, 1, T0 + HOUR, T0 + HOUR + 9)
    schedules = s.evolve(schedules, abandoned)
    assert the(schedules).abandoned == 1 and not the(schedules).claims
    assert s.decide(schedules, s.RecoverFires(at=T0 + HOUR + 10)) == ()


def test_the_table_has_no_third_claim() -> None:
    """I32: per claim at most twice."""
    schedules = run(s.Schedules(), create(), s.ClaimFires(at=T0 + HOUR), s.RecoverFires(at=T0 + HOUR + 5))
    with pytest.raises(InternalError, match="ScheduleFireReclaimed has no move from 'reclaimed'"):
        s.evolve(schedules, s.ScheduleFireReclaimed(ID, 1, T0 + HOUR + 6))
    assert terminal_states(s.FIRE_TRANSITIONS, s.FireState) == {s.FireState.COMPLETED, s.FireState.ABANDONED}


def test_an_abandoned_one_shot_is_over() -> None:
    schedules = run(
        s.Schedules(),
        create(s.OneShot(T0 + 5)),
        s.ClaimFires(at=T0 + 5),
        s.RecoverFires(at=T0 + 6),
        s.RecoverFires(at=T0 + 7),
    )
    assert the(schedules).state is s.ScheduleState.FINISHED


def test_a_cancelled_schedule_never_fires() -> None:
    """I32: never for a cancelled schedule, not even what was claimed already."""
    schedules = run(
        s.Schedules(), create(), s.ClaimFires(at=T0 + HOUR), s.CancelSchedule(ID, at=T0 + HOUR + 1, reason="enough")
    )
    assert s.outstanding(schedules) == {} and the(schedules).state is s.ScheduleState.CANCELLED
    assert not the(schedules).claims and the(schedules).next_at is None
    for command in (
        s.ClaimFires(at=T0 + 9 * HOUR),
        s.CompleteFire(ID, 1, at=T0 + HOUR + 2),
        s.RecoverFires(at=T0 + HOUR + 2),
    ):
        assert s.decide(schedules, command) == ()
    assert s.decide(schedules, s.CancelSchedule(ID, at=T0 + HOUR + 3)) == ()
    with pytest.raises(CommandRejected, match="no schedule 'sch_7'"):
        s.decide(schedules, s.CancelSchedule(ScheduleId("sch_7"), at=T0))


def test_a_clock_set_back_by_an_hour_fires_nothing_twice() -> None:
    """J faults: clock -1 h."""
    schedules = run(
        s.Schedules(), create(s.Cron("*/10 * * * *")), s.ClaimFires(at=T0 + HOUR), s.CompleteFire(ID, 1, at=T0 + HOUR)
    )
    for minute in range(0, 70, 10):
        assert s.decide(schedules, s.ClaimFires(at=T0 + minute * 60.0)) == ()
    assert dues(run(schedules, s.ClaimFires(at=T0 + HOUR + 600))) == [T0 + HOUR + 600]


def test_a_clock_that_was_ten_years_ahead_does_not_stop_a_schedule_for_ten_years() -> None:
    """J faults: clock +10 y."""
    ahead = T0 + 10 * 365 * 86_400.0
    schedules = run(s.Schedules(), create(), s.ClaimFires(at=ahead), s.CompleteFire(ID, 1, at=ahead))
    back = T0 + 2 * HOUR + 5
    (rebased,) = s.decide(schedules, s.ClaimFires(at=back))
    assert rebased == s.ScheduleRebased(ID, T0 + 3 * HOUR, back)
    schedules = run(s.evolve(schedules, rebased), s.ClaimFires(at=T0 + 3 * HOUR))
    assert dues(schedules) == [T0 + 3 * HOUR]


def test_what_could_not_act_says_why() -> None:
    schedules = run(s.Schedules(), create(), s.ClaimFires(at=T0 + HOUR))
    (done,) = s.decide(schedules, s.CompleteFire(ID, 1, at=T0 + HOUR, refusal="5 runs are active already"))
    assert isinstance(done, s.ScheduleFireCompleted) and done.refusal == "5 runs are active already"


def test_what_the_state_keeps_is_bounded() -> None:
    schedules = run(s.Schedules(), create())
    for hour in range(1, 60):
        schedules = run(
            schedules,
            s.ClaimFires(at=T0 + hour * HOUR),
            s.CompleteFire(ID, hour, at=T0 + hour * HOUR, task_id=TaskId(f"t{hour}")),
        )
    assert len(the(schedules).runs) == s.RUNS_MAX and the(schedules).runs[-1] == "t59" and the(schedules).fires == 59
    for number in range(2, 80):
        schedules = run(schedules, create(number=number), s.CancelSchedule(ScheduleId(f"sch_{number}"), at=T0))
    assert len(schedules.settled) == s.SETTLED_MAX
