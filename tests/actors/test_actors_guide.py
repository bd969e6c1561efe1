"""The guide's program runs as printed, and prints what the guide says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from trouper.testing.schedule import run_simulated

GUIDE = Path(__file__).parents[2] / "design" / "guides" / "actors.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)


def test_the_guides_program_prints_what_the_guide_says() -> None:
    (program,), (printed,) = blocks("python"), blocks("text")
    names: dict[str, object] = {"__name__": "guide"}
    exec(compile(program, str(GUIDE), "exec"), names)
    for seed in range(20):  # Whatever the order in which its tasks run.
        log = run_simulated(names["main"], seed=seed)  # type: ignore[arg-type]
        assert log == printed.splitlines()


def test_the_guides_program_is_strictly_typed(tmp_path: Path) -> None:
    """The kernel's types carry from `spawn` to `ask`: the example needs no cast and no ignore."""
    (program,) = blocks("python")
    (tmp_path / "guide.py").write_text(program)
    checked = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--cache-dir",
            str(GUIDE.parents[2] / ".mypy_cache"),
            str(tmp_path / "guide.py"),
        ],
        cwd=GUIDE.parents[2],
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout
