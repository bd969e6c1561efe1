"""What has happened in a session, in the past tense. A session's state is the fold of these, in order.

An event says everything that `evolve` needs; nothing is looked up elsewhere. Class names are the tags in the journal: renaming one is a change
of format and needs an upcaster (see `trouper.codec`). Tasks, notifications and schedules have their events in modules of their own.
"""

from __future__ import annotations

from typing import TypeAlias

from trouper.core.calls import Preparation
from trouper.core.ids import CallId, NotificationId, TaskId
from trouper.core.messages import NO_USAGE, Fault, Json, Kind, Media, Message, Outcome, Usage
from trouper.core.settings import DEFAULT_OPTIONS, Budget, TurnOptions
from trouper.core.values import frozen


@frozen
class SessionOpened:
    """A session came into being."""

    session: str
    at: float
    system: str | None = None
    #: The session that this one was forked from, or is a child of.
    parent: str | None = None
    #: What it was given of its own and no journal can hold: "model", "tools".
    own: tuple[str, ...] = ()
    #: Its own; `None`: that of the runtime.
    budget: Budget | None = None


@frozen
class SessionConfigured:
    """A setting of the session changed. A turn that runs keeps what it began with."""

    system: str | None
    own: tuple[str, ...] = ()
    budget: Budget | None = None


@frozen(frequent=True)
class InputReceived:
    """A user's message was accepted: from here on it cannot be lost."""

    text: str
    at: float
    attachments: tuple[Media, ...] = ()
    kind: Kind = "normal"


@frozen(frequent=True)
class TurnStarted:
    """All queued input enters the history, and the first step is prepared."""

    turn: int
    at: float
    options: TurnOptions = DEFAULT_OPTIONS
    #: When the turn ends as `budget` at the latest.
    deadline_at: float | None = None
    #: The notifications that it brings to the model.
    carrying: tuple[NotificationId, ...] = ()


@frozen
class InputsTaken:
    """Queued input steered the running turn: it entered the history before the next model call (L10)."""

    turn: int


@frozen(frequent=True)
class StepStarted:
    """The model is asked: one request and what follows from its reply."""

    turn: int
    step: int
    at: float


@frozen
class ModelRetried:
    """A model call failed before any progress and is tried again."""

    turn: int
    step: int
    attempt: int
    fault: Fault
    delay_s: float


@frozen
class ModelProgressed:
    """Text seen so far, so that a crash keeps it (buffered; never carries state that anything depends on)."""

    turn: int
    step: int
    text: str = ""
    thinking: str = ""


@frozen(frequent=True)
class ModelReplied:
    """A whole reply. Its calls are part of the history from here on."""

    turn: int
    step: int
    message: Message
    stop_reason: str
    usage: Usage = NO_USAGE
    detail: str | None = None
    #: One for each call of the message, in its order.
    preparations: tuple[Preparation, ...] = ()
    #: Lengths of the deltas as they came, text and thinking in order of arrival: with the message, the exact stream (M5).
    cuts: tuple[int, ...] = ()
    #: Why the text does not follow the turn's schema, if it has one and it does not.
    mismatch: str | None = None
    #: What the attempts before this reply have cost. Not part of `usage`, which says how much the history is (L26).
    retried: Usage = NO_USAGE


@frozen
class ModelFailed:
    """The step's model call failed for good. What had been said by then stays, marked as cut short (L13)."""

    turn: int
    step: int
    fault: Fault
    partial: Message | None = None
    usage: Usage = NO_USAGE


@frozen
class ArgumentsRepaired:
    """What the model wrote as arguments did not fit as it stood; the notes say what was changed."""

    call: CallId
    notes: tuple[str, ...]


@frozen
class ApprovalRequested:
    """A call waits for somebody's word; without one it is denied at `expires_at` (T4)."""

    call: CallId
    expires_at: float


@frozen
class ApprovalGiven:
    """Somebody allowed a call."""

    call: CallId
    by: str = ""
    #: From now on every call of this tool in this session.
    always: bool = False


