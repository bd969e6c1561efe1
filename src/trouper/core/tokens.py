"""Estimating tokens: ASCII/4 rounded up, plus one for every other character; 8 a call, 16 a result (L26).

Rough on purpose. What a provider reports replaces the guess: see `anchored` in `compaction`.
"""

from __future__ import annotations

from trouper.core.messages import Json, Media, Message, ProviderPart, Text, Thinking, ToolAnswer, ToolCall

CALL_TOKENS = 8
RESULT_TOKENS = 16
#: What the common providers count for an image or a page, give or take.
MEDIA_TOKENS = 1_000
#: What most arguments and results are made of, besides text.
_SMALL = frozenset({int, float, bool, type(None)})


def estimate_text(text: str) -> int:
    if text.isascii():
        return (len(text) + 3) // 4
    ascii_count = len(text.encode("ascii", "ignore"))
    return (ascii_count + 3) // 4 + len(text) - ascii_count


def estimate_json(value: Json) -> int:
    """As if it were written out as JSON, without writing it out."""
    # No `match`, here and below: each of its patterns costs a look-up, and every message comes by.
    if type(value) in _SMALL:
        return 1
    if isinstance(value, str):
        return estimate_text(value)
    if isinstance(value, dict):
        total = len(value)
        for key, inner in value.items():
            total += estimate_text(str(key)) + estimate_json(inner)
        return total
    if isinstance(value, list | tuple):
        return len(value) + sum(map(estimate_json, value))
    return 1


def estimate_message(message: Message) -> int:
    total = 0
    for part in message.parts:
        if type(part) is Text:
            total += estimate_text(part.text)
        elif type(part) is ToolCall:
            total += CALL_TOKENS + estimate_text(part.name) + estimate_json(part.arguments)
        elif type(part) is ToolAnswer:
            total += RESULT_TOKENS + estimate_json(part.content) + MEDIA_TOKENS * len(part.images)
        elif type(part) is Thinking:
            total += estimate_text(part.text) + (estimate_text(part.signature) if part.signature else 0)
        elif type(part) is Media:
            total += MEDIA_TOKENS
        elif type(part) is ProviderPart:
            total += estimate_json(dict(part.opaque.data))
    return total
