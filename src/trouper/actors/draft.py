"""A reply under way: chunks in, a message out.

A client is foreign code: a chunk that does not hold what its class says ends the call here, before it can get into the journal and break the session for good.

Adjacent pieces of text become one part, so do those of thinking, up to the signature that seals them. A call enters the message only when it is
whole; half-built ones never do (L13). Lengths of the pieces are kept as they came, so that the exact stream can be told again (M5).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from trouper import codec
from trouper.core.ids import call_id
from trouper.core.messages import NO_USAGE as _NO_USAGE
from trouper.core.messages import (
    Fault,
    Json,
    Kind,
    Media,
    Message,
    Opaque,
    Part,
    ProviderPart,
    Text,
    Thinking,
    ToolCall,
    Usage,
)
from trouper.models._errors import BadChunk, ServerFault
from trouper.models.chunks import (
    CallDelta,
    CallEnd,
    CallStart,
    Chunk,
    Done,
    KeepAlive,
    PartChunk,
    TextChunk,
    ThinkingChunk,
    UsageChunk,
)

#: How deep a provider's own fields may be nested: what has to be written and read again must not exhaust the stack.
OPAQUE_DEPTH_MAX = 64
#: So many can be added up for as long as anybody lasts, and are still counted exactly by whoever reads them as JSON.
_TOKENS_MAX = 2**53
#: What a call or a part counts for, beside what it holds, in the length of a reply: one without end may consist of nothing else.
_PART_CHARS = 64
#: Stop reasons by which we say that a turn was cut short (L1).
_OURS = frozenset({"", "interrupt", "max_steps", "budget", "error"})
_LEAVES = frozenset({str, int, float, bool, type(None)})


class OpenCall:
    """A call whose pieces are still coming, or one that is whole: then `ended`."""

    __slots__ = ("arguments", "buffer", "ended", "id", "name", "opaque")

    def __init__(self, name: str, id: str | None, opaque: Opaque | None) -> None:
        self.name = name
        self.id = id
        self.opaque = opaque
        self.buffer: list[str] = []
        self.arguments: Json | None = None
        self.ended = False


class Draft:
    """What has been said of one reply so far."""

    __slots__ = ("_calls", "_order", "_text", "_thinking", "chars", "cuts", "done", "progressed", "usage")

    def __init__(self) -> None:
        self._order: list[Part | OpenCall] = []
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._calls: dict[int, OpenCall] = {}
        self.cuts: list[int] = []
        self.usage: Usage = _NO_USAGE
        self.done: Done | None = None
        self.chars = 0
        #: Text, thinking or the start of a call has come (L5).
        self.progressed = False

    def add(self, chunk: Chunk) -> None:
        take = _TAKEN_BY.get(type(chunk)) or _taken_as_its_base(chunk)
        take(self, chunk)

    def _take_text(self, chunk: TextChunk) -> None:
        text, opaque = chunk.text, chunk.opaque
        if type(text) is not str or opaque is not None:
            _check_text(text, opaque)
        if self._thinking:
            self._close_thinking()
        if opaque is not None and self._text:
            # A signature belongs to its own part alone: what came before is not covered by it.
            self._close_text()
        self._text.append(text)
        self.cuts.append(len(text))
        self.chars += len(text)
        if opaque is not None:
            self._close_text(opaque)
        if not self.progressed and text and not text.isspace():
            self.progressed = True

    def _take_thinking(self, chunk: ThinkingChunk) -> None:
        text, signature, opaque = chunk.text, chunk.signature, chunk.opaque
        if type(text) is not str or signature is not None or opaque is not None:
            _check_text(text, opaque, signature)
        if self._text:
            self._close_text()
        if opaque is not None and text and self._thinking:
            self._close_thinking()
        if text:
            self._thinking.append(text)
            self.cuts.append(len(text))
            self.chars += len(text)
            if not text.isspace():
                self.progressed = True
        if signature is not None or opaque is not None:
            self._close_thinking(signature, opaque)

    def _take_call_start(self, chunk: CallStart) -> None:
        name, id, opaque = chunk.name, chunk.id, chunk.opaque
        if type(name) is not str or type(id) is not str or opaque is not None:
            _check_text(name, opaque, id)
        if self._text or self._thinking:
            self.close_parts()
        call = self._calls[chunk.index] = OpenCall(name, id, opaque)
        self._order.append(call)
        self.chars += _PART_CHARS
        self.progressed = True

    def _take_call_delta(self, chunk: CallDelta) -> None:
        fragment = chunk.fragment
        if type(fragment) is not str:
            _check_text(fragment)
        self.chars += len(fragment)
        if chunk.index in self._calls:
            self._calls[chunk.index].buffer.append(fragment)

    def _take_call_end(self, chunk: CallEnd) -> None:
        arguments, opaque = chunk.arguments, chunk.opaque
        if opaque is not None:
            _check_opaque(opaque)
        if arguments:
            if _is_flat(arguments):
                self.chars += sum([len(each) for each in arguments.values() if type(each) is str])
            else:
                _is_json(arguments)  # However deep: what is too deep is for the model to hear of (L19).
                self.chars += _chars_of(arguments)
        if chunk.index in self._calls:
            call = self._calls[chunk.index]
            call.ended = True
            call.arguments = arguments
            call.opaque = opaque if opaque is not None else call.opaque

    def _take_part(self, chunk: PartChunk) -> None:
        part = _checked_part(chunk.part)
        self.close_parts()
        self._order.append(part)
        self.chars += _PART_CHARS + _chars_in(part)
        self.progressed = True

    def _take_usage(self, chunk: UsageChunk) -> None:
        _check_usage(chunk.usage)
        self.usage = chunk.usage

    def _take_done(self, chunk: Done) -> None:
        if type(chunk.stop_reason) is not str or chunk.detail is not None:
            _check_text(chunk.stop_reason, None, chunk.detail)
        for call in self._calls.values():
            if not call.ended:
                # The reply is whole, and so is a call in it with all its arguments, also where a client does not say so of each (L6, L16).
                call.ended = _is_whole("".join(call.buffer))
        self.done = _in_its_own_name(chunk) if chunk.stop_reason in _OURS else chunk

    def _take_nothing(self, chunk: KeepAlive) -> None:
        pass

    def close_parts(self) -> None:
        if self._text:
            self._close_text()
        if self._thinking:
            self._close_thinking()

    def _close_text(self, opaque: Opaque | None = None) -> None:
        self._order.append(Text("".join(self._text), opaque))
        self._text.clear()
        self.chars += _PART_CHARS if opaque is None else _PART_CHARS + _chars_of(opaque.data)

    def _close_thinking(self, signature: str | None = None, opaque: Opaque | None = None) -> None:
        self._order.append(Thinking("".join(self._thinking), signature, opaque))
        self._thinking.clear()
        self.chars += _PART_CHARS + len(signature or "")
        if opaque is not None:
            self.chars += _chars_of(opaque.data)

    @property
    def open_calls(self) -> list[OpenCall]:
        """The calls that are whole, in declared order."""
        calls: list[OpenCall] = []
        for item in self._order:
            if type(item) is OpenCall and item.ended:
                calls.append(item)
        return calls

    def message(self, turn: int, step: int, arguments: list[Json]) -> Message:
        """The whole reply; `arguments` are those of the whole calls, in order, parsed and repaired."""
        if self._text or self._thinking:
            self.close_parts()
        parts: list[Part] = []
        used: set[str] = set()
        index = 0
        for item in self._order:
            if not isinstance(item, OpenCall):
                parts.append(item)
            elif item.ended:
                # A provider's id serves only if it tells the calls of this message apart.
                provider_id = item.id if item.id and item.id not in used else None
                if provider_id is not None:
                    used.add(provider_id)
                parts.append(
                    ToolCall(call_id(turn, step, index), item.name, arguments[index], provider_id, item.opaque)
                )
                index += 1
        return Message("assistant", tuple(parts))

    def partial(self) -> Message | None:
        """What can be kept of an unfinished reply: its text and sealed thinking, without calls; `None` if nothing was said."""
        parts: list[Part] = [
            item
            for item in self._order
            if isinstance(item, Text) or (isinstance(item, Thinking) and (item.signature or item.opaque))
        ]
        if self._text:
            parts.append(Text("".join(self._text)))
        if not any(isinstance(part, Text) and part.text.strip() for part in parts):
            return None
        kind: Kind = "cut_short"
        return Message("assistant", tuple(parts), kind)

    @property
    def text(self) -> str:
        return "".join(item.text for item in self._order if isinstance(item, Text)) + "".join(self._text)

    @property
    def thinking(self) -> str:
        return "".join(item.text for item in self._order if isinstance(item, Thinking)) + "".join(self._thinking)


#: Parts that come whole.
_Whole: TypeAlias = Text | Thinking | Media | ProviderPart
_Take: TypeAlias = Callable[[Draft, Any], None]
_TAKEN_BY: dict[type, _Take] = {
    TextChunk: Draft._take_text,
    ThinkingChunk: Draft._take_thinking,
    CallStart: Draft._take_call_start,
    CallDelta: Draft._take_call_delta,
    CallEnd: Draft._take_call_end,
    PartChunk: Draft._take_part,
    UsageChunk: Draft._take_usage,
    KeepAlive: Draft._take_nothing,
    Done: Draft._take_done,
}


def _taken_as_its_base(chunk: object) -> _Take:
    for base in type(chunk).__mro__:
        if base in _TAKEN_BY:
            return _TAKEN_BY[base]
    raise BadChunk(f"{type(chunk).__name__} is no chunk; give TextChunk, CallStart, Done...")


def _check_text(text: object, opaque: object = None, also: object = None) -> None:
    if not isinstance(text, str) or not (also is None or isinstance(also, str)):
        raise BadChunk(f"a chunk holds {type(also if isinstance(text, str) else text).__name__} where text belongs")
    if opaque is not None:
        _check_opaque(opaque)


def _check_opaque(opaque: object) -> None:
    if not isinstance(opaque, Opaque):
        raise BadChunk(f"a chunk holds {type(opaque).__name__} where provider fields belong; wrap them in Opaque")
    provider: object = opaque.provider
    data: object = opaque.data
    if not isinstance(provider, str) or not isinstance(data, Mapping):
        raise BadChunk("provider fields belong to a provider, by its name, and are a mapping")
    if not _is_json(data, text_keys=True):
        raise BadChunk(f"a provider's fields are nested more than {OPAQUE_DEPTH_MAX} deep")


def _is_whole(arguments: str) -> bool:
    """Whether a call's arguments are all there, as far as one can see; without an end, half of them are none (L13)."""
    try:
        return not arguments.strip() or codec.loads(arguments.encode("utf-8", "replace")) is not None
    except codec.UndecodableRecord:
        return False


