"""The pages of design/ agree with the code: the picture of the tree, the list of invariants, the links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import trouper
from trouper.docs import stale

ROOT = Path(__file__).parents[1]
DESIGN = ROOT / "design"
PAGES = [ROOT / "README.md", *sorted(DESIGN.rglob("*.md"))]


def test_the_picture_of_the_tree_is_complete() -> None:
    page = (DESIGN / "ARCHITECTURE.md").read_text()
    picture = page[page.index("src/trouper/\n") : page.index("```", page.index("src/trouper/\n"))]
    drawn = {name.rstrip("/") for name in re.findall(r"^  ([\w./]+)", picture, re.MULTILINE)}
    there = {path.name for path in (ROOT / "src" / "trouper").iterdir() if path.name != "__pycache__"}
    assert drawn == there


def test_the_map_in_the_package_is_that_of_the_page() -> None:
    page = (DESIGN / "ARCHITECTURE.md").read_text()
    picture = page[page.index("src/trouper/\n") : page.index("```", page.index("src/trouper/\n"))]
    assert trouper.__doc__ is not None
    mapped = re.findall(r"^    ([\w./]+)  ", trouper.__doc__, re.MULTILINE)
    drawn = re.findall(r"^  ([\w./]+)", picture, re.MULTILINE)
    assert mapped == [name for name in drawn if name not in ("__init__.py", "py.typed")]


def test_every_invariant_is_listed_with_tests_that_cite_it() -> None:
    page = (DESIGN / "INVARIANTS.md").read_text()
    rows = re.findall(r"^\| (I\d+) \|.*\|$", page, re.MULTILINE)
    assert rows == [f"I{number}" for number in range(1, 37)]
    for row in re.findall(r"^\| I\d+ \|.*\|$", page, re.MULTILINE):
        number = row.split()[1]
        for file in re.findall(r"`((?:tests|property_tests|src)/[\w/]+\.py)`", row):
            text = (ROOT / file).read_text()
            assert number == "I34" or re.search(rf"\b{number}\b", text), f"{file} does not cite {number}"


def test_the_checker_checks_what_the_page_says() -> None:
    page = (DESIGN / "INVARIANTS.md").read_text()
    said = set(re.findall(r"^\| (I\d+) \|[^|]*\| yes \|", page, re.MULTILINE))
    checked = set(re.findall(r'"(I\d+)"', (ROOT / "src/trouper/testing/invariants.py").read_text()))
    assert said == checked


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?://)([^)]+)\)", page.read_text()):
        target, _, part = link.partition("#")
        place = page.parent / target if target else page
        assert place.exists(), f"{page.name} links to {target}, which is not there"
        assert not part or part in anchors_of(place), f"{page.name} links to {link}, and {target} has no such part"


def anchors_of(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_generated_pages_are_fresh() -> None:
    assert stale(ROOT) == []
