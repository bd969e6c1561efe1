"""Models: the protocol, what streams are made of, how providers fail, and the models that need no network.

The clients of providers (`Gemini`, `OpenAICompatible`, `Anthropic`) are imported when first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trouper._errors import MissingKey
from trouper.models._errors import (
    AuthFailed,
    BadRequest,
    ContextOverflow,
    HistoryRefused,
    MalformedReply,
    ModelError,
    ModelFault,
    NetworkFault,
    QuotaExceeded,
    RateLimited,
    ServerFault,
)
from trouper.models.chunks import (
    CallDelta,
    CallEnd,
    CallStart,
    Chunk,
    Done,
    KeepAlive,
    PartChunk,
    Switched,
    TextChunk,
    ThinkingChunk,
    UsageChunk,
)
from trouper.models.protocol import Model, ModelRequest, ToolChoice
from trouper.models.scripted import Scripted, call, drop, fail, raw_call, reply, stall, text, think

if TYPE_CHECKING:
    from trouper.models.anthropic import Anthropic
    from trouper.models.fallback import Fallback
    from trouper.models.gemini import Gemini
    from trouper.models.openai_compatible import OpenAICompatible
    from trouper.models.recorded import Cassette, CassetteMismatch, CassetteOver, Recorded, Recording, chunks_of
    from trouper.models.simulated import Simulated

_LAZY = {
    "Anthropic": "anthropic",
    "Cassette": "recorded",
    "CassetteMismatch": "recorded",
    "CassetteOver": "recorded",
    "Fallback": "fallback",
    "Gemini": "gemini",
    "OpenAICompatible": "openai_compatible",
    "Recorded": "recorded",
    "Recording": "recorded",
    "Simulated": "simulated",
    "chunks_of": "recorded",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(f"trouper.models.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'trouper.models' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


__all__ = [
    "Anthropic",
    "AuthFailed",
    "BadRequest",
    "CallDelta",
    "CallEnd",
    "CallStart",
    "Cassette",
    "CassetteMismatch",
    "CassetteOver",
    "Chunk",
    "ContextOverflow",
    "Done",
    "Fallback",
    "Gemini",
    "HistoryRefused",
    "KeepAlive",
    "MalformedReply",
    "MissingKey",
    "Model",
    "ModelError",
    "ModelFault",
    "ModelRequest",
    "NetworkFault",
    "OpenAICompatible",
    "PartChunk",
    "QuotaExceeded",
    "RateLimited",
    "Recorded",
    "Recording",
    "Scripted",
    "ServerFault",
    "Simulated",
    "Switched",
    "TextChunk",
    "ThinkingChunk",
    "ToolChoice",
    "UsageChunk",
    "call",
    "chunks_of",
    "drop",
    "fail",
    "raw_call",
    "reply",
    "stall",
    "text",
    "think",
]
