"""Steering (L10): input that arrives during a turn is queued, taken in before the next model call, and never lost (I26)."""

from __future__ import annotations

import pytest
import trio
from session_watch import names, recorded, wait_idle

from trouper import CommandRejected, Compaction, Hooks, Limits, tool
from trouper.core.events import InputReceived, InputsTaken, LoopWarned, StepStarted, TurnEnded, TurnStarted
from trouper.models import AuthFailed, ContextOverflow, Scripted, call, fail, reply, stall
from trouper.tools.hooks import BeforeTurn, Deny


@tool(readonly=True)
async def slow(n: int = 0) -> int:
    """Takes two seconds."""
    await trio.sleep(2)
    return n


async def test_input_during_tools_is_taken_in_before_the_next_model_call(autojump_clock, open_checked, journal):
    """L10"""
    model = Scripted([reply(call("slow")), reply("Both done.")])
    async with open_checked(model, tools=[slow]) as runtime:
        session = await runtime.session("s")
        async with session.turn("one") as turn:
            await trio.sleep(1)
            await session.send("and two")
            assert (await turn.wait_ended()).text == "Both done."
    assert [message.text for message in model.requests[1].messages if message.role == "user"] == ["one", "and two"]
    # After the results, so that the calls stay answered right behind their message (I5).
    assert [message.role for message in model.requests[1].messages] == ["user", "assistant", "tool", "user"]
    assert len(recorded(journal, TurnStarted)) == 1 and len(recorded(journal, InputsTaken)) == 1


async def test_a_turn_about_to_end_takes_one_more_step_instead(autojump_clock, open_checked, journal):
    """L10"""
    model = Scripted([reply("First ", stall(5), "answer."), reply("Second answer.")])
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        async with session.turn("one") as turn:
            await trio.sleep(1)
            await session.send("two")
            await session.send("three")
            result = await turn.wait_ended()
    assert (result.text, result.steps) == ("Second answer.", 2)
    assert [message.text for message in model.requests[1].messages] == ["one", "First answer.", "two", "three"]
    assert len(recorded(journal, TurnEnded)) == 1


async def test_input_between_turns_starts_one(autojump_clock, open_checked, journal):
    """L10, api.md"""
    async with open_checked(Scripted([reply("Hi.")])) as runtime:
        session = await runtime.session("s")
        await session.send("hello")
        await wait_idle(session)
        assert session.last.text == "Hi."


async def test_input_that_comes_with_the_last_step_allowed_gets_a_turn_of_its_own(
    autojump_clock, open_checked, journal
):
    """L2, L10, I26: accepted is accepted, though the turn has no step left for it."""
    model = Scripted([reply(stall(5), "One."), reply("Two.")])
    async with open_checked(model, limits=Limits(max_steps=1)) as runtime:
        session = await runtime.session("s")
        async with session.turn("one") as turn:
            await trio.sleep(1)
            await session.send("two")
            assert (await turn.wait_ended()).text == "One."
        await wait_idle(session)
        assert session.last.text == "Two."
    assert [started.turn for started in recorded(journal, TurnStarted)] == [1, 2]


async def test_input_during_the_tools_of_the_last_step_gets_a_turn_of_its_own(autojump_clock, open_checked, journal):
    """L2, L10, I26: no model call follows in this turn, so it is not taken in by it."""
    model = Scripted([reply(call("slow")), reply("Two.")])
    async with open_checked(model, tools=[slow], limits=Limits(max_steps=1)) as runtime:
        session = await runtime.session("s")
        async with session.turn("one") as turn:
            await trio.sleep(1)
            await session.send("two")
            assert (await turn.wait_ended()).stop_reason == "max_steps"
        await wait_idle(session)
        assert session.last.text == "Two."
    assert [message.role for message in model.requests[1].messages] == ["user", "assistant", "tool", "user"]


@pytest.mark.parametrize("forced", [False, True])
async def test_input_during_a_turns_compaction_is_taken_in_before_the_next_model_call(
    autojump_clock, open_checked, journal, forced
):
    """L10, L26, L32"""
    long = "word " * 60
    overflow = [fail(ContextOverflow("too long"))] if forced else []
    model = Scripted([reply(long), reply(long), *overflow, reply(stall(5), "A summary."), reply("Both.")])
    policy = Compaction(threshold=None if forced else 150, keep_pairs=1, min_messages=4)
    async with open_checked(model, limits=Limits(compaction=policy)) as runtime:
        session = await runtime.session("s")
        await session.ask("a")
        await session.ask("b")
        async with session.turn("one") as turn:
            await trio.sleep(1)
            await session.send("two")
            result = await turn.wait_ended()
    assert (result.text, result.steps) == ("Both.", 1)
    assert [message.text for message in model.requests[-1].messages][-2:] == ["one", "two"]
    assert len(recorded(journal, InputsTaken)) == 1


