"""design/TOOLS.md is made from the code, and up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from trouper import docs
from trouper.tools.builtin import BUILTIN


def test_pages_are_up_to_date() -> None:
    assert docs.stale() == []


def test_every_tool_is_on_the_page_with_its_limits() -> None:
    page = docs.tools_page()
    for tool in BUILTIN.values():
        assert f"### {tool.name}\n" in page
    assert "2000 lines or 51200 bytes" in page
    assert "{" not in " ".join(text for tool in BUILTIN.values() for text in docs.sections(tool).values())


def test_stale_page_fails_the_check_and_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert docs.main(["--check"], root=tmp_path) == 1
    assert "is stale; run" in capsys.readouterr().err
    assert docs.main([], root=tmp_path) == 0
    assert docs.main(["--check"], root=tmp_path) == 0
    (tmp_path / "design" / "TOOLS.md").write_text("changed by hand")
    assert docs.main(["--check"], root=tmp_path) == 1
