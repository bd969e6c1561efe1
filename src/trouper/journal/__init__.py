"""The journal: an append-only log of checked lines, in segments, that survives whatever happens to the process.

It sees bytes only: what a record means is the codec's business. `open_log` gives the one writer, `open_reader` any number of readers.
"""

from trouper.journal._errors import (
    BlobRefused,
    BlobUnplaced,
    JournalBehind,
    JournalClosed,
    JournalDamaged,
    JournalError,
    JournalExists,
    JournalFailed,
    JournalFull,
    JournalLocked,
    JournalNotADirectory,
    JournalNotFound,
    JournalReadOnly,
    JournalTooNew,
    JournalUnreadable,
)
from trouper.journal.disk import Disk, File, Lock, OsDisk
from trouper.journal.log import Batch, Entry, Level, Log, Recovery, Torn
from trouper.journal.memory_disk import MemoryDisk
from trouper.journal.opening import open_log
from trouper.journal.reader import Reader, open_reader
from trouper.journal.repair import Repaired, repair
from trouper.journal.retention import Retired, retire
from trouper.journal.segment import Damage, RawRecord
from trouper.journal.snapshots import Snapshot
from trouper.journal.verify import Report, verify

__all__ = [
    "Batch",
    "BlobRefused",
    "BlobUnplaced",
    "Damage",
    "Disk",
    "Entry",
    "File",
    "JournalBehind",
    "JournalClosed",
    "JournalDamaged",
    "JournalError",
    "JournalExists",
    "JournalFailed",
    "JournalFull",
    "JournalLocked",
    "JournalNotADirectory",
    "JournalNotFound",
    "JournalReadOnly",
    "JournalTooNew",
    "JournalUnreadable",
    "Level",
    "Lock",
    "Log",
    "MemoryDisk",
    "OsDisk",
    "RawRecord",
    "Reader",
    "Recovery",
    "Repaired",
    "Report",
    "Retired",
    "Snapshot",
    "Torn",
    "open_log",
    "open_reader",
    "repair",
    "retire",
    "verify",
]
