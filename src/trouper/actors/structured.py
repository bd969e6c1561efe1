"""Structured output: does the final text follow the turn's schema, and does the class that was asked for take what it says?"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from trouper import codec
from trouper._errors import ToolDefinitionError
from trouper.core.messages import Json
from trouper.foreign import Redact, from_outside
from trouper.tools.complaint import clipped
from trouper.tools.validation import compiled

_LONG_NUMBER = re.compile(rb"\d{19}")
_PROBLEMS_SHOWN = 5
_PROBLEM_CHARS = 200


def parsed(text: str) -> Json:
    """The JSON that a reply consists of; a code fence around it is forgiven. Raises `ValueError`."""
    data = _unfenced(text.strip()).strip().encode("utf-8", "replace")
    try:
        value: Json = codec.loads(data)
    except codec.UndecodableRecord as error:
        raise ValueError(str(error)) from None
    if _LONG_NUMBER.search(data) is not None:
        # Read fast, a whole number past 64 bits becomes the nearest float, and then another whole number.
        try:
            return json.loads(data)
        except RecursionError:
            raise ValueError("JSON nested too deep") from None
    return value


def _unfenced(text: str) -> str:
    """What stands between the lines of a code fence, if all of it does."""
    opening, _, rest = text.partition("\n")
    inside, line_end, closing = rest.rpartition("\n")
    if opening.rstrip() in ("```", "```json") and line_end and closing.lstrip() == "```":
        return inside
    return text


def built(text: str, shape: Any) -> Any:
    """What a text that follows the schema of `shape` says: an object, if that is a class. Raises whatever the class does."""
    value = parsed(text)
    if isinstance(shape, Mapping):
        return value
    from trouper.tools.structure import structure_of

    build = structure_of(shape)
    return value if build is None else build(value)


def mismatch(text: str, schema: Mapping[str, Json], shape: Any, redact: Redact) -> str | None:
    """Why `text` is not JSON that follows `schema`, and that the class `shape` makes an object of, in words for the model; `None` if it is.

    Secrets are cut out before the rest is cut: half a secret would not be known as one (I36).
    """
    try:
        value = parsed(text)
    except ValueError as error:
        return f"it is {error}"[:_PROBLEM_CHARS]
    validator = compiled(schema)
    if validator.is_valid(value):
        return None if shape is None else _refusal(text, shape, redact)
    problems = []
    for found in validator.iter_errors(value):
        where = "/".join(str(part) for part in found.instance_path) or "the whole"
        problems.append(redact(f"{where}: {found.message}")[:_PROBLEM_CHARS])
        if len(problems) == _PROBLEMS_SHOWN:
            break
    return "; ".join(problems)


def _refusal(text: str, shape: Any, redact: Redact) -> str | None:
    """What the class says against the values: a date that does not exist, a validator that objects. What it raises for a reason of its own is for its caller alone."""
    from trouper.tools.structure import problems

    try:
        built(text, shape)
    except BaseException as raised:
        if (outside := from_outside(raised)) is not None:
            raise outside from None
        if not isinstance(raised, Exception) or isinstance(raised, ToolDefinitionError):
            return None
        try:
            found = problems(raised, lambda error, _: said_by(error))
        except Exception:  # Its words are foreign too.
            found = [("", said_by(raised))]
        told = [f"{path}: {said}" if path else said for path, said in found[:_PROBLEMS_SHOWN]]
        return f"its values are refused: {'; '.join(clipped(redact(each), _PROBLEM_CHARS) for each in told)}"
    return None


def said_by(error: BaseException) -> str:
    """What the first cause in a group of errors says; or what it is, if it says nothing."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    from trouper.tools.structure import words

    try:
        said = words(error)
    except Exception:  # It is the caller's too.
        said = ""
    return said or type(error).__name__
