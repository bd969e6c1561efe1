"""M16: Anthropic's own client and ours, against the same server, see the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
import trio
from attrs import define, field

from trouper.core.messages import Message, Opaque, ProviderPart, Text, Usage
from trouper.models._errors import ModelError
from trouper.models.anthropic import Anthropic
from trouper.models.anthropic_reply import usage_of
from trouper.models.chunks import (
    CallDelta,
    CallEnd,
    CallStart,
    Done,
    KeepAlive,
    PartChunk,
    TextChunk,
    ThinkingChunk,
    UsageChunk,
)
from trouper.models.protocol import ModelRequest
from trouper.testing.server import Drop, Event, Item, Status, Style, serve_anthropic, serve_anthropic_in_thread

KEY = "a-key-for-tests"
ASK = ModelRequest(messages=(Message("user", (Text("hi"),)),))
ASKED: Any = {"model": "claude-test", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}


@define
class Seen:
    """What a client made of a reply."""

    text: str = ""
    thoughts: str = ""
    signatures: list[str] = field(factory=list)
    redacted: list[str] = field(factory=list)
    calls: list[tuple[str | None, str, Any]] = field(factory=list)
    citations: list[Any] = field(factory=list)
    others: list[Any] = field(factory=list)
    usage: Usage | None = None
    finish: str | None = None
    detail: str | None = None
    error: tuple[int | None, str] | None = None


CITED = {"type": "char_location", "cited_text": "x", "document_index": 0, "document_title": None, "start_char_index": 0, "end_char_index": 1, "file_id": None}  # fmt: skip
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "ü"}}
SCRIPTS: dict[str, list[Item]] = {
    "text": [TextChunk("Grüße, "), TextChunk("漢字 😀 a\u2028b"), Done("end_turn")],
    "thinking": [
        ThinkingChunk("let me "),
        ThinkingChunk("think"),
        ThinkingChunk("", "c2lnbmVk/+=="),
        ThinkingChunk("", None, Opaque("anthropic", {"type": "redacted_thinking", "data": "c2VjcmV0"})),
        TextChunk("so"),
        Done("end_turn"),
    ],
    "thinking that is not shown": [ThinkingChunk("", "b25seSBzaWduZWQ="), TextChunk("so"), Done("end_turn")],
    "calls": [
        TextChunk("I look."),
        CallStart(0, "look", "toolu_0"),
        CallDelta(0, '{"at": "ü", '),
        CallDelta(0, '"n": [1, 2.5, null]}'),
        CallEnd(0),
        CallStart(1, "look", "toolu_1"),
        CallEnd(1, {}),
        Done("tool_use"),
    ],
    "citations": [TextChunk("cited"), TextChunk("", Opaque("anthropic", {"citations": [CITED]})), Done("end_turn")],
    "a tool of the provider's": [PartChunk(ProviderPart(Opaque("anthropic", SEARCH))), TextChunk("x"), Done("pause_turn")],
    "usage": [
        UsageChunk(Usage(input=10, cache_read=4)),
        TextChunk("x"),
        UsageChunk(Usage(input=10, output=20, cache_read=4, cache_write=2, reasoning=5)),
        Done("end_turn"),
    ],
    "pings": [KeepAlive(), TextChunk("x"), KeepAlive(), Done("end_turn")],
    "max tokens": [TextChunk("cut"), Done("max_tokens")],
    "stop sequence": [TextChunk("cut"), Done("stop_sequence", "END")],
    "refusal": [TextChunk("I"), Done("refusal", "cyber")],
    "too many": [Status(429, "slow down", retry_delay_s=2.0)],
    "no more money": [Status(429, "tier", details=({"error_code": "enforced_spend_limit_reached"},))],
    "bad request": [Status(400, "max_tokens: too large")],
    "too long": [Status(400, "prompt is too long: 2 tokens > 1 maximum")],
    "no permission": [Status(403, "not yours")],
    "no such model": [Status(404, "model: x")],
    "overloaded": [Status(529, "Overloaded")],
    "broken": [Status(500, "Internal server error")],
    "overloaded in mid-stream": [TextChunk("a"), Status(529, "Overloaded")],
}  # fmt: skip
STYLES = {
    "plain": Style(),
    "CRLF, bytewise": Style(newline=b"\r\n", piece_bytes=5),
    "comments": Style(comments=True),
    "unknown fields": Style(unknown_fields=True),
}


async def ours(url: str) -> Seen:
    seen = Seen()
    buffers: dict[int, str] = {}
    try:
        async with Anthropic("claude-test", api_key=KEY, base_url=url) as model, model.stream(ASK) as chunks:
            async for chunk in chunks:
                match chunk:
                    case TextChunk(text, opaque):
                        seen.text += text
                        seen.citations += opaque.data.get("citations", []) if opaque else []
                    case ThinkingChunk(text, signature, opaque):
                        seen.thoughts += text
                        if signature is not None:
                            seen.signatures.append(signature)
                        if opaque is not None and "data" in opaque.data:
                            seen.redacted.append(opaque.data["data"])
                    case CallStart(_, name, id):
                        seen.calls.append((id, name, None))
                    case CallDelta(index, fragment):
                        buffers[index] = buffers.get(index, "") + fragment
                    case CallEnd(index, arguments):
                        parsed = json.loads(buffers[index]) if arguments is None else arguments
                        seen.calls[index] = (*seen.calls[index][:2], parsed)
                    case PartChunk(ProviderPart(opaque)):
                        seen.others.append(dict(opaque.data))
                    case UsageChunk(usage):
                        seen.usage = usage
                    case Done(stop_reason, detail):
                        seen.finish, seen.detail = stop_reason, detail
    except ModelError as error:
        seen.error = (error.status, error.message)
    return seen


def theirs(message: Any) -> Seen:
    """What Anthropic's client made of a reply, from its own objects."""
    seen = Seen(finish=message.stop_reason, detail=message.stop_sequence)
    if message.stop_details is not None:
        seen.detail = message.stop_details.category
    seen.usage = usage_of(message.usage.model_dump(exclude_none=True))
    for block in message.content:
        match block.type:
            case "text":
                seen.text += block.text
                seen.citations += [citation.model_dump() for citation in block.citations or ()]
            case "thinking":
                seen.thoughts += block.thinking
                seen.signatures.append(block.signature)
            case "redacted_thinking":
                seen.redacted.append(block.data)
            case "tool_use":
                seen.calls.append((block.id, block.name, block.input))
            case _:
                seen.others.append(block.model_dump(exclude_none=True))
    return seen


