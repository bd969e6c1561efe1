"""`trouper run`: one turn, also where another process left one open."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
from argparse import Namespace
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import trio
from terminal_driver import COMMAND, run

from trouper import Scripted, open_runtime, tool
from trouper.cli.run import _followed, _wait_background, is_quiet, is_resting, tell_inside
from trouper.cli.terminal import Terminal
from trouper.core.commands import Interrupt, OpenSession, Submit
from trouper.core.decisions import step
from trouper.core.outstanding import outstanding
from trouper.core.session import State
from trouper.core.settings import TurnOptions
from trouper.events import ApprovalRequested, StepStarted, TaskFailed
from trouper.models import call, reply, stall
from trouper.replay import open_journal
from trouper.testing.invariants import check_invariants

TOOLS = """
from trouper import tool

@tool(policy="requires_approval")
async def risky() -> str:
    "Do something."
    return "done"
"""


PRINTING = """
from trouper import tool

print("imported")

@tool
def greet() -> str:
    "Greet somebody."
    print("called")
    return "hello"
"""


FAILING = """
from trouper import tool

@tool
async def price(item: str) -> float:
    "What an item costs."
    return {"tea": 3.5}[item]
"""


PAINT = """
import trio
from trouper import ToolContext, tool
from trouper.tools.context import Question

async def ask(context: ToolContext, colour: str) -> str:
    reply = await context.ask_user(Question(colour))
    return f"it was {reply.status}"

@tool(timeout_s=0)
async def paint(context: ToolContext) -> str:
    "Paint a wall."
    return await ask(context, "Which colour?")

@tool(background=True, timeout_s=0, budget_s=0)
async def paint_slowly(context: ToolContext) -> str:
    "Paint a wall, in the background."
    await trio.sleep(0.05)  # Longer than the turn waits for it, which is not at all.
    return await ask(context, "Which colour?")
"""


SURVEY = """
import trio
from trouper import tool

@tool(background=True, idempotent=True, budget_s=0)
async def survey() -> str:
    "Never ends by itself."
    await trio.sleep_forever()
"""


@tool(policy="requires_approval")
async def risky() -> str:
    """Do something."""
    return "done"


async def _cut_off(alive: Path, left: Path, script: Scripted, where: type) -> None:
    """What a process leaves behind that is killed at such an event, after the user has said one thing more."""
    async with open_runtime(alive, model=script, tools=[risky]) as runtime:
        session = await runtime.session("main")
        async with session.turn("hello") as turn:
            async for event in turn:
                if isinstance(event, where):
                    break
            await session.send("run risky")
            shutil.copytree(alive, left)


@pytest.mark.parametrize(
    "play, where, outcomes",
    [
        pytest.param(reply(stall(1_000.0), "Never said."), StepStarted, ["denied"], id="thinks"),
        pytest.param(reply(call("risky")), ApprovalRequested, ["denied", "denied"], id="waits for an approval"),
    ],
)
def test_a_turn_that_is_resumed_ends_before_the_next_one_begins(
    trouper: Callable[..., Any], tmp_path: Path, play: Any, where: type, outcomes: list[str]
) -> None:
    """J12, T4: the user's question was refused, for the session was in the middle of something. Without `--ask`, calls that need an approval are denied there, too."""
    root = tmp_path / "left"
    trio.run(_cut_off, tmp_path / "alive", root, Scripted([play]), where)
    (root / "trouper.toml").write_text('tools = ["tools.py"]\n[limits]\non_restart = "resume"\n')
    (root / "tools.py").write_text(TOOLS)
    done = trouper("run", "what is 6 * 7?", "--root", root, "--session", "main")
    assert done.code == 0 and "42" in done.out, done
    assert "a turn that was cut off goes on first" in done.err
    journal = open_journal(root)
    messages = journal.state_at(journal.last).history.messages
    assert [message.text for message in messages if message.role == "user"] == ["hello", "run risky", "what is 6 * 7?"]
    assert [answer.outcome.value for message in messages for answer in message.answers] == outcomes


def test_what_waits_for_the_users_next_word_keeps_nobody_waiting() -> None:
    """L10: an interrupt leaves what was queued where it is, and no turn begins by itself; a command that waited for one would do so for ever."""
    state = State()
    options = TurnOptions(model="m")
    for command in (OpenSession("s", 0.0), Submit("one", 1.0, options), Submit("two", 2.0, options, steer=True)):
        state = step(state, command)[1]
    assert not is_resting(state) and not is_quiet(state)
    state = step(state, Interrupt(3.0))[1]
    assert state.queue and not outstanding(state)
    assert is_resting(state) and is_quiet(state)


