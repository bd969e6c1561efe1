"""M13, L22: attachments, results, ids and names as Chat Completions wants them."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from trouper.core.ids import CallId
from trouper.core.messages import Media, Message, Opaque, Outcome, ProviderPart, Text, Thinking, ToolAnswer, ToolCall
from trouper.models import wire_json
from trouper.models.openai_request import ChatRequestBuilder, Dialect, media_part
from trouper.models.protocol import ModelRequest

HI = Message("user", (Text("hi"),))
PICTURE = Media("image/png", data="aW1n")


def messages_of(*messages: Message, dialect: Dialect | None = None, **request: Any) -> list[dict[str, Any]]:
    body = ChatRequestBuilder(dialect or Dialect("p")).body(ModelRequest(messages, **request), "m")
    found: list[dict[str, Any]] = json.loads(body)["messages"]
    return found


def called(*ids: str, name: str = "look") -> Message:
    return Message("assistant", tuple(ToolCall(CallId(f"c{i}"), name, {}, id) for i, id in enumerate(ids)))


def answered(call: Message, outcome: Outcome = Outcome.OK, content: Any = "x", images: tuple[Media, ...] = ()) -> Message:  # fmt: skip
    return Message("tool", tuple(ToolAnswer(c.id, c.name, outcome, content, images, c.provider_id) for c in call.calls))


@pytest.mark.parametrize(
    ("media", "part"),
    [
        (PICTURE, {"type": "image_url", "image_url": {"url": "data:image/png;base64,aW1n"}}),
        (Media("image/webp", uri="https://x/y"), {"type": "image_url", "image_url": {"url": "https://x/y"}}),
        (Media("audio/mpeg", data="YQ=="), {"type": "input_audio", "input_audio": {"data": "YQ==", "format": "mp3"}}),
        (
            Media("application/pdf", data="YQ==", name="a.pdf"),
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,YQ=="}},
        ),
        (Media("text/plain", data=base64.b64encode("ü".encode()).decode()), {"type": "text", "text": "ü"}),
    ],
    ids=str,
)
def test_attachments(media: Media, part: dict[str, Any]) -> None:
    assert media_part(media) == part


@pytest.mark.parametrize(
    "media",
    [
        Media("video/mp4", uri="https://files.example/clip"),
        Media("video/mp4", data="YQ==", name="clip"),
        Media("image/png"),
    ],
)
def test_an_attachment_that_cannot_be_sent_is_told_of(media: Media) -> None:
    part = media_part(media)
    assert part["type"] == "text"
    assert media.mime_type in part["text"]
    assert (media.uri or "") in part["text"]


def test_users_messages_in_a_row_become_one() -> None:
    """M13: templates of local models insist that roles take turns; one text alone stays plain text."""
    assert messages_of(HI) == [{"role": "user", "content": "hi"}]
    assert messages_of(HI, Message("user", (Text("and"), PICTURE))) == [
        {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "and"}, media_part(PICTURE)]}
    ]  # fmt: skip


def test_pictures_of_a_result_follow_all_the_results() -> None:
    """M13: a tool's message holds text only, and nothing may stand between the results."""
    call = called("a", "b")
    got = messages_of(HI, call, answered(call, images=(PICTURE,)), Message("user", (Text("and?"),)))
    assert [message["role"] for message in got] == ["user", "assistant", "tool", "tool", "user"]
    assert [part["type"] for part in got[-1]["content"]] == ["text", "image_url", "text", "image_url", "text"]
    # The same if the history is sent before the user speaks, and again after.
    builder = ChatRequestBuilder(Dialect("p"))
    history = (HI, call, answered(call, images=(PICTURE,)))
    first = json.loads(builder.body(ModelRequest(history, session="s"), "m"))["messages"]
    assert [message["role"] for message in first] == ["user", "assistant", "tool", "tool", "user"]
    longer = (*history, Message("user", (Text("and?"),)))
    assert json.loads(builder.body(ModelRequest(longer, session="s"), "m"))["messages"] == got


