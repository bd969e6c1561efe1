"""JSON Schema as Gemini takes it (M11).

Gemini knows two forms. `parametersJsonSchema` takes JSON Schema as it is, and is what we send unless told otherwise. `parameters` takes a
subset of OpenAPI's schema objects (types in capitals, `nullable`, no `$ref`, no `oneOf`); older models and some gateways know only
that one. `openapi_schema` translates to it, and refuses by name what cannot be said there: a tool whose arguments are described wrongly is worse
than one that cannot be offered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trouper.core.messages import Json
from trouper.models._errors import BadRequest

DEPTH_MAX = 32
_TYPES = frozenset({"string", "number", "integer", "boolean", "array", "object", "null"})
#: Mean the same in both forms.
_SAME = (
    "title",
    "description",
    "format",
    "pattern",
    "default",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "minProperties",
    "maxProperties",
    "minimum",
    "maximum",
    "required",
)
#: Notes for people and tools, which say nothing about what is valid.
_NOTES = frozenset(
    {
        "$schema", "$id", "$comment", "$anchor", "$defs", "definitions", "examples", "example", "deprecated", "readOnly", "writeOnly",
        "contentEncoding", "contentMediaType", "discriminator", "propertyOrdering", "nullable",
    }
)  # fmt: skip
_HANDLED = frozenset(
    {"type", "enum", "const", "items", "properties", "additionalProperties", "anyOf", "oneOf", "allOf", "$ref", *_SAME}
)


class InexpressibleSchema(BadRequest):
    """A tool's schema that Gemini has no words for."""


def openapi_schema(schema: Mapping[str, Json], subject: str) -> dict[str, Json]:
    """`schema` as the `Schema` of Gemini's API; `InexpressibleSchema` names the place of what has no counterpart there."""
    return _translated(schema, schema, subject, "#", ())


def checked_json_schema(schema: Mapping[str, Json], subject: str) -> Mapping[str, Json]:
    """`schema` for `parametersJsonSchema`: as it is, once it is known to describe an object."""
    kind = schema.get("type", "object")
    if kind != "object":
        raise _refused(subject, "#/type", f"arguments are an object, not {kind!r}")
    if "$schema" in schema or "type" not in schema:
        return {"type": "object", **{key: value for key, value in schema.items() if key != "$schema"}}
    return schema


def _translated(
    schema: Json, root: Mapping[str, Json], subject: str, place: str, seen: tuple[str, ...]
) -> dict[str, Json]:
    if schema is True or schema == {}:
        return {}
    if not isinstance(schema, Mapping):
        raise _refused(subject, place, f"{schema!r} is not a schema that Gemini can follow")
    if place.count("/") > DEPTH_MAX * 2:
        raise _refused(subject, place, "nested too deep")
    for word in schema:
        if word not in _HANDLED and word not in _NOTES and not word.startswith("x-"):
            raise _refused(subject, f"{place}/{word}", f"{word!r} has no counterpart in Gemini's schemas")
    if "$ref" in schema:
        target, name = _resolved(schema["$ref"], root, subject, place)
        if name in seen:
            raise _refused(subject, place, f"{name!r} refers to itself, which Gemini's schemas cannot")
        siblings = {key: value for key, value in schema.items() if key != "$ref"}
        return _translated({**target, **siblings}, root, subject, place, (*seen, name))
    if "allOf" in schema:
        return _translated(_merged(schema, root, subject, place), root, subject, place, seen)
    out: dict[str, Json] = {key: schema[key] for key in _SAME if key in schema}
    _put_type(schema, out, subject, place)
    _put_values(schema, out, subject, place)
    if "items" in schema:
        out["items"] = _translated(schema["items"], root, subject, f"{place}/items", seen)
    if "properties" in schema:
        out["properties"] = {
            name: _translated(part, root, subject, f"{place}/properties/{name}", seen)
            for name, part in schema["properties"].items()
        }
    if isinstance(extra := schema.get("additionalProperties"), Mapping) and extra:
        raise _refused(subject, f"{place}/additionalProperties", "a map with arbitrary keys has no counterpart")
    for word in ("anyOf", "oneOf"):
        if word in schema:
            _put_choice(schema[word], out, root, subject, f"{place}/{word}", seen)
    return out


