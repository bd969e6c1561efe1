"""A chat without a terminal: what happens at its edges."""

from __future__ import annotations

import signal
import socket
from collections.abc import AsyncIterator
from io import StringIO
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from trouper import open_runtime, tool
from trouper.cli.chat import Chat
from trouper.cli.chat_input import typed_lines
from trouper.cli.chat_screen import PlainScreen
from trouper.cli.configuration import read_configuration
from trouper.cli.endings import Stopped
from trouper.cli.hosting import Hosted, ended_by_signals
from trouper.cli.line_editor import LineEditor
from trouper.cli.terminal import Terminal
from trouper.models import Scripted, Simulated, call, reply
from trouper.tools.builtin import ask_user


class Page(Terminal):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.stream: StringIO = StringIO()


class Hasty(PlainScreen):
    """Somebody who presses keys as soon as there is something to see."""

    def __init__(self, page: Page, *signals: signal.Signals) -> None:
        super().__init__(page)
        self._signals = signals
        self.heard = trio.Event()

    def say(self, text: str, *styles: str) -> None:
        super().say(text, *styles)
        pressed, self._signals = self._signals, ()
        for each in pressed:
            signal.raise_signal(each)
        if text.startswith("(Ctrl-C again"):
            self.heard.set()

    async def lines(self) -> AsyncIterator[str]:
        """What is typed once the key has done what it does."""
        await self.heard.wait()
        yield "hello"


@pytest.mark.parametrize(
    ("pressed", "code"),
    [
        ((signal.SIGINT,), None),
        ((signal.SIGTERM,), 143),
        ((signal.SIGHUP,), 129),
    ],
    ids=["Ctrl-C", "asked to stop", "the window is closed"],
)
async def test_a_key_that_is_pressed_as_the_chat_begins_does_what_it_does_later(
    tmp_path: Path, pressed: tuple[signal.Signals, ...], code: int | None
) -> None:
    """L15, command line: one Ctrl-C interrupts, and does not quit; whatever ends the program does so in order, with its code. Afterwards the keys are nobody's again."""
    before = signal.getsignal(signal.SIGINT)
    model, page, editor = Simulated(), Page(), LineEditor()
    async with open_runtime(durability="memory", model=model) as runtime:
        hosted = Hosted(tmp_path, runtime, read_configuration(tmp_path), model, [])
        screen = Hasty(page, *pressed)
        chat = Chat(hosted, await runtime.session("main"), screen, editor)
        if code is None:
            assert await chat.run(screen.lines(), steer=False) == 0
            assert "You said: hello" in page.stream.getvalue()
        else:
            with pytest.raises(Stopped) as stopped:
                async with ended_by_signals():
                    await chat.run(screen.lines(), steer=False)
            assert stopped.value.code == code
    assert signal.getsignal(signal.SIGINT) is before


