"""Budgets (L25, I27): tokens, steps, tool calls and wall time, per session and per runtime."""

from __future__ import annotations

import pytest
import trio
from session_watch import recorded

from trouper import Budget, Hooks, Limits, Usage, tool
from trouper.actors.preparing import NO_CALLS
from trouper.core.events import BudgetWarned, CallEnded, StepStarted, TurnEnded
from trouper.core.messages import Outcome
from trouper.core.task_record import TaskState
from trouper.models import Scripted, call, reply, stall
from trouper.tools.hooks import AfterTool, BeforeTool, Rewrite


@tool(readonly=True)
async def look(n: int = 0) -> dict[str, int]:
    """Look at something."""
    return {"n": n}


def rounds(count: int, **usage: int) -> list:
    return [reply(call("look", n=n), usage=Usage(**usage) if usage else None) for n in range(count)]


@pytest.mark.parametrize(
    ("budget", "what", "spent"),
    [
        (Budget(tokens=100), "tokens", [80.0]),
        (Budget(steps=5), "steps", [4]),
        (Budget(tool_calls=5), "tool_calls", [4]),
    ],
    ids=["tokens", "steps", "tool calls"],
)
async def test_a_session_warns_at_80_percent_and_then_ends_as_budget(
    autojump_clock, open_checked, journal, budget, what, spent
):
    """L25, I27: overshot by at most one step."""
    model = Scripted([*rounds(20, input=15, output=5), reply("never")])
    async with open_checked(model, tools=[look], limits=Limits(max_steps=0)) as runtime:
        session = await runtime.session("s", budget=budget)
        result = await session.ask("go")
        assert (result.stop_reason, result.error.kind) == ("budget", "budget")
        assert what in result.error.message and len(model.requests) == 5
        # A further turn ends at once, and nobody is asked.
        assert (await session.ask("more")).stop_reason == "budget" and len(model.requests) == 5
        # With more of it, the session goes on.
        await runtime.session("s", budget=Budget(), model=Scripted([reply("Here.")]))
        assert (await session.ask("and now?")).text == "Here."
    assert [(warned.what, warned.spent) for warned in recorded(journal, BudgetWarned)] == [(what, spent[0])]


@pytest.mark.parametrize("whose", ["session", "runtime"])
@pytest.mark.parametrize(
    ("budget", "what", "spent"),
    [
        (Budget(tokens=30), "tokens", 40),
        (Budget(steps=2), "steps", 2),
        (Budget(tool_calls=2), "tool_calls", 2),
    ],
    ids=["tokens", "steps", "tool calls"],
)
async def test_a_budget_that_one_step_takes_past_its_80_percent_is_warned_of_before_the_end(
    autojump_clock, open_checked, journal, budget, what, spent, whose
):
    """L25: first the warning, then the end, however much a step costs."""
    model = Scripted([*rounds(5, input=15, output=5)])
    async with open_checked(model, tools=[look], budget=budget if whose == "runtime" else None) as runtime:
        session = await runtime.session("s", budget=budget if whose == "session" else None)
        async with session.turn("go") as turn:
            told = [event async for event in turn if type(event) in (BudgetWarned, TurnEnded)]
        assert turn.result.stop_reason == "budget" and len(model.requests) == 2
        assert (await session.ask("more")).stop_reason == "budget"
    expected = what if whose == "session" else f"runtime {what}"
    (warned, ended) = told
    assert (type(warned), type(ended)) == (BudgetWarned, TurnEnded)
    assert (warned.what, warned.spent) == (expected, spent)
    assert recorded(journal, BudgetWarned) == [warned]


@pytest.mark.parametrize("whose", ["session", "runtime", "runtime, in spite of the session"])
async def test_a_budget_of_no_tool_calls_is_one_for_text_alone(autojump_clock, open_checked, journal, whose):
    """L25, L20: as elsewhere, 0 is none. The model is offered no tools; and if it calls one, that is denied, and it can do without."""
    ran = []

    @tool
    async def act() -> str:
        """Acts."""
        ran.append(1)
        return "done"

    none = Budget(tool_calls=0)
    model = Scripted([reply("Text."), reply(call("act")), reply("Then without."), reply("And on.")])
    async with open_checked(model, tools=[act], budget=None if whose == "session" else none) as runtime:
        given = {"session": none, "runtime": None}.get(whose, Budget(tool_calls=7))
        session = await runtime.session("s", budget=given)
        for text in ("Text.", "Then without.", "And on."):
            result = await session.ask("go")
            assert (result.text, result.stop_reason) == (text, "end_turn")
    (denied,) = recorded(journal, CallEnded)
    assert denied.outcome is Outcome.DENIED and "No tools may be called here" in denied.content
    assert not ran and not any(request.tools for request in model.requests)
    assert not recorded(journal, BudgetWarned)


async def test_no_hook_is_asked_about_a_call_that_the_budget_refuses(autojump_clock, open_checked, journal):
    """L25, T5: there is nothing to allow, and what a hook does on the way (asks somebody, counts, rewrites) would be for nothing. After-hooks see the denied call."""
    asked, told = [], []

    async def rewrite(before: BeforeTool) -> Rewrite:
        asked.append(before)
        return Rewrite({"n": 7})

    async def note(after: AfterTool) -> None:
        told.append((after.tool, after.arguments, after.outcome))

    hooks = [Hooks(before_tool=rewrite, after_tool=note)]
    model = Scripted([reply(call("look", n=3), call("nobody")), reply("Then without.")])
    async with open_checked(model, tools=[look], hooks=hooks, budget=Budget(tool_calls=0)) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("go")).text == "Then without."
    assert not asked
    assert sorted(told) == [("look", {"n": 3}, "denied"), ("nobody", {}, "denied")]
    assert {ended.content for ended in recorded(journal, CallEnded)} == {NO_CALLS}


