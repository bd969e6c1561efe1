"""M16: OpenAI's own client and ours, against the same server, see the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
import trio
from attrs import define, field

from trouper.core.messages import Message, Opaque, Text, Usage
from trouper.models._errors import ModelError
from trouper.models.chunks import CallDelta, CallEnd, CallStart, Done, TextChunk, ThinkingChunk, UsageChunk
from trouper.models.openai_compatible import OpenAICompatible
from trouper.models.openai_reply import usage_of
from trouper.models.protocol import ModelRequest
from trouper.testing.server import (
    Drop,
    Item,
    Status,
    Style,
    serve_anthropic,
    serve_gemini,
    serve_openai,
    serve_openai_in_thread,
)

KEY = "a-key-for-tests"
ASK = ModelRequest(messages=(Message("user", (Text("hi"),)),))
QUESTION: Any = [{"role": "user", "content": "hi"}]


@define
class Seen:
    """What a client made of a reply."""

    text: str = ""
    refusal: str = ""
    thoughts: str = ""
    calls: list[tuple[str | None, str, str]] = field(factory=list)
    usage: Usage | None = None
    finish: str | None = None
    error: tuple[int | None, str] | None = None


REFUSAL = Opaque("openai", {"refusal": True})
SCRIPTS: dict[str, list[Item]] = {
    "text": [TextChunk("Grüße, "), TextChunk("漢字 😀 a\u2028b"), Done("end_turn")],
    "reasoning": [ThinkingChunk("let me "), ThinkingChunk("think"), TextChunk("so"), Done("end_turn")],
    "calls in fragments": [
        TextChunk("I look."),
        CallStart(0, "look", "id-0"),
        CallStart(1, "find", "id-1"),
        CallDelta(1, '{"n": [1, 2.5, '),
        CallDelta(0, '{"at": "ü"}'),
        CallDelta(1, "null]}"),
        CallEnd(0),
        CallEnd(1),
        Done("tool_use"),
    ],
    "a call without arguments": [CallStart(0, "now", "id-0"), CallEnd(0, {}), Done("tool_use")],
    "usage": [
        TextChunk("x"),
        UsageChunk(Usage(input=10, output=20, cache_read=4, cache_write=2, reasoning=5)),
        Done("end_turn"),
    ],
    "refusal": [TextChunk("I can", REFUSAL), TextChunk("not", REFUSAL), Done("refusal")],
    "max tokens": [TextChunk("cut"), Done("max_tokens")],
    "filtered": [TextChunk("x"), Done("refusal", "content_filter")],
    "too many": [Status(429, "slow down", retry_delay_s=2.0)],
    "no more money": [Status(429, "You exceeded your current quota", status="insufficient_quota")],
    "bad request": [Status(400, "Unknown parameter: 'x'.")],
    "too long": [Status(400, "maximum context length is 1 token", status="context_length_exceeded")],
    "no permission": [Status(403, "not yours")],
    "no such model": [Status(404, "The model `x` does not exist")],
    "overloaded": [Status(503, "The engine is overloaded")],
    "broken": [Status(500, "The server had an error")],
}
IN_MID_STREAM: list[Item] = [TextChunk("a"), Status(503, "The engine is overloaded")]
STYLES = {
    "plain": Style(),
    "CRLF, bytewise": Style(newline=b"\r\n", piece_bytes=5),
    "comments": Style(comments=True),
    "unknown fields": Style(unknown_fields=True),
}


async def ours(url: str) -> Seen:
    seen = Seen()
    reason: str | None = None
    try:
        async with (
            OpenAICompatible("gpt-test", api_key=KEY, base_url=url + "/v1") as model,
            model.stream(ASK) as chunks,
        ):
            async for chunk in chunks:
                match chunk:
                    case TextChunk(text, opaque):
                        seen.text += text
                        if opaque is not None and opaque.data.get("refusal"):
                            seen.text, seen.refusal = "", seen.text
                    case ThinkingChunk(text):
                        seen.thoughts += text
                    case CallStart(_, name, id):
                        seen.calls.append((id, name, ""))
                    case CallDelta(index, fragment):
                        id, name, text = seen.calls[index]
                        seen.calls[index] = (id, name, text + fragment)
                    case UsageChunk(usage):
                        seen.usage = usage
                    case Done(stop_reason, detail):
                        reason = detail if detail == "content_filter" else stop_reason
    except ModelError as error:
        seen.error = (error.status, error.message)
    named = {"end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length", "refusal": "stop"}
    seen.finish = named.get(reason, reason) if reason is not None else None
    return seen


def gather(seen: Seen, delta: Any) -> None:
    seen.text += delta.content or ""
    seen.refusal += delta.refusal or ""
    seen.thoughts += getattr(delta, "reasoning_content", None) or ""


def usage_from(usage: Any) -> Usage:
    return usage_of(usage.model_dump(exclude_none=True))


def theirs(chunks: list[Any]) -> Seen:
    """What OpenAI's client made of a streamed reply, from its own objects."""
    seen = Seen()
    for chunk in chunks:
        if chunk.usage is not None:
            seen.usage = usage_from(chunk.usage)
        for choice in chunk.choices:
            seen.finish = choice.finish_reason or seen.finish
            gather(seen, choice.delta)
            for call in choice.delta.tool_calls or ():
                if call.id is not None:
                    seen.calls.append((call.id, call.function.name, ""))
                id, name, text = seen.calls[call.index]
                seen.calls[call.index] = (id, name, text + (call.function.arguments or ""))
    return seen


