"""Streams (L5, L11-L14): retry, stall, reconnect, the four deadlines. In virtual time."""

from __future__ import annotations

import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
import trio
import trio.testing
from session_watch import recorded, seen, watched

from trouper import Deadlines, Limits, Retry, Usage
from trouper.actors.model_call import backoff_s
from trouper.core.events import ModelFailed, ModelReplied, ModelRetried, TurnEnded
from trouper.core.live import TextDelta
from trouper.core.messages import Text
from trouper.models import (
    AuthFailed,
    BadRequest,
    CallDelta,
    CallEnd,
    CallStart,
    Chunk,
    ContextOverflow,
    Done,
    Fallback,
    KeepAlive,
    MalformedReply,
    ModelFault,
    ModelRequest,
    NetworkFault,
    QuotaExceeded,
    RateLimited,
    Scripted,
    ServerFault,
    TextChunk,
    ThinkingChunk,
    UsageChunk,
    drop,
    fail,
    reply,
    stall,
)


class Unreachable:
    """A model whose connection never comes about."""

    name = "test:unreachable"
    context_window = None

    def __init__(self) -> None:
        self.tries = 0

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[Chunk]]:
        self.tries += 1
        await trio.sleep_forever()
        yield self._none()  # pragma: no cover

    async def _none(self) -> AsyncIterator[Chunk]:  # pragma: no cover
        return
        yield


@pytest.mark.parametrize("fault", [RateLimited, ServerFault, NetworkFault])
async def test_a_retryable_fault_at_opening_is_tried_three_more_times(autojump_clock, open_checked, journal, fault):
    """L11: 1 s doubling, jittered, three times; then the turn fails by name."""
    model = Scripted([fail(fault("no"))] * 4 + [reply("never")])
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        begun = trio.current_time()
        result = await session.ask("hello")
        took = trio.current_time() - begun
    assert (result.stop_reason, result.error.kind) == ("error", fault.kind)
    assert len(model.requests) == 4
    assert [request.attempt for request in model.requests] == [1, 2, 3, 4]
    delays = [retried.delay_s for retried in recorded(journal, ModelRetried)]
    assert all(0.75 * wanted <= delay <= wanted for delay, wanted in zip(delays, (1, 2, 4), strict=True))
    assert took == pytest.approx(sum(delays), abs=0.2)


async def test_a_retry_that_succeeds_is_no_fault(autojump_clock, open_checked, journal):
    """L11"""
    async with open_checked(Scripted([fail(ServerFault("busy")), reply("Here.")])) as runtime:
        result = await (await runtime.session("s")).ask("hello")
    assert (result.text, result.error, result.steps) == ("Here.", None, 1)
    assert [retried.fault.kind for retried in recorded(journal, ModelRetried)] == ["server"]


async def test_the_providers_advice_is_honoured(autojump_clock, open_checked, journal):
    """L11: a `Retry-After` is waited for, to the second."""
    async with open_checked(Scripted([fail(RateLimited("slow down", retry_after_s=7.5)), reply("Here.")])) as runtime:
        session = await runtime.session("s")
        begun = trio.current_time()
        await session.ask("hello")
        assert trio.current_time() - begun == pytest.approx(7.5, abs=0.2)
    assert [retried.delay_s for retried in recorded(journal, ModelRetried)] == [7.5]


async def test_advice_that_reaches_past_the_steps_deadline_is_not_waited_for(autojump_clock, open_checked):
    """L11, L12"""
    async with open_checked(Scripted([fail(RateLimited("tomorrow", retry_after_s=86_400.0))])) as runtime:
        session = await runtime.session("s")
        begun = trio.current_time()
        assert (await session.ask("hello")).error.kind == "rate_limit"
        assert trio.current_time() - begun < 1


@pytest.mark.parametrize("fault", [AuthFailed, BadRequest, QuotaExceeded, ContextOverflow, ModelFault])
async def test_a_fault_that_no_retry_can_mend_fails_at_once_by_name(autojump_clock, open_checked, journal, fault):
    """L11"""
    model = Scripted([fail(fault("no"))])
    async with open_checked(model) as runtime:
        result = await (await runtime.session("s")).ask("hello")
    assert result.error.kind == fault.kind and len(model.requests) == 1
    assert not recorded(journal, ModelRetried)


