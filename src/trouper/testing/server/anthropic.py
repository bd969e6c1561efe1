"""Anthropic's wire format, from the other end: `v1/messages`, streamed and whole, token counts, and the list of models (M16).

    async with serve_anthropic([[TextChunk("Hello"), Done("end_turn")]]) as server:
        model = Anthropic("claude-test", api_key="test", base_url=server.url)

A script is a list of turns, each a list of chunks with faults among them. Nothing is added to it but what the format wants: `message_start`, the starts
and ends of blocks, and `message_stop` after a turn that has `Done`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Unpack

from trouper.core.messages import Json, ProviderPart, Usage
from trouper.models import wire_json
from trouper.models.anthropic_request import SAMPLING, SAMPLING_REFUSED_SINCE
from trouper.models.chunks import (
    CallDelta,
    CallEnd,
    CallStart,
    Chunk,
    Done,
    PartChunk,
    TextChunk,
    ThinkingChunk,
    UsageChunk,
)
from trouper.testing.server.api import ApiOptions, ScriptedApi
from trouper.testing.server.faults import Status
from trouper.testing.server.listener import Responder, SeenRequest, TestServer, serve, serve_in_thread
from trouper.testing.server.playing import WireEvent, fields_of
from trouper.testing.server.script import Turn

_MODELS = ("claude-test", "claude-test-mini")
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
#: As the real service marks its replies.
_IDENTITY = {"request-id": "req_test"}
_JSON_HEADERS = {"content-type": "application/json", **_IDENTITY}


class AnthropicApi(ScriptedApi):
    """An `Application` that plays Anthropic."""

    json_headers = _JSON_HEADERS
    stream_headers = _IDENTITY

    async def __call__(self, request: SeenRequest, respond: Responder) -> None:
        given = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
        if self._api_key is not None and given != self._api_key:
            await self._refuse(respond, Status(401, "invalid x-api-key"))
        elif request.path == "/v1/messages" and request.method == "POST":
            await self._create(request, respond)
        elif request.path == "/v1/messages/count_tokens" and request.method == "POST":
            await self._answer(respond, {"input_tokens": -(-len(request.body) // 4)})
        elif request.path == "/v1/models":
            cards = [_model_card(name) for name in _MODELS]
            await self._answer(respond, {"data": cards, "has_more": False, "first_id": None, "last_id": None})
        else:
            await self._refuse(respond, Status(404, f"no such path: {request.path}"))

    async def _create(self, request: SeenRequest, respond: Responder) -> None:
        version = request.headers.get("anthropic-version", "")
        unreadable = "The request body is not valid JSON"
        body = await self._body(request, respond, unreadable, lambda body: request_problem(body, version))
        if body is None:
            return
        writer = BlockWriter(wire_json.as_text(body.get("model")))
        await self._reply(request, respond, writer, whole, streamed=body.get("stream") is True)

    def _error_body(self, status: Status) -> Json:
        return error_body(status)

    def _with_unknown_fields(self, value: dict[str, Json]) -> dict[str, Json]:
        out = {**value, "field_of_tomorrow": {"deep": [1, None, "x"]}}
        for key in ("message", "delta", "usage"):
            if isinstance(out.get(key), dict):
                out[key] = {**out[key], "new_field": "NEVER_SEEN"}
        return out

    def _wait_headers(self, wait_s: float) -> dict[str, str]:
        return {"retry-after": f"{wait_s:.9g}"}


class BlockWriter:
    """Chunks as Anthropic's events. A block stays open while chunks of its kind come."""

    has_end = True

    def __init__(self, model: str = "claude-test") -> None:
        self._model = model
        self._begun = self._done = False
        self._usage = Usage()
        self._blocks = 0
        #: The text or thinking block under way: its kind and index.
        self._open: tuple[str, int] | None = None
        self._calls: dict[int, int] = {}
        self._streamed: set[int] = set()

    def events(self, chunk: Chunk) -> Iterator[WireEvent]:
        if isinstance(chunk, UsageChunk):
            self._usage = chunk.usage
        if not self._begun:
            self._begun = True
            yield self._start_message()
        match chunk:
            case TextChunk(text, opaque):
                if text or self._open is None or self._open[0] != "text":
                    yield from self._ensure("text", {"type": "text", "text": "", "citations": None})
                if text:
                    yield self._delta({"type": "text_delta", "text": text})
                for citation in fields_of(opaque).get("citations") or ():
                    yield self._delta({"type": "citations_delta", "citation": citation})
                if opaque is not None:
                    yield from self._close()
            case ThinkingChunk(text, signature, opaque):
                if fields_of(opaque).get("type") == "redacted_thinking":
                    yield from self._whole_block(fields_of(opaque))
                    return
                yield from self._ensure("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                if text:
                    yield self._delta({"type": "thinking_delta", "thinking": text})
                if signature is not None:
                    yield self._delta({"type": "signature_delta", "signature": signature})
                if signature is not None or opaque is not None:
                    yield from self._close()
            case CallStart(index, name, id, opaque):
                yield from self._close()
                self._calls[index] = self._blocks
                block = {
                    "type": "tool_use",
                    "id": id or f"toolu_{index}",
                    "name": name,
                    "input": {},
                    **fields_of(opaque),
                }
                yield self._start_block(block)
            case CallDelta(index, fragment):
                self._streamed.add(index)
                yield self._delta({"type": "input_json_delta", "partial_json": fragment}, self._calls[index])
            case CallEnd(index, arguments):
                if arguments is not None and index not in self._streamed:
                    text = wire_json.encode(arguments).decode()
                    yield self._delta({"type": "input_json_delta", "partial_json": text}, self._calls[index])
                yield _event({"type": "content_block_stop", "index": self._calls.pop(index)})
            case PartChunk(ProviderPart(opaque)):
                yield from self._whole_block(fields_of(opaque))
            case Done(stop_reason, detail):
                self._done = True
                yield from self._close()
                yield self._message_delta(stop_reason, detail)
            case _:
                pass

    def finish(self) -> Iterator[WireEvent]:
        if self._done:
            yield _event({"type": "message_stop"})

    def raw(self, value: Json) -> WireEvent:
        return _event(value) if isinstance(value, dict) else WireEvent(value)

    def error(self, status: Status) -> WireEvent:
        return _event(error_body(status))

    def ping(self) -> WireEvent | None:
        return _event({"type": "ping"})

    def _start_message(self) -> WireEvent:
        message: dict[str, Json] = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**usage_body(self._usage), "output_tokens": self._usage.output or 1},
        }
        return _event({"type": "message_start", "message": message})

    def _message_delta(self, stop_reason: str, detail: str | None) -> WireEvent:
        delta: dict[str, Json] = {"stop_reason": stop_reason, "stop_sequence": None}
        if stop_reason == "stop_sequence":
            delta["stop_sequence"] = detail
        elif stop_reason == "refusal":
            delta["stop_details"] = {"type": "refusal", "category": detail, "explanation": None}
        return _event({"type": "message_delta", "delta": delta, "usage": usage_body(self._usage)})

    def _ensure(self, kind: str, block: dict[str, Json]) -> Iterator[WireEvent]:
        if self._open is not None and self._open[0] == kind:
            return
        yield from self._close()
        self._open = (kind, self._blocks)
        yield self._start_block(block)

    def _start_block(self, block: dict[str, Json]) -> WireEvent:
        index = self._blocks
        self._blocks += 1
        return _event({"type": "content_block_start", "index": index, "content_block": block})

    def _whole_block(self, block: dict[str, Json]) -> Iterator[WireEvent]:
        yield from self._close()
        index = self._blocks
        given = block.get("input")
        yield self._start_block({**block, "input": {}} if given else block)
        if given:
            text = wire_json.encode(given).decode()
            yield self._delta({"type": "input_json_delta", "partial_json": text}, index)
        yield _event({"type": "content_block_stop", "index": index})

    def _delta(self, delta: dict[str, Json], index: int | None = None) -> WireEvent:
        if index is None:
            assert self._open is not None
            index = self._open[1]
        return _event({"type": "content_block_delta", "index": index, "delta": delta})

    def _close(self) -> Iterator[WireEvent]:
        if self._open is not None:
            yield _event({"type": "content_block_stop", "index": self._open[1]})
            self._open = None


