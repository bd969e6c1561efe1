"""`trouper chat`: talk to an agent on a terminal, or line by line through a pipe. The session is kept: start again, and it goes on."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, aclosing, suppress
from pathlib import Path
from typing import TextIO

import trio

from trouper._errors import CommandRejected, TrouperError, UsageError
from trouper.actors.session import Step
from trouper.cli.arguments import Parser, add_agent, add_root, root_of
from trouper.cli.chat_commands import Quit, attachments_in, command
from trouper.cli.chat_input import Keys, typed_lines
from trouper.cli.chat_left import tasks_left, turn_found, turn_left, words_left
from trouper.cli.chat_numbers import Numbers
from trouper.cli.chat_screen import PlainScreen, Screen, TerminalScreen
from trouper.cli.chat_watch import Seen, Watch
from trouper.cli.endings import INTERRUPTED, Stopped, ending_signals
from trouper.cli.hosting import Hosted, ended_by_signals, hosting, session_of
from trouper.cli.line_editor import LineEditor, Paste
from trouper.cli.printed import Shown, typed_aside
from trouper.cli.run import is_quiet, is_resting
from trouper.cli.stdin_lines import lines_of
from trouper.cli.terminal import Terminal, clean_line, clean_message, plural
from trouper.cli.unheard import HELD_UP, ended_if_unheard
from trouper.core.events import CompactionEnded, HistoryMasked
from trouper.core.session import Phase
from trouper.models.protocol import Model, name_of
from trouper.session import Session
from trouper.tools.contract import Tool

DEFAULT_SESSION = "main"
#: The simulated model's pace on a terminal: seconds between words.
WORD_S = 0.02
TICK_S = 0.1
#: Somebody who has typed nothing for so long is not typing.
TYPING_S = 2.0
#: Two Ctrl-C within this time quit.
TWICE_S = 2.0
#: Lines that were typed while an earlier one was dealt with; whoever types more has to wait.
LINES_AHEAD_MAX = 100


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="trouper chat", description=__doc__, epilog="In the chat, /help lists the commands.")
    parser.add_argument(
        "--session", default=DEFAULT_SESSION, metavar="ID", help=f"which conversation (default {DEFAULT_SESSION!r})"
    )
    parser.add_argument("--no-thinking", action="store_true", help="do not show what the model thinks")
    add_agent(parser)
    add_root(parser)
    options = parser.parse_args(arguments)
    with typed_aside() as typed:
        return trio.run(_main, options, typed)


async def _main(options: argparse.Namespace, typed: TextIO) -> int:
    out = Terminal()
    on_terminal = out.is_terminal and typed.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    # While the root is opened and closed, too: a window that is closed ends the input and sends a signal, in whichever order.
    async with ended_by_signals(), hosting(root_of(options), options, delay_s=WORD_S if on_terminal else 0.0) as hosted:
        session = await session_of(hosted, options.session, options.system)
        if session.state.phase is Phase.CLOSED:
            raise UsageError(
                f"session {options.session!r} is closed, and stays so; begin another one with --session ID",
                session=options.session,
            )
        editor = LineEditor()
        screen: Screen = TerminalScreen(out, editor) if on_terminal else PlainScreen(out)
        chat = Chat(hosted, session, screen, editor, thinking=not options.no_thinking)
        stdin = typed.fileno()
        with ExitStack() as taken:
            keys = None
            if on_terminal:
                keys = taken.enter_context(Keys(stdin, out.stream).taken())
            taken.callback(screen.close)
            if on_terminal:
                taken.enter_context(hosted.printed.shown_on(screen, chat.events))
            lines = typed_lines(stdin, editor, screen) if on_terminal else lines_of(stdin)
            return await chat.run(lines, steer=on_terminal, keys=keys)


class Chat:
    """One conversation between a user and a session."""

    def __init__(
        self, hosted: Hosted, session: Session, screen: Screen, editor: LineEditor, *, thinking: bool = True
    ) -> None:
        self.root: Path = hosted.root
        self.runtime = hosted.runtime
        self.tools: list[Tool] = hosted.tools
        self.model: Model = hosted.model
        self.session = session
        self.screen = screen
        self._editor = editor
        tools = {tool.name: tool for tool in hosted.tools}
        self._watch = Watch(session, screen, tools, hosted.printed, thinking=thinking)
        #: Of the line that is dealt with.
        self.seen = self._watch.seen()
        #: Whether lines are dealt with as they come, or each when the turn before it is through.
        self._steers = False
        self._interrupted_at = -TWICE_S
        #: By Ctrl-C, twice.
        self._left = False

    async def run(self, lines: AsyncIterator[str], *, steer: bool, keys: Keys | None = None) -> int:
        """Until the user leaves. `steer`: lines go to the model as they come; else each waits for the turn before it. `keys`: of the terminal they are typed on."""
        self._steers = steer
        # Before the first word: whoever sees it may press Ctrl-C.
        with ExitStack() as heeding:
            pressed = None
            # Off a terminal, it is not for those who were started to ignore it.
            if steer or signal.SIGINT in ending_signals():
                pressed = heeding.enter_context(trio.open_signal_receiver(signal.SIGINT))
            heeding.enter_context(ended_if_unheard(ending_signals(), lambda: self._end_unheard(keys)))
            self._greet()
            try:
                async with trio.open_nursery() as nursery:
                    await nursery.start(self._watch.run)
                    if pressed is not None:
                        nursery.start_soon(self._take_interrupts, pressed, nursery)
                    nursery.start_soon(self._tick)
                    if keys is not None:
                        await nursery.start(self._take_stops, keys)
                    self.screen.redraw()
                    try:
                        if steer:
                            await self._as_they_come(lines, nursery)
                        else:
                            await self._one_by_one(lines)
                    except Quit:
                        pass
                    nursery.cancel_scope.cancel()
            finally:
                self._farewell()
        if self._left:
            raise Stopped(INTERRUPTED)
        return 0

    async def _as_they_come(self, lines: AsyncIterator[str], nursery: trio.Nursery) -> None:
        send, receive = trio.open_memory_channel[tuple[str, Seen]](LINES_AHEAD_MAX)
        nursery.start_soon(self._read_ahead, lines, send)
        with suppress(Quit):
            async for line, self.seen in receive:
                await self._line(line)
        # Who has asked for a summary wants it, also if nothing else.
        shown, session = self._watch, self.session
        await shown.wait(lambda: Phase.TIDYING not in (shown.state.phase, session.state.phase))

    async def _one_by_one(self, lines: AsyncIterator[str]) -> None:
        async with aclosing(lines) as typed:  # type: ignore[type-var]
            async for line in typed:
                if line.strip():
                    self._show_line(line)
                    self.seen = self._watch.seen()
                    await self._line(line)
                    await self._wait_turn(self.session.state.turns)
        await self._wait_quiet()

    async def cancel(self, id: str) -> None:
        await self._stopped(await self.session._begin_cancel(id, "cancelled in the chat"))

    async def interrupt(self) -> None:
        await self._stopped(await self.session._begin_interrupt("stopped in the chat"))

    async def _stopped(self, begun: Step) -> None:
        """On a terminal, nobody waits for a tool that takes its time to stop: what is typed meanwhile would be nowhere but on the screen."""
        if not self._steers:
            await self.session._wait_stopped(begun)

    async def compact(self) -> None:
        done: CompactionEnded | HistoryMasked | None
        if self._steers:
            begun = await self.session._begin_compaction()
            if begun.state.phase is Phase.TIDYING:
                return  # It is told of when it is there, and holds up no line until then.
            done = next((event for event in begun.events if isinstance(event, HistoryMasked)), None)
        else:
            done = await self.session.compact()
        if done is None:
            self.screen.say("  nothing worth compacting", "dim")
        elif isinstance(done, HistoryMasked):
            self.screen.say(f"  old tool results left out: {done.tokens_before} -> {done.tokens_after} tokens", "dim")

    def use_model(self, model: Model) -> None:
        self.runtime._lend_model(self.session, model)
        self.model = model

    @property
    def approvals(self) -> Numbers:
        """The calls that wait for an approval, as far as the user could see them."""
        return self._watch.approvals

    @property
    def events(self) -> Shown:
        """How far the screen is with them."""
        return self._watch

    @property
    def questions(self) -> Numbers:
        return self._watch.questions

    async def _read_ahead(self, lines: AsyncIterator[str], into: trio.MemorySendChannel[tuple[str, Seen]]) -> None:
        """Keys are taken, and shown, also while a line is dealt with: a file that is sent along may take a while to read."""
        async with into, aclosing(lines) as typed:  # type: ignore[type-var]
            async for line in typed:
                if line.strip():
                    # Whoever goes on has not left: the next Ctrl-C is for what this line begins.
                    self._interrupted_at = -TWICE_S
                    self._show_line(line)
                    await into.send((line, self._watch.seen()))

    def _show_line(self, line: str) -> None:
        """What was sent stays on the screen, or in the file that a pipe ends in, and among the lines to recall: a secret does not."""
        asked = [question for each in self.session.questions for question in each.questions]
        if line.startswith("/answer") and any(question.secret for question in asked):
            self._editor.forget(line)
            line = "/answer (not shown: a secret is asked for)"
        self.screen.submitted(line)

    async def _line(self, line: str) -> None:
        try:
            if line.startswith("/"):
                await command(self, line)
                return
            attached = attachments_in(line)
            for name in attached.files:
                self.screen.say(f"  with {clean_line(name)}", "dim")
            for remark in attached.remarks:
                self.screen.say(f"  ({clean_line(remark)})", "yellow")
            with self._watch.sending(line):
                await self.session.send(line, attachments=attached.files)
        except TrouperError as error:
            self.screen.say(f"! {clean_message(error.message)}", "red")

    async def _wait_turn(self, turn: int) -> None:
        """Until this turn was shown to its end, and nothing waits for the next; or until it asks for something, which only a next line can answer."""
        shown = self._watch
        await shown.wait(
            lambda: (
                shown.state.phase is Phase.CLOSED
                or (shown.state.turns >= turn and is_resting(shown.state))
                or self._is_asked()
            )
        )

    async def _wait_quiet(self) -> None:
        """Until nothing goes on. The input has ended, so that nobody can answer what is asked; a call may still be approved by `trouper approvals`."""
        shown = self._watch
        while True:
            await shown.wait(lambda: (is_quiet(shown.state) and is_quiet(self.session.state)) or bool(self._asked()))
            asked = self._asked()
            if not asked:
                return
            for question in asked:
                with suppress(CommandRejected):  # It has lapsed just now.
                    await self.session.decline_question(question)
            self.screen.say("  (declined: the input has ended)", "yellow")

    def _asked(self) -> list[str]:
        return self.questions.shown([each.id for each in self.session.questions])

    def _is_asked(self) -> bool:
        """Whether the turn waits for the user, who has seen all that it waits for; what a task asks holds up no turn."""
        approvals = self.session.approvals
        questions = [each.id for each in self.session.questions if each.task_id is None]
        shown = len(self.approvals.shown(approvals)) + len(self.questions.shown(questions))
        return 0 < shown == len(approvals) + len(questions)

    def _greet(self) -> None:
        session, say = self.session, self.screen.say
        turns = session.state.turns
        known = f", {plural(turns, 'turn')} so far" if turns else ", new"
        say(f"session {session.id!r}{known}; model {name_of(self.model)}; /help for help", "dim")
        state, taken_over = session.state, session._actor.taken_over
        found = turn_found(state, self._watch.called, taken_over) + (words_left(state) if state.held else [])
        for line in found:
            say(line, "yellow")
        for task in state.tasks.live.values():
            again = f", attempt {task.attempt}" if task.attempt > 1 else ""
            say(f"{task.id} goes on{again}: {clean_line(task.about.title, 80)}", "yellow")

    def _farewell(self) -> None:
        state, attempts_max = self.session.state, self.session._actor.task_limits().attempts
        for line in turn_left(state, self._watch.called) + words_left(state):
            self.screen.say(line, "yellow")
        for line in tasks_left(state, attempts_max):
            self.screen.say(line, "dim")

    async def _tick(self) -> None:
        """Turn the spinner; and while somebody is typing, let no notification start a turn (B15)."""
        keys, idle_s = 0, TYPING_S
        with ExitStack() as held:
            holding = False
            while True:
                await trio.sleep(TICK_S)
                self.screen.tick()
                idle_s = 0.0 if self._editor.keys != keys else idle_s + TICK_S
                keys = self._editor.keys
                typing = bool(self._editor.text) and idle_s < TYPING_S
                if typing and not holding:
                    held.enter_context(self.session.hold_notifications())
                elif holding and not typing:
                    held.close()
                holding = typing

    async def _take_interrupts(self, pressed: AsyncIterator[int], nursery: trio.Nursery) -> None:
        async for _ in pressed:
            if self._editor.paste is Paste.STALLED:
                # The only key that still is one. Whoever wants more by it can press it again.
                self._editor.end_paste()
                self.screen.say("(taken as it is; Enter sends it, Ctrl-U removes it)", "dim")
            elif self._twice():
                self._left = True
                nursery.cancel_scope.cancel()
                return
            else:
                # Not waited for: a tool may take its time to stop, and the next Ctrl-C has to be heard meanwhile.
                nursery.start_soon(self._stop_turn)

    async def _take_stops(self, keys: Keys, task_status: trio.TaskStatus[None]) -> None:
        """Ctrl-Z hands the terminal back as it was; whoever is continued, then or after any other stop, takes it again, for a shell has used it meanwhile."""
        heeded = [signal.SIGCONT]
        if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
            heeded.append(signal.SIGTSTP)
        with trio.open_signal_receiver(*heeded) as signals:
            task_status.started()
            async for number in signals:
                if number == signal.SIGTSTP:
                    self.screen.suspend()
                    keys.stop()
                else:
                    keys.take()
                self.screen.redraw()

    def _end_unheard(self, keys: Keys | None) -> None:
        """Nothing of ours will run any more; the terminal is somebody else's then."""
        try:
            self.screen.say(HELD_UP, "red")
            self.screen.close()
        finally:
            if keys is not None:
                keys.give_back()

    def _twice(self) -> bool:
        now = trio.current_time()
        twice = now - self._interrupted_at < TWICE_S
        self._interrupted_at = now
        return twice

    @property
    def is_busy(self) -> bool:
        """Whether there is something to interrupt."""
        return self.session.state.turn is not None or self.session.state.phase is Phase.TIDYING

    async def _stop_turn(self) -> None:
        if self.is_busy:
            try:
                await self.session.interrupt("Ctrl-C")
            except TrouperError as error:
                self.screen.say(f"! {clean_message(error.message)}", "red")
        else:
            self.screen.say("(Ctrl-C again, or /quit, to leave)", "dim")
