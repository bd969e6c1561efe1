"""The session actor: receive commands, decide, journal, evolve, act, reply.

All meaning is in `core`; this file carries it out. After each batch of commands the children are reconciled with `outstanding(state)`: work that is
no longer wanted has its scope cancelled, work that is wanted and not running is started. An interrupt, a budget that runs out, a closed session and
resuming after a crash are all this one path.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Any, Final

import trio
from attrs import define, field

from trouper import codec
from trouper._errors import CommandRejected, TrouperError
from trouper.actors.ahead import may_go_ahead
from trouper.actors.audience import Audience
from trouper.actors.batch import Batch, Failure, gather
from trouper.actors.errors import ActorGone, AskLost, MailboxFull
from trouper.actors.gate import Gate
from trouper.actors.ground import Ground, Outfit, Started
from trouper.actors.holds import Holds
from trouper.actors.hook_events import HookEvents, Seen, Telling
from trouper.actors.recording import Taken, take
from trouper.actors.reference import Inbox, Ref
from trouper.actors.request import Reply, ki_safe
from trouper.actors.restart import Restart
from trouper.actors.running import Running
from trouper.actors.runs import OBSERVED, RunGround
from trouper.actors.turnstile import Turnstile
from trouper.actors.watches import Watches
from trouper.actors.work import Worker
from trouper.core.abridged import abridged
from trouper.core.commands import (
    ActFire,
    CancelCall,
    Close,
    Command,
    DeliverDue,
    EndTurn,
    Interrupt,
    OpenSession,
    Recover,
    SpillCalls,
    Submit,
)
from trouper.core.events import CallEnded, ModelReplied, TurnEnded, TurnStarted
from trouper.core.ids import CallId
from trouper.core.live import LiveEvent
from trouper.core.messages import Json, ToolSpec
from trouper.core.notification import NotificationLimits
from trouper.core.outstanding import WorkKey, is_at_rest, outstanding
from trouper.core.schedule import ClaimFires, ScheduleLimits
from trouper.core.session import CLOSED, NEW, THINKING, Event, State
from trouper.core.settings import Budget, Limits
from trouper.core.task_events import CreateTask, EndTask, StartTask, TaskEnded
from trouper.core.task_record import Link, NewTask, Owner, TaskLimits
from trouper.core.values import changed, frozen
from trouper.foreign import alone
from trouper.journal import BlobRefused, BlobUnplaced, JournalError, JournalFull
from trouper.models.protocol import Model
from trouper.tools.deferral import TOOL_SEARCH, revealed_by
from trouper.tools.hooks import Hooks, SessionStarted

logger = logging.getLogger("trouper.session")
tools_logger = logging.getLogger("trouper.tools")

#: A session that crashes (a bug of ours, or of a hook) is rebuilt from the journal this often, then it stays down, visibly.
SESSION_RESTART = Restart(on="failure", limit=5, within_s=60.0)

#: Why a turn was interrupted that nobody has stopped: whoever ran it has ended.
SHUT_DOWN, RUNTIME_CANCELLED = "the runtime is shutting down", "the runtime was cancelled"

#: What needs to know how many runs hold a permit at the very moment of the decision (I19).
_PERMITTED = frozenset({SpillCalls, CreateTask, StartTask, ActFire, Recover})
#: What comes without something that only the actor knows.
_INCOMPLETE = _PERMITTED | {Interrupt, EndTurn, Close, DeliverDue}
#: Timers that have to be set again if what they asked for came to nothing: or nobody would ask any more (B15).
_ASKED_AGAIN = {DeliverDue: "deliver", ClaimFires: "due"}
#: Events that mean something to the actor, besides those who watch.
_NOTICED = OBSERVED | {CallEnded, ModelReplied, TurnStarted, TurnEnded}


#: Before the journal was read.
_NEW: Final = State()


@frozen
class Step:
    """The reply to a command: the state after it, the work that it cut short, and the events that came of it."""

    state: State
    cancelled: tuple[Running, ...] = ()
    events: tuple[Event, ...] = ()


@define(eq=False)
class Override:
    """What only the turn that a command is about to begin has: a model, a class for its output. By the very command: models may share a name, and callers a session."""

    command: Command
    model: Model | None
    shape: Any = None

    def on(self, outfit: Outfit) -> Outfit:
        return changed(outfit, model=outfit.model if self.model is None else self.model, shape=self.shape)


@define(eq=False)
class SessionActor:
    """One session. `run` is its task; everything else is called from trio's thread by its handle and its children."""

    session: str
    ground: Ground
    outfit: Outfit
    system: str | None = None
    parent: str | None = None
    #: What of its outfit it was given itself.
    own: tuple[str, ...] = ()
    #: The last that it was given here, which may not be recorded yet; else it is in the journal, or is the runtime's.
    budget: Budget | None = None
    #: It was put to rest in this process, and comes back: hooks have been told that it is here.
    is_back: bool = False
    state: State = _NEW
    #: The number of the next event.
    next_seq: int = 0
    #: What a turn may be started with in place of the session's own (M6).
    overrides: list[Override] = field(factory=list)
    audience: Audience = field(factory=Audience)
    #: The first journal sequence of the batch that is on its way to the disk: not yet part of `state`.
    in_flight: int | None = None
    #: What work has gone on from already, and nobody was told of: it is written, and not yet durable.
    _ahead: Taken | None = None
    #: What it has failed with for good, if it has.
    failed_with: str = ""
    #: When the actor crashed lately, in trio's time.
    _crashes: list[float] = field(factory=list)
    _ref: Ref[Any, Any] | None = None
    _inbox: Inbox[Any, Any] | None = None
    _turnstile: Turnstile = field(factory=Turnstile)
    _nursery: trio.Nursery | None = None
    #: Where hooks look on, if there are any.
    _telling: trio.Nursery | None = None
    _hooks_told: Telling = field(factory=Telling)
    _running: dict[WorkKey, Running] = field(factory=dict)
    _hook_events: HookEvents = field(init=False)
    watches: Watches = field(factory=Watches)
    _owner: Owner | None = None
    _worker: Worker = field(init=False)
    notification_holds: Holds = field(factory=Holds)
    #: What the turn under way was started with.
    specs: tuple[ToolSpec, ...] = ()
    _turn_outfit: Outfit | None = None
    #: The turn that another process began, whose calls were allowed by the rules of that time; 0: none.
    taken_over: int = 0

    # -- the loop. A Ctrl-C does not come down in here: between a decision and its publication it would leave memory behind the disk.

    @ki_safe
    async def run(self, inbox: Inbox[Any, Any]) -> None:
        """The actor's life, once or, after a crash, once more."""
        is_over = True
        try:
            await self._live(inbox)
        except Exception as error:
            now = trio.current_time()
            self._crashes = [at for at in self._crashes if now - at < SESSION_RESTART.within_s] + [now]
            is_over = len(self._crashes) > SESSION_RESTART.limit
            if is_over:
                self.failed_with = _named(alone(error))
            raise
        else:
            if self._is_closed():  # One that was only stopped goes with its runtime.
                self.ground.ended(self.session)
        finally:
            # However it ended, also by a cancel: nobody may wait for what will never come.
            if is_over:
                self._end()

    def _end(self) -> None:
        self.watches.end()
        self.audience.end()
        self.ground.spending.leave(self.session)

    async def _live(self, inbox: Inbox[Any, Any]) -> None:
        self._ref, self._inbox = inbox.ref, inbox
        self._running = {}
        self._worker = Worker(self)
        self.state, self.next_seq = await self.ground.load(self.session)
        self._ahead = self.in_flight = None  # Whatever was on its way has been read.
        budget = self.state.budget if self.budget is None else self.budget
        if budget is not None:
            self.outfit = changed(self.outfit, budget=self.ground.allowed(budget))
        self._hook_events = HookEvents(self.state)
        # One for each start: what an actor that crashed had running is gone, although the process is not.
        self._owner = self.ground.new_owner()
        self.ground.permits.hold(self.session, self.state.tasks.active)
        try:
            async with _room_for(self.outfit.hooks) as self._telling, trio.open_nursery() as nursery:
                self._nursery = nursery
                try:
                    await self._listen(inbox)
                finally:
                    # A hook or a run that asks its own session may do so shielded: nobody would answer it, and we would wait for it.
                    inbox.hang_up()
                await self._leave(SHUT_DOWN)
                nursery.cancel_scope.cancel()
                if self._telling is not None:
                    # Hooks are no work of the session's: those that look at its end, above all, may come to theirs.
                    self._telling.cancel_scope.deadline = trio.current_time() + self.outfit.limits.grace_s
            self._nursery = None
        except BaseException as error:
            self._nursery = None
            if _is_cancel(error):
                # The tree around us is cancelled. The journal outlives us: it is told, as of any other interrupt.
                with suppress(JournalError):
                    await self._leave(RUNTIME_CANCELLED)
            raise

    async def _listen(self, inbox: Inbox[Any, Any]) -> None:
        if self.outfit.hooks and not self.is_back and not self._is_closed():
            self._tell_hooks(SessionStarted(self.session, resumed=self.next_seq > 0))
            # They begin before anybody hears from us, and so before the hooks of a first turn.
            await trio.lowlevel.cancel_shielded_checkpoint()
        self.is_back = False
        await self._begin(inbox)
        if not self._is_closed():
            async for first in inbox:
                await self._handle(gather(first, inbox))
                if self._is_closed():
                    break

    def _is_closed(self) -> bool:
        return self.state.phase is CLOSED

    async def _leave(self, reason: str) -> None:
        """Whatever runs is no longer wanted. What a crash would leave open is closed here."""
        if self._turnstile.taken:
            # A turn that begins is not part of the state before it is on the disk.
            await self._turnstile.wait_free()
        if not self._is_closed() and (self.state.turn is not None or self.state.compacting is not None):
            with trio.CancelScope(shield=True):
                await self._handle([(Interrupt(self.now(), reason), None)])

    async def _begin(self, inbox: Inbox[Any, Any]) -> None:
        """First of all close what a dead process left open, or come into being; then what somebody wants already, in one go."""
        command: Command
        if self.state.phase is NEW:
            command = self._opening()
        else:
            recover = self._recovery()
            command = changed(recover, saved=await self._worker.runs.save_lost(recover))
            if self.state.turn is not None and self._turn_outfit is None:
                # A turn that another process began goes on with what this one has.
                self._turn_outfit, self.specs = self.outfit, self.outfit.specs()
                self.taken_over = self.state.turn.number
        # No shield is needed: what is waited for in there is the disk, which no cancel cuts short.
        await self._handle(gather(command, inbox))
        # Recovery may have had nothing to say, and still there is work that nobody runs yet.
        self.spawn(self._reconcile()[1])

    def _opening(self) -> OpenSession:
        return OpenSession(self.session, self.now(), self.system, self.parent, self.own, self.budget)

    def _recovery(self) -> Recover:
        return Recover(
            self.now(),
            resume=self.outfit.limits.on_restart == "resume",
            owner=self._owner,
            active_in_runtime=self.ground.permits.total,
            reattachable=tuple(
                task.id
                for task in self.state.tasks.live.values()
                if self._can_reattach(task.about.tool, task.about.spec.get("arguments"))
            ),
            task_limits=self.task_limits(),
            notification_attempts=self.limits.notification_attempts,
        )

    def _can_reattach(self, name: str, arguments: Json) -> bool:
        tool = self.outfit.registry.get(name)
        return (
            tool is not None
            and tool.supports_background
            and tool.side_effect != "at_most_once"
            and not self.outfit.preparer.is_denied(tool, arguments)
        )

    def task_limits(self) -> TaskLimits:
        limits = self.outfit.limits
        return TaskLimits(
            per_session=limits.runs_per_session,
            per_runtime=limits.runs_per_runtime,
            retention_s=limits.task_retention_s,
        )

    async def _handle(self, batch: Batch) -> None:
        if self._turnstile.taken:
            await self._turnstile.wait_free()
        with self._turnstile:
            if self.state.tasks.live:
                batch = await self._with_files(batch)
            self.spawn(await self._decide(batch))

    async def _with_files(self, batch: Batch) -> Batch:
        """Whoever closes the session ends its runs; what these leave behind is written first, so that their end can say where it is (B9)."""
        for i, (command, reply) in enumerate(batch):
            if type(command) is Close:
                ended = {before.task_id for before, _ in batch[:i] if type(before) is EndTask}
                close = changed(command, saved=await self._worker.runs.save_abandoned(ended))
                return [*batch[:i], (close, reply), *batch[i + 1 :]]
        return batch

    @property
    def is_resting(self) -> bool:
        """Whether nothing is being decided here, and nothing waits to be."""
        return not (
            self._turnstile.taken or self._inbox is None or not self._inbox.is_resting or self.state.phase is NEW
        )

    @property
    def could_rest(self) -> bool:
        """Whether its state is all there is of it: nothing is to be done, nothing on its way, nobody at work for it and nobody listening."""
        return (
            self.is_resting
            and self.in_flight is None
            and is_at_rest(self.state)
            and not any(nursery is not None and nursery.child_tasks for nursery in (self._nursery, self._telling))
            and not self.notification_holds.any
            and not self.audience.is_there
        )

    @ki_safe
    async def relay(self, command: Command) -> Sequence[Started]:
        """What the session has to hear, as soon as there is room. While the actor rests, whoever brings the command decides on it in the actor's
        place, and gets the work that follows to go on with: that saves both of them the way through the scheduler.
        """
        if not self.is_resting:
            await self._enqueue(command)
            return ()
        with self._turnstile:
            ahead = self._ahead
            state, n = (self.state, self.next_seq) if ahead is None else (ahead.state, ahead.next_seq)
            try:
                taken = self._take(state, n, command)
            except (CommandRejected, JournalFull) as refusal:
                self._refused(command, refusal)
                return ()
            if taken is not None:
                # Nothing may be shown before what it follows on: so what nobody waits for, waits too behind what has gone ahead.
                if (taken.durable or ahead is not None) and not self.ground.writer.is_durable(taken.seq):
                    if ahead is None and self._has_gone_ahead(taken):
                        return self._reconcile()[1]
                    await self.ground.writer.wait_durable(taken.seq)
                _, started = self._adopt((taken,))
            elif type(command) in _ASKED_AGAIN:
                self._ask_again(_ASKED_AGAIN[type(command)])
                _, started = self._reconcile()
            else:
                return ()
            if self.state.phase is CLOSED:
                self.post(None)  # The actor has to see it.
        return started

    @ki_safe
    async def relay_first(self, command: Command) -> Sequence[Started]:
        """The same for something that is due, and that others give way to."""
        if not self.is_resting:
            # Nobody gives way meanwhile: it may take long until there is room, and that is the trouble of this session alone.
            await self._enqueue(command)
            return ()
        with self.ground.door.going_first():
            return await self.relay(command)

    @ki_safe
    async def begin_turn(self, command: Submit) -> Step:
        """What the actor would answer to this question while it rests, by whoever asks: that saves both of them the way through the scheduler.

        The asker has come in at the gate where turns begin; the next is let in when the work of this one begins, or when there is none.
        Raises what the actor would: `CommandRejected`, `JournalFull`, or `AskLost` if it crashes of it. A cancel comes at the next checkpoint.
        """
        gate = self.ground.beginning
        is_left_to_work = False
        try:
            with self._turnstile:
                await self._catch_up()
                taken = self._take(self.state, self.next_seq, command)
                assert taken is not None  # It is refused, or a turn begins.
                await self.ground.writer.wait_durable(taken.seq)
                _, started = self._adopt((taken,))
                begun = Step(self.state)
                if started and self._nursery is not None:
                    # In the actor's own context: tools must not see other context variables for having been started by somebody else.
                    self._nursery.parent_task.context.run(self.spawn, started, gate)
                    is_left_to_work = True
        except (CommandRejected, JournalFull):
            raise
        except Exception as error:
            # It is the session that has failed, not the asker.
            assert self._ref is not None
            begun = await self._ref.ask_shielded(Failure(error))
        finally:
            if not is_left_to_work:
                gate.leave()
        if begun.state.turn is None:
            # Over already, since a budget is spent: who asks again and again has to let the others run.
            await trio.lowlevel.cancel_shielded_checkpoint()
        return begun

    async def _decide(self, batch: Batch) -> Sequence[Started]:
        """Decide on each command in turn, wait for the disk once, and only then let anybody know. Returns the work to be done now."""
        await self._catch_up()
        state, n = self.state, self.next_seq
        taken: list[Taken] = []
        #: Each with the state right after its command: another turn may have begun by the end of the batch.
        replies: list[tuple[Reply[Any], State, tuple[Event, ...], Exception | None]] = []
        stale = False
        #: Why the session could not come into being; then nothing else can be done in it either.
        unopened: Exception | None = None
        if state.phase is NEW and type(batch[0][0]) is not OpenSession:
            batch.insert(0, (self._opening(), None))
        for command, reply in batch:
            refusal = unopened
            events: tuple[Event, ...] = ()
            # Without a command, somebody only asks for the state.
            if command is not None and unopened is None:
                try:
                    latest = self._take(state, n, command)
                except BlobUnplaced as unplaced:
                    if reply is None:
                        raise  # Nobody would hear of it, and bring it again when there is room.
                    refusal = BlobRefused(unplaced.message, **unplaced.facts)
                except (CommandRejected, JournalFull) as refused:
                    refusal = refused
                    if type(command) is OpenSession:
                        unopened = refused
                    self._refused(command, refused, told=reply is not None)
                else:
                    if latest is not None:
                        taken.append(latest)
                        events = latest.record.events
                        state, n = latest.state, n + len(events)
                    elif type(command) in _ASKED_AGAIN:
                        stale = True
                        self._ask_again(_ASKED_AGAIN[type(command)])
            if reply is not None:
                replies.append((reply, state, events, refusal))
        cancelled: Sequence[Running] = ()
        started: Sequence[Started] = ()
        if taken:
            if any(each.durable for each in taken):
                # Shielded inside: between hand-over and acknowledgement a cancel would leave memory and disk apart.
                await self.ground.writer.wait_durable(taken[-1].seq)
            cancelled, started = self._adopt(taken)
        elif stale:
            cancelled, started = self._reconcile()
        for reply, then, events, error in replies:
            if error is None:
                reply.reply(Step(then, tuple(cancelled), events))
            else:
                reply.fail(error)
        return started

    def _take(self, state: State, n: int, command: Command) -> Taken | None:
        """Decide on the command; what follows from it is on its way to the disk, and not yet part of `self.state`."""
        if type(command) in _INCOMPLETE:
            command = self._completed(state, command)
        try:
            taken = take(self.ground, self.session, state, n, command)
        except BlobUnplaced as unplaced:
            # The work has ended, and will not be done again for that: its session goes on with what can be recorded of it.
            lesser = abridged(command, unplaced.message, self.redact_text)
            if lesser is None:
                raise
            logger.warning(
                "session %s: %s is recorded in few words: %s", self.session, type(command).__name__, unplaced
            )
            taken = take(self.ground, self.session, state, n, lesser)
        if taken is None:
            return None
        if self.in_flight is None:
            self.in_flight = taken.seq
        cause = taken.record.cause
        if cause is not command:
            # The journal holds it with something cut out.
            for override in self.overrides:
                if override.command is command:
                    override.command = cause
        return taken

    def _adopt(self, taken: Sequence[Taken]) -> tuple[Sequence[Running], Sequence[Started]]:
        """What was decided, and is on the disk, is the state; those who watch are told, and the work follows."""
        if self._ahead is not None:
            self._show_ahead()
        last = taken[-1]
        self.state, self.next_seq, self.in_flight = last.state, last.next_seq, None
        for each in taken:
            self._publish(each.record, each.seq)
        return self._reconcile()

    # -- going ahead of the disk

    def _has_gone_ahead(self, taken: Taken) -> bool:
        """Where nobody could notice, work goes on from what is only written; those who watch hear of it when it is durable, and `state` has it then."""
        if not may_go_ahead(taken.record.cause, taken.state, self.turn_outfit.registry):
            return False
        if not self.ground.writer.write_ahead(taken.seq, self._ahead_is_durable):
            return False
        self._ahead = taken
        return True

    def _ahead_is_durable(self) -> None:
        """The journal says so. Whoever decides at this moment shows it himself, before what he decides."""
        if self._ahead is not None and not self._turnstile.taken:
            try:
                self._show_ahead()
            except Exception as error:
                # It is this session that has failed, not the journal.
                self.start(self._fail, error)

    async def _fail(self, error: Exception) -> None:
        assert self._ref is not None
        with suppress(ActorGone, AskLost):  # That is what it is meant to come to.
            await self._ref.ask_shielded(Failure(error))

    async def _catch_up(self) -> None:
        if self._ahead is not None:
            await self.ground.writer.wait_durable(self._ahead.seq)
            self._show_ahead()

    def _show_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        assert ahead is not None
        self.state, self.next_seq, self.in_flight = ahead.state, ahead.next_seq, None
        self._publish(ahead.record, ahead.seq)

    def _refused(self, command: Command, refusal: Exception, *, told: bool = False) -> None:
        if type(command) is SpillCalls:
            # No record, no background run: then they have to end here (B2), whether or not there is room to say so at once.
            for each in command.calls:
                reason = f"Its task could not be recorded: {refusal}"
                self.start(self.deliver, CancelCall(each.call, self.now(), reason))
        if not told:
            logger.info("session %s refused %s: %s", self.session, type(command).__name__, refusal)

    def _completed(self, state: State, command: Command) -> Command:
        """With what only we know: an end that comes from outside takes along what the model has said so far."""
        if type(command) in _PERMITTED:
            return changed(command, active_in_runtime=self.ground.permits.total)
        if type(command) is DeliverDue:
            # Held back, they go along with nothing: a turn for waiting input is one without them (B16).
            return changed(command, limits=NotificationLimits(batch=0)) if self.notification_holds.any else command
        assert isinstance(command, Interrupt | EndTurn | Close)
        if state.compacting is not None:
            return changed(command, usage=self._worker.asking.spent_on(state.compacting))
        if state.phase is not THINKING or command.partial is not None:
            return command
        partial, usage = self._worker.asking.said(state.turns, state.in_turn.step)
        return changed(command, partial=partial, usage=usage)

    def _ask_again(self, what: str) -> None:
        for key in [key for key, running in self._running.items() if key[0] == what and running.ended]:
            del self._running[key]

    # -- watching

    def _publish(self, record: codec.Record, seq: int) -> None:
        self.ground.recorded(record, seq)
        for event in record.events:
            if type(event) in _NOTICED:
                self._notice(event, record.cause)
        self.audience.hear(record, seq)
        if self.outfit.hooks:
            for seen in self._hook_events.of(record, self.state):
                self._tell_hooks(seen)

    def _notice(self, event: Any, cause: Command) -> None:
        """What the actor itself has to know of an event."""
        kind = type(event)
        if isinstance(event, CallEnded | TaskEnded) and event.internal is not None:
            # From the record, which secrets were cut out of.
            tools_logger.error(
                "a tool of session %s failed inside (%s): %s", self.session, kind.__name__, event.internal
            )
        if kind is TurnStarted:
            self.specs = self.outfit.specs(self._revealed())
            once = next((each for each in self.overrides if each.command is cause), None)
            self._turn_outfit = self.outfit if once is None else once.on(self.outfit)
        elif kind is ModelReplied or kind is TurnEnded:
            self._worker.asking.forget()
        elif kind in OBSERVED:
            self._worker.runs.observe(event)

    def _revealed(self) -> frozenset[str]:
        """The deferred tools that a search has shown so far: from the next turn on, they are advertised whole (T8)."""
        if not self.outfit.registry.deferring:
            return frozenset()
        answers = (answer for message in self.state.history.messages for answer in message.answers)
        return frozenset().union(*(revealed_by(a.content) for a in answers if a.name == TOOL_SEARCH))

    def _tell_hooks(self, event: Seen) -> None:
        if self._nursery is not None and self._telling is not None:
            self._hooks_told.tell(self.outfit.hooks, event, self._telling, self.redact_text)

    async def hooks_begun(self) -> None:
        """Hooks are asked about nothing before they have heard of what went before (T5)."""
        await self._hooks_told.wait_begun()

    def publish_live(self, event: LiveEvent) -> None:
        self.audience.hear_live(event)

    @property
    def is_watched(self) -> bool:
        """Whether somebody is there who could approve a call."""
        return self.audience.is_attended

    # -- acting

    def _reconcile(self) -> tuple[Sequence[Running], Sequence[Started]]:
        """What was stopped because nobody wants it any more, and what is to be started."""
        if self._nursery is None:
            return (), ()  # All work has ended with the nursery.
        wanted = outstanding(self.state if self._ahead is None else self._ahead.state)
        running = self._running
        cancelled: list[Running] = []
        for key in tuple(running):
            if key not in wanted:
                unwanted = running.pop(key)
                if not unwanted.ended:
                    unwanted.stop()
                    cancelled.append(unwanted)
        started: list[Started] = []
        for key, work in wanted.items():
            if key not in running:
                running[key] = new = Running()
                started.append((work, new))
        return cancelled, started

    def spawn(self, started: Sequence[Started], gate: Gate | None = None) -> None:
        """Have this work done, each piece in a task of its own. The first one to begin leaves the `gate`."""
        for work, running in started:
            assert self._nursery is not None
            self._nursery.start_soon(self._worker.run, work, running, gate)
            gate = None

    # -- what its work needs (see `trouper.actors.ground.WorkHost`)

    @property
    def turn_outfit(self) -> Outfit:
        return self._turn_outfit or self.outfit

    async def admit(
        self,
        tool: str,
        arguments: Json,
        *,
        title: str = "",
        call: CallId | None = None,
        signal_on_completion: bool = True,
        links: tuple[Link, ...] = (),
        by: str = "",
    ) -> NewTask:
        """The record of a run that may start, or a `ToolError` (B6)."""
        return await self._worker.admit(
            tool, arguments, title=title, call=call, signal_on_completion=signal_on_completion, links=links, by=by
        )

    @property
    def run_ground(self) -> RunGround:
        return self.ground

    @property
    def owner(self) -> Owner:
        assert self._owner is not None
        return self._owner

    @property
    def limits(self) -> Limits:
        return self.outfit.limits

    @property
    def keep(self) -> Callable[[str, str], Awaitable[str | None]] | None:
        return self._keep_output if self.ground.has_files else None

    def redact_text(self, text: str) -> str:
        return self.ground.redact.text(text)

    def redact_value(self, value: Json) -> Json:
        return self.ground.redact.value(value)

    async def _keep_output(self, path: str, text: str) -> str | None:
        if self._ahead is not None:
            # Of a call that nobody could notice, a file is what can be.
            await self.ground.writer.wait_durable(self._ahead.seq)
        return await self.ground.keep_output(self.session, path, text)

    def now(self) -> float:
        return self.ground.environment.now()

    def start(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        if self._nursery is not None:
            # It may have closed a moment ago: then the session has ended, and what belongs to it with it.
            with suppress(RuntimeError):
                self._nursery.start_soon(function, *args)

    async def settle(self) -> None:
        assert self._ref is not None
        while True:
            try:
                await self._ref.ask(None)
                return
            except MailboxFull:
                with suppress(ActorGone):
                    await self._ref.send(None)  # As soon as there is room.
            except (ActorGone, AskLost):
                return  # Nothing more is decided.

    def notification_limits(self) -> NotificationLimits:
        return NotificationLimits(
            attempts=self.limits.notification_attempts, expire_s=self.limits.notification_expire_s
        )

    def schedule_limits(self) -> ScheduleLimits:
        return ScheduleLimits(active=self.limits.schedules_per_session, min_interval_s=self.limits.schedule_interval_s)

    # -- small things

    async def deliver(self, command: Command) -> None:
        self.spawn(await self.relay(command))

    async def _enqueue(self, command: Command) -> None:
        assert self._ref is not None
        try:
            try:
                self._ref.tell(command)
            except MailboxFull:
                await self._ref.send(command)
        except ActorGone:
            # Work that ends while the session stops: what it did not report, the next start finds open.
            logger.debug("session %s has stopped; %s came too late", self.session, type(command).__name__)

    def tell(self, command: Command) -> None:
        """Something nice to have: dropped when the mailbox is full."""
        if not self.post(command):
            logger.debug("session %s had no room for %s", self.session, type(command).__name__)

    def post(self, command: Command | None) -> bool:
        """Tell oneself without waiting; false if there is no room."""
        assert self._ref is not None
        try:
            self._ref.tell(command)
        except (MailboxFull, ActorGone):
            return False
        return True


def _room_for(hooks: Sequence[Hooks]) -> AbstractAsyncContextManager[trio.Nursery | None]:
    return trio.open_nursery() if hooks else nullcontext()


def _named(error: BaseException) -> str:
    """Our own errors say what they are meant to; of others only the kind is told, since what they say may be anything."""
    kind = type(error).__name__
    return f"{kind}: {error.message}" if isinstance(error, TrouperError) else kind


def _is_cancel(error: BaseException) -> bool:
    """Whether it is a cancel and nothing else; a Ctrl-C that came down in one of our tasks is one too."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_cancel, error.exceptions))
    return isinstance(error, trio.Cancelled | KeyboardInterrupt)
