"""Trouper beside pydantic-ai, openai-agents, google-adk and langgraph: the same work, in one run.

    .venv/bin/python bench/peers/run.py              # full: 5 interleaved repeats, some minutes
    .venv/bin/python bench/peers/run.py --quick      # smoke: one repeat, small counts; the figures are noise
    .venv/bin/python bench/peers/run.py --only text_turn,openai-agents

Each framework runs in an environment of its own under `.envs/`, with a fake model inside the process and without the
network. README.md says what each work is and what was done to be fair.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from environments import ENVIRONMENTS, FLOOR, HERE, OURS, PLOT
from table import WORKS, Figure, Row, as_json, notes, render, rows

OUT = HERE / "out"
REPEATS = 5
# What a driver does by itself; `first_turn` comes with every run of it, and the memory with the sessions.
DRIVEN = (
    "sessions_at_once",
    "text_turn",
    "text_after_100",
    "tool_step",
    "parallel_tools",
    "durable_tool_step",
    "durable_effect_step",
    "interrupt_in_stream",
    "interrupt_in_tool",
)
TIME_LIMIT_S = 900
# Nothing else of the caller's environment reaches a driver: no key, no tracing switch, no exporter.
PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="one repeat with small counts, under 30 s")
    parser.add_argument("--json", action="store_true", help="print one object per work instead of the table")
    parser.add_argument("--only", default="", help="comma-separated names of works and frameworks")
    parser.add_argument("--repeats", type=int, help=f"interleaved repeats (default {REPEATS}, quick 1)")
    parser.add_argument("--fresh", action="store_true", help="make the environments anew, with today's versions")
    parser.add_argument("--no-plot", action="store_true", help="do not draw out/peers.png")
    options = parser.parse_args()
    names = [name for name in options.only.split(",") if name]
    known = [*ENVIRONMENTS, *(work.name for work in WORKS)]
    for name in names:
        if name not in known:
            parser.error(f"--only {name!r} is neither a work nor a framework; choose among {', '.join(known)}")
    options.peers = [name for name in ENVIRONMENTS if name in names] or list(ENVIRONMENTS)
    options.works = [work.name for work in WORKS if work.name in names] or [work.name for work in WORKS]
    options.repeats = options.repeats or (1 if options.quick else REPEATS)
    return options


def drive(peer: str, works: list[str], quick: bool) -> Iterator[dict[str, Any]]:
    """Run one framework's works in a fresh process; yields what it reports, with the time to its first turn."""
    driver = HERE / f"driver_{peer.replace('-', '_')}.py"
    command = [str(ENVIRONMENTS[peer].python), str(driver), json.dumps({"works": works, "quick": quick})]
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    with tempfile.TemporaryFile("w+") as errors:
        started = perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as process:
            assert process.stdout is not None
            watchdog = threading.Timer(TIME_LIMIT_S, process.kill)  # a driver that hangs says nothing more by itself
            watchdog.start()
            try:
                for line in process.stdout:
                    seconds = perf_counter() - started
                    report = json.loads(line)
                    if report.get("done"):
                        report = {"work": "first_turn", "value": seconds, "unit": "s"}
                    yield report
            finally:
                watchdog.cancel()
        if process.returncode:
            errors.seek(0)
            last = errors.read().strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
            yield {"work": None, "failed": last[0]}


