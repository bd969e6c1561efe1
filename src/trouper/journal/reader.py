"""Reading a journal: needs no lock, and works while another process writes (J9)."""

from __future__ import annotations

import errno
import gzip
import os
import zlib
from collections.abc import Callable, Iterator

from trouper.journal._errors import (
    JournalDamaged,
    JournalError,
    JournalFailed,
    JournalFull,
    JournalNotADirectory,
    JournalNotFound,
    JournalReadOnly,
    JournalUnreadable,
)
from trouper.journal.blobs import check_blob, with_blob
from trouper.journal.disk import NO_SPACE, Disk, File, OsDisk
from trouper.journal.files import read_whole
from trouper.journal.format import blob_of, is_gap, stream_of
from trouper.journal.layout import Layout, read_layout
from trouper.journal.memory_disk import MemoryDisk
from trouper.journal.segment import Block, Damage, RawRecord, Scan, Segment, judge_tail, look_at, scan_after


def damaged(root: str, damage: Damage) -> JournalDamaged:
    """The error for a damage, with its facts and what to do about it."""
    return JournalDamaged(
        f"the journal {root!r} is damaged: {damage}; it can be read up to there, and `trouper journal repair` writes a new one "
        "without the damaged part",
        root=root,
        file=damage.file,
        offset=damage.offset,
        reason=damage.reason,
        sessions=damage.sessions,
    )


class Reader:
    """The records of a journal in order. Every record is checked as it is read; damage raises, and is never skipped."""

    def __init__(self, disk: Disk, root: str) -> None:
        self.disk = disk
        self.root = root

    def layout(self) -> Layout:
        return read_layout(self.disk, self.root)

    def has_dropped(self, stream: str) -> bool:
        """Whether some of the stream's records were dropped on purpose (J15)."""
        try:
            dropped = [segment.footer for segment in self.layout().segments if segment.archive == ""]
        except OSError as error:
            raise opening_error(self.root, error, "read") from error
        return any(footer is not None and stream in footer.streams for footer in dropped)

    def records(self, after: int = 0, stream: str | None = None) -> Iterator[RawRecord]:
        """Records with a sequence above `after`, of one stream or of all; ends at the last one that is written."""
        return (record for record in self.paced_records(after, stream) if record is not None)

    def paced_records(self, after: int = 0, stream: str | None = None) -> Iterator[RawRecord | None]:
        """The same, with a `None` wherever a block was read: a moment at which others may run, however rare the stream's records are."""
        return self._records(after, stream, self._resolved)

    def lines(self, after: int = 0) -> Iterator[RawRecord]:
        """All of them as their segments have them. No blob is read: to whoever asks only whose they are, one that is missing is no matter."""
        return (record for record in self._records(after, None, bytes) if record is not None)

    def _records(
        self, after: int, stream: str | None, resolved: Callable[[bytes], bytes]
    ) -> Iterator[RawRecord | None]:
        mark = b'"session":"%b"' % stream.encode() if stream is not None else b""
        try:
            yield from self._found(after, stream, mark, resolved)
        except OSError as error:
            raise opening_error(self.root, error, "read") from error

    def _found(
        self, after: int, stream: str | None, mark: bytes, resolved: Callable[[bytes], bytes]
    ) -> Iterator[RawRecord | None]:
        while True:
            ended_sealed = False
            newest = 0
            for found in self._parts(after):
                if isinstance(found, Damage):
                    raise damaged(self.root, found)
                newest = found.header.first
                footer = found.footer
                ended_sealed = footer is not None
                if footer is not None and (footer.last <= after or found.archive == "" or not footer.may_hold(stream)):
                    after = max(after, footer.last)
                    continue
                for block in self._blocks(found, after):
                    for seq, payload in enumerate(block.payloads, block.first):
                        after = seq
                        # A gap concerns whoever reads: nobody knows whose records it held.
                        # `find`, not `in`: to look for bytes in bytes, `in` first tries a number, and pays for the exception.
                        if (
                            stream is None
                            or (payload.find(mark) >= 0 and stream_of(payload) == stream)
                            or is_gap(payload)
                        ):
                            yield RawRecord(seq, resolved(payload))
                    yield None
            # A writer may have sealed what was its live segment while we read it; then there is more behind it.
            if not ended_sealed or not self._has_more(after, newest):
                return

    def _parts(self, after: int) -> list[Segment | Damage]:
        """What must be read for records above `after`, in order."""
        parts = self.layout().parts
        start = 0
        for index, part in enumerate(parts):
            if isinstance(part, Segment) and part.header.first <= after + 1:
                start = index
        return list(parts[start:])

    def _has_more(self, after: int, newest: int) -> bool:
        """Whether there is a segment behind the newest one that was read. One that was sealed without a record is not more."""
        live = self.layout().live
        return live is not None and live.header.first > max(after, newest) and live.size > live.header_bytes

    def _blocks(self, segment: Segment, after: int) -> Iterator[Block]:
        file = self.open_segment(segment)
        try:
            if segment.archive:
                inner = look_inside(file, segment)
                if isinstance(inner, Damage):
                    raise damaged(self.root, inner)
                segment = inner
            else:
                segment = as_opened(file, segment)
            scan = scan_after(file, segment, after)
            for block in scan.blocks():
                if block.first > after:
                    yield block
                elif block.last > after:
                    yield Block(after + 1, block.payloads[after + 1 - block.first :])
            damage = end_damage(file, segment, scan)
            if damage is not None:
                raise damaged(self.root, damage)
        finally:
            file.close()

    def raw(self, segment: Segment) -> Iterator[bytes]:
        """The payloads of one segment as they stand there, blobs not resolved."""
        for block in self._blocks(segment, 0):
            yield from block.payloads

    def open_segment(self, segment: Segment) -> File:
        """The file of a segment; that of an archived one is unpacked into memory."""
        if not segment.archive:
            return self.disk.open_read(segment.path)
        memory = MemoryDisk()
        file = memory.create("/segment")
        try:
            file.write(gzip.decompress(read_whole(self.disk, segment.archive)))
        except (OSError, EOFError, ValueError, zlib.error) as error:
            streams = segment.footer.streams if segment.footer is not None else ()
            raise damaged(
                self.root, Damage(segment.archive, 0, f"the archive cannot be unpacked: {error}", streams)
            ) from None
        return file

    def _resolved(self, payload: bytes) -> bytes:
        found = blob_of(payload)
        if found is None:
            return payload
        digest, size, head = found
        body = check_blob(self.disk, self.root, digest, size, stream_of(payload))
        if isinstance(body, Damage):
            raise damaged(self.root, body)
        return with_blob(head, body)


