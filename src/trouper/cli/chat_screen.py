"""What `trouper chat` shows. On a terminal: text scrolls up, and below it stay the line that is being spoken, a status line and what the user types.
Without one: plain lines, in order."""

from __future__ import annotations

from itertools import cycle
from typing import Protocol

from trouper.cli.line_editor import LineEditor
from trouper.cli.terminal import Terminal, clean, clean_line

PROMPT = "> "
#: Characters for each column that are looked at; some take no room.
_LOOK = 4
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
#: Where the terminal's encoding has none of these.
_PLAIN_FRAMES = "|/-\\"


class Screen(Protocol):
    def say(self, text: str, *styles: str) -> None:
        """One finished line (or several)."""

    def stream(self, text: str, *styles: str) -> None:
        """More of what is being spoken."""

    def end_stream(self) -> None: ...

    def status(self, text: str) -> None:
        """What goes on now; empty: nothing."""

    def tick(self) -> None:
        """Some time has passed: a spinner may turn."""

    def submitted(self, line: str) -> None:
        """The user has sent this line."""

    def redraw(self) -> None: ...

    def suspend(self) -> None:
        """Somebody else writes next: what is drawn stays, and the next drawing begins below."""

    def close(self) -> None: ...


class PlainScreen:
    """For pipes, files and dumb terminals."""

    def __init__(self, out: Terminal) -> None:
        self._out = out
        self._open = False
        self._styles: tuple[str, ...] = ()

    def say(self, text: str, *styles: str) -> None:
        self.end_stream()
        self._out.line(self._out.style(clean(text), *styles))
        self._out.stream.flush()

    def stream(self, text: str, *styles: str) -> None:
        shown = clean(text)
        if styles != self._styles:
            self.end_stream()
            self._styles = styles
        if shown:
            self._out.stream.write(shown)
            self._out.stream.flush()
            self._open = not shown.endswith("\n")

    def end_stream(self) -> None:
        if self._open:
            self._out.line()
            self._out.stream.flush()
            self._open = False

    def status(self, text: str) -> None:
        pass

    def tick(self) -> None:
        pass

    def submitted(self, line: str) -> None:
        self.say(f"{PROMPT}{line}")

    def redraw(self) -> None:
        pass

    def suspend(self) -> None:
        self.end_stream()

    def close(self) -> None:
        self.end_stream()


