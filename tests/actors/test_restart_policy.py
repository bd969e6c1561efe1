"""When actors begin again, how often, and what survives: I22 to the edges of the window, in virtual time."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trouper import _errors
from trouper.actors import (
    ActorState,
    Crash,
    Crashed,
    Inbox,
    Normal,
    Request,
    Restart,
    RestartLimit,
    Stopped,
    Supervisor,
    open_supervisor,
)
from trouper.actors.restart import RestartWindow


def quiet(crash: Crash) -> None:
    """Crashes are what these tests are about; they need no log."""


class Boom(Exception):
    pass


async def crash_when_told(inbox: Inbox[str, str], lives: list[float]) -> None:
    """Notes the time of each of its beginnings; `boom` crashes it, `leave` makes it return."""
    lives.append(trio.current_time())
    async for message in inbox:
        if message == "boom":
            raise Boom
        if message == "leave":
            return
        if isinstance(message, Request):
            message.reply(f"life {len(lives)}")


@pytest.mark.parametrize(
    ("on", "message", "again"),
    [
        ("always", "boom", True),
        ("always", "leave", True),
        ("failure", "boom", True),
        ("failure", "leave", False),
        ("never", "boom", False),
        ("never", "leave", False),
    ],
)
async def test_the_policy_decides_who_begins_again(
    autojump_clock: MockClock, on: Any, message: str, again: bool
) -> None:
    """Permanent, on failure, never."""
    lives: list[float] = []
    async with open_supervisor(report=quiet) as supervisor:
        ref = supervisor.spawn("actor", crash_when_told, lives, restart=Restart(on=on))
        ref.tell(message)
        await wait_all_tasks_blocked()
        if again:
            assert await ref.ask("how are you?") == "life 2"
        else:
            assert isinstance(ref.exit, Crashed if message == "boom" else Normal)
            assert len(lives) == 1


@pytest.mark.parametrize(("gap", "survives"), [(9.75, False), (10.0, True), (10.25, True)])
async def test_the_window_is_exact_at_its_edges(autojump_clock: MockClock, gap: float, survives: bool) -> None:
    """I22: two restarts within 10 s; a third crash `gap` seconds after the *first* restart. Exactly 10 s ago no longer counts."""
    lives: list[float] = []
    async with open_supervisor(report=quiet) as supervisor:
        ref = supervisor.spawn("actor", crash_when_told, lives, restart=Restart(limit=2, within_s=10))
        ref.tell("boom")
        await trio.sleep(4)
        ref.tell("boom")
        await trio.sleep(gap - 4)
        ref.tell("boom")
        await trio.sleep(1)
        if survives:
            assert await ref.ask("?") == "life 4"
            assert [round(at - lives[0], 3) for at in lives] == [0, 0, 4, gap]
        else:
            assert ref.exit == RestartLimit(2, 10, Crashed(ref.exit.last.exception))  # type: ignore[union-attr]
            (failed,) = supervisor.statistics().failed
            assert (failed.name, failed.exit) == ("supervisor/actor", ref.exit)


async def test_a_limit_is_reached_exactly_and_visibly(autojump_clock: MockClock) -> None:
    """I22: N restarts, then a visible failure: N + 1 lives in all."""
    lives: list[float] = []

    async def hopeless(inbox: Inbox[str, str]) -> None:
        lives.append(trio.current_time())
        raise Boom

    reports: list[Crash] = []
    async with open_supervisor(report=reports.append) as supervisor:
        ref = supervisor.spawn("hopeless", hopeless, restart=Restart(limit=5, within_s=10))
        exit = await ref.wait_exit()
        assert isinstance(exit, RestartLimit)
        assert isinstance(exit.last, Crashed)
        assert len(lives) == 6
        assert [crash.restart for crash in reports] == [1, 2, 3, 4, 5, None]
        statistics = supervisor.statistics()
        assert (statistics.restarts, statistics.ended, len(statistics.failed)) == (5, 1, 1)


async def test_an_always_policy_counts_returns_too(autojump_clock: MockClock) -> None:
    """I22: a permanent actor that returns at once does not spin for ever."""

    async def short(inbox: Inbox[str, str]) -> None:
        return

    async with open_supervisor() as supervisor:
        exit = await supervisor.spawn("short", short, restart=Restart(on="always", limit=2, within_s=1)).wait_exit()
        assert exit == RestartLimit(2, 1, Normal())


async def test_delays_double_up_to_their_maximum(autojump_clock: MockClock) -> None:
    lives: list[float] = []

    async def hopeless(inbox: Inbox[str, str]) -> None:
        lives.append(trio.current_time())
        raise Boom

    policy = Restart(limit=5, within_s=1000, delay_s=1, delay_max_s=5)
    async with open_supervisor(report=quiet) as supervisor:
        await supervisor.spawn("hopeless", hopeless, restart=policy).wait_exit()
    assert [later - earlier for earlier, later in pairwise(lives)] == [1, 2, 4, 5, 5]


async def test_messages_in_the_mailbox_survive_a_restart_and_the_one_in_hand_does_not(
    autojump_clock: MockClock,
) -> None:
    """SEMANTICS, restarts: what was being handled is not delivered again; what waits is handled by the next incarnation."""
    seen: list[object] = []

    async def fragile(inbox: Inbox[str, str]) -> None:
        async for message in inbox:
            seen.append(message)
            if message == "boom":
                raise Boom

    async with open_supervisor(report=quiet) as supervisor:
        ref = supervisor.spawn("fragile", fragile, restart=Restart(delay_s=1))
        for message in ("a", "boom", "b", "boom", "c"):
            ref.tell(message)
        await trio.sleep(10)
        assert seen == ["a", "boom", "b", "boom", "c"]


async def test_messages_are_accepted_while_an_actor_waits_to_begin_again(autojump_clock: MockClock) -> None:
    """SEMANTICS, restarts: the reference stays good, and the mailbox bounded, between two incarnations."""
    lives: list[float] = []
    async with open_supervisor(report=quiet) as supervisor:
        ref = supervisor.spawn("actor", crash_when_told, lives, restart=Restart(delay_s=5), mailbox=2)
        ref.tell("boom")
        await trio.sleep(1)
        (statistics,) = supervisor.statistics().actors
        assert statistics.state is ActorState.RESTARTING
        assert isinstance(statistics.last_failure, Boom)
        assert await ref.ask("still good?") == "life 2"
        assert trio.current_time() - lives[0] == 5


async def test_a_stop_while_waiting_to_begin_again_ends_at_once(autojump_clock: MockClock) -> None:
    """I24: no incarnation is started only to be stopped. What waited is counted as unread."""
    lives: list[float] = []
    async with open_supervisor(report=quiet) as supervisor:
        ref = supervisor.spawn("actor", crash_when_told, lives, restart=Restart(delay_s=60))
        ref.tell("boom")
        await trio.sleep(1)
        ref.tell("never read")
        began = trio.current_time()
        supervisor.stop(ref)
        assert await ref.wait_exit() == Stopped()
        assert (trio.current_time() - began, len(lives)) == (0, 1)


async def test_an_actor_that_always_crashes_at_once_does_not_starve_the_others(autojump_clock: MockClock) -> None:
    """I23: each restart lets the scheduler pass."""

    async def hopeless(inbox: Inbox[str, str]) -> None:
        raise Boom

    passes = 0
    async with open_supervisor(report=quiet) as supervisor:
        ref = supervisor.spawn("hopeless", hopeless, restart=Restart(limit=100, within_s=math.inf))
        while ref.exit is None:
            await trio.lowlevel.checkpoint()
            passes += 1
    assert passes >= 100


def test_a_window_forgets_what_has_left_it() -> None:
    window = RestartWindow(Restart(limit=2, within_s=4))
    for now, allowed in [(0, True), (1, True), (1, False), (3.5, False), (4, True), (4.5, False), (5, True)]:
        assert window.allows(now) is allowed, now
        if allowed:
            window.record(now)
    assert window.total == 4


@pytest.mark.parametrize(
    "settings",
    [
        {"on": "sometimes"},
        {"limit": -1},
        {"within_s": 0},
        {"within_s": math.nan},
        {"delay_s": -1},
        {"delay_s": math.inf},
        {"delay_max_s": -0.5},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(_errors.ConfigError):
        Restart(**settings)


async def test_a_supervisor_shows_its_actors(autojump_clock: MockClock) -> None:
    """`statistics()` is a plain call and a picture of this moment."""
    lives: list[float] = []

    def start(group: Supervisor) -> None:
        group.spawn("inner", crash_when_told, [])

    async with open_supervisor(name="app", report=quiet) as supervisor:
        ref = supervisor.spawn("actor", crash_when_told, lives, restart=Restart(limit=3, within_s=10))
        supervisor.spawn_supervisor("group", start)
        await wait_all_tasks_blocked()
        ref.tell("boom")
        await trio.sleep(20)
        ref.tell("boom")
        await wait_all_tasks_blocked()
        statistics = supervisor.statistics()
        assert [actor.name for actor in statistics.actors] == ["app/actor", "app/group"]
        assert statistics.actors[0].state is ActorState.RUNNING
        assert (statistics.actors[0].restarts, statistics.actors[0].restarts_in_window) == (2, 1)
        assert (statistics.started, statistics.ended, statistics.restarts) == (2, 0, 2)
        (group,) = statistics.supervisors
        assert [actor.name for actor in group.actors] == ["app/group/inner"]
        supervisor.stop(ref)
        assert supervisor.statistics().actors[0].state is ActorState.STOPPING
