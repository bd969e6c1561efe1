"""How the file tools reach the files of their session, and on whose thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeAlias, TypeVar

import trio

from trouper.threads import in_thread
from trouper.tools.context import ToolContext
from trouper.tools.guards.names import PATH_BYTES_MAX
from trouper.tools.guards.rooted import DEFAULT_QUOTA, RootedFiles, files_at
from trouper.tools.schema import Param

PAGE_DEFAULT = 200
PAGE_MAX = 1000
#: The largest file that is read, if only in parts.
FILE_READ_MAX = DEFAULT_QUOTA.bytes_max
#: File work waits for file work, and never for the journal's threads.
_THREADS_MAX = 8
_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("trouper_file_threads")
_T = TypeVar("_T")

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
    files = context.files
    return files if isinstance(files, RootedFiles) else files_at(files.root)


async def on_thread(work: Callable[[], _T]) -> _T:
    """Not abandoned on cancel: a write is whole when the call is over. Long work asks `check_cancelled` as it goes."""
    try:
        limiter = _limiter.get()
    except LookupError:
        limiter = trio.CapacityLimiter(_THREADS_MAX)
        _limiter.set(limiter)
    return await in_thread(work, limiter=limiter)
