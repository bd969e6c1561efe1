"""A person at a terminal: runs a command on a pseudo-terminal, reads the screen as a terminal would draw it, and types."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path

import pyte

COLUMNS, ROWS = 110, 45
#: Only ever reached when something is wrong: nothing here waits for time to pass.
PATIENCE_S = 60.0
COMMAND = [sys.executable, "-m", "trouper.cli"]
#: A shell that can do one thing: run a command in the foreground, say how a stopped one has left the terminal, and continue it after the next line.
SHELL = """
import os, signal, subprocess, sys, termios

def foreground():
    os.setpgid(0, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)

signal.signal(signal.SIGTTOU, signal.SIG_IGN)
own = termios.tcgetattr(0)
job = subprocess.Popen(sys.argv[1:], preexec_fn=foreground).pid
while True:
    _, status = os.waitpid(job, os.WUNTRACED)
    os.tcsetpgrp(0, os.getpid())
    print("the terminal is", "as it was" if termios.tcgetattr(0) == own else "not as it was", flush=True)
    if not os.WIFSTOPPED(status):
        break
    termios.tcsetattr(0, termios.TCSADRAIN, own)
    sys.stdin.readline()
    os.tcsetpgrp(0, job)
    os.killpg(job, signal.SIGCONT)
sys.exit(abs(os.waitstatus_to_exitcode(status)))
"""
IN_SHELL = [sys.executable, "-c", SHELL, *COMMAND]


def _rest(text: str, behind: str) -> str:
    place = text.rfind(behind) if behind else 0
    return "" if place < 0 else text[place + len(behind) :]


class AtTerminal:
    """A command on a terminal of its own."""

    def __init__(
        self,
        *arguments: str,
        cwd: Path | None = None,
        columns: int = COLUMNS,
        command: Sequence[str] = COMMAND,
        **environment: str,
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
        self._screen = pyte.HistoryScreen(columns, ROWS, history=5_000)
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""
        self.process = subprocess.Popen(
            [*command, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=cwd,
            env={**os.environ, "TERM": "xterm-256color", "NO_COLOR": "", **environment},
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(slave)

    def __enter__(self) -> AtTerminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self._master >= 0:
            os.close(self._master)

    @property
    def pid(self) -> int:
        return self.process.pid

    def text(self) -> str:
        """Everything on the screen and scrolled off it, as lines without trailing space."""
        scrolled = [
            "".join(line[x].data for x in range(self._screen.columns)).rstrip() for line in self._screen.history.top
        ]
        return "\n".join([*scrolled, *(line.rstrip() for line in self._screen.display)])

    def wait_for(self, wanted: str, *, behind: str = "") -> str:
        """Until the text is on the screen, behind the last place where `behind` stands; the screen then."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            shown = self.text()
            # Where a line is broken depends on the length of ids in it.
            if any(wanted in _rest(text, behind) for text in (shown, " ".join(shown.split()))):
                return shown
            if not self._read(deadline):
                raise AssertionError(f"{wanted!r} never came; the screen:\n{self.text()}")

    def wait_for_bytes(self, wanted: bytes) -> None:
        """Until the command has written this."""
        deadline = time.monotonic() + PATIENCE_S
        while wanted not in self.raw:
            assert self._read(deadline), f"{wanted!r} never came; the screen:\n{self.text()}"

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def line(self, text: str) -> None:
        self.type(text + "\r")

    def ask(self, text: str, answer: str) -> str:
        """Type a line, and wait until the answer is on the screen; the screen then."""
        self.line(text)
        return self.wait_for(answer)

    def quit(self) -> None:
        self.line("/quit")
        assert self.wait_end() == 0

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def press_until_end(self, number: int) -> None:
        """The same signal again and again, as by somebody who wants to leave."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end; the screen:\n{self.text()}"
            self.kill(number)
            self._read(time.monotonic() + 0.01)

    def wait_for_file(self, path: Path) -> None:
        """Until the command has made this file; what it writes meanwhile is read."""
        deadline = time.monotonic() + PATIENCE_S
        while not path.exists():
            assert time.monotonic() < deadline, f"{path} never came; the screen:\n{self.text()}"
            self._read(time.monotonic() + 0.01)

    def close_window(self) -> int:
        """The terminal goes away under the command; its exit code."""
        os.close(self._master)
        self._master = -1
        return self.process.wait(timeout=PATIENCE_S)

    def wait_end(self) -> int:
        """Read to the end; the exit code."""
        deadline = time.monotonic() + PATIENCE_S
        while self._read(deadline):
            pass
        return self.process.wait(timeout=PATIENCE_S)

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return False
        try:
            data = os.read(self._master, 65_536)
        except OSError:  # How Linux says that nobody has the other side open any more.
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)


def _take_terminal() -> None:
    """Make the terminal the one that controls the process, so that Ctrl-C is a signal to it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def wait_for_children(pid: int) -> list[int]:
    """The processes that a process has started, as soon as there are some."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if found:
            return [int(child) for child in found]
        time.sleep(0.005)
    raise AssertionError(f"process {pid} has started none")


def wait_for_text(path: Path, text: str) -> None:
    """Until a file has the text in it."""
    deadline = time.monotonic() + PATIENCE_S
    while text.encode() not in path.read_bytes():
        assert time.monotonic() < deadline, f"{text!r} is not in {path}"
        time.sleep(0.005)


def wait_for_end(pid: int) -> None:
    """Until there is no such process any more."""
    deadline = time.monotonic() + PATIENCE_S
    while os.path.exists(f"/proc/{pid}"):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.005)


def run(
    *arguments: str, input: str = "", cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A command without a terminal, to its end."""
    return subprocess.run(
        [*COMMAND, *arguments],
        input=input,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=cwd,
        env={**os.environ, **environment},
    )


def in_order(text: str, *parts: str) -> None:
    """Each part stands in the text behind the one before."""
    place = 0
    flat = " ".join(text.split())
    for part in parts:
        found = flat.find(" ".join(part.split()), place)
        assert found >= 0, f"{part!r} is missing, or comes too early, in:\n{text}"
        place = found + 1
