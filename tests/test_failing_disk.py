"""A runtime whose disk fails under it: callers hear of the disk, the runtime ends loudly or goes on, and what was acknowledged is there again (J11)."""

from __future__ import annotations

import base64
import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import pytest
import trio

from trouper import Budget, ToolResult, open_runtime, tool
from trouper.core.abridged import KEPT_CHARS, LOST
from trouper.core.events import CompactionEnded
from trouper.core.messages import Media, Outcome
from trouper.journal import BlobRefused, Entry, JournalError, JournalFailed, JournalFull, open_log, verify
from trouper.journal.reader import Reader
from trouper.models import Scripted, call, drop, reply, stall
from trouper.session import SessionEnded
from trouper.testing import CrashDisk, Fate
from trouper.testing.invariants import check_invariants, records_of

ROOT = "/state"
#: Too long for a line of the journal.
LONG = "x" * 1_200_000


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


def test_a_segment_is_cut_when_there_are_descriptors_for_all_of_it_and_grows_on_until_then(tmp_path: Path) -> None:
    """J11: on the real disk. With the last one taken for the new file, none was left for the sync of its name, and the runtime stopped."""
    for count in range(4):
        root = str(tmp_path / f"{count}")
        log = open_log(root, segment_bytes=1_000)
        with files_left(count):
            for number in range(20):
                log.append(Entry("s", f"e{number}", b'{"v":1,"id":"e%d","session":"s"' % number, b"0" * 100))
                log.sync()
        assert log.durable == 20
        log.close()
        assert verify(root).records == 20
    assert len(list(Path(root).glob("segment-*"))) > 1


FIRST_MEMORY = """
import resource, sys
import trio
from trouper import open_runtime

async def main():
    async with open_runtime(sys.argv[1]) as runtime:
        await trio.to_thread.run_sync(str)  # What a thread needs is there.
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        await runtime.memory.remember("a", "first", 1)
        assert (await runtime.memory.recall("a", "first")).value == 1
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        await runtime.memory.remember("a", "second", 2)

trio.run(main)
"""


def test_what_is_remembered_first_needs_no_descriptor_and_can_be_read_when_there_are_some(tmp_path: Path) -> None:
    """B21: in a process that has not loaded the database yet. The record was durable, and whoever made it was told of a failure."""
    ran = subprocess.run([sys.executable, "-c", FIRST_MEMORY, tmp_path / "state"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "could not follow" in ran.stderr
    assert {path.name for path in (tmp_path / "state/memory/a").iterdir()} == {"first.json", "second.json"}


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


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        ("create", errno.EMFILE),
        ("create", errno.EACCES),
        ("create", errno.ENOSPC),
        ("create", errno.EDQUOT),
        ("write", errno.ENOSPC),
        ("write", errno.EDQUOT),
        ("write", errno.EFBIG),
    ],
)
@pytest.mark.parametrize("level", ["fsync", "write"])
async def test_a_prompt_that_has_no_place_is_refused_and_everything_else_goes_on(
    autojump_clock: trio.abc.Clock, operation: str, code: int, level: Literal["fsync", "write"]
) -> None:
    """J11, I23: the whole runtime stopped for one attachment."""
    disk = CrashDisk()
    async with open_runtime(ROOT, disk=disk, durability=level) as runtime:
        session, other = await runtime.session("a"), await runtime.session("b")
        disk.fail(operation, code, path="*/blobs/*", times=None)
        with pytest.raises(BlobRefused, match="then try again"):
            await session.ask(LONG)
        for each in (session, other):
            assert (await each.ask("hello")).text == "You said: hello"
        disk.heal()
        assert (await session.ask(LONG)).stop_reason == "end_turn"
    assert await heard(disk.crash(Fate.DROPPED)) == 6


