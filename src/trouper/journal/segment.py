"""One segment file: looking at its ends, walking its records, and telling a torn tail from damage."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

from trouper.core.values import frozen
from trouper.journal.disk import Disk, File
from trouper.journal.format import (
    BLOCK_BYTES,
    LINE_BYTES_MAX,
    TRAILER_BYTES,
    Footer,
    Header,
    Line,
    decode_trailer,
    parse_line,
    stream_of,
)

#: How a record with a barrier begins.
_BARRIER = re.compile(rb"[0-9]{1,20} [0-9]{1,7} [0-9a-f]{8}\+ \{")


class RawRecord(NamedTuple):
    """One record as the log sees it: its place, and its JSON (a blob's body already in it)."""

    seq: int
    payload: bytes


class Block(NamedTuple):
    """Records in a row: the sequence of the first, and their payloads."""

    first: int
    payloads: list[bytes]

    @property
    def last(self) -> int:
        return self.first + len(self.payloads) - 1


@frozen
class Damage:
    """Bytes that are wrong or gone. `sessions` are those known to have records there; empty means that nobody can say."""

    file: str
    offset: int
    reason: str
    sessions: tuple[str, ...] = ()

    def __str__(self) -> str:
        named = f"; sessions: {', '.join(self.sessions)}" if self.sessions else ""
        return f"{self.file!r} at byte {self.offset}: {self.reason}{named}"


@frozen
class Segment:
    """What the two ends of a segment file say. `footer` is None for a live segment, one that was never sealed."""

    path: str
    size: int
    header: Header
    header_bytes: int
    footer: Footer | None
    #: Where the records end: at the footer, or at the end of the file.
    records_end: int
    #: Why a file that has a trailer has no footer; "" if all is well.
    footer_problem: str = ""
    #: Set when only a stub is left: the path of the compressed copy, or "" when the records were dropped on purpose (J15).
    archive: str | None = None

    @property
    def number(self) -> int:
        return self.header.number

    @property
    def sealed(self) -> bool:
        return self.footer is not None

    @property
    def is_stub(self) -> bool:
        return self.archive is not None


def look(disk: Disk, path: str) -> Segment | Damage:
    """Check a segment by header, footer and length, without reading its records (J10)."""
    file = disk.open_read(path)
    try:
        return look_at(file, path)
    finally:
        file.close()


def look_at(file: File, path: str) -> Segment | Damage:
    size = file.size()
    head = file.pread(4096, 0)
    end = head.find(b"\n")
    header = Header.decode(head[:end]) if end >= 0 else None
    if header is None:
        return Damage(path, 0, "the header of the segment is damaged")
    footer, records_end, reason = look_at_end(file, size, end + 1)
    if footer is not None and (footer.first != header.first or footer.last < header.first - 1):
        return Damage(path, records_end, "the footer does not belong to the header", footer.streams)
    return Segment(path, size, header, end + 1, footer, records_end, reason)


def look_at_end(file: File, size: int, header_bytes: int) -> tuple[Footer | None, int, str]:
    """The footer, where the records end, and why a file that has a trailer has no footer."""
    offset = decode_trailer(file.pread(TRAILER_BYTES, max(0, size - TRAILER_BYTES)))
    if offset is None:
        return None, size, ""
    if not header_bytes <= offset < size - TRAILER_BYTES:
        return None, size, "the trailer points outside of the segment"
    line = file.pread(size - TRAILER_BYTES - offset, offset)
    footer = Footer.decode(line[:-1]) if line.endswith(b"\n") else None
    if footer is None:
        return None, size, "the footer of the segment is damaged"
    return footer, offset, ""


class Scan:
    """Walks the records of one file from a place whose sequence and checksum are known.

    After `blocks` is exhausted, `offset`, `last` and `checksum` tell how far every byte was right, and `problem` why it stopped there;
    None means that it came to the end, or to a footer.
    """

    __slots__ = ("_file", "checksum", "end", "last", "offset", "problem", "records")

    def __init__(self, file: File, offset: int, end: int, last: int, checksum: int) -> None:
        self._file = file
        self.offset = offset
        self.end = end
        self.last = last
        self.checksum = checksum
        self.problem: str | None = None
        self.records = 0

    def blocks(self) -> Iterator[Block]:
        """The records, each verified, one block of them for each block read. A gap line is a block of its own."""
        position = self.offset
        rest = b""
        while position < self.end:
            block = self._file.pread(min(BLOCK_BYTES, self.end - position), position)
            if not block:
                self.problem = "the file is shorter than its footer says"
                return
            position += len(block)
            # Bytes are split on LF alone: U+2028 and its kin are no line ends here.
            lines = (rest + block if rest else block).split(b"\n")
            rest = lines.pop()
            while lines:
                first = self.last + 1
                found = self._check(lines)
                if found:
                    self.records += len(found)
                    yield Block(first, found)
                if self.problem is None:
                    break
                del lines[: len(found)]
                gap = self._pass_gap(lines.pop(0))
                if gap is None:
                    return
                yield gap
            if len(rest) > LINE_BYTES_MAX and not rest.startswith(b"#"):
                self.problem = "a line is longer than a record may be"
                return
        if rest:
            self.problem = "the last line is not whole"

    def _check(self, lines: list[bytes]) -> list[bytes]:
        found: list[bytes] = []
        add = found.append
        last, checksum, offset = self.last, self.checksum, self.offset
        try:
            # This loop is what `verify` costs; it is written for speed.
            for line in lines:
                number, length, check, payload = line.split(b" ", 3)
                now = crc32(payload, checksum)
                wanted = b"%08x" % now
                if check != wanted and check != wanted + b"+":
                    self.problem = "the checksum of a record is wrong"
                    break
                if int(length) != len(payload):
                    self.problem = "the length of a record is wrong"
                    break
                if int(number) != last + 1:
                    self.problem = f"record {int(number)} stands where {last + 1} belongs"
                    break
                last += 1
                checksum = now
                offset += len(line) + 1
                add(payload)
        except ValueError:
            self.problem = "a line has not the form of a record"
        self.last, self.checksum, self.offset = last, checksum, offset
        return found

    def _pass_gap(self, raw: bytes) -> Block | None:
        """Step over a gap line that `repair` wrote; None if the line that stopped the scan is none, or a wrong one."""
        line = parse_line(raw)
        if line is None or not line.gap:
            return None
        if line.first != self.last + 1 or line.last < line.first or line.checksum != crc32(line.payload, self.checksum):
            self.problem = "a gap line is wrong"
            return None
        self.problem = None
        self.last, self.checksum = line.last, line.checksum
        self.offset += len(raw) + 1
        self.records += 1
        return Block(line.last, [line.payload])


def scan_segment(file: File, segment: Segment) -> Scan:
    """A scan of all records of a segment."""
    header = segment.header
    return Scan(file, segment.header_bytes, segment.records_end, header.first - 1, header.previous)


def scan_after(file: File, segment: Segment, after: int) -> Scan:
    """A scan that begins with record `after + 1`, found by bisection; it trusts the stored checksum of record `after`."""
    whole = scan_segment(file, segment)
    if after < segment.header.first:
        return whole
    low, high = whole.offset, whole.end
    while high - low > BLOCK_BYTES // 4:
        middle = (low + high) // 2
        found = _next_line(file, middle, high)
        if found is None:
            high = middle
        elif found[1] <= after:
            low = found[0]
        else:
            high = middle
    line = _line_at(file, low, whole.end)
    if line is None or line[0].last > after:
        return whole
    return Scan(file, low + line[1], whole.end, line[0].last, line[0].checksum)


def _next_line(file: File, start: int, end: int) -> tuple[int, int] | None:
    """Offset and sequence of the first line that begins after `start` and before `end`."""
    block = file.pread(min(4096, end - start), start)
    cut = block.find(b"\n")
    if cut < 0 or len(block) - cut < 64:
        block = file.pread(min(LINE_BYTES_MAX + 64, end - start), start)
        cut = block.find(b"\n")
    if cut < 0:
        return None
    number = block[cut + 1 : cut + 22].split(b" ", 1)[0].rpartition(b"-")[2]
    return (start + cut + 1, int(number)) if number.isdigit() else None


def _line_at(file: File, offset: int, end: int) -> tuple[Line, int] | None:
    block = file.pread(min(LINE_BYTES_MAX, end - offset), offset)
    cut = block.find(b"\n")
    line = parse_line(block[:cut]) if cut >= 0 else None
    return (line, cut + 1) if line is not None else None


@frozen
class Tail:
    """What stands behind the last good record of a live segment. `damage` is None when it is a torn tail."""

    offset: int
    size: int
    #: Whole records that were found in it, though nothing vouches for them.
    records: int
    damage: Damage | None


def judge_tail(file: File, path: str, scan: Scan, size: int, known: tuple[str, ...]) -> Tail:
    """Say whether the bytes behind a scan that stopped were torn by a crash, or are damage (J10).

    A crash leaves bytes that no sync has covered: missing, NUL or garbled, and whole records of the same batch may stand behind
    them, because a disk writes pages in any order. So a whole record behind the bad place proves nothing by itself. A barrier
    does: it was written only after everything before it was on the medium, so a bad byte before it is damage. And a crash
    never moves a line: a record that fits in form but not in place was moved by someone.
    """
    rest = file.pread(size - scan.offset, scan.offset)
    lines = rest.split(b"\n")
    lines.pop()  # Not whole.
    expected = scan.last + 1
    records = 0
    reason = ""
    streams = dict.fromkeys(known)
    for index, raw in enumerate(lines):
        line = parse_line(raw)
        in_place = index == 0 and line is not None
        if line is None:
            # A line end may be among the bad bytes; the line behind it still speaks.
            line = next((found for at in _BARRIER.finditer(raw) if (found := parse_line(raw[at.start() :]))), None)
        if line is None:
            # A footer is written only after a sync of all records; so it vouches for them, if not for itself.
            place = decode_trailer(raw + b"\n") if raw.startswith(b"#end") else None
            if (place is not None and place != scan.offset) or (index > 0 and Footer.decode(raw) is not None):
                reason = reason or f"{scan.problem}, in a segment that was sealed"
            continue
        records += 1
        streams[stream_of(line.payload)] = None
        if in_place and line.first != expected and crc32(line.payload, scan.checksum) != line.checksum:
            reason = reason or f"record {line.first} stands where {expected} belongs"
        elif line.barrier and line.first > expected:
            reason = reason or f"{scan.problem}, before record {line.first}, which was written after a sync"
    damage = Damage(path, scan.offset, reason, tuple(name for name in streams if name)) if reason else None
    return Tail(scan.offset, size - scan.offset, records, damage)
