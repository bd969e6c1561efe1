"""The simulated disk itself: what a crash may leave, which failures it can produce, and that it behaves as the real one."""

from __future__ import annotations

import doctest
import errno
import itertools
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trouper.testing.crash_disk
from trouper.journal.disk import Disk, File, OsDisk
from trouper.testing.crash_disk import CrashDisk, Fate, PowerCut


def named(disk: CrashDisk, path: str = "/log") -> File:
    file = disk.create(path)
    disk.sync_dir("/")
    return file


def test_the_example_in_the_docstring_runs() -> None:
    assert doctest.testmod(trouper.testing.crash_disk).failed == 0


def test_it_is_a_disk() -> None:
    disk: Disk = CrashDisk()  # mypy checks the protocol; this line says so to the reader.
    assert disk.list_dir("/") == []


def test_each_pending_write_meets_its_own_fate() -> None:
    disk = CrashDisk()
    file = named(disk)
    for data in (b"aa", b"bb", b"cc"):
        file.write(data)
    found = {disk.crash(fates).read_bytes("/log") for fates in itertools.product((Fate.KEPT, Fate.DROPPED), repeat=3)}
    # Independently, not a prefix: a later write may arrive without an earlier one, which then reads as NUL bytes.
    assert found == {b"", b"aa", b"aabb", b"aabbcc", b"aa\0\0cc", b"\0\0bb", b"\0\0bbcc", b"\0\0\0\0cc"}


def test_what_was_synced_survives_every_fate() -> None:
    disk = CrashDisk()
    file = named(disk)
    file.write(b"synced")
    file.sync()
    file.write(b"pending")
    for fate in Fate:
        for seed in range(50):
            assert disk.crash(fate, seed=seed).read_bytes("/log").startswith(b"synced")


def test_garbled_and_torn_writes_are_never_whole() -> None:
    disk = CrashDisk()
    file = named(disk)
    data = bytes(range(1, 251)) * 12
    file.write(data)
    for seed in range(200):
        garbled = disk.crash(Fate.GARBLED, seed=seed).read_bytes("/log")
        assert garbled != data
        assert len(garbled) == len(data)
        assert disk.crash(Fate.TORN, seed=seed).read_bytes("/log") != data


def test_a_seed_gives_the_same_crash_again() -> None:
    disk = CrashDisk()
    file = named(disk)
    for at in range(20):
        file.write(b"record %d\n" % at)
    assert disk.crash(seed=7).tree() == disk.crash(seed=7).tree()
    assert len({tuple(disk.crash(seed=seed).tree().items()) for seed in range(20)}) > 10


def test_a_name_that_was_not_synced_may_vanish_with_its_synced_content() -> None:
    disk = CrashDisk()
    file = disk.create("/new")
    file.write(b"content")
    file.sync()
    assert disk.crash(Fate.DROPPED).tree() == {}
    assert disk.crash(Fate.KEPT).tree() == {"/new": b"content"}


def test_a_directory_that_was_not_synced_takes_everything_in_it_along() -> None:
    disk = CrashDisk()
    disk.make_dirs("/a/b")
    disk.create("/a/b/file").sync()
    disk.sync_dir("/a/b")
    disk.sync_dir("/a")
    assert disk.crash(Fate.DROPPED).tree() == {}
    disk = disk.fork()
    disk.sync_dir("/")
    assert disk.crash(Fate.DROPPED).tree() == {"/a": None, "/a/b": None, "/a/b/file": b""}


def test_a_rename_is_atomic_and_may_be_undone_until_the_directory_is_synced() -> None:
    disk = CrashDisk()
    disk.write_bytes("/target", b"old")
    disk.write_bytes("/temporary", b"new")
    disk.rename("/temporary", "/target")
    assert disk.crash(Fate.DROPPED).tree() == {"/target": b"old", "/temporary": b"new"}
    assert disk.crash(Fate.KEPT).tree() == {"/target": b"new"}


def test_a_rename_between_directories_needs_both_synced() -> None:
    disk = CrashDisk()
    disk.make_dirs("/a")
    disk.make_dirs("/b")
    disk.sync_dir("/")
    disk.write_bytes("/a/file", b"x")
    disk.rename("/a/file", "/b/file")
    disk.sync_dir("/b")
    assert disk.fork().crash(Fate.DROPPED).tree()["/a/file"] == b"x"
    disk.sync_dir("/a")
    assert disk.crash(Fate.DROPPED).tree() == {"/a": None, "/b": None, "/b/file": b"x"}


def test_an_unlinked_name_may_come_back() -> None:
    disk = CrashDisk()
    disk.write_bytes("/file", b"x")
    disk.unlink("/file")
    assert not disk.exists("/file")
    assert disk.crash(Fate.DROPPED).tree() == {"/file": b"x"}


