"""What a model's client or a tool raises ends its own call: never the session, and never the runtime (L20, L21, I23)."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from session_watch import recorded, seen

from trouper import tool
from trouper.actors.foreign import from_outside
from trouper.core.events import CallEnded, TurnEnded
from trouper.core.live import TextDelta
from trouper.core.messages import Outcome
from trouper.models import Chunk, Done, ModelRequest, Scripted, TextChunk, call, reply


class Client:
    """A model whose first stream does something odd, and whose others are fine."""

    name = "odd:client"
    context_window = None

    def __init__(self, first: Callable[[], AsyncIterator[Chunk]]) -> None:
        self.requests: list[ModelRequest] = []
        self._first = first

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[Chunk]]:
        self.requests.append(request)
        yield self._first() if len(self.requests) == 1 else _fine()


async def _fine() -> AsyncIterator[Chunk]:
    yield TextChunk("Fine.")
    yield Done("end_turn")


class WithReader(Scripted):
    """A client with two tasks beside its stream, one of which fails while it is cancelled."""

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[Chunk]]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_closes_badly)
            nursery.start_soon(trio.sleep_forever)
            async with super().stream(request) as chunks:
                yield chunks
            nursery.cancel_scope.cancel()


async def _closes_badly() -> None:
    try:
        await trio.sleep_forever()
    finally:
        raise OSError("the socket was closed")


def crashes(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "trouper.actors"]


@pytest.mark.parametrize(
    "raised",
    [SystemExit(3), BaseExceptionGroup("", [SystemExit(3), OSError()]), ExceptionGroup("", [OSError(), ValueError()])],
    ids=["exit", "exit in a group", "group"],
)
@pytest.mark.parametrize("progress", [True, False])
async def test_a_client_that_gives_up_ends_its_own_call(autojump_clock, open_checked, caplog, raised, progress):
    """L1, I23"""

    async def broken() -> AsyncIterator[Chunk]:
        if progress:
            yield TextChunk("Half a")
        raise raised

    async with open_checked(Client(broken)) as runtime:
        neighbour = await runtime.session("neighbour")
        session = await runtime.session("s")
        result = await session.ask("hello")
        assert (result.stop_reason, result.error.kind) == ("error", "other")
        assert (await session.ask("again")).text == "Fine."
        assert (await neighbour.ask("hello")).text == "Fine."
    assert not crashes(caplog)


async def test_a_cancel_that_nobody_asked_for_is_the_clients_own(autojump_clock, open_checked, caplog):
    """L1: kept by the client beyond its scope, it would look like the end of the session."""

    async def broken() -> AsyncIterator[Chunk]:
        kept: trio.Cancelled | None = None
        with trio.CancelScope() as scope:
            scope.cancel()
            try:
                await trio.sleep(1)
            except trio.Cancelled as cancelled:
                kept = cancelled
                raise
        assert kept is not None
        raise kept
        yield

    async with open_checked(Client(broken)) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("hello")).error.kind == "other"
        assert (await session.ask("again")).text == "Fine."
    assert not crashes(caplog)


@pytest.mark.parametrize("how", ["interrupt", "deadline", "leave"])
async def test_a_client_that_fails_while_it_is_cancelled_crashes_nothing(
    autojump_clock, open_checked, journal, caplog, how
):
    """L12, L15: what comes in a group with the cancel is logged, and changes nothing."""
    model = WithReader([(TextChunk("Half a"), Done("end_turn")), reply("Fine.")], delay_s=1000.0, first_delay_s=0.0)
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        async with session.turn("hello") as turn:
            await seen(turn, TextDelta)
            if how == "interrupt":
                await session.interrupt()
            elif how == "deadline":
                await turn.wait_ended()
        model._delay_s = 0.0
        # Its clean-up fails here too, after the reply was complete.
        assert (await session.ask("again")).text == "Fine."
    first = recorded(journal, TurnEnded)[0]
    if how == "deadline":
        assert first.fault is not None and first.fault.kind == "network"
    else:
        assert first.stop_reason == "interrupt" and first.partial is not None and first.partial.text == "Half a"
    assert not crashes(caplog)


async def test_closing_a_session_whose_client_fails_meanwhile(autojump_clock, open_checked, caplog):
    """I16, I21"""
    async with open_checked(WithReader([(TextChunk("Half a"), Done("end_turn"))], delay_s=1000.0)) as runtime:
        session = await runtime.session("s")
        async with session.turn("hello") as turn:
            await trio.sleep(10)
            await session.close()
            assert (await turn.wait_ended()).stop_reason == "interrupt"
    assert not crashes(caplog)


def _ends(how: str) -> Callable[[], AsyncIterator[Chunk]]:
    async def stream() -> AsyncIterator[Chunk]:
        try:
            yield TextChunk("All of it.")
            yield Done("end_turn")
        finally:
            match how:
                case "raises":
                    raise OSError("closing failed")
                case "hangs":
                    await trio.sleep_forever()
                case "goes on":
                    yield TextChunk("and more")

    return stream


@pytest.mark.parametrize("how", ["raises", "hangs", "goes on"])
async def test_a_reply_that_is_complete_stays_so_however_its_stream_closes(
    autojump_clock, open_checked, journal, caplog, how
):
    """L14: the end marker has come, and with it everything that there was to say."""
    async with open_checked(Client(_ends(how))) as runtime:
        session = await runtime.session("s")
        result = await session.ask("hello")
        assert (result.text, result.stop_reason, result.error) == ("All of it.", "end_turn", None)
        assert [message.kind for message in session.history] == ["normal", "normal"]
        assert (await session.ask("again")).text == "Fine."
    assert not crashes(caplog)


@pytest.mark.parametrize("how", ["interrupt", "time-out", "exit"])
async def test_a_tool_that_fails_while_it_is_cancelled_crashes_nothing(
    autojump_clock, open_checked, journal, caplog, how
):
    """L20, L21, I1"""

    @tool(timeout_s=5)
    async def busy() -> str:
        """Keeps two tasks."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_closes_badly)
            nursery.start_soon(trio.sleep_forever)
            if how == "exit":
                await trio.sleep(1)
                raise SystemExit(2)
        return "never"

    model = Scripted([reply(call("busy")), reply("Fine.")], exhausted="repeat")
    async with open_checked(model, tools=[busy]) as runtime:
        session = await runtime.session("s")
        async with session.turn("go") as turn:
            if how == "interrupt":
                await trio.sleep(1)
                await session.interrupt()
            await turn.wait_ended()
        assert (await session.ask("again")).text == "Fine."
    (ended,) = recorded(journal, CallEnded)
    assert ended.outcome is {"interrupt": Outcome.CANCELLED, "time-out": Outcome.TIMEOUT, "exit": Outcome.ERROR}[how]
    assert not crashes(caplog)


