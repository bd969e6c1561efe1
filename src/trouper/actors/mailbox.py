"""The bounded queue between an actor and everybody else. Everything here is one trio task's worth of memory or less.

A mailbox outlives the crashes of its actor: what it holds is handed to the next incarnation. It ends when the actor ends for good,
and then everybody who waits for it is told why.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

import trio
from outcome import Error

from trouper._errors import UsageError
from trouper.actors.errors import ActorGone, AskDeadlock, AskLost, MailboxFull
from trouper.actors.exits import Crashed, Ended, Exit, Normal
from trouper.actors.request import Request, Stage, ki_safe

if TYPE_CHECKING:
    from trouper.actors.reference import Monitor

#: How many messages a mailbox holds unless told otherwise.
MAILBOX_MAX: Final = 64


class Phase(enum.Enum):
    """OPEN -> DRAINING -> ENDED, or OPEN -> ENDED; never back. Between two lives of its actor, OPEN -> AWAY -> OPEN; an end may come then, too."""

    OPEN = "accepts messages"
    AWAY = "nobody listens until the actor begins again: what is accepted waits for that, but its own tasks are not to wait"
    DRAINING = "asked to stop: what was accepted is still handled, nothing more is accepted"
    ENDED = "over"


_OPEN, _AWAY, _DRAINING, _ENDED = Phase
_NOTHING: Final = object()


class Notice:
    """A monitor's delivery in a queue. It is opened by the actor that asked for it, so that a faulty `wrap` is its own crash."""

    __slots__ = ("ended", "wrap")

    def __init__(self, ended: Ended, wrap: Callable[[Ended], Any] | None) -> None:
        self.ended = ended
        self.wrap = wrap

    def open(self) -> Any:
        return self.ended if self.wrap is None else self.wrap(self.ended)


