"""T9: whatever a tool puts out, what reaches the model is bounded, clean and valid."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trouper.tools import ToolResult, shape_output, terminal_text
from trouper.tools.output import Shaped, cut_text, is_plain
from trouper.tools.results import as_result
from trouper.tools.terminal_text import clean_text

pieces = st.sampled_from(
    [
        "\x1b[31m",
        "\x1b]0;t\x07",
        "\r",
        "\n",
        "\r\n",
        "error: x",
        "😀",
        "é",
        "\x9b",
        "\x1b",
        "\x07",
        "\ud800",
        "a" * 300,
        "\x00",
    ]
)
noise = st.lists(pieces | st.text(max_size=10), max_size=40).map("".join)
json_noise: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers(0, 9) | noise,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


def size(content: Any) -> int:
    return len(content.encode()) if isinstance(content, str) else len(orjson.dumps(content))


@settings(max_examples=200, deadline=None)
@given(json_noise, st.integers(0, 2_000), st.booleans())
def test_shaped_content_is_within_the_limit_and_clean(content: Any, limit: int, failed: bool) -> None:
    shaped = shape_output(ToolResult(content, is_error=failed), limit=limit, saved_as="outputs/x.txt")
    assert size(shaped.content) <= limit or shaped.content == ""
    assert b"\x1b" not in orjson.dumps(shaped.content)
    assert b"\\u001b" not in orjson.dumps(shaped.content)
    if shaped.full_text is None:
        assert not any(note.startswith("cut") for note in shaped.notes)
        assert shape_output(ToolResult(shaped.content), limit=limit).content == shaped.content


@settings(max_examples=200, deadline=None)
@given(json_noise | st.integers() | st.floats() | st.booleans(), st.integers(0, 200))
def test_what_is_plain_would_have_come_out_as_it_is(returned: Any, limit: int) -> None:
    if is_plain(returned, limit):
        assert shape_output(as_result(returned, "t"), limit=limit) == Shaped(returned)
        assert size(returned) <= limit


@settings(max_examples=200, deadline=None)
@given(noise, st.integers(0, 500), st.booleans())
def test_cut_text_holds_its_limit_and_begins_and_ends_as_the_text_does(text: str, limit: int, failed: bool) -> None:
    clean = clean_text(text)
    cut = cut_text(clean, limit, failed=failed)
    assert len(cut.encode()) <= limit
    if cut != clean and "\n[..." in cut:
        head, _, rest = cut.partition("\n[...")
        assert clean.startswith(head)
        assert clean.endswith(rest.rpartition("...]\n")[2]) or failed


@settings(max_examples=200, deadline=None)
@given(noise)
def test_cleaning_is_idempotent(text: str) -> None:
    once = clean_text(text)
    assert clean_text(once) == once


@settings(max_examples=300, deadline=None)
@given(noise, st.integers(1, 40))
def test_cleaning_in_slices_is_cleaning_the_whole(text: str, size: int) -> None:
    """An escape, or a line that is written over, may lie across any number of slices."""
    whole = clean_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(terminal_text, "SLICE_CHARS", size)
        assert clean_text(text) == whole
        assert "".join(terminal_text.slices(text)) == text == "".join(terminal_text.slices_at_lines(text))
