"""Results that are too large to be turned into JSON and back in one go: a tool may well return 100 MB, and nothing else must stand still meanwhile.

orjson is quick, but holds the interpreter's lock until it is done, in a worker thread too. So large values are measured first, and then worked on piece by piece.
Values of a few long texts stay values, and share their texts. Values of very many parts become their JSON text: a copy of millions of small objects
would keep the garbage collector busy for longer than all the rest, and the model is shown the text anyway.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeAlias

import attrs
import orjson

from trouper.core.messages import Json
from trouper.tools.terminal_text import clean_text, slices

#: From this weight on a value is large.
LARGE = 1 << 20
#: Parts of a large value up to which it stays a value.
PARTS_MAX = 10_000
#: What is encoded in one go: parts, and their weight.
_BATCH, _BATCH_WEIGHT = 256, 1 << 17
#: What weighs nothing to speak of.
LEAVES = frozenset({int, float, bool, type(None)})
#: As deep as orjson goes.
_DEPTH_MAX = 254
#: One value (light, or a leaf) as JSON; raises what the caller wants raised.
Encode: TypeAlias = Callable[[Any], bytes]
#: One step towards JSON for an object of a class.
Plain: TypeAlias = Callable[[Any], Json]


def weight(value: object, stop: int = LARGE) -> int:
    """Roughly the characters that `value` takes as JSON; no more is looked at than `stop` needs."""
    if type(value) in LEAVES:
        return 2
    total = 0
    waiting: list[Any] = [value]
    while waiting and total < stop:
        each = waiting.pop()
        total += 2
        kind = type(each)
        if kind in LEAVES:
            continue
        if kind is str:
            total += len(each)
        elif kind is dict:
            total += 4 * len(each)
            if total < stop:
                for key in each:
                    if type(key) is str:
                        total += len(key)
                waiting.extend(each.values())
        elif kind is list or kind is tuple or isinstance(each, (list, tuple, set, frozenset)):
            total += 2 * len(each)
            if total < stop:
                waiting.extend(each)
        elif isinstance(each, (str, bytes, bytearray)):
            total += len(each)
        elif isinstance(each, Mapping):
            waiting.extend(each.values())
        elif attrs.has(kind) or dataclasses.is_dataclass(each):
            for field in attrs.fields(kind) if attrs.has(kind) else dataclasses.fields(each):
                total += 4 + len(field.name)
                waiting.append(getattr(each, field.name, None))
    return total


def detached(value: object, plain: Plain, encode: Encode) -> Json:
    """A large value as JSON of its own: a copy that shares its texts, or the JSON text if it has too many parts. A text is shared as it is, surrogates and all."""
    try:
        return _copied(value, plain, encode, [PARTS_MAX], ())
    except _TooMany:
        return "".join(json_pieces(value, plain, encode))


class _TooMany(Exception):
    pass


def _copied(value: Any, plain: Plain, encode: Encode, left: list[int], within: tuple[int, ...]) -> Json:
    if type(value) is str:
        return value
    left[0] -= 1
    if left[0] < 0:
        raise _TooMany
    within = _entered(value, within)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_asdict"):
        return [_copied(each, plain, encode, left, within) for each in value]
    if isinstance(value, dict):
        return {
            key if type(key) is str else _key(key, encode): _copied(each, plain, encode, left, within)
            for key, each in value.items()
        }
    if weight(value) < LARGE:
        return orjson.loads(encode(value))
    return _copied(_stepped(value, plain), plain, encode, left, within)


def json_pieces(value: Any, plain: Plain, encode: Encode, within: tuple[int, ...] = ()) -> Iterator[str]:
    """`value` as indented JSON, a piece at a time, its texts without terminal escapes. Where a piece ends the indentation starts anew."""
    if isinstance(value, str):
        yield '"'
        for part in slices(clean_text(str(value))):
            yield encode(part).decode()[1:-1]
        yield '"'
        return
    within = _entered(value, within)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_asdict"):
        parts = iter(value)
        yield "["
        between = ""
        while batch := list(islice(parts, _BATCH)):
            for group in [batch] if weight(batch, _BATCH_WEIGHT) < _BATCH_WEIGHT else [[each] for each in batch]:
                yield between
                between = ","
                if len(group) > 1 or weight(group, _BATCH_WEIGHT) < _BATCH_WEIGHT:
                    yield _inside(group, encode)
                else:
                    yield "\n"
                    yield from json_pieces(group[0], plain, encode, within)
        yield "\n]"
    elif isinstance(value, dict):
        items = iter(value.items())
        yield "{"
        between = ""
        while chosen := dict(islice(items, _BATCH)):
            light = weight(chosen, _BATCH_WEIGHT) < _BATCH_WEIGHT
            for some in [chosen] if light else [{key: each} for key, each in chosen.items()]:
                yield between
                between = ","
                if light or weight(some, _BATCH_WEIGHT) < _BATCH_WEIGHT:
                    yield _inside(some, encode)
                else:
                    ((key, each),) = some.items()
                    yield "\n" + orjson.dumps(clean_text(_key(key, encode))).decode() + ": "
                    yield from json_pieces(each, plain, encode, within)
        yield "\n}"
    elif weight(value, _BATCH_WEIGHT) < _BATCH_WEIGHT:
        yield encode(value).decode()
    else:
        yield from json_pieces(_stepped(value, plain), plain, encode, within)


def _inside(container: Any, encode: Encode) -> str:
    """The parts of a light list or dict, without its brackets."""
    encoded = encode(container)
    text = encoded.decode()
    # Control characters are written as escapes, those from 7F on as they are.
    if any(written in text for written in ("\\u00", "\\r", "\\b", "\\f")) or clean_text(text) is not text:
        text = orjson.dumps(cleaned(orjson.loads(encoded)), option=orjson.OPT_INDENT_2).decode()
    return text[1:-2]


def cleaned(content: Json) -> Json:
    """`content` with every text and key in it as `clean_text` leaves it."""
    return transformed(content, clean_text)


def transformed(content: Json, change: Callable[[str], str]) -> Json:
    """`content` with every text and key in it changed."""
    match content:
        case str():
            return change(content)
        case list():
            return [transformed(each, change) for each in content]
        case dict():
            return {change(key): transformed(each, change) for key, each in content.items()}
        case _:
            return content


def _key(key: Any, encode: Encode) -> str:
    found: str = key if type(key) is str else next(iter(orjson.loads(encode({key: None}))))
    return found


def _stepped(value: Any, plain: Plain) -> Json:
    stepped = plain(value)
    if stepped is value:
        raise TypeError(f"{type(value).__name__} is not JSON")
    return stepped


def _entered(value: object, within: tuple[int, ...]) -> tuple[int, ...]:
    """The values around the parts of `value`, by identity."""
    if len(within) > _DEPTH_MAX or id(value) in within:
        raise TypeError("it is nested too deeply, or contains itself")
    return (*within, id(value))
