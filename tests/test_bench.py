"""Every benchmark runs, and prints what a program can read. How fast anything is, is for those who look at the figures: none of them is looked at here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parent.parent / "bench"
SCRIPTS = sorted(path.name for path in BENCH.glob("[!_]*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_benchmark_prints_a_figure_its_rival_and_their_ratio(script: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(BENCH / script), "--quick", "--json"], capture_output=True, text=True, cwd=tmp_path
    )
    assert ran.returncode == 0, ran.stderr
    rows = [json.loads(line) for line in ran.stdout.splitlines()]
    assert rows
    for row in rows:
        assert row.keys() == {"name", "value", "unit", "rival", "rival_value", "ratio"}
        assert row["ratio"] == pytest.approx(row["value"] / row["rival_value"])
