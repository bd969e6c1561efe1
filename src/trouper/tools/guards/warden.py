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

try:
    from trouper.tools.guards.fence import Fence, build
except ImportError:  # as a script, it knows only what lies beside it
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from fence import Fence, build  # type: ignore[import-not-found, no-redef]

    sys.path.pop(0)

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would cost every command some milliseconds
    from collections.abc import Callable
    from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
#: How much more urgent the warden is than the command.
_NICE = -10
_usual_nice = os.getpriority(os.PRIO_PROCESS, 0)
#: How long to go on after SIGKILL, for processes that the kernel holds in a system call.
_KILL_PATIENCE_S = 5.0
#: How often the system's own count of tasks is looked at, which costs next to nothing, and how often all processes are counted whatever it says.
_GLANCE_EVERY_S, _COUNT_EVERY_S = 0.01, 0.5


def main() -> int:
    control = int(sys.argv[1])
    order = json.loads(_read_line(control))
    os.chdir("/")
    _hurry(_NICE)
    for deaf_to in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(deaf_to, signal.SIG_IGN)  # only the socket stops the warden
    if order["subreaper"]:
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
    wake, poke = os.pipe()
    os.set_blocking(poke, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(poke, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    fence = _fence(order)
    pid, failure = _start(order, control, fence)
    _let_go_of_streams()
    if failure:
        if fence is not None:
            fence.remove()
        _say(control, f"failed {failure}")
        return 1
    _say(control, f"started {pid} {'' if fence is None else fence.directory}")
    status, why = _watch(pid, order, control, wake, fence)
    left = _end_all(pid, wake, fence) if order["kill_tree"] else 0
    if fence is not None:
        fence.remove()
    kind, number = ("signal", os.WTERMSIG(status)) if os.WIFSIGNALED(status) else ("exit", os.WEXITSTATUS(status))
    _say(control, f"ended {kind} {number} {why} {left}")
    return 0


def _fence(order: dict[str, Any]) -> Fence | None:
    """For those whom the kernel's own limit does not bind."""
    if not order["fence"] or not order["processes_max"] or os.geteuid() != 0:
        return None
    return build(order["name"], order["processes_max"])


def _start(order: dict[str, Any], control: int, fence: Fence | None) -> tuple[int, str | None]:
    """Fork and exec. Returns (pid, None), or (0, why not)."""
    report, tell = os.pipe()  # closes on exec: what comes through it is the failure
    pid = os.fork()
    if pid == 0:
        try:
            os.close(control)
            os.setsid()
            if fence is not None:
                fence.enter()
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
            _take_time()
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


class _Crowd:
    """Whether the command has too many processes. Counting them takes longer the more there are, so the system's own count says when to."""

    def __init__(self, processes_max: int) -> None:
        self._max = processes_max
        self._usual = _tasks()
        self._counted_at = time.monotonic()

    def too_large(self) -> bool:
        if not self._max:
            return False
        now, tasks = time.monotonic(), _tasks()
        grown = tasks is None or self._usual is None or tasks - self._usual > self._max // 2
        if now - self._counted_at < (_GLANCE_EVERY_S if grown else _COUNT_EVERY_S):
            return False
        self._counted_at = now
        return len(_descendants()) > self._max


def _watch(pid: int, order: dict[str, Any], control: int, wake: int, fence: Fence | None) -> tuple[int, str]:
    """Until the command itself has ended, or must. Returns its wait status, and `done`, `stopped` or `too_many_processes`."""
    crowd = _Crowd(order["processes_max"])
    while True:
        status = _reap(pid)
        if status is not None:
            return status, "done"
        ready, _, _ = select.select([control, wake], [], [], _GLANCE_EVERY_S)
        if wake in ready:
            _drain(wake)
        if control in ready:
            return _stop(pid, order, wake, crowd, fence), "stopped"
        if crowd.too_large():
            _end_all(pid, wake, fence)
            return signal.SIGKILL, "too_many_processes"


def _stop(pid: int, order: dict[str, Any], wake: int, crowd: _Crowd, fence: Fence | None) -> int:
    """Ask, wait for the grace period, and leave the rest to `_end_all`. Returns the status of the command."""
    for process in _descendants() or [pid]:
        _kill(process, signal.SIGTERM)
    until = time.monotonic() + order["grace_s"]
    status = _reap(pid)
    # One that answers with a flood of processes has had its grace.
    while status is None and time.monotonic() < until and not crowd.too_large():
        select.select([wake], [], [], max(0.0, min(until - time.monotonic(), _GLANCE_EVERY_S)))
        _drain(wake)
        status = _reap(pid)
    if status is None and order["kill_tree"]:
        _end_all(pid, wake, fence)
    return int(signal.SIGKILL) if status is None else status


def _end_all(pid: int, wake: int, fence: Fence | None) -> int:
    """Kill every descendant and reap it. Returns how many the kernel would not let go.

    All are stopped before any is killed: a stopped process cannot fork, so that a fork bomb, which would outrun one kill at a time, comes to rest.
    """
    _hurry()
    if fence is not None:
        fence.close()
    until = time.monotonic() + _KILL_PATIENCE_S
    if pid not in _ended:
        # Those that stayed in its group are gone at one stroke: the kernel lets none of them fork any more.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)

    def all_of_them() -> set[int]:
        inside = set() if fence is None else fence.inside()
        return inside.union(_descendants(), () if pid in _ended else (pid,))

    while time.monotonic() < until:
        stopped = halt(all_of_them, _is_below, until)
        for process in stopped:
            _kill(process, signal.SIGKILL)
        if _reap_until_none():
            return 0
        select.select([wake], [], [], 0.01)
        _drain(wake)
    return len(_descendants())


def halt(find: Callable[[], set[int]], is_one: Callable[[int, set[int]], bool], until: float) -> set[int]:
    """Stop all processes that `find` finds, and those that they fork meanwhile. Returns them, stopped.

    Looking through all processes takes longer than a bomb takes to fork some more. But process numbers are given out in order: after the first look, only
    those are looked at that were given out since, which is quicker than they come. `is_one(pid, known)` says whether such a one belongs to them.
    """
    known: set[int] = set()
    last = _last_pid()
    fresh = find()
    while fresh and time.monotonic() < until:
        for process in fresh:
            _kill(process, signal.SIGSTOP)
        known |= fresh
        newest = _last_pid()
        fresh = set()
        if last is not None and newest is not None and newest > last:
            for process in range(last + 1, newest + 1):
                if process not in known and is_one(process, known | fresh if fresh else known):
                    fresh.add(process)
        last = newest
        # The last look is at all of them again: numbers start anew at the end of their range.
        fresh = fresh or find() - known
    return known


def _is_below(pid: int, known: set[int]) -> bool:
    found = status_of(pid)
    return found is not None and (found[1] in known or found[1] == os.getpid())


def status_of(pid: int) -> tuple[bytes, int, int] | None:
    """State, parent and session of a process that lives; `None` for zombies, too."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # The command's name is in brackets and may hold anything, brackets and blanks too.
            fields = stat.read().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else (fields[0], int(fields[1]), int(fields[3]))
    except (OSError, IndexError):
        return None


def _tasks() -> int | None:
    """How many processes and threads there are in the system."""
    found = _load()
    return None if found is None else int(found[3].partition(b"/")[2])


def _last_pid() -> int | None:
    """The process number that was given out last."""
    found = _load()
    return None if found is None else int(found[4])


def _load() -> list[bytes] | None:
    try:
        with open("/proc/loadavg", "rb") as load:
            return load.read().split()
    except OSError:
        return None


def _hurry(nice: int | None = None) -> None:
    """Come before the processes that are watched, if we may: with so many of them, the turn of an ordinary process may be long in coming."""
    with suppress(OSError, AttributeError):
        if nice is None:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        else:
            os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + nice)


def _take_time() -> None:
    """The command is as urgent as the runtime is, not as its warden."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _usual_nice)


def _descendants() -> list[int]:
    """All processes below this one, zombies left out. Without /proc (macOS): nothing, and the group is all that is signalled."""
    children: dict[int, list[int]] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    for name in names:
        if name.isdigit() and (status := status_of(int(name))) is not None:
            children.setdefault(status[1], []).append(int(name))
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
