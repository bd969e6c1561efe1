"""M2, M3, M13, L11-L14: the client of Chat Completions against a server on the loopback interface."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
import trio

from trouper._errors import ConfigError
from trouper.actors.draft import Draft
from trouper.core.messages import Message, Opaque, Outcome, Text, Thinking, ToolAnswer, ToolSpec, Usage
from trouper.models._errors import (
    AuthFailed,
    BadRequest,
    ContextOverflow,
    HistoryRefused,
    ModelError,
    ModelFault,
    NetworkFault,
    QuotaExceeded,
    RateLimited,
    ServerFault,
)
from trouper.models.chunks import (
    CallDelta,
    CallEnd,
    CallStart,
    Chunk,
    Done,
    KeepAlive,
    TextChunk,
    ThinkingChunk,
    UsageChunk,
)
from trouper.models.openai_compatible import OpenAICompatible, provider_of, window_of
from trouper.models.protocol import Model, ModelRequest
from trouper.models.scripted import Fail, call, reply
from trouper.testing.server import Comment, Drop, Event, RawBytes, Stall, Status, Style, TestServer, serve_openai

ASK = ModelRequest(messages=(Message("user", (Text("hi"),)),), system="Be brief.")
KEY = "a-key-for-tests"
TURN: list[Any] = [
    ThinkingChunk("hm"),
    TextChunk("Grüße, 😀\u2028and \u0085 so on. "),
    TextChunk("漢字" * 50),
    CallStart(0, "look", "p0"),
    CallDelta(0, '{"at":'),
    CallStart(1, "look", "p1"),
    CallDelta(0, '"ü\u2029"}'),
    CallDelta(1, "{}"),
    CallEnd(0),
    CallEnd(1),
    UsageChunk(Usage(input=12, output=34, cache_read=5, cache_write=2, reasoning=6)),
    Done("tool_use"),
]


def client(server: TestServer, **options: Any) -> OpenAICompatible:
    return OpenAICompatible("gpt-test", api_key=KEY, base_url=server.url + "/v1", **options)


async def read(model: OpenAICompatible, request: ModelRequest = ASK) -> list[Chunk]:
    async with model.stream(request) as chunks:
        return [chunk async for chunk in chunks]


def message_of(chunks: list[Chunk]) -> tuple[Message, list[str], Usage, Done | None]:
    """What a session makes of a reply: the message, the calls' JSON, the usage and the end."""
    draft = Draft()
    for chunk in chunks:
        draft.add(chunk)
    texts = ["".join(call.buffer) for call in draft.open_calls]
    return draft.message(1, 1, texts), texts, draft.usage, draft.done


STYLES = [
    Style(),
    Style(newline=b"\r\n", bom=True),
    Style(newline=b"\r"),
    Style(piece_bytes=1),
    Style(piece_bytes=7, newline=b"\r\n", comments=True),
    Style(last_blank_line=False),
    Style(unknown_fields=True),
    Style(indent=True, newline=b"\r\n", piece_bytes=3),
]


@pytest.mark.parametrize("style", STYLES, ids=str)
async def test_however_it_is_written_the_reply_is_the_same(style: Style) -> None:
    """M2, M4, M13: line ends, BOM, comments, split characters, unknown fields and enums; U+2028 is text; fragments by index."""
    async with serve_openai([TURN], style=style, api_key=KEY) as server, client(server) as model:
        message, calls, usage, done = message_of(await read(model))
    assert message.text == "Grüße, 😀\u2028and \u0085 so on. " + "漢字" * 50
    assert message.parts[0] == Thinking("hm", None, Opaque("local", {"field": "reasoning_content"}))
    assert [(call.name, call.provider_id) for call in message.calls] == [("look", "p0"), ("look", "p1")]
    assert calls == ['{"at":"ü\u2029"}', "{}"]
    assert usage == Usage(input=12, output=34, cache_read=5, cache_write=2, reasoning=6)
    assert done == Done("tool_use")


