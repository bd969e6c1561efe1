"""Compaction lowers the tokens or changes nothing, orphans no result, and never leaves a session stuck (I35, I5, I7, L26-L32)."""

from __future__ import annotations

from functools import reduce
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from trouper.core import compaction
from trouper.core.commands import Compact, DeliverFault, DeliverSummary, Interrupt, Submit
from trouper.core.decisions import decide, step
from trouper.core.events import CompactionEnded, CompactionStarted, HistoryMasked, StepStarted, TurnEnded
from trouper.core.history import History, problems
from trouper.core.messages import Fault, Message, Text, ToolAnswer, Usage
from trouper.core.session import Phase, State, evolve
from trouper.core.settings import Compaction, TurnOptions
from trouper.core.values import changed
from trouper.testing.strategies import histories

LONG = "x" * 4_000
policies = st.builds(
    Compaction,
    share=st.none() | st.just(0.85),
    threshold=st.none() | st.integers(0, 400),
    keep_pairs=st.integers(0, 4),
    min_messages=st.integers(0, 8),
    mask_after_turns=st.integers(1, 3),
    mask_min_saving=st.sampled_from([0, 1, 50, 2_000]),
)
summaries = st.sampled_from([None, "", "  \n", "short", LONG])


@st.composite
def long_histories(draw: st.DrawFn) -> tuple[Message, ...]:
    """Sound ones, some of whose parts are large."""
    told = list(draw(histories("p", 6)))
    for position, message in enumerate(told):
        size = draw(st.sampled_from([0, 0, 40, 4_000]))
        if not size:
            continue
        if message.role == "tool":
            parts: tuple[Any, ...] = tuple(
                changed(part, content="y" * size) if isinstance(part, ToolAnswer) else part for part in message.parts
            )
        else:
            parts = (*message.parts, Text("z" * size))
        told[position] = Message(message.role, parts, message.kind)
    return tuple(told)


def idle(told: tuple[Message, ...]) -> State:
    return State(session="s", phase=Phase.IDLE, history=History.of(told), turns=3)


def stepped(state: State, command: Any) -> tuple[tuple[Any, ...], State]:
    events, after = step(state, command)
    assert decide(state, command) == events and reduce(evolve, events, state) == after
    _check(state, events)
    return events, after


def _check(state: State, events: tuple[Any, ...]) -> None:
    """Each single event that touches the context, against what it says of itself."""
    for event in events:
        after = evolve(state, event)
        if isinstance(event, CompactionEnded):
            assert event.tokens_before == state.history.tokens and event.tokens_after == after.history.tokens
            assert (event.messages_before, event.messages_after) == (
                len(state.history.messages),
                len(after.history.messages),
            )
            if event.how == "unchanged":
                assert after.history == state.history
            else:
                assert after.history.tokens < state.history.tokens  # I35
                kept = state.history.messages[event.split :]
                assert kept and kept[0].role != "tool"  # L29: no orphan, and never nothing.
                # I7: what stays is the very same.
                asked = [state.history.messages[position] for position in event.kept]
                assert all(a is b for a, b in zip(after.history.messages[1:], [*asked, *kept], strict=True))
        elif isinstance(event, HistoryMasked):
            assert after.history.tokens <= state.history.tokens
            assert after.history.messages[event.before :] == state.history.messages[event.before :]
            for old, new in zip(state.history.messages, after.history.messages, strict=True):
                assert old.role == new.role and (old == new or old.role == "tool")
                assert [a.call_id for a in old.answers] == [a.call_id for a in new.answers]
        if isinstance(event, CompactionEnded | HistoryMasked):
            assert after.history.tokens == History.of(after.history.messages).tokens
            assert problems(after.history.messages) == problems(state.history.messages)
        state = after


@settings(max_examples=60, deadline=None)
@given(long_histories(), policies, summaries)
def test_compaction_by_hand_lowers_the_tokens_or_changes_nothing(
    told: tuple[Message, ...], policy: Compaction, summary: str | None
) -> None:
    """I35, L31, L34"""
    before = idle(told)
    _, state = stepped(before, Compact(1.0, policy))
    if state.phase is Phase.TIDYING:
        assert state.compacting is not None
        _, state = stepped(state, DeliverSummary(state.compacting.split, 2.0, summary, Usage(input=5)))
    assert state.phase is Phase.IDLE and problems(state.history.messages) == []
    assert state.history.tokens <= before.history.tokens
    assert len(state.history.messages) >= min(len(told), 2 * policy.keep_pairs)


@settings(max_examples=60, deadline=None)
@given(long_histories(), policies, summaries, st.none() | st.integers(1, 500))
def test_a_session_over_its_limit_can_make_one_more_turn(
    told: tuple[Message, ...], policy: Compaction, summary: str | None, window: int | None
) -> None:
    """I35, L31: a compaction never fails a turn. Whatever comes of the summary, the model is asked, with a valid request."""
    options = TurnOptions(compaction=policy, window=window)
    events, state = stepped(idle(told), Submit("go on", 1.0, options))
    if state.phase is Phase.COMPACTING:
        assert state.compacting is not None
        events, state = stepped(state, DeliverSummary(state.compacting.split, 2.0, summary))
    assert state.phase is Phase.THINKING and isinstance(events[-1], StepStarted)
    assert problems(state.history.messages) == []
    assert state.history.messages[-1].text == "go on"  # The question itself is never folded away.


