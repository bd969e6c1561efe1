"""M1, M4, L22: whatever a provider writes into whichever field, a turn ends with a reply or with an error that has a name, and the session goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import trio
from other_types import altered, encoded

from trouper import Anthropic, Gemini, Limits, OpenAICompatible, Retry, open_runtime, tool
from trouper.journal.memory_disk import MemoryDisk

G_EVENTS: list[Any] = [
    {"candidates": [{"content": {"role": "model", "parts": [{"text": "hm", "thought": True}]}, "index": 0}], "modelVersion": "m"},
    {
        "candidates": [
            {
                "index": 0,
                "content": {
                    "role": "model",
                    "parts": [
                        {"text": "I look.", "thoughtSignature": "c2ln"},
                        {"inlineData": {"mimeType": "image/png", "data": "aGk="}},
                        {"fileData": {"mimeType": "image/png", "fileUri": "https://files.example/1"}},
                        {"executableCode": {"language": "PYTHON", "code": "1"}},
                        {"functionCall": {"id": "1", "name": "look", "args": {"at": "x"}}, "thoughtSignature": "c2ln"},
                    ],
                },
            }
        ]
    },
    {
        "candidates": [
            {
                "index": 0,
                "finishReason": "STOP",
                "finishMessage": "done",
                "safetyRatings": [{"category": "HARM", "probability": "LOW", "blocked": False}],
            }
        ],
        "usageMetadata": {
            "promptTokenCount": 9,
            "toolUsePromptTokenCount": 1,
            "candidatesTokenCount": 9,
            "thoughtsTokenCount": 3,
            "cachedContentTokenCount": 1,
        },
        "promptFeedback": {"blockReason": "BLOCK_REASON_UNSPECIFIED", "blockReasonMessage": ""},
    },
]  # fmt: skip
G_ERROR = {
    "error": {
        "code": 429,
        "status": "RESOURCE_EXHAUSTED",
        "message": "slow down",
        "details": [
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1s"},
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": {"seconds": 1, "nanos": 5}},
            {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": "PerMinute"}]},
            {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "X"},
        ],
    }
}
O_EVENTS: list[Any] = [
    {"id": "1", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "", "reasoning_content": "hm"}, "finish_reason": None}]},
    {
        "choices": [
            {
                "index": 0,
                "delta": {
                    "reasoning_details": [
                        {"type": "reasoning.text", "index": 0, "text": "hm", "signature": "sig", "id": "r"},
                        {"type": "reasoning.text", "index": 0, "text": "m"},
                        {"type": "reasoning.encrypted", "index": 1, "data": "x"},
                    ],
                    "annotations": [{"type": "url_citation", "url_citation": {"url": "https://x.example"}}],
                },
            }
        ]
    },
    {"choices": [{"index": 0, "delta": {"content": "I look."}}]},
    {"choices": [{"index": 0, "delta": {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "So."}]}}]},
    {"choices": [{"index": 0, "delta": {"annotations": [{"type": "url_citation", "url_citation": {"url": "https://y.example"}}]}}]},
    {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "1", "type": "function", "function": {"name": "look", "arguments": ""}, "extra_content": {"google": {"thought_signature": "s"}}}]}}]},
    {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"at":'}}]}}]},
    {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": ' "x"}'}}]}}]},
    {"choices": [{"index": 0, "delta": {"function_call": {"name": "look", "arguments": '{"at": "y"}'}}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
    {
        "choices": [],
        "usage": {
            "prompt_tokens": 9,
            "completion_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 1},
            "completion_tokens_details": {"reasoning_tokens": 3},
            "prompt_cache_hit_tokens": 1,
        },
    },
]  # fmt: skip
O_ERROR = {
    "error": {
        "message": "slow down, try again in 1s",
        "type": "requests",
        "param": None,
        "code": "rate_limit_exceeded",
        "details": G_ERROR["error"]["details"],
    }
}
A_EVENTS: list[Any] = [
    {"type": "message_start", "message": {"id": "1", "role": "assistant", "content": [], "usage": {"input_tokens": 9, "output_tokens": 1, "cache_read_input_tokens": 1, "cache_creation_input_tokens": 1}}},
    {"type": "ping"},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "sig"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "redacted_thinking", "data": "x"}},
    {"type": "content_block_stop", "index": 1},
    {"type": "content_block_start", "index": 2, "content_block": {"type": "text", "text": "I ", "citations": None}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "text_delta", "text": "look."}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "citations_delta", "citation": {"type": "page", "cited_text": "x"}}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "delta_of_tomorrow", "score": 1}},
    {"type": "content_block_stop", "index": 2},
    {"type": "content_block_start", "index": 3, "content_block": {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}},
    {"type": "content_block_delta", "index": 3, "delta": {"type": "input_json_delta", "partial_json": '{"q": "x"}'}},
    {"type": "content_block_stop", "index": 3},
    {"type": "content_block_start", "index": 4, "content_block": {"type": "tool_use", "id": "1", "name": "look", "input": {}}},
    {"type": "content_block_delta", "index": 4, "delta": {"type": "input_json_delta", "partial_json": '{"at": "x"}'}},
    {"type": "content_block_stop", "index": 4},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None, "stop_details": {"category": None, "explanation": None}}, "usage": {"output_tokens": 9, "output_tokens_details": {"thinking_tokens": 3}}},
    {"type": "message_stop"},
]  # fmt: skip
A_ERROR = {
    "type": "error",
    "error": {"type": "rate_limit_error", "message": "slow down", "details": {"error_code": "x"}, "code": 429},
}
G_WELL: list[Any] = [{"candidates": [{"content": {"parts": [{"text": "well"}]}, "finishReason": "STOP"}]}]
O_WELL: list[Any] = [{"choices": [{"delta": {"content": "well"}, "finish_reason": "stop"}]}]
A_WELL: list[Any] = [
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "well"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
    {"type": "message_stop"},
]
O_WHOLE = {
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": "I look.",
                "refusal": None,
                "reasoning": "hm",
                "tool_calls": [{"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": "x"}'}}],
            },
        }
    ],
    "usage": {"prompt_tokens": 9, "completion_tokens": 9},
}  # fmt: skip
A_WHOLE = {
    "type": "message",
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "text", "text": "I look.", "citations": [{"type": "page"}]},
        {"type": "tool_use", "id": "1", "name": "look", "input": {"at": "x"}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 9, "output_tokens": 9},
}


def gemini(transport: httpx.AsyncBaseTransport) -> Any:
    return Gemini("m", api_key="k", transport=transport)


def openai(transport: httpx.AsyncBaseTransport) -> Any:
    return OpenAICompatible("m", api_key="k", base_url="http://127.0.0.1/v1", transport=transport)


def anthropic(transport: httpx.AsyncBaseTransport) -> Any:
    return Anthropic("m", api_key="k", transport=transport)


WELL = {gemini: G_WELL, openai: O_WELL, anthropic: A_WELL}


def stream(values: Any) -> bytes:
    return b"".join(b"data: " + encoded(value) + b"\n\n" for value in values)


def streamed(values: Any) -> tuple[int, bytes]:
    return 200, stream(values)


def whole(value: Any) -> tuple[int, bytes]:
    return 200, encoded(value)


def failing(make: Any) -> Callable[[Any], tuple[int, bytes]]:
    return lambda value: (200, stream([WELL[make][0], value]))


def refused(status: int) -> Callable[[Any], tuple[int, bytes]]:
    return lambda value: (status, encoded(value))


CASES: list[tuple[str, Any, Any, Callable[[Any], tuple[int, bytes]]]] = [
    ("gemini, events", gemini, G_EVENTS, streamed),
    ("gemini, whole", gemini, G_EVENTS, whole),
    ("gemini, an error in mid-stream", gemini, G_ERROR, failing(gemini)),
    ("gemini, an error in the place of a reply", gemini, G_ERROR, whole),
    ("gemini, a refusal", gemini, G_ERROR, refused(429)),
    ("gemini, a bad request", gemini, G_ERROR, refused(400)),
    ("openai, events", openai, O_EVENTS, streamed),
    ("openai, whole", openai, O_WHOLE, whole),
    ("openai, an error in mid-stream", openai, O_ERROR, failing(openai)),
    ("openai, an error in the place of a reply", openai, O_ERROR, whole),
    ("openai, a refusal", openai, O_ERROR, refused(429)),
    ("openai, a bad request", openai, O_ERROR, refused(400)),
    ("anthropic, events", anthropic, A_EVENTS, streamed),
    ("anthropic, whole", anthropic, A_WHOLE, whole),
    ("anthropic, an error in mid-stream", anthropic, A_ERROR, failing(anthropic)),
    ("anthropic, an error in the place of a reply", anthropic, A_ERROR, whole),
    ("anthropic, a refusal", anthropic, A_ERROR, refused(429)),
    ("anthropic, a bad request", anthropic, A_ERROR, refused(400)),
]


@tool
async def look(at: str) -> str:
    """Look at something."""
    return at


@pytest.mark.slow
@pytest.mark.parametrize(("make", "value", "write"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
async def test_a_field_of_another_type_ends_no_session(
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
    make: Any,
    value: Any,
    write: Callable[[Any], tuple[int, bytes]],
) -> None:
    """M1, M4, L16, L19, L22: in an event, a whole reply, an error or a refusal; what comes of it goes back in the next request."""
    replies: list[tuple[int, bytes]] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        status, body = replies.pop() if len(replies) > 1 else replies[0]
        return httpx.Response(status, content=body)

    limits = Limits(retry=Retry(first_delay_s=0.0))
    model = make(httpx.MockTransport(answer))
    async with open_runtime(
        "/state", model=model, tools=[look], limits=limits, durability="memory", disk=MemoryDisk()
    ) as runtime:
        for number, (place, other) in enumerate(altered(value)):
            replies[:] = [streamed(WELL[make]), write(other)]
            session = await runtime.session(f"s{number}")
            first = await session.ask("one")
            replies[:] = [streamed(WELL[make])]
            assert first.error is None or "a chunk holds" not in first.error.message, place
            second = await session.ask("two")
            assert (second.text, second.error) == ("well", None), place
            wrong = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
            assert wrong == [], place
            await session.close()
