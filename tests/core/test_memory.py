"""Memory (B21, B22) at the level of decide and evolve."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest

from trouper._errors import CommandRejected, InvalidName
from trouper.core import memory as m


def run(state: m.Memories, *commands: m.MemoryCommand) -> m.Memories:
    for command in commands:
        state = reduce(m.evolve, m.decide(state, command), state)
    return state


@pytest.mark.parametrize("value", [None, True, 0, -1.5, "", "é\u2028", [], [1, [2]], {}, {"a": {"b": [None]}}])
def test_any_json_value_is_remembered(value: object) -> None:
    """B21."""
    memories = run(m.Memories(), m.Remember("user", "k", value, at=1.0, summary="s", metadata={"source": "chat"}))
    found = m.recall(memories, "user", "k", at=2.0)
    assert found == m.Memory("user", "k", value, 1.0, 1.0, "s", {"source": "chat"})


def test_writing_over_keeps_the_time_it_was_made() -> None:
    """B21: upsert keeps created."""
    memories = run(m.Memories(), m.Remember("user", "k", 1, at=1.0), m.Remember("user", "k", 2, at=5.0))
    found = m.recall(memories, "user", "k", at=6.0)
    assert found is not None and (found.value, found.created_at, found.updated_at) == (2, 1.0, 5.0)


def test_scopes_are_apart_and_lists_are_newest_first() -> None:
    """B21."""
    memories = run(
        m.Memories(),
        m.Remember("a", "one", 1, at=1.0),
        m.Remember("a", "two", 2, at=2.0),
        m.Remember("a", "three", 3, at=2.0),
        m.Remember("b", "one", 4, at=9.0),
        m.Remember("a", "one", 5, at=3.0),
    )
    assert [memory.key for memory in m.listing(memories, "a", at=9.0)] == ["one", "three", "two"]
    assert [memory.value for memory in m.listing(memories, "b", at=9.0)] == [4]
    assert m.listing(memories, "c", at=9.0) == () and len(m.listing(memories, "a", at=9.0, limit=2)) == 2


def test_forgetting_is_idempotent() -> None:
    """B21: delete is idempotent."""
    memories = run(m.Memories(), m.Remember("a", "k", 1, at=1.0), m.Forget("a", "k", at=2.0))
    assert m.recall(memories, "a", "k", at=2.0) is None and memories == m.Memories()
    assert m.decide(memories, m.Forget("a", "k", at=3.0)) == ()
    assert m.decide(memories, m.Forget("never", "was", at=3.0)) == ()


def test_a_time_to_live_ends_at_its_instant_whether_swept_or_not() -> None:
    """B21: TTL."""
    memories = run(m.Memories(), m.Remember("a", "k", 1, at=10.0, ttl_s=5.0), m.Remember("a", "stays", 2, at=10.0))
    assert m.recall(memories, "a", "k", at=14.9) is not None
    assert m.recall(memories, "a", "k", at=15.0) is None
    assert [memory.key for memory in m.listing(memories, "a", at=15.0)] == ["stays"]
    assert list(m.living(memories, at=15.0).scopes["a"]) == ["stays"] and m.living(memories, at=14.9) == memories
    assert m.decide(memories, m.ForgetExpired(at=14.0)) == ()
    swept = m.decide(memories, m.ForgetExpired(at=15.0))
    assert swept == (m.MemoryForgotten("a", "k", 15.0, expired=True),)
    reborn = run(memories, m.Remember("a", "k", 3, at=20.0))
    found = m.recall(reborn, "a", "k", at=21.0)
    assert found is not None and found.created_at == 20.0 and found.expires_at is None


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ü", "a\n", "x" * 129, None, 3])
def test_names_outside_the_rule_are_a_named_error(name: object) -> None:
    """B22."""
    for command in (
        m.Remember(name, "k", 1, at=1.0),  # type: ignore[arg-type]
        m.Remember("a", name, 1, at=1.0),  # type: ignore[arg-type]
        m.Forget("a", name, at=1.0),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidName):
            m.decide(m.Memories(), command)
    with pytest.raises(InvalidName):
        m.recall(m.Memories(), "a", name, at=1.0)  # type: ignore[arg-type]


def _cyclic() -> object:
    loop: list[object] = []
    loop.append(loop)
    return loop


def _deep(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (float("nan"), "not JSON"),
        (float("inf"), "not JSON"),
        (object(), "not JSON"),
        ({1: 2}, "key that is not text"),
        ([{"a": {None: 1}}], "key that is not text"),
        (_cyclic(), "not JSON"),
        (_deep(101), "deep"),
        (_deep(100_000), "not JSON"),
        ("x" * m.VALUE_MAX_CHARS, "is the limit"),
    ],
    ids=["nan", "inf", "object", "int-key", "none-key", "cyclic", "deep", "very-deep", "long"],
)
def test_what_is_not_json_or_too_large_is_refused(value: object, says: str) -> None:
    with pytest.raises(CommandRejected, match=says):
        m.decide(m.Memories(), m.Remember("a", "k", value, at=1.0))


@pytest.mark.parametrize("ttl_s", [0, -1, float("nan"), float("inf"), 1e300, True, "60"])
def test_a_time_to_live_is_more_than_nothing_and_no_more_than_a_calendar_holds(ttl_s: Any) -> None:
    with pytest.raises(CommandRejected, match="time to live"):
        m.decide(m.Memories(), m.Remember("a", "k", 1, at=1.0, ttl_s=ttl_s))


def test_long_summaries_are_refused() -> None:
    with pytest.raises(CommandRejected, match="summary of 'k'"):
        m.decide(m.Memories(), m.Remember("a", "k", 1, at=1.0, summary="x" * 2_001))
    with pytest.raises(CommandRejected, match="summary of 'k'"):
        m.decide(m.Memories(), m.Remember("a", "k", 1, at=1.0, summary=None))  # type: ignore[arg-type]


def test_metadata_are_an_object() -> None:
    with pytest.raises(CommandRejected, match="metadata of 'k' is no object"):
        m.decide(m.Memories(), m.Remember("a", "k", 1, at=1.0, metadata=[1]))  # type: ignore[arg-type]


def test_a_scope_is_bounded_but_can_be_written_over_when_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """I25."""
    monkeypatch.setattr(m, "KEYS_MAX", 3)
    memories = run(m.Memories(), *(m.Remember("a", f"k{number}", number, at=1.0) for number in range(3)))
    with pytest.raises(CommandRejected, match="forget some first"):
        m.decide(memories, m.Remember("a", "k3", 3, at=2.0))
    assert m.decide(memories, m.Remember("a", "k0", 9, at=2.0)) != ()


def test_what_has_lapsed_makes_room_in_a_full_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    """B21, I25: a memory whose time is over is as if forgotten, also for the limit."""
    monkeypatch.setattr(m, "KEYS_MAX", 2)
    memories = run(m.Memories(), m.Remember("a", "short", 1, at=1.0, ttl_s=5.0), m.Remember("a", "long", 2, at=1.0))
    with pytest.raises(CommandRejected, match="forget some first"):
        m.decide(memories, m.Remember("a", "new", 3, at=2.0))
    memories = run(memories, m.Remember("a", "new", 3, at=7.0))
    assert sorted(memories.scopes["a"]) == ["long", "new"]
