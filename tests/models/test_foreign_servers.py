"""M2, M4, M8-M10, M13, M14, L11-L14: whole turns against servers that share no code with ours: plain sockets that send what the script says, byte for byte."""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeAlias

import httpx
import pytest
import trio
from attrs import define, field
from google.auth.credentials import Credentials

from trouper import (
    Anthropic,
    Deadlines,
    Gemini,
    Limits,
    OpenAICompatible,
    Retry,
    Session,
    TurnResult,
    open_runtime,
    tool,
)
from trouper.core.messages import Message, Text
from trouper.events import TextDelta
from trouper.journal.memory_disk import MemoryDisk
from trouper.models import BadRequest, Fallback, Model, ModelRequest, Recorded, TextChunk
from trouper.models.gemini_vertex import Vertex

KEY = "a-planted-key-0123456789"
SAID = "Hé\u2028llo 漢😀"

#: What is sent for one request: bytes, and seconds of silence. `None`: the server hangs up.
Reply: TypeAlias = Sequence[bytes | float | None]


@define
class Seen:
    url: str
    bodies: list[dict[str, Any]] = field(factory=list)
    heads: list[bytes] = field(factory=list)
    times: list[float] = field(factory=list)
    connections: int = 0
    open: int = 0


@asynccontextmanager
async def server(*replies: Reply) -> AsyncIterator[Seen]:
    """Answers the requests in turn, the last reply ever after."""

    async def talk(stream: trio.SocketStream) -> None:
        seen.connections += 1
        seen.open += 1
        try:
            async with stream:
                await answer(stream)
        except trio.BrokenResourceError:
            pass
        finally:
            seen.open -= 1

    async def answer(stream: trio.SocketStream) -> None:
        got = b""
        while True:
            while (head := re.search(rb"\r\n\r\n", got)) is None:
                if not (piece := await stream.receive_some()):
                    return
                got += piece
            length = re.search(rb"content-length: (\d+)", got, re.I)
            end = head.end() + int(length[1] if length else 0)
            while len(got) < end:
                got += await stream.receive_some()
            seen.heads.append(got[: head.end()])
            seen.bodies.append(json.loads(got[head.end() : end]))
            seen.times.append(trio.current_time())
            got = got[end:]
            for item in replies[min(len(seen.bodies), len(replies)) - 1]:
                if item is None:
                    return
                if isinstance(item, bytes):
                    await stream.send_all(item)
                else:
                    with trio.move_on_after(item):
                        if not await stream.receive_some():
                            return

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    seen = Seen(f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, talk, listeners)
        yield seen
        nursery.cancel_scope.cancel()


async def all_closed(seen: Seen) -> None:
    with trio.fail_after(5):
        while seen.open:
            await trio.lowlevel.checkpoint()


def head(status: str = "200 OK", kind: str = "text/event-stream", *fields: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *([f"Content-Type: {kind}"] if kind else []), *fields]).encode() + b"\r\n"


def sized(body: bytes, *given: str) -> list[bytes]:
    return [head(*given) + b"Content-Length: %d\r\n\r\n" % len(body) + body]


def chunked(body: bytes, *given: str, size: int = 1_000_000) -> list[bytes]:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    coded = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return [head(*given) + b"Transfer-Encoding: chunked\r\n\r\n" + coded + b"0\r\n\r\n"]


def events(*values: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n" for value in values)


def refused(status: int, error: Any, *fields: str) -> list[bytes]:
    return sized(json.dumps({"error": error}).encode(), f"{status} No", "application/json", *fields)


def candidate(*parts: Any, finish: str | None = None, **more: Any) -> dict[str, Any]:
    end = {"finishReason": finish} if finish else {}
    return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, **end, **more}]}


def choice(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def stop(reason: str) -> list[dict[str, Any]]:
    return [
        {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 4}},
        {"type": "message_stop"},
    ]


def gemini(seen: Seen) -> Gemini:
    return Gemini("m", api_key=KEY, base_url=seen.url)


def openai(seen: Seen) -> OpenAICompatible:
    return OpenAICompatible("m", api_key=KEY, base_url=seen.url + "/v1")


def anthropic(seen: Seen) -> Anthropic:
    return Anthropic("m", api_key=KEY, base_url=seen.url)


looked: list[str] = []


@tool
async def look(at: str) -> dict[str, str]:
    """Look at something."""
    looked.append(at)
    return {"seen": at}


@asynccontextmanager
async def session(model: Any, **limits: Any) -> AsyncIterator[Session]:
    looked.clear()
    settings = Limits(retry=Retry(first_delay_s=0.0), **limits)
    async with open_runtime(
        "/state", model=model, tools=[look], limits=settings, durability="memory", disk=MemoryDisk()
    ) as runtime:
        yield await runtime.session("s")


async def asked(make: Callable[[Seen], Any], *replies: Reply, **limits: Any) -> tuple[TurnResult, Seen]:
    async with server(*replies) as seen, session(make(seen), **limits) as talk:
        return await talk.ask("hi"), seen


