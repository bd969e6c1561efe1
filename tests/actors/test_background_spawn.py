"""spawn_background, the limits, task records and their tools; what a restart makes of runs (B6, B7, B10-B13)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from background_stage import Probe, events_of, only_task, spill_script, until, until_quiet, with_files

from trouper import CommandRejected, Hooks, Limits, Rule, ToolContext, ToolError, UsageError, open_runtime, tool
from trouper.core import task_text
from trouper.core.task_record import Link, Output, TaskState, append_output
from trouper.journal import JournalFailed, JournalLocked
from trouper.models.scripted import Scripted, call, reply
from trouper.testing.crash_disk import CrashDisk, Fate, PowerCut
from trouper.tools.context import Question
from trouper.tools.hooks import AfterTool


def spawn(name: str = "slow", args: dict[str, Any] | None = None, **options: Any) -> Any:
    return call("spawn_background", {"tool": name, "args": args or {}, **options})


def answers(model: Scripted, request: int = 1) -> list[Any]:
    return [answer.content for answer in model.requests[request].messages[-1].answers]


async def test_it_returns_at_once_and_the_end_comes_as_a_notification(
    open_checked: Any, autojump_clock: Any, tmp_path: Path
) -> None:
    """B6, B7, B9: ids and paths at once; the files and one signal at the end."""
    probe = Probe()
    model = Scripted([reply(spawn(args={"seconds": 9.0}, title="Dig")), reply("It runs."), reply("Noted.")])
    async with open_checked(model, tools=[probe.slow()], **with_files(open_checked, tmp_path)) as runtime:
        session = await runtime.session("a")
        began = trio.current_time()
        await session.ask("go")
        assert trio.current_time() == began
        task = only_task(session)
        (told,) = answers(model)
        assert told["run_id"].startswith("bg_") and told["task_id"] == task.id and told["title"] == "Dig"
        assert told["status"] == "running" and told["artifact_dir"] == f".background/{told['run_id']}"
        assert told["log_path"].endswith("/output.log") and told["result_path"].endswith("/result.json")
        assert task.about.kind == "background" and task.about.requested_by == "spawn_background"
        await until_quiet(session)
    prompt = model.requests[-1].messages[-1].text
    for part in (told["run_id"], told["task_id"], "Dig", "slow", told["result_path"], told["log_path"]):
        assert part in prompt
    assert json.loads((tmp_path / "files" / "a" / told["result_path"]).read_text())["status"] == "succeeded"


async def test_what_runs_is_what_was_recorded_whatever_its_giver_does_with_the_arguments(
    open_checked: Any, autojump_clock: Any
) -> None:
    """I10, B6, B19: of runs and of schedules."""
    ran: list[list[int]] = []

    @tool(background=True)
    async def keep(numbers: list[int]) -> None:
        """Keep some numbers."""
        ran.append(numbers)

    async with open_checked(Scripted([reply("Noted.")], exhausted="repeat"), tools=[keep]) as runtime:
        session = await runtime.session("a")
        arguments = {"numbers": [1]}
        task = await session.spawn("keep", arguments)
        await session.create_schedule(title="later", cron="* * * * *", tool="keep", arguments=arguments)
        arguments["numbers"].append(2)
        await session.wait_task(task.id)
        await until(session, lambda state: len(state.tasks.ended) == 2)
        (schedule,) = session.schedules()
        assert schedule.action.arguments == task.about.spec["arguments"] == {"numbers": [1]}
        await session.cancel_schedule(schedule.id)
    assert ran == [[1], [1]]


async def test_a_tool_that_changes_what_it_is_shown_changes_no_record(open_checked: Any, autojump_clock: Any) -> None:
    """I10, T7: tasks and schedules are shown as plain data, which is the tool's own."""

    @tool(background=True)
    async def pack(what: dict[str, Any]) -> dict[str, Any]:
        """Pack something."""
        return {"packed": [what]}

    @tool
    async def tidy(context: ToolContext) -> int:
        """Takes out of what it sees what it does not want to see."""
        (listed,) = await context.tasks.list()
        shown = [
            await context.tasks.get(listed["task_id"]),
            await context.tasks.wait(listed["task_id"], timeout_s=1.0),
            *await context.schedules.list(),
            await context.schedules.create(title="More", cron="0 0 * * *", tool="pack", arguments={"what": {"box": 2}}),
        ]
        for each in shown:
            assert each is not None
            each["arguments"]["what"].clear()
            if "result" in each:
                each["result"]["packed"].clear()
        return len(shown)

    model = Scripted([reply(call("tidy")), reply("Tidy.")])
    async with open_checked(model, tools=[pack, tidy]) as runtime:
        session = await runtime.session("a")
        task = await session.spawn("pack", {"what": {"box": 1}}, signal_on_completion=False)
        await session.wait_task(task.id)
        made = await session.create_schedule(
            title="Some", cron="0 0 * * *", tool="pack", arguments={"what": {"box": 2}}
        )
        made["arguments"]["what"].clear()
        await session.ask("tidy up")
        assert answers(model) == [4]
        found = await runtime.task_detail(task.id)
        assert found is not None
        found.result["packed"].clear()
        kept = session.task(task.id)
        assert kept is not None and kept.about.spec["arguments"] == {"what": {"box": 1}}
        assert kept.result == {"packed": [{"box": 1}]}
        assert [each.action.arguments for each in session.schedules()] == [{"what": {"box": 2}}] * 2


