"""set_timer: a message to this session at a later time. A schedule that fires once."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from trouper.core.messages import Json
from trouper.tools.context import ToolContext
from trouper.tools.define import tool
from trouper.tools.schema import Param

DELAY_MAX_S = 366 * 24 * 3600


@tool(display_name="Set Timer", destructive=False, open_world=False, needs=("schedules", "clock"))
async def set_timer(
    context: ToolContext,
    delay_s: Annotated[int, Param("Seconds from now", ge=1, le=DELAY_MAX_S)],
    message: Annotated[str, Param("What to be reminded of then", min_length=1, max_length=2000)],
) -> Json:
    """Be woken with a message after some time. The turn ends as usual; the message starts a new one.

    Limits: 1 s to {DELAY_MAX_S} s.
    Errors: those of the host's schedules, such as too many of them.
    """
    at = context.now() + timedelta(seconds=delay_s)
    made = await context.schedules.create(
        title=f"Timer: {message[:60]}", at=at.isoformat(), timezone="UTC", message=message
    )
    return {"fires_at": at.isoformat(timespec="seconds"), "schedule": dict(made)}
