"""A power cut, or a kill, at every write and sync boundary of a workload of 200 events (I17; J10)."""

from __future__ import annotations

import contextlib
import errno
import random

import pytest
from journal_workload import (
    ROOT,
    Boundary,
    Workload,
    boundaries,
    check_recovered,
    entry,
    ids_of,
    open_small,
    ways_to_crash,
)

from trouper.journal import JournalFailed, JournalNotFound, open_reader, verify
from trouper.journal.format import id_of
from trouper.testing import CrashDisk, Fate, PowerCut


@pytest.fixture(scope="module")
def run() -> tuple[list[Boundary], list[str]]:
    return boundaries(Workload(), CrashDisk())


def test_the_workload_has_the_boundaries_that_matter(run: tuple[list[Boundary], list[str]]) -> None:
    found, submitted = run
    assert len(submitted) == 200
    steps = [boundary.step for boundary in found]
    for operation in ("write", "sync", "rename", "sync_dir", "create"):
        assert any(f"'{operation}'" in step for step in steps), operation
    assert sum("'rename'" in step for step in steps) >= 5  # Segments were cut.
    assert len(found) > 300


@pytest.mark.parametrize("fate", [Fate.KEPT, Fate.DROPPED, Fate.GARBLED])
def test_a_power_cut_at_every_boundary_loses_nothing_acknowledged(
    run: tuple[list[Boundary], list[str]], fate: Fate
) -> None:
    """I17: for every boundary, with all pending writes kept, dropped or garbled."""
    found, submitted = run
    for number, boundary in enumerate(found):
        after = boundary.disk.crash(fate, seed=number)
        check_recovered(after, submitted, boundary.acked, note=f"boundary {number}, before {boundary.step}")


@pytest.mark.slow
def test_a_power_cut_at_every_boundary_in_every_combination(run: tuple[list[Boundary], list[str]]) -> None:
    """I17: each pending write by itself, in all combinations where they are few, else in mixtures."""
    found, submitted = run
    crashes = 0
    for number, boundary in enumerate(found):
        for after in ways_to_crash(boundary.disk, seed=number):
            check_recovered(after, submitted, boundary.acked, note=f"boundary {number}, before {boundary.step}")
            crashes += 1
    assert crashes > 1500


def test_a_kill_at_every_boundary_loses_nothing_submitted(run: tuple[list[Boundary], list[str]]) -> None:
    """A killed process leaves the page cache whole: what was written is there, also what was never synced."""
    found, submitted = run
    for number, boundary in enumerate(found):
        check_recovered(boundary.disk.fork(), submitted, boundary.acked, note=f"boundary {number}: {boundary.step}")


def test_a_reader_at_every_boundary_sees_a_prefix_with_all_that_was_acknowledged(
    run: tuple[list[Boundary], list[str]],
) -> None:
    """J9: readers are always allowed, and what a writer is in the middle of is no damage to them."""
    found, submitted = run
    for number, boundary in enumerate(found):
        disk = boundary.disk.fork()
        before = disk.tree()
        try:
            reader = open_reader(ROOT, disk=disk)
        except JournalNotFound:
            assert not boundary.submitted
            continue
        shown = [id_of(record.payload) for record in reader.records()]
        assert shown == submitted[: len(shown)], f"boundary {number}: {boundary.step}"
        assert len(shown) >= boundary.acked, f"boundary {number}: {boundary.step}"
        if number % 5 == 0:
            assert not verify(ROOT, disk=disk).damage, f"boundary {number}: {boundary.step}"
        assert disk.tree() == before
        assert disk.open_files == ()


def test_a_power_cut_right_after_a_kill_loses_nothing_that_recovery_showed(
    run: tuple[list[Boundary], list[str]],
) -> None:
    """J10: the live tail is copied and synced before it is used, for the page cache may know more than the medium."""
    found, submitted = run
    for number, boundary in enumerate(found):
        survivor = boundary.disk.fork()
        shown = check_recovered(survivor, submitted, boundary.acked)
        for fate in (Fate.DROPPED, Fate.GARBLED):
            again = check_recovered(
                survivor.crash(fate, seed=number), submitted, len(shown), note=f"{number}: {boundary.step}"
            )
            assert again == shown, f"boundary {number}: {boundary.step}"


def test_recovery_twice_equals_once(run: tuple[list[Boundary], list[str]]) -> None:
    """I17, J12: opening again finds the same records, and changes no file but the epoch of the live one."""
    found, submitted = run
    for number, boundary in enumerate(found[::3]):
        disk = boundary.disk.crash(seed=number)
        once = check_recovered(disk, submitted, boundary.acked)
        files = set(disk.tree())
        assert check_recovered(disk, submitted, boundary.acked) == once
        assert check_recovered(disk.crash(seed=number), submitted, boundary.acked) == once
        assert set(disk.tree()) == files


