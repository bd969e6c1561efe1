"""The file tools as a model uses them (T14). What they must never reach is in tests/tools/guards."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tool_bench import call, context_at, root

from trouper.tools import InvalidArguments, ToolError, ToolResult, shape_output
from trouper.tools.builtin import (
    delete_file,
    edit_file,
    grep_files,
    list_directory,
    read_file,
    rename_file,
    stat_file,
    write_file,
)
from trouper.tools.builtin.files import described
from trouper.tools.builtin.session_files import files_of
from trouper.tools.guards.descriptors import Entry, content_hash


async def test_written_file_is_read_back_with_its_hash(tmp_path: Path) -> None:
    context = context_at(tmp_path)
    written = await call(write_file, context, path="notes/deep/a.txt", content="one\ntwo\n")
    assert written == {"path": "notes/deep/a.txt", "created": True, "size": 8, "hash": content_hash(b"one\ntwo\n")}
    told = await call(read_file, context, path="notes/deep/a.txt")
    assert (told["content"], told["lines"], told["total_lines"], told["next_offset"]) == ("one\ntwo\n", 2, 2, None)
    assert told["hash"] == written["hash"]
    again = await call(write_file, context, path="notes/deep/a.txt", content="three")
    assert not again["created"]


async def test_lines_are_read_by_offset_and_limit(tmp_path: Path) -> None:
    context = context_at(tmp_path)
    await call(write_file, context, path="a", content="".join(f"line {number}\n" for number in range(1, 3001)))
    first = await call(read_file, context, path="a")
    assert (first["lines"], first["next_offset"], first["total_lines"]) == (2000, 2001, 3000)
    assert "offset 2001" in first["note"]
    rest = await call(read_file, context, path="a", offset=2001)
    assert rest["content"].startswith("line 2001\n")
    assert rest["next_offset"] is None
    assert (await call(read_file, context, path="a", offset=3000, limit=5))["content"] == "line 3000\n"
    with pytest.raises(ToolError, match="past its end"):
        await call(read_file, context, path="a", offset=3001)
    for wrong in ({"offset": 0}, {"limit": 0}, {"limit": 2001}, {"offset": -1}):
        with pytest.raises(InvalidArguments):
            await call(read_file, context, path="a", **wrong)


async def test_read_stops_at_fifty_kibibytes_between_lines(tmp_path: Path) -> None:
    context = context_at(tmp_path)
    await call(write_file, context, path="a", content=("x" * 999 + "\n") * 100)
    told = await call(read_file, context, path="a")
    assert told["lines"] == 51
    assert len(told["content"]) == 51_000
    assert told["next_offset"] == 52


async def test_one_endless_line_is_cut_at_a_character(tmp_path: Path) -> None:
    context = context_at(tmp_path)
    await call(write_file, context, path="a", content="é" * 100_000)
    told = await call(read_file, context, path="a")
    assert set(told["content"]) == {"é"}
    assert len(told["content"]) == 25_600
    assert "Only a part of line 1" in told["note"]


async def test_empty_and_unended_files_have_their_lines_counted(tmp_path: Path) -> None:
    context = context_at(tmp_path)
    for content, lines in (("", 0), ("\n", 1), ("a", 1), ("a\nb", 2), ("a\n\n", 2)):
        await call(write_file, context, path="a", content=content)
        told = await call(read_file, context, path="a")
        assert (told["content"], told["total_lines"]) == (content, lines)


async def test_binary_file_is_reported_not_dumped(tmp_path: Path) -> None:
    context = context_at(tmp_path)
    await call(write_file, context, path="a", content="x")
    (root(tmp_path) / "b.bin").write_bytes(b"\x89PNG\0\0" * 100)
    told = await call(read_file, context, path="b.bin")
    assert told["binary"] is True
    assert "content" not in told
    assert told["hash"]


async def test_edit_keeps_line_ends_mark_and_mode(tmp_path: Path) -> None:
    """T14."""
    context = context_at(tmp_path)
    await call(write_file, context, path="x", content="")
    script = root(tmp_path) / "run.bat"
    script.write_bytes(b"\xef\xbb\xbfecho one\r\necho two\r\n")
    os.chmod(script, 0o755)
    shown = await call(read_file, context, path="run.bat")
    assert shown["content"] == "echo one\necho two\n"
    edited = await call(edit_file, context, path="run.bat", old_text="one\necho two", new_text="1\necho 2\necho 3")
    assert script.read_bytes() == b"\xef\xbb\xbfecho 1\r\necho 2\r\necho 3\r\n"
    assert script.stat().st_mode & 0o777 == 0o755
    assert edited["replacements"] == 1


async def test_text_before_a_lone_carriage_return_is_shown(tmp_path: Path) -> None:
    """T14, T9: in a terminal a carriage return writes over the line; in a file the text before it is still there."""
    context = context_at(tmp_path)
    await call(write_file, context, path="old-mac.txt", content="one\rtwo\rthree")
    shown = await call(read_file, context, path="old-mac.txt")
    assert shown["content"] == "one\u240dtwo\u240dthree"
    assert shown["note"] == "'\u240d' stands for a carriage return within a line."
    assert shape_output(ToolResult(shown)).content == shown
    edited = await call(edit_file, context, path="old-mac.txt", old_text="two", new_text="2")
    assert "-one\u240dtwo\u240dthree\n+one\u240d2\u240dthree\n" in edited["diff"]
    assert (root(tmp_path) / "old-mac.txt").read_bytes() == b"one\r2\rthree"
    found = await call(grep_files, context, pattern="one")
    assert found["matches"] == [{"path": "old-mac.txt", "line": 1, "text": "one\u240d2\u240dthree"}]


async def test_edit_shows_a_diff(tmp_path: Path) -> None:
    context = context_at(tmp_path)
    await call(write_file, context, path="a.txt", content="".join(f"line {number}\n" for number in range(1, 21)))
    edited = await call(edit_file, context, path="a.txt", old_text="line 10\n", new_text="LINE X\nLINE Y\n")
    assert edited["diff"] == (
        "--- a.txt\n+++ a.txt\n@@ -7,7 +7,8 @@\n line 7\n line 8\n line 9\n-line 10\n+LINE X\n+LINE Y\n line 11\n line 12\n line 13\n"
    )


async def test_edit_needs_one_place_unless_told_otherwise(tmp_path: Path) -> None:
    context = context_at(tmp_path)
    await call(write_file, context, path="a", content="cat\ndog\ncat\n")
    with pytest.raises(ToolError, match="lines 1 and 3"):
        await call(edit_file, context, path="a", old_text="cat", new_text="cow")
    with pytest.raises(ToolError, match="is not in 'a'"):
        await call(edit_file, context, path="a", old_text="Cat", new_text="cow")
    with pytest.raises(ToolError, match="the same"):
        await call(edit_file, context, path="a", old_text="cat", new_text="cat")
    told = await call(edit_file, context, path="a", old_text="cat", new_text="cow", replace_all=True)
    assert told["replacements"] == 2
    assert (root(tmp_path) / "a").read_text() == "cow\ndog\ncow\n"


async def test_overlapping_places_are_two_places(tmp_path: Path) -> None:
    context = context_at(tmp_path)
    await call(write_file, context, path="a", content="aaa")
    with pytest.raises(ToolError, match="more than once"):
        await call(edit_file, context, path="a", old_text="aa", new_text="b")


async def test_hash_makes_an_edit_compare_and_swap(tmp_path: Path) -> None:
    """T14."""
    context = context_at(tmp_path)
    first = await call(write_file, context, path="a", content="one")
    await call(write_file, context, path="a", content="two")
    with pytest.raises(ToolError, match="has changed"):
        await call(edit_file, context, path="a", old_text="two", new_text="three", expected_hash=first["hash"])
    with pytest.raises(ToolError, match="has changed"):
        await call(write_file, context, path="a", content="three", expected_hash=first["hash"])
    now = (await call(read_file, context, path="a"))["hash"]
    await call(edit_file, context, path="a", old_text="two", new_text="three", expected_hash=now)
    assert (root(tmp_path) / "a").read_text() == "three"
    with pytest.raises(InvalidArguments):
        await call(write_file, context, path="a", content="x", expected_hash="abc")


async def test_file_that_is_not_text_is_not_edited(tmp_path: Path) -> None:
    context = context_at(tmp_path)
    await call(write_file, context, path="x", content="")
    (root(tmp_path) / "latin").write_bytes(b"caf\xe9")
    with pytest.raises(ToolError, match="not text in UTF-8"):
        await call(edit_file, context, path="latin", old_text="caf", new_text="tea")


async def test_directory_is_listed_in_pages(tmp_path: Path) -> None:
    context = context_at(tmp_path)
    for number in range(5):
        await call(write_file, context, path=f"d/{number}.txt", content="x" * number)
    await call(write_file, context, path="d/sub/x", content="")
    page = await call(list_directory, context, path="d", limit=4)
    assert [entry["name"] for entry in page["entries"]] == ["0.txt", "1.txt", "2.txt", "3.txt"]
    assert (page["total"], page["next_offset"]) == (6, 4)
    last = await call(list_directory, context, path="d", offset=4)
    assert [(entry["name"], entry["type"]) for entry in last["entries"]] == [("4.txt", "file"), ("sub", "directory")]
    assert last["next_offset"] is None
    with pytest.raises(InvalidArguments):
        await call(list_directory, context, path="d", limit=1001)


async def test_top_of_an_empty_session_can_be_listed(tmp_path: Path) -> None:
    assert (await call(list_directory, context_at(tmp_path)))["entries"] == []


@pytest.mark.parametrize("at_s", [3e11, -3e11, 1e18])
def test_a_time_that_no_calendar_has_spoils_no_listing(at_s: float) -> None:
    """T14: a command may set any, and tmpfs keeps it."""
    told = described(Entry(("a",), "file", 1, 0o600, at_s, 1))
    assert told == {"name": "a", "type": "file", "size": 1, "modified": None}


async def test_odd_names_from_commands_cannot_forge_a_listing(tmp_path: Path) -> None:
    context = context_at(tmp_path)
    await call(write_file, context, path="x", content="")
    (root(tmp_path) / "a\nfake.txt").write_text("")
    (root(tmp_path) / "b\u202etxt.exe").write_text("")
    entries = (await call(list_directory, context))["entries"]
    assert [entry["name"] for entry in entries] == ["a\\nfake.txt", "b\\u202etxt.exe", "x"]
    assert "refuse" in entries[0]["note"]


async def test_delete_takes_directories_only_when_told(tmp_path: Path) -> None:
    context = context_at(tmp_path)
    await call(write_file, context, path="d/sub/a", content="x")
    with pytest.raises(ToolError, match="not empty"):
        await call(delete_file, context, path="d")
    assert (await call(delete_file, context, path="d", recursive=True))["deleted"] == 3
    with pytest.raises(ToolError, match="does not exist"):
        await call(delete_file, context, path="d")
    with pytest.raises(ToolError, match="is not deleted"):
        await call(delete_file, context, path=".", recursive=True)


async def test_stat_tells_without_reading(tmp_path: Path) -> None:
    context = context_at(tmp_path)
    await call(write_file, context, path="d/a", content="12345")
    told = await call(stat_file, context, path="d/a")
    assert (told["type"], told["size"], told["mode"], told["path"]) == ("file", 5, "0600", "d/a")
    assert (await call(stat_file, context, path="d"))["type"] == "directory"
    assert (await call(stat_file, context, path="."))["type"] == "directory"
    with pytest.raises(ToolError, match="does not exist"):
        await call(stat_file, context, path="nothing")


async def test_rename_moves_and_does_not_overwrite_by_accident(tmp_path: Path) -> None:
    context = context_at(tmp_path)
    await call(write_file, context, path="a", content="A")
    await call(write_file, context, path="b", content="B")
    with pytest.raises(ToolError, match="exists"):
        await call(rename_file, context, path="a", new_path="b")
    await call(rename_file, context, path="a", new_path="b", replace=True)
    await call(rename_file, context, path="b", new_path="deep/er/c")
    assert (root(tmp_path) / "deep/er/c").read_text() == "A"
    with pytest.raises(ToolError, match="into itself"):
        await call(rename_file, context, path="deep", new_path="deep/er/deep")


async def test_refusals_never_name_the_host(tmp_path: Path) -> None:
    context = context_at(tmp_path)
    await call(write_file, context, path="a", content="x")
    (root(tmp_path) / "link").symlink_to("/etc/passwd")
    for path in ("link", "a/b", "../x", "/etc/passwd", "missing"):
        with pytest.raises(ToolError) as caught:
            await call(read_file, context, path=path)
        assert str(tmp_path) not in caught.value.message


async def test_an_endless_line_is_read_to_its_end_by_columns(tmp_path: Path) -> None:
    """T9: whatever was cut can be read, also if it is all one line."""
    context = context_at(tmp_path)
    line = "aé✓😀" * 20_000
    await call(write_file, context, path="a", content="first\n" + line + "\nlast\n")
    read, column = "", 1
    for _ in range(10):
        told = await call(read_file, context, path="a", offset=2, limit=1, column=column)
        read += told["content"]
        if (column := told.get("next_column", 0)) == 0:
            break
        assert told["next_offset"] == 2
    assert read == line + "\n" and told["next_offset"] == 3
    with pytest.raises(ToolError, match="column 7 is past its end"):
        await call(read_file, context, path="a", offset=1, column=7)
    assert (await call(read_file, context, path="a", offset=1, column=6))["content"].startswith("\n")


async def test_files_over_the_limit_of_a_write_are_read_and_searched_in_parts(tmp_path: Path) -> None:
    """T9: an output that is kept in full may be larger than any file that a tool writes."""
    context = context_at(tmp_path)
    files = files_of(context)
    lines = 50_000
    files.write_pieces("outputs/big.txt", (b"x" * 999 + b"\n" for _ in range(lines)))
    told = await call(read_file, context, path="outputs/big.txt", offset=lines, limit=1)
    assert (told["content"], told["total_lines"], told["size"]) == ("x" * 999 + "\n", lines, lines * 1000)
    with pytest.raises(ToolError, match="past its end"):
        await call(read_file, context, path="outputs/big.txt", offset=lines + 1)
    files.write_pieces("needle.txt", [b"y" * 40_000_000, b"\nno\n", b"here is the needle\n"])
    found = await call(grep_files, context, pattern="the needle")
    assert [(match["path"], match["line"]) for match in found["matches"]] == [("needle.txt", 3)]
