"""M3, I36: a planted key shows nowhere: not in repr, logs, errors and what the journal keeps of them, nor through redirects."""

from __future__ import annotations

import copy
import gc
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import trio
from planted_key import assert_none_of, everything_about, forms_of

from trouper import Scripted, open_runtime, tool
from trouper._errors import ConfigError, TrouperError
from trouper.core.messages import Message, Text
from trouper.models import Fallback
from trouper.models._errors import AuthFailed, ModelError, ModelFault
from trouper.models.chunks import CallEnd, CallStart, Done, TextChunk
from trouper.models.gemini import Gemini
from trouper.models.gemini_vertex import Vertex
from trouper.models.keys import Credential, Key
from trouper.models.protocol import ModelRequest
from trouper.testing.server import Drop, Item, RawBytes, Status, serve_gemini

KEY = "AIzaPlanted/Key+0123456789=secret"
FORMS = forms_of(KEY)
ASK = ModelRequest(messages=(Message("user", (Text("hi"),)),))


def assert_clean(text: str) -> None:
    assert_none_of(FORMS, text)


@pytest.fixture(autouse=True)
def _log_everything(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.DEBUG)
    for name in ("httpx", "httpcore", "trouper", "google", "trio"):
        caplog.set_level(logging.DEBUG, logger=name)
    yield
    assert_clean(caplog.text)
    for record in caplog.records:
        assert_clean(repr(record.args))


async def fail_with(model: Gemini) -> ModelError:
    with pytest.raises(ModelError) as caught:
        async with model.stream(ASK) as chunks:
            async for _ in chunks:
                pass
    return caught.value


FAULTS: dict[str, list[Item]] = {
    "echoed in the message": [Status(400, f"API key not valid: {KEY}")],
    "echoed in other forms": [Status(403, f"{FORMS[1]} and {FORMS[2]}== are refused")],
    "echoed in a body of no form": [Status(500, body=f"<pre>x-goog-api-key: {KEY}</pre>".encode())],
    "echoed in mid-stream": [TextChunk("a"), Status(503, f"key {KEY} is overloaded")],
    "echoed in the block reason": [
        RawBytes(
            b'data: {"candidates":[{"finishReason":"MALFORMED_FUNCTION_CALL","finishMessage":"'
            + KEY.encode()
            + b'"}]}\n\n'
        )
    ],
    "redirect with the key in it": [Status(307, headers={"location": f"http://127.0.0.1:1/?key={KEY}"})],
    "dropped at once": [Drop()],
    "dropped in mid-event": [TextChunk("a"), Drop(20), TextChunk("bbbbbbbbbbbbbb")],
    "no end": [TextChunk("a")],
    "no JSON": [RawBytes(b"data: " + KEY.encode() + b"\n\n")],
}


