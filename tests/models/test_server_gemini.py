"""M16: the server checked by Google's own client, and our client by the same server: both must see the same."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from attrs import define, field

from trouper.core.messages import Message, Opaque, Text, Usage
from trouper.models._errors import ModelError
from trouper.models.chunks import CallEnd, CallStart, Done, PartChunk, TextChunk, ThinkingChunk, UsageChunk
from trouper.models.gemini import Gemini
from trouper.models.gemini_reply import usage_of
from trouper.models.protocol import ModelRequest
from trouper.testing.server import Drop, Item, Status, Style, serve_gemini, serve_gemini_in_thread

KEY = "a-key-for-tests"
ASK = ModelRequest(messages=(Message("user", (Text("hi"),)),))


@pytest.fixture(scope="module", autouse=True)
def _no_key_of_the_environment() -> Iterator[None]:
    kept = {name: os.environ.pop(name, None) for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY")}
    yield
    os.environ.update({name: value for name, value in kept.items() if value is not None})


@define
class Seen:
    """What a client made of a reply."""

    text: str = ""
    thoughts: str = ""
    calls: list[tuple[str | None, str, Any]] = field(factory=list)
    #: (where, the signature's bytes): on which part, counted over the reply.
    signatures: list[bytes] = field(factory=list)
    usage: Usage | None = None
    finish: str | None = None
    error: tuple[int | None, str] | None = None


def sign(data: bytes) -> str:
    return base64.b64encode(data).decode()


def signed(data: bytes) -> Opaque:
    return Opaque("gemini", {"thoughtSignature": sign(data)})


# U+2028 is left out of the texts here: Google's client splits lines at it and fails on the halves (see below).
SCRIPTS: dict[str, list[Item]] = {
    "text": [TextChunk("Grüße, "), TextChunk("漢字 😀"), Done("end_turn")],
    "thoughts and signatures": [
        ThinkingChunk("let me "),
        ThinkingChunk("think", opaque=signed(b"\x00\xff\xfe first")),
        TextChunk("so", signed(b"second >>>???")),
        Done("end_turn"),
    ],
    "calls": [
        TextChunk("I look."),
        CallStart(0, "look", "id-0", signed(b"call signature")),
        CallEnd(0, {"at": "ü", "n": [1, 2.5, None, True], "deep": {"x": {}}}),
        CallStart(1, "look", "id-1"),
        CallEnd(1, {}),
        Done("tool_use"),
    ],
    "calls without ids": [CallStart(0, "now"), CallEnd(0, {}), Done("tool_use")],
    "usage": [
        UsageChunk(Usage(input=10)),
        TextChunk("x"),
        UsageChunk(Usage(input=10, output=20, cache_read=4, reasoning=5)),
        Done("end_turn"),
    ],
    "max tokens": [TextChunk("cut"), Done("max_tokens")],
    "refusal": [Done("refusal", "SAFETY")],
    "too many": [Status(429, "slow down", retry_delay_s=2.0)],
    "bad request": [Status(400, "Unknown name")],
    "no permission": [Status(403, "not yours")],
    "no such model": [Status(404, "models/x is not found")],
    "overloaded": [Status(503, "The model is overloaded.")],
    "broken": [Status(500, "")],
}
STYLES = {
    "plain": Style(),
    "CRLF, bytewise": Style(newline=b"\r\n", piece_bytes=5),
    "unknown fields": Style(unknown_fields=True),
}


async def ours(url: str) -> Seen:
    seen = Seen()
    opaques: list[Opaque | None] = []
    try:
        async with Gemini("gemini-3-flash", api_key=KEY, base_url=url) as model, model.stream(ASK) as chunks:
            async for chunk in chunks:
                match chunk:
                    case TextChunk(text, opaque):
                        seen.text += text
                        opaques.append(opaque)
                    case ThinkingChunk(text, _, opaque):
                        seen.thoughts += text
                        opaques.append(opaque)
                    case CallStart(_, name, id):
                        seen.calls.append((id, name, None))
                    case CallEnd(index, arguments, opaque):
                        seen.calls[index] = (*seen.calls[index][:2], arguments)
                        opaques.append(opaque)
                    case PartChunk():
                        raise AssertionError("no such part in these scripts")
                    case UsageChunk(usage):
                        seen.usage = usage
                    case Done(stop_reason, detail):
                        seen.finish = detail or {"max_tokens": "MAX_TOKENS"}.get(stop_reason, "STOP")
    except ModelError as error:
        seen.error = (error.status, error.message)
    seen.signatures = [base64.b64decode(opaque.data["thoughtSignature"]) for opaque in opaques if opaque is not None]
    return seen


def theirs(events: list[Any]) -> Seen:
    """What Google's client made of a reply, from its own objects."""
    seen = Seen()
    for event in events:
        if event.usage_metadata is not None:
            seen.usage = usage_of(event.usage_metadata.model_dump(mode="json", by_alias=True, exclude_none=True))
        for candidate in event.candidates or ():
            if candidate.finish_reason is not None:
                seen.finish = candidate.finish_reason.value
            for part in (candidate.content.parts if candidate.content else None) or ():
                if part.function_call is not None:
                    call = part.function_call
                    seen.calls.append((call.id, call.name, call.args or {}))
                elif part.thought:
                    seen.thoughts += part.text
                elif part.text:
                    seen.text += part.text
                if part.thought_signature is not None:
                    seen.signatures.append(part.thought_signature)
    return seen


