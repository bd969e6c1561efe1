"""get_current_time: the host's clock in any time zone."""

from __future__ import annotations

import re
from datetime import UTC, timedelta, timezone, tzinfo
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from trouper.core.messages import Json
from trouper.tools.context import ToolContext
from trouper.tools.define import tool
from trouper.tools.errors import ToolError
from trouper.tools.schema import Param

_OFFSET = re.compile(r"(?:UTC|GMT)?([+-])(\d{1,2})(?::?(\d{2}))?\Z")


@tool(display_name="Get Current Time", readonly=True, open_world=False, needs=("clock",))
async def get_current_time(
    context: ToolContext,
    timezone: Annotated[
        str, Param("An IANA name such as 'Europe/Berlin', or an offset such as '+02:00'", min_length=1, max_length=64)
    ] = "UTC",
) -> Json:
    """Get the current date and time in a time zone.

    Errors: a time zone that is not known.
    """
    zone = zone_named(timezone)
    now = context.now().astimezone(zone)
    offset = now.strftime("%z")
    return {
        "time": now.isoformat(timespec="seconds"),
        "timezone": timezone,
        "utc_offset": f"{offset[:3]}:{offset[3:5]}",
        "weekday": now.strftime("%A"),
        "unix_s": int(now.timestamp()),
    }


def zone_named(name: str) -> tzinfo:
    """Raises `ToolError` for a name that is none."""
    if name.upper() in ("UTC", "GMT", "Z"):
        return UTC
    if found := _OFFSET.match(name):
        minutes = int(found[2]) * 60 + int(found[3] or 0)
        if int(found[2]) <= 14 and int(found[3] or 0) < 60:
            return timezone(timedelta(minutes=minutes if found[1] == "+" else -minutes))
    try:
        return ZoneInfo(name)
    # A directory of zones, a path out of them, or bytes that are none: each fails in its own way.
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ToolError(
            f"time zone {name!r} is not known; use an IANA name such as 'Europe/Berlin', or an offset such as '+02:00'"
        ) from None
