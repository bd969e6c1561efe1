"""What a chat draws: rows that fit the terminal, at a cost that grows with the text and no faster."""

from __future__ import annotations

from io import StringIO

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len, chop_cells

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


class Emulated(Terminal):
    """A terminal that draws what it is given."""

    is_terminal = True
    wraps_anew = False

    def __init__(self, columns: int, encoding: str = "utf-8") -> None:
        super().__init__(StringIO())
        self.is_terminal = True
        self.encoding = encoding
        self.screen = pyte.Screen(columns, 30)
        self._feed = pyte.Stream(self.screen)
        self.stream = self  # type: ignore[assignment]

    @property
    def width(self) -> int:
        columns: int = self.screen.columns
        return columns

    def write(self, text: str) -> int:
        self._feed.feed(text.encode(self.encoding, "backslashreplace").decode(self.encoding))
        return len(text)

    def flush(self) -> None:
        pass

    def rows(self) -> list[str]:
        return [row.rstrip() for row in self.screen.display if row.strip()]


def test_a_status_of_wide_characters_takes_one_row_however_often_it_is_drawn() -> None:
    """Command line: it was cut by its characters, took two rows, and left one behind at every tick."""
    out = Emulated(COLUMNS)
    screen = TerminalScreen(out, LineEditor())
    screen.say("said")
    screen.status("\u4e16\u754c " * 30)
    for _ in range(5):
        screen.tick()
    said, status, prompt = out.rows()
    assert said == "said" and prompt == ">" and status.endswith("…") and cell_len(status) < COLUMNS


def test_a_terminal_that_is_made_narrower_in_mid_sentence_is_not_filled_with_its_beginning() -> None:
    """Command line: the row that was being spoken was too wide by then, and left a part of itself behind at every tick."""
    out = Emulated(100)
    screen = TerminalScreen(out, LineEditor())
    spoken = " ".join(f"word{number}" for number in range(12))
    screen.stream(spoken)
    out.screen.resize(30, COLUMNS)
    screen.status("thinking")
    for _ in range(5):
        screen.tick()
    screen.end_stream()
    screen.status("")
    shown = " ".join(out.rows())
    assert shown.count("word11") == 1 and spoken in shown


class Wrapping(Emulated):
    """One that breaks rows that have become too wide into several, and keeps the cursor on its character."""

    wraps_anew = True

    def narrow(self, columns: int) -> None:
        cells, on = self.screen.buffer, self.screen.cursor.y
        rows = ["".join(cells[y][x].data for x in range(self.screen.columns)).rstrip() for y in range(on + 1)]
        # With the character that the cursor is on; behind the last one, it stays at the end of the last row.
        up_to = "".join(cells[on][x].data for x in range(self.screen.cursor.x + 1))
        up_to = up_to if len(up_to.rstrip()) == len(up_to) else up_to[:-1]
        rows[on] = max(rows[on], up_to, key=len)
        pieces = [piece for row in rows[:-1] for piece in (chop_cells(row, columns) or [""])]
        self.screen.resize(30, columns)
        self.screen.reset()
        last = chop_cells(rows[on], columns)
        self._feed.feed("".join(f"\x1b[{y}H{piece}" for y, piece in enumerate([*pieces, *last], 1)))
        self._feed.feed(f"\x1b[{len(pieces) + len(chop_cells(up_to, columns))};1H")


@pytest.mark.parametrize("typed", ["", "word " * 17, "\u4e16" * 45], ids=["nothing", "words", "wide"])
@pytest.mark.parametrize("home", [False, True], ids=["end", "home"])
def test_a_terminal_that_is_made_narrower_keeps_no_rows_that_were_drawn_wider(typed: str, home: bool) -> None:
    """Command line: what it had broken into several rows was counted as one, and each step left a row behind for good."""
    out, editor = Wrapping(110), LineEditor()
    screen = TerminalScreen(out, editor)
    screen.say("said before")
    screen.stream("spoken " * 14)
    screen.status("survey 15/90 pages " * 4)
    editor.feed(typed.encode() + (b"\x01" if home else b""))
    screen.redraw()
    for columns in (80, 60, 41, 27):
        out.narrow(columns)
        screen.tick()
        rows = out.rows()
        spoken = len(screen._wrapped(("spoken " * 14).rstrip()))
        assert rows[0] == "said before" and " ".join(rows[1 : 1 + spoken]) == ("spoken " * 14).rstrip()
        assert len(rows) == 1 + spoken + 2 and "survey" in rows[-2] and rows[-1].startswith(">")
    screen.status("")
    screen.end_stream()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_of_another_encoding_shows_what_is_said_once(encoding: str) -> None:
    """Command line: what the encoding does not have comes out as its code, and took more columns than were counted: the row was left behind with every word."""
    editor = LineEditor()
    out = Emulated(COLUMNS, encoding)
    screen = TerminalScreen(out, editor)
    screen.status("\u4e16\u754c " * 30)
    editor.feed("東京 ".encode() * 20)
    for word in range(12):
        screen.stream(f"東京{word} ")
        screen.tick()
    screen.end_stream()
    *spoken, status, prompt = out.rows()
    said = (
        "".join(spoken).replace(" ", "").encode().decode("unicode_escape") if encoding != "utf-8" else "".join(spoken)
    )
    assert said.replace(" ", "") == "".join(f"東京{word}" for word in range(12))
    assert len(status) < COLUMNS and cell_len(prompt) < COLUMNS and prompt.startswith("> ")
