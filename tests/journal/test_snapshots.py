"""Snapshots: atomic, checked, lazy, optional (J13)."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal_workload import entry

from trouper._errors import UsageError
from trouper.journal import JournalDamaged, Log, open_log, verify
from trouper.testing import CrashDisk, Fate


def with_records(disk: CrashDisk, records: int = 5) -> Log:
    log = open_log("/j", disk=disk)
    for number in range(records):
        log.append(entry(number))
    log.sync()
    return log


def test_sections_come_back_with_their_tags() -> None:
    log = with_records(CrashDisk())
    assert log.snapshot() is None
    log.write_snapshot(5, [("a", "1", b'{"x":1}'), ("b", "tag", b""), ("c", "", b"\n\x00\xff")])
    snapshot = log.snapshot()
    assert snapshot is not None
    assert snapshot.seq == 5
    assert dict(snapshot.sections) == {"a": "1", "b": "tag", "c": ""}
    assert [snapshot.read(name) for name in "abc"] == [b'{"x":1}', b"", b"\n\x00\xff"]
    with pytest.raises(KeyError):
        snapshot.read("d")


def test_sections_that_did_not_change_are_copied_from_the_one_before() -> None:
    log = with_records(CrashDisk())
    log.write_snapshot(3, [("a", "1", b"old a"), ("b", "1", b"old b"), ("gone", "1", b"x")])
    log.write_snapshot(5, [("a", "1", None), ("b", "2", b"new b")])
    snapshot = log.snapshot()
    assert snapshot is not None
    assert (snapshot.seq, dict(snapshot.sections)) == (5, {"a": "1", "b": "2"})
    assert (snapshot.read("a"), snapshot.read("b")) == (b"old a", b"new b")
    with pytest.raises(UsageError, match="payload"):
        log.write_snapshot(5, [("gone", "1", None)])
    # A refused one has harmed nothing.
    assert log.snapshot() is not None
    assert not [path for path in log.disk.list_dir("/j/snapshots") if path.endswith(".tmp")]


def test_one_that_is_held_can_be_read_after_a_newer_one_was_written() -> None:
    disk = CrashDisk()
    log = with_records(disk)
    for seq in range(1, 5):
        log.write_snapshot(seq, [("a", str(seq), b"%d" % seq)])
        if seq == 1:
            held = log.snapshot()
    assert held is not None
    assert held.read("a") == b"1"
    newest = log.snapshot()
    assert newest is not None
    assert newest.read("a") == b"4"
    assert len([path for path in disk.open_files if path.endswith(".snap")]) == 2
    log.close()
    assert disk.open_files == ()


def test_a_snapshot_of_what_is_not_written_is_refused() -> None:
    log = with_records(CrashDisk())
    log.append(entry(5))
    with pytest.raises(UsageError, match="not written yet"):
        log.write_snapshot(6, [])


def test_a_snapshot_syncs_the_records_that_it_stands_for() -> None:
    """At level write nothing else would: a power cut must not leave a snapshot ahead of its journal."""
    disk = CrashDisk()
    log = open_log("/j", disk=disk, level="write")
    log.append(entry(0))
    log.write_snapshot(1, [("a", "1", b"x")])
    again = open_log("/j", disk=disk.crash(Fate.DROPPED))
    assert again.refusal is None
    assert again.recovery.last == 1


def test_a_journal_that_ends_before_its_snapshot_is_damaged() -> None:
    """J10: whole records cut off at the end look like a crash; the snapshot knows better."""
    disk = CrashDisk()
    log = with_records(disk)
    log.write_snapshot(5, [("a", "1", b"x")])
    log.abandon()
    path = "/j/segment-00000001.log"
    lines = disk.read_bytes(path).splitlines(keepends=True)
    disk.write_bytes(path, b"".join(lines[:-1]))
    again = open_log("/j", disk=disk)
    assert isinstance(again.refusal, JournalDamaged)
    assert "snapshot" in str(again.refusal)
    assert not verify("/j", disk=disk).ok


def test_a_journal_that_ends_before_what_its_snapshot_has_taken_in_is_damaged() -> None:
    """I13, J10: a state may be ahead of the record that a snapshot is named after, and its next record would leave a hole behind the end."""
    disk = CrashDisk()
    log = with_records(disk)
    log.write_snapshot(3, [("a", "1", b"x")], covers=5)
    log.abandon()
    path = "/j/segment-00000001.log"
    lines = disk.read_bytes(path).splitlines(keepends=True)
    whole, cut = disk.fork(), disk.fork()
    cut.write_bytes(path, b"".join(lines[:-1]))
    assert open_log("/j", disk=whole).refusal is None and verify("/j", disk=disk).ok
    again = open_log("/j", disk=cut)
    assert isinstance(again.refusal, JournalDamaged)
    assert "the journal ends with record 4, and a snapshot was made after 5" in str(again.refusal)
    assert not verify("/j", disk=cut).ok


def test_a_snapshot_syncs_all_that_it_has_taken_in() -> None:
    """I17: at level write, also what was written since the last sync."""
    disk = CrashDisk()
    log = open_log("/j", disk=disk, level="write")
    log.append(entry(0))
    log.write_snapshot(1, [("a", "1", b"x")])
    log.append(entry(1))
    log.write_snapshot(1, [("a", "1", b"y")], covers=2)
    with pytest.raises(UsageError, match="record 3 is not written yet"):
        log.write_snapshot(2, [], covers=3)
    assert open_log("/j", disk=disk.crash(Fate.DROPPED)).recovery.last == 2


def test_only_the_newest_two_are_kept() -> None:
    disk = CrashDisk()
    log = with_records(disk)
    for seq in range(1, 6):
        log.write_snapshot(seq, [("a", str(seq), b"x")])
    assert [name[-9:] for name in disk.list_dir("/j/snapshots")] == ["0004.snap", "0005.snap"]


def test_a_damaged_snapshot_is_passed_over_and_recovery_says_so() -> None:
    disk = CrashDisk()
    log = with_records(disk)
    log.write_snapshot(3, [("a", "old", b"x")])
    path = log.write_snapshot(5, [("a", "new", b"y")])
    log.close()
    data = disk.read_bytes(path)
    for at in range(0, len(data), 5):
        flipped = disk.fork()
        flipped.write_bytes(path, data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        again = open_log("/j", disk=flipped)
        assert again.refusal is None
        snapshot = again.snapshot()
        assert snapshot is not None
        if snapshot.seq == 5:  # The flip is in the payload, and is found when that is read; or in the LF behind it.
            if data[at] != 0x0A:
                with pytest.raises(JournalDamaged, match="build the state from the records"):
                    snapshot.read("a")
        else:
            assert snapshot.read("a") == b"x"
            assert [damage.file for damage in again.recovery.ignored_snapshots] == [path]
            assert [damage.file for damage in verify("/j", disk=flipped).snapshots] == [path]


def test_a_snapshot_of_another_journal_is_passed_over() -> None:
    disk, other = CrashDisk(), CrashDisk()
    path = with_records(disk).write_snapshot(5, [("a", "1", b"x")])
    log = with_records(other)
    log.disk.make_dirs("/j/snapshots")
    other.write_bytes(path, disk.read_bytes(path))
    assert log.snapshot() is None


def test_a_hundred_thousand_sections_cost_little_memory_and_no_reading(tmp_path: Path) -> None:
    """J13: the index is in memory, payloads are not; well under 2 KiB a section."""
    log = open_log(tmp_path / "j", level="write")
    log.append(entry(0))
    count = 20_000
    log.write_snapshot(1, ((f"session-{n:08d}", str(n), b"p" * 500) for n in range(count)))
    log.close()
    log = open_log(tmp_path / "j", level="write")
    tracemalloc.start()
    snapshot = log.snapshot()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert snapshot is not None
    assert len(snapshot.sections) == count
    assert held / count < 700
    assert snapshot.read("session-00012345") == b"p" * 500
    log.close()


@settings(max_examples=40, deadline=None)
@given(
    sections=st.dictionaries(st.text(max_size=20), st.tuples(st.text(max_size=10), st.binary(max_size=300)), max_size=8)
)
def test_any_sections_come_back(sections: dict[str, tuple[str, bytes]]) -> None:
    log = with_records(CrashDisk())
    log.write_snapshot(2, [(name, tag, payload) for name, (tag, payload) in sections.items()])
    log.write_snapshot(4, [(name, tag, None) for name, (tag, _) in sections.items()])
    snapshot = log.snapshot()
    assert snapshot is not None
    assert {name: (tag, snapshot.read(name)) for name, tag in snapshot.sections.items()} == sections