async def test_input_to_a_turn_that_fails_gets_a_turn_of_its_own(autojump_clock, open_checked, journal):
    """L10, I26"""
    model = Scripted([reply(stall(5), *fail(AuthFailed("no"))), reply("Two.")])
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        async with session.turn("one") as turn:
            await trio.sleep(1)
            await session.send("two")
            assert (await turn.wait_ended()).error.kind == "auth"
        await wait_idle(session)
        assert session.last.text == "Two."


async def test_input_during_a_manual_compaction_gets_a_turn(autojump_clock, open_checked, journal):
    """L10, L34, I26"""
    answers = [reply(f"Answer {n}. " + "word " * 30) for n in range(8)]
    model = Scripted([*answers, reply(stall(5), "A summary."), reply("Here.")])
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        for n in range(8):
            await session.ask(f"Question {n}. " + "word " * 30)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.compact)
            await trio.sleep(1)
            await session.send("still there?")
        await wait_idle(session)
        assert session.last.text == "Here."
    assert names(journal).index("CompactionEnded") < names(journal).index("TurnStarted", -8)


async def test_what_is_queued_when_the_user_interrupts_waits_for_the_next_word(autojump_clock, open_checked, journal):
    """L10, L15: an interrupt starts nothing; what was accepted comes with the next turn."""
    model = Scripted([reply(stall(50), "never"), reply("Both.")])
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        async with session.turn("one"):
            await trio.sleep(1)
            await session.send("two")
            await session.interrupt()
        await trio.sleep(100)
        assert len(model.requests) == 1 and session.statistics().queued_inputs == 1
        await session.ask("three")
    assert [message.text for message in model.requests[1].messages if message.role == "user"] == ["one", "two", "three"]


async def test_the_queue_is_bounded_and_says_so(autojump_clock, open_checked, journal):
    """I25: refused, never dropped silently."""
    async with open_checked(
        Scripted([reply(stall(5), "One."), reply("Two.")]), limits=Limits(queued_inputs=2)
    ) as runtime:
        session = await runtime.session("s")
        async with session.turn("one") as turn:
            await session.send("a")
            await session.send("b")
            with pytest.raises(CommandRejected, match="2 messages waiting"):
                await session.send("c")
            await turn.wait_ended()
    assert [received.text for received in recorded(journal, InputReceived)] == ["one", "a", "b"]


async def test_a_full_queue_that_an_interrupt_left_behind_is_taken_in_by_the_next_word(autojump_clock, open_checked):
    """I25, I26: nobody else would ever take it in."""
    model = Scripted([reply(stall(50), "never"), reply("All.")])
    async with open_checked(model, limits=Limits(queued_inputs=2)) as runtime:
        session = await runtime.session("s")
        async with session.turn("one"):
            await session.send("two")
            await session.send("three")
            await session.interrupt()
        assert (await session.ask("four")).text == "All."
    assert [message.text for message in model.requests[1].messages] == ["one", "two", "three", "four"]


async def test_new_words_from_the_user_start_the_loop_guard_anew(autojump_clock, open_checked, journal):
    """L10, L23"""
    model = Scripted([reply(call("slow"))] * 4 + [reply("Done.")])
    async with open_checked(model, tools=[slow]) as runtime:
        session = await runtime.session("s")
        async with session.turn("go") as turn:
            await trio.sleep(3)
            await session.send("and once more, please")
            await turn.wait_ended()
    assert not recorded(journal, LoopWarned)
    assert len(recorded(journal, StepStarted)) == 5


async def test_hooks_that_guard_turns_see_what_is_sent_too(autojump_clock, open_checked, journal):
    """T5, L10: whether it would start a turn or steer one."""

    async def guard(before: BeforeTurn) -> Deny | None:
        return Deny("mind your words") if "darn" in before.text else None

    model = Scripted([reply("First ", stall(5), "answer."), reply("Second answer.")])
    async with open_checked(model, hooks=[Hooks(before_turn=guard)]) as runtime:
        session = await runtime.session("s")
        with pytest.raises(CommandRejected, match="mind your words"):
            await session.send("darn")
        assert session.state.turns == 0
        async with session.turn("one") as turn:
            await trio.sleep(1)
            with pytest.raises(CommandRejected, match="mind your words"):
                await session.send("darn")
            await session.send("and two")
            await turn.wait_ended()
    assert [received.text for received in recorded(journal, InputReceived)] == ["one", "and two"]
