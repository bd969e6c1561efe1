"""The process may die at every journal write of a turn; after a restart the session is usable and what happened is visible (J12, I3, I6, I17)."""

from __future__ import annotations

import pytest
from everywhere import FINAL, Stage, invalid_requests, the_busy_script, warm_up

from trouper.core.events import CallEnded, RecoveryNoted, TurnEnded
from trouper.core.messages import Outcome
from trouper.journal import open_reader
from trouper.testing import CrashDisk, Fate, PowerCut, run_simulated
from trouper.testing.invariants import check_invariants, records_of

STEPS_MAX = 10_000


async def first_process(stage: Stage, cut_at: int) -> int:
    """Lives until the power is cut `cut_at` disk steps into its third turn; how many steps that turn has."""
    async with stage.open(the_busy_script()) as runtime:  # type: ignore[attr-defined]
        session = await warm_up(runtime)
        before = stage.disk.steps  # type: ignore[attr-defined]
        stage.disk.cut_power_before(before + cut_at)  # type: ignore[attr-defined]
        await session.ask("do three things")
        taken: int = stage.disk.steps - before  # type: ignore[attr-defined]
        stage.disk.cut_power_before(None)  # type: ignore[attr-defined]
        return taken


async def second_process(stage: Stage) -> None:
    async with stage.open([FINAL]) as runtime:  # type: ignore[attr-defined]
        session = await runtime.session("s")
        assert session.statistics().turns >= 2, "acknowledged turns are lost"
        result = await session.ask("still there?")
        assert result.error is None and result.text == "All three are done."


def died(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(died(inner) for inner in error.exceptions)
    return isinstance(error, PowerCut)


@pytest.mark.parametrize("unnoticed", [False, True])
@pytest.mark.parametrize("fate", [Fate.KEPT, Fate.DROPPED, Fate.GARBLED, None])
def test_a_crash_at_every_write_of_a_turn_leaves_a_session_that_goes_on(fate: Fate | None, unnoticed: bool) -> None:
    """`None`: each pending write has a fate of its own, drawn from a seed. Unnoticed: the tools begin before their intent is durable."""
    cut_at, crashes, unknown = 1, 0, 0
    while True:
        stage = Stage(CrashDisk(), unnoticed=unnoticed)
        try:
            run_simulated(first_process, stage, cut_at, seed=cut_at)
            break
        except BaseException as error:
            if not died(error):
                raise
        crashes += 1
        stage.disk = stage.disk.crash(fate, seed=cut_at)  # type: ignore[attr-defined]
        stage.running.clear()
        stage.clock_ms += 60_000
        run_simulated(second_process, stage, seed=cut_at)
        records = list(records_of(open_reader("/state", disk=stage.disk)))
        assert check_invariants(records, complete=True) == []
        assert invalid_requests(stage) == []
        assert all(count == 1 for count in stage.begun.values()), "I4: a tool ran twice"
        events = [event for record in records for event in record.events]
        _what_happened_is_visible(events)
        unknown += any(isinstance(e, CallEnded) and e.outcome is Outcome.UNKNOWN for e in events)
        cut_at += 1
    assert crashes > 5
    assert fate is not Fate.KEPT or unknown, "no crash hit a running tool: the scenario is too tame"


def _what_happened_is_visible(events: list[object]) -> None:
    """A turn that was cut off has its note and its end, and every call of it an outcome."""
    if any(isinstance(event, RecoveryNoted) for event in events):
        faults = [event.fault for event in events if isinstance(event, TurnEnded) and event.fault is not None]
        assert [fault.kind for fault in faults] == ["process_ended"]
