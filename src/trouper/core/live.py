"""What a watcher sees between two recorded events: live, in order, and gone when missed. The journal has the same text in the reply's record."""

from __future__ import annotations

from typing import TypeAlias

from trouper.core.ids import CallId
from trouper.core.messages import Json
from trouper.core.values import frozen


@frozen(frequent=True)
class TextDelta:
    """A piece of the reply, exactly as the provider sent it. All pieces of a step share one message id (L4)."""

    message: str
    text: str


@frozen(frequent=True)
class ThinkingDelta:
    """A piece of the model's reasoning."""

    message: str
    text: str


@frozen(frequent=True)
class CallAnnounced:
    """The model has begun to write a tool call; its arguments are still coming."""

    name: str
    index: int


@frozen
class ToolProgress:
    """How far a call or run has come."""

    call: CallId
    current: float | None = None
    total: float | None = None
    unit: str = ""
    label: str = ""


@frozen
class ToolStatus:
    """One line on what a call is doing now."""

    call: CallId
    text: str


@frozen
class ToolOutput:
    """More live output of a call."""

    call: CallId
    stream: str
    delta: str


@frozen
class QuestionAsked:
    """A tool asks the user something: see `session.questions` and `session.answer_question()` (T16)."""

    question: str
    call: CallId | None
    texts: tuple[str, ...]


@frozen
class CaughtUp:
    """The reader was too slow for the live feed; recorded events were read from the journal instead, and live deltas in between are missing."""

    missed: Json = None


LiveEvent: TypeAlias = (
    TextDelta | ThinkingDelta | CallAnnounced | ToolProgress | ToolStatus | ToolOutput | QuestionAsked | CaughtUp
)
