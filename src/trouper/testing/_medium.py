"""The medium under a simulated disk: files and directories whose latest changes are not safe yet.

Each inode has two faces: what a running process sees (`live`, `names`) and what the medium holds for certain, plus the list of
changes between the two. A sync settles changes; a crash draws a fate for each one that is not settled. Changes are never
merged: two writes to one file may meet different fates, in either order, which is what a drive's own cache may do to them.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from enum import Enum

import attrs


class Fate(Enum):
    """What a crash does to one change that was not synced."""

    KEPT = "kept"
    DROPPED = "dropped"
    GARBLED = "garbled"  #: Written as other bytes: all of them, a run of them, or one bit.
    TORN = "torn"  #: Written in part: a beginning, or some sectors with NUL bytes in place of the others.
    ZEROED = "zeroed"  #: The length grew and the bytes did not arrive: NUL bytes.


SECTOR = 512


@attrs.define(eq=False)
class Change:
    """One change that the running system sees and the medium may not have."""

    number: int
    #: Set by a sync that succeeded: this change survives whatever comes.
    settled: bool = False
    #: Set by a sync that failed. The kernel has then marked the pages clean, so no later sync writes them: the change stays
    #: uncertain for ever, although reads go on showing it.
    doomed: bool = False


@attrs.define(eq=False)
class Written(Change):
    offset: int = attrs.field(kw_only=True)
    data: bytes = attrs.field(kw_only=True)


@attrs.define(eq=False)
class Resized(Change):
    size: int = attrs.field(kw_only=True)


@attrs.define(eq=False)
class Named(Change):
    """Names that changed together: each `(directory, name, inode)`, an inode of None meaning that the name went away."""

    moves: list[tuple[Directory, str, Inode | None]] = attrs.field(kw_only=True)
    #: The directories that were synced since; a rename from one to another needs both.
    synced: list[Directory] = attrs.field(factory=list, kw_only=True)


@attrs.define(eq=False)
class Content:
    """A file."""

    live: bytearray = attrs.field(factory=bytearray)
    medium: bytearray = attrs.field(factory=bytearray)
    changes: list[Written | Resized] = attrs.field(factory=list)
    #: Whoever holds the lock on this inode. Not on this name: a lock file deleted and made again can be locked twice.
    holder: object | None = None
    #: Whether a copy of this file may look at the same bytes; then they are copied before they change. A test forks a disk at
    #: every step, and most files change in few of them.
    live_shared: bool = False
    medium_shared: bool = False

    def write(self, number: int, offset: int, data: bytes) -> None:
        overwrite(self._own_live(), offset, data)
        self.changes.append(Written(number, offset=offset, data=data))

    def resize(self, number: int, size: int) -> None:
        if self.live:
            resize(self._own_live(), size)
        else:
            self.live, self.live_shared = nothing(size), True
        self.changes.append(Resized(number, size=size))

    def sync(self) -> None:
        for change in self.changes:
            change.settled = change.settled or not change.doomed
        # Settled changes are applied as far as no doubtful one comes before them: order matters where they overlap.
        while self.changes and self.changes[0].settled:
            apply(self._own_medium(), self.changes.pop(0))

    def doom(self) -> None:
        for change in self.changes:
            change.doomed = change.doomed or not change.settled

    def copy(self) -> Content:
        self.live_shared = self.medium_shared = True
        return Content(
            self.live,
            self.medium,
            [attrs.evolve(change) for change in self.changes],
            live_shared=True,
            medium_shared=True,
        )

    def crash(self, fate_of: Callable[[Change], Fate], seed: int) -> None:
        """Become what a power cut leaves of it."""
        if not self.medium and len(self.changes) == 1 and isinstance(self.changes[0], Resized):
            if fate_of(self.changes[0]) is not Fate.DROPPED:
                self.medium = nothing(self.changes[0].size)
            self.changes = []
        elif self.changes:
            target = self._own_medium()
            for change in self.changes:
                damage(target, change, fate_of(change), seed)
            self.changes = []
        self.live = self.medium
        self.live_shared = self.medium_shared = True

    def _own_live(self) -> bytearray:
        if self.live_shared:
            self.live, self.live_shared = bytearray(self.live), False
        return self.live

    def _own_medium(self) -> bytearray:
        if self.medium_shared:
            self.medium, self.medium_shared = bytearray(self.medium), False
        return self.medium


@attrs.define(eq=False)
class Directory:
    """A directory. What its names were on the medium follows from `Medium.renames`."""

    names: dict[str, Inode] = attrs.field(factory=dict)
    medium: dict[str, Inode] = attrs.field(factory=dict)


Inode = Content | Directory


@functools.cache
def nothing(size: int) -> bytearray:
    """NUL bytes, shared by all: a journal's reserve is megabytes of them, and a test has thousands of disks."""
    return bytearray(size)


def overwrite(target: bytearray, offset: int, data: bytes) -> None:
    if offset > len(target):
        target.extend(bytes(offset - len(target)))  # A hole reads as NUL bytes.
    target[offset : offset + len(data)] = data


def resize(target: bytearray, size: int) -> None:
    if size < len(target):
        del target[size:]
    else:
        target.extend(bytes(size - len(target)))


def apply(target: bytearray, change: Written | Resized) -> None:
    if isinstance(change, Written):
        overwrite(target, change.offset, change.data)
    else:
        resize(target, change.size)


