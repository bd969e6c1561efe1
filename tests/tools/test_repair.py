"""L16-L19: parsing, repairing and refusing arguments; and the JSON row of the table of threats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import pytest
from attrs import frozen

from trouper import ToolContext, codec
from trouper.tools import InvalidArguments, Param, Tool, parse_arguments, tool
from trouper.tools.arguments import (
    ARGUMENTS_MAX,
    DEPTH_MAX,
    DIGITS_MAX,
    ITEMS_MAX,
    KEPT_AS_TEXT,
    KEYS_MAX,
    REPAIR_MAX,
)
from trouper.tools.complaint import summarised


@tool
async def edit(
    path: str,
    old_text: str = "",
    new_text: str = "",
    replace_all: bool = False,
    line: int = 1,
    ratio: float = 1.0,
    tags: list[str] | None = None,
    numbers: Annotated[list[int], Param(max_length=3)] = [],  # noqa: B006
    options: dict[str, int] | None = None,
    mode: Literal["fast", "slow"] = "fast",
) -> None: ...


@tool
async def run(command: str) -> None: ...


# L16, L17: from text to a value.


@pytest.mark.parametrize("buffer", ["", "  ", "\n\t"])
def test_empty_buffer_is_an_empty_object(buffer: str) -> None:
    """L16."""
    assert parse_arguments(buffer).value == {}


def test_provider_object_is_taken_as_it_is() -> None:
    """L16."""
    given = {"a": [1, "x"]}
    parsed = parse_arguments(given)
    assert parsed.value is given
    assert parsed.notes == ()


def test_valid_json_needs_no_notes() -> None:
    parsed = parse_arguments('{"a": [1, 2.5, "x", true, null], "b": {}}')
    assert parsed.value == {"a": [1, 2.5, "x", True, None], "b": {}}
    assert parsed.notes == ()
    assert not parsed.cut_short


@pytest.mark.parametrize(
    ("buffer", "value"),
    [
        ("{'a': 'b'}", {"a": "b"}),
        ('{"a": 1,}', {"a": 1}),
        ("{a: 1}", {"a": 1}),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ('{"a": True, "b": None}', {"a": True, "b": None}),
        ('{"text": "line one\nline two\ttab"}', {"text": "line one\nline two\ttab"}),
    ],
)
def test_broken_json_is_repaired_with_a_note(buffer: str, value: object) -> None:
    """L17."""
    parsed = parse_arguments(buffer)
    assert parsed.value == value
    assert len(parsed.notes) == 1
    assert not parsed.cut_short


@pytest.mark.parametrize("buffer", ['{"a": "' + '\\"[' * 100_000, '{"a": ' + "[" * 150 + '"' + '\\"[' * 100_000])
def test_a_long_text_without_an_end_is_refused_at_once(buffer: str) -> None:
    """L17: cut off in a text full of quotes, as source code is. To try each of them as the beginning of a text would take hours."""
    with pytest.raises(InvalidArguments):
        parse_arguments(buffer)


@pytest.mark.parametrize("buffer", ['{"a": "hal', '{"a": 1', '{"a": [1, 2', '{"a": {"b": 1}'])
def test_json_that_breaks_off_is_closed_and_marked(buffer: str) -> None:
    """L17: whoever runs the tool can tell that a value may lack its end."""
    parsed = parse_arguments(buffer)
    assert isinstance(parsed.value, dict)
    assert parsed.cut_short
    assert parsed.notes == ("closed JSON that broke off in the middle",)


@pytest.mark.parametrize(
    ("buffer", "within"),
    [
        *[('{"a": "hal', True), ("{'a': 'hal", True), ('{"a": "b", "c', True), ('{"a": 1', True), ('{"a": tru', True)],
        *[('{"a": "say \\"', True), ('{"a": -', True), ('{"a":', True)],
        *[('{"a": "b"', False), ('{"a": [1, 2]', False), ('{"a": {"b": 1}', False), ('{"a": true ', False)],
        *[('{"a": "b",', False), ("{'a': 'b'", False), ('{"a": "b"}', False), ("{a: 1}", False)],
    ],
)
def test_json_that_breaks_off_within_a_value_is_told_from_one_that_lacks_its_brackets(
    buffer: str, within: bool
) -> None:
    """L13, L17: a bracket can be put back; the rest of a path cannot."""
    assert parse_arguments(buffer).cut_within is within


@pytest.mark.parametrize("buffer", ['{"a": 1}{"a": 2}', ' {"a": 1}\n{"b": 2}', '{"a": 1} [2]'])
def test_several_values_in_a_row_are_refused_rather_than_one_of_them_dropped(buffer: str) -> None:
    """L17, L19."""
    with pytest.raises(InvalidArguments, match="make one call for each"):
        parse_arguments(buffer)


@pytest.mark.parametrize("buffer", ["garbage", "<xml/>", '"', "}", ":"])
def test_what_is_no_json_at_all_is_refused_with_the_remedy(buffer: str) -> None:
    with pytest.raises(InvalidArguments, match=r"not valid JSON.*send them again as one valid JSON object"):
        parse_arguments(buffer)


def test_long_broken_json_is_refused_rather_than_repaired_for_seconds() -> None:
    with pytest.raises(InvalidArguments, match="too long to be repaired"):
        parse_arguments('{"a": "' + "x" * REPAIR_MAX)


# The JSON row of the table of threats.


@pytest.mark.parametrize(
    "buffer",
    ["[" * 200_000, '{"a":' * 200_000, '{"a": "' + "[" * 200_000, "[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1)],
)
def test_deep_nesting_is_refused_before_parsing(buffer: str) -> None:
    with pytest.raises(InvalidArguments):
        parse_arguments(buffer)


def test_brackets_inside_a_text_are_not_nesting() -> None:
    text = "[" * 5_000 + "{" * 5_000 + '\\"'
    assert parse_arguments(json.dumps({"code": text})).value == {"code": text}


def test_nesting_at_the_limit_is_taken() -> None:
    value = json.loads("[" * DEPTH_MAX + "]" * DEPTH_MAX)
    assert parse_arguments(json.dumps(value)).value == value


def test_deep_provider_object_is_refused_too() -> None:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(InvalidArguments, match=f"nested more than {DEPTH_MAX} deep"):
        parse_arguments({"a": value})


@pytest.mark.parametrize("digits", [DIGITS_MAX + 1, 5_000, 100_000])
def test_integers_of_very_many_digits_are_refused(digits: int) -> None:
    """Security page, JSON bombs: to read one takes the square of its length."""
    for buffer in ('{"n": ' + "9" * digits + "}", '{"n": -' + "9" * digits + "}"):
        with pytest.raises(InvalidArguments, match=f"more than {DIGITS_MAX} digits; send a shorter one"):
            parse_arguments(buffer)
    with pytest.raises(InvalidArguments, match=f"more than {DIGITS_MAX} digits; send a shorter one"):
        parse_arguments({"n": 10 ** (digits - 1)})


def test_integers_of_64_bits_are_kept_as_numbers() -> None:
    assert parse_arguments(f'{{"n": [{2**64 - 1}, {-(2**63)}]}}').value == {"n": [2**64 - 1, -(2**63)]}


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 2**70, -(10 ** (DIGITS_MAX - 1))])
def test_longer_integers_are_kept_as_text_with_a_note(number: int) -> None:
    """L17: what history, events and the tool see is what can be kept, and the note says so."""
    for given in (f'{{"n": [{number}], "m": 1}}', {"n": [number], "m": 1}, f'{{"n": [{number}], "m": 1,}}'):
        parsed = parse_arguments(given)
        assert parsed.value == {"n": [str(number)], "m": 1}
        assert KEPT_AS_TEXT in parsed.notes


@frozen
class Order:
    id: int


@tool
async def count(
    n: int = 0,
    ns: list[int] | None = None,
    maybe: int | None = None,
    order: Order | None = None,
    ratio: float = 1.0,
    name: str = "",
    small: Annotated[int, Param(le=2**70)] = 0,
) -> Any:
    return n, ns, maybe, order, ratio, name, small


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 2**70, 10**40 + 1])
@pytest.mark.parametrize("as_text", [False, True])
async def test_a_tool_that_asks_for_an_integer_gets_it_however_long(number: int, as_text: bool) -> None:
    """L18, T1: sent as a number or in quotes; it is the digits that are kept in between."""
    given = str(number) if as_text else number
    sent = {"n": given, "ns": [1, given], "maybe": given, "order": {"id": given}, "ratio": given, "name": str(number)}
    for arguments in (sent, json.dumps(sent)):
        prepared = count.fit(parse_arguments(arguments))
        assert prepared.arguments["n"] == str(number)
        assert KEPT_AS_TEXT in prepared.notes
        assert codec.loads(codec.dumps(prepared.arguments, exact=True)) == prepared.arguments
        # As after a restart, or a hook that leaves them as they are: what was kept fits, and says the same.
        again = count.prepare(prepared.arguments)
        assert again.arguments == prepared.arguments
        bound: list[Any] = (await count.run(again.arguments, ToolContext())).content
        assert bound == [str(number), [1, str(number)], str(number), {"id": str(number)}, float(number), str(number), 0]
        assert await count.invoke(again.arguments, ToolContext()) == (
            *(number, [1, number], number, Order(number), float(number), str(number), 0),
        )


@tool
async def find(either: int | str, each: list[str | int] | None = None) -> Any:
    return either, each


async def test_where_text_is_allowed_too_a_long_integer_is_the_text_that_the_history_has() -> None:
    """L17, T1: tool and history see the same; and text of digits may be a name, which is no number however long it is."""
    number, name = 2**70, "00" + str(2**70)
    for sent in (number, str(number)):
        prepared = find.fit(parse_arguments({"either": sent, "each": [sent, 7]}))
        assert prepared.arguments == {"either": str(number), "each": [str(number), 7]}
        assert (KEPT_AS_TEXT in prepared.notes) == (sent == number)
        assert await find.invoke(prepared.arguments, ToolContext()) == (str(number), [str(number), 7])
    for short in (7, "7", name):
        assert await find.invoke(find.prepare({"either": short}).arguments, ToolContext()) == (short, None)


@pytest.mark.parametrize("arguments", [{"ratio": 10**400}, {"ratio": "-" + "9" * 400}, {"ratios": [1, 10**400]}])
def test_integer_beyond_every_float_is_refused_where_a_float_is_asked_for(arguments: Any) -> None:
    """L19: to the tool it would be infinity, which no model can say in JSON, and none has said."""

    @tool
    async def scale(ratio: float = 1, ratios: list[float] | None = None) -> float:
        return ratio

    assert scale.prepare({"ratio": 10**300}).arguments == {"ratio": str(10**300)}
    with pytest.raises(InvalidArguments, match=r"ratio.*: is too large for a number with a point, .* 1\.8e\+308"):
        scale.prepare(arguments)


def test_bounds_hold_for_long_integers_too() -> None:
    """L19."""
    assert count.prepare({"small": 2**70}).arguments == {"small": str(2**70)}
    with pytest.raises(InvalidArguments, match=f"small: expected at most {2**70}, got integer {2**70 + 1}"):
        count.prepare({"small": 2**70 + 1})  # Which is what was sent, though it is kept as text.


def test_a_tool_that_takes_plain_json_says_that_it_takes_no_longer_ones() -> None:
    """L19: what its schema calls an integer is one when it gets there; so the model is told what to send instead."""

    async def invoke(arguments: dict[str, Any], context: ToolContext) -> object:
        return arguments

    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "x": {"type": "number"}, "s": {}}}
    raw = Tool(name="raw", description="", parameters=schema, invoke=invoke)
    for given in ({"n": 2**70}, {"n": str(2**70)}, {"x": 2**70}):  # Nor is a number rounded behind its back.
        with pytest.raises(InvalidArguments, match="'raw' takes no integers past 64 bits; send smaller ones"):
            raw.prepare(given)
    assert raw.prepare({"x": 1e20, "s": 2**70}).arguments == {"x": 1e20, "s": str(2**70)}


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_numbers_that_json_does_not_know_are_refused(text: str) -> None:
    with pytest.raises(InvalidArguments, match="is not a number that JSON knows"):
        parse_arguments(f'{{"n": {text}}}')


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_provider_object_with_such_a_number_is_refused(value: float) -> None:
    with pytest.raises(InvalidArguments, match="is not a number that JSON knows"):
        parse_arguments({"n": [value]})


def test_duplicate_keys_are_refused_by_name() -> None:
    with pytest.raises(InvalidArguments, match="'path' is given twice; send each key once") as caught:
        parse_arguments('{"path": "a", "path": "b"}')
    assert caught.value.fields == ("path",)
    with pytest.raises(InvalidArguments, match="given twice"):
        parse_arguments('{"x": [{"a": 1, "a": 1}]}')


@pytest.mark.parametrize("given", ['{"t": "a\\ud800b"}', '{"t": "a\ud800b"}', {"t": "a\ud800b"}])
def test_lone_surrogates_are_replaced_with_a_note(given: object) -> None:
    parsed = parse_arguments(given)
    assert parsed.value == {"t": "a\ufffdb"}
    assert "surrogates" in parsed.notes[0]


def test_surrogate_pairs_are_characters() -> None:
    assert parse_arguments('{"t": "\\ud83d\\ude00"}').value == {"t": "😀"}


def test_size_and_number_of_keys_are_capped() -> None:
    with pytest.raises(InvalidArguments, match="at most"):
        parse_arguments('{"a": "' + "x" * ARGUMENTS_MAX + '"}')
    with pytest.raises(InvalidArguments, match="at most"):
        parse_arguments({"a": "x" * (4 * ARGUMENTS_MAX + 1)})
    with pytest.raises(InvalidArguments, match=f"more than {ITEMS_MAX} items"):
        parse_arguments({"a": [[]] * (ITEMS_MAX + 1)})
    with pytest.raises(InvalidArguments, match=f"more than {KEYS_MAX} keys"):
        parse_arguments(json.dumps({str(number): 0 for number in range(KEYS_MAX + 1)}))


def test_values_that_are_not_json_are_refused() -> None:
    with pytest.raises(InvalidArguments, match="of type object, which is not JSON"):
        parse_arguments({"a": object()})


# L18: repairs by the schema.


def mended(given: dict[str, Any], of: Tool = edit) -> dict[str, Any]:
    prepared = of.prepare(given)
    assert prepared.notes, "a repair leaves a note"
    return prepared.arguments


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        # null for an optional field is dropped
        ({"path": "a", "line": None}, {"path": "a"}),
        ({"path": "a", "mode": None, "ratio": None}, {"path": "a"}),
        # a stringified array or object is parsed
        ({"path": "a", "tags": '["x", "y"]'}, {"path": "a", "tags": ["x", "y"]}),
        ({"path": "a", "options": '{"n": 1}'}, {"path": "a", "options": {"n": 1}}),
        ({"path": "a", "numbers": " [1, 2] "}, {"path": "a", "numbers": [1, 2]}),
        # ... and what is in it is mended too
        ({"path": "a", "numbers": '["1", 2]'}, {"path": "a", "numbers": [1, 2]}),
        # a bare string for an array of strings is wrapped
        ({"path": "a", "tags": "x"}, {"path": "a", "tags": ["x"]}),
        ({"path": "a", "tags": "[draft"}, {"path": "a", "tags": ["[draft"]}),
        # {} for an array becomes []
        ({"path": "a", "numbers": {}}, {"path": "a", "numbers": []}),
        # "true" and "false" for a boolean
        ({"path": "a", "replace_all": "true"}, {"path": "a", "replace_all": True}),
        ({"path": "a", "replace_all": "False"}, {"path": "a", "replace_all": False}),
        # a decimal string for an integer or number
        ({"path": "a", "line": "42"}, {"path": "a", "line": 42}),
        ({"path": "a", "line": "-7"}, {"path": "a", "line": -7}),
        ({"path": "a", "ratio": "0.5"}, {"path": "a", "ratio": 0.5}),
        ({"path": "a", "ratio": "3"}, {"path": "a", "ratio": 3}),
        ({"path": "a", "options": {"n": "1"}}, {"path": "a", "options": {"n": 1}}),
        # known aliases
        ({"filePath": "a"}, {"path": "a"}),
        (
            {"file_path": "a", "oldString": "x", "newString": "y", "replaceAll": "true"},
            {"path": "a", "old_text": "x", "new_text": "y", "replace_all": True},
        ),
    ],
)
def test_common_mistakes_are_mended(given: dict[str, Any], meant: dict[str, Any]) -> None:
    """L18."""
    assert mended(given) == meant


def test_cmd_means_command() -> None:
    """L18."""
    assert mended({"cmd": "ls"}, run) == {"command": "ls"}


def test_alias_never_overwrites_what_was_given_by_its_own_name() -> None:
    with pytest.raises(InvalidArguments, match="filePath: is not a parameter"):
        edit.prepare({"path": "a", "filePath": "b"})


def test_alias_that_is_a_parameter_is_left_alone() -> None:
    @tool
    async def open_it(cmd: str, command: str = "") -> None: ...

    assert open_it.prepare({"cmd": "x"}).arguments == {"cmd": "x"}


@pytest.mark.parametrize("link", ["[src/a.py](src/a.py)", "[a b.txt](a b.txt)"])
def test_markdown_link_in_a_path_field_becomes_the_path(link: str) -> None:
    """L18: the one repair of a value that fits its schema."""
    assert mended({"path": link})["path"] == link[1 : link.index("]")]

    @tool
    async def look(where: Path) -> None: ...

    assert look.prepare({"where": link}).arguments == {"where": link[1 : link.index("]")]}


def test_links_in_optional_nested_and_listed_path_fields_become_paths() -> None:
    class Target(TypedDict):
        file: str

    @tool
    async def collect(
        path: str | None = None,
        paths: list[str] | None = None,
        target: Target | None = None,
        where: list[Path] | None = None,
    ) -> None: ...

    given = {"path": "[a](a)", "paths": ["b", "[c](c)"], "target": {"file": "[d](d)"}, "where": ["[e](e)"]}
    prepared = collect.prepare(given)
    assert prepared.arguments == {"path": "a", "paths": ["b", "c"], "target": {"file": "d"}, "where": ["e"]}
    assert len(prepared.notes) == 4

    @tool
    async def listed(files: list[str] | None = None) -> None: ...

    assert listed.prepare({"files": ["[a](a)"]}).arguments == {"files": ["a"]}


@pytest.mark.parametrize("text", ["[a](b)", "[a](a) and more", "see [a](a)", "a", "[a]", "[](a)"])
def test_other_texts_in_a_path_field_are_left_alone(text: str) -> None:
    prepared = edit.prepare({"path": text})
    assert prepared.arguments == {"path": text}
    assert prepared.notes == ()


def test_markdown_link_elsewhere_is_left_alone() -> None:
    assert edit.prepare({"path": "a", "old_text": "[a](a)"}).arguments["old_text"] == "[a](a)"


@pytest.mark.parametrize(
    "given",
    [
        {"path": "a", "old_text": "true", "new_text": "42"},
        {"path": "[1, 2]", "tags": ["[]", "{}", "5"]},
        {"path": "a", "tags": None, "options": None},
        {"path": "a", "line": 3.0, "ratio": 2},
    ],
)
def test_valid_arguments_are_never_touched(given: dict[str, Any]) -> None:
    prepared = edit.prepare(given)
    assert prepared.arguments == given
    assert prepared.notes == ()


@pytest.mark.parametrize(
    "given",
    [
        {"path": None},
        {"path": "a", "line": "4 2"},
        {"path": "a", "line": "4.5"},
        {"path": "a", "line": "9" * (DIGITS_MAX + 1)},
        {"path": "a", "replace_all": "yes"},
        {"path": "a", "numbers": "[1, 2, 3, 4]"},
        {"path": "a", "numbers": {"0": 1}},
        {"path": "a", "tags": 5},
        {"path": "a", "mode": "FAST"},
        {"path": "a", "options": "[1]"},
        {"path": "a", "numbers": "[" * 1000},
    ],
)
def test_guesses_are_not_repairs(given: dict[str, Any]) -> None:
    """L18: committed only if the result then validates."""
    with pytest.raises(InvalidArguments):
        edit.prepare(given)


def test_repairs_are_all_or_nothing() -> None:
    given = {"path": "a", "line": "5", "mode": "sideways"}
    with pytest.raises(InvalidArguments) as caught:
        edit.prepare(given)
    assert caught.value.fields == ("line", "mode")
    assert given == {"path": "a", "line": "5", "mode": "sideways"}


def test_given_arguments_are_not_changed_by_repair() -> None:
    given = {"path": "a", "line": "5", "options": {"n": "1"}}
    edit.prepare(given)
    assert given == {"path": "a", "line": "5", "options": {"n": "1"}}


def test_arguments_sent_as_text_or_null_are_understood() -> None:
    @tool
    async def ping() -> None: ...

    assert ping.prepare(None).arguments == {}
    assert edit.prepare('{"path": "a"}').arguments == {"path": "a"}


def test_null_that_the_schema_allows_stays() -> None:
    assert edit.prepare({"path": "a", "tags": None, "line": None}).arguments == {"path": "a", "tags": None}


def test_schemas_of_others_are_repaired_by_too() -> None:
    """A server's schema has types in lists, references, oneOf, and no additionalProperties."""

    async def invoke(arguments: dict[str, Any], context: object) -> None: ...

    schema = {
        "type": "object",
        "properties": {
            "count": {"type": ["integer", "null"]},
            "where": {"$ref": "#/definitions/where"},
            "either": {"oneOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "number"}}]},
            "circle": {"$ref": "#/properties/circle"},
        },
        "required": ["where"],
        "definitions": {
            "where": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "line": {"type": "integer"}},
                "required": ["path"],
            }
        },
    }
    other = Tool("other", "", schema, invoke)
    given = {"count": "3", "where": '{"filePath": "[a](a)", "line": "7"}', "either": '["1.5"]'}
    assert other.prepare(given).arguments == {"count": 3, "where": {"path": "a", "line": 7}, "either": [1.5]}
    assert other.prepare({"where": {"file_path": "x"}, "free": 1}).arguments == {"where": {"path": "x"}, "free": 1}


