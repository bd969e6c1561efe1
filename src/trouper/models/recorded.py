"""Recording a model's streams, and playing them again without a network (M5).

    model = Recorded(Gemini("gemini-3-flash"), "talk.jsonl")     # once, with a key
    model = Cassette("talk.jsonl")                               # ever after

A cassette is a file of JSON lines, one a model call: the request, the chunks exactly as they came, and how the stream ended. It holds what was said, so it is
made readable for its owner only; keys are never part of a request, and `redact` may cut out more. The journal needs no cassette: `chunks_of` gives back the
stream of every reply that it holds.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal

import trio
from attrs import frozen

from trouper import codec
from trouper._errors import ConfigError
from trouper.core.events import ModelReplied
from trouper.core.messages import Json, Media, ProviderPart, Text, Thinking, ToolAnswer, ToolCall
from trouper.models import _errors
from trouper.models._errors import ModelError, ModelFault, NetworkFault
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
from trouper.models.protocol import (
    Confidant,
    Model,
    ModelRequest,
    check_model,
    close_model,
    confide_in,
    forget_session,
    name_of,
    window_of,
)

VERSION = 1
#: What tells one request from another. Whose it is and how often it was tried does not; `extra` may hold headers, and is not kept.
_ASKED = (
    *("messages", "system", "tools", "tool_choice", "parallel_tool_calls", "max_output_tokens", "temperature"),
    *("response_schema", "model", "purpose"),
)
_WHOSE = ("session", "turn", "step", "attempt")
_CHUNKS: Mapping[str, type] = {
    kind.__name__: kind
    for kind in (
        *(TextChunk, ThinkingChunk, CallStart, CallDelta, CallEnd, PartChunk, UsageChunk, KeepAlive, Switched, Done),
    )
}
_ERRORS: Mapping[str, type[ModelError]] = {
    name: kind for name, kind in vars(_errors).items() if isinstance(kind, type) and issubclass(kind, ModelError)
}


class CassetteMismatch(ModelFault):
    """No recording answers this request."""


class CassetteOver(ModelFault):
    """Every recording has been played."""


@frozen
class Recording:
    """One model call: what was asked, what came, and how it ended."""

    asked: Mapping[str, Json]
    chunks: tuple[Chunk, ...]
    #: The error that ended it, by the name of its class and with its fields.
    error: Mapping[str, Json] | None = None
    #: The caller left before the end.
    cut: bool = False


# --- recording ---


class Recorded:
    """Another model, with every call written to a cassette. Calls are appended: remove the file to start anew."""

    def __init__(
        self, model: Model, path: str | os.PathLike[str], *, redact: Callable[[str], str] | None = None
    ) -> None:
        if model is None:
            raise ConfigError("None is no model; name one of trouper.models to record")
        check_model(model)
        self.model = model
        self._path = os.fspath(path)
        self._redact = redact
        # Opened once at the start: a path that cannot be written is found before any money is spent.
        try:
            self._calls = sum(1 for _ in _lines(self._path)) if os.path.exists(self._path) else 0
            self._append(b"")
        except OSError as error:
            raise ConfigError(
                f"cassette {self._path!r} cannot be written: {error.strerror}; choose another path", path=self._path
            ) from error

    @property
    def name(self) -> str:
        """`provider:model`, as events and errors show it."""
        return name_of(self.model)

    @property
    def context_window(self) -> int | None:
        """How many tokens fit, if known."""
        return window_of(self.model)

    def confide_in(self, confidant: Confidant) -> None:
        """The keys of the model."""
        confide_in(self.model, confidant)

    def forget_session(self, session: str) -> None:
        """The model may."""
        forget_session(self.model, session)

    async def aclose(self) -> None:
        """Close the idle connections of the model."""
        await close_model(self.model)

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[Chunk]]:
        number = self._calls
        self._calls += 1
        heard: list[Chunk] = []
        error: ModelError | None = None
        try:
            async with self.model.stream(request) as chunks:
                yield _heard(chunks, heard)
        except ModelError as failure:
            error = failure
            raise
        finally:
            cut = error is None and not any(isinstance(chunk, Done) for chunk in heard)
            self._write(number, request, heard, error, cut)

    def _write(
        self, number: int, request: ModelRequest, heard: list[Chunk], error: ModelError | None, cut: bool
    ) -> None:
        written = _request_to_json(request)
        line: dict[str, Json] = {
            "v": VERSION,
            "n": number,
            "model": name_of(self.model),
            "asked": written,
            "whose": {name: getattr(request, name) for name in _WHOSE},
            "chunks": [_chunk_to_json(chunk) for chunk in heard],
        }
        if error is not None:
            line["error"] = _error_to_json(error)
        if cut:
            line["cut"] = True
        self._append(codec.dumps(_redacted(line, self._redact) if self._redact is not None else line) + b"\n")

    def _append(self, line: bytes) -> None:
        # One write at the end of a call, here rather than in a thread: it is a small one, and must not be lost to a cancel.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while line:
                line = line[os.write(descriptor, line) :]
        finally:
            os.close(descriptor)


async def _heard(chunks: AsyncIterator[Chunk], heard: list[Chunk]) -> AsyncIterator[Chunk]:
    try:
        async for chunk in chunks:
            heard.append(chunk)
            yield chunk
    finally:
        if (close := getattr(chunks, "aclose", None)) is not None:
            await close()


def _request_to_json(request: ModelRequest) -> dict[str, Json]:
    whole = codec.to_json(request)
    # As it will be read again, so that what is compared later is alike.
    asked: dict[str, Json] = codec.loads(codec.dumps({name: whole[name] for name in _ASKED if name in whole}))
    return asked


def _chunk_to_json(chunk: Chunk) -> dict[str, Json]:
    return {"chunk": type(chunk).__name__, **codec.to_json(chunk)}


def _error_to_json(error: ModelError) -> dict[str, Json]:
    fault = error.as_fault()
    # A client may have a class of its own: what it is a case of is what counts when it is raised again.
    known = next(kind.__name__ for kind in type(error).__mro__ if _ERRORS.get(kind.__name__) is kind)
    return {
        "error": known,
        "message": fault.message,
        "retryable": fault.retryable,
        "retry_after_s": fault.retry_after_s,
        "status": getattr(error, "status", None),
        "provider": getattr(error, "provider", None),
    }


def _redacted(value: Any, redact: Callable[[str], str]) -> Any:
    match value:
        case str():
            return redact(value)
        case Mapping():
            return {key: _redacted(inner, redact) for key, inner in value.items()}
        case list() | tuple():
            return [_redacted(inner, redact) for inner in value]
        case _:
            return value


# --- playing ---


class Cassette:
    """Plays recordings again. `match`: by "request" (each recording answers the request that it was made for, in any order), or by "order", whatever is asked."""

    def __init__(
        self,
        recordings: str | os.PathLike[str] | Iterable[Recording],
        *,
        match: Literal["request", "order"] = "request",
        name: str = "cassette:model",
        context_window: int | None = None,
    ) -> None:
        self.name = name
        self.context_window = context_window
        self.requests: list[ModelRequest] = []
        self._match = match
        self._waiting: list[Recording] = (
            list(read_cassette(recordings)) if isinstance(recordings, str | os.PathLike) else list(recordings)
        )
        self._count = len(self._waiting)

    @classmethod
    def of_replies(cls, replies: Iterable[ModelReplied], **settings: Any) -> Cassette:
        """A player of the replies that a journal holds, in their order."""
        return cls((Recording({}, chunks_of(each)) for each in replies), match="order", **settings)

    @property
    def left(self) -> int:
        """How many recordings have not been played."""
        return len(self._waiting)

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[Chunk]]:
        self.requests.append(request)
        await trio.lowlevel.checkpoint()
        recording = self._take(request)
        if recording.error is not None and not recording.chunks:
            raise _error_from_json(recording.error)
        yield _played(recording)

    def _take(self, request: ModelRequest) -> Recording:
        if not self._waiting:
            raise CassetteOver(
                f"the cassette has {self._count} recordings, and all have been played; record this conversation anew"
            )
        if self._match == "order":
            return self._waiting.pop(0)
        asked = _request_to_json(request)
        for position, recording in enumerate(self._waiting):
            if recording.asked == asked:
                return self._waiting.pop(position)
        raise CassetteMismatch(
            f"no recording answers request {len(self.requests)}: {_difference(self._waiting[0].asked, asked)}; "
            "record it anew, or play by order"
        )


async def _played(recording: Recording) -> AsyncIterator[Chunk]:
    for chunk in recording.chunks:
        yield chunk
    if recording.error is not None:
        raise _error_from_json(recording.error)
    if recording.cut:
        raise NetworkFault("the recording was cut off here: its caller had left")


def read_cassette(path: str | os.PathLike[str]) -> Iterator[Recording]:
    """The recordings of a cassette, in the order in which the calls were begun."""
    found: list[tuple[int, Recording]] = []
    try:
        for number, line in enumerate(_lines(os.fspath(path)), 1):
            try:
                found.append(_recording(codec.loads(line)))
            except (codec.UndecodableRecord, KeyError, TypeError, ValueError) as error:
                raise ConfigError(
                    f"line {number} of cassette {os.fspath(path)!r} is no recording: {error}; record it anew",
                    line=number,
                ) from error
    except OSError as error:
        raise ConfigError(
            f"cassette {os.fspath(path)!r} cannot be read: {error.strerror}; check the path", path=os.fspath(path)
        ) from error
    found.sort(key=lambda pair: pair[0])
    return (recording for _, recording in found)


def _lines(path: str) -> Iterator[bytes]:
    with open(path, "rb") as file:
        yield from (line for line in file if line.strip())


def _recording(value: Mapping[str, Json]) -> tuple[int, Recording]:
    if value["v"] != VERSION:
        raise ValueError(f"it has version {value['v']!r}, and this Trouper reads version {VERSION}")
    chunks = tuple(codec.from_json(each, _CHUNKS[each["chunk"]]) for each in value["chunks"])
    return value["n"], Recording(value["asked"], chunks, value.get("error"), value.get("cut", False))


def _error_from_json(value: Mapping[str, Json]) -> ModelError:
    kind = _ERRORS.get(value["error"], ModelFault)
    return kind(
        value["message"],
        retryable=value["retryable"],
        retry_after_s=value["retry_after_s"],
        status=value["status"],
        provider=value["provider"],
    )


def _difference(recorded: Mapping[str, Json], asked: Mapping[str, Json]) -> str:
    """In what a request differs from the recording that would be next."""
    for name in _ASKED:
        if recorded.get(name) == asked.get(name):
            continue
        if name != "messages":
            return f"{name!r} is {_short(asked.get(name))}, and was {_short(recorded.get(name))}"
        before, now = recorded.get(name) or [], asked.get(name) or []
        for position, (then, this) in enumerate(zip(before, now, strict=False)):
            if then != this:
                return f"message {position} is {_short(this)}, and was {_short(then)}"
        return f"it has {len(now)} messages, and the recording has {len(before)}"
    return "an equal one has been played already"


def _short(value: Json) -> str:
    text = codec.dumps(value).decode("ascii")
    return text if len(text) <= 200 else f"{text[:200]}..."


# --- from a journal ---


def chunks_of(replied: ModelReplied) -> tuple[Chunk, ...]:
    """The stream that a recorded reply was made from: text and thinking in the very pieces that came; calls whole, with the arguments as everybody saw them."""
    cuts = list(reversed(replied.cuts))
    chunks: list[Chunk] = []
    calls = 0

    def pieces(text: str, closed: bool = False) -> Iterator[str]:
        start = 0
        while cuts and start < len(text):
            end = start + cuts.pop()
            yield text[start:end]
            start = end
        if start < len(text):  # Not recorded with the event: one piece.
            yield text[start:]
        # Empty pieces at the end are this part's own, unless its last piece sealed it.
        while cuts and cuts[-1] == 0 and (not closed or not text):
            cuts.pop()
            yield ""
            if closed:
                return

    for part in replied.message.parts:
        match part:
            case Text(text, opaque):
                made = [TextChunk(piece) for piece in pieces(text, opaque is not None)] or [TextChunk("")]
                made[-1] = TextChunk(made[-1].text, opaque)
                chunks += made
            case Thinking(text, signature, opaque):
                chunks += [ThinkingChunk(piece) for piece in pieces(text, True) if piece]
                if signature is not None or opaque is not None:
                    chunks.append(ThinkingChunk("", signature, opaque))
            case ToolCall():
                chunks.append(CallStart(calls, part.name, part.provider_id, part.opaque))
                chunks.append(CallEnd(calls, part.arguments))
                calls += 1
            case Media() | ProviderPart():
                chunks.append(PartChunk(part))
            case ToolAnswer():
                pass  # Never part of a reply.
    if replied.usage != type(replied.usage)():
        chunks.append(UsageChunk(replied.usage))
    chunks.append(Done(replied.stop_reason, replied.detail))
    return tuple(chunks)
