"""The bytes of a segment: lines, headers, footers (J5, J7)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_workload import entry

from trouper.journal import open_log
from trouper.journal.format import (
    Footer,
    Header,
    blob_of,
    decode_trailer,
    id_of,
    parse_line,
    segment_name,
    segment_number,
    stream_of,
)


def test_a_record_is_one_line_of_sequence_length_checksum_and_json(tmp_path: Path) -> None:
    """J5."""
    log = open_log(tmp_path / "j")
    for number in range(3):
        log.append(entry(number, stream="support"))
    log.close()
    lines = (tmp_path / "j" / segment_name(1)).read_bytes().split(b"\n")
    assert [line.split(b" ")[0] for line in lines[1:4]] == [b"1", b"2", b"3"]
    for line in lines[1:4]:
        _, length, checksum, text = line.split(b" ", 3)
        assert int(length) == len(text)
        assert len(checksum.rstrip(b"+")) == 8
        assert json.loads(text)["session"] == "support"
    assert lines[0].startswith(b"#trouper-journal ")
    assert lines[4].startswith(b"#sealed ")
    assert lines[5].startswith(b"#end ")


def test_the_shell_line_of_the_docs_shows_the_records(tmp_path: Path) -> None:
    """J5: grep and cut work on a segment, and what they give is JSON line by line."""
    log = open_log(tmp_path / "j")
    for number in range(3):
        log.append(entry(number))
    log.close()
    shell = f"grep -v '^#' {tmp_path / 'j' / segment_name(1)} | cut -d' ' -f4-"
    out = subprocess.run(shell, shell=True, capture_output=True, check=True).stdout
    assert [json.loads(line)["body"] for line in out.splitlines()] == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_a_checksum_is_chained_over_the_one_before(tmp_path: Path) -> None:
    """J5: the same JSON twice has two checksums, because another record stands before it."""
    log = open_log(tmp_path / "j")
    for name in ("a", "b"):
        log.append(entry(0, id=name, body=b"1"))
    log.close()
    lines = (tmp_path / "j" / segment_name(1)).read_bytes().split(b"\n")
    first, second = parse_line(lines[1]), parse_line(lines[2])
    assert first is not None
    assert second is not None
    again = open_log(tmp_path / "other")
    again.append(entry(0, id="b", body=b"1"))
    again.close()
    alone = parse_line((tmp_path / "other" / segment_name(1)).read_bytes().split(b"\n")[1])
    assert alone is not None
    assert alone.payload == second.payload
    assert alone.checksum != second.checksum


@given(
    journal=st.text("abcdef0123456789", min_size=1, max_size=32),
    number=st.integers(1, 10**8 - 1),
    epoch=st.integers(1, 10**6),
    first=st.integers(1, 10**15),
    previous=st.integers(0, 2**32 - 1),
)
def test_a_header_survives_its_encoding(journal: str, number: int, epoch: int, first: int, previous: int) -> None:
    header = Header(journal=journal, number=number, epoch=epoch, first=first, previous=previous, level="fsync")
    assert Header.decode(header.encode()[:-1]) == header


@given(
    offset=st.integers(0, 10**12 - 1),
    streams=st.lists(st.text(max_size=20), max_size=5),
    checksum=st.integers(0, 2**32 - 1),
)
def test_a_footer_survives_its_encoding_and_is_found_from_the_end(
    offset: int, streams: list[str], checksum: int
) -> None:
    footer = Footer(records=3, first=1, last=3, checksum=checksum, streams=tuple(streams), gaps=1)
    text = footer.encode(offset)
    assert text.isascii()
    assert decode_trailer(text) == offset
    assert Footer.decode(text.split(b"\n")[0]) == footer


@given(data=st.data())
def test_a_header_with_any_byte_changed_is_no_header(data: st.DataObject) -> None:
    line = Header(journal="ab", number=1, epoch=1, first=1, previous=0, level="fsync").encode()[:-1]
    at = data.draw(st.integers(0, len(line) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte != line[at]))
    assert Header.decode(line[:at] + bytes([byte]) + line[at + 1 :]) is None


def test_stream_and_id_come_from_the_head_alone() -> None:
    payload = b'{"v":1,"id":"e1","session":"mine","body":{"session":"another","id":"x"}}'
    assert (stream_of(payload), id_of(payload)) == ("mine", "e1")
    without = b'{"v":1,"body":{"session":"another","id":"x"}}'
    assert (stream_of(without), id_of(without)) == ("", "")


@pytest.mark.parametrize(
    "payload",
    [
        b'{"v":1,"body":5}',
        b'{"v":1,"body":{"blob":"%b","size":5}}' % (b"a" * 64),
        b'{"v":1,"body":",\\"blob\\":\\"%b\\",\\"size\\":5"}' % (b"a" * 64),
    ],
)
def test_a_body_that_looks_like_a_blob_is_none(payload: bytes) -> None:
    assert blob_of(payload) is None


def test_only_whole_names_are_segments() -> None:
    assert segment_number(segment_name(7)) == 7
    for name in ("segment-7.log", "segment-00000007.log.tmp", "segment-00000007.stub", "xsegment-00000007.log"):
        assert segment_number(name) is None
