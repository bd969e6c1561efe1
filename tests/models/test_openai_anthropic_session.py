"""M13, M14, L22: whole turns of a session over HTTP; the strict servers refuse any request that their providers would."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from trouper import Limits, Retry, open_runtime, tool
from trouper.core.messages import Opaque, ProviderPart, Usage
from trouper.journal.memory_disk import MemoryDisk
from trouper.models.anthropic import Anthropic
from trouper.models.anthropic_request import BINDING_BETA
from trouper.models.chunks import (
    CallDelta,
    CallEnd,
    CallStart,
    Done,
    PartChunk,
    TextChunk,
    ThinkingChunk,
    UsageChunk,
)
from trouper.models.openai_compatible import OpenAICompatible
from trouper.testing.server import Drop, Item, Status, TestServer, serve_anthropic, serve_openai

FORMATS = ["openai", "anthropic"]
QUICK = Limits(retry=Retry(first_delay_s=0.0))


@tool
async def look(at: str) -> dict[str, str]:
    """Look at something."""
    return {"seen": at}


def serve(form: str, *turns: list[Item]) -> AbstractAsyncContextManager[TestServer]:
    return serve_openai(turns) if form == "openai" else serve_anthropic(turns)


def client(form: str, server: TestServer) -> Any:
    if form == "openai":
        return OpenAICompatible("m", api_key="test-key", base_url=server.url + "/v1")
    return Anthropic("m", api_key="test-key", base_url=server.url)


def runtime(model: Any, disk: MemoryDisk | None = None) -> Any:
    disk = disk if disk is not None else MemoryDisk()
    return open_runtime("/state", model=model, tools=[look], limits=QUICK, durability="memory", disk=disk)


CALLS: list[Item] = [
    ThinkingChunk("hm"),
    ThinkingChunk("", "c2ln"),
    TextChunk("I look."),
    CallStart(0, "look", "toolu_0"),
    CallDelta(0, '{"at": "a"}'),
    CallEnd(0),
    CallStart(1, "look", "toolu_1"),
    CallDelta(1, '{"at": "b"}'),
    CallEnd(1),
    CallStart(2, "no.such!", "toolu_2"),
    CallEnd(2, {}),
    UsageChunk(Usage(input=10, output=5)),
    Done("tool_use"),
]
ANSWER: list[Item] = [TextChunk("Seen."), UsageChunk(Usage(input=20, output=2)), Done("end_turn")]


@pytest.mark.parametrize("form", FORMATS)
async def test_turns_with_tools_go_round(form: str) -> None:
    """M13, M14, L22, L24: two turns; an unknown tool among the calls; an overload and a drop before any progress."""
    turns: list[list[Item]] = [CALLS, [Status(503, "busy")], [Drop()], ANSWER, ANSWER]
    async with serve(form, *turns) as server, client(form, server) as model, runtime(model) as running:
        session = await running.session("s")
        result = await session.ask("Look at a and b.")
        assert result.error is None
        assert (result.text, result.steps) == ("Seen.", 2)
        assert result.usage == Usage(input=30, output=7)
        assert (await session.ask("Again?")).error is None
        last = server.requests[-1].json["messages"]
    assert len(server.requests) == 5
    if form == "openai":
        assert [message["role"] for message in last] == [
            "user",
            "assistant",
            "tool",
            "tool",
            "tool",
            "assistant",
            "user",
        ]
        assert last[1]["reasoning_content"] == "hm"
        assert [call["function"]["name"] for call in last[1]["tool_calls"]] == ["look", "look", "no_such_"]
        assert [message["tool_call_id"] for message in last[2:5]] == ["toolu_0", "toolu_1", "toolu_2"]
        assert last[2]["content"] == '{"seen":"a"}'
        assert last[4]["content"].startswith("[error]")
    else:
        assert [message["role"] for message in last] == ["user", "assistant", "user", "assistant", "user"]
        assert last[1]["content"][0] == {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
        results = last[2]["content"]
        assert [block["tool_use_id"] for block in results] == ["toolu_0", "toolu_1", "toolu_2"]
        assert [block.get("is_error", False) for block in results] == [False, False, True]


@pytest.mark.parametrize("form", FORMATS)
async def test_what_is_opaque_survives_the_journal(form: str) -> None:
    """I7, M4: after a restart the conversation is sent as it would have been, byte for byte."""
    extra = {"caller": {"type": "direct", "n": [1, None]}} if form == "anthropic" else {"extra_content": {"sig": "ü="}}
    redacted = Opaque("anthropic", {"type": "redacted_thinking", "data": "ZGF0YQ=="})
    first = [item for item in CALLS if not isinstance(item, CallStart) or item.index]
    first.insert(3, CallStart(0, "look", "toolu_0", Opaque("", extra)))
    if form == "anthropic":
        first.insert(2, ThinkingChunk("", None, redacted))
    disk = MemoryDisk()
    async with serve(form, first, ANSWER, ANSWER, ANSWER) as server, client(form, server) as model:
        async with runtime(model, disk) as running:
            await (await running.session("s")).ask("Look.")
        before = server.requests[-1].json["messages"]
        async with runtime(client(form, server), disk) as running:
            assert (await (await running.session("s")).ask("Again?")).error is None
        after = server.requests[-1].json["messages"]
    strip = _without_marks if form == "anthropic" else list
    assert strip(after)[: len(before)] == strip(before)
    assert next(iter(extra)) in str(after)


def _without_marks(messages: list[Any]) -> list[Any]:
    return [
        {**message, "content": [{key: value for key, value in block.items() if key != "cache_control"} for block in message["content"]]}
        for message in messages
    ]  # fmt: skip


async def test_a_paused_turn_goes_on_by_itself() -> None:
    """M14."""
    block = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
    paused: list[Item] = [
        TextChunk("I search."),
        PartChunk(ProviderPart(Opaque("anthropic", block))),
        Done("pause_turn"),
    ]
    async with serve("anthropic", paused, ANSWER) as server, client("anthropic", server) as model:
        async with runtime(model) as running:
            result = await (await running.session("s")).ask("Search.")
        assert result.error is None
        assert result.text.endswith("Seen.")
        assert server.requests[1].json["messages"][-1]["content"][-1] == block


async def test_a_session_outlives_the_refusal_of_its_thinking() -> None:
    """M14, M10: what was thought before a compaction is not taken back; the turn succeeds, and the next is not refused again."""
    bound = Status(400, "Invalid `signature` in `thinking` block. The block is bound to a different conversation.")
    async with serve("anthropic", CALLS, [bound], ANSWER, ANSWER) as server, client("anthropic", server) as model:
        async with runtime(model) as running:
            session = await running.session("s")
            for _ in range(2):
                result = await session.ask("Look.")
                assert result.error is None
                assert result.text == "Seen."
        assert [request.headers.get("anthropic-beta") for request in server.requests] == [None, None, BINDING_BETA, BINDING_BETA]  # fmt: skip


@pytest.mark.parametrize("form", FORMATS)
async def test_a_refusal_for_good_ends_the_turn_by_its_name(form: str) -> None:
    """L11."""
    async with serve(form, [Status(401, "who?")]) as server, client(form, server) as model, runtime(model) as running:
        result = await (await running.session("s")).ask("Hi.")
        assert result.error is not None
        assert result.error.kind == "auth"
        assert len(server.requests) == 1
