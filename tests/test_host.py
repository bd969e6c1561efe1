"""What a runtime takes up when it begins, and what it leaves to whoever opens the session (J12, B10)."""

from __future__ import annotations

import errno
import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from trouper import Budget, CommandRejected, Limits, Rule, Runtime, tool
from trouper.core.events import RecoveryNoted
from trouper.core.task_record import TaskState
from trouper.models import Model, Scripted, call, reply, stall
from trouper.testing import CrashDisk

attempts: list[int] = []


@tool(background=True, idempotent=True)
async def survey() -> str:
    """May be run again."""
    attempts.append(len(attempts) + 1)
    await trio.sleep(50.0)
    return "surveyed"


@tool(background=True)
async def deploy() -> str:
    """May be run once only."""
    attempts.append(len(attempts) + 1)
    await trio.sleep(50.0)
    return "deployed"


@tool(readonly=True)
async def peek() -> str:
    """May be run again, and does not go on in the background."""
    attempts.append(len(attempts) + 1)
    await trio.sleep(50.0)
    return "peeked"


@pytest.fixture(autouse=True)
def _clear() -> None:
    attempts.clear()


@asynccontextmanager
async def process(open_checked: Any, disk: CrashDisk, model: Model, **settings: Any) -> AsyncIterator[Runtime]:
    async with open_checked(model, disk=disk, durability="fsync", **settings) as runtime:
        yield runtime


def says(*plays: Any) -> Scripted:
    return Scripted([*plays, reply("Noted.")], exhausted="repeat")


async def killed_while_it_runs(
    open_checked: Any, name: str, *, harness: dict[str, Any] | None = None, **own: Any
) -> CrashDisk:
    """The disk as a killed process leaves it, in which session "s" runs this tool in the background."""
    disk = CrashDisk()
    async with process(open_checked, disk, says(reply(call(name)), reply("It runs.")), **(harness or {})) as runtime:
        session = await runtime.session("s", **own)
        await session.ask("go")
        return disk.fork()


async def _ended(runtime: Runtime) -> Any:
    """The one task, when it is over."""
    session = await runtime.session("s")
    while session._state.tasks.live:
        await trio.sleep(1.0)
    (task,) = session.tasks()
    return task


async def test_a_run_of_a_session_with_tools_of_its_own_waits_until_it_is_opened_with_them(
    open_checked: Any, autojump_clock: Any, caplog: Any, journal: list[Any]
) -> None:
    """B10, J12: the runtime itself does not have the tool, and would have ended the run for good."""
    disk = await killed_while_it_runs(open_checked, "survey", tools=[survey])
    with caplog.at_level(logging.WARNING, "trouper.runtime"):
        async with process(open_checked, disk, says()) as runtime:
            await trio.sleep(100.0)
            assert attempts == [1]
            assert [task.state for task in runtime.tasks()] == [TaskState.RUNNING]
            assert runtime.not_taken_up == {"s": "the tools that it was given of its own"}
            await runtime.session("s", tools=[survey])
            assert not runtime.not_taken_up
            task = await _ended(runtime)
    assert (task.state, task.attempt, attempts) == (TaskState.SUCCEEDED, 2, [1, 2])
    # Noted with its very first record, whatever comes between that and the next.
    assert [event.own for record in journal for event in record.events if hasattr(event, "own")] == [("tools",)]
    (told,) = [record.getMessage() for record in caplog.records]
    assert "session s " in told and "the tools that it was given of its own" in told


async def test_another_sessions_run_is_not_ended_by_a_process_that_lacks_its_tool(
    open_checked: Any, autojump_clock: Any, caplog: Any
) -> None:
    """B10: as one that was started for something else does; whoever has the tool takes the run up."""
    disk = await killed_while_it_runs(open_checked, "survey", harness={"tools": [survey]})
    with caplog.at_level(logging.WARNING, "trouper.runtime"):
        async with process(open_checked, disk, says(), tools=[deploy]) as runtime:
            await (await runtime.session("other")).ask("hello")
    assert "needs the tool 'survey'" in caplog.text
    async with process(open_checked, disk, says(), tools=[survey]) as runtime:
        task = await _ended(runtime)
    assert (task.state, task.attempt, attempts) == (TaskState.SUCCEEDED, 2, [1, 2])


