"""Settings that make no sense are refused where they are written."""

from __future__ import annotations

from typing import Any

import pytest

from trouper import Budget, ConfigError, Limits


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        (Limits, {"parallel_calls": 0}),
        (Limits, {"subscriber_events": 0}),
        (Limits, {"max_steps": -1}),
        (Limits, {"max_steps": "5"}),
        (Limits, {"tool_timeout_s": -1.0}),
        (Budget, {"tokens": -1}),
        (Budget, {"tokens": "1000"}),
        (Budget, {"inline_s": "x"}),
        (Budget, {"wall_s": "30"}),
    ],
)
def test_a_setting_that_makes_no_sense_is_named_with_what_would(kind: Any, setting: dict[str, Any]) -> None:
    (name,) = setting
    with pytest.raises(ConfigError, match=rf"{kind.__name__}\.{name}=.* makes no sense; give a .*number of at least"):
        kind(**setting)


def test_zero_means_no_cap_on_steps() -> None:
    """L2"""
    assert Limits(max_steps=0).max_steps == 0
