"""What a trivial tool call costs on its way through schema, policy, journal (level memory) and back, beside calling the function.

Goals: a whole tool step within 3x of a bare trio loop that moves the same chunks; the parts, each on its own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable

import trio

from _report import Row, parse_arguments, print_rows
from trouper.tools.arguments import parse_arguments as parse_buffer
from trouper.tools.context import ToolContext
from trouper.tools.output import shape_output
from trouper.tools.policy import allow, decide_policy
from trouper.tools.registry import Registry
from turns import STEP_TALK, STEPS, floor_step, median_of, note, opened

US = 1e6
ROUNDS = 9


def median_plain(repeats: int, work: Callable[[], object]) -> float:
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        for _ in range(100):
            work()
        times.append((time.perf_counter() - begun) / 100)
    return statistics.median(times)


async def median_awaited(repeats: int, work: Callable[[], Awaitable[object]]) -> float:
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        for _ in range(100):
            await work()
        times.append((time.perf_counter() - begun) / 100)
    return statistics.median(times)


async def main(quick: bool, as_json: bool) -> None:
    repeats = 20 if quick else 200
    registry = Registry([note])
    context = ToolContext()
    rules = [allow("*")]
    prepared = note.prepare({"n": 1})
    result = await note.run(prepared.arguments, context)
    plain = await median_awaited(repeats, lambda: note(n=1)) * US
    rows = [
        Row(
            "parse 8 characters of JSON",
            median_plain(repeats, lambda: parse_buffer('{"n": 1}')) * US,
            "us",
            "the function itself",
            plain,
        ),
        Row(
            "prepare: look up, validate",
            median_plain(repeats, lambda: registry.get("note").prepare({"n": 1})) * US,
            "us",
            "the function itself",
            plain,
        ),  # type: ignore[union-attr]
        Row(
            "policy: one rule",
            median_plain(repeats, lambda: decide_policy(note, prepared.arguments, rules)) * US,
            "us",
            "the function itself",
            plain,
        ),
        Row(
            "run: structure, call, result",
            await median_awaited(repeats, lambda: note.run(prepared.arguments, context)) * US,
            "us",
            "the function itself",
            plain,
        ),
        Row(
            "shape the output",
            median_plain(repeats, lambda: shape_output(result)) * US,
            "us",
            "the function itself",
            plain,
        ),
    ]
    floors, steps = [], []
    async with opened("memory", plays=[*STEP_TALK]) as session:
        await session.ask("go")
        # By turns: a moment in which the machine is slow is one for both.
        for _ in range(ROUNDS):
            floors.append(await median_of(max(2, repeats // ROUNDS), floor_step) * US / STEPS)
            steps.append(await median_of(max(2, repeats // ROUNDS), lambda: session.ask("go")) * US / STEPS)
    rows.append(
        Row("a whole tool step [memory]", statistics.median(steps), "us", "bare trio", statistics.median(floors))
    )
    print_rows(rows, as_json=as_json)


if __name__ == "__main__":
    arguments = parse_arguments(__doc__)
    trio.run(main, arguments.quick, arguments.json)
