"""Figures of one run side by side: who is the fastest rival, by how much, and which goals are met."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from environments import FLOOR, OURS

EQUAL = 1.30  # figures move by 30 % from run to run: a smaller difference is none


@dataclass(frozen=True)
class Goal:
    """`limit` gives the figure not to exceed (or to reach), or None when what it compares with was not measured."""

    text: str
    limit: Callable[[Row], float | None]
    of: str = "value"  # "value", or "p99"


@dataclass(frozen=True)
class Work:
    name: str
    title: str
    unit: str
    goals: tuple[Goal, ...] = ()
    more_is_better: bool = False


@dataclass(frozen=True)
class Figure:
    value: float | None
    note: str = ""
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    work: Work
    figures: dict[str, Figure]
    others: dict[str, Row]  # rows of other works, for goals that compare two

    def value(self, peer: str) -> float | None:
        figure = self.figures.get(peer)
        return figure.value if figure else None

    @property
    def ours(self) -> float | None:
        return self.value(OURS)

    @property
    def floor(self) -> float | None:
        return self.value(FLOOR)

    @property
    def rivals(self) -> dict[str, float]:
        """The other frameworks' values, best first."""
        known = {
            peer: figure.value
            for peer, figure in self.figures.items()
            if peer not in (OURS, FLOOR) and figure.value is not None
        }
        return dict(sorted(known.items(), key=lambda item: item[1], reverse=self.work.more_is_better))

    @property
    def best_rival(self) -> tuple[str, float] | None:
        return next(iter(self.rivals.items()), None)

    def advantage(self, ours: float, other: float) -> float:
        """How many times better ours is than the other."""
        return ours / other if self.work.more_is_better else other / ours

    def verdict(self) -> str:
        if self.ours is None or not self.best_rival:
            return "-"
        name, value = self.best_rival
        times = self.advantage(self.ours, value)
        if 1 / EQUAL < times < EQUAL:
            return f"equal to {name}"
        return f"{times:.1f}x better than {name}" if times > 1 else f"{1 / times:.1f}x worse than {name}"

    def goals(self) -> list[dict[str, Any]]:
        results = []
        for goal in self.work.goals:
            ours = self.figures.get(OURS)
            got = None if ours is None else ours.value if goal.of == "value" else ours.details.get(goal.of)
            limit = goal.limit(self)
            met = None
            if got is not None and limit is not None:
                met = got >= limit if self.work.more_is_better else got <= limit
            results.append({"goal": goal.text, "limit": limit, "met": met})
        return results


def _of_rival(share: float) -> Callable[[Row], float | None]:
    return lambda row: row.best_rival[1] * share if row.best_rival else None


def _of_floor(times: float) -> Callable[[Row], float | None]:
    return lambda row: row.floor * times if row.floor is not None else None


def _fixed(limit: float) -> Callable[[Row], float | None]:
    return lambda row: limit


def _of_first_turns(times: float) -> Callable[[Row], float | None]:
    def limit(row: Row) -> float | None:
        fresh = row.others.get("text_turn")
        return fresh.ours * times if fresh and fresh.ours is not None else None

    return limit


_INTERRUPT = (Goal("median <= 0.5 ms", _fixed(0.5)), Goal("p99 <= 2 ms", _fixed(2.0), of="p99"))
_DURABLE = (Goal("1/6 of the best rival", _of_rival(1 / 6)), Goal("1.3x the floor", _of_floor(1.3)))
WORKS = (
    Work("text_turn", "text turn, 20 deltas", "ms", (Goal("1/5 of the best rival", _of_rival(1 / 5)),)),
    Work(
        "text_after_100",
        "the same after 100 turns",
        "ms",
        (Goal("1.1x our first turns", _of_first_turns(1.1)),),
    ),
    Work(
        "tool_step",
        "tool step (turn of 10 / 10)",
        "ms",
        (Goal("1/15 of the best rival", _of_rival(1 / 15)), Goal("3x the floor", _of_floor(3))),
    ),
    Work("parallel_tools", "10 parallel tools, over 10 ms", "ms", (Goal("<= 2 ms", _fixed(2.0)),)),
    Work(
        "sessions_at_once", "sessions at once, a tool turn each", "turns/s", (Goal(">= 2,000/s", _fixed(2000)),), True
    ),
    Work("memory_a_session", "memory a session", "KiB", (Goal("<= 25 KiB", _fixed(25)),)),
    Work("durable_tool_step", "durable tool step, on disk", "ms", _DURABLE),
    Work("durable_effect_step", "the same, tool with effects", "ms", _DURABLE),
    Work("interrupt_in_stream", "interrupt in a stream", "ms", _INTERRUPT),
    Work("interrupt_in_tool", "interrupt in a tool", "ms", _INTERRUPT),
    Work("first_turn", "import + first turn", "s", (Goal("<= 0.3 s", _fixed(0.3)),)),
    Work("installed_size", "installed, base", "MB"),
)


def rows(figures: dict[str, dict[str, Figure]]) -> list[Row]:
    """`figures` by work, then by framework."""
    built: dict[str, Row] = {}
    for work in WORKS:
        if work.name in figures:
            built[work.name] = Row(work, figures[work.name], built)
    return list(built.values())


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def _goal_text(result: dict[str, Any]) -> str:
    state = {True: "met", False: "MISSED", None: "?"}[result["met"]]
    return f"{result['goal']}: {state}"


def render(table: Iterable[Row], peers: list[str]) -> str:
    head = ["work", "unit", *peers, "ours against the best rival", "goal"]
    lines = [head]
    for row in table:
        cells = [_number(row.value(peer)) for peer in peers]
        goals = "; ".join(_goal_text(result) for result in row.goals()) or "-"
        lines.append([row.work.title, row.work.unit, *cells, row.verdict(), goals])
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    numeric = range(2, 2 + len(peers))
    text = [
        "  ".join(c.rjust(widths[i]) if i in numeric else c.ljust(widths[i]) for i, c in enumerate(line)).rstrip()
        for line in lines
    ]
    text.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(text)


def notes(table: Iterable[Row]) -> list[str]:
    return [
        f"{row.work.title}, {peer}: {figure.note}"
        for row in table
        for peer, figure in row.figures.items()
        if figure.note
    ]


def as_json(row: Row) -> dict[str, Any]:
    rival, rival_value = row.best_rival or (None, None)
    ratio = row.ours / rival_value if row.ours is not None and rival_value else None
    return {
        "name": row.work.name,
        "value": row.ours,
        "unit": row.work.unit,
        "rival": rival,
        "rival_value": rival_value,
        "ratio": ratio,
        "verdict": row.verdict(),
        "more_is_better": row.work.more_is_better,
        "title": row.work.title,
        "peers": {peer: figure.value for peer, figure in row.figures.items()},
        "details": {peer: figure.details for peer, figure in row.figures.items() if figure.details},
        "goals": row.goals(),
    }
