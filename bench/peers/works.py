"""The works themselves, written once for every framework, and the small protocol between a driver and `run.py`.

A driver is a `Peer`; `main(Peer)` runs the works asked for and prints one JSON object per line:
`{"work", "value", "unit", "batches", ...}` or `{"work", "skipped": why}`. Nothing here imports trio or asyncio: both
offer `Event` and `sleep` of the same shape, and the peer hands them in.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

from talk import NAP_S, PLANS, STEPS, final_text

BATCHES = 5
BATCHES_QUICK = 3
OUT = Path(__file__).parent / "out"


class Skip(Exception):
    """The framework has no way of its own to do this work; the message says what is missing."""


class Stage:
    """What the fake model and the one tool do in every framework, and the counts that prove the same work was done."""

    def __init__(self, event: Callable[[], Any], sleep: Callable[[float], Awaitable[Any]]) -> None:
        self._event = event
        self._sleep = sleep
        self.deltas = 0  # text deltas that reached the caller
        self.model_calls = 0
        self.tool_calls = 0
        self.history = 0  # messages in the last request to the model
        self.expect_at_gate(0)
        self.expect_hang(after_deltas=0)

    def expect_at_gate(self, sessions: int) -> None:
        self._awaited = sessions
        self._gate = self._event()
        self.rss_at_gate = 0

    def expect_hang(self, *, after_deltas: int) -> None:
        self.hanging = self._event()
        self.all_heard = self._event()
        self._stop_listening_at = self.deltas + after_deltas
        if not after_deltas:
            self.all_heard.set()
        self.stopped = False

    def heard(self) -> None:
        """A text delta reached the caller."""
        self.deltas += 1
        if self.deltas == self._stop_listening_at:
            self.all_heard.set()

    def asked(self, history: int) -> None:
        """The model received a request with this many messages."""
        self.model_calls += 1
        self.history = history

    async def tool(self, key: str) -> str:
        self.tool_calls += 1
        if key.startswith("nap"):
            await self._sleep(NAP_S)
        elif key == "gate":
            await self._pass_gate()
        elif key == "hang":
            await self.hang()
        return f"value of {key}"

    async def _pass_gate(self) -> None:
        self._awaited -= 1
        if self._awaited == 0:
            self.rss_at_gate = rss_bytes()
            self._gate.set()
        await self._gate.wait()

    async def hang(self) -> None:
        """Wait for good, as a model or tool does that must be interrupted; notes when it has really stopped."""
        self.hanging.set()
        try:
            await self._event().wait()
        finally:
            self.stopped = True


class Peer(Protocol):
    """One framework under the same talk. `session` values are the driver's own."""

    name: str
    stage: Stage
    in_stream_way: str  # how a turn is interrupted, in the framework's own words
    durable_way: str

    @property
    def packages(self) -> tuple[str, ...]:
        """Distributions whose versions are reported."""

    def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `main` in this framework's event loop."""

    def open(self, directory: Path, *, durable: bool, effects: bool) -> AbstractAsyncContextManager[None]:
        """Sessions exist within this block; `durable` keeps them on disk under `directory`, or raises Skip. The tool may have `effects`, or says,
        where a framework has a way to, that it has none."""

    async def session(self, key: str) -> Any: ...

    async def turn(self, session: Any, text: str) -> str:
        """Stream one turn to its end, telling `stage.heard()` of each text delta; the reply's whole text.
        A turn that `stop` interrupted returns what text there is."""

    async def stop(self, session: Any) -> None:
        """Interrupt the running turn in the framework's own way, or raise Skip."""

    async def together(self, jobs: list[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        """Run all jobs at once and wait for all."""


def rss_bytes() -> int:
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:  # no /proc: the peak is the nearest figure, and the gate is the peak
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


class Checked:
    """Runs turns and holds each framework to the same counts."""

    def __init__(self, peer: Peer, plan: str) -> None:
        self._peer = peer
        self._plan = plan
        self._turns = 0
        self._before = self._counts()

    def _counts(self) -> tuple[int, int, int]:
        stage = self._peer.stage
        return (stage.deltas, stage.model_calls, stage.tool_calls)

    async def turn(self, session: Any) -> None:
        self._turns += 1
        text = await self._peer.turn(session, self._plan)
        assert text == final_text(self._plan), f"{self._peer.name}: plan {self._plan!r} ended in {text!r}"

    def check(self) -> None:
        did = tuple(now - then for now, then in zip(self._counts(), self._before, strict=True))
        want = tuple(each * self._turns for each in PLANS[self._plan])
        assert did == want, (
            f"{self._peer.name}: {self._turns} turns of {self._plan!r} came to {did}, not {want} (deltas, model, tool)"
        )


async def _fresh_sessions(peer: Peer, plan: str, turns: int, quick: bool) -> list[float]:
    """Seconds a turn, per batch; every turn is the first of its session, which is opened outside the timing."""
    batches = []
    for batch in range(BATCHES_QUICK if quick else BATCHES):
        sessions = [await peer.session(f"{plan}-{batch}-{i}") for i in range(turns)]
        checked = Checked(peer, plan)
        gc.collect()
        started = perf_counter()
        for session in sessions:
            await checked.turn(session)
        batches.append((perf_counter() - started) / turns)
        checked.check()
    return batches


def _result(work: str, batches: list[float], unit: str, **more: Any) -> dict[str, Any]:
    return {"work": work, "value": median(batches), "unit": unit, "batches": batches, **more}


def _ms(seconds: list[float]) -> list[float]:
    return [value * 1e3 for value in seconds]


async def text_turn(peer: Peer, quick: bool) -> list[dict[str, Any]]:
    return [_result("text_turn", _ms(await _fresh_sessions(peer, "talk", 2 if quick else 20, quick)), "ms")]


async def text_after_100(peer: Peer, quick: bool) -> list[dict[str, Any]]:
    """Turns 101 and on of one session (41 and on if quick); the whole past must be in the request."""
    turns, before = (1, 40) if quick else (5, 100)
    session = await peer.session("long")
    checked = Checked(peer, "talk")
    for _ in range(before):
        await checked.turn(session)
    batches = []
    gc.collect()
    for _ in range(BATCHES):
        started = perf_counter()
        for _ in range(turns):
            await checked.turn(session)
        batches.append((perf_counter() - started) / turns)
    checked.check()
    past = 2 * (before + BATCHES * turns) - 1
    assert peer.stage.history >= past, f"{peer.name}: the model saw {peer.stage.history} messages of {past}"
    return [_result("text_after_100", _ms(batches), "ms")]


async def tool_step(peer: Peer, quick: bool) -> list[dict[str, Any]]:
    return [_result("tool_step", await _steps(peer, quick), "ms")]


async def _steps(peer: Peer, quick: bool) -> list[float]:
    """Milliseconds a step, per batch."""
    # Enough turns that a batch lasts: right after a full collection the first of them costs half as much again.
    seconds = await _fresh_sessions(peer, "steps", 1 if quick else 20, quick)
    return _ms([turn / STEPS for turn in seconds])


async def parallel_tools(peer: Peer, quick: bool) -> list[dict[str, Any]]:
    seconds = await _fresh_sessions(peer, "parallel", 1 if quick else 10, quick)
    return [_result("parallel_tools", _ms([turn - NAP_S for turn in seconds]), "ms")]


async def sessions_at_once(peer: Peer, quick: bool) -> list[dict[str, Any]]:
    """Every session is opened, waits in its tool until all the others wait there too, and ends its turn."""
    count = 50 if quick else 1000
    checked = Checked(peer, "gate")
    peer.stage.expect_at_gate(count)

    async def one(i: int) -> None:
        await checked.turn(await peer.session(f"gate-{i}"))

    gc.collect()
    before = rss_bytes()
    started = perf_counter()
    await peer.together([lambda i=i: one(i) for i in range(count)])  # type: ignore[misc]
    took = perf_counter() - started
    checked.check()
    return [
        _result("sessions_at_once", [count / took], "turns/s", sessions=count),
        _result("memory_a_session", [(peer.stage.rss_at_gate - before) / count / 1024], "KiB", sessions=count),
    ]


async def durable_tool_step(peer: Peer, quick: bool) -> list[dict[str, Any]]:
    return [_result("durable_tool_step", await _steps(peer, quick), "ms", way=peer.durable_way)]


async def durable_effect_step(peer: Peer, quick: bool) -> list[dict[str, Any]]:
    return [_result("durable_effect_step", await _steps(peer, quick), "ms", way=peer.durable_way)]


async def _interrupt(peer: Peer, work: str, plan: str, quick: bool) -> dict[str, Any]:
    """From the call that interrupts to the end of both: the turn, as its caller sees it, and the call that interrupted it.
    The next turn must then work."""
    samples: list[float] = []
    stopped = 0
    rounds = 5 if quick else 40
    for i in range(rounds):
        session = await peer.session(f"{work}-{i}")
        stage = peer.stage
        stage.expect_hang(after_deltas=PLANS[plan].deltas)
        at: dict[str, float] = {}

        def over(at: dict[str, float] = at, stage: Stage = stage) -> None:
            at["over"], at["stopped"] = perf_counter(), stage.stopped  # the later of the two has the last word

        async def talk(session: Any = session, over: Callable[[], None] = over) -> None:
            await peer.turn(session, plan)
            over()

        async def press_stop(
            session: Any = session, over: Callable[[], None] = over, at: dict[str, float] = at, stage: Stage = stage
        ) -> None:
            await stage.hanging.wait()
            await stage.all_heard.wait()
            at["pressed"] = perf_counter()
            await peer.stop(session)
            over()

        await peer.together([talk, press_stop])
        samples.append(at["over"] - at["pressed"])
        stopped += int(at["stopped"])
        await Checked(peer, "talk").turn(session)
    ordered = sorted(_ms(samples))
    return _result(
        work,
        ordered,
        "ms",
        p99=ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))],
        stopped_share=stopped / rounds,
        way=peer.in_stream_way,
    )


