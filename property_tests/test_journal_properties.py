"""I12, I14 and I17 at the level of bytes: drawn workloads, batches, schedules, crash points and fates."""

from __future__ import annotations

from typing import Any

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from trouper.actors.journal import Inline, JournalWriter
from trouper.journal import Entry, JournalDamaged, JournalError, Log, open_log, verify
from trouper.journal.format import id_of
from trouper.testing import CrashDisk, Fate, PowerCut, run_simulated

ROOT = "/journal"
SEGMENT_BYTES = 1500


def entry(name: str, *, durable: bool = True, pad: int = 0) -> Entry:
    head = b'{"v":1,"type":"noted","id":"%b","session":"s"' % name.encode()
    return Entry("s", name, head, b'"%b"' % (b"p" * pad), durable=durable)


def open_journal(disk: CrashDisk) -> Log:
    log = open_log(ROOT, disk=disk, segment_bytes=SEGMENT_BYTES)
    assert log.refusal is None, log.refusal
    return log


def read(log: Log, after: int = 0) -> list[str]:
    found = []
    for place, record in enumerate(log.records(after=after), start=after + 1):
        assert record.seq == place
        found.append(id_of(record.payload))
    return found


FATES = st.lists(st.sampled_from(list(Fate)), max_size=8)
NAMES = st.integers(0, 25).map(lambda number: f"id{number}")
APPEND = st.tuples(st.just("append"), NAMES, st.booleans(), st.sampled_from([0, 0, 40, 500]))
COMMANDS = st.one_of(
    APPEND,
    APPEND,
    APPEND,
    st.tuples(st.sampled_from(["sync", "flush", "snapshot", "close", "kill"])),
    st.tuples(st.just("crash"), FATES, st.integers(0, 3)),
    # The power goes in the middle of a command, not only between two.
    st.tuples(st.just("crash in"), st.integers(1, 6), FATES, st.integers(0, 3)),
)


@attrs.define
class Journal:
    """A journal and what it owes us."""

    disk: CrashDisk = attrs.field(factory=CrashDisk)
    log: Log = attrs.field(init=False)
    #: Ids in the order of their records.
    submitted: list[str] = attrs.field(factory=list)
    #: How many of them the journal has promised to keep.
    acked: int = 0
    written: int = 0

    def __attrs_post_init__(self) -> None:
        self.log = open_journal(self.disk)

    def do(self, command: tuple[Any, ...]) -> None:
        match command:
            case ("append", name, durable, pad):
                seq = self.log.append(entry(name, durable=durable, pad=pad))
                if name in self.submitted:
                    assert seq == self.submitted.index(name) + 1, "I14: an id that is there keeps its record"
                else:
                    self.submitted.append(name)
                    assert seq == len(self.submitted)
            case ("sync",):
                self.log.sync()
                self.acked = self.written = len(self.submitted)
            case ("flush",):
                self.log.flush()
                self.written = len(self.submitted)
            case ("snapshot",):
                self.log.flush()
                self.written = len(self.submitted)
                self.log.write_snapshot(self.log.last, [("ids", "", " ".join(self.submitted).encode())])
                self.acked = len(self.submitted)
            case ("close",):
                self.log.close()
                self.acked = self.written = len(self.submitted)
                self.reopen(self.disk)
            case ("kill",):
                self.acked = max(self.acked, self.written)  # The page cache outlives the process.
                self.reopen(self.disk.kill())
            case ("crash", fates, seed):
                self.reopen(self.disk.crash(fates, seed=seed))
            case _:
                raise AssertionError(command)

    def reopen(self, disk: CrashDisk) -> None:
        """I17: acked is a subset of recovered, recovered a prefix of submitted."""
        self.disk = disk
        self.log = open_journal(disk)
        found = read(self.log)
        assert found == self.submitted[: len(found)]
        assert len(found) >= self.acked
        self.submitted = found
        # What recovery showed is as good as acknowledged: it was copied and synced before anyone saw it (J10).
        self.acked = self.written = len(found)