async def test_a_budget_of_no_tool_calls_is_the_models_not_the_hosts(autojump_clock, open_checked):
    """L25: what the host starts is no call of the model."""

    @tool(readonly=True, background=True)
    async def act() -> str:
        """Acts."""
        return "done"

    async with open_checked(tools=[act], budget=Budget(tool_calls=0)) as runtime:
        session = await runtime.session("s")
        ended = await session.wait_task((await session.spawn("act")).id)
        assert ended.state is TaskState.SUCCEEDED


@pytest.mark.parametrize(
    "budget", [Budget(tokens=0), Budget(steps=0), Budget(wall_s=0)], ids=["tokens", "steps", "seconds"]
)
async def test_a_budget_of_nothing_asks_nobody(autojump_clock, open_checked, journal, budget):
    """L25: neither in a session nor in any of a runtime; and 80 % of nothing is nothing to warn of."""
    model = Scripted([reply("never")])
    async with open_checked(model, budget=budget) as runtime:
        result = await (await runtime.session("a")).ask("go")
        assert result.stop_reason == "budget" and "(1 used)" not in result.error.message
    async with open_checked(model) as runtime:
        assert (await (await runtime.session("b", budget=budget)).ask("go")).stop_reason == "budget"
    assert not model.requests and not recorded(journal, BudgetWarned)


async def test_a_cap_that_was_raised_is_warned_of_anew(autojump_clock, open_checked, journal):
    """L25: each cap has its own 80 %; and none is warned of twice."""
    model = Scripted([*rounds(30, input=15, output=5)])
    async with open_checked(model, tools=[look], limits=Limits(max_steps=0, loop_warn=0)) as runtime:
        session = await runtime.session("s", budget=Budget(tokens=100))
        assert (await session.ask("go")).stop_reason == "budget"
        await runtime.session("s", budget=Budget(tokens=200, steps=9))
        assert (await session.ask("go on")).stop_reason == "budget"
        await runtime.session("s", budget=Budget(tokens=400, steps=9))
        assert (await session.ask("and on")).stop_reason == "budget"
    warned = [(warned.what, warned.spent, warned.cap) for warned in recorded(journal, BudgetWarned)]
    assert warned == [("tokens", 80, 100), ("tokens", 160, 200), ("steps", 8, 9)]


async def test_wall_time_ends_a_turn_wherever_it_is(autojump_clock, open_checked, journal):
    """L25"""

    @tool
    async def wait() -> str:
        """Waits."""
        await trio.sleep(100)
        return "x"

    model = Scripted([reply("Begun ", stall(100), "never"), reply(call("wait"))])
    async with open_checked(model, tools=[wait], budget=Budget(wall_s=30.0)) as runtime:
        session = await runtime.session("s")
        for expected in ("Begun ", ""):
            begun = trio.current_time()
            result = await session.ask("go")
            assert trio.current_time() - begun == pytest.approx(30, abs=0.1)
            assert (result.stop_reason, result.error.kind, result.text) == ("budget", "budget", expected)
    assert recorded(journal, CallEnded)[0].outcome is Outcome.CANCELLED
    assert len(recorded(journal, TurnEnded)) == 2


async def test_wall_time_warns_at_80_percent_of_each_turn(autojump_clock, open_checked, journal):
    """L25: wherever the turn is; and not at all, if it ends before."""

    @tool
    async def wait() -> str:
        """Waits."""
        await trio.sleep(26)
        return "x"

    model = Scripted([reply(call("wait")), reply("Just in time."), reply(stall(25), "So is this."), reply("Quick.")])
    async with open_checked(model, tools=[wait], budget=Budget(wall_s=30.0)) as runtime:
        session = await runtime.session("s")
        for text in ("Just in time.", "So is this.", "Quick."):
            assert (await session.ask("go")).text == text
        await trio.sleep(100)
    warned = [
        (record.cause.turn, event) for record in journal for event in record.events if type(event) is BudgetWarned
    ]
    assert [(turn, event.what, event.cap) for turn, event in warned] == [(1, "wall_s", 30.0), (2, "wall_s", 30.0)]
    assert [event.spent for _, event in warned] == pytest.approx([24.0, 24.0], abs=0.01)


@pytest.mark.parametrize(
    ("budget", "requests", "what"),
    [
        (Budget(tokens=100), 5, "runtime tokens"),
        (Budget(steps=4), 4, "runtime steps"),
        (Budget(tool_calls=5), 5, "runtime tool_calls"),
    ],
    ids=["tokens", "steps", "tool calls"],
)
async def test_a_runtime_has_a_budget_for_all_its_sessions(
    autojump_clock, open_checked, journal, budget, requests, what
):
    """L25: per harness."""
    model = Scripted([*rounds(20, input=15, output=5)])
    async with open_checked(model, tools=[look], limits=Limits(max_steps=2), budget=budget) as runtime:
        ends = [(await (await runtime.session(name)).ask("go")).stop_reason for name in ("a", "b", "c", "d")]
    assert len(model.requests) == requests
    assert ends[0] == "max_steps" and ends[-1] == "budget"
    (warned,) = recorded(journal, BudgetWarned)
    assert warned.what == what and 0.8 <= warned.spent / warned.cap <= 1


async def test_without_a_budget_nothing_is_capped(autojump_clock, open_checked, journal):
    """L25"""
    model = Scripted([*rounds(30, input=10**9, output=10**9), reply("Done.")])
    async with open_checked(model, tools=[look], limits=Limits(max_steps=0)) as runtime:
        assert (await (await runtime.session("s")).ask("go")).text == "Done."
    assert not recorded(journal, BudgetWarned) and len(recorded(journal, StepStarted)) == 31
