"""JSON Schema from annotations (T1).

Objects are strict (`additionalProperties: false`), classes are written in place unless they contain themselves, and an annotation that has no honest schema is
refused when the tool is defined, with what to write instead.
"""

from __future__ import annotations

import collections.abc as abc
import dataclasses
import inspect
import math
import types
import typing
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import attrs

from trouper._errors import ToolDefinitionError
from trouper.core.messages import Json
from trouper.core.values import frozen


@frozen
class Param:
    """What an annotation says beyond its type: `limit: Annotated[int, Param("How many lines", ge=1, le=2000)]`.

    A plain string in `Annotated` is a description too, and the markers of the `annotated_types` package are understood.
    """

    description: str | None = None
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    multiple_of: float | None = None
    #: Characters of a text, items of a list, keys of an object.
    min_length: int | None = None
    max_length: int | None = None
    #: A regular expression that a text must contain a match of; anchor it.
    pattern: str | None = None
    format: str | None = None
    examples: tuple[Json, ...] = ()
    #: The value is never shown in narration (T11).
    secret: bool = False


#: attribute of a marker -> keyword, for numbers
_NUMBER_KEYWORDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}
#: type -> the keywords of its size
_SIZE_KEYWORDS = {
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
    "object": ("minProperties", "maxProperties"),
}
#: How a decimal is written as text.
DECIMAL_PATTERN = r"^-?\d{1,64}(\.\d{1,64})?$"
_SCALARS: dict[object, dict[str, Json]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    datetime: {"type": "string", "format": "date-time"},
    date: {"type": "string", "format": "date"},
    time: {"type": "string", "format": "time"},
    UUID: {"type": "string", "format": "uuid"},
    # Text keeps a decimal exact; models like to send a number all the same.
    Decimal: {"anyOf": [{"type": "string", "pattern": DECIMAL_PATTERN}, {"type": "number"}]},
}
_ARRAYS = (list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable)
_SETS = (set, frozenset, abc.Set, abc.MutableSet)
_OBJECTS = (dict, abc.Mapping, abc.MutableMapping)
_INSTEAD: dict[object, str] = {
    bytes: "`str` holding base64 text",
    bytearray: "`str` holding base64 text",
    complex: "two `float` parameters",
    timedelta: "`float`, in seconds, named `..._s`",
    range: "two `int` parameters",
    abc.Callable: "a `Literal[...]` of the names of the functions that may be chosen",
}


def object_schema(
    properties: Mapping[str, Json], required: list[str], defs: Mapping[str, Json] | None = None
) -> dict[str, Json]:
    """A strict object."""
    schema: dict[str, Json] = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    if required:
        schema["required"] = required
    if defs:
        schema["$defs"] = dict(defs)
    return schema


def schema_of(annotation: object, where: str = "value") -> dict[str, Json]:
    """The schema of one annotation, complete in itself. `where`: what it is of, for whoever gave it."""
    writer = SchemaWriter(tool="")
    schema = writer.write(annotation, where)
    if writer.defs:
        schema = {**schema, "$defs": writer.defs}
    return schema


