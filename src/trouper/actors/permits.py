"""How many background runs hold a permit, in all sessions of a runtime (B6, I19).

Counted as decided, which is as journaled: a session's decision and its place in the journal are one step without an await in between, so at every prefix of
the journal the count is the one that was decided on.
"""

from __future__ import annotations


class Permits:
    """The one count that sessions share. A plain number per session; the runs themselves are in the sessions' states."""

    __slots__ = ("_held", "total")

    def __init__(self) -> None:
        self._held: dict[str, int] = {}
        self.total = 0

    def hold(self, session: str, count: int) -> None:
        """From now on this session holds so many; the ones before are given back."""
        before = self._held.get(session, 0)
        if count:
            self._held[session] = count
        elif before:
            del self._held[session]
        self.total += count - before
