"""The chaotic model, as those use it who test their own agents."""

from __future__ import annotations

from typing import Any

import pytest

from trouper import UsageError, tool
from trouper.testing import Chaos


@tool
async def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@pytest.mark.parametrize(
    ("tools", "told"),
    [
        ([add], "<Tool 'add'> in tools is no name"),
        ("add", "tools='add' is no list of names"),
        (5, "tools=5 is no list"),
    ],
)
def test_what_is_no_list_of_names_of_tools_is_refused_at_once(tools: Any, told: str) -> None:
    """With some seeds it was a turn with a broken chunk, with others calls of the tools 'a' and 'd'."""
    with pytest.raises(UsageError, match=told):
        Chaos(1, tools=tools)
