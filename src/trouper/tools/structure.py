"""From JSON to the annotated types, and back (T1), with cattrs.

Arguments have passed their schema before they come here, so nothing is coerced: text stays text, and what cannot be built (a date that does not exist, a
class whose validator objects) is an error that names the place. Only an integer past 64 bits comes as its digits (see `arguments`), and is an integer again; but
where text is allowed too (`int | str`) it stays text: nobody knows any more whether it came as a number, and text of digits may be a name, zeros in front included.
"""

from __future__ import annotations

import collections.abc as abc
import math
import sys
import types
import typing
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import cache, lru_cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import attrs
import orjson

from trouper._errors import ToolDefinitionError
from trouper.core.messages import Json
from trouper.tools.schema import is_typed_dict, schema_of

if TYPE_CHECKING:
    from cattrs import Converter

    from trouper.tools.validation import Compiled

#: JSON value -> value of the annotated type
Structure = Callable[[Json], Any]


def structure_of(annotation: object) -> Structure | None:
    """How to build a value of this annotation from JSON that fits its schema; `None` if the JSON value already is one."""
    # What stands beside the type says nothing about building it, and may not even be hashable.
    while get_origin(annotation) in (typing.Required, typing.NotRequired, Annotated):
        annotation = get_args(annotation)[0]
    if is_plain(annotation):
        return None if is_immutable(annotation) else fresh
    if annotation is int:
        return whole
    if annotation is float:
        return floating
    hook: Callable[[Json, Any], Any] | None = None

    def structure(value: Json) -> Any:
        # cattrs is imported and its function compiled at the first call: most tools of a program are never called.
        nonlocal hook
        if hook is None:
            try:
                hook = converter().get_structure_hook(annotation)
            except Exception as error:
                # Not the model's fault, so it must not look like one.
                raise ToolDefinitionError(
                    f"values of {annotation!r} cannot be built from JSON ({str(error)[:200]}); use an attrs class, a dataclass or a plain type",
                    annotation=annotation,
                ) from error
        return hook(value, annotation)

    return structure


def is_plain(annotation: object, within: tuple[object, ...] = ()) -> bool:
    """Whether the JSON value and the Python value are the same thing. Not so for int and float: JSON Schema takes 1.0 for an integer and 1 for a number.

    `within`: the records around it. One that contains itself is as plain as the rest of it.
    """
    if annotation in (str, bool, None, type(None), Any, object, list, dict):
        return True
    for attribute in ("__value__", "__supertype__"):
        if hasattr(annotation, attribute):
            return is_plain(getattr(annotation, attribute), within)
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Literal:
        return not any(isinstance(value, Enum) or type(value) is int for value in arguments)
    if origin in (Annotated, typing.Required, typing.NotRequired):
        return is_plain(arguments[0], within)
    if origin in (Union, types.UnionType, list, dict):
        return all(is_plain(argument, within) for argument in arguments)
    if is_typed_dict(annotation):
        hints = get_type_hints(annotation, include_extras=True).values()
        return annotation in within or all(is_plain(hint, (*within, annotation)) for hint in hints)
    return False


def is_immutable(annotation: object) -> bool:
    """Whether a plain annotation only has values that nobody can change: these are handed over as they are."""
    if annotation in (str, bool, None, type(None)):
        return True
    for attribute in ("__value__", "__supertype__"):
        if hasattr(annotation, attribute):
            return is_immutable(getattr(annotation, attribute))
    origin = get_origin(annotation)
    if origin is Literal:
        return True
    if origin is Annotated:
        return is_immutable(get_args(annotation)[0])
    return origin in (Union, types.UnionType) and all(is_immutable(member) for member in get_args(annotation))


def fresh(value: Json) -> Any:
    """A copy: the history shares the arguments, and a tool may well append to its list."""
    return orjson.loads(orjson.dumps(value)) if type(value) in (list, dict) else value


def whole(value: Json) -> int:
    return value if type(value) is int else int(value)


def floating(value: Json) -> float:
    number = value if type(value) is float else float(value)
    if math.isinf(number):  # Of digits: an integer of JSON may have more of them than any float.
        raise ValueError(f"is too large for a number with a point, of which the largest is {sys.float_info.max:.2g}")
    return number


