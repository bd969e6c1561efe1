"""The one exception of the guards."""

from __future__ import annotations

from typing import Any


class Refused(Exception):
    """A guard said no. The message is for the model to read: what was refused, and what to do instead; never a path of the host."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts
