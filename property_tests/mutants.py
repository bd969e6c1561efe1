"""Seeded bugs: each is put into a copy of the sources, and some test or invariant has to catch it. `make mutants` runs them all.

    python property_tests/mutants.py                  every one, two at a time
    python property_tests/mutants.py --only late-result --only budget-overshoot
    python property_tests/mutants.py --list

Replay-equals-live proves determinism, not correctness; this proves that the tests would notice. The list is in `seeded_bugs.py`. A bug counts as caught when a
named test fails or the simulator names a broken invariant: not when the copy cannot be imported or pytest itself fails, and not when a test hangs, for a hang is noticed only
by a test that has a limit of its own (the simulator has one, in virtual time). The unchanged copy has to pass the same tests first.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import attrs

from seeded_bugs import BUGS, Bug

ROOT = Path(__file__).resolve().parent.parent
#: What the tests need of the repository.
COPIED = ("src", "tests", "property_tests", "pyproject.toml")
#: Real seconds for one target; past it the run is killed, and counts as a hang.
LIMIT_S = 180.0
#: The same for all targets together, on the unchanged copy.
HEALTHY_LIMIT_S = 1_200.0
#: The check that it is really the copy that is tested, then the tests.
PYTEST = '''
import pathlib, sys, trouper
assert pathlib.Path(trouper.__file__).is_relative_to(sys.argv[1]), f"{trouper.__file__} is not the copy"
import pytest

class Quick:
    """A failure is all that is asked for: making it small would take minutes. And who is slow has not failed."""

    def pytest_configure(self, config):
        from hypothesis import Phase, settings
        settings.register_profile("mutants", phases=(Phase.explicit, Phase.generate), database=None, deadline=None)
        settings.load_profile("mutants")

sys.exit(pytest.main(sys.argv[2:], plugins=[Quick()]))
'''
SIMULATE = """
import pathlib, sys, trouper
assert pathlib.Path(trouper.__file__).is_relative_to(sys.argv[1]), f"{trouper.__file__} is not the copy"
import importlib
sys.exit(importlib.import_module("trouper.testing.simulation").main(sys.argv[2:]))
"""


@attrs.frozen
class Verdict:
    bug: Bug
    #: "caught", "survived", "stale" or "broken" (the change makes no program).
    what: str
    by: str = ""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()


class Copy:
    """A copy of the sources in a directory of its own, in which one bug at a time is seeded."""

    def __init__(self, parent: Path) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="copy-", dir=parent))
        for name in COPIED:
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", ".hypothesis", "*.pyc")
                shutil.copytree(ROOT / name, self.path / name, ignore=ignored)
            else:
                shutil.copy(ROOT / name, self.path / name)

    def run(self, target: str, *more: str, limit_s: float = LIMIT_S) -> tuple[str, str]:
        """("passed" | "failed" | "broken" | "hung", what failed or the end of the output) of one target, or of several pytest ones."""
        kind, _, seeds = target.partition(" ")
        if kind == "simulate":
            code, arguments = SIMULATE, ["--seeds", seeds]
        else:
            settings = ["-x", "-q", "-rf", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--no-header", "--tb=line"]
            code, arguments = PYTEST, [*settings, target, *more]
        environment = {**os.environ, "PYTHONPATH": str(self.path / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(self.path), *arguments],
            cwd=self.path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return "hung", output[-2_000:]
        if process.returncode == 0:
            return "passed", ""
        # An exit code alone proves nothing: a program that cannot even start has the same. A catch has to be named.
        named = _broken_invariant(output) if kind == "simulate" else _failed_test(output)
        return ("failed", named) if named else ("broken", output[-2_000:])

    def seed(self, bug: Bug) -> str:
        """Put the bug in; returns the file as it was. Raises `ValueError` if its place is not there exactly once."""
        path = self.path / "src" / "trouper" / bug.file
        text = path.read_text()
        if text.count(bug.before) != 1:
            raise ValueError(f"its place occurs {text.count(bug.before)} times in {bug.file}")
        path.write_text(text.replace(bug.before, bug.after))
        return text

    def heal(self, bug: Bug, text: str) -> None:
        (self.path / "src" / "trouper" / bug.file).write_text(text)


def judge(copy: Copy, bug: Bug) -> Verdict:
    begun = time.monotonic()
    try:
        healthy = copy.seed(bug)
    except ValueError as error:
        return Verdict(bug, "stale", notes=(str(error),))
    notes: list[str] = []
    try:
        for target in bug.caught_by:
            what, output = copy.run(target)
            if what == "failed":
                return Verdict(bug, "caught", output, time.monotonic() - begun, tuple(notes))
            if what == "broken":
                return Verdict(bug, "broken", target, time.monotonic() - begun, (output,))
            if what == "hung":
                notes.append(f"{target} hung for {LIMIT_S:.0f} s, which is no catch")
        return Verdict(bug, "survived", "", time.monotonic() - begun, tuple(notes))
    finally:
        copy.heal(bug, healthy)


def _failed_test(output: str) -> str:
    """The test that pytest says has failed; errors of fixtures and of collecting are none."""
    for line in output.splitlines():
        if line.startswith("FAILED ") and "::" in line:
            return line.removeprefix("FAILED ").partition(" - ")[0]
    return ""


def _broken_invariant(output: str) -> str:
    """What the simulator says is broken: the line after `seed N breaks:`."""
    seed, found, rest = output.partition(" breaks:\n")
    return f"simulate, {seed[seed.rindex('seed') :]}: {rest.splitlines()[0].strip()}" if found else ""


def check_healthy(copy: Copy, bugs: list[Bug]) -> str:
    """What the unchanged copy fails, if anything."""
    targets = sorted({target for bug in bugs for target in bug.caught_by})
    simulated = sorted((target for target in targets if target.startswith("simulate ")), key=lambda t: int(t[9:]))
    tested = [target for target in targets if not target.startswith("simulate ")]
    for arguments in [tested] * bool(tested) + [[target] for target in simulated[-1:]]:
        what, output = copy.run(*arguments, limit_s=HEALTHY_LIMIT_S)
        if what != "passed":
            return f"{what}: {' '.join(arguments)}\n{output}"
    return ""


def judge_all(bugs: list[Bug], jobs: int, parent: Path) -> list[Verdict]:
    waiting: queue.SimpleQueue[Bug] = queue.SimpleQueue()
    for bug in bugs:
        waiting.put(bug)
    verdicts: list[Verdict] = []
    lock = threading.Lock()

    def work() -> None:
        copy = Copy(parent)
        while True:
            try:
                bug = waiting.get_nowait()
            except queue.Empty:
                return
            verdict = judge(copy, bug)
            with lock:
                verdicts.append(verdict)
                print(_line(verdict), flush=True)

    workers = [threading.Thread(target=work) for _ in range(max(1, min(jobs, len(bugs))))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return verdicts


def _line(verdict: Verdict) -> str:
    line = f"{verdict.bug.id:<34} {verdict.what:<9} {verdict.seconds:6.1f} s  {verdict.by}"
    return "\n".join((line, *(f"    {note}" for note in verdict.notes)))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Every seeded bug must be caught.")
    parser.add_argument("--only", action="append", metavar="ID", help="this one (may be given several times)")
    parser.add_argument("--list", action="store_true", help="print the list and stop")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default 2)")
    options = parser.parse_args(arguments)
    known = {bug.id: bug for bug in BUGS}
    if unknown := set(options.only or ()) - set(known):
        parser.error(f"there is no seeded bug {sorted(unknown)}; --list shows them")
    bugs = [known[id] for id in options.only] if options.only else list(BUGS)
    if options.list:
        for bug in bugs:
            print(f"{bug.id:<34} {bug.file}: {bug.says}")
        return 0
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="trouper-mutants-") as directory:
        # First of all: tests that fail anyway would "catch" everything.
        problem = check_healthy(Copy(Path(directory)), bugs)
        if problem:
            print(f"the unchanged copy does not pass: mend that first\n{problem}")
            return 1
        print(f"the unchanged copy passes ({time.monotonic() - begun:.0f} s)\n", flush=True)
        verdicts = judge_all(bugs, options.jobs, Path(directory))
    escaped = [verdict.bug.id for verdict in verdicts if verdict.what != "caught"]
    print(f"\n{len(verdicts) - len(escaped)} of {len(verdicts)} seeded bugs caught, {time.monotonic() - begun:.0f} s")
    if escaped:
        print(f"not caught: {', '.join(sorted(escaped))}")
    return 1 if escaped else 0


if __name__ == "__main__":
    sys.exit(main())
