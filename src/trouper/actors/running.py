"""A piece of work under way: the scope that stops it, and whether it has stopped."""

from __future__ import annotations

import math

import trio


class Running:
    """The work runs in a scope, which may be renewed as long as nobody has stopped it; an attempt that ran into its deadline leaves its scope behind.

    Deadlines and stops share one scope, since scopes are what a step spends its time on; `stopped` tells them apart.
    """

    __slots__ = ("_done", "_scope", "ended", "stopped")

    def __init__(self) -> None:
        self._scope: trio.CancelScope | None = None
        #: Nobody wants it any more.
        self.stopped = False
        self.ended = False
        # Made only if somebody waits.
        self._done: trio.Event | None = None

    def stop(self) -> None:
        self.stopped = True
        if self._scope is not None and not self.ended:
            self._scope.cancel()

    def renew(self, deadline: float = math.inf) -> trio.CancelScope:
        """A fresh scope to run in; one that is cancelled already if the work was stopped meanwhile."""
        scope = self._scope = trio.CancelScope(deadline=deadline)
        if self.stopped:
            scope.cancel()
        return scope

    def extend(self, deadline: float) -> None:
        """Another deadline for the scope that it runs in now."""
        if self._scope is not None:
            self._scope.deadline = deadline

    def end(self) -> None:
        self.ended = True
        if self._done is not None:
            self._done.set()

    async def wait_done(self) -> None:
        if not self.ended:
            if self._done is None:
                self._done = trio.Event()
            await self._done.wait()
