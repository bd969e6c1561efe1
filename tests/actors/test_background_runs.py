"""A call that takes longer than the turn waits: it goes on, untouched, and its end is told once (B1-B5, B8, B9)."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from background_stage import Probe, events_of, only_task, spill_script, until, until_quiet, with_files

from trouper import Budget, CommandRejected, Limits, ToolContext, ToolError, open_runtime, tool
from trouper.actors.runs import RunHost
from trouper.core.task_record import LOG_MAX_CHARS, TAIL_MAX_CHARS, TaskState
from trouper.ground import RUN_THREADS_MAX, RuntimeGround
from trouper.models.scripted import Scripted, call, reply, stall
from trouper.testing.crash_disk import CrashDisk
from trouper.tools.context import Question


async def test_in_time_there_is_a_result_and_no_task(open_checked: Any, autojump_clock: Any) -> None:
    """B1: within the inline budget the model gets the result itself."""
    probe = Probe()
    model = spill_script(seconds=0.2)
    async with open_checked(model, tools=[probe.slow()]) as runtime:
        session = await runtime.session("a")
        await session.ask("go")
        assert not session.tasks()
    assert model.requests[1].messages[-1].answers[0].content == {"done": True, "seconds": 0.2}


async def test_over_budget_the_same_execution_goes_on_as_a_task(
    open_checked: Any, autojump_clock: Any, journal: list[Any]
) -> None:
    """B1, B2: after 300 ms the turn goes on with a result that names the task; nothing runs twice."""
    probe = Probe()
    model = spill_script(seconds=5.0)
    async with open_checked(model, tools=[probe.slow()]) as runtime:
        session = await runtime.session("a")
        began = trio.current_time()
        result = await session.ask("go")
        assert result.text == "It goes on." and abs(trio.current_time() - began - 0.3) < 1e-6
        task = only_task(session)
        notice = model.requests[1].messages[-1].answers[0].content
        assert notice["task_id"] == task.id and "takes longer than 300 ms" in notice["message"]
        assert task.state is TaskState.RUNNING
        await until_quiet(session)
        assert probe.started == ["call_1_1_0"] and not probe.cancelled
        assert only_task(session).state is TaskState.SUCCEEDED
    # B2: the record is in the journal before the model hears of it, and in one step with the call's end.
    spilled = next(record for record in journal if type(record.cause).__name__ == "SpillCalls")
    assert [type(event).__name__ for event in spilled.events][:2] == ["TaskSpilled", "CallEnded"]
    # B3: one entry for its creation, one for its start, one that says why.
    entries = spilled.events[0].task, [(entry.n, entry.what) for entry in task.entries][:3]
    assert entries == (task.about, [(0, "created"), (1, "started"), (2, "progress")])
    assert "took longer than 300 ms" in task.entries[2].text


async def test_budgets_are_per_tool_then_per_session(open_checked: Any, autojump_clock: Any) -> None:
    """B1: the tool's own budget wins over the session's, and that over the runtime's."""
    probe = Probe()
    script = [reply(call("slow", seconds=5.0)), reply("later"), reply("noted")]
    model = Scripted(script, exhausted="cycle")
    async with open_checked(model, tools=[probe.slow(budget_s=1.5)], budget=Budget(inline_s=0.1)) as runtime:
        session = await runtime.session("tool")
        began = trio.current_time()
        await session.ask("go")
        assert abs(trio.current_time() - began - 1.5) < 1e-6
        await until_quiet(session)
    model = Scripted(script, exhausted="cycle")
    async with open_checked(model, tools=[probe.slow()], budget=Budget(inline_s=0.1)) as runtime:
        session = await runtime.session("session", budget=Budget(inline_s=0.7))
        began = trio.current_time()
        await session.ask("go")
        assert abs(trio.current_time() - began - 0.7) < 1e-6
        await until_quiet(session)


async def test_calls_that_begin_together_are_let_go_of_together(
    open_checked: Any, autojump_clock: Any, journal: list[Any]
) -> None:
    """B1, B2: one answer to the model for all of them, at the end of their budget; one that ended in time is not among them."""
    probe = Probe()
    calls = [call("slow", seconds=seconds) for seconds in (5.0, 0.1, 6.0, 7.0)]
    model = Scripted([reply(*calls), reply("They go on."), reply("Noted.")], exhausted="repeat")
    async with open_checked(model, tools=[probe.slow()]) as runtime:
        session = await runtime.session("a")
        began = trio.current_time()
        assert (await session.ask("go")).text == "They go on."
        assert abs(trio.current_time() - began - 0.3) < 1e-6
        assert len(session.tasks()) == 3
        await until_quiet(session)
    [together] = [record.cause for record in journal if type(record.cause).__name__ == "SpillCalls"]
    assert sorted(each.call for each in together.calls) == ["call_1_1_0", "call_1_1_2", "call_1_1_3"]


async def test_calls_that_spill_together_need_a_permit_each(open_checked: Any, autojump_clock: Any) -> None:
    """B2, I19: for those that get none the turn waits on."""
    probe = Probe()
    calls = [call("slow", seconds=seconds) for seconds in (5.0, 6.0, 7.0, 8.0)]
    model = Scripted([reply(*calls), reply("Two go on."), reply("Noted.")], exhausted="repeat")
    for limits in (Limits(runs_per_runtime=2), Limits(runs_per_session=2)):
        async with open_checked(model, tools=[probe.slow()], limits=limits) as runtime:
            session = await runtime.session("a")
            began = trio.current_time()
            assert (await session.ask("go")).text == "Two go on."
            assert abs(trio.current_time() - began - 8.0) < 1e-6
            answers = model.requests[-1].messages[-1].answers
            assert ["takes longer than" in str(answer.content) for answer in answers] == [True, True, False, False]
            await until_quiet(session)
            assert len(session.tasks()) == 2
        model = Scripted([reply(*calls), reply("Two go on."), reply("Noted.")], exhausted="repeat")