@pytest.mark.parametrize("own_transport", [True, False], ids=["trio transport", "httpx transport"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_not_in_errors(fault: list[Item], own_transport: bool) -> None:
    """M3, I36: nor in their chains, their frames' locals, or the facts that go to the journal."""
    transport = None if own_transport else httpx.AsyncHTTPTransport()
    async with serve_gemini([fault]) as server:
        async with Gemini("m", api_key=KEY, base_url=server.url, transport=transport) as model:
            error = await fail_with(model)
            assert server.requests[0].headers["x-goog-api-key"] == KEY
    assert_clean(everything_about(error))
    assert_clean(repr(error.as_fault()))


async def test_not_in_errors_of_connecting() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()
    error = await fail_with(Gemini("m", api_key=KEY, base_url=f"http://127.0.0.1:{port}"))
    assert_clean(everything_about(error))


async def test_redirects_are_not_followed() -> None:
    """M3: the key goes to the host it was meant for, and to no other."""
    async with serve_gemini([[TextChunk("gotcha"), Done("end_turn")]]) as thief:
        for code in (301, 302, 303, 307, 308):
            status = Status(code, headers={"location": f"{thief.url}/v1beta/models/m:streamGenerateContent?alt=sse"})
            async with serve_gemini([[status]]) as server, Gemini("m", api_key=KEY, base_url=server.url) as model:
                error = await fail_with(model)
                assert type(error) is ModelFault
                assert "not followed" in error.message
                assert not error.retryable
        assert thief.requests == []
        assert thief.connections_opened == 0


def test_not_in_any_rendering_of_the_client() -> None:
    for model in (
        Gemini("m", api_key=KEY),
        Gemini("m", api_key=lambda: KEY),
        Gemini("m", headers={"x-goog-api-key": KEY}),
    ):
        for shown in (repr(model), str(model), f"{model!r:>5}", repr(vars(model)), repr(model._endpoint)):
            assert_clean(shown)
    assert_clean(repr(Credential("x", KEY, (KEY,))))


def test_not_in_a_password_of_the_address() -> None:
    model = Gemini("m", api_key="k", base_url=f"https://user:{quote(KEY, safe='')}@gateway.example")
    assert_clean(repr(model))
    assert "gateway.example" in repr(model)
    with pytest.raises(ConfigError) as caught:
        Gemini("m", api_key="k", base_url=f"ftp://user:{KEY}@gateway.example")
    assert_clean(str(caught.value))


def test_a_key_is_neither_pickled_nor_copied_into_one() -> None:
    key = Key(KEY, provider="gemini", header="x-goog-api-key")
    assert_clean(repr(key))
    for take in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled"):
            take(key)


@pytest.mark.parametrize("broken", [KEY + "\nx-evil: 1", KEY + "é", KEY + "\x00", "  ", ""])
def test_a_malformed_key_is_refused_without_being_shown(broken: str) -> None:
    """httpx and h11 put an illegal header's value into their errors: it must not get there."""
    with pytest.raises(ConfigError) as caught:
        Gemini("m", api_key=broken)
    error: TrouperError = caught.value
    assert KEY not in str(error)
    assert KEY not in repr(error.facts)


@pytest.mark.parametrize("answer", [KEY + "\n\nx", None, 7], ids=["broken", "none", "number"])
async def test_a_key_function_that_answers_nonsense(answer: Any) -> None:
    error = await fail_with(Gemini("m", api_key=lambda: answer))
    assert type(error) is AuthFailed
    assert error.__context__ is None
    assert KEY not in str(error)


async def test_a_key_function_that_fails_does_not_tell() -> None:
    def fail() -> str:
        raise RuntimeError(f"vault said {KEY}")

    error = await fail_with(Gemini("m", api_key=fail))
    assert type(error) is AuthFailed
    assert "RuntimeError" in error.message
    assert error.__context__ is None
    assert KEY not in str(error)


async def test_not_in_errors_of_googles_own_client_at_the_edge() -> None:
    """M12: files, caches and the like go through their client, whose errors hold the request."""
    refusal: list[Item] = [Status(400, f"bad key {KEY}")]

    def ask(client: Any) -> Any:
        return client.models.generate_content(model="m", contents="hi")

    async with serve_gemini([refusal, [TextChunk("fine"), Done("end_turn")]]) as server:
        async with Gemini("m", api_key=KEY, base_url=server.url) as model:
            with pytest.raises(ModelError) as caught:
                await model.sdk(ask)
            assert (await model.sdk(ask)).text == "fine"
            assert await model.count_tokens(ModelRequest(ASK.messages, system="x" * 40)) == 11
    assert {request.headers["x-goog-api-key"] for request in server.requests} == {KEY}
    assert_clean(str(caught.value))
    assert_clean(repr(vars(caught.value)))
    chain = [caught.value.__cause__, caught.value.__context__]
    assert chain == [None, None]


async def test_not_in_a_vertex_token() -> None:
    """M12: the same for tokens of Google Cloud."""
    credentials = FakeCredentials(KEY)
    async with serve_gemini([[Status(401, f"token {KEY} expired")]]) as server:
        vertex = Vertex("p", "global", credentials)
        async with Gemini("m", vertex=vertex, base_url=server.url) as model:
            error = await fail_with(model)
            assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert_clean(everything_about(error))
    assert_clean(repr(vertex))


class FakeCredentials:
    valid = True

    def __init__(self, token: str) -> None:
        self.token = token

    def __repr__(self) -> str:
        return f"<credentials {self.token}>"


def test_nothing_of_a_request_stays_behind() -> None:
    """After a failed request no request object, and with it no header, is reachable from the client."""

    async def main() -> None:
        async with serve_gemini([[Drop()]]) as server, Gemini("m", api_key=KEY, base_url=server.url) as model:
            await fail_with(model)

    run: Callable[..., Any] = trio.run
    run(main)
    gc.collect()
    assert not [
        thing for thing in gc.get_objects() if isinstance(thing, httpx.Request) and KEY in thing.headers.values()
    ]


async def test_not_in_a_journal(tmp_path: Path) -> None:
    """M3, I36: turns that work and turns that fail with the key in the provider's words leave no trace of it on the disk."""
    from trouper.runtime import open_runtime

    turns: list[list[Item]] = [
        [TextChunk("hello"), Done("end_turn")],
        [Status(400, f"bad key {KEY} {FORMS[1]} {FORMS[2]}")],
    ]
    async with serve_gemini(turns) as server, Gemini("m", api_key=KEY, base_url=server.url) as model:
        async with open_runtime(tmp_path / "state", model=model) as runtime:
            session = await runtime.session("s")
            assert (await session.ask("hi")).text == "hello"
            failed = await session.ask("again")
            assert failed.error is not None
            assert_clean(repr(failed))
    written = [path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert sum(map(len, written)) > 0
    for content in written:
        assert_clean(content.decode("utf-8", "replace"))


@pytest.mark.parametrize(
    ("given", "says"),
    [("", "empty"), ("  ", "empty"), (f"{KEY} {KEY}", "plain"), (KEY.encode(), "plain"), (3, "plain")],
)
def test_a_key_that_can_be_none_is_refused_at_once(given: Any, says: str) -> None:
    """M3: where it is given, not with the first request; and without being repeated."""
    with pytest.raises(ConfigError, match=says) as caught:
        Gemini("m", api_key=given)
    assert_clean(str(caught.value))


def files_below(directory: Path) -> list[Path]:
    found = [path for path in directory.rglob("*") if path.is_file()]
    assert any(path.name.startswith("segment-") for path in found)
    return found


@pytest.mark.parametrize("given", ["as it is", "by a function", "within a fallback", "for one turn"])
async def test_not_in_the_journal_whoever_says_it(given: str, tmp_path: Path) -> None:
    """J8, M3, I36: a key that no environment holds is known to the runtime that uses it: said by the model, by a tool, or by the user."""

    @tool
    async def show() -> str:
        """Tells what it should not."""
        return f"configured with {KEY} and nothing else"

    said = [
        [CallStart(0, "show"), CallEnd(0, {}), Done("tool_use")],
        [TextChunk(f"The key is {KEY[:9]}"), TextChunk(f"{KEY[9:]} as you know."), Done("end_turn")],
    ]
    async with serve_gemini([*said, *said]) as server:
        client = Gemini("m", api_key=(lambda: KEY) if given == "by a function" else KEY, base_url=server.url)
        model = Fallback(client, client) if given == "within a fallback" else client
        usual = Scripted([]) if given == "for one turn" else model
        async with open_runtime(tmp_path, model=usual, tools=[show]) as runtime:
            session = await runtime.session("s")
            for text in ("which key?", f"is it {KEY}?"):
                result = await session.ask(text, model=model if given == "for one turn" else None)
                assert result.error is None, result
            assert_clean(repr(session.history))
        # What was written once was cut out of what is sent again.
        assert all(form.encode() not in server.requests[-1].body for form in FORMS)
    for path in files_below(tmp_path):
        assert_clean(path.read_bytes().decode("utf-8", "replace"))


async def test_a_client_forgets_the_runtimes_that_are_gone(tmp_path: Path) -> None:
    """A client may outlive many runtimes: it tells those that are there."""
    client = Gemini("m", api_key=KEY, base_url="http://127.0.0.1:1")
    for _ in range(3):
        async with open_runtime(durability="memory", model=client):
            assert client._confidants
    gc.collect()
    assert not client._confidants
