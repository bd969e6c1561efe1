"""`trouper.replay`: states, steps, differences, verdicts and forks of a journal that is only read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from trouper import Scripted, UsageError, codec, open_runtime, tool
from trouper.codec import Record
from trouper.core.commands import Command
from trouper.core.events import TurnEnded, TurnStarted
from trouper.core.ids import TaskId
from trouper.core.session import Event, Phase, State
from trouper.core.task_events import TaskBeat
from trouper.core.values import changed
from trouper.journal import (
    Entry,
    JournalDamaged,
    JournalExists,
    JournalNotFound,
    OsDisk,
    RawRecord,
    Reader,
    open_log,
    open_reader,
    repair,
    retire,
)
from trouper.journal.building import MARKER_NAME
from trouper.models import call, reply
from trouper.replay import Journal, Page, ReplayGap, ReplayRefused, Step, differences, open_journal
from trouper.testing import check_invariants


@tool
async def add_up(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def _talk(root: Path) -> tuple[State, int]:
    script = [reply("Let me see. ", call("add_up", a=1, b=2)), reply("It is 3."), reply("Hello.")]
    async with open_runtime(root, model=Scripted(script), tools=[add_up]) as runtime:
        one = await runtime.session("one")
        await one.ask("what is 1 + 2?")
        two = await runtime.session("two")
        await two.ask("hello")
        await runtime.memory.remember("people", "ada", 1)
        return one.state, two.statistics().events


@pytest.fixture
def root(tmp_path: Path) -> Path:
    trio.run(_talk, tmp_path / "state")
    return tmp_path / "state"


def test_replay_of_all_records_is_the_live_state(tmp_path: Path) -> None:
    """I10: replay(first n events) equals the live state after n events; here for the last n."""
    live, _ = trio.run(_talk, tmp_path / "state")
    journal = open_journal(tmp_path / "state")
    assert journal.sessions == ("one", "two")
    assert journal.state_at(journal.last, "one") == live


def test_a_journal_opened_for_looking_can_be_checked(root: Path) -> None:
    """The kit's checker takes what `open_journal` gives."""
    assert check_invariants(open_journal(root), complete=True) == []


def test_steps_lead_from_state_to_state(root: Path) -> None:
    """I10: for every n, the state before a step is the state after the one before it."""
    journal = open_journal(root)
    before = State()
    seen = 0
    for step in journal.steps("one"):
        assert step.before == before
        assert journal.state_at(step.record.seq, "one") == step.after
        before = step.after
        seen += 1
    assert seen == 5 and before.phase is Phase.IDLE


def test_differences_name_the_fields_that_changed(root: Path) -> None:
    journal = open_journal(root)
    changed = {difference.path: difference for difference in journal.diff(2, 3, "one")}
    assert (changed["phase"].before, changed["phase"].after) == ("thinking", "acting")
    assert str(changed["phase"]) == 'phase: "thinking" -> "acting"'
    assert journal.diff(3, 3, "one") == ()
    assert differences(journal.state_at(5, "one"), journal.state_at(5, "one")) == ()


def test_verify_decides_every_command_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I18: today's code yields the recorded events, or the first difference is named."""
    verdict = open_journal(root).verify()
    assert verdict.ok and verdict.rerun == open_journal(root).last == 9 and verdict.divergences == ()

    from trouper.core import decisions

    step = decisions.step

    def decided(state: State, command: Command) -> tuple[tuple[Event, ...], State]:
        events, after = step(state, command)
        return (events[:-1] if type(command).__name__ == "DeliverResult" else events), after

    monkeypatch.setattr(decisions, "step", decided)
    (found,) = open_journal(root).verify().divergences
    assert found.session == "one" and found.command == "DeliverResult"
    assert found.problem == "decides otherwise now: event 2 was StepStarted, and there is none now"


def _rewritten(root: Path, target: Path, seq: int, alter: Callable[[Record], Record]) -> Journal:
    """The same journal with one record altered: whole in every byte, and wrong."""
    with closing(open_log(target)) as log:
        for record in open_journal(root).records():
            written = changed(alter(record) if record.seq == seq else record, epoch=log.epoch)
            log.append(Entry(written.session, written.id, *codec.encode(written)))
            log.flush()
    return open_journal(target)


