"""Who has a root open for writing. Looking must not disturb: a lock that is taken for a look could turn a runtime away that starts just then."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

from trouper.journal.format import LOCK_NAME

_LOCKS = Path("/proc/locks")


def owner_of(root: Path) -> int | None:
    """The process that owns the root; None if nobody does. 0: somebody does, and nobody knows who."""
    path = root / LOCK_NAME
    if not _is_held(path):
        # Somebody may have deleted the file of a process that goes on: it has locked the directory too (J9).
        return 0 if _is_held(root) else None
    try:
        return int(json.loads(path.read_bytes())["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _is_held(path: Path) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    try:
        lines = _LOCKS.read_text().splitlines()
    except OSError:
        return _is_held_by_trying(path)
    device, inode = found.st_dev, found.st_ino
    wanted = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    # Overlay file systems show another device than `stat` does; the inode alone is then what there is to go by.
    return any(
        " FLOCK " in line and (f" {wanted} " in line or line.split()[5].rpartition(":")[2] == str(inode))
        for line in lines
    )


def _is_held_by_trying(path: Path) -> bool:
    """Where the system keeps no list of locks (macOS): a shared lock for an instant."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
