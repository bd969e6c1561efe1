"""M7, M8: a step's question as Gemini's body."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trouper._errors import ConfigError
from trouper.core.history import without_signatures
from trouper.core.ids import CallId
from trouper.core.messages import Media, Message, Opaque, Outcome, Text, Thinking, ToolAnswer, ToolCall, ToolSpec
from trouper.models.gemini_request import GeminiSettings, RequestBuilder, model_path
from trouper.models.protocol import ModelRequest

HELLO = Message("user", (Text("hi"),))
SIGNED = Opaque("gemini", {"thoughtSignature": "c2ln"})
CALLS = Message(
    "assistant",
    (
        Text("Let me see."),
        ToolCall(CallId("call_1_1_0"), "look", {"at": "a"}, "p0", SIGNED),
        ToolCall(CallId("call_1_1_1"), "look", {"at": "b"}),
    ),
)
ANSWERS = Message(
    "tool",
    (
        ToolAnswer(CallId("call_1_1_0"), "look", Outcome.OK, {"found": 1}, provider_id="p0"),
        ToolAnswer(CallId("call_1_1_1"), "look", Outcome.ERROR, "no such thing"),
    ),
)
LOOK = ToolSpec("look", "Look at it.", {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]})


def body(
    *messages: Message, settings: GeminiSettings | None = None, model: str = "gemini-3-flash", **request: Any
) -> Any:
    return json.loads(RequestBuilder(settings).body(ModelRequest(messages, **request), model))


def test_the_least_body() -> None:
    assert body(HELLO) == {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}


def test_a_step_with_calls_and_answers() -> None:
    """M8: ids kept, signatures on their part, all the responses of a step in one user content."""
    assert body(HELLO, CALLS, ANSWERS)["contents"][1:] == [
        {
            "role": "model",
            "parts": [
                {"text": "Let me see."},
                {"thoughtSignature": "c2ln", "functionCall": {"id": "p0", "name": "look", "args": {"at": "a"}}},
                {"functionCall": {"id": "call_1_1_1", "name": "look", "args": {"at": "b"}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "p0", "name": "look", "response": {"output": {"found": 1}}}},
                {"functionResponse": {"id": "call_1_1_1", "name": "look", "response": {"error": "no such thing"}}},
            ],
        },
    ]


def test_messages_of_one_role_share_a_content() -> None:
    """I5: Gemini's two roles take turns, though a note may follow the answers, and a user may speak twice."""
    note = Message("user", (Text("A task ended."),), "notification")
    contents = body(HELLO, HELLO, CALLS, ANSWERS, note)["contents"]
    assert [(content["role"], len(content["parts"])) for content in contents] == [
        ("user", 2),
        ("model", 3),
        ("user", 3),
    ]


@pytest.mark.parametrize(("model", "nested"), [("gemini-3-flash", True), ("gemini-2.5-pro", False), ("other", False)])
def test_pictures_in_answers_stand_where_the_model_takes_them(model: str, nested: bool) -> None:
    """M8."""
    picture = Media("image/png", data="aGk=")
    answer = ToolAnswer(CallId("call_1_1_0"), "look", Outcome.OK, "see", (picture,), "p0")
    parts = body(HELLO, CALLS, Message("tool", (answer, ANSWERS.answers[1])), model=model)["contents"][2]["parts"]
    inline = {"inlineData": {"mimeType": "image/png", "data": "aGk="}}
    if nested:
        assert parts[0]["functionResponse"]["parts"] == [inline]
        assert len(parts) == 2
    else:
        assert "parts" not in parts[0]["functionResponse"]
        assert parts[2] == inline


def test_multimodal_input() -> None:
    """M8: bytes inline, files by reference."""
    message = Message(
        "user", (Media("image/png", data="aGk="), Media("video/mp4", uri="https://f"), Text("What is it?"))
    )
    assert body(message)["contents"][0]["parts"] == [
        {"inlineData": {"mimeType": "image/png", "data": "aGk="}},
        {"fileData": {"mimeType": "video/mp4", "fileUri": "https://f"}},
        {"text": "What is it?"},
    ]