def _record_of(root: Path, session: str, kind: type) -> Record:
    """The first record of a session in which such an event happened."""
    return next(r for r in open_journal(root).records(session) if any(isinstance(e, kind) for e in r.events))


def test_the_first_difference_is_named_in_words(root: Path, tmp_path: Path) -> None:
    """I18: which record, which event, which field, and what each side says."""
    record = _record_of(root, "one", TurnEnded)

    def alter(record: Record) -> Record:
        return changed(record, events=(record.events[0], changed(record.events[1], stop_reason="refusal")))

    (found,) = _rewritten(root, tmp_path / "altered", record.seq, alter).verify().divergences
    assert str(found) == (
        f"record {record.seq} of session 'one': DeliverReply decides otherwise now: "
        'event 1, TurnEnded: stop_reason: "refusal" -> "end_turn"'
    )


@pytest.mark.parametrize(
    ("kind", "alter", "difference"),
    [
        pytest.param(TurnEnded, lambda e: (e[0],), "event 1 is new: TurnEnded", id="one is missing"),
        pytest.param(
            TurnStarted, lambda e: (e[0], *e), "event 1 was InputReceived, and is TurnStarted now", id="one came twice"
        ),
        pytest.param(
            TurnStarted, lambda e: (e[1], e[0], e[2]), "event 0 was TurnStarted, and is InputReceived now", id="swapped"
        ),
        pytest.param(
            TurnStarted, lambda e: e[:2], "event 2 is new: StepStarted", id="what follows cannot be folded without it"
        ),
        pytest.param(
            TurnEnded,
            lambda e: (*e, TaskBeat(TaskId("task_x"), 1.0)),
            "event 2 was TaskBeat, and there is none now",
            id="one is about what never was",
        ),
    ],
)
def test_a_record_that_cannot_be_folded_is_a_difference_like_any_other(
    root: Path, tmp_path: Path, kind: type, alter: Callable[[tuple[Event, ...]], tuple[Event, ...]], difference: str
) -> None:
    """I18: the verdict names it, where the fold itself would only fail; the other session is decided to its end."""
    seq = _record_of(root, "one", kind).seq
    journal = _rewritten(root, tmp_path / "altered", seq, lambda r: changed(r, events=alter(r.events)))
    verdict = journal.verify()
    assert [str(found) for found in verdict.divergences] == [
        f"record {seq} of session 'one': {type(_record_of(root, 'one', kind).cause).__name__} decides otherwise now: {difference}"
    ]
    assert verdict.report.ok and not verdict.ok


def test_a_record_that_cannot_be_folded_is_named_by_whoever_folds(root: Path, tmp_path: Path) -> None:
    """Which session and which record it is, and the states before it and the other sessions are there all the same."""
    seq = _record_of(root, "one", TurnEnded).seq
    beat = TaskBeat(TaskId("task_x"), 1.0)
    journal = _rewritten(root, tmp_path / "altered", seq, lambda r: changed(r, events=(*r.events, beat)))
    refused = (
        f"today's code cannot fold record {seq} of session 'one': KeyError\\('task_x'\\); look at the states before it"
    )
    with pytest.raises(ReplayRefused, match=refused) as told:
        journal.state_at(journal.last, "one")
    assert told.value.facts == {"session": "one", "event": 9, "seq": seq} and told.value.exit_code == 65
    assert journal.state_at(seq - 1, "one") == open_journal(root).state_at(seq - 1, "one")
    assert journal.state_at(journal.last, "two") == open_journal(root).state_at(journal.last, "two")
    with pytest.raises(ReplayRefused, match=refused):
        journal.fork(seq, tmp_path / "fork")
    assert not (tmp_path / "fork").exists() and journal.fork(seq - 1, tmp_path / "fork").records == seq - 1
    told_of = [step.record.seq for step in _until_refused(journal)]
    assert told_of == [r.seq for r in journal.records() if r.session == "two" or (r.session == "one" and r.seq < seq)]