def _is_flat(value: Json) -> bool:
    """An object of plain values: most arguments are, and this tells so at once."""
    return (
        type(value) is dict and _LEAVES.issuperset(map(type, value.values())) and _LEAVES.issuperset(map(type, value))
    )


def _is_json(value: Json, *, text_keys: bool = False) -> bool:
    """`BadChunk` if something in it is not; `False` if that was not looked for further down than `OPAQUE_DEPTH_MAX`. Keys may be any leaf, unless they are to be text."""
    level: list[Json] = [value]
    for _ in range(OPAQUE_DEPTH_MAX):
        inner: list[Json] = []
        for each in level:
            kind = type(each)
            if kind in _LEAVES:
                continue
            if kind is list or kind is tuple:
                inner.extend(each)
            elif isinstance(each, Mapping):
                inner.extend(each.values())
                if not all(type(key) is str or (not text_keys and type(key) in _LEAVES) for key in each):
                    raise BadChunk("a chunk holds an object whose keys are not all text")
            elif not isinstance(each, str | int | float):
                raise BadChunk(f"a chunk holds {kind.__name__} where JSON belongs")
        if not inner:
            return True
        level = inner
    return False


def _chars_of(value: Json) -> int:
    """About as many characters as it would be written with, as far down as `_is_json` looks."""
    total = 0
    level: list[Json] = [value]
    for _ in range(OPAQUE_DEPTH_MAX):
        inner: list[Json] = []
        for each in level:
            if isinstance(each, str):
                total += len(each)
            elif isinstance(each, Mapping):
                inner.extend(each)
                inner.extend(each.values())
            elif isinstance(each, list | tuple):
                inner.extend(each)
        if not inner:
            break
        total += len(inner)
        level = inner
    return total


