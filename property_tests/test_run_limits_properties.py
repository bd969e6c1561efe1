"""Limits on background runs through the whole runtime: spawn, spill, finish, fail, cancel, close, crash and restart in any order (B6, B10, I19).

The lifecycle alone is tried by `test_task_properties`; here sessions decide at once, wait for a disk, lose their actors and their process, and still no prefix of the
journal has more runs than the limits allow, and no permit is lost.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from trouper import Limits, ToolContext, ToolError, TrouperError, tool
from trouper.actors.environment import Environment
from trouper.journal.reader import Reader
from trouper.models.scripted import Scripted, call, reply
from trouper.runtime import Runtime, open_runtime
from trouper.testing.crash_disk import CrashDisk
from trouper.testing.invariants import check_invariants, records_of
from trouper.testing.schedule import run_simulated
from trouper.testing.sources import START_MS, CountedIds, VirtualWall, seeded


@attrs.define
class Load:
    """How much is tried: so many users in so many sessions, until all processes together have made so many steps."""

    limits: Limits
    sessions: int
    users: int
    processes: int
    steps: int
    #: How often each limit turned a run away: what was never reached was never tried.
    refused: Counter[str] = attrs.Factory(Counter)

    @property
    def steps_each(self) -> int:
        return self.steps // (self.processes * self.users)


def small() -> Load:
    limits = Limits(runs_per_session=3, runs_per_runtime=7, grace_s=1.0, heartbeat_s=60.0)
    return Load(limits, sessions=5, users=4, processes=3, steps=180)


def default_limits() -> Load:
    """5 a session and 64 a runtime."""
    return Load(Limits(grace_s=1.0, heartbeat_s=600.0), sessions=24, users=20, processes=4, steps=10_000)


@tool(background=True, idempotent=True)
async def again(context: ToolContext, seconds: float = 1.0, how: str = "fine") -> str:
    """May be repeated."""
    await trio.sleep(seconds)
    if how == "fail":
        raise ToolError("no")
    if how == "bug":
        raise RuntimeError("a bug")
    return how


@tool(background=True)
async def once(context: ToolContext, seconds: float = 1.0, how: str = "fine") -> str:
    """May not; and tidies up slowly when it is cancelled."""
    try:
        await trio.sleep(seconds)
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(0.5 if how == "slow" else 0.0)
    return how


def check_permits(runtime: Runtime, limits: Limits) -> None:
    # Permits are counted in the order of the journal; an actor whose record is on its way to the disk has yet to follow, and so
    # has one between two lives. That the journal itself never exceeds a limit is checked at the end.
    actors = [session.actor for session in runtime._ground.sessions.values()]
    settled = [actor for actor in actors if actor._nursery is not None and actor.in_flight is None]
    held = {actor.session: actor.state.tasks.active for actor in settled}
    assert max(held.values(), default=0) <= limits.runs_per_session, held
    assert sum(held.values()) <= limits.runs_per_runtime, held
    assert runtime.permits.total <= limits.runs_per_runtime


async def act(runtime: Runtime, load: Load, draw: random.Random) -> None:
    session = await runtime.session(f"s{draw.randrange(load.sessions)}")
    what = draw.choice(("spawn", "spawn", "spawn", "spawn", "ask", "cancel", "wait", "crash"))
    arguments = {
        "seconds": draw.choice((0.0, 0.5, 5.0, 60.0)),
        "how": draw.choice(("fine", "fine", "fail", "bug", "slow")),
    }
    match what:
        case "spawn":
            await session.spawn(draw.choice(("again", "once")), arguments)
        case "ask":
            await session.ask(f"{draw.choice(('again', 'once'))} {arguments['seconds']} {arguments['how']}")
        case "cancel":
            for task in session.tasks(state="running").tasks[: draw.randrange(1, 4)]:
                await session.cancel(task.id)
        case "wait":
            await trio.sleep(draw.choice((0.0, 0.3, 2.0, 30.0)))
        case "crash":
            if draw.random() < 0.2:
                session._actor.start(_bug)


async def _bug() -> None:
    raise RuntimeError("a bug in an actor")


def model() -> Scripted:
    def answer(request: Any) -> Any:
        last = request.messages[-1]
        if last.role == "user" and last.kind == "normal":
            name, seconds, how = last.text.split()
            return reply(*(call(name, seconds=float(seconds), how=how) for _ in range(2)))
        return reply("noted")

    return Scripted([answer] * 5_000)


async def process(load: Load, disk: CrashDisk, environment: Environment, seed: int, final: bool) -> None:
    draw = seeded(seed, f"users {environment.pid}")
    async with open_runtime(
        "/state", model=model(), tools=[again, once], limits=load.limits, disk=disk, environment=environment
    ) as runtime:
        async with trio.open_nursery() as nursery:
            for number in range(load.users):
                nursery.start_soon(user, runtime, load, seeded(seed, f"user {environment.pid} {number}"))
        check_permits(runtime, load.limits)
        if final:
            await trio.sleep(1_000.0)
            assert runtime.permits.total == 0, "a permit was lost"
            session = await runtime.session("last")
            for _ in range(load.limits.runs_per_session):
                await session.spawn("again", {"seconds": draw.random()})
            await trio.sleep(100.0)
            assert runtime.permits.total == 0


async def user(runtime: Runtime, load: Load, draw: random.Random) -> None:
    for _ in range(load.steps_each):
        try:
            await act(runtime, load, draw)
        except (ToolError, TrouperError) as refusal:
            load.refused[getattr(refusal, "scope", "other")] += 1
        check_permits(runtime, load.limits)


def try_limits(load: Load, seed: int) -> None:
    disk, ids, elapsed = CrashDisk(), CountedIds(), 0
    for number in range(load.processes):
        final = number == load.processes - 1
        clock = trio.testing.MockClock(autojump_threshold=0)
        wall = VirtualWall(clock, START_MS + elapsed)
        environment = Environment(
            now=lambda wall=wall: wall() / 1000,  # type: ignore[misc]
            ids=ids,
            random=seeded(seed, f"jitter {number}"),
            pid=number,
        )
        run_simulated(process, load, disk, environment, seed, final, seed=seed + number, clock=clock)
        elapsed += round(clock.current_time() * 1000) + 1_000
        disk = disk.process()
    wrong = check_invariants(records_of(Reader(disk, "/state")), limits=load.limits, complete=True)
    assert not wrong, "\n".join(map(str, wrong))


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_limits_hold_and_permits_come_back(seed: int) -> None:
    try_limits(small(), seed)


@pytest.mark.slow
def test_ten_thousand_steps_within_the_default_limits() -> None:
    """B6, I19: 5 a session and 64 a runtime, both of them reached again and again."""
    load = default_limits()
    try_limits(load, 1)
    assert load.refused["session"] > 50 and load.refused["runtime"] > 50, load.refused