@pytest.mark.parametrize(
    ("alter", "why"),
    [
        pytest.param(
            lambda value: value["body"]["events"][0].update(type="Later"),
            "an event of type 'Later' is unknown; a newer Trouper wrote this journal: upgrade to read it",
            id="of a newer version",
        ),
        pytest.param(lambda value: value.update(type="Later"), "a command of type 'Later' is unknown", id="its cause"),
        pytest.param(lambda value: value["body"].update(events=[]), "is not one that Trouper writes", id="empty"),
        pytest.param(lambda value: value.update(n="4"), "is not one that Trouper writes", id="its number is none"),
        pytest.param(lambda value: value.update(epoch=None), "is not one that Trouper writes", id="its epoch is none"),
        pytest.param(lambda value: value.update(at="noon"), "is not one that Trouper writes", id="its time is none"),
    ],
)
def test_a_record_that_cannot_be_read_hides_no_other_session(
    root: Path, tmp_path: Path, alter: Callable[[dict[str, Any]], None], why: str
) -> None:
    """I18, I23: it is named by session and record, the states before it are there, and the others are decided again to their end."""
    seq = _record_of(root, "one", TurnEnded).seq
    with closing(open_log(tmp_path / "altered")) as log:
        for raw in open_reader(root).records():
            value = codec.loads(raw.payload)
            if raw.seq == seq:
                alter(value)
            body = codec.dumps(value.pop("body"))
            log.append(Entry(value["session"], value["id"], codec.dumps(value)[:-1], body))
            log.flush()
    journal = open_journal(tmp_path / "altered")
    with pytest.raises(ReplayRefused, match=f"cannot fold record {seq} of session 'one': .*{why}") as told:
        journal.state_at(journal.last, "one")
    assert told.value.facts == {"session": "one", "event": 9, "seq": seq}
    assert journal.state_at(seq - 1, "one") == open_journal(root).state_at(seq - 1, "one")
    told_of = [step.record.seq for step in _until_refused(journal)]
    assert told_of == [r.seq for r in open_journal(root).records() if r.seq != seq and r.session in ("one", "two")]
    (found,) = journal.verify().divergences
    assert str(found).startswith(f"record {seq} of session 'one': it cannot be read now: ") and why in str(found)
    assert not journal.verify().ok and journal.verify().rerun == journal.last - 1
    with pytest.raises(ReplayRefused):
        journal.fork(seq, tmp_path / "fork")
    assert journal.fork(seq - 1, tmp_path / "fork").records == seq - 1

    async def go_on() -> None:
        async with open_runtime(tmp_path / "altered", model=Scripted([reply("Yes.")])) as runtime:
            assert (await (await runtime.session("two")).ask("still there?")).text == "Yes."

    trio.run(go_on)


def test_a_missing_blob_hides_no_other_session(tmp_path: Path) -> None:
    """J10, I23: who is in the journal can be asked, also while it is being written, and the other sessions be looked at."""

    async def talk() -> None:
        async with open_runtime(
            tmp_path / "whole", model=Scripted([reply("x" * 2_000_000), reply("Hello.")])
        ) as runtime:
            for name in ("one", "two"):
                await (await runtime.session(name)).ask("hello")

    trio.run(talk)
    whole = open_journal(tmp_path / "whole")
    with closing(open_log(tmp_path / "live")) as log:
        for record in whole.records():
            log.append(Entry(record.session, record.id, *codec.encode(changed(record, epoch=log.epoch))))
        log.flush()
        (blob,) = (each for each in (tmp_path / "live" / "blobs").rglob("*") if each.is_file())
        blob.unlink()
        journal = open_journal(tmp_path / "live")
        assert journal.sessions == ("one", "two")
        assert journal.last == whole.last
        assert journal.state_at(journal.last, "two") == whole.state_at(whole.last, "two")
        with pytest.raises(JournalDamaged, match="a blob is missing; sessions: one"):
            journal.state_at(journal.last, "one")
    assert not journal.verify().ok


def _until_refused(journal: Journal) -> Iterator[Step]:
    with suppress(ReplayRefused):
        yield from journal.steps()


def test_what_the_memory_decided_is_decided_again(root: Path, tmp_path: Path) -> None:
    """I18: the runtime's own stream is no exception."""
    (record,) = (record for record in open_journal(root).records() if record.session == "~memory")

    def alter(record: Record) -> Record:
        (written,) = record.events
        return changed(record, events=(changed(written, memory=changed(written.memory, value=2)),))

    (found,) = _rewritten(root, tmp_path / "altered", record.seq, alter).verify().divergences
    assert str(found) == (
        f"record {record.seq} of session '~memory': Remember decides otherwise now: event 0, MemoryWritten: memory.value: 2 -> 1"
    )


