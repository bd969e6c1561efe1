"""The two faces of a mailbox: a `Ref` for those who talk to the actor, an `Inbox` for the actor itself."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, cast

import trio

from trouper.actors.errors import AskTimeout
from trouper.actors.exits import Cancelled, Crashed, Ended, Exit, Normal
from trouper.actors.mailbox import MAILBOX_MAX, Mailbox, Notice, Phase
from trouper.actors.request import Request, Stage
from trouper.core.values import frozen

M = TypeVar("M")
R = TypeVar("R")
M_contra = TypeVar("M_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


@frozen
class MailboxStatistics:
    """What a mailbox can tell of itself at this moment."""

    name: str
    phase: Phase
    capacity: int
    #: Messages accepted and not taken yet.
    queued: int
    #: Tasks that wait in `send()` for room.
    senders_waiting: int
    #: Questions taken and not answered yet.
    questions_open: int
    #: Since the start, across restarts.
    accepted: int
    refused: int


def mailbox_statistics(mailbox: Mailbox) -> MailboxStatistics:
    return MailboxStatistics(
        name=mailbox.name,
        phase=mailbox.phase,
        capacity=mailbox.capacity,
        queued=len(mailbox.queue or ()),
        senders_waiting=len(mailbox.senders or ()),
        questions_open=(mailbox.current is not None) + len(mailbox.deferred or ()),
        accepted=mailbox.accepted,
        refused=mailbox.refused,
    )


class Ref(Generic[M_contra, R_co]):
    """Where to reach an actor. It stays good across restarts; after the end, every use says `ActorGone`.

    Messages from one sender arrive in the order in which they were accepted. Two Refs to one actor are equal.
    """

    __slots__ = ("_mailbox",)

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    @property
    def name(self) -> str:
        """The path of the actor's name, its supervisors first: `"runtime/sessions/customer-42"`."""
        return self._mailbox.name

    @property
    def exit(self) -> Exit | None:
        """Why the actor ended, once it has ended for good."""
        return self._mailbox.exit

    def __repr__(self) -> str:
        return f"<Ref {self.name!r}: {self._mailbox.exit or self._mailbox.phase.value}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and other._mailbox is self._mailbox

    def __hash__(self) -> int:
        return hash(self._mailbox)

    def tell(self, message: M_contra) -> None:
        """Put a message in the mailbox, or raise `MailboxFull` or `ActorGone`; never waits."""
        self._mailbox.put(message)

    async def send(self, message: M_contra) -> None:
        """Put a message in the mailbox as soon as there is room. A cancelled `send` has sent nothing."""
        await self._mailbox.send(message)

    async def ask(self, question: M_contra, *, timeout_s: float = math.inf) -> R_co:
        """Ask, and wait for the answer. Ends as soon as the answer can no longer come, whatever the actor does.

        Raises `MailboxFull` or `ActorGone` (not accepted), `AskTimeout`, `AskLost`, `ActorGone` (no answer), or what the actor
        passed to `Request.fail`. Without a time-out it waits as long as the actor lives and holds the question.
        """
        mailbox = self._mailbox
        task = trio.lowlevel.current_task()
        mailbox.refuse_deadlock(task)
        request: Request[M_contra, Any] = Request(question, mailbox, task)
        if timeout_s == math.inf:
            mailbox.put(request)
            task.custom_sleep_data = request
            return cast(R_co, await trio.lowlevel.wait_task_rescheduled(request._abandon))
        taken = False
        with trio.move_on_after(timeout_s):
            mailbox.put(request)
            task.custom_sleep_data = request
            try:
                return cast(R_co, await trio.lowlevel.wait_task_rescheduled(request._abandon))
            finally:
                taken = request._stage is not Stage.LOST
        raise AskTimeout(
            f"actor {self.name!r} did not answer within {timeout_s:g} s; allow more time, or see its statistics() for a queue",
            name=self.name,
            timeout_s=timeout_s,
            taken=taken,
        )

    async def ask_shielded(self, question: M_contra) -> R_co:
        """Ask, and wait for the answer whatever is cancelled meanwhile: where it has to be known what became of the question. A cancel comes at the next checkpoint.

        Raises what `ask` does. For actors that answer soon.
        """
        mailbox = self._mailbox
        task = trio.lowlevel.current_task()
        mailbox.refuse_deadlock(task)
        request: Request[M_contra, Any] = Request(question, mailbox, task)
        mailbox.put(request)
        task.custom_sleep_data = request
        return cast(R_co, await trio.lowlevel.wait_task_rescheduled(_not_now))

    @property
    def is_around(self) -> bool:
        """Whether whoever asks is part of the actor: the actor's end waits for that one's, and never the other way round."""
        return self._mailbox.is_around(trio.lowlevel.current_task())

    async def wait_exit(self) -> Exit:
        """Wait until the actor has ended for good, and say why."""
        return await self._mailbox.wait_end()

    def statistics(self) -> MailboxStatistics:
        """The mailbox as of now."""
        return mailbox_statistics(self._mailbox)


