"""`trouper demo`: a question, a slow tool that spills, a process killed in mid-sentence, and everything where the journal says it was.

The agent runs in a process of its own, so that it can really be killed. Whatever is told here was read from its events or from its journal.
"""

from __future__ import annotations

import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trouper import codec
from trouper._errors import InternalError, TrouperError, WorldError
from trouper.cli.arguments import Parser, in_shell
from trouper.cli.demo_stage import LiveStage, Stage
from trouper.cli.describe import describe, quoted
from trouper.cli.endings import INTERNAL, Stopped, ending_signals
from trouper.cli.terminal import Terminal, clean_line, plural
from trouper.cli.views import open_view
from trouper.core.events import (
    CallEnded,
    InputReceived,
    ModelProgressed,
    ModelReplied,
    RecoveryNoted,
    TurnEnded,
    TurnStarted,
)
from trouper.core.messages import Outcome
from trouper.core.notification import (
    NotificationQueued,
    NotificationsAcknowledged,
    NotificationsDelivered,
)
from trouper.core.session import State, evolve
from trouper.core.task_events import TaskReattached, TaskSpilled, TaskSucceeded
from trouper.journal import open_reader
from trouper.replay import Journal, open_journal

SESSION = "demo"
PAGES = 80
PATIENCE_S = 60.0
#: How often the journal is looked at while the sentence is spoken, in seconds.
LOOK_S = 0.05
STORY = (
    "Please say this back: a trouper is an actor who carries on whatever happens. The lights fail, the scenery falls, the lead "
    "forgets the lines, the prompter has gone home, and still the play goes on, scene by scene, word by word, until the curtain "
    "comes down at the very end and the audience has seen all of it, every single moment, as it was meant to be seen; and if the "
    "house burns down in the second act, then the company meets in another house the next morning, opens the book at the page where "
    "it was, and goes on from there."
)


class KeepExists(WorldError):
    """The directory of --keep is there already."""

    exit_code = 73


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="trouper demo", description=__doc__)
    parser.add_argument("--fast", action="store_true", help="the same, with shorter pauses")
    parser.add_argument(
        "--keep", metavar="DIR", help="keep the journal in DIR, which must not exist yet, to look at it afterwards"
    )
    options = parser.parse_args(arguments)
    out = Terminal()
    # Until the kill the survey has to last, or there would be nothing to take up again: only what comes behind it can be much faster.
    paces = [(0.05, 0.014), (0.01, 0.004)] if options.fast else [(0.05, 0.02), (0.05, 0.02)]
    with _stopped_by_signals(), _place(options.keep) as place:
        stage = LiveStage(out) if out.is_terminal and out.colour else Stage(out)
        with stage:
            _Demo(stage, place, paces).play()
        if options.keep is not None:
            out.line(
                f"\nThe journal is in {clean_line(str(place / 'state'))}: `trouper journal show {in_shell(place / 'state')}`."
            )
    return 0


@contextmanager
def _place(keep: str | None) -> Iterator[Path]:
    if keep is not None:
        place = Path(keep)
        try:
            place.mkdir(mode=0o700)
        except FileExistsError:
            raise KeepExists(f"{keep!r} exists already; give another directory to --keep", directory=keep) from None
        yield place
        return
    temporary = Path(tempfile.mkdtemp(prefix="trouper-demo-"))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """A SIGTERM or a SIGHUP ends the demo like Ctrl-C does: the agent's process ends with it, and nothing is left behind."""
    codes = ending_signals()
    codes.pop(signal.SIGINT, None)

    came: list[int] = []

    def stop(number: int, frame: object) -> None:
        came.append(number)
        raise Stopped(codes[number])

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in codes}
    try:
        yield
    except OSError:
        if came:  # The terminal is gone, and so the last words of the stage were lost.
            raise Stopped(codes[came[0]]) from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Until the block is left: a process that is just being started is nobody's yet, and would outlive us."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in ending_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


