"""A runtime whose disk fails under it: callers hear of the disk, the runtime ends loudly or goes on, and what was acknowledged is there again (J11)."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
import trio

from trouper import open_runtime
from trouper.journal import JournalFailed, JournalFull
from trouper.testing import CrashDisk, Fate

ROOT = "/state"


async def heard(disk: CrashDisk) -> int:
    """How many messages the session has after a start on what the disk holds."""
    async with open_runtime(ROOT, disk=disk) as runtime:
        session = await runtime.session("a")
        assert (await session.ask("still there?")).text == "You said: still there?"
        return len(session.history)


FATAL: dict[str, Callable[[CrashDisk], None]] = {
    "a sync fails": lambda disk: disk.fail("sync", errno.EIO),
    "a write fails": lambda disk: disk.fail("write", errno.EIO),
    "read-only in mid-run": lambda disk: setattr(disk, "read_only", True),
    "over quota for good": lambda disk: disk.fail("write", errno.EDQUOT, times=None),
}


@pytest.mark.parametrize("harm", FATAL.values(), ids=FATAL)
async def test_a_disk_that_fails_ends_the_runtime_and_every_caller_is_told_why(
    autojump_clock: trio.abc.Clock, harm: Callable[[CrashDisk], None]
) -> None:
    disk = CrashDisk()
    with pytest.raises(JournalFailed, match="recovery keeps all that was acknowledged") as caught:
        async with open_runtime(ROOT, disk=disk) as runtime:
            session = await runtime.session("a")
            await session.ask("one")
            harm(disk)
            for _ in range(2):
                # Not `SessionEnded`: there is no use in opening the session again.
                with pytest.raises(JournalFailed, match="Check the disk"):
                    await session.ask("two")
            with pytest.raises(JournalFailed, match="Check the disk"):
                async with session.turn("three"):
                    pass
            with pytest.raises(JournalFailed, match="Check the disk"):
                await session.close()
    assert caught.value.exit_code == 74
    assert await heard(disk.crash(Fate.DROPPED)) >= 4


async def test_a_full_disk_lets_running_work_end_and_goes_on_when_there_is_space(
    autojump_clock: trio.abc.Clock,
) -> None:
    disk = CrashDisk()
    async with open_runtime(ROOT, disk=disk) as runtime:
        session = await runtime.session("a")
        async with session.turn("one") as turn:
            disk.fill()
            result = await turn.wait_ended()
        assert result.stop_reason == "end_turn"
        for _ in range(2):
            with pytest.raises(JournalFull, match="free at least 8 MiB there, and it goes on"):
                await session.ask("two")
        assert runtime.statistics().journal.degraded
        disk.capacity = None
        await trio.sleep(2)
        assert not runtime.statistics().journal.degraded
        assert (await session.ask("three")).text == "You said: three"
    assert await heard(disk.crash(Fate.DROPPED)) == 6


async def test_too_many_open_files_stop_nobody_who_needs_none(autojump_clock: trio.abc.Clock) -> None:
    disk = CrashDisk()
    async with open_runtime(ROOT, disk=disk) as runtime:
        session = await runtime.session("a")
        disk.fail("create", errno.EMFILE, times=None)
        disk.fail("open_read", errno.EMFILE, times=None)
        for number in range(3):
            assert (await session.ask(f"{number}")).text == f"You said: {number}"
        disk.heal()
    assert await heard(disk.crash(Fate.DROPPED)) == 8