class SchemaWriter:
    """Writes the schemas of one tool's parameters; classes that contain themselves end up in `defs`."""

    def __init__(self, tool: str) -> None:
        self.tool = tool
        self.defs: dict[str, Json] = {}
        self._open: list[type] = []
        self._recursive: set[type] = set()
        self._names: dict[type, str] = {}

    def write(self, annotation: object, where: str) -> dict[str, Json]:
        if annotation is None:
            annotation = type(None)
        if annotation is Any or annotation is object:
            return {}
        if (scalar := _scalar(annotation)) is not None:
            return scalar
        # `type Name = ...` and NewType stand for what they name.
        for attribute in ("__value__", "__supertype__"):
            if hasattr(annotation, attribute):
                return self.write(getattr(annotation, attribute), where)
        origin = get_origin(annotation)
        arguments = get_args(annotation)
        if origin is Annotated:
            return constrained(self.write(arguments[0], where), arguments[1:])
        if origin in (typing.Required, typing.NotRequired, typing.Final):
            return self.write(arguments[0], where)
        if origin is Literal:
            return self._literal(arguments, where)
        if origin is Union or origin is types.UnionType:
            return self._union(arguments, where)
        container = origin or annotation
        if container in _ARRAYS:
            return {"type": "array", **self._items(arguments, where)}
        if container in _SETS:
            return {"type": "array", **self._items(arguments, where), "uniqueItems": True}
        if container is tuple:
            return self._tuple(arguments, where)
        if container in _OBJECTS:
            return self._mapping(arguments, where)
        if isinstance(annotation, type):
            if issubclass(annotation, Enum):
                return self._literal(tuple(member.value for member in annotation), where)
            if issubclass(annotation, PurePath):
                return {"type": "string", "format": "path"}
            if _is_record(annotation):
                return self._class(annotation, where)
        return self._refuse(annotation, where)

    def _items(self, arguments: tuple[object, ...], where: str) -> dict[str, Json]:
        if not arguments:
            return {}
        items = self.write(arguments[0], f"{where}[]")
        return {"items": items} if items else {}

    def _tuple(self, arguments: tuple[object, ...], where: str) -> dict[str, Json]:
        if not arguments:
            return {"type": "array"}
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return {"type": "array", **self._items(arguments[:1], where)}
        prefix = [self.write(argument, f"{where}[{index}]") for index, argument in enumerate(arguments)]
        return {
            "type": "array",
            "prefixItems": prefix,
            "items": False,
            "minItems": len(prefix),
            "maxItems": len(prefix),
        }

    def _mapping(self, arguments: tuple[object, ...], where: str) -> dict[str, Json]:
        schema: dict[str, Json] = {"type": "object"}
        if not arguments:
            return schema
        key = self.write(arguments[0], f"{where} (its keys)")
        if key.get("type") != "string":
            self._refuse(arguments[0], f"{where} (its keys)", instead="`str`: the keys of a JSON object are text")
        if set(key) - {"type"}:
            schema["propertyNames"] = key
        if values := self.write(arguments[1], f"{where}[...]"):
            schema["additionalProperties"] = values
        return schema

    def _literal(self, values: tuple[object, ...], where: str) -> dict[str, Json]:
        values = tuple(value.value if isinstance(value, Enum) else value for value in values)
        for value in values:
            if not (value is None or type(value) in (str, int, float, bool)):
                self._refuse(value, where, instead="text, numbers, booleans or None as the values to choose from")
        kinds = {_SCALARS[type(value)]["type"] for value in values}
        schema: dict[str, Json] = {"enum": list(values)}
        # A lone type helps the providers that want one next to every enum.
        return {"type": kinds.pop(), **schema} if len(kinds) == 1 else schema

    def _union(self, members: tuple[object, ...], where: str) -> dict[str, Json]:
        branches: list[Json] = []
        for member in members:
            branch = self.write(member, where)
            if not branch:
                return {}
            if branch not in branches:
                branches.append(branch)
        return branches[0] if len(branches) == 1 else {"anyOf": branches}

    def _class(self, cls: type, where: str) -> dict[str, Json]:
        if cls in self._open:
            self._recursive.add(cls)
            return {"$ref": f"#/$defs/{self._name(cls)}"}
        if cls in self._recursive:
            return {"$ref": f"#/$defs/{self._name(cls)}"}
        self._open.append(cls)
        try:
            schema = self._fields(cls, where)
        finally:
            self._open.pop()
        if cls in self._recursive:
            self.defs[self._name(cls)] = schema
            return {"$ref": f"#/$defs/{self._name(cls)}"}
        return schema

    def _name(self, cls: type) -> str:
        if cls not in self._names:
            taken = sum(1 for other in self._names if other.__name__ == cls.__name__)
            self._names[cls] = cls.__name__ if not taken else f"{cls.__name__}_{taken + 1}"
        return self._names[cls]

    def _fields(self, cls: type, where: str) -> dict[str, Json]:
        try:
            hints = get_type_hints(cls, include_extras=True)
        except NameError as error:
            raise ToolDefinitionError(
                f"{cls.__name__!r}, used for {self._named(where)}, has an annotation that cannot be read ({error}); "
                "define what it names at the top level of its module",
                tool=self.tool,
                parameter=where,
            ) from error
        properties: dict[str, Json] = {}
        required: list[str] = []
        for name, attribute, needed, default, metadata in _members(cls, hints):
            schema = self.write(hints.get(attribute, Any), f"{where}.{name}")
            if isinstance(metadata.get("description"), str):
                schema = {**schema, "description": metadata["description"]}
            if needed:
                required.append(name)
            else:
                schema = with_default(schema, default)
            properties[name] = schema
        if (unfilled := _unfilled(cls, properties)) is not None:
            raise ToolDefinitionError(
                f"{cls.__name__!r}, used for {self._named(where)}, cannot be made without {unfilled!r}, which is none of its fields; "
                "make it a field, or give it a default",
                tool=self.tool,
                parameter=where,
            )
        return object_schema(properties, required)

    def _named(self, where: str) -> str:
        return f"parameter {where!r} of tool {self.tool!r}" if self.tool else repr(where)

    def _refuse(self, annotation: object, where: str, *, instead: str | None = None) -> NoReturn:
        if instead is None:
            origin = get_origin(annotation) or annotation
            instead = next((text for kind, text in _INSTEAD.items() if kind is origin), None)
            if instead is None and (isinstance(annotation, typing.TypeVar) or _is_record(origin)):
                instead = "a class without type parameters, whose fields say what they hold"
        if instead is None:
            instead = "an attrs class, a dataclass or a TypedDict for a record, or str, int, float, bool, list, dict, Literal, an Enum"
        raise ToolDefinitionError(
            f"{self._named(where)} is annotated {_shown(annotation)}, which has no JSON Schema; write {instead}",
            tool=self.tool,
            parameter=where,
            annotation=annotation,
        )


