"""Draws the ratios of one run: `plot.py peers.json peers.png`. Runs in an environment of its own, with matplotlib."""

from __future__ import annotations

import json
import sys

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter, NullFormatter

COLOURS = {
    "pydantic-ai": "#d1495b",
    "openai-agents": "#2e8b6f",
    "google-adk": "#3a6ea5",
    "langgraph": "#e0a030",
}
MARKERS = {"pydantic-ai": "o", "openai-agents": "s", "google-adk": "^", "langgraph": "D"}


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main(source: str, target: str) -> None:
    with open(source) as file:
        run = json.load(file)
    ours, floor = run["ours"], run["floor"]
    works = []
    for work in run["works"]:
        # Without figures of our own the best rival is the measure, so that a partial run can still be looked at.
        measure = work["peers"].get(ours) or work["rival_value"]
        if measure:
            works.append((work, measure))
    against_ours = any(work["peers"].get(ours) for work, _ in works)
    figure, axes = plt.subplots(figsize=(11, 1.6 + 0.52 * len(works)))
    seen = set()
    for place, (work, measure) in enumerate(reversed(works)):
        axes.axhline(place, color="#e6e6e6", linewidth=1, zorder=0)
        for peer, value in work["peers"].items():
            if not value or (peer == ours and against_ours):
                continue
            cost = measure / value if work["more_is_better"] else value / measure
            label = None if peer in seen else ("floor (bare trio)" if peer == floor else peer)
            seen.add(peer)
            if peer == floor:
                axes.plot(cost, place, "|", color="#555555", markersize=15, markeredgewidth=2, label=label)
            else:
                colour, marker = COLOURS.get(peer, "#888888"), MARKERS.get(peer, "o")
                axes.plot(cost, place, marker, color=colour, markersize=8, alpha=0.9, label=label)
    axes.axvline(1, color="#222222", linewidth=1.5, zorder=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}x"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(range(len(works)))
    axes.set_yticklabels(
        [
            f"{work['title']}\n{'Trouper' if against_ours else 'best'}: {_number(m)} {work['unit']}"
            for work, m in reversed(works)
        ],
        fontsize=8.5,
    )
    axes.set_ylim(-0.6, len(works) - 0.4)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"cost relative to {'Trouper' if against_ours else 'the best rival'} (log scale; right is worse)")
    versions = ", ".join(
        f"{peer} {next(iter(found.values()))}" for peer, found in run["versions"].items() if peer not in (ours, floor)
    )
    kind = "quick run, one repeat: not for comparing" if run["quick"] else f"median of {run['repeats']} repeats"
    axes.set_title(
        f"The same work, fake models in the process; {kind}\n{versions}; {run['machine']}", fontsize=9, loc="left"
    )
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.1 - 0.35 / len(works)), ncols=5, frameon=False, fontsize=9)
    figure.savefig(target, dpi=150, bbox_inches="tight")


if __name__ == "__main__":
    main(*sys.argv[1:])
