"""google-adk: a `BaseLlm` of our own, one `LlmAgent` and `Runner`, SSE streaming, spans without content.

In memory it is `InMemorySessionService`; on disk `SqliteSessionService`, as it ships: of the framework's two services
on SQLite it is the faster (`DatabaseSessionService` took 1.5 to 2 times as long a step).
"""

from __future__ import annotations

import asyncio
import logging
import os
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

# Before the import: no telemetry provider is made, and no message is serialised for a span that goes nowhere.
os.environ["OTEL_SDK_DISABLED"] = "true"
os.environ["ADK_CAPTURE_MESSAGE_CONTENT_IN_SPANS"] = "false"
# Notices of experimental features, and a line on stderr for each reply cut off before its usage, are not measured.
warnings.simplefilter("ignore")
logging.getLogger("google_adk").setLevel(logging.ERROR)

from google.adk.agents import LlmAgent, RunConfig  # noqa: E402
from google.adk.agents.run_config import StreamingMode  # noqa: E402
from google.adk.models.base_llm import BaseLlm  # noqa: E402
from google.adk.models.llm_request import LlmRequest  # noqa: E402
from google.adk.models.llm_response import LlmResponse  # noqa: E402
from google.adk.runners import Runner  # noqa: E402
from google.adk.sessions import BaseSessionService, InMemorySessionService  # noqa: E402
from google.genai import types  # noqa: E402
from talk import SYSTEM, TOOL, TOOL_DOC, Move, Say, after, opening  # noqa: E402
from works import Stage, main  # noqa: E402

APP = "bench"
USER = "user"


def _next_move(contents: list[types.Content]) -> Move:
    part = (contents[-1].parts or [])[-1]
    if part.function_response:
        return after(part.function_response.id or "")
    return opening(part.text or "")


# A model reports its usage.
USAGE = types.GenerateContentResponseUsageMetadata(prompt_token_count=1, candidates_token_count=1, total_token_count=2)


def _response(parts: list[types.Part], *, partial: bool) -> LlmResponse:
    content = types.Content(role="model", parts=parts)
    return LlmResponse(content=content, partial=partial, usage_metadata=None if partial else USAGE)


class ScriptedTalk(BaseLlm):
    stage: Any

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        assert stream, "the works stream; nothing asks for a whole response"
        self.stage.asked(len(llm_request.contents))
        move = _next_move(llm_request.contents)
        if isinstance(move, Say):
            for delta in move.deltas:
                yield _response([types.Part(text=delta)], partial=True)
            if move.hang:
                await self.stage.hang()
            yield _response([types.Part(text="".join(move.deltas))], partial=False)
        else:
            calls = [types.FunctionCall(id=call.id, name=TOOL, args=call.arguments) for call in move.calls]
            yield _response([types.Part(function_call=call) for call in calls], partial=False)


class AdkSession:
    def __init__(self, id: str) -> None:
        self.id = id
        self.abort = asyncio.Event()


class GoogleAdk:
    name = "google-adk"
    packages = ("google-adk", "google-genai")
    in_stream_way = "run_async(abort_signal=...)"
    durable_way = "SqliteSessionService"

    def __init__(self) -> None:
        self.stage = Stage(asyncio.Event, asyncio.sleep)

        async def work(key: str) -> str:
            return await self.stage.tool(key)

        work.__doc__ = TOOL_DOC
        model = ScriptedTalk(model="scripted", stage=self.stage)
        self._agent = LlmAgent(name="bench_agent", model=model, instruction=SYSTEM, tools=[work])

    def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run(main())

    @asynccontextmanager
    async def open(self, directory: Path, *, durable: bool, effects: bool) -> AsyncIterator[None]:
        service: BaseSessionService
        if durable:
            from google.adk.sessions.sqlite_session_service import SqliteSessionService

            service = SqliteSessionService(str(directory / "sessions.db"))
        else:
            service = InMemorySessionService()
        self._service = service
        self._runner = Runner(app_name=APP, agent=self._agent, session_service=service)
        self._config = RunConfig(streaming_mode=StreamingMode.SSE)
        yield
        await self._runner.close()

    async def session(self, key: str) -> AdkSession:
        await self._service.create_session(app_name=APP, user_id=USER, session_id=key)
        return AdkSession(key)

    async def turn(self, session: AdkSession, text: str) -> str:
        session.abort = asyncio.Event()
        message = types.Content(role="user", parts=[types.Part(text=text)])
        final = ""
        async for event in self._runner.run_async(
            user_id=USER,
            session_id=session.id,
            new_message=message,
            run_config=self._config,
            abort_signal=session.abort,
        ):
            parts = event.content.parts if event.content else None
            if parts and parts[0].text:
                if event.partial:
                    self.stage.heard()
                else:
                    final = parts[0].text
        return final

    async def stop(self, session: AdkSession) -> None:
        session.abort.set()

    async def together(self, jobs: list[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        await asyncio.gather(*(job() for job in jobs))


if __name__ == "__main__":
    main(GoogleAdk)