# L19: what the model is told.


def complaint(given: object, of: Tool = edit) -> str:
    with pytest.raises(InvalidArguments) as caught:
        of.prepare(given)
    return caught.value.message


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({}, "- path: is required, but missing; expected string"),
        ({}, "Received fields: none"),
        ({"path": 5}, "- path: expected string, got integer 5"),
        ({"path": "a", "mode": "x"}, '- mode: expected one of "fast", "slow", got string "x"'),
        ({"path": "a", "line": 1.5}, "- line: expected integer, got number 1.5"),
        ({"path": "a", "replace_all": [1]}, "- replace_all: expected boolean, got array(1 items)"),
        ({"path": "a", "tags": 5}, "- tags: expected array or null, got integer 5"),
        ({"path": "a", "numbers": [1, "x"]}, '- numbers[1]: expected integer, got string "x"'),
        ({"path": "a", "numbers": [1, 2, 3, 4]}, "- numbers: expected at most 3 items, got array(4 items)"),
        ({"path": "a", "pth": "b"}, "- pth: is not a parameter; did you mean 'path'?"),
        ({"path": "a", "zzz": "b"}, "- zzz: is not a parameter; the parameters are path, old_text"),
        ({"path": {"b": 1}}, "- path: expected string, got object(1 keys: b)"),
        ([1], "- arguments: expected object, got array(1 items)"),
        ("text", '- arguments: expected object, got string "text"'),
        (True, "- arguments: expected object, got boolean true"),
    ],
)
def test_complaint_says_field_expectation_and_what_came(given: object, line: str) -> None:
    """L19."""
    assert line in complaint(given)


