"""`open_runtime`: the nursery tree, from the journal outermost to the sessions.

    open_runtime
    |- journal writer      shielded; ends when its last sender has closed
    `- supervisor
       `- session *        one actor each; its model calls, tool calls and timers are its children

Shutdown is the reverse: the sessions stop (what runs is interrupted, and recorded), a snapshot is written, the last sender closes, the journal is sealed.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio
from attrs import frozen

from trouper import codec
from trouper._errors import ConfigError, InternalError, TrouperError, UsageError
from trouper.actors.environment import Environment
from trouper.actors.errors import ActorGone, MailboxFull
from trouper.actors.feed import Feed
from trouper.actors.ground import Outfit
from trouper.actors.journal import Inline, JournalStatistics, JournalWriter
from trouper.actors.notes import Notes
from trouper.actors.permits import Permits
from trouper.actors.reference import Inbox, Ref
from trouper.actors.restart import NEVER, Restart
from trouper.actors.session import SESSION_RESTART, SessionActor, SessionEvent
from trouper.actors.supervisor import Supervisor, open_supervisor
from trouper.actors.triggers import TRIGGER_RESTART, Act, When, check_trigger, run_trigger
from trouper.block import Block
from trouper.core.events import CompactionEnded, ModelFailed, ModelReplied, StepStarted, TurnEnded
from trouper.core.ids import MEMORY_STREAM, TaskId, check_name
from trouper.core.memory import Memories
from trouper.core.messages import NO_USAGE, Fault, Json, Usage
from trouper.core.session import EndedTurn, State, evolve
from trouper.core.settings import WARN_SHARE, Budget, Limits
from trouper.core.task_record import Owner
from trouper.core.values import changed
from trouper.journal import Disk, JournalError, Level, Log, Recovery, open_log
from trouper.journal.format import is_gap
from trouper.models.protocol import Model, check_model, close_model, confide_in
from trouper.roster import IDLE, Roster, SessionDamaged, encode_memories, encode_section, tag_of
from trouper.services.desk import Desk, provided
from trouper.services.memory import MemoryKeeper
from trouper.services.overview import Overview
from trouper.services.places import Places
from trouper.session import Session
from trouper.subscription import Subscription
from trouper.threads import in_thread
from trouper.tools.context import Services
from trouper.tools.contract import Tool
from trouper.tools.equipping import equipped
from trouper.tools.errors import ToolError
from trouper.tools.guards.rooted import RootedFiles
from trouper.tools.hooks import Hooks
from trouper.tools.policy import Rule
from trouper.tools.registry import Registry, ToolSource

if TYPE_CHECKING:
    from trouper.stores.memory_store import MemoryStore

logger = logging.getLogger("trouper.runtime")


@frozen
class Picture:
    """What a snapshot is made of."""

    #: The last record that every state has taken in.
    seq: int
    #: The last that any of them may have taken in. Buffered records are part of a state before they are on the disk, and a snapshot must not outlive them there (I17).
    covers: int
    #: Name, tag and state of each; no state: as it is in the snapshot before.
    sections: tuple[tuple[str, str, bytes | None], ...]


@frozen
class RuntimeStatistics:
    """A runtime in figures: see `Runtime.statistics()`."""

    sessions: int
    known_sessions: int
    usage: Usage
    journal: JournalStatistics


@frozen
class SessionInfo:
    """A session as the journal knows it, without opening it."""

    id: str
    phase: str
    turns: int
    open: bool


class RuntimeEnded(UsageError):
    """The block of this runtime has been left."""


class Runtime(Overview):
    """A running Trouper. Get one from `open_runtime()`."""

    def __init__(
        self,
        root: str | None,
        log: Log,
        writer: JournalWriter,
        supervisor: Supervisor,
        environment: Environment,
        outfit: Outfit,
        budget: Budget,
        places: Places,
    ) -> None:
        self.root = root
        self.writer = writer
        self.environment = environment
        self.epoch = log.epoch
        self.notes = Notes()
        self.owner = Owner(environment.ids.new("instance_"), environment.pid, environment.now())
        self.permits = Permits()
        self._starts = 0
        self._log = log
        self._supervisor = supervisor
        #: Apart from the rest, so that a session may have any name.
        self._sessions = supervisor.spawn_supervisor("sessions", grace_s=outfit.limits.grace_s)
        self._triggers = supervisor.spawn_supervisor("triggers", grace_s=outfit.limits.grace_s)
        self._outfit = outfit
        self._budget = budget
        self._roster = Roster(log)
        self._actors: dict[str, SessionActor] = {}
        self._handles: dict[str, Session] = {}
        #: Sessions of which this process has appended records, or may have: the roster's own no longer suffice.
        self._loaded: set[str] = set()
        #: What all sessions have used since this runtime was opened (L25).
        self._usage = NO_USAGE
        self._steps = self._tool_calls = 0
        self._warned: set[str] = set()
        self._feeds: list[Feed] = []
        self._closed = False
        self._since_snapshot = 0
        self._snapshots: Ref[None, None] | None = None
        self._places = places
        self.redact = places.redactor
        #: All that were ever asked here and are still there, by identity: their connections are closed at the end. Weakly: a host may make one for every turn.
        self._models: weakref.WeakValueDictionary[int, Model] = weakref.WeakValueDictionary()
        self.meet(outfit.model)
        self._desks: dict[str, Desk] = {}
        memories, next_seq = self._roster.memories()
        self.memory = MemoryKeeper(
            writer, log.epoch, environment.now, memories, next_seq, self.in_thread, _memory_store(places), self.redact
        )

    # -- sessions

    async def session(
        self,
        id: str | None = None,
        *,
        system: str | None = None,
        model: Model | None = None,
        tools: Iterable[ToolSource] | None = None,
        budget: Budget | None = None,
    ) -> Session:
        """Open a session: a new one, or the one that the journal knows under this name.

        What is given besides is this session's own from now on; what is left out stays as it was.
        """
        if self._closed:
            raise RuntimeEnded("the runtime is closed; open sessions inside its `async with open_runtime(...)` block")
        if system is not None and not isinstance(system, str):
            raise UsageError(f"system={system!r} is no text; give the system prompt as text")
        check_model(model)
        if budget is not None:
            _check_budget(budget)
        name = self.environment.ids.new("session_") if id is None else check_name(id, "session")
        handle = self._handles.get(name)
        if handle is None or handle._ref.exit is not None:
            outfit = self._outfit_for(self._outfit, model, tools, budget)
            if handle is None and self._roster.has_gaps:
                self._roster.load(name)  # Raises for a session that has lost records, before an actor fails on it.
            handle = self._start(name, outfit, system)
        elif model is not None or tools is not None or budget is not None:
            handle._actor.outfit = self._outfit_for(handle._actor.outfit, model, tools, budget)
        await handle._opened(system)
        return handle

    def _outfit_for(
        self, usual: Outfit, model: Model | None, tools: Iterable[ToolSource] | None, budget: Budget | None
    ) -> Outfit:
        """`usual`, but for what was given."""
        if model is not None:
            self.meet(model)
        return Outfit(
            model=usual.model if model is None else model,
            registry=usual.registry if tools is None else self._checked(equipped(tools)),
            budget=usual.budget if budget is None else budget,
            limits=usual.limits,
            rules=usual.rules,
            hooks=usual.hooks,
        )

    def meet(self, model: Model) -> None:
        """A model that is about to be used: its keys are kept out of what is written, and its connections end with the runtime."""
        with suppress(TypeError):  # A class with slots of its own may have no room for it; see `_close_models`.
            self._models[id(model)] = model
        confide_in(model, self.redact)

    def _checked(self, registry: Registry) -> Registry:
        """No model hears of a tool whose needs are not met (T7)."""
        registry.check_needs(provided(self._places))
        return registry

    def _start(self, name: str, outfit: Outfit, system: str | None) -> Session:
        actor = SessionActor(name, self, outfit, system)
        ref = self._sessions.spawn(
            name, actor.run, restart=SESSION_RESTART, mailbox=outfit.limits.mailbox, grace_s=outfit.limits.grace_s
        )
        self._actors[name] = actor
        handle = self._handles[name] = Session(self, actor, ref)
        return handle

    def sessions(self) -> list[SessionInfo]:
        """Every session that the journal knows, in the order of their names."""
        found: dict[str, SessionInfo] = {}
        for name in self._roster.names():
            if name not in self._actors:
                try:
                    state, _ = self._roster.load(name)
                except SessionDamaged:
                    found[name] = SessionInfo(name, "damaged", 0, False)
                else:
                    found[name] = SessionInfo(name, state.phase.value, state.turns, False)
        for name, actor in self._actors.items():
            found[name] = SessionInfo(
                name, actor.state.phase.value, actor.state.turns, self._handles[name]._ref.exit is None
            )
        return [found[name] for name in sorted(found)]

    # -- triggers

    def trigger(self, name: str, when: When, act: Act, *, restart: Restart = TRIGGER_RESTART) -> Ref[Any, Any]:
        """Call `act(fired)` as `when` says: `Every(60)`, `OnChange("inbox/")`, `Cron("0 9 * * *")`... until the runtime ends or `stop_trigger(name)` (B25)."""
        check_trigger(when, act, self.environment.now())
        return self._triggers.spawn(name, run_trigger, name, when, act, self.environment.now, restart=restart)

    async def stop_trigger(self, name: str) -> bool:
        """Whether there was one. Returns when it has stopped."""
        ref = self._triggers.find(name)
        if ref is None:
            return False
        self._triggers.stop(ref)
        await ref.wait_exit()
        return True

    async def _stop_triggers(self, grace_s: float) -> None:
        for actor in self._triggers.statistics().actors:
            ref = self._triggers.find(actor.name.rpartition("/")[2])
            if ref is not None:
                self._triggers.stop(ref, grace_s=grace_s)
                await ref.wait_exit()

    # -- looking

    def _states(self, session: str | None = None) -> Iterator[tuple[str, State]]:
        for name in sorted({*self._roster.names(), *self._actors} if session is None else {session}):
            actor = self._actors.get(name)
            if actor is not None and actor.next_seq:
                yield name, actor.state
            elif name in self._roster and name not in self._roster.unreadable:
                yield name, self._roster.load(name)[0]

    async def _session(self, name: str) -> Session:
        return await self.session(name)

    @property
    def recovery(self) -> Recovery:
        """What opening the journal found and did."""
        return self._log.recovery

    def events(self, after: int = 0) -> Subscription[codec.Record]:
        """Every record of every session from journal sequence `after` + 1 on, old ones first, then new ones as they come."""
        return Subscription(
            self._feeds,
            self._outfit.limits.subscriber_events,
            after,
            number=lambda record: record.seq,
            settle=self._settle,
            past=lambda after, _: self._past_records(after, self._log.durable),
            is_over=lambda: self._closed,
        )

    def statistics(self) -> RuntimeStatistics:
        """Figures as of now."""
        return RuntimeStatistics(
            sessions=sum(handle._ref.exit is None for handle in self._handles.values()),
            known_sessions=len(set(self._roster.names()) | set(self._actors)),
            usage=self._usage,
            journal=self.writer.statistics(),
        )

    # -- what sessions stand on (see `trouper.actors.ground.Ground`)

    async def load(self, session: str) -> tuple[State, int]:
        if session not in self._loaded:
            found = self._roster.load(session)
        else:
            # Begins again, after a crash or after its end: what was handed over may still be on its way to the disk.
            await self.writer.wait_durable(self._log.last)
            found = self._roster.reload(session)
        self._loaded.add(session)
        self._roster.opened(session)
        return found

    def recorded(self, session: str, record: codec.Record) -> None:
        for event in record.events:
            kind = type(event)
            if kind is ModelReplied or kind is ModelFailed or kind is CompactionEnded or kind is TurnEnded:
                self._usage = self._usage + event.usage
                if kind is ModelReplied:
                    self._tool_calls += len(event.preparations)
            elif kind is StepStarted:
                self._steps += 1
        for feed in self._feeds:
            feed.push(record)
        self._since_snapshot += 1
        if self._since_snapshot >= self._outfit.limits.snapshot_every and self._snapshots is not None:
            self._since_snapshot = 0
            with suppress(MailboxFull, ActorGone):
                self._snapshots.tell(None)

    def services(self, session: str) -> Services:
        """What the tools of a session are given."""
        return self.desk(session).services(self._actors[session].outfit.registry)

    def desk(self, session: str) -> Desk:
        """The services of one session."""
        found = self._desks.get(session)
        if found is None or found.session is not self._handles[session]:
            found = self._desks[session] = Desk(self._handles[session], self._places, self.memory, self.environment.utc)
        return found

    def files_of(self, session: str) -> RootedFiles | None:
        """The files of a session; `None` where the runtime has none."""
        return self._places.files_of(session)

    async def in_thread(self, work: Callable[[], Any]) -> Any:
        """Work that blocks, out of the way."""
        return await in_thread(work)

    async def keep_output(self, session: str, path: str, text: str) -> str | None:
        files = self.files_of(session)
        if files is None:
            return "the session has no files"
        try:
            # Not abandoned on cancel: it is whole, or not there.
            await self.in_thread(lambda: files.write_pieces(path, self.redact.pieces(text)))
        except ToolError as error:
            logger.warning("session %s: an output was not kept: %s", session, error)
            return str(error)
        except (TrouperError, OSError) as error:
            logger.warning("session %s: an output was not kept: %s", session, error)
            return "it could not be written"
        return None

    def input_answered(self, session: str, task_id: TaskId, answer: Json) -> None:
        """The answer to what a task waited for is on record."""
        self.desk(session).questions.recorded(task_id, answer)

    def new_owner(self) -> Owner:
        self._starts += 1
        return changed(self.owner, instance=f"{self.owner.instance}.{self._starts}")

    def over_budget(self) -> Fault | None:
        for what, used, cap in self._spent():
            # The step that asks is counted already.
            if used > cap if what == "steps" else used >= cap:
                return Fault(
                    "budget",
                    f"the runtime's budget of {cap} {what} is spent ({used} used); raise Budget.{what} to go on",
                )
        return None

    def budget_warnings(self) -> list[tuple[str, float, float]]:
        due: list[tuple[str, float, float]] = [
            (f"runtime {what}", used, cap)
            for what, used, cap in self._spent()
            if used >= cap * WARN_SHARE and what not in self._warned
        ]
        self._warned.update(what.removeprefix("runtime ") for what, _, _ in due)
        return due

    def _spent(self) -> list[tuple[str, int, int]]:
        """What the runtime's budget caps: what, how much is used, and of how much."""
        budget = self._budget
        if budget.tokens is None and budget.steps is None and budget.tool_calls is None:
            return []
        spent = (
            ("tokens", self._usage.total or 0, budget.tokens),
            ("steps", self._steps, budget.steps),
            ("tool_calls", self._tool_calls, budget.tool_calls),
        )
        return [(what, used, cap) for what, used, cap in spent if cap is not None]

    # -- inside

    async def _settle(self) -> None:
        """Until everything that was handed over so far is in the journal."""
        await self.writer.wait_durable(self._log.last)

    def _past_records(self, after: int, upto: int) -> Iterator[codec.Record | None]:
        for raw in self._log.paced_records(after=after):
            if raw is None:
                yield None
                continue
            if raw.seq > upto:
                return
            if not is_gap(raw.payload):
                yield codec.decode(raw.payload, raw.seq)

    def _past_events(self, session: str, after: int, upto: int, read: int) -> Iterator[SessionEvent | None]:
        """Recorded events of a session with numbers in (after, upto); `read`: a record before which there are none of them. `None`: others may run."""
        if after + 1 >= upto:
            return
        for raw in self._log.paced_records(max(0, read - 1), session):
            if raw is None:
                yield None
                continue
            if is_gap(raw.payload):
                continue
            record = codec.decode(raw.payload, raw.seq)
            for offset, event in enumerate(record.events, record.n):
                if after < offset < upto:
                    yield SessionEvent(offset, record.at, event, raw.seq)
            if record.n + len(record.events) >= upto:
                return

    def _ended_turn(self, session: str, number: int) -> EndedTurn:
        """How a turn of the past ended, from the journal."""
        state = State()
        for raw in self._log.records(stream=session):
            if is_gap(raw.payload):
                continue
            for event in codec.decode_events(raw.payload, raw.seq)[2]:
                state = evolve(state, event)
                if state.last is not None and state.last.number == number:
                    return state.last
        raise InternalError(f"session {session!r} has no end of turn {number} in its journal; please report this")

    def _recover(self) -> None:
        """Sessions that a dead process left in the middle of something are opened at once, and close what it left open (J12)."""
        names = self._roster.active()
        for name in names:
            # All of them before any session begins: what they hold counts from the first moment (I19).
            self.permits.hold(name, self._roster.load(name)[0].tasks.active)
        for name in names:
            self._start(name, self._outfit, None)
        if self.memory.next_seq:
            self._supervisor.spawn("memory", self._refresh_memory, restart=NEVER)
        self._supervisor.spawn("notes", self.notes.run, restart=SESSION_RESTART)
        self._snapshots = self._supervisor.spawn("snapshots", self._keep_snapshots, restart=SESSION_RESTART, mailbox=1)

    async def _refresh_memory(self, inbox: Inbox[None, None]) -> None:
        await self.memory.refresh()

    async def _keep_snapshots(self, inbox: Inbox[None, None]) -> None:
        """Write a snapshot whenever enough has happened since the last one: see `recorded`."""
        async for _ in inbox:
            await self._write_snapshot()

    async def _write_snapshot(self) -> None:
        """A failure costs time, not data: a snapshot is optional (J13)."""
        self._since_snapshot = 0
        await self._put_down(self._pictured())

    def _pictured(self) -> Picture:
        """The state of every session, all at this very moment."""
        writers: list[SessionActor | MemoryKeeper] = [*self._actors.values(), self.memory]
        in_flight = [writer.in_flight for writer in writers if writer.in_flight is not None]
        live: list[tuple[str, str, bytes | None]] = [
            (name, tag_of(actor.state), encode_section(actor.state, actor.next_seq))
            for name, actor in self._actors.items()
            if actor.next_seq
        ]
        if self.memory.next_seq:
            live.append((MEMORY_STREAM, IDLE, encode_memories(self.memory.memories, self.memory.next_seq)))
        rest = [section for section in self._roster.untouched() if section[0] not in self._actors]
        return Picture(
            seq=min([self._log.durable, *(first - 1 for first in in_flight)]),
            covers=self._log.last,
            sections=(*rest, *live),
        )

    async def _put_down(self, picture: Picture) -> None:
        try:
            await self.writer.wait_durable(picture.covers)
            if self.writer.is_threaded:
                await trio.to_thread.run_sync(self._log.write_snapshot, picture.seq, picture.sections)
            else:
                self._log.write_snapshot(picture.seq, picture.sections)
        except (OSError, JournalError) as error:
            logger.warning("no snapshot was written: %s; the next start folds the records instead", error)