@pytest.mark.parametrize("options", [["run paint"], ["run paint_slowly", "--wait"]], ids=["a call", "a task"])
def test_what_is_asked_where_nobody_can_answer_is_declined(tmp_path: Path, options: list[str]) -> None:
    """T16, B11: as calls that need an approval are denied. It waited for ever, and said nothing."""
    (tmp_path / "tools.py").write_text(PAINT)
    root = tmp_path / "root"
    done = run("run", *options, "--root", str(root), "--session", "main", "--tools", str(tmp_path / "tools.py"))
    assert done.returncode == 0 and "it was declined" in done.stdout, done
    assert 'session main asks "Which colour?": declined, for nobody is here to answer' in done.stderr
    assert not check_invariants(root, complete=True)


@pytest.mark.parametrize("given", ["a file that is not there", "a prompt that is too long"])
def test_what_cannot_be_sent_leaves_no_session_behind(trouper: Callable[..., Any], tmp_path: Path, given: str) -> None:
    """L1: each such mistake was one more session without a turn in the list."""
    root = tmp_path / "root"
    assert trouper("run", "hello", "--root", root, "--session", "main").code == 0
    (root / "trouper.toml").write_text("[limits]\ninput_chars = 100\n")
    options = ["hello", "--attach", tmp_path / "none.txt"] if given.startswith("a file") else ["hello " * 100]
    refused = trouper("run", *options, "--root", root)
    assert refused.code == 2 and ("none.txt" in refused.err or "Limits.input_chars=100" in refused.err), refused
    assert open_journal(root).sessions == ("main",)


def test_work_that_needs_a_tool_which_is_not_here_is_left_alone_and_named(tmp_path: Path) -> None:
    """B10: a start without the same --tools ended such runs for good, also those of other sessions."""
    root = tmp_path / "root"
    (tmp_path / "tools.py").write_text(SURVEY)
    with_tool = ("--root", str(root), "--tools", str(tmp_path / "tools.py"))
    assert run("run", "run survey", "--session", "main", *with_tool).returncode == 0
    other = run("run", "hello", "--session", "other", "--root", str(root))
    assert other.returncode == 0 and "You said: hello" in other.stdout
    assert "session 'main' waits as the last process left it: it needs the tool 'survey'" in other.stderr
    same = run("run", "hello", "--session", "main", "--root", str(root))
    assert same.returncode == 78 and "the tool 'survey'" in same.stderr and "trouper tasks cancel" in same.stderr
    (task,) = run("tasks", "--root", str(root), "--json").stdout.splitlines()
    found = json.loads(task)
    assert (found["state"], found["attempt"]) == ("running", 1)
    run("run", "hello", "--session", "main", *with_tool)
    assert json.loads(run("tasks", "show", found["id"], "--root", str(root), "--json").stdout)["attempt"] == 2
    assert not check_invariants(root)


def test_what_ends_nothing_leaves_work_alone_that_needs_a_tool_which_is_not_here(tmp_path: Path) -> None:
    """B10, B13: whoever set a reminder in such a session, and named no tools, ended its runs for good."""
    root = tmp_path / "root"
    (tmp_path / "tools.py").write_text(SURVEY)
    with_tool = ("--root", str(root), "--tools", str(tmp_path / "tools.py"))
    assert run("run", "run survey", "--session", "main", *with_tool).returncode == 0
    reminder = ("schedules", "create", "--session", "main", "--cron", "0 9 * * *", "--message", "Tea time")
    refused = run(*reminder, "--root", str(root))
    assert refused.returncode == 78 and len(refused.stderr.splitlines()) == 1
    assert "needs the tool 'survey'" in refused.stderr and "--tools FILE" in refused.stderr
    (task,) = run("tasks", "--root", str(root), "--json").stdout.splitlines()
    assert (json.loads(task)["state"], json.loads(task)["attempt"]) == ("running", 1)
    assert run(*reminder, *with_tool).returncode == 0
    (task,) = run("tasks", "--root", str(root), "--json").stdout.splitlines()
    assert json.loads(task)["state"] == "running"
    # What is meant to end it does.
    assert run("sessions", "interrupt", "main", "--root", str(root)).returncode == 0
    (task,) = run("tasks", "--root", str(root), "--json").stdout.splitlines()
    assert json.loads(task)["state"] == "interrupted" and not check_invariants(root)


