"""The process between the runtime and a command. Run as a script, `python -I -S warden.py <control fd>`: the standard library only, no trouper.

Why a process of its own: on Linux it makes itself the *subreaper* of the command, so that a grandchild that forks twice and calls `setsid` is handed
to the warden instead of to init, and can be found and ended. The runtime cannot be that process: it would inherit the orphans of the
application that embeds it. It is also the one place where limits can be set between fork and exec without running Python code in a child
forked from a process with threads.

Over the control socket it reads one line of JSON (what to run), then nothing: the end of the socket means "stop", whether the runtime closed it
or died. It writes lines: `started <pid>`, then `ended <exit|signal> <n> <why>`, or `failed <reason>`.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would cost every command some milliseconds
    from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
#: How long to go on after SIGKILL, for processes that the kernel holds in a system call.
_KILL_PATIENCE_S = 5.0
_COUNT_EVERY_S = 0.05


def main() -> int:
    control = int(sys.argv[1])
    order = json.loads(_read_line(control))
    os.chdir("/")
    for deaf_to in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(deaf_to, signal.SIG_IGN)  # only the socket stops the warden
    if order["subreaper"]:
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
    wake, poke = os.pipe()
    os.set_blocking(poke, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(poke, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    pid, failure = _start(order, control)
    _let_go_of_streams()
    if failure:
        _say(control, f"failed {failure}")
        return 1
    _say(control, f"started {pid}")
    status, why = _watch(pid, order, control, wake)
    left = _end_all(pid, wake) if order["kill_tree"] else 0
    kind, number = ("signal", os.WTERMSIG(status)) if os.WIFSIGNALED(status) else ("exit", os.WEXITSTATUS(status))
    _say(control, f"ended {kind} {number} {why} {left}")
    return 0


def _start(order: dict[str, Any], control: int) -> tuple[int, str | None]:
    """Fork and exec. Returns (pid, None), or (0, why not)."""
    report, tell = os.pipe()  # closes on exec: what comes through it is the failure
    pid = os.fork()
    if pid == 0:
        try:
            os.close(control)
            os.setsid()
            for number in range(1, signal.NSIG):
                if number not in (signal.SIGKILL, signal.SIGSTOP) and signal.getsignal(number) not in (
                    None,
                    signal.SIG_DFL,
                ):
                    signal.signal(number, signal.SIG_DFL)  # Python ignores SIGPIPE, for one; a command expects it
            if order["no_new_privs"]:
                _prctl(PR_SET_NO_NEW_PRIVS, 1)  # a setuid program could not be killed
            _prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
            os.fchdir(order["directory"])
            os.closerange(order["directory"], order["directory"] + 1)
            os.umask(0o077)
            for name, value in order["rlimits"].items():
                _limit(getattr(resource, name, None), value)
            os.execvpe(order["argv"][0], order["argv"], order["environment"])
        except BaseException as error:
            os.write(
                tell,
                str(error if not isinstance(error, OSError) else error.strerror).encode(errors="replace")[:400] or b"?",
            )
        os._exit(127)
    os.close(tell)
    os.close(order["directory"])
    failure = os.read(report, 400).decode(errors="replace")
    os.close(report)
    if failure:
        os.waitpid(pid, 0)
        return 0, failure.replace("\n", " ")
    return pid, None


def _watch(pid: int, order: dict[str, Any], control: int, wake: int) -> tuple[int, str]:
    """Until the command itself has ended, or must. Returns its wait status, and `done`, `stopped` or `too_many_processes`."""
    while True:
        status = _reap(pid)
        if status is not None:
            return status, "done"
        ready, _, _ = select.select([control, wake], [], [], _COUNT_EVERY_S)
        if wake in ready:
            _drain(wake)
        if control in ready:
            return _stop(pid, order, wake), "stopped"
        if order["processes_max"] and len(_descendants()) > order["processes_max"]:
            _end_all(pid, wake)
            return signal.SIGKILL, "too_many_processes"


def _stop(pid: int, order: dict[str, Any], wake: int) -> int:
    """Ask, wait for the grace period, and leave the rest to `_end_all`. Returns the status of the command."""
    for process in _descendants() or [pid]:
        _kill(process, signal.SIGTERM)
    until = time.monotonic() + order["grace_s"]
    status = _reap(pid)
    while status is None and time.monotonic() < until:
        select.select([wake], [], [], max(0.0, until - time.monotonic()))
        _drain(wake)
        status = _reap(pid)
    if status is None and order["kill_tree"]:
        _end_all(pid, wake)
    return int(signal.SIGKILL) if status is None else status


def _end_all(pid: int, wake: int) -> int:
    """Kill every descendant and reap it. Returns how many the kernel would not let go.

    All are stopped before any is killed: a stopped process cannot fork, so that a fork bomb, which would outrun one kill at a time, comes to rest.
    """
    until = time.monotonic() + _KILL_PATIENCE_S
    while time.monotonic() < until:
        stopped: set[int] = set()
        while True:
            fresh = {*_descendants(), *([] if pid in _ended else [pid])} - stopped
            if not fresh:
                break
            for process in fresh:
                _kill(process, signal.SIGSTOP)
            stopped |= fresh
        for process in stopped:
            _kill(process, signal.SIGKILL)
        if _reap_until_none():
            return 0
        select.select([wake], [], [], 0.01)
        _drain(wake)
    return len(_descendants())


def _descendants() -> list[int]:
    """All processes below this one, zombies left out. Without /proc (macOS): nothing, and the group is all that is signalled."""
    children: dict[int, list[int]] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    for name in names:
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:
                # The command's name is in brackets and may hold anything, brackets and blanks too.
                fields = stat.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields[0] not in (b"Z", b"X"):
            children.setdefault(int(fields[1]), []).append(int(name))
        else:
            children.setdefault(int(fields[1]), [])
    found: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


_ended: dict[int, int] = {}


def _reap(pid: int) -> int | None:
    """Collect whatever has ended; the status of `pid` if it is among them."""
    while True:
        try:
            found, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if found == 0:
            break
        _ended[found] = status
    return _ended.get(pid)


def _reap_until_none() -> bool:
    try:
        while True:
            found, status = os.waitpid(-1, os.WNOHANG)
            if found == 0:
                return False
            _ended[found] = status
    except ChildProcessError:
        return True


def _kill(pid: int, number: int) -> None:
    """To the process, and to its group if it leads one: the number of a group is always that of its founder."""
    for send in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            send(pid, number)


def _limit(which: int | None, value: int) -> None:
    if which is None:
        return
    hard = resource.getrlimit(which)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _let_go_of_streams() -> None:
    """The reader of the command's output must see its end when the command's own processes are gone."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


def _read_line(descriptor: int) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        piece = os.read(descriptor, 65536)
        if not piece:
            raise SystemExit(1)  # the runtime is gone before it said what to run
        data += piece
    return data


def _drain(descriptor: int) -> None:
    with suppress(BlockingIOError):
        while os.read(descriptor, 4096):
            pass


def _say(control: int, line: str) -> None:
    with suppress(OSError):  # the runtime may be gone; the work of ending the command is not
        os.write(control, line.encode(errors="replace") + b"\n")


if __name__ == "__main__":
    sys.exit(main())
