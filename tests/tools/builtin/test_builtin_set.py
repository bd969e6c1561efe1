"""Which tools there are, and what every one of them must have."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trouper.tools import Registry, Tool
from trouper.tools.builtin import BUILTIN, OPT_IN, default_tools

DEFAULT_NAMES = [
    *(
        "get_current_time",
        "echo",
        "report_progress",
        "add",
        "subtract",
        "multiply",
        "divide",
        "get_weather",
        "get_forecast",
    ),
    *(
        "write_todos",
        "read_file",
        "write_file",
        "edit_file",
        "list_directory",
        "grep_files",
        "delete_file",
        "stat_file",
        "web_fetch",
    ),
]


def test_default_set_is_the_eighteen() -> None:
    """T12."""
    assert [each.name for each in default_tools()] == DEFAULT_NAMES
    assert len(default_tools()) == 18


def test_powerful_tools_are_by_choice() -> None:
    """T13: nothing that runs programs, asks, or wakes up is there by default."""
    assert {each.name for each in OPT_IN}.isdisjoint(DEFAULT_NAMES)
    assert {"run_command", "bash", "kv_store", "secret_store", "ask_user", "set_timer", "finish"} <= {
        each.name for each in OPT_IN
    }


def test_all_fit_in_one_registry() -> None:
    assert set(Registry(BUILTIN.values()).names) == set(BUILTIN)


@pytest.mark.parametrize("tool", BUILTIN.values(), ids=lambda tool: tool.name)
def test_every_tool_is_described_and_strict(tool: Tool) -> None:
    """T12: display name, hints, strict schema; each parameter says what it is."""
    assert tool.display_name
    assert len(tool.description) > 10
    assert tool.parameters["additionalProperties"] is False
    assert tool.hints.readonly or tool.hints.destructive is not None or tool.hints.idempotent
    assert tool.hints.open_world is not None
    for name, schema in tool.parameters["properties"].items():
        assert schema.get("description"), f"{tool.name}.{name} has no description"
    tool.validator  # noqa: B018 - compiles the schema, or raises


def test_tools_that_run_programs_ask_first() -> None:
    assert BUILTIN["run_command"].policy == BUILTIN["bash"].policy == "requires_approval"
    assert BUILTIN["run_command"].supports_background


def test_importing_the_tools_loads_no_heavy_library() -> None:
    script = "import sys, trouper.tools.builtin; print([name for name in ('re2', 'httpx', 'httpcore', 'h11', 'ssl', 'idna') if name in sys.modules])"
    # trio itself needs ssl and idna.
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(eval(ended.stdout)) <= {"ssl", "idna"}
