"""The wire format of Chat Completions, from the other end: `chat/completions`, streamed and whole, and the list of models (M16).

    async with serve_openai([[TextChunk("Hello"), Done("end_turn")]]) as server:
        model = OpenAICompatible("gpt-test", api_key="test", base_url=server.url + "/v1")

A script is a list of turns, each a list of chunks with faults among them. Nothing is added to it but what the format wants: the role at the
beginning, figures of usage after the finish reason, and `[DONE]` after a turn that has `Done`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Unpack

from trouper.core.messages import Json, ProviderPart, Usage
from trouper.models import wire_json
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
from trouper.models.openai_reply import merged
from trouper.testing.server.api import ApiOptions, ScriptedApi
from trouper.testing.server.faults import Status
from trouper.testing.server.listener import Responder, SeenRequest, TestServer, serve, serve_in_thread
from trouper.testing.server.playing import WireEvent, fields_of
from trouper.testing.server.script import Turn

_MODELS = ("gpt-test", "gpt-test-mini")
_FINISH = {"end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length", "refusal": "content_filter"}
_TYPES = {400: "invalid_request_error", 401: "invalid_request_error", 404: "invalid_request_error", 429: "requests"}
_CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}
#: As the real service marks its replies.
_IDENTITY = {"x-request-id": "req_test"}
_JSON_HEADERS = {"content-type": "application/json", **_IDENTITY}


class OpenAiOptions(ApiOptions, total=False):
    done_marker: bool


class OpenAiApi(ScriptedApi):
    """An `Application` that plays OpenAI, or a server that speaks its language."""

    json_headers = _JSON_HEADERS
    stream_headers = _IDENTITY

    def __init__(self, turns: Iterable[Turn] = (), *, done_marker: bool = True, **options: Unpack[ApiOptions]) -> None:
        super().__init__(turns, **options)
        #: Whether streams end in `[DONE]`, which some servers leave out.
        self._done_marker = done_marker

    async def __call__(self, request: SeenRequest, respond: Responder) -> None:
        if self._api_key is not None and request.headers.get("authorization") != f"Bearer {self._api_key}":
            await self._refuse(respond, Status(401, "Incorrect API key provided."))
        elif request.path.endswith("/chat/completions") and request.method == "POST":
            await self._complete(request, respond)
        elif request.path.endswith("/models"):
            await self._answer(respond, {"object": "list", "data": [_model_card(name) for name in _MODELS]})
        else:
            await self._refuse(respond, Status(404, f"no such path: {request.path}", status="unknown_url"))

    async def _complete(self, request: SeenRequest, respond: Responder) -> None:
        unreadable = "We could not parse the JSON body of your request."
        body = await self._body(request, respond, unreadable, request_problem)
        if body is None:
            return
        options = body.get("stream_options")
        wants_usage = isinstance(options, Mapping) and options.get("include_usage") is True
        streamed = body.get("stream") is True
        writer = ChunkWriter(
            wire_json.as_text(body.get("model")), usage=wants_usage or not streamed, done_marker=self._done_marker
        )
        await self._reply(request, respond, writer, whole, streamed=streamed)

    def _error_body(self, status: Status) -> Json:
        return error_body(status)

    def _with_unknown_fields(self, value: dict[str, Json]) -> dict[str, Json]:
        out = {**value, "field_of_tomorrow": {"deep": [1, None, "x"]}, "obfuscation": "xYz"}
        if "choices" in out:
            out["choices"] = [{**choice, "new_score": 0.5, "new_enum": "NEVER_SEEN"} for choice in out["choices"]]
        return out

    def _wait_headers(self, wait_s: float) -> dict[str, str]:
        return {"retry-after-ms": f"{wait_s * 1000:.9g}"}


class ChunkWriter:
    """Chunks as `chat.completion.chunk` events."""

    has_end = True

    def __init__(self, model: str = "gpt-test", *, usage: bool = True, done_marker: bool = True) -> None:
        self._model = model
        self._wants_usage = usage
        self._done_marker = done_marker
        self._usage: Usage | None = None
        self._begun = self._done = self._refusing = False
        self._streamed: set[int] = set()

    def events(self, chunk: Chunk) -> Iterator[WireEvent]:
        if not self._begun:
            self._begun = True
            yield self._choice({"role": "assistant", "content": ""})
        match chunk:
            case TextChunk(text, opaque):
                yield self._choice({"refusal": text} if fields_of(opaque).get("refusal") else {"content": text})
                self._refusing = self._refusing or bool(fields_of(opaque).get("refusal"))
            case ThinkingChunk(text, _, opaque):
                own = fields_of(opaque)
                field = own.pop("field", "reasoning_content")
                yield self._choice({**({field: text} if text else {}), **own})
            case CallStart(index, name, id, opaque):
                own = fields_of(opaque)
                function = {"name": name, "arguments": "", **own.pop("function", {})}
                yield self._choice(
                    {"tool_calls": [{"index": index, "id": id, "type": "function", "function": function, **own}]}
                )
            case CallDelta(index, fragment):
                self._streamed.add(index)
                yield self._fragment(index, fragment)
            case CallEnd(index, arguments):
                if arguments is not None and index not in self._streamed:
                    yield self._fragment(index, wire_json.encode(arguments).decode())
            case PartChunk(ProviderPart(opaque)):
                yield self._choice(fields_of(opaque))
            case UsageChunk(usage):
                self._usage = usage
                if self._done:
                    yield from self._usage_event()
            case Done(stop_reason, detail):
                self._done = True
                refused = stop_reason == "refusal" and self._refusing
                reason = detail if stop_reason == "refusal" and detail else _FINISH.get(stop_reason, stop_reason)
                yield self._choice({}, "stop" if refused else reason)
                yield from self._usage_event()
            case _:
                pass

    def finish(self) -> Iterator[WireEvent]:
        if self._done and self._done_marker:
            yield WireEvent("[DONE]")

    def raw(self, value: Json) -> WireEvent:
        return WireEvent(value)

    def error(self, status: Status) -> WireEvent:
        return WireEvent(error_body(status))

    def ping(self) -> WireEvent | None:
        return None

    def _fragment(self, index: int, text: str) -> WireEvent:
        return self._choice({"tool_calls": [{"index": index, "function": {"arguments": text}}]})

    def _choice(self, delta: Mapping[str, Json], reason: str | None = None) -> WireEvent:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return WireEvent({**self._about(), "choices": [choice], **({"usage": None} if self._wants_usage else {})})

    def _usage_event(self) -> Iterator[WireEvent]:
        if self._usage is not None and self._wants_usage:
            yield WireEvent({**self._about(), "choices": [], "usage": usage_body(self._usage)})

    def _about(self) -> dict[str, Json]:
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1_700_000_000,
            "model": self._model,
            "system_fingerprint": "fp_test",
        }


def usage_body(usage: Usage) -> dict[str, Json]:
    out: dict[str, Json] = {
        "prompt_tokens": usage.input or 0,
        "completion_tokens": usage.output or 0,
        "total_tokens": usage.total or 0,
    }
    prompt = {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write}
    if given := {name: count for name, count in prompt.items() if count is not None}:
        out["prompt_tokens_details"] = given
    if usage.reasoning is not None:
        out["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning}
    return out


def whole(events: Iterable[Json]) -> dict[str, Json]:
    """A stream's events as the one `chat.completion` that a request without `stream` gets."""
    message: dict[str, Json] = {"role": "assistant", "content": None, "refusal": None}
    calls: dict[int, dict[str, Json]] = {}
    choice: dict[str, Json] = {"index": 0, "logprobs": None, "finish_reason": None}
    out: dict[str, Json] = {}
    for event in events:
        out |= {key: value for key, value in event.items() if key != "choices" and value is not None}
        for got in event.get("choices", ()):
            choice["finish_reason"] = got.get("finish_reason") or choice["finish_reason"]
            for key, value in got.get("delta", {}).items():
                if key == "tool_calls":
                    for fragment in value:
                        known = calls.setdefault(fragment["index"], {})
                        given = {name: item for name, item in fragment.items() if name != "index" and item is not None}
                        calls[fragment["index"]] = merged(known, given) if known else given
                elif key != "role" and value:
                    message[key] = merged(message.get(key), value)
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return {**out, "object": "chat.completion", "choices": [{**choice, "message": message}]}