def test_a_file_of_a_type_that_is_not_taken_is_told_in_words() -> None:
    """M8: sent as it is, it would have this request refused, and with it every later one of the session."""
    message = Message("user", (Media("application/zip", data="aGk=", name="a.zip"), Media("application/pdf", "aGk=")))
    told, document = body(message)["contents"][0]["parts"]
    assert told == {"text": "[An attachment of type application/zip 'a.zip' cannot be shown here]"}
    assert document == {"inlineData": {"mimeType": "application/pdf", "data": "aGk="}}


def test_what_belongs_to_another_provider_is_not_sent() -> None:
    """M6: after a change of model, foreign signatures stay behind; the thinking itself is told."""
    foreign = Message(
        "assistant",
        (
            Thinking("hm", "anthropic-signature", Opaque("anthropic", {"x": 1})),
            Text("so", Opaque("anthropic", {"y": 2})),
        ),
    )
    assert body(HELLO, foreign)["contents"][1]["parts"] == [{"text": "hm", "thought": True}, {"text": "so"}]


def test_a_call_behind_signed_text_is_marked_all_the_same() -> None:
    """M6, M10: so Gemini 2.5 signs a step, and so it went to Gemini 3, which looks at the first call only, and refused it."""
    said = Message(
        "assistant", (Text("so", Opaque("gemini", {"thoughtSignature": "S"})), ToolCall(CallId("c0"), "look", {}))
    )
    answered = Message("tool", (ToolAnswer(CallId("c0"), "look", Outcome.OK, "x"),))
    text, call = body(HELLO, said, answered, model="gemini-3-flash")["contents"][1]["parts"]
    assert text == {"text": "so", "thoughtSignature": "S"}
    assert call["thoughtSignature"] == "skip_thought_signature_validator"


@pytest.mark.parametrize(("model", "marked"), [("gemini-3-flash", True), ("gemini-2.5-pro", False), ("other", False)])
def test_calls_that_nobody_signed_are_marked_as_that(model: str, marked: bool) -> None:
    """M6, M10: Gemini 3 refuses the calls of a step of which the first is not signed: those of another model, and its own once their signatures were given up."""
    opaque = Opaque("anthropic", {"cache": 1})
    first, second = ToolCall(CallId("c0"), "look", {}, opaque=opaque), ToolCall(CallId("c1"), "look", {})
    mark = {"thoughtSignature": "skip_thought_signature_validator"} if marked else {}
    for calls in (
        Message("assistant", (Text("I look."), first, second)),
        without_signatures((HELLO, CALLS, ANSWERS))[1],
    ):
        said, *parts = body(HELLO, calls, model=model)["contents"][1]["parts"]
        assert list(said) == ["text"]
        assert [{key: part[key] for key in part if key != "functionCall"} for part in parts] == [mark, {}]


@pytest.mark.parametrize(
    ("called", "sent"),
    [
        *[("", "_"), ("7up", "_7up"), ("read all!", "read_all_"), ("häh", "h_h"), ("x" * 99, "x" * 64)],
        *[("look", "look"), ("default_api:look.at-it", "default_api:look.at-it")],
    ],
)
def test_a_name_that_never_existed_is_made_fit_to_send(called: str, sent: str) -> None:
    """L20: the model is told that there is no such tool; the provider must not refuse the whole conversation for it."""
    call = Message("assistant", (ToolCall(CallId("c0"), called, {}),))
    answer = Message("tool", (ToolAnswer(CallId("c0"), called, Outcome.ERROR, "There is no such tool."),))
    _, model, user = body(HELLO, call, answer)["contents"]
    assert model["parts"][0]["functionCall"]["name"] == user["parts"][0]["functionResponse"]["name"] == sent


def test_system_text_tools_and_choice() -> None:
    """M7."""
    got = body(HELLO, system="Be brief.", tools=(LOOK,), tool_choice="look")
    assert got["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
    assert got["tools"] == [
        {
            "functionDeclarations": [
                {"name": "look", "description": "Look at it.", "parametersJsonSchema": LOOK.parameters}
            ]
        }
    ]
    assert got["toolConfig"] == {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["look"]}}
    assert body(HELLO, tools=(LOOK,), tool_choice="none")["toolConfig"] == {"functionCallingConfig": {"mode": "NONE"}}
    assert body(HELLO, tools=(LOOK,), tool_choice="any")["toolConfig"] == {"functionCallingConfig": {"mode": "ANY"}}
    assert "toolConfig" not in body(HELLO, tools=(LOOK,))
    assert "toolConfig" not in body(HELLO, tool_choice="any")


