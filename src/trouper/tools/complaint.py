"""What a model is told about arguments that do not fit (L19): which field, what was expected, what came; never the long value itself."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from trouper.core.messages import Json
from trouper.tools.errors import InvalidArguments

FIELDS_MAX = 12
#: Characters of a value that are shown.
SHOWN_MAX = 80
#: Characters of what a schema expected that are shown.
_EXPECTED_MAX = 200
#: A list of a million wrong items is a million errors; so many are looked at.
_ERRORS_MAX = 200


def summarised(value: Json) -> str:
    """A value in few words: `string(20000 chars, "first 80...")`, `array(3 items)`, `integer 5`."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean true" if value else "boolean false"
        case int() | float():
            return f"{'integer' if isinstance(value, int) else 'number'} {clipped(str(value))}"
        case str():
            if len(value) <= SHOWN_MAX:
                return f"string {_quoted(value)}"
            return f"string({len(value)} chars, {_quoted(value[:SHOWN_MAX] + '...')})"
        case list() | tuple():
            return f"array({len(value)} items)"
        case dict():
            names = ", ".join(clipped(str(key), 40) for key in islice(value, 8))
            return f"object({len(value)} keys{': ' + names if names else ''}{', ...' if len(value) > 8 else ''})"
        case _:
            return type(value).__name__


def complaint(tool: str, errors: Iterable[Any], parameters: Mapping[str, Json]) -> InvalidArguments:
    """One line for each field at fault, from the errors of a validator; `parameters`: the schema of each."""
    lines: dict[str, str] = {}
    received = ""
    for error in islice(errors, _ERRORS_MAX):
        for field, text in _told(error, parameters):
            lines.setdefault(field, text)
        if not received and type(error.kind).__name__ == "Required" and not error.instance_path:
            # Of a field that is not there, what came is all the others: it may stand under another name.
            received = _received(error.instance)
    return listed(tool, lines.items(), received)


def listed(tool: str, problems: Iterable[tuple[str, str]], received: str = "") -> InvalidArguments:
    """The complaint for (field, text) pairs."""
    pairs = [(clipped(field, 120) or "arguments", text) for field, text in problems]
    shown = pairs[:FIELDS_MAX]
    lines = [f"- {field}: {text}" for field, text in shown]
    if len(pairs) > FIELDS_MAX:
        lines.append(f"- and {len(pairs) - FIELDS_MAX} more")
    if received:
        lines.append(received)
    text = f"Invalid arguments for tool {clipped(tool)!r}; correct them and call it again:\n" + "\n".join(lines)
    return InvalidArguments(text, fields=tuple(field for field, _ in shown))


def _received(fields: Mapping[str, Json]) -> str:
    """All that came, in few words."""
    told = [f"{clipped(name, 60)}: {summarised(value)}" for name, value in islice(fields.items(), FIELDS_MAX)]
    if len(fields) > FIELDS_MAX:
        told.append(f"and {len(fields) - FIELDS_MAX} more")
    return f"Received fields: {', '.join(told) or 'none'}"


def clipped(text: str, limit: int = SHOWN_MAX) -> str:
    return text if len(text) <= limit else text[:limit] + "..."


def _quoted(text: str) -> str:
    return json.dumps(text.encode("utf-8", "replace").decode("utf-8"), ensure_ascii=False)


def _path(steps: Sequence[str | int]) -> str:
    path = ""
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f"{'.' if path else ''}{clipped(step, 60)}"
    return path


def _told(error: Any, parameters: Mapping[str, Json]) -> list[tuple[str, str]]:
    path = _path(error.instance_path)
    kind = error.kind
    match type(kind).__name__:
        case "Required":
            name = str(kind.property).strip('"')
            missing = clipped(name, 60)
            if path:
                return [(f"{path}.{missing}", "is required, but missing")]
            return [(missing, f"is required, but missing{_wanted(parameters.get(name))}")]
        case "AdditionalProperties":
            told = []
            for name in islice(kind.unexpected, FIELDS_MAX + 1):
                near = difflib.get_close_matches(name[:60], parameters, n=1) if not path else []
                hint = (
                    f"; did you mean {near[0]!r}?"
                    if near
                    else f"; the parameters are {clipped(', '.join(parameters) or 'none', _EXPECTED_MAX)}"
                    if not path
                    else ""
                )
                told.append((f"{path}.{clipped(name, 60)}" if path else clipped(name, 60), f"is not a parameter{hint}"))
            return told
    return [(path, f"expected {expected(error)}, got {summarised(error.instance)}")]


def _wanted(schema: Json) -> str:
    """What would have to be there, where its schema names it."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    return f"; expected {kind}" if isinstance(kind, str) else ""


def expected(error: Any) -> str:
    """What the schema wanted at the place of this error, in words."""
    kind = error.kind
    name = type(kind).__name__
    limit = getattr(kind, "limit", None)
    match name:
        case "Type":
            return " or ".join(str(each) for each in kind.types)
        case "Enum":
            options = list(kind.options)
            return "one of " + clipped(
                ", ".join(json.dumps(option, ensure_ascii=False) for option in options), _EXPECTED_MAX
            )
        case "Constant":
            return clipped(json.dumps(kind.expected_value, ensure_ascii=False), _EXPECTED_MAX)
        case "Minimum":
            return f"at least {limit}"
        case "Maximum":
            return f"at most {limit}"
        case "ExclusiveMinimum":
            return f"more than {limit}"
        case "ExclusiveMaximum":
            return f"less than {limit}"
        case "MultipleOf":
            return f"a multiple of {kind.multiple_of}"
        case "MinLength" | "MinItems" | "MinProperties":
            return f"at least {limit} {_unit(name)}"
        case "MaxLength" | "MaxItems" | "MaxProperties":
            return f"at most {limit} {_unit(name)}"
        case "Pattern":
            return f"text that matches {clipped(str(kind.pattern))}"
        case "Format":
            return f"a valid {kind.format}"
        case "UniqueItems":
            return "no item twice"
        case "AnyOf" | "OneOfNotValid":
            return _either(error)
        case "Required":
            return f"an object with {clipped(str(kind.property), 60)}"
        case "AdditionalProperties":
            return "an object without other keys"
        case "PropertyNames":
            return f"every key to be {expected(kind.error)}"
        case "FalseSchema":
            return "nothing here"
        case _:
            return f"a value that its schema allows ({name})"


def _either(error: Any) -> str:
    """The alternatives of a union. A branch that failed deeper inside is told by that failure."""
    wanted: list[str] = []
    for branch in error.kind.context:
        for inner in islice(branch, 1):
            text = expected(inner)
            steps = list(inner.instance_path)[len(error.instance_path) :]
            text = f"{text} at {_path(steps)}" if steps else text
            if text not in wanted:
                wanted.append(text)
    return clipped(" or ".join(wanted), _EXPECTED_MAX) or "one of several kinds"


def _unit(name: str) -> str:
    return {"Length": "characters", "Items": "items", "Properties": "keys"}[name[3:]]
