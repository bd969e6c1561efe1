"""What must not be late when it comes for the first time is rehearsed (B1)."""

from __future__ import annotations

import pytest

from trouper.actors import recording
from trouper.core.commands import Close, OpenSession
from trouper.core.decisions import step
from trouper.core.ids import SessionId
from trouper.core.session import State


@pytest.fixture
def rehearsed(monkeypatch: pytest.MonkeyPatch) -> set[type]:
    """The kinds that need no rehearsal any more; none yet."""
    kinds: set[type] = set()
    monkeypatch.setattr(recording, "_rehearsed", kinds)
    return kinds


def test_a_rehearsal_leaves_the_state_alone(rehearsed: set[type]) -> None:
    """B1: deciding is pure, so what may come can be decided on before it does."""
    state = State()
    recording.rehearse(state, OpenSession(SessionId("s"), 0.0, None, None))
    assert rehearsed == {OpenSession} and state == State()


def test_what_is_refused_now_is_rehearsed_another_time(rehearsed: set[type]) -> None:
    """B1: a refusal says nothing of what the command takes when its time has come."""
    recording.rehearse(State(), Close(0.0, "over"))
    assert not rehearsed
    _, opened = step(State(), OpenSession(SessionId("s"), 0.0, None, None))
    recording.rehearse(opened, Close(0.0, "over"))
    assert rehearsed == {Close}