def is_typed_dict(annotation: object) -> bool:
    """Also one made with `typing_extensions`, whose `TypedDict` is another than that of an older Python."""
    return isinstance(annotation, type) and issubclass(annotation, dict) and hasattr(annotation, "__required_keys__")


def _is_record(annotation: object) -> bool:
    return isinstance(annotation, type) and (
        attrs.has(annotation) or dataclasses.is_dataclass(annotation) or is_typed_dict(annotation)
    )


def constrained(schema: dict[str, Json], markers: tuple[object, ...]) -> dict[str, Json]:
    """`schema` with what the markers of an `Annotated` say of it."""
    schema = dict(schema)
    for marker in markers:
        if isinstance(marker, str):
            schema.setdefault("description", marker)
            continue
        description = getattr(marker, "description", None) or getattr(marker, "documentation", None)
        if isinstance(description, str):
            schema["description"] = description
        if isinstance(marker, Param):
            if marker.examples:
                schema["examples"] = list(marker.examples)
            if marker.secret:
                schema["writeOnly"] = True
        _limit(schema, marker)
    return schema


def _limit(schema: dict[str, Json], marker: object) -> None:
    """Writes the marker's limits where they have a meaning: numbers get ranges, text, lists and objects get sizes."""
    for index, branch in enumerate(schema.get("anyOf", ())):
        schema["anyOf"] = [*schema["anyOf"][:index], dict(branch), *schema["anyOf"][index + 1 :]]
        _limit(schema["anyOf"][index], marker)
    kind = schema.get("type")
    if kind in ("integer", "number"):
        for attribute, keyword in _NUMBER_KEYWORDS.items():
            if (value := getattr(marker, attribute, None)) is not None:
                _write_bound(schema, keyword, attribute, value)
    if kind in _SIZE_KEYWORDS:
        for attribute, keyword in zip(("min_length", "max_length"), _SIZE_KEYWORDS[kind], strict=True):
            value = getattr(marker, attribute, None)
            if value is not None and (type(value) is not int or value < 0):
                raise _senseless(attribute, value, "a whole number from 0 up")
            if value is not None and not (attribute == "min_length" and value == 0):
                schema[keyword] = value
    if kind == "string":
        for attribute in ("pattern", "format"):
            if isinstance(value := getattr(marker, attribute, None), str):
                schema[attribute] = value


