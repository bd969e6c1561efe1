"""Places that are no journal to write to: each is refused by name, with the remedy, and not a byte on the disk changes."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest
from journal_workload import ROOT, entry, ids_of, open_small

from trouper.journal import (
    JournalDamaged,
    JournalError,
    JournalExists,
    JournalFull,
    JournalLocked,
    JournalNotADirectory,
    JournalNotFound,
    JournalReadOnly,
    JournalTooNew,
    JournalUnreadable,
    OsDisk,
    open_log,
    open_reader,
)
from trouper.journal.disk import OsFile
from trouper.journal.format import VERSION, Header, segment_name
from trouper.testing import CrashDisk, Fate


def tree(root: Path) -> dict[str, tuple[int, int, bytes | None]]:
    """Every path below with its mode, the time of its last change, and its content."""
    return {
        str(path.relative_to(root)): (
            (found := path.lstat()).st_mode,
            found.st_mtime_ns,
            path.read_bytes() if path.is_file() else None,
        )
        for path in sorted(root.rglob("*"))
    }


@contextmanager
def unchanged(root: Path) -> Iterator[None]:
    before = tree(root)
    yield
    assert tree(root) == before


def written(root: Path, records: int = 3) -> None:
    log = open_log(root)
    for number in range(records):
        log.append(entry(number))
    log.close()


def check_message(error: JournalError, subject: object, remedy: str) -> None:
    assert repr(str(subject)) in str(error)
    assert remedy in str(error)
    assert error.facts["root"] == str(subject)
    assert error.exit_code != 0


@pytest.mark.parametrize("read_only", [False, True])
def test_a_journal_that_is_a_file(tmp_path: Path, read_only: bool) -> None:
    place = tmp_path / "journal"
    place.write_bytes(b"not a directory")
    with unchanged(tmp_path), pytest.raises(JournalNotADirectory) as caught:
        open_log(place, read_only=read_only)
    check_message(caught.value, place, "directory")
    with unchanged(tmp_path), pytest.raises(JournalNotADirectory):
        open_reader(place)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_journal_below_a_file(tmp_path: Path, read_only: bool) -> None:
    (tmp_path / "file").write_bytes(b"x")
    place = tmp_path / "file" / "a" / "journal"
    with unchanged(tmp_path), pytest.raises(JournalNotADirectory) as caught:
        open_log(place, read_only=read_only)
    check_message(caught.value, place, "directory")


def test_a_journal_that_is_a_dangling_link(tmp_path: Path) -> None:
    place = tmp_path / "journal"
    place.symlink_to(tmp_path / "nowhere")
    with unchanged(tmp_path), pytest.raises(JournalError) as caught:
        open_log(place)
    assert repr(str(place)) in str(caught.value)


def test_no_journal_to_read(tmp_path: Path) -> None:
    place = tmp_path / "journal"
    with unchanged(tmp_path), pytest.raises(JournalNotFound) as caught:
        open_log(place, read_only=True)
    check_message(caught.value, place, "check the path")
    (tmp_path / "empty").mkdir()
    with unchanged(tmp_path), pytest.raises(JournalNotFound):
        open_reader(tmp_path / "empty")


UNREADABLE = {
    "directory": ("list_dir", ROOT),
    "segment": ("open_read", "*/segment-00000001.log"),
    "lock": ("lock", "*/lock"),
    "creating": ("create", "*"),
    "parent": ("is_dir", "*"),
}


@pytest.mark.parametrize(("operation", "path"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_journal_that_this_user_may_not_touch(operation: str, path: str) -> None:
    """EACCES wherever it comes from: the owner is asked for, and nothing changes."""
    disk = CrashDisk()
    log = open_small(disk)
    log.append(entry(0))
    log.close()
    before = disk.tree()
    disk.fail(operation, errno.EACCES, path=path, times=None)  # type: ignore[arg-type]
    with pytest.raises(JournalUnreadable) as caught:
        open_small(disk)
    check_message(caught.value, ROOT, "owner")
    assert disk.open_files == ()
    assert disk.tree() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("mode", [0o700, 0o000])
def test_a_runtime_in_a_root_that_cannot_be_entered(mode: int) -> None:
    """The same through `open_runtime` and the command line's configuration: it is the root that is named, and not what might be in it."""
    program = (
        "import sys, os, pathlib, trio, trouper.runtime, trouper.models.simulated\n"
        "from trouper.cli.configuration import read_configuration\n"
        "from trouper.journal import JournalUnreadable\n"
        "async def main():\n"
        "    async with trouper.open_runtime(sys.argv[1]):\n        pass\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "read_configuration(pathlib.Path(sys.argv[1]))\n"
        "try:\n    trio.run(main)\n"
        "except JournalUnreadable as error:\n    print(error)\n"
    )
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        place = Path(name) / "journal"
        written(place)
        place.chmod(mode)
        done = subprocess.run([sys.executable, "-c", program, str(place)], capture_output=True, text=True, check=False)
        place.chmod(0o700)
    assert done.returncode == 0 and repr(str(place)) in done.stdout, done.stderr
    assert "owner" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_journal_of_another_user() -> None:
    """The real thing: another uid, modes 0700 and 0600 (J8)."""
    program = (
        # Imported first: another user may not be able to read the place where the package lies.
        "from trouper.journal import open_log, JournalUnreadable\n"
        "import os, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try:\n    open_log(sys.argv[1])\n"
        "except JournalUnreadable as error:\n    print(error)\n"
    )
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        place = Path(name) / "journal"
        written(place)
        assert place.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in place.iterdir() if path.is_file()} == {0o600}
        with unchanged(Path(name)):
            done = subprocess.run(
                [sys.executable, "-c", program, str(place)], capture_output=True, text=True, check=False
            )
    assert repr(str(place)) in done.stdout, done.stderr
    assert "owner" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
