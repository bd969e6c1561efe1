"""Frozen values, changed by copying.

`attrs.evolve` looks up a class's fields anew on every call, which is most of what a fold would do. `changed` does the same with one
function per class, made on first use. The two values that every event changes (a session's state and its turn) have no slots, so that one dictionary copied
whole takes the place of two dozen assignments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import attrs

V = TypeVar("V")

_makers: dict[type, Callable[[Any, dict[str, Any]], Any]] = {}


def changed(value: V, **changes: Any) -> V:
    """`value` with some fields replaced. Fields are taken as they are: no defaults, no validators."""
    cls = type(value)
    maker = _makers.get(cls)
    if maker is None:
        maker = _makers[cls] = _slotted(cls) if hasattr(cls, "__slots__") else _unslotted(cls)
    made: V = maker(value, changes)
    return made


def _unslotted(cls: type) -> Callable[[Any, dict[str, Any]], Any]:
    new, put, count = object.__new__, object.__setattr__, len(attrs.fields(cls))

    def make(old: Any, changes: dict[str, Any]) -> Any:
        made: Any = new(cls)
        fields = old.__dict__ | changes
        if len(fields) != count:
            raise TypeError(f"{cls.__name__} has no field {sorted(changes.keys() - old.__dict__.keys())}")
        put(made, "__dict__", fields)
        return made

    return make


def _slotted(cls: type) -> Callable[[Any, dict[str, Any]], Any]:
    names = [field.name for field in attrs.fields(cls)]
    namespace: dict[str, Any] = {f"set_{name}": getattr(cls, name).__set__ for name in names}
    namespace |= {"new": object.__new__, "cls": cls, "known": frozenset(names)}
    lines = ["def make(old, changes):", "    made = new(cls)"]
    lines += [f"    set_{name}(made, changes['{name}'] if '{name}' in changes else old.{name})" for name in names]
    lines += [
        "    if not known.issuperset(changes):",
        "        raise TypeError(f'{cls.__name__} has no field {sorted(changes.keys() - known)}')",
        "    return made",
    ]
    exec("\n".join(lines), namespace)
    maker: Callable[[Any, dict[str, Any]], Any] = namespace["make"]
    return maker
