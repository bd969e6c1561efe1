"""What a chat shows of its session's events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import trio
from attrs import frozen

from trouper.cli.arguments import to_type
from trouper.cli.chat_answers import asked, how_to_answer
from trouper.cli.chat_left import words_left
from trouper.cli.chat_numbers import Numbers
from trouper.cli.chat_screen import Screen
from trouper.cli.describe import quoted, went_wrong
from trouper.cli.printed import Printed
from trouper.cli.terminal import clean_line, in_full, plural
from trouper.core.calls import CallPhase
from trouper.core.events import (
    ApprovalRequested,
    BudgetWarned,
    CallEnded,
    CallStarted,
    CompactionEnded,
    InputReceived,
    ModelFailed,
    ModelReplied,
    ModelRetried,
    TurnEnded,
)
from trouper.core.live import CaughtUp, LiveEvent, QuestionAsked, TextDelta, ThinkingDelta, ToolProgress, ToolStatus
from trouper.core.messages import Outcome, ToolCall
from trouper.core.notification import NotificationsDelivered
from trouper.core.session import Phase, State, evolve
from trouper.core.task_events import TaskCancelled, TaskEnded, TaskFailed, TaskInterrupted, TaskReattached
from trouper.core.task_record import TaskState
from trouper.session import Session, Watching
from trouper.tools.contract import Tool
from trouper.tools.narration import narration

_QUIET = frozenset({"end_turn", "stop_sequence"})
#: Of the arguments of a call that waits for an approval: more would push their beginning out of sight.
_APPROVAL_CHARS_MAX = 4_000
#: Of why a call did not work. All that we say of it ourselves is shorter.
_WHY_MAX = 200
#: Of what somebody else has sent.
_INPUT_CHARS_MAX = 1_000


@frozen
class Seen:
    """What had been shown when the user pressed Enter: the line is about nothing else, however late its turn comes."""

    state: State
    #: What waited for an answer.
    approvals: tuple[str, ...]
    questions: tuple[str, ...]


class Watch:
    """Follows the session, tells the screen, and lets others wait for something to be so."""

    def __init__(
        self, session: Session, screen: Screen, tools: Mapping[str, Tool], printed: Printed, *, thinking: bool
    ) -> None:
        self._session = session
        #: What was shown so far, folded: the session itself may be ahead.
        self.state: State = session.state
        self._screen = screen
        self._tools = tools
        self._printed = printed
        self._thinking = thinking
        self._changed = trio.Condition()
        #: How many events were shown, and where the others are.
        self.shown = 0
        self._events: Watching | None = None
        #: The calls of the turn, for lines about their ends: name and arguments.
        self._calls: dict[str, tuple[str, Any]] = {}
        self._progress: dict[str, str] = {}
        #: Some of the reply under way was shown already.
        self._heard = False
        #: What the user of this chat has sent, and is yet to come back as an event.
        self._sent: list[str] = []
        #: What waits for the user.
        self.approvals = Numbers()
        self.questions = Numbers()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with self._session._watching() as self._events:
            self.state = self._session.state
            self._know_calls()
            self._ask_all()  # A run that was taken up may have asked before anybody looked.
            self._screen.status(self._doing())
            task_status.started()
            async for event in self._events:
                if isinstance(event, CaughtUp):
                    self.state = self._session.state
                elif not isinstance(event, LiveEvent):
                    self.state = evolve(self.state, event)
                self._tell(event)
                self.shown += 1
                self._printed.show_due()
                self._screen.status(self._doing())
                async with self._changed:
                    self._changed.notify_all()

    @property
    def happened(self) -> int:
        """How many events there are by now."""
        return self.shown + (self._events.waiting if self._events is not None else 0)

    @contextmanager
    def sending(self, text: str) -> Iterator[None]:
        """Around what the user of this chat sends: the screen has it already."""
        recorded = self._session._actor.redact_text(text)
        self._sent.append(recorded)
        try:
            yield
        except BaseException:
            if recorded in self._sent:
                self._sent.remove(recorded)
            raise

    def seen(self) -> Seen:
        questions = [each.id for each in self._session.questions]
        return Seen(
            self.state,
            tuple(self.approvals.shown(self._session.approvals)),
            tuple(self.questions.shown(questions)),
        )

    async def wait(self, condition: Callable[[], bool]) -> None:
        """Until `condition` holds; looked at after each event, when everything up to it was shown."""
        async with self._changed:
            while not condition():
                await self._changed.wait()

    def _tell(self, event: Any) -> None:
        screen = self._screen
        match event:
            case TextDelta(text=text):
                self._heard = True
                screen.stream(text)
            case ThinkingDelta(text=text):
                if self._thinking:
                    screen.stream(text, "dim")
            case ToolProgress(call=call, current=current, total=total, unit=unit):
                if current is not None:
                    self._progress[call] = (
                        f"{current:g}" + (f"/{total:g}" if total else "") + (f" {unit}" if unit else "")
                    )
            case ToolStatus(call=call, text=text):
                self._progress[call] = clean_line(text, 60)
            case ModelReplied(message=message):
                if not self._heard and message.text.strip():
                    screen.stream(message.text)
                self._heard = False
                screen.end_stream()
                self._calls.update({asked.id: (asked.name, asked.arguments) for asked in message.calls})
            case InputReceived(text=text, kind="normal"):
                if text in self._sent:
                    self._sent.remove(text)
                else:
                    screen.say(f"(from another program) {quoted(text, _INPUT_CHARS_MAX)}", "bold")
            case CallStarted(call=call):
                screen.say(f"  ● {self._line(call, 'started')}", "cyan")
            case CallEnded():
                self._tell_end(event)
            case ApprovalRequested(call=call):
                self._ask_approvals([call])
            case QuestionAsked(question=question):
                self._ask_questions([question])
            case CaughtUp():
                screen.say("  (some live text was missed; the journal has it)", "dim")
                self._sent.clear()
                self._know_calls()
                self._ask_all()
            case TurnEnded():
                self._tell_turn(event)
            case _:
                self._tell_rest(event)

    def _know_calls(self) -> None:
        """Of a reply that came before anybody looked."""
        if self.state.turn is not None:
            self._calls.update({call.id: (call.request.name, call.request.arguments) for call in self.state.turn.calls})

    def _ask_all(self) -> None:
        self._ask_approvals([call for call, _ in self.state.approvals])
        self._ask_questions([each.id for each in self._session.questions])

    def _ask_approvals(self, come_up: list[str]) -> None:
        """Who approves a call answers for all of its arguments; the line for those who watch has one of them, and not the whole of it."""
        requests: dict[str, ToolCall] = {}
        if self.state.turn is not None:
            requests = {call.id: call.request for call in self.state.turn.calls}
        # By now, and not as far as was shown: of several calls of one reply each is told with its number.
        waiting = [call for call in self._session.approvals if call in requests]
        for id, number in self.approvals.to_show(come_up, waiting):
            request = requests[id]
            shown = in_full(request.arguments)
            missing = len(shown) - _APPROVAL_CHARS_MAX
            if missing > 0:
                half = _APPROVAL_CHARS_MAX // 2
                note = f"[... {missing} characters are not shown; {to_type('approvals')} has all of them ...]"
                shown = f"{shown[:half]}\n{note}\n{shown[-half:]}\n{note}\n "
            which = id if number is None else number
            self._screen.say(f"  ? {request.name} {shown}: /approve {which} [always], or /deny {which}", "yellow")

    def _ask_questions(self, come_up: list[str]) -> None:
        waiting = {each.id: each.questions for each in self._session.questions}
        for id, number in self.questions.to_show(come_up, waiting):
            for each in waiting[id]:
                self._screen.say(f"  ? {asked(each)}", "yellow")
            self._screen.say(f"  {how_to_answer(waiting[id], number)}", "yellow")

    def _tell_end(self, event: CallEnded) -> None:
        screen, call = self._screen, event.call
        if event.task is not None:
            screen.say(f"  → {self._name(call)} goes on in the background as {event.task}", "yellow")
            return
        self._progress.pop(call, None)
        if event.outcome is Outcome.OK:
            took = f" ({event.latency_ms:.0f} ms)" if event.latency_ms is not None and event.latency_ms >= 1 else ""
            screen.say(f"  ✓ {self._line(call, 'completed')}{took}", "green")
        else:
            why = f": {clean_line(event.content, _WHY_MAX)}" if isinstance(event.content, str) else ""
            screen.say(f"  ✗ {self._name(call)} {event.outcome.value}{why}", "red")
            self._tell_inside(event.internal)

    def _tell_inside(self, internal: str | None) -> None:
        """The model is told nothing of it; whoever has written the tool wants to know."""
        if mistake := went_wrong(internal):
            where = f"{to_type('journal show')} has the record, and with --record SEQ the traceback"
            self._screen.say(f"    {mistake} ({where})", "red")

    def _tell_turn(self, event: TurnEnded) -> None:
        self._screen.end_stream()
        self._heard = False
        self._calls = {id: about for id, about in self._calls.items() if id in self._progress}
        if event.fault is not None:
            self._screen.say(f"! the turn failed ({event.fault.kind}): {clean_line(event.fault.message, 300)}", "red")
        elif event.stop_reason == "interrupt":
            self._screen.say("(interrupted)", "yellow")
            for line in words_left(self.state):
                self._screen.say(line, "yellow")
        elif event.stop_reason not in _QUIET:
            self._screen.say(f"(ended: {clean_line(event.stop_reason)})", "yellow")

    def _tell_rest(self, event: Any) -> None:
        say = self._screen.say
        match event:
            case ModelRetried(fault=fault, delay_s=delay_s, attempt=attempt):
                say(f"  {fault.kind}: attempt {attempt} failed, next one in {delay_s:.1f} s", "yellow")
            case ModelFailed():
                self._screen.end_stream()
            case CompactionEnded(how=how, tokens_before=before, tokens_after=after, fault=fault):
                why = f" ({clean_line(fault.message, 120)})" if fault is not None else ""
                say(f"  context: {how}, {before} -> {after} tokens{why}", "dim")
            case BudgetWarned(what=what, spent=spent, cap=cap):
                say(f"  budget: {spent:g} of {cap:g} {what} are spent", "yellow")
            case TaskReattached(task_id=task, attempt=attempt):
                say(f"  {task} goes on, attempt {attempt}", "yellow")
            case TaskEnded(task_id=task):
                found = self.state.tasks.get(task)
                title = clean_line(found.about.title, 80) if found is not None else ""
                if found is not None and found.about.origin_call is not None:
                    self._progress.pop(found.about.origin_call, None)
                bad = isinstance(event, TaskFailed | TaskCancelled | TaskInterrupted)
                say(
                    f"  ■ {type(event).__name__.removeprefix('Task').lower()}: {title} ({task})",
                    "red" if bad else "green",
                )
                self._tell_inside(event.internal)
            case NotificationsDelivered(ids=ids):
                say(f"  ✉ {plural(len(ids), 'notification')}", "magenta")
            case _:
                pass

    def _doing(self) -> str:
        state = self.state
        doing: list[str] = []
        if state.phase is Phase.THINKING:
            doing.append("thinking")
        elif state.phase in (Phase.COMPACTING, Phase.TIDYING):
            doing.append("compacting")
        if state.turn is not None:
            for call in state.turn.calls:
                if call.phase is CallPhase.RUNNING:
                    doing.append(self._with_progress(call.request.name, call.id))
                elif call.phase is CallPhase.ASKING:
                    doing.append(f"{call.request.name} waits for you")
        for task in state.tasks.live.values():
            name = task.about.tool or task.about.title
            if task.state is TaskState.AWAITING_INPUT:
                doing.append(f"{name} waits for you")
            else:
                doing.append(self._with_progress(name, task.about.origin_call or task.id))
        if state.queue and not state.held:  # What waits for the user is no work.
            doing.append(f"{plural(len(state.queue), 'message')} waiting")
        return " · ".join(doing)

    def _with_progress(self, name: str, call: str) -> str:
        far = self._progress.get(call)
        return f"{name} {far}" if far else name

    def _name(self, call: str) -> str:
        name = self._calls[call][0] if call in self._calls else call
        tool = self._tools.get(name)
        return tool.display_name if tool is not None else clean_line(name, 60)

    def _line(self, call: str, phase: Any) -> str:
        name, arguments = self._calls.get(call, (call, None))
        return self._narrated(name, arguments, phase)

    def called(self, call: ToolCall) -> str:
        """A call in a few words, which has come to its end somewhere else."""
        return self._narrated(call.name, call.arguments, "started")

    def _narrated(self, name: str, arguments: Any, phase: Any) -> str:
        tool = self._tools.get(name)
        if tool is None:
            return clean_line(name, 60)
        shown = arguments if isinstance(arguments, Mapping) else None
        return narration(tool, phase, shown, self._session._actor.redact_text)
