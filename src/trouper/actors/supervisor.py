"""Supervisors: a block that starts actors, begins them again when they fail, and does not end before the last of them has.

    async with open_supervisor(name="app") as supervisor:
        counter = supervisor.spawn("counter", count, restart=Restart(on="failure", limit=5, within_s=10))
        counter.tell(Increment(1))

Leaving the block stops the actors, the last started first; an error in the block, or a cancel around it, cancels them all.
A crash is data: it reaches the actor's monitors, its askers and the statistics, and touches no other actor.
"""

from __future__ import annotations

import enum
import logging
import re
import traceback
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, Never, TypeVar, TypeVarTuple

import trio

from trouper._errors import InvalidName, UsageError
from trouper.actors.child import Child, Crash
from trouper.actors.errors import ActorFailed, ActorNameTaken, SupervisorClosed
from trouper.actors.exits import Cancelled, Ended, Exit, Stopped, is_failure
from trouper.actors.mailbox import MAILBOX_MAX, Mailbox
from trouper.actors.reference import Inbox, Ref, mailbox_statistics
from trouper.actors.restart import NEVER, Restart
from trouper.actors.statistics import ActorState, ActorStatistics, SupervisorStatistics

M = TypeVar("M")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")

#: How long a stop waits, in all, before it cancels what is left.
GRACE_S: Final = 5.0
#: How many failed actors a supervisor remembers.
FAILED_KEPT: Final = 64

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_log = logging.getLogger("trouper.actors")


def log_crash(crash: Crash) -> None:
    """The usual report: the name, the kind of error, and where it was raised. Not its text, which may hold a secret."""
    then = "ended for good" if crash.restart is None else f"begins again (restart {crash.restart})"
    kinds = ", ".join(type(error).__name__ for error in _leaves(crash.exception))
    where = "".join("".join(traceback.format_tb(error.__traceback__)) for error in _leaves(crash.exception))
    _log.error("actor %r crashed with %s and %s\n%s", crash.name, kinds, then, where)


