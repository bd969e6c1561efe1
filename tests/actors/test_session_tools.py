"""Tools inside a turn (L7, L8, L16-L20, L22, L23): what runs when, what the model is told, and what it never sees."""

from __future__ import annotations

import logging

import pytest
import trio
from session_watch import names, recorded

from trouper import ConnectionRequired, Hooks, Limits, Rule, ToolContext, ToolError, ToolResult, codec, tool
from trouper.actors.preparing import BROKE_OFF, HALF_A_VALUE
from trouper.actors.tool_call import INTERNAL, UNEXPLAINED
from trouper.core.events import (
    ArgumentsRepaired,
    CallEnded,
    CallStarted,
    CallWasLate,
    LoopWarned,
    ModelReplied,
    ToolsSettled,
    TurnEnded,
)
from trouper.core.messages import Opaque, Outcome, Text, Thinking, ToolCall
from trouper.models import (
    CallDelta,
    CallEnd,
    CallStart,
    Done,
    Scripted,
    TextChunk,
    ThinkingChunk,
    call,
    raw_call,
    reply,
)
from trouper.testing import CrashDisk
from trouper.tools.hooks import Deny, Rewrite


@tool(readonly=True)
async def look(n: int = 0) -> dict[str, int]:
    """Look at something."""
    return {"n": n}


def answers(request) -> list[tuple[str, str, object]]:
    """What the newest tool message of a request says."""
    return [(given.name, given.outcome.value, given.content) for given in request.messages[-1].answers]


@tool
async def wait(seconds: float) -> float:
    """Waits."""
    await trio.sleep(seconds)
    return seconds


async def test_a_tool_runs_and_its_result_goes_back(autojump_clock, open_checked, journal):
    """L2, L7 (seed 004: runs a tool, then the final message)."""
    model = Scripted([reply(call("look", n=3)), reply("It is 3.")])
    async with open_checked(model, tools=[look]) as runtime:
        result = await (await runtime.session("s")).ask("look")
    assert result.text == "It is 3."
    assert answers(model.requests[1]) == [("look", "ok", {"n": 3})]
    assert [name for name in names(journal) if name.startswith(("Call", "Tools"))] == [
        "CallStarted",
        "CallEnded",
        "ToolsSettled",
    ]


async def test_numbers_of_any_length_reach_the_tool_and_the_model(autojump_clock, open_checked, journal):
    """T1, T2, L17: the tool works with the integer; history, events and journal have its digits."""
    seen: list[int] = []

    @tool
    async def double(n: int) -> dict[str, object]:
        """Double a number."""
        seen.append(n)
        return {"result": 2 * n, "all": [n, (2 * n,)]}

    @tool
    async def power(n: int) -> int:
        """Two to the power of n."""
        return 2**n

    wide, twice = str(2**70), str(2**71)
    model = Scripted(
        [reply(call("double", n=2**70), raw_call("double", f'{{"n": {wide}}}'), call("power", n=70)), "Done."]
    )
    async with open_checked(model, tools=[double, power]) as runtime:
        assert (await (await runtime.session("s")).ask("double it")).text == "Done."
    assert seen == [2**70, 2**70]
    given = {"result": twice, "all": [wide, [twice]]}
    assert answers(model.requests[1]) == [("double", "ok", given), ("double", "ok", given), ("power", "ok", wide)]
    assert [asked.arguments for asked in model.requests[1].messages[-2].calls] == [{"n": wide}, {"n": wide}, {"n": 70}]
    assert len(recorded(journal, ArgumentsRepaired)) == 2


async def test_calls_of_a_step_run_at_once_and_answer_in_declared_order(autojump_clock, open_checked, journal):
    """L7, L8 (seed 004: several calls run concurrently)."""
    model = Scripted([reply(*(call("wait", seconds=s) for s in (3.0, 1.0, 2.0))), reply("Done.")])
    async with open_checked(model, tools=[wait]) as runtime:
        session = await runtime.session("s")
        begun = trio.current_time()
        await session.ask("wait")
        assert trio.current_time() - begun == pytest.approx(3.0, abs=0.2)
    assert [content for _, _, content in answers(model.requests[1])] == [3.0, 1.0, 2.0]
    assert [ended.content for ended in recorded(journal, CallEnded)] == [1.0, 2.0, 3.0]


