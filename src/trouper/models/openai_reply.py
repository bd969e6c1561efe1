"""Chat Completions events as chunks: pure, one event at a time (M4, M13).

Fragments of calls come by index. Servers differ: some leave the index out, some give every call the index 0, some repeat the name with each
fragment, some send no id. Reasoning comes as `reasoning_content` or `reasoning`, with or without `reasoning_details`; which it was travels as
`Opaque`, so that `openai_request` can return it under the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trouper.core.messages import Json, Opaque, ProviderPart, Usage
from trouper.models import wire_json
from trouper.models._errors import NetworkFault, ServerFault
from trouper.models.chunks import (
    CallDelta,
    CallEnd,
    CallStart,
    Chunk,
    Done,
    PartChunk,
    TextChunk,
    ThinkingChunk,
)
from trouper.models.http_faults import clean_message
from trouper.models.keys import Credential
from trouper.models.openai_errors import error_in, fault_of_error
from trouper.models.refusals import fault_of_event
from trouper.models.sse import ServerEvent
from trouper.models.usage_so_far import UsageSoFar, count

_STOPS = {
    "stop": "end_turn",
    "eos": "end_turn",
    "end_turn": "end_turn",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "length": "max_tokens",
    "max_tokens": "max_tokens",
    "content_filter": "refusal",
}
#: The server gave up half-way, and says so in the place of a reason.
_BROKEN = frozenset({"error", "insufficient_system_resource", "abort"})
_REASONING = ("reasoning_content", "reasoning")
_KNOWN = frozenset(
    {"role", "content", "refusal", "tool_calls", "function_call", "reasoning_content", "reasoning", "reasoning_details"}
)


class _Call:
    """A call whose fragments are still coming."""

    __slots__ = ("arguments", "fragments", "held", "id", "number", "rest", "started")

    def __init__(self, number: int) -> None:
        self.number = number
        self.id: str | None = None
        self.started = False
        #: Fragments that came before the name.
        self.held: list[str] = []
        #: All that came, to see whether it is whole.
        self.fragments: list[str] = []
        #: The arguments as an object, from servers that send them so.
        self.arguments: Json = None
        self.rest: dict[str, Any] = {}


class ChatReply:
    """One model call's reply, as far as it has come."""

    def __init__(self, provider: str, credential: Credential | None = None) -> None:
        self._provider = provider
        self._credential = credential
        self._calls: list[_Call] = []
        self._by_index: dict[int | str, _Call] = {}
        self._usage = UsageSoFar(usage_of)
        self._finish: str | None = None
        self._refused = False
        #: Text has come since the last part was closed.
        self._texting = False
        self._reasoning_field: str | None = None
        self._details: list[dict[str, Json]] = []
        #: Fields of the message that nobody here knows.
        self._rest: dict[str, Json] = {}
        self._ended = False

    @property
    def finished(self) -> bool:
        return self._finish is not None or self._ended

    @property
    def ended(self) -> bool:
        return self._ended

    def take(self, event: ServerEvent) -> list[Chunk]:
        """The chunks of one event, as it came."""
        data = event.data
        if self._ended or not data.strip():
            return []
        if data.strip() == b"[DONE]":
            self._ended = True
            return []
        value = wire_json.decode_or_none(data)
        if not isinstance(value, dict):
            raise fault_of_event(self._provider, data)
        if event.name == "error" and error_in(value) is None:
            # The event itself is the error, as llama.cpp writes it.
            value = {"error": value}
        return self.take_event(value)

    def take_whole(self, value: Json) -> list[Chunk] | None:
        if not isinstance(value, dict) or ("choices" not in value and error_in(value) is None):
            return None
        return self.take_event(value)

    def take_event(self, event: dict[str, Json]) -> list[Chunk]:
        chunks: list[Chunk] = []
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        error = error_in(event) or error_in(choice)
        if error is not None:
            raise fault_of_error(self._provider, error, None, {}, self._credential)
        if not choice.get("index"):
            # A reply's other candidates, should somebody ask for several, are none of ours.
            delta = choice.get("delta") or choice.get("message")
            if isinstance(delta, dict):
                self._take_delta(delta, chunks)
            if isinstance(reason := choice.get("finish_reason"), str) and reason:
                self._finish = reason
        usage = event.get("usage")
        if isinstance(usage, dict):
            figures = self._usage.figures
            first = not figures
            figures.update(usage)
            if first:
                # Told at once, so that a reply cut short has its input counted; the final figures come with the end.
                chunks.extend(self._usage.news())
        return chunks

    def end(self) -> list[Chunk]:
        """What the end of the stream adds. `NetworkFault` if the provider never said that it was done (L14)."""
        reason = self._finish
        if reason is None and not self._ended:
            raise NetworkFault(
                f"{self._provider}'s reply ended without a finish reason: it was cut off; try again",
                provider=self._provider,
            )
        if reason in _BROKEN:
            raise ServerFault(f"{self._provider} broke its reply off ({reason}); try again", provider=self._provider)
        chunks: list[Chunk] = []
        self._seal_reasoning(chunks)
        if self._refused:
            # Says of the text before it that it was a refusal: it goes back under that name.
            chunks.append(TextChunk("", Opaque(self._provider, {"refusal": True})))
        for call in self._calls:
            if call.started:
                chunks.append(CallEnd(call.number, call.arguments, self._opaque(call.rest)))
        if self._rest:
            chunks.append(PartChunk(ProviderPart(Opaque(self._provider, self._rest))))
        return [*chunks, *self._usage.news(), self._done(reason)]

    def _done(self, reason: str | None) -> Done:
        stop = _STOPS.get(reason or "stop", reason or "end_turn")
        called = any(call.started for call in self._calls)
        if self._refused:
            return Done("refusal", "refusal")
        if stop == "refusal":
            return Done(stop, reason)
        if stop in ("end_turn", "tool_use"):
            # Some servers say "stop" after calls, and some "tool_calls" without any.
            return Done("tool_use" if called else "end_turn")
        return Done(clean_message(stop, self._credential))

    def _take_delta(self, delta: dict[str, Json], chunks: list[Chunk]) -> None:
        for field in _REASONING:
            if isinstance(text := delta.get(field), str) and text:
                self._think(text, field, chunks)
                break
        if isinstance(details := delta.get("reasoning_details"), list):
            self._take_details(details, chunks, told=any(delta.get(field) for field in _REASONING))
        content = delta.get("content")
        if type(content) is str:
            if content:
                self._say(content, chunks)
        elif isinstance(content, list):
            self._take_parts(content, chunks)
        if isinstance(refusal := delta.get("refusal"), str) and refusal:
            self._seal_reasoning(chunks)
            if not self._refused and self._texting:
                chunks.append(TextChunk("", Opaque(self._provider, {})))
            self._refused = True
            chunks.append(TextChunk(refusal))
        calls = delta.get("tool_calls")
        for fragment in calls if isinstance(calls, list) else ():
            if isinstance(fragment, dict):
                self._take_call(fragment, chunks)
        if isinstance(function := delta.get("function_call"), dict):
            self._take_call({"index": "function_call", "function": function}, chunks)
        for key, value in delta.items():
            if key not in _KNOWN and value not in (None, "", [], {}):
                self._rest[key] = merged(self._rest.get(key), value)

    def _say(self, text: str, chunks: list[Chunk]) -> None:
        self._seal_reasoning(chunks)
        self._texting = True
        chunks.append(TextChunk(text))

    def _think(self, text: str, field: str, chunks: list[Chunk]) -> None:
        if self._reasoning_field is not None and self._reasoning_field != field:
            self._seal_reasoning(chunks)
        self._reasoning_field = field
        self._texting = False
        chunks.append(ThinkingChunk(text))

    def _take_details(self, details: list[Json], chunks: list[Chunk], *, told: bool) -> None:
        for detail in details:
            if not isinstance(detail, dict):
                continue
            if not told and isinstance(text := detail.get("text") or detail.get("summary"), str):
                self._think(text, "reasoning", chunks)
            last = self._details[-1] if self._details else {}
            if last and all(last.get(key) == detail.get(key) for key in ("type", "index")):
                for key, value in detail.items():
                    grows = key in ("text", "summary", "data") and isinstance(value, str)
                    last[key] = merged(last.get(key), value) if grows else value if value is not None else last.get(key)
            else:
                self._details.append(dict(detail))

    def _take_parts(self, parts: list[Json], chunks: list[Chunk]) -> None:
        """Content in parts, as Mistral sends it when its models think."""
        for part in parts:
            if not isinstance(part, dict):
                continue
            if isinstance(text := part.get("text"), str) and text:
                self._say(text, chunks)
            elif isinstance(thinking := part.get("thinking"), list):
                for item in thinking:
                    if isinstance(item, dict) and isinstance(text := item.get("text"), str) and text:
                        self._think(text, "reasoning_content", chunks)

    def _seal_reasoning(self, chunks: list[Chunk]) -> None:
        """Reasoning is over: say under which name it came, and with which details."""
        if self._reasoning_field is None and not self._details:
            return
        data: dict[str, Json] = {"field": self._reasoning_field} if self._reasoning_field is not None else {}
        if self._details:
            data["reasoning_details"] = self._details
        chunks.append(ThinkingChunk("", opaque=Opaque(self._provider, data)))
        self._reasoning_field, self._details = None, []

    def _take_call(self, fragment: dict[str, Json], chunks: list[Chunk]) -> None:
        function = fragment.get("function")
        function = function if isinstance(function, dict) else {}
        given = fragment.get("id") if isinstance(fragment.get("id"), str) else None
        name = function.get("name")
        name = name if isinstance(name, str) else ""
        index = fragment.get("index")
        arguments = function.get("arguments")
        call = self._call_of(index if isinstance(index, int | str) else None, given or None, bool(name), arguments)
        call.id = call.id or given or None
        rest = {key: value for key, value in fragment.items() if key not in ("index", "id", "type", "function")}
        if within := {key: value for key, value in function.items() if key not in ("name", "arguments")}:
            rest["function"] = within
        call.rest |= {key: value for key, value in rest.items() if value is not None}
        if name and not call.started:
            call.started = True
            self._seal_reasoning(chunks)
            self._texting = False
            chunks.append(CallStart(call.number, name, call.id, self._opaque(call.rest)))
            chunks.extend(CallDelta(call.number, text) for text in call.held)
            call.held.clear()
        if isinstance(arguments, str):
            if arguments:
                call.fragments.append(arguments)
                if call.started:
                    chunks.append(CallDelta(call.number, arguments))
                else:
                    call.held.append(arguments)
        elif arguments is not None:
            call.arguments = arguments

    def _call_of(self, index: int | str | None, given: str | None, named: bool, arguments: Json) -> _Call:
        call = self._by_index.get(index) if index is not None else None
        if index is None and self._calls:
            last = self._calls[-1]
            if not named:
                goes_on = given is None or last.id in (None, given)
            else:
                # Some servers repeat id and name with every fragment; and some give all calls the same.
                goes_on = given is not None and given == last.id and not (arguments and _is_whole(last))
            call = last if goes_on else None
        if call is not None and named:
            # Another id, and a name with it: another call, though the index is the same. Without ids, arguments after whole ones tell.
            other = call.id not in (None, given) if given is not None else bool(arguments) and _is_whole(call)
            call = None if other else call
        if call is None:
            call = _Call(len(self._calls))
            self._calls.append(call)
            if index is not None:
                self._by_index[index] = call
        return call

    def _opaque(self, rest: dict[str, Any]) -> Opaque | None:
        return Opaque(self._provider, dict(rest)) if rest else None