async def test_refusals_are_clear(open_checked: Any, autojump_clock: Any) -> None:
    """B6: unknown tool, itself, no background support, arguments that do not fit: each a ToolError that says what to do."""

    @tool
    async def quick(n: int) -> int:
        """At once."""
        return n

    @tool(background=True, policy="requires_approval")
    async def risky() -> str:
        """Asks first."""
        raise AssertionError("never runs without an approval")

    @tool(background=True, policy="client_side")
    async def shown() -> str:
        """The host shows it."""
        raise AssertionError("the host answers this call")

    calls = [
        spawn("sluw"),
        spawn("spawn_background"),
        spawn("quick", {"n": 1}),
        spawn("slow", {"seconds": "soon"}),
        spawn("risky"),
        spawn("shown"),
    ]
    model = Scripted([reply(*calls), reply("I see.")])
    async with open_checked(model, tools=[Probe().slow(), quick, risky, shown]) as runtime:
        session = await runtime.session("a")
        await session.ask("go")
        assert not session.tasks()
    unknown, itself, quickly, wrong, asking, held = answers(model)
    assert "There is no tool 'sluw'. Did you mean 'slow'" in unknown
    assert "cannot run itself" in itself
    assert "'quick' cannot run in the background; call it directly" in quickly and "slow" in quickly
    assert "seconds" in wrong
    # T4: what needs an approval does not get around it by way of the background.
    assert "needs an approval" in asking
    assert "'shown' is for the application to carry out, and cannot run in the background; call it directly" in held


async def test_policies_and_hooks_hold_for_runs_too(open_checked: Any, autojump_clock: Any) -> None:
    """T4, T5: a run does what a call does, so it is asked the same questions."""
    asked: list[str] = []

    async def before(event: Any) -> Any:
        asked.append(event.tool if isinstance(event.tool, str) else event.tool.name)

    rules = [Rule("slow", "deny", reason="no digging here")]
    async with open_checked(Scripted([]), tools=[Probe().slow()], policies=rules) as runtime:
        session = await runtime.session("a")
        with pytest.raises(CommandRejected, match="no digging here"):
            await session.spawn("slow")
    hooks = [Hooks(before_tool=before)]
    async with open_checked(
        Scripted([reply("ok")], exhausted="repeat"), tools=[Probe().slow()], hooks=hooks
    ) as runtime:
        session = await runtime.session("a")
        await session.spawn("slow")
        await until_quiet(session)
    assert asked == ["slow"]


@pytest.mark.parametrize(
    ("ends", "outcome", "content"),
    [
        ("by itself", "ok", {"done": True, "seconds": 5.0}),
        ("in an error", "error", "The ground is too hard."),
        ("cancelled", "cancelled", None),
        ("with its session", "cancelled", None),
    ],
)
@pytest.mark.parametrize("spawned", [False, True])
async def test_hooks_hear_of_the_end_of_a_run(
    open_checked: Any, autojump_clock: Any, spawned: bool, ends: str, outcome: str, content: Any
) -> None:
    """T5: what they were asked about before, they are told of afterwards. A call that was let go has an end of its own behind that of its turn's."""
    seen: list[AfterTool] = []

    @tool(background=True)
    async def dig(seconds: float) -> None:
        """Dig."""
        await trio.sleep(seconds)
        raise ToolError("The ground is too hard.")

    used = dig if ends == "in an error" else Probe().slow()
    script = [] if spawned else [reply(call(used.name, seconds=5.0)), reply("It goes on.")]
    model = Scripted([*script, reply("Noted.")], exhausted="repeat")
    async with open_checked(model, tools=[used], hooks=[Hooks(after_tool=seen.append)]) as runtime:
        session = await runtime.session("a")
        if spawned:
            await session.spawn(used, {"seconds": 5.0})
        else:
            await session.ask("go")
        task = only_task(session)
        if ends == "cancelled":
            await session.cancel(task.id)
        elif ends == "with its session":
            await session.close()
        else:
            await until_quiet(session)
    end = AfterTool("a", used.name, {"seconds": 5.0}, outcome, content, "" if spawned else "call_1_1_0", task.id)
    assert seen[-1] == end
    assert [(about.outcome, about.task_id) for about in seen[:-1]] == ([] if spawned else [("ok", "")])


