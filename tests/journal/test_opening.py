"""Opening: epochs, what recovery says, the lock of the real disk, few files for many short runs (J7, J9, J10, I13)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from journal_workload import entry, ids_of

from trouper._errors import ConfigError
from trouper.journal import JournalLocked, open_log, verify
from trouper.testing import CrashDisk


def test_each_writer_has_a_higher_epoch_and_readers_raise_none() -> None:
    """I13."""
    disk = CrashDisk()
    epochs = []
    for number in range(6):
        log = open_log("/j", disk=disk, segment_bytes=300)
        epochs.append(log.epoch)
        for extra in range(3):
            log.append(entry(3 * number + extra))
            log.sync()
        if number % 2:
            log.close()
        else:
            log.abandon()
        assert open_log("/j", disk=disk, read_only=True).epoch == epochs[-1]
    assert epochs == [1, 2, 3, 4, 5, 6]


def test_the_first_opening_makes_the_journal_and_says_so(tmp_path: Path) -> None:
    log = open_log(tmp_path / "a" / "b" / "j", new_id=lambda: "the-id")
    assert log.recovery.created
    assert log.recovery.journal == "the-id"
    log.close()
    log = open_log(tmp_path / "a" / "b" / "j", new_id=lambda: "another")
    assert not log.recovery.created
    assert log.recovery.journal == "the-id"
    assert log.recovery.clean
    log.abandon()
    log = open_log(tmp_path / "a" / "b" / "j")
    assert not log.recovery.clean
    log.close()


def test_recovery_tells_of_torn_bytes_and_keeps_them() -> None:
    """J10."""
    disk = CrashDisk()
    log = open_log("/j", disk=disk)
    log.append(entry(0))
    log.sync()
    log.abandon()
    path = "/j/segment-00000001.log"
    whole = len(disk.read_bytes(path))
    disk.write_bytes(path, disk.read_bytes(path) + b"2 70 half of a rec")
    log = open_log("/j", disk=disk)
    torn = log.recovery.torn
    assert torn is not None
    assert (torn.file, torn.offset, torn.size, torn.records) == (path, whole, 18, 0)
    assert disk.read_bytes(torn.kept) == b"2 70 half of a rec"
    assert ids_of(log) == ["e0"]
    log.close()
    # Recovery twice equals recovery once (I17).
    log = open_log("/j", disk=disk)
    assert log.recovery.torn is None
    assert ids_of(log) == ["e0"]


def test_torn_bytes_of_two_crashes_at_one_place_are_both_kept() -> None:
    disk = CrashDisk()
    open_log("/j", disk=disk).abandon()
    kept = set()
    for text in (b"1 first", b"1 second", b"1 first"):
        path = "/j/segment-00000001.log"
        disk.write_bytes(path, disk.read_bytes(path) + text)
        log = open_log("/j", disk=disk)
        assert log.recovery.torn is not None
        assert disk.read_bytes(log.recovery.torn.kept) == text
        kept.add(log.recovery.torn.kept)
        log.abandon()
    assert len(kept) == 2


def test_many_short_runs_make_few_files(tmp_path: Path) -> None:
    """A small segment is gone on with, so that each run of a command does not leave a file of its own."""
    for number in range(20):
        log = open_log(tmp_path / "j")
        log.append(entry(number))
        log.close()
    assert len(list((tmp_path / "j").glob("segment-*"))) == 1
    assert verify(tmp_path / "j").records == 20


def test_temporary_files_of_a_crash_are_tidied(tmp_path: Path) -> None:
    log = open_log(tmp_path / "j")
    log.append(entry(0))
    log.close()
    (tmp_path / "j" / "snapshots").mkdir()
    for name in ("segment-00000002.log.tmp", "snapshots/snapshot-00000000000000000001.snap.tmp"):
        (tmp_path / "j" / name).write_bytes(b"half")
    open_log(tmp_path / "j").close()
    assert not list((tmp_path / "j").rglob("*.tmp"))


def test_a_second_opener_in_the_same_process_is_refused(tmp_path: Path) -> None:
    """J9."""
    log = open_log(tmp_path / "j")
    with pytest.raises(JournalLocked, match="which is this one; close what has it open here first") as caught:
        open_log(tmp_path / "j")
    assert caught.value.facts["pid"] == os.getpid()
    log.close()
    open_log(tmp_path / "j").close()


def test_deleting_the_lock_file_lets_nobody_in(tmp_path: Path) -> None:
    """J9: the directory is locked as well, and a lock file made anew does not help a second writer."""
    log = open_log(tmp_path / "j")
    (tmp_path / "j" / "lock").unlink()
    program = (
        "import sys; from trouper.journal import open_log, JournalLocked\n"
        "try:\n    open_log(sys.argv[1])\nexcept JournalLocked as error:\n    print('locked', error.pid)\n"
    )
    for _ in range(2):
        out = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "j")], capture_output=True, text=True, check=True
        )
        assert out.stdout == "locked None\n"
    assert not (tmp_path / "j" / "lock").exists()
    log.append(entry(0))
    log.sync()
    log.close()


def test_the_lock_file_is_never_deleted(tmp_path: Path) -> None:
    """J9."""
    open_log(tmp_path / "j").close()
    inode = (tmp_path / "j" / "lock").stat().st_ino
    open_log(tmp_path / "j").close()
    assert (tmp_path / "j" / "lock").stat().st_ino == inode


def test_an_unknown_level_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'fsync', 'write' or 'memory'"):
        open_log(tmp_path / "j", level="sometimes")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_no_descriptor_is_left_by_a_life(tmp_path: Path) -> None:
    """I21."""

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    for _ in range(3):
        log = open_log(tmp_path / "j", segment_bytes=500)
        for number in range(20):
            log.append(entry(number))
            log.sync()
        log.write_snapshot(log.last, [("a", "1", b"x")])
        snapshot = log.snapshot()
        assert snapshot is not None
        list(log.records())
        log.close()
    assert descriptors() == before
