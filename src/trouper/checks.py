"""What hosts and tools hand in is checked where they hand it in: a mistake is theirs to read, and no session's to fail on."""

from __future__ import annotations

import json
from enum import Enum
from typing import TypeVar

from trouper._errors import CommandRejected, UsageError

_E = TypeVar("_E", bound=Enum)


def text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{what} is text, not {value!r}; write it as one", what=what)
    return value


def word(value: object, what: str) -> str:
    """Text that is not empty."""
    if not text(value, what):
        raise UsageError(f"{what} is empty; name it", what=what)
    return text(value, what)


def optional_text(value: object, what: str) -> None:
    if value is not None:
        text(value, what)


def count(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UsageError(f"{what}={value!r} makes no sense; give a whole number of at least 0", what=what)
    return value


def plain_json(value: object, what: str) -> None:
    """What JSON holds as it is: anything else would be recorded as something that nobody has said."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{what} is not JSON ({error}); use null, booleans, finite numbers, text, lists and objects", what=what
        ) from None


def page_after(before: object) -> None:
    """Where a page ended, as it was given out."""
    if before is None:
        return
    match before:
        case (float() | int(), str()):
            return
    raise UsageError(f"before={before!r} is no end of a page; give the `before` of the page that you have, or None")


def state_named(states: type[_E], state: _E | str | None, what: str) -> _E | None:
    """A state by its name, or itself."""
    if state is None or isinstance(state, states):
        return state
    try:
        return states(state)
    except ValueError:
        known = ", ".join(str(each.value) for each in states)
        raise CommandRejected(f"there is no {what} state {state!r}; the states are {known}", state=state) from None
