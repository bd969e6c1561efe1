"""A session's state, and how each event changes it.

The whole lifecycle is `TRANSITIONS`: which event takes which phase to which. What is not in the table cannot happen; `evolve` refuses it loudly, because a
state that took an illegal step is worth nothing. Deciding *which* events follow from a command is the business of `decisions`;
what the world still owes a state is in `outstanding`.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Literal, NoReturn, TypeAlias

import msgspec

from trouper._errors import InternalError
from trouper.core import compaction, notification, schedule, task
from trouper.core.calls import ASKING, ENDED, HELD, REQUESTED, RUNNING, Call, CallPhase, Preparation, answer
from trouper.core.events import (
    ApprovalGiven,
    ApprovalRequested,
    ArgumentsRepaired,
    BudgetWarned,
    CallEnded,
    CallHeld,
    CallStarted,
    CallWasLate,
    CompactionEnded,
    CompactionStarted,
    HistoryMasked,
    InputReceived,
    InputsTaken,
    LoopWarned,
    ModelFailed,
    ModelProgressed,
    ModelReplied,
    ModelRetried,
    OutputMismatched,
    RecoveryNoted,
    SessionClosed,
    SessionConfigured,
    SessionOpened,
    StepStarted,
    ToolsSettled,
    TurnEnded,
    TurnEvent,
    TurnStarted,
)
from trouper.core.growing import Growing
from trouper.core.history import History
from trouper.core.ids import CallId, NotificationId
from trouper.core.lifecycle import Table, move
from trouper.core.messages import NO_USAGE, Fault, Json, Message, Part, Text, Thinking, Usage
from trouper.core.notification import NotificationEvent, Notifications
from trouper.core.schedule import ScheduleEvent, Schedules
from trouper.core.settings import Budget, TurnOptions
from trouper.core.task_events import TaskEvent
from trouper.core.task_record import Tasks
from trouper.core.values import changed, frozen, replaced

#: What a warning is about, if it is the time of a turn; all the others are about a whole session or runtime.
WALL_TIME = "wall_s"


class Phase(Enum):
    # By identity: `Enum` would hash the name, in Python, on every look-up in the table.
    __hash__ = object.__hash__

    NEW = "new"
    IDLE = "idle"
    #: Within a turn, between two steps: only inside a decision, never while waiting.
    PREPARING = "preparing"
    THINKING = "thinking"
    ACTING = "acting"
    #: A turn waits for its context to be made smaller.
    COMPACTING = "compacting"
    #: The same without a turn, because a user asked for it.
    TIDYING = "tidying"
    CLOSED = "closed"


#: By their names alone, as those of a call.
NEW, IDLE, PREPARING, THINKING, ACTING, COMPACTING, TIDYING, CLOSED = Phase

_ANY = (IDLE, PREPARING, THINKING, ACTING, COMPACTING, TIDYING)
_IN_TURN = (PREPARING, THINKING, ACTING, COMPACTING)


def _stay(*phases: Phase) -> dict[Phase, Phase]:
    return {phase: phase for phase in phases}


_MOVES: Mapping[type, Mapping[Phase, Phase]] = {
    SessionOpened: {NEW: IDLE},
    SessionConfigured: _stay(*_ANY),
    InputReceived: _stay(*_ANY),
    TurnStarted: {IDLE: PREPARING},
    InputsTaken: _stay(PREPARING),
    BudgetWarned: _stay(*_IN_TURN),
    HistoryMasked: _stay(PREPARING, IDLE),
    CompactionStarted: {PREPARING: COMPACTING, IDLE: TIDYING},
    CompactionEnded: {COMPACTING: PREPARING, TIDYING: IDLE},
    StepStarted: {PREPARING: THINKING},
    ModelRetried: _stay(THINKING),
    ModelProgressed: _stay(THINKING),
    ModelReplied: {THINKING: PREPARING},
    ModelFailed: {THINKING: PREPARING},
    ArgumentsRepaired: _stay(PREPARING),
    ApprovalRequested: {PREPARING: ACTING, ACTING: ACTING},
    ApprovalGiven: _stay(ACTING),
    CallHeld: {PREPARING: ACTING, ACTING: ACTING},
    CallStarted: {PREPARING: ACTING, ACTING: ACTING},
    CallEnded: {PREPARING: ACTING, ACTING: ACTING},
    CallWasLate: _stay(*_ANY),
    ToolsSettled: {ACTING: PREPARING},
    LoopWarned: _stay(PREPARING),
    OutputMismatched: _stay(PREPARING),
    TurnEnded: dict.fromkeys(_IN_TURN, IDLE),
    RecoveryNoted: _stay(*_ANY),
    SessionClosed: dict.fromkeys((IDLE,), CLOSED),
}

#: The lifecycle of a session, whole. What is not listed cannot happen.
TRANSITIONS: Table[Phase] = {
    (before, event): after for event, moves in _MOVES.items() for before, after in moves.items()
}


@frozen(frequent=True)
class Input:
    """A user's message that no turn has taken in yet."""

    message: Message


