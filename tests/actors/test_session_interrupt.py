"""Interrupts (L15, L21): wherever a turn is, it ends as `interrupt`, its calls have outcomes, and the session goes on."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
import trio
from clinging import SlowToClose, Unending
from session_watch import names, recorded, seen

from trouper import Budget, Compaction, Limits, Session, ToolContext, Usage, tool
from trouper.core.commands import Interrupt
from trouper.core.events import CallEnded, CallStarted, CallWasLate, ModelRetried, TurnEnded
from trouper.core.live import TextDelta
from trouper.core.messages import Outcome
from trouper.models import Done, Scripted, ServerFault, UsageChunk, call, fail, reply, stall
from trouper.testing.schedule import run_simulated


@tool(readonly=True)
async def look(n: int = 0) -> dict[str, int]:
    """Look at something."""
    return {"n": n}


class SlowToConnect(Scripted):
    """Connecting takes a minute, then the script is played."""

    def stream(self, request):
        return _Slow(super().stream(request))


class _Slow:
    def __init__(self, inner):
        self._inner = inner

    async def __aenter__(self):
        await trio.sleep(9)
        return await self._inner.__aenter__()

    async def __aexit__(self, *error):
        return await self._inner.__aexit__(*error)


@pytest.mark.parametrize(
    "model",
    [
        SlowToConnect([reply("never")]),
        Scripted([fail(ServerFault("busy", retry_after_s=60.0)), reply("never")]),
        Scripted([reply(stall(60), "never")]),
        Scripted([reply("Begun ", stall(60), "never")]),
    ],
    ids=["connect", "back-off", "first event", "stream"],
)
async def test_an_interrupt_while_the_model_is_asked(autojump_clock, open_checked, journal, model):
    """L15 (seed 004: cancellation interrupts an in-flight stream)."""
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        async with session.turn("hello") as turn:
            await trio.sleep(2)
            begun = trio.current_time()
            await session.interrupt("enough")
            assert trio.current_time() - begun < 0.05
            result = await turn.wait_ended()
        assert (result.stop_reason, result.error, result.detail) == ("interrupt", None, "enough")
        assert model.open_streams == 0
        second = Scripted([reply("Here.")])
        assert (await session.ask("again", model=second)).text == "Here."
    assert [ended.stop_reason for ended in recorded(journal, TurnEnded)] == ["interrupt", "end_turn"]
    if isinstance(recorded(journal, TurnEnded)[0].partial, type(None)):
        return
    assert recorded(journal, TurnEnded)[0].partial.text == "Begun "


async def test_the_text_seen_stays_in_the_history_marked_as_cut_short(autojump_clock, open_checked):
    """L13, L15"""
    model = Scripted([reply("Once upon ", "a time ", stall(60), "never"), reply("Go on.")])
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        async with session.turn("a story") as turn:
            await seen(turn, TextDelta)
            await seen(turn, TextDelta)
            await session.interrupt()
            assert (await turn.wait_ended()).text == "Once upon a time "
        await session.ask("and?")
    kept = model.requests[1].messages[1]
    assert (kept.kind, kept.text) == ("cut_short", "Once upon a time ")


async def test_an_interrupt_during_tools_gives_every_call_its_outcome(autojump_clock, open_checked, journal):
    """L21 (seed 004: cancels in-flight tool calls; leaves a clean history)."""
    stopped: list[float] = []

    @tool
    async def wait(seconds: float) -> float:
        """Waits."""
        try:
            await trio.sleep(seconds)
        except trio.Cancelled:
            stopped.append(seconds)
            raise
        return seconds

    model = Scripted(
        [reply("On it. ", call("look"), call("wait", seconds=50), call("wait", seconds=60)), reply("Sorry.")]
    )
    async with open_checked(model, tools=[wait, look]) as runtime:
        session = await runtime.session("s")
        async with session.turn("go") as turn:
            await trio.sleep(5)
            begun = trio.current_time()
            await session.interrupt()
            assert trio.current_time() - begun < 0.05
            assert sorted(stopped) == [50, 60]  # The tools have seen it by the time interrupt() returns.
            assert (await turn.wait_ended()).stop_reason == "interrupt"
        assert (await session.ask("and?")).text == "Sorry."
    answers = model.requests[1].messages[2].answers
    assert [given.outcome for given in answers] == [Outcome.OK, Outcome.CANCELLED, Outcome.CANCELLED]
    assert [message.role for message in model.requests[1].messages] == ["user", "assistant", "tool", "user"]
    assert not recorded(journal, CallWasLate)


async def test_calls_that_had_not_started_are_cancelled_too(autojump_clock, open_checked, journal):
    """L21, I8: and never start."""
    ran: list[int] = []

    @tool(concurrency_class="one")
    async def work(n: int) -> int:
        """Works for long."""
        ran.append(n)
        await trio.sleep(100)
        return n

    model = Scripted([reply(*(call("work", n=n) for n in range(4)))])
    async with open_checked(model, tools=[work]) as runtime:
        session = await runtime.session("s")
        async with session.turn("go"):
            await trio.sleep(5)
            await session.interrupt()
        await trio.sleep(500)
    assert ran == [0]
    assert len(recorded(journal, CallStarted)) == 1
    assert [ended.outcome for ended in recorded(journal, CallEnded)] == [Outcome.CANCELLED] * 4


async def test_a_shielded_clean_up_is_waited_for_within_the_grace(autojump_clock, open_checked):
    """L21: a shielded clean-up has a bounded grace."""
    tidied: list[float] = []

    @tool
    async def careful(seconds: float) -> str:
        """Tidies up."""
        try:
            await trio.sleep(1000)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(seconds)
                tidied.append(trio.current_time())
        raise AssertionError

    model = Scripted([reply(call("careful", seconds=2)), reply(call("careful", seconds=60)), reply("Here.")])
    async with open_checked(model, tools=[careful], limits=Limits(grace_s=5.0)) as runtime:
        session = await runtime.session("s")
        async with session.turn("one"):
            await trio.sleep(1)
            begun = trio.current_time()
            await session.interrupt()
            assert trio.current_time() - begun == pytest.approx(2, abs=0.1) and len(tidied) == 1
        async with session.turn("two"):
            await trio.sleep(1)
            begun = trio.current_time()
            await session.interrupt()
            assert trio.current_time() - begun == pytest.approx(5, abs=0.1) and len(tidied) == 1
        # I24: the session serves again although the tool is not done with it.
        assert (await session.ask("three")).text == "Here."


async def test_a_result_that_comes_after_the_interrupt_is_late_and_changes_nothing(
    autojump_clock, open_checked, journal
):
    """I9"""

    @tool
    async def stubborn() -> str:
        """Finishes its work, whoever says what."""
        with trio.CancelScope(shield=True):
            await trio.sleep(10)
        return "too late"

    model = Scripted([reply(call("stubborn")), reply("Here.")])
    async with open_checked(model, tools=[stubborn], limits=Limits(grace_s=1.0)) as runtime:
        session = await runtime.session("s")
        async with session.turn("go"):
            await trio.sleep(1)
            await session.interrupt()
        before = session.history
        await trio.sleep(20)
        assert session.history == before
        await session.ask("and?")
    assert model.requests[1].messages[2].answers[0].outcome is Outcome.CANCELLED
    assert len(recorded(journal, CallEnded)) == 1
    assert len(recorded(journal, CallWasLate)) <= 1


async def test_an_interrupt_during_compaction(autojump_clock, open_checked, journal):
    """L15"""
    model = Scripted(
        [*[reply("word " * 40)] * 3, reply(stall(60), "A summary."), reply("Again a summary."), reply("Here.")]
    )
    limits = Limits(compaction=Compaction(threshold=140, keep_pairs=1, min_messages=4))
    async with open_checked(model, limits=limits) as runtime:
        session = await runtime.session("s")
        for _ in range(3):
            await session.ask("more")
        async with session.turn("more") as turn:
            await trio.sleep(1)
            assert session._state.compacting is not None
            await session.interrupt()
            result = await turn.wait_ended()
        assert (result.stop_reason, result.error) == ("interrupt", None)
        assert (await session.ask("and now?")).text == "Here."
    assert names(journal).count("CompactionStarted") == 2 and names(journal).count("CompactionEnded") == 1


async def test_an_interrupt_between_turns_does_nothing(autojump_clock, open_checked, journal):
    """L15"""
    async with open_checked(Scripted([reply("Hi.")])) as runtime:
        session = await runtime.session("s")
        await session.interrupt()
        await session.ask("hello")
        await session.interrupt()
    assert [ended.stop_reason for ended in recorded(journal, TurnEnded)] == ["end_turn"]


async def test_two_interrupts_end_a_turn_once(autojump_clock, open_checked, journal):
    """L1, L15"""
    async with open_checked(Scripted([reply(stall(60), "x")])) as runtime:
        session = await runtime.session("s")
        async with session.turn("hello"):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.interrupt, "a")
                nursery.start_soon(session.interrupt, "b")
    assert len(recorded(journal, TurnEnded)) == 1


async def test_closing_the_runtime_interrupts_what_runs(autojump_clock, open_checked, journal):
    """I3, I20: an orderly end leaves nothing open."""

    @tool
    async def wait() -> str:
        """Waits."""
        await trio.sleep(100)
        return "x"

    async with open_checked(Scripted([reply("Go. ", call("wait"))]), tools=[wait]) as runtime:
        session = await runtime.session("s")
        await session.send("hello")
        await trio.sleep(1)
        assert session._state.turn is not None
    (ended,) = recorded(journal, TurnEnded)
    assert ended.stop_reason == "interrupt" and "shutting down" in ended.detail
    assert recorded(journal, CallEnded)[0].outcome is Outcome.CANCELLED


@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.5, 7.0])
async def test_whenever_the_interrupt_comes_the_next_request_is_valid(autojump_clock, open_checked, journal, seconds):
    """I6: at every stage of a turn with a retry, thinking, text, tools that wait for each other and a second step."""

    @tool(concurrency_class="one")
    async def slow(context: ToolContext, n: int = 0) -> int:
        """Takes a second."""
        await trio.sleep(1)
        return n

    model = Scripted(
        [
            fail(ServerFault("busy", retry_after_s=1.0)),
            reply(stall(0.7), "Let me. ", stall(0.7), call("slow", n=1), call("slow", n=2)),
            reply("Done. ", stall(1), "Really."),
            reply("Here."),
        ],
        exhausted="repeat",
    )
    async with open_checked(model, tools=[slow]) as runtime:
        session = await runtime.session("s")
        async with session.turn("go") as turn:
            await trio.sleep(seconds)
            await session.interrupt()
            result = await turn.wait_ended()
        assert result.stop_reason in ("interrupt", "end_turn") and result.error is None
        assert (await session.ask("again", model=Scripted([reply("Fine.")]))).text == "Fine."
    retried = recorded(journal, ModelRetried)
    assert len(retried) <= 1


def test_each_turn_knows_its_own_number_in_whatever_batch_it_began():
    """L1: a turn, an interrupt and the next turn that are decided together are still three things."""

    async def main() -> list[tuple[int, str, str]]:
        from trouper import open_runtime

        model = Scripted([reply(stall(5), "one"), reply("two")])
        ends: list[tuple[int, str, str]] = []

        async def ask(text: str) -> None:
            async with session.turn(text) as turn:
                result = await turn.wait_ended()
                ends.append((turn.number, result.stop_reason, result.text))

        async with open_runtime("/state", model=model, durability="memory") as runtime:
            session = await runtime.session("s")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, "1")
                nursery.start_soon(session.interrupt)
                nursery.start_soon(ask, "2")
        return ends

    ends = run_simulated(main, choices=[])
    assert sorted(ends) == [(1, "interrupt", ""), (2, "end_turn", ends[-1][2])]


async def test_a_call_that_is_slow_to_close_does_not_take_the_next_ones_words(autojump_clock, open_checked):
    """L13, L15: the text of the second turn is kept, though the first one's stream closes in the middle of it."""
    model = SlowToClose([reply("Old ", stall(60), "x"), reply("New ", "words ", stall(60), "x")])
    async with open_checked(model, limits=Limits(grace_s=0.5)) as runtime:
        session = await runtime.session("s")
        async with session.turn("one"):
            await trio.sleep(1)
            await session.interrupt()
        async with session.turn("two") as turn:
            await trio.sleep(10)
            await session.interrupt()
            assert (await turn.wait_ended()).text == "New words "