async def test_calls_that_begin_one_after_the_other_have_their_budgets_for_themselves(
    open_checked: Any, autojump_clock: Any
) -> None:
    """B1: what waits for a place begins when it has one, and its budget with it."""
    probe = Probe()
    calls = [call("slow", seconds=seconds) for seconds in (0.2, 5.0, 6.0)]
    model = Scripted([reply(*calls), reply("They go on."), reply("Noted.")], exhausted="repeat")
    async with open_checked(model, tools=[probe.slow()], limits=Limits(parallel_calls=2)) as runtime:
        session = await runtime.session("a")
        began = trio.current_time()
        await session.ask("go")
        assert abs(trio.current_time() - began - 0.5) < 1e-6
        began_at = [round(task.created_at, 3) for task in session.tasks()]
        assert round(max(began_at) - min(began_at), 3) == 0.2
        await until_quiet(session)


async def test_a_budget_that_runs_out_goes_before_what_others_have_not_begun(
    open_checked: Any, autojump_clock: Any, journal: list[Any]
) -> None:
    """B1: the replies of twenty models come at the moment at which the time is up; the turn that has waited is served first."""
    probe = Probe()

    def answer(request: Any) -> Any:
        if request.session != "slow":
            return reply(stall(0.3), "Here I am.")
        return reply(call("slow", seconds=5.0)) if len(request.messages) == 1 else reply("It goes on.")

    async with open_checked(Scripted([answer], exhausted="repeat"), tools=[probe.slow()]) as runtime:
        async with trio.open_nursery() as nursery:
            for name in ("slow", *(f"other-{n}" for n in range(20))):
                nursery.start_soon((await runtime.session(name)).ask, "go")
        await until_quiet(await runtime.session("slow"))
    told = [(type(record.cause).__name__, record.session) for record in journal]
    replies = [n for n, (cause, session) in enumerate(told) if cause == "DeliverReply" and session != "slow"]
    assert len(replies) == 20 and told.index(("SpillCalls", "slow")) < replies[0]


async def test_a_tool_that_cannot_go_on_is_waited_for_up_to_its_time_out(
    open_checked: Any, autojump_clock: Any
) -> None:
    """B2: without background support the turn waits on; the hard time-out is told to the model."""

    @tool
    async def stubborn(seconds: float) -> str:
        """Waits."""
        await trio.sleep(seconds)
        return "there"

    model = Scripted([reply(call("stubborn", seconds=60)), reply(call("stubborn", seconds=500)), reply("done")])
    async with open_checked(model, tools=[stubborn]) as runtime:
        session = await runtime.session("a")
        await session.ask("go")
        assert not session.tasks()
    assert model.requests[1].messages[-1].answers[0].content == "there"
    answer = model.requests[2].messages[-1].answers[0]
    assert answer.outcome.value == "timeout" and "120 s" in answer.content


async def test_the_time_out_of_calls_does_not_bind_what_goes_on(open_checked: Any, autojump_clock: Any) -> None:
    """B2: the same execution goes on untouched, for longer than any turn would wait; a tool's own time-out still holds."""
    probe = Probe()
    async with open_checked(spill_script(seconds=500.0), tools=[probe.slow()]) as runtime:
        session = await runtime.session("a")
        await session.ask("go")
        await until_quiet(session)
        assert only_task(session).state is TaskState.SUCCEEDED
    async with open_checked(spill_script(seconds=500.0), tools=[probe.slow(timeout_s=30)]) as runtime:
        session = await runtime.session("a")
        await session.ask("go")
        await until_quiet(session)
        ended = only_task(session)
        assert ended.state is TaskState.FAILED and ended.error is not None and ended.error.kind == "timeout"


async def test_without_a_permit_the_turn_waits_on(open_checked: Any, autojump_clock: Any) -> None:
    """B2, I19: no permit, no task; the call is not lost for it."""
    probe = Probe()
    model = spill_script(seconds=5.0)
    limits = Limits(runs_per_session=0)
    async with open_checked(model, tools=[probe.slow()], limits=limits) as runtime:
        session = await runtime.session("a")
        began = trio.current_time()
        await session.ask("go")
        assert trio.current_time() - began >= 5.0 and not session.tasks()
    assert model.requests[1].messages[-1].answers[0].content == {"done": True, "seconds": 5.0}


async def test_the_task_says_all_about_the_call(open_checked: Any, autojump_clock: Any) -> None:
    """B3: title, instructions, who asked, tags, metadata, origin, owner, and a progress entry for the spill."""
    probe = Probe()
    async with open_checked(spill_script(seconds=5.0), tools=[probe.slow()]) as runtime:
        session = await runtime.session("a")
        await session.ask("go")
        task = only_task(session)
        about = task.about
        assert about.title == "Background call of slow" and "300 ms" in about.instructions
        assert about.requested_by == "inline budget" and about.tags == ("tool-call", "slow")
        assert about.metadata["call_id"] == "call_1_1_0" and about.metadata["budget_ms"] == 300
        assert about.metadata["arguments"] == {"seconds": 5.0} and about.origin_call == "call_1_1_0"
        assert task.owner is not None and task.owner.pid == 1 and task.owner.instance.startswith("instance_")
        assert any(entry.what == "progress" and "goes on in the background" in entry.text for entry in task.entries)
        await until_quiet(session)


