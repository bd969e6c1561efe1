"""Arguments that a simulated model makes up from a tool's schema."""

from __future__ import annotations

import random
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict
from uuid import UUID

import attrs
import pytest

from trouper.testing.fitting import fitting
from trouper.tools import Param, Tool, tool


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


@attrs.frozen
class Node:
    value: int
    next: Node | None = None
    others: list[Node] = attrs.field(factory=list)


class Order(TypedDict):
    size: Size
    when: NotRequired[datetime]


@tool
async def numbers(
    a: Annotated[int, Param(ge=3)],
    b: Annotated[int, Param(gt=-9, lt=-7)],
    c: Annotated[int, Param(le=-50, multiple_of=7)],
    d: Annotated[float, Param(gt=0, le=1)],
    e: float = 0.0,
    f: Annotated[float, Param(gt=0, lt=0.2)] = 0.1,
    g: Annotated[int, Param(gt=3, ge=1, le=9, lt=6)] = 4,
    h: Decimal = Decimal(0),
) -> None:
    """Numbers in bounds."""


@tool
async def texts(
    a: Annotated[str, Param(min_length=3, max_length=5)], b: date, c: UUID, d: Path, e: Literal["x", 1, None] = "x"
) -> None:
    """Texts of some form."""


@tool
async def parts(
    a: Node,
    b: Order,
    c: Annotated[list[int], Param(min_length=2, max_length=2)],
    d: tuple[int, str],
    e: dict[str, bool],
    f: dict[Size, int],
    g: set[int] | None = None,
    h: Any = None,
    i: Annotated[set[Size], Param(min_length=2)] | None = None,
    j: Annotated[frozenset[int], Param(min_length=3)] = frozenset(),
) -> None:
    """Classes, lists and objects."""


@tool
async def nothing() -> None:
    """No parameters."""


@pytest.mark.parametrize("each", [numbers, texts, parts, nothing], ids=lambda each: each.name)
def test_what_is_made_up_fits_its_schema(each: Tool) -> None:
    """T1: whatever an annotation says, but for patterns."""
    made = [fitting(each.parameters, random.Random(seed)) for seed in range(300)]
    for arguments in made:
        prepared = each.prepare(arguments)
        assert prepared.arguments == arguments and prepared.notes == ()
    assert each is nothing or len({str(arguments) for arguments in made}) > 20


def test_the_same_seed_makes_up_the_same() -> None:
    assert fitting(parts.parameters, random.Random(7)) == fitting(parts.parameters, random.Random(7))
