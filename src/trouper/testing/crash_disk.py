"""A disk in memory that forgets, garbles, refuses and stalls: the journal's worst day, repeatable.

It honours what `trouper.journal.disk` promises and not a bit more. Data is safe after `File.sync`, a name after `Disk.sync_dir`;
until then a crash decides each write and each name by itself, in any combination:

    >>> disk = CrashDisk()
    >>> file = disk.create("/log")
    >>> disk.sync_dir("/")
    >>> file.write(b"safe. ")
    6
    >>> file.sync()
    >>> file.write(b"maybe.")
    6
    >>> disk.crash(Fate.DROPPED).read_bytes("/log")
    b'safe. '
    >>> disk.crash(Fate.KEPT).read_bytes("/log")
    b'safe. maybe.'
    >>> disk.crash(Fate.ZEROED).read_bytes("/log")
    b'safe. \\x00\\x00\\x00\\x00\\x00\\x00'

`crash` is a power cut; `kill` ends a process and leaves what it wrote, still unsynced, in the kernel's hands. Both return the disk that
the next process finds. To try every boundary of a program, run it once with `watch` and keep a `fork` before each step; to
stop a program in mid-run, use `cut_power_before`.

Failures are armed by `fail` (an errno from the nth call on, once or for ever), `shorten` (short writes) and `stall` (a hook that runs
inside a call), or are states of the disk: `capacity`, `read_only`.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Literal

import attrs

from trouper.testing._machine import Armed, Machine, Operation, PowerCut, Step, os_error
from trouper.testing._medium import Change, Content, Directory, Fate, Inode, Medium, Named, Written

__all__ = ["CrashDisk", "CrashFile", "CrashLock", "Fate", "Pending", "PowerCut", "Step"]


@attrs.frozen
class Pending:
    """A change that is not on the medium for certain: its fate is `crash`'s to choose."""

    number: int
    kind: Literal["write", "resize", "names"]
    #: For a change of names, each one as `+name` or `-name`; else the path of the file, or "" if it has no name now.
    path: str
    offset: int = 0
    size: int = 0


