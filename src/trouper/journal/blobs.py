"""Bodies too large for a line: files named by the SHA-256 of what they hold, synced before the record that names them (J5)."""

from __future__ import annotations

import hashlib
import os

from trouper.journal.disk import Disk
from trouper.journal.files import make_directory, read_whole, write_file
from trouper.journal.format import BLOBS_NAME, BODY_MARK
from trouper.journal.segment import Damage


def digest_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def blob_path(root: str, digest: str) -> str:
    return os.path.join(root, BLOBS_NAME, digest[:2], digest)


def put_blob(disk: Disk, root: str, digest: str, body: bytes) -> None:
    """Put a blob on the medium. One that is there already is written again: who knows whether a crash came before its sync."""
    path = blob_path(root, digest)
    folder = os.path.dirname(path)
    make_directory(disk, os.path.dirname(folder))
    make_directory(disk, folder)
    write_file(disk, path, (body,))


def check_blob(disk: Disk, root: str, digest: str, size: int) -> Damage | bytes:
    """The body in a blob, compared with its name; or what is wrong with it."""
    path = blob_path(root, digest)
    try:
        body = read_whole(disk, path)
    except FileNotFoundError:
        return Damage(path, 0, "a blob is missing")
    if len(body) != size:
        return Damage(path, min(size, len(body)), f"a blob has {len(body)} bytes, and its record says {size}")
    if digest_of(body) != digest:
        return Damage(path, 0, "a blob does not hold what its name says")
    return body


def with_blob(head: bytes, body: bytes) -> bytes:
    """The JSON of a record as it would be if its body were not in a blob."""
    return b"".join((head, BODY_MARK, body, b"}"))
