"""Single steps on the file system, each by the descriptor of the directory it happens in; and their refusals in words.

No function here takes a path of more than one component, which is what makes `rooted` safe.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Literal

from trouper._errors import ConfigError
from trouper.core.values import frozen
from trouper.tools.guards.names import DEPTH_MAX, TEMPORARY_PREFIX, from_disk, on_disk
from trouper.tools.guards.refusal import Refused

OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a FIFO waits for a writer that never comes.
OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
CREATE_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
open_in = os.open
_effective_uid = os.geteuid

Kind = Literal["file", "directory", "symlink", "other"]


class FileRefused(Refused):
    """A file operation that was not done."""


@frozen
class Entry:
    """One name in a directory, as it is: links are not followed."""

    parts: tuple[str, ...]
    kind: Kind
    size: int
    mode: int
    modified_s: float
    links: int

    @property
    def name(self) -> str:
        return self.parts[-1] if self.parts else "."

    @property
    def path(self) -> str:
        return "/".join(self.parts) or "."


#: For what is hashed piece by piece.
new_hash = hashlib.sha256


def content_hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def require_private(descriptor: int, shown: str, *, tighten: bool) -> None:
    status = os.fstat(descriptor)
    if status.st_uid != _effective_uid():
        raise ConfigError(
            f"{shown!r} belongs to user {status.st_uid}, not to {_effective_uid()}; use a directory of your own",
            path=shown,
        )
    if tighten and status.st_mode & 0o077:
        os.fchmod(descriptor, DIRECTORY_MODE)
    elif status.st_mode & 0o022:
        raise ConfigError(f"{shown!r} can be written by other users; run: chmod go-w {shown!r}", path=shown)


def make_trusted(path: Path) -> None:
    """The operator's directory, and those above it that are missing; all of them private, whatever the umask."""
    for directory in (*reversed(path.parents), path):
        with suppress(FileExistsError):
            os.mkdir(directory, DIRECTORY_MODE)
            os.chmod(directory, DIRECTORY_MODE)


def make_directory(parent: int, name: str) -> int:
    try:
        os.mkdir(on_disk(name), DIRECTORY_MODE, dir_fd=parent)
    except FileExistsError:
        pass  # another writer was first: what it made is opened with the same care
    except OSError as error:
        raise from_os(error, (name,)) from error
    try:
        descriptor = open_in(on_disk(name), OPEN_DIRECTORY, dir_fd=parent)
    except OSError as error:
        raise from_os(error, (name,), look(parent, name)) from error
    os.fchmod(descriptor, DIRECTORY_MODE)
    return descriptor


def open_regular(parent: int, parts: tuple[str, ...]) -> tuple[int, os.stat_result]:
    # Looked at before opening, because opening a device may already act; and again afterwards, because only that look is final.
    before = look(parent, parts[-1])
    if before is None:
        raise missing(parts)
    require_plain_file(before, parts)
    try:
        descriptor = open_in(on_disk(parts[-1]), OPEN_FILE, dir_fd=parent)
    except OSError as error:
        raise from_os(error, parts, look(parent, parts[-1])) from error
    try:
        status = os.fstat(descriptor)
        require_plain_file(status, parts)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status


def require_plain_file(status: os.stat_result, parts: tuple[str, ...]) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise not_plain(parts, status)
    _require_single_name(status, parts)


def _require_single_name(status: os.stat_result, parts: tuple[str, ...]) -> None:
    if status.st_nlink > 1:
        raise FileRefused(
            f"file {quoted(parts)} has {status.st_nlink} hard links, and the others may lie outside the session's files; copy it instead",
            path=parts[-1],
        )


def require_hash(data: bytes | None, expected: str, parts: tuple[str, ...]) -> None:
    actual = None if data is None else content_hash(data)
    if actual != expected.lower():
        raise FileRefused(
            f"file {quoted(parts)} has changed: its hash is {actual}, not {expected!r}; read it again and redo the edit",
            path=parts[-1],
        )


