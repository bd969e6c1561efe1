"""Structured output: the final text follows a JSON Schema, or a class; one repair round, then a clear error."""

from __future__ import annotations

from datetime import date
from typing import Any

import attrs
import pytest
from session_watch import recorded

from trouper import TurnFailed, UsageError, tool
from trouper.actors.structured import parsed
from trouper.core.events import OutputMismatched, TurnEnded
from trouper.models import Scripted, call, reply

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "number"}},
    "required": ["city", "degrees"],
}
LONG_NUMBER = 12_345_678_901_234_567_890_123


@attrs.frozen
class Weather:
    city: str
    degrees: float

    def __attrs_post_init__(self) -> None:
        if self.degrees < -273:
            raise ValueError("colder than nothing")


@tool(readonly=True)
async def measure() -> int:
    """Measures."""
    return 21


@pytest.mark.parametrize("text", ['{"city": "Ulm", "degrees": 21}', '```json\n{"city": "Ulm", "degrees": 21}\n```'])
async def test_output_that_follows_a_schema_comes_parsed(autojump_clock, open_checked, text):
    model = Scripted([reply(text)])
    async with open_checked(model) as runtime:
        result = await (await runtime.session("s")).ask("the weather?", output=SCHEMA)
    assert result.output == {"city": "Ulm", "degrees": 21} and result.text == text
    assert model.requests[0].response_schema == SCHEMA


@pytest.mark.parametrize("text", ["```json{}\n```", "```\n{}", "```json\n```", "```json" + "\n" * 100_000 + "x"])
def test_what_is_not_quite_fenced_is_no_output_and_is_seen_at_once(text):
    """Structured output: a reply of nothing but blank lines held up every session for hours."""
    with pytest.raises(ValueError):
        parsed(text)


async def test_a_whole_number_is_that_number_however_long(autojump_clock, open_checked):
    """Structured output: ids of twenty and more digits come as they were written."""
    deep = "[" * 100_000 + str(LONG_NUMBER) + "]" * 100_000
    model = Scripted([reply(f'{{"n": {LONG_NUMBER}}}'), reply(f'{{"n": 1, "more": {deep}}}'), reply('{"n": 1}')])
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("x", output=schema)).output == {"n": LONG_NUMBER}
        assert (await session.ask("x", output=schema)).output == {"n": 1}
    assert "depth limit exceeded" in model.requests[2].messages[-1].text


def test_a_long_number_deep_inside_comes_as_written_or_the_model_is_told():
    """How deep JSON can be read with every digit hangs on the version of Python."""
    try:
        found = parsed("[" * 990 + str(LONG_NUMBER) + "]" * 990)
    except ValueError as error:
        assert str(error) == "JSON nested too deep"
    else:
        while isinstance(found, list):
            (found,) = found
        assert found == LONG_NUMBER


async def test_output_of_a_class_comes_as_an_object(autojump_clock, open_checked):
    model = Scripted([reply(call("measure")), reply('{"city": "Ulm", "degrees": 21}')])
    async with open_checked(model, tools=[measure]) as runtime:
        result = await (await runtime.session("s")).ask("the weather?", output=Weather)
    assert result.output == Weather("Ulm", 21.0)


@pytest.mark.parametrize(
    ("miss", "told"),
    [("It is warm.", "not JSON"), ('{"city": "Ulm"}', "degrees"), ('{"city": 7, "degrees": "hot"}', "city")],
    ids=["no JSON", "a field is missing", "wrong types"],
)
async def test_a_miss_is_told_to_the_model_once(autojump_clock, open_checked, journal, miss, told):
    model = Scripted([reply(miss), reply('{"city": "Ulm", "degrees": 21}')])
    async with open_checked(model) as runtime:
        result = await (await runtime.session("s")).ask("the weather?", output=Weather)
    assert result.output == Weather("Ulm", 21.0) and result.steps == 2
    note = model.requests[1].messages[-1]
    assert note.kind == "note" and told in note.text
    assert len(recorded(journal, OutputMismatched)) == 1


async def test_a_second_miss_is_a_clear_error(autojump_clock, open_checked, journal):
    model = Scripted([reply("no"), reply("never"), reply("not asked")])
    async with open_checked(model) as runtime:
        result = await (await runtime.session("s")).ask("the weather?", output=SCHEMA)
    assert (result.stop_reason, result.error.kind, result.output) == ("error", "invalid_output", None)
    assert "schema" in result.error.message and len(model.requests) == 2
    with pytest.raises(TurnFailed):
        result.raise_for_error()
    assert len(recorded(journal, TurnEnded)) == 1


@attrs.frozen
class Event:
    day: date
    seats: int = attrs.field(default=1, validator=attrs.validators.ge(1))


@pytest.mark.parametrize(
    ("shape", "miss", "told", "hit"),
    [
        (Weather, '{"city": "Ulm", "degrees": -300}', "colder than nothing", '{"city": "Ulm", "degrees": 21}'),
        (Event, '{"day": "2026-02-30"}', "day: day is out of range", '{"day": "2026-02-28"}'),
        (Event, '{"day": "2026-02-28", "seats": 0}', "'seats' must be >= 1", '{"day": "2026-02-28"}'),
        (list[Event], '[{"day": "2026-02-28", "seats": 0}]', "[0]", '[{"day": "2026-02-28"}]'),
    ],
)
async def test_what_a_class_refuses_of_what_its_schema_allows_is_told_to_the_model_once(
    autojump_clock, open_checked, journal, shape, miss, told, hit
):
    """Structured output is validated, and one repair round follows: also where only the class knows better."""
    model = Scripted([reply(miss), reply(hit)])
    async with open_checked(model) as runtime:
        result = await (await runtime.session("s")).ask("the weather?", output=shape)
    assert result.error is None and result.output is not None and result.steps == 2
    assert told in model.requests[1].messages[-1].text
    assert len(recorded(journal, OutputMismatched)) == 1