def test_what_a_tool_prints_goes_to_stderr(tmp_path: Path) -> None:
    """T1, command line: with --json a line that was none stood on stdout."""
    (tmp_path / "printing.py").write_text(PRINTING)
    for arguments in (["--json"], []):
        done = run(
            "run", "--root", str(tmp_path / "state"), "--tools", str(tmp_path / "printing.py"), *arguments, "run greet"
        )
        assert done.returncode == 0 and done.stderr.splitlines() == ["imported", "called"]
        if arguments:
            assert json.loads(done.stdout.splitlines()[-1])["text"].endswith("greet says: hello")
            assert all(json.loads(line) for line in done.stdout.splitlines())
        else:
            assert done.stdout.endswith("greet says: hello\n") and "called" not in done.stdout


def test_a_tool_that_prints_works_where_nobody_listens_on_stderr_any_more(tmp_path: Path) -> None:
    """Command line, `trouper run ... > file &`, and the terminal is closed: it was told of an internal error."""
    (tmp_path / "tools.py").write_text(PRINTING)
    ours, theirs = pty.openpty()
    os.close(ours)
    with open(theirs, "wb") as gone:
        done = subprocess.run(
            [*COMMAND, "run", "run greet", "--root", str(tmp_path / "root"), "--tools", str(tmp_path / "tools.py")],
            stdout=subprocess.PIPE,
            stderr=gone,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0 and done.stdout.endswith("greet says: hello\n")


def test_a_tool_can_be_looked_into_with_the_debugger(tmp_path: Path) -> None:
    """Command line: stdin is nobody else's. The debugger was told to ask by context.ask_user, which declines here."""
    (tmp_path / "tools.py").write_text(
        'from trouper import tool\n@tool\ndef halve(n: int) -> int:\n    "Halve."\n    breakpoint()\n    return n // 2\n'
    )
    asked = ("run", "run halve n=8", "--root", str(tmp_path / "root"), "--tools", str(tmp_path / "tools.py"))
    done = run(*asked, input="p f'n is {n}'\nc\n", PYTHONBREAKPOINT="")
    assert done.returncode == 0 and done.stdout.endswith("halve says: 4\n")
    assert "'n is 8'" in done.stderr


def test_what_went_wrong_inside_a_tool_is_said_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """L20, command line: the model is told a fixed sentence, and whoever wrote the tool was told no more."""
    (tmp_path / "failing.py").write_text(FAILING)
    there = ["--root", str(tmp_path / "state"), "--tools", str(tmp_path / "failing.py")]
    told = "failed inside: KeyError: 'milk' (`trouper journal show{}` has the record, and with --record SEQ the traceback)\n"
    done = run("run", *there, "run price item=milk")
    assert done.returncode == 0 and done.stderr == f"trouper: call call_1_1_0 {told.format(f' --root {there[1]}')}"
    for ended in (TaskFailed("task_1", 1, 0.0, internal="KeyError: 'milk'"), TaskFailed("task_2", 1, 0.0)):
        tell_inside(Terminal(StringIO()), ended)  # With --wait, also of what has failed in the background.
    assert capsys.readouterr().err == f"trouper: task task_1 {told.format('')}"
    done = run("run", *there, "--json", "run price item=milk")
    assert done.stderr == "" and "KeyError: 'milk'" in done.stdout  # There it is a field of its event.


@pytest.mark.parametrize("as_json", [False, True])
async def test_with_wait_what_happens_while_the_turns_end_is_told_is_told_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    """L20, command line: a task that failed just then was in the journal, and nowhere on stderr."""

    @tool(background=True, budget_s=0.0)
    async def burn() -> None:
        """Burn a disc."""
        while session.state.turn is not None:
            await trio.lowlevel.checkpoint()
        raise KeyError("no disc")

    options, stream = Namespace(json=as_json, ask=False), StringIO()
    async with open_runtime(
        tmp_path, model=Scripted([reply(call("burn")), reply("It burns.")], exhausted="repeat"), tools=[burn]
    ) as runtime:
        session = await runtime.session("main")
        async with session.turn("go") as turn:
            with trio.fail_after(30):
                while session.state.turn is not None or session.state.tasks.live:
                    await trio.lowlevel.checkpoint()  # The reader sleeps.
            behind = await _followed(session, turn, options, Terminal(stream))
        await _wait_background(session, behind, options, Terminal(stream))
    told = stream.getvalue() if as_json else capsys.readouterr().err
    assert told.count("KeyError: 'no disc'") == 1
