"""M2, M3, M14, L11-L14: the Anthropic client against an Anthropic on the loopback interface."""

from __future__ import annotations

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
from trouper.models.anthropic import API_VERSION, Anthropic
from trouper.models.anthropic_errors import ThinkingRefused
from trouper.models.anthropic_request import BINDING_BETA
from trouper.models.chunks import (
    CallDelta,
    CallEnd,
    CallStart,
    Chunk,
    Done,
    KeepAlive,
    PartChunk,
    TextChunk,
    ThinkingChunk,
    UsageChunk,
)
from trouper.models.protocol import Model, ModelRequest
from trouper.models.scripted import Fail, call, reply
from trouper.testing.server import Comment, Drop, Event, RawBytes, Stall, Status, Style, TestServer, serve_anthropic

ASK = ModelRequest(messages=(Message("user", (Text("hi"),)),), system="Be brief.")
KEY = "a-key-for-tests"
MARK = {"type": "ephemeral"}
TURN: list[Any] = [
    UsageChunk(Usage(input=12, cache_read=5)),
    ThinkingChunk("hm"),
    ThinkingChunk("", "c2lnbmF0dXJl"),
    ThinkingChunk("", None, Opaque("anthropic", {"type": "redacted_thinking", "data": "ZGF0YQ=="})),
    TextChunk("Grüße, 😀\u2028and \u0085 so on. "),
    TextChunk("漢字" * 50),
    CallStart(0, "look", "toolu_0"),
    CallDelta(0, '{"at":'),
    CallDelta(0, '"ü\u2029"}'),
    CallEnd(0),
    CallStart(1, "look", "toolu_1"),
    CallEnd(1, {}),
    UsageChunk(Usage(input=12, output=34, cache_read=5, cache_write=2, reasoning=6)),
    Done("tool_use"),
]
OWN = Opaque("anthropic", {})


def client(server: TestServer, **options: Any) -> Anthropic:
    return Anthropic("claude-test", api_key=KEY, base_url=server.url, **options)


async def read(model: Anthropic, request: ModelRequest = ASK) -> list[Chunk]:
    """All chunks but those of usage at the beginning."""
    async with model.stream(request) as chunks:
        got = [chunk async for chunk in chunks]
    return got[1:] if got and isinstance(got[0], UsageChunk) else got


def message_of(chunks: list[Chunk]) -> tuple[Message, list[str], Usage, Done | None]:
    """What a session makes of a reply: the message, the calls' JSON, the usage and the end."""
    draft = Draft()
    for chunk in chunks:
        draft.add(chunk)
    texts = ["".join(call.buffer) for call in draft.open_calls]
    return draft.message(1, 1, [{"text": text} for text in texts]), texts, draft.usage, draft.done


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
    """M2, M4, M14: line ends, BOM, comments, split characters, unknown fields; U+2028 is text; signatures as they came."""
    async with serve_anthropic([TURN], style=style, api_key=KEY) as server, client(server) as model:
        message, calls, usage, done = message_of(await read(model))
    text = "Grüße, 😀\u2028and \u0085 so on. " + "漢字" * 50
    assert message.parts[:3] == (
        Thinking("hm", "c2lnbmF0dXJl", OWN),
        Thinking("", None, Opaque("anthropic", {"type": "redacted_thinking", "data": "ZGF0YQ=="})),
        Text(text),
    )
    assert [(call.name, call.provider_id, call.opaque) for call in message.calls] == [
        ("look", "toolu_0", OWN),
        ("look", "toolu_1", OWN),
    ]
    assert calls == ['{"at":"ü\u2029"}', "{}"]
    assert usage == Usage(input=12, output=34, cache_read=5, cache_write=2, reasoning=6)
    assert done == Done("tool_use")


