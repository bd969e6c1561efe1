"""Readers of JSON for the values of the core: one function per class, made on first use.

cattrs' own call a function for every number and text, and gather the arguments in a dictionary; and reading is a third of what rebuilding a session costs.
These check numbers and texts in place, pass every field by its position, and leave whatever is not plain to the converter.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Collection
from enum import Enum
from typing import Any

import attrs
from cattrs import Converter

#: Takes the JSON; cattrs hands its hooks the type besides, which is not looked at.
Reader = Callable[..., Any]

#: What JSON has as it is.
PLAIN = (str, int, float, bool)


def class_reader(cls: type, converter: Converter, repeated: Collection[str] = ()) -> Reader:
    """Reads an attrs class from an object. Fields that are not there get their default; those that nobody knows are passed over.

    Fields that are `repeated` are taken, if they are not there, from the value that is the reader's second argument.
    """
    hints = typing.get_type_hints(cls)
    names: dict[str, Any] = {"cls": cls}
    arguments: list[str] = []
    is_one_for_all = True
    for field in attrs.fields(cls):
        name, default = field.name, field.default
        argument = _reading(f"value['{name}']", hints[name], name, names, converter)
        if name in repeated:
            argument = f"({argument}) if '{name}' in value else other.{name}"
        elif isinstance(default, attrs.Factory):  # type: ignore[arg-type]
            names[f"make_{name}"] = default.factory
            argument = f"({argument}) if '{name}' in value else make_{name}()"
        elif default is not attrs.NOTHING:
            names[f"default_{name}"] = default
            argument = f"({argument}) if '{name}' in value else default_{name}"
        arguments.append(argument)
        is_one_for_all &= f"default_{name}" in names
    made = f"cls({', '.join(arguments)})"
    if is_one_for_all:
        # Values are frozen: one will do for all.
        names["empty"] = cls()
        made = f"empty if value == {{}} else {made}"
    return _made(made, names)


def tuple_reader(kind: Any, converter: Converter) -> Reader:
    """Reads `tuple[X, ...]` from an array."""
    names: dict[str, Any] = {}
    member = _reading("each", typing.get_args(kind)[0], "member", names, converter)
    return _made("tuple(value)" if member == "each" else f"tuple([{member} for each in value])", names)


def _made(expression: str, names: dict[str, Any]) -> Reader:
    exec(f"def read(value, other=None):\n    return {expression}", names)
    reader: Reader = names["read"]
    return reader


def _reading(source: str, kind: Any, name: str, names: dict[str, Any], converter: Converter) -> str:
    """The expression that reads a `kind` from the expression `source`; what it needs to know goes into `names`."""
    while isinstance(kind, typing.NewType):
        kind = kind.__supertype__
    if kind is Any:
        return source
    if kind in PLAIN:
        names[f"kind_{name}"] = kind
        # A whole number where a fraction is meant is written without its point, so there is something to convert.
        return f"(x if type(x := {source}) is kind_{name} else kind_{name}(x))"
    if isinstance(kind, type) and issubclass(kind, Enum):
        names[f"members_{name}"] = {member.value: member for member in kind}
        return f"members_{name}[{source}]"
    if typing.get_origin(kind) is typing.Literal:
        names[f"members_{name}"] = {member: member for member in typing.get_args(kind)}
        return f"members_{name}[{source}]"
    optional = optional_of(kind)
    if optional is not None:
        inner = _reading("y", optional, name, names, converter)
        return f"(None if (y := {source}) is None else {inner})"
    names[f"read_{name}"], names[f"kind_{name}"] = converter.get_structure_hook(kind), kind
    return f"read_{name}({source}, kind_{name})"


def optional_of(kind: Any) -> Any:
    """The X of `X | None`; None for any other type."""
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        members = typing.get_args(kind)
        if len(members) == 2 and type(None) in members:
            return members[0] if members[1] is type(None) else members[1]
    return None
