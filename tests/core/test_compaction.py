"""Compaction's pure half (L26-L31): when, where to cut, what to mask, what to say; and how tokens are estimated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trouper.core import compaction
from trouper.core.compaction import (
    DROPPED_NOTE,
    SUMMARY_CLOSE,
    SUMMARY_OPEN,
    anchored,
    dropped_message,
    forced_split,
    installed,
    mask,
    mask_boundary,
    pick_split,
    summary_message,
)
from trouper.core.history import History, problems
from trouper.core.messages import Media, Message, Opaque, Outcome, ProviderPart, Text, Thinking, ToolAnswer, ToolCall
from trouper.core.settings import Compaction
from trouper.core.tokens import estimate_json, estimate_message, estimate_text


def user(text: str = "question") -> Message:
    return Message("user", (Text(text),))


def model(text: str = "answer", *ids: str) -> Message:
    return Message("assistant", (Text(text), *(ToolCall(id, "look", {}) for id in ids)))


def results(content: object, *ids: str, images: tuple[Media, ...] = ()) -> Message:
    return Message("tool", tuple(ToolAnswer(id, "look", Outcome.OK, content, images) for id in ids))


def pairs(count: int) -> tuple[Message, ...]:
    return tuple(message for n in range(count) for message in (user(f"q{n}"), model(f"a{n}")))


def tool_heavy(rounds: int) -> tuple[Message, ...]:
    return tuple(
        message
        for n in range(rounds)
        for message in (user(f"q{n}"), model("x", f"c{n}"), results(f"r{n}", f"c{n}"), model(f"a{n}"))
    )


# --- estimating ---


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("é", 1), ("日本語", 3), ("abcdé", 2), ("abcdeé", 3)],
)
def test_text_is_estimated_as_ascii_quarters_plus_the_rest(text, tokens):
    """L26: ASCII/4 rounded up + non-ASCII count."""
    assert estimate_text(text) == tokens


def test_a_call_costs_8_more_and_a_result_16():
    """L26"""
    assert estimate_message(Message("assistant", (ToolCall("c", "look", {}),))) == 8 + 1
    assert estimate_message(results("abcd", "c")) == 16 + 1
    assert estimate_message(Message("assistant", (Thinking("abcd", "efgh"),))) == 2
    assert estimate_message(Message("user", (Media("image/png", "A"),))) == 1000
    assert estimate_message(Message("assistant", (ProviderPart(Opaque("p", {"k": "abcd"})),))) == estimate_json(
        {"k": "abcd"}
    )


# --- when ---


@pytest.mark.parametrize(
    ("policy", "window", "limit"),
    [
        (Compaction(), None, None),
        (Compaction(share=None), 1000, None),
        (Compaction(), 1000, 850),
        (Compaction(share=0.5), 1000, 500),
        (Compaction(threshold=300), None, 300),
        (Compaction(threshold=300), 1000, 300),
        (Compaction(threshold=900), 1000, 850),
        (Compaction(window=100), 1000, 85),
    ],
)
def test_the_limit_is_the_lower_of_share_and_threshold(policy, window, limit):
    """L26 (seed 002: only when over the threshold; off when neither is set)."""
    assert compaction.limit(policy, window) == limit


def test_the_estimate_is_anchored_on_what_the_provider_reported():
    """L26"""
    then = History.of(pairs(3))
    now = then.append(user("abcd" * 10))
    assert anchored(now, None, 0) == now.tokens
    assert anchored(now, 5_000, then.tokens) == 5_010
    assert anchored(History(), 10, 500) == 0


# --- where (seed 002) ---


@pytest.mark.parametrize(
    ("messages", "split"), [((), 0), ((user("only"),), 0), (pairs(2), 0), (pairs(6), 0), (pairs(10), 8)]
)
def test_the_last_six_pairs_stay(messages, split):
    """L29 (seed 002: empty, single, below, at, and over the window)."""
    assert pick_split(messages, 6, 8) == split


def test_below_the_smallest_number_of_entries_nothing_happens():
    """L29"""
    assert pick_split(pairs(3), 1, 8) == 0
    assert pick_split(pairs(4), 1, 8) == 6


def test_a_split_never_orphans_a_result_and_moves_earlier():
    """L29 (seed 002: keeps more, never less)."""
    messages = (*pairs(2), user(), model("x", "c"), results("r", "c"), model(), *pairs(3))
    split = pick_split(messages, 4, 8)
    assert messages[len(messages) - 8].role == "tool"
    assert split == len(messages) - 9 and messages[split].calls


@pytest.mark.parametrize("keep", range(8))
@pytest.mark.parametrize("rounds", range(1, 12))
def test_what_is_kept_of_a_tool_heavy_history_is_balanced(rounds, keep):
    """L29 (seed 002: balanced, never starts with an orphan, always keeps something)."""
    for extra in ((), (user("last"),)):
        messages = (*tool_heavy(rounds), *extra)
        for split in (pick_split(messages, keep, 1), forced_split(messages, keep)):
            kept = messages[split:]
            assert kept and kept[0].role != "tool"
            assert {c.id for m in kept for c in m.calls} == {a.call_id for m in kept for a in m.answers}
            assert not problems((summary_message("x"), *kept))


def test_a_summary_alone_is_not_folded_again():
    """L30: nothing new has aged."""
    assert pick_split((summary_message("x"), *pairs(6)), 6, 8) == 0
    assert pick_split((summary_message("x"), *pairs(7)), 6, 8) == 3


def test_a_forced_split_takes_half_if_it_can():
    """L32"""
    messages = pairs(4)
    split = forced_split(messages, 6)
    assert sum(map(estimate_message, messages[split:])) <= sum(map(estimate_message, messages)) / 2
    assert forced_split((user(),), 6) == 0
    # A single exchange: the question goes, if need be, and the newest message stays.
    assert forced_split((user("x" * 400), model(), user()), 6) in (1, 2)
    # Two in a row, the first of which has no answer because it is too long: it goes (I35).
    assert forced_split((*pairs(1), user("x" * 4000), user()), 6) == 3


# --- masking ---


def test_the_last_turns_of_the_user_are_not_old():
    """L27: notes of the runtime's own are no turns."""
    messages = (*pairs(3), Message("user", (Text("(a note)"),), "note"))
    assert [mask_boundary(messages, turns) for turns in (1, 2, 3, 4)] == [4, 2, 0, 0]