@pytest.mark.parametrize("spawned", [False, True])
async def test_hooks_are_told_of_a_long_result_what_the_model_is(
    open_checked: Any, autojump_clock: Any, tmp_path: Path, spawned: bool
) -> None:
    """T5, B9: its beginning and where the whole is. One that is too long for the record is not one that returned nothing."""
    seen: list[AfterTool] = []

    @tool(background=True)
    async def dig(sizes: int) -> str | None:
        """Dig."""
        await trio.sleep(5.0)
        return "earth " * sizes or None

    script = (
        [] if spawned else [reply(call("dig", sizes=2_000)), reply("on"), reply("Noted."), reply(call("dig", sizes=0))]
    )
    model = Scripted([*script, reply("Noted.")], exhausted="repeat")
    options = with_files(open_checked, tmp_path)
    async with open_checked(model, tools=[dig], hooks=[Hooks(after_tool=seen.append)], **options) as runtime:
        session = await runtime.session("a")
        for sizes in (2_000, 0):
            if spawned:
                await session.spawn(dig, {"sizes": sizes})
            else:
                await session.ask("go")
            await until_quiet(session)
        paths = {task.id: task.result_path for task in session.tasks()}
    long, nothing = (about for about in seen if about.task_id)
    assert (long.outcome, nothing.outcome, nothing.content) == ("ok", "ok", None)
    prompts = [request.messages[-1].text for request in model.requests]
    assert any(all(f"> {line}\n" in prompt for line in long.content.splitlines()) for prompt in prompts)
    (path,) = (line.removeprefix("result: ") for line in long.content.splitlines() if line.startswith("result: "))
    assert path == paths[long.task_id]
    assert json.loads((tmp_path / "files" / "a" / path).read_text())["result"] == "earth " * 2_000


async def test_hooks_hear_of_a_run_that_another_process_left_behind(open_checked: Any, autojump_clock: Any) -> None:
    """T5, B10: whichever process it was begun in."""
    machine, seen = Machine(open_checked), list[AfterTool]()
    await left_running(machine, spill_script(seconds=50.0), Probe())
    hooks = [Hooks(after_tool=seen.append)]
    async with machine.open(model=Scripted([reply("noted")]), tools=[Probe().slow()], hooks=hooks) as runtime:
        session = await runtime.session("a")
        await until_quiet(session)
        (about,) = seen
        assert (about.outcome, about.call_id, about.task_id) == ("unknown", "call_1_1_0", only_task(session).id)


async def test_limits_hold_and_permits_come_back_on_every_path(
    open_checked: Any, autojump_clock: Any, journal: list[Any]
) -> None:
    """B6, I19: 5 a session and 64 a runtime; succeeded, failed, cancelled and closed all give their permit back."""

    @tool(background=True)
    async def job(how: str = "wait") -> str:
        """Ends in its own way."""
        await trio.sleep(1.0 if how != "wait" else 1_000.0)
        if how == "fail":
            raise ToolError("no")
        return "done"

    model = Scripted([reply("noted")], exhausted="repeat")
    limits = Limits(runs_per_session=5, runs_per_runtime=8)
    async with open_checked(model, tools=[job], limits=limits) as runtime:
        one, two = await runtime.session("one"), await runtime.session("two")
        for how in ("fine", "fail", "wait", "wait", "wait"):
            await one.spawn("job", {"how": how})
        with pytest.raises(CommandRejected, match="this session already has 5 active background runs"):
            await one.spawn("job")
        for _ in range(3):
            await two.spawn("job")
        with pytest.raises(CommandRejected, match="this runtime already has 8"):
            await two.spawn("job")
        await trio.sleep(2.0)
        assert runtime.permits.total == 6
        await one.cancel(one.tasks(state="running").tasks[0].id)
        await trio.sleep(0.0)
        await until(one, lambda state: state.tasks.active == 2)
        assert runtime.permits.total == 5
        await two.close()
        assert runtime.permits.total == 2
        for _ in range(3):
            await one.spawn("job", {"how": "fine"})
        for task in one.tasks(state="running"):
            await one.cancel(task.id)
        await until_quiet(one)
        assert runtime.permits.total == 0


async def test_spawned_at_once_in_many_sessions_the_limit_still_holds(open_checked: Any, autojump_clock: Any) -> None:
    """I19: sessions decide while others wait for the disk; the checker looks at every prefix of the journal."""
    limits = Limits(runs_per_session=5, runs_per_runtime=7)
    model = Scripted([reply("noted")], exhausted="repeat")
    refused = 0
    async with open_checked(model, tools=[Probe().slow()], limits=limits) as runtime:
        sessions = [await runtime.session(f"s{number}") for number in range(6)]

        async def greedy(session: Any) -> None:
            nonlocal refused
            for _ in range(4):
                try:
                    await session.spawn("slow")
                except CommandRejected:
                    refused += 1

        async with trio.open_nursery() as nursery:
            for session in sessions:
                nursery.start_soon(greedy, session)
        assert runtime.permits.total == 7 and refused == 6 * 4 - 7
        for session in sessions:
            await until_quiet(session)
        assert runtime.permits.total == 0


async def test_a_silent_run_wakes_nobody(open_checked: Any, autojump_clock: Any) -> None:
    """B6: signal_on_completion=false; its end goes along with the next notification that does wake."""
    model = Scripted([reply(spawn(args={"seconds": 1.0}, signal_on_completion=False)), reply("ok"), reply("both")])
    async with open_checked(model, tools=[Probe().slow()]) as runtime:
        session = await runtime.session("a")
        await session.ask("go")
        await session.wait_task(only_task(session).id)
        await trio.sleep(100.0)
        assert len(model.requests) == 2
        await session.notify("Also", "this")
        await until_quiet(session)
    assert model.requests[-1].messages[-1].text.count("[notification]") == 2


