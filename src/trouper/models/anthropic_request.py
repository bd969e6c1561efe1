"""A step's question as the body of an Anthropic Messages request: pure, and as cheap at the thousandth message as at the first (M14).

Roles take turns, so neighbours of one role are joined; the results of tools thereby come first in the user's content, as they must. Blocks that came
from Anthropic (signed and redacted thinking, citations, its own tools' calls and results) go back as they came; those of other providers are left out.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

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
from trouper.models._errors import BadRequest
from trouper.models.anthropic_errors import PROVIDER
from trouper.models.attachments import answer_text, note_of, text_of
from trouper.models.body_cache import BODY_CACHE_BYTES_MAX, BodyCache, Encoded, ToolCache
from trouper.models.protocol import ModelRequest

#: How long what is cached at the provider lives; `None`: nothing is marked to be cached.
CacheLife: TypeAlias = Literal["5m", "1h"] | None
#: What becomes of thinking from before. "kept": sent as it came. "checked": sent, and the provider drops what it no longer takes.
#: "left_out": not sent at all. The latter two are for histories that were changed since (compacted, masked).
ThinkingForm: TypeAlias = Literal["kept", "checked", "left_out"]

#: The first version of the API that refuses them.
SAMPLING_REFUSED_SINCE = "2026-10-21"
SAMPLING = ("temperature", "top_p", "top_k")
BINDING_BETA = "thinking-binding-controls-2026-08-01"

_IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_OURS = frozenset({"messages", "model", "stream", "max_tokens"})
_NAME_MAX = 128
_NOTHING_SAID = "(This message is empty.)"
_NOTHING_TOLD = "(The call failed, and said nothing.)"


def checked_config(config: Mapping[str, Json] | None, api_version: str) -> dict[str, Json]:
    """Fields that stand in every body as they are."""
    whatever: object = config
    if not isinstance(whatever, Mapping | None):
        raise ConfigError(
            f"config={whatever!r} is no mapping; write one like {{'thinking': {{'type': 'adaptive'}}}}", config=whatever
        )
    given = dict(config or {})
    if taken := sorted(_OURS & given.keys()):
        raise ConfigError(f"config has {taken[0]!r}, which the client itself fills in; leave it out", field=taken[0])
    if api_version >= SAMPLING_REFUSED_SINCE and (refused := sorted(given.keys() & set(SAMPLING))):
        raise ConfigError(_no_sampling(refused[0], api_version), field=refused[0])
    return given


def _no_sampling(field: str, api_version: str) -> str:
    return (
        f"Anthropic's API of version {api_version!r} takes no {field!r}; leave it out, or, "
        "for a model that still has it, give the client api_version='2023-06-01'"
    )


class MessagesRequestBuilder:
    """Builds bodies, and remembers the beginnings of those it built, up to a number of bytes."""

    def __init__(
        self,
        config: Mapping[str, Json] | None = None,
        *,
        max_tokens: int,
        api_version: str,
        cache: CacheLife = "5m",
        cache_bytes_max: int = BODY_CACHE_BYTES_MAX,
    ) -> None:
        self._config = checked_config(config, api_version)
        self._max_tokens = max_tokens
        self._api_version = api_version
        self._mark = b',"cache_control":' + wire_json.encode(_cache_control(cache)) if cache is not None else b""
        self._cache: BodyCache[Encoded] = BodyCache(cache_bytes_max)
        self._tools = ToolCache(lambda spec: wire_json.encode(declaration(spec)))

    def body(self, request: ModelRequest, model: str, thinking: ThinkingForm = "kept") -> bytes:
        if request.temperature is not None and self._api_version >= SAMPLING_REFUSED_SINCE:
            raise BadRequest(_no_sampling("temperature", self._api_version), provider=PROVIDER)
        top: dict[str, Json] = {"model": model, "stream": True, "max_tokens": self._max_tokens, **self._config}
        top |= checked_config(request.extra, self._api_version)
        if request.max_output_tokens is not None:
            top["max_tokens"] = request.max_output_tokens
        if request.temperature is not None:
            top["temperature"] = request.temperature
        if request.response_schema is not None:
            form = {"type": "json_schema", "schema": request.response_schema}
            top["output_config"] = {**top.get("output_config", {}), "format": form}
        if thinking == "checked":
            # Where it was not mentioned, these models think adaptively anyway.
            given = top.get("thinking") or {"type": "adaptive"}
            top["thinking"] = {**given, "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
        system = _system(request, top)
        messages, called = self._messages(request, thinking == "left_out")
        tools, choice = self._tools_and_choice(request, top)
        if called and not tools:
            tools, choice = _gone_tools(request)
        if choice is not None:
            top["tool_choice"] = choice
        pieces: list[bytes | memoryview] = [b'{"messages":[', *messages, b"]"]
        if tools:
            pieces.append(b',"tools":[' + b",".join(self._marked_last(tools)) + b"]")
        if system:
            pieces.append(b',"system":[' + b",".join(self._marked_last(system)) + b"]")
        pieces.append(b"," + wire_json.encode(top)[1:])
        return b"".join(pieces)

    def can_check_thinking(self, request: ModelRequest) -> bool:
        """Whether this request's own settings of thinking leave room for the provider's check."""
        given = {**self._config, **request.extra}.get("thinking")
        return given is None or (isinstance(given, Mapping) and given.get("type") in ("adaptive", "enabled"))

    def _marked_last(self, blocks: list[bytes]) -> list[bytes]:
        """With a cache breakpoint at the end of the last one, unless it has one of its own."""
        last = blocks[-1]
        if not self._mark or b'"cache_control"' in last:
            return blocks
        return [*blocks[:-1], last[:-1] + self._mark + b"}"]

    def _tools_and_choice(self, request: ModelRequest, top: dict[str, Json]) -> tuple[list[bytes], Json | None]:
        hosted = [wire_json.encode(tool) for tool in top.pop("tools", None) or ()]
        tools = [*hosted, *self._tools.encoded(request.tools)]
        if not tools:
            return [], None
        choice: dict[str, Json] | None
        match request.tool_choice:
            case "auto":
                choice = None if request.parallel_tool_calls else {"type": "auto"}
            case "none" | "any" as kind:
                choice = {"type": kind}
            case name:
                choice = {"type": "tool", "name": name}
        if choice is not None and choice["type"] != "none" and not request.parallel_tool_calls:
            choice["disable_parallel_tool_use"] = True
        return tools, choice

    def forget(self, session: str) -> None:
        """Drop what is kept for a session; it only costs its next request some time."""
        self._cache.forget(session)

    def _messages(self, request: ModelRequest, without_thinking: bool) -> tuple[list[bytes | memoryview], bool]:
        """In pieces, which together are the messages: a long history is copied as seldom as can be. And whether they hold calls."""
        messages = request.messages
        key = (request.session, request.purpose, without_thinking)
        known = self._cache.take(key, messages) or Encoded((), b"")
        role, called, pieces = known.role, known.called, []
        for position in range(len(known.messages), len(messages)):
            message = messages[position]
            blocks = map_blocks(message, messages[position - 1] if position else message, without_thinking)
            if not blocks:
                continue
            called = called or message.role == "tool"
            wire_role = "assistant" if message.role == "assistant" else "user"
            joined = wire_json.encode(blocks)[1:-1]
            if wire_role == role:
                pieces.append(b"," + joined)
            else:
                pieces.append((b"]}," if role else b"") + b'{"role":"' + wire_role.encode() + b'","content":[' + joined)
                role = wire_role
        new = b"".join(pieces)
        self._cache.keep(key, Encoded(messages, known.text + new if new else known.text, role, called))
        # Two breakpoints: where the last request ended, which is cached by now, and where this one does.
        old = self._marked(known.text, known.role) if known.text else []
        end: list[bytes | memoryview] = [b"]}"] if role else []
        return [*old, *(self._marked(new, role) if new else []), *end], called

    def _marked(self, text: bytes, role: str) -> list[bytes | memoryview]:
        """Whole blocks, the last with a cache breakpoint if it is a user's: thinking takes none."""
        return [memoryview(text)[:-1], self._mark, b"}"] if self._mark and role == "user" else [text]


