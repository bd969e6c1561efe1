"""What a turn costs, at each level of durability, beside a bare trio loop that moves the same chunks through memory channels.

Text turn of 20 deltas (fresh, and after 100 turns); a 10-step tool turn, per step; 10 parallel tools of 10 ms, time over 10 ms; 1,000 sessions at once
with one tool turn each; from an interrupt to the end of the turn with the work stopped. Medians; the floor is measured in the same run.
"""

from __future__ import annotations

import gc
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from _report import Row, parse_arguments, print_rows
from trouper import Limits, open_runtime, tool
from trouper.journal import Level
from trouper.models.chunks import Done
from trouper.models.scripted import Play, Scripted, call, reply
from trouper.session import Session

DELTAS = 20
STEPS = 10
LEVELS: tuple[Level, ...] = ("memory", "write", "fsync")
TEXT = reply("x" * 200, deltas=DELTAS)
#: One turn of `STEPS` tool steps, as the model tells it.
STEP_TALK = (*(reply(call("note", n=n)) for n in range(STEPS)), reply("done"))
LIMITS = Limits(max_steps=0, loop_warn=0)


@tool
async def note(n: int) -> int:
    """Takes no time."""
    return n


@tool
async def nap(n: int) -> int:
    """Takes 10 ms."""
    await trio.sleep(0.01)
    return n


@tool
async def hang() -> None:
    """Never ends by itself."""
    await trio.sleep_forever()


# --- the floor ---


async def floor_text() -> None:
    """A model task sends deltas, the caller takes each."""
    send, receive = trio.open_memory_channel[str](32)

    async def model() -> None:
        with send:
            for _ in range(DELTAS):
                await send.send("x" * 10)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(model)
        async for _ in receive:
            pass


async def floor_step(record: Callable[[], Awaitable[None]] | None = None) -> None:
    """The same talk: for each reply a model task that sends its chunks, then a tool task that hands its result back.

    `record` is what has to be on the disk: the question, each intent and each outcome, the answer; 2.2 times a step.
    """
    send, receive = trio.open_memory_channel[object](32)

    async def model(play: Play) -> None:
        for chunk in play:
            await send.send(chunk)

    async def run_tool() -> None:
        await send.send(1)

    async with trio.open_nursery() as nursery:
        for play in STEP_TALK:
            if record is not None:
                await record()
            nursery.start_soon(model, play)
            while type(chunk := await receive.receive()) is not Done:
                pass
            assert isinstance(chunk, Done)
            if record is not None:
                await record()
            if chunk.stop_reason == "tool_use":
                nursery.start_soon(run_tool)
                await receive.receive()


async def floor_parallel() -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(trio.sleep, 0.01)


async def floor_interrupt() -> None:
    stopped = trio.Event()

    async def work(scope: trio.CancelScope) -> None:
        try:
            with scope:
                await trio.sleep_forever()
        finally:
            stopped.set()

    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        nursery.start_soon(work, scope)
        await trio.testing.wait_all_tasks_blocked()
        begun = time.perf_counter()
        scope.cancel()
        await stopped.wait()
        _took.append(time.perf_counter() - begun)


