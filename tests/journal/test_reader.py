"""Reading: from any place, by stream, while a writer runs (J9, J10)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal_workload import ROOT, entry, open_small

from trouper.journal import JournalNotFound, Log, open_log, open_reader, verify
from trouper.journal.format import BLOCK_BYTES, id_of
from trouper.testing import CrashDisk


def grown(disk: CrashDisk, records: int, *, segment_bytes: int = 4096) -> Log:
    log = open_log("/j", disk=disk, segment_bytes=segment_bytes)
    for number in range(records):
        log.append(entry(number, stream=f"s{number % 5}", body=json.dumps("x" * (number * 37 % 300)).encode()))
        if number % 3 == 0:
            log.sync()
    log.sync()
    return log


def test_reading_begins_behind_any_sequence() -> None:
    log = grown(CrashDisk(), 100)
    for after in range(101):
        assert [record.seq for record in log.records(after)] == list(range(after + 1, 101))


def test_the_place_is_found_by_bisection_in_a_large_segment(tmp_path: Path) -> None:
    """J13: a reader that resumes reads what it asked for, not what is before it."""
    log = open_log(tmp_path / "j")
    for number in range(9000):
        log.append(entry(number, body=b'"%b"' % (b"x" * (number % 700))))
    log.sync()
    read = 0
    reader = open_reader(tmp_path / "j")

    class Counting:
        def __init__(self, file: object) -> None:
            self._file = file

        def pread(self, size: int, offset: int) -> bytes:
            nonlocal read
            data: bytes = self._file.pread(size, offset)  # type: ignore[attr-defined]
            read += len(data)
            return data

        def __getattr__(self, name: str) -> object:
            return getattr(self._file, name)

    opened = reader.open_segment
    reader.open_segment = lambda segment: Counting(opened(segment))  # type: ignore[method-assign,assignment,return-value]
    for after in (8990, 8999):
        read = 0
        assert [record.seq for record in reader.records(after)] == list(range(after + 1, 9001))
        assert read < 2.5 * BLOCK_BYTES
    for after in (1, 4000, 7777):
        assert next(iter(reader.records(after))).seq == after + 1
    log.close()


def test_a_stream_is_read_without_the_others() -> None:
    log = grown(CrashDisk(), 60)
    found = [json.loads(record.payload)["id"] for record in log.records(stream="s3")]
    assert found == [f"e{n}" for n in range(60) if n % 5 == 3]
    assert list(log.records(stream="nobody")) == []


def test_sealed_segments_without_the_stream_are_not_opened() -> None:
    """The footer lists the streams of its segment."""
    disk = CrashDisk()
    log = open_log("/j", disk=disk, segment_bytes=1000)
    for number in range(40):
        log.append(entry(number, stream="late" if number > 30 else "early"))
        log.sync()
    layout = log._reader.layout()
    assert ["late" in segment.footer.streams for segment in layout.segments if segment.footer].count(False) >= 2
    # Harm in a segment that the stream is not in does not concern its reader.
    first = layout.segments[0].path
    data = bytearray(disk.read_bytes(first))
    data[300] ^= 1
    disk.write_bytes(first, bytes(data))
    assert len(list(log.records(stream="late"))) == 9


def test_a_reader_sees_what_a_writer_has_written_and_goes_on_from_there() -> None:
    disk = CrashDisk()
    log = open_log("/j", disk=disk, segment_bytes=800)
    reader = open_reader("/j", disk=disk.process())
    seen: list[int] = []
    for number in range(30):
        log.append(entry(number))
        log.flush()
        seen.extend(record.seq for record in reader.records(seen[-1] if seen else 0))
        assert seen == list(range(1, number + 2))


def test_a_reader_in_mid_iteration_follows_the_writer_over_a_cut() -> None:
    disk = CrashDisk()
    log = open_log("/j", disk=disk, segment_bytes=800)
    log.append(entry(0))
    log.sync()
    reading = open_reader("/j", disk=disk.process()).records()
    assert next(reading).seq == 1
    for number in range(1, 30):
        log.append(entry(number))
        log.sync()
    # What it had read ahead ends in the old segment; the ones behind it were made since.
    found = [record.seq for record in reading]
    assert found == list(range(2, 2 + len(found)))
    assert [record.seq for record in open_reader("/j", disk=disk).records(1 + len(found))][-1:] in ([30], [])


def test_a_half_written_last_line_is_the_end_for_a_reader() -> None:
    """A writer in mid-write is no damage."""
    disk = CrashDisk()
    log = grown(disk, 10)
    path = log._reader.layout().segments[-1].path
    data = disk.read_bytes(path)
    for cut in range(1, 60):
        half = disk.fork()
        half.write_bytes(path, data[:-cut])
        assert [record.seq for record in open_reader("/j", disk=half).records()] == list(range(1, 10))


def test_an_empty_directory_is_no_journal(tmp_path: Path) -> None:
    with pytest.raises(JournalNotFound, match="holds no journal"):
        open_reader(tmp_path)


@settings(max_examples=40, deadline=None)
@given(bodies=st.lists(st.text(max_size=50), max_size=30), after=st.integers(0, 31))
def test_any_text_comes_back_as_it_was(bodies: list[str], after: int) -> None:
    """J5: lines are split on LF alone; U+2028, NEL, VT and others are escaped by the codec and mean nothing here."""
    log = open_log("/j", level="memory", segment_bytes=700)
    for number, body in enumerate(bodies):
        log.append(entry(number, body=json.dumps(body).encode()))
    assert [json.loads(record.payload)["body"] for record in log.records(after)] == bodies[after:]


@pytest.mark.parametrize("how", ["read", "verified"])
def test_a_writer_that_starts_between_a_look_and_a_read_does_not_look_like_damage(how: str) -> None:
    """J9: recovery writes the live segment anew, under its name; with epoch 10 its header is longer than with 9."""
    disk = CrashDisk()
    for _ in range(8):
        open_small(disk).close()
    log = open_small(disk)
    assert log.epoch == 9
    for number in range(3):
        log.append(entry(number))
    log.sync()
    log.abandon()
    reader = open_reader(ROOT, disk=disk.process())

    def restart() -> None:
        again = open_small(disk.process())
        again.append(entry(3))
        again.sync()
        assert again.epoch == 10

    # The one before the last looks at the segment, the last one reads it; `verify` looks twice.
    disk.stall("open_read", restart, path="*/segment-00000009.log", nth=2 if how == "read" else 3)
    if how == "read":
        assert [id_of(record.payload) for record in reader.records()] == ["e0", "e1", "e2", "e3"]
    else:
        report = verify(ROOT, disk=disk.process())
        assert report.ok and report.records == 4
