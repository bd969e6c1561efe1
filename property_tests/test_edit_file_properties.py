"""edit_file against a model: replacing in a plain string (T14)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trouper.tools import ToolError
from trouper.tools.builtin.editing import decode, replace_text

# Few characters, so that pieces repeat, overlap, touch and fall on line ends.
PIECES = st.text(alphabet="ab\n é", max_size=30)
SHORT = st.text(alphabet="ab\n é", max_size=4)
BOM = b"\xef\xbb\xbf"


def model(text: str, old: str, new: str, replace_all: bool) -> str | None:
    """What should become of the text; None for a refusal."""
    places = [place for place in range(len(text)) if old and text.startswith(old, place)]
    if not places or old == new or (len(places) > 1 and not replace_all):
        return None
    return text.replace(old, new)


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, str, str]:
    text = draw(PIECES)
    if text and draw(st.booleans()):
        start = draw(st.integers(0, len(text) - 1))
        old = text[start : start + draw(st.integers(1, 5))]
    else:
        old = draw(SHORT)
    return text, old, draw(SHORT)


@given(case=cases(), replace_all=st.booleans(), crlf=st.booleans(), bom=st.booleans(), as_crlf=st.booleans())
@settings(max_examples=400, deadline=None)
def test_edit_is_replacement_in_the_text(
    case: tuple[str, str, str], replace_all: bool, crlf: bool, bom: bool, as_crlf: bool
) -> None:
    """Whatever the line ends and the mark of the file, and whichever line ends the model writes; they stay the file's own."""
    text, old, new = case
    data = (BOM if bom else b"") + (text.replace("\n", "\r\n") if crlf else text).encode()
    file_has_crlf = crlf and "\n" in text
    if as_crlf and file_has_crlf:
        old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
    expected = model(text, old.replace("\r\n", "\n"), new.replace("\r\n", "\n"), replace_all)
    if expected is None:
        with pytest.raises(ToolError):
            replace_text(data, old, new, replace_all=replace_all, path="f")
        return
    edit = replace_text(data, old, new, replace_all=replace_all, path="f")
    assert edit.data == (BOM if bom else b"") + (expected.replace("\n", "\r\n") if file_has_crlf else expected).encode()


@given(
    text=st.text(alphabet="ab\r\n", max_size=20),
    old=st.text(alphabet="ab\r\n", min_size=1, max_size=3),
    new=st.text(alphabet="ab\n", max_size=3),
)
@settings(max_examples=300, deadline=None)
def test_mixed_line_ends_are_left_alone(text: str, old: str, new: str) -> None:
    """A file that is not of one kind is edited byte for byte."""
    if decode(text.encode(), "f").crlf:
        return
    expected = model(text, old, new, False)
    if expected is None:
        with pytest.raises(ToolError):
            replace_text(text.encode(), old, new, replace_all=False, path="f")
    else:
        assert replace_text(text.encode(), old, new, replace_all=False, path="f").data == expected.encode()


def lines_of(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []


def patched(text: str, diff: str) -> list[str]:
    """The lines of `text` with the diff applied, strictly: every context line and every removed line must be there."""
    before = lines_of(text)
    after: list[str] = []
    place = 0
    hunks = re.split(r"^@@ -(\d+),(\d+) \+(\d+),(\d+) @@\n", diff.split("\n", 2)[2], flags=re.MULTILINE)
    for start, removed, at, added, body in zip(*[iter(hunks[1:])] * 5, strict=True):
        while place < int(start) - 1:
            after.append(before[place])
            place += 1
        assert len(after) == int(at) - 1
        lines = body.split("\n")[:-1]
        assert sum(line[:1] in " -" for line in lines) == int(removed)
        assert sum(line[:1] in " +" for line in lines) == int(added)
        for line in lines:
            if line[:1] in " -":
                assert before[place] == line[1:]
                place += 1
            if line[:1] in " +":
                after.append(line[1:])
    return after + before[place:]


@given(
    text=st.lists(st.sampled_from(["a", "b", "ab", "", "c"]), max_size=40).map("\n".join),
    old=st.text(alphabet="ab\n", min_size=1, max_size=3),
    new=st.text(alphabet="abx\n", max_size=3),
)
@settings(max_examples=400, deadline=None)
def test_single_edit_has_a_diff_that_applies(text: str, old: str, new: str) -> None:
    """Line for line; whether the last line has an end is not told by the diff."""
    expected = model(text, old, new, False)
    if expected is None:
        return
    edit = replace_text(text.encode(), old, new, replace_all=False, path="f")
    assert patched(text, edit.diff) == lines_of(expected)


@given(
    lines=st.lists(st.sampled_from(["cat", "dog", "cat cat", "", "x"]), min_size=1, max_size=60),
    new=st.sampled_from(["cow", "a\nb", ""]),
)
@settings(max_examples=200, deadline=None)
def test_replace_all_counts_its_places_and_bounds_its_diff(lines: list[str], new: str) -> None:
    text = "\n".join(lines)
    if "cat" not in text:
        return
    edit = replace_text(text.encode(), "cat", new, replace_all=True, path="f")
    assert edit.data.decode() == text.replace("cat", new)
    assert edit.replacements == text.count("cat")
    assert len(edit.diff) < 20_000
