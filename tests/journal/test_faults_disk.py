"""A disk that fails in mid-run: each failure has one end, and nothing acknowledged is lost by it (J11)."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import trio
from journal_workload import ROOT, SEGMENT_BYTES, check_recovered, entry, ids_of, open_small

from trouper.actors.journal import Inline, JournalWriter, Threaded
from trouper.journal import (
    Entry,
    JournalError,
    JournalFailed,
    JournalFull,
    JournalLocked,
    JournalReadOnly,
    Level,
    open_log,
    open_reader,
    verify,
)
from trouper.journal.log import RESERVE_BYTES, Log
from trouper.testing import CrashDisk, Fate, VirtualWall

FATES = (Fate.KEPT, Fate.DROPPED, Fate.GARBLED, Fate.TORN)


def filled(disk: CrashDisk, records: int = 5) -> Log:
    log = open_small(disk)
    for number in range(records):
        log.append(entry(number))
    log.sync()
    return log


def until_cut(log: Log, disk: CrashDisk) -> list[str]:
    """Fill the live segment so that the next large entry cuts it; returns the ids so far."""
    names = ids_of(log)
    while len(disk.read_bytes(f"{ROOT}/segment-00000001.log")) < SEGMENT_BYTES - 300:
        names.append(f"e{len(names)}")
        log.append(entry(len(names) - 1, body=b'"%b"' % (b"p" * 120)))
        log.sync()
    return names


def large(number: int) -> Entry:
    return entry(number, body=b'"%b"' % (b"q" * 600))


# Syncs.


def test_a_failed_sync_is_never_tried_again() -> None:
    """J11: EIO once, then success; the second success would be a lie, so nobody asks for it."""
    disk = CrashDisk()
    log = filled(disk)
    log.append(entry(5))
    disk.fail("sync", errno.EIO)
    with pytest.raises(JournalFailed) as caught:
        log.sync()
    assert caught.value.facts["errno"] == errno.EIO
    assert log.durable == 5
    steps = disk.steps
    for attempt in (lambda: log.append(entry(6)), log.sync):
        with pytest.raises(JournalFailed):
            attempt()
    log.close()
    assert disk.steps == steps, f"after a failed sync: {disk.log[steps:]}"
    assert disk.open_files == ()
    for fate in FATES:
        check_recovered(disk.crash(fate), [f"e{n}" for n in range(6)], acked=5)


async def test_everyone_who_waits_is_told_of_a_failed_sync(autojump_clock: trio.testing.MockClock) -> None:
    """J11: pending acks fail, and the writer ends loudly."""
    disk = CrashDisk()
    log = open_small(disk)
    writer = JournalWriter(log, sync=Inline(latency=lambda: 0.01))
    ends: list[str] = []

    async def wait(number: int) -> None:
        with pytest.raises(JournalFailed):
            await writer.wait_durable(writer.append(entry(number)))
        ends.append(f"e{number}")

    disk.fail("sync", errno.EIO)
    with pytest.raises(BaseExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            await nursery.start(writer.run)
            for number in range(5):
                nursery.start_soon(wait, number)
    assert caught.group_contains(JournalFailed)
    assert sorted(ends) == [f"e{n}" for n in range(5)]
    assert writer.failure is not None
    with pytest.raises(JournalFailed):
        writer.append(entry(9))


@pytest.mark.parametrize("occasion", ["create", "cut", "recovery"])
def test_a_failed_directory_sync_stops_the_journal(occasion: str) -> None:
    disk = CrashDisk()
    if occasion == "create":
        disk.fail("sync_dir", errno.EIO, path=ROOT)
        with pytest.raises(JournalError):
            open_small(disk)
        assert disk.open_files == ()
        assert check_recovered(disk.crash(seed=1), [], acked=0) == []
        return
    log = filled(disk)
    names = until_cut(log, disk)
    if occasion == "recovery":
        log.abandon()
        disk.fail("sync_dir", errno.EIO, path=ROOT)
        with pytest.raises(JournalError):
            open_small(disk)
        assert disk.open_files == ()
    else:
        disk.fail("sync_dir", errno.EIO, path=ROOT)
        log.append(large(len(names)))
        with pytest.raises(JournalFailed):
            log.sync()
        log.close()
        assert disk.open_files == ()
    for fate in FATES:
        check_recovered(disk.crash(fate), [*names, f"e{len(names)}"], acked=len(names))


@pytest.mark.parametrize("kept", [True, False])
def test_a_crash_between_rename_and_directory_sync(kept: bool) -> None:
    """J7: whether or not the new segment has its name, the journal is whole."""
    disk = CrashDisk()
    log = filled(disk)
    names = until_cut(log, disk)
    log.append(large(len(names)))
    forks: list[CrashDisk] = []
    disk.watch(lambda step: forks.append(disk.fork()) if step.operation == "sync_dir" else None)
    log.sync()
    assert len(forks) == 1
    after = forks[0].crash(Fate.KEPT if kept else Fate.DROPPED)
    assert ("segment-00000002.log" in after.list_dir(ROOT)) is kept
    check_recovered(after, names, acked=len(names))


async def test_a_stalled_sync_delays_acks_and_nothing_else(autojump_clock: trio.testing.MockClock) -> None:
    """A sync of 30 s, in virtual time: others append and run meanwhile, and their acks come with the next sync."""
    disk = CrashDisk()
    log = open_small(disk)
    latencies = iter([30.0, 0.5])
    writer = JournalWriter(log, sync=Inline(latency=lambda: next(latencies)))
    acks: dict[str, float] = {}
    ticks = 0

    async def ask(name: str, delay: float) -> None:
        await trio.sleep(delay)
        seq = writer.append(entry(0, id=name))
        await writer.wait_durable(seq)
        acks[name] = trio.current_time() - start

    async def tick() -> None:
        nonlocal ticks
        while len(acks) < 3:
            await trio.sleep(1)
            ticks += 1

    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        await nursery.start(writer.run)
        with writer.open_sender():
            async with trio.open_nursery() as inner:
                inner.start_soon(ask, "first", 0)
                inner.start_soon(ask, "second", 1)
                inner.start_soon(ask, "third", 29)
                inner.start_soon(tick)
    assert ticks >= 30
    assert acks == {"first": 30.0, "second": 30.5, "third": 30.5}


async def test_a_stall_in_the_sync_thread_does_not_hold_the_event_loop() -> None:
    """The real thread, a disk that does not answer: the loop goes on, a cancel does not lose the record, and the ack comes at last."""
    disk = CrashDisk()
    log = open_small(disk)
    writer = JournalWriter(log, sync=Threaded())
    entered, leave = threading.Event(), threading.Event()

    def hook() -> None:
        entered.set()
        leave.wait()

    disk.stall("sync", hook)
    told: list[int] = []

    async def ask() -> None:
        seq = writer.append(entry(0))
        await writer.wait_durable(seq)
        told.append(seq)

    async with trio.open_nursery() as nursery:
        await nursery.start(writer.run)
        with writer.open_sender():
            async with trio.open_nursery() as inner:
                inner.start_soon(ask)
                await trio.to_thread.run_sync(entered.wait)
                inner.cancel_scope.cancel()
                for _ in range(100):  # The loop turns while the disk stands still.
                    await trio.lowlevel.cancel_shielded_checkpoint()
                assert told == []
                assert not writer.is_durable(1)
                leave.set()
    assert told == [1]
    log.close()
    assert ids_of(open_small(disk)) == ["e0"]


# Writes.


@pytest.mark.parametrize("taken", [0, 1, 10, 77, 150])
def test_a_short_write_is_gone_on_with_or_cut_off_again(taken: int) -> None:
    """J11: truncate back or stop; never half a batch with more behind it."""
    disk = CrashDisk()
    log = filled(disk)
    disk.shorten(taken)
    names = [f"e{n}" for n in range(5)]
    for number in (5, 6):
        log.append(entry(number))
    if taken == 0:
        with pytest.raises(JournalFailed):
            log.sync()
        acked = 5
    else:
        log.sync()
        acked = 7
        assert ids_of(log) == [*names, "e5", "e6"]
    log.abandon()
    for fate in FATES:
        check_recovered(disk.crash(fate), [*names, "e5", "e6"], acked)


@pytest.mark.parametrize("error", [errno.EIO, errno.EDQUOT, errno.ENOSPC, errno.EROFS])
def test_a_write_that_fails_behind_a_short_one_leaves_no_half_record(error: int) -> None:
    disk = CrashDisk()
    log = filled(disk)
    disk.shorten(20)
    disk.fail("write", error, nth=2)
    log.append(entry(5))
    try:
        log.sync()
    except JournalFailed:
        acked = 5
    else:
        assert error in (errno.ENOSPC, errno.EDQUOT)  # The reserve was given up for it.
        assert log.degraded
        acked = 6
    data = disk.read_bytes(f"{ROOT}/segment-00000001.log")
    assert data.endswith(b"}\n")
    assert data.count(b"\n") == 1 + acked
    log.abandon()
    check_recovered(disk.crash(seed=2), [f"e{n}" for n in range(6)], acked)


def test_a_short_write_that_cannot_be_cut_off_stops_the_journal() -> None:
    disk = CrashDisk()
    log = filled(disk)
    disk.shorten(20)
    disk.fail("write", errno.EIO, nth=2)
    disk.fail("truncate", errno.EIO)
    log.append(entry(5))
    with pytest.raises(JournalFailed):
        log.sync()
    log.close()
    assert check_recovered(disk, [f"e{n}" for n in range(6)], 5) == [f"e{n}" for n in range(5)]


# Space.


def opening(number: int) -> Entry:
    """An entry that starts new work."""
    plain = entry(number)
    return Entry(plain.stream, plain.id, plain.head, plain.body, opens=True)


@pytest.mark.parametrize("leaving", [0, 1, 30, 100])
def test_a_disk_that_fills_in_mid_record_degrades_and_resumes(leaving: int) -> None:
    """J11: the reserve pays for what runs, new work is refused visibly, and it goes on when there is space."""
    disk = CrashDisk()
    log = filled(disk)
    disk.fill(leaving=leaving)
    log.append(entry(5))
    log.append(entry(6))
    log.sync()
    assert log.degraded
    assert log.durable == 7
    with pytest.raises(JournalFull, match="free at least 8 MiB") as caught:
        log.append(opening(7))
    assert repr(ROOT) in str(caught.value)
    log.append(entry(7))
    log.sync()
    assert not log.try_resume()
    disk.capacity = None
    assert log.try_resume()
    log.append(opening(8))
    log.sync()
    assert disk.open_read(f"{ROOT}/reserve").size() == RESERVE_BYTES
    log.close()
    assert check_recovered(disk.crash(seed=leaving), [f"e{n}" for n in range(9)], acked=9)


def test_a_disk_that_fills_at_a_cut_goes_on_in_the_old_segment() -> None:
    disk = CrashDisk()
    log = filled(disk)
    names = until_cut(log, disk)
    disk.fill()
    for extra in range(3):
        names.append(f"e{len(names)}")
        log.append(large(len(names) - 1))
        log.sync()
        assert log.durable == len(names), f"entry {extra} behind the cut"
    assert log.degraded
    disk.capacity = None
    assert log.try_resume()
    log.append(large(len(names)))
    log.sync()
    names.append(f"e{len(names)}")
    log.abandon()
    for fate in FATES:
        check_recovered(disk.crash(fate), names, acked=len(names))


@pytest.mark.parametrize("room", range(0, 400, 23))
def test_a_disk_that_fills_anywhere_in_a_cut_loses_nothing(room: int) -> None:
    """The header, the footer or the batch may be the one that does not fit."""
    disk = CrashDisk()
    log = filled(disk)
    names = until_cut(log, disk)
    disk.fill(leaving=room)
    log.append(large(len(names)))
    log.sync()
    names.append(f"e{len(names)}")
    assert ids_of(log) == names
    log.abandon()
    for fate in FATES:
        check_recovered(disk.crash(fate), names, acked=len(names))


def test_a_disk_without_any_reserve_left_stops_the_journal() -> None:
    disk = CrashDisk()
    log = filled(disk)
    disk.fill()
    disk.unlink(f"{ROOT}/reserve")  # As if the reserve were spent.
    disk.fill()
    log.append(entry(5))
    with pytest.raises(JournalFailed):
        log.sync()
    log.close()
    disk.capacity = None
    check_recovered(disk, [f"e{n}" for n in range(6)], acked=5)


async def test_the_writer_tells_of_a_full_disk_and_of_its_end(autojump_clock: trio.testing.MockClock) -> None:
    disk = CrashDisk()
    log = open_small(disk)
    told: list[bool] = []
    writer = JournalWriter(log, sync=Inline(), on_degraded=told.append)
    async with trio.open_nursery() as nursery:
        await nursery.start(writer.run)
        with writer.open_sender() as sender:
            disk.fill()
            await sender.wait_durable(sender.append(entry(0)))
            assert told == [True]
            with pytest.raises(JournalFull):
                sender.append(opening(1))
            disk.capacity = None
            await trio.sleep(5)  # It looks by itself.
            assert told == [True, False]
            await sender.wait_durable(sender.append(opening(1)))


# Descriptors, and a file system that turns read-only.


@pytest.mark.parametrize("operation", ["create", "open_read"])
def test_a_cut_without_a_descriptor_goes_on_in_the_old_segment(operation: str) -> None:
    """EMFILE is no reason to stop: the segment grows past its size, and is cut at the next chance."""
    disk = CrashDisk()
    log = filled(disk)
    names = until_cut(log, disk)
    disk.fail(operation, errno.EMFILE, times=2)
    for _ in range(3):
        names.append(f"e{len(names)}")
        log.append(large(len(names) - 1))
        log.sync()
    assert log.durable == len(names)
    assert "segment-00000002.log" in disk.list_dir(ROOT)
    log.abandon()
    check_recovered(disk.crash(Fate.DROPPED), names, acked=len(names))


@pytest.mark.parametrize("operation", ["create", "open_read", "lock", "sync_dir"])
def test_opening_without_a_descriptor_is_a_named_error(operation: str) -> None:
    disk = CrashDisk()
    filled(disk).abandon()
    before = {path: content for path, content in disk.tree().items() if not path.endswith("/lock")}
    disk.fail(operation, errno.EMFILE, times=None)  # type: ignore[arg-type]
    with pytest.raises(JournalError) as caught:
        open_small(disk)
    assert repr(ROOT) in str(caught.value)
    assert disk.open_files == ()
    disk.heal()
    if operation != "sync_dir":
        assert {path: content for path, content in disk.tree().items() if not path.endswith("/lock")} == before
    assert ids_of(open_small(disk)) == [f"e{n}" for n in range(5)]


def test_a_file_system_that_turns_read_only_stops_the_run_and_opens_for_reading() -> None:
    """J11: EROFS in mid-run; afterwards the journal opens read-only, and for writing once it is mounted so again."""
    disk = CrashDisk()
    log = filled(disk)
    disk.read_only = True
    log.append(entry(5))
    with pytest.raises(JournalFailed):
        log.sync()
    log.close()
    before = disk.tree()
    reading = open_small(disk)
    assert isinstance(reading.refusal, JournalReadOnly)
    assert "read-only" in str(reading.refusal)
    assert ids_of(reading) == [f"e{n}" for n in range(5)]
    with pytest.raises(JournalReadOnly):
        reading.append(entry(6))
    reading.close()
    assert disk.tree() == before
    assert disk.open_files == ()
    disk.read_only = False
    check_recovered(disk, [f"e{n}" for n in range(6)], acked=5)


# Locks.


def test_a_second_opener_is_refused_with_the_owners_pid_and_readers_are_not() -> None:
    """J9: before its first turn, and without a trace."""
    disk = CrashDisk()
    log = filled(disk)
    other = disk.process()
    before = disk.tree()
    with pytest.raises(JournalLocked) as caught:
        open_small(other)
    assert caught.value.facts["pid"] == os.getpid()
    assert str(os.getpid()) in str(caught.value)
    assert other.open_files == ()
    assert disk.tree() == before
    assert len(list(open_reader(ROOT, disk=other).records())) == 5
    assert len(list(open_log(ROOT, disk=other, read_only=True).records())) == 5
    log.append(entry(5))
    log.sync()
    assert len(list(open_reader(ROOT, disk=other).records())) == 6
    log.close()
    assert ids_of(open_small(other)) == [f"e{n}" for n in range(6)]


def test_a_killed_owner_does_not_keep_the_lock() -> None:
    disk = CrashDisk()
    filled(disk)
    assert ids_of(open_small(disk.kill())) == [f"e{n}" for n in range(5)]


FORKING = """
import os, signal, sys
from trouper.journal import open_log