def test_back_off_doubles_up_to_its_cap_with_jitter():
    """L11: 1 s doubling, cap 16 s, jittered downwards."""
    draws = [backoff_s(Retry(), attempt, None, random.Random(attempt)) for attempt in range(1, 9)]
    for delay, wanted in zip(draws, (1, 2, 4, 8, 16, 16, 16, 16), strict=True):
        assert 0.75 * wanted <= delay <= wanted
    assert len({backoff_s(Retry(), 1, None, random.Random(seed)) for seed in range(20)}) == 20
    assert 12.0 <= backoff_s(Retry(), 100_000, None, random.Random(0)) <= 16.0


async def test_a_reply_that_its_own_provider_cannot_read_is_asked_for_once_more(autojump_clock, open_checked):
    """M9"""
    model = Scripted([fail(MalformedReply("broken call"))] * 3)
    async with open_checked(model) as runtime:
        result = await (await runtime.session("s")).ask("hello")
    assert result.error.kind == "server" and len(model.requests) == 2


class Billed:
    """Says what each attempt has cost, and gives a reply only to the last."""

    name = "test:billed"
    context_window = None

    def __init__(self, *failures: Exception, hangs: bool = False) -> None:
        self.failures = list(failures)
        self.hangs = hangs

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[Chunk]]:
        yield self._chunks()

    async def _chunks(self) -> AsyncIterator[Chunk]:
        yield UsageChunk(Usage(input=1_000, output=10))
        if self.failures:
            raise self.failures.pop(0)
        if self.hangs:
            await trio.sleep_forever()
        yield TextChunk("hello")
        yield Done("end_turn")


async def test_attempts_that_came_to_nothing_count_as_what_they_cost(autojump_clock, open_checked):
    """L24, L25, M9: a provider that says what an attempt has cost bills it, whether it is asked again or not. What was sent is the last request alone (L26)."""
    async with open_checked(Billed(MalformedReply("broken"), NetworkFault("cut off"))) as runtime:
        session = await runtime.session("s")
        result = await session.ask("hi")
        assert result.text == "hello" and result.usage == Usage(input=3_000, output=30)
        assert session.statistics().usage == Usage(input=3_000, output=30) == runtime.statistics().usage
        assert 1_000 <= session.statistics().tokens < 1_100
    async with open_checked(Billed(*[MalformedReply("broken")] * 2)) as runtime:
        result = await (await runtime.session("s")).ask("hi")
        assert result.error is not None and result.usage == Usage(input=2_000, output=20)


async def test_a_model_in_whose_place_another_one_answers_counts_too(autojump_clock, open_checked):
    """L24, M6: each of them is billed."""
    async with open_checked(Fallback(Billed(ServerFault("down")), Billed(ServerFault("down")), Billed())) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("hi")).usage == Usage(input=3_000, output=30)
        assert 1_000 <= session.statistics().tokens < 1_100


async def test_models_that_all_fail_count_as_what_they_cost(autojump_clock, open_checked):
    """L24, M6: also when nobody is left to answer."""
    down = AuthFailed("wrong key")
    async with open_checked(Fallback(Billed(down), Billed(down))) as runtime:
        session = await runtime.session("s")
        result = await session.ask("hi")
        assert result.error is not None and result.error.kind == "auth"
        assert result.usage == session.statistics().usage == Usage(input=2_000, output=20)


async def test_an_interrupt_counts_what_the_attempts_before_it_have_cost(autojump_clock, open_checked):
    """L15, L24"""
    async with open_checked(Billed(MalformedReply("broken"), hangs=True)) as runtime:
        session = await runtime.session("s")
        async with session.turn("hi") as turn:
            await trio.testing.wait_all_tasks_blocked()
        assert turn.result.stop_reason == "interrupt" and turn.result.usage == Usage(input=2_000, output=20)


