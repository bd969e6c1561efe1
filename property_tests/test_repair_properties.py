"""L16-L19: parsing and repair hold for any input."""

from __future__ import annotations

import json
import math
from typing import Any, Literal

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from trouper.tools import InvalidArguments, parse_arguments, tool
from trouper.tools.arguments import DEPTH_MAX

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text
)
json_values: st.SearchStrategy[Any] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4), max_leaves=12
)
json_objects = st.dictionaries(text, json_values, max_size=4)


@tool
async def search(
    query: str,
    limit: int = 10,
    threshold: float = 0.5,
    exact: bool = False,
    tags: list[str] = [],  # noqa: B006
    pages: list[int] = [],  # noqa: B006
    weights: dict[str, float] = {},  # noqa: B006
    order: Literal["up", "down"] = "up",
    note: str | None = None,
) -> None: ...


finite = st.floats(-1e6, 1e6, allow_nan=False).map(lambda value: round(value, 3))
valid_arguments = st.fixed_dictionaries(
    {"query": text},
    optional={
        "limit": st.integers(-(10**9), 10**9),
        "threshold": finite,
        "exact": st.booleans(),
        "tags": st.lists(text, max_size=3),
        "pages": st.lists(st.integers(0, 99), max_size=3),
        "weights": st.dictionaries(text, finite, max_size=3),
        "order": st.sampled_from(["up", "down"]),
        "note": st.none() | text,
    },
)


def is_ambiguous(name: str, value: Any) -> bool:
    """`"[]"` for a list of texts may be the empty list or one text; either reading is right."""
    return name == "tags" and (not value or value[0][:1] in ("[", "{") or value[0].strip() != value[0])


@st.composite
def mistaken(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Valid arguments, and the same with mistakes of the kinds that L18 mends."""
    meant = draw(valid_arguments)
    sent: dict[str, Any] = {}
    for name, value in meant.items():
        if name in ("query", "order", "note") or not draw(st.booleans()):
            sent[name] = value
        elif isinstance(value, bool):
            sent[name] = draw(st.sampled_from([str(value), str(value).lower()]))
        elif isinstance(value, (int, float)):
            sent[name] = repr(value)
        elif value == [] and draw(st.booleans()):
            sent[name] = {}
        elif name == "tags" and len(value) == 1 and not is_ambiguous(name, value) and draw(st.booleans()):
            sent[name] = value[0]
        else:
            sent[name] = json.dumps(value, ensure_ascii=draw(st.booleans()))
    for name in ("limit", "threshold", "exact", "tags", "order"):
        if name not in sent and draw(st.booleans()):
            sent[name] = None
    return meant, sent


@settings(max_examples=200, deadline=None)
@given(mistaken())
def test_common_mistakes_are_undone(drawn: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """L18."""
    meant, sent = drawn
    before = json.dumps(sent)
    prepared = search.prepare(sent)
    assert prepared.arguments == meant
    assert json.dumps(sent) == before, "what was given is not changed in place"
    assert bool(prepared.notes) == (sent != meant)


@settings(max_examples=200, deadline=None)
@given(json_objects)
def test_prepare_is_idempotent_and_total(arguments: dict[str, Any]) -> None:
    try:
        prepared = search.prepare(arguments)
    except InvalidArguments as error:
        assert len(error.message) < 4_000
    else:
        assert search.prepare(prepared.arguments) == type(prepared)(prepared.arguments)


@settings(max_examples=200, deadline=None)
@given(json_values, st.booleans())
def test_valid_json_is_parsed_as_it_is(value: Any, ascii_only: bool) -> None:
    """L16."""
    parsed = parse_arguments(json.dumps(value, ensure_ascii=ascii_only))
    assert parsed.value == value
    assert parsed.notes == ()


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60) | st.text('{}[]",:\\ntrue0-9.eE/ ', max_size=60))
def test_any_text_is_parsed_or_refused(buffer: str) -> None:
    """L17: whatever comes out can be journaled."""
    try:
        parsed = parse_arguments(buffer)
    except InvalidArguments as error:
        assert len(error.message) < 1_000
    else:
        orjson.dumps(parsed.value)
        if not isinstance(parsed.value, str):
            assert parse_arguments(parsed.value).value == parsed.value


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(text, json_values, min_size=1, max_size=3), st.data())
def test_json_that_breaks_off_is_never_mistaken_for_whole(value: dict[str, Any], data: st.DataObject) -> None:
    whole = json.dumps(value)
    buffer = whole[: data.draw(st.integers(1, len(whole) - 1))]
    try:
        parsed = parse_arguments(buffer)
    except InvalidArguments:
        return
    assert parsed.cut_short


def shape(value: Any) -> tuple[int, bool]:
    """Depth, and whether every number is finite."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        inner = [shape(each) for each in value]
        return 1 + max((depth for depth, _ in inner), default=0), all(finite for _, finite in inner)
    return 0, not isinstance(value, float) or math.isfinite(value)


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        scalars | st.floats() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.text(max_size=5), inner, max_size=3)
            | inner.map(lambda value: [[[[[[[[value]]]]]]]])
        ),
        max_leaves=20,
    )
)
def test_provider_objects_are_made_safe_or_refused(value: Any) -> None:
    """L16, and the JSON row of the table of threats."""
    try:
        parsed = parse_arguments(value)
    except InvalidArguments:
        return
    orjson.dumps(parsed.value)
    depth, all_finite = shape(parsed.value)
    assert depth <= DEPTH_MAX
    assert all_finite