@pytest.mark.parametrize("whose", ["directory", "link"])
def test_a_directory_that_belongs_to_another_user_is_no_place_for_a_journal(tmp_path: Path, whose: str) -> None:
    """J8: who owns the directory, or the link that leads to it, can put another journal in its place. Reading is allowed."""
    place = tmp_path / "journal"
    if whose == "directory":
        written(place)
        os.chown(place, 65534, 65534)
    else:
        written(tmp_path / "theirs")
        place.symlink_to(tmp_path / "theirs")
        os.lchown(place, 65534, 65534)
    with unchanged(tmp_path), pytest.raises(JournalUnreadable, match="belongs to user 65534") as caught:
        open_log(place)
    check_message(caught.value, place, "another directory")
    with unchanged(tmp_path):
        assert len(list(open_reader(place).records())) == 3


def test_a_link_of_ones_own_leads_to_the_journal(tmp_path: Path) -> None:
    written(tmp_path / "elsewhere")
    (tmp_path / "journal").symlink_to(tmp_path / "elsewhere")
    log = open_log(tmp_path / "journal")
    assert log.refusal is None and log.last == 3
    log.close()


@pytest.mark.parametrize("name", ["lock", "reserve", "segment-00000001.log"])
def test_a_planted_link_is_not_followed(tmp_path: Path, name: str) -> None:
    """J8: a name in the journal that leads elsewhere is refused, or replaced; what it leads to stays as it is."""
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    place = tmp_path / "journal"
    written(place)
    (place / name).unlink()
    (place / name).symlink_to(target)
    try:
        log = open_log(place)
    except JournalError as error:
        assert repr(str(place)) in str(error)
    else:
        assert log.refusal is not None
        log.close()
    assert target.read_bytes() == b"precious"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lock", b"Gemfile"),
        ("lock", b"two\nlines \xc3\xbc\n"),
        ("lock", b"x" * 5_000),
        ("reserve", b"table for two"),
        ("reserve", bytes(5 * 1024 * 1024)),
    ],
)
def test_a_new_journal_is_not_written_over_what_somebody_keeps_there(tmp_path: Path, name: str, text: bytes) -> None:
    """J8: any directory may be named for a root by mistake."""
    (tmp_path / name).write_bytes(text)
    with unchanged(tmp_path), pytest.raises(JournalExists, match=f"a file '{name}'") as caught:
        open_log(tmp_path)
    check_message(caught.value, tmp_path, "another directory")
    assert caught.value.exit_code == 73


def test_what_is_left_of_a_journal_that_was_removed_hinders_no_new_one(tmp_path: Path) -> None:
    """J9: nor is what a process leaves that was killed before it had begun one."""
    written(tmp_path)
    (tmp_path / "segment-00000001.log").unlink()
    assert {"lock", "reserve"} <= set(os.listdir(tmp_path))
    log = open_log(tmp_path)
    assert log.refusal is None and log.recovery.created
    log.close()


def test_only_temporary_files_of_the_journals_own_are_removed(tmp_path: Path) -> None:
    """J7: those that a killed process had not put in place; a user's drafts stay."""
    written(tmp_path)
    blob = "0" * 64
    ours = [
        "segment-00000002.log.tmp",
        "segment-00000001.stub.tmp",
        "archive/segment-00000001.log.gz.tmp",
        "torn/segment-00000001.log-17.torn.tmp",
        "torn/segment-00000001.log-17-1.torn.tmp",
        f"snapshots/snapshot-{7:020d}.snap.tmp",
        f"blobs/00/{blob}.tmp",
    ]
    theirs = ["draft.tmp", "archive/draft.tmp", "torn/draft.tmp", "snapshots/draft.tmp", "segment-1.log.tmp"]
    for name in (*ours, *theirs):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("draft")
    log = open_log(tmp_path)
    log.abandon()  # Only after a kill are those of blobs looked for.
    open_log(tmp_path).close()
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.tmp")) == sorted(theirs)