class Agent:
    """The other process, and what it says, line by line."""

    def __init__(self, place: Path, page_s: float, word_s: float) -> None:
        command = [sys.executable, "-m", "trouper.cli.demo_agent", str(place / "state"), str(place / "survey.txt")]
        self._process = subprocess.Popen(
            [*command, str(page_s), str(word_s)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self._said: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        # Reads to the end, also of what a killed process had written.
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.put(line)
        self._said.put(b"")

    def hear(self, patience_s: float = PATIENCE_S) -> dict[str, Any] | None:
        """The next thing it says; None when it has gone."""
        try:
            line = self._said.get(timeout=patience_s)
        except queue.Empty:
            raise WorldError(
                f"the agent's process {self.pid} said nothing for {patience_s:g} s; is the machine very busy? try again"
            ) from None
        return codec.loads(line) if line else None

    def ask(self, text: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(codec.dumps({"ask": text}) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self.ended_by_itself() from None

    def ended_by_itself(self) -> TrouperError:
        """What to say of a process that was not to end yet. It has told the reason itself."""
        code = self._process.wait()
        error = TrouperError(f"the agent's process {self.pid} ended by itself; run `trouper doctor`", pid=self.pid)
        error.exit_code = code if code > 0 else INTERNAL
        return error

    def kill(self) -> int:
        """SIGKILL: the process has no chance to do anything about it. Returns what the system says of its end."""
        self._process.kill()
        return self._process.wait()

    def close(self) -> int:
        """Let it end by itself; it closes its journal."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            return self._process.wait(timeout=PATIENCE_S)
        except (subprocess.TimeoutExpired, OSError):
            return self.kill()


class _Demo:
    def __init__(self, stage: Stage, place: Path, paces: list[tuple[float, float]]) -> None:
        """`paces`: seconds for a page of the survey and for a word of the model, of each process in turn."""
        self.stage = stage
        self.place = place
        self.root = place / "state"
        self._paces = iter(paces)
        self.started = time.monotonic()
        #: The one that runs, or ran last.
        self._agent: Agent | None = None

    def play(self) -> None:
        tell = self.stage.line
        try:
            self.stage.scene("An agent in a process of its own")
            agent = self.start()
            tell(f"agent: process {agent.pid}, journal in {self.root}", "dim")
            self.turn(agent, "what is 6 * 7?")
            self.stage.scene("A slow tool: the turn does not wait for it")
            self.turn(agent, f"run survey pages={PAGES}")
            self.stage.scene("The conversation goes on meanwhile")
            self.turn(agent, "what time is it?")
            self.stage.scene("kill -9, in mid-sentence")
            self.kill_in_mid_sentence(agent)
            self.stage.scene("Another process opens the same journal")
            agent = self.start()
            tell(f"agent: process {agent.pid}", "dim")
            self.recovery()
            self.stage.scene("The survey ends; the notification comes by itself")
            self.listen(agent, until=lambda event: isinstance(event, NotificationsAcknowledged))
            code = agent.close()
            self.stage.cast.process = None
            tell(f"agent: process {agent.pid} ended, exit code {code}", "dim")
        finally:
            # Whoever has just been started may be known to nobody else yet.
            if self._agent is not None:
                self._agent.kill()
        self.stage.scene("What the journal says")
        self.evidence()

    # -- scenes

    def start(self) -> Agent:
        with _signals_held_back():
            agent = self._agent = Agent(self.place, *next(self._paces))
        ready = agent.hear()
        if ready is None or "ready" not in ready:
            raise agent.ended_by_itself()
        cast = self.stage.cast
        cast.process, cast.killed = agent.pid, None
        cast.state = self._state_upto(ready["next"])
        self.stage.refresh(at_once=True)
        return agent

    def turn(self, agent: Agent, text: str) -> None:
        self.stage.stream("you", text, "green")
        self.stage.close_line()
        agent.ask(text)
        self.listen(agent, until=lambda event: isinstance(event, TurnEnded))

    def listen(self, agent: Agent, until: Callable[[Any], bool]) -> None:
        """Tell what the agent says until some event has come."""
        while (heard := agent.hear()) is not None:
            if self.tell(heard) and until(codec.event_from_json(heard["event"])):
                return
        raise agent.ended_by_itself()

    def tell(self, heard: dict[str, Any]) -> bool:
        """One thing that the agent said; True for a recorded event."""
        stage, cast = self.stage, self.stage.cast
        if "text" in heard:
            stage.stream("agent", heard["text"])
        elif "thinking" in heard:
            stage.stream("agent thinks", heard["thinking"], "dim")
        elif "progress" in heard:
            cast.progress = tuple(heard["progress"])
            stage.refresh()
        elif "event" in heard:
            event = codec.event_from_json(heard["event"])
            cast.state = evolve(cast.state, event)
            self.tell_event(event)
            stage.refresh(at_once=True)
            return True
        return False

    def tell_event(self, event: Any) -> None:
        stage = self.stage
        match event:
            case ModelReplied(message=message):
                for call in message.calls:
                    shown = ", ".join(f"{name}={value}" for name, value in dict(call.arguments).items())
                    stage.line(f"  calls {call.name}({shown})", "cyan")
            case CallEnded(outcome=Outcome.OK, task=None, content=content, latency_ms=ms):
                stage.line(f"  result {quoted(codec.dumps(content).decode())} in {ms or 0:.1f} ms", "cyan")
            case CallEnded(task=task, latency_ms=ms) if task is not None:
                stage.line(f"  not done after {ms:.0f} ms: it goes on in the background as {task}", "yellow")
            case TurnEnded(turn=turn, stop_reason=reason):
                stage.line(f"  turn {turn} ended: {reason}{self._survey_at()}", "dim")
            case TaskSucceeded(task_id=task, attempt=attempt, result=result):
                stage.line(f"  {task} succeeded in attempt {attempt}: {quoted(codec.dumps(result).decode())}", "yellow")
            case NotificationQueued(notification=note):
                stage.line(f"  notification queued, in the same record: {quoted(note.title)}", "yellow")
            case NotificationsDelivered():
                stage.line("  the session is idle: the notification is delivered as a turn of its own", "yellow")
            case NotificationsAcknowledged():
                stage.line("  the turn that carried it is complete: acknowledged", "yellow")
            case _:
                pass

    def kill_in_mid_sentence(self, agent: Agent) -> None:
        stage = self.stage
        stage.stream("you", STORY, "green")
        stage.close_line()
        agent.ask(STORY)
        # Some of the sentence is in the journal already, more is on the screen, the rest nobody has heard yet.
        noted = _Noted(self.root)
        while not noted.look():
            heard = agent.hear()
            if heard is None:
                raise agent.ended_by_itself()
            if self.tell(heard) and heard["event"]["type"] in ("TurnEnded", "TaskSucceeded"):
                raise WorldError("the agent was done before it could be killed: the machine is very busy; try again")
        code = agent.kill()
        while (heard := agent.hear()) is not None:  # What it had still said.
            self.tell(heard)
        stage.close_line()
        stage.cast.process, stage.cast.killed = None, agent.pid
        stage.refresh(at_once=True)
        stage.line(f"kill -9 {agent.pid}: the process is gone (the system says: signal {-code})", "red", "bold")
        state = self._state()
        turn = state.turn
        if turn is not None:
            stage.line(
                f"in the journal: turn {turn.number} is open; of its sentence, {quoted(turn.draft_text, 200)}", "dim"
            )
        for task in state.tasks.live.values():
            stage.line(f"in the journal: {task.id} is {task.state.value}, attempt {task.attempt}", "dim")
        stage.line(f"in the notebook of the survey: {self._pages()} of {PAGES} pages", "dim")

    def recovery(self) -> None:
        """What the new process wrote into the journal before it served."""
        with open_view(self.root) as view:
            epoch = view.log.recovery.epoch
        for record in open_journal(self.root).records(SESSION):
            if record.epoch != epoch:
                continue
            for event in record.events:
                match event:
                    case RecoveryNoted() | TurnEnded() | TaskReattached():
                        self.stage.line(f"  {describe(event, 200)}", "magenta")
                    case _:
                        pass

    def evidence(self) -> None:
        journal = open_journal(self.root)
        tell = self.stage.line
        shown = (InputReceived, TurnStarted, ModelReplied, CallEnded, TurnEnded, RecoveryNoted)
        shown += (
            TaskSpilled,
            TaskReattached,
            TaskSucceeded,
            NotificationQueued,
            NotificationsDelivered,
            NotificationsAcknowledged,
        )  # type: ignore[assignment]
        counts: Counter[str] = Counter()
        for record in journal.records(SESSION):
            kept = [describe(event, 40) for event in record.events if isinstance(event, shown)]
            counts.update(type(event).__name__ for event in record.events)
            if kept:
                tell(f"{record.seq:>4}  epoch {record.epoch}  {'; '.join(kept)}", "dim")
        self._check(journal, counts)

    def _check(self, journal: Journal, counts: Counter[str]) -> None:
        tell = self.stage.line
        pages = (self.place / "survey.txt").read_text().splitlines()
        by_process = Counter(line.split()[1] for line in pages)
        once = len({line.split()[0] for line in pages}) == len(pages) == PAGES
        shares = " and ".join(f"{plural(count, 'page')} in process {pid}" for pid, count in by_process.items())
        tell("")
        tell(
            f"survey: {shares}; {'every page exactly once' if once else 'NOT every page exactly once'}",
            "green" if once else "red",
        )
        ends, notes = counts["TaskSucceeded"], counts["NotificationQueued"]
        told = counts["NotificationsAcknowledged"]
        right = ends == notes == told == 1
        tell(
            f"the task ended {_times(ends)}; its notification was queued {_times(notes)}, acknowledged {_times(told)}",
            "green" if right else "red",
        )
        verdict = journal.verify()
        if verdict.report.ok:
            tell(
                f"verify: {plural(verdict.report.records, 'record')}, every checksum right, {verdict.rerun} commands decided again as recorded",
                "green",
            )
        for found in (*verdict.report.damage, *verdict.divergences, *verdict.snapshots):
            tell(f"verify: {found}", "red")
        if not (once and right and verdict.ok):
            raise InternalError("the demo did not go as it must; please report this with its output")
        tell(f"all of it in {time.monotonic() - self.started:.1f} s", "dim")

    # -- the journal, as it is now

    def _state(self) -> State:
        with open_view(self.root) as view:
            return view.state(SESSION)

    def _state_upto(self, events: int) -> State:
        state = State()
        for record in open_journal(self.root).records(SESSION):
            for offset, event in enumerate(record.events):
                if record.n + offset < events:
                    state = evolve(state, event)
        return state

    def _survey_at(self) -> str:
        cast = self.stage.cast
        if cast.progress is None or not cast.state.tasks.live:
            return ""
        return f"; survey: page {cast.progress[0]:.0f} of {cast.progress[1]:.0f}"

    def _pages(self) -> int:
        return len((self.place / "survey.txt").read_text().splitlines())


class _Noted:
    """Whether the journal holds a part of an unfinished reply yet. Looks only at what is new, and not all the time."""

    def __init__(self, root: Path) -> None:
        self._reader = open_reader(root)
        self._seq = 0
        self._looked_at = 0.0

    def look(self) -> bool:
        now = time.monotonic()
        if now - self._looked_at < LOOK_S:
            return False
        self._looked_at = now
        noted = False
        for raw in self._reader.records(after=self._seq, stream=SESSION):
            self._seq = raw.seq
            for event in codec.decode_events(raw.payload, raw.seq)[2]:
                if isinstance(event, ModelProgressed):
                    noted = noted or bool(event.text.strip())
                elif isinstance(event, TurnEnded | ModelReplied):
                    noted = False
        return noted


def _times(count: int) -> str:
    return "exactly once" if count == 1 else f"{count} times"
