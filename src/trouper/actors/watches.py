"""Those who wait for something of a session to change, without following all of its events."""

from __future__ import annotations

import trio

from trouper.core.ids import TaskId


class Watches:
    """One per session actor. A wait ends with the next change, or when the actor is over: then it says so."""

    __slots__ = ("_notified", "_tasks", "over")

    def __init__(self) -> None:
        self._tasks: dict[TaskId, trio.Event] = {}
        # Made only if somebody waits.
        self._notified: trio.Event | None = None
        self.over = False

    def task_changed(self, task_id: TaskId) -> None:
        event = self._tasks.pop(task_id, None)
        if event is not None:
            event.set()

    def notified(self) -> None:
        if self._notified is not None:
            self._notified.set()
            self._notified = None

    def end(self) -> None:
        self.over = True
        self.notified()
        for task_id in list(self._tasks):
            self.task_changed(task_id)

    async def wait_task(self, task_id: TaskId) -> bool:
        """Until the task ends or asks for input; false if nothing will change any more."""
        if not self.over:
            await self._tasks.setdefault(task_id, trio.Event()).wait()
        return not self.over

    async def wait_notified(self) -> bool:
        """Until something is queued; false if nothing will be any more."""
        if not self.over:
            if self._notified is None:
                self._notified = trio.Event()
            await self._notified.wait()
        return not self.over
