"""T9 for results of many megabytes: kept in full, cut for the model, and nothing else stands still meanwhile."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
import trio

from trouper import ToolContext, ToolResult, open_runtime, tool
from trouper.core.messages import Json
from trouper.models import Scripted, call, reply
from trouper.tools import OUTPUT_MAX, shape_output
from trouper.tools.errors import InvalidResult
from trouper.tools.large import LARGE, PARTS_MAX, detached, weight
from trouper.tools.results import as_result

TEXT = "a line of text, and then another\n" * 250_000
ROWS = [{"id": number, "name": "row"} for number in range(250_000)]


@attrs.frozen
class Report:
    title: str
    body: str


def shapes() -> list[Any]:
    return [
        pytest.param(lambda: TEXT, lambda kept: kept == TEXT, id="text"),
        pytest.param(lambda: "żółw ✓\n" * 1_000_000, lambda kept: kept == "żółw ✓\n" * 1_000_000, id="beyond ASCII"),
        pytest.param(
            lambda: "\x1b[31mred\x1b[0m\n" * 500_000, lambda kept: kept == "red\n" * 500_000, id="terminal escapes"
        ),
        pytest.param(
            lambda: {"code": 1, "stdout": TEXT},
            lambda kept: json.loads(kept) == {"code": 1, "stdout": TEXT},
            id="a long text in an object",
        ),
        pytest.param(lambda: ROWS, lambda kept: json.loads(kept) == ROWS, id="many small parts"),
        pytest.param(
            lambda: Report("t", TEXT), lambda kept: json.loads(kept) == {"title": "t", "body": TEXT}, id="an object"
        ),
    ]


@pytest.mark.parametrize(("made", "is_kept"), shapes())
@pytest.mark.parametrize("fails", [False, True])
async def test_a_large_result_is_kept_in_full_while_others_go_on(
    tmp_path: Path, made: Callable[[], Any], is_kept: Callable[[str], bool], fails: bool
) -> None:
    value = made()
    spins = returned_at = 0

    @tool
    async def large() -> object:
        """Returns much."""
        nonlocal returned_at
        returned_at = spins
        return ToolResult(value, is_error=True) if fails else value

    async def spin() -> None:
        nonlocal spins
        while True:
            await trio.lowlevel.checkpoint()
            spins += 1

    model = Scripted([reply(call("large")), reply("done")])
    async with open_runtime(tmp_path, model=model, tools=[large], durability="write") as runtime:
        session = await runtime.session("s")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(spin)
            await session.ask("go")
            nursery.cancel_scope.cancel()
        # Work on the loop leaves room for the few steps of the turn itself; work in a thread for as many as one likes.
        assert spins - returned_at > 500
        (answer,) = session.history[2].answers
    content = answer.content
    assert len(content.encode() if isinstance(content, str) else orjson.dumps(content)) <= OUTPUT_MAX
    assert "'outputs/call_1_1_0.txt'" in str(content)
    assert is_kept((tmp_path / "files" / "s" / "outputs" / "call_1_1_0.txt").read_text())


async def test_the_model_is_told_when_the_quota_has_no_room_for_the_whole(tmp_path: Path) -> None:
    @tool(needs=("files",))
    async def fill(context: ToolContext) -> str:
        """Fills the session's files, and then says more than fits."""
        context.files.root.mkdir(parents=True, exist_ok=True)
        (context.files.root / "full").touch()
        os.truncate(context.files.root / "full", 256 * 1024 * 1024)
        return "x" * 100_000

    model = Scripted([reply(call("fill")), reply("done")])
    async with open_runtime(tmp_path, model=model, tools=[fill], durability="write") as runtime:
        session = await runtime.session("s")
        await session.ask("go")
        (answer,) = session.history[2].answers
    assert "the full text was not kept: only 0 of the 268435456 bytes" in answer.content
    assert "delete what is no longer needed" in answer.content
    assert [path.name for path in (tmp_path / "files" / "s").rglob("*") if path.is_file()] == ["full"]


