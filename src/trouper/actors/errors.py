"""What can go wrong between actors, by whose fault it is.

UsageError                 you: change the call
|- ActorNameTaken          a living actor of this supervisor has that name
|- SupervisorClosed        the supervisor is stopping or over
|- AskDeadlock             the question would wait for the asker itself
`- AlreadyAnswered         a question answered twice, or after it was put off
WorldError                 the other side
|- MailboxFull             it cannot keep up: nothing was accepted
|- ActorGone               it has ended, or is ending, for good
|- AskTimeout              it did not answer in time
|- AskLost                 it had the question and will never answer: it crashed and began again, or let it drop
`- ActorFailed             it failed for good, and its supervisor was to fail with it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trouper._errors import UsageError, WorldError

if TYPE_CHECKING:
    from trouper.actors.exits import Exit


class ActorNameTaken(UsageError):
    """A living actor of the same supervisor has this name. Names are free again as soon as their actor has ended."""

    name: str


class SupervisorClosed(UsageError):
    """The supervisor is stopping or over, and starts nothing more."""

    name: str


class AskDeadlock(UsageError):
    """An actor asked itself, directly or through others that are waiting for it: the answer could never come."""

    name: str


class AlreadyAnswered(UsageError):
    """A question may be answered once; one that was put off is answered through its `Reply`."""

    name: str


class MailboxFull(WorldError):
    """The mailbox holds all it may: the message was refused and is still yours."""

    name: str
    capacity: int


class ActorGone(WorldError):
    """The actor has ended, or is stopping, for good.

    `exit` says why (`None` while it is still stopping). `taken` says whether it had begun with this very question:
    if not, nothing was done about it.
    """

    name: str
    exit: Exit | None
    taken: bool


class AskTimeout(WorldError):
    """No answer in time. `taken` says whether the actor had begun with the question; if not, it never will."""

    name: str
    timeout_s: float
    taken: bool


class AskLost(WorldError):
    """The actor had the question and will never answer it; how much it did is unknown.

    `exit` is the crash after which it begins again, or `None` if it lives and let the question drop, or has hung up and waits for the asker.
    """

    name: str
    exit: Exit | None


class ActorFailed(WorldError):
    """An actor that its supervisor cannot do without failed for good; the whole supervisor fails with it."""

    name: str
    exit: Exit
