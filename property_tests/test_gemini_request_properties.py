"""I5, I7, L22, M8: any history that may be sent becomes a body that Google's own types accept, signatures byte for byte."""

from __future__ import annotations

import base64
import itertools
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trouper.core.history import History, problems
from trouper.core.messages import Message, ProviderPart, Text, Thinking, ToolCall, ToolSpec
from trouper.models.gemini_reply import Reply
from trouper.models.gemini_request import RequestBuilder
from trouper.models.protocol import ModelRequest
from trouper.models.sse import ServerEvent
from trouper.testing.server.gemini import history_problem
from trouper.testing.strategies import histories, tool_specs

FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
MODELS = st.sampled_from(["gemini-3-flash", "gemini-2.5-flash"])


@pytest.fixture(scope="module")
def types() -> Any:
    from google.genai import types

    return types


def body_of(messages: tuple[Message, ...], model: str = "gemini-3-flash", **request: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(RequestBuilder().body(ModelRequest(messages, **request), model))
    return body


#: What stands in the place of a signature on calls that have none (M10).
UNSIGNED = "skip_thought_signature_validator"


def sent_signature(part: dict[str, Any]) -> str | None:
    signature = part.get("thoughtSignature")
    return None if signature == UNSIGNED else signature


def sent_signatures(body: dict[str, Any]) -> list[str]:
    signatures = (sent_signature(part) for content in body["contents"] for part in content["parts"])
    return [signature for signature in signatures if signature is not None]


def received_signatures(messages: tuple[Message, ...]) -> list[str]:
    return [
        part.opaque.data["thoughtSignature"]
        for message in messages
        for part in message.parts
        if isinstance(part, Text | Thinking | ToolCall) and part.opaque is not None
    ]


@FEW
@given(histories())
def test_the_strategy_makes_what_the_validator_accepts(messages: tuple[Message, ...]) -> None:
    """L22: otherwise the tests below would say nothing."""
    assert problems(messages) == []
    assert History.of(messages).ready


@FEW
@given(histories(), MODELS, st.lists(tool_specs(), max_size=3, unique_by=lambda spec: spec.name))
def test_googles_own_types_accept_every_body(
    types: Any, messages: tuple[Message, ...], model: str, tools: list[ToolSpec]
) -> None:
    """M7, M8: their models forbid fields that they do not know."""
    body = body_of(messages, model, tools=tuple(tools), system="Be brief.", temperature=0.5, max_output_tokens=10)
    for content in body["contents"]:
        types.Content.model_validate_json(json.dumps(content))
    types.Content.model_validate_json(json.dumps(body["systemInstruction"]))
    types.GenerationConfig.model_validate_json(json.dumps(body["generationConfig"]))
    for tool in body.get("tools", ()):
        types.Tool.model_validate_json(json.dumps(tool))
    assert set(body) <= {"contents", "systemInstruction", "generationConfig", "tools"}


@FEW
@given(histories(), MODELS)
def test_every_body_is_a_conversation_that_gemini_accepts(messages: tuple[Message, ...], model: str) -> None:
    """I5: the roles take turns, and each call is answered once, by id, in order, in the content after it."""
    contents = body_of(messages, model)["contents"]
    assert history_problem(contents) is None
    roles = [content["role"] for content in contents]
    assert roles[0] == "user"
    assert all(before != after for before, after in itertools.pairwise(roles))


@FEW
@given(histories())
def test_signatures_are_sent_as_received_and_in_their_places(messages: tuple[Message, ...]) -> None:
    """I7: byte for byte, and each on the part that it came with."""
    body = body_of(messages)
    assert sent_signatures(body) == received_signatures(messages)
    calls = [part for content in body["contents"] for part in content["parts"] if "functionCall" in part]
    asked = [call for message in messages for call in message.calls]
    assert [(part["functionCall"]["id"], part["functionCall"]["args"], sent_signature(part)) for part in calls] == [
        (call.wire_id, call.arguments, call.opaque.data["thoughtSignature"] if call.opaque else None) for call in asked
    ]


@FEW
@given(histories())
def test_googles_own_client_would_send_the_same_signature_bytes(types: Any, messages: tuple[Message, ...]) -> None:
    """I7: read by their types, each signature stands for the same bytes."""
    body = body_of(messages)
    theirs = [
        part.thought_signature
        for content in body["contents"]
        for part in types.Content.model_validate_json(json.dumps(content)).parts
        if part.thought_signature not in (None, _bytes_of(UNSIGNED))
    ]
    assert theirs == [_bytes_of(signature) for signature in received_signatures(messages)]


def _bytes_of(signature: str) -> bytes:
    return base64.b64decode(signature.replace("-", "+").replace("_", "/"))


@FEW
@given(histories(max_exchanges=6), st.integers(1, 5))
def test_a_body_built_upon_the_last_one_equals_one_built_afresh(messages: tuple[Message, ...], stride: int) -> None:
    """The cache never shows: not while a history grows, not when it is compacted, not when two sessions take turns."""
    builder = RequestBuilder(cache_bytes_max=2_000)
    other = (Message("user", (Text("another session"),)),)
    for length in [*range(1, len(messages) + 1, stride), len(messages), max(1, len(messages) // 2)]:
        request = ModelRequest(messages[:length], session="s")
        assert builder.body(request, "gemini-3-flash") == RequestBuilder().body(request, "gemini-3-flash")
        builder.body(ModelRequest(other, session="t"), "gemini-3-flash")
    # The same but for one old message, as masking an old result leaves it.
    changed = (Message("user", (Text("masked"),)), *messages[1:])
    request = ModelRequest(changed, session="s")
    assert builder.body(request, "gemini-3-flash") == RequestBuilder().body(request, "gemini-3-flash")


@FEW
@given(histories(max_exchanges=2))
def test_what_a_model_said_is_sent_back_as_it_said_it(messages: tuple[Message, ...]) -> None:
    """M4, M8, I7: parts sent to Gemini, read as if Gemini had said them, and sent again are the same parts."""
    for content in body_of(messages)["contents"]:
        if content["role"] != "model":
            continue
        chunks = Reply().take(ServerEvent(json.dumps({"candidates": [{"content": content}]}).encode()))
        again = _message_of(chunks)
        if again.parts:
            sent = body_of((Message("user", (Text("x"),)), again))["contents"][1]["parts"]
            for part in sent:
                if "functionCall" in part:
                    part["functionCall"]["id"] = part["functionCall"]["id"].removeprefix("call_")
            assert sent == content["parts"]


def _message_of(chunks: list[Any]) -> Message:
    """A message with one part for each chunk: what a careful reader makes of a stream that is not split further."""
    from trouper.core.ids import CallId
    from trouper.models.chunks import CallEnd, CallStart, PartChunk, TextChunk, ThinkingChunk

    parts: list[Any] = []
    start: CallStart | None = None
    for chunk in chunks:
        match chunk:
            case TextChunk(text, opaque):
                parts.append(Text(text, opaque))
            case ThinkingChunk(text, _, opaque):
                parts.append(Thinking(text, None, opaque))
            case CallStart():
                start = chunk
            case CallEnd(_, arguments, opaque):
                assert start is not None
                parts.append(ToolCall(CallId(f"call_{start.id}"), start.name, arguments, None, opaque))
            case PartChunk(part):
                assert isinstance(part, ProviderPart)
                parts.append(part)
    return Message("assistant", tuple(parts))
