"""The memory of a runtime (B21): decided like everything else, on a stream of its own, and kept readable on disk beside the journal.

The journal is the truth. The files and the index follow it, and are put right from it when they are behind; without a directory there are none, and searching
walks over what is remembered. A disk that cannot follow costs nobody a memory: that is logged, and made good the next time.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import trio

from trouper import checks, codec
from trouper._errors import UsageError
from trouper.actors.journal import JournalWriter
from trouper.actors.request import ki_safe
from trouper.core import memory, memory_search
from trouper.core.ids import MEMORY_STREAM, check_name
from trouper.core.memory import Forget, ForgetExpired, Memories, MemoryCommand, Remember
from trouper.core.messages import Json
from trouper.home import Home
from trouper.journal import Entry
from trouper.tools.context import Memo
from trouper.tools.structure import fresh

if TYPE_CHECKING:
    from trouper.stores.memory_store import MemoryStore

logger = logging.getLogger("trouper.memory")


class MemoryKeeper:
    """`runtime.memory`. One writer at a time; every change is durable before its call returns."""

    def __init__(
        self,
        home: Home,
        writer: JournalWriter,
        epoch: int,
        now: Callable[[], float],
        memories: Memories,
        next_seq: int,
        in_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
        open_store: Callable[[Memories, float], MemoryStore] | None,
        redact: Callable[[bytes], bytes],
        tell: Callable[[codec.Record, int], None],
    ) -> None:
        self.memories = memories
        self.next_seq = next_seq
        #: Handed to the journal, and not yet part of `memories`.
        self.in_flight: int | None = None
        self._home = home
        self._writer = writer
        self._epoch = epoch
        self._now = now
        self._in_thread = in_thread
        self._open_store = open_store
        self._redact = redact
        #: Lets those who follow all records know of one.
        self._tell = tell
        self._store: MemoryStore | None = None
        #: Whether what has lapsed could not leave the disk the last time.
        self._is_behind = False
        self._lock = trio.Lock()

    async def remember(
        self,
        scope: str,
        key: str,
        value: Json,
        *,
        summary: str = "",
        metadata: Mapping[str, Json] | None = None,
        ttl_s: float | None = None,
    ) -> Memo:
        """Write, or write over; what is written over keeps the time at which it was made."""
        await self._decide(Remember(scope, key, value, self._now(), summary, metadata or {}, ttl_s))
        return _memo(self.memories.scopes[scope][key])

    async def recall(self, scope: str, key: str) -> Memo | None:
        await trio.lowlevel.checkpoint()  # Whoever looks again and again lets others have their turn.
        found = memory.recall(self.memories, scope, key, self._now())
        return None if found is None else _memo(found)

    async def forget(self, scope: str, key: str) -> bool:
        """Whether it was there. Forgetting twice is forgetting once."""
        there = memory.recall(self.memories, scope, key, self._now()) is not None
        return await self._decide(Forget(scope, key, self._now())) and there

    async def forget_expired(self) -> bool:
        return await self._decide(ForgetExpired(self._now()))

    async def list(self, scope: str, *, limit: int = 50) -> Sequence[Memo]:
        """The newest change first."""
        checks.count(limit, "limit")
        await trio.lowlevel.checkpoint()
        return [_memo(found) for found in memory.listing(self.memories, scope, self._now(), limit)]

    def scopes(self) -> tuple[str, ...]:
        return tuple(sorted(memory.living(self.memories, self._now()).scopes))

    async def search(self, text: str, *, scope: str | None = None, limit: int = 20) -> Sequence[Memo]:
        """Those that hold all words of `text`, best first; without a disk, newest first."""
        if not isinstance(text, str):
            raise UsageError(f"memory is searched for text, not for {text!r}; give some words")
        if scope is not None:
            check_name(scope, "scope")
        self._home.check()
        at, limit = self._now(), checks.count(limit, "limit")
        async with self._lock:
            store = await self._opened()
        if store is not None:

            def look() -> Any:
                self._drop_lapsed(store, at)
                return store.search(text, at=at, scope=scope, limit=limit)

            hits = await self._on_disk(look)
            if hits is not None:
                found = (memory.recall(self.memories, hit.scope, hit.key, at) for hit in hits)
                return [_memo(each) for each in found if each is not None]
        return [_memo(each) for each in self._walk(text, scope, at)[:limit]]

    def _walk(self, text: str, scope: str | None, at: float) -> Sequence[memory.Memory]:
        names = [scope] if scope is not None else list(self.memories.scopes)
        alive = [each for name in names for each in memory.listing(self.memories, name, at)]
        alive.sort(key=lambda each: each.updated_at, reverse=True)
        return memory_search.found(alive, memory_search.query_of(text))

    @ki_safe
    async def _decide(self, command: MemoryCommand) -> bool:
        """Journal, then evolve, then let the disk follow (as a session does); whether anything changed."""
        self._home.check()
        async with self._lock:
            events = memory.decide(self.memories, command)
            if not events:
                return False
            # Shielded: a caller's cancel between hand-over and acknowledgement would leave memory and disk apart.
            with trio.CancelScope(shield=True):
                record, head, body = self._written(command, events)
                seq = self.in_flight = self._writer.append(Entry(MEMORY_STREAM, record.id, head, body, True, True))
                try:
                    await self._writer.wait_durable(seq)
                    for event in record.events:
                        self.memories = memory.evolve(self.memories, event)
                    self.next_seq += len(record.events)
                finally:
                    self.in_flight = None
                self._tell(record, seq)
                await self._follow(record.events)
            return True

    def _written(
        self, command: MemoryCommand, events: tuple[memory.MemoryEvent, ...], *, again: bool = False
    ) -> tuple[codec.Record, bytes, bytes]:
        """The record, as the journal may hold it: what is written is what is true, so a secret in it is cut out, and then decided on anew (J8, I36)."""
        record = codec.Record(MEMORY_STREAM, self.next_seq, self._epoch, self._now(), command, events)
        writable, _, head, body = codec.written(record, self._redact, exact=not again)
        if writable is record:
            return record, head, body
        return self._written(writable.cause, memory.decide(self.memories, writable.cause), again=True)

    async def refresh(self) -> None:
        """Put right what the disk says of the memory: other programs read it, whether anybody here does or not."""
        async with self._lock:
            await self._opened()

    async def _follow(self, events: Sequence[memory.MemoryEvent]) -> None:
        store = self._store
        if store is None:
            await self._opened()  # Which knows them already.
            return

        now = self._now()

        def apply() -> None:
            for event in events:
                store.apply(event)
            self._drop_lapsed(store, now)

        await self._on_disk(apply)

    def _drop_lapsed(self, store: MemoryStore, at: float) -> None:
        """In a thread. Where the disk does not do it, the index still tells what has lapsed: nothing else has to wait for it."""
        try:
            store.drop_lapsed(at)
        except _disk_errors() as error:
            if not self._is_behind:
                logger.warning("what has lapsed of the memory could not leave the disk: %s; it is tried again", error)
            self._is_behind = True
        else:
            self._is_behind = False

    async def _opened(self) -> MemoryStore | None:
        """The store on disk, brought up to date when it is first needed; `None` if there is none, or none can be had now."""
        open_store = self._open_store
        if self._store is None and open_store is not None:
            # What has lapsed is as if forgotten to those who read the files, too.
            self._store = await self._on_disk(lambda: open_store(self.memories, self._now()))
            if self._open_store is None:  # Closed meanwhile.
                self._let_go()
        return self._store

    async def _on_disk(self, work: Callable[[], Any]) -> Any:
        """`None` if the disk does not do it. What stands there is then behind, and put right from the journal when it is next opened."""
        try:
            return await self._in_thread(work)
        except _disk_errors() as error:
            logger.warning("the readable copy of the memory could not follow: %s; it is put right later", error)
            self._let_go()
            return None

    def close(self) -> None:
        """What is remembered can still be looked at, but the disk is left alone."""
        self._open_store = None
        self._let_go()

    def _let_go(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None


def _disk_errors() -> tuple[type[Exception], ...]:
    """With those of the database, which is loaded with the store. Where it is not, that may be for want of a descriptor: then it cannot be loaded here either."""
    database = getattr(sys.modules.get("sqlite3"), "Error", None)
    return (OSError,) if database is None else (OSError, database)


def _memo(found: memory.Memory) -> Memo:
    return Memo(
        scope=found.scope,
        key=found.key,
        # Copies: what is remembered changes by a record only, whatever its reader does with it.
        value=fresh(found.value),
        created=datetime.fromtimestamp(found.created_at, UTC),
        updated=datetime.fromtimestamp(found.updated_at, UTC),
        summary=found.summary,
        metadata=fresh(found.metadata),
    )