def options(url: str) -> dict[str, Any]:
    import openai

    # Nothing is encrypted here; reading the roots of trust would take longer than the test.
    return {
        "api_key": KEY,
        "base_url": url + "/v1",
        "max_retries": 0,
        "http_client": openai.DefaultHttpxClient(verify=False),
    }


STREAMED: dict[str, Any] = {"model": "gpt-test", "messages": QUESTION, "stream": True, "stream_options": {"include_usage": True}}  # fmt: skip


def sdk_stream(url: str) -> Seen:
    import openai

    with openai.OpenAI(**options(url)) as client:
        try:
            return theirs(list(client.chat.completions.create(**STREAMED)))
        except openai.APIError as error:
            return Seen(error=(getattr(error, "status_code", None), _said(error)))


def sdk_async_stream(url: str) -> Seen:
    import openai

    async def main() -> Seen:
        plain = openai.DefaultAsyncHttpxClient(verify=False)
        async with openai.AsyncOpenAI(**{**options(url), "http_client": plain}) as client:
            try:
                return theirs([chunk async for chunk in await client.chat.completions.create(**STREAMED)])
            except openai.APIError as error:
                return Seen(error=(getattr(error, "status_code", None), _said(error)))

    return asyncio.run(main())


def sdk_accumulated(url: str) -> Seen:
    """Their own accumulator of fragments."""
    import openai

    with openai.OpenAI(**options(url)) as client:
        try:
            asked = {key: value for key, value in STREAMED.items() if key != "stream"}
            with client.chat.completions.stream(**asked) as stream:
                for _ in stream:
                    pass
                return completed(stream.current_completion_snapshot)
        except openai.LengthFinishReasonError as error:
            return completed(error.completion)
        except openai.ContentFilterFinishReasonError:
            return Seen("x", finish="content_filter")
        except openai.APIError as error:
            return Seen(error=(getattr(error, "status_code", None), _said(error)))


def sdk_whole(url: str) -> Seen:
    import openai

    with openai.OpenAI(**options(url)) as client:
        try:
            return completed(client.chat.completions.create(model="gpt-test", messages=QUESTION))
        except openai.APIError as error:
            return Seen(error=(getattr(error, "status_code", None), _said(error)))


def completed(completion: Any) -> Seen:
    [choice] = completion.choices
    seen = Seen(finish=choice.finish_reason)
    if completion.usage is not None:
        seen.usage = usage_from(completion.usage)
    gather(seen, choice.message)
    for call in choice.message.tool_calls or ():
        seen.calls.append((call.id, call.function.name, call.function.arguments))
    return seen


def _said(error: Any) -> str:
    body = error.body if isinstance(error.body, dict) else {}
    return str(body.get("message", error.message))


