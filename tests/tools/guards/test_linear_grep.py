"""Searching in linear time (T19), and file name patterns."""

from __future__ import annotations

import fnmatch
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trouper.tools.guards.linear_grep import PatternRefused, compile_pattern, glob_matches, path_matches


def found(pattern: str, data: bytes, **options: bool) -> list[int]:
    return [match.line for match in compile_pattern(pattern, **options).search(data)]


def test_lines_are_numbered_from_one_and_ends_do_not_matter() -> None:
    for data in (b"a\nb\na", b"a\nb\na\n", b"a\r\nb\r\na\r\n"):
        assert found("^a$", data) == [1, 3]


def test_matches_do_not_cross_lines() -> None:
    assert found("a[^x]*b", b"a\nb\n") == []
    assert found("a\\s+b", b"a\nb\na b\n") == [3]


def test_bytes_that_are_no_text_are_searched_all_the_same() -> None:
    assert found("word", b"\xff\xfe word \xe9\n") == [1]
    assert found("word", b"word\0") == []


@pytest.mark.parametrize(("pattern", "said"), [("", "empty"), ("x" * 1001, "at most 1000"), ("\ud800", "surrogate")])
def test_pattern_out_of_bounds_is_refused(pattern: str, said: str) -> None:
    with pytest.raises(PatternRefused, match=said):
        compile_pattern(pattern)


@given(
    lines=st.lists(st.text(alphabet="ab ", max_size=6), max_size=8),
    pattern=st.sampled_from(
        ["a", "^a", "b$", "a+b", "^$", "(a|b) ", "[^a]", "\\bab\\b", "a.b", "^(ab)*$", "\\Aa", "b\\z"]
    ),
)
def test_search_finds_what_pythons_engine_finds_line_by_line(lines: list[str], pattern: str) -> None:
    """The shortcut over whole files must not lose a line."""
    expected = [number for number, line in enumerate(lines, 1) if re.search(pattern.replace("\\z", "\\Z"), line)]
    data = "\n".join(lines).encode() + (b"\n" if lines else b"")
    assert found(pattern, data) == expected


@given(pattern=st.text(alphabet="ab*?", max_size=8), name=st.text(alphabet="ab/", max_size=8))
def test_globs_match_as_fnmatch_does(pattern: str, name: str) -> None:
    assert glob_matches(pattern, name) == fnmatch.fnmatchcase(name, pattern)


@given(
    pattern=st.lists(st.sampled_from(["a", "b", "*", "?", "/", "**/", "/**/", "**"]), max_size=7).map("".join),
    path=st.text(alphabet="ab/", max_size=9),
)
def test_each_run_of_directories_in_a_pattern_may_be_none(pattern: str, path: str) -> None:
    """Whichever of them: `a/**/b/**/c` is `a/b/c`, `a/x/b/c` and `a/b/x/c`."""
    written = re.sub(r"(?<![^/])\*\*+/|\*+|\?", lambda found: _AS_REGEX[found[0][-1]], pattern)
    assert path_matches(pattern, path) == (re.fullmatch(written, path) is not None)


_AS_REGEX = {"/": "(?:.*/)?", "*": ".*", "?": "."}


def test_hostile_glob_ends() -> None:
    assert not glob_matches("*a" * 60 + "b", "a" * 250)
    for pattern in ("**/" * 84 + "b", "*" * 250 + "/b", "**/a/" * 50 + "b", "*a/" * 80 + "b", "*?" * 120 + "/b"):
        assert not path_matches(pattern, "a/" * 2_000)
