"""Monitors: told of an end, with its reason, exactly once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trouper.actors import (
    Cancelled,
    Crash,
    Crashed,
    Ended,
    Inbox,
    Killed,
    MailboxFull,
    Normal,
    Ref,
    Restart,
    RestartLimit,
    Stopped,
    Supervisor,
    open_mailbox,
    open_supervisor,
)


def quiet(crash: Crash) -> None:
    """Crashes are expected here."""


@attrs.frozen
class WorkerEnded:
    ended: Ended


async def worker(inbox: Inbox[str, None]) -> None:
    async for message in inbox:
        match message:
            case "boom":
                raise ValueError
            case "leave":
                return
            case "linger":
                await trio.sleep_forever()


def tell(*messages: str) -> Callable[[Supervisor, Ref[str, None]], None]:
    def act(supervisor: Supervisor, ref: Ref[str, None]) -> None:
        for message in messages:
            ref.tell(message)

    return act


def stop_lingering(supervisor: Supervisor, ref: Ref[str, None]) -> None:
    ref.tell("linger")
    supervisor.stop(ref, grace_s=2)


ENDS: list[tuple[str, Callable[[Supervisor, Ref[str, None]], None], Any]] = [
    ("normal", tell("leave"), Normal),
    ("crashed", tell("boom"), Crashed),
    ("stopped", lambda supervisor, ref: supervisor.stop(ref), Stopped),
    ("cancelled", lambda supervisor, ref: supervisor.cancel(ref), Cancelled),
    ("killed after grace", stop_lingering, Killed),
    ("restart limit", tell("boom", "boom", "boom"), RestartLimit),
]


@pytest.mark.parametrize(("name", "act", "expected"), ENDS, ids=[name for name, _, _ in ENDS])
async def test_a_monitor_tells_each_kind_of_end_once(
    autojump_clock: MockClock, name: str, act: Any, expected: Any
) -> None:
    """SEMANTICS, monitors: exactly once, with the reason, for every kind of end."""
    restart = Restart(limit=2) if expected is RestartLimit else Restart(on="never")
    with open_mailbox("watcher") as (_, inbox):
        async with open_supervisor(report=quiet) as supervisor:
            ref = supervisor.spawn("worker", worker, restart=restart)
            inbox.monitor(ref, WorkerEnded)
            await wait_all_tasks_blocked()
            act(supervisor, ref)
            message = await inbox.receive()
            assert isinstance(message, WorkerEnded)
            assert message.ended.name == "supervisor/worker"
            assert isinstance(message.ended.exit, expected)
            assert message.ended.exit == ref.exit
            await trio.sleep(100)
            with pytest.raises(trio.WouldBlock):
                inbox.receive_nowait()


async def test_a_monitor_of_one_that_has_ended_tells_at_once(autojump_clock: MockClock) -> None:
    with open_mailbox("watcher") as (_, inbox):
        async with open_supervisor() as supervisor:
            ref = supervisor.spawn("worker", worker)
            ref.tell("leave")
            ref.tell("too late")
            await ref.wait_exit()
            inbox.monitor(ref)
            assert inbox.receive_nowait() == Ended("supervisor/worker", Normal(), unread=1)
            with pytest.raises(trio.WouldBlock):
                inbox.receive_nowait()


async def test_a_restart_is_not_an_end(autojump_clock: MockClock) -> None:
    """SEMANTICS, monitors: the reference stays good across restarts, and so does the monitor."""
    with open_mailbox("watcher") as (_, inbox):
        async with open_supervisor(report=quiet) as supervisor:
            ref = supervisor.spawn("worker", worker, restart=Restart())
            inbox.monitor(ref)
            ref.tell("boom")
            await wait_all_tasks_blocked()
            with pytest.raises(trio.WouldBlock):
                inbox.receive_nowait()
            ref.tell("leave")
            assert await inbox.receive() == Ended("supervisor/worker", Normal())


async def test_each_monitor_call_is_told_once(autojump_clock: MockClock) -> None:
    with open_mailbox("a") as (_, first), open_mailbox("b") as (_, second):
        async with open_supervisor() as supervisor:
            ref = supervisor.spawn("worker", worker)
            first.monitor(ref)
            second.monitor(ref)
            second.monitor(ref, WorkerEnded)
        ended = Ended("supervisor/worker", Stopped())
        assert first.receive_nowait() == ended
        assert [second.receive_nowait(), second.receive_nowait()] == [ended, WorkerEnded(ended)]


async def test_a_closed_monitor_says_nothing(autojump_clock: MockClock) -> None:
    with open_mailbox("watcher") as (_, inbox):
        async with open_supervisor() as supervisor:
            monitor = inbox.monitor(supervisor.spawn("worker", worker))
            monitor.close()
            monitor.close()
        with pytest.raises(trio.WouldBlock):
            inbox.receive_nowait()


async def test_a_full_mailbox_does_not_refuse_a_monitors_word(autojump_clock: MockClock) -> None:
    """I25: the bound is for others' messages; a monitor's word was asked for, and comes beyond it."""
    with open_mailbox("watcher", capacity=1) as (ref, inbox):
        async with open_supervisor() as supervisor:
            inbox.monitor(supervisor.spawn("worker", worker))
            ref.tell("fills it")
        with pytest.raises(MailboxFull):
            ref.tell("refused")
        assert [inbox.receive_nowait(), inbox.receive_nowait()] == ["fills it", Ended("supervisor/worker", Stopped())]


async def test_the_name_is_free_when_the_monitor_speaks(autojump_clock: MockClock) -> None:
    """SEMANTICS, names: whoever hears of the end can use the name at once."""
    async with open_supervisor() as supervisor:
        replaced: list[Ref[str, None]] = []

        async def replacing(inbox: Inbox[Ended, None]) -> None:
            inbox.monitor(supervisor.spawn("worker", worker))
            async for message in inbox:
                assert isinstance(message, Ended)
                replaced.append(supervisor.spawn("worker", worker))

        supervisor.spawn("replacing", replacing)
        await wait_all_tasks_blocked()
        supervisor.cancel("worker")
        await wait_all_tasks_blocked()
        assert supervisor.find("worker") == replaced[0]


async def test_monitors_belong_to_the_incarnation_that_set_them(autojump_clock: MockClock) -> None:
    """SEMANTICS, monitors: a watcher that begins again sets its monitors again, and hears of each end once, not twice."""
    heard: list[object] = []

    async def watcher(inbox: Inbox[Ended | str, None], watched: Ref[str, None]) -> None:
        inbox.monitor(watched)
        async for message in inbox:
            if message == "boom":
                raise ValueError
            heard.append(message)

    async with open_supervisor(report=quiet) as supervisor:
        watched = supervisor.spawn("worker", worker)
        ref = supervisor.spawn("watcher", watcher, watched, restart=Restart())
        await wait_all_tasks_blocked()
        ref.tell("boom")
        await wait_all_tasks_blocked()
        watched.tell("leave")
        await wait_all_tasks_blocked()
        assert heard == [Ended("supervisor/worker", Normal())]


async def test_a_faulty_wrap_crashes_the_watcher_alone(autojump_clock: MockClock) -> None:
    """I23: it runs in the watcher, not in the actor that ended."""

    def faulty(ended: Ended) -> str:
        raise LookupError

    async def watcher(inbox: Inbox[str, None], watched: Ref[str, None]) -> None:
        inbox.monitor(watched, faulty)
        async for _ in inbox:
            pass

    async with open_supervisor(report=quiet) as supervisor:
        watched = supervisor.spawn("worker", worker)
        ref = supervisor.spawn("watcher", watcher, watched)
        await wait_all_tasks_blocked()
        watched.tell("leave")
        exit = await ref.wait_exit()
        assert isinstance(exit, Crashed)
        assert isinstance(exit.exception, LookupError)
        assert watched.exit == Normal()


async def test_many_wait_for_one_exit(autojump_clock: MockClock) -> None:
    got: list[object] = []
    async with open_supervisor() as supervisor:
        ref = supervisor.spawn("worker", worker)

        async def wait() -> None:
            got.append(await ref.wait_exit())

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            supervisor.stop("worker")
    assert got == [Stopped()] * 3
