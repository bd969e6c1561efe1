"""What reaches a terminal: no escape, control or bidi character, whatever a model, a tool or a file says (security, tool results)."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trouper.cli.terminal import Terminal, clean, clean_line, in_full, plural, size_of, when

ATTACKS = {
    "\x1b[31mred\x1b[0m": "red",
    "\x1b]52;c;aGVsbG8=\x07after": "after",
    "\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\": "link",
    "\x9b31mred": "red",
    "a\x08\x08b": "ab",
    "one\r\ntwo\rthree": "one\ntwothree",
    "\u202eevil\u202c \u2066x\u2069": "evil x",
    "zero\u200bwidth\ufeff": "zerowidth",
    "\x1bPq#0;2;0;0;0\x1b\\sixel": "sixel",
    "\ud800": "\ufffd",
    "plain\ttext\n": "plain\ttext\n",
}


def test_attacks_leave_only_their_text() -> None:
    for attack, left in ATTACKS.items():
        assert clean(attack) == left, repr(attack)


@given(st.text(), st.text(alphabet="\x1b[]0;mP\\\x07\x9b\x9d\x90abc\r\n\u202e"))
def test_nothing_that_drives_a_terminal_is_left(before: str, attack: str) -> None:
    for shown in (clean(before + attack), clean_line(before + attack)):
        assert not any(c < " " and c not in "\n\t" for c in shown)
        assert not any("\x7f" <= c <= "\x9f" or c in "\u202e\u2066\u200f" for c in shown)
        assert clean(shown) == shown
    assert "\n" not in clean_line(before + attack)


@pytest.mark.timeout(10)
def test_sequences_that_begin_and_never_end_are_gone_at_once() -> None:
    """Command line: if an end of each is looked for in the 4,096 characters behind it, these take minutes."""
    assert clean("\x9d" * 6_000_000 + "text") == "text"


def test_a_line_is_cut_to_its_limit() -> None:
    assert clean_line("a  b\nc", 4) == "a b…"
    assert clean_line("abcd", 4) == "abcd"


def test_tables_line_up_and_colours_stay_out_of_pipes() -> None:
    stream = io.StringIO()
    out = Terminal(stream)
    out.table(("NAME", "N", "ABOUT"), [("a", 1, "x\x1b[31m"), ("long name", 22, "y")])
    assert out.style("x", "red") == "x"
    assert stream.getvalue() == "NAME       N   ABOUT\na          1   x\nlong name  22  y\n"


class Narrow(Terminal):
    width = 40


def test_columns_are_those_of_the_terminal_also_for_characters_that_take_two_or_none() -> None:
    """Command line: what follows such a cell stood elsewhere in each row, and the rest of a row in the next."""
    stream = io.StringIO()
    said = ["日本語のとても長いテキスト", "cafe\u0301", "👍🏽 fine", "plain and long enough to be cut off"]
    rows = [("main", f"{number}/9 個" if number % 2 else "-", text) for number, text in enumerate(said)]
    Narrow(stream).table(("SESSION", "FAR", "ABOUT"), rows)
    assert stream.getvalue().splitlines() == [
        "SESSION  FAR     ABOUT",
        "main     -       日本語のとても長いテキ…",
        "main     1/9 個  cafe\u0301",
        "main     -       👍🏽 fine",
        "main     3/9 個  plain and long enough…",
    ]


def test_what_somebody_answers_for_is_shown_in_full() -> None:
    """T4, security, tool results: every character stands there, as itself or as its code, on one line; in a table, too."""
    tricks = {
        "rm -rf ~ #\recho harmless": '"rm -rf ~ #\\recho harmless"',
        "a\n  ? b": '"a\\n  ? b"',
        "gnp.\u202eexe": '"gnp.\\u202eexe"',
        "a\u200bb\u3164c\ufe0fd": '"a\\u200bb\\u3164c\\ufe0fd"',
        "a\u180bb\U000e0100c": '"a\\u180bb\\udb40\\udd00c"',
        "\x1b[2J\x9b1m": '"\\u001b[2J\\u009b1m"',
        "\U000e0041": '"\\udb40\\udc41"',
        "Köln  東京": '"Köln  東京"',
    }
    for said, shown in tricks.items():
        assert in_full(said) == shown
    assert in_full({"argv": ["rm", "-rf"], "in": None}) == '{"argv":["rm","-rf"],"in":null}'
    stream = io.StringIO()
    Terminal(stream).table(("A", "B"), [("x", in_full("two  blanks" + "y" * 300))], cut=False)
    assert stream.getvalue() == f'A  B\nx  "two  blanks{"y" * 300}"\n'


@given(st.text())
def test_nothing_that_is_shown_in_full_is_lost_or_drives_a_terminal(said: str) -> None:
    shown = in_full(said)
    assert shown.isprintable() and clean(shown) == shown
    assert json.loads(shown) == said


def test_small_words() -> None:
    assert (plural(1, "record"), plural(0, "record")) == ("1 record", "0 records")
    assert [size_of(n) for n in (12, 9_900, 84_800_000_000)] == ["12 B", "9.9 kB", "84.8 GB"]


def test_a_moment_says_that_it_is_in_utc() -> None:
    """It looked like the time of the clock on the wall, and was hours away from it."""
    assert when(1_775_000_000.9) == "2026-03-31 23:33:20Z" and when(None) == "-"


def test_a_moment_that_is_further_off_than_calendars_go_has_a_word_too() -> None:
    """`Limits.approval_s` may be any finite number, and `trouper approvals` ended as a bug of Trouper's where a call was waiting for so long."""
    assert (when(253_402_300_799.5), when(1e12), when(1e300)) == ("never", "never", "never")
    assert when(253_402_300_799.0) == "9999-12-31 23:59:59Z"