@frozen
class CallHeld:
    """A client-side call: the host answers it; without an answer it ends as a time-out at `expires_at`, if that is set."""

    call: CallId
    expires_at: float | None = None


@frozen(frequent=True)
class CallStarted:
    """The intent: durable before the tool runs (I2)."""

    call: CallId
    at: float
    attempt: int = 1


@frozen(frequent=True)
class CallEnded:
    """The one outcome of a call (I1), as the model is told it."""

    call: CallId
    outcome: Outcome
    content: Json = None
    images: tuple[Media, ...] = ()
    latency_ms: float | None = None
    #: The execution goes on in the background as this task (B2).
    task: TaskId | None = None
    #: Path of the full output in the session's files, where it was cut (T9).
    full_output: str | None = None
    #: What went wrong inside, for the journal and the log; never shown to the model (L20).
    internal: str | None = None


@frozen
class CallWasLate:
    """A result came after its call had ended: recorded, and of no effect (I9)."""

    call: CallId
    outcome: Outcome


@frozen(frequent=True)
class ToolsSettled:
    """Every call of the step has its outcome: the answers enter the history, in declared order (L7)."""

    turn: int
    step: int


@frozen
class LoopWarned:
    """The same call gave the same result again and again; the model is told (L23)."""

    turn: int
    repeats: int


@frozen
class OutputMismatched:
    """The final text does not follow the schema; the model is asked once more."""

    turn: int
    problem: str


@frozen
class BudgetWarned:
    """80 % of a cap are spent; said once each (L25)."""

    #: tokens, steps or tool_calls, of the session or of the "runtime"; or wall_s, of the turn.
    what: str
    spent: float
    cap: float


@frozen
class HistoryMasked:
    """Old tool results were replaced by a note; no model was needed (L27)."""

    #: Messages before this position were masked.
    before: int
    tokens_before: int
    tokens_after: int


@frozen
class CompactionStarted:
    """Old messages are about to be summarised by a model (L28)."""

    #: Messages before this position are to be summarised.
    split: int
    tokens_before: int
    forced: bool = False


@frozen
class CompactionEnded:
    """`summary` takes the place of the messages before `split`; without one, nothing changed."""

    split: int
    tokens_before: int
    tokens_after: int
    messages_before: int
    messages_after: int
    #: summary, dropped (the oldest turns, with a note) or unchanged.
    how: str
    summary: Message | None = None
    usage: Usage = NO_USAGE
    fault: Fault | None = None
    #: Messages before `split` that stay all the same, behind the summary: the question of the turn that runs.
    kept: tuple[int, ...] = ()


@frozen(frequent=True)
class TurnEnded:
    """The one end of a turn (L1)."""

    turn: int
    stop_reason: str
    at: float
    fault: Fault | None = None
    #: What the model had said of an unfinished reply.
    partial: Message | None = None
    detail: str | None = None
    #: What the unfinished reply had cost, as far as the provider has said (L24).
    usage: Usage = NO_USAGE
    #: The last step was given up before the model was asked, and does not count as one (L2).
    unasked: bool = False


@frozen
class RecoveryNoted:
    """The process that ran this session died; this is what the next one found and did (J12)."""

    at: float
    open_turn: int | None
    open_calls: tuple[CallId, ...] = ()


@frozen
class SessionClosed:
    """The session is over for good."""

    reason: str
    at: float


TurnEvent: TypeAlias = (
    SessionOpened
    | SessionConfigured
    | InputReceived
    | TurnStarted
    | InputsTaken
    | StepStarted
    | ModelRetried
    | ModelProgressed
    | ModelReplied
    | ModelFailed
    | ArgumentsRepaired
    | ApprovalRequested
    | ApprovalGiven
    | CallHeld
    | CallStarted
    | CallEnded
    | CallWasLate
    | ToolsSettled
    | LoopWarned
    | OutputMismatched
    | BudgetWarned
    | HistoryMasked
    | CompactionStarted
    | CompactionEnded
    | TurnEnded
    | RecoveryNoted
    | SessionClosed
)
