"""Frozen values: how their classes are made, and how they are changed by copying.

`frozen` is that of attrs, but for `__repr__`, `__eq__` and `__hash__`, which all classes share. There are hundreds of them; to write and compile those three
for each takes a third of the time in which a program starts, and made once they are as fast. The rest is left to attrs until a class is first used: to make an
instance, to read one that was pickled, or to be asked for its fields or how it is called. A program that starts uses few of them.

Those that are made again and again have a `__new__` of our own in place of an `__init__`. That of attrs has to get around the `__setattr__` that forbids changes,
with a call for each field. Here a new value is of another class while its fields are set, its *twin*, which has the same slots and forbids nothing: so they are
plain assignments, and a value of a dozen fields is made in a third of the time.

`attrs.evolve` looks up a class's fields anew on every call, which is most of what a fold would do. `changed` does the same with one
function per class, made on first use, `changer` hands out that function, and `fields_changer` makes one that knows beforehand which fields are to
change. The two values that every event changes (a session's state and its turn) have no slots, so that one dictionary copied whole takes the place
of two dozen assignments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform, overload

import attrs

V = TypeVar("V")
C = TypeVar("C", bound=type)


@overload
def frozen(cls: C, /) -> C: ...
@overload
def frozen(*, slots: bool = True, frequent: bool = False) -> Callable[[C], C]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(attrs.field,))
def frozen(cls: Any = None, /, *, slots: bool = True, frequent: bool = False) -> Any:
    """An attrs class whose instances do not change. Equal to another of the same class with equal fields.

    `frequent`: some are made in every turn, or in every step of it. Its fields are taken as they are given, and nothing refers to it weakly.
    """
    if cls is None:
        return lambda cls: _frozen(cls, slots, frequent)
    return _frozen(cls, slots, frequent)


def _frozen(cls: type, slots: bool, frequent: bool) -> type:
    own = cls.__dict__
    # Only attrs knows how to give a property a place to keep its value, and to put the class that is made in place of the one that a method's closure holds.
    is_plain = not any(isinstance(each, cached_property) or getattr(each, "__closure__", None) for each in own.values())
    if slots and not frequent and is_plain and cls.__bases__ == (object,):
        return _unfinished(cls)
    shared = {name: method for name, method in _SHARED.items() if name not in own}
    made: Any
    if frequent:
        # Without a place for weak references: a class that has one does not take a twin.
        made = attrs.frozen(cls, repr=False, eq=False, init=False, weakref_slot=False)
        made.__new__ = staticmethod(_constructor(made))
        made.__getnewargs__ = _new_arguments
    else:
        made = attrs.frozen(cls, slots=slots, repr=False, eq=False)
    made.__compared__ = _compared(made)
    for name, method in shared.items():
        setattr(made, name, method)
    return made  # type: ignore[no-any-return]


def _compared(cls: type) -> Callable[[Any], Any]:
    names = [field.name for field in attrs.fields(cls) if field.eq]
    return attrgetter(*names) if names else _nothing


# --- finished on first use ---


def _unfinished(cls: type) -> type:
    """The class with its slots, for `_finish` to complete."""
    fields = tuple(inspect.get_annotations(cls))
    own = {name: each for name, each in cls.__dict__.items() if name not in (*fields, "__dict__", "__weakref__")}
    made: Any = type(
        cls.__name__,
        (),
        {
            **_SHARED,
            **_UNFINISHED,
            **own,
            "__slots__": (*fields, "__weakref__"),
            "__qualname__": cls.__qualname__,
            "__unfinished__": cls,
        },
    )
    return made  # type: ignore[no-any-return]


#: What attrs has written for one class, and serves another with the same slots. Some of it only newer versions write. The last one marks it as finished.
_WRITTEN = (
    "__attrs_attrs__",
    "__attrs_props__",
    "__match_args__",
    "__getstate__",
    "__setstate__",
    "__replace__",
    "__init__",
)


def _finish(cls: type) -> Any:
    """Complete the class, or the one that it is derived from without more ado; returns which. Threads that do so at the same moment do the same."""
    made: Any = next(each for each in cls.__mro__ if "__unfinished__" in each.__dict__)
    finished = attrs.frozen(made.__unfinished__, repr=False, eq=False)
    made.__compared__ = _compared(finished)
    for name in _WRITTEN:
        if name in finished.__dict__:
            setattr(made, name, finished.__dict__[name])
    return made


def _first_init(self: Any, *args: Any, **kwargs: Any) -> None:
    _finish(type(self)).__init__(self, *args, **kwargs)


def _first_state(self: Any, state: Any) -> None:
    _finish(type(self)).__setstate__(self, state)


class _First:
    """In place of what attrs writes, until somebody asks for it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, _: object, made: type) -> Any:
        return getattr(_finish(made), self._name)