def options(url: str) -> dict[str, Any]:
    import anthropic

    # Nothing is encrypted here; reading the roots of trust would take longer than the test.
    return {
        "api_key": KEY,
        "base_url": url,
        "max_retries": 0,
        "http_client": anthropic.DefaultHttpxClient(verify=False),
    }


def failed(error: Any) -> Seen:
    return Seen(error=(error.status_code, str(error.api_message)))


def sdk_stream(url: str) -> Seen:
    import anthropic

    with anthropic.Anthropic(**options(url)) as client:
        try:
            with client.messages.stream(**ASKED) as stream:
                return theirs(stream.get_final_message())
        except anthropic.APIStatusError as error:
            return failed(error)


def sdk_async_stream(url: str) -> Seen:
    import anthropic

    async def main() -> Seen:
        plain = anthropic.DefaultAsyncHttpxClient(verify=False)
        async with anthropic.AsyncAnthropic(**{**options(url), "http_client": plain}) as client:
            try:
                async with client.messages.stream(**ASKED) as stream:
                    return theirs(await stream.get_final_message())
            except anthropic.APIStatusError as error:
                return failed(error)

    return asyncio.run(main())


def sdk_whole(url: str) -> Seen:
    import anthropic

    with anthropic.Anthropic(**options(url)) as client:
        try:
            return theirs(client.messages.create(**ASKED))
        except anthropic.APIStatusError as error:
            return failed(error)


