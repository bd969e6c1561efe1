"""Gemini's events as chunks: pure, one event at a time (M4, M8-M10).

What a part carries beyond its own kind (`thoughtSignature` above all, and whatever is newer than this client) travels as `Opaque`, so that
`gemini_request` can put it back where it was. A chunk with an `Opaque` is a part of its own: signed text must not be merged with its
neighbours, or the signature is at another place than the one it was given for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from trouper.core.messages import Json, Media, Opaque, ProviderPart, Usage
from trouper.models import wire_json
from trouper.models._errors import MalformedReply, NetworkFault
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
from trouper.models.gemini_errors import PROVIDER, fault_of_error
from trouper.models.http_faults import clean_message
from trouper.models.keys import Credential
from trouper.models.refusals import fault_of_event, says_nothing
from trouper.models.sse import ServerEvent
from trouper.models.usage_so_far import UsageSoFar, count

#: M9, and the two of the same kind that came later.
REFUSALS = frozenset(
    {
        "SAFETY", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "LANGUAGE", "RECITATION", "IMAGE_SAFETY",
        "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION",
    }
)  # fmt: skip
MALFORMED = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MALFORMED_RESPONSE"})
#: CONTINUATION: the token limit of one request, under another name.
TRUNCATED = frozenset({"MAX_TOKENS", "CONTINUATION"})
#: An event has at least one of these.
_FIELDS = frozenset({"candidates", "promptFeedback", "usageMetadata", "error"})
_UNSET = frozenset({"FINISH_REASON_UNSPECIFIED", "BLOCKED_REASON_UNSPECIFIED", "BLOCK_REASON_UNSPECIFIED", ""})


class Reply:
    """One model call's reply, as far as it has come."""

    def __init__(self, credential: Credential | None = None) -> None:
        self._credential = credential
        self._calls = 0
        self._usage = UsageSoFar(usage_of)
        self._finish: str | None = None
        self._finish_message: str = ""
        self._blocked: str | None = None

    @property
    def finished(self) -> bool:
        """Whether the provider has said how it ended. More may follow: some models repeat it in every event."""
        return self._finish is not None or self._blocked is not None

    @property
    def ended(self) -> bool:
        """Never: this provider has no end marker."""
        return False

    def take(self, event: ServerEvent) -> list[Chunk]:
        """The chunks of one event, as it came."""
        value = wire_json.decode_or_none(event[0])
        if type(value) is not dict:
            if says_nothing(event.data):
                return []
            raise fault_of_event(PROVIDER, event.data)
        return self.take_event(value)

    def take_whole(self, value: Json) -> Iterator[Chunk] | None:
        """Gateways that do not know `alt=sse` answer with all events at once, as a list."""
        events = [event for event in (value if isinstance(value, list) else [value]) if isinstance(event, dict)]
        if not any(_FIELDS & event.keys() for event in events):
            return None
        return chain.from_iterable(map(self.take_event, events))

    def take_event(self, event: dict[str, Json]) -> list[Chunk]:
        chunks: list[Chunk] = []
        candidates = event.get("candidates")
        if candidates and isinstance(candidates, list) and isinstance(candidate := candidates[0], dict):
            if candidate.get("index"):
                # Of several candidates, should somebody ask for them, only the first is ours.
                candidate = next(
                    (other for other in candidates if isinstance(other, dict) and not other.get("index")), {}
                )
            content = candidate.get("content")
            if isinstance(content, dict) and isinstance(parts := content.get("parts"), list):
                for part in parts:
                    if type(part) is not dict:
                        continue
                    # The common case first: text and nothing else.
                    if len(part) == 1 and type(text := part.get("text")) is str:
                        if text:
                            chunks.append(TextChunk(text))
                    else:
                        self._take_part(part, chunks)
            if "finishReason" in candidate:
                self._take_finish(candidate)
        elif (error := event.get("error")) is not None:
            raise fault_of_error(
                error if isinstance(error, Mapping) else {"message": wire_json.as_text(error)},
                None,
                {},
                self._credential,
            )
        usage = event.get("usageMetadata")
        if isinstance(usage, dict):
            figures = self._usage.figures
            first = not figures
            figures.update(usage)
            if first:
                # Told at once, so that a reply cut short has its input counted; the final figures come with the end.
                chunks.extend(self._usage.news())
        feedback = event.get("promptFeedback")
        if isinstance(feedback, dict) and (reason := wire_json.as_text(feedback.get("blockReason"))) not in _UNSET:
            self._blocked = ": ".join(filter(None, (reason, wire_json.as_text(feedback.get("blockReasonMessage")))))
        return chunks

    def end(self) -> list[Chunk]:
        """What the end of the stream adds. `NetworkFault` if the provider never said that it was done (L14)."""
        if self._blocked is not None:
            return [*self._usage.news(), Done("refusal", clean_message(self._blocked, self._credential))]
        reason = self._finish
        if reason is None:
            raise NetworkFault(
                "gemini's reply ended without a finish reason: it was cut off; try again", provider=PROVIDER
            )
        detail = f"{reason}: {self._finish_message}" if self._finish_message else reason
        if reason in MALFORMED:
            raise MalformedReply(f"gemini could not finish its own tool call ({detail}); try again", provider=PROVIDER)
        if reason in REFUSALS:
            done = Done("refusal", detail)
        elif reason in TRUNCATED:
            done = Done("max_tokens", detail if reason != "MAX_TOKENS" else None)
        else:
            done = Done("tool_use" if self._calls else "end_turn", None if reason == "STOP" else detail)
        return [*self._usage.news(), done]

    def _take_part(self, part: dict[str, Json], chunks: list[Chunk]) -> None:
        text = part.get("text")
        call = part.get("functionCall")
        if isinstance(call, dict):
            if isinstance(text, str) and text:
                chunks.append(ThinkingChunk(text) if part.get("thought") is True else TextChunk(text))
            self._take_call(part, call, chunks)
        elif isinstance(text, str):
            thought = part.get("thought") is True
            rest = {key: value for key, value in part.items() if key not in ("text", "thought")}
            if text or rest:
                opaque = Opaque(PROVIDER, rest) if rest else None
                chunks.append(ThinkingChunk(text, opaque=opaque) if thought else TextChunk(text, opaque))
        elif isinstance(blob := part.get("inlineData"), dict) and isinstance(blob.get("data"), str):
            opaque = _rest(part, "inlineData", blob, ("mimeType", "data"))
            chunks.append(PartChunk(Media(wire_json.as_text(blob.get("mimeType")), data=blob["data"], opaque=opaque)))
        elif isinstance(file := part.get("fileData"), dict) and isinstance(file.get("fileUri"), str):
            opaque = _rest(part, "fileData", file, ("mimeType", "fileUri"))
            chunks.append(PartChunk(Media(wire_json.as_text(file.get("mimeType")), uri=file["fileUri"], opaque=opaque)))
        elif part:
            chunks.append(PartChunk(ProviderPart(Opaque(PROVIDER, part))))

    def _take_call(self, part: dict[str, Json], call: dict[str, Json], chunks: list[Chunk]) -> None:
        index = self._calls
        self._calls += 1
        given = call.get("id")
        opaque = _rest(part, "functionCall", call, ("id", "name", "args"), ("text", "thought"))
        chunks.append(
            CallStart(index, wire_json.as_text(call.get("name")), given if isinstance(given, str) else None, opaque)
        )
        arguments = call.get("args")
        if isinstance(arguments, str):
            chunks.append(CallDelta(index, arguments))
            arguments = None
        elif arguments is None:
            arguments = {}
        chunks.append(CallEnd(index, arguments, opaque))

    def _take_finish(self, candidate: dict[str, Json]) -> None:
        reason = wire_json.as_text(candidate["finishReason"]).upper()
        if reason in _UNSET:
            return
        self._finish = reason
        said = [wire_json.as_text(candidate.get("finishMessage"))]
        ratings = candidate.get("safetyRatings")
        for rating in ratings if isinstance(ratings, list) else ():
            if isinstance(rating, dict) and rating.get("blocked") is True:
                said.append(wire_json.as_text(rating.get("category")))
        self._finish_message = clean_message(" ".join(filter(None, said)), self._credential)


def usage_of(metadata: Mapping[str, Json]) -> Usage:
    """Gemini counts thoughts apart from the answer and tool results apart from the prompt; ours are sums, with parts in their own buckets."""
    thoughts = count(metadata, "thoughtsTokenCount")
    return Usage(
        input=_sum(count(metadata, "promptTokenCount"), count(metadata, "toolUsePromptTokenCount")),
        output=_sum(count(metadata, "candidatesTokenCount"), thoughts),
        cache_read=count(metadata, "cachedContentTokenCount"),
        reasoning=thoughts,
    )


def _sum(left: int | None, right: int | None) -> int | None:
    return right if left is None else left + (right or 0)


def _rest(
    part: dict[str, Json],
    kind: str,
    inner: dict[str, Json],
    known: tuple[str, ...],
    beside: tuple[str, ...] = (),
) -> Opaque | None:
    """The fields of a part that our own classes have no place for."""
    rest = {key: value for key, value in part.items() if key != kind and key not in beside}
    if within := {key: value for key, value in inner.items() if key not in known}:
        rest[kind] = within
    return Opaque(PROVIDER, rest) if rest else None
