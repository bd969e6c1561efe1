"""`trouper chat` on a terminal, recorded: spill, notification, interrupt, kill -9 and resume; the text, and its order."""

from __future__ import annotations

from pathlib import Path

import pytest
from terminal_driver import AtTerminal, in_order

from trouper.testing.invariants import check_invariants

TOOLS = str(Path(__file__).with_name("slow_tools.py"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    gates = tmp_path / "gates"
    gates.mkdir()
    monkeypatch.setenv("TEST_GATES", str(gates))
    return tmp_path


def chat(place: Path, *arguments: str) -> AtTerminal:
    return AtTerminal("chat", "--root", str(place / "state"), "--tools", TOOLS, "--tools", "multiply", *arguments)


def test_a_slow_tool_spills_the_chat_goes_on_and_the_notification_comes_while_one_types(place: Path) -> None:
    """B1, B2, B15: text, thinking, tool lines; what is half-typed stays whole."""
    with chat(place) as terminal:
        terminal.wait_for("session 'main', new; model simulated:plain")
        terminal.line("what is 6 * 7?")
        terminal.wait_for("6 * 7 = 42.")
        terminal.line("run harvest")
        terminal.wait_for("I will tell you when it is done.")
        terminal.line("are you still there?")
        terminal.wait_for("You said: are you still there?")
        terminal.type("half a sen")
        terminal.wait_for("> half a sen")
        (place / "gates" / "open-north").touch()
        shown = terminal.wait_for("News: Task succeeded: Background call of harvest.")
        terminal.type("tence")
        terminal.wait_for("> half a sentence")
        terminal.type("\x15/quit\r")
        assert terminal.wait_end() == 0
    in_order(
        shown,
        "> what is 6 * 7?",
        "Next: 6 * 7.",
        "● Multiply: 6",
        "✓ Multiply: 6 (done)",
        "6 * 7 = 42.",
        "> run harvest",
        "I start harvest.",
        "● Harvest",
        "→ Harvest goes on in the background as task_",
        "harvest goes on in the background as task_",
        "> are you still there?",
        "You said: are you still there?",
        "■ succeeded: Background call of harvest",
        "✉ 1 notification",
        "News: Task succeeded: Background call of harvest.",
    )
    assert not check_invariants(place / "state", complete=True)


def test_ctrl_c_interrupts_the_turn_and_twice_quits(place: Path) -> None:
    """L15, L21: the first Ctrl-C ends the turn as `interrupt`; the session goes on; two in a row end the program with 130."""
    with chat(place) as terminal:
        terminal.wait_for("/help for help")
        terminal.line("run ponder")
        terminal.wait_for("● Ponder")
        terminal.type("\x03")
        shown = terminal.wait_for("(interrupted)")
        in_order(shown, "● Ponder", "✗ Ponder cancelled", "(interrupted)")
        terminal.line("hello again")
        terminal.wait_for("You said: hello again")
        terminal.type("\x03\x03")
        assert terminal.wait_end() == 130
        assert "Traceback" not in terminal.text()
    assert not check_invariants(place / "state", complete=True)


def test_after_kill_9_the_next_start_takes_up_the_run_and_tells_of_the_turn(place: Path) -> None:
    """J12, B10: the journal knows what was open; the idempotent run is re-attached, and its one notification arrives."""
    with chat(place) as terminal:
        terminal.wait_for("/help for help")
        terminal.line("run harvest")
        terminal.wait_for("I will tell you when it is done.")
        terminal.line("run ponder")
        terminal.wait_for("● Ponder")
        terminal.kill()
        assert terminal.wait_end() == -9
    (place / "gates" / "open-north").touch()
    with chat(place) as terminal:
        shown = terminal.wait_for("News: Task succeeded: Background call of harvest.")
        terminal.line("/quit")
        assert terminal.wait_end() == 0
    in_order(
        shown,
        "session 'main', 2 turns so far",
        "the last process ended in the middle of turn 2",
        "goes on, attempt 2: Background call of harvest",
        "■ succeeded: Background call of harvest",
        "✉ 1 notification",
        "News: Task succeeded",
    )
    assert shown.count("■ succeeded") == 1
    assert (place / "gates" / "started-north-2").exists()
    assert not check_invariants(place / "state", complete=True)


def test_a_call_that_needs_approval_waits_for_the_users_word(place: Path) -> None:
    """T4: silence is no approval; /approve lets the call run, /deny refuses it."""
    with chat(place) as terminal:
        terminal.wait_for("/help for help")
        terminal.line("run sell what=apples")
        terminal.wait_for("/approve call_1_1_0")
        terminal.line("/approve")
        terminal.wait_for("sell says: sold apples")
        terminal.line("run sell what=pears")
        terminal.wait_for("/approve call_2_1_0")
        terminal.line("/deny too cheap")
        shown = terminal.wait_for("sell did not work (denied)")
        assert "too cheap" in shown
        terminal.line("/quit")
        assert terminal.wait_end() == 0


def test_sigterm_ends_the_chat_in_order(place: Path) -> None:
    """I21: the terminal is left as it was, the journal is closed, the exit code is 143."""
    with chat(place) as terminal:
        terminal.wait_for("/help for help")
        terminal.kill(15)
        assert terminal.wait_end() == 143
        assert terminal.raw.endswith(b"\x1b[?2004l")
    assert not (place / "state" / "control.sock").exists()


def test_what_a_model_says_cannot_drive_the_terminal(place: Path) -> None:
    """Security, tool results and terminals: ANSI, OSC and bidi characters are stripped, also from what the user pasted."""
    with chat(place) as terminal:
        terminal.wait_for("/help for help")
        terminal.line("say \u202eevil\u202c and done")
        terminal.wait_for("You said: say evil and done")
        assert "\u202e".encode() not in terminal.raw
        terminal.line("/quit")
        terminal.wait_end()
