"""Frozen values: how their classes are made, and how they are changed by copying.

`frozen` is that of attrs, but for `__repr__`, `__eq__` and `__hash__`, which all classes share. There are hundreds of them; to write and compile those three
for each takes a third of the time in which a program starts, and made once they are as fast. The rest is left to attrs until a class is first used: to make an
instance, to read one that was pickled, or to be asked for its fields or how it is called. A program that starts uses few of them.

Those that are made again and again are structs of msgspec: made, compared and copied in C, where those of attrs take a Python function for each. To attrs, and
so to cattrs and to whoever calls `attrs.fields`, `attrs.evolve` or `attrs.asdict`, they look like the others.

`attrs.evolve` looks up a class's fields anew on every call, which is most of what a fold would do. `changed` does the same with one function per class, made on
first use; `replaced` is for structs alone, and has nothing to look up.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform, overload

import attrs
import msgspec

V = TypeVar("V")
C = TypeVar("C", bound=type)


@overload
def frozen(cls: C, /) -> C: ...
@overload
def frozen(*, frequent: bool = False) -> Callable[[C], C]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(attrs.field, msgspec.field))
def frozen(cls: Any = None, /, *, frequent: bool = False) -> Any:
    """A class whose instances do not change. Equal to another of the same class with equal fields.

    `frequent`: some are made in every turn, or in every step of it. Its fields are taken as they are given, nothing refers to it weakly, and a default that
    has to be made anew each time is a `msgspec.field(default_factory=...)`.
    """
    if cls is None:
        return _struct if frequent else _frozen
    return _frozen(cls)


def _frozen(cls: type) -> type:
    own = cls.__dict__
    # Only attrs knows how to give a property a place to keep its value, and to put the class that is made in place of the one that a method's closure holds.
    is_plain = not any(isinstance(each, cached_property) or getattr(each, "__closure__", None) for each in own.values())
    if is_plain and cls.__bases__ == (object,):
        return _unfinished(cls)
    shared = {name: method for name, method in _SHARED.items() if name not in own}
    made: Any = attrs.frozen(cls, repr=False, eq=False)
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

_AttrsField = type(attrs.field())


def _struct(cls: type) -> type:
    """The class as a struct."""
    own = {name: each for name, each in cls.__dict__.items() if name not in ("__dict__", "__weakref__")}
    for name, each in own.items():
        assert not isinstance(each, _AttrsField), f"{name!r} of {cls.__name__!r} is not plain: see `frozen`"
    namespace = {**own, "__qualname__": cls.__qualname__, "__attrs_attrs__": _AttrsFields()}
    return types.new_class(cls.__name__, (msgspec.Struct,), {"frozen": True}, lambda body: body.update(namespace))


class _AttrsFields:
    """What attrs would have noted of a struct's fields, made when somebody asks for it; of each class anew, since one that is derived may have more."""

    def __get__(self, _: object, made: Any) -> Any:
        if "__attrs_noted__" not in made.__dict__:
            names, defaults = made.__struct_fields__, made.__struct_defaults__
            kinds = {name: kind for each in made.__mro__[::-1] for name, kind in inspect.get_annotations(each).items()}
            fields: dict[str, Any] = {name: attrs.field(type=kinds[name]) for name in names}
            for name, default in zip(names[len(names) - len(defaults) :], defaults, strict=True):
                if factory := getattr(default, "factory", None):
                    default = attrs.Factory(factory)
                fields[name] = attrs.field(default=default, type=kinds[name])
            made.__attrs_noted__ = attrs.fields(
                attrs.make_class(made.__name__, fields, init=False, repr=False, eq=False)
            )
        return made.__attrs_noted__


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

# --- changed by copying ---

if TYPE_CHECKING:

    def replaced(value: V, /, **changes: Any) -> V:
        """A frequent value with some fields replaced."""
else:
    from msgspec.structs import replace as replaced

_makers: dict[type, Callable[[Any, dict[str, Any]], Any]] = {}


def changed(value: V, /, **changes: Any) -> V:
    """`value` with some fields replaced. Fields are taken as they are: no defaults, no validators."""
    if isinstance(value, msgspec.Struct):
        return replaced(value, **changes)
    cls = type(value)
    maker = _makers.get(cls)
    if maker is None:
        maker = _makers[cls] = _maker(cls)
    made: V = maker(value, changes)
    return made


def _maker(cls: type) -> Callable[[Any, dict[str, Any]], Any]:
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
