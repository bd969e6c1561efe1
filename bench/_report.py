"""How every benchmark prints: one table with absolute figures and the ratio to a rival or limit of the same run, or JSON lines.

rows = [Row("ask round trip", 21.4, "us", "bare trio channels", 30.1)]
print_rows(rows, as_json=arguments.json)
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable

import attrs


@attrs.frozen
class Row:
    name: str
    value: float
    unit: str
    #: What the figure is measured against: another way to do the same, or a limit.
    rival: str
    rival_value: float

    @property
    def ratio(self) -> float:
        return self.value / self.rival_value if self.rival_value else float("inf")


def parse_arguments(
    description: str | None, more: Callable[[argparse.ArgumentParser], None] | None = None
) -> argparse.Namespace:
    """The two options that every benchmark has, and what `more` adds."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--quick", action="store_true", help="fewer repeats: under 30 s")
    if more is not None:
        more(parser)
    return parser.parse_args()


def print_rows(rows: Iterable[Row], *, as_json: bool) -> None:
    rows = list(rows)
    if as_json:
        for row in rows:
            print(json.dumps({**attrs.asdict(row), "ratio": row.ratio}))
        return
    width = max(len(row.name) for row in rows)
    rival_width = max(len(row.rival) for row in rows)
    for row in rows:
        print(
            f"{row.name:<{width}}  {row.value:>12,.2f} {row.unit:<8} {row.rival:<{rival_width}} {row.rival_value:>12,.2f} {row.unit:<8}"
            f" ratio {row.ratio:.2f}"
        )
