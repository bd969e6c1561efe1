"""I5, I7, L22, M14: any history that may be sent becomes a body that Anthropic's own types accept and its rules allow, and a reply goes back as it came."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trouper.actors.draft import Draft
from trouper.core.messages import Json, Message, Opaque, Part, ProviderPart, Text, Thinking, ToolCall, ToolSpec
from trouper.models._errors import ModelError
from trouper.models.anthropic import API_VERSION
from trouper.models.anthropic_reply import MessagesReply
from trouper.models.anthropic_request import CacheLife, MessagesRequestBuilder, ThinkingForm, clean_id, map_blocks
from trouper.models.protocol import ModelRequest
from trouper.models.sse import ServerEvent
from trouper.testing.server.anthropic import request_problem
from trouper.testing.strategies import histories, json_objects, json_values, names, signatures, texts, tool_specs

FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SEARCH = Opaque("anthropic", {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}})  # fmt: skip


def builder(cache: CacheLife = "5m", cache_bytes_max: int = 100_000) -> MessagesRequestBuilder:
    return MessagesRequestBuilder(
        max_tokens=1_000, api_version=API_VERSION, cache=cache, cache_bytes_max=cache_bytes_max
    )


def body_of(messages: tuple[Message, ...], thinking: ThinkingForm = "kept", **request: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(builder().body(ModelRequest(messages, **request), "claude-test", thinking))
    return body


def _dressed(part: Part) -> Part:
    """The strategy's parts with what Anthropic itself would have put on them."""
    match part:
        case Thinking(text, _, Opaque("anthropic", data)):
            if len(text) % 3 == 0:
                return Thinking("", None, Opaque("anthropic", {"type": "redacted_thinking", "data": data["thoughtSignature"]}))  # fmt: skip
            return Thinking(text, data["thoughtSignature"], Opaque("anthropic", {}))
        case Text(text, Opaque("anthropic", _)):
            return Text(text, Opaque("anthropic", {"citations": []}))
        case ToolCall(opaque=Opaque("anthropic", _)):
            return ToolCall(part.id, part.name, part.arguments, f"toolu_{part.id}", Opaque("anthropic", {"caller": {"type": "direct"}}))  # fmt: skip
        case ProviderPart(Opaque("anthropic", _)):
            return ProviderPart(SEARCH)
        case _:
            return part


def own_histories(max_exchanges: int = 5) -> st.SearchStrategy[tuple[Message, ...]]:
    return histories("anthropic", max_exchanges).map(
        lambda messages: tuple(
            Message(message.role, tuple(map(_dressed, message.parts)), message.kind) for message in messages
        )
    )


ANY_HISTORY = st.one_of(own_histories(), histories("gemini"))


def closed_types(root: Any, seen: set[Any] | None = None) -> None:
    """Makes pydantic refuse fields that the package's TypedDicts do not know; by themselves they would be skipped."""
    from typing import get_args, get_type_hints

    from typing_extensions import is_typeddict

    seen = seen if seen is not None else set()
    if root in seen:
        return
    seen.add(root)
    if is_typeddict(root):
        if root.__name__ != "InputSchemaTyped":
            root.__pydantic_config__ = {**getattr(root, "__pydantic_config__", {}), "extra": "forbid"}
        for hint in get_type_hints(root, include_extras=True).values():
            closed_types(hint, seen)
    for argument in get_args(root):
        if not isinstance(argument, str | int | None):
            closed_types(argument, seen)


def drain(value: object) -> None:
    """Pydantic checks an `Iterable` only while it is being read."""
    if isinstance(value, Mapping):
        for item in value.values():
            drain(item)
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
        for item in value:
            drain(item)


