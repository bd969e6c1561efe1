"""How the file tools reach the files of their session, and what their paths are called."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from trouper.tools.context import ToolContext
from trouper.tools.guards.names import PATH_BYTES_MAX
from trouper.tools.guards.rooted import DEFAULT_QUOTA, RootedFiles
from trouper.tools.schema import Param

PAGE_DEFAULT = 200
PAGE_MAX = 1000
#: The largest file that is read, if only in parts.
FILE_READ_MAX = DEFAULT_QUOTA.bytes_max

FilePath: TypeAlias = Annotated[
    str, Param("Path relative to the session's files, such as 'notes/a.txt'", min_length=1, max_length=PATH_BYTES_MAX)
]
DirectoryPath: TypeAlias = Annotated[
    str, Param("Directory relative to the session's files; '.' is the top", max_length=PATH_BYTES_MAX)
]
AnyPath: TypeAlias = Annotated[
    str, Param("File or directory relative to the session's files; '.' is the top", max_length=PATH_BYTES_MAX)
]
Offset: TypeAlias = Annotated[int, Param("How many to pass over: `next_offset` of the page before", ge=0)]
Limit: TypeAlias = Annotated[int, Param("How many to return at most", ge=1, le=PAGE_MAX)]
Hash: TypeAlias = Annotated[
    str | None, Param("Only if the file still has this `hash`, as returned by read_file", pattern="^[0-9a-fA-F]{64}$")
]


def files_of(context: ToolContext) -> RootedFiles:
    return context.files.rooted