def open_runtime(
    root: str | os.PathLike[str] | None = None,
    *,
    model: Model | None = None,
    tools: Iterable[ToolSource] = (),
    limits: Limits | None = None,
    budget: Budget | None = None,
    durability: Level = "fsync",
    policies: Sequence[Rule] = (),
    hooks: Sequence[Hooks] = (),
    environment: Environment | None = None,
    disk: Disk | None = None,
) -> AbstractAsyncContextManager[Runtime]:
    """Run Trouper inside this block: `async with open_runtime("./state") as runtime:`.

    `root`: the directory of the journal and the sessions' files; `None` is the default profile's. `durability`: "fsync" survives a power cut, "write"
    a killed process, "memory" nothing. Without a `model` the simulated one serves, which needs no key.
    """
    return Block(
        lambda: _open_runtime(
            root, model, tools, limits, budget, durability, policies, hooks, environment or Environment(), disk
        ),
        "async with open_runtime(...) as runtime:",
    )


@asynccontextmanager
async def _open_runtime(
    root: str | os.PathLike[str] | None,
    model: Model | None,
    tools: Iterable[ToolSource],
    limits: Limits | None,
    budget: Budget | None,
    durability: Level,
    policies: Sequence[Rule],
    hooks: Sequence[Hooks],
    environment: Environment,
    disk: Disk | None,
) -> AsyncIterator[Runtime]:
    limits = Limits() if limits is None else limits
    budget = Budget() if budget is None else budget
    _check_arguments(root, model, tools, limits, budget, policies, hooks)
    path = _root_path(root, durability)
    outfit = Outfit(
        model=_default_model() if model is None else model,
        registry=equipped(tools),
        budget=Budget(inline_s=budget.inline_s, wall_s=budget.wall_s),
        limits=limits,
        rules=tuple(policies),
        hooks=tuple(hooks),
    )
    places = _places(root, path, durability, disk, environment)
    # Before anything is advertised, and before the disk is touched (T7).
    outfit.registry.check_needs(provided(places))
    log = open_log(path, level=durability, disk=disk, new_id=lambda: environment.ids.new("journal_"))
    if log.refusal is not None:
        log.close()
        raise log.refusal
    try:
        async with _journal(log, environment) as writer, _supervised() as supervisor:
            runtime = Runtime(
                None if durability == "memory" else path,
                log,
                writer,
                supervisor,
                environment,
                outfit,
                budget,
                places,
            )
            runtime._recover()
            try:
                async with _until_terminated():
                    yield runtime
            finally:
                # Sessions first, then the snapshot: see `_journal` for the rest.
                with trio.CancelScope(shield=True):
                    await _stop_sessions(runtime, limits.grace_s)
                    await _close_models(runtime)
    except BaseExceptionGroup as group:
        raise _alone(group) from None
    finally:
        log.close()
        places.close()