async def test_the_request_is_what_anthropic_documents() -> None:
    """M14: path, version, key in its header and nowhere else, cache breakpoints."""
    spec = ToolSpec("look", "Looks.", {"type": "object", "properties": {}})
    options: dict[str, Any] = {"headers": {"x-team": "a"}, "config": {"thinking": {"type": "adaptive"}}, "betas": ["b1", "b2"]}  # fmt: skip
    async with serve_anthropic([TURN]) as server, client(server, **options) as model:
        assert isinstance(model, Model)
        assert model.name == "anthropic:claude-test"
        await read(model, ModelRequest(ASK.messages, "Be brief.", (spec,), "any", False, 9, extra={"speed": "fast"}))
        [request] = server.requests
    assert (request.method, request.path) == ("POST", "/v1/messages")
    assert request.headers["x-api-key"] == KEY
    assert request.headers["anthropic-version"] == API_VERSION
    assert request.headers["anthropic-beta"] == "b1,b2"
    assert request.headers["x-team"] == "a"
    assert KEY.encode() not in request.body
    assert request.json == {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": MARK}]}],
        "tools": [{"name": "look", "description": "Looks.", "input_schema": dict(spec.parameters), "cache_control": MARK}],
        "system": [{"type": "text", "text": "Be brief.", "cache_control": MARK}],
        "model": "claude-test",
        "stream": True,
        "max_tokens": 9,
        "thinking": {"type": "adaptive"},
        "speed": "fast",
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    }  # fmt: skip


async def test_one_connection_serves_many_requests() -> None:
    async with serve_anthropic([TURN], repeat_last=True) as server, client(server) as model:
        for _ in range(20):
            await read(model)
        assert (server.connections_opened, len(server.requests)) == (1, 20)


FAILURES: list[ModelError] = [
    RateLimited("slow down", retry_after_s=3.0),
    QuotaExceeded("no more"),
    AuthFailed("who?"),
    ContextOverflow("too long"),
    BadRequest("no"),
    ServerFault("oops"),
    NetworkFault("gone"),
]


async def test_plays_of_the_scripted_model_serve_here_as_well() -> None:
    """M16: one script, in process or over HTTP."""
    play = reply("Let me see.", call("look", at="a", id="p0"), deltas=2)
    plays: list[Any] = [play, *([Fail(error)] for error in FAILURES)]
    async with serve_anthropic(plays) as server, client(server) as model:
        message, calls, _, done = message_of(await read(model))
        assert (message.text, calls, done) == ("Let me see.", ['{"at":"a"}'], Done("tool_use"))
        for error in FAILURES:
            with pytest.raises(type(error)) as caught:
                await read(model)
            assert caught.value.retry_after_s == error.retry_after_s


RESET = {
    "date": "Mon, 16 Nov 2026 04:00:00 GMT",
    "anthropic-ratelimit-requests-remaining": "3",
    "anthropic-ratelimit-requests-reset": "2026-11-16T04:09:00Z",
    "anthropic-ratelimit-tokens-remaining": "0",
    "anthropic-ratelimit-tokens-reset": "2026-11-16T04:00:42Z",
}


@pytest.mark.parametrize(
    ("status", "kind", "wait"),
    [
        (Status(429, "slow", retry_delay_s=2.5), RateLimited, 2.5),
        (Status(429, "slow", headers=RESET), RateLimited, 42.0),
        (Status(429, "growing too fast", details=({"error_code": "ramp_limit_exceeded"},), retry_delay_s=1), RateLimited, 1.0),
        (Status(429, "tier", details=({"error_code": "enforced_spend_limit_reached"},)), QuotaExceeded, None),
        (Status(402, "card declined"), QuotaExceeded, None),
        (Status(400, "Your credit balance is too low to access the Anthropic API."), QuotaExceeded, None),
        (Status(400, "You have reached your specified API usage limits. You will regain access on 2026-12-01."), QuotaExceeded, None),
        (Status(529, "Overloaded"), ServerFault, None),
        (Status(500, "", body=b"oops"), ServerFault, None),
        (Status(504, "took too long"), ServerFault, None),
        (Status(401, "invalid x-api-key"), AuthFailed, None),
        (Status(403, "no"), AuthFailed, None),
        (Status(404, "model: nope"), BadRequest, None),
        (Status(413, "Request exceeds the maximum size"), ContextOverflow, None),
        (Status(400, "prompt is too long: 210000 tokens > 200000 maximum"), ContextOverflow, None),
        (Status(400, "input length and `max_tokens` exceed context limit: 190000 + 32000 > 200000"), ContextOverflow, None),
        (Status(400, "messages.2: `tool_use` ids were found without `tool_result` blocks immediately after: a"), HistoryRefused, None),
        (Status(400, "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`."), HistoryRefused, None),
        (Status(400, "messages.1.content.0: Invalid `signature` in `thinking` block"), ThinkingRefused, None),
        (Status(400, "max_tokens: must be positive"), BadRequest, None),
        (Status(301, "", headers={"location": "http://127.0.0.1:1/elsewhere"}), ModelFault, None),
    ],
    ids=str,
)  # fmt: skip
async def test_refusals_have_names(status: Status, kind: type[Exception], wait: float | None) -> None:
    """M1, M14, L11."""
    async with serve_anthropic([[status]]) as server, client(server) as model:
        with pytest.raises(kind) as caught:
            await read(model)
        assert type(caught.value) is kind
        assert getattr(caught.value, "retry_after_s", None) == wait
        # Refused, and read to its end: the connection is still good.
        await server.wait_idle()
        assert server.requests[0].ending == "answered"


