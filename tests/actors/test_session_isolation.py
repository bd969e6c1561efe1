"""One actor's crash changes no other session (I23): the session that crashed is rebuilt from the journal, a few times, then it stays down, visibly (I22)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from everywhere import FINAL, ROOT, Stage, invalid_requests, the_busy_script, warm_up

from trouper import Budget, Limits, Scripted, ToolContext, TrouperError, home, open_runtime, tool
from trouper.actors import recording
from trouper.core.events import CallEnded
from trouper.core.live import ToolStatus
from trouper.core.messages import Usage
from trouper.ground import TURNS_AT_ONCE, RuntimeGround
from trouper.journal import open_reader
from trouper.models.scripted import call, reply
from trouper.session import SessionEnded
from trouper.testing import CrashDisk, check_invariants, run_simulated


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of sessions whose actor runs out of memory at the next decision."""
    broken: set[str] = set()
    real = recording.step

    def step(state, command):
        if state.session in broken:
            broken.discard(state.session)
            raise MemoryError
        return real(state, command)

    monkeypatch.setattr(recording, "step", step)
    return broken


async def test_a_session_that_crashes_is_rebuilt_and_its_neighbour_notices_nothing(
    failing: set[str], autojump_clock: trio.testing.MockClock
) -> None:
    """I23: MemoryError in an actor."""
    model = Scripted([reply("fine")], exhausted="repeat")
    async with open_runtime(model=model, durability="memory") as runtime:
        weak, strong = await runtime.session("weak"), await runtime.session("strong")
        assert (await weak.ask("hello")).text == "fine"
        before = strong.statistics().events
        failing.add("weak")
        with pytest.raises(SessionEnded, match="restarted"):
            await weak.ask("crash now")
        assert strong.statistics().events == before
        assert (await strong.ask("hello")).text == "fine"
        assert (await weak.ask("and you?")).text == "fine"
        assert weak.statistics().turns == 2
        assert check_invariants(runtime._log) == []


