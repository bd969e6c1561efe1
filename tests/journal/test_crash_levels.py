"""What each level of durability promises, and what it does not (J3)."""

from __future__ import annotations

import pytest
from journal_workload import ROOT, SEGMENT_BYTES, Workload, entry, ids_of

from trouper.journal import Log, open_log
from trouper.testing import CrashDisk, Fate


def open_written(disk: CrashDisk) -> Log:
    log = open_log(ROOT, disk=disk, segment_bytes=SEGMENT_BYTES, level="write")
    assert log.refusal is None, log.refusal
    return log


@pytest.fixture(scope="module")
def run() -> tuple[list[tuple[CrashDisk, int, str]], list[str]]:
    """A workload at level `write`, with the disk and the promises before each step."""
    disk = CrashDisk()
    log = open_written(disk)
    workload = Workload(seed=8)
    found: list[tuple[CrashDisk, int, str]] = []
    disk.watch(lambda step: found.append((disk.fork(), workload.acked, str(step))))
    workload.run(log, 120)
    return found, workload.submitted


def test_written_records_survive_a_kill_at_every_boundary(
    run: tuple[list[tuple[CrashDisk, int, str]], list[str]],
) -> None:
    """J3: level `write` survives a killed process."""
    found, submitted = run
    assert found[-1][1] > 50
    for disk, acked, step in found:
        recovered = ids_of(open_written(disk.fork()))
        assert recovered == submitted[: len(recovered)], step
        assert len(recovered) >= acked, step


@pytest.mark.parametrize("fate", [Fate.DROPPED, Fate.GARBLED, Fate.TORN, Fate.ZEROED, None])
def test_a_power_cut_may_take_written_records_and_leaves_a_prefix(
    run: tuple[list[tuple[CrashDisk, int, str]], list[str]], fate: Fate | None
) -> None:
    """J3: level `write` does not survive a power cut; what is left is still a prefix, and the journal opens."""
    found, submitted = run
    lost = 0
    for number, (disk, acked, step) in enumerate(found):
        recovered = ids_of(open_written(disk.crash(fate, seed=number)))
        assert recovered == submitted[: len(recovered)], step
        lost += max(0, acked - len(recovered))
    assert lost, "nothing was ever lost: the disk or the level is not what it says"


def test_the_level_may_change_from_one_opening_to_the_next() -> None:
    disk = CrashDisk()
    names: list[str] = []
    for life, level in enumerate(["write", "fsync", "write", "fsync"]):
        log = open_log(ROOT, disk=disk, level=level, segment_bytes=SEGMENT_BYTES)  # type: ignore[arg-type]
        assert ids_of(log) == names
        for number in range(10):
            log.append(entry(life * 10 + number))
            log.sync()
            names.append(f"e{life * 10 + number}")
        log.abandon()
        if level == "fsync":
            disk = disk.crash(Fate.DROPPED)


def test_level_memory_touches_no_disk_and_keeps_nothing() -> None:
    log = open_log("/nowhere/at/all", level="memory")
    log.append(entry(0))
    assert log.durable == 1
    assert ids_of(log) == ["e0"]
    log.close()
    assert ids_of(open_log("/nowhere/at/all", level="memory")) == []
