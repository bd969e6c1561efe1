"""The tools for the files of a session (T14). Every path goes through `guards.rooted`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from trouper.core.messages import Json
from trouper.tools.builtin.editing import Edit, replace_text
from trouper.tools.builtin.reading import LINES_MAX, READ_BYTES_MAX, read_lines  # noqa: F401 - named in docstrings
from trouper.tools.builtin.session_files import (
    PAGE_DEFAULT,
    AnyPath,
    DirectoryPath,
    FilePath,
    Hash,
    Limit,
    Offset,
    files_of,
)
from trouper.tools.context import ToolContext
from trouper.tools.define import tool
from trouper.tools.errors import ToolError
from trouper.tools.guards.descriptors import Entry
from trouper.tools.guards.names import reachable
from trouper.tools.guards.rooted import DEFAULT_QUOTA
from trouper.tools.schema import Param
from trouper.tools.session_files import on_thread

FILE_BYTES_MAX = DEFAULT_QUOTA.file_bytes_max
TREE_BYTES_MAX = DEFAULT_QUOTA.bytes_max
TREE_ENTRIES_MAX = DEFAULT_QUOTA.entries_max
#: Writers of one session take turns (L8).
_CLASS = "files"


@tool(display_name="Read File", readonly=True, open_world=False, needs=("files",))
async def read_file(
    context: ToolContext,
    path: FilePath,
    offset: Annotated[int, Param("The first line to return, from 1", ge=1)] = 1,
    limit: Annotated[int, Param("How many lines to return at most", ge=1, le=LINES_MAX)] = LINES_MAX,
    column: Annotated[
        int, Param("The first byte of the first line to return, from 1: for a line that is too long for one call", ge=1)
    ] = 1,
) -> Json:
    """Read a text file, or some lines of it. Returns the text, the number of lines, and the hash of the whole file, which edit_file and write_file take to make sure that nothing has changed meanwhile.

    Limits: {LINES_MAX} lines or {READ_BYTES_MAX} bytes a call; files up to {TREE_BYTES_MAX} bytes. A binary file is reported, not returned.
    Errors: no such file; a directory, a link, a pipe or a device; an offset past the end.
    """
    files = files_of(context)
    return await on_thread(lambda: read_lines(files.pieces(path), path, offset, limit, column))


@tool(
    display_name="Write File",
    idempotent=True,
    destructive=True,
    open_world=False,
    concurrency_class=_CLASS,
    needs=("files",),
)
async def write_file(
    context: ToolContext,
    path: FilePath,
    content: Annotated[str, Param("The whole new content", max_length=FILE_BYTES_MAX)],
    expected_hash: Hash = None,
) -> Json:
    """Create a file, or replace the whole of one. Missing directories are made. To change a part of a file, use edit_file.

    Limits: {FILE_BYTES_MAX} bytes a file, {TREE_BYTES_MAX} bytes and {TREE_ENTRIES_MAX} entries a session.
    Errors: a name that is not allowed; a directory or a link in the way; a hash that is no longer the file's; the quota.
    """
    try:
        data = content.encode()
    except UnicodeEncodeError:
        raise ToolError("content holds half of a surrogate pair; write valid Unicode") from None
    written = await on_thread(lambda: files_of(context).write(path, data, expected_hash=expected_hash))
    return {"path": written.path, "created": written.created, "size": written.size, "hash": written.hash}


@tool(display_name="Edit File", destructive=True, open_world=False, concurrency_class=_CLASS, needs=("files",))
async def edit_file(
    context: ToolContext,
    path: FilePath,
    old_text: Annotated[
        str, Param("The exact text to replace, with its white space", min_length=1, max_length=FILE_BYTES_MAX)
    ],
    new_text: Annotated[str, Param("What to put in its place", max_length=FILE_BYTES_MAX)],
    replace_all: Annotated[bool, "Replace every occurrence; else there must be exactly one"] = False,
    expected_hash: Hash = None,
) -> Json:
    """Replace a piece of text in a file. The text must be there exactly once, unless replace_all is set. Line ends, byte-order mark and mode of the file are kept. Returns a diff.

    Limits: as write_file.
    Errors: text that is not there, or is there more than once; a file that is not UTF-8; a hash that is no longer the file's; those of write_file.
    """
    done: list[Edit] = []

    def change(data: bytes) -> bytes:
        edit = replace_text(data, old_text, new_text, replace_all=replace_all, path=path)
        done.append(edit)
        return edit.data

    written = await on_thread(lambda: files_of(context).edit(path, change, expected_hash=expected_hash))
    return {
        "path": written.path,
        "replacements": done[0].replacements,
        "size": written.size,
        "hash": written.hash,
        "diff": done[0].diff,
    }


@tool(display_name="List Directory", readonly=True, open_world=False, needs=("files",))
async def list_directory(
    context: ToolContext, path: DirectoryPath = ".", offset: Offset = 0, limit: Limit = PAGE_DEFAULT
) -> Json:
    """List the entries of a directory by name, a page at a time.

    Limits: {PAGE_DEFAULT} entries a page unless `limit` says otherwise.
    Errors: no such directory; a file or a link.
    """
    found = await on_thread(lambda: files_of(context).list(path))
    page = found[offset : offset + limit]
    return {
        "path": path,
        "entries": [described(entry) for entry in page],
        "total": len(found),
        "next_offset": offset + limit if offset + limit < len(found) else None,
    }


@tool(display_name="Delete File", destructive=True, open_world=False, concurrency_class=_CLASS, needs=("files",))
async def delete_file(
    context: ToolContext,
    path: FilePath,
    recursive: Annotated[bool, "Delete a directory with everything in it"] = False,
) -> Json:
    """Delete a file or a directory. A directory that is not empty needs `recursive`. There is no undo.

    Errors: no such file; a directory that is not empty, without recursive; the top of the session's files.
    """
    gone = await on_thread(lambda: files_of(context).delete(path, recursive=recursive))
    return {"path": path, "deleted": gone}


@tool(display_name="Stat File", readonly=True, open_world=False, needs=("files",))
async def stat_file(context: ToolContext, path: AnyPath) -> Json:
    """Get type, size, mode and time of change of a file or a directory, without reading it.

    Errors: no such file.
    """
    entry = await on_thread(lambda: files_of(context).stat(path))
    return {"path": entry.path, **described(entry), "mode": f"{entry.mode:04o}"}


@tool(display_name="Rename File", destructive=True, open_world=False, concurrency_class=_CLASS, needs=("files",))
async def rename_file(
    context: ToolContext,
    path: FilePath,
    new_path: FilePath,
    replace: Annotated[bool, "Replace what is at the new path"] = False,
) -> Json:
    """Move a file or a directory to another path. Missing directories are made.

    Errors: no such file; something at the new path, without replace; a directory moved into itself; a name that is not allowed.
    """
    await on_thread(lambda: files_of(context).rename(path, new_path, replace=replace))
    return {"path": new_path, "was": path}


def shown_path(entry: Entry) -> str:
    """Its path, if it can be given back as one."""
    return entry.path if all(map(reachable, entry.parts)) else ascii(entry.path)[1:-1]


def _moment(at_s: float) -> str | None:
    try:
        return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return None  # A command may set any time, and some file systems keep it: no year that there is a name for.


def described(entry: Entry) -> dict[str, Json]:
    name = entry.name
    about: dict[str, Json] = {"name": name, "type": entry.kind}
    if entry.kind == "file":
        about["size"] = entry.size
    about["modified"] = _moment(entry.modified_s)
    if entry.parts and not reachable(name):
        # Made by a command, and such that it could forge a line of this listing: shown, but not as it is.
        about |= {
            "name": ascii(name)[1:-1],
            "note": "its name has characters that file tools refuse; rename it with a command",
        }
    return about