def look_inside(file: File, segment: Segment) -> Segment | Damage:
    """The segment in an unpacked archive, if it is the one that the stub stands for."""
    found = look_at(file, segment.archive or segment.path)
    if isinstance(found, Segment) and found.header == segment.header and found.footer == segment.footer:
        return found
    streams = segment.footer.streams if segment.footer is not None else ()
    return Damage(
        segment.archive or segment.path, 0, "the archive does not hold the segment that its stub names", streams
    )


def as_opened(file: File, segment: Segment) -> Segment:
    """The segment as it is in the open file: since it was looked at, a writer may have begun it anew under its name, or sealed it."""
    found = look_at(file, segment.path)
    same = isinstance(found, Segment) and (found.number, found.header.first) == (segment.number, segment.header.first)
    return found if same and isinstance(found, Segment) else segment


def end_damage(file: File, segment: Segment, scan: Scan) -> Damage | None:
    """What is wrong where a finished scan stopped; None at a proper end, and for a torn tail of the live segment."""
    footer = segment.footer
    if footer is not None:
        if scan.problem is None and (scan.last, scan.checksum) == (footer.last, footer.checksum):
            return None
        return Damage(
            segment.path, scan.offset, scan.problem or "the records end before the footer says", footer.streams
        )
    if scan.problem is None:
        return None
    return judge_tail(file, segment.path, scan, file.size(), ()).damage


def check_root(disk: Disk, root: str) -> None:
    """Refuse what is no directory that holds a journal, without touching anything."""
    try:
        if not disk.is_dir(root):
            if disk.exists(root):
                raise JournalNotADirectory(
                    f"the journal {root!r} is a file; give the directory that holds the segments", root=root
                )
            raise JournalNotFound(
                f"there is no journal at {root!r}; check the path, or run something there first", root=root
            )
        disk.list_dir(root)
    except NotADirectoryError:
        raise JournalNotADirectory(
            f"a part of the path {root!r} is a file; give a directory for the journal", root=root
        ) from None
    except OSError as error:
        raise opening_error(root, error) from error


def opening_error(root: str, error: OSError, what: str = "opened") -> JournalError:
    """The named error for what the system said while a journal was being opened, or read."""
    said = f"{error.strerror}: {error.filename!r}" if error.filename else str(error.strerror or error)
    kind: type[JournalError] = JournalFailed
    remedy = "check the disk and try again: what was acknowledged is kept"
    if isinstance(error, PermissionError):
        kind, remedy = JournalUnreadable, "run as its owner, or give another directory"
    elif error.errno in NO_SPACE:
        kind, remedy = JournalFull, "free some space on its disk"
    elif error.errno == errno.EROFS:
        kind, remedy = JournalReadOnly, "its file system is read-only: mount it writable, or give another directory"
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        remedy = "too many files are open: close some, or raise the limit"
    return kind(f"the journal {root!r} cannot be {what} ({said}); {remedy}", root=root, errno=error.errno)


def open_reader(root: str | os.PathLike[str], *, disk: Disk | None = None) -> Reader:
    """A reader of the journal in a directory; takes no lock and changes nothing."""
    disk = OsDisk() if disk is None else disk
    path = os.path.abspath(root)
    check_root(disk, path)
    reader = Reader(disk, path)
    try:
        if not reader.layout().parts:
            raise JournalNotFound(f"the directory {path!r} holds no journal; check the path", root=path)
    except OSError as error:
        raise opening_error(path, error) from error
    return reader