class Workers:
    """A tool that works for a second, and how many calls of it ran at once."""

    def __init__(self) -> None:
        self.running = self.peak = 0
        self.tool = tool(self.work)

    async def work(self) -> str:
        """Works for a second."""
        self.running += 1
        self.peak = max(self.peak, self.running)
        await trio.sleep(1)
        self.running -= 1
        return "ok"


@pytest.mark.parametrize(("cap", "most"), [(2, 2), (32, 5)])
async def test_no_more_calls_run_at_once_than_the_cap(autojump_clock, open_checked, cap, most):
    """L8"""
    workers = Workers()
    model = Scripted([reply(*[call("work")] * 5), reply("Done.")])
    async with open_checked(model, tools=[workers.tool], limits=Limits(parallel_calls=cap)) as runtime:
        await (await runtime.session("s")).ask("work")
    assert workers.peak == most


async def test_calls_of_one_concurrency_class_run_in_order(autojump_clock, open_checked):
    """L8"""
    ran: list[str] = []

    @tool(concurrency_class="disk")
    async def write(name: str, seconds: float) -> str:
        """Writes, for so long."""
        ran.append(f"+{name}")
        await trio.sleep(seconds)
        ran.append(f"-{name}")
        return name

    model = Scripted(
        [
            reply(call("write", name="a", seconds=2), call("look"), call("write", name="b", seconds=1)),
            reply("Done."),
        ]
    )
    async with open_checked(model, tools=[write, look]) as runtime:
        await (await runtime.session("s")).ask("write")
    assert ran == ["+a", "-a", "+b", "-b"]
    assert [name for name, _, _ in answers(model.requests[1])] == ["write", "look", "write"]


async def test_without_parallel_calls_they_run_one_by_one_and_the_model_is_told(autojump_clock, open_checked):
    """L8"""
    workers = Workers()
    model = Scripted([reply(*[call("work")] * 3), reply("Done.")])
    async with open_checked(model, tools=[workers.tool], limits=Limits(parallel_tool_calls=False)) as runtime:
        await (await runtime.session("s")).ask("work")
    assert workers.peak == 1
    assert [request.parallel_tool_calls for request in model.requests] == [False, False]


@pytest.mark.parametrize(
    ("chunks", "seen"),
    [
        ((CallStart(0, "take"), CallDelta(0, '{"value": "streamed"}'), CallEnd(0, {"value": "parsed"})), "parsed"),
        ((CallStart(0, "take"), CallDelta(0, '{"val'), CallDelta(0, 'ue": "streamed"}'), CallEnd(0)), "streamed"),
        ((CallStart(0, "take"), CallEnd(0)), "default"),
        ((CallStart(0, "take"), CallDelta(0, "  "), CallEnd(0)), "default"),
    ],
    ids=["parsed object", "streamed buffer", "no buffer", "blank buffer"],
)
async def test_arguments_come_parsed_or_streamed_or_not_at_all(autojump_clock, open_checked, chunks, seen):
    """L16"""
    got: list[str] = []

    @tool
    async def take(value: str = "default") -> str:
        """Takes a value."""
        got.append(value)
        return value

    async with open_checked(Scripted([(*chunks, Done("tool_use")), reply("Done.")]), tools=[take]) as runtime:
        await (await runtime.session("s")).ask("take")
    assert got == [seen]


async def test_interleaved_fragments_of_parallel_calls_are_told_apart(autojump_clock, open_checked):
    """L16 (seed 004: a streamed call, then a summary)."""
    chunks = (
        TextChunk("Two at once. "),
        *(CallStart(0, "look"), CallStart(1, "look")),
        *(CallDelta(1, '{"n"'), CallDelta(0, '{"n": 1'), CallDelta(1, ": 2}"), CallDelta(0, "}")),
        *(CallEnd(1), CallEnd(0), Done("tool_use")),
    )
    model = Scripted([chunks, reply("Done.")])
    async with open_checked(model, tools=[look]) as runtime:
        await (await runtime.session("s")).ask("look")
    assert [content for _, _, content in answers(model.requests[1])] == [{"n": 1}, {"n": 2}]


