"""A command in a group of its own, that leaves nothing behind (T13).

Between the runtime and the command stands a small process, the warden (`warden.py`), which sets the limits, ends the command on demand, and afterwards
ends everything that the command has started. What holds, and where it stops:

* The command and all its descendants are gone when `run` returns or is cancelled, also those that forked twice and called `setsid`. On Linux: the
  warden is their subreaper. Elsewhere: the command's process group only.
* If the runtime itself is killed, the warden sees its socket close and ends the command.
* A fork bomb is counted, stopped (a stopped process cannot fork) and then killed. An ordinary user's is bound by the kernel's limit on processes; root's,
  whom it does not bind, by a control group (`fence.py`) where one can be made, and else only by how quickly it is noticed.
* A command that kills its own warden is still found by its control group, by its session and by a marker in its environment. Only a process that
  leaves all of them, and whose warden was killed, can survive. This is a guard against accidents and ordinary attacks, not a sandbox:
  a command runs as the user who runs the runtime, and can read what that user can. For more, run the whole of it in a container.
* Output is read to the end, so that the command never blocks on a full pipe, but only the head and the tail of it are kept.
"""

from __future__ import annotations

import codecs
import json
import math
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias

import trio
from attrs import field, frozen

from trouper.tools.guards import warden
from trouper.tools.guards.fence import Fence, find
from trouper.tools.guards.refusal import Refused

#: stream name, text
Listener: TypeAlias = Callable[[str, str], None]
#: `lost`: the warden was killed, so nobody knows how the command itself ended; it has ended.
Outcome: TypeAlias = Literal["exited", "signalled", "timed_out", "too_many_processes", "lost"]

ARGUMENTS_BYTES_MAX = 100_000
_WARDEN = warden.__file__
_MARKER = "TROUPER_COMMAND"
_READ_BYTES = 256 * 1024
#: How long the runtime waits for the warden beyond the grace period, and for the ends of the streams after the end of the command.
_WARDEN_PATIENCE_S = 8.0
_STREAM_PATIENCE_S = 2.0
#: How often processes without a warden are looked for.
_LOOKS = 3
#: The controls of the warden. Tests switch them off one by one to see that each is needed.
CONTROLS: Mapping[str, bool] = {"subreaper": True, "no_new_privs": True, "kill_tree": True, "fence": True}


class CommandRefused(Refused):
    """The command was not started."""


@frozen
class CommandLimits:
    timeout_s: float = 120.0
    #: Between SIGTERM and SIGKILL.
    grace_s: float = 2.0
    #: Of each stream, half from its start and half from its end.
    kept_bytes: int = 256 * 1024
    #: Of each stream, passed on while the command runs.
    live_chars_max: int = 256 * 1024
    processes_max: int = 128
    file_bytes_max: int = 256 * 1024 * 1024
    memory_bytes_max: int = 2 * 1024 * 1024 * 1024
    open_files_max: int = 1024


DEFAULT_LIMITS = CommandLimits()


@frozen
class Captured:
    """What was kept of a stream."""

    text: str
    bytes_total: int
    #: A part in the middle is missing; a note in the text says how much.
    cut: bool


@frozen
class Finished:
    outcome: Outcome
    exit_code: int | None
    signal: str | None
    stdout: Captured
    stderr: Captured
    #: Processes that even SIGKILL did not end, as the kernel holds them in a system call. 0 but for broken disks and network mounts.
    left_behind: int = 0


def scrubbed_environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a command is given: nothing of the host's environment but where programs are. Keys and tokens live in the rest."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "PAGER": "cat",
        "GIT_TERMINAL_PROMPT": "0",
        **(extra or {}),
    }


async def run(
    argv: Sequence[str],
    *,
    directory: int,
    environment: Mapping[str, str],
    limits: CommandLimits = DEFAULT_LIMITS,
    listener: Listener | None = None,
) -> Finished:
    """Run `argv` in the directory that is open as `directory`, with nothing to read from. Cancelling ends the command and everything below it."""
    _check_arguments(argv)
    marker = secrets.token_hex(16)
    order = {
        "name": f"trouper-{os.getpid()}-{marker[:8]}",
        "argv": list(argv),
        "environment": {**environment, _MARKER: marker},
        "grace_s": limits.grace_s,
        "processes_max": limits.processes_max,
        "rlimits": _rlimits(limits),
        **CONTROLS,
    }
    ours, theirs = socket.socketpair()
    with ours:
        handed_over = os.dup(directory)
        try:
            order["directory"] = handed_over
            process = await _start_warden(theirs, handed_over)
        finally:
            theirs.close()
            os.close(handed_over)
        control = trio.socket.from_stdlib_socket(ours)
        reports = _Reports(control, str(order["name"]))
        outputs = {name: _Output(name, limits, listener) for name in ("stdout", "stderr")}
        try:
            timed_out = await _attend(process, control, reports, outputs, order, marker, limits)
        finally:
            with trio.CancelScope(shield=True):
                await _see_out(process, control, reports, marker, limits)
    if reports.failure is not None:
        remedy = "check its name and the arguments"
        if len(argv) == 1 and argv[0].split() != [argv[0]]:  # A command line, which models are used to.
            remedy = "give the program and each of its arguments by itself, as in ['ls', '-l']"
        raise CommandRefused(f"{argv[0]!r} could not be started ({reports.failure}); {remedy}")
    outcome, code, name = reports.verdict(timed_out)
    return Finished(
        outcome, code, name, outputs["stdout"].captured(), outputs["stderr"].captured(), reports.left_behind
    )


