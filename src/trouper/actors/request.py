"""A question to an actor, and the one answer that it gets.

The asker sleeps in `Ref.ask` until somebody settles its `Request`, and there is always somebody: the actor answers; or it takes
its next message without having answered, or crashes, or ends, and its mailbox settles the question with a named error; or
the `Reply` of a question that was put off is garbage, and settles it as it goes. So an ask ends whenever the actor does something.
"""

from __future__ import annotations

import enum
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio
from outcome import Error, Value

from trouper.actors.errors import AlreadyAnswered, AskLost

if TYPE_CHECKING:
    from trouper.actors.mailbox import Mailbox

M_co = TypeVar("M_co", covariant=True)
R_contra = TypeVar("R_contra", contravariant=True)

ki_safe = trio.lowlevel.enable_ki_protection


class Stage(enum.Enum):
    """How far a question has come. QUEUED -> TAKEN -> (DEFERRED ->) ANSWERED; LOST from anywhere before the answer."""

    QUEUED = "in the mailbox"
    TAKEN = "with the actor, to be answered before it takes its next message"
    DEFERRED = "put off: the actor answers when it can, through a Reply"
    ANSWERED = "answered by the actor"
    LOST = "settled with an error by the kernel, or withdrawn by the asker before the actor saw it"


# Looking a member up in its enum costs more than the comparison; these are read for every question.
_QUEUED, _TAKEN, _DEFERRED, _ANSWERED, _LOST = Stage


class Request(Generic[M_co, R_contra]):
    """A question as the actor receives it: `case Request(Get()) as request: request.reply(total)`."""

    __match_args__ = ("payload",)
    __slots__ = ("_asker", "_mailbox", "_stage", "payload")

    def __init__(self, payload: M_co, mailbox: Mailbox, asker: trio.lowlevel.Task) -> None:
        self.payload = payload
        self._mailbox = mailbox
        self._stage = _QUEUED
        # The task asleep in ask(), until it is woken or stops waiting: then None, and an answer goes nowhere.
        self._asker: trio.lowlevel.Task | None = asker

    def __repr__(self) -> str:
        return f"Request({self.payload!r})"

    def reply(self, answer: R_contra) -> bool:
        """Answer. False if the asker no longer waits (its time-out, its cancel): the answer goes nowhere, harmlessly."""
        return self._answer(Value(answer), _TAKEN)

    def fail(self, error: Exception) -> bool:
        """Answer with an error, which `ask` raises in the asker. False if it no longer waits."""
        return self._answer(Error(error), _TAKEN)

    @ki_safe
    def defer(self) -> Reply[R_contra]:
        """Put the answer off: the actor may take other messages, and answers through the `Reply` when it can."""
        if self._stage is not _TAKEN and self._stage is not _LOST:
            raise self._misuse()
        if self._stage is _TAKEN:
            self._stage = _DEFERRED
            self._mailbox.current = None
            self._mailbox.put_off(self)
        return Reply(self)

    # -- for the mailbox, the reply and the asker ---------------------------------------------------------------------

    @ki_safe
    def _answer(self, answer: Value[Any] | Error, stage: Stage) -> bool:
        if self._stage is stage:
            waited = self._settle(answer)
            self._stage = _ANSWERED
            return waited
        if self._stage is _LOST:  # Not the answerer's fault: the actor crashed or ended in the meantime.
            return False
        raise self._misuse()

    @ki_safe
    def _settle(self, answer: Value[Any] | Error) -> bool:
        """Wake the asker, if it still waits. Every path to an end of the question goes through here, once."""
        mailbox = self._mailbox
        if self._stage is _TAKEN:
            mailbox.current = None
        elif self._stage is _DEFERRED and mailbox.deferred is not None:
            mailbox.deferred.pop(self, None)
        self._stage = _LOST
        asker, self._asker = self._asker, None
        if asker is None:
            return False
        trio.lowlevel.reschedule(asker, answer)
        return True

    def _let_drop(self) -> None:
        """The actor lives and will not answer."""
        if self._stage is _TAKEN or self._stage is _DEFERRED:
            name = self._mailbox.name
            self._settle(
                Error(
                    AskLost(
                        f"actor {name!r} let a question drop; in the actor, answer each Request before taking the next message, "
                        "or defer() it and keep the Reply",
                        name=name,
                        exit=None,
                    )
                )
            )

    @ki_safe
    def _abandon(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        """The asker's wait is cancelled. What the actor has not taken yet, it never will."""
        self._asker = None
        if self._stage is _QUEUED:
            self._mailbox.withdraw(self)
            self._stage = _LOST
        return trio.lowlevel.Abort.SUCCEEDED

    def _misuse(self) -> AlreadyAnswered:
        name, payload = self._mailbox.name, type(self.payload).__name__
        remedy = {
            _ANSWERED: "answer each question once",
            _DEFERRED: "answer it through the Reply that defer() gave",
        }.get(self._stage, "answer it through its own Request, or defer() it first")
        return AlreadyAnswered(
            f"question {payload!r} to actor {name!r} cannot be answered here: it is {self._stage.value}; {remedy}",
            name=name,
        )


class Reply(Generic[R_contra]):
    """The answer still owed to a question that was put off. Let go of it unanswered, and the asker is told at once."""

    __slots__ = ("__weakref__", "_request", "_token")

    def __init__(self, request: Request[Any, R_contra]) -> None:
        self._request = request
        self._token = trio.lowlevel.current_trio_token()

    def reply(self, answer: R_contra) -> bool:
        """Answer. False if the asker no longer waits."""
        return self._request._answer(Value(answer), _DEFERRED)

    def fail(self, error: Exception) -> bool:
        """Answer with an error, which `ask` raises in the asker. False if it no longer waits."""
        return self._request._answer(Error(error), _DEFERRED)

    def __del__(self) -> None:
        if self._request._stage is _DEFERRED:
            # The collector may run in any thread and inside any call: only run_sync_soon is safe from here.
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._request._let_drop)
