"""Why an actor ended, as data: six reasons, matched to the end by whoever is told of it."""

from __future__ import annotations

from typing import TypeAlias

from trouper.core.values import frozen


@frozen
class Normal:
    """The actor's function returned by itself."""

    def __str__(self) -> str:
        return "returned"


@frozen
class Stopped:
    """The actor was asked to stop and left in time."""

    def __str__(self) -> str:
        return "was stopped"


@frozen
class Crashed:
    """The actor's function raised, and its policy was not to begin again."""

    #: An `Exception`, or what ends a whole program (`KeyboardInterrupt`), which goes on upwards as well.
    exception: BaseException

    def __str__(self) -> str:
        return f"crashed ({type(self.exception).__name__})"


@frozen
class Cancelled:
    """The actor was cancelled: by `Supervisor.cancel`, or because a block around it was cancelled or failed."""

    def __str__(self) -> str:
        return "was cancelled"


@frozen
class Killed:
    """The actor was asked to stop, did not leave within the grace, and was cancelled."""

    grace_s: float

    def __str__(self) -> str:
        return f"was killed after {self.grace_s:g} s of grace"


@frozen
class RestartLimit:
    """The actor ended once more than its policy allows; `last` is that last end."""

    limit: int
    within_s: float
    last: Normal | Crashed

    def __str__(self) -> str:
        return f"{self.last} after {self.limit} restarts within {self.within_s:g} s"


Exit: TypeAlias = Normal | Stopped | Crashed | Cancelled | Killed | RestartLimit


def is_failure(exit: Exit | None) -> bool:
    """Whether the actor itself is to blame: it crashed, or reached its restart limit. One that has not ended is not."""
    return isinstance(exit, Crashed | RestartLimit)


@frozen
class Ended:
    """What a monitor delivers, exactly once: an actor ended for good."""

    #: The path of the actor's name: `"runtime/sessions/customer-42"`.
    name: str
    exit: Exit
    #: Messages that it had accepted and never took.
    unread: int = 0
