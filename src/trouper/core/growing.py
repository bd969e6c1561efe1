"""A frozen sequence that grows at its end without being copied.

A session's history is a value: every state has its own, and a fold makes a longer one with each message. As a tuple that would copy the whole past for each
message. Here a longer sequence shares the store of the shorter one it grew from; each knows how much of the store is its own. Who grows the same
sequence a second time, to tell another story, gets a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar, overload

T_co = TypeVar("T_co", covariant=True)


class Growing(Sequence[T_co]):
    """Reads like a tuple, and equals one with the same items. `grown` gives a longer one in constant time."""

    __slots__ = ("_length", "_store", "last")

    # Invariant: the first `_length` items of `_store` never change; what is behind them belongs to others.
    _store: list[T_co]
    _length: int
    #: The last item, if there is one.
    last: T_co | None

    def __init__(self, items: Iterable[T_co] = ()) -> None:
        self._store = list(items)
        self._length = len(self._store)
        self.last = self._store[-1] if self._store else None

    def grown(self, item: T_co) -> Growing[T_co]:  # type: ignore[misc] # It is frozen, so covariance does no harm.
        store, length = self._store, self._length
        longer: Growing[T_co] = Growing.__new__(Growing)
        longer._length = length + 1
        if len(store) == length:
            store.append(item)
        # Not ours if somebody else grew it before; or at the same moment, in another thread.
        if store[length] is not item:
            store = [*islice(store, length), item]
        longer._store = store
        longer.last = item
        return longer

    def starts_with(self, other: Sequence[Any]) -> bool:
        """Whether the very items of `other` are the first ones here; at once, if this one grew from it."""
        count = len(other)
        if count > self._length:
            return False
        if isinstance(other, Growing) and other._store is self._store:
            return True
        return all(mine is theirs for mine, theirs in zip(self, other, strict=False))

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T_co: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T_co, ...]: ...
    def __getitem__(self, index: int | slice) -> T_co | tuple[T_co, ...]:
        if isinstance(index, slice):
            start, stop, stride = index.indices(self._length)
            if stride == 1:
                return tuple(self._store[start:stop])
            return tuple(self._store[each] for each in range(start, stop, stride))
        if index < 0:
            index += self._length
        if not 0 <= index < self._length:
            raise IndexError(f"index out of range: there are {self._length} items")
        return self._store[index]

    def __iter__(self) -> Iterator[T_co]:
        return islice(self._store, self._length)

    def __reversed__(self) -> Iterator[T_co]:
        return reversed(self[:])

    def __add__(self, more: Iterable[Any]) -> tuple[Any, ...]:
        return (*self, *more)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Growing):
            return self._length == other._length and (self._store is other._store or self[:] == other[:])
        return self[:] == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(self[:])

    def __repr__(self) -> str:
        return repr(self[:])
