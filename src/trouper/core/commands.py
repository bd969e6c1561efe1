"""What a session can be asked to do, and what its children bring back. Time and ids come along; the core reaches for neither."""

from __future__ import annotations

from typing import TypeAlias

from trouper.core.calls import Preparation
from trouper.core.ids import CallId, ScheduleId, TaskId
from trouper.core.messages import NO_USAGE, Fault, Json, Kind, Media, Message, Outcome, Usage
from trouper.core.notification import DEFAULT_LIMITS as NOTIFICATION_LIMITS
from trouper.core.notification import NotificationCommand, NotificationLimits
from trouper.core.schedule import ScheduleCommand
from trouper.core.settings import Budget, Compaction, TurnOptions
from trouper.core.task_events import TaskCommand
from trouper.core.task_record import DEFAULT_LIMITS as TASK_LIMITS
from trouper.core.task_record import NewTask, Owner, TaskLimits
from trouper.core.values import frozen


@frozen
class OpenSession:
    session: str
    at: float
    system: str | None = None
    parent: str | None = None
    own: tuple[str, ...] = ()
    budget: Budget | None = None


@frozen
class Configure:
    system: str | None
    own: tuple[str, ...] = ()
    budget: Budget | None = None


@frozen(frequent=True)
class Submit:
    """Input from a user. While a turn runs it steers (L10) if `steer`, and is refused if not."""

    text: str
    at: float
    options: TurnOptions
    attachments: tuple[Media, ...] = ()
    kind: Kind = "normal"
    steer: bool = False
    queue_max: int = 64


@frozen
class NoteRetry:
    turn: int
    step: int
    attempt: int
    fault: Fault
    delay_s: float


@frozen
class NoteProgress:
    turn: int
    step: int
    text: str = ""
    thinking: str = ""


@frozen
class NoteBudget:
    """80 % of a cap are spent that the core cannot see: the whole runtime's, or a turn's time."""

    what: str
    spent: float
    cap: float
    #: Only if this turn is still the one that runs.
    turn: int | None = None


@frozen(frequent=True)
class DeliverReply:
    turn: int
    step: int
    message: Message
    stop_reason: str
    at: float
    usage: Usage = NO_USAGE
    detail: str | None = None
    preparations: tuple[Preparation, ...] = ()
    cuts: tuple[int, ...] = ()
    mismatch: str | None = None
    #: When an approval that is asked for now lapses.
    approval_s: float = 3_600.0
    #: What the attempts before this reply have cost.
    retried: Usage = NO_USAGE


@frozen
class DeliverFault:
    turn: int
    step: int
    fault: Fault
    at: float
    partial: Message | None = None
    usage: Usage = NO_USAGE
    #: Something of the reply was seen, be it thinking or a call that began: the step is not asked again (L13).
    progressed: bool = False


@frozen
class DeliverSummary:
    """What became of a compaction's model call: a summary, or why there is none."""

    split: int
    at: float
    text: str | None = None
    usage: Usage = NO_USAGE
    fault: Fault | None = None


@frozen(frequent=True)
class DeliverResult:
    call: CallId
    outcome: Outcome
    at: float
    content: Json = None
    images: tuple[Media, ...] = ()
    latency_ms: float | None = None
    full_output: str | None = None
    internal: str | None = None
    #: A client's word on a call that waits for one; else the result of a tool that has run.
    is_answer: bool = False


@frozen
class DeliverResults:
    """Several calls of a step have ended at one moment: one record, and one sync, for all of them."""

    results: tuple[DeliverResult, ...]


@frozen
class Approve:
    call: CallId
    at: float
    by: str = ""
    always: bool = False


@frozen
class Deny:
    call: CallId
    at: float
    reason: str = ""


@frozen
class LapseCall:
    """The host has not answered a client-side call in time."""

    call: CallId
    at: float


@frozen
class CancelCall:
    call: CallId
    at: float
    reason: str = ""


@frozen
class Interrupt:
    at: float
    reason: str = ""
    #: Only if this turn is still the one that runs; 0: no turn, but a compaction on demand.
    turn: int | None = None
    #: What the model had said of an unfinished reply.
    partial: Message | None = None
    #: What it had cost until then, as far as the provider has said.
    usage: Usage = NO_USAGE


@frozen
class EndTurn:
    """The world ends a turn for a reason that the core cannot see: its time is up, or the runtime's budget is spent."""

    turn: int
    stop_reason: str
    at: float
    fault: Fault | None = None
    partial: Message | None = None
    #: What it had cost until then, as far as the provider has said.
    usage: Usage = NO_USAGE
    #: The step that was about to begin never came to ask the model.
    unasked: bool = False


@frozen
class Compact:
    at: float
    compaction: Compaction
    window: int | None = None
    #: What the whole session may spend: where that is used up, no model is asked.
    token_cap: int | None = None
    step_cap: int | None = None
    call_cap: int | None = None


@frozen
class Recover:
    """First command after a restart: close what the dead process left open (J12)."""

    at: float
    resume: bool = False
    #: The process that takes over, and which of the live tasks it can safely run again (B10).
    owner: Owner | None = None
    reattachable: tuple[TaskId, ...] = ()
    active_in_runtime: int = 1
    task_limits: TaskLimits = TASK_LIMITS
    notification_attempts: int = 16
    #: Tasks that this ends, and whose files were written for that (B9).
    saved: tuple[TaskId, ...] = ()


@frozen
class Close:
    at: float
    reason: str = ""
    partial: Message | None = None
    #: What it had cost until then, as far as the provider has said.
    usage: Usage = NO_USAGE
    #: Tasks that this ends, and whose files were written for that (B9).
    saved: tuple[TaskId, ...] = ()


@frozen
class Spill:
    """A call, and the task that it is to go on as."""

    call: CallId
    task_id: TaskId


@frozen
class SpillCalls:
    """The inline budget of these calls, which began together, is over: let the turn go on, and their executions with it, as tasks (B2)."""

    calls: tuple[Spill, ...]
    owner: Owner
    at: float
    budget_ms: int
    active_in_runtime: int = 0
    limits: TaskLimits = TASK_LIMITS


@frozen
class DeliverDue:
    """The session is idle: start a turn with what is queued for it, notifications (B15) or input that came too late for its turn (I26)."""

    at: float
    options: TurnOptions
    limits: NotificationLimits = NOTIFICATION_LIMITS


@frozen
class ActFire:
    """Act on a claimed fire: start the run, or queue the message; recorded together with the fire's completion (B18, B19)."""

    schedule_id: ScheduleId
    fire: int
    at: float
    #: For a scheduled run: its record. `None` with a `refusal`: there can be none.
    task: NewTask | None = None
    owner: Owner | None = None
    refusal: str = ""
    active_in_runtime: int = 0
    limits: TaskLimits = TASK_LIMITS


TurnCommand: TypeAlias = (
    OpenSession
    | Configure
    | Submit
    | NoteRetry
    | NoteProgress
    | NoteBudget
    | DeliverReply
    | DeliverFault
    | DeliverSummary
    | DeliverResult
    | DeliverResults
    | Approve
    | Deny
    | LapseCall
    | CancelCall
    | Interrupt
    | EndTurn
    | Compact
    | Recover
    | Close
    | SpillCalls
    | DeliverDue
    | ActFire
)
#: Everything that a session can be told.
Command: TypeAlias = TurnCommand | TaskCommand | NotificationCommand | ScheduleCommand
