"""Who has a root open for writing. Looking must not disturb: a lock that is taken for a look could turn a runtime away that starts just then."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

from trouper.journal.disk import OWNER_BYTES_MAX
from trouper.journal.format import LOCK_NAME

#: Where an owner listens that takes commands.
NAME = "control.sock"
_LOCKS = Path("/proc/locks")


def owner_of(root: Path) -> int | None:
    """The process that owns the root; None if nobody is seen to. 0: somebody does, and nobody knows who."""
    path = root / LOCK_NAME
    pid = _pid_in(path)
    # What a process in another container holds is on no list here; but if it takes commands, it can be reached.
    if _is_held(path, pid) or is_served(root):
        return 0 if pid is None else pid
    # Somebody may have deleted the file of a process that goes on: it has locked the directory too (J9).
    return 0 if _is_held(root, None) else None


def is_served(root: Path) -> bool:
    """Whether somebody listens; who only changes something does not."""
    if not os.path.exists(root / NAME):
        return False
    import socket  # Here: mostly nobody listens.

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as plain:
        plain.setblocking(False)
        try:
            with address(root) as place:
                plain.connect(f"{place}/{NAME}")
        except BlockingIOError:  # More wait to be heard than fit.
            return True
        except OSError:
            return False
    return True


@contextlib.contextmanager
def address(root: Path) -> Iterator[str]:
    """An address of the root that is short whatever its path: Unix sockets have room for about 100 bytes."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}" if os.path.isdir("/proc/self/fd") else str(root)
    finally:
        os.close(descriptor)


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
