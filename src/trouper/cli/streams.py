"""The three streams of a command, whatever whoever started it has made of them: open, read and written to the end, and no text that they cannot show stops the program.

An output without a buffer (PYTHONUNBUFFERED) may take less than it is given, and Python does not look how much. A stream that another program has made non-blocking
takes and gives what it can at once, and no more. Here nothing is left out: what takes time is waited for, and what does not work fails.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any


def prepare_streams() -> None:
    """Before anything is read or written."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:  # So Python says that it was closed.
            setattr(sys, name, _nothing(mode))
        elif stream is getattr(sys, f"__{name}__"):  # Else a program that calls us has put something of its own there.
            setattr(sys, name, _to_the_end(stream))
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            # A terminal of another encoding shows what it can.
            reconfigure(errors="backslashreplace")


def _nothing(mode: str) -> Any:
    """A stream that reads and writes nothing; and no file of ours gets its number, which others take for theirs."""
    descriptor = os.open(os.devnull, os.O_RDONLY if mode == "r" else os.O_WRONLY)
    return os.fdopen(descriptor, mode, encoding="utf-8", closefd=False)


def _to_the_end(stream: Any) -> Any:
    """The same stream, read and written to the end."""
    buffer = stream.buffer
    raw = getattr(buffer, "raw", buffer)
    patient: Any = Patient(raw.fileno(), raw.mode, closefd=False)
    if raw.writable():
        stream.flush()
    if buffer is not raw:
        patient = io.BufferedWriter(patient) if raw.writable() else io.BufferedReader(patient)
    return io.TextIOWrapper(
        patient,
        encoding=stream.encoding,
        errors=stream.errors,
        newline="\n" if raw.writable() else None,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class Patient(io.FileIO):
    """A descriptor that is waited for where it is not ready, and that takes all that it is given."""

    def write(self, data: Any, /) -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        while left:
            count: int | None = super().write(left)
            if count is None:
                self._wait(reading=False)
            else:
                left = left[count:]
        return size

    def readinto(self, buffer: Any, /) -> int:
        while True:
            count: int | None = super().readinto(buffer)
            if count is not None:
                return count
            self._wait(reading=True)

    def _wait(self, *, reading: bool) -> None:
        import select

        ready = select.poll()
        ready.register(self.fileno(), select.POLLIN if reading else select.POLLOUT)
        ready.poll()
