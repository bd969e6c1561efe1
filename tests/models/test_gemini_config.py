"""M7: what users give as config, their own way or in the official SDK's objects."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from trouper._errors import ConfigError
from trouper.core.messages import Message, Text, ToolSpec
from trouper.models.chunks import Done, TextChunk
from trouper.models.gemini_config import settings_of, tool_specs
from trouper.models.gemini_request import RequestBuilder
from trouper.models.protocol import ModelRequest
from trouper.testing.server import serve_gemini_in_thread


def test_a_mapping_in_either_spelling() -> None:
    expected = settings_of(
        {"temperature": 0.1, "topP": 0.5, "thinkingConfig": {"thinkingBudget": 0}, "safetySettings": []}
    )
    assert (
        settings_of(
            {"temperature": 0.1, "top_p": 0.5, "thinking_config": {"thinking_budget": 0}, "safety_settings": []}
        )
        == expected
    )
    assert expected.generation == {"temperature": 0.1, "topP": 0.5, "thinkingConfig": {"thinkingBudget": 0}}
    assert expected.top == {"safetySettings": []}


def test_generation_config_may_be_spelt_out() -> None:
    assert settings_of({"generationConfig": {"topK": 3}, "seed": 1}).generation == {"topK": 3, "seed": 1}


def test_keys_of_schemas_and_labels_are_the_users_own() -> None:
    got = settings_of({"response_json_schema": {"properties": {"my_name": {}}}, "labels": {"team_a": "x"}})
    assert got.generation == {"responseJsonSchema": {"properties": {"my_name": {}}}}
    assert got.top == {"labels": {"team_a": "x"}}


def test_objects_of_the_official_sdk_become_what_its_client_would_send() -> None:
    """M7: compared with what Google's own client sends for the same object."""
    from google import genai
    from google.genai import types

    config = types.GenerateContentConfig(
        system_instruction="Be brief.",
        temperature=0.3,
        top_k=7,
        stop_sequences=["END"],
        thinking_config=types.ThinkingConfig(include_thoughts=True, thinking_budget=100),
        response_mime_type="application/json",
        response_json_schema={"type": "object", "properties": {"a_b": {"type": "string"}}},
        safety_settings=[
            types.SafetySetting(
                category=types.HarmCategory.HARM_CATEGORY_HARASSMENT, threshold=types.HarmBlockThreshold.BLOCK_NONE
            )
        ],
        tools=[types.Tool(google_search=types.GoogleSearch()), types.Tool(code_execution=types.ToolCodeExecution())],
        tool_config=types.ToolConfig(
            function_calling_config=types.FunctionCallingConfig(mode=types.FunctionCallingConfigMode.AUTO)
        ),
        cached_content=None,
        response_modalities=["TEXT"],
        media_resolution=types.MediaResolution.MEDIA_RESOLUTION_LOW,
        labels={"team": "x"},
    )
    with serve_gemini_in_thread([[TextChunk("x"), Done("end_turn")]]) as server:
        client = genai.Client(api_key="k", http_options=types.HttpOptions(base_url=server.url))
        client.models.generate_content(model="m", contents="hi", config=config)
        client.close()
    theirs = server.requests[0].json
    ours = json.loads(RequestBuilder(settings_of(config)).body(ModelRequest((Message("user", (Text("hi"),)),)), "m"))
    # They name a role there, which has no meaning.
    theirs["systemInstruction"].pop("role")
    # They write some inner names with underscores; the service reads both.
    thinking = theirs["generationConfig"]["thinkingConfig"]
    assert thinking == {"include_thoughts": True, "thinking_budget": 100}
    theirs["generationConfig"]["thinkingConfig"] = {"includeThoughts": True, "thinkingBudget": 100}
    assert ours == theirs


def test_a_class_as_response_schema() -> None:
    from google.genai import types
    from pydantic import BaseModel

    class Answer(BaseModel):
        value: int

    got = settings_of(types.GenerateContentConfig(response_mime_type="application/json", response_schema=Answer))
    assert got.generation["responseJsonSchema"]["properties"]["value"]["type"] == "integer"
    got = settings_of(types.GenerateContentConfig(response_schema=types.Schema(type=types.Type.STRING)))
    assert got.generation["responseSchema"] == {"type": "STRING"}


def test_declared_functions_become_tool_specs() -> None:
    """M7: `google.genai.types` objects are accepted for tools."""
    from google.genai import types

    declared = types.FunctionDeclaration(
        name="look",
        description="Look.",
        parameters=types.Schema(
            type=types.Type.OBJECT,
            properties={"at_place": types.Schema(type=types.Type.STRING, nullable=True, max_length=5)},
            required=["at_place"],
        ),
    )
    other = types.FunctionDeclaration(name="g", parameters_json_schema={"type": "object", "properties": {"x_y": {}}})
    assert tool_specs([types.Tool(function_declarations=[declared]), other]) == (
        ToolSpec(
            "look",
            "Look.",
            {
                "type": "object",
                "properties": {"at_place": {"type": ["string", "null"], "maxLength": 5}},
                "required": ["at_place"],
            },
        ),
        ToolSpec("g", "", {"type": "object", "properties": {"x_y": {}}}),
    )


@pytest.mark.parametrize(
    "config",
    [
        {"candidateCount": 2},
        {"tools": [print]},
        "temperature=1",
        {"toolConfig": {"functionCallingConfig": {"streamFunctionCallArguments": True}}},
        {"systemInstruction": 7},
    ],
)
def test_what_makes_no_sense_is_refused_at_once(config: Any) -> None:
    with pytest.raises(ConfigError):
        settings_of(config)


def test_the_official_sdk_is_not_imported_for_our_own_client() -> None:
    """M7: it costs 0.5-0.9 s and 40 MiB; nor is httpx, before the first request."""
    code = (
        "import sys\n"
        "from trouper.models.gemini import Gemini\n"
        "Gemini('gemini-3-flash', api_key='k', config={'temperature': 1})\n"
        "print([name for name in ('google.genai', 'pydantic', 'httpx', 'google.auth') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
