"""What a tool may return, and what becomes of it (T2).

Any JSON-able value, text, an attrs object or dataclass, or a `ToolResult` when there is more to say: images, or a side-car of raw output. The side-car is
a field of `ToolResult` and nothing else, so no key of a user's own dictionary can be mistaken for it. Scalars stay scalars; but an integer past 64 bits is
its decimal text, as in the journal: few readers of JSON would keep its digits.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
from datetime import date, datetime, time
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID

import attrs
import orjson

from trouper.codec import digits
from trouper.core.messages import Json, Media
from trouper.core.values import frozen
from trouper.tools.errors import ConnectionRequired, InvalidResult, ToolError
from trouper.tools.large import LARGE, LEAVES, detached, weight
from trouper.tools.structure import converter

if TYPE_CHECKING:
    from cattrs import Converter

#: Decoded bytes of one image, and images of one result.
IMAGE_MAX = 5 * 1024 * 1024
IMAGES_MAX = 16
#: How each kind of image begins.
_SIGNATURES: tuple[tuple[str, bytes, int, bytes], ...] = (
    ("image/png", b"\x89PNG\r\n\x1a\n", 0, b""),
    ("image/jpeg", b"\xff\xd8\xff", 0, b""),
    ("image/gif", b"GIF8", 0, b""),
    ("image/webp", b"RIFF", 8, b"WEBP"),
)
IMAGE_TYPES = tuple(kind for kind, *_ in _SIGNATURES)
#: Integers that orjson writes.
_INTEGER_MIN, _INTEGER_MAX = -(1 << 63), (1 << 64) - 1
#: As deep as orjson goes.
_DEPTH_MAX = 254
_OPTIONS = orjson.OPT_PASSTHROUGH_DATACLASS
_LOOSE_OPTIONS = _OPTIONS | orjson.OPT_NON_STR_KEYS


@frozen(frequent=True)
class ToolResult:
    """A result with more to it than a value."""

    #: What the model sees: any JSON value.
    content: Json = None
    #: PNG, JPEG, GIF or WebP, shown to the model next to the content. See `image()`.
    images: tuple[Media, ...] = ()
    #: Kept in full under the session's files, and never shown to the model.
    raw_output: str | None = None
    #: The tool did its work, and what it has to report is a failure: a command with exit status 1.
    is_error: bool = False


def image(data: bytes | str, mime_type: str | None = None) -> Media:
    """An image for a `ToolResult`, from its bytes or its base64 text. The kind is read from the data itself."""
    encoded = data if isinstance(data, str) else base64.b64encode(data).decode("ascii")
    return _checked_image(Media(mime_type or _kind(_decoded(encoded, "image()"), "image()"), data=encoded), "image()")


def is_large(returned: object) -> bool:
    """Whether `as_result` is work for a thread. Text is taken as it is, whatever its size."""
    kind = type(returned)
    return kind is not str and kind not in LEAVES and weight(returned) >= LARGE


def fits_64_bits(number: int) -> bool:
    """Whether orjson writes it."""
    return _INTEGER_MIN <= number <= _INTEGER_MAX


def as_result(returned: object, tool: str, large: bool | None = None) -> ToolResult:
    """What the tool returned, checked and detached from the tool's own objects. `ToolError` and `ConnectionRequired` may be returned as well as raised.

    `large`: what `is_large` says of it, if that is known. The content of a large result of very many parts is its JSON text.
    """
    kind = type(returned)
    if kind is str:
        return ToolResult(_text(returned, tool))  # type: ignore[arg-type]
    if kind is bool or returned is None:
        return ToolResult(returned)
    if kind is int and fits_64_bits(returned):  # type: ignore[arg-type]
        return ToolResult(returned)
    if kind is ToolResult:
        return _checked(returned, tool, large)  # type: ignore[arg-type]
    if isinstance(returned, (ToolError, ConnectionRequired)):
        raise returned
    if isinstance(returned, BaseException):
        raise InvalidResult(
            f"tool {tool!r} returned an exception, {returned!r}; raise it, or return a ToolError", tool=tool
        ) from returned
    return ToolResult(as_json(returned, tool, large))


def as_json(value: object, tool: str, large: bool | None = None) -> Json:
    """`value` as plain JSON, a copy of its own."""
    try:
        if is_large(value) if large is None else large:
            return detached(value, _plain, lambda part: _encoded(part, tool, orjson.OPT_INDENT_2))
        return orjson.loads(_encoded(value, tool))
    except TypeError as error:
        raise InvalidResult(_why_not_json(value, tool, error), tool=tool) from error


def _encoded(value: object, tool: str, options: int = 0) -> bytes:
    try:
        encoded = orjson.dumps(value, _plain, _OPTIONS | options)
    except TypeError:
        try:
            # Keys that are numbers, dates or enum members become text, as `json` does it.
            encoded = orjson.dumps(value, _plain, _LOOSE_OPTIONS | options)
        except TypeError as error:
            if not _is_mendable(error):
                raise
            value = _mended(value, 0)
            encoded = orjson.dumps(value, _plain, _LOOSE_OPTIONS | options)
    # orjson writes null for NaN. Only a walk can tell it from None; most results hold neither.
    if b"null" in encoded and _has_nan(value, 0):
        raise InvalidResult(
            f"tool {tool!r} returned NaN or an infinity, which JSON does not have; return None or text instead",
            tool=tool,
        )
    return encoded


def _plain(value: object) -> Json:
    """One step towards JSON, for what orjson does not know; it comes back for what is inside."""
    if attrs.has(type(value)) or dataclasses.is_dataclass(value):
        return _converter().unstructure(value)
    if isinstance(value, (set, frozenset)):
        # Sorted: the order of a set of texts differs from process to process.
        return sorted(value, key=repr)
    if isinstance(value, tuple):
        return value._asdict() if hasattr(value, "_asdict") else list(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return float(value)  # A class of its own, as numpy's is.
    if callable(dump := getattr(value, "model_dump", None)):  # pydantic's way of saying it
        return dump(mode="json")
    unstructured = _converter().unstructure(value)
    if unstructured is value:
        raise TypeError(f"{type(value).__name__} is not JSON")
    return unstructured


@lru_cache(maxsize=1)
def _converter() -> Converter:
    """The one that builds arguments; values are taken apart for results alone. There a `ToolResult` is no value: its side-car would be told with the rest."""
    made = converter()
    made.register_unstructure_hook(ToolResult, _refuse_within)
    return made


def _refuse_within(result: ToolResult) -> NoReturn:
    raise TypeError("a ToolResult inside a value; return it by itself, with the value as its content")


def _is_mendable(error: TypeError) -> bool:
    """Whether the value is JSON but for what orjson does not write: a lone surrogate, an integer past 64 bits."""
    cause = str(error.__cause__ or error)
    return "surrogates" in cause or "64-bit" in cause


def _mended(value: Any, depth: int) -> Any:
    """`value` with text in place of the integers that are too long, and without lone surrogates: neither is worth losing the result for."""
    if depth > _DEPTH_MAX:
        raise TypeError("it is nested too deeply, or contains itself")
    match value:
        case str():
            return _whole_characters(value)
        case int():
            return value if fits_64_bits(value) else digits(value)
        case float() | None:
            return value
        case dict():
            return {_mended(key, depth + 1): _mended(each, depth + 1) for key, each in value.items()}
        case list():
            return [_mended(each, depth + 1) for each in value]
        case datetime() | date() | time() | UUID():
            return value  # orjson knows them, also as keys.
        case _:
            return _mended(_plain(value), depth + 1)


def _why_not_json(value: object, tool: str, error: TypeError) -> str:
    cause = str(error.__cause__ or error)
    if isinstance(value, (bytes, bytearray)) or "bytes" in cause:
        return f"tool {tool!r} returned bytes; decode them to text, or return ToolResult(images=(image(data),))"
    return (
        f"tool {tool!r} returned a {type(value).__name__} that is not JSON ({cause[:200]}); "
        "return text, numbers, lists, dicts with text keys, an attrs object or a dataclass"
    )


def _has_nan(value: object, depth: int) -> bool:
    if isinstance(value, float):
        return value != value or value in (float("inf"), float("-inf"))
    if value is None or isinstance(value, (str, int)) or depth > _DEPTH_MAX:
        return False
    if isinstance(value, dict):
        return any(_has_nan(each, depth + 1) for pair in value.items() for each in pair)
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(_has_nan(each, depth + 1) for each in value)
    try:
        return _has_nan(_plain(value), depth + 1)
    except TypeError:  # Nothing stands behind it: orjson knows it by itself.
        return False


def _whole_characters(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _text(value: str, tool: str) -> str:
    """Text that can be written as UTF-8. A stray surrogate comes from bytes that were decoded carelessly; it is not worth losing the result for."""
    if value.isascii() or len(value) > LARGE:
        return value  # A long one is looked through when it is cleaned: see `shape_output`.
    try:
        value.encode()
    except UnicodeEncodeError:
        return _whole_characters(value)
    return value


def _checked(result: ToolResult, tool: str, large: bool | None) -> ToolResult:
    if type(result.content) is ToolResult:
        _refuse_nesting(tool)
    # A large result may have a small content: its images or its side-car are the rest.
    content = as_result(result.content, tool, large=None if large else large).content
    if len(result.images) > IMAGES_MAX:
        raise InvalidResult(
            f"tool {tool!r} returned {len(result.images)} images; at most {IMAGES_MAX} are allowed", tool=tool
        )
    images = tuple(_checked_image(each, tool) for each in result.images)
    raw = result.raw_output
    if raw is not None and not isinstance(raw, str):
        raise InvalidResult(
            f"tool {tool!r} returned raw_output of type {type(raw).__name__}; it must be text", tool=tool
        )
    return ToolResult(content, images, None if raw is None else _text(raw, tool), result.is_error)


def _refuse_nesting(tool: str) -> NoReturn:
    raise InvalidResult(f"tool {tool!r} returned a ToolResult inside a ToolResult; return one", tool=tool)


def _checked_image(media: Media, tool: str) -> Media:
    if media.data is None:
        raise InvalidResult(f"tool {tool!r} returned an image without data; make it with image(data)", tool=tool)
    if media.mime_type not in IMAGE_TYPES:
        raise InvalidResult(
            f"tool {tool!r} returned an image of type {media.mime_type!r}; use one of {', '.join(IMAGE_TYPES)}",
            tool=tool,
        )
    if (kind := _kind(_decoded(media.data, tool), tool)) != media.mime_type:
        raise InvalidResult(
            f"tool {tool!r} returned an image said to be {media.mime_type!r} that is {kind!r}; correct its type",
            tool=tool,
        )
    return media


def _decoded(encoded: str, tool: str) -> bytes:
    if len(encoded) > IMAGE_MAX * 4 // 3 + 4:
        raise InvalidResult(
            f"tool {tool!r} returned an image of more than {IMAGE_MAX} bytes; make it smaller", tool=tool
        )
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidResult(
            f"tool {tool!r} returned an image that is not base64 ({error}); make it with image(data)", tool=tool
        ) from error


def _kind(data: bytes, tool: str) -> str:
    for kind, start, offset, mark in _SIGNATURES:
        if data.startswith(start) and data[offset : offset + len(mark)] == mark:
            return kind
    raise InvalidResult(
        f"tool {tool!r} returned an image that is none of {', '.join(IMAGE_TYPES)}; convert it", tool=tool
    )
