"""Questions as the user of a chat sees them, and what is typed as the answer to them (T16). Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trouper._errors import UsageError
from trouper.cli.terminal import clean_line, in_full
from trouper.core.messages import Json
from trouper.tools.context import Question

_QUOTED = re.compile(r'\s*"((?:\\.|[^"\\])*)"\s*', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def asked(question: Question) -> str:
    """In quotes: whoever asks chooses the words, and could choose those in which approvals are asked for."""
    header = f"{in_full(clean_line(question.header))}: " if question.header else ""
    several = "; several may be chosen, with commas" if question.multiple else ""
    choices = f" ({', '.join(map(in_full, question.choices))}{several})" if question.choices else ""
    secret = " (a secret: it is stored, and not told to the model)" if question.secret else ""
    return f"you are asked {header}{in_full(clean_line(question.text))}{choices}{secret}"


def how_to_answer(questions: Sequence[Question], number: int | None) -> str:
    command = "/answer" if number is None else f"/answer {number}"
    parts = " | ".join("TEXT, TEXT..." if each.multiple else "TEXT" for each in questions)
    quotes = ' ("..." around a TEXT with | in it)' if len(questions) > 1 else ""
    return f"{command} {parts}{quotes}, or {command} alone to decline"


def answers(text: str, questions: Sequence[Question]) -> list[Json]:
    """A value for each question. The text for a lone one is taken as it is."""
    parts = [text] if len(questions) == 1 else _parts(text, "|")
    if len(parts) != len(questions):
        raise UsageError(
            f'there are {len(questions)} questions, and {len(parts)} answers; separate the answers with |, and write "..." around one with | in it'
        )
    return [_value(part, question) for part, question in zip(parts, questions, strict=True)]


def _value(text: str, question: Question) -> Json:
    if text in question.choices or not question.choices:
        return [text] if question.multiple and question.choices else text
    if question.multiple:
        return list(dict.fromkeys(filter(None, _parts(text, ",")))) or [text]
    # The choices are shown in quotes, and may be typed as they are shown.
    return _bare(text)


def _parts(text: str, separator: str) -> list[str]:
    """What stands between the separators. A part in double quotes may have some in it; a backslash before a quote in there makes it one of the part's."""
    parts: list[str] = []
    at = 0
    while True:
        quoted = _QUOTED.match(text, at)
        end = quoted.end() if quoted and text[quoted.end() :][:1] in ("", separator) else text.find(separator, at)
        part = text[at:] if end < 0 else text[at:end]
        parts.append(_bare(part.strip()))
        if end < 0 or end == len(text):
            return parts
        at = end + 1


def _bare(text: str) -> str:
    quoted = _QUOTED.fullmatch(text)
    return _ESCAPED.sub(r"\1", quoted[1]) if quoted else text
