"""The tools for the files of a session (T14). Every path goes through `guards.rooted`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from trouper.core.messages import Json
from trouper.tools.builtin.editing import Edit, replace_text
from trouper.tools.builtin.session_files import (
    PAGE_DEFAULT,
    DirectoryPath,
    FilePath,
    Hash,
    Limit,
    Offset,
    files_of,
    on_thread,
)
from trouper.tools.context import ToolContext
from trouper.tools.define import tool
from trouper.tools.errors import ToolError
from trouper.tools.guards.descriptors import Entry, content_hash
from trouper.tools.guards.linear_grep import is_binary
from trouper.tools.guards.names import reachable
from trouper.tools.guards.rooted import DEFAULT_QUOTA
from trouper.tools.schema import Param

LINES_MAX = 2000
READ_BYTES_MAX = 50 * 1024
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
) -> Json:
    """Read a text file, or some lines of it. Returns the text, the number of lines, and the hash of the whole file, which edit_file and write_file take to make sure that nothing has changed meanwhile.

    Limits: {LINES_MAX} lines or {READ_BYTES_MAX} bytes a call; files up to {FILE_BYTES_MAX} bytes. A binary file is reported, not returned.
    Errors: no such file; a directory, a link, a pipe or a device; an offset past the end.
    """
    files = files_of(context)

    def work() -> Json:
        data = files.read(path)
        about = {"path": path, "size": len(data), "hash": content_hash(data)}
        if is_binary(data):
            return {**about, "binary": True, "note": "The file is binary, so it is not shown."}
        return {**about, **_excerpt(data, offset, limit, path)}

    return await on_thread(work)


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
async def stat_file(context: ToolContext, path: DirectoryPath) -> Json:
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


def described(entry: Entry) -> dict[str, Json]:
    name = entry.name
    about: dict[str, Json] = {"name": name, "type": entry.kind}
    if entry.kind == "file":
        about["size"] = entry.size
    about["modified"] = datetime.fromtimestamp(entry.modified_s, UTC).isoformat(timespec="seconds")
    if entry.parts and not reachable(name):
        # Made by a command, and such that it could forge a line of this listing: shown, but not as it is.
        about |= {
            "name": ascii(name)[1:-1],
            "note": "its name has characters that file tools refuse; rename it with a command",
        }
    return about


def _excerpt(data: bytes, offset: int, limit: int, path: str) -> dict[str, Json]:
    """Lines `offset` and on: as many as fit both limits."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    total = data.count(b"\n") + (not data.endswith(b"\n") and len(data) > 0)
    if offset > max(total, 1):
        raise ToolError(f"file {path!r} has {total} lines, and line {offset} is past its end; use a smaller offset")
    start = 0
    for _ in range(offset - 1):
        start = data.index(b"\n", start) + 1
    end, lines, cut_line = start, 0, False
    while lines < limit and end < len(data):
        after = data.find(b"\n", end) + 1 or len(data)
        if after - start > READ_BYTES_MAX:
            cut_line = lines == 0  # a single line that does not fit: its start is better than nothing
            end = start + READ_BYTES_MAX if cut_line else end
            lines += cut_line
            break
        end, lines = after, lines + 1
    # A cut may fall into a character; what is left of it is dropped. Bytes that are no UTF-8 show as replacements.
    text = data[start:end].decode(errors="ignore" if cut_line else "replace").replace("\r\n", "\n")
    following = offset + lines
    excerpt: dict[str, Json] = {"content": text, "first_line": offset, "lines": lines, "total_lines": total}
    excerpt["next_offset"] = following if following <= total else None
    if cut_line:
        excerpt["note"] = f"Line {offset} has more than {READ_BYTES_MAX} bytes; only its start is shown."
    elif following <= total:
        excerpt["note"] = f"There are {total - following + 1} more lines; go on with offset {following}."
    return excerpt