async def test_truncated_arguments_are_repaired_for_everybody(autojump_clock, open_checked, journal):
    """L17 (seed 004: repairs truncated tool arguments)."""
    got: list[object] = []

    @tool
    async def save(path: str, lines: list[str]) -> str:
        """Saves."""
        got.append((path, lines))
        return "saved"

    model = Scripted([reply(raw_call("save", '{"path": "a.txt", "lines": ["one", "two"')), reply("Done.")])
    async with open_checked(model, tools=[save]) as runtime:
        session = await runtime.session("s")
        await session.ask("save")
        in_history = session.history[1].calls[0].arguments
    assert got == [("a.txt", ["one", "two"])]
    wanted = {"path": "a.txt", "lines": ["one", "two"]}
    assert in_history == wanted == recorded(journal, ModelReplied)[0].message.calls[0].arguments
    assert model.requests[1].messages[1].calls[0].arguments == wanted
    (repaired,) = recorded(journal, ArgumentsRepaired)
    assert repaired.call == "call_1_1_0" and repaired.notes


@pytest.mark.parametrize("written", ['{"path": "a.txt", "lines": ["one", "tw', '{"path": "a.txt"', "{", "x", "  ", ""])
async def test_a_call_in_which_the_reply_reached_its_longest_length_is_not_run(
    autojump_clock, open_checked, journal, written
):
    """L13, L17: it is half-built, whatever its client says; closing its brackets would have it write half a file. What came before it is whole."""
    got: list[object] = []

    @tool
    async def save(path: str = "b.txt", lines: list[str] | None = None) -> str:
        """Saves."""
        got.append((path, lines))
        return "saved"

    chunks = (
        *(CallStart(0, "save"), CallDelta(0, ""), CallEnd(0)),
        *(CallStart(1, "save"), CallDelta(1, written), CallEnd(1)),
        Done("max_tokens"),
    )
    model = Scripted([chunks, reply("I will write less.")])
    async with open_checked(model, tools=[save]) as runtime:
        result = await (await runtime.session("s")).ask("save")
    assert (result.text, result.stop_reason) == ("I will write less.", "end_turn")
    assert got == [("b.txt", None)]
    assert answers(model.requests[1]) == [("save", "ok", "saved"), ("save", "error", BROKE_OFF)]


@pytest.mark.parametrize("written", ['{"path": "/', '{"path": "/tmp/x", "depth": 1'])
async def test_a_destructive_call_that_ends_within_a_value_is_not_run_whatever_the_reply_ended_with(
    autojump_clock, open_checked, written
):
    """L13, L17: not every server says that it ran out of room, and half of a path is another path. One that only lacks its bracket is run."""
    got: list[tuple[str, int]] = []

    @tool(destructive=True)
    async def remove(path: str, depth: int = 0) -> str:
        """Removes."""
        got.append((path, depth))
        return "removed"

    calls = raw_call("remove", written), raw_call("remove", '{"path": "/tmp/y"')
    model = Scripted([reply(*calls), reply("I see.")])
    async with open_checked(model, tools=[remove]) as runtime:
        await (await runtime.session("s")).ask("remove it")
    assert got == [("/tmp/y", 0)]
    assert answers(model.requests[1]) == [("remove", "error", HALF_A_VALUE), ("remove", "ok", "removed")]


async def test_any_other_call_that_ends_within_a_value_runs_with_what_was_repaired(
    autojump_clock, open_checked, journal
):
    """L17"""
    got: list[str] = []

    @tool
    async def look(city: str) -> str:
        """Looks."""
        got.append(city)
        return "sunny"

    model = Scripted([reply(raw_call("look", '{"city": "Paris')), reply("I see.")])
    async with open_checked(model, tools=[look]) as runtime:
        await (await runtime.session("s")).ask("look")
    assert got == ["Paris"]
    assert "ArgumentsRepaired" in names(journal)


