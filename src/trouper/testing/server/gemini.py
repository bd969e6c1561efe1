"""Gemini's wire format, from the other end: `generateContent`, `streamGenerateContent`, `countTokens` and the list of models (M16).

    async with serve_gemini([[TextChunk("Hello"), Done("end_turn")]]) as server:
        model = Gemini("gemini-3-flash", api_key="test", base_url=server.url)

A script is a list of turns, each a list of chunks with faults among them. Nothing is added to it: a turn without `Done` is a reply without an end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Unpack

from trouper.core.messages import Json, Media, Opaque, ProviderPart, Usage
from trouper.models import wire_json
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
from trouper.testing.server.api import ApiOptions, ScriptedApi
from trouper.testing.server.faults import Status
from trouper.testing.server.listener import Responder, SeenRequest, TestServer, serve, serve_in_thread
from trouper.testing.server.playing import WireEvent
from trouper.testing.server.script import Turn

_METHOD = re.compile(r"/(?:models|tunedModels)/(?P<model>[^/:]+):(?P<method>\w+)\Z")
_MODEL = re.compile(r"/models/(?P<model>[^/:]+)\Z")
_MODELS = ("gemini-3-flash", "gemini-3-pro")
_STATUS_NAMES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_FINISH = {"end_turn": "STOP", "tool_use": "STOP", "max_tokens": "MAX_TOKENS"}
_JSON_HEADERS = {"content-type": "application/json; charset=UTF-8"}
_STREAM_HEADERS = {"content-type": "text/event-stream"}


class GeminiApi(ScriptedApi):
    """An `Application` that plays Gemini."""

    json_headers = _JSON_HEADERS
    stream_headers = _STREAM_HEADERS

    async def __call__(self, request: SeenRequest, respond: Responder) -> None:
        refusal = self._refusal(request)
        called = _METHOD.search(request.path)
        if refusal is not None:
            await self._refuse(respond, refusal)
        elif called is not None and request.method == "POST":
            await self._call(called["method"], request, respond)
        elif request.path.endswith("/models"):
            await self._answer(respond, {"models": [_model_card(name) for name in _MODELS]})
        elif (found := _MODEL.search(request.path)) is not None:
            await self._answer(respond, _model_card(found["model"]))
        else:
            await self._refuse(respond, Status(404, f"no such path: {request.path}"))

    def _refusal(self, request: SeenRequest) -> Status | None:
        given = request.headers.get("x-goog-api-key") or request.query.get("key")
        if self._api_key is None or given == self._api_key:
            return None
        info = {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": "API_KEY_INVALID",
            "domain": "googleapis.com",
        }
        return Status(400, "API key not valid. Please pass a valid API key.", details=(info,))

    async def _call(self, method: str, request: SeenRequest, respond: Responder) -> None:
        unreadable = "Invalid JSON payload received."
        body = await self._body(request, respond, unreadable, lambda body: history_problem(body.get("contents", [])))
        if body is None:
            return
        writer = EventWriter(_model_of(request))
        match method:
            case "streamGenerateContent":
                # Without `alt=sse`, all events come at once, as a list.
                await self._reply(request, respond, writer, list, streamed=request.query.get("alt") == "sse")
            case "generateContent":
                await self._reply(request, respond, writer, merged, streamed=False)
            case "countTokens":
                await self._answer(respond, {"totalTokens": _estimate(body)})
            case _:
                await self._refuse(respond, Status(404, f"no such method: {method}"))

    def _error_body(self, status: Status) -> Json:
        return error_body(status)

    def _with_unknown_fields(self, value: dict[str, Json]) -> dict[str, Json]:
        out = {**value, "fieldOfTomorrow": {"deep": [1, None, "x"]}}
        if "candidates" in out:
            out["candidates"] = [
                {**candidate, "newScore": 0.5, "newEnum": "NEVER_SEEN"} for candidate in out["candidates"]
            ]
        return out


class EventWriter:
    """Chunks as Gemini's events. Calls are held until they are whole: that is how this provider sends them."""

    has_end = False

    def __init__(self, model: str = "gemini-3-flash") -> None:
        self._model = model
        self._open: dict[int, tuple[CallStart, list[str]]] = {}

    def events(self, chunk: Chunk) -> Iterator[WireEvent]:
        match chunk:
            case TextChunk(text, opaque):
                yield self._part({"text": text, **_own(opaque)})
            case ThinkingChunk(text, signature, opaque):
                signed = {"thoughtSignature": signature} if signature is not None else {}
                yield self._part({"text": text, "thought": True, **signed, **_own(opaque)})
            case CallStart():
                self._open[chunk.index] = (chunk, [])
            case CallDelta(index, fragment):
                self._open[index][1].append(fragment)
            case CallEnd():
                yield self._part(self._call(chunk))
            case PartChunk(part):
                yield self._part(_part(part))
            case UsageChunk(usage):
                yield WireEvent({"usageMetadata": usage_metadata(usage), **self._about()})
            case Done(stop_reason, detail):
                reason = (
                    detail if stop_reason == "refusal" and detail else _FINISH.get(stop_reason, stop_reason.upper())
                )
                reason = "SAFETY" if reason == "REFUSAL" else reason
                yield WireEvent({"candidates": [{"finishReason": reason, "index": 0}], **self._about()})
            case KeepAlive():
                pass

    def finish(self) -> Iterator[WireEvent]:
        return iter(())

    def raw(self, value: Json) -> WireEvent:
        # Text is JSON here like any other value: this format has no marker that is not.
        return WireEvent(wire_json.encode(value).decode() if isinstance(value, str) else value)

    def error(self, status: Status) -> WireEvent:
        return WireEvent(error_body(status))

    def ping(self) -> WireEvent | None:
        return None

    def _part(self, part: Mapping[str, Json]) -> WireEvent:
        content = {"parts": [part], "role": "model"}
        return WireEvent({"candidates": [{"content": content, "index": 0}], **self._about()})

    def _about(self) -> dict[str, Json]:
        return {"modelVersion": self._model, "responseId": "response-1"}

    def _call(self, end: CallEnd) -> dict[str, Json]:
        start, fragments = self._open.pop(end.index)
        arguments = (
            end.arguments if end.arguments is not None else wire_json.decode("".join(fragments).encode() or b"{}")
        )
        rest = {**_own(start.opaque), **_own(end.opaque)}
        call = {**rest.pop("functionCall", {}), "name": start.name, "args": arguments}
        return {"functionCall": {"id": start.id, **call} if start.id is not None else call, **rest}


