"""Repair: whatever the damage, a new journal that is whole, says what is missing, and holds nothing that was not written (J10)."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest
from journal_workload import ROOT, SEGMENT_BYTES, entry, open_small
from test_faults_damage import EDITS, LIVE, SEALED, journal, lines_of, without_lock

from trouper.journal import Entry, JournalError, Log, open_log, repair, verify
from trouper.journal.building import MARKER_NAME
from trouper.journal.format import is_gap
from trouper.testing import CrashDisk, Fate, PowerCut
from trouper.testing.crash_disk import Step

TARGET = "/state/repaired"
SITE = TARGET + ".tmp"
MARKER = f"{SITE}/{MARKER_NAME}"
Damaging = Callable[[CrashDisk], None]


def originals(disk: CrashDisk) -> dict[int, bytes]:
    return {record.seq: record.payload for record in open_small(disk.fork()).records()}


def check_repaired(disk: CrashDisk, written: dict[int, bytes], *, lost_at_most: int) -> set[int]:
    """Repair, and compare: each record is the one that was written at its place, each one that is not there lies in a gap."""
    before = without_lock(disk)
    done = repair(ROOT, TARGET, disk=disk, segment_bytes=SEGMENT_BYTES)
    after = without_lock(disk)
    assert {path: content for path, content in after.items() if not path.startswith(TARGET)} == before
    assert disk.open_files == ()
    assert not verify(TARGET, disk=disk).damage
    log = open_log(TARGET, disk=disk, segment_bytes=SEGMENT_BYTES)
    assert log.refusal is None
    missing: set[int] = set()
    last = 0
    for record in log.records():
        if is_gap(record.payload):
            body = json.loads(record.payload)["body"]
            assert body["first"] == last + 1
            assert body["last"] == record.seq
            assert body["reason"]
            assert body["file"]
            missing |= set(range(body["first"], body["last"] + 1))
        else:
            assert record.seq == last + 1, "records went missing without a gap"
            assert record.payload == written.get(record.seq), f"record {record.seq} was never written so"
        last = record.seq
    lost = set(written) - set(range(1, last + 1)) | (missing & set(written))
    assert len(lost) <= lost_at_most, f"{len(lost)} records were lost: {sorted(lost)}"
    assert done.last == last
    assert done.gaps or not lost
    log.append(entry(5000))
    log.sync()
    assert [record.seq for record in log.records(after=last)] == [last + 1]
    log.close()
    return lost


@pytest.mark.parametrize("path", [LIVE, SEALED], ids=["live", "sealed"])
@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edited_segment_costs_no_more_than_the_lines_that_were_touched(
    edit: Callable[[list[bytes]], list[bytes]], path: str
) -> None:
    disk, _ = journal()
    written = originals(disk)
    disk.write_bytes(path, b"".join(edit(lines_of(disk, path))))
    check_repaired(disk, written, lost_at_most=3)


@pytest.mark.parametrize("path", [LIVE, SEALED], ids=["live", "sealed"])
def test_a_flipped_bit_costs_one_record_or_two(path: str) -> None:
    disk, _ = journal()
    written = originals(disk)
    data = disk.read_bytes(path)
    draw = random.Random(path)
    for _ in range(60):
        flipped = disk.fork()
        # Not in the last line: in the live segment that would be a torn tail, which is no damage.
        at = draw.randrange(len(lines_of(disk, path)[0]), len(data) - len(lines_of(disk, path)[-1]))
        changed = bytearray(data)
        changed[at] ^= 1 << draw.randrange(8)
        flipped.write_bytes(path, bytes(changed))
        check_repaired(flipped, written, lost_at_most=3)


@pytest.mark.parametrize("bit", [1, 0x80], ids=["a letter", "no letter"])
@pytest.mark.parametrize("path", [LIVE, SEALED], ids=["live", "sealed"])
def test_flipped_bits_in_neighbouring_records_are_taken_for_neither(path: str, bit: int) -> None:
    """J10: a record behind a bad one is held against the checksum that the bad one still carries, not taken on trust."""
    disk, _ = journal()
    written = originals(disk)
    lines = lines_of(disk, path)
    for index in (4, 5, 8, 9, 10):
        line = bytearray(lines[index])
        line[line.index(b"yyyy")] ^= bit
        lines[index] = bytes(line)
    disk.write_bytes(path, b"".join(lines))
    assert len(check_repaired(disk, written, lost_at_most=5)) == 5


def test_a_record_whose_checksum_alone_is_wrong_costs_no_other() -> None:
    """J10"""
    disk, _ = journal()
    written = originals(disk)
    lines = lines_of(disk, SEALED)
    number, size, checksum, payload = lines[5].split(b" ", 3)
    lines[5] = b" ".join((number, size, b"%08x" % (int(checksum.rstrip(b"+"), 16) ^ 16), payload))
    disk.write_bytes(SEALED, b"".join(lines))
    assert len(check_repaired(disk, written, lost_at_most=1)) == 1


def test_a_last_segment_that_holds_something_else_ends_in_a_gap() -> None:
    """J10: nobody can say how many records it held, but that some are gone is said."""
    disk, _ = journal()
    disk.write_bytes(LIVE, disk.read_bytes(f"{ROOT}/segment-00000003.log"))
    done = repair(ROOT, TARGET, disk=disk)
    assert [gap.open_end for gap in done.gaps if gap.last >= gap.first] == [True]
    records = list(open_log(TARGET, disk=disk).records())
    assert [is_gap(record.payload) for record in records] == [False] * (len(records) - 1) + [True]


def damage_nul_run(disk: CrashDisk) -> None:
    data = bytearray(disk.read_bytes(SEALED))
    data[900:1300] = bytes(400)
    disk.write_bytes(SEALED, bytes(data))


def damage_missing(disk: CrashDisk) -> None:
    disk.unlink(SEALED)


def damage_header(disk: CrashDisk) -> None:
    disk.write_bytes(SEALED, b"x" + disk.read_bytes(SEALED)[1:])


def damage_swapped(disk: CrashDisk) -> None:
    third = f"{ROOT}/segment-00000003.log"
    kept = disk.read_bytes(SEALED), disk.read_bytes(third)
    disk.write_bytes(third, kept[0])
    disk.write_bytes(SEALED, kept[1])


def damage_cut(disk: CrashDisk) -> None:
    disk.write_bytes(SEALED, b"".join(lines_of(disk, SEALED)[:10]))


def damage_empty(disk: CrashDisk) -> None:
    disk.write_bytes(SEALED, b"")


def damage_first(disk: CrashDisk) -> None:
    disk.unlink(f"{ROOT}/segment-00000001.log")


def damage_live_header(disk: CrashDisk) -> None:
    disk.write_bytes(LIVE, b"x" + disk.read_bytes(LIVE)[1:])


SEVERE: dict[str, Damaging] = {
    "nul run": damage_nul_run,
    "missing": damage_missing,
    "header": damage_header,
    "cut": damage_cut,
    "empty": damage_empty,
    "first missing": damage_first,
    "header of the live one": damage_live_header,
}


@pytest.mark.parametrize("damaging", SEVERE.values(), ids=SEVERE)
def test_a_lost_segment_costs_that_segment(damaging: Damaging) -> None:
    disk, _ = journal()
    written = originals(disk)
    damaging(disk)
    lost = check_repaired(disk, written, lost_at_most=50)
    # A header says nothing that the footer, the lines and the neighbours do not say as well.
    assert bool(lost) is (damaging not in (damage_header, damage_live_header))


def test_segments_that_changed_places_are_put_in_order_or_given_up() -> None:
    disk, _ = journal()
    written = originals(disk)
    damage_swapped(disk)
    check_repaired(disk, written, lost_at_most=50)


def test_a_segment_of_another_journal_is_not_taken_over() -> None:
    """Its records are well formed and chained, and none of ours."""
    disk, _ = journal()
    written = originals(disk)
    other = CrashDisk()
    log = open_small(other)
    for number in range(80):
        log.append(entry(number, id=f"foreign{number}", body=json.dumps({"n": number, "pad": "y" * 53}).encode()))
        log.sync()
    log.abandon()
    disk.write_bytes(SEALED, other.read_bytes(SEALED))
    check_repaired(disk, written, lost_at_most=50)


def test_a_blob_that_is_gone_becomes_a_gap() -> None:
    disk = CrashDisk()
    log = open_small(disk)
    log.append(entry(0))
    log.append(Entry("s", "big", b'{"v":1,"type":"noted","id":"big","session":"s"', b'"%b"' % (b"B" * 1_100_000)))
    log.append(entry(2))
    log.sync()
    log.close()
    written = originals(disk)
    whole = disk.fork()
    assert check_repaired(whole, written, lost_at_most=0) == set()
    blob = next(path for path, content in disk.tree().items() if "/blobs/" in path and content)
    disk.unlink(blob)
    assert check_repaired(disk, written, lost_at_most=1) == {2}


def test_a_crash_at_every_step_of_a_repair_leaves_no_half_journal() -> None:
    disk, _ = journal()
    written = originals(disk)
    damage_nul_run(disk)
    steps = disk.fork()
    repair(ROOT, TARGET, disk=steps, segment_bytes=SEGMENT_BYTES)
    for step in range(1, steps.steps + 1):
        cut = disk.fork()
        cut.cut_power_before(step)
        with pytest.raises(PowerCut):
            repair(ROOT, TARGET, disk=cut, segment_bytes=SEGMENT_BYTES)
        for seed in range(4):
            after = cut.crash(seed=seed)
            if after.exists(TARGET):
                assert not verify(TARGET, disk=after).damage
                assert len(list(Log.records(open_log(TARGET, disk=after, read_only=True)))) > 70
            elif after.exists(SITE) and not after.exists(MARKER):
                assert after.list_dir(SITE) == []  # So young that nothing tells whose it is.
                with pytest.raises(JournalError, match="remove"):
                    repair(ROOT, TARGET, disk=after)
            else:
                assert repair(ROOT, TARGET, disk=after).records > 70
                assert not after.exists(SITE)
    final = steps.crash(Fate.DROPPED)
    assert final.exists(TARGET)
    assert {record.seq for record in open_log(TARGET, disk=final).records()} <= set(written)


def test_what_a_killed_repair_has_left_is_taken_away_by_the_next() -> None:
    """J10, I21: wherever it was killed; it stood in the way until somebody removed it by hand."""
    disk, _ = journal()
    damage_nul_run(disk)
    whole = disk.fork()
    left: list[CrashDisk] = []
    whole.watch(lambda step: left.append(whole.fork()))
    repair(ROOT, TARGET, disk=whole, segment_bytes=SEGMENT_BYTES)
    whole.watch(None)
    left = [killed for killed in left if killed.exists(MARKER) and not killed.exists(TARGET)]
    assert len(left) > 20
    for killed in left:
        repair(ROOT, TARGET, disk=killed, segment_bytes=SEGMENT_BYTES)
        assert killed.tree().keys() == whole.tree().keys()


@pytest.mark.parametrize("leaving", [0, 40, 3_000, 9_000])
def test_a_repair_that_finds_the_disk_full_leaves_nothing_behind(leaving: int) -> None:
    """J11, I21: no half journal, with its blobs, that takes the room which is missing and stands in the way of the next try."""
    disk, _ = journal()
    damage_nul_run(disk)
    before = disk.tree()
    disk.fill(leaving=leaving)
    with pytest.raises(JournalError, match="No space left"):
        repair(ROOT, TARGET, disk=disk, segment_bytes=SEGMENT_BYTES)
    assert disk.tree() == before and not disk.open_files
    disk.capacity = None
    assert repair(ROOT, TARGET, disk=disk, segment_bytes=SEGMENT_BYTES).records > 70


def test_a_repair_that_is_interrupted_leaves_nothing_behind() -> None:
    """I21: a Ctrl-C is one way to end it."""
    disk, _ = journal()
    before = disk.tree()
    seen: list[str] = []

    def press(step: Step) -> None:
        seen.append(step.operation)
        if seen.count("sync") == 3 and step.operation == "sync":
            raise KeyboardInterrupt

    disk.watch(press)
    with pytest.raises(KeyboardInterrupt):
        repair(ROOT, TARGET, disk=disk, segment_bytes=SEGMENT_BYTES)
    assert disk.tree() == before and not disk.open_files


def test_a_target_that_exists_is_never_written_to() -> None:
    disk, _ = journal()
    disk.make_dirs(TARGET)
    disk.write_bytes(f"{TARGET}/mine", b"x")
    before = disk.tree()
    with pytest.raises(JournalError, match="another") as caught:
        repair(ROOT, TARGET, disk=disk)
    assert repr(TARGET) in str(caught.value)
    assert disk.tree() == before


def test_a_journal_without_damage_is_copied_whole() -> None:
    disk, _ = journal()
    assert check_repaired(disk, originals(disk), lost_at_most=0) == set()
