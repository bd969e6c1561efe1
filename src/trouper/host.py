"""A running Trouper, as its users hold it: open sessions, set triggers, look over all of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

import trio

from trouper import checks, codec, past
from trouper._errors import UsageError
from trouper.actors.errors import SupervisorClosed
from trouper.actors.ground import Outfit
from trouper.actors.journal import JournalStatistics
from trouper.actors.reference import Ref
from trouper.actors.restart import Restart
from trouper.actors.session import SESSION_RESTART, SessionActor
from trouper.actors.supervisor import Supervisor
from trouper.actors.triggers import TRIGGER_RESTART, Act, When, check_trigger, run_trigger
from trouper.arguments import check_budget, check_tools
from trouper.core.ids import check_name
from trouper.core.messages import Usage
from trouper.core.recovery import tools_needed
from trouper.core.session import State
from trouper.core.settings import Budget, recordable
from trouper.core.values import changed, frozen
from trouper.ground import RuntimeGround
from trouper.journal import Recovery
from trouper.models.protocol import Model, check_model
from trouper.resident import Resident
from trouper.roster import SessionDamaged
from trouper.services.desk import provided
from trouper.services.overview import Overview
from trouper.session import Session, SessionEnded
from trouper.subscription import Subscription
from trouper.tools.context import Offered
from trouper.tools.equipping import equipped, rules_for_nothing
from trouper.tools.guards.rooted import RootedFiles
from trouper.tools.registry import Registry, ToolSource

logger = logging.getLogger("trouper.runtime")

#: What a session may take beyond the grace, to write down that it is over, before somebody is told that it takes long.
_PATIENCE_S = 1.0
#: Sessions that are named one by one where many wait: a server may have one for each of its users.
NAMED_MAX = 5


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
    #: Whether it is in memory.
    open: bool


class RuntimeEnded(UsageError):
    """The block of this runtime has been left."""


@contextmanager
def _while_it_starts_any(what: str) -> Iterator[None]:
    """A runtime that is cancelled stops its actors before its block is left: whoever is in there, shielded or not, may still ask for more."""
    try:
        yield
    except SupervisorClosed as error:
        raise RuntimeEnded(f"the runtime was cancelled, and starts no {what}; open it again first") from error


class Runtime(Overview):
    """A running Trouper. Get one from `open_runtime()`."""

    def __init__(self, root: str | None, ground: RuntimeGround, supervisor: Supervisor, outfit: Outfit) -> None:
        self.root = root
        self.environment = ground.environment
        self.permits = ground.permits
        self.memory = ground.memory
        self._ground = ground
        self._log = ground.log
        #: Apart from the rest, so that a session may have any name.
        self._sessions = supervisor.spawn_supervisor("sessions", grace_s=outfit.limits.grace_s)
        self._triggers = supervisor.spawn_supervisor("triggers", grace_s=outfit.limits.grace_s)
        self._outfit = outfit
        self._not_taken_up: dict[str, str] = {}
        #: Whether it is still to be said which rules are for no tool. Without tools of the runtime's own, all are the sessions'.
        self._rules_unchecked = len(outfit.registry) > 0
        ground.models.meet(outfit.model)

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

        What is given besides is this session's own from now on; what is left out stays as it was. The journal holds the `system` prompt and the budget, not the others: another process gives them again, and
        does not take up what is open in such a session before.
        """
        self._check_open()
        self._ground.home.check()
        if system is not None and not isinstance(system, str):
            raise UsageError(f"system={system!r} is no text; give the system prompt as text")
        if system is not None:
            checks.text(system, "the system prompt", checks.SYSTEM_MAX)
        check_model(model)
        if tools is not None:
            check_tools(tools)
        if budget is not None:
            check_budget(budget)
            budget = recordable(budget)
        own = tuple(what for what, value in (("model", model), ("tools", tools)) if value is not None)
        name = self.environment.ids.new("session_") if id is None else check_name(id, "session")
        self._check_rules(tools)
        await self._wait_gone(name)
        resident = self._ground.sessions.get(name)
        if resident is None or resident.ref.exit is not None:
            outfit = self._outfit_for(self._ground.outfit_of(name) or self._outfit, model, tools, budget)
            if resident is None and self._ground.roster.has_gaps:
                # Raises for a session that has lost records, before an actor fails on it.
                self._ground.roster.load(name)
            # Whoever is cancelled together with the runtime is told of the cancel, not of a runtime that starts nothing more.
            await trio.lowlevel.checkpoint_if_cancelled()
            self._start(name, outfit, system, own, budget)
        elif model is not None or tools is not None or budget is not None:
            actor = resident.actor
            actor.outfit = self._outfit_for(actor.outfit, model, tools, budget)
            if budget is not None:
                actor.budget = budget  # It may not have read its session yet, where the journal has the one before.
        self._not_taken_up.pop(name, None)
        handle = self._ground.asked_for(name)
        for rested in self._ground.put_to_rest():
            self._sessions.stop(rested.ref)
        try:
            await handle._opened(system, own, budget)
        except SessionEnded:
            if self._ground.roster.has_gaps:
                # Found when its actor began: what is wrong with it, and not that it has ended.
                self._ground.roster.load(name)
            raise
        return handle

    def _check_rules(self, tools: Iterable[ToolSource] | None) -> None:
        """Said when the first session is opened, and not before: a host that gives its sessions tools of their own has rules for these, which nobody else knows."""
        if self._rules_unchecked and tools is None:
            for rule, near in rules_for_nothing(self._outfit.rules, self._outfit.registry.names):
                logger.warning(
                    "a rule says %r for the tool %r, but the runtime has no such tool%s: unless a session brings it along, the rule guards nothing",
                    rule.effect,
                    rule.tool,
                    f" (did you mean {' or '.join(map(repr, near))}?)" if near else "",
                )
        self._rules_unchecked = False

    async def _wait_gone(self, name: str) -> None:
        """The actor of a session that was put to rest a moment ago may not have ended yet; there is only one of a name."""
        while name not in self._ground.sessions and (leaving := self._sessions.find(name)) is not None:
            await leaving.wait_exit()
            self._check_open()

    def _check_open(self) -> None:
        if self._ground.closed:
            raise RuntimeEnded("the runtime is closed; open sessions inside its `async with open_runtime(...)` block")

    def _outfit_for(
        self, usual: Outfit, model: Model | None, tools: Iterable[ToolSource] | None, budget: Budget | None
    ) -> Outfit:
        """`usual`, but for what was given."""
        if model is None and tools is None and budget is None:
            return usual
        if model is not None:
            self._ground.models.meet(model)
            usual = changed(usual, model=model)
        if tools is not None:
            usual = changed(usual, registry=self._checked(equipped(tools)))
        return usual if budget is None else changed(usual, budget=self._ground.allowed(budget))

    def _lend_model(self, session: Session, model: Model) -> None:
        """For as long as this process has the session. Not noted as its own: whoever goes on with it elsewhere has chosen a model, too, and is not to be kept from that."""
        actor = session._actor
        actor.outfit = self._outfit_for(actor.outfit, model, None, None)

    def _checked(self, registry: Registry) -> Registry:
        """No model hears of a tool whose needs are not met (T7)."""
        registry.check_needs(provided(self._ground.places))
        return registry

    def _start(
        self,
        name: str,
        outfit: Outfit,
        system: str | None = None,
        own: tuple[str, ...] = (),
        budget: Budget | None = None,
    ) -> None:
        is_back = name in self._ground.resting
        actor = SessionActor(name, self._ground, outfit, system, own=own, budget=budget, is_back=is_back)
        before = self._ground.sessions.get(name)
        if before is not None:
            # Until it has read the session anew, it stands for what the one that has failed left behind: nobody else here knows that (I12).
            ended = before.actor
            actor.state, actor.next_seq, actor.in_flight = ended.state, ended.next_seq, ended.in_flight
        with _while_it_starts_any(f"session {name!r}"):
            ref = self._sessions.spawn(
                name, actor.run, restart=SESSION_RESTART, mailbox=outfit.limits.mailbox, grace_s=outfit.limits.grace_s
            )
        self._ground.opened(name, Resident(self._ground, actor, ref))

    def sessions(self) -> list[SessionInfo]:
        """Every session that the journal knows, in the order of their names."""
        roster, opened = self._ground.roster, self._ground.sessions
        found: dict[str, SessionInfo] = {}
        for name, session in opened.items():
            state = session.actor.state
            found[name] = SessionInfo(name, state.phase.value, state.turns, session.ref.exit is None)
        for name in roster.names():
            # One that is being recovered has not been read by its actor yet: then the journal knows more of it.
            if name not in opened or not opened[name].actor.next_seq:
                try:
                    phase, turns = roster.glance(name)
                except SessionDamaged:
                    found[name] = SessionInfo(name, "damaged", 0, False)
                else:
                    found[name] = SessionInfo(name, phase, turns, name in opened)
        return [found[name] for name in sorted(found)]

    # -- triggers

    def trigger(self, name: str, when: When, act: Act, *, restart: Restart = TRIGGER_RESTART) -> Ref[Any, Any]:
        """Call `act(fired)` as `when` says: `Every(60)`, `OnChange("inbox/")`, `Cron("0 9 * * *")`... until the runtime ends or `stop_trigger(name)` (B25)."""
        if self._ground.closed:
            raise RuntimeEnded("the runtime is closed; set triggers inside its `async with open_runtime(...)` block")
        self._ground.home.check()
        checks.text(name, "the name of a trigger")
        check_trigger(when, act, self.environment.now())
        with _while_it_starts_any(f"trigger {name!r}"):
            return self._triggers.spawn(name, run_trigger, name, when, act, self.environment.now, restart=restart)

    async def stop_trigger(self, name: str) -> bool:
        """Whether there was one. Returns when it has stopped."""
        self._ground.home.check()
        ref = self._triggers.find(checks.text(name, "the name of a trigger"))
        if ref is None:
            return False
        self._triggers.stop(ref)
        await ref.wait_exit()
        return True

    # -- looking

    def _states(self, session: str | None = None) -> Iterator[tuple[str, State]]:
        """Those that may have tasks, notifications or schedules."""
        roster, opened = self._ground.roster, self._ground.sessions
        for name in sorted({*roster.names(), *opened} if session is None else {session}):
            resident = opened.get(name)
            if resident is not None and resident.actor.next_seq:
                yield name, resident.actor.state
            elif name in roster and name not in roster.unreadable and not roster.is_bare(name):
                yield name, roster.load(name)[0]

    async def _session(self, name: str) -> Session:
        return await self.session(name)

    @property
    def recovery(self) -> Recovery:
        """What opening the journal found and did."""
        return self._log.recovery

    def events(self, after: int = 0) -> Subscription[codec.Record]:
        """Every record of every session, and of the memory (`~memory`), from journal sequence `after` + 1 on, old ones first, then new ones as they come."""
        return Subscription(
            self._ground.feeds,
            self._outfit.limits.subscriber_events,
            after,
            number=lambda record: record.seq,
            settle=lambda record: self._ground.settle(None if record is None else record.seq),
            past=lambda after, _: past.records(self._log, after, self._log.durable),
            is_over=lambda: self._ground.is_silent,
            check_here=self._ground.home.check,
        )

    def statistics(self) -> RuntimeStatistics:
        """Figures as of now."""
        return RuntimeStatistics(
            sessions=sum(each.ref.exit is None for each in self._ground.sessions.values()),
            known_sessions=len({*self._ground.roster.names(), *self._ground.sessions}),
            usage=self._ground.spending.usage,
            journal=self._ground.writer.statistics(),
        )

    # -- what a session has besides

    def services(self, session: str) -> Offered:
        """What the tools of an open session are given."""
        if checks.text(session, "the id of a session") not in self._ground.sessions:
            raise UsageError(
                f"session {session!r} is not open; open it with `await runtime.session({session!r})` first"
            )
        return self._ground.services(session)

    def files_of(self, session: str) -> RootedFiles | None:
        """The files of a session; `None` where the runtime has none."""
        return self._ground.files_of(check_name(session, "session"))

    # -- beginning and end

    def _recover(self, take_up: bool) -> None:
        """Sessions that a dead process left in the middle of something are opened at once, and close what it left open (J12)."""
        taken_up: list[str] = []
        for name in self._ground.roster.active():
            state, _ = self._ground.roster.load(name)
            # All of them before any session begins: what they hold counts from the first moment (I19).
            self.permits.hold(name, state.tasks.active)
            if lacking := self._lacking(state):
                self._not_taken_up[name] = lacking
            else:
                taken_up.append(name)
        if not take_up:
            return
        for name, lacking in islice(self._not_taken_up.items(), NAMED_MAX):
            logger.warning(
                "session %s waits as the last process left it: it needs %s; open it with that", name, lacking
            )
        if (more := len(self._not_taken_up) - NAMED_MAX) > 0:
            logger.warning("%d more sessions wait so; see Runtime.not_taken_up", more)
        for name in taken_up:
            self._start(name, self._outfit)

    @property
    def not_taken_up(self) -> Mapping[str, str]:
        """What a dead process left open, and only whoever opens the session can go on with: the sessions that wait for that, each with what it needs."""
        return dict(self._not_taken_up)

    def _lacking(self, state: State) -> str:
        """What a session needs to go on, and only who opens it may have: without it, it would be another model that answers, and runs would end that can go on."""
        if state.own:
            return f"the {' and '.join(state.own)} that it was given of its own"
        needed = tools_needed(state, resume=self._outfit.limits.on_restart == "resume")
        missing = sorted(name for name in needed if self._outfit.registry.get(name) is None)
        return f"the tool{'s' * (len(missing) > 1)} {', '.join(map(repr, missing))}" if missing else ""

    async def _stop(self) -> None:
        """What ran when it was closed has been interrupted, and that is recorded, when this returns."""
        self._ground.closed = True
        grace_s = self._outfit.limits.grace_s
        for actor in self._triggers.statistics().actors:
            ref = self._triggers.find(actor.name.rpartition("/")[2])
            if ref is not None:
                self._triggers.stop(ref, grace_s=grace_s)
                await ref.wait_exit()
        # One that is being closed is no longer among them when it has ended.
        opened = dict(self._ground.sessions)
        for each in opened.values():
            if each.ref.exit is None:
                self._sessions.stop(each.ref, grace_s=grace_s)
        with trio.move_on_after(grace_s + _PATIENCE_S):
            for each in opened.values():
                await each.ref.wait_exit()
        if late := sorted(name for name, each in opened.items() if each.ref.exit is None):
            # No nursery can end before what is in it. Nothing is lost: that they were interrupted is recorded.
            logger.warning(
                "the runtime waits for %s: a tool or a model's client shields itself from its cancel; "
                "give its trio.CancelScope(shield=True) a deadline",
                ", ".join(map(repr, late)),
            )
        for each in opened.values():
            await each.ref.wait_exit()
