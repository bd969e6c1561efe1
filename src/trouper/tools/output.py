"""What of a tool's output reaches the model (T9). Pure: the caller writes the full text where the note says it is.

Terminal escapes are stripped, progress lines that overwrite themselves collapse to their last state, and what is still too long keeps its head, its tail and, on
failure, the lines that look like errors. Cuts fall between code points, and a note says how much is missing and how to read the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import orjson

from trouper.core.messages import Json
from trouper.core.values import frozen
from trouper.tools.large import LARGE, LEAVES, cleaned, json_pieces, weight
from trouper.tools.results import ToolResult, fits_64_bits, is_large
from trouper.tools.terminal_text import clean_text, slices

#: Bytes of one result that a model is given.
OUTPUT_MAX = 65_536
#: No text inside a result is cut shorter than this; rather the whole is shown as cut text.
_LEAF_MIN = 256
#: No character takes more.
_CHARACTER_BYTES = 4
#: No number, boolean or null is longer.
_LEAF_BYTES = 32
#: Shares of the room: the rest is the tail's.
_HEAD_SHARE, _ERRORS_SHARE = 0.4, 0.25
#: Lines kept around a line that looks like an error.
_AROUND = 2
_ERROR_LINE = re.compile(
    r"\b(?:error|exception|traceback|fail(?:ed|ure)?|fatal|panic|assert(?:ion)?|undefined|segfault|denied)\b",
    re.IGNORECASE,
)
#: As long as a secret may be.
_SECRET_MAX = 16_384
#: Characters in which errors are looked for: half of them after the head, half before the tail.
_ERRORS_SOUGHT = 1 << 21


@frozen(frequent=True)
class Shaped:
    """What the model is given, and what is to be kept."""

    content: Json
    #: The whole text, to be kept under the session's files; `None` if the model has seen it all.
    full_text: str | None = None
    #: What was done to the output.
    notes: tuple[str, ...] = ()


def is_plain(returned: object, limit: int) -> bool:
    """Whether the model can be given what a tool returned as it is: most results are short, clean text or a number, and need nothing of what follows."""
    kind = type(returned)
    if kind is str:
        return len(returned) * _CHARACTER_BYTES <= limit and clean_text(returned) is returned  # type: ignore[arg-type]
    return limit >= _LEAF_BYTES and (kind is bool or returned is None or (kind is int and fits_64_bits(returned)))  # type: ignore[arg-type]


def is_heavy(result: ToolResult) -> bool:
    """Whether shaping it takes so long that other work would notice."""
    content = result.content
    return len(content) > LARGE if type(content) is str else is_large(content)


def shape_output(
    result: ToolResult,
    *,
    limit: int = OUTPUT_MAX,
    saved_as: str | None = None,
    not_kept: str | None = None,
    persist: bool = False,
    failed: bool | None = None,
    redact: Callable[[str], str] = str,
    heavy: bool | None = None,
) -> Shaped:
    """The content of `result` within `limit` bytes. `saved_as`: where the caller will keep `full_text`, for the note, or `not_kept`: why that was not possible.
    `persist`: keep it in any case. `redact` takes secrets out before a cut could halve them. Work for a thread if it is `heavy`: what `is_heavy(result)` says, if that is known."""
    content = result.content
    if type(content) in LEAVES and limit >= _LEAF_BYTES:
        return Shaped(content, full_text(content) if persist else None)
    failed = result.is_error if failed is None else failed
    notes: list[str] = []
    content = cleaned(content)
    if content != result.content:
        notes.append("stripped terminal escapes, control characters or overwritten lines")
    heavy = is_heavy(result) if heavy is None else heavy
    size = _size(content, heavy)
    if size <= limit:
        return Shaped(content, full_text(content) if persist else None, tuple(notes))
    whole = full_text(content)

    def cut(text: str, room: int) -> str:
        return cut_text(text, room, failed=failed, saved_as=saved_as, not_kept=not_kept, redact=redact)

    notes.append(f"cut from {size} to {limit} bytes")
    return Shaped(_fitted(content, limit, cut), whole, tuple(notes))


def full_text(content: Json) -> str:
    """Content as the text that is kept: text as it is, other values as indented JSON."""
    if isinstance(content, str):
        return content
    return "".join(json_pieces(content, _as_it_is, _encoded)) if is_large(content) else _encoded(content).decode()


def cut_text(
    text: str,
    limit: int,
    *,
    failed: bool = False,
    saved_as: str | None = None,
    not_kept: str | None = None,
    redact: Callable[[str], str] = str,
) -> str:
    """Head and tail of `text` (and, if it tells of a failure, its error lines) within `limit` bytes, with a note in between."""
    size = _bytes(text)
    if size <= limit:
        return text
    note = f"\n[... {size - limit} bytes or more left out of {size}; {_where(saved_as, not_kept)} ...]\n"
    room = max(limit - len(note.encode()), 0)
    head_room, errors_room = int(room * _HEAD_SHARE), int(room * _ERRORS_SHARE) if failed else 0
    head = _head(_beginning(text, head_room or limit, redact), head_room or limit)
    if not head_room:
        return head
    # The tail is kept anyway, so errors are looked for before it.
    errors = _error_regions(redact(_sought(text, head_room, len(text) - room)), errors_room) if failed else ""
    tail_room = room - head_room - len(errors.encode())
    return head + note + errors + _tail(_ending(text, tail_room, redact), tail_room)


def _beginning(text: str, room: int, redact: Callable[[str], str]) -> str:
    """The first characters, without secrets: more than `room`, so that none is halved by the cut."""
    if len(text) <= room + _SECRET_MAX:
        return redact(text)
    return redact(text[: room + _SECRET_MAX])[:-_SECRET_MAX]


def _ending(text: str, room: int, redact: Callable[[str], str]) -> str:
    if len(text) <= room + _SECRET_MAX:
        return redact(text)
    return redact(text[-room - _SECRET_MAX :])[_SECRET_MAX:]


def _where(saved_as: str | None, not_kept: str | None) -> str:
    if not_kept is not None:
        return f"the full text was not kept: {not_kept}"
    if saved_as is not None:
        return f"the full text is in {saved_as!r}, to be read in parts with read_file"
    return "ask for less, or for a part of it"


def _fitted(content: Json, limit: int, cut: Callable[[str, int], str]) -> Json:
    if isinstance(content, str):
        return cut(content, limit)
    room = limit // 2
    # Every part takes a character or more, however short it is made.
    while room >= _LEAF_MIN and _parts(content, limit) <= limit:
        shorter = _shortened(content, room, cut)
        if weight(shorter, 2 * limit + LARGE) < 2 * limit + LARGE and _size(shorter, heavy=False) <= limit:
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


def _parts(content: Json, stop: int) -> int:
    """How many values there are in `content`, counted up to `stop`."""
    count, waiting = 0, [content]
    while waiting and count <= stop:
        each = waiting.pop()
        count += 1
        if isinstance(each, (list, dict)):
            count += len(each) if len(each) > stop else 0
            waiting.extend(each.values() if isinstance(each, dict) else each)
    return count


def _size(content: Json, heavy: bool) -> int:
    """Text counts as such, other values as the JSON that is sent; those that are far too large as the JSON that is kept."""
    if isinstance(content, str):
        return _bytes(content)
    if heavy:
        return sum(map(_bytes, json_pieces(content, _as_it_is, _encoded)))
    return len(orjson.dumps(content))


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else sum(len(part.encode("utf-8", "replace")) for part in slices(text))


def _encoded(content: Json) -> bytes:
    return orjson.dumps(content, option=orjson.OPT_INDENT_2)


def _as_it_is(content: Json) -> Json:
    return content


def _head(text: str, room: int) -> str:
    """As many of the first characters as fit."""
    room = max(room, 0)
    return text[:room].encode("utf-8", "replace")[:room].decode("utf-8", "ignore")


def _tail(text: str, room: int) -> str:
    encoded = text[-room:].encode("utf-8", "replace") if room > 0 else b""
    return encoded[max(len(encoded) - room, 0) :].decode("utf-8", "ignore")


def _sought(text: str, start: int, end: int) -> str:
    """What lies between head and tail, or its beginning and its end if it is long."""
    half = _ERRORS_SOUGHT // 2
    return text[start:end] if end - start <= 2 * half else text[start : start + half] + "\n" + text[end - half : end]


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