@frozen(frequent=True)
class Spent:
    """What a session has used so far, all turns together (L24, L25)."""

    usage: Usage = NO_USAGE
    #: The part of `usage` that went into summaries.
    compaction: Usage = NO_USAGE
    steps: int = 0
    tool_calls: int = 0


@frozen(frequent=True)
class Turn:
    """The turn that runs."""

    number: int
    started_at: float
    options: TurnOptions
    deadline_at: float | None = None
    #: The system prompt that the session had when it began: what a provider has cached begins with it.
    system: str | None = None
    step: int = 0
    #: How often a model was asked in this turn: a step that is tried again after a compaction asks twice.
    asks: int = 0
    calls: tuple[Call, ...] = ()
    usage: Usage = NO_USAGE
    compaction: Usage = NO_USAGE
    #: The last reply's visible text.
    text: str = ""
    #: Seen of the reply that is under way, as far as the journal knows.
    draft_text: str = ""
    draft_thinking: str = ""
    #: Something of it was seen, by whoever watched.
    progressed: bool = False
    #: How often a process has ended during this step.
    restarts: int = 0
    #: The last step's calls and results, and how often they came in a row (L23).
    fingerprint: tuple[tuple[str, Json, Json], ...] = ()
    repeats: int = 0
    #: The context was compacted because the provider refused it; a second refusal is final (L32).
    forced: bool = False
    #: The model was told that its output does not follow the schema; a second miss is final.
    corrected: bool = False
    #: The user was told that 80 % of its time are over (L25).
    time_warned: bool = False
    #: Where in the history it begins: with the words that it is about.
    since: int | None = None


@frozen(frequent=True)
class EndedTurn:
    """What became of the last turn."""

    number: int
    stop_reason: str
    text: str
    usage: Usage
    steps: int
    fault: Fault | None = None
    detail: str | None = None
    compaction: Usage = NO_USAGE


@frozen(frequent=True)
class State:
    session: str = ""
    phase: Phase = NEW
    system: str | None = None
    history: History = msgspec.field(default_factory=History)
    queue: tuple[Input, ...] = ()
    #: An interrupt or the end of the process came between: what is queued waits for the user's next word.
    held: bool = False
    #: How many turns were started.
    turns: int = 0
    turn: Turn | None = None
    last: EndedTurn | None = None
    spent: Spent = Spent()
    #: Caps of which 80 % are spent, and the user was told: see `cap_told`.
    warned: tuple[str, ...] = ()
    #: Tools that a user has approved once and for all (T4).
    always: tuple[str, ...] = ()
    #: Input tokens that the provider last reported, and our own estimate of the same history (L26).
    reported: int | None = None
    estimated_then: int = 0
    #: The compaction under way.
    compacting: CompactionStarted | None = None
    #: When each approval that is asked for lapses.
    approvals: tuple[tuple[CallId, float], ...] = ()
    tasks: Tasks = Tasks()
    notifications: Notifications = Notifications()
    schedules: Schedules = Schedules()
    #: The notifications that the running turn carries: settled when it ends (B15).
    carrying: tuple[NotificationId, ...] = ()
    #: What it was given of its own, and another process does not have: "model", "tools".
    own: tuple[str, ...] = ()
    #: Its own; `None`: that of the runtime.
    budget: Budget | None = None

    @property
    def in_turn(self) -> Turn:
        return self.turn or _no_turn(self)

    @property
    def tokens(self) -> int:
        """The best guess at what the history costs to send."""
        return compaction.anchored(self.history, self.reported, self.estimated_then)