async def test_a_call_that_is_whole_is_run_although_the_reply_reached_its_longest_length(autojump_clock, open_checked):
    """L16, L17"""
    chunks = (CallStart(0, "look"), CallDelta(0, '{"n": 3}'), CallEnd(0), CallStart(1, "look"), CallEnd(1, {"n": 4}))
    model = Scripted([(*chunks[:3], Done("max_tokens")), (*chunks, Done("max_tokens")), reply("Done.")])
    async with open_checked(model, tools=[look]) as runtime:
        await (await runtime.session("s")).ask("look")
    assert answers(model.requests[1]) == [("look", "ok", {"n": 3})]
    assert answers(model.requests[2]) == [("look", "ok", {"n": 3}), ("look", "ok", {"n": 4})]


async def test_schema_guided_repairs_are_what_everybody_sees(autojump_clock, open_checked, journal):
    """L17, L18 (seed 004: applies schema repair before dispatch)."""
    got: list[object] = []

    @tool
    async def edit(path: str, count: int = 1, tags: list[str] | None = None, force: bool = False) -> str:
        """Edits."""
        got.append((path, count, tags, force))
        return "ok"

    loose = {"path": "a.txt", "count": "3", "tags": '["x", "y"]', "force": "true"}
    async with open_checked(Scripted([reply(call("edit", loose)), reply("Done.")]), tools=[edit]) as runtime:
        session = await runtime.session("s")
        await session.ask("edit")
        in_history = session.history[1].calls[0].arguments
    assert got == [("a.txt", 3, ["x", "y"], True)]
    assert in_history == {"path": "a.txt", "count": 3, "tags": ["x", "y"], "force": True}
    assert len(recorded(journal, ArgumentsRepaired)[0].notes) == 3


async def test_arguments_beyond_repair_are_told_to_the_model_and_bounded(autojump_clock, open_checked, journal):
    """L19 (seed 004: invalid tool input is model-observable and bounded)."""
    ran: list[str] = []

    @tool
    async def strict(count: int) -> str:
        """Counts."""
        ran.append("ran")
        return "ok"

    huge = "z" * 20_000
    model = Scripted([reply(call("strict", {"count": huge, "more": huge})), reply("Sorry.")])
    async with open_checked(model, tools=[strict]) as runtime:
        result = await (await runtime.session("s")).ask("count")
    assert result.text == "Sorry." and not ran
    ((name, outcome, told),) = answers(model.requests[1])
    assert (name, outcome) == ("strict", "error")
    assert "count" in told and "string(20000 chars" in told
    assert len(told) < 4_000 and "z" * 100 not in told
    assert not recorded(journal, CallStarted)


async def test_an_unknown_tool_is_told_to_the_model_with_the_nearest_names(autojump_clock, open_checked, journal):
    """L20"""
    model = Scripted([reply(call("lok", n=1)), reply("Sorry.")])
    async with open_checked(model, tools=[look]) as runtime:
        assert (await (await runtime.session("s")).ask("look")).error is None
    ((_, outcome, told),) = answers(model.requests[1])
    assert outcome == "error" and "lok" in told and "look" in told
    assert not recorded(journal, CallStarted)


async def test_a_tools_error_is_told_to_the_model_and_the_turn_goes_on(autojump_clock, open_checked):
    """L20"""

    @tool
    async def fails(how: str) -> object:
        """Fails."""
        match how:
            case "raises":
                raise ToolError("the disk is full; delete something")
            case "connection":
                raise ConnectionRequired("github")
            case _:
                return ToolResult("exit status 1", is_error=True)

    model = Scripted([reply(*(call("fails", how=how) for how in ("raises", "connection", "reports"))), reply("Well.")])
    async with open_checked(model, tools=[fails]) as runtime:
        assert (await (await runtime.session("s")).ask("try")).text == "Well."
    raised, connection, reported = answers(model.requests[1])
    assert raised == ("fails", "error", "the disk is full; delete something")
    assert connection[1] == "error" and "github" in connection[2]
    assert reported == ("fails", "error", "exit status 1")


