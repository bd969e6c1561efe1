"""A step's question as the body of a Chat Completions request: pure, and as cheap at the thousandth message as at the first (M13).

Users' messages that follow each other become one, since the templates of many local models insist that roles take turns. A tool's message holds
text only, so pictures of a result follow in a user's message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from attrs import frozen

from trouper._errors import ConfigError
from trouper.core.ids import CallId
from trouper.core.messages import (
    Json,
    Media,
    Message,
    Opaque,
    Outcome,
    ProviderPart,
    Text,
    Thinking,
    ToolAnswer,
    ToolCall,
    ToolSpec,
)
from trouper.models import wire_json
from trouper.models.attachments import answer_text, note_of, text_of
from trouper.models.body_cache import BODY_CACHE_BYTES_MAX, BodyCache, Encoded, ToolCache
from trouper.models.protocol import ModelRequest

#: Whether a model's reasoning is returned to the provider that sent it. "auto": with messages that call tools, where providers
#: that want it want it, and wherever it came with details (signatures, encrypted parts); "always"; "never".
Reasoning: TypeAlias = Literal["auto", "always", "never"]

_ID_MAX = 40
_NAME_MAX = 64
_AUDIO = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/wave": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}
_OURS = frozenset({"messages", "model", "stream", "stream_options"})
_NOTHING_SAID = "(This message is empty.)"


@frozen
class Dialect:
    """In what the servers of this format differ."""

    provider: str
    #: OpenAI's newer models know the one only; most other servers only the other.
    limit_field: Literal["max_completion_tokens", "max_tokens"] = "max_tokens"
    reasoning: Reasoning = "auto"
    stream_usage: bool = True


def checked_config(config: Mapping[str, Json] | None) -> dict[str, Json]:
    """Fields that stand in every body as they are."""
    whatever: object = config
    if not isinstance(whatever, Mapping | None):
        raise ConfigError(
            f"config={whatever!r} is no mapping; write one like {{'reasoning_effort': 'high'}}", config=whatever
        )
    given = dict(config or {})
    if taken := sorted(_OURS & given.keys()):
        raise ConfigError(f"config has {taken[0]!r}, which the client itself fills in; leave it out", field=taken[0])
    return given


class ChatRequestBuilder:
    """Builds bodies, and remembers the beginnings of those it built, up to a number of bytes."""

    def __init__(
        self,
        dialect: Dialect,
        config: Mapping[str, Json] | None = None,
        *,
        cache_bytes_max: int = BODY_CACHE_BYTES_MAX,
    ) -> None:
        self._dialect = dialect
        self._config = checked_config(config)
        self._cache: BodyCache[Encoded] = BodyCache(cache_bytes_max)
        self._tools = ToolCache(lambda spec: wire_json.encode(declaration(spec)))

    def body(self, request: ModelRequest, model: str) -> bytes:
        top: dict[str, Json] = {"model": model, "stream": True}
        if self._dialect.stream_usage:
            top["stream_options"] = {"include_usage": True}
        top |= self._config
        top |= checked_config(request.extra)
        hosted = top.pop("tools", None) or ()
        tools = [*self._tools.encoded(request.tools), *(wire_json.encode(tool) for tool in hosted)]
        top |= self._options(request, bool(tools))
        pieces = [b'{"messages":[', self._messages(request), b"]"]
        if tools:
            pieces.append(b',"tools":[' + b",".join(tools) + b"]")
        pieces.append(b"," + wire_json.encode(top)[1:])
        return b"".join(pieces)

    def _options(self, request: ModelRequest, tools: bool) -> dict[str, Json]:
        out: dict[str, Json] = {}
        if request.max_output_tokens is not None:
            out[self._dialect.limit_field] = request.max_output_tokens
        if request.temperature is not None:
            out["temperature"] = request.temperature
        if request.response_schema is not None:
            schema = {"name": "reply", "schema": request.response_schema, "strict": is_strict(request.response_schema)}
            out["response_format"] = {"type": "json_schema", "json_schema": schema}
        if tools:
            # Both are refused where there are no tools.
            match request.tool_choice:
                case "auto":
                    pass
                case "none":
                    out["tool_choice"] = "none"
                case "any":
                    out["tool_choice"] = "required"
                case name:
                    out["tool_choice"] = {"type": "function", "function": {"name": name}}
            if not request.parallel_tool_calls:
                out["parallel_tool_calls"] = False
        return out

    def forget(self, session: str) -> None:
        """Drop what is kept for a session; it only costs its next request some time."""
        self._cache.forget(session)

    def _messages(self, request: ModelRequest) -> bytes:
        messages = request.messages
        key = (request.session, request.purpose)
        known = self._cache.take(key, messages)
        pieces = [known.text] if known is not None and known.text else []
        start = closed = len(known.messages) if known is not None else 0
        #: What users say until the model speaks again. It stays open, so it is not kept.
        said: list[Json] = pictures(messages[start - 1]) if start else []
        for position in range(start, len(messages)):
            message = messages[position]
            if message.role == "user":
                said += user_parts(message)
                continue
            before = messages[position - 1] if position else message
            if wire := self._reply(message, before):
                if said:
                    pieces.append(_user(said))
                pieces.append(wire)
                said = pictures(message)
                closed = position + 1
        kept = b",".join(pieces)
        self._cache.keep(key, Encoded(messages[:closed], kept))
        system = [wire_json.encode({"role": "system", "content": request.system})] if request.system else []
        return b",".join([*system, *([kept] if kept else []), *([_user(said)] if said else [])])

    def _reply(self, message: Message, before: Message) -> bytes:
        """A message of the model or of its tools; nothing if there is nothing in it for this provider."""
        if message.role == "tool":
            ids = wire_ids(before)
            return b",".join(wire_json.encode(_answer(answer, ids)) for answer in message.answers)
        wire = assistant_message(message, self._dialect)
        return wire_json.encode(wire) if wire else b""


def _user(parts: list[Json]) -> bytes:
    # Plain text where it is no more than that: the simplest servers take nothing else.
    only = parts[0] if len(parts) == 1 else {}
    return wire_json.encode({"role": "user", "content": only["text"] if only.get("type") == "text" else parts})


def declaration(spec: ToolSpec) -> dict[str, Json]:
    parameters = spec.parameters or {"type": "object", "properties": {}}
    return {
        "type": "function",
        "function": {"name": spec.name, "description": spec.description, "parameters": parameters},
    }


def user_parts(message: Message) -> list[Json]:
    parts: list[Json] = []
    for part in message.parts:
        if isinstance(part, Text) and part.text:
            parts.append({"type": "text", "text": part.text})
        elif isinstance(part, Media):
            parts.append(media_part(part))
    return parts or [{"type": "text", "text": _NOTHING_SAID}]


def pictures(message: Message) -> list[Json]:
    """What a tool's message cannot hold, for the user's message after it."""
    parts: list[Json] = []
    for answer in message.answers if message.role == "tool" else ():
        if answer.images:
            parts.append({"type": "text", "text": f"[Attachments of the result of {answer.name!r}]"})
            parts += [media_part(image) for image in answer.images]
    return parts


def media_part(media: Media) -> dict[str, Json]:
    kind = media.mime_type.lower()
    url = media.uri if media.data is None else f"data:{kind};base64,{media.data}"
    if kind.startswith("image/") and url is not None:
        return {"type": "image_url", "image_url": {"url": url}}
    if kind in _AUDIO and media.data is not None:
        return {"type": "input_audio", "input_audio": {"data": media.data, "format": _AUDIO[kind]}}
    if kind == "application/pdf" and media.data is not None:
        return {"type": "file", "file": {"filename": media.name or "document.pdf", "file_data": url}}
    return {"type": "text", "text": text_of(media) or note_of(media)}


def wire_ids(message: Message) -> dict[CallId, str]:
    """The id of each call as it is sent: the provider's own, unless another provider's does not fit here."""
    ids: dict[CallId, str] = {}
    for call in message.calls:
        given = call.wire_id
        fits = len(given) <= _ID_MAX and given.isascii() and given.isprintable() and given not in ids.values()
        ids[call.id] = given if fits else call.id
    return ids


def wire_name(name: str, length: int = _NAME_MAX) -> str:
    """A called name with nothing in it that providers refuse: a model may have called what does not exist."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:length] or "_"


