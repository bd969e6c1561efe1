"""T9: what of a tool's output reaches the model."""

from __future__ import annotations

import json

import orjson
import pytest

from trouper.tools import OUTPUT_MAX, ToolResult, shape_output
from trouper.tools.output import cut_text, is_plain
from trouper.tools.terminal_text import clean_text


@pytest.mark.parametrize(
    "content", ["short", "", {"a": [1, None]}, [], 5, None, True, "naïve ✓ 😀\n\ttab", "crlf\r\nlines\r\n"]
)
def test_small_output_is_untouched(content: object) -> None:
    shaped = shape_output(ToolResult(content))
    assert shaped.content == content
    assert shaped.full_text is None
    assert shaped.notes == ()


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("a\x1b[2K\x1b[1Gb", "ab"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]52;c;c2VjcmV0\x07x", "x"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPdcs\x1b\\x", "x"),
        ("\x9b31mred", "red"),
        ("\x1b(Bx\x1b=y", "xy"),
        ("a\x1b", "a"),
        ("\x1b]never ends, and the rest stays", "never ends, and the rest stays"),
        ("bell\x07 null\x00 back\x08", "bell null back"),
        ("10%\r50%\r100%\ndone", "100%\ndone"),
        ("10%\r50%\r\n", "50%\r\n"),
        ("a\r\nb\r\n", "a\r\nb\r\n"),
        ("\rprogress", "progress"),
        ("a\udc80b", "a\ufffdb"),
    ],
)
def test_escapes_are_stripped_and_overwritten_lines_collapse(text: str, clean: str) -> None:
    assert clean_text(text) == clean
    assert shape_output(ToolResult({"out": [text]})).content == {"out": [clean]}


def test_stripping_is_noted() -> None:
    assert shape_output(ToolResult("\x1b[1mx")).notes == (
        "stripped terminal escapes, control characters or overwritten lines",
    )


@pytest.mark.parametrize(
    "text",
    [
        "\x1b]" * 50_000,
        "\x9d" * 100_000,
        "\x1b[" * 50_000,
        "\r" * 100_000,
        "x" * 100_000 + "\r\n",
        "\x1b[" + "0" * 100_000,
    ],
)
def test_stripping_hostile_text_leaves_no_escape(text: str) -> None:
    """Security: each of these is a worst case for a careless expression."""
    clean = clean_text(text)
    assert "\x1b" not in clean
    assert "\x9d" not in clean


def test_long_text_keeps_head_and_tail_within_the_cap() -> None:
    text = "HEAD" + "x" * 200_000 + "TAIL"
    shaped = shape_output(ToolResult(text), saved_as="outputs/call_1.txt")
    assert len(shaped.content.encode()) <= OUTPUT_MAX
    assert len(shaped.content.encode()) > OUTPUT_MAX * 0.9
    assert shaped.content.startswith("HEAD")
    assert shaped.content.endswith("TAIL")
    assert shaped.full_text == text
    assert "'outputs/call_1.txt'" in shaped.content
    assert "read_file" in shaped.content
    assert shaped.notes == (f"cut from 200008 to {OUTPUT_MAX} bytes",)


def test_note_without_a_file_says_what_to_do() -> None:
    assert "ask for less" in shape_output(ToolResult("x" * 100_000)).content


@pytest.mark.parametrize("character", ["é", "✓", "😀", "\u0301"])
def test_cuts_fall_between_code_points(character: str) -> None:
    for offset in range(5):
        text = "a" * offset + character * 40_000
        cut = cut_text(text, 1_000)
        assert len(cut.encode()) <= 1_000
        assert "\ufffd" not in cut
        assert set(cut.split("\n[...")[0]) <= {"a", character}


def test_error_regions_are_kept_on_failure_only() -> None:
    lines = [f"compiling file number {number} of many" for number in range(5_000)]
    lines[2_500] = "src/x.c:7: error: undefined name 'foo'"
    text = "\n".join(lines)
    failed = shape_output(ToolResult(text, is_error=True)).content
    assert "src/x.c:7: error: undefined name 'foo'" in failed
    assert "compiling file number 2499" in failed
    assert "compiling file number 2501" in failed
    assert len(failed.encode()) <= OUTPUT_MAX
    assert "undefined name" not in shape_output(ToolResult(text)).content
    assert "undefined name" in shape_output(ToolResult(text), failed=True).content


def test_many_error_lines_stay_within_the_cap() -> None:
    text = "\n".join(f"error: number {number}" for number in range(50_000))
    shaped = shape_output(ToolResult(text, is_error=True))
    assert len(shaped.content.encode()) <= OUTPUT_MAX
    assert shaped.content.startswith("error: number 0\n")
    assert shaped.content.endswith("error: number 49999")


def test_long_text_inside_an_object_is_cut_and_the_rest_kept() -> None:
    content = {"exit_code": 1, "stdout": "o" * 300_000, "stderr": "e" * 10, "lines": [1, 2, 3]}
    shaped = shape_output(ToolResult(content))
    assert len(orjson.dumps(shaped.content)) <= OUTPUT_MAX
    assert shaped.content["exit_code"] == 1
    assert shaped.content["stderr"] == "e" * 10
    assert shaped.content["lines"] == [1, 2, 3]
    assert 1_000 < len(shaped.content["stdout"]) < OUTPUT_MAX
    assert json.loads(shaped.full_text or "") == content


def test_object_of_many_small_parts_becomes_cut_text() -> None:
    content = {"rows": [{"id": number} for number in range(50_000)]}
    shaped = shape_output(ToolResult(content))
    assert isinstance(shaped.content, str)
    assert len(shaped.content.encode()) <= OUTPUT_MAX
    assert json.loads(shaped.full_text or "") == content


def test_persisted_output_is_kept_even_if_it_fits() -> None:
    assert shape_output(ToolResult("small"), persist=True).full_text == "small"
    assert json.loads(shape_output(ToolResult({"a": 1}), persist=True).full_text or "") == {"a": 1}


def test_raw_output_is_never_shown() -> None:
    """T2."""
    shaped = shape_output(ToolResult("summary", raw_output="RAW" * 100_000))
    assert shaped.content == "summary"
    assert shaped.full_text is None


@pytest.mark.parametrize("limit", [0, 1, 10, 80, 200])
def test_tiny_limits_hold(limit: int) -> None:
    assert len(shape_output(ToolResult("😀" * 1_000), limit=limit).content.encode()) <= limit


@pytest.mark.parametrize("returned", ["", "text", "é" * 100, True, None, 0, 2**64 - 1])
def test_what_most_tools_return_is_plain(returned: object) -> None:
    """T9."""
    assert is_plain(returned, 1_000)


@pytest.mark.parametrize("returned", ["x" * 1_001, "\x1b[31mred", "\ud800", 2**64, 1.5, [], {}, ToolResult("text")])
def test_what_has_to_be_looked_at_is_not_plain(returned: object) -> None:
    """T9."""
    assert not is_plain(returned, 1_000)