@pytest.mark.parametrize(
    ("deadlines", "model", "waited", "says"),
    [
        (Deadlines(connect_s=3.0), Unreachable(), 3.0, "no connection within 3.0 s"),
        (Deadlines(first_event_s=5.0), Scripted([reply(stall(100), "x")], exhausted="repeat"), 5.0, "silent for 5.0 s"),
        (Deadlines(step_s=8.0), Scripted([reply(stall(700), "x")]), 8.0, "longer than 8.0 s"),
    ],
    ids=["connect", "first event", "step"],
)
async def test_each_deadline_makes_silence_a_network_fault(
    autojump_clock, open_checked, deadlines, model, waited, says
):
    """L12"""
    limits = Limits(deadlines=deadlines, retry=Retry(opens=0, attempts=1))
    async with open_checked(model, limits=limits) as runtime:
        session = await runtime.session("s")
        begun = trio.current_time()
        result = await session.ask("hello")
        assert trio.current_time() - begun == pytest.approx(waited, abs=0.1)
    assert result.error.kind == "network" and says in result.error.message


async def test_the_idle_deadline_runs_from_the_last_thing_said(autojump_clock, open_checked, journal):
    """L12: 90 s without a semantic event; a slow stream that speaks every 80 s is fine."""
    slow = [item for word in ("a", "b", "c", "d") for item in (*stall(80), TextChunk(word))]
    model = Scripted([reply(*slow), reply("begun ", stall(91), "never")])
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("one")).text == "abcd"
        begun = trio.current_time()
        result = await session.ask("two")
        assert trio.current_time() - begun == pytest.approx(90, abs=1.0)
    assert result.error.kind == "network" and "stalled" in result.error.message
    assert result.text == "begun "
    assert len(model.requests) == 2  # After progress a stall is terminal (L13).


@pytest.mark.parametrize(
    "noise", [KeepAlive(), UsageChunk(Usage(input=1)), TextChunk("")], ids=["keep-alive", "usage", "empty text"]
)
async def test_keep_alives_are_not_speech(autojump_clock, open_checked, noise):
    """L12"""
    chatter = [item for _ in range(20) for item in (*stall(10), noise)]
    model = Scripted([reply("begun ", *chatter, "never")])
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        begun = trio.current_time()
        result = await session.ask("hello")
        assert trio.current_time() - begun == pytest.approx(90, abs=1.0)
    assert result.error.kind == "network"


@pytest.mark.parametrize("blank", [TextChunk(""), ThinkingChunk("")], ids=["text", "thinking"])
async def test_blank_pieces_are_not_speech(autojump_clock, open_checked, blank):
    """L12: some servers send them to keep the connection open."""
    script = [blank, stall(20)] * 20
    limits = Limits(deadlines=Deadlines(first_event_s=30), retry=Retry(attempts=1))
    async with open_checked(Scripted([reply(*script, "Late.")]), limits=limits) as runtime:
        result = await (await runtime.session("s")).ask("hello")
    assert result.error.kind == "network" and trio.current_time() == pytest.approx(30, abs=0.1)


@pytest.mark.parametrize("wrapped", [False, True], ids=["by itself", "with another to fall back to"])
@pytest.mark.parametrize("chunk", [KeepAlive(), TextChunk(""), UsageChunk(Usage(1, 1)), CallEnd(7), TextChunk("x")])
async def test_a_client_that_never_waits_keeps_nobody_waiting(autojump_clock, open_checked, chunk, wrapped):
    """L12, I23: whatever it sends; else neither its own deadlines nor anybody's interrupt would be heard of."""
    begun, heard = trio.Event(), trio.Event()

    class Client:
        @asynccontextmanager
        async def stream(self, request):
            yield self._chunks()

        async def _chunks(self):
            begun.set()
            for _ in range(10_000):
                if heard.is_set():
                    yield TextChunk("At last.")
                    break
                yield chunk
            yield Done("end_turn")

    model = Fallback(Client(), Scripted([])) if wrapped else Client()
    async with open_checked(model) as runtime, trio.open_nursery() as nursery:
        session = await runtime.session("s")

        async def other() -> None:
            await begun.wait()
            heard.set()

        nursery.start_soon(other)
        assert (await session.ask("hello")).text.endswith("At last.")


async def test_the_step_deadline_holds_however_lively_the_stream_is(autojump_clock, open_checked):
    """L12"""
    endless = [item for _ in range(100) for item in (*stall(1), TextChunk("x"))]
    async with open_checked(Scripted([reply(*endless)]), limits=Limits(deadlines=Deadlines(step_s=30.5))) as runtime:
        result = await (await runtime.session("s")).ask("hello")
    assert result.error.kind == "network" and result.text == "x" * 30