async def _start_warden(theirs: socket.socket, directory: int) -> trio.Process:
    if not sys.executable:
        raise CommandRefused("commands cannot be run: this program does not know its own Python; set sys.executable")
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return await trio.lowlevel.open_process(
        [sys.executable, "-I", "-S", _WARDEN, str(theirs.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(theirs.fileno(), directory),
        start_new_session=True,
        env=kept,
        cwd="/",
    )


async def _attend(
    process: trio.Process,
    control: trio.socket.SocketType,
    reports: _Reports,
    outputs: Mapping[str, _Output],
    order: Mapping[str, object],
    marker: str,
    limits: CommandLimits,
) -> bool:
    """Give the order, read the streams, wait for the end or make one. Returns whether the time ran out."""
    assert process.stdout is not None
    assert process.stderr is not None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outputs["stdout"].drain, process.stdout)
        nursery.start_soon(outputs["stderr"].drain, process.stderr)
        with trio.move_on_after(limits.timeout_s) as clock:
            await _send_all(control, json.dumps(order).encode() + b"\n")
            await reports.wait_ended()
        if clock.cancelled_caught:
            control.shutdown(trio.socket.SHUT_WR)
            with trio.move_on_after(limits.grace_s + _WARDEN_PATIENCE_S):
                await reports.wait_ended()
        if reports.lost:
            await trio.to_thread.run_sync(_end_strays, marker, reports.pid, reports.fence or find(reports.name))
        # The streams end with the last process that holds them; one that the kernel will not let go must not hold us up.
        nursery.cancel_scope.deadline = trio.current_time() + _STREAM_PATIENCE_S
    return clock.cancelled_caught


async def _see_out(
    process: trio.Process, control: trio.socket.SocketType, reports: _Reports, marker: str, limits: CommandLimits
) -> None:
    """Until the warden is gone, and all that it watched over. Shielded by the caller."""
    with suppress(OSError):
        control.shutdown(trio.socket.SHUT_WR)  # says "stop", if it has not ended already
    with trio.move_on_after(limits.grace_s + _WARDEN_PATIENCE_S):
        with suppress(OSError):
            await reports.wait_ended()
        await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()
    if reports.lost:
        await trio.to_thread.run_sync(_end_strays, marker, reports.pid, reports.fence or find(reports.name))
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            await stream.aclose()


class _Reports:
    """What the warden says."""

    def __init__(self, control: trio.socket.SocketType, name: str) -> None:
        #: Under which a fence may be there that the warden did not get to tell of.
        self.name = name
        self._control = control
        self._buffer = b""
        self.pid: int | None = None
        self.fence: Fence | None = None
        self.failure: str | None = None
        self.ended = False
        self.left_behind = 0
        self._kind = ""
        self._number = 0
        self._why = ""

    @property
    def lost(self) -> bool:
        """Asked when there is nothing more to read: the warden went without a word."""
        return not self.ended and self.failure is None

    async def wait_ended(self) -> None:
        """Until the command has ended, was not started, or the warden is gone."""
        while not (self.ended or self.failure is not None):
            try:
                data = await self._control.recv(4096)
            except ConnectionError:
                data = b""
            if not data:
                return
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            for line in lines:
                self._take(line.decode(errors="replace"))

    def _take(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "started":
            pid, _, fence = rest.partition(" ")
            self.pid = int(pid)
            self.fence = Fence(fence) if fence else None
        elif word == "failed":
            self.failure = rest
        elif word == "ended":
            self._kind, number, self._why, left = rest.split(" ")
            self._number, self.left_behind = int(number), int(left)
            self.ended = True

    def verdict(self, timed_out: bool) -> tuple[Outcome, int | None, str | None]:
        code = self._number if self._kind == "exit" else None
        name = None
        if self._kind == "signal":
            known = {member.value: member.name for member in signal.Signals}
            name = known.get(self._number, f"signal {self._number}")
        if timed_out:
            return "timed_out", code, name
        if not self.ended:
            return "lost", None, None
        if self._why == "too_many_processes":
            return "too_many_processes", None, name
        return ("exited" if self._kind == "exit" else "signalled"), code, name


@frozen(eq=False)
class _Output:
    """One stream: head and tail kept, the middle counted, the start passed on as it comes."""

    name: str
    limits: CommandLimits
    listener: Listener | None
    _head: bytearray = field(factory=bytearray, init=False)
    _tail: bytearray = field(factory=bytearray, init=False)
    # [bytes seen, characters passed on]: the class is frozen, its counters are not.
    _counts: list[int] = field(factory=lambda: [0, 0], init=False)

    async def drain(self, stream: trio.abc.ReceiveStream) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await stream.receive_some(_READ_BYTES):
                self._keep(data)
                self._pass_on(decoder, data)

    def _keep(self, data: bytes | bytearray) -> None:
        half = self.limits.kept_bytes // 2
        self._counts[0] += len(data)
        room = half - len(self._head)
        self._head.extend(data[:room])
        self._tail.extend(data[max(room, 0) :])
        # Trimmed at twice the size, so that each byte is moved a bounded number of times.
        if len(self._tail) > 2 * half:
            del self._tail[:-half]

    def _pass_on(self, decoder: codecs.IncrementalDecoder, data: bytes | bytearray) -> None:
        room = self.limits.live_chars_max - self._counts[1]
        if self.listener is None or room <= 0:
            return
        text = decoder.decode(bytes(data[: room * 4]))[:room]
        self._counts[1] += len(text)
        if text:
            self.listener(self.name, text)
        if self._counts[1] >= self.limits.live_chars_max:
            self.listener(self.name, "\n[live output ends here; the rest is in the result]\n")

    def captured(self) -> Captured:
        half = self.limits.kept_bytes // 2
        tail = bytes(self._tail[-half:]) if half else b""
        missing = self._counts[0] - len(self._head) - len(tail)
        if missing <= 0:
            return Captured((bytes(self._head) + tail).decode(errors="replace"), self._counts[0], cut=False)
        note = f"\n[... {missing} bytes of {self.name} left out: only the first and last {half} bytes are kept ...]\n"
        # Half a character at the cut is dropped rather than shown as a replacement.
        head = codecs.getincrementaldecoder("utf-8")(errors="replace").decode(bytes(self._head))
        start = next((index for index, byte in enumerate(tail[:4]) if byte & 0xC0 != 0x80), 0)
        return Captured(head + note + tail[start:].decode(errors="replace"), self._counts[0], cut=True)


def _check_arguments(argv: Sequence[str]) -> None:
    if not argv or not argv[0]:
        raise CommandRefused("the command is empty; give the program and its arguments")
    for argument in argv:
        if "\0" in argument:
            raise CommandRefused("an argument holds a NUL character; take it out")
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise CommandRefused("an argument holds half of a surrogate pair; write valid Unicode") from None
    size = sum(len(argument.encode()) + 1 for argument in argv)
    if size > ARGUMENTS_BYTES_MAX:
        raise CommandRefused(
            f"the arguments have {size} bytes; use at most {ARGUMENTS_BYTES_MAX}, or write a file and pass its name"
        )


def _rlimits(limits: CommandLimits) -> dict[str, int]:
    found = {
        "RLIMIT_CORE": 0,
        "RLIMIT_FSIZE": limits.file_bytes_max,
        # Not RLIMIT_AS: runtimes that reserve address space they never touch would not start.
        "RLIMIT_DATA": limits.memory_bytes_max,
        "RLIMIT_NOFILE": limits.open_files_max,
        "RLIMIT_CPU": max(1, math.ceil(limits.timeout_s) * 4),
    }
    if os.geteuid() != 0:
        # The kernel counts all processes of the user, so ours come on top of those there are. It exempts root; the warden's own count does not.
        found["RLIMIT_NPROC"] = _tasks_of_user() + 4 * limits.processes_max
    return found


def _tasks_of_user() -> int:
    uid = os.geteuid()
    total = 0
    for name in _process_ids():
        with suppress(OSError):
            if os.stat(f"/proc/{name}").st_uid == uid:
                total += len(os.listdir(f"/proc/{name}/task"))
    return total


def _process_ids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _end_strays(marker: str, session: int | None, fence: Fence | None) -> None:
    """The command killed its warden: end whatever is in its fence, in its session or carries its marker."""
    if session is not None and sys.platform != "linux":
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(session, signal.SIGKILL)
    until = time.monotonic() + _WARDEN_PATIENCE_S
    if fence is not None:
        fence.end(until)
    named = marker.encode()

    def strays() -> set[int]:
        return {pid for pid in _process_ids() if _is_stray(pid, named, session)}

    # One look does not do: a process that is just being replaced by another program has no environment for a moment.
    for _ in range(_LOOKS):
        for pid in warden.halt(strays, lambda pid, known: _is_stray(pid, named, session), until):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _is_stray(pid: int, marker: bytes, session: int | None) -> bool:
    status = warden.status_of(pid)
    if status is None:
        return False
    if session is not None and status[2] == session:
        return True
    try:
        return marker in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


async def _send_all(control: trio.socket.SocketType, data: bytes) -> None:
    view = memoryview(data)
    with suppress(ConnectionError):  # the warden is gone already, which the reader notices
        while view:
            view = view[await control.send(view) :]
