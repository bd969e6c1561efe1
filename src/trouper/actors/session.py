"""The session actor: receive commands, decide, journal, evolve, act, reply.

All meaning is in `core`; this file carries it out. After each batch of commands the children are reconciled with `outstanding(state)`: work that is
no longer wanted has its scope cancelled, work that is wanted and not running is started. An interrupt, a budget that runs out, a closed session and
resuming after a crash are all this one path.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
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
from trouper.actors.preparing import Preparer
from trouper.actors.reference import Inbox, Ref
from trouper.actors.request import Reply, Request
from trouper.actors.running import Running
from trouper.actors.sink import LiveSink
from trouper.actors.structured import mismatch
from trouper.actors.tool_call import run_tool
from trouper.core import compaction, task_text
from trouper.core.calls import Call, Preparation
from trouper.core.commands import (
    ActFire,
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
from trouper.core.notification import DeliverBatch
from trouper.core.schedule import ActOnFire, AwaitDue, ClaimFires, ScheduledRun
from trouper.core.session import (
    AwaitApproval,
    AwaitDeadline,
    AwaitInlineBudget,
    CallModel,
    Event,
    Phase,
    RunCall,
    State,
    Summarise,
    TakeQueued,
    Work,
    WorkKey,
    evolve,
    outstanding,
)
from trouper.core.settings import Budget, Limits, TurnOptions
from trouper.core.task import AwaitTaskStopped, RunTask
from trouper.core.task_events import EndTask
from trouper.core.task_record import NewTask, Owner, TaskLimits
from trouper.core.values import changed
from trouper.journal import Entry, JournalFull
from trouper.models.protocol import Model, ModelRequest
from trouper.tools.context import Services, ToolContext
from trouper.tools.deferral import TOOL_SEARCH, revealed_by
from trouper.tools.hooks import AfterTool, AfterTurn, Hooks, SessionEnded, SessionStarted
from trouper.tools.output import Shaped
from trouper.tools.policy import Rule
from trouper.tools.registry import Registry

logger = logging.getLogger("trouper.session")

#: Runs that end within this time of each other are told to the model together.
_GATHER_S = 0.1
_RETELL_MAX_S = 60.0
_LOOK_AT_CLOCK_S = 60.0
#: Commands that are worth nothing after a crash of the machine: written, but nobody waits for the disk (J1).
_BUFFERED = (NoteProgress, NoteRetry)
#: What starts new work, and is refused while the disk is full (J11).
_OPENING = frozenset({"Submit", "OpenSession", "Compact"})


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
            window=self.model.context_window,
            compaction=limits.compaction,
            loop_warn=limits.loop_warn,
            loop_end=limits.loop_end,
            wall_s=budget.wall_s,
            token_cap=budget.tokens,
            step_cap=budget.steps,
            call_cap=budget.tool_calls,
            schema=schema,
        )


class Ground(Protocol):
    """What every session of a runtime stands on."""

    writer: JournalWriter
    environment: Environment
    epoch: int

    async def load(self, session: str) -> tuple[State, int]:
        """State and next event number of a session, from the journal; a new one if it is not there."""

    def recorded(self, session: str, record: codec.Record) -> None:
        """A record has become durable."""

    def services(self, session: str) -> Services: ...

    def keep_output(self, session: str, call: CallId, shaped: Shaped) -> str | None:
        """Store an output that was cut for the model; where it can be read."""

    def over_budget(self) -> Fault | None:
        """Why no session of this runtime may ask a model any more, if so."""

    def budget_warnings(self) -> Sequence[tuple[str, float, float]]:
        """Caps of the runtime of which 80 % are spent, each told once: what, how much, of how much."""

    @property
    def owner(self) -> Owner:
        """This process, as the owner of the runs that it starts."""

    def active_runs(self) -> int:
        """How many background runs hold a permit now, in all sessions."""


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
    #: What the turn under way was started with.
    _specs: tuple[ToolSpec, ...] = ()
    _turn_outfit: Outfit | None = None

    # -- the loop

    async def run(self, inbox: Inbox[Any, Any]) -> None:
        self._ref = inbox.ref
        self._running = {}
        self._call = None
        self.state, self.next_seq = await self.ground.load(self.session)
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
            owner=self.ground.owner,
            reattachable=tuple(
                task.id for task in self.state.tasks.live.values() if self._can_reattach(task.about.tool)
            ),
            active_in_runtime=max(1, self.ground.active_runs()),
            task_limits=self._task_limits(),
        )

    def _can_reattach(self, name: str) -> bool:
        tool = self.outfit.registry.get(name)
        return tool is not None and tool.supports_background and tool.side_effect != "at_most_once"

    def _task_limits(self) -> TaskLimits:
        limits = self.outfit.limits
        return TaskLimits(
            per_session=limits.runs_per_session, per_runtime=limits.runs_per_runtime, grace_s=limits.grace_s
        )

    async def _handle(self, batch: list[tuple[Command | None, Reply[Any] | None]]) -> None:
        """Decide on each command in turn, journal all of it, wait for the disk once, and only then let anybody know."""
        state, seq = self.state, self.next_seq
        records: list[codec.Record] = []
        #: Each with the state right after its command: another turn may have begun by the end of the batch.
        replies: list[tuple[Reply[Any], State, Exception | None]] = []
        last = 0
        durable = False
        for command, reply in batch:
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
                        line = codec.encode(record, exact=True)
                    except codec.Inexact:
                        # What is written is what is true: everybody goes on with the text as the journal holds it.
                        record = codec.sanitised(record)
                        line, events, after = codec.encode(record), record.events, _folded(state, record.events)
                    last, waits = self._append(record, *line)
                    if self.in_flight is None:
                        self.in_flight = last
                    durable = durable or waits
                    records.append(changed(record, seq=last))
                    state, seq = after, seq + len(events)
            except (CommandRejected, JournalFull) as refusal:
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
        cancelled = self._reconcile() if records else ()
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
        return command

    # -- watching

    def _publish(self, record: codec.Record) -> None:
        self.ground.recorded(self.session, record)
        for event in record.events:
            kind = type(event)
            if kind is TurnStarted:
                self._specs = self.outfit.registry.specs(self._revealed())
                self._turn_outfit = self.outfit
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
                    with running.scope:
                        command = await self._perform(work)
            if command is None and running.stopped:
                command = self._after_stop(work)
        finally:
            running.end()
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
                return SpillCall(
                    call_id,
                    TaskId(self.ground.environment.ids.new("task_")),
                    self.ground.owner,
                    self._now(),
                    round(budget_s * 1000),
                    self.ground.active_runs(),
                    self._task_limits(),
                )
            case DeliverBatch():
                await self._wait_deliverable(work)
                return DeliverDue(self._now(), self.outfit.turn_options())
            case TakeQueued():
                return DeliverDue(self._now(), self.outfit.turn_options())
            case AwaitDue(at=at):
                await self._sleep_until(at)
                return ClaimFires(self._now())
            case ActOnFire():
                return self._fire(work)
            case AwaitTaskStopped(task_id, attempt, at):
                await self._sleep_until(at)
                return EndTask(
                    task_id, attempt, "cancelled", self._now(), summary="Cancelled; it did not stop in time."
                )

    def _after_stop(self, work: Work) -> Command | None:
        """A run that was cancelled says so itself, at once: nobody has to wait for its grace period to end (B5)."""
        match work:
            case RunTask(task_id, attempt):
                found = self.state.tasks.live.get(task_id)
            case RunCall(call):
                attempt = 1
                live = self.state.tasks.live.values()
                found = next((t for t in live if t.about.kind == "tool" and t.about.origin_call == call.id), None)
            case _:
                return None
        if found is None or found.cancel_requested_at is None:
            return None
        summary = task_text.summary_text(found.about, "cancelled", None)
        return EndTask(found.id, attempt, "cancelled", self._now(), summary=summary)

    async def _sleep_until(self, at: float) -> None:
        """Until the wall clock says so. It may be set meanwhile, so look at it every now and then."""
        while (left := at - self._now()) > 0:  # noqa: ASYNC110 - there is no event for a clock that is set
            await trio.sleep(min(left, _LOOK_AT_CLOCK_S))

    async def _wait_deliverable(self, work: DeliverBatch) -> None:
        """Let what ends together be told together; after a failure wait longer and longer (B14, B15)."""
        pending = self.state.notifications.pending
        tried = max((pending[id].attempts for id in work.ids if id in pending), default=0)
        await trio.sleep(_GATHER_S if not tried else min(_RETELL_MAX_S, 2.0**tried))

    def _fire(self, work: ActOnFire) -> ActFire:
        action = work.action
        new: NewTask | None = None
        refusal = ""
        if isinstance(action, ScheduledRun):
            tool = self.outfit.registry.get(action.tool)
            if tool is None or not tool.supports_background:
                refusal = f"the tool {action.tool!r} is not there, or cannot run in the background"
            else:
                ids = self.ground.environment.ids
                new = task_text.spawned_task(
                    TaskId(ids.new("task_")),
                    ids.new("bg_"),
                    SessionId(self.session),
                    None,
                    action.tool,
                    action.arguments,
                    reattachable=tool.side_effect != "at_most_once",
                    title=action.title,
                    signal_on_completion=action.signal_on_completion,
                )
        return ActFire(
            work.schedule_id,
            work.fire,
            self._now(),
            new,
            self.ground.owner,
            refusal,
            self.ground.active_runs(),
            self._task_limits(),
        )

    async def _run_task(self, task_id: TaskId, attempt: int, running: Running) -> Command | None:
        """A background run from its record: a spawned one, or any after a restart."""
        found = self.state.tasks.live.get(task_id)
        if found is None:
            return None
        name, arguments = found.about.tool, found.about.spec.get("arguments")
        tool = self.outfit.registry.get(name)
        if tool is None:
            return task_text.end_command(
                found, attempt, Outcome.ERROR, self.outfit.registry.unknown(name), at=self._now()
            )
        call = found.about.origin_call or CallId(task_id)
        context = ToolContext(
            session_id=SessionId(self.session),
            call_id=call,
            services=self.ground.services(self.session),
            sink=LiveSink(call, self.publish_live),
            attempt=attempt,
            task_id=task_id,
        )
        limits = self.outfit.limits
        ended = await run_tool(
            tool,
            call,
            arguments,  # type: ignore[arg-type]
            context,
            running,
            timeout_s=tool.timeout_s or math.inf,
            output_bytes=limits.tool_output_bytes,
            now=self.ground.environment.now,
            keep=self._keep_output,
            background=True,
        )
        if ended is None:
            return None
        return task_text.end_command(found, attempt, ended.outcome, ended.content, at=self._now())

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
            preparer = Preparer(
                self.session,
                outfit.registry,
                outfit.rules,
                outfit.hooks,
                outfit.limits,
                outfit.budget,
                self.state.always,
                can_ask=self.is_watched,
            )
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
        outfit = self._turn_outfit or self.outfit
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
            timeout_s=call.preparation.timeout_s or outfit.limits.tool_timeout_s,
            output_bytes=outfit.limits.tool_output_bytes,
            now=self.ground.environment.now,
            keep=self._keep_output,
        )

    def _keep_output(self, call: CallId, shaped: Shaped) -> str | None:
        return self.ground.keep_output(self.session, call, shaped) if shaped.full_text is not None else None

    # -- small things

    async def _deliver(self, command: Command) -> None:
        assert self._ref is not None
        try:
            self._ref.tell(command)
        except MailboxFull:
            await self._ref.send(command)

    def _tell(self, command: Command) -> None:
        """Something nice to have: dropped when the mailbox is full."""
        assert self._ref is not None
        try:
            self._ref.tell(command)
        except (MailboxFull, ActorGone):
            logger.debug("session %s had no room for %s", self.session, type(command).__name__)

    def _now(self) -> float:
        return self.ground.environment.now()


def _folded(state: State, events: Sequence[Event]) -> State:
    for event in events:
        state = evolve(state, event)
    return state


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
