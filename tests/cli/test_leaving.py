"""The end of `chat` and `run` while a tool does not stop: what it waits for is said, and another Ctrl-C does not wait for it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from terminal_driver import AtTerminal

from trouper.testing import check_invariants

TOOLS = str(Path(__file__).with_name("slow_tools.py"))
WAITS = "trouper: waits for tidy_up in session 'main' to stop; Ctrl-C ends without that"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "gates").mkdir()
    monkeypatch.setenv("TEST_GATES", str(tmp_path / "gates"))
    return tmp_path


def started(place: Path, *command: str) -> AtTerminal:
    return AtTerminal(*command, "--session", "main", "--root", str(place / "state"), "--tools", TOOLS)


def test_quit_says_what_it_waits_for_and_ctrl_c_ends_it(place: Path) -> None:
    """L21, J12: as a kill would; the next start goes on."""
    with started(place, "chat") as terminal:
        terminal.wait_for("/help for help")
        terminal.ask("run tidy_up", "● Tidy Up")
        terminal.ask("/quit", WAITS)
        terminal.type("\x03")
        assert terminal.wait_end() == 130
        assert "Traceback" not in terminal.text()
    assert not check_invariants(place / "state")
    with started(place, "chat") as terminal:
        terminal.wait_for("session 'main', 1 turn so far")
        terminal.ask("hello again", "You said: hello again")
        terminal.quit()
    assert not check_invariants(place / "state", complete=True)


def test_quit_ends_in_order_when_the_tool_has_stopped(place: Path) -> None:
    """L21, I21."""
    with started(place, "chat") as terminal:
        terminal.wait_for("/help for help")
        terminal.ask("run tidy_up", "● Tidy Up")
        terminal.ask("/quit", WAITS)
        (place / "gates" / "tidied").touch()
        assert terminal.wait_end() == 0
    assert not check_invariants(place / "state", complete=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_a_run_whose_tool_does_not_stop_for_the_first(place: Path, number: int) -> None:
    """L21, J12."""
    with started(place, "run", "run tidy_up") as terminal:
        terminal.wait_for("calls tidy_up")
        terminal.kill(signal.SIGINT)
        terminal.wait_for(WAITS)
        terminal.kill(number)
        assert terminal.wait_end() == 128 + number
        assert "Traceback" not in terminal.text()
    assert not check_invariants(place / "state")