class Collected:
    """What every repeat reported, by work and framework."""

    def __init__(self) -> None:
        self.reports: dict[str, dict[str, list[dict[str, Any]]]] = {}
        self.skipped: dict[tuple[str, str], str] = {}
        self.failed: dict[tuple[str, str], str] = {}
        self.versions: dict[str, dict[str, str]] = {}

    def add(self, peer: str, report: dict[str, Any]) -> None:
        if "versions" in report:
            self.versions[peer] = report["versions"]
        elif "skipped" in report:
            self.skipped[report["work"], peer] = report["skipped"]
        elif "failed" in report:
            self.failed[report["work"] or "first_turn", peer] = report["failed"]
        else:
            self.reports.setdefault(report["work"], {}).setdefault(peer, []).append(report)

    def figure(self, work: str, peer: str) -> Figure:
        if (why := self.failed.get((work, peer))) is not None:
            return Figure(None, f"FAILED: {why}")
        if (why := self.skipped.get((work, peer))) is not None:
            return Figure(None, why)
        reports = self.reports.get(work, {}).get(peer)
        if not reports:
            return Figure(None)
        details: dict[str, Any] = {"repeats": [report["value"] for report in reports]}
        note = ""
        if "p99" in reports[0]:
            details["p99"] = median(report["p99"] for report in reports)
            details["stopped_share"] = min(report["stopped_share"] for report in reports)
            note = f"{reports[0]['way']}; p99 {details['p99']:.2f} ms"
            if details["stopped_share"] < 1:
                note += f"; the work had not stopped in {1 - details['stopped_share']:.0%} of the turns"
        elif "way" in reports[0]:
            note = reports[0]["way"]
        elif "sessions" in reports[0]:
            details["sessions"] = reports[0]["sessions"]
        return Figure(median(report["value"] for report in reports), note, details)

    def table(self, works: list[str], peers: list[str]) -> list[Row]:
        figures = {
            work: {peer: self.figure(work, peer) for peer in peers} for work in works if work != "installed_size"
        }
        if "installed_size" in works:
            figures["installed_size"] = {}
            for peer in peers:
                megabytes, packages = ENVIRONMENTS[peer].weight()
                figures["installed_size"][peer] = Figure(megabytes, f"{packages} packages", {"packages": packages})
        return rows(figures)


def collect(options: argparse.Namespace) -> Collected:
    collected = Collected()
    wanted = set(options.works) | ({"sessions_at_once"} if "memory_a_session" in options.works else set())
    driven = [work for work in DRIVEN if work in wanted]
    if not driven and "first_turn" not in options.works:
        return collected
    for peer in options.peers:
        # A start that does not count: compiled caches and the disk's are filled for everyone, as they are for users.
        for _ in drive(peer, [], options.quick):
            pass
    for repeat in range(options.repeats):
        # Each repeat begins with another framework, so that none always runs after the same neighbour.
        turn = repeat % len(options.peers)
        for peer in options.peers[turn:] + options.peers[:turn]:
            print(f"repeat {repeat + 1}/{options.repeats}: {peer}", file=sys.stderr, flush=True)
            for report in drive(peer, driven, options.quick):
                collected.add(peer, report)
    return collected


def main() -> int:
    options = arguments()
    for peer in options.peers:
        ENVIRONMENTS[peer].make(fresh=options.fresh)
    if not options.no_plot:
        PLOT.make(fresh=options.fresh)
    OUT.mkdir(exist_ok=True)
    collected = collect(options)
    table = collected.table(options.works, options.peers)
    found = [as_json(row) for row in table]
    about = {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "repeats": options.repeats,
        "quick": options.quick,
        "ours": OURS,
        "floor": FLOOR,
        "versions": collected.versions,
    }
    result = OUT / "peers.json"
    result.write_text(json.dumps({**about, "works": found}, indent=1))
    if options.json:
        for line in found:
            print(json.dumps(line))
    else:
        _print_table(options, about, table)
    if not options.no_plot:
        subprocess.run([str(PLOT.python), str(HERE / "plot.py"), str(result), str(OUT / "peers.png")], check=True)
    for (work, peer), why in collected.failed.items():
        print(f"{peer} failed in {work}: {why}", file=sys.stderr)
    return 1 if collected.failed else 0


def _print_table(options: argparse.Namespace, about: dict[str, Any], table: list[Row]) -> None:
    print(f"Python {about['python']}, {about['machine']}; {options.repeats} interleaved repeats, medians")
    if options.quick:
        print("--quick: small counts and one repeat; good for seeing that all of it runs, not for comparing")
    for peer, versions in about["versions"].items():
        print(f"  {peer}: {', '.join(f'{name} {version}' for name, version in versions.items())}")
    print()
    print(render(table, options.peers))
    print("\nA difference under 30 % is called equal. Notes:")
    for note in notes(table):
        print(f"  {note}")
    if not options.no_plot:
        print(f"\nplot: {Path(os.path.relpath(OUT / 'peers.png'))}")


if __name__ == "__main__":
    raise SystemExit(main())
