"""Anthropic's events as chunks: pure, one event at a time (M4, M14).

A reply is a list of content blocks, each with a start, deltas and an end. Blocks of kinds that nobody here knows are put together from their deltas and kept
whole. What a block carries beyond its kind travels as `Opaque`, and so does the mark that it is Anthropic's: only then does it go back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trouper.core.messages import Json, Opaque, ProviderPart, Usage
from trouper.models import wire_json
from trouper.models._errors import NetworkFault
from trouper.models.anthropic_errors import PROVIDER, fault_of_error
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
)
from trouper.models.http_faults import clean_message
from trouper.models.keys import Credential
from trouper.models.openai_errors import error_in
from trouper.models.openai_reply import merged
from trouper.models.refusals import fault_of_event, says_nothing
from trouper.models.sse import ServerEvent
from trouper.models.usage_so_far import UsageSoFar, count

#: Reasons that have a name of ours; the others keep theirs.
_STOPS = {"model_context_window_exceeded": "max_tokens"}


class _Block:
    """A content block under way."""

    __slots__ = ("call", "input", "kind", "signature", "value")

    def __init__(self, value: dict[str, Json], call: int) -> None:
        self.value = value
        self.kind = wire_json.as_text(value.get("type"))
        #: Its number among the calls, if it is one.
        self.call = call
        #: Fragments of the arguments' JSON.
        self.input: list[str] = []
        self.signature = ""


class MessagesReply:
    """One model call's reply, as far as it has come."""

    def __init__(self, credential: Credential | None = None) -> None:
        self._credential = credential
        self._blocks: dict[int, _Block] = {}
        self._calls = 0
        #: The last block was text, and nothing tells it from text that may follow.
        self._after_text = False
        #: The figures of `message_delta` are cumulative.
        self._usage = UsageSoFar(usage_of)
        self._stop: str | None = None
        self._detail: str | None = None
        self._ended = False

    @property
    def finished(self) -> bool:
        """Whether all that matters is there. With the stop reason it is: only `message_stop` can follow, and Anthropic's own client does not ask for it either.

        That one takes any reply for whole whose connection is closed in good order, also without a stop reason, and none whose connection breaks; here it is the stop reason that counts.
        """
        return self._stop is not None or self._ended

    @property
    def ended(self) -> bool:
        return self._ended

    def take(self, event: ServerEvent) -> list[Chunk]:
        """The chunks of one event, as it came."""
        if self._ended:
            return []
        value = wire_json.decode_or_none(event.data)
        if not isinstance(value, dict):
            if event.name == "ping" or says_nothing(event.data):
                return [KeepAlive()]
            raise fault_of_event(PROVIDER, event.data)
        # Gateways write their own errors without a type, and servers that speak other languages as well one that is the error's.
        kind = wire_json.as_text(value.get("type")) or event.name
        is_error = event.name == "error" or (not kind and value.get("error") is not None)
        return self._take("error" if is_error else kind, value)

    def take_whole(self, value: Json) -> list[Chunk] | None:
        if not isinstance(value, dict):
            return None
        if "content" not in value:
            return self._take("error", value) if value.get("error") is not None else None
        chunks: list[Chunk] = []
        content = value.get("content")
        for index, block in enumerate(content if isinstance(content, list) else ()):
            if isinstance(block, dict):
                self._start(index, block, chunks)
                self._stop_block(index, chunks)
        self._take_usage(value, chunks)
        self._take_stop(value)
        return chunks

    def _take(self, kind: str, value: dict[str, Json]) -> list[Chunk]:
        chunks: list[Chunk] = []
        match kind:
            case "content_block_delta":
                delta = value.get("delta")
                block = self._blocks.get(_index(value))
                if isinstance(delta, dict) and block is not None:
                    self._take_delta(block, delta, chunks)
            case "content_block_start":
                if isinstance(block := value.get("content_block"), dict):
                    self._start(_index(value), block, chunks)
            case "content_block_stop":
                self._stop_block(_index(value), chunks)
            case "message_start":
                message = value.get("message")
                self._take_usage(message if isinstance(message, dict) else {}, chunks)
            case "message_delta":
                delta = value.get("delta")
                self._take_usage(value, chunks)
                self._take_stop(delta if isinstance(delta, dict) else {})
            case "message_stop":
                self._ended = True
            case "ping":
                chunks.append(KeepAlive())
            case "error":
                # Where it is not within the event, the event itself is the error, as llama.cpp writes it.
                raise fault_of_error(error_in(value) or value, None, {}, self._credential)
            case _:
                pass  # An event of tomorrow.
        return chunks

    def end(self) -> list[Chunk]:
        """What the end of the stream adds. `NetworkFault` if the provider never said that it was done (L14)."""
        if not self.finished:
            raise NetworkFault(
                f"{PROVIDER}'s reply ended without a stop reason: it was cut off; try again", provider=PROVIDER
            )
        chunks: list[Chunk] = []
        for index in list(self._blocks):
            self._stop_block(index, chunks)
        stop = self._stop or ("tool_use" if self._calls else "end_turn")
        detail = self._detail if stop not in _STOPS else stop
        done = Done(_STOPS.get(stop, stop), clean_message(detail, self._credential) if detail else None)
        return [*chunks, *self._usage.news(), done]

    def _start(self, index: int, value: dict[str, Json], chunks: list[Chunk]) -> None:
        block = self._blocks[index] = _Block(dict(value), self._calls)
        match block.kind:
            case "text":
                if self._after_text:
                    # Two blocks stay two: what the model thought later is bound to the very blocks before it.
                    chunks.append(TextChunk("", Opaque(PROVIDER, {})))
                    self._after_text = False
                if isinstance(text := value.get("text"), str) and text:
                    chunks.append(TextChunk(text))
            case "thinking":
                if isinstance(text := value.get("thinking"), str) and text:
                    chunks.append(ThinkingChunk(text))
                if isinstance(signature := value.get("signature"), str):
                    block.signature = signature
            case "tool_use":
                self._calls += 1
                given = value.get("id")
                chunks.append(
                    CallStart(
                        block.call,
                        wire_json.as_text(value.get("name")),
                        given if isinstance(given, str) and given else None,
                        _rest(value, "id", "name", "input"),
                    )
                )
            case _:
                pass

    def _take_delta(self, block: _Block, delta: dict[str, Json], chunks: list[Chunk]) -> None:
        match delta:
            case {"type": "text_delta", "text": str(text)} if block.kind == "text":
                if text:
                    chunks.append(TextChunk(text))
            case {"type": "thinking_delta", "thinking": str(text)} if block.kind == "thinking":
                if text:
                    chunks.append(ThinkingChunk(text))
            case {"type": "signature_delta", "signature": str(signature)} if block.kind == "thinking":
                block.signature += signature
            case {"type": "input_json_delta", "partial_json": str(fragment)}:
                if fragment and block.kind == "tool_use":
                    chunks.append(CallDelta(block.call, fragment))
                block.input.append(fragment)
            case {"type": "citations_delta", "citation": citation}:
                known = block.value.get("citations")
                block.value["citations"] = [*(known if isinstance(known, list) else ()), citation]
            case _:
                for key, value in delta.items():
                    if key != "type":
                        block.value[key] = merged(block.value.get(key), value)

    def _stop_block(self, index: int, chunks: list[Chunk]) -> None:
        block = self._blocks.pop(index, None)
        if block is None:
            return
        value = block.value
        self._after_text = False
        match block.kind:
            case "text":
                rest = _rest(value, "text")
                if rest.data:
                    chunks.append(TextChunk("", rest))
                else:
                    self._after_text = True
            case "thinking":
                if block.signature:
                    chunks.append(ThinkingChunk("", block.signature, _rest(value, "thinking", "signature")))
            case "redacted_thinking":
                chunks.append(ThinkingChunk("", opaque=Opaque(PROVIDER, value)))
            case "tool_use":
                given = value.get("input")
                whole = None if "".join(block.input) else given if given is not None else {}
                chunks.append(CallEnd(block.call, whole, _rest(value, "id", "name", "input")))
            case _:
                if fragments := "".join(block.input):
                    try:
                        value["input"] = wire_json.decode(fragments.encode())
                    except ValueError:
                        value["input"] = {}
                chunks.append(PartChunk(ProviderPart(Opaque(PROVIDER, value))))

    def _take_stop(self, delta: Mapping[str, Json]) -> None:
        if isinstance(reason := delta.get("stop_reason"), str) and reason:
            self._stop = reason
            details = delta.get("stop_details")
            said: list[Any] = [delta.get("stop_sequence")]
            if isinstance(details, Mapping):
                said += [details.get("category"), details.get("explanation")]
            self._detail = ": ".join(filter(None, map(wire_json.as_text, said))) or None

    def _take_usage(self, value: Mapping[str, Json], chunks: list[Chunk]) -> None:
        usage = value.get("usage")
        if isinstance(usage, dict):
            first = not self._usage.figures
            self._usage.figures.update({name: figure for name, figure in usage.items() if figure is not None})
            if first:
                # Told at once, so that a reply cut short has its input counted; the final figures come with the end.
                chunks.extend(self._usage.news())


def _index(value: Mapping[str, Json]) -> int:
    index = value.get("index")
    return index if isinstance(index, int) else -1


def _rest(value: Mapping[str, Json], *known: str) -> Opaque:
    """The fields that our own classes have no place for; empty, it still says whose block this is."""
    return Opaque(
        PROVIDER, {key: item for key, item in value.items() if key not in (*known, "type") and item is not None}
    )


def usage_of(usage: Mapping[str, Json]) -> Usage:
    """Anthropic counts cached input apart from the rest; ours is the sum, with parts in their own buckets."""
    fresh, read, written = (
        count(usage, name) for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    )
    return Usage(
        input=None if fresh is None else fresh + (read or 0) + (written or 0),
        output=count(usage, "output_tokens"),
        cache_read=read,
        cache_write=written,
        reasoning=count(usage.get("output_tokens_details"), "thinking_tokens"),
    )
