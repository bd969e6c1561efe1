"""What a chat leaves open when it is left, and what it finds left open when it begins, in lines for people. Pure: looks at a session's state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from trouper.actors.session import RUNTIME_CANCELLED, SHUT_DOWN
from trouper.cli.describe import quoted
from trouper.cli.terminal import clean_line, plural
from trouper.core.calls import CallPhase
from trouper.core.decisions import INTERRUPTED
from trouper.core.messages import ToolAnswer, ToolCall
from trouper.core.recovery import NEVER_STARTED, UNKNOWN
from trouper.core.session import EndedTurn, State
from trouper.core.task_record import Task, TaskState

#: A call in a few words that everybody may see (T11).
Line: TypeAlias = Callable[[ToolCall], str]

#: Of each kind; whoever has more of them open sees how many.
LINES_MAX = 5
_TITLE_MAX = 80
_TEXT_MAX = 200
_CUT_OFF, _NOT_BEGUN = "cancelled; it may have done part of its work", "never started"
#: By what the model is told of a call that its process did not see to the end.
_BECAME: Mapping[str, str] = {
    UNKNOWN: "nobody knows whether it was done",
    NEVER_STARTED: _NOT_BEGUN,
    INTERRUPTED.begun: _CUT_OFF,
    INTERRUPTED.waiting: _NOT_BEGUN,
}


def turn_left(state: State, line: Line) -> list[str]:
    """What becomes of the turn and its calls if the process ends now (L21)."""
    if state.turn is None:
        return []
    calls = [
        f"  ✗ {line(call.request)} ({_CUT_OFF if call.is_begun else _NOT_BEGUN})"
        for call in state.turn.calls
        if call.phase is not CallPhase.ENDED
    ]
    return [f"turn {state.turn.number} is interrupted", *few(calls, "call")]


def turn_found(state: State, line: Line, taken_over: int) -> list[str]:
    """What became of the turn that the last process left open, and of its calls (J12); nothing, once there was another turn. `taken_over`: the one that goes on here."""
    if state.turn is not None and state.turn.number == taken_over:
        told = f"turn {taken_over} goes on: the last process ended in the middle of it"
    elif state.last is not None and (how := _how_left(state.last)):
        kept = f"; what it had said is kept: {quoted(state.last.text, _TEXT_MAX)}" if state.last.text.strip() else ""
        told = f"{how}{kept}"
    else:
        return []
    return [told, *few([f"  ✗ {line(call)} ({became})" for call, became in _cut_off(state)], "call")]


def _how_left(last: EndedTurn) -> str:
    """How its process left a turn; empty if it saw it to its end."""
    if last.fault is not None and last.fault.kind == "process_ended":
        return f"the last process ended in the middle of turn {last.number}"
    if last.stop_reason == "interrupt" and last.detail in (SHUT_DOWN, RUNTIME_CANCELLED):
        return f"turn {last.number} was interrupted by the end of the last process"
    return ""


def _cut_off(state: State) -> list[tuple[ToolCall, str]]:
    """The calls of the last step that its process did not see to the end, and what became of each."""
    requests: Mapping[str, ToolCall] = {}
    answers: list[ToolAnswer] = []
    for message in reversed(state.history.messages):
        if message.calls:
            requests = {call.id: call for call in message.calls}
            break
        if message.role == "user" and message.kind == "normal":
            break  # Whatever stands before it was answered.
        answers = [part for part in message.parts if isinstance(part, ToolAnswer)] or answers
    if state.turn is not None:
        answers += [call.answer for call in state.turn.calls if call.answer is not None]
    told: dict[str, str | None] = {
        each.call_id: _BECAME.get(each.content) for each in answers if isinstance(each.content, str)
    }
    return [(call, became) for id, call in requests.items() if (became := told.get(id))]


def words_left(state: State) -> list[str]:
    """What the user has said, and no turn has taken in: it goes along with the next line."""
    said = [each.message for each in state.queue if each.message.kind == "normal"]
    return few(
        [
            f"  {quoted(each.text, _TEXT_MAX) if each.text.strip() else 'what you attached'} waits for your next line"
            for each in said
        ],
        "message",
    )


def tasks_left(state: State, attempts_max: int) -> list[str]:
    """What the next process does with the tasks that are live: takes them up, or ends them (B10)."""
    tasks = list(state.tasks.live.values())
    ends = {task.id: why for task in tasks if (why := _why_ended(task, attempts_max))}
    taken_up = len(tasks) - len(ends)
    lines = [f"{plural(taken_up, 'background task')} will be taken up at the next start"] if taken_up else []
    ended = [
        f"the next start ends {task.id}, for {ends[task.id]}: {clean_line(task.about.title, _TITLE_MAX)}"
        for task in tasks
        if task.id in ends
    ]
    return lines + few(ended, "task")


def _why_ended(task: Task, attempts_max: int) -> str:
    """Why the next process does not go on with a task; empty if it does."""
    if task.state is TaskState.QUEUED:
        return ""
    if task.cancel_requested_at is not None:
        return "it was cancelled"
    if not task.about.spec.get("reattachable"):
        return "it cannot safely be run a second time"
    return f"it has been tried {task.attempt} times" if task.attempt >= attempts_max else ""


def few(lines: Sequence[str], thing: str) -> list[str]:
    """Not more of them than somebody reads; of the others, how many there are."""
    more = len(lines) - LINES_MAX
    return [*lines[:LINES_MAX], *([f"  and {plural(more, f'more {thing}')}"] if more > 0 else [])]
