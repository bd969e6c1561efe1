"""The actor kernel against bare trio: round trips, memory of idle actors, the end of a large tree.

    python bench/actors.py [--quick] [--json]

Goals: an ask within 2x of bare trio memory channels that do the same; 100,000 idle actors under 600 MiB; a tree of three levels and
10,000 actors cancelled in under 1 s. Every figure stands beside its rival or limit of the same run; medians of interleaved repeats.
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio
import trio.testing

from _report import Row, parse_arguments, print_rows
from trouper.actors import Inbox, Request, Supervisor, open_supervisor

IDLE_LIMIT_MIB = 600.0
CANCEL_LIMIT_S = 1.0


# -- round trips ------------------------------------------------------------------------------------------------------


async def ask_trouper(rounds: int, timeout_s: float = math.inf) -> float:
    async def echo(inbox: Inbox[int, int]) -> None:
        async for message in inbox:
            if isinstance(message, Request):
                message.reply(message.payload)

    async with open_supervisor() as supervisor:
        ref = supervisor.spawn("echo", echo)
        began = time.perf_counter()
        for i in range(rounds):
            assert await ref.ask(i, timeout_s=timeout_s) == i
        return time.perf_counter() - began


async def ask_trouper_with_timeout(rounds: int) -> float:
    return await ask_trouper(rounds, timeout_s=60.0)


async def ask_trio(rounds: int) -> float:
    """The same with what trio has: a bounded channel of questions, each with a reply channel of its own."""
    send, receive = trio.open_memory_channel[tuple[int, trio.MemorySendChannel[int]]](64)

    async def echo() -> None:
        async for payload, reply in receive:
            with reply:
                reply.send_nowait(payload)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(echo)
        began = time.perf_counter()
        for i in range(rounds):
            reply_send, reply_receive = trio.open_memory_channel[int](1)
            send.send_nowait((i, reply_send))
            assert await reply_receive.receive() == i
        took = time.perf_counter() - began
        send.close()
    return took


async def pingpong_trio(rounds: int) -> float:
    """The least that trio can do: two channels made once, one asker. No questions of several askers could share it."""
    send, receive = trio.open_memory_channel[int](64)
    back_send, back_receive = trio.open_memory_channel[int](64)

    async def echo() -> None:
        async for payload in receive:
            back_send.send_nowait(payload)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(echo)
        began = time.perf_counter()
        for i in range(rounds):
            send.send_nowait(i)
            assert await back_receive.receive() == i
        took = time.perf_counter() - began
        send.close()
    return took


async def tell_trouper(rounds: int) -> float:
    done = trio.Event()

    async def sink(inbox: Inbox[int, None]) -> None:
        async for message in inbox:
            if message == rounds - 1:
                done.set()

    async with open_supervisor() as supervisor:
        ref = supervisor.spawn("sink", sink)
        began = time.perf_counter()
        for i in range(rounds):
            await ref.send(i)
        await done.wait()
        return time.perf_counter() - began


async def tell_trio(rounds: int) -> float:
    done = trio.Event()
    send, receive = trio.open_memory_channel[int](64)

    async def sink() -> None:
        async for message in receive:
            if message == rounds - 1:
                done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sink)
        began = time.perf_counter()
        for i in range(rounds):
            await send.send(i)
        await done.wait()
        took = time.perf_counter() - began
        send.close()
    return took


def median_us(contenders: dict[str, Callable[[int], Awaitable[float]]], rounds: int, repeats: int) -> dict[str, float]:
    """Interleaved, so that a slow moment of the machine falls on all of them."""
    took: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, contender in contenders.items():
            took[name].append(trio.run(contender, rounds) / rounds * 1e6)
    return {name: statistics.median(values) for name, values in took.items()}


# -- memory -----------------------------------------------------------------------------------------------------------


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def idle_trouper(count: int) -> int:
    async def actor(inbox: Inbox[str, None]) -> None:
        async for _ in inbox:
            pass

    async with open_supervisor() as supervisor:
        refs = [supervisor.spawn(f"actor-{i}", actor) for i in range(count)]
        for ref in refs:
            ref.tell("once")  # An actor that has worked and is idle again, not one that never did.
        await trio.testing.wait_all_tasks_blocked()
        used = resident_bytes()
        os._exit(_report_bytes(used))


async def idle_trio(count: int) -> int:
    async def actor(receive: trio.MemoryReceiveChannel[str]) -> None:
        async for _ in receive:
            pass

    async with trio.open_nursery() as nursery:
        channels = [trio.open_memory_channel[str](64) for _ in range(count)]
        for send, receive in channels:
            nursery.start_soon(actor, receive)
            send.send_nowait("once")
        await trio.testing.wait_all_tasks_blocked()
        used = resident_bytes()
        os._exit(_report_bytes(used))


def _report_bytes(used: int) -> int:
    """Printed by the measuring process, which then leaves at once: taking 100,000 tasks down is not what is measured."""
    print(used, flush=True)
    return 0


def resident_mib(which: str, count: int) -> float:
    """In a process of its own, whole: interpreter, trio and trouper included."""
    answer = subprocess.run([sys.executable, __file__, which, str(count)], check=True, capture_output=True, text=True)
    return int(answer.stdout) / 2**20


# -- the end of a tree ------------------------------------------------------------------------------------------------


async def tree(leaves: int, groups: int, how: str) -> float:
    """Three levels: the root supervisor, `groups` supervisors, and under them `leaves` actors in all."""

    async def actor(inbox: Inbox[str, None]) -> None:
        async for _ in inbox:
            pass

    def start(group: Supervisor) -> None:
        for i in range(leaves // groups):
            group.spawn(f"actor-{i}", actor)

    with trio.CancelScope() as scope:
        async with open_supervisor(grace_s=3600) as supervisor:
            for i in range(groups):
                supervisor.spawn_supervisor(f"group-{i}", start, grace_s=3600)
            await trio.testing.wait_all_tasks_blocked()
            began = time.perf_counter()
            if how == "cancel":
                scope.cancel()
    return time.perf_counter() - began


async def tree_trio(leaves: int, groups: int) -> float:
    async def group() -> None:
        async with trio.open_nursery() as inner:
            for _ in range(leaves // groups):
                inner.start_soon(trio.sleep_forever)

    async with trio.open_nursery() as nursery:
        for _ in range(groups):
            nursery.start_soon(group)
        await trio.testing.wait_all_tasks_blocked()
        began = time.perf_counter()
        nursery.cancel_scope.cancel()
    return time.perf_counter() - began


def main() -> None:
    if len(sys.argv) == 3 and sys.argv[1] in ("idle_trouper", "idle_trio"):
        trio.run({"idle_trouper": idle_trouper, "idle_trio": idle_trio}[sys.argv[1]], int(sys.argv[2]))
        return
    arguments = parse_arguments(__doc__)
    rounds, repeats = (3_000, 5) if arguments.quick else (20_000, 9)
    us = median_us(
        {
            "ask": ask_trouper,
            "ask with time-out": ask_trouper_with_timeout,
            "ask, trio": ask_trio,
            "ping-pong, trio": pingpong_trio,
            "send": tell_trouper,
            "send, trio": tell_trio,
        },
        rounds,
        repeats,
    )
    cancels, stops, bare = [], [], []
    for _ in range(2 if arguments.quick else 5):
        cancels.append(trio.run(tree, 10_000, 100, "cancel"))
        stops.append(trio.run(tree, 10_000, 100, "stop"))
        bare.append(trio.run(tree_trio, 10_000, 100))
    mine_mib, trio_mib = resident_mib("idle_trouper", 100_000), resident_mib("idle_trio", 100_000)
    print_rows(
        [
            Row("ask, round trip", us["ask"], "us", "trio: channel + reply channel", us["ask, trio"]),
            Row("ask, round trip", us["ask"], "us", "trio: two fixed channels", us["ping-pong, trio"]),
            Row("ask with a time-out", us["ask with time-out"], "us", "trio: channel + reply channel", us["ask, trio"]),
            Row("send and receive, one way", us["send"], "us", "trio: channel", us["send, trio"]),
            Row("100,000 idle actors, whole process", mine_mib, "MiB", "limit", IDLE_LIMIT_MIB),
            Row("100,000 idle actors, whole process", mine_mib, "MiB", "trio: task + channel", trio_mib),
            Row("10,000 actors, 3 levels, cancelled", statistics.median(cancels), "s", "limit", CANCEL_LIMIT_S),
            Row(
                "10,000 actors, 3 levels, cancelled",
                statistics.median(cancels),
                "s",
                "trio: nested nurseries",
                statistics.median(bare),
            ),
            Row("10,000 actors, 3 levels, stopped in order", statistics.median(stops), "s", "limit", CANCEL_LIMIT_S),
        ],
        as_json=arguments.json,
    )


if __name__ == "__main__":
    main()
