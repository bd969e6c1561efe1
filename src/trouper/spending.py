"""What all sessions of a runtime have used together, and its budget for that (L25).

What a step costs, or a summary, is known when it has ended, and many sessions may be in one at once. So a step that is under way holds what it is expected to cost; one that
would go beyond the budget together with those waits until they have ended, and alone it may. Like this the budget is overshot by one step (I27), and by what
the others cost more than was to be expected: more than was ever sent before, a longer reply than any before and than usual, or one with more calls.
"""

from __future__ import annotations

import trio
from attrs import define

from trouper import codec
from trouper.core.events import CompactionEnded, ModelFailed, ModelReplied, TurnEnded
from trouper.core.messages import NO_USAGE, Fault
from trouper.core.settings import WARN_SHARE, Budget

#: Events that say what something has cost.
_COSTLY = frozenset({ModelReplied, ModelFailed, CompactionEnded, TurnEnded})
#: Tokens that a reply is expected to have at least. Nobody can say that it is short: many may be in their first step at once, and a call is followed by an answer.
USUAL_REPLY = 2_000


@define(eq=False)
class Held:
    """What a step under way is expected to cost."""

    session: str
    tokens: int
    tool_calls: int
    #: Whether its reply has come: then this is what it has cost.
    is_known: bool = False


class Spending:
    """Counted since the runtime was opened."""

    def __init__(self, budget: Budget) -> None:
        self.usage = NO_USAGE
        self._budget = budget
        #: Whether there is anything to watch.
        self.is_capped = not (budget.tokens is None and budget.steps is None and budget.tool_calls is None)
        self.caps_tokens = budget.tokens is not None
        self._steps = self._tool_calls = 0
        self._warned: set[str] = set()
        #: What the steps under way hold, by session; and all of it: of those whose reply has come, and of how many others.
        self._held: dict[str, Held] = {}
        self._known_tokens = self._known_calls = 0
        self._expected_tokens = self._expected_calls = self._expecting = 0
        #: The longest reply so far, in tokens, and the most calls in one.
        self._most_said = self._most_called = 0
        #: Those that wait for others to end, as they came. Invariant: as long as somebody waits, somebody else holds something, or has been woken.
        self._waiting: list[tuple[Held, trio.Event]] = []

    def count(self, record: codec.Record) -> None:
        for event in record.events:
            kind = type(event)
            if kind in _COSTLY:
                self.usage = self.usage + event.usage
                if kind is ModelReplied:
                    self.usage = self.usage + event.retried
                    self._tool_calls += len(event.preparations)
                    self._most_said = max(self._most_said, event.usage.output or 0)
                    self._most_called = max(self._most_called, len(event.preparations))
                if (held := self._held.get(record.session)) is not None:
                    self.release(held)

    # -- steps under way

    async def hold(self, session: str, tokens: int, *, may_call: bool = True) -> Held:
        """Hold what a step of this session, or a summary, is expected to cost, of which `tokens` are sent; as soon as it fits in with those under way.
        `may_call`: whether its reply may be calls. One that is offered no tools makes none, nor does a summary.

        Let go of when its outcome is recorded; or by `release`, if it has none.
        """
        if (before := self._held.get(session)) is not None:
            self.release(before)  # Of an actor that has crashed, and begins again.
        # One call at least: nobody can say that it makes none, and many may be in their first step at once.
        calls = max(1, self._most_called) if may_call else 0
        cost = Held(session, tokens + max(USUAL_REPLY, self._most_said), calls)
        while not self._fits(cost):
            waiter = cost, trio.Event()
            self._waiting.append(waiter)
            try:
                await waiter[1].wait()
            except trio.Cancelled:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
                else:
                    self._wake()
                raise
        self._held[session] = cost
        self._add(cost, 1)
        # There may be room for one more.
        self._wake()
        return cost

    def release(self, held: Held) -> None:
        """The step has ended, or will not be. Once it is let go of, the session may be in the next one already."""
        if self._held.get(held.session) is held:
            del self._held[held.session]
            self._add(held, -1)
            self._wake()

    def replied(self, held: Held, tokens: int, tool_calls: int) -> None:
        """The step's reply has come, and nobody has to wait any more for what it will be. It is recorded later: first hooks are asked about its calls, and they may ask another session."""
        if self._held.get(held.session) is held:
            self._add(held, -1)
            held.tokens, held.tool_calls, held.is_known = tokens, tool_calls, True
            self._add(held, 1)
            self._wake()

    def leave(self, session: str) -> None:
        """The session is over, whatever it still holds."""
        if (held := self._held.get(session)) is not None:
            self.release(held)

    def _add(self, held: Held, times: int) -> None:
        if held.is_known:
            self._known_tokens += times * held.tokens
            self._known_calls += times * held.tool_calls
        else:
            self._expected_tokens += times * held.tokens
            self._expected_calls += times * held.tool_calls
            self._expecting += times

    def _fits(self, cost: Held) -> bool:
        """Whether it may begin: beside the others, or because there are none, of calls none that may make any."""
        budget = self._budget
        tokens = self._used_tokens + self._expected_tokens
        calls = self._tool_calls + self._known_calls + self._expected_calls
        return (not self._expecting or budget.tokens is None or tokens + cost.tokens <= budget.tokens) and (
            not self._expected_calls
            or not cost.tool_calls
            or not budget.tool_calls
            or calls + cost.tool_calls <= budget.tool_calls
        )

    def _wake(self) -> None:
        for waiter in self._waiting:
            cost, woken = waiter
            if self._fits(cost):
                self._waiting.remove(waiter)
                woken.set()
                return

    # -- what is left

    def begin_step(self, held: Held) -> Fault | None:
        """A session is about to ask a model: one more step; or why none may any more. Whoever makes no calls may still say something about the last ones.

        Counted here and not by its record: of many that begin together as many may ask as the budget allows, and one that may not has used nothing.
        """
        if (spent := self.spent_out(self._known_calls if held.tool_calls else 0)) is None:
            self._steps += 1
        return spent

    def spent_out(self, known_calls: int = 0) -> Fault | None:
        """Why no model may be asked any more, if so."""
        for what, used, cap in self._spent(known_calls):
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

    @property
    def _used_tokens(self) -> int:
        return (self.usage.total or 0) + self._known_tokens

    def _spent(self, known_calls: int = 0) -> list[tuple[str, int, int]]:
        """What the budget caps: what, how much is used, and of how much."""
        budget = self._budget
        spent = (
            ("tokens", self._used_tokens, budget.tokens),
            ("steps", self._steps, budget.steps),
            # None at all: then no session makes any.
            ("tool_calls", self._tool_calls + known_calls, budget.tool_calls or None),
        )
        return [(what, used, cap) for what, used, cap in spent if cap is not None]