G_SAID = events(candidate({"text": "Hé\u2028llo "}), candidate({"text": "漢😀"}, finish="STOP"))
O_SAID = events(choice(content="Hé\u2028llo "), choice("stop", content="漢😀")) + b"data: [DONE]\n\n"
A_SAID = events(
    *block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Hé\u2028llo 漢😀"}), *stop("end_turn")
)
CLIENTS = [(gemini, G_SAID), (openai, O_SAID), (anthropic, A_SAID)]

WAYS: dict[str, Callable[[bytes], Reply]] = {
    "in chunks": chunked,
    "a byte a chunk": lambda body: chunked(body, size=1),
    "chunks with extensions and trailers": lambda body: [
        head() + b"transfer-encoding: Chunked\r\n\r\n%x;a=b\r\n%s\r\n0\r\nx-t: 1\r\n\r\n" % (len(body), body)
    ],
    "with a length": sized,
    "to the end of the connection": lambda body: [head() + b"\r\n" + body, None],
    "HTTP/1.0": lambda body: [b"HTTP/1.0 200\r\nContent-Type: text/event-stream\r\n\r\n" + body, None],
    "compressed": lambda body: chunked(
        gzip.compress(body), "200 OK", "text/event-stream", "Content-Encoding: gzip", size=9
    ),
    "after hints": lambda body: [
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n",
        *chunked(body),
    ],
    "CRLF": lambda body: chunked(body.replace(b"\n", b"\r\n")),
    "CR": lambda body: chunked(body.replace(b"\n", b"\r")),
    "with a BOM": lambda body: chunked(b"\xef\xbb\xbf" + body),
    "comments and fields": lambda body: chunked(b": hi\n\nid: 3\nretry: 10\nnew: x\n" + body),
    "empty events": lambda body: chunked(b"data:\n\ndata: \n\n" + body),
    "no blank after the colon": lambda body: chunked(body.replace(b"data: ", b"data:")),
    "no last blank line": lambda body: chunked(body[:-1]),
    "the end marker of Chat Completions": lambda body: chunked(body + b"data: [DONE]\n\n"),
    "another case": lambda body: chunked(body, "200 OK", "Text/Event-Stream; Charset=UTF-8"),
    "no type": lambda body: chunked(body, "200 OK", ""),
    "called text": lambda body: chunked(body, "200 OK", "text/plain"),
    "called JSON": lambda body: chunked(b"\n" + body, "200 OK", "application/json"),
}


@pytest.mark.parametrize(("make", "body"), CLIENTS)
@pytest.mark.parametrize("way", WAYS)
async def test_a_reply_is_the_same_however_it_is_sent(way: str, make: Callable[[Seen], Any], body: bytes) -> None:
    """M2: HTTP/1.1 and 1.0, chunks, lengths, compression, and events under all their names."""
    result, seen = await asked(make, WAYS[way](body))
    assert (result.text, result.stop_reason, result.error) == (SAID, "end_turn", None)
    assert len(seen.bodies) == 1


@pytest.mark.parametrize("kind", ["application/json", "", "text/event-stream"])
async def test_a_whole_reply_where_a_stream_was_asked_for(kind: str) -> None:
    """M2: from gateways that cannot stream, whatever they call it."""
    pieces = [candidate({"text": "Hé\u2028llo "}), candidate({"text": "漢😀"}, finish="STOP")]
    for value in (pieces, candidate({"text": SAID}, finish="STOP")):
        result, _ = await asked(gemini, sized(json.dumps(value, indent=2).encode(), "200 OK", kind))
        assert (result.text, result.stop_reason) == (SAID, "end_turn")


WHOLE: list[tuple[Callable[[Seen], Any], Any]] = [
    (gemini, candidate({"text": SAID}, finish="STOP")),
    (openai, {"choices": [{"index": 0, "message": {"content": SAID}, "finish_reason": "stop"}]}),
    (anthropic, {"type": "message", "content": [{"type": "text", "text": SAID}], "stop_reason": "end_turn"}),
]


@pytest.mark.parametrize(("make", "value"), WHOLE)
async def test_a_whole_reply_that_is_cut_off_is_asked_for_again(make: Callable[[Seen], Any], value: Any) -> None:
    """L14: where only the end of the connection says where it ends, wherever that may be; a byte order mark is no part of it."""
    body = json.dumps(value, ensure_ascii=False).encode()
    for end in range(1, len(body)):
        begun = head("200 OK", "application/json", "connection: close") + b"\r\n"
        result, seen = await asked(
            make, [begun + body[:end], None], sized(b"\xef\xbb\xbf" + body, "200 OK", "application/json")
        )
        assert (result.text, result.error, len(seen.bodies)) == (SAID, None, 2)


@pytest.mark.parametrize("make", [gemini, openai, anthropic])
@pytest.mark.parametrize("value", [{}, {"status": "ok"}, [], [{"id": 7}], "hello"], ids=repr)
async def test_json_that_is_no_reply_is_told_as_that_at_once(make: Callable[[Seen], Any], value: Any) -> None:
    """L11: another service is at this address; asking it again does not make it a provider."""
    result, seen = await asked(make, sized(json.dumps(value).encode(), "200 OK", "application/json"))
    assert result.error is not None
    assert (result.error.kind, result.error.retryable, len(seen.bodies)) == ("other", False, 1)
    assert "check base_url" in result.error.message


