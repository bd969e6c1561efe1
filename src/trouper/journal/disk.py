"""What the journal asks of a disk, and the real one.

The journal reaches files through this protocol only, so that a test can hand it a disk that forgets, garbles or refuses
(`trouper.testing.CrashDisk`). Calls block: whoever calls them decides in which thread. Errors are plain `OSError`s, as the kernel gives them.

What a caller may rely on, and a simulated disk must honour:

- `File.write` may be short, as `os.write` may; data is in the file at once, and on the medium only after `File.sync`.
- A name (create, rename, unlink) is on the medium only after `Disk.sync_dir` of its directory.
- Where it takes no time and has no thread to wait for, it says so: `in_memory = True`. Any other disk is synced in a thread (J2).
- `Disk.lock` is held until the lock is closed or the process dies, and is refused while another holder lives.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import sys
from collections.abc import Callable
from typing import Protocol, runtime_checkable

FILE_MODE = 0o600
#: The text of a lock file is far shorter.
OWNER_BYTES_MAX = 4096
DIRECTORY_MODE = 0o700


class File(Protocol):
    """An open file, appended to at its end and read anywhere."""

    def write(self, data: bytes | memoryview) -> int:
        """Append; returns how many bytes were taken, which may be fewer than given."""

    def pread(self, size: int, offset: int) -> bytes: ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Return only when data and length are on the medium (fdatasync)."""

    def close(self) -> None: ...


class Lock(Protocol):
    """An exclusive claim on a lock file; its text says who holds it."""

    def close(self) -> None: ...

    def withdraw(self) -> None:
        """Close it, with the text of the file, and the times of file and directory, as they were before: for a holder that has been refused."""


@runtime_checkable
class Disk(Protocol):
    """The calls on names. Paths are absolute strings."""

    def create(self, path: str) -> File:
        """A new empty file of mode 0600 for appending; `FileExistsError` if the name is taken, also by a link."""

    def open_append(self, path: str) -> File:
        """An existing file, to append to."""

    def open_read(self, path: str) -> File:
        """An existing file, to read."""

    def exists(self, path: str) -> bool:
        """Whether there is something of this name."""

    def is_dir(self, path: str) -> bool:
        """Whether it is a directory."""

    def list_dir(self, path: str) -> list[str]:
        """The names in a directory, sorted."""

    def make_dirs(self, path: str) -> None:
        """Make a directory and its parents, each of mode 0700; fine if it is there already."""

    def rename(self, source: str, target: str) -> None:
        """Atomically; replaces the target."""

    def unlink(self, path: str) -> None:
        """Remove a file."""

    def sync_dir(self, path: str) -> None:
        """Have the names in a directory reach the medium."""

    def reserve(self, path: str, size: int) -> None:
        """Make `path` a file of `size` bytes that really occupies the disk (posix_fallocate)."""

    def free_bytes(self, path: str) -> int:
        """How much can still be written there."""

    def lock(self, path: str, owner: str) -> Lock:
        """Take the lock and write `owner` into its file; `BlockingIOError` if another holds it. The file is never deleted.

        `PermissionError`, before anything is made or changed, if the directory belongs to another user: who owns it can replace what is in it.
        """


def _full_sync(fd: int) -> None:
    """macOS has no fdatasync, and its fsync does not reach the medium."""
    fcntl.fcntl(fd, getattr(fcntl, "F_FULLFSYNC", 51))


_sync = os.fdatasync if hasattr(os, "fdatasync") else _full_sync


class OsFile:
    """A file descriptor behind the `File` protocol."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, data: bytes | memoryview) -> int:
        return os.write(self._fd, data)

    def pread(self, size: int, offset: int) -> bytes:
        return os.pread(self._fd, size, offset)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        _sync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def fileno(self) -> int:
        return self._fd

    def is_at(self, path: str) -> bool:
        """Whether this name still leads to this file. A disk whose names cannot go behind one's back may leave this out."""
        try:
            return os.path.samestat(os.stat(path), os.fstat(self._fd))
        except (FileNotFoundError, NotADirectoryError):
            return False


