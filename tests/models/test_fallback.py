"""Falling back (M6): before any progress only, with a word about it, and nothing left open."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from trouper import ConfigError, Limits, Retry
from trouper.core.events import ModelRetried
from trouper.core.messages import Message, Text, Usage
from trouper.models import (
    AuthFailed,
    CallStart,
    Chunk,
    ContextOverflow,
    Done,
    Fallback,
    KeepAlive,
    Model,
    ModelRequest,
    NetworkFault,
    RateLimited,
    Scripted,
    ServerFault,
    Switched,
    TextChunk,
    ThinkingChunk,
    UsageChunk,
    drop,
    fail,
    reply,
    stall,
)

REQUEST = ModelRequest((Message("user", (Text("hello"),)),))


async def said(model: Model) -> list[Chunk]:
    async with model.stream(REQUEST) as chunks:
        return [chunk async for chunk in chunks]


def first(*script) -> Scripted:
    return Scripted(script, name="test:first")


def second(*script) -> Scripted:
    return Scripted(script or [reply("from the second")], name="test:second")


async def test_what_all_of_them_have_cost_is_told_before_the_failure():
    """L24, M6: models that came to nothing are billed all the same."""

    def billed(tokens: int) -> list[object]:
        return [UsageChunk(Usage(input=tokens)), *drop()]

    told: list[Chunk] = []
    async with Fallback(first(billed(1)), second(billed(2))).stream(REQUEST) as chunks:
        with pytest.raises(NetworkFault, match="every model failed"):
            async for chunk in chunks:
                told.append(chunk)
    cost_1, switched, cost_2 = told
    assert (cost_1, cost_2) == (UsageChunk(Usage(input=1)), UsageChunk(Usage(input=2)))
    assert isinstance(switched, Switched)


def test_it_is_a_model_as_large_as_its_smallest():
    model = Fallback(Scripted([], context_window=200), Scripted([], context_window=100), Scripted([]))
    assert isinstance(model, Model) and model.context_window == 100
    assert Fallback(Scripted([]), Scripted([])).context_window is None
    with pytest.raises(ConfigError, match="at least two"):
        Fallback(Scripted([]))


@pytest.mark.parametrize(
    "given", [([Scripted([]), Scripted([])],), (Scripted([]), None), (Scripted, Scripted), ("a", "b")]
)
def test_what_is_no_model_is_refused_where_it_is_given(given):
    """M6: a list of models in place of models, say."""
    with pytest.raises(ConfigError, match=r"is no model|is a class"):
        Fallback(*given)


async def test_while_the_first_answers_the_second_is_not_asked():
    one, two = first(reply("from the first")), second()
    assert await said(Fallback(one, two)) == [TextChunk("from the first"), Done("end_turn")]
    assert not two.requests


@pytest.mark.parametrize(
    "script",
    [
        fail(RateLimited("slow")),
        fail(AuthFailed("no key")),
        fail(ContextOverflow("too long")),
        reply(drop()),
        reply(" \n", KeepAlive(), UsageChunk(Usage(input=1)), drop()),
        reply(ThinkingChunk("", "sig"), fail(ServerFault("busy"))),
        (),
    ],
    ids=["rate limit", "auth", "overflow", "drop", "blank, then drop", "signature, then fault", "nothing"],
)
async def test_whatever_stops_a_model_before_progress_hands_over(script, caplog):
    """M6, and the log says so."""
    one, two = first(script), second()
    with caplog.at_level(logging.WARNING):
        chunks = await said(Fallback(one, two))
    cost, (switched, *rest) = chunks[:-3], chunks[-3:]
    assert all(isinstance(chunk, UsageChunk) for chunk in cost)  # What the first has cost is billed all the same (L24).
    assert isinstance(switched, Switched) and "going on with test:second" in switched.fault.message
    assert rest == [TextChunk("from the second"), Done("end_turn")]  # Nothing else of the first is mixed in.
    assert "test:first" in caplog.text and one.open_streams == two.open_streams == 0


@pytest.mark.parametrize("progress", [TextChunk("Begun"), ThinkingChunk("hm"), CallStart(0, "look")])
async def test_after_progress_a_failure_is_a_failure(progress):
    """M6"""
    one, two = first(reply(progress, drop())), second()
    heard: list[Chunk] = []
    with pytest.raises(NetworkFault):
        async with Fallback(one, two).stream(REQUEST) as chunks:
            async for chunk in chunks:
                heard.append(chunk)
    assert heard == [progress] and not two.requests and one.open_streams == 0


async def test_when_all_fail_the_error_names_them_all():
    model = Fallback(
        first(fail(RateLimited("slow down", retry_after_s=9.0))),
        second(reply(drop())),
        Scripted([fail(AuthFailed("no key"))]),
    )
    with pytest.raises(AuthFailed) as caught:
        await said(model)
    assert (
        "slow down" in caught.value.message
        and "test:second" in caught.value.message
        and "no key" in caught.value.message
    )
    assert caught.value.retryable and caught.value.retry_after_s == 9.0
    with pytest.raises(AuthFailed) as caught:
        await said(Fallback(first(fail(AuthFailed("a"))), second(fail(AuthFailed("b")))))
    assert not caught.value.retryable


async def test_patience_hands_over_a_silent_model(autojump_clock):
    """M6: a connection or a first word that takes too long; the last one has all the time that the step has."""
    one, two = first(reply(stall(100), "late")), second(reply(stall(50), "from the second"))
    begun = trio.current_time()
    chunks = await said(Fallback(one, two, patience_s=5.0))
    assert trio.current_time() - begun == pytest.approx(55)
    assert chunks[1] == TextChunk("from the second") and "said nothing for 5.0 s" in chunks[0].fault.message
    assert one.open_streams == 0
    slow_talker = first(reply("quick", stall(100), "late"))
    assert [
        c.text for c in await said(Fallback(slow_talker, second(), patience_s=5.0)) if isinstance(c, TextChunk)
    ] == [
        "quick",
        "late",
    ]


class Nested:
    """A client with a nursery and a scope of its own around the stream, as foreign code has."""

    name = "test:nested"
    context_window = None

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.closed = 0

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[Chunk]]:
        try:
            with trio.CancelScope():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(trio.sleep_forever)
                    yield self._chunks()
                    nursery.cancel_scope.cancel()
        finally:
            self.closed += 1

    async def _chunks(self) -> AsyncIterator[Chunk]:
        await trio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error
        yield TextChunk("nested")
        yield Done("end_turn")


async def test_scopes_and_nurseries_of_the_models_are_left_in_order(autojump_clock):
    """trio: each stream is opened and closed in the caller's task, inner scopes before outer ones."""
    broken, nested = Nested(RuntimeError("a bug with key=SECRET")), Nested(None)
    with trio.fail_after(10):
        chunks = await said(Fallback(broken, nested, patience_s=3.0))
    assert chunks[1:] == [TextChunk("nested"), Done("end_turn")]
    assert "SECRET" not in chunks[0].fault.message
    assert broken.closed == nested.closed == 1


