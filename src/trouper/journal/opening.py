"""Opening a journal: lock, check, recover, and a fresh live segment to write to (J9, J10).

The order matters, and each step can be repeated after a crash in any of them: look without touching, lock, look again, keep torn bytes
aside, write a fresh live segment under the same name or the next, make its name last. Only then is anything old gone.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import json
import operator
import os
import uuid
from collections.abc import Callable

from trouper._errors import ConfigError
from trouper.core.values import changed, frozen
from trouper.journal._errors import (
    JournalError,
    JournalExists,
    JournalLocked,
    JournalNotADirectory,
    JournalReadOnly,
    JournalTooNew,
)
from trouper.journal.disk import NO_SPACE, Disk, Lock, OsDisk
from trouper.journal.files import (
    create_temporary,
    make_directory,
    put_in_place,
    read_range,
    read_whole,
    remove_temporaries,
    write_all,
    write_file,
)
from trouper.journal.format import (
    ARCHIVE_NAME,
    BLOBS_NAME,
    LOCK_NAME,
    RESERVE_NAME,
    SEGMENT_BYTES,
    SNAPSHOTS_NAME,
    TEMPORARY_SUFFIX,
    TORN_NAME,
    VERSION,
    Header,
    id_of,
    is_gap,
    segment_name,
    streams_in,
)
from trouper.journal.layout import Layout, read_layout
from trouper.journal.log import RECENT_IDS_MAX, RESERVE_BYTES, Level, LiveSegment, Log, Recovery, Torn
from trouper.journal.memory_disk import MemoryDisk
from trouper.journal.reader import check_root, damaged, opening_error
from trouper.journal.segment import Block, Damage, Segment, Tail, judge_tail, scan_after, scan_segment
from trouper.journal.snapshots import end_known, newest_snapshot

#: After a restart, at least so many of the last event ids are known still (I14).
IDS_READ = 1024
#: What a new journal takes at least: a block each for its directory, its lock and its first segment, and one to spare.
NEW_BYTES = 16 * 1024
#: How the text of a lock file begins, and what it takes at most.
_OWNER_HEAD, _OWNER_BYTES = b'{"pid": ', 32
#: A segment sealed by a clean close is gone on with, if it is smaller than this part of a full one; so many short runs make few files.
_SMALL_PART = 16


def open_log(
    root: str | os.PathLike[str],
    *,
    level: Level = "fsync",
    disk: Disk | None = None,
    segment_bytes: int = SEGMENT_BYTES,
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    redact: Callable[[bytes], bytes] | None = None,
    read_only: bool = False,
) -> Log:
    """Open a journal to append to it, making it if need be. Blocks.

    A log that cannot be appended to (opened `read_only`, damaged, on a read-only file system, written by a newer version) is returned for
    reading, with the reason in `Log.refusal`, which is also what `append` raises. What cannot even be read, or is locked, raises.
    """
    if level not in ("fsync", "write", "memory"):
        raise ConfigError(f"durability {level!r} is unknown; use 'fsync', 'write' or 'memory'", level=level)
    path = os.path.abspath(root)
    if disk is None:
        disk = MemoryDisk() if level == "memory" else OsDisk()
    opening = _Opening(disk, path, level, segment_bytes, redact)
    try:
        if read_only:
            check_root(disk, path)
            why = JournalReadOnly(
                f"the journal {path!r} was opened for reading; open it without read_only to append", root=path
            )
            return opening.read_only(read_layout(disk, path), why)
        return opening.writer(new_id)
    except OSError as error:
        raise opening_error(path, error) from error


def take_lock(disk: Disk, root: str) -> Lock:
    """The lock of a journal; `JournalLocked` names the process that has it (J9)."""
    path = os.path.join(root, LOCK_NAME)
    try:
        return disk.lock(path, json.dumps({"pid": os.getpid()}))
    except BlockingIOError:
        pid = _owner(disk, path)
        if pid == os.getpid():
            who, remedy = f"process {pid}, which is this one", "close what has it open here first"
        else:
            who, remedy = "another process" if pid is None else f"process {pid}", "stop that first"
        raise JournalLocked(
            f"the journal {root!r} is being written by {who}; {remedy}, or use another directory",
            root=root,
            pid=pid,
        ) from None


def _owner(disk: Disk, path: str) -> int | None:
    try:
        return int(json.loads(read_whole(disk, path))["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_blank(data: bytes) -> bool:
    return not data.strip(b"\0")


def _is_owner(text: bytes) -> bool:
    """Whether it is the text of a lock file, as far as a power cut has left it: some of it may be missing, and some other bytes."""
    if 2 * sum(map(operator.eq, text, _OWNER_HEAD)) >= min(len(text), len(_OWNER_HEAD)) or _is_blank(text):
        return True
    try:
        words = text.decode().split()
    except UnicodeDecodeError:
        return True
    return not all(map(str.isprintable, words))


@frozen
class _Live:
    """What the whole check of the last segment found: where its good records end, and what is behind them."""

    last: int
    checksum: int
    offset: int
    records: int
    gaps: int
    streams: dict[str, None]
    recent: dict[str, int]
    tail: Tail | None


def _cut_off(path: str, offset: int, last: int, known: int) -> Damage:
    return Damage(path, offset, f"the journal ends with record {last}, and a snapshot was made after {known}")


class _Opening:
    """The steps of opening one journal; each knows the disk, the root and the settings."""

    def __init__(
        self, disk: Disk, root: str, level: Level, segment_bytes: int, redact: Callable[[bytes], bytes] | None
    ) -> None:
        self.disk = disk
        self.root = root
        self.level = level
        self.segment_bytes = segment_bytes
        self.redact = redact
        #: There is no space: the log begins degraded.
        self.full = False

    # -- for reading

    def read_only(self, layout: Layout, refusal: JournalError) -> Log:
        last, checksum, damage = self.end_of(layout)
        if layout.live is not None and not damage and (known := self.end_known(layout.live)) > last:
            # Unless a process that writes beside us has made the snapshot since: so look again, at what is there after it.
            layout = read_layout(self.disk, self.root)
            last, checksum, damage = self.end_of(layout)
            if layout.live is not None and not damage and known > last:
                damage = (_cut_off(layout.live.path, layout.live.size, last, known),)
        live = layout.live
        recovery = Recovery(
            journal=live.header.journal if live is not None else "",
            epoch=live.header.epoch if live is not None else 0,
            last=last,
            clean=live is None or live.sealed,
            damage=damage,
        )
        return self.log(recovery, None, checksum, {}, None, refusal)

    def end_of(self, layout: Layout) -> tuple[int, int, tuple[Damage, ...]]:
        """The last record, the checksum there, and what is wrong with the segments."""
        live = layout.live
        if live is None:
            return 0, 0, layout.damage
        if live.footer is not None:
            return live.footer.last, live.footer.checksum, layout.damage
        if layout.damage:
            return live.header.first - 1, live.header.previous, layout.damage
        found = self.check_live(live)
        tail = found.tail
        return found.last, found.checksum, () if tail is None or tail.damage is None else (tail.damage,)

    def end_known(self, live: Segment) -> int:
        """How far the journal went, at least, by what its snapshots tell; 0 if they tell nothing."""
        snapshot, ignored = newest_snapshot(self.disk, self.root, live.header.journal)
        if snapshot is not None:
            snapshot.close()
        return end_known(snapshot, ignored)

    # -- for writing

    def writer(self, new_id: Callable[[], str]) -> Log:
        refused = self.before_lock()
        if refused is not None:
            return refused
        try:
            lock = take_lock(self.disk, self.root)
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
            return self.read_only(read_layout(self.disk, self.root), self.on_read_only_disk())
        try:
            log = self.recover(lock, new_id)
        except BaseException:
            lock.withdraw()
            raise
        if log.refusal is not None:
            lock.withdraw()
        return log

    def before_lock(self) -> Log | None:
        """Make the directory, or refuse before anything is touched."""
        disk, root = self.disk, self.root
        try:
            if not disk.is_dir(root):
                if disk.exists(root):
                    raise JournalNotADirectory(f"the journal {root!r} is a file; give a directory for it", root=root)
                self.check_room()
                disk.make_dirs(root)
                return None
            layout = read_layout(disk, root)
        except NotADirectoryError:
            raise JournalNotADirectory(
                f"a part of the path {root!r} is a file; give a directory for the journal", root=root
            ) from None
        if layout.too_new is not None:
            return self.read_only(layout, self.too_new(layout.too_new))
        if not layout.parts:
            self.check_free()
            self.check_room()
        return None

    def check_free(self) -> None:
        """Refuse a directory in which a new journal would write over what somebody keeps there. What a journal leaves that was not begun, or was removed, is no such thing."""
        for name, longest, is_ours in (
            (LOCK_NAME, _OWNER_BYTES, _is_owner),
            (RESERVE_NAME, RESERVE_BYTES, _is_blank),
        ):
            path = os.path.join(self.root, name)
            if not self.disk.exists(path) or self.disk.is_dir(path):
                continue
            file = self.disk.open_read(path)
            try:
                found = file.pread(longest + 1, 0)
            finally:
                file.close()
            if len(found) > longest or not is_ours(found):
                raise JournalExists(
                    f"the directory {self.root!r} holds no journal, and a file {name!r} that a new one would write over; "
                    "move that file away, or give another directory",
                    root=self.root,
                    file=path,
                )

    def check_room(self) -> None:
        """Refuse a disk on which a new journal would find no room, while there is nothing yet to clear away."""
        place = self.root
        while not self.disk.is_dir(place):
            place = os.path.dirname(place)
        if self.disk.free_bytes(place) < NEW_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), place)

    def make_root_last(self) -> None:
        """Sync the names on the way to the journal. Who made them is unknown: perhaps a process that was killed before it could."""
        path = self.root
        while (parent := os.path.dirname(path)) != path:
            try:
                self.disk.sync_dir(parent)
            except OSError as error:
                # What may not be read was not made by us, nor by one like us.
                if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL):
                    raise
            path = parent

    def recover(self, lock: Lock, new_id: Callable[[], str]) -> Log:
        layout = read_layout(self.disk, self.root)
        if layout.too_new is not None:
            return self.read_only(layout, self.too_new(layout.too_new))
        if layout.damage:
            return self.damaged(layout, layout.damage[0])
        old = layout.live
        if old is None:
            return self.create(lock, new_id())
        go_on = not old.is_stub and (not old.sealed or old.size < self.segment_bytes // _SMALL_PART)
        found = self.check_live(old, ids_only=not go_on)
        if found.tail is not None and found.tail.damage is not None:
            return self.damaged(layout, found.tail.damage)
        snapshot, ignored = newest_snapshot(self.disk, self.root, old.header.journal)
        if snapshot is not None:
            snapshot.close()
        if (known := end_known(snapshot, ignored)) > found.last:
            return self.damaged(layout, _cut_off(old.path, found.offset, found.last, known))
        self.read_older_ids(layout.segments[:-1], found)
        try:
            return self.go_on(lock, old, found, ignored, in_place=go_on)
        except OSError as error:
            if error.errno == errno.EROFS:
                return self.read_only(layout, self.on_read_only_disk())
            raise

    def check_live(self, segment: Segment, *, ids_only: bool = False) -> _Live:
        """Check every byte of the last segment; with `ids_only`, of a sealed one, read just the recent ids."""
        streams: dict[str, None] = {}
        recent: dict[str, int] = {}
        footer = segment.footer
        if segment.is_stub:
            assert footer is not None
            return _Live(footer.last, footer.checksum, 0, footer.records, footer.gaps, streams, recent, None)
        file = self.disk.open_read(segment.path)
        try:
            if ids_only and footer is not None:
                scan = scan_after(file, segment, max(0, footer.last - IDS_READ))
            else:
                scan = scan_segment(file, segment)
            gaps = 0
            known: set[bytes] = set()
            latest: collections.deque[Block] = collections.deque()
            held = 0
            for block in scan.blocks():
                streams.update(dict.fromkeys(streams_in(block.payloads, known)))
                if len(block.payloads) == 1 and is_gap(block.payloads[0]):
                    gaps += 1
                latest.append(block)
                held += len(block.payloads)
                while held - len(latest[0].payloads) >= RECENT_IDS_MAX:
                    held -= len(latest.popleft().payloads)
            for block in latest:
                for seq, payload in enumerate(block.payloads, block.first):
                    recent[id_of(payload)] = seq
            tail = None
            if footer is not None and (
                scan.problem is not None or (scan.last, scan.checksum) != (footer.last, footer.checksum)
            ):
                reason = scan.problem or "the records end before the footer says"
                tail = Tail(scan.offset, 0, 0, Damage(segment.path, scan.offset, reason, footer.streams))
            elif scan.problem is not None:
                tail = judge_tail(file, segment.path, scan, segment.size, tuple(streams))
        finally:
            file.close()
        recent.pop("", None)
        for old in list(recent)[: max(0, len(recent) - RECENT_IDS_MAX)]:
            del recent[old]
        return _Live(scan.last, scan.checksum, scan.offset, scan.records, gaps, streams, recent, tail)

    def read_older_ids(self, segments: tuple[Segment, ...], found: _Live) -> None:
        """The last segment may be young: read ids from those before it until enough are known (I14)."""
        older: list[dict[str, int]] = []
        known = len(found.recent)
        for segment in reversed(segments):
            if known >= IDS_READ or segment.is_stub:
                break
            older.append(self.check_live(segment, ids_only=True).recent)
            known += len(older[-1])
        youngest = dict(found.recent)
        found.recent.clear()
        for ids in (*reversed(older), youngest):
            found.recent.update(ids)

    def create(self, lock: Lock, journal: str) -> Log:
        self.make_root_last()
        header = Header(journal=journal, number=1, epoch=1, first=1, previous=0, level=self.level)
        live = self.fresh(header, None, 0)
        recovery = Recovery(journal=journal, epoch=1, last=0, created=True)
        return self.ready(self.log(recovery, live, 0, {}, lock, None))

    def go_on(self, lock: Lock, old: Segment, found: _Live, ignored: tuple[Damage, ...], *, in_place: bool) -> Log:
        """Keep torn bytes aside, then begin the fresh live segment with the records of the old one, or behind it."""
        torn = None
        if found.tail is not None:
            kept = self.keep_aside(old, found.tail)
            torn = Torn(old.path, found.tail.offset, found.tail.size, kept, found.tail.records)
        epoch = old.header.epoch + 1
        if in_place:
            # The old file may hold bytes that are in the page cache and not on the medium, though a sync of it would now
            # succeed; a copy that was synced after it was written cannot.
            live = self.fresh(changed(old.header, epoch=epoch, level=self.level, version=VERSION), old, found.offset)
            live.records, live.gaps, live.streams = found.records, found.gaps, found.streams
        else:
            self.seal_again(old)
            header = Header(
                journal=old.header.journal,
                number=old.number + 1,
                epoch=epoch,
                first=found.last + 1,
                previous=found.checksum,
                level=self.level,
            )
            live = self.fresh(header, None, 0)
        recovery = Recovery(
            journal=old.header.journal,
            epoch=epoch,
            last=found.last,
            clean=old.sealed,
            torn=torn,
            ignored_snapshots=ignored,
        )
        return self.ready(self.log(recovery, live, found.checksum, found.recent, lock, None))

    def seal_again(self, old: Segment) -> None:
        """Write the footer of a sealed segment once more, and sync it.

        A footer vouches for the records before it, but not for itself: its own sync may have failed, or never come. Behind it a
        new segment is about to begin, and then a missing footer would be damage.
        """
        if old.is_stub or old.footer is None:
            return
        file = self.disk.open_append(old.path)
        try:
            file.truncate(old.records_end)
            write_all(file, old.footer.encode(old.records_end))
            file.sync()
        finally:
            file.close()

    def keep_aside(self, segment: Segment, tail: Tail) -> str:
        """Put the torn bytes into a file of their own; after a crash in recovery, the same bytes are found there already."""
        folder = os.path.join(self.root, TORN_NAME)
        make_directory(self.disk, folder)
        file = self.disk.open_read(segment.path)
        try:
            torn = b"".join(read_range(file, tail.offset, segment.size))
        finally:
            file.close()
        stem = f"{segment_name(segment.number)}-{tail.offset}"
        attempt = 0
        while True:
            path = os.path.join(folder, f"{stem}.torn" if not attempt else f"{stem}-{attempt}.torn")
            if not self.disk.exists(path):
                write_file(self.disk, path, (torn,))
                return path
            if read_whole(self.disk, path) == torn:
                return path
            attempt += 1

    def fresh(self, header: Header, source: Segment | None, end: int) -> LiveSegment:
        """A new live segment; if there is no room for it, in that of the reserve."""
        try:
            return self.write_segment(header, source, end)
        except OSError as error:
            reserve = os.path.join(self.root, RESERVE_NAME)
            if error.errno not in NO_SPACE or not self.disk.exists(reserve):
                raise
            self.disk.unlink(reserve)
            self.full = True
            try:
                return self.write_segment(header, source, end)
            except OSError:
                # It was given up for nothing.
                with contextlib.suppress(OSError):
                    self.disk.reserve(reserve, RESERVE_BYTES)
                raise

    def write_segment(self, header: Header, source: Segment | None, end: int) -> LiveSegment:
        """Temporary file, sync, rename, directory sync (J7)."""
        path = os.path.join(self.root, segment_name(header.number))
        file = create_temporary(self.disk, path)
        try:
            text = header.encode()
            write_all(file, text)
            size = len(text)
            if source is not None:
                old = self.disk.open_read(source.path)
                try:
                    for block in read_range(old, source.header_bytes, end):
                        write_all(file, block)
                        size += len(block)
                finally:
                    old.close()
            file.sync()
            put_in_place(self.disk, path)
        except BaseException:
            file.close()
            with contextlib.suppress(OSError):
                self.disk.unlink(path + TEMPORARY_SUFFIX)
            raise
        return LiveSegment(file, path, header, size, 0, {})

    def ready(self, log: Log) -> Log:
        """Tidy what a crash left, and set space aside for the day when the disk is full."""
        for folder in self.folders(with_blobs=not log.recovery.clean):
            remove_temporaries(self.disk, folder)
        try:
            if not self.full:
                self.disk.reserve(os.path.join(self.root, RESERVE_NAME), RESERVE_BYTES)
                self.full = self.disk.free_bytes(self.root) < RESERVE_BYTES
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self.full = True
        log.degraded = self.full
        return log

    def folders(self, *, with_blobs: bool) -> list[str]:
        """The directories in which files are made. Those of the blobs are many, and only a writer that was killed leaves anything there."""
        inner = [os.path.join(self.root, name) for name in (SNAPSHOTS_NAME, TORN_NAME, ARCHIVE_NAME)]
        blobs = os.path.join(self.root, BLOBS_NAME)
        if with_blobs and self.disk.is_dir(blobs):
            inner += [os.path.join(blobs, name) for name in self.disk.list_dir(blobs)]
        return [self.root, *filter(self.disk.is_dir, inner)]

    # -- refusals

    def damaged(self, layout: Layout, damage: Damage) -> Log:
        log = self.read_only(layout, damaged(self.root, damage))
        log.recovery = changed(log.recovery, damage=log.recovery.damage or (damage,))
        return log

    def too_new(self, version: int) -> JournalTooNew:
        return JournalTooNew(
            f"the journal {self.root!r} has format version {version}, and this Trouper writes {VERSION}; upgrade Trouper to write to it",
            root=self.root,
            version=version,
        )

    def on_read_only_disk(self) -> JournalReadOnly:
        return JournalReadOnly(
            f"the journal {self.root!r} lies on a read-only file system; mount it writable, or give another directory",
            root=self.root,
        )

    def log(
        self,
        recovery: Recovery,
        live: LiveSegment | None,
        checksum: int,
        recent: dict[str, int],
        lock: Lock | None,
        refusal: JournalError | None,
    ) -> Log:
        return Log(
            self.disk,
            self.root,
            level=self.level,
            recovery=recovery,
            segment_bytes=self.segment_bytes,
            redact=self.redact,
            live=live,
            checksum=checksum,
            recent=recent,
            lock=lock,
            refusal=refusal,
        )