async def test_ends_are_told_once_with_what_came_of_them(
    open_checked: Any, autojump_clock: Any, journal: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """B4, I29: succeeded, failed, and ok=false, each with one notification in the record of its end."""

    @tool(background=True)
    async def job(how: str) -> dict[str, Any]:
        """Ends in its own way."""
        await trio.sleep(2.0)
        if how == "raise":
            raise RuntimeError("secret detail 4711")
        if how == "refuse":
            raise ToolError("there is no such hole")
        return {"ok": how == "fine", "error": "it broke"} if how != "fine" else {"ok": True, "result": 7}

    calls = [call("job", how=how) for how in ("fine", "not ok", "refuse", "raise")]
    model = Scripted([reply(*calls), reply("wait"), reply("noted")], exhausted="repeat")
    async with open_checked(model, tools=[job]) as runtime:
        session = await runtime.session("a")
        await session.ask("go")
        await until_quiet(session)
        states = {task.about.spec["arguments"]["how"]: task for task in session.tasks()}
        assert states["fine"].state is TaskState.SUCCEEDED and "Return value:\n7" in states["fine"].summary
        assert states["not ok"].state is TaskState.FAILED and "it broke" in states["not ok"].summary
        assert states["refuse"].state is TaskState.FAILED and "no such hole" in states["refuse"].summary
        # B9: what went wrong inside is as hidden from the model as in the foreground, and in the journal.
        assert states["raise"].state is TaskState.FAILED and "internal error" in states["raise"].summary
    prompt = model.requests[-1].messages[-1].text
    assert "4711" not in prompt and prompt.count("[notification]") == 4
    (failed,) = [event for event in events_of(journal, "TaskFailed") if event.internal]
    assert "secret detail 4711" in failed.internal
    (logged,) = [line for line in caplog.messages if "failed inside (TaskFailed)" in line]
    assert "secret detail 4711" in logged
    for record in journal:
        ends = [e for e in record.events if type(e).__name__ in ("TaskSucceeded", "TaskFailed")]
        told = [e for e in record.events if type(e).__name__ == "NotificationQueued"]
        assert len(ends) == len(told)


async def test_cancelling_reaches_the_tool_at_once_by_either_id(
    open_checked: Any, autojump_clock: Any, journal: list[Any]
) -> None:
    """B5: by call id in the turn, by call id after the spill, by task id; no polling, no time goes by."""
    for by in ("call", "task"):
        probe = Probe()
        async with open_checked(spill_script(seconds=50.0), tools=[probe.slow()]) as runtime:
            session = await runtime.session("a")
            await session.ask("go")
            task, at = only_task(session), trio.current_time()
            await session.cancel("call_1_1_0" if by == "call" else task.id, "enough")
            ended = await session.wait_task(task.id)
            assert trio.current_time() == at and probe.cancelled == ["call_1_1_0"]
            assert ended.state is TaskState.CANCELLED
            await until_quiet(session)
        assert len(events_of(journal, "TaskCancelled")) == 1


async def test_when_a_cancel_returns_the_run_has_ended_and_its_place_is_free(
    open_checked: Any, autojump_clock: Any
) -> None:
    """B5, B6, I24: whoever cancels a run to begin another one is not refused."""
    async with open_checked(spill_script(), tools=[Probe().slow()], limits=Limits(runs_per_session=1)) as runtime:
        session = await runtime.session("a")
        for _ in range(3):
            task = await session.spawn("slow", {"seconds": 50.0})
            await session.cancel(task.id)
            assert session.task(task.id).state is TaskState.CANCELLED  # type: ignore[union-attr]
        await until_quiet(session)


async def test_cancelling_what_has_ended_changes_nothing_by_either_id(open_checked: Any, autojump_clock: Any) -> None:
    """B5: at any time, also after the end."""
    probe = Probe()
    async with open_checked(spill_script(seconds=1.0), tools=[probe.slow()]) as runtime:
        session = await runtime.session("a")
        await session.ask("go")
        await until_quiet(session)
        ended = only_task(session)
        for id in (ended.id, ended.about.origin_call):
            await session.cancel(id)
        assert only_task(session) == ended and ended.state is TaskState.SUCCEEDED


async def test_cancelling_an_open_call_ends_it_for_the_model(open_checked: Any, autojump_clock: Any) -> None:
    """B5: within the turn too."""
    probe = Probe()
    model = spill_script(seconds=50.0)
    async with open_checked(model, tools=[probe.slow()], budget=Budget(inline_s=30)) as runtime:
        session = await runtime.session("a")
        async with session.turn("go") as turn:
            async for event in turn:
                if type(event).__name__ == "CallStarted":
                    await probe.started_event.wait()
                    await session.cancel(event.call)
        assert probe.cancelled == ["call_1_1_0"] and not session.tasks()
    assert model.requests[1].messages[-1].answers[0].outcome.value == "cancelled"


@tool(background=True)
async def deaf() -> str:
    """Does not listen."""
    with trio.CancelScope(shield=True):
        await trio.sleep(60.0)
    return "done anyway"


@pytest.mark.parametrize("grace_s", [5.0, 0.5])
async def test_a_run_that_ignores_its_cancel_is_ended_without_it_and_its_result_is_late(
    open_checked: Any, autojump_clock: Any, journal: list[Any], grace_s: float
) -> None:
    """B5, I9, I24: within the grace period the task is cancelled; what comes later is recorded as late and changes nothing."""

    model = Scripted([reply(call("deaf")), reply("wait"), reply("noted")], exhausted="repeat")
    async with open_checked(model, tools=[deaf], limits=Limits(grace_s=grace_s)) as runtime:
        session = await runtime.session("a")
        await session.ask("go")
        task, at = only_task(session), trio.current_time()
        await session.cancel(task.id)
        open_checked.wall.leap(hours=-24)  # A clock that is set does not make it longer.
        ended = await session.wait_task(task.id)
        assert ended.state is TaskState.CANCELLED and trio.current_time() - at <= grace_s + 1e-6
        await until(session, lambda state: bool(state.tasks.get(task.id).late))
        assert session.task(task.id).state is TaskState.CANCELLED  # type: ignore[union-attr]
        await until_quiet(session)
    assert len(events_of(journal, "TaskEndedLate")) == 1 and len(events_of(journal, "TaskSucceeded")) == 0


async def test_closing_a_session_does_not_wait_for_ever_for_a_run_that_ignores_its_cancel(
    open_checked: Any, autojump_clock: Any
) -> None:
    """I24: its end is on record at once, and whoever closes goes on after the grace period."""

    async with open_checked(Scripted([]), tools=[deaf], limits=Limits(grace_s=2.0)) as runtime:
        session = await runtime.session("a")
        task = await session.spawn("deaf")
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        await session.close()
        assert trio.current_time() - began <= 2.0 + 1e-6
        ended = session.task(task.id)
        assert ended is not None and ended.state is TaskState.CANCELLED


async def test_the_record_follows_what_the_run_says(open_checked: Any, autojump_clock: Any) -> None:
    """B8: status, output and progress reach the task while it runs; and a heartbeat from the start on."""

    @tool(background=True)
    async def chatty(context: ToolContext) -> str:
        """Speaks."""
        context.output("stdout", "before the spill\n")
        await trio.sleep(1.0)
        for number in range(200):
            context.output("stdout", f"line {number}\n")
        context.status("half way")
        context.report_progress(5, 10, "files", "reading")
        await trio.sleep(60.0)
        return "done"

    model = Scripted([reply(call("chatty")), reply("wait"), reply("noted")], exhausted="repeat")
    async with open_checked(model, tools=[chatty], limits=Limits(heartbeat_s=10.0)) as runtime:
        session = await runtime.session("a")
        await session.ask("go")
        started = only_task(session)
        assert started.heartbeat_at == started.started_at
        await trio.sleep(2.0)
        task = only_task(session)
        assert task.detail == "half way" and task.progress is not None and task.progress.current == 5
        assert task.output.tail.endswith("line 199\n") and task.output.chars > 1_500
        await trio.sleep(20.0)
        beaten = only_task(session)
        assert beaten.heartbeat_at is not None and beaten.started_at is not None
        assert beaten.heartbeat_at - beaten.started_at >= 20.0
        await until_quiet(session)


async def test_reports_are_few_however_many_the_tool_makes(
    open_checked: Any, autojump_clock: Any, journal: list[Any]
) -> None:
    """B8: a tool that reports a thousand times a second costs a few records a second, and is never held up."""

    @tool(background=True)
    async def busy(context: ToolContext) -> str:
        """Reports without end."""
        for number in range(5_000):
            context.report_progress(number, 5_000)
            context.output("stdout", "x")
            await trio.sleep(0.001)
        return "done"

    model = Scripted([reply(call("busy")), reply("wait"), reply("noted")], exhausted="repeat")
    async with open_checked(model, tools=[busy]) as runtime:
        session = await runtime.session("a")
        await session.ask("go")
        await until_quiet(session)
        assert only_task(session).output.chars == 5_000 + len("[stdout] ")
    assert len(events_of(journal, "TaskProgressed", "TaskOutputWritten")) <= 2 * 5 * 4 + 4


async def test_every_run_of_a_session_beats_and_reports_for_itself(open_checked: Any, autojump_clock: Any) -> None:
    """B8: whichever came first, and also one that comes when all others have ended."""
    probe = Probe()
    model = Scripted([reply("noted")], exhausted="repeat")
    async with open_checked(model, tools=[probe.slow()], limits=Limits(heartbeat_s=10.0)) as runtime:
        session = await runtime.session("a")
        for _ in range(2):
            first = await session.spawn("slow", {"seconds": 30.0, "say": "one"})
            await trio.sleep(3.0)
            second = await session.spawn("slow", {"seconds": 30.0, "say": "two"})
            await trio.sleep(24.0)
            for each, said in ((first, "one"), (second, "two")):
                found = session.task(each.id)
                assert found is not None and found.heartbeat_at is not None
                assert session._now() - found.heartbeat_at <= 10.0
                assert found.output.tail == f"[stdout] {said}" and found.detail == "digging"
            await until_quiet(session)


async def test_artifacts_are_there_at_the_end(open_checked: Any, autojump_clock: Any, tmp_path: Path) -> None:
    """B9: output.log and result.json in the session's files, for spilled calls too, named in the notification."""
    probe = Probe()
    model = spill_script(seconds=5.0, say="knocking\n")
    async with open_checked(model, tools=[probe.slow()], **with_files(open_checked, tmp_path)) as runtime:
        session = await runtime.session("a")
        await session.ask("go")
        await until_quiet(session)
        task = only_task(session)
    directory = tmp_path / "files" / "a" / ".background" / task.id
    assert (directory / "output.log").read_text() == "[stdout] knocking\n"
    document = json.loads((directory / "result.json").read_text())
    assert document == {"status": "succeeded", "result": {"done": True, "seconds": 5.0}}
    assert task.result_path == f".background/{task.id}/result.json"
    assert task.result_path in model.requests[-1].messages[-1].text


async def test_a_run_may_end_with_a_number_of_any_length(
    open_checked: Any, autojump_clock: Any, tmp_path: Path
) -> None:
    """B4, B9, T2: its digits are in the summary and in result.json."""

    @tool(background=True)
    async def power(base: int) -> dict[str, int]:
        """To the power of two, slowly."""
        await trio.sleep(5.0)
        return {"result": base**2}

    model = Scripted([reply(call("power", base=2**70)), reply("It goes on."), reply("Thanks.")])
    async with open_checked(model, tools=[power], **with_files(open_checked, tmp_path)) as runtime:
        session = await runtime.session("a")
        await session.ask("go")
        await until_quiet(session)
        task = only_task(session)
    assert task.state is TaskState.SUCCEEDED and str(2**140) in task.summary
    document = json.loads((tmp_path / "files" / "a" / task.about.directory / "result.json").read_text())
    assert document == {"status": "succeeded", "result": {"result": str(2**140)}}


async def test_artifacts_of_failed_and_cancelled_runs(open_checked: Any, autojump_clock: Any, tmp_path: Path) -> None:
    """B9: {status, error}; internal text hidden in the files as well, since the model reads them."""

    @tool(background=True)
    async def bad(context: ToolContext) -> str:
        """Fails."""
        context.output("stderr", "oh no")
        await trio.sleep(1.0)
        raise RuntimeError("password hunter2")

    probe = Probe()
    calls = reply(call("bad"), call("slow", seconds=99.0))
    model = Scripted([calls, reply("wait"), reply("noted")], exhausted="repeat")
    async with open_checked(model, tools=[bad, probe.slow()], **with_files(open_checked, tmp_path)) as runtime:
        session = await runtime.session("a")
        await session.ask("go")
        await session.cancel("call_1_1_1")
        await until_quiet(session)
        tasks = {task.about.tool: task for task in session.tasks()}
    root = tmp_path / "files" / "a"
    failed = json.loads((root / str(tasks["bad"].result_path)).read_text())
    assert failed["status"] == "failed" and "hunter2" not in str(failed)
    assert json.loads((root / str(tasks["slow"].result_path)).read_text())["status"] == "cancelled"
    assert (root / ".background" / tasks["bad"].id / "output.log").read_text() == "[stderr] oh no"


@pytest.mark.parametrize("ending", ["grace", "no grace", "close"])
async def test_a_run_that_is_ended_from_outside_leaves_what_it_has_written(
    open_checked: Any, autojump_clock: Any, tmp_path: Path, ending: str
) -> None:
    """B9, T9: `output.log` and `result.json` are there at every end, and the record says where; what comes later changes neither."""

    @tool(background=True)
    async def deaf(context: ToolContext) -> str:
        """Does not listen."""
        context.output("stdout", "so far\n")
        with trio.CancelScope(shield=True):
            await trio.sleep(8.0)
        context.output("stdout", "too late\n")
        return "done anyway"

    limits = Limits(grace_s=0.0 if ending == "no grace" else 5.0)
    async with open_checked(
        Scripted([], exhausted="repeat"), tools=[deaf], limits=limits, **with_files(open_checked, tmp_path)
    ) as runtime:
        session = await runtime.session("a")
        task = await session.spawn("deaf", signal_on_completion=False)
        await trio.testing.wait_all_tasks_blocked()
        await (session.close() if ending == "close" else session.cancel(task.id))
        ended = await session.wait_task(task.id)
        assert ended.state is TaskState.CANCELLED
        assert ended.result_path == f"{task.about.directory}/result.json"
        await trio.sleep(10.0)
    directory = tmp_path / "files" / "a" / task.about.directory
    assert (directory / "output.log").read_text() == "[stdout] so far\n"
    assert json.loads((directory / "result.json").read_text())["status"] == "cancelled"


@pytest.mark.parametrize("late_s", [-1e-9, 0.0, 1e-9])
async def test_a_run_that_ends_as_its_grace_does_leaves_the_files_of_the_end_that_is_on_record(
    open_checked: Any, autojump_clock: Any, tmp_path: Path, late_s: float
) -> None:
    """B9, I9: one of the two ends counts, and the files say which."""

    @tool(background=True)
    async def deaf() -> str:
        """Does not listen."""
        with trio.CancelScope(shield=True):
            await trio.sleep(5.0 + late_s)
        return "done anyway"

    states = set()
    async with open_checked(
        Scripted([], exhausted="repeat"), tools=[deaf], limits=Limits(grace_s=5.0), **with_files(open_checked, tmp_path)
    ) as runtime:
        session = await runtime.session("a")
        for _ in range(8):  # Which of them wakes first is anybody's guess.
            task = await session.spawn("deaf", signal_on_completion=False)
            await trio.testing.wait_all_tasks_blocked()
            await session.cancel(task.id)
            ended = await session.wait_task(task.id)
            await trio.sleep(1.0)
            told = json.loads((tmp_path / "files" / "a" / task.about.directory / "result.json").read_text())
            assert told["status"] == ended.state.value and ended.result_path is not None
            states.add(ended.state)
    assert states <= {TaskState.CANCELLED, TaskState.SUCCEEDED}


@pytest.mark.parametrize("closed_s", [4.5, 5.0, 5.5, 6.0, 6.5])
async def test_a_run_that_ends_as_its_session_is_closed_leaves_the_files_of_the_end_that_is_on_record(
    open_checked: Any, autojump_clock: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed_s: float
) -> None:
    """B9, I9: one of the two ends counts, and the files say which; also while they take their time."""

    async def slowly(ground: RuntimeGround, work: Callable[[], Any]) -> Any:
        await trio.sleep(1.0)
        return work()

    monkeypatch.setattr(RuntimeGround, "in_run_thread", slowly)
    probe = Probe()
    async with open_checked(
        Scripted([], exhausted="repeat"), tools=[probe.slow()], **with_files(open_checked, tmp_path)
    ) as runtime:
        session = await runtime.session("a")
        task = await session.spawn("slow", {"seconds": 5.0, "say": "so far"}, signal_on_completion=False)
        await trio.sleep(closed_s)
        await session.close()
        ended = session.task(task.id)
        await trio.sleep(10.0)
    directory = tmp_path / "files" / "a" / task.about.directory
    assert json.loads((directory / "result.json").read_text())["status"] == ended.state.value
    assert ended.result_path == f"{task.about.directory}/result.json"
    assert (directory / "output.log").read_text().startswith("[stdout] so far")


async def test_a_call_that_ends_while_its_session_has_no_room_to_hear_of_its_spill_crashes_nothing(
    open_checked: Any,
    autojump_clock: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """B2, I22: a full mailbox is waited for."""

    async def slowly(ground: RuntimeGround, work: Callable[[], Any]) -> Any:
        await trio.sleep(3.0)
        return work()

    monkeypatch.setattr(RuntimeGround, "in_run_thread", slowly)
    model = Scripted([reply(call("slow", seconds=60.0)), reply("It goes on."), reply(call("slow", seconds=0.6))])
    async with (
        open_checked(
            model, tools=[Probe().slow()], limits=Limits(mailbox=1), **with_files(open_checked, tmp_path)
        ) as runtime,
        trio.open_nursery() as nursery,
    ):
        session = await runtime.session("a")
        await session.ask("begin")
        nursery.start_soon(session.ask, "and again")
        await trio.sleep(0.1)
        nursery.start_soon(session.close)
        await trio.sleep(0.1)
        with pytest.raises(CommandRejected, match="closed"):
            await session.send("is there room?")
    assert "crashed" not in caplog.text


async def test_without_a_grace_period_a_run_that_stops_at_once_still_leaves_its_files(
    open_checked: Any, autojump_clock: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """B9: the grace is for tools that take their time to stop, and not for the writing of their files."""
    probe = Probe()
    async with open_checked(
        Scripted([], exhausted="repeat"),
        tools=[probe.slow()],
        limits=Limits(grace_s=0.0),
        **with_files(open_checked, tmp_path),
    ) as runtime:
        session = await runtime.session("a")
        task = await session.spawn("slow", {"seconds": 60.0, "say": "so far"}, signal_on_completion=False)
        await probe.started_event.wait()
        await session.cancel(task.id)
        ended = await session.wait_task(task.id)
        assert ended.state is TaskState.CANCELLED and ended.result_path is not None
        quick = await session.spawn("slow", {"seconds": 0.1}, signal_on_completion=False)
        done = await session.wait_task(quick.id)
        assert done.state is TaskState.SUCCEEDED and done.result_path is not None
    directory = tmp_path / "files" / "a" / task.about.directory
    assert (directory / "output.log").read_text() == "[stdout] so far"
    assert json.loads((directory / "result.json").read_text())["status"] == "cancelled"
    assert "not written" not in caplog.text


async def test_runs_that_end_together_have_their_files_written_by_few(tmp_path: Path) -> None:
    """B5, B9: each thread competes with the event loop, and a cancel must not wait for all of them."""
    async with open_runtime(tmp_path, durability="memory") as runtime:
        ground = (await runtime.session("a"))._ground
        go_on, entered = threading.Event(), threading.Semaphore(0)

        def write() -> None:
            entered.release()
            assert go_on.wait(60)

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ground.in_run_thread, write)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(RUN_THREADS_MAX):
                await trio.to_thread.run_sync(lambda: entered.acquire(timeout=60))
            assert not entered.acquire(blocking=False)
            go_on.set()
        assert all(entered.acquire(blocking=False) for _ in range(5 - RUN_THREADS_MAX))


async def test_the_log_is_capped_with_a_note_and_the_tail_is_live(
    open_checked: Any, autojump_clock: Any, tmp_path: Path
) -> None:
    """B8: 262,144 characters and a visible note; the tail goes on."""

    @tool(background=True)
    async def flood(context: ToolContext) -> str:
        """Too much."""
        await trio.sleep(1.0)
        for _ in range(40):
            context.output("stdout", "x" * 10_000)
            await trio.sleep(0.1)
        context.output("stdout", "the very end")
        return "done"

    model = Scripted([reply(call("flood")), reply("wait"), reply("noted")], exhausted="repeat")
    async with open_checked(model, tools=[flood], **with_files(open_checked, tmp_path)) as runtime:
        session = await runtime.session("a")
        await session.ask("go")
        await until_quiet(session)
        task = only_task(session)
    log = (tmp_path / "files" / "a" / ".background" / task.id / "output.log").read_text()
    note = f"\n[system] output truncated at {LOG_MAX_CHARS} characters\n"
    assert log.endswith(note) and len(log) == LOG_MAX_CHARS + len(note)
    assert task.output.tail.endswith("the very end") and len(task.output.tail) == TAIL_MAX_CHARS
    assert task.output.truncated


async def test_a_result_that_comes_with_the_spill_has_its_artifacts_too(
    open_checked: Any, autojump_clock: Any, tmp_path: Path
) -> None:
    """B2, B9: the tool returns at the very instant at which the turn lets it go."""
    probe = Probe()
    for number in range(5):
        model = spill_script(seconds=0.3)
        settings = with_files(open_checked, tmp_path / str(number))
        async with open_checked(model, tools=[probe.slow()], **settings) as runtime:
            session = await runtime.session("a")
            await session.ask("go")
            await until_quiet(session)
            for task in session.tasks():
                assert task.state is TaskState.SUCCEEDED and task.result_path is not None


def test_the_session_actor_is_what_runs_expect() -> None:
    """The protocol between `runs` and `session` is checked here and by mypy, not at run time."""
    from trouper.actors.session import SessionActor

    names = {name for name in vars(RunHost) if not name.startswith("_")}
    assert names <= {*dir(SessionActor), *SessionActor.__annotations__}


async def test_without_a_record_there_is_no_background_run(open_checked: Any, autojump_clock: Any) -> None:
    """B2: the disk is full when the turn wants to let go; the call is cancelled, and the model is told why."""
    disk = CrashDisk()
    probe = Probe()
    model = spill_script(seconds=50.0)
    async with open_checked(
        model, tools=[probe.slow()], disk=disk, durability="fsync", budget=Budget(inline_s=30)
    ) as runtime:
        session = await runtime.session("a")
        async with session.turn("go") as turn:
            async for event in turn:
                if type(event).__name__ == "CallStarted":
                    await probe.started_event.wait()
                    disk.fill(leaving=0)
                    await session.notify(
                        "Ding", wake=False
                    )  # The first write that finds no room: the reserve takes it.
        assert turn.result is not None
        assert probe.cancelled == ["call_1_1_0"] and not session.tasks()
        disk.capacity = None
    answer = model.requests[1].messages[-1].answers[0]
    assert answer.outcome.value == "cancelled" and "could not be recorded" in answer.content


async def test_without_records_all_calls_of_the_step_are_cancelled_however_full_the_mailbox_is(
    open_checked: Any, autojump_clock: Any
) -> None:
    """B2: none of them goes on, or keeps the turn waiting, because there was no room to say that it has to end."""
    disk = CrashDisk()
    probe = Probe()
    model = Scripted([reply(*[call("slow", seconds=50.0)] * 3), reply("Too bad.")])
    limits = Limits(mailbox=1)
    async with open_checked(
        model, tools=[probe.slow()], disk=disk, durability="fsync", budget=Budget(inline_s=30), limits=limits
    ) as runtime:
        session = await runtime.session("a")
        async with session.turn("go") as turn:
            async for event in turn:
                if (
                    type(event).__name__ == "CallStarted" and disk.capacity is None
                ):  # Once: they may all run by now, or none.
                    await trio.testing.wait_all_tasks_blocked()
                    disk.fill(leaving=0)
                    await session.notify("Ding", wake=False)
        assert len(probe.cancelled) == 3 and not session.tasks()
        assert trio.current_time() < 31
        disk.capacity = None
    answers = model.requests[1].messages[-1].answers
    assert ["could not be recorded" in answer.content for answer in answers] == [True] * 3


# --- calls that ask the user, and then go on (B11) ---


def asking(*questions: str, timeout_s: float | None = None) -> Any:
    """A tool that asks all of them at once, at once."""

    @tool(background=True)
    async def painter(context: ToolContext) -> list[str]:
        """Needs to know."""
        heard: dict[str, str] = {}

        async def ask(question: str) -> None:
            given = await context.ask_user(Question(question), timeout_s=timeout_s)
            heard[question] = str(given.values[0]) if given.values else given.status

        async with trio.open_nursery() as nursery:
            for question in questions:
                nursery.start_soon(ask, question)
        return [heard[question] for question in questions]

    return painter


def awaited(state: Any) -> str | None:
    """What the one task waits for."""
    tasks = list(state.tasks.live.values())
    if not tasks or tasks[0].state is not TaskState.AWAITING_INPUT:
        return None
    return str(tasks[0].input_request["questions"][0]["text"])


def painting() -> Scripted:
    return Scripted([reply(call("painter")), reply("It goes on."), reply("Noted.")], exhausted="repeat")


async def test_a_call_that_asked_before_it_spilled_waits_for_input_on_the_record(
    open_checked: Any, autojump_clock: Any, journal: list[Any]
) -> None:
    """B11: a question that is open when the turn lets go of the call is the task's from then on."""
    async with open_checked(painting(), tools=[asking("Which colour?")]) as runtime:
        session = await runtime.session("a")
        await session.ask("go")
        await until(session, lambda state: awaited(state) == "Which colour?")
        (open_question,) = session.questions
        assert open_question.task_id == only_task(session).id
        await session.answer_question(open_question.id, "blue")
        await until_quiet(session)
        assert only_task(session).result == ["blue"] and not session.questions
    assert [event.answer["values"] for event in events_of(journal, "TaskInputAnswered")] == [["blue"]]


async def test_an_answer_to_the_task_is_an_answer_to_its_call(open_checked: Any, autojump_clock: Any) -> None:
    """B11: whoever knows only the task can answer it."""
    async with open_checked(painting(), tools=[asking("Which colour?")]) as runtime:
        session = await runtime.session("a")
        await session.ask("go")
        await until(session, lambda state: awaited(state) == "Which colour?")
        await session.answer_task(only_task(session).id, "red")
        assert (await session.wait_task(only_task(session).id)).result == ["red"]


async def test_an_answer_that_comes_with_the_spill_leaves_nothing_waiting(
    open_checked: Any, autojump_clock: Any, journal: list[Any]
) -> None:
    """B11: in whichever order the two are decided."""
    async with open_checked(painting(), tools=[asking("Which colour?")]) as runtime:
        session = await runtime.session("a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.ask, "go")
            await until(session, lambda state: bool(state.tasks.live))
            await session.answer_question(session.questions[0].id, "blue")
        await until_quiet(session)
        assert only_task(session).result == ["blue"]
    asked, answered = (len(events_of(journal, kind)) for kind in ("TaskInputRequested", "TaskInputAnswered"))
    assert asked == answered <= 1


async def test_questions_of_one_run_are_put_on_its_record_one_after_the_other(
    open_checked: Any, autojump_clock: Any, journal: list[Any]
) -> None:
    """B11: a task waits for one thing at a time; those that it asks meanwhile stand in line."""
    answers = {"Which colour?": "blue", "How much?": "a lot", "When?": "now"}
    async with open_checked(painting(), tools=[asking(*answers)]) as runtime:
        session = await runtime.session("a")
        await session.ask("go")
        left = set(answers)
        while left:
            await until(session, lambda state: awaited(state) in left)
            question = awaited(session._state)
            assert question is not None and len(session.questions) == len(left)
            left.remove(question)
            await session.answer_task(only_task(session).id, answers[question])
        await until_quiet(session)
        assert only_task(session).result == list(answers.values())
    assert len(events_of(journal, "TaskInputRequested")) == len(events_of(journal, "TaskInputAnswered")) == 3


async def test_a_question_that_lapses_lets_its_task_run_on(
    open_checked: Any, autojump_clock: Any, journal: list[Any]
) -> None:
    """B11, T16: nobody answers in time."""
    async with open_checked(painting(), tools=[asking("Which colour?", timeout_s=5.0)]) as runtime:
        session = await runtime.session("a")
        await session.ask("go")
        await until_quiet(session)
        assert only_task(session).result == ["timed_out"]
    assert [event.answer["status"] for event in events_of(journal, "TaskInputAnswered")] == ["timed_out"]


async def test_a_run_that_no_longer_waits_for_its_question_is_running(open_checked: Any, autojump_clock: Any) -> None:
    """B11: a tool may give up by its own scope; its task must not wait for input for ever."""

    @tool(background=True)
    async def painter(context: ToolContext) -> str:
        """Does not wait for long."""
        with trio.move_on_after(2.0):
            await context.ask_user(Question("Which colour?"))
        await trio.sleep(5.0)
        return "grey"

    async with open_checked(painting(), tools=[painter]) as runtime:
        session = await runtime.session("a")
        await session.ask("go")
        await until(session, lambda state: awaited(state) == "Which colour?")
        await until(session, lambda state: next(iter(state.tasks.live.values())).state is TaskState.RUNNING)
        assert not session.questions
        assert (await session.wait_task(only_task(session).id)).result == "grey"


# --- many of them ---


async def test_a_run_under_way_is_light(open_checked: Any, autojump_clock: Any) -> None:
    """B2: the garbage collector looks through all that is alive, and every budget that runs out meanwhile waits for it.

    A task that sleeps is 22 objects of trio's own, and a record with its history a dozen; the rest is what a run costs.
    """
    probe, runs = Probe(), 40
    calls = reply(*(call("slow", seconds=1_000.0) for _ in range(runs)))
    model = Scripted([calls, reply("They go on."), calls, reply("They go on.")], exhausted="repeat")
    limits = Limits(runs_per_session=runs, runs_per_runtime=2 * runs, parallel_calls=runs)
    async with open_checked(model, tools=[probe.slow()], limits=limits) as runtime:
        first, second = await runtime.session("first"), await runtime.session("second")
        await first.ask("go")  # What is made once, by the first that needs it, is there from here on.
        gc.collect()
        before = len(gc.get_objects())
        await second.ask("go")
        gc.collect()
        held = (len(gc.get_objects()) - before) / runs
        assert len(second.tasks(state="running")) == runs and held < 55, f"{held:.1f} objects a run"
        for session in (first, second):
            await session.close()


@pytest.mark.parametrize("limits", [Limits(runs_per_session=2), Limits(runs_per_runtime=2)], ids=["session", "runtime"])
async def test_where_limits_were_lowered_as_many_runs_go_on_as_they_allow(
    open_checked: Any, autojump_clock: Any, limits: Limits
) -> None:
    """B10, I19: after a restart; only those that are too many end."""
    disk, probe = CrashDisk(), Probe()
    settings = {"tools": [probe.slow(idempotent=True)], "complete": False}
    async with open_checked(Scripted([]), disk=disk, **settings) as runtime:
        session = await runtime.session("a")
        for _ in range(4):
            await session.spawn("slow", {"seconds": 50.0})
        left = disk.fork()
    async with open_runtime(
        "/state",
        model=Scripted([reply("noted")], exhausted="repeat"),
        disk=left,
        durability="memory",
        environment=open_checked.environment(),
        tools=settings["tools"],
        limits=limits,
    ) as runtime:
        session = await runtime.session("a")
        await until_quiet(session)
        assert sorted(task.state.value for task in session.tasks()) == ["interrupted"] * 2 + ["succeeded"] * 2
    open_checked.check(left)


@pytest.mark.parametrize("how", ["session", "tasks", "a task of its own"])
@pytest.mark.parametrize("spilled", [False, True])
async def test_a_run_that_waits_for_itself_is_refused_at_once(
    open_checked: Any, autojump_clock: Any, how: str, spilled: bool
) -> None:
    """I26: it waited for its own end, for good."""
    refused: list[str] = []

    async def wait(context: ToolContext, id: str) -> None:
        with pytest.raises(ToolError if how == "tasks" else CommandRejected, match="is this very run") as told:
            await (context.tasks.wait(id, timeout_s=300) if how == "tasks" else session.wait_task(id))
        refused.append(str(told.value))

    @tool(background=True)
    async def patient(context: ToolContext) -> str:
        """Waits for itself."""
        await trio.sleep(1.0)
        id = only_task(session).id
        if how == "a task of its own":
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait, context, id)
        else:
            await wait(context, id)
        return "done"

    script = [reply(call("patient")), reply("It goes on.")] if spilled else []
    async with open_checked(Scripted([*script, reply("Noted.")]), tools=[patient]) as runtime:
        session = await runtime.session("a")
        await (session.ask("go") if spilled else session.spawn("patient"))
        with trio.fail_after(60):
            ended = await session.wait_task(only_task(session).id)
        assert (ended.state, len(refused)) == (TaskState.SUCCEEDED, 1)
        assert ended.finished_at is not None and ended.finished_at - ended.created_at < 2.0


async def test_runs_that_would_wait_for_each_other_are_refused_and_all_others_wait(
    open_checked: Any, autojump_clock: Any
) -> None:
    """I26: the last of the ring is refused; then they end one after the other. Who is in no ring waits."""
    told: dict[str, str] = {}

    @tool(background=True)
    async def patient(name: str, delay_s: float, other: str) -> str:
        """Waits for another."""
        await trio.sleep(delay_s)
        try:
            told[name] = (await session.wait_task(ids[other])).state.value
        except CommandRejected as refusal:
            told[name] = refusal.message
        return name

    async with open_checked(Scripted([reply("Noted.")], exhausted="repeat"), tools=[patient]) as runtime:
        session = await runtime.session("a")
        ids: dict[str, str] = {}
        for number, (name, other) in enumerate(zip("abcd", "bcaa", strict=True), 1):
            arguments = {"name": name, "delay_s": float(number), "other": other}
            ids[name] = (await session.spawn("patient", arguments)).id
        with trio.fail_after(60):
            await until_quiet(session)
    assert "waits for this run" in told.pop("c")
    assert told == {"a": "succeeded", "b": "succeeded", "d": "succeeded"}
