"""What after-hooks may look at (T5), found in the records of one session; denied calls too, and the ends of background runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import trio

from trouper import codec
from trouper.core.calls import ENDED
from trouper.core.events import CallEnded, ModelReplied, SessionClosed, TurnEnded
from trouper.core.ids import CallId
from trouper.core.messages import Outcome, ToolCall
from trouper.core.session import State
from trouper.core.task_events import TaskCancelled, TaskEnded, TaskFailed, TaskInterrupted, TaskSucceeded
from trouper.core.task_record import Task
from trouper.core.task_text import result_told
from trouper.foreign import Redact
from trouper.tools.hooks import AfterTool, AfterTurn, Hooks, SessionEnded, SessionStarted

Seen: TypeAlias = SessionStarted | AfterTool | AfterTurn | SessionEnded

#: The end of a run, in the words of a call.
_OUTCOMES: Mapping[type[TaskEnded], Outcome] = {
    TaskSucceeded: Outcome.OK,
    TaskFailed: Outcome.ERROR,
    TaskCancelled: Outcome.CANCELLED,
    TaskInterrupted: Outcome.UNKNOWN,
}


class HookEvents:
    __slots__ = ("_asked",)

    def __init__(self, state: State) -> None:
        calls = state.turn.calls if state.turn is not None else ()
        #: Calls whose outcome hooks still wait for; also those that another process has left open.
        self._asked: dict[CallId, ToolCall] = {call.id: call.request for call in calls if call.phase is not ENDED}

    def of(self, record: codec.Record, after: State) -> Iterator[AfterTurn | AfterTool | SessionEnded]:
        session = record.session
        for event in record.events:
            match event:
                case ModelReplied(message=message):
                    self._asked.update((call.id, call) for call in message.calls)
                case CallEnded(call=call_id, outcome=outcome, content=content) if call_id in self._asked:
                    asked = self._asked.pop(call_id)
                    yield AfterTool(session, asked.name, asked.arguments, outcome.value, content, call_id)
                case TaskEnded(task_id=task_id) if (task := after.tasks.get(task_id)) is not None and task.about.tool:
                    yield _run_ended(session, task, event)
                case TurnEnded(stop_reason=stop_reason):
                    yield AfterTurn(session, stop_reason, after.last.text if after.last is not None else "")
                case SessionClosed():
                    yield SessionEnded(session)
                case _:
                    pass


def _run_ended(session: str, task: Task, end: TaskEnded) -> AfterTool:
    about = task.about
    # The call that was let go; a run that was spawned or scheduled has none.
    call_id = (about.origin_call or "") if about.kind == "tool" else ""
    match end:
        case TaskSucceeded():
            content = result_told(task)
        case _:
            content = end.error.message if end.error is not None else None
    outcome = _OUTCOMES[type(end)].value
    return AfterTool(session, about.tool, about.spec.get("arguments") or {}, outcome, content, call_id, about.id)


class Telling:
    """Hooks that look on. They are told in order, each thing by a task of its own, so that a slow hook holds up none: trio begins tasks in any order, and
    whichever begins first tells the oldest."""

    __slots__ = ("_untold",)

    def __init__(self) -> None:
        self._untold: list[tuple[Hooks, Seen]] = []

    def tell(self, hooks: Sequence[Hooks], event: Seen, nursery: trio.Nursery, redact: Redact) -> None:
        for each in hooks:
            nursery.start_soon(self._tell_oldest, redact)
            self._untold.append((each, event))

    async def wait_begun(self) -> None:
        """Until hooks have begun with all that was to be told by now. They do so at once, whatever they wait for then."""
        while self._untold:
            await trio.lowlevel.cancel_shielded_checkpoint()

    async def _tell_oldest(self, redact: Redact) -> None:
        hooks, event = self._untold.pop(0)
        await hooks.tell(event, redact)
