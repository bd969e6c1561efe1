"""One step's model call: open, stream, watch the clock, try again where that is safe, and say what came out.

Trying again is safe only before any progress: output that somebody has seen is never produced twice (L13). A call that was refused while opening
is tried three more times; one that stalls or is dropped before it said anything is opened again, six attempts in all.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import trio

from trouper import checks
from trouper.actors.draft import Draft, check_fault
from trouper.actors.ground import WorkHost
from trouper.actors.running import Running
from trouper.core.commands import NoteProgress, NoteRetry
from trouper.core.history import repaired, without_signatures
from trouper.core.live import CallAnnounced, TextDelta, ThinkingDelta
from trouper.core.messages import NO_USAGE, Fault, Usage
from trouper.core.settings import Deadlines, Limits, Retry
from trouper.core.values import changed, frozen
from trouper.foreign import Redact, alone, chain_of, from_outside
from trouper.models._errors import (
    HistoryRefused,
    MalformedReply,
    ModelError,
    ModelFault,
    NetworkFault,
    as_model_error,
)
from trouper.models.chunks import (
    CallDelta,
    CallEnd,
    CallStart,
    Chunk,
    KeepAlive,
    Switched,
    TextChunk,
    ThinkingChunk,
    UsageChunk,
)
from trouper.models.protocol import Model, ModelRequest, name_of

R = TypeVar("R")
logger = logging.getLogger("trouper.models")

#: A crash loses at most this much of what was seen: the first piece is noted after the first interval, the rest every so often (J1).
_FIRST_NOTE_S = 0.1
_NOTE_EVERY_S = 0.5

#: Who is told to wait longer than this does not: the turn ends, and its fault says how long it would have been (L11).
_ADVICE_MAX_S = 3_600.0

#: So many are taken in one go, where a client has them ready.
_CHUNKS_MAX = 256

#: Chunks that do not hold off the idle deadline (L12).
_NO_SPEECH = frozenset({KeepAlive, UsageChunk})
#: Chunks that nobody who watches hears of, and that have no text.
_UNTOLD = frozenset({CallDelta, CallEnd})
_BLANK = (TextChunk(""), ThinkingChunk(""))


@frozen
class Failed:
    """The call failed for good; the draft holds what had been said."""

    fault: Fault


class Connecting:
    """Called by a client that has its connection: from then on it may take as long as to a first event (L12). Each of several clients has that time, if one follows on another (M6)."""

    __slots__ = ("_first_event_s", "is_connected", "running", "step_end")

    def __init__(self, deadlines: Deadlines) -> None:
        self._first_event_s = deadlines.first_event_s
        self.step_end = math.inf
        self.is_connected = False
        #: While its stream is opened, and no longer: whoever keeps a request would keep all that belongs to its call.
        self.running: Running | None = None

    def __call__(self) -> None:
        if self.running is not None:
            self.is_connected = True
            self.running.extend(min(self.running.clock() + self._first_event_s, self.step_end))


class ModelCall:
    """Runs one request to its end. The draft is there for the session to look at, should it interrupt."""

    def __init__(
        self,
        model: Model,
        request: ModelRequest,
        connecting: Connecting,
        limits: Limits,
        jitter: random.Random,
        redact: Redact,
        host: WorkHost | None = None,
        has_hooks: bool = False,
    ) -> None:
        self._model = model
        self._request = request
        self._connecting = connecting
        self._limits = limits
        self._jitter = jitter
        self._redact = redact
        #: Who hears of it while it is under way: of a step, its session; of a summary, nobody.
        self._host = host
        #: Whether `finish` asks hooks about the calls.
        self._has_hooks = has_hooks
        self.draft = Draft()
        #: What the attempts before the one under way have cost, as far as the provider has said.
        self.retried = NO_USAGE
        self._noted_text = self._noted_thinking = 0
        self._noted = False
        #: Whether the attempt under way got as far as a stream, and its number.
        self._streaming = False
        self._number = 1
        #: What the attempt under way failed with, and the chances that were given once.
        self._error: ModelError | None = None
        self._malformed = 0
        self._repaired = False

    async def run(self, running: Running, finish: Callable[[Draft | Failed], Awaitable[R]]) -> R | None:
        """Ask until there is a reply or a fault for good, and let `finish` make something of it; `None` if the work was stopped.

        Each attempt has one scope, for its deadlines and for a stop; `finish` runs in the last one.
        """
        retry = self._limits.retry
        opens_left = retry.opens
        step_s = self._limits.deadlines.step_s
        read_clock = running.clock
        now = read_clock()
        step_end = self._connecting.step_end = now + step_s if step_s is not None else math.inf
        attempt, delay = 1, 0.0
        while True:
            with running.until(min(now + delay + self._limits.deadlines.connect_s, step_end)):
                if delay:
                    await trio.sleep(delay)
                fault = await self._attempt(attempt, running, step_end)
                if fault is None:
                    if self._has_hooks:
                        running.extend(math.inf)  # They take the time that they take.
                    return await finish(self.draft)
            if running.stopped:
                return None
            if running.cancelled_caught and self.draft.done is not None:
                # The reply is complete; it is only the client that does not get its stream closed.
                with running.until():
                    return await finish(self.draft)
                return None
            if running.cancelled_caught:
                fault = NetworkFault(self._silence(step_end)).as_fault()
            assert fault is not None
            final = self.draft.progressed or attempt >= retry.attempts or not self._worth_another(fault)
            final = final or (fault.retry_after_s or 0.0) > _ADVICE_MAX_S
            if not final and not self._streaming:
                final = opens_left == 0
                opens_left -= 1
            quick = isinstance(self._error, MalformedReply | HistoryRefused)
            delay = 0.0 if quick else backoff_s(retry, attempt, fault.retry_after_s, self._jitter)
            now = read_clock()
            if final or now + delay >= step_end:
                with running.until():
                    return await finish(Failed(fault))
                return None
            if not isinstance(self._error, MalformedReply):
                self._tell_retry(attempt, fault, delay)
            attempt += 1
            self.retried = self.usage
            self.draft = Draft()
            self._noted_text = self._noted_thinking = 0

    @property
    def usage(self) -> Usage:
        """What all attempts have cost so far: whoever reports it bills it, also what came to nothing (L24)."""
        return self.retried + self.draft.usage

    def _worth_another(self, fault: Fault) -> bool:
        """Whether to try again, and what has to be different then. A broken reply and a refused history get one more chance each (M9, M10)."""
        match self._error:
            case MalformedReply():
                self._malformed += 1
                return self._malformed == 1
            case HistoryRefused():
                if self._repaired:
                    return False
                self._repaired = True
                self._request = changed(self._request, messages=without_signatures(repaired(self._request.messages)))
                return True
            case _:
                return fault.retryable

    async def _attempt(self, attempt: int, running: Running, step_end: float) -> Fault | None:
        """One stream, read to its end; why it failed, if it did. Running into the scope's deadline is a failure too, seen by the caller."""
        self._streaming = False
        self._connecting.running = running
        self._connecting.is_connected = False
        self._number = attempt
        self._error = None
        try:
            request = self._request if attempt == 1 else changed(self._request, attempt=attempt)
            async with self._model.stream(request) as chunks:
                self._streaming = True
                self._connecting.running = None
                try:
                    await self._read(chunks, running, step_end, self._limits.deadlines)
                finally:
                    # A generator that was not read to its end would be closed by the garbage collector, in a task of its own, some day.
                    if (close := getattr(chunks, "aclose", None)) is not None:
                        await close()
        except BaseException as raised:  # A client is foreign code: what it raises ends this call, not the session.
            self._connecting.running = None
            running.close_left_open()
            client = f"the client of model {name_of(self._model)!r}"
            if (outside := from_outside(raised)) is not None:
                if outside is raised:
                    raise
                logger.warning("%s failed while it was cancelled: %s", client, chain_of(raised, self._redact))
                raise outside from None
            if self.draft.done is not None:
                # Everything was said by then; only closing failed.
                logger.warning("%s failed after its reply: %s", client, chain_of(raised, self._redact))
                return None
            own = alone(raised)
            if not isinstance(own, ModelError):
                logger.error("%s failed: %s", client, chain_of(raised, self._redact))
            self._error = as_model_error(own, client)
            try:
                fault = self._error.as_fault()
                check_fault(fault)
            except Exception as untold:  # The class may be the client's own, and say it in a way of its own.
                logger.error("%s raised an error that cannot be told: %s", client, chain_of(untold, self._redact))
                self._error = ModelFault(f"{client} raised {type(own).__name__}")
                fault = self._error.as_fault()
            return fault
        if self.draft.done is None:
            return NetworkFault("the stream ended without its end marker; it was cut off").as_fault()
        return None

    async def _read(
        self, chunks: AsyncIterator[Chunk], running: Running, step_end: float, deadlines: Deadlines
    ) -> None:
        draft, host = self.draft, self._host
        publish = None
        if host is not None and host.audience.turns:
            publish = host.publish_live
            text_id = f"m_{self._request.turn}_{self._request.step}"
            thinking_id = f"r_{self._request.turn}_{self._request.step}"
        read_clock = running.clock
        now = read_clock()
        running.extend(min(now + deadlines.first_event_s, step_end))
        note_at = now + _FIRST_NOTE_S if host is not None else math.inf
        limit = self._limits.reply_chars
        came = 0
        async for chunk in chunks:
            came += 1
            if came % _CHUNKS_MAX == 0:
                # A client that never waits must not keep everybody else waiting; nor can its own deadlines pass before others have had their turn.
                await trio.lowlevel.checkpoint()
            if type(chunk) is Switched:
                check_fault(chunk.fault)
                self.retried, draft.usage = self.usage, NO_USAGE
                self._tell_retry(self._number, chunk.fault, 0.0)
                continue
            draft.add(chunk)
            if draft.done is not None:
                return
            kind = type(chunk)
            if kind in _NO_SPEECH:
                continue
            is_told = kind not in _UNTOLD
            if is_told and not getattr(chunk, "text", True) and chunk in _BLANK:
                continue  # Some servers send empty text to keep the connection open: that is no speech either (L12).
            now = read_clock()
            idle_end = now + deadlines.idle_s
            running.extend(idle_end if idle_end < step_end else step_end)
            if is_told and publish is not None:
                if isinstance(chunk, TextChunk):
                    if chunk.text:
                        publish(TextDelta(text_id, chunk.text))
                elif isinstance(chunk, CallStart):
                    publish(CallAnnounced(chunk.name, chunk.index))
                elif isinstance(chunk, ThinkingChunk) and chunk.text:
                    publish(ThinkingDelta(thinking_id, chunk.text))
            if now >= note_at:
                self.note()
                note_at = now + _NOTE_EVERY_S
            if draft.chars > limit:
                raise ModelFault(f"the reply is longer than {limit} characters; the limit is Limits.reply_chars")

    def note(self) -> None:
        """Have what was said since the last note recorded, in case nothing else comes of it."""
        if self._host is None:
            return
        text, thinking = self.draft.text, self.draft.thinking
        # A secret must not slip through in two halves (J8).
        settled = self._host.ground.redact.settled
        text_end = max(settled(text), self._noted_text)
        thinking_end = max(settled(thinking), self._noted_thinking)
        more = text_end > self._noted_text or thinking_end > self._noted_thinking
        # That something was seen is noted even if no word of it is whole: it must never be said twice (L13).
        if self.draft.progressed and (more or not self._noted):
            self._noted = True
            turn, step = self._request.turn, self._request.step
            new_text, new_thinking = text[self._noted_text : text_end], thinking[self._noted_thinking : thinking_end]
            self._host.tell(NoteProgress(turn, step, new_text, new_thinking))
            self._noted_text, self._noted_thinking = text_end, thinking_end

    def _tell_retry(self, attempt: int, fault: Fault, delay_s: float) -> None:
        if self._host is not None:
            fault = changed(fault, message=checks.brief(fault.message, self._redact))
            self._host.tell(NoteRetry(self._request.turn, self._request.step, attempt, fault, delay_s))

    def _silence(self, step_end: float) -> str:
        deadlines = self._limits.deadlines
        if trio.current_time() >= step_end:
            return f"the step took longer than {deadlines.step_s} s"
        if not self._streaming and self._connecting.is_connected:
            return f"no reply for {deadlines.first_event_s} s"
        if not self._streaming:
            return f"no connection within {deadlines.connect_s} s"
        if not self.draft.progressed:
            return f"the stream was silent for {deadlines.first_event_s} s"
        return f"the stream stalled: nothing for {deadlines.idle_s} s"


def backoff_s(retry: Retry, attempt: int, advised_s: float | None, jitter: random.Random) -> float:
    """Doubling from the first delay to the cap, jittered downwards by up to a quarter; a provider's own advice comes first (L11)."""
    if advised_s is not None:
        return advised_s
    # A power of two that a float can hold, however often it was tried.
    delay = min(retry.max_delay_s, retry.first_delay_s * 2.0 ** min(attempt - 1, 1_000))
    return delay * (1.0 - 0.25 * jitter.random())
