"""Text as a terminal would leave it (T9): without escapes and control characters, and of a line that was written over and over only its last state.

Pure, and linear in the text. A long text is worked on in slices: an expression holds the interpreter's lock for as long as it runs, and a worker thread
that is to keep out of the event loop's way must let go of it now and then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

#: Characters that are worked on at once.
SLICE_CHARS = 1 << 17
# In order: strings (OSC, DCS, SOS, PM, APC) that end within 4,096 characters, CSI, other escapes, and escapes broken off. The bound keeps
# an unterminated string from swallowing all that follows, and the expression linear.
_ESCAPES = re.compile(
    "(?:\x1b[\\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\x9d\x90\x98\x9e\x9f]{0,4096}(?:\x07|\x1b\\\\|\x9c)"
    "|(?:\x1b\\[|\x9b)[0-?]{0,64}[ -/]{0,16}[@-~]"
    "|\x1b[ -/]{0,16}[0-~]"
    "|\x1b"
)
#: No escape is longer than this.
_ESCAPE_MAX = 4_096 + 8
#: What begins an escape, and what begins one that may stand inside another.
_STRINGS, _SEQUENCES = re.compile("[\x1b\x9d\x90\x98\x9e\x9f]"), re.compile("\x9b")
#: Control characters that say nothing to a model; tab, line feed and carriage return do.
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]")
_UNCLEAN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_SURROGATES = re.compile("[\ud800-\udfff]")
#: Stands for a carriage return that ends no line.
RETURN_SIGN = "\u240d"
_LONE_RETURNS = re.compile("\r(?!\n)")


def clean_text(text: str) -> str:
    """Without terminal escapes, overwritten progress lines, control characters and lone surrogates."""
    if len(text) <= SLICE_CHARS:
        if not _UNCLEAN.search(text):
            return text
    elif not any(_UNCLEAN.search(text, start, start + SLICE_CHARS) for start in range(0, len(text), SLICE_CHARS)):
        return text
    text = "".join(map(_without_escapes, _slices_between_escapes(text)))
    return "".join(map(_last_states, slices_at_lines(text))) if "\r" in text else text


def returns_shown(text: str) -> str:
    """The text of a file, its lone carriage returns made visible: in a terminal they write over a line, in a file nothing of the line is gone."""
    return _LONE_RETURNS.sub(RETURN_SIGN, text) if "\r" in text else text


def slices(text: str) -> Iterator[str]:
    """The whole text, piece by piece."""
    for start in range(0, len(text), SLICE_CHARS):
        yield text[start : start + SLICE_CHARS]


def slices_at_lines(text: str) -> Iterator[str]:
    """The same, but cut after line ends only; a line that is longer than a slice stays whole."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + SLICE_CHARS) + 1 or len(text)
        yield text[start:end]
        start = end


def _slices_between_escapes(text: str) -> Iterator[str]:
    """Slices of which none begins inside an escape, so that each can be cleaned by itself."""
    start = 0
    while start < len(text):
        end = start + SLICE_CHARS
        if end < len(text):
            end = max(_end_of_escape(text, end, _STRINGS), _end_of_escape(text, end, _SEQUENCES))
        yield text[start:end]
        start = end


def _end_of_escape(text: str, cut: int, beginning: re.Pattern[str]) -> int:
    """`cut`, or the end of the escape that the cut would fall into. Only the last one that begins before it can reach so far."""
    begins = [found.start() for found in beginning.finditer(text, max(cut - _ESCAPE_MAX, 0), cut)]
    found = _ESCAPES.match(text, begins[-1]) if begins else None
    return cut if found is None else max(cut, found.end())


def _without_escapes(text: str) -> str:
    return _SURROGATES.sub("\ufffd", _CONTROLS.sub("", _ESCAPES.sub("", text)))


def _last_states(lines: str) -> str:
    return "\n".join(map(_last_state, lines.split("\n"))) if "\r" in lines else lines


def _last_state(line: str) -> str:
    """What a terminal would show of a line that was written over and over. The carriage return of a CRLF stays."""
    if "\r" not in line:
        return line
    body = line.rstrip("\r")
    return body.rpartition("\r")[2] + ("\r" if body != line else "")