async def test_a_stall_before_any_output_reconnects(autojump_clock, open_checked, journal):
    """L13 (seed 004: reconnects after a stall before any output)."""
    model = Scripted([reply(stall(1000), "never"), reply("Here.")])
    async with open_checked(model) as runtime:
        result = await (await runtime.session("s")).ask("hello")
    assert (result.text, result.error) == ("Here.", None)
    assert len(recorded(journal, ModelRetried)) == 1
    assert len(recorded(journal, ModelReplied)) == 1


async def test_reconnecting_ends_after_six_attempts_in_all(autojump_clock, open_checked, journal):
    """L13 (seed 004: the error surfaces when the reconnect budget is exhausted)."""
    model = Scripted([reply(drop())], exhausted="repeat")
    async with open_checked(model) as runtime:
        result = await (await runtime.session("s")).ask("hello")
    assert result.error.kind == "network" and len(model.requests) == 6
    assert len(recorded(journal, ModelRetried)) == 5


async def test_refusals_and_drops_share_the_six_attempts(autojump_clock, open_checked):
    """L11, L13"""
    model = Scripted([fail(ServerFault("busy")), reply(drop())] * 6)
    async with open_checked(model) as runtime:
        assert (await (await runtime.session("s")).ask("hello")).error is not None
    assert len(model.requests) == 6


@pytest.mark.parametrize(
    "progress",
    [(TextChunk("Begun"),), (ThinkingChunk("hm"),), (CallStart(0, "look"), CallDelta(0, '{"n'))],
    ids=["text", "thinking", "start of a call"],
)
async def test_after_progress_a_drop_is_terminal(autojump_clock, open_checked, journal, progress):
    """L5, L13 (seed 004: no reconnect after a stall with partial output)."""
    model = Scripted([reply(*progress, drop()), reply("again")])
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        result = await session.ask("hello")
        assert result.error.kind == "network" and len(model.requests) == 1
        history = session.history
    kept = progress[0].text if isinstance(progress[0], TextChunk) else ""
    assert result.text == kept
    if kept:  # The partial text stays, marked as cut short.
        assert history[-1].kind == "cut_short" and history[-1].parts == (Text("Begun"),)
    else:  # Half-built calls and unsealed thoughts never do.
        assert history[-1].role == "user"


@pytest.mark.parametrize("blank", [(TextChunk("  \n"),), (ThinkingChunk("", signature="s"),), (KeepAlive(),)])
async def test_what_says_nothing_is_no_progress(autojump_clock, open_checked, blank):
    """L5: leading whitespace alone does not count."""
    model = Scripted([reply(*blank, drop()), reply("Here.")])
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("hello")).text == "Here."
        assert session.history[-1].text == "Here."


async def test_output_that_a_user_has_seen_is_never_sent_twice(autojump_clock, open_checked):
    """L13"""
    model = Scripted([reply(" ", drop()), reply("Once ", "only.")])
    async with open_checked(model) as runtime:
        events, turn = await watched(await runtime.session("s"), "hello")
    told = "".join(event.text for event in events if isinstance(event, TextDelta)).strip()
    assert told == "Once only." == turn.result.text


async def test_half_built_calls_never_enter_the_history(autojump_clock, open_checked, journal):
    """L13"""
    model = Scripted(
        [
            reply("Let me. ", CallStart(0, "look"), CallDelta(0, "{}"), CallEnd(0), CallStart(1, "look"), drop()),
            reply("Sorry."),
        ]
    )
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        result = await session.ask("hello")
        assert result.text == "Let me. "
        assert session.history[-1].calls == () and session.history[-1].kind == "cut_short"
        assert (await session.ask("go on")).text == "Sorry."
    assert recorded(journal, ModelFailed)[0].partial.text == "Let me. "


async def test_a_stream_without_its_end_marker_is_a_network_fault(autojump_clock, open_checked):
    """L14"""
    model = Scripted([reply("All there, or is it?", end=False)])
    async with open_checked(model) as runtime:
        result = await (await runtime.session("s")).ask("hello")
    assert (result.stop_reason, result.error.kind) == ("error", "network")
    assert "end marker" in result.error.message


async def test_an_empty_stream_is_tried_again(autojump_clock, open_checked):
    """L13, L14"""
    model = Scripted([(), reply("Here.")])
    async with open_checked(model) as runtime:
        assert (await (await runtime.session("s")).ask("hello")).text == "Here."


