"""What the newest snapshot says, beside what the records give: the next start begins with the one, and the other is true (I12)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress

from attrs import frozen

from trouper import codec
from trouper.core.ids import is_session
from trouper.core.memory import Memories
from trouper.core.session import State
from trouper.journal import JournalDamaged, Reader
from trouper.journal.snapshots import newest_snapshot
from trouper.replay.difference import differences
from trouper.roster import DAMAGED, decode_memories, decode_section


@frozen
class SnapshotDiffers:
    """The newest snapshot, from which the next start begins, has another state of a session than its records give (I12)."""

    file: str
    session: str
    problem: str
    #: Records were dropped on purpose (J15): of some sessions the file is all there is.
    is_needed: bool = False

    def __str__(self) -> str:
        remedy = "delete the file while nobody writes: the next start folds the records instead"
        if self.is_needed:
            remedy = (
                "keep the file, which is all there is of sessions whose records were dropped, and go on with this one from its records: "
                f"`trouper journal replay --session {self.session} --fork DIR`"
            )
        return f"the snapshot {self.file!r} is wrong about session {self.session!r}: {self.problem}; {remedy}"


class Pictured:
    """What the newest snapshot has of each session, to be compared with what its records give (I12). What is not used at a start is not looked at."""

    def __init__(self, reader: Reader) -> None:
        layout = reader.layout()
        journal = layout.live.header.journal if layout.live is not None else ""
        self._snapshot = newest_snapshot(reader.disk, reader.root, journal)[0]
        #: How many events each state has taken in that was not compared yet.
        self._events: dict[str, int] = {}
        self._wrong: list[SnapshotDiffers] = []
        #: Whether there are all records that it was made of: none was dropped since.
        self._is_whole = not any(each.archive == "" for each in layout.segments)
        for name, tag in self._snapshot.sections.items() if self._snapshot is not None else ():
            with suppress(JournalDamaged, codec.UndecodableRecord):
                if tag != DAMAGED:
                    self._events[name] = self._read(name)[1]

    def _read(self, name: str) -> tuple[State | Memories, int]:
        assert self._snapshot is not None
        payload = self._snapshot.read(name)
        return decode_section(payload) if is_session(name) else decode_memories(payload)

    def compare(self, name: str, events: int, state: State | Memories) -> None:
        """This is the state after so many events."""
        if self._events.get(name) != events:
            return
        del self._events[name]
        pictured, _ = self._read(name)
        if pictured != state:
            found = next(iter(differences(pictured, state)), "it differs in what is not written")
            self._tell(name, f"{found} by its records")

    def wrong(self, reached: Mapping[str, int], unknown: Collection[str]) -> tuple[SnapshotDiffers, ...]:
        """All that is; `reached`: how many events each session has, `unknown`: of which sessions nobody can say."""
        if self._is_whole:
            for name in [name for name in self._events if name not in unknown]:
                self._tell(name, f"it has {self._events[name]} events of it, and the journal {reached.get(name, 0)}")
        return tuple(self._wrong)

    def _tell(self, name: str, problem: str) -> None:
        assert self._snapshot is not None
        self._wrong.append(SnapshotDiffers(self._snapshot.path, name, problem, is_needed=not self._is_whole))

    def close(self) -> None:
        if self._snapshot is not None:
            self._snapshot.close()
