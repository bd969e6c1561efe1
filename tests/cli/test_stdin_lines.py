"""Lines of standard input: from pipes, terminals and files, in pieces or at once, and no thread that outlives the program."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import trio
import trio.testing

from trouper.cli.stdin_lines import LINE_BYTES_MAX, lines_of


async def _all(descriptor: int) -> list[str]:
    return [line async for line in lines_of(descriptor)]


async def test_lines_come_as_they_are_written_whatever_the_pieces() -> None:
    reading, writing = os.pipe()
    got: list[str] = []
    send, receive = trio.open_memory_channel[str](10)

    async def read() -> None:
        async for line in lines_of(reading):
            got.append(line)
            await send.send(line)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        for piece in (b"on", b"e\nt", "wö".encode()[:2], "wö".encode()[2:] + b"\r\n\n", b"\xff\nlast"):
            os.write(writing, piece)
            await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(30):
            assert await receive.receive() == "one"
        os.close(writing)
    os.close(reading)
    assert got == ["one", "twö", "", "\ufffd", "last"]


async def test_a_file_and_nothing_at_all_can_be_read_too(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("a\nb\n")
    for path, lines in ((tmp_path / "lines", ["a", "b"]), (Path(os.devnull), [])):
        descriptor = os.open(path, os.O_RDONLY)
        assert await _all(descriptor) == lines
        os.close(descriptor)


async def test_a_line_without_end_comes_in_pieces(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"x" * (LINE_BYTES_MAX + 100_000))
    descriptor = os.open(tmp_path / "long", os.O_RDONLY)
    lines = await _all(descriptor)
    os.close(descriptor)
    assert len(lines) == 2 and sum(map(len, lines)) == LINE_BYTES_MAX + 100_000


async def test_no_thread_waits_for_a_line() -> None:
    """A thread that still reads when the program ends can crash the interpreter."""
    reading, writing = os.pipe()
    before = threading.active_count()
    with trio.move_on_after(0) as scope:
        await _all(reading)
    assert scope.cancelled_caught and threading.active_count() == before
    os.close(reading)
    os.close(writing)
