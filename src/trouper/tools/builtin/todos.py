"""write_todos: the model's own list of what is left to do. It lives in the conversation; the tool checks it and shows it to the user."""

from __future__ import annotations

from typing import Annotated, Literal

from attrs import frozen

from trouper.core.messages import Json
from trouper.tools.context import ToolContext
from trouper.tools.define import tool
from trouper.tools.errors import ToolError
from trouper.tools.schema import Param

TODOS_MAX = 100


@frozen
class Todo:
    content: Annotated[str, Param("What is to be done", min_length=1, max_length=500)]
    status: Annotated[Literal["pending", "in_progress", "completed"], Param("How far it is")] = "pending"


@tool(display_name="Write Todos", idempotent=True, destructive=False, open_world=False)
async def write_todos(
    context: ToolContext,
    todos: Annotated[list[Todo], Param("The whole list, in order; it replaces the one before", max_length=TODOS_MAX)],
) -> Json:
    """Write down the plan as a list of todos, and update it as work goes on. Each call replaces the whole list. Keep one todo in progress at a time.

    Limits: {TODOS_MAX} todos, at most one of them in progress.
    Errors: more than one todo in progress; two with the same content.
    """
    doing = [todo.content for todo in todos if todo.status == "in_progress"]
    if len(doing) > 1:
        raise ToolError(f"{len(doing)} todos are in progress; keep one at a time, and leave the others pending")
    seen: set[str] = set()
    for todo in todos:
        if todo.content in seen:
            raise ToolError(f"the todo {todo.content!r} is there twice; keep one of the two")
        seen.add(todo.content)
    done = sum(todo.status == "completed" for todo in todos)
    context.report_progress(done, len(todos), "todos", doing[0] if doing else "")
    return {"todos": todos, "completed": done, "total": len(todos)}