def problems(
    error: Exception, told: Callable[[BaseException, type | None], str] | None = None
) -> list[tuple[str, str]]:
    """What went wrong in structuring, as (path, text) pairs. `told`: what is told of an error; by default only of those that speak of values."""
    from cattrs import BaseValidationError, transform_error

    if not isinstance(error, BaseValidationError):
        return [("", words(error))]
    found = []
    for line in transform_error(error, format_exception=told or _told):
        text, _, path = line.rpartition(" @ ")
        found.append((path.removeprefix("$").removeprefix("."), text))
    return found


def _told(error: BaseException, cls: type | None) -> str:
    if isinstance(error, (ValueError, TypeError, OverflowError)) and error.args:
        return words(error)
    return "cannot be understood"


def words(error: BaseException) -> str:
    """What it says. Some validators of attrs add the attribute and themselves, which are for programs to read."""
    if len(error.args) > 1 and isinstance(error.args[1], attrs.Attribute):
        return str(error.args[0])
    return str(error)


@lru_cache(maxsize=1)
def converter() -> Converter:
    """One converter for all tools: private attributes by their alias, unions by schema, nothing coerced."""
    from cattrs import Converter

    made = Converter(use_alias=True, detailed_validation=True)
    for scalar, build in ((str, fresh), (bool, fresh), (type(None), fresh), (int, whole), (float, floating)):
        made.register_structure_hook(scalar, _scalar_hook(scalar, build))
    made.register_structure_hook(datetime, lambda value, _: datetime.fromisoformat(value))
    made.register_structure_hook(date, lambda value, _: date.fromisoformat(value))
    made.register_structure_hook(time, lambda value, _: time.fromisoformat(value))
    made.register_structure_hook(UUID, lambda value, _: UUID(value))
    made.register_structure_hook(Decimal, lambda value, _: Decimal(str(value)))
    made.register_structure_hook_func(_is_path, lambda value, cls: cls(value))
    made.register_structure_hook_func(lambda cls: cls is Any or cls is object, _as_is)
    made.register_structure_hook_factory(_is_literal, _literal_hook)
    made.register_structure_hook_factory(_is_union, _union_hook)
    made.register_structure_hook_factory(_is_abstract_list, lambda cls: _list_hook(cls, made))
    made.register_structure_hook_factory(is_typed_dict, _typed_dict_hook)
    made.register_structure_hook_factory(_has_quotes, lambda cls: _quoting_hook(cls, made))
    made.register_unstructure_hook_factory(_has_quotes, lambda cls: _quoting_unhook(cls, made))
    for kind in (datetime, date, time):
        made.register_unstructure_hook(kind, lambda value: value.isoformat())
    made.register_unstructure_hook(UUID, str)
    made.register_unstructure_hook(Decimal, str)
    made.register_unstructure_hook_func(_is_path, str)
    return made


def _as_is(value: Json, _: object) -> Any:
    return fresh(value)


def _scalar_hook(scalar: type, build: Structure) -> Callable[[Json, Any], Any]:
    # cattrs comes here with the enums that are text or numbers besides, too (`StrEnum`, `IntEnum`), and these want their member.
    return lambda value, cls: build(value) if cls is scalar else cls(build(value))


def _is_literal(cls: object) -> bool:
    return get_origin(cls) is Literal


def _literal_hook(cls: Any) -> Callable[[Json, object], Any]:
    """The very member that was written: the value of JSON is none where it is an enum's, and not the same where 1.0 came for 1."""
    plain = ((member.value if isinstance(member, Enum) else member, member) for member in get_args(cls))
    members = {(isinstance(value, bool), value): member for value, member in plain}
    return lambda value, _: members.get((isinstance(value, bool), value), value)


def _is_path(cls: object) -> bool:
    return isinstance(cls, type) and issubclass(cls, PurePath)


def _is_union(cls: object) -> bool:
    return get_origin(cls) in (Union, types.UnionType)


def _is_abstract_list(cls: object) -> bool:
    return (get_origin(cls) or cls) in (abc.Iterable, abc.Collection, abc.Sequence, abc.MutableSequence)