async def test_the_request_is_what_openai_documents() -> None:
    """M13: path, key in its header and nowhere else, streamed with figures of usage."""
    spec = ToolSpec("look", "Looks.", {"type": "object", "properties": {}})
    async with serve_openai([TURN]) as server, client(server, headers={"x-team": "a"}, config={"seed": 1}) as model:
        assert isinstance(model, Model)
        assert model.name == "local:gpt-test"
        await read(model, ModelRequest(ASK.messages, "Be brief.", (spec,), "any", False, 9, 0.5, extra={"top_p": 0.1}))
        [request] = server.requests
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["x-team"] == "a"
    assert KEY.encode() not in request.body
    assert request.json == {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": dict(spec.parameters)}}],
        "model": "gpt-test",
        "stream": True,
        "stream_options": {"include_usage": True},
        "seed": 1,
        "top_p": 0.1,
        "max_tokens": 9,
        "temperature": 0.5,
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }  # fmt: skip


async def test_one_connection_serves_many_requests() -> None:
    async with serve_openai([TURN], repeat_last=True) as server, client(server) as model:
        for _ in range(20):
            await read(model)
        assert (server.connections_opened, len(server.requests)) == (1, 20)


async def test_plays_of_the_scripted_model_serve_here_as_well() -> None:
    """M16: one script, in process or over HTTP."""
    play = reply("Let me see.", call("look", at="a", id="p0"), deltas=2)
    plays: list[Any] = [play, *([Fail(error)] for error in FAILURES)]
    async with serve_openai(plays) as server, client(server) as model:
        message, calls, _, done = message_of(await read(model))
        assert (message.text, calls, done) == ("Let me see.", ['{"at":"a"}'], Done("tool_use"))
        for error in FAILURES:
            with pytest.raises(type(error)) as caught:
                await read(model)
            assert caught.value.retry_after_s == error.retry_after_s


FAILURES: list[ModelError] = [
    RateLimited("slow down", retry_after_s=3.0),
    QuotaExceeded("no more"),
    AuthFailed("who?"),
    ContextOverflow("too long"),
    BadRequest("no"),
    ServerFault("oops"),
    NetworkFault("gone"),
]


def of_google(message: str, *details: Any) -> Status:
    """As Google refuses under its address for this format: in a list of one."""
    error = {"code": 429, "message": message, "status": "RESOURCE_EXHAUSTED", "details": list(details)}
    return Status(429, body=json.dumps([{"error": error}]).encode())


G_QUOTA = "You exceeded your current quota, please check your plan and billing details."
G_DELAY = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34s"}
G_DAILY = {
    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
    "violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}],
}


@pytest.mark.parametrize(
    ("status", "kind", "wait"),
    [
        (Status(429, "slow", retry_delay_s=2.5), RateLimited, 2.5),
        (Status(429, "slow", headers={"retry-after": "7"}), RateLimited, 7.0),
        (Status(429, "slow", headers={"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0.5s"}), RateLimited, 360.5),
        (Status(429, "Rate limit reached. Please try again in 20ms."), RateLimited, 0.02),
        (Status(429, "q", status="insufficient_quota"), QuotaExceeded, None),
        (Status(429, G_QUOTA), QuotaExceeded, None),
        (of_google(f"{G_QUOTA} Please retry in 34.07s."), RateLimited, 34.07),
        (of_google(G_QUOTA, G_DELAY), RateLimited, 34.0),
        (of_google(f"{G_QUOTA} Please retry in 34.07s.", G_DAILY, G_DELAY), QuotaExceeded, 34.0),
        (Status(429, "Request too large for gpt-test on tokens per min: Limit 10, Requested 20."), ContextOverflow, None),
        (Status(402, "Insufficient credits"), QuotaExceeded, None),
        (Status(503, "overloaded"), ServerFault, None),
        (Status(500, "", body=b"oops"), ServerFault, None),
        (Status(403, "no"), AuthFailed, None),
        (Status(404, "The model does not exist"), BadRequest, None),
        (Status(400, "This model's maximum context length is 10 tokens.", status="context_length_exceeded"), ContextOverflow, None),
        (Status(400, "", body=b'{"error":{"code":400,"message":"x","type":"exceed_context_size_error"}}'), ContextOverflow, None),
        (Status(400, "tool_call_ids did not have response messages: a"), HistoryRefused, None),
        (Status(422, "", body=b'{"detail":[{"msg":"field required"}]}'), BadRequest, None),
        (Status(400, "", body=b'{"object":"error","message":"bad","type":"BadRequestError","code":400}'), BadRequest, None),
        (Status(500, "", body=b'{"error":"model runner has stopped"}'), ServerFault, None),
        (Status(301, "", headers={"location": "http://127.0.0.1:1/elsewhere"}), ModelFault, None),
    ],
    ids=str,
)  # fmt: skip
async def test_refusals_have_names(status: Status, kind: type[Exception], wait: float | None) -> None:
    """M1, M13, L11."""
    async with serve_openai([[status]]) as server, client(server) as model:
        with pytest.raises(kind) as caught:
            await read(model)
        assert type(caught.value) is kind
        assert getattr(caught.value, "retry_after_s", None) == wait
        # Refused, and read to its end: the connection is still good.
        await server.wait_idle()
        assert server.requests[0].ending == "answered"