class Types:
    """Anthropic's own types of a request's body."""

    def __init__(self) -> None:
        from anthropic.types import ContentBlockParam
        from anthropic.types.message_create_params import MessageCreateParamsStreaming
        from pydantic import TypeAdapter

        closed_types(MessageCreateParamsStreaming)
        closed_types(ContentBlockParam)
        self._body: TypeAdapter[Any] = TypeAdapter(MessageCreateParamsStreaming)
        # By themselves: within a message the types of replies are taken as well, and those take any field.
        self._block: TypeAdapter[Any] = TypeAdapter(ContentBlockParam)

    def check(self, body: dict[str, Any]) -> None:
        drain(self._body.validate_python(body))
        for message in body["messages"]:
            for block in message["content"]:
                drain(self._block.validate_python(block))


@pytest.fixture(scope="module")
def types() -> Types:
    return Types()


def test_the_check_by_types_is_a_check(types: Types) -> None:
    """Otherwise the test below would say nothing."""
    good = body_of((Message("user", (Text("hi"),)),))
    types.check(good)
    for bad in (
        {**good, "maxTokens": 1},
        {**good, "messages": [{"role": "user", "content": [{"type": "text"}]}]},
        {**good, "messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}]}]},
        {**good, "messages": [{"role": "user", "content": [{"type": "text", "text": "x", "extra": 1}]}]},
        {**good, "tools": [{"name": "x"}]},
        {**good, "temperature": 1.0},
    ):
        with pytest.raises(ValueError, match="validation error"):
            types.check(bad)


@FEW
@given(
    ANY_HISTORY,
    st.lists(tool_specs(), max_size=3, unique_by=lambda spec: spec.name),
    st.sampled_from(["auto", "none", "any", "look"]),
    st.booleans(),
)
def test_anthropics_own_types_accept_every_body(
    types: Types, messages: tuple[Message, ...], tools: list[ToolSpec], choice: str, parallel: bool
) -> None:
    """M14."""
    body = body_of(
        messages,
        tools=tuple(tools),
        system="Be brief.",
        max_output_tokens=10,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        response_schema={"type": "object"},
    )
    types.check(body)


@FEW
@given(ANY_HISTORY, st.sampled_from(["kept", "checked", "left_out"]), st.booleans())
def test_every_body_is_a_conversation_that_anthropic_accepts(
    messages: tuple[Message, ...], thinking: ThinkingForm, tools: bool
) -> None:
    """I5: the roles take turns; each call is answered once, by id, in order, first in the user's content right after it."""
    specs = (ToolSpec("look", "x", {}),) if tools else ()
    body = body_of(messages, thinking, tools=specs, system="s")
    assert request_problem(body, API_VERSION) is None
    roles = [message["role"] for message in body["messages"]]
    assert roles[0] == "user"
    assert all(before != after for before, after in itertools.pairwise(roles))
    blocks = [block for message in body["messages"] for block in message["content"]]
    calls = [block for block in blocks if block["type"] == "tool_use"]
    results = [block for block in blocks if block["type"] == "tool_result"]
    assert [call["id"] for call in calls] == [result["tool_use_id"] for result in results]
    asked = [call for message in messages for call in message.calls]
    assert [call["input"] for call in calls] == [call.arguments for call in asked]
    assert [result.get("is_error", False) for result in results] == [
        answer.outcome.value != "ok" for message in messages for answer in message.answers
    ]


@FEW
@given(own_histories())
def test_thinking_is_sent_as_received_and_in_its_place(messages: tuple[Message, ...]) -> None:
    """I7, M14: signed and redacted, byte for byte; another provider's never."""
    kinds = ("thinking", "redacted_thinking")
    sent = [
        (block.get("thinking"), block.get("signature") or block["data"])
        for message in body_of(messages)["messages"]
        for block in message["content"]
        if block["type"] in kinds
    ]
    expected = [
        (None, part.opaque.data["data"]) if "data" in part.opaque.data else (part.text, part.signature)
        for message in messages
        if map_blocks(message, message, False)
        for part in message.parts
        if isinstance(part, Thinking) and part.opaque is not None and part.opaque.provider == "anthropic"
    ]
    assert sent == expected
    left = body_of(messages, "left_out")["messages"]
    assert not any(block["type"] in kinds for message in left for block in message["content"])


def _without_marks(body: bytes) -> Json:
    def strip(value: Json) -> Json:
        if isinstance(value, dict):
            return {key: strip(item) for key, item in value.items() if key != "cache_control"}
        return [strip(item) for item in value] if isinstance(value, list) else value

    return strip(json.loads(body))


@FEW
@given(own_histories(6), st.integers(1, 5), st.sampled_from(["5m", "1h", None]))
def test_a_body_built_upon_the_last_one_equals_one_built_afresh(
    messages: tuple[Message, ...], stride: int, life: CacheLife
) -> None:
    """The cache never shows, but in where the provider is asked to cache: at most four places, the last at the end."""
    kept = builder(life, 2_000)
    other = (Message("user", (Text("another session"),)),)
    tools = (ToolSpec("look", "x", {}),)
    changed = (Message("user", (Text("masked"),)), *messages[1:])
    lengths = [*range(1, len(messages) + 1, stride), len(messages), max(1, len(messages) // 2)]
    for history in [*(messages[:length] for length in lengths), changed]:
        request = ModelRequest(history, session="s", tools=tools, system="s")
        body = kept.body(request, "m")
        assert _without_marks(body) == _without_marks(builder(None).body(request, "m"))
        assert body.count(b'"cache_control":') <= 4
        last = json.loads(body)["messages"][-1]
        if last["role"] == "user":
            assert ("cache_control" in last["content"][-1]) == (life is not None)
        kept.body(ModelRequest(other, session="t"), "m")


def pieces(draw: st.DrawFn, text: str) -> list[str]:
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@st.composite
def blocks(draw: st.DrawFn, number: int = 0) -> tuple[dict[str, Json], dict[str, Json], list[dict[str, Json]]]:
    """A content block, how it starts, and one of the many ways in which the rest may be streamed."""
    match draw(st.sampled_from(["text", "cited", "thinking", "redacted", "call", "server", "new"])):
        case "text":
            text = draw(texts().filter(lambda text: bool(text.strip())))
            return {"type": "text", "text": text}, {"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces(draw, text)]  # fmt: skip
        case "cited":
            text, cited = (
                draw(texts().filter(lambda text: bool(text.strip()))),
                [{"type": "page", "n": 1}, {"type": "x"}],
            )
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces(draw, text)]
            deltas += [{"type": "citations_delta", "citation": one} for one in cited]
            return {"type": "text", "text": text, "citations": cited}, {"type": "text", "text": "", "citations": []}, deltas  # fmt: skip
        case "thinking":
            text, signature = draw(texts()), draw(signatures())
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(draw, text)]
            deltas += [{"type": "signature_delta", "signature": signature}]
            whole = {"type": "thinking", "thinking": text, "signature": signature}
            return whole, {"type": "thinking", "thinking": "", "signature": ""}, deltas
        case "redacted":
            whole = {"type": "redacted_thinking", "data": draw(signatures())}
            return whole, whole, []
        case "call":
            given = draw(json_objects())
            whole = {"type": "tool_use", "id": f"toolu_{number}", "name": draw(names()), "input": given, "caller": {"type": "direct"}}  # fmt: skip
            text = json.dumps(given)
            return whole, {**whole, "input": {}}, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(draw, text)]  # fmt: skip
        case "server":
            given = draw(json_objects())
            whole = {"type": "server_tool_use", "id": f"srvtoolu_{number}", "name": "web_search", "input": given}
            return whole, {**whole, "input": {}}, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(draw, json.dumps(given))]  # fmt: skip
        case _:
            text = draw(texts())
            whole = {"type": "block_of_tomorrow", "content": text, "deep": draw(json_objects())}
            return whole, {**whole, "content": ""}, [{"type": "delta_of_tomorrow", "content": piece} for piece in pieces(draw, text)]  # fmt: skip