SDKS: list[Callable[[str], Seen]] = [sdk_stream, sdk_async_stream, sdk_whole]


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
async def test_both_clients_see_the_same(script: list[Item], style: Style) -> None:
    """M16: text, thinking, signatures, calls, citations, usage, stop reasons and errors; asyncio and synchronous, streamed and whole."""
    in_mid_stream = isinstance(script[-1], Status) and len(script) > 1
    async with serve_anthropic([script], repeat_last=True, style=style, api_key=KEY) as server:
        mine = await ours(server.url)
        # How the lines are written does not concern the others.
        for sdk in SDKS if style == Style() else [sdk_stream]:
            got = await trio.to_thread.run_sync(sdk, server.url)
            if got.error is not None:
                assert mine.error is not None
                # Theirs shows the status of the reply, which was 200 when the error came.
                assert mine.error[0] == got.error[0] or in_mid_stream
                assert got.error[1] in mine.error[1]
            else:
                assert got == mine, sdk.__name__


async def test_the_real_client_lists_models_counts_tokens_and_is_refused() -> None:
    """M16: the other methods, driven by Anthropic's own client."""

    def drive(url: str) -> None:
        import anthropic

        with anthropic.Anthropic(**options(url)) as client:
            assert [model.id for model in client.models.list()] == ["claude-test", "claude-test-mini"]
            counted = client.messages.count_tokens(model="claude-test", messages=ASKED["messages"])
            assert counted.input_tokens > 0
        with anthropic.Anthropic(**{**options(url), "api_key": "wrong"}) as client:
            with pytest.raises(anthropic.AuthenticationError) as caught:
                client.messages.create(**ASKED)
            assert caught.value.type == "authentication_error"

    async with serve_anthropic([], api_key=KEY) as server:
        await trio.to_thread.run_sync(drive, server.url)


async def test_a_reply_without_an_end_deceives_the_real_client_and_not_ours() -> None:
    """L14."""
    async with serve_anthropic([[TextChunk("half a")]], repeat_last=True) as server:
        assert (await trio.to_thread.run_sync(sdk_stream, server.url)).text == "half a"
        mine = await ours(server.url)
        assert mine.text == "half a"
        assert mine.error is not None
        assert "cut off" in mine.error[1]


async def test_a_reply_that_has_its_stop_reason_is_whole_to_both_without_the_last_event() -> None:
    """L14: neither waits for `message_stop`. If the connection breaks there, the real client fails, and ours has all that it needs."""
    stop = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 4}}
    said: list[Item] = [TextChunk("all of it"), Event({"type": "content_block_stop", "index": 0}), Event(stop)]
    async with serve_anthropic([said], repeat_last=True) as server:
        for sdk in (sdk_stream, sdk_async_stream):
            got = await trio.to_thread.run_sync(sdk, server.url)
            assert (got.text, got.finish, got.error) == ("all of it", "end_turn", None)
        mine = await ours(server.url)
        assert (mine.text, mine.finish, mine.error) == ("all of it", "end_turn", None)
    async with serve_anthropic([[*said, Drop(0)]], repeat_last=True) as server:
        with pytest.raises(Exception, match=r"peer closed|incomplete|disconnected|Connection error"):
            await trio.to_thread.run_sync(sdk_stream, server.url)
        assert await ours(server.url) == mine


async def test_a_whole_conversation_of_the_real_client_is_accepted_by_the_strict_server() -> None:
    """M16: the server's rules for histories are those that users of Anthropic's client keep."""

    def chat(url: str) -> list[Any]:
        import anthropic

        with anthropic.Anthropic(**options(url)) as client:
            tools: Any = [{"name": "look", "input_schema": {"type": "object"}}]
            first = client.messages.create(**ASKED, tools=tools)
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": "1"}
                for block in first.content
                if block.type == "tool_use"
            ]
            messages: Any = [*ASKED["messages"], first.to_param(), {"role": "user", "content": results}]
            return list(client.messages.create(**{**ASKED, "messages": messages}, tools=tools).content)

    turns: list[Any] = [[*SCRIPTS["thinking"][:4], *SCRIPTS["calls"]], [TextChunk("done"), Done("end_turn")]]
    async with serve_anthropic(turns) as server:
        [block] = await trio.to_thread.run_sync(chat, server.url)
        said = server.requests[1].json["messages"][1]["content"]
    assert block.text == "done"
    assert (said[0]["signature"], said[1]["data"]) == ("c2lnbmVk/+==", "c2VjcmV0")


