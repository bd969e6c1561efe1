"""Across sessions: what a `Runtime` can say of tasks, notifications and schedules, whether their sessions are open or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import orjson

from trouper import checks
from trouper._errors import CommandRejected
from trouper.core import task_text
from trouper.core.ids import SessionId, TaskId
from trouper.core.messages import Json
from trouper.core.notification import Notification, NotificationState
from trouper.core.schedule import Schedule, ScheduleState
from trouper.core.schedule_record import Missed
from trouper.core.session import Phase, State
from trouper.core.task_record import Entry, Page, Task, TaskState, listing
from trouper.core.values import frozen
from trouper.threads import in_thread
from trouper.tools.structure import fresh

if TYPE_CHECKING:
    from trouper.host import Runtime
    from trouper.session import Session


@frozen
class TaskDetail:
    """A task, what came of it, and the last of what happened to it (B12)."""

    task: Task
    #: From `result.json` where it is longer than the record keeps.
    result: Json
    entries: tuple[Entry, ...]


_SETTLED = (NotificationState.ACKNOWLEDGED, NotificationState.EXPIRED)


@frozen
class SessionNotification:
    session: str
    notification: Notification


@frozen
class SessionSchedule:
    session: str
    schedule: Schedule


class ScheduleBook:
    """`runtime.schedules`: those of all sessions. Iterate it, or ask."""

    def __init__(self, runtime: Overview) -> None:
        self._runtime = runtime

    def list(
        self, *, session: str | None = None, state: ScheduleState | str | None = None
    ) -> tuple[SessionSchedule, ...]:
        checks.optional_text(session, "the id of a session")
        wanted = checks.state_named(ScheduleState, state, "schedule")
        return tuple(
            SessionSchedule(name, each)
            for name, found in self._runtime._states(session)
            for each in (*found.schedules.active.values(), *found.schedules.settled.values())
            if wanted is None or each.state is wanted
        )

    def get(self, id: str) -> SessionSchedule | None:
        return next((each for each in self.list() if each.schedule.id == id), None)

    async def create(
        self,
        session: str,
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
        """As `Session.create_schedule`. A session in `Runtime.not_taken_up` has to be opened first."""
        opened = await self._opened(session)
        return await opened.create_schedule(
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

    async def cancel(self, id: str) -> bool:
        found = self.get(id)
        if found is None:
            raise CommandRejected(f"there is no schedule {id!r}; see runtime.schedules.list()", schedule_id=id)
        return await (await self._opened(found.session)).cancel_schedule(id)

    async def _opened(self, session: str) -> Session:
        if needs := self._runtime.not_taken_up.get(checks.text(session, "the id of a session")):
            # To open it without would end what is to go on with that.
            raise CommandRejected(
                f"session {session!r} has work under way that needs {needs}; open it with that first, by `runtime.session({session!r}, ...)`, "
                "or without, which ends what cannot go on",
                session=session,
            )
        return await self._runtime._session(session)

    def __iter__(self) -> Iterator[SessionSchedule]:
        return iter(self.list())


class Overview:
    """The part of `Runtime` that looks over all sessions."""

    if TYPE_CHECKING:

        def _states(self, session: str | None = None) -> Iterator[tuple[str, State]]: ...
        async def _session(self, name: str) -> Session: ...
        @property
        def not_taken_up(self) -> Mapping[str, str]: ...

    def tasks(
        self,
        *,
        state: TaskState | str | None = None,
        session: str | None = None,
        kind: str | None = None,
        limit: int = 50,
        before: tuple[float, TaskId] | None = None,
    ) -> Page:
        """The newest first. `before`: that of the last page, for the next one (B13)."""
        checks.optional_text(session, "the id of a session")
        checks.page_after(before)
        return listing(
            (task for _, found in self._states(session) for task in found.tasks),
            state=checks.state_named(TaskState, state, "task"),
            kind=kind,
            session=None if session is None else SessionId(session),
            limit=checks.count(limit, "limit"),
            before=before,
        )

    def task(self, id: str) -> Task | None:
        """The record of a task of any session; `None` if there is none, or it was archived."""
        checks.text(id, "the id of a task")
        return next((task for _, found in self._states() if (task := found.tasks.get(id)) is not None), None)

    async def task_detail(self: Runtime, id: str, *, entries: int = 20) -> TaskDetail | None:  # type: ignore[misc]
        """The task with its whole result, from its file if need be."""
        checks.count(entries, "entries")
        task = self.task(id)
        if task is None:
            return None
        result = fresh(task.result)
        files = self.files_of(task.about.session)
        if result is None and task.result_path is not None and files is not None:
            try:
                document = orjson.loads(await in_thread(lambda: files.read(task_text.result_path(task.about))))
                result = document.get("result")
            except Exception:  # Moved away or damaged by somebody: the record stands without it.
                result = None
        return TaskDetail(task, result, task.entries[-entries:] if entries else ())

    def notifications(
        self, *, state: NotificationState | str | None = None, session: str | None = None, limit: int = 50
    ) -> tuple[SessionNotification, ...]:
        """Pending ones and the last of those that are settled, the oldest first; past `limit` the oldest settled ones are left out."""
        checks.optional_text(session, "the id of a session")
        wanted, limit = checks.state_named(NotificationState, state, "notification"), checks.count(limit, "limit")
        found = [
            SessionNotification(name, each)
            for name, known in self._states(session)
            for each in (*known.notifications.settled.values(), *known.notifications.pending.values())
            if wanted is None or each.state is wanted
        ]
        found.sort(key=lambda each: (each.notification.created_at, each.notification.id))
        settled = [each for each in found if each.notification.state in _SETTLED]
        dropped = {id(each) for each in settled[: max(0, len(found) - limit)]}
        return tuple([each for each in found if id(each) not in dropped][:limit])

    @property
    def schedules(self) -> ScheduleBook:
        """The schedules of all sessions."""
        return ScheduleBook(self)

    async def sweep_tasks(self) -> int:
        """Archive what ended longer ago than `Limits.task_retention_s`, in all sessions but the closed ones, whose records are final, and those in `not_taken_up`; how many (B13)."""
        swept = 0
        for name, found in list(self._states()):
            # To open a session that waits for its tools would end what is to go on with them.
            if found.tasks.ended and found.phase is not Phase.CLOSED and name not in self.not_taken_up:
                swept += await (await self._session(name)).sweep_tasks()
        return swept
