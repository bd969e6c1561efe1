"""What differs between two values of the core, field by field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from attrs import frozen

from trouper import codec
from trouper.core.messages import Json


class _Missing:
    def __repr__(self) -> str:
        return "(nothing)"


#: Stands for a value that is on the other side only.
MISSING = _Missing()


@frozen
class Difference:
    """One place where two values differ: `turn.step: 1 -> 2`."""

    path: str
    before: Json
    after: Json

    def __str__(self) -> str:
        return f"{self.path}: {_shown(self.before)} -> {_shown(self.after)}"


def differences(before: Any, after: Any) -> tuple[Difference, ...]:
    """Where two values of the core (states, events, tuples of them) differ, in the order of their fields."""
    if before is after:
        return ()
    return tuple(_walk("", _plain(before), _plain(after)))


def events_difference(recorded: Sequence[Any], now: Sequence[Any]) -> str:
    """The first difference between the events that are recorded and those that follow now, in words."""
    for index, (before, after) in enumerate(zip_longest(recorded, now, fillvalue=MISSING)):
        if before is MISSING:
            return f"event {index} is new: {type(after).__name__}"
        if after is MISSING:
            return f"event {index} was {type(before).__name__}, and there is none now"
        if type(before) is not type(after):
            return f"event {index} was {type(before).__name__}, and is {type(after).__name__} now"
        if before != after:
            found = next(iter(differences(before, after)), "it differs in what is not written")
            return f"event {index}, {type(before).__name__}: {found}"
    return "nothing differs"


def _plain(value: Any) -> Json:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return codec.loads(codec.dumps(codec.to_json(value)))


def _walk(path: str, before: Json, after: Json) -> Iterator[Difference]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in [*before, *(key for key in after if key not in before)]:
            inner = f"{path}.{key}" if path else str(key)
            yield from _walk(inner, before.get(key, MISSING), after.get(key, MISSING))
    elif isinstance(before, list) and isinstance(after, list):
        for index in range(max(len(before), len(after))):
            left = before[index] if index < len(before) else MISSING
            right = after[index] if index < len(after) else MISSING
            yield from _walk(f"{path}[{index}]", left, right)
    elif before is not after and (before != after or type(before) is not type(after)):
        yield Difference(path, before, after)


def _shown(value: Json) -> str:
    text = repr(value) if value is MISSING else codec.dumps(value).decode()
    return text if len(text) <= 200 else f"{text[:200]}..."