log = open_log(sys.argv[1])
begun, begin = os.pipe()
if not os.fork():
    os.write(begin, b"!")
    os.close(1)
    os.read(0, 1)  # Until the test has seen enough.
    os._exit(0)
os.read(begun, 1)
if sys.argv[2] == "closed":
    log.close()
    open_log(sys.argv[1]).close()
print("ready", flush=True)
signal.pause()
"""


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_a_process_that_was_forked_from_the_owner_keeps_nobody_out(tmp_path: Path, end: str) -> None:
    """J9: as a pool of workers is, which outlives an owner that is killed. The next start was told to stop a process that was gone."""
    root = str(tmp_path / "state")
    owner = subprocess.Popen(
        [sys.executable, "-c", FORKING, root, end], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with owner:
        assert owner.stdout is not None and owner.stdout.readline() == "ready\n"
        if end == "killed":
            with pytest.raises(JournalLocked):
                open_log(root)
        owner.kill()
        owner.wait()
        open_log(root).close()


FORKED = """
import os, sys
from trouper.journal import Entry, JournalFailed, open_log
log = open_log(sys.argv[1], level="write")

def append(n):
    log.append(Entry("a", f"e{n}", b'{"session":"a","id":"e%d"' % n, b"{}"))

append(0)
child = os.fork()
if not child:
    try:
        append(1)
    except JournalFailed as refusal:
        print(refusal, flush=True)
    os._exit(0)