@pytest.mark.parametrize(
    ("outcome", "content", "text"),
    [
        (Outcome.OK, "plain", "plain"),
        (Outcome.OK, {"ü": [1, None]}, '{"ü":[1,null]}'),
        (Outcome.OK, None, "null"),
        (Outcome.ERROR, "no such file", "[error] no such file"),
        (Outcome.DENIED, "not allowed", "[denied] not allowed"),
        (Outcome.TIMEOUT, "60 s", "[timeout] 60 s"),
    ],
)
def test_results_are_text_that_says_how_the_call_ended(outcome: Outcome, content: Any, text: str) -> None:
    call = called("a")
    assert messages_of(HI, call, answered(call, outcome, content))[-1] == {
        "role": "tool",
        "tool_call_id": "a",
        "content": text,
    }


@pytest.mark.parametrize("given", ["x" * 41, "ü", "a\nb"])
def test_ids_of_other_providers_that_do_not_fit_are_replaced(given: str) -> None:
    """L22: in the call and in its result."""
    call = called(given)
    _, said, result = messages_of(HI, call, answered(call))
    assert said["tool_calls"][0]["id"] == result["tool_call_id"] == "c0"


def test_a_name_that_never_existed_is_made_fit_to_send() -> None:
    """L20: the model is told that there is no such tool; the provider must not refuse the whole conversation for it."""
    call = called("a", name="files.read all! " + "x" * 99)
    name = messages_of(HI, call, answered(call))[1]["tool_calls"][0]["function"]["name"]
    assert name.startswith("files_read_all__xxx")
    assert len(name) == 64


def test_what_is_another_providers_alone_is_no_message() -> None:
    """M4: and the users' messages around it become one."""
    foreign = Message("assistant", (Thinking("hm", "sig"), ProviderPart(Opaque("q", {"x": 1}))))
    assert messages_of(HI, foreign, HI) == [{"role": "user", "content": [{"type": "text", "text": "hi"}] * 2}]


def test_an_empty_message_of_a_user_still_has_words() -> None:
    assert messages_of(Message("user", (Text(""),)))[0]["content"]


def test_arguments_that_are_no_object_are_sent_as_they_were() -> None:
    for arguments, text in ((None, "{}"), ([1], "[1]"), ("x", '"x"')):
        call = Message("assistant", (ToolCall(CallId("c"), "look", arguments),))
        assert messages_of(HI, call, answered(call))[1]["tool_calls"][0]["function"]["arguments"] == text


def test_the_limit_of_a_reply_has_the_name_that_the_server_knows() -> None:
    request = ModelRequest((HI,), max_output_tokens=5)
    assert b'"max_completion_tokens":5' in ChatRequestBuilder(Dialect("openai", "max_completion_tokens")).body(
        request, "m"
    )
    assert b'"max_tokens":5' in ChatRequestBuilder(Dialect("p")).body(request, "m")


def test_servers_that_know_no_stream_options_are_spared_them() -> None:
    assert b"stream_options" not in ChatRequestBuilder(Dialect("p", stream_usage=False)).body(ModelRequest((HI,)), "m")


def test_tools_of_the_provider_stand_beside_ours() -> None:
    body = json.loads(ChatRequestBuilder(Dialect("p"), {"tools": [{"type": "web"}]}).body(ModelRequest((HI,)), "m"))
    assert body["tools"] == [{"type": "web"}]


def test_a_turn_costs_the_same_at_the_thousandth_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The performance page: only what is new is encoded."""
    encoded: list[int] = []
    encode = wire_json.encode

    def counting(value: Any) -> bytes:
        text = encode(value)
        encoded.append(len(text))
        return text

    builder = ChatRequestBuilder(Dialect("p"))
    history: tuple[Message, ...] = (HI,)
    for _ in range(500):
        history += (Message("assistant", (Text("y" * 200),)), Message("user", (Text("x" * 200),)))
    builder.body(ModelRequest(history, session="s"), "m")
    monkeypatch.setattr(wire_json, "encode", counting)
    history += (Message("assistant", (Text("z" * 200),)), Message("user", (Text("x" * 200),)))
    body = builder.body(ModelRequest(history, session="s"), "m")
    assert len(body) > 200_000
    assert sum(encoded) < 1_500