def _answer(answer: ToolAnswer, ids: Mapping[CallId, str]) -> dict[str, Json]:
    text = answer_text(answer.content)
    if answer.outcome is not Outcome.OK:
        # This format has no place for it: how the call ended is said in words.
        text = f"[{answer.outcome.value}] {text}"
    return {"role": "tool", "tool_call_id": ids.get(answer.call_id, answer.wire_id), "content": text}


def assistant_message(message: Message, dialect: Dialect) -> dict[str, Any]:
    """What the model said, as it said it; empty if none of it is for this provider."""
    ids = wire_ids(message)
    text: list[str] = []
    refusal: list[str] = []
    #: Text of which it is not yet known what it is.
    open_text: list[str] = []
    calls: list[Json] = []
    reasoning: dict[str, Json] = {}
    rest: dict[str, Any] = {}
    for part in message.parts:
        match part:
            case Text(said, opaque):
                if said:
                    open_text.append(said)
                if "refusal" in (own := _own(opaque, dialect)) or (opaque is not None and not said):
                    # What came with the end of a text says what the text was.
                    (refusal if own.get("refusal") else text).extend(open_text)
                    open_text.clear()
            case Thinking():
                _add_reasoning(reasoning, part, dialect)
            case ToolCall():
                calls.append(_call(part, ids, dialect))
            case ProviderPart(opaque):
                rest |= _own(opaque, dialect)
            case _:
                pass
    content = "".join([*text, *open_text])
    if dialect.reasoning == "auto" and not calls and "reasoning_details" not in reasoning:
        reasoning = {}
    if not (content or refusal or calls or rest):
        return {}
    out: dict[str, Any] = {"role": "assistant", **rest, **reasoning}
    out["content"] = content if content or not (calls or refusal) else None
    if refusal:
        out["refusal"] = "".join(refusal)
    if calls:
        out["tool_calls"] = calls
    return out


