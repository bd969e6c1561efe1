"""Walking a journal that may be damaged: every good record, and an explicit gap wherever some are wrong or gone.

`verify` counts what this finds, `repair` writes it down. A gap ends at the next record that is known to be good: one whose checksum follows
from the one before it, which may be the checksum that a bad line still carries. Behind a line that is wholly unreadable there is nothing to follow from;
the first record there is taken if its JSON is whole, and the gap names it as unverified. A segment whose header is unreadable is taken if its neighbours, or what is left of the header, show that it belongs here:
its footer and its lines tell where it begins.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from zlib import crc32

from trouper.core.values import changed, frozen
from trouper.journal._errors import JournalDamaged
from trouper.journal.disk import File
from trouper.journal.format import LINE_BYTES_MAX, Header, Line, is_gap, parse_line, segment_number, stream_of
from trouper.journal.reader import Reader, as_opened, look_inside
from trouper.journal.segment import Block, Damage, Scan, Segment, judge_tail, look_at_end, scan_segment

#: What a damaged header may still say. Neither is believed: an epoch may be too high, and a checksum must fit the record behind it.
_EPOCH = re.compile(rb'"epoch":([0-9]{1,9})')
_PREVIOUS = re.compile(rb'"previous":"([0-9a-f]{8})"')
#: The beginning of a line whose JSON may be unreadable: the last of its sequences, and its checksum.
_ENVELOPE = re.compile(rb"(?:(?:\d{1,20}-)?(\d{1,20}) )?[^{]*?([0-9a-f]{8})\+? ")


@frozen
class Gap:
    """Records `first` to `last` are wrong or gone; `damage` says where and why. `last` is `first - 1` if none is known to be missing."""

    first: int
    last: int
    damage: Damage
    #: The record behind the gap, if nothing vouches for it.
    unverified: int | None = None
    #: Nothing good comes behind it, and nobody knows how many records it cost.
    open_end: bool = False


@frozen
class TornTail:
    """What a crash left at the end of the live segment: no damage, and no record."""

    file: str
    offset: int
    size: int


@frozen
class Dropped:
    """Records that an explicit command dropped (J15): no damage."""

    first: int
    last: int
    sessions: tuple[str, ...]


Found = Block | Gap | TornTail | Dropped


class Salvage:
    """One walk over all segments. `last` and `checksum` are those of the last good record; `segments` and `bytes` count what was read."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.last = 0
        self.checksum = 0
        self.segments = 0
        self.bytes = 0

    def newest_epoch(self) -> int:
        """The newest epoch of any segment; 0 if there is none."""
        parts, _ = self._parts()
        return max((part.header.epoch for part in parts if isinstance(part, Segment)), default=0)

    def walk(self) -> Iterator[Found]:
        parts, restored = self._parts()
        # What is wrong with names, ends and links of files; each is told once, with the records that it cost, if any.
        told = [part for part in parts if isinstance(part, Damage)]
        segments = _in_order([part for part in parts if isinstance(part, Segment)])
        paths = {segment.path for segment in segments}
        end = ""
        for segment in segments:
            header = segment.header
            if header.first <= self.last:
                told.append(Damage(segment.path, 0, f"the segment repeats records from {header.first}"))
                continue
            self.segments += 1
            end = max(end, segment.path)
            is_last = segment is parts[-1]
            if segment.path in restored:
                yield Gap(self.last + 1, self.last, restored[segment.path])
                # A crash tears no header: what is bad there is no torn tail.
                is_last = is_last and segment.header_bytes > 0
                if header.first == self.last + 1:
                    # Better than what is left of the header.
                    segment = changed(segment, header=changed(header, previous=self.checksum))
            if header.first > self.last + 1:
                damage = next((each for each in told if each.file not in paths), told[0] if told else None)
                if damage is not None:
                    told.remove(damage)
                else:
                    damage = Damage(segment.path, 0, f"records {self.last + 1} to {header.first - 1} are missing")
                yield self._gap_until(header.first - 1, damage)
            self.checksum = segment.header.previous
            yield from self._segment(segment, is_last=is_last)
        for damage in told:
            # A file behind the last good one may have held any number of records.
            yield Gap(self.last + 1, self.last, damage, open_end=damage.file > end)

    def _parts(self) -> tuple[list[Segment | Damage], dict[str, Damage]]:
        """The layout, with each segment that can be read in spite of its header; and, by path, what is wrong with those."""
        layout = self._reader.layout()
        sound = {segment.path for segment in layout.segments}
        ours = _in_order(list(layout.segments))
        journal = ours[0].header.journal if ours else ""
        numbered = {segment.number: segment for segment in ours}
        parts: list[Segment | Damage] = []
        restored: dict[str, Damage] = {}
        for part in layout.parts:
            number = segment_number(os.path.basename(part.file)) if isinstance(part, Damage) else None
            if isinstance(part, Damage) and number is not None and part.offset == 0 and part.file not in sound:
                guess = Header(journal=journal, number=number, epoch=0, first=0, previous=0, level="")
                found = self._restore(guess, part.file, numbered.get(number - 1), numbered.get(number + 1))
                if found is not None:
                    numbered[number] = found
                    streams = found.footer.streams if found.footer is not None else ()
                    restored[part.file] = changed(part, sessions=streams)
                    parts.append(found)
                    continue
            parts.append(part)
        return parts, restored

    def _restore(self, guess: Header, path: str, before: Segment | None, after: Segment | None) -> Segment | None:
        """A segment whose header is damaged, from its footer, its lines and its neighbours; None if nothing shows that it belongs here."""
        try:
            file = self._reader.open_segment(Segment(path, 0, guess, 0, None, 0))
        except FileNotFoundError:
            return None
        try:
            size = file.size()
            head = file.pread(4096, 0)
            start = head.find(b"\n") + 1
            footer, end, problem = look_at_end(file, size, start)
            line = _line_at(file, start, end)
            if footer is not None:
                first = footer.first
            elif before is not None and before.footer is not None:
                first = before.footer.last + 1
            elif guess.number == 1:
                first = 1
            elif line is not None:
                first = line.first
            else:
                return None
            if footer is not None and after is not None and after.header.first == footer.last + 1:
                belongs = after.header.previous == footer.checksum
            elif guess.journal.encode() in head[:start]:
                belongs = line is not None or footer is not None
            else:
                previous = before.footer.checksum if before is not None and before.footer is not None else 0
                belongs = next(Scan(file, start, end, first - 1, previous).blocks(), None) is not None
            if not belongs:
                return None
            epochs = [int(number) for number in _EPOCH.findall(head[:start])]
            epoch = max([*epochs, *(each.header.epoch for each in (before, after) if each is not None)], default=1)
            said = _PREVIOUS.search(head[:start])
            header = changed(guess, first=first, epoch=epoch, previous=int(said[1], 16) if said else 0)
            # Without a record behind it, nobody knows where the header ends; then its line is a bad one like any other.
            start = start if line is not None else 0
            return Segment(path, size, header, start, footer, end, problem)
        finally:
            file.close()

    def _gap_until(self, last: int, damage: Damage) -> Gap:
        gap = Gap(self.last + 1, max(last, self.last), damage)
        self.last = gap.last
        return gap

    def _segment(self, segment: Segment, *, is_last: bool) -> Iterator[Found]:
        if segment.archive == "" and segment.footer is not None:
            footer = segment.footer
            self.last, self.checksum = footer.last, footer.checksum
            yield Dropped(footer.first, footer.last, footer.streams)
            return
        try:
            file = self._reader.open_segment(segment)
        except JournalDamaged as error:
            assert segment.footer is not None
            damage = Damage(error.facts["file"], 0, error.facts["reason"], segment.footer.streams)
            yield self._gap_until(segment.footer.last, damage)
            self.checksum = segment.footer.checksum
            return
        try:
            if segment.archive:
                inner = look_inside(file, segment)
                if isinstance(inner, Damage):
                    yield Gap(self.last + 1, self.last, inner)
                    return
                segment = inner
            elif segment.header.level:  # One whose header was restored has none to look at.
                segment = as_opened(file, segment)
            self.bytes += segment.size
            yield from self._records(file, segment, is_last=is_last)
        finally:
            file.close()

    def _records(self, file: File, segment: Segment, *, is_last: bool) -> Iterator[Found]:
        scan = scan_segment(file, segment)
        footer = segment.footer
        while True:
            for block in scan.blocks():
                self.last, self.checksum = block.last, scan.checksum
                yield block
            self.last, self.checksum = max(self.last, scan.last), scan.checksum
            if scan.problem is None:
                break
            if footer is None and is_last:
                tail = judge_tail(file, segment.path, scan, segment.size, ())
                if tail.damage is None:
                    yield TornTail(segment.path, tail.offset, tail.size)
                    return
            found = self._resume(file, segment, scan)
            if found is None:
                if footer is None:
                    yield Gap(
                        self.last + 1, self.last, Damage(segment.path, scan.offset, scan.problem), open_end=is_last
                    )
                    return
                yield self._gap_until(footer.last, Damage(segment.path, scan.offset, scan.problem, footer.streams))
                self.checksum = footer.checksum
                return
            gap, taken, scan = found
            yield gap
            self.last = gap.last
            if taken is not None:
                self.last = taken.last
                yield taken
        if footer is not None and (scan.last, scan.checksum) != (footer.last, footer.checksum):
            damage = Damage(segment.path, scan.offset, "the records end before the footer says", footer.streams)
            yield self._gap_until(footer.last, damage)
            self.checksum = footer.checksum

    def _resume(self, file: File, segment: Segment, scan: Scan) -> tuple[Gap, Block | None, Scan] | None:
        """Behind a bad place: the gap, what can be taken without proof, and a scan from where the chain holds again."""
        size = segment.records_end
        rest = file.pread(size - scan.offset, scan.offset)
        position = 0
        streams: dict[str, None] = {}
        # What the line before says of itself: its sequence, and the checksums that it may have.
        number = scan.last
        checksums: tuple[int, ...] = (scan.checksum,)
        while (cut := rest.find(b"\n", position)) >= 0:
            raw = rest[position:cut].lstrip(b"\0")
            start = position
            position = cut + 1
            line = parse_line(raw)
            before, follows = number, checksums
            number, checksums = _carried(raw, follows)
            if line is None or line.first <= scan.last:
                continue
            after = Scan(file, scan.offset + position, size, line.last, line.checksum)
            if start == 0:
                # The bad line itself has form: only its checksum can be trusted, and only if the next one follows from it.
                if next(after.blocks(), None) is None:
                    continue
                gap = Gap(scan.last + 1, line.last, self._damage(segment, scan, {stream_of(line.payload): None}))
                again = Scan(file, scan.offset + position, size, line.last, line.checksum)
                return gap, None, again
            streams[stream_of(line.payload)] = None
            if not _is_json(line.payload) or is_gap(line.payload):
                continue
            proven = any(crc32(line.payload, each) == line.checksum for each in follows)
            if follows and before in (-1, line.first - 1) and not proven:
                continue  # It does not follow from the line before: nobody knows which of the two is wrong here.
            unverified = None if proven else line.last
            gap = Gap(scan.last + 1, line.first - 1, self._damage(segment, scan, streams), unverified=unverified)
            return gap, Block(line.last, [line.payload]), after
        return None

    def _damage(self, segment: Segment, scan: Scan, streams: dict[str, None]) -> Damage:
        names = (
            segment.footer.streams if segment.footer is not None else tuple(sorted(name for name in streams if name))
        )
        return Damage(segment.path, scan.offset, scan.problem or "damaged", names)


def _in_order(segments: list[Segment]) -> list[Segment]:
    """The segments that are of one journal, by what they hold and not by how their files are named."""
    ids = [segment.header.journal for segment in segments]
    journal = max(ids, key=ids.count, default="")
    return sorted(
        (segment for segment in segments if segment.header.journal == journal), key=lambda segment: segment.header.first
    )


def _line_at(file: File, offset: int, end: int) -> Line | None:
    """The line that begins here, if it has the form of a record."""
    block = file.pread(max(0, min(LINE_BYTES_MAX, end - offset)), offset)
    cut = block.find(b"\n")
    return parse_line(block[:cut]) if cut >= 0 else None


def _carried(raw: bytes, follows: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """The sequence of a line that may be damaged, -1 if it cannot be read; and what its checksum may be: what it says, or what its payload says behind the line before."""
    said = _ENVELOPE.match(raw)
    if said is None:
        return -1, ()
    number = int(said[1]) if said[1] is not None else -1
    return number, (int(said[2], 16), *(crc32(raw[said.end() :], each) for each in follows[:1]))


def _is_json(payload: bytes) -> bool:
    try:
        json.loads(payload)
    except ValueError:
        return False
    return True
