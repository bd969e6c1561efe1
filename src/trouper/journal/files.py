"""Writing a whole file so that it is there completely or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from trouper.journal.disk import Disk, File
from trouper.journal.format import BLOCK_BYTES, TEMPORARY_SUFFIX, is_temporary


def write_all(file: File, data: bytes | memoryview) -> None:
    """Write to the last byte; a write may be short, and one that takes nothing is an error."""
    taken = file.write(data)
    if taken == len(data):
        return
    view = memoryview(data)
    while True:
        if taken <= 0:
            raise OSError(f"the disk took {taken} of {len(view)} bytes")
        view = view[taken:]
        if not view:
            return
        taken = file.write(view)


def create_temporary(disk: Disk, path: str) -> File:
    """A fresh temporary file for `path`; what an earlier crash left of it is replaced."""
    temporary = path + TEMPORARY_SUFFIX
    if disk.exists(temporary):
        disk.unlink(temporary)
    return disk.create(temporary)


def put_in_place(disk: Disk, path: str) -> None:
    """Give a synced temporary file its name, and make the name last."""
    disk.rename(path + TEMPORARY_SUFFIX, path)
    disk.sync_dir(os.path.dirname(path))


def remove_temporaries(disk: Disk, folder: str) -> None:
    """Delete what a process that was killed had not put in place."""
    for name in disk.list_dir(folder):
        if is_temporary(name):
            disk.unlink(os.path.join(folder, name))


def write_file(disk: Disk, path: str, parts: Iterable[bytes]) -> None:
    """Temporary file, sync, rename, directory sync. After an error the name is as before."""
    file = create_temporary(disk, path)
    try:
        try:
            for part in parts:
                write_all(file, part)
            file.sync()
        finally:
            file.close()
    except BaseException:
        with contextlib.suppress(OSError):
            disk.unlink(path + TEMPORARY_SUFFIX)
        raise
    put_in_place(disk, path)


def make_directory(disk: Disk, path: str) -> None:
    """Make a directory below the journal's, and make its name last; also if it is there, for its maker may have been killed."""
    disk.make_dirs(path)
    disk.sync_dir(os.path.dirname(path))


def remove_tree(disk: Disk, path: str) -> None:
    """Remove a directory of our own making, as far as that can be done; nobody is told of what cannot."""
    with contextlib.suppress(OSError):
        # Tried first of everything: so a link to a directory goes, and not what is in that.
        disk.unlink(path)
        return
    # Neither is asked of every disk: somebody's own may not have it, and then an empty directory stays.
    with contextlib.suppress(OSError):
        if (make_writable := getattr(disk, "make_writable", None)) is not None:
            make_writable(path)
    with contextlib.suppress(OSError):
        for name in disk.list_dir(path):
            remove_tree(disk, os.path.join(path, name))
        if (remove_dir := getattr(disk, "remove_dir", None)) is not None:
            remove_dir(path)


def read_range(file: File, start: int, end: int) -> Iterable[bytes]:
    """The bytes from `start` to `end` in blocks."""
    while start < end:
        block = file.pread(min(BLOCK_BYTES, end - start), start)
        if not block:
            raise OSError(f"the file ends at byte {start}, before {end}")
        yield block
        start += len(block)


def read_whole(disk: Disk, path: str) -> bytes:
    file = disk.open_read(path)
    try:
        return b"".join(read_range(file, 0, file.size()))
    finally:
        file.close()
