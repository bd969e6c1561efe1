"""How long a turn waits for calls that can go on without it (B1).

Calls that begin together are let go of together, when the budget of the last of them is over: one decision, and one answer to the model. The time is kept by
the runtime's deadlines, so that a call in time has cost no task and no timer of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from trouper.actors.deadlines import Deadlines
from trouper.actors.run import Run
from trouper.core.ids import CallId

#: Calls of a session that begin within this time have begun together. None of them is let go of earlier than its budget says, and none later than this.
TOGETHER_S = 0.005


class Allowance:
    """For calls of one session with the same budget that began together."""

    __slots__ = ("_deadlines", "_let_go", "_until", "budget_s", "calls", "deadline")

    def __init__(self, budget_s: float, deadlines: Deadlines, let_go: Callable[[Allowance], None]) -> None:
        self.budget_s = budget_s
        #: Those that the turn still waits for.
        self.calls: dict[CallId, Run] = {}
        self._deadlines = deadlines
        self._let_go = let_go
        now = deadlines.clock()
        #: When others are too late to join.
        self._until = now + TOGETHER_S
        self.deadline = now + budget_s
        deadlines.add(self)

    def has_room(self, budget_s: float) -> bool:
        """Whether a call that begins now with this budget belongs to it."""
        now = self._deadlines.clock()
        return bool(self.calls) and self.budget_s == budget_s and now <= self._until and now < self.deadline

    def begin(self, run: Run) -> None:
        self.calls[run.call] = run
        self.deadline = self._deadlines.clock() + self.budget_s

    def end(self, call: CallId) -> None:
        """Nobody has to wait for the call any more."""
        if self.calls.pop(call, None) is not None and not self.calls:
            self._deadlines.discard(self)

    def time_out(self) -> None:
        self._let_go(self)
