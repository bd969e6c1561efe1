"""What sessions leave behind in memory that were opened, used and closed, or just let go of, in one runtime: KiB for each.

Each has three turns and is closed, or not, and nobody holds its handle. What the runtime keeps of all sessions together has a bound: the ids of the last records, and the states of those that
were closed since the last snapshot. So many sessions come first that the bound is reached, and what is counted from there on begins and ends at the same distance from a snapshot. Beside it: the same
sessions left open, and held; and what it takes to open one again, against opening a new one.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import trio

from _report import Row, parse_arguments, print_rows
from trouper import Limits, Runtime, open_runtime

TURNS = 3
#: As for those of an earlier process: see `idle.py`.
GOAL_KIB = 2.0
#: So many sessions make the records of one snapshot: each is opened and closed, and every turn has two.
CYCLE = Limits().snapshot_every // (2 + 2 * TURNS)
#: The same for those that nobody closes.
REST_CYCLE = Limits().snapshot_every // (1 + 2 * TURNS)


def resident_kib() -> int:
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


async def serve(runtime: Runtime, number: int, *, close: bool = True) -> float:
    """One session from its beginning to its end; how long it took to open it, in us."""
    begun = time.perf_counter()
    session = await runtime.session(f"customer-{number:06d}")
    opened = (time.perf_counter() - begun) * 1_000_000
    for turn in range(TURNS):
        assert (await session.ask(f"Where is order {turn}?")).error is None
    if close:
        await session.close()
    return opened


async def measure(root: str, warm_up: int, count: int, close: bool = True) -> tuple[float, float, float]:
    """KiB for each that is closed, or let go of; us to open a new one, and to open one of them again."""
    async with open_runtime(root, durability="write") as runtime:
        for number in range(warm_up):
            await serve(runtime, number, close=close)
        before = resident_kib()
        opened = [await serve(runtime, number, close=close) for number in range(warm_up, warm_up + count)]
        kib = (resident_kib() - before) / count
        again: list[float] = []
        for number in range(0, warm_up + count, 10):
            begun = time.perf_counter()
            session = await runtime.session(f"customer-{number:06d}")
            again.append((time.perf_counter() - begun) * 1_000_000)
            assert session.state.turns == TURNS and len(session.history) == 2 * TURNS
        assert runtime.statistics().known_sessions == warm_up + count
    return kib, statistics.median(opened), statistics.median(again)


async def measure_rest(root: str, warm_up: int, count: int) -> tuple[float, float, float]:
    """The same for sessions that nobody closes."""
    return await measure(root, warm_up, count, close=False)


async def measure_open(root: str, warm_up: int, count: int) -> tuple[float, float, float]:
    """KiB for each that stays open, since somebody holds it."""
    async with open_runtime(root, durability="write") as runtime:
        for number in range(warm_up):
            await serve(runtime, number)
        before = resident_kib()
        held = []
        for number in range(warm_up, warm_up + count):
            await serve(runtime, number, close=False)
            held.append(await runtime.session(f"customer-{number:06d}"))
        return (resident_kib() - before) / count, 0.0, 0.0


def measured(how: str, warm_up: int, count: int) -> tuple[float, float, float]:
    """In a process of its own, whose memory holds nothing else."""
    root = tempfile.mkdtemp(prefix="trouper-bench-", dir=os.environ.get("TROUPER_BENCH_DIR"))
    try:
        command = [sys.executable, __file__, how, root, str(warm_up), str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    kib, opened_us, again_us = json.loads(done.stdout)
    return kib, opened_us, again_us


def main() -> None:
    ways = {"--closed": measure, "--let-go": measure_rest, "--open": measure_open}
    if len(sys.argv) > 1 and sys.argv[1] in ways:
        print(json.dumps(trio.run(ways[sys.argv[1]], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
        return
    arguments = parse_arguments(__doc__)
    warm_up, count = (3_500, CYCLE) if arguments.quick else (6_000, 2 * CYCLE)
    kib, opened_us, again_us = measured("--closed", warm_up, count)
    rested = REST_CYCLE if arguments.quick else 2 * REST_CYCLE
    # It takes more of them until the memory of the process no longer grows by other things: they have fewer records each.
    rest_kib, rest_opened_us, back_us = measured("--let-go", 6_000, rested)
    open_kib, _, _ = measured("--open", 500, 1_000)
    rows = [
        Row(f"memory a closed session, of {count:,}", kib, "KiB", "the goal", GOAL_KIB),
        Row("  the same", kib, "KiB", "while it is open", open_kib),
        Row("open a closed session to look at it", again_us, "us", "open a new one", opened_us),
        Row(f"memory a session that was let go of, of {rested:,}", rest_kib, "KiB", "the goal", GOAL_KIB),
        Row("  the same", rest_kib, "KiB", "while it is held", open_kib),
        Row("bring back one that was put to rest", back_us, "us", "open a new one", rest_opened_us),
    ]
    print_rows(rows, as_json=arguments.json)


if __name__ == "__main__":
    main()
