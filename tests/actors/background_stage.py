"""What the tests of background runs share: tools that take their time, and ways to wait for what a session records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import trio

from trouper import Session, ToolContext, tool
from trouper.core.task_record import Task
from trouper.models.scripted import Scripted, call, reply
from trouper.tools.contract import Tool


class Probe:
    """What the outside saw of the tools: how often each ran, and whether it was cancelled."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.cancelled: list[str] = []
        self.attempts: list[int] = []
        self.contexts: list[ToolContext] = []
        self.started_event = trio.Event()

    def slow(self, **options: Any) -> Tool:
        """A tool that sleeps for so long, and says what it does."""

        @tool(name="slow", background=True, **options)
        async def slow(context: ToolContext, seconds: float = 5.0, say: str = "") -> dict[str, Any]:
            """Takes its time."""
            self.started.append(context.call_id)
            self.attempts.append(context.attempt)
            self.contexts.append(context)
            self.started_event.set()
            try:
                context.status("digging")
                if say:
                    context.output("stdout", say)
                await trio.sleep(seconds)
                context.report_progress(1, 1, "hole", "dug")
            except trio.Cancelled:
                self.cancelled.append(context.call_id)
                raise
            return {"done": True, "seconds": seconds}

        return slow


def events_of(journal: list[Any], *kinds: str) -> list[Any]:
    """All events of these kinds, in the order of the journal."""
    return [event for record in journal for event in record.events if type(event).__name__ in kinds]


async def until(session: Session, check: Callable[[Any], bool]) -> None:
    """Until the session's state is so."""
    if check(session._state):
        return
    async for _ in session.events():
        if check(session._state):
            return


async def until_quiet(session: Session) -> None:
    """No turn, no run, nothing left to tell."""
    await until(session, lambda state: state.turn is None and not state.tasks.live and not state.notifications.pending)


def only_task(session: Session) -> Task:
    (task,) = session.tasks()
    return task


def spill_script(*more: Any, **arguments: Any) -> Scripted:
    """One call of `slow`, a word about it, and then what the model says to notifications."""
    return Scripted(
        [reply(call("slow", **arguments)), reply("It goes on."), *more, reply("Noted.")], exhausted="repeat"
    )


def with_files(open_checked: Any, directory: Path) -> dict[str, Any]:
    """Settings of a runtime whose sessions have files, although its journal is in memory."""
    return {"environment": attrs.evolve(open_checked.environment(), directory=directory)}
