"""langgraph: a `BaseChatModel` of our own and a graph of one model node and a `ToolNode`, streamed as messages.

The graph is built by hand, as the framework's guides do, which is no slower than its prebuilt agents. A session is a
thread of a checkpointer: `InMemorySaver` in memory, `AsyncSqliteSaver` on disk with `durability="sync"`, which alone
has a step on disk before the next begins.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

os.environ["LANGSMITH_TRACING"] = "false"
os.environ["LANGCHAIN_TRACING_V2"] = "false"

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from talk import STEPS, SYSTEM, TOOL, TOOL_DOC, Move, Say, after, opening
from works import Stage, main

warnings.simplefilter("ignore")  # notices of experimental features; langchain sets filters of its own when imported


def _next_move(messages: list[BaseMessage]) -> Move:
    last = messages[-1]
    if isinstance(last, ToolMessage):
        return after(last.tool_call_id)
    return opening(str(last.content))


class ScriptedTalk(BaseChatModel):
    stage: Any

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError("the works stream; nothing asks for a whole response")

    async def _astream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        self.stage.asked(len(messages))
        move = _next_move(messages)
        if isinstance(move, Say):
            last = len(move.deltas) - 1
            for i, delta in enumerate(move.deltas):
                end = "last" if i == last and not move.hang else None
                yield ChatGenerationChunk(message=AIMessageChunk(content=delta, chunk_position=end))
            if move.hang:
                await self.stage.hang()
            return
        calls = [
            {"type": "tool_call_chunk", "name": TOOL, "args": call.arguments_json, "id": call.id, "index": i}
            for i, call in enumerate(move.calls)
        ]
        message = AIMessageChunk(content="", tool_call_chunks=calls, chunk_position="last")
        yield ChatGenerationChunk(message=message)


class LangGraphSession:
    def __init__(self, key: str) -> None:
        self.config: Any = {"configurable": {"thread_id": key}, "recursion_limit": 2 * STEPS + 5}
        self.run: Any = None


class LangGraph:
    name = "langgraph"
    packages = ("langgraph", "langchain-core")
    in_stream_way = "AsyncGraphRunStream.abort() (experimental v3 events)"
    durable_way = 'AsyncSqliteSaver, durability="sync"'

    def __init__(self) -> None:
        self.stage = Stage(asyncio.Event, asyncio.sleep)

        async def work(key: str) -> str:
            return await self.stage.tool(key)

        work.__doc__ = TOOL_DOC
        tool = StructuredTool.from_function(coroutine=work)
        model = ScriptedTalk(stage=self.stage)
        system = SystemMessage(SYSTEM)

        async def call_model(state: MessagesState) -> dict[str, Any]:
            return {"messages": [await model.ainvoke([system, *state["messages"]])]}

        builder = StateGraph(MessagesState)
        builder.add_node("model", call_model)
        builder.add_node("tools", ToolNode([tool]))
        builder.add_edge(START, "model")
        builder.add_conditional_edges("model", tools_condition)
        builder.add_edge("tools", "model")
        self._builder = builder

    def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run(main())

    @asynccontextmanager
    async def open(self, directory: Path, *, durable: bool, effects: bool) -> AsyncIterator[None]:
        if durable:
            from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

            async with AsyncSqliteSaver.from_conn_string(str(directory / "threads.db")) as saver:
                self._graph = self._builder.compile(checkpointer=saver)
                self._durability = "sync"
                yield
        else:
            self._graph = self._builder.compile(checkpointer=InMemorySaver())
            self._durability = "async"
            yield

    async def session(self, key: str) -> LangGraphSession:
        return LangGraphSession(key)

    async def turn(self, session: LangGraphSession, text: str) -> str:
        given: Any = {"messages": [HumanMessage(text)]}
        if text.startswith("hang"):
            return await self._stoppable_turn(session, given)
        parts: list[str] = []
        async for message, _ in self._graph.astream(
            given, session.config, stream_mode="messages", durability=self._durability
        ):
            if isinstance(message, AIMessageChunk) and message.content:
                self.stage.heard()
                parts.append(str(message.content))
        return "".join(parts)

    async def _stoppable_turn(self, session: LangGraphSession, given: Any) -> str:
        """Only the v3 events have an abort; `astream` alone is stopped by nothing but cancelling the caller's task."""
        session.run = await self._graph.astream_events(given, session.config, version="v3")
        async for event in session.run:
            if event["method"] == "messages" and event["params"]["data"][0]["event"] == "content-block-delta":
                self.stage.heard()
        return ""

    async def stop(self, session: LangGraphSession) -> None:
        await session.run.abort()

    async def together(self, jobs: list[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        await asyncio.gather(*(job() for job in jobs))


if __name__ == "__main__":
    main(LangGraph)
