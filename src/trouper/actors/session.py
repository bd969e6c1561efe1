"""The session actor: receive commands, decide, journal, evolve, act, reply.

All meaning is in `core`; this file carries it out. After each batch of commands the children are reconciled with `outstanding(state)`: work that is
no longer wanted has its scope cancelled, work that is wanted and not running is started. An interrupt, a budget that runs out, a closed session and
resuming after a crash are all this one path.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol

import trio
from attrs import define, field, frozen

from trouper import codec
from trouper._errors import CommandRejected
from trouper.actors.draft import Draft
from trouper.actors.environment import Environment
from trouper.actors.errors import ActorGone, MailboxFull
from trouper.actors.feed import Feed
from trouper.actors.journal import JournalWriter
from trouper.actors.model_call import Failed, ModelCall
from trouper.actors.permits import Permits
from trouper.actors.preparing import Preparer, admitted
from trouper.actors.reference import Inbox, Ref
from trouper.actors.request import Reply, Request
from trouper.actors.running import Running
from trouper.actors.runs import OBSERVED, RunGround, Runs
from trouper.actors.sink import LiveSink
from trouper.actors.structured import mismatch
from trouper.actors.tool_call import run_tool
from trouper.actors.watches import Watches
from trouper.core import compaction, task_text
from trouper.core.calls import Call, Preparation
from trouper.core.commands import (
    ActFire,
    CancelCall,
    Close,
    Command,
    DeliverDue,
    DeliverFault,
    DeliverReply,
    DeliverResult,
    DeliverSummary,
    Deny,
    EndTurn,
    Interrupt,
    NoteBudget,
    NoteProgress,
    NoteRetry,
    OpenSession,
    Recover,
    SpillCall,
)
from trouper.core.decisions import step
from trouper.core.events import CallEnded, ModelReplied, SessionClosed, TurnEnded, TurnStarted
from trouper.core.history import repaired
from trouper.core.ids import CallId, SessionId, TaskId
from trouper.core.live import LiveEvent
from trouper.core.messages import Fault, Json, Message, Outcome, Text, ToolCall, ToolSpec
from trouper.core.notification import DeliverBatch, NotificationLimits
from trouper.core.schedule import REBASE_AFTER_S, ActOnFire, AwaitDue, ClaimFires, ScheduledRun, ScheduleLimits
from trouper.core.session import (
    AwaitApproval,
    AwaitDeadline,
    AwaitInlineBudget,
    CallModel,
    Phase,
    RunCall,
    State,
    Summarise,
    TakeQueued,
    Work,
    WorkKey,
    outstanding,
)
from trouper.core.settings import Budget, Limits, TurnOptions
from trouper.core.task import AwaitTaskStopped, RunTask
from trouper.core.task_events import BeatTask, CreateTask, EndTask, ReportTaskProgress, StartTask, WriteTaskOutput
from trouper.core.task_record import Link, NewTask, Owner, TaskLimits
from trouper.core.values import changed
from trouper.journal import Entry, JournalFull
from trouper.models.protocol import Model, ModelRequest
from trouper.tools.context import Services, ToolContext
from trouper.tools.deferral import TOOL_SEARCH, revealed_by
from trouper.tools.errors import ToolError
from trouper.tools.hooks import AfterTool, AfterTurn, Hooks, SessionEnded, SessionStarted
from trouper.tools.policy import Rule
from trouper.tools.registry import Registry

logger = logging.getLogger("trouper.session")
tools_logger = logging.getLogger("trouper.tools")

#: Runs that end within this time of each other are told to the model together.
_GATHER_S = 0.1
_RETELL_MAX_S = 60.0
_LOOK_AT_CLOCK_S = 60.0
#: What is further off than this is looked for less often.
_FAR_OFF_S = 3_600.0
_LOOK_SELDOM_S = 600.0
#: Commands that are worth nothing after a crash of the machine: written, but nobody waits for the disk (J1).
_BUFFERED = (NoteProgress, NoteRetry, ReportTaskProgress, WriteTaskOutput, BeatTask)
#: What starts new work, and is refused while the disk is full (J11).
_OPENING = frozenset({"Submit", "OpenSession", "Compact", "SpillCall", "CreateTask", "CreateSchedule"})
#: What needs to know how many runs hold a permit at the very moment of the decision (I19).
_PERMITTED = frozenset({SpillCall, CreateTask, StartTask, ActFire, Recover})
#: Timers that have to be set again if what they asked for came to nothing: or nobody would ask any more (B15).
_ASKED_AGAIN = {DeliverDue: "deliver", ClaimFires: "due"}


@frozen
class SessionEvent:
    """A recorded event with its number in the session: contiguous from 0."""

    seq: int
    at: float
    event: Any


@define
class Outfit:
    """What a session works with. May be changed between turns; a running turn keeps what it started with (L3)."""

    model: Model
    registry: Registry
    budget: Budget
    limits: Limits
    rules: Sequence[Rule] = ()
    hooks: Sequence[Hooks] = ()

    def turn_options(self, schema: Any = None) -> TurnOptions:
        limits, budget = self.limits, self.budget
        return TurnOptions(
            max_steps=limits.max_steps,
            parallel_calls=limits.parallel_calls,
            model=self.model.name,
            window=self.model.context_window,
            compaction=limits.compaction,
            loop_warn=limits.loop_warn,
            loop_end=limits.loop_end,
            wall_s=budget.wall_s,
            token_cap=budget.tokens,
            step_cap=budget.steps,
            call_cap=budget.tool_calls,
            schema=schema,
            notification_attempts=limits.notification_attempts,
        )


class Ground(RunGround, Protocol):
    """What every session of a runtime stands on."""

    writer: JournalWriter
    environment: Environment
    epoch: int

    async def load(self, session: str) -> tuple[State, int]:
        """State and next event number of a session, from the journal; a new one if it is not there."""

    def recorded(self, session: str, record: codec.Record) -> None:
        """A record has become durable."""

    def services(self, session: str) -> Services: ...

    def redact(self, data: bytes) -> bytes:
        """Without secrets; `data` itself if there is none (J8)."""

    async def keep_output(self, session: str, path: str, text: str) -> bool:
        """Store an output that was cut for the model; whether that worked."""

    def over_budget(self) -> Fault | None:
        """Why no session of this runtime may ask a model any more, if so."""

    def budget_warnings(self) -> Sequence[tuple[str, float, float]]:
        """Caps of the runtime of which 80 % are spent, each told once: what, how much, of how much."""

    #: How many background runs hold a permit, in all sessions.
    permits: Permits

    def new_owner(self) -> Owner:
        """This process, as the owner of the runs that a session's actor starts from now on."""


