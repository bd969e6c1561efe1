"""M2, M3, M7, L11-L14: the Gemini client against a Gemini on the loopback interface."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import trio

from trouper._errors import ConfigError
from trouper.core.messages import Message, Opaque, Text, Usage
from trouper.models._errors import (
    AuthFailed,
    ContextOverflow,
    ModelFault,
    NetworkFault,
    QuotaExceeded,
    RateLimited,
    ServerFault,
)
from trouper.models.chunks import CallEnd, CallStart, Chunk, Done, KeepAlive, TextChunk, ThinkingChunk, UsageChunk
from trouper.models.gemini import Gemini
from trouper.models.protocol import Model, ModelRequest
from trouper.models.scripted import call, reply
from trouper.testing.server import Comment, Drop, Event, RawBytes, Stall, Status, Style, TestServer, serve_gemini

ASK = ModelRequest(messages=(Message("user", (Text("hi"),)),), system="Be brief.")
KEY = "a-key-for-tests"
SIGNED = Opaque("gemini", {"thoughtSignature": "c2lnbmF0dXJl"})
TURN: list[Any] = [
    ThinkingChunk("hm"),
    TextChunk("Grüße, 😀\u2028and \u0085 so on. "),
    TextChunk("漢字" * 50),
    CallStart(0, "look", "p0", SIGNED),
    CallEnd(0, {"at": "ü\u2029"}, SIGNED),
    CallStart(1, "look", "p1"),
    CallEnd(1, {}),
    UsageChunk(Usage(input=12, output=34, cache_read=5, reasoning=6)),
    Done("tool_use"),
]


def client(server: TestServer, **options: Any) -> Gemini:
    return Gemini("gemini-3-flash", api_key=KEY, base_url=server.url, **options)


async def read(model: Gemini, request: ModelRequest = ASK) -> list[Chunk]:
    async with model.stream(request) as chunks:
        return [chunk async for chunk in chunks]


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
    """M2, M4: line ends, BOM, comments, split characters, unknown fields and enums; U+2028 is text."""
    async with serve_gemini([TURN], style=style, api_key=KEY) as server, client(server) as model:
        got = await read(model)
    assert [chunk for chunk in got if not isinstance(chunk, KeepAlive)] == TURN


async def test_the_request_is_what_google_documents() -> None:
    """M7: path, query, key in its header and nowhere else."""
    async with serve_gemini([TURN]) as server, client(server, headers={"x-team": "a"}) as model:
        assert isinstance(model, Model)
        await read(model)
        [request] = server.requests
    assert (request.method, request.path) == ("POST", "/v1beta/models/gemini-3-flash:streamGenerateContent")
    assert request.query == {"alt": "sse"}
    assert request.headers["x-goog-api-key"] == KEY
    assert request.headers["x-team"] == "a"
    assert request.headers["content-type"] == "application/json"
    assert KEY.encode() not in request.body
    assert request.json["contents"] == [{"role": "user", "parts": [{"text": "hi"}]}]


async def test_model_version_and_extra_settings_of_one_request() -> None:
    """M6, M7."""
    async with (
        serve_gemini([TURN], strict=True) as server,
        client(server, api_version="v1", config={"topK": 3}) as model,
    ):
        await read(model, ModelRequest(ASK.messages, model="gemini-3-pro", extra={"top_k": 5, "seed": 1}))
        [request] = server.requests
    assert request.path == "/v1/models/gemini-3-pro:streamGenerateContent"
    assert request.json["generationConfig"] == {"topK": 5, "seed": 1}


async def test_one_connection_serves_many_requests() -> None:
    async with serve_gemini([TURN], repeat_last=True) as server, client(server) as model:
        for _ in range(20):
            await read(model)
        assert (server.connections_opened, len(server.requests)) == (1, 20)


async def test_plays_of_the_scripted_model_serve_here_as_well() -> None:
    """M16: one script, in process or over HTTP."""
    play = reply("Let me see.", call("look", at="a", id="p0"), deltas=2)
    async with serve_gemini([play, [RateLimitedPlay]]) as server, client(server) as model:
        got = await read(model)
        with pytest.raises(RateLimited) as caught:
            await read(model)
    assert [chunk for chunk in got if not isinstance(chunk, UsageChunk)] == [
        TextChunk("Let me"),
        TextChunk(" see."),
        CallStart(0, "look", "p0"),
        CallEnd(0, {"at": "a"}),
        Done("tool_use"),
    ]
    assert caught.value.retry_after_s == 3.0


def _rate_limited() -> Any:
    from trouper.models.scripted import Fail

    return Fail(RateLimited("slow down", retry_after_s=3.0))


RateLimitedPlay = _rate_limited()


@pytest.mark.parametrize(
    ("status", "kind", "wait"),
    [
        (Status(429, "slow", retry_delay_s=2.5), RateLimited, 2.5),
        (Status(429, "slow", headers={"retry-after": "7"}), RateLimited, 7.0),
        (Status(429, "q", details=({"violations": [{"quotaId": "RequestsPerDay"}]},)), QuotaExceeded, None),
        (Status(503, "overloaded"), ServerFault, None),
        (Status(500, "", body=b"oops"), ServerFault, None),
        (Status(403, "no"), AuthFailed, None),
        (
            Status(400, "The input token count (2) exceeds the maximum number of tokens allowed (1)."),
            ContextOverflow,
            None,
        ),
        (Status(301, "", headers={"location": "http://127.0.0.1:1/elsewhere"}), ModelFault, None),
    ],
    ids=str,
)
async def test_refusals_have_names(status: Status, kind: type[Exception], wait: float | None) -> None:
    """M1, M10, L11: from opening; and in the midst of a stream the same, after what came before."""
    async with serve_gemini([[status]]) as server, client(server) as model:
        with pytest.raises(kind) as caught:
            await read(model)
        assert getattr(caught.value, "retry_after_s", None) == wait
        # Refused, and read to its end: the connection is still good.
        await server.wait_idle()
        assert server.requests[0].ending == "answered"


async def test_a_wrong_key_is_named() -> None:
    async with serve_gemini([TURN], api_key="another") as server, client(server) as model:
        with pytest.raises(AuthFailed, match="GEMINI_API_KEY"):
            await read(model)


async def test_an_error_in_mid_stream_comes_after_what_was_said_before_it() -> None:
    """L13: what was seen decides whether there may be another try."""
    turn = [TextChunk("a"), TextChunk("b"), Status(503, "overloaded")]
    async with serve_gemini([turn]) as server, client(server) as model:
        got: list[Chunk] = []
        with pytest.raises(ServerFault, match="overloaded"):
            async with model.stream(ASK) as chunks:
                async for chunk in chunks:
                    got.append(chunk)
        assert got == [TextChunk("a"), TextChunk("b")]


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("after_bytes", [0, 1, 30, 80])
async def test_a_drop_is_a_network_fault(after_bytes: int, reset: bool) -> None:
    """L13, L14: in the midst of an event, too."""
    turn = [TextChunk("a"), Drop(after_bytes, reset), TextChunk("b" * 100), Done("end_turn")]
    async with serve_gemini([turn]) as server, client(server) as model:
        got: list[Chunk] = []
        with pytest.raises(NetworkFault) as caught:
            async with model.stream(ASK) as chunks:
                async for chunk in chunks:
                    got.append(chunk)
        assert caught.value.retryable
        # A reset may overtake what was sent before it.
        assert got == [TextChunk("a")] or (reset and not got)


async def test_a_drop_before_the_first_byte_is_a_network_fault() -> None:
    async with serve_gemini([[Drop(0)]]) as server, client(server) as model:
        with pytest.raises(NetworkFault):
            await read(model)


async def test_a_missing_end_is_a_network_fault() -> None:
    """L14: though the connection was closed in good order."""
    async with serve_gemini([[TextChunk("a")], []]) as server, client(server) as model:
        for _ in range(2):
            with pytest.raises(NetworkFault, match="without a finish reason"):
                await read(model)


async def test_a_drop_after_the_finish_reason_harms_nobody() -> None:
    turn = [TextChunk("a"), Done("end_turn"), Drop(0)]
    async with serve_gemini([turn]) as server, client(server) as model:
        assert await read(model) == [TextChunk("a"), Done("end_turn")]


async def test_usage_after_the_finish_reason_counts() -> None:
    """M10."""
    turn = [TextChunk("a"), Done("end_turn"), UsageChunk(Usage(input=1, output=2))]
    async with serve_gemini([turn]) as server, client(server) as model:
        assert await read(model) == [TextChunk("a"), UsageChunk(Usage(input=1, output=2)), Done("end_turn")]


async def test_a_finished_reply_is_not_held_up_by_a_stalled_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trouper.models.chunk_stream.TAIL_S", 0.0)
    async with serve_gemini([[TextChunk("a"), Done("end_turn"), Stall()]]) as server, client(server) as model:
        assert await read(model) == [TextChunk("a"), Done("end_turn")]
        await server.wait_no_connections()
        assert server.requests[0].ending == "left"


async def test_comments_are_keep_alives() -> None:
    """L12: told, so that the actor can tell silence from death, and counted as nothing."""
    turn = [Comment(), TextChunk("a"), Done("end_turn")]
    async with serve_gemini([turn]) as server, client(server) as model:
        got = await read(model)
    assert [chunk for chunk in got if not isinstance(chunk, KeepAlive)] == [TextChunk("a"), Done("end_turn")]


async def test_a_giant_event_passes_and_a_monstrous_one_does_not() -> None:
    """M2."""
    text = "x" * 5_000_000
    async with serve_gemini([[TextChunk(text), Done("end_turn")]], repeat_last=True) as server:
        async with client(server) as model:
            assert await read(model) == [TextChunk(text), Done("end_turn")]
        async with client(server, event_bytes_max=1_000_000) as model:
            with pytest.raises(ModelFault, match="1,000,000 bytes"):
                await read(model)
        await server.wait_no_connections()


async def test_an_event_that_is_no_json_is_the_servers_fault() -> None:
    async with serve_gemini([[RawBytes(b"data: {broken\n\n"), Done("end_turn")]]) as server, client(server) as model:
        with pytest.raises(ServerFault, match="not a JSON object"):
            await read(model)


async def test_events_of_tomorrow_are_tolerated() -> None:
    """M4."""
    turn = [
        Event({"heartbeat": 1}),
        Event({"candidates": [{"content": {"role": "model"}}]}),
        TextChunk("a"),
        Done("NEW_REASON"),
    ]
    async with serve_gemini([turn]) as server, client(server) as model:
        assert await read(model) == [TextChunk("a"), Done("end_turn", "NEW_REASON")]


@pytest.mark.parametrize("as_list", [True, False])
async def test_gateways_that_do_not_stream_are_read_all_the_same(as_list: bool) -> None:
    event = {"candidates": [{"content": {"parts": [{"text": "a"}]}, "finishReason": "STOP"}]}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=[event] if as_list else event))
    assert await read(Gemini("m", api_key=KEY, transport=transport)) == [TextChunk("a"), Done("end_turn")]


async def test_a_login_page_is_no_reply() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, html="<h1>Log in</h1>"))
    with pytest.raises(ModelFault, match="check base_url"):
        await read(Gemini("m", api_key=KEY, transport=transport))


async def test_a_compressed_stream_is_read() -> None:
    """We ask for none, but a proxy may insist."""
    import gzip

    event = b'data: {"candidates":[{"content":{"parts":[{"text":"a"}]},"finishReason":"STOP"}]}\n\n'
    headers = {"content-encoding": "gzip", "content-type": "text/event-stream"}

    class Streamed(httpx.AsyncByteStream):
        async def __aiter__(self) -> Any:
            yield gzip.compress(event)

    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers=headers, stream=Streamed()))
    assert await read(Gemini("m", api_key=KEY, transport=transport)) == [TextChunk("a"), Done("end_turn")]


async def test_what_came_together_can_be_taken_together() -> None:
    """The performance page: a batch of deltas is one record and one wake-up, where there is a batch."""
    events = b"".join(b'data: {"candidates":[{"content":{"parts":[{"text":"%d"}]}}]}\n\n' % i for i in range(5))
    async with serve_gemini([[RawBytes(events), Done("end_turn")]]) as server, client(server) as model:
        async with model.stream(ASK) as chunks:
            got = [await anext(chunks), *chunks.take_ready()]
            assert got[:5] == [TextChunk(str(i)) for i in range(5)]
            rest = [chunk async for chunk in chunks]
        assert [*got, *rest][-1] == Done("end_turn")


async def test_two_runs_may_share_a_client() -> None:
    """A client made at import time serves every trio.run."""
    async with serve_gemini([TURN], repeat_last=True) as server:
        model = client(server)

        async def once() -> None:
            assert (await read(model))[-1] == Done("tool_use")
            await model.aclose()

        for _ in range(2):
            await trio.to_thread.run_sync(trio.run, once)
        await once()


def test_windows_are_known_by_name() -> None:
    """L26 starts from here."""
    assert Gemini("gemini-3-flash", api_key="k").context_window == 1_048_576
    assert Gemini("models/gemini-1.5-pro-002", api_key="k").context_window == 2_097_152
    assert Gemini("gemini-2.5-flash-image", api_key="k").context_window == 65_536
    assert Gemini("unheard-of", api_key="k").context_window is None
    assert Gemini("unheard-of", api_key="k", context_window=9).context_window == 9


def test_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """M3."""
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    monkeypatch.setenv("GEMINI_API_KEY", "from-gemini")
    model = Gemini.from_env("gemini-3-pro")
    assert model.name == "gemini:gemini-3-pro"
    assert trio.run(model._credential).value == "from-gemini"
    monkeypatch.setenv("GOOGLE_API_KEY", "from-google")
    assert trio.run(Gemini()._credential).value == "from-google"


def test_a_missing_key_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """M3."""
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    monkeypatch.setenv("GEMINI_API_KEY", "  ")
    for make in (Gemini, Gemini.from_env):
        with pytest.raises(ConfigError, match="GEMINI_API_KEY"):
            make("gemini-3-flash")
    Gemini("gemini-3-flash", headers={"Authorization": "Bearer x"})


def test_the_key_of_the_environment_is_not_sent_to_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """M3: to Google, to the address that the environment gives with it, and to a proxy on this machine."""
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    monkeypatch.setenv("GEMINI_API_KEY", "from-environment")
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", " https://gateway.example/google ")
    with pytest.raises(ConfigError, match=r"none for 'other\.example': give api_key="):
        Gemini(base_url="https://other.example")
    for model in (
        Gemini(),
        Gemini(base_url="https://generativelanguage.googleapis.com/"),
        Gemini(base_url="http://localhost:8080"),
        Gemini.from_env(),
    ):
        assert trio.run(model._credential).value == "from-environment"
    assert trio.run(Gemini(base_url="https://other.example", api_key="its-own")._credential).value == "its-own"


async def test_a_key_function_is_asked_for_every_request() -> None:
    """M3."""
    keys = iter(["first-key", "second-key"])

    async def ask() -> str:
        await trio.lowlevel.checkpoint()
        return next(keys)

    async with serve_gemini([TURN], repeat_last=True) as server:
        async with Gemini("gemini-3-flash", api_key=ask, base_url=server.url) as model:
            await read(model)
            await read(model)
        assert [request.headers["x-goog-api-key"] for request in server.requests] == ["first-key", "second-key"]


@pytest.mark.parametrize(
    ("name", "key", "sent"),
    [("X-Goog-Api-Key", None, "of-headers"), ("authorization", None, ""), ("x-a", "own", "own")],
)
async def test_googles_own_client_takes_the_same_way(name: str, key: str | None, sent: str) -> None:
    """M3, M12: with the headers and through the proxy that the client was given; it asked with the key 'none', past the proxy."""
    async with (
        serve_gemini([]) as server,
        Gemini(
            "m", api_key=key, headers={name: "of-headers"}, base_url="http://gateway.example", proxy=server.url
        ) as model,
    ):
        assert await model.count_tokens(ASK) > 0
        [request] = server.requests
    assert request.headers[name.lower()] == "of-headers"
    assert request.headers["x-goog-api-key"] == sent
