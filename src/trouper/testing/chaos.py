"""A model that misbehaves in every way that providers do, from a seed (for simulations and for your own tests).

    model = Chaos(seed=7, tools=("add", "slow"))    # called with arguments of their schemas, and with others

Stalls, drops before and after the first word, streams without an end, keep-alives for ever, broken arguments, unknown tools, two calls with one id, arrays for arguments,
lone surrogates, the same call again and again, refusals, unknown stop reasons, rate limits with advice, context overflows, and clients that raise something of their own. With `faults=False` it answers politely and
uses its tools now and then.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

import trio

from trouper._errors import UsageError
from trouper.core.messages import Json, Opaque, ProviderPart, Usage
from trouper.models._errors import (
    AuthFailed,
    BadRequest,
    ContextOverflow,
    ModelError,
    NetworkFault,
    QuotaExceeded,
    RateLimited,
    ServerFault,
)
from trouper.models.chunks import (
    CallDelta,
    CallEnd,
    CallStart,
    Chunk,
    Done,
    KeepAlive,
    PartChunk,
    TextChunk,
    ThinkingChunk,
    UsageChunk,
)
from trouper.models.protocol import ModelRequest
from trouper.testing.fitting import fitting

_WORDS = ("so ", "the ", "order ", "is ", "on ", "its ", "way ", "\u2028", "é", "\U0001f600", " ", "\n", "42 ", "\x00")
#: Of a tool that the request does not show.
_UNKNOWN: Mapping[str, Json] = {"type": "object", "properties": {"n": {"type": "integer"}}}
_ODD_STOPS = ("end_turn", "stop_sequence", "a_new_reason", "max_tokens", "refusal", "pause_turn")


class Chaos:
    """A chaotic model. `requests` keeps what it was asked, so that a test can validate every request."""

    name = "chaos:model"

    def __init__(
        self,
        seed: int | random.Random,
        *,
        tools: Sequence[str] = (),
        faults: bool = True,
        context_window: int | None = None,
    ) -> None:
        self._random = random.Random(seed) if isinstance(seed, int) else seed
        self._tools = _names(tools)
        self.faults = faults
        self.context_window = context_window
        self.requests: list[ModelRequest] = []
        #: The session and turn in which it has got stuck, and what it says there again and again.
        self._rut: tuple[tuple[str, int], list[Chunk]] | None = None
        self.open_streams = 0

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[Chunk]]:
        self.requests.append(request)
        draw = self._random
        await trio.sleep(draw.choice((0.0, 0.01, 0.4)))
        if self.faults and draw.random() < 0.15:
            if draw.random() < 0.2:
                await trio.sleep(draw.choice((5.0, 60.0)))  # Connecting takes for ever.
            raise self._error()
        self.open_streams += 1
        try:
            yield self._chunks(request)
        finally:
            self.open_streams -= 1

    def _error(self) -> ModelError:
        draw = self._random
        return draw.choice(
            (
                RateLimited("slow down", retry_after_s=draw.choice((None, 0.5, 3.0))),
                ServerFault("overloaded", status=503),
                NetworkFault("connection refused"),
                AuthFailed("the key is wrong", status=401),
                QuotaExceeded("no more credit"),
                BadRequest("no", status=400),
                ContextOverflow("too long"),
            )
        )

    async def _chunks(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        draw = self._random
        for chunk in self._plan(request):
            if self.faults:
                await self._trouble()
            if draw.random() < 0.3:
                await trio.sleep(draw.choice((0.0, 0.02, 0.5)))
            yield chunk
            if isinstance(chunk, TextChunk) and self.faults and draw.random() < 0.02:
                yield chunk  # A duplicate, as some proxies send.

    async def _trouble(self) -> None:
        draw = self._random
        match draw.randrange(120):
            case 0:
                await trio.sleep(draw.choice((20.0, 200.0)))
            case 1:
                raise NetworkFault("the connection was lost")
            case 2:
                raise ServerFault("internal", status=500)
            case 3:
                raise RuntimeError("a bug in the client")
            case _:
                pass

    def _plan(self, request: ModelRequest) -> list[Chunk]:
        draw = self._random
        chunks: list[Chunk] = []
        if draw.random() < 0.3:
            chunks.append(ThinkingChunk("let me think"))
            chunks.append(ThinkingChunk("", signature=f"sig-{draw.randrange(10**6)}"))
        if self.faults and draw.random() < 0.1:
            chunks += [KeepAlive()] * draw.randrange(1, 4)
        if draw.random() < 0.8:
            chunks += [TextChunk(draw.choice(_WORDS)) for _ in range(draw.randrange(1, 6))]
        if self.faults and draw.random() < 0.05:
            chunks.append(TextChunk("\ud800 lone"))
        if self.faults and draw.random() < 0.05:
            chunks.append(PartChunk(ProviderPart(Opaque("chaos", {"kind": "new", "n": draw.randrange(100)}))))
        used = any(m.role == "tool" for m in request.messages[-2:])
        often = 1.0 if self._is_stuck(request) else 0.3 if used else 0.6
        if self._tools and request.tools and request.purpose == "turn" and draw.random() < often:
            chunks += self._calls(request)
        elif not any(isinstance(c, TextChunk) and c.text.strip() for c in chunks) and not self.faults:
            chunks.append(TextChunk("done."))
        chunks.append(UsageChunk(Usage(input=draw.randrange(10, 4000), output=draw.randrange(1, 100))))
        if not (self.faults and draw.random() < 0.04):
            stop = draw.choice(_ODD_STOPS) if self.faults and draw.random() < 0.1 else "end_turn"
            chunks.append(Done(stop))
        return chunks

    def _calls(self, request: ModelRequest) -> list[Chunk]:
        if self._rut is not None and self._is_stuck(request):
            return self._rut[1]
        chunks = self._new_calls(request)
        if self.faults and self._random.random() < 0.1:
            self._rut = ((request.session, request.turn), chunks)
        return chunks

    def _is_stuck(self, request: ModelRequest) -> bool:
        return self._rut is not None and self._rut[0] == (request.session, request.turn)

    def _new_calls(self, request: ModelRequest) -> list[Chunk]:
        draw = self._random
        schemas = {spec.name: spec.parameters for spec in request.tools}
        chunks: list[Chunk] = []
        for index in range(draw.choice((1, 1, 2, 3))):
            name = draw.choice(self._tools)
            id = draw.choice((None, f"p{draw.randrange(10**6)}", "same"))
            chunks.append(CallStart(index, "no_such_tool" if self.faults and draw.random() < 0.05 else name, id))
            schema = schemas.get(name, _UNKNOWN)
            if draw.random() < 0.5:
                chunks.append(CallEnd(index, fitting(schema, draw)))
                continue
            text = self._text(schema)
            cut = draw.randrange(len(text) + 1)
            chunks += [CallDelta(index, text[:cut]), CallDelta(index, text[cut:])]
            if not (self.faults and draw.random() < 0.05):
                chunks.append(CallEnd(index))
        return chunks

    def _text(self, schema: Mapping[str, Json]) -> str:
        """Arguments as a stream brings them: whole; with faults, cut, of another type, or nothing of the kind."""
        draw = self._random
        properties = schema.get("properties", {})
        if tuple(properties) == ("n",):
            # What the simulator's own tools take: shorter runs that are easier to read.
            name, whole = "n", '{"n": 1}'
        else:
            name, whole = next(iter(properties), "n"), json.dumps(fitting(schema, draw))
        if not self.faults:
            return whole
        begun = f'{{"{name}": '
        return draw.choice(
            (
                whole,
                begun + '"2"}',
                begun + "3",
                "[1, 2]",
                "",
                "null",
                begun + "{}}",
                begun + "[" * 50,
                begun + '"\\ud800"}',
            )
        )


def _names(tools: object) -> tuple[str, ...]:
    """A tool itself would come up as a broken chunk, and only with some seeds; of one text each letter would be an unknown tool."""
    if isinstance(tools, str) or not isinstance(tools, Iterable):
        raise UsageError(f"tools={tools!r} is no list of names; write tools=['add']")
    names = tuple(tools)
    for name in names:
        if not isinstance(name, str):
            raise UsageError(
                f"{name!r} in tools is no name; write tools=['add'], and give the tool itself to the runtime"
            )
    return names
