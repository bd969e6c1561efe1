"""Files that were changed behind the journal's back: each change is named, or was a torn tail; none is skipped in silence (J10)."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest
from journal_workload import ROOT, entry, ids_of, open_small

from trouper.journal import JournalDamaged, JournalError, verify
from trouper.journal.log import Log
from trouper.testing import CrashDisk

LIVE = f"{ROOT}/segment-00000004.log"
SEALED = f"{ROOT}/segment-00000002.log"


def journal(records: int = 80, *, root: str = ROOT) -> tuple[CrashDisk, list[str]]:
    """Three sealed segments and a live one, as a killed process leaves them; each record was synced by itself."""
    disk = CrashDisk()
    log = open_small(disk, root)
    names = []
    for number in range(records):
        log.append(entry(number, stream=f"s{number % 2}", body=json.dumps({"n": number, "pad": "y" * 60}).encode()))
        log.sync()
        names.append(f"e{number}")
    log.abandon()
    assert disk.list_dir(root)[-1] == "segment-00000004.log"
    return disk, names


def lines_of(disk: CrashDisk, path: str) -> list[bytes]:
    return disk.read_bytes(path).splitlines(keepends=True)


def without_lock(disk: CrashDisk) -> dict[str, bytes | None]:
    return {path: content for path, content in disk.tree().items() if not path.endswith("/lock")}


def read_until_damage(log: Log) -> tuple[list[str], JournalDamaged | None]:
    found: list[str] = []
    try:
        for record in log.records():
            found.append(json.loads(record.payload)["id"])
    except JournalDamaged as error:
        return found, error
    return found, None


def check_refused(disk: CrashDisk, names: list[str], *, file: str, mentions: str = "") -> JournalDamaged:
    """J10: read-only, with file, offset and sessions named; nothing on the disk is changed; what can be read is right."""
    before = without_lock(disk)
    log = open_small(disk)
    assert isinstance(log.refusal, JournalDamaged)
    error = log.refusal
    assert error.facts["file"] == file
    assert mentions in str(error)
    assert "repair" in str(error)  # The remedy.
    assert repr(ROOT) in str(error)
    with pytest.raises(JournalDamaged):
        log.append(entry(999))
    found, damage = read_until_damage(log)
    assert found == names[: len(found)]
    assert damage is not None
    log.close()
    assert without_lock(disk) == before
    assert disk.open_files == ()
    return error


def test_a_tail_cut_at_every_byte_keeps_the_whole_records_before_it() -> None:
    """J10: the torn bytes are kept aside, dropped, and recovery says so; then the log goes on."""
    disk, names = journal(70)
    data = disk.read_bytes(LIVE)
    lines = lines_of(disk, LIVE)
    header = len(lines[0])
    first = len(names) - (len(lines) - 1)
    for cut in range(header, len(data)):
        torn = disk.fork()
        torn.write_bytes(LIVE, data[:cut])
        log = open_small(torn)
        assert log.refusal is None, f"cut at byte {cut}: {log.refusal}"
        whole = data[header:cut].count(b"\n")
        assert ids_of(log) == names[: first + whole]
        rest = data[:cut].rsplit(b"\n", 1)[1]
        if rest:
            assert log.recovery.torn is not None
            assert torn.read_bytes(log.recovery.torn.kept) == rest
        else:
            assert log.recovery.torn is None
        log.append(entry(1000))
        log.sync()
        assert ids_of(log) == [*names[: first + whole], "e1000"]
        log.abandon()


def test_a_header_cut_at_every_byte_is_damage() -> None:
    """A header is synced before its file has a name, so no crash cuts it."""
    disk, names = journal()
    data = disk.read_bytes(LIVE)
    for cut in range(len(lines_of(disk, LIVE)[0])):
        damaged = disk.fork()
        damaged.write_bytes(LIVE, data[:cut])
        check_refused(damaged, names, file=LIVE, mentions="header")


@pytest.mark.parametrize("size", [1, 511, 512, 4096, 100_000])
def test_a_tail_of_nul_bytes_is_torn(size: int) -> None:
    disk, names = journal()
    disk.write_bytes(LIVE, disk.read_bytes(LIVE) + bytes(size))
    log = open_small(disk)
    assert log.refusal is None
    assert ids_of(log) == names
    assert log.recovery.torn is not None
    assert log.recovery.torn.size == size
    assert disk.read_bytes(log.recovery.torn.kept) == bytes(size)


def test_garbage_behind_the_last_record_is_torn() -> None:
    draw = random.Random(5)
    for size in (1, 7, 100, 3000):
        disk, names = journal()
        disk.write_bytes(LIVE, disk.read_bytes(LIVE) + draw.randbytes(size))
        log = open_small(disk)
        assert log.refusal is None
        assert ids_of(log) == names
        assert log.recovery.torn is not None


@pytest.mark.parametrize("where", [1, 2, 5])
def test_a_run_of_nul_bytes_in_the_middle_is_damage(where: int) -> None:
    """Records that were synced are behind it: their barriers say that the bytes were once there."""
    disk, names = journal()
    lines = lines_of(disk, LIVE)
    lines[where] = bytes(len(lines[where]) - 1) + b"\n"
    disk.write_bytes(LIVE, b"".join(lines))
    error = check_refused(disk, names, file=LIVE)
    assert error.facts["offset"] == sum(map(len, lines[:where]))
    assert set(error.facts["sessions"]) >= {"s0", "s1"}


def test_nul_bytes_over_line_ends_in_the_middle_are_damage() -> None:
    disk, names = journal()
    data = bytearray(disk.read_bytes(LIVE))
    start = len(lines_of(disk, LIVE)[0]) + 200
    data[start : start + 300] = bytes(300)
    disk.write_bytes(LIVE, bytes(data))
    check_refused(disk, names, file=LIVE)


def test_a_run_of_nul_bytes_in_a_sealed_segment_is_found_by_verify_and_by_reading() -> None:
    """J10: opening trusts header, footer and length of sealed segments; nobody reads over it in silence."""
    disk, names = journal()
    data = bytearray(disk.read_bytes(SEALED))
    data[900:1000] = bytes(100)
    disk.write_bytes(SEALED, bytes(data))
    found, error = read_until_damage(open_small(disk))
    assert error is not None
    assert error.facts["file"] == SEALED
    assert found == names[: len(found)]
    assert [damage.file for damage in verify(ROOT, disk=disk).damage] == [SEALED]


def small_journal() -> tuple[CrashDisk, list[str], list[str]]:
    disk = CrashDisk()
    log = open_small(disk)
    for number in range(11):
        log.append(entry(number, stream=f"s{number % 2}", body=b'{"n":%d,"pad":"%b"}' % (number, b"z" * 500)))
        log.sync()
    log.abandon()
    segments = [f"{ROOT}/{name}" for name in disk.list_dir(ROOT) if name.startswith("segment")]
    assert len(segments) == 2
    return disk, [f"e{number}" for number in range(11)], segments


@pytest.mark.parametrize("which", [0, 1], ids=["sealed", "live"])
def test_a_flipped_bit_never_changes_a_record_in_silence(which: int) -> None:
    """Every byte of a sealed and of a live segment, one bit each: named as damage, or (at the live end) dropped as torn."""
    disk, _, segments = small_journal()
    path = segments[which]
    payloads = [record.payload for record in open_small(disk.fork()).records()]
    data = disk.read_bytes(path)
    last_line = len(data) - len(lines_of(disk, path)[-1])
    draw = random.Random(which)
    # Every byte of the first two records and of the end, where the cases differ; every third one between.
    places = sorted({*range(1500), *range(1500, len(data), 3), *range(last_line - 20, len(data))})
    for at in places:
        flipped = disk.fork()
        changed = bytearray(data)
        changed[at] ^= 1 << draw.randrange(8)
        flipped.write_bytes(path, bytes(changed))
        log = open_small(flipped)
        found: list[bytes] = []
        error: JournalError | None = log.refusal
        try:
            found.extend(record.payload for record in log.records())
        except JournalDamaged as caught:
            error = caught
        assert found == payloads[: len(found)], f"byte {at}"
        if error is None and found != payloads:
            assert which == 1, (
                f"byte {at} of a sealed segment: {len(payloads) - len(found)} records went missing in silence"
            )
            assert at >= last_line, f"byte {at}: a synced record with a barrier behind it was dropped as torn"
            assert log.recovery.torn is not None
        if error is None and found == payloads:
            # The flip is in a place that carries no record (the footer's list of streams, the trailer...): verify names it.
            assert verify(ROOT, disk=flipped).damage, f"byte {at}: the flip is seen by nobody"
        log.abandon()


Edit = Callable[[list[bytes]], list[bytes]]
EDITS: dict[str, Edit] = {
    "dropped": lambda lines: lines[:3] + lines[4:],
    "repeated": lambda lines: [*lines[:4], lines[3], *lines[4:]],
    "swapped": lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]],
    "first dropped": lambda lines: lines[:1] + lines[2:],
    "joined": lambda lines: [*lines[:3], lines[3][:-1], *lines[4:]],
    "split": lambda lines: [*lines[:3], lines[3][:40] + b"\n", lines[3][40:], *lines[4:]],
    "empty line": lambda lines: [*lines[:3], b"\n", *lines[3:]],
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_a_line_dropped_repeated_or_moved_in_the_live_segment_is_damage(edit: Edit) -> None:
    disk, names = journal()
    disk.write_bytes(LIVE, b"".join(edit(lines_of(disk, LIVE))))
    check_refused(disk, names, file=LIVE)
    assert verify(ROOT, disk=disk).damage


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_a_line_dropped_repeated_or_moved_in_a_sealed_segment_is_named(edit: Edit) -> None:
    disk, names = journal()
    disk.write_bytes(SEALED, b"".join(edit(lines_of(disk, SEALED))))
    found, error = read_until_damage(open_small(disk))
    assert found == names[: len(found)]
    assert error is not None
    assert error.facts["file"] == SEALED
    assert SEALED in {damage.file for damage in verify(ROOT, disk=disk).damage}


def test_a_repeated_last_record_is_not_read_twice() -> None:
    disk, names = journal()
    lines = lines_of(disk, LIVE)
    disk.write_bytes(LIVE, b"".join([*lines, lines[-1]]))
    found, _ = read_until_damage(open_small(disk))
    assert found == names


def test_a_sealed_segment_cut_at_each_record_boundary_is_damage() -> None:
    """Its length is checked when the journal is opened: nothing less than the footer vouches for the end."""
    disk, names = journal()
    lines = lines_of(disk, SEALED)
    for keep in range(1, len(lines)):
        cut = disk.fork()
        cut.write_bytes(SEALED, b"".join(lines[:keep]))
        check_refused(cut, names, file=SEALED)


def test_a_sealed_segment_with_bytes_behind_its_footer_is_damage() -> None:
    disk, names = journal()
    disk.write_bytes(SEALED, disk.read_bytes(SEALED) + b"x")
    check_refused(disk, names, file=SEALED)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_missing_segment_is_damage(number: int) -> None:
    disk, names = journal()
    path = f"{ROOT}/segment-{number:08d}.log"
    disk.unlink(path)
    check_refused(disk, names, file=path, mentions="missing")


def test_two_missing_segments_are_both_named() -> None:
    disk, names = journal()
    for number in (1, 2):
        disk.unlink(f"{ROOT}/segment-{number:08d}.log")
    check_refused(disk, names, file=f"{ROOT}/segment-00000001.log", mentions="1 to 2")


def test_two_segments_that_changed_places_are_damage() -> None:
    disk, names = journal()
    second, third = f"{ROOT}/segment-00000002.log", f"{ROOT}/segment-00000003.log"
    swapped = disk.read_bytes(second), disk.read_bytes(third)
    disk.write_bytes(third, swapped[0])
    disk.write_bytes(second, swapped[1])
    check_refused(disk, names, file=second)


@pytest.mark.parametrize("number", [2, 3, 4])
def test_a_segment_of_another_journal_is_damage(number: int) -> None:
    """J7: the journal's id is in every header."""
    disk, names = journal()
    other, _ = journal()
    path = f"{ROOT}/segment-{number:08d}.log"
    disk.write_bytes(path, other.read_bytes(path))
    check_refused(disk, names, file=path, mentions="another journal")


def test_an_empty_segment_file_is_damage() -> None:
    disk, names = journal()
    disk.write_bytes(SEALED, b"")
    check_refused(disk, names, file=SEALED)


def test_files_that_are_none_of_the_journals_are_left_alone() -> None:
    disk, names = journal()
    disk.write_bytes(f"{ROOT}/notes.txt", b"mine")
    disk.write_bytes(f"{ROOT}/segment-1.log", b"not a name of ours")
    log = open_small(disk)
    assert ids_of(log) == names
    assert disk.read_bytes(f"{ROOT}/notes.txt") == b"mine"
    assert disk.read_bytes(f"{ROOT}/segment-1.log") == b"not a name of ours"
