"""M2, I21: a cancelled stream closes its connection, and leaves nothing."""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import httpx
import pytest
import trio

from trouper.core.messages import Message, Text
from trouper.models.chunks import TextChunk
from trouper.models.gemini import Gemini
from trouper.models.protocol import ModelRequest
from trouper.testing.server import Item, Stall, serve_gemini

ASK = ModelRequest(messages=(Message("user", (Text("hi"),)),))
# Some words, a wait, more words, and then nothing for ever: no reply ends by itself.
TURN: list[Item] = [*[TextChunk("a" * 20)] * 5, Stall(0.002), *[TextChunk("b" * 20)] * 5, Stall()]
STREAMS = 1_000
AT_ONCE = 50


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors the Linux way")
@pytest.mark.parametrize("own_transport", [True, False], ids=["trio transport", "httpx transport"])
async def test_a_thousand_streams_cancelled_at_random_moments(own_transport: bool) -> None:
    """M2: no connection, descriptor or task is left, and the server sees every one end."""
    chance = random.Random(20)
    stages: Counter[str] = Counter()
    streams = STREAMS if own_transport else STREAMS // 10
    transport: Any = None if own_transport else httpx.AsyncHTTPTransport()
    tasks = _count_tasks()
    before = descriptors()
    async with serve_gemini([TURN], repeat_last=True) as server:
        with_server = descriptors()
        async with Gemini("gemini-3-flash", api_key="k", base_url=server.url, transport=transport) as model:

            async def one(moment: int) -> None:
                """Cancelled at its n-th wake-up of any kind, so that each stage is met whatever the machine's speed."""
                stage = "before the reply"
                with trio.CancelScope() as scope:
                    async with trio.open_nursery() as nursery:

                        async def axe() -> None:
                            for _ in range(moment):
                                await trio.lowlevel.checkpoint()
                            scope.cancel()

                        nursery.start_soon(axe)
                        async with model.stream(ASK) as chunks:
                            stage = "before the first word"
                            async for _ in chunks:
                                stage = "in the midst"
                assert scope.cancelled_caught
                stages[stage] += 1

            for _ in range(streams // AT_ONCE):
                async with trio.open_nursery() as nursery:
                    for _ in range(AT_ONCE):
                        nursery.start_soon(one, int(chance.expovariate(1 / 30)))
            await server.wait_idle()
            await server.wait_no_connections()
            assert descriptors() == with_server
            assert stages.total() == streams
            if own_transport:
                assert len(stages) == 3, stages
            # All that reached the server ended by the client's leaving.
            assert {request.ending for request in server.requests} == {"left"}
    assert descriptors() == before
    assert _count_tasks() == tasks


def _count_tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


async def test_leaving_the_block_early_closes_the_connection() -> None:
    """M2: no cancel needed."""
    async with serve_gemini([TURN]) as server, Gemini("m", api_key="k", base_url=server.url) as model:
        async with model.stream(ASK) as chunks:
            assert await anext(chunks) == TextChunk("a" * 20)
        await server.wait_no_connections()
        assert server.requests[0].ending == "left"


async def test_an_exception_in_the_block_closes_the_connection() -> None:
    async with serve_gemini([TURN]) as server, Gemini("m", api_key="k", base_url=server.url) as model:
        with pytest.raises(ZeroDivisionError):
            async with model.stream(ASK):
                raise ZeroDivisionError
        await server.wait_no_connections()
