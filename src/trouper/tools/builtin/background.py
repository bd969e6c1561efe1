"""spawn_background and the task tools (B6, B7, B11-B13). They are there by themselves as soon as some tool can run in the background: see `equipping`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from attrs import frozen

from trouper.core.messages import Json
from trouper.core.task_record import TERMINAL, TaskState
from trouper.tools.context import ToolContext
from trouper.tools.contract import Tool
from trouper.tools.define import tool
from trouper.tools.errors import ToolError
from trouper.tools.schema import Param

LIST_MAX = 200
WAIT_MAX_S = 100
MESSAGE_MAX = 8_000
TITLE_MAX = 200


@frozen
class RunSchedule:
    cron: Annotated[str | None, Param("Again and again: five fields, such as '0 9 * * 1-5'")] = None
    at: Annotated[str | None, Param("Once: RFC 3339, such as '2026-04-16T15:30:00Z'")] = None
    timezone: Annotated[str, Param("IANA zone that cron is read in")] = "UTC"
    missed: Annotated[
        Literal["skip", "once", "all"], Param("What becomes of fires that were missed while nothing ran")
    ] = "once"


@tool(display_name="Spawn Background", destructive=False, open_world=False, needs=("background",))
async def spawn_background(
    context: ToolContext,
    tool: Annotated[str, Param("The tool to run; it has to support the background", min_length=1, max_length=64)],
    args: Annotated[dict[str, Any], "Its arguments"],
    title: Annotated[str, Param("A few words that say what the run is for", max_length=TITLE_MAX)] = "",
    schedule: Annotated[
        RunSchedule | None, Param("Run it later, or again and again, instead of now; exactly one of cron and at")
    ] = None,
    signal_on_completion: Annotated[bool, "Send a notification when it has ended"] = True,
) -> Json:
    """Run a tool in the background. Returns at once, with ids and paths; a notification brings the end. Use it for work that takes long, and go on with the conversation.

    Limits: 5 active runs a session and 64 a runtime, unless set otherwise.
    Errors: an unknown tool, this one, one without background support; arguments that do not fit; a limit that is reached; a schedule that makes no sense.
    """
    planned = None
    if schedule is not None:
        planned = {
            key: value
            for key, value in {
                "cron": schedule.cron,
                "at": schedule.at,
                "timezone": schedule.timezone,
                "missed": schedule.missed,
            }.items()
            if value is not None
        }
    made = await context.spawn(
        tool, args, title=title or None, schedule=planned, signal_on_completion=signal_on_completion
    )
    return dict(made)


@tool(display_name="List Tasks", readonly=True, open_world=False, deferrable=True, needs=("tasks",))
async def list_tasks(
    context: ToolContext,
    state: Annotated[
        Literal["queued", "running", "awaiting_input", "succeeded", "failed", "cancelled", "interrupted"] | None,
        Param("Only tasks in this state"),
    ] = None,
    kind: Annotated[
        str | None, Param("Only tasks of this kind: tool, background, subagent, monitor", max_length=64)
    ] = None,
    limit: Annotated[int, Param("How many to return at most", ge=1, le=LIST_MAX)] = 20,
) -> Json:
    """List the background tasks of this session, the newest first.

    Limits: {LIST_MAX} results.
    """
    return {"tasks": [dict(each) for each in await context.tasks.list(state=state, kind=kind, limit=limit)]}


@tool(display_name="Get Task", readonly=True, open_world=False, deferrable=True, needs=("tasks",))
async def get_task(
    context: ToolContext,
    task_id: Annotated[str, Param("Its id, as spawn_background or list_tasks gave it", max_length=128)],
    events: Annotated[int, Param("How many of its last events to show", ge=0, le=50)] = 10,
) -> Json:
    """All about one background task: state, progress, live output, result, last events.

    Errors: an id that is not there.
    """
    found = await context.tasks.get(task_id, events=events)
    if found is None:
        raise ToolError(f"there is no task {task_id!r} in this session; list_tasks shows their ids")
    return dict(found)


@tool(
    display_name="Cancel Task",
    idempotent=True,
    destructive=True,
    open_world=False,
    deferrable=True,
    needs=("tasks",),
)
async def cancel_task(
    context: ToolContext,
    task_id: Annotated[str, Param("Its id", max_length=128)],
    reason: Annotated[str, Param("Why, in a few words", max_length=500)] = "",
) -> Json:
    """Cancel a background task. It stops at once; what it has done by then stays done.

    Errors: an id that is not there.
    """
    return {"task_id": task_id, "cancelled": await context.tasks.cancel(task_id, reason=reason)}


@tool(display_name="Message Task", destructive=False, open_world=False, deferrable=True, needs=("tasks",))
async def message_task(
    context: ToolContext,
    task_id: Annotated[str, Param("Its id", max_length=128)],
    text: Annotated[
        str, Param("What to tell it; if it asks for input, the answer", min_length=1, max_length=MESSAGE_MAX)
    ],
) -> Json:
    """Send a message to a background task, or answer what it asks.

    Limits: {MESSAGE_MAX} characters.
    Errors: an id that is not there; a task that has ended; a question that only the user can answer.
    """
    await context.tasks.message(task_id, text)
    return {"task_id": task_id, "sent": True}


@tool(display_name="Wait for Task", readonly=True, open_world=False, deferrable=True, needs=("tasks",))
async def wait_task(
    context: ToolContext,
    task_id: Annotated[str, Param("Its id", max_length=128)],
    timeout_s: Annotated[int, Param("Seconds to wait at most", ge=1, le=WAIT_MAX_S)] = 30,
) -> Json:
    """Wait until a background task has ended (`done`) or asks for input (`input_request`), or the time is up. Prefer to end the turn: a notification will bring the end.

    Limits: {WAIT_MAX_S} s.
    Errors: an id that is not there.
    """
    found = await context.tasks.wait(task_id, timeout_s=timeout_s)
    return {"done": TaskState(found["state"]) in TERMINAL, **found}


TASK_TOOLS: tuple[Tool, ...] = (list_tasks, get_task, cancel_task, message_task, wait_task)