async def test_a_wrong_key_is_named() -> None:
    async with serve_anthropic([TURN], api_key="another") as server, client(server) as model:
        with pytest.raises(AuthFailed, match="ANTHROPIC_API_KEY"):
            await read(model)


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (Status(529, "Overloaded"), ServerFault, True),
        (Status(500, "Internal server error"), ServerFault, True),
        (Status(504, "timeout"), ServerFault, True),
        (Status(429, "slow"), RateLimited, True),
        (Status(400, "prompt is too long"), ContextOverflow, False),
        (Status(403, "no"), AuthFailed, False),
        (Status(500, "?", status="error_of_tomorrow"), ServerFault, True),
    ],
    ids=str,
)
async def test_an_error_event_is_classified_and_comes_after_what_was_said_before_it(
    status: Status, kind: type[ModelError], retryable: bool
) -> None:
    """M14, L13: by its type, since the status of the reply was 200 long ago; overloaded may be tried again."""
    async with serve_anthropic([[TextChunk("a"), TextChunk("b"), status]]) as server, client(server) as model:
        got: list[Chunk] = []
        with pytest.raises(kind) as caught:
            async with model.stream(ASK) as chunks:
                async for chunk in chunks:
                    got.append(chunk)
        assert type(caught.value) is kind
        assert caught.value.retryable is retryable
        assert got[1:] == [TextChunk("a"), TextChunk("b")]


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("after_bytes", [0, 1, 30, 80])
async def test_a_drop_is_a_network_fault(after_bytes: int, reset: bool) -> None:
    """L13, L14: in the midst of an event, too."""
    turn = [TextChunk("a"), Drop(after_bytes, reset), TextChunk("b" * 100), Done("end_turn")]
    async with serve_anthropic([turn]) as server, client(server) as model:
        got: list[Chunk] = []
        with pytest.raises(NetworkFault) as caught:
            async with model.stream(ASK) as chunks:
                async for chunk in chunks:
                    got.append(chunk)
        assert caught.value.retryable
        # A reset may overtake what was sent before it.
        assert [chunk for chunk in got if not isinstance(chunk, UsageChunk)] == [TextChunk("a")] or reset


async def test_a_missing_end_is_a_network_fault() -> None:
    """L14: though the connection was closed in good order."""
    async with serve_anthropic([[TextChunk("a")], []]) as server, client(server) as model:
        for _ in range(2):
            with pytest.raises(NetworkFault, match="without a stop reason"):
                await read(model)


async def test_a_drop_after_the_stop_reason_harms_nobody() -> None:
    turn = [TextChunk("a"), Done("end_turn"), Drop(0)]
    async with serve_anthropic([turn]) as server, client(server) as model:
        got = await read(model)
    assert (got[0], got[-1]) == (TextChunk("a"), Done("end_turn"))


