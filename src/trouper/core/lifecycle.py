"""A lifecycle is one enum and one table: `{(state, event type): next state}`. `None` as state means that the thing is not there yet.

The table is the law (`move` refuses whatever it does not list) and also the picture: the diagrams in the docs are drawn from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, TypeAlias, TypeVar

from trouper._errors import InternalError

S = TypeVar("S", bound=Enum)
Table: TypeAlias = Mapping[tuple[S | None, type[Any]], S]


def move(table: Table[S], state: S | None, event: object) -> S:
    """Where `event` leads from `state`. `decide` never makes an event without a move, so a missing one is our fault or a damaged journal."""
    try:
        return table[state, type(event)]
    except KeyError:
        shown = "nothing" if state is None else state.value
        raise InternalError(
            f"{type(event).__name__} has no move from {shown!r}; please report it with the journal",
            state=state,
            event=event,
        ) from None


def terminal_states(table: Table[S], states: Iterable[S]) -> frozenset[S]:
    """The states that nothing leads out of, but back to themselves."""
    left = {source for (source, _), target in table.items() if source is not target}
    return frozenset(state for state in states if state not in left)


def draw_mermaid(table: Table[S]) -> str:
    """The table as a Mermaid state diagram. Moves between the same two states share an arrow; events that move nothing are left out."""
    lines = ["stateDiagram-v2"]
    for (source, target), events in _arrows(table).items():
        if source != target:
            lines.append(f"    {source} --> {target}: {', '.join(events)}")
    targets = tuple(dict.fromkeys(table.values()))
    lines += [f"    {state.value} --> [*]" for state in targets if state in terminal_states(table, targets)]
    return "\n".join(lines) + "\n"


def draw_table(table: Table[S]) -> str:
    """The table as plain text: from, event, to; one move a line, in the order in which it is written."""
    rows = [("from", "event", "to")]
    rows += [
        ("-" if source is None else source.value, event.__name__, target.value)
        for (source, event), target in table.items()
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines) + "\n"


def _arrows(table: Table[S]) -> dict[tuple[str, str], list[str]]:
    arrows: dict[tuple[str, str], list[str]] = {}
    for (source, event), target in table.items():
        arrows.setdefault(("[*]" if source is None else source.value, target.value), []).append(event.__name__)
    return arrows
