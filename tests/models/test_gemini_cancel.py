"""M2, I21: a cancelled stream closes its connection, and leaves nothing."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import httpx
import pytest
from cancelled_streams import (
    ASK,
    TURN,
    cancel_at_random_moments,
    counts_descriptors,
    leaving_no_descriptor,
    leaving_nothing,
    see_them_end,
)

from trouper.models.chunks import TextChunk
from trouper.models.gemini import Gemini
from trouper.testing.server import serve_gemini

STREAMS = 1_000


@counts_descriptors
@pytest.mark.parametrize("own_transport", [True, False], ids=["trio transport", "httpx transport"])
async def test_a_thousand_streams_cancelled_at_random_moments(own_transport: bool) -> None:
    """M2: no connection, descriptor or task is left, and the server sees every one end."""
    streams = STREAMS if own_transport else STREAMS // 10
    transport: Any = None if own_transport else httpx.AsyncHTTPTransport()
    with leaving_nothing():
        async with serve_gemini([TURN], repeat_last=True) as server:
            async with Gemini("gemini-3-flash", api_key="k", base_url=server.url, transport=transport) as model:
                with leaving_no_descriptor() if own_transport else nullcontext():
                    stages = await cancel_at_random_moments(model, streams)
                    if own_transport:
                        await see_them_end(server)
            # The other one may keep a connection that was cancelled as it came about, for as long as it is open itself.
            await see_them_end(server)
    if own_transport:
        assert len(stages) == 3, stages


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
