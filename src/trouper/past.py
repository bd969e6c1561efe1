"""What a live runtime reads back from its own journal: for those who follow from an earlier point on, and for turns that nobody read to their end."""

from __future__ import annotations

from collections.abc import Iterator

from trouper import codec
from trouper._errors import InternalError
from trouper.actors.audience import SessionEvent
from trouper.core.session import EndedTurn, State, evolve
from trouper.journal import Log
from trouper.journal.format import is_gap


def records(log: Log, after: int, upto: int) -> Iterator[codec.Record | None]:
    """Records of all sessions with numbers in (after, upto]. `None`: others may run."""
    for raw in log.paced_records(after=after):
        if raw is None:
            yield None
            continue
        if raw.seq > upto:
            return
        if not is_gap(raw.payload):
            yield codec.decode(raw.payload, raw.seq)


def events(log: Log, session: str, after: int, upto: int, read: int) -> Iterator[SessionEvent | None]:
    """Recorded events of a session with numbers in (after, upto); `read`: a record before which there are none of them. `None`: others may run."""
    if after + 1 >= upto:
        return
    for raw in log.paced_records(max(0, read - 1), session):
        if raw is None:
            yield None
            continue
        if is_gap(raw.payload):
            continue
        record = codec.decode(raw.payload, raw.seq)
        for offset, event in enumerate(record.events, record.n):
            if after < offset < upto:
                yield SessionEvent(offset, record.at, event, raw.seq)
        if record.n + len(record.events) >= upto:
            return


def ended_turn(log: Log, session: str, number: int) -> EndedTurn:
    """How a turn of the past ended."""
    state = State()
    for raw in log.records(stream=session):
        if is_gap(raw.payload):
            continue
        for event in codec.decode_events(raw.payload, raw.seq)[2]:
            state = evolve(state, event)
            if state.last is not None and state.last.number == number:
                return state.last
    raise InternalError(f"session {session!r} has no end of turn {number} in its journal; please report this")