async def test_an_unexpected_exception_is_one_fixed_sentence_for_the_model(
    autojump_clock, open_checked, journal, caplog
):
    """L20: the whole chain goes to the journal and the log, never to the model."""

    @tool
    async def broken() -> str:
        """Has a bug."""
        try:
            raise KeyError("inner secret")
        except KeyError as error:
            raise RuntimeError("outer secret") from error

    model = Scripted([reply(call("broken")), reply("Well.")])
    with caplog.at_level(logging.ERROR):
        async with open_checked(model, tools=[broken]) as runtime:
            assert (await (await runtime.session("s")).ask("try")).text == "Well."
    assert answers(model.requests[1]) == [("broken", "error", INTERNAL)]
    (ended,) = recorded(journal, CallEnded)
    assert "outer secret" in ended.internal and "inner secret" in ended.internal
    assert "outer secret" in caplog.text


async def test_a_tool_that_takes_too_long_is_told_to_the_model(autojump_clock, open_checked, journal):
    """L20 (seed 004: a tool's time-out is a model-observable result)."""
    cancelled: list[float] = []

    @tool(timeout_s=4.0)
    async def hangs() -> str:
        """Never ends."""
        try:
            await trio.sleep_forever()
        finally:
            cancelled.append(trio.current_time())
        raise AssertionError

    model = Scripted([reply(call("hangs")), reply("Well.")])
    async with open_checked(model, tools=[hangs]) as runtime:
        session = await runtime.session("s")
        begun = trio.current_time()
        assert (await session.ask("try")).text == "Well."
    assert cancelled[0] - begun == pytest.approx(4.0, abs=0.1)
    ((_, outcome, told),) = answers(model.requests[1])
    assert outcome == "timeout" and "4 s" in told


async def test_the_runtimes_time_out_holds_for_tools_without_their_own(autojump_clock, open_checked):
    """L20, B2"""

    @tool
    async def hangs() -> str:
        """Never ends."""
        await trio.sleep_forever()
        raise AssertionError

    model = Scripted([reply(call("hangs")), reply("Well.")])
    async with open_checked(model, tools=[hangs], limits=Limits(tool_timeout_s=7.0)) as runtime:
        await (await runtime.session("s")).ask("try")
    assert answers(model.requests[1])[0][1] == "timeout"


async def test_a_denial_is_told_to_the_model(autojump_clock, open_checked, journal):
    """L20, T4, T5: by policy, and by a hook."""

    async def guard(about) -> Deny | None:
        return Deny("Not on a Friday.") if about.arguments["n"] == 2 else None

    model = Scripted(
        [reply(call("look", n=1), call("look", n=2)), reply("Well."), reply(call("look", n=1)), reply("Hm.")]
    )
    async with open_checked(model, tools=[look], hooks=[Hooks(before_tool=guard)]) as runtime:
        await (await runtime.session("s")).ask("try")
    assert answers(model.requests[1]) == [("look", "ok", {"n": 1}), ("look", "denied", "Not on a Friday.")]
    model = Scripted([reply(call("look", n=1)), reply("Well.")])
    async with open_checked(model, tools=[look], policies=[Rule("look", "deny", reason="Not here.")]) as runtime:
        await (await runtime.session("s")).ask("try")
    assert answers(model.requests[1]) == [("look", "denied", "Not here.")]
    assert not recorded(journal, CallStarted)


async def test_a_hook_may_rewrite_the_arguments_for_everybody(autojump_clock, open_checked):
    """T5, L17"""

    async def rewrite(about) -> Rewrite:
        return Rewrite({"n": 40 + about.arguments["n"]})

    model = Scripted([reply(call("look", n=2)), reply("Well.")])
    async with open_checked(model, tools=[look], hooks=[Hooks(before_tool=rewrite)]) as runtime:
        session = await runtime.session("s")
        await session.ask("try")
        assert session.history[1].calls[0].arguments == {"n": 42}
    assert answers(model.requests[1]) == [("look", "ok", {"n": 42})]


