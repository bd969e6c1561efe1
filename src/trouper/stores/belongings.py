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
#: What a damaged disk says of what it holds.
_DAMAGE = frozenset({errno.EIO, errno.EBADMSG, getattr(errno, "EUCLEAN", errno.EIO)})


class _LeftOut(Exception):
    """Of one name; the others are copied."""


@frozen
class Brought:
    """Names in the root that were copied; and paths that were not: what holds no data, what may not or cannot be read, and links where something of the root should be."""

    copied: tuple[str, ...]
    left_out: tuple[str, ...]


def bring_along(root: Path, target: Path, names: Iterable[str]) -> Brought:
    """Copy these, as far as they are there, into a directory that has none of them; all of it is on the medium on return. Errors of the disk are plain `OSError`s."""
    left_out: list[str] = []
    root = Path(os.path.realpath(root))  # By a link to it, it may well be known.
    with _opened(root) as source, _opened(target) as place:
        copied = tuple(name for name in names if _copy(source, place, root / name, left_out, root, links=False))
        os.fsync(place)
    return Brought(copied, tuple(left_out))


def _copy(source: int, place: int, path: Path, left_out: list[str], root: Path, *, links: bool = True) -> bool:
    """One name, and all that is in it; whether there is a copy. What is gone by now was somebody's who works there; it is as if it had gone before."""
    try:
        with _reading():
            status = os.stat(path.name, dir_fd=source, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            _copy_directory(source, place, path, status, left_out, root)
        elif stat.S_ISREG(status.st_mode):
            _copy_file(source, place, path.name)
        elif stat.S_ISLNK(status.st_mode) and links:
            os.symlink(os.readlink(path.name, dir_fd=source), path.name, dir_fd=place)
        else:
            raise _LeftOut
    except FileNotFoundError:
        return False
    except (PermissionError, _LeftOut):
        left_out.append(str(path.relative_to(root)))
        return False
    except OSError as error:
        if error.filename is not None and os.path.isabs(error.filename):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    return True


def _copy_directory(
    source: int, place: int, path: Path, status: os.stat_result, left_out: list[str], root: Path
) -> None:
    if len(path.parts) - len(root.parts) > DEPTH_MAX:
        raise OSError(errno.ELOOP, f"more than {DEPTH_MAX} directories in one another", str(path))
    with contextlib.ExitStack() as opened:
        with _reading():
            inner = opened.enter_context(_opened(path.name, source))
            names = sorted(os.listdir(inner))
        os.mkdir(path.name, DIRECTORY_MODE, dir_fd=place)
        copy = opened.enter_context(_opened(path.name, place))
        for name in names:
            _copy(inner, copy, path / name, left_out, root)
        # Last: one that cannot be written to would take nothing.
        _as_it_was(copy, status)


def _copy_file(source: int, place: int, name: str) -> None:
    with _reading():
        given = os.open(name, _READ, dir_fd=source)
    with open(given, "rb", buffering=0):
        status = os.fstat(given)
        with open(os.open(name, _CREATE, FILE_MODE, dir_fd=place), "wb", buffering=0) as new:
            try:
                while piece := _piece(given):
                    view = memoryview(piece)
                    while view:
                        view = view[new.write(view) :]
            except _LeftOut:
                os.unlink(name, dir_fd=place)  # Nobody could tell it from the whole.
                raise
            _as_it_was(new.fileno(), status)


def _piece(descriptor: int) -> bytes:
    with _reading():
        return os.read(descriptor, _PIECE_BYTES)


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """What is damaged is left out: a root is repaired because its disk is not sound."""
    try:
        yield
    except OSError as error:
        if error.errno in _DAMAGE:
            raise _LeftOut from error
        raise


def _as_it_was(copy: int, status: os.stat_result) -> None:
    os.fchmod(copy, stat.S_IMODE(status.st_mode) & 0o777)
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.fsync(copy)


@contextlib.contextmanager
def _opened(name: str | Path, directory: int | None = None) -> Iterator[int]:
    descriptor = os.open(name, _DIRECTORY, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