@pytest.mark.parametrize(("make", "body"), CLIENTS)
async def test_an_error_that_is_null_is_none(make: Callable[[Seen], Any], body: bytes) -> None:
    """M1: from gateways that write all of their fields."""
    result, seen = await asked(make, chunked(events({"error": None}) + body))
    assert (result.text, result.error, len(seen.bodies)) == (SAID, None, 1)


@pytest.mark.parametrize("make", [gemini, openai, anthropic])
async def test_an_error_in_a_whole_reply_is_an_error(make: Callable[[Seen], Any]) -> None:
    """M1: from gateways that say 200 and mean another."""
    result, _ = await asked(make, sized(b'{"error": {"message": "the disk is full"}}', "200 OK", "application/json"))
    assert result.error is not None
    assert result.error.kind == "server"
    assert "the disk is full" in result.error.message


@pytest.mark.parametrize("make", [gemini, openai, anthropic])
async def test_a_reply_in_a_coding_that_nobody_asked_for_is_told_as_that_at_once(make: Callable[[Seen], Any]) -> None:
    """L11, L14: it was not cut off, and the next one is written as this one is. Of a refusal the status still counts."""
    coded = ("text/event-stream", f"Content-Encoding: gzip, rot13-{KEY}")
    result, seen = await asked(make, sized(b"?" * 40, "200 OK", *coded))
    assert result.error is not None
    assert (result.error.kind, result.error.retryable, len(seen.bodies)) == ("other", False, 1)
    assert "in the coding 'gzip, rot13-[key]'" in result.error.message
    result, _ = await asked(make, sized(b"?" * 40, "403 No", *coded))
    assert result.error is not None
    assert result.error.kind == "auth"
    assert "?" not in result.error.message


async def test_cut_in_two_at_any_byte() -> None:
    """M2: in the head, in a chunk's size, in a line end, within a character."""
    body = b"\xef\xbb\xbf: hm\r\n\r\n" + G_SAID.replace(b"\n", b"\r\n")
    [wire] = chunked(body, size=40)
    halves = [[wire[:at], 0.001, wire[at:]] for at in range(1, len(wire))]
    async with server(*halves) as seen, gemini(seen) as model:
        for _ in halves:
            async with model.stream(ModelRequest((Message("user", (Text("hi"),)),))) as chunks:
                assert "".join([chunk.text async for chunk in chunks if isinstance(chunk, TextChunk)]) == SAID
        assert seen.connections == 1


GOOGLE_RETRY = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7.5s"}


@pytest.mark.parametrize(
    ("make", "body", "refusal", "wait_s"),
    [
        (gemini, G_SAID, refused(429, {"status": "RESOURCE_EXHAUSTED", "details": [GOOGLE_RETRY]}), 7.5),
        (gemini, G_SAID, refused(503, {"status": "UNAVAILABLE", "message": "busy"}), 0),
        (gemini, G_SAID, sized(b"<html>bad gateway</html>", "502 Bad Gateway", "text/html", "Retry-After: 3"), 3),
        (gemini, G_SAID, refused(400, {"message": "the number of function response parts is not equal"}), 0),
        (gemini, G_SAID, refused(400, {"message": "Function call is missing a thought_signature"}), 0),
        (gemini, G_SAID, chunked(events({"error": {"code": 503, "status": "UNAVAILABLE"}})), 0),
        (gemini, G_SAID, chunked(events(candidate(finish="MALFORMED_FUNCTION_CALL"))), 0),
        (openai, O_SAID, refused(429, {"type": "requests", "message": "slow"}, "Retry-After-Ms: 2500"), 2.5),
        (openai, O_SAID, refused(529, {"message": "overloaded"}), 0),
        (openai, O_SAID, chunked(events({"error": {"message": "overloaded", "code": 503}})), 0),
        (anthropic, A_SAID, refused(529, {"type": "overloaded_error", "message": "Overloaded"}), 0),
        (anthropic, A_SAID, chunked(events({"type": "error", "error": {"type": "overloaded_error"}})), 0),
        (anthropic, A_SAID, sized(b"", "500 No", ""), 0),
    ],
)
async def test_what_passes_is_tried_again_on_the_same_connection(
    autojump_clock: trio.testing.MockClock, make: Callable[[Seen], Any], body: bytes, refusal: Reply, wait_s: float
) -> None:
    """L11, M9, M10, M14: after the time that the provider asks for."""
    result, seen = await asked(make, refusal, chunked(body))
    assert (result.text, result.error) == (SAID, None)
    assert (len(seen.bodies), seen.connections) == (2, 1)
    assert seen.times[1] - seen.times[0] == pytest.approx(wait_s)


@pytest.mark.parametrize(("make", "body"), [(gemini, G_SAID), (openai, O_SAID), (anthropic, A_SAID)])
async def test_a_moment_to_come_back_at_is_waited_for_though_the_server_does_not_tell_its_time(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, make: Callable[[Seen], Any], body: bytes
) -> None:
    """L11: by our own clock, then."""
    monkeypatch.setattr("trouper.models.http._now", lambda: 1_792_567_680.0)  # 07:28 that day
    refusal = refused(429, {"message": "slow"}, "Retry-After: Wed, 21 Oct 2026 07:28:10 GMT")
    result, seen = await asked(make, refusal, chunked(body))
    assert (result.text, result.error) == (SAID, None)
    assert seen.times[1] - seen.times[0] == pytest.approx(10.0)


