"""The tools that a session works with: those it was given, and what belongs to them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from trouper.tools.deferral import TOOL_SEARCH
from trouper.tools.policy import Rule
from trouper.tools.registry import Registry, ToolSource

#: How alike two names have to be for one to be meant by the other.
_ALIKE = 0.6


def equipped(sources: Iterable[ToolSource]) -> Registry:
    """A registry of these tools; and of those to spawn and look after runs, if any of them can run in the background (T13)."""
    registry = Registry(sources)
    if any(each.supports_background for each in registry):
        # Only here: all the built-in tools together take a while to import, and many a program needs none of them.
        from trouper.tools.builtin.background import TASK_TOOLS, spawn_background

        registry.add(*(each for each in (spawn_background, *TASK_TOOLS) if each.name not in registry))
    return registry


def rules_for_nothing(rules: Iterable[Rule], names: Sequence[str]) -> list[tuple[Rule, list[str]]]:
    """Rules that name a tool which is neither one of these nor built in, each with the names most like it: they guard nothing, and may be misspelt.

    A rule for a built-in tool that is not in use is none: it is there for the day when the tool is.
    """
    missing = [rule for rule in rules if rule.tool not in ("*", TOOL_SEARCH, *names)]
    if not missing:
        return []
    from trouper.tools.builtin import BUILTIN

    known = dict.fromkeys((*names, *BUILTIN))
    missing = [rule for rule in missing if rule.tool not in known]
    return [(rule, difflib.get_close_matches(rule.tool, known, cutoff=_ALIKE)) for rule in missing]
