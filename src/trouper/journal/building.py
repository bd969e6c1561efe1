"""A new journal beside its place: it gets its name when it is complete, so that a part of one never passes for the whole.

It is made in a directory of its own, the name with `.tmp` behind it, together with a marker that is locked for as long. A process that was killed leaves both: the marker
tells the next one that all this is of our making, and the lock that nobody is at it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

from trouper.journal._errors import JournalExists, JournalLocked
from trouper.journal.disk import Disk
from trouper.journal.files import remove_tree
from trouper.journal.format import TEMPORARY_SUFFIX

MARKER_NAME = "unfinished"
_JOURNAL_NAME = "journal"


@contextmanager
def building(disk: Disk, place: str) -> Iterator[str]:
    """Where to write the journal that is to be at `place`; when the block ends it is there, and if the block fails, nothing is. Errors of the disk are plain `OSError`s.

    What a killed process has left of an earlier try is taken away. What may be somebody else's is named, and stays.
    """
    site = place + TEMPORARY_SUFFIX
    marker, unfinished = os.path.join(site, MARKER_NAME), os.path.join(site, _JOURNAL_NAME)
    _check_free(disk, place)
    left_behind = disk.exists(marker)
    if not left_behind:
        _check_free(disk, site)
    disk.make_dirs(site)
    try:
        lock = disk.lock(marker, json.dumps({"pid": os.getpid()}))
    except BlockingIOError:
        raise JournalLocked(
            f"another process is writing to {site!r}; wait for it, or give another target", root=site
        ) from None
    except BaseException:
        if not left_behind:
            _remove_site(disk, site, marker)
        raise
    try:
        _check_free(disk, place)  # Whoever had the lock may have been done just now.
        remove_tree(disk, unfinished)
        # Before anything else is there: a power cut must not leave it without its marker.
        disk.sync_dir(site)
        yield unfinished
        disk.rename(unfinished, place)
        # A move lasts when both directories do.
        disk.sync_dir(os.path.dirname(place))
        disk.sync_dir(site)
    finally:
        # Half a journal is of no use to anybody, and may be what fills the disk.
        remove_tree(disk, unfinished)
        _remove_site(disk, site, marker)
        lock.close()


def _remove_site(disk: Disk, site: str, marker: str) -> None:
    """Nothing but what we have made: what somebody has put beside it stays."""
    with contextlib.suppress(OSError):
        disk.unlink(marker)
    with contextlib.suppress(OSError):
        if not disk.list_dir(site):
            remove_tree(disk, site)


def _check_free(disk: Disk, place: str) -> None:
    if disk.exists(place):
        raise JournalExists(f"the target {place!r} exists already; give another, or remove it first", root=place)