def _event(value: dict[str, Json]) -> WireEvent:
    return WireEvent(value, str(value.get("type") or ""))


def usage_body(usage: Usage) -> dict[str, Json]:
    read, written = usage.cache_read, usage.cache_write
    out: dict[str, Json] = {
        "input_tokens": (usage.input or 0) - (read or 0) - (written or 0),
        "output_tokens": usage.output or 0,
    }
    if read is not None:
        out["cache_read_input_tokens"] = read
    if written is not None:
        out["cache_creation_input_tokens"] = written
    if usage.reasoning is not None:
        out["output_tokens_details"] = {"thinking_tokens": usage.reasoning}
    return out


def whole(events: Iterable[Json]) -> dict[str, Json]:
    """A stream's events as the one message that a request without `stream` gets."""
    message: dict[str, Json] = {}
    blocks: dict[int, dict[str, Json]] = {}
    inputs: dict[int, str] = {}
    for event in events:
        match event:
            case {"type": "message_start", "message": started}:
                message = dict(started)
            case {"type": "content_block_start", "index": index, "content_block": block}:
                blocks[index] = dict(block)
            case {"type": "content_block_delta", "index": index, "delta": delta}:
                block = blocks[index]
                match delta:
                    case {"type": "input_json_delta", "partial_json": fragment}:
                        inputs[index] = inputs.get(index, "") + fragment
                    case {"type": "citations_delta", "citation": citation}:
                        block["citations"] = [*(block.get("citations") or ()), citation]
                    case _:
                        for key, value in delta.items():
                            if key != "type":
                                block[key] = block.get(key, "") + value
            case {"type": "message_delta", "delta": delta, "usage": usage}:
                message |= delta
                message["usage"] = {**message["usage"], **usage}
            case _:
                pass
    for index, text in inputs.items():
        blocks[index]["input"] = wire_json.decode(text.encode() or b"{}")
    message["content"] = [blocks[index] for index in sorted(blocks)]
    return message


