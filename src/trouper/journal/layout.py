"""The files of a journal in order, checked against one another: nothing missing, nothing foreign, each chained to the one before."""

from __future__ import annotations

import os

from trouper.core.values import frozen
from trouper.journal.disk import Disk
from trouper.journal.format import VERSION, segment_name, segment_number, stub_number
from trouper.journal.segment import Damage, Segment, look
from trouper.journal.snapshots import end_named
from trouper.journal.stub import look_at_stub


@frozen
class Layout:
    """The segments in order, and between them what is wrong with them. The insides of the files are not read."""

    parts: tuple[Segment | Damage, ...]

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(part for part in self.parts if isinstance(part, Segment))

    @property
    def damage(self) -> tuple[Damage, ...]:
        return tuple(part for part in self.parts if isinstance(part, Damage))

    @property
    def live(self) -> Segment | None:
        """The last segment, which may have a torn tail; None for an empty journal."""
        return next((part for part in reversed(self.parts) if isinstance(part, Segment)), None)

    @property
    def too_new(self) -> int | None:
        """The version of a segment that this code must not write to, if there is one."""
        newest = max((segment.header.version for segment in self.segments), default=VERSION)
        return newest if newest > VERSION else None


def read_layout(disk: Disk, root: str) -> Layout:
    """Look at every segment by header, footer and length (J10)."""
    names: dict[int, str] = {}
    for name in disk.list_dir(root):
        number = stub_number(name)
        if number is not None:
            names.setdefault(number, name)
        number = segment_number(name)
        if number is not None:
            names[number] = name  # While archiving, both are there for a moment, and the segment is whole.
    parts: list[Segment | Damage] = []
    before: Segment | None = None
    last = max(names, default=0)
    expected = 1
    for number in sorted(names):
        if number != expected:
            which = f"segment {expected} is" if number == expected + 1 else f"segments {expected} to {number - 1} are"
            parts.append(Damage(os.path.join(root, segment_name(expected)), 0, f"{which} missing"))
        expected = number + 1
        path = os.path.join(root, names[number])
        found = look_at_stub(disk, path) if names[number].endswith(".stub") else look(disk, path)
        if isinstance(found, Damage):
            parts.append(found)
            continue
        parts.extend(_check_link(found, number, before))
        parts.append(found)
        if number != last and found.footer is None:
            reason = found.footer_problem or "a segment that is not the last has no footer: its end is cut off"
            parts.append(Damage(path, found.size, reason))
        before = found
    if not names and (known := end_named(disk, root)):
        # Not a directory that waits for its first journal: to begin one here would be to skip all of the past in silence.
        reason = f"every segment is missing, and a snapshot was made after record {known}"
        parts.append(Damage(os.path.join(root, segment_name(1)), 0, reason))
    return Layout(tuple(parts))


def _check_link(segment: Segment, number: int, before: Segment | None) -> list[Damage]:
    """What is wrong with this segment, given the one before it."""
    header, path = segment.header, segment.path
    reasons: list[str] = []
    if header.number != number:
        reasons.append(f"the file is named segment {number}, and its header says {header.number}")
    if before is not None and header.journal != before.header.journal:
        reasons.append(f"the segment belongs to another journal, {header.journal!r}")
    elif before is None and number == 1 and (header.first != 1 or header.previous != 0):
        reasons.append("the first segment does not begin with record 1")
    elif before is not None and before.header.number == number - 1 and before.footer is not None:
        if header.first != before.footer.last + 1:
            reasons.append(
                f"the segment begins with record {header.first}, the one before ends with {before.footer.last}"
            )
        elif header.previous != before.footer.checksum:
            reasons.append("the segment is not chained to the one before")
        elif header.epoch < before.header.epoch:
            reasons.append(f"the epoch falls from {before.header.epoch} to {header.epoch}")
    streams = segment.footer.streams if segment.footer is not None else ()
    return [Damage(path, 0, reason, streams) for reason in reasons]
