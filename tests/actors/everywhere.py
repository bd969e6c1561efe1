"""One turn with everything in it: thinking, text, three parallel tools, a compaction. Tests stop it at every point that there is."""

from __future__ import annotations

from collections import Counter

import attrs
import trio

from trouper import Limits, open_runtime, tool
from trouper.actors.environment import Environment
from trouper.core import history
from trouper.core.messages import Usage
from trouper.core.settings import Compaction
from trouper.journal import Disk
from trouper.models.scripted import Play, Scripted, call, reply, think
from trouper.runtime import Runtime
from trouper.session import Session
from trouper.testing import CountedIds
from trouper.testing.sources import START_MS, seeded
from trouper.tools.contract import Tool

ROOT = "/state"
LIMITS = Limits(compaction=Compaction(threshold=150, keep_pairs=1, min_messages=4, mask_min_saving=10**9), grace_s=1.0)


@attrs.define
class Stage:
    """What the outside sees of a scenario, over several processes."""

    disk: Disk
    ids: CountedIds = attrs.Factory(CountedIds)
    model: Scripted | None = None
    #: Executions begun, by call id.
    begun: Counter[str] = attrs.Factory(Counter)
    #: Executions that are under way right now.
    running: set[str] = attrs.Factory(set)
    clock_ms: int = START_MS
    #: Whether the tool says of itself that nobody could notice it: then it begins before its intent is durable.
    unnoticed: bool = False

    def environment(self) -> Environment:
        return Environment(
            now=lambda: self.clock_ms / 1000 + trio.current_time(), ids=self.ids, random=seeded(1, "jitter"), pid=1
        )

    def open(self, plays: list[Play]) -> object:
        self.model = Scripted(plays, exhausted="repeat", delay_s=0.01)
        return open_runtime(
            ROOT, model=self.model, tools=self.tools(), limits=LIMITS, environment=self.environment(), disk=self.disk
        )

    def tools(self) -> tuple[Tool, ...]:
        @tool(readonly=self.unnoticed, open_world=not self.unnoticed)
        async def work(n: int) -> str:
            """Takes a while, and needs a moment to stop."""
            name = f"work {n}"
            self.begun[name] += 1
            self.running.add(name)
            try:
                await trio.sleep(0.05 * n)
                return "done " * 20
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 0.2):
                    await trio.sleep(0.01)
                self.running.discard(name)

        return (work,)


EARLIER = reply("An earlier answer, long enough to be worth folding away. " * 4, usage=Usage(input=100, output=50))
SUMMARY = reply("The user said hello twice.")
BUSY = reply(
    think("which ones?", signature="sig-1"),
    "Three at once. ",
    call("work", n=1),
    call("work", n=2),
    call("work", n=3),
    deltas=3,
)
FINAL = reply("All three are done.", deltas=4)


async def warm_up(runtime: Runtime) -> Session:
    """Two ordinary turns, so that the third has something to compact."""
    session = await runtime.session("s")
    for _ in range(2):
        (await session.ask("hello")).raise_for_error()
    return session


def the_busy_script() -> list[Play]:
    return [EARLIER, EARLIER, SUMMARY, BUSY, SUMMARY, FINAL]


def invalid_requests(stage: Stage) -> list[str]:
    assert stage.model is not None
    return [problem for request in stage.model.requests for problem in history.problems(request.messages)]