def test_a_failed_sync_leaves_its_writes_in_doubt_even_if_the_next_one_succeeds() -> None:
    """J11: this is why a sync error is never retried."""
    disk = CrashDisk()
    file = named(disk)
    file.write(b"lost ")
    disk.fail("sync", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.write(b"later")
    file.sync()
    assert disk.read_bytes("/log") == b"lost later"  # What a reader is shown...
    assert disk.crash(Fate.DROPPED).read_bytes("/log") == b"\0\0\0\0\0later"  # ...and what is there.


def test_a_failed_directory_sync_leaves_its_names_in_doubt() -> None:
    disk = CrashDisk()
    disk.create("/file")
    disk.fail("sync_dir", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        disk.sync_dir("/")
    disk.sync_dir("/")
    assert disk.crash(Fate.DROPPED).tree() == {}


def test_a_killed_process_leaves_its_writes_unsynced_in_the_kernel() -> None:
    disk = CrashDisk()
    file = named(disk)
    file.write(b"x")
    after = disk.kill()
    assert after.read_bytes("/log") == b"x"
    with pytest.raises(PowerCut):
        file.write(b"y")
    assert after.crash(Fate.DROPPED).read_bytes("/log") == b""


def test_a_truncation_is_a_change_like_any_other() -> None:
    disk = CrashDisk()
    file = named(disk)
    file.write(b"abcdef")
    file.sync()
    file.truncate(3)
    assert file.size() == 3
    assert disk.crash(Fate.DROPPED).read_bytes("/log") == b"abcdef"
    assert disk.crash(Fate.KEPT).read_bytes("/log") == b"abc"


def test_pending_changes_are_listed_in_order_and_cleared_by_a_sync() -> None:
    disk = CrashDisk()
    file = disk.create("/log")
    file.write(b"abc")
    assert [(change.kind, change.path, change.size) for change in disk.pending()] == [
        ("names", "+/log", 0),
        ("write", "/log", 3),
    ]
    file.sync()
    disk.sync_dir("/")
    assert disk.pending() == ()


def test_locks_are_refused_while_held_and_freed_by_a_kill() -> None:
    disk = CrashDisk()
    lock = disk.lock("/lock", "pid 1")
    other = disk.process()
    with pytest.raises(BlockingIOError):
        other.lock("/lock", "pid 2")
    assert other.read_bytes("/lock") == b"pid 1"
    lock.close()
    held = other.lock("/lock", "pid 2")
    third = other.kill()
    assert third.read_bytes("/lock") == b"pid 2"
    assert third.open_files == ()
    third.lock("/lock", "pid 3")
    held.close()  # The dead process's lock no longer says anything.
    with pytest.raises(BlockingIOError):
        third.process().lock("/lock", "pid 4")


def test_a_lock_file_that_was_deleted_can_be_locked_twice() -> None:
    disk = CrashDisk()
    disk.lock("/lock", "pid 1")
    other = disk.process()
    other.unlink("/lock")
    other.lock("/lock", "pid 2")
    assert other.read_bytes("/lock") == b"pid 2"


def test_a_fork_before_every_step_sees_every_boundary() -> None:
    disk = CrashDisk()
    forks: list[CrashDisk] = []
    disk.watch(lambda step: forks.append(disk.fork()))
    file = disk.create("/log")
    file.write(b"x")
    file.sync()
    disk.sync_dir("/")
    assert [step.operation for step in disk.log] == ["create", "write", "sync", "sync_dir"]
    assert [fork.tree() for fork in forks] == [{}, {"/log": b""}, {"/log": b"x"}, {"/log": b"x"}]
    assert [len(fork.pending()) for fork in forks] == [0, 1, 2, 1]


def test_a_power_cut_stops_every_later_call() -> None:
    disk = CrashDisk()
    disk.cut_power_before(2)
    file = disk.create("/log")
    for call in (lambda: file.write(b"x"), lambda: disk.sync_dir("/"), lambda: disk.exists("/log"), file.size):
        with pytest.raises(PowerCut):
            call()
    file.close()
    assert disk.crash(Fate.KEPT).tree() == {"/log": b""}


def test_the_nth_call_fails_as_often_as_asked() -> None:
    disk = CrashDisk()
    file = named(disk)
    disk.fail("write", errno.ENOSPC, nth=2, times=2)
    assert file.write(b"1") == 1
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            file.write(b"2")
    assert file.write(b"3") == 1
    assert disk.read_bytes("/log") == b"13"
    disk.fail("create", errno.EMFILE, times=None, path="*.tmp")
    for _ in range(3):
        with pytest.raises(OSError, match="Too many open files"):
            disk.create("/x.tmp")
    disk.create("/x")
    disk.heal()
    disk.create("/x.tmp")


def test_a_call_may_work_and_yet_report_an_error() -> None:
    disk = CrashDisk()
    disk.fail("create", errno.EIO, after=True)
    with pytest.raises(OSError, match="Input/output"):
        disk.create("/log")
    assert disk.exists("/log")


def test_a_short_write_takes_what_it_says() -> None:
    disk = CrashDisk()
    file = named(disk)
    disk.shorten(3)
    assert file.write(memoryview(b"abcdef")) == 3
    assert file.write(b"def") == 3
    assert disk.read_bytes("/log") == b"abcdef"


def test_a_full_disk_takes_what_fits_then_refuses_until_there_is_room() -> None:
    disk = CrashDisk(capacity=10)
    disk.reserve("/reserve", 4)
    file = disk.create("/log")
    assert file.write(b"abcdefgh") == 6
    with pytest.raises(OSError, match="No space") as caught:
        file.write(b"gh")
    assert caught.value.errno == errno.ENOSPC
    assert disk.free_bytes("/") == 0
    disk.unlink("/reserve")
    assert file.write(b"gh") == 2
    disk.fill()
    with pytest.raises(OSError, match="No space"):
        disk.reserve("/reserve", 1)


def test_a_read_only_file_system_refuses_changes_and_allows_reads() -> None:
    disk = CrashDisk()
    file = named(disk)
    file.write(b"x")
    disk.read_only = True
    for call in (
        lambda: file.write(b"y"),
        lambda: disk.create("/new"),
        lambda: disk.lock("/lock", "me"),
        lambda: disk.open_append("/log"),
        lambda: disk.unlink("/log"),
    ):
        with pytest.raises(OSError, match="Read-only"):
            call()
    assert disk.open_read("/log").pread(10, 0) == b"x"


def test_a_stalled_call_does_not_stop_the_others() -> None:
    disk = CrashDisk()
    file = named(disk)
    entered, leave = threading.Event(), threading.Event()

    def hook() -> None:
        entered.set()
        leave.wait()

    disk.stall("sync", hook)
    thread = threading.Thread(target=file.sync)
    thread.start()
    entered.wait()
    assert disk.create("/other").write(b"x") == 1
    leave.set()
    thread.join()


def test_open_files_are_known() -> None:
    disk = CrashDisk()
    file = disk.create("/a")
    lock = disk.lock("/lock", "me")
    assert disk.open_files == ("/a", "/lock")
    file.close()
    lock.close()
    assert disk.open_files == ()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.write(b"x")


# The same calls on the simulated and on the real disk end alike.

PATHS = st.sampled_from(["/a", "/b", "/d", "/d/a", "/d/b", "/a/x", "/d/e/f"])
CALLS = st.one_of(
    st.tuples(
        st.sampled_from(["create", "unlink", "remove_dir", "make_dirs", "exists", "is_dir", "list_dir", "sync_dir"]),
        PATHS,
    ),
    st.tuples(st.sampled_from(["read", "lock"]), PATHS),
    st.tuples(st.just("rename"), PATHS, PATHS),
    st.tuples(st.just("append"), PATHS, st.binary(max_size=6)),
    st.tuples(st.sampled_from(["truncate", "reserve"]), PATHS, st.integers(0, 9)),
)


def perform(disk: Disk, root: str, call: tuple[str, ...]) -> object:
    name, path, *rest = call
    path = root + path
    try:
        if name == "rename":
            return disk.rename(path, root + rest[0])
        if name == "append":
            file = disk.open_append(path)
            try:
                return file.write(rest[0]), file.sync()  # type: ignore[arg-type]
            finally:
                file.close()
        if name == "truncate":
            file = disk.open_append(path)
            try:
                return file.truncate(rest[0]), file.size()  # type: ignore[arg-type]
            finally:
                file.close()
        if name == "reserve":
            return disk.reserve(path, rest[0] or 1)  # type: ignore[arg-type]
        if name == "read":
            file = disk.open_read(path)
            try:
                return file.pread(100, 0)
            finally:
                file.close()
        if name in ("create", "lock"):
            found = disk.create(path) if name == "create" else disk.lock(path, "owner")
            return found.close()
        return getattr(disk, name)(path)
    except OSError as error:
        return error.errno


def real_tree(root: Path) -> dict[str, bytes | None]:
    return {"/" + str(path.relative_to(root)): None if path.is_dir() else path.read_bytes() for path in root.rglob("*")}


@settings(max_examples=200, deadline=None)
@given(calls=st.lists(CALLS, max_size=15))
def test_it_answers_as_the_real_disk_does(
    calls: list[tuple[str, ...]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("real")
    simulated = CrashDisk()
    for call in calls:
        expected = perform(OsDisk(), str(root), call)
        assert perform(simulated, "", call) == expected, call
    assert simulated.tree() == real_tree(root)


def test_a_real_file_is_private_from_the_first_moment(tmp_path: Path) -> None:
    """J8: the mode is given when the file is made, not after."""
    disk = OsDisk()
    disk.make_dirs(str(tmp_path / "a" / "b"))
    disk.create(str(tmp_path / "a" / "b" / "f")).close()
    assert os.stat(tmp_path / "a" / "b").st_mode & 0o777 == 0o700
    assert os.stat(tmp_path / "a" / "b" / "f").st_mode & 0o777 == 0o600
