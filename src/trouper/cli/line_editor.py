"""One line being typed: bytes of a terminal in, finished lines and keys out. Pure: reads nothing, draws nothing.

A terminal could edit lines by itself, but then nobody would know what stands half-typed on it when a notification has to be shown.
"""

from __future__ import annotations

import codecs
import re
from enum import Enum
from typing import TypeAlias

from attrs import frozen

HISTORY_MAX = 500
LINE_MAX = 1_000_000
_SEQUENCE_MAX = 32
_PASTE_ENDS = "\x1b[201~"
#: What may go on as the end of a paste, or as one line end, in what comes next.
_UNFINISHED = re.compile(r"(?:\x1b(?:\[(?:2(?:0(?:1)?)?)?)?|\r)\Z")
#: Up to the next key that does something: see `_control` and `_sequence`.
_TEXT = re.compile(r"[^\x01\x04\x05\x08\n\x0b\x0c\r\x15\x17\x1b\x7f]+")
#: What is typed or pasted is sent, but for control characters and what nobody could see there: marks that turn the direction of the text, empty spaces, tags.
#: Joiners stay, for there are languages that are spelled with them; and so does what Python knows no name for, such as this year's emoji.
_LEFT_OUT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[A-Za-z]|[^\[O\x00-\x1f])")
#: As far as one may have come.
_BEGUN = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?")


@frozen
class Typed:
    """A line was finished with Enter."""

    text: str


class Key(Enum):
    END = "end of input"
    REDRAW = "redraw"
    #: No more fits into the line, and some was left out. Told once of a line.
    FULL = "full"


class Paste(Enum):
    """Between its marks, what is pasted is text, line ends included. A terminal, or what stands between it and us, may lose the second mark."""

    NONE = "none"
    COMING = "coming"
    #: Nothing had come for a while, and no end. What comes now is still pasted: the line may be slow, and what is pasted must not become keys by itself.
    STALLED = "stalled"


Action: TypeAlias = Typed | Key


class LineEditor:
    """The line as it stands: `text`, and where the cursor is in it."""

    def __init__(self) -> None:
        self.text = ""
        self.cursor = 0
        self.history: list[str] = []
        #: How often something was typed.
        self.keys = 0
        self._place: int | None = None
        self._kept = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting = ""
        self.paste = Paste.NONE
        self._told_full = False
        self._actions: list[Action] = []

    def feed(self, data: bytes) -> list[Action]:
        """Take what was typed; sequences and characters may come in pieces."""
        self.keys += 1
        waiting, at = self._waiting + self._decoder.decode(data), 0
        actions: list[Action] = []
        self._actions = actions
        while at < len(waiting):
            if self.paste is not Paste.NONE:
                # As it comes: whoever pastes sees it, and no more is kept than a line holds, wherever the end is.
                end = waiting.find(_PASTE_ENDS, at)
                if end < 0:
                    unfinished = _UNFINISHED.search(waiting, at)
                    end = unfinished.start() if unfinished else len(waiting)
                    self._insert_pasted(waiting[at:end])
                    at = end
                    break
                self._insert_pasted(waiting[at:end])
                self.paste = Paste.NONE
                at = end + len(_PASTE_ENDS)
            elif found := _TEXT.match(waiting, at):
                # All of it at once: a terminal without brackets around what is pasted may send a megabyte.
                self._insert(_LEFT_OUT.sub("", found[0]))
                at = found.end()
            elif waiting[at] == "\x1b":
                found = _SEQUENCE.match(waiting, at) or _BEGUN.match(waiting, at)
                assert found is not None
                if found.end() == len(waiting) and found.re is _BEGUN and len(found[0]) <= _SEQUENCE_MAX:
                    break  # The rest is still to come.
                # What was begun, and does not go on as one, was none: the key behind it does what it always does.
                self._sequence(found[0])
                at = found.end()
            else:
                self._control(waiting[at])
                at += 1
        self._waiting = waiting[at:]
        return actions

    def end_paste(self) -> None:
        """It has ended, whether or not its end has come: what comes now are keys again."""
        if self.paste is not Paste.NONE:
            self._insert_pasted(self._waiting)
            self.paste, self._waiting = Paste.NONE, ""

    def _insert_pasted(self, pasted: str) -> None:
        self._insert(_LEFT_OUT.sub("", pasted.replace("\r\n", "\n").replace("\r", "\n")))

    def _sequence(self, sequence: str) -> None:
        match sequence:
            case "\x1b[200~":
                self.paste = Paste.COMING
            case "\x1b[D" | "\x1bOD":
                self.cursor = max(0, self.cursor - 1)
            case "\x1b[C" | "\x1bOC":
                self.cursor = min(len(self.text), self.cursor + 1)
            case "\x1b[A" | "\x1bOA":
                self._recall(-1)
            case "\x1b[B" | "\x1bOB":
                self._recall(1)
            case "\x1b[H" | "\x1bOH" | "\x1b[1~":
                self.cursor = 0
            case "\x1b[F" | "\x1bOF" | "\x1b[4~":
                self.cursor = len(self.text)
            case "\x1b[3~":
                self._delete(self.cursor, self.cursor + 1)
            case _:
                pass

    def _control(self, key: str) -> None:
        match key:
            case "\r" | "\n":
                self._actions.append(self._finish())
            case "\x04":  # Ctrl-D
                if self.text:
                    self._delete(self.cursor, self.cursor + 1)
                else:
                    self._actions.append(Key.END)
            case "\x7f" | "\x08":
                self._delete(self.cursor - 1, self.cursor)
            case "\x01":
                self.cursor = 0
            case "\x05":
                self.cursor = len(self.text)
            case "\x15":  # Ctrl-U
                self._delete(0, self.cursor)
            case "\x0b":  # Ctrl-K
                self._delete(self.cursor, len(self.text))
            case "\x17":  # Ctrl-W
                before = self.text[: self.cursor].rstrip()
                self._delete(before.rfind(" ") + 1, self.cursor)
            case "\x0c":
                self._actions.append(Key.REDRAW)
            case _:
                raise AssertionError(f"{key!r} is text, and taken as such")

    def clear(self) -> None:
        self.text, self.cursor, self._place, self._told_full = "", 0, None, False

    def forget(self, line: str) -> None:
        """Nobody is to recall this line."""
        self.history = [kept for kept in self.history if kept != line]

    def _finish(self) -> Typed:
        text = self.text
        self.clear()
        if text.strip() and (not self.history or self.history[-1] != text):
            self.history.append(text)
            del self.history[:-HISTORY_MAX]
        return Typed(text)

    def _insert(self, text: str) -> None:
        room = max(0, LINE_MAX - len(self.text))
        if len(text) > room:
            text = text[:room]
            if not self._told_full:
                self._told_full = True
                self._actions.append(Key.FULL)
        self.text = self.text[: self.cursor] + text + self.text[self.cursor :]
        self.cursor += len(text)

    def _delete(self, start: int, end: int) -> None:
        start = max(0, start)
        self._told_full = False
        self.text = self.text[:start] + self.text[end:]
        self.cursor = min(start, len(self.text))

    def _recall(self, step: int) -> None:
        place = len(self.history) if self._place is None else self._place
        if self._place is None:
            self._kept = self.text
        place = max(0, min(len(self.history), place + step))
        self._place = None if place == len(self.history) else place
        self.text = self._kept if self._place is None else self.history[place]
        self.cursor = len(self.text)
