"""Calls that take 10 s under an inline budget of 300 ms: when the model gets its answer, and how fast a cancel reaches a run.

1,000 calls in 100 sessions, 10 in each session's one turn, all alive at once (100 calls in `--quick`). The turns begin evenly spread over 5 s (0.5 s), as users do; and, for
the worst case, all at the same instant, where one core has to record every spill at once. Late: from the tool's start to the model's next request, less
the 300 ms. Cancel: from `session.cancel(task)` to `Cancelled` in the tool.

What is there before the sessions open is kept out of the garbage collector's sight, as the guide to embedding advises those who serve many. It still looks at all that
is alive every now and then, and everybody waits meanwhile: the longest such pause is printed.
"""

from __future__ import annotations

import gc
import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence

import trio

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


def answer(request: ModelRequest) -> Play:
    if request.messages[-1].role == "tool":
        answered[request.session] = time.perf_counter()
        return DONE_PLAY
    return CALLS_PLAY if request.messages[-1].kind == "normal" else DONE_PLAY


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest rank: the smallest of them that at least this share does not exceed."""
    return sorted(values)[math.ceil(len(values) * share) - 1]


class Pauses:
    """How long the garbage collector stopped everybody."""

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self._began = 0.0

    def __call__(self, phase: str, _: object) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.longest_ms = max(self.longest_ms, (time.perf_counter() - self._began) * 1_000)


async def measure(level: Level, sessions: int, spread_s: float) -> tuple[list[float], list[float]]:
    """Lateness of every answer, and the time of every cancel, in ms."""
    started.clear()
    answered.clear()
    cancelled.clear()
    limits = Limits(runs_per_session=CALLS, runs_per_runtime=sessions * CALLS, parallel_calls=CALLS)
    root = tempfile.mkdtemp(prefix="trouper-bench-")
    try:
        async with open_runtime(
            root,
            model=Scripted([answer] * (sessions * 50)),
            tools=[long_job],
            limits=limits,
            budget=Budget(inline_s=BUDGET_S),
            durability=level,
        ) as runtime:
            handles = [await runtime.session(f"s{number}") for number in range(sessions)]
            gc.collect()
            gc.freeze()

            async def talk(number: int, session: Session) -> None:
                await trio.sleep(spread_s * number / sessions)
                await session.ask("go")

            async with trio.open_nursery() as nursery:
                for number, session in enumerate(handles):
                    nursery.start_soon(talk, number, session)
            late = [(answered[session] - begun - BUDGET_S) * 1_000 for (session, _), begun in started.items()]
            took: list[float] = []
            for session in handles:
                for task in session.tasks(state="running").tasks[: 200 // sessions or 1]:
                    begun = time.perf_counter()
                    await session.cancel(task.id)
                    key = f"{session.id}/{task.about.origin_call}"
                    while key not in cancelled:
                        await trio.lowlevel.checkpoint()
                    took.append((cancelled[key] - begun) * 1_000)
            return late, took
    finally:
        shutil.rmtree(root, ignore_errors=True)


async def main(quick: bool, as_json: bool) -> None:
    sessions = 10 if quick else 100
    rows: list[Row] = []
    for level in ("memory", "fsync"):
        pauses = Pauses()
        gc.callbacks.append(pauses)
        late, took = await measure(level, sessions, spread_s=0.5 if quick else 5.0)
        gc.callbacks.remove(pauses)
        assert len(late) == sessions * CALLS
        name = f"{len(late)} calls, {sessions} sessions"
        rows.append(
            Row(f"answer after 300 ms, median [{level}] {name}", statistics.median(late), "ms", "limit", LATE_MS)
        )
        rows.append(Row(f"answer after 300 ms, p99 [{level}] {name}", percentile(late, 0.99), "ms", "limit", LATE_MS))
        rows.append(
            Row(f"cancel of a run, median of {len(took)} [{level}]", statistics.median(took), "ms", "limit", CANCEL_MS)
        )
        rows.append(
            Row(f"cancel of a run, p99 of {len(took)} [{level}]", percentile(took, 0.99), "ms", "limit", CANCEL_MS)
        )
        rows.append(Row(f"longest pause for garbage meanwhile [{level}]", pauses.longest_ms, "ms", "limit", LATE_MS))
        late, _ = await measure(level, sessions, spread_s=0.0)
        rows.append(Row(f"the same, all at one instant, p99 [{level}]", percentile(late, 0.99), "ms", "limit", LATE_MS))
    print_rows(rows, as_json=as_json)


if __name__ == "__main__":
    arguments = parse_arguments(__doc__)
    trio.run(main, arguments.quick, arguments.json)
