"""The log: entries in, framed lines out, in one live segment that is cut and sealed as it grows.

Two sides meet here. `append` and `take` are called by the owner of the log, in one thread, and write to no file (at level `write`, `append`
does); a body too large for a line `append` writes to its own file. `commit` writes and syncs; it may run in another thread, but only one at a time, and while it runs the owner appends on. Whoever
calls sees to it that the next `take` comes after the last `commit` has ended.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal
from zlib import crc32

import attrs

from trouper._errors import InternalError, UsageError
from trouper.core.values import changed, frozen
from trouper.journal._errors import (
    BlobRefused,
    BlobUnplaced,
    JournalBehind,
    JournalClosed,
    JournalError,
    JournalFailed,
    JournalFull,
)
from trouper.journal.blobs import OpenBlob, digest_of
from trouper.journal.disk import NO_SPACE, Disk, File, Lock
from trouper.journal.files import create_temporary, put_in_place, write_all
from trouper.journal.format import (
    BODY_MARK,
    PAYLOAD_BYTES_MAX,
    RESERVE_NAME,
    TEMPORARY_SUFFIX,
    Footer,
    Header,
    segment_name,
)
from trouper.journal.reader import Reader
from trouper.journal.segment import Damage, RawRecord
from trouper.journal.snapshots import Snapshot, newest_snapshot, write_snapshot

Level = Literal["fsync", "write", "memory"]

#: At least so many event ids are remembered, so that one appended twice leaves one record (I14).
RECENT_IDS_MAX = 16_384
#: What may wait in memory for the disk; past it, `append` refuses (I25).
PENDING_BYTES_MAX = 64 * 1024 * 1024
#: How much one `take` frames: a batch lies in one segment.
BATCH_BYTES_MAX = 1024 * 1024
#: What is written ahead of its sync, at the most; and how far from the end of a segment it has to stay, as lines are longer than their entries.
AHEAD_BYTES_MAX = 64 * 1024
_NEWLINE = ord("\n")
#: A line: its sequence, the length of its payload, the checksum up to it, a mark if all before it is synced, and the payload.
_LINE = b"%d %d %08x%b %b\n"
#: The file that is given up when the disk is full, so that running work can still be recorded.
RESERVE_BYTES = 4 * 1024 * 1024


@frozen(frequent=True)
class Entry:
    """One record to append: `head` is a JSON object without its closing brace, `body` a JSON value, both ASCII.

    `stream` is the value of `"session"` in the head. `durable=False` is the buffered class of J1. `opens` marks an entry that starts
    new work; such entries are refused while the disk is full.
    """

    stream: str
    id: str
    head: bytes
    body: bytes
    durable: bool = True
    opens: bool = False
    #: Of a body too large for a line: the digest of its blob, which the log has opened.
    blob: str = ""


@frozen
class Torn:
    """A torn tail that recovery dropped: where it was, and where its bytes are kept."""

    file: str
    offset: int
    size: int
    kept: str
    #: Whole records in it that no sync had covered. They were never acknowledged.
    records: int


@frozen
class Recovery:
    """What opening the journal found and did."""

    journal: str
    epoch: int
    #: The last record that was there.
    last: int
    created: bool = False
    #: The last writer closed the journal; after a crash this is false.
    clean: bool = True
    torn: Torn | None = None
    damage: tuple[Damage, ...] = ()
    #: Snapshots that were not used, and why.
    ignored_snapshots: tuple[Damage, ...] = ()


class Batch:
    """Framed lines on their way to the disk."""

    __slots__ = ("blobs", "checksum", "count", "data", "last", "streams")

    def __init__(
        self,
        data: bytes,
        last: int,
        checksum: int,
        count: int,
        streams: dict[str, None],
        blobs: list[str],
    ) -> None:
        self.data = data
        self.last = last
        self.checksum = checksum
        self.count = count
        self.streams = streams
        self.blobs = blobs


@attrs.define
class LiveSegment:
    """The segment that is being written: its file, and what its footer will say."""

    file: File
    path: str
    header: Header
    size: int
    records: int
    streams: dict[str, None]
    gaps: int = 0


class Log:
    """An open journal. Made by `open_log`."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        *,
        level: Level,
        recovery: Recovery,
        segment_bytes: int,
        redact: Callable[[bytes], bytes] | None,
        live: LiveSegment | None,
        checksum: int,
        recent: dict[str, int],
        lock: Lock | None,
        refusal: JournalError | None,
    ) -> None:
        self.root = root
        self.level: Level = level
        self.recovery = recovery
        #: Why nothing can be appended (opened read-only, damage, newer version, a failed sync...); None when all is well.
        self.refusal = refusal
        #: The disk is full: only what ends running work is taken. See `try_resume`.
        self.degraded = False
        self.disk = disk
        self._reader = Reader(disk, root)
        self._segment_bytes = segment_bytes
        self._redact = redact
        self._live = live
        self._lock = lock
        if lock is not None and hasattr(lock, "on_lost"):
            lock.on_lost = self._forked
        self._mutex = threading.Lock()  # Held by `commit`, snapshots and close, which may come from different threads.
        # Two generations: to forget the oldest of one dictionary, one by one, is slow.
        self._recent = recent
        self._less_recent: dict[str, int] = {}
        # Invariant: framed <= last; pending holds exactly the entries framed+1 ... last.
        self._pending: list[Entry] = []
        self.pending_bytes = 0
        #: How many entries that want a sync wait to be taken.
        self.pending_durable = 0
        #: The sequence given out last.
        self.last = recovery.last
        self._framed = recovery.last
        self._checksum = checksum
        # Invariant: synced <= written <= framed. Written by `commit` only.
        self._written = recovery.last
        self._written_checksum = checksum
        self._synced = recovery.last
        self._snapshot: Snapshot | None = None
        # All that were handed out and are still held; closed with the log.
        self._snapshots: weakref.WeakSet[Snapshot] = weakref.WeakSet()
        self._lasting: set[str] = set()
        # Those whose records have a sequence, and are not written yet. Taken out by `commit`, when they are in place.
        self._blobs: dict[str, OpenBlob] = {}

    # -- what the owner reads

    @property
    def epoch(self) -> int:
        return self.recovery.epoch

    @property
    def durable(self) -> int:
        """Up to here, records have what their level promises: synced at `fsync`, written at the others."""
        return self._synced if self.level == "fsync" else self._written

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    @property
    def is_ahead(self) -> bool:
        """Whether something was written ahead of its sync."""
        return self._synced < self._written and self.level == "fsync"

    # -- appending

    def append(self, entry: Entry) -> int:
        """Give the entry its sequence. It is on the disk only once `durable` covers that; an id seen lately keeps its sequence (I14)."""
        known = self._recent.get(entry.id) or self._less_recent.get(entry.id)
        if known is not None:
            return known
        if self.refusal is not None:
            raise self.refusal
        if self.degraded and entry.opens:
            raise self._full()
        if self.pending_bytes > PENDING_BYTES_MAX:
            raise JournalBehind(
                f"the disk of the journal {self.root!r} is behind by {self.pending_bytes} bytes; send less at once, or use a faster disk",
                root=self.root,
                pending_bytes=self.pending_bytes,
            )
        if self._redact is not None:
            entry = changed(entry, head=self._redact(entry.head), body=self._redact(entry.body))
        head, body = entry.head, entry.body
        if not head.isascii() or not body.isascii() or _NEWLINE in head or _NEWLINE in body:
            raise InternalError(
                f"entry {entry.id!r} is not one line of ASCII; please report this with the event's type", id=entry.id
            )
        if len(head) > PAYLOAD_BYTES_MAX // 2:
            raise UsageError(
                f"the head of entry {entry.id!r} has {len(head)} bytes; put large values into the body", id=entry.id
            )
        if len(head) + len(BODY_MARK) + len(body) + 1 > PAYLOAD_BYTES_MAX:
            entry = changed(entry, blob=self._open_blob(entry))
        if len(self._recent) >= RECENT_IDS_MAX:
            self._less_recent, self._recent = self._recent, {}
        self.last = seq = self.last + 1
        self._recent[entry.id] = seq
        if self.level != "fsync" and entry.durable and not self._pending:
            # Nothing waits before it, and it waits for nothing.
            try:
                self._write_now(entry)
            except BaseException as error:
                # It has its sequence, and is not on the disk: whatever it was, nothing may come behind it.
                self._fail(error)
                raise
            return seq
        self._pending.append(entry)
        self.pending_bytes += len(head) + len(body) + 48
        if entry.durable:
            self.pending_durable += 1
            if self.level != "fsync":
                self.flush()
        return seq

    def take(self) -> Batch | None:
        """Frame what is pending (at most about BATCH_BYTES_MAX of it) for `commit`; None when nothing is, nor was written ahead."""
        pending = self._pending
        if not pending and not self.is_ahead:
            return None
        if self.pending_bytes > BATCH_BYTES_MAX:
            pending = self._cut_pending()
        else:
            self._pending = []
            self.pending_bytes = 0
            self.pending_durable = 0
        try:
            return self._frame(pending)
        except BaseException as error:
            # They have their sequences, which the next would take: whoever waits would be told that they are safe.
            self._fail(error)
            raise

    def _frame(self, entries: Sequence[Entry]) -> Batch:
        """Their lines, which go on where the last batch ended."""
        checksum, seq = self._checksum, self._framed
        mark = b"+" if self._synced == seq else b""
        lines: list[bytes] = []
        blobs: list[str] = []
        streams: dict[str, None] = {}
        for entry in entries:
            head, body = entry.head, entry.body
            payload = b"".join((head, BODY_MARK, body, b"}"))
            if entry.blob:
                blobs.append(entry.blob)
                payload = b'%b,"blob":"%b","size":%d}' % (head, entry.blob.encode(), len(body))
            checksum = crc32(payload, checksum)
            seq += 1
            lines.append(_LINE % (seq, len(payload), checksum, mark, payload))
            mark = b""
            streams[entry.stream] = None
        self._checksum, self._framed = checksum, seq
        return Batch(b"".join(lines), seq, checksum, len(lines), streams, blobs)

    def _cut_pending(self) -> list[Entry]:
        """Take the first part of a large backlog, and leave the rest pending."""
        size = count = 0
        for entry in self._pending:
            size += len(entry.head) + len(entry.body) + 48
            count += 1
            if size >= BATCH_BYTES_MAX:
                break
        taken, self._pending = self._pending[:count], self._pending[count:]
        self.pending_bytes -= size
        self.pending_durable = sum(entry.durable for entry in self._pending)
        return taken

    def commit(self, batch: Batch, *, sync: bool = True) -> None:
        """Write a batch and, with `sync`, put all up to it on the medium. Blocks. After an error the log takes nothing more (J11)."""
        with self._mutex:
            live = self._writable()
            try:
                if batch.blobs:
                    self._check_place(live)
                for digest in batch.blobs:
                    self._put_blob(digest)
                live = self._put(live, batch.data, batch.count, batch.last, batch.checksum)
                live.streams.update(batch.streams)
                if sync:
                    live.file.sync()
                    self._check_place(live)
                    self._synced = batch.last
            except OSError as error:
                raise self._fail(error) from error
            except BaseException as error:
                # The batch has its sequences, and is not on the disk: whatever it was, nothing may come behind it.
                self._fail(error)
                raise

    def write_ahead(self) -> bool:
        """Write what is pending, and leave the sync to the next `commit`. False, and nothing was done, if that would be more than one short write."""
        live, size = self._live, self.pending_bytes
        if live is None or self.refusal is not None or self.degraded or not 0 < size <= AHEAD_BYTES_MAX:
            return False
        # To cut a segment takes several syncs; and whoever is at the file may be syncing it.
        if live.size + size + AHEAD_BYTES_MAX > self._segment_bytes or self._mutex.locked():
            return False
        batch = self.take()
        assert batch is not None and not batch.blobs
        self.commit(batch, sync=False)
        return True

    def _write_now(self, entry: Entry) -> None:
        """Frame and commit this one, without a batch: at the levels that know no sync, that is what every decision does."""
        if entry.blob:
            self.commit(self._frame((entry,)), sync=False)
            return
        payload = b"".join((entry.head, BODY_MARK, entry.body, b"}"))
        mark = b"+" if self._synced == self._framed else b""
        checksum = self._checksum = crc32(payload, self._checksum)
        seq = self._framed = self._framed + 1
        with self._mutex:
            live = self._writable()
            try:
                live = self._put(live, _LINE % (seq, len(payload), checksum, mark, payload), 1, seq, checksum)
                live.streams[entry.stream] = None
            except OSError as error:
                raise self._fail(error) from error

    def _put(self, live: LiveSegment, data: bytes, count: int, last: int, checksum: int) -> LiveSegment:
        """Write so many lines, up to `last`, at the end of the segment, or of the next one if this is full; returns which."""
        if live.size + len(data) > self._segment_bytes and live.records:
            live = self._cut(live)
        self._write(live, data)
        live.records += count
        self._written, self._written_checksum = last, checksum
        return live

    def flush(self) -> None:
        """Write all that is pending; no sync."""
        while self._pending and (batch := self.take()) is not None:
            self.commit(batch, sync=False)

    def sync(self) -> None:
        """Write all that is pending, and sync at level `fsync`."""
        sync = self.level == "fsync"
        while (batch := self.take()) is not None:
            self.commit(batch, sync=sync)
        if sync and self._synced < self._written:
            with self._mutex:
                self._sync_live()

    # -- a disk that is full

    def try_resume(self) -> bool:
        """Leave the degraded state if there is space again for the reserve and as much besides; returns whether all is well."""
        if not self.degraded:
            return True
        with self._mutex:
            with contextlib.suppress(OSError):
                if self.disk.free_bytes(self.root) >= 2 * RESERVE_BYTES:
                    self.disk.reserve(os.path.join(self.root, RESERVE_NAME), RESERVE_BYTES)
                    self.degraded = False
        return not self.degraded

    def _full(self) -> JournalFull:
        return JournalFull(
            f"the disk of the journal {self.root!r} is full: running work may end, new work is refused; "
            f"free at least {2 * RESERVE_BYTES // 2**20} MiB there, and it goes on",
            root=self.root,
        )

    def degrade(self) -> None:
        """Give up the reserve, if it is still there, so that what runs can be recorded."""
        self.degraded = True
        with contextlib.suppress(FileNotFoundError):
            self.disk.unlink(os.path.join(self.root, RESERVE_NAME))

    # -- reading

    def records(self, after: int = 0, stream: str | None = None) -> Iterator[RawRecord]:
        """Written records above `after`, of one stream or of all. Those still pending are not among them."""
        return self._reader.records(after, stream)

    def paced_records(self, after: int = 0, stream: str | None = None) -> Iterator[RawRecord | None]:
        """The same, with a `None` wherever a block was read: a moment at which others may run."""
        return self._reader.paced_records(after, stream)

    def has_dropped(self, stream: str) -> bool:
        """Whether some of the stream's records were dropped on purpose (J15): then all that is left of them is in a snapshot."""
        return self._reader.has_dropped(stream)

    def snapshot(self) -> Snapshot | None:
        """The newest snapshot that is whole and not ahead of the journal."""
        if self._snapshot is None:
            self._snapshot = newest_snapshot(self.disk, self.root, self.recovery.journal)[0]
            if self._snapshot is not None:
                self._snapshots.add(self._snapshot)
        return self._snapshot

    def write_snapshot(
        self,
        seq: int,
        sections: Iterable[tuple[str, str, bytes | None]],
        previous: Snapshot | None = None,
        *,
        covers: int | None = None,
    ) -> str:
        """Write a snapshot of the state after record `seq`; returns its path. Blocks; may run in any thread.

        A section is (name, tag, payload); payload None copies the section of that name, with its new tag, from `previous`, or else from the newest snapshot.
        Some may have taken in records up to `covers` already.
        """
        covers = seq if covers is None else covers
        with self._mutex:
            self._check_place(self._writable())
            if covers > self._written:
                raise UsageError(
                    f"record {covers} is not written yet, the last one is {self._written}; wait for it first",
                    seq=covers,
                )
            if covers > self._synced:
                # A snapshot that outlives the records it stands for would look like damage.
                self._sync_live()
        previous = self.snapshot() if previous is None else previous
        path = write_snapshot(self.disk, self.root, self.recovery.journal, seq, covers, sections, previous)
        # Whoever holds the one before may go on reading it.
        self._snapshot = None
        return path

    # -- the end

    def close(self) -> None:
        """Write and sync what is pending, seal the segment, give up the lock. A log that failed is closed as it is."""
        try:
            if self._live is not None and self.refusal is None:
                self.flush()
                with self._mutex:
                    self._seal(self._live)
        except OSError as error:
            raise self._fail(error) from error
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of files and lock without writing anything, as a crash would."""
        for snapshot in self._snapshots:
            snapshot.close()
        self._snapshot = None
        while self._blobs:
            self._blobs.popitem()[1].close()
        if self._live is not None:
            self._live.file.close()
            self._live = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        if self.refusal is None:
            self.refusal = JournalClosed(
                f"the journal {self.root!r} is closed; open it again to append", root=self.root
            )

    # -- files

    def _writable(self) -> LiveSegment:
        if self.refusal is not None:
            raise self.refusal
        assert self._live is not None
        return self._live

    def _write(self, live: LiveSegment, data: bytes) -> None:
        """Append all of it, or leave the file as it was."""
        try:
            write_all(live.file, data)
        except OSError as error:
            # Short write: what was taken is cut off again, so that the file never holds half a batch (J11).
            live.file.truncate(live.size)
            if error.errno not in NO_SPACE:
                raise
            # Whoever has given up the reserve, and if there was any: there may be room now.
            self.degrade()
            try:
                write_all(live.file, data)
            except OSError:
                live.file.truncate(live.size)
                raise
        live.size += len(data)

    def _cut(self, live: LiveSegment) -> LiveSegment:
        """Seal the live segment and go on in a new one. If there is no room or descriptor for a new one, go on in the old."""
        number = live.header.number + 1
        path = os.path.join(self.root, segment_name(number))
        header = changed(
            live.header,
            number=number,
            first=self._written + 1,
            previous=self._written_checksum,
            level=self.level,
        )
        text = header.encode()
        self._check_place(live)
        file: File | None = None
        spare: File | None = None
        try:
            # Kept until the sync of the new name, which needs a descriptor too: without one there would be no way back by then.
            spare = self.disk.open_read(live.path)
            file = create_temporary(self.disk, path)
            write_all(file, text)
        except OSError as error:
            if spare is not None:
                spare.close()
            if file is not None:
                file.close()
                self.disk.unlink(path + TEMPORARY_SUFFIX)
            if error.errno in NO_SPACE:
                self.degrade()
            elif error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            return live
        try:
            file.sync()
            self._seal(live)
            if self.disk.exists(path):
                raise FileExistsError(errno.EEXIST, "another writer made the next segment", path)
            spare.close()
            put_in_place(self.disk, path)
        except BaseException:
            file.close()
            spare.close()
            raise
        live.file.close()
        self._live = LiveSegment(file, path, header, len(text), 0, {})
        return self._live

    def _seal(self, live: LiveSegment) -> None:
        """Footer behind a sync, and a sync behind the footer: so the footer vouches for every record before it."""
        if self._synced < self._written:
            self._sync_live()
        footer = Footer(
            records=live.records,
            first=live.header.first,
            last=self._written,
            checksum=self._written_checksum,
            streams=tuple(sorted(live.streams)),
            gaps=live.gaps,
        )
        self._write(live, footer.encode(live.size))
        live.file.sync()
        self._check_place(live)

    def _sync_live(self) -> None:
        live = self._writable()
        try:
            live.file.sync()
            self._check_place(live)
        except OSError as error:
            raise self._fail(error) from error
        self._synced = self._written

    def _check_place(self, live: LiveSegment) -> None:
        """The journal was removed, or moved away, or another writer took over: then a sync is worth nothing, and what is made by its path may be another journal's."""
        is_at = getattr(live.file, "is_at", None)
        if is_at is not None and not is_at(live.path):
            raise FileNotFoundError(errno.ENOENT, "the live segment was removed, moved or replaced", live.path)

    def _open_blob(self, entry: Entry) -> str:
        """The digest of its blob. What has no place is refused before it has a sequence: then nothing was written, and all others go on (J11)."""
        digest = digest_of(entry.body)
        if digest in self._blobs:
            return digest
        why: object = None
        try:
            # The reserve is for work that runs.
            has_reserve = not entry.opens and not self.degraded
            if self.disk.free_bytes(self.root) + has_reserve * RESERVE_BYTES < len(entry.body):
                why = os.strerror(errno.ENOSPC)  # Then the reserve would be given up for nothing.
            else:
                self._blobs[digest] = self._write_blob(digest, entry.body, has_reserve)
        except OSError as error:
            why = error
        if why is not None:
            raise (BlobRefused if entry.opens else BlobUnplaced)(
                f"there is no place for {len(entry.body)} bytes of session {entry.stream!r} beside the journal {self.root!r} ({why}); "
                "free disk space, quota or open files (ulimit -n), check the permissions of its `blobs`, then try again",
                root=self.root,
                size=len(entry.body),
            )
        return digest

    def _write_blob(self, digest: str, body: bytes, has_reserve: bool) -> OpenBlob:
        try:
            return OpenBlob(self.disk, self.root, digest, body)
        except OSError as error:
            if error.errno not in NO_SPACE or not has_reserve:
                raise
            self.degrade()
            return OpenBlob(self.disk, self.root, digest, body)

    def _put_blob(self, digest: str) -> None:
        blob = self._blobs.get(digest)
        if blob is None:
            return  # In place already: two records may hold the same.
        blob.put(self._lasting)
        # Only now: until then nobody else may open a file of this name.
        del self._blobs[digest]

    def _forked(self) -> None:
        """In a child of the process that writes this journal: two who write it would damage it (I34)."""
        self.refusal = JournalFailed(
            f"the journal {self.root!r} belongs to the process that this one was forked from; start other processes before it is opened, or open another one here",
            root=self.root,
        )

    def _fail(self, error: BaseException) -> JournalFailed:
        if isinstance(self.refusal, JournalFailed):
            return self.refusal
        failure = JournalFailed(
            f"the journal {self.root!r} could not be written ({error}); what was not acknowledged may be lost. "
            "Check the disk, then start again: recovery keeps all that was acknowledged",
            root=self.root,
            errno=getattr(error, "errno", None),
        )
        self.refusal = failure
        return failure
