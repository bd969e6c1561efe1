"""A script's reply written as a stream of server-sent events, with its faults where they stand: what the providers' formats share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import orjson
import trio
from attrs import frozen

from trouper.core.messages import Json, Opaque
from trouper.models import wire_json
from trouper.models.chunks import Chunk, KeepAlive
from trouper.testing.server.faults import Comment, Drop, Event, RawBytes, Stall, Status, Style
from trouper.testing.server.listener import Responder
from trouper.testing.server.script import Item


@frozen
class WireEvent:
    """One event: its name on the `event:` line, if the format has one, and its value; text is written as it is."""

    value: Json
    name: str = ""


def fields_of(opaque: Opaque | None) -> dict[str, Any]:
    """A provider's own fields. Whoever wrote the script, here it is the played one that speaks."""
    return dict(opaque.data) if opaque is not None else {}


class Writer(Protocol):
    """Chunks as a provider's events."""

    @property
    def has_end(self) -> bool:
        """Whether the format has events of its own after the last item, such as an end marker."""

    def events(self, chunk: Chunk) -> Iterator[WireEvent]: ...

    def finish(self) -> Iterator[WireEvent]:
        """What follows the last item, if the reply was brought to its end."""

    def raw(self, value: Json) -> WireEvent:
        """An event of the script's own making."""

    def error(self, status: Status) -> WireEvent:
        """A refusal in the midst of the stream."""

    def ping(self) -> WireEvent | None:
        """The provider's own keep-alive; `None` where that is a comment."""


class StreamPlayer:
    """One reply being streamed."""

    def __init__(
        self,
        style: Style,
        respond: Responder,
        writer: Writer,
        unknown: Callable[[dict[str, Json]], dict[str, Json]],
        headers: Mapping[str, str],
    ) -> None:
        self._style = style
        self._respond = respond
        self._writer = writer
        #: Adds fields of tomorrow to an event.
        self._unknown = unknown
        self._headers = {"content-type": "text/event-stream; charset=utf-8", "transfer-encoding": "chunked", **headers}
        self._drop: Drop | None = None
        self._left = 0

    async def play(self, items: Sequence[Item]) -> None:
        await self._respond.start(200, self._headers)
        if self._style.bom:
            await self._send(b"\xef\xbb\xbf")
        final = -1 if self._writer.has_end else len(items) - 1
        for position, item in enumerate(items):
            await self._play(item, last=position == final)
        last = list(self._writer.finish())
        for position, event in enumerate(last):
            await self._event(event, last=position == len(last) - 1)
        if self._drop is not None:
            self._respond.drop(reset=self._drop.reset)
        await self._respond.end()

    async def _play(self, item: Item, *, last: bool) -> None:
        match item:
            case Stall(seconds):
                await trio.sleep(seconds)
            case Drop():
                self._drop, self._left = item, item.after_bytes
                if not item.after_bytes:
                    self._respond.drop(reset=item.reset)
            case RawBytes(data):
                await self._send(data)
            case Comment(text):
                await self._send(b": " + text.encode() + self._style.newline)
            case KeepAlive():
                if (ping := self._writer.ping()) is not None:
                    await self._event(ping, last=last)
                else:
                    await self._send(b": keep-alive" + self._style.newline * 2)
            case Event(value):
                await self._event(self._writer.raw(value), last=last)
            case Status():
                await self._event(self._writer.error(item), last=last)
            case _:
                for event in self._writer.events(item):
                    await self._event(event, last=last)

    async def _event(self, event: WireEvent, *, last: bool) -> None:
        style, value = self._style, event.value
        if style.unknown_fields and isinstance(value, dict):
            value = self._unknown(value)
        if isinstance(value, str):
            text = value.encode()
        else:
            text = orjson.dumps(value, option=orjson.OPT_INDENT_2) if style.indent else wire_json.encode(value)
        lines = [b"data: " + line for line in text.split(b"\n")]
        if event.name:
            lines.insert(0, b"event: " + event.name.encode())
        if style.comments:
            lines.insert(0, b": a comment")
        end = style.newline * (2 if style.last_blank_line or not last else 0)
        await self._send(style.newline.join(lines) + end)

    async def _send(self, data: bytes) -> None:
        if self._drop is not None:
            data = data[: self._left]
            self._left -= len(data)
        size = self._style.piece_bytes or len(data) or 1
        for start in range(0, len(data), size):
            await self._respond.send(data[start : start + size])
        if self._drop is not None and not self._left:
            self._respond.drop(reset=self._drop.reset)


async def gather(items: Iterable[Item], writer: Writer, respond: Responder) -> list[Json] | Status:
    """The values of a reply's events for one that is not streamed; or the refusal that stands in it."""
    values: list[Json] = []
    for item in items:
        match item:
            case Status():
                return item
            case Stall(seconds):
                await trio.sleep(seconds)
            case Drop():
                respond.drop(reset=item.reset)
            case Event(value):
                values.append(value)
            case Comment() | RawBytes() | KeepAlive():
                pass
            case _:
                values.extend(event.value for event in writer.events(item))
    values.extend(event.value for event in writer.finish() if not isinstance(event.value, str))
    return values