async def test_a_server_may_say_itself_whether_to_try_again() -> None:
    status = Status(503, "never", headers={"x-should-retry": "false"})
    async with serve_openai([[status]]) as server, client(server) as model:
        with pytest.raises(ServerFault) as caught:
            await read(model)
    assert not caught.value.retryable


async def test_a_wrong_key_is_named() -> None:
    async with serve_openai([TURN], api_key="another") as server, client(server) as model:
        with pytest.raises(AuthFailed, match="OPENAI_API_KEY"):
            await read(model)


@pytest.mark.parametrize(
    ("item", "kind"),
    [
        (Status(503, "overloaded"), ServerFault),
        (Status(429, "slow"), RateLimited),
        (Event({"error": {"code": 502, "message": "upstream"}, "choices": [{"delta": {}, "finish_reason": "error"}]}), ServerFault),
        (Event({"choices": [{"delta": {"content": ""}, "finish_reason": "error"}]}), ServerFault),
        (Event({"object": "error", "message": "context length exceeded", "code": 400}), ContextOverflow),
        (Event({"error": {"code": "⁵⁰³", "message": "in digits of no number"}}), ServerFault),
    ],
    ids=["server", "rate", "openrouter", "finish", "vllm", "digits"],
)  # fmt: skip
async def test_an_error_in_mid_stream_comes_after_what_was_said_before_it(item: Any, kind: type[Exception]) -> None:
    """L13: what was seen decides whether there may be another try."""
    async with serve_openai([[TextChunk("a"), TextChunk("b"), item]]) as server, client(server) as model:
        got: list[Chunk] = []
        with pytest.raises(kind):
            async with model.stream(ASK) as chunks:
                async for chunk in chunks:
                    got.append(chunk)
        assert got == [TextChunk("a"), TextChunk("b")]


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("after_bytes", [0, 1, 30, 80])
async def test_a_drop_is_a_network_fault(after_bytes: int, reset: bool) -> None:
    """L13, L14: in the midst of an event, too."""
    turn = [TextChunk("a"), Drop(after_bytes, reset), TextChunk("b" * 100), Done("end_turn")]
    async with serve_openai([turn]) as server, client(server) as model:
        got: list[Chunk] = []
        with pytest.raises(NetworkFault) as caught:
            async with model.stream(ASK) as chunks:
                async for chunk in chunks:
                    got.append(chunk)
        assert caught.value.retryable
        # A reset may overtake what was sent before it.
        assert got == [TextChunk("a")] or (reset and not got)


async def test_a_missing_end_is_a_network_fault() -> None:
    """L14, M13: though the connection was closed in good order, there was neither [DONE] nor a finish reason."""
    async with serve_openai([[TextChunk("a")], []]) as server, client(server) as model:
        for _ in range(2):
            with pytest.raises(NetworkFault, match="without a finish reason"):
                await read(model)


@pytest.mark.parametrize(
    "turn",
    [[TextChunk("a"), Done("end_turn"), Drop(0)], [TextChunk("a"), RawBytes(b"data: [DONE]\n\n")]],
    ids=["dropped after the finish reason", "DONE alone"],
)
async def test_either_end_marker_will_do(turn: list[Any]) -> None:
    """M13."""
    async with serve_openai([turn]) as server, client(server) as model:
        assert await read(model) == [TextChunk("a"), Done("end_turn")]


async def test_a_server_without_done_marker_and_usage_after_the_finish_reason() -> None:
    turn = [TextChunk("a"), Done("end_turn"), UsageChunk(Usage(input=1, output=2))]
    async with serve_openai([turn], done_marker=False) as server, client(server) as model:
        assert await read(model) == [TextChunk("a"), UsageChunk(Usage(input=1, output=2)), Done("end_turn")]