@pytest.mark.parametrize("text", ["['a', 'b']", '["a", "b",]', '["a", "b"', " [a, b] ", "[\n  \"a']"])
def test_list_written_as_text_that_is_no_json_is_not_taken_for_one_text(text: str) -> None:
    """L18, L19: a tool that was to delete two files would be given the name of a third."""

    @tool
    async def delete(names: list[str], more: list[str] | None = None) -> None: ...

    assert "- names: expected array, got string" in complaint({"names": text}, delete)
    assert "- more: expected array or null, got string" in complaint({"names": [], "more": text}, delete)
    for one in ("[a-z]+", "[a-z]", "a, b", "[x](y, z)", "[1] see below"):
        assert delete.prepare({"names": one}).arguments == {"names": [one]}


@pytest.mark.timeout(10)
def test_long_text_with_many_commas_is_seen_at_once_to_be_no_list() -> None:
    """L18: about the longest that a model may send. An expression that looks for the end from each comma anew takes half an hour over it."""

    @tool
    async def delete(names: list[str]) -> None: ...

    one = "[" + "a," * 2_000_000
    assert delete.prepare({"names": one}).arguments == {"names": [one]}


def test_complaint_about_a_key_or_one_item_too_many_says_what_may_be_there() -> None:
    """L19."""

    @tool
    async def measure(sizes: dict[Literal["s", "l"], int], pair: tuple[int, int]) -> None: ...

    told = complaint({"sizes": {"q": 1}, "pair": [1, 2, 3]}, measure)
    assert '- sizes: expected every key to be one of "s", "l", got object(1 keys: q)' in told
    assert "- pair[2]: expected nothing here, got integer 3" in told


