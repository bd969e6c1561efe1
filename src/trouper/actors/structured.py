"""Structured output: does the final text follow the turn's schema?"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from trouper import codec
from trouper.core.messages import Json
from trouper.tools.validation import compiled

_FENCED = re.compile(r"\s*```(?:json)?\s*\n(.*)\n\s*```\s*\Z", re.DOTALL)
_LONG_NUMBER = re.compile(rb"\d{19}")
_PROBLEMS_SHOWN = 5
_PROBLEM_CHARS = 200


def parsed(text: str) -> Json:
    """The JSON that a reply consists of; a code fence around it is forgiven. Raises `ValueError`."""
    fenced = _FENCED.match(text)
    data = (fenced[1] if fenced else text).strip().encode("utf-8", "replace")
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


def mismatch(text: str, schema: Mapping[str, Json]) -> str | None:
    """Why `text` is not JSON that follows `schema`, in words for the model; `None` if it is."""
    try:
        value = parsed(text)
    except ValueError as error:
        return f"it is {error}"[:_PROBLEM_CHARS]
    validator = compiled(schema)
    if validator.is_valid(value):
        return None
    problems = []
    for found in validator.iter_errors(value):
        where = "/".join(str(part) for part in found.instance_path) or "the whole"
        problems.append(f"{where}: {found.message}"[:_PROBLEM_CHARS])
        if len(problems) == _PROBLEMS_SHOWN:
            break
    return "; ".join(problems)