@st.composite
def replies(draw: st.DrawFn) -> list[tuple[dict[str, Json], dict[str, Json], list[dict[str, Json]]]]:
    return [draw(blocks(number)) for number in range(draw(st.integers(1, 6)))]


@FEW
@given(replies())
def test_what_a_model_said_is_sent_back_as_it_said_it(
    reply: list[tuple[dict[str, Json], dict[str, Json], list[dict[str, Json]]]],
) -> None:
    """M4, M14, I7: the same blocks in the same order, neighbours not joined, unknown kinds and fields kept."""
    reader, draft = MessagesReply(), Draft()
    events: list[dict[str, Json]] = [{"type": "message_start", "message": {"usage": {"input_tokens": 1}}}]
    for index, (_, start, deltas) in enumerate(reply):
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    events += [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, {"type": "message_stop"}]
    for event in events:
        for chunk in reader.take(ServerEvent(json.dumps(event).encode(), event["type"])):
            draft.add(chunk)
    for chunk in reader.end():
        draft.add(chunk)
    given = [whole["input"] for whole, _, _ in reply if whole["type"] == "tool_use"]
    arguments = [json.loads("".join(call.buffer) or "{}") for call in draft.open_calls]
    assert arguments == given
    message = draft.message(1, 1, arguments)
    expected = [whole for whole, _, _ in reply]
    if all(whole["type"] in ("thinking", "redacted_thinking") for whole in expected):
        assert map_blocks(message, message, False) == []
    else:
        assert map_blocks(message, message, False) == expected


