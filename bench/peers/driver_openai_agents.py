"""openai-agents: a `Model` of our own, `Runner.run_streamed`, an `agent.clone()` a session, tracing off.

In memory the caller carries the history (`to_input_list`), which costs the framework less than its in-memory SQLite;
on disk it is `SQLiteSession`, at the settings it ships with.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agents import Agent, Model, RunConfig, Runner, SQLiteSession, function_tool, set_tracing_disabled
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputItemDoneEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
    ResponseUsage,
)
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails
from talk import DELTAS, STEPS, SYSTEM, TOOL, TOOL_DOC, Move, Say, after, opening
from works import Stage, main

USAGE = ResponseUsage(
    input_tokens=1,
    output_tokens=1,
    total_tokens=2,
    input_tokens_details=InputTokensDetails(cached_tokens=0, cache_write_tokens=0),
    output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
)


def _delta(text: str) -> ResponseTextDeltaEvent:
    return ResponseTextDeltaEvent(
        type="response.output_text.delta",
        content_index=0,
        output_index=0,
        item_id="item",
        sequence_number=0,
        delta=text,
        logprobs=[],
    )


DELTA_EVENTS = {text: _delta(text) for text in (*DELTAS, "done")}  # made once: the script is not what is measured


def _next_move(items: Any) -> Move:
    if isinstance(items, str):
        return opening(items)
    last = items[-1]
    if last.get("type") == "function_call_output":
        return after(last["call_id"])
    return opening(last["content"])


class ScriptedTalk(Model):
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._ids = itertools.count()

    async def get_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("the works stream; nothing asks for a whole response")

    async def stream_response(
        self, system_instructions: str | None, input: Any, *args: Any, **kwargs: Any
    ) -> AsyncIterator[Any]:
        self._stage.asked(1 if isinstance(input, str) else len(input))
        move = _next_move(input)
        number = next(self._ids)
        output: list[Any]
        if isinstance(move, Say):
            for delta in move.deltas:
                yield DELTA_EVENTS[delta]
            if move.hang:
                await self._stage.hang()
            text = ResponseOutputText(type="output_text", text="".join(move.deltas), annotations=[], logprobs=[])
            output = [
                ResponseOutputMessage(
                    id=f"msg-{number}", type="message", role="assistant", status="completed", content=[text]
                )
            ]
        else:
            output = [
                ResponseFunctionToolCall(
                    id=f"fc-{number}-{i}",
                    type="function_call",
                    call_id=call.id,
                    name=TOOL,
                    arguments=call.arguments_json,
                    status="completed",
                )
                for i, call in enumerate(move.calls)
            ]
        for i, item in enumerate(output):
            yield ResponseOutputItemDoneEvent(
                type="response.output_item.done", item=item, output_index=i, sequence_number=0
            )
        response = Response(
            id=f"resp-{number}",
            created_at=0,
            model="scripted",
            object="response",
            output=output,
            tool_choice="auto",
            tools=[],
            parallel_tool_calls=True,
            usage=USAGE,
        )
        yield ResponseCompletedEvent(type="response.completed", response=response, sequence_number=0)


class OpenAISession:
    def __init__(self, agent: Agent[Any], store: SQLiteSession | None) -> None:
        self.agent = agent
        self.store = store
        self.items: list[Any] = []
        self.run: Any = None


class OpenAIAgents:
    name = "openai-agents"
    packages = ("openai-agents", "openai")
    in_stream_way = "RunResultStreaming.cancel()"
    durable_way = "SQLiteSession"

    def __init__(self) -> None:
        set_tracing_disabled(True)
        self.stage = Stage(asyncio.Event, asyncio.sleep)

        async def work(key: str) -> str:
            return await self.stage.tool(key)

        work.__doc__ = TOOL_DOC
        self._agent: Agent[Any] = Agent(
            name="bench", instructions=SYSTEM, model=ScriptedTalk(self.stage), tools=[function_tool(work)]
        )
        self._config = RunConfig(tracing_disabled=True)
        self._database: Path | None = None
        self._stores: list[SQLiteSession] = []

    def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run(main())

    @asynccontextmanager
    async def open(self, directory: Path, *, durable: bool, effects: bool) -> AsyncIterator[None]:
        self._database = directory / "sessions.db" if durable else None
        yield
        for store in self._stores:
            store.close()
        self._stores = []

    async def session(self, key: str) -> OpenAISession:
        store = SQLiteSession(key, self._database) if self._database else None
        if store:
            self._stores.append(store)
        # One shared agent would drop 1,000 sessions to a third of the speed.
        return OpenAISession(self._agent.clone(), store)

    async def turn(self, session: OpenAISession, text: str) -> str:
        given: Any = text if session.store else [*session.items, {"role": "user", "content": text}]
        session.run = run = Runner.run_streamed(
            session.agent, given, session=session.store, run_config=self._config, max_turns=STEPS + 2
        )
        async for event in run.stream_events():
            if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
                self.stage.heard()
        if run.run_loop_exception:
            raise run.run_loop_exception
        if not session.store:
            session.items = run.to_input_list()
        return str(run.final_output or "")

    async def stop(self, session: OpenAISession) -> None:
        session.run.cancel()

    async def together(self, jobs: list[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        await asyncio.gather(*(job() for job in jobs))


if __name__ == "__main__":
    main(OpenAIAgents)
