"""A runtime whose disk fails under it: callers hear of the disk, the runtime ends loudly or goes on, and what was acknowledged is there again (J11)."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trio

from trouper import open_runtime
from trouper.journal import JournalError, JournalFailed, JournalFull, verify
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


@contextmanager
def files_left(count: int) -> Iterator[None]:
    """In here this process can open so many files, and no more."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.dup(0)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 64, limits[1]))
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(count):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for each in taken:
            os.close(each)


async def test_too_few_files_for_a_runtime_are_told_as_one_error_however_far_it_came(tmp_path: Path) -> None:
    """J11, I21: on the real disk, with one more file each time until there are enough."""
    root = tmp_path / "state"
    for _ in range(2):
        # Twice: what is loaded when it is first needed is there then.
        async with open_runtime(root) as runtime:
            await (await runtime.session("a")).ask("one")
    told = []
    for count in range(40):
        open_before = len(os.listdir("/dev/fd"))
        with files_left(count):
            try:
                async with open_runtime(root) as runtime:
                    break
            except JournalError as error:
                told.append(str(error))
        assert len(os.listdir("/dev/fd")) == open_before
    assert len(told) > 4 and all("open files" in each for each in told)
    assert verify(root).ok
    async with open_runtime(root) as runtime:
        assert len((await runtime.session("a")).history) == 4


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