def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    """J8: 0700 and 0600 from the first moment, also where the umask would let everyone in."""
    before = os.umask(0)
    try:
        log = open_log(tmp_path / "a" / "journal", segment_bytes=4096)
        for number in range(60):
            log.append(entry(number, body=b'"%b"' % (b"v" * 100)))
            log.sync()
        log.append(entry(60, body=b'"%b"' % (b"v" * 2_000_000)))
        log.sync()
        log.write_snapshot(60, [("s", "idle", b"x")])
        log.close()
    finally:
        os.umask(before)
    modes = {path.is_dir(): set[int]() for path in (tmp_path / "a").rglob("*")}
    for path in (tmp_path / "a", *(tmp_path / "a").rglob("*")):
        modes[path.is_dir()].add(path.stat().st_mode & 0o777)
    assert modes == {True: {0o700}, False: {0o600}}


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a file system of no size")
def test_a_file_system_that_does_not_say_its_size_is_not_taken_for_full() -> None:
    assert os.statvfs("/proc").f_blocks == 0
    assert OsDisk().free_bytes("/proc") > 1 << 40


@pytest.mark.parametrize(
    ("old", "new"), [(b'"e1"', b'"e7"'), (b'"first":1', b'"first":2')], ids=["a record", "the header"]
)
def test_a_damaged_journal_is_opened_for_reading_and_not_a_byte_changes(tmp_path: Path, old: bytes, new: bytes) -> None:
    """J10: also the lock says what it said before."""
    written(tmp_path / "journal")
    (tmp_path / "journal" / "lock").write_text('{"pid": 1}')
    segment = tmp_path / "journal" / segment_name(1)
    data = segment.read_bytes()
    assert old in data
    segment.write_bytes(data.replace(old, new, 1))
    with unchanged(tmp_path):
        log = open_log(tmp_path / "journal")
        assert isinstance(log.refusal, JournalDamaged)
        log.close()


@pytest.mark.parametrize("there", [True, False], ids=["an empty directory", "nothing"])
def test_a_new_journal_on_a_full_disk_leaves_nothing_behind(there: bool) -> None:
    disk = CrashDisk(capacity=0)
    if there:
        disk.make_dirs(ROOT)
    before = disk.tree()
    with pytest.raises(JournalFull) as caught:
        open_small(disk)
    check_message(caught.value, ROOT, "space")
    assert disk.open_files == ()
    assert disk.tree() == before
    disk.capacity = None
    log = open_small(disk)
    log.append(entry(0))
    log.sync()
    assert ids_of(log) == ["e0"]


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("leaving", [0, 10, 200, 1000])
def test_a_journal_on_a_full_disk_opens_degraded_by_giving_up_its_reserve(closed: bool, leaving: int) -> None:
    """J11: the reserve is for this: what was running can be ended and recorded; new work is refused."""
    disk = CrashDisk()
    log = open_small(disk)
    for number in range(5):
        log.append(entry(number))
        log.sync()
    if closed:
        log.close()
    else:
        log.abandon()
    disk.fill(leaving=leaving)
    again = open_small(disk)
    assert again.refusal is None
    assert again.degraded
    assert ids_of(again) == [f"e{n}" for n in range(5)]
    with pytest.raises(JournalFull):
        again.append(attrs.evolve(entry(5), opens=True))
    again.append(entry(5))
    again.sync()
    again.abandon()
    assert ids_of(open_small(disk.crash(Fate.DROPPED))) == [f"e{n}" for n in range(6)]


def test_a_journal_on_a_full_disk_without_a_reserve_is_refused_unchanged() -> None:
    disk = CrashDisk()
    log = open_small(disk)
    log.append(entry(0))
    log.close()
    disk.unlink(f"{ROOT}/reserve")
    disk.fill()
    before = disk.tree()
    with pytest.raises(JournalFull) as caught:
        open_small(disk)
    check_message(caught.value, ROOT, "space")
    assert disk.tree() == before
    assert disk.open_files == ()
    disk.capacity = None
    assert ids_of(open_small(disk)) == ["e0"]


class FullDisk(OsDisk):
    """The real disk, with no room for a byte in a new file."""

    def create(self, path: str) -> OsFile:
        return _FullFile(super().create(path))