async def test_hooks_see_a_call_under_the_same_id_before_and_after_it(autojump_clock, open_checked):
    """T5: two calls of one tool with the same arguments could not be told apart otherwise."""
    before, after = [], []
    hooks = Hooks(before_tool=lambda about: before.append(about.call_id), after_tool=lambda about: after.append(about))
    model = Scripted(
        [reply(call("look", n=1), call("no_such"), call("look", n=1)), reply(call("look", n=1)), reply(".")]
    )
    async with open_checked(model, tools=[look], hooks=[hooks]) as runtime:
        await (await runtime.session("s")).ask("try")
    assert before == ["call_1_1_0", "call_1_1_2", "call_1_2_0"]
    assert {about.call_id for about in after if about.tool == "look"} == set(before)


async def test_opaque_fields_return_byte_for_byte_at_their_place(autojump_clock, open_checked):
    """L22, I7: signatures, ids, encrypted reasoning."""
    on_text, on_call, sealed = (Opaque("p", {"sig": f"\u00e9+/={n}", "n": [n, None]}) for n in range(3))
    chunks = (
        ThinkingChunk("hm"),
        ThinkingChunk("", "s1==", sealed),
        TextChunk("Let me", on_text),
        CallStart(0, "look", "provider-1", on_call),
        CallEnd(0, {"n": 1}),
        Done("tool_use"),
    )
    model = Scripted([chunks, reply("Done."), reply("Again.")])
    async with open_checked(model, tools=[look]) as runtime:
        session = await runtime.session("s")
        await session.ask("look")
        await session.ask("and?")
    for request in model.requests[1:]:
        thought, text, asked = request.messages[1].parts
        assert thought == Thinking("hm", "s1==", sealed)
        assert text == Text("Let me", on_text)
        assert isinstance(asked, ToolCall) and (asked.opaque, asked.wire_id) == (on_call, "provider-1")
        assert request.messages[2].answers[0].wire_id == "provider-1"


async def test_three_identical_rounds_put_a_warning_before_the_model(autojump_clock, open_checked, journal):
    """L23"""
    model = Scripted([reply(call("look", n=1))] * 4 + [reply("I give up.")])
    async with open_checked(model, tools=[look]) as runtime:
        result = await (await runtime.session("s")).ask("look")
    assert result.text == "I give up."
    assert [warned.repeats for warned in recorded(journal, LoopWarned)] == [3]
    warning = model.requests[3].messages[-1]
    assert (warning.role, warning.kind) == ("user", "note") and "3 times" in warning.text
    assert all(message.kind != "note" for message in model.requests[2].messages)


async def test_three_more_identical_rounds_end_the_turn(autojump_clock, open_checked, journal):
    """L23: the further number is configurable."""
    model = Scripted([reply(call("look", n=1))], exhausted="repeat")
    async with open_checked(model, tools=[look], limits=Limits(max_steps=0, loop_end=2)) as runtime:
        result = await (await runtime.session("s")).ask("look")
    assert (result.stop_reason, result.error.kind, result.steps) == ("error", "no_progress", 5)


async def test_rounds_that_differ_are_no_loop(autojump_clock, open_checked, journal):
    """L23: call *and* result count."""
    results = iter(range(100))

    @tool
    async def poll() -> int:
        """Gives something new each time."""
        return next(results)

    model = Scripted([reply(call("poll"))] * 7 + [reply("Done.")])
    async with open_checked(model, tools=[poll]) as runtime:
        assert (await (await runtime.session("s")).ask("poll")).text == "Done."
    assert not recorded(journal, LoopWarned)


