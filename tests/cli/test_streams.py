"""Streams without a buffer, or that another program has made non-blocking: read and written to the end, or it is said that they are not."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
import termios
import threading
import time
from pathlib import Path

import pytest
from terminal_driver import COMMAND, PATIENCE_S

from trouper.cli.streams import Patient

#: More than a pipe holds.
LONG = "x" * 200_000
#: It is written at once.
SHOW = ("sessions", "show", "main", "--json", "--root")


def test_what_a_pipe_takes_no_more_of_at_once_is_written_when_it_does() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    got: list[bytes] = []

    def read() -> None:
        with os.fdopen(reading, "rb") as there:
            got.append(there.read())

    reader = threading.Thread(target=read)
    reader.start()
    with Patient(writing, "wb") as stream:
        assert stream.write(LONG.encode()) == len(LONG)
    reader.join(PATIENCE_S)
    assert got == [LONG.encode()]


@pytest.mark.parametrize("buffered", ["", "1"])
def test_a_reader_that_takes_its_time_gets_all_and_costs_no_turn(tmp_path: Path, buffered: str) -> None:
    """A pipe that Node has made is non-blocking; the turn was interrupted when it was full, or the end of the output was missing, and the code was 0."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    process = subprocess.Popen(
        [*COMMAND, "run", "-", "--json", "--root", str(tmp_path / "new")],
        stdin=subprocess.PIPE,
        stdout=writing,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": buffered},
    )
    os.close(writing)
    assert process.stdin is not None
    process.stdin.write(f"say {LONG}".encode())
    process.stdin.close()
    with os.fdopen(reading, "rb") as there:
        events = [json.loads(line) for line in there.read().splitlines()]
    assert process.wait(PATIENCE_S) == 0 and process.stderr is not None and process.stderr.read() == b""
    process.stderr.close()
    assert events[-1]["type"] == "result" and any(LONG in str(event) for event in events)


def test_a_prompt_that_comes_in_pieces_is_waited_for(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    process = subprocess.Popen(
        [*COMMAND, "run", "-", "--root", str(tmp_path / "new")],
        stdin=reading,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.write(writing, b"what is 2 ")
    deadline = time.monotonic() + PATIENCE_S
    while _left_in(reading):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    os.write(writing, b"* 3?")
    os.close(writing)
    os.close(reading)
    out, said = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, said) == (0, "2 * 3 = 6.\n", "")


def _left_in(pipe: int) -> int:
    count: int = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0]
    return count


@pytest.mark.parametrize("buffered", ["", "1"])
def test_output_that_has_room_only_for_its_beginning_is_a_failure(filled: Path, tmp_path: Path, buffered: str) -> None:
    """A disk that is nearly full takes less than it is given: what is cut off was no error to Python, and the code was 0."""
    done = subprocess.run(
        ["bash", "-c", 'ulimit -f 1; exec "$@" > page', "-", *COMMAND, *SHOW, str(filled)],
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_S,
        cwd=tmp_path,
        env={**os.environ, "PYTHONUNBUFFERED": buffered},
    )
    assert (done.returncode, done.stderr.count("\n")) == (74, 1) and "File too large" in done.stderr
    assert (tmp_path / "page").stat().st_size == 1_024