async def test_what_follows_the_end_marker_is_not_read(autojump_clock, open_checked):
    """L14"""
    model = Scripted([(TextChunk("All."), Done("end_turn"), TextChunk(" More."))])
    async with open_checked(model) as runtime:
        assert (await (await runtime.session("s")).ask("hello")).text == "All."


async def test_a_client_that_raises_something_of_its_own_ends_the_turn_and_not_the_session(
    autojump_clock, open_checked, caplog
):
    """L1: a model client is foreign code. Its words may hold a key, so they go to the log alone."""

    def broken(request):
        raise RuntimeError("key=SECRET")

    async with open_checked(Scripted([broken, reply("Here.")])) as runtime:
        session = await runtime.session("s")
        result = await session.ask("hello")
        assert (result.stop_reason, result.error.kind) == ("error", "other")
        assert "RuntimeError" in result.error.message and "SECRET" not in result.error.message
        assert (await session.ask("again")).text == "Here."


@pytest.mark.parametrize("where", ["opening", "streaming", "after progress"])
@pytest.mark.parametrize(
    "raised",
    [
        *(ConnectionResetError("key=SECRET"), TimeoutError(), socket.gaierror("no such host"), httpx.ReadTimeout("x")),
        *(trio.BrokenResourceError(), trio.TooSlowError(), ExceptionGroup("one", [ConnectionRefusedError()])),
    ],
    ids=lambda raised: type(raised).__name__,
)
async def test_a_connection_that_fails_in_a_clients_own_hands_is_a_network_fault(
    autojump_clock, open_checked, raised, where
):
    """L11, L13: whoever writes a client on sockets or httpx need not name their errors anew."""

    class Client:
        asked = 0

        @asynccontextmanager
        async def stream(self, request):
            self.asked += 1
            if self.asked == 1 and where == "opening":
                raise raised
            yield self._chunks()

        async def _chunks(self):
            if self.asked == 1:
                if where == "after progress":
                    yield TextChunk("Begun ")
                raise raised
            yield TextChunk("Here.")
            yield Done("end_turn")

    async with open_checked(Client()) as runtime:
        result = await (await runtime.session("s")).ask("hello")
    if where == "after progress":
        assert (result.text, result.error.kind) == ("Begun ", "network") and "SECRET" not in result.error.message
    else:
        assert (result.text, result.error) == ("Here.", None)


async def test_a_file_that_a_client_misses_is_no_network_fault(autojump_clock, open_checked):
    """L11: another try would not find it either."""

    def broken(request):
        raise FileNotFoundError("key.json")

    async with open_checked(Scripted([broken, reply("never")])) as runtime:
        assert (await (await runtime.session("s")).ask("hello")).error.kind == "other"


async def test_usage_of_a_call_that_failed_is_counted(autojump_clock, open_checked):
    """L24: what was spent was spent."""
    model = Scripted([reply("Begun", UsageChunk(Usage(input=9, output=2)), drop())])
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("hello")).usage == Usage(input=9, output=2)
        assert runtime.statistics().usage == Usage(input=9, output=2)


async def test_what_was_seen_of_a_slow_reply_is_in_the_journal_before_its_end(autojump_clock, open_checked, journal):
    """J1: a crash loses at most what was said in the last moments."""
    async with open_checked(Scripted([reply(*["word "] * 10)], delay_s=0.3)) as runtime:
        session = await runtime.session("s")
        async with session.turn("hello") as turn:
            for _ in range(6):
                await seen(turn, TextDelta)
            await trio.sleep(0.01)
            assert session._state.turn.draft_text.startswith("word word word ")
            await turn.wait_ended()
    assert recorded(journal, TurnEnded)[0].stop_reason == "end_turn"


class WithNursery(Scripted):
    """A client that keeps a task beside its stream: what it raises comes in a group."""

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[Chunk]]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            async with super().stream(request) as chunks:
                yield chunks
            nursery.cancel_scope.cancel()


async def test_a_fault_within_a_group_is_still_that_fault(autojump_clock, open_checked):
    """L11: nurseries of a client are its own business."""
    model = WithNursery([fail(RateLimited("slow")), reply(drop()), reply("Here."), fail(AuthFailed("no"))])
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("hello")).text == "Here."
        assert (await session.ask("hello")).error.kind == "auth"
