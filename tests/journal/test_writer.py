"""The writer: group commit, acks, the end (J1, J2, J4, J11)."""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trio
import trio.testing
from journal_workload import entry, ids_of

from trouper._errors import UsageError
from trouper.actors.journal import BUFFERED_S, GATHER_S, Inline, JournalWriter, Threaded
from trouper.journal import JournalClosed, JournalError, JournalFailed, Level, open_log
from trouper.journal.log import AHEAD_BYTES_MAX
from trouper.testing import CrashDisk


def syncs(disk: CrashDisk) -> int:
    return sum(step.operation == "sync" for step in disk.log)


async def test_an_ack_comes_after_the_sync(autojump_clock: trio.testing.MockClock) -> None:
    """J1."""
    disk = CrashDisk()
    writer = JournalWriter(open_log("/j", disk=disk))
    async with trio.open_nursery() as nursery:
        await nursery.start(writer.run)
        with writer.open_sender() as sender:
            seq = sender.append(entry(0))
            assert not sender.is_durable(seq)
            before = syncs(disk)
            await sender.wait_durable(seq)
            assert sender.is_durable(seq)
            assert syncs(disk) == before + 1


async def test_a_wait_for_what_is_safe_is_no_checkpoint(autojump_clock: trio.testing.MockClock) -> None:
    writer = JournalWriter(open_log("/j", level="memory"))
    seq = writer.append(entry(0))
    with trio.testing.assert_no_checkpoints():
        await writer.wait_durable(seq)


async def test_those_who_append_together_share_a_sync(autojump_clock: trio.testing.MockClock) -> None:
    """J2."""
    disk = CrashDisk()
    writer = JournalWriter(open_log("/j", disk=disk))

    async def one(number: int) -> None:
        await writer.wait_durable(writer.append(entry(number)))

    async with trio.open_nursery() as nursery:
        await nursery.start(writer.run)
        with writer.open_sender():
            before = syncs(disk)
            async with trio.open_nursery() as inner:
                for number in range(50):
                    inner.start_soon(one, number)
            assert syncs(disk) - before <= 2


async def test_the_next_batch_gathers_while_a_sync_runs(autojump_clock: trio.testing.MockClock) -> None:
    """J2: in virtual time, with syncs of a second; who comes during the first is in the second, all together."""
    disk = CrashDisk()
    writer = JournalWriter(open_log("/j", disk=disk), sync=Inline(latency=lambda: 1.0))
    acks: list[float] = []

    async def one(number: int) -> None:
        await trio.sleep(number * 0.05)
        await writer.wait_durable(writer.append(entry(number)))
        acks.append(trio.current_time() - start)

    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        await nursery.start(writer.run)
        with writer.open_sender():
            async with trio.open_nursery() as inner:
                for number in range(10):
                    inner.start_soon(one, number)
    assert acks == pytest.approx([1.0] + [2.0] * 9)
    assert writer.statistics().batches == 2


@pytest.mark.parametrize("level", ["fsync", "write"])
async def test_buffered_entries_are_safe_within_a_second(autojump_clock: trio.testing.MockClock, level: str) -> None:
    """J1: though nobody waits for them."""
    writer = JournalWriter(open_log("/j", disk=CrashDisk(), level=level))  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        await nursery.start(writer.run)
        with writer.open_sender() as sender:
            for number in range(5):
                seq = sender.append(entry(number, durable=False))
                assert not sender.is_durable(seq)
                await trio.sleep(BUFFERED_S + 0.01)
                assert sender.is_durable(seq)


