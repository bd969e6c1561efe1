"""M4, M13: events of the many servers that speak Chat Completions, each with its own habits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trouper.actors.draft import Draft
from trouper.core.messages import Message, Opaque, ProviderPart, Text, Thinking, Usage
from trouper.models._errors import NetworkFault, ServerFault
from trouper.models.chunks import CallDelta, CallEnd, CallStart, Chunk, Done, TextChunk, ThinkingChunk
from trouper.models.openai_reply import ChatReply, merged, usage_of
from trouper.models.openai_request import Dialect, assistant_message
from trouper.models.sse import ServerEvent


def read(*deltas: dict[str, Any], finish: str | None = "stop", usage: Any = None) -> list[Chunk]:
    reply = ChatReply("p")
    chunks: list[Chunk] = []
    for delta in deltas:
        chunks += reply.take(ServerEvent(json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode()))
    last: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
    if usage is not None:
        last["usage"] = usage
    chunks += reply.take(ServerEvent(json.dumps(last).encode()))
    return chunks + reply.end()


def fragment(**fields: Any) -> dict[str, Any]:
    function = {key: fields.pop(key) for key in ("name", "arguments") if key in fields}
    return {"tool_calls": [{**fields, "function": function}]}


def calls(chunks: list[Chunk]) -> list[tuple[str, str | None, str]]:
    draft = Draft()
    for chunk in chunks:
        draft.add(chunk)
    return [(call.name, call.id, "".join(call.buffer)) for call in draft.open_calls]


A, B = ("look", "a", '{"n":1}'), ("find", "b", "{}")


@pytest.mark.parametrize(
    "deltas",
    [
        [
            fragment(index=0, id="a", type="function", name="look", arguments=""),
            fragment(index=0, arguments='{"n"'),
            fragment(index=0, arguments=":1}"),
            fragment(index=1, id="b", name="find", arguments="{}"),
        ],
        # Each call whole, without an index (Gemini's compatibility layer, older Ollama).
        [fragment(id="a", name="look", arguments='{"n":1}'), fragment(id="b", name="find", arguments="{}")],
        # Each call whole, all of them with the index 0.
        [fragment(index=0, id="a", name="look", arguments='{"n":1}'), fragment(index=0, id="b", name="find", arguments="{}")],
        # Name and id repeated with every fragment.
        [
            fragment(index=0, id="a", name="look", arguments='{"n"'),
            fragment(index=0, id="a", name="look", arguments=":1}"),
            fragment(index=1, id="b", name="find", arguments="{}"),
        ],
        # The id first, the name later; empty ids and names in the fragments.
        [
            fragment(index=0, id="a"),
            fragment(index=0, name="look"),
            fragment(index=0, id="", name="", arguments='{"n":1}'),
            fragment(index=1, id="b", name="find", arguments="{}"),
        ],
        # Arguments before the name.
        [
            fragment(index=0, id="a", arguments='{"n":'),
            fragment(index=0, name="look", arguments="1}"),
            fragment(index=1, id="b", name="find", arguments="{}"),
        ],
        # Several in one event.
        [
            {
                "tool_calls": [
                    {"index": 0, "id": "a", "function": {"name": "look", "arguments": '{"n":1}'}},
                    {"index": 1, "id": "b", "function": {"name": "find", "arguments": "{}"}},
                ]
            }
        ],
    ],
    ids=["openai", "no index", "all of index 0", "repeated", "name later", "arguments first", "at once"],
)  # fmt: skip
def test_fragments_become_calls_whatever_the_servers_habits(deltas: list[dict[str, Any]]) -> None:
    """M13."""
    chunks = read(*deltas, finish="tool_calls")
    assert calls(chunks) == [A, B]
    assert chunks[-1] == Done("tool_use")


def test_missing_ids_are_left_for_the_session_to_make() -> None:
    """M13: two calls without ids stay two, and the wire carries ours."""
    chunks = read(fragment(index=0, name="look", arguments="{}"), fragment(index=1, name="look", arguments="{}"))
    draft = Draft()
    for chunk in chunks:
        draft.add(chunk)
    message = draft.message(3, 1, [{}, {}])
    assert [call.provider_id for call in message.calls] == [None, None]
    sent = assistant_message(message, Dialect("p"))["tool_calls"]
    assert [call["id"] for call in sent] == [call.id for call in message.calls]
    assert len({call["id"] for call in sent}) == 2


def test_the_old_function_call_and_arguments_as_an_object() -> None:
    assert calls(read({"function_call": {"name": "look", "arguments": '{"n"'}}, {"function_call": {"arguments": ":1}"}})) == [
        ("look", None, '{"n":1}')
    ]  # fmt: skip
    assert CallEnd(0, {"n": 1}) in read(fragment(index=0, name="look", arguments={"n": 1}))


def test_a_call_that_never_got_a_name_is_none() -> None:
    assert read(fragment(index=0, id="a", arguments="{")) == [Done("end_turn")]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_kept_with_the_name_it_came_under(field: str) -> None:
    """M13, L4: text as it comes, and one chunk without text that seals it."""
    chunks = read({field: "hm"}, {field: "m", "content": None}, {"content": "so", field: None}, {"content": "."})
    sealed = Opaque("p", {"field": field})
    assert chunks == [
        ThinkingChunk("hm"),
        ThinkingChunk("m"),
        ThinkingChunk("", opaque=sealed),
        TextChunk("so"),
        TextChunk("."),
        Done("end_turn"),
    ]


def test_reasoning_under_both_names_is_told_once() -> None:
    """vLLM sends it twice while it changes its mind about the name."""
    chunks = read({"reasoning": "hm", "reasoning_content": "hm"}, {"content": "so"})
    assert [chunk.text for chunk in chunks if isinstance(chunk, ThinkingChunk)] == ["hm", ""]


def test_details_of_reasoning_are_put_together() -> None:
    """M13: OpenRouter streams them in fragments, and wants them back."""
    chunks = read(
        {"reasoning": "a", "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "a", "signature": None}]},
        {"reasoning": "b", "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "b", "signature": "s"}]},
        {"reasoning_details": [{"type": "reasoning.encrypted", "index": 1, "data": "zz"}]},
        {"content": "so"},
    )  # fmt: skip
    [sealed] = [chunk.opaque for chunk in chunks if isinstance(chunk, ThinkingChunk) and chunk.opaque]
    assert sealed.data == {
        "field": "reasoning",
        "reasoning_details": [
            {"type": "reasoning.text", "index": 0, "text": "ab", "signature": "s"},
            {"type": "reasoning.encrypted", "index": 1, "data": "zz"},
        ],
    }


def test_content_in_parts() -> None:
    """Mistral's way, when its models think."""
    chunks = read(
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]},
        {"content": [{"type": "text", "text": "so"}]},
    )
    assert [chunk.text for chunk in chunks if isinstance(chunk, ThinkingChunk | TextChunk)] == ["hm", "", "so"]