@frozen
class Step:
    """The reply to a command: the state after it, and the work that it cut short."""

    state: State
    cancelled: tuple[Running, ...] = ()


@define(eq=False)
class SessionActor:
    """One session. `run` is its task; everything else is called from trio's thread by its handle and its children."""

    session: str
    ground: Ground
    outfit: Outfit
    system: str | None = None
    parent: str | None = None
    state: State = field(factory=State)
    #: The number of the next event.
    next_seq: int = 0
    #: Models that a turn may be started with in place of the session's own, by name (M6).
    overrides: dict[str, Model] = field(factory=dict)
    turn_feeds: list[Feed] = field(factory=list)
    event_feeds: list[Feed] = field(factory=list)
    #: Of those who only wait for the end of a turn.
    end_feeds: list[Feed] = field(factory=list)
    #: The first journal sequence of the batch that is on its way to the disk: not yet part of `state`.
    in_flight: int | None = None
    _ref: Ref[Any, Any] | None = None
    _nursery: trio.Nursery | None = None
    _running: dict[WorkKey, Running] = field(factory=dict)
    #: Calls whose outcome hooks still wait for.
    _asked: dict[CallId, ToolCall] = field(factory=dict)
    #: The model call under way.
    _call: ModelCall | None = None
    watches: Watches = field(factory=Watches)
    _owner: Owner | None = None
    _runs: Runs = field(init=False)
    #: How many want notifications to wait: somebody types, or takes them himself.
    _holds: int = 0
    _unheld: trio.Event = field(factory=trio.Event)
    #: What the turn under way was started with.
    _specs: tuple[ToolSpec, ...] = ()
    _turn_outfit: Outfit | None = None

    # -- the loop

    async def run(self, inbox: Inbox[Any, Any]) -> None:
        self._ref = inbox.ref
        self._running = {}
        self._call = None
        self._runs = Runs(self)
        self.state, self.next_seq = await self.ground.load(self.session)
        # One for each start: what an actor that crashed had running is gone, although the process is not.
        self._owner = self.ground.new_owner()
        self.ground.permits.hold(self.session, self.state.tasks.active)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            if self.outfit.hooks:
                self._tell_hooks(SessionStarted(self.session, resumed=self.next_seq > 0))
            await self._begin()
            async for first in inbox:
                await self._handle(_gather(first, inbox))
                if self.state.phase is Phase.CLOSED:
                    break
            # Asked to stop, or closed: whatever runs is no longer wanted. What a crash would leave open is closed here.
            if self.state.phase is not Phase.CLOSED and self.state.turn is not None:
                with trio.CancelScope(shield=True):
                    await self._handle([(Interrupt(self._now(), "the runtime is shutting down"), None)])
            nursery.cancel_scope.cancel()
        self.watches.end()
        for feed in (*self.turn_feeds, *self.event_feeds, *self.end_feeds):
            feed.end()

    async def _begin(self) -> None:
        """First of all close what a dead process left open, or come into being."""
        command: Command
        if self.state.phase is Phase.NEW:
            command = OpenSession(self.session, self._now(), self.system, self.parent)
        else:
            command = self._recovery()
            if self.state.turn is not None and self._turn_outfit is None:
                # A turn that another process began goes on with what this one has.
                self._turn_outfit, self._specs = self.outfit, self.outfit.registry.specs()
        with trio.CancelScope(shield=True):
            await self._handle([(command, None)])
        # Recovery may have had nothing to say, and still there is work that nobody runs yet.
        self._reconcile()

    def _recovery(self) -> Recover:
        return Recover(
            self._now(),
            resume=self.outfit.limits.on_restart == "resume",
            owner=self._owner,
            reattachable=tuple(
                task.id for task in self.state.tasks.live.values() if self._can_reattach(task.about.tool)
            ),
            task_limits=self.task_limits(),
            notification_attempts=self.limits.notification_attempts,
        )

    def _can_reattach(self, name: str) -> bool:
        tool = self.outfit.registry.get(name)
        return tool is not None and tool.supports_background and tool.side_effect != "at_most_once"

    def task_limits(self) -> TaskLimits:
        limits = self.outfit.limits
        return TaskLimits(
            per_session=limits.runs_per_session,
            per_runtime=limits.runs_per_runtime,
            retention_s=limits.task_retention_s,
            grace_s=limits.grace_s,
        )

    async def _handle(self, batch: list[tuple[Command | None, Reply[Any] | None]]) -> None:
        """Decide on each command in turn, journal all of it, wait for the disk once, and only then let anybody know."""
        state, seq = self.state, self.next_seq
        records: list[codec.Record] = []
        #: Each with the state right after its command: another turn may have begun by the end of the batch.
        replies: list[tuple[Reply[Any], State, Exception | None]] = []
        last, cleaned = 0, -1
        durable = stale = False
        for position, (command, reply) in enumerate(batch):
            if command is None:  # Only asks for the state.
                if reply is not None:
                    replies.append((reply, state, None))
                continue
            try:
                command = self._completed(command)
                events, after = step(state, command)
                if events:
                    record = codec.Record(self.session, seq, self.ground.epoch, self._now(), command, events)
                    try:
                        head, body = codec.encode(record, exact=position != cleaned)
                        clean = self.ground.redact(body)
                        writable = record if clean is body else codec.reread(record, clean)
                    except codec.Inexact:
                        writable = codec.sanitised(record)
                    if writable is not record and position != cleaned:
                        # What is written is what is true: decided anew, on the command as the journal may hold it.
                        cleaned = position + 1
                        batch.insert(cleaned, (writable.cause, reply))
                        continue
                    last, waits = self._append(record, head, clean)
                    if self.in_flight is None:
                        self.in_flight = last
                    durable = durable or waits
                    records.append(changed(record, seq=last))
                    if after.tasks is not state.tasks:
                        self.ground.permits.hold(self.session, after.tasks.active)
                    state, seq = after, seq + len(events)
                elif type(command) in _ASKED_AGAIN:
                    stale = True
                    self._ask_again(_ASKED_AGAIN[type(command)])
            except (CommandRejected, JournalFull) as refusal:
                if isinstance(command, SpillCall):
                    # No record, no background run: then it has to end here (B2).
                    self._tell(CancelCall(command.call, self._now(), f"Its task could not be recorded: {refusal}"))
                if reply is None:
                    logger.info("session %s refused %s: %s", self.session, type(command).__name__, refusal)
                else:
                    replies.append((reply, state, refusal))
                continue
            if reply is not None:
                replies.append((reply, state, None))
        if durable:
            # Shielded inside: between hand-over and acknowledgement a cancel would leave memory and disk apart.
            await self.ground.writer.wait_durable(last)
        self.state, self.next_seq, self.in_flight = state, seq, None
        for record in records:
            self._publish(record)
        cancelled = self._reconcile() if records or stale else ()
        for reply, then, error in replies:
            if error is None:
                reply.reply(Step(then, cancelled))
            else:
                reply.fail(error)

    def _append(self, record: codec.Record, head: bytes, body: bytes) -> tuple[int, bool]:
        kind = type(record.cause)
        durable = kind not in _BUFFERED
        entry = Entry(self.session, record.id, head, body, durable, kind.__name__ in _OPENING)
        return self.ground.writer.append(entry), durable

    def _completed(self, command: Command) -> Command:
        """An end that comes from outside takes along what the model has said so far, which only we know."""
        if self._call is not None and isinstance(command, Interrupt | EndTurn | Close) and command.partial is None:
            return changed(command, partial=self._call.draft.partial())
        if type(command) in _PERMITTED:
            return changed(command, active_in_runtime=self.ground.permits.total)
        return command

    def _ask_again(self, what: str) -> None:
        for key in [key for key, running in self._running.items() if key[0] == what and running.ended]:
            del self._running[key]

    # -- watching

    def _publish(self, record: codec.Record) -> None:
        self.ground.recorded(self.session, record)
        for event in record.events:
            kind = type(event)
            if getattr(event, "internal", None) is not None:
                # From the record, which secrets were cut out of.
                tools_logger.error(
                    "a tool of session %s failed inside (%s): %s", self.session, kind.__name__, event.internal
                )
            if kind is TurnStarted:
                self._specs = self.outfit.registry.specs(self._revealed())
                once = self.overrides.get(event.options.model or "") if self.overrides else None
                self._turn_outfit = self.outfit if once is None else changed(self.outfit, model=once)
            elif kind in OBSERVED:
                self._runs.observe(event)
            elif kind is TurnEnded:
                for feed in self.end_feeds:
                    feed.push(event)
            for feed in self.turn_feeds:
                feed.push(event)
        if self.event_feeds:
            for offset, event in enumerate(record.events):
                told = SessionEvent(record.n + offset, record.at, event)
                for feed in self.event_feeds:
                    feed.push(told)

        if self.outfit.hooks:
            for seen in self._hook_events(record):
                self._tell_hooks(seen)

    def _revealed(self) -> frozenset[str]:
        """The deferred tools that a search has shown so far: from the next turn on, they are advertised whole (T8)."""
        if not self.outfit.registry.deferring:
            return frozenset()
        answers = (answer for message in self.state.history.messages for answer in message.answers)
        return frozenset().union(*(revealed_by(a.content) for a in answers if a.name == TOOL_SEARCH))

    def _hook_events(self, record: codec.Record) -> Iterator[AfterTurn | AfterTool | SessionEnded]:
        """What after-hooks may look at (T5); denied calls too."""
        for event in record.events:
            match event:
                case ModelReplied(message=message):
                    self._asked.update((call.id, call) for call in message.calls)
                case CallEnded(call=call_id, outcome=outcome, content=content) if call_id in self._asked:
                    asked = self._asked.pop(call_id)
                    yield AfterTool(self.session, asked.name, asked.arguments, outcome.value, content, call_id)
                case TurnEnded(stop_reason=stop_reason):
                    last = self.state.last
                    yield AfterTurn(self.session, stop_reason, last.text if last is not None else "")
                case SessionClosed():
                    yield SessionEnded(self.session)
                case _:
                    pass

    def _tell_hooks(self, event: AfterTurn | AfterTool | SessionStarted | SessionEnded) -> None:
        assert self._nursery is not None
        for hook in self.outfit.hooks:
            self._nursery.start_soon(hook.tell, event)

    def publish_live(self, event: LiveEvent) -> None:
        for feed in self.turn_feeds:
            feed.push(event)

    @property
    def is_watched(self) -> bool:
        return bool(self.turn_feeds or self.event_feeds)

    # -- acting

    def _reconcile(self) -> tuple[Running, ...]:
        wanted = outstanding(self.state)
        running = self._running
        cancelled: list[Running] = []
        if running:
            for key in [key for key in running if key not in wanted]:
                unwanted = running.pop(key)
                if not unwanted.ended:
                    unwanted.stop()
                    cancelled.append(unwanted)
        for key, work in wanted.items():
            if key not in running:
                running[key] = started = Running()
                assert self._nursery is not None
                self._nursery.start_soon(self._run_work, work, started)
        return tuple(cancelled)

    async def _run_work(self, work: Work, running: Running) -> None:
        command: Command | None = None
        try:
            match work:
                case CallModel(turn, step_number):
                    command = await self._call_model(turn, step_number, running)
                case RunCall(call):
                    command = await self._run_call(call, running)
                case Summarise(split):
                    command = await self._summarise(split, running)
                case RunTask(task_id, attempt):
                    command = await self._run_task(task_id, attempt, running)
                case _:
                    with running.renew():
                        command = await self._perform(work)
        finally:
            running.end()
        if command is None and running.stopped:
            command = await self._runs.after_stop(work)
        if command is not None:
            # A result that comes although nobody wants it any more is recorded as late (I9).
            await self._deliver(command)

    async def _perform(self, work: Work) -> Command | None:
        """Work that needs no more of its scope than to be stopped by it."""
        match work:
            case AwaitDeadline(turn, at):
                await trio.sleep(max(0.0, at - self._now()))
                fault = Fault("budget", "the time for this turn is up; raise Budget.wall_s to allow more")
                return EndTurn(turn, "budget", self._now(), fault)
            case AwaitApproval(call_id, expires_at):
                await trio.sleep(max(0.0, expires_at - self._now()))
                return Deny(call_id, self._now(), "Nobody answered in time.")

            case AwaitInlineBudget(call_id, budget_s):
                await trio.sleep(budget_s)
                self._runs.spilling(call_id)
                return SpillCall(
                    call_id,
                    TaskId(self.ground.environment.ids.new("task_")),
                    self.owner,
                    self._now(),
                    round(budget_s * 1000),
                    limits=self.task_limits(),
                )
            case DeliverBatch():
                await self._wait_deliverable(work)
                return DeliverDue(self._now(), self.outfit.turn_options(), self.notification_limits())
            case TakeQueued():
                return DeliverDue(self._now(), self.outfit.turn_options())
            case AwaitDue():
                return await self._await_due(work)
            case ActOnFire():
                return await self._fire(work)
            case AwaitTaskStopped(task_id, attempt, at):
                await self._sleep_until(at)
                return EndTask(
                    task_id, attempt, "cancelled", self._now(), summary="Cancelled; it did not stop in time."
                )
            case _:
                raise AssertionError(work)  # The others have a scope of their own: see `_run_work`.

    async def _sleep_until(self, at: float) -> None:
        """Until the wall clock says so. It may be set meanwhile, so look at it every now and then."""
        while (left := at - self._now()) > 0:  # noqa: ASYNC110 - there is no event for a clock that is set
            await trio.sleep(min(left, _LOOK_AT_CLOCK_S))

    async def _await_due(self, work: AwaitDue) -> Command:
        """Until it is due by the wall clock; which may be set, and then the schedules have to hear of it (B18)."""
        while True:
            now = self._now()
            if now >= work.at:
                return ClaimFires(now, self.schedule_limits())
            found = self.state.schedules.active.get(work.schedule_id)
            if found is not None and found.seen_at - now > REBASE_AFTER_S:
                await self._deliver(ClaimFires(now, self.schedule_limits()))
            left = work.at - now
            await trio.sleep(min(left, _LOOK_AT_CLOCK_S if left <= _FAR_OFF_S else _LOOK_SELDOM_S))

    async def _wait_deliverable(self, work: DeliverBatch) -> None:
        """Let what ends together be told together; after a failure wait longer and longer; and not while somebody types (B14, B15)."""
        pending = self.state.notifications.pending
        tried = max((pending[id].attempts for id in work.ids if id in pending), default=0)
        await trio.sleep(_GATHER_S if not tried else min(_RETELL_MAX_S, 2.0**tried))
        while self._holds:
            await self._unheld.wait()

    def hold_notifications(self) -> None:
        self._holds += 1
        if self._holds == 1:
            self._unheld = trio.Event()

    def release_notifications(self) -> None:
        self._holds -= 1
        if not self._holds:
            self._unheld.set()

    async def _fire(self, work: ActOnFire) -> ActFire:
        action = work.action
        new: NewTask | None = None
        refusal = ""
        if isinstance(action, ScheduledRun):
            try:
                new = await self.admit(
                    action.tool,
                    action.arguments,
                    title=action.title,
                    signal_on_completion=action.signal_on_completion,
                    links=(Link("schedule", work.schedule_id),),
                )
            except ToolError as error:
                refusal = str(error)
        return ActFire(work.schedule_id, work.fire, self._now(), new, self.owner, refusal, limits=self.task_limits())

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
        """The record of a run that may start: its tool is there and can run so, its arguments fit, policy and hooks allow it. Else a `ToolError` (B6)."""
        arguments, found = await admitted(self.preparer(self.outfit), tool, arguments)
        ids = self.ground.environment.ids
        return task_text.spawned_task(
            TaskId(ids.new("task_")),
            ids.new("bg_"),
            SessionId(self.session),
            call,
            tool,
            arguments,
            reattachable=found.side_effect != "at_most_once",
            title=title,
            signal_on_completion=signal_on_completion,
            links=links,
            by=by,
        )

    async def _run_task(self, task_id: TaskId, attempt: int, running: Running) -> Command | None:
        found = self.state.tasks.live.get(task_id)
        tool = None if found is None else self.outfit.registry.get(found.about.tool)
        return await self._runs.run_task(tool, task_id, attempt, running)

    async def _call_model(self, turn: int, step_number: int, running: Running) -> Command | None:
        if (spent := self.ground.over_budget()) is not None:
            return EndTurn(turn, "budget", self._now(), spent)
        for what, used, cap in self.ground.budget_warnings():
            self._tell(NoteBudget(what, used, cap))
        outfit = self._turn_outfit or self.outfit
        call = ModelCall(
            outfit.model,
            self._request(outfit, turn, step_number),
            outfit.limits,
            self.ground.environment.random,
            publish=self.publish_live if self.turn_feeds else None,
            on_retry=lambda attempt, fault, delay: self._tell(NoteRetry(turn, step_number, attempt, fault, delay)),
            on_note=lambda text, thinking: self._tell(NoteProgress(turn, step_number, text, thinking)),
        )

        async def finish(finished: Draft | Failed) -> Command:
            if isinstance(finished, Draft):
                return await self._reply(outfit, turn, step_number, finished)
            draft = call.draft
            partial = draft.partial() if draft.progressed else None
            return DeliverFault(turn, step_number, finished.fault, self._now(), partial, draft.usage)

        self._call = call
        try:
            return await call.run(running, finish)
        finally:
            if self._call is call:  # A turn that began meanwhile has put its own call here.
                self._call = None

    async def _reply(self, outfit: Outfit, turn: int, step_number: int, draft: Draft) -> DeliverReply:
        arguments: list[Json] = []
        preparations: list[Preparation] = []
        if draft.open_calls:
            preparer = self.preparer(outfit)
            for call in draft.open_calls:
                prepared = await preparer.prepare(call)
                arguments.append(prepared[0])
                preparations.append(prepared[1])
        message = draft.message(turn, step_number, arguments)
        done = draft.done
        assert done is not None
        schema = self.state.turn.options.schema if self.state.turn is not None else None
        return DeliverReply(
            turn=turn,
            step=step_number,
            message=message,
            stop_reason=done.stop_reason,
            at=self._now(),
            usage=draft.usage,
            detail=done.detail,
            preparations=tuple(preparations),
            cuts=tuple(draft.cuts),
            mismatch=mismatch(message.text, schema) if schema is not None and not preparations else None,
            approval_s=outfit.limits.approval_s,
        )

    def preparer(self, outfit: Outfit) -> Preparer:
        return Preparer(
            self.session,
            outfit.registry,
            outfit.rules,
            outfit.hooks,
            outfit.limits,
            outfit.budget,
            self.state.always,
            can_ask=self.is_watched,
        )

    def _request(self, outfit: Outfit, turn: int, step_number: int) -> ModelRequest:
        history = self.state.history
        messages = history.messages
        if not history.ready:
            logger.warning("session %s: the history had to be repaired before a request", self.session)
            messages = repaired(messages)
        running = self.state.turn
        return ModelRequest(
            messages=messages,
            system=self.state.system,
            tools=self._specs,
            parallel_tool_calls=outfit.limits.parallel_tool_calls,
            response_schema=running.options.schema if running is not None else None,
            session=self.session,
            turn=turn,
            step=step_number,
        )

    async def _summarise(self, split: int, running: Running) -> Command | None:
        """A summary by the model; whatever goes wrong, the core falls back to something that needs none (L31)."""
        outfit = (self._turn_outfit if self.state.turn is not None else None) or self.outfit
        ask = Message("user", (Text(compaction.HAND_OVER_PROMPT),), "note")
        request = ModelRequest(
            messages=(*repaired(self.state.history.messages[:split]), ask),
            system=self.state.system,
            tools=self._specs or outfit.registry.specs(),
            session=self.session,
            turn=self.state.turns,
            purpose="compaction",
        )

        async def finish(finished: Draft | Failed) -> Command:
            if isinstance(finished, Failed):
                return DeliverSummary(split, self._now(), fault=finished.fault)
            if finished.open_calls:
                fault = Fault("other", "the model called a tool instead of writing a summary")
                return DeliverSummary(split, self._now(), usage=finished.usage, fault=fault)
            return DeliverSummary(split, self._now(), finished.text, finished.usage)

        return await ModelCall(outfit.model, request, outfit.limits, self.ground.environment.random).run(
            running, finish
        )

    async def _run_call(self, call: Call, running: Running) -> Command | None:
        outfit = self._turn_outfit or self.outfit
        request = call.request
        tool = outfit.registry.get(request.name)
        if tool is None:
            # Only after a restart: the call was allowed by a process that had this tool.
            return DeliverResult(request.id, Outcome.ERROR, self._now(), content=outfit.registry.unknown(request.name))
        timeout_s = call.preparation.timeout_s
        if timeout_s is None:
            timeout_s = outfit.limits.tool_timeout_s
        timeout_s = timeout_s or math.inf  # 0: never.
        if call.preparation.budget_s is not None:
            return await self._runs.run_call(tool, call, running, timeout_s)
        context = ToolContext(
            session_id=SessionId(self.session),
            call_id=request.id,
            services=self.ground.services(self.session),
            sink=LiveSink(request.id, self.publish_live),
            attempt=call.attempt,
        )
        return await run_tool(
            tool,
            request.id,
            request.arguments,
            context,
            running,
            timeout_s=timeout_s,
            output_bytes=outfit.limits.tool_output_bytes,
            now=self.ground.environment.now,
            keep=self.keep,
        )

    # -- what runs need (see `trouper.actors.runs.RunHost`)

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
    def keep(self) -> Callable[[str, str], Awaitable[bool]] | None:
        return self._keep_output if self.ground.files_of(self.session) is not None else None

    async def _keep_output(self, path: str, text: str) -> bool:
        return await self.ground.keep_output(self.session, path, text)

    def now(self) -> float:
        return self.ground.environment.now()

    def start(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(function, *args)

    async def settle(self) -> None:
        assert self._ref is not None
        await self._ref.ask(None)

    def notification_limits(self) -> NotificationLimits:
        return NotificationLimits(
            attempts=self.limits.notification_attempts, expire_s=self.limits.notification_expire_s
        )

    def schedule_limits(self) -> ScheduleLimits:
        return ScheduleLimits(active=self.limits.schedules_per_session, min_interval_s=self.limits.schedule_interval_s)

    # -- small things

    async def _deliver(self, command: Command) -> None:
        assert self._ref is not None
        try:
            try:
                self._ref.tell(command)
            except MailboxFull:
                await self._ref.send(command)
        except ActorGone:
            # Work that ends while the session stops: what it did not report, the next start finds open.
            logger.debug("session %s has stopped; %s came too late", self.session, type(command).__name__)

    def _tell(self, command: Command) -> None:
        """Something nice to have: dropped when the mailbox is full."""
        if not self.post(command):
            logger.debug("session %s had no room for %s", self.session, type(command).__name__)

    def post(self, command: Command) -> bool:
        """Tell oneself without waiting; false if there is no room."""
        assert self._ref is not None
        try:
            self._ref.tell(command)
        except (MailboxFull, ActorGone):
            return False
        return True

    def _now(self) -> float:
        return self.ground.environment.now()


def _gather(first: Any, inbox: Inbox[Any, Any]) -> list[tuple[Command | None, Reply[Any] | None]]:
    """What waits in the mailbox is decided together, and costs the disk one sync."""
    batch = [_opened(first)]
    while True:
        try:
            batch.append(_opened(inbox.receive_nowait()))
        except trio.WouldBlock:
            return batch


def _opened(message: Any) -> tuple[Command | None, Reply[Any] | None]:
    if isinstance(message, Request):
        return message.payload, message.defer()
    return message, None
