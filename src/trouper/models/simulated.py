"""A model that needs no key and no network: the embedded default (M15).

It understands a handful of plain requests and uses the tools that it is offered, so that a newcomer sees tools, spill, notifications and recovery work:

    "read notes.txt"            read_file            "what is 3 * (4 + 5)?"    add, subtract, multiply, divide
    "list the files in docs"    list_directory       "what time is it?"        get_current_time
    "write hello to a.txt"      write_file           "run slow_report"         any tool by its name, with key=value arguments
    "remember that ..."         remember, kv_store   "what do you remember?"   recall, kv_store

Anything else it echoes. The same request gives the same reply; each one is kept in `requests`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

import trio

from trouper.core.messages import Message, Usage
from trouper.core.tokens import estimate_json, estimate_message, estimate_text
from trouper.models.chunks import CallDelta, CallEnd, CallStart, Chunk, Done, TextChunk, ThinkingChunk, UsageChunk
from trouper.models.protocol import ModelRequest
from trouper.models.simulated_reading import Say, answer

#: Requests that are kept to look at; older ones go.
REQUESTS_KEPT = 1_000


class Simulated:
    """The simulated model. Latencies are seconds: before the first piece, and between pieces (about a word each)."""

    def __init__(
        self,
        *,
        first_delay_s: float = 0.0,
        delay_s: float = 0.0,
        thinking: bool = True,
        name: str = "simulated:plain",
        context_window: int | None = 128_000,
    ) -> None:
        self.name = name
        self.context_window = context_window
        self.requests: list[ModelRequest] = []
        #: Streams opened and not yet closed; 0 when nothing leaks.
        self.open_streams = 0
        self._first_delay_s = first_delay_s
        self._delay_s = delay_s
        self._thinking = thinking

    def __repr__(self) -> str:
        return f"<Simulated {self.name}>"

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[Chunk]]:
        if len(self.requests) >= REQUESTS_KEPT:
            del self.requests[0]
        self.requests.append(request)
        await trio.lowlevel.checkpoint()
        self.open_streams += 1
        try:
            yield self._chunks(request)
        finally:
            self.open_streams -= 1

    async def _chunks(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        said = answer(request)
        delay = self._first_delay_s
        for chunk in self._pieces(said):
            if delay:
                await trio.sleep(delay)
            delay = self._delay_s
            yield chunk
        yield UsageChunk(_usage(request, said, self._thinking))
        yield Done("tool_use" if said.calls else "end_turn")

    def _pieces(self, said: Say) -> Iterator[Chunk]:
        if self._thinking and said.thinking:
            yield from (ThinkingChunk(piece) for piece in _words(said.thinking))
        yield from (TextChunk(piece) for piece in _words(said.text))
        for index, (name, arguments) in enumerate(said.calls):
            yield CallStart(index, name)
            yield CallDelta(index, arguments)
            yield CallEnd(index)


def _words(text: str) -> Iterator[str]:
    """Text in pieces that end where a word does."""
    start = 0
    while start < len(text):
        end = text.find(" ", start) + 1 or len(text)
        yield text[start:end]
        start = end


def _usage(request: ModelRequest, said: Say, thinking: bool) -> Usage:
    asked = sum(map(estimate_message, request.messages))
    asked += estimate_text(request.system or "")
    asked += sum(estimate_text(spec.description) + estimate_json(dict(spec.parameters)) for spec in request.tools)
    thought = estimate_text(said.thinking) if thinking else 0
    spoken = estimate_text(said.text) + sum(estimate_text(name + arguments) for name, arguments in said.calls)
    return Usage(
        input=asked, output=spoken + thought, cache_read=_cached(request.messages), cache_write=0, reasoning=thought
    )


def _cached(messages: Sequence[Message]) -> int:
    """As a provider's cache would: all but the newest message was seen before."""
    return sum(map(estimate_message, messages[:-1]))
