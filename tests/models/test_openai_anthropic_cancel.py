"""M2, I21: a cancelled stream of either client closes its connection, and leaves nothing."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

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

from trouper.models.anthropic import Anthropic
from trouper.models.chunks import TextChunk, UsageChunk
from trouper.models.openai_compatible import OpenAICompatible
from trouper.testing.server import TestServer, serve_anthropic, serve_openai

STREAMS = 200
FORMATS = ["openai", "anthropic"]


def serve(form: str) -> AbstractAsyncContextManager[TestServer]:
    return serve_openai([TURN], repeat_last=True) if form == "openai" else serve_anthropic([TURN], repeat_last=True)


def client(form: str, server: TestServer) -> Any:
    if form == "openai":
        return OpenAICompatible("m", api_key="k", base_url=server.url + "/v1")
    return Anthropic("m", api_key="k", base_url=server.url)


@counts_descriptors
@pytest.mark.parametrize("form", FORMATS)
async def test_two_hundred_streams_cancelled_at_random_moments(form: str) -> None:
    """M2: no connection, descriptor or task is left, and the server sees every one end."""
    with leaving_nothing():
        async with serve(form) as server, client(form, server) as model:
            with leaving_no_descriptor():
                stages = await cancel_at_random_moments(model, STREAMS)
                await see_them_end(server)
    assert len(stages) >= 2, stages


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
