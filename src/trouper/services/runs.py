"""Background runs, their task records, schedules and notifications, as the tools of one session see them. Refusals are `ToolError`s: for the model to read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import trio

from trouper import checks
from trouper._errors import CommandRejected, TrouperError
from trouper.core import task_text
from trouper.core.ids import CallId, NotificationId, ScheduleId
from trouper.core.messages import Json
from trouper.core.schedule import CancelSchedule, CreateSchedule, ScheduledMessage, ScheduledRun, parse_when
from trouper.core.task_events import AnswerTaskInput, CancelTask, CreateTask, MessageTask
from trouper.core.task_record import Task, TaskState, listing
from trouper.journal import JournalFull
from trouper.services.views import schedule_line, task_detail, task_line
from trouper.tools.errors import ToolError

if TYPE_CHECKING:
    from trouper.session import Session

_SCHEDULE_KEYS = frozenset({"cron", "at", "timezone", "missed"})
_MISSED = ("skip", "once", "all")
SPAWN_TOOL = "spawn_background"


@contextmanager
def told_to_model() -> Iterator[None]:
    """What the session refuses is the model's to read."""
    try:
        yield
    except (CommandRejected, JournalFull) as refusal:
        raise ToolError(refusal.message) from refusal


@contextmanager
def told_to_host(**facts: Any) -> Iterator[None]:
    """The same refusals, to a host that asked: an error of its own tree."""
    try:
        yield
    except ToolError as refusal:
        if isinstance(refusal.__cause__, TrouperError):
            raise refusal.__cause__ from None
        raise CommandRejected(refusal.message, **facts) from None


class Spawning:
    """`Background` of one session (B6, B7)."""

    def __init__(self, session: Session, schedules: Calendar) -> None:
        self._session = session
        self._schedules = schedules

    async def spawn(
        self,
        tool: str,
        arguments: Mapping[str, Json],
        *,
        title: str | None = None,
        schedule: Mapping[str, Json] | None = None,
        signal_on_completion: bool = True,
        call: CallId | None = None,
    ) -> Mapping[str, Json]:
        checks.text(tool, "the tool of a run")
        checks.optional_text(title, "the title of a run")
        if not isinstance(arguments, Mapping):
            raise ToolError(f"arguments={arguments!r} is no object; give the arguments of the tool by name")
        if tool == SPAWN_TOOL:
            raise ToolError(f"{SPAWN_TOOL} cannot run itself in the background; name the tool to run")
        if schedule is not None:
            return await self._schedule(tool, arguments, title, schedule, signal_on_completion)
        session, actor = self._session, self._session._actor
        new = await actor.admit(
            tool, dict(arguments), title=title or "", call=call, signal_on_completion=signal_on_completion
        )
        with told_to_model():
            await session._ask(CreateTask(new, session._now(), actor.owner, limits=actor.task_limits()))
        notice: Mapping[str, Json] = task_text.spawn_notice(new)
        return notice

    async def _schedule(
        self, tool: str, arguments: Mapping[str, Json], title: str | None, schedule: Mapping[str, Json], signal: bool
    ) -> Mapping[str, Json]:
        if strange := sorted(set(schedule) - _SCHEDULE_KEYS):
            raise ToolError(f"schedule has no {strange[0]!r}; it takes cron or at, and timezone and missed")
        made = await self._schedules.create(
            title=title or f"Runs of {tool}",
            cron=schedule.get("cron"),
            at=schedule.get("at"),
            timezone=schedule.get("timezone") or "UTC",
            missed=schedule.get("missed") or "once",
            tool=tool,
            arguments=arguments,
            signal_on_completion=signal,
        )
        return {"status": "scheduled", **made}


