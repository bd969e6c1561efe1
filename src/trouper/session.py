"""A session as its users hold it: send, stream, interrupt, look. A handle; the actor behind it owns the state."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

import trio

from trouper import checks, codec, past
from trouper._errors import CommandRejected, TrouperError, UsageError
from trouper.actors.audience import SessionEvent
from trouper.actors.errors import ActorGone, AskLost, MailboxFull
from trouper.actors.feed import Feed, Lagged
from trouper.actors.reference import Ref
from trouper.actors.request import ki_safe
from trouper.actors.session import Override, SessionActor, Step
from trouper.actors.tool_call import within_limits
from trouper.attached import Attachment, along_with
from trouper.block import Block
from trouper.core.calls import CallPhase
from trouper.core.commands import Approve, CancelCall, Close, Compact, Configure, DeliverResult, Deny, Interrupt, Submit
from trouper.core.events import ApprovalGiven, CallEnded, CompactionEnded, HistoryMasked, TurnEnded
from trouper.core.ids import CallId, TaskId
from trouper.core.live import CaughtUp, LiveEvent
from trouper.core.messages import Json, Message, Outcome, Usage
from trouper.core.session import EndedTurn, Event, Phase, State
from trouper.core.settings import Budget
from trouper.core.task_events import TaskCancelRequested
from trouper.core.values import changed, frozen
from trouper.journal import JournalFailed
from trouper.models.protocol import Model, check_model, name_of, window_of
from trouper.services.session_side import BackgroundSide
from trouper.subscription import Subscription
from trouper.tools.results import ToolResult
from trouper.turn import Turn, TurnResult, schema_of_output

if TYPE_CHECKING:
    from trouper.ground import RuntimeGround
    from trouper.resident import Resident
    from trouper.services.desk import Desk


@frozen
class SessionStatistics:
    """A session in figures: see `Session.statistics()`."""

    session: str
    phase: str
    turns: int
    steps: int
    tool_calls: int
    messages: int
    #: The best guess at what the history costs to send.
    tokens: int
    usage: Usage
    #: What of `usage` was spent on summaries.
    compaction_usage: Usage
    queued_inputs: int
    events: int
    watchers: int


class SessionEnded(UsageError):
    """The session behind this handle is over: closed, or stopped with its runtime."""


class Session(BackgroundSide):
    """A conversation that the journal keeps. Get one from `Runtime.session()`."""

    def __init__(self, ground: RuntimeGround, resident: Resident) -> None:
        self._ground = ground
        self._resident = resident
        self._actor: SessionActor = resident.actor
        self._ref: Ref[Any, Any] = resident.ref

    def __repr__(self) -> str:
        return f"<Session {self.id!r} {self._state.phase.value}>"

    @property
    def id(self) -> str:
        """The name under which the journal knows it."""
        return self._actor.session

    @property
    def _state(self) -> Any:
        return self._actor.state

    @property
    def _desk(self) -> Desk:
        return self._resident.desk

    @property
    def state(self) -> State:
        """The whole state as of now: a frozen value, the fold of the session's events."""
        return self._actor.state

    # -- talking

    def turn(
        self,
        text: str,
        *,
        attachments: Sequence[Attachment] = (),
        output: type | Mapping[str, Json] | None = None,
        model: Model | None = None,
        attended: bool = True,
    ) -> AbstractAsyncContextManager[Turn]:
        """Start a turn and stream it. Leaving the block early interrupts the turn.

        `output`: a JSON Schema, or a class to get an object of, that the final text must follow. `model`: for this turn only. `attended`: whoever
        reads the events can approve calls; if nobody can, calls that need an approval are denied.
        """
        block = _Watched(self, attended, (text, attachments, output, model))
        return Block(block, "async with session.turn(...) as turn:")

    async def _begin(
        self,
        feed: Feed,
        feeds: list[Feed],
        text: str,
        attachments: Sequence[Attachment],
        output: type | Mapping[str, Json] | None,
        model: Model | None,
    ) -> Turn:
        """Start a turn that `feed` hears of from its beginning. Whoever starts it has to `_leave` it."""
        self._check_here()
        schema = schema_of_output(output)
        command = self._submit(text, attachments, schema)
        if model is not None:
            check_model(model)
        await self._ask_hooks(text)
        # Whoever is cancelled already begins nothing: from here on nothing can be called back.
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._ground.door.is_crowded:
            await self._ground.door.give_way_to_turns()
        shape = None if output is None or isinstance(output, Mapping) else output
        begun = await self._through_the_gate(command, feed, feeds, model, shape)
        return Turn(self, feed, begun.state.turns, output)

    async def _ask_hooks(self, text: str) -> None:
        """Whatever way a user's words come in, the hooks that guard turns are asked first (T5)."""
        await self._actor.hooks_begun()
        for hook in self._actor.outfit.hooks:
            verdict = await hook.ask_before_turn(self.id, text, self._actor.redact_text)
            if verdict.denied is not None:
                told = checks.brief(verdict.denied, self._actor.redact_text)
                raise CommandRejected(f"a hook denied this turn: {told}", session=self.id)

    @ki_safe  # A Ctrl-C right behind the gate would take a place there for good.
    async def _through_the_gate(
        self, command: Submit, feed: Feed, feeds: list[Feed], model: Model | None, shape: type | None
    ) -> Step:
        if model is None and shape is None:
            return await self._submitted(command, feed, feeds)
        if model is not None:
            self._ground.models.meet(model)
            options = changed(command.options, model=name_of(model), window=window_of(model))
            command = changed(command, options=options)
        override = Override(command, model, shape)
        self._actor.overrides.append(override)
        try:
            return await self._submitted(command, feed, feeds)
        finally:
            self._actor.overrides.remove(override)

    async def _submitted(self, command: Submit, feed: Feed, feeds: list[Feed]) -> Step:
        gate, actor = self._ground.beginning, self._actor
        await gate.enter()
        feeds.append(feed)
        try:
            # Shielded, either way: whether the turn began has to be known, or nobody could end it.
            if actor.is_resting:
                return await self._answer(actor.begin_turn(command))
            # It may take long until it listens, and that is the trouble of this session alone (I23).
            gate.leave()
            return await self._answer(self._ref.ask_shielded(command))
        except BaseException:
            feeds.remove(feed)
            raise

    async def _leave(self, turn: Turn, feeds: list[Feed]) -> None:
        """End it, if it has not ended by itself."""
        feeds.remove(turn._feed)
        if turn.result is not None:
            return
        if self._state.turn is not None and self._state.turn.number == turn.number:
            stopped = await self._stop_left(Interrupt(self._now(), "the caller left the turn", turn.number))
            if not stopped:
                return
        running = self._state.turn
        if running is None or running.number != turn.number:
            turn._finish()

    async def ask(
        self,
        text: str,
        *,
        attachments: Sequence[Attachment] = (),
        output: type | Mapping[str, Json] | None = None,
        model: Model | None = None,
    ) -> TurnResult:
        """A whole turn, awaited to its end. Raises only for misuse; a failed turn is a result with `error`."""
        feed = Feed(1, only=TurnEnded)  # Nobody watches: the end is all that matters.
        turn = await self._begin(feed, self._actor.audience.ends, text, attachments, output, model)
        try:
            return await turn.wait_ended()
        finally:
            await self._leave(turn, self._actor.audience.ends)

    async def send(self, text: str, *, attachments: Sequence[Attachment] = ()) -> None:
        """Queue input. Between turns it starts one; during a turn it steers (taken in before the next model call).

        What is still queued when a turn is interrupted, or its process ends, starts none by itself: it goes along with the next input.
        """
        command = changed(self._submit(text, attachments, None), steer=True)
        await self._ask_hooks(text)
        await self._ask(command)

    async def interrupt(self, reason: str = "") -> None:
        """End the running turn, if any. Returns when it is recorded and its work has really stopped, or the grace period is over."""
        await self._wait_stopped(await self._begin_interrupt(reason))

    async def _begin_interrupt(self, reason: str) -> Step:
        """It is recorded; whether anybody waits until the work has stopped is theirs to say."""
        return await self._ask(Interrupt(self._now(), self._reason(reason)))

    async def _wait_stopped(self, stopped: Step) -> None:
        with trio.move_on_after(self._actor.outfit.limits.grace_s):
            for running in stopped.cancelled:
                await running.wait_done()
            for event in stopped.events:
                if type(event) is TaskCancelRequested:
                    # Its end is a record of its own, and until then it takes the place of another run (B6).
                    await self._wait_task_ended(event.task_id)

    async def _stop_left(self, command: Interrupt) -> bool:
        """Stop what its caller no longer waits for, whatever is cancelled; false if there was nobody left to be told."""
        with trio.CancelScope(shield=True):
            try:
                while True:
                    try:
                        await self._wait_stopped(await self._ask(command))
                        break
                    except MailboxFull:
                        with suppress(ActorGone):
                            await self._ref.send(None)  # As soon as there is room.
            except (SessionEnded, CommandRejected, JournalFailed):
                return False
        return True

    async def _wait_task_ended(self, id: TaskId) -> None:
        while id in self._state.tasks.live and await self._actor.watches.wait_task(id):
            pass

    async def cancel(self, id: str, reason: str = "") -> None:
        """Cancel a call or a background task by its id. Returns when its work has really stopped and its end is recorded, or the grace period is over."""
        await self._wait_stopped(await self._begin_cancel(id, reason))

    async def _begin_cancel(self, id: str, reason: str) -> Step:
        call = CallId(checks.text(id, "the id of a call or task"))
        return await self._ask(CancelCall(call, self._now(), self._reason(reason)))

    async def compact(self) -> CompactionEnded | HistoryMasked | None:
        """Make the context smaller now, and tell what was done, with the tokens before and after.

        `HistoryMasked`: old tool results were replaced by notes, and the rest is too short to sum up. `CompactionEnded`: the model was asked for a summary;
        `how` says what came of it; where the budget is spent it is not asked, and `fault` says so. `None`: there was nothing worth doing.
        """
        self._check_here()
        feed = Feed(1, only=CompactionEnded)
        self._actor.audience.turns.append(feed)
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            begun = await self._begin_compaction()
            if begun.state.phase is not Phase.TIDYING:
                # The last one: it may have been masked before the budget was found spent.
                told = (event for event in reversed(begun.events) if isinstance(event, CompactionEnded | HistoryMasked))
                return next(told, None)
            try:
                async for event in feed:
                    ended: CompactionEnded = event
                    return ended
            finally:
                if self._state.compacting is begun.state.compacting:
                    await self._stop_left(Interrupt(self._now(), "the caller left the compaction", 0))
            await trio.lowlevel.checkpoint_if_cancelled()
            raise self._gone("ended before its compaction did; open it again to see what became of it")
        finally:
            self._actor.audience.turns.remove(feed)

    async def _begin_compaction(self) -> Step:
        outfit = self._actor.outfit
        budget = outfit.budget
        caps = (budget.tokens, budget.steps, budget.tool_calls)
        command = Compact(self._now(), outfit.limits.compaction, window_of(outfit.model), *caps)
        # Shielded: whether it began has to be known, or nobody could end it.
        return await self._ask(command, shielded=True)

    async def close(self, reason: str = "") -> None:
        """End the session for good. What runs is cancelled; the journal keeps everything. Returns when all of it has stopped, or the grace period is over.

        In a hook of its own, which the session waits for at its end, it returns when the end is recorded and the work has stopped.
        """
        command = Close(self._now(), self._reason(reason))
        try:
            closed = await self._ask(command)
        except CommandRejected:
            if self._state.phase is not Phase.CLOSED:
                raise
            await trio.lowlevel.checkpoint()
            return  # Over already.
        with trio.move_on_after(self._actor.outfit.limits.grace_s):
            for running in closed.cancelled:
                await running.wait_done()
            if not self._ref.is_around:
                await self._ref.wait_exit()

    # -- approvals and client-side calls

    @property
    def approvals(self) -> tuple[CallId, ...]:
        """The calls that wait for somebody's approval."""
        return tuple(call for call, _ in self._state.approvals)

    async def approve(self, call: str, *, always: bool = False, by: str = "") -> None:
        """Allow one call, as it stands; with `always`, every later call of this tool in this session. One that does not wait for it is refused: `CommandRejected`."""
        checks.text(call, "the id of a call")
        checks.text(by, "by", checks.NAME_MAX)
        checks.yes_or_no(always, "always")
        answered = await self._ask(Approve(CallId(call), self._now(), by, always))
        if not any(isinstance(event, ApprovalGiven) for event in answered.events):
            raise CommandRejected(f"call {call!r} waits for an approval no longer: it has lapsed", call=call)

    async def deny(self, call: str, reason: str = "") -> None:
        """Refuse one call; the model reads the reason. One that does not wait for an approval, or no longer, is refused: `CommandRejected`."""
        checks.text(call, "the id of a call")
        denied = await self._ask(Deny(CallId(call), self._now(), self._reason(reason)))
        # Somebody may have approved it at the same moment, and then it runs.
        if not any(isinstance(event, CallEnded) for event in denied.events):
            raise CommandRejected(
                f"call {call!r} is not waiting for an approval; it may have been approved, or have ended or lapsed",
                call=call,
            )

    async def answer(self, call: str, content: Json, *, error: bool = False) -> None:
        """The result of a client-side call, which waits for it (`CallHeld`) for at most `Limits.answer_s`. One that does not is refused: `CommandRejected`.

        The model sees of it what it would see of a tool's: at most `Limits.tool_output_bytes`, and the rest is kept with the session's files.
        """
        checks.text(call, "the id of a call")
        checks.plain_json(content, "the answer")
        outcome = Outcome.ERROR if error else Outcome.OK
        content = codec.loads(codec.dumps(content))  # As the journal will hold it.
        kept: str | None = None
        if self._is_held(call):  # Of an answer that nobody waits for nothing is kept: it is refused.
            limit = self._actor.limits.tool_output_bytes
            content, kept = await within_limits(CallId(call), ToolResult(content, is_error=error), self._actor, limit)
        await self._ask(
            DeliverResult(CallId(call), outcome, self._now(), content=content, full_output=kept, is_answer=True)
        )

    def _is_held(self, call: str) -> bool:
        turn = self._state.turn
        return turn is not None and any(each.id == call and each.phase is CallPhase.HELD for each in turn.calls)

    # -- looking

    @property
    def history(self) -> tuple[Message, ...]:
        """What the next request would send. Compaction changes it; the journal keeps what was before."""
        messages: tuple[Message, ...] = self._state.history.messages[:]
        return messages

    def events(self, after: int = -1) -> Subscription[SessionEvent]:
        """Recorded events from `after` + 1 on: those in the journal, then new ones as they come. No gap, no repeat.

        A reader that is too slow for the live feed reads on from the journal; the session never waits for it.
        """
        actor = self._actor
        return Subscription(
            actor.audience.events,
            actor.outfit.limits.subscriber_events,
            after,
            number=lambda told: told.seq,
            settle=lambda told: self._ground.settle(None if told is None else told.record),
            past=lambda after, last: past.events(
                self._ground.log, self.id, after, actor.next_seq, 0 if last is None else last.record
            ),
            is_over=lambda: self._ref.exit is not None,
            check_here=self._check_here,
        )

    @contextmanager
    def watch(self, *, attended: bool = True) -> Iterator[AsyncIterator[Event | LiveEvent]]:
        """Every event from now on, live ones and recorded ones, whoever's turn it is: also of turns that a notification starts.

        A reader that is too slow gets `CaughtUp` in place of what it missed. `attended`: whoever watches can approve calls (as in `turn`).
        """
        with self._watching(attended=attended) as events:
            yield events

    @contextmanager
    def _watching(self, *, attended: bool = True) -> Iterator[Watching]:
        self._check_here()
        feed = Feed(self._actor.outfit.limits.subscriber_events, attended=attended)
        if self._ref.exit is not None:
            feed.end()  # Nothing will come any more.
        self._actor.audience.turns.append(feed)
        try:
            yield Watching(feed, self._check_here)
        finally:
            self._actor.audience.turns.remove(feed)

    def statistics(self) -> SessionStatistics:
        """Figures as of now."""
        state = self._state
        return SessionStatistics(
            session=self.id,
            phase=state.phase.value,
            turns=state.turns,
            steps=state.spent.steps,
            tool_calls=state.spent.tool_calls,
            messages=len(state.history.messages),
            tokens=state.tokens,
            usage=state.spent.usage,
            compaction_usage=state.spent.compaction,
            queued_inputs=len(state.queue),
            events=self._actor.next_seq,
            watchers=len(self._actor.audience.turns) + len(self._actor.audience.events),
        )

    @property
    def last(self) -> EndedTurn | None:
        """What became of the last turn, also of one that an earlier process left behind; `None` before the first."""
        return self.state.last

    # -- inside

    async def _opened(self, system: str | None, own: tuple[str, ...], budget: Budget | None) -> None:
        """Wait until the actor has loaded; take over a new system prompt, and note what else it was given of its own."""
        # Shielded: it has that already, and a cancel would leave no note of it.
        shielded = bool(own) or budget is not None
        try:
            await self._ask(None, shielded=shielded)
        except CommandRejected:
            if self._state.phase is not Phase.CLOSED:
                raise
            # It is over, and so is its actor, sooner or later; it can be looked at all the same.
        state = self._state
        if system is None:
            system = state.system
        # What it was given in another process, it is not taken up without either.
        own = tuple(sorted({*state.own, *own})) if own and state.phase is not Phase.CLOSED else state.own
        if budget is None or state.phase is Phase.CLOSED:
            budget = state.budget
        if (system, own, budget) != (state.system, state.own, state.budget):
            await self._ask(Configure(system, own, budget), shielded=shielded)

    def _submit(self, text: str, attachments: Sequence[Attachment], schema: Mapping[str, Json] | None) -> Submit:
        outfit = self._actor.outfit
        media = along_with(text, attachments, outfit.limits)
        return Submit(
            text=text,
            at=self._now(),
            options=outfit.turn_options(schema),
            attachments=media,
            queue_max=outfit.limits.queued_inputs,
        )

    def _check_here(self) -> None:
        # When it is closed there is nothing to wake: then its end is the better answer, to whoever can be told within trio.
        if not self._ground.closed or not trio.lowlevel.in_trio_task():
            self._ground.home.check()

    async def _ask(self, command: Any, *, shielded: bool = False) -> Step:
        self._check_here()
        return await self._answer((self._ref.ask_shielded if shielded else self._ref.ask)(command))

    async def _answer(self, asked: Awaitable[Step]) -> Step:
        """What the actor says to it, or why it says nothing."""
        try:
            return await asked
        except MailboxFull as full:
            raise MailboxFull(
                f"session {self.id!r} has {full.capacity} requests waiting, which is Limits.mailbox; try again later",
                name=full.name,
                capacity=full.capacity,
            ) from None
        except (ActorGone, AskLost) as error:
            # Whoever is cancelled together with the session that it asks is told of the cancel, not of a session that has ended.
            await trio.lowlevel.checkpoint_if_cancelled()
            if self._state.phase is Phase.CLOSED:
                raise CommandRejected(
                    f"session {self.id!r} is closed, and stays so; open another one", session=self.id
                ) from error
            if isinstance(error, AskLost):
                raise self._gone(
                    "failed while it handled this and was restarted; look at its state, then try again"
                ) from error
            again = f"runtime.session({self.id!r})"
            raise self._gone(
                f"is gone: its runtime is closed; open that again, then {again}"
                if self._ground.closed
                else f"has ended; open it again with {again}"
            ) from error

    def _gone(self, how: str) -> TrouperError:
        """Why there is nobody to answer. Where the journal has failed, that is why: no session can go on, nor be opened again."""
        failure = self._ground.writer.failure
        if failure is not None:
            return JournalFailed(failure.message, **failure.facts)
        if why := self._actor.failed_with:
            how = f"has failed for good, with {why}; see to that, then open it again with runtime.session({self.id!r})"
        return SessionEnded(f"session {self.id!r} {how}", session=self.id)

    def _now(self) -> float:
        return self._ground.environment.now()


