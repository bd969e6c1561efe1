"""Replacing text in a file, and showing what became of it. Pure: bytes in, bytes and a diff out.

Line ends and a byte-order mark are the file's own. A file whose lines all end in CR LF is edited as if they ended in LF, since that is how a model
writes, and gets its own line ends back; a file with mixed line ends is edited exactly as it is.
"""

from __future__ import annotations

from attrs import frozen

from trouper.tools.errors import ToolError
from trouper.tools.terminal_text import returns_shown

_BOM = b"\xef\xbb\xbf"
_CONTEXT_LINES = 3
HUNKS_MAX = 20
DIFF_CHARS_MAX = 8000


@frozen
class Text:
    """The text of a file, as a model sees it, and how to turn such text back into the file's bytes."""

    text: str
    bom: bool
    crlf: bool

    def encode(self, text: str) -> bytes:
        return (_BOM if self.bom else b"") + (text.replace("\n", "\r\n") if self.crlf else text).encode()

    def as_seen(self, text: str) -> str:
        """Text from the model, in the same form."""
        return text.replace("\r\n", "\n") if self.crlf else text


@frozen
class Edit:
    data: bytes
    replacements: int
    diff: str


def decode(data: bytes, path: str) -> Text:
    """Raises `ToolError` for what is not UTF-8."""
    bom = data.startswith(_BOM)
    try:
        text = data[len(_BOM) if bom else 0 :].decode()
    except UnicodeDecodeError as error:
        raise ToolError(
            f"file {path!r} is not text in UTF-8 (byte {error.start}); only text files can be edited"
        ) from None
    pairs = text.count("\r\n")
    crlf = pairs > 0 and pairs == text.count("\n") == text.count("\r")
    return Text(text.replace("\r\n", "\n") if crlf else text, bom, crlf)


def replace_text(data: bytes, old: str, new: str, *, replace_all: bool, path: str) -> Edit:
    """Replace the only occurrence of `old`, or all of them, from left to right. Raises `ToolError` if it is not there, or not the only one."""
    file = decode(data, path)
    old, new = file.as_seen(old), file.as_seen(new)
    if not old:
        raise ToolError("old_text is empty; give the text to replace, or use write_file")
    if old == new:
        raise ToolError("old_text and new_text are the same; there is nothing to change")
    try:
        new.encode()
    except UnicodeEncodeError:
        raise ToolError("new_text holds half of a surrogate pair; write valid Unicode") from None
    first = file.text.find(old)
    if first < 0:
        raise ToolError(f"old_text is not in {path!r}; read the file again, and copy the text with its white space")
    # From one character on, not from the end: overlapping occurrences are two places as well.
    if not replace_all and (second := file.text.find(old, first + 1)) >= 0:
        lines = [file.text.count("\n", 0, place) + 1 for place in (first, second)]
        raise ToolError(
            f"old_text is in {path!r} more than once (lines {lines[0]} and {lines[1]}, at least); "
            "give more of the text around it, or set replace_all"
        )
    spans = _spans(file.text, old) if replace_all else [(first, first + len(old))]
    changed = file.text.replace(old, new) if replace_all else file.text[:first] + new + file.text[first + len(old) :]
    return Edit(file.encode(changed), len(spans), diff(file.text, spans, new, path))


def diff(text: str, spans: list[tuple[int, int]], new: str, path: str) -> str:
    """A unified diff, made from the places that were changed: time goes with the size of the diff, not with the square of the file's."""
    pieces = [f"--- {path}\n+++ {path}\n"]
    size = shift = 0
    groups = _groups(text, spans)
    for number, group in enumerate(groups):
        if number >= HUNKS_MAX or size > DIFF_CHARS_MAX:
            pieces.append(f"[... {len(groups) - number} more places changed ...]\n")
            break
        hunk, grown = _hunk(text, group, new, shift)
        hunk = returns_shown(hunk)
        shift += grown
        if len(hunk) > DIFF_CHARS_MAX:
            hunk = hunk[:DIFF_CHARS_MAX] + "\n[... the rest of this change is left out ...]\n"
        size += len(hunk)
        pieces.append(hunk)
    return "".join(pieces)


def _spans(text: str, old: str) -> list[tuple[int, int]]:
    found = []
    place = text.find(old)
    while place >= 0:
        found.append((place, place + len(old)))
        place = text.find(old, place + len(old))
    return found


@frozen
class _Group:
    """Places that share lines, and whole lines around them: text[start:end]."""

    start: int
    end: int
    spans: list[tuple[int, int]]


def _groups(text: str, spans: list[tuple[int, int]]) -> list[_Group]:
    groups: list[_Group] = []
    for span in spans:
        if groups and span[0] < groups[-1].end:
            # On a line that is shown already: no search for its start, which would make one long line cost its square.
            last = groups[-1]
            last.spans.append(span)
            if span[1] >= last.end:
                groups[-1] = _Group(last.start, text.find("\n", span[1]) + 1 or len(text), last.spans)
        else:
            groups.append(_Group(text.rfind("\n", 0, span[0]) + 1, text.find("\n", span[1]) + 1 or len(text), [span]))
    return groups


def _hunk(text: str, group: _Group, new: str, shift: int) -> tuple[str, int]:
    """The hunk, and by how many lines it makes the file longer."""
    pieces, place = [], group.start
    for start, end in group.spans:
        pieces += [text[place:start], new]
        place = end
    before = _lines(text[group.start : group.end])
    after = _lines("".join(pieces) + text[place : group.end])
    same = 0
    while same < min(len(before), len(after)) and before[same] == after[same]:
        same += 1
    alike = 0
    while alike < min(len(before), len(after)) - same and before[-1 - alike] == after[-1 - alike]:
        alike += 1
    lead = (_lines_before(text, group.start) + before[:same])[-_CONTEXT_LINES:]
    trail = (before[len(before) - alike :] + _lines_after(text, group.end))[:_CONTEXT_LINES]
    removed, added = before[same : len(before) - alike], after[same : len(after) - alike]
    line = text.count("\n", 0, group.start) + same - len(lead) + 1
    counts = len(lead) + len(trail)
    header = f"@@ -{line},{counts + len(removed)} +{line + shift},{counts + len(added)} @@\n"
    body = [f" {each}" for each in lead] + [f"-{each}" for each in removed] + [f"+{each}" for each in added]
    body += [f" {each}" for each in trail]
    return header + "".join(f"{each}\n" for each in body), len(added) - len(removed)


def _lines(text: str) -> list[str]:
    """Without their ends; an empty text has none."""
    return text.removesuffix("\n").split("\n") if text else []


def _lines_before(text: str, place: int) -> list[str]:
    start = place
    for _ in range(_CONTEXT_LINES):
        if start == 0:
            break
        start = text.rfind("\n", 0, start - 1) + 1
    return _lines(text[start:place])


def _lines_after(text: str, place: int) -> list[str]:
    end = place
    for _ in range(_CONTEXT_LINES):
        if end >= len(text):
            break
        end = text.find("\n", end) + 1 or len(text)
    return _lines(text[place:end])
