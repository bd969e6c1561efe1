"""A real process, a real disk, SIGKILL: two hundred times on one growing journal (I17)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).with_name("torture_driver.py")


def torture(root: Path, kills: int, seed: int) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(root), str(kills), str(seed)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_twenty_kills_lose_nothing_acknowledged(tmp_path: Path) -> None:
    found = torture(tmp_path / "journal", kills=20, seed=1)
    assert found["records"] >= found["acked"] > 0


@pytest.mark.slow
def test_two_hundred_and_fifty_kills_lose_nothing_acknowledged(tmp_path: Path) -> None:
    """Acked is a subset of recovered, recovered a prefix of submitted, and every byte verifies: after each kill."""
    found = torture(tmp_path / "journal", kills=250, seed=2)
    assert found["records"] >= found["acked"] > 500
    assert found["opened"] < 250, "no kill came while the journal was being opened; recovery was never cut off"
    assert found["opened"] > 100
