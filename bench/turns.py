"""What a turn costs, at each level of durability, beside a bare trio loop that moves the same chunks through memory channels.

Text turn of 20 deltas (fresh, and after 100 turns); a 10-step tool turn, per step; 10 parallel tools of 10 ms, time over 10 ms; 1,000 sessions at once
with one tool turn each; from an interrupt to the end of the turn with the work stopped. Medians; what is compared takes turns, so that a slow
moment of the machine is everybody's.
"""

from __future__ import annotations

import gc
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TypeAlias

import trio

from _report import Row, parse_arguments, print_rows
from trouper import Limits, Runtime, open_runtime, tool
from trouper.journal import Disk, Level
from trouper.journal.disk import OsDisk, OsFile
from trouper.models.chunks import Done
from trouper.models.scripted import Play, Scripted, call, reply
from trouper.session import Session

DELTAS = 20
STEPS = 10
LEVELS: tuple[Level, ...] = ("memory", "write", "fsync")
TEXT = reply("x" * 200, deltas=DELTAS)
#: One turn of `STEPS` tool steps, as the model tells it.
STEP_TALK = (*(reply(call("note", n=n)) for n in range(STEPS)), reply("done"))
CHANGE_TALK = (*(reply(call("change", n=n)) for n in range(STEPS)), reply("done"))
LIMITS = Limits(max_steps=0, loop_warn=0)
#: With this on top, and what a sleep comes late by, a sync takes about 0.3 ms: as on the disk whose floor, 0.76 ms a step, the goals for durable steps were set by.
SLOWER_S = 0.0001

Work: TypeAlias = Callable[[], Awaitable[object]]


@tool(readonly=True, open_world=False)
async def note(n: int) -> int:
    """Takes no time, and changes nothing."""
    return n


@tool
async def change(n: int) -> int:
    """The same, but that it does not say so: it may change something."""
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


class SlowFile(OsFile):
    """A file whose syncs take longer by SLOWER_S."""

    def sync(self) -> None:
        super().sync()
        time.sleep(SLOWER_S)


class SlowDisk(OsDisk):
    """The real disk, but slow to sync what is appended."""

    def create(self, path: str) -> OsFile:
        return _slow(super().create(path))

    def open_append(self, path: str) -> OsFile:
        return _slow(super().open_append(path))


def _slow(file: OsFile) -> SlowFile:
    return SlowFile(file.fileno())


@contextmanager
def floor_disk(slower_s: float = 0.0) -> Iterator[tuple[Work, Work]]:
    """The bare trio loop and the disk itself: it takes 300 bytes to the disk as often as a turn of ours does.

    Inline the event loop stands still for as long as the disk likes; in a worker thread, as trio would have it, it never does.
    """
    with tempfile.TemporaryFile(buffering=0, dir=os.environ.get("TROUPER_BENCH_DIR")) as file:

        def write() -> None:
            file.write(b"x" * 300)
            os.fdatasync(file.fileno())
            if slower_s:
                time.sleep(slower_s)

        async def inline() -> None:
            write()

        async def in_thread() -> None:
            await trio.to_thread.run_sync(write)

        yield lambda: floor_step(inline), lambda: floor_step(in_thread)


_took: list[float] = []


