"""Retention: sealed segments that hold only ended sessions can be archived or dropped, by an explicit call (J15).

A stub stays in place of the segment, so that sequences, checksums and the list of its sessions are still known, and the chain holds. An archive
is the segment as it was, gzipped; readers unpack it when somebody asks for its records. Records that were dropped are gone.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Collection, Iterator
from typing import Literal

from trouper._errors import UsageError
from trouper.core.values import frozen
from trouper.journal._errors import JournalDamaged
from trouper.journal.blobs import blob_path, digest_of
from trouper.journal.disk import Disk, Lock, OsDisk
from trouper.journal.files import make_directory, read_whole, write_file
from trouper.journal.format import ARCHIVE_NAME, blob_of, segment_name, stub_name
from trouper.journal.opening import take_lock
from trouper.journal.reader import Reader, damaged, end_damage, open_reader, opening_error
from trouper.journal.segment import Segment, scan_segment
from trouper.journal.stub import encode_stub

Fate = Literal["archive", "drop"]


@frozen
class Retired:
    """One segment that was archived or dropped."""

    number: int
    first: int
    last: int
    streams: tuple[str, ...]
    #: Where the archive is; "" for records that were dropped.
    archive: str
    bytes_before: int
    bytes_after: int
    #: How many blobs went with the dropped records.
    blobs: int = 0


def retire(
    root: str | os.PathLike[str],
    ended: Collection[str] | Callable[[str], bool],
    *,
    fate: Fate = "archive",
    before: int | None = None,
    disk: Disk | None = None,
) -> tuple[Retired, ...]:
    """Archive or drop every sealed segment all of whose streams have ended; nobody may have the journal open for writing.

    `ended` says which streams have. `before` spares segments that reach up to this sequence: give that of the newest snapshot, or records
    that it does not cover would be needed at the next start. The last segment is always spared.
    """
    if fate not in ("archive", "drop"):
        raise UsageError(f"fate {fate!r} is unknown; use 'archive' or 'drop'", fate=fate)
    disk = OsDisk() if disk is None else disk
    reader = open_reader(root, disk=disk)
    has_ended = ended if callable(ended) else frozenset(ended).__contains__
    lock: Lock | None = None
    try:
        lock = take_lock(disk, reader.root)
        return tuple(_retire_all(disk, reader, has_ended, fate, before))
    except OSError as error:
        raise opening_error(reader.root, error) from error
    finally:
        if lock is not None:
            lock.close()


def _retire_all(
    disk: Disk, reader: Reader, has_ended: Callable[[str], bool], fate: Fate, before: int | None
) -> Iterator[Retired]:
    layout = reader.layout()
    if layout.damage:
        raise damaged(reader.root, layout.damage[0])
    for segment in layout.segments[:-1]:
        footer = segment.footer
        # A segment with a gap has records of nobody knows whom.
        if footer is None or footer.gaps or segment.archive == "" or (segment.is_stub and fate == "archive"):
            continue
        if before is not None and footer.last > before:
            continue
        if all(has_ended(stream) for stream in footer.streams):
            yield _retire(disk, reader, segment, fate)


def _retire(disk: Disk, reader: Reader, segment: Segment, fate: Fate) -> Retired:
    footer = segment.footer
    assert footer is not None
    root, number = reader.root, segment.number
    blobs = _check(reader, segment)
    source = segment.archive or segment.path
    before = len(read_whole(disk, source)) if segment.is_stub else segment.size
    archive, after, digest = "", 0, ""
    if fate == "archive":
        folder = os.path.join(root, ARCHIVE_NAME)
        make_directory(disk, folder)
        archive = os.path.join(folder, segment_name(number) + ".gz")
        # No time in the header: the same segment gives the same archive.
        packed = gzip.compress(read_whole(disk, segment.path), 6, mtime=0)
        write_file(disk, archive, (packed,))
        after, digest = len(packed), digest_of(packed)
    stub = encode_stub(segment, os.path.basename(archive) if archive else None, digest)
    write_file(disk, os.path.join(root, stub_name(number)), (stub,))
    # The stub lasts; only now may the records go.
    disk.unlink(source)
    disk.sync_dir(os.path.dirname(source))
    gone = _drop_blobs(disk, reader, blobs) if fate == "drop" and blobs else 0
    return Retired(number, footer.first, footer.last, footer.streams, archive, before, after + len(stub), gone)


def _check(reader: Reader, segment: Segment) -> set[str]:
    """Read every byte before it is packed or dropped: damage must not be made to last. Returns the blobs that its records name."""
    named: set[str] = set()
    if segment.is_stub:
        for record in reader.raw(segment):
            _note_blob(record, named)
        return named
    file = reader.open_segment(segment)
    try:
        scan = scan_segment(file, segment)
        for block in scan.blocks():
            for payload in block.payloads:
                _note_blob(payload, named)
        damage = end_damage(file, segment, scan)
    finally:
        file.close()
    if damage is not None:
        raise damaged(reader.root, damage)
    return named


def _note_blob(payload: bytes, named: set[str]) -> None:
    found = blob_of(payload)
    if found is not None:
        named.add(found[0])


def _drop_blobs(disk: Disk, reader: Reader, candidates: set[str]) -> int:
    """Delete the blobs that no record names any more; two records with one body share a blob."""
    kept: set[str] = set()
    for segment in reader.layout().segments:
        if segment.archive != "":
            try:
                for payload in reader.raw(segment):
                    _note_blob(payload, kept)
            except JournalDamaged:
                return 0  # Nobody knows which blobs its lost records name; a repair may still want them.
    gone = 0
    for digest in sorted(candidates - kept):
        path = blob_path(reader.root, digest)
        if disk.exists(path):
            disk.unlink(path)
            disk.sync_dir(os.path.dirname(path))
            gone += 1
    return gone
