"""add, subtract, multiply, divide. Whole numbers stay whole; a result that JSON cannot carry exactly or at all is an error, never a rounded zero."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from trouper.core.messages import Json
from trouper.tools.context import ToolContext
from trouper.tools.contract import Hints, Tool
from trouper.tools.errors import ToolError
from trouper.tools.results import fits_64_bits

Number = int | float


def _add(a: Number, b: Number) -> Number:
    """Add two numbers.

    Errors: a result beyond what a 64-bit integer or a double can hold.
    """
    return a + b


def _subtract(a: Number, b: Number) -> Number:
    """Subtract b from a.

    Errors: a result beyond what a 64-bit integer or a double can hold.
    """
    return a - b


def _multiply(a: Number, b: Number) -> Number:
    """Multiply two numbers.

    Errors: a result beyond what a 64-bit integer or a double can hold.
    """
    return a * b


def _divide(a: Number, b: Number) -> Number:
    """Divide a by b.

    Errors: division by zero; a result beyond what a double can hold.
    """
    if b == 0:
        raise ToolError(f"cannot divide {a} by zero; give a divisor other than 0")
    if isinstance(a, int) and isinstance(b, int) and a % b == 0:
        return a // b
    return a / b


def _arithmetic(name: str, function: Callable[[Number, Number], Number], first: str, second: str) -> Tool:
    async def invoke(arguments: dict[str, Json], context: ToolContext) -> object:
        a, b = _finite(arguments["a"], "a"), _finite(arguments["b"], "b")
        try:
            result = function(a, b)
        except OverflowError:
            result = math.inf
        return {"result": _bounded(result, name)}

    doc = function.__doc__ or ""
    return Tool(
        name=name,
        description=doc.split("\n\n")[0],
        parameters={
            "type": "object",
            "properties": {
                "a": {"type": "number", "description": first},
                "b": {"type": "number", "description": second},
            },
            "required": ["a", "b"],
            "additionalProperties": False,
        },
        invoke=invoke,
        hints=Hints(readonly=True, open_world=False),
        function=function,
    )


def _finite(value: Any, name: str) -> Number:
    # Whole numbers of any length are JSON too; past 64 bits they would not come back as they went.
    if isinstance(value, int) and not fits_64_bits(value):
        raise ToolError(f"{name!r} is beyond 64 bits; write it with an exponent, as in 1e20")
    if not math.isfinite(value):
        raise ToolError(f"{name!r} is not a finite number; give one")
    return value  # type: ignore[no-any-return]


def _bounded(result: Number, name: str) -> Number:
    if isinstance(result, int) and not fits_64_bits(result):
        result = float(result)
    if not math.isfinite(result):
        raise ToolError(f"the result of {name!r} is too large for a double; use smaller numbers")
    return result


add = _arithmetic("add", _add, "The first number", "The second number")
subtract = _arithmetic("subtract", _subtract, "The number to subtract from", "The number to subtract")
multiply = _arithmetic("multiply", _multiply, "The first number", "The second number")
divide = _arithmetic("divide", _divide, "The number to divide", "The number to divide by")
