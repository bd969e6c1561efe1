"""pydantic-ai: one `Agent`, a `FunctionModel` that streams, `run_stream_events`, history carried by the caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, RunCancelled
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from talk import SYSTEM, TOOL_DOC, Move, Say, after, opening
from works import Skip, Stage, main

# No instrumentation: pydantic-ai records nothing unless `Agent.instrument_all` or logfire turns it on.


def _next_move(messages: list[ModelMessage]) -> Move:
    last = messages[-1]
    assert isinstance(last, ModelRequest)
    part = last.parts[-1]
    if isinstance(part, ToolReturnPart):
        return after(part.tool_call_id)
    assert isinstance(part, UserPromptPart) and isinstance(part.content, str)
    return opening(part.content)


class PydanticSession:
    def __init__(self) -> None:
        self.messages: list[ModelMessage] = []
        self.events: Any = None


class PydanticAI:
    name = "pydantic-ai"
    packages = ("pydantic-ai-slim", "pydantic")
    in_stream_way = "AgentRunEvents.cancel()"
    durable_way = ""

    def __init__(self) -> None:
        self.stage = Stage(asyncio.Event, asyncio.sleep)
        self._agent = Agent(FunctionModel(stream_function=self._stream), instructions=SYSTEM)

        async def work(key: str) -> str:
            return await self.stage.tool(key)

        work.__doc__ = TOOL_DOC
        self._agent.tool_plain(work)

    async def _stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        self.stage.asked(len(messages))
        move = _next_move(messages)
        if isinstance(move, Say):
            for delta in move.deltas:
                yield delta
            if move.hang:
                await self.stage.hang()
            return
        for index, call in enumerate(move.calls):
            yield {index: DeltaToolCall(name="work", json_args=call.arguments_json, tool_call_id=call.id)}

    def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run(main())

    @asynccontextmanager
    async def open(self, directory: Path, *, durable: bool, effects: bool) -> AsyncIterator[None]:
        if durable:
            raise Skip("no durable session of its own; it needs an engine such as dbos or temporal beside it")
        yield

    async def session(self, key: str) -> PydanticSession:
        return PydanticSession()

    async def turn(self, session: PydanticSession, text: str) -> str:
        try:
            async with self._agent.run_stream_events(text, message_history=session.messages) as events:
                session.events = events
                async for event in events:
                    if isinstance(event, PartDeltaEvent):
                        if isinstance(event.delta, TextPartDelta):
                            self.stage.heard()
                    elif isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                        self.stage.heard()  # the first delta of a part comes with its start
                session.messages = events.result.all_messages()
                return str(events.result.output)
        except RunCancelled:
            session.messages = events.all_messages()
            return ""

    async def stop(self, session: PydanticSession) -> None:
        session.events.cancel()

    async def together(self, jobs: list[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        await asyncio.gather(*(job() for job in jobs))


if __name__ == "__main__":
    main(PydanticAI)