async def test_a_client_that_shields_itself_for_ever_is_named_and_everything_else_is_in_time(
    autojump_clock, open_checked, journal, caplog
):
    """I24, L21: what is recorded is, and the session serves on, within the grace; only the block itself cannot end before what runs in it."""
    model = Unending([reply("Old ", stall(60), "x")])
    async with trio.open_nursery() as nursery:
        async with open_checked(model, limits=Limits(grace_s=0.5)) as runtime:
            session = await runtime.session("stuck")
            async with session.turn("one") as turn:
                await trio.sleep(1)
                begun = trio.current_time()
                await session.interrupt()
                assert (await turn.wait_ended()).stop_reason == "interrupt"
            assert trio.current_time() - begun == pytest.approx(0.5, abs=0.1)

            @nursery.start_soon
            async def let_go() -> None:
                await trio.sleep(20)
                (told,) = (each.getMessage() for each in caplog.records if each.name == "trouper.runtime")
                assert told.startswith("the runtime waits for 'stuck': a tool or a model's client shields itself")
                model.let_go.set()

    assert [ended.stop_reason for ended in recorded(journal, TurnEnded)] == ["interrupt"]


@pytest.mark.parametrize("how", ["interrupt", "time is up", "close"])
async def test_what_a_reply_that_was_cut_short_has_cost_is_counted(autojump_clock, open_checked, how):
    """L24, L25: what was spent was spent."""
    model = Scripted([reply(UsageChunk(Usage(input=900)), "Half a", stall(60), "never")])
    async with open_checked(model, budget=Budget(wall_s=20.0)) as runtime:
        session = await runtime.session("s")
        async with session.turn("go") as turn:
            await seen(turn, TextDelta)
            if how == "interrupt":
                await session.interrupt()
            elif how == "close":
                await session.close()
            result = await turn.wait_ended()
        assert result.usage == session.statistics().usage == runtime.statistics().usage == Usage(input=900)