def test_a_refusal_is_shown_and_goes_back_as_one() -> None:
    """M13."""
    draft = Draft()
    for chunk in read({"content": "Well. "}, {"refusal": "I can"}, {"refusal": "not."}):
        draft.add(chunk)
    assert draft.done == Done("refusal", "refusal")
    message = draft.message(1, 1, [])
    assert message.text == "Well. I cannot."
    assert assistant_message(message, Dialect("p")) == {
        "role": "assistant",
        "content": "Well. ",
        "refusal": "I cannot.",
    }
    # To another provider it is what the model said.
    assert assistant_message(message, Dialect("q")) == {"role": "assistant", "content": "Well. I cannot."}


@pytest.mark.parametrize(
    ("finish", "done"),
    [
        ("stop", Done("end_turn")),
        ("length", Done("max_tokens")),
        ("content_filter", Done("refusal", "content_filter")),
        ("tool_calls", Done("end_turn")),
        ("reason_of_tomorrow", Done("reason_of_tomorrow")),
    ],
)
def test_finish_reasons(finish: str, done: Done) -> None:
    """M4, M13: tool_calls without any call is no tool use."""
    assert read({"content": "a"}, finish=finish)[-1] == done


def test_stop_after_calls_is_a_use_of_tools() -> None:
    """Ollama says so."""
    assert read(fragment(index=0, name="look", arguments="{}"), finish="stop")[-1] == Done("tool_use")


