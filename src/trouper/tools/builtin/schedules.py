"""create_schedule, list_schedules, cancel_schedule (B18, B19)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from trouper.core.messages import Json
from trouper.tools.context import ToolContext
from trouper.tools.define import tool
from trouper.tools.schema import Param


@tool(display_name="Create Schedule", destructive=False, open_world=False, needs=("schedules",))
async def create_schedule(
    context: ToolContext,
    title: Annotated[str, Param("A few words that say what it is for", min_length=1, max_length=200)],
    cron: Annotated[str | None, Param("Again and again: five fields, such as '0 9 * * 1-5'", max_length=200)] = None,
    at: Annotated[str | None, Param("Once: RFC 3339, such as '2026-04-16T15:30:00Z'", max_length=64)] = None,
    timezone: Annotated[str, Param("IANA zone that cron is read in, such as 'Europe/Berlin'", max_length=64)] = "UTC",
    message: Annotated[str | None, Param("What to be told then; starts a turn", max_length=8_000)] = None,
    tool: Annotated[
        str | None, Param("Or a tool to run then, in the background, without a turn", max_length=64)
    ] = None,
    args: Annotated[dict[str, Any] | None, "The tool's arguments"] = None,
    missed: Annotated[
        Literal["skip", "once", "all"], Param("What becomes of fires that were missed while nothing ran")
    ] = "once",
) -> Json:
    """Have something happen at a time: a message to this session, or a background run of a tool. Exactly one of cron and at; exactly one of message and tool.

    Limits: 5 active schedules a session, 60 s between two fires, unless set otherwise.
    Errors: a time in the past or that never comes, an unknown zone, both or neither of two; a tool that cannot run in the background; too many schedules.
    """
    return dict(
        await context.schedules.create(
            title=title,
            cron=cron,
            at=at,
            timezone=timezone,
            tool=tool,
            arguments=args,
            message=message,
            missed=missed,
        )
    )


@tool(display_name="List Schedules", readonly=True, open_world=False, needs=("schedules",))
async def list_schedules(context: ToolContext) -> Json:
    """List this session's schedules: when each is due next, and the runs that it has started."""
    return {"schedules": [dict(each) for each in await context.schedules.list()]}


@tool(display_name="Cancel Schedule", idempotent=True, destructive=True, open_world=False, needs=("schedules",))
async def cancel_schedule(
    context: ToolContext, schedule_id: Annotated[str, Param("Its id, as list_schedules shows it", max_length=128)]
) -> Json:
    """Cancel a schedule. It never fires again; runs that it has started go on.

    Errors: an id that is not there.
    """
    return {"schedule_id": schedule_id, "cancelled": await context.schedules.cancel(schedule_id)}