class TaskBook:
    """`Tasks` of one session (B11-B13)."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def list(
        self, *, state: str | None = None, kind: str | None = None, limit: int = 50
    ) -> Sequence[Mapping[str, Json]]:
        try:
            wanted = None if state is None else TaskState(state)
        except ValueError:
            known = ", ".join(each.value for each in TaskState)
            raise ToolError(f"there is no state {state!r}; the states are {known}") from None
        page = listing(self._session._state.tasks, state=wanted, kind=kind, limit=limit)
        return [task_line(task) for task in page]

    async def get(self, task_id: str, *, events: int = 20) -> Mapping[str, Json] | None:
        task = self._session._state.tasks.get(task_id)
        return None if task is None else task_detail(task, events)

    async def cancel(self, task_id: str, *, reason: str = "") -> bool:
        """Whether there was anything left to cancel."""
        session = self._session
        found = self._known(task_id)
        with told_to_model():
            await session._ask(CancelTask(found.id, session._now(), session._reason(reason)))
        return not found.ended

    async def message(self, task_id: str, text: str) -> None:
        """To the run, which may look for messages; or the answer that it waits for (B11)."""
        session = self._session
        checks.text(text, "a message", checks.MESSAGE_MAX)
        found = self._known(task_id)
        with told_to_model():
            if found.state is TaskState.AWAITING_INPUT:
                answer = {"status": "answered", "values": [_answer(found, text)]}
                await session._ask(AnswerTaskInput(found.id, answer, session._now()))
            else:
                await session._ask(MessageTask(found.id, "to_task", text, session._now()))

    async def wait(self, task_id: str, *, timeout_s: float) -> Mapping[str, Json]:
        """Until it has ended or asks for input, or the time is up. A run does not wait for itself."""
        self._known(task_id)
        with told_to_model(), trio.move_on_after(timeout_s):
            while (found := self._known(task_id)).state in (TaskState.QUEUED, TaskState.RUNNING):
                if not await self._session._actor.watches.wait_for(found.id):
                    break
        return task_detail(self._known(task_id))

    def _known(self, task_id: str) -> Task:
        found: Task | None = self._session._state.tasks.get(task_id)
        if found is None:
            raise ToolError(f"there is no task {task_id!r} in this session; list_tasks shows their ids")
        return found


def _answer(task: Task, text: str) -> Json:
    """A message as the answer to what a task asks, if it can be that."""
    asked = task.input_request.get("questions", ()) if isinstance(task.input_request, Mapping) else ()
    if len(asked) > 1:
        raise ToolError(f"task {task.id!r} asks {len(asked)} questions at once; only the user can answer those")
    for question in asked:
        if question.get("secret"):
            raise ToolError(f"task {task.id!r} asks for a secret; only the user can give it")
        choices = question.get("choices", ())
        if choices and text not in choices:
            raise ToolError(f"task {task.id!r} wants one of {', '.join(map(repr, choices))}; send one of these")
        if question.get("multiple"):
            return [text]
    return text


class Calendar:
    """`Schedules` of one session (B18, B19)."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def create(
        self,
        *,
        title: str,
        cron: str | None = None,
        at: str | None = None,
        timezone: str = "UTC",
        tool: str | None = None,
        arguments: Mapping[str, Json] | None = None,
        message: str | None = None,
        missed: str = "once",
        signal_on_completion: bool = True,
    ) -> Mapping[str, Json]:
        session, actor = self._session, self._session._actor
        limits = actor.schedule_limits()
        checks.text(title, "the title of a schedule", checks.NAME_MAX)
        if not isinstance(arguments, Mapping | None):
            raise ToolError(f"arguments={arguments!r} is no object; give the arguments of the tool by name")
        if missed not in _MISSED:
            raise ToolError(f"missed={missed!r} is unknown; use 'skip', 'once' or 'all'")
        if (tool is None) == (message is None):
            raise ToolError("a schedule does exactly one thing: give a tool to run, or a message to send")
        with told_to_model():
            when = parse_when(now=session._now(), cron=cron, at=at, zone=timezone, min_interval_s=limits.min_interval_s)
        action: ScheduledRun | ScheduledMessage
        if tool is not None:
            checks.text(tool, "the tool of a schedule")
            if tool == SPAWN_TOOL:
                raise ToolError(f"{SPAWN_TOOL} cannot be scheduled; name the tool to run")
            # Checked now, so that a mistake shows now; and again at each fire, since tools and policies may change.
            new = await actor.admit(tool, dict(arguments or {}))
            action = ScheduledRun(tool, new.spec["arguments"], title, signal_on_completion)
        else:
            told = checks.text(message, "the message of a schedule", checks.MESSAGE_MAX)
            if not told.strip():
                raise ToolError("the message of a schedule is empty; say what the session is to be told")
            action = ScheduledMessage(told)
        id = ScheduleId(actor.ground.environment.ids.new("schedule_"))
        with told_to_model():
            made = await session._ask(
                CreateSchedule(id, title, when, action, session._now(), missed, limits)  # type: ignore[arg-type]
            )
        return schedule_line(made.state.schedules.active[id])

    async def list(self) -> Sequence[Mapping[str, Json]]:
        schedules = self._session._state.schedules
        return [schedule_line(each) for each in (*schedules.active.values(), *schedules.settled.values())]

    async def cancel(self, schedule_id: str) -> bool:
        """Whether it was still active."""
        session = self._session
        active = schedule_id in session._state.schedules.active
        with told_to_model():
            await session._ask(CancelSchedule(ScheduleId(schedule_id), session._now()))
        return active


class Notifying:
    """`Notifications` of one session (B14)."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def notify(
        self, title: str, body: str = "", *, kind: str = "generic", dedupe_key: str | None = None
    ) -> NotificationId:
        if kind != "generic":
            raise ToolError(f"kind={kind!r} is the runtime's own; tools send generic notifications")
        with told_to_model():
            return await self._session.notify(title, body, dedupe_key=dedupe_key)


__all__ = ["SPAWN_TOOL", "Calendar", "Notifying", "Spawning", "TaskBook", "told_to_host", "told_to_model"]