class _FullFile(OsFile):
    def __init__(self, file: OsFile) -> None:
        super().__init__(os.dup(file.fileno()))
        file.close()

    def write(self, data: bytes | memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("reserve", [True, False], ids=["too small a reserve", "no reserve"])
def test_a_refusal_for_want_of_space_leaves_times_and_reserve_as_they_were(
    tmp_path: Path, closed: bool, reserve: bool
) -> None:
    """J11: a program that looks for what has changed, a backup say, finds nothing."""
    place = tmp_path / "journal"
    log = open_log(place)
    log.append(entry(0))
    log.sync()
    if closed:
        log.close()
    else:
        log.abandon()
    if not reserve:
        (place / "reserve").unlink()
    before = {path: state for path, state in tree(tmp_path).items() if path != "journal/reserve"}
    with pytest.raises(JournalFull):
        open_log(place, disk=FullDisk())
    after = tree(tmp_path)
    assert ("journal/reserve" in after) is reserve
    after.pop("journal/reserve", None)
    assert after == before


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("which", ["only", "last"])
def test_a_journal_of_a_newer_version_opens_for_reading_only(tmp_path: Path, which: str, closed: bool) -> None:
    """J14."""
    place = tmp_path / "journal"
    log = open_log(place, segment_bytes=4096)
    records = 3 if which == "only" else 60
    for number in range(records):
        log.append(entry(number, body=b'"%b"' % (b"v" * 100)))
        log.sync()
    if closed:
        log.close()
    else:
        log.abandon()
    segment = max(place.glob("segment-*.log"))
    assert (segment.name == segment_name(1)) is (which == "only")
    line, rest = segment.read_bytes().split(b"\n", 1)
    header = Header.decode(line)
    assert header is not None
    newer = attrs.evolve(header, version=VERSION + 1).encode()
    assert len(newer) == len(line) + 1  # So that a footer still stands where its trailer says.
    segment.write_bytes(newer + rest)
    with unchanged(tmp_path):
        again = open_log(place)
        assert isinstance(again.refusal, JournalTooNew)
        check_message(again.refusal, place, "upgrade")
        assert again.refusal.facts["version"] == VERSION + 1
        with pytest.raises(JournalTooNew):
            again.append(entry(99))
        assert len(list(again.records())) == records
        again.close()


def test_a_journal_that_a_live_process_writes(tmp_path: Path) -> None:
    """J9: a second process is refused before it changes anything; the message names the owner."""
    place = tmp_path / "journal"
    program = (
        "import sys; from trouper.journal import open_log\n"
        "log = open_log(sys.argv[1]); print('open', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdin is not None
        assert owner.stdout.readline() == "open\n"
        with unchanged(tmp_path), pytest.raises(JournalLocked) as caught:
            open_log(place)
        check_message(caught.value, place, "another directory")
        assert caught.value.facts["pid"] == owner.pid
        assert str(owner.pid) in str(caught.value)
        with unchanged(tmp_path):
            open_log(place, read_only=True).close()
        owner.stdin.close()
        owner.wait()
    log = open_log(place)
    assert log.refusal is None
    log.close()


def test_a_lock_file_that_says_nothing_still_locks() -> None:
    disk = CrashDisk()
    disk.make_dirs(ROOT)
    disk.lock(f"{ROOT}/lock", "")
    with pytest.raises(JournalLocked) as caught:
        open_small(disk.process())
    assert caught.value.facts["pid"] is None


@pytest.mark.parametrize("exists", [True, False])
def test_a_journal_on_a_read_only_file_system(exists: bool) -> None:
    disk = CrashDisk()
    if exists:
        log = open_small(disk)
        log.append(entry(0))
        log.close()
    disk.read_only = True
    before = disk.tree()
    if exists:
        reading = open_small(disk)
        assert isinstance(reading.refusal, JournalReadOnly)
        check_message(reading.refusal, ROOT, "writable")
        assert ids_of(reading) == ["e0"]
    else:
        with pytest.raises(JournalReadOnly) as caught:
            open_small(disk)
        check_message(caught.value, ROOT, "writable")
    assert disk.tree() == before
    assert disk.open_files == ()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENFILE])
@pytest.mark.parametrize(
    "operation", ["create", "write", "sync", "rename", "sync_dir", "lock", "list_dir", "open_read", "pread"]
)
def test_whatever_fails_while_opening_is_a_named_error(operation: str, error: int) -> None:
    disk = CrashDisk()
    log = open_small(disk)
    log.append(entry(0))
    log.sync()
    log.abandon()
    disk.fail(operation, error)  # type: ignore[arg-type]
    with pytest.raises(JournalError) as caught:
        open_small(disk)
    assert repr(ROOT) in str(caught.value)
    assert disk.open_files == ()
    disk.heal()
    assert ids_of(open_small(disk.crash(Fate.DROPPED))) == ["e0"]


def test_an_owner_that_is_not_a_number_is_not_believed() -> None:
    disk = CrashDisk()
    disk.make_dirs(ROOT)
    disk.lock(f"{ROOT}/lock", json.dumps({"pid": "x"}))
    with pytest.raises(JournalLocked, match="another process"):
        open_small(disk.process())