class TerminalScreen:
    """Draws the bottom of the terminal anew whenever something changes. No row is ever wider than the terminal is when it is drawn, so rows can be counted, also when the terminal has become narrower since and has broken some into several."""

    def __init__(self, out: Terminal, editor: LineEditor) -> None:
        from rich.cells import cell_len, chop_cells

        self._out = out
        self._editor = editor
        self._cells, self._chop = cell_len, chop_cells
        self._partial = ""
        self._styles: tuple[str, ...] = ()
        self._status = ""
        self._frames = cycle(_FRAMES if out.shown(_FRAMES) == _FRAMES else _PLAIN_FRAMES)
        self._frame = next(self._frames)
        #: What was drawn last of the bottom block: the rows above the one with the cursor, and that one as far as the cursor stands on it. `None`: nothing.
        self._drawn: list[str] | None = None
        self._open = True

    def say(self, text: str, *styles: str) -> None:
        rows = self._ended()
        for line in self._out.shown(clean(text)).split("\n"):
            rows += [self._out.style(row, *styles) for row in self._wrapped(line)]
        self._draw(rows)

    def stream(self, text: str, *styles: str) -> None:
        rows = self._ended() if styles != self._styles else []
        self._styles = styles
        *finished, self._partial = (self._partial + self._out.shown(clean(text))).split("\n")
        for line in finished:
            rows += [self._out.style(row, *styles) for row in self._wrapped(line)]
        # What has outgrown its row is finished, but for the last word, which may still grow.
        *full, self._partial = self._wrapped(self._partial)
        rows += [self._out.style(row, *styles) for row in full]
        self._draw(rows)

    def end_stream(self) -> None:
        if self._partial:
            self._draw(self._ended())

    def _ended(self) -> list[str]:
        rows = [self._out.style(row, *self._styles) for row in self._spoken()]
        self._partial, self._styles = "", ()
        return rows

    def _spoken(self) -> list[str]:
        """The rows of the line that is being spoken: more than one only if the terminal was made narrower since it came."""
        return self._wrapped(self._partial) if self._partial else []

    def status(self, text: str) -> None:
        if text != self._status:
            self._status = text
            self._draw([])

    def tick(self) -> None:
        if self._status:
            self._frame = next(self._frames)
            self._draw([])

    def submitted(self, line: str) -> None:
        self.say(f"{PROMPT}{line}", "bold")

    def redraw(self) -> None:
        self._draw([])

    def suspend(self) -> None:
        self._out.stream.write("\r\n")
        self._out.stream.flush()
        self._drawn = None

    def close(self) -> None:
        """Leave the cursor below everything, on a line of its own."""
        rows = self._ended()
        self._open = False
        self._draw(rows)

    # -- drawing

    @property
    def _room(self) -> int:
        return max(10, self._out.width - 1)

    def _wrapped(self, line: str) -> list[str]:
        """Rows of at most the terminal's width, broken between words where that is possible."""
        rows: list[str] = []
        line, start, room = line.expandtabs(4), 0, self._room
        while True:
            # No more of the line is looked at than a row may hold: it may be a megabyte.
            ahead = line[start : start + _LOOK * room]
            cut = len(ahead)
            if self._cells(ahead) > room:
                head = self._chop(ahead, room)[0]
                space = head.rfind(" ")
                cut = space + 1 if space > 0 else len(head)
            elif start + cut == len(line):
                return [*rows, ahead]
            rows.append(ahead[:cut].rstrip())
            start += cut

    def _cut(self, line: str) -> str:
        """As much of a line as fits a row."""
        ahead = self._out.shown(line[: _LOOK * self._room])
        if self._cells(ahead) <= self._room:
            return ahead
        more = self._out.shown("…")
        return f"{self._chop(ahead, self._room - len(more))[0]}{more}"

    def _draw(self, finished: list[str]) -> None:
        pieces = []
        if self._drawn is not None:
            above = sum(map(self._rows_now, self._drawn)) - 1
            # Row by row: there are terminals (tmux) that keep what is erased from the very top on among what has scrolled off.
            pieces.append("\x1b[J\r\x1b[K" + "\x1b[A\x1b[K" * above)
            self._drawn = None
        pieces += [f"{row}\r\n" for row in finished]
        if self._open:
            # Without a space at the end: whether that takes a row of its own, when there is no more room for it, is not the same in every terminal.
            spoken = [row.rstrip() for row in self._spoken()]
            status = [self._cut(clean_line(f"{self._frame} {self._status}"))] if self._status else []
            before, after = self._typed_row()
            pieces += [f"{self._out.style(row, *self._styles)}\r\n" for row in spoken]
            pieces += [f"{self._out.style(row, 'dim')}\r\n" for row in status]
            back = self._cells(after)
            pieces.append(f"{self._out.style(PROMPT, 'bold')}{before}{after}" + (f"\x1b[{back}D" if back else ""))
            self._drawn = [*spoken, *status, f"{PROMPT}{before}{after[:1]}"]
        self._out.stream.write("".join(pieces))
        self._out.stream.flush()

    def _rows_now(self, row: str) -> int:
        """What has become of a row that was one when it was drawn: in a terminal that is narrower by now, perhaps several."""
        if not self._out.wraps_anew or self._cells(row) <= self._out.width:
            return 1
        return len(self._chop(row, self._out.width))

    def _typed_row(self) -> tuple[str, str]:
        """The part of the line that fits around the cursor: what stands before it, and what behind."""
        room = self._room - len(PROMPT)
        text, cursor = self._editor.text, self._editor.cursor
        before = self._typed(text[max(0, cursor - _LOOK * room) : cursor])
        after = self._typed(text[cursor : cursor + _LOOK * room])
        while self._cells(before) > room - 1:
            before = before[max(1, len(before) // 4) :]
        left = room - self._cells(before)
        while self._cells(after) > left:
            after = after[:-1]
        return before, after

    def _typed(self, text: str) -> str:
        return self._out.shown(clean(text).replace("\n", "⏎").replace("\t", " "))
