"""What the journal costs, beside the disk itself and SQLite (WAL, synchronous=FULL) on the same disk, in one run.

    python bench/journal.py [--quick] [--json]

The files go to /var/tmp, or to the directory that TROUPER_BENCH_DIR names: it must lie on a real disk. SQLite is driven by the same writer, with
the same group commit, the same thread and the same waiting tasks, and puts each batch into one transaction.
"""

from __future__ import annotations

import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import trio

from _report import Row, parse_arguments, print_rows
from trouper import codec
from trouper.actors.journal import JournalWriter, Threaded
from trouper.core.calls import Preparation
from trouper.core.commands import Command, DeliverReply, DeliverResult, OpenSession, Submit
from trouper.core.decisions import step
from trouper.core.ids import call_id
from trouper.core.messages import Message, Outcome, Text, ToolCall, Usage
from trouper.core.session import State
from trouper.core.settings import TurnOptions
from trouper.journal import Entry, JournalBehind, Level, Log, OsDisk, open_log, open_reader, verify
from trouper.journal.format import stream_of
from trouper.roster import fold

BODY = b'{"cause":{"type":"Say","text":"%b"},"events":[{"type":"TurnStarted","turn":3}]}' % (b"x" * 120)


def entries(count: int, *, durable: bool = True) -> Iterator[Entry]:
    """Events of about 300 bytes, as the codec makes them."""
    for number in range(count):
        name = f"session-{number % 200}:{number}:2"
        head = (
            f'{{"v":1,"type":"Say","id":"{name}","session":"session-{number % 200}","n":{number},"epoch":2,'
            f'"at":1763265600.25'
        )
        yield Entry(f"session-{number % 200}", name, head.encode(), BODY, durable)


class SqliteLog:
    """As much of a log as the writer needs, in SQLite."""

    level: Level = "fsync"
    degraded = False
    refusal = None

    def __init__(self, root: str, *, unique: bool = True) -> None:
        self.root = root
        self.disk = OsDisk()
        self._connection = sqlite3.connect(f"{root}.db", isolation_level=None, check_same_thread=False)
        self._connection.execute("pragma journal_mode=wal")
        self._connection.execute("pragma synchronous=full")
        # Unique, as in the journal: an event id that is appended twice leaves one record.
        column = "id text unique" if unique else "id text"
        self._connection.execute(f"create table event (seq integer primary key, session text, {column}, payload blob)")
        self._pending: list[tuple[int, str, str, bytes]] = []
        self.last = 0
        self.durable = 0
        #: Nothing is ever written ahead of its sync.
        self.is_ahead = False
        self.pending_bytes = 0

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    pending_durable = pending_count

    def append(self, entry: Entry) -> int:
        self.last += 1
        self._pending.append((self.last, entry.stream, entry.id, b'%b,"body":%b}' % (entry.head, entry.body)))
        self.pending_bytes += len(entry.head) + len(entry.body) + 48
        return self.last

    def take(self) -> Any:
        if not self._pending:
            return None
        rows, self._pending, self.pending_bytes = self._pending, [], 0
        return SqliteBatch(rows)

    def commit(self, batch: SqliteBatch, *, sync: bool = True) -> None:
        self._connection.execute("begin immediate")
        self._connection.executemany("insert or ignore into event values (?, ?, ?, ?)", batch.rows)
        self._connection.execute("commit")
        self.durable = batch.last

    def try_resume(self) -> bool:
        return True

    def close(self) -> None:
        self._connection.close()


class SqliteBatch:
    def __init__(self, rows: list[tuple[int, str, str, bytes]]) -> None:
        self.rows = rows
        self.last = rows[-1][0]
        self.count = len(rows)


def with_writer(log: Log | SqliteLog, work: Callable[[JournalWriter], Any]) -> Any:
    """Run `work` with a writer of this log, and close the log."""

    async def main() -> Any:
        writer = JournalWriter(cast(Log, log), sync=Threaded())
        async with trio.open_nursery() as nursery:
            await nursery.start(writer.run)
            with writer.open_sender():
                return await work(writer)

    try:
        return trio.run(main)
    finally:
        log.close()