def test_a_model_that_may_not_parallelise_is_told_so() -> None:
    """L8."""
    got = body(HELLO, system="Be brief.", tools=(LOOK,), parallel_tool_calls=False)["systemInstruction"]["parts"]
    assert got[0] == {"text": "Be brief."}
    assert "one function" in got[1]["text"]


def test_generation_settings_of_the_request_come_before_the_clients() -> None:
    """M7."""
    settings = GeminiSettings(
        generation={"temperature": 1.0, "thinkingConfig": {"includeThoughts": True}},
        top={"safetySettings": [{"category": "X", "threshold": "OFF"}]},
        tools=({"googleSearch": {}},),
    )
    got = body(HELLO, settings=settings, temperature=0.0, max_output_tokens=5, response_schema={"type": "object"})
    assert got["generationConfig"] == {
        "temperature": 0.0,
        "thinkingConfig": {"includeThoughts": True},
        "maxOutputTokens": 5,
        "responseMimeType": "application/json",
        "responseJsonSchema": {"type": "object"},
    }
    assert got["safetySettings"] == [{"category": "X", "threshold": "OFF"}]
    assert got["tools"] == [{"googleSearch": {}}]


def test_cached_content_brings_its_own_system_text_and_tools() -> None:
    """M7: Gemini refuses a request that has both."""
    settings = GeminiSettings(
        top={"cachedContent": "cachedContents/abc", "toolConfig": {}}, tools=({"googleSearch": {}},)
    )
    got = body(HELLO, settings=settings, system="x", tools=(LOOK,), tool_choice="any")
    assert set(got) == {"contents", "cachedContent"}


def test_only_what_is_new_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The performance page: a turn's cost does not grow with its history."""
    from trouper.models import wire_json

    encoded: list[Any] = []
    real = wire_json.encode
    monkeypatch.setattr(wire_json, "encode", lambda value: encoded.append(value) or real(value))
    builder = RequestBuilder()
    history = tuple(Message("user" if i % 2 == 0 else "assistant", (Text(str(i)),)) for i in range(401))
    builder.body(ModelRequest(history[:399], tools=(LOOK,), session="s"), "gemini-3-flash")
    encoded.clear()
    builder.body(ModelRequest(history, tools=(LOOK,), session="s"), "gemini-3-flash")
    assert encoded == [[{"text": "399"}], [{"text": "400"}]]


def test_a_look_alike_is_not_the_same_message() -> None:
    """True equals 1 in Python, and not on the wire."""
    builder = RequestBuilder()

    def request(value: object) -> ModelRequest:
        call = ToolCall(CallId("c"), "f", {"x": value})
        answer = ToolAnswer(CallId("c"), "f", Outcome.OK, None)
        return ModelRequest((HELLO, Message("assistant", (call,)), Message("tool", (answer,))), session="s")

    assert b'"x":1' in builder.body(request(1), "m")
    assert b'"x":true' in builder.body(request(True), "m")


def test_the_cache_keeps_to_its_bound() -> None:
    builder = RequestBuilder(cache_bytes_max=10_000)
    for i in range(200):
        builder.body(ModelRequest((Message("user", (Text("x" * 1000),)),), session=str(i)), "m")
    cache = builder._cache

    def kept() -> int:
        return sum(entry.size for entries in cache._kept.values() for entry in entries.values())

    assert 0 < kept() == cache._bytes <= 10_000
    assert list(cache._kept)[-1] == "199"  # The newest are kept.
    builder.forget("199")
    assert kept() == cache._bytes and "199" not in cache._kept


@pytest.mark.parametrize("name", ["", "../x", "a b", "x?alt=json", "x&y", "a#b", "x\n", "models/../y"])
def test_a_models_name_cannot_change_the_path(name: str) -> None:
    """Names may come from settings that others write."""
    with pytest.raises(ConfigError, match="not a model's name"):
        model_path(name)


def test_models_names_as_google_writes_them() -> None:
    assert model_path("gemini-3-flash") == "models/gemini-3-flash"
    assert model_path("models/gemini-3-flash") == "models/gemini-3-flash"
    assert model_path("tunedModels/mine") == "tunedModels/mine"