def _is_whole(call: _Call) -> bool:
    """Whether all of a call's arguments have come."""
    if call.arguments is not None:
        return True
    # Looked at first: a server that repeats the name with every fragment has this asked with every fragment.
    if not call.fragments or not call.fragments[-1].rstrip().endswith("}"):
        return False
    return isinstance(wire_json.decode_or_none("".join(call.fragments).encode()), dict)


def merged(before: Json, after: Json) -> Json:
    """Two fragments of one field: text and lists go on, objects are merged, anything else is replaced."""
    if isinstance(before, str) and isinstance(after, str):
        return before + after
    if isinstance(before, list) and isinstance(after, list):
        return [*before, *after]
    if isinstance(before, dict) and isinstance(after, dict):
        return {**before, **{key: merged(before.get(key), value) for key, value in after.items()}}
    return after


def usage_of(usage: Mapping[str, Json]) -> Usage:
    """Cached and reasoning tokens are parts of the two sums, here as with us."""
    prompt, completion = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    cached = count(prompt, "cached_tokens")
    return Usage(
        input=count(usage, "prompt_tokens"),
        output=count(usage, "completion_tokens"),
        cache_read=cached if cached is not None else count(usage, "prompt_cache_hit_tokens"),
        cache_write=count(prompt, "cache_write_tokens"),
        reasoning=count(completion, "reasoning_tokens"),
    )