class _Watched(AbstractAsyncContextManager[Turn]):
    """A turn that its caller watches. An object, since a generator and what it closes over take several times the room."""

    __slots__ = ("_attended", "_session", "_turn", "_what")

    def __init__(
        self,
        session: Session,
        attended: bool,
        what: tuple[str, Sequence[Attachment], type | Mapping[str, Json] | None, Model | None],
    ) -> None:
        self._session = session
        self._attended = attended
        self._what = what
        self._turn: Turn | None = None

    async def __aenter__(self) -> Turn:
        actor = self._session._actor
        feed = Feed(actor.outfit.limits.subscriber_events, attended=self._attended)
        turn = self._turn = await self._session._begin(feed, actor.audience.turns, *self._what)
        return turn

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._turn is not None
        await self._session._leave(self._turn, self._session._actor.audience.turns)


class Watching:
    """An object rather than a generator: whoever stops reading in the middle leaves nothing behind that has to be closed."""

    def __init__(self, feed: Feed, check_here: Callable[[], None]) -> None:
        self._feed = feed
        self._check_here = check_here

    def __aiter__(self) -> Watching:
        return self

    @property
    def waiting(self) -> int:
        """How many there are that nobody has read yet."""
        return self._feed.waiting

    async def __anext__(self) -> Event | LiveEvent:
        if not self._feed.batch:
            self._check_here()
        try:
            event: Event | LiveEvent = await self._feed.receive()
            return event
        except Lagged:
            return CaughtUp()
