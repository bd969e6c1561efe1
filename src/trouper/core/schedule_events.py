"""What can be asked of schedules (commands), what can happen to them and their fires (events), and the tables of what may happen when (B18, I32)."""

from __future__ import annotations

from typing import Literal, TypeAlias

from trouper.core.cron import When
from trouper.core.ids import ScheduleId, TaskId
from trouper.core.lifecycle import Table
from trouper.core.schedule_record import (
    DEFAULT_LIMITS,
    FireState,
    Missed,
    ScheduledMessage,
    ScheduledRun,
    ScheduleLimits,
    ScheduleState,
)
from trouper.core.values import frozen

# --- commands ---


@frozen
class CreateSchedule:
    id: ScheduleId
    title: str
    when: When
    action: ScheduledRun | ScheduledMessage
    at: float
    missed: Missed = "once"
    limits: ScheduleLimits = DEFAULT_LIMITS


@frozen
class ClaimFires:
    """Claim whatever is due. Send it when a timer of `outstanding` is up, at start-up, and every now and then: clocks get set."""

    at: float
    limits: ScheduleLimits = DEFAULT_LIMITS


@frozen
class CompleteFire:
    """The fire was acted on; best in the same record as the act itself, so that no crash comes between the two."""

    schedule_id: ScheduleId
    fire: int
    at: float
    task_id: TaskId | None = None
    #: Empty, or why nothing came of it: the run limit was reached, the tool is gone...
    refusal: str = ""


@frozen
class DeferFire:
    """There is no place for its run now: it waits for one."""

    schedule_id: ScheduleId
    fire: int
    at: float


@frozen
class ResumeFires:
    """Places came free: as many of those that wait are tried again, the longest due first."""

    count: int
    at: float


@frozen
class RecoverFires:
    """At start-up: claims that a crash left open are claimed once more, or given up. Those that waited wait on."""

    at: float


@frozen
class CancelSchedule:
    schedule_id: ScheduleId
    at: float
    reason: str = ""


ScheduleCommand: TypeAlias = (
    CreateSchedule | ClaimFires | CompleteFire | DeferFire | ResumeFires | RecoverFires | CancelSchedule
)


# --- events ---


@frozen
class ScheduleCreated:
    """Something is to happen, once or again and again."""

    id: ScheduleId
    title: str
    when: When
    action: ScheduledRun | ScheduledMessage
    missed: Missed
    next_at: float
    at: float


@frozen
class ScheduleFireClaimed:
    """A due time is taken, before anything is done about it (I32)."""

    schedule_id: ScheduleId
    fire: int
    due: float
    next_at: float | None
    at: float


@frozen
class ScheduleFireReclaimed:
    """A process died between claim and completion: the fire is tried once more."""

    schedule_id: ScheduleId
    fire: int
    at: float


@frozen
class ScheduleFireCompleted:
    """What the fire was for has begun, or was refused: `task_id` or `refusal`."""

    schedule_id: ScheduleId
    fire: int
    at: float
    task_id: TaskId | None = None
    refusal: str = ""


@frozen
class ScheduleFireDeferred:
    """There was no place for its run; it is tried again when one has come free."""

    schedule_id: ScheduleId
    fire: int
    at: float
    retry_at: float


@frozen
class ScheduleFireResumed:
    """One that waited is claimed anew."""

    schedule_id: ScheduleId
    fire: int
    at: float


@frozen
class ScheduleFireAbandoned:
    """A second process died over the same fire: it is given up."""

    schedule_id: ScheduleId
    fire: int
    due: float
    at: float


@frozen
class ScheduleFiresSkipped:
    """Due times that nobody acts on, and why."""

    schedule_id: ScheduleId
    count: int
    #: False: there were more than anyone counts.
    exact: bool
    #: The oldest due time that was skipped.
    first: float
    reason: Literal["missed", "busy"]
    next_at: float | None
    at: float


@frozen
class ScheduleRebased:
    """The clock had been far ahead and was set right; the next fire follows from the new time."""

    schedule_id: ScheduleId
    next_at: float | None
    at: float


@frozen
class ScheduleFinished:
    """It has no due time left."""

    schedule_id: ScheduleId
    at: float


@frozen
class ScheduleCancelled:
    """It will not fire again; `reason` says why."""

    schedule_id: ScheduleId
    at: float
    reason: str = ""


ScheduleEvent: TypeAlias = (
    ScheduleCreated
    | ScheduleFireClaimed
    | ScheduleFireReclaimed
    | ScheduleFireCompleted
    | ScheduleFireDeferred
    | ScheduleFireResumed
    | ScheduleFireAbandoned
    | ScheduleFiresSkipped
    | ScheduleRebased
    | ScheduleFinished
    | ScheduleCancelled
)

S = ScheduleState
F = FireState
TRANSITIONS: Table[ScheduleState] = {
    (None, ScheduleCreated): S.ACTIVE,
    (S.ACTIVE, ScheduleFinished): S.FINISHED,
    (S.ACTIVE, ScheduleCancelled): S.CANCELLED,
    **{
        (S.ACTIVE, event): S.ACTIVE
        for event in (
            ScheduleFireClaimed,
            ScheduleFireReclaimed,
            ScheduleFireCompleted,
            ScheduleFireDeferred,
            ScheduleFireResumed,
            ScheduleFireAbandoned,
            ScheduleFiresSkipped,
            ScheduleRebased,
        )
    },
}
FIRE_TRANSITIONS: Table[FireState] = {
    (None, ScheduleFireClaimed): F.CLAIMED,
    (F.CLAIMED, ScheduleFireReclaimed): F.RECLAIMED,
    (F.CLAIMED, ScheduleFireCompleted): F.COMPLETED,
    (F.RECLAIMED, ScheduleFireCompleted): F.COMPLETED,
    (F.RECLAIMED, ScheduleFireAbandoned): F.ABANDONED,
    (F.CLAIMED, ScheduleFireDeferred): F.WAITING,
    (F.RECLAIMED, ScheduleFireDeferred): F.WAITING,
    (F.WAITING, ScheduleFireResumed): F.CLAIMED,
}