# --- restarts (B10) ---


@attrs.define
class Machine:
    """One disk, and processes on it, each started and killed in virtual time."""

    open_checked: Any
    disk: CrashDisk = attrs.Factory(CrashDisk)
    processes: int = 0

    def environment(self) -> Any:
        self.processes += 1
        return attrs.evolve(self.open_checked.environment(), pid=100 + self.processes)

    def open(self, **settings: Any) -> Any:
        return open_runtime("/state", environment=self.environment(), disk=self.disk, **settings)

    def kill(self) -> None:
        """What was synced is there, and nothing else is certain."""
        self.disk = self.disk.crash(Fate.KEPT)


class Killed(BaseException):
    """Stands for SIGKILL."""


async def left_running(machine: Machine, model: Scripted, probe: Probe, **options: Any) -> None:
    """A process that dies while a run is under way."""
    try:
        async with machine.open(model=model, tools=[probe.slow(**options)]) as runtime:
            session = await runtime.session("a")
            if not session.tasks():
                await session.ask("go")
            await until(session, lambda state: state.tasks.active == 1)
            await trio.testing.wait_all_tasks_blocked()
            machine.disk.cut_power_before(machine.disk.steps + 1)
            raise Killed
    except BaseException as error:
        assert _only_kill(error), error
    machine.kill()


def _only_kill(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_only_kill(each) for each in error.exceptions)
    return isinstance(error, Killed | PowerCut | JournalFailed)


async def test_an_idempotent_run_is_attached_again_at_most_three_times_in_all(
    open_checked: Any, autojump_clock: Any, journal: list[Any]
) -> None:
    """B10: attempt + 1, from the runtime's own registry; the fourth process gives it up as interrupted, with one notification."""
    machine, probe = Machine(open_checked), Probe()
    for _ in range(3):
        await left_running(machine, spill_script(seconds=500.0), probe, idempotent=True)
    assert probe.attempts == [1, 2, 3]
    model = Scripted([reply("noted")])
    async with machine.open(model=model, tools=[probe.slow(idempotent=True)]) as runtime:
        session = await runtime.session("a")
        await until_quiet(session)
        task = only_task(session)
        assert task.state is TaskState.INTERRUPTED and "tried 3 times" in task.summary
    assert probe.attempts == [1, 2, 3]
    open_checked.check(machine.disk)
    assert len(events_of(journal, "TaskInterrupted")) == 1 and len(events_of(journal, "TaskReattached")) == 2


async def test_a_run_that_is_attached_again_ends_as_any_other(open_checked: Any, autojump_clock: Any) -> None:
    """B10: its end and its one notification come from the new attempt; the idempotency key is the old one."""
    machine, probe = Machine(open_checked), Probe()
    await left_running(machine, spill_script(seconds=50.0), probe, idempotent=True)
    model = Scripted([reply("noted")])
    async with machine.open(model=model, tools=[probe.slow(idempotent=True)]) as runtime:
        session = await runtime.session("a")
        await until_quiet(session)
        task = only_task(session)
        assert task.state is TaskState.SUCCEEDED and task.attempt == 2
    assert probe.attempts == [1, 2] and len({each.idempotency_key for each in probe.contexts}) == 1
    open_checked.check(machine.disk)


async def test_a_run_that_may_happen_once_ends_as_interrupted(open_checked: Any, autojump_clock: Any) -> None:
    """B10, I4: nobody knows how far it got; it is never started again, and its session is told."""
    machine, probe = Machine(open_checked), Probe()
    await left_running(machine, spill_script(seconds=50.0), probe)
    model = Scripted([reply("noted")])
    async with machine.open(model=model, tools=[probe.slow()]) as runtime:
        session = await runtime.session("a")
        await until_quiet(session)
        assert only_task(session).state is TaskState.INTERRUPTED
    assert probe.attempts == [1] and "task interrupted" in model.requests[0].messages[-1].text
    open_checked.check(machine.disk)


@pytest.mark.parametrize(
    ("rules", "again"), [((Rule("slow", "deny"), Rule("*", "allow")), False), ((Rule("*", "ask"),), True)]
)
async def test_a_run_that_the_policy_now_denies_is_not_attached_again(
    open_checked: Any, autojump_clock: Any, rules: tuple[Rule, ...], again: bool
) -> None:
    """B10, T4: whoever forbids a tool and starts again sees it run no more; what was approved before is not asked for twice."""
    machine, probe = Machine(open_checked), Probe()
    await left_running(machine, spill_script(seconds=50.0), probe, idempotent=True)
    async with machine.open(
        model=Scripted([reply("noted")]), tools=[probe.slow(idempotent=True)], policies=rules
    ) as runtime:
        session = await runtime.session("a")
        await until_quiet(session)
        assert only_task(session).state is (TaskState.SUCCEEDED if again else TaskState.INTERRUPTED)
    assert probe.attempts == ([1, 2] if again else [1])
    open_checked.check(machine.disk)


