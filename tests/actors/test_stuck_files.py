"""A disk that never answers keeps neither a run, nor its session, nor the process from ending (I21, I24, I26)."""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trouper import Runtime, Scripted, ToolContext, open_runtime, tool
from trouper.core.task_record import TaskState
from trouper.ground import KEEP_S
from trouper.models.scripted import call, reply

#: Real seconds, reached only if something is wrong.
PATIENCE_S = 30.0


class HandSetClock(trio.abc.Clock):
    """Stands still until it is set. Unlike under a mock clock, what blocks is done in threads, as in earnest."""

    def __init__(self) -> None:
        self.now = 0.0

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return 0.0 if deadline <= self.now else PATIENCE_S

    async def jump(self, seconds: float) -> None:
        """Once nobody has anything else to do."""
        await wait_all_tasks_blocked()
        self.now += seconds
        await trio.lowlevel.checkpoint()


class StuckFiles:
    """Files of sessions whose last step, the rename, does not come back. Not so the journal's."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.released = threading.Event()
        self.waited_in_vain = False
        self._rename = os.rename

    def rename(self, source: Any, target: Any, **where: Any) -> None:
        if "src_dir_fd" in where:
            self.entered.set()
            if not self.released.wait(PATIENCE_S):
                self.waited_in_vain = True
        self._rename(source, target, **where)

    async def wait_entered(self) -> None:
        assert await trio.to_thread.run_sync(self.entered.wait, PATIENCE_S)


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[StuckFiles]:
    files = StuckFiles()
    monkeypatch.setattr(os, "rename", files.rename)
    yield files
    files.released.set()
    assert not files.waited_in_vain, "somebody has waited for the disk"


@tool(background=True)
async def quick(context: ToolContext) -> str:
    """Ends at once."""
    context.output("stdout", "hello")
    return "done"


@tool(background=True)
async def endless(context: ToolContext) -> str:
    """Ends when it is cancelled."""
    context.output("stdout", "hello")
    await trio.sleep_forever()
    return "never"


@tool
async def talkative() -> str:
    """Says more than a model is shown."""
    return "x" * 200_000


def run(tmp_path: Path, use: Callable[[Runtime, HandSetClock], Awaitable[None]], model: Scripted | None = None) -> None:
    """Use a runtime, and leave it: time passes then as long as somebody waits for it."""
    clock = HandSetClock()

    async def pass_time() -> None:
        while True:
            await clock.jump(1)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            async with open_runtime(
                tmp_path, durability="memory", model=model or Scripted([]), tools=[quick, endless, talkative]
            ) as runtime:
                await use(runtime, clock)
                nursery.start_soon(pass_time)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)


def test_a_run_ends_although_its_files_are_never_written(tmp_path: Path, stuck: StuckFiles) -> None:
    """B4, I26: its result is on record; what is not there is not said to be."""

    async def use(runtime: Runtime, clock: HandSetClock) -> None:
        session = await runtime.session("a")
        task = await session.spawn("quick", signal_on_completion=False)
        await stuck.wait_entered()
        await clock.jump(5)
        ended = await session.wait_task(task.id)
        assert ended.state is TaskState.SUCCEEDED and ended.result_path is None

    run(tmp_path, use)


def test_a_run_that_is_cancelled_ends_within_its_grace_although_its_files_are_never_written(
    tmp_path: Path, stuck: StuckFiles
) -> None:
    """B5, I24."""

    async def use(runtime: Runtime, clock: HandSetClock) -> None:
        session = await runtime.session("a")
        task = await session.spawn("endless", signal_on_completion=False)
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.cancel, task.id)
            await stuck.wait_entered()
            await clock.jump(5)
        ended = session.task(task.id)
        assert ended is not None and ended.state is TaskState.CANCELLED and ended.result_path is None

    run(tmp_path, use)


def test_a_session_with_runs_is_closed_although_their_files_are_never_written(
    tmp_path: Path, stuck: StuckFiles
) -> None:
    """I20, I24: one run has ended, and is too late to say so; another goes on. Both are over when the session is."""

    async def use(runtime: Runtime, clock: HandSetClock) -> None:
        session = await runtime.session("a")
        tasks = [await session.spawn(name, signal_on_completion=False) for name in ("quick", "endless")]
        await stuck.wait_entered()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.close)
            await clock.jump(5)
            await clock.jump(5)
        for task in tasks:
            ended = session.task(task.id)
            assert ended is not None and ended.state is TaskState.CANCELLED and ended.result_path is None

    run(tmp_path, use)


def test_a_call_ends_although_its_whole_output_is_never_kept(tmp_path: Path, stuck: StuckFiles) -> None:
    """T9, I26: the model is told that the rest is not there."""
    model = Scripted([reply(call("talkative")), reply("A lot of x.")])

    async def use(runtime: Runtime, clock: HandSetClock) -> None:
        session = await runtime.session("a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.ask, "go")
            await stuck.wait_entered()
            await clock.jump(KEEP_S)
        assert "could not be written" in str(model.requests[-1].messages[-1].answers[0].content)

    run(tmp_path, use, model)


@pytest.mark.parametrize("name", ["quick", "endless"])
def test_a_runtime_is_left_although_files_of_its_runs_are_never_written(
    tmp_path: Path, stuck: StuckFiles, name: str
) -> None:
    """I21: a process that is to end, ends."""

    async def use(runtime: Runtime, clock: HandSetClock) -> None:
        session = await runtime.session("a")
        task = await session.spawn(name, signal_on_completion=False)
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            if name == "endless":
                nursery.start_soon(session.cancel, task.id)
            await stuck.wait_entered()
            nursery.cancel_scope.cancel()

    run(tmp_path, use)
