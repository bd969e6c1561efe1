"""A stub stands in for a segment that was archived or dropped on purpose, and keeps the chain whole (J15)."""

from __future__ import annotations

import os

from trouper.journal.disk import Disk
from trouper.journal.format import ARCHIVE_NAME, Footer, Header, decode_control, encode_control
from trouper.journal.segment import Damage, Segment

STUB_MARK = b"#stub"


def encode_stub(segment: Segment, archive: str | None, digest: str) -> bytes:
    """The one line of a stub. `archive` is the file name of the compressed copy; None when the records are dropped."""
    header, footer = segment.header, segment.footer
    assert footer is not None, "only a sealed segment is archived"
    return encode_control(
        STUB_MARK,
        {
            "version": header.version,
            "journal": header.journal,
            "number": header.number,
            "epoch": header.epoch,
            "first": header.first,
            "previous": f"{header.previous:08x}",
            "level": header.level,
            "records": footer.records,
            "last": footer.last,
            "checksum": f"{footer.checksum:08x}",
            "streams": list(footer.streams),
            "gaps": footer.gaps,
            "archive": archive,
            "digest": digest,
        },
    )


def read_stub(disk: Disk, path: str) -> dict[str, object] | None:
    file = disk.open_read(path)
    try:
        text = file.pread(file.size(), 0)
    finally:
        file.close()
    return decode_control(STUB_MARK, text[:-1]) if text.endswith(b"\n") else None


def look_at_stub(disk: Disk, path: str) -> Segment | Damage:
    found = read_stub(disk, path)
    if found is None:
        return Damage(path, 0, "the stub of an archived segment is damaged")
    try:
        header = Header(
            journal=str(found["journal"]),
            number=int(str(found["number"])),
            epoch=int(str(found["epoch"])),
            first=int(str(found["first"])),
            previous=int(str(found["previous"]), 16),
            level=str(found["level"]),
            version=int(str(found["version"])),
        )
        streams = found["streams"]
        footer = Footer(
            records=int(str(found["records"])),
            first=header.first,
            last=int(str(found["last"])),
            checksum=int(str(found["checksum"]), 16),
            streams=tuple(str(name) for name in streams) if isinstance(streams, list) else (),
            gaps=int(str(found["gaps"])),
        )
    except (KeyError, ValueError):
        return Damage(path, 0, "the stub of an archived segment lacks fields")
    archive = ""
    if found.get("archive") is not None:
        archive = os.path.join(os.path.dirname(path), ARCHIVE_NAME, str(found["archive"]))
        if not disk.exists(archive):
            return Damage(archive, 0, f"the archive of segment {header.number} is missing", footer.streams)
    return Segment(path, 0, header, 0, footer, 0, archive=archive)
