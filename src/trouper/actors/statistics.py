"""What a supervisor can tell of itself and its actors: values, taken at one moment."""

from __future__ import annotations

import enum

from trouper.actors.exits import Ended
from trouper.actors.reference import MailboxStatistics
from trouper.core.values import frozen


class ActorState(enum.Enum):
    """Where an actor is in its life. Derived from what it does; not stored."""

    RUNNING = "running"
    RESTARTING = "waiting to begin again"
    STOPPING = "asked to stop"


@frozen
class ActorStatistics:
    """One actor as of now."""

    name: str
    state: ActorState
    mailbox: MailboxStatistics
    #: Since its start; and those that count towards its limit now.
    restarts: int
    restarts_in_window: int
    last_failure: BaseException | None


@frozen
class SupervisorStatistics:
    """One supervisor; nested ones are in `supervisors`, and as actors of their parent in `actors`."""

    name: str
    actors: tuple[ActorStatistics, ...]
    supervisors: tuple[SupervisorStatistics, ...]
    #: Actors started and ended here since the supervisor was made, and restarts of them all.
    started: int
    ended: int
    restarts: int
    #: The latest of those that failed for good, oldest first: at most `FAILED_KEPT`.
    failed: tuple[Ended, ...]
