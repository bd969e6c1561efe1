"""A disk in memory, for durability level `memory`: the same code runs, and nothing reaches the real disk."""

from __future__ import annotations

import errno
import os


class _Node:
    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data = bytearray()


class MemoryFile:
    """A growing buffer behind the `File` protocol."""

    __slots__ = ("_node",)

    def __init__(self, node: _Node) -> None:
        self._node = node

    def write(self, data: bytes | memoryview) -> int:
        self._node.data += data
        return len(data)

    def pread(self, size: int, offset: int) -> bytes:
        return bytes(self._node.data[offset : offset + size])

    def size(self) -> int:
        return len(self._node.data)

    def truncate(self, size: int) -> None:
        del self._node.data[size:]

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass


class MemoryLock:
    """A lock among the logs that share one memory disk."""

    __slots__ = ("_before", "_disk", "_path")

    def __init__(self, disk: MemoryDisk, path: str, before: bytes) -> None:
        self._disk = disk
        self._path = path
        self._before = before

    def withdraw(self) -> None:
        self._disk._files[self._path].data[:] = self._before
        self.close()

    def close(self) -> None:
        self._disk._locked.discard(self._path)


class MemoryDisk:
    """Files and directories in dictionaries. What it holds is gone with it."""

    #: Takes no time: the journal needs no thread to wait for it.
    in_memory = True

    def __init__(self) -> None:
        self._files: dict[str, _Node] = {}
        self._directories: set[str] = {"/"}
        self._locked: set[str] = set()

    def create(self, path: str) -> MemoryFile:
        if path in self._files or path in self._directories:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if os.path.dirname(path) not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        node = self._files[path] = _Node()
        return MemoryFile(node)

    def open_append(self, path: str) -> MemoryFile:
        return MemoryFile(self._node(path))

    def open_read(self, path: str) -> MemoryFile:
        return MemoryFile(self._node(path))

    def exists(self, path: str) -> bool:
        return path in self._files or path in self._directories

    def is_dir(self, path: str) -> bool:
        return path in self._directories

    def list_dir(self, path: str) -> list[str]:
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        found = [*self._files, *self._directories]
        return sorted(os.path.basename(name) for name in found if name != path and os.path.dirname(name) == path)

    def make_dirs(self, path: str) -> None:
        while path not in self._directories:
            self._directories.add(path)
            path = os.path.dirname(path)

    def rename(self, source: str, target: str) -> None:
        self._files[target] = self._files.pop(source)

    def unlink(self, path: str) -> None:
        self._node(path)
        del self._files[path]

    def remove_dir(self, path: str) -> None:
        if self.list_dir(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self._directories.discard(path)

    def sync_dir(self, path: str) -> None:
        pass

    def reserve(self, path: str, size: int) -> None:
        # Memory has no use for a reserve; the name stands for it.
        self._files.setdefault(path, _Node())

    def free_bytes(self, path: str) -> int:
        return 1 << 40

    def lock(self, path: str, owner: str) -> MemoryLock:
        if path in self._locked:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), path)
        self._locked.add(path)
        node = self._files.setdefault(path, _Node())
        before, node.data[:] = bytes(node.data), owner.encode()
        return MemoryLock(self, path, before)

    def _node(self, path: str) -> _Node:
        try:
            return self._files[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
