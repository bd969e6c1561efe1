"""Which of several things a user means."""

from __future__ import annotations

import pytest

from trouper import UsageError
from trouper.cli.chat_numbers import Numbers


def test_what_waits_alone_is_shown_without_a_number_and_every_text_is_an_answer_to_it() -> None:
    numbers = Numbers()
    assert numbers.to_show(["a"], ["a"]) == [("a", None)]
    assert numbers.shown(["a"]) == ["a"]
    assert numbers.chosen("1 pear", ["a"]) == (None, "1 pear")


def test_as_soon_as_two_wait_both_are_shown_with_their_numbers_once() -> None:
    numbers = Numbers()
    numbers.to_show(["a"], ["a"])
    assert numbers.to_show(["b"], ["a", "b"]) == [("a", 1), ("b", 2)]
    assert numbers.to_show(["a", "b"], ["a", "b"]) == []
    assert numbers.to_show(["c"], ["a", "b", "c"]) == [("c", 3)]
    assert numbers.chosen("2 two  pears", ["a", "b", "c"]) == ("b", "two  pears")
    assert numbers.chosen("2", ["a", "b", "c"]) == ("b", "")
    assert numbers.chosen("pears", ["a", "b", "c"]) == (None, "pears")
    assert numbers.chosen("17 pears", ["a", "b", "c"]) == (None, "17 pears")
    assert numbers.chosen("", ["a", "b", "c"]) == (None, "")
    assert numbers.chosen("1" * 5000, ["a", "b", "c"]) == (None, "1" * 5000)


def test_a_number_means_what_was_shown_with_it_also_when_that_waits_no_longer() -> None:
    """Who answers too late must not answer something else."""
    numbers = Numbers()
    numbers.to_show(["a", "b"], ["a", "b"])
    with pytest.raises(UsageError, match="number 1 waits no longer; there is 2"):
        numbers.chosen("1 yes", ["b"])
    assert numbers.chosen("2 yes", ["b"]) == ("b", "yes")
    assert numbers.to_show(["c"], ["b", "c"]) == [("c", 3)]
    with pytest.raises(UsageError, match="number 1 waits no longer; there is 2, 3"):
        numbers.chosen("1 yes", ["b", "c"])


def test_a_number_that_waits_no_longer_is_no_word_about_what_waits_alone() -> None:
    """`/deny 1 not today` refused whatever else was waiting by then."""
    numbers = Numbers()
    numbers.to_show(["a", "b"], ["a", "b"])
    assert numbers.to_show(["c"], ["c"]) == [("c", 3)]
    with pytest.raises(UsageError, match="number 1 waits no longer; there is 3"):
        numbers.chosen("1 not today", ["c"])
    with pytest.raises(UsageError, match="number 3 waits no longer; there is none"):
        numbers.chosen("3", [])


def test_the_first_that_is_shown_with_a_number_has_the_first() -> None:
    """However many were alone before."""
    numbers = Numbers()
    numbers.to_show(["a"], ["a"])
    numbers.to_show(["b"], ["b"])
    assert numbers.to_show(["c"], ["b", "c"]) == [("b", 1), ("c", 2)]


def test_what_has_come_up_and_was_not_shown_is_not_meant() -> None:
    numbers = Numbers()
    assert numbers.to_show(["a"], ["a", "b"]) == [("a", 1)]
    assert numbers.shown(["a", "b"]) == ["a"]
    assert numbers.to_show(["b"], ["a", "b"]) == [("b", 2)]
    assert numbers.to_show(["gone"], ["a", "b"]) == []


def test_what_waits_alone_may_be_called_the_first_where_nothing_else_can_be_meant() -> None:
    """Command line: /help says /approve [N], and what waits alone was shown without one."""
    numbers = Numbers()
    numbers.to_show(["a"], ["a"])
    assert numbers.called("1", ["a"]) == "a"
    assert [numbers.called(word, ["a"]) for word in ("2", "01", "pear", "")] == [None] * 4
    assert numbers.called("1", ["not shown"]) is None
    numbers.to_show(["b"], ["a", "b"])
    assert (numbers.called("1", ["a", "b"]), numbers.called("2", ["a", "b"])) == ("a", "b")
    with pytest.raises(UsageError, match="number 1 waits no longer; there is 2"):
        numbers.called("1", ["b"])