OWN_TRANSPORT = {"ours": lambda: None, "that of httpx": httpx.AsyncHTTPTransport}


@pytest.mark.parametrize("transport", OWN_TRANSPORT)
@pytest.mark.parametrize(
    ("kind", "path", "body"), [(Gemini, "", G_SAID), (OpenAICompatible, "/v1", O_SAID), (Anthropic, "", A_SAID)]
)
async def test_a_connected_server_may_take_as_long_for_its_head_as_for_its_first_event(
    autojump_clock: trio.testing.MockClock, transport: str, kind: Any, path: str, body: bytes
) -> None:
    """L12: many send it with the first word, after they have loaded a model, read a long prompt or thought. The deadline of connecting is none for that."""

    def make(seen: Seen) -> Model:
        made: Model = kind("m", api_key=KEY, base_url=seen.url + path, transport=OWN_TRANSPORT[transport]())
        return made

    result, seen = await asked(make, [80.0, *chunked(body)])
    assert (result.text, result.error, len(seen.bodies)) == (SAID, None, 1)
    limits = {"deadlines": Deadlines(first_event_s=30.0)}
    result, seen = await asked(make, [80.0, *chunked(body)], **limits)
    assert result.error is not None
    assert (result.error.kind, result.error.message) == ("network", "no reply for 30.0 s")
    assert len(seen.bodies) == 4
    assert seen.times[1] - seen.times[0] == pytest.approx(30.0)


async def test_a_server_that_another_one_stands_in_for_leaves_it_all_of_its_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """L12, M6: it had what the first one had left over, and was asked again and again."""
    async with server([80.0, *refused(503, {"message": "busy"})]) as busy:
        result, seen = await asked(lambda seen: Fallback(openai(busy), openai(seen)), [80.0, *chunked(O_SAID)])
    assert (result.text, result.error) == (SAID, None)
    assert (len(busy.bodies), len(seen.bodies)) == (1, 1)


@pytest.mark.parametrize("make", [gemini, openai, anthropic])
@pytest.mark.parametrize(
    ("status", "kind", "requests"),
    [
        *[(401, "auth", 1), (403, "auth", 1), (404, "bad_request", 1), (413, "context_overflow", 1)],
        *[(400, "bad_request", 1), (500, "server", 4), (503, "server", 4), (429, "rate_limit", 4)],
    ],
)
@pytest.mark.parametrize("body", [b'{"error": {"message": "No."}}', b"<html>No.</html>", b""])
async def test_refusals_by_name(
    make: Callable[[Seen], Any], status: int, kind: str, requests: int, body: bytes
) -> None:
    """M1, L11: whatever the body says, or does not."""
    result, seen = await asked(make, sized(body, f"{status} No", ""))
    assert result.error is not None
    assert (result.stop_reason, result.error.kind, len(seen.bodies)) == ("error", kind, requests)
    assert seen.connections == 1


G_ERROR = json.dumps({"error": {"code": 503, "status": "UNAVAILABLE", "message": "The model is overloaded."}}, indent=2)
O_ERROR = json.dumps({"code": 503, "type": "unavailable_error", "message": "The model is overloaded."})
A_ERROR = json.dumps({"error": {"type": "overloaded_error", "message": "The model is overloaded."}})


@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
@pytest.mark.parametrize(
    ("make", "begun", "error"),
    [
        (gemini, events(candidate({"text": "half "})), G_ERROR),
        (gemini, events(candidate({"text": "half "})), G_ERROR.replace("\n", "")),
        (gemini, events(candidate({"text": "half "})), f"data: {G_ERROR.replace(chr(10), '')}"),
        (openai, events(choice(content="half ")), f"error: {O_ERROR}"),
        (openai, events(choice(content="half ")), f"event: error\ndata: {O_ERROR}"),
        (anthropic, events(*block(0, {"type": "text", "text": "half "})[:1]), f"data: {A_ERROR}"),
        (anthropic, events(*block(0, {"type": "text", "text": "half "})[:1]), A_ERROR),
        *[
            (anthropic, events(*block(0, {"type": "text", "text": "half "})[:1]), written + error)
            for error in (
                O_ERROR,
                A_ERROR,
                '{"message": "The model is overloaded."}',
                '{"error": "The model is overloaded."}',
            )
            for written in ("error: ", "event: error\ndata: ")
        ],
    ],
)
async def test_why_a_stream_ends_in_its_midst_is_told_however_it_is_written(
    make: Callable[[Seen], Any], begun: bytes, error: str, end: str
) -> None:
    """M1, L14: Gemini writes it as JSON over many lines, llama.cpp in a field called error, gateways without a type; its blank line may be missing."""
    result, _ = await asked(make, chunked(begun + (error + end).encode()))
    assert (result.text, result.error and result.error.kind) == ("half ", "server")
    assert result.error is not None and "The model is overloaded." in result.error.message


