"""Trouper: a `Model` of our own, one runtime with its journal on disk, events iterated from `session.turn`.

The journal is always on: level "write" where the rivals keep their sessions in memory, "fsync" where they are on disk.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import trio
from talk import STEPS, SYSTEM, TOOL, TOOL_DOC, Move, Say, after, opening
from works import Stage, main

from trouper import Budget, Limits, open_runtime, tool
from trouper.events import TextDelta
from trouper.models.chunks import CallDelta, CallEnd, CallStart, Chunk, Done, TextChunk
from trouper.models.protocol import ModelRequest


def _next_move(request: ModelRequest) -> Move:
    last = request.messages[-1]
    if last.role == "tool":
        return after(last.answers[-1].wire_id)
    return opening(last.text)


@cache  # made once: the script is not what is measured
def _chunks(move: Move) -> tuple[Chunk, ...]:
    if isinstance(move, Say):
        return (*map(TextChunk, move.deltas), Done("end_turn"))
    chunks: list[Chunk] = []
    for index, call in enumerate(move.calls):
        chunks += [CallStart(index, TOOL, id=call.id), CallDelta(index, call.arguments_json), CallEnd(index)]
    return (*chunks, Done("tool_use"))


class ScriptedTalk:
    name = "scripted:talk"
    context_window = None

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        self._stage.asked(len(request.messages))
        return Reply(_next_move(request), self._stage)


class Reply:
    """The chunks of one reply. By hand, as in the clients of Trouper itself: a generator would have to be closed."""

    def __init__(self, move: Move, stage: Stage) -> None:
        self._chunks = iter(_chunks(move))
        self._hang = stage.hang if isinstance(move, Say) and move.hang else None

    async def __aenter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        for chunk in self._chunks:
            if self._hang is not None and type(chunk) is Done:
                await self._hang()
            return chunk
        raise StopAsyncIteration


class TrouperPeer:
    name = "trouper"
    packages = ("trouper", "trio")
    in_stream_way = "Session.interrupt()"
    durable_way = 'journal, durability="fsync"'

    def __init__(self) -> None:
        self.stage = Stage(trio.Event, trio.sleep)

        async def work(key: str) -> str:
            return await self.stage.tool(key)

        work.__doc__ = TOOL_DOC
        # The tool changes nothing and asks nobody, and where the work is about that, it says so: then its intent needs no sync of its own.
        self._tools = {True: tool(work), False: tool(readonly=True, open_world=False)(work)}

    def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        trio.run(main)

    @asynccontextmanager
    async def open(self, directory: Path, *, durable: bool, effects: bool) -> AsyncIterator[None]:
        async with open_runtime(
            directory / "state",
            model=ScriptedTalk(self.stage),
            tools=[self._tools[effects]],
            limits=Limits(max_steps=STEPS + 2),
            budget=Budget(inline_s=60.0),  # the gate may hold a call for longer than a turn would wait by default
            durability="fsync" if durable else "write",
        ) as runtime:
            self._runtime = runtime
            yield

    async def session(self, key: str) -> Any:
        return await self._runtime.session(key, system=SYSTEM)

    async def turn(self, session: Any, text: str) -> str:
        async with session.turn(text) as turn:
            async for event in turn:
                if type(event) is TextDelta:
                    self.stage.heard()
        turn.result.raise_for_error()
        return str(turn.result.text)

    async def stop(self, session: Any) -> None:
        await session.interrupt()

    async def together(self, jobs: list[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        async with trio.open_nursery() as nursery:
            for job in jobs:
                nursery.start_soon(job)


if __name__ == "__main__":
    main(TrouperPeer)
