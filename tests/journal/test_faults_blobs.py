"""Bodies in blobs: lost, changed, or cut off by a crash (J5)."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Callable

import attrs
import pytest
from journal_workload import ROOT, entry, ids_of, open_small, temporaries

from trouper.journal import BlobRefused, Entry, JournalDamaged, JournalError, verify
from trouper.journal.log import RESERVE_BYTES
from trouper.testing import CrashDisk, Fate

BODY = b'"%b"' % (b"B" * 1_100_000)
OTHER = b'"%b"' % (b"C" * 1_100_000)
DIGEST = hashlib.sha256(BODY).hexdigest()
PATH = f"{ROOT}/blobs/{DIGEST[:2]}/{DIGEST}"


def journal() -> CrashDisk:
    disk = CrashDisk()
    log = open_small(disk)
    log.append(entry(0))
    log.append(entry(1, stream="with-blob", body=BODY))
    log.append(entry(2))
    log.sync()
    log.abandon()
    return disk


def test_a_body_comes_back_from_its_blob() -> None:
    disk = journal()
    assert disk.read_bytes(PATH) == BODY
    records = list(open_small(disk).records())
    assert json.loads(records[1].payload)["body"] == json.loads(BODY)
    assert not verify(ROOT, disk=disk).damage


WRONG = {
    "missing": None,
    "empty": b"",
    "short": BODY[:-1],
    "long": BODY + b" ",
    "flipped": BODY[:500] + b"b" + BODY[501:],
    "another": OTHER,
    "nul": bytes(len(BODY)),
}


@pytest.mark.parametrize("content", WRONG.values(), ids=WRONG)
def test_a_blob_that_is_missing_or_wrong_is_named_and_never_delivered(content: bytes | None) -> None:
    """J10: file and session are named by whoever reads it, and by verify; other records can be read."""
    disk = journal()
    if content is None:
        disk.unlink(PATH)
    else:
        disk.write_bytes(PATH, content)
    log = open_small(disk)
    found = []
    with pytest.raises(JournalDamaged) as caught:
        for record in log.records():
            found.append(record.seq)
    assert found == [1]
    assert caught.value.facts["file"] == PATH
    assert "with-blob" in caught.value.facts["sessions"]
    assert [record.seq for record in log.records(after=2)] == [3]
    assert [record.seq for record in log.records(stream="s")] == [1, 3]
    assert [damage.file for damage in verify(ROOT, disk=disk).damage] == [PATH]


def test_a_crash_at_every_step_of_a_blob_keeps_what_was_acknowledged() -> None:
    """J5: the blob is synced before the record that names it."""
    disk = CrashDisk()
    log = open_small(disk)
    log.append(entry(0))
    log.sync()
    boundaries: list[CrashDisk] = []
    disk.watch(lambda step: boundaries.append(disk.fork()))
    log.append(entry(1, body=BODY))
    log.append(entry(2))
    log.sync()
    disk.watch(None)
    assert len(boundaries) >= 9
    assert any(temporaries(before) for before in boundaries)
    for number, before in enumerate(boundaries):
        for fate in (Fate.KEPT, Fate.DROPPED, Fate.TORN):
            again = open_small(before.crash(fate, seed=number))
            assert temporaries(again.disk) == [], (
                "I21: nobody will ever want them, and each may be as large as an attachment"
            )
            found = ids_of(again)  # Reads the blob, if its record is there.
            assert found == ["e0", "e1", "e2"][: len(found)]
            assert len(found) >= 1
            again.append(entry(1, body=BODY))
            again.append(entry(2))
            again.sync()
            assert ids_of(again) == ["e0", "e1", "e2"]
            again.abandon()
    assert ids_of(open_small(disk.crash(Fate.DROPPED))) == ["e0", "e1", "e2"]


def test_directories_of_blobs_that_a_killed_process_left_unsynced_are_made_to_last() -> None:
    """The next process finds blobs/ and blobs/ab/ in the page cache; they must be on the medium before it promises anything."""
    disk = CrashDisk()
    log = open_small(disk)
    boundaries: list[tuple[str, CrashDisk]] = []
    disk.watch(lambda step: boundaries.append((str(step), disk.fork())))
    log.append(entry(0, body=BODY))
    log.sync()
    for step, survivor in boundaries:
        again = open_small(survivor)
        again.append(entry(0, body=BODY))
        again.sync()
        assert ids_of(open_small(survivor.crash(Fate.DROPPED))) == ["e0"], f"killed before {step}"


def opening(number: int) -> Entry:
    return attrs.evolve(entry(number, body=BODY), opens=True)


NO_PLACE: dict[str, Callable[[CrashDisk], None]] = {
    "no descriptor": lambda disk: disk.fail("create", errno.EMFILE, path="*/blobs/*", times=None),
    "no permission": lambda disk: disk.fail("create", errno.EACCES, path="*/blobs/*", times=None),
    "over quota": lambda disk: disk.fail("create", errno.EDQUOT, path="*/blobs/*", times=None),
    "no directory": lambda disk: disk.fail("make_dirs", errno.ENOSPC, path="*/blobs*", times=None),
    "no space": lambda disk: disk.fill(leaving=len(BODY) - 1),
    "no space that shows when it is written": lambda disk: disk.fail(
        "write", errno.ENOSPC, path="*/blobs/*", times=None
    ),
    "over quota when it is written": lambda disk: disk.fail("write", errno.EDQUOT, path="*/blobs/*", times=None),
    "larger than files may be": lambda disk: disk.fail("write", errno.EFBIG, path="*/blobs/*", times=None),
}


@pytest.mark.parametrize("harm", NO_PLACE.values(), ids=NO_PLACE)
def test_a_body_that_has_no_place_is_refused_and_all_others_go_on(harm: Callable[[CrashDisk], None]) -> None:
    """J11: nothing of it was written, so there is nothing to stop for."""
    disk = CrashDisk()
    log = open_small(disk)
    log.append(entry(0))
    harm(disk)
    with pytest.raises(BlobRefused, match=r"no place for 1100002 bytes of session .* then try again") as caught:
        log.append(opening(1))
    assert caught.value.size == len(BODY) and log.last == 1
    assert temporaries(disk) == []
    log.append(entry(2))
    log.sync()
    assert not log.degraded
    disk.heal()
    disk.capacity = None
    log.append(opening(1))
    log.sync()
    assert ids_of(open_small(disk.crash(Fate.DROPPED))) == ["e0", "e2", "e1"]


def test_a_body_of_work_that_runs_may_take_the_reserve_and_no_more() -> None:
    """J11"""
    disk = CrashDisk()
    log = open_small(disk)
    log.append(entry(0))
    log.sync()
    disk.fill(leaving=100)
    log.append(entry(1, body=BODY))
    log.sync()
    assert log.degraded and log.durable == 2
    # No `JournalFull`: that is for what somebody could put off.
    with pytest.raises(JournalError, match="no place for") as caught:
        log.append(entry(2, body=b'"%b"' % (b"D" * RESERVE_BYTES)))
    assert not isinstance(caught.value, BlobRefused) and log.refusal is None
    log.append(entry(3))
    log.sync()
    assert ids_of(open_small(disk.crash(Fate.DROPPED))) == ["e0", "e1", "e3"]


def test_a_body_of_work_that_runs_has_the_reserve_where_the_disk_says_only_then_that_it_is_full() -> None:
    """J11: a quota shows in no figure of the disk."""
    disk = CrashDisk()
    log = open_small(disk)
    disk.fail("write", errno.EDQUOT, path="*/blobs/*")
    log.append(entry(0, body=BODY))
    log.sync()
    assert log.degraded and log.durable == 1
    disk.fail("write", errno.EDQUOT, path="*/blobs/*", times=None)
    with pytest.raises(JournalError, match="no place for") as caught:
        log.append(entry(1, body=OTHER))
    assert not isinstance(caught.value, BlobRefused) and log.refusal is None
    log.append(entry(2))
    log.sync()
    assert ids_of(open_small(disk.crash(Fate.DROPPED))) == ["e0", "e2"]


def test_bodies_that_are_the_same_are_one_blob_however_their_records_are_written() -> None:
    """J5"""
    disk = CrashDisk()
    log = open_small(disk)
    log.append(entry(0, body=BODY))
    log.append(entry(1, body=BODY))
    log.sync()
    log.append(entry(2, body=BODY))
    log.sync()
    assert ids_of(open_small(disk.crash(Fate.DROPPED))) == ["e0", "e1", "e2"]


def test_a_sync_of_a_body_that_fails_stops_the_journal() -> None:
    """J11: never tried again."""
    disk = CrashDisk()
    log = open_small(disk)
    log.append(entry(0))
    log.sync()
    log.append(entry(1, body=BODY))
    disk.fail("sync", errno.ENOSPC, path="*/blobs/*")
    with pytest.raises(JournalError, match="could not be written"):
        log.sync()
    assert log.refusal is not None
    log.abandon()
    again = open_small(disk.crash(Fate.DROPPED))
    assert ids_of(again) == ["e0"] and temporaries(again.disk) == []