def test_complaint_about_a_missing_field_says_what_came_instead() -> None:
    """L19 (seed 004: invalid input is told, and bounded): at most 12 fields, each in few words."""
    told = complaint({"content": "x" * 20_000, "line": 3})
    assert "- path: is required, but missing; expected string" in told
    assert f'Received fields: content: string(20000 chars, "{"x" * 80}..."), line: integer 3' in told
    assert "x" * 81 not in told
    many = complaint({f"unknown_{number}": "y" * 500 for number in range(500)})
    assert many.count("string(500 chars") == 12 and many.endswith(", and 488 more") and len(many) < 4_000


def test_complaint_never_echoes_a_long_value() -> None:
    """L19: the 20,000 characters themselves are never echoed."""
    told = complaint({"path": ["SECRET" * 4000], "line": "x" * 20_000, "mode": "y" * 20_000, "k" * 20_000: 1})
    assert 'string(20000 chars, "' + "x" * 80 + '...")' in told
    assert "x" * 81 not in told
    assert "y" * 81 not in told
    assert "k" * 81 not in told
    assert "SECRET" not in told
    assert len(told) < 2_000


def test_complaint_lists_twelve_fields_at_most() -> None:
    """L19."""
    told = complaint({f"unknown_{number}": 1 for number in range(500)})
    assert told.count("\n- ") == 13
    assert len(told) < 4_000


