"""The simulated model (M15): a newcomer sees tools, spill, notification and recovery work, without a key."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from trouper import Limits, ToolContext, open_runtime, tool
from trouper.core.messages import Message, Outcome, Text, ToolAnswer, ToolCall, ToolSpec
from trouper.models import Done, Model, ModelRequest, Simulated, TextChunk, ThinkingChunk, UsageChunk
from trouper.models.simulated_reading import answer
from trouper.models.simulated_sums import next_operation, parse_sum
from trouper.tools.builtin import default_tools

TOOLS = tuple(each.spec for each in default_tools())


def said(*words: str, tools: tuple[ToolSpec, ...] = TOOLS, **fields):
    return answer(ModelRequest(tuple(Message("user", (Text(each),)) for each in words), tools=tools, **fields))


def after(question: str, name: str, content: object, outcome: Outcome = Outcome.OK, tools=TOOLS) -> str:
    """What is said when a tool has answered."""
    messages = (
        Message("user", (Text(question),)),
        Message("assistant", (ToolCall("c", name, {}),)),
        Message("tool", (ToolAnswer("c", name, outcome, content),)),
    )
    return answer(ModelRequest(messages, tools=tools)).text


def test_it_is_a_model_with_a_window():
    model = Simulated()
    assert isinstance(model, Model) and model.context_window == 128_000


@pytest.mark.parametrize(
    ("words", "name", "arguments"),
    [
        ("Please read notes.txt", "read_file", '{"path": "notes.txt"}'),
        ("show me the file 'docs/a.md'.", "read_file", '{"path": "docs/a.md"}'),
        ("list the files", "list_directory", '{"path": "."}'),
        ("List the files in docs/old!", "list_directory", '{"path": "docs/old"}'),
        ("write hello world to greeting.txt", "write_file", '{"path": "greeting.txt", "content": "hello world"}'),
        ("What time is it?", "get_current_time", "{}"),
        ("what is the time in Europe/Berlin?", "get_current_time", '{"timezone": "Europe/Berlin"}'),
        ("what is 3 + 4?", "add", '{"a": 3, "b": 4}'),
        ("run echo message='hi there'", "echo", '{"message": "hi there"}'),
        ("use get_forecast location=Ulm days=2", "get_forecast", '{"location": "Ulm", "days": 2}'),
    ],
)
def test_simple_requests_call_the_tool_that_serves(words, name, arguments):
    """M15"""
    assert said(words).calls == ((name, arguments),)


@pytest.mark.parametrize("words", ["read notes.txt", "list the files", "what time is it?", "run echo", "remember me"])
def test_without_the_tool_it_only_echoes(words):
    reply = said(words, tools=())
    assert not reply.calls and words in reply.text


def test_a_sum_is_worked_out_one_operation_at_a_time():
    """M15: with the tools, each result used in the next call."""
    wanted = parse_sum("what is 3 * (4+5) - 1?")
    assert wanted is not None and wanted.text == "3 * (4+5) - 1"
    first, _ = next_operation(wanted, [])
    second, _ = next_operation(wanted, [9])
    third, _ = next_operation(wanted, [9, 27])
    assert [str(op) for op in (first, second, third)] == ["4 + 5", "3 * 9", "27 - 1"]
    assert next_operation(wanted, [9, 27, 26]) == (None, 26)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("what is 3 * (4+5)?", 27),
        ("What's 10 divided by 4", 2.5),
        ("calculate 2 + 3 * 4.", 14),
        ("-3 - -4 =", 1),
        ("7 times 6, please", 42),
        ("1.5 plus 2", 3.5),
        ("(1 + 2) * (3 + 4)", 21),
        ("8 - 3 - 2", 3),
    ],
)
def test_sums_are_found_in_plain_words(words, value):
    found = parse_sum(words)
    assert found is not None and found.value() == value


@pytest.mark.parametrize("words", ["order 17 of 2026-01-02 x", "call me at 5", "", "(((", "v1.2.3", "+" * 500])
def test_what_is_no_sum_does_no_harm(words):
    found = parse_sum(words)
    assert found is None or isinstance(found.value(), int | float)


@given(st.text(max_size=200))
def test_any_words_get_some_answer(words):
    """Never raises, never silent."""
    reply = said(words)
    assert reply.text or reply.calls


@given(
    st.recursive(
        st.integers(0, 99).map(str),
        lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        max_leaves=12,
    )
)
def test_sums_agree_with_python(expression):
    found = parse_sum(f"what is {expression}")
    if found is not None:
        assert found.value() == eval(found.text)


def test_results_are_used_in_the_next_reply():
    """M15"""
    assert "buy milk" in after("read notes.txt", "read_file", {"content": "buy milk", "lines": 1})
    assert "a.txt, b.txt" in after("list", "list_directory", {"entries": [{"name": "a.txt"}, {"name": "b.txt"}]})
    assert "nothing" in after("list", "list_directory", {"entries": []})
    assert "2026-01-01T00:00:00" in after("what time is it", "get_current_time", {"time": "2026-01-01T00:00:00"})
    assert "no such file" in after("read x.txt", "read_file", "no such file", Outcome.ERROR)
    assert "background as task_1" in after("run slow", "slow", {"status": "running", "task_id": "task_1"})
    long = after("read x.txt", "read_file", {"content": "x" * 5000})
    assert len(long) < 1000 and "5000 characters" in long


def test_it_remembers_with_whatever_tools_there_are():
    """M15"""
    kv = ToolSpec("kv_store", "", {"type": "object"})
    assert (
        said("remember that I like tea.", tools=(kv,)).calls[0][1]
        == '{"action": "set", "key": "memory", "value": "I like tea"}'
    )
    assert said("what do you remember?", tools=(kv,)).calls[0][1] == '{"action": "get", "key": "memory"}'
    assert "I like tea" in after(
        "what do you remember?", "kv_store", {"found": True, "value": "I like tea"}, tools=(kv,)
    )
    own = ToolSpec("remember", "", {"properties": {"fact": {"type": "string"}}, "required": ["fact"]})
    assert said("remember that I like tea", tools=(own,)).calls == (("remember", '{"fact": "I like tea"}'),)


def test_a_notification_is_passed_on():
    """M15: messages of kind "notification"."""
    text = "[notification] task ended\nid: n1\ntitle: slow is done\n> The result is 42.\n"
    request = ModelRequest((Message("user", (Text("hi"),)), Message("user", (Text(text),), "notification")))
    told = answer(request).text
    assert "slow is done" in told and "The result is 42." in told


def test_a_schema_is_followed():
    import jsonschema_rs
    import orjson

    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "minLength": 12},
            "kind": {"enum": ["a", "b"]},
            "degrees": {"type": "number", "minimum": 3},
            "list": {"type": "array", "items": {"type": "boolean"}, "minItems": 2},
            "maybe": {"anyOf": [{"type": "null"}, {"type": "string"}]},
        },
        "required": ["city", "kind", "degrees", "list", "maybe"],
    }
    value = orjson.loads(said("the weather?", response_schema=schema).text)
    jsonschema_rs.validate(schema, value)


async def test_the_same_request_gives_the_same_stream_with_thinking_and_usage():
    """M15: deterministic."""
    request = ModelRequest((Message("user", (Text("what is 1 + 2?"),)),), tools=TOOLS)
    streams = []
    model = Simulated()
    for _ in range(2):
        async with model.stream(request) as chunks:
            streams.append([chunk async for chunk in chunks])
    assert streams[0] == streams[1]
    assert any(isinstance(chunk, ThinkingChunk) for chunk in streams[0])
    (usage,) = [chunk.usage for chunk in streams[0] if isinstance(chunk, UsageChunk)]
    assert usage.input > 100 and usage.output > 0 and usage.reasoning > 0
    assert streams[0][-1] == Done("tool_use")
    assert model.requests == [request, request] and model.open_streams == 0
    async with Simulated(thinking=False).stream(request) as chunks:
        assert not [chunk async for chunk in chunks if isinstance(chunk, ThinkingChunk)]


async def test_latencies_are_what_they_are_set_to(autojump_clock):
    """M15"""
    model = Simulated(first_delay_s=3.0, delay_s=0.5, thinking=False)
    begun, times = trio.current_time(), []
    async with model.stream(ModelRequest((Message("user", (Text("good morning"),)),))) as chunks:
        async for chunk in chunks:
            if isinstance(chunk, TextChunk):
                times.append(round(trio.current_time() - begun, 3))
    assert times == [3.0, 3.5, 4.0, 4.5]


async def test_it_is_the_model_when_none_is_given(autojump_clock, open_checked):
    """M15, api.md: `model` None = Simulated()."""
    async with open_checked() as runtime:
        result = await (await runtime.session("s")).ask("good morning")
    assert result.text == "You said: good morning" and result.usage.total > 0


async def test_a_conversation_with_tools_from_end_to_end(autojump_clock, open_checked):
    """M15"""
    async with open_checked(Simulated(), tools=default_tools()[:10]) as runtime:
        session = await runtime.session("s")
        result = await session.ask("What is 3 * (4 + 5)?")
        assert result.text == "3 * (4 + 5) = 27." and result.steps == 3
        assert "2026-01-01" in (await session.ask("what time is it?")).text
        assert (await session.ask("what is 1 / 0?")).text.startswith("I could not calculate it")


async def test_a_slow_tool_spills_and_its_end_is_told(autojump_clock, open_checked):
    """M15: spill and notification."""

    @tool(background=True, readonly=True)
    async def slow_report(context: ToolContext) -> str:
        """Takes its time."""
        await trio.sleep(5)
        return "forty-two"

    async with open_checked(Simulated(), tools=[slow_report]) as runtime:
        session = await runtime.session("s")
        result = await session.ask("please run slow_report")
        assert "in the background" in result.text
        async for _ in session.events():
            if session.last.number == 2 and session._state.turn is None:
                break
        assert "forty-two" in session.last.text


async def test_a_long_conversation_is_compacted_with_its_own_summary(autojump_clock, open_checked, journal):
    """M15, L28"""
    from trouper import Compaction

    limits = Limits(compaction=Compaction(threshold=600, keep_pairs=2, min_messages=6))
    async with open_checked(Simulated(), limits=limits) as runtime:
        session = await runtime.session("s")
        for n in range(12):
            assert (await session.ask(f"thing {n} " + "word " * 60)).error is None
    ended = [event for record in journal for event in record.events if type(event).__name__ == "CompactionEnded"]
    assert ended and {event.how for event in ended} == {"summary"}


async def test_files_are_read_and_written_on_a_real_disk(tmp_path):
    """M15, in real time: the first thing a newcomer tries."""
    async with open_runtime(tmp_path, tools=default_tools()) as runtime:
        session = await runtime.session("s")
        first = await session.ask("write buy milk to notes.txt")
        second = await session.ask("read notes.txt")
        third = await session.ask("list the files")
    assert first.error is None
    assert "buy milk" in second.text
    assert "notes.txt" in third.text