def _leaves(error: BaseException) -> list[BaseException]:
    """What was raised, without the groups that nurseries put around it."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


def _check_policy(name: str, restart: object, grace_s: object) -> None:
    """Where it is given: read first when the actor has crashed, or is stopped, it would take the whole block with it (I23)."""
    if not isinstance(restart, Restart):
        raise UsageError(f"restart={restart!r} of actor {name!r} is no Restart; write restart=Restart(...)")
    if grace_s is not None and not (isinstance(grace_s, int | float) and grace_s >= 0):
        raise UsageError(f"grace_s={grace_s!r} of actor {name!r} makes no sense; give seconds, 0 for none")


class _Phase(enum.Enum):
    """WAITING -> OPEN -> CLOSING -> WAITING (a nested supervisor begins again) or OVER; WAITING -> OVER."""

    WAITING = "not open yet: what is spawned starts when it opens"
    OPEN = "starts actors"
    CLOSING = "stopping its actors"
    OVER = "over"


class Supervisor:
    """Starts, restarts and stops actors. Got from `open_supervisor` or `Supervisor.spawn_supervisor`, never made by hand."""

    def __init__(self, name: str, grace_s: float, report: Callable[[Crash], None]) -> None:
        self._name = name
        self._grace_s = grace_s
        self._report_crash = report
        self._phase = _Phase.WAITING
        # In order of start, which is the order of a stop reversed. A child is in here until it has ended for good.
        self._children: dict[str, Child] = {}
        self._nursery: trio.Nursery | None = None
        # The failure that this supervisor is to fail with.
        self._failure: ActorFailed | None = None
        # The actor that this supervisor is under another; None for the outermost.
        self._own: Child | None = None
        self._started = 0
        self._ended = 0
        self._restarts_of_ended = 0
        self._failed: deque[Ended] = deque(maxlen=FAILED_KEPT)

    @property
    def name(self) -> str:
        """The path of the supervisor's name, its own supervisors first."""
        return self._name

    def __repr__(self) -> str:
        return f"<Supervisor {self._name!r}: {len(self._children)} actors, {self._phase.value}>"

    # -- starting -----------------------------------------------------------------------------------------------------

    def spawn(
        self,
        name: str,
        actor: Callable[[Inbox[M, R], *Ts], Awaitable[object]],
        *args: *Ts,
        restart: Restart = NEVER,
        mailbox: int = MAILBOX_MAX,
        grace_s: float | None = None,
    ) -> Ref[M, R]:
        """Start an actor: `actor(inbox, *args)`, in one task, under this supervisor. Its mailbox accepts at once.

        `grace_s` bounds its own share of a stop's grace.
        """
        return Ref(self._add(name, actor, args, restart, mailbox, grace_s, None).mailbox)

    def spawn_supervisor(
        self,
        name: str,
        start: Callable[[Supervisor], object] | None = None,
        *,
        restart: Restart = NEVER,
        grace_s: float = GRACE_S,
    ) -> Supervisor:
        """Start a supervisor under this one. `start(supervisor)` spawns its actors, each time that it begins; more may be spawned
        at any time, and are not spawned again after a restart."""
        group = Supervisor(f"{self._name}/{name}", grace_s, self._report_crash)
        group._own = self._add(name, _run_group, (group, start), restart, 1, None, group)
        return group

    def _add(
        self,
        name: str,
        function: Callable[..., Awaitable[object]],
        args: tuple[Any, ...],
        restart: Restart,
        capacity: int,
        grace_s: float | None,
        group: Supervisor | None,
    ) -> Child:
        if self._phase not in (_Phase.WAITING, _Phase.OPEN):
            raise SupervisorClosed(
                f"supervisor {self._name!r} is {self._phase.value} and starts no {name!r}; spawn before its block ends",
                name=self._name,
            )
        if not _NAME.fullmatch(name) or name in (".", ".."):
            raise InvalidName(
                f"actor name {name!r} is not usable; use 1 to 128 letters, digits, '-', '_' or '.'", name=name
            )
        _check_policy(name, restart, grace_s)
        if name in self._children:
            raise ActorNameTaken(
                f"supervisor {self._name!r} has a living actor {name!r}; find() it, or stop() it and wait for its end",
                name=name,
            )
        box = Mailbox(f"{self._name}/{name}", capacity)
        child = self._children[name] = Child(self, name, box, function, args, restart, grace_s, group)
        self._started += 1
        if self._nursery is not None:
            self._start(child)
        return child

    def _start_waiting(self) -> None:
        """In a function of its own: in the block, the loop would keep hold of the last one for as long as that is open."""
        for child in self._children.values():
            self._start(child)

    def _start(self, child: Child) -> None:
        assert self._nursery is not None
        child.started = True
        self._nursery.start_soon(child.run, name=child.mailbox.name)

    # -- stopping -----------------------------------------------------------------------------------------------------

    def stop(self, actor: str | Ref[Any, Any] | Supervisor, *, grace_s: float = GRACE_S) -> None:
        """Ask an actor to stop: its inbox ends after what it has accepted. After the grace it is cancelled.

        Does not wait; `Ref.wait_exit` does. One that has ended already is left in peace.
        """
        child = self._child(actor)
        if child is not None:
            child.stop(trio.current_time() + grace_s)
            self._end_unstarted(child, Stopped())

    def cancel(self, actor: str | Ref[Any, Any] | Supervisor) -> None:
        """Cancel an actor at once, without grace. Does not wait; `Ref.wait_exit` does."""
        child = self._child(actor)
        if child is not None:
            child.cancel()
            self._end_unstarted(child, Cancelled())

    def _child(self, actor: str | Ref[Any, Any] | Supervisor) -> Child | None:
        path = f"{self._name}/{actor}" if isinstance(actor, str) else actor.name
        parent, _, key = path.rpartition("/")
        child = self._children.get(key)
        if parent != self._name or (child is None and isinstance(actor, str)):
            raise UsageError(
                f"supervisor {self._name!r} has no actor {path!r}; its own supervisor can stop it", name=path
            )
        if child is None or isinstance(actor, str):
            return child
        # The name may have passed to another actor since.
        same = child.group is actor if isinstance(actor, Supervisor) else child.mailbox is actor._mailbox
        return child if same else None

    def _end_unstarted(self, child: Child, exit: Exit) -> None:
        """A child of a supervisor that is not open has no task to end it."""
        if not child.started:
            self._child_ended(child, exit)

    async def _stop_all(self, deadline: float) -> None:
        """One deadline for all of them, so that the whole stop keeps within the grace (I24)."""
        while self._children:
            child = self._children[next(reversed(self._children))]
            child.stop(deadline)
            await child.mailbox.wait_end()

    # -- looking ------------------------------------------------------------------------------------------------------

    def find(self, path: str) -> Ref[Any, Any] | None:
        """The living actor of that name, or `"group/name"` below a nested supervisor; `None` if there is none."""
        key, _, below = path.partition("/")
        child = self._children.get(key)
        if child is None:
            return None
        if below:
            return None if child.group is None else child.group.find(below)
        return Ref(child.mailbox)

    def statistics(self) -> SupervisorStatistics:
        """This moment's picture, nested supervisors included. A plain call."""
        now = trio.current_time()
        children = self._children.values()
        return SupervisorStatistics(
            name=self._name,
            actors=tuple(_actor_statistics(child, now) for child in children),
            supervisors=tuple(child.group.statistics() for child in children if child.group is not None),
            started=self._started,
            ended=self._ended,
            restarts=self._restarts_of_ended
            + sum(child.window.total for child in children if child.window is not None),
            failed=tuple(self._failed),
        )

    # -- inside -------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[None]:
        """The block itself. Actors never raise into its nursery, so what comes out is what the body raised, and `_failure`."""
        self._failure = None
        body_error: BaseException | None = None
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._phase = _Phase.OPEN
                self._start_waiting()
                try:
                    yield
                    self._phase = _Phase.CLOSING
                    deadline = trio.current_time() + self._grace_s
                    await self._stop_all(deadline if self._own is None else min(deadline, self._own.scope.deadline))
                except BaseException as exc:
                    body_error = exc
                    raise
                finally:
                    self._phase = _Phase.CLOSING
        except BaseExceptionGroup as group:
            if self._failure is not None:
                raise BaseExceptionGroup(group.message, [*group.exceptions, self._failure]) from None
            if len(group.exceptions) == 1 and group.exceptions[0] is body_error:
                context = body_error.__context__
                try:
                    raise body_error
                finally:  # Raising it here made the group its context, which says nothing new.
                    body_error.__context__ = context
            raise
        finally:
            self._nursery = None
            self._phase = _Phase.OVER if self._own is None else _Phase.WAITING
        if self._failure is not None:
            raise self._failure

    def _child_ended(self, child: Child, exit: Exit) -> None:
        """The one end of an actor. Its name is free before anybody hears of the end, so that whoever does can use it."""
        if self._children.get(child.key) is child:
            del self._children[child.key]
        self._ended += 1
        self._restarts_of_ended += 0 if child.window is None else child.window.total
        if child.group is not None:
            child.group._abandoned()
        child.mailbox.end(exit)
        if is_failure(exit):
            self._failed.append(Ended(child.mailbox.name, exit, child.mailbox.unread))
            if child.policy.escalate and self._failure is None and self._nursery is not None:
                name = child.mailbox.name
                self._failure = ActorFailed(
                    f"actor {name!r} {exit}, and supervisor {self._name!r} fails with it; see .exit for the cause",
                    name=name,
                    exit=exit,
                )
                self._failure.__cause__ = child.last_failure
                self._nursery.cancel_scope.cancel()

    def _abandoned(self) -> None:
        """A nested supervisor has ended for good; what was spawned and never started ends with it."""
        self._phase = _Phase.OVER
        for child in reversed(list(self._children.values())):
            self._child_ended(child, Cancelled())

    def _report(self, crash: Crash) -> None:
        try:
            self._report_crash(crash)
        except Exception as exc:  # A faulty report must not change what happens to an actor.
            _log.error("the crash report of supervisor %r itself raised %s", self._name, type(exc).__name__)


