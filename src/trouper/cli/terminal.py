"""What a terminal, a pipe or a program gets to see. Everything that comes from outside is cleaned of escapes before a person sees it."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, TextIO

from trouper.core.unseen import UNSEEN

MESSAGE_CHARS_MAX = 2_000
#: The end of the year 9999, which is as far as calendars go. A setting may ask for more: of an approval, say, that is not to lapse.
_LAST = 253_402_300_799
# Characters that turn the direction of what follows, or that nobody can see: a line could read as something else than it says.
_HIDDEN = re.compile("[\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]")
_STYLES = {
    "dim": "2",
    "bold": "1",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}


# Strings (OSC, DCS, SOS, PM, APC) that end within 4,096 characters, and before another one begins, CSI, other escapes. Written here rather than taken from the tools: a command
# that lists things should not have to load them first.
_ESCAPES = re.compile(
    "(?:\x1b[\\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\x9d\x90\x98\x9e\x9f]{0,4096}(?:\x07|\x1b\\\\|\x9c)"
    "|(?:\x1b\\[|\x9b)[0-?]{0,64}[ -/]{0,16}[@-~]"
    "|\x1b[ -/]{0,16}[0-~]?"
)
# Whatever is left of them, and every other control character but line ends and tabs.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATES = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """Text of a model, a tool or a file, safe to write to a terminal: no ANSI, OSC, control or bidi characters; lines and tabs stay."""
    return _SURROGATES.sub("\ufffd", _HIDDEN.sub("", _CONTROLS.sub("", _ESCAPES.sub("", text))))


def clean_line(text: str, limit: int | None = None) -> str:
    """The same on one line, cut to `limit` characters."""
    line = " ".join(clean(text).split())
    return line if limit is None or len(line) <= limit else f"{line[: max(0, limit - 1)]}…"


def cells(text: str) -> int:
    """The columns of a terminal that a line takes: some characters take two, some none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # Here: most lists have nothing to count, and it takes a while to load.

    return cell_len(text)


def fitted(line: str, room: int) -> str:
    """As much of a line as has room in so many columns."""
    if cells(line) <= room:
        return line
    from rich.cells import set_cell_size

    return f"{set_cell_size(line, room - 1).rstrip()}…"


def clean_message(text: str) -> str:
    """The same of what is wrong and what to do. Of a very long one the middle is left out: an argument that is named may have any length, and the remedy is at the end."""
    line = clean_line(text)
    half = MESSAGE_CHARS_MAX // 2
    return line if len(line) <= MESSAGE_CHARS_MAX else f"{line[:half]} … {line[-half:]}"


def in_full(value: Any) -> str:
    """A JSON value on one line, for somebody who has to answer for it: nothing is left out, and what would not show, or turn the line around, stands there as its code."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return "".join(each if each.isprintable() and each not in UNSEEN else json.dumps(each)[1:-1] for each in text)


class Terminal:
    """Standard output. `colour` is on only where a person looks at it."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = sys.stdout if stream is None else stream
        self.is_terminal = self.stream.isatty()
        self.colour = self.is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    @property
    def wraps_anew(self) -> bool:
        """Whether rows that have become too wide are broken into several when the window is made narrower, as almost all terminals do, or cut off."""
        environment = os.environ
        cuts_off = "XTERM_VERSION" in environment or "STY" in environment or environment.get("TERM") == "linux"
        return "TMUX" in environment or not cuts_off

    @property
    def width(self) -> int:
        """Columns to write to. `COLUMNS` may ask for fewer than the terminal has, never for more: rows that it wraps by itself cannot be counted."""
        if not self.is_terminal:
            return 100_000
        asked = shutil.get_terminal_size((100, 24)).columns
        try:
            there = os.get_terminal_size(self.stream.fileno()).columns
        except (OSError, ValueError):
            return asked
        return min(asked, there) if there > 0 else asked

    def shown(self, text: str) -> str:
        """The text as it comes out: what the encoding of the terminal does not have stands there as its code, which takes more columns."""
        encoding = self.stream.encoding
        if text.isascii() or not encoding or encoding.lower().startswith("utf"):
            return text
        return text.encode(encoding, "backslashreplace").decode(encoding)

    def style(self, text: str, *styles: str) -> str:
        if not self.colour or not styles:
            return text
        return f"\x1b[{';'.join(_STYLES[style] for style in styles)}m{text}\x1b[0m"

    def line(self, text: str = "") -> None:
        self.stream.write(f"{text}\n")

    def json(self, value: Any) -> None:
        from trouper import codec

        self.stream.write(codec.dumps(value).decode("ascii") + "\n")
        self.stream.flush()

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[object]], *, cut: bool = True) -> None:
        """Columns as wide as they need to be; the last one takes what is left of the line. `cut=False`: as much as it needs, just as it is given, for `in_full`."""
        cleaned = [[clean_line(str(cell)) for cell in row[:-1]] + [_last(str(row[-1]), cut)] for row in rows]
        widths = [max(map(cells, column)) for column in zip(headings, *cleaned, strict=True)]
        room = max(20, self.width - sum(widths[:-1]) - 2 * (len(widths) - 1))
        for number, row in enumerate([list(headings), *cleaned]):
            last = fitted(row[-1], room) if cut else row[-1]
            padded = [cell + " " * (width - cells(cell)) for cell, width in zip(row[:-1], widths, strict=False)]
            text = "  ".join([*padded, last]).rstrip()
            self.line(self.style(text, "dim") if number == 0 else text)


def _last(cell: str, cut: bool) -> str:
    return clean_line(cell) if cut else cell


def when(at: float | None) -> str:
    """A moment, in UTC and said to be, for people: their clock may show another time."""
    if at is None:
        return "-"
    return "never" if at > _LAST else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def when_exactly(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def size_of(count: int) -> str:
    """Bytes, for people: 9.9 kB."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def plural(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
