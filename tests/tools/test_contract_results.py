"""T2: what a tool may return, and what becomes of it."""

from __future__ import annotations

import base64
import dataclasses
import math
from collections import OrderedDict, UserDict, deque, namedtuple
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID

import attrs
import pytest

from trouper.core.messages import Media
from trouper.tools import ConnectionRequired, InvalidResult, ToolContext, ToolError, ToolResult, image, tool
from trouper.tools.results import IMAGE_MAX, IMAGES_MAX, as_result

PNG = b"\x89PNG\r\n\x1a\n" + b"\x00" * 16
JPEG = b"\xff\xd8\xff\xe0" + b"\x00" * 16
GIF = b"GIF89a" + b"\x00" * 16
WEBP = b"RIFF\x10\x00\x00\x00WEBPVP8 "


class Colour(Enum):
    RED = "red"


@attrs.frozen
class Item:
    name: str
    price: Decimal
    when: date
    colour: Colour = Colour.RED
    tags: frozenset[str] = frozenset({"b", "a"})


@dataclasses.dataclass
class Box:
    _hidden: int
    item: Item


class Ratio(float):
    """As numpy's numbers are."""


def content(returned: object) -> Any:
    return as_result(returned, "t").content


@pytest.mark.parametrize(
    "value", ["text", "", "naïve ✓", 0, 7, -3, 1.5, True, False, None, [], [1, "a", None], {}, {"a": {"b": [1]}}]
)
def test_json_values_stay_what_they_are(value: object) -> None:
    assert content(value) == value
    assert type(content(value)) is type(value)


def test_attrs_objects_and_dataclasses_are_unstructured() -> None:
    item = Item("tea", Decimal("1.50"), date(2026, 1, 2))
    plain = {"name": "tea", "price": "1.50", "when": "2026-01-02", "colour": "red", "tags": ["a", "b"]}
    assert content(item) == plain
    assert content({"items": [item]}) == {"items": [plain]}
    assert content(Box(1, item)) == {"_hidden": 1, "item": plain}


def test_common_values_have_a_json_form() -> None:
    point = namedtuple("point", "x y")
    assert content((1, 2)) == [1, 2]
    assert content(point(1, 2)) == {"x": 1, "y": 2}
    assert content(OrderedDict(b=1, a=2)) == {"b": 1, "a": 2}
    assert content({"b", "a"}) == ["a", "b"]
    assert content({"a": [Ratio(0.5), None]}) == {"a": [0.5, None]}
    assert content([deque([None]), MappingProxyType({"a": None})]) == [[None], {"a": None}]
    assert content({1: "a", Colour.RED: "b"}) == {"1": "a", "red": "b"}
    assert content([Path("a/b"), UUID(int=1), datetime(2026, 1, 1, tzinfo=UTC), Colour.RED]) == [
        "a/b",
        "00000000-0000-0000-0000-000000000001",
        "2026-01-01T00:00:00+00:00",
        "red",
    ]


def test_result_is_detached_from_the_tools_own_objects() -> None:
    """I10: what was journaled cannot change under the history."""
    mine = {"list": [1]}
    result = content(mine)
    mine["list"].append(2)
    assert result == {"list": [1]}


@attrs.frozen
class Holder:
    held: ToolResult


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (object(), "returned a object that is not JSON"),
        ({"f": open}, "is not JSON"),
        (b"bytes", "returned bytes; decode them"),
        ([bytearray(b"x")], "bytearray is not JSON"),
        (float("nan"), "NaN or an infinity"),
        ({"x": [1.0, float("inf")]}, "NaN or an infinity"),
        (deque([float("nan")]), "NaN or an infinity"),
        (MappingProxyType({"x": float("-inf")}), "NaN or an infinity"),
        ({"x": [UserDict(x=Ratio("nan"))]}, "NaN or an infinity"),
        ({float("nan"): 1}, "NaN or an infinity"),
        (ValueError("oops"), "returned an exception"),
        (ToolResult(ToolResult("x")), "a ToolResult inside a ToolResult"),
        (ToolResult("x", raw_output=5), "raw_output of type int"),  # type: ignore[arg-type]
        ([ToolResult("x", raw_output="for the disk")], "a ToolResult inside a value; return it by itself"),
        ({"a": [Holder(ToolResult("x", raw_output="for the disk"))]}, "a ToolResult inside a value"),
        (["x" * (1 << 20), ToolResult("x", raw_output="for the disk")], "a ToolResult inside a value"),
    ],
)
def test_what_is_not_json_is_internal_and_says_why(value: object, told: str) -> None:
    """T2, L20: the author's to fix, not the model's to read."""
    with pytest.raises(InvalidResult, match=told) as caught:
        as_result(value, "culprit")
    assert "'culprit'" in caught.value.message
    assert not isinstance(caught.value, ToolError)


def test_endless_structure_is_internal_too() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidResult):
        as_result(loop, "t")


