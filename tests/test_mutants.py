"""The list of seeded bugs cannot rot: each still has its one place in the sources, and the tests that are to catch it are there. `make mutants` runs them."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src" / "trouper"


def _loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "property_tests" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


BUGS = _loaded("seeded_bugs").BUGS
mutants = _loaded("mutants")


def test_there_are_enough_bugs_and_each_has_a_name_of_its_own() -> None:
    ids = [bug.id for bug in BUGS]
    assert len(ids) >= 32 and len(set(ids)) == len(ids)
    assert {bug.file.split("/")[0] for bug in BUGS} >= {"core", "actors"}
    assert sum(bug.file.startswith(("core/", "actors/")) for bug in BUGS) >= 25


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_a_bug_has_its_one_place_and_still_makes_a_program(bug) -> None:
    text = (SOURCES / bug.file).read_text()
    assert text.count(bug.before) == 1, f"{bug.id}: its place occurs {text.count(bug.before)} times in {bug.file}"
    assert bug.before != bug.after and bug.says
    seeded = ast.parse(text.replace(bug.before, bug.after))
    assert ast.dump(seeded) != ast.dump(ast.parse(text)), f"{bug.id} changes nothing"


def _targets() -> list[str]:
    return sorted({target for bug in BUGS for target in bug.caught_by})


@pytest.mark.parametrize("target", _targets())
def test_what_is_to_catch_a_bug_is_there(target: str) -> None:
    if target.startswith("simulate "):
        assert int(target.removeprefix("simulate ")) > 0
        return
    path, _, test = target.partition("::")
    assert (ROOT / path).is_file(), f"{path} is gone"
    if test:
        assert f"def {test.partition('[')[0]}(" in (ROOT / path).read_text(), f"{target} is gone"


def test_every_bug_names_what_catches_it() -> None:
    assert all(bug.caught_by for bug in BUGS)


@pytest.mark.parametrize(
    ("output", "named"),
    [
        ("F\nFAILED tests/a.py::test_b[c d] - assert 1 == 2\n", "tests/a.py::test_b[c d]"),
        ("ERROR tests/a.py - ImportError: no\n", ""),
        ("FAILED to start\n", ""),
        ("Traceback (most recent call last):\nNameError: name 'x'\n", ""),
        ("", ""),
    ],
)
def test_only_a_named_test_is_a_catch(output: str, named: str) -> None:
    """A program that cannot even start ends with the same exit code as a failed test."""
    assert mutants._failed_test(output) == named


def test_only_a_named_invariant_is_a_catch() -> None:
    assert mutants._broken_invariant("12 seeds hold\nseed 13 breaks:\n  I4: it ran twice\nthe story:\n") == (
        "simulate, seed 13: I4: it ran twice"
    )
    assert mutants._broken_invariant("Traceback\nKeyError: 'seed'\n") == ""