def test_every_byte_verifies_after_every_recovery(run: tuple[list[Boundary], list[str]]) -> None:
    found, submitted = run
    for number, boundary in enumerate(found[::5]):
        disk = boundary.disk.crash(seed=number)
        check_recovered(disk, submitted, boundary.acked)
        assert not verify(ROOT, disk=disk).damage


def test_a_crash_in_recovery_ten_times_ends_as_one(run: tuple[list[Boundary], list[str]]) -> None:
    """Ten power cuts at drawn steps of recovery itself, each with drawn fates; then it is let through."""
    found, submitted = run
    for number, boundary in enumerate(found[::7]):
        draw = random.Random(number)
        disk = boundary.disk.crash(seed=number)
        expected = check_recovered(disk.fork(), submitted, boundary.acked)
        for crash in range(10):
            disk.cut_power_before(draw.randint(1, 14))
            with contextlib.suppress(PowerCut):
                open_small(disk).abandon()
            disk = disk.crash(seed=number * 100 + crash)
        assert check_recovered(disk, submitted, boundary.acked, note=boundary.step) == expected


def test_a_crash_at_every_step_of_a_recovery_with_a_torn_tail(run: tuple[list[Boundary], list[str]]) -> None:
    """J10: the torn bytes are kept aside before anything is dropped, whenever recovery itself is cut off."""
    disk = CrashDisk()
    log = open_small(disk)
    for number in range(5):
        log.append(entry(number))
    log.sync()
    log.append(entry(5))
    log.flush()
    torn = disk.crash(Fate.TORN, seed=3)
    before = torn.tree()
    segment = before[f"{ROOT}/segment-00000001.log"]
    assert segment is not None
    steps_of_recovery = torn.fork()
    open_small(steps_of_recovery).abandon()
    for step in range(1, steps_of_recovery.steps + 1):
        disk = torn.fork()
        disk.cut_power_before(step)
        with pytest.raises(PowerCut):
            open_small(disk)
        for seed in range(8):
            after = disk.crash(seed=seed)
            log = open_small(after)
            assert ids_of(log) == [f"e{n}" for n in range(5)]
            kept = [content for path, content in after.tree().items() if path.endswith(".torn")]
            assert kept, "the torn bytes are gone"
            assert all(content is not None and segment.endswith(content) for content in kept)
            log.abandon()


def test_many_lives_each_ended_by_a_crash_at_a_drawn_step() -> None:
    """Forty lives of one journal, each cut off at a drawn step with drawn fates; what one life was promised, the next ones keep."""
    disk = CrashDisk()
    history: list[str] = []
    for life in range(40):
        draw = random.Random(life)
        promised = len(history)
        disk.cut_power_before(draw.randint(1, 80))
        workload = Workload(seed=life)
        try:
            log = open_small(disk)
            found = ids_of(log)
            assert found == history[: len(found)]
            assert len(found) >= promised
            workload.submitted = list(found)
            workload.run(log, 60)
        except PowerCut:
            pass
        if workload.submitted:
            acked = workload.acked
            history = workload.submitted
        else:
            acked = promised
        disk = disk.crash(seed=life)
        history = check_recovered(
            disk, history, max(acked, promised if not workload.submitted else 0), note=f"life {life}"
        )
    assert len(history) > 200


def test_a_failed_step_at_every_boundary_promises_nothing_it_does_not_keep() -> None:
    """J11: any one call fails with EIO; whatever was acknowledged before or after is there when the power is cut."""
    plain = CrashDisk()
    log = open_small(plain)
    opened = plain.steps
    Workload().run(log, 40)
    for nth in range(1, plain.steps - opened + 1):
        disk = CrashDisk()
        log = open_small(disk)
        workload = Workload()
        disk.fail("*", errno.EIO, nth=nth)
        try:
            workload.run(log, 40)
        except JournalFailed as error:
            assert log.refusal is error
        acked = log.durable
        log.abandon()
        assert disk.open_files == (), f"call {nth} failed, and a file stayed open"
        # The entry whose append failed was given a number and nothing more.
        submitted = [*workload.submitted, f"e{len(workload.submitted)}"]
        for fate in (Fate.KEPT, Fate.DROPPED, Fate.GARBLED):
            check_recovered(
                disk.crash(fate, seed=nth), submitted, acked, note=f"call {nth} failed: {disk.log[opened + nth - 1]}"
            )
