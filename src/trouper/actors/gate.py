"""A gate for so many at a time. Whoever comes while there is room passes without a trip through the scheduler."""

from __future__ import annotations

from collections import deque

import trio

from trouper.actors.request import ki_safe


class Gate:
    """Whoever has come in has to leave, whatever happens; those who wait come in as they came."""

    __slots__ = ("_room", "_waiting")

    def __init__(self, room: int) -> None:
        self._room = room
        # Invariant: nobody waits while there is room.
        self._waiting: deque[trio.lowlevel.Task] = deque()

    async def enter(self) -> None:
        """Come in as soon as there is room; without a checkpoint, if there is. A cancel while waiting leaves nothing to be done."""
        if self._room:
            self._room -= 1
            return
        task = trio.lowlevel.current_task()
        self._waiting.append(task)

        def give_up(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._waiting.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(give_up)

    @ki_safe  # Whoever leaves, and wherever: a Ctrl-C halfway would keep a place for good.
    def leave(self) -> None:
        if self._waiting:
            trio.lowlevel.reschedule(self._waiting.popleft())
        else:
            self._room += 1
