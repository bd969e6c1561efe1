"""Reading from a medium that has gone bad in places: what it no longer gives is read as NUL, and noted.

For `verify` and `repair`, which want every record that is left. Whoever writes, or trusts what it reads, uses the disk as it is and hears of the error.
"""

from __future__ import annotations

import errno
from typing import Any

from trouper.journal.disk import Disk, File
from trouper.journal.segment import Damage

#: What is read at once where a larger read failed: a sector, or a page.
_PIECE_BYTES = 4096
#: Errors of the medium, and names that lead to something that is no file. Others (permissions, too many files) say nothing about the journal.
_BAD = frozenset({errno.EIO, errno.EISDIR, errno.ESPIPE, errno.EBADMSG, getattr(errno, "EUCLEAN", errno.EIO)})


class TolerantDisk:
    """A disk whose files can be read wherever they can be read. `unreadable` gathers the places where not."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.unreadable: dict[tuple[str, int], Damage] = {}

    def open_read(self, path: str) -> File:
        return TolerantFile(self._disk.open_read(path), path, self.unreadable)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


class TolerantFile:
    """A file for reading; see above."""

    def __init__(self, file: File, path: str, unreadable: dict[tuple[str, int], Damage]) -> None:
        self._file = file
        self._path = path
        self._unreadable = unreadable

    def pread(self, size: int, offset: int) -> bytes:
        try:
            return self._file.pread(size, offset)
        except OSError as error:
            if error.errno not in _BAD:
                raise
        pieces: list[bytes] = []
        end = min(offset + size, self._file.size())
        while offset < end:
            piece = offset // _PIECE_BYTES * _PIECE_BYTES
            stop = min(end, piece + _PIECE_BYTES)
            pieces.append(self._pread_piece(stop - offset, offset, piece))
            offset = stop
        return b"".join(pieces)

    def _pread_piece(self, size: int, offset: int, piece: int) -> bytes:
        try:
            return self._file.pread(size, offset)
        except OSError as error:
            reason = f"the disk cannot read it: {error.strerror}"
            self._unreadable[self._path, piece] = Damage(self._path, piece, reason)
            return bytes(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