def _no_turn(state: State) -> NoReturn:
    raise InternalError(f"session {state.session!r} has no turn in phase {state.phase.value!r}; please report this")


Event: TypeAlias = TurnEvent | TaskEvent | NotificationEvent | ScheduleEvent


def evolve(state: State, event: Event) -> State:
    """The state after one event. Total over the tables; raises `InternalError` for a move that they do not have."""
    kind = type(event)
    evolver = _EVOLVERS.get(kind)
    if evolver is not None:
        after = _MOVES[kind].get(state.phase)
        return evolver(state, event, move(TRANSITIONS, state.phase, event) if after is None else after)
    if state.phase is NEW or state.phase is CLOSED:
        raise InternalError(f"{kind.__name__} in a session that is {state.phase.value!r}; please report this journal")
    name, evolve_part = _PARTS[kind]
    return replaced(state, **{name: evolve_part(getattr(state, name), event)})


def _opened(state: State, event: SessionOpened, phase: Phase) -> State:
    return replaced(state, session=event.session, phase=phase, system=event.system, own=event.own, budget=event.budget)


def _configured(state: State, event: SessionConfigured, phase: Phase) -> State:
    return replaced(state, phase=phase, system=event.system, own=event.own, budget=event.budget)


def _received(state: State, event: InputReceived, phase: Phase) -> State:
    parts: tuple[Part, ...] = event.attachments
    if event.text or not parts:
        parts = (Text(event.text), *parts)
    return replaced(state, phase=phase, queue=(*state.queue, Input(Message("user", parts, event.kind))), held=False)


def _turn_started(state: State, event: TurnStarted, phase: Phase) -> State:
    turn = Turn(event.turn, event.at, event.options, event.deadline_at, state.system, since=len(state.history.messages))
    return replaced(
        state,
        phase=phase,
        history=_with_queue(state),
        queue=(),
        turns=event.turn,
        turn=turn,
        carrying=event.carrying,
    )


def _inputs_taken(state: State, event: InputsTaken, phase: Phase) -> State:
    # New words from the user are progress: whatever repeated before starts anew.
    turn = replaced(state.in_turn, repeats=0)
    return replaced(state, phase=phase, turn=turn, history=_with_queue(state), queue=())


def _with_queue(state: State) -> History:
    """The history, and what waits to enter it."""
    history = state.history
    for waiting in state.queue:
        history = history.append(waiting.message)
    return history


def _step_started(state: State, event: StepStarted, phase: Phase) -> State:
    turn = state.turn or _no_turn(state)
    spent, restarts = state.spent, turn.restarts
    if event.step != turn.step:
        spent = Spent(spent.usage, spent.compaction, spent.steps + 1, spent.tool_calls)
        restarts = 0
    turn = replaced(
        turn,
        step=event.step,
        asks=turn.asks + 1,
        calls=(),
        draft_text="",
        draft_thinking="",
        progressed=False,
        restarts=restarts,
    )
    return replaced(state, phase=phase, turn=turn, spent=spent)


def _progressed(state: State, event: ModelProgressed, phase: Phase) -> State:
    turn = state.in_turn
    turn = replaced(
        turn,
        draft_text=turn.draft_text + event.text,
        draft_thinking=turn.draft_thinking + event.thinking,
        progressed=True,
    )
    return replaced(state, phase=phase, turn=turn)