class CrashDisk:
    """A simulated disk, as one process sees it. Implements `trouper.journal.disk.Disk`; safe to call from any thread.

    `capacity` is in bytes of file content; a write takes what fits and then fails with ENOSPC.
    """

    #: Takes no time: the journal needs no thread to wait for it, and every run is the same.
    in_memory = True

    def __init__(self, *, capacity: int | None = None) -> None:
        self._machine = Machine(Medium(), capacity)
        self._dead = False
        self._locks: list[CrashLock] = []
        self._files: list[CrashFile] = []

    # What went on.

    @property
    def log(self) -> tuple[Step, ...]:
        """Every changing call so far, in order, failed ones too; `Step.number` counts from 1."""
        return tuple(self._machine.log)

    @property
    def steps(self) -> int:
        """How many changing calls there were: the next one is step `steps + 1`."""
        return len(self._machine.log)

    @property
    def open_files(self) -> tuple[str, ...]:
        """The paths of the files and locks that this process has open, to check that none is left."""
        return tuple(sorted([file.path for file in self._files] + [lock.path for lock in self._locks]))

    def pending(self) -> tuple[Pending, ...]:
        """The changes whose fate a crash would decide, oldest first: as many fates can be given to `crash`."""
        with self._machine.mutex:
            paths = {id(inode): path for path, inode in self._walk()}
            return tuple(_describe(change, paths, self._machine.medium) for change in self._machine.medium.unsettled())

    def tree(self) -> dict[str, bytes | None]:
        """Every path with its content (None for a directory), to compare a disk before and after."""
        with self._machine.mutex:
            return {
                path: bytes(inode.live) if isinstance(inode, Content) else None
                for path, inode in sorted(self._walk(), key=lambda found: found[0])
            }

    def read_bytes(self, path: str) -> bytes:
        """A file's content as a process sees it; no fault applies."""
        with self._machine.mutex:
            return bytes(self._content(path).live)

    def write_bytes(self, path: str, data: bytes) -> None:
        """Make a file hold `data`, synced, as if it had always done so: for tests that damage a file. No fault applies."""
        with self._machine.mutex:
            directory, name = self._place(path)
            inode = directory.names.get(name)
            if not isinstance(inode, Content):
                inode = Content()
                directory.names[name] = directory.medium[name] = inode
            inode.live, inode.medium, inode.changes = bytearray(data), bytearray(data), []
            inode.live_shared = inode.medium_shared = False

    # The end of a process, and of a computer's day.

    def kill(self) -> CrashDisk:
        """End this process: its locks and files are closed, its writes stay as unsynced as they were. Returns the next process's disk."""
        with self._machine.mutex:
            self._dead = True
            for lock in list(self._locks):
                lock._release()
            self._files.clear()
            return self.process()

    def process(self) -> CrashDisk:
        """The same disk as another process sees it, at the same time: with locks and open files of its own."""
        other = object.__new__(CrashDisk)
        other._machine, other._dead, other._locks, other._files = self._machine, False, [], []
        return other

    def fork(self) -> CrashDisk:
        """A copy to try things on: the same files, the same pending changes, nobody's locks, no faults."""
        with self._machine.mutex:
            return self._on(self._machine.medium.copy())

    def crash(self, fates: Fate | Sequence[Fate] | None = None, *, seed: int = 0) -> CrashDisk:
        """Cut the power: every process is gone. Returns the disk as the next one finds it.

        `fates` is one fate for all pending changes, or one each in the order of `pending()` (those beyond its end are kept); by
        default the seed draws each. The seed also decides how a change is garbled or torn. May be called again, with other fates.
        Names know only kept and dropped: any other fate keeps them.
        """
        machine = self._machine
        with machine.mutex:
            machine.off = True
            if fates is None:
                draw = random.Random(seed)
                choices = tuple(Fate)
                return self._on(machine.medium.crashed(lambda _place, _change: draw.choice(choices), seed))
            if isinstance(fates, Fate):
                one = fates
                return self._on(machine.medium.crashed(lambda _place, _change: one, seed))
            each = fates
            return self._on(
                machine.medium.crashed(lambda place, _change: each[place] if place < len(each) else Fate.KEPT, seed)
            )

    def cut_power_before(self, step: int | None) -> None:
        """Let the call with this number, and all later ones, raise `PowerCut`; then ask `crash` for what is left."""
        self._machine.cut_before = step

    def watch(self, watcher: Callable[[Step], None] | None) -> None:
        """Call `watcher` before each changing call, in the thread that makes it; it may `fork` the disk."""
        self._machine.watcher = watcher

    # What is wrong with the disk.

    @property
    def capacity(self) -> int | None:
        """How many bytes fit; `None`: no end."""
        return self._machine.capacity

    @capacity.setter
    def capacity(self, size: int | None) -> None:
        self._machine.capacity = size

    def fill(self, *, leaving: int = 0) -> None:
        """Let the disk be full now, but for `leaving` bytes; set `capacity` to None to make room again."""
        with self._machine.mutex:
            self._machine.capacity = self._machine.used() + leaving

    @property
    def read_only(self) -> bool:
        """Whether the file system is read-only now: every call that would change it fails with EROFS."""
        return self._machine.read_only

    @read_only.setter
    def read_only(self, value: bool) -> None:
        self._machine.read_only = value

    def fail(
        self,
        operation: Operation | Literal["*"],
        error: int,
        *,
        path: str = "*",
        nth: int = 1,
        times: int | None = 1,
        after: bool = False,
    ) -> None:
        """Let the `nth` call of `operation` from now on fail with this errno, and the `times - 1` that follow (None: for ever).

        `"*"` is any call that changes the disk. `path` is a pattern as for a shell, where `*` crosses slashes. With `after`, the call does its work and then reports the error.
        A failed sync leaves what it covered uncertain for ever, as the kernel does.
        """
        self._machine.armed.append(Armed(operation, path, nth - 1, times, error=error, after=after))

    def shorten(self, size: int, *, path: str = "*", nth: int = 1, times: int | None = 1) -> None:
        """Let the `nth` write from now on take at most `size` bytes."""
        self._machine.armed.append(Armed("write", path, nth - 1, times, short=size))

    def stall(
        self,
        operation: Operation | Literal["*"],
        hook: Callable[[], None],
        *,
        path: str = "*",
        nth: int = 1,
        times: int | None = 1,
    ) -> None:
        """Call `hook` inside the `nth` call of `operation`, before it does its work, in the thread that makes it.

        In a trio worker thread `lambda: trio.from_thread.run(trio.sleep, 30)` stalls for 30 s of the run's own clock.
        """
        self._machine.armed.append(Armed(operation, path, nth - 1, times, stall=hook))

    def heal(self) -> None:
        """Disarm every failure, and be writable again."""
        self._machine.armed.clear()
        self._machine.read_only = False

    # The calls of `trouper.journal.disk.Disk`.

    def create(self, path: str) -> CrashFile:
        with self._call("create", path):
            directory, name = self._place(path)
            if name in directory.names:
                raise os_error(errno.EEXIST, path)
            inode = Content()
            self._machine.medium.move((directory, name, inode))
            return self._opened(inode, path, writable=True)

    def open_append(self, path: str) -> CrashFile:
        with self._call("open_append", path):
            return self._opened(self._content(path), path, writable=True)

    def open_read(self, path: str) -> CrashFile:
        with self._call("open_read", path):
            return self._opened(self._content(path), path, writable=False)

    def exists(self, path: str) -> bool:
        with self._call("exists", path):
            try:
                self._inode(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def is_dir(self, path: str) -> bool:
        with self._call("is_dir", path):
            try:
                return isinstance(self._inode(path), Directory)
            except FileNotFoundError:
                return False

    def list_dir(self, path: str) -> list[str]:
        with self._call("list_dir", path):
            return sorted(self._directory(path).names)

    def make_dirs(self, path: str) -> None:
        with self._call("make_dirs", path):
            parts = _parts(path)
            here = self._machine.medium.root
            for depth, name in enumerate(parts):
                child = here.names.get(name)
                if child is None:
                    child = Directory()
                    self._machine.medium.move((here, name, child))
                if not isinstance(child, Directory):
                    if depth == len(parts) - 1:
                        return  # As `OsDisk`: the name is taken, and whoever needs a directory looks.
                    raise os_error(errno.ENOTDIR, path)
                here = child

    def rename(self, source: str, target: str) -> None:
        with self._call("rename", target):
            old, old_name = self._place(source)
            new, new_name = self._place(target)
            inode = old.names.get(old_name)
            if inode is None:
                raise os_error(errno.ENOENT, source, target)
            if isinstance(inode, Directory) and target.rstrip("/").startswith(source.rstrip("/") + "/"):
                raise os_error(errno.EINVAL, source, target)
            there = new.names.get(new_name)
            if there is inode:
                return
            if source.startswith(target.rstrip("/") + "/"):
                raise os_error(errno.ENOTEMPTY, source, target)
            if isinstance(there, Directory) and not isinstance(inode, Directory):
                raise os_error(errno.EISDIR, source, target)
            if isinstance(there, Content) and isinstance(inode, Directory):
                raise os_error(errno.ENOTDIR, source, target)
            if isinstance(there, Directory) and there.names:
                raise os_error(errno.ENOTEMPTY, source, target)
            self._machine.medium.move((old, old_name, None), (new, new_name, inode))
            for file in self._files:
                if file._inode is inode:
                    file.path = (
                        target  # So that the log, and the patterns of faults, know the file by its name of today.
                    )

    def unlink(self, path: str) -> None:
        with self._call("unlink", path):
            self._content(path)
            directory, name = self._place(path)
            self._machine.medium.move((directory, name, None))

    def remove_dir(self, path: str) -> None:
        """Remove a directory that is empty."""
        with self._call("remove_dir", path):
            if self._directory(path).names:
                raise os_error(errno.ENOTEMPTY, path)
            directory, name = self._place(path)
            self._machine.medium.move((directory, name, None))

    def sync_dir(self, path: str) -> None:
        with self._call("sync_dir", path, failed=lambda: self._machine.medium.doom_names(self._directory(path))):
            self._machine.medium.sync_names(self._directory(path))

    def reserve(self, path: str, size: int) -> None:
        with self._call("reserve", path, size):
            inode = self._made(path)
            if size > len(inode.live):
                if size - len(inode.live) > self._machine.free():
                    raise os_error(errno.ENOSPC, path)
                inode.resize(self._machine.medium.number(), size)

    def free_bytes(self, path: str) -> int:
        with self._call("free_bytes", path):
            self._inode(path)
            return self._machine.free()

    def lock(self, path: str, owner: str) -> CrashLock:
        with self._call("lock", path):
            inode = self._made(path)
            if inode.holder is not None:
                raise os_error(errno.EAGAIN, path)
            data = owner.encode()
            if len(data) > self._machine.free() + len(inode.live):
                raise os_error(errno.ENOSPC, path)
            before = bytes(inode.live)
            self._put_text(inode, data)
            return CrashLock(self, inode, path, before)

    def _put_text(self, inode: Content, data: bytes) -> None:
        inode.resize(self._machine.medium.number(), 0)
        inode.write(self._machine.medium.number(), 0, data)

    # Inside.

    def _call(
        self, operation: Operation, path: str, size: int = 0, *, failed: Callable[[], object] | None = None
    ) -> AbstractContextManager[Armed | None]:
        return self._machine.call(self._check_alive, operation, path, size, failed=failed)

    def _check_alive(self) -> None:
        if self._dead or self._machine.off:
            raise PowerCut("this process is gone; go on with the disk that kill() or crash() returned")

    def _on(self, medium: Medium) -> CrashDisk:
        disk = CrashDisk(capacity=self._machine.capacity)
        disk._machine.medium = medium
        return disk

    def _opened(self, inode: Content, path: str, *, writable: bool) -> CrashFile:
        file = CrashFile(self, inode, path, writable=writable)
        self._files.append(file)
        return file

    def _inode(self, path: str) -> Inode:
        here: Inode = self._machine.medium.root
        for name in _parts(path):
            if not isinstance(here, Directory):
                raise os_error(errno.ENOTDIR, path)
            if name not in here.names:
                raise os_error(errno.ENOENT, path)
            here = here.names[name]
        return here

    def _directory(self, path: str) -> Directory:
        inode = self._inode(path)
        if not isinstance(inode, Directory):
            raise os_error(errno.ENOTDIR, path)
        return inode

    def _content(self, path: str) -> Content:
        inode = self._inode(path)
        if not isinstance(inode, Content):
            raise os_error(errno.EISDIR, path)
        return inode

    def _made(self, path: str) -> Content:
        """The file, which is made if it is not there."""
        directory, name = self._place(path)
        inode = directory.names.get(name)
        if isinstance(inode, Directory):
            raise os_error(errno.EISDIR, path)
        if inode is None:
            inode = Content()
            self._machine.medium.move((directory, name, inode))
        return inode

    def _place(self, path: str) -> tuple[Directory, str]:
        parent, name = os.path.split(path.rstrip("/"))
        if not name:
            raise os_error(errno.EEXIST, path)
        return self._directory(parent), name

    def _walk(self) -> Iterator[tuple[str, Inode]]:
        def under(prefix: str, directory: Directory) -> Iterator[tuple[str, Inode]]:
            for name, inode in directory.names.items():
                yield f"{prefix}/{name}", inode
                if isinstance(inode, Directory):
                    yield from under(f"{prefix}/{name}", inode)

        return under("", self._machine.medium.root)


class CrashFile:
    """An open file of a `CrashDisk`."""

    def __init__(self, disk: CrashDisk, inode: Content, path: str, *, writable: bool) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._writable = writable
        self._closed = False

    def write(self, data: bytes | memoryview) -> int:
        given = bytes(data)
        with self._disk._call("write", self.path, len(given)) as fault:
            self._check_open(writing=True)
            machine = self._disk._machine
            room = machine.free()
            if given and not room:
                raise os_error(errno.ENOSPC, self.path)
            most = room if fault is None or fault.short is None else min(room, fault.short)
            taken = given[:most]
            self._inode.write(machine.medium.number(), len(self._inode.live), taken)
            return len(taken)

    def pread(self, size: int, offset: int) -> bytes:
        with self._disk._call("pread", self.path, size):
            self._check_open()
            return bytes(self._inode.live[offset : offset + size])

    def size(self) -> int:
        with self._disk._call("size", self.path):
            self._check_open()
            return len(self._inode.live)

    def truncate(self, size: int) -> None:
        with self._disk._call("truncate", self.path, size):
            self._check_open(writing=True)
            self._inode.resize(self._disk._machine.medium.number(), size)

    def sync(self) -> None:
        with self._disk._call("sync", self.path, failed=self._inode.doom):
            self._check_open()
            self._inode.sync()

    def is_at(self, path: str) -> bool:
        """Whether this name still leads to this file."""
        with self._disk._call("is_at", self.path):
            self._check_open()
            try:
                return self._disk._inode(path) is self._inode
            except (FileNotFoundError, NotADirectoryError):
                return False

    def close(self) -> None:
        """Close it, once or again. Like any process's end, that of this one closes it too, so this never fails."""
        self._closed = True
        if self in self._disk._files:
            self._disk._files.remove(self)

    def _check_open(self, *, writing: bool = False) -> None:
        if self._closed or (writing and not self._writable):
            raise os_error(errno.EBADF, self.path)


class CrashLock:
    """A lock held by a process of a `CrashDisk`, until it closes it or is no more."""

    def __init__(self, disk: CrashDisk, inode: Content, path: str, before: bytes) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._before = before
        inode.holder = self
        disk._locks.append(self)

    def withdraw(self) -> None:
        """Close it, with the text of its file as it was before; a process that is no more changes nothing."""
        with self._disk._machine.mutex:
            if self._inode.holder is self and not self._disk._machine.off and not self._disk._machine.read_only:
                self._disk._put_text(self._inode, self._before)
            self._release()

    def close(self) -> None:
        with self._disk._machine.mutex:
            self._release()

    def _release(self) -> None:
        if self._inode.holder is self:
            self._inode.holder = None
        if self in self._disk._locks:
            self._disk._locks.remove(self)


def _parts(path: str) -> list[str]:
    if not path.startswith("/"):
        raise ValueError(f"a path on a CrashDisk is absolute, unlike {path!r}; begin it with a slash")
    return [name for name in path.split("/") if name]


def _describe(change: Change, paths: dict[int, str], medium: Medium) -> Pending:
    if isinstance(change, Named):
        names = " ".join(
            f"{'-' if inode is None else '+'}{paths.get(id(directory), '')}/{name}"
            for directory, name, inode in change.moves
        )
        return Pending(change.number, "names", names)
    for inode in medium.inodes():
        if isinstance(inode, Content) and any(change is known for known in inode.changes):
            path = paths.get(id(inode), "")
            break
    if isinstance(change, Written):
        return Pending(change.number, "write", path, change.offset, len(change.data))
    return Pending(change.number, "resize", path, size=getattr(change, "size", 0))
