"""Bodies too large for a line: files named by the SHA-256 of what they hold, synced before the record that names them (J5)."""

from __future__ import annotations

import contextlib
import hashlib
import os

from trouper.journal.disk import Disk
from trouper.journal.files import create_temporary, put_in_place, read_whole, write_all
from trouper.journal.format import BLOBS_NAME, BODY_MARK, TEMPORARY_SUFFIX
from trouper.journal.segment import Damage


def digest_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def blob_path(root: str, digest: str) -> str:
    return os.path.join(root, BLOBS_NAME, digest[:2], digest)


class OpenBlob:
    """A body on its way to the medium: its file is written, and has neither been synced nor got its name.

    That is done before its record has a sequence, when the record can still be refused; from then on neither room nor a descriptor has to be found for it.
    """

    __slots__ = ("_disk", "_file", "path")

    def __init__(self, disk: Disk, root: str, digest: str, body: bytes) -> None:
        """Writes all of it, or leaves nothing behind."""
        self.path = blob_path(root, digest)
        self._disk = disk
        disk.make_dirs(os.path.dirname(self.path))
        self._file = create_temporary(disk, self.path)
        try:
            write_all(self._file, body)
        except BaseException:
            self._file.close()
            with contextlib.suppress(OSError):  # The next start tidies up.
                disk.unlink(self.path + TEMPORARY_SUFFIX)
            raise

    def put(self, lasting: set[str]) -> None:
        """Sync it, and give it its name. One that is there already is replaced: who knows whether a crash came before its sync.

        `lasting` holds the directories whose names this process has synced; one that a killed process made is in the page cache only.
        """
        self._file.sync()
        # What this gives back is all that a sync of the directories needs.
        self._file.close()
        folder = os.path.dirname(self.path)
        for directory in (os.path.dirname(folder), folder):
            if directory not in lasting:
                self._disk.sync_dir(os.path.dirname(directory))
                lasting.add(directory)
        put_in_place(self._disk, self.path)

    def close(self) -> None:
        """As a crash would leave it; the next start tidies up."""
        self._file.close()


def put_blob(disk: Disk, root: str, digest: str, body: bytes, lasting: set[str]) -> None:
    """Put a blob on the medium, in one go."""
    blob = OpenBlob(disk, root, digest, body)
    try:
        blob.put(lasting)
    finally:
        blob.close()


def check_blob(disk: Disk, root: str, digest: str, size: int, stream: str) -> Damage | bytes:
    """The body in a blob, compared with its name; or what is wrong with it."""
    path = blob_path(root, digest)
    sessions = (stream,) if stream else ()
    try:
        body = read_whole(disk, path)
    except FileNotFoundError:
        return Damage(path, 0, "a blob is missing", sessions)
    if len(body) != size:
        return Damage(path, min(size, len(body)), f"a blob has {len(body)} bytes, and its record says {size}", sessions)
    if digest_of(body) != digest:
        return Damage(path, 0, "a blob does not hold what its name says", sessions)
    return body


def with_blob(head: bytes, body: bytes) -> bytes:
    """The JSON of a record as it would be if its body were not in a blob."""
    return b"".join((head, BODY_MARK, body, b"}"))
