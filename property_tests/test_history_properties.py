"""The one validator of requests, and the repair that never fails (L22, I5, I7)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from trouper.core.history import LOST_OUTCOME, History, problems, repaired, without_signatures
from trouper.core.ids import CallId
from trouper.core.messages import (
    Media,
    Message,
    Opaque,
    Outcome,
    ProviderPart,
    Text,
    Thinking,
    ToolAnswer,
    ToolCall,
)
from trouper.core.tokens import estimate_message
from trouper.testing.strategies import histories

OPAQUE = Opaque("p", {"sig": "c2ln"})
ids = st.sampled_from(["c1", "c2", "c3"]).map(CallId)
calls = st.builds(ToolCall, ids, st.just("look"), st.just({}), st.none() | st.just("p1"), st.none() | st.just(OPAQUE))
answers = st.builds(ToolAnswer, ids, st.just("look"), st.sampled_from(Outcome), st.sampled_from(["a", "b", None]))
parts = st.one_of(
    st.builds(Text, st.sampled_from(["", "hello"]), st.none() | st.just(OPAQUE)),
    st.builds(Thinking, st.just("hm"), st.none() | st.just("sig")),
    calls,
    answers,
    st.builds(Media, st.just("image/png"), st.just("aGk=")),
    st.just(ProviderPart(OPAQUE)),
)
#: Anything at all: histories of older versions, of other programs, or of a damaged journal.
messages = st.builds(
    lambda role, content, kind: Message(role, tuple(content), kind),
    st.sampled_from(["user", "assistant", "tool"]),
    st.lists(parts, max_size=4),
    st.sampled_from(["normal", "cut_short", "note"]),
)
anything = st.lists(messages, max_size=8)
ONE, TWO = ToolCall(CallId("c1"), "look", {}), ToolCall(CallId("c2"), "look", {})


@settings(max_examples=200, deadline=None)
@given(anything)
@example([Message("assistant", (ONE, ONE))])
@example([Message("user", (Text("x"),)), Message("assistant", (ONE,)), Message("assistant", (TWO,))])
@example([Message("tool", (ToolAnswer(CallId("c1"), "look", Outcome.OK, 1),))])
def test_a_repaired_history_can_be_sent_whatever_it_was(told: list[Message]) -> None:
    """L22: loading old history never raises, and what comes out has no problems."""
    mended = repaired(told)
    assert problems(mended) == ([] if mended else ["there is no message"])
    assert repaired(mended) == mended  # Once is enough.
    if mended:
        assert mended[0].role == "user" and History.of(mended).ready


@settings(max_examples=120, deadline=None)
@given(anything, st.dictionaries(ids, answers, max_size=3))
def test_repair_keeps_what_was_said_and_makes_nothing_up(told: list[Message], known: dict[str, ToolAnswer]) -> None:
    """L22: repairs come from journal facts; an outcome that nobody recorded is `unknown`, never invented."""
    outcomes = {id: ToolAnswer(CallId(id), given.name, given.outcome, given.content) for id, given in known.items()}
    mended = repaired(told, outcomes)
    assert problems(mended) in ([], ["there is no message"])
    recorded = [answer for message in told for answer in message.answers] + list(outcomes.values())
    for message in mended:
        for answer in message.answers:
            lost = answer.outcome is Outcome.UNKNOWN and answer.content == LOST_OUTCOME
            assert lost or answer in recorded
            assert not lost or answer.call_id not in outcomes
    # Visible text of user and model is all there, in order.
    said = [part for message in mended for part in message.parts if isinstance(part, Text)]
    before = [part for message in told if _survives(message) for part in message.parts if isinstance(part, Text)]
    assert [part for part in said if not part.text.startswith("(The beginning")] == before


def _survives(message: Message) -> bool:
    if message.role == "user":
        return not any(isinstance(part, ToolCall | ToolAnswer) for part in message.parts)
    # Text alone makes an assistant's message worth sending.
    return message.role == "assistant"


@settings(max_examples=80, deadline=None)
@given(histories("p"))
def test_a_sound_history_is_left_as_it_is(told: tuple[Message, ...]) -> None:
    """I7: the very same messages, opaque fields and all."""
    assert problems(told) == []
    assert repaired(told) == told
    assert History.of(told).ready


@settings(max_examples=60, deadline=None)
@given(histories("p"), st.randoms(use_true_random=False))
def test_one_fault_in_a_sound_history_is_seen_and_mended(told: tuple[Message, ...], choice: Any) -> None:
    """I5: the validator is no yes-man."""
    spots = [n for n, message in enumerate(told) if message.role == "tool"]
    if not spots:
        return
    spot = choice.choice(spots)
    tool = told[spot]
    faults: list[tuple[Message, ...]] = [
        told[:spot] + told[spot + 1 :],  # Never answered.
        (*told[:spot], tool, tool, *told[spot + 1 :]),  # Answered twice.
        (*told[: spot - 1], *told[spot:]),  # An orphan.
        (*told[:spot], Message("tool", tool.parts[:-1]), *told[spot + 1 :]),  # One answer short.
        (tool, *told),  # A leading orphan.
    ]
    if len(tool.parts) > 1:
        faults.append((*told[:spot], Message("tool", tool.parts[::-1]), *told[spot + 1 :]))  # Out of order.
    for broken in faults:
        assert problems(broken), broken
        assert not History.of(broken).ready
        assert problems(repaired(broken)) == []


@settings(max_examples=80, deadline=None)
@given(anything)
def test_the_verdict_kept_while_appending_is_that_of_the_whole_walk(told: list[Message]) -> None:
    """Soundness and tokens are kept up to date in constant time: they must be what a walk over everything would say."""
    history = History()
    for count, message in enumerate(told, 1):
        history = history.append(message)
        # Call ids that repeat are the core's business: it derives them from turn, step and place.
        walked = [problem for problem in problems(told[:count]) if "repeats call id" not in problem]
        assert history.ready == (not walked)
        assert history.tokens == sum(map(estimate_message, told[:count]))
    assert history.messages == tuple(told)


@settings(max_examples=80, deadline=None)
@given(histories("p"))
def test_without_signatures_is_still_a_history(told: tuple[Message, ...]) -> None:
    """M10: a last resort keeps every question and every answer."""
    plain = without_signatures(told)
    assert problems(plain) == []
    kept = [part for message in plain for part in message.parts]
    assert not any(
        getattr(part, "opaque", None) or isinstance(part, Thinking) for part in kept if not isinstance(part, Media)
    )
    assert [a.call_id for m in plain for a in m.answers] == [a.call_id for m in told for a in m.answers]
    assert not any(a.role == b.role == "assistant" for a, b in pairwise(plain))
