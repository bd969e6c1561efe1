"""The line that is being typed: keys in, lines out."""

from __future__ import annotations

import sys
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trouper.cli.line_editor import LINE_MAX, Key, LineEditor, Paste, Typed


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


@pytest.mark.parametrize("pasted", [False, True], ids=["typed", "pasted"])
def test_what_is_written_with_other_spaces_joiners_or_new_characters_is_taken_as_it_is(pasted: bool) -> None:
    """Command line: spaces that are not the key's were left out, and the words on both sides were one."""
    for text in (
        "\u6771\u4eac\u3000\u5927\u962a",  # Tokyo and Osaka, with the space of their script
        "10\u00a0000 \u20ac",
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # Persian
        "\U0001f469\u200d\U0001f467",
        "\U0001fae8 \U0001fadf \ue0b0",  # Younger than some Pythons, and nobody's
        "e\u0301\ufe0f",
    ):
        keys = f"\x1b[200~{text}\x1b[201~" if pasted else text
        assert typed(keys.encode())[0].text == text
    hidden = "a\u202eb\u2066c\u200bd\ufeffe\u2028f\U000e0041g\x9bh\x00i"
    assert typed(hidden.encode())[0].text == "abcdefghi"


def test_ctrl_d_ends_the_input_on_an_empty_line_only() -> None:
    assert typed(b"\x04")[1] == [Key.END]
    editor, actions = typed(b"ab\x1b[D\x04")
    assert actions == [] and editor.text == "a"


def test_history_comes_back_and_what_was_begun_too() -> None:
    editor, _ = typed(b"first\r", b"second\r", b"thi\x1b[A\x1b[A")
    assert editor.text == "first"
    editor.feed(b"\x1b[B\x1b[B")
    assert editor.text == "thi"


def test_a_line_that_is_to_be_forgotten_does_not_come_back() -> None:
    editor, _ = typed(b"first\r", b"hush\r", b"thi\x1b[A")
    editor.forget("hush")
    editor.feed(b"\x1b[B\x1b[A")
    assert editor.text == "first"


def test_pasted_lines_are_text_until_enter() -> None:
    editor, actions = typed(b"\x1b[200~one\r\ntwo\x1b[201~")
    assert actions == [] and editor.text == "one\ntwo"
    assert editor.feed(b"\r") == [Typed("one\ntwo")]


def test_what_is_pasted_shows_as_it_comes_and_its_end_may_come_in_pieces() -> None:
    editor, _ = typed(b"\x1b[200~one\r")
    assert editor.text == "one" and editor.paste is Paste.COMING
    for piece, text in ((b"\ntwo\r", "one\ntwo"), (b"three\x1b[2", "one\ntwo\nthree"), (b"0x", "one\ntwo\nthree[20x")):
        assert editor.feed(piece) == [] and editor.text == text
    assert editor.feed(b"\x1b[20") == editor.feed(b"1~") == [] and editor.paste is Paste.NONE
    assert editor.feed(b"\r") == [Typed("one\ntwo\nthree[20x")]


def test_a_paste_whose_end_is_taken_for_granted_is_kept_and_keys_are_keys_again() -> None:
    editor, _ = typed(b"\x1b[200~one", b"two\r")
    editor.end_paste()
    assert editor.text == "onetwo\n"
    assert editor.feed(b"\x7f\x7f!\r") == [Typed("onetw!")]
    editor.feed(b"typed\x1b")
    editor.end_paste()  # Nothing was pasted: half a key stays half a key.
    assert editor.feed(b"[D\r") == [Typed("typed")]


@pytest.mark.parametrize("begin", [b"\x1b[200~", b""], ids=["a paste without an end", "no marks"])
def test_no_more_is_kept_than_a_line_holds_and_what_is_left_out_is_told_once(begin: bytes) -> None:
    """Loops and queues are bounded, and nothing is lost without a word."""
    editor = LineEditor()
    editor.feed(begin)
    piece = b"x" * 100_000
    told = [action for _ in range(30) for action in editor.feed(piece)]
    assert told == [Key.FULL]
    assert len(editor.text) == LINE_MAX and len(editor._waiting) < 100
    editor.end_paste()
    editor.feed(b"\x7f")
    assert editor.feed(b"yz\r") == [Key.FULL, Typed("x" * (LINE_MAX - 1) + "y")]


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


@pytest.mark.parametrize("begun", [b"\x1b", b"\x1b[", b"\x1bO", b"\x1b[1;", b"\x1b[" + b"1;" * 40], ids=repr)
def test_a_sequence_that_is_begun_and_never_ended_takes_no_key_with_it(begun: bytes) -> None:
    """Somebody presses Escape, or Alt with a bracket, and then what they meant to."""
    assert typed(b"hello", begun, b"\r")[1] == [Typed("hello")]
    assert typed(b"helo", begun, b"\x1b[D", b"l\r")[1] == [Typed("hello")]
    assert typed(b"hello", begun + b"\x15", b"\x04")[1] == [Key.END]


@given(st.lists(st.binary(max_size=12), max_size=20))
def test_no_bytes_break_it(pieces: list[bytes]) -> None:
    editor, _ = typed(*pieces)
    assert 0 <= editor.cursor <= len(editor.text)
    assert "\x1b" not in editor.text