def nested(depth: int) -> Json:
    value: Json = "x" * LARGE
    for _ in range(depth):
        value = [value]
    return value


def cyclic() -> Json:
    value: list[Any] = ["x" * LARGE]
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (["x" * LARGE, float("nan")], "NaN"),
        ([float("inf")] * LARGE, "NaN"),
        (["x" * LARGE, b"bytes"], "bytes"),
        (["x" * LARGE, object()], "not JSON"),
        (nested(300), "nested too deeply"),
        (cyclic(), "contains itself"),
    ],
    ids=["NaN", "infinities", "bytes", "object", "deep", "cyclic"],
)
def test_what_is_not_json_is_refused_in_a_large_result_too(value: Any, why: str) -> None:
    with pytest.raises(InvalidResult, match=why):
        as_result(value, "t")


def test_an_integer_past_64_bits_is_its_decimal_text_in_a_large_result_too() -> None:
    """T2."""
    assert as_result(["x" * LARGE, 2**64, {"n": -(2**70)}], "t").content == [
        "x" * LARGE,
        str(2**64),
        {"n": str(-(2**70))},
    ]
    many = as_result([2**64] * LARGE, "t").content
    assert isinstance(many, str)
    assert many.count(f'"{2**64}"') == LARGE


@pytest.mark.parametrize(
    "value",
    [
        {1: "x" * LARGE, "set": {3, 1, 2}, "tuple": (1, None, True), "report": Report("a", "b")},
        [Report("t", "x" * LARGE)],
        {str(number): [number, {"deep": {"er": None}}] for number in range(PARTS_MAX)} | {"long": "y" * LARGE},
        [[], {}, "", [[]], "z" * LARGE] * 3 + [0] * PARTS_MAX,
    ],
    ids=["odd parts", "objects", "many keys", "empty parts"],
)
def test_a_large_value_says_what_a_small_one_would(value: Any) -> None:
    found = as_result(value, "t").content
    small = orjson.loads(
        orjson.dumps(
            value,
            default=lambda each: attrs.asdict(each) if attrs.has(type(each)) else sorted(each),
            option=orjson.OPT_NON_STR_KEYS,
        )
    )
    assert (orjson.loads(found) if isinstance(found, str) else found) == small
    shaped = shape_output(as_result(value, "t"))
    assert orjson.loads(shaped.full_text or "") == small


def test_a_value_of_many_parts_is_cleaned_of_escapes() -> None:
    rows = [{"n": number, "text": f"\x1b[31mred\x1b[0m {number}\x07\x9b0m"} for number in range(60_000)]
    shaped = shape_output(as_result(rows, "t"))
    assert orjson.loads(shaped.full_text or "")[7] == {"n": 7, "text": "red 7"}
    assert "\\u001b" not in shaped.content


def test_weighing_looks_no_further_than_it_must() -> None:
    class Watched(list[int]):
        def __iter__(self) -> Any:
            raise AssertionError("looked inside")

    assert weight(Watched([0] * LARGE)) >= LARGE
    assert weight({"a": [1, "two", None]}) < 100


@dataclasses.dataclass
class Linked:
    name: str
    next: object = None


@attrs.define
class Chained:
    name: str
    next: object = None


@pytest.mark.parametrize("kind", [Linked, Chained])
def test_a_result_that_contains_itself_is_refused_soon(kind):
    """T9: and not after it was measured again at every level."""
    ring = kind("a")
    ring.next = [kind("b", ring)]
    looked = 0

    def counted(value):
        nonlocal looked
        looked += 1
        return {"name": value.name, "next": value.next}

    with pytest.raises(TypeError, match="contains itself"):
        detached(ring, counted, orjson.dumps)
    assert looked <= 3
    with pytest.raises(InvalidResult, match="contains itself"):
        as_result(ring, "t")
