"""The end of a stream: what still comes after a reply is complete is waited for, but never so long that the reply is taken for stalled (L12, L14)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from trouper import Deadlines, Limits
from trouper.core.messages import Usage
from trouper.models.chunk_stream import TAIL_S, ChunkStream
from trouper.models.chunks import Chunk
from trouper.models.openai_reply import ChatReply
from trouper.models.protocol import ModelRequest

TEXT = b'data: {"choices":[{"index":0,"delta":{"content":"Fine."}}]}\n\n'
FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"
COMMENT = b": still here\n\n"


class Connection:
    """Pieces, and pauses between them in seconds; then silence."""

    def __init__(self, *script: bytes | float) -> None:
        self.headers = {"content-type": "text/event-stream"}
        self._script = list(script)

    async def receive(self) -> bytes:
        while self._script:
            match self._script.pop(0):
                case bytes(piece):
                    await trio.lowlevel.checkpoint()
                    return piece
                case seconds:
                    await trio.sleep(seconds)
        await trio.sleep_forever()
        raise AssertionError


class Client:
    name = "test:wire"
    context_window = None

    def __init__(self, *script: bytes | float) -> None:
        self._script = script

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[Chunk]]:
        connection: Any = Connection(*self._script)
        yield ChunkStream(connection, ChatReply("test"), "test", 10_000, request.idle_s)


@pytest.mark.parametrize("idle_s", [0.05, 2.0, 4.9, 5.0, 90.0])
@pytest.mark.parametrize("comments", [False, True], ids=["silent", "kept alive"])
async def test_a_complete_reply_whose_connection_stays_open_is_complete(
    autojump_clock, open_checked, idle_s: float, comments: bool
) -> None:
    """L12, L14: however little silence is allowed, and however long the server keeps the line open."""
    after = [COMMENT, idle_s / 4] * 2_000 if comments else []
    limits = Limits(deadlines=Deadlines(idle_s=idle_s))
    async with open_checked(Client(TEXT, FINISH, *after), limits=limits) as runtime:
        session = await runtime.session("s")
        began = trio.current_time()
        result = await session.ask("hi")
        assert (result.text, result.stop_reason, result.error) == ("Fine.", "end_turn", None)
        assert trio.current_time() - began <= TAIL_S


async def test_figures_that_come_after_the_finish_are_waited_for(autojump_clock, open_checked) -> None:
    """L24"""
    limits = Limits(deadlines=Deadlines(idle_s=3.0))
    async with open_checked(Client(TEXT, FINISH, 1.0, USAGE, DONE), limits=limits) as runtime:
        result = await (await runtime.session("s")).ask("hi")
        assert (result.text, result.usage) == ("Fine.", Usage(input=7, output=2))
