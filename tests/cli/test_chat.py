"""A chat without a terminal: what happens at its edges."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import StringIO
from pathlib import Path

import pytest
import trio
from terminal_driver import in_order
from trio.testing import MockClock

from trouper import Budget, Limits, ToolContext, open_runtime, tool
from trouper.cli import main
from trouper.cli.chat import Chat
from trouper.cli.chat_input import typed_lines
from trouper.cli.chat_screen import PlainScreen
from trouper.cli.configuration import read_configuration
from trouper.cli.endings import Stopped
from trouper.cli.hosting import Hosted, ended_by_signals
from trouper.cli.line_editor import LineEditor
from trouper.cli.terminal import Terminal
from trouper.core.events import ApprovalRequested, InputReceived
from trouper.core.live import QuestionAsked
from trouper.core.messages import Outcome, ToolAnswer
from trouper.models import Model, Scripted, Simulated, call, reply
from trouper.models.chunks import Chunk
from trouper.models.protocol import ModelRequest
from trouper.testing.invariants import check_invariants
from trouper.tools.builtin import ask_user
from trouper.tools.context import Question
from trouper.tools.contract import Tool
from trouper.tools.hooks import BeforeTurn, Deny, Hooks


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


async def test_a_chat_in_the_background_of_a_script_does_not_hear_the_ctrl_c_of_its_foreground(tmp_path: Path) -> None:
    """`trouper chat < lines &`: it was started to ignore it. Its turns were interrupted all the same, and a second one ended it."""
    model, page = Simulated(), Page()

    async def lines() -> AsyncIterator[str]:
        yield "hello"

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        async with open_runtime(durability="memory", model=model) as runtime:
            hosted = Hosted(tmp_path, runtime, read_configuration(tmp_path), model, [])
            screen = Hasty(page, signal.SIGINT, signal.SIGINT)
            assert (
                await Chat(hosted, await runtime.session("main"), screen, LineEditor()).run(lines(), steer=False) == 0
            )
    finally:
        signal.signal(signal.SIGINT, before)
    said = page.stream.getvalue()
    assert "You said: hello" in said and "interrupted" not in said and not screen.heard.is_set()


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


class Answering(PlainScreen):
    """Somebody who types the next line as soon as they see what it is an answer to."""

    def __init__(self, page: Page, first: str, *answers: tuple[str, str]) -> None:
        super().__init__(page)
        self._first, self._answers = first, answers
        self._said = trio.Event()

    def say(self, text: str, *styles: str) -> None:
        super().say(text, *styles)
        self._wake()

    def stream(self, text: str, *styles: str) -> None:
        super().stream(text, *styles)
        self._wake()

    def _wake(self) -> None:
        said, self._said = self._said, trio.Event()
        said.set()

    async def lines(self) -> AsyncIterator[str]:
        yield self._first
        for wanted, line in self._answers:
            await self.shows(wanted)
            yield line

    async def shows(self, wanted: str, *, times: int = 1) -> None:
        while self._out.stream.getvalue().count(wanted) < times:  # type: ignore[attr-defined]
            await self._said.wait()


async def _answered(
    tmp_path: Path, model: Model, tools: list[Tool], *answers: tuple[str, str], steer: bool = True
) -> list[str]:
    """What a user sees who answers so what they are asked; indented lines only."""
    page = Page()
    async with open_runtime(tmp_path / "state", model=model, tools=tools) as runtime:
        hosted = Hosted(tmp_path, runtime, read_configuration(tmp_path), model, tools)
        screen = Answering(page, "go", *answers)
        chat = Chat(hosted, await runtime.session("main"), screen, LineEditor())
        with trio.fail_after(10):
            await chat.run(screen.lines(), steer=steer)
    assert not check_invariants(tmp_path / "state")
    return page.stream.getvalue().splitlines()


async def test_of_several_calls_that_wait_the_user_says_which_one_runs(tmp_path: Path) -> None:
    """T4, command line: each is shown with a number; the other one waits on."""
    asked = reply(call("run_it", argv=["one"]), call("run_it", argv=["two"]))
    model = Scripted([asked, reply("Done.")])
    said = await _answered(
        tmp_path,
        model,
        [run_it],
        ("/approve 2", "/approve 2"),
        ("✓", "/approve 2"),
        ("number 2 waits no longer", "/deny 1 not today"),
        ("Done.", "/quit"),
    )
    assert [line for line in said if "?" in line] == [
        '  ? run_it {"argv":["one"]}: /approve 1 [always], or /deny 1',
        '  ? run_it {"argv":["two"]}: /approve 2 [always], or /deny 2',
    ]
    one, two = model.requests[-1].messages[-1].parts
    assert isinstance(one, ToolAnswer) and one.outcome is Outcome.DENIED and "not today" in str(one.content)
    assert isinstance(two, ToolAnswer) and two.content == "two"
    assert "! number 2 waits no longer; there is 1" in said


@pytest.mark.parametrize(
    "line, outcome", [("/approve 1", Outcome.OK), ("/approve 1 always", Outcome.OK), ("/deny 1", Outcome.DENIED)]
)
async def test_the_only_call_that_waits_may_be_called_1(tmp_path: Path, line: str, outcome: Outcome) -> None:
    """T4, command line: as /help says it. /approve 1 was refused, and the model was told that a call was denied for the reason "1"."""
    model = Scripted([reply(call("run_it", argv=["one"])), reply("Done.")])
    await _answered(tmp_path, model, [run_it], ("/approve call_1_1_0", line), ("Done.", "/quit"))
    (answer,) = model.requests[-1].messages[-1].parts
    assert isinstance(answer, ToolAnswer) and answer.outcome is outcome and "1" not in str(answer.content)


@pytest.mark.parametrize("rest", ["1 awlays", "1 not yet", "call_1_1_0 call_1_2_0", "1 3"])
async def test_an_approve_with_a_word_that_is_no_call_approves_nothing(tmp_path: Path, rest: str) -> None:
    """T4: the line was refused, and the call that it named first ran nevertheless."""
    asked = reply(call("run_it", argv=["one"]), call("run_it", argv=["two"]))
    model = Scripted([asked, reply("Done.")])
    said = await _answered(
        tmp_path,
        model,
        [run_it],
        ("/approve 2", f"/approve {rest}"),
        ("nothing was approved", "/deny"),
        ("Done.", "/quit"),
    )
    word = rest.split()[1]
    assert f"! no call {word!r} waits for an approval, so nothing was approved; there is 1, 2" in said
    outcomes = [part.outcome for part in model.requests[-1].messages[-1].parts if isinstance(part, ToolAnswer)]
    assert outcomes == [Outcome.DENIED, Outcome.DENIED]


async def test_a_call_that_is_named_twice_is_approved_once(tmp_path: Path) -> None:
    """T4: the second time it waited no longer, and the line was told to be a mistake."""
    model = Scripted([reply(call("run_it", argv=["one"])), reply("Done.")])
    said = await _answered(
        tmp_path,
        model,
        [run_it],
        ("/approve call", "/approve call_1_1_0 call_1_1_0"),
        ("Done.", "/quit"),
    )
    assert not [line for line in said if line.startswith("!")]


async def test_of_several_questions_that_wait_the_user_says_which_one_is_answered(tmp_path: Path) -> None:
    """T16, command line: it was always the oldest."""
    asked = reply(
        call("ask_user", questions=[{"text": "Which colour?"}]), call("ask_user", questions=[{"text": "How many?"}])
    )
    model = Scripted([asked, reply("Done.")])
    said = await _answered(
        tmp_path,
        model,
        [ask_user],
        ("/answer 2 TEXT", "/answer blue"),
        ("say which", "/answer 2 3"),
        ("✓", "/answer blue"),
        ("Done.", "/quit"),
    )
    assert "! 2 questions wait for an answer; say which: /answer NUMBER TEXT" in said
    one, two = model.requests[-1].messages[-1].parts
    assert isinstance(one, ToolAnswer) and "'blue'" in str(one.content)
    assert isinstance(two, ToolAnswer) and "'3'" in str(two.content)


@tool
async def order(context: ToolContext) -> str:
    """Order a pizza."""
    toppings = Question("Which toppings?", choices=("ham", "olives", "cheese"), multiple=True)
    return repr((await context.ask_user(toppings, Question("And for whom?"))).values)


async def test_a_question_that_allows_several_choices_is_answered_with_several(tmp_path: Path) -> None:
    """T16, command line: none of the ways to write them was taken."""
    model = Scripted([reply(call("order")), reply("Done.")])
    said = await _answered(
        tmp_path,
        model,
        [order],
        ("/answer TEXT, TEXT... | TEXT", "/answer ham, pineapple | Ada"),
        ("! 'pineapple' is not among the choices", '/answer ham, olives | "Ada | Bob"'),
        ("Done.", "/quit"),
    )
    assert any('"cheese"; several may be chosen, with commas)' in line for line in said)
    (answer,) = model.requests[-1].messages[-1].parts
    assert isinstance(answer, ToolAnswer) and answer.content == "(['ham', 'olives'], 'Ada | Bob')"


@tool(background=True)
async def paint(context: ToolContext) -> str:
    """Paint a wall."""
    return (await context.ask_user(Question("Which colour?"))).status


async def test_a_question_from_before_the_chat_is_shown(tmp_path: Path) -> None:
    """T16, B11: a run that was taken up may ask before anybody looks; nobody saw what it asked, and it waited for an hour."""
    model, page = Scripted([reply("Done.")]), Page()
    async with open_runtime(tmp_path / "state", model=model, tools=[paint]) as runtime:
        hosted = Hosted(tmp_path, runtime, read_configuration(tmp_path), model, [paint])
        session = await runtime.session("main")
        with session.watch() as events:
            await session.spawn(paint, wake="silent")
            async for event in events:
                if isinstance(event, QuestionAsked):
                    break
        screen = Answering(page, "/answer blue", ("succeeded", "/quit"))
        doing: list[str] = []
        screen.status = doing.append  # type: ignore[method-assign]
        with trio.fail_after(10):
            await Chat(hosted, session, screen, LineEditor()).run(screen.lines(), steer=True)
    assert not check_invariants(tmp_path / "state")
    assert '  ? you are asked "Which colour?"' in page.stream.getvalue().splitlines()
    assert doing[0] == "paint waits for you"


async def test_a_cancel_is_for_what_had_been_shown_when_it_was_typed(tmp_path: Path) -> None:
    """L21, command line: its turn came when the line before it was through, and it stopped what had begun meanwhile."""
    model, page = Scripted([]), Page()
    behind = Behind(page)
    async with open_runtime(tmp_path / "state", model=model, tools=[paint], hooks=behind.hooks) as runtime:
        session = await runtime.session("main")
        first = await session.spawn(paint, wake="silent")

        async def lines() -> AsyncIterator[str]:
            await behind.screen.shows("Which colour?")
            yield Behind.LINE
            await behind.asked.wait()
            yield "/cancel"
            await session.cancel(first.id)
            await session.spawn(paint, wake="silent")
            await behind.screen.shows("Which colour?", times=2)
            behind.may_go_on.set()
            await behind.screen.shows("! nothing is at work that could be cancelled")
            assert len(session.questions) == 1
            yield "/cancel"
            await behind.screen.shows("cancelled: ", times=2)

        hosted = Hosted(tmp_path, runtime, read_configuration(tmp_path), model, [paint])
        with trio.fail_after(10):
            await Chat(hosted, session, behind.screen, LineEditor()).run(lines(), steer=True)
    assert not check_invariants(tmp_path / "state")


class Dawdling:
    """A tool that takes its time to stop."""

    def __init__(self) -> None:
        self.stopping, self.may_stop = trio.Event(), trio.Event()

    def tool(self) -> Tool:
        @tool(background=True)
        async def dawdle() -> None:
            """Take its time to stop."""
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    self.stopping.set()
                    await self.may_stop.wait()

        return dawdle


async def test_what_is_typed_behind_a_cancel_is_recorded_before_the_tool_has_stopped(tmp_path: Path) -> None:
    """L10, J4, command line: it was shown as sent, and nowhere else until the tool had stopped: whoever was killed meanwhile, or left with Ctrl-C twice, had lost it."""
    model, page, dawdling = Scripted([reply("I see.")]), Page(), Dawdling()
    screen, tools, limits = Answering(page, "/cancel"), [dawdling.tool(), paint], Limits(grace_s=600)
    async with open_runtime(tmp_path / "state", model=model, tools=tools, limits=limits) as runtime:
        session = await runtime.session("main")
        await session.spawn(tools[0], wake="silent")

        async def lines() -> AsyncIterator[str]:
            yield "/cancel"
            await dawdling.stopping.wait()
            yield "a thought"
            await screen.shows("I see.")
            # Nor does an impatient second one stop anything else.
            await session.spawn(paint, wake="silent")
            await screen.shows("Which colour?")
            yield "/cancel " + next(
                task.id for task in session.state.tasks.live.values() if task.about.tool == "dawdle"
            )
            yield "/tasks"
            await screen.shows("  awaiting_input  ")
            assert len(session.questions) == 1 and "cancelled: " not in page.stream.getvalue()
            dawdling.may_stop.set()
            await screen.shows("cancelled: ")

        hosted = Hosted(tmp_path, runtime, read_configuration(tmp_path), model, tools)
        try:
            with trio.fail_after(10):
                await Chat(hosted, session, screen, LineEditor()).run(lines(), steer=True)
        finally:
            dawdling.may_stop.set()
    assert not check_invariants(tmp_path / "state")


class Summing(Scripted):
    """A model that takes its time over a summary."""

    def __init__(self) -> None:
        super().__init__([reply("Yes. " * 40)] * 8 + [reply("A summary."), reply("I see.")])
        self.asked, self.may_answer = trio.Event(), trio.Event()

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[Chunk]]:
        if len(self.requests) == 8:
            self.asked.set()
            await self.may_answer.wait()
        async with super().stream(request) as chunks:
            yield chunks


@pytest.mark.parametrize("leaves", [True, False], ids=["and leaves", "and waits for the answer"])
async def test_what_is_typed_behind_a_compact_is_recorded_before_the_summary_is_there(
    tmp_path: Path, leaves: bool
) -> None:
    """L10, J4, command line: and whoever leaves behind it still gets the summary."""
    model, page = Summing(), Page()
    screen = Answering(page, "/compact")
    async with open_runtime(tmp_path / "state", model=model) as runtime:
        session = await runtime.session("main")
        for number in range(8):
            await session.ask(f"question {number} " * 40)

        async def lines() -> AsyncIterator[str]:
            yield "/compact"
            await model.asked.wait()
            if leaves:
                yield "/quit"
            else:
                with session.watch() as events:
                    yield "a thought"
                    async for event in events:
                        if isinstance(event, InputReceived):
                            break
            model.may_answer.set()
            await screen.shows("I see.")

        hosted = Hosted(tmp_path, runtime, read_configuration(tmp_path), model, [])
        with trio.fail_after(10):
            await Chat(hosted, session, screen, LineEditor()).run(lines(), steer=True)
    assert not check_invariants(tmp_path / "state")
    in_order(page.stream.getvalue(), "> /compact", "> /quit" if leaves else "> a thought", "  context: ")


async def test_why_nothing_came_of_a_compact_is_said(tmp_path: Path) -> None:
    """L25, L34: of a budget that is spent, as of a model that fails."""
    model, page = Scripted([reply("I see.")], exhausted="repeat"), Page()
    screen = Answering(page, "/compact", ("  context: ", "/quit"))
    async with open_runtime(tmp_path / "state", model=model) as runtime:
        session = await runtime.session("main")
        for number in range(8):
            await session.ask(f"question {number} " * 40)
        session = await runtime.session("main", budget=Budget(steps=8))
        hosted = Hosted(tmp_path, runtime, read_configuration(tmp_path), model, [])
        with trio.fail_after(10):
            await Chat(hosted, session, screen, LineEditor()).run(screen.lines(), steer=True)
    assert "  context: unchanged" in page.stream.getvalue()
    assert "(the session's budget of 8 steps is spent (8 used); raise it to go on)" in page.stream.getvalue()


async def test_a_call_from_before_the_chat_is_shown_by_its_name(tmp_path: Path) -> None:
    """T11: in a turn that was taken up, what was approved ran as `call_1_1_0`."""
    model, page = Scripted([reply(call("run_it", argv=["one"])), reply("Done.")]), Page()
    async with open_runtime(tmp_path / "state", model=model, tools=[run_it]) as runtime:
        hosted = Hosted(tmp_path, runtime, read_configuration(tmp_path), model, [run_it])
        session = await runtime.session("main")
        with session.watch() as events:
            await session.send("go")
            async for event in events:
                if isinstance(event, ApprovalRequested):
                    break
        screen = Answering(page, "/approve", ("Done.", "/quit"))
        with trio.fail_after(10):
            await Chat(hosted, session, screen, LineEditor()).run(screen.lines(), steer=True)
    assert not check_invariants(tmp_path / "state")
    said = page.stream.getvalue().splitlines()
    assert "  ● Run It" in said and not any("✓ call_1_1_0" in line for line in said)


async def test_of_a_narration_that_raises_in_the_chat_no_stored_secret_is_logged(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """I36: one that looks like any other word, too; only the session knows it for a secret."""

    def careless(phase: str, arguments: object) -> str:
        raise ValueError("not with tulips-in-march")

    @tool(narrate=careless)
    async def water() -> str:
        return "watered"

    model, page = Scripted([reply(call("water")), reply("Done.")]), Page()
    async with open_runtime(tmp_path / "state", model=model, tools=[water]) as runtime:
        hosted = Hosted(tmp_path, runtime, read_configuration(tmp_path), model, [water])
        session = await runtime.session("main")
        await runtime.services("main").secrets.set("favourite", "tulips-in-march")
        screen = Answering(page, "go", ("Done.", "/quit"))
        await Chat(hosted, session, screen, LineEditor()).run(screen.lines(), steer=True)
    assert "● Water" in page.stream.getvalue()
    assert "the narration of tool 'water' raised" in caplog.text and "ValueError: not with " in caplog.text
    assert "tulips" not in caplog.text


class Behind:
    """A hook that takes its time over a line, and a screen to type on behind it."""

    LINE = "is this allowed?"

    def __init__(self, page: Page) -> None:
        self.screen = Answering(page, self.LINE)
        self.asked, self.may_go_on = trio.Event(), trio.Event()

    async def hook(self, event: BeforeTurn) -> Deny | None:
        if event.text != self.LINE:
            return None
        self.asked.set()
        await self.may_go_on.wait()
        return Deny("no")

    @property
    def hooks(self) -> list[Hooks]:
        return [Hooks(before_turn=self.hook)]


async def test_an_approval_is_for_what_was_shown_when_it_was_typed(tmp_path: Path) -> None:
    """T4, command line: a line waits for the ones before it; what came up meanwhile was approved, and nobody had looked at it."""
    asked = [reply(call("run_it", argv=[each])) for each in ("one", "two")]
    model, page = Scripted([*asked, reply("Done.")]), Page()
    behind = Behind(page)
    async with open_runtime(tmp_path / "state", model=model, tools=[run_it], hooks=behind.hooks) as runtime:
        session = await runtime.session("main")

        async def lines() -> AsyncIterator[str]:
            yield Behind.LINE
            await behind.asked.wait()
            await session.send("go")
            await behind.screen.shows("/approve call_1_1_0")
            yield "/approve"
            await session.deny("call_1_1_0")
            await behind.screen.shows("/approve call_1_2_0")
            behind.may_go_on.set()
            await behind.screen.shows("! no call waits for an approval that had been shown by then")
            assert session.approvals == ("call_1_2_0",)
            yield "/deny call_1_1_0"
            await behind.screen.shows("! call 'call_1_1_0' is not waiting for an approval")
            assert session.approvals == ("call_1_2_0",)
            yield "/approve"
            await behind.screen.shows("Done.")

        hosted = Hosted(tmp_path, runtime, read_configuration(tmp_path), model, [run_it])
        with trio.fail_after(10):
            await Chat(hosted, session, behind.screen, LineEditor()).run(lines(), steer=True)
    assert not check_invariants(tmp_path / "state")


async def test_an_answer_is_for_what_was_shown_when_it_was_typed(tmp_path: Path) -> None:
    """T16, command line: what was typed for one question was the answer to another that had come up meanwhile, be it a secret."""
    model, page = Scripted([]), Page()
    behind = Behind(page)
    async with open_runtime(tmp_path / "state", model=model, tools=[paint], hooks=behind.hooks) as runtime:
        session = await runtime.session("main")

        async def lines() -> AsyncIterator[str]:
            yield Behind.LINE
            await behind.asked.wait()
            await session.spawn(paint, wake="silent")
            await behind.screen.shows("Which colour?")
            yield "/answer blue"
            await session.decline_question(session.questions[0].id)
            await session.spawn(paint, wake="silent")
            await behind.screen.shows("Which colour?", times=2)
            behind.may_go_on.set()
            await behind.screen.shows("! nobody asks anything that had been shown by then")
            assert len(session.questions) == 1
            yield "/answer"

        hosted = Hosted(tmp_path, runtime, read_configuration(tmp_path), model, [paint])
        with trio.fail_after(10):
            await Chat(hosted, session, behind.screen, LineEditor()).run(lines(), steer=True)
    assert not check_invariants(tmp_path / "state")


@pytest.mark.parametrize("steer", [True, False], ids=["on a terminal", "through a pipe"])
async def test_what_a_turn_waits_for_can_be_answered_by_the_next_line(tmp_path: Path, steer: bool) -> None:
    """T4, command line: without a terminal, or on a dumb one, lines wait for the turn; one that waits for a line had the chat stand still for an hour."""
    model = Scripted([reply(call("run_it", argv=["one"])), reply("Done.")])
    said = await _answered(tmp_path, model, [run_it], ("/approve call", "/approve"), ("Done.", "/quit"), steer=steer)
    assert "Done." in said


async def test_a_secret_that_is_answered_does_not_stay_on_the_screen(tmp_path: Path) -> None:
    """T16, security: it stood in whatever the output of the chat went to."""
    asked = reply(call("ask_user", questions=[{"text": "Which key?", "secret": True}]))
    said = await _piped(tmp_path, Scripted([asked, reply("Done.")]), [ask_user], "go", "/answer hunter2", "/answer x")
    assert "> /answer (not shown: a secret is asked for)" in said and "> /answer x" in said
    assert not any("hunter2" in line for line in said)
    assert not check_invariants(tmp_path / "state", secrets=["hunter2"])


async def test_lines_through_a_pipe_wait_for_the_turn_also_behind_an_approval(tmp_path: Path) -> None:
    """T4, command line: an answer was for the first of two calls that wait, the next one came too early and was lost, and what was to be the next prompt went into the turn."""
    two = reply(call("run_it", argv=["one"]), call("run_it", argv=["two"]))
    model = Scripted([two, reply(call("run_it", argv=["three"])), reply("Done."), reply("Welcome.")])
    lines = ["go", "/approve", "/approve", "thanks"]
    said = await _piped(tmp_path, model, [run_it], *lines)
    assert [line[2:] for line in said if line.startswith("> ")] == lines
    assert said[said.index("> thanks") - 1 :] == ["Done.", "> thanks", "Welcome."]
    assert "! no call waits for an approval" not in said


async def test_lines_through_a_pipe_wait_for_the_turn_also_when_a_task_asks(tmp_path: Path) -> None:
    """T16, command line: what a task asks holds up no turn, and is answered when the user likes."""
    model = Scripted([reply(call("ponder_briefly")), reply("Done."), reply("Welcome.")])
    said = await _piped(tmp_path, model, [paint, ponder_briefly], "go", "thanks", "/answer blue", spawn=paint)
    assert said[said.index("> thanks") - 1 :][:3] == ["Done.", "> thanks", "Welcome."]
    assert any("succeeded" in line for line in said)


@tool
async def ponder_briefly() -> str:
    """Let others go first."""
    await trio.testing.wait_all_tasks_blocked()
    return "so it is"


async def _piped(tmp_path: Path, model: Model, tools: list[Tool], *lines: str, spawn: Tool | None = None) -> list[str]:
    """What comes out of a chat to which somebody has piped these lines; if with a task, then one that asks something already."""
    page = Page()

    async def piped() -> AsyncIterator[str]:
        for line in lines:
            yield line

    async with open_runtime(tmp_path / "state", model=model, tools=tools) as runtime:
        hosted = Hosted(tmp_path, runtime, read_configuration(tmp_path), model, tools)
        session = await runtime.session("main")
        if spawn is not None:
            with session.watch() as events:
                await session.spawn(spawn, wake="silent")
                async for event in events:
                    if isinstance(event, QuestionAsked):
                        break
        with trio.fail_after(10):
            await Chat(hosted, session, PlainScreen(page), LineEditor()).run(piped(), steer=False)
    assert not check_invariants(tmp_path / "state")
    return page.stream.getvalue().splitlines()


async def test_what_another_program_sends_is_shown_and_what_the_user_sends_is_not_shown_twice(tmp_path: Path) -> None:
    """Command line: `trouper sessions send` reaches a chat; there stood only an answer, to nobody knew what."""
    model, page = Simulated(), Page()
    key = "sk-ant-api03-" + "Ab1" * 30  # Is cut out before it is recorded.
    async with open_runtime(tmp_path / "state", model=model) as runtime:
        hosted = Hosted(tmp_path, runtime, read_configuration(tmp_path), model, [])
        session = await runtime.session("main")
        screen = Answering(
            page, f"keep {key}", ("You said: keep", "hello"), ("You said: hello", ""), ("another program", "/quit")
        )

        async def lines() -> AsyncIterator[str]:
            async for line in screen.lines():
                if not line:
                    await session.send("hi from\nelsewhere")
                yield line

        with trio.fail_after(10):
            await Chat(hosted, session, screen, LineEditor()).run(lines(), steer=True)
    said = page.stream.getvalue().splitlines()
    assert [line for line in said if "another program" in line] == ['(from another program) "hi from elsewhere"']
    assert not check_invariants(tmp_path / "state")


@tool
async def ponder() -> str:
    """Ponder until somebody interrupts."""
    await trio.sleep_forever()
    return "never"


async def test_a_call_that_runs_alone_is_cancelled_without_its_id_and_of_several_the_ids_are_told(
    tmp_path: Path,
) -> None:
    """L21, command line: the id of a call is shown nowhere else."""
    model = Scripted([reply(call("ponder")), reply("Once."), reply(call("ponder"), call("ponder")), reply("Done.")])
    said = await _answered(
        tmp_path,
        model,
        [ponder],
        ("● Ponder", "/cancel"),
        ("Once.", "go"),
        ("● Ponder\n  ● Ponder", "/cancel"),
        ("which?", "/cancel call_2_1_1"),
        ("which?", "/cancel"),
        ("Done.", "/quit"),
    )
    assert "! cancel which? /cancel ID: call_2_1_0 (ponder), call_2_1_1 (ponder)" in said
    assert len([line for line in said if "✗ Ponder cancelled" in line]) == 3


async def test_what_is_asked_when_the_input_has_ended_is_declined(tmp_path: Path) -> None:
    """T16, command line: lines through a pipe; nobody could answer any more, and the chat waited for ever."""
    model = Scripted([reply(call("ask_user", questions=[{"text": "Which colour?"}])), reply("Done.")])
    said = await _answered(tmp_path, model, [ask_user], steer=False)
    assert "  (declined: the input has ended)" in said and "Done." in said


async def test_what_went_wrong_inside_a_tool_is_shown_and_where_the_traceback_is(
    tmp_path: Path, autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """L20: the model is told a fixed sentence; whoever sits at the chat may have written the tool."""

    @tool
    async def price(item: str) -> float:
        """What an item costs."""
        return {"tea": 3.5}[item]

    @tool(background=True)
    async def survey(item: str) -> float:
        """What it costs everywhere."""
        await trio.sleep(60)
        raise ExceptionGroup("no shop answers", [OSError("the line to \x1b[2Jada is dead")])

    async def lines() -> AsyncIterator[str]:
        yield "go"
        await session.wait_task(session.tasks().tasks[0].id)

    tools = [price, survey]
    model = Scripted([reply(call("price", item="milk"), call("survey", item="milk")), "Sorry.", "So it is."])
    page = Page()
    async with open_runtime(tmp_path / "state", model=model, tools=tools) as runtime:
        session = await runtime.session("main")
        hosted = Hosted(tmp_path, runtime, read_configuration(tmp_path), model, tools)
        assert await Chat(hosted, session, PlainScreen(page), LineEditor()).run(lines(), steer=False) == 0
    written = page.stream.getvalue()
    assert "✗ Price error: The tool failed because of an internal error" in written
    assert (
        "    KeyError: 'milk' (`trouper journal show` has the record, and with --record SEQ the traceback)" in written
    )
    assert "    OSError: the line to ada is dead (`trouper" in written
    assert main(["journal", "show", str(tmp_path / "state")]) == 0
    listed = capsys.readouterr().out
    ended = listed[: listed.index("error: KeyError: 'milk'")].splitlines()
    assert "OSError: the line to ada is dead" in listed
    seq = next(line.split()[0] for line in reversed(ended) if line.split()[0].isdigit())
    assert main(["journal", "show", str(tmp_path / "state"), "--record", seq]) == 0
    whole = json.loads(capsys.readouterr().out)["body"]["events"][0]["internal"]
    assert "Traceback (most recent call last)" in whole and 'return {"tea": 3.5}[item]' in whole