def _gone_tools(request: ModelRequest) -> tuple[list[bytes], Json | None]:
    """Calls in a history want their tools declared, though there be none any more."""
    names = dict.fromkeys(wire_name(call.name) for message in request.messages for call in message.calls)
    gone = [wire_json.encode(declaration(ToolSpec(name, "No longer available.", {}))) for name in names]
    return gone, {"type": "none"} if gone else None


def _cache_control(life: CacheLife) -> dict[str, Json]:
    return {"type": "ephemeral"} if life == "5m" else {"type": "ephemeral", "ttl": life}


def declaration(spec: ToolSpec) -> dict[str, Json]:
    return {
        "name": spec.name,
        "description": spec.description,
        "input_schema": {"type": "object", **spec.parameters},
    }


def _system(request: ModelRequest, top: dict[str, Json]) -> list[bytes]:
    given = top.pop("system", None)
    if request.system and request.system.strip():
        given = request.system
    blocks = [{"type": "text", "text": given}] if isinstance(given, str) else given or []
    return [wire_json.encode(block) for block in blocks]


def wire_name(name: str) -> str:
    """A called name with nothing in it that Anthropic refuses: a model may have called what does not exist."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:_NAME_MAX] or "_"


def wire_ids(message: Message) -> dict[CallId, str]:
    """The id of each call as it is sent. Only Anthropic's own are known to be unique in the whole conversation, as they must be; else it is ours."""
    return {
        call.id: clean_id(call.wire_id if _tagged(call.opaque) else call.id) for call in message.calls
    }  # fmt: skip


def clean_id(given: str) -> str:
    clean = re.sub(r"[^A-Za-z0-9_-]", "_", given)
    return clean if clean == given else f"{clean}_{zlib.crc32(given.encode('utf-8', 'replace')):08x}"