async def test_an_interrupted_run_leaves_what_is_known_of_its_log(
    open_checked: Any, autojump_clock: Any, tmp_path: Path
) -> None:
    """B9, B10: `output.log` and `result.json` at the end, also at this one; the record and the signal say where."""
    machine, probe = Machine(open_checked), Probe()
    async with machine.open(model=spill_script(seconds=50.0, say="half way"), tools=[probe.slow()]) as runtime:
        session = await runtime.session("a")
        await session.ask("go")
        await until(session, lambda state: any(task.output.tail.endswith("way") for task in state.tasks.live.values()))
        await session.message_task(only_task(session).id, "go on")  # On the disk, and with it what came before.
        disk = machine.disk.fork()
        await session.cancel(only_task(session).id)
    machine.disk = disk
    environment = attrs.evolve(machine.environment(), directory=tmp_path)
    model = Scripted([reply("noted")])
    async with open_runtime(
        "/state", environment=environment, disk=machine.disk, model=model, tools=[probe.slow()]
    ) as runtime:
        session = await runtime.session("a")
        await until_quiet(session)
        directory = tmp_path / "files" / "a" / only_task(session).about.directory
        assert (directory / "output.log").read_text() == "[stdout] half way"
        assert json.loads((directory / "result.json").read_text())["status"] == "interrupted"
        path = only_task(session).result_path
        assert path == f"{only_task(session).about.directory}/result.json"
        assert f"result: {path}" in model.requests[0].messages[-1].text


async def test_a_run_that_was_cancelled_as_the_process_ended_leaves_its_files_too(
    open_checked: Any, autojump_clock: Any, tmp_path: Path
) -> None:
    """B9, B10: the process that comes after it ends it as cancelled."""
    machine = Machine(open_checked)

    @tool(background=True)
    async def stubborn(context: ToolContext) -> str:
        """Does not stop."""
        context.output("stdout", "half way")
        with trio.CancelScope(shield=True):
            await trio.sleep(2.0)
        return "done"

    model = Scripted([reply(call("stubborn")), reply("it goes on"), reply("noted")], exhausted="repeat")
    async with machine.open(model=model, tools=[stubborn]) as runtime:
        session = await runtime.session("a")
        await session.ask("go")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.cancel, only_task(session).id)
            await until(session, lambda state: any(task.cancel_requested_at for task in state.tasks.live.values()))
            disk = machine.disk.fork()
    machine.disk = disk
    environment = attrs.evolve(machine.environment(), directory=tmp_path)
    async with open_runtime(
        "/state", environment=environment, disk=machine.disk, model=Scripted([reply("noted")]), tools=[stubborn]
    ) as runtime:
        session = await runtime.session("a")
        await until_quiet(session)
        ended = only_task(session)
        assert ended.state is TaskState.CANCELLED and ended.result_path is not None
        assert json.loads((tmp_path / "files" / "a" / ended.result_path).read_text())["status"] == "cancelled"


async def test_files_that_could_not_be_written_are_not_named(
    open_checked: Any, autojump_clock: Any, tmp_path: Path
) -> None:
    """B9: a path in a record leads somewhere."""
    machine, probe = Machine(open_checked), Probe()
    async with machine.open(model=spill_script(seconds=50.0), tools=[probe.slow()]) as runtime:
        session = await runtime.session("a")
        await session.ask("go")
        disk = machine.disk.fork()
        await session.cancel(only_task(session).id)
    machine.disk = disk
    (tmp_path / "files").write_text("in the way")
    environment = attrs.evolve(machine.environment(), directory=tmp_path)
    async with open_runtime(
        "/state", environment=environment, disk=machine.disk, model=Scripted([reply("noted")]), tools=[probe.slow()]
    ) as runtime:
        session = await runtime.session("a")
        await until_quiet(session)
        assert only_task(session).state is TaskState.INTERRUPTED and only_task(session).result_path is None


def test_what_a_record_lacks_of_a_log_is_said() -> None:
    written, _ = append_output(Output(), "stdout", "x" * 3_000)
    told = task_text.last_output(written)
    assert told.startswith("[system] 961 characters before this were lost") and told.endswith("x" * 2_048)


async def test_a_second_process_is_refused_and_changes_nothing(open_checked: Any, autojump_clock: Any) -> None:
    """B10: the lock says whether the owner is gone; a live owner's runs are left alone."""
    machine, probe = Machine(open_checked), Probe()
    async with machine.open(model=spill_script(seconds=50.0), tools=[probe.slow()]) as runtime:
        session = await runtime.session("a")
        await session.ask("go")
        before = machine.disk.tree()
        with pytest.raises(JournalLocked):
            async with open_runtime("/state", disk=machine.disk.process(), environment=machine.environment()):
                raise AssertionError("two owners")
        assert {k: v for k, v in machine.disk.tree().items() if "lock" not in k} == {
            k: v for k, v in before.items() if "lock" not in k
        }
        assert only_task(session).state is TaskState.RUNNING
        await until_quiet(session)
        assert only_task(session).state is TaskState.SUCCEEDED
    open_checked.check(machine.disk)


