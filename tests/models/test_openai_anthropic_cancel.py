"""M2, I21: a cancelled stream of either client closes its connection, and leaves nothing."""

from __future__ import annotations

import os
import random
from collections import Counter
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import trio

from trouper.core.messages import Message, Text
from trouper.models.anthropic import Anthropic
from trouper.models.chunks import TextChunk, UsageChunk
from trouper.models.openai_compatible import OpenAICompatible
from trouper.models.protocol import ModelRequest
from trouper.testing.server import Item, Stall, TestServer, serve_anthropic, serve_openai

ASK = ModelRequest(messages=(Message("user", (Text("hi"),)),))
# Some words, a wait, more words, and then nothing for ever: no reply ends by itself.
TURN: list[Item] = [*[TextChunk("a" * 20)] * 5, Stall(0.002), *[TextChunk("b" * 20)] * 5, Stall()]
STREAMS = 200
AT_ONCE = 50
FORMATS = ["openai", "anthropic"]


def serve(form: str) -> AbstractAsyncContextManager[TestServer]:
    return serve_openai([TURN], repeat_last=True) if form == "openai" else serve_anthropic([TURN], repeat_last=True)


def client(form: str, server: TestServer) -> Any:
    if form == "openai":
        return OpenAICompatible("m", api_key="k", base_url=server.url + "/v1")
    return Anthropic("m", api_key="k", base_url=server.url)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def living_tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors the Linux way")
@pytest.mark.parametrize("form", FORMATS)
async def test_two_hundred_streams_cancelled_at_random_moments(form: str) -> None:
    """M2: no connection, descriptor or task is left, and the server sees every one end."""
    chance = random.Random(20)
    stages: Counter[str] = Counter()
    tasks, before = living_tasks(), descriptors()
    async with serve(form) as server:
        with_server = descriptors()
        async with client(form, server) as model:

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

            for _ in range(STREAMS // AT_ONCE):
                async with trio.open_nursery() as nursery:
                    for _ in range(AT_ONCE):
                        nursery.start_soon(one, int(chance.expovariate(1 / 30)))
            await server.wait_idle()
            await server.wait_no_connections()
            assert descriptors() == with_server
            assert stages.total() == STREAMS
            assert len(stages) >= 2, stages
            # All that reached the server ended by the client's leaving.
            assert {request.ending for request in server.requests} == {"left"}
    assert descriptors() == before
    assert living_tasks() == tasks


@pytest.mark.parametrize("form", FORMATS)
async def test_leaving_the_block_early_closes_the_connection(form: str) -> None:
    """M2: no cancel needed."""
    async with serve(form) as server, client(form, server) as model:
        async with model.stream(ASK) as chunks:
            got = [await anext(chunks), await anext(chunks)]
            assert TextChunk("a" * 20) in [chunk for chunk in got if not isinstance(chunk, UsageChunk)]
        await server.wait_no_connections()
        assert server.requests[0].ending == "left"


@pytest.mark.parametrize("form", FORMATS)
async def test_an_exception_in_the_block_closes_the_connection(form: str) -> None:
    async with serve(form) as server, client(form, server) as model:
        with pytest.raises(ZeroDivisionError):
            async with model.stream(ASK):
                raise ZeroDivisionError
        await server.wait_no_connections()
