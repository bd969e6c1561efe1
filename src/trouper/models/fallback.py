"""One model in place of another that fails: before any progress, and never after (M6).

    model = Fallback(Gemini("gemini-3-pro"), Gemini("gemini-3-flash"), OpenAICompatible("local", base_url=...))

Whatever stops a model before it has said anything (it is overloaded, its key is wrong, its stream breaks off, or nothing comes for `patience_s`) hands the
request to the next one. Once somebody may have seen output, a failure is a failure. Each switch is logged, and recorded as a retry of the step.

Without `patience_s` a silent model has as long as the step's own deadlines say; when these give it up, the next attempt goes to the next model.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import TypeAlias

import trio

from trouper._errors import ConfigError
from trouper.core.messages import Fault
from trouper.core.values import changed
from trouper.foreign import Redact, alone, chain_of, from_outside
from trouper.models._errors import ModelError, NetworkFault, as_model_error
from trouper.models.chunks import CallStart, Chunk, Done, PartChunk, Switched, TextChunk, ThinkingChunk, UsageChunk
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

logger = logging.getLogger("trouper.models")

#: So many are taken in one go, where a client has them ready.
_CHUNKS_MAX = 256
#: Steps that were given up in a model's silence, and may be asked again: no more than these are remembered.
_GIVEN_UP_MAX = 1_024

#: A step: its session, turn, number and purpose.
_Step: TypeAlias = tuple[str, int, int, str]


class Fallback:
    """The first of several models that answers."""

    def __init__(self, primary: Model, *others: Model, patience_s: float | None = None) -> None:
        for model in (primary, *others):
            if model is None:
                raise ConfigError("None is no model; name at least two of trouper.models")
            check_model(model)
        if not others:
            raise ConfigError(f"there is nothing to fall back to from {name_of(primary)!r}; name at least two models")
        self.models: tuple[Model, ...] = (primary, *others)
        self._patience_s = patience_s
        #: The attempt of a step that its deadlines gave up before any progress, and how many models it had come to the end of, the silent one included.
        self._given_up: dict[_Step, tuple[int, int]] = {}
        #: Who knows what must not show in a log.
        self._confidants: weakref.WeakSet[Confidant] = weakref.WeakSet()

    @property
    def name(self) -> str:
        """`provider:model`, as events and errors show it."""
        return " or ".join(name_of(model) for model in self.models)

    @property
    def context_window(self) -> int | None:
        """The smallest: the request has to fit whichever model answers."""
        known = [window for window in map(window_of, self.models) if window is not None]
        return min(known) if known else None

    def __repr__(self) -> str:
        return f"<Fallback {self.name}>"

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        return _Stream(self.models, request, self._patience_s, self._given_up, self._redact)

    def confide_in(self, confidant: Confidant) -> None:
        """All the models' keys."""
        self._confidants.add(confidant)
        for model in self.models:
            confide_in(model, confidant)

    def _redact(self, text: str) -> str:
        for confidant in self._confidants:
            text = confidant.text(text)
        return text

    def forget_session(self, session: str) -> None:
        """All the models may."""
        for model in self.models:
            forget_session(model, session)

    async def aclose(self) -> None:
        """Close the idle connections of all the models."""
        for model in self.models:
            await close_model(model)