def _not_now(_raise_cancel: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED


class Inbox(Generic[M, R]):
    """What an actor receives from: `async for message in inbox`. Told messages come as they are, questions as `Request`.

    The loop ends when the actor is asked to stop, after everything that was accepted before.
    """

    __slots__ = ("_mailbox",)

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    @property
    def ref(self) -> Ref[M, R]:
        """The actor's own reference, to give to others. Telling oneself counts against the bound like any other message."""
        return Ref(self._mailbox)

    @property
    def stopping(self) -> bool:
        """Whether the actor has been asked to stop: for one that is in the middle of long work."""
        return self._mailbox.is_ending

    def __aiter__(self) -> Inbox[M, R]:
        return self

    def __anext__(self) -> Awaitable[M | Request[M, R]]:
        # Handed through, not awaited: a coroutine less for every actor that waits.
        return self._mailbox.take(StopAsyncIteration)

    async def receive(self) -> M | Request[M, R]:
        """The next message; raises `trio.EndOfChannel` where the `async for` would end."""
        return cast("M | Request[M, R]", await self._mailbox.take(trio.EndOfChannel))

    @property
    def is_resting(self) -> bool:
        """Whether the actor sleeps until a message comes: all that was accepted has been handled."""
        return self._mailbox.receiver is not None

    @property
    def has_more(self) -> bool:
        """Whether `receive_nowait` has something to give."""
        return self._mailbox.queue is not None

    def receive_nowait(self) -> M | Request[M, R]:
        """The next message if it is there already, else `trio.WouldBlock`: to handle in one go what arrived together."""
        return cast("M | Request[M, R]", self._mailbox.take_nowait())

    def hang_up(self) -> None:
        """Take nothing more in this life: for an actor that is about to wait for tasks of its own, as it ends or crashes.

        Those tasks get `AskLost` where they wait for its answer, or ask for one. Whatever comes from anybody else waits for the next life, or the end.
        """
        self._mailbox.hang_up()

    def monitor(self, ref: Ref[Any, Any], wrap: Callable[[Ended], M] | None = None) -> Monitor:
        """Be told, once, in this inbox, when that actor has ended for good; at once if it has already.

        The message is `wrap(ended)`, or the `Ended` itself. It is never refused, even by a full mailbox.
        """
        monitor = Monitor(self._mailbox, ref._mailbox, wrap)
        monitor._open()
        return monitor


class Monitor:
    """An actor's wish to be told of another's end. It lasts until that end, `close()`, or the watcher's own end or restart."""

    __slots__ = ("_watched", "_watcher", "_wrap")

    def __init__(self, watcher: Mailbox, watched: Mailbox, wrap: Callable[[Ended], Any] | None) -> None:
        self._watcher = watcher
        self._watched = watched
        self._wrap = wrap

    def close(self) -> None:
        """Not to be told any more. An end that has been delivered stays in the inbox."""
        for monitors in (self._watched.watchers, self._watcher.monitors):
            if monitors is not None:
                monitors.pop(self, None)

    def _open(self) -> None:
        watched, watcher = self._watched, self._watcher
        if watched.exit is not None:
            watcher.put_notice(Notice(Ended(watched.name, watched.exit, watched.unread), self._wrap))
            return
        for mailbox, attribute in ((watched, "watchers"), (watcher, "monitors")):
            if getattr(mailbox, attribute) is None:
                setattr(mailbox, attribute, {})
            getattr(mailbox, attribute)[self] = None

    def _fire(self, ended: Ended) -> None:
        self.close()
        self._watcher.put_notice(Notice(ended, self._wrap))


@contextmanager
def open_mailbox(name: str, *, capacity: int = MAILBOX_MAX) -> Iterator[tuple[Ref[Any, Any], Inbox[Any, Any]]]:
    """A mailbox for a task of your own, without a supervisor: it ends with the block, and so does every wait for it."""
    mailbox = Mailbox(name, capacity)
    try:
        yield Ref(mailbox), Inbox(mailbox)
    except trio.Cancelled:
        mailbox.end(Cancelled())
        raise
    except BaseException as exc:
        mailbox.end(Crashed(exc))
        raise
    else:
        mailbox.end(Normal())
