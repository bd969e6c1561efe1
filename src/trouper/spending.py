"""What all sessions of a runtime have used together, and its budget for that (L25)."""

from __future__ import annotations

from trouper import codec
from trouper.core.events import CompactionEnded, ModelFailed, ModelReplied, StepStarted, TurnEnded
from trouper.core.messages import NO_USAGE, Fault
from trouper.core.settings import WARN_SHARE, Budget


class Spending:
    """Counted since the runtime was opened."""

    def __init__(self, budget: Budget) -> None:
        self.usage = NO_USAGE
        self._budget = budget
        #: Whether there is anything to watch.
        self.is_capped = not (budget.tokens is None and budget.steps is None and budget.tool_calls is None)
        self._steps = self._tool_calls = 0
        self._warned: set[str] = set()

    def count(self, record: codec.Record) -> None:
        for event in record.events:
            kind = type(event)
            if kind is ModelReplied or kind is ModelFailed or kind is CompactionEnded or kind is TurnEnded:
                self.usage = self.usage + event.usage
                if kind is ModelReplied:
                    self.usage = self.usage + event.retried
                    self._tool_calls += len(event.preparations)
            elif kind is StepStarted:
                self._steps += 1

    def over_budget(self) -> Fault | None:
        """Why no session may ask a model any more, if so."""
        for what, used, cap in self._spent():
            if what == "steps":
                used -= 1  # The step that asks is counted already.
            if used >= cap:
                return Fault(
                    "budget",
                    f"the runtime's budget of {cap} {what} is spent ({used} used); raise Budget.{what} to go on",
                )
        return None

    def warnings(self) -> list[tuple[str, float, float]]:
        """Caps of which 80 % are spent, each told once: what, how much, of how much."""
        due: list[tuple[str, float, float]] = [
            (f"runtime {what}", used, cap)
            for what, used, cap in self._spent()
            if cap and used >= cap * WARN_SHARE and what not in self._warned
        ]
        self._warned.update(what.removeprefix("runtime ") for what, _, _ in due)
        return due

    def _spent(self) -> list[tuple[str, int, int]]:
        """What the budget caps: what, how much is used, and of how much."""
        budget = self._budget
        spent = (
            ("tokens", self.usage.total or 0, budget.tokens),
            ("steps", self._steps, budget.steps),
            # None at all: then no session makes any.
            ("tool_calls", self._tool_calls, budget.tool_calls or None),
        )
        return [(what, used, cap) for what, used, cap in spent if cap is not None]
