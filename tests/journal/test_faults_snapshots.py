"""Snapshots that a crash cut off, or that someone changed: passed over, never trusted (J13, I12)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from journal_workload import ROOT, entry, ids_of, open_small

from trouper.journal import JournalDamaged, JournalError, OsDisk, open_log, repair, verify
from trouper.journal.log import Log
from trouper.testing import CrashDisk, Fate, PowerCut

FOLDER = f"{ROOT}/snapshots"


def fold(log: Log) -> bytes:
    """The state at the level of bytes: all ids so far. The newest snapshot and what came after it, as start-up would."""
    snapshot = log.snapshot()
    state, after = b"", 0
    if snapshot is not None:
        try:
            state, after = snapshot.read("state"), snapshot.seq
        except JournalDamaged:
            state, after = b"", 0
        snapshot.close()
    for record in log.records(after=after):
        state += b"%d;" % record.seq
    return state


def grown(records: int, *, snapshots: tuple[int, ...] = ()) -> tuple[CrashDisk, Log]:
    disk = CrashDisk()
    log = open_small(disk)
    for number in range(records):
        log.append(entry(number))
        log.sync()
        if number + 1 in snapshots:
            log.write_snapshot(log.last, [("state", "v1", fold(log))])
    return disk, log


def expected(records: int) -> bytes:
    return b"".join(b"%d;" % seq for seq in range(1, records + 1))


def test_snapshot_and_suffix_equal_the_full_fold() -> None:
    """I12."""
    for at in range(1, 12):
        disk, log = grown(12, snapshots=(at,))
        assert fold(log) == expected(12)
        log.close()
        again = open_small(disk)
        assert fold(again) == expected(12)
        found = again.snapshot()
        assert found is not None
        assert found.seq == at


def test_a_crash_at_every_step_of_a_snapshot_leaves_the_old_one_or_the_new() -> None:
    disk, log = grown(6, snapshots=(3,))
    boundaries: list[CrashDisk] = []
    disk.watch(lambda step: boundaries.append(disk.fork()))
    log.write_snapshot(6, [("state", "v1", expected(6))])
    disk.watch(None)
    boundaries.append(disk.fork())
    assert len(boundaries) >= 5
    for number, before in enumerate(boundaries):
        for fate in Fate:
            for seed in range(3):
                after = before.crash(fate, seed=seed)
                again = open_small(after)
                assert again.refusal is None
                assert fold(again) == expected(6)
                found = again.snapshot()
                assert found is not None
                assert found.seq in (3, 6)
                assert not any(name.endswith(".tmp") for name in after.list_dir(FOLDER))
                found.close()
                again.abandon()
        if number == len(boundaries) - 1:
            assert found.seq == 6


def test_a_crash_at_every_step_of_the_first_snapshot() -> None:
    disk, log = grown(6)
    boundaries: list[CrashDisk] = []
    disk.watch(lambda step: boundaries.append(disk.fork()))
    log.write_snapshot(6, [("state", "v1", expected(6))])
    for before in boundaries:
        for seed in range(6):
            assert fold(open_small(before.crash(seed=seed))) == expected(6)


def test_a_power_cut_in_mid_snapshot_costs_the_journal_nothing() -> None:
    disk, log = grown(6)
    disk.cut_power_before(disk.steps + 4)
    with pytest.raises(PowerCut):
        log.write_snapshot(6, [("state", "v1", expected(6))])
    assert ids_of(open_small(disk.crash(seed=1))) == [f"e{n}" for n in range(6)]


def test_a_snapshot_changed_anywhere_is_passed_over_or_refused() -> None:
    """A flipped bit at each byte: the state is never other than the full fold."""
    disk, log = grown(8, snapshots=(3, 6))
    log.close()
    path = f"{FOLDER}/{disk.list_dir(FOLDER)[-1]}"
    data = disk.read_bytes(path)
    draw = random.Random(1)
    passed_over = 0
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << draw.randrange(8)
        damaged = disk.fork()
        damaged.write_bytes(path, bytes(changed))
        again = open_small(damaged)
        assert again.refusal is None
        assert fold(again) == expected(8), f"byte {at}"
        passed_over += bool(again.recovery.ignored_snapshots)
        again.abandon()
    assert passed_over > len(data) // 2


def test_a_snapshot_cut_at_any_byte_is_passed_over() -> None:
    disk, log = grown(8, snapshots=(3, 6))
    log.close()
    path = f"{FOLDER}/{disk.list_dir(FOLDER)[-1]}"
    data = disk.read_bytes(path)
    for cut in range(len(data)):
        damaged = disk.fork()
        damaged.write_bytes(path, data[:cut])
        again = open_small(damaged)
        assert again.refusal is None
        assert fold(again) == expected(8), f"cut at {cut}"
        again.abandon()


def test_a_snapshot_of_another_journal_is_passed_over() -> None:
    disk, log = grown(8, snapshots=(3,))
    log.close()
    other, foreign = grown(8, snapshots=(6,))
    foreign.close()
    name = other.list_dir(FOLDER)[-1]
    disk.write_bytes(f"{FOLDER}/{name}", other.read_bytes(f"{FOLDER}/{name}"))
    again = open_small(disk)
    assert fold(again) == expected(8)
    assert [damage.file for damage in again.recovery.ignored_snapshots] == [f"{FOLDER}/{name}"]


def test_a_snapshot_that_is_ahead_of_the_journal_means_that_records_are_missing() -> None:
    """The records before a snapshot were synced first: if they are gone, bytes that were once on the medium are gone."""
    disk, log = grown(8, snapshots=(6,))
    log.abandon()
    path = f"{ROOT}/segment-00000001.log"
    lines = disk.read_bytes(path).splitlines(keepends=True)
    disk.write_bytes(path, b"".join(lines[:4]))
    again = open_small(disk)
    assert isinstance(again.refusal, JournalDamaged)
    assert "snapshot" in str(again.refusal)


@pytest.mark.parametrize("torn", [0, 20], ids=["at a record", "in a record"])
def test_who_only_reads_is_told_as_well_that_records_are_missing(torn: int) -> None:
    """J10, never a silent skip: or the state of the snapshot would pass for what the journal says."""
    disk, log = grown(8, snapshots=(6,))
    log.abandon()
    path = f"{ROOT}/segment-00000001.log"
    lines = disk.read_bytes(path).splitlines(keepends=True)
    disk.write_bytes(path, b"".join(lines[:4]) + lines[4][:torn])
    (damage,) = open_log(ROOT, disk=disk, read_only=True).recovery.damage
    assert damage.file == path and "ends with record 3, and a snapshot was made after 6" in damage.reason


def test_a_snapshot_that_is_made_while_a_reader_opens_is_no_damage(tmp_path: Path) -> None:
    """J9: readers are always allowed, also in the very moment in which the journal grows."""
    writer = open_log(tmp_path)
    writer.append(entry(0))
    writer.sync()

    class Beside(OsDisk):
        def list_dir(self, path: str) -> list[str]:
            if path.endswith("snapshots") and writer.last == 1:
                writer.append(entry(1))
                writer.sync()
                writer.write_snapshot(writer.last, [("state", "v1", b"{}")])
            return super().list_dir(path)

    (tmp_path / "snapshots").mkdir()
    reading = open_log(tmp_path, disk=Beside(), read_only=True)
    assert writer.last == 2 and not reading.recovery.damage
    reading.close()
    writer.close()


@pytest.mark.parametrize("harm", [b"", b"garbage", None], ids=["empty", "garbled", "a bit"])
def test_a_damaged_snapshot_still_tells_by_its_name_that_records_are_missing(harm: bytes | None) -> None:
    """J10, never a silent skip: a snapshot, the last segment and its footer are damaged at once, and only a name is left to tell."""
    disk, log = grown(8, snapshots=(6,))
    log.close()
    path = f"{ROOT}/segment-00000001.log"
    lines = disk.read_bytes(path).splitlines(keepends=True)
    disk.write_bytes(path, b"".join(lines[:4]))
    name = f"{FOLDER}/{disk.list_dir(FOLDER)[-1]}"
    disk.write_bytes(name, bytes([disk.read_bytes(name)[0] ^ 1]) + disk.read_bytes(name)[1:] if harm is None else harm)
    report = verify(ROOT, disk=disk)
    assert not report.ok
    assert [damage.file for damage in report.damage] == [path]
    assert "after 6" in report.damage[0].reason
    assert [damage.file for damage in report.snapshots] == [name]
    again = open_small(disk)
    assert isinstance(again.refusal, JournalDamaged)
    assert "snapshot" in str(again.refusal)
    assert [(gap.first, gap.last) for gap in repair(ROOT, "/new", disk=disk).gaps] == [(4, 6)]


def test_a_snapshot_without_any_segment_is_damage_and_no_new_journal() -> None:
    """J10, never a silent skip: the one segment there was is gone, and with it the whole past."""
    disk, log = grown(8, snapshots=(6,))
    log.close()
    path = f"{ROOT}/segment-00000001.log"
    disk.unlink(path)
    again = open_small(disk)
    assert isinstance(again.refusal, JournalDamaged)
    assert again.refusal.facts["file"] == path
    assert "every segment is missing, and a snapshot was made after record 6" in str(again.refusal)
    assert not disk.exists(path)
    assert not verify(ROOT, disk=disk).ok
    assert [(gap.first, gap.last) for gap in repair(ROOT, "/new", disk=disk).gaps] == [(1, 6)]


def test_a_snapshot_of_another_journal_does_not_tell_how_far_this_one_went() -> None:
    disk, log = grown(4)
    log.close()
    other, foreign = grown(8, snapshots=(6,))
    foreign.close()
    name = other.list_dir(FOLDER)[-1]
    disk.make_dirs(FOLDER)
    disk.write_bytes(f"{FOLDER}/{name}", other.read_bytes(f"{FOLDER}/{name}"))
    assert verify(ROOT, disk=disk).ok
    assert open_small(disk).refusal is None


def test_a_full_disk_refuses_a_snapshot_and_nothing_else() -> None:
    """A snapshot is a nicety: it does not cost the reserve, nor stop the journal."""
    disk, log = grown(6, snapshots=(3,))
    disk.fill(leaving=10)
    with pytest.raises((JournalError, OSError)):
        log.write_snapshot(6, [("state", "v1", expected(6) * 50)])
    disk.capacity = None
    log.append(entry(6))
    log.sync()
    assert fold(log) == expected(7)
    assert disk.open_files == (f"{ROOT}/lock", f"{ROOT}/segment-00000001.log")
    assert not any(name.endswith(".tmp") for name in disk.list_dir(FOLDER))