def test_masking_replaces_old_results_and_counts_exactly_what_it_saves():
    """L27"""
    picture = Media("image/png", "AAAA")
    messages = (
        user(),
        model("x", "a", "b"),
        results("y" * 4_000, "a", "b", images=(picture,)),
        model("z", "c"),
        results({"rows": ["y" * 100] * 30}, "c"),
        model("x", "d"),
        results("short", "d"),
        user("now"),
        model("x", "e"),
        results("y" * 4_000, "e"),
    )
    masked, saved = mask(messages, 7)
    assert History.of(messages).tokens - History.of(masked).tokens == saved > 4_000
    assert masked[7:] == messages[7:] and masked[6] == messages[6]  # New ones, and short ones, stay.
    first = masked[2].answers[0]
    assert "4000 characters" in first.content and first.images == ()
    assert [a.call_id for a in masked[2].answers] == ["a", "b"]
    assert problems(masked) == []
    assert mask(masked, 7) == (masked, 0)  # Twice is once.


# --- what is said ---


def test_a_summary_is_one_tagged_message():
    """L30"""
    message = summary_message("  What happened.\n")
    assert (message.role, message.kind) == ("user", "summary")
    assert message.text == f"{SUMMARY_OPEN}\nWhat happened.\n{SUMMARY_CLOSE}"


def test_dropping_leaves_a_note_and_an_earlier_summary():
    """L31"""
    assert dropped_message(pairs(2)).text == DROPPED_NOTE and dropped_message(pairs(2)).kind == "note"
    kept = dropped_message((summary_message("Ada's order"), *pairs(2)))
    assert "Ada's order" in kept.text and DROPPED_NOTE in kept.text and kept.kind == "summary"


@given(st.integers(0, 12), st.integers(0, 8), st.integers(0, 10), st.text(max_size=50))
def test_an_installed_summary_keeps_the_history_sound(rounds, keep, least, text):
    """I35, I5"""
    messages = (*tool_heavy(rounds), user("now"))
    history = History.of(messages)
    split = pick_split(messages, keep, least)
    after = installed(history, split, summary_message(text))
    assert after.sound and after.messages[1:] == messages[split:] and not problems(after.messages)