async def test_opened_without_its_tool_a_run_is_ended_for_that_reason(open_checked: Any, autojump_clock: Any) -> None:
    """B10: the user was told that the tool cannot safely be run a second time, which is untrue."""
    disk = await killed_while_it_runs(open_checked, "survey", harness={"tools": [survey]})
    async with process(open_checked, disk, says()) as runtime:
        task = await _ended(runtime)
    assert task.state is TaskState.INTERRUPTED and "has no tool 'survey'" in task.summary


async def test_a_run_that_may_happen_once_is_ended_by_whoever_comes(open_checked: Any, autojump_clock: Any) -> None:
    """B10, I4: that needs no tool."""
    disk = await killed_while_it_runs(open_checked, "deploy", harness={"tools": [deploy]})
    async with process(open_checked, disk, says()) as runtime:
        task = await _ended(runtime)
    assert task.state is TaskState.INTERRUPTED and "cannot safely be run a second time" in task.summary


@pytest.mark.parametrize(
    "harness", [{"tools": [survey], "policies": [Rule("survey", "deny"), Rule("*", "allow")]}, {"tools": [deploy]}]
)
async def test_a_run_that_was_cancelled_needs_no_tool(
    open_checked: Any, autojump_clock: Any, harness: dict[str, Any]
) -> None:
    """B5, B10: nor does one that the policy denies by now need to wait for another."""
    disk = CrashDisk()
    async with process(open_checked, disk, says(reply(call("survey"))), tools=[survey]) as runtime:
        session = await runtime.session("s")
        await session.ask("go")
        (task,) = session.tasks()
        if harness["tools"] == [deploy]:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.cancel, task.id)
                while session.task(task.id).cancel_requested_at is None:
                    await trio.lowlevel.checkpoint()
                left = disk.fork()
        else:
            left = disk.fork()
    async with process(open_checked, left, says(), **harness) as runtime:
        ended = await _ended(runtime)
    assert ended.state in (TaskState.CANCELLED, TaskState.INTERRUPTED) and attempts == [1]


@pytest.mark.parametrize("is_open", [True, False])
async def test_who_is_cancelled_while_a_session_is_given_tools_leaves_none_that_are_not_noted(
    open_checked: Any, autojump_clock: Any, is_open: bool
) -> None:
    """I12, B10: it had them, and no record said so; after a crash it would have been taken up without."""
    disk = CrashDisk()
    async with process(open_checked, disk, says()) as runtime:
        await (await runtime.session("s")).ask("hello")
    async with process(open_checked, disk, says()) as runtime:
        if is_open:
            await runtime.session("s")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(runtime.session, "s", tools=[survey]))
            while "s" not in runtime._ground.sessions:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        session = await runtime.session("s")
        assert ("survey" in session._actor.outfit.registry) == bool(session._state.own)


async def test_of_many_sessions_that_wait_some_are_named(open_checked: Any, autojump_clock: Any, caplog: Any) -> None:
    """J12: a server may have one for each of its users, and each was a line of the log at every start."""
    disk, names = CrashDisk(), [f"user{number}" for number in range(8)]
    async with process(open_checked, disk, says()) as runtime:
        for name in names:
            session = await runtime.session(name, model=says())
            await session.create_schedule(title="tea", cron="0 9 * * *", message="Tea time")
    with caplog.at_level(logging.WARNING, "trouper.runtime"):
        async with process(open_checked, disk, says()) as runtime:
            assert sorted(runtime.not_taken_up) == names
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 6 and told[-1] == "3 more sessions wait so; see Runtime.not_taken_up"


