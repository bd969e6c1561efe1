"""What the journal knows of every session, folded only when somebody asks for it.

Opening reads the newest snapshot's index and the records after it; a hundred thousand sessions that nobody has touched since cost an index entry each. So do
those that have ended since, or were put to rest: their actors are gone, and what is left of them is kept as a section of the next snapshot, until that is written and has it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TypeAlias, TypeVar

from trouper import codec
from trouper._errors import TrouperError, WorldError
from trouper.core import memory
from trouper.core.ids import MEMORY_STREAM, is_session
from trouper.core.memory import Memories, MemoryForgotten
from trouper.core.outstanding import outstanding
from trouper.core.session import CLOSED, State, evolve
from trouper.core.values import changed, frozen
from trouper.journal import JournalDamaged, Log, Snapshot
from trouper.journal.format import is_gap, stream_of

logger = logging.getLogger("trouper.recovery")

T = TypeVar("T")

#: A section of a snapshot: its tag and its payload, or how they are made, later. No payload: it is copied from the snapshot before.
Section: TypeAlias = tuple[str, bytes | None] | Callable[[], tuple[str, bytes]]

ACTIVE = "active"
IDLE = "idle"
#: Of a session that cannot be folded: it stays known as such, or its name would be given to a new one.
DAMAGED = "damaged"
_DAMAGED = (DAMAGED, b"{}")


class SessionDamaged(WorldError):
    """A session of which the journal has lost records, or holds some that today's code cannot fold: it can be read, and forked before that place, but not gone on with."""

    exit_code = 65


@frozen
class Left:
    """What is kept of a session that an actor of this process had: it has ended, or was put to rest."""

    phase: str
    turns: int
    #: It has no tasks, notifications or schedules: who looks for these need not read it.
    is_bare: bool
    tag: str
    #: Its state, encoded; `None`: the snapshot has it.
    section: bytes | None


