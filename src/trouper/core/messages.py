"""What a conversation is made of: parts, messages, and what is offered to a model.

A history is a sequence of messages with three roles. `user` speaks (people, notifications, summaries), `assistant` is the model, and a `tool` message
answers *all* the calls of the assistant message before it, in the order in which they were declared. Providers that know two roles only
are given tool messages in the form they want; nobody else needs to care.

Values are frozen and shared, never copied: a history of a thousand messages costs a longer one next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal, TypeAlias

from trouper.core.ids import CallId
from trouper.core.values import frozen

#: Whatever `json` can write: null, booleans, numbers, text, lists, and objects with text keys.
Json: TypeAlias = Any


@frozen
class Opaque:
    """Fields that only their provider understands (signatures, ids, encrypted reasoning), returned to it byte for byte (I7)."""

    provider: str
    data: Mapping[str, Json]


@frozen(frequent=True)
class Text:
    """What the user wrote, or the model said."""

    text: str
    opaque: Opaque | None = None


@frozen
class Thinking:
    """The model's reasoning. The signature belongs to this very text, at this very place."""

    text: str
    signature: str | None = None
    opaque: Opaque | None = None


@frozen(frequent=True)
class ToolCall:
    """A call that the model asks for."""

    id: CallId
    name: str
    arguments: Json
    #: The id that the provider gave, if it did and it is unique in its message; else the wire carries `id`.
    provider_id: str | None = None
    opaque: Opaque | None = None

    @property
    def wire_id(self) -> str:
        """The id that requests to the provider carry."""
        return self.provider_id or self.id


@frozen
class Media:
    """An image, a document or other bytes: inline as base64, or by reference."""

    mime_type: str
    data: str | None = None
    uri: str | None = None
    name: str | None = None
    opaque: Opaque | None = None


@frozen
class ProviderPart:
    """A part of a kind that we do not know: kept whole, and returned to its provider at the same place (M4)."""

    opaque: Opaque


class Outcome(Enum):
    """How a call ended. Every call ends in exactly one of these (I1)."""

    OK = "ok"
    ERROR = "error"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    DENIED = "denied"
    #: The process died between intent and outcome: nobody knows whether the tool did its work (J12).
    UNKNOWN = "unknown"


@frozen(frequent=True)
class ToolAnswer:
    """What the model is told of one call."""

    call_id: CallId
    name: str
    outcome: Outcome
    #: Any JSON value; text for errors. Already capped (T9).
    content: Json
    images: tuple[Media, ...] = ()
    #: The provider's id of the call answered, as in `ToolCall`.
    provider_id: str | None = None

    @property
    def wire_id(self) -> str:
        """The id that requests to the provider carry."""
        return self.provider_id or self.call_id


Part: TypeAlias = Text | Thinking | ToolCall | Media | ProviderPart | ToolAnswer
Role: TypeAlias = Literal["user", "assistant", "tool"]
#: Why a message is there: an ordinary one; a reply cut short by an interrupt or a fault; a summary made by compaction; a note of
#: the runtime's own (loop warning, dropped turns); a delivered notification.
Kind: TypeAlias = Literal["normal", "cut_short", "summary", "note", "notification"]


@frozen(frequent=True)
class Message:
    """One message of the history: who, and its parts in order."""

    role: Role
    parts: tuple[Part, ...]
    kind: Kind = "normal"

    @property
    def text(self) -> str:
        """All visible text, joined."""
        text = ""
        for part in self.parts:
            if type(part) is Text:
                text += part.text
        return text

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls that it asks for, in order."""
        calls: list[ToolCall] = []
        for part in self.parts:
            if type(part) is ToolCall:
                calls.append(part)
        return tuple(calls)

    @property
    def answers(self) -> tuple[ToolAnswer, ...]:
        """The answers to calls that it brings, in order."""
        answers: list[ToolAnswer] = []
        for part in self.parts:
            if type(part) is ToolAnswer:
                answers.append(part)
        return tuple(answers)


@frozen
class ToolSpec:
    """A tool as the model sees it."""

    name: str
    description: str
    #: JSON Schema of the arguments, an object.
    parameters: Mapping[str, Json]


@frozen(frequent=True)
class Usage:
    """Tokens of one or more model calls. `None`: the provider never reported any, which is not the same as 0 (L24)."""

    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    reasoning: int | None = None

    def __add__(self, other: Usage) -> Usage:
        if other is NO_USAGE:
            return self
        if self is NO_USAGE:
            return other
        return Usage(
            _sum(self.input, other.input),
            _sum(self.output, other.output),
            _sum(self.cache_read, other.cache_read),
            _sum(self.cache_write, other.cache_write),
            _sum(self.reasoning, other.reasoning),
        )

    @property
    def total(self) -> int | None:
        """Input and output together; the other buckets are parts of these two."""
        return _sum(self.input, self.output)


NO_USAGE = Usage()


def _sum(left: int | None, right: int | None) -> int | None:
    if left is None:
        return right
    return left if right is None else left + right


@frozen
class Fault:
    """Why a model call, a turn or a task failed, as data: what the journal keeps of an exception."""

    #: rate_limit, auth, quota, context_overflow, bad_request, server, network, other; or a turn's own: silent_stop, no_progress...
    kind: str
    message: str
    retryable: bool = False
    retry_after_s: float | None = None
