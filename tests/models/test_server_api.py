"""M16: what clients get wrong is theirs: the server that they share lives on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import trio
from other_types import altered, encoded

from trouper.models.chunks import Done, TextChunk
from trouper.models.http import Endpoint
from trouper.testing.server import serve_anthropic, serve_gemini, serve_openai
from trouper.testing.server.listener import HOST

SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}}
PICTURE = "aGk="
O_BODY = {
    "model": "gpt-test",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "hi"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "found"},
        {"role": "assistant", "content": "Found it."},
        {"role": "user", "content": "thanks"},
    ],
    "tools": [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}],
    "tool_choice": "auto",
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_completion_tokens": 9,
    "temperature": 0.5,
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
}
A_BODY = {
    "model": "claude-test",
    "max_tokens": 9,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "hi"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "sig"},
                {"type": "tool_use", "id": "1", "name": "look", "input": {"at": "x"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "1",
                    "is_error": True,
                    "content": [{"type": "text", "text": "no"}],
                }
            ],
        },
        {"role": "assistant", "content": "No."},
        {"role": "user", "content": "thanks"},
    ],
    "tools": [{"name": "look", "input_schema": SCHEMA}],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "enabled", "budget_tokens": 5},
    "stream": True,
}
G_BODY = {
    "systemInstruction": {"parts": [{"text": "Be brief."}]},
    "contents": [
        {"role": "user", "parts": [{"text": "hi"}, {"inlineData": {"mimeType": "image/png", "data": PICTURE}}]},
        {
            "role": "model",
            "parts": [{"functionCall": {"id": "1", "name": "look", "args": {"at": "x"}}, "thoughtSignature": "c2ln"}],
        },
        {
            "role": "user",
            "parts": [{"functionResponse": {"id": "1", "name": "look", "response": {"result": "found"}}}],
        },
        {"role": "model", "parts": [{"text": "hm", "thought": True}, {"text": "Found it."}]},
        {"role": "user", "parts": [{"text": "thanks"}]},
    ],
    "tools": [{"functionDeclarations": [{"name": "look", "parametersJsonSchema": SCHEMA}]}],
    "generationConfig": {"temperature": 0.5, "thinkingConfig": {"includeThoughts": True}},
}
REQUESTS = [
    (serve_openai, "/v1/chat/completions", O_BODY),
    (serve_anthropic, "/v1/messages", A_BODY),
    (serve_anthropic, "/v1/messages/count_tokens", A_BODY),
    (serve_gemini, "/v1beta/models/m:streamGenerateContent?alt=sse", G_BODY),
    (serve_gemini, "/v1beta/models/m:generateContent", G_BODY),
    (serve_gemini, "/v1beta/models/m:countTokens", G_BODY),
]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(("play", "path", "body"), REQUESTS, ids=[path for _, path, _ in REQUESTS])
async def test_a_field_of_another_type_is_answered_like_any_other_request(
    play: Any, path: str, body: Mapping[str, Any], strict: bool
) -> None:
    """M16: one client's mistake ended the server for all."""
    async with (
        play([[TextChunk("ok"), Done("end_turn")]], repeat_last=True, strict=strict) as server,
        Endpoint(server.url, provider="test", headers={"anthropic-version": "2023-06-01"}) as endpoint,
    ):

        async def ask(body: Any) -> int:
            async with endpoint.open(path, encoded(body)) as stream:
                await stream.read_all(100_000)
                return stream.status

        assert await ask(body) == 200
        for place, other in altered(body):
            assert await ask(other) in (200, 400), place
        assert await ask(body) == 200


@pytest.mark.parametrize("options", [5, "x", [], [{}], True])
async def test_options_of_a_stream_that_are_no_object_are_refused_as_openai_does(options: object) -> None:
    """L22: and taken for none where the server is not strict."""
    for strict, status in ((True, 400), (False, 200)):
        async with (
            serve_openai([[TextChunk("ok"), Done("end_turn")]], strict=strict) as server,
            Endpoint(server.url, provider="test") as endpoint,
            endpoint.open("/v1/chat/completions", json.dumps({**O_BODY, "stream_options": options}).encode()) as stream,
        ):
            assert stream.status == status
            assert (b"stream_options" in await stream.read_all(100_000)) is strict


@pytest.mark.parametrize(("play", "path", "body"), REQUESTS, ids=[path for _, path, _ in REQUESTS])
async def test_what_is_nested_deep_is_answered_too(play: Any, path: str, body: Mapping[str, Any]) -> None:
    """M16: looked at more closely than what is read, it ended the server."""
    async with (
        play([[TextChunk("ok"), Done("end_turn")]], repeat_last=True) as server,
        Endpoint(server.url, provider="test", headers={"anthropic-version": "2023-06-01"}) as endpoint,
    ):
        for depth in (100, 900, 5_000):
            deep = json.dumps(body)[:-1].encode() + b', "x": ' + b"[" * depth + b"]" * depth + b"}"
            async with endpoint.open(path, deep) as stream:
                assert stream.status in (200, 400)


async def test_a_request_for_no_address_ends_its_own_connection_only() -> None:
    """M16."""
    async with (
        serve_openai() as server,
        await trio.open_tcp_stream(HOST, server.port) as stream,
        Endpoint(server.url, provider="test") as endpoint,
    ):
        await stream.send_all(b"POST //[ HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
        assert await stream.receive_some() == b""
        async with endpoint.open("/v1/models", b"", method="GET") as reply:
            assert reply.status == 200