async def interrupt_in_stream(peer: Peer, quick: bool) -> list[dict[str, Any]]:
    return [await _interrupt(peer, "interrupt_in_stream", "hang-stream", quick)]


async def interrupt_in_tool(peer: Peer, quick: bool) -> list[dict[str, Any]]:
    return [await _interrupt(peer, "interrupt_in_tool", "hang-tool", quick)]


# The sessions come first: memory is the growth of a process that has done little else.
WORKS: dict[str, Callable[[Peer, bool], Awaitable[list[dict[str, Any]]]]] = {
    "sessions_at_once": sessions_at_once,
    "text_turn": text_turn,
    "text_after_100": text_after_100,
    "tool_step": tool_step,
    "parallel_tools": parallel_tools,
    "durable_tool_step": durable_tool_step,
    "durable_effect_step": durable_effect_step,
    "interrupt_in_stream": interrupt_in_stream,
    "interrupt_in_tool": interrupt_in_tool,
}


def _print(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


async def _one_work(peer: Peer, work: str, quick: bool, directory: Path) -> None:
    try:
        effects = work == "durable_effect_step"
        async with peer.open(directory, durable=effects or work == "durable_tool_step", effects=effects):
            # What a process loads and makes once, at its first tool call, belongs to no session.
            await peer.turn(await peer.session("warm-up"), "steps")
            for line in await WORKS[work](peer, quick):
                _print(line)
    except Skip as why:
        _print({"work": work, "skipped": str(why)})
    except Exception as error:
        traceback.print_exc()
        _print({"work": work, "failed": f"{type(error).__name__}: {error}"})


async def _first_turn(peer: Peer, directory: Path) -> None:
    """`run.py` takes the time from starting this process to this line: imports, a runtime, a session, one text turn."""
    async with peer.open(directory, durable=False, effects=False):
        checked = Checked(peer, "talk")
        await checked.turn(await peer.session("first"))
        checked.check()
        _print({"work": "first_turn", "done": True})


def main(make: Callable[[], Peer]) -> None:
    """`driver.py '{"works": [...], "quick": ...}'` makes a first turn and then runs the works."""
    order = json.loads(sys.argv[1])
    OUT.mkdir(exist_ok=True)
    peer = make()
    with tempfile.TemporaryDirectory(dir=OUT, prefix=f"{peer.name}-", ignore_cleanup_errors=True) as scratch:

        async def all_works() -> None:
            for number, work in enumerate(["first_turn", *order["works"]]):
                directory = Path(scratch) / f"{number}-{work}"
                directory.mkdir()
                if work == "first_turn":
                    await _first_turn(peer, directory)
                else:
                    await _one_work(peer, work, order["quick"], directory)

        peer.run(all_works)
        from importlib.metadata import version  # late: the first turn is not to pay for it

        _print({"versions": {name: version(name) for name in peer.packages}})