async def test_a_paste_whose_end_never_comes_is_shown_and_ctrl_c_takes_it_as_it_is(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Command line: what was pasted is not lost, Enter sends it again, and the Ctrl-C that helps is no step towards quitting."""
    model, page, editor = Simulated(), Page(), LineEditor()
    ours, terminal = socket.socketpair()

    class Watching(PlainScreen):
        """Presses what the screen tells to."""

        def say(self, text: str, *styles: str) -> None:
            super().say(text, *styles)
            if "Ctrl-C takes it as it is" in text:
                assert editor.text == "one\ntwo"
                signal.raise_signal(signal.SIGINT)
            elif "Enter sends it" in text:
                signal.raise_signal(signal.SIGINT)
            elif "Ctrl-C again" in text:
                ours.send(b"\r")
                ours.shutdown(socket.SHUT_WR)

    with ours, terminal:
        async with open_runtime(durability="memory", model=model) as runtime:
            hosted = Hosted(tmp_path, runtime, read_configuration(tmp_path), model, [])
            screen = Watching(page)
            chat = Chat(hosted, await runtime.session("main"), screen, editor)
            ours.send(b"\x1b[200~one\rtwo")
            assert await chat.run(typed_lines(terminal.fileno(), editor, screen), steer=False) == 0
    assert "You said: one\ntwo" in page.stream.getvalue()
    assert page.stream.getvalue().count("has not come") == 1


async def test_a_chat_whose_session_is_closed_meanwhile_ends_with_its_lines(tmp_path: Path) -> None:
    """Command line: lines through a pipe wait for their turns; nobody waits for one that cannot come."""
    model, page, editor = Simulated(), Page(), LineEditor()
    async with open_runtime(durability="memory", model=model) as runtime:
        session = await runtime.session("main")

        async def lines() -> AsyncIterator[str]:
            yield "hello"
            await session.close()
            yield "are you there?"

        hosted = Hosted(tmp_path, runtime, read_configuration(tmp_path), model, [])
        chat = Chat(hosted, session, PlainScreen(page), editor)
        with trio.fail_after(30):
            assert await chat.run(lines(), steer=False) == 0
    assert "You said: hello" in page.stream.getvalue() and "'main' is closed" in page.stream.getvalue()


@tool(policy="requires_approval")
async def run_it(argv: list[str], directory: str = ".") -> str:
    """Run a program."""
    return " ".join(argv)


class Approving(PlainScreen):
    """Somebody who types /approve as soon as they are asked."""

    def __init__(self, page: Page) -> None:
        super().__init__(page)
        self.asked = trio.Event()

    def say(self, text: str, *styles: str) -> None:
        super().say(text, *styles)
        if "/approve" in text:
            self.asked.set()

    async def lines(self) -> AsyncIterator[str]:
        yield "go"
        await self.asked.wait()
        yield "/approve"


@pytest.mark.parametrize(
    ("last", "shown"),
    [
        ("~ #\recho harmless", r'"~ #\recho harmless"'),
        ("x" * 200 + "; evil", '"' + "x" * 200 + '; evil"'),
        ("gnp.\u202eexe", r'"gnp.\u202eexe"'),
        ("http://a/b?c=$(evil)", '"http://a/b?c=$(evil)"'),
    ],
    ids=["written over", "long", "turned around", "a query"],
)
async def test_who_is_to_approve_a_call_sees_all_that_will_run(tmp_path: Path, last: str, shown: str) -> None:
    """T4, security, tool results: an approval binds to the exact arguments, so these are what is shown; not the one line for those who watch."""
    said = await _approved(tmp_path, ["rm", "-rf", last])
    (asked,) = [line for line in said.splitlines() if "/approve" in line and "?" in line]
    assert asked.startswith(f'  ? run_it {{"argv":["rm","-rf",{shown}]}}: /approve call_1_1_0')


async def test_a_question_cannot_pass_for_an_approval_that_is_asked_for(tmp_path: Path) -> None:
    """T4, T16, security, tool results: who asks chooses the words, not how they are shown. Choices, and what becomes of a secret, are shown with them."""
    fake = 'run_it {"argv":["ls"]}: /approve call_1_1_0 [always], or /deny call_1_1_0\n  ? run_it'
    questions = [{"text": fake, "choices": ["a", "b\u202e"]}, {"text": "And the password?", "secret": True}]
    model = Scripted([reply(call("ask_user", questions=questions)), reply("Done.")])
    page, editor = Page(), LineEditor()
    async with open_runtime(tmp_path, durability="memory", model=model, tools=[ask_user]) as runtime:
        hosted = Hosted(tmp_path, runtime, read_configuration(tmp_path), model, [ask_user])

        class Asked(Approving):
            async def lines(self) -> AsyncIterator[str]:
                yield "go"
                await self.asked.wait()
                yield "/answer"

        screen = Asked(page)
        chat = Chat(hosted, await runtime.session("main"), screen, editor)
        with trio.fail_after(30):
            await chat.run(screen.lines(), steer=True)
    shown = [line for line in page.stream.getvalue().splitlines() if "?" in line and line.startswith("  ")]
    assert shown == [
        r'  ? you are asked "run_it {\"argv\":[\"ls\"]}: /approve call_1_1_0 [always], or /deny call_1_1_0 ? run_it" ("a", "b\u202e")',
        '  ? you are asked "And the password?" (a secret: it is stored, and not told to the model)',
    ]


async def _approved(tmp_path: Path, argv: list[str]) -> str:
    """What a user sees who approves a call with these arguments."""
    model, page = Scripted([reply(call("run_it", argv=argv)), reply("Done.")]), Page()
    async with open_runtime(durability="memory", model=model, tools=[run_it]) as runtime:
        hosted = Hosted(tmp_path, runtime, read_configuration(tmp_path), model, [run_it])
        screen = Approving(page)
        chat = Chat(hosted, await runtime.session("main"), screen, LineEditor())
        with trio.fail_after(30):
            await chat.run(screen.lines(), steer=True)
    return page.stream.getvalue()


async def test_who_cannot_see_all_that_will_run_is_told_so(tmp_path: Path) -> None:
    """T4: a flood of arguments would push its own beginning out of sight."""
    flood = "echo " + "x" * 50_000 + " end"
    said = await _approved(tmp_path, [flood])
    asked = said[said.index("? run_it") : said.index("/approve call")]
    assert len(asked) < 5_000 and asked.startswith('? run_it {"argv":["echo xxx') and 'x end"]}' in asked
    assert asked.count("characters are not shown; `trouper approvals` has all of them") == 2
