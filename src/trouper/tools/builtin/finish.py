"""finish: the answer as data. The arguments of the call are the result; `finish_with` gives them the shape that the host wants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from trouper.core.messages import Json
from trouper.tools.context import ToolContext
from trouper.tools.contract import Hints, Tool
from trouper.tools.define import tool
from trouper.tools.schema import Param

NAME = "finish"
_DESCRIPTION = "Finish the task and hand over its result. Call it once, when everything is done, and by itself."


@tool(name=NAME, display_name="Finish", readonly=True, open_world=False, description=_DESCRIPTION)
async def finish(
    result: Annotated[Any, "The result: any JSON value"],
    summary: Annotated[str, Param("One or two sentences for the user", max_length=2000)] = "",
) -> Json:
    """Finish the task and hand over its result."""
    return {"result": result, "summary": summary} if summary else {"result": result}


def finish_with(schema: Mapping[str, Json], *, description: str = _DESCRIPTION) -> Tool:
    """A `finish` whose result must fit a JSON Schema: structured output, checked as the arguments of any tool are."""

    async def invoke(arguments: dict[str, Json], context: ToolContext) -> object:
        return arguments

    return Tool(
        name=NAME,
        description=description,
        parameters={
            "type": "object",
            "properties": {"result": dict(schema)},
            "required": ["result"],
            "additionalProperties": False,
        },
        invoke=invoke,
        display_name="Finish",
        hints=Hints(readonly=True, open_world=False),
    )
