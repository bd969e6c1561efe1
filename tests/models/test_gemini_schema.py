"""M11: JSON Schema as Gemini takes it."""

from __future__ import annotations

from typing import Any

import pytest

from trouper.core.messages import ToolSpec
from trouper.models._errors import BadRequest
from trouper.models.gemini_request import declaration
from trouper.models.gemini_schema import InexpressibleSchema, checked_json_schema, openapi_schema


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string", "minLength": 1, "pattern": "a+"}, {"type": "STRING", "minLength": 1, "pattern": "a+"}),
        ({"type": ["integer", "null"]}, {"type": "INTEGER", "nullable": True}),
        ({"type": ["integer", "string"]}, {"anyOf": [{"type": "INTEGER"}, {"type": "STRING"}]}),
        (
            {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            {"type": "STRING", "nullable": True, "default": None},
        ),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, {"anyOf": [{"type": "STRING"}, {"type": "INTEGER"}]}),
        ({"const": "x"}, {"type": "STRING", "format": "enum", "enum": ["x"]}),
        ({"enum": [1, 2]}, {"type": "INTEGER", "enum": ["1", "2"]}),
        ({"enum": ["a", None]}, {"type": "STRING", "format": "enum", "enum": ["a"], "nullable": True}),
        (
            {"type": "array", "items": {"type": "number"}, "maxItems": 3},
            {"type": "ARRAY", "items": {"type": "NUMBER"}, "maxItems": 3},
        ),
        (
            {
                "$defs": {"P": {"type": "object", "properties": {"x": {"type": "integer"}}}},
                "$ref": "#/$defs/P",
                "description": "d",
            },
            {"type": "OBJECT", "properties": {"x": {"type": "INTEGER"}}, "description": "d"},
        ),
        (
            {
                "allOf": [
                    {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
                    {"properties": {"b": {}}, "required": ["b"]},
                ]
            },
            {"type": "OBJECT", "properties": {"a": {"type": "STRING"}, "b": {}}, "required": ["a", "b"]},
        ),
        (
            {"type": "object", "properties": {}, "additionalProperties": False, "$schema": "x"},
            {"type": "OBJECT", "properties": {}},
        ),
        (
            {"type": "object", "properties": {"$ref": {"type": "string"}}},
            {"type": "OBJECT", "properties": {"$ref": {"type": "STRING"}}},
        ),
    ],
)
def test_translation(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    assert openapi_schema(schema, "t") == expected


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"not": {"type": "string"}}, "#/not"),
        ({"type": "object", "properties": {"a": {"patternProperties": {}}}}, "#/properties/a/patternProperties"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "#/additionalProperties"),
        ({"type": "array", "prefixItems": [{}]}, "#/prefixItems"),
        ({"$ref": "https://example.com/schema"}, "#/$ref"),
        ({"$ref": "#/$defs/missing"}, "#/$ref"),
        ({"type": "integer", "exclusiveMinimum": 0}, "#/exclusiveMinimum"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "#/allOf/1/type"),
        ({"enum": ["a", 1]}, "#/enum"),
        ({"enum": [True]}, "#/enum"),
        ({"type": "strange"}, "#/type"),
        ({"type": "object", "properties": {"a": False}}, "#/properties/a"),
        (
            {"$defs": {"N": {"type": "object", "properties": {"next": {"$ref": "#/$defs/N"}}}}, "$ref": "#/$defs/N"},
            "#/properties/next",
        ),
    ],
)
def test_what_cannot_be_said_is_refused_by_place(schema: dict[str, Any], place: str) -> None:
    """M11: a clear error, before anything is sent."""
    with pytest.raises(InexpressibleSchema) as caught:
        openapi_schema(schema, "my_tool")
    assert repr(place) in caught.value.message
    assert "'my_tool'" in caught.value.message
    assert isinstance(caught.value, BadRequest)
    assert not caught.value.retryable


def test_googles_own_types_accept_the_translation() -> None:
    from google.genai import types

    schema = {
        "type": "object",
        "properties": {
            "when": {"type": ["string", "null"], "format": "date-time"},
            "kind": {"enum": ["a", "b"], "default": "a"},
            "places": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]}, "minItems": 1},
        },
        "required": ["places"],
    }
    types.Schema.model_validate(openapi_schema(schema, "t"))


def test_json_schema_is_sent_as_it_is() -> None:
    schema = {"type": "object", "properties": {"a": {"not": {"type": "null"}}}}
    assert checked_json_schema(schema, "t") is schema
    assert checked_json_schema({}, "t") == {"type": "object"}
    with pytest.raises(InexpressibleSchema, match="'t'"):
        checked_json_schema({"type": "array"}, "t")


def test_a_tool_without_arguments_says_nothing_about_them() -> None:
    spec = ToolSpec("now", "The time.", {"type": "object", "properties": {}})
    assert declaration(spec, "openapi") == {"name": "now", "description": "The time."}
