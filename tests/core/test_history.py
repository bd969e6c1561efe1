"""Histories (L22, I5): sound by construction, one validator, and a repair that never raises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trouper.core import history as core_history
from trouper.core.growing import Growing
from trouper.core.history import LOST_OUTCOME, History, Walk, problems, repaired
from trouper.core.messages import Media, Message, Outcome, Text, Thinking, ToolAnswer, ToolCall


def user(text: str = "hi") -> Message:
    return Message("user", (Text(text),))


def model(text: str = "hello", *ids: str) -> Message:
    parts = (Text(text),) if text else ()
    return Message("assistant", (*parts, *(ToolCall(id, "look", {}) for id in ids)))


def results(*ids: str) -> Message:
    return Message("tool", tuple(ToolAnswer(id, "look", Outcome.OK, f"result {id}") for id in ids))


SOUND = (user(), model("", "a", "b"), results("a", "b"), model("done"), user("more"))


def test_a_sound_history_has_no_problems():
    assert problems(SOUND) == [] and History.of(SOUND).ready
    assert repaired(SOUND) == SOUND


@pytest.mark.parametrize(
    "messages",
    [
        (),
        (model(),),
        (results("a"),),
        (user(), results("a")),
        (user(), model("x", "a")),
        (user(), model("x", "a"), user()),
        (user(), model("x", "a"), model("y")),
        (user(), model("x", "a", "b"), results("a")),
        (user(), model("x", "a", "b"), results("b", "a")),
        (user(), model("x", "a"), results("a", "c")),
        (user(), model("x", "a"), results("a"), results("a")),
        (user(), model("x", "a"), results("a"), model("y", "a"), results("a")),
        (user(), Message("assistant", (Thinking("hm"),))),
        (user(), Message("assistant", ())),
        (Message("user", ()),),
    ],
    ids=[
        *("empty", "assistant first", "results first", "results of nothing", "open end", "user before the answers"),
        *(
            "assistant before the answers",
            "an answer is missing",
            "wrong order",
            "an answer too many",
            "answered twice",
        ),
        *("an id used twice", "nothing but thinking", "an empty reply", "an empty message"),
    ],
)
def test_what_a_provider_would_refuse_is_found_and_repaired(messages):
    """L22"""
    assert problems(messages)
    mended = repaired(messages)
    assert problems(mended) == [] or mended == ()


def test_repair_fills_in_what_the_journal_knows():
    """L22: from journal facts; what nobody knows is said to be unknown."""
    known = {"a": ToolAnswer("a", "look", Outcome.OK, "from the journal")}
    mended = repaired((user(), model("x", "a", "b")), known)
    assert mended[2].answers[0].content == "from the journal"
    assert (mended[2].answers[1].outcome, mended[2].answers[1].content) == (Outcome.UNKNOWN, LOST_OUTCOME)


def test_repair_keeps_every_word():
    mended = repaired((model("first"), user("second"), model("third"), model("fourth", "a"), user("fifth")))
    text = " ".join(message.text for message in mended)
    assert all(word in text for word in ("first", "second", "third", "fourth", "fifth"))
    assert [message.role for message in mended] == ["user", "assistant", "user", "assistant", "tool", "user"]


def test_soundness_is_kept_up_to_date_message_by_message():
    """A long session's request costs no walk over it."""
    history = History()
    for position, message in enumerate(SOUND):
        history = history.append(message)
        assert history.sound
        assert history.ready == (not problems(SOUND[: position + 1]))
    assert history.open_calls == ()
    assert History.of(SOUND[:2]).open_calls == SOUND[1].calls
    broken = History.of((user(), results("a")))
    assert not broken.sound and not broken.append(user()).sound  # Once broken, for ever.


def test_tokens_add_up():
    assert History.of(SOUND).tokens == sum(History.of((message,)).tokens for message in SOUND)


_IDS = st.sampled_from(["a", "b", "c"])
_PARTS = st.one_of(
    st.builds(Text, st.sampled_from(["", "x", "words"])),
    st.builds(Thinking, st.just("hm"), st.sampled_from([None, "sig"])),
    st.builds(ToolCall, _IDS, st.just("look"), st.just({})),
    st.builds(ToolAnswer, _IDS, st.just("look"), st.just(Outcome.OK), st.just("r")),
    st.just(Media("image/png", "AAAA")),
)
_MESSAGES = st.builds(
    Message,
    st.sampled_from(["user", "assistant", "tool"]),
    st.lists(_PARTS, max_size=3).map(tuple),
    st.sampled_from(["normal", "cut_short", "summary"]),
)


@given(st.lists(_MESSAGES, max_size=10))
def test_repair_never_raises_and_always_gives_a_valid_request(messages):
    """L22: loading old history never raises."""
    mended = repaired(messages)
    assert mended == () or problems(mended) == []
    assert repaired(mended) == mended


@given(st.lists(_MESSAGES, max_size=10))
def test_the_running_verdict_agrees_with_the_validator(messages):
    """I5: `sound` says what a walk over all messages would say."""
    history = History.of(messages)
    order = [problem for problem in problems(messages) if "cannot follow" in problem]
    assert history.sound == (not order)


@given(st.lists(_MESSAGES, max_size=10), st.lists(_MESSAGES, max_size=4))
def test_a_walk_along_a_growing_history_says_what_a_walk_over_all_of_it_would(messages, other):
    """I5: also when another history takes the place of the one that grew, as after a compaction."""
    walk, growing = Walk(), Growing()
    for told in (messages, other):
        growing = Growing()
        assert walk.problems(growing) == ["there is no message"]
        for message in told:
            growing = growing.grown(message)
            assert walk.problems(growing) == problems(growing)


def test_a_walk_along_a_growing_history_looks_at_each_message_once(monkeypatch):
    """performance.md, how cost must grow: the checker of a session of 20,000 turns looked at all of its history at each of its steps."""
    looked_at = []
    may_follow = core_history._may_follow
    monkeypatch.setattr(core_history, "_may_follow", lambda *pair: looked_at.append(pair[1]) or may_follow(*pair))
    walk, growing = Walk(), Growing()
    for message in SOUND:
        growing = growing.grown(message)
        walk.problems(growing)
    assert looked_at == list(SOUND)
