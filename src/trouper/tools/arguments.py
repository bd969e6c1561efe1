"""From what a provider sent to a JSON value that is safe to keep (L16, L17).

A model's arguments are untrusted text. Size, depth and number of keys are capped before anything is built from them, and what comes out can always be
journaled: finite numbers of at most 64 bits (a longer integer is kept as its digits, in text), text without lone surrogates, one value per key. Broken JSON is
repaired, and every repair leaves a note.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

import orjson

from trouper.core.messages import Json
from trouper.core.values import frozen
from trouper.tools.errors import InvalidArguments

#: Characters of one call's arguments.
ARGUMENTS_MAX = 1_048_576
#: Brackets within brackets.
DEPTH_MAX = 64
#: Keys of all objects together.
KEYS_MAX = 20_000
#: Items of all lists together, where they have to be looked at one by one.
ITEMS_MAX = 100_000
#: Repairing costs microseconds a character on the event loop, so long texts are refused instead.
REPAIR_MAX = 32_768
#: The digits of the widest integer that fits 64 bits, with its sign.
_INTEGER_DIGITS = 20
_INTEGER_MIN, _INTEGER_MAX = -(1 << 63), (1 << 64) - 1
#: Digits of the longest integer that is taken at all: to read one takes the square of its length.
DIGITS_MAX = 1_000
_WIDE = 10**DIGITS_MAX
#: Said of integers past 64 bits. Whoever asks for an integer is given it again: see `structure`.
KEPT_AS_TEXT = "kept integers past 64 bits as text"
_WHITE = " \t\n\r"
# In one go, also where the last one has no end: else each quote in it would be tried as the beginning of one.
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*+("?)', re.DOTALL)
#: How a text ends that lacks nothing but brackets.
_WHOLE_END = re.compile(r"(?:[\]}\"',]|\btrue|\bfalse|\bnull)\s*\Z", re.IGNORECASE)
_SURROGATES = re.compile("[\ud800-\udfff]")


#: Values within values that repair and complaint walk through, for the same reason.
NODES_MAX = 2_000


@frozen(frequent=True)
class Parsed:
    """Arguments as JSON, after repair."""

    value: Json
    #: What had to be repaired, for the event that says so.
    notes: tuple[str, ...] = ()
    #: The text broke off in the middle, and was closed by repair: something may be missing at its end.
    cut_short: bool = False
    #: And it broke off within a text, a number or a key, which may be missing its end: `rm -rf /` of `rm -rf /tmp/x`.
    cut_within: bool = False


def parse_arguments(arguments: object) -> Parsed:
    """A streamed buffer, or the object that the provider had parsed, as a JSON value. Raises `InvalidArguments` for what cannot be used at all."""
    if type(arguments) is not str:
        return guarded(arguments)
    if not arguments or arguments.isspace():
        return Parsed({})
    if len(arguments) > ARGUMENTS_MAX:
        raise InvalidArguments(
            f"the arguments have {len(arguments)} characters; at most {ARGUMENTS_MAX} are allowed, so send less"
        )
    _check_depth(arguments, in_strings=False)
    try:
        try:
            value = _decoded(arguments, _DECODER)
        except _Wide:
            return guarded(_decoded(arguments, _WIDE_DECODER))
    except json.JSONDecodeError as error:
        return _repaired(arguments, error)
    # The decoder refuses numbers that cannot be kept. Without escapes, ASCII has no lone surrogates; and so short a text has not too many keys.
    if arguments.isascii() and "\\" not in arguments and len(arguments) <= KEYS_MAX:
        return Parsed(value)
    return guarded(value)


def parse_json(text: str) -> Json:
    """`text` as strict JSON within the same caps, for text inside arguments. Raises `ValueError` (or `InvalidArguments`) if it is not."""
    if len(text) > ARGUMENTS_MAX:
        raise ValueError("too long")
    _check_depth(text, in_strings=False)
    return guarded(_decoded(text, _WIDE_DECODER)).value


def _decoded(text: str, decoder: json.JSONDecoder) -> Json:
    """As `decode` of the decoder has it, which looks for white space around the text with a pattern, and mostly there is none."""
    text = text.strip(_WHITE)
    value, end = decoder.raw_decode(text)
    if end != len(text):
        raise json.JSONDecodeError("Extra data", text, end)
    return value


def guarded(value: object) -> Parsed:
    """`value` if it can be journaled and sent as it is; else a copy that can, with notes; else `InvalidArguments`."""
    try:
        encoded = orjson.dumps(value)
    except TypeError:
        # Lone surrogates, wide integers, keys that are not text, great depth, or no JSON at all: the walk tells which.
        return _scrubbed(value)
    size = len(encoded)
    if size > 4 * ARGUMENTS_MAX:
        raise InvalidArguments(
            f"the arguments have {size} bytes; at most {4 * ARGUMENTS_MAX} are allowed, so send less"
        )
    # orjson writes null for NaN, and only the walk can count; most arguments have neither nulls nor many brackets.
    if b"null" in encoded or (
        size > DEPTH_MAX and (encoded.count(b"{") + encoded.count(b"[") > DEPTH_MAX or encoded.count(b'":') > KEYS_MAX)
    ):
        return _scrubbed(value)
    return Parsed(value)


def is_large(value: Json) -> bool:
    """Whether `value` has more parts than may be walked through one by one on the event loop."""
    rest, count = [value], 0
    while rest:
        each = rest.pop()
        if isinstance(each, (list, dict)):
            count += len(each)
            if count > NODES_MAX:
                return True
            rest.extend(each.values() if isinstance(each, dict) else each)
    return False


class _Scrub:
    def __init__(self) -> None:
        self.keys = 0
        self.items = 0
        self.replaced = False
        self.widened = False

    def walk(self, value: object, depth: int) -> Json:
        kind = type(value)
        if kind is str:
            return self.text(value)  # type: ignore[arg-type]
        if value is None or kind is bool:
            return value
        if kind is int:
            return self.integer(value)  # type: ignore[arg-type]
        if kind is float:
            if value != value or value in (float("inf"), float("-inf")):
                _refuse_constant(str(value))
            return value
        if depth >= DEPTH_MAX:
            _refuse_depth()
        if isinstance(value, dict):
            self.keys += len(value)
            if self.keys > KEYS_MAX:
                raise InvalidArguments(f"the arguments have more than {KEYS_MAX} keys; send fewer")
            return {
                self.text(key if isinstance(key, str) else str(key)): self.walk(each, depth + 1)
                for key, each in value.items()
            }
        if isinstance(value, (list, tuple)):
            self.items += len(value)
            if self.items > ITEMS_MAX:
                raise InvalidArguments(f"the arguments have more than {ITEMS_MAX} items in lists; send fewer")
            return [self.walk(each, depth + 1) for each in value]
        raise InvalidArguments(f"the arguments hold a value of type {kind.__name__}, which is not JSON")

    def integer(self, value: int) -> Json:
        if _INTEGER_MIN <= value <= _INTEGER_MAX:
            return value
        if not -_WIDE < value < _WIDE:
            _refuse_length()
        self.widened = True
        return str(value)

    def text(self, value: str) -> str:
        clean = _SURROGATES.sub("\ufffd", value)
        if clean != value:
            self.replaced = True
        return clean


def _scrubbed(value: object) -> Parsed:
    scrub = _Scrub()
    clean = scrub.walk(value, 0)
    notes = ("replaced characters that are no valid text (lone surrogates)",) if scrub.replaced else ()
    return Parsed(clean, (*notes, KEPT_AS_TEXT) if scrub.widened else notes)


def _repaired(text: str, error: json.JSONDecodeError) -> Parsed:
    try:
        # Raw line breaks inside a text are the commonest fault, and need no guessing.
        value = guarded(_LENIENT_DECODER.decode(text))
        return Parsed(value.value, ("escaped control characters inside a text", *value.notes))
    except json.JSONDecodeError:
        pass
    broken = f"the arguments are not valid JSON ({error.msg}, at character {error.pos})"
    if error.msg == "Extra data" and text.strip(_WHITE)[error.pos :].lstrip()[:1] in ("{", "["):
        # To take one of them would be to drop what was said in the other.
        raise InvalidArguments("the arguments are several JSON values in a row; make one call for each")
    if len(text) > REPAIR_MAX:
        raise InvalidArguments(f"{broken}, and too long to be repaired; send them again as one valid JSON object")
    # A broken text may have its quotes anywhere, so its brackets are counted wherever they are.
    _check_depth(text, in_strings=True)
    import json_repair

    try:
        found = json_repair.loads(text, skip_json_loads=True)
    except (RecursionError, ValueError):
        found = ""
    if not isinstance(found, (dict, list)):
        raise InvalidArguments(f"{broken}; send them again as one valid JSON object")
    outside = _outside_strings(text)
    open_brackets = outside.count("{") + outside.count("[") - outside.count("}") - outside.count("]")
    cut_short = '"' in outside or open_brackets > 0
    clean = guarded(found)
    note = (
        "closed JSON that broke off in the middle"
        if cut_short
        else f"repaired broken JSON ({error.msg}, at character {error.pos})"
    )
    cut_within = cut_short and ('"' in outside or _WHOLE_END.search(text) is None)
    return Parsed(clean.value, (note, *clean.notes), cut_short, cut_within)


def _outside_strings(text: str) -> str:
    """The JSON without its strings; of one that has no end, the quote is left."""
    return _STRINGS.sub(lambda found: "" if found[1] else '"', text)


def _check_depth(text: str, *, in_strings: bool) -> None:
    """Refuses deep nesting before a parser recurses into it. Brackets inside strings count only on demand."""
    if text.count("[") + text.count("{") <= DEPTH_MAX:
        return
    depth = 0
    for character in text if in_strings else _outside_strings(text):
        if character in "[{":
            depth += 1
            if depth > DEPTH_MAX:
                _refuse_depth()
        elif character in "]}" and depth:
            depth -= 1


def _refuse_depth() -> NoReturn:
    raise InvalidArguments(f"the arguments are nested more than {DEPTH_MAX} deep; send them flatter")


def _refuse_constant(text: str) -> NoReturn:
    raise InvalidArguments(f"{text} is not a number that JSON knows; send a finite number or null")


def _refuse_length() -> NoReturn:
    raise InvalidArguments(f"an integer has more than {DIGITS_MAX} digits; send a shorter one")


class _Wide(Exception):
    """An integer past 64 bits: it is JSON, but not to be kept as a number."""


def _integer(text: str) -> int:
    if len(text) <= _INTEGER_DIGITS and _INTEGER_MIN <= (value := int(text)) <= _INTEGER_MAX:
        return value
    raise _Wide


def _wide_integer(text: str) -> int:
    if len(text.removeprefix("-")) > DIGITS_MAX:
        _refuse_length()
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        _refuse_constant(text[:40])
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise InvalidArguments(f"the key {twice[:80]!r} is given twice; send each key once", fields=(twice[:80],))
    return made


def _decoder(*, strict: bool = True, parse_int: Callable[[str], int] = _wide_integer) -> json.JSONDecoder:
    return json.JSONDecoder(
        strict=strict,
        object_pairs_hook=_object,
        parse_int=parse_int,
        parse_float=_float,
        parse_constant=_refuse_constant,
    )


_DECODER = _decoder(parse_int=_integer)
_WIDE_DECODER = _decoder()
_LENIENT_DECODER = _decoder(strict=False)
