"""The tools that a session works with: those it was given, and what belongs to them."""

from __future__ import annotations

from collections.abc import Iterable

from trouper.tools.registry import Registry, ToolSource


def equipped(sources: Iterable[ToolSource]) -> Registry:
    """A registry of these tools; and of those to spawn and look after runs, if any of them can run in the background (T13)."""
    registry = Registry(sources)
    if any(each.supports_background for each in registry):
        # Only here: all the built-in tools together take a while to import, and many a program needs none of them.
        from trouper.tools.builtin.background import TASK_TOOLS, spawn_background

        registry.add(*(each for each in (spawn_background, *TASK_TOOLS) if each.name not in registry))
    return registry