@asynccontextmanager
async def _journal(log: Log, environment: Environment) -> AsyncIterator[JournalWriter]:
    """The writer's task around everything that may append."""
    latency = environment.sync_latency
    writer = JournalWriter(log, sync=None if latency is None else Inline(latency))
    async with trio.open_nursery() as nursery:
        with writer.open_sender():
            nursery.start_soon(writer.run)
            try:
                yield writer
            finally:
                writer.close()


@asynccontextmanager
async def _supervised() -> AsyncIterator[Supervisor]:
    async with open_supervisor(name="trouper") as supervisor:
        yield supervisor


@asynccontextmanager
async def _until_terminated() -> AsyncIterator[None]:
    """SIGTERM ends the block as a cancel would, and the process with the exit code that it would have had; Ctrl-C does the like by itself.

    Only where nobody else has said what SIGTERM means, and where signals can be received at all.
    """
    mine = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not mine:
        yield
        return
    terminated = False
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                nonlocal terminated
                async for _ in signals:
                    terminated = True
                    nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            yield
            nursery.cancel_scope.cancel()
    if terminated:
        raise SystemExit(128 + signal.SIGTERM)


async def _stop_sessions(runtime: Runtime, grace_s: float) -> None:
    runtime._closed = True
    await runtime._stop_triggers(grace_s)
    for handle in runtime._handles.values():
        if handle._ref.exit is None:
            runtime._sessions.stop(handle._ref, grace_s=grace_s)
    for handle in runtime._handles.values():
        await handle._ref.wait_exit()
    # Nobody speaks any more: it would only sleep on to its next look. Where all of the tree is being cancelled it is gone by now.
    if (notes := runtime._supervisor.find("notes")) is not None:
        runtime._supervisor.cancel(notes)
    for feed in runtime._feeds:
        feed.end()
    try:
        await runtime._settle()
    except JournalError:
        return  # The writer says itself what is wrong.
    if runtime._since_snapshot:
        await runtime._write_snapshot()
    runtime.memory.close()