@pytest.mark.parametrize("finish", ["error", "insufficient_system_resource", "abort"])
def test_a_server_that_gives_up_is_at_fault(finish: str) -> None:
    with pytest.raises(ServerFault) as caught:
        read({"content": "a"}, finish=finish)
    assert caught.value.retryable


def test_no_end_no_reply() -> None:
    """L14: and calls that were under way never ended."""
    reply = ChatReply("p")
    delta = fragment(index=0, id="a", name="look", arguments='{"n"')
    chunks = reply.take(ServerEvent(json.dumps({"choices": [{"delta": delta}]}).encode()))
    assert chunks == [CallStart(0, "look", "a"), CallDelta(0, '{"n"')]
    assert not reply.finished
    with pytest.raises(NetworkFault):
        reply.end()


def test_nothing_counts_after_the_end_marker() -> None:
    reply = ChatReply("p")
    assert reply.take(ServerEvent(b" [DONE] ")) == []
    assert reply.ended
    assert reply.take(ServerEvent(b'{"choices":[{"delta":{"content":"late"}}]}')) == []


def test_fields_of_tomorrow_are_kept_and_go_back() -> None:
    """M4: on the message, and on a call."""
    draft = Draft()
    for chunk in read(
        {"content": "a", "annotations": [{"n": 1}], "images": [], "audio": None},
        {"annotations": [{"n": 2}], "new": {"text": "x"}},
        {"new": {"text": "y"}},
        fragment(index=0, id="c", name="look", arguments="{}", extra_content={"google": {"thought_signature": "sig"}}),
        finish="tool_calls",
    ):
        draft.add(chunk)
    message = draft.message(1, 1, [{}])
    assert message.parts[-1] == ProviderPart(Opaque("p", {"annotations": [{"n": 1}, {"n": 2}], "new": {"text": "xy"}}))
    sent = assistant_message(message, Dialect("p"))
    assert sent["annotations"] == [{"n": 1}, {"n": 2}]
    assert sent["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "sig"}}
    assert set(assistant_message(message, Dialect("q"))) == {"role", "content", "tool_calls"}


def test_other_candidates_are_left_alone() -> None:
    reply = ChatReply("p")
    assert reply.take_event({"choices": [{"index": 1, "delta": {"content": "other"}, "finish_reason": "stop"}]}) == []
    assert not reply.finished


def test_usage() -> None:
    """L24: None where nothing was said; parts are parts of the sums."""
    assert usage_of({}) == Usage()
    assert usage_of({"prompt_tokens": 9, "completion_tokens": 0}) == Usage(input=9, output=0)
    assert usage_of({"prompt_tokens": 9, "prompt_cache_hit_tokens": 3}) == Usage(input=9, cache_read=3)
    assert usage_of({"prompt_tokens": True, "completion_tokens": "7", "prompt_tokens_details": None}) == Usage()
    assert usage_of({"prompt_tokens": -1, "completion_tokens": 10**30}) == Usage()
    assert usage_of(
        {
            "prompt_tokens": 9,
            "completion_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 5},
            "completion_tokens_details": {"reasoning_tokens": 4},
        }
    ) == Usage(9, 8, 0, 5, 4)


def test_fragments_of_unknown_fields_are_merged() -> None:
    assert merged(None, "a") == "a"
    assert merged("a", "b") == "ab"
    assert merged([1], [2]) == [1, 2]
    assert merged({"a": "x", "b": 1}, {"a": "y", "b": 2}) == {"a": "xy", "b": 2}
    assert merged(1, "x") == "x"


def test_thinking_of_another_provider_stays_at_home() -> None:
    """I7."""
    parts = (Thinking("hm", "sig"), Thinking("hm", None, Opaque("q", {"field": "reasoning"})), Text("so"))
    assert assistant_message(Message("assistant", parts), Dialect("p", reasoning="always")) == {
        "role": "assistant",
        "content": "so",
    }