def _actor_statistics(child: Child, now: float) -> ActorStatistics:
    if child.mailbox.is_ending:
        state = ActorState.STOPPING
    else:
        state = ActorState.RUNNING if child.pause is None else ActorState.RESTARTING
    return ActorStatistics(
        name=child.mailbox.name,
        state=state,
        mailbox=mailbox_statistics(child.mailbox),
        restarts=0 if child.window is None else child.window.total,
        restarts_in_window=0 if child.window is None else child.window.counted(now),
        last_failure=child.last_failure,
    )


async def _run_group(
    inbox: Inbox[Never, Never], group: Supervisor, start: Callable[[Supervisor], object] | None
) -> None:
    """A nested supervisor, as the actor that it is: open until it is asked to stop."""
    async with group._opened():
        if start is not None:
            start(group)
        async for _ in inbox:
            pass


@asynccontextmanager
async def open_supervisor(
    *, name: str = "supervisor", grace_s: float = GRACE_S, report: Callable[[Crash], None] = log_crash
) -> AsyncIterator[Supervisor]:
    """Open a supervisor. Leaving the block stops its actors, the last started first, all within `grace_s`; then cancels.

    `report` is called with every crash; a plain, quick function.
    """
    supervisor = Supervisor(name, grace_s, report)
    async with supervisor._opened():
        yield supervisor
