"""A file is there whole or not at all, of mode 0600 from its first moment, in directories of mode 0700 (J8)."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700


def make_private_directory(path: Path) -> None:
    """Make it, and those of its parents that are missing, for the user alone. What is there already stays as it is."""
    for directory in reversed((path, *path.parents)):
        with contextlib.suppress(FileExistsError):
            if not directory.is_dir():
                directory.mkdir(mode=DIRECTORY_MODE)


def unfinished(name: str) -> str:
    """What a file is called until it is whole."""
    return f".{name}.new"


def write_atomically(path: Path, data: bytes, *, lasting: bool = True) -> os.stat_result:
    """Replace `path`. With `lasting`, it is on the medium on return; without, a power cut may leave the old one. Returns what `stat` says of it.

    The temporary name is the same each time: whoever writes a file has to be its only writer anyhow, and a crash leaves one stray file at most.
    """
    temporary = path.with_name(unfinished(path.name))
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if lasting:
            os.fsync(fd)
        written = os.fstat(fd)
    finally:
        os.close(fd)
    os.replace(temporary, path)
    if lasting:
        sync_directory(path.parent)
    return written


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