async def _close_models(runtime: Runtime) -> None:
    """Clients keep connections open for the next request; there is none any more."""
    in_use = (runtime._outfit.model, *(actor.outfit.model for actor in runtime._actors.values()))
    for model in {**runtime._models, **{id(model): model for model in in_use}}.values():
        with trio.move_on_after(1.0):
            await close_model(model)


def _check_arguments(
    root: object, model: object, tools: object, limits: object, budget: object, policies: object, hooks: object
) -> None:
    """A mistake in the call is told here, in the caller's words, and not by a session later."""
    if root is not None and not isinstance(root, str | os.PathLike):
        raise ConfigError(f"root={root!r} is no directory; give its path, or leave it out for the default profile")
    if root is not None and not os.fspath(root):
        raise ConfigError("the root is an empty name; give a directory, or leave it out for the default profile")
    check_model(model)
    if isinstance(tools, Tool | str) or not isinstance(tools, Iterable):
        raise ConfigError(f"tools={tools!r} is no list of tools; write tools=[...]")
    if not isinstance(limits, Limits):
        raise ConfigError(f"limits={limits!r} is no Limits; write limits=Limits(...)")
    _check_budget(budget)
    for what, given, kind in (("policies", policies, Rule), ("hooks", hooks, Hooks)):
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise ConfigError(f"{what}={given!r} is no list; write {what}=[{kind.__name__}(...)]")
        for item in given:
            if not isinstance(item, kind):
                raise ConfigError(f"{item!r} in {what} is no {kind.__name__}; write {what}=[{kind.__name__}(...)]")