def _pictured(root: Path, alter: Callable[[str, dict[str, Any]], None]) -> Journal:
    """The same journal, whose newest snapshot says something else: whole in every byte, and wrong."""
    with closing(open_log(root)) as log:
        snapshot = log.snapshot()
        assert snapshot is not None
        sections = []
        for name, tag in snapshot.sections.items():
            value = codec.loads(snapshot.read(name))
            alter(name, value)
            sections.append((name, tag, codec.dumps(value)))
        log.write_snapshot(log.last, sections)
    return open_journal(root)


def test_verify_compares_the_newest_snapshot_with_what_the_records_give(root: Path) -> None:
    """I12: the next start begins from it, and from then on the wrong state is what is gone on with."""
    assert open_journal(root).verify().snapshots == ()

    def alter(name: str, value: dict[str, Any]) -> None:
        if name == "one":
            value["state"]["last"]["text"] = "It is 4."
        if name == "~memory":
            value["state"]["scopes"]["people"]["ada"]["value"] = 2

    verdict = _pictured(root, alter).verify()
    assert verdict.report.ok and not verdict.divergences and not verdict.ok
    assert [(found.session, found.problem) for found in verdict.snapshots] == [
        ("one", 'last.text: "It is 4." -> "It is 3." by its records'),
        ("~memory", "scopes.people.ada.value: 2 -> 1 by its records"),
    ]
    path = verdict.snapshots[0].file
    assert f"the snapshot {path!r} is wrong about session 'one'" in str(verdict.snapshots[0])
    os.unlink(path)
    assert open_journal(root).verify().ok


def test_nobody_is_told_to_delete_a_snapshot_that_is_all_there_is_of_a_session(root: Path, tmp_path: Path) -> None:
    """I12, J15: whoever did so lost the sessions whose records were dropped, and the one that was wrong has its records."""
    cut = tmp_path / "cut"
    with closing(open_log(root)) as log, closing(open_log(cut, segment_bytes=1)) as few:
        for raw in log.records():
            value = codec.loads(raw.payload)
            body = codec.dumps(value.pop("body"))
            few.append(Entry(value["session"], value["id"], codec.dumps(value)[:-1], body))
            few.flush()
        snapshot = log.snapshot()
        assert snapshot is not None
        few.write_snapshot(few.last, [(name, tag, snapshot.read(name)) for name, tag in snapshot.sections.items()])
    assert retire(cut, {"two"}, fate="drop")

    def alter(name: str, value: dict[str, Any]) -> None:
        if name == "one":
            value["state"]["last"]["text"] = "It is 4."

    journal = _pictured(cut, alter)
    (found,) = journal.verify().snapshots
    assert found.session == "one" and found.is_needed
    assert str(found).endswith(
        "keep the file, which is all there is of sessions whose records were dropped, and go on with this one from its records: "
        "`trouper journal replay --session one --fork DIR`"
    )
    forked = journal.fork(journal.last, tmp_path / "fork", "one")
    last = open_journal(forked.root).state_at(forked.records, "one").last
    assert last is not None and last.text == "It is 3."


def test_a_snapshot_of_more_events_than_there_are_is_named(root: Path) -> None:
    """I12, I13."""

    def alter(name: str, value: dict[str, Any]) -> None:
        value["next"] += name == "two"

    (found,) = _pictured(root, alter).verify().snapshots
    assert found.session == "two" and found.problem == "it has 7 events of it, and the journal 6"


def test_what_a_start_does_not_use_of_a_snapshot_is_not_compared(root: Path) -> None:
    """J13: of another version, or damaged; the records serve instead. What is damaged the report tells."""

    def alter(name: str, value: dict[str, Any]) -> None:
        if name == "one":
            value["v"] = 99
        if name == "two":
            value["state"]["phase"] = "dreaming"
        if name == "~memory":
            value["next"] = "1"

    verdict = _pictured(root, alter).verify()
    assert verdict.ok and verdict.report.snapshots == ()

    async def look() -> None:
        async with open_runtime(root) as runtime:
            assert [memo.key for memo in await runtime.memory.list("people")] == ["ada"]

    trio.run(look)
    path = max((root / "snapshots").iterdir())
    path.write_bytes(path.read_bytes().replace(b'"dreaming"', b'"sleeping"'))
    verdict = open_journal(root).verify()
    assert verdict.ok
    assert [(damage.file, damage.sessions) for damage in verdict.report.snapshots] == [(str(path), ("two",))]


