"""What is handed out: the source distribution is a checkout that can be tried and tested, as README.md says."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Where somebody may look for what is beside the code; what a working copy has besides (.venv, caches, build/) is nobody's business.
HANDED_OUT = {"src", "tests", "property_tests", "design", "bench", "examples"}


def test_the_source_distribution_has_all_that_readme_and_tests_need() -> None:
    """`make demo` and `make test` are the first two lines of README.md: they need the Makefile."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert set(included) == HANDED_OUT | {"Makefile", "README.md", "CHANGELOG.md", "LICENSE"}
    assert all((ROOT / name).exists() for name in included)
