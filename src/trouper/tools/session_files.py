"""The files of a session, as a tool of one's own uses them (T7, T17): `context.files`.

Every path goes through `guards.rooted`, so that a path that came from the model can be handed on as it is. What is refused is a `ToolError`, which the model reads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import trio
from attrs import field, frozen

from trouper.threads import in_thread
from trouper.tools.errors import ToolError
from trouper.tools.guards.rooted import RootedFiles, files_at

if TYPE_CHECKING:
    from trouper.tools.context import Files
    from trouper.tools.guards.descriptors import Entry

#: File work waits for file work, and never for the journal's threads.
_THREADS_MAX = 8
_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("trouper_file_threads")
_T = TypeVar("_T")

FilePath: TypeAlias = str | os.PathLike[str]


def _rooted(files: Files) -> RootedFiles:
    return files if isinstance(files, RootedFiles) else files_at(files.root)


@frozen
class SessionFiles:
    """Paths are relative to the top of the session's files. Nothing blocks the loop; a write is whole or not at all, also when the tool is cancelled."""

    #: The same, in methods that block: for what runs in a thread anyway.
    rooted: RootedFiles = field(converter=_rooted)

    @property
    def root(self) -> Path:
        """The directory that the session's files are confined to. For messages and for commands; a path that is joined to it is guarded by nobody."""
        return self.rooted.root

    async def read(self, path: FilePath) -> bytes:
        """The whole of a file."""
        return await on_thread(lambda: self.rooted.read(os.fspath(path)))

    async def read_text(self, path: FilePath) -> str:
        """The whole of a file of text, in UTF-8."""
        try:
            return (await self.read(path)).decode()
        except UnicodeDecodeError as error:
            raise ToolError(f"file {os.fspath(path)!r} is not text in UTF-8 (byte {error.start})") from None

    async def write(self, path: FilePath, data: bytes | str) -> None:
        """Create a file, with the directories above it, or replace the whole of one. Text is written in UTF-8."""
        try:
            whole = data.encode() if isinstance(data, str) else data
        except UnicodeEncodeError:
            raise ToolError(
                f"the text for {os.fspath(path)!r} holds half of a surrogate pair; write valid Unicode"
            ) from None
        await on_thread(lambda: self.rooted.write(os.fspath(path), whole))

    async def list(self, path: FilePath = ".") -> list[Entry]:
        """What is in a directory, by name. Each has a `name`, a `path`, a `kind` ("file", "directory"...) and a `size`."""
        return await on_thread(lambda: self.rooted.list(os.fspath(path)))

    async def delete(self, path: FilePath) -> None:
        """Remove a file, or a directory that is empty."""
        await on_thread(lambda: self.rooted.delete(os.fspath(path)))


async def on_thread(work: Callable[[], _T]) -> _T:
    """Not abandoned on cancel: a write is whole when the call is over. Long work asks `check_cancelled` as it goes."""
    try:
        limiter = _limiter.get()
    except LookupError:
        limiter = trio.CapacityLimiter(_THREADS_MAX)
        _limiter.set(limiter)
    return await in_thread(work, limiter=limiter)
