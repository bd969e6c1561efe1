"""Stop, then cancel: order, grace, and what an actor that ignores both can do about it. I20, I21, I24."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trouper.actors import (
    ActorGone,
    Cancelled,
    Crash,
    Crashed,
    Inbox,
    Killed,
    Request,
    Restart,
    Stopped,
    Supervisor,
    open_supervisor,
)


async def polite(inbox: Inbox[str, str], log: list[str] | None = None, name: str = "") -> None:
    async for message in inbox:
        if isinstance(message, Request):
            message.reply(message.payload)
        elif log is not None:
            log.append(message)
    if log is not None:
        log.append(name)


async def deaf(inbox: Inbox[str, str]) -> None:
    """Never looks at its inbox."""
    await trio.sleep_forever()


async def in_denial(inbox: Inbox[str, str]) -> None:
    """Sees the end of its inbox and goes on regardless."""
    while True:
        try:
            await inbox.receive()
        except trio.EndOfChannel:
            await trio.sleep(0.5)


async def slow_to_clean_up(inbox: Inbox[str, str]) -> None:
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
            await trio.sleep_forever()


async def catches_cancelled(inbox: Inbox[str, str]) -> None:
    try:
        await trio.sleep_forever()
    except trio.Cancelled:
        return  # What no actor should do; the kernel must not take it for a good end.


async def test_a_stop_ends_the_inbox_after_what_was_accepted(autojump_clock: MockClock) -> None:
    """SEMANTICS, stop: accepted is handled, questions too; nothing more is accepted."""
    log: list[str] = []
    async with open_supervisor() as supervisor:
        ref = supervisor.spawn("actor", polite, log, "end")
        for message in ("a", "b", "c"):
            ref.tell(message)
        supervisor.stop(ref)
        with pytest.raises(ActorGone, match="is stopping") as gone:
            ref.tell("late")
        assert gone.value.exit is None
        assert await ref.wait_exit() == Stopped()
    assert log == ["a", "b", "c", "end"]


async def test_those_who_wait_for_room_are_refused_by_a_stop(autojump_clock: MockClock) -> None:
    """SEMANTICS, stop: at once, not when the actor has ended: it accepts nothing more."""
    async with open_supervisor() as supervisor:
        ref = supervisor.spawn("deaf", deaf, mailbox=1)
        ref.tell("fills it")
        refused_at: list[float] = []

        async def send() -> None:
            with pytest.raises(ActorGone):
                await ref.send("waits")
            refused_at.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await wait_all_tasks_blocked()
            supervisor.stop(ref, grace_s=3)
        assert refused_at == [0]


@pytest.mark.parametrize("actor", [deaf, in_denial, catches_cancelled])
async def test_an_actor_that_ignores_a_stop_is_killed_when_its_grace_is_over(
    autojump_clock: MockClock, actor: object
) -> None:
    """I24: within the grace, to the second."""
    async with open_supervisor() as supervisor:
        ref = supervisor.spawn("actor", actor, restart=Restart(on="always"))  # type: ignore[arg-type]
        await wait_all_tasks_blocked()
        began = trio.current_time()
        supervisor.stop(ref, grace_s=3)
        assert await ref.wait_exit() == Killed(3)
        assert trio.current_time() - began == 3


async def test_cleaning_up_takes_as_long_as_the_actor_shields_it(autojump_clock: MockClock) -> None:
    """SEMANTICS, stop: a shield is the actor's own promise; the kernel never says that it has ended before it has."""
    async with open_supervisor() as supervisor:
        ref = supervisor.spawn("actor", slow_to_clean_up)
        await wait_all_tasks_blocked()
        began = trio.current_time()
        supervisor.stop(ref, grace_s=3)
        assert await ref.wait_exit() == Killed(3)
        assert trio.current_time() - began == 4


async def test_a_stop_may_be_hastened_but_not_put_off(autojump_clock: MockClock) -> None:
    async with open_supervisor() as supervisor:
        ref = supervisor.spawn("actor", deaf)
        await wait_all_tasks_blocked()
        began = trio.current_time()
        supervisor.stop(ref, grace_s=10)
        supervisor.stop(ref, grace_s=20)
        await trio.sleep(1)
        supervisor.stop(ref, grace_s=2)
        assert await ref.wait_exit() == Killed(2)
        assert trio.current_time() - began == 3


async def test_a_cancel_is_no_kill(autojump_clock: MockClock) -> None:
    """Exit reasons: cancelled is an order at once; killed is the end of a grace. Also if a grace had begun."""
    async with open_supervisor() as supervisor:
        one = supervisor.spawn("one", deaf, restart=Restart(on="always"))
        two = supervisor.spawn("two", deaf)
        await wait_all_tasks_blocked()
        supervisor.cancel(one)
        supervisor.stop(one)
        supervisor.stop(two)
        supervisor.cancel(two)
        assert await one.wait_exit() == Cancelled()
        assert await two.wait_exit() == Cancelled()
        assert trio.current_time() == 0


