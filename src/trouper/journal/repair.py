"""Repair: a new journal with every record that is good, and an explicit gap for those that are not (J10).

The old journal is only read. Records keep their sequences; where some are missing, one gap line spans their sequences and says where the
damage was, and why. Bodies in blobs are copied; a record whose blob is missing or wrong becomes a gap.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from typing import cast
from zlib import crc32

from trouper.core.values import changed, frozen
from trouper.journal.blobs import check_blob, put_blob
from trouper.journal.building import building
from trouper.journal.disk import Disk, File, OsDisk
from trouper.journal.files import create_temporary, put_in_place, write_all
from trouper.journal.format import (
    GAP_HEAD,
    SEGMENT_BYTES,
    Footer,
    Header,
    blob_of,
    is_gap,
    segment_name,
    stream_of,
)
from trouper.journal.reader import Reader, open_reader, opening_error
from trouper.journal.salvage import Dropped, Gap, Salvage
from trouper.journal.segment import Block, Damage
from trouper.journal.snapshots import end_known, end_named, newest_snapshot
from trouper.journal.tolerant import TolerantDisk


@frozen
class Repaired:
    """What `repair` wrote, and what it could not save."""

    target: str
    journal: str
    records: int
    last: int
    gaps: tuple[Gap, ...]


def repair(
    root: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    disk: Disk | None = None,
    segment_bytes: int = SEGMENT_BYTES,
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    complete: Callable[[str], None] = lambda _: None,
) -> Repaired:
    """Write what is good of the journal in `root` to a new one in `target`, which must not exist yet. Of the rest of a root it knows nothing.

    The new journal gets its name when it is complete; until then it is in `target` with `.tmp` behind it. What fails, on a full disk say, leaves neither; what a killed
    process has left there is taken away. `complete` is handed the place where it is made, and puts beside it what is to be there as soon as it has its name.
    """
    disk = OsDisk() if disk is None else disk
    reader = open_reader(root, disk=cast(Disk, TolerantDisk(disk)))
    place = os.path.abspath(target)
    try:
        with building(disk, place) as unfinished:
            salvage = Salvage(reader)
            rewriting = _Rewriting(disk, unfinished, new_id(), salvage.newest_epoch() + 1, segment_bytes)
            gaps: list[Gap] = []
            disk.make_dirs(unfinished)
            try:
                rewriting.begin()
                for seq, payload, gap in _records(disk, reader, salvage, rewriting.keep_blob):
                    if gap is not None:
                        gaps.append(gap)
                    if payload:
                        rewriting.add(seq, payload, spans=gap is not None or is_gap(payload), gap=gap)
                rewriting.seal()
            finally:
                rewriting.close()
            complete(unfinished)
    except OSError as error:
        of_the_old = os.path.abspath(error.filename or place).startswith(os.path.join(reader.root, ""))
        raise opening_error(reader.root if of_the_old else place, error, "repaired") from error
    return Repaired(place, rewriting.journal, rewriting.total, rewriting.last, tuple(gaps))


def _records(
    disk: Disk, reader: Reader, salvage: Salvage, keep_blob: Callable[[str, bytes], None]
) -> Iterator[tuple[int, bytes, Gap | None]]:
    """Each record, and each gap with the payload of its line; a gap in which no record is known to be missing has no payload."""
    last = 0
    open_end: Gap | None = None
    for found in salvage.walk():
        if isinstance(found, Block):
            for seq, payload in enumerate(found.payloads, found.first):
                blob = blob_of(payload)
                if blob is not None:
                    body = check_blob(reader.disk, reader.root, blob[0], blob[1], stream_of(payload))
                    if isinstance(body, Damage):
                        gap = Gap(seq, seq, body)
                        yield seq, _payload(gap), gap
                        continue
                    keep_blob(blob[0], body)
                yield seq, payload, None
            last = found.last
        elif isinstance(found, Dropped):
            gap = Gap(found.first, found.last, Damage(reader.root, 0, "dropped by an explicit command", found.sessions))
            yield found.last, _payload(gap), gap
            last = found.last
        elif isinstance(found, Gap) and found.last >= found.first:
            yield found.last, _payload(found), found
            last = found.last
        elif isinstance(found, Gap) and found.open_end:
            open_end = open_end or found
        elif isinstance(found, Gap):
            yield found.last, b"", found
    known = _end_known(disk, reader)
    if open_end is not None:
        # How many records it cost nobody knows, so that the gap takes a sequence of its own.
        gap = changed(open_end, first=last + 1, last=max(last + 1, known))
        yield gap.last, _payload(gap), gap
    elif known > last:
        # Nothing in the segments tells that the last of them is gone; only a snapshot remembers how far they went.
        live = reader.layout().live
        file, size = (live.path, live.size) if live is not None else (reader.root, 0)
        reason = f"the journal ends with record {last}, and a snapshot was made after {known}"
        gap = Gap(last + 1, known, Damage(file, size, reason), open_end=True)
        yield known, _payload(gap), gap


def _end_known(disk: Disk, reader: Reader) -> int:
    """How far the journal went, at least, by what its snapshots tell; 0 if they tell nothing."""
    live = reader.layout().live
    if live is None:
        return end_named(disk, reader.root)
    snapshot, ignored = newest_snapshot(disk, reader.root, live.header.journal)
    if snapshot is not None:
        snapshot.close()
    return end_known(snapshot, ignored)


def _payload(gap: Gap) -> bytes:
    damage = gap.damage
    body = {
        "first": gap.first,
        "last": gap.last,
        "file": damage.file,
        "offset": damage.offset,
        "reason": damage.reason,
        "sessions": list(damage.sessions),
        "unverified": gap.unverified,
    }
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=True).encode()
    return b'%b"id":"gap:%d:%d","session":"","body":%b}' % (GAP_HEAD, gap.first, gap.last, text)


class _Rewriting:
    """Lines into segments, each written to the end, synced, and only then named."""

    def __init__(self, disk: Disk, root: str, journal: str, epoch: int, segment_bytes: int) -> None:
        self.journal = journal
        self.last = 0
        self.total = 0
        self._disk = disk
        self._root = root
        self._epoch = epoch
        self._segment_bytes = segment_bytes
        self._checksum = 0
        self._number = 0
        self._lasting: set[str] = set()
        self._open: File | None = None

    def keep_blob(self, digest: str, body: bytes) -> None:
        put_blob(self._disk, self._root, digest, body, self._lasting)

    def add(self, seq: int, payload: bytes, *, spans: bool, gap: Gap | None) -> None:
        """Add a record; `spans`: the line stands for all sequences from the last one to this."""
        if self._size > self._segment_bytes and self._records:
            self.seal()
            self.begin()
        self._checksum = crc32(payload, self._checksum)
        number = b"%d-%d" % (self.last + 1, seq) if spans else b"%d" % seq
        self._lines.append(b"%b %d %08x %b\n" % (number, len(payload), self._checksum, payload))
        self._size += len(self._lines[-1])
        self._records += 1
        self._gaps += spans
        self._streams[stream_of(payload)] = None
        if gap is not None:
            self._streams.update(dict.fromkeys(gap.damage.sessions))
        self.last = seq
        self.total += not spans
        if len(self._lines) >= 1000:
            self._write()

    def seal(self) -> None:
        self._write()
        self._streams.pop("", None)
        footer = Footer(
            records=self._records,
            first=self._first,
            last=self.last,
            checksum=self._checksum,
            streams=tuple(sorted(self._streams)),
            gaps=self._gaps,
        )
        self._file.sync()
        write_all(self._file, footer.encode(self._size))
        self._file.sync()
        self._file.close()
        put_in_place(self._disk, self._path)

    def close(self) -> None:
        if self._open is not None:
            self._open.close()

    def begin(self) -> None:
        """The first segment, or the next."""
        self._number += 1
        self._first = self.last + 1
        self._path = os.path.join(self._root, segment_name(self._number))
        self._file = self._open = create_temporary(self._disk, self._path)
        header = Header(
            journal=self.journal,
            number=self._number,
            epoch=self._epoch,
            first=self._first,
            previous=self._checksum,
            level="fsync",
        )
        text = header.encode()
        write_all(self._file, text)
        self._size = len(text)
        self._records = 0
        self._gaps = 0
        self._streams: dict[str, None] = {}
        self._lines: list[bytes] = []

    def _write(self) -> None:
        write_all(self._file, b"".join(self._lines))
        self._lines = []
