"""What can go wrong with a journal. All are the world's fault; each message names the journal and ends in the remedy."""

from __future__ import annotations

from trouper._errors import WorldError


class JournalError(WorldError):
    """The journal cannot be opened, read or written."""


class JournalNotFound(JournalError):
    """There is no journal at this place."""

    exit_code = 66


class JournalExists(JournalError):
    """Something is where a new journal is to be written."""

    exit_code = 73


class JournalNotADirectory(JournalError):
    """The path of the journal, or a part of it, is a file."""

    exit_code = 66


class JournalUnreadable(JournalError):
    """The journal is there, but this user may not read or write it."""

    exit_code = 77


class JournalTooNew(JournalError):
    """A newer Trouper wrote this journal; this one may read it, and will not write to it."""


class JournalLocked(JournalError):
    """Another process writes to this journal; `pid` is its process id where known."""

    exit_code = 75


class JournalDamaged(JournalError):
    """Bytes that were once on the medium are wrong or gone; carries `file`, `offset`, `reason` and `sessions`."""

    exit_code = 65


class JournalFull(JournalError):
    """The disk is full: running work may end, new work is refused until there is space."""


class BlobRefused(JournalFull):
    """There is no place now for a payload that is too large for a line: no space for it, no free descriptor, no permission. It alone is refused."""


class BlobUnplaced(JournalError):
    """The same of a payload of work that runs, which cannot be put off: whoever brings it has to do with less."""


class JournalBehind(JournalError):
    """More waits to be written than the journal will hold in memory: the disk is slower than the work."""


class JournalReadOnly(JournalError):
    """The journal was opened for reading, or lies on a read-only file system."""


class JournalFailed(JournalError):
    """A write or sync failed. What was not yet acknowledged may be lost; nothing is tried again on this open journal."""


class JournalClosed(JournalError):
    """The journal was used after it was closed."""
