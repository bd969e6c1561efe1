"""Streams of a model that are cancelled wherever they happen to be, and what must be left of them: nothing (M2, I21)."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio

from trouper.core.messages import Message, Text
from trouper.models.chunks import TextChunk
from trouper.models.protocol import ModelRequest
from trouper.testing.server import Item, Stall, TestServer

ASK = ModelRequest(messages=(Message("user", (Text("hi"),)),))
# Some words, a wait, more words, and then nothing for ever: no reply ends by itself.
TURN: list[Item] = [*[TextChunk("a" * 20)] * 5, Stall(0.002), *[TextChunk("b" * 20)] * 5, Stall()]
AT_ONCE = 50

counts_descriptors = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors the Linux way")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def leaving_no_descriptor() -> Iterator[None]:
    """None of what happens in the block is left behind it."""
    before = descriptors()
    yield
    assert descriptors() == before


@contextmanager
def leaving_nothing() -> Iterator[None]:
    """No descriptor and no task of what happens in the block is left behind it."""
    tasks = trio.lowlevel.current_statistics().tasks_living
    with leaving_no_descriptor():
        yield
    assert trio.lowlevel.current_statistics().tasks_living == tasks


async def cancel_at_random_moments(model: Any, streams: int) -> Counter[str]:
    """So many. How many were cancelled at which stage."""
    chance = random.Random(20)
    stages: Counter[str] = Counter()

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
    assert stages.total() == streams
    return stages


async def see_them_end(server: TestServer) -> None:
    """The server sees every one end, by the client's leaving."""
    await server.wait_idle()
    await server.wait_no_connections()
    assert {request.ending for request in server.requests} == {"left"}
