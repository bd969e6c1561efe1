"""I5, I7, L22, M13: any history that may be sent becomes a body that OpenAI's own types accept and its rules allow, and a reply goes back as it came."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trouper.actors.draft import Draft
from trouper.core.messages import Json, Message, Opaque, ProviderPart, Text, Thinking, ToolCall, ToolSpec
from trouper.models._errors import ModelError
from trouper.models.openai_reply import ChatReply
from trouper.models.openai_request import ChatRequestBuilder, Dialect, assistant_message, is_strict
from trouper.models.protocol import ModelRequest
from trouper.models.sse import ServerEvent
from trouper.testing.server.openai import history_problem
from trouper.testing.strategies import histories, json_objects, json_values, names, signatures, texts, tool_specs

FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
DIALECT = Dialect("openai", "max_completion_tokens")


def body_of(messages: tuple[Message, ...], dialect: Dialect = DIALECT, **request: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(ChatRequestBuilder(dialect).body(ModelRequest(messages, **request), "gpt-test"))
    return body


def closed_types(root: Any, seen: set[Any] | None = None) -> None:
    """Makes pydantic refuse fields that the package's TypedDicts do not know; by themselves they would be skipped."""
    from typing import get_args, get_type_hints

    from typing_extensions import is_typeddict

    seen = seen if seen is not None else set()
    if root in seen:
        return
    seen.add(root)
    if is_typeddict(root):
        root.__pydantic_config__ = {"extra": "forbid"}
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


@pytest.fixture(scope="module")
def params() -> Any:
    from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
    from pydantic import TypeAdapter

    closed_types(CompletionCreateParamsStreaming)
    return TypeAdapter(CompletionCreateParamsStreaming)


def test_the_check_by_types_is_a_check(params: Any) -> None:
    """Otherwise the test below would say nothing."""
    good = body_of((Message("user", (Text("hi"),)),))
    drain(params.validate_python(good))
    for bad in (
        {**good, "maxTokens": 1},
        {**good, "messages": [{"role": "user", "content": [{"type": "text"}]}]},
        {**good, "messages": [{"role": "user", "content": "x", "extra": 1}]},
        {**good, "messages": [{"role": "tool", "content": "x"}]},
        {**good, "tools": [{"type": "function", "function": {"description": "x"}}]},
    ):
        with pytest.raises(ValueError, match="validation error"):
            drain(params.validate_python(bad))


@FEW
@given(
    histories(),
    st.lists(tool_specs(), max_size=3, unique_by=lambda spec: spec.name),
    st.sampled_from(["auto", "none", "any", "look"]),
    st.booleans(),
)
def test_openais_own_types_accept_every_body(
    params: Any, messages: tuple[Message, ...], tools: list[ToolSpec], choice: str, parallel: bool
) -> None:
    """M13: a history of another provider's, with nothing of that provider's own left in it."""
    body = body_of(
        messages,
        tools=tuple(tools),
        system="Be brief.",
        temperature=0.5,
        max_output_tokens=10,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        response_schema={"type": "object", "properties": {}, "additionalProperties": False},
    )
    drain(params.validate_python(body))
    assert ("tool_choice" in body) == (bool(tools) and choice != "auto")
    assert ("parallel_tool_calls" in body) == (bool(tools) and not parallel)


@FEW
@given(st.sampled_from(["gemini", "openai"]).flatmap(histories))
def test_every_body_is_a_conversation_that_openai_accepts(messages: tuple[Message, ...]) -> None:
    """I5: each call is answered once, by id, in order, by the messages right after it; users' messages never follow each other."""
    body = body_of(messages, system="s")
    assert history_problem(body) is None
    roles = [message["role"] for message in body["messages"]]
    assert roles[:2] == ["system", "user"]
    assert not any(before == after == "user" for before, after in itertools.pairwise(roles))
    calls = [call["id"] for message in body["messages"] for call in message.get("tool_calls", ())]
    answers = [message["tool_call_id"] for message in body["messages"] if message["role"] == "tool"]
    assert calls == answers
    assert [json.loads(call["function"]["arguments"]) for message in body["messages"] for call in message.get("tool_calls", ())] == [
        call.arguments for message in messages for call in message.calls
    ]  # fmt: skip


