"""The whole runtime in virtual time: 500 seeds (10,000 with `make simulate`), each checked against every invariant."""

from __future__ import annotations

import logging

import pytest

from trouper.testing import simulation

SEEDS = 500
CHUNK = 25


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Tools that fail are part of the plan; a log of them all would fill the memory."""
    caplog.set_level(logging.CRITICAL, logger="trouper")


@pytest.mark.parametrize("start", range(0, SEEDS, CHUNK))
def test_every_seed_keeps_the_invariants_and_comes_to_rest(start: int) -> None:
    """I1-I20, I26-I32: safety with faults on, liveness with faults off."""
    for seed in range(start, start + CHUNK):
        result = simulation.simulate(seed)
        assert result.records > 0


#: Once broken, each by a mistake of its own.
@pytest.mark.parametrize("seed", [2863])
def test_seeds_that_once_broke_hold(seed: int) -> None:
    """2863: a snapshot outlived the records that it held (I13, I17)."""
    simulation.simulate(seed)


@pytest.mark.parametrize("seed", [1, 29, 42, 137])
def test_a_seed_is_the_same_run_again(seed: int) -> None:
    assert simulation.simulate(seed) == simulation.simulate(seed)


def test_a_broken_runtime_is_told_as_a_story(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator notices: a core that forgets to settle the tools of an interrupted turn does not pass."""
    from trouper.core import steps

    monkeypatch.setattr(steps, "startable", lambda calls, limit: ())
    with pytest.raises(simulation.SimulationFailed, match=r"seed \d+ breaks(.|\n)*the story(.|\n)*again: python -m"):
        for seed in range(20):
            simulation.simulate(seed)