async def test_a_sweep_leaves_alone_what_waits_for_its_tools(open_checked: Any, autojump_clock: Any) -> None:
    """B10, B13: it opened such a session without them, which ended its other runs for good."""
    disk, limits = CrashDisk(), Limits(task_retention_s=60.0)
    script = says(reply("It looks."), reply("It has looked."), reply(call("survey")))
    async with process(open_checked, disk, script, limits=limits) as runtime:
        session = await runtime.session("s", tools=[survey])
        await session.spawn("survey")
        await trio.sleep(200.0)
        await session.spawn("survey")
        disk = disk.fork()
    async with process(open_checked, disk, says(), limits=limits) as runtime:
        assert await runtime.sweep_tasks() == 0 and list(runtime.not_taken_up) == ["s"]
        await runtime.session("s", tools=[survey])
        assert await runtime.sweep_tasks() == 1
        task = await _ended(runtime)
    assert (task.state, task.attempt, attempts) == (TaskState.SUCCEEDED, 2, [1, 2, 3])


@pytest.mark.parametrize("what", ["create", "cancel"])
async def test_a_schedule_is_no_reason_to_end_what_waits_for_its_tools(
    open_checked: Any, autojump_clock: Any, what: str
) -> None:
    """B10, B25: who set or cancelled one in such a session opened it without them, which ended its runs for good."""
    disk = CrashDisk()
    async with process(open_checked, disk, says(reply(call("survey")))) as runtime:
        session = await runtime.session("s", tools=[survey])
        await session.create_schedule(title="tea", cron="0 9 * * *", message="Tea time")
        await session.spawn("survey")
        disk = disk.fork()
    async with process(open_checked, disk, says()) as runtime:
        schedules = runtime.schedules
        (known,) = schedules.list()

        async def change() -> object:
            if what == "cancel":
                return await schedules.cancel(known.schedule.id)
            return await schedules.create("s", title="bed", cron="0 22 * * *", message="Bed time")

        with pytest.raises(CommandRejected, match="needs the tools that it was given of its own; open it with that"):
            await change()
        assert list(runtime.not_taken_up) == ["s"] and len(schedules.list()) == 1
        await runtime.session("s", tools=[survey])
        assert await change()
        task = await _ended(runtime)
    assert (task.state, task.attempt) == (TaskState.SUCCEEDED, 2)


async def test_a_turn_of_a_session_with_a_model_of_its_own_goes_on_with_that_one(
    open_checked: Any, autojump_clock: Any, journal: list[Any]
) -> None:
    """J12, M6: the runtime's own model answered what was meant for another."""
    resume = Limits(on_restart="resume")
    disk = CrashDisk()
    async with process(open_checked, disk, says(), limits=resume) as runtime:
        session = await runtime.session("s", model=Scripted([reply(stall(100))]), budget=Budget(steps=5))
        async with session.turn("sign the contract?"):
            await trio.sleep(5.0)
            disk = disk.fork()
    usual, own = says(), Scripted([reply("Signed.")])
    async with process(open_checked, disk, usual, limits=resume) as runtime:
        await trio.sleep(100.0)
        assert not usual.requests and not [each for each in journal if type(each.events[0]) is RecoveryNoted]
        session = await runtime.session("s", model=own)
        while session._state.turn is not None:
            await trio.sleep(1.0)
        assert session.last.text == "Signed." and not usual.requests


# --- a budget of its own