async def test_a_finished_reply_is_not_held_up_by_a_stalled_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trouper.models.chunk_stream.TAIL_S", 0.0)
    async with serve_openai([[TextChunk("a"), Done("end_turn"), Stall()]]) as server, client(server) as model:
        assert await read(model) == [TextChunk("a"), Done("end_turn")]
        await server.wait_no_connections()
        assert server.requests[0].ending == "left"


async def test_comments_are_keep_alives() -> None:
    """L12: told, so that the actor can tell silence from death, and counted as nothing."""
    turn = [Comment("OPENROUTER PROCESSING"), KeepAlive(), TextChunk("a"), Done("end_turn")]
    async with serve_openai([turn]) as server, client(server) as model:
        got = await read(model)
    assert KeepAlive() in got
    assert [chunk for chunk in got if not isinstance(chunk, KeepAlive)] == [TextChunk("a"), Done("end_turn")]


async def test_a_giant_event_passes_and_a_monstrous_one_does_not() -> None:
    """M2."""
    text = "x" * 5_000_000
    async with serve_openai([[TextChunk(text), Done("end_turn")]], repeat_last=True) as server:
        async with client(server) as model:
            assert await read(model) == [TextChunk(text), Done("end_turn")]
        async with client(server, event_bytes_max=1_000_000) as model:
            with pytest.raises(ModelFault, match="1,000,000 bytes"):
                await read(model)
        await server.wait_no_connections()


async def test_an_event_that_is_no_json_is_the_servers_fault() -> None:
    async with serve_openai([[RawBytes(b"data: {broken\n\n"), Done("end_turn")]]) as server, client(server) as model:
        with pytest.raises(ServerFault, match="not a JSON object"):
            await read(model)


async def test_events_of_tomorrow_are_tolerated() -> None:
    """M4."""
    turn = [
        Event({"heartbeat": 1}),
        Event({"choices": []}),
        Event({"choices": [{"delta": None}]}),
        TextChunk("a"),
        Done("new_reason"),
    ]
    async with serve_openai([turn]) as server, client(server) as model:
        assert await read(model) == [TextChunk("a"), Done("new_reason")]


async def test_gateways_that_do_not_stream_are_read_all_the_same() -> None:
    message = {
        "role": "assistant",
        "content": "a",
        "tool_calls": [
            {"id": f"c{i}", "type": "function", "function": {"name": "look", "arguments": "{}"}} for i in (0, 1)
        ],
    }
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 3}}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=body))
    got = message_of(await read(OpenAICompatible("m", api_key=KEY, transport=transport)))
    assert got[0].text == "a"
    assert [call.provider_id for call in got[0].calls] == ["c0", "c1"]
    assert got[1:] == (["{}", "{}"], Usage(input=3), Done("tool_use"))


async def test_a_login_page_is_no_reply() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, html="<h1>Log in</h1>"))
    with pytest.raises(ModelFault, match="check base_url"):
        await read(OpenAICompatible("m", api_key=KEY, transport=transport))


async def test_what_came_together_can_be_taken_together() -> None:
    """The performance page: a batch of deltas is one record and one wake-up, where there is a batch."""
    events = b"".join(b'data: {"choices":[{"delta":{"content":"%d"}}]}\n\n' % i for i in range(5))
    async with serve_openai([[RawBytes(events), Done("end_turn")]]) as server, client(server) as model:
        async with model.stream(ASK) as chunks:
            got = [await anext(chunks), *chunks.take_ready()]
            assert got[:5] == [TextChunk(str(i)) for i in range(5)]
            rest = [chunk async for chunk in chunks]
        assert [*got, *rest][-1] == Done("end_turn")


async def test_two_runs_may_share_a_client() -> None:
    """A client made at import time serves every trio.run."""
    async with serve_openai([TURN], repeat_last=True) as server:
        model = client(server)

        async def once() -> None:
            assert (await read(model))[-1] == Done("tool_use")
            await model.aclose()

        for _ in range(2):
            await trio.to_thread.run_sync(trio.run, once)
        await once()