async def test_the_strict_server_refuses_what_anthropic_would() -> None:
    """L22: so that a test shows a broken history at once."""
    import httpx

    def block(kind: str, **fields: Any) -> dict[str, Any]:
        return {"type": kind, **fields}

    hello = {"role": "user", "content": "hi"}
    call = {"role": "assistant", "content": [block("tool_use", id="1", name="f", input={})]}
    result = block("tool_result", tool_use_id="1", content="x")
    answer = {"role": "user", "content": [result]}
    good = {**ASKED, "messages": [hello, call, answer], "tools": [{"name": "f", "input_schema": {"type": "object"}}]}
    marked = block("text", text="x", cache_control={"type": "ephemeral"})
    bad: list[dict[str, Any]] = [
        *({**good, "messages": messages} for messages in (
            [],
            [call],
            [{"role": "user", "content": []}],
            [{"role": "user", "content": " "}],
            [{"role": "system", "content": "x"}],
            [hello, hello],
            [hello, call],
            [hello, call, hello],
            [hello, call, {"role": "user", "content": [{**result, "tool_use_id": "2"}]}],
            [hello, call, {"role": "user", "content": [result, result]}],
            [hello, call, {"role": "user", "content": [block("text", text="x"), result]}],
            [hello, call, {"role": "user", "content": [{**result, "content": " ", "is_error": True}]}],
            [hello, call, {"role": "user", "content": [{**result, "content": [block("image", source={})], "is_error": True}]}],
            [hello, call, answer, call, answer],
            [answer],
            [hello, {"role": "assistant", "content": [block("thinking", thinking="x", signature="")]}],
            [hello, {"role": "assistant", "content": [block("image", source={})]}],
            [{"role": "user", "content": [marked] * 5}],
        )),
        {**good, "tools": []},
        {**good, "temperature": 1.0},
        {key: value for key, value in good.items() if key != "max_tokens"},
    ]  # fmt: skip
    headers = {"anthropic-version": "2026-10-21"}
    async with serve_anthropic([[TextChunk("ok"), Done("end_turn")]], repeat_last=True) as server:
        async with httpx.AsyncClient(base_url=server.url, headers=headers) as client:
            for body in bad:
                reply = await client.post("/v1/messages", json=body)
                assert reply.status_code == 400, body
                assert reply.json()["error"]["type"] == "invalid_request_error"
            assert (await client.post("/v1/messages", json=good)).status_code == 200
            assert (await client.post("/v1/messages", content=b"{")).status_code == 400
            assert (await client.get("/nowhere")).status_code == 404
        async with httpx.AsyncClient(base_url=server.url) as client:
            assert (await client.post("/v1/messages", json=good)).status_code == 400


def test_the_server_runs_in_a_thread_for_code_without_trio() -> None:
    """M16."""
    with serve_anthropic_in_thread([SCRIPTS["text"]]) as server:
        assert sdk_stream(server.url).text == "Grüße, 漢字 😀 a\u2028b"
    assert server.connections_open == 0


async def test_a_turn_may_be_a_function_of_the_request() -> None:
    def echo(request: Any) -> list[Item]:
        return [TextChunk(request.json["messages"][-1]["content"][0]["text"].upper()), Done("end_turn")]

    async with serve_anthropic([echo]) as server:
        assert (await ours(server.url)).text == "HI"


async def test_drops_reach_the_real_client_too() -> None:
    async with serve_anthropic([[TextChunk("a"), Drop(5), TextChunk("b")]]) as server:
        with pytest.raises(Exception, match=r"peer closed|incomplete|disconnected|Connection error"):
            await trio.to_thread.run_sync(sdk_stream, server.url)
        assert server.requests[0].ending == "dropped"
