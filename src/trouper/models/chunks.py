"""What a model's stream is made of.

A call's pieces carry an index, so that fragments of parallel calls may interleave. Text, thinking and the start of a call are *progress* (L5);
usage, keep-alives and blank text are not. A stream that ends without `Done` was cut off (L14).
"""

from __future__ import annotations

from typing import TypeAlias

from trouper.core.messages import Fault, Json, Opaque, Part, Usage
from trouper.core.values import frozen


@frozen(frequent=True)
class TextChunk:
    """A piece of the reply."""

    text: str
    opaque: Opaque | None = None


@frozen(frequent=True)
class ThinkingChunk:
    """Reasoning. With a signature and no text it emits nothing, but is kept (L4)."""

    text: str = ""
    signature: str | None = None
    opaque: Opaque | None = None


@frozen(frequent=True)
class CallStart:
    """A tool call begins; its arguments follow."""

    index: int
    name: str
    #: The provider's id of the call, if it gives one.
    id: str | None = None
    opaque: Opaque | None = None


@frozen(frequent=True)
class CallDelta:
    """A fragment of the arguments' JSON text."""

    index: int
    fragment: str


@frozen(frequent=True)
class CallEnd:
    """A tool call is complete."""

    index: int
    #: The arguments, where the provider sends them parsed; else `None`, and the fragments are parsed (L16).
    arguments: Json | None = None
    opaque: Opaque | None = None


@frozen
class PartChunk:
    """A whole part of another kind: an image, executable code, something newer than this client (M4)."""

    part: Part


@frozen
class UsageChunk:
    """Cumulative within the call: the last one counts."""

    usage: Usage


@frozen
class KeepAlive:
    """The connection lives, but nothing was said: does not hold off the idle deadline (L12)."""


@frozen
class Switched:
    """A model failed before any progress, and another one goes on in its place (M6). Says nothing; it is recorded as a retry.

    Usage that was told before it is what the failed one has cost; the next model's is counted anew.
    """

    fault: Fault


@frozen(frequent=True)
class Done:
    """The provider's own end marker."""

    #: end_turn, tool_use, max_tokens, refusal, stop_sequence, pause_turn, or the provider's own word for something newer.
    stop_reason: str
    #: Why, where the provider says more (the safety category of a refusal).
    detail: str | None = None


Chunk: TypeAlias = (
    TextChunk | ThinkingChunk | CallStart | CallDelta | CallEnd | PartChunk | UsageChunk | KeepAlive | Switched | Done
)
