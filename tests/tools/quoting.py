"""Classes that name others, and themselves, in quotes inside their annotations: as one writes them where not all annotations are text."""

import dataclasses
from datetime import date
from decimal import Decimal
from typing import Literal, Optional

import attrs


@dataclasses.dataclass
class Tree:
    name: str
    children: list["Tree"] = dataclasses.field(default_factory=list)


@attrs.frozen
class Chain:
    day: date
    next: Optional["Chain"] = None


@attrs.frozen
class Menu:
    _hidden: dict[str, "Dish"]
    kind: Literal["list", "Dish"] = "list"


@dataclasses.dataclass
class Dish:
    price: Decimal
