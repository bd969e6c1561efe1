"""Which reply a request gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from trouper.models.chunks import Chunk
from trouper.testing.server.faults import Fault, Status
from trouper.testing.server.listener import SeenRequest

Item: TypeAlias = Chunk | Fault
#: The items of one reply, or a function that makes them for a request.
Turn: TypeAlias = Sequence[Item] | Callable[[SeenRequest], Sequence[Item]]


class Script:
    """Turns in order, one for each request that asks the model; then the last again, or an error."""

    def __init__(self, turns: Iterable[Turn], *, repeat_last: bool = False) -> None:
        self._turns = list(turns)
        self._repeat_last = repeat_last
        self._next = 0

    def add(self, *turns: Turn) -> None:
        self._turns.extend(turns)

    def reply_to(self, request: SeenRequest) -> Sequence[Item]:
        if self._next < len(self._turns):
            turn = self._turns[self._next]
            self._next += 1
        elif self._repeat_last and self._turns:
            turn = self._turns[-1]
        else:
            return (Status(500, f"the script has no reply to request {self._next + 1}; add a turn"),)
        return turn(request) if callable(turn) else turn
