"""Calls that take 10 s under an inline budget of 300 ms: when the model gets its answer, and how fast a cancel reaches a run.

1,000 calls in 100 sessions, 10 in each session's one turn, all alive at once (100 calls in `--quick`). The turns begin evenly spread over 5 s (0.5 s), as users do; and, for
the worst case, all at the same instant, where one core has to record every spill at once. The same number of calls is also made in step: each session has ten turns of one
call, one after the other, and all begin at the same instant. Late: from the tool's start to the model's next request, less the 300 ms. Cancel: from `session.cancel(task)` to `Cancelled` in the tool.

The garbage collector is on. Now and then it looks at all that is alive, and everybody waits meanwhile: its longest pause is printed. What is there before the first turn is
kept out of its sight, and the rest is looked at as a whole ten times less often, as the guide to embedding advises those who serve many; the same without that advice is printed too.

How busy the machine was with other things shows in a process that has nothing to do with Trouper: at the same time it waits for as many timers, and after each computes for as long as a
session's answer takes, and syncs a file if the journal does.
"""

from __future__ import annotations

import gc
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio
from attrs import frozen

from _report import Row, parse_arguments, print_rows
from trouper import Budget, Limits, ToolContext, open_runtime, tool
from trouper.journal import Level
from trouper.models.protocol import ModelRequest
from trouper.models.scripted import Play, Scripted, call, reply
from trouper.session import Session

BUDGET_S = 0.3
CALLS = 10
LATE_MS = 25.0
CANCEL_MS = 20.0

started: dict[tuple[str, str], float] = {}
answered: dict[str, float] = {}
cancelled: dict[str, float] = {}


@tool(background=True)
async def long_job(context: ToolContext, n: int) -> int:
    """Takes 10 s."""
    started[context.session_id, context.call_id] = time.perf_counter()
    try:
        await trio.sleep(10.0)
    except trio.Cancelled:
        cancelled[f"{context.session_id}/{context.call_id}"] = time.perf_counter()
        raise
    return n


CALLS_PLAY = reply(*(call("long_job", n=n) for n in range(CALLS)))
DONE_PLAY = reply("They run on.")


ONE_CALL_PLAY = reply(call("long_job", n=1))


def answer(request: ModelRequest) -> Play:
    if request.messages[-1].role == "tool":
        answered[request.session] = time.perf_counter()
        return DONE_PLAY
    return CALLS_PLAY if request.messages[-1].kind == "normal" else DONE_PLAY


def answer_in_step(request: ModelRequest) -> Play:
    last = request.messages[-1]
    if last.role == "tool":
        answered[f"{request.session}/{last.answers[0].call_id}"] = time.perf_counter()
        return DONE_PLAY
    return ONE_CALL_PLAY if last.kind == "normal" else DONE_PLAY


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest rank: the smallest of them that at least this share does not exceed."""
    return sorted(values)[math.ceil(len(values) * share) - 1]


#: Timers 50 ms apart, each with 3 ms of computing and perhaps a sync when it fires: how much later than these 3 ms it was done, in ms.
_BYSTANDER = """
import os, sys, tempfile, time
late = []
file = tempfile.TemporaryFile(buffering=0)
for _ in range(int(sys.argv[1])):
    begun = time.perf_counter()
    time.sleep(0.047)
    computing = time.thread_time()
    while time.thread_time() < computing + 0.003:
        pass
    if sys.argv[2] == "fsync":
        file.write(b"." * 4096)
        os.fdatasync(file.fileno())
    late.append((time.perf_counter() - begun - 0.05) * 1000)
print(*late)
"""


class Bystander:
    """A process beside this one. What it suffers is the machine's doing."""

    def __init__(self, timers: int, level: Level) -> None:
        command = [sys.executable, "-c", _BYSTANDER, str(timers), level]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def late(self) -> list[float]:
        said, _ = self._process.communicate()
        return [float(each) for each in said.split()]


class Pauses:
    """How long the garbage collector stopped everybody, at most, while calls were answered."""

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self._began = 0.0

    def __call__(self, phase: str, _: object) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.longest_ms = max(self.longest_ms, (time.perf_counter() - self._began) * 1_000)

    def __enter__(self) -> Pauses:
        gc.callbacks.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self)


@frozen
class Measured:
    """In ms: how late every answer was, how long every cancel took, the longest pause for garbage."""

    late: list[float]
    cancels: list[float]
    pause: float


DEFAULT_THRESHOLD = gc.get_threshold()


def tune_collector(advised: bool) -> None:
    """What the guide to embedding advises, once all is there."""
    gc.collect()
    if advised:
        gc.freeze()
        gc.set_threshold(700, 10, 100)


def leave_collector_alone() -> None:
    gc.unfreeze()
    gc.set_threshold(*DEFAULT_THRESHOLD)