async def test_a_session_with_a_budget_of_its_own_is_taken_up_with_that(open_checked: Any, autojump_clock: Any) -> None:
    """L25, B25: of a session that nobody opens the reminders come all the same; and they spend what it may, and no more."""
    disk, names = CrashDisk(), ("rich", "poor")
    async with process(open_checked, disk, says()) as runtime:
        for name in names:
            session = await runtime.session(name, budget=Budget(steps=100 if name == "rich" else 2))
            await session.create_schedule(title="tea", cron="* * * * *", message="Tea time")
        disk = disk.fork()
    async with process(open_checked, disk, says()) as runtime:
        assert not runtime.not_taken_up
        await trio.sleep(400.0)
        ends = {name: (await runtime.session(name)).last.stop_reason for name in names}
        steps = {name: (await runtime.session(name)).state.spent.steps for name in names}
    assert ends == {"rich": "end_turn", "poor": "budget"} and steps["poor"] == 2 < steps["rich"]


async def test_what_is_left_out_stays_as_it_was_in_the_next_process_too(open_checked: Any, autojump_clock: Any) -> None:
    """L25: a budget is not lifted by whoever knows nothing of it; it is by a larger one, or one without caps."""
    disk = CrashDisk()
    async with process(open_checked, disk, says()) as runtime:
        session = await runtime.session("s", budget=Budget(steps=1))
        assert (await session.ask("one")).stop_reason == "end_turn"
    async with process(open_checked, disk, says()) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("two")).stop_reason == "budget"
        await runtime.session("s", budget=Budget(steps=2))
        assert (await session.ask("two")).stop_reason == "end_turn"
    async with process(open_checked, disk, says()) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("three")).stop_reason == "budget"
    async with process(open_checked, disk, says()) as runtime:
        session = await runtime.session("s", budget=Budget())
        assert (await session.ask("three")).stop_reason == "end_turn"
    async with process(open_checked, disk, says()) as runtime:
        assert (await (await runtime.session("s")).ask("four")).stop_reason == "end_turn"


@pytest.mark.parametrize("steps", [9, 2])
async def test_a_budget_that_is_given_as_soon_as_the_runtime_is_open_is_the_one_that_holds(
    open_checked: Any, autojump_clock: Any, steps: int
) -> None:
    """L25: of a session that is being taken up, which has not read yet what it was given before."""
    disk = CrashDisk()
    async with process(open_checked, disk, says()) as runtime:
        session = await runtime.session("s", budget=Budget(steps=4))
        await session.create_schedule(title="tea", cron="0 9 * * *", message="Tea time")
        for _ in range(2):
            await session.ask("one")
        disk = disk.fork()
    async with process(open_checked, disk, says()) as runtime:
        session = await runtime.session("s", budget=Budget(steps=steps))
        ends = [(await session.ask("one")).stop_reason for _ in range(3)]
    assert ends == (["end_turn"] * 3 if steps == 9 else ["budget"] * 3)


async def test_a_session_that_fails_while_it_is_read_has_its_budget_all_the_same(
    open_checked: Any, autojump_clock: Any
) -> None:
    """L25, I22: the journal could not be read for a moment; what begins again reads what it may spend, too."""
    disk = CrashDisk()
    async with process(open_checked, disk, says()) as runtime:
        await (await runtime.session("s", budget=Budget(steps=1))).ask("one")
    async with process(open_checked, disk, says()) as runtime:
        disk.fail("pread", errno.EIO, times=2)  # Of the snapshot, and of the records instead.
        session = await runtime.session("s")
        assert (await session.ask("two")).stop_reason == "budget"


async def test_a_budget_without_end_can_be_recorded(open_checked: Any, autojump_clock: Any) -> None:
    """J5: JSON has no infinity; a tool that is to be waited for, however long, is waited for in the next process, too."""
    disk, script = CrashDisk(), says(reply(call("peek")), reply("Seen."), reply(call("peek")), reply("Seen again."))
    async with process(open_checked, disk, script, tools=[peek]) as runtime:
        session = await runtime.session("s", budget=Budget(inline_s=math.inf, wall_s=math.inf))
        assert (await session.ask("look")).text == "Seen."
    async with process(open_checked, disk, script, tools=[peek]) as runtime:
        assert (await (await runtime.session("s")).ask("look")).text == "Seen again."


