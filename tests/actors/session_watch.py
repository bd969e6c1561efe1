"""What tests of sessions look for in a journal and in a stream of events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import trio

from trouper.codec import Record
from trouper.session import Session
from trouper.turn import Turn

E = TypeVar("E")


def recorded(journal: Iterable[Record], kind: type[E]) -> list[E]:
    """The recorded events of one kind, in order."""
    return [event for record in journal for event in record.events if isinstance(event, kind)]


def names(journal: Iterable[Record]) -> list[str]:
    return [type(event).__name__ for record in journal for event in record.events]


async def watched(session: Session, text: str, **how: Any) -> tuple[list[Any], Turn]:
    """A whole turn, with everything that it told."""
    async with session.turn(text, **how) as turn:
        return [event async for event in turn], turn


async def seen(turn: Turn, kind: type[E]) -> E:
    """Read on until an event of this kind comes."""
    async for event in turn:
        if isinstance(event, kind):
            return event
    raise AssertionError(f"the turn ended without a {kind.__name__}")


async def wait_idle(session: Session) -> None:
    """Until no turn runs and nothing is queued."""
    async for _ in session.events():
        if session._state.turn is None and not session._state.queue:
            return
    raise trio.EndOfChannel