def _write_bound(schema: dict[str, Json], keyword: str, attribute: str, value: object) -> None:
    if isinstance(value, Decimal) and value.is_finite():
        value = int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise _senseless(attribute, value, "a number")
    if attribute == "multiple_of" and not 0 < value < math.inf:
        raise _senseless(attribute, value, "a number above 0")
    if isinstance(value, int) or math.isfinite(value):  # No bound is none.
        schema[keyword] = value


def _senseless(attribute: str, value: object, instead: str) -> ToolDefinitionError:
    return ToolDefinitionError(f"{attribute}={value!r} limits no parameter; give {instead}", annotation=value)


def with_default(schema: dict[str, Json], default: object) -> dict[str, Json]:
    """`schema` with its default, if that is plain JSON; other defaults are the function's own business."""
    if default is None or type(default) in (str, int, bool) or (type(default) is float and math.isfinite(default)):
        return {**schema, "default": default}
    if isinstance(default, Enum) and type(default.value) in (str, int):
        return {**schema, "default": default.value}
    if isinstance(default, (list, tuple)) and not default:
        return {**schema, "default": []}
    return schema


_NOTHING: Mapping[Any, Any] = types.MappingProxyType({})


def _members(cls: Any, hints: Mapping[str, Any]) -> list[tuple[str, str, bool, object, Mapping[Any, Any]]]:
    """Of each member of a record: its name in JSON, its attribute, whether it is required, its default, its metadata."""
    if attrs.has(cls):
        return [
            (
                each.alias or each.name,
                each.name,
                each.default is attrs.NOTHING,
                ... if hasattr(each.default, "factory") else each.default,
                each.metadata,
            )
            for each in attrs.fields(cls)
            if each.init
        ]
    if dataclasses.is_dataclass(cls):
        missing = dataclasses.MISSING
        return [
            (
                each.name,
                each.name,
                each.default is missing and each.default_factory is missing,
                ... if each.default is missing else each.default,
                each.metadata,
            )
            for each in dataclasses.fields(cls)
            if each.init
        ]
    return [(name, name, _is_required(cls, name, hint), ..., _NOTHING) for name, hint in hints.items()]


def _unfilled(cls: type, fields: Mapping[str, Json]) -> str | None:
    """What its constructor wants beyond the fields, such as an `InitVar`: no model is told of it, and so no call could ever succeed."""
    if is_typed_dict(cls):
        return None
    try:
        parameters = inspect.signature(cls).parameters.values()
    except (TypeError, ValueError):
        return None
    return next(
        (
            each.name
            for each in parameters
            if each.default is each.empty
            and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
            and each.name not in fields
        ),
        None,
    )


def _is_required(cls: Any, name: str, hint: object) -> bool:
    """Whether a key of a TypedDict is. The class itself does not know if its annotations were text: then only the resolved hint tells."""
    match get_origin(hint):
        case typing.Required:
            return True
        case typing.NotRequired:
            return False
        case _:
            return name in cls.__required_keys__


def _scalar(annotation: object) -> dict[str, Json] | None:
    try:
        found = _SCALARS.get(annotation)
    except TypeError:  # unhashable: an Annotated with an unhashable marker
        return None
    return dict(found) if found is not None else None


def _shown(annotation: object) -> str:
    return annotation.__name__ if isinstance(annotation, type) else repr(annotation)[:80]
