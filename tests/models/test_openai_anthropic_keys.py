"""M3, I36: a planted key shows nowhere, with either client: not in repr, logs, errors and what the journal keeps of them, nor through redirects."""

from __future__ import annotations

import base64
import gc
import logging
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import trio
from planted_key import assert_none_of, everything_about, forms_of

from trouper._errors import ConfigError
from trouper.core.messages import Message, Text
from trouper.models._errors import AuthFailed, ModelError, ModelFault
from trouper.models.anthropic import Anthropic
from trouper.models.chunks import Done, TextChunk
from trouper.models.openai_compatible import OpenAICompatible
from trouper.models.protocol import ModelRequest
from trouper.runtime import open_runtime
from trouper.testing.server import Drop, Event, Item, RawBytes, Status, TestServer, serve_anthropic, serve_openai

KEY = "sk-Planted/Key+0123456789=secret"
FORMS = forms_of(KEY)
ASK = ModelRequest(messages=(Message("user", (Text("hi"),)),))
CLIENTS = ["openai", "anthropic"]


def serve(form: str, *turns: list[Item]) -> AbstractAsyncContextManager[TestServer]:
    return serve_openai(turns) if form == "openai" else serve_anthropic(turns)


def client(form: str, url: str = "https://gateway.example", api_key: Any = KEY, **options: Any) -> Any:
    if form == "openai":
        return OpenAICompatible("m", api_key=api_key, base_url=url + "/v1", **options)
    return Anthropic("m", api_key=api_key, base_url=url, **options)


def assert_clean(text: str) -> None:
    assert_none_of(FORMS, text)


@pytest.fixture(autouse=True)
def _log_everything(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.DEBUG)
    for name in ("httpx", "httpcore", "trouper", "trio"):
        caplog.set_level(logging.DEBUG, logger=name)
    yield
    assert_clean(caplog.text)
    for record in caplog.records:
        assert_clean(repr(record.args))