def alone(root: Path, repeats: int) -> list[Row]:
    """One durable append after another, each beside a plain write and fdatasync in the same breath."""
    plain = os.open(root / "plain", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    line = b"x" * 330 + b"\n"

    async def work(writer: JournalWriter) -> tuple[list[float], list[float]]:
        ours, bare = [], []
        for entry in entries(repeats):
            start = time.perf_counter()
            os.write(plain, line)
            os.fdatasync(plain)
            bare.append(time.perf_counter() - start)
            start = time.perf_counter()
            await writer.wait_durable(writer.append(entry))
            ours.append(time.perf_counter() - start)
        return ours, bare

    ours, bare = with_writer(open_log(root / "alone"), work)
    os.close(plain)
    return [
        Row(
            "one durable append, alone (goal: at most 1.5)",
            statistics.median(ours) * 1e3,
            "ms",
            "write + fdatasync",
            statistics.median(bare) * 1e3,
        )
    ]


def crowd(root: Path, tasks: int, each: int, rounds: int) -> list[Row]:
    """Many tasks, each waiting for its ack before its next append; the journal and SQLite take turns."""

    async def work(writer: JournalWriter) -> float:
        ready = [list(entries(each)) for _ in range(tasks)]
        for task, mine in enumerate(ready):
            ready[task] = [Entry(one.stream, f"{task}:{one.id}", one.head, one.body) for one in mine]

        async def appender(mine: list[Entry]) -> None:
            for entry in mine:
                await writer.wait_durable(writer.append(entry))

        start = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for mine in ready:
                nursery.start_soon(appender, mine)
        return tasks * each / (time.perf_counter() - start)

    ours, rival, plain = [], [], []
    for number in range(rounds):
        ours.append(with_writer(open_log(root / f"crowd-{number}"), work))
        rival.append(with_writer(SqliteLog(str(root / f"crowd-{number}")), work))
        plain.append(with_writer(SqliteLog(str(root / f"plain-{number}"), unique=False), work))
    name, value = f"{tasks} tasks, each waits for its ack", statistics.median(ours)
    return [
        Row(f"{name} (goal: at least 1.2)", value, "events/s", "SQLite, unique ids", statistics.median(rival)),
        Row(f"{name} (goal: at least 1.2)", value, "events/s", "SQLite, ids not checked", statistics.median(plain)),
    ]


def stream(root: Path, count: int, rounds: int) -> list[Row]:
    """Appenders that do not wait for each ack: the last one is waited for; and the disk, where it falls too far behind (I25)."""

    async def work(writer: JournalWriter) -> float:
        ready = list(entries(count))
        start = time.perf_counter()
        seq = 0
        for number, entry in enumerate(ready):
            try:
                seq = writer.append(entry)
            except JournalBehind:
                await writer.wait_durable(seq)
                seq = writer.append(entry)
            if number % 500 == 499:
                await trio.lowlevel.checkpoint()
        await writer.wait_durable(seq)
        return count / (time.perf_counter() - start)

    ours, rival = [], []
    for number in range(rounds):
        ours.append(with_writer(open_log(root / f"stream-{number}"), work))
        rival.append(with_writer(SqliteLog(str(root / f"stream-{number}")), work))
    value = statistics.median(ours)
    return [
        Row("appends that do not wait", value, "events/s", "goal", 150_000),
        Row("appends that do not wait", value, "events/s", "SQLite, same group commit", statistics.median(rival)),
    ]


def history(root: Path, count: int) -> list[Row]:
    """A long journal: write it, open it with a snapshot after a close and after a kill, verify and read it."""
    place = root / "history"
    log = open_log(place, level="write")
    for number, entry in enumerate(entries(count, durable=False)):
        log.append(entry)
        if number % 2000 == 1999:
            log.flush()
    log.flush()
    log.write_snapshot(count - 1000, ((f"session-{n}", str(n), b"x" * 2000) for n in range(1000)))
    log.close()

    def opened(*, clean: bool) -> float:
        start = time.perf_counter()
        log = open_log(place)
        snapshot = log.snapshot()
        assert snapshot is not None
        assert sum(1 for _ in log.records(snapshot.seq)) >= 1000
        took = time.perf_counter() - start
        for entry in entries(1000):
            log.append(Entry(entry.stream, f"{clean}:{log.epoch}:{entry.id}", entry.head, entry.body))
        log.sync()
        if clean:
            log.close()
        else:
            log.abandon()
        return took

    after_close = statistics.median(opened(clean=True) for _ in range(3))
    opened(clean=False)
    after_kill = statistics.median(opened(clean=False) for _ in range(3))
    start = time.perf_counter()
    report = verify(place)
    assert report.ok
    verified = report.records / (time.perf_counter() - start)
    start = time.perf_counter()
    read = sum(1 for _ in open_reader(place).records()) / (time.perf_counter() - start)
    return [
        Row(f"open {count:,} events with a snapshot", after_close, "s", "goal", 1.0),
        Row(f"open {count:,} events after a kill", after_kill, "s", "goal", 1.0),
        Row("verify", verified, "events/s", "goal", 300_000),
        Row("read all", read, "events/s", "verify", verified),
    ]


def rebuild(root: Path, sessions: int) -> list[Row]:
    """Real sessions of twenty tool turns each: read, decode to typed events, fold to the state."""
    place = root / "rebuild"
    log = open_log(place, level="write")
    events = 0
    for number in range(sessions):
        state, seq = State(), 0
        for command in talk(f"s{number}"):
            decided, state = step(state, command)
            record = codec.Record(f"s{number}", seq, log.epoch, 1.5, command, decided)
            seq += len(decided)
            head, body = codec.encode(record)
            log.append(Entry(record.session, record.id, head, body, durable=False))
        events += seq
    log.close()
    start = time.perf_counter()
    by_session: dict[str, list[bytes]] = {}
    records = 0
    for raw in open_reader(place).records():
        by_session.setdefault(stream_of(raw.payload), []).append(raw.payload)
        records += 1
    folded = [fold(payloads) for payloads in by_session.values()]
    took = time.perf_counter() - start
    assert len(folded) == sessions and all(state.turns == TURNS for state, _ in folded)
    return [
        Row("rebuild: typed and folded", events / took, "events/s", "goal", 60_000),
        Row("rebuild: typed and folded", records / took, "records/s", "goal", 60_000),
    ]


TURNS = 20


def talk(session: str) -> Iterator[Command]:
    """What a session is told in the course of `TURNS` turns with one tool call each."""
    yield OpenSession(session, 1.5)
    for turn in range(1, TURNS + 1):
        yield Submit("Where is order 17?", 1.5, TurnOptions())
        name = call_id(turn, 1, 0)
        asked = Message("assistant", (Text("Let me look."), ToolCall(name, "order_status", {"order_id": "17"})))
        yield DeliverReply(turn, 1, asked, "tool_use", 1.5, Usage(1200, 30), preparations=(Preparation(),), cuts=(12,))
        yield DeliverResult(name, Outcome.OK, 1.5, content={"order": "17", "status": "shipped"}, latency_ms=3.5)
        said = Message("assistant", (Text("It was shipped this morning and should arrive tomorrow."),))
        yield DeliverReply(turn, 2, said, "end_turn", 1.5, Usage(1300, 20), cuts=(20, 20, 15))


def main() -> None:
    arguments = parse_arguments(__doc__)
    quick = arguments.quick
    with tempfile.TemporaryDirectory(
        prefix="trouper-bench-", dir=os.environ.get("TROUPER_BENCH_DIR", "/var/tmp")
    ) as name:
        root = Path(name)
        rows = [
            *alone(root, 500 if quick else 2000),
            *crowd(root, 200, 100, 3 if quick else 5),
            *stream(root, 50_000 if quick else 200_000, 3),
            *history(root, 300_000 if quick else 1_000_000),
            *rebuild(root, 100 if quick else 500),
        ]
    print_rows(rows, as_json=arguments.json)


if __name__ == "__main__":
    main()
