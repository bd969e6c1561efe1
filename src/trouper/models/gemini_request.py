"""A step's question as the body of a Gemini request: pure, and as cheap at the thousandth message as at the first (M7, M8, M11).

What was encoded for a session's last request is the beginning of the next body; `body_cache` keeps it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from attrs import define, field, frozen

from trouper._errors import ConfigError
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
from trouper.models.attachments import note_of
from trouper.models.body_cache import BODY_CACHE_BYTES_MAX, BodyCache, ToolCache
from trouper.models.gemini_errors import PROVIDER
from trouper.models.gemini_schema import checked_json_schema, openapi_schema
from trouper.models.protocol import ModelRequest

#: "json": schemas are sent as they are; "openapi": translated for models and gateways that know nothing else (M11).
SchemaForm: TypeAlias = Literal["json", "openapi"]

_ONE_CALL = "Call at most one function in each reply, and wait for its result before you call another."
#: What Google has one write in the place of a signature that there is none of.
_UNSIGNED = "skip_thought_signature_validator"
#: Of the types that begin with `application/`, those that it takes.
_DOCUMENTS = frozenset(
    f"application/{kind}"
    for kind in ("pdf", "json", "rtf", "x-javascript", "x-python", "x-python-code", "x-typescript")
)
_NAME_MAX = 64
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:/-]*\Z")


@frozen
class GeminiSettings:
    """What a client sends with every request, in the wire's own words; `gemini_config` makes it from what users give."""

    generation: Mapping[str, Json] = field(factory=dict)
    #: safetySettings, cachedContent, labels, toolConfig...: all that stands beside `contents`.
    top: Mapping[str, Json] = field(factory=dict)
    #: Tools that run at the provider: search, code execution...
    tools: tuple[Mapping[str, Json], ...] = ()


def model_path(model: str) -> str:
    """`models/<name>`; names that already say what they are stay as they are."""
    given: object = model
    if not isinstance(given, str) or not _MODEL_NAME.match(given) or ".." in given:
        raise ConfigError(f"{model!r} is not a model's name; write one like 'gemini-3-flash'", model=model)
    return model if model.startswith(("models/", "tunedModels/")) else f"models/{model}"


def is_of_today(model: str) -> bool:
    """Since Gemini 3 a function's response may hold pictures, which stood beside it before; and the first call of a step has to be signed."""
    match = re.search(r"gemini-(\d+)", model)
    return match is not None and int(match[1]) >= 3


@define
class _Encoded:
    messages: Sequence[Message] = ()
    #: All contents, a piece for each message, the last content still open at its end. Only ever extended: joined once, into a body.
    pieces: list[bytes] = field(factory=list)
    size: int = 0
    #: Whose content the last one is.
    role: str = ""