async def test_a_reply_that_has_no_place_ends_its_turn_and_everything_else_goes_on(
    autojump_clock: trio.abc.Clock,
) -> None:
    """J11, I23, I26, L13: with what could be recorded of it, and why no more could."""
    disk = CrashDisk()
    model = Scripted([reply(LONG), reply("Fine.")], exhausted="repeat")
    async with open_runtime(ROOT, disk=disk, model=model) as runtime:
        session, other = await runtime.session("a"), await runtime.session("b")
        disk.fail("create", errno.EMFILE, path="*/blobs/*", times=None)
        disk.fail("open_read", errno.EMFILE, times=None)
        result = await session.ask("hello")
        assert result.error is not None and "open files" in result.error.message
        assert (result.stop_reason, result.error.kind, result.text) == ("error", "journal", LONG[:KEPT_CHARS])
        for each in (session, other):
            assert (await each.ask("hello")).text == "Fine."
        assert session.history[1].kind == "cut_short"
    disk.heal()
    assert not check_invariants(records_of(Reader(disk, ROOT)), complete=True)


@tool
async def picture() -> ToolResult:
    """Look at the screen."""
    png = b"\x89PNG\r\n\x1a\n" + bytes(len(LONG))
    return ToolResult("seen", images=(Media("image/png", base64.b64encode(png).decode()),))


@tool(readonly=True)
async def page() -> str:
    """Read a page."""
    return "p" * 60_000


@pytest.mark.parametrize("calls", [["picture"], ["picture", "page"], ["page"] * 20, ["picture"] * 2])
async def test_a_result_that_has_no_place_is_an_error_of_its_call_and_the_turn_goes_on(
    autojump_clock: trio.abc.Clock, calls: list[str]
) -> None:
    """J11, I1, I23: nobody may take a call for one of which nobody knows whether it ended, nor run it again for that."""
    disk = CrashDisk()
    model = Scripted([reply(*(call(name) for name in calls)), reply("Fine.")], exhausted="repeat")
    async with open_runtime(ROOT, disk=disk, model=model, tools=[picture, page]) as runtime:
        session = await runtime.session("a")
        disk.fail("create", errno.EMFILE, path="*/blobs/*", times=None)
        disk.fail("open_read", errno.EMFILE, times=None)
        assert (await session.ask("look")).text == "Fine."
        answers = session.history[2].answers
        assert [answer.name for answer in answers] == calls
        assert {answer.content for answer in answers if answer.outcome is Outcome.ERROR} == {LOST}
    disk.heal()
    assert not check_invariants(records_of(Reader(disk, ROOT)), complete=True)


@pytest.mark.parametrize("how", ["interrupt", "close", "wall time", "dropped"])
async def test_a_long_reply_that_is_cut_short_without_a_place_for_it_ends_as_it_was_to(
    autojump_clock: trio.abc.Clock, how: str
) -> None:
    """J11, L13, L15"""
    disk = CrashDisk()
    half = [LONG, drop()] if how == "dropped" else [LONG, stall(100.0)]
    # A note is made of what was said so far, which has no place either.
    model = Scripted([reply("So", stall(0.2), *half), reply("Fine.")])
    budget = Budget(wall_s=5.0 if how == "wall time" else None)
    async with open_runtime(ROOT, disk=disk, model=model, budget=budget) as runtime:
        session = await runtime.session("a")
        disk.fail("create", errno.EMFILE, path="*/blobs/*", times=None)
        disk.fail("open_read", errno.EMFILE, times=None)
        async with session.turn("hello") as turn, trio.open_nursery() as nursery:
            nursery.start_soon(turn.wait_ended)
            await trio.sleep(2)
            if how == "interrupt":
                await session.interrupt()
            elif how == "close":
                await session.close()
        assert turn.result is not None
        expected = {"wall time": "budget", "dropped": "error"}.get(how, "interrupt")
        assert (turn.result.stop_reason, turn.result.text) == (expected, f"So{LONG}"[:KEPT_CHARS])
    disk.heal()
    assert not check_invariants(records_of(Reader(disk, ROOT)), complete=True)


