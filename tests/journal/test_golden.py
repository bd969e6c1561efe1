"""A journal of each released format, kept as files: it is read as it was, and today's code writes the same bytes (J14)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from trouper.journal import Entry, open_log, open_reader, verify

GOLDEN = Path(__file__).parent.parent / "journals" / "bytes-1"


def entry(number: int, stream: str) -> Entry:
    head = (
        f'{{"v":1,"type":"Noted","id":"{stream}:{number}:1","session":"{stream}","n":{number},"epoch":1,'
        '"at":1763265600.5'
    )
    body = json.dumps(
        {"text": "golden" * number, "escaped": "\u2028 \U0001f600", "number": number}, separators=(",", ":")
    )
    return Entry(stream, f"{stream}:{number}:1", head.encode(), body.encode())


def test_format_1_is_read_as_it_was_written(tmp_path: Path) -> None:
    root = tmp_path / "j"
    shutil.copytree(GOLDEN, root)
    records = [json.loads(record.payload) for record in open_reader(root).records()]
    wanted = [(stream, number) for stream in ("ended", "open") for number in range(6)]
    assert [(record["session"], record["n"]) for record in records] == wanted
    assert [record["body"]["text"] for record in records] == ["golden" * number for _, number in wanted]
    assert all(record["body"]["escaped"] == "\u2028 \U0001f600" for record in records)
    assert [record.seq for record in open_reader(root).records(stream="open")] == [7, 8, 9, 10, 11, 12]
    report = verify(root)
    assert report.ok
    assert report.records == 12


def test_format_1_can_be_gone_on_with(tmp_path: Path) -> None:
    root = tmp_path / "j"
    shutil.copytree(GOLDEN, root)
    log = open_log(root)
    assert log.refusal is None
    assert (log.recovery.journal, log.epoch, log.recovery.last) == ("golden", 2, 12)
    snapshot = log.snapshot()
    assert snapshot is not None
    assert (snapshot.seq, dict(snapshot.sections)) == (8, {"ended": "closed", "open": "active"})
    assert snapshot.read("open") == b'{"n":2}'
    assert log.append(entry(5, "open")) == 12
    assert log.append(entry(6, "open")) == 13
    log.close()
    assert verify(root).ok


def test_what_is_written_today_is_format_1_byte_for_byte(tmp_path: Path) -> None:
    """If this fails, the format has changed: raise its version, keep this journal, and add one of the new format."""
    root = tmp_path / "j"
    log = open_log(root, segment_bytes=900, new_id=lambda: "golden")
    for stream in ("ended", "open"):
        for number in range(6):
            log.append(entry(number, stream))
            log.sync()
    log.write_snapshot(8, [("ended", "closed", b'{"n":6}'), ("open", "active", b'{"n":2}')])
    log.abandon()
    compared = 0
    for path in [*GOLDEN.glob("segment-*.log"), *GOLDEN.glob("snapshots/*.snap")]:
        assert (root / path.relative_to(GOLDEN)).read_bytes() == path.read_bytes()
        compared += 1
    assert compared >= 3