LONG = {
    "code": 400,
    "type": "exceed_context_size_error",
    "message": "the request exceeds the available context size, try increasing it",
}


@pytest.mark.parametrize("make", [openai, anthropic])
@pytest.mark.parametrize(
    "reply",
    [
        chunked(f"error: {json.dumps(LONG)}\n\n".encode()),
        chunked(f"event: error\ndata: {json.dumps(LONG)}\n\n".encode()),
        sized(json.dumps({"error": LONG}).encode(), "400 No", "application/json"),
    ],
)
async def test_a_context_that_is_too_long_for_llama_cpp_is_named(make: Callable[[Seen], Any], reply: Reply) -> None:
    """L11, L32: in mid-stream it was taken for a stream that was cut off, and asked for six times."""
    result, seen = await asked(make, reply)
    assert (result.error and result.error.kind, len(seen.bodies)) == ("context_overflow", 1)


@pytest.mark.parametrize("make", [gemini, openai, anthropic])
@pytest.mark.parametrize("status", [404, 405])
@pytest.mark.parametrize("body", [b"404 page not found", b'{"detail":"Not Found"}', b"<html></html>", b""])
async def test_where_no_provider_is_the_address_is_what_to_check(
    make: Callable[[Seen], Any], status: int, body: bytes
) -> None:
    """M1: so Ollama answers without the /v1 of its base_url; nothing is wrong with the request."""
    result, _ = await asked(make, sized(body, f"{status} No", ""))
    assert result.error is not None and result.error.message.endswith("; check the model's name and base_url")


TOO_LONG: list[tuple[Callable[[Seen], Any], Any]] = [
    (
        gemini,
        {"status": "INVALID_ARGUMENT", "message": "The input token count (9) exceeds the maximum number of tokens"},
    ),
    (openai, {"code": "context_length_exceeded", "message": "Too long."}),
    (anthropic, {"type": "invalid_request_error", "message": "prompt is too long"}),
]


@pytest.mark.parametrize(("make", "error"), TOO_LONG)
@pytest.mark.parametrize("ending", [None, 1000.0, "a mark before it"])
async def test_a_refusal_counts_as_far_as_it_came(
    autojump_clock: trio.testing.MockClock, make: Callable[[Seen], Any], error: Any, ending: Any
) -> None:
    """M1, L32: though its body is shorter than announced, or begins with a byte order mark."""
    body = json.dumps({"error": error}).encode()
    refusal: Reply = [head("400 No", "application/json") + b"content-length: 9999\r\n\r\n" + body, ending]
    if isinstance(ending, str):
        refusal = sized(b"\xef\xbb\xbf" + body, "400 No", "application/json")
    result, _ = await asked(make, refusal)
    assert result.error is not None
    assert result.error.kind == "context_overflow"


@pytest.mark.parametrize("make", [gemini, openai, anthropic])
async def test_a_page_that_repeats_the_key_is_not_cut_within_it(make: Callable[[Seen], Any]) -> None:
    """M3, I36: of a page in no provider's format the beginning is shown; half a key at its end was not known for one."""
    for before in range(360, 410):
        page = b"<html>" + b"x" * before + KEY.encode() + b"</html>"
        async with server(sized(page, "400 No", "text/html")) as seen:
            async with aclosing(make(seen)) as model:
                with pytest.raises(BadRequest) as caught:
                    async with model.stream(ModelRequest(messages=(Message("user", (Text("hi"),)),))):
                        pass
        assert KEY[:6] not in str(caught.value)
        assert "<html>xx" in str(caught.value)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("make", [gemini, openai, anthropic])
async def test_a_redirect_is_not_followed(make: Callable[[Seen], Any], status: int) -> None:
    """M3: the key is for the host that it was given for."""
    async with server(chunked(G_SAID)) as elsewhere:
        result, seen = await asked(make, sized(KEY.encode(), f"{status} Moved", "", f"Location: {elsewhere.url}/{KEY}"))
    assert elsewhere.connections == 0
    assert result.error is not None
    assert "redirect" in result.error.message
    assert KEY not in repr(result)
    assert KEY.encode() in seen.heads[0]


@pytest.mark.parametrize("location", ["http://host:99999/", "//", ""])
@pytest.mark.parametrize("make", [gemini, openai, anthropic])
async def test_a_redirect_to_what_is_no_address_is_a_redirect(make: Callable[[Seen], Any], location: str) -> None:
    """M1."""
    result, _ = await asked(make, sized(b"", "307 Moved", "", f"Location: {location}"))
    assert result.error is not None and "a redirect, which is not followed" in result.error.message


CUT: list[tuple[Callable[[Seen], Any], bytes]] = [
    (gemini, events(candidate({"text": "half "}))),
    (openai, events(choice(content="half "))),
    (anthropic, events(*block(0, {"type": "text", "text": "half "})[:1])),
]