class _NoSignature:
    """There is none but that of `__init__`, which `inspect` looks for next."""

    def __get__(self, _: object, made: Any) -> Any:
        attrs.fields(made)  # It is whole now, or was before.
        raise AttributeError("__signature__")


# --- frequent ones ---


def _constructor(cls: Any) -> Callable[..., Any]:
    fields = attrs.fields(cls)
    twin = type(cls.__name__, (), {"__slots__": cls.__slots__})
    namespace: dict[str, Any] = {"_cls": cls, "_twin": twin, "_new": object.__new__, "_put": object.__setattr__}
    namespace["NOTHING"] = attrs.NOTHING
    parameters, made, assigned, put = ["_class"], [], [], []
    for field in fields:
        name, default = field.name, field.default
        assert not (field.validator or field.converter or field.kw_only), f"{name!r} of {cls.__name__!r} is not plain"
        if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
            parameters.append(f"{name}=NOTHING")
            namespace[f"_make_{name}"] = default.factory
            made.append(f"    if {name} is NOTHING: {name} = _make_{name}()")
        elif default is attrs.NOTHING:
            parameters.append(name)
        else:
            parameters.append(f"{name}=_default_{name}")
            namespace[f"_default_{name}"] = default
        assigned.append(f"    self.{name} = {name}")
        put.append(f"        _put(self, '{name}', {name})")
    lines = [
        f"def __new__({', '.join(parameters)}):",
        *made,
        # A class that is derived from this one may have other slots.
        "    if _class is not _cls:",
        "        self = _new(_class)",
        *put,
        "        return self",
        "    self = _twin()",
        *assigned,
        "    self.__class__ = _cls",
        "    return self",
    ]
    exec("\n".join(lines), namespace)
    constructor: Callable[..., Any] = namespace["__new__"]
    constructor.__qualname__ = f"{cls.__qualname__}.__new__"
    constructor.__annotations__ = {field.name: field.type for field in fields} | {"return": cls}
    return constructor


def _new_arguments(self: Any) -> tuple[Any, ...]:
    return tuple([getattr(self, field.name) for field in attrs.fields(type(self))])


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


@attrs.frozen
class _Frozen:
    """Lends the others its locks."""


_SHARED: dict[str, Any] = {"__repr__": _repr, "__eq__": _eq, "__hash__": _hash}
_UNFINISHED: dict[str, Any] = {
    "__init__": _first_init,
    "__setstate__": _first_state,
    "__attrs_attrs__": _First("__attrs_attrs__"),
    "__match_args__": _First("__match_args__"),
    "__signature__": _NoSignature(),
    "__setattr__": _Frozen.__setattr__,
    "__delattr__": _Frozen.__delattr__,
}

_makers: dict[type, Callable[[Any, dict[str, Any]], Any]] = {}


def changed(value: V, /, **changes: Any) -> V:
    """`value` with some fields replaced. Fields are taken as they are: no defaults, no validators."""
    cls = type(value)
    maker = _makers.get(cls)
    if maker is None:
        maker = _makers[cls] = _slotted(cls) if hasattr(cls, "__slots__") else _unslotted(cls)
    made: V = maker(value, changes)
    return made


def changer(cls: type[V]) -> Callable[..., V]:
    """`changed` for one class without slots, with nothing to look up: for what every event changes."""
    new, count, set_fields = object.__new__, len(attrs.fields(cls)), cls.__dict__["__dict__"].__set__  # type: ignore[arg-type]

    def change(value: V, /, **changes: Any) -> V:
        fields = value.__dict__ | changes
        if len(fields) != count:
            raise TypeError(f"{cls.__name__} has no field {sorted(changes.keys() - value.__dict__.keys())}")
        made = new(cls)
        set_fields(made, fields)
        return made

    return change


def fields_changer(cls: type[V], *names: str) -> Callable[..., V]:
    """`changer` for these fields alone, all of which have to be given, by their names: in two thirds of the time, for what every step does."""
    unknown = set(names) - {field.name for field in attrs.fields(cls)}  # type: ignore[arg-type]
    assert not unknown, f"{cls.__name__} has no field {sorted(unknown)}"
    namespace: dict[str, Any] = {"cls": cls, "new": object.__new__, "set_fields": cls.__dict__["__dict__"].__set__}
    lines = [f"def change(value, /, *, {', '.join(names)}):", "    fields = value.__dict__.copy()"]
    lines += [f"    fields['{name}'] = {name}" for name in names]
    lines += ["    made = new(cls)", "    set_fields(made, fields)", "    return made"]
    exec("\n".join(lines), namespace)
    change: Callable[..., V] = namespace["change"]
    return change


def _unslotted(cls: type) -> Callable[[Any, dict[str, Any]], Any]:
    change: Callable[..., Any] = changer(cls)
    return lambda value, changes: change(value, **changes)


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