def test_a_fork_goes_on_from_any_record_and_the_old_journal_is_untouched(root: Path, tmp_path: Path) -> None:
    """J12 in the fork: the turn that was open at the cut is closed as after a crash."""
    before = {path.name: path.read_bytes() for path in root.iterdir() if path.is_file()}
    forked = open_journal(root).fork(3, tmp_path / "fork", "one")
    assert forked.records == 3 and forked.sessions == ("one",)
    assert {path.name: path.read_bytes() for path in root.iterdir() if path.is_file()} == before

    async def go_on() -> None:
        model = Scripted([reply("Again.")])
        async with open_runtime(tmp_path / "fork", model=model, tools=[add_up]) as runtime:
            session = await runtime.session("one")
            assert session.last is not None and session.last.fault.kind == "process_ended"
            assert (await session.ask("once more")).text == "Again."

    trio.run(go_on)
    assert open_journal(tmp_path / "fork").verify().ok
    with pytest.raises(JournalExists):
        open_journal(root).fork(3, tmp_path / "fork")


def test_a_fork_from_before_a_sessions_first_record_is_refused_and_nothing_is_written(
    root: Path, tmp_path: Path
) -> None:
    journal = open_journal(root)
    for seq, session, first in ((5, "two", 6), (0, "one", 1), (0, None, 1)):
        with pytest.raises(UsageError, match=rf"no record up to {seq}, .*; its first one is {first}$"):
            journal.fork(seq, tmp_path / "fork", session)
    open_log(tmp_path / "empty").close()
    with pytest.raises(UsageError, match="it has none at all"):
        open_journal(tmp_path / "empty").fork(0, tmp_path / "fork")
    assert not (tmp_path / "fork").exists()
    assert journal.fork(6, tmp_path / "fork", "two").records == 1


def test_a_fork_that_fails_leaves_nothing_behind(root: Path, tmp_path: Path) -> None:
    """J10: of a damaged journal there is one up to the damage; of a session that has lost events, up to the hole."""
    segment = root / "segment-00000001.log"
    data = bytearray(segment.read_bytes())
    data[data.index(b"Let me see.")] ^= 1
    segment.write_bytes(data)
    with pytest.raises(JournalDamaged):
        open_journal(root).fork(9, tmp_path / "fork")
    repair(root, tmp_path / "repaired")
    repaired = open_journal(tmp_path / "repaired")
    for session in (None, "one"):
        with pytest.raises(ReplayGap, match="'one' has lost the events before record 4; fork from before that record"):
            repaired.fork(repaired.last, tmp_path / "fork", session)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["repaired", "state"]
    assert repaired.fork(3, tmp_path / "before", "one").records == 2
    assert repaired.fork(repaired.last, tmp_path / "other", "two").sessions == ("two",)
    assert not check_invariants(tmp_path / "before") and not check_invariants(tmp_path / "other")


def test_a_fork_has_its_name_only_when_it_is_complete(root: Path, tmp_path: Path) -> None:
    """J10: a part of one is a journal without a fault, and nobody could tell that it is not all; so a killed process must not leave one."""
    named = []

    class Watched(Reader):
        def records(self, after: int = 0, stream: str | None = None) -> Iterator[RawRecord]:
            for record in super().records(after, stream):
                named.append((tmp_path / "fork").exists())
                yield record

    journal = Journal(Watched(OsDisk(), str(root)))
    last = journal.last
    assert journal.fork(last, tmp_path / "fork").records == last
    assert len(named) >= last and not any(named)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fork", "state"]
    (tmp_path / "other.tmp").mkdir()
    with pytest.raises(JournalExists, match=r"other\.tmp"):
        journal.fork(last, tmp_path / "other")


def test_what_a_killed_fork_has_left_is_taken_away_by_the_next(root: Path, tmp_path: Path) -> None:
    """J10: it stood in the way until somebody removed it by hand."""
    site = tmp_path / "fork.tmp"
    site.mkdir()
    (site / MARKER_NAME).touch()
    open_journal(root).fork(2, site / "journal")  # A part of it.
    journal = open_journal(root)
    assert journal.fork(journal.last, tmp_path / "fork").records == journal.last
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fork", "state"]
    assert not check_invariants(tmp_path / "fork")


