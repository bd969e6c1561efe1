"""What a `Session` offers beside its turns: background runs, tasks, notifications, schedules, questions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, get_args

import trio

from trouper import checks, codec
from trouper._errors import CommandRejected, UsageError
from trouper.core.ids import NotificationId, TaskId
from trouper.core.messages import Json
from trouper.core.notification import (
    BODY_MAX_CHARS,
    AcknowledgeNotifications,
    ExpireNotifications,
    Notification,
    NotificationState,
    QueueNotification,
    RequeueNotifications,
)
from trouper.core.schedule import Schedule
from trouper.core.schedule_record import Missed
from trouper.core.task_events import AnswerTaskInput, CreateTask, LinkTask, MessageTask, SweepTasks
from trouper.core.task_record import Link, Page, Task, TaskState, Wake, listing
from trouper.core.values import changed
from trouper.services.inbox import Inbox
from trouper.services.questions import PendingQuestion
from trouper.services.runs import told_to_host
from trouper.tools.contract import Tool

if TYPE_CHECKING:
    from trouper.actors.session import SessionActor, Step
    from trouper.services.desk import Desk


class BackgroundSide:
    """The part of `Session` that has nothing to do with the turn under way."""

    _actor: SessionActor

    if TYPE_CHECKING:

        @property
        def _state(self) -> Any: ...
        @property
        def _desk(self) -> Desk: ...
        async def _ask(self, command: Any, *, shielded: bool = False) -> Step: ...
        def _now(self) -> float: ...

    def _reason(self, reason: object) -> str:
        """Why somebody does something. What is done is done, however long the reason: so that is cut, and not refused."""
        return checks.brief(checks.text(reason, "the reason"), self._actor.redact_text)

    # -- runs and tasks

    async def spawn(
        self,
        tool: str | Tool,
        arguments: Mapping[str, Json] | None = None,
        *,
        title: str = "",
        signal_on_completion: bool = True,
        wake: Wake | None = None,
    ) -> Task:
        """Start a background run of a tool of the session, or of its name; its record, at once. `CommandRejected` if the run may not start (B6).

        `wake`: when the model hears of it: "on_terminal", at its end; "on_activity", of its messages too; "silent", only along with something else, which is
        what `signal_on_completion=False` says.
        """
        actor = self._actor
        name = tool.name if isinstance(tool, Tool) else tool
        if not isinstance(name, str):
            raise UsageError(f"{tool!r} is no tool; give a tool of this session, or its name")
        checks.text(title, "the title of a run")
        if not isinstance(arguments, Mapping | None):
            raise UsageError(f"arguments={arguments!r} is no mapping; write arguments={{...}}")
        with told_to_host(tool=name):
            new = await actor.admit(
                name, dict(arguments or {}), title=title, signal_on_completion=signal_on_completion, by="host"
            )
        if wake is not None:
            if wake not in get_args(Wake):
                raise UsageError(f"wake={wake!r} is unknown; use one of {', '.join(get_args(Wake))}", wake=wake)
            new = changed(new, wake=wake)
        made = await self._ask(CreateTask(new, self._now(), actor.owner, limits=actor.task_limits()))
        return made.state.tasks.live[new.id]

    def tasks(
        self,
        *,
        state: TaskState | str | None = None,
        kind: str | None = None,
        limit: int = 50,
        before: tuple[float, TaskId] | None = None,
    ) -> Page:
        """The newest first. `before`: that of the last page, for the next one."""
        checks.page_after(before)
        return listing(
            self._state.tasks,
            state=checks.state_named(TaskState, state, "task"),
            kind=kind,
            limit=checks.count(limit, "limit"),
            before=before,
        )

    def task(self, id: str) -> Task | None:
        """The record of a task, running or ended; `None` if this session has no such task, or has archived it."""
        found: Task | None = self._state.tasks.get(checks.text(id, "the id of a task"))
        return found

    async def wait_task(self, id: str) -> Task:
        """Until the task has ended. `CommandRejected` for a run that would wait for itself, or for one that waits for it."""
        await trio.lowlevel.checkpoint()
        while True:
            found = self.task(id)
            if found is None:
                raise CommandRejected(f"there is no task {id!r} here; see session.tasks()", task_id=id)
            if found.ended:
                return found
            if not await self._actor.watches.wait_for(found.id):
                raise CommandRejected(f"the session has stopped while task {id!r} ran; open it again", task_id=id)

    async def message_task(self, id: str, text: str) -> None:
        """A message to a run, which may look for them."""
        checks.text(id, "the id of a task")
        checks.text(text, "a message", checks.MESSAGE_MAX)
        await self._ask(MessageTask(TaskId(id), "to_task", text, self._now()))

    async def link_task(self, id: str, rel: str, target: str) -> None:
        """What a task has to do with, on its record: `link_task(id, "order", "17")`. Once is enough."""
        link = Link(checks.word(rel, "the kind of a link"), checks.word(target, "the target of a link"))
        await self._ask(LinkTask(TaskId(checks.text(id, "the id of a task")), link, self._now()))

    async def answer_task(self, id: str, answer: Json) -> None:
        """The answer to what a task waits for; a task that asks for several things at once gets them by `answer_question`."""
        checks.text(id, "the id of a task")
        asked = next((question for question in self.questions if question.task_id == id), None)
        if asked is not None:
            # It knows the choices, and where a secret has to go.
            await self.answer_question(asked.id, answer)
        else:
            held = codec.dumps(answer)
            if len(held) > checks.MESSAGE_MAX:
                raise UsageError(
                    f"the answer has {len(held)} bytes, and {checks.MESSAGE_MAX} is the limit; give it as a file",
                    task_id=id,
                )
            given = {"status": "answered", "values": [codec.loads(held)]}  # As the journal will hold it.
            await self._ask(AnswerTaskInput(TaskId(id), given, self._now()))

    async def sweep_tasks(self) -> int:
        """Archive ended tasks that are older than `Limits.task_retention_s`; how many (B13)."""
        before = self._state.tasks.archived
        swept = await self._ask(SweepTasks(self._now(), self._actor.task_limits()))
        archived: int = swept.state.tasks.archived - before
        return archived

    # -- notifications

    def notifications(self) -> Inbox:
        """`async for notification in session.notifications()`: take them yourself; the model is told nothing meanwhile (B16)."""
        return Inbox(self)  # type: ignore[arg-type]

    def pending_notifications(self, state: NotificationState | None = None) -> tuple[Notification, ...]:
        """What is still owed to somebody, oldest first."""
        pending = self._state.notifications.pending.values()
        return tuple(each for each in pending if state is None or each.state is state)

    async def notify(
        self, title: str, body: str = "", *, dedupe_key: str | None = None, wake: bool = True
    ) -> NotificationId:
        """Queue a notification for the model; with `wake`, an idle session gets a turn for it. The id is that of the first one with the same `dedupe_key`."""
        id = NotificationId(self._actor.ground.environment.ids.new("note_"))
        redact = self._actor.redact_text
        title = checks.brief(checks.text(title, "the title of a notification"), redact)
        body = checks.brief(checks.text(body, "the body of a notification"), redact, BODY_MAX_CHARS)
        if dedupe_key is not None:
            checks.text(dedupe_key, "the key of a notification", checks.NAME_MAX)
            dedupe_key = self._actor.ground.redact.key(dedupe_key)
        now, limits = self._now(), self._actor.notification_limits()
        if self._state.notifications.is_full(limits) and self._state.notifications.lapsed(now, limits):
            # Those that wake nobody lie there until something else is told; but what has lapsed takes nobody's place.
            await self._ask(ExpireNotifications(now, limits))
        queued = await self._ask(
            QueueNotification(id, "generic", title, body, self._now(), dedupe_key=dedupe_key, wake=bool(wake))
        )
        return queued.state.notifications.keyed(dedupe_key) or id

    async def acknowledge(self, *ids: str) -> None:
        """These notifications were read: they are delivered no more (B14)."""
        await self._ask(AcknowledgeNotifications(_notification_ids(ids), self._now()))

    async def requeue(self, *ids: str, reason: str = "") -> None:
        """These notifications were taken and not handled: they wait to be delivered again (B14)."""
        limits = self._actor.notification_limits()
        await self._ask(RequeueNotifications(_notification_ids(ids), self._reason(reason), self._now(), limits))

    @contextmanager
    def hold_notifications(self) -> Iterator[None]:
        """Deliver nothing inside this block: somebody is typing, or speaking (B15)."""
        self._actor.notification_holds.hold()
        try:
            yield
        finally:
            self._actor.notification_holds.release()

    # -- schedules

    def schedules(self) -> tuple[Schedule, ...]:
        """Active ones first."""
        found = self._state.schedules
        return (*found.active.values(), *found.settled.values())

    async def create_schedule(
        self,
        *,
        title: str,
        cron: str | None = None,
        at: str | None = None,
        timezone: str = "UTC",
        tool: str | None = None,
        arguments: Mapping[str, Json] | None = None,
        message: str | None = None,
        missed: Missed = "once",
        signal_on_completion: bool = True,
    ) -> Mapping[str, Json]:
        """`cron` (in `timezone`) or `at`; `tool` (with `arguments`) or `message`. As the tool of this name takes them.

        The schedule as the journal has it now; `CommandRejected` if it makes no sense.
        """
        with told_to_host():
            return await self._desk.schedules.create(
                title=title,
                cron=cron,
                at=at,
                timezone=timezone,
                tool=tool,
                arguments=arguments,
                message=message,
                missed=missed,
                signal_on_completion=signal_on_completion,
            )

    async def cancel_schedule(self, id: str) -> bool:
        """It will not fire again. Whether there was anything to cancel."""
        checks.text(id, "the id of a schedule")
        with told_to_host(schedule_id=id):
            return await self._desk.schedules.cancel(id)

    # -- questions

    @property
    def questions(self) -> tuple[PendingQuestion, ...]:
        """What tools want to know of the user."""
        return self._desk.asker.pending

    async def answer_question(self, id: str, *values: Json) -> None:
        """One value for each of its questions, in order. The value of a secret goes to the secret store, and nowhere else."""
        await self._desk.asker.answer(checks.text(id, "the id of a question"), values)

    async def decline_question(self, id: str) -> None:
        """The user does not want to answer; the tool is told so."""
        await self._desk.asker.decline(checks.text(id, "the id of a question"))


def _notification_ids(ids: tuple[str, ...]) -> tuple[NotificationId, ...]:
    return tuple(NotificationId(checks.text(id, "the id of a notification")) for id in ids)


__all__ = ["BackgroundSide"]