async def test_a_finished_reply_is_not_held_up_by_a_stalled_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trouper.models.chunk_stream.TAIL_S", 0.0)
    async with serve_anthropic([[TextChunk("a"), Done("end_turn"), Stall()]]) as server, client(server) as model:
        assert (await read(model))[-1] == Done("end_turn")
        await server.wait_no_connections()
        assert server.requests[0].ending == "left"


async def test_pings_and_comments_are_keep_alives() -> None:
    """L12: told, so that the actor can tell silence from death, and counted as nothing."""
    turn = [KeepAlive(), Comment(), RawBytes(b"event: ping\ndata:\n\n"), TextChunk("a"), Done("end_turn")]
    async with serve_anthropic([turn]) as server, client(server) as model:
        got = await read(model)
    assert got.count(KeepAlive()) >= 2
    assert [chunk for chunk in got if isinstance(chunk, TextChunk | Done)] == [TextChunk("a"), Done("end_turn")]


async def test_a_giant_event_passes_and_a_monstrous_one_does_not() -> None:
    """M2."""
    text = "x" * 5_000_000
    async with serve_anthropic([[TextChunk(text), Done("end_turn")]], repeat_last=True) as server:
        async with client(server) as model:
            assert TextChunk(text) in await read(model)
        async with client(server, event_bytes_max=1_000_000) as model:
            with pytest.raises(ModelFault, match="1,000,000 bytes"):
                await read(model)
        await server.wait_no_connections()


async def test_an_event_that_is_no_json_is_the_servers_fault() -> None:
    async with serve_anthropic([[RawBytes(b"data: {broken\n\n"), Done("end_turn")]]) as server, client(server) as model:
        with pytest.raises(ServerFault, match="not a JSON object"):
            await read(model)


@pytest.mark.parametrize(
    ("done", "expected"),
    [
        (Done("end_turn"), Done("end_turn")),
        (Done("max_tokens"), Done("max_tokens")),
        (Done("stop_sequence", "END"), Done("stop_sequence", "END")),
        (Done("pause_turn"), Done("pause_turn")),
        (Done("refusal", "cyber"), Done("refusal", "cyber")),
        (Done("model_context_window_exceeded"), Done("max_tokens", "model_context_window_exceeded")),
        (Done("reason_of_tomorrow"), Done("reason_of_tomorrow")),
    ],
    ids=str,
)
async def test_stop_reasons(done: Done, expected: Done) -> None:
    """M4, M14."""
    async with serve_anthropic([[TextChunk("a"), done]]) as server, client(server) as model:
        assert (await read(model))[-1] == expected


async def test_events_and_blocks_of_tomorrow_are_tolerated_and_kept() -> None:
    """M4."""
    block = {"type": "block_of_tomorrow", "deep": {"x": [1]}}
    turn = [
        Event({"type": "event_of_tomorrow", "data": 1}),
        PartChunk(_part(block)),
        Event({"type": "content_block_delta", "index": 99, "delta": {"type": "text_delta", "text": "nowhere"}}),
        TextChunk("a"),
        Done("end_turn"),
    ]
    async with serve_anthropic([turn]) as server, client(server) as model:
        got = await read(model)
    assert [chunk for chunk in got if not isinstance(chunk, UsageChunk)] == [
        PartChunk(_part(block)),
        TextChunk("a"),
        Done("end_turn"),
    ]


def _part(block: dict[str, Any]) -> Any:
    from trouper.core.messages import ProviderPart

    return ProviderPart(Opaque("anthropic", block))


async def test_gateways_that_do_not_stream_are_read_all_the_same() -> None:
    content = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "a"},
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": 1}},
    ]
    body = {"type": "message", "content": content, "stop_reason": "tool_use", "usage": {"input_tokens": 3, "output_tokens": 4}}  # fmt: skip
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=body))
    got = await read(Anthropic("m", api_key=KEY, transport=transport))
    assert [chunk for chunk in got if not isinstance(chunk, UsageChunk)] == [
        ThinkingChunk("hm"),
        ThinkingChunk("", "s", OWN),
        TextChunk("a"),
        CallStart(0, "look", "toolu_1", OWN),
        CallEnd(0, {"at": 1}, OWN),
        Done("tool_use"),
    ]