@pytest.mark.parametrize(("make", "body"), CUT)
@pytest.mark.parametrize("ending", [b"0\r\n\r\n", None, 1000.0])
async def test_cut_off_after_progress(
    autojump_clock: trio.testing.MockClock, make: Callable[[Seen], Any], body: bytes, ending: bytes | float | None
) -> None:
    """L12-L14: without an end marker, hung up on, or silent; what was seen stays, and nothing is sent twice."""
    begun = head() + b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(body), body)
    async with server([begun, ending], chunked(body)) as seen, session(make(seen)) as talk:
        result = await talk.ask("hi")
        assert (result.text, result.error and result.error.kind) == ("half ", "network")
        assert [(message.text, message.kind) for message in talk.history[1:]] == [("half ", "cut_short")]
        assert len(seen.bodies) == 1


@pytest.mark.parametrize(("make", "body"), CLIENTS)
@pytest.mark.parametrize("begun", [b"", b": still here\n\n" * 3, b"data: {"])
@pytest.mark.parametrize("ending", [None, 1000.0])
async def test_cut_off_before_progress(
    autojump_clock: trio.testing.MockClock,
    make: Callable[[Seen], Any],
    body: bytes,
    begun: bytes,
    ending: float | None,
) -> None:
    """L12, L13: comments are no speech; another connection gets the whole reply."""
    result, seen = await asked(make, [head() + b"\r\n" + begun, ending], [ending], chunked(body))
    assert (result.text, len(seen.bodies), seen.connections) == (SAID, 3, 3)


async def test_a_reply_that_is_over_need_not_be_ended(autojump_clock: trio.testing.MockClock) -> None:
    """L14: the provider said how it ended; the rest of the connection is not worth a wait, nor a fault."""
    for last in (1000.0, None):
        begun = head() + b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(G_SAID), G_SAID)
        result, _ = await asked(gemini, [begun, last], deadlines=Deadlines(idle_s=10))
        assert (result.text, result.stop_reason) == (SAID, "end_turn")


@pytest.mark.parametrize(("make", "body"), CUT)
async def test_an_interrupt_closes_the_connection(make: Callable[[Seen], Any], body: bytes) -> None:
    """M2, L15."""
    begun = head() + b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(body), body)
    async with server([begun, 1000.0]) as seen, session(make(seen)) as talk:
        async with talk.turn("hi") as turn:
            async for event in turn:
                if "half" in repr(event):
                    assert seen.open == 1
                    await talk.interrupt()
        assert turn.result.stop_reason == "interrupt"
        await all_closed(seen)


def fragment(**given: Any) -> dict[str, Any]:
    function = {key: given.pop(key) for key in ("name", "arguments") if key in given}
    return {**given, "function": function}


def calls(*fragments: dict[str, Any]) -> list[dict[str, Any]]:
    return [choice(tool_calls=[each]) for each in fragments]


@pytest.mark.parametrize(
    ("deltas", "ids"),
    [
        (calls(fragment(index=0, id="a", name="look", arguments=""), *(fragment(index=0, arguments=c) for c in '{"at":"p"}')), ["a"]),
        (calls(fragment(index=0, id="a", name="look"), fragment(index=1, id="b", name="look"), fragment(index=1, arguments='{"at":'), fragment(index=0, arguments='{"at":"p"}'), fragment(index=1, arguments='"q"}')), ["a", "b"]),
        (calls(fragment(index=0, name="look", arguments='{"at":"p"}'), fragment(index=1, name="look", arguments='{"at":"q"}')), None),
        (calls(fragment(index=0, name="look", arguments='{"at":"p"}'), fragment(index=0, name="look", arguments='{"at":"q"}')), None),
        (calls(fragment(index=0, name="look", arguments='{"at":'), fragment(index=0, name="look", arguments='"p"}'), fragment(index=0, name="look", arguments="")), None),
        (calls(fragment(name="look", arguments='{"at":"p"}'), fragment(name="look", arguments='{"at":"q"}')), None),
        (calls(fragment(index=0, id="a", name="look", arguments='{"at":"p"}'), fragment(index=0, id="b", name="look", arguments='{"at":"q"}')), ["a", "b"]),
        (calls(fragment(index=0, id="a", name="look", arguments='{"at"'), fragment(index=0, id="", arguments=':"p"}')), ["a"]),
        (calls(fragment(index=0, id="a", name="look", arguments='{"at":"p"}'), fragment(index=1, id="a", name="look", arguments='{"at":"q"}')), None),
        (calls(fragment(id="a", name="look", arguments='{"at":'), fragment(id="a", name="look", arguments='"p"'), fragment(id="a", name="look", arguments="}"), fragment(id="a", name="look", arguments=""), fragment(id="b", name="look", arguments='{"at":'), fragment(id="b", name="look", arguments='"q"}')), ["a", "b"]),
        (calls(fragment(id="a", name="look", arguments='{"at":"p"}'), fragment(id="a", name="look", arguments='{"at":"q"}')), None),
        (calls(fragment(index=0, name="look", arguments={"at": "p"}), fragment(index=0, name="look", arguments={"at": "q"})), None),
    ],
    ids=["split", "interleaved", "no ids", "no ids, one index", "name repeated", "no ids, no index", "one index", "empty id", "one id", "id and name repeated, no index", "one id, no index", "objects"],
)  # fmt: skip
async def test_fragments_of_calls_find_together(deltas: list[Any], ids: list[str] | None) -> None:
    """M13: by index, by id, or by what they say; missing ids are made, and answers go to their calls."""
    wanted = ["p", "q"] if '"q' in repr(deltas) or "'q'" in repr(deltas) else ["p"]
    result, seen = await asked(openai, chunked(events(*deltas, choice("tool_calls"))), chunked(O_SAID))
    assert result.text == SAID
    assert sorted(looked) == wanted
    [said, *answers] = seen.bodies[1]["messages"][-1 - len(wanted) :]
    sent = [call["id"] for call in said["tool_calls"]]
    assert len(set(sent)) == len(wanted)
    assert ids in (None, sent)
    assert [json.loads(call["function"]["arguments"]) for call in said["tool_calls"]] == [{"at": at} for at in wanted]
    assert [(answer["tool_call_id"], json.loads(answer["content"])) for answer in answers] == [
        (each, {"seen": at}) for each, at in zip(sent, wanted, strict=True)
    ]