async def test_a_session_that_keeps_crashing_stays_down_and_says_so(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """I22: restarts stay within their limit, then a visible failure."""
    model = Scripted([reply("fine")], exhausted="repeat")
    async with open_runtime(model=model, durability="memory") as runtime:
        weak, strong = await runtime.session("weak"), await runtime.session("strong")
        real = recording.step

        def step(state, command):
            if state.session == "weak":
                raise MemoryError
            return real(state, command)

        monkeypatch.setattr(recording, "step", step)
        for _ in range(20):
            with pytest.raises(SessionEnded):
                await weak.ask("crash")
            await trio.sleep(0.1)
        assert weak._ref.exit is not None
        assert (await strong.ask("hello")).text == "fine"


async def test_a_session_that_stays_down_in_mid_step_keeps_no_other_from_the_budget(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """I23, I26, L25: near its end sessions wait for each other's steps; not for one that will never end."""
    real = recording.step
    model = Scripted([reply("fine", usage=Usage(input=400, output=100))], exhausted="repeat", first_delay_s=5.0)
    async with open_runtime(model=model, durability="memory", budget=Budget(tokens=2_000)) as runtime:
        weak, strong = await runtime.session("weak"), await runtime.session("strong")
        assert (await strong.ask("how much is it?")).text == "fine"
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def asked() -> None:
                with pytest.raises(SessionEnded):
                    await weak.ask("hello")

            await trio.sleep(1)

            def step(state, command):
                if state.session == "weak":
                    raise MemoryError
                return real(state, command)

            monkeypatch.setattr(recording, "step", step)
            with trio.fail_after(600):
                for _ in range(3):  # Nor is what its step has cost kept for it, which was never recorded.
                    assert (await strong.ask("hello " * 200)).text == "fine"
        assert weak._ref.exit is not None


async def test_a_tool_that_runs_out_of_memory_is_an_internal_error(autojump_clock: trio.testing.MockClock) -> None:
    """L20: the model is told one fixed sentence; the turn goes on."""

    @tool
    async def greedy() -> str:
        """Takes too much."""
        raise MemoryError

    model = Scripted([reply(call("greedy")), reply("I could not do that.")])
    async with open_runtime(model=model, tools=[greedy], durability="memory") as runtime:
        session = await runtime.session("s")
        assert (await session.ask("go")).text == "I could not do that."
        answer = session.history[2].answers[0]
        assert "internal error" in answer.content
        assert "MemoryError" not in answer.content


async def _crashing_turn(stage: Stage, at: int, seen: list[int]) -> None:
    async with stage.open(the_busy_script()) as runtime:  # type: ignore[attr-defined]
        session = await warm_up(runtime)
        seen[0] = 0
        with suppress(SessionEnded):  # The very first decision: nobody knows whether the turn began.
            result = await session.ask("do three things")
            assert result.error is None or result.error.kind == "process_ended"
        reached, seen[0] = seen[0] >= at, -1_000_000
        assert not stage.running, "a tool still runs after its session began anew"
        stage.model._scenes, stage.model._next = [FINAL], 0  # type: ignore[union-attr]
        assert (await session.ask("and now?")).text == "All three are done."
    if not reached:
        raise LookupError("the turn has no more decisions")


@pytest.mark.parametrize("unnoticed", [False, True])
def test_a_crash_in_the_middle_of_any_decision_leaves_a_session_that_goes_on(
    monkeypatch: pytest.MonkeyPatch, unnoticed: bool
) -> None:
    """I4, I6, I23: enumerated; whoever decides at that moment, the actor or the task that brought the command. Unnoticed: also ahead of the disk."""
    real = recording.step
    seen, at = [0], 1

    def step(state, command):
        seen[0] += 1
        if seen[0] == at:
            raise MemoryError
        return real(state, command)

    monkeypatch.setattr(recording, "step", step)
    while True:
        stage = Stage(CrashDisk(), unnoticed=unnoticed)
        seen[0] = -1_000_000
        try:
            run_simulated(_crashing_turn, stage, at, seen, seed=at)
        except LookupError:
            break
        assert invalid_requests(stage) == []
        assert check_invariants(open_reader(ROOT, disk=stage.disk), complete=True) == []
        assert all(count == 1 for count in stage.begun.values()), "I4: a tool ran twice"
        at += 1
    assert at > 8


@pytest.mark.parametrize("mailbox", [1, 100])
async def test_a_session_that_cannot_hear_of_a_spill_keeps_no_other_waiting(
    mailbox: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """I23: files that take long to write while a session is closed, and a mailbox that is full meanwhile, are its own trouble; so are turns that wait there."""

    async def stall(ground: RuntimeGround, work: Callable[[], Any]) -> Any:
        await trio.sleep(3)
        return work()

    monkeypatch.setattr(RuntimeGround, "in_run_thread", stall)

    @tool(background=True, budget_s=0.01)
    async def soon_let_go() -> str:
        """Takes its time."""
        await trio.sleep(60)
        return "done"

    @tool(background=True, budget_s=0.5)
    async def later_let_go() -> str:
        """Takes its time."""
        await trio.sleep(60)
        return "done"

    weak_model = Scripted(
        [reply(call("soon_let_go")), reply("It goes on."), reply(call("later_let_go"))], exhausted="repeat"
    )
    strong_model = Scripted([reply("fine")], exhausted="repeat")
    tools, limits = [soon_let_go, later_let_go], Limits(mailbox=mailbox)
    async with (
        open_runtime(tmp_path, model=strong_model, tools=tools, limits=limits) as runtime,
        trio.open_nursery() as nursery,
    ):
        weak, strong = await runtime.session("weak", model=weak_model), await runtime.session("strong")
        await weak.ask("begin")

        async def tell(what: Callable[..., Awaitable[object]], *args: Any) -> None:
            with suppress(TrouperError):
                await what(*args)

        nursery.start_soon(tell, weak.ask, "and again")
        await trio.sleep(0.1)
        nursery.start_soon(tell, weak.close)
        await trio.sleep(0.1)
        nursery.start_soon(tell, weak.send, "is there room?")
        for _ in range(2 * TURNS_AT_ONCE):
            nursery.start_soon(tell, weak.ask, "or for a turn?")
        await trio.sleep(0.5)
        before = trio.current_time()
        assert (await strong.ask("hello")).text == "fine"
        assert trio.current_time() == before


@pytest.mark.parametrize("thread", ["trio's", "its own"])
async def test_what_a_tool_reports_from_a_thread_reaches_those_who_watch(thread: str) -> None:
    """I23, T7: made in the thread, it woke nobody: whoever watched the turn was never heard of again."""

    @tool
    async def work(context: ToolContext) -> str:
        """Work in a thread."""
        await trio.testing.wait_all_tasks_blocked()  # Whoever watches waits for the next event.

        def there() -> None:
            if thread == "trio's":
                context.status("under way")
                return
            with ThreadPoolExecutor(1) as pool:
                pool.submit(context.status, "under way").result()

        await trio.to_thread.run_sync(there)
        return "done"

    model = Scripted([reply(call("work")), reply("fine")])
    async with open_runtime(model=model, tools=[work], durability="memory") as runtime:
        with trio.fail_after(30):  # Or it would wait for ever.
            async with (await runtime.session("s")).turn("work") as turn:
                events = [event async for event in turn]
        assert [event.text for event in events if isinstance(event, ToolStatus)] == ["under way"]
        assert [event.outcome.value for event in events if isinstance(event, CallEnded)] == ["ok"]
        assert turn.result is not None and turn.result.text == "fine"
        assert check_invariants(runtime._log) == []


async def test_what_a_run_says_from_a_thread_is_on_its_record() -> None:
    """I23, B12: likewise, and then nothing that any run of the session said was put on record."""

    @tool(background=True)
    async def work(context: ToolContext) -> bool:
        """Work in a thread."""
        await trio.testing.wait_all_tasks_blocked()  # Whoever puts it on record waits for news.

        def there() -> bool:
            context.report_progress(1, 2)
            context.output("stdout", "half")
            context.add_artifact("half.txt")
            context.link("order", "17")
            return context.say("half of it is done")

        return await trio.to_thread.run_sync(there)

    async with open_runtime(model=Scripted([reply("fine")]), tools=[work], durability="memory") as runtime:
        session = await runtime.session("s")
        task = await session.wait_task((await session.spawn(work, wake="silent")).id)
        assert task.result is True
        assert task.artifacts == ("half.txt",) and [link.target for link in task.links] == ["17"]
        assert [message.text for message in task.messages] == ["half of it is done"]
        assert check_invariants(runtime._log) == []


async def test_a_tool_that_blocks_the_loop_while_its_thread_reports_comes_to_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I23: the thread waits for the loop, and the loop for the thread; a report is not worth that."""
    monkeypatch.setattr(home, "_WAIT_S", 0.0)

    @tool
    async def work(context: ToolContext) -> str:
        """Block."""
        with ThreadPoolExecutor(1) as pool:
            pool.submit(context.status, "under way").result()
        return "done"

    model = Scripted([reply(call("work")), reply("fine")])
    async with open_runtime(model=model, tools=[work], durability="memory") as runtime:
        session = await runtime.session("s")
        assert (await session.ask("work")).text == "fine"
        assert check_invariants(runtime._log) == []
