"""The whole runtime in virtual time, from one seed: chaotic model, impatient users, a disk that loses power. Then the faults stop, and everything has to end well.

    python -m trouper.testing.simulate --seed 17        one run again, with its story
    python -m trouper.testing.simulate --seeds 10000    many

Pointed at tools of your own, it calls them too, in the midst of all that, and says what they do wrong:

    simulate(17, tools=[my_tool])

A run has two phases (see `design/INVARIANTS.md`). With faults on, safety: whatever happens, the journal obeys the invariants, every request to the model is valid, no
tool starts before its intent is on the disk, no tool that may run once runs twice. With faults off, liveness: every session answers again, nothing is left
open. Everything is drawn from the seed, so the same seed is the same run, to the byte.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import get_args

import attrs
import trio
import trio.testing

from trouper import codec
from trouper._errors import ToolDefinitionError, UsageError
from trouper.actors.environment import Environment
from trouper.core import history
from trouper.core.session import Event
from trouper.core.settings import Compaction, Deadlines, Limits
from trouper.journal import open_reader
from trouper.journal.format import is_gap
from trouper.runtime import Runtime, open_runtime
from trouper.services.desk import provided
from trouper.services.places import Places
from trouper.session import Session
from trouper.testing.chaos import Chaos
from trouper.testing.crash_disk import CrashDisk, PowerCut
from trouper.testing.invariants import Violation, check_invariants
from trouper.testing.schedule import run_simulated
from trouper.testing.simulated_tools import own_tools, watched_tool
from trouper.testing.sources import START_MS, VirtualWall, seeded
from trouper.testing.users import FREE, client, use
from trouper.testing.world import World
from trouper.tools.contract import Tool
from trouper.tools.registry import Registry, ToolSource

ROOT = "/state"
#: Every kind of event that can happen in a session, by its name.
KINDS = frozenset(kind.__name__ for kind in get_args(Event))
#: A run that has not come to rest by then, in virtual time, hangs.
PATIENCE_S = 30_000.0


class SimulationFailed(AssertionError):
    """A seed that breaks something. The message is the story of the run."""


@attrs.frozen
class Result:
    seed: int
    #: Of the journal as it was at the end: equal for equal runs.
    digest: str
    records: int
    epochs: int
    story: tuple[str, ...]
    #: How often each kind of event happened, by its name.
    events: Mapping[str, int]


def simulate(seed: int, *, tools: Iterable[ToolSource] = (), check: bool = True) -> Result:
    """One run. Raises `SimulationFailed` with its story if anything is wrong.

    `tools`: your own. They are called with arguments that fit, cancelled, cut off by crashes, and run again where their hints allow that. Wrong is what they raise
    besides `ToolError` and `ConnectionRequired`, and what they return that is no result. What they did to a world of yours is yours to look at afterwards. They
    should be async: a thread ends when it likes, and the run would not be the same again. Client-side ones are answered with any JSON. `ToolDefinitionError` for those
    that need files or stores, which the simulated machine does not have, or that are named as one of its own.
    """
    if not isinstance(seed, int):
        raise UsageError(f"the seed {seed!r} is no number; give a whole one, as in simulate(17)")
    world = World(seed, CrashDisk(), _checked(tools))
    draw = seeded(seed, "plan")
    epochs = draw.randrange(1, 4)
    with _planned_faults_unlogged():
        for epoch in range(epochs):
            _live(world, epoch, draw, faults=True)
        _live(world, epochs, draw, faults=False)
    records = _records(world.disk)
    digest = hashlib.sha256(b"".join(b"".join(codec.encode(record)) for record in records)).hexdigest()
    if check:
        violations: list[Violation] = check_invariants(records, limits=_limits(), complete=True)
        world.problems += [str(violation) for violation in violations]
    if world.problems:
        raise SimulationFailed(_told(world, records)) from world.error
    events = Counter(type(event).__name__ for record in records for event in record.events)
    return Result(seed, digest, len(records), epochs + 1, tuple(world.story), dict(sorted(events.items())))


@contextmanager
def _planned_faults_unlogged() -> Iterator[None]:
    """Tools and models that fail are part of the plan: in a program that has set up no logging, Python would write their tracebacks to stderr. One that has set it up gets them."""
    log, none = logging.getLogger("trouper"), logging.NullHandler()
    if not log.hasHandlers():
        log.addHandler(none)
    try:
        yield
    finally:
        log.removeHandler(none)


def _checked(tools: Iterable[ToolSource]) -> tuple[Tool, ...]:
    """Found out here rather than in the midst of a run, where it would be told as a failure of the runtime."""
    mine = Registry(tools)
    own = {each.name for each in own_tools(World(0, CrashDisk()))}
    for each in mine:
        if each.name in own:
            raise ToolDefinitionError(
                f"the simulator has a tool named {each.name!r} of its own; give yours another name for the run, .with_(name=...)",
                tool=each.name,
            )
    mine.check_needs(provided(Places(None)))
    return tuple(mine)


def _records(disk: CrashDisk) -> list[codec.Record]:
    return [
        codec.decode(raw.payload, raw.seq) for raw in open_reader(ROOT, disk=disk).records() if not is_gap(raw.payload)
    ]


def _told(world: World, records: list[codec.Record]) -> str:
    lines = [f"seed {world.seed} breaks:", *(f"  {problem}" for problem in world.problems[:10])]
    lines += ["the story:", *(f"  {line}" for line in world.story[-80:])]
    lines += ["the end of the journal:"]
    lines += [
        f"  {r.seq} {r.session}#{r.n} {type(r.cause).__name__}: {', '.join(type(e).__name__ for e in r.events)}"
        for r in records[-40:]
    ]
    if world.tools:
        names = ", ".join(each.__name__ for each in world.tools)
        lines += ["again:", "  from trouper.testing import simulate", f"  simulate({world.seed}, tools=[{names}])"]
    else:
        lines.append(f"again: python -m trouper.testing.simulate --seed {world.seed}")
    return "\n".join(lines)


def _limits(resident_sessions: int = 0) -> Limits:
    return Limits(
        resident_sessions=resident_sessions,
        max_steps=6,
        tool_timeout_s=20.0,
        grace_s=2.0,
        deadlines=Deadlines(connect_s=3.0, first_event_s=10.0, idle_s=10.0, step_s=60.0),
        compaction=Compaction(threshold=600, keep_pairs=2, min_messages=6, mask_min_saving=50),
        approval_s=30.0,
        answer_s=20.0,
        runs_per_session=3,
        task_retention_s=60.0,
        notification_attempts=3,
        queued_inputs=8,
        subscriber_events=256,
        snapshot_every=50,
    )


def _live(world: World, epoch: int, draw: random.Random, *, faults: bool) -> None:
    """One process, from start to its end: an orderly one, a kill, or a power cut."""
    fate = draw.choice(("power", "power", "kill", "orderly")) if faults else "orderly"
    disk = world.disk
    if fate == "power":
        disk.cut_power_before(disk.steps + draw.randrange(1, 160))
    clock = trio.testing.MockClock(autojump_threshold=0)
    wall = VirtualWall(clock, START_MS + world.elapsed_ms)
    if faults:
        # Now and then the machine's clock is ahead, and the next process finds it set right.
        wall.leap(hours=seeded(world.seed, f"clock {epoch}").choice((0, 0, 0, 0, 30)))
    environment = Environment(
        now=lambda: wall() / 1000,
        ids=world.ids,
        random=seeded(world.seed, f"jitter {epoch}"),
        pid=1000 + epoch,
        sync_latency=_syncs(seeded(world.seed, f"syncs {epoch}"), faults=faults),
    )
    world.tell(f"process {epoch} starts ({fate}, faults {'on' if faults else 'off'})")
    try:
        run_simulated(
            _process, world, environment, epoch, faults, fate == "kill", seed=world.seed * 7919 + epoch, clock=clock
        )
    except BaseException as error:
        if not _only(error, (PowerCut, _Killed)):
            if isinstance(error, KeyboardInterrupt):
                raise
            world.wrong(f"process {epoch} raised {error!r}")
            raise SimulationFailed(_told(world, _records(disk.kill()))) from error
        world.tell(f"process {epoch} is gone: {fate}")
        world.disk = disk.kill() if fate == "kill" else disk.crash(seed=world.seed * 31 + epoch)
    else:
        disk.cut_power_before(None)
        world.tell(f"process {epoch} ends")
        world.disk = disk.process()
    # Somebody starts it again at once, or after a while.
    down_s = seeded(world.seed, f"downtime {epoch}").choice((1, 1, 300))
    world.elapsed_ms += round(clock.current_time() * 1000) + down_s * 1000


def _syncs(draw: random.Random, *, faults: bool) -> Callable[[], float] | None:
    """How long this process's disk takes: no time, or some, so that there is always somebody who decides while another one's record is on its way; or it stalls."""
    habit = draw.choice(("instant", "instant", "slow", "stalls" if faults else "slow"))
    if habit == "instant":
        return None
    return lambda: 30.0 if habit == "stalls" and draw.random() < 0.01 else draw.choice((0.0, 0.0002, 0.002, 0.05))


class _Killed(BaseException):
    """Stands for SIGKILL."""


def _only(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_only(inner, kinds) for inner in error.exceptions)
    return isinstance(error, kinds)


async def _process(world: World, environment: Environment, epoch: int, faults: bool, killed: bool) -> None:
    draw = seeded(world.seed, f"users {epoch}")
    resident_sessions = seeded(world.seed, "resident").choice((0, 0, 1, 2))
    tools = (*own_tools(world), *(watched_tool(world, each) for each in world.tools))
    model = Chaos(seeded(world.seed, f"model {epoch}"), tools=[each.name for each in tools], faults=faults)
    with trio.fail_after(PATIENCE_S):
        async with open_runtime(
            ROOT,
            model=model,
            tools=tools,
            limits=_limits(resident_sessions),
            budget=FREE,
            environment=environment,
            disk=world.disk,
        ) as runtime:
            world.runtime = runtime
            async with client(world, runtime, epoch):
                async with trio.open_nursery() as nursery:
                    if killed:
                        nursery.start_soon(_kill_after, draw.choice((0.05, 0.5, 3.0, 20.0)))
                    for number in range(draw.randrange(1, 4)):
                        lot = seeded(world.seed, f"user {epoch} {number}")
                        nursery.start_soon(use, world, runtime, f"s{number}", lot, faults, bool(resident_sessions))
                if killed:
                    raise _Killed
                if not faults:
                    await _come_to_rest(world, runtime)
    for request in model.requests:
        if problems := history.problems(request.messages):
            world.wrong(f"I5: a request of session {request.session!r} is invalid: {problems[0]}")
    if model.open_streams:
        world.wrong(f"I21: {model.open_streams} model streams were left open")


async def _kill_after(seconds: float) -> None:
    await trio.sleep(seconds)
    raise _Killed


async def _come_to_rest(world: World, runtime: Runtime) -> None:
    """Faults are off: every session answers, every run ends, every notification arrives (I26)."""
    for info in runtime.sessions():
        if info.phase == "closed":
            continue
        session = await runtime.session(info.id, budget=FREE)
        await trio.sleep(100.0)
        for schedule in session.schedules():
            await session.cancel_schedule(schedule.id)
        await _wait_idle(session)
        result = await session.ask("are you still there?")
        if result.error is not None:
            world.wrong(f"I26: session {info.id!r} failed with faults off: {result.error}")
        await _wait_idle(session)


async def _wait_idle(session: Session) -> None:
    """Until there is nothing left that the session waits for."""
    async for _ in session.events():
        state = session._state
        waits = any(each.wake or each.state.value != "queued" for each in state.notifications.pending.values())
        if state.turn is None and not state.tasks.live and not waits:
            return


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trouper.testing.simulate", description="Simulated runs of the whole runtime."
    )
    parser.add_argument("--seed", type=int, help="run this one, twice, and print its story")
    parser.add_argument("--seeds", type=int, default=100, help="how many to run (default 100)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (default 0)")
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error(f"--seeds is {options.seeds}, and of no run nothing can be said; give 1 or more")
    if options.seed is not None:
        first, second = simulate(options.seed), simulate(options.seed)
        print("\n".join(first.story))
        same = "identical" if first == second else "DIFFERENT"
        print(f"seed {first.seed}: {first.records} records in {first.epochs} processes; the second run is {same}")
        return 0 if first == second else 1
    begun, records = time.monotonic(), 0
    never = set(KINDS)
    for count, seed in enumerate(range(options.start, options.start + options.seeds), 1):
        try:
            result = simulate(seed)
        except BaseException as error:
            print(
                f"{error if isinstance(error, SimulationFailed) else f'seed {seed} raises {error!r}'}", file=sys.stderr
            )
            if not isinstance(error, Exception):
                raise
            return 1
        records += result.records
        for name in result.events:
            never.discard(name)
        if count % 100 == 0:
            print(f"{count} of {options.seeds} seeds, {records} records, {time.monotonic() - begun:.0f} s", flush=True)
    print(f"{options.seeds} seeds hold: {records} records, {time.monotonic() - begun:.0f} s")
    if never:
        print(f"kinds of events that never happened: {', '.join(sorted(never))}")
    return 0