def look(parent: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(on_disk(name), dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise from_os(error, (name,)) from error


def entries_of(directory: int, parts: tuple[str, ...]) -> list[Entry]:
    found = []
    with os.scandir(directory) as scan:
        for item in scan:
            if item.name.startswith(TEMPORARY_PREFIX):
                continue
            try:
                found.append(entry_of((*parts, from_disk(item.name)), item.stat(follow_symlinks=False)))
            except FileNotFoundError:
                continue  # removed since the scan began
            except OSError as error:  # a directory whose names may be read, and nothing more
                raise from_os(error, parts) from error
    found.sort(key=lambda entry: entry.name)
    return found


def entry_of(parts: tuple[str, ...], status: os.stat_result) -> Entry:
    kind: Kind = "other"
    if stat.S_ISREG(status.st_mode):
        kind = "file"
    elif stat.S_ISDIR(status.st_mode):
        kind = "directory"
    elif stat.S_ISLNK(status.st_mode):
        kind = "symlink"
    return Entry(parts, kind, status.st_size, stat.S_IMODE(status.st_mode), status.st_mtime, status.st_nlink)


def remove_tree(parent: int, parts: tuple[str, ...]) -> int:
    if len(parts) > DEPTH_MAX:
        raise FileRefused(f"the tree below is deeper than {DEPTH_MAX} levels; delete it with a command", path=parts[-1])
    try:
        descriptor = open_in(on_disk(parts[-1]), OPEN_DIRECTORY, dir_fd=parent)
    except OSError as error:
        raise from_os(error, parts, look(parent, parts[-1])) from error
    gone = 1
    try:
        with os.scandir(descriptor) as scan:
            names = [(from_disk(item.name), item.is_dir(follow_symlinks=False)) for item in scan]
        for name, is_directory in names:
            if is_directory:
                gone += remove_tree(descriptor, (*parts, name))
            else:
                unlink(descriptor, (*parts, name))
                gone += 1
    finally:
        os.close(descriptor)
    try:
        os.rmdir(on_disk(parts[-1]), dir_fd=parent)
    except OSError as error:
        raise from_os(error, parts) from error
    return gone


def sweep_directory(directory: int, own_prefix: str, depth: int = 0) -> None:
    """Unlink temporary files of processes that are gone. The journal's lock keeps a second live process out of the same root."""
    with os.scandir(directory) as scan:
        names = [(from_disk(item.name), item.is_dir(follow_symlinks=False)) for item in scan]
    for name, is_directory in names:
        if is_directory and depth < DEPTH_MAX:
            try:
                child = open_in(on_disk(name), OPEN_DIRECTORY, dir_fd=directory)
            except OSError:
                continue
            try:
                sweep_directory(child, own_prefix, depth + 1)
            finally:
                os.close(child)
        elif name.startswith(TEMPORARY_PREFIX) and not name.startswith(own_prefix):
            with suppress(OSError):  # in a directory that nobody may write to it stays
                unlink_quietly(name, directory)


def unlink(parent: int, parts: tuple[str, ...]) -> None:
    """Whether or not it is still there."""
    try:
        unlink_quietly(parts[-1], parent)
    except OSError as error:
        raise from_os(error, parts) from error


def unlink_quietly(name: str, parent: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(on_disk(name), dir_fd=parent)


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


# -- refusals ----------------------------------------------------------------------------------------------------------------


def quoted(parts: tuple[str, ...]) -> str:
    return ascii("/".join(parts))


def missing(parts: tuple[str, ...]) -> FileRefused:
    return FileRefused(f"{quoted(parts)} does not exist; list the directory to see what does", path="/".join(parts))


def not_plain(parts: tuple[str, ...], status: os.stat_result) -> FileRefused:
    kinds = {
        stat.S_IFDIR: "a directory; name a file in it",
        stat.S_IFLNK: "a symbolic link, and links are not followed; name the file itself",
        stat.S_IFIFO: "a pipe; only regular files are opened",
        stat.S_IFSOCK: "a socket; only regular files are opened",
    }
    kind = kinds.get(stat.S_IFMT(status.st_mode), "a device; only regular files are opened")
    return FileRefused(f"{quoted(parts)} is {kind}", path="/".join(parts))


def from_os(error: OSError, parts: tuple[str, ...], status: os.stat_result | None = None) -> FileRefused:
    """An OSError in words for the model: `strerror` only, as its file names may be the host's."""
    if status is not None and stat.S_ISLNK(status.st_mode):
        return not_plain(parts, status)
    remedies = {
        errno.ENOTDIR: "is not a directory; use the path of one",
        errno.ELOOP: "is a symbolic link, and links are not followed; name the file itself",
        errno.EISDIR: "is a directory; name a file in it",
        errno.ENOTEMPTY: "is a directory that is not empty; delete it first",
        errno.EEXIST: "exists already; choose another name",
        errno.ENOSPC: "was not written: the disk is full; delete what is no longer needed",
        errno.EACCES: "may not be opened: its mode forbids it; choose another file",
        errno.EPERM: "may not be opened: the system forbids it; choose another file",
        errno.ENOENT: "does not exist; list the directory to see what does",
    }
    remedy = remedies.get(error.errno or 0, f"cannot be used ({os.strerror(error.errno or 0)}); choose another file")
    return FileRefused(f"{quoted(parts)} {remedy}", path="/".join(parts), errno=error.errno)