def sdk_client(url: str) -> Any:
    from google import genai
    from google.genai import types

    return genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=url, api_version="v1beta"))


def sdk_stream(url: str) -> Seen:
    from google.genai import errors

    with sdk_client(url) as client:
        try:
            return theirs(list(client.models.generate_content_stream(model="gemini-3-flash", contents="hi")))
        except errors.APIError as error:
            return Seen(error=(error.code, str(error.message)))


def sdk_async_stream(url: str) -> Seen:
    from google.genai import errors

    async def main() -> Seen:
        client = sdk_client(url)
        try:
            stream = await client.aio.models.generate_content_stream(model="gemini-3-flash", contents="hi")
            return theirs([event async for event in stream])
        except errors.APIError as error:
            return Seen(error=(error.code, str(error.message)))
        finally:
            await client.aio.aclose()
            client.close()

    return asyncio.run(main())


def sdk_whole(url: str) -> Seen:
    from google.genai import errors

    with sdk_client(url) as client:
        try:
            return theirs([client.models.generate_content(model="gemini-3-flash", contents="hi")])
        except errors.APIError as error:
            return Seen(error=(error.code, str(error.message)))


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
async def test_both_clients_see_the_same(script: list[Item], style: Style) -> None:
    """M16: text, thoughts, calls, signatures, usage, finish and errors; asyncio and synchronous, streamed and whole."""
    async with serve_gemini([script], repeat_last=True, style=style, api_key=KEY) as server:
        mine = await ours(server.url)
        for sdk in (sdk_stream, sdk_async_stream, sdk_whole):
            got = await trio.to_thread.run_sync(sdk, server.url)
            if got.error is not None:
                assert mine.error is not None
                assert mine.error[0] == got.error[0]
                assert got.error[1] in mine.error[1]
            else:
                assert got == mine, sdk.__name__


async def test_the_real_client_lists_counts_and_is_refused() -> None:
    """M16: the other methods, driven by Google's own client."""

    def drive(url: str) -> None:
        from google import genai
        from google.genai import errors, types

        with sdk_client(url) as client:
            assert [model.name for model in client.models.list()] == ["models/gemini-3-flash", "models/gemini-3-pro"]
            assert client.models.get(model="gemini-3-flash").input_token_limit == 1_048_576
            assert client.models.count_tokens(model="gemini-3-flash", contents="x" * 40).total_tokens == 10
        with genai.Client(api_key="wrong", http_options=types.HttpOptions(base_url=url)) as client:
            with pytest.raises(errors.ClientError) as caught:
                client.models.generate_content(model="gemini-3-flash", contents="hi")
            assert caught.value.code == 400
            assert caught.value.status == "INVALID_ARGUMENT"

    async with serve_gemini([], api_key=KEY) as server:
        await trio.to_thread.run_sync(drive, server.url)


async def test_we_take_more_than_the_real_client_does() -> None:
    """M2: U+2028 stands unescaped in JSON. A reader of text lines splits there, and Google's client fails on the halves; ours must not."""
    script = [TextChunk("a\u2028b"), Done("end_turn")]
    async with serve_gemini([script], repeat_last=True) as server:
        assert (await ours(server.url)).text == "a\u2028b"
        with pytest.raises(Exception, match="Failed to parse response as JSON"):
            await trio.to_thread.run_sync(sdk_stream, server.url)


async def test_a_reply_without_an_end_deceives_the_real_client_and_not_ours() -> None:
    """L14."""
    async with serve_gemini([[TextChunk("half a")]], repeat_last=True) as server:
        assert (await trio.to_thread.run_sync(sdk_stream, server.url)).text == "half a"
        mine = await ours(server.url)
        assert mine.text == "half a"
        assert mine.error is not None
        assert "cut off" in mine.error[1]


