"""Trouper: an actor-model runtime for AI agents, built on trio.

    async with open_runtime("./state", model=Gemini("gemini-3-flash"), tools=[order_status]) as runtime:
        session = await runtime.session("customer-42")
        async with session.turn("Where is order 17?") as turn:
            async for event in turn:
                print(event)

The map of the package; imports point up this list only:

    _errors.py     the exception tree, by fault
    core/          pure: messages, events, commands, decide / evolve / outstanding
    reading.py     JSON -> values of the core
    writing.py     values of the core -> JSON
    codec.py       records <-> bytes
    redaction.py   secrets out, before anything is written
    threads.py     blocking work, out of the event loop's way
    home.py        the loop that a runtime belongs to
    foreign.py     what tools, clients and hooks raise ends their own call
    checks.py      what hosts and tools hand in, looked at where they do
    journal/       the log: bytes only
    actors/        trio: the kernel (mailbox, supervisor...), the journal writer, sessions and their children
    models/        the Model protocol and its clients
    tools/         the tool contract, guards, built-in tools
    stores/        profiles, secrets, key-value store, the memory's files and index
    roster.py      what the journal knows of every session
    services/      what a session offers its tools and its host
    subscription.py  following something from any point on
    block.py       `async with` blocks that say how they are meant
    past.py        what a live runtime reads back
    attached.py    files and media that go along with a prompt
    turn.py        a turn as users hold it
    session.py     a session as users hold it
    resident.py    a session in memory, and who holds on to it
    spending.py    the budget of all sessions together
    snapshots.py   when a snapshot is written, and of what
    ground.py      what all sessions of a runtime share
    arguments.py   what open_runtime was given
    host.py        a running Trouper as users hold it
    runtime.py     open_runtime: the nursery tree
    events.py      every event, by name
    replay/        journals, read only
    testing/       simulator, crash disk, invariants: for you too
    cli/           the command line
    __main__.py    the same, as `python -m trouper`
    docs.py        writes the pages of design/ that are made from the code
"""

from __future__ import annotations

# Nothing is imported yet, not even `typing`: the command line must be able to catch a Ctrl-C before anything that takes time.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trouper._errors import CommandRejected, ConfigError, InvalidName, TrouperError, UsageError, WorldError
    from trouper.core.messages import Fault, Media, Message, Usage
    from trouper.core.settings import Budget, Compaction, Deadlines, Limits, Retry
    from trouper.host import Runtime
    from trouper.models.anthropic import Anthropic
    from trouper.models.gemini import Gemini
    from trouper.models.openai_compatible import OpenAICompatible
    from trouper.models.scripted import Scripted
    from trouper.models.simulated import Simulated
    from trouper.runtime import open_runtime
    from trouper.session import Session
    from trouper.tools.context import ToolContext
    from trouper.tools.define import tool
    from trouper.tools.errors import ConnectionRequired, ToolError
    from trouper.tools.hooks import Hooks
    from trouper.tools.policy import Rule
    from trouper.tools.registry import Toolset
    from trouper.tools.results import ToolResult
    from trouper.turn import Turn, TurnFailed, TurnResult

__version__ = "0.1.0"

# Where each public name lives. Imported when first asked for: a program that only wants `@tool` should not wait for the runtime,
# and one that uses no provider should not wait for httpx.
_HOMES = {
    "Anthropic": "trouper.models.anthropic",
    "Budget": "trouper.core.settings",
    "CommandRejected": "trouper._errors",
    "Compaction": "trouper.core.settings",
    "ConfigError": "trouper._errors",
    "ConnectionRequired": "trouper.tools.errors",
    "Deadlines": "trouper.core.settings",
    "Fault": "trouper.core.messages",
    "Gemini": "trouper.models.gemini",
    "Hooks": "trouper.tools.hooks",
    "InvalidName": "trouper._errors",
    "Limits": "trouper.core.settings",
    "Media": "trouper.core.messages",
    "Message": "trouper.core.messages",
    "OpenAICompatible": "trouper.models.openai_compatible",
    "Retry": "trouper.core.settings",
    "Rule": "trouper.tools.policy",
    "Runtime": "trouper.host",
    "Scripted": "trouper.models.scripted",
    "Session": "trouper.session",
    "Simulated": "trouper.models.simulated",
    "ToolContext": "trouper.tools.context",
    "ToolError": "trouper.tools.errors",
    "ToolResult": "trouper.tools.results",
    "Toolset": "trouper.tools.registry",
    "TrouperError": "trouper._errors",
    "Turn": "trouper.turn",
    "TurnFailed": "trouper.turn",
    "TurnResult": "trouper.turn",
    "Usage": "trouper.core.messages",
    "UsageError": "trouper._errors",
    "WorldError": "trouper._errors",
    "open_runtime": "trouper.runtime",
    "tool": "trouper.tools.define",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'trouper' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


__all__ = [
    "Anthropic",
    "Budget",
    "CommandRejected",
    "Compaction",
    "ConfigError",
    "ConnectionRequired",
    "Deadlines",
    "Fault",
    "Gemini",
    "Hooks",
    "InvalidName",
    "Limits",
    "Media",
    "Message",
    "OpenAICompatible",
    "Retry",
    "Rule",
    "Runtime",
    "Scripted",
    "Session",
    "Simulated",
    "ToolContext",
    "ToolError",
    "ToolResult",
    "Toolset",
    "TrouperError",
    "Turn",
    "TurnFailed",
    "TurnResult",
    "Usage",
    "UsageError",
    "WorldError",
    "open_runtime",
    "tool",
]