async def fail_with(model: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        async with model.stream(ASK) as chunks:
            async for _ in chunks:
                pass
    return caught.value


FAULTS: dict[str, list[Item]] = {
    "echoed in the message": [Status(401, f"Incorrect API key provided: {KEY}")],
    "echoed in other forms": [Status(403, f"{FORMS[1]} and {FORMS[2]}== are refused")],
    "echoed in the code": [Status(400, "x", status=KEY)],
    "echoed in a body of no form": [Status(500, body=f"<pre>authorization: Bearer {KEY}</pre>".encode())],
    "echoed in mid-stream": [TextChunk("a"), Status(503, f"key {KEY} is overloaded")],
    "echoed in an odd error": [Event({"type": "error", "error": f"key {KEY}"})],
    "redirect with the key in it": [Status(307, headers={"location": f"http://127.0.0.1:1/?key={KEY}"})],
    "dropped at once": [Drop()],
    "dropped in mid-event": [TextChunk("a"), Drop(20), TextChunk("bbbbbbbbbbbbbb")],
    "no end": [TextChunk("a")],
    "no JSON": [RawBytes(b"data: " + KEY.encode() + b"\n\n")],
}


@pytest.mark.parametrize("own_transport", [True, False], ids=["trio transport", "httpx transport"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("form", CLIENTS)
async def test_not_in_errors(form: str, fault: list[Item], own_transport: bool) -> None:
    """M3, I36: nor in their chains, their frames' locals, or the facts that go to the journal."""
    transport = None if own_transport else httpx.AsyncHTTPTransport()
    async with serve(form, fault) as server:
        async with client(form, server.url, transport=transport) as model:
            error = await fail_with(model)
            sent = server.requests[0].headers
            assert KEY in (sent.get("x-api-key"), sent.get("authorization", "").removeprefix("Bearer "))
    assert_clean(everything_about(error))
    assert_clean(repr(error.as_fault()))


@pytest.mark.parametrize("form", CLIENTS)
async def test_not_in_the_detail_of_a_stop(form: str) -> None:
    turn: list[Item] = [TextChunk("a"), Done("refusal", f"key {KEY}")]
    async with serve(form, turn) as server, client(form, server.url) as model, model.stream(ASK) as chunks:
        got = [chunk async for chunk in chunks]
    assert isinstance(got[-1], Done)
    assert_clean(repr(got[-1]))


@pytest.mark.parametrize("form", CLIENTS)
async def test_not_in_errors_of_connecting(form: str) -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()
    assert_clean(everything_about(await fail_with(client(form, f"http://127.0.0.1:{port}"))))


@pytest.mark.parametrize("form", CLIENTS)
async def test_redirects_are_not_followed(form: str) -> None:
    """M3: the key goes to the host it was meant for, and to no other."""
    async with serve(form, [TextChunk("gotcha"), Done("end_turn")]) as thief:
        for code in (301, 302, 303, 307, 308):
            status = Status(code, headers={"location": thief.url})
            async with serve(form, [status]) as server, client(form, server.url) as model:
                error = await fail_with(model)
                assert type(error) is ModelFault
                assert "not followed" in error.message
        assert thief.connections_opened == 0


@pytest.mark.parametrize("form", CLIENTS)
def test_not_in_any_rendering_of_the_client(form: str) -> None:
    header = {"authorization": KEY}
    for model in (client(form), client(form, api_key=lambda: KEY), client(form, api_key=None, headers=header)):
        for shown in (repr(model), str(model), f"{model!r:>5}", repr(vars(model)), repr(model._endpoint)):
            assert_clean(shown)
    assert_clean(repr(client(form, f"https://user:{quote(KEY, safe='')}@gateway.example")))


@pytest.mark.parametrize("broken", [KEY + "\nx-evil: 1", KEY + "é", KEY + "\x00", "  ", ""])
@pytest.mark.parametrize("form", CLIENTS)
def test_a_malformed_key_is_refused_without_being_shown(form: str, broken: str) -> None:
    with pytest.raises(ConfigError) as caught:
        client(form, api_key=broken)
    assert KEY not in str(caught.value)
    assert KEY not in repr(caught.value.facts)


@pytest.mark.parametrize("form", CLIENTS)
async def test_a_key_function_that_fails_does_not_tell(form: str) -> None:
    def fail() -> str:
        raise RuntimeError(f"vault said {KEY}")

    error = await fail_with(client(form, api_key=fail))
    assert type(error) is AuthFailed
    assert error.__context__ is None
    assert KEY not in str(error)


@pytest.mark.parametrize("form", CLIENTS)
def test_nothing_of_a_request_stays_behind(form: str) -> None:
    """After a failed request no request object, and with it no header, is reachable from the client."""

    async def main() -> None:
        async with serve(form, [Drop()]) as server, client(form, server.url) as model:
            await fail_with(model)

    trio.run(main)
    gc.collect()
    sent = (KEY, f"Bearer {KEY}")
    assert not [
        thing
        for thing in gc.get_objects()
        if isinstance(thing, httpx.Request) and set(sent) & set(thing.headers.values())
    ]


def content_below(directory: Path) -> list[bytes]:
    found = [path.read_bytes() for path in directory.rglob("*") if path.is_file()]
    assert found
    return found


PLAIN_KEY = "7f3a9c41be0d4e5f8a6b2c1d0e9f8a7b"


@pytest.mark.parametrize(
    ("form", "header", "value"),
    [
        ("openai", "Authorization", f"Bearer {PLAIN_KEY}"),
        ("openai", "api-key", PLAIN_KEY),
        ("openai", "cf-aig-authorization", f"Bearer {PLAIN_KEY}"),
        ("anthropic", "x-api-key", PLAIN_KEY),
        ("anthropic", "X-Auth-Token", PLAIN_KEY),
    ],
)
async def test_not_if_it_is_given_in_headers(form: str, header: str, value: str, tmp_path: Path) -> None:
    """M3, J8, I36: a key that is sent in a header of the user's own is as secret as any, though it looks like nothing: in errors, and whoever says it."""
    said: list[list[Item]] = [
        [Status(401, f"Incorrect API key provided: {PLAIN_KEY}")],
        [TextChunk(f"The key is {PLAIN_KEY}."), Done("end_turn")],
    ]
    async with serve(form, [said[0][0]], *said) as server:
        api_key = None if header != "cf-aig-authorization" else KEY
        model = client(form, server.url, api_key, headers={header: value, "x-auth-type": "gardening"})
        error = await fail_with(model)
        assert_none_of(forms_of(PLAIN_KEY), everything_about(error))
        async with open_runtime(tmp_path, model=model) as runtime:
            session = await runtime.session("s")
            failed = await session.ask("hi")
            assert failed.error is not None
            assert "[key]" in failed.error.message
            told = await session.ask("gardening?")
            assert_none_of(forms_of(PLAIN_KEY), repr([failed, told, session.history]))
            assert "gardening" in repr(session.history)
        assert {request.headers[header.lower()] for request in server.requests} == {value}
    for written in content_below(tmp_path):
        assert PLAIN_KEY.encode() not in written


async def test_not_if_it_is_a_password_of_the_address(caplog: pytest.LogCaptureFixture) -> None:
    """M3: nor in the form in which it is sent, nor in the line that httpx logs of every request."""
    password = "pass/Word+1234"
    sent = base64.b64encode(f"me:{password}".encode()).decode()
    async with serve_openai([[Status(403, f"not for {password} or {sent}")]]) as server:
        address = server.url.replace("//", f"//me:{quote(password, safe='')}@")
        async with OpenAICompatible("m", base_url=address + "/v1") as model:
            error = await fail_with(model)
        assert "not for [key] or [key]" in error.message
        assert server.requests[0].headers["authorization"] == f"Basic {sent}"
    assert "HTTP Request: POST" in caplog.text
    for form in (password, quote(password, safe=""), sent):
        assert form not in caplog.text
