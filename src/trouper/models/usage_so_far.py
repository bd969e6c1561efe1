"""Figures of usage as a reply brings them: in the provider's words, each cumulative or sent once, so that the last seen counts (M10)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trouper.core.messages import Json, Usage
from trouper.models.chunks import Chunk, UsageChunk

#: More than any context holds: a figure beyond it is none, and not worth a reply.
_COUNT_MAX = 10**12


class UsageSoFar:
    """What has been seen, and what of it has been told."""

    __slots__ = ("_read", "_told", "figures")

    def __init__(self, read: Callable[[Mapping[str, Json]], Usage]) -> None:
        self._read = read
        self._told = Usage()
        #: By the provider's names. Written by its reader with every event, and hence without a method.
        self.figures: dict[str, Json] = {}

    def news(self) -> list[Chunk]:
        """A chunk with the figures, unless those were told already."""
        usage = self._read(self.figures)
        if usage == self._told:
            return []
        self._told = usage
        return [UsageChunk(usage)]


def count(table: Json, name: str) -> int | None:
    """The figure of this name, if there is one that counts something: some servers say -1 for what they do not know."""
    value = table.get(name) if isinstance(table, Mapping) else None
    return value if type(value) is int and 0 <= value <= _COUNT_MAX else None