class RequestBuilder:
    """Builds bodies, and remembers the beginnings of those it built, up to a number of bytes."""

    def __init__(
        self,
        settings: GeminiSettings | None = None,
        *,
        schemas: SchemaForm = "json",
        cache_bytes_max: int = BODY_CACHE_BYTES_MAX,
    ) -> None:
        self._settings = settings or GeminiSettings()
        self._schemas: SchemaForm = schemas
        self._cache: BodyCache[_Encoded] = BodyCache(cache_bytes_max)
        self._declared = ToolCache(lambda spec: wire_json.encode(declaration(spec, schemas)))

    def body(self, request: ModelRequest, model: str, extra: GeminiSettings | None = None) -> bytes:
        """`extra`: this request's own settings, on top of the client's."""
        settings = self._settings
        top = {**settings.top, **extra.top} if extra else dict(settings.top)
        contents = self._contents(request, is_of_today(model))
        pieces = [b'{"contents":[', *contents.pieces, b"]}]" if contents.role else b"]"]
        # What is cached at the provider has its system text and tools with it, and must not be given others.
        cached = "cachedContent" in top
        if not cached and (system := _system(request, top)) is not None:
            top["systemInstruction"] = system
        tools = (*settings.tools, *(extra.tools if extra else ()))
        if not cached and (request.tools or tools):
            pieces.append(b',"tools":[' + self._tools(request.tools, tools) + b"]")
            if (config := _tool_config(request, top.get("toolConfig"))) is not None:
                top["toolConfig"] = config
        if cached:
            top.pop("toolConfig", None)
            top.pop("systemInstruction", None)
        generation = {**settings.generation, **(extra.generation if extra else {}), **self._generation(request)}
        if generation:
            top["generationConfig"] = generation
        if top:
            pieces.append(b"," + wire_json.encode(top)[1:])
        else:
            pieces.append(b"}")
        return b"".join(pieces)

    def _contents(self, request: ModelRequest, of_today: bool) -> _Encoded:
        key = (request.session, request.purpose, of_today)
        messages = request.messages
        encoded = self._cache.take(key, messages) or _Encoded()
        for message in messages[len(encoded.messages) :]:
            _add(encoded, message, of_today)
        encoded.messages = messages
        self._cache.keep(key, encoded)
        return encoded

    def forget(self, session: str) -> None:
        """Drop what is kept for a session; it only costs its next request some time."""
        self._cache.forget(session)

    def _tools(self, specs: tuple[ToolSpec, ...], hosted: tuple[Mapping[str, Json], ...]) -> bytes:
        pieces = []
        if specs:
            pieces.append(b'{"functionDeclarations":[' + b",".join(self._declared.encoded(specs)) + b"]}")
        pieces.extend(wire_json.encode(tool) for tool in hosted)
        return b",".join(pieces)

    def _generation(self, request: ModelRequest) -> dict[str, Json]:
        out: dict[str, Json] = {}
        if request.max_output_tokens is not None:
            out["maxOutputTokens"] = request.max_output_tokens
        if request.temperature is not None:
            out["temperature"] = request.temperature
        if request.response_schema is not None:
            out["responseMimeType"] = "application/json"
            if self._schemas == "json":
                out["responseJsonSchema"] = request.response_schema
            else:
                out["responseSchema"] = openapi_schema(request.response_schema, "the reply")
        return out


def _add(encoded: _Encoded, message: Message, of_today: bool) -> None:
    parts = [part for part in map_parts(message, of_today) if part]
    if not parts:
        return
    text = wire_json.encode(parts)[1:-1]
    role = "model" if message.role == "assistant" else "user"
    if role == encoded.role:
        # Gemini wants its two roles to take turns: what follows in the same role joins the content before it.
        piece = b"," + text
    else:
        piece = (b"]}," if encoded.role else b"") + b'{"role":"' + role.encode() + b'","parts":[' + text
        encoded.role = role
    encoded.pieces.append(piece)
    encoded.size += len(piece)


def declaration(spec: ToolSpec, schemas: SchemaForm) -> dict[str, Json]:
    out: dict[str, Json] = {"name": spec.name, "description": spec.description}
    if schemas == "json":
        out["parametersJsonSchema"] = checked_json_schema(spec.parameters, spec.name)
    elif spec.parameters.get("properties") or "$ref" in spec.parameters or "allOf" in spec.parameters:
        # An object without properties is refused by models that know this form only: no arguments are said by leaving it out.
        out["parameters"] = openapi_schema(spec.parameters, spec.name)
    return out


def _system(request: ModelRequest, top: Mapping[str, Json]) -> Json | None:
    if request.system:
        parts: list[Json] = [{"text": request.system}]
    elif isinstance(given := top.get("systemInstruction"), Mapping):
        parts = list(given.get("parts", ()))
    else:
        parts = []
    if request.tools and not request.parallel_tool_calls:
        # Gemini has no switch for this: it has to be told (L8).
        parts.append({"text": _ONE_CALL})
    return {"parts": parts} if parts else None


