"""The bytes of a segment: its lines, its header, its footer, and the names of the files.

    #trouper-journal 119 0f3a91c2 {"version":1,"journal":"...","number":1,"epoch":1,"first":1,"previous":"00000000","level":"fsync"}
    1 187 5d1c22e0+ {"v":2,"type":"OpenSession","id":"...","session":"customer-42",...,"body":{...}}
    2 201 90b7e1aa {"v":2,"type":"Submit",...}
    #sealed 96 77aa01bc {"records":2,"first":1,"last":2,"checksum":"90b7e1aa","streams":["customer-42"],"gaps":0}
    #end 000000000552 3c91aa07

A record is `<sequence> <length> <checksum> <json>`: the length counts the bytes of the JSON; the checksum is the CRC-32 of
the JSON, started from the checksum before it, so that a record only fits behind its predecessor. A `+` behind the checksum is
a *barrier*: when this line was written, every record before it was on the medium. It lets recovery tell a torn tail (bytes that
no sync ever covered) from damage. `17-21` in place of a sequence is a gap that `repair` wrote for records 17 to 21.

Lines that begin with `#` are about the file and are no records: `grep -v '^#' FILE | cut -d' ' -f4- | jq .` shows the records.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple
from zlib import crc32

from trouper.core.values import frozen

#: The format that this code writes. Readers accept it and the one before (J14).
VERSION = 1

SEGMENT_BYTES = 64 * 1024 * 1024
#: The longest line of a record, envelope and LF included (J5). A longer body goes to a blob.
LINE_BYTES_MAX = 1024 * 1024
#: `<20 digits> <7 digits> <8 hex>+ ` and the LF.
ENVELOPE_BYTES_MAX = 20 + 1 + 7 + 1 + 9 + 1 + 1
PAYLOAD_BYTES_MAX = LINE_BYTES_MAX - ENVELOPE_BYTES_MAX
#: How much is read from a file at once.
BLOCK_BYTES = 1024 * 1024

HEADER_MARK = b"#trouper-journal"
FOOTER_MARK = b"#sealed"
#: `#end <12 digits> <8 hex>\n`: of fixed width, so that it is found from the end of the file.
TRAILER_BYTES = 5 + 12 + 1 + 8 + 1

LOCK_NAME = "lock"
RESERVE_NAME = "reserve"
BLOBS_NAME = "blobs"
TORN_NAME = "torn"
SNAPSHOTS_NAME = "snapshots"
ARCHIVE_NAME = "archive"
TEMPORARY_SUFFIX = ".tmp"

_SEGMENT = re.compile(r"segment-(\d{8})\.log")
_STUB = re.compile(r"segment-(\d{8})\.stub")
#: Whatever is written under a temporary name first: segments and their stubs, archived and torn ones, snapshots, blobs.
_TEMPORARY = re.compile(
    r"(?:segment-\d{8}\.(?:log(?:\.gz|-\d+(?:-\d+)?\.torn)?|stub)|snapshot-\d{20}\.snap|[0-9a-f]{64})"
    + re.escape(TEMPORARY_SUFFIX)
)
_CONTROL = re.compile(rb"(#[a-z-]+) (\d{1,9}) ([0-9a-f]{8}) (\{[\x20-\x7e]*\})")
_TRAILER = re.compile(rb"#end (\d{12}) ([0-9a-f]{8})\n")
_RECORD = re.compile(rb"(\d{1,20})(?:-(\d{1,20}))? (\d{1,7}) ([0-9a-f]{8})(\+?) (\{[\x20-\x7e]*\})", re.DOTALL)
_STREAM = re.compile(rb'"session":"([^"\\]*)"')
#: How the codec orders the head; any other order is found too, more slowly.
_HEAD = re.compile(rb'\{"v":[0-9]+,"type":"[^"\\]*","id":"[^"\\]*","session":"([^"\\]*)"')
_ID = re.compile(rb'"id":"([^"\\]*)"')
_BLOB = re.compile(rb',"blob":"([0-9a-f]{64})","size":(\d+)\}')
BODY_MARK = b',"body":'
#: How the JSON of a gap line begins.
GAP_HEAD = b'{"v":1,"type":"gap",'
_BLOB_TAIL_BYTES = len(b',"blob":"') + 64 + len(b'","size":') + 20 + 1


def segment_name(number: int) -> str:
    return f"segment-{number:08d}.log"


def segment_number(name: str) -> int | None:
    """The number of a segment from its file name; None for any other file."""
    match = _SEGMENT.fullmatch(name)
    return int(match[1]) if match else None


def stub_name(number: int) -> str:
    return f"segment-{number:08d}.stub"


def stub_number(name: str) -> int | None:
    match = _STUB.fullmatch(name)
    return int(match[1]) if match else None


def is_temporary(name: str) -> bool:
    """Whether it is the temporary name of a file of the journal's; other files of this ending are somebody's."""
    return _TEMPORARY.fullmatch(name) is not None


@frozen
class Header:
    """The first line of a segment (J7)."""

    journal: str
    number: int
    epoch: int
    first: int
    previous: int
    level: str
    version: int = VERSION

    def encode(self) -> bytes:
        return encode_control(
            HEADER_MARK,
            {
                "version": self.version,
                "journal": self.journal,
                "number": self.number,
                "epoch": self.epoch,
                "first": self.first,
                "previous": f"{self.previous:08x}",
                "level": self.level,
            },
        )

    @classmethod
    def decode(cls, line: bytes) -> Header | None:
        """The header in this line (without LF), or None if it is not a whole, unharmed header."""
        found = decode_control(HEADER_MARK, line)
        if found is None:
            return None
        try:
            return cls(
                journal=str(found["journal"]),
                number=int(found["number"]),
                epoch=int(found["epoch"]),
                first=int(found["first"]),
                previous=int(found["previous"], 16),
                level=str(found["level"]),
                version=int(found["version"]),
            )
        except (KeyError, TypeError, ValueError):
            return None


@frozen
class Footer:
    """The end of a sealed segment: what it holds, and which streams (for retention)."""

    records: int
    first: int
    last: int
    checksum: int
    streams: tuple[str, ...]
    #: How many gap lines `repair` left here.
    gaps: int = 0

    def may_hold(self, stream: str | None) -> bool:
        """Whether a reader of this stream must read the segment; None stands for all streams."""
        return stream is None or self.gaps > 0 or stream in self.streams

    def encode(self, offset: int) -> bytes:
        """The footer line and the trailer, for a footer that begins at `offset` of its file."""
        line = encode_control(
            FOOTER_MARK,
            {
                "records": self.records,
                "first": self.first,
                "last": self.last,
                "checksum": f"{self.checksum:08x}",
                "streams": list(self.streams),
                "gaps": self.gaps,
            },
        )
        return line + encode_trailer(offset)

    @classmethod
    def decode(cls, line: bytes) -> Footer | None:
        found = decode_control(FOOTER_MARK, line)
        if found is None:
            return None
        try:
            return cls(
                records=int(found["records"]),
                first=int(found["first"]),
                last=int(found["last"]),
                checksum=int(found["checksum"], 16),
                streams=tuple(str(stream) for stream in found["streams"]),
                gaps=int(found["gaps"]),
            )
        except (KeyError, TypeError, ValueError):
            return None


def encode_control(mark: bytes, fields: dict[str, Any]) -> bytes:
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=True).encode()
    return b"%b %d %08x %b\n" % (mark, len(text), crc32(text), text)


def decode_control(mark: bytes, line: bytes) -> dict[str, Any] | None:
    match = _CONTROL.fullmatch(line)
    if match is None or match[1] != mark or int(match[2]) != len(match[4]) or int(match[3], 16) != crc32(match[4]):
        return None
    try:
        fields = json.loads(match[4])
    except ValueError:
        return None
    return fields if isinstance(fields, dict) else None


def encode_trailer(offset: int) -> bytes:
    place = b"%012d" % offset
    return b"#end %b %08x\n" % (place, crc32(place))


def decode_trailer(tail: bytes) -> int | None:
    """The offset of the footer, from the last bytes of a file; None if the file is not sealed."""
    match = _TRAILER.fullmatch(tail[-TRAILER_BYTES:])
    if match is None or int(match[2], 16) != crc32(match[1]):
        return None
    return int(match[1])


class Line(NamedTuple):
    """A line that has the form of a record. Its checksum has not been compared with anything."""

    first: int
    last: int
    checksum: int
    barrier: bool
    payload: bytes
    gap: bool


def parse_line(line: bytes) -> Line | None:
    """The slow and strict parse (without LF), used where something is wrong already."""
    match = _RECORD.fullmatch(line)
    if match is None or int(match[3]) != len(match[6]):
        return None
    first = int(match[1])
    return Line(first, int(match[2] or first), int(match[4], 16), match[5] == b"+", match[6], match[2] is not None)


def streams_in(payloads: Iterable[bytes], known: set[bytes]) -> list[str]:
    """The streams of these records that are not in `known`, which they are added to. Recovery asks this of every record, so it is quick."""
    found: list[str] = []
    match_head = _HEAD.match
    for payload in payloads:
        match = match_head(payload)
        name = match[1] if match is not None else stream_of(payload).encode()
        if name not in known:
            known.add(name)
            if name:
                found.append(name.decode("ascii", "replace"))
    return found


def stream_of(payload: bytes) -> str:
    """The stream that a record belongs to: the `session` of its head; "" for a record of none."""
    head = _HEAD.match(payload)
    if head is not None:
        return head[1].decode("ascii", "replace")
    body = payload.find(BODY_MARK)
    match = _STREAM.search(payload, 0, body if body >= 0 else len(payload))
    return match[1].decode("ascii", "replace") if match else ""


def id_of(payload: bytes) -> str:
    """The event id of a record; "" if it has none."""
    body = payload.find(BODY_MARK)
    match = _ID.search(payload, 0, body if body >= 0 else len(payload))
    return match[1].decode("ascii", "replace") if match else ""


def is_gap(payload: bytes) -> bool:
    return payload.startswith(GAP_HEAD)


def blob_of(payload: bytes) -> tuple[str, int, bytes] | None:
    """Digest, size and head of a record whose body lies in a blob; None for one that holds its body itself."""
    # A body ends in a quote, a bracket or a literal; only `"size":N}` of a blob and a bare number end in a digit and a brace.
    if not payload[-2:-1].isdigit():
        return None
    match = _BLOB.search(payload, max(0, len(payload) - _BLOB_TAIL_BYTES))
    if match is None or match.end() != len(payload):
        return None
    return match[1].decode(), int(match[2]), payload[: match.start()]
