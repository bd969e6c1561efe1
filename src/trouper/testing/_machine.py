"""The computer around a simulated medium: its power, its faults, and the log of what was asked of it."""

from __future__ import annotations

import errno
import fnmatch
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import attrs

from trouper.testing._medium import Directory, Medium

Operation = Literal[
    "create", "write", "truncate", "sync", "rename", "unlink", "remove_dir", "sync_dir", "make_dirs", "reserve", "lock",
    "open_append", "open_read", "pread", "size", "exists", "is_dir", "is_at", "list_dir", "free_bytes",
]  # fmt: skip

#: Operations that change what a crash may leave, so that "crash before it" is a case of its own.
CHANGING = frozenset(
    {
        "create",
        "write",
        "truncate",
        "sync",
        "rename",
        "unlink",
        "remove_dir",
        "sync_dir",
        "make_dirs",
        "reserve",
        "lock",
    }
)

#: The operations that a read-only file system refuses: all that change something, and opening a file in order to.
_WRITING = (CHANGING | {"open_append"}) - {"sync", "sync_dir"}


class PowerCut(BaseException):
    """The process is no more: every call on its disk raises this.

    Not an `Exception`, because nothing may handle it: a program that is gone does not clean up.
    """


@attrs.frozen
class Step:
    """One call that changed the disk, or tried to."""

    number: int
    operation: str
    path: str
    size: int = 0


@attrs.define(eq=False)
class Armed:
    """A failure that waits for its call."""

    operation: str
    path: str
    skip: int
    left: int | None
    error: int | None = None
    short: int | None = None
    stall: Callable[[], None] | None = None
    after: bool = False

    def takes(self, operation: str, path: str) -> bool:
        wanted = operation in CHANGING if self.operation == "*" else operation == self.operation
        if self.left == 0 or not wanted or not fnmatch.fnmatchcase(path, self.path):
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.left is not None:
            self.left -= 1
        return True


class Machine:
    """What the processes of one simulated computer share: the medium, and what is wrong with it."""

    def __init__(self, medium: Medium, capacity: int | None) -> None:
        self.medium = medium
        self.capacity = capacity
        self.read_only = False
        self.mutex = threading.RLock()
        self.armed: list[Armed] = []
        self.log: list[Step] = []
        self.cut_before: int | None = None
        self.off = False
        self.watcher: Callable[[Step], None] | None = None

    @contextmanager
    def call(
        self,
        check_alive: Callable[[], None],
        operation: Operation,
        path: str,
        size: int = 0,
        *,
        failed: Callable[[], object] | None = None,
    ) -> Iterator[Armed | None]:
        """Around every call: the power, the log, the faults. The body runs with the machine to itself."""
        with self.mutex:
            check_alive()
            if operation in CHANGING:
                step = Step(len(self.log) + 1, operation, path, size)
                if self.cut_before is not None and step.number >= self.cut_before:
                    self.off = True
                    raise PowerCut(f"the power was cut before step {step.number}: {operation} {path!r}")
                if self.watcher is not None:
                    self.watcher(step)
                self.log.append(step)
            faults = [armed for armed in self.armed if armed.takes(operation, path)]
        for fault in faults:  # Without the mutex: a call that stalls must not stop the others.
            if fault.stall is not None:
                fault.stall()
        error = next((fault for fault in faults if fault.error is not None), None)
        with self.mutex:
            check_alive()
            if self.read_only and operation in _WRITING:
                raise os_error(errno.EROFS, path)
            if error is None or error.after:
                yield next((fault for fault in faults if fault.short is not None), None)
            if error is not None and error.error is not None:
                if failed is not None and not error.after:
                    failed()
                raise os_error(error.error, path)

    def used(self) -> int:
        def total(directory: Directory) -> int:
            return sum(
                total(inode) if isinstance(inode, Directory) else len(inode.live) for inode in directory.names.values()
            )

        return total(self.medium.root)

    def free(self) -> int:
        return 1 << 50 if self.capacity is None else max(0, self.capacity - self.used())


def os_error(number: int, path: str, target: str | None = None) -> OSError:
    # `OSError` picks its subclass by the errno, as the kernel's errors do.
    if target is None:
        return OSError(number, os.strerror(number), path)
    return OSError(number, os.strerror(number), path, None, target)
