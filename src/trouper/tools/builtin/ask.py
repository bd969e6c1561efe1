"""ask_user: questions to the user in the middle of a turn (T16)."""

from __future__ import annotations

from typing import Annotated

from attrs import field, frozen

from trouper.core.messages import Json
from trouper.tools.context import Question, ToolContext
from trouper.tools.define import tool
from trouper.tools.errors import ToolError
from trouper.tools.schema import Param

QUESTIONS_MAX = 4
CHOICES_MAX = 10
TIMEOUT_MAX_S = 24 * 3600


@frozen
class AskedQuestion:
    text: Annotated[str, Param("The question", min_length=1, max_length=2000)]
    header: Annotated[str, Param("Two or three words that say what it is about", max_length=40)] = ""
    choices: Annotated[list[str], Param("Answers to choose from; empty for free text", max_length=CHOICES_MAX)] = field(
        factory=list
    )
    multiple: Annotated[bool, "More than one choice may be picked"] = False
    secret: Annotated[bool, "The answer is a password or key: it is stored, and only a reference comes back"] = False


@tool(
    display_name="Ask User",
    idempotent=True,
    destructive=False,
    open_world=False,
    long_running=True,
    timeout_s=0,
    needs=("asker",),
)
async def ask_user(
    context: ToolContext,
    questions: Annotated[list[AskedQuestion], Param("The questions", min_length=1, max_length=QUESTIONS_MAX)],
    timeout_s: Annotated[int | None, Param("Seconds to wait for the user", ge=1, le=TIMEOUT_MAX_S)] = None,
) -> Json:
    """Ask the user up to four questions and wait for the answers. Use it when you cannot go on without them. The user may also decline, or not answer in time.

    Limits: {QUESTIONS_MAX} questions, {CHOICES_MAX} choices each, {TIMEOUT_MAX_S} s.
    Errors: `multiple` without choices; a secret with choices; choices that are blank or repeat.
    """
    for number, question in enumerate(questions, 1):
        _check(question, number)
    asked = [
        Question(each.text, each.header, tuple(each.choices), multiple=each.multiple, secret=each.secret)
        for each in questions
    ]
    reply = await context.ask_user(*asked, timeout_s=timeout_s)
    if reply.status != "answered":
        return {"status": reply.status}
    answers = [{"question": each.text, "answer": value} for each, value in zip(questions, reply.values, strict=True)]
    return {"status": reply.status, "answers": answers}


def _check(question: AskedQuestion, number: int) -> None:
    if question.multiple and not question.choices:
        raise ToolError(f"question {number} allows several choices but has none; give choices, or leave multiple out")
    if question.secret and question.choices:
        raise ToolError(
            f"question {number} asks for a secret, which cannot be one of some choices; leave the choices out"
        )
    if len(question.choices) == 1:
        raise ToolError(f"question {number} has one choice, which is none; give two or more")
    if len({choice.strip() for choice in question.choices} - {""}) != len(question.choices):
        raise ToolError(f"question {number} has choices that are blank or repeat; make each different")
