"""A model that plays a script: for tests, demos and benchmarks. In process, no network, deterministic (M15).

    model = Scripted([
        reply("Let me look.", call("order_status", order_id="17")),
        reply("It is on its way."),
    ])

A script is a list of replies, one for each model call, in order; or functions of the request that give one, or `(predicate, reply)` pairs that may
serve any number of calls. A reply is a list of items: chunks as they are, text (cut into deltas), calls, thinking, and faults: `stall`, `drop`, `fail`.
Every request is kept in `requests`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Literal, TypeAlias, get_args

import trio

from trouper._errors import UsageError
from trouper.core.messages import Json, Opaque, Usage
from trouper.core.values import frozen
from trouper.models._errors import ModelError, ModelFault, NetworkFault
from trouper.models.chunks import CallDelta, CallEnd, CallStart, Chunk, Done, TextChunk, ThinkingChunk, UsageChunk
from trouper.models.protocol import ModelRequest


@frozen
class Stall:
    """Nothing comes for so long, then the stream goes on."""

    seconds: float


@frozen
class Drop:
    """The connection is lost."""


@frozen
class Fail:
    """The provider fails here: before anything was sent, opening fails; later, the stream does."""

    error: ModelError


_Exhausted: TypeAlias = Literal["error", "repeat", "cycle"]
_Mishap: TypeAlias = Stall | Drop | Fail
Item: TypeAlias = Chunk | _Mishap
Play: TypeAlias = tuple[Item, ...]
#: A reply, or its text alone; or a function that finds one for a request; or one that is for every request of some kind.
Scene: TypeAlias = Play | str | Callable[[ModelRequest], Play | str] | tuple[Callable[[ModelRequest], bool], Play]


def text(whole: str, deltas: int = 1) -> Play:
    """Text in `deltas` pieces of about the same length."""
    size = max(1, -(-len(whole) // deltas))
    return tuple(TextChunk(whole[i : i + size]) for i in range(0, len(whole), size)) or (TextChunk(""),)


def think(whole: str, signature: str | None = None, opaque: Opaque | None = None) -> Play:
    """Reasoning, with its signature if there is one."""
    chunks: Play = (ThinkingChunk(whole),) if whole else ()
    return (*chunks, ThinkingChunk("", signature, opaque)) if signature or opaque else chunks


@frozen
class _Call:
    """A call whose index is given when the reply is put together."""

    name: str
    arguments: Json
    #: The JSON text to stream instead, which may be broken.
    raw: str | None = None
    id: str | None = None
    opaque: Opaque | None = None
    parsed: bool = True


def call(
    name: str, arguments: Json = None, /, *, id: str | None = None, opaque: Opaque | None = None, **named: Json
) -> _Call:
    """A tool call with its arguments parsed: `call("add", a=1, b=2)` or `call("add", {"a": 1})`."""
    return _Call(name, named if arguments is None else arguments, id=id, opaque=opaque)


def raw_call(name: str, json_text: str, /, *, id: str | None = None) -> _Call:
    """A tool call whose arguments come as text, broken or not."""
    return _Call(name, None, raw=json_text, id=id, parsed=False)


def stall(seconds: float) -> Play:
    """Silence for so long."""
    return (Stall(seconds),)


def drop() -> Play:
    """The connection breaks off here."""
    return (Drop(),)


def fail(error: ModelError) -> Play:
    """The call fails here, with this error."""
    return (Fail(error),)


def reply(
    *items: str | _Call | Item | Sequence[Item],
    stop: str | None = None,
    usage: Usage | None = None,
    deltas: int = 1,
    end: bool = True,
) -> Play:
    """One whole reply: strings become text, calls get their indices, and the end marker follows unless `end=False`."""
    played: list[Item] = []
    calls = 0
    for item in items:
        match item:
            case str():
                played.extend(text(item, deltas))
            case _Call():
                played.append(CallStart(calls, item.name, item.id, item.opaque))
                if item.raw is not None:
                    played.append(CallDelta(calls, item.raw))
                played.append(CallEnd(calls, item.arguments if item.parsed else None))
                calls += 1
            case tuple() | list():
                played.extend(item)
            case _:
                played.append(item)  # type: ignore[arg-type]
    if usage is not None:
        played.append(UsageChunk(usage))
    if end:
        played.append(Done(stop or ("tool_use" if calls else "end_turn")))
    return tuple(played)


class Scripted:
    """Plays its script. When it has run out: `"error"` (default) fails the call, `"repeat"` plays the last reply again, `"cycle"` starts over."""

    def __init__(
        self,
        script: Iterable[Scene],
        *,
        exhausted: _Exhausted = "error",
        name: str = "scripted:model",
        context_window: int | None = None,
        first_delay_s: float = 0.0,
        delay_s: float = 0.0,
    ) -> None:
        self.name = name
        self.context_window = context_window
        self.requests: list[ModelRequest] = []
        self._scenes: list[Play | Callable[[ModelRequest], Play | str]] = []
        self._rules: list[tuple[Callable[[ModelRequest], bool], Play]] = []
        if isinstance(script, str):
            raise UsageError(f"the script {script!r} is one text; write Scripted([{script!r}]), a list of replies")
        if exhausted not in get_args(_Exhausted):
            raise UsageError(f"exhausted={exhausted!r} is unknown; use one of {', '.join(get_args(_Exhausted))}")
        scene: Any  # Looked at here, whatever it is.
        for scene in script:
            if callable(scene):
                self._scenes.append(scene)
            elif not isinstance(scene, Sequence):
                raise UsageError(f"{scene!r} is no reply; write Scripted([reply(...), ...])")
            elif len(scene) == 2 and callable(scene[0]):
                self._rules.append((scene[0], scene[1]))
            else:
                self._scenes.append(_checked(scene))
        self._next = 0
        self._exhausted = exhausted
        self._first_delay_s = first_delay_s
        self._delay_s = delay_s
        #: Streams opened and not yet closed; 0 when nothing leaks.
        self.open_streams = 0

    def __repr__(self) -> str:
        return f"<Scripted {self.name} at reply {self._next} of {len(self._scenes)}>"

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        self.requests.append(request)
        return _Stream(self, self._play_for(request))

    def _play_for(self, request: ModelRequest) -> Play:
        for predicate, play in self._rules:
            if predicate(request):
                return play
        if self._next >= len(self._scenes):
            if self._exhausted == "error" or not self._scenes:
                error = ModelFault(
                    f"the script has no reply number {self._next + 1}; add one, or set exhausted='repeat'"
                )
                return (Fail(error),)
            if self._exhausted == "cycle":
                self._next = 0
            else:
                self._next = len(self._scenes) - 1
        scene = self._scenes[self._next]
        self._next += 1
        return _checked(scene(request)) if callable(scene) else scene


def _checked(play: Any) -> Play:
    if isinstance(play, str):
        return reply(play)
    known = (*Chunk.__args__, Stall, Drop, Fail)
    for item in play:
        if not isinstance(item, known):
            raise UsageError(f"{item!r} cannot be played; write reply(...) around text and calls")
    return tuple(play)


class _Stream:
    """One playing of one reply. Does not yield to the scheduler between chunks that are due at once: what is there is there.

    An iterator by hand rather than an async generator, which would have to be closed wherever a reader stops early.
    """

    __slots__ = ("_delay_s", "_items", "_model", "_play", "_started")

    def __init__(self, model: Scripted, play: Play) -> None:
        self._model = model
        self._play = play
        self._items = iter(play)
        self._started = False
        self._delay_s = model._first_delay_s

    async def __aenter__(self) -> AsyncIterator[Chunk]:
        if self._play and isinstance(self._play[0], Fail):
            raise self._play[0].error
        self._model.open_streams += 1
        self._started = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._started:
            self._model.open_streams -= 1

    def __aiter__(self) -> _Stream:
        return self

    async def __anext__(self) -> Chunk:
        for item in self._items:
            if self._delay_s:
                await trio.sleep(self._delay_s)
            self._delay_s = self._model._delay_s
            if not isinstance(item, _Mishap):
                return item
            if isinstance(item, Fail):
                raise item.error
            if isinstance(item, Drop):
                raise NetworkFault("the connection was lost in mid-stream")
            await trio.sleep(item.seconds)
        raise StopAsyncIteration
