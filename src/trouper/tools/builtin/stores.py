"""kv_store and secret_store (B24). The second never shows a value: what the model could read, the journal would keep."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson

from trouper._errors import InvalidName
from trouper.core.ids import NAME_MAX, check_name
from trouper.core.messages import Json
from trouper.tools.context import ToolContext
from trouper.tools.define import tool
from trouper.tools.errors import ToolError
from trouper.tools.schema import Param

VALUE_BYTES_MAX = 64 * 1024
KEYS_MAX = 1000


@tool(
    display_name="Key-Value Store",
    idempotent=True,
    destructive=True,
    open_world=False,
    concurrency_class="kv",
    needs=("kv",),
)
async def kv_store(
    context: ToolContext,
    action: Annotated[Literal["get", "set", "delete", "list"], Param("What to do")],
    key: Annotated[str | None, Param("The key; not for list", max_length=NAME_MAX)] = None,
    value: Annotated[Any, "Any JSON value; for set only"] = None,
) -> Json:
    """Keep small values for this session: get, set, delete, or list the keys.

    Limits: keys of 1-{NAME_MAX} letters, digits, '-', '_', '.'; {VALUE_BYTES_MAX} bytes a value; {KEYS_MAX} keys.
    Errors: a key that is missing or not allowed; a value that is too large; too many keys.
    """
    if action == "list":
        return {"keys": sorted(await context.kv.keys())}
    name = _name(key, "key")
    if action == "get":
        found = await context.kv.get(name)
        return {"key": name, "found": found is not None, "value": found}
    if action == "delete":
        return {"key": name, "deleted": await context.kv.delete(name)}
    if value is None:
        raise ToolError("set needs a value other than null; to remove a key, use delete")
    if (size := len(orjson.dumps(value))) > VALUE_BYTES_MAX:
        raise ToolError(f"the value has {size} bytes of JSON; use at most {VALUE_BYTES_MAX}, or write a file")
    keys = await context.kv.keys()
    if name not in keys and len(keys) >= KEYS_MAX:
        raise ToolError(f"the store has {len(keys)} keys, which is its limit; delete some")
    await context.kv.set(name, value)
    return {"key": name, "stored": True}


@tool(
    display_name="Secret Store",
    idempotent=True,
    destructive=True,
    open_world=False,
    requires_secrets=True,
    needs=("secrets",),
)
async def secret_store(
    context: ToolContext,
    action: Annotated[Literal["list", "exists", "delete"], Param("What to do")],
    name: Annotated[str | None, Param("The secret's name; not for list", max_length=NAME_MAX)] = None,
) -> Json:
    """List the names of stored secrets, check for one, or delete one. Values are never shown: tools use them by name. To store one, ask the user for it with ask_user and `secret`.

    Limits: names of 1-{NAME_MAX} letters, digits, '-', '_', '.'.
    Errors: a name that is missing or not allowed.
    """
    if action == "list":
        return {"names": sorted(await context.secrets.names())}
    checked = _name(name, "name")
    if action == "delete":
        return {"name": checked, "deleted": await context.secrets.delete(checked)}
    return {"name": checked, "exists": checked in await context.secrets.names()}


def _name(name: str | None, what: str) -> str:
    if name is None:
        raise ToolError(f"{what!r} is missing; give it, or use the action 'list'")
    try:
        return check_name(name, what)
    except InvalidName as error:
        raise ToolError(error.message) from None