def _replied(state: State, event: ModelReplied, phase: Phase) -> State:
    turn, history, spent, usage = state.turn or _no_turn(state), state.history, state.spent, event.usage
    message = event.message
    calls = message.calls
    if len(calls) != len(event.preparations):
        raise InternalError(
            f"a reply of turn {turn.number} has {len(calls)} calls, of which {len(event.preparations)} were prepared; "
            "please report this journal"
        )
    reported, then = state.reported, state.estimated_then
    if usage.input is not None:
        # What was sent is the history before this reply.
        reported, then = usage.input, history.tokens
    usage = usage + event.retried
    if calls or _worth_keeping(message):
        history = history.append(message)
    turn = replaced(
        turn,
        usage=turn.usage + usage,
        text=message.text,
        calls=tuple(map(Call, calls, event.preparations)),
        draft_text="",
        draft_thinking="",
    )
    spent = Spent(spent.usage + usage, spent.compaction, spent.steps, spent.tool_calls + len(calls))
    return replaced(state, phase=phase, turn=turn, history=history, spent=spent, reported=reported, estimated_then=then)


def _failed(state: State, event: ModelFailed, phase: Phase) -> State:
    turn = state.in_turn
    text = event.partial.text if event.partial is not None else ""
    turn = replaced(turn, usage=turn.usage + event.usage, text=text or turn.text, draft_text="", draft_thinking="")
    spent = changed(state.spent, usage=state.spent.usage + event.usage)
    return replaced(state, phase=phase, turn=turn, spent=spent, history=_with_partial(state.history, event.partial))


def _approval_requested(state: State, event: ApprovalRequested, phase: Phase) -> State:
    state = _with_call(state, event.call, phase, ASKING)
    return replaced(state, approvals=(*state.approvals, (event.call, event.expires_at)))


def _approval_given(state: State, event: ApprovalGiven, phase: Phase) -> State:
    turn = state.in_turn
    calls = tuple(
        changed(call, phase=REQUESTED, preparation=changed(call.preparation, verdict=_approved(call.preparation)))
        if call.id == event.call
        else call
        for call in turn.calls
    )
    always = state.always
    if event.always:
        name = next(call.request.name for call in turn.calls if call.id == event.call)
        always = tuple(sorted({*always, name}))
    return replaced(
        state,
        phase=phase,
        turn=replaced(turn, calls=calls),
        always=always,
        approvals=tuple(pair for pair in state.approvals if pair[0] != event.call),
    )


def _approved(preparation: Preparation) -> Literal["run", "hold"]:
    return "hold" if preparation.client_side else "run"


def _held(state: State, event: CallHeld, phase: Phase) -> State:
    return _with_call(state, event.call, phase, HELD, event.expires_at)


def _call_started(state: State, event: CallStarted, phase: Phase) -> State:
    turn = state.turn or _no_turn(state)
    # No comprehension, here and wherever a step comes by: Python 3.11 makes a function of each one, every time.
    calls = list(turn.calls)
    for position, call in enumerate(turn.calls):
        if call.request.id == event.call:
            calls[position] = Call(call.request, call.preparation, RUNNING, event.attempt)
    return replaced(state, phase=phase, turn=replaced(turn, calls=tuple(calls)))


def _call_ended(state: State, event: CallEnded, phase: Phase) -> State:
    turn = state.turn or _no_turn(state)
    calls = list(turn.calls)
    for position, call in enumerate(turn.calls):
        if call.request.id == event.call:
            given = answer(call.request, event.outcome, event.content, event.images)
            calls[position] = Call(call.request, call.preparation, ENDED, call.attempt, given)
    approvals = state.approvals
    if approvals:
        approvals = tuple(pair for pair in approvals if pair[0] != event.call)
    return replaced(state, phase=phase, turn=replaced(turn, calls=tuple(calls)), approvals=approvals)


def _with_call(
    state: State, call_id: CallId, phase: Phase, call_phase: CallPhase, answer_by: float | None = None
) -> State:
    turn = state.in_turn
    calls = tuple(
        changed(call, phase=call_phase, answer_by=answer_by) if call.id == call_id else call for call in turn.calls
    )
    return replaced(state, phase=phase, turn=replaced(turn, calls=calls))


