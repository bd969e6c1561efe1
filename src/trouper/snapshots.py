"""When a runtime writes a snapshot, and of what: the state of every session at one moment.

A snapshot saves the next start the folding of records. It is optional: a failure costs time, not data (J13). What it costs follows what has changed since the one
before: the rest is copied from there. And it holds up nobody: states do not change, so that they are only gathered at that moment, and written out little by little.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

import trio

from trouper.actors.errors import ActorGone, MailboxFull
from trouper.actors.journal import JournalWriter
from trouper.actors.reference import Inbox, Ref
from trouper.actors.session import SessionActor
from trouper.core.ids import MEMORY_STREAM
from trouper.core.values import frozen
from trouper.journal import JournalDamaged, JournalError, Log, Snapshot
from trouper.roster import Left, Roster, Section, section_of, section_of_memories
from trouper.services.memory import MemoryKeeper

if TYPE_CHECKING:
    from trouper.resident import Resident

logger = logging.getLogger("trouper.snapshots")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
#: What sessions that have ended, or were put to rest, may leave in memory, all together, before a snapshot is written to hold it.
LEFT_BYTES_MAX = 16 * 1024 * 1024
#: The same as a share of the last one, if that is more: each copies all that there is, and what it costs has to be worth it.
LEFT_SHARE_MAX = 0.25
#: So many bytes are written out at once, before others have their turn.
SLICE_BYTES = 16 * 1024


@frozen
class Picture:
    """What a snapshot is made of."""

    #: The last record that every state has taken in.
    seq: int
    #: The last that any of them may have taken in. Buffered records are part of a state before they are on the disk, and a snapshot must not outlive them there (I17).
    covers: int
    sections: tuple[tuple[str, Section], ...]
    previous: Snapshot | None
    #: The sessions that no actor has any more, and no snapshot yet.
    left: Mapping[str, Left]
    #: Those that an actor has, and the memory: with so many events.
    held: Mapping[str, int]


class Snapshots:
    """`run` is the task of the actor that writes them; `recorded` wakes it every so many records."""

    def __init__(
        self,
        log: Log,
        writer: JournalWriter,
        roster: Roster,
        memory: MemoryKeeper,
        sessions: Mapping[str, Resident],
        let_go_of_failed: Callable[[], None],
        every: int,
    ) -> None:
        self._log = log
        self._writer = writer
        self._roster = roster
        self._memory = memory
        self._sessions = sessions
        self._let_go_of_failed = let_go_of_failed
        self._every = every
        self._since = 0
        #: Whether there is a record that none was written behind.
        self._is_behind = False
        #: Bytes that sessions have left since the last one.
        self._left = 0
        self._ref: Ref[None, None] | None = None
        #: One at a time: the roster goes on from the last, which has to be the newest.
        self._writing = trio.Lock()

    def recorded(self) -> None:
        """One more record."""
        self._since += 1
        self._is_behind = True
        if self._since >= self._every:
            self._ask()

    def left(self, size: int) -> None:
        """A session has ended, or was put to rest, and so much of it is kept in memory until a snapshot has it."""
        self._left += size
        if self._left >= max(LEFT_BYTES_MAX, LEFT_SHARE_MAX * self._roster.snapshot_size):
            self._ask()

    def _ask(self) -> None:
        if self._ref is not None:
            self._since = self._left = 0
            with suppress(MailboxFull, ActorGone):
                self._ref.tell(None)

    async def run(self, inbox: Inbox[None, None]) -> None:
        """Write one whenever enough has happened since the last."""
        self._ref = inbox.ref
        async for _ in inbox:
            await self.write()

    async def write_last(self) -> None:
        """At a clean end, unless there is nothing to add to the one before."""
        async with self._writing:
            if self._is_behind:
                await self._written()

    async def write(self) -> None:
        async with self._writing:
            self._let_go_of_failed()
            self._since = self._left = 0
            picture = await self._written()
            if picture is not None:
                await self._hand_over(picture)

    async def _written(self) -> Picture | None:
        """The picture of this moment, when it is on the disk."""
        picture = self.pictured()
        self._is_behind = is_written = False
        try:
            is_written = await self.put_down(picture)
        finally:
            self._is_behind |= not is_written
        return picture if is_written else None

    def pictured(self) -> Picture:
        """The state of every session, all at this very moment."""
        writers: list[SessionActor | MemoryKeeper] = [
            *(session.actor for session in self._sessions.values()),
            self._memory,
        ]
        # An actor that has not read its session yet knows nothing of it; the roster does.
        actors = {name: session.actor for name, session in self._sessions.items() if session.actor.next_seq}
        in_flight = [writer.in_flight for writer in writers if writer.in_flight is not None]
        held = {name: actor.next_seq for name, actor in actors.items()}
        live = {name: partial(section_of, actor.state, held[name]) for name, actor in actors.items()}
        if self._memory.next_seq:
            held[MEMORY_STREAM] = self._memory.next_seq
            live[MEMORY_STREAM] = partial(section_of_memories, self._memory.memories, self._memory.next_seq)
        rest = (each for each in self._roster.untouched() if each[0] not in actors)
        ours = ((name, self._roster.copied(name, held[name]) or later) for name, later in live.items())
        return Picture(
            seq=min([self._log.durable, *(first - 1 for first in in_flight)]),
            covers=self._log.last,
            sections=(*rest, *ours),
            previous=self._roster.snapshot,
            left=self._roster.kept(),
            held=held,
        )

    async def put_down(self, picture: Picture) -> bool:
        """Whether it is on the disk."""
        try:
            sections = await _written_out(picture)
            await self._writer.wait_durable(picture.covers)
            await self._in_thread(self._write, picture, sections)
        except (OSError, JournalError) as error:
            _tell_unwritten(error)
            if isinstance(error, JournalDamaged) and picture.previous is not None:
                # Else it would stand in the way of every later one too.
                self._roster.distrust(await self._in_thread(picture.previous.spoilt))
            return False
        return True

    def _write(self, picture: Picture, sections: Sequence[tuple[str, str, bytes | None]]) -> None:
        self._log.write_snapshot(picture.seq, sections, picture.previous, covers=picture.covers)

    async def _hand_over(self, picture: Picture) -> None:
        """From now on the roster reads what it has put down; else it goes on from the one before, and keeps what it has."""
        with suppress(OSError):
            newest = await self._in_thread(self._log.snapshot)
            if newest is not None and newest.seq == picture.seq and newest.sections.keys() >= picture.left.keys():
                self._roster.go_on_from(newest, picture.left, picture.held)

    async def _in_thread(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        return await trio.to_thread.run_sync(work, *args) if self._writer.is_threaded else work(*args)


async def _written_out(picture: Picture) -> list[tuple[str, str, bytes | None]]:
    """Not in a thread: it would take the interpreter from the loop for five milliseconds at a time."""
    sections: list[tuple[str, str, bytes | None]] = []
    in_slice = 0
    for name, section in picture.sections:
        if callable(section):
            section = section()
            in_slice += len(section[1])
        sections.append((name, *section))
        if in_slice >= SLICE_BYTES:
            in_slice = 0
            await trio.lowlevel.checkpoint()
    return sections


def _tell_unwritten(error: Exception) -> None:
    logger.warning("no snapshot was written: %s; the next start folds the records instead", error)
