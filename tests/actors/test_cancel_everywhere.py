"""I6: for a cancel at *every* point at which any task of a turn can be, the next request is valid and the session goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from everywhere import FINAL, Stage, invalid_requests, the_busy_script, warm_up

from trouper.core.events import CallEnded, CompactionEnded, TurnEnded
from trouper.core.live import TextDelta
from trouper.session import Session
from trouper.testing import CrashDisk, run_simulated
from trouper.testing.invariants import check_invariants

#: More scheduler steps than the turn has; the tests find out how many there are.
STEPS_MAX = 2_000


class AtStep(trio.abc.Instrument):
    """Does something right before the nth step that any task takes, counted from `arm()`."""

    def __init__(self, step: int, action: Callable[[], None]) -> None:
        self._step = step
        self._action = action
        self._armed = False
        self.seen = 0

    def arm(self) -> None:
        self._armed = True

    def disarm(self) -> None:
        self._armed = False

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._armed:
            self.seen += 1
            if self.seen == self._step:
                self._action()


async def busy_turn(session: Session, at: AtStep, scope: trio.CancelScope) -> str | None:
    at.arm()
    try:
        with scope:
            async with session.turn("do three things") as turn:
                async for _ in turn:
                    pass
            assert turn.result is not None
            return turn.result.stop_reason
        return None
    finally:
        at.disarm()


async def scenario(stage: Stage, at: AtStep, scope: trio.CancelScope) -> tuple[list[object], str | None]:
    async with stage.open(the_busy_script()) as runtime:  # type: ignore[attr-defined]
        session = await warm_up(runtime)
        stopped_as = await busy_turn(session, at, scope)
        assert not stage.running, "a tool still runs after its turn was left"
        stage.model._scenes, stage.model._next = [FINAL], 0  # type: ignore[union-attr]
        after = await session.ask("and now?")
        assert after.error is None and after.text == "All three are done."
        events = [told.event async for told in _recorded(session)]
    return events, stopped_as


async def _recorded(session: Session):
    last = session.statistics().events - 1
    async for told in session.events():
        yield told
        if told.seq == last:
            return


def check(stage: Stage, events: list[object]) -> None:
    assert invalid_requests(stage) == []
    assert check_invariants(_journal(stage), complete=True) == []
    ends = [event.call for event in events if isinstance(event, CallEnded)]
    assert len(ends) == len(set(ends))
    assert all(count == 1 for count in stage.begun.values()), "I4: a tool ran twice"
    turns = [event for event in events if isinstance(event, TurnEnded)]
    assert len(turns) in (3, 4)  # 3: the cancel came before the turn had begun.


def _journal(stage: Stage):
    from trouper.journal import open_reader

    return open_reader("/state", disk=stage.disk)


def run_at(step: int, unnoticed: bool = False) -> tuple[int, list[object], str | None]:
    stage = Stage(CrashDisk(), unnoticed=unnoticed)
    scope = trio.CancelScope()
    at = AtStep(step, scope.cancel)
    events, stopped_as = run_simulated(scenario, stage, at, scope, seed=step, instruments=[at])
    check(stage, events)
    return at.seen, events, stopped_as


def test_the_turn_that_is_not_cancelled_has_everything_in_it() -> None:
    seen, events, stopped_as = run_at(STEPS_MAX)
    assert 40 < seen < STEPS_MAX and stopped_as == "end_turn"
    assert sum(isinstance(event, CallEnded) for event in events) == 3
    assert any(isinstance(event, CompactionEnded) and event.how == "summary" for event in events)


@pytest.mark.parametrize("unnoticed", [False, True])
def test_cancelling_the_caller_at_every_step_leaves_a_valid_session(unnoticed: bool) -> None:
    """I6, L15, L21: enumerated, not sampled. Unnoticed: also while tools run ahead of the disk."""
    interrupted = 0
    step = 1
    while True:
        seen, events, _ = run_at(step, unnoticed)
        if seen < step:
            break
        interrupted += any(isinstance(event, TurnEnded) and event.stop_reason == "interrupt" for event in events)
        step += 1
    assert step > 40 and interrupted > 30


@pytest.mark.parametrize(("seed", "unnoticed"), [(0, False), (1, False), (2, False), (0, True), (1, True)])
def test_interrupting_at_every_step_ends_as_interrupt_and_the_session_goes_on(seed: int, unnoticed: bool) -> None:
    """L15: always `interrupt`, never an error; whoever interrupts is told when the work has stopped."""
    step, interrupted = 1, 0
    while True:
        stage = Stage(CrashDisk(), unnoticed=unnoticed)
        reached = run_simulated(_interrupted_scenario, stage, step, seed=seed)
        assert invalid_requests(stage) == []
        assert check_invariants(_journal(stage), complete=True) == []
        assert all(count == 1 for count in stage.begun.values())
        if reached is None:
            break
        interrupted += reached == "interrupt"
        assert reached in ("interrupt", "end_turn")
        step += 1
    assert interrupted > 15


async def _interrupted_scenario(stage: Stage, step: int) -> str | None:
    """Interrupt at the nth event that the turn shows, or after it; `None` if it has fewer."""
    async with stage.open(the_busy_script()) as runtime:  # type: ignore[attr-defined]
        session = await warm_up(runtime)
        seen = 0
        #: What was shown of each reply, in order: the last one may have been cut short.
        shown: dict[str, str] = {}
        async with session.turn("do three things") as turn:
            async for event in turn:
                seen += 1
                if isinstance(event, TextDelta):
                    shown[event.message] = shown.get(event.message, "") + event.text
                if seen == step:
                    await session.interrupt("enough")
                    assert not stage.running, "interrupt() returned before the tools had stopped"
        assert turn.result is not None
        said = [message.text for message in session.history if message.role == "assistant"]
        if shown:  # L13: what a user has seen stays in the history, once.
            assert sum(text.startswith(list(shown.values())[-1]) for text in said) == 1
        stage.model._scenes, stage.model._next = [FINAL], 0  # type: ignore[union-attr]
        assert (await session.ask("and now?")).error is None
        return turn.result.stop_reason if seen >= step else None
