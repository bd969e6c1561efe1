"""What of a tool's output reaches the model (T9). Pure: the caller writes the full text where the note says it is.

Terminal escapes are stripped, progress lines that overwrite themselves collapse to their last state, and what is still too long keeps its head, its tail and, on
failure, the lines that look like errors. Cuts fall between code points, and a note says how much is missing and how to read the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import orjson
from attrs import frozen

from trouper.core.messages import Json
from trouper.tools.results import ToolResult

#: Bytes of one result that a model is given.
OUTPUT_MAX = 65_536
#: No text inside a result is cut shorter than this; rather the whole is shown as cut text.
_LEAF_MIN = 256
#: Shares of the room: the rest is the tail's.
_HEAD_SHARE, _ERRORS_SHARE = 0.4, 0.25
#: Lines kept around a line that looks like an error.
_AROUND = 2
_ERROR_LINE = re.compile(
    r"\b(?:error|exception|traceback|fail(?:ed|ure)?|fatal|panic|assert(?:ion)?|undefined|segfault|denied)\b",
    re.IGNORECASE,
)
# In order: strings (OSC, DCS, SOS, PM, APC) that end within 4,096 characters, CSI, other escapes, and escapes broken off. The bound keeps
# an unterminated string from swallowing all that follows, and the expression linear.
_ESCAPES = re.compile(
    "(?:\x1b[\\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\x9d\x90\x98\x9e\x9f]{0,4096}(?:\x07|\x1b\\\\|\x9c)"
    "|(?:\x1b\\[|\x9b)[0-?]{0,64}[ -/]{0,16}[@-~]"
    "|\x1b[ -/]{0,16}[0-~]"
    "|\x1b"
)
#: Control characters that say nothing to a model; tab, line feed and carriage return do.
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]")
_UNCLEAN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_SURROGATES = re.compile("[\ud800-\udfff]")


@frozen
class Shaped:
    """What the model is given, and what is to be kept."""

    content: Json
    #: The whole text, to be kept under the session's files; `None` if the model has seen it all.
    full_text: str | None = None
    #: What was done to the output.
    notes: tuple[str, ...] = ()


def shape_output(
    result: ToolResult,
    *,
    limit: int = OUTPUT_MAX,
    saved_as: str | None = None,
    persist: bool = False,
    failed: bool | None = None,
) -> Shaped:
    """The content of `result` within `limit` bytes. `saved_as`: where the caller will keep `full_text`, for the note; `persist`: keep it in any case."""
    failed = result.is_error if failed is None else failed
    notes: list[str] = []
    content = _cleaned(result.content, notes)
    size = _size(content)
    if size <= limit:
        return Shaped(content, full_text(content) if persist else None, tuple(notes))
    whole = full_text(content)

    def cut(text: str, room: int) -> str:
        return cut_text(text, room, failed=failed, saved_as=saved_as)

    notes.append(f"cut from {size} to {limit} bytes")
    return Shaped(_fitted(content, limit, cut), whole, tuple(notes))


def full_text(content: Json) -> str:
    """Content as the text that is kept: text as it is, other values as indented JSON."""
    return content if isinstance(content, str) else orjson.dumps(content, option=orjson.OPT_INDENT_2).decode()


def clean_text(text: str) -> str:
    """Without terminal escapes, overwritten progress lines, control characters and lone surrogates."""
    if not _UNCLEAN.search(text):
        return text
    text = _ESCAPES.sub("", text)
    text = _CONTROLS.sub("", text)
    text = _SURROGATES.sub("\ufffd", text)
    return "\n".join(map(_last_state, text.split("\n"))) if "\r" in text else text


def _last_state(line: str) -> str:
    """What a terminal would show of a line that was written over and over. The carriage return of a CRLF stays."""
    if "\r" not in line:
        return line
    body = line.rstrip("\r")
    return body.rpartition("\r")[2] + ("\r" if body != line else "")


def cut_text(text: str, limit: int, *, failed: bool = False, saved_as: str | None = None) -> str:
    """Head and tail of `text` (and, if it tells of a failure, its error lines) within `limit` bytes, with a note in between."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= limit:
        return text
    where = (
        f"the full text is in {saved_as!r}, to be read in parts with read_file"
        if saved_as
        else "ask for less, or for a part of it"
    )
    note = f"\n[... {len(encoded) - limit} bytes or more left out of {len(encoded)}; {where} ...]\n"
    room = limit - len(note.encode())
    if room <= 0:
        return _head(encoded, limit)
    head_room = int(room * _HEAD_SHARE)
    errors = ""
    if failed:
        # The tail is kept anyway, so errors are looked for before it.
        tail_start = len(encoded) - (room - head_room - int(room * _ERRORS_SHARE))
        errors = _error_regions(_between(encoded, head_room, tail_start), int(room * _ERRORS_SHARE))
    tail_room = room - head_room - len(errors.encode())
    return _head(encoded, head_room) + note + errors + _tail(encoded, tail_room)


def _fitted(content: Json, limit: int, cut: Callable[[str, int], str]) -> Json:
    if isinstance(content, str):
        return cut(content, limit)
    room = limit // 2
    while room >= _LEAF_MIN:
        shorter = _shortened(content, room, cut)
        if _size(shorter) <= limit:
            return shorter
        room //= 2
    # Many small parts rather than a few long texts: shown as text.
    return _fitted(full_text(content), limit, cut)


def _shortened(content: Json, room: int, cut: Callable[[str, int], str]) -> Json:
    """`content` with every long text in it cut to `room` bytes."""
    match content:
        case str():
            return cut(content, room)
        case list():
            return [_shortened(each, room, cut) for each in content]
        case dict():
            return {key: _shortened(each, room, cut) for key, each in content.items()}
        case _:
            return content


def _cleaned(content: Json, notes: list[str]) -> Json:
    match content:
        case str():
            clean = clean_text(content)
            if clean != content and not notes:
                notes.append("stripped terminal escapes, control characters or overwritten lines")
            return clean
        case list():
            return [_cleaned(each, notes) for each in content]
        case dict():
            return {clean_text(key): _cleaned(each, notes) for key, each in content.items()}
        case _:
            return content


def _size(content: Json) -> int:
    """Text counts as such, other values as the JSON that is sent."""
    return len(content.encode("utf-8", "replace") if isinstance(content, str) else orjson.dumps(content))


def _head(encoded: bytes, room: int) -> str:
    return encoded[: max(room, 0)].decode("utf-8", "ignore")


def _tail(encoded: bytes, room: int) -> str:
    return encoded[len(encoded) - room :].decode("utf-8", "ignore") if room > 0 else ""


def _between(encoded: bytes, start: int, end: int) -> str:
    return encoded[start:end].decode("utf-8", "ignore")


def _error_regions(text: str, room: int) -> str:
    """The lines that look like errors, each with its neighbours, as many as fit."""
    lines = text.split("\n")
    kept: set[int] = set()
    for index, line in enumerate(lines):
        # A line of a megabyte is no error message; its start is enough to tell.
        if _ERROR_LINE.search(line[:2000]):
            kept.update(range(max(index - _AROUND, 0), min(index + _AROUND + 1, len(lines))))
    regions: list[str] = []
    used, last = 0, -1
    for index in sorted(kept):
        line = lines[index] if len(lines[index]) <= 2000 else lines[index][:2000] + "..."
        line = line if index == last + 1 or last < 0 else "[...]\n" + line
        size = len(line.encode()) + 1
        if used + size > room - 64:
            break
        regions.append(line)
        used, last = used + size, index
    return "[lines that look like errors:]\n" + "\n".join(regions) + "\n[...]\n" if regions else ""
