"""Verify: every byte, the chain across segments, blobs, snapshots; and it changes nothing (J10)."""

from __future__ import annotations

from pathlib import Path

import pytest
from journal_workload import entry

from trouper.journal import JournalNotFound, OsDisk, open_log, verify
from trouper.testing import CrashDisk


def journal() -> CrashDisk:
    disk = CrashDisk()
    log = open_log("/j", disk=disk, segment_bytes=1500)
    for number in range(40):
        log.append(entry(number, stream=f"s{number % 2}"))
        log.sync()
    log.append(entry(40, body=b'"%b"' % (b"x" * 1_100_000)))
    log.append(entry(41, body=b'"%b"' % (b"x" * 1_100_000)))
    log.sync()
    log.abandon()
    return disk


def test_a_whole_journal_is_counted() -> None:
    disk = journal()
    before = disk.tree()
    report = verify("/j", disk=disk)
    assert report.ok
    assert (report.records, report.last, report.blobs, report.torn) == (42, 42, 1, None)
    logs = [content for path, content in before.items() if path.endswith(".log") and content is not None]
    assert (report.segments, report.bytes) == (len(logs), sum(map(len, logs)))
    assert disk.tree() == before


def test_it_runs_beside_a_writer(tmp_path: Path) -> None:
    log = open_log(tmp_path / "j")
    for number in range(10):
        log.append(entry(number))
        log.flush()
        assert verify(tmp_path / "j").records == number + 1
    log.close()


def test_a_snapshot_that_a_writer_makes_meanwhile_is_no_sign_of_damage(tmp_path: Path) -> None:
    """J9: of records that were not there yet when verifying began."""
    log = open_log(tmp_path / "j")
    log.append(entry(0))
    log.sync()
    log.write_snapshot(1, [])

    class BusyDisk(OsDisk):
        def list_dir(self, path: str) -> list[str]:
            if path.endswith("snapshots"):
                log.append(entry(log.last))
                log.sync()
                log.write_snapshot(log.last, [])
            return super().list_dir(path)

    report = verify(tmp_path / "j", disk=BusyDisk())
    assert report.ok, report
    assert report.last == log.last == 2
    log.close()


def test_a_torn_tail_is_told_and_is_no_damage() -> None:
    disk = journal()
    path = max(path for path in disk.tree() if path.endswith(".log"))
    whole = disk.read_bytes(path)
    disk.write_bytes(path, whole + b"43 100 abc")
    report = verify("/j", disk=disk)
    assert report.ok
    assert report.torn is not None
    assert (report.torn.file, report.torn.offset, report.torn.size) == (path, len(whole), 10)


def test_each_of_several_damages_is_named() -> None:
    disk = journal()
    paths = sorted(path for path in disk.tree() if path.endswith(".log"))
    for path in paths[:2]:
        data = bytearray(disk.read_bytes(path))
        for at in (400, 900):
            data[at] ^= 1
        disk.write_bytes(path, bytes(data))
    report = verify("/j", disk=disk)
    assert [damage.file for damage in report.damage] == [paths[0], paths[0], paths[1], paths[1]]
    assert all(damage.sessions == ("s0", "s1") for damage in report.damage)
    assert report.records == 38


def test_no_journal_to_verify(tmp_path: Path) -> None:
    with pytest.raises(JournalNotFound):
        verify(tmp_path / "nowhere")
