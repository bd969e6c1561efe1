"""A connection's bytes as a reply's chunks, for any provider that streams server-sent events: the part of a client that is not pure.

What the events mean is the business of a `ReplyReader`, one for each format.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol, Self

import trio

from trouper.core.messages import Json
from trouper.models import wire_json
from trouper.models._errors import ModelError, ModelFault, NetworkFault
from trouper.models.chunks import Chunk, KeepAlive
from trouper.models.http import ByteStream
from trouper.models.refusals import UnreadableEvent
from trouper.models.sse import BOM, ServerEvent, SseReader

#: How long the rest of a reply is waited for once the provider said how it ended: figures of usage may follow.
TAIL_S = 5.0
#: The same once its end marker has come: only the end of the body is wanted, so that the connection can serve again.
END_S = 0.5


class ReplyReader(Protocol):
    """Makes chunks of a reply's events. `end` raises `NetworkFault` if the provider never said that it was done (L14)."""

    @property
    def finished(self) -> bool:
        """Whether the provider has said how the reply ended."""

    @property
    def ended(self) -> bool:
        """Whether its end marker has come, after which nothing follows."""

    def take(self, event: ServerEvent) -> list[Chunk]: ...

    def take_whole(self, value: Json) -> Iterable[Chunk] | None:
        """A reply that came in one piece, from a gateway that does not stream; `None` if it has not the form of one."""

    def end(self) -> list[Chunk]: ...


class ChunkStream:
    """A reply's chunks, as they come. Not a generator: one left half-way needs no clean-up of its own."""

    def __init__(
        self,
        stream: ByteStream,
        reply: ReplyReader,
        provider: str,
        event_bytes_max: int,
        idle_s: float | None = None,
    ) -> None:
        self._stream = stream
        self._reply = reply
        self._provider = provider
        self._reader = SseReader(event_bytes_max=event_bytes_max)
        self._event_bytes_max = event_bytes_max
        #: Whether this is one value and no stream of events; `None` until its beginning has come.
        self._whole: bool | None = None
        self._ready: deque[Chunk] = deque()
        self._comments = 0
        self._over = False
        #: The silence after which the call is given up.
        self._idle_s = idle_s
        #: Until when the rest is waited for, once the reply is complete.
        self._tail_ends: float | None = None
        #: A fault that came after chunks which are not handed out yet; it waits for its turn.
        self._fault: ModelError | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        ready = self._ready
        while not ready:
            if self._fault is not None:
                raise self._fault
            if self._over:
                raise StopAsyncIteration
            await self._fill()
        return ready.popleft()

    def take_ready(self) -> tuple[Chunk, ...]:
        """What has arrived together with the last chunk and can be had without waiting."""
        ready = tuple(self._ready)
        self._ready.clear()
        return ready

    async def _fill(self) -> None:
        try:
            piece = await (self._receive_tail() if self._reply.finished else self._stream.receive())
            if self._whole is None:
                self._whole = _is_whole(piece, self._stream.headers.get("content-type", "").lower())
            if self._whole:
                await self._take_whole(piece)
            elif piece:
                for event in self._reader.feed(piece):
                    self._ready.extend(self._reply.take(event))
                if self._reader.comments != self._comments:
                    self._comments = self._reader.comments
                    self._ready.append(KeepAlive())
            else:
                self._take_end()
        except ModelError as fault:
            self._over = True
            # Without the frames it came from: their variables hold what the provider sent, which may repeat the key.
            self._fault = fault.with_traceback(None)

    async def _receive_tail(self) -> bytes:
        now = trio.current_time()
        if self._tail_ends is None:
            # Well before whoever watches the clock takes the reply for stalled: it is complete. And once: keep-alives do not put it off.
            self._tail_ends = now + (TAIL_S if self._idle_s is None else min(TAIL_S, self._idle_s / 2))
        with trio.move_on_at(min(self._tail_ends, now + END_S) if self._reply.ended else self._tail_ends):
            try:
                return await self._stream.receive()
            except NetworkFault:
                # The reply itself is complete.
                pass
        return b""

    def _take_end(self) -> None:
        self._over = True
        for event in self._reader.finish():
            try:
                self._ready.extend(self._reply.take(event))
            except UnreadableEvent:
                # The last event is cut short; whether that matters shows in what came before it.
                break
        self._ready.extend(self._reply.end())

    async def _take_whole(self, begun: bytes) -> None:
        body = begun + await self._stream.read_all(self._event_bytes_max)
        chunks: Iterable[Chunk] | None = None
        # Faults are raised out here: what is wrong with JSON drags the text along, which may repeat the key.
        cut = False
        try:
            chunks = self._reply.take_whole(wire_json.decode(body))
        except ValueError:
            cut = wire_json.is_cut_short(body)
        if cut:
            raise NetworkFault(
                f"{self._provider}'s reply ended in its midst: it was cut off; try again", provider=self._provider
            )
        if chunks is None:
            kind = self._stream.headers.get("content-type", "nothing")
            raise ModelFault(
                f"{self._provider} answered with {kind!r}, which is no stream of events; check base_url",
                provider=self._provider,
            )
        self._over = True
        self._ready.extend(chunks)
        self._ready.extend(self._reply.end())


def _is_whole(beginning: bytes, kind: str) -> bool | None:
    """Whether a reply that begins like this is JSON or a page; `None` if only blanks have come. Its type alone does not tell: many servers call it something else."""
    first = beginning.removeprefix(BOM).lstrip()[:1]
    if not first:
        return None
    # No field of an event begins with one of these, and all that have a meaning with one of those.
    return first in b"{[<" or (kind.startswith(("application/json", "text/html")) and first not in b":deir\xef")
