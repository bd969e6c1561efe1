"""One actor under a supervisor: the single task that runs its function, again and again as its policy says, to its one end."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import trio

from trouper.actors.exits import Cancelled, Crashed, Exit, Killed, Normal, RestartLimit, Stopped
from trouper.actors.mailbox import Mailbox
from trouper.actors.reference import Inbox
from trouper.actors.restart import Restart, RestartWindow
from trouper.core.values import frozen

if TYPE_CHECKING:
    from trouper.actors.supervisor import Supervisor


@frozen
class Crash:
    """One crash of one actor, as the supervisor's `report` is given it."""

    name: str
    exception: BaseException
    #: The number of the restart that follows, since the actor's start; `None`: it has ended for good.
    restart: int | None


class Child:
    """What a supervisor keeps of an actor. Its whole life is `run`; all else only leaves word for it."""

    __slots__ = (
        "_parent",
        "args",
        "function",
        "grace_s",
        "group",
        "key",
        "last_failure",
        "mailbox",
        "pause",
        "policy",
        "scope",
        "started",
        "stop_grace_s",
        "window",
    )

    def __init__(
        self,
        parent: Supervisor,
        key: str,
        mailbox: Mailbox,
        function: Callable[..., Awaitable[object]],
        args: tuple[Any, ...],
        policy: Restart,
        grace_s: float | None,
        group: Supervisor | None,
    ) -> None:
        self._parent = parent
        self.key = key
        self.mailbox = mailbox
        self.function = function
        self.args = args
        self.policy = policy
        self.grace_s = grace_s
        # The supervisor that this actor is, if it is one.
        self.group = group
        # Around the actor's whole life. A stop sets its deadline, so the grace needs no task of its own.
        self.scope = trio.CancelScope()
        self.started = False
        # The grace that a stop gave; None unless one was asked for.
        self.stop_grace_s: float | None = None
        self.window: RestartWindow | None = None
        # Set while the actor waits to begin again.
        self.pause: trio.Event | None = None
        self.last_failure: BaseException | None = None

    # -- from outside -------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        self.stop_grace_s = None  # Not the end of a grace, even if one had begun.
        self.scope.cancel()

    def stop(self, deadline: float) -> None:
        """Ask to stop; cancel at the deadline. A later call may bring the deadline forward, never put it off."""
        if self.scope.cancel_called:
            return
        now = trio.current_time()
        if self.grace_s is not None and self.stop_grace_s is None:
            deadline = min(deadline, now + self.grace_s)
        if self.stop_grace_s is None or deadline < self.scope.deadline:
            self.stop_grace_s = max(0.0, deadline - now)
            self.scope.deadline = deadline
        self.mailbox.drain()
        if self.pause is not None:
            self.pause.set()

    # -- the life of the actor ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        inbox: Inbox[Any, Any] = Inbox(self.mailbox)
        exit: Exit = Cancelled()
        try:
            with self.scope:
                self.mailbox.consumer = trio.lowlevel.current_task()
                while True:
                    last: Normal | Crashed = Normal()
                    try:
                        await self.function(inbox, *self.args)
                    except Exception as exc:
                        last = Crashed(exc)
                    except BaseExceptionGroup as group:
                        # An actor with a nursery of its own may fail and be cancelled at once. Both count: the failure as the exit
                        # reason, the cancellation for the scopes that are waiting for it.
                        cancelled, rest = group.split(trio.Cancelled)
                        if isinstance(rest, ExceptionGroup):
                            exit = self._crashed_for_good(rest)
                            assert cancelled is not None
                            raise cancelled from None
                        raise
                    over = self._over(last)
                    if over is not None:
                        exit = over
                        return
                    if not await self._wait_restart(last):
                        exit = Stopped()
                        return
        except trio.Cancelled:
            raise
        except BaseException as exc:
            # Recorded, and passed on: a Cancelled in a group belongs to its scope, a KeyboardInterrupt to the program.
            failure = exc.split(trio.Cancelled)[1] if isinstance(exc, BaseExceptionGroup) else exc
            exit = exit if failure is None else Crashed(failure)
            raise
        finally:
            # Not cancelled_caught: when the scopes of a whole branch run out together, the outermost catches.
            if isinstance(exit, Cancelled) and self.scope.cancel_called and self.stop_grace_s is not None:
                exit = Killed(self.stop_grace_s)
            self._parent._child_ended(self, exit)

    def _over(self, last: Normal | Crashed) -> Exit | None:
        """Whether that end is the end, and of what kind; `None`: the actor begins again."""
        now = trio.current_time()
        # Also true if the cancel comes from a block further out: nothing may begin under a cancelled scope.
        cancelled = trio.current_effective_deadline() == -math.inf
        if cancelled or self.mailbox.is_ending:
            if isinstance(last, Crashed):
                return self._crashed_for_good(last.exception)
            if self.stop_grace_s is None:
                return Cancelled()
            return Killed(self.stop_grace_s) if self.scope.cancel_called else Stopped()
        if not self.policy.wants(last):
            return self._crashed_for_good(last.exception) if isinstance(last, Crashed) else last
        if self.window is None:
            self.window = RestartWindow(self.policy)
        if not self.window.allows(now):
            if isinstance(last, Crashed):
                self._crashed_for_good(last.exception)
            return RestartLimit(self.policy.limit, self.policy.within_s, last)
        if isinstance(last, Crashed):
            self.last_failure = last.exception
            self._parent._report(Crash(self.mailbox.name, last.exception, self.window.total + 1))
        return None

    async def _wait_restart(self, last: Normal | Crashed) -> bool:
        """Wait out the delay; False if the actor is asked to stop meanwhile."""
        self.mailbox.lose_taken(last)
        assert self.window is not None
        self.pause = trio.Event()
        try:
            # A wait even without a delay: an actor that crashes at once must not hold up the others.
            with trio.move_on_after(self.window.delay_s(trio.current_time())):
                await self.pause.wait()
        finally:
            self.pause = None
        if self.mailbox.is_ending:
            return False
        self.window.record(trio.current_time())
        return True

    def _crashed_for_good(self, exception: BaseException) -> Crashed:
        self.last_failure = exception
        self._parent._report(Crash(self.mailbox.name, exception, None))
        return Crashed(exception)
