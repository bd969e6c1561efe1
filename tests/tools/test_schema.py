"""T1: JSON Schema from annotations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, MutableSequence, Sequence, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path, PurePosixPath
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    NewType,
    NotRequired,
    Optional,
    Required,
    TypedDict,
    TypeVar,
    Union,
)
from uuid import UUID

import annotated_types
import attrs
import jsonschema_rs
import pytest
import quoting
import typing_extensions

from trouper._errors import ToolDefinitionError
from trouper.tools import Param, ToolContext, tool
from trouper.tools.docstring import parameter_texts, summary
from trouper.tools.errors import InvalidArguments
from trouper.tools.schema import schema_of

OrderId = NewType("OrderId", str)


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


@attrs.frozen
class Point:
    x: float
    y: float = 0.0
    _label: str | None = None
    cached: int = attrs.field(init=False, default=0)
    tags: list[str] = attrs.field(factory=list, metadata={"description": "Some words"})


@dataclasses.dataclass
class Line:
    start: Point
    end: Annotated[Point, "Where it ends"]
    width: int = 1
    dashes: list[int] = dataclasses.field(default_factory=list)


class Options(TypedDict, total=False):
    verbose: bool
    name: Required[str]


class MoreOptions(Options):
    depth: int
    hint: NotRequired[str]


@attrs.frozen
class Node:
    name: str
    children: list[Node] = attrs.field(factory=list)


ORIGIN = Point(1)
POINT = {
    "type": "object",
    "properties": {
        "x": {"type": "number"},
        "y": {"type": "number", "default": 0.0},
        "label": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "tags": {"type": "array", "items": {"type": "string"}, "description": "Some words"},
    },
    "required": ["x"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (None, {"type": "null"}),
        (Any, {}),
        (object, {}),
        (OrderId, {"type": "string"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (list, {"type": "array"}),
        (list[Any], {"type": "array"}),
        (Sequence[str], {"type": "array", "items": {"type": "string"}}),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (
            tuple[int, str],
            {
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "string"}],
                "items": False,
                "minItems": 2,
                "maxItems": 2,
            },
        ),
        (set[str], {"type": "array", "items": {"type": "string"}, "uniqueItems": True}),
        (frozenset[int], {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}),
        (dict, {"type": "object"}),
        (dict[str, Any], {"type": "object"}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Mapping[str, bool], {"type": "object", "additionalProperties": {"type": "boolean"}}),
        (
            dict[Literal["a", "b"], int],
            {
                "type": "object",
                "propertyNames": {"type": "string", "enum": ["a", "b"]},
                "additionalProperties": {"type": "integer"},
            },
        ),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal[1, "a"], {"enum": [1, "a"]}),
        (Size, {"type": "string", "enum": ["s", "l"]}),
        (Level, {"type": "integer", "enum": [1, 2]}),
        (str | None, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045
        (Union[int, str], {"anyOf": [{"type": "integer"}, {"type": "string"}]}),  # noqa: UP007
        (str | Any, {}),
        (str | OrderId, {"type": "string"}),
        (datetime, {"type": "string", "format": "date-time"}),
        (date, {"type": "string", "format": "date"}),
        (time, {"type": "string", "format": "time"}),
        (UUID, {"type": "string", "format": "uuid"}),
        (Path, {"type": "string", "format": "path"}),
        (PurePosixPath, {"type": "string", "format": "path"}),
        (Point, POINT),
        (
            Options,
            {
                "type": "object",
                "properties": {"verbose": {"type": "boolean"}, "name": {"type": "string"}},
                "required": ["name"],
                "additionalProperties": False,
            },
        ),
    ],
)
def test_annotation_has_its_schema(annotation: object, schema: object) -> None:
    assert schema_of(annotation) == schema


def test_dataclass_and_nested_classes_are_written_in_place() -> None:
    schema = schema_of(Line)
    assert schema["properties"]["start"] == POINT
    assert schema["properties"]["end"] == {**POINT, "description": "Where it ends"}
    assert schema["properties"]["width"] == {"type": "integer", "default": 1}
    assert schema["required"] == ["start", "end"]


def test_inherited_typed_dict_keeps_all_its_keys() -> None:
    schema = schema_of(MoreOptions)
    assert set(schema["properties"]) == {"verbose", "name", "depth", "hint"}
    assert set(schema["required"]) == {"name", "depth"}


Whole = NewType("Whole", int)


@attrs.frozen
class Abstract:
    a: Sequence[int]
    b: Mapping[str, float]
    c: Collection[str]
    d: Iterable[Whole]
    e: Set[int]
    f: MutableMapping[str, list[date]]
    g: Annotated[int, Param(ge=1)]
    h: Literal[1, 2] | None
    i: datetime | None
    j: int | str | list[int]
    k: dict[str, Any]
    l: tuple[int, ...]  # noqa: E741
    m: Final[int]
    n: MutableSequence[int]


async def test_abstract_and_odd_annotations_are_structured() -> None:
    @tool
    async def take(given: Abstract) -> None:
        seen.append(given)

    seen: list[Abstract] = []
    arguments = {
        "given": {
            "a": [1],
            "b": {"x": 1},
            "c": ["q"],
            "d": [1.0],
            "e": [2],
            "f": {"y": ["2026-01-01"]},
            "g": 3,
            "h": 2,
            "i": None,
            "j": "s",
        }
        | {"k": {"z": [1]}, "l": [1, 2], "m": 7, "n": [8]}
    }
    await take.run(take.prepare(arguments).arguments, ToolContext())
    (given,) = seen
    assert list(given.a) == [1]
    assert (dict(given.b), type(given.b["x"])) == ({"x": 1.0}, float)
    assert [list(given.c), list(given.d), set(given.e), given.l, given.m, list(given.n)] == [
        ["q"],
        [1],
        {2},
        (1, 2),
        7,
        [8],
    ]
    assert given.f == {"y": [date(2026, 1, 1)]}
    assert (given.g, given.h, given.i, given.j, given.k) == (3, 2, None, "s", {"z": [1]})


class Stay(TypedDict):
    start: date
    end: NotRequired[date]
    room: Required[Size]


async def test_typed_dict_of_typing_extensions_is_one() -> None:
    """T1: where Python has an older `TypedDict`, it is another class, and the way to newer features."""

    class Ordered(typing_extensions.TypedDict):
        item: str
        count: typing_extensions.NotRequired[int]
        at: typing_extensions.NotRequired[date]

    @tool
    async def order(lines: list[Ordered]) -> str:
        return repr(lines)

    lines = order.parameters["properties"]["lines"]["items"]
    assert (lines["required"], sorted(lines["properties"])) == (["item"], ["at", "count", "item"])
    ordered = await order.run(
        order.prepare({"lines": [{"item": "tea", "count": 1.0, "at": "2026-01-01"}]}).arguments, ToolContext()
    )
    assert ordered.content == repr([{"item": "tea", "count": 1, "at": date(2026, 1, 1)}])


async def test_typed_dict_is_structured_with_its_optional_keys() -> None:
    """Its annotations are text here, so the class alone does not know which keys are optional."""

    @tool
    async def book(stay: Stay) -> list[str]:
        return [type(value).__name__ for value in stay.values()]

    prepared = book.prepare({"stay": {"start": "2026-01-01", "room": "s"}})
    assert (await book.run(prepared.arguments, ToolContext())).content == ["date", "Size"]
    prepared = book.prepare({"stay": {"start": "2026-01-01", "end": "2026-01-02", "room": "s"}})
    assert sorted((await book.run(prepared.arguments, ToolContext())).content) == ["Size", "date", "date"]


def test_class_that_contains_itself_goes_to_the_definitions() -> None:
    schema = schema_of(Node)
    assert schema["$ref"] == "#/$defs/Node"
    validator = jsonschema_rs.validator_for(schema)
    assert validator.is_valid({"name": "a", "children": [{"name": "b", "children": []}]})
    assert not validator.is_valid({"name": "a", "children": [{"name": 5}]})


async def test_class_that_contains_itself_is_structured() -> None:
    @tool
    async def depth(tree: Node) -> int:
        def of(node: Node) -> int:
            return 1 + max((of(child) for child in node.children), default=0)

        return of(tree)

    prepared = depth.prepare({"tree": {"name": "a", "children": '[{"name": "b"}]'}})
    assert prepared.notes == ("parsed the text in 'tree.children' as JSON",)
    assert (await depth.run(prepared.arguments, ToolContext())).content == 2


@pytest.mark.parametrize(
    ("cls", "value"),
    [
        (quoting.Tree, {"name": "a", "children": [{"name": "b", "children": []}]}),
        (quoting.Chain, {"day": "2026-01-02", "next": {"day": "2026-01-03", "next": None}}),
        (quoting.Menu, {"hidden": {"x": {"price": "1.50"}}, "kind": "list"}),
    ],
    ids=["itself in a list", "itself or nothing", "one that comes later"],
)
async def test_class_with_a_name_in_quotes_inside_an_annotation_is_structured_and_back(cls: Any, value: Any) -> None:
    """T1: its schema was written, and no call could be made."""

    @tool
    async def same(value: cls) -> Any:  # type: ignore[valid-type]
        assert isinstance(value, cls)
        return value

    prepared = same.prepare({"value": value})
    assert (await same.run(prepared.arguments, ToolContext())).content == value


class Folder(TypedDict):
    name: str
    folders: list[Folder]


class Dated(TypedDict):
    before: NotRequired[Dated]
    day: date


async def test_typed_dict_that_contains_itself_is_structured() -> None:
    """T1: it could not even be defined, for a bare RecursionError."""

    @tool
    async def names(folder: Folder, dated: Dated) -> Any:
        return [folder["name"], folder["folders"][0]["name"], dated["day"].year, dated["before"]["day"].year]

    folder = {"name": "a", "folders": [{"name": "b", "folders": []}]}
    prepared = names.prepare({"folder": folder, "dated": {"day": "2026-01-02", "before": {"day": "2025-01-02"}}})
    assert (await names.run(prepared.arguments, ToolContext())).content == ["a", "b", 2026, 2025]


def test_place_of_a_mistake_is_told_within_a_class_with_a_name_in_quotes() -> None:
    """T1, L19"""

    @tool
    async def take(chain: quoting.Chain) -> None: ...

    with pytest.raises(InvalidArguments, match=r"chain\.next\.day"):
        take.prepare({"chain": {"day": "2026-01-02", "next": {"day": "2026-13-45"}}})


def test_decimal_takes_text_or_number() -> None:
    validator = jsonschema_rs.validator_for(schema_of(Decimal))
    assert validator.is_valid("12.50")
    assert validator.is_valid(12.5)
    assert not validator.is_valid("twelve")


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (Annotated[int, "How many"], {"type": "integer", "description": "How many"}),
        (
            Annotated[int, Param("n", ge=1, lt=5, multiple_of=2)],
            {"type": "integer", "description": "n", "minimum": 1, "exclusiveMaximum": 5, "multipleOf": 2},
        ),
        (Annotated[float, Param(gt=0, le=1)], {"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
        (
            Annotated[str, Param(min_length=1, max_length=9, pattern="^a")],
            {"type": "string", "minLength": 1, "maxLength": 9, "pattern": "^a"},
        ),
        (
            Annotated[list[int], Param(min_length=1, max_length=4)],
            {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 4},
        ),
        (Annotated[dict[str, Any], Param(max_length=4)], {"type": "object", "maxProperties": 4}),
        (Annotated[int | None, Param(ge=1)], {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}),
        (list[Annotated[int, Param(ge=0)]], {"type": "array", "items": {"type": "integer", "minimum": 0}}),
        (Annotated[str, Param(secret=True, examples=("a",))], {"type": "string", "examples": ["a"], "writeOnly": True}),
        (Annotated[str, Param(format="email")], {"type": "string", "format": "email"}),
        (
            Annotated[int, annotated_types.Ge(1), annotated_types.Lt(5)],
            {"type": "integer", "minimum": 1, "exclusiveMaximum": 5},
        ),
        (Annotated[str, annotated_types.Len(2, 3)], {"type": "string", "minLength": 2, "maxLength": 3}),
    ],
)
def test_annotated_gives_description_and_limits(annotation: object, schema: object) -> None:
    assert schema_of(annotation) == schema


def test_every_schema_is_strict_where_it_describes_an_object() -> None:
    def objects(schema: Any) -> list[dict[str, Any]]:
        if isinstance(schema, dict):
            own = (
                [schema]
                if "properties" in schema and isinstance(schema["properties"], dict) and schema.get("type") == "object"
                else []
            )
            return own + [each for value in schema.values() for each in objects(value)]
        return [each for value in schema for each in objects(value)] if isinstance(schema, list) else []

    @tool
    async def draw(line: Line, options: Options, nodes: list[Node]) -> None: ...

    found = objects(draw.parameters)
    assert len(found) >= 5
    assert all(each["additionalProperties"] is False for each in found)


T = TypeVar("T")


@attrs.frozen
class Parcel(Generic[T]):
    content: T


@pytest.mark.parametrize(
    ("annotation", "instead"),
    [
        (bytes, "`str` holding base64"),
        (timedelta, "`float`, in seconds"),
        (complex, "two `float`"),
        (Callable[[int], int], "a `Literal"),
        (dict[int, str], "the keys of a JSON object are text"),
        (Literal[b"x"], "text, numbers, booleans or None"),
        (T, "a class without type parameters"),
        (Parcel[int], "a class without type parameters"),
        (object(), "an attrs class"),
        ([1], "an attrs class"),
        (type("Plain", (), {}), "an attrs class, a dataclass or a TypedDict"),
    ],
)
def test_annotation_without_a_schema_is_refused_with_what_to_write_instead(annotation: object, instead: str) -> None:
    async def takes(parameter: Any) -> None: ...

    takes.__annotations__["parameter"] = annotation
    with pytest.raises(ToolDefinitionError, match=r"parameter 'parameter.*' of tool 'takes' is annotated") as caught:
        tool(takes)
    assert instead in str(caught.value)
    assert caught.value.tool == "takes"  # type: ignore[attr-defined]


def test_refusal_names_the_place_inside_a_class() -> None:
    @attrs.frozen
    class Outer:
        inner: list[bytes]

    async def takes(outer: Any) -> None: ...

    takes.__annotations__["outer"] = Outer
    # The class is local, but its annotations are not.
    Outer.__annotations__["inner"] = list[bytes]
    with pytest.raises(ToolDefinitionError, match=r"parameter 'outer\.inner\[\]'"):
        tool(takes)


def test_local_class_in_an_annotation_is_found() -> None:
    class Local(TypedDict):
        n: int

    @tool
    async def takes(local: Local) -> None: ...

    assert takes.parameters["properties"]["local"]["required"] == ["n"]


@dataclasses.dataclass
class Sealed:
    text: str
    key: dataclasses.InitVar[str]


@attrs.define(init=False)
class Parsed:
    text: str

    def __init__(self, source: str, *rest: str, **more: str) -> None:
        self.text = source


@pytest.mark.parametrize(("cls", "missing"), [(Sealed, "key"), (Parsed, "source")])
def test_class_that_cannot_be_made_from_its_fields_is_refused(cls: type, missing: str) -> None:
    """T1: the model would be told to correct arguments that nobody could get right."""

    async def takes(letters: Any) -> None: ...

    takes.__annotations__["letters"] = list[cls]  # type: ignore[valid-type]
    told = rf"'{cls.__name__}', used for parameter 'letters\[\]' of tool 'takes', cannot be made without '{missing}'"
    with pytest.raises(ToolDefinitionError, match=told):
        tool(takes)


@dataclasses.dataclass
class Labelled:
    text: str
    key: dataclasses.InitVar[str] = "none"
    shown: str = dataclasses.field(init=False)

    def __post_init__(self, key: str) -> None:
        self.shown = f"{self.text} {key}"


async def test_what_a_constructor_takes_by_choice_is_left_to_it() -> None:
    @tool
    async def show(labelled: Labelled) -> str:
        return labelled.shown

    prepared = show.prepare({"labelled": {"text": "a"}})
    assert (await show.run(prepared.arguments, ToolContext())).content == "a none"


def test_class_with_an_unreadable_annotation_is_refused() -> None:
    @attrs.frozen
    class Broken:
        x: Missing  # type: ignore[name-defined]  # noqa: F821

    async def takes(broken: Any) -> None: ...

    takes.__annotations__["broken"] = Broken
    told = "'Broken', used for parameter 'broken' of tool 'takes', has an annotation that cannot be read"
    with pytest.raises(ToolDefinitionError, match=told):
        tool(takes)


def test_defaults_are_in_the_schema_where_they_are_json() -> None:
    @tool
    async def many(
        a: int = 1,
        b: str = "x",
        c: float = 0.5,
        d: bool = False,
        e: str | None = None,
        f: Size = Size.LARGE,
        g: Point = ORIGIN,
        h: Sequence[str] = (),
    ) -> None: ...

    properties = many.parameters["properties"]
    assert {name: part.get("default", "absent") for name, part in properties.items()} == {
        "a": 1,
        "b": "x",
        "c": 0.5,
        "d": False,
        "e": None,
        "f": "l",
        "g": "absent",
        "h": [],
    }
    assert "required" not in many.parameters


# Docstrings.

GOOGLE = """Find orders.

    Args:
        customer: Who ordered,
            by name.
        limit (int): How many: at most.
        *rest: Others.

    Returns:
        orders: not a parameter
    """
NUMPY = """Find orders.

    Parameters
    ----------
    customer : str
        Who ordered,
        by name.
    limit : int, optional
        How many: at most.

    Returns
    -------
    orders
        not a parameter
    """
SPHINX = """Find orders.

    :param str customer: Who ordered,
        by name.
    :param limit: How many: at most.
    :returns: not a parameter
    """


@pytest.mark.parametrize("doc", [GOOGLE, NUMPY, SPHINX])
def test_docstring_describes_parameters(doc: str) -> None:
    texts = parameter_texts(doc)
    texts.pop("rest", None)
    assert texts == {"customer": "Who ordered, by name.", "limit": "How many: at most."}
    assert summary(doc) == "Find orders."


@pytest.mark.parametrize("doc", [None, "", "One line.", "Args:", "Args:\n\nnothing here", "Notes:\n    x: y"])
def test_docstring_without_parameters_gives_none(doc: str | None) -> None:
    assert parameter_texts(doc) == {}


def test_annotation_wins_over_docstring() -> None:
    @tool
    async def find(customer: Annotated[str, "From the annotation"], limit: int = 3) -> None:
        """Find orders.

        Args:
            customer: From the docstring.
            limit: How many.
        """

    properties = find.parameters["properties"]
    assert properties["customer"]["description"] == "From the annotation"
    assert properties["limit"]["description"] == "How many."


@pytest.mark.parametrize(
    "limit",
    [Param(ge="5"), Param(le=float("nan")), Param(multiple_of=0), annotated_types.Gt(True)],  # type: ignore[arg-type]
    ids=["text", "nan", "multiple of 0", "true"],
)
def test_limit_that_makes_no_sense_is_refused(limit: object) -> None:
    """T1: when the tool is defined, and not when a provider or the first call trips over it."""
    with pytest.raises(ToolDefinitionError, match="limits no parameter; give a number"):
        schema_of(Annotated[int, limit])
    with pytest.raises(ToolDefinitionError, match="min_length=-1 limits no parameter; give a whole number"):
        schema_of(Annotated[str, Param(min_length=-1)])


def test_limits_are_numbers_that_json_has() -> None:
    """T1: a bound that nothing passes is none, and a decimal is a number."""
    assert schema_of(Annotated[float, Param(ge=float("-inf"), le=5)]) == {"type": "number", "maximum": 5}
    assert schema_of(Annotated[int, annotated_types.Ge(Decimal("2"))]) == {"type": "integer", "minimum": 2}
    assert schema_of(Annotated[float, annotated_types.Ge(Decimal("0.5"))]) == {"type": "number", "minimum": 0.5}
