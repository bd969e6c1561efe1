"""Deferred tools (T8): past a number of tools, the schemas of those marked deferrable are left out, and a `tool_search` tool brings them up.

A stub has the tool's name and the first sentence of its description, so the model knows that it is there. A search answers with full schemas, so the tool
can be called in the same turn, although the specs of a turn stay fixed (L3); from the next turn on the spec is the full one. What has been revealed is
session state, derived from the results of `tool_search` by `revealed_by`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Annotated

from trouper.core.messages import Json, ToolSpec
from trouper.tools.context import ToolContext
from trouper.tools.contract import Tool
from trouper.tools.define import tool
from trouper.tools.schema import Param

#: With more tools than this, deferrable ones are deferred.
DEFER_OVER = 15
TOOL_SEARCH = "tool_search"
RESULTS_MAX = 10
_STUB_DESCRIPTION_MAX = 160
_WORD = re.compile(r"[a-z0-9]+")
_STUB_PARAMETERS: dict[str, Json] = {"type": "object"}


def is_deferring(tools: Collection[Tool], defer_over: int = DEFER_OVER) -> bool:
    return len(tools) > defer_over and any(each.deferrable for each in tools)


def advertised(
    tools: Collection[Tool], revealed: frozenset[str] = frozenset(), defer_over: int = DEFER_OVER
) -> tuple[ToolSpec, ...]:
    """What the model is offered: every tool at its place, deferred ones as stubs, and the search at the end."""
    if not is_deferring(tools, defer_over):
        return tuple(each.spec for each in tools)
    specs = [_stub(each) if each.deferrable and each.name not in revealed else each.spec for each in tools]
    if not any(each.name == TOOL_SEARCH for each in tools):
        specs.append(search_tool().spec)
    return tuple(specs)


def _stub(deferred: Tool) -> ToolSpec:
    first, stop, _ = deferred.description.partition(". ")
    short = first + ("." if stop else "")
    if len(short) > _STUB_DESCRIPTION_MAX:
        short = short[:_STUB_DESCRIPTION_MAX] + "..."
    return ToolSpec(
        deferred.name, f"{short} (Parameters not shown: call {TOOL_SEARCH} for them first.)", _STUB_PARAMETERS
    )


def search(tools: Iterable[Tool], query: str, limit: int) -> list[Tool]:
    """The tools that fit the query best: exact names first, then by the words of name, description and parameters."""
    words = set(_WORD.findall(query.lower()))
    names = {part.strip().lower() for part in re.split(r"[,\s]+", query)}
    scored = []
    for index, each in enumerate(tools):
        name_words = set(_WORD.findall(each.name.lower()))
        description_words = set(_WORD.findall(each.description.lower()))
        parameter_words = set(_WORD.findall(" ".join(each.parameters.get("properties", ())).lower()))
        score = 3 * len(words & name_words) + 2 * len(words & description_words) + len(words & parameter_words)
        if each.name.lower() in names:
            score += 100
        if score:
            scored.append((-score, index, each))
    return [each for _, _, each in sorted(scored, key=lambda item: item[:2])[:limit]]


def revealed_by(content: Json) -> frozenset[str]:
    """The tools that an answer of `tool_search` has brought up."""
    found = content.get("tools") if isinstance(content, dict) else None
    if not isinstance(found, list):
        return frozenset()
    return frozenset(each["name"] for each in found if isinstance(each, dict) and isinstance(each.get("name"), str))


@lru_cache(maxsize=1)
def search_tool() -> Tool:
    """The `tool_search` tool: one for all registries, it searches the one of its context."""

    @tool(
        name=TOOL_SEARCH,
        display_name="Tool Search",
        readonly=True,
        idempotent=True,
        open_world=False,
        needs=("registry",),
    )
    async def tool_search(
        query: Annotated[
            str, Param("Words that describe what is to be done, or names of tools", min_length=1, max_length=400)
        ],
        context: ToolContext,
        limit: Annotated[int, Param("How many tools to show at most", ge=1, le=RESULTS_MAX)] = 5,
    ) -> Json:
        """Find tools whose parameters are not shown, and learn how to call them."""
        registry = context.registry
        found = search((each for each in registry if each.deferrable), query, limit)
        if not found:
            return {
                "tools": [],
                "note": f"Nothing fits. The deferred tools are: {', '.join(each.name for each in registry if each.deferrable)[:2000]}",
            }
        return {
            "tools": [
                {"name": each.name, "description": each.description, "parameters": each.parameters} for each in found
            ]
        }

    return tool_search
