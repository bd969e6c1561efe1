"""What a root holds, straight from its journal: works without a lock, also while another process writes (J9)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from attrs import frozen

from trouper._errors import UsageError
from trouper.cli.arguments import to_type
from trouper.cli.endings import say
from trouper.core.session import State
from trouper.journal import Disk, JournalTooNew, Log, OsDisk, open_log, open_reader
from trouper.journal.format import VERSION
from trouper.journal.layout import Layout
from trouper.journal.reader import damaged
from trouper.journal.tolerant import TolerantDisk
from trouper.roster import Roster, SessionDamaged


@frozen
class View:
    """The sessions of a root as of now, each folded when asked for."""

    root: Path
    log: Log
    roster: Roster

    def names(self) -> list[str]:
        return sorted(self.roster.names())

    def state(self, session: str) -> State:
        if session not in self.roster:
            raise UsageError(
                f"there is no session {session!r} in {str(self.root)!r}; {to_type('sessions')} lists them",
                session=session,
            )
        return self.roster.load(session)[0]

    def states(self, session: str | None = None) -> Iterator[tuple[str, State]]:
        """Of one session or of all. A damaged one among all of them is named on stderr, and keeps nobody from seeing the others (I23)."""
        if session is not None:
            yield session, self.state(session)
            return
        for name, state, _ in self.each():
            if isinstance(state, SessionDamaged):
                say(state.message)
            else:
                yield name, state

    def each(self) -> Iterator[tuple[str, State | SessionDamaged, int]]:
        """All sessions, each with the number of its events; of one that has lost some of them, what is wrong with it."""
        for name in self.names():
            try:
                state, events = self.roster.load(name)
            except SessionDamaged as damage:
                yield name, damage, 0
            else:
                yield name, state, events


@contextmanager
def open_view(root: Path) -> Iterator[View]:
    check_readable(root)
    log = open_log(root, read_only=True)
    try:
        if log.recovery.damage:
            # Reading names the damage, with the remedy; sessions behind it cannot be told.
            for _ in log.records():
                pass
            # Unless there is nothing to read: records that only a snapshot remembers.
            raise damaged(log.root, log.recovery.damage[0])
        yield View(root, log, Roster(log))
    finally:
        log.close()


def check_readable(root: Path) -> Layout:
    """The layout of a journal that this Trouper can read; a named error for everything else."""
    # What the disk cannot read is for the command to find, which may be the one that repairs it.
    layout = open_reader(root, disk=cast(Disk, TolerantDisk(OsDisk()))).layout()
    if layout.too_new is not None:
        path = os.path.abspath(root)
        raise JournalTooNew(
            f"the journal {path!r} has format {layout.too_new}, and this Trouper knows {VERSION}; upgrade Trouper to read it "
            f"({to_type('journal show --json')} prints its lines as they are)",
            root=path,
            version=layout.too_new,
        )
    return layout
