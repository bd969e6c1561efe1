"""Who has a root open for writing. Looking must not disturb: a lock that is taken for a look could turn a runtime away that starts just then."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

from trouper.journal.disk import OWNER_BYTES_MAX
from trouper.journal.format import LOCK_NAME

_LOCKS = Path("/proc/locks")


def owner_of(root: Path) -> int | None:
    """The process that owns the root; None if nobody is seen to. 0: somebody does, and nobody knows who."""
    path = root / LOCK_NAME
    pid = _pid_in(path)
    if not _is_held(path, pid):
        # Somebody may have deleted the file of a process that goes on: it has locked the directory too (J9).
        return 0 if _is_held(root, None) else None
    return 0 if pid is None else pid


def _pid_in(path: Path) -> int | None:
    """Who has taken the lock last; the text stays when its writer has gone."""
    try:
        # Without waiting for somebody who writes into a pipe that happens to have this name.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            return int(json.loads(os.read(descriptor, OWNER_BYTES_MAX))["pid"])
        finally:
            os.close(descriptor)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_held(path: Path, pid: int | None) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    try:
        lines = _LOCKS.read_text().splitlines()
    except OSError:
        return _is_held_by_trying(path)
    device, inode = found.st_dev, str(found.st_ino)
    wanted = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    for line in lines:
        # `1: FLOCK  ADVISORY  WRITE 4711 08:01:131090 0 EOF`; who waits for a lock has an arrow before its kind.
        _, kind, _, _, holder, place, *_ = line.split()
        if kind != "FLOCK":
            continue
        # Overlay file systems and Btrfs show another device than `stat` does. Of files with this number there may be one on every
        # other: it is ours if who holds it is who has written so into ours.
        if place == wanted or (place.rpartition(":")[2] == inode and holder == str(pid)):
            return True
    return False


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