async def test_an_actor_that_crashes_loses_its_runs_and_says_so(open_checked: Any, autojump_clock: Any) -> None:
    """B10, I4: the process lives, but what the actor ran is gone: a run that may happen once is not started again."""
    machine, probe = Machine(open_checked), Probe()
    async with machine.open(model=spill_script(seconds=50.0), tools=[probe.slow()]) as runtime:
        session = await runtime.session("a")
        await session.ask("go")

        async def crash() -> None:
            raise RuntimeError("a bug in the actor")

        session._actor.start(crash)
        await until(session, lambda state: not state.tasks.live)
        assert only_task(session).state is TaskState.INTERRUPTED and probe.attempts == [1]
        await until_quiet(session)
    open_checked.check(machine.disk)


# --- the records and their tools (B11-B13) ---


async def test_a_run_that_asks_waits_for_input_and_goes_on_with_the_answer(
    open_checked: Any, autojump_clock: Any, journal: list[Any]
) -> None:
    """B11: running -> awaiting_input -> running; the model hears of the question and answers it with message_task."""

    @tool(background=True)
    async def painter(context: ToolContext) -> str:
        """Needs to know the colour."""
        await trio.sleep(1.0)
        reply = await context.ask_user(Question("Which colour?", choices=("red", "blue")))
        return f"painted {reply.values[0]}"

    def answer(request: Any) -> Any:
        task_id = session.tasks().tasks[0].id
        return reply(call("message_task", task_id=task_id, text="blue"))

    def wait(request: Any) -> Any:
        return reply(call("wait_task", task_id=session.tasks().tasks[0].id))

    model = Scripted([reply(call("painter")), reply("wait"), wait, answer, reply("told it"), reply("noted")])
    async with open_checked(model, tools=[painter]) as runtime:
        session = await runtime.session("a")
        await session.ask("go")
        await until(session, lambda state: any(t.state is TaskState.AWAITING_INPUT for t in state.tasks.live.values()))
        assert only_task(session).input_request["questions"][0]["text"] == "Which colour?"
        assert session.questions[0].task_id == only_task(session).id
        await until_quiet(session)
        assert only_task(session).result == "painted blue" and not session.questions
    waited = answers(model, 3)[0]
    assert (waited["done"], waited["state"]) == (False, "awaiting_input")
    assert waited["input_request"]["questions"][0]["choices"] == ["red", "blue"]
    assert len(events_of(journal, "TaskInputRequested", "TaskInputAnswered")) == 2


async def test_a_run_in_a_thread_can_speak_too(open_checked: Any, autojump_clock: Any) -> None:
    """B12: a plain function's words are carried over to trio's thread."""

    @tool(background=True)
    def friend(context: ToolContext) -> str:
        """Talks from a thread."""
        context.add_artifact("report.txt")
        return "said" if context.say("I am here") else "unheard"

    async with open_checked(Scripted([reply("noted")], exhausted="repeat"), tools=[friend]) as runtime:
        session = await runtime.session("a")
        ended = await session.wait_task((await session.spawn("friend")).id)
        assert ended.result == "said" and [message.text for message in ended.messages] == ["I am here"]
        assert ended.artifacts == ("report.txt",)


async def test_a_run_names_what_it_has_made_and_what_it_has_to_do_with(
    open_checked: Any, autojump_clock: Any, journal: list[Any]
) -> None:
    """B12: artifacts and links, also those from before the call became a task; each once."""

    @tool(background=True)
    async def builder(context: ToolContext) -> str:
        """Builds."""
        context.add_artifact("plan.txt")
        context.link("order", "17")
        await trio.sleep(1.0)
        context.add_artifact(Path("house.png"))
        context.add_artifact("plan.txt")
        return "built"

    model = Scripted([reply(call("builder")), reply("it goes on"), reply("noted")])
    async with open_checked(model, tools=[builder]) as runtime:
        session = await runtime.session("a")
        await session.ask("go")
        await session.link_task(only_task(session).id, "customer", "42")
        ended = await session.wait_task(only_task(session).id)
        assert ended.artifacts == ("plan.txt", "house.png")
        assert set(ended.links) == {Link("order", "17"), Link("customer", "42")}
        with pytest.raises(CommandRejected, match="succeeded and cannot be linked"):
            await session.link_task(ended.id, "customer", "43")
        with pytest.raises(CommandRejected, match="there is no task 'task_9'"):
            await session.link_task("task_9", "customer", "42")
        await until_quiet(session)
    assert len(events_of(journal, "TaskArtifactAdded")) == len(events_of(journal, "TaskLinked")) == 2


