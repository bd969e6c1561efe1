"""T1: for any annotation, what its type can hold fits its schema, and comes back from JSON as it was."""

from __future__ import annotations

import dataclasses
import keyword
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from trouper.tools import InvalidArguments, tool
from trouper.tools.results import as_json
from trouper.tools.schema import schema_of
from trouper.tools.validation import compiled


class Fruit(Enum):
    APPLE = "apple"
    PEAR = 2


class Kind(NamedTuple):
    """An annotation, and how to draw values of it."""

    annotation: Any
    values: st.SearchStrategy[Any]
    hashable: bool = False


text = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
integers = st.integers(-(2**63), 2**64 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | integers | floats | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)

SCALARS = [
    Kind(str, text, True),
    Kind(int, integers, True),
    Kind(float, floats, True),
    Kind(bool, st.booleans(), True),
    Kind(type(None), st.none()),
    Kind(Any, json_values),
    Kind(date, st.dates(), True),
    Kind(datetime, st.datetimes()),
    Kind(UUID, st.uuids(), True),
    Kind(Decimal, st.decimals(-(10**9), 10**9, places=4)),
    Kind(PurePosixPath, st.from_regex(r"[a-z]{1,5}(/[a-z]{1,5}){0,2}", fullmatch=True).map(PurePosixPath), True),
    Kind(Fruit, st.sampled_from(Fruit)),
    Kind(Literal["a", "b", 3], st.sampled_from(["a", "b", 3])),
]
names = st.from_regex(r"[a-z][a-z_]{0,5}", fullmatch=True).filter(
    lambda name: not keyword.iskeyword(name) and name not in dir(dict)
)


def records(make: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Kind]], Kind]:
    def record(fields: dict[str, Kind]) -> Kind:
        cls = make({name: kind.annotation for name, kind in fields.items()})
        return Kind(
            cls,
            st.fixed_dictionaries({name: kind.values for name, kind in fields.items()}).map(
                lambda values: cls(**values)
            ),
        )

    return record


def wider(kinds: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    fields = st.dictionaries(names, kinds, min_size=1, max_size=3)
    return st.one_of(
        kinds.map(lambda kind: Kind(list[kind.annotation], st.lists(kind.values, max_size=3))),  # type: ignore[name-defined]
        kinds.map(lambda kind: Kind(tuple[kind.annotation, ...], st.lists(kind.values, max_size=3).map(tuple))),  # type: ignore[name-defined]
        st.tuples(kinds, kinds).map(
            lambda pair: Kind(tuple[pair[0].annotation, pair[1].annotation], st.tuples(pair[0].values, pair[1].values))
        ),
        kinds.map(lambda kind: Kind(dict[str, kind.annotation], st.dictionaries(text, kind.values, max_size=3))),  # type: ignore[name-defined]
        kinds.filter(lambda kind: kind.hashable).map(
            lambda kind: Kind(frozenset[kind.annotation], st.frozensets(kind.values, max_size=3))
        ),  # type: ignore[name-defined]
        # `x | None`: a null is never anything else; other unions of drawn types would be ambiguous in JSON.
        kinds.filter(lambda kind: kind.annotation is not Any).map(
            lambda kind: Kind(kind.annotation | None, st.none() | kind.values)
        ),
        fields.map(
            records(
                lambda types: attrs.make_class(
                    "Drawn", {name: attrs.field(type=kind) for name, kind in types.items()}, frozen=True
                )
            )
        ),
        fields.map(records(lambda types: dataclasses.make_dataclass("DrawnData", types.items()))),
        fields.map(records(lambda types: TypedDict("DrawnDict", types))),  # type: ignore[misc]
    )


kinds = st.recursive(st.sampled_from(SCALARS), wider, max_leaves=6)
kinds_with_values = kinds.flatmap(lambda kind: st.tuples(st.just(kind), kind.values))


def tool_for(annotation: Any) -> Any:
    async def takes(value: Any) -> None: ...

    takes.__annotations__["value"] = annotation
    return tool(takes)


@settings(max_examples=150, deadline=None)
@given(kinds_with_values)
def test_value_fits_its_schema_and_comes_back_as_it_was(drawn: tuple[Kind, Any]) -> None:
    kind, value = drawn
    made = tool_for(kind.annotation)
    plain = as_json(value, "t")
    assert compiled(schema_of(kind.annotation)).is_valid(plain)
    bound: list[Any] = []
    if made.bind is not None:
        bound.append(made.bind({"value": plain})["value"])
    else:
        bound.append(plain)
    assert bound == [value]


@settings(max_examples=150, deadline=None)
@given(kinds_with_values)
def test_valid_arguments_are_never_changed(drawn: tuple[Kind, Any]) -> None:
    """L18: repair only touches what does not fit."""
    kind, value = drawn
    arguments = {"value": as_json(value, "t")}
    prepared = tool_for(kind.annotation).prepare(arguments)
    assert prepared.arguments == arguments
    assert prepared.notes == ()


@settings(max_examples=150, deadline=None)
@given(kinds, json_values)
def test_any_json_is_either_prepared_to_fit_or_refused_in_few_words(kind: Kind, value: Any) -> None:
    """L18, L19."""
    made = tool_for(kind.annotation)
    try:
        prepared = made.prepare({"value": value})
    except InvalidArguments as error:
        assert error.fields
        assert len(error.message) < 4_000
        return
    assert made.validator.is_valid(prepared.arguments)
    again = made.prepare(prepared.arguments)
    assert again.arguments == prepared.arguments
    assert again.notes == ()
    if prepared.notes == ():
        assert prepared.arguments == {"value": value}