def _own(opaque: Opaque | None) -> dict[str, Any]:
    return dict(opaque.data) if opaque is not None and opaque.provider == "gemini" else {}


def _part(part: object) -> dict[str, Json]:
    match part:
        case Media():
            if part.data is not None:
                return {"inlineData": {"mimeType": part.mime_type, "data": part.data}, **_own(part.opaque)}
            return {"fileData": {"mimeType": part.mime_type, "fileUri": part.uri}, **_own(part.opaque)}
        case ProviderPart(opaque):
            return _own(opaque)
        case _:
            raise TypeError(f"{part!r} cannot be part of a model's reply; use a chunk of its own kind")


def usage_metadata(usage: Usage) -> dict[str, int]:
    thoughts = usage.reasoning or 0
    counts = {
        "promptTokenCount": usage.input,
        "candidatesTokenCount": None if usage.output is None else usage.output - thoughts,
        "thoughtsTokenCount": usage.reasoning,
        "cachedContentTokenCount": usage.cache_read,
        "totalTokenCount": usage.total,
    }
    return {name: count for name, count in counts.items() if count is not None}


def merged(events: Iterable[Json]) -> dict[str, Json]:
    """A stream's events as the one reply that `generateContent` would have given."""
    parts: list[Json] = []
    candidate: dict[str, Json] = {"index": 0}
    out: dict[str, Json] = {}
    for event in events:
        for got in event.get("candidates", ()):
            parts.extend(got.get("content", {}).get("parts", ()))
            candidate.update({key: value for key, value in got.items() if key != "content"})
        out.update({key: value for key, value in event.items() if key != "candidates"})
    candidate["content"] = {"parts": parts, "role": "model"}
    return {"candidates": [candidate], **out}


def error_body(status: Status) -> dict[str, Json]:
    """google.rpc.Status, as Google's JSON writes it."""
    details = list(status.details)
    if status.retry_delay_s is not None:
        details.append(
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{status.retry_delay_s:.9g}s"}
        )
    error: dict[str, Json] = {
        "code": status.code,
        "message": status.message,
        "status": status.status or _STATUS_NAMES.get(status.code, "UNKNOWN"),
    }
    if details:
        error["details"] = details
    return {"error": error}


def history_problem(contents: Sequence[Mapping[str, Json]]) -> str | None:
    """What the real service would not accept in these contents, in its own terms."""
    if not contents:
        return "* GenerateContentRequest.contents: contents is not specified"
    open_ids: list[str | None] = []
    for position, content in enumerate(contents):
        parts = content.get("parts") or []
        if not parts:
            return f"* GenerateContentRequest.contents[{position}].parts: contents.parts must not be empty."
        if content.get("role", "user") not in ("user", "model"):
            return "Please use a valid role: user, model."
        answers = [part["functionResponse"] for part in parts if "functionResponse" in part]
        if len(answers) != len(open_ids):
            return (
                "Please ensure that the number of function response parts is equal to the number of function call parts "
                "of the function call turn."
            )
        if any(answer.get("id") != asked for answer, asked in zip(answers, open_ids, strict=True)):
            return "Please ensure that each function response has the id of its corresponding function call."
        open_ids = [part["functionCall"].get("id") for part in parts if "functionCall" in part]
        for part in parts:
            if not set(part) - {"thought", "thoughtSignature", "partMetadata"} and "thoughtSignature" not in part:
                return f"* GenerateContentRequest.contents[{position}].parts: must have one initialized field."
    return None


def _estimate(body: Mapping[str, Json]) -> int:
    """Four characters of text to a token."""
    parts = (part for content in _objects(body.get("contents")) for part in _objects(content.get("parts")))
    return sum(-(-len(text) // 4) for part in parts if isinstance(text := part.get("text"), str))


def _objects(value: Json) -> list[dict[str, Json]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _model_of(request: SeenRequest) -> str:
    found = _METHOD.search(request.path)
    return found["model"] if found else "unknown"


def _model_card(name: str) -> dict[str, Json]:
    return {
        "name": f"models/{name}",
        "version": "001",
        "displayName": name,
        "inputTokenLimit": 1_048_576,
        "outputTokenLimit": 65_536,
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }


def serve_gemini(turns: Iterable[Turn] = (), **options: Unpack[ApiOptions]) -> AbstractAsyncContextManager[TestServer]:
    """A Gemini on the loopback interface while the block lasts; its address is `server.url`."""
    return serve(GeminiApi(turns, **options))


def serve_gemini_in_thread(
    turns: Iterable[Turn] = (), **options: Unpack[ApiOptions]
) -> AbstractContextManager[TestServer]:
    """The same for code without trio: `with serve_gemini_in_thread(...) as server:`."""
    return serve_in_thread(GeminiApi(turns, **options))
