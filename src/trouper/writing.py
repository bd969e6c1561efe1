"""Writers of JSON-able data for the values of the core: one function per class, made on first use. `reading` is the way back.

cattrs' own compare every field with its default by value, and ask for the type of whatever is declared as any JSON; and every decision is written once.
These look at identity first, and leave whatever is not plain to the converter.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import Any

import attrs
from cattrs import Converter

from trouper.reading import PLAIN, optional_of

#: Takes the value.
Writer = Callable[..., Any]


def class_writer(cls: type, converter: Converter, *, tag: str = "", repeated: Collection[str] = ()) -> Writer:
    """Writes an attrs class as an object, without the fields that have their default. With a `tag`, the class's name stands under it, last.

    Fields that are `repeated` are left out if the value that is the writer's second argument has the same.
    """
    hints = typing.get_type_hints(cls)
    names: dict[str, Any] = {"same": _is_same}
    always: list[str] = []
    lines: list[str] = []
    for field in attrs.fields(cls):
        name, default = field.name, field.default
        read = f"value.{name}"
        if name in repeated:
            lines.append(f"    if {read} is not other.{name} and not same({read}, other.{name}):")
        elif default is attrs.NOTHING:
            # Fields without a default come first, in a class and in what is written of it.
            if not lines:
                always.append(f"'{name}': {_writing(read, hints[name], name, names, converter)}")
                continue
            lines.append("    if True:")
        elif default is None:
            lines.append(f"    if {read} is not None:")
        else:
            names[f"default_{name}"] = default.factory() if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]
            lines.append(f"    if {read} is not default_{name} and {read} != default_{name}:")
        lines.append(f"        x = {read}")
        lines.append(f"        written['{name}'] = {_writing('x', hints[name], name, names, converter)}")
    if tag:
        lines.append(f"    written['{tag}'] = {cls.__name__!r}")
    source = ["def write(value, other=None):", f"    written = {{{', '.join(always)}}}", *lines, "    return written"]
    exec("\n".join(source), names)
    writer: Writer = names["write"]
    return writer


class TaggedWriters(dict[type, Writer]):
    """The writers of classes that have to be told apart by a tag, each made when it is first looked up."""

    def __init__(self, converter: Converter, tag: str) -> None:
        self._converter = converter
        self._tag = tag

    def __missing__(self, cls: type) -> Writer:
        writer = self[cls] = class_writer(cls, self._converter, tag=self._tag)
        return writer

    def write(self, value: Any) -> dict[str, Any]:
        written: dict[str, Any] = self[type(value)](value)
        return written


def tuple_writer(kind: Any, converter: Converter) -> Writer:
    """Writes a `tuple[X, ...]`, or any other sequence of one kind, as an array."""
    names: dict[str, Any] = {}
    member = _writing("each", typing.get_args(kind)[0], "member", names, converter)
    if member == "each":
        return list
    # No comprehension, here and wherever a step comes by: Python 3.11 makes a function of each one, every time.
    source = ["def write(value):", "    written = []", "    for each in value:", f"        written.append({member})"]
    exec("\n".join([*source, "    return written"]), names)
    writer: Writer = names["write"]
    return writer


def _writing(source: str, kind: Any, name: str, names: dict[str, Any], converter: Converter) -> str:
    """The expression that writes a `kind` from the expression `source`; what it needs to know goes into `names`."""
    while isinstance(kind, typing.NewType):
        kind = kind.__supertype__
    # Declared as any JSON, it is JSON already; whatever else is in it, the encoder asks about.
    if kind is Any or kind in PLAIN or typing.get_origin(kind) is typing.Literal:
        return source
    if typing.get_origin(kind) is Mapping and typing.get_args(kind) == (str, Any):
        return f"dict({source})"
    if isinstance(kind, type) and issubclass(kind, Enum):
        # Not `value`, which is a property.
        return f"{source}._value_"
    optional = optional_of(kind)
    if optional is not None:
        inner = _writing("y", optional, name, names, converter)
        return source if inner == "y" else f"(None if (y := {source}) is None else {inner})"
    writer = converter.get_unstructure_hook(kind)
    tagged = getattr(writer, "__self__", None)
    if isinstance(tagged, TaggedWriters):
        # Looked up in place, which saves a call for each part of each message.
        names[f"write_{name}"] = tagged
        return f"write_{name}[type({source})]({source})"
    names[f"write_{name}"] = writer
    return f"write_{name}({source})"


def _is_same(value: Any, other: Any) -> bool:
    """Equal, and sure to be read again as what it is."""
    return type(value) in PLAIN and value == other and type(value) is type(other)
