"""Searching with a pattern from the model, which can never hang (T19).

RE2 takes time proportional to the text, whatever the pattern; Python's own engine takes `(a+)+$` to the end of time, and holds the interpreter's
lock meanwhile, so that no other thread could even notice. What RE2 does not have (look-around, back-references) is refused by name.
File name patterns are matched by a loop of our own for the same reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from functools import lru_cache
from itertools import islice
from typing import Any, Protocol

from attrs import frozen

from trouper.tools.guards.refusal import Refused
from trouper.tools.terminal_text import returns_shown

PATTERN_CHARS_MAX = 1000
#: What the compiled pattern and its automata may take; past it RE2 refuses the pattern or falls back to a slower, still linear, way.
PATTERN_MEMORY_MAX = 8 * 1024 * 1024
#: How much of a matching line is shown.
LINE_CHARS_MAX = 500
_BINARY_PROBE = 8192
_LONG_LINE = 64 * 1024


class PatternRefused(Refused):
    """A pattern that the linear-time engine cannot run."""


@frozen
class Match:
    line: int
    text: str


class _Compiled(Protocol):
    def search(self, text: bytes) -> object | None: ...


def compile_pattern(pattern: str, *, ignore_case: bool = False, literal: bool = False) -> Searcher:
    """Raises `PatternRefused` with what RE2 has against it."""
    if not pattern:
        raise PatternRefused("the pattern is empty; write what to look for")
    if len(pattern) > PATTERN_CHARS_MAX:
        raise PatternRefused(f"the pattern has {len(pattern)} characters; use at most {PATTERN_CHARS_MAX}")
    try:
        pattern.encode()
    except UnicodeEncodeError:
        raise PatternRefused("the pattern holds half of a surrogate pair; write valid Unicode") from None
    lines = _compile(pattern, ignore_case, literal)
    # One look at the whole file tells most files without a match apart at the engine's speed. Where `\A` and `\z` mean the line in one case and
    # the file in the other, there is no such shortcut.
    anchored = not literal and ("\\A" in pattern or "\\z" in pattern)
    whole = None if anchored or literal else _compile("(?m)" + pattern, ignore_case, literal)
    return Searcher(pattern, lines, lines if literal and not anchored else whole)


def _compile(pattern: str, ignore_case: bool, literal: bool) -> _Compiled:
    import re2  # a compiled library: only those who search pay for loading it

    options: Any = re2.Options()
    options.log_errors = False  # it would write to the host's standard error
    options.max_mem = PATTERN_MEMORY_MAX
    options.case_sensitive = not ignore_case
    options.literal = literal
    options.never_capture = True
    try:
        compiled: _Compiled = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else "unknown reason"
        said = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise PatternRefused(
            f"pattern {pattern!r} is not one that RE2 can run ({said}); look-around, back-references and repeats over 1000 are not supported: "
            "write it without them, or search for a plain word",
            pattern=pattern,
        ) from None
    return compiled


@frozen
class Searcher:
    """A compiled pattern. Bytes in, so that no file is too oddly encoded to be searched."""

    pattern: str
    _lines: _Compiled
    #: Matches a whole file if, and perhaps more often than, some line of it matches; None where that cannot be had.
    _whole: _Compiled | None

    def search(self, data: bytes, *, lines_max: int | None = None) -> Iterator[Match]:
        """The lines that match, numbered from 1. Nothing for binary data."""
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")  # so that `$` is the end of the line for both of the looks below
        if is_binary(data) or (self._whole is not None and self._whole.search(data) is None):
            return
        for number, line in enumerate(islice(_lines(data), lines_max), 1):
            if self._lines.search(line) is not None:
                yield Match(number, _shorten(line))


def _lines(data: bytes) -> Iterator[bytes]:
    """One at a time: a list of all lines takes forty times the memory of a file that is nothing but line ends."""
    start = 0
    while (end := data.find(b"\n", start)) >= 0:
        yield data[start:end]
        start = end + 1
    if start < len(data):
        yield data[start:]


def is_binary(data: bytes) -> bool:
    """A NUL near the start, which is what everyone goes by; text in UTF-16 counts as binary."""
    return b"\0" in data[:_BINARY_PROBE]


def glob_matches(pattern: str, name: str) -> bool:
    """`*` is any run of characters, `?` any one. Time is at most the product of the lengths: only the last star is ever retried."""
    at = star = mark = 0
    position = 0
    seen_star = False
    while position < len(name):
        if at < len(pattern) and pattern[at] == "*":
            seen_star, star, mark = True, at, position
            at += 1
        elif at < len(pattern) and pattern[at] in ("?", name[position]):
            at += 1
            position += 1
        elif seen_star:
            mark += 1
            at, position = star + 1, mark
        else:
            return False
    return pattern[at:].strip("*") == ""


def path_matches(pattern: str, path: str) -> bool:
    """The same for a path, in which each `**/` is any number of directories, or none. Time is at most the product of the lengths, too."""
    # Most paths are nothing like it, which is seen sooner so.
    is_alike = glob_matches(pattern.replace("**/", "*"), path)
    if not is_alike or "**/" not in pattern:
        return is_alike
    pattern, after = _places(pattern)
    reached: Set[int] = after[0]
    for each in path:
        following: set[int] = set()
        for at in reached:
            place = pattern[at : at + 1]
            if place == "*":
                following.add(at)
            if place in ("*", "?", each):
                following |= after[at + 1]
        reached = following
    return len(pattern) in reached


@lru_cache(maxsize=8)
def _places(pattern: str) -> tuple[str, tuple[frozenset[int], ...]]:
    """The pattern, and for each place in it those that may be reached from there with nothing of the path: past a star, or a run of directories."""
    # Of several in a row one will do; so few places are reached from each.
    for several, one in (("***", "**"), ("**/**/", "**/")):
        while several in pattern:
            pattern = pattern.replace(several, one)
    found = [frozenset({len(pattern)})]
    for at in range(len(pattern) - 1, -1, -1):
        places = frozenset({at})
        if pattern[at] == "*":
            places |= found[0]
        if pattern.startswith("**/", at) and pattern[at - 1 : at] in ("", "/"):
            places |= found[2]
        found.insert(0, places)
    return pattern, tuple(found)


def _shorten(line: bytes) -> str:
    text = returns_shown(line[:_LONG_LINE].decode(errors="replace"))
    return text if len(text) <= LINE_CHARS_MAX else text[:LINE_CHARS_MAX] + "..."
