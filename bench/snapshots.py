"""How long a snapshot holds up everybody else in its process, with many long sessions open: ms for the longest that a task had to wait for its turn.

A task that only gives way stands for all other sessions. Beside it: to write out all states at once, as it would be without slices. And what a snapshot costs in all, when every session has
something new, when one has, and when none has.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable

import trio

from _report import Row, parse_arguments, print_rows
from trouper import Limits, Runtime, Session, open_runtime
from trouper.models import Scripted, reply
from trouper.roster import encode_section

REPEATS = 5
WORDS = "What the weather will be like, nobody knows; but that it rains on Sundays is well known. " * 3


async def longest_wait_ms(work: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """For a task that only gives way while that is done; and how long it takes, in ms."""
    longest = 0.0
    begun = time.perf_counter()
    async with trio.open_nursery() as nursery:

        async def beat() -> None:
            nonlocal longest
            while True:
                before = time.perf_counter()
                await trio.lowlevel.checkpoint()
                longest = max(longest, time.perf_counter() - before)

        nursery.start_soon(beat)
        await trio.lowlevel.checkpoint()
        await work()
        took = time.perf_counter() - begun
        nursery.cancel_scope.cancel()
    return longest * 1000, took * 1000


async def ask(sessions: list[Session]) -> None:
    for session in sessions:
        assert (await session.ask(WORDS)).error is None


async def at_once_ms(runtime: Runtime, sessions: list[Session]) -> float:
    begun = time.perf_counter()
    for session in sessions:
        encode_section(session.state, 1)
    return (time.perf_counter() - begun) * 1000


async def measure(root: str, count: int, turns: int) -> list[Row]:
    model = Scripted([reply(WORDS)], exhausted="repeat")
    limits = Limits(snapshot_every=10_000_000)  # Only when we say so.
    figures: dict[str, list[tuple[float, float]]] = {"all": [], "one": [], "none": []}
    at_once: list[float] = []
    async with open_runtime(root, model=model, durability="write", limits=limits) as runtime:
        sessions = [await runtime.session(f"s{number}") for number in range(count)]
        for _ in range(turns):
            await ask(sessions)
        for _ in range(REPEATS):
            await ask(sessions)
            for name in ("all", "one", "none"):
                figures[name].append(await longest_wait_ms(runtime._ground.snapshots.write))
                if name == "all":
                    at_once.append(await at_once_ms(runtime, sessions))
                    await ask(sessions[:1])
    waits = {name: statistics.median(wait for wait, _ in figures[name]) for name in figures}
    costs = {name: statistics.median(cost for _, cost in figures[name]) for name in figures}
    shape = f"{count} sessions of {2 * (turns + REPEATS)} messages"
    return [
        Row(f"longest wait for others, {shape}", waits["all"], "ms", "written out at once", statistics.median(at_once)),
        Row("  the same, one has something new", waits["one"], "ms", "all have", waits["all"]),
        Row("a snapshot in all, one has something new", costs["one"], "ms", "all have", costs["all"]),
        Row("  the same, none has", costs["none"], "ms", "all have", costs["all"]),
    ]


def main() -> None:
    arguments = parse_arguments(__doc__)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TROUPER_BENCH_DIR")) as root:
        count, turns = (100, 20) if arguments.quick else (500, 50)
        print_rows(trio.run(measure, root, count, turns), as_json=arguments.json)


if __name__ == "__main__":
    main()