@pytest.mark.parametrize("how", ["whole", "interrupted"])
async def test_what_is_kept_of_a_reply_that_has_no_place_ends_with_no_half_of_a_secret(
    autojump_clock: trio.abc.Clock, how: str
) -> None:
    """J8, I36: cut in two, its first half was no longer known as one, and stood in the journal."""
    disk = CrashDisk()
    secret = "sk-aB3dE6gH9jK2mN5pQ8sT1vW4yZ7aB3dE6gH9"
    said = f"{'y' * (KEPT_CHARS - 20)} {secret} {LONG}"
    async with open_runtime(
        ROOT, disk=disk, model=Scripted([reply(said, stall(5.0) if how != "whole" else "")])
    ) as runtime:
        session = await runtime.session("a")
        disk.fail("create", errno.EMFILE, path="*/blobs/*", times=None)
        async with session.turn("hello") as turn:
            await trio.sleep(0.2)
            if how == "interrupted":
                await session.interrupt()
            result = await turn.wait_ended()
        assert result.text == f"{said[: KEPT_CHARS - 19]}[redacted] {LONG}"[:KEPT_CHARS]
    assert secret[:12].encode() not in disk.read_bytes(f"{ROOT}/segment-00000001.log")


async def test_a_summary_that_has_no_place_is_none(autojump_clock: trio.abc.Clock) -> None:
    """J11, L31"""
    disk = CrashDisk()
    model = Scripted([*(reply("y" * 400_000) for _ in range(8)), reply(LONG), reply("Fine.")])
    async with open_runtime(ROOT, disk=disk, model=model) as runtime:
        session = await runtime.session("a")
        for _ in range(8):
            await session.ask("more")
        disk.fail("create", errno.EMFILE, path="*/blobs/*", times=None)
        done = await session.compact()
        assert isinstance(done, CompactionEnded) and done.how == "dropped" and done.fault is not None
        assert (await session.ask("hello")).text == "Fine."
    disk.heal()
    assert not check_invariants(records_of(Reader(disk, ROOT)), complete=True)


async def test_a_system_prompt_that_has_no_place_is_refused_and_the_session_goes_on(
    autojump_clock: trio.abc.Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """J11, I23: it crashed the session that was to have it, and whoever gave it was told to look at its state."""
    disk = CrashDisk()
    async with open_runtime(ROOT, disk=disk, model=Scripted([reply("Fine.")])) as runtime:
        session = await runtime.session("a", system="Be brief.")
        disk.fail("create", errno.EMFILE, path="*/blobs/*", times=None)
        with pytest.raises(BlobRefused, match=r"no place for \d+ bytes of session 'a' .*then try again"):
            await runtime.session("a", system=LONG)
        assert session.state.system == "Be brief." and (await session.ask("hello")).text == "Fine."
        disk.heal()
        assert (await runtime.session("a", system=LONG)).state.system == LONG
    assert "crashed" not in caplog.text
    assert not check_invariants(records_of(Reader(disk, ROOT)), complete=True)


async def test_a_session_that_has_failed_for_good_says_of_what(autojump_clock: trio.abc.Clock) -> None:
    """I22: here, that it cannot be read again; whoever holds it is told so, and whoever waits for its turn."""
    disk = CrashDisk()
    async with open_runtime(ROOT, disk=disk, model=Scripted([reply(stall(5.0), "Late."), reply("Fine.")])) as runtime:
        session = await runtime.session("a")
        disk.fail("open_read", errno.EMFILE, times=None)

        async def crash() -> None:
            await trio.sleep(1)
            session._actor.start(_raise, RuntimeError("a bug"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(crash)
            for _ in range(2):
                with pytest.raises(SessionEnded, match=r"failed for good, with JournalFailed: .*open files"):
                    await session.ask("hello")
        disk.heal()
        session = await runtime.session("a")
        assert (await session.ask("hello")).text == "Fine."


async def _raise(error: Exception) -> None:
    raise error


async def test_without_a_free_descriptor_a_large_prompt_is_refused(tmp_path: Path) -> None:
    """J11: on the real disk, until there is one; what is begun then is done with that one."""
    async with open_runtime(tmp_path / "state") as runtime:
        session = await runtime.session("a")
        await session.ask("one")
        with files_left(0), pytest.raises(BlobRefused, match="open files"):
            await session.ask(LONG)
        with files_left(1):
            assert (await session.ask(LONG)).stop_reason == "end_turn"
        assert (await session.ask("two")).text == "You said: two"
    assert verify(tmp_path / "state").ok
