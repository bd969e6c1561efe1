"""What tools print: on stderr, or on the screen of a chat; never among what a program reads."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trouper import ToolError
from trouper.cli.chat_screen import PlainScreen
from trouper.cli.printed import LINE_CHARS_MAX, LINES_WAITING_MAX, printed_aside, typed_aside
from trouper.cli.terminal import Terminal


class Err(StringIO):
    """A stderr that is the terminal, or a file that somebody has sent it to."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def test_without_a_screen_it_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """Command line: stdout is what a program reads."""
    before = sys.stdout, sys.stderr
    with printed_aside():
        print("printed")
        sys.stdout.buffer.write(b"\xe6\x9d\xb1 \xff\n")
        print("\udc80", file=sys.stderr)
        sys.stdout.flush()
    assert (sys.stdout, sys.stderr) == before
    said = capsys.readouterr()
    assert said.out == "" and said.err == "printed\n東 \ufffd\n\\udc80\n"


def read_as_libraries_do() -> None:
    """Many set it up as they are loaded, whether they read from it or not."""
    sys.stdin.reconfigure(encoding="utf-8")
    io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8").readline()


@pytest.mark.parametrize("read", [input, lambda: sys.stdin.read(), lambda: list(sys.stdin), read_as_libraries_do])
def test_a_tool_that_reads_stdin_is_told_how_to_ask(read: Callable[[], object]) -> None:
    """T16: what is typed is the chat's."""
    before = sys.stdin
    with typed_aside() as typed, pytest.raises(ToolError, match="ask_user"):
        read()
    assert typed is before
    assert sys.stdin is before


@pytest.mark.parametrize("is_terminal", [True, False])
async def test_a_screen_shows_it_from_any_thread_and_stderr_only_where_that_is_the_terminal(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    err, page = Err(is_terminal=is_terminal), StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    with printed_aside() as printed:
        early = logging.StreamHandler()  # As a tool's module may make one.
        with printed.shown_on(PlainScreen(Terminal(page))):
            await trio.to_thread.run_sync(lambda: print("in\x1b[2J a thread"))
            await wait_all_tasks_blocked()
            assert page.getvalue() == "  | in a thread\n"
            print("to stderr", file=sys.stderr)
            early.emit(logging.makeLogRecord({"msg": "logged"}))
            print("not ended", end="")
        print("afterwards")
    shown = ["in a thread", "not ended"]
    rest = ["afterwards"]
    if is_terminal:
        shown[1:1] = ["to stderr", "logged"]
    else:
        rest[:0] = ["to stderr", "logged"]
    assert page.getvalue().splitlines() == [f"  | {line}" for line in shown]
    assert err.getvalue().splitlines() == rest


async def test_the_log_that_was_asked_for_is_shown_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """TROUPER_LOG: its handler is there before any tool is, and wrote between the rows."""
    err, page = Err(is_terminal=True), StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    handler = logging.StreamHandler(err)
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    with printed_aside() as printed, printed.shown_on(PlainScreen(Terminal(page))):
        handler.emit(logging.makeLogRecord({"msg": "logged"}))
    handler.emit(logging.makeLogRecord({"msg": "later"}))
    assert page.getvalue() == "  | logged\n" and err.getvalue() == "later\n"


async def test_progress_that_is_written_over_itself_is_shown_once() -> None:
    page = StringIO()
    with printed_aside() as printed, printed.shown_on(PlainScreen(Terminal(page))):
        for percent in range(0, 101, 10):
            sys.stdout.write(f"\r{percent} %")
        sys.stdout.write("\ndone: ")
        for percent in range(0, 101, 10):
            sys.stdout.write(f"{percent} %\r")
        sys.stdout.write("\r\n\n")
    assert page.getvalue().splitlines() == ["  | 100 %", "  | 100 %"]


async def test_more_than_can_be_shown_is_counted() -> None:
    """I33: whoever prints faster than a terminal draws fills no memory and holds nobody up."""
    page = StringIO()
    with printed_aside() as printed, printed.shown_on(PlainScreen(Terminal(page))):
        for number in range(LINES_WAITING_MAX + 7):
            print(number)
        await wait_all_tasks_blocked()
        print("x" * 3 * LINE_CHARS_MAX)
        print("y" * 3 * LINE_CHARS_MAX, end="")
    *lines, left_out, long, unended = page.getvalue().splitlines()
    assert lines == [f"  | {number}" for number in range(LINES_WAITING_MAX)]
    assert left_out == "  | (7 more lines were printed faster than they could be shown)"
    assert long == f"  | {'x' * LINE_CHARS_MAX}…" and unended == f"  | {'y' * LINE_CHARS_MAX}…"


@attrs.define
class Events:
    happened: int = 0
    shown: int = 0


async def test_it_is_shown_among_what_happened_before_it_and_what_happened_after() -> None:
    """Command line: a call has begun, say, before its tool prints, and it ends after that; the screen may be behind with both."""
    page, events = StringIO(), Events()
    screen = PlainScreen(Terminal(page))
    with printed_aside() as printed, printed.shown_on(screen, events):
        events.happened = 1
        print("by the call")
        events.happened = 2
        await wait_all_tasks_blocked()
        for line in ("the call has begun", "the call has ended"):
            screen.say(line)
            events.shown += 1
            printed.show_due()
        print("by nobody")
        await wait_all_tasks_blocked()
        screen.say("more")
        events.happened += 1
        print("nobody shows any more")
    assert page.getvalue().splitlines() == [
        "the call has begun",
        "  | by the call",
        "the call has ended",
        "  | by nobody",
        "more",
        "  | nobody shows any more",
    ]


async def test_a_terminal_that_has_gone_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """I23: what raises in the loop itself would end every session at once."""
    screen = PlainScreen(Terminal(StringIO()))
    tried: list[str] = []

    def say(text: str, *styles: str) -> None:
        tried.append(text)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(screen, "say", say)
    with printed_aside() as printed, printed.shown_on(screen):
        print("to nobody")
        await wait_all_tasks_blocked()
        assert tried == ["  | to nobody"]


def test_a_process_that_a_tool_forks_prints_whatever_other_threads_print_just_then(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """T1: as with `multiprocessing`. It waited for a lock that nobody holds in it, and the tool for its end."""
    entered, let_go = threading.Event(), threading.Event()

    class Slow(io.TextIOWrapper):
        def write(self, text: str, /) -> int:
            entered.set()
            let_go.wait()
            return super().write(text)

    with Slow((tmp_path / "err").open("wb")) as err:
        monkeypatch.setattr(sys, "stderr", err)
        with printed_aside():
            thread = threading.Thread(target=print, args=("in a thread",))
            thread.start()
            entered.wait()
            if not (child := os.fork()):
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(20)  # Only ever rings when something is wrong.
                print("forked", flush=True)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            let_go.set()
            thread.join()
    assert sorted((tmp_path / "err").read_text().split("\n")) == ["", "forked", "in a thread"]
