"""Snapshots: the state after some record, in named sections, so that start-up need not fold the whole past (J13).

A snapshot is optional and can always be built again; one that is not whole is passed over, never trusted. It is one file: a header
line, the payloads, an index of (name, tag, offset, size, checksum), and a trailer that finds the index. Opening reads header and
index; payloads are read one by one, when somebody asks.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from zlib import crc32

from trouper._errors import UsageError
from trouper.journal._errors import JournalDamaged
from trouper.journal.disk import Disk, File
from trouper.journal.files import make_directory, read_range, write_file
from trouper.journal.format import (
    BLOCK_BYTES,
    SNAPSHOTS_NAME,
    TRAILER_BYTES,
    decode_control,
    decode_trailer,
    encode_control,
    encode_trailer,
)
from trouper.journal.segment import Damage

SNAPSHOT_VERSION = 1
#: How many snapshots are kept: one to use, one for the case that it turns out to be damaged.
SNAPSHOTS_KEPT = 2

_HEADER_MARK = b"#trouper-snapshot"
_INDEX_MARK = b"#index"
_NAME = re.compile(r"snapshot-(\d{20})\.snap")
_FOREIGN = "the snapshot belongs to another journal"


class Snapshot:
    """An open snapshot: its index is in memory, its payloads are on the disk."""

    def __init__(
        self, file: File, path: str, seq: int, covers: int, index: dict[str, tuple[int, int, int]], tags: dict[str, str]
    ) -> None:
        self.path = path
        #: The state is that after this record.
        self.seq = seq
        #: Some sections may have taken in records up to this one.
        self.covers = covers
        #: The name of each section and its tag, which means what the writer of the snapshot wants.
        self.sections: Mapping[str, str] = MappingProxyType(tags)
        #: Bytes of all payloads.
        self.size = sum(size for _, size, _ in index.values())
        self._file = file
        self._index = index

    def read(self, name: str) -> bytes:
        """The payload of a section, checked; `KeyError` if there is none, `JournalDamaged` if it is not what was written."""
        offset, size, checksum = self._index[name]
        try:
            payload = b"".join(read_range(self._file, offset, offset + size))
        except OSError:
            payload = b""
        if len(payload) != size or crc32(payload) != checksum:
            raise JournalDamaged(
                f"section {name!r} of the snapshot {self.path!r} is damaged; build the state from the records instead, and delete the file",
                file=self.path,
                offset=offset,
                reason="a section of a snapshot is damaged",
                sessions=(name,),
            )
        return payload

    def spoilt(self) -> tuple[str, ...]:
        """The sections that are not what was written. Reads all of them."""
        return tuple(name for damage in self.damage() for name in damage.sessions)

    def damage(self) -> tuple[Damage, ...]:
        """What is wrong with each of those, and where."""
        found: list[Damage] = []
        for name, (offset, _, _) in self._index.items():
            try:
                self.read(name)
            except JournalDamaged as error:
                found.append(Damage(self.path, offset, str(error.facts["reason"]), (name,)))
        return tuple(found)

    def close(self) -> None:
        self._file.close()

    def __del__(self) -> None:
        # A program that writes a snapshot now and then must not collect the files of those that nobody reads any more.
        self._file.close()


def write_snapshot(
    disk: Disk,
    root: str,
    journal: str,
    seq: int,
    covers: int,
    sections: Iterable[tuple[str, str, bytes | None]],
    previous: Snapshot | None,
) -> str:
    """Write a snapshot, atomically, and forget all but the newest few."""
    folder = os.path.join(root, SNAPSHOTS_NAME)
    make_directory(disk, folder)
    path = os.path.join(folder, f"snapshot-{seq:020d}.snap")
    write_file(disk, path, _encode(journal, seq, covers, sections, previous))
    names = [name for name in disk.list_dir(folder) if _NAME.fullmatch(name)]
    for name in names[:-SNAPSHOTS_KEPT]:
        with contextlib.suppress(OSError):  # To forget one is a nicety.
            disk.unlink(os.path.join(folder, name))
    return path


def _encode(
    journal: str, seq: int, covers: int, sections: Iterable[tuple[str, str, bytes | None]], previous: Snapshot | None
) -> Iterator[bytes]:
    facts = {"version": SNAPSHOT_VERSION, "journal": journal, "seq": seq}
    if covers != seq:
        facts["covers"] = covers
    header = encode_control(_HEADER_MARK, facts)
    buffer = bytearray(header)
    offset = len(header)
    index: list[tuple[str, str, int, int, int]] = []
    for name, tag, given in sections:
        payload = given
        if payload is None:
            if previous is None or name not in previous.sections:
                raise UsageError(
                    f"section {name!r} is in no earlier snapshot to copy from; give its payload", name=name
                )
            payload = previous.read(name)
        index.append((name, tag, offset, len(payload), crc32(payload)))
        buffer += payload
        buffer += b"\n"
        offset += len(payload) + 1
        if len(buffer) >= BLOCK_BYTES:
            yield bytes(buffer)
            buffer.clear()
    buffer += encode_control(_INDEX_MARK, {"sections": index})
    buffer += encode_trailer(offset)
    yield bytes(buffer)


def newest_snapshot(disk: Disk, root: str, journal: str) -> tuple[Snapshot | None, tuple[Damage, ...]]:
    """The newest snapshot that is whole, and those that were passed over for it."""
    folder = os.path.join(root, SNAPSHOTS_NAME)
    ignored: list[Damage] = []
    if disk.is_dir(folder):
        for name in reversed(disk.list_dir(folder)):
            if _NAME.fullmatch(name):
                found = open_snapshot(disk, os.path.join(folder, name), journal)
                if isinstance(found, Snapshot):
                    return found, tuple(ignored)
                ignored.append(found)
    return None, tuple(ignored)


def end_known(snapshot: Snapshot | None, ignored: tuple[Damage, ...]) -> int:
    """The last record that a snapshot of this journal has taken in, or was made after: so far the journal went, at least. 0 if there is none.

    The records were synced before the snapshot got its name; so the name of one that is damaged still vouches for them.
    """
    known = [snapshot.covers] if snapshot is not None else []
    for damage in ignored:
        name = _NAME.fullmatch(os.path.basename(damage.file))
        if name is not None and damage.reason != _FOREIGN:
            known.append(int(name[1]))
    return max(known, default=0)


def end_named(disk: Disk, root: str) -> int:
    """The last record that some snapshot in the directory was made after, by its name alone; 0 if there is none."""
    folder = os.path.join(root, SNAPSHOTS_NAME)
    names = map(_NAME.fullmatch, disk.list_dir(folder)) if disk.is_dir(folder) else ()
    return max((int(name[1]) for name in names if name is not None), default=0)


def open_snapshot(disk: Disk, path: str, journal: str) -> Snapshot | Damage:
    """A snapshot by its header, index and length; or what is wrong with it."""
    try:
        file = disk.open_read(path)
    except OSError as error:
        return Damage(path, 0, f"the snapshot cannot be opened: {error.strerror}")
    try:
        found = _open(file, path, journal)
    except OSError as error:
        found = Damage(path, 0, f"the snapshot cannot be read: {error.strerror}")
    if isinstance(found, Damage):
        file.close()
    return found


def _open(file: File, path: str, journal: str) -> Snapshot | Damage:
    size = file.size()
    head = file.pread(1024, 0)
    header = decode_control(_HEADER_MARK, head[: max(0, head.find(b"\n"))])
    if header is None:
        return Damage(path, 0, "the header of the snapshot is damaged")
    if header.get("version") != SNAPSHOT_VERSION:
        return Damage(
            path, 0, f"the snapshot has version {header.get('version')!r}, and this Trouper reads {SNAPSHOT_VERSION}"
        )
    if header.get("journal") != journal:
        return Damage(path, 0, _FOREIGN)
    place = decode_trailer(file.pread(TRAILER_BYTES, max(0, size - TRAILER_BYTES)))
    if place is None or place >= size:
        return Damage(path, size, "the snapshot is cut off")
    line = b"".join(read_range(file, place, size - TRAILER_BYTES))
    found = decode_control(_INDEX_MARK, line[:-1])
    if found is None:
        return Damage(path, place, "the index of the snapshot is damaged")
    index: dict[str, tuple[int, int, int]] = {}
    tags: dict[str, str] = {}
    for name, tag, offset, length, checksum in found["sections"]:
        index[name] = (offset, length, checksum)
        tags[name] = tag
    seq = int(header["seq"])
    return Snapshot(file, path, seq, int(header.get("covers", seq)), index, tags)