SDKS: list[Callable[[str], Seen]] = [sdk_stream, sdk_async_stream, sdk_accumulated, sdk_whole]


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
async def test_both_clients_see_the_same(script: list[Item], style: Style) -> None:
    """M16: text, reasoning, refusals, calls, usage, finish and errors; asyncio and synchronous, streamed and whole."""
    async with serve_openai([script], repeat_last=True, style=style, api_key=KEY) as server:
        mine = await ours(server.url)
        # How the lines are written does not concern the others.
        for sdk in SDKS if style == Style() else [sdk_stream]:
            got = await trio.to_thread.run_sync(sdk, server.url)
            if got.error is not None:
                assert mine.error is not None
                assert mine.error[0] == got.error[0]
                assert got.error[1] in mine.error[1]
            elif sdk is sdk_accumulated and mine.thoughts:
                # Their accumulator knows no field for it.
                assert (got.text, got.calls, got.finish) == (mine.text, mine.calls, mine.finish)
            else:
                assert got == mine, sdk.__name__


async def test_an_error_in_mid_stream_reaches_both() -> None:
    async with serve_openai([IN_MID_STREAM], repeat_last=True) as server:
        mine = await ours(server.url)
        for sdk in (sdk_stream, sdk_async_stream):
            got = await trio.to_thread.run_sync(sdk, server.url)
            assert got.error is not None
            assert mine.error is not None
            assert got.error[1] in mine.error[1]


async def test_the_real_client_lists_models_and_is_refused() -> None:
    """M16: the other methods, driven by OpenAI's own client."""

    def drive(url: str) -> None:
        import openai

        with openai.OpenAI(**options(url)) as client:
            assert [model.id for model in client.models.list()] == ["gpt-test", "gpt-test-mini"]
            with pytest.raises(openai.NotFoundError):
                client.embeddings.create(model="m", input="x")
        with openai.OpenAI(**{**options(url), "api_key": "wrong"}) as client:
            with pytest.raises(openai.AuthenticationError) as caught:
                client.chat.completions.create(model="gpt-test", messages=QUESTION)
            assert caught.value.code == "invalid_api_key"

    async with serve_openai([], api_key=KEY) as server:
        await trio.to_thread.run_sync(drive, server.url)


async def test_a_reply_without_an_end_deceives_the_real_client_and_not_ours() -> None:
    """L14."""
    async with serve_openai([[TextChunk("half a")]], repeat_last=True) as server:
        assert (await trio.to_thread.run_sync(sdk_stream, server.url)).text == "half a"
        mine = await ours(server.url)
        assert mine.text == "half a"
        assert mine.error is not None
        assert "cut off" in mine.error[1]


async def test_a_whole_conversation_of_the_real_client_is_accepted_by_the_strict_server() -> None:
    """M16: the server's rules for histories are those that users of OpenAI's client keep."""

    def chat(url: str) -> str | None:
        import openai

        with openai.OpenAI(**options(url)) as client:
            first = client.chat.completions.create(model="gpt-test", messages=QUESTION).choices[0].message
            assert first.tool_calls is not None
            answers: Any = [{"role": "tool", "tool_call_id": call.id, "content": "1"} for call in first.tool_calls]
            said: Any = first.model_dump(exclude_none=True)
            second = client.chat.completions.create(model="gpt-test", messages=[*QUESTION, said, *answers])
            return second.choices[0].message.content

    turns = [SCRIPTS["calls in fragments"], [TextChunk("done"), Done("end_turn")]]
    async with serve_openai(turns) as server:
        assert await trio.to_thread.run_sync(chat, server.url) == "done"


async def test_the_strict_server_refuses_what_openai_would() -> None:
    """L22: so that a test shows a broken history at once."""
    import httpx

    call = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}  # fmt: skip
    hello = {"role": "user", "content": "hi"}
    answer = {"role": "tool", "tool_call_id": "1", "content": "x"}
    bad: list[list[Any]] = [
        [],
        [{"role": "user", "content": ""}],
        [{"role": "model", "content": "x"}],
        [hello, call, hello],
        [hello, call],
        [answer],
        [hello, call, {**answer, "tool_call_id": "2"}],
        [hello, call, answer, answer],
        [hello, {"role": "assistant", "content": None}],
        [hello, {"role": "assistant", "content": "x", "tool_calls": []}],
    ]
    async with serve_openai([[TextChunk("ok"), Done("end_turn")]], repeat_last=True) as server:
        async with httpx.AsyncClient(base_url=server.url) as client:
            for messages in bad:
                reply = await client.post("/v1/chat/completions", json={"model": "m", "messages": messages})
                assert reply.status_code == 400, messages
                assert reply.json()["error"]["type"] == "invalid_request_error"
            reply = await client.post("/v1/chat/completions", json={"model": "m", "messages": [hello, call, answer]})
            assert reply.status_code == 200
            assert (await client.post("/v1/chat/completions", content=b"{")).status_code == 400
            assert (await client.get("/nowhere")).status_code == 404