def _settled(state: State, event: ToolsSettled, phase: Phase) -> State:
    turn = state.turn or _no_turn(state)
    answers: list[Part] = []
    seen: list[tuple[str, Json, Json]] = []
    for call in turn.calls:
        if call.answer is None:
            raise InternalError(
                f"tools of turn {turn.number} settled with calls still open; please report this journal"
            )
        answers.append(call.answer)
        seen.append((call.request.name, call.request.arguments, call.answer.content))
    fingerprint = tuple(seen)
    repeats = turn.repeats + 1 if fingerprint == turn.fingerprint else 1
    # What comes next, be it a compaction, is not what the processes died of that ended while the calls ran or waited.
    turn = replaced(turn, calls=(), fingerprint=fingerprint, repeats=repeats, restarts=0)
    return replaced(state, phase=phase, turn=turn, history=state.history.append(Message("tool", tuple(answers))))


def _loop_warned(state: State, event: LoopWarned, phase: Phase) -> State:
    text = (
        f"(Note: the same tool call has now given the same result {event.repeats} times in a row. Repeating it will not help: "
        "use what you have, try something else, or tell the user what is in the way.)"
    )
    return replaced(state, phase=phase, history=state.history.append(Message("user", (Text(text),), "note")))


def _mismatched(state: State, event: OutputMismatched, phase: Phase) -> State:
    text = (
        f"(Your reply does not follow the required JSON Schema: {event.problem}\n"
        "Reply again with nothing but JSON that follows it.)"
    )
    return replaced(
        state,
        phase=phase,
        history=state.history.append(Message("user", (Text(text),), "note")),
        turn=replaced(state.in_turn, corrected=True),
    )


def _budget_warned(state: State, event: BudgetWarned, phase: Phase) -> State:
    if event.what == WALL_TIME:
        return replaced(state, phase=phase, turn=replaced(state.in_turn, time_warned=True))
    others = tuple(told for told in state.warned if not told.startswith(f"{event.what}="))
    return replaced(state, phase=phase, warned=(*others, cap_told(event.what, event.cap)))


def budgeted(spent: Spent, tokens: int | None, steps: int | None, calls: int | None) -> list[tuple[str, int, int]]:
    """What a session's budget caps: what, how much is used, and of how much."""
    caps = (
        ("tokens", spent.usage.total or 0, tokens),
        ("steps", spent.steps, steps),
        # None at all: then none is made that could be counted, and text is free.
        ("tool_calls", spent.tool_calls, calls or None),
    )
    return [(what, used, cap) for what, used, cap in caps if cap is not None]


def is_spent(what: str, used: int, cap: int) -> Fault:
    return Fault("budget", f"the session's budget of {cap} {what} is spent ({used} used); raise it to go on")


def cap_told(what: str, cap: float) -> str:
    """A cap as `State.warned` has it: with its amount, for one that was raised is warned of anew."""
    return f"{what}={float(cap)}"


def _masked(state: State, event: HistoryMasked, phase: Phase) -> State:
    messages, saved = compaction.mask(state.history.messages, event.before)
    history = changed(state.history, messages=Growing(messages), tokens=state.history.tokens - saved)
    return replaced(state, phase=phase, history=history)


def _compaction_started(state: State, event: CompactionStarted, phase: Phase) -> State:
    turn = state.turn
    if turn is not None and event.forced:
        turn = replaced(turn, forced=True)
    return replaced(state, phase=phase, compacting=event, turn=turn)