async def test_a_whole_conversation_of_the_real_client_is_accepted_by_the_strict_server() -> None:
    """M16: the server's rules for histories are those that Google's own chat keeps."""

    def chat(url: str) -> list[Any]:
        from google.genai import types

        with sdk_client(url) as client:
            talk = client.chats.create(
                model="gemini-3-flash",
                config=types.GenerateContentConfig(
                    tools=[types.Tool(function_declarations=[types.FunctionDeclaration(name="look")])],
                    automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
                ),
            )
            first = talk.send_message("look, please")
            call = first.function_calls[0]
            talk.send_message(
                types.Part(function_response=types.FunctionResponse(id=call.id, name=call.name, response={"output": 1}))
            )
            return [part for content in talk.get_history() for part in content.parts]

    signature = b"\x01\x02\xff" * 9
    turns = [SCRIPTS["calls"][1:3], [TextChunk("done"), Done("end_turn")]]
    turns[0] = [CallStart(0, "look", "id-0", signed(signature)), CallEnd(0, {}), Done("tool_use")]
    async with serve_gemini(turns) as server:
        parts = await trio.to_thread.run_sync(chat, server.url)
        second = server.requests[1].json
    assert parts[-1].text == "done"
    [call] = [part for content in second["contents"] for part in content["parts"] if "functionCall" in part]
    # They decode and encode it again, in the other alphabet; the bytes are the same.
    assert base64.urlsafe_b64decode(call["thoughtSignature"]) == signature


async def test_the_strict_server_refuses_what_google_would() -> None:
    """M10, L22: so that a test shows a broken history at once."""
    import httpx

    call = {"role": "model", "parts": [{"functionCall": {"id": "1", "name": "f", "args": {}}}]}
    hello = {"role": "user", "parts": [{"text": "hi"}]}
    answer = {"role": "user", "parts": [{"functionResponse": {"id": "1", "name": "f", "response": {}}}]}
    other = {"role": "user", "parts": [{"functionResponse": {"id": "2", "name": "f", "response": {}}}]}
    bad: list[list[Any]] = [
        [],
        [{"role": "user", "parts": []}],
        [{"role": "system", "parts": [{"text": "x"}]}],
        [hello, call, hello],
        [answer],
        [hello, call, other],
        [hello, call, {"role": "user", "parts": [*answer["parts"], *answer["parts"]]}],
    ]
    async with serve_gemini([[TextChunk("ok"), Done("end_turn")]], repeat_last=True) as server:
        async with httpx.AsyncClient(base_url=server.url) as client:
            for contents in bad:
                reply = await client.post("/v1beta/models/m:generateContent", json={"contents": contents})
                assert reply.status_code == 400, contents
                assert reply.json()["error"]["status"] == "INVALID_ARGUMENT"
            reply = await client.post("/v1beta/models/m:generateContent", json={"contents": [hello, call, answer]})
            assert reply.status_code == 200
            assert (await client.post("/v1beta/models/m:generateContent", content=b"{")).status_code == 400
            assert (await client.post("/v1beta/models/m:dance", json={"contents": [hello]})).status_code == 404
            assert (await client.get("/nowhere")).status_code == 404


async def test_a_script_that_runs_out_says_so() -> None:
    async with serve_gemini([]) as server:
        seen = await ours(server.url)
    assert seen.error is not None
    assert "add a turn" in seen.error[1]


def test_the_server_runs_in_a_thread_for_code_without_trio() -> None:
    """M16."""
    with serve_gemini_in_thread([SCRIPTS["text"]]) as server:
        assert sdk_stream(server.url).text == "Grüße, 漢字 😀"
    assert server.requests[0].ending == "answered"
    assert server.connections_open == 0


def test_a_process_of_its_own_may_ask_the_server() -> None:
    """M16: any client, in any language; here `urllib` in another process."""
    code = (
        "import json, sys, urllib.request\n"
        "request = urllib.request.Request(sys.argv[1] + '/v1beta/models/m:generateContent', method='POST',\n"
        "    data=json.dumps({'contents': [{'parts': [{'text': 'hi'}]}]}).encode())\n"
        "print(urllib.request.urlopen(request).read().decode())\n"
    )
    with serve_gemini_in_thread([SCRIPTS["usage"]]) as server:
        done = subprocess.run([sys.executable, "-c", code, server.url], capture_output=True, text=True, check=True)
    reply = json.loads(done.stdout)
    assert reply["candidates"][0]["content"]["parts"] == [{"text": "x"}]
    assert reply["usageMetadata"]["thoughtsTokenCount"] == 5


async def test_a_turn_may_be_a_function_of_the_request() -> None:
    def echo(request: Any) -> list[Item]:
        return [TextChunk(request.json["contents"][-1]["parts"][0]["text"].upper()), Done("end_turn")]

    async with serve_gemini([echo]) as server:
        assert (await ours(server.url)).text == "HI"


async def test_drops_reach_the_real_client_too() -> None:
    async with serve_gemini([[TextChunk("a"), Drop(5), TextChunk("b")]]) as server:
        with pytest.raises(Exception, match=r"peer closed|incomplete|disconnected"):
            await trio.to_thread.run_sync(sdk_stream, server.url)
        assert server.requests[0].ending == "dropped"
