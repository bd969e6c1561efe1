"""A medium that has gone bad in places: `verify` names them, `repair` saves the rest, and whoever trusts what it reads hears of the error (J10, J11)."""

from __future__ import annotations

import errno
import os
from typing import Any, cast

import pytest
from journal_workload import ROOT, entry, open_small
from test_faults_damage import LIVE, SEALED, journal
from test_faults_repair import TARGET, originals

from trouper.journal import Disk, File, JournalDamaged, JournalFailed, open_log, open_reader, repair, verify
from trouper.journal.format import is_gap
from trouper.testing import CrashDisk


class BadSector:
    """A disk that cannot read some bytes of one file."""

    def __init__(self, disk: CrashDisk, path: str, start: int, end: int) -> None:
        self._disk = disk
        self._bad = path, start, end

    def open_read(self, path: str) -> File:
        file = self._disk.open_read(path)
        return cast(File, _BadFile(file, self._bad[1], self._bad[2])) if path == self._bad[0] else file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


class _BadFile:
    def __init__(self, file: File, start: int, end: int) -> None:
        self._file = file
        self._bad = start, end

    def pread(self, size: int, offset: int) -> bytes:
        if offset < self._bad[1] and offset + size > self._bad[0]:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._file.pread(size, offset)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def big_journal() -> CrashDisk:
    """One sealed segment of many pieces, and a live one."""
    disk = CrashDisk()
    log = open_log(ROOT, disk=disk, segment_bytes=64 * 1024)
    for number in range(300):
        log.append(entry(number, body=b'"%b"' % (b"x" * 200)))
        log.sync()
    log.abandon()
    return disk


@pytest.mark.parametrize("path", [SEALED, LIVE], ids=["sealed", "live"])
def test_a_bad_sector_in_a_small_segment_costs_that_segment_at_most(path: str) -> None:
    disk, _ = journal()
    written = originals(disk)
    size = len(disk.read_bytes(path))
    bad = cast(Disk, BadSector(disk, path, size - 50, size - 20))
    report = verify(ROOT, disk=bad)
    assert not report.ok and report.damage[0].file == path
    assert "cannot read" in report.damage[0].reason and "Input/output error" in report.damage[0].reason
    assert repair(ROOT, TARGET, disk=bad).gaps
    records = {record.seq: record.payload for record in open_reader(TARGET, disk=disk).records()}
    good = {seq: payload for seq, payload in records.items() if not is_gap(payload)}
    assert good.items() <= written.items() and len(good) > len(written) / 2
    assert verify(TARGET, disk=disk).ok


def test_a_bad_sector_costs_the_records_that_lie_in_it() -> None:
    disk = big_journal()
    written = originals(disk)
    bad = cast(Disk, BadSector(disk, f"{ROOT}/segment-00000001.log", 20_000, 20_001))
    (unreadable, *_) = verify(ROOT, disk=bad).damage
    assert unreadable.offset == 16_384
    repair(ROOT, TARGET, disk=bad)
    records = {record.seq: record.payload for record in open_reader(TARGET, disk=disk).records()}
    lost = {seq for seq in written if is_gap(records.get(seq, b"")) or seq not in records}
    assert 0 < len(lost) <= 4096 // 250 + 2


def test_a_record_in_a_bad_sector_is_an_error_to_whoever_reads_it() -> None:
    disk = big_journal()
    bad = cast(Disk, BadSector(disk, f"{ROOT}/segment-00000001.log", 20_000, 20_001))
    with pytest.raises(JournalFailed, match=r"cannot be read \(Input/output error") as caught:
        list(open_reader(ROOT, disk=bad).records())
    assert caught.value.facts["root"] == ROOT


def test_a_blob_in_a_bad_sector_costs_its_record() -> None:
    """J5"""
    disk = CrashDisk()
    log = open_small(disk)
    log.append(entry(0, body=b'"%b"' % (b"x" * 1_200_000)))
    log.append(entry(1))
    log.close()
    (blob,) = [path for path, content in disk.tree().items() if "/blobs/" in path and content is not None]
    bad = cast(Disk, BadSector(disk, blob, 5000, 5001))
    assert {damage.file for damage in verify(ROOT, disk=bad).damage} == {blob}
    repair(ROOT, TARGET, disk=bad)
    assert [is_gap(record.payload) for record in open_reader(TARGET, disk=disk).records()] == [True, False]


@pytest.mark.parametrize("place", ["header", "section"])
def test_a_snapshot_in_a_bad_sector_is_of_no_use_and_does_no_harm(place: str) -> None:
    """J13"""
    disk = CrashDisk()
    log = open_small(disk)
    log.append(entry(0))
    log.sync()
    path = log.write_snapshot(1, [("s", "idle", b"x" * 9000)])
    log.close()
    start = 0 if place == "header" else 5000
    again = open_log(ROOT, disk=cast(Disk, BadSector(disk, path, start, start + 10)))
    assert again.refusal is None
    snapshot = again.snapshot()
    if place == "header":
        assert snapshot is None and "Input/output error" in again.recovery.ignored_snapshots[0].reason
    else:
        assert snapshot is not None
        with pytest.raises(JournalDamaged, match="build the state from the records"):
            snapshot.read("s")
    again.close()