async def test_a_runtime_without_tool_calls_has_no_session_with_some_from_before(
    open_checked: Any, autojump_clock: Any
) -> None:
    """I27: what a session may spend was said to another runtime."""
    disk = CrashDisk()
    async with process(open_checked, disk, says(), tools=[peek]) as runtime:
        await runtime.session("s", budget=Budget(tool_calls=5))
    script = says()
    async with process(open_checked, disk, script, tools=[peek], budget=Budget(tool_calls=0)) as runtime:
        await (await runtime.session("s")).ask("look")
    assert script.requests[-1].tools == ()


@pytest.mark.parametrize(
    "rules", [[Rule("*", "allow")], [Rule("*", "ask")]], ids=["it runs", "it waits for an approval"]
)
async def test_a_turn_that_is_resumed_waits_for_the_tool_of_its_call(
    open_checked: Any, autojump_clock: Any, rules: list[Rule]
) -> None:
    """J12: the model was told that there is no such tool, and answered without what it had asked for."""
    disk, settings = CrashDisk(), {"limits": Limits(on_restart="resume"), "policies": rules}
    async with process(open_checked, disk, says(reply(call("peek"))), tools=[peek], **settings) as runtime:
        session = await runtime.session("s")
        async with session.turn("go"):
            await trio.sleep(5.0)
            disk = disk.fork()
    usual = says()
    async with process(open_checked, disk, usual, tools=[deploy], complete=False, **settings) as runtime:
        await trio.sleep(100.0)
        assert runtime.not_taken_up == {"s": "the tool 'peek'"} and not usual.requests
    async with process(open_checked, disk, says(), tools=[peek], **settings) as runtime:
        session = await runtime.session("s")
        for each in session.approvals:
            await session.approve(each)
        while session._state.turn is not None:
            await trio.sleep(1.0)
        assert [answer.content for message in session._state.history.messages for answer in message.answers] == [
            "peeked"
        ]


async def test_a_turn_that_ends_with_its_process_needs_no_tool(open_checked: Any, autojump_clock: Any) -> None:
    """J12: nothing of it goes on."""
    disk = CrashDisk()
    async with process(open_checked, disk, says(reply(call("peek"))), tools=[peek]) as runtime:
        session = await runtime.session("s")
        async with session.turn("go"):
            await trio.sleep(5.0)
            disk = disk.fork()
    async with process(open_checked, disk, says(), tools=[deploy]) as runtime:
        assert not runtime.not_taken_up
        await trio.sleep(1.0)
        assert runtime.sessions()[0].phase == "idle"


async def test_a_schedule_of_a_tool_that_only_its_session_has_waits_for_it(
    open_checked: Any, autojump_clock: Any
) -> None:
    """B18, B19: it fired, and its run was refused for want of the tool."""
    disk = CrashDisk()
    async with process(open_checked, disk, says()) as runtime:
        session = await runtime.session("s", tools=[survey])
        await session.create_schedule(title="look", cron="*/5 * * * *", tool="survey")
        disk = disk.fork()
    async with process(open_checked, disk, says()) as runtime:
        await trio.sleep(3_600.0)
        assert not runtime.tasks()
        session = await runtime.session("s", tools=[survey])
        await trio.sleep(600.0)
        assert {task.state for task in session.tasks()} <= {TaskState.SUCCEEDED, TaskState.RUNNING}
        assert attempts


async def test_a_session_without_anything_of_its_own_is_taken_up_at_once(
    open_checked: Any, autojump_clock: Any
) -> None:
    """J12: nobody has to ask for it."""
    disk = await killed_while_it_runs(open_checked, "survey", harness={"tools": [survey]})
    async with process(open_checked, disk, says(), tools=[survey]) as runtime:
        await trio.sleep(100.0)
        assert [task.state for task in runtime.tasks()] == [TaskState.SUCCEEDED] and attempts == [1, 2]
