"""What a session stands on, what it works with, and what those who do its work see of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol, TypeAlias

from trouper import codec
from trouper.actors.audience import Audience
from trouper.actors.door import Door
from trouper.actors.environment import Environment
from trouper.actors.gate import Gate
from trouper.actors.holds import Holds
from trouper.actors.journal import JournalWriter
from trouper.actors.notes import Notes
from trouper.actors.permits import Permits
from trouper.actors.preparing import Preparer
from trouper.actors.running import Running
from trouper.actors.runs import RunGround, RunHost
from trouper.core.commands import Command
from trouper.core.messages import Fault, Json, ToolSpec
from trouper.core.notification import NotificationLimits
from trouper.core.outstanding import Work
from trouper.core.schedule import ScheduleLimits
from trouper.core.session import State
from trouper.core.settings import Budget, Limits, TurnOptions
from trouper.core.task_record import Owner, TaskLimits
from trouper.core.values import frozen
from trouper.models.protocol import Model, name_of, window_of
from trouper.tools.context import Offered
from trouper.tools.hooks import Hooks
from trouper.tools.policy import Rule
from trouper.tools.registry import Registry

#: A piece of work that a session's state waits for, and the handle by which the session stops it.
Started: TypeAlias = tuple[Work, Running]


@frozen
class Outfit:
    """What a session works with. It may get another one between turns; a running turn keeps what it started with (L3)."""

    model: Model
    registry: Registry
    budget: Budget
    limits: Limits
    rules: Sequence[Rule] = ()
    hooks: Sequence[Hooks] = ()
    #: The class that a turn's output is made into; `None`: none, or nobody knows any more.
    shape: Any = None

    @cached_property
    def preparer(self) -> Preparer:
        """What its calls are checked against."""
        return Preparer(self.registry, self.rules, self.hooks, self.limits, self.budget)

    @property
    def may_call(self) -> bool:
        """Whether its model may call tools at all."""
        return self.budget.tool_calls != 0

    def specs(self, revealed: frozenset[str] = frozenset()) -> tuple[ToolSpec, ...]:
        """What its model is offered."""
        return self.registry.specs(revealed) if self.may_call else ()

    def turn_options(self, schema: Any = None) -> TurnOptions:
        limits, budget = self.limits, self.budget
        return TurnOptions(
            max_steps=limits.max_steps,
            parallel_calls=limits.parallel_calls,
            model=name_of(self.model),
            window=window_of(self.model),
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


class Spending(Protocol):
    """The budget of a runtime, and what is left of it."""

    #: Whether there is anything to watch.
    is_capped: bool
    #: Whether tokens are among it.
    caps_tokens: bool

    async def hold(self, session: str, tokens: int, *, may_call: bool) -> Any:
        """Hold what a step of this session, or a summary, is expected to cost, of which `tokens` are sent, until its outcome is recorded.

        Waits until it fits in with those under way.
        """

    def release(self, held: Any) -> None:
        """Let go of it: the step has no outcome."""

    def replied(self, held: Any, tokens: int, tool_calls: int) -> None:
        """What the step has cost is known, before it is recorded."""

    def leave(self, session: str) -> None:
        """The session is over, whatever it still holds."""

    def begin_step(self, held: Any) -> Fault | None:
        """A session is about to ask a model: one more step; or why none may any more."""

    def spent_out(self) -> Fault | None:
        """Why no model may be asked any more, if so."""

    def warnings(self) -> Sequence[tuple[str, float, float]]:
        """Caps of which 80 % are spent, each told once: what, how much, of how much."""


class Ground(RunGround, Protocol):
    """What every session of a runtime stands on."""

    writer: JournalWriter
    environment: Environment
    epoch: int
    #: Where those wait who are about to bring about more work, while something else has to go first.
    door: Door
    #: Sees to it that what a model has said is recorded while it speaks.
    notes: Notes
    #: Where turns begin.
    beginning: Gate

    @property
    def spending(self) -> Spending:
        """What all sessions of the runtime have used together."""

    def allowed(self, budget: Budget) -> Budget:
        """What a session with this budget may spend here: without tool calls of the runtime's, none has some."""

    async def load(self, session: str) -> tuple[State, int]:
        """State and next event number of a session, from the journal; a new one if it is not there."""

    def ended(self, session: str) -> None:
        """The session is closed, and its actor about to end."""

    def recorded(self, record: codec.Record, seq: int) -> None:
        """A record has become durable; `seq` is where it stands in the journal."""

    def services(self, session: str) -> Offered:
        """What the tools of a session are given."""

    async def keep_output(self, session: str, path: str, text: str) -> str | None:
        """Store an output that was cut for the model; why not, in words for the model, if that did not work."""

    #: How many background runs hold a permit, in all sessions.
    permits: Permits

    def new_owner(self) -> Owner:
        """This process, as the owner of the runs that a session's actor starts from now on."""


class WorkHost(RunHost, Protocol):
    """What the work of a session needs of it."""

    outfit: Outfit
    #: Tools as the turn under way advertises them.
    specs: tuple[ToolSpec, ...]
    #: The turn that another process began; 0: none.
    taken_over: int
    audience: Audience

    @property
    def ground(self) -> Ground: ...
    @property
    def turn_outfit(self) -> Outfit:
        """What the turn under way was started with."""

    @property
    def owner(self) -> Owner: ...
    @property
    def is_watched(self) -> bool: ...
    async def hooks_begun(self) -> None:
        """Hooks that look on have begun with all that was recorded."""

    def redact_value(self, value: Json) -> Json: ...
    @property
    def notification_holds(self) -> Holds: ...
    def task_limits(self) -> TaskLimits: ...
    def notification_limits(self) -> NotificationLimits: ...
    def schedule_limits(self) -> ScheduleLimits: ...
    def tell(self, command: Command) -> None:
        """Something nice to have: dropped when the mailbox is full."""

    async def deliver(self, command: Command) -> None:
        """What the session has to hear, as soon as there is room."""

    async def relay(self, command: Command) -> Sequence[Started]:
        """The same, from a task that has nothing else to do: it may get the work that follows, which it must do or `spawn`."""

    async def relay_first(self, command: Command) -> Sequence[Started]:
        """The same for something that is due: others give way to it."""

    def spawn(self, started: Sequence[Started]) -> None:
        """Have this work done, each piece in a task of its own."""