async def test_a_login_page_is_no_reply() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, html="<h1>Log in</h1>"))
    with pytest.raises(ModelFault, match="check base_url"):
        await read(Anthropic("m", api_key=KEY, transport=transport))


async def test_a_conversation_goes_round() -> None:
    """L22, M14: thinking verbatim, results in one batch with is_error first in the user's content; the strict server takes it."""
    turns: list[Any] = [TURN, [TextChunk("done"), Done("end_turn")]]
    async with serve_anthropic(turns) as server, client(server) as model:
        message, _, _, _ = message_of(await read(model))
        answers = tuple(
            ToolAnswer(call.id, call.name, outcome, "said", (), call.provider_id)
            for call, outcome in zip(message.calls, (Outcome.OK, Outcome.TIMEOUT), strict=True)
        )
        history = (*ASK.messages, message, Message("tool", answers), Message("user", (Text("and?"),)))
        request = ModelRequest(history, tools=(ToolSpec("look", "", {}),))
        assert (await read(model, request))[-1] == Done("end_turn")
        [_, said, answered] = server.requests[1].json["messages"]
    assert said["content"][:2] == [
        {"type": "thinking", "thinking": "hm", "signature": "c2lnbmF0dXJl"},
        {"type": "redacted_thinking", "data": "ZGF0YQ=="},
    ]
    assert [block["id"] for block in said["content"] if block["type"] == "tool_use"] == ["toolu_0", "toolu_1"]
    assert answered["content"] == [
        {"type": "tool_result", "tool_use_id": "toolu_0", "content": "said"},
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "said", "is_error": True},
        {"type": "text", "text": "and?", "cache_control": MARK},
    ]


async def test_a_paused_turn_is_taken_up_where_it_was() -> None:
    """M14: the reply so far goes back as it was, last in the conversation."""
    block = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
    turns: list[Any] = [[TextChunk("I search."), PartChunk(_part(block)), Done("pause_turn")], [TextChunk("found"), Done("end_turn")]]  # fmt: skip
    async with serve_anthropic(turns) as server, client(server) as model:
        message, _, _, done = message_of(await read(model))
        assert done == Done("pause_turn")
        await read(model, ModelRequest((*ASK.messages, message)))
        assert server.requests[1].json["messages"][-1] == {
            "role": "assistant",
            "content": [{"type": "text", "text": "I search."}, block],
        }


BOUND = Status(
    400,
    "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation. Remove the block, "
    'or set `thinking.block_binding.prefix_mismatch_behavior` to "drop_block".',
)
THOUGHT = ModelRequest(
    (*ASK.messages, Message("assistant", (Thinking("hm", "s", OWN), Text("so"))), Message("user", (Text("?"),))),
    session="s",
)


async def test_thinking_bound_to_a_changed_conversation_is_dropped_by_the_provider_from_then_on() -> None:
    """M14: compaction and masking change what stands before; the session goes on, and others are not concerned."""
    async with serve_anthropic([[BOUND], TURN, TURN, TURN]) as server, client(server) as model:
        with pytest.raises(ThinkingRefused) as caught:
            await read(model, THOUGHT)
        assert caught.value.retryable
        await read(model, THOUGHT)
        await read(model, THOUGHT)
        await read(model, ModelRequest(THOUGHT.messages, session="another"))
        first, second, third, other = server.requests
    for request in (second, third):
        assert request.headers["anthropic-beta"] == BINDING_BETA
        assert request.json["thinking"] == {
            "type": "adaptive",
            "block_binding": {"prefix_mismatch_behavior": "drop_block"},
        }
        assert request.json["messages"] == first.json["messages"]
    for request in (first, other):
        assert "anthropic-beta" not in request.headers
        assert "thinking" not in request.json


