"""The scripted talk that every framework is given: what the fake model says, and what must come of it.

The model is stateless: its next move follows from the last message alone (the user's text, or the id of the last tool
result). So one model object serves any number of sessions, no rival pays for the script, and the plan survives
whatever a framework does with the history in between. No two calls of a turn are alike, so that no guard against
loops has reason to step in.
"""

from __future__ import annotations

import json
from functools import cache
from typing import NamedTuple

TOOL = "work"
TOOL_DOC = "Do one piece of work and return its value."
SYSTEM = "You are a helpful assistant."
DELTAS = tuple(f"word {i:02d} " for i in range(20))
HANG_AFTER = 5  # deltas that reach the caller before an interrupted stream falls silent
STEPS = 10
PARALLEL = 10
NAP_S = 0.010


class ToolUse(NamedTuple):
    id: str
    key: str

    @property
    def arguments(self) -> dict[str, str]:
        return {"key": self.key}

    @property
    def arguments_json(self) -> str:
        return json.dumps(self.arguments)


class Say(NamedTuple):
    """Text to stream, delta by delta; `hang` falls silent for good once the deltas are out."""

    deltas: tuple[str, ...]
    hang: bool = False


class Use(NamedTuple):
    """Tool calls to make, all in one reply."""

    calls: tuple[ToolUse, ...]


Move = Say | Use
DONE = Say(("done",))


class Plan(NamedTuple):
    """What one turn under a plan must come to; the works assert it for every turn that they time."""

    deltas: int
    model_calls: int
    tool_calls: int


PLANS = {
    "talk": Plan(len(DELTAS), 1, 0),
    "steps": Plan(1, STEPS + 1, STEPS),
    "parallel": Plan(1, 2, PARALLEL),
    "gate": Plan(1, 2, 1),
    "hang-stream": Plan(HANG_AFTER, 1, 0),
    "hang-tool": Plan(0, 1, 1),
}


def _step(plan: str, step: int, key: str) -> Use:
    return Use((ToolUse(f"{plan}.{step}.0", key),))


@cache  # made once, here and below: the script is not what is measured
def opening(text: str) -> Move:
    """The model's reply to the user's text, which is the name of a plan."""
    match text:
        case "talk":
            return Say(DELTAS)
        case "steps":
            return _step("steps", 1, "look-1")
        case "parallel":
            return Use(tuple(ToolUse(f"parallel.1.{i}", f"nap-{i}") for i in range(PARALLEL)))
        case "gate":
            return _step("gate", 1, "gate")
        case "hang-stream":
            return Say(DELTAS[:HANG_AFTER], hang=True)
        case "hang-tool":
            return _step("hang-tool", 1, "hang")
    raise AssertionError(f"the model was asked {text!r}, which is no plan; the last message got lost on the way")


@cache
def after(call_id: str) -> Move:
    """The model's reply to tool results, of which the last has this id."""
    plan, step, _ = call_id.split(".")
    if plan == "steps" and int(step) < STEPS:
        return _step("steps", int(step) + 1, f"look-{int(step) + 1}")
    return DONE


def final_text(plan: str) -> str:
    return "".join(DELTAS) if plan == "talk" else "done"