def _put_type(schema: Mapping[str, Json], out: dict[str, Json], subject: str, place: str) -> None:
    kinds = schema.get("type")
    if kinds is None:
        if "properties" in schema:
            out["type"] = "OBJECT"
        elif "items" in schema:
            out["type"] = "ARRAY"
        return
    listed = [kinds] if isinstance(kinds, str) else list(kinds)
    unknown = [kind for kind in listed if not isinstance(kind, str) or kind.lower() not in _TYPES]
    if unknown:
        raise _refused(subject, f"{place}/type", f"{unknown[0]!r} is no JSON type")
    plain = [kind.upper() for kind in listed if kind.lower() != "null"]
    if len(plain) < len(listed) and plain:
        out["nullable"] = True
    if len(plain) <= 1:
        out["type"] = plain[0] if plain else "NULL"
    else:
        out["anyOf"] = [{"type": kind} for kind in plain]
    if schema.get("nullable") is True:
        out["nullable"] = True


def _put_values(schema: Mapping[str, Json], out: dict[str, Json], subject: str, place: str) -> None:
    if "const" in schema:
        values = [schema["const"]]
    elif "enum" in schema:
        values = list(schema["enum"])
    else:
        return
    if None in values:
        out["nullable"] = True
        values = [value for value in values if value is not None]
    if any(not isinstance(value, str | int | float) or isinstance(value, bool) for value in values):
        raise _refused(subject, f"{place}/enum", "only text and numbers can be listed as values")
    if not values:
        return
    # Gemini writes all listed values as text and takes their kind from `type`.
    out["enum"] = [value if isinstance(value, str) else str(value) for value in values]
    if "type" not in out:
        kinds = {_kind_of(value) for value in values}
        if len(kinds) > 1:
            raise _refused(subject, f"{place}/enum", "the listed values are of different kinds")
        out["type"] = kinds.pop()
    if out["type"] == "STRING":
        out["format"] = "enum"


def _kind_of(value: object) -> str:
    if isinstance(value, str):
        return "STRING"
    return "INTEGER" if isinstance(value, int) else "NUMBER"


def _put_choice(
    options: Json, out: dict[str, Json], root: Mapping[str, Json], subject: str, place: str, seen: tuple[str, ...]
) -> None:
    translated = [_translated(option, root, subject, f"{place}/{i}", seen) for i, option in enumerate(options)]
    plain = [option for option in translated if option.get("type") != "NULL"]
    if len(plain) < len(translated):
        out["nullable"] = True
    if len(plain) == 1:
        # "This or null" is so common that it has a form of its own.
        for key, value in plain[0].items():
            out.setdefault(key, value)
    elif plain:
        if "anyOf" in out:
            raise _refused(subject, place, "two choices at one place have no counterpart")
        out["anyOf"] = plain


def _merged(schema: Mapping[str, Json], root: Mapping[str, Json], subject: str, place: str) -> dict[str, Json]:
    """`allOf` as one schema, where its members do not contradict one another."""
    merged: dict[str, Any] = {key: value for key, value in schema.items() if key != "allOf"}
    for i, member in enumerate(schema["allOf"]):
        if isinstance(member, Mapping) and "$ref" in member:
            target, _ = _resolved(member["$ref"], root, subject, f"{place}/allOf/{i}")
            member = {**target, **{key: value for key, value in member.items() if key != "$ref"}}
        if not isinstance(member, Mapping):
            raise _refused(subject, f"{place}/allOf/{i}", f"{member!r} is not a schema")
        for key, value in member.items():
            if key == "properties":
                merged["properties"] = {**merged.get("properties", {}), **value}
            elif key == "required":
                merged["required"] = list(dict.fromkeys([*merged.get("required", ()), *value]))
            elif key not in merged or key in _NOTES or key in ("title", "description"):
                merged.setdefault(key, value)
            elif merged[key] != value:
                raise _refused(
                    subject, f"{place}/allOf/{i}/{key}", "members of allOf that disagree have no counterpart"
                )
    return merged


def _resolved(ref: Json, root: Mapping[str, Json], subject: str, place: str) -> tuple[Mapping[str, Json], str]:
    if not isinstance(ref, str) or not ref.startswith("#"):
        raise _refused(subject, f"{place}/$ref", f"{ref!r} points outside of this schema")
    found: Json = root
    for step in ref[1:].split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or step not in found:
            raise _refused(subject, f"{place}/$ref", f"{ref!r} points at nothing")
        found = found[step]
    if not isinstance(found, Mapping):
        raise _refused(subject, f"{place}/$ref", f"{ref!r} points at no schema")
    return found, ref


def _refused(subject: str, place: str, why: str) -> InexpressibleSchema:
    return InexpressibleSchema(
        f"the schema of {subject!r} cannot be given to Gemini: at {place!r}, {why}; simplify it, or use schemas='json'",
        provider="gemini",
    )
