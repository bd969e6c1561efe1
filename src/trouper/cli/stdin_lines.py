"""Lines of standard input as they come, from a pipe, a terminal or a file."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import trio

_READ_BYTES = 65_536
#: A longer line comes in pieces.
LINE_BYTES_MAX = 16 * 1024 * 1024


async def lines_of(descriptor: int) -> AsyncIterator[str]:
    """Without their ends; bytes that are no UTF-8 are replaced.

    No thread waits in a read: one that is still there when the program ends holds a lock that the interpreter wants, and may crash it.
    """
    received = bytearray()
    while data := await _read(descriptor):
        received += data
        *lines, rest = received.split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            lines, rest = [*lines, rest], bytearray()
        received = rest
        for line in lines:
            yield _text(line)
    if received:
        yield _text(received)


def _text(line: bytearray) -> str:
    return line.decode("utf-8", "replace").rstrip("\r")


async def _read(descriptor: int) -> bytes:
    while True:
        try:
            await trio.lowlevel.wait_readable(descriptor)
        except OSError:  # A file is always ready; the system refuses to say so.
            await trio.lowlevel.checkpoint()
        try:
            return os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            continue