def _check_budget(budget: object) -> None:
    if not isinstance(budget, Budget):
        raise ConfigError(f"budget={budget!r} is no Budget; write budget=Budget(...)")


def _root_path(root: str | os.PathLike[str] | None, durability: Level) -> str:
    if root is not None:
        return os.path.abspath(os.fspath(root))
    if durability == "memory":
        return "/memory"
    from trouper.stores.profiles import default_root

    return str(default_root())


def _places(
    root: str | os.PathLike[str] | None, path: str, durability: Level, disk: Disk | None, environment: Environment
) -> Places:
    """Beside the journal; a journal on a disk that is not the system's has nothing beside it, unless a directory is named."""
    if environment.directory is not None:
        return Places(environment.directory, keyring=environment.keyring)
    if disk is not None:
        return Places(None)
    if durability == "memory" and root is None:
        return Places(None, temporary=True, keyring=environment.keyring)
    return Places(Path(path), keyring=environment.keyring)


def _memory_store(places: Places) -> Callable[[Memories], MemoryStore] | None:
    directory = places.lasting
    if directory is None:
        return None

    def opened(memories: Memories) -> MemoryStore:
        from trouper.stores.memory_store import open_memory_store  # sqlite3 is for those who remember something.

        return open_memory_store(directory, memories)

    return opened


def _default_model() -> Model:
    from trouper.models.simulated import Simulated

    return Simulated()


def _alone(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """A group of one is that one: the nurseries in here are our business, not the caller's."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup) and len(found.exceptions) == 1:
        found = found.exceptions[0]
    return found
