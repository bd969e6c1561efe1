"""The scripted model (M15): text, calls, thinking, faults, by turn or by predicate; what happens at its end; what it was asked."""

from __future__ import annotations

import pytest
import trio

from trouper import UsageError
from trouper.core.messages import Message, Opaque, Text, Usage
from trouper.models import (
    CallDelta,
    CallEnd,
    CallStart,
    Chunk,
    Done,
    Model,
    ModelFault,
    ModelRequest,
    NetworkFault,
    RateLimited,
    Scripted,
    TextChunk,
    ThinkingChunk,
    UsageChunk,
    call,
    drop,
    fail,
    raw_call,
    reply,
    stall,
    text,
    think,
)


def ask(words: str = "hello", **fields) -> ModelRequest:
    return ModelRequest((Message("user", (Text(words),)),), **fields)


async def played(model: Model, request: ModelRequest | None = None) -> list[Chunk]:
    async with model.stream(request or ask()) as chunks:
        return [chunk async for chunk in chunks]


def test_it_is_a_model():
    """M1"""
    assert isinstance(Scripted([]), Model)


async def test_a_reply_is_put_together_from_words_calls_and_thoughts():
    model = Scripted(
        [
            reply(
                think("hm", "sig"),
                "Let me look.",
                call("look", n=1),
                raw_call("look", '{"n": ', id="x"),
                usage=Usage(input=1),
                deltas=3,
            )
        ]
    )
    assert await played(model) == [
        ThinkingChunk("hm"),
        ThinkingChunk("", "sig"),
        *(TextChunk(piece) for piece in ("Let ", "me l", "ook.")),
        *(CallStart(0, "look"), CallEnd(0, {"n": 1})),
        *(CallStart(1, "look", "x"), CallDelta(1, '{"n": '), CallEnd(1)),
        UsageChunk(Usage(input=1)),
        Done("tool_use"),
    ]


def test_deltas_add_up_to_the_text():
    for count in (1, 2, 3, 7, 100):
        assert "".join(chunk.text for chunk in text("Grüße, Welt", count)) == "Grüße, Welt"
    assert text("") == (TextChunk(""),)
    assert think("") == () and think("", None, Opaque("p", {})) == (ThinkingChunk("", None, Opaque("p", {})),)


async def test_replies_come_in_order_by_function_and_by_predicate():
    model = Scripted(
        [
            reply("first"),
            lambda request: reply(f"you said {request.messages[-1].text}"),
            (lambda request: "weather" in request.messages[-1].text, reply("sunny")),
        ]
    )
    assert (await played(model, ask("weather?")))[0] == TextChunk("sunny")
    assert (await played(model))[0] == TextChunk("first")
    assert (await played(model, ask("weather!")))[0] == TextChunk("sunny")
    assert (await played(model, ask("this")))[0] == TextChunk("you said this")
    assert [request.messages[-1].text for request in model.requests] == ["weather?", "hello", "weather!", "this"]


async def test_faults_come_where_they_stand():
    with pytest.raises(RateLimited):
        await played(Scripted([fail(RateLimited("slow"))]))
    heard: list[Chunk] = []
    for fault, kind in ((drop(), NetworkFault), (fail(RateLimited("slow")), RateLimited)):
        heard.clear()
        with pytest.raises(kind):
            async with Scripted([reply("begun", fault, "never")]).stream(ask()) as chunks:
                async for chunk in chunks:
                    heard.append(chunk)
        assert heard == [TextChunk("begun")]


async def test_stalls_and_latencies_take_their_time(autojump_clock):
    model = Scripted([reply("a", stall(5), "b")], first_delay_s=2.0, delay_s=1.0)
    times: list[float] = []
    begun = trio.current_time()
    async with model.stream(ask()) as chunks:
        async for _ in chunks:
            times.append(round(trio.current_time() - begun, 3))
    assert times == [2.0, 9.0, 10.0]


async def test_what_happens_when_the_script_has_run_out():
    model = Scripted([reply("only")])
    await played(model)
    with pytest.raises(ModelFault, match="no reply number 2"):
        await played(model)
    model = Scripted([reply("a"), reply("b")], exhausted="repeat")
    assert [(await played(model))[0].text for _ in range(4)] == ["a", "b", "b", "b"]
    model = Scripted([reply("a"), reply("b")], exhausted="cycle")
    assert [(await played(model))[0].text for _ in range(4)] == ["a", "b", "a", "b"]


def test_what_cannot_be_played_is_found_at_once():
    with pytest.raises(UsageError, match="reply"):
        Scripted([("text", "text")])
    with pytest.raises(UsageError, match=r"write Scripted\(\['hello'\]\)"):
        Scripted("hello")  # It would be five replies of one letter.
    with pytest.raises(UsageError, match="exhausted='never' is unknown; use one of error, repeat, cycle"):
        Scripted(["hello"], exhausted="never")


async def test_streams_are_counted_until_they_are_closed(autojump_clock):
    """I21"""
    model = Scripted([reply("a", stall(10), "b")])
    with trio.move_on_after(1):
        async with model.stream(ask()) as chunks:
            assert model.open_streams == 1
            async for _ in chunks:
                pass
    assert model.open_streams == 0
