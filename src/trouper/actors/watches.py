"""Those who wait for something of a session to change, without following all of its events."""

from __future__ import annotations

import trio

from trouper._errors import CommandRejected
from trouper.core.ids import TaskId


class Watches:
    """One per session actor. A wait ends with the next change, or when the actor is over: then it says so."""

    __slots__ = ("_notified", "_runs", "_tasks", "_waits", "over")

    def __init__(self) -> None:
        self._tasks: dict[TaskId, trio.Event] = {}
        #: Which of trio's tasks does each run, and what those that wait in `wait_for` wait for.
        self._runs: dict[TaskId, trio.lowlevel.Task] = {}
        self._waits: dict[trio.lowlevel.Task, TaskId] = {}
        # Made only if somebody waits.
        self._notified: trio.Event | None = None
        self.over = False

    def task_changed(self, task_id: TaskId) -> None:
        event = self._tasks.pop(task_id, None)
        if event is not None:
            event.set()

    def no_runs(self) -> None:
        """Those that there were have ended with the actor's last life."""
        self._runs.clear()

    def run_began(self, task_id: TaskId, task: trio.lowlevel.Task) -> None:
        self._runs[task_id] = task

    def run_ended(self, task_id: TaskId) -> None:
        self._runs.pop(task_id, None)

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

    async def wait_for(self, task_id: TaskId) -> bool:
        """The same, for somebody who may be a run himself: `CommandRejected` if he would wait for himself, directly or round a ring of runs."""
        me = trio.lowlevel.current_task()
        self._refuse_ring(me, task_id)
        self._waits[me] = task_id
        try:
            return await self.wait_task(task_id)
        finally:
            del self._waits[me]

    def _refuse_ring(self, me: trio.lowlevel.Task, task_id: TaskId) -> None:
        waited_for = task_id
        while (run := self._runs.get(waited_for)) is not None:
            if _is_within(me, run):
                why = "is this very run" if waited_for == task_id else "waits for this run"
                raise CommandRejected(
                    f"task {task_id!r} {why}, which would never end; go on without its end", task_id=task_id
                )
            # Of a run's own task alone: whatever else it has started may wait, and the run goes on.
            if run not in self._waits:
                return
            waited_for = self._waits[run]

    async def wait_notified(self) -> bool:
        """Until something is queued; false if nothing will be any more."""
        if not self.over:
            if self._notified is None:
                self._notified = trio.Event()
            await self._notified.wait()
        return not self.over


def _is_within(task: trio.lowlevel.Task | None, outer: trio.lowlevel.Task) -> bool:
    """Whether it is that task, or runs in a nursery of that one's, or in one further in."""
    while task is not None and task is not outer:
        task = None if task.parent_nursery is None else task.parent_nursery.parent_task
    return task is not None
