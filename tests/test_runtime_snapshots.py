"""What a snapshot costs: it follows what has changed, and nobody waits for it. What it holds is in test_roster.py and test_resident.py."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from trouper import Runtime
from trouper.journal import open_log
from trouper.models import Scripted, reply
from trouper.roster import Roster, fold
from trouper.snapshots import SLICE_BYTES, Picture
from trouper.testing import CrashDisk

ROOT = "/root"
#: A state that takes a slice by itself.
LONG = "word " * (SLICE_BYTES // 5)
NAMES = tuple("abcdef")


async def opened(runtime: Runtime, text: str = "hello") -> None:
    for name in NAMES:
        await (await runtime.session(name)).ask(text)


def written_out(picture: Picture) -> set[str]:
    """The names of what it does not copy from the snapshot before."""
    return {name for name, section in picture.sections if callable(section) or section[1] is not None}


def folded(disk: CrashDisk) -> dict[str, tuple[Any, Any]]:
    """Of each session, what the snapshot and the records after it give, and what all its records give."""
    log = open_log(ROOT, disk=disk.fork())
    try:
        roster = Roster(log)
        return {name: (roster.load(name), fold(each.payload for each in log.records(stream=name))) for name in NAMES}
    finally:
        log.close()


@pytest.fixture
def runtimes(open_checked: Any) -> Callable[[CrashDisk], Any]:
    def opened_on(disk: CrashDisk) -> Any:
        model = Scripted([reply("Yes.")], exhausted="repeat")
        return open_checked(model, root=ROOT, disk=disk, durability="fsync")

    return opened_on


async def test_only_what_has_changed_since_the_last_snapshot_is_written_out_again(autojump_clock, runtimes):
    """J13: a thousand sessions that stay open and say nothing cost nothing but a copy."""
    disk = CrashDisk()
    async with runtimes(disk) as runtime:
        snapshots = runtime._ground.snapshots
        await runtime.memory.remember("facts", "tea", "green")
        await opened(runtime)
        assert written_out(snapshots.pictured()) == {*NAMES, "~memory"}
        await snapshots.write()
        assert written_out(snapshots.pictured()) == set()
        await (await runtime.session("b")).ask("and now?")
        assert written_out(snapshots.pictured()) == {"b"}
        await snapshots.write()
        await runtime.memory.remember("facts", "coffee", "black")
        assert written_out(snapshots.pictured()) == {"~memory"}
        await snapshots.write()
        assert all(told == whole for told, whole in folded(disk).values())
    async with runtimes(disk) as runtime:
        assert {memo.key for memo in await runtime.memory.list("facts")} == {"tea", "coffee"}


async def test_a_session_that_was_read_from_a_snapshot_is_copied_from_it(autojump_clock, runtimes):
    """J13: the next process need not write out what it has only looked at."""
    disk = CrashDisk()
    async with runtimes(disk) as runtime:
        await opened(runtime)
    async with runtimes(disk) as runtime:
        for name in NAMES:
            await runtime.session(name)
        assert written_out(runtime._ground.snapshots.pictured()) == set()


async def test_what_the_snapshot_has_spoilt_is_written_out_though_nothing_has_changed(autojump_clock, runtimes):
    """J13, I12: a copy of it would be as spoilt."""
    disk = CrashDisk()
    async with runtimes(disk) as runtime:
        snapshots, roster = runtime._ground.snapshots, runtime._ground.roster
        await opened(runtime)
        await snapshots.write()
        roster.distrust(["c"])
        assert written_out(snapshots.pictured()) == {"c"}
        await snapshots.write()
        assert written_out(snapshots.pictured()) == set()
        assert all(told == whole for told, whole in folded(disk).values())


async def while_it_is_written(runtime: Runtime, doing: Callable[[], Awaitable[object]]) -> bool:
    """Do something while a snapshot is written out; whether it was done before that was over."""
    done: list[bool] = []
    async with trio.open_nursery() as nursery:

        async def do() -> None:
            await doing()
            done.append(not over)

        over = False
        nursery.start_soon(do)
        await runtime._ground.snapshots.write()
        over = True
    return done == [True]


async def test_others_go_on_while_a_snapshot_is_written_out(autojump_clock, runtimes):
    """I24, J13: with many long sessions the loop would stand still for a second."""
    disk = CrashDisk()

    async def take_turns() -> None:
        for _ in NAMES[::2]:
            await trio.lowlevel.checkpoint()

    async with runtimes(disk) as runtime:
        await opened(runtime, LONG)
        assert await while_it_is_written(runtime, take_turns)


async def test_a_snapshot_is_of_one_moment_however_long_it_takes_to_write_it_out(autojump_clock, runtimes):
    """I12, I17: what was said meanwhile is in the records behind it, and only there."""
    disk = CrashDisk()
    async with runtimes(disk) as runtime:
        await opened(runtime, LONG)
        last = await runtime.session(NAMES[-1])
        before = last._actor.next_seq
        await while_it_is_written(runtime, lambda: last.ask("one more"))
        assert last._actor.next_seq > before
        newest = runtime._log.snapshot()
        assert b"one more" not in newest.read(NAMES[-1])
        assert all(told == whole for told, whole in folded(disk).values())
        # And what it has now is not taken for what is in that snapshot.
        await runtime._ground.snapshots.write()
        assert b"one more" in runtime._log.snapshot().read(NAMES[-1])


async def test_what_a_dead_process_left_is_folded_little_by_little_too(autojump_clock, runtimes):
    """J13, I12: after a crash the first snapshot has all of it, and each as it was at that moment."""
    disk = CrashDisk()
    async with runtimes(disk) as runtime:
        await opened(runtime, LONG)
        left = disk.fork().kill()
    async with runtimes(left) as runtime:
        last = await runtime.session(NAMES[-1])
        first = last._actor.next_seq

        async def go_on_with_another() -> None:
            await (await runtime.session(NAMES[-2])).ask("one more")

        await while_it_is_written(runtime, go_on_with_another)
        assert b"one more" not in runtime._log.snapshot().read(NAMES[-2])
        assert last._actor.next_seq == first
        assert all(told == whole for told, whole in folded(left).values())


async def test_a_runtime_that_is_cancelled_while_a_snapshot_is_written_out_loses_nothing(autojump_clock, runtimes):
    """I12: the one before is still there, and the records are."""
    for steps in range(len(NAMES) + 2):
        disk = CrashDisk()
        with trio.CancelScope() as scope:
            async with runtimes(disk) as runtime:
                await opened(runtime, LONG)

                async def cancel_soon(steps: int = steps, scope: trio.CancelScope = scope) -> None:
                    for _ in range(steps):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(cancel_soon)
                    await runtime._ground.snapshots.write()
                    await trio.sleep_forever()
        assert scope.cancelled_caught
        assert all(told == whole and whole[0].turns == 1 for told, whole in folded(disk).values())


async def test_what_a_snapshot_that_was_not_written_would_have_held_is_in_that_of_the_end(autojump_clock, runtimes):
    """J13: the next start folded all of it, though the disk had room again."""
    disk = CrashDisk()
    async with runtimes(disk) as runtime:
        await opened(runtime)
        disk.fail("create", errno.ENOSPC, path="*/snapshot-*")
        await runtime._ground.snapshots.write()
        assert runtime._log.snapshot() is None
        last = runtime._log.last
    log = open_log(ROOT, disk=disk)
    assert log.snapshot().seq == last
    log.close()


async def test_a_runtime_that_is_cancelled_while_a_snapshot_is_written_out_writes_one_at_its_end(
    autojump_clock, runtimes
):
    """J13: however early it is cancelled, and though nothing was said since."""
    for steps in range(1, len(NAMES)):
        disk = CrashDisk()
        with trio.CancelScope() as scope:
            async with runtimes(disk) as runtime:
                await opened(runtime, LONG)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(runtime._ground.snapshots.write)
                    for _ in range(steps):
                        await trio.lowlevel.checkpoint()
                    last = runtime._log.last
                    scope.cancel()
        log = open_log(ROOT, disk=disk)
        assert log.snapshot().seq == last
        log.close()