def damage(target: bytearray, change: Written | Resized, fate: Fate, seed: int) -> None:
    """Apply `change` as a crash left it. The details depend on the seed and this change only, so that a failure shrinks."""
    if fate is Fate.DROPPED:
        return
    if isinstance(change, Resized) or fate is Fate.KEPT:
        apply(target, change)
        return
    draw = random.Random(f"{seed}/{change.number}")
    if fate is Fate.ZEROED:
        overwrite(target, change.offset, bytes(len(change.data)))
    elif fate is Fate.GARBLED:
        overwrite(target, change.offset, garbled(change.data, draw))
    else:
        overwrite(target, change.offset, torn(change.data, draw))


def garbled(data: bytes, draw: random.Random) -> bytes:
    if not data:
        return data
    start, end = 0, len(data)
    match draw.randrange(3):
        case 0:
            pass
        case 1:
            start = draw.randrange(len(data))
            end = min(len(data), start + draw.randint(1, SECTOR))
        case _:
            at = draw.randrange(len(data))
            return data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :]
    noise = bytearray(draw.randbytes(end - start))
    if noise == data[start:end]:
        noise[0] ^= 0xFF
    return data[:start] + bytes(noise) + data[end:]


def torn(data: bytes, draw: random.Random) -> bytes:
    if draw.random() < 0.5 or len(data) <= SECTOR:
        return data[: draw.randrange(len(data))] if data else data
    sectors = [data[at : at + SECTOR] for at in range(0, len(data), SECTOR)]
    lost = draw.randrange(len(sectors))  # At least one is lost, whatever else is.
    return b"".join(
        bytes(len(sector)) if at == lost or draw.random() < 0.5 else sector for at, sector in enumerate(sectors)
    )


class Medium:
    """A file system: the root directory and the changes of names that are not settled."""

    def __init__(self) -> None:
        self.root = Directory()
        self.renames: list[Named] = []
        self.changed = 0

    def number(self) -> int:
        self.changed += 1
        return self.changed

    def move(self, *moves: tuple[Directory, str, Inode | None]) -> None:
        """Change names, all of them or (after a crash) none."""
        for directory, name, inode in moves:
            if inode is None:
                directory.names.pop(name, None)
            else:
                directory.names[name] = inode
        self.renames.append(Named(self.number(), moves=list(moves)))

    def sync_names(self, directory: Directory) -> None:
        for change in self.renames:
            if change.doomed or all(directory is not moved for moved, _, _ in change.moves):
                continue
            change.synced.append(directory)
            change.settled = all(any(moved is done for done in change.synced) for moved, _, _ in change.moves)
        while self.renames and self.renames[0].settled:
            _settle(self.renames.pop(0))

    def doom_names(self, directory: Directory) -> None:
        for change in self.renames:
            if any(directory is moved for moved, _, _ in change.moves):
                change.doomed = change.doomed or not change.settled

    def inodes(self) -> Iterator[Inode]:
        """Every inode that has a name, had one on the medium, or may have one after a crash; each once, in a fixed order."""
        seen: set[int] = set()
        queue: list[Inode] = [self.root]
        queue.extend(inode for change in self.renames for _, _, inode in change.moves if inode is not None)
        while queue:
            inode = queue.pop(0)
            if id(inode) in seen:
                continue
            seen.add(id(inode))
            yield inode
            if isinstance(inode, Directory):
                queue.extend(inode.names.values())
                queue.extend(inode.medium.values())

    def unsettled(self) -> list[Change]:
        """The changes whose fate a crash decides, oldest first."""
        found: list[Change] = [change for change in self.renames if not change.settled]
        for inode in self.inodes():
            if isinstance(inode, Content):
                found.extend(change for change in inode.changes if not change.settled)
        return sorted(found, key=lambda change: change.number)

    def copy(self) -> Medium:
        """The same file system again, without its locks: changes to one do not show in the other."""
        twin = Medium()
        twin.changed = self.changed
        twins: dict[int, Inode] = {}
        everything = list(self.inodes())
        for inode in everything:
            if isinstance(inode, Content):
                twins[id(inode)] = inode.copy()
            else:
                twins[id(inode)] = Directory()

        def directory(old: Directory) -> Directory:
            new = twins[id(old)]
            assert isinstance(new, Directory)
            return new

        for inode in everything:
            if isinstance(inode, Directory):
                new = directory(inode)
                new.names = {name: twins[id(child)] for name, child in inode.names.items()}
                new.medium = {name: twins[id(child)] for name, child in inode.medium.items()}
        twin.root = directory(self.root)
        twin.renames = [
            attrs.evolve(
                change,
                moves=[
                    (directory(where), name, None if inode is None else twins[id(inode)])
                    for where, name, inode in change.moves
                ],
                synced=[directory(done) for done in change.synced],
            )
            for change in self.renames
        ]
        return twin

    def crashed(self, fate_of: Callable[[int, Change], Fate], seed: int) -> Medium:
        """The file system as found after a power cut; `fate_of` is asked once for each unsettled change, with its place."""
        twin = self.copy()
        fates = {change.number: fate_of(place, change) for place, change in enumerate(twin.unsettled())}

        def fate(change: Change) -> Fate:
            return fates.get(change.number, Fate.KEPT)

        for inode in list(twin.inodes()):
            if isinstance(inode, Content):
                inode.crash(fate, seed)
        for rename in twin.renames:
            # File systems journal their names: one is there or it is not, so every fate but DROPPED keeps it.
            if fate(rename) is not Fate.DROPPED:
                _settle(rename)
        everything = list(twin.inodes())
        twin.renames = []
        for inode in everything:
            if isinstance(inode, Directory):
                inode.names = dict(inode.medium)
        return twin


def _settle(change: Named) -> None:
    for directory, name, inode in change.moves:
        if inode is None:
            directory.medium.pop(name, None)
        else:
            directory.medium[name] = inode
