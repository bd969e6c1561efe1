"""echo and report_progress: the two that do nothing but speak."""

from __future__ import annotations

from typing import Annotated

from trouper.core.messages import Json
from trouper.tools.context import ToolContext
from trouper.tools.define import tool
from trouper.tools.schema import Param


@tool(display_name="Echo", readonly=True, open_world=False)
async def echo(message: Annotated[str, Param("What to say back", max_length=50_000)]) -> Json:
    """Return the message as it is. Good for checking that tools work."""
    return {"echoed": message}


@tool(display_name="Report Progress", readonly=True, open_world=False)
async def report_progress(
    context: ToolContext,
    message: Annotated[str, Param("One line that says what is being done now", min_length=1, max_length=500)],
    percent: Annotated[float | None, Param("How much of the whole task is done", ge=0, le=100)] = None,
) -> Json:
    """Tell the user how a long task is getting on. The task goes on; nothing else happens."""
    context.report_progress(percent, None if percent is None else 100, "" if percent is None else "%", message)
    return {"reported": True}
