"""A JSON value with one of its fields of another type than it has, or gone: for every field, and for every type that JSON knows."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

#: Stands for lists in lists, as deep as any decoder takes them. Python itself could neither copy nor show them.
DEEP = "lists in lists"
OTHERS: list[Any] = [None, True, 10**30, "", "x", [7], {}, {"x": 7}, DEEP]


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode().replace(b'"' + DEEP.encode() + b'"', b"[" * 1_000 + b"]" * 1_000)


def altered(value: Any) -> Iterator[tuple[str, Any]]:
    """Each with its place. `value` itself stays a list or an object."""
    for place in _places(value):
        *way, last = place
        for other in OTHERS:
            out = copy.deepcopy(value)
            _at(out, way)[last] = other
            yield f"{place} = {other!r}", out
        out = copy.deepcopy(value)
        del _at(out, way)[last]
        yield f"{place} is gone", out


def _places(value: Any) -> Iterator[tuple[Any, ...]]:
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield (key,)
        for place in _places(value[key]):
            yield (key, *place)


def _at(value: Any, way: list[Any]) -> Any:
    for key in way:
        value = value[key]
    return value