@pytest.mark.parametrize(
    ("config", "refusals"),
    [
        ({}, [BOUND, BOUND]),
        ({"thinking": {"type": "disabled"}}, [BOUND]),
        ({}, [Status(400, "messages.1: Invalid `signature` in `thinking` block")]),
    ],
    ids=["refused again", "thinking is off", "for another reason"],
)
async def test_thinking_that_is_not_taken_at_all_is_left_out(config: dict[str, Any], refusals: list[Status]) -> None:
    """M14: a session is never stuck because of what was thought in it."""
    async with serve_anthropic([*([one] for one in refusals), TURN, [BOUND]]) as server:
        async with client(server, config=config) as model:
            for _ in refusals:
                with pytest.raises(ThinkingRefused) as caught:
                    await read(model, THOUGHT)
                assert caught.value.retryable
            await read(model, THOUGHT)
            assert b"hm" not in server.requests[-1].body
            with pytest.raises(ThinkingRefused) as caught:
                await read(model, THOUGHT)
            assert not caught.value.retryable


async def test_two_runs_may_share_a_client() -> None:
    """A client made at import time serves every trio.run."""
    async with serve_anthropic([TURN], repeat_last=True) as server:
        model = client(server)

        async def once() -> None:
            assert (await read(model))[-1] == Done("tool_use")
            await model.aclose()

        for _ in range(2):
            await trio.to_thread.run_sync(trio.run, once)
        await once()


def test_windows_are_known_by_name() -> None:
    """L26 starts from here."""
    assert Anthropic("claude-opus-5-5", api_key="k").context_window == 1_000_000
    assert Anthropic("claude-haiku-4-5-20251001", api_key="k").context_window == 200_000
    assert Anthropic("another", api_key="k").context_window is None
    assert Anthropic("another", api_key="k", context_window=9).context_window == 9


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


async def test_key_and_address_come_from_the_environment(environment: pytest.MonkeyPatch) -> None:
    """M3."""
    environment.setenv("ANTHROPIC_API_KEY", "from-environment")
    assert Anthropic.from_env("claude-opus-5-5").name == "anthropic:claude-opus-5-5"
    async with serve_anthropic([TURN]) as server:
        environment.setenv("ANTHROPIC_BASE_URL", server.url + "/v1/")
        async with Anthropic.from_env("claude-test") as model:
            await read(model)
        assert server.requests[0].headers["x-api-key"] == "from-environment"


def test_a_missing_key_says_what_to_do(environment: pytest.MonkeyPatch) -> None:
    """M3."""
    environment.setenv("ANTHROPIC_API_KEY", "  ")
    for make in (Anthropic, Anthropic.from_env):
        with pytest.raises(ConfigError, match="ANTHROPIC_API_KEY"):
            make("claude-opus-5-5")
    Anthropic("claude-opus-5-5", headers={"Authorization": "Bearer x"})
    Anthropic("llama", base_url="http://localhost:8080")


def test_the_key_of_the_environment_is_not_sent_to_strangers(environment: pytest.MonkeyPatch) -> None:
    """M3."""
    environment.setenv("ANTHROPIC_API_KEY", "from-environment")
    with pytest.raises(ConfigError, match="give api_key="):
        Anthropic("m", base_url="https://gateway.example")


async def test_sampling_is_refused_before_it_is_sent_unless_the_version_knows_it() -> None:
    """M14: version 2026-10-21 of the API takes no temperature; the error says what to do."""
    warm = ModelRequest(ASK.messages, temperature=0.5)
    with pytest.raises(ConfigError, match="'top_k'"):
        Anthropic("m", api_key="k", config={"top_k": 3})
    async with serve_anthropic([TURN]) as server:
        async with client(server) as model:
            with pytest.raises(BadRequest, match="api_version='2023-06-01'"):
                await read(model, warm)
        assert server.requests == []
        async with client(server, api_version="2023-06-01", config={"top_k": 3}) as model:
            await read(model, warm)
        assert (server.requests[0].json["temperature"], server.requests[0].json["top_k"]) == (0.5, 3)


@pytest.mark.parametrize(
    "options", [{"model": ""}, {"cache": "2h"}, {"max_tokens": 0}, {"config": {"max_tokens": 1}}], ids=str
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Anthropic(**{"model": "m", "api_key": "k", **options})