async def test_a_crash_while_stopping_is_the_reason_and_not_a_restart(autojump_clock: MockClock) -> None:
    async def fails_at_the_end(inbox: Inbox[str, str]) -> None:
        async for _ in inbox:
            pass
        raise ValueError

    crashes: list[Crash] = []
    async with open_supervisor(report=crashes.append) as supervisor:
        ref = supervisor.spawn("actor", fails_at_the_end, restart=Restart(on="always"))
    assert isinstance(ref.exit, Crashed)
    assert [crash.restart for crash in crashes] == [None]


async def test_the_last_started_stops_first_and_alone(autojump_clock: MockClock) -> None:
    """SEMANTICS, stop: in reverse order of start; one that others need is there until they have ended."""
    log: list[str] = []

    async def needs_first(inbox: Inbox[str, str]) -> None:
        async for _ in inbox:
            pass
        await trio.sleep(1)
        log.append(await first.ask("still there?"))
        log.append("second")

    async with open_supervisor() as supervisor:
        first = supervisor.spawn("first", polite, log, "first")
        supervisor.spawn("second", needs_first)
        supervisor.spawn("third", polite, log, "third")
    assert log == ["third", "still there?", "second", "first"]


async def test_leaving_the_block_keeps_within_one_grace_for_all(autojump_clock: MockClock) -> None:
    """I24: ten actors that ignore the stop cost one grace, not ten."""
    async with open_supervisor(grace_s=4) as supervisor:
        refs = [supervisor.spawn(f"deaf-{i}", deaf) for i in range(10)]
        await wait_all_tasks_blocked()
        began = trio.current_time()
    assert trio.current_time() - began == 4
    assert refs[-1].exit == Killed(4)
    assert all(isinstance(ref.exit, Killed) for ref in refs)


async def test_an_actors_own_grace_leaves_time_for_the_others(autojump_clock: MockClock) -> None:
    async with open_supervisor(grace_s=4) as supervisor:
        first = supervisor.spawn("first", polite)
        last = supervisor.spawn("last", deaf, grace_s=1)
        await wait_all_tasks_blocked()
        began = trio.current_time()
    assert trio.current_time() - began == 1
    assert (first.exit, last.exit) == (Stopped(), Killed(1))


async def test_a_nested_supervisor_stops_within_the_grace_of_the_outer(autojump_clock: MockClock) -> None:
    """I24: the outer deadline holds for all levels, and the deepest still end first (I20)."""
    ended: list[str] = []

    async def noting(inbox: Inbox[str, str], name: str) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(name)

    def build(group: Supervisor) -> None:
        group.spawn("leaf", noting, group.name)

    async with open_supervisor(name="top", grace_s=2) as supervisor:
        middle = supervisor.spawn_supervisor("middle", grace_s=60)
        middle.spawn_supervisor("deep", build, grace_s=60)
        await wait_all_tasks_blocked()
        leaf = supervisor.find("middle/deep/leaf")
        assert leaf is not None
        began = trio.current_time()
    assert trio.current_time() - began == 2
    assert leaf.exit == Killed(2)
    assert ended == ["top/middle/deep"]


async def test_a_cancel_around_the_block_needs_no_grace(autojump_clock: MockClock) -> None:
    with trio.CancelScope() as scope:
        async with open_supervisor(grace_s=60) as supervisor:
            refs = [supervisor.spawn(f"deaf-{i}", deaf) for i in range(3)]
            await wait_all_tasks_blocked()
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert [ref.exit for ref in refs] == [Cancelled()] * 3
    assert trio.current_time() == 0


async def test_a_cancel_during_a_graceful_stop_ends_it(autojump_clock: MockClock) -> None:
    with trio.move_on_after(1) as scope:
        async with open_supervisor(grace_s=60) as supervisor:
            ref = supervisor.spawn("deaf", deaf)
            await wait_all_tasks_blocked()
    assert scope.cancelled_caught
    assert trio.current_time() == 1
    assert ref.exit == Cancelled()


async def test_no_task_is_left_after_the_block(autojump_clock: MockClock) -> None:
    """I21: and no task was ever outside it."""
    before = trio.lowlevel.current_statistics().tasks_living
    root = trio.lowlevel.current_task()
    nurseries = list(root.child_nurseries)
    async with open_supervisor() as supervisor:
        for i in range(5):
            supervisor.spawn(f"actor-{i}", polite)
        supervisor.spawn_supervisor("group").spawn("inner", polite)
        await wait_all_tasks_blocked()
        (nursery,) = [nursery for nursery in root.child_nurseries if nursery not in nurseries]
        assert len(nursery.child_tasks) == 6
        assert trio.lowlevel.current_statistics().tasks_living == before + 7  # One task an actor, the group included.
    assert trio.lowlevel.current_statistics().tasks_living == before
    assert root.child_nurseries == nurseries


async def test_an_actor_can_see_that_it_is_to_stop(autojump_clock: MockClock) -> None:
    """For one in the middle of long work."""
    steps = 0

    async def working(inbox: Inbox[str, str]) -> None:
        nonlocal steps
        while not inbox.stopping:
            steps += 1
            await trio.sleep(1)

    async with open_supervisor() as supervisor:
        ref = supervisor.spawn("working", working)
        await trio.sleep(2.5)
    assert (ref.exit, steps) == (Stopped(), 3)
