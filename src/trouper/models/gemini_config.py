"""What users give as `config`, in the words of the wire: a mapping, or objects of `google.genai.types` (M7).

`google.genai` is not imported here: an object of its types is told by having `model_dump`, and whoever made one has imported it already.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from trouper._errors import ConfigError
from trouper.core.messages import Json, ToolSpec
from trouper.models.gemini_request import GeminiSettings

#: A mapping in camelCase or snake_case, or a `google.genai.types.GenerateContentConfig`.
GeminiConfig: TypeAlias = Any

#: Stand beside `contents`; everything else goes into `generationConfig`.
_TOP = frozenset(
    {
        "systemInstruction",
        "toolConfig",
        "safetySettings",
        "cachedContent",
        "labels",
        "serviceTier",
        "store",
        "modelArmorConfig",
    }
)
#: Orders to the official client, not to the model.
_CLIENT_ONLY = frozenset(
    {
        "httpOptions",
        "shouldReturnHttpResponse",
        "automaticFunctionCalling",
        "automaticContinuation",
        "continuationToken",
    }
)
#: Below these, keys are the user's own and are left alone.
_VERBATIM = frozenset(
    {
        "responseJsonSchema",
        "responseSchema",
        "parametersJsonSchema",
        "labels",
        "args",
        "response",
        "properties",
    }
)
_RENAMED = {"modelSelectionConfig": "modelConfig"}


def settings_of(config: GeminiConfig) -> GeminiSettings:
    if config is None:
        return GeminiSettings()
    given = _plain_config(config)
    generation: dict[str, Json] = {}
    top: dict[str, Json] = {}
    tools: list[Mapping[str, Json]] = []
    for name, value in given.items():
        if value is None or name in _CLIENT_ONLY:
            continue
        if name == "generationConfig":
            generation.update(value)
        elif name == "tools":
            tools.extend(value)
        elif name == "systemInstruction":
            top[name] = _content(value)
        elif name in _TOP:
            top[name] = value
        else:
            generation[_RENAMED.get(name, name)] = value
    if (generation.get("candidateCount") or 1) != 1:
        raise ConfigError("candidate_count must be 1: a turn has one reply; ask again for another")
    streamed = (top.get("toolConfig") or {}).get("functionCallingConfig") or {}
    if streamed.get("streamFunctionCallArguments"):
        raise ConfigError("stream_function_call_arguments is not supported; leave it out: calls arrive whole")
    return GeminiSettings(generation=generation, top=top, tools=tuple(tools))


def tool_specs(tools: Iterable[object]) -> tuple[ToolSpec, ...]:
    """The functions declared in `google.genai.types.Tool` and `FunctionDeclaration` objects (or mappings of their form), as ours."""
    specs: list[ToolSpec] = []
    for tool in tools:
        plain = _camel(_dump(tool))
        for declared in plain.get("functionDeclarations", ()) if "name" not in plain else (plain,):
            schema = declared.get("parametersJsonSchema")
            if schema is None:
                schema = json_schema(declared.get("parameters") or {"type": "OBJECT", "properties": {}})
            specs.append(ToolSpec(str(declared["name"]), str(declared.get("description") or ""), schema))
    return tuple(specs)


def json_schema(schema: Mapping[str, Json]) -> dict[str, Json]:
    """Gemini's own form of schema as JSON Schema: types in small letters, `nullable` as a type."""
    out = {key: value for key, value in schema.items() if key not in ("nullable", "propertyOrdering")}
    if isinstance(kind := out.get("type"), str):
        out["type"] = [kind.lower(), "null"] if schema.get("nullable") else kind.lower()
    if out.get("format") == "enum":
        del out["format"]
    if "properties" in out:
        out["properties"] = {name: json_schema(part) for name, part in out["properties"].items()}
    if "items" in out:
        out["items"] = json_schema(out["items"])
    if "anyOf" in out:
        out["anyOf"] = [json_schema(part) for part in out["anyOf"]]
    return out


def _plain_config(config: object) -> dict[str, Json]:
    if isinstance(config, Mapping):
        fields = dict(config)
    elif hasattr(config, "model_dump"):
        # Field by field: a schema may be a class and a tool a function, which do not dump.
        fields = {name: getattr(config, name) for name in type(config).model_fields}  # type: ignore[attr-defined]
    else:
        raise ConfigError(
            f"config {type(config).__name__!r} is neither a mapping nor a google.genai.types.GenerateContentConfig; "
            "write e.g. config={'temperature': 0.2}"
        )
    out: dict[str, Json] = {}
    for name, value in fields.items():
        if value is None:
            continue
        wire = _camel_name(name)
        if wire == "tools":
            out[wire] = [_hosted_tool(tool) for tool in value]
        elif wire == "responseSchema":
            out.update(_reply_schema(value))
        elif wire in _VERBATIM:
            out[wire] = _dump(value)
        elif wire not in _CLIENT_ONLY:
            out[wire] = _camel(_dump(value))
    return out


def _hosted_tool(tool: object) -> dict[str, Json]:
    if callable(tool) or not (isinstance(tool, Mapping) or hasattr(tool, "model_dump")):
        raise ConfigError(
            f"config.tools holds {tool!r}, which is no tool of Gemini's own; give functions to the runtime, as tools=[...]"
        )
    plain: dict[str, Json] = _camel(_dump(tool))
    return plain


def _reply_schema(schema: object) -> dict[str, Json]:
    if isinstance(schema, Mapping):
        upper = str(schema.get("type", "")).isupper()
        return {"responseSchema" if upper else "responseJsonSchema": dict(schema)}
    if hasattr(schema, "model_dump") and not isinstance(schema, type):
        return {"responseSchema": _dump(schema)}
    # A class or an annotation: only pydantic knows its schema, and whoever writes one for this SDK has it.
    from pydantic import TypeAdapter

    adapter: Any = TypeAdapter
    return {"responseJsonSchema": adapter(schema).json_schema()}


def _content(value: object) -> Json:
    """A system instruction in any form that the official client takes, as a content."""
    if isinstance(value, str):
        return {"parts": [{"text": value}]}
    if isinstance(value, Mapping):
        return {"parts": list(value["parts"])} if "parts" in value else {"parts": [value]}
    if isinstance(value, Sequence):
        return {"parts": [{"text": item} if isinstance(item, str) else item for item in value]}
    raise ConfigError(f"system_instruction {value!r} is neither text nor parts; give text")


def _dump(value: object) -> Any:
    """`value` as plain JSON values."""
    if hasattr(value, "model_dump") and not isinstance(value, type):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)
    if isinstance(value, Mapping):
        return {str(key): _dump(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_dump(item) for item in value]
    # Enums of the SDK's are text; others are asked for their value.
    return getattr(value, "value", value) if not isinstance(value, str | int | float | bool | None) else _text(value)


def _text(value: Any) -> Any:
    return str(value.value) if isinstance(value, str) and hasattr(value, "value") else value


def _camel(value: Any) -> Any:
    if isinstance(value, dict):
        return {(wire := _camel_name(key)): item if wire in _VERBATIM else _camel(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_camel(item) for item in value]
    return value


def _camel_name(name: str) -> str:
    return re.sub(r"_([a-z0-9])", lambda match: match[1].upper(), name)