async def test_durable_entries_that_nobody_waits_for_are_sent_within_5_ms(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """J2: also if buffered ones set a longer timer before."""
    writer = JournalWriter(open_log("/j", disk=CrashDisk()))
    async with trio.open_nursery() as nursery:
        await nursery.start(writer.run)
        with writer.open_sender() as sender:
            for number in range(0, 10, 2):
                sender.append(entry(number, durable=False))
                await trio.sleep(0.01)
                seq = sender.append(entry(number + 1))
                assert not sender.is_durable(seq)
                await trio.sleep(GATHER_S + 0.001)
                assert sender.is_durable(seq)


async def test_256_kib_are_sent_at_once(autojump_clock: trio.testing.MockClock) -> None:
    """J2."""
    writer = JournalWriter(open_log("/j", disk=CrashDisk()))
    async with trio.open_nursery() as nursery:
        await nursery.start(writer.run)
        with writer.open_sender() as sender:
            for number in range(30):
                sender.append(entry(number, durable=False, body=b'"%b"' % (b"x" * 10_000)))
            assert sender.is_durable(20)


async def test_a_cancelled_caller_cancels_no_append(autojump_clock: trio.testing.MockClock) -> None:
    """J2: it stays until it knows, and the record is there."""
    writer = JournalWriter(open_log("/j", disk=CrashDisk()), sync=Inline(latency=lambda: 1.0))
    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        await nursery.start(writer.run)
        with writer.open_sender() as sender:
            with trio.CancelScope() as scope:
                scope.cancel()
                seq = sender.append(entry(0))
                await sender.wait_durable(seq)
                assert sender.is_durable(seq)
            assert trio.current_time() - start == pytest.approx(1.0)
    assert ids_of(writer.log) == ["e0"]


async def test_run_outlives_a_cancelled_tree_until_the_last_sender_closes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The journal is outermost and shielded: the others may still record how they ended."""
    disk = CrashDisk()
    writer = JournalWriter(open_log("/j", disk=disk))
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            await nursery.start(writer.run)
            first, second = writer.open_sender(), writer.open_sender()
            scope.cancel()
            first.close()
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
                await second.wait_durable(second.append(entry(0)))
                second.append(entry(1))
                second.append(entry(2, durable=False))
            second.close()
    # What was pending at the end is safe too.
    assert writer.log.durable == 3
    assert ids_of(open_log("/j", disk=disk.crash(seed=1))) == ["e0", "e1", "e2"]
    with pytest.raises(JournalClosed):
        second.append(entry(3))
    with pytest.raises(JournalClosed):
        writer.open_sender()


async def test_a_close_without_senders_ends_the_task(autojump_clock: trio.testing.MockClock) -> None:
    writer = JournalWriter(open_log("/j", level="memory"))
    async with trio.open_nursery() as nursery:
        await nursery.start(writer.run)
        writer.close()


async def test_a_failure_reaches_those_who_wait_and_those_who_come_later(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """J11."""
    disk = CrashDisk()
    writer = JournalWriter(open_log("/j", disk=disk), sync=Inline(latency=lambda: 1.0))
    disk.fail("sync", 5)
    with pytest.raises(BaseExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            await nursery.start(writer.run)
            with writer.open_sender() as sender:
                seq = sender.append(entry(0))
                with pytest.raises(JournalFailed, match="start again"):
                    await sender.wait_durable(seq)
                with pytest.raises(JournalFailed):
                    await sender.wait_durable(seq)
                with pytest.raises(JournalFailed):
                    sender.append(entry(1))
    assert caught.group_contains(JournalFailed)


@pytest.mark.parametrize("where", ["trouper.journal.log.Log._write", "trouper.journal.log.crc32"])
@pytest.mark.parametrize("level", ["fsync", "write"])
async def test_an_error_that_is_none_of_the_disk_fails_the_journal_too(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, level: Level, where: str
) -> None:
    """J11: MemoryError in the middle of a commit, or before it. Nothing may come behind records that are not there, and nobody waits for them for ever."""
    log = open_log("/j", level=level, disk=CrashDisk())
    writer = JournalWriter(log)

    def out_of_memory(*arguments: object) -> None:
        raise MemoryError

    with pytest.raises(BaseExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            await nursery.start(writer.run)
            with writer.open_sender() as sender:
                monkeypatch.setattr(where, out_of_memory)
                with pytest.raises(JournalFailed if level == "fsync" else MemoryError):
                    await sender.wait_durable(sender.append(entry(0)))
                monkeypatch.undo()
                with pytest.raises(JournalFailed):
                    await sender.wait_durable(log.last)
                with pytest.raises(JournalFailed):
                    sender.append(entry(1))
    assert caught.group_contains(JournalFailed)


async def test_a_wait_for_what_was_never_appended_is_refused() -> None:
    writer = JournalWriter(open_log("/j", disk=CrashDisk()))
    with pytest.raises(UsageError, match="never appended"):
        await writer.wait_durable(7)


async def test_without_its_task_the_writer_still_keeps_its_promise() -> None:
    disk = CrashDisk()
    writer = JournalWriter(open_log("/j", disk=disk))
    await writer.wait_durable(writer.append(entry(0)))
    assert ids_of(open_log("/j", disk=disk.crash(seed=1))) == ["e0"]


async def test_the_real_disk_with_the_real_thread(tmp_path: Path) -> None:
    """Many tasks, some cancelled, some that do not wait: all is there in the end, each id once, and no thread is left."""
    before = threading.active_count()
    log = open_log(tmp_path / "j", segment_bytes=20_000)
    writer = JournalWriter(log)
    acked: set[int] = set()

    async def one(task: int) -> None:
        for number in range(20):
            seq = writer.append(entry(task * 100 + number, stream=f"s{task}", durable=number % 4 != 3))
            if number % 4 == 0:
                with trio.CancelScope() as scope:
                    if task % 3 == 0:
                        scope.cancel()
                    await writer.wait_durable(seq)
                    acked.add(seq)
            else:
                await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        await nursery.start(writer.run)
        with writer.open_sender():
            async with trio.open_nursery() as inner:
                for task in range(20):
                    inner.start_soon(one, task)
            # One alone, so that a wait in place is taken as well.
            for number in range(20):
                await writer.wait_durable(writer.append(entry(5000 + number)))
    assert threading.active_count() == before
    assert len(acked) == 100
    assert log.durable == log.last == 420
    names = [json.loads(record.payload)["id"] for record in log.records()]
    assert len(set(names)) == len(names) == 420
    log.close()


async def test_without_a_descriptor_for_its_thread_the_writer_says_so_and_leaves_none_open(tmp_path: Path) -> None:
    """EMFILE, I21."""
    log = open_log(tmp_path / "j")
    writer = JournalWriter(log)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, hard))  # Room for one; a pipe has two ends.
    try:
        with pytest.raises(JournalError, match="ulimit -n"):
            await writer.run()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    again = os.dup(0)
    os.close(again)
    assert again == lowest
    log.close()


async def test_the_writer_leaves_neither_thread_nor_descriptor_behind(tmp_path: Path) -> None:
    """I21."""
    log = open_log(tmp_path / "j")
    before = sorted(os.listdir("/proc/self/fd")), threading.active_count()
    writer = JournalWriter(log)
    async with trio.open_nursery() as nursery:
        await nursery.start(writer.run)
        with writer.open_sender() as sender:
            await sender.wait_durable(sender.append(entry(0)))
    assert (sorted(os.listdir("/proc/self/fd")), threading.active_count()) == before
    log.close()


#: Ctrl-C while a task waits in place for the disk; what the task learns, and how the program ends.
PRESSED_IN_MID_SYNC = """
import signal, threading, trio
from trouper.actors.journal import JournalWriter, Threaded
from trouper.journal import Entry, open_log
from trouper.testing import CrashDisk

disk = CrashDisk()
writer = JournalWriter(open_log("/j", disk=disk), sync=Threaded(hold_s=60.0))
disk.stall("sync", lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT))