async def test_cancelling_one_call_lets_the_others_and_the_turn_go_on(autojump_clock, open_checked, journal):
    """L21, I1: the outcome of that call alone is `cancelled`."""
    model = Scripted([reply(call("wait", seconds=50), call("wait", seconds=2)), reply("Well.")])
    async with open_checked(model, tools=[wait]) as runtime:
        session = await runtime.session("s")
        async with session.turn("wait") as turn:
            await trio.sleep(1)
            await session.cancel("call_1_1_0", "enough")
            assert (await turn.wait_ended()).text == "Well."
    assert [outcome for _, outcome, _ in answers(model.requests[1])] == ["cancelled", "ok"]
    assert not recorded(journal, CallWasLate)


async def test_the_intent_is_recorded_before_the_tool_runs(autojump_clock, open_checked):
    """I2"""
    found: list[bool] = []

    @tool
    async def check(context: ToolContext) -> str:
        """Looks for its own intent."""
        records = [codec.decode(raw.payload) for raw in runtime._log.records(stream="s")]
        found.append(context.call_id in [started.call for started in recorded(records, CallStarted)])
        return "ok"

    async with open_checked(Scripted([reply(call("check")), reply("Done.")]), tools=[check]) as runtime:
        session = await runtime.session("s")
        await session.ask("check")
    assert found == [True]


async def test_a_large_output_is_cut_for_the_model(autojump_clock, open_checked, journal):
    """T9: within the limit, with a note."""

    @tool
    async def dump() -> str:
        """A lot of text."""
        return "line\n" * 100_000

    model = Scripted([reply(call("dump")), reply("Much.")])
    async with open_checked(model, tools=[dump], limits=Limits(tool_output_bytes=10_000)) as runtime:
        await (await runtime.session("s")).ask("dump")
    told = answers(model.requests[1])[0][2]
    assert len(told) <= 10_000 and "left out" in told


async def test_a_step_has_exactly_one_settling(autojump_clock, open_checked, journal):
    """L7"""
    model = Scripted([reply(call("look", n=1), call("none"), call("look", n="x")), reply("Done.")])
    async with open_checked(model, tools=[look]) as runtime:
        await (await runtime.session("s")).ask("look")
    assert len(recorded(journal, ToolsSettled)) == 1
    assert [outcome for _, outcome, _ in answers(model.requests[1])] == ["ok", "error", "error"]
    assert {ended.outcome for ended in recorded(journal, CallEnded)} == {Outcome.OK, Outcome.ERROR}
    assert len(recorded(journal, TurnEnded)) == 1


class GaveUp(BaseException):
    """What a library may raise that means to end the whole process."""