@pytest.mark.parametrize(
    "misuse",
    [
        lambda context: context.say(5),
        lambda context: context.add_artifact(b"plan.txt"),
        lambda context: context.add_artifact(""),
        lambda context: context.link("order", 17),
        lambda context: context.status(None),
        lambda context: context.output("stdout", b"bytes"),
        lambda context: context.output(1, "one"),
        lambda context: context.report_progress("half"),
        lambda context: context.report_progress(1, label=2),
    ],
    ids=["message", "path", "no-path", "link", "status", "output", "stream", "progress", "label"],
)
async def test_what_is_no_text_is_the_tool_s_fault_and_harms_nobody(
    open_checked: Any, autojump_clock: Any, misuse: Any
) -> None:
    """B8, B12, L20: it fails in the tool; the session goes on."""

    @tool(background=True)
    async def clumsy(context: ToolContext) -> str:
        """Says what is no text."""
        await trio.sleep(1.0)
        misuse(context)
        await trio.sleep(1.0)
        return "unharmed"

    model = Scripted([reply(call("clumsy")), reply("it goes on"), reply("noted")], exhausted="repeat")
    async with open_checked(model, tools=[clumsy]) as runtime:
        session = await runtime.session("a")
        await session.ask("go")
        assert (await session.wait_task(only_task(session).id)).state is TaskState.FAILED
        assert (await session.ask("still there?")).text == "noted"


async def test_a_call_that_ends_in_time_has_nowhere_to_list_its_artifacts(
    open_checked: Any, autojump_clock: Any, journal: list[Any]
) -> None:
    """B1, B12: no task, no record; nothing fails."""

    @tool(background=True)
    async def quick(context: ToolContext) -> str:
        """Quick."""
        context.add_artifact("note.txt")
        context.link("order", "17")
        return "done"

    async with open_checked(Scripted([reply(call("quick")), reply("ok")]), tools=[quick]) as runtime:
        assert (await (await runtime.session("a")).ask("go")).text == "ok"
    assert not events_of(journal, "TaskArtifactAdded", "TaskLinked")


@pytest.mark.parametrize(("rel", "target"), [("", "42"), ("customer", ""), ("customer", 42)])
async def test_a_link_has_two_ends(open_checked: Any, autojump_clock: Any, rel: Any, target: Any) -> None:
    """B12: misuse is said at once."""
    probe = Probe()
    async with open_checked(Scripted([reply("noted")], exhausted="repeat"), tools=[probe.slow()]) as runtime:
        session = await runtime.session("a")
        task = await session.spawn("slow")
        with pytest.raises(UsageError):
            await session.link_task(task.id, rel, target)
        await session.wait_task(task.id)


async def test_messages_go_both_ways(open_checked: Any, autojump_clock: Any) -> None:
    """B12: to the run, and from it; kept with the task."""

    @tool(background=True)
    async def friend(context: ToolContext) -> str:
        """Talks."""
        heard = [await context.receive_message(), await context.receive_message()]
        context.say("I heard you")
        return " and ".join(heard)

    async with open_checked(Scripted([reply("noted")], exhausted="repeat"), tools=[friend]) as runtime:
        session = await runtime.session("a")
        task = await session.spawn("friend")
        await session.message_task(task.id, "one")
        await session.message_task(task.id, "two")
        ended = await session.wait_task(task.id)
        assert ended.result == "one and two"
        assert [(m.direction, m.text) for m in ended.messages] == [
            ("to_task", "one"),
            ("to_task", "two"),
            ("from_task", "I heard you"),
        ]
        with pytest.raises(CommandRejected, match="is succeeded and cannot be sent messages"):
            await session.message_task(task.id, "three")
        await until_quiet(session)


@pytest.mark.parametrize(
    ("wake", "told"), [("silent", []), ("on_terminal", ["end"]), ("on_activity", ["message", "end"]), (None, ["end"])]
)
async def test_a_wake_policy_says_when_the_model_hears_of_a_run(
    open_checked: Any, autojump_clock: Any, wake: Any, told: list[str]
) -> None:
    """B12: silent, at the end, or of its messages too."""

    @tool(background=True)
    async def chatty(context: ToolContext) -> str:
        """Talks while it works."""
        await trio.sleep(1.0)
        context.say("half of it is done")
        await trio.sleep(10.0)
        return "done"

    model = Scripted([reply("noted")], exhausted="repeat")
    async with open_checked(model, tools=[chatty]) as runtime:
        session = await runtime.session("a")
        task = await session.spawn("chatty", wake=wake)
        await session.wait_task(task.id)
        await trio.sleep(10.0)
        with pytest.raises(UsageError, match="use one of silent, on_terminal, on_activity"):
            await session.spawn("chatty", wake="loudly")  # type: ignore[arg-type]
        with session.hold_notifications():
            await until(session, lambda state: state.turn is None)
    heard = ["message" if "half of it" in each.messages[-1].text else "end" for each in model.requests]
    assert heard == told


