"""Frozen values: how their classes are made, and how they are changed by copying.

`frozen` is that of attrs, but for `__repr__`, `__eq__` and `__hash__`, which all classes share. There are hundreds of them; to write and compile those three
for each takes a third of the time in which a program starts, and made once they are as fast.

`attrs.evolve` looks up a class's fields anew on every call, which is most of what a fold would do. `changed` does the same with one
function per class, made on first use. The two values that every event changes (a session's state and its turn) have no slots, so that one dictionary copied
whole takes the place of two dozen assignments.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform, overload

import attrs

V = TypeVar("V")
C = TypeVar("C", bound=type)


@overload
def frozen(cls: C, /) -> C: ...
@overload
def frozen(*, slots: bool = True) -> Callable[[C], C]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(attrs.field,))
def frozen(cls: Any = None, /, *, slots: bool = True) -> Any:
    """An attrs class whose instances do not change. Equal to another of the same class with equal fields."""
    if cls is None:
        return lambda cls: _frozen(cls, slots)
    return _frozen(cls, slots)


def _frozen(cls: type, slots: bool) -> type:
    own = cls.__dict__
    shared = {name: method for name, method in _SHARED.items() if name not in own}
    made: Any = attrs.frozen(cls, slots=slots, repr=False, eq=False)
    compared = [field.name for field in attrs.fields(made) if field.eq]
    made.__compared__ = attrgetter(*compared) if compared else _nothing
    for name, method in shared.items():
        setattr(made, name, method)
    return made  # type: ignore[no-any-return]


def _nothing(_: object) -> tuple[()]:
    return ()


def _repr(self: Any) -> str:
    shown = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in attrs.fields(type(self)) if field.repr)
    return f"{type(self).__qualname__}({shown})"


def _eq(self: Any, other: Any) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    compared = type(self).__compared__
    return compared(self) == compared(other)


def _hash(self: Any) -> int:
    return hash((type(self), type(self).__compared__(self)))


_SHARED: dict[str, Any] = {"__repr__": _repr, "__eq__": _eq, "__hash__": _hash}

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