async def test_what_gemini_signed_goes_back_as_it_came() -> None:
    """M4, M8, I7: signatures, ids, fields and parts of tomorrow, each at its place; answers of a step in one content."""
    parts = [
        {"text": "hm", "thought": True},
        {"text": "I look.", "thoughtSignature": "QUJD+/8="},
        {"hologram": {"z": [1]}},
        {"functionCall": {"id": "f1", "name": "look", "args": {"at": "p"}, "new": 1}, "thoughtSignature": "U0lH", "n": {}},
        {"functionCall": {"id": "f2", "name": "look", "args": {"at": "q"}}},
        {"text": "", "thoughtSignature": "TEFTVA=="},
    ]  # fmt: skip
    stream = [candidate(part) for part in parts] + [candidate(finish="STOP")]
    result, seen = await asked(gemini, chunked(events(*stream)), chunked(G_SAID))
    assert result.text == SAID
    said, answers = seen.bodies[1]["contents"][1:]
    assert said == {"role": "model", "parts": parts}
    assert answers == {
        "role": "user",
        "parts": [
            {"functionResponse": {"id": each, "name": "look", "response": {"output": {"seen": at}}}}
            for each, at in (("f1", "p"), ("f2", "q"))
        ],
    }


async def test_of_several_candidates_the_first_counts() -> None:
    """M4: they may share an event, or have one each."""
    other = {"index": 1, "content": {"parts": [{"text": "other"}]}, "finishReason": "SAFETY"}
    mine = candidate({"text": SAID}, finish="STOP", index=0)["candidates"][0]
    for stream in ([{"candidates": [other]}, {"candidates": [mine]}], [{"candidates": [other, mine]}]):
        result, _ = await asked(gemini, chunked(events(*stream)))
        assert (result.text, result.stop_reason) == (SAID, "end_turn")


async def test_anthropics_blocks_go_back_as_they_came() -> None:
    """M14: signed and redacted thinking, parallel calls, an error as such, blocks of tomorrow."""
    stream = [
        *block(0, {"type": "thinking", "thinking": "", "signature": ""}, {"type": "thinking_delta", "thinking": "hm"}, {"type": "signature_delta", "signature": "SIG+/="}),
        *block(1, {"type": "redacted_thinking", "data": "RED=="}),
        *block(2, {"type": "hologram", "data": "zz"}),
        *block(3, {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}, *({"type": "input_json_delta", "partial_json": c} for c in '{"at": "p"}')),
        *block(4, {"type": "tool_use", "id": "toolu_2", "name": "look", "input": {}}),
        *stop("tool_use"),
    ]  # fmt: skip
    result, seen = await asked(anthropic, chunked(events(*stream)), chunked(A_SAID))
    assert result.text == SAID
    said, answers = seen.bodies[1]["messages"][1:]
    assert said["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "SIG+/="},
        {"type": "redacted_thinking", "data": "RED=="},
        {"type": "hologram", "data": "zz"},
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "p"}},
        {"type": "tool_use", "id": "toolu_2", "name": "look", "input": {}},
    ]
    assert [(each["tool_use_id"], each.get("is_error")) for each in answers["content"]] == [
        ("toolu_1", None),
        ("toolu_2", True),
    ]