async def main():
    async with trio.open_nursery() as nursery:
        await nursery.start(writer.run)
        with writer.open_sender() as sender:
            seq = sender.append(Entry("s", "e0", b'{"id":"e0","session":"s"', b"0"))
            await sender.wait_durable(seq)
            print("durable:", sender.is_durable(seq))
            await trio.lowlevel.checkpoint()

try:
    trio.run(main)
except* KeyboardInterrupt:
    print("interrupted")
"""


def test_a_ctrl_c_comes_after_the_ack_of_a_wait_in_place() -> None:
    """J2: it must not leave a sync behind that nobody takes note of; everyone else would wait for that for ever."""
    done = subprocess.run([sys.executable, "-c", PRESSED_IN_MID_SYNC], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("durable: True\ninterrupted\n", "")


async def test_a_mock_clock_gets_no_thread(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A mock clock would jump while the thread runs."""
    before = threading.active_count()
    log = open_log(tmp_path / "j")
    writer = JournalWriter(log)
    async with trio.open_nursery() as nursery:
        await nursery.start(writer.run)
        with writer.open_sender() as sender:
            start = trio.current_time()
            await sender.wait_durable(sender.append(entry(0)))
            assert trio.current_time() == start
            assert threading.active_count() == before
    log.close()


@pytest.mark.parametrize("in_memory", [True, False])
async def test_any_disk_that_is_not_memory_is_waited_for_in_a_thread(in_memory: bool) -> None:
    """J2: one of the caller's own, whose sync took its time, held the event loop for as long."""

    class OwnDisk(CrashDisk):
        pass

    OwnDisk.in_memory = in_memory
    log = open_log("/j", disk=OwnDisk())
    writer = JournalWriter(log)
    async with trio.open_nursery() as nursery:
        await nursery.start(writer.run)
        with writer.open_sender() as sender:
            await sender.wait_durable(sender.append(entry(0)))
            assert writer.is_threaded is not in_memory
    log.close()


