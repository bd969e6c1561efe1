"""What a search of the memory finds (B21); that the index on disk agrees is in `property_tests/test_memory_search_properties.py`."""

from __future__ import annotations

import pytest

from trouper.core.memory import Memory
from trouper.core.memory_search import QUERY_MAX_CHARS, TERMS_MAX, TEXT_MAX_CHARS, found, query_of, words

MEMORIES = [
    Memory("user", "diet", {"likes": ["Crème brûlée", "ﬁgs"], "grams": 250}, 1.0, 1.0),
    Memory("user", "e-mail", "ada@example.org", 1.0, 1.0, summary="Don't write on Sundays"),
    Memory("user", "motto", "進捗どうですか 🦊", 1.0, 1.0),
    Memory("user", "street", "Große Straße 3", 1.0, 1.0),
    Memory("user", "music", "カラオケ", 1.0, 1.0),
]


def keys(text: str) -> list[str]:
    return [memory.key for memory in found(MEMORIES, query_of(text))]


@pytest.mark.parametrize(
    ("text", "expected"),
    {
        "creme": ["diet"],
        "CRÈME": ["diet"],
        "cre\u0300me, brulee!": ["diet"],
        "figs": ["diet"],
        "250": ["diet"],
        '("e-mail")': ["e-mail"],
        "mail": ["e-mail"],
        "ADA EXAMPLE": ["e-mail"],
        "don't": ["e-mail"],
        "write: sundays": ["e-mail"],
        "進捗": ["motto"],
        "どうで": ["motto"],
        "🦊": ["motto"],
        "GROSSE STRASSE": ["street"],
        "カラ": ["music"],
        "ガラ": [],  # Another letter, not one with an accent.
        "🐻": [],
        "?!": [],
        "": [],
        " \0 ": [],
        "rite": ["e-mail"],  # No word begins so: found as it stands.
    }.items(),
)
def test_case_accents_and_punctuation_make_no_difference(text: str, expected: list[str]) -> None:
    """B21: search over text."""
    assert keys(text) == expected


def test_what_is_looked_for_and_looked_through_has_a_bound() -> None:
    query = query_of("word " * 999)
    assert len(query.words) == TERMS_MAX and len(query.text) <= QUERY_MAX_CHARS
    long = [Memory("s", "k", ["x" * TEXT_MAX_CHARS, "behind"], 1.0, 1.0)]
    assert found(long, query_of("behind")) == () and found(long, query_of("xx")) == tuple(long)


def test_words_are_letters_and_digits() -> None:
    assert words("x_y, z2—3.5 \ufffd") == ("x", "y", "z2", "3", "5")
