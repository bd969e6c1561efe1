"""Sums in plain English for the simulated model: found, read, and worked out one operation at a time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

from attrs import frozen

Number: TypeAlias = int | float
Tree: TypeAlias = "Number | tuple[str, Tree, Tree]"
TOOLS = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide"}

_WORDS = (
    (re.compile(r"\bplus\b", re.IGNORECASE), "+"),
    (re.compile(r"\bminus\b", re.IGNORECASE), "-"),
    (re.compile(r"\b(?:times|multiplied\s+by)\b|[x×](?=\s*\d)", re.IGNORECASE), "*"),
    (re.compile(r"\b(?:divided\s+by|over)\b|÷", re.IGNORECASE), "/"),
)
_SUM = re.compile(r"[(\s]*-?\s*\d[\d.\s()+*/-]*")
_TOKEN = re.compile(r"\s*(\d+(?:\.\d+)?|[()+*/-])")
#: Longer than anybody types, and short enough to read by recursion.
_TEXT_MAX = 400
_DEPTH_MAX = 50


@frozen
class Operation:
    tool: str
    sign: str
    a: Number
    b: Number

    def __str__(self) -> str:
        return f"{shown(self.a)} {self.sign} {shown(self.b)}"


@frozen
class Sum:
    text: str
    tree: Tree

    def value(self) -> Number:
        """Worked out in the head."""
        return _value(self.tree)


def parse_sum(text: str) -> Sum | None:
    """The first sum in `text` that has at least one operation."""
    for pattern, sign in _WORDS:
        text = pattern.sub(f" {sign} ", text)
    for found in _SUM.finditer(text):
        candidate = found[0].strip()
        while candidate and len(candidate) <= _TEXT_MAX:
            tokens = _TOKEN.findall(candidate)
            try:
                tree, rest = _expression(tokens, 0, 0)
            except (IndexError, ValueError):
                tree, rest = 0, 0
            if rest and rest == len(tokens) and isinstance(tree, tuple):
                return Sum(" ".join(candidate.split()), tree)
            # A full stop, a bracket of the sentence or a dash may hang on to either end.
            candidate = candidate[:-1].rstrip() if candidate[-1] in "().+-*/ " else ""
    return None


def _expression(tokens: Sequence[str], at: int, depth: int) -> tuple[Tree, int]:
    left, at = _product(tokens, at, depth)
    while at < len(tokens) and tokens[at] in "+-":
        right, after = _product(tokens, at + 1, depth)
        left, at = (tokens[at], left, right), after
    return left, at


def _product(tokens: Sequence[str], at: int, depth: int) -> tuple[Tree, int]:
    left, at = _atom(tokens, at, depth)
    while at < len(tokens) and tokens[at] in "*/":
        right, after = _atom(tokens, at + 1, depth)
        left, at = (tokens[at], left, right), after
    return left, at


def _atom(tokens: Sequence[str], at: int, depth: int) -> tuple[Tree, int]:
    if depth > _DEPTH_MAX:
        raise ValueError("too deep")
    token = tokens[at]
    if token == "(":
        inner, at = _expression(tokens, at + 1, depth + 1)
        if tokens[at] != ")":
            raise ValueError("a bracket is open")
        return inner, at + 1
    if token == "-":
        inner, at = _atom(tokens, at + 1, depth + 1)
        return (-inner if isinstance(inner, int | float) else ("-", 0, inner)), at
    return (float(token) if "." in token else int(token)), at + 1


def next_operation(wanted: Sum, results: Sequence[Number]) -> tuple[Operation | None, Number]:
    """The first operation, in order of evaluation, that has no result yet; or none, and the value of the whole."""
    given = iter(results)

    def walk(tree: Tree) -> Number | Operation:
        if not isinstance(tree, tuple):
            return tree
        sign, first, second = tree
        a = walk(first)
        if isinstance(a, Operation):
            return a
        b = walk(second)
        if isinstance(b, Operation):
            return b
        known = next(given, None)
        return Operation(TOOLS[sign], sign, a, b) if known is None else known

    found = walk(wanted.tree)
    return (found, 0) if isinstance(found, Operation) else (None, found)


def _value(tree: Tree) -> Number:
    if not isinstance(tree, tuple):
        return tree
    sign, first, second = tree
    a, b = _value(first), _value(second)
    match sign:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case _:
            return a / b


def shown(number: Number) -> str:
    """Without a fraction that says nothing."""
    return str(int(number)) if isinstance(number, float) and number.is_integer() and abs(number) < 1e15 else str(number)