@FEW
@given(histories("openai"))
def test_own_fields_go_back_to_their_provider_and_to_no_other(messages: tuple[Message, ...]) -> None:
    """M4, I7: byte for byte, each on the call that it came with."""
    sent = [call.get("thoughtSignature") for message in body_of(messages)["messages"] for call in message.get("tool_calls", ())]  # fmt: skip
    assert sent == [
        call.opaque.data["thoughtSignature"] if call.opaque else None for message in messages for call in message.calls
    ]
    elsewhere = json.dumps(body_of(messages, Dialect("another host")))
    assert "thoughtSignature" not in elsewhere
    assert "executableCode" not in elsewhere


@FEW
@given(histories("openai", max_exchanges=6), st.integers(1, 5))
def test_a_body_built_upon_the_last_one_equals_one_built_afresh(messages: tuple[Message, ...], stride: int) -> None:
    """The cache never shows: not while a history grows, not when it is compacted, not when two sessions take turns."""
    builder = ChatRequestBuilder(DIALECT, cache_bytes_max=2_000)
    other = (Message("user", (Text("another session"),)),)
    for length in [*range(1, len(messages) + 1, stride), len(messages), max(1, len(messages) // 2)]:
        request = ModelRequest(messages[:length], session="s")
        assert builder.body(request, "m") == ChatRequestBuilder(DIALECT).body(request, "m")
        builder.body(ModelRequest(other, session="t"), "m")
    changed = (Message("user", (Text("masked"),)), *messages[1:])
    request = ModelRequest(changed, session="s")
    assert builder.body(request, "m") == ChatRequestBuilder(DIALECT).body(request, "m")


def pieces(draw: st.DrawFn, text: str) -> list[str]:
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@st.composite
def replies(draw: st.DrawFn) -> tuple[dict[str, Json], list[dict[str, Json]]]:
    """A message as a provider might say it, and one of the many ways in which it may be streamed."""
    message: dict[str, Json] = {"role": "assistant", "content": draw(texts()) or None}
    deltas: list[dict[str, Json]] = []
    field = draw(st.sampled_from(["reasoning_content", "reasoning"]))
    if reasoning := draw(texts()):
        message[field] = reasoning
        deltas += [{field: piece} for piece in pieces(draw, reasoning)]
    if message["content"]:
        deltas += [{"content": piece} for piece in pieces(draw, message["content"])]
    calls: list[Json] = []
    streams: list[list[Json]] = []
    for index in range(draw(st.integers(1, 3))):
        arguments = json.dumps(draw(json_objects()), ensure_ascii=False, separators=(",", ":"))
        function = {"name": draw(names()), "arguments": arguments}
        call: dict[str, Json] = {"id": f"call_{index}", "type": "function", "function": function}
        extra = {"extra_content": {"signature": draw(signatures())}} if draw(st.booleans()) else {}
        calls.append({**extra, **call})
        start = {**call, **extra, "index": index, "function": {"name": function["name"], "arguments": ""}}
        rest = [{"index": index, "function": {"arguments": piece}} for piece in pieces(draw, arguments)]
        streams.append([start, *rest])
    message["tool_calls"] = calls
    # All starts first, in order; then fragments of the calls in any order.
    fragments = [stream.pop(0) for stream in streams]
    while any(streams):
        fragments.append(draw(st.sampled_from([stream for stream in streams if stream])).pop(0))
    deltas += [{"tool_calls": [fragment]} for fragment in fragments]
    if draw(st.booleans()):
        message["annotations"] = [{"type": "new", "value": draw(json_values())}]
        deltas.append({"annotations": message["annotations"]})
    return message, deltas


@FEW
@given(replies())
def test_what_a_model_said_is_sent_back_as_it_said_it(reply: tuple[dict[str, Json], list[dict[str, Json]]]) -> None:
    """M4, M13, I7: whatever the fragments, the message goes back whole, unknown fields and all."""
    message, deltas = reply
    reader, draft = ChatReply("openai"), Draft()
    events = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    for event in events:
        for chunk in reader.take(ServerEvent(json.dumps(event).encode())):
            draft.add(chunk)
    for chunk in reader.end():
        draft.add(chunk)
    arguments = [json.loads("".join(call.buffer) or "{}") for call in draft.open_calls]
    sent = assistant_message(draft.message(1, 1, arguments), DIALECT)
    for call in [*sent["tool_calls"], *message["tool_calls"]]:
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    assert sent == message


@FEW
@given(texts().filter(bool), signatures(), st.sampled_from(["auto", "always", "never"]), st.booleans())
def test_reasoning_goes_back_where_it_is_wanted(text: str, signed: str, reasoning: Any, called: bool) -> None:
    """M13: with calls; anywhere, if it is signed; or as the client was told."""
    details = Opaque(
        "p", {"field": "reasoning", "reasoning_details": [{"type": "reasoning.encrypted", "data": signed}]}
    )
    plain = Opaque("p", {"field": "reasoning_content"})
    calls = (ToolCall("call_1", "look", {}),) if called else ()  # type: ignore[arg-type]
    rest = (Text("so"), *calls, ProviderPart(Opaque("other", {"x": 1})))
    dialect = Dialect("p", reasoning=reasoning)
    told = assistant_message(Message("assistant", (Thinking(text, None, plain), *rest)), dialect)
    assert ("reasoning_content" in told) == (reasoning == "always" or (reasoning == "auto" and called))
    told = assistant_message(Message("assistant", (Thinking(text, None, details), *rest)), dialect)
    assert ("reasoning_details" in told) == (reasoning != "never")
    assert told.get("reasoning", text) == text
    assert "x" not in told


@FEW
@given(st.dictionaries(names(), st.sampled_from([{"type": "string"}, {"type": "integer"}]), max_size=3), st.booleans())
def test_strict_mode_is_asked_for_only_where_it_is_taken(properties: dict[str, Json], closed: bool) -> None:
    schema: dict[str, Json] = {"type": "object", "properties": properties, "required": list(properties)}
    if closed:
        schema["additionalProperties"] = False
    assert is_strict(schema) == closed
    assert is_strict({"type": "array", "items": schema}) == closed
    if properties:
        assert not is_strict({**schema, "required": []})


CALL_FRAGMENT = st.fixed_dictionaries(
    {},
    optional={
        "index": st.one_of(st.integers(0, 2), json_values()),
        "id": st.one_of(st.sampled_from(["a", "b", ""]), json_values()),
        "function": st.one_of(
            json_values(),
            st.fixed_dictionaries({}, optional={"name": st.one_of(names(), json_values()), "arguments": json_values()}),
        ),
        "extra": json_values(),
    },
)
DELTA = st.fixed_dictionaries(
    {},
    optional={
        "content": st.one_of(texts(), st.lists(json_values(), max_size=2), json_values()),
        "reasoning": st.one_of(texts(), json_values()),
        "reasoning_content": json_values(),
        "reasoning_details": st.one_of(st.lists(st.one_of(json_objects(), json_values()), max_size=2), json_values()),
        "refusal": json_values(),
        "tool_calls": st.one_of(st.lists(st.one_of(CALL_FRAGMENT, json_values()), max_size=2), json_values()),
        "function_call": json_values(),
        "new": json_values(),
    },
)
EVENT = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.one_of(
            json_values(),
            st.lists(st.fixed_dictionaries({}, optional={"delta": st.one_of(DELTA, json_values()), "finish_reason": json_values()}), max_size=2),
        ),
        "usage": st.one_of(json_values(), st.dictionaries(st.sampled_from(["prompt_tokens", "prompt_tokens_details"]), json_values())),
    },
)  # fmt: skip


@settings(FEW, max_examples=80)
@given(st.lists(EVENT, max_size=5))
def test_whatever_a_server_sends_a_reply_or_a_model_error_comes_of_it(events: list[Any]) -> None:
    """M4: odd values where nobody expects them harm nobody; what is said is well-formed."""
    reader, draft = ChatReply("p"), Draft()
    try:
        for event in [*events, {"choices": [{"delta": {}, "finish_reason": "stop"}]}]:
            for chunk in reader.take(ServerEvent(json.dumps(event).encode())):
                draft.add(chunk)
        for chunk in reader.end():
            draft.add(chunk)
    except ModelError:
        return
    message = draft.message(1, 1, [{} for _ in draft.open_calls])
    json.dumps(assistant_message(message, Dialect("p")))
    assert draft.done is not None
    assert all(isinstance(call.name, str) and call.name for call in message.calls)