class Mailbox:
    """The state that a `Ref` and an `Inbox` share. Not public: the two are its faces.

    Idle, it is one small object: the containers are made when first needed, since 100,000 actors mostly wait.
    """

    __slots__ = (
        "accepted",
        "capacity",
        "consumer",
        "current",
        "deferred",
        "ended_event",
        "exit",
        "hand",
        "monitors",
        "name",
        "phase",
        "queue",
        "receiver",
        "refused",
        "senders",
        "unread",
        "watchers",
    )

    def __init__(self, name: str, capacity: int) -> None:
        if capacity < 1:
            raise UsageError(
                f"mailbox of {name!r} cannot hold {capacity!r} messages; give it room for at least 1", name=name
            )
        self.name = name
        self.capacity = capacity
        self.phase = _OPEN
        # Set if and only if the phase is ENDED.
        self.exit: Exit | None = None
        self.unread = 0
        self.accepted = 0
        self.refused = 0
        # The task asleep in take(). While there is one, the queue is empty and nobody waits to send.
        self.receiver: trio.lowlevel.Task | None = None
        # The task that takes, as far as is known: whom a question to this mailbox waits for.
        self.consumer: trio.lowlevel.Task | None = None
        # A message on its way to a receiver that has been woken and has not run yet. It precedes the queue.
        self.hand: Any = _NOTHING
        self.queue: deque[Any] | None = None
        # Tasks asleep in send(), first in first out, each with its message. Not empty only while the queue is full.
        self.senders: dict[trio.lowlevel.Task, Any] | None = None
        # The question last taken, until it is answered or put off: at most one.
        self.current: Request[Any, Any] | None = None
        self.deferred: dict[Request[Any, Any], None] | None = None
        # Monitors *of* this actor, and monitors that this actor has set on others.
        self.watchers: dict[Monitor, None] | None = None
        self.monitors: dict[Monitor, None] | None = None
        self.ended_event: trio.Event | None = None

    @property
    def is_ending(self) -> bool:
        """Whether the actor was asked to stop, or has ended."""
        return self.phase is _DRAINING or self.phase is _ENDED

    # -- putting ------------------------------------------------------------------------------------------------------

    @ki_safe
    def put(self, message: Any) -> None:
        """Accept, or raise; never waits."""
        if self.phase is not _OPEN:
            self._refuse(message)
        receiver = self.receiver
        if receiver is not None:
            self.receiver = None
            self.hand = message
            trio.lowlevel.reschedule(receiver)
        elif self.queue is None:
            self.queue = deque((message,))
        elif len(self.queue) < self.capacity:
            self.queue.append(message)
        else:
            self.refused += 1
            raise MailboxFull(
                f"mailbox of actor {self.name!r} is full ({self.capacity} messages); try again later, or wait for room with send()",
                name=self.name,
                capacity=self.capacity,
            )
        self.accepted += 1

    def _refuse(self, message: Any) -> None:
        if self.is_ending:
            raise self.gone(taken=False)
        if type(message) is Request and self.is_around(message._asker):
            raise self._hung_up()

    @ki_safe
    async def send(self, message: Any) -> None:
        """Accept as soon as there is room; those who wait are served in order."""
        await trio.lowlevel.checkpoint()
        if self.is_ending or self.queue is None or len(self.queue) < self.capacity:
            self.put(message)
            return
        task = trio.lowlevel.current_task()
        if self.senders is None:
            self.senders = {}
        self.senders[task] = message

        def give_up(_raise_cancel: object) -> trio.lowlevel.Abort:
            assert self.senders is not None
            del self.senders[task]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(give_up)

    @ki_safe
    def put_notice(self, notice: Notice) -> None:
        """Beyond the capacity, since a monitor's word may not be refused: there are only as many as the actor has set monitors."""
        receiver = self.receiver
        if receiver is not None:
            self.receiver = None
            self.hand = notice
            trio.lowlevel.reschedule(receiver)
        elif self.queue is None:
            self.queue = deque((notice,))
        else:
            self.queue.append(notice)

    @ki_safe
    def withdraw(self, request: Request[Any, Any]) -> None:
        """The asker gave up before the actor took its question. By identity: a message's own `__eq__` is none of our business."""
        if self.hand is request:
            self.hand = _NOTHING
        elif self.queue is not None:
            for index, message in enumerate(self.queue):
                if message is request:
                    del self.queue[index]
                    self._refill()
                    break
        self.accepted -= 1

    # -- taking -------------------------------------------------------------------------------------------------------

    @ki_safe
    async def take(self, at_end: type[Exception]) -> Any:
        """The next message; raises `at_end` when the actor is to stop and has handled all that was accepted."""
        if self.current is not None:
            self.current._let_drop()
        if self.queue is not None or self.phase is not _OPEN:
            await trio.lowlevel.checkpoint()
        while self.queue is None:
            if self.phase is not _OPEN:
                raise at_end
            if self.receiver is not None:
                raise UsageError(
                    f"two tasks receive from the inbox of actor {self.name!r}; let one receive and hand the work on",
                    name=self.name,
                )
            self.receiver = self.consumer = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort_take)
            message = self.hand
            if message is not _NOTHING:
                self.hand = _NOTHING
                return self._opened(message)
            # Woken empty-handed: asked to stop, or the one question on its way was withdrawn. Look again.
        return self._opened(self._pop())

    @ki_safe
    def take_nowait(self) -> Any:
        """The next message if it is there already; else raises `trio.WouldBlock`."""
        if self.current is not None:
            self.current._let_drop()
        if self.queue is None:
            raise trio.WouldBlock
        return self._opened(self._pop())

    def _abort_take(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self.receiver = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _pop(self) -> Any:
        assert self.queue is not None
        message = self.queue.popleft()
        self._refill()
        return message

    def _refill(self) -> None:
        """A place is free: the first of those who wait to send gets it. An empty queue is given back: idle actors are small."""
        queue = self.queue
        assert queue is not None
        if self.senders and len(queue) < self.capacity:
            task = next(iter(self.senders))
            queue.append(self.senders.pop(task))
            self.accepted += 1
            trio.lowlevel.reschedule(task)
        elif not queue:
            self.queue = None

    def _opened(self, message: Any) -> Any:
        kind = type(message)
        if kind is Request:
            message._stage = Stage.TAKEN
            self.current = message
        elif kind is Notice:
            return message.open()
        return message

    # -- questions ----------------------------------------------------------------------------------------------------

    def put_off(self, request: Request[Any, Any]) -> None:
        if self.deferred is None:
            self.deferred = {}
        self.deferred[request] = None

    def refuse_deadlock(self, asker: trio.lowlevel.Task) -> None:
        """Follow who waits for whom from here; if it leads to the asker, the answer could never come."""
        mailbox: Mailbox = self
        while True:
            consumer = mailbox.consumer
            if consumer is asker:
                raise AskDeadlock(
                    f"asking actor {self.name!r} would wait for the asker itself, {asker.name!r}; tell() it, or ask from another task",
                    name=self.name,
                )
            # ask() leaves its question here while it sleeps. One that was put off may be answered by somebody else.
            waiting = None if consumer is None else consumer.custom_sleep_data
            if type(waiting) is not Request or waiting._stage is Stage.DEFERRED:
                return
            mailbox = waiting._mailbox

    @ki_safe
    def lose_taken(self, exit: Normal | Crashed) -> None:
        """The actor ended and begins again: what it had taken is lost, what is queued waits for the next incarnation."""
        if self.phase is _AWAY:
            self.phase = _OPEN
        self._settle_taken(
            lambda: AskLost(
                f"actor {self.name!r} {exit} with the question and begins again; how much it did is unknown: ask about it, then ask again",
                name=self.name,
                exit=exit,
            )
        )
        self.close_monitors()

    @ki_safe
    def hang_up(self) -> None:
        """The actor takes nothing more in this life, and waits for its own tasks. Those of them that wait for its answer would never end, so they are told."""
        if self.phase is _OPEN:
            self.phase = _AWAY
        taken = () if self.current is None else (self.current,)
        for message in (*taken, *(self.deferred or ()), *(self.queue or ())):
            if type(message) is Request and self.is_around(message._asker):
                if message._stage is Stage.QUEUED:
                    self.withdraw(message)
                message._settle(Error(self._hung_up()))

    def is_around(self, task: trio.lowlevel.Task | None) -> bool:
        """Whether the task is the actor's, or runs in a nursery of the actor's, or in one further in."""
        while task is not None and task is not self.consumer:
            task = None if task.parent_nursery is None else task.parent_nursery.parent_task
        return task is not None

    def _hung_up(self) -> AskLost:
        return AskLost(
            f"actor {self.name!r} has hung up, and waits for the asker to end; look what became of it, then ask again",
            name=self.name,
            exit=None,
        )

    def _settle_taken(self, error: Callable[[], Exception]) -> None:
        if self.current is not None:
            self.current._settle(Error(error()))
        for request in list(self.deferred or ()):
            request._settle(Error(error()))

    # -- ending -------------------------------------------------------------------------------------------------------

    @ki_safe
    def drain(self) -> None:
        """Accept nothing more; the inbox ends after what was accepted. Those who wait to send are told that it is too late."""
        if self.is_ending:
            return
        self.phase = _DRAINING
        self._refuse_senders()
        if self.receiver is not None:
            receiver, self.receiver = self.receiver, None
            trio.lowlevel.reschedule(receiver)

    @ki_safe
    def end(self, exit: Exit) -> None:
        """Over, for good. Nobody is left waiting; each monitor is told, once."""
        if self.phase is _ENDED:
            return
        self.phase = _ENDED
        self.exit = exit
        self.consumer = None
        self._settle_taken(lambda: self.gone(taken=True))
        if self.queue is not None or self.hand is not _NOTHING:
            self._refuse_unread()
        self._refuse_senders()
        self.close_monitors()
        if self.watchers:
            ended = Ended(self.name, exit, self.unread)
            for monitor in list(self.watchers):
                monitor._fire(ended)
        if self.ended_event is not None:
            self.ended_event.set()

    def _refuse_unread(self) -> None:
        left = list(self.queue or ())
        if self.hand is not _NOTHING:
            left.insert(0, self.hand)
            self.hand = _NOTHING
        self.queue = None
        self.unread = sum(type(message) is not Notice for message in left)
        for message in left:
            if type(message) is Request:
                message._settle(Error(self.gone(taken=False)))

    async def wait_end(self) -> Exit:
        if self.exit is None:
            if self.ended_event is None:
                self.ended_event = trio.Event()
            await self.ended_event.wait()
        else:
            await trio.lowlevel.checkpoint()
        return cast("Exit", self.exit)

    def _refuse_senders(self) -> None:
        senders, self.senders = self.senders, None
        for task in senders or ():
            trio.lowlevel.reschedule(task, Error(self.gone(taken=False)))

    def close_monitors(self) -> None:
        """The monitors that this actor has set belong to the incarnation that set them."""
        for monitor in list(self.monitors or ()):
            monitor.close()

    def gone(self, *, taken: bool) -> ActorGone:
        how = "is stopping" if self.exit is None else str(self.exit)
        return ActorGone(
            f"actor {self.name!r} {how}; look its name up again, or start another",
            name=self.name,
            exit=self.exit,
            taken=taken,
        )