def error_body(status: Status) -> dict[str, Json]:
    quota = any("violations" in detail for detail in status.details)
    code = "insufficient_quota" if quota else status.status or _CODES.get(status.code)
    kind = "insufficient_quota" if quota else _TYPES.get(status.code, "server_error")
    return {"error": {"message": status.message, "type": kind, "param": None, "code": code}}


def request_problem(body: Mapping[str, Json]) -> str | None:
    """What the real service would not accept in a request, in its own terms."""
    if not isinstance(body.get("stream_options"), Mapping | None):
        return "Invalid type for 'stream_options': expected an object."
    return history_problem(body)


def history_problem(body: Mapping[str, Json]) -> str | None:
    messages: Sequence[Mapping[str, Json]] = body.get("messages") or ()
    if not messages:
        return (
            "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead."
        )
    waiting: list[str] = []
    for position, message in enumerate(messages):
        role = message.get("role")
        if role not in ("system", "developer", "user", "assistant", "tool"):
            return f"Invalid value: {role!r}. Supported values are: 'system', 'assistant', 'user', 'tool', and 'developer'."
        if role == "tool":
            if message.get("tool_call_id") not in waiting:
                return "Invalid parameter: messages with role 'tool' must be a response to a preceding message with 'tool_calls'."
            waiting.remove(message["tool_call_id"])
            if not isinstance(message.get("content"), str | list):
                return f"Invalid type for 'messages[{position}].content'."
            continue
        if waiting:
            return (
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
                f"The following tool_call_ids did not have response messages: {', '.join(waiting)}"
            )
        calls = message.get("tool_calls") or []
        if role == "assistant":
            if "tool_calls" in message and not calls:
                return f"Invalid 'messages[{position}].tool_calls': empty array."
            if message.get("content") is None and not calls and not message.get("refusal"):
                return f"Invalid value for 'content': expected a string, got null. (messages[{position}])"
        elif not message.get("content"):
            return f"Invalid 'messages[{position}].content': empty."
        for call in calls:
            if len(call["id"]) > 40:
                return f"Invalid 'messages[{position}].tool_calls[0].id': string too long. Expected a string with maximum length 40."
        waiting = [call["id"] for call in calls]
    if waiting:
        return f"The following tool_call_ids did not have response messages: {', '.join(waiting)}"
    return None


def _model_card(name: str) -> dict[str, Json]:
    return {"id": name, "object": "model", "created": 1_700_000_000, "owned_by": "trouper"}


def serve_openai(
    turns: Iterable[Turn] = (), **options: Unpack[OpenAiOptions]
) -> AbstractAsyncContextManager[TestServer]:
    """A Chat Completions server on the loopback interface while the block lasts; its address is `server.url + "/v1"`."""
    return serve(OpenAiApi(turns, **options))


def serve_openai_in_thread(
    turns: Iterable[Turn] = (), **options: Unpack[OpenAiOptions]
) -> AbstractContextManager[TestServer]:
    """The same for code without trio: `with serve_openai_in_thread(...) as server:`."""
    return serve_in_thread(OpenAiApi(turns, **options))
