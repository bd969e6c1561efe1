"""Schedules: what is to happen at a time, once or again and again (B18-B20). Time is handed in; see `trouper.core.cron` for when things are due.

A fire is *claimed*, and the claim journaled, before anything acts on it; and *completed* after. A claim that a crash left open is claimed once more, and then given up:
nobody acts on one claim more than twice, and on a cancelled schedule not at all (I32). A run that finds no place waits for one, and is then claimed anew. Each due time is claimed, or counted as skipped, exactly once; a clock that is
set back by less than a day makes nothing happen twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias, assert_never

from trouper._errors import CommandRejected
from trouper.core.cron import (
    Cron,
    InvalidSchedule,
    OneShot,
    When,
    count_fires,
    newest_fires,
    next_fire,
    parse_when,
)
from trouper.core.ids import ScheduleId
from trouper.core.lifecycle import move
from trouper.core.schedule_events import (
    FIRE_TRANSITIONS,
    TRANSITIONS,
    CancelSchedule,
    ClaimFires,
    CompleteFire,
    CreateSchedule,
    DeferFire,
    RecoverFires,
    ResumeFires,
    ScheduleCancelled,
    ScheduleCommand,
    ScheduleCreated,
    ScheduleEvent,
    ScheduleFinished,
    ScheduleFireAbandoned,
    ScheduleFireClaimed,
    ScheduleFireCompleted,
    ScheduleFireDeferred,
    ScheduleFireReclaimed,
    ScheduleFireResumed,
    ScheduleFiresSkipped,
    ScheduleRebased,
)
from trouper.core.schedule_record import (
    Claim,
    FireState,
    Missed,
    Schedule,
    ScheduledMessage,
    ScheduledRun,
    ScheduleLimits,
    Schedules,
    ScheduleState,
)
from trouper.core.values import changed as change
from trouper.core.values import frozen

# The words of this lifecycle are part of its surface: `schedule.CreateSchedule`, `schedule.Schedules`.
__all__ = [
    "CLAIMS_MAX",
    "COUNT_MAX",
    "FIRE_TRANSITIONS",
    "RUNS_MAX",
    "SETTLED_MAX",
    "TRANSITIONS",
    "WAIT_S",
    "ActOnFire",
    "AwaitDue",
    "CancelSchedule",
    "Claim",
    "ClaimFires",
    "CompleteFire",
    "CreateSchedule",
    "Cron",
    "DeferFire",
    "FireState",
    "InvalidSchedule",
    "Missed",
    "OneShot",
    "RecoverFires",
    "ResumeFires",
    "Schedule",
    "ScheduleCancelled",
    "ScheduleCommand",
    "ScheduleCreated",
    "ScheduleEvent",
    "ScheduleFinished",
    "ScheduleFireAbandoned",
    "ScheduleFireClaimed",
    "ScheduleFireCompleted",
    "ScheduleFireDeferred",
    "ScheduleFireReclaimed",
    "ScheduleFireResumed",
    "ScheduleFiresSkipped",
    "ScheduleLimits",
    "ScheduleRebased",
    "ScheduleState",
    "ScheduleWork",
    "ScheduledMessage",
    "ScheduledRun",
    "Schedules",
    "When",
    "decide",
    "evolve",
    "outstanding",
    "parse_when",
]

#: Claims of one schedule that are open at once; a fire that finds no room is skipped, and counted.
CLAIMS_MAX = 16
#: A fire that waits for a place is tried when a run of its session ends; and after this time all the same, since places come free in other sessions too.
WAIT_S = 60.0
#: Runs of a schedule that the state lists; the journal has all of them.
RUNS_MAX = 20
SETTLED_MAX = 50
#: Skipped fires are counted exactly up to here: a decade of missed minutes must not stall a start.
COUNT_MAX = 1_000
#: A clock that falls back by more than this was wrong before, and a schedule that waited for it would wait too long.
REBASE_AFTER_S = 86_400.0

S = ScheduleState
F = FireState


# --- work ---


@frozen
class AwaitDue:
    schedule_id: ScheduleId
    at: float


@frozen
class ActOnFire:
    schedule_id: ScheduleId
    fire: int
    due: float
    action: ScheduledRun | ScheduledMessage


ScheduleWork: TypeAlias = AwaitDue | ActOnFire


def outstanding(schedules: Schedules) -> dict[tuple[str, ScheduleId, float], ScheduleWork]:
    """A timer for each schedule, and each claimed fire that has not been acted on."""
    work: dict[tuple[str, ScheduleId, float], ScheduleWork] = {}
    for schedule in schedules.active.values():
        if schedule.next_at is not None:
            work["due", schedule.id, schedule.next_at] = AwaitDue(schedule.id, schedule.next_at)
        if (retry_at := _retry_at(schedule)) is not None:
            work["due", schedule.id, retry_at] = AwaitDue(schedule.id, retry_at)
        for claim in schedule.claims.values():
            if claim.state is F.WAITING:
                continue
            # The key has the time of the claim, and how often it has waited, so that claiming it once more is new work.
            work[f"fire {claim.fire} {claim.waits}", schedule.id, claim.at] = ActOnFire(
                schedule.id, claim.fire, claim.due, schedule.action
            )
    return work


def _waiting(schedule: Schedule) -> Iterator[Claim]:
    """In the order in which they were due."""
    return (claim for claim in schedule.claims.values() if claim.state is F.WAITING)


def _retry_at(schedule: Schedule) -> float | None:
    """When to see whether there is a place for one of those that wait. Not while one is tried: what becomes of it tells."""
    if not schedule.claims or any(claim.state is not F.WAITING for claim in schedule.claims.values()):
        return None
    return next(_waiting(schedule)).retry_at


# --- decide ---


def decide(schedules: Schedules, command: ScheduleCommand) -> tuple[ScheduleEvent, ...]:
    match command:
        case CreateSchedule():
            return _create(schedules, command)
        case ClaimFires(at=at, limits=limits):
            return tuple(event for schedule in schedules.active.values() for event in _claim(schedule, at, limits))
        case CompleteFire(schedule_id=schedule_id, fire=fire, at=at):
            schedule = schedules.active.get(schedule_id)
            if schedule is None or fire not in schedule.claims:
                return ()  # Cancelled or given up meanwhile.
            done = ScheduleFireCompleted(schedule_id, fire, at, command.task_id, command.refusal)
            return (done, *_finish(schedule, len(schedule.claims) - 1, schedule.next_at, at))
        case DeferFire(schedule_id=schedule_id, fire=fire, at=at):
            schedule = schedules.active.get(schedule_id)
            if schedule is None or fire not in schedule.claims or schedule.claims[fire].state is F.WAITING:
                return ()
            return (ScheduleFireDeferred(schedule_id, fire, at, at + WAIT_S),)
        case ResumeFires(count=count, at=at):
            waiting = [
                (claim.due, key, claim.fire) for key, each in schedules.active.items() for claim in _waiting(each)
            ]
            return tuple(ScheduleFireResumed(key, fire, at) for _, key, fire in sorted(waiting)[:count])
        case RecoverFires(at=at):
            return tuple(event for schedule in schedules.active.values() for event in _recover(schedule, at))
        case CancelSchedule(schedule_id=schedule_id, at=at, reason=reason):
            if schedules.get(schedule_id) is None:
                raise CommandRejected(
                    f"there is no schedule {schedule_id!r} in this session; list the schedules to see their ids",
                    schedule_id=schedule_id,
                )
            return (ScheduleCancelled(schedule_id, at, reason),) if schedule_id in schedules.active else ()
        case _:
            assert_never(command)


def _create(schedules: Schedules, command: CreateSchedule) -> tuple[ScheduleEvent, ...]:
    if schedules.get(command.id) is not None:
        raise CommandRejected(
            f"schedule {command.id!r} exists already; give each schedule a fresh id", schedule_id=command.id
        )
    if len(schedules.active) >= command.limits.active:
        raise CommandRejected(
            f"this session already has {len(schedules.active)!r} active schedules, and {command.limits.active} is the limit; cancel one first",
            limit=command.limits.active,
        )
    next_at = next_fire(command.when, command.at)
    if next_at is None:
        raise InvalidSchedule(
            f"schedule {command.id!r} is never due from now on; give a time to come", schedule_id=command.id
        )
    return (
        ScheduleCreated(command.id, command.title, command.when, command.action, command.missed, next_at, command.at),
    )


def _claim(schedule: Schedule, at: float, limits: ScheduleLimits) -> tuple[ScheduleEvent, ...]:
    return (*_claim_due(schedule, at, limits), *_resume_due(schedule, at))


def _resume_due(schedule: Schedule, at: float) -> tuple[ScheduleEvent, ...]:
    """One of those that wait, to see whether there is a place by now. Its time is also up if the clock was set back."""
    retry_at = _retry_at(schedule)
    if retry_at is None or at < retry_at <= at + WAIT_S:
        return ()
    return (ScheduleFireResumed(schedule.id, next(_waiting(schedule)).fire, at),)


def _claim_due(schedule: Schedule, at: float, limits: ScheduleLimits) -> tuple[ScheduleEvent, ...]:
    first = schedule.next_at
    if first is None:
        return ()
    if schedule.seen_at - at > REBASE_AFTER_S and isinstance(schedule.when, Cron):
        return (ScheduleRebased(schedule.id, next_fire(schedule.when, at), at),)
    if first > at:
        return ()
    following = next_fire(schedule.when, first)
    wanted: tuple[float, ...]
    if following is None or following > at:  # As a rule there is just one.
        wanted, total, next_at = (first,), 1, following
    else:
        wanted = newest_fires(schedule.when, first, at, limits.catch_up if schedule.missed == "all" else 1)
        total = count_fires(schedule.when, first, at, COUNT_MAX + len(wanted))
        next_at = next_fire(schedule.when, at)
    exact = total < COUNT_MAX + len(wanted)
    if schedule.missed == "skip":
        wanted = tuple(due for due in wanted if at - due <= limits.missed_after_s)
    room = CLAIMS_MAX - len(schedule.claims)
    claimed = wanted[-room:] if room > 0 else ()
    skipped = total - len(claimed)
    events: list[ScheduleEvent] = []
    if skipped:
        reason: Literal["missed", "busy"] = "busy" if len(claimed) < len(wanted) else "missed"
        events.append(ScheduleFiresSkipped(schedule.id, skipped, exact, first, reason, next_at, at))
    events += [
        ScheduleFireClaimed(schedule.id, schedule.fires + number, due, next_at, at)
        for number, due in enumerate(claimed, start=1)
    ]
    return (*events, *_finish(schedule, len(schedule.claims) + len(claimed), next_at, at))


def _recover(schedule: Schedule, at: float) -> tuple[ScheduleEvent, ...]:
    events: list[ScheduleEvent] = []
    left = len(schedule.claims)
    for claim in schedule.claims.values():
        if claim.state is F.CLAIMED:
            events.append(ScheduleFireReclaimed(schedule.id, claim.fire, at))
        elif claim.state is F.RECLAIMED:
            events.append(ScheduleFireAbandoned(schedule.id, claim.fire, claim.due, at))
            left -= 1
    return (*events, *(_finish(schedule, left, schedule.next_at, at) if events else ()))


def _finish(schedule: Schedule, claims_left: int, next_at: float | None, at: float) -> tuple[ScheduleEvent, ...]:
    return (ScheduleFinished(schedule.id, at),) if next_at is None and claims_left == 0 else ()


# --- evolve ---


def evolve(schedules: Schedules, event: ScheduleEvent) -> Schedules:
    if isinstance(event, ScheduleCreated):
        created = Schedule(
            id=event.id,
            title=event.title,
            when=event.when,
            action=event.action,
            missed=event.missed,
            state=move(TRANSITIONS, None, event),
            created_at=event.at,
            next_at=event.next_at,
            seen_at=event.at,
        )
        return change(schedules, active={**schedules.active, created.id: created})
    schedule = _evolve_schedule(schedules.active[event.schedule_id], event)
    if schedule.state is S.ACTIVE:
        return change(schedules, active={**schedules.active, schedule.id: schedule})
    active = {key: other for key, other in schedules.active.items() if key != schedule.id}
    settled = {**schedules.settled, schedule.id: schedule}
    for key in tuple(settled)[: max(0, len(settled) - SETTLED_MAX)]:
        del settled[key]
    return change(schedules, active=active, settled=settled)


def _evolve_schedule(
    schedule: Schedule,
    event: (
        ScheduleFireClaimed
        | ScheduleFireReclaimed
        | ScheduleFireCompleted
        | ScheduleFireDeferred
        | ScheduleFireResumed
        | ScheduleFireAbandoned
        | ScheduleFiresSkipped
        | ScheduleRebased
        | ScheduleFinished
        | ScheduleCancelled
    ),
) -> Schedule:
    state = move(TRANSITIONS, schedule.state, event)
    match event:
        case ScheduleFireClaimed(fire=fire, due=due, next_at=next_at, at=at):
            claim = Claim(fire, due, move(FIRE_TRANSITIONS, None, event), at)
            return change(
                schedule,
                claims={**schedule.claims, fire: claim},
                fires=fire,
                next_at=next_at,
                seen_at=max(at, schedule.seen_at),
            )
        case ScheduleFireReclaimed(fire=fire, at=at) | ScheduleFireResumed(fire=fire, at=at):
            claim = schedule.claims[fire]
            claim = change(claim, state=move(FIRE_TRANSITIONS, claim.state, event), at=at, retry_at=None)
            return change(schedule, claims={**schedule.claims, fire: claim})
        case ScheduleFireDeferred(fire=fire, at=at, retry_at=retry_at):
            claim = schedule.claims[fire]
            claim = change(
                claim, state=move(FIRE_TRANSITIONS, claim.state, event), at=at, retry_at=retry_at, waits=claim.waits + 1
            )
            return change(schedule, claims={**schedule.claims, fire: claim})
        case ScheduleFireCompleted(fire=fire, task_id=task_id):
            move(FIRE_TRANSITIONS, schedule.claims[fire].state, event)
            runs = schedule.runs if task_id is None else (*schedule.runs, task_id)[-RUNS_MAX:]
            return change(schedule, claims=_without(schedule, fire), runs=runs)
        case ScheduleFireAbandoned(fire=fire):
            move(FIRE_TRANSITIONS, schedule.claims[fire].state, event)
            return change(schedule, claims=_without(schedule, fire), abandoned=schedule.abandoned + 1)
        case ScheduleFiresSkipped(count=count, next_at=next_at, at=at):
            return change(
                schedule, skipped=schedule.skipped + count, next_at=next_at, seen_at=max(at, schedule.seen_at)
            )
        case ScheduleRebased(next_at=next_at, at=at):
            return change(schedule, next_at=next_at, seen_at=at)
        case ScheduleFinished(at=at) | ScheduleCancelled(at=at):
            return change(schedule, state=state, claims={}, next_at=None, ended_at=at)
        case _:
            assert_never(event)


def _without(schedule: Schedule, fire: int) -> dict[int, Claim]:
    return {number: claim for number, claim in schedule.claims.items() if number != fire}