def _compaction_ended(state: State, event: CompactionEnded, phase: Phase) -> State:
    turn = state.turn
    if turn is not None:
        turn = replaced(turn, usage=turn.usage + event.usage, compaction=turn.compaction + event.usage)
    spent = changed(state.spent, usage=state.spent.usage + event.usage, compaction=state.spent.compaction + event.usage)
    state = replaced(state, phase=phase, compacting=None, turn=turn, spent=spent)
    if event.summary is None:
        return state
    history = compaction.installed(state.history, event.split, event.summary, event.kept)
    if turn is not None and turn.since is not None:
        # Behind the summary comes what is left of it, if not something from before it.
        turn = replaced(turn, since=max(1, turn.since - event.split + 1))
    return replaced(state, history=history, turn=turn, reported=None, estimated_then=0)


def _turn_ended(state: State, event: TurnEnded, phase: Phase) -> State:
    turn = state.in_turn
    text = event.partial.text if event.partial is not None else ""
    spent = _with_usage(state.spent, event.usage)
    last = EndedTurn(
        number=turn.number,
        stop_reason=event.stop_reason,
        text=text or turn.text,
        usage=turn.usage + event.usage,
        steps=turn.step - event.unasked,
        fault=event.fault,
        detail=event.detail,
        compaction=turn.compaction,
    )
    return replaced(
        state,
        phase=phase,
        turn=None,
        compacting=None,
        last=last,
        spent=changed(spent, steps=spent.steps - 1) if event.unasked else spent,
        approvals=(),
        carrying=(),
        held=bool(state.queue)
        and (event.stop_reason == "interrupt" or (event.fault is not None and event.fault.kind == "process_ended")),
        history=_with_partial(state.history, event.partial),
    )


def _with_usage(spent: Spent, usage: Usage) -> Spent:
    return spent if usage is NO_USAGE else changed(spent, usage=spent.usage + usage)


def _recovered(state: State, event: RecoveryNoted, phase: Phase) -> State:
    turn = state.turn
    return state if turn is None else replaced(state, phase=phase, turn=replaced(turn, restarts=turn.restarts + 1))


def _closed(state: State, event: SessionClosed, phase: Phase) -> State:
    return replaced(state, phase=phase, queue=())


def _unchanged(state: State, event: TurnEvent, phase: Phase) -> State:
    return state


#: Events of the parts of a session that have a lifecycle of their own.
_PARTS: Mapping[type, tuple[str, Callable[[Any, Any], Any]]] = {
    **dict.fromkeys(typing.get_args(TaskEvent), ("tasks", task.evolve)),
    **dict.fromkeys(typing.get_args(NotificationEvent), ("notifications", notification.evolve)),
    **dict.fromkeys(typing.get_args(ScheduleEvent), ("schedules", schedule.evolve)),
}
_EVOLVERS: Mapping[type, Callable[[State, Any, Phase], State]] = {
    SessionOpened: _opened,
    SessionConfigured: _configured,
    InputReceived: _received,
    TurnStarted: _turn_started,
    InputsTaken: _inputs_taken,
    StepStarted: _step_started,
    ModelRetried: _unchanged,
    ModelProgressed: _progressed,
    ModelReplied: _replied,
    ModelFailed: _failed,
    ArgumentsRepaired: _unchanged,
    ApprovalRequested: _approval_requested,
    ApprovalGiven: _approval_given,
    CallHeld: _held,
    CallStarted: _call_started,
    CallEnded: _call_ended,
    CallWasLate: _unchanged,
    ToolsSettled: _settled,
    LoopWarned: _loop_warned,
    OutputMismatched: _mismatched,
    BudgetWarned: _budget_warned,
    HistoryMasked: _masked,
    CompactionStarted: _compaction_started,
    CompactionEnded: _compaction_ended,
    TurnEnded: _turn_ended,
    RecoveryNoted: _recovered,
    SessionClosed: _closed,
}


def _worth_keeping(message: Message) -> bool:
    """Providers refuse a reply that holds nothing, or nothing but thinking; the journal has it all the same."""
    for part in message.parts:
        if not isinstance(part, Thinking) and not (isinstance(part, Text) and not part.text):
            return True
    return False


def _with_partial(history: History, partial: Message | None) -> History:
    if partial is None or history.open_calls or not _worth_keeping(partial):
        return history
    return history.append(partial)
