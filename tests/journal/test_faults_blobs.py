"""Bodies in blobs: lost, changed, or cut off by a crash (J5)."""

from __future__ import annotations

import hashlib
import json

import pytest
from journal_workload import ROOT, entry, ids_of, open_small, temporaries

from trouper.journal import JournalDamaged, verify
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