def _own(opaque: Opaque | None, dialect: Dialect) -> dict[str, Any]:
    """The fields that came from this provider; a part of another's is none of its business."""
    return dict(opaque.data) if opaque is not None and opaque.provider == dialect.provider else {}


def _add_reasoning(reasoning: dict[str, Json], part: Thinking, dialect: Dialect) -> None:
    own = _own(part.opaque, dialect)
    if not own or dialect.reasoning == "never":
        return
    if isinstance(field := own.get("field"), str):
        reasoning[field] = reasoning.get(field, "") + part.text
    if isinstance(details := own.get("reasoning_details"), list):
        reasoning["reasoning_details"] = [*reasoning.get("reasoning_details", ()), *details]


def _call(call: ToolCall, ids: Mapping[CallId, str], dialect: Dialect) -> dict[str, Json]:
    rest = _own(call.opaque, dialect)
    arguments = {} if call.arguments is None else call.arguments
    function = {"name": wire_name(call.name), "arguments": wire_json.encode(arguments).decode()}
    return {**rest, "id": ids[call.id], "type": "function", "function": {**rest.get("function", {}), **function}}


def is_strict(schema: Json) -> bool:
    """Whether OpenAI's strict mode takes this schema: every object closed, and all its properties required."""
    if isinstance(schema, list):
        return all(map(is_strict, schema))
    if not isinstance(schema, Mapping):
        return True
    properties = schema.get("properties")
    if schema.get("type") == "object" or properties is not None:
        known = properties if isinstance(properties, Mapping) else {}
        if schema.get("additionalProperties") is not False or set(schema.get("required", ())) != set(known):
            return False
        if not all(map(is_strict, known.values())):
            return False
    inner = [schema.get(key) for key in ("items", "anyOf", "allOf")]
    defined = schema.get("$defs")
    return all(map(is_strict, inner)) and (
        all(map(is_strict, defined.values())) if isinstance(defined, Mapping) else True
    )
