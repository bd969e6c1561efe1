"""Who brings a command may decide on it in the actor's place: nobody else is kept waiting by that, and the order is the same (I13, I15, I25)."""

from __future__ import annotations

from contextvars import ContextVar

import attrs
import pytest
import trio

from trouper import Budget, CommandRejected, Limits, tool
from trouper.actors.turnstile import Turnstile
from trouper.actors.work import RELAYS_MAX
from trouper.core.events import CallEnded, CallStarted, TurnEnded
from trouper.ground import TURNS_AT_ONCE
from trouper.models import Scripted, call, reply

STEPS = 60
#: More than may begin at a time.
MANY = TURNS_AT_ONCE + 4


@tool(idempotent=True)
async def instant(n: int) -> int:
    """Never waits."""
    return n


@tool
async def hang() -> None:
    """Never ends by itself."""
    await trio.sleep_forever()


async def test_a_model_and_tools_that_never_wait_do_not_keep_others_waiting(autojump_clock, open_checked):
    """Fairness: within `RELAYS_MAX` pieces of work everybody else gets a turn of the scheduler."""
    turns_of_others = 0
    done = False

    async def other() -> None:
        nonlocal turns_of_others
        while not done:
            turns_of_others += 1
            await trio.lowlevel.checkpoint()

    script = [*(reply(call("instant", n=n)) for n in range(STEPS)), reply("Done.")]
    async with open_checked(Scripted(script), tools=[instant], limits=Limits(max_steps=0, loop_warn=0)) as runtime:
        session = await runtime.session("s")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            result = await session.ask("go")
            done = True
    assert result.text == "Done."
    assert turns_of_others >= 2 * STEPS // RELAYS_MAX


async def test_an_interrupt_reaches_a_turn_whose_work_never_waits(autojump_clock, open_checked, journal):
    """L15: the chain of work lets go of the scheduler, and what comes then is decided next."""
    endless = Scripted([reply(call("instant", n=1))], exhausted="cycle")
    async with open_checked(endless, tools=[instant], limits=Limits(max_steps=0, loop_warn=0)) as runtime:
        session = await runtime.session("s")
        async with session.turn("go") as turn:
            async for event in turn:
                if isinstance(event, CallEnded):
                    break
            await session.interrupt("enough")
        assert turn.result is not None and turn.result.stop_reason == "interrupt"
    ends = [event for record in journal for event in record.events if isinstance(event, TurnEnded)]
    assert [end.stop_reason for end in ends] == ["interrupt"]


async def test_results_that_come_while_one_is_on_its_way_to_the_disk_are_decided_after_it(
    autojump_clock, open_checked, journal
):
    """I13, I15: one at a time, whoever decides; a sync that takes its time is waited for by all."""
    script = [reply(*(call("instant", n=n) for n in range(12))), reply("Done.")]
    slow = attrs.evolve(open_checked.environment(), sync_latency=lambda: 0.01)
    async with open_checked(Scripted(script), tools=[instant], durability="fsync", environment=slow) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("go")).text == "Done."
    ended = [event for record in journal for event in record.events if isinstance(event, CallEnded)]
    assert sorted(event.content for event in ended) == list(range(12))


async def test_turns_that_end_as_they_begin_do_not_keep_others_waiting(autojump_clock, open_checked):
    """Fairness, L25: whoever asks on after the budget is spent gets an answer at once, and still lets go of the scheduler each time."""
    turns_of_others = 0

    async def other() -> None:
        nonlocal turns_of_others
        while True:
            turns_of_others += 1
            await trio.lowlevel.checkpoint()

    async with open_checked(Scripted([reply("Done.")]), budget=Budget(steps=1)) as runtime:
        session = await runtime.session("s")
        await session.ask("go")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            for _ in range(MANY):
                assert (await session.ask("more")).stop_reason == "budget"
            nursery.cancel_scope.cancel()
    assert turns_of_others >= MANY


async def test_turns_that_are_refused_take_no_place_from_those_of_others(autojump_clock, open_checked):
    """I23, I25: where so many turns may begin at a time, one that comes to nothing leaves its place to the next."""
    script = [reply(call("hang")), reply("Done.")]
    async with open_checked(Scripted(script), tools=[hang]) as runtime:
        busy, other = await runtime.session("busy"), await runtime.session("other")
        async with busy.turn("go") as turn:
            async for event in turn:
                if isinstance(event, CallStarted):
                    break
            for _ in range(MANY):
                with pytest.raises(CommandRejected, match="mid-turn"):
                    await busy.ask("more")
            assert (await other.ask("go")).text == "Done."


async def test_work_does_not_see_the_context_of_whoever_asks(autojump_clock, open_checked):
    """Who begins a turn in the actor's place starts its work as the actor would: a tool finds the same context variables either way."""
    asker = ContextVar("asker", default="nobody")

    @tool(idempotent=True)
    async def who() -> str:
        """Says who is there."""
        return asker.get()

    async with open_checked(Scripted([reply(call("who")), reply("Done.")]), tools=[who]) as runtime:
        session = await runtime.session("s")
        asker.set("somebody")
        await session.ask("go")
        assert session.history[2].answers[0].content == "nobody"


async def test_the_turnstile_lets_one_through_and_the_waiting_one_after_it_even_when_cancelled():
    turnstile = Turnstile()
    order: list[str] = []

    async def second() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await turnstile.wait_free()
            with turnstile:
                order.append("second")

    async with trio.open_nursery() as nursery:
        with turnstile:
            nursery.start_soon(second)
            await trio.testing.wait_all_tasks_blocked()
            order.append("first")
    assert order == ["first", "second"]
    assert not turnstile.taken