@pytest.mark.parametrize(
    ("play", "path", "field"),
    [
        (serve_openai, "/v1/chat/completions", "messages"),
        (serve_anthropic, "/v1/messages", "messages"),
        (serve_gemini, "/v1beta/models/m:generateContent", "contents"),
    ],
)
@pytest.mark.parametrize(
    "value", [None, 5, "x", [5], [{"role": "assistant", "parts": [5], "tool_calls": [{}]}]], ids=repr
)
async def test_what_has_not_even_the_form_of_a_request_is_refused(
    play: Any, path: str, field: str, value: object
) -> None:
    """M16: one client's mistake ended the server for all."""
    import httpx

    headers = {"anthropic-version": "2023-06-01"}
    async with play() as server, httpx.AsyncClient(base_url=server.url, headers=headers) as client:
        for body in ({"max_tokens": 9, field: value}, [], "x"):
            assert (await client.post(path, json=body)).status_code == 400


async def test_a_turn_that_fails_is_told_also_of_a_server_that_is_stopped_at_that_moment() -> None:
    """M16: the client hears of it first, and the test that it belongs to may be over before the connection is closed."""
    import httpx

    def fail(request: Any) -> list[Item]:
        scope.cancel()
        raise LookupError("not in my script")

    with pytest.raises(ExceptionGroup) as caught, trio.CancelScope() as scope:
        async with serve_openai([fail]) as server, httpx.AsyncClient(base_url=server.url) as client:
            await client.post("/v1/chat/completions", json={"messages": QUESTION})
    assert caught.group_contains(LookupError, match="not in my script")


def test_a_turn_that_fails_is_what_is_told_of_a_server_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """M16: it was trio's own complaint that there is nothing left to stop."""
    import httpx

    def fail(request: Any) -> list[Item]:
        raise LookupError("not in my script")

    monkeypatch.setattr("threading.excepthook", lambda args: None)
    with (
        pytest.raises(ExceptionGroup) as caught,
        serve_openai_in_thread([fail]) as server,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        httpx.post(f"{server.url}/v1/chat/completions", json={"messages": QUESTION})
    assert caught.group_contains(LookupError, match="not in my script")


async def test_no_usage_is_streamed_unless_asked_for() -> None:
    def drive(url: str) -> list[Any]:
        import openai

        with openai.OpenAI(**options(url)) as client:
            return list(client.chat.completions.create(model="gpt-test", messages=QUESTION, stream=True))

    async with serve_openai([SCRIPTS["usage"]]) as server:
        chunks = await trio.to_thread.run_sync(drive, server.url)
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


def test_the_server_runs_in_a_thread_for_code_without_trio() -> None:
    """M16."""
    with serve_openai_in_thread([SCRIPTS["text"]]) as server:
        assert sdk_stream(server.url).text == "Grüße, 漢字 😀 a\u2028b"
    assert server.connections_open == 0


async def test_a_turn_may_be_a_function_of_the_request() -> None:
    def echo(request: Any) -> list[Item]:
        return [TextChunk(json.dumps(request.json["messages"][-1]["content"]).upper()), Done("end_turn")]

    async with serve_openai([echo]) as server:
        assert (await ours(server.url)).text == '"HI"'


async def test_drops_reach_the_real_client_too() -> None:
    async with serve_openai([[TextChunk("a"), Drop(5), TextChunk("b")]]) as server:
        with pytest.raises(Exception, match=r"peer closed|incomplete|disconnected|Connection error"):
            got = await trio.to_thread.run_sync(sdk_stream, server.url)
            raise RuntimeError(got.error[1] if got.error else "no error")
        assert server.requests[0].ending == "dropped"
