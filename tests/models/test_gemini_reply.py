"""M8-M10, L24: Gemini's events as chunks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trouper.core.messages import Media, Opaque, ProviderPart, Usage
from trouper.models._errors import MalformedReply, NetworkFault, RateLimited, ServerFault
from trouper.models.chunks import (
    CallDelta,
    CallEnd,
    CallStart,
    Chunk,
    Done,
    PartChunk,
    TextChunk,
    ThinkingChunk,
    UsageChunk,
)
from trouper.models.gemini_reply import Reply
from trouper.models.sse import ServerEvent


def part(*parts: Any, **candidate: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, "index": 0, **candidate}]}


def chunks(*events: Any, end: bool = True) -> list[Chunk]:
    reply = Reply()
    out = [chunk for event in events for chunk in reply.take(ServerEvent(json.dumps(event).encode()))]
    return out + (reply.end() if end else [])


STOP = {"candidates": [{"finishReason": "STOP"}]}


def test_text_and_thought_are_told_apart() -> None:
    """M8: `thought: false` with text is visible text."""
    got = chunks(part({"text": "hm", "thought": True}, {"text": "a"}, {"text": "b", "thought": False}), STOP)
    assert got == [ThinkingChunk("hm"), TextChunk("a"), TextChunk("b"), Done("end_turn")]


def test_signatures_come_with_the_part_that_had_them() -> None:
    """M8, I7: on text, on thought, on a call; as received."""
    signature = "aB+/=_-" * 300
    got = chunks(
        part(
            {"text": "hm", "thought": True, "thoughtSignature": signature},
            {"text": "", "thoughtSignature": "empty"},
            {"functionCall": {"name": "f", "args": {}}, "thoughtSignature": signature},
            {"functionCall": {"name": "g", "args": {"x": 1}}},
        ),
        STOP,
    )
    signed = Opaque("gemini", {"thoughtSignature": signature})
    assert got == [
        ThinkingChunk("hm", opaque=signed),
        TextChunk("", Opaque("gemini", {"thoughtSignature": "empty"})),
        CallStart(0, "f", None, signed),
        CallEnd(0, {}, signed),
        CallStart(1, "g"),
        CallEnd(1, {"x": 1}),
        Done("tool_use"),
    ]


def test_a_part_with_text_and_a_call_keeps_both() -> None:
    """M8."""
    got = chunks(part({"text": "so", "functionCall": {"id": "7", "name": "f"}, "thoughtSignature": "s"}), STOP)
    signed = Opaque("gemini", {"thoughtSignature": "s"})
    assert got == [TextChunk("so"), CallStart(0, "f", "7", signed), CallEnd(0, {}, signed), Done("tool_use")]


def test_arguments_as_text_are_streamed_as_text() -> None:
    """L16: the buffer is parsed by whoever has the schema."""
    assert chunks(part({"functionCall": {"name": "f", "args": '{"a": 1'}}), STOP)[:3] == [
        CallStart(0, "f"),
        CallDelta(0, '{"a": 1'),
        CallEnd(0, None),
    ]


def test_other_kinds_of_part_are_kept_whole() -> None:
    """M4, M8: pictures, files, code, and what is newer than this client."""
    code = {"executableCode": {"language": "PYTHON", "code": "1+1"}}
    result = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}}
    tomorrow = {"holographData": {"depth": 3}, "thoughtSignature": "s"}
    got = chunks(
        part(
            code,
            result,
            tomorrow,
            {"inlineData": {"mimeType": "image/png", "data": "aGk=", "displayName": "x"}, "thoughtSignature": "s"},
            {"fileData": {"mimeType": "video/mp4", "fileUri": "https://f"}},
        ),
        STOP,
        end=False,
    )
    assert got == [
        PartChunk(ProviderPart(Opaque("gemini", code))),
        PartChunk(ProviderPart(Opaque("gemini", result))),
        PartChunk(ProviderPart(Opaque("gemini", tomorrow))),
        PartChunk(
            Media(
                "image/png",
                data="aGk=",
                opaque=Opaque("gemini", {"thoughtSignature": "s", "inlineData": {"displayName": "x"}}),
            )
        ),
        PartChunk(Media("video/mp4", uri="https://f")),
    ]


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"candidates": None},
        {"candidates": []},
        {"candidates": [None]},
        {"candidates": [{"content": None}]},
        {"candidates": [{"content": {"parts": None}}]},
        {"candidates": [{"content": {"parts": [None, 7, "x", {}, {"text": ""}]}}]},
        {"candidates": [{"finishReason": None}], "usageMetadata": None, "promptFeedback": None},
        {"usageMetadata": {"promptTokenCount": "many"}},
        {"promptFeedback": {"blockReason": "BLOCKED_REASON_UNSPECIFIED"}},
        {"candidates": [{"finishReason": "FINISH_REASON_UNSPECIFIED"}]},
    ],
)
def test_odd_shapes_are_tolerated(event: Any) -> None:
    """M4, M9: blocked candidates may have empty content; one bad field never drops the rest."""
    assert chunks(event, part({"text": "x"}), STOP) == [TextChunk("x"), Done("end_turn")]


@pytest.mark.parametrize(
    ("reason", "done"),
    [
        ("STOP", Done("end_turn")),
        ("MAX_TOKENS", Done("max_tokens")),
        ("SOMETHING_NEW", Done("end_turn", "SOMETHING_NEW")),
        ("OTHER", Done("end_turn", "OTHER")),
        *(
            (reason, Done("refusal", reason))
            for reason in (
                "SAFETY",
                "BLOCKLIST",
                "PROHIBITED_CONTENT",
                "SPII",
                "LANGUAGE",
                "RECITATION",
                "IMAGE_SAFETY",
            )
        ),
    ],
)
def test_finish_reasons(reason: str, done: Done) -> None:
    """M9."""
    assert chunks({"candidates": [{"finishReason": reason}]}) == [done]


def test_a_refusal_says_which_filter_it_was() -> None:
    """M9."""
    event = {
        "candidates": [
            {
                "finishReason": "SAFETY",
                "finishMessage": "No.",
                "safetyRatings": [
                    {"category": "HARM_CATEGORY_HARASSMENT", "blocked": True},
                    {"category": "HARM_CATEGORY_OTHER", "probability": "LOW"},
                ],
            }
        ]
    }
    assert chunks(event) == [Done("refusal", "SAFETY: No. HARM_CATEGORY_HARASSMENT")]


@pytest.mark.parametrize("reason", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS"])
def test_a_call_that_its_own_provider_cannot_read_is_worth_a_retry(reason: str) -> None:
    """M9: marked, so that the actor retries once, silently."""
    with pytest.raises(MalformedReply, match=reason) as caught:
        chunks({"candidates": [{"finishReason": reason, "finishMessage": "bad call"}]})
    assert caught.value.retryable


def test_a_blocked_prompt_overrides_all_else() -> None:
    """M9."""
    blocked = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {"promptTokenCount": 9}}
    assert chunks(blocked) == [UsageChunk(Usage(input=9)), Done("refusal", "PROHIBITED_CONTENT")]
    assert chunks(STOP, blocked)[-1] == Done("refusal", "PROHIBITED_CONTENT")


def test_usage_is_cumulative_and_the_last_wins() -> None:
    """M10, L24: thoughts and cached tokens in buckets of their own; what was never reported is None, not 0."""
    got = chunks(
        {"usageMetadata": {"promptTokenCount": 100, "cachedContentTokenCount": 40}},
        {"usageMetadata": {"promptTokenCount": 100, "candidatesTokenCount": 5}},
        {"usageMetadata": {"candidatesTokenCount": 50, "thoughtsTokenCount": 7, "toolUsePromptTokenCount": 3}},
        STOP,
    )
    assert got == [
        UsageChunk(Usage(input=100, cache_read=40)),
        UsageChunk(Usage(input=103, output=57, cache_read=40, reasoning=7)),
        Done("end_turn"),
    ]


def test_without_usage_nothing_is_claimed() -> None:
    """L24."""
    assert chunks(part({"text": "x"}), STOP) == [TextChunk("x"), Done("end_turn")]


def test_an_end_without_finish_reason_is_a_network_fault() -> None:
    """L14."""
    with pytest.raises(NetworkFault, match="cut off"):
        chunks(part({"text": "x"}))


def test_an_error_in_the_midst_of_a_stream_is_classified() -> None:
    """M1, M10."""
    error = {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "slow", "details": [{"retryDelay": "7s"}]}
    with pytest.raises(RateLimited) as caught:
        chunks({"error": error})
    assert caught.value.retry_after_s == 7.0
    with pytest.raises(ServerFault):
        chunks({"error": "what?"})


def test_an_event_that_is_no_json_is_the_servers_fault() -> None:
    with pytest.raises(ServerFault, match="not a JSON object"):
        Reply().take(ServerEvent(b"<html>"))


def test_a_finish_reason_in_every_event_does_not_end_the_reply() -> None:
    """Some models repeat it: what follows still counts."""
    got = chunks(part({"text": "a"}, finishReason="STOP"), part({"text": "b"}, finishReason="STOP"))
    assert got == [TextChunk("a"), TextChunk("b"), Done("end_turn")]
