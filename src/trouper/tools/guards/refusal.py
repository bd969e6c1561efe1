"""The one exception of the guards."""

from __future__ import annotations

from typing import Any

from trouper.tools.errors import ToolError


class Refused(ToolError):
    """A guard said no. The model reads the message: what was refused, and what to do instead; never a path of the host."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.facts = facts