@asynccontextmanager
async def stage(level: Level, sessions: int, model: Scripted, advised: bool) -> AsyncIterator[list[Session]]:
    """So many sessions, before the first turn of any."""
    started.clear()
    answered.clear()
    cancelled.clear()
    root = tempfile.mkdtemp(prefix="trouper-bench-")
    try:
        async with open_runtime(
            root,
            model=model,
            tools=[long_job],
            limits=Limits(runs_per_session=CALLS, runs_per_runtime=sessions * CALLS, parallel_calls=CALLS),
            budget=Budget(inline_s=BUDGET_S),
            durability=level,
        ) as runtime:
            handles = [await runtime.session(f"s{number}") for number in range(sessions)]
            tune_collector(advised)
            yield handles
    finally:
        leave_collector_alone()
        shutil.rmtree(root, ignore_errors=True)


async def measure(level: Level, sessions: int, spread_s: float, *, advised: bool = True) -> Measured:
    async def talk(number: int, session: Session) -> None:
        await trio.sleep(spread_s * number / sessions)
        await session.ask("go")

    async with stage(level, sessions, Scripted([answer] * (sessions * 50)), advised) as handles:
        with Pauses() as pauses:
            async with trio.open_nursery() as nursery:
                for number, session in enumerate(handles):
                    nursery.start_soon(talk, number, session)
        late = [(answered[session] - begun - BUDGET_S) * 1_000 for (session, _), begun in started.items()]
        assert len(late) == sessions * CALLS
        cancels: list[float] = []
        for session in handles:
            for task in session.tasks(state="running").tasks[: 200 // sessions or 1]:
                begun = time.perf_counter()
                await session.cancel(task.id)
                key = f"{session.id}/{task.about.origin_call}"
                while key not in cancelled:
                    await trio.lowlevel.checkpoint()
                cancels.append((cancelled[key] - begun) * 1_000)
        return Measured(late, cancels, pauses.longest_ms)


async def measure_in_step(level: Level, sessions: int, *, advised: bool = True) -> Measured:
    async def talk(session: Session) -> None:
        for _ in range(CALLS):
            await session.ask("go")

    async with stage(level, sessions, Scripted([answer_in_step], exhausted="repeat"), advised) as handles:
        with Pauses() as pauses:
            async with trio.open_nursery() as nursery:
                for session in handles:
                    nursery.start_soon(talk, session)
        late = [(answered[f"{at}/{call_id}"] - begun - BUDGET_S) * 1_000 for (at, call_id), begun in started.items()]
        assert len(late) == sessions * CALLS
        return Measured(late, [], pauses.longest_ms)


def against(limit: float, name: str, value: float) -> Row:
    return Row(name, value, "ms", "limit", limit)


async def main(quick: bool, as_json: bool) -> None:
    sessions, spread_s = (10, 0.5) if quick else (100, 5.0)
    rows: list[Row] = []
    levels: tuple[Level, ...] = ("memory", "fsync")
    for level in levels:
        bystander = Bystander(sessions, level)
        found = await measure(level, sessions, spread_s)
        calls = f"[{level}] {len(found.late)} calls, {sessions} sessions"
        for name, share in (("median", 0.5), ("p90", 0.9), ("p99", 0.99), ("worst", 1.0)):
            rows.append(against(LATE_MS, f"answer after 300 ms, {name} {calls}", percentile(found.late, share)))
        rows.append(against(LATE_MS, f"  longest pause for garbage meanwhile [{level}]", found.pause))
        others = percentile(bystander.late(), 0.99)
        rows.append(against(LATE_MS, f"  timers of a bare process beside it, p99 late [{level}]", others))
        for name, share in (("median", 0.5), ("p99", 0.99)):
            label = f"cancel of a run, {name} of {len(found.cancels)} [{level}]"
            rows.append(against(CANCEL_MS, label, percentile(found.cancels, share)))
        alone = await measure(level, sessions, spread_s, advised=False)
        rows.append(against(LATE_MS, f"answer, collector left alone, p99 [{level}]", percentile(alone.late, 0.99)))
        rows.append(against(LATE_MS, f"  longest pause for garbage meanwhile, left alone [{level}]", alone.pause))
        in_step = await measure_in_step(level, sessions)
        for name, share in (("median", 0.5), ("p99", 0.99)):
            label = f"answer, all in step, ten turns of one call each, {name} [{level}]"
            rows.append(against(LATE_MS, label, percentile(in_step.late, share)))
        rows.append(against(LATE_MS, f"  longest pause for garbage meanwhile, in step [{level}]", in_step.pause))
        at_once = await measure(level, sessions, spread_s=0.0)
        rows.append(against(LATE_MS, f"answer, all at one instant, p99 [{level}]", percentile(at_once.late, 0.99)))
    print_rows(rows, as_json=as_json)


if __name__ == "__main__":
    arguments = parse_arguments(__doc__)
    trio.run(main, arguments.quick, arguments.json)
