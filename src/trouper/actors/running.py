"""A piece of work under way: the scope that stops it, and whether it has stopped."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from types import TracebackType

import trio

from trouper.actors.deadlines import Deadlines

logger = logging.getLogger("trouper.session")
_ki_safe = trio.lowlevel.enable_ki_protection


class Lane:
    """Where one task does one piece of work after another: a block around all of them, which keeps a scope for them.

    Scopes are what a short step would spend its time on. A cancel cannot be taken back; so a scope that was cancelled ends with the piece of work that was
    meant, and the next one gets another. Between two pieces nobody has hold of the scope.
    """

    __slots__ = ("_innermost", "deadlines", "scope", "task")

    def __init__(self, deadlines: Deadlines) -> None:
        self.deadlines = deadlines
        self.scope: trio.CancelScope | None = None
        self.task = trio.lowlevel.current_task()
        self._innermost: object = None

    def __enter__(self) -> Lane:
        return self

    def open(self) -> trio.CancelScope:
        """A scope to be in from now on."""
        scope = self.scope = trio.CancelScope()
        scope.__enter__()
        self._innermost = getattr(self.task, "_cancel_status", None)
        return scope

    @property
    def is_left_open(self) -> bool:
        """Whether the task is in another scope than this one. Only trio itself knows, and has no public name for it; without it nobody would notice."""
        return getattr(self.task, "_cancel_status", None) is not self._innermost

    @_ki_safe
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the scope, and with it those that foreign code has left open: an async generator with a time-out inside that was not read to its end does."""
        scope, self.scope = self.scope, None
        if scope is None:
            return
        try:
            scope.__exit__(kind, value, trace)
        except RuntimeError as left_open:
            if value is not None:
                raise  # It has hit already, and a cancel that nobody around us asked for must not go on up.
            logger.error(
                "a tool or a model's client left a cancel scope open; close its async generators with contextlib.aclosing()",
                exc_info=left_open,
            )


class Running:
    """The handle by which a piece of work is stopped. It runs in a block, or several in a row; one that ran into its deadline is over, and another may follow.

    Deadlines and stops share one scope; `stopped` tells them apart.
    """

    __slots__ = ("_cancelled", "_done", "_lane", "_scope", "cancelled_caught", "deadline", "ended", "stopped")
    #: Set when it begins.
    _lane: Lane

    def __init__(self) -> None:
        #: While it is in a block.
        self._scope: trio.CancelScope | None = None
        self._cancelled = False
        self.deadline = math.inf
        #: Whether the last block was left because it was stopped or had run into its deadline.
        self.cancelled_caught = False
        #: Nobody wants it any more.
        self.stopped = False
        self.ended = False
        # Made only if somebody waits.
        self._done: trio.Event | None = None

    def stop(self) -> None:
        self.stopped = True
        self.time_out()

    def time_out(self) -> None:
        """Cancel the block that it is in, if it is in one."""
        if self._scope is not None:
            self._cancelled = True
            self._scope.cancel()

    def begin(self, lane: Lane) -> bool:
        """It is this lane's turn to do it. False if it was stopped before."""
        self._lane = lane
        return not self.stopped

    @property
    def task(self) -> trio.lowlevel.Task:
        """The task that does it, once it has begun."""
        return self._lane.task

    @property
    def clock(self) -> Callable[[], float]:
        """Tells the time by which its deadlines are meant."""
        return self._lane.deadlines.clock

    def until(self, deadline: float = math.inf) -> Running:
        """`with running.until(deadline):` is a block to run in. If the work was stopped meanwhile, it is cancelled from the start."""
        self.deadline = deadline
        return self

    def extend(self, deadline: float) -> None:
        """Another deadline for the block that it is in."""
        sooner = deadline < self.deadline
        self.deadline = deadline
        if sooner and self._scope is not None:
            self._lane.deadlines.add(self)

    @_ki_safe
    def __enter__(self) -> Running:
        lane = self._lane
        scope = lane.scope
        if scope is None:
            scope = lane.open()
        self._scope = scope
        self._cancelled = self.cancelled_caught = False
        if self.deadline < math.inf:
            lane.deadlines.add(self)
        if self.stopped:
            self.time_out()
        return self

    @_ki_safe
    def close_left_open(self) -> None:
        """Close the scopes that foreign code has left open in the block. What they have asked for is not meant for us; what was asked of us still holds."""
        lane = self._lane
        if lane.is_left_open:
            lane.__exit__(None, None, None)
            self._scope = lane.open()
            if self._cancelled:
                self._scope.cancel()

    @_ki_safe
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool:
        lane = self._lane
        lane.deadlines.discard(self)
        if self._cancelled:
            self.close_left_open()
        scope, self._scope = self._scope, None
        assert scope is not None
        if self._cancelled:
            lane.scope = None
            caught = scope.__exit__(kind, value, trace)
            self.cancelled_caught = scope.cancelled_caught
            return caught
        if lane.is_left_open:
            lane.__exit__(kind, value, trace)  # A scope was left open, and must not hit the next piece of work.
        return False

    def end(self) -> None:
        self.ended = True
        if self._done is not None:
            self._done.set()

    async def wait_done(self) -> None:
        if not self.ended:
            if self._done is None:
                self._done = trio.Event()
            await self._done.wait()
