"""A sequence that grows without being copied is still a value: what others make of it never shows in it (I10)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trouper.core.growing import Growing


@given(st.lists(st.tuples(st.integers(0, 30), st.integers()), max_size=40))
def test_every_version_stays_what_it_was_whichever_of_them_is_grown_next(steps: list[tuple[int, int]]) -> None:
    versions: list[tuple[Growing[int], tuple[int, ...]]] = [(Growing(), ())]
    for which, item in steps:
        grown, plain = versions[which % len(versions)]
        versions.append((grown.grown(item), (*plain, item)))
    for grown, plain in versions:
        assert grown == plain
        assert tuple(grown) == plain
        assert len(grown) == len(plain)
        assert tuple(reversed(grown)) == plain[::-1]
        assert hash(grown) == hash(plain)
        assert repr(grown) == repr(plain)
        for start in range(-3, 4):
            assert grown[start:] == plain[start:]
            assert grown[:start] == plain[:start]
            assert grown[::2] == plain[::2]
        for position in range(-len(plain), len(plain)):
            assert grown[position] == plain[position]


def test_an_index_behind_the_end_is_refused_although_the_store_has_more() -> None:
    short = Growing(["a"])
    short.grown("b")
    try:
        short[1]
    except IndexError as error:
        assert "1 items" in str(error)
    else:
        raise AssertionError("an item of a longer sequence showed")


def test_the_last_item_is_its_own_although_the_store_has_more() -> None:
    short: Growing[int] = Growing([1, 2])
    long = short.grown(3)
    assert (Growing().last, short.last, long.last) == (None, 2, 3)


def test_a_longer_one_starts_with_the_one_it_grew_from_by_identity() -> None:
    one, other = object(), object()
    short = Growing([one])
    longer = short.grown(other)
    branch = short.grown(object())
    assert longer.starts_with(short) and longer.starts_with((one,)) and longer.starts_with(())
    assert branch.starts_with(short) and not branch.starts_with(longer)
    assert not short.starts_with(longer)
    assert not Growing([1]).starts_with([True]), "equal is not the same: it would be sent as the other"


def test_a_sequence_adds_like_a_tuple() -> None:
    assert Growing([1]) + (2,) == (1, 2)  # noqa: RUF005 - the very thing under test
    assert Growing([1]) != [1]
