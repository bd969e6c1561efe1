"""Signals that come while something holds the loop up."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import trio
from terminal_driver import AtTerminal
from trio.testing import wait_all_tasks_blocked

from trouper.cli import unheard
from trouper.cli.unheard import HELD_UP, ONE_S, ended_if_unheard
from trouper.testing import check_invariants

TOOLS = str(Path(__file__).with_name("slow_tools.py"))


class Ended(Exception):
    """In the place of the end of the process."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the clock shows is its one entry."""
    clock = [100.0]
    monkeypatch.setattr(unheard, "monotonic", lambda: clock[0])

    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(os, "_exit", end)
    return clock


async def test_a_second_signal_ends_the_process_if_the_loop_has_not_noticed_the_first(clock: list[float]) -> None:
    """L15, J12: whoever presses Ctrl-C twice leaves."""
    told: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    with trio.open_signal_receiver(signal.SIGINT) as pressed:
        with ended_if_unheard({signal.SIGINT: 130, signal.SIGTERM: 143}, lambda: told.append("leaves")):
            signal.raise_signal(signal.SIGINT)
            clock[0] += ONE_S / 2
            # As one: somebody has handed on what the terminal had sent to us as well.
            signal.raise_signal(signal.SIGINT)
            assert not told
            await wait_all_tasks_blocked()  # The loop goes on, and notices.
            clock[0] += ONE_S
            signal.raise_signal(signal.SIGINT)
            await wait_all_tasks_blocked()  # All that came so far are told as one.
            assert await anext(pressed) == signal.SIGINT
            assert not told
            clock[0] += ONE_S
            signal.raise_signal(signal.SIGINT)
            clock[0] += ONE_S
            with pytest.raises(Ended, match="130"):
                signal.raise_signal(signal.SIGINT)
        assert told == ["leaves"]
        await wait_all_tasks_blocked()
        assert await anext(pressed) == signal.SIGINT
    assert signal.getsignal(signal.SIGINT) is before and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def test_it_ends_also_where_nothing_can_be_written(clock: list[float]) -> None:
    def fails() -> None:
        raise RuntimeError("reentrant call")

    with trio.open_signal_receiver(signal.SIGINT) as pressed:
        with ended_if_unheard({signal.SIGINT: 130}, fails):
            signal.raise_signal(signal.SIGINT)
            clock[0] += ONE_S
            with pytest.raises(Ended, match="130"):
                signal.raise_signal(signal.SIGINT)
        assert await anext(pressed) == signal.SIGINT


@pytest.mark.parametrize("command", [("chat",), ("run", "run hold_up")], ids=["chat", "run"])
def test_twice_quits_also_while_a_tool_blocks_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """L15, J12: every Ctrl-C was kept for later, and the chat stayed. The terminal is left as it was, and the journal is sound."""
    monkeypatch.setenv("TEST_GATES", str(tmp_path))
    root = str(tmp_path / "state")
    with AtTerminal(*command, "--session", "main", "--root", root, "--tools", TOOLS) as terminal:
        if command == ("chat",):
            terminal.wait_for("/help for help")
            terminal.line("run hold_up")
        terminal.wait_for_file(tmp_path / "held-up")
        terminal.press_until_end(signal.SIGINT)
        assert terminal.wait_end() == 130
        assert HELD_UP[:60] in terminal.text()
        assert command != ("chat",) or terminal.raw.endswith(b"\x1b[?2004l")
    assert not check_invariants(root)
    with AtTerminal("chat", "--root", root, "--tools", TOOLS) as terminal:
        terminal.wait_for("✗ Hold Up (nobody knows whether it was done)")
        terminal.quit()
