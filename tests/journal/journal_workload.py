"""What the crash tests have in common: entries that can be told apart, a workload that knows what was acknowledged, and what must hold after."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import product

import attrs

from trouper.journal.format import id_of
from trouper.journal.log import Entry, Log
from trouper.journal.opening import open_log
from trouper.testing import CrashDisk, Fate

ROOT = "/state/journal"
#: Small, so that a workload of 200 events cuts several segments.
SEGMENT_BYTES = 4096


def entry(number: int, *, stream: str = "s", durable: bool = True, body: bytes = b"", id: str = "") -> Entry:
    head = {"v": 1, "type": "noted", "id": id or f"e{number}", "session": stream, "at": 1_767_225_600_000 + number}
    return Entry(
        stream=stream,
        id=head["id"],
        head=json.dumps(head, separators=(",", ":")).encode()[:-1],
        body=body or b'{"n":%d}' % number,
        durable=durable,
    )


def open_small(disk: CrashDisk, root: str = ROOT) -> Log:
    return open_log(root, disk=disk, segment_bytes=SEGMENT_BYTES)


def ids_of(log: Log) -> list[str]:
    found = []
    for place, record in enumerate(log.records(), start=1):
        assert record.seq == place
        found.append(id_of(record.payload))
    return found


def temporaries(disk: CrashDisk, folder: str = ROOT) -> list[str]:
    """Files below it that were never put in place."""
    found = []
    for name in disk.list_dir(folder):
        path = f"{folder}/{name}"
        found += temporaries(disk, path) if disk.is_dir(path) else [path] if name.endswith(".tmp") else []
    return found


@attrs.define
class Workload:
    """Appends in batches of drawn sizes, durable and buffered, and keeps count of what it was promised."""

    seed: int = 0
    #: Ids in the order in which the log took them.
    submitted: list[str] = attrs.field(factory=list)
    #: How many of them have been acknowledged.
    acked: int = 0

    def run(self, log: Log, events: int = 200) -> None:
        draw = random.Random(self.seed)
        done = 0
        while done < events:
            durable = draw.random() < 0.7
            for _ in range(min(draw.choice((1, 1, 1, 2, 5)), events - done)):
                number = len(self.submitted)
                text = json.dumps({"n": number, "pad": "x" * draw.choice((0, 30, 700))}).encode()
                log.append(entry(number, stream=f"s{number % 3}", durable=durable, body=text))
                self.submitted.append(f"e{number}")
                done += 1
            if durable:
                log.sync()
                self.acked = log.durable
            else:
                log.flush()


@attrs.frozen
class Boundary:
    """The disk as it was before one step, and what had been promised by then."""

    step: str
    disk: CrashDisk
    submitted: int
    acked: int


def boundaries(workload: Workload, disk: CrashDisk, events: int = 200) -> tuple[list[Boundary], list[str]]:
    """Run a workload, from opening to closing, and keep the disk before each of its steps and after the last."""
    found: list[Boundary] = []
    taken = list(workload.submitted)

    def keep(step: object) -> None:
        found.append(Boundary(str(step), disk.fork(), len(workload.submitted), workload.acked))

    disk.watch(keep)
    log = open_small(disk)
    taken = ids_of(log)
    workload.submitted[:] = taken
    workload.acked = len(taken)
    workload.run(log, events)
    log.close()
    workload.acked = len(workload.submitted)
    keep("the end")
    disk.watch(None)
    return found, workload.submitted


def ways_to_crash(disk: CrashDisk, seed: int, *, most: int = 9) -> Iterator[CrashDisk]:
    """The disk after a power cut, in every combination of kept, dropped and garbled if there are few; else the extremes and mixtures.

    What is written in the lock and the reserve means nothing, so the combinations leave them alone; the mixtures do not.
    """
    fates = [Fate.KEPT] * len(disk.pending())
    places = [place for place, change in enumerate(disk.pending()) if not change.path.endswith(("/lock", "/reserve"))]
    if 3 ** len(places) <= most:
        for combination in product((Fate.KEPT, Fate.DROPPED, Fate.GARBLED), repeat=len(places)):
            for place, fate in zip(places, combination, strict=True):
                fates[place] = fate
            yield disk.crash(fates, seed=seed)
        mixtures = 1
    else:
        for fate in (Fate.KEPT, Fate.DROPPED, Fate.GARBLED):
            yield disk.crash(fate, seed=seed)
        mixtures = 5
    for mixture in range(mixtures):
        yield disk.crash(seed=seed * 10 + mixture)
    if places:
        yield disk.crash(Fate.TORN, seed=seed)
        yield disk.crash(Fate.ZEROED, seed=seed)


def check_recovered(disk: CrashDisk, submitted: list[str], acked: int, *, note: str = "") -> list[str]:
    """I17: acked is a subset of recovered, recovered a prefix of submitted; then the log takes more."""
    log = open_small(disk)
    assert log.refusal is None, f"{note}: {log.refusal}"
    found = ids_of(log)
    assert found == submitted[: len(found)], note
    assert len(found) >= acked, f"{note}: {acked} were acknowledged, {len(found)} are there"
    log.abandon()
    return found