class OsDisk:
    """The real disk."""

    def create(self, path: str) -> OsFile:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        return OsFile(os.open(path, flags, FILE_MODE))

    def open_append(self, path: str) -> OsFile:
        return OsFile(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW))

    def open_read(self, path: str) -> OsFile:
        # Without waiting for somebody who writes into a pipe that happens to have this name.
        return OsFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def is_dir(self, path: str) -> bool:
        try:
            return stat.S_ISDIR(os.stat(path).st_mode)
        except FileNotFoundError:
            return False

    def list_dir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_dirs(self, path: str) -> None:
        if self.is_dir(path):
            return
        parent = os.path.dirname(path)
        if parent and parent != path:
            self.make_dirs(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, DIRECTORY_MODE)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def make_writable(self, path: str) -> None:
        """A directory of ours, so that what is in it can be removed. What a link leads to is none."""
        if not os.path.islink(path):
            os.chmod(path, DIRECTORY_MODE)

    def remove_dir(self, path: str) -> None:
        os.rmdir(path)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def reserve(self, path: str, size: int) -> None:
        # Nor for somebody who reads from one.
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, FILE_MODE)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(fd, 0, size)
            else:
                os.pwrite(fd, bytes(size), 0)
        finally:
            os.close(fd)

    def free_bytes(self, path: str) -> int:
        found = os.statvfs(path)
        # A file system that does not say how large it is does not say how full it is either.
        return found.f_bavail * found.f_frsize if found.f_blocks else sys.maxsize

    def lock(self, path: str, owner: str) -> OsLock:
        # The directory is locked too: whoever deletes the lock file by hand cannot let a second holder in.
        directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            check_owner(directory, os.path.dirname(path))
            _flock_directory(directory)
            directory_times = _times(directory)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                lock = OsLock(fd, directory, os.pread(fd, OWNER_BYTES_MAX, 0), _times(fd), directory_times)
                _put_text(fd, owner.encode())
            except BaseException:
                os.close(fd)
                raise
        except BaseException:
            os.close(directory)
            raise
        return lock


def _put_text(fd: int, text: bytes) -> None:
    """In this order a full disk has room for it: the block of the old text is not given away."""
    os.pwrite(fd, text, 0)
    os.ftruncate(fd, len(text))


def _times(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_atime_ns, found.st_mtime_ns


def check_owner(fd: int, path: str) -> None:
    """Whoever owns the directory, or a link that leads to it, decides what is in it; so it must be us. Links of the system's are fine."""
    me = os.geteuid()
    owners = {os.fstat(fd).st_uid}
    if os.path.islink(path):
        owners |= {os.lstat(path).st_uid} - {0}
    for owner in owners - {me}:
        raise PermissionError(errno.EPERM, f"it belongs to user {owner}, not to {me}", path)


def _flock_directory(fd: int) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass  # Some network file systems lock files only; there the lock file alone must do.


class OsLock:
    """A flock on a lock file and on its directory. The file stays: deleting it would let two holders lock two inodes of one name.

    A process that was forked from the holder shares its locks until it has closed its copies. It does so at once, and the holder unlocks at its end: else a pool of workers
    that outlives the holder would keep everybody out. What it has of the holder's it must not write to from then on: `on_lost` is called there.
    """

    __slots__ = ("_before", "_directory", "_directory_times", "_fd", "_times", "on_lost")

    def __init__(
        self, fd: int, directory: int, before: bytes, times: tuple[int, int], directory_times: tuple[int, int]
    ) -> None:
        self._fd = fd
        self._directory = directory
        #: The text of the file, and when it and its directory were last read and changed.
        self._before = before
        self._times = times
        self._directory_times = directory_times
        self.on_lost: Callable[[], None] | None = None
        _held.add(self)

    def withdraw(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):  # Whoever was refused is told why, and not this.
                _put_text(self._fd, self._before)
                os.utime(self._fd, ns=self._times)
                os.utime(self._directory, ns=self._directory_times)
        self.close()

    def close(self) -> None:
        if self._fd >= 0:
            for fd in (self._fd, self._directory):
                with contextlib.suppress(OSError):  # Where directories cannot be locked.
                    fcntl.flock(fd, fcntl.LOCK_UN)
        self._let_go()

    def _let_go(self) -> None:
        """Close the descriptors, which unlocks only if nobody else has a copy."""
        _held.discard(self)
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
            os.close(self._directory)


#: The locks of this process.
_held: set[OsLock] = set()


def _let_go_of_all() -> None:
    for lock in tuple(_held):
        lock._let_go()
        if lock.on_lost is not None:
            lock.on_lost()


os.register_at_fork(after_in_child=_let_go_of_all)

#: What `OSError.errno` says when there is no room: the disk is full, or the user's quota is.
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
