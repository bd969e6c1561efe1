"""Memory: scope and key to any JSON value, with a summary, metadata and a time to live (B21, B22). Searching text is the store's; here is what is remembered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import TypeAlias, assert_never

from trouper._errors import CommandRejected
from trouper.core.ids import check_name
from trouper.core.lifecycle import Table, move
from trouper.core.messages import Json
from trouper.core.values import changed as change
from trouper.core.values import frozen

#: As JSON text. Larger things belong into files, with their path remembered.
VALUE_MAX_CHARS = 262_144
SUMMARY_MAX_CHARS = 2_000
METADATA_MAX_CHARS = 16_384
KEYS_MAX = 10_000
TTL_MAX_S = 100 * 366 * 86_400.0
DEPTH_MAX = 100


class MemoryState(Enum):
    KEPT = "kept"
    FORGOTTEN = "forgotten"


@frozen
class Memory:
    scope: str
    key: str
    value: Json
    created_at: float
    updated_at: float
    summary: str = ""
    metadata: Mapping[str, Json] = {}
    #: From here on it is as if forgotten.
    expires_at: float | None = None

    def alive(self, at: float) -> bool:
        return self.expires_at is None or at < self.expires_at


@frozen
class Memories:
    """Scopes by name, each with its memories by key."""

    scopes: Mapping[str, Mapping[str, Memory]] = {}


# --- commands ---


@frozen
class Remember:
    """Write, or write over. A memory that is written over keeps the time at which it was made."""

    scope: str
    key: str
    value: Json
    at: float
    summary: str = ""
    metadata: Mapping[str, Json] = {}
    ttl_s: float | None = None


@frozen
class Forget:
    scope: str
    key: str
    at: float


@frozen
class ForgetExpired:
    at: float


MemoryCommand: TypeAlias = Remember | Forget | ForgetExpired


# --- events ---


@frozen
class MemoryWritten:
    """Something was remembered, or remembered anew."""

    memory: Memory


@frozen
class MemoryForgotten:
    """Something is remembered no longer: it was forgotten, or its time was over."""

    scope: str
    key: str
    at: float
    expired: bool = False


MemoryEvent: TypeAlias = MemoryWritten | MemoryForgotten

TRANSITIONS: Table[MemoryState] = {
    (None, MemoryWritten): MemoryState.KEPT,
    (MemoryState.KEPT, MemoryWritten): MemoryState.KEPT,
    (MemoryState.KEPT, MemoryForgotten): MemoryState.FORGOTTEN,
}


def decide(memories: Memories, command: MemoryCommand) -> tuple[MemoryEvent, ...]:
    match command:
        case Remember():
            return _remember(memories, command)
        case Forget(scope=scope, key=key, at=at):
            check_name(scope, "scope")
            check_name(key, "key")
            known = key in memories.scopes.get(scope, {})
            return (MemoryForgotten(scope, key, at),) if known else ()
        case ForgetExpired(at=at):
            return tuple(
                MemoryForgotten(memory.scope, memory.key, at, expired=True)
                for scope in memories.scopes.values()
                for memory in scope.values()
                if not memory.alive(at)
            )
        case _:
            assert_never(command)


def _remember(memories: Memories, command: Remember) -> tuple[MemoryEvent, ...]:
    scope, key, at = check_name(command.scope, "scope"), check_name(command.key, "key"), command.at
    value = _own_json(command.value, "value", VALUE_MAX_CHARS)
    metadata = _own_json(command.metadata, "metadata", METADATA_MAX_CHARS)
    if not isinstance(metadata, Mapping):
        raise CommandRejected(f"the metadata of {key!r} is no object; give names and values", key=key)
    summary: object = command.summary
    if not isinstance(summary, str) or len(summary) > SUMMARY_MAX_CHARS:
        raise CommandRejected(
            f"the summary of {key!r} is not text of at most {SUMMARY_MAX_CHARS} characters; shorten it", key=key
        )
    ttl_s = command.ttl_s
    if ttl_s is not None and not _is_span(ttl_s):
        raise CommandRejected(
            f"time to live {ttl_s!r} makes no sense; give seconds, more than 0 and at most {TTL_MAX_S:.0f}, or none",
            ttl_s=ttl_s,
        )
    known = memories.scopes.get(scope, {})
    old = known.get(key)
    lapsed: tuple[MemoryEvent, ...] = ()
    if old is None and len(known) >= KEYS_MAX:
        # Only now: as long as there is room, what has lapsed may lie where it is.
        lapsed = tuple(
            MemoryForgotten(scope, each.key, at, expired=True) for each in known.values() if not each.alive(at)
        )
        if not lapsed:
            raise CommandRejected(
                f"scope {scope!r} holds {KEYS_MAX} memories, which is the limit; forget some first", scope=scope
            )
    return (
        *lapsed,
        MemoryWritten(
            Memory(
                scope=scope,
                key=key,
                value=value,
                created_at=old.created_at if old is not None and old.alive(at) else at,
                updated_at=at,
                summary=command.summary,
                metadata=metadata,
                expires_at=None if ttl_s is None else at + ttl_s,
            )
        ),
    )


def evolve(memories: Memories, event: MemoryEvent) -> Memories:
    match event:
        case MemoryWritten(memory=memory):
            kept = memories.scopes.get(memory.scope, {})
            move(TRANSITIONS, MemoryState.KEPT if memory.key in kept else None, event)
            # Written last, listed last: dicts keep the order in which keys came, so the old entry has to go first.
            scope = {key: other for key, other in kept.items() if key != memory.key}
            scope[memory.key] = memory
            return change(memories, scopes={**memories.scopes, memory.scope: scope})
        case MemoryForgotten(scope=name, key=gone):
            kept = memories.scopes.get(name, {})
            move(TRANSITIONS, MemoryState.KEPT if gone in kept else None, event)
            left = {key: memory for key, memory in kept.items() if key != gone}
            scopes = {**memories.scopes, name: left}
            if not left:
                del scopes[name]
            return change(memories, scopes=scopes)
        case _:
            assert_never(event)


def recall(memories: Memories, scope: str, key: str, at: float) -> Memory | None:
    memory = memories.scopes.get(check_name(scope, "scope"), {}).get(check_name(key, "key"))
    return memory if memory is not None and memory.alive(at) else None


def living(memories: Memories, at: float) -> Memories:
    """Without what has lapsed, and without scopes in which nothing else was."""
    scopes = {
        name: {key: memory for key, memory in scope.items() if memory.alive(at)}
        for name, scope in memories.scopes.items()
    }
    return Memories({name: scope for name, scope in scopes.items() if scope})


def listing(memories: Memories, scope: str, at: float, limit: int | None = None) -> tuple[Memory, ...]:
    """The living memories of a scope, newest change first."""
    alive = [memory for memory in memories.scopes.get(check_name(scope, "scope"), {}).values() if memory.alive(at)]
    # Stable: of two changes at one instant, the later one comes first.
    alive.reverse()
    alive.sort(key=lambda memory: memory.updated_at, reverse=True)
    return tuple(alive[:limit])


def _is_span(seconds: object) -> bool:
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds <= TTL_MAX_S


def _own_json(value: Json, what: str, limit: int) -> Json:
    """A copy, as the journal will hold it: whoever gave it may go on changing it, and what is remembered must not change along (I10)."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise CommandRejected(
            f"{what} is not JSON ({error}); use null, booleans, finite numbers, text, lists and objects", what=what
        ) from None
    if len(text) > limit:
        raise CommandRejected(
            f"{what} takes {len(text)} characters as JSON, and {limit} is the limit; keep it in a file, and remember its path",
            what=what,
        )
    left = [(value, 1)]
    while left:
        item, depth = left.pop()
        if depth > DEPTH_MAX:
            raise CommandRejected(f"{what} is nested more than {DEPTH_MAX} deep; make it flatter", what=what)
        if isinstance(item, Mapping):
            # `json` would quietly turn such a key into text.
            if not all(isinstance(key, str) for key in item):
                raise CommandRejected(f"{what} has a key that is not text; JSON objects have text keys", what=what)
            left += [(inner, depth + 1) for inner in item.values()]
        elif isinstance(item, list | tuple):
            left += [(inner, depth + 1) for inner in item]
    return json.loads(text)