async def test_what_comes_from_outside_goes_on_up_and_the_rest_does_not(autojump_clock):
    assert from_outside(ValueError()) is None and from_outside(SystemExit()) is None
    assert from_outside(ExceptionGroup("", [ValueError(), ExceptionGroup("", [OSError()])])) is None
    stop = KeyboardInterrupt()
    assert from_outside(stop) is stop
    mixed = from_outside(BaseExceptionGroup("", [ValueError(), BaseExceptionGroup("", [stop, OSError()])]))
    assert isinstance(mixed, BaseExceptionGroup)
    inner = mixed.exceptions[0]
    assert isinstance(inner, BaseExceptionGroup) and inner.exceptions == (stop,) and len(mixed.exceptions) == 1
    with trio.CancelScope(deadline=math.inf) as scope:
        scope.cancel()
        try:
            await trio.sleep(1)
        except trio.Cancelled as cancelled:
            assert from_outside(cancelled) is cancelled
            raise


@pytest.mark.parametrize("time_out_s", [1.0, math.inf])
async def test_a_scope_that_a_tool_leaves_open_hits_nobody_else(
    autojump_clock, open_checked, journal, caplog, time_out_s
):
    """I23: a time-out in an async generator that was not read to its end stays in the task, and the work that follows is done by the same."""
    unread: list[AsyncIterator[int]] = []

    async def ticks() -> AsyncIterator[int]:
        with trio.move_on_after(time_out_s):
            while True:
                yield 1

    @tool
    async def first() -> int:
        unread.append(ticks())
        return await anext(unread[0])

    @tool
    async def slow() -> int:
        await trio.sleep(5)
        return 2

    script = [reply(call("first")), reply(call("slow")), reply("Done."), reply("Still here.")]
    async with open_checked(Scripted(script), tools=[first, slow]) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("go")).text == "Done."
        assert (await session.ask("and now?")).text == "Still here."
    assert [(end.outcome, end.content) for end in recorded(journal, CallEnded)] == [(Outcome.OK, 1), (Outcome.OK, 2)]
    assert "left a cancel scope open" in caplog.text
    await unread[0].aclose()