class NoText:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "error",
    [
        GaveUp("secret"),
        SystemExit("secret"),
        BaseExceptionGroup("secret", [GaveUp("secret"), ValueError("secret")]),
        ExceptionGroup("secret", [ToolError("one"), ToolError("two")]),
        ToolError(NoText()),  # type: ignore[arg-type]
        StopIteration("secret"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_a_tool_raises_ends_its_own_call_only(autojump_clock, open_checked, journal, error):
    """L20, I23: neither the session nor the runtime goes down with it, and the model reads nothing of it."""

    @tool
    async def gives_up() -> str:
        """Gives up."""
        raise error

    model = Scripted([reply(call("gives_up"), call("look", n=1)), reply("Well.")])
    async with open_checked(model, tools=[gives_up, look]) as runtime:
        assert (await (await runtime.session("s")).ask("try")).text == "Well."
    assert answers(model.requests[1]) == [("gives_up", "error", INTERNAL), ("look", "ok", {"n": 1})]
    assert any(ended.internal for ended in recorded(journal, CallEnded))


@pytest.mark.parametrize(
    "message", ["", " \n", "\x1b[0m", "\x1b[0m" * 100_000], ids=["nothing", "blank", "escape", "escapes"]
)
async def test_a_tool_that_refuses_without_a_word_is_told_in_some(autojump_clock, open_checked, message):
    """L20: `raise ToolError(str(error))` of an error that says nothing; a model could make nothing of an empty answer."""

    @tool
    async def refuses() -> str:
        """Refuses."""
        raise ToolError(message)

    model = Scripted([reply(call("refuses")), reply("Well.")])
    async with open_checked(model, tools=[refuses]) as runtime:
        await (await runtime.session("s")).ask("try")
    assert answers(model.requests[1]) == [("refuses", "error", UNEXPLAINED)]


async def test_a_refusal_is_asked_for_its_words_and_not_for_where_it_came_from(autojump_clock, open_checked):
    """L20: they may be megabytes, and whatever is done with them here holds up every other session."""
    asked: list[int] = []

    class Refusal(ToolError):
        def __str__(self) -> str:
            asked.append(1)
            return "No tea."

    @tool
    async def refuses() -> str:
        """Refuses."""
        raise Refusal("No tea.")

    model = Scripted([reply(call("refuses")), reply("Well.")])
    async with open_checked(model, tools=[refuses]) as runtime:
        await (await runtime.session("s")).ask("try")
    assert answers(model.requests[1]) == [("refuses", "error", "No tea.")] and len(asked) == 1


@pytest.mark.parametrize("stop", ["timeout", "interrupt"])
async def test_a_tool_that_fails_while_it_is_stopped_is_stopped_all_the_same(
    autojump_clock, open_checked, journal, stop
):
    """L20, I1: its nursery hands on the cancellation together with what it raised on its way out."""

    @tool(timeout_s=5.0 if stop == "timeout" else 0)
    async def stubborn() -> str:
        """Cannot even stop without a mistake."""

        async def child() -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("on the way out")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)
            await trio.sleep_forever()
        raise AssertionError

    model = Scripted([reply(call("stubborn")), reply("Well.")])
    async with open_checked(model, tools=[stubborn]) as runtime:
        session = await runtime.session("s")
        async with session.turn("try") as turn, trio.open_nursery() as nursery:
            if stop == "interrupt":

                async def interrupt() -> None:
                    await trio.sleep(1)
                    await session.interrupt()

                nursery.start_soon(interrupt)
            async for _ in turn:
                pass
        assert turn.result.stop_reason == ("end_turn" if stop == "timeout" else "interrupt")
    (ended,) = recorded(journal, CallEnded)
    assert ended.outcome is (Outcome.TIMEOUT if stop == "timeout" else Outcome.CANCELLED)
    if stop == "timeout":
        assert "on the way out" in ended.internal


async def test_calls_that_end_at_one_moment_are_one_record_and_one_sync(autojump_clock, open_checked, journal):
    """J2, L7: what follows is asked for once, when the last of them is in."""
    disk = CrashDisk()
    model = Scripted([reply(*(call("wait", seconds=s) for s in (2, 1, 1, 1, 3))), reply("Well.")])
    async with open_checked(model, tools=[wait], disk=disk, durability="fsync") as runtime:
        session = await runtime.session("s")
        async with session.turn("wait") as turn:
            await trio.sleep(0.5)
            before = sum(step.operation == "sync" for step in disk.log)
            await trio.sleep(1)
            assert sum(step.operation == "sync" for step in disk.log) == before + 1
            assert (await turn.wait_ended()).text == "Well."
    together = [record for record in journal if type(record.cause).__name__ == "DeliverResults"]
    assert [sorted(result.call for result in record.cause.results) for record in together] == [
        ["call_1_1_1", "call_1_1_2", "call_1_1_3"]
    ]
    assert [outcome for _, outcome, _ in answers(model.requests[1])] == ["ok"] * 5


async def test_results_that_wait_for_each_other_come_too_late_for_an_interrupt_or_in_time(autojump_clock, open_checked):
    """L21, I1, I9: whichever comes first, each call has one outcome, and the session goes on."""
    for steps in range(12):
        model = Scripted([reply(*(call("wait", seconds=1) for _ in range(3))), reply("Well.")], exhausted="repeat")
        async with open_checked(model, tools=[wait]) as runtime:
            session = await runtime.session("s")
            async with session.turn("wait") as turn:
                await trio.sleep(1)
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                await session.interrupt("enough")
            assert turn.result.stop_reason in ("interrupt", "end_turn")
            assert (await session.ask("and now?")).error is None
