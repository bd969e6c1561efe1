"""Changing a root, from commands that mostly look at one: what a change takes is loaded when there is one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trouper.cli.loading import loading
from trouper.core.messages import Json


def change(
    root: Path, request: Json, tools: Sequence[str] | None = None, *, owner_only: str | None = None
) -> dict[str, Json]:
    """See `trouper.cli.hosting.change`."""
    with loading():
        from trouper.cli import hosting
    return hosting.change(root, request, tools, owner_only=owner_only)
