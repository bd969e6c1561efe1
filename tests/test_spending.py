"""The budget of all sessions together: who may begin beside whom, and what is let go of when (L25, I27)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
import trio.testing

from trouper import Budget
from trouper.codec import Record
from trouper.core.calls import Preparation
from trouper.core.commands import Interrupt
from trouper.core.events import ModelReplied, TurnEnded
from trouper.core.ids import CallId
from trouper.core.messages import Message, Text, ToolCall, Usage
from trouper.spending import USUAL_REPLY, Held, Spending

pytestmark = pytest.mark.usefixtures("autojump_clock")

#: Room for two steps that send 100 tokens together, and for what they say.
TWO = Budget(tokens=100 + 2 * USUAL_REPLY)


def ended(session: str) -> Record:
    return Record(session, 0, 1, 1.0, Interrupt(1.0), (TurnEnded(1, "interrupt", 1.0),))


class Steps:
    """Sessions that want to begin a step each; `begun` has those that may."""

    def __init__(self, spending: Spending, nursery: trio.Nursery) -> None:
        self.begun: dict[str, Held] = {}
        self._spending = spending
        self._nursery = nursery
        self._scopes: dict[str, trio.CancelScope] = {}

    async def want(self, *sessions: str, tokens: int = 40) -> list[str]:
        """Those that may by then, in the order in which they could."""
        for session in sessions:
            self._nursery.start_soon(self._hold, session, tokens)
            await trio.testing.wait_all_tasks_blocked()
        return list(self.begun)

    async def _hold(self, session: str, tokens: int) -> None:
        with trio.CancelScope() as self._scopes[session]:
            self.begun[session] = await self._spending.hold(session, tokens)

    def give_up(self, session: str) -> None:
        self._scopes[session].cancel()


async def test_steps_begin_beside_each_other_as_far_as_the_budget_goes() -> None:
    """I27: the next ones when those have ended, as they came; and all that have room then, not one of them alone."""
    spending = Spending(TWO)
    async with trio.open_nursery() as nursery:
        steps = Steps(spending, nursery)
        assert await steps.want("large", tokens=90) == ["large"]
        assert await steps.want("a", "b", "c") == ["large"]
        spending.release(steps.begun["large"])
        await trio.testing.wait_all_tasks_blocked()
        assert list(steps.begun) == ["large", "a", "b"]
        spending.release(steps.begun["a"])
        await trio.testing.wait_all_tasks_blocked()
        assert list(steps.begun) == ["large", "a", "b", "c"]


@pytest.mark.parametrize("may_call", [False, True])
async def test_steps_that_make_no_calls_and_those_that_make_many_do_not_wait_for_each_other(may_call: bool) -> None:
    """I26, I27: only steps that may call hold calls, and wait for others that do."""
    spending = Spending(Budget(tool_calls=1))
    calls = tuple(ToolCall(CallId(f"call_{n}"), "look", {}) for n in range(3))
    prepared = tuple(Preparation() for _ in calls)
    reply = ModelReplied(1, 1, Message("assistant", calls), "tool_use", preparations=prepared)
    spending.count(Record("s", 0, 1, 1.0, Interrupt(1.0), (reply,)))
    first = await spending.hold("first", 40, may_call=may_call)
    second = await spending.hold("second", 40, may_call=not may_call)
    assert {first.tool_calls, second.tool_calls} == {0, 3}
    with trio.move_on_after(1) as scope:
        await spending.hold("third", 40)
    assert scope.cancelled_caught


LET_GO: dict[str, Callable[[Spending, Held], None]] = {
    "it has none": lambda spending, held: spending.release(held),
    "its outcome is recorded": lambda spending, held: spending.count(ended(held.session)),
    "its session is over": lambda spending, held: spending.leave(held.session),
}


@pytest.mark.parametrize("how", LET_GO)
async def test_what_a_step_held_is_there_for_others(how: str) -> None:
    """I26: again and again, for what is not let go of once is missing for good."""
    spending = Spending(TWO)
    async with trio.open_nursery() as nursery:
        steps = Steps(spending, nursery)
        await steps.want("stays")
        for number in range(5):
            name = f"s{number}"
            assert name in await steps.want(name, tokens=60)
            LET_GO[how](spending, steps.begun[name])
            # Once is enough: this one holds nothing any more.
            spending.release(steps.begun[name])


async def test_a_session_that_begins_again_holds_one_step() -> None:
    """I26: its actor has crashed in the midst of one."""
    spending = Spending(TWO)
    async with trio.open_nursery() as nursery:
        steps = Steps(spending, nursery)
        await steps.want("stays")
        for _ in range(3):
            assert "crashes" in await steps.want("crashes", tokens=60)
            steps.begun.pop("crashes")
        spending.leave("crashes")
        assert "other" in await steps.want("other", tokens=60)


async def test_who_is_stopped_as_it_is_its_turn_passes_that_on() -> None:
    """I26: or those behind it wait for ever."""
    spending = Spending(TWO)
    async with trio.open_nursery() as nursery:
        steps = Steps(spending, nursery)
        assert await steps.want("first", "stopped", "patient", tokens=80) == ["first"]
        steps.give_up("stopped")
        spending.release(steps.begun["first"])
        await trio.testing.wait_all_tasks_blocked()
        assert list(steps.begun) == ["first", "patient"]


async def test_who_is_stopped_while_it_waits_is_passed_over() -> None:
    """I26."""
    spending = Spending(TWO)
    async with trio.open_nursery() as nursery:
        steps = Steps(spending, nursery)
        assert await steps.want("first", "stopped", "patient", tokens=80) == ["first"]
        steps.give_up("stopped")
        await trio.testing.wait_all_tasks_blocked()
        spending.release(steps.begun["first"])
        await trio.testing.wait_all_tasks_blocked()
        assert list(steps.begun) == ["first", "patient"]


async def test_a_step_is_expected_to_say_as_much_as_the_longest_before() -> None:
    """I27: what it will say is not known when it begins."""
    spending = Spending(Budget(tokens=5 * USUAL_REPLY))
    usage = Usage(input=10, output=2 * USUAL_REPLY)
    reply = ModelReplied(1, 1, Message("assistant", (Text("so"),)), "end_turn", usage)
    spending.count(Record("s", 0, 1, 1.0, Interrupt(1.0), (reply,)))
    async with trio.open_nursery() as nursery:
        steps = Steps(spending, nursery)
        assert await steps.want("a", "b", tokens=10) == ["a"]
        spending.release(steps.begun["a"])
        await trio.testing.wait_all_tasks_blocked()
        assert list(steps.begun) == ["a", "b"]


@pytest.mark.parametrize("said", [None, 5])
async def test_a_step_is_expected_to_say_something_whatever_was_said_before(said: int | None) -> None:
    """I27: many may be in their first one at once, and what calls a tool in a few words has its answer still to give."""
    spending = Spending(Budget(tokens=USUAL_REPLY))
    if said is not None:
        reply = ModelReplied(1, 1, Message("assistant", (Text("so"),)), "end_turn", Usage(input=10, output=said))
        spending.count(Record("s", 0, 1, 1.0, Interrupt(1.0), (reply,)))
    async with trio.open_nursery() as nursery:
        steps = Steps(spending, nursery)
        assert await steps.want("a", "b", tokens=10) == ["a"]
        spending.release(steps.begun["a"])
        await trio.testing.wait_all_tasks_blocked()
        assert list(steps.begun) == ["a", "b"]


async def test_who_fits_in_does_not_wait_behind_who_does_not() -> None:
    """I26, I27: what was let go of was offered to the first that waits, and if that had no room yet, to nobody."""
    spending = Spending(Budget(tokens=3 * USUAL_REPLY, tool_calls=1))
    await spending.hold("calls", 40)
    says = await spending.hold("says", 40, may_call=False)
    begun: list[str] = []

    async def wait(session: str, may_call: bool) -> None:
        await spending.hold(session, 40, may_call=may_call)
        begun.append(session)

    async with trio.open_nursery() as nursery:
        for session, may_call in (("would call", True), ("would say", False)):
            nursery.start_soon(wait, session, may_call)
            await trio.testing.wait_all_tasks_blocked()
        assert not begun
        spending.release(says)
        await trio.testing.wait_all_tasks_blocked()
        assert begun == ["would say"]
        spending.leave("calls")
        spending.leave("would say")