def _chars_in(part: _Whole) -> int:
    """The same of a part that came whole."""
    total = 0 if part.opaque is None else _chars_of(part.opaque.data)
    match part:
        case Text(text):
            total += len(text)
        case Thinking(text, signature):
            total += len(text) + len(signature or "")
        case Media(_, data, uri, name):
            total += len(data or "") + len(uri or "") + len(name or "")
    return total


def _checked_part(part: object) -> _Whole:
    if not isinstance(part, Text | Thinking | Media | ProviderPart):
        raise BadChunk(
            f"{type(part).__name__} is no part of a reply that comes whole; calls come as CallStart and CallEnd"
        )
    match part:
        case Text(text):
            _check_text(text)
        case Thinking(text, signature):
            _check_text(text, None, signature)
        case Media(mime_type, data, uri, name):
            for each in (data, uri, name):
                _check_text(mime_type, None, each)
        case ProviderPart():
            pass
    if part.opaque is not None or isinstance(part, ProviderPart):
        _check_opaque(part.opaque)
    return part


def _check_usage(usage: object) -> None:
    if not isinstance(usage, Usage):
        raise BadChunk(f"a usage chunk holds {type(usage).__name__}, not Usage")
    for count in (usage.input, usage.output, usage.cache_read, usage.cache_write, usage.reasoning):
        if count is not None and (type(count) is not int or not 0 <= count <= _TOKENS_MAX):
            raise BadChunk(f"{usage!r} does not count whole tokens")


def _in_its_own_name(done: Done) -> Done:
    """A provider's end that would read as one of ours. What it calls an error is one."""
    if done.stop_reason == "error":
        raise ServerFault(done.detail or "the provider ended its reply as an error, and did not say why")
    return Done("end_turn", done.detail or (f"the provider says {done.stop_reason!r}" if done.stop_reason else None))


def check_fault(fault: object) -> None:
    """Why a model failed, in the words of a client: also of one in place of which another one answers."""
    if not isinstance(fault, Fault):
        raise BadChunk(f"{type(fault).__name__} stands where a Fault belongs")
    _check_text(fault.kind)
    _check_text(fault.message)
    retryable: object = fault.retryable
    advice: object = fault.retry_after_s
    if type(retryable) is not bool or not (
        advice is None or (isinstance(advice, int | float) and 0 <= advice < math.inf)
    ):
        raise BadChunk("a fault whose advice is none; give retryable as a bool, and retry_after_s as seconds or None")