async def test_a_conversation_goes_round() -> None:
    """L22, M13: what was said goes back, with its calls, reasoning and results, and the strict server takes it."""
    details = {"field": "reasoning", "reasoning_details": [{"type": "reasoning.encrypted", "data": "zzz"}]}
    first: list[Any] = [ThinkingChunk("hm", None, Opaque("", details)), *TURN[1:]]
    async with serve_openai([first, [TextChunk("done"), Done("end_turn")]]) as server, client(server) as model:
        message, _, _, _ = message_of(await read(model))
        answers = tuple(ToolAnswer(c.id, c.name, Outcome.OK, {"n": 1}, (), c.provider_id) for c in message.calls)
        history = (*ASK.messages, message, Message("tool", answers))
        assert (await read(model, ModelRequest(history)))[-1] == Done("end_turn")
        [_, said, *results] = server.requests[1].json["messages"]
    assert (said["reasoning"], said["reasoning_details"]) == ("hm", [{"type": "reasoning.encrypted", "data": "zzz"}])
    assert [(result["tool_call_id"], result["content"]) for result in results] == [("p0", '{"n":1}'), ("p1", '{"n":1}')]


def test_windows_are_known_by_name() -> None:
    """L26 starts from here."""
    assert OpenAICompatible("gpt-4.1-mini", api_key="k").context_window == 1_047_576
    assert OpenAICompatible("openai/gpt-4o", api_key="k").context_window == 128_000
    assert window_of("gpt-5.6-sol") == 1_050_000
    assert OpenAICompatible("llama", base_url="http://localhost:11434/v1").context_window is None
    assert OpenAICompatible("llama", base_url="http://localhost:11434/v1", context_window=9).context_window == 9


def test_providers_have_names() -> None:
    """M4: what is opaque goes back to its own provider only, so they must be told apart."""
    assert [
        provider_of(url)
        for url in (
            "https://api.openai.com/v1",
            "https://openrouter.ai/api/v1",
            "http://localhost:11434/v1",
            "http://192.168.1.7:8000/v1",
            "http://gpu-box:8000/v1",
            "https://api.deepseek.com",
        )
    ] == ["openai", "openrouter", "ollama", "local", "local", "api.deepseek.com"]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


async def test_key_and_address_come_from_the_environment(environment: pytest.MonkeyPatch) -> None:
    """M3."""
    environment.setenv("OPENAI_API_KEY", "from-environment")
    assert OpenAICompatible.from_env("gpt-5").name == "openai:gpt-5"
    async with serve_openai([TURN]) as server:
        environment.setenv("OPENAI_BASE_URL", server.url + "/v1")
        async with OpenAICompatible.from_env("gpt-test") as model:
            await read(model)
        assert server.requests[0].headers["authorization"] == "Bearer from-environment"


def test_a_missing_key_says_what_to_do(environment: pytest.MonkeyPatch) -> None:
    """M3: a server of one's own needs none."""
    environment.setenv("OPENAI_API_KEY", "  ")
    for make in (OpenAICompatible, OpenAICompatible.from_env):
        with pytest.raises(ConfigError, match=r"OPENAI_API_KEY.*Ollama"):
            make("gpt-5")
    for url in ("http://localhost:11434/v1", "http://127.0.0.1:8000", "http://10.0.0.8/v1", "http://vllm:8000/v1"):
        OpenAICompatible("llama", base_url=url)
    OpenAICompatible("gpt-5", headers={"Authorization": "Bearer x"})


async def test_the_key_of_the_environment_is_not_sent_to_strangers(environment: pytest.MonkeyPatch) -> None:
    """M3: it was meant for OpenAI, or for the address that stands beside it."""
    environment.setenv("OPENAI_API_KEY", "from-environment")
    with pytest.raises(ConfigError, match="give api_key="):
        OpenAICompatible("m", base_url="https://gateway.example/v1")
    assert await OpenAICompatible("m", base_url="http://10.0.0.8/v1")._credential() is None
    environment.setenv("OPENAI_BASE_URL", "https://gateway.example/v1")
    credential = await OpenAICompatible("m", base_url="https://gateway.example/v1")._credential()
    assert credential is not None
    assert credential.value == "Bearer from-environment"


async def test_a_key_function_is_asked_for_every_request() -> None:
    """M3."""
    keys = iter(["first-key", "second-key"])

    async def ask() -> str:
        await trio.lowlevel.checkpoint()
        return next(keys)

    async with serve_openai([TURN], repeat_last=True) as server:
        async with OpenAICompatible("gpt-test", api_key=ask, base_url=server.url + "/v1") as model:
            await read(model)
            await read(model)
        assert [r.headers["authorization"] for r in server.requests] == ["Bearer first-key", "Bearer second-key"]


@pytest.mark.parametrize("options", [{"model": ""}, {"reasoning": "maybe"}, {"config": {"messages": []}}])
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        OpenAICompatible(**{"model": "m", "api_key": "k", **options})
