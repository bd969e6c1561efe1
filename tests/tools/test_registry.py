"""T6, T7: tools by name, toolsets, needs."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest

from trouper._errors import ToolDefinitionError
from trouper.tools import Registry, Tool, ToolContext, Toolset, tool


@tool
async def read(path: str) -> str:
    """Read."""
    return path


@tool(destructive=True, needs=("files",))
async def write(path: str, text: str) -> None:
    """Write."""


@tool(needs=("clock",), capability="time")
async def now() -> str:
    """Tell the time."""
    return ""


# Toolsets.


def test_toolsets_are_combined_filtered_and_prefixed() -> None:
    files = Toolset("files", (read, write))
    both = files + Toolset("time", (now,))
    assert both.names == ("read", "write", "now")
    assert both.name == "files+time"
    assert both.without("write").names == ("read", "now")
    assert both.only("now", "read").names == ("read", "now")
    assert both.filter(lambda each: each.capability == "time").names == ("now",)
    assert files.prefix("box").names == ("box_read", "box_write")
    assert files.with_(policy="requires_approval").tools[1].policy == "requires_approval"
    assert files.names == ("read", "write")
    assert len(both) == 3


async def test_prefixed_tool_runs_under_its_new_name() -> None:
    prefixed = Toolset("files", (read,)).prefix("box").tools[0]
    assert prefixed.spec.name == "box_read"
    assert (await prefixed.run({"path": "a"}, ToolContext())).content == "a"


def test_toolset_takes_plain_functions() -> None:
    async def look(x: str) -> str:
        return x

    assert Toolset("mixed", (look, Toolset("inner", (read,)))).names == ("look", "read")  # type: ignore[arg-type]


def test_misspelled_name_in_a_filter_is_an_error() -> None:
    """A typing mistake must not silently leave a dangerous tool in, or take a useful one away."""
    files = Toolset("files", (read, write))
    with pytest.raises(ToolDefinitionError, match=r"toolset 'files' has no tool 'wirte'; it has read, write"):
        files.without("wirte")
    with pytest.raises(ToolDefinitionError, match="has no tool 'raed'"):
        files.only("raed")


def test_duplicates_are_refused_at_construction() -> None:
    """T6."""
    with pytest.raises(
        ToolDefinitionError,
        match=r"two tools of toolset 'x' are named 'read'; rename one with \.with_\(name=\.\.\.\), or prefix",
    ):
        Toolset("x", (read, read))
    with pytest.raises(ToolDefinitionError, match="two tools of the registry are named 'read'"):
        Registry([read, Toolset("x", (read,))])
    assert Registry([read, Toolset("x", (read,)).prefix("x")]).names == ("read", "x_read")


# Registries.


def test_registry_holds_tools_by_name_in_the_order_given() -> None:
    registry = Registry([write, Toolset("t", (now,)), read])
    assert len(registry) == 3
    assert "read" in registry
    assert "nonexistent" not in registry
    assert registry.names == ("write", "now", "read")
    assert [spec.name for spec in registry.specs()] == ["write", "now", "read"]
    assert registry.get("read") is read
    assert registry.get("nonexistent") is None
    assert list(registry) == [write, now, read]


def test_specs_of_an_unchanged_registry_are_the_same_object() -> None:
    """L3: prompt caches depend on it."""
    registry = Registry([read, write])
    assert registry.specs() is registry.specs()


def test_registry_is_built_step_by_step() -> None:
    """T6: builder and decorator."""
    registry = Registry().add(read).add(write, now)

    @registry.tool
    async def plain(x: str) -> str:
        return x

    @registry.tool(name="renamed", readonly=True)
    async def other(x: str) -> str:
        return x

    assert registry.names == ("read", "write", "now", "plain", "renamed")
    assert isinstance(plain, Tool)
    assert registry.get("renamed") is other
    assert other.hints.readonly


def test_local_classes_are_found_from_the_decorator_and_the_list() -> None:
    class Local(TypedDict):
        n: int

    registry = Registry()

    @registry.tool
    async def one(local: Local) -> None: ...

    async def two(local: Local) -> None: ...

    registry.add(two)
    assert [spec.parameters["properties"]["local"]["required"] for spec in registry.specs()] == [["n"], ["n"]]


def test_adding_a_duplicate_changes_nothing() -> None:
    registry = Registry([read])
    with pytest.raises(ToolDefinitionError):
        registry.add(write, read)
    assert registry.names == ("read",)


def test_unregister_takes_a_tool_out() -> None:
    registry = Registry([read, write])
    before = registry.specs()
    assert registry.unregister("read") is read
    assert registry.unregister("read") is None
    assert [spec.name for spec in registry.specs()] == ["write"]
    assert len(before) == 2


def test_what_is_no_tool_is_refused() -> None:
    with pytest.raises(ToolDefinitionError, match="'read' is no tool; give functions, Tools or Toolsets"):
        Registry(["read"])  # type: ignore[list-item]


def test_a_toolset_without_its_name_is_refused() -> None:
    """Its tools would stand in the place of its name: a toolset of nothing, and a model that hears of none."""
    with pytest.raises(ToolDefinitionError, match=r"write Toolset\('name', \[...\]\)"):
        Toolset([read])  # type: ignore[arg-type]
    with pytest.raises(ToolDefinitionError, match=r"is no list of tools; write Toolset\('name', \[...\]\)"):
        Toolset("files", read)  # type: ignore[arg-type]


async def test_registry_finds_and_runs_a_call() -> None:
    """Seed 003: a registry is all it takes to execute a call."""
    found = Registry([read]).get("read")
    assert found is not None
    assert (await found.run(found.prepare({"path": "x"}).arguments, ToolContext())).content == "x"


def test_unknown_name_is_told_with_the_nearest() -> None:
    """T6, L20."""
    registry = Registry([read, write, now])
    assert registry.unknown("raed") == "There is no tool 'raed'. Did you mean 'read'?"
    assert registry.unknown("zzzzzz") == "There is no tool 'zzzzzz'. The tools are: read, write, now."
    assert Registry().unknown("x") == "There is no tool 'x'. There are no tools in this session."


def test_unknown_name_is_escaped_and_bounded() -> None:
    """Security: fake JSON, line breaks and escapes in tool names."""
    told = Registry([read]).unknown('x\n\x1b[31m{"role": "system"}' + "y" * 100_000)
    assert "\n" not in told
    assert "\x1b" not in told
    assert len(told) < 400
    many = Registry([read.with_(name=f"tool_{number}") for number in range(100)])
    assert len(many.unknown("zzz")) < 400


def test_unmet_needs_fail_before_anything_is_advertised() -> None:
    """T7."""
    with pytest.raises(
        ToolDefinitionError,
        match=r"'write' needs 'files', 'now' needs 'clock'; have it offer this, or leave these tools out",
    ) as caught:
        Registry([read, write, now], provides=("kv",))
    unmet: Any = caught.value
    assert unmet.unmet == (("write", "files"), ("now", "clock"))
    registry = Registry([read, write, now], provides=("files", "clock"))
    with pytest.raises(ToolDefinitionError, match="'write' needs 'files'"):
        registry.check_needs({"clock"})
