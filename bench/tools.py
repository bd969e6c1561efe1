"""What a trivial tool call costs on its way through schema, policy, journal (level memory) and back, beside calling the function.

Goals: a whole tool step within 3x of a bare trio loop that moves the same chunks, and, with `--rival`, within 1/15 of what the fastest rival takes for one in the same run; the parts, each
on its own. The rival has an environment of its own and streams, as in `bench/peers`; its sessions are in memory, as the journal is here. The first time, that environment has to be made.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from _report import Row, parse_arguments, print_rows
from trouper.tools.arguments import parse_arguments as parse_buffer
from trouper.tools.context import ToolContext
from trouper.tools.output import shape_output
from trouper.tools.policy import allow, decide_policy
from trouper.tools.registry import Registry
from turns import STEP_TALK, STEPS, Work, by_turns, floor_step, note, opened

US = 1e6
ROUNDS = 9
RIVAL = "openai-agents"
RIVAL_SHARE = 15


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


class Rival:
    """The fastest rival, in a process of its own each time."""

    def __init__(self) -> None:
        sys.path.insert(0, str(Path(__file__).parent / "peers"))
        from environments import ENVIRONMENTS  # type: ignore[import-not-found]
        from run import drive  # type: ignore[import-not-found]

        ENVIRONMENTS[RIVAL].make()
        self._drive = drive

    def step(self, quick: bool) -> float:
        """What it takes for a tool step, in microseconds."""
        reports = list(self._drive(RIVAL, ["tool_step"], quick))
        [took] = [report["value"] for report in reports if report.get("work") == "tool_step" and "value" in report]
        return float(took) * 1e3


async def main(quick: bool, as_json: bool, rival: Rival | None) -> None:
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
    rivals: list[float] = []
    async with opened("memory", plays=[*STEP_TALK]) as runtime:
        session = await runtime.session("bench")
        await session.ask("go")

        async def stream() -> None:
            async with session.turn("go") as turn:
                async for _ in turn:
                    pass

        works: tuple[Work, ...] = (floor_step, lambda: session.ask("go"), stream)
        rounds: list[list[float]] = []
        for _ in range(ROUNDS):
            rounds.append(await by_turns(max(2, repeats // ROUNDS), *works))
            if rival is not None:
                rivals.append(rival.step(quick))
    floor, *steps = [statistics.median(took) * US / STEPS for took in zip(*rounds, strict=True)]
    for way, step in zip(("", ", each event seen"), steps, strict=True):
        name = f"a whole tool step{way} [memory]"
        rows.append(Row(name, step, "us", "bare trio", floor))
        if rivals:
            limit = statistics.median(rivals) / RIVAL_SHARE
            rows.append(Row(name, step, "us", f"1/{RIVAL_SHARE} of {RIVAL}", limit))
    print_rows(rows, as_json=as_json)


def add_rival(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rival", action="store_true", help=f"beside {RIVAL}; needs a package index the first time")


if __name__ == "__main__":
    arguments = parse_arguments(__doc__, add_rival)
    trio.run(main, arguments.quick, arguments.json, Rival() if arguments.rival else None)
