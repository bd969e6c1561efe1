"""Budgets (L25, I27): tokens, steps, tool calls and wall time, per session and per runtime."""

from __future__ import annotations

import pytest
import trio
from clinging import SlowToClose
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


async def test_of_turns_that_begin_together_as_many_go_on_as_the_runtime_has_steps_for(autojump_clock, open_checked):
    """L25: a step that may not be made has used nothing."""
    model = Scripted([reply("Hi.")], exhausted="repeat", first_delay_s=1.0)
    ends: list[str] = []
    async with open_checked(model, budget=Budget(steps=3)) as runtime:

        async def ask(name: str) -> None:
            ends.append((await (await runtime.session(name)).ask("hello")).stop_reason)

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(ask, f"s{number}")
        result = await (await runtime.session("late")).ask("and me?")
    assert (sorted(ends), len(model.requests)) == (["budget"] * 5 + ["end_turn"] * 3, 3)
    assert result.error is not None and "3 used" in result.error.message


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


@pytest.mark.parametrize("budget", [Budget(tokens=10), Budget(steps=1), Budget(tool_calls=1)])
@pytest.mark.parametrize("whose", ["session", "runtime"])
async def test_a_step_that_the_budget_refuses_is_none(autojump_clock, open_checked, budget, whose):
    """L2, L25: whosever budget it was, steps are those in which the model was asked."""
    model = Scripted([*rounds(20, input=15, output=5)])
    async with open_checked(model, tools=[look], budget=budget if whose == "runtime" else Budget()) as runtime:
        session = await runtime.session("s", budget=budget if whose == "session" else None)
        first, second = await session.ask("go"), await session.ask("go on")
        assert (first.stop_reason, first.steps) == (second.stop_reason, second.steps + 1) == ("budget", 1)
        assert session.statistics().steps == len(model.requests) == 1


LONG = "word " * 720  # 900 tokens


async def at_once(runtime, count: int, turns: int = 1, *, text: str = LONG) -> list[str]:
    """How the turns ended of so many sessions that all ask at the same time."""
    ends: list[str] = []

    async def ask(name: str) -> None:
        session = await runtime.session(name)
        for _ in range(turns):
            ends.append((await session.ask(text)).stop_reason)

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(ask, f"s{number}")
    return ends


@pytest.mark.parametrize(("cap", "steps"), [(2_500, 3), (10_000, 10), (100_000, 40)])
async def test_sessions_that_ask_at_once_overshoot_the_runtimes_tokens_by_one_step(
    autojump_clock, open_checked, cap, steps
):
    """L25, I27: each held what it would cost, and those that did not fit in beside the others waited until these had ended."""
    model = Scripted([reply(stall(1), "x", usage=Usage(input=900, output=100))], exhausted="repeat")
    async with open_checked(model, budget=Budget(tokens=cap)) as runtime:
        ends = await at_once(runtime, 20, turns=2)
        assert runtime.statistics().usage.total == steps * 1_000 <= cap + 1_000
        # Those that fit in are not kept waiting.
        assert trio.current_time() < 4 or cap < 40_000
    assert len(model.requests) == steps == ends.count("end_turn") and len(ends) == 40


@pytest.mark.parametrize("calls_first", [False, True])
async def test_sessions_that_begin_at_once_overshoot_the_runtimes_tokens_by_one_step(
    autojump_clock, open_checked, calls_first
):
    """L25, I27: also before anybody knows how long a reply is, or when all that was said before were calls in a few words."""
    answer = reply(stall(1), "x", usage=Usage(input=20, output=500))
    script = [reply(call("look"), usage=Usage(input=20, output=5))] if calls_first else []
    model = Scripted([*script, answer], exhausted="repeat")
    async with open_checked(model, tools=[look], budget=Budget(tokens=1_000), limits=Limits(max_steps=1)) as runtime:
        if calls_first:
            assert (await (await runtime.session("first")).ask("go")).stop_reason == "max_steps"
        await at_once(runtime, 20, text="go")
        assert runtime.statistics().usage.total <= 1_000 + 520


async def test_sessions_that_ask_at_once_share_the_runtimes_steps_and_calls(autojump_clock, open_checked):
    """L25: as many steps as there are in the budget; who is refused does not use one up."""
    model = Scripted([reply(stall(1), "x")], exhausted="repeat")
    async with open_checked(model, budget=Budget(steps=5)) as runtime:
        ends = await at_once(runtime, 20)
    assert len(model.requests) == 5 == ends.count("end_turn") and ends.count("budget") == 15
    model = Scripted([reply(stall(1), call("look"), call("look"))], exhausted="repeat")
    async with open_checked(model, tools=[look], budget=Budget(tool_calls=12), limits=Limits(max_steps=2)) as runtime:
        assert (await (await runtime.session("first")).ask("go")).stop_reason == "max_steps"
        await at_once(runtime, 20)
    assert len(model.requests) == 6


async def test_sessions_that_begin_at_once_keep_to_the_runtimes_calls(autojump_clock, open_checked):
    """L25, I27: also before anybody knows how many calls a step makes. One is to be expected of each."""
    model = Scripted([reply(stall(1), call("look"))], exhausted="repeat")
    async with open_checked(model, tools=[look], budget=Budget(tool_calls=5)) as runtime:
        ends = await at_once(runtime, 20)
    assert len(model.requests) == 5 and ends == ["budget"] * 20


