"""What a host gets wrong about tasks, notifications, schedules, memory and triggers is told to it, with the remedy, and costs no session anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from background_stage import Probe

from trouper import CommandRejected, Runtime, Session, ToolContext, ToolError, UsageError, tool
from trouper.actors.triggers import Every, OnChange
from trouper.core.cron import Cron, OneShot
from trouper.core.task_record import TaskState
from trouper.models.scripted import Scripted, reply
from trouper.tools.context import Question

Mistake = Callable[[Runtime, Session, str], Any]


async def act(_: object) -> None:
    raise AssertionError("no trigger of these fires")


async def yielding(_: object) -> Any:
    yield "nothing"


MISTAKES: dict[str, tuple[Mistake, type[Exception], str]] = {
    "task state": (lambda r, s, t: r.tasks(state="done"), CommandRejected, "the states are queued"),
    "limit": (lambda r, s, t: r.tasks(limit=-1), UsageError, "whole number"),
    "session's limit": (lambda r, s, t: s.tasks(limit="many"), UsageError, "whole number"),  # type: ignore[arg-type]
    "notification state": (lambda r, s, t: r.notifications(state="new"), CommandRejected, "the states are queued"),
    "schedule state": (lambda r, s, t: r.schedules.list(state="on"), CommandRejected, "the states are active"),
    "no such schedule": (lambda r, s, t: r.schedules.cancel("x"), CommandRejected, "schedules.list"),
    "title of a schedule": (
        lambda r, s, t: r.schedules.create("a", title=7, cron="0 0 * * *", message="m"),
        UsageError,
        "is text, not 7",
    ),
    "message of a schedule": (
        lambda r, s, t: s.create_schedule(title="t", cron="0 0 * * *", message=7),
        UsageError,
        "is text, not 7",
    ),
    "a time past all calendars": (
        lambda r, s, t: s.create_schedule(title="t", at="9999-12-31T23:59:59-23:59", message="m"),
        CommandRejected,
        "before the year 9999",
    ),
    "a tool itself": (lambda r, s, t: s.spawn(act), UsageError, "or its name"),  # type: ignore[arg-type]
    "arguments": (lambda r, s, t: s.spawn("slow", [1, 2]), UsageError, "write arguments="),  # type: ignore[arg-type]
    "title of a run": (lambda r, s, t: s.spawn("slow", title=7), UsageError, "is text, not 7"),  # type: ignore[arg-type]
    "message": (lambda r, s, t: s.message_task(t, 7), UsageError, "is text, not 7"),  # type: ignore[arg-type]
    "no such task": (lambda r, s, t: s.message_task("x", "hello"), CommandRejected, "list the tasks"),
    "nothing asked": (lambda r, s, t: s.answer_task(t, "yes"), CommandRejected, "asks for nothing"),
    "title of a notification": (lambda r, s, t: s.notify(7), UsageError, "is text, not 7"),  # type: ignore[arg-type]
    "body of a notification": (lambda r, s, t: s.notify("t", 7), UsageError, "is text, not 7"),  # type: ignore[arg-type]
    "no such notification": (lambda r, s, t: s.acknowledge("x"), CommandRejected, "list them"),
    "nothing to cancel": (lambda r, s, t: s.cancel("x"), CommandRejected, "list its tasks"),
    "what to search": (lambda r, s, t: r.memory.search(7), UsageError, "give some words"),  # type: ignore[arg-type]
    "time to live": (lambda r, s, t: r.memory.remember("a", "k", 1, ttl_s=1e300), CommandRejected, "give seconds"),
    "no trigger": (lambda r, s, t: r.trigger("t", 60, act), UsageError, "give Every"),  # type: ignore[arg-type]
    "no function": (lambda r, s, t: r.trigger("t", Every(1), None), UsageError, "give a function"),  # type: ignore[arg-type]
    "a generator": (lambda r, s, t: r.trigger("t", Every(1), yielding), UsageError, "leave out its `yield`"),
    "no seconds": (lambda r, s, t: r.trigger("t", Every("1"), act), UsageError, "give seconds"),  # type: ignore[arg-type]
    "no path": (lambda r, s, t: r.trigger("t", OnChange(()), act), UsageError, "name a file"),
    "no such path": (
        lambda r, s, t: r.trigger("t", OnChange("no/such/inbox"), act),
        UsageError,
        "no 'no/such/inbox' to watch",
    ),
    "no paths at all": (lambda r, s, t: r.trigger("t", OnChange(5), act), UsageError, "name files"),  # type: ignore[arg-type]
    "a path of bytes": (lambda r, s, t: r.trigger("t", OnChange((b"in",)), act), UsageError, "name files"),  # type: ignore[arg-type]
    "no cron": (lambda r, s, t: r.trigger("t", Cron("daily"), act), UsageError, "write minute"),
    "no zone": (lambda r, s, t: r.trigger("t", Cron("0 9 * * *", "Mars/Base"), act), UsageError, "IANA name"),
    "a time gone by": (lambda r, s, t: r.trigger("t", OneShot(1.0), act), UsageError, "a time to come"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_a_mistake_is_named_at_the_call_and_what_runs_goes_on(
    open_checked: Any, autojump_clock: Any, mistake: str
) -> None:
    """B6, B11, B14, B18, B21, B25: a named error with the remedy; no actor fails of it, and no run is lost."""
    probe = Probe()
    make, kind, remedy = MISTAKES[mistake]
    model = Scripted([reply("Noted.")], exhausted="repeat")
    async with open_checked(model, tools=[probe.slow()]) as runtime:
        session = await runtime.session("a")
        task = await session.spawn("slow", {"seconds": 5.0})
        with pytest.raises(kind, match=remedy):
            made = make(runtime, session, task.id)
            if hasattr(made, "__await__"):
                await made
        assert (await session.wait_task(task.id)).state is TaskState.SUCCEEDED
        assert probe.attempts == [1]


SLIPS: dict[str, tuple[Callable[[ToolContext], Any], type[Exception], str]] = {
    "no question": (lambda c: c.ask_user(), UsageError, "asks nothing"),
    "text for a question": (lambda c: c.ask_user("Name?"), UsageError, r"write ask_user\(Question"),  # type: ignore[arg-type]
    "time that is none": (lambda c: c.ask_user(Question("Name?"), timeout_s=float("nan")), UsageError, "give seconds"),
    "text for a time": (lambda c: c.ask_user(Question("Name?"), timeout_s="1"), UsageError, "give seconds"),  # type: ignore[arg-type]
    "no tool": (lambda c: c.spawn(None, {}), UsageError, "is text, not None"),  # type: ignore[arg-type]
    "no arguments": (lambda c: c.spawn("slow", None), ToolError, "by name"),  # type: ignore[arg-type]
    "title of a run": (lambda c: c.spawn("slow", {}, title=7), UsageError, "is text, not 7"),
    "progress": (lambda c: c.report_progress(10**400, 10**401), UsageError, "too large for a number"),
}


@pytest.mark.parametrize("slip", SLIPS)
async def test_what_a_tool_gets_wrong_about_its_context_is_told_to_it(
    open_checked: Any, autojump_clock: Any, slip: str
) -> None:
    """T7, T16: and a question that asks nothing is not waited for."""
    act, kind, told = SLIPS[slip]

    @tool(background=True)
    async def clumsy(context: ToolContext) -> str:
        """Gets it wrong."""
        with pytest.raises(kind, match=told):
            await act(context)
        return "told"

    async with open_checked(Scripted([reply("noted")], exhausted="repeat"), tools=[clumsy, Probe().slow()]) as runtime:
        session = await runtime.session("a")
        task = await session.spawn("clumsy")
        assert (await session.wait_task(task.id)).result == "told"
        assert session.questions == ()
