"""What a user of the chat types as the answer to a question, and what the tool gets of it."""

from __future__ import annotations

import pytest

from trouper import UsageError
from trouper.cli.chat_answers import answers, asked, how_to_answer
from trouper.core.messages import Json
from trouper.tools.context import Question

TOPPINGS = Question("Which toppings?", "Pizza", ("ham", "olives", "goat's cheese, mild"), multiple=True)
SIZE = Question("Which size?", choices=("small", "large"))
NAME = Question("Whose name?")


@pytest.mark.parametrize(
    ("typed", "chosen"),
    [
        ("ham", ["ham"]),
        ("ham,olives", ["ham", "olives"]),
        (" olives ,  ham, ham,", ["olives", "ham"]),
        ("goat's cheese, mild", ["goat's cheese, mild"]),
        ('ham, "goat\'s cheese, mild"', ["ham", "goat's cheese, mild"]),
        ('"ham", "olives"', ["ham", "olives"]),
        ("ham | olives", ["ham | olives"]),
        (",", [","]),
    ],
)
def test_several_choices_are_typed_with_commas(typed: str, chosen: list[str]) -> None:
    """T16: what is none of the choices is for the question to refuse, and no answer is ever empty."""
    assert answers(typed, [TOPPINGS]) == [chosen]


@pytest.mark.parametrize(
    ("typed", "values"),
    [
        ("Ada | large", ["Ada", "large"]),
        ('"Ada | Bob" | large', ["Ada | Bob", "large"]),
        (r'"the \"Ada\" | \\" | "large"', [r'the "Ada" | ' + "\\", "large"]),
        ('"Ada" Lovelace | large', ['"Ada" Lovelace', "large"]),
        ('say "hi | large', ['say "hi', "large"]),
        (" | large", ["", "large"]),
    ],
)
def test_an_answer_to_one_of_several_questions_may_have_the_separator_in_it(typed: str, values: list[Json]) -> None:
    """T16: within quotes."""
    assert answers(typed, [NAME, SIZE]) == values


@pytest.mark.parametrize("typed", ["Ada", "Ada | Bob | large", '"Ada | large"'])
def test_too_few_or_too_many_answers_are_refused_in_words_that_help(typed: str) -> None:
    with pytest.raises(
        UsageError, match=r'there are 2 questions, and [13] answers; .* "\.\.\." around one with \| in it'
    ):
        answers(typed, [NAME, SIZE])


def test_the_answer_to_a_lone_question_is_taken_as_it_is() -> None:
    """A choice also as it is shown, in quotes."""
    assert answers('"a" | b, c', [NAME]) == ['"a" | b, c']
    assert answers('"large"', [SIZE]) == ["large"]


def test_a_question_says_what_it_is_about_and_that_several_may_be_chosen() -> None:
    """T16, security, tool results."""
    assert (
        asked(TOPPINGS)
        == 'you are asked "Pizza": "Which toppings?" ("ham", "olives", "goat\'s cheese, mild"; several may be chosen, with commas)'
    )
    assert how_to_answer([TOPPINGS], None) == "/answer TEXT, TEXT..., or /answer alone to decline"
    assert (
        how_to_answer([NAME, SIZE], 2)
        == '/answer 2 TEXT | TEXT ("..." around a TEXT with | in it), or /answer 2 alone to decline'
    )
