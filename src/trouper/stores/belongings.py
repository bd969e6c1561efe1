"""What belongs to a root besides its journal, copied for a root that is to take its place.

As it is: with its modes and times, and links as links. Nothing is looked at through a link: tools put what they like into a session's files, and what a link
leads to is not the root's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from attrs import frozen

from trouper.stores.atomic import DIRECTORY_MODE, FILE_MODE

#: Directories inside one another. Each holds two descriptors while what is in it is copied.
DEPTH_MAX = 100
_PIECE_BYTES = 1 << 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a pipe that has come in its place waits for a writer.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@frozen
class Brought:
    """Names in the root that were copied; and paths that were not: what holds no data, what may not be read, and links where something of the root should be."""

    copied: tuple[str, ...]
    left_out: tuple[str, ...]


def bring_along(root: Path, target: Path, names: Iterable[str]) -> Brought:
    """Copy these, as far as they are there, into a directory that has none of them; all of it is on the medium on return. Errors of the disk are plain `OSError`s."""
    copied: list[str] = []
    left_out: list[str] = []
    root = Path(os.path.realpath(root))  # By a link to it, it may well be known.
    with _opened(root) as source, _opened(target) as place:
        for name in names:
            status = _look(source, name)
            if status is None:
                continue
            if stat.S_ISLNK(status.st_mode):
                left_out.append(name)
            else:
                copied.append(name)
                _copy(source, place, root / name, status, left_out, root)
        os.fsync(place)
    return Brought(tuple(copied), tuple(left_out))


def _copy(source: int, place: int, path: Path, status: os.stat_result, left_out: list[str], root: Path) -> None:
    """One name, and all that is in it. What is gone by now was somebody's who works there; it is as if it had gone before."""
    try:
        if stat.S_ISDIR(status.st_mode):
            _copy_directory(source, place, path, status, left_out, root)
        elif stat.S_ISREG(status.st_mode):
            _copy_file(source, place, path.name)
        elif stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(path.name, dir_fd=source), path.name, dir_fd=place)
        else:
            left_out.append(str(path.relative_to(root)))
    except FileNotFoundError:
        return
    except PermissionError:
        left_out.append(str(path.relative_to(root)))
    except OSError as error:
        if error.filename is not None and os.path.isabs(error.filename):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def _copy_directory(
    source: int, place: int, path: Path, status: os.stat_result, left_out: list[str], root: Path
) -> None:
    if len(path.parts) - len(root.parts) > DEPTH_MAX:
        raise OSError(errno.ELOOP, f"more than {DEPTH_MAX} directories in one another", str(path))
    with _opened(path.name, source) as inner:
        os.mkdir(path.name, DIRECTORY_MODE, dir_fd=place)
        with _opened(path.name, place) as copy:
            for name in sorted(os.listdir(inner)):
                found = _look(inner, name)
                if found is not None:
                    _copy(inner, copy, path / name, found, left_out, root)
            # Last: one that cannot be written to would take nothing.
            _as_it_was(copy, status)


def _copy_file(source: int, place: int, name: str) -> None:
    given = os.open(name, _READ, dir_fd=source)
    with open(given, "rb", buffering=0) as old:
        status = os.fstat(given)
        with open(os.open(name, _CREATE, FILE_MODE, dir_fd=place), "wb", buffering=0) as new:
            while piece := old.read(_PIECE_BYTES):
                view = memoryview(piece)
                while view:
                    view = view[new.write(view) :]
            _as_it_was(new.fileno(), status)


def _as_it_was(copy: int, status: os.stat_result) -> None:
    os.fchmod(copy, stat.S_IMODE(status.st_mode) & 0o777)
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.fsync(copy)


def _look(directory: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def _opened(name: str | Path, directory: int | None = None) -> Iterator[int]:
    descriptor = os.open(name, _DIRECTORY, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
