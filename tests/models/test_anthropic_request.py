"""M14, L22: attachments, results, ids, names, tools and cache breakpoints as Anthropic wants them."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from trouper.core.ids import CallId
from trouper.core.messages import (
    Media,
    Message,
    Opaque,
    Outcome,
    ProviderPart,
    Text,
    Thinking,
    ToolAnswer,
    ToolCall,
    ToolSpec,
)
from trouper.models import wire_json
from trouper.models.anthropic import API_VERSION
from trouper.models.anthropic_request import CacheLife, MessagesRequestBuilder, media_block
from trouper.models.protocol import ModelRequest
from trouper.testing.server.anthropic import messages_problem

HI = Message("user", (Text("hi"),))
PICTURE = Media("image/png", data="aW1n")
MARK = {"type": "ephemeral"}
OWN = Opaque("anthropic", {})


def builder(config: Any = None, cache: CacheLife = None) -> MessagesRequestBuilder:
    return MessagesRequestBuilder(config, max_tokens=100, api_version=API_VERSION, cache=cache)


def body_of(*messages: Message, config: Any = None, cache: CacheLife = None, **request: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(builder(config, cache).body(ModelRequest(messages, **request), "m"))
    return found


def called(*ids: str | None, name: str = "look", own: bool = True) -> Message:
    opaque = OWN if own else None
    return Message("assistant", tuple(ToolCall(CallId(f"c{i}"), name, {}, id, opaque) for i, id in enumerate(ids)))


def answered(call: Message, outcome: Outcome = Outcome.OK, content: Any = "x", images: tuple[Media, ...] = ()) -> Message:  # fmt: skip
    return Message("tool", tuple(ToolAnswer(c.id, c.name, outcome, content, images, c.provider_id) for c in call.calls))


@pytest.mark.parametrize(
    ("media", "block"),
    [
        (PICTURE, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aW1n"}}),
        (Media("image/webp", uri="https://x/y"), {"type": "image", "source": {"type": "url", "url": "https://x/y"}}),
        (Media("image/png", uri="file_1"), {"type": "image", "source": {"type": "file", "file_id": "file_1"}}),
        (
            Media("application/pdf", data="YQ==", name="a.pdf"),
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "YQ=="}, "title": "a.pdf"},
        ),
        (
            Media("text/csv", data=base64.b64encode("ü,1".encode()).decode()),
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "ü,1"}},
        ),
    ],
    ids=str,
)  # fmt: skip
def test_attachments(media: Media, block: dict[str, Any]) -> None:
    assert media_block(media) == block


@pytest.mark.parametrize(
    "media", [Media("video/mp4", uri="https://x"), Media("audio/wav", data="YQ=="), Media("image/tiff", data="YQ==")]
)
def test_an_attachment_that_cannot_be_sent_is_told_of(media: Media) -> None:
    block = media_block(media)
    assert block["type"] == "text"
    assert media.mime_type in block["text"]


def test_results_come_first_and_hold_their_pictures() -> None:
    """M14: one batch, whatever follows."""
    call = called("toolu_a", "toolu_b")
    got = body_of(HI, call, answered(call, content={"n": 1}, images=(PICTURE,)), HI)["messages"]
    assert [message["role"] for message in got] == ["user", "assistant", "user"]
    assert [block["type"] for block in got[2]["content"]] == ["tool_result", "tool_result", "text"]
    assert got[2]["content"][0] == {
        "type": "tool_result",
        "tool_use_id": "toolu_a",
        "content": [{"type": "text", "text": '{"n":1}'}, media_block(PICTURE)],
    }


@pytest.mark.parametrize("outcome", list(Outcome))
def test_is_error_tells_how_a_call_ended(outcome: Outcome) -> None:
    call = called("toolu_a")
    [result] = body_of(HI, call, answered(call, outcome, "text"))["messages"][2]["content"]
    assert result.get("is_error", False) is (outcome is not Outcome.OK)
    assert result["content"] == "text"


def test_a_blank_result_has_no_content() -> None:
    call = called("toolu_a")
    [result] = body_of(HI, call, answered(call, content=" \n"))["messages"][2]["content"]
    assert result == {"type": "tool_result", "tool_use_id": "toolu_a"}


@pytest.mark.parametrize("content", ["", " \n"])
def test_a_failure_that_says_nothing_is_told_in_words(content: str) -> None:
    """L22: an empty result that is marked as an error is refused, and with it every later request of the session."""
    call = called("toolu_a")
    [result] = body_of(HI, call, answered(call, Outcome.ERROR, content))["messages"][2]["content"]
    assert (result["content"], result["is_error"]) == ("(The call failed, and said nothing.)", True)


def test_pictures_of_a_failure_come_after_the_results() -> None:
    """L22: within a result that is marked as an error nothing but text is taken; and results come first."""
    call = called("toolu_a", "toolu_b")
    history = (HI, call, answered(call, Outcome.ERROR, {"exit_code": 1}, images=(PICTURE,)), HI)
    content = body_of(*history)["messages"][2]["content"]
    assert [block["type"] for block in content] == [
        "tool_result",
        "tool_result",
        "text",
        "image",
        "text",
        "image",
        "text",
    ]
    assert content[0] == {
        "type": "tool_result",
        "tool_use_id": "toolu_a",
        "content": '{"exit_code":1}',
        "is_error": True,
    }
    assert content[2:4] == [{"type": "text", "text": "[Attachments of the result of 'look']"}, media_block(PICTURE)]
    assert messages_problem(body_of(*history)["messages"], has_tools=True) is None


def test_only_anthropics_own_ids_go_back() -> None:
    """L22: others are not known to be unique in the conversation, nor to be such as it takes."""
    mine, foreign = called("toolu_a"), called("call:0", None, own=False)
    for call, ids in ((mine, ["toolu_a"]), (foreign, ["c0", "c1"])):
        _, said, results = body_of(HI, call, answered(call))["messages"]
        assert [block["id"] for block in said["content"]] == ids
        assert [block["tool_use_id"] for block in results["content"]] == ids


def test_a_name_that_never_existed_is_made_fit_to_send() -> None:
    call = called("toolu_a", name="files.read all! " + "x" * 200)
    name = body_of(HI, call, answered(call))["messages"][1]["content"][0]["name"]
    assert name.startswith("files_read_all__xxx")
    assert len(name) == 128


def test_a_history_of_calls_has_its_tools_declared_though_there_are_none_any_more() -> None:
    call = called("toolu_a")
    body = body_of(HI, call, answered(call))
    assert [tool["name"] for tool in body["tools"]] == ["look"]
    assert body["tool_choice"] == {"type": "none"}
    assert "tools" not in body_of(HI)


@pytest.mark.parametrize(
    ("choice", "parallel", "sent"),
    [
        ("auto", True, None),
        ("auto", False, {"type": "auto", "disable_parallel_tool_use": True}),
        ("any", True, {"type": "any"}),
        ("none", False, {"type": "none"}),
        ("look", False, {"type": "tool", "name": "look", "disable_parallel_tool_use": True}),
    ],
)
def test_the_choice_of_tools(choice: str, parallel: bool, sent: Any) -> None:
    """L8."""
    spec = ToolSpec("look", "", {})
    assert body_of(HI, tools=(spec,), tool_choice=choice, parallel_tool_calls=parallel).get("tool_choice") == sent


def test_blank_text_and_foreign_parts_are_left_out() -> None:
    """M4, M14: Anthropic refuses blank text; a message of nothing else is none, and its neighbours become one."""
    nothing = Message(
        "assistant", (Text("\n"), Thinking("hm", "sig"), ProviderPart(Opaque("q", {"type": "x"})), PICTURE)
    )
    assert body_of(HI, nothing, HI)["messages"] == [{"role": "user", "content": [{"type": "text", "text": "hi"}] * 2}]
    assert body_of(Message("user", (Text(" "),)))["messages"][0]["content"][0]["text"].strip()


def test_arguments_that_are_no_object_still_show() -> None:
    for arguments, sent in ((None, {}), ([1], {"arguments": [1]})):
        call = Message("assistant", (ToolCall(CallId("c"), "look", arguments),))
        assert body_of(HI, call, answered(call))["messages"][1]["content"][0]["input"] == sent


def test_cache_breakpoints_move_with_the_conversation() -> None:
    """M14: at the end of tools, system and conversation, and where the last request ended; never more than four."""
    keeper = builder(cache="1h")
    mark = {"type": "ephemeral", "ttl": "1h"}
    call = called("toolu_a")
    request: dict[str, Any] = {"session": "s", "system": "s", "tools": (ToolSpec("look", "", {}),)}
    history = (HI, call, answered(call))

    def marked(messages: tuple[Message, ...]) -> list[tuple[int, int]]:
        body = json.loads(keeper.body(ModelRequest(messages, **request), "m"))
        assert body["tools"][-1]["cache_control"] == body["system"][-1]["cache_control"] == mark
        return [
            (i, j)
            for i, message in enumerate(body["messages"])
            for j, block in enumerate(message["content"])
            if block.get("cache_control") == mark
        ]

    assert marked(history[:1]) == [(0, 0)]
    assert marked(history) == [(0, 0), (2, 0)]
    assert marked(history) == [(2, 0)]  # The same request again, as a retry sends it.
    assert marked((*history, HI)) == [(2, 0), (2, 1)]
    assert b"cache_control" not in builder(cache=None).body(ModelRequest(history, **request), "m")


def test_system_text_and_tools_of_the_config() -> None:
    config = {"system": "from the config", "tools": [{"type": "web_search_20260318", "name": "web_search"}]}
    body = body_of(HI, config=config, cache="5m")
    assert body["system"] == [{"type": "text", "text": "from the config", "cache_control": MARK}]
    assert body["tools"] == [{**config["tools"][0], "cache_control": MARK}]  # type: ignore[dict-item]
    assert body_of(HI, config=config, system="own")["system"] == [{"type": "text", "text": "own"}]


def test_a_schema_of_the_reply_stands_beside_other_settings_of_output() -> None:
    body = body_of(HI, config={"output_config": {"effort": "low"}}, response_schema={"type": "object"})
    assert body["output_config"] == {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}}


def test_a_turn_costs_the_same_at_the_thousandth_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The performance page: only what is new is encoded."""
    encoded: list[int] = []
    encode = wire_json.encode

    def counting(value: Any) -> bytes:
        text = encode(value)
        encoded.append(len(text))
        return text

    keeper = builder(cache="5m")
    history: tuple[Message, ...] = (HI,)
    for _ in range(500):
        history += (Message("assistant", (Text("y" * 200),)), Message("user", (Text("x" * 200),)))
    keeper.body(ModelRequest(history, session="s"), "m")
    monkeypatch.setattr(wire_json, "encode", counting)
    history += (Message("assistant", (Text("z" * 200),)), Message("user", (Text("x" * 200),)))
    body = keeper.body(ModelRequest(history, session="s"), "m")
    assert len(body) > 200_000
    assert sum(encoded) < 1_500
