"""grep_files and find_files: looking through the files of a session, with patterns that cannot hang (T19)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, TypeAlias

from attrs import define

from trouper.core.messages import Json
from trouper.threads import check_cancelled
from trouper.tools.builtin.files import described, shown_path
from trouper.tools.builtin.session_files import (
    PAGE_DEFAULT,
    AnyPath,
    DirectoryPath,
    Limit,
    Offset,
    files_of,
)
from trouper.tools.context import ToolContext
from trouper.tools.define import tool
from trouper.tools.guards.descriptors import Entry
from trouper.tools.guards.linear_grep import (
    PATTERN_CHARS_MAX,
    Match,
    Searcher,
    compile_pattern,
    glob_matches,
    is_binary,
    path_matches,
)
from trouper.tools.guards.names import NAME_BYTES_MAX
from trouper.tools.guards.refusal import Refused
from trouper.tools.guards.rooted import RootedFiles
from trouper.tools.schema import Param
from trouper.tools.session_files import on_thread

#: What one call looks at. Linear is not fast enough for a tree of any size.
SEARCH_BYTES_MAX = 256 * 1024 * 1024
SEARCH_LINES_MAX = 2_000_000
RESULT_CHARS_MAX = 48 * 1024

Glob: TypeAlias = Annotated[
    str,
    Param(
        "Which files: '*' is any run of characters, '?' any one. With a '/', it is matched with the whole path ('**/' may be no directory), else with the name",
        min_length=1,
        max_length=NAME_BYTES_MAX,
    ),
]


@define
class _Spent:
    files: int = 0
    skipped: int = 0
    bytes: int = 0
    lines: int = 0

    @property
    def up(self) -> bool:
        return self.bytes > SEARCH_BYTES_MAX or self.lines > SEARCH_LINES_MAX


@tool(display_name="Grep Files", readonly=True, open_world=False, needs=("files",))
async def grep_files(
    context: ToolContext,
    pattern: Annotated[
        str,
        Param(
            "A regular expression in RE2 syntax (no look-around, no back-references)",
            min_length=1,
            max_length=PATTERN_CHARS_MAX,
        ),
    ],
    path: AnyPath = ".",
    glob: Glob = "*",
    ignore_case: Annotated[bool, "Take upper and lower case as the same"] = False,
    literal: Annotated[bool, "Take the pattern as plain text"] = False,
    offset: Offset = 0,
    limit: Limit = PAGE_DEFAULT,
) -> Json:
    """Search the lines of text files with a regular expression. Returns path, line number and line, a page at a time.

    Limits: {PAGE_DEFAULT} matches a page unless `limit` says otherwise; {SEARCH_BYTES_MAX} bytes or {SEARCH_LINES_MAX} lines searched a call; {PATTERN_CHARS_MAX} characters of pattern.
    Errors: a pattern that RE2 cannot run; no such path.
    """
    searcher = compile_pattern(pattern, ignore_case=ignore_case, literal=literal)
    files = files_of(context)

    def work() -> Json:
        spent = _Spent()
        found: list[Json] = []
        shown = seen = 0
        more = False
        for entry, match in _matches(files, path, glob, searcher, spent):
            seen += 1
            if seen <= offset:
                continue
            if len(found) >= limit or shown > RESULT_CHARS_MAX:
                more = True
                break
            shown += len(match.text) + len(entry.path) + 40
            found.append({"path": entry.path, "line": match.line, "text": match.text})
        result: dict[str, Json] = {"matches": found, "files_searched": spent.files, "files_skipped": spent.skipped}
        result["next_offset"] = offset + len(found) if more else None
        if spent.up:
            result["note"] = "The search stopped at its limit before it was through; narrow path or glob."
        return result

    return await on_thread(work)


@tool(display_name="Find Files", readonly=True, open_world=False, needs=("files",))
async def find_files(
    context: ToolContext, glob: Glob, path: DirectoryPath = ".", offset: Offset = 0, limit: Limit = PAGE_DEFAULT
) -> Json:
    """Find files and directories by name, at any depth, a page at a time.

    Limits: {PAGE_DEFAULT} entries a page unless `limit` says otherwise.
    Errors: no such path.
    """

    def work() -> Json:
        found = [entry for entry in _walk(files_of(context), path) if _chosen(entry, glob)]
        page = found[offset : offset + limit]
        return {
            "entries": [{"path": shown_path(entry), **described(entry)} for entry in page],
            "total": len(found),
            "next_offset": offset + limit if offset + limit < len(found) else None,
        }

    return await on_thread(work)


def _matches(
    files: RootedFiles, path: str, glob: str, searcher: Searcher, spent: _Spent
) -> Iterator[tuple[Entry, Match]]:
    start = files.stat(path)
    for entry in [start] if start.kind == "file" else _walk(files, path):
        if entry.kind != "file" or (entry is not start and not _chosen(entry, glob)):
            continue
        try:
            yield from ((entry, match) for match in _matches_in(files, entry, searcher, spent))
        except Refused:
            if entry is start:
                raise
            spent.skipped += 1  # a hard link, an odd name, or gone meanwhile
            continue
        if spent.up:
            return


def _matches_in(files: RootedFiles, entry: Entry, searcher: Searcher, spent: _Spent) -> Iterator[Match]:
    line = 0
    for number, block in enumerate(files.line_blocks(entry.path)):
        check_cancelled()
        spent.bytes += len(block)
        if number == 0:
            spent.files += 1
            spent.lines += 1
            if is_binary(block):
                return
        for match in searcher.search(block, lines_max=SEARCH_LINES_MAX - spent.lines):
            yield Match(line + match.line, match.text)
        line += block.count(b"\n")
        spent.lines += block.count(b"\n")
        if spent.up:
            return


def _walk(files: RootedFiles, path: str) -> Iterator[Entry]:
    for number, entry in enumerate(files.walk(path)):
        if number % 256 == 0:
            check_cancelled()
        yield entry


def _chosen(entry: Entry, glob: str) -> bool:
    return path_matches(glob, entry.path) if "/" in glob else glob_matches(glob, entry.name)
