"""Repair: a new journal with every good record and an explicit gap for the rest (J10)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal_workload import entry

from trouper.cli import main
from trouper.journal import JournalExists, Log, MemoryDisk, open_log, open_reader, repair, retire, verify
from trouper.journal.format import is_gap
from trouper.testing import CrashDisk

ROOT = "/state/journal"
TARGET = "/state/repaired"


def journal(records: int = 60) -> CrashDisk:
    disk = CrashDisk()
    log = open_log(ROOT, disk=disk, segment_bytes=2000)
    for number in range(records):
        log.append(entry(number, stream=f"s{number % 3}"))
        log.sync()
    log.abandon()
    return disk


def read(disk: CrashDisk, root: str = TARGET) -> tuple[dict[int, bytes], list[dict[str, object]]]:
    """The records of a journal by sequence, and the bodies of its gaps."""
    good: dict[int, bytes] = {}
    gaps = []
    for record in open_reader(root, disk=disk).records():
        if is_gap(record.payload):
            gaps.append(json.loads(record.payload)["body"])
        else:
            good[record.seq] = record.payload
    return good, gaps


def segments(disk: CrashDisk) -> list[str]:
    return [f"{ROOT}/{name}" for name in disk.list_dir(ROOT) if name.startswith("segment")]


def test_a_whole_journal_comes_out_as_it_was() -> None:
    disk = journal()
    report = repair(ROOT, TARGET, disk=disk, segment_bytes=2000)
    assert (report.records, report.last, report.gaps) == (60, 60, ())
    assert read(disk) == read(disk, ROOT)
    assert verify(TARGET, disk=disk).ok
    log = open_log(TARGET, disk=disk)
    assert log.refusal is None
    assert log.append(entry(60)) == 61
    assert log.epoch > open_log(ROOT, disk=disk, read_only=True).epoch


def test_a_flipped_bit_costs_one_record_and_is_named() -> None:
    disk = journal()
    before, _ = read(disk, ROOT)
    path = segments(disk)[1]
    lines = disk.read_bytes(path).split(b"\n")
    lines[3] = lines[3][:-5] + bytes([lines[3][-5] ^ 1]) + lines[3][-4:]
    lost = int(lines[3].split(b" ")[0])
    disk.write_bytes(path, b"\n".join(lines))
    untouched = disk.tree()
    report = repair(ROOT, TARGET, disk=disk)
    assert {path: content for path, content in disk.tree().items() if not path.startswith(TARGET)} == untouched
    good, gaps = read(disk)
    assert good == {seq: payload for seq, payload in before.items() if seq != lost}
    assert [(gap["first"], gap["last"], gap["file"]) for gap in gaps] == [(lost, lost, path)]
    assert gaps[0]["sessions"] == ["s0", "s1", "s2"]
    assert len(report.gaps) == 1
    assert verify(TARGET, disk=disk).ok


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_missing_segment_is_one_gap(number: int) -> None:
    disk = journal()
    before, _ = read(disk, ROOT)
    path = segments(disk)[number - 1]
    held = [int(line.split(b" ")[0]) for line in disk.read_bytes(path).split(b"\n") if line[:1].isdigit()]
    disk.unlink(path)
    repair(ROOT, TARGET, disk=disk)
    good, gaps = read(disk)
    assert good == {seq: payload for seq, payload in before.items() if seq not in held}
    assert [(gap["first"], gap["last"]) for gap in gaps] == [(held[0], held[-1])]


def test_a_gap_concerns_every_stream() -> None:
    """Nobody knows whose records were lost, so that nobody reads over it in silence."""
    disk = journal()
    disk.unlink(segments(disk)[1])
    repair(ROOT, TARGET, disk=disk)
    for stream in ("s0", "s1", "s2"):
        payloads = [record.payload for record in open_reader(TARGET, disk=disk).records(stream=stream)]
        assert sum(map(is_gap, payloads)) == 1


def test_a_lost_blob_is_a_gap_and_the_others_are_copied() -> None:
    disk = CrashDisk()
    log = open_log(ROOT, disk=disk)
    bodies = [b'"%b"' % (letter * 1_100_000) for letter in (b"a", b"b")]
    for number, body in enumerate([b"1", *bodies, b"2"]):
        log.append(entry(number, body=body))
    log.close()
    blobs = [path for path, content in disk.tree().items() if content and "/blobs/" in path]
    lost = next(path for path in blobs if disk.read_bytes(path) == bodies[0])
    disk.unlink(lost)
    repair(ROOT, TARGET, disk=disk)
    good, gaps = read(disk)
    assert sorted(good) == [1, 3, 4]
    assert json.loads(good[3])["body"] == json.loads(bodies[1])
    assert [(gap["first"], gap["last"], gap["file"]) for gap in gaps] == [(2, 2, lost)]


def test_a_repaired_journal_can_be_repaired_again() -> None:
    disk = journal()
    disk.unlink(segments(disk)[1])
    repair(ROOT, TARGET, disk=disk)
    repair(TARGET, "/state/again", disk=disk)
    assert read(disk, "/state/again") == read(disk)


def test_dropped_records_are_a_gap_with_that_reason() -> None:
    disk = journal()
    retire(ROOT, lambda _: True, fate="drop", disk=disk)
    repair(ROOT, TARGET, disk=disk)
    _, gaps = read(disk)
    assert gaps
    assert {gap["reason"] for gap in gaps} == {"dropped by an explicit command"}


def test_a_last_segment_that_only_a_snapshot_remembers_is_a_gap() -> None:
    """J10: nothing is dropped in silence; a snapshot made after record 60 tells that the journal went so far."""
    disk = journal()
    log = open_log(ROOT, disk=disk, segment_bytes=2000)
    log.write_snapshot(60, [("s0", "", b"{}")])
    log.abandon()
    before, _ = read(disk, ROOT)
    for path in reversed(segments(disk)):
        held = [int(line.split(b" ")[0]) for line in disk.read_bytes(path).split(b"\n") if line[:1].isdigit()]
        disk.unlink(path)
        if held:
            break
    assert not verify(ROOT, disk=disk).ok
    report = repair(ROOT, TARGET, disk=disk)
    good, gaps = read(disk)
    assert good == {seq: payload for seq, payload in before.items() if seq < held[0]}
    assert [(gap["first"], gap["last"]) for gap in gaps] == [(held[0], 60)]
    assert "a snapshot was made after 60" in str(gaps[0]["reason"])
    assert (report.last, len(report.gaps)) == (60, 1)
    assert verify(TARGET, disk=disk).ok


def test_the_command_tells_damage_that_cost_nothing_from_lost_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """J10: a line that was put in between costs no record, and none is said to be lost."""
    log = open_log(tmp_path / "j")
    for number in range(6):
        log.append(entry(number))
        log.sync()
    log.abandon()
    path = tmp_path / "j" / "segment-00000001.log"
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:4], b"junk", *lines[4:]]))
    assert main(["journal", "repair", str(tmp_path / "j"), str(tmp_path / "new")]) == 0
    said = capsys.readouterr().out
    assert "wrote 6 records" in said
    assert "damage: after record 3, nothing known to be lost: " in said
    assert "gap" not in said
    path.write_bytes(b"\n".join([*lines[:4], b"junk", *lines[5:]]))
    assert main(["journal", "repair", str(tmp_path / "j"), str(tmp_path / "other")]) == 0
    said = capsys.readouterr().out
    assert "wrote 5 records" in said
    assert "gap: record 4: " in said


@pytest.mark.parametrize("at", [0, 20, 60, 100])
@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_flipped_bit_in_a_header_costs_no_record(which: int, at: int) -> None:
    """J10: what stands behind the header is as good as before."""
    disk = journal()
    before, _ = read(disk, ROOT)
    path = segments(disk)[which]
    data = bytearray(disk.read_bytes(path))
    data[at] ^= 1
    disk.write_bytes(path, bytes(data))
    assert [damage.file for damage in verify(ROOT, disk=disk).damage] == [path]
    report = repair(ROOT, TARGET, disk=disk)
    assert read(disk) == (before, [])
    assert [(gap.damage.file, gap.last - gap.first) for gap in report.gaps] == [(path, -1)]
    assert verify(TARGET, disk=disk).ok


def test_a_journal_of_one_segment_survives_its_header() -> None:
    disk = journal(10)
    before, _ = read(disk, ROOT)
    (path,) = segments(disk)
    disk.write_bytes(path, b"x" + disk.read_bytes(path)[1:])
    assert repair(ROOT, TARGET, disk=disk).records == 10
    assert read(disk) == (before, [])


@pytest.mark.parametrize("readable", [True, False])
def test_behind_a_lost_segment_a_bad_header_costs_a_record_at_most(readable: bool) -> None:
    """The checksum that the first record follows from stands in the lost segment, and in the header, if it can still be read there."""
    disk = journal()
    before, _ = read(disk, ROOT)
    gone, path = segments(disk)[1:3]
    disk.unlink(gone)
    lines = disk.read_bytes(path).split(b"\n")
    first = int(lines[1].split(b" ")[0])
    head = b"x" + lines[0][1:]
    disk.write_bytes(path, b"\n".join([head if readable else head.replace(b"previous", b"prev:ous"), *lines[1:]]))
    repair(ROOT, TARGET, disk=disk)
    good, gaps = read(disk)
    begin, behind = int(str(gaps[0]["first"])), first if readable else first + 1
    assert good == {seq: payload for seq, payload in before.items() if seq not in range(begin, behind)}
    assert gaps[-1]["last"] == behind - 1


def test_a_segment_of_another_journal_is_not_taken_because_its_header_is_bad() -> None:
    """Nothing of it follows from its neighbours."""
    disk = journal()
    before, _ = read(disk, ROOT)
    other = CrashDisk()
    log = open_log(ROOT, disk=other, segment_bytes=2000)
    for number in range(60):
        log.append(entry(number, id=f"x{number}"))
        log.sync()
    log.abandon()
    for path in segments(disk)[1:2]:
        disk.write_bytes(path, b"x" + other.read_bytes(path)[1:])
    repair(ROOT, TARGET, disk=disk)
    good, gaps = read(disk)
    assert len(gaps) == 1
    assert good.items() < before.items()


def test_an_emptied_segment_is_one_gap() -> None:
    disk = journal()
    before, _ = read(disk, ROOT)
    path = segments(disk)[1]
    held = [int(line.split(b" ")[0]) for line in disk.read_bytes(path).split(b"\n") if line[:1].isdigit()]
    disk.write_bytes(path, b"")
    repair(ROOT, TARGET, disk=disk)
    good, gaps = read(disk)
    assert good == {seq: payload for seq, payload in before.items() if seq not in held}
    assert [(gap["first"], gap["last"], gap["file"]) for gap in gaps] == [(held[0], held[-1], path)]


def test_a_torn_tail_is_left_out_without_a_gap() -> None:
    disk = journal()
    path = segments(disk)[-1]
    disk.write_bytes(path, disk.read_bytes(path)[:-3])
    repair(ROOT, TARGET, disk=disk)
    good, gaps = read(disk)
    assert (sorted(good), gaps) == (list(range(1, 60)), [])


def test_a_target_that_exists_is_refused(tmp_path: Path) -> None:
    open_log(tmp_path / "j").close()
    (tmp_path / "there").mkdir()
    with pytest.raises(JournalExists, match="give another"):
        repair(tmp_path / "j", tmp_path / "there")
    report = repair(tmp_path / "j", tmp_path / "new")
    assert report.target == str(tmp_path / "new")
    assert not list(tmp_path.glob("*.tmp"))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_whatever_the_damage_a_repair_invents_nothing_and_leaves_no_silence(data: st.DataObject) -> None:
    """Each record of the new journal was in the old one, at its sequence, or is named as one that nothing vouches for; each that is missing lies in a gap or
    behind the end."""
    disk = journal(40)
    before, _ = read(disk, ROOT)
    for _ in range(data.draw(st.integers(1, 3), label="harms")):
        path = data.draw(st.sampled_from(segments(disk)), label="segment")
        content = disk.read_bytes(path)
        start = data.draw(st.integers(0, max(0, len(content) - 1)), label="start")
        size = data.draw(st.integers(0, 300), label="size")
        match data.draw(st.sampled_from(["flip", "nul", "cut out", "cut off", "put in", "remove"]), label="harm"):
            case "flip" if content:
                content = content[:start] + bytes([content[start] ^ 0x10]) + content[start + 1 :]
            case "nul":
                content = content[:start] + bytes(len(content[start : start + size])) + content[start + size :]
            case "cut out":
                content = content[:start] + content[start + size :]
            case "cut off":
                content = content[:start]
            case "put in":
                content = content[:start] + data.draw(st.binary(max_size=50), label="bytes") + content[start:]
            case "remove" if len(segments(disk)) > 1:
                disk.unlink(path)
                continue
        disk.write_bytes(path, content)
    report = repair(ROOT, TARGET, disk=disk, segment_bytes=1500)
    good, gaps = read(disk)
    unverified = {gap.get("unverified") for gap in gaps}
    for seq, payload in good.items():
        assert before.get(seq) == payload or seq in unverified, f"record {seq} is not what was written"
    spans = [range(int(str(gap["first"])), int(str(gap["last"])) + 1) for gap in gaps]
    last = max([0, *good, *(span[-1] for span in spans)])
    for seq in range(1, last + 1):
        assert (seq in good) != any(seq in span for span in spans), f"record {seq}"
    assert report.last == last
    assert verify(TARGET, disk=disk).ok
    assert open_log(TARGET, disk=disk).refusal is None


def test_a_wrong_record_behind_a_line_whose_number_is_gone_is_held_against_its_checksum() -> None:
    """J10: the line before it has lost its number, but not what the next one has to follow from."""
    disk = journal(40)
    path = segments(disk)[0]
    content = disk.read_bytes(path)
    lines = content.split(b"\n")
    assert lines[1].startswith(b"1 ") and b'"noted"' in lines[2]
    lines[1] = b"!" + lines[1][1:]
    lines[2] = lines[2].replace(b'"noted"', b'"noTed"')
    disk.write_bytes(path, b"\n".join(lines))
    repair(ROOT, TARGET, disk=disk, segment_bytes=1500)
    good, gaps = read(disk)
    assert min(good) == 3 and [(gap["first"], gap["last"]) for gap in gaps] == [(1, 2)]


def test_a_memory_disk_holds_a_whole_journal() -> None:
    disk = MemoryDisk()
    log: Log = open_log(ROOT, disk=disk, level="memory", segment_bytes=800)
    for number in range(30):
        log.append(entry(number))
    log.close()
    assert verify(ROOT, disk=disk).records == 30
