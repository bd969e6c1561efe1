"""JSON to and from providers: orjson where it can, something more forgiving where it cannot.

A model may write half of a surrogate pair or an integer of thirty digits. orjson refuses both, and so would the journal; here the first becomes
U+FFFD and the second passes, so that one odd character does not cost a reply.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

import orjson

from trouper.core.messages import Json

_LONG_NUMBER = re.compile(rb"[:,\[]\s*-?\d{19}")


def encode(value: Json) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except (TypeError, orjson.JSONEncodeError):
        return json.dumps(_mended(value), ensure_ascii=False, separators=(",", ":")).encode()


def decode(data: bytes) -> Json:
    """The value; `ValueError` if these bytes are no JSON, or JSON nested too deep to be meant."""
    try:
        return _with_every_digit(orjson.loads(data), data)
    except orjson.JSONDecodeError:
        pass
    return _decode_forgivingly(data)


def decode_or_none(data: bytes) -> Json:
    """The value; `None` if these bytes are none."""
    try:
        return _with_every_digit(orjson.loads(data), data)
    except orjson.JSONDecodeError:
        pass
    try:
        return _decode_forgivingly(data)
    except ValueError:
        return None


def as_text(value: Json) -> str:
    """What a provider says where text belongs: as it is, or else as JSON; nothing where nothing is, or what is nested too deep to be meant."""
    if isinstance(value, str):
        return value
    try:
        return encode(value).decode() if value else ""
    except RecursionError:
        return ""


def _with_every_digit(value: Json, data: bytes) -> Json:
    """`value` as it was read fast, unless an integer past 64 bits may have become the nearest float: an argument of a call would be another number."""
    if _LONG_NUMBER.search(data) is None:
        return value
    try:
        return _decode_forgivingly(data)
    except ValueError:  # So many digits, or such a depth, that nothing is lost by the float.
        return value


def _decode_forgivingly(data: bytes) -> Json:
    try:
        # Some gateways write a byte order mark before it.
        return _mended(json.loads(data.decode("utf-8-sig", "replace")))
    except RecursionError:
        raise ValueError("JSON nested too deep") from None


def is_cut_short(data: bytes) -> bool:
    """Whether these bytes are the beginning of an object or a list, and only its end is missing."""
    text = data.decode("utf-8-sig", "replace").strip()
    try:
        json.loads(text)
    except json.JSONDecodeError as wrong:
        # What is wrong is that the text ends: in a string, or after no more than a part of a word.
        ends = wrong.msg.startswith("Unterminated string") or len(text) - wrong.pos < len("false")
        return ends and wrong.msg != "Extra data" and text.startswith(("{", "["))
    except (ValueError, RecursionError):
        pass
    return False


def _mended(value: Json) -> Json:
    match value:
        case str():
            return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        case Mapping():
            return {_mended(str(key)): _mended(item) for key, item in value.items()}
        case list() | tuple():
            return [_mended(item) for item in value]
        case float() if not math.isfinite(value):
            return None  # As orjson writes it: JSON has no such number.
        case _:
            return value