@FEW
@given(st.lists(texts(), min_size=2, max_size=5, unique=True))
def test_ids_are_such_as_anthropic_takes_and_stay_apart(given_ids: list[str]) -> None:
    """L22: ids of other providers may hold anything."""
    clean = [clean_id(given_id) for given_id in given_ids]
    assert len(set(clean)) == len(clean)
    assert all(name.replace("_", "a").replace("-", "a").isalnum() and name.isascii() for name in clean if name)


BLOCK = st.fixed_dictionaries(
    {},
    optional={
        "type": st.one_of(st.sampled_from(["text", "thinking", "redacted_thinking", "tool_use", "new"]), json_values()),
        "text": json_values(),
        "thinking": json_values(),
        "signature": json_values(),
        "id": json_values(),
        "name": json_values(),
        "input": json_values(),
        "citations": json_values(),
    },
)
DELTA = st.fixed_dictionaries(
    {},
    optional={
        "type": st.one_of(
            st.sampled_from(["text_delta", "thinking_delta", "signature_delta", "input_json_delta", "citations_delta"]),
            json_values(),
        ),
        "text": json_values(),
        "thinking": json_values(),
        "signature": json_values(),
        "partial_json": json_values(),
        "citation": json_values(),
        "stop_reason": json_values(),
        "stop_details": json_values(),
    },
)
KINDS = ["message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "ping", "new"]  # fmt: skip
EVENT = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS)},
    optional={
        "index": st.one_of(st.integers(0, 2), json_values()),
        "content_block": st.one_of(BLOCK, json_values()),
        "delta": st.one_of(DELTA, json_values()),
        "message": json_values(),
        "usage": st.one_of(json_values(), st.dictionaries(st.sampled_from(["input_tokens", "output_tokens_details"]), json_values())),
    },
)  # fmt: skip


@settings(FEW, max_examples=80)
@given(st.lists(EVENT, max_size=6))
def test_whatever_a_server_sends_a_reply_or_a_model_error_comes_of_it(events: list[Any]) -> None:
    """M4: odd values where nobody expects them harm nobody; what is said is well-formed."""
    reader, draft = MessagesReply(), Draft()
    try:
        for event in [*events, {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}]:
            for chunk in reader.take(ServerEvent(json.dumps(event).encode(), event["type"])):
                draft.add(chunk)
        for chunk in reader.end():
            draft.add(chunk)
    except ModelError:
        return
    message = draft.message(1, 1, [{} for _ in draft.open_calls])
    json.dumps(map_blocks(message, message, False))
    assert draft.done is not None
