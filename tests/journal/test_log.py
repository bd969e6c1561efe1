"""Appending: sequences, batches, levels, limits (J1-J5, J8, I14)."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal_workload import entry, ids_of

from trouper import journal
from trouper._errors import InternalError, UsageError
from trouper.journal import (
    Entry,
    JournalBehind,
    JournalClosed,
    JournalReadOnly,
    MemoryDisk,
    open_log,
    open_reader,
)
from trouper.journal.format import LINE_BYTES_MAX, segment_name
from trouper.testing import CrashDisk, Fate


def test_sequences_are_contiguous_from_one_across_restarts(tmp_path: Path) -> None:
    for start in (0, 3, 6):
        log = open_log(tmp_path / "j")
        assert [log.append(entry(start + n)) for n in range(3)] == [start + 1, start + 2, start + 3]
        log.close()
    assert [record.seq for record in open_reader(tmp_path / "j").records()] == list(range(1, 10))


def test_a_record_is_durable_only_after_a_sync_covers_it() -> None:
    """J1."""
    disk = CrashDisk()
    log = open_log("/j", disk=disk)
    log.append(entry(0))
    assert log.durable == 0
    log.flush()
    assert log.durable == 0
    assert ids_of(open_log("/j", disk=disk.fork().crash(Fate.DROPPED))) == []
    log.sync()
    assert log.durable == 1
    assert ids_of(open_log("/j", disk=disk.crash(Fate.DROPPED))) == ["e0"]


def test_level_write_survives_a_killed_process_without_any_sync() -> None:
    """J3."""
    disk = CrashDisk()
    log = open_log("/j", disk=disk, level="write")
    before = [step for step in disk.log if step.operation == "sync"]
    for number in range(3):
        assert log.append(entry(number)) == log.durable
    assert [step for step in disk.log if step.operation == "sync"] == before
    assert ids_of(open_log("/j", disk=disk.kill())) == ["e0", "e1", "e2"]


def test_level_memory_touches_no_disk(tmp_path: Path) -> None:
    """J3."""
    log = open_log(tmp_path / "j", level="memory")
    for number in range(3):
        assert log.append(entry(number)) == log.durable
    assert ids_of(log) == ["e0", "e1", "e2"]
    assert isinstance(log.disk, MemoryDisk)
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_buffered_entries_go_with_the_next_batch() -> None:
    """J1: at level write a durable entry is written at once, and what was buffered goes before it."""
    log = open_log("/j", level="write", disk=CrashDisk())
    log.append(entry(0, durable=False))
    assert log.durable == 0
    log.append(entry(1))
    assert log.durable == 2


def test_an_id_appended_again_keeps_its_sequence_and_leaves_one_record() -> None:
    """I14, J2: also if the first is still pending, and across a crash and a clean restart."""
    disk = CrashDisk()
    log = open_log("/j", disk=disk)
    first = log.append(entry(0))
    assert log.append(entry(0)) == first
    log.append(entry(1))
    log.sync()
    assert log.append(entry(0)) == first
    log.abandon()
    log = open_log("/j", disk=disk)
    assert log.append(entry(1)) == 2
    log.close()
    log = open_log("/j", disk=disk)
    assert log.append(entry(1)) == 2
    log.append(entry(2))
    log.sync()
    assert ids_of(log) == ["e0", "e1", "e2"]


def test_an_id_is_remembered_behind_a_sealed_segment() -> None:
    """I14: a large segment that was closed is not gone on with; its last ids are known still."""
    disk = CrashDisk()
    log = open_log("/j", disk=disk, segment_bytes=1000)
    for number in range(20):
        log.append(entry(number))
        log.sync()
    log.close()
    log = open_log("/j", disk=disk, segment_bytes=1000)
    assert log.append(entry(19)) == 20


def test_old_ids_are_forgotten_so_that_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trouper.journal.log.RECENT_IDS_MAX", 10)
    log = open_log("/j", level="memory")
    for number in range(100):
        log.append(entry(number))
    assert len(log._recent) + len(log._less_recent) <= 20
    assert log.append(entry(95)) == 96


def test_what_is_secret_is_redacted_before_it_is_pending() -> None:
    """J8, I36: also in a body that goes to a blob."""
    disk = CrashDisk()
    log = open_log("/j", disk=disk, redact=lambda text: text.replace(b"sk-secret", b"[redacted]"))
    log.append(entry(0, body=b'"the key is sk-secret"'))
    log.append(entry(1, body=b'"%b sk-secret"' % (b"x" * LINE_BYTES_MAX)))
    log.sync()
    log.close()
    found = [content for content in disk.tree().values() if content]
    assert not any(b"sk-secret" in content for content in found)
    assert sum(b"[redacted]" in content for content in found) == 2


def test_files_are_0600_and_directories_0700_whatever_the_umask(tmp_path: Path) -> None:
    """J8: from the first moment; a umask of 0 opens nothing."""
    old = os.umask(0)
    try:
        log = open_log(tmp_path / "a" / "j", segment_bytes=2000)
        for number in range(10):
            log.append(entry(number, body=b'"%b"' % (b"x" * 500)))
            log.sync()
        log.append(entry(99, body=b'"%b"' % (b"x" * LINE_BYTES_MAX)))
        log.sync()
        log.write_snapshot(log.last, [("a", "1", b"{}")])
        log.close()
        journal.retire(tmp_path / "a" / "j", lambda _: True)
    finally:
        os.umask(old)
    for path in (tmp_path / "a").rglob("*"):
        wanted = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700


@pytest.mark.parametrize("size", [LINE_BYTES_MAX - 200, LINE_BYTES_MAX - 100, LINE_BYTES_MAX, 3 * LINE_BYTES_MAX])
def test_no_line_is_longer_than_1_mib_and_a_larger_body_comes_back_from_its_blob(tmp_path: Path, size: int) -> None:
    """J5."""
    body = b'"%b"' % (b"x" * size)
    log = open_log(tmp_path / "j")
    log.append(entry(0, body=body))
    log.sync()
    lines = (tmp_path / "j" / segment_name(1)).read_bytes().split(b"\n")
    assert max(map(len, lines)) < LINE_BYTES_MAX
    assert json.loads(next(log.records()).payload)["body"] == json.loads(body)
    log.close()


@pytest.mark.parametrize("body", [b'"\xc3\xa9"', b'"a\nb"', b'"a"\n'])
def test_what_is_not_one_line_of_ascii_is_refused_and_leaves_no_trace(body: bytes) -> None:
    """J5."""
    log = open_log("/j", level="memory")
    with pytest.raises(InternalError, match="e0"):
        log.append(entry(0, body=body))
    assert log.last == 0
    assert log.append(entry(1)) == 1


def test_a_head_that_would_not_fit_a_line_is_refused() -> None:
    log = open_log("/j", level="memory")
    with pytest.raises(UsageError, match="body"):
        log.append(Entry("s", "e0", b'{"x":"%b"' % (b"x" * LINE_BYTES_MAX), b"1"))


def test_a_disk_that_is_far_behind_refuses_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """I25: what waits in memory is bounded."""
    monkeypatch.setattr("trouper.journal.log.PENDING_BYTES_MAX", 1000)
    log = open_log("/j", disk=CrashDisk())
    with pytest.raises(JournalBehind):
        for number in range(100):
            log.append(entry(number))
    log.sync()
    assert log.append(entry(1000)) == log.last


def test_a_large_backlog_is_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trouper.journal.log.BATCH_BYTES_MAX", 1000)
    log = open_log("/j", disk=CrashDisk(), segment_bytes=4096)
    for number in range(100):
        log.append(entry(number))
    log.sync()
    assert log.pending_count == log.pending_bytes == log.pending_durable == 0
    assert ids_of(log) == [f"e{n}" for n in range(100)]
    assert len(log._reader.layout().segments) > 2


def test_a_closed_log_refuses_and_closes_again_quietly(tmp_path: Path) -> None:
    log = open_log(tmp_path / "j")
    log.close()
    with pytest.raises(JournalClosed, match="open it again"):
        log.append(entry(0))
    log.close()


def test_a_log_opened_for_reading_refuses_to_append(tmp_path: Path) -> None:
    open_log(tmp_path / "j").close()
    log = open_log(tmp_path / "j", read_only=True)
    with pytest.raises(JournalReadOnly, match="read_only"):
        log.append(entry(0))


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(0, 30), st.integers(0, 900)),
            st.tuples(st.sampled_from(["sync", "flush", "reopen", "kill"]), st.just(0), st.just(0)),
        ),
        max_size=60,
    ),
    level=st.sampled_from(["fsync", "write"]),
)
def test_a_log_is_a_list_without_repeats(steps: list[tuple[str, int, int]], level: journal.Level) -> None:
    """I14, I17 against a model: a list of ids; what was written is never lost by a kill, whatever is done in whatever order."""
    disk = CrashDisk()
    log = open_log("/j", disk=disk, level=level, segment_bytes=1500)
    model: list[str] = []
    written = 0
    epoch = log.epoch
    for step, number, size in steps:
        if step == "append":
            name = f"e{number}"
            seq = log.append(entry(number, stream=f"s{number % 3}", body=b'"%b"' % (b"x" * size)))
            if name not in model:
                model.append(name)
            assert seq == model.index(name) + 1
        elif step == "sync":
            log.sync()
        elif step == "flush":
            log.flush()
        else:
            if step == "reopen":
                log.close()
                written = len(model)
            else:
                disk = disk.kill()
            log = open_log("/j", disk=disk, level=level, segment_bytes=1500)
            assert log.refusal is None
            assert log.epoch > epoch
            epoch = log.epoch
            found = ids_of(log)
            assert found == model[: len(found)]
            assert len(found) >= written
            model = found
        written = max(written, log._written)
    log.sync()
    assert ids_of(log) == model
    for stream in ("s0", "s1", "s2"):
        names = [json.loads(record.payload)["id"] for record in log.records(stream=stream)]
        assert names == [name for name in model if f"s{int(name[1:]) % 3}" == stream]
    for after in range(0, len(model) + 1, 7):
        assert [record.seq for record in log.records(after)] == list(range(after + 1, len(model) + 1))
    log.close()
    assert journal.verify("/j", disk=disk).ok