class InterruptedAtItsEnd(Scripted):
    """Somebody interrupts at the very moment at which the reply is complete: the one or the other is decided first."""

    session: Session
    nursery: trio.Nursery
    #: Steps of the scheduler between the two; `None`: the interrupt waits in the mailbox when the reply is there, whatever the order of tasks.
    pauses: int | None = 0

    @asynccontextmanager
    async def stream(self, request):
        async with super().stream(request) as chunks:
            yield self._interrupted(chunks)

    async def _interrupted(self, chunks):
        async for chunk in chunks:
            if isinstance(chunk, Done) and self.pauses is None:
                self.session._ref.tell(Interrupt(self.session._now()))
            elif isinstance(chunk, Done):
                self.nursery.start_soon(self.session.interrupt)
                for _ in range(self.pauses):
                    await trio.lowlevel.checkpoint()
            yield chunk


@pytest.mark.parametrize("steered", [False, True])
@pytest.mark.parametrize("pauses", [None, *range(4)])
async def test_what_was_seen_of_a_reply_is_kept_once_although_the_interrupt_overtakes_it(
    autojump_clock, open_checked, pauses, steered
):
    """L13, L15"""
    model = InterruptedAtItsEnd([reply("The whole answer."), reply(stall(60), "never")])
    model.pauses = pauses
    async with open_checked(model, complete=not steered) as runtime:
        model.session = session = await runtime.session("s")
        async with trio.open_nursery() as model.nursery, session.turn("go") as turn:
            if steered:
                await session.send("and this")
            result = await turn.wait_ended()
    assert result.stop_reason in ("interrupt", "end_turn") and result.text == "The whole answer."
    assert [message.text for message in session.history if message.role == "assistant"] == ["The whole answer."]
