"""Bodies too large for a line: files named by the SHA-256 of what they hold, synced before the record that names them (J5)."""

from __future__ import annotations

import hashlib
import os

from trouper.journal.disk import Disk
from trouper.journal.files import read_whole, write_file
from trouper.journal.format import BLOBS_NAME, BODY_MARK
from trouper.journal.segment import Damage


def digest_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def blob_path(root: str, digest: str) -> str:
    return os.path.join(root, BLOBS_NAME, digest[:2], digest)


def put_blob(disk: Disk, root: str, digest: str, body: bytes, lasting: set[str]) -> None:
    """Put a blob on the medium. One that is there already is written again: who knows whether a crash came before its sync.

    `lasting` holds the directories whose names this process has synced; one that a killed process made is in the page cache only.
    """
    path = blob_path(root, digest)
    folder = os.path.dirname(path)
    for directory in (os.path.dirname(folder), folder):
        if directory not in lasting:
            disk.make_dirs(directory)
            disk.sync_dir(os.path.dirname(directory))
            lasting.add(directory)
    write_file(disk, path, (body,))


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
