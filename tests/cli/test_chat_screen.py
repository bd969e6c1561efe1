"""What a chat draws: rows that fit the terminal, at a cost that grows with the text and no faster."""

from __future__ import annotations

from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from trouper.cli.chat_screen import TerminalScreen
from trouper.cli.line_editor import LineEditor
from trouper.cli.terminal import Terminal

COLUMNS = 40
LONG = 200_000


class Page(Terminal):
    """A terminal of 40 columns that keeps what is written."""

    width = COLUMNS

    def __init__(self) -> None:
        super().__init__()
        self.stream = StringIO()


class Counted(TerminalScreen):
    """Counts the characters whose width is asked for."""

    def __init__(self, editor: LineEditor) -> None:
        self.page = Page()
        super().__init__(self.page, editor)
        self.measured = 0
        measure = self._cells

        def cells(text: str) -> int:
            self.measured += len(text)
            return measure(text)

        self._cells = cells


@pytest.mark.parametrize(
    "line", ["word " * (LONG // 5), "x" * LONG, "\u4e16" * LONG], ids=["words", "one word", "wide"]
)
def test_a_long_line_is_shown_in_time_that_grows_with_its_length(line: str) -> None:
    """Command line: a paste of a megabyte, sent, is shown and not brooded over."""
    screen = Counted(LineEditor())
    screen.submitted(line)
    assert screen.measured < 20 * len(line)
    shown = screen.page.stream.getvalue()
    assert shown.replace("\r\n", "").replace(" ", "").startswith((">" + line).replace(" ", ""))


@pytest.mark.parametrize("key", [b"\x01", b"\x05", b"\x01\x1b[C"], ids=["home", "end", "second character"])
def test_what_is_typed_is_drawn_around_the_cursor_however_long_it_is(key: bytes) -> None:
    editor = LineEditor()
    editor.feed(b"word " * (LONG // 5))
    editor.feed(key)
    screen = Counted(editor)
    screen.redraw()
    assert screen.measured < 100 * COLUMNS * COLUMNS
    assert "word" in screen.page.stream.getvalue()


@given(st.text(st.sampled_from("ab \t\u4e16\u0301\u200b"), max_size=400))
def test_no_row_is_wider_than_the_terminal_and_nothing_is_left_out(line: str) -> None:
    rows = TerminalScreen(Page(), LineEditor())._wrapped(line)
    assert all(cell_len(row) < COLUMNS for row in rows)
    assert "".join(rows).replace(" ", "") == line.expandtabs(4).replace(" ", "")
