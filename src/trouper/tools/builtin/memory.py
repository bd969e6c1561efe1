"""remember, recall, forget and list_memories: what outlives the session (B21)."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from trouper._errors import CommandRejected, InvalidName
from trouper.core.ids import NAME_MAX, check_name
from trouper.core.memory import VALUE_MAX_CHARS
from trouper.core.messages import Json
from trouper.tools.context import Memo, ToolContext
from trouper.tools.define import tool
from trouper.tools.errors import ToolError
from trouper.tools.schema import Param

LIST_MAX = 200
VALUE_MAX = VALUE_MAX_CHARS
SUMMARY_MAX = 500
TTL_MAX_S = 10 * 366 * 24 * 3600

Scope: TypeAlias = Annotated[
    str, Param("Whom or what it is about, such as 'user' or a project's name", min_length=1, max_length=NAME_MAX)
]
Key: TypeAlias = Annotated[str, Param("Its name within the scope", min_length=1, max_length=NAME_MAX)]


@tool(
    display_name="Remember",
    idempotent=True,
    destructive=False,
    open_world=False,
    concurrency_class="memory",
    needs=("memory",),
)
async def remember(
    context: ToolContext,
    key: Key,
    value: Annotated[Any, "Any JSON value"],
    scope: Scope = "user",
    summary: Annotated[str, Param("One sentence to find it by", max_length=SUMMARY_MAX)] = "",
    ttl_s: Annotated[int | None, Param("Forget it after so many seconds", ge=1, le=TTL_MAX_S)] = None,
) -> Json:
    """Keep something beyond this conversation. Writing to a key that exists replaces what was there.

    Limits: names of 1-{NAME_MAX} letters, digits, '-', '_', '.'; {VALUE_MAX} characters a value; {SUMMARY_MAX} a summary.
    Errors: a scope or key that is not allowed; a value that is null or too large.
    """
    _checked(scope, key)
    if value is None:
        raise ToolError("null is nothing to remember; give a value, or use forget")
    try:
        memo = await context.memory.remember(scope, key, value, summary=summary, ttl_s=ttl_s)
    except CommandRejected as refusal:
        raise ToolError(refusal.message) from None
    return {"scope": memo.scope, "key": memo.key, "remembered": True, "created": _at(memo), "updated": _updated(memo)}


@tool(display_name="Recall", readonly=True, open_world=False, concurrency_class="memory", needs=("memory",))
async def recall(
    context: ToolContext,
    key: Annotated[str | None, Param("The name of one memory; or give text", max_length=NAME_MAX)] = None,
    text: Annotated[str | None, Param("Words to look for in names, summaries and values", max_length=400)] = None,
    scope: Annotated[
        str | None, Param("Where to look; with text, leave it out for everywhere", max_length=NAME_MAX)
    ] = None,
    limit: Annotated[int, Param("How many to return at most", ge=1, le=LIST_MAX)] = 10,
) -> Json:
    """Look up one memory by its key, or search all of them by text, best first.

    Limits: {LIST_MAX} results.
    Errors: neither or both of key and text; a scope or key that is not allowed.
    """
    if (key is None) == (text is None):
        raise ToolError("give either key, for one memory, or text, to search; not both")
    if key is not None:
        _checked(scope or "user", key)
        found = await context.memory.recall(scope or "user", key)
        return {"found": False, "key": key} if found is None else {"found": True, **_shown(found)}
    assert text is not None
    if scope is not None:
        _checked(scope)
    hits = await context.memory.search(text, scope=scope, limit=limit)
    return {"memories": [_shown(each) for each in hits]}


@tool(
    display_name="Forget",
    idempotent=True,
    destructive=True,
    open_world=False,
    concurrency_class="memory",
    needs=("memory",),
)
async def forget(context: ToolContext, key: Key, scope: Scope = "user") -> Json:
    """Remove a memory for good. Forgetting what is not there does no harm.

    Errors: a scope or key that is not allowed.
    """
    _checked(scope, key)
    return {"scope": scope, "key": key, "forgotten": await context.memory.forget(scope, key)}


@tool(display_name="List Memories", readonly=True, open_world=False, concurrency_class="memory", needs=("memory",))
async def list_memories(
    context: ToolContext,
    scope: Scope = "user",
    limit: Annotated[int, Param("How many to return at most", ge=1, le=LIST_MAX)] = 50,
) -> Json:
    """List what is remembered in a scope, the newest change first; values of more than a line are left out.

    Limits: {LIST_MAX} results.
    Errors: a scope that is not allowed.
    """
    _checked(scope)
    found = await context.memory.list(scope, limit=limit)
    return {"scope": scope, "memories": [_line(each) for each in found]}


def _checked(scope: str, key: str | None = None) -> None:
    try:
        check_name(scope, "scope")
        if key is not None:
            check_name(key, "key")
    except InvalidName as error:
        raise ToolError(error.message) from None


def _shown(memo: Memo) -> dict[str, Json]:
    shown = {"scope": memo.scope, "key": memo.key, "value": memo.value, "updated": _updated(memo)}
    return {**shown, "summary": memo.summary} if memo.summary else shown


def _line(memo: Memo) -> dict[str, Json]:
    short = isinstance(memo.value, bool | int | float) or (isinstance(memo.value, str) and len(memo.value) <= 120)
    line: dict[str, Json] = {"key": memo.key, "updated": _updated(memo)}
    if memo.summary:
        line["summary"] = memo.summary
    if short:
        line["value"] = memo.value
    return line


def _at(memo: Memo) -> str:
    return memo.created.isoformat(timespec="seconds")


def _updated(memo: Memo) -> str:
    return memo.updated.isoformat(timespec="seconds")