async def test_what_a_class_refuses_is_told_to_the_model_of_that_turn(autojump_clock, open_checked):
    """M6: a model for one turn, and a class for the same one."""
    once = Scripted([reply('{"day": "2026-02-30"}'), reply('{"day": "2026-02-28"}')])
    async with open_checked(Scripted([reply('{"day": "2026-02-30"}')])) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("when?", output=Event, model=once)).output == Event(date(2026, 2, 28))
        assert (await session.ask("when?")).text == '{"day": "2026-02-30"}'


async def test_a_class_that_refuses_twice_what_its_schema_allows_is_a_clear_error(autojump_clock, open_checked):
    model = Scripted([reply('{"city": "Ulm", "degrees": -300}')] * 3)
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        result = await session.ask("the weather?", output=Weather)
        assert (await session.ask("in JSON?", output=SCHEMA)).output == {"city": "Ulm", "degrees": -300}
    assert (result.stop_reason, result.error.kind, result.output) == ("error", "invalid_output", None)
    assert "colder than nothing" in result.error.message


class Mute(ValueError):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(("problem", "told"), [(Mute(), "Mute"), (ValueError("no" * 500_000), "nono...")])
async def test_what_a_class_says_of_a_reply_is_told_in_few_words_or_by_its_name(
    autojump_clock, open_checked, problem, told
):
    @attrs.frozen
    class Odd:
        number: int

        def __attrs_post_init__(self) -> None:
            raise problem

    async with open_checked(Scripted([reply('{"number": 1}')] * 2)) as runtime:
        result = await (await runtime.session("s")).ask("?", output=Odd)
    assert result.error.message.endswith(told) and len(result.error.message) < 3_000


@pytest.mark.parametrize("stop", ["refusal", "max_tokens"])
async def test_a_refusal_or_a_cut_has_no_output_and_is_no_error_of_ours(autojump_clock, open_checked, journal, stop):
    async with open_checked(Scripted([reply('{"city": "U', stop=stop)])) as runtime:
        result = await (await runtime.session("s")).ask("the weather?", output=Weather)
    assert (result.stop_reason, result.output, result.error) == (stop, None, None)
    assert not recorded(journal, OutputMismatched)


async def test_the_next_turn_is_free_again(autojump_clock, open_checked):
    model = Scripted([reply('{"city": "Ulm", "degrees": 21}'), reply("Plain words.")])
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        await session.ask("the weather?", output=SCHEMA)
        assert (await session.ask("in words?")).text == "Plain words."
    assert model.requests[1].response_schema is None


async def test_a_pause_of_the_provider_is_no_answer_yet(autojump_clock, open_checked, journal):
    """M14: what was said before the pause is not judged, and costs no repair."""
    model = Scripted([reply("Searching.", stop="pause_turn"), reply('{"city": "Ulm", "degrees": 21}')])
    async with open_checked(model) as runtime:
        result = await (await runtime.session("s")).ask("the weather?", output=Weather)
    assert result.output == Weather("Ulm", 21.0)
    assert not recorded(journal, OutputMismatched)
    assert [message.role for message in model.requests[1].messages] == ["user", "assistant"]


async def test_a_shape_that_has_no_schema_is_named_where_it_was_given(autojump_clock, open_checked):
    """L1: misuse, told before anything begins."""

    @attrs.frozen
    class Odd:
        when: complex

    async with open_checked(Scripted([])) as runtime:
        session = await runtime.session("s")
        for output, told in ((Odd, r"^'output\.when' is annotated complex"), (5, "^'output' is annotated 5")):
            with pytest.raises(UsageError, match=told):
                await session.ask("hello", output=output)
        assert session.state.turns == 0


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        schema = {"properties": {"x": schema}}
    return schema


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"type": "nonsense"}, "nonsense"),
        ({"properties": {"x": {"$ref": "http://127.0.0.1:1/x.json"}}}, "leaves the schema"),
        ({"$ref": "file:///no.json"}, "leaves the schema"),
        (nested(5_000), "Recursion"),
        ({"enum": "x" * 10_000}, "xxx"),
    ],
    ids=["not a schema", "on the network", "on the disk", "without a bottom", "long"],
)
async def test_a_schema_that_is_none_or_wants_something_fetched_is_refused(autojump_clock, open_checked, schema, told):
    """L1: misuse, told before anything begins. Whoever reads a schema must not make this process read files, or wait for a server, with all sessions."""
    async with open_checked(Scripted([])) as runtime:
        session = await runtime.session("s")
        with pytest.raises(UsageError, match=told) as refused:
            await session.ask("hello", output=schema)
        assert str(refused.value).startswith("output is no valid JSON Schema: ") and len(str(refused.value)) < 300
        assert session.state.turns == 0


async def test_a_schema_may_refer_to_its_own_parts(autojump_clock, open_checked):
    schema = {"$ref": "#/$defs/city", "$defs": {"city": {"type": "string"}}}
    async with open_checked(Scripted([reply("5"), reply('"Ulm"')])) as runtime:
        assert (await (await runtime.session("s")).ask("where?", output=schema)).output == "Ulm"
