"""What can go wrong on the way from a provider, as items of a script: they stand between the chunks where they shall happen (M16)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

from attrs import field, frozen

from trouper.core.messages import Json


@frozen
class Stall:
    """Nothing is sent for so long; for ever, if not said otherwise. The server notices when the client leaves meanwhile."""

    seconds: float = math.inf


@frozen
class Drop:
    """The connection breaks after so many more bytes of the body: in the midst of the next event, if those are few."""

    after_bytes: int = 0
    #: With a reset rather than an orderly close.
    reset: bool = False


@frozen
class Status:
    """A refusal. As the first item it is the reply; later it is an error in the midst of the stream."""

    code: int
    message: str = ""
    #: The provider's name for it; made from the code if not given.
    status: str | None = None
    details: tuple[Mapping[str, Json], ...] = ()
    #: Sent in the provider's own way in the body, where it has one.
    retry_delay_s: float | None = None
    headers: Mapping[str, str] = field(factory=dict)
    #: Instead of the provider's form of error.
    body: bytes | None = None


@frozen
class RawBytes:
    """Written into the body as it is."""

    data: bytes


@frozen
class Event:
    """One event with this JSON value, whatever it may be: fields and kinds that nobody knows yet."""

    value: Json


@frozen
class Comment:
    """A line that is no event: what some providers send to keep a connection open."""

    text: str = "keep-alive"


Fault: TypeAlias = Stall | Drop | Status | RawBytes | Event | Comment


@frozen
class Style:
    """How the lines of a stream are written. All of these are the same to a reader that keeps to the standard."""

    newline: bytes = b"\n"
    bom: bool = False
    #: The body is written in pieces of this size, each on its own: characters are split wherever it falls.
    piece_bytes: int | None = None
    #: A comment before every event.
    comments: bool = False
    #: Whether the last event has its blank line.
    last_blank_line: bool = True
    #: Fields that no client knows, in every event.
    unknown_fields: bool = False
    #: JSON over several `data:` lines.
    indent: bool = False