@settings(max_examples=150, deadline=None)
@given(commands=st.lists(COMMANDS, max_size=30), fates=FATES, seed=st.integers(0, 3))
def test_a_journal_keeps_what_it_promised_whatever_happens(
    commands: list[tuple[Any, ...]], fates: list[Fate], seed: int
) -> None:
    journal = Journal()
    for index, command in enumerate(commands):
        if command[0] != "crash in":
            journal.do(command)
            continue
        _, steps, crash_fates, crash_seed = command
        journal.disk.cut_power_before(journal.disk.steps + steps)
        try:
            following = next(
                (later for later in commands[index + 1 :] if later[0] in ("sync", "close", "snapshot")), ("sync",)
            )
            journal.do(following)
        except PowerCut:
            pass
        journal.reopen(journal.disk.crash(crash_fates, seed=crash_seed))
    journal.do(("crash", fates, seed))
    once = journal.submitted
    journal.log.abandon()
    journal.reopen(journal.disk)
    assert journal.submitted == once, "I17: recovery twice equals once"
    assert len(set(once)) == len(once), "I14: one record for each id"
    assert not verify(ROOT, disk=journal.disk).damage
    check_snapshot(journal)


def check_snapshot(journal: Journal) -> None:
    """I12: a snapshot and the records behind it give what all the records give."""
    snapshot = journal.log.snapshot()
    if snapshot is not None:
        state = snapshot.read("ids").decode().split()
        assert state + read(journal.log, after=snapshot.seq) == journal.submitted


@settings(max_examples=100, deadline=None)
@given(
    plan=st.lists(st.lists(st.tuples(st.booleans(), st.integers(0, 2)), max_size=5), min_size=1, max_size=4),
    choices=st.lists(st.integers(0, 5), max_size=60),
    latency=st.sampled_from([None, 0.0, 0.01]),
    step=st.integers(1, 60),
    fates=FATES,
)
def test_a_task_that_was_told_is_never_disappointed(
    plan: list[list[tuple[bool, int]]], choices: list[int], latency: float | None, step: int, fates: list[Fate]
) -> None:
    """I17 through the writer, for a drawn schedule of tasks and a power cut before a drawn step."""
    disk = CrashDisk()
    submitted: list[str] = []
    told = 0
    kept: list[tuple[CrashDisk, int]] = []
    disk.watch(lambda made: kept.append((disk.fork(), told)) if made.number == step else None)

    async def main() -> None:
        nonlocal told
        log = open_log(ROOT, disk=disk, segment_bytes=SEGMENT_BYTES)
        writer = JournalWriter(log, sync=Inline(None if latency is None else lambda: latency))

        async def chatter(part: list[tuple[bool, int]]) -> None:
            nonlocal told
            with writer.open_sender() as sender:
                for durable, pause in part:
                    for _ in range(pause):
                        await trio.lowlevel.checkpoint()
                    name = f"id{len(submitted)}"
                    submitted.append(name)
                    seq = sender.append(entry(name, durable=durable, pad=100))
                    if durable:
                        await sender.wait_durable(seq)
                        told = max(told, seq)

        async with trio.open_nursery() as nursery:
            await nursery.start(writer.run)
            with writer.open_sender():
                async with trio.open_nursery() as inner:
                    for part in plan:
                        inner.start_soon(chatter, part)
        log.close()
        told = len(submitted)

    run_simulated(main, choices=choices)
    for before, promised in [*kept, (disk.fork(), len(submitted))]:
        found = read(open_journal(before.crash(fates)))
        assert found == submitted[: len(found)]
        assert len(found) >= promised


@settings(max_examples=150, deadline=None)
@given(
    at=st.floats(0, 1),
    cut=st.integers(0, 60),
    put=st.one_of(st.binary(max_size=60), st.integers(0, 600).map(bytes), st.just(b"\n")),
    which=st.integers(0, 2),
)
def test_no_edit_of_a_segment_is_believed(at: float, cut: int, put: bytes, which: int) -> None:
    """J10: whatever bytes are taken out or put in, each record that is read is one that was written, in its place."""
    disk = CrashDisk()
    log = open_journal(disk)
    for number in range(24):
        log.append(entry(f"id{number}", pad=60))
        log.sync()
    log.abandon()
    payloads = [record.payload for record in open_log(ROOT, disk=disk.fork(), read_only=True).records()]
    segments = [name for name in disk.list_dir(ROOT) if name.startswith("segment")]
    path = f"{ROOT}/{segments[which % len(segments)]}"
    data = disk.read_bytes(path)
    start = round(at * len(data))
    disk.write_bytes(path, data[:start] + put + data[start + cut :])
    found: list[bytes] = []
    try:
        again = open_log(ROOT, disk=disk, segment_bytes=SEGMENT_BYTES)
        for record in again.records():
            found.append(record.payload)
    except JournalDamaged:
        pass
    except JournalError as error:
        raise AssertionError(f"an edit is damage and nothing else: {error!r}") from error
    assert found == payloads[: len(found)]
