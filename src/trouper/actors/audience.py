"""Those who follow a session: they are told of what is recorded, and of what is only said on the way, and nobody waits for them (I33)."""

from __future__ import annotations

from trouper import codec
from trouper.actors.feed import Feed
from trouper.core.live import LiveEvent
from trouper.core.session import Event
from trouper.core.values import frozen


@frozen
class SessionEvent:
    """A recorded event with its number in the session: contiguous from 0."""

    seq: int
    at: float
    event: Event
    #: The number of its record in the journal, by which `runtime.events()` counts.
    record: int = 0


class Audience:
    """One per session; whoever wants to hear adds a feed to one of its lists, and takes it out again."""

    __slots__ = ("ends", "events", "turns")

    def __init__(self) -> None:
        #: Of those who follow a turn as it happens.
        self.turns: list[Feed] = []
        #: Of those who read what is recorded, by its number.
        self.events: list[Feed] = []
        #: Of those who only wait for the end of a turn.
        self.ends: list[Feed] = []

    @property
    def is_there(self) -> bool:
        return bool(self.turns or self.events or self.ends)

    @property
    def is_attended(self) -> bool:
        """Whether somebody is there who could be asked something."""
        return bool(self.events) or any(feed.attended for feed in self.turns)

    def hear(self, record: codec.Record, seq: int) -> None:
        """What happened, which is record `seq` of the journal."""
        for feed in self.turns:
            feed.push(record.events)
        for feed in self.ends:
            feed.push(record.events)
        if self.events:
            for offset, event in enumerate(record.events):
                told = SessionEvent(record.n + offset, record.at, event, seq)
                for feed in self.events:
                    feed.push((told,))

    def hear_live(self, event: LiveEvent) -> None:
        """What is not recorded by itself."""
        for feed in self.turns:
            feed.push((event,))

    def end(self) -> None:
        """Nothing more will come."""
        for feed in (*self.turns, *self.events, *self.ends):
            feed.end()
