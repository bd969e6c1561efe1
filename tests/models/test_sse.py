"""M2: server-sent events over bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trouper.models._errors import ModelFault
from trouper.models.sse import ServerEvent, SseReader


def read(*pieces: bytes, end: bool = False) -> list[bytes]:
    reader = SseReader()
    events = [event for piece in pieces for event in reader.feed(piece)]
    return [event.data for event in (*events, *(reader.finish() if end else ()))]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_each_of_the_three_line_ends_ends_a_line(newline: bytes) -> None:
    """M2."""
    stream = newline.join([b"data: one", b"", b"data: two", b"data: more", b"", b""])
    assert read(stream) == [b"one", b"two\nmore"]


def test_other_line_separators_are_text() -> None:
    """M2: U+2028, U+2029, U+0085, VT and FF end a line for `str.splitlines`, and for no server."""
    text = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg".encode()
    assert read(b"data: " + text + b"\n\n") == [text]


def test_a_byte_order_mark_is_skipped_even_when_split() -> None:
    """M2."""
    assert read(b"\xef", b"\xbb", b"\xbfdata: x\n\n") == [b"x"]
    assert read(b"\xef\xbb\xbfdata: x\n\n") == [b"x"]


def test_a_byte_order_mark_later_on_is_text() -> None:
    assert read(b"data: \xef\xbb\xbfx\n\n") == [b"\xef\xbb\xbfx"]


def test_comments_are_counted_and_otherwise_ignored() -> None:
    """L12: comments are keep-alives, not events."""
    reader = SseReader()
    assert reader.feed(b": hello\n\n:\n\ndata: x\n: within\ndata: y\n\n") == [ServerEvent(b"x\ny")]
    assert reader.comments == 3


def test_fields_are_read_as_the_standard_says() -> None:
    events = SseReader().feed(
        b"event: ping\nid: 7\nretry: 10\ndata:no space\ndata:  two\ndata\nunknown: z\n\ndata: next\n\n"
    )
    assert events == [ServerEvent(b"no space\n two\n", "ping"), ServerEvent(b"next", "")]


@pytest.mark.parametrize("end", [b"\n", b"\n\n", b""])
@pytest.mark.parametrize("error", [b'{"error": 1}', b'{\n  "error": {\n    "message": "data: x"\n  }\n}'])
def test_an_object_in_the_place_of_an_event_is_one(error: bytes, end: bytes) -> None:
    """L14: so Gemini says why it stops in mid-stream. What begins like one within an event is none."""
    assert read(b"data: 1\n\n: hm\n\n" + error + end, end=True) == [b"1", error]
    assert read(b'data: 1\n{"a": 2}\n\n{"b": 3}\ndata: 4\n\ndata: 5\n\n') == [b"1", b"4", b"5"]


def test_an_error_may_be_a_field_of_its_own() -> None:
    """L14: so llama.cpp says why it stops in mid-stream."""
    assert SseReader().feed(b'data: 1\n\nerror: {"code": 500}\n\ndata: 2\n\n') == [
        ServerEvent(b"1"),
        ServerEvent(b'{"code": 500}', "error"),
        ServerEvent(b"2"),
    ]


def test_an_event_without_data_is_none() -> None:
    assert read(b"event: x\n\n\n\ndata: y\n\n") == [b"y"]


def test_an_event_ended_by_cr_alone_does_not_wait_for_more() -> None:
    """A lone CR may be half of CRLF, but whoever waits for the LF waits for the next event."""
    reader = SseReader()
    assert reader.feed(b"data: x\r\r") == [ServerEvent(b"x")]
    assert reader.feed(b"\ndata: y\r\n\r\n") == [ServerEvent(b"y")]


def test_the_last_event_may_lack_its_blank_line() -> None:
    assert read(b"data: x\n\ndata: y", end=True) == [b"x", b"y"]
    assert read(b"data: x\n\n", end=True) == [b"x"]


def test_a_giant_event_is_refused_before_memory_is() -> None:
    """M2, and the response bombs of the security page: the cap holds for one long line and for many short ones."""
    for begun, piece in (
        (b"data: ", b"x" * 1000),
        (b"data: ", b"data: " + b"x" * 1000 + b"\n"),
        (b"{\n", b"x" * 1000 + b"\n"),
    ):
        reader = SseReader(event_bytes_max=10_000)
        reader.feed(begun)
        with pytest.raises(ModelFault, match="10,000 bytes"):
            for _ in range(20):
                reader.feed(piece)


def test_a_large_event_in_small_pieces_costs_linear_time() -> None:
    """Joined once, not once a piece: a million pieces of one line would otherwise be copied a million times."""
    reader = SseReader()
    reader.feed(b"data: ")
    for _ in range(200_000):
        assert reader.feed(b"0123456789") == []
    [event] = reader.feed(b"\n\n")
    assert len(event.data) == 2_000_000


@given(
    st.lists(
        st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=("Cs",)), max_size=20),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.lists(st.integers(1, 7), min_size=1, max_size=10),
    st.booleans(),
)
def test_pieces_do_not_matter(texts: list[str], newline: bytes, sizes: list[int], bom: bool) -> None:
    """M2: wherever the network cuts the stream, within a character too, the events are the same."""
    stream = (b"\xef\xbb\xbf" if bom else b"") + b"".join(b"data: " + text.encode() + newline * 2 for text in texts)
    pieces, at = [], 0
    while at < len(stream):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(stream[at : at + size])
        at += size
    assert read(*pieces) == [text.encode() for text in texts]
