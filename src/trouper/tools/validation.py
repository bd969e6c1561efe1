"""Schemas, compiled. The compiler is imported at first use: a program that calls no tool does not pay for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, Protocol

from trouper._errors import ToolDefinitionError
from trouper.core.messages import Json
from trouper.tools.arguments import is_large


class Compiled(Protocol):
    """A compiled schema (of `jsonschema_rs`)."""

    def is_valid(self, instance: Json) -> bool: ...
    def iter_errors(self, instance: Json) -> Iterator[Any]: ...
    def validate(self, instance: Json) -> None: ...


#: A pattern that needs look-around runs on a backtracking engine, on so many steps at most.
BACKTRACK_LIMIT = 100_000


def compiled(schema: Mapping[str, Json]) -> Compiled:
    """`schema` as a validator. References to other documents are refused: a schema never makes us fetch anything."""
    import jsonschema_rs

    whole = dict(schema)
    try:
        return jsonschema_rs.validator_for(whole, retriever=_refuse, pattern_options=jsonschema_rs.RegexOptions())
    except Exception:
        # The linear engine knows no look-around. If the schema is wrong in itself, this raises again.
        options = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT)
        return jsonschema_rs.validator_for(whole, retriever=_refuse, pattern_options=options)


def compiled_parameters(schema: Mapping[str, Json], tool: str) -> Compiled:
    """The same, for a tool's parameters: a schema that is none is the tool's fault."""
    try:
        return compiled(schema)
    except Exception as error:
        raise ToolDefinitionError(
            f"the parameters of tool {tool!r} are not a JSON Schema ({str(error)[:200]}); correct the schema", tool=tool
        ) from error


#: Levels of arguments whose errors are listed where alternatives hold alternatives: to list them takes twice the time, or thrice, for each level more.
_LEVELS_MAX = 8


def is_deep(value: Json) -> bool:
    """Whether a value has more levels than its errors can be listed for, where each level has its alternatives."""
    rest = [(value, 1)]
    while rest:
        each, level = rest.pop()
        if isinstance(each, (list, dict)):
            if level > _LEVELS_MAX:
                return True
            rest.extend((inner, level + 1) for inner in (each.values() if isinstance(each, dict) else each))
    return False


def errors_in(value: Json, validator: Compiled) -> list[Any]:
    """What does not fit: everything, or, of a value with very many parts, the first thing; to find all of it would take seconds."""
    if not is_large(value):
        return list(validator.iter_errors(value))
    import jsonschema_rs

    try:
        validator.validate(value)
    except jsonschema_rs.ValidationError as error:
        return [error]
    return []


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"the reference {uri!r} leaves the schema; put what it names under $defs")