os.waitpid(child, 0)
append(2)
log.close()
"""


def test_a_process_that_was_forked_from_the_owner_writes_nothing(tmp_path: Path) -> None:
    """I34: the two would write over each other, into one file."""
    root = str(tmp_path / "state")
    ran = subprocess.run([sys.executable, "-c", FORKED, root], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "belongs to the process that this one was forked from" in ran.stdout
    with closing(open_log(root)) as log:
        assert ids_of(log) == ["e0", "e2"]


def test_a_deleted_lock_file_lets_a_second_writer_in_and_stops_the_first() -> None:
    """Deleting the lock is sabotage; still, from the moment that the second has recovered, the first is told that it is over."""
    disk = CrashDisk()
    first = filled(disk)
    other = disk.process()
    other.unlink(f"{ROOT}/lock")
    second = open_small(other)
    assert ids_of(second) == [f"e{n}" for n in range(5)]
    first.append(entry(5))
    with pytest.raises(JournalFailed):
        first.sync()
    assert first.durable == 5
    second.append(entry(6))
    second.sync()
    first.abandon()
    assert ids_of(second) == [*(f"e{n}" for n in range(5)), "e6"]
    second.abandon()
    check_recovered(disk.crash(Fate.DROPPED), [*(f"e{n}" for n in range(5)), "e6"], acked=6)


def test_a_journal_deleted_under_a_writer_stops_it() -> None:
    disk = CrashDisk()
    log = filled(disk)
    disk.process().unlink(f"{ROOT}/segment-00000001.log")
    log.append(entry(5))
    with pytest.raises(JournalFailed):
        log.sync()


def _cut(log: Log) -> None:
    for number in range(20):
        log.append(entry(100 + number, body=b'"%b"' % (b"q" * 600)))


#: What a writer makes by its path, whatever its level; and the acknowledgement itself, where there is a sync.
REACHING_OUT: dict[str, tuple[Level, Callable[[Log], object]]] = {
    "a record": ("fsync", lambda log: log.sync()),
    "a new segment": ("write", _cut),
    "a body of its own": ("write", lambda log: log.append(entry(7, body=b'"%b"' % (b"B" * 1_100_000)))),
    "a snapshot": ("write", lambda log: log.write_snapshot(5, [("s", "1", b"{}")])),
    "its end": ("write", lambda log: log.close()),
}


@pytest.mark.parametrize(("level", "reach_out"), REACHING_OUT.values(), ids=REACHING_OUT)
def test_a_root_that_is_moved_away_under_a_writer_leaves_the_one_in_its_place_alone(
    tmp_path: Path, level: Level, reach_out: Callable[[Log], object]
) -> None:
    """J11, I34: on the real disk. The writer went on in the journal of another, which was damaged by it."""
    root, aside = tmp_path / "state", tmp_path / "state.old"
    first = open_log(str(root), level=level, segment_bytes=SEGMENT_BYTES)
    for number in range(5):
        first.append(entry(number))
    first.sync()
    root.rename(aside)
    second = open_log(str(root))
    second.append(entry(0, stream="other"))
    second.sync()
    before = _named_files(root)
    first.append(entry(5))
    with pytest.raises((JournalFailed, FileNotFoundError), match="removed, moved or replaced"):
        reach_out(first)
    assert _named_files(root) == before
    first.abandon()
    second.append(entry(1, stream="other"))
    second.close()
    assert verify(str(root)).ok and verify(str(aside)).ok
    assert ids_of(open_log(str(root))) == ["e0", "e1"]
    assert ids_of(open_log(str(aside)))[:5] == [f"e{number}" for number in range(5)]


def _named_files(root: Path) -> list[Path]:
    """All but temporary ones, which the next start removes."""
    return sorted(path for path in root.rglob("*") if path.is_file() and path.suffix != ".tmp")


def test_a_live_segment_that_is_renamed_under_its_writer_stops_it(tmp_path: Path) -> None:
    """J11: as programs do that rotate logs. What is acknowledged would be missing at the next start."""
    log = open_log(str(tmp_path))
    log.append(entry(0))
    log.sync()
    (tmp_path / "segment-00000001.log").rename(tmp_path / "segment-00000001.log.1")
    log.append(entry(1))
    with pytest.raises(JournalFailed, match="removed, moved or replaced"):
        log.sync()
    assert log.durable == 1
    log.abandon()


# Clocks.


def test_order_is_by_sequence_whatever_the_clock_says() -> None:
    """J6: a wall clock that goes back an hour, then ahead ten years, changes no order and no recovery."""
    disk = CrashDisk()
    log = open_small(disk)
    wall = VirtualWall(trio.testing.MockClock())
    times = []
    for number, leap in enumerate([{}, {"hours": -1}, {}, {"years": 10}, {"years": -20}]):
        wall.leap(**leap)
        times.append(wall())
        log.append(
            Entry(
                "s",
                f"e{number}",
                b'{"v":1,"type":"noted","id":"e%d","session":"s","at":%d' % (number, wall()),
                b"null",
            )
        )
        log.sync()
    assert times != sorted(times)
    log.abandon()
    found = open_small(disk.crash(Fate.DROPPED))
    assert ids_of(found) == [f"e{n}" for n in range(5)]
    assert [b'"at":%d' % at in record.payload for at, record in zip(times, found.records(), strict=True)] == [True] * 5


# Names that a killed process left unsynced.


def test_a_root_made_by_a_killed_process_is_made_to_last_by_the_next() -> None:
    """A name in the page cache is not on the medium: who finds the directory must still sync its parent before it promises anything."""
    plain = CrashDisk()
    open_small(plain).abandon()
    for step in range(2, plain.steps + 1):
        disk = CrashDisk()
        forks: list[CrashDisk] = []
        disk.watch(
            lambda made, forks=forks, disk=disk, step=step: forks.append(disk.fork()) if made.number == step else None
        )
        open_small(disk).abandon()
        survivor = forks[0]
        log = open_small(survivor)
        log.append(entry(0))
        log.sync()
        after = survivor.crash(Fate.DROPPED)
        assert after.is_dir(ROOT), f"killed before {disk.log[step - 1]}: the journal is gone, and e0 was acknowledged"
        check_recovered(after, ["e0"], acked=1)