def _list_hook(cls: Any, made: Converter) -> Callable[[Json, object], Any]:
    """Whatever abstract kind of list is asked for is given as a list."""
    concrete: Any = types.GenericAlias(list, get_args(cls) or (Any,))
    hook = made.get_structure_hook(concrete)
    return lambda value, _: hook(value, concrete)


def _union_hook(union: Any) -> Callable[[Json, object], Any]:
    """A value belongs to the first member whose schema it fits, and that can be built from it: text that is no date may still be text."""
    from trouper.tools.repair import SchemaRepair
    from trouper.tools.validation import compiled

    @cache
    def members(union: tuple[object, ...]) -> list[tuple[Compiled, SchemaRepair, Structure | None]]:
        schemas = [schema_of(member) for member in union]
        return [
            (compiled(schema), SchemaRepair(schema), structure_of(member))
            for schema, member in zip(schemas, union, strict=True)
        ]

    def structure(value: Json, asked: object) -> Any:
        # Unions are equal whatever their order, so cattrs may bring here one that is written the other way round.
        candidates = members(get_args(asked) or get_args(union))
        fitting = [build for fits, _, build in candidates if fits.is_valid(value)]
        if not fitting:
            # With integers in place of their digits it fits, or it would not be here.
            fitting = [build for fits, repair, build in candidates if fits.is_valid(repair.mend(value)[0])]
        failed: Exception | None = None
        for build in fitting:
            try:
                return fresh(value) if build is None else build(value)
            except ToolDefinitionError:
                raise
            except Exception as error:
                failed = failed or error
        raise failed or ValueError("fits none of the kinds that are allowed here")

    return structure


def _quoted_within(annotation: object) -> bool:
    """Whether a name in quotes stands somewhere inside, as in `list["Node"]`."""
    arguments = () if get_origin(annotation) is Literal else get_args(annotation)
    return any(isinstance(each, str | typing.ForwardRef) or _quoted_within(each) for each in arguments)


def _fields_with_quotes(cls: Any) -> list[str]:
    """The fields of a class whose annotation has a name in quotes within: cattrs looks up one that is a name as a whole, and no such one."""
    if not isinstance(cls, type):
        return []
    fields = getattr(cls, "__attrs_attrs__", ()) or getattr(cls, "__dataclass_fields__", {}).values()
    return [each.name for each in fields if _quoted_within(each.type)]


def _has_quotes(cls: Any) -> bool:
    return bool(_fields_with_quotes(cls))


def _quoting_hook(cls: Any, made: Converter) -> Callable[[Json, Any], Any]:
    """That is how classes refer to themselves, and to those that come after them."""
    from cattrs.gen import make_dict_structure_fn, override

    def built(hint: object) -> Callable[[Json, Any], Any]:
        build = structure_of(hint)
        return lambda value, _: fresh(value) if build is None else build(value)

    hints = get_type_hints(cls, include_extras=True)
    looked_up: Any = {name: override(struct_hook=built(hints[name])) for name in _fields_with_quotes(cls)}
    return make_dict_structure_fn(cls, made, **looked_up)


def _quoting_unhook(cls: Any, made: Converter) -> Callable[[Any], dict[str, Any]]:
    """And back: each value by what it is."""
    from cattrs.gen import make_dict_unstructure_fn, override

    by_value: Any = {name: override(unstruct_hook=made.unstructure) for name in _fields_with_quotes(cls)}
    return make_dict_unstructure_fn(cls, made, **by_value)


def _typed_dict_hook(cls: Any) -> Callable[[Json, object], Any]:
    """Key by key, those that are there: the schema has seen to the required ones, and knows them better than a class whose annotations are text."""
    builds = {key: structure_of(hint) for key, hint in get_type_hints(cls, include_extras=True).items()}

    def structure(value: Json, _: object) -> Any:
        built = {}
        for key, each in value.items():
            build = builds[key]
            try:
                built[key] = each if build is None else build(each)
            except ValueError as error:
                raise ValueError(f"{key}: {error}") from error
        return built

    return structure
