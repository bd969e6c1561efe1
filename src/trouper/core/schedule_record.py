"""What a schedule is: when it is due, what it does, its fires that are claimed; and all schedules of a session (B18, B19)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Literal, TypeAlias

from trouper.core.cron import MIN_INTERVAL_S, When
from trouper.core.ids import ScheduleId, TaskId
from trouper.core.messages import Json
from trouper.core.values import frozen

#: What becomes of fires that were missed: none is made up for, the newest one is, or all up to a cap.
Missed: TypeAlias = Literal["skip", "once", "all"]


class ScheduleState(Enum):
    # By identity: `Enum` would hash the name, in Python, on every look-up in the table.
    __hash__ = object.__hash__

    ACTIVE = "active"
    FINISHED = "finished"
    CANCELLED = "cancelled"


class FireState(Enum):
    # By identity: `Enum` would hash the name, in Python, on every look-up in the table.
    __hash__ = object.__hash__

    CLAIMED = "claimed"
    #: Claimed a second time, after a crash.
    RECLAIMED = "reclaimed"
    COMPLETED = "completed"
    ABANDONED = "abandoned"
    #: There was no place for its run.
    WAITING = "waiting"


@frozen
class ScheduleLimits:
    active: int = 5
    min_interval_s: float = MIN_INTERVAL_S
    #: How many missed fires the policy "all" makes up for.
    catch_up: int = 10
    #: A fire that is later than this was missed.
    missed_after_s: float = 60.0


DEFAULT_LIMITS = ScheduleLimits()


@frozen
class ScheduledRun:
    """A fire starts a run of the tool directly; no model turn is needed (B19)."""

    tool: str
    arguments: Json
    title: str = ""
    signal_on_completion: bool = True


@frozen
class ScheduledMessage:
    """A fire sends the session this message."""

    text: str


@frozen
class Claim:
    fire: int
    due: float
    state: FireState
    at: float
    #: While it waits: when to try again, if no run has ended before.
    retry_at: float | None = None
    #: How often it has waited.
    waits: int = 0


@frozen
class Schedule:
    id: ScheduleId
    title: str
    when: When
    action: ScheduledRun | ScheduledMessage
    missed: Missed
    state: ScheduleState
    created_at: float
    #: `None`: no more fires to come.
    next_at: float | None
    #: The latest time at which fires were claimed: what is due until then has been dealt with.
    seen_at: float
    fires: int = 0
    skipped: int = 0
    abandoned: int = 0
    claims: Mapping[int, Claim] = {}
    #: The tasks that it started, newest last.
    runs: tuple[TaskId, ...] = ()
    ended_at: float | None = None


@frozen
class Schedules:
    """All schedules of one session: the active ones, and the last few that are over."""

    active: Mapping[ScheduleId, Schedule] = {}
    settled: Mapping[ScheduleId, Schedule] = {}

    def get(self, schedule_id: str) -> Schedule | None:
        return self.active.get(ScheduleId(schedule_id)) or self.settled.get(ScheduleId(schedule_id))
