"""Retention: archives and drops, by explicit call only (J15)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from journal_workload import entry, temporaries

from trouper.journal import JournalDamaged, JournalLocked, open_log, open_reader, retire, verify
from trouper.testing import CrashDisk, Fate

ROOT = "/j"


def journal() -> CrashDisk:
    """Sessions a, b, c one after another, over several segments; the last segment is live."""
    disk = CrashDisk()
    log = open_log(ROOT, disk=disk, segment_bytes=1500)
    number = 0
    for stream in ("a", "b", "c"):
        for _ in range(30):
            log.append(entry(number, stream=stream))
            log.sync()
            number += 1
    log.abandon()
    return disk


def payloads(disk: CrashDisk, **options: object) -> list[bytes]:
    return [record.payload for record in open_reader(ROOT, disk=disk).records(**options)]  # type: ignore[arg-type]


def test_an_archived_segment_is_smaller_and_reads_as_before() -> None:
    disk = journal()
    before = payloads(disk)
    retired = retire(ROOT, {"a", "b"}, disk=disk)
    assert retired
    assert all(set(each.streams) <= {"a", "b"} for each in retired)
    assert all(each.bytes_after < each.bytes_before for each in retired)
    assert payloads(disk) == before
    assert payloads(disk, after=25) == before[25:]
    assert payloads(disk, stream="a") == before[:30]
    assert payloads(disk, stream="c") == before[60:]
    report = verify(ROOT, disk=disk)
    assert report.ok
    assert report.records == 90


def test_an_archive_is_plain_gzip_of_the_segment() -> None:
    disk = journal()
    original = disk.read_bytes(f"{ROOT}/segment-00000001.log")
    first = retire(ROOT, {"a"}, disk=disk)[0]
    assert gzip.decompress(disk.read_bytes(first.archive)) == original


def test_segments_with_a_session_that_goes_on_and_the_last_one_are_spared() -> None:
    disk = journal()
    names = disk.list_dir(ROOT)
    assert retire(ROOT, {"nobody"}, disk=disk) == ()
    assert disk.list_dir(ROOT) == names
    retire(ROOT, lambda stream: True, disk=disk)
    left = [name for name in disk.list_dir(ROOT) if name.endswith(".log")]
    assert left == [name for name in names if name.endswith(".log")][-1:]


def test_segments_behind_the_given_sequence_are_spared() -> None:
    disk = journal()
    retired = retire(ROOT, lambda _: True, before=40, disk=disk)
    assert retired
    assert all(each.last <= 40 for each in retired)


def test_a_journal_with_archives_opens_goes_on_and_archives_again() -> None:
    disk = journal()
    retire(ROOT, {"a"}, disk=disk)
    log = open_log(ROOT, disk=disk, segment_bytes=1500)
    assert log.refusal is None
    assert log.append(entry(90, stream="c")) == 91
    log.close()
    assert retire(ROOT, {"a"}, disk=disk) == ()
    assert retire(ROOT, {"a", "b"}, disk=disk)
    assert len(payloads(disk)) == 91


def test_dropped_records_are_gone_and_the_rest_is_whole() -> None:
    disk = journal()
    retired = retire(ROOT, {"a"}, fate="drop", disk=disk)
    last = retired[-1].last
    assert [record.seq for record in open_reader(ROOT, disk=disk).records()] == list(range(last + 1, 91))
    assert verify(ROOT, disk=disk).ok
    log = open_log(ROOT, disk=disk)
    assert log.refusal is None
    assert log.append(entry(90)) == 91


def test_an_archive_can_be_dropped_later() -> None:
    disk = journal()
    archived = retire(ROOT, {"a"}, disk=disk)
    dropped = retire(ROOT, {"a"}, fate="drop", disk=disk)
    assert [each.number for each in dropped] == [each.number for each in archived]
    assert disk.list_dir(f"{ROOT}/archive") == []
    assert verify(ROOT, disk=disk).ok


def test_blobs_go_with_the_last_record_that_names_them() -> None:
    disk = CrashDisk()
    log = open_log(ROOT, disk=disk, segment_bytes=1500)
    own, shared = b'"%b"' % (b"o" * 1_100_000), b'"%b"' % (b"s" * 1_100_000)
    for number, body in enumerate([own, shared]):
        log.append(entry(number, stream="a", body=body))
    log.sync()
    for number in range(2, 40):
        log.append(entry(number, stream="a"))
        log.sync()
    log.append(entry(40, stream="b", body=shared))
    log.close()
    retired = retire(ROOT, {"a"}, fate="drop", disk=disk)
    assert sum(each.blobs for each in retired) == 1
    assert [content for path, content in disk.tree().items() if content and "/blobs/" in path] == [shared]
    assert json.loads(payloads(disk)[-1])["body"] == json.loads(shared)


def test_a_damaged_segment_is_not_made_to_last() -> None:
    disk = journal()
    path = f"{ROOT}/segment-00000001.log"
    data = bytearray(disk.read_bytes(path))
    data[500] ^= 1
    disk.write_bytes(path, bytes(data))
    for fate in ("archive", "drop"):
        with pytest.raises(JournalDamaged):
            retire(ROOT, {"a"}, fate=fate, disk=disk)  # type: ignore[arg-type]
    assert disk.read_bytes(path) == bytes(data)


@pytest.mark.parametrize("harm", ["missing", "flipped", "of another"])
def test_a_harmed_archive_is_named(harm: str) -> None:
    disk = journal()
    retired = retire(ROOT, {"a", "b"}, disk=disk)
    path = retired[0].archive
    if harm == "missing":
        disk.unlink(path)
    elif harm == "flipped":
        data = bytearray(disk.read_bytes(path))
        data[len(data) // 2] ^= 1
        disk.write_bytes(path, bytes(data))
    else:
        disk.write_bytes(path, disk.read_bytes(retired[1].archive))
    with pytest.raises(JournalDamaged) as caught:
        payloads(disk)
    assert caught.value.facts["file"] == path
    assert caught.value.facts["sessions"] == ("a",)
    assert path in {damage.file for damage in verify(ROOT, disk=disk).damage}


def test_an_archive_that_is_flipped_anywhere_is_named_or_reads_the_same() -> None:
    """J10, J15: no byte of an archive gives another record, or an error without a name."""
    disk = journal()
    path = retire(ROOT, {"a", "b"}, disk=disk)[0].archive
    whole, records = disk.read_bytes(path), payloads(disk)
    named = 0
    for position in range(len(whole)):
        disk.write_bytes(path, whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        try:
            assert payloads(disk) == records
        except JournalDamaged as damaged:
            named += damaged.facts["file"] == path
    assert named > len(whole) // 2


@pytest.mark.parametrize("fate", ["archive", "drop"])
def test_a_crash_at_every_step_loses_nothing_that_was_not_dropped(fate: str) -> None:
    disk = journal()
    before = payloads(disk)
    boundaries: list[CrashDisk] = []
    disk.watch(lambda step: boundaries.append(disk.fork()))
    retire(ROOT, {"a"}, fate=fate, disk=disk)  # type: ignore[arg-type]
    for number, boundary in enumerate(boundaries):
        for end in (Fate.KEPT, Fate.DROPPED, Fate.TORN):
            after = boundary.crash(end, seed=number)
            opened = open_log(ROOT, disk=after.fork())
            assert opened.refusal is None
            assert temporaries(opened.disk, ROOT) == []
            found = payloads(after)
            assert found == before[len(before) - len(found) :]
            assert fate == "drop" or found == before
            # And it can be done again.
            retire(ROOT, {"a"}, fate=fate, disk=after)  # type: ignore[arg-type]
            assert payloads(after)[-60:] == before[-60:]


def test_an_open_journal_is_not_touched(tmp_path: Path) -> None:
    log = open_log(tmp_path / "j")
    with pytest.raises(JournalLocked):
        retire(tmp_path / "j", lambda _: True)
    log.close()
    assert retire(tmp_path / "j", lambda _: True) == ()
