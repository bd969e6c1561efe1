"""What was encoded for a session's last request is the beginning of its next body: kept, so that a turn's cost does not grow with its history.

A history only grows at its end. The encoded beginning is kept together with the very messages it was made from, and used while those are still
the same objects at the same places; a history that was compacted or masked has other objects, and is encoded afresh.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from operator import is_
from typing import Generic, Protocol, TypeAlias, TypeVar

from attrs import frozen

from trouper.core.growing import Growing
from trouper.core.messages import Message, ToolSpec

BODY_CACHE_BYTES_MAX = 64 * 1024 * 1024
_TOOL_SETS_KEPT = 16

#: A session, and whatever else decides how its messages are written.
CacheKey: TypeAlias = tuple[Hashable, ...]


class Beginning(Protocol):
    """The first messages of a history, encoded."""

    @property
    def messages(self) -> Sequence[Message]: ...

    @property
    def size(self) -> int:
        """How many bytes it holds. It stays the same while it is in the cache."""


B = TypeVar("B", bound=Beginning)


@frozen
class Encoded:
    """The first messages of a history, as a provider's JSON."""

    messages: Sequence[Message]
    text: bytes
    #: The role of the content that is still open at the end, for formats that join neighbours; else empty.
    role: str = ""
    #: Whether there are calls of tools among them.
    called: bool = False

    @property
    def size(self) -> int:
        return len(self.text)


class BodyCache(Generic[B]):
    """Encoded beginnings by key; those of the session that was least recently asked for are dropped first."""

    def __init__(self, bytes_max: int = BODY_CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        #: By session, and then by key. None is empty.
        self._kept: OrderedDict[Hashable, dict[CacheKey, B]] = OrderedDict()

    def take(self, key: CacheKey, messages: Sequence[Message]) -> B | None:
        """The beginning kept under `key`, if it is one of these messages. It is the caller's to extend, and to keep again."""
        beginnings = self._kept.get(key[0])
        known = beginnings.pop(key, None) if beginnings is not None else None
        if known is None:
            return None
        if not beginnings:
            del self._kept[key[0]]
        self._bytes -= known.size
        # Identity, not equality: True equals 1, and would be sent as it.
        history = messages if isinstance(messages, Growing) else Growing(messages)
        return known if history.starts_with(known.messages) else None

    def keep(self, key: CacheKey, encoded: B) -> None:
        """Under a key for which nothing is kept: `take` comes first."""
        beginnings = self._kept.setdefault(key[0], {})
        assert key not in beginnings
        self._bytes += encoded.size
        beginnings[key] = encoded
        self._kept.move_to_end(key[0])
        while self._bytes > self._bytes_max:
            self.forget(next(iter(self._kept)))

    def forget(self, session: Hashable) -> None:
        """Drop what is kept for a session; it only costs its next request some time."""
        self._bytes -= sum(each.size for each in self._kept.pop(session, {}).values())


class ToolCache:
    """Encoded tool declarations: a session's tools are the same objects from turn to turn."""

    def __init__(self, encode: Callable[[ToolSpec], bytes]) -> None:
        self._encode = encode
        self._kept: list[tuple[tuple[ToolSpec, ...], list[bytes]]] = []

    def encoded(self, specs: tuple[ToolSpec, ...]) -> list[bytes]:
        for known, texts in self._kept:
            if len(known) == len(specs) and all(map(is_, known, specs)):
                return texts
        texts = [self._encode(spec) for spec in specs]
        self._kept.append((specs, texts))
        del self._kept[:-_TOOL_SETS_KEPT]
        return texts
