"""The floor: a bare trio loop that moves the same chunks through memory channels. No history, no rules, no journal.

One model task and one session task a session. A delta goes from the model to the caller through one memory channel,
each awaited; the chunks of a call (its start, its arguments, its end) and the end of a reply go from the model to the session through another. The durable
variant appends two lines a step to a file, each with `fdatasync` in the same thread: what any runtime must pay that records a call before it acts and
its result before it goes on.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from talk import ToolUse, Use, after, opening
from works import Stage, main

CHANNEL_MAX = 32


Out = trio.MemorySendChannel[str]


class FloorSession:
    def __init__(self) -> None:
        self.mail_in, self.mail = trio.open_memory_channel[tuple[str, Out]](CHANNEL_MAX)
        self.asks_in, self.asks = trio.open_memory_channel[tuple[str | Use, Out]](CHANNEL_MAX)
        self.chunks_in, self.chunks = trio.open_memory_channel[ToolUse | str | None](CHANNEL_MAX)
        self.turn_scope = trio.CancelScope()
        self.reply_scope = trio.CancelScope()
        self.past = 0


class Floor:
    name = "floor"
    packages = ("trio",)
    in_stream_way = "CancelScope.cancel()"
    durable_way = "append + fdatasync inline, twice a step"

    def __init__(self) -> None:
        self.stage = Stage(trio.Event, trio.sleep)
        self._file: int | None = None

    def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        trio.run(main)

    @asynccontextmanager
    async def open(self, directory: Path, *, durable: bool, effects: bool) -> AsyncIterator[None]:
        self._file = os.open(directory / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND) if durable else None
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            yield
            nursery.cancel_scope.cancel()
        if self._file is not None:
            os.close(self._file)

    def _sync(self) -> None:
        if self._file is not None:
            os.write(self._file, b"x" * 300 + b"\n")
            os.fdatasync(self._file)

    async def session(self, key: str) -> FloorSession:
        session = FloorSession()
        self._nursery.start_soon(self._model, session)
        self._nursery.start_soon(self._serve, session)
        return session

    async def _model(self, session: FloorSession) -> None:
        async for asked, out in session.asks:
            self.stage.asked(session.past + 1)
            move = opening(asked) if isinstance(asked, str) else after(asked.calls[-1].id)
            if isinstance(move, Use):
                for call in move.calls:
                    await session.chunks_in.send(call.id)
                    await session.chunks_in.send(call.key)
                    await session.chunks_in.send(call)
                await session.chunks_in.send(None)
                continue
            session.reply_scope = trio.CancelScope()
            with session.reply_scope:
                for delta in move.deltas:
                    await out.send(delta)
                if move.hang:
                    await self.stage.hang()
            await session.chunks_in.send(None)

    async def _serve(self, session: FloorSession) -> None:
        async for text, out in session.mail:
            session.turn_scope = trio.CancelScope()
            with session.turn_scope:
                await self._one_turn(session, text, out)
            session.past += 2
            await out.aclose()

    async def _one_turn(self, session: FloorSession, text: str, out: Out) -> None:
        asked: str | Use = text
        while True:
            await session.asks_in.send((asked, out))
            calls: list[ToolUse] = []
            while (chunk := await session.chunks.receive()) is not None:
                if isinstance(chunk, ToolUse):
                    calls.append(chunk)
            if not calls:
                return
            self._sync()
            if len(calls) == 1:
                await self.stage.tool(calls[0].key)
            else:
                async with trio.open_nursery() as nursery:
                    for call in calls:
                        nursery.start_soon(self.stage.tool, call.key)
            self._sync()
            asked = Use(tuple(calls))

    async def turn(self, session: FloorSession, text: str) -> str:
        out, replies = trio.open_memory_channel[str](CHANNEL_MAX)
        await session.mail_in.send((text, out))
        parts = []
        async for delta in replies:
            self.stage.heard()
            parts.append(delta)
        return "".join(parts)

    async def stop(self, session: FloorSession) -> None:
        # While the model speaks the session waits for it, so ending the reply ends the turn.
        if session.chunks.statistics().tasks_waiting_receive:
            session.reply_scope.cancel()
        else:
            session.turn_scope.cancel()

    async def together(self, jobs: list[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        async with trio.open_nursery() as nursery:
            for job in jobs:
                nursery.start_soon(job)


if __name__ == "__main__":
    main(Floor)
