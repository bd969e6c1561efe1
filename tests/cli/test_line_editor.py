"""The line that is being typed: keys in, lines out."""

from __future__ import annotations

import sys
from types import FrameType

from hypothesis import given
from hypothesis import strategies as st

from trouper.cli.line_editor import LINE_MAX, Key, LineEditor, Typed


def typed(*pieces: bytes) -> tuple[LineEditor, list[object]]:
    editor = LineEditor()
    return editor, [action for piece in pieces for action in editor.feed(piece)]


def test_a_line_ends_with_enter() -> None:
    editor, actions = typed(b"hello\rwor")
    assert actions == [Typed("hello")] and editor.text == "wor"


def test_keys_edit_the_line() -> None:
    for keys, text in (
        (b"abc\x7f", "ab"),
        (b"abc\x1b[D\x1b[DX", "aXbc"),
        (b"abc\x01X\x05Y", "XabcY"),
        (b"one two\x17", "one "),
        (b"one two\x1b[D\x1b[D\x0b", "one t"),
        (b"one two\x15", ""),
        (b"abc\x1b[H\x1b[3~", "bc"),
        (b"ab\x1b[99zc", "abc"),
        (b"a\x00\x02b", "ab"),
    ):
        assert typed(keys)[0].text == text, keys


def test_ctrl_d_ends_the_input_on_an_empty_line_only() -> None:
    assert typed(b"\x04")[1] == [Key.END]
    editor, actions = typed(b"ab\x1b[D\x04")
    assert actions == [] and editor.text == "a"


def test_history_comes_back_and_what_was_begun_too() -> None:
    editor, _ = typed(b"first\r", b"second\r", b"thi\x1b[A\x1b[A")
    assert editor.text == "first"
    editor.feed(b"\x1b[B\x1b[B")
    assert editor.text == "thi"


def test_pasted_lines_are_text_until_enter() -> None:
    editor, actions = typed(b"\x1b[200~one\r\ntwo\x1b[201~")
    assert actions == [] and editor.text == "one\ntwo"
    assert editor.feed(b"\r") == [Typed("one\ntwo")]


def test_text_is_put_into_the_line_at_once_and_not_by_the_character() -> None:
    """Command line: a paste of a megabyte, from a terminal that does not mark it, is no work for half a minute."""
    editor = LineEditor()
    copies = 0

    def called(frame: FrameType, event: str, _: object) -> None:
        nonlocal copies
        copies += event == "call" and frame.f_code is LineEditor._insert.__code__

    piece = ("wörd\t\x00" * 700).encode()
    before = sys.getprofile()
    sys.setprofile(called)
    try:
        for _ in range(300):
            editor.feed(piece)
    finally:
        sys.setprofile(before)
    assert copies == 300
    assert editor.text == ("wörd\t" * 700 * 300)[:LINE_MAX]


def test_characters_and_sequences_may_come_byte_by_byte() -> None:
    keys = "grüß 🎭\x1b[D\x1b[200~x\x1b[201~\r".encode()
    whole = typed(keys)[1]
    assert whole == typed(*[keys[i : i + 1] for i in range(len(keys))])[1] == [Typed("grüß x🎭")]


@given(st.lists(st.binary(max_size=12), max_size=20))
def test_no_bytes_break_it(pieces: list[bytes]) -> None:
    editor, _ = typed(*pieces)
    assert 0 <= editor.cursor <= len(editor.text)
    assert "\x1b" not in editor.text