async def floor_durable_step(directory: Path, *, in_thread: bool) -> float:
    """The bare trio loop and the disk itself: it takes 300 bytes to the disk as often as a turn of ours does.

    Inline the event loop stands still for as long as the disk likes; in a worker thread, as trio would have it, it never does.
    """
    fd = os.open(directory / "floor", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def write() -> None:
        os.write(fd, b"x" * 300)
        os.fdatasync(fd)

    async def record() -> None:
        if in_thread:
            await trio.to_thread.run_sync(write)
        else:
            write()

    try:
        return await median_of(20, lambda: floor_step(record)) / STEPS
    finally:
        os.close(fd)


_took: list[float] = []


async def median_of(repeats: int, work: Callable[[], Awaitable[object]]) -> float:
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        await work()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


# --- ours ---


@asynccontextmanager
async def opened(
    level: Level, script: Callable[[], Play] | None = None, plays: list[Play] | None = None
) -> AsyncIterator[Session]:
    root = tempfile.mkdtemp(prefix="trouper-bench-", dir=os.environ.get("TROUPER_BENCH_DIR"))
    try:
        model = Scripted(plays or [], exhausted="cycle")
        async with open_runtime(root, model=model, tools=[note, nap, hang], limits=LIMITS, durability=level) as runtime:
            yield await runtime.session("bench")
    finally:
        shutil.rmtree(root, ignore_errors=True)


async def stream(session: Session) -> None:
    deltas = 0
    async with session.turn("go") as turn:
        async for event in turn:
            deltas += type(event).__name__ == "TextDelta"
    assert turn.result is not None and turn.result.error is None, turn.result


async def text_turn(level: Level, repeats: int) -> tuple[float, float]:
    """Fresh sessions' first turns, and turns after 100 others."""
    async with opened(level, plays=[TEXT]) as session:
        await stream(session)
        first = await median_of(min(repeats, 30), lambda: stream(session))
        while session.statistics().turns < 100:
            await stream(session)
        return first, await median_of(min(repeats, 50), lambda: stream(session))


async def tool_step(level: Level, repeats: int) -> float:
    async with opened(level, plays=[*STEP_TALK]) as session:
        await session.ask("go")
        return await median_of(repeats, lambda: session.ask("go")) / STEPS


async def parallel(level: Level, repeats: int) -> float:
    plays = [reply(*(call("nap", n=n) for n in range(10))), reply("done")]
    async with opened(level, plays=plays) as session:
        await session.ask("go")
        return await median_of(repeats, lambda: session.ask("go")) - 0.01


async def many(level: Level, count: int) -> tuple[float, float]:
    """Turns per second, and KiB a session, with all sessions alive at once."""
    plays = [reply(call("note", n=1)), reply("done")]
    root = tempfile.mkdtemp(prefix="trouper-bench-")
    rules = [(lambda request: request.step == 1, plays[0]), (lambda request: request.step > 1, plays[1])]
    try:
        async with open_runtime(root, model=Scripted(rules), tools=[note], limits=LIMITS, durability=level) as runtime:
            await (await runtime.session("warm")).ask("go")
            gc.collect()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            sessions = [await runtime.session(f"s{n}") for n in range(count)]
            begun = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for session in sessions:
                    nursery.start_soon(session.ask, "go")
            took = time.perf_counter() - begun
            after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            assert all(session.last.stop_reason == "end_turn" for session in sessions)
            return count / took, (after - before) / count
    finally:
        shutil.rmtree(root, ignore_errors=True)


async def interrupts(level: Level, repeats: int) -> list[float]:
    """From `interrupt()` to its return: recorded, and the tool has stopped."""
    times: list[float] = []
    async with opened(level, plays=[reply(call("hang"))]) as session:
        for _ in range(repeats):
            async with session.turn("go") as turn:
                async for event in turn:
                    if type(event).__name__ == "CallStarted":
                        await trio.lowlevel.checkpoint()
                        begun = time.perf_counter()
                        await session.interrupt("enough")
                        times.append(time.perf_counter() - begun)
            assert turn.result is not None and turn.result.stop_reason == "interrupt"
    return sorted(times)


async def main(quick: bool, as_json: bool) -> None:
    repeats = 30 if quick else 200
    us = 1e6
    text_floor = await median_of(repeats, floor_text) * us
    step_floor = await median_of(repeats, floor_step) * us / STEPS
    parallel_floor = (await median_of(max(10, repeats // 5), floor_parallel) - 0.01) * us
    for _ in range(repeats):
        await floor_interrupt()
    interrupt_floor = statistics.median(_took) * us
    directory = Path(tempfile.mkdtemp(prefix="trouper-bench-"))
    rows: list[Row] = []
    for level in LEVELS:
        bare = "bare trio"
        first, hundredth = await text_turn(level, repeats)
        rows.append(Row(f"text turn, 20 deltas [{level}]", first * us, "us", bare, text_floor))
        rows.append(Row(f"text turn after 100 [{level}]", hundredth * us, "us", "the first turns", first * us))
        step = await tool_step(level, max(10, repeats // 5)) * us
        if level == "fsync":
            # Right beside it: disks have their moods.
            inline, in_thread = [await floor_durable_step(directory, in_thread=each) * us for each in (False, True)]
            rows.append(Row(f"tool step [{level}]", step, "us", "bare trio + fdatasync", inline))
            rows.append(Row(f"tool step [{level}]", step, "us", "the same, in a worker thread", in_thread))
        else:
            rows.append(Row(f"tool step [{level}]", step, "us", bare, step_floor))
        rows.append(
            Row(
                f"10 parallel tools, over 10 ms [{level}]",
                await parallel(level, max(10, repeats // 5)) * us,
                "us",
                bare,
                parallel_floor,
            )
        )
        rate, memory = await many(level, 200 if quick else 1000)
        rows.append(
            Row(f"sessions at once, turns [{level}]", rate, "1/s", "the goal", 1500.0 if level == "fsync" else 2000.0)
        )
        if level == "memory":
            rows.append(Row(f"memory a session [{level}]", memory, "KiB", "the goal", 25.0))
        times = await interrupts(level, repeats)
        rows.append(Row(f"interrupt, median [{level}]", statistics.median(times) * us, "us", bare, interrupt_floor))
        rows.append(Row(f"interrupt, p99 [{level}]", times[int(len(times) * 0.99)] * us, "us", "the goal", 2000.0))
    shutil.rmtree(directory)
    print_rows(rows, as_json=as_json)


if __name__ == "__main__":
    import trio.testing

    arguments = parse_arguments(__doc__)
    trio.run(main, arguments.quick, arguments.json)