async def test_the_task_tools_show_and_cancel(open_checked: Any, autojump_clock: Any) -> None:
    """T13, B12, B13: list, get, wait and cancel, as the model uses them; there by themselves since a tool supports the background."""

    def about(name: str, **more: Any) -> Any:
        return lambda request: reply(call(name, task_id=session.tasks().tasks[0].id, **more))

    model = Scripted(
        [
            reply(spawn(args={"seconds": 100.0}, title="Dig")),
            reply(call("list_tasks", state="running")),
            about("wait_task", timeout_s=3),
            about("cancel_task", reason="enough"),
            about("wait_task", timeout_s=3),
            about("get_task"),
            reply(call("get_task", task_id="task_nowhere")),
            reply("done"),
        ],
        exhausted="repeat",
    )
    async with open_checked(model, tools=[Probe().slow()], limits=Limits(max_steps=20)) as runtime:
        session = await runtime.session("a")
        names = {"spawn_background", "list_tasks", "get_task", "cancel_task", "message_task", "wait_task"}
        await session.ask("go")
        assert names <= {spec.name for spec in model.requests[0].tools}
        await until_quiet(session)
    assert [line["title"] for line in answers(model, 2)[0]["tasks"]] == ["Dig"]
    assert answers(model, 3)[0]["done"] is False and answers(model, 3)[0]["detail"] == "digging"
    assert answers(model, 4)[0]["cancelled"] is True
    assert answers(model, 5)[0]["done"] is True and answers(model, 5)[0]["state"] == "cancelled"
    assert answers(model, 6)[0]["events"][-1]["what"] == "cancelled"
    assert "list_tasks shows their ids" in answers(model, 7)[0]


async def test_without_tools_for_the_background_there_are_none_to_manage_it(
    open_checked: Any, autojump_clock: Any
) -> None:
    """T13."""

    @tool
    async def plain() -> int:
        """Nothing special."""
        return 1

    model = Scripted([reply("hello")])
    async with open_checked(model, tools=[plain]) as runtime:
        await (await runtime.session("a")).ask("hi")
    assert [spec.name for spec in model.requests[0].tools] == ["plain"]


async def test_lists_filter_and_page_over_sessions_newest_first(open_checked: Any, autojump_clock: Any) -> None:
    """B13: by state, kind and session; pages stay right."""
    model = Scripted([reply("noted")], exhausted="repeat")
    limits = Limits(runs_per_session=20)
    async with open_checked(model, tools=[Probe().slow()], limits=limits, complete=False) as runtime:
        one, two = await runtime.session("one"), await runtime.session("two")
        for number in range(4):
            await one.spawn("slow", {"seconds": 1.0}, title=f"one {number}")
            await two.spawn("slow", {"seconds": 100.0}, title=f"two {number}")
            await trio.sleep(0.01)
        await until_quiet(one)
        assert [task.about.title for task in runtime.tasks(session="one")] == [f"one {n}" for n in (3, 2, 1, 0)]
        assert {task.about.session for task in runtime.tasks(state="running")} == {"two"}
        assert len(runtime.tasks(kind="background")) == 8 and not runtime.tasks(kind="subagent")
        first = runtime.tasks(limit=3)
        rest = runtime.tasks(limit=50, before=first.before)
        assert len(first) == 3 and len(rest) == 5 and not {t.id for t in first} & {t.id for t in rest}
        assert runtime.task(first.tasks[0].id) == first.tasks[0] and runtime.task("nowhere") is None
        with pytest.raises(CommandRejected, match="the states are"):
            runtime.tasks(state="sleeping")


async def test_ended_tasks_are_kept_until_an_explicit_sweep(open_checked: Any, autojump_clock: Any) -> None:
    """B13: 30 days, then archived by a sweep and by nothing else."""
    model = Scripted([reply("noted")], exhausted="repeat")
    async with open_checked(model, tools=[Probe().slow()]) as runtime:
        session = await runtime.session("a")
        task = await session.spawn("slow", {"seconds": 1.0})
        await until_quiet(session)
        await trio.sleep(29 * 86_400.0)
        assert await runtime.sweep_tasks() == 0
        await trio.sleep(2 * 86_400.0)
        assert session.task(task.id) is not None
        assert await runtime.sweep_tasks() == 1 and session.task(task.id) is None


async def test_a_sweep_leaves_closed_sessions_alone(open_checked: Any, autojump_clock: Any) -> None:
    """B13: the records of a closed session are final (I16), and keep no other session's from being swept."""
    probe = Probe()
    model = Scripted([reply("ok")], exhausted="repeat")
    async with open_checked(model, tools=[probe.slow()], limits=Limits(task_retention_s=60.0)) as runtime:
        closed, live = await runtime.session("closed"), await runtime.session("live")
        for session in (closed, live):
            await session.wait_task((await session.spawn("slow", {"seconds": 1.0})).id)
            await until_quiet(session)
        await closed.close()
        await trio.sleep(61.0)
        assert await runtime.sweep_tasks() == 1
        assert not live.tasks() and len(runtime.tasks(session="closed")) == 1


async def test_the_detail_view_has_the_whole_result(open_checked: Any, autojump_clock: Any, tmp_path: Path) -> None:
    """B12: the task, its result also where it is longer than the record keeps, and its last events."""

    @tool(background=True)
    async def long_winded() -> str:
        """Says much."""
        return "x" * 20_000

    model = Scripted([reply("noted")], exhausted="repeat")
    async with open_checked(model, tools=[long_winded], **with_files(open_checked, tmp_path)) as runtime:
        session = await runtime.session("a")
        task = await session.spawn("long_winded")
        await until_quiet(session)
        detail = await runtime.task_detail(task.id, entries=2)
        assert detail is not None and detail.task.result is None and detail.result == "x" * 20_000
        assert [entry.what for entry in detail.entries] == ["started", "succeeded"]