async def by_turns(repeats: int, *works: Work) -> list[float]:
    """The median time of each."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for work, took in zip(works, times, strict=True):
            begun = time.perf_counter()
            await work()
            took.append(time.perf_counter() - begun)
    return [statistics.median(took) for took in times]


# --- ours ---


@asynccontextmanager
async def opened(level: Level, plays: list[Play], disk: Disk | None = None) -> AsyncIterator[Runtime]:
    root = tempfile.mkdtemp(prefix="trouper-bench-", dir=os.environ.get("TROUPER_BENCH_DIR"))
    try:
        model = Scripted(plays, exhausted="cycle")
        async with open_runtime(
            root, model=model, tools=[note, change, nap, hang], limits=LIMITS, durability=level, disk=disk
        ) as runtime:
            yield runtime
    finally:
        shutil.rmtree(root, ignore_errors=True)


async def stream(session: Session) -> None:
    deltas = 0
    async with session.turn("go") as turn:
        async for event in turn:
            deltas += type(event).__name__ == "TextDelta"
    assert turn.result is not None and turn.result.error is None, turn.result


async def text_turn(level: Level, repeats: int) -> list[float]:
    """Of a young session, of one that has had 100 turns, and of the floor."""
    async with opened(level, plays=[TEXT]) as runtime:
        young, old = await runtime.session("young"), await runtime.session("old")
        await stream(young)
        while old.statistics().turns < 100:
            await stream(old)
        return await by_turns(min(repeats, 30), lambda: stream(young), lambda: stream(old), floor_text)


async def tool_step(
    level: Level, repeats: int, *floors: Work, talk: Sequence[Play] = STEP_TALK, disk: Disk | None = None
) -> list[float]:
    """Per step, ours and those of the floors."""
    async with opened(level, plays=[*talk], disk=disk) as runtime:
        session = await runtime.session("bench")
        await session.ask("go")
        return [turn / STEPS for turn in await by_turns(repeats, lambda: session.ask("go"), *floors)]


async def durable_steps(repeats: int) -> list[Row]:
    """Of a tool that changes nothing, and says so; and of one that may, whose intent has to be on the disk first. The floor syncs twice a step.

    The faster the disk, the more of the step is ours: so both are measured as well on a disk that is as slow as the one that the goals were set by.
    """
    rows: list[Row] = []
    for where, disk in (("", None), (", slow disk", SlowDisk())):
        for kind, talk in (("read-only", STEP_TALK), ("with effects", CHANGE_TALK)):
            with floor_disk(0.0 if disk is None else SLOWER_S) as floors:
                step, inline, in_thread = await tool_step("fsync", repeats, *floors, talk=talk, disk=disk)
            name = f"tool step, {kind}{where} [fsync]"
            rows.append(Row(name, step * 1e6, "us", "bare trio + fdatasync", inline * 1e6))
            rows.append(Row(name, step * 1e6, "us", "the same, in a worker thread", in_thread * 1e6))
    return rows


async def parallel(level: Level, repeats: int) -> list[float]:
    """The time over 10 ms, ours and that of the floor."""
    plays = [reply(*(call("nap", n=n) for n in range(10))), reply("done")]
    async with opened(level, plays=plays) as runtime:
        session = await runtime.session("bench")
        await session.ask("go")
        return [turn - 0.01 for turn in await by_turns(repeats, lambda: session.ask("go"), floor_parallel)]


async def many(level: Level, count: int) -> tuple[float, float]:
    """Turns per second, and KiB a session, with all sessions alive at once."""
    plays = [reply(call("change", n=1)), reply("done")]
    root = tempfile.mkdtemp(prefix="trouper-bench-")
    rules = [(lambda request: request.step == 1, plays[0]), (lambda request: request.step > 1, plays[1])]
    try:
        async with open_runtime(
            root, model=Scripted(rules), tools=[change], limits=LIMITS, durability=level
        ) as runtime:
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
    async with opened(level, plays=[reply(call("hang"))]) as runtime:
        session = await runtime.session("bench")
        for _ in range(repeats):
            await floor_interrupt()
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
    few = max(10, repeats // 5)
    rows: list[Row] = []
    for level in LEVELS:
        bare = "bare trio"
        first, hundredth, floor = await text_turn(level, repeats)
        rows.append(Row(f"text turn, 20 deltas [{level}]", first * us, "us", bare, floor * us))
        rows.append(Row(f"text turn after 100 [{level}]", hundredth * us, "us", "the first turns", first * us))
        if level == "fsync":
            rows += await durable_steps(few)
        else:
            step, floor = await tool_step(level, few, floor_step)
            rows.append(Row(f"tool step [{level}]", step * us, "us", bare, floor * us))
        over, floor = await parallel(level, few)
        rows.append(Row(f"10 parallel tools, over 10 ms [{level}]", over * us, "us", bare, floor * us))
        rate, memory = await many(level, 200 if quick else 1000)
        rows.append(
            Row(f"sessions at once, turns [{level}]", rate, "1/s", "the goal", 1500.0 if level == "fsync" else 2000.0)
        )
        if level == "memory":
            rows.append(Row(f"memory a session [{level}]", memory, "KiB", "the goal", 25.0))
        _took.clear()
        times = await interrupts(level, repeats)
        floor = statistics.median(_took)
        rows.append(Row(f"interrupt, median [{level}]", statistics.median(times) * us, "us", bare, floor * us))
        rows.append(Row(f"interrupt, p99 [{level}]", times[int(len(times) * 0.99)] * us, "us", "the goal", 2000.0))
    print_rows(rows, as_json=as_json)


if __name__ == "__main__":
    import trio.testing

    arguments = parse_arguments(__doc__)
    trio.run(main, arguments.quick, arguments.json)
