"""The files of one session, and no others (T17).

A path is never handed to the kernel whole. Each component is opened in the directory before it, by descriptor, without following links; so
there is no moment between a check and a use in which a directory could be swapped for a link: what was checked is what is open.

What is refused, and why:

* symbolic links, anywhere, also those that stay inside: telling the two apart needs a second look, and that look is a race;
* everything that is not a regular file or a directory: reading a FIFO hangs, a device may act when it is opened;
* a regular file with more than one hard link, for reading and for replacing: its other name may lie outside (`ln ~/.ssh/id_rsa notes`), and a
  file does not say where its names are. Tools here never make such links. Removing or renaming the name is harmless, and allowed. Not covered:
  a link whose other names were all removed is an ordinary file by then.

Writes are whole or not at all: a temporary file beside the target, then a rename. Files are 0600 and directories 0700 whatever the umask.
All methods block: call them in a worker thread.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trouper._errors import ConfigError
from trouper.core.values import frozen
from trouper.tools.guards.descriptors import (
    CREATE_FILE,
    FILE_MODE,
    OPEN_DIRECTORY,
    Entry,
    FileRefused,
    entries_of,
    entry_of,
    from_os,
    look,
    make_directory,
    make_trusted,
    missing,
    new_hash,
    not_plain,
    open_in,
    open_regular,
    quoted,
    remove_tree,
    require_hash,
    require_plain_file,
    require_private,
    sweep_directory,
    unlink,
    unlink_quietly,
    write_all,
)
from trouper.tools.guards.names import DEPTH_MAX, TEMPORARY_PREFIX, on_disk, parse_path

_CHUNK = 1 << 20
#: A quota is counted again after so many writes, as commands write behind our back.
_RECOUNT_EVERY = 64
#: Writers of the same tree take turns, also through different instances: compare-and-swap is true within the process. Hashed, hence bounded.
_LOCKS = tuple(threading.RLock() for _ in range(64))
# Tells our own files in the making from those that a crash left.
_PROCESS_TOKEN = secrets.token_hex(6)


@frozen
class Quota:
    """What the files of one session may take. Commands are bound by their own limit on file size, and by this at the next write."""

    bytes_max: int = 256 * 1024 * 1024
    entries_max: int = 10_000
    file_bytes_max: int = 32 * 1024 * 1024


DEFAULT_QUOTA = Quota()


@frozen
class Usage:
    bytes: int = 0
    entries: int = 0


@frozen
class Written:
    path: str
    created: bool
    size: int
    hash: str


class RootedFiles:
    """The tree under `base/below[0]/below[1]...`, made on first use. `base` is trusted to be named rightly; nothing below it is."""

    def __init__(self, base: str | Path, *below: str, quota: Quota = DEFAULT_QUOTA, durable: bool = False) -> None:
        self._base = Path(base)
        self._below = below
        self._quota = quota
        self._durable = durable
        self._lock = _LOCKS[hash(self.root) % len(_LOCKS)]
        # A count that may lag behind commands; a refusal always counts afresh. None: not counted yet.
        self._usage: Usage | None = None
        self._writes_since_count = 0

    @property
    def root(self) -> Path:
        """Where the tree is. For messages to the operator and for commands; never joined with a path from the model."""
        return self._base.joinpath(*self._below)

    @property
    def quota(self) -> Quota:
        return self._quota

    # -- reading -------------------------------------------------------------------------------------------------------------

    def read(self, path: str) -> bytes:
        """The whole of a regular file, at most `quota.file_bytes_max`."""
        with self.open(path) as (descriptor, status):
            return self._read_all(descriptor, status, path)

    def pieces(self, path: str) -> Iterator[bytes]:
        """A regular file of any size, a piece at a time."""
        with self.open(path) as (descriptor, _):
            while piece := os.read(descriptor, _CHUNK):
                yield piece

    def line_blocks(self, path: str) -> Iterator[bytes]:
        """The same, cut after line ends; only a line that is longer than `quota.file_bytes_max` comes in parts."""
        rest: list[bytes] = []
        held = 0
        for piece in self.pieces(path):
            end = piece.rfind(b"\n") + 1
            if not end and held + len(piece) > self._quota.file_bytes_max:
                end = len(piece)
            if end:
                yield b"".join([*rest, piece[:end]])
                rest, held = [], 0
            if end < len(piece):
                rest.append(piece[end:])
                held += len(piece) - end
        if rest:
            yield b"".join(rest)

    @contextmanager
    def open(self, path: str) -> Iterator[tuple[int, os.stat_result]]:
        """A regular file, open for reading, and what it is."""
        parts = _file_parts(path)
        with self._directory(parts[:-1]) as parent:
            descriptor, status = open_regular(parent, parts)
        try:
            yield descriptor, status
        finally:
            os.close(descriptor)

    def stat(self, path: str) -> Entry:
        parts = parse_path(path)
        if not parts:
            with self._directory(()) as top:
                return entry_of((), os.fstat(top))
        with self._directory(parts[:-1]) as parent:
            status = look(parent, parts[-1])
        if status is None:
            raise missing(parts)
        return entry_of(parts, status)

    def list(self, path: str = ".") -> list[Entry]:
        """The entries of a directory, by name."""
        parts = parse_path(path)
        with self._directory(parts) as directory:
            return entries_of(directory, parts)

    def walk(self, path: str = ".") -> Iterator[Entry]:
        """Everything below, parents first, by name. A directory that vanishes or is swapped meanwhile is passed over."""
        waiting = [parse_path(path)]
        first = True
        while waiting:
            parts = waiting.pop()
            try:
                with self._directory(parts) as directory:
                    found = entries_of(directory, parts)
            except FileRefused:
                if first:
                    raise
                continue
            first = False
            yield from found
            if len(parts) < DEPTH_MAX:
                waiting.extend(entry.parts for entry in reversed(found) if entry.kind == "directory")

    def usage(self) -> Usage:
        """What the tree takes now; removes temporary files that a crash left."""
        total = entries = 0
        for entry in self.walk():
            entries += 1
            total += entry.size if entry.kind == "file" else 0
        self._sweep()
        self._usage = Usage(total, entries)
        self._writes_since_count = 0
        return self._usage

    # -- writing -------------------------------------------------------------------------------------------------------------

    def write(self, path: str, data: bytes, *, expected_hash: str | None = None) -> Written:
        """Create or replace a file, with its parents. `expected_hash`: only if the file is still that one."""
        parts = _file_parts(path)
        with self._lock, self._directory(parts[:-1], create=True) as parent:
            before = self._replaceable(parent, parts)
            if expected_hash is not None:
                require_hash(self._read_in(parent, parts) if before else None, expected_hash, parts)
            return self._put(parent, parts, data, before)

    def write_pieces(self, path: str, pieces: Iterable[bytes]) -> Written:
        """The same for what is not held in memory as a whole. Only the room that is left for all files limits its size."""
        parts = _file_parts(path)
        with self._lock, self._directory(parts[:-1], create=True) as parent:
            before = self._replaceable(parent, parts)
            self._usage = None  # Counted afresh: the room that is left is all there is to go by.
            self._admit(grown_bytes=0, new_entries=0 if before else 1)
            room = self._quota.bytes_max - self.usage().bytes + (before.st_size if before else 0)
            try:
                return self._replace(parent, parts, self._within(pieces, room), before)
            finally:
                self._usage = None

    def _within(self, pieces: Iterable[bytes], room: int) -> Iterator[bytes]:
        size = 0
        for piece in pieces:
            size += len(piece)
            if size > room:
                raise FileRefused(
                    f"only {max(room, 0)} of the {self._quota.bytes_max} bytes that the session's files may take are left; "
                    "delete what is no longer needed",
                    room=room,
                )
            yield piece

    def edit(self, path: str, change: Callable[[bytes], bytes], *, expected_hash: str | None = None) -> Written:
        """Replace a file by `change(its bytes)`; nothing else writes in between. Its mode is kept."""
        parts = _file_parts(path)
        with self._lock, self._directory(parts[:-1]) as parent:
            before = self._replaceable(parent, parts)
            if before is None:
                raise missing(parts)
            old = self._read_in(parent, parts)
            if expected_hash is not None:
                require_hash(old, expected_hash, parts)
            return self._put(parent, parts, change(old), before)

    def make_directory(self, path: str) -> None:
        with self._lock, self._directory(parse_path(path), create=True):
            pass

    def rename(self, source: str, target: str, *, replace: bool = False) -> None:
        """Move a file or a directory, making the parents of its new place."""
        old, new = _file_parts(source), _file_parts(target)
        if new[: len(old)] == old:
            raise FileRefused(f"{quoted(old)} cannot be moved into itself; choose a target outside it", path=target)
        with self._lock, self._directory(old[:-1]) as old_parent:
            status = look(old_parent, old[-1])
            if status is None:
                raise missing(old)
            if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
                raise not_plain(old, status)
            if stat.S_ISDIR(status.st_mode):
                self._require_room_below(old, new)
            with self._directory(new[:-1], create=True) as new_parent:
                if look(new_parent, new[-1]) is not None and not replace:
                    raise FileRefused(f"{quoted(new)} exists; choose another name or set replace", path=target)
                try:
                    os.rename(on_disk(old[-1]), on_disk(new[-1]), src_dir_fd=old_parent, dst_dir_fd=new_parent)
                except OSError as error:
                    raise from_os(error, new) from error

    def _require_room_below(self, old: tuple[str, ...], new: tuple[str, ...]) -> None:
        """What lies too deep is not counted, nor can it be read or deleted: a tree is not moved to where a part of it would."""
        height = max((len(entry.parts) for entry in self.walk("/".join(old))), default=len(old)) - len(old)
        if len(new) + height > DEPTH_MAX:
            raise FileRefused(
                f"{quoted(new)} would be {len(new) + height} levels deep with all that is in it; use at most {DEPTH_MAX}",
                path="/".join(new),
            )

    def delete(self, path: str, *, recursive: bool = False) -> int:
        """Remove a name, of whatever kind; links are removed, never followed. Returns how many entries went."""
        parts = parse_path(path)
        if not parts:
            raise FileRefused("the top of the session's files is not deleted; delete what is in it", path=path)
        with self._lock, self._directory(parts[:-1]) as parent:
            status = look(parent, parts[-1])
            if status is None:
                raise missing(parts)
            self._usage = None
            if not stat.S_ISDIR(status.st_mode):
                unlink(parent, parts)
                return 1
            if recursive:
                return remove_tree(parent, parts)
            try:
                os.rmdir(on_disk(parts[-1]), dir_fd=parent)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    raise FileRefused(
                        f"directory {quoted(parts)} is not empty; set recursive to delete all of it", path=path
                    ) from None
                raise from_os(error, parts) from error
            return 1

    # -- the way in ----------------------------------------------------------------------------------------------------------

    def open_directory(self, path: str = ".") -> int:
        """A directory of the tree, open: for a command that is to run there. The caller closes it."""
        with self._directory(parse_path(path)) as descriptor:
            return os.dup(descriptor)

    @contextmanager
    def _directory(self, parts: tuple[str, ...], *, create: bool = False) -> Iterator[int]:
        descriptor = self._open_root()
        try:
            for depth, name in enumerate(parts, 1):
                descriptor = self._step(descriptor, parts[:depth], name, create)
            yield descriptor
        finally:
            os.close(descriptor)

    def _step(self, parent: int, so_far: tuple[str, ...], name: str, create: bool) -> int:
        """The directory `name` in `parent`, which is closed; on failure `parent` stays the caller's to close."""
        try:
            child = open_in(on_disk(name), OPEN_DIRECTORY, dir_fd=parent)
        except FileNotFoundError:
            if not create:
                raise missing(so_far) from None
            self._admit(grown_bytes=0, new_entries=1)
            child = make_directory(parent, name)
        except OSError as error:
            raise from_os(error, so_far, look(parent, name)) from error
        os.close(parent)
        return child

    def _open_root(self) -> int:
        """The top, after making sure that it is ours alone. Its faults are the operator's to mend, not the model's."""
        try:
            try:
                descriptor = open_in(self._base, OPEN_DIRECTORY)
            except FileNotFoundError:
                make_trusted(self._base)
                descriptor = open_in(self._base, OPEN_DIRECTORY)
        except OSError as error:
            raise ConfigError(
                f"state root {str(self._base)!r} is not a directory of its own ({error.strerror}); name a real directory",
                path=str(self._base),
            ) from error
        try:
            require_private(descriptor, str(self._base), tighten=False)
            for depth, name in enumerate(self._below, 1):
                shown = str(self._base.joinpath(*self._below[:depth]))
                try:
                    child = open_in(name, OPEN_DIRECTORY, dir_fd=descriptor)
                except FileNotFoundError:
                    child = make_directory(descriptor, name)
                except OSError as error:
                    raise ConfigError(
                        f"{shown!r} is not a directory of its own ({error}); move it out of the way"
                    ) from error
                os.close(descriptor)
                descriptor = child
                require_private(descriptor, shown, tighten=True)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    # -- the pieces of a write -----------------------------------------------------------------------------------------------

    def _replaceable(self, parent: int, parts: tuple[str, ...]) -> os.stat_result | None:
        status = look(parent, parts[-1])
        if status is not None:
            require_plain_file(status, parts)
        return status

    def _read_in(self, parent: int, parts: tuple[str, ...]) -> bytes:
        descriptor, status = open_regular(parent, parts)
        try:
            return self._read_all(descriptor, status, "/".join(parts))
        finally:
            os.close(descriptor)

    def _read_all(self, descriptor: int, status: os.stat_result, path: str) -> bytes:
        limit = self._quota.file_bytes_max
        if status.st_size > limit:
            raise FileRefused(
                f"file {path!r} has {status.st_size} bytes; whole files are read up to {limit}", path=path
            )
        pieces: list[bytes] = []
        size = 0
        # The size is a promise that another writer may break: count what comes.
        while size <= limit and (piece := os.read(descriptor, _CHUNK)):
            pieces.append(piece)
            size += len(piece)
        if size > limit:
            raise FileRefused(f"file {path!r} grew past {limit} bytes while it was read; read a part of it", path=path)
        return b"".join(pieces)

    def _put(self, parent: int, parts: tuple[str, ...], data: bytes, before: os.stat_result | None) -> Written:
        if len(data) > self._quota.file_bytes_max:
            raise FileRefused(
                f"{quoted(parts)} would have {len(data)} bytes; one file may have {self._quota.file_bytes_max}: split it",
                path=parts[-1],
            )
        self._admit(len(data) - (before.st_size if before else 0), 0 if before else 1)
        return self._replace(parent, parts, (data,), before)

    def _replace(
        self, parent: int, parts: tuple[str, ...], pieces: Iterable[bytes], before: os.stat_result | None
    ) -> Written:
        """Put a whole new file in the place of the old one, or nothing."""
        mode = stat.S_IMODE(before.st_mode) & 0o777 if before else FILE_MODE
        temporary = f"{TEMPORARY_PREFIX}{_PROCESS_TOKEN}-{secrets.token_hex(6)}"
        size, digest = 0, new_hash()
        try:
            descriptor = open_in(temporary, CREATE_FILE, FILE_MODE, dir_fd=parent)
            try:
                os.fchmod(descriptor, mode)  # the umask has had its say in open()
                for piece in pieces:
                    write_all(descriptor, piece)
                    digest.update(piece)
                    size += len(piece)
                if self._durable:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.rename(temporary, on_disk(parts[-1]), src_dir_fd=parent, dst_dir_fd=parent)
        except OSError as error:
            unlink_quietly(temporary, parent)
            raise from_os(error, parts) from error
        except BaseException:
            unlink_quietly(temporary, parent)
            raise
        if self._durable:
            os.fsync(parent)
        return Written("/".join(parts), before is None, size, digest.hexdigest())

    def _admit(self, grown_bytes: int, new_entries: int) -> None:
        """Count a write in, or refuse it. The count is renewed before any refusal."""
        with self._lock:
            self._writes_since_count += 1
            fresh = self._usage is None or self._writes_since_count >= _RECOUNT_EVERY
            usage = self.usage() if fresh or self._usage is None else self._usage
            after = Usage(usage.bytes + grown_bytes, usage.entries + new_entries)
            if self._over(after, grown_bytes, new_entries) and not fresh:
                usage = self.usage()
                after = Usage(usage.bytes + grown_bytes, usage.entries + new_entries)
            if self._over(after, grown_bytes, new_entries):
                raise FileRefused(
                    f"the session's files would take {after.bytes} bytes in {after.entries} entries; the limits are "
                    f"{self._quota.bytes_max} bytes and {self._quota.entries_max} entries: delete what is no longer needed",
                    usage=after,
                )
            self._usage = after

    def _over(self, after: Usage, grown_bytes: int, new_entries: int) -> bool:
        # A write that makes a file smaller is let through however full the tree is: it is the way out. So is one that adds no entry, however many
        # a command has made: the files that are there can still be changed.
        too_large = after.bytes > self._quota.bytes_max and grown_bytes > 0
        return too_large or (after.entries > self._quota.entries_max and new_entries > 0)

    def _sweep(self) -> None:
        own = TEMPORARY_PREFIX + _PROCESS_TOKEN
        with self._directory(()) as top:
            sweep_directory(top, own)


def _file_parts(path: str) -> tuple[str, ...]:
    parts = parse_path(path)
    if not parts:
        raise FileRefused(f"path {path!r} is the top of the session's files, not a file; name a file", path=path)
    return parts


def files_at(root: Path) -> RootedFiles:
    """The tree at `root`, for a host that knows it by its path only."""
    return RootedFiles(root.parent, root.name)