def test_reading_takes_no_lock_and_writes_nothing(root: Path) -> None:
    """J9, I11."""
    log = open_log(root)
    try:
        before = sorted((entry.name, entry.stat().st_mtime_ns) for entry in os.scandir(root))
        journal = open_journal(root)
        assert journal.verify().ok
        assert list(journal.steps())
        assert sorted((entry.name, entry.stat().st_mtime_ns) for entry in os.scandir(root)) == before
    finally:
        log.close()


def test_a_hole_is_named_and_never_skipped(root: Path, tmp_path: Path) -> None:
    """J10."""
    segment = root / "segment-00000001.log"
    data = bytearray(segment.read_bytes())
    data[data.index(b"Let me see.")] ^= 1
    segment.write_bytes(data)
    assert not open_journal(root).verify().ok
    repair(root, tmp_path / "repaired")
    journal = open_journal(tmp_path / "repaired")
    assert journal.state_at(2, "one").phase is Phase.THINKING
    with pytest.raises(ReplayGap, match="hole before event"):
        journal.state_at(journal.last, "one")


def test_a_hole_in_one_session_hides_no_other(root: Path, tmp_path: Path) -> None:
    """J10, I18: steps and verdict of the other sessions are there, and the hole is named."""
    segment = root / "segment-00000001.log"
    data = bytearray(segment.read_bytes())
    data[data.index(b"Let me see.")] ^= 1
    segment.write_bytes(data)
    repair(root, tmp_path / "repaired")
    journal = open_journal(tmp_path / "repaired")
    seen: list[str] = []
    with pytest.raises(ReplayGap, match="'one' has a hole before event"):
        seen.extend(step.record.session for step in journal.steps())
    assert seen == ["one", "one", "two", "two", "two"]
    verdict = journal.verify()
    assert verdict.ok and verdict.rerun == len(seen) + 1  # And what the memory was told.
    assert [hole.facts["session"] for hole in verdict.holes] == ["one"]


@pytest.mark.parametrize("seq", [-1, 10**9, "3", 3.5, True, None])
def test_a_place_that_the_journal_does_not_have_is_named(root: Path, tmp_path: Path, seq: object) -> None:
    journal = open_journal(root)
    for look in (
        lambda: journal.state_at(seq, "one"),  # type: ignore[arg-type]
        lambda: journal.diff(1, seq, "one"),  # type: ignore[arg-type]
        lambda: journal.fork(seq, tmp_path / "fork"),  # type: ignore[arg-type]
    ):
        with pytest.raises(UsageError, match=r"no record 1000000000; the last one is 9|whole number from 0 up"):
            look()
    assert not (tmp_path / "fork").exists()
    assert journal.state_at(0, "one") == State()


def test_misuse_is_named(root: Path, tmp_path: Path) -> None:
    journal = open_journal(root)
    with pytest.raises(UsageError, match="holds 2 sessions"):
        journal.state_at(3)
    with pytest.raises(UsageError, match="no session 'nobody'"):
        journal.state_at(3, "nobody")
    for read in (journal.steps, journal.records):
        with pytest.raises(UsageError, match="no session 'nobody'; there is: one, two"):
            list(read("nobody"))
    for look in (
        lambda: journal.state_at(3, "~memory"),
        lambda: journal.diff(1, 3, "~memory"),
        lambda: list(journal.steps("~memory")),
        lambda: Page(journal, "~memory"),
    ):
        with pytest.raises(UsageError, match=r"'~memory' is what was remembered, .* its records tell: records"):
            look()
    assert [type(record.cause).__name__ for record in journal.records("~memory")] == ["Remember"]
    path: Any
    for path in ("", 5, None, b"state", "a\0b", "\udcff\ud800"):
        with pytest.raises(UsageError, match="no path of a journal"):
            open_journal(path)
        with pytest.raises(UsageError, match="no path of a journal; give the directory that is to hold the new one"):
            journal.fork(3, path)
    for bounds in ({"after": "x"}, {"after": -1}, {"upto": 2.5}):
        with pytest.raises(UsageError, match="makes no sense"):
            list(journal.records(**bounds))
    with pytest.raises(JournalNotFound):
        open_journal(tmp_path / "nowhere")