@settings(max_examples=60, deadline=None)
@given(long_histories(), policies, summaries)
def test_a_refused_context_is_made_smaller_once_and_asked_again_or_the_turn_ends(
    told: tuple[Message, ...], policy: Compaction, summary: str | None
) -> None:
    """L32: one forced compaction, one retry, then it is terminal; and the session goes on."""
    options = TurnOptions(compaction=changed(policy, share=None, threshold=None))
    _, state = stepped(idle(told), Submit("go on", 1.0, options))
    refused = DeliverFault(state.turns, 1, Fault("context_overflow", "too long"), 2.0)
    before = state.history.tokens
    events, state = stepped(state, refused)
    if state.phase is Phase.COMPACTING:
        assert state.compacting is not None and state.compacting.forced
        events, state = stepped(state, DeliverSummary(state.compacting.split, 3.0, summary))
    if state.phase is Phase.THINKING:
        assert state.history.tokens < before and problems(state.history.messages) == []
        assert state.turn is not None and state.turn.step == 1  # The same step again: it costs no other.
        events, state = stepped(state, refused)
        assert not any(isinstance(event, CompactionStarted) for event in events)
    assert state.phase is Phase.IDLE
    ends = [event for event in events if isinstance(event, TurnEnded)]
    assert len(ends) == 1 and ends[0].fault is not None and ends[0].fault.kind == "context_overflow"
    _, state = stepped(state, Submit("and now?", 4.0, options))
    assert state.phase is Phase.THINKING and problems(state.history.messages) == []


@settings(max_examples=40, deadline=None)
@given(long_histories(), st.integers(0, 3), st.integers(-1, 12))
def test_a_summary_of_something_else_is_not_installed(told: tuple[Message, ...], pairs: int, other: int) -> None:
    """L31: if the history changed meanwhile, or the compaction is over, a summary that comes is nobody's."""
    policy = Compaction(threshold=0, keep_pairs=pairs, min_messages=2, mask_min_saving=10**9)
    _, state = stepped(idle(told), Submit("go on", 1.0, TurnOptions(compaction=policy)))
    if state.phase is not Phase.COMPACTING:
        return
    assert state.compacting is not None
    split = state.compacting.split
    if other != split:
        assert decide(state, DeliverSummary(other, 2.0, "short")) == ()
    _, state = stepped(state, Interrupt(2.0))
    assert state.phase is Phase.IDLE and state.compacting is None
    assert decide(state, DeliverSummary(split, 3.0, "short")) == ()


@settings(max_examples=60, deadline=None)
@given(long_histories(), st.integers(0, 8), st.integers(0, 10))
def test_a_split_keeps_at_least_what_was_asked_for_and_orphans_nothing(
    told: tuple[Message, ...], pairs: int, least: int
) -> None:
    """L29"""
    split = compaction.pick_split(told, pairs, least)
    assert 0 <= split < len(told)
    if split:
        assert len(told) >= least and len(told) - split >= 2 * pairs
        assert problems((compaction.summary_message("s"), *told[split:])) == []
        assert any(message.kind != "summary" for message in told[:split])  # L30
    forced = compaction.forced_split(told, pairs)
    assert forced >= split if least <= 2 and pairs else forced >= 0
    if forced:
        assert forced < len(told) and problems((compaction.summary_message("s"), *told[forced:])) == []


@settings(max_examples=60, deadline=None)
@given(long_histories(), st.integers(0, 14))
def test_masking_saves_what_it_says_and_twice_is_once(told: tuple[Message, ...], before: int) -> None:
    """L27"""
    masked, saved = compaction.mask(told, before)
    assert History.of(told).tokens - History.of(masked).tokens == saved >= 0
    assert problems(masked) == []
    assert compaction.mask(masked, before) == (masked, 0)
    assert all(a is b for a, b in zip(masked[before:], told[before:], strict=True))


@settings(max_examples=40, deadline=None)
@given(long_histories(), st.lists(st.sampled_from(["one", "two", LONG]), min_size=1, max_size=3))
def test_a_second_compaction_folds_the_old_summary_into_the_new(told: tuple[Message, ...], texts: list[str]) -> None:
    """L30: there is never more than one summary of ours at the head."""
    state = idle(tuple(m for m in told if m.kind != "summary") or told)
    if problems(state.history.messages):
        return
    policy = Compaction(keep_pairs=1, min_messages=2, mask_min_saving=10**9)
    for text in texts:
        _, state = stepped(state, Compact(1.0, policy))
        if state.compacting is not None:
            split = state.compacting.split
            events, state = stepped(state, DeliverSummary(split, 2.0, text))
            if any(isinstance(e, CompactionEnded) and e.how == "summary" for e in events):
                assert state.history.messages[0].kind == "summary"
                assert [m.kind for m in state.history.messages[1:]].count("summary") == 0
        state = changed(state, history=state.history.append(Message("user", (Text(LONG),))))
