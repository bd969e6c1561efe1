"""What no sane provider or tool sends, and each still has a sane end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from session_watch import recorded, wait_idle, watched

from trouper import Limits, tool
from trouper.core.events import CallEnded, CallStarted, ModelReplied, TurnEnded
from trouper.core.live import TextDelta
from trouper.core.messages import Fault, Media, Opaque, Outcome, ProviderPart, Text, Thinking
from trouper.core.session import State, evolve
from trouper.models import (
    CallDelta,
    CallEnd,
    CallStart,
    Done,
    ModelRequest,
    PartChunk,
    Scripted,
    Switched,
    TextChunk,
    ThinkingChunk,
    call,
    raw_call,
    reply,
)


@tool(readonly=True)
async def look(n: int = 0) -> dict[str, int]:
    """Look at something."""
    return {"n": n}


def rebuilt(journal) -> State:
    state = State()
    for record in journal:
        for event in record.events:
            state = evolve(state, event)
    return state


@pytest.mark.parametrize(
    "arguments",
    [
        "[1, 2]",
        "null",
        '"text"',
        "17",
        "not json at all",
        "[" * 100_000,
        "{" * 200,
        '{"n": ' + "9" * 5_000 + "}",
        '{"n": NaN}',
        '{"n": "\\ud800"}',
        '{"n": 1, "n": 2}',
        '{"n": 1}{"n": 2}',
        '{"x": "' + "y" * 2_000_000 + '"}',
    ],
    ids=[
        "array",
        "null",
        "string",
        "number",
        "prose",
        "brackets",
        "braces",
        "digits",
        "nan",
        "surrogate",
        "twice",
        "two",
        "long",
    ],
)
async def test_odd_arguments_are_answered_and_the_turn_goes_on(autojump_clock, open_checked, journal, arguments):
    """L16, L19, security.md: JSON caps."""
    model = Scripted([reply(raw_call("look", arguments)), reply("Well.")])
    async with open_checked(model, tools=[look]) as runtime:
        session = await runtime.session("s")
        result = await session.ask("go")
        live = session._state
    assert (result.text, result.error) == ("Well.", None)
    (ended,) = recorded(journal, CallEnded)
    assert ended.outcome in (Outcome.OK, Outcome.ERROR)
    assert isinstance(recorded(journal, ModelReplied)[0].message.calls[0].arguments, dict)
    if ended.outcome is Outcome.ERROR:
        assert len(str(ended.content)) < 10_000
    assert rebuilt(journal) == live


@pytest.mark.parametrize("arguments", [[1, 2], "text", {"n": float("nan")}, {"n": "\ud800"}, {1: 2}, {"n": 10**40}])
async def test_odd_parsed_arguments_too(autojump_clock, open_checked, journal, arguments):
    """L16"""
    model = Scripted([(CallStart(0, "look"), CallEnd(0, arguments), Done("tool_use")), reply("Well.")])
    async with open_checked(model, tools=[look]) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("go")).text == "Well."
        live = session._state
    assert rebuilt(journal) == live


async def test_odd_arguments_for_a_tool_that_is_none(autojump_clock, open_checked, journal):
    """L20"""
    model = Scripted([reply(raw_call("nothing", "[1"), raw_call("no\x00thing\ud800", "{")), reply("Well.")])
    async with open_checked(model, tools=[look]) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("go")).text == "Well."
        live = session._state
    assert [ended.outcome for ended in recorded(journal, CallEnded)] == [Outcome.ERROR, Outcome.ERROR]
    assert rebuilt(journal) == live


async def test_ten_megabytes_in_one_delta(autojump_clock, open_checked, journal):
    """L4"""
    huge = "x" * 10_000_000
    async with open_checked(Scripted([reply(huge), reply("Short.")])) as runtime:
        session = await runtime.session("s")
        events, turn = await watched(session, "go")
        assert turn.result.text == huge
        assert [len(event.text) for event in events if isinstance(event, TextDelta)] == [10_000_000]
        assert (await session.ask("again")).text == "Short."


async def test_a_reply_without_end_is_stopped_at_its_limit(autojump_clock, open_checked, journal):
    """security.md: caps on what a provider may send."""
    model = Scripted([reply(*[TextChunk("x" * 1000)] * 500), reply("Short.")])
    async with open_checked(model, limits=Limits(reply_chars=100_000)) as runtime:
        session = await runtime.session("s")
        result = await session.ask("go")
        assert result.error.kind == "other" and "reply_chars" in result.error.message
        assert 100_000 <= len(result.text) <= 102_000
        assert (await session.ask("again")).text == "Short."


WITHOUT_END: dict[str, list[Any]] = {
    "thinking": [ThinkingChunk("x" * 1000)] * 500,
    "signatures": [ThinkingChunk("", "x")] * 5_000,
    "arguments": [CallStart(0, "look"), *[CallDelta(0, "x" * 1000)] * 500],
    "arguments that are parsed": [CallStart(0, "look"), CallEnd(0, {"n": "x" * 200_000})],
    "arguments within arguments": [CallStart(0, "look"), CallEnd(0, {"n": [{"m": "x" * 500}] * 500})],
    "numbers": [CallStart(0, "look"), CallEnd(0, {"n": [1] * 200_000})],
    "calls": [CallStart(0, "look")] * 5_000,
    "media": [PartChunk(Media("image/png", "eHh4" * 250))] * 500,
    "parts that are small": [PartChunk(Text("x"))] * 5_000,
    "a provider's own": [PartChunk(ProviderPart(Opaque("p", {"x": ["y" * 1000]})))] * 500,
    "a provider's own with text": [TextChunk("", Opaque("p", {"x": "y" * 1000}))] * 500,
}


@pytest.mark.parametrize("items", WITHOUT_END.values(), ids=WITHOUT_END)
async def test_whatever_else_a_reply_is_made_of_has_its_limit_too(autojump_clock, open_checked, items):
    """security.md: caps on what a provider may send."""
    async with open_checked(Scripted([reply(*items)]), tools=[look], limits=Limits(reply_chars=100_000)) as runtime:
        assert "reply_chars" in (await (await runtime.session("s")).ask("go")).error.message


async def test_a_tool_result_of_100_megabytes(autojump_clock, open_checked, journal):
    """T9"""

    @tool(readonly=True)
    async def dump() -> str:
        """Far too much."""
        return "0123456789" * 10_000_000

    model = Scripted([reply(call("dump")), reply("Much.")])
    async with open_checked(model, tools=[dump]) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("go")).text == "Much."
        assert session.statistics().tokens < 20_000
    told = model.requests[1].messages[-1].answers[0].content
    assert len(told) <= 65_536 and "left out of 100000000" in told


async def test_an_unknown_stop_reason_is_the_providers_own_word(autojump_clock, open_checked):
    """L1, M4"""
    model = Scripted(
        [reply("Done.", stop="quantum_collapse"), reply(call("look"), stop="quantum_collapse"), reply("Ok.")]
    )
    async with open_checked(model, tools=[look]) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("1")).stop_reason == "quantum_collapse"
        assert (await session.ask("2")).text == "Ok."  # Calls are run, whatever it is called.


@pytest.mark.parametrize("word", ["interrupt", "max_steps", "budget", ""])
async def test_a_provider_cannot_end_a_turn_in_our_name(autojump_clock, open_checked, word):
    """L1, B15: these words say that something cut the turn short; a whole reply ends as `end_turn`, and the detail has the word."""
    async with open_checked(Scripted([reply("hi", stop=word)])) as runtime:
        result = await (await runtime.session("s")).ask("x")
    assert (result.text, result.stop_reason, result.error) == ("hi", "end_turn", None)
    assert result.detail == (f"the provider says {word!r}" if word else None)


async def test_a_reply_that_its_provider_ends_as_an_error_is_one(autojump_clock, open_checked):
    """L1, L13: `error` comes with a classified error; what was said stays, marked as cut short. Routers end a reply so when the server behind them fails."""
    model = Scripted([reply("half", call("look"), stop="error"), reply("whole")])
    async with open_checked(model, tools=[look]) as runtime:
        session = await runtime.session("s")
        failed = await session.ask("x")
        assert failed.stop_reason == "error" and failed.error is not None and failed.error.kind == "server"
        assert session.history[-1].text == "half" and session.history[-1].kind == "cut_short"
        assert (await session.ask("again")).text == "whole"


async def test_two_calls_with_one_id_are_two_calls(autojump_clock, open_checked, journal):
    """I1, L22: and the wire tells them apart."""
    model = Scripted(
        [
            reply(call("look", n=1, id=None), call("look", {"n": 2}, id="x"), call("look", {"n": 3}, id="x")),
            reply("Ok."),
        ]
    )
    async with open_checked(model, tools=[look]) as runtime:
        await (await runtime.session("s")).ask("go")
    asked, given = model.requests[1].messages[1].calls, model.requests[1].messages[2].answers
    assert len({one.wire_id for one in asked}) == 3
    assert [one.wire_id for one in asked] == [one.wire_id for one in given]
    assert [one.content["n"] for one in given] == [1, 2, 3]


async def test_two_starts_of_one_index_never_leave_a_call_open(autojump_clock, open_checked, journal):
    """I1, L13"""
    chunks = (
        CallStart(0, "look"),
        CallDelta(0, '{"n": 1}'),
        CallStart(0, "look"),
        CallDelta(0, '{"n": 2}'),
        CallEnd(0),
        Done("x"),
    )
    async with open_checked(Scripted([chunks, reply("Ok.")]), tools=[look]) as runtime:
        assert (await (await runtime.session("s")).ask("go")).text == "Ok."
    assert len(recorded(journal, CallEnded)) == 1


@pytest.mark.parametrize("preface", [(), (TextChunk("Let me look."),)], ids=["alone", "after text"])
async def test_a_call_whose_end_nobody_marks_is_whole_when_its_reply_is(autojump_clock, open_checked, preface):
    """L6, L16 (seed 004: what was streamed by the end of the reply is dispatched): it was dropped, and the turn seemed to be done."""
    pieces = (CallStart(0, "look", "a"), CallDelta(0, '{"n": '), CallDelta(0, "1}"), CallStart(1, "look", "b"))
    async with open_checked(Scripted([(*preface, *pieces, Done("tool_use")), reply("Ok.")]), tools=[look]) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("go")).text == "Ok."
        assert [each.arguments for each in session.history[1].calls] == [{"n": 1}, {}]
        assert [each.content for each in session.history[2].answers] == [{"n": 1}, {"n": 0}]


@pytest.mark.parametrize("stop", ["tool_use", "max_tokens"])
@pytest.mark.parametrize("arguments", ['{"n": 1', ""], ids=["half of its arguments", "none of them"])
async def test_a_call_whose_end_nobody_marks_is_never_run_by_half(
    autojump_clock, open_checked, journal, arguments, stop
):
    """L13: half-built calls never enter the history; and one without a word of its arguments is one for none, unless the reply ran out of room."""
    pieces = (TextChunk("Let me look."), CallStart(0, "look"), CallDelta(0, arguments), Done(stop))
    async with open_checked(Scripted([pieces, reply("Ok.")]), tools=[look]) as runtime:
        session = await runtime.session("s")
        await session.ask("go")
        assert len(session.history[1].calls) == (0 if arguments else 1)
    assert len(recorded(journal, CallStarted)) == (0 if arguments or stop == "max_tokens" else 1)


async def test_pieces_of_calls_that_never_started_are_passed_over(autojump_clock, open_checked):
    chunks = (CallDelta(7, "{}"), CallEnd(7), CallEnd(0), TextChunk("Hi."), Done("end_turn"))
    async with open_checked(Scripted([chunks]), tools=[look]) as runtime:
        assert (await (await runtime.session("s")).ask("go")).text == "Hi."


@pytest.mark.parametrize("odd", ["a\x00b", "\ud800 lone", "pair \ud83d\ude00", "\u2028\u0085\ufeff", "\x1b[31m"])
async def test_odd_characters_are_said_kept_and_read_again_alike(autojump_clock, open_checked, journal, odd):
    """I10: the live state is what the journal holds, also where no file can hold the text as it came."""

    @tool(readonly=True)
    async def say() -> dict[str, str]:
        """Says something odd."""
        return {"odd": "tool \x00 text"}

    pieces = [TextChunk(character) for character in odd]
    model = Scripted(
        [(*pieces, CallStart(0, "say", "id"), CallEnd(0, {}), Done("x")), reply(odd), reply("Ok.")], exhausted="repeat"
    )
    async with open_checked(model, tools=[say]) as runtime:
        session = await runtime.session("s", system=f"system {odd}")
        await session.ask(f"user {odd}")
        async with session.turn("again") as turn:
            await session.send(f"more {odd}")
            await turn.wait_ended()
        await wait_idle(session)
        live = session._state
    again = rebuilt(journal)
    assert again == live
    for message in live.history.messages:
        message.text.encode()  # Every provider can be sent this.
    assert len(recorded(journal, TurnEnded)) >= 2


async def test_an_odd_fault_is_kept_too(autojump_clock, open_checked, journal):
    """I10"""
    from trouper.models import AuthFailed, fail

    async with open_checked(Scripted([fail(AuthFailed("bad \ud800 key")), reply("Ok.")])) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("go")).error.kind == "auth"
        live = session._state
        assert rebuilt_now(runtime) == live
        await session.interrupt("\ud800")
        await session.ask("more")


def rebuilt_now(runtime) -> State:
    from trouper.testing.invariants import records_of

    return rebuilt(records_of(runtime._log))


async def test_hundreds_of_calls_in_one_step(autojump_clock, open_checked, journal):
    """L8, I1"""
    peak = running = 0

    @tool(readonly=True)
    async def work(n: int) -> int:
        """Works."""
        nonlocal peak, running
        running += 1
        peak = max(peak, running)
        await trio.sleep(1)
        running -= 1
        return n

    model = Scripted([reply(*(call("work", n=n) for n in range(300))), reply("Ok.")])
    async with open_checked(model, tools=[work]) as runtime:
        assert (await (await runtime.session("s")).ask("go")).text == "Ok."
    assert peak == 32
    assert [given.content for given in model.requests[1].messages[-1].answers] == list(range(300))


class _Broken(list):
    def __iter__(self):
        raise RuntimeError("it has no parts")


def _no_chunks() -> dict[str, list]:
    itself: list = []
    itself.append(itself)
    return {
        "text": ["hello"],
        "nothing": [None],
        "a part": [Text("hello")],
        "text of a part": [PartChunk(Text(5))],
        "thinking of a part": [PartChunk(Thinking(None))],
        "signature of a part": [PartChunk(Thinking("hm", b"x"))],
        "media type": [PartChunk(Media(5))],
        "media data": [PartChunk(Media("image/png", b"x"))],
        "no fields": [PartChunk(ProviderPart(None))],
        "fields of a set": [TextChunk("a", Opaque("p", {1}))],
        "fields with a set": [TextChunk("a", Opaque("p", {"k": {1}}))],
        "fields with odd keys": [TextChunk("a", Opaque("p", {"k": {1: 2}}))],
        "fields that hold themselves": [TextChunk("a", Opaque("p", {"k": itself}))],
        "fields of nobody": [TextChunk("a", Opaque(None, {}))],
        "arguments": [CallStart(0, "look"), CallEnd(0, {"n": {1}})],
        "arguments without parts": [CallStart(0, "look"), CallEnd(0, {"n": _Broken([1])})],
        "an unnamed fault": [Switched(Fault(5, "busy"))],
        "a fault without words": [Switched(Fault("server", None))],
        "a fault with odd advice": [Switched(Fault("server", "busy", "yes", "soon"))],
    }


@pytest.mark.parametrize("which", _no_chunks())
async def test_a_chunk_that_is_none_ends_its_call_and_nothing_else(autojump_clock, open_checked, caplog, which):
    """L14, I23: nothing of it gets into the journal, where it would break the session for good."""

    class Client:
        name = "odd:client"
        context_window = None
        asked = 0

        @asynccontextmanager
        async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[Any]]:
            self.asked += 1
            yield self._chunks([TextChunk("Fine.")] if self.asked > 1 else _no_chunks()[which])

        async def _chunks(self, chunks: list[Any]) -> AsyncIterator[Any]:
            for chunk in chunks:
                yield chunk
            await trio.sleep(1.0)  # Long enough for what was said to be noted.
            yield Done("end_turn")

    async with open_checked(Client(), tools=[look]) as runtime:
        session = await runtime.session("s")
        result = await session.ask("go")
        assert (result.stop_reason, result.error.kind) == ("error", "other")
        assert (await session.ask("again")).text == "Fine."
    assert not [record for record in caplog.records if record.name == "trouper.actors"]