def error_body(status: Status) -> dict[str, Json]:
    error: dict[str, Json] = {"type": status.status or _TYPES.get(status.code, "api_error"), "message": status.message}
    if any("violations" in detail for detail in status.details):
        error["details"] = {"error_code": "enforced_spend_limit_reached"}
    elif status.details:
        error["details"] = dict(status.details[0])
    return {"type": "error", "error": error, "request_id": "req_test"}


def request_problem(body: Mapping[str, Json], version: str) -> str | None:
    """What the real service would not accept in a request, in its own terms."""
    if not version:
        return "anthropic-version: header is required"
    if not isinstance(body.get("max_tokens"), int):
        return "max_tokens: Field required"
    if version >= SAMPLING_REFUSED_SINCE and (given := [name for name in SAMPLING if name in body]):
        return f"{given[0]}: Extra inputs are not permitted"
    if wire_json.encode(body).count(b'"cache_control":') > 4:
        return "A maximum of 4 blocks with cache_control may be provided."
    return messages_problem(body.get("messages") or (), bool(body.get("tools")))


def messages_problem(messages: Sequence[Mapping[str, Json]], has_tools: bool) -> str | None:
    if not messages:
        return "messages: at least one message is required"
    if messages[0].get("role") != "user":
        return 'messages: first message must use the "user" role'
    waiting: list[str] = []
    seen: set[str] = set()
    for position, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        at = f"messages.{position}"
        if role not in ("user", "assistant"):
            return f"{at}: unexpected role {role!r}"
        if position and messages[position - 1].get("role") == role:
            return f'{at}: roles must alternate between "user" and "assistant"'
        if not content:
            return f"{at}: all messages must have non-empty content except for the optional final assistant message"
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        results = [block for block in blocks if block["type"] == "tool_result"]
        calls = [block for block in blocks if block["type"] == "tool_use"]
        answered = [block["tool_use_id"] for block in results]
        if missing := [id for id in waiting if id not in answered]:
            return (
                f"{at}: `tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(missing)}. "
                "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
            )
        if sorted(answered) != sorted(waiting):
            return f"{at}: unexpected `tool_use_id` found in `tool_result` blocks. Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
        if [block["type"] for block in blocks[: len(results)]] != ["tool_result"] * len(results):
            return f"{at}: `tool_result` blocks must come first in the content"
        for number, block in enumerate(blocks):
            if block["type"] == "tool_result" and block.get("is_error") and (problem := failure_problem(block)):
                return f"{at}.content.{number}.tool_result: {problem}"
            if block["type"] == "text" and not block["text"].strip():
                return f"{at}: text content blocks must contain non-whitespace text"
            if block["type"] == "thinking" and not block.get("signature"):
                return f"{at}: Invalid `signature` in `thinking` block"
            if role == "assistant" and block["type"] in ("image", "document"):
                return f"{at}: {block['type']!r} blocks are not permitted in assistant messages"
        waiting = [block["id"] for block in calls]
        if len({*waiting, *seen}) != len(waiting) + len(seen):
            return f"{at}: `tool_use` ids must be unique"
        seen.update(waiting)
        if (calls or results) and not has_tools:
            return "Requests which include `tool_use` or `tool_result` blocks must define tools."
    if waiting:
        return f"`tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(waiting)}."
    return None


def failure_problem(result: Mapping[str, Json]) -> str | None:
    """What is wrong with a result that is marked as an error."""
    content = result.get("content") or ""
    if isinstance(content, str):
        return None if content.strip() else "content cannot be empty if `is_error` is true"
    if any(block["type"] != "text" for block in content):
        return "all content must be type `text` if `is_error` is true"
    return None


def _model_card(name: str) -> dict[str, Json]:
    return {
        "id": name,
        "type": "model",
        "display_name": name,
        "created_at": "2026-01-01T00:00:00Z",
        "lifecycle": "active",
        "max_input_tokens": 200_000,
        "max_tokens": 64_000,
    }


def serve_anthropic(
    turns: Iterable[Turn] = (), **options: Unpack[ApiOptions]
) -> AbstractAsyncContextManager[TestServer]:
    """An Anthropic on the loopback interface while the block lasts; its address is `server.url`."""
    return serve(AnthropicApi(turns, **options))


def serve_anthropic_in_thread(
    turns: Iterable[Turn] = (), **options: Unpack[ApiOptions]
) -> AbstractContextManager[TestServer]:
    """The same for code without trio: `with serve_anthropic_in_thread(...) as server:`."""
    return serve_in_thread(AnthropicApi(turns, **options))