def test_complaint_about_very_many_parts_names_the_first_only() -> None:
    """Security: to look for every mistake in a megabyte of them would hold up every session for seconds."""
    told = complaint({"path": "a", "tags": [{}] * 50_000, "line": "x"})
    assert told.count("\n- ") == 1
    assert complaint({"path": "a", "numbers": json.dumps([{}] * 50_000)}).endswith(
        " chars, " + '"[' + "{}, " * 19 + '{},...")'
    )


def test_very_many_repairs_leave_few_notes() -> None:
    @tool
    async def add(numbers: list[int]) -> None: ...

    prepared = add.prepare({"numbers": ["1"] * 1_000})
    assert prepared.arguments == {"numbers": [1] * 1_000}
    assert len(prepared.notes) == 21
    assert prepared.notes[-1] == "and 980 repairs more"


def test_complaint_about_limits_names_them() -> None:
    @tool
    async def limits(
        n: Annotated[int, Param(ge=1, le=9, multiple_of=2)] = 2,
        x: Annotated[float, Param(gt=0, lt=1)] = 0.5,
        s: Annotated[str, Param(min_length=2, max_length=3, pattern="^a")] = "aa",
        u: set[int] | None = None,
        e: int | bool | list[str] = 0,
    ) -> None: ...

    assert "- n: expected at least 1, got integer 0" in complaint({"n": 0}, limits)
    assert "- n: expected at most 9, got integer 10" in complaint({"n": 10}, limits)
    assert "- n: expected a multiple of 2" in complaint({"n": 3}, limits)
    assert "- x: expected more than 0" in complaint({"x": 0}, limits)
    assert "- x: expected less than 1" in complaint({"x": 1}, limits)
    assert "- s: expected at least 2 characters" in complaint({"s": "a"}, limits)
    assert "- s: expected at most 3 characters" in complaint({"s": "aaaa"}, limits)
    assert "- s: expected text that matches ^a" in complaint({"s": "bb"}, limits)
    assert "no item twice" in complaint({"u": [1, 1]}, limits)
    assert "- e: expected integer or boolean or array, got object" in complaint({"e": {"a": 1}}, limits)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "boolean true"),
        (3, "integer 3"),
        (1.5, "number 1.5"),
        ("hi", 'string "hi"'),
        ("a\nb", 'string "a\\nb"'),
        ("x" * 20_000, f'string(20000 chars, "{"x" * 80}...")'),
        ([1, 2], "array(2 items)"),
        ({}, "object(0 keys)"),
        ({str(number): 0 for number in range(9)}, "object(9 keys: 0, 1, 2, 3, 4, 5, 6, 7, ...)"),
        (object(), "object"),
    ],
)
def test_summary_of_a_value(value: object, text: str) -> None:
    """L19."""
    assert summarised(value) == text