class _Stream:
    """A class rather than a generator: the streams of the models are opened and closed in the caller's own task and scope."""

    def __init__(
        self,
        models: Sequence[Model],
        request: ModelRequest,
        patience_s: float | None,
        given_up: dict[_Step, tuple[int, int]],
        redact: Redact,
    ) -> None:
        self._models = list(models)
        self._count = len(models)
        self._given_up = given_up
        self._request = request
        self._patience_s = patience_s
        self._redact = redact
        #: The stream of the model that is being tried, within a scope of its own.
        self._opened = AsyncExitStack()
        self._scope = trio.CancelScope()
        self._chunks: AsyncIterator[Chunk] | None = None
        self._failures: list[tuple[str, ModelError]] = []
        #: What came before the first progress: told only once it is sure which model answers.
        self._held: list[Chunk] = []
        self._settled = False
        #: What is raised when everything that is held was told: there is no model left.
        self._failed: ModelError | None = None

    async def __aenter__(self) -> AsyncIterator[Chunk]:
        for _ in range(self._silent_before()):
            self._switch(NetworkFault(f"{name_of(self._models[0])} said nothing for as long as the step could wait"))
        await self._begin()
        return self

    def _silent_before(self) -> int:
        """How many models the attempt before this one has been through, if it was given up for the silence of the last of them. All: then they all begin anew."""
        attempt, silent = self._given_up.pop(self._step, (0, 0))
        return silent if self._request.attempt == attempt + 1 and silent < self._count else 0

    def _note_given_up(self) -> None:
        """Whoever cancels this may have had enough of a silent model: if the step is asked again, another one has its turn (L13)."""
        self._given_up[self._step] = (self._request.attempt, self._count - len(self._models) + 1)
        if len(self._given_up) > _GIVEN_UP_MAX:
            del self._given_up[next(iter(self._given_up))]

    @property
    def _step(self) -> _Step:
        request = self._request
        return request.session, request.turn, request.step, request.purpose

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._opened.__aexit__(kind, error, trace)

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        while not self._settled:
            try:
                await self._settle()
            except BaseException as error:
                try:
                    await self._leave(error)
                    await self._begin()
                except ModelError as all_failed:
                    self._failed, self._settled = all_failed, True
        if self._held:
            return self._held.pop(0)
        if self._failed is not None:
            raise self._failed
        assert self._chunks is not None
        return await self._chunks.__anext__()

    async def _begin(self) -> None:
        """Open the next model that can be opened."""
        while True:
            self._opened = AsyncExitStack()
            # Stays open as long as the stream does: scopes that the model opens have to close before it.
            self._scope = self._opened.enter_context(trio.CancelScope(deadline=self._deadline()))
            try:
                self._chunks = await self._opened.enter_async_context(self._models[0].stream(self._request))
                self._opened.push_async_callback(_close, self._chunks)
                return
            except BaseException as error:
                await self._leave(error)

    async def _settle(self) -> None:
        """Read up to the first progress."""
        assert self._chunks is not None
        came = 0
        while not self._settled:
            came += 1
            if came % _CHUNKS_MAX == 0:
                await trio.lowlevel.checkpoint()  # A client that never waits must not keep everybody else waiting.
            try:
                chunk = await self._chunks.__anext__()
            except StopAsyncIteration:
                raise NetworkFault("the stream ended without its end marker; it was cut off") from None
            self._held.append(chunk)
            self._settled = _is_progress(chunk)
        self._scope.deadline = float("inf")

    async def _leave(self, error: BaseException) -> None:
        """Close the stream of a model that failed, and go on to the next; a cancel from outside passes through."""
        opened, self._opened = self._opened, AsyncExitStack()
        try:
            caught = await opened.__aexit__(type(error), error, error.__traceback__)
        except BaseException as raised:
            error, caught = raised, False
        if not caught and (outside := from_outside(error)) is not None:
            self._note_given_up()
            raise outside
        error = alone(error)
        if self._scope.cancelled_caught:
            self._switch(NetworkFault(f"{name_of(self._models[0])} said nothing for {self._patience_s} s"))
        else:
            if not isinstance(error, ModelError):
                told = chain_of(error, self._redact)
                logger.error("the client of model %r failed: %s", name_of(self._models[0]), told)
            self._switch(as_model_error(error, "the client"))

    def _switch(self, error: ModelError) -> None:
        """On to the next model, with a word about it; raises when there is none left."""
        failed = name_of(self._models.pop(0))
        self._failures.append((failed, error))
        # What it has cost is billed all the same.
        self._held = [chunk for chunk in self._held if isinstance(chunk, Switched | UsageChunk)]
        if not self._models:
            raise self._all_failed() from error
        told = self._redact(str(error))
        logger.warning(
            "model %s failed before any progress (%s); going on with %s", failed, told, name_of(self._models[0])
        )
        fault: Fault = error.as_fault()
        self._held.append(
            Switched(changed(fault, message=f"{failed}: {fault.message}; going on with {name_of(self._models[0])}"))
        )

    def _all_failed(self) -> ModelError:
        """The last model's error, with what the others said; worth another try if that holds for any of them."""
        last = self._failures[-1][1]
        faults = [(name, error.as_fault()) for name, error in self._failures]
        told = "; ".join(f"{name}: {fault.message}" for name, fault in faults)
        hints = [fault.retry_after_s for _, fault in faults if fault.retryable and fault.retry_after_s is not None]
        # A class of somebody's own may be made in another way than ours.
        kind: type[ModelError] = next(each for each in type(last).__mro__ if each.__module__ == ModelError.__module__)
        return kind(
            f"every model failed. {told}",
            retryable=any(fault.retryable for _, fault in faults),
            retry_after_s=min(hints) if hints else None,
            status=getattr(last, "status", None),
            provider=getattr(last, "provider", None),
        )

    def _deadline(self) -> float:
        # The last model has nobody to hand over to: the step's own deadlines are enough for it.
        if self._patience_s is None or len(self._models) == 1:
            return float("inf")
        return trio.current_time() + self._patience_s


async def _close(chunks: AsyncIterator[Chunk]) -> None:
    """A generator that was not read to its end is closed here and now, in its own task."""
    if (close := getattr(chunks, "aclose", None)) is not None:
        await close()


def _is_progress(chunk: Chunk) -> bool:
    match chunk:
        case TextChunk(text) | ThinkingChunk(text):
            return bool(text) and not text.isspace()
        case CallStart() | PartChunk() | Done():
            return True
        case _:
            return False
