"""Names and ids. Time and randomness are handed in, so that a simulation gets the same ids twice."""

from __future__ import annotations

import re
from typing import NewType, Protocol

from trouper._errors import InvalidName

SessionId = NewType("SessionId", str)
#: `call_<turn>_<step>_<index>`: derived, so that a replay names the same call the same; fits every provider's rules for ids.
CallId = NewType("CallId", str)
TaskId = NewType("TaskId", str)
NotificationId = NewType("NotificationId", str)
ScheduleId = NewType("ScheduleId", str)

#: The stream of the journal that the memory is kept in. No session can be called so.
MEMORY_STREAM = "~memory"
NAME_MAX = 128
_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}\Z")
# Crockford's alphabet, lower case: sorts as the numbers do, and has no look-alikes.
_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
#: Two digits at a time: an id is made for every background run.
_PAIRS = tuple(high + low for high in _DIGITS for low in _DIGITS)
_ENTROPY_BITS = 80


class IdSource(Protocol):
    """Where fresh ids come from. The runtime's reads the clock and the system's randomness; a simulation's counts."""

    def new(self, prefix: str) -> str:
        """A fresh id: `prefix` + 26 characters that sort by time of birth."""


def time_ordered_id(prefix: str, at_ms: int, entropy: int) -> str:
    """`prefix` + 26 characters: 48 bits of time, 80 of entropy. Ids of a later millisecond sort later."""
    number = (at_ms << _ENTROPY_BITS) | (entropy & ((1 << _ENTROPY_BITS) - 1))
    return prefix + "".join([_PAIRS[(number >> shift) & 1023] for shift in range(120, -1, -10)])


def call_id(turn: int, step: int, index: int) -> CallId:
    return CallId(f"call_{turn}_{step}_{index}")


def is_session(stream: str) -> bool:
    """Whether a stream of the journal is a session's; the others are the runtime's own."""
    return not stream.startswith("~")


def check_name(name: object, what: str) -> str:
    """`name` itself if it can be a file name everywhere; else `InvalidName`, saying what is allowed (B22)."""
    if not isinstance(name, str) or not _NAME.match(name) or name in (".", ".."):
        shown = name if not isinstance(name, str) or len(name) <= 40 else name[:40] + "..."
        raise InvalidName(
            f"{what} {shown!r} is not a valid name; use 1-{NAME_MAX} letters, digits, '-', '_' or '.', and not '.' or '..'",
            name=name,
            what=what,
        )
    return name
