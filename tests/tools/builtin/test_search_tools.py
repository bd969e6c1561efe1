"""grep_files and find_files (T14, T19)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tool_bench import call, context_at, root

from trouper.tools import ToolContext, ToolError
from trouper.tools.builtin import find_files, grep_files, write_file


@pytest.fixture
async def context(tmp_path: Path) -> ToolContext:
    made = context_at(tmp_path)
    for path, content in {
        "a.py": "import os\nprint('Hello')\n",
        "sub/b.py": "def hello():\n    return 1\n",
        "sub/c.txt": "hello a.b\r\nhello axb\r\n",
    }.items():
        await call(write_file, made, path=path, content=content)
    return made


async def test_matches_have_path_line_and_text(context: ToolContext) -> None:
    told = await call(grep_files, context, pattern="hello", ignore_case=True)
    assert told["matches"] == [
        {"path": "a.py", "line": 2, "text": "print('Hello')"},
        {"path": "sub/b.py", "line": 1, "text": "def hello():"},
        {"path": "sub/c.txt", "line": 1, "text": "hello a.b"},
        {"path": "sub/c.txt", "line": 2, "text": "hello axb"},
    ]


async def test_search_is_narrowed_by_path_glob_and_literal(context: ToolContext) -> None:
    assert len((await call(grep_files, context, pattern="hello", path="sub"))["matches"]) == 3
    assert len((await call(grep_files, context, pattern="hello", glob="*.py"))["matches"]) == 1
    assert len((await call(grep_files, context, pattern="hello", glob="sub/*.py"))["matches"]) == 1
    assert len((await call(grep_files, context, pattern="import", glob="**/*.py"))["matches"]) == 1
    assert len((await call(grep_files, context, pattern="hello", glob="sub/**/*.py"))["matches"]) == 1
    assert len((await call(grep_files, context, pattern="a.b", literal=True))["matches"]) == 1
    assert len((await call(grep_files, context, pattern="^hello.*b$", path="sub/c.txt"))["matches"]) == 2


async def test_matches_come_in_pages(context: ToolContext) -> None:
    first = await call(grep_files, context, pattern="e", limit=2)
    second = await call(grep_files, context, pattern="e", limit=200, offset=first["next_offset"])
    assert len(first["matches"]) == 2
    assert second["next_offset"] is None
    assert first["matches"] + second["matches"] == (await call(grep_files, context, pattern="e"))["matches"]


async def test_anchors_of_the_text_mean_the_line(context: ToolContext) -> None:
    assert len((await call(grep_files, context, pattern="\\Ahello axb\\z"))["matches"]) == 1


@pytest.mark.parametrize(
    "pattern", ["(?=x)", "(a)\\1", "(", "a{2000}", "(((a{100}){100}){100})", "(?P<n>a)(?P=n)", "[z-a]"]
)
async def test_pattern_that_cannot_be_run_is_named(context: ToolContext, pattern: str) -> None:
    """T19."""
    with pytest.raises(ToolError, match="not one that RE2 can run"):
        await call(grep_files, context, pattern=pattern)


async def test_files_that_cannot_be_searched_are_counted_not_fatal(context: ToolContext, tmp_path: Path) -> None:
    (root(tmp_path) / "binary").write_bytes(b"hello\0")
    (root(tmp_path) / "odd\nname").write_text("hello")
    os.mkfifo(root(tmp_path) / "pipe")
    (root(tmp_path) / "link").symlink_to("/etc")
    os.link(root(tmp_path) / "a.py", root(tmp_path) / "hard.py")
    told = await call(grep_files, context, pattern="hello")
    assert {match["path"] for match in told["matches"]} == {"sub/b.py", "sub/c.txt"}
    assert told["files_skipped"] == 3  # the odd name, and both names of the hard link


async def test_long_lines_are_shortened(context: ToolContext) -> None:
    await call(write_file, context, path="long", content="needle" + "x" * 100_000)
    [match] = (await call(grep_files, context, pattern="needle"))["matches"]
    assert len(match["text"]) < 600


async def test_search_stops_at_its_limit(context: ToolContext, monkeypatch: pytest.MonkeyPatch) -> None:
    from trouper.tools.builtin import search

    monkeypatch.setattr(search, "SEARCH_LINES_MAX", 1)
    assert "narrow path" in (await call(grep_files, context, pattern="hello"))["note"]


async def test_files_are_found_by_name_at_any_depth(context: ToolContext) -> None:
    told = await call(find_files, context, glob="*.py")
    assert [entry["path"] for entry in told["entries"]] == ["a.py", "sub/b.py"]
    assert [entry["path"] for entry in (await call(find_files, context, glob="sub/?.*"))["entries"]] == [
        "sub/b.py",
        "sub/c.txt",
    ]
    assert (await call(find_files, context, glob="*", limit=2))["next_offset"] == 2
    with pytest.raises(ToolError, match="does not exist"):
        await call(find_files, context, glob="*", path="nothing")


async def test_odd_names_from_commands_cannot_forge_what_is_found(context: ToolContext, tmp_path: Path) -> None:
    """T17, security, names: neither a file's own nor that of a directory above it."""
    odd = root(tmp_path) / "sub\n\u202edir"
    odd.mkdir()
    (odd / "x.md").write_text("")
    (root(tmp_path) / "y\r.md").write_text("")
    told = await call(find_files, context, glob="*.md")
    assert [each["path"] for each in told["entries"]] == [r"y\r.md", r"sub\n\u202edir/x.md"]
