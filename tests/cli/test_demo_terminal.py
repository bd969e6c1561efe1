"""`trouper demo`: the story, in order, on a terminal and without one; every figure in it is the journal's."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from terminal_driver import AtTerminal, in_order, run, wait_for_children, wait_for_end

from trouper.replay import open_journal
from trouper.testing.invariants import check_invariants

STORY = (
    "== An agent in a process of its own",
    "you: what is 6 * 7?",
    "calls multiply(a=6, b=7)",
    "agent: 6 * 7 = 42.",
    "turn 1 ended: end_turn",
    "== A slow tool: the turn does not wait for it",
    "you: run survey pages=80",
    "calls survey(pages=80)",
    "not done after 300 ms: it goes on in the background as task_",
    "turn 2 ended: end_turn",
    "== The conversation goes on meanwhile",
    "you: what time is it?",
    "turn 3 ended: end_turn",
    "== kill -9, in mid-sentence",
    "agent: You said: Please say this back",
    "the process is gone (the system says: signal 9)",
    "in the journal: turn 4 is open",
    "is running, attempt 1",
    "== Another process opens the same journal",
    "RecoveryNoted open: turn 4",
    "TurnEnded 4 error: process_ended",
    "attempt 2 by process",
    "== The survey ends; the notification comes by itself",
    "succeeded in attempt 2",
    "notification queued, in the same record",
    "agent: News: Task succeeded: Background call of survey.",
    "the turn that carried it is complete: acknowledged",
    "== What the journal says",
    "every page exactly once",
    "the task ended exactly once; its notification was queued exactly once, acknowledged exactly once",
    "every checksum right",
)


def test_without_a_terminal_it_is_plain_text_and_true(tmp_path: Path) -> None:
    """I1-I3, I29: what is printed is what the journal holds: a kill -9 in the middle, one end, one notification."""
    done = run("demo", "--fast", "--keep", str(tmp_path / "kept"))
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" and "\x1b" not in done.stdout
    in_order(done.stdout, *STORY)
    root = tmp_path / "kept" / "state"
    assert not check_invariants(root, complete=True)
    killed = re.search(r"kill -9 (\d+)", done.stdout)
    started = re.findall(r"^agent: process (\d+)", done.stdout, re.MULTILINE)
    assert killed is not None and killed[1] == started[0] and started[0] != started[1]
    records = list(open_journal(root).records("demo"))
    assert f"verify: {len(records)} records" in done.stdout
    names = [type(event).__name__ for record in records for event in record.events]
    assert names.count("TaskSucceeded") == names.count("NotificationQueued") == names.count("TaskReattached") == 1
    pages = (tmp_path / "kept" / "survey.txt").read_text().splitlines()
    assert [line.split()[0] for line in pages] == [str(page) for page in range(1, 81)]
    kept = re.search(r'TurnEnded 4 error: process_ended, kept "(.*?)"', done.stdout)
    said = next(line for line in done.stdout.splitlines() if line.startswith("agent: You said: Please"))
    assert kept is not None and said.removeprefix("agent: ").startswith(kept[1].rstrip("…"))


@pytest.mark.parametrize("columns", ["", "400"], ids=["", "with COLUMNS of a wider one"])
def test_on_a_terminal_it_has_colours_and_a_live_tree_of_actors(columns: str) -> None:
    with AtTerminal("demo", "--fast", COLUMNS=columns) as terminal:
        terminal.wait_for("supervisor")
        code = terminal.wait_end()
        shown = terminal.text()
        raw = terminal.raw.decode()
    assert code == 0, shown
    in_order(shown, *STORY)
    assert "supervisor" not in shown  # What is drawn below is taken away again, whole.
    assert "\x1b[1m" in raw
    assert "model call, turn 1 step 1" in raw and "tool call survey" in raw
    assert re.search(r"run survey, attempt 2|tool call survey", raw) and re.search(r"process \d+: killed", raw)


def test_ctrl_c_ends_it_with_its_agent() -> None:
    """I21: no process and no directory is left behind."""
    with AtTerminal("demo") as terminal:
        shown = terminal.wait_for("agent: process")
        found = re.search(r"agent: process (\d+), journal in (\S+)", shown)
        assert found is not None
        terminal.kill(signal.SIGINT)
        assert terminal.wait_end() == 130
        assert "Traceback" not in terminal.text()
    assert not os.path.exists(found[2])
    assert not os.path.exists(f"/proc/{found[1]}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_the_agent_is_ready_leaves_no_process_behind(number: int) -> None:
    """I21: also while nobody has heard of the agent's process yet; it ends without a word."""
    with AtTerminal("demo") as terminal:
        terminal.wait_for("== An agent in a process of its own")
        (agent,) = wait_for_children(terminal.pid)
        terminal.kill(number)
        assert terminal.wait_end() == 128 + number
        assert "Traceback" not in terminal.text()
    wait_for_end(agent)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_as_the_agent_is_started_leaves_neither_process_nor_files(
    trouper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """I21: whoever is just being started would make its files again behind the back of who removes them."""
    started: list[subprocess.Popen[bytes]] = []

    class Pressed(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)
            signal.raise_signal(number)

    monkeypatch.setattr("trouper.cli.demo.subprocess.Popen", Pressed)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert trouper("demo", "--fast").code == 128 + number
    (agent,) = started
    with agent:  # Closes its pipes.
        assert agent.poll() == -signal.SIGKILL and not list(tmp_path.iterdir())


def test_a_terminal_that_hangs_up_during_the_demo_leaves_no_files_behind(tmp_path: Path) -> None:
    """I21: nobody would look for them."""
    with AtTerminal("demo", TMPDIR=str(tmp_path)) as terminal:
        terminal.wait_for("agent: process")
        terminal.kill(signal.SIGHUP)
        assert terminal.wait_end() == 128 + signal.SIGHUP
    assert not list(tmp_path.glob("trouper-demo-*"))


def test_a_window_that_is_closed_during_the_demo_ends_it_as_the_signal_says(tmp_path: Path) -> None:
    """I21, exit codes: the terminal is gone with its signal; that nothing can be written to it any more was told as a fault of the disk, 74."""
    with AtTerminal("demo", TMPDIR=str(tmp_path)) as terminal:
        terminal.wait_for("agent: process")
        assert terminal.close_window() == 128 + signal.SIGHUP
    assert not list(tmp_path.glob("trouper-demo-*"))


def test_an_agent_that_nobody_listens_to_ends_without_a_word(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "trouper.cli.demo_agent", str(tmp_path / "state"), str(tmp_path / "survey"), "1", "0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (141, b"")


def test_an_agent_that_has_no_room_to_write_says_so_and_ends_the_demo(tmp_path: Path) -> None:
    """J11: a line each, and the code of a disk that cannot be written to."""
    program = 'ulimit -f 1; exec "$0" -m trouper demo --fast --keep "$1"'
    done = subprocess.run(
        ["bash", "-c", program, sys.executable, str(tmp_path / "kept")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 74 and "Traceback" not in done.stderr, done
    why, what = done.stderr.splitlines()
    assert "File too large" in why and "ended by itself" in what


def test_a_demo_that_was_started_to_ignore_signals_runs() -> None:
    """As with `&` in a script."""
    program = 'trap "" INT TERM HUP; exec "$0" -m trouper demo --fast'
    done = subprocess.run(["bash", "-c", program, sys.executable], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_place_that_exists_is_refused(tmp_path: Path) -> None:
    done = run("demo", "--keep", str(tmp_path))
    assert done.returncode == 73 and done.stderr.count("\n") == 1 and "exists already" in done.stderr
