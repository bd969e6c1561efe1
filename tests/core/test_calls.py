"""Which calls of a step may run now (L8), and what their answers carry."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trouper.core.calls import Call, CallPhase, Preparation, answer, startable
from trouper.core.ids import call_id
from trouper.core.messages import Outcome, ToolCall
from trouper.core.values import changed


def step_of(*kinds: str | None, verdict: str = "run") -> tuple[Call, ...]:
    return tuple(
        Call(ToolCall(call_id(1, 1, i), "look", {}), Preparation(verdict, concurrency_class=kind))
        for i, kind in enumerate(kinds)
    )


def ids(calls) -> list[int]:
    return [int(call.id.rsplit("_", 1)[1]) for call in calls]


def test_calls_without_a_class_start_together_up_to_the_limit():
    """L8"""
    calls = step_of(*[None] * 5)
    assert ids(startable(calls, 32)) == [0, 1, 2, 3, 4]
    assert ids(startable(calls, 3)) == [0, 1, 2]
    running = (changed(calls[0], phase=CallPhase.RUNNING), changed(calls[1], phase=CallPhase.ENDED), *calls[2:])
    assert ids(startable(running, 2)) == [2]


def test_calls_of_one_class_start_one_after_the_other():
    """L8"""
    calls = step_of("a", "b", "a", None, "b")
    assert ids(startable(calls, 32)) == [0, 1, 3]
    calls = (changed(calls[0], phase=CallPhase.ENDED), *calls[1:])
    assert ids(startable(calls, 32)) == [1, 2, 3]


def test_a_call_that_waits_for_an_approval_keeps_its_place_in_its_class():
    """L8, T4"""
    asking = changed(step_of("a", verdict="ask")[0], phase=CallPhase.ASKING)
    calls = (asking, *step_of("x", "a", "b")[1:])
    assert ids(startable(calls, 32)) == [2]


def test_only_calls_that_may_run_start():
    assert startable(step_of(None, None, verdict="hold"), 32) == ()
    assert startable(step_of(None, verdict="refuse"), 32) == ()


@given(
    st.lists(st.sampled_from([None, "a", "b"]), max_size=12),
    st.integers(1, 4),
    st.lists(st.integers(0, 11), max_size=40),
)
def test_every_call_runs_once_and_never_too_many_at_once(kinds, limit, finishing):
    """L8, I19: whatever order they finish in."""
    calls = list(step_of(*kinds))
    started: list[int] = []
    finishing = [*finishing, *range(12)] * 2
    while any(call.phase is not CallPhase.ENDED for call in calls):
        for ready in startable(tuple(calls), limit):
            index = ids([ready])[0]
            started.append(index)
            calls[index] = changed(ready, phase=CallPhase.RUNNING)
        running = [call for call in calls if call.phase is CallPhase.RUNNING]
        assert 0 < len(running) <= limit
        classes = [call.preparation.concurrency_class for call in running if call.preparation.concurrency_class]
        assert len(classes) == len(set(classes))
        index = ids([running[finishing.pop(0) % len(running)]])[0] if finishing else ids(running)[0]
        calls[index] = changed(calls[index], phase=CallPhase.ENDED)
    assert sorted(started) == list(range(len(kinds)))
    for kind in ("a", "b"):
        own = [index for index in started if kinds[index] == kind]
        assert own == sorted(own)


def test_an_answer_carries_the_providers_id_of_its_call():
    """L22"""
    given_id = answer(ToolCall(call_id(1, 1, 0), "look", {}, provider_id="p1"), Outcome.OK, "x")
    assert (given_id.call_id, given_id.wire_id) == ("call_1_1_0", "p1")
    assert answer(ToolCall(call_id(1, 1, 0), "look", {}), Outcome.OK, "x").wire_id == "call_1_1_0"