# Alternatives within alternatives: each level doubles the ways to read what is in it.


@frozen
class Sum:
    left: Sum | Product | int
    right: Sum | Product | int


@frozen
class Product:
    left: Sum | Product | int
    right: Sum | Product | int
    path: str = ""


@tool
async def calculate(tree: Sum | Product) -> None: ...


def nested(leaf: object, levels: int) -> object:
    for _ in range(levels):
        leaf = {"left": leaf, "right": 1, "path": "[a.txt](a.txt)"}
    return leaf


def test_a_deep_tree_of_alternatives_is_refused_without_trying_all_the_ways_to_read_it() -> None:
    """L19, security, JSON: 2 to the 40th ways would take the event loop, and every session with it, for years."""
    with pytest.raises(InvalidArguments, match="- tree: does not fit, somewhere inside; send it simpler"):
        calculate.prepare({"tree": nested("x", 40)})


def test_a_deep_tree_of_alternatives_that_fits_is_taken() -> None:
    """L18: as it is, but for the links that are found in reasonable time; and a shallow one is mended all over."""
    tree, levels = calculate.prepare({"tree": nested(1, 40)}).arguments["tree"], 0
    while isinstance(tree, dict):
        tree, levels = tree["left"], levels + 1
    assert (tree, levels) == (1, 40)
    mended = {"left": {"left": 7, "right": 1, "path": "a.txt"}, "right": 1, "path": "a.txt"}
    assert calculate.prepare({"tree": nested("7", 2)}).arguments == {"tree": mended}


def test_a_shallow_tree_of_alternatives_is_told_what_is_wrong() -> None:
    """L19."""
    with pytest.raises(InvalidArguments, match=r"expected .*integer"):
        calculate.prepare({"tree": nested("x", 2)})