def test_lone_surrogates_in_text_are_replaced() -> None:
    """The result must be journalable; text decoded with surrogateescape is not worth losing it."""
    assert content("a\udc80b") == "a?b"
    assert content("plain ✓") == "plain ✓"


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 2**70, math.factorial(30), -(10**1000)])
def test_an_integer_past_64_bits_is_its_decimal_text(number: int) -> None:
    """T2: any JSON-able value may be returned; and a number of thirty digits is one. Text keeps every digit, in the journal and on the way to the model."""
    assert content(number) == str(number)
    assert content([1, number]) == [1, str(number)]
    assert content({"n": (number, True), number: None}) == {"n": [str(number), True], str(number): None}
    assert content({number}) == [str(number)]
    assert content([Box(number, Item("tea", Decimal(number), date(2026, 1, 2)))])[0]["_hidden"] == str(number)
    assert content(ToolResult({"n": number})) == {"n": str(number)}


def test_an_integer_too_long_to_be_written_in_digits_is_text_all_the_same() -> None:
    """T2: Python writes no more than some thousand digits, but in powers of two."""
    assert content([2**100_000]) == [hex(2**100_000)]


def test_lone_surrogates_are_replaced_wherever_they_are() -> None:
    """T2: in a tuple, a set or an object as in a list."""
    assert content([("a\udc80b", {"a\udc80b"}), {"k\udc80": "a\udc80b", "n": 2**64}]) == [
        ["a?b", ["a?b"]],
        {"k?": "a?b", "n": str(2**64)},
    ]
    assert content(Item("a\udc80b", Decimal(1), date(2026, 1, 2)))["name"] == "a?b"


async def test_tool_error_and_connection_may_be_returned() -> None:
    @tool
    async def refuses(how: str) -> Any:
        return ToolError("cannot") if how == "error" else ConnectionRequired("github")

    with pytest.raises(ToolError, match="cannot"):
        await refuses.run({"how": "error"}, ToolContext())
    with pytest.raises(ConnectionRequired):
        await refuses.run({"how": "connection"}, ToolContext())


# The side-car.


def test_raw_output_is_beside_an_object_and_not_in_it() -> None:
    result = as_result(ToolResult({"stdout": "hello"}, raw_output="raw stdout bytes"), "demo")
    assert result.content == {"stdout": "hello"}
    assert result.raw_output == "raw stdout bytes"


def test_raw_output_beside_a_scalar_leaves_it_a_scalar() -> None:
    result = as_result(ToolResult("compact summary", raw_output="full output"), "demo")
    assert result.content == "compact summary"
    assert result.raw_output == "full output"


@pytest.mark.parametrize(
    "value",
    [
        {"raw_output": "mine"},
        {"_raw_output": "mine"},
        {"_raw_output_scalar": "v"},
        {"_raw_output_scalar": "v", "kept": True},
        {"content": "x", "raw_output": "y", "images": []},
        {"is_error": True},
    ],
)
def test_no_key_of_a_users_own_is_mistaken_for_the_side_car(value: dict[str, Any]) -> None:
    result = as_result(value, "demo")
    assert result.content == value
    assert result.raw_output is None
    assert result.images == ()
    assert not result.is_error
    assert as_result(ToolResult(value, raw_output="side"), "demo") == ToolResult(value, raw_output="side")


def test_failure_that_is_a_result_keeps_its_mark() -> None:
    assert as_result(ToolResult({"exit": 1}, is_error=True), "demo").is_error


# Images.


@pytest.mark.parametrize(
    ("data", "kind"), [(PNG, "image/png"), (JPEG, "image/jpeg"), (GIF, "image/gif"), (WEBP, "image/webp")]
)
def test_images_of_four_kinds_are_taken(data: bytes, kind: str) -> None:
    made = image(data)
    assert made == Media(kind, data=base64.b64encode(data).decode())
    assert image(made.data or "") == made
    assert as_result(ToolResult("see", images=(made,)), "t").images == (made,)


@pytest.mark.parametrize(
    ("media", "told"),
    [
        (Media("image/svg+xml", data="PHN2Zz4="), "of type 'image/svg\\+xml'; use one of image/png"),
        (Media("image/png", data="not base64!"), "is not base64"),
        (Media("image/png", data=base64.b64encode(JPEG).decode()), "said to be 'image/png' that is 'image/jpeg'"),
        (Media("image/png", data=base64.b64encode(b"hello").decode()), "is none of"),
        (Media("image/webp", data=base64.b64encode(b"RIFF0000WAVE").decode()), "is none of"),
        (Media("image/png", uri="https://example.com/a.png"), "without data"),
    ],
)
def test_image_that_is_none_is_internal(media: Media, told: str) -> None:
    with pytest.raises(InvalidResult, match=told):
        as_result(ToolResult("x", images=(media,)), "t")


def test_images_are_capped_in_size_and_number() -> None:
    with pytest.raises(InvalidResult, match="more than"):
        image(PNG + b"\x00" * IMAGE_MAX)
    with pytest.raises(InvalidResult, match=f"at most {IMAGES_MAX}"):
        as_result(ToolResult("x", images=(image(PNG),) * (IMAGES_MAX + 1)), "t")


def test_a_stray_surrogate_inside_a_value_costs_no_result() -> None:
    """As in plain text: it comes from bytes that were decoded carelessly."""
    assert as_result({"name\udc80": ["a\ud800b", 1]}, "t").content == {"name?": ["a?b", 1]}
