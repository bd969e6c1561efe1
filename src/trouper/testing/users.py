"""The users of a simulated run: impatient ones, and a client that answers what it is asked. What they do is drawn from the seed."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import get_args

import trio

from trouper._errors import TrouperError
from trouper.core.events import ApprovalRequested, CallHeld, CallStarted
from trouper.core.messages import Json
from trouper.core.schedule_record import Missed
from trouper.core.settings import Budget
from trouper.core.task_events import TaskInputRequested
from trouper.runtime import Runtime
from trouper.services.views import instant
from trouper.session import Session
from trouper.testing.sources import seeded
from trouper.testing.world import World
from trouper.tools.errors import ToolError


@asynccontextmanager
async def client(world: World, runtime: Runtime, epoch: int) -> AsyncIterator[None]:
    """Somebody who answers what sessions ask: client-side calls, approvals, questions of tools. Not always, and not always in time."""
    draw = seeded(world.seed, f"client {epoch}")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_answer_calls, world, runtime, draw)
        yield
        nursery.cancel_scope.cancel()


async def _answer_calls(world: World, runtime: Runtime, draw: random.Random) -> None:
    async for record in runtime.events():
        for event in record.events:
            if not isinstance(event, CallHeld | ApprovalRequested | CallStarted | TaskInputRequested):
                continue
            await trio.sleep(draw.choice((0.0, 0.1, 2.0)))
            try:
                await _answer(await runtime.session(record.session), event, draw)
            except TrouperError as error:  # The turn has ended meanwhile, or long ago.
                world.tell(f"{trio.current_time():.2f} {record.session}: {type(error).__name__}: {error}")


async def _answer(
    session: Session, event: CallHeld | ApprovalRequested | CallStarted | TaskInputRequested, draw: random.Random
) -> None:
    match event:
        case CallHeld(call=call):
            answer = draw.choice((None, "fine", {"n": draw.randrange(5)}))
            if draw.random() < 0.8:
                await session.answer(call, answer, error=draw.random() < 0.2)
        case ApprovalRequested(call=call):
            match draw.randrange(4):
                case 0:
                    await session.deny(call, "no")
                case 1 | 2:
                    await session.approve(call, always=draw.random() < 0.1)
                case _:
                    pass  # It lapses.
        case CallStarted() | TaskInputRequested():
            for question in session.questions:
                if draw.random() < 0.8:
                    await session.answer_question(question.id, "yes")
                else:
                    await session.decline_question(question.id)


async def use(world: World, runtime: Runtime, name: str, draw: random.Random, faults: bool, lets_go: bool) -> None:
    """Somebody who talks, interrupts, steers, leaves in mid-turn and comes back; who `lets_go` asks for the session each time, and it may have been put to rest."""
    budget = draw.choice((None, None, TIGHT)) if faults else FREE
    held: Session | None = await runtime.session(name, system=draw.choice((None, "be brief", "be kind")), budget=budget)
    if lets_go:
        held = None
    actions: list[Callable[[Session, random.Random], Awaitable[None]]] = [
        _ask,
        _ask,
        _leave_early,
        _steer,
        _interrupt,
        _compact,
        _spawn,
        _spawn,
        _cancel,
        _notify,
        _take,
        _plan,
        _ask_for_json,
        _write_to_runs,
        _sweep,
    ]
    for _ in range(draw.randrange(1, 6)):
        action = draw.choice(actions) if faults else _ask
        world.tell(f"{trio.current_time():.2f} {name}: {action.__name__[1:]}")
        try:
            await action(held or await runtime.session(name), draw)
            if faults and draw.random() < 0.1:
                await _come_and_go(runtime, name, draw)
        except (TrouperError, ToolError) as error:
            world.tell(f"{trio.current_time():.2f} {name}: {type(error).__name__}: {error}")
        await trio.sleep(draw.choice((0.0, 0.1, 2.0)))


#: Some users have little to spend, of one thing or another, also in the processes that follow; with faults off nobody is held by it.
FREE = Budget(inline_s=0.3)
TIGHT = Budget(inline_s=0.3, tokens=20_000, steps=12, tool_calls=12, wall_s=15.0)
_SCHEMA: Mapping[str, Json] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


async def _come_and_go(runtime: Runtime, name: str, draw: random.Random) -> None:
    """A session for one question, closed while it may still be at work."""
    side = await runtime.session(f"{name}-{draw.randrange(10**6)}")
    with trio.move_on_after(draw.choice((0.1, 5.0, 60.0))):
        await _ask(side, draw)
    await side.close("no longer needed")


async def _ask(session: Session, draw: random.Random) -> None:
    await session.ask(draw.choice(("hello", "do it", "x" * draw.randrange(1, 2000))))


async def _leave_early(session: Session, draw: random.Random) -> None:
    with trio.move_on_after(draw.choice((0.0, 0.05, 0.5, 5.0))):
        async with session.turn("a long story, please") as turn:
            async for _ in turn:
                if draw.random() < 0.1:
                    break


async def _steer(session: Session, draw: random.Random) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_ask_quietly, session, draw)
        await trio.sleep(draw.choice((0.0, 0.1, 1.0)))
        await session.send("and another thing")


async def _ask_quietly(session: Session, draw: random.Random) -> None:
    try:
        await _ask(session, draw)
    except TrouperError:
        return


async def _interrupt(session: Session, draw: random.Random) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_ask_quietly, session, draw)
        await trio.sleep(draw.choice((0.0, 0.1, 1.0, 8.0)))
        await session.interrupt("enough")


async def _compact(session: Session, draw: random.Random) -> None:
    await session.compact()


async def _spawn(session: Session, draw: random.Random) -> None:
    for _ in range(draw.randrange(1, 4)):
        await session.spawn(
            draw.choice(("careful", "slow", "talkative", "stubborn")),
            {"n": draw.randrange(5)},
            signal_on_completion=draw.random() < 0.8,
        )


async def _ask_for_json(session: Session, draw: random.Random) -> None:
    await session.ask("how many?", output=_SCHEMA)


async def _write_to_runs(session: Session, draw: random.Random) -> None:
    for task in session.tasks(state="running").tasks:
        await session.message_task(task.id, draw.choice(("hurry up", "never mind")))


async def _sweep(session: Session, draw: random.Random) -> None:
    await session.sweep_tasks()


async def _cancel(session: Session, draw: random.Random) -> None:
    for task in session.tasks(state="running").tasks[: draw.randrange(1, 3)]:
        await session.cancel(draw.choice((task.id, task.about.origin_call or task.id)))


async def _notify(session: Session, draw: random.Random) -> None:
    key = draw.choice((None, "key"))
    with session.hold_notifications():
        await session.notify("Ding", "dong", dedupe_key=key, wake=draw.random() < 0.8)
        await trio.sleep(draw.choice((0.0, 0.2, 3.0)))


async def _take(session: Session, draw: random.Random) -> None:
    """A host that takes notifications itself, and now and then forgets to say what became of one."""
    with session.notifications() as inbox, trio.move_on_after(draw.choice((0.1, 2.0))):
        async for notification in inbox:
            match draw.randrange(3):
                case 0:
                    await session.acknowledge(notification.id)
                case 1:
                    await session.requeue(notification.id, reason="later")
                case _:
                    return


async def _plan(session: Session, draw: random.Random) -> None:
    at = instant(session._now() + draw.choice((1.0, 30.0)))
    if draw.random() < 0.5:
        await session.create_schedule(title="once", at=at, message="now")
    elif draw.random() < 0.5:
        await session.create_schedule(title="run", tool="careful", arguments={"n": 1}, at=at)
    else:
        missed = draw.choice(get_args(Missed))
        await session.create_schedule(title="run", tool="careful", arguments={"n": 1}, cron="* * * * *", missed=missed)
