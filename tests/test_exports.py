"""The public surface: what is promised is there, by name, and importing it is cheap."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import get_type_hints

import pytest

import trouper
from trouper import _HOMES

PROMISED = {
    "open_runtime", "tool", "ToolError", "ConnectionRequired", "ToolResult", "Budget", "Limits",
    "Gemini", "OpenAICompatible", "Anthropic", "Simulated", "Scripted", "Runtime", "Session", "TurnResult",
}  # fmt: skip
PUBLIC_MODULES = (
    "trouper",
    "trouper.events",
    "trouper.models",
    "trouper.tools",
    "trouper.replay",
    "trouper.testing",
    "trouper.actors",
)


def test_every_public_name_is_there_and_has_one_home() -> None:
    assert set(trouper.__all__) == set(_HOMES)
    assert set(trouper.__all__) >= PROMISED
    for name in trouper.__all__:
        assert getattr(trouper, name).__name__ == name
    assert len(trouper.__all__) <= 36, "about 25 names at the top; put the rest into trouper.events, .models, .tools..."


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = trouper.no_such_name


def test_submodules_offer_what_the_api_page_lists() -> None:
    from trouper import events, models, replay, testing, tools

    assert {"TextDelta", "TurnEnded", "CallStarted"} <= set(events.__all__)
    assert {"Recorded", "Fallback", "ModelRequest"} <= set(models.__all__)
    assert {"Rule", "Hooks", "Toolset"} <= set(tools.__all__)
    assert hasattr(replay, "open_journal")
    assert {"CrashDisk", "Chaos", "simulate", "check_invariants"} <= set(testing.__all__)


def test_everything_that_a_session_tells_has_a_public_name_and_a_type() -> None:
    """api.md: whoever iterates a turn, watches a session or follows its events can import each of them, and is told by a type checker what there is."""
    from trouper import Session, Turn, codec, events
    from trouper.actors.audience import SessionEvent
    from trouper.core.live import LiveEvent
    from trouper.core.memory import MemoryEvent
    from trouper.core.session import Event

    told = {each.__name__ for union in (Event, LiveEvent, MemoryEvent) for each in codec.members(union)}
    assert told <= set(events.__all__)
    assert get_type_hints(Turn.__anext__)["return"] == events.Event == events.RecordedEvent | events.LiveEvent
    assert get_type_hints(SessionEvent)["event"] == events.RecordedEvent
    assert get_type_hints(Session.watch)["return"] == Iterator[AsyncIterator[events.Event]]


@pytest.mark.parametrize(
    "first",
    ["testing.simulate", "import trouper.testing.simulation", "from trouper.testing import SimulationFailed"],
)
def test_the_testing_kits_names_stay_what_they_are(first: str) -> None:
    """api.md: whoever asks a second time gets the function again, and not the module that it is from."""
    program = f"from trouper import testing\n{first}\nprint(type(testing.simulate), type(testing.strategies), testing.strategies.__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "<class 'function'> <class 'module'> trouper.testing.strategies\n"


def test_importing_trouper_imports_nothing_heavy() -> None:
    """`import trouper` and a first turn must not load a provider's SDK, pydantic, httpx or a terminal library."""
    program = """
import json, sys
import trio, trouper
trouper.open_runtime, trouper.tool, trouper.Scripted, trouper.Simulated
heavy = ["google.genai", "pydantic", "mcp", "rich", "httpx", "openai", "anthropic", "sqlite3", "watchfiles", "hypothesis"]
print(json.dumps([name for name in heavy if name in sys.modules]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_every_public_name_says_what_it_is_for() -> None:
    """Classes, functions, and the methods and properties that a user sees; what a protocol describes need not be described again."""
    from trouper.actors.ground import Ground
    from trouper.journal.disk import Disk
    from trouper.models import Model

    silent = []
    for module in map(importlib.import_module, PUBLIC_MODULES):
        assert module.__doc__, module.__name__
        for name in module.__all__:
            public = getattr(module, name)
            if not inspect.isclass(public) and not inspect.isfunction(public):
                continue
            # Not getdoc: a class would inherit that of its base, which says nothing of itself.
            if not public.__doc__:
                silent.append(f"{module.__name__}.{name}")
            for part in [part for part in dir(public) if not part.startswith("_")] if inspect.isclass(public) else ():
                found = inspect.getattr_static(public, part)
                function = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
                if not inspect.isfunction(function) or not function.__module__.startswith("trouper"):
                    continue
                sources = (public, Model, Disk, Ground)
                if not any(inspect.getdoc(getattr(each, part, None)) for each in sources if hasattr(each, part)):
                    silent.append(f"{module.__name__}.{name}.{part}")
    assert silent == []