async def test_sessions_without_tools_do_not_wait_for_the_runtimes_calls(autojump_clock, open_checked):
    """L25, I27: they make none, whoever else makes how many; so they ask beside each other, and beside one that has tools."""
    model = Scripted([reply(stall(1), "x")], exhausted="repeat")
    async with open_checked(model, budget=Budget(tool_calls=2)) as runtime, trio.open_nursery() as nursery:
        seeing = await runtime.session("seeing", tools=[look])
        nursery.start_soon(seeing.ask, "go")
        assert await at_once(runtime, 20) == ["end_turn"] * 20
    assert trio.current_time() == 1.0 and len(model.requests) == 21


@pytest.mark.parametrize(
    ("budget", "tools", "outcome"),
    [
        (Budget(tokens=100), [], Outcome.OK),
        (Budget(tool_calls=1), [], Outcome.OK),
        (Budget(tool_calls=2), [look], Outcome.OK),
        (Budget(tool_calls=1), [look], Outcome.DENIED),
        (Budget(tokens=20), [], Outcome.DENIED),
    ],
)
async def test_a_hook_may_ask_another_session_about_a_call_however_little_is_left(
    autojump_clock, open_checked, journal, budget, tools, outcome
):
    """L25, T5, I26: each waited for the other, until the hook's time was up and the call was denied. Only where all is spent is it denied, and at once."""

    async def asked(event: BeforeTool) -> None:
        guard = await runtime.session("guard")
        assert (await guard.ask(f"May it {event.tool}?")).text == "Yes."

    usage = Usage(input=20, output=5)
    model = Scripted([reply(call("look"), usage=usage), reply("Seen.", usage=usage)])
    answers = Scripted([reply("Yes.", usage=usage)], exhausted="repeat")
    hooks = Hooks(before_tool=asked)
    async with open_checked(model, tools=[look], hooks=[hooks], budget=budget) as runtime:
        await runtime.session("guard", model=answers, tools=tools)
        await (await runtime.session("s")).ask("go")
    assert [event.outcome for event in recorded(journal, CallEnded)] == [outcome]
    assert trio.current_time() < 5


@pytest.mark.parametrize("how", ["interrupt", "close"])
async def test_a_step_that_waits_for_others_can_be_stopped_and_keeps_nobody(autojump_clock, open_checked, how):
    """L15, L25, I26"""
    model = Scripted([reply(stall(5), "x", usage=Usage(input=900, output=100))], exhausted="repeat")
    async with open_checked(model, budget=Budget(tokens=1_500)) as runtime:
        first, second, third = [await runtime.session(name) for name in "abc"]
        async with first.turn(LONG) as one, second.turn(LONG) as two, third.turn(LONG) as three:
            await trio.sleep(1)
            assert len(model.requests) == 1
            waiting = second if model.requests[0].session == "a" else first
            begun = trio.current_time()
            await getattr(waiting, how)()
            assert trio.current_time() - begun < 0.05
            ends = [(await turn.wait_ended()).stop_reason for turn in (one, two, three)]
            assert sorted(ends) == ["end_turn", "end_turn", "interrupt"]
        # The turn that was interrupted has left nothing behind that others would wait for.
        assert (await third.ask("more")).stop_reason == "budget"


async def test_a_call_that_is_slow_to_close_lets_go_of_nothing_that_the_next_one_holds(autojump_clock, open_checked):
    """L25, I27"""
    model = SlowToClose([reply(stall(9), "x", usage=Usage(input=900, output=100))], exhausted="repeat")
    async with open_checked(model, budget=Budget(tokens=1_500), limits=Limits(grace_s=0.5)) as runtime:
        first, second = await runtime.session("a"), await runtime.session("b")
        async with first.turn(LONG):
            await trio.sleep(1)
            await first.interrupt()
        async with first.turn(LONG) as one:
            await trio.sleep(5)  # The first stream is closed by now.
            async with second.turn(LONG) as two:
                await trio.sleep(1)
                assert len(model.requests) == 2
                ends = [(await turn.wait_ended()).stop_reason for turn in (one, two)]
    assert ends == ["end_turn", "end_turn"]


@pytest.mark.parametrize("whose", ["session", "runtime"])
@pytest.mark.parametrize("usage", [None, Usage(input=10, output=0)])
async def test_a_budget_of_tokens_that_the_model_does_not_report_is_warned_of_once(
    autojump_clock, open_checked, caplog, whose, usage
):
    """L24, L25: none is not 0, and nothing counts against the budget."""
    budget = Budget(tokens=1_000)
    model = Scripted([reply("Fine.", usage=usage)], exhausted="repeat")
    async with open_checked(model, budget=budget if whose == "runtime" else Budget()) as runtime:
        session = await runtime.session("s", budget=budget if whose == "session" else None)
        other = await runtime.session("other", budget=Budget(steps=5) if whose == "session" else None)
        for each in (session, session, other) if whose == "session" else (session, session):
            assert (await each.ask("go")).text == "Fine."
    told = [record.getMessage() for record in caplog.records if "set Budget.steps as well" in record.getMessage()]
    assert len(told) == (usage is None) and all("session s has" in each for each in told)


async def test_without_a_budget_nothing_is_capped(autojump_clock, open_checked, journal):
    """L25"""
    model = Scripted([*rounds(30, input=10**9, output=10**9), reply("Done.")])
    async with open_checked(model, tools=[look], limits=Limits(max_steps=0)) as runtime:
        assert (await (await runtime.session("s")).ask("go")).text == "Done."
    assert not recorded(journal, BudgetWarned) and len(recorded(journal, StepStarted)) == 31
