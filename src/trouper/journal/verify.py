"""Checking every byte of a journal: each record, the chain across segments, and each blob."""

from __future__ import annotations

import os
from typing import cast

from trouper.core.values import frozen
from trouper.journal.blobs import check_blob
from trouper.journal.disk import Disk, OsDisk
from trouper.journal.format import blob_of, stream_of
from trouper.journal.reader import open_reader
from trouper.journal.salvage import Gap, Salvage, TornTail
from trouper.journal.segment import Block, Damage
from trouper.journal.snapshots import end_known, newest_snapshot
from trouper.journal.tolerant import TolerantDisk


@frozen
class Report:
    """What `verify` found. A torn tail is no damage: opening the journal for writing drops it and keeps its bytes aside."""

    records: int
    last: int
    segments: int
    bytes: int
    blobs: int
    damage: tuple[Damage, ...]
    torn: TornTail | None
    #: Snapshots, and sections of the newest one, that cannot be used; they can be built again.
    snapshots: tuple[Damage, ...]

    @property
    def ok(self) -> bool:
        return not self.damage


def verify(root: str | os.PathLike[str], *, disk: Disk | None = None) -> Report:
    """Read the whole journal and report what is wrong; changes nothing, and needs no lock."""
    disk = OsDisk() if disk is None else disk
    tolerant = TolerantDisk(disk)
    reader = open_reader(root, disk=cast(Disk, tolerant))
    # Before the records are read: a writer beside us may make another snapshot meanwhile, of records that we did not see.
    live = reader.layout().live
    known = 0
    snapshots: tuple[Damage, ...] = ()
    if live is not None:
        snapshot, snapshots = newest_snapshot(disk, reader.root, live.header.journal)
        known = end_known(snapshot, snapshots)
        if snapshot is not None:
            snapshots += snapshot.damage()
            snapshot.close()
    salvage = Salvage(reader)
    records = 0
    damage: list[Damage] = []
    torn: TornTail | None = None
    checked: set[str] = set()
    for found in salvage.walk():
        if isinstance(found, Block):
            records += len(found.payloads)
            for payload in found.payloads:
                # Few records end in a digit and a brace; those of a blob do.
                if payload[-2] <= 0x39 and (blob := blob_of(payload)) is not None and blob[0] not in checked:
                    checked.add(blob[0])
                    body = check_blob(reader.disk, reader.root, blob[0], blob[1], stream_of(payload))
                    if isinstance(body, Damage):
                        damage.append(body)
        elif isinstance(found, Gap):
            damage.append(found.damage)
        elif isinstance(found, TornTail):
            torn = found
    if live is not None and known > salvage.last:
        reason = f"the journal ends with record {salvage.last}, and a snapshot was made after {known}"
        damage.append(Damage(live.path, live.size, reason))
    return Report(
        records=records,
        last=salvage.last,
        segments=salvage.segments,
        bytes=salvage.bytes,
        blobs=len(checked),
        damage=(*tolerant.unreadable.values(), *damage),
        torn=torn,
        snapshots=snapshots,
    )