class Roster:
    """Sessions by name, from snapshot and suffix."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._snapshot: Snapshot | None = log.snapshot()
        #: Those of its sections that cannot be read.
        self._spoilt: frozenset[str] = frozenset()
        self._base = self._snapshot.seq if self._snapshot is not None else 0
        self._suffix: dict[str, list[bytes]] = {}
        self._left: dict[str, Left] = {}
        #: Sessions that an actor has, and the memory, as far as they are in the snapshot: with so many events. With as many they are still what is there.
        self._in_snapshot: dict[str, int] = {}
        #: Of what is left when a snapshot has the state, most are alike: one serves them all.
        self._rests: dict[Left, Left] = {}
        #: Something was lost, and a repair has said so, or some session could not be folded: others may be damaged too.
        self.has_gaps = False
        for record in log.records(after=self._base):
            if is_gap(record.payload):
                self.has_gaps = True
            else:
                self._suffix.setdefault(stream_of(record.payload), []).append(record.payload)
        #: Sessions that could not be folded, and why.
        self.unreadable: dict[str, str] = {}
        for name, tag in self._snapshot.sections.items() if self._snapshot is not None else ():
            if tag == DAMAGED:
                self.has_gaps = True
                self.unreadable[name] = "it could not be rebuilt when the last snapshot was written"

    def __contains__(self, session: str) -> bool:
        return (
            session in self._suffix
            or session in self._left
            or (self._snapshot is not None and session in self._snapshot.sections)
        )

    def names(self) -> Iterator[str]:
        if self._snapshot is not None:
            yield from filter(is_session, self._snapshot.sections)
        for name in (*filter(is_session, self._suffix), *self._left):
            if self._snapshot is None or name not in self._snapshot.sections:
                yield name

    def active(self) -> list[str]:
        """The sessions that the world still owes something: they have to be recovered at once."""
        found: list[str] = []
        for name in filter(is_session, self._suffix):
            try:
                state, _ = self.load(name)
            except TrouperError as error:
                self._give_up(name, error)
                continue
            if outstanding(state):
                found.append(name)
        if self._snapshot is not None:
            found += [
                name for name, tag in self._snapshot.sections.items() if tag == ACTIVE and name not in self._suffix
            ]
        return found

    def _give_up(self, session: str, error: TrouperError) -> None:
        """From now on it is known as damaged."""
        self.unreadable[session] = str(error)
        self.has_gaps = True
        logger.error("session %s cannot be rebuilt: %s", session, error)

    def load(self, session: str) -> tuple[State, int]:
        """State and next event number; a fresh state for a session that is not there."""
        left = self._left.get(session)
        if left is not None and left.section is not None:
            return decode_section(left.section)
        return self._folded(session, self._suffix.get(session, ()))

    def _folded(self, session: str, later: Iterable[bytes], up_to: float = math.inf) -> tuple[State, int]:
        """From the snapshot and the records `later` than it; if that is of no use, from all records `up_to` one."""
        state, next_seq = State(), 0
        if self._snapshot is not None and session in self._snapshot.sections:
            if self._snapshot.sections[session] == DAMAGED:
                return self._fold_all(session, up_to)  # Which says what is missing.
            try:
                state, next_seq = decode_section(self._snapshot.read(session))
            except (JournalDamaged, codec.UndecodableRecord) as error:
                logger.warning("session %s: its snapshot is of no use (%s); folding all its records", session, error)
                self._spoilt |= {session}
                return self._fold_all(session, up_to)
        return fold(later, state, next_seq)

    def _fold_all(self, session: str, up_to: float = math.inf) -> tuple[State, int]:
        if self._log.has_dropped(session):
            # Not what is left, as if it were all: a session that is closed would be open again, or a new one of the same name.
            self.has_gaps = True
            raise SessionDamaged(
                f"the state of session {session!r} is damaged in the snapshot, and its records were dropped, so it is lost; use another session id",
                session=session,
            )
        records = self._log.records(stream=session)
        return fold(record.payload for record in records if record.seq <= up_to and not is_gap(record.payload))

    def reload(self, session: str) -> tuple[State, int]:
        """The same from what the journal holds now: for an actor that begins again."""
        state, next_seq = State(), 0
        if self._snapshot is not None and session in self._snapshot.sections:
            try:
                state, next_seq = decode_section(self._snapshot.read(session))
            except (JournalDamaged, codec.UndecodableRecord):
                return self._fold_all(session)
        records = self._log.records(after=self._base, stream=session)
        return fold((record.payload for record in records if not is_gap(record.payload)), state, next_seq)

    def memories(self) -> tuple[Memories, int]:
        """What is remembered, and the number of its next event."""
        later = self._suffix.pop(MEMORY_STREAM, ())
        if self._snapshot is None or MEMORY_STREAM not in self._snapshot.sections:
            return fold_memories(later)
        try:
            found, next_seq = decode_memories(self._snapshot.read(MEMORY_STREAM))
        except (JournalDamaged, codec.UndecodableRecord) as error:
            logger.warning("the memory: its snapshot is of no use (%s); folding all its records", error)
            records = self._log.records(stream=MEMORY_STREAM)
            return fold_memories(record.payload for record in records if not is_gap(record.payload))
        return fold_memories(later, found, next_seq)

    def taken(self, session: str) -> tuple[State, int]:
        """What `load` gives, for an actor that has it from now on."""
        state, next_seq = self.load(session)
        is_in_snapshot = (
            self._sections.get(session, DAMAGED) != DAMAGED
            and session not in self._suffix
            and session not in self._spoilt
            and not self._is_kept(session)
        )
        self.opened(session)
        self.unreadable.pop(session, None)  # Or it would be called damaged again as soon as it is put to rest.
        if is_in_snapshot:
            self._in_snapshot[session] = next_seq
        return state, next_seq

    def opened(self, session: str) -> None:
        """An actor has it now: its records need not be kept here."""
        self._suffix.pop(session, None)
        if not self._is_final(session):
            self._left.pop(session, None)

    @property
    def _sections(self) -> Mapping[str, str]:
        return {} if self._snapshot is None else self._snapshot.sections

    @property
    def snapshot_size(self) -> int:
        """Bytes of the states in the snapshot that is read."""
        return 0 if self._snapshot is None else self._snapshot.size

    def _is_kept(self, session: str) -> bool:
        left = self._left.get(session)
        return left is not None and left.section is not None

    # -- sessions whose actors are gone

    def left(self, session: str, state: State, next_seq: int) -> int:
        """The actor that had it is gone, and this is what it left; how many bytes of it have to be kept until a snapshot has them."""
        seen = self._in_snapshot.pop(session, None)
        if self._is_final(session):
            return 0
        is_there = seen == next_seq and session not in self._spoilt
        section = None if is_there else encode_section(state, next_seq)
        self._left[session] = Left(state.phase.value, state.turns, _is_bare(state), tag_of(state), section)
        return 0 if section is None else len(section)

    def _is_final(self, session: str) -> bool:
        """Closed is final (I16): somebody may look at it again, and what is kept of it stays true."""
        left = self._left.get(session)
        return left is not None and left.phase == CLOSED.value

    def glance(self, session: str) -> tuple[str, int]:
        """Its phase, and how many turns it had."""
        left = self._left.get(session)
        if left is not None:
            return left.phase, left.turns
        state, _ = self.load(session)
        return state.phase.value, state.turns

    def is_bare(self, session: str) -> bool:
        """Whether it is known to have no tasks, notifications or schedules."""
        left = self._left.get(session)
        return left is not None and left.is_bare

    def kept(self) -> dict[str, Left]:
        """Those that no snapshot has yet."""
        return {name: left for name, left in self._left.items() if left.section is not None}

    def go_on_from(self, snapshot: Snapshot, kept: Mapping[str, Left], held: Mapping[str, int]) -> None:
        """This snapshot has all that was known here when it was pictured, and with it what was `kept`: from now on that is read there. What actors have, they `held` then, with so many events."""
        self._snapshot, self._base = snapshot, snapshot.seq
        self._spoilt = frozenset()
        self._suffix.clear()
        # Of one that was let go of since then, nobody has to know what the snapshot has: it has left something of its own here.
        self._in_snapshot |= {name: next_seq for name, next_seq in held.items() if name not in self._left}
        for name, left in kept.items():
            # One that was opened since then has been somebody else's, and may have ended anew.
            if self._left.get(name) is left:
                rest = changed(left, section=None)
                self._left[name] = self._rests.setdefault(rest, rest)

    def untouched(self) -> Iterator[tuple[str, Section]]:
        """Sections of a new snapshot for the sessions that no actor has: copied where nothing changed, else folded, later."""
        for name in self.names():
            left = self._left.get(name)
            if left is not None and left.section is not None:
                yield name, (left.tag, left.section)
            elif name in self.unreadable:
                yield name, _DAMAGED
            elif name in self._suffix or name in self._spoilt:
                yield name, partial(self._rebuilt, name, self._suffix.get(name, ()), self._log.last)
            elif self._snapshot is not None:
                yield name, (self._snapshot.sections[name], None)

    def _rebuilt(self, session: str, later: Iterable[bytes], up_to: int) -> tuple[str, bytes]:
        """As it was with the record `up_to`: an actor may have it by now, and have gone on."""
        try:
            state, next_seq = self._folded(session, later, up_to)
        except (SessionDamaged, JournalDamaged) as error:
            self._give_up(session, error)
            return _DAMAGED
        return section_of(state, next_seq)

    def copied(self, name: str, next_seq: int) -> Section | None:
        """The section for what an actor has, with so many events, if it can be copied from the snapshot that is read."""
        if self._in_snapshot.get(name) == next_seq and name not in self._spoilt:
            return self._sections[name], None
        return None

    @property
    def snapshot(self) -> Snapshot | None:
        """What it reads from, and what is copied is copied from."""
        return self._snapshot

    def distrust(self, spoilt: Iterable[str]) -> None:
        """These sections cannot be copied from its snapshot: the next one gets them from the records."""
        self._spoilt = frozenset(spoilt)


def fold(payloads: Iterable[bytes], state: State | None = None, next_seq: int = 0) -> tuple[State, int]:
    """Fold records of one session. Those that the state already holds are passed over; a hole is an error."""
    state = State() if state is None else state
    for payload in payloads:
        try:
            session, n, events = codec.decode_events(payload)
        except codec.UndecodableRecord as error:
            why = str(error) if error.__cause__ is None else repr(error.__cause__)
            raise _refused(stream_of(payload), next_seq, why) from error
        if n + len(events) <= next_seq:
            continue
        if n != next_seq:
            raise SessionDamaged(
                f"session {session!r} has lost its events {next_seq} to {n - 1} and cannot go on; see what is left with `trouper journal show`, "
                "go on from before the hole with `trouper journal replay --fork`, or use another session id",
                session=session,
            )
        for event in events:
            try:
                state = evolve(state, event)
            except Exception as error:
                # A pure fold: whatever it raises is about this event, and about no other session (I23).
                raise _refused(session, next_seq, f"{type(event).__name__}: {error!r}") from error
            next_seq += 1
    return state, next_seq


def fold_memories(
    payloads: Iterable[bytes], memories: Memories | None = None, next_seq: int = 0
) -> tuple[Memories, int]:
    """Fold records of the memory, as `fold` does. But each stands for itself: those behind a hole are as good as ever, so what is left is gone on with."""
    found = Memories() if memories is None else memories
    whole = True
    for payload in payloads:
        _, n, events = codec.decode_events(payload)
        if n + len(events) <= next_seq:
            continue
        if n > next_seq:
            whole = False
            logger.error(
                "the memory has lost its events %d to %d; what is left of it is kept, and may hold what was forgotten then",
                next_seq,
                n - 1,
            )
        for event in events:
            # What was written in the hole, and forgotten behind it, is not there to be forgotten.
            if whole or not isinstance(event, MemoryForgotten) or event.key in found.scopes.get(event.scope, {}):
                found = memory.evolve(found, event)
        next_seq = n + len(events)
    return found, next_seq


def _refused(session: str, event: int, why: str) -> SessionDamaged:
    return SessionDamaged(
        f"session {session!r} cannot be folded by today's code from its event {event} on ({why}), and cannot go on; see where with `trouper journal replay`, "
        "go on from before that with `--fork`, or use another session id",
        session=session,
    )


def tag_of(state: State) -> str:
    return ACTIVE if outstanding(state) else IDLE


def _is_bare(state: State) -> bool:
    tasks, notifications, schedules = state.tasks, state.notifications, state.schedules
    return not (
        tasks.live
        or tasks.ended
        or notifications.pending
        or notifications.settled
        or schedules.active
        or schedules.settled
    )


def section_of(state: State, next_seq: int) -> tuple[str, bytes]:
    return tag_of(state), encode_section(state, next_seq)


def section_of_memories(memories: Memories, next_seq: int) -> tuple[str, bytes]:
    return IDLE, encode_memories(memories, next_seq)


def encode_memories(memories: Memories, next_seq: int) -> bytes:
    return codec.dumps({"v": codec.VERSION, "next": next_seq, "state": codec.to_json(memories)})


def encode_section(state: State, next_seq: int) -> bytes:
    return codec.dumps({"v": codec.VERSION, "next": next_seq, "state": codec.to_json(state)})


def decode_section(payload: bytes) -> tuple[State, int]:
    return _decoded(payload, State)


def decode_memories(payload: bytes) -> tuple[Memories, int]:
    return _decoded(payload, Memories)


def _decoded(payload: bytes, kind: type[T]) -> tuple[T, int]:
    """A state and the number of its next event; `UndecodableRecord` for whatever another Trouper put there: the records say the same."""
    value = codec.loads(payload)
    try:
        if value["v"] != codec.VERSION:
            raise codec.UndecodableRecord(f"the snapshot has version {value['v']!r}")
        if type(value["next"]) is not int:
            raise TypeError(f"next is {value['next']!r}")
        return codec.from_json(value["state"], kind), value["next"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise codec.UndecodableRecord(f"the snapshot is not one that this Trouper writes: {error!r}") from error