async def test_a_failure_in_the_thread_reaches_everyone(tmp_path: Path) -> None:
    disk = CrashDisk()
    writer = JournalWriter(open_log("/j", disk=disk), sync=Threaded())
    failed: list[int] = []

    async def one(number: int) -> None:
        with pytest.raises(JournalFailed):
            await writer.wait_durable(writer.append(entry(number)))
        failed.append(number)

    disk.fail("sync", 5, times=None)
    with pytest.raises(BaseExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            await nursery.start(writer.run)
            with writer.open_sender():
                async with trio.open_nursery() as inner:
                    for number in range(5):
                        inner.start_soon(one, number)
    assert caught.group_contains(JournalFailed)
    assert sorted(failed) == [0, 1, 2, 3, 4]


async def test_statistics_tell_how_the_writer_stands(autojump_clock: trio.testing.MockClock) -> None:
    writer = JournalWriter(open_log("/j", disk=CrashDisk()))
    async with trio.open_nursery() as nursery:
        await nursery.start(writer.run)
        with writer.open_sender() as sender:
            sender.append(entry(0))
            found = writer.statistics()
            assert (found.last, found.durable, found.pending, found.senders) == (1, 0, 1, 1)
            await sender.wait_durable(1)
            found = writer.statistics()
            assert (found.durable, found.pending, found.batches, found.records) == (1, 0, 1, 1)


async def test_what_was_written_ahead_is_synced_with_what_comes_next(autojump_clock: trio.testing.MockClock) -> None:
    """J1, J2: one sync covers both, and whoever went ahead is told."""
    disk = CrashDisk()
    writer = JournalWriter(open_log("/j", disk=disk))
    told: list[int] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(writer.run)
        with writer.open_sender():
            before = syncs(disk)
            first = writer.append(entry(0))
            assert writer.write_ahead(first, lambda: told.append(syncs(disk) - before))
            assert ids_of(writer.log) == [entry(0).id] and not writer.is_durable(first)
            await writer.wait_durable(writer.append(entry(1)))
            assert writer.is_durable(first) and told == [1]


async def test_what_was_written_ahead_is_synced_when_nothing_comes(autojump_clock: trio.testing.MockClock) -> None:
    """J2: within the time that a sync may wait for others; and at the end at the latest."""
    disk = CrashDisk()
    writer = JournalWriter(open_log("/j", disk=disk))
    told: list[float] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(writer.run)
        with writer.open_sender():
            begun = trio.current_time()
            assert writer.write_ahead(writer.append(entry(0)), lambda: told.append(trio.current_time() - begun))
            await trio.sleep(1)
            assert len(told) == 1 and told[0] <= GATHER_S
            last = writer.append(entry(1))
            assert writer.write_ahead(last, lambda: told.append(math.inf))
    assert writer.is_durable(last) and told[1:] == [math.inf]


async def test_nothing_is_written_ahead_where_a_segment_would_be_cut(autojump_clock: trio.testing.MockClock) -> None:
    """J2, J7: that takes several syncs, and is not for the event loop."""
    writer = JournalWriter(open_log("/j", disk=CrashDisk(), segment_bytes=AHEAD_BYTES_MAX))
    seq = writer.append(entry(0))
    assert not writer.write_ahead(seq, lambda: None) and writer.log.pending_count == 1
    await writer.wait_durable(seq)


async def test_nothing_is_written_ahead_while_a_sync_runs(autojump_clock: trio.testing.MockClock) -> None:
    """J2: records reach the file in their order, and by one hand."""
    writer = JournalWriter(open_log("/j", disk=CrashDisk()), sync=Inline(latency=lambda: 1.0))
    async with trio.open_nursery() as nursery:
        await nursery.start(writer.run)
        with writer.open_sender():
            nursery.start_soon(writer.wait_durable, writer.append(entry(0)))
            await trio.sleep(0.5)
            second = writer.append(entry(1))
            assert not writer.write_ahead(second, lambda: None)
            await writer.wait_durable(second)
    assert ids_of(writer.log) == [entry(0).id, entry(1).id]