async def test_a_cancel_passes_through(autojump_clock):
    """I21"""
    one, two = first(reply(stall(100), "late")), second()
    with trio.move_on_after(1) as scope:
        await said(Fallback(one, two, patience_s=50.0))
    assert scope.cancelled_caught and not two.requests and one.open_streams == 0


async def test_in_a_session_a_switch_is_recorded_and_no_step_is_lost(autojump_clock, open_checked, journal):
    """M6: events say so."""
    one, two = first(fail(RateLimited("slow"))), second()
    async with open_checked(Fallback(one, two)) as runtime:
        result = await (await runtime.session("s")).ask("hello")
    assert (result.text, result.steps, result.error) == ("from the second", 1, None)
    (retried,) = [event for record in journal for event in record.events if isinstance(event, ModelRetried)]
    assert retried.fault.kind == "rate_limit" and "test:second" in retried.fault.message and retried.delay_s == 0.0


async def test_when_all_fail_the_session_tries_them_all_again(autojump_clock, open_checked):
    """M6, L11"""
    one, two = first(*[fail(ServerFault("busy"))] * 3), second(fail(ServerFault("busy")), reply("at last"))
    async with open_checked(Fallback(one, two), limits=Limits(retry=Retry())) as runtime:
        assert (await (await runtime.session("s")).ask("hello")).text == "at last"
    assert len(one.requests) == 2 and len(two.requests) == 2


async def test_a_model_that_the_deadlines_give_up_is_not_asked_again_while_another_one_is_there(
    autojump_clock, open_checked, journal
):
    """M6, L12, L13: a stall before any progress is a fault like any other."""
    one = Scripted([reply(stall(1_000), "late")], exhausted="repeat", name="test:first")
    two = Scripted([reply("from the second")], exhausted="repeat", name="test:second")
    async with open_checked(Fallback(one, two)) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("hello")).text == "from the second"
        assert (len(one.requests), len(two.requests), one.open_streams) == (1, 1, 0)
        assert (await session.ask("and now?")).text == "from the second"
    assert (len(one.requests), len(two.requests)) == (2, 2)  # Each step begins with the first one again.
    told = [e.fault.message for record in journal for e in record.events if isinstance(e, ModelRetried)]
    assert len(told) == 4 and "silent for 90.0 s" in told[0] and "going on with test:second" in told[1]


async def test_when_all_models_keep_silent_they_are_asked_in_turn(autojump_clock, open_checked):
    """M6, L13: six attempts in all, as for one model."""
    one, two = (Scripted([reply(stall(1_000))], exhausted="repeat", name=f"test:{name}") for name in ("one", "two"))
    async with open_checked(Fallback(one, two)) as runtime:
        result = await (await runtime.session("s")).ask("hello")
    assert result.error is not None and result.error.kind == "network"
    assert (len(one.requests), len(two.requests)) == (3, 3)


async def test_an_interrupted_model_is_the_first_to_be_asked_in_the_next_turn(autojump_clock, open_checked):
    """M6, L15: whoever stops a turn has nothing against its model."""
    one, two = first(reply(stall(1_000)), reply("from the first")), second()
    async with open_checked(Fallback(one, two)) as runtime:
        session = await runtime.session("s")
        with trio.move_on_after(5):
            await session.ask("hello")
        assert (await session.ask("again")).text == "from the first"
    assert not two.requests
