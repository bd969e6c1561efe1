"""A control group around a command, where the system lets us make one (Linux, usually as root): it bounds how many tasks the command can have.

The kernel's limit on processes does not bind root, and a fork bomb of root's outruns whoever counts and kills. In a group it gets no further than the
group's limit; and when that is set to 0, nothing in it can fork any more, so that ending it is no race. Standard library only: the warden imports it as a script.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

_MOUNT = "/sys/fs/cgroup"
#: Threads count as well, of which ordinary programs have dozens.
TASKS_PER_PROCESS = 8
#: How long the last may take to leave, on a machine with much else to do.
_EMPTY_PATIENCE_S = 5.0


class Fence:
    """`directory`: of the group, made by `build`."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def enter(self) -> None:
        """This process, and all that it will ever start."""
        self._write("cgroup.procs", "0")

    def inside(self) -> set[int]:
        try:
            with open(f"{self.directory}/cgroup.procs", "rb") as members:
                return {int(member) for member in members.read().split()}
        except OSError:
            return set()

    def close(self) -> None:
        """From now on nothing inside can start anything."""
        with suppress(OSError):
            self._write("pids.max", "0")

    def end(self, until: float) -> None:
        """Kill all that is inside, and take the fence away."""
        self.close()
        while (members := self.inside()) and time.monotonic() < until:
            for member in members:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(member, signal.SIGKILL)
            time.sleep(0.001)
        self.remove()

    def remove(self) -> None:
        """If it is empty; the last to leave may still be on their way out."""
        until = time.monotonic() + _EMPTY_PATIENCE_S
        while True:
            try:
                os.rmdir(self.directory)
            except FileNotFoundError:
                return
            except OSError:
                if time.monotonic() > until:
                    return
                time.sleep(0.002)
            else:
                return

    def _write(self, name: str, value: str) -> None:
        with open(f"{self.directory}/{name}", "w") as setting:
            setting.write(value)


def build(name: str, processes_max: int) -> Fence | None:
    """Below the group that we are in, or the nearest one above it that takes new ones; `None` if none does."""
    for place in _places():
        fence = Fence(f"{place}/{name}")
        with suppress(OSError):
            os.mkdir(fence.directory, 0o755)
            try:
                fence._write("pids.max", str(processes_max * TASKS_PER_PROCESS))
            except OSError:
                fence.remove()  # A group without that limit: it is not handed down this far.
            else:
                return fence
    return None


def find(name: str) -> Fence | None:
    """One that was built under this name: for whoever was not told where."""
    for place in _places():
        if os.path.isdir(f"{place}/{name}"):
            return Fence(f"{place}/{name}")
    return None


def _places() -> list[str]:
    """Where such groups could be made: version 1 has a tree for this limit alone, version 2 one tree for all."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as groups:
            lines = [line.rstrip("\n").split(":", 2) for line in groups]
    except OSError:
        return []
    places: list[str] = []
    for number, controllers, path in lines:
        if "pids" in controllers.split(","):
            root = f"{_MOUNT}/{controllers}"
        elif number == "0":
            root = _MOUNT if os.path.exists(f"{_MOUNT}/cgroup.controllers") else f"{_MOUNT}/unified"
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        places += ["/".join([root, *parts[:count]]) for count in range(len(parts), -1, -1)]
    return places