def _tool_config(request: ModelRequest, given: Json) -> Json | None:
    match request.tool_choice:
        case "auto":
            return given
        case "none":
            calling: dict[str, Json] = {"mode": "NONE"}
        case "any":
            calling = {"mode": "ANY"}
        case name:
            calling = {"mode": "ANY", "allowedFunctionNames": [name]}
    return {**(given or {}), "functionCallingConfig": calling}


def map_parts(message: Message, of_today: bool) -> list[dict[str, Any]]:
    """A message's parts on the wire, in order; empty ones stand for what this provider is not sent."""
    parts = [_part(part, of_today) for part in message.parts]
    if message.role == "tool" and not of_today:
        # After all the responses: those must stand together.
        parts.extend(_media(image) for answer in message.answers for image in answer.images)
    if message.calls and of_today:
        # Another model's calls, an older one's, which may sign what stands before them, or calls whose signatures were given up: without this word the provider refuses them.
        next(part for part in parts if "functionCall" in part).setdefault("thoughtSignature", _UNSIGNED)
    return parts


def _part(part: object, of_today: bool) -> dict[str, Any]:
    match part:
        case Text(text, opaque):
            rest = _own(opaque)
            return {**rest, "text": text} if text or rest else {}
        case Thinking(text, _, opaque):
            # Another provider's signature means nothing here, and is not sent.
            rest = _own(opaque)
            return {**rest, "text": text, "thought": True} if text or rest else {}
        case ToolCall():
            rest = _own(part.opaque)
            call = {
                **rest.pop("functionCall", {}),
                "id": part.wire_id,
                "name": wire_name(part.name),
                "args": _object(part.arguments),
            }
            return {**rest, "functionCall": call}
        case ToolAnswer():
            return {"functionResponse": _response(part, of_today)}
        case Media():
            return _media(part) if _is_shown(part) else {"text": note_of(part)}
        case ProviderPart(opaque):
            return _own(opaque)
        case _:
            return {}


def wire_name(name: str) -> str:
    """A called name with nothing in it that Gemini refuses: a model may have called what does not exist."""
    clean = re.sub(r"[^A-Za-z0-9_.:-]", "_", name)
    return (clean if re.match("[A-Za-z_]", clean) else f"_{clean}")[:_NAME_MAX]


def _object(arguments: Json) -> Json:
    """Gemini takes nothing but an object here; a model that wrote something else still sees what it wrote."""
    if isinstance(arguments, Mapping):
        return arguments
    return {} if arguments is None else {"arguments": arguments}


def _own(opaque: Opaque | None) -> dict[str, Any]:
    """The fields that came from this provider; a part of another's is none of its business."""
    return dict(opaque.data) if opaque is not None and opaque.provider == PROVIDER else {}


def _response(answer: ToolAnswer, of_today: bool) -> dict[str, Any]:
    # "output" and "error" are the two keys that Gemini gives a meaning to; a result that has either of its own is thus not mistaken.
    key = "output" if answer.outcome is Outcome.OK else "error"
    out: dict[str, Any] = {"id": answer.wire_id, "name": wire_name(answer.name), "response": {key: answer.content}}
    if of_today and (images := [image for image in map(_media, answer.images) if image]):
        # Within a response there is room for the picture itself only.
        out["parts"] = [{kind: image[kind] for kind in ("inlineData", "fileData") if kind in image} for image in images]
    return out


def _is_shown(media: Media) -> bool:
    """Whether Gemini takes it inline. A type that it does not know has this request refused, and every later one."""
    kind = media.mime_type.lower()
    return media.data is None or not kind.startswith("application/") or kind in _DOCUMENTS


def _media(media: Media) -> dict[str, Any]:
    rest = _own(media.opaque)
    if media.data is not None:
        return {**rest, "inlineData": {**rest.get("inlineData", {}), "mimeType": media.mime_type, "data": media.data}}
    if media.uri is not None:
        return {**rest, "fileData": {**rest.get("fileData", {}), "mimeType": media.mime_type, "fileUri": media.uri}}
    return {}