async def test_a_pause_is_gone_on_from() -> None:
    """M14: what was said so far goes back, and the model goes on."""
    search = [{"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"q": "x"}}]
    search.append({"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"encrypted_content": "EE"}]})
    paused = [*block(0, search[0]), *block(1, search[1]), *stop("pause_turn")]
    result, seen = await asked(anthropic, chunked(events(*paused)), chunked(A_SAID))
    assert (result.text, result.stop_reason) == (SAID, "end_turn")
    assert seen.bodies[1]["messages"][1:] == [{"role": "assistant", "content": search}]


@pytest.mark.parametrize("wrapped", ["alone", "fallback", "recorded"])
async def test_a_runtime_leaves_no_connection_behind(wrapped: str, tmp_path: Any) -> None:
    """M2, M5, M6: those of a model within another included."""
    async with server(refused(503, {"status": "UNAVAILABLE"}), chunked(G_SAID)) as seen:
        model: Model = gemini(seen)
        if wrapped == "fallback":
            model = Fallback(model, gemini(seen))
        elif wrapped == "recorded":
            model = Recorded(model, tmp_path / "cassette")
        async with session(model) as talk:
            assert (await talk.ask("hi")).text == SAID
            assert seen.open == (2 if wrapped == "fallback" else 1)
        await all_closed(seen)


@pytest.mark.parametrize("transport", ["ours", "that of httpx", "a proxy"])
async def test_a_runtime_that_ends_leaves_the_replies_of_others_alone(
    autojump_clock: trio.testing.MockClock, transport: str
) -> None:
    """M2, M3: a client that two runtimes share closes its connections with the first of them, and the other's reply was broken off with those; or it left one open."""
    half, rest = events(choice(content=SAID[:3])), events(choice("stop", content=SAID[3:])) + b"data: [DONE]\n\n"
    begun = head() + b"content-length: %d\r\n\r\n" % len(half + rest)
    async with server([begun + half, 5.0, rest], sized(O_SAID)) as seen:
        given: dict[str, Any] = {"transport": httpx.AsyncHTTPTransport()} if transport == "that of httpx" else {}
        given = {"proxy": seen.url, "base_url": "http://elsewhere.example/v1"} if transport == "a proxy" else given
        model = OpenAICompatible("m", api_key=KEY, **{"base_url": f"{seen.url}/v1", **given})
        async with session(model) as slow, slow.turn("hi") as turn:
            async for event in turn:
                if isinstance(event, TextDelta) and len(seen.bodies) == 1:
                    async with session(model) as quick:
                        assert (await quick.ask("hi")).text == SAID
            assert turn.result is not None
            assert (turn.result.text, turn.result.error) == (SAID, None)
            assert len(seen.bodies) == 2
            await trio.testing.wait_all_tasks_blocked()
            assert seen.open == 0
            assert (await slow.ask("again")).text == SAID
        await trio.testing.wait_all_tasks_blocked()
        assert seen.open == 0


def test_a_client_has_connections_for_each_thread_that_uses_it() -> None:
    """M2: runtimes in two threads had one pool, which each threw away for its own at every request, with the connections in it."""
    asked = [threading.Event(), threading.Event()]

    async def take_turns(model: Model, mine: threading.Event, other: threading.Event) -> None:
        async with session(model) as talk:
            for _ in range(5):
                assert (await talk.ask("hi")).text == SAID
                other.set()
                assert await trio.to_thread.run_sync(mine.wait, 10)
                mine.clear()
        other.set()

    async def main() -> Seen:
        async with server(sized(O_SAID)) as seen, trio.open_nursery() as nursery:
            model = openai(seen)
            for events in (asked, asked[::-1]):
                nursery.start_soon(trio.to_thread.run_sync, trio.run, take_turns, model, *events)
        return seen

    seen = trio.run(main)
    assert (len(seen.bodies), seen.connections, seen.open) == (10, 2, 0)


async def test_recorded_and_fallen_back_conversations_go_on_after_a_restart(tmp_path: Any) -> None:
    """M5, M6: the second runtime's recordings follow the first's, and the whole is played without a network."""
    from trouper.models import Cassette

    quick = Limits(retry=Retry(first_delay_s=0.0))
    async with server(refused(503, {"status": "UNAVAILABLE"}), chunked(G_SAID)) as seen:
        texts = []
        for number in range(3):
            model = Recorded(Fallback(gemini(seen), gemini(seen)), tmp_path / "cassette")
            async with open_runtime(tmp_path / "live", model=model, limits=quick, durability="write") as runtime:
                talk = await runtime.session("s")
                texts.append((await talk.ask(f"question {number}")).text)
                assert len(talk.history) == 2 * number + 2
    assert texts == [SAID] * 3
    assert KEY not in (tmp_path / "cassette").read_text()
    player = Cassette(tmp_path / "cassette")
    for number in range(3):
        async with open_runtime(tmp_path / "played", model=player, limits=quick, durability="write") as runtime:
            talk = await runtime.session("s")
            assert (await talk.ask(f"question {number}")).text == SAID
    assert player.left == 0


class _Token(Credentials):  # type: ignore[misc, no-untyped-call]
    """Google's own class, with a token that is there."""

    valid, expired = True, False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.token = "of-vertex"

    def refresh(self, request: Any) -> None: ...


@pytest.mark.parametrize("vertex", [None, Vertex("p", "global", _Token())], ids=["gemini", "vertex"])
async def test_googles_own_client_sends_no_header_twice(vertex: Vertex | None) -> None:
    """M3, M12: one that was given, and that it writes as well. As in our own requests, what proves who asks Vertex comes first."""
    given = {"Content-Type": "application/json", "Authorization": "Bearer of-headers"}
    async with server(sized(b'{"totalTokens": 7}', "200 OK", "application/json")) as seen:
        async with Gemini("m", vertex=vertex, base_url=seen.url, headers=given) as model:
            assert await model.count_tokens(ModelRequest(messages=(Message("user", (Text("hi"),)),))) == 7
    names = [name.lower() for name in re.findall(rb"\r\n([^:\r]+):", seen.heads[0])]
    assert len(names) == len(set(names))
    assert (b"of-headers" in seen.heads[0], b"of-vertex" in seen.heads[0]) == (vertex is None, vertex is not None)
