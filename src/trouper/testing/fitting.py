"""Arguments that fit a tool's schema, from a seed: so that a simulated model can call tools that it has never seen.

    fitting(my_tool.parameters, random.Random(7))

Small values, and few of them: what breaks a tool is mostly something left out, empty, zero or twice. A `pattern` of your own is not looked at: write a `Literal` or
an example of your own where only some text will do.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

from trouper.core.messages import Json
from trouper.tools.schema import DECIMAL_PATTERN

#: From here on only what is required, so that classes that contain themselves come to an end.
_DEEP = 3
#: How often another item is drawn for one that may not come twice.
_TRIES = 8
_WORDS = ("", "a", "order", "17", "é\u2028", " ", "x" * 40)
_DECIMALS = ("0", "-0.10", "17", "123456789012345678901.5")
_FORMATS = {
    "date-time": ("2026-01-02T03:04:05Z", "2024-02-29T23:59:59+05:30"),
    "date": ("2026-01-02", "2024-02-29"),
    "time": ("03:04:05", "23:59:59"),
    "uuid": ("00000000-0000-0000-0000-000000000001", "12345678-1234-5678-1234-567812345678"),
    "path": ("a.txt", "some/file.txt", "."),
}


def fitting(schema: Mapping[str, Any], draw: random.Random) -> Json:
    """A value of this JSON Schema, as `@tool` writes them."""
    return _value(schema, draw, schema.get("$defs", {}), 0)


def _value(schema: Mapping[str, Any], draw: random.Random, defs: Mapping[str, Any], depth: int) -> Json:
    if "$ref" in schema:
        return _value(defs[schema["$ref"].rpartition("/")[2]], draw, defs, depth + 1)
    if "enum" in schema:
        return draw.choice(schema["enum"])
    if branches := schema.get("anyOf"):
        # The last one is the way out of most classes that contain themselves: `Node | None`.
        return _value(branches[-1] if depth > _DEEP else draw.choice(branches), draw, defs, depth)
    kind = schema.get("type")
    match draw.choice(kind) if isinstance(kind, list) else kind:
        case "object":
            return _object(schema, draw, defs, depth)
        case "array":
            return _array(schema, draw, defs, depth)
        case "integer":
            step = schema.get("multipleOf", 1)
            low, high = _bounds(schema, step, 4 * step)
            return step * draw.randrange(math.ceil(low / step), math.floor(high / step) + 1)
        case "number":
            low, high = _bounds(schema, _share(schema), 4.0)
            return draw.choice((low, high, (low + high) / 2))
        case "string":
            return _text(schema, draw)
        case "boolean":
            return draw.random() < 0.5
        case "null":
            return None
        case _:
            return draw.choice((None, 0, "a", [], {"a": 1}))


def _object(schema: Mapping[str, Any], draw: random.Random, defs: Mapping[str, Any], depth: int) -> Json:
    properties: Mapping[str, Any] = schema.get("properties", {})
    required = schema.get("required", ())
    made: dict[str, Json] = {}
    for name, inner in properties.items():
        # A tool's only parameter is always sent: a call without it says nothing.
        is_sent = name in required or (depth <= _DEEP and (len(properties) == 1 or draw.random() < 0.5))
        if is_sent:
            made[name] = _value(inner, draw, defs, depth + 1)
    others = schema.get("additionalProperties", not properties)
    least = schema.get("minProperties", 0)
    if others is not False and (least or depth <= _DEEP):
        names = schema.get("propertyNames", {}).get("enum") or ("a", "b", "c")
        for name in names[: max(least, draw.randrange(3))]:
            made[name] = _value(others if isinstance(others, Mapping) else {"type": "integer"}, draw, defs, depth + 1)
    return made


def _array(schema: Mapping[str, Any], draw: random.Random, defs: Mapping[str, Any], depth: int) -> Json:
    if "prefixItems" in schema:
        return [_value(inner, draw, defs, depth + 1) for inner in schema["prefixItems"]]
    least = schema.get("minItems", 0)
    most = least if depth > _DEEP else min(schema.get("maxItems", least + 3), least + 3)
    made: list[Json] = []
    wanted = draw.randrange(least, most + 1)
    for _ in range(wanted * (_TRIES if schema.get("uniqueItems") else 1)):
        each = _value(schema.get("items", {}), draw, defs, depth + 1)
        if len(made) < wanted and not (schema.get("uniqueItems") and each in made):
            made.append(each)
    return made


def _share(schema: Mapping[str, Any]) -> float:
    """How far from a bound that is excluded: a half, or less where there is less between the two."""
    low, high = (
        schema.get("exclusiveMinimum", schema.get("minimum")),
        schema.get("exclusiveMaximum", schema.get("maximum")),
    )
    return 0.5 if low is None or high is None else min(0.5, (high - low) / 4)


def _bounds(schema: Mapping[str, Any], step: float, width: float) -> tuple[Any, Any]:
    """The least and the greatest number worth trying: near a bound, if there is one."""
    low, high = schema.get("minimum"), schema.get("maximum")
    if "exclusiveMinimum" in schema:
        above = schema["exclusiveMinimum"] + step
        low = above if low is None else max(low, above)
    if "exclusiveMaximum" in schema:
        below = schema["exclusiveMaximum"] - step
        high = below if high is None else min(high, below)
    if low is None:
        low = 0 if high is None or high >= 0 else high - width
    return low, low + width if high is None else min(high, low + width)


def _text(schema: Mapping[str, Any], draw: random.Random) -> str:
    words = _DECIMALS if schema.get("pattern") == DECIMAL_PATTERN else _WORDS
    text = draw.choice(_FORMATS.get(schema.get("format", ""), words))
    return text.ljust(schema.get("minLength", 0), "a")[: schema.get("maxLength")]