def map_blocks(message: Message, before: Message, without_thinking: bool) -> list[dict[str, Any]]:
    """A message's blocks on the wire, in order; none if there is nothing in it for this provider."""
    match message.role:
        case "tool":
            ids = wire_ids(before)
            # Pictures of a failure come after the results, which have to be first.
            pictures = [block for answer in message.answers for block in _pictures_of_failure(answer)]
            return [_result(answer, ids) for answer in message.answers] + pictures
        case "user":
            blocks = [block for part in message.parts for block in _user_block(part)]
            return blocks or [{"type": "text", "text": _NOTHING_SAID}]
        case "assistant":
            blocks = _assistant_blocks(message, without_thinking)
            # Thinking alone is no message.
            return blocks if any(block["type"] not in ("thinking", "redacted_thinking") for block in blocks) else []


def _user_block(part: object) -> list[dict[str, Any]]:
    match part:
        case Text(text):
            # Blank text is refused.
            return [{"type": "text", "text": text}] if text.strip() else []
        case Media():
            return [media_block(part)]
        case _:
            return []


def _assistant_blocks(message: Message, without_thinking: bool) -> list[dict[str, Any]]:
    ids = wire_ids(message)
    blocks: list[dict[str, Any]] = []
    sealable = False
    for part in message.parts:
        if isinstance(part, Text) and not part.text and _tagged(part.opaque):
            # What came with the end of a text block (citations) is a part of its own, and belongs to the text before it.
            if sealable:
                blocks[-1] |= _own(part.opaque)
            sealable = False
        elif not (without_thinking and isinstance(part, Thinking)):
            new = _assistant_block(part, ids)
            sealable = isinstance(part, Text) and bool(new)
            blocks += new
    return blocks


def _assistant_block(part: object, ids: Mapping[CallId, str]) -> list[dict[str, Any]]:
    match part:
        case Text(text, opaque):
            return [{**_own(opaque), "type": "text", "text": text}] if text.strip() else []
        case Thinking(text, signature, opaque):
            own = _own(opaque)
            if own.get("type") == "redacted_thinking":
                return [own]
            # A signature of another provider means nothing here, nor does thinking that was never signed.
            signed = _tagged(opaque) and signature
            return [{**own, "type": "thinking", "thinking": text, "signature": signature}] if signed else []
        case ToolCall():
            given = part.arguments
            # Nothing but an object is taken here; a model that wrote something else still sees what it wrote.
            arguments = given if isinstance(given, Mapping) else {} if given is None else {"arguments": given}
            call = {"type": "tool_use", "id": ids[part.id], "name": wire_name(part.name), "input": arguments}
            return [{**_own(part.opaque), **call}]
        case ProviderPart(opaque):
            own = _own(opaque)
            return [own] if "type" in own else []
        case _:
            # Neither pictures nor documents are taken from an assistant.
            return []


def _tagged(opaque: Opaque | None) -> bool:
    return opaque is not None and opaque.provider == PROVIDER


def _own(opaque: Opaque | None) -> dict[str, Any]:
    """The fields that came from this provider; a part of another's is none of its business."""
    return dict(opaque.data) if opaque is not None and opaque.provider == PROVIDER else {}


def _result(answer: ToolAnswer, ids: Mapping[CallId, str]) -> dict[str, Any]:
    out: dict[str, Any] = {"type": "tool_result", "tool_use_id": ids.get(answer.call_id) or clean_id(answer.call_id)}
    text = answer_text(answer.content)
    if answer.outcome is not Outcome.OK:
        # Of a failure nothing but text is taken, and some there must be.
        return {**out, "content": text if text.strip() else _NOTHING_TOLD, "is_error": True}
    blocks = [{"type": "text", "text": text}] if text.strip() else []
    blocks += [media_block(image) for image in answer.images]
    if blocks:
        out["content"] = text if not answer.images else blocks
    return out


def _pictures_of_failure(answer: ToolAnswer) -> list[dict[str, Any]]:
    if answer.outcome is Outcome.OK or not answer.images:
        return []
    told = {"type": "text", "text": f"[Attachments of the result of {answer.name!r}]"}
    return [told, *map(media_block, answer.images)]


def media_block(media: Media) -> dict[str, Any]:
    kind = media.mime_type.lower()
    own = _own(media.opaque)
    if kind in _IMAGES or (kind.startswith("image/") and media.data is None):
        if (source := _source(media, kind)) is not None:
            return {**own, "type": "image", "source": source}
    elif kind == "application/pdf" and (source := _source(media, kind)) is not None:
        titled = {"title": media.name} if media.name else {}
        return {**own, "type": "document", "source": source, **titled}
    text = text_of(media)
    if text is not None and text.strip():
        titled = {"title": media.name} if media.name else {}
        return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}, **titled}
    return {"type": "text", "text": note_of(media)}


def _source(media: Media, kind: str) -> dict[str, Any] | None:
    if media.data is not None:
        return {"type": "base64", "media_type": kind, "data": media.data}
    if media.uri is None:
        return None
    # An id of its Files API, or an address.
    return (
        {"type": "file", "file_id": media.uri} if media.uri.startswith("file_") else {"type": "url", "url": media.uri}
    )
