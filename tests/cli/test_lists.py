"""What `ls` is to show may be said before it or behind it, and a list that is cut says so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from terminal_driver import AtTerminal

from trouper import Scripted, open_runtime, tool
from trouper.journal import repair
from trouper.models import call, reply


@pytest.mark.parametrize(
    "wanted",
    [
        ("tasks", "--state", "failed"),
        ("tasks", "--kind", "monitor"),
        ("tasks", "--session", "other"),
        ("tasks", "--limit", "0"),
        ("notifications", "--all"),
        ("notifications", "--all", "--session", "main"),
        ("schedules", "--all", "--session", "other"),
        ("memory", "--scope", "nobody"),
    ],
    ids=" ".join,
)
def test_what_is_wanted_holds_before_ls_and_behind_it(
    trouper: Callable[..., Any], filled: Path, wanted: tuple[str, ...]
) -> None:
    command, *filters = wanted
    without = trouper(command, *filters, "--root", filled)
    before = trouper(command, *filters, "ls", "--root", filled)
    behind = trouper(command, "ls", *filters, "--root", filled)
    assert without.code == 0 and without.out == before.out == behind.out
    if command != "schedules":  # There are none.
        assert without.out != trouper(command, "--root", filled).out


def test_what_is_said_behind_ls_counts(trouper: Callable[..., Any], filled: Path) -> None:
    assert "succeeded" in trouper("tasks", "--limit", "0", "ls", "--limit", "1", "--root", filled).out


@tool(background=True, budget_s=0.0)
async def linger() -> str:
    """Take a moment longer than the turn waits."""
    await trio.sleep(0.01)
    return "There."


async def _two_tasks(root: Path) -> None:
    model = Scripted([reply(call("linger"), call("linger")), reply("They go on.")], exhausted="repeat")
    async with open_runtime(root, model=model, tools=[linger]) as runtime:
        session = await runtime.session("main")
        await session.ask("go")
        for task in session.tasks():
            await session.wait_task(task.id)


def test_tasks_that_are_not_shown_are_no_secret(trouper: Callable[..., Any], tmp_path: Path) -> None:
    """B13: who looks at the first page hears that there is another."""
    root = tmp_path / "root"
    trio.run(_two_tasks, root)
    assert trouper("tasks", "--root", root).out.count("\n") == 3
    cut = trouper("tasks", "--limit", "1", "--root", root).out
    assert cut.count("task_") == 1 and cut.endswith("these are the newest 1; --limit says how many to show\n")


@tool(background=True, idempotent=True, budget_s=0.0)
async def endless() -> None:
    """Go on until somebody says stop."""
    await trio.sleep_forever()


async def test_a_task_that_no_process_works_on_is_told_from_one_that_runs(
    trouper: Callable[..., Any], tmp_path: Path
) -> None:
    """B10: by the lock of the root. It said that it runs, and nobody was there to run it."""
    model = Scripted([reply(call("endless"), call("linger")), reply("They go on.")], exhausted="repeat")

    def states() -> dict[str, tuple[str, bool]]:
        told = [json.loads(line) for line in trouper("tasks", "--json", "--root", tmp_path).out.splitlines()]
        return {each["id"]: (each["state"], each["has_process"]) for each in told}

    async with open_runtime(tmp_path, model=model, tools=[endless, linger]) as runtime:
        session = await runtime.session("main")
        await session.ask("go")
        endlessly, briefly = sorted(session.tasks(), key=lambda task: task.about.tool or "")
        await session.wait_task(briefly.id)
        assert states() == {endlessly.id: ("running", True), briefly.id: ("succeeded", False)}
        assert "no process" not in trouper("tasks", "--root", tmp_path).out
        assert "no process" not in trouper("tasks", "show", endlessly.id, "--root", tmp_path).out
    assert states() == {endlessly.id: ("running", False), briefly.id: ("succeeded", False)}
    listed = trouper("tasks", "--root", tmp_path).out
    assert listed.count("running (no process)") == listed.count("no process") == 1
    shown = trouper("tasks", "show", endlessly.id, "--root", tmp_path).out.splitlines()
    assert shown[0].endswith(": running (no process), attempt 1")
    assert (
        shown[1]
        == "  no process works on it; it goes on when a process takes its session up that has the tool 'endless'"
    )
    assert "no process" not in trouper("tasks", "show", briefly.id, "--root", tmp_path).out
    assert "running (no process)" in trouper("sessions", "show", "main", "--root", tmp_path).out
    with AtTerminal("chat", "--root", str(tmp_path), "--session", "other") as terminal:
        terminal.wait_for("/help for help")
        # It lacks the tool, and leaves the run to whoever has it.
        assert states()[endlessly.id] == ("running", False)
        assert "running (no process)" in trouper("tasks", "--root", tmp_path).out


@tool(background=True, budget_s=0.0)
async def burn() -> None:
    """Burn a disc, once."""
    await trio.sleep_forever()


async def test_what_becomes_of_a_task_that_may_run_once_is_said(trouper: Callable[..., Any], tmp_path: Path) -> None:
    """B10."""
    model = Scripted([reply(call("burn")), reply("It burns.")], exhausted="repeat")
    async with open_runtime(tmp_path, model=model, tools=[burn]) as runtime:
        session = await runtime.session("main")
        await session.ask("go")
        (task,) = session.tasks()
    shown = trouper("tasks", "show", task.id, "--root", tmp_path).out
    assert "no process works on it; the next start ends it as interrupted" in shown
    async with open_runtime(tmp_path, model=model) as runtime:
        await runtime.session("main")
    assert "interrupted" in trouper("tasks", "show", task.id, "--root", tmp_path).out.splitlines()[0]


async def test_a_session_whose_process_has_gone_in_mid_turn_is_told_from_one_that_works(
    trouper: Callable[..., Any], tmp_path: Path
) -> None:
    """J12: by the lock of the root. It said acting for as long as nobody started anew."""
    root, left = tmp_path / "state", tmp_path / "left"

    @tool
    async def killed() -> None:
        shutil.copytree(root, left)  # What a process that is killed now leaves.
        assert "acting " in trouper("sessions", "--root", root).out
        assert "(no process)" not in trouper("sessions", "--root", root).out

    async with open_runtime(root, model=Scripted([reply(call("killed")), reply("Done.")]), tools=[killed]) as runtime:
        assert (await (await runtime.session("main")).ask("go")).text == "Done."
    assert "main     acting (no process)  1" in trouper("sessions", "--root", left).out
    assert trouper("sessions", "show", "main", "--root", left).out.startswith("main: acting (no process), 1 turn")
    told = json.loads(trouper("sessions", "--json", "--root", left).out)
    assert (told["phase"], told["has_process"]) == ("acting", False)
    assert "no process" not in trouper("sessions", "--root", root).out


async def test_a_damaged_session_is_named_and_hides_no_other(trouper: Callable[..., Any], tmp_path: Path) -> None:
    """J10, I23: after a repair, whatever is listed."""
    old, new = tmp_path / "old", tmp_path / "new"
    async with open_runtime(old, model=Scripted([reply("Hi.")], exhausted="repeat")) as runtime:
        for text in ("first", "second", "third"):
            for name in ("whole", "torn"):
                await (await runtime.session(name)).ask(f"{text} to {name}")
    (segment,) = old.glob("segment-*.log")
    segment.write_bytes(segment.read_bytes().replace(b"second to torn", b"SECOND to torn"))
    repair(old, new)
    for command in (("sessions",), ("journal", "ls")):
        listed = trouper(*command, "--root", new)
        assert listed.code == 0 and "damaged" in listed.out and "whole" in listed.out
        told = [json.loads(line) for line in trouper(*command, "--json", "--root", new).out.splitlines()]
        assert {each["session"]: each["phase"] for each in told} == {"torn": "damaged", "whole": "idle"}
    for kind in ("tasks", "notifications", "schedules"):
        listed = trouper(kind, "--root", new)
        assert listed.code == 0 and "'torn' has lost its events" in listed.err
    assert "'torn' has lost its events" in trouper("doctor", "--root", new).out
    assert trouper("sessions", "show", "torn", "--root", new).code == 65


async def _left_running(root: Path) -> str:
    async with open_runtime(
        root, model=Scripted([reply(call("endless")), reply("It goes on.")]), tools=[endless]
    ) as runtime:
        session = await runtime.session("main")
        await session.ask("go")
        (task,) = session.tasks()
    return task.id


def test_an_interrupt_says_which_runs_ended_by_it(trouper: Callable[..., Any], tmp_path: Path) -> None:
    """B10: `trouper run` names it as a way to end what waits for its tool. It said that nothing ran, and the run had ended for good."""
    root, copied = tmp_path / "root", tmp_path / "copied"
    task = trio.run(_left_running, root)
    shutil.copytree(root, copied)
    interrupt = ("sessions", "interrupt", "main", "--root")
    assert trouper(*interrupt, root).out == f"interrupted: main\n  interrupted: {task}\n"
    assert trouper(*interrupt, root).out == "nothing ran: main\n"
    told = json.loads(trouper(*interrupt, copied, "--json").out)
    assert told["found"] is True and told["ended"] == [{"task": task, "state": "interrupted"}]
