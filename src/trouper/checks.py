"""What hosts and tools hand in is checked where they hand it in: a mistake is theirs to read, and no session's to fail on."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from typing import TypeVar

from trouper._errors import CommandRejected, UsageError

#: Characters of what names something, of what is told to a run, and of why something is done.
NAME_MAX = 4_096
MESSAGE_MAX = 65_536
REASON_MAX = 8_000
#: Of a system prompt, which is the host's own: what keeps its users brief (`Limits.input_chars`) is not meant for it.
SYSTEM_MAX = 4_000_000

_E = TypeVar("_E", bound=Enum)


def text(value: object, what: str, most: int | None = None) -> str:
    """Text, of at most so many characters."""
    if not isinstance(value, str):
        raise UsageError(f"{what} is text, not {value!r}; write it as one", what=what)
    if most is not None and len(value) > most:
        raise UsageError(f"{what} has {len(value)} characters, and {most} is the limit; say it in fewer", what=what)
    return value


def word(value: object, what: str) -> str:
    """A name: text that is not empty, and not very long."""
    if not text(value, what, NAME_MAX):
        raise UsageError(f"{what} is empty; name it", what=what)
    return text(value, what)


def brief(said: str, redact: Callable[[str], str], most: int = REASON_MAX) -> str:
    """What is cut to be no longer than that, since nobody is there to say it in fewer words. After redaction: half a secret would not be known as one (I36)."""
    if len(said) <= most:
        return said
    note = "\n[{} more characters]"
    said = redact(said)
    kept = most - len(note) - 20
    return said if len(said) <= most else said[:kept] + note.format(len(said) - kept)


def optional_text(value: object, what: str) -> None:
    if value is not None:
        text(value, what)


def count(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UsageError(f"{what}={value!r} makes no sense; give a whole number of at least 0", what=what)
    return value


def yes_or_no(value: object, what: str) -> bool:
    """For what must not be read into a value that is merely true, as the text "false" is."""
    if not isinstance(value, bool):
        raise UsageError(f"{what}={value!r} says neither yes nor no; give True or False", what=what)
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
