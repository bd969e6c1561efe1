"""What follows from a command: the events, or a refusal.

`decide` raises `CommandRejected` for misuse (a turn while one runs) and returns nothing for an answer that nobody waits for any more (a reply
of a discarded step). A decision often needs the state after its own first events (once the tools have settled, is there room for another step?),
so it is built up event by event, each folded in at once; `step` hands out both, so that an actor need not fold again.
"""

from __future__ import annotations

from typing import assert_never, get_args

from trouper._errors import CommandRejected
from trouper.core import background, compaction
from trouper.core.calls import Call, CallPhase, startable
from trouper.core.commands import (
    ActFire,
    Approve,
    CancelCall,
    Close,
    Command,
    Compact,
    Configure,
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
    Submit,
    TurnCommand,
)
from trouper.core.decision import Decision
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
    TurnStarted,
)
from trouper.core.ids import CallId, NotificationId
from trouper.core.messages import NO_USAGE, Fault, Media, Message, Outcome, Part, ProviderPart, Text, Thinking
from trouper.core.notification import (
    DeliverNotifications,
    ExpireNotifications,
    NotificationCommand,
    NotificationsDelivered,
    prompt_text,
)
from trouper.core.schedule import ScheduleCommand
from trouper.core.session import Event, Phase, State, Turn
from trouper.core.settings import TurnOptions
from trouper.core.task_events import TaskCommand

INTERRUPTED = (
    "The user interrupted this turn before the call had ended; it was cancelled and may have done part of its work."
)
CANCELLED = "This call was cancelled on request; it may have done part of its work."
TURN_ENDED = "The turn ended before the call had; it was cancelled and may have done part of its work."
UNKNOWN = "The process ended while this call ran: nobody knows whether it did its work. Check before you repeat it."
NEVER_STARTED = "The process ended before this call was started; it did nothing."
DENIED = "Permission was denied."
REATTACH_MAX = 3
WARN_SHARE = 0.8


_TASK_COMMANDS = get_args(TaskCommand)
_NOTIFICATION_COMMANDS = get_args(NotificationCommand)
_SCHEDULE_COMMANDS = get_args(ScheduleCommand)
_TURN_COMMANDS = frozenset(get_args(TurnCommand))


def decide(state: State, command: Command) -> tuple[Event, ...]:
    """The events that follow from `command`; none if it is stale."""
    return step(state, command)[0]


def step(state: State, command: Command) -> tuple[tuple[Event, ...], State]:
    """`decide`, with the state that its events lead to."""
    decision = Decision(state)
    if type(command) in _TURN_COMMANDS:
        _dispatch(decision, command)  # type: ignore[arg-type]
    else:
        _dispatch_part(decision, command)
    return tuple(decision.events), decision.state


def _dispatch_part(decision: Decision, command: Command) -> None:
    """A command to one part of the session: tasks, notifications or schedules."""
    state = decision.state
    if state.phase is Phase.NEW or state.phase is Phase.CLOSED:
        raise CommandRejected(
            f"session {state.session!r} is {state.phase.value}; open another one", session=state.session
        )
    if isinstance(command, _TASK_COMMANDS):
        background.decide_task(decision, command)
    elif isinstance(command, _NOTIFICATION_COMMANDS):
        background.decide_notification(decision, command)
    elif isinstance(command, _SCHEDULE_COMMANDS):
        background.decide_schedule(decision, command)
    else:
        raise AssertionError(f"{type(command).__name__} is no command")


def _dispatch(decision: Decision, command: TurnCommand) -> None:
    state = decision.state
    if state.phase is Phase.NEW and not isinstance(command, OpenSession):
        raise CommandRejected("this session was never opened; open it first", session=state.session)
    if state.phase is Phase.CLOSED:
        _after_close(decision, command)
        return
    match command:
        case DeliverReply():
            _reply(decision, command)
        case DeliverResult():
            _result(decision, command)
        case Submit():
            _submit(decision, command)
        case NoteRetry(turn, step_number, attempt, fault, delay_s):
            if _is_current(state, turn, step_number):
                decision.emit(ModelRetried(turn, step_number, attempt, fault, delay_s))
        case NoteProgress(turn, step_number, text, thinking):
            if _is_current(state, turn, step_number):
                decision.emit(ModelProgressed(turn, step_number, text, thinking))
        case NoteBudget(what, spent, cap):
            if state.phase is Phase.THINKING:
                decision.emit(BudgetWarned(what, spent, cap))
        case DeliverFault():
            _fault(decision, command)
        case DeliverSummary():
            _summary(decision, command)
        case Approve(call, at, by, always):
            _require_phase(state, call, CallPhase.ASKING, "is not waiting for an approval")
            decision.emit(ApprovalGiven(call, by, always))
            _go_on_with_calls(decision, at)
        case Deny(call, at, reason):
            if _find(state, call, CallPhase.ASKING) is not None:
                told = f"{DENIED} {reason}" if reason else DENIED
                decision.emit(CallEnded(call, Outcome.DENIED, told))
                _go_on_with_calls(decision, at)
        case CancelCall(call, at, reason):
            if _is_open(state, call):
                told = f"{CANCELLED} {reason}" if reason else CANCELLED
                decision.emit(CallEnded(call, Outcome.CANCELLED, told))
                _go_on_with_calls(decision, at)
            elif not background.cancel_by_id(decision, call, at, reason):
                raise CommandRejected(
                    f"session {state.session!r} has no open call or task {call!r}; list its tasks to see their ids",
                    id=call,
                )
        case SpillCall():
            running = _find(state, command.call, CallPhase.RUNNING)
            if running is not None and background.spill(decision, command, running):
                _go_on_with_calls(decision, command.at)
        case DeliverDue():
            _deliver_due(decision, command)
        case ActFire():
            background.act_on_fire(decision, command)
        case Interrupt():
            if state.turn is not None and command.turn in (None, state.turn.number):
                _end_turn(
                    decision, command.at, "interrupt", INTERRUPTED, partial=command.partial, detail=command.reason
                )
            elif state.phase is Phase.TIDYING and command.turn is None:
                _give_up_compaction(decision)
        case EndTurn():
            if state.turn is not None and state.turn.number == command.turn:
                _end_turn(
                    decision, command.at, command.stop_reason, TURN_ENDED, partial=command.partial, fault=command.fault
                )
        case Compact():
            _compact(decision, command)
        case Recover():
            _recover(decision, command)
        case Configure(system):
            if system != state.system:
                decision.emit(SessionConfigured(system))
        case OpenSession():
            if state.phase is not Phase.NEW:
                raise CommandRejected(f"session {state.session!r} is open already", session=state.session)
            decision.emit(SessionOpened(command.session, command.at, command.system, command.parent))
        case Close(at, reason, partial):
            if state.turn is not None:
                _end_turn(decision, at, "interrupt", TURN_ENDED, partial=partial, detail=reason)
            elif state.phase is Phase.TIDYING:
                _give_up_compaction(decision)
            background.close(decision, at, reason)
            decision.emit(SessionClosed(reason, at))
        case _:
            assert_never(command)


def _after_close(decision: Decision, command: TurnCommand) -> None:
    """Closed is final (I16): new work is refused, answers are stale, closing again changes nothing."""
    if isinstance(command, OpenSession | Submit | Compact | Configure | Approve):
        session = decision.state.session
        raise CommandRejected(f"session {session!r} is closed; open another one", session=session)


# --- input and turns ---


def _submit(decision: Decision, command: Submit) -> None:
    state = decision.state
    busy = state.phase is not Phase.IDLE
    if busy and not command.steer:
        raise CommandRejected(
            f"session {state.session!r} is mid-turn; wait for the turn, call interrupt(), or send() to steer it",
            session=state.session,
        )
    if len(state.queue) >= command.queue_max:
        raise CommandRejected(
            f"session {state.session!r} has {len(state.queue)} messages waiting; wait until the turn has taken them in",
            session=state.session,
        )
    decision.emit(InputReceived(command.text, command.at, command.attachments, command.kind))
    if not busy:
        _start_turn(decision, command.at, command.options)


def _start_turn(decision: Decision, at: float, options: TurnOptions, carrying: tuple[NotificationId, ...] = ()) -> None:
    decision.emit(
        TurnStarted(
            turn=decision.state.turns + 1,
            at=at,
            options=options,
            deadline_at=None if options.wall_s is None else at + options.wall_s,
            carrying=carrying,
        )
    )
    _next_step(decision, at)


def _deliver_due(decision: Decision, command: DeliverDue) -> None:
    """All that is queued goes to the model in one turn (I26, I31)."""
    if decision.state.phase is not Phase.IDLE:
        return
    background.decide_notification(decision, ExpireNotifications(command.at, command.limits))
    background.decide_notification(decision, DeliverNotifications(command.at, limits=command.limits))
    # Others may be out too, with a host that takes them itself (B16).
    last = decision.events[-1] if decision.events else None
    ids = last.ids if isinstance(last, NotificationsDelivered) else ()
    carried = tuple(decision.state.notifications.pending[id] for id in ids)
    if carried:
        decision.emit(InputReceived(prompt_text(carried), command.at, kind="notification"))
    if carried or (decision.state.queue and not decision.state.held):
        _start_turn(decision, command.at, command.options, tuple(item.id for item in carried))


def _next_step(decision: Decision, at: float) -> None:
    """Between two steps: take in what waits, look at budgets and room, then ask the model."""
    if decision.state.queue:
        decision.emit(InputsTaken(decision.state.in_turn.number))
    turn = decision.state.in_turn
    if _spent_out(decision, turn, at):
        return
    if turn.options.max_steps and turn.step >= turn.options.max_steps:
        _ended(decision, TurnEnded(turn.number, "max_steps", at))
        return
    if _make_room(decision, turn):
        return
    decision.emit(StepStarted(turn.number, turn.step + 1, at))


def _spent_out(decision: Decision, turn: Turn, at: float) -> bool:
    """Warns at 80 % of each cap, once; ends the turn when one is spent (L25)."""
    options, spent = turn.options, decision.state.spent
    if options.token_cap is None and options.step_cap is None and options.call_cap is None:
        return False
    for what, used, cap in (
        ("tokens", spent.usage.total or 0, options.token_cap),
        ("steps", spent.steps, options.step_cap),
        ("tool_calls", spent.tool_calls, options.call_cap),
    ):
        if cap is None:
            continue
        if used >= cap:
            fault = Fault("budget", f"the session's budget of {cap} {what} is spent ({used} used); raise it to go on")
            _ended(decision, TurnEnded(turn.number, "budget", at, fault))
            return True
        if used >= cap * WARN_SHARE and what not in decision.state.warned:
            decision.emit(BudgetWarned(what, used, cap))
    return False


def _make_room(decision: Decision, turn: Turn) -> bool:
    """True if the step has to wait for a summary (L26-L29)."""
    policy = turn.options.compaction
    limit = compaction.limit(policy, turn.options.window)
    if limit is None or decision.state.tokens <= limit:
        return False
    _mask(decision, policy.mask_after_turns, policy.mask_min_saving)
    state = decision.state
    if state.tokens <= limit:
        return False
    split = compaction.pick_split(state.history.messages, policy.keep_pairs, policy.min_messages)
    if not split:
        return False
    decision.emit(CompactionStarted(split, state.tokens))
    return True


def _mask(decision: Decision, turns: int, min_saving: int) -> None:
    state = decision.state
    before = compaction.mask_boundary(state.history.messages, turns)
    _, saved = compaction.mask(state.history.messages, before)
    if saved >= min_saving:
        decision.emit(HistoryMasked(before, state.tokens, state.tokens - saved))


def _end_turn(
    decision: Decision,
    at: float,
    stop_reason: str,
    told: str,
    *,
    fault: Fault | None = None,
    partial: Message | None = None,
    detail: str | None = None,
) -> None:
    """End the turn wherever it is: every open call gets its outcome, the history stays sound (L21)."""
    state = decision.state
    turn = state.in_turn
    if state.phase is Phase.ACTING:
        for call in turn.calls:
            if call.phase is not CallPhase.ENDED:
                decision.emit(CallEnded(call.id, Outcome.CANCELLED, told))
        decision.emit(ToolsSettled(turn.number, turn.step))
    kept = partial if state.phase is Phase.THINKING else None
    if kept is None and state.phase is Phase.THINKING:
        kept = _draft(turn)
    _ended(decision, TurnEnded(turn.number, stop_reason, at, fault, kept, detail or None))


def _ended(decision: Decision, event: TurnEnded) -> None:
    carried = decision.state.carrying
    attempts = decision.state.in_turn.options.notification_attempts
    decision.emit(event)
    if carried:
        background.settle_carried(decision, carried, event.stop_reason, event.at, attempts)


def _draft(turn: Turn) -> Message | None:
    """What the journal knows of the unfinished reply; without visible text there is nothing worth keeping."""
    if not turn.draft_text.strip():
        return None
    parts: tuple[Part, ...] = (Text(turn.draft_text),)
    if turn.draft_thinking:
        parts = (Thinking(turn.draft_thinking), *parts)
    return Message("assistant", parts, "cut_short")


# --- the model's answers ---


def _is_current(state: State, turn: int, step_number: int) -> bool:
    running = state.turn
    return (
        state.phase is Phase.THINKING and running is not None and running.number == turn and running.step == step_number
    )


def _reply(decision: Decision, command: DeliverReply) -> None:
    if not _is_current(decision.state, command.turn, command.step):
        return
    message = command.message
    decision.emit(
        ModelReplied(
            turn=command.turn,
            step=command.step,
            message=message,
            stop_reason=command.stop_reason,
            usage=command.usage,
            detail=command.detail,
            preparations=command.preparations,
            cuts=command.cuts,
            mismatch=command.mismatch,
        )
    )
    if decision.state.in_turn.calls:
        _open_calls(decision, command)
    else:
        _finish_or_go_on(decision, command)


def _open_calls(decision: Decision, command: DeliverReply) -> None:
    for call in decision.state.in_turn.calls:
        prepared = call.preparation
        if prepared.notes:
            decision.emit(ArgumentsRepaired(call.id, prepared.notes))
    for call in decision.state.in_turn.calls:
        prepared = call.preparation
        match prepared.verdict:
            case "refuse":
                decision.emit(CallEnded(call.id, prepared.outcome, prepared.content))
            case "ask":
                decision.emit(ApprovalRequested(call.id, command.at + command.approval_s))
            case "hold":
                decision.emit(CallHeld(call.id))
            case "run":
                pass  # Started below, as far as the limits allow.
    _go_on_with_calls(decision, command.at)


def _finish_or_go_on(decision: Decision, command: DeliverReply) -> None:
    """A reply without calls ends the turn, unless there is more to say: steering input, a schema that it missed, a provider's pause."""
    turn = decision.state.in_turn
    more_steps = not turn.options.max_steps or turn.step < turn.options.max_steps
    if _says_nothing(command.message) and command.stop_reason not in ("refusal", "max_tokens", "pause_turn"):
        fault = Fault(
            "silent_stop", "the model ended its reply without a word and without a call; try again or rephrase"
        )
        _ended(decision, TurnEnded(turn.number, "error", command.at, fault))
    elif command.mismatch is not None and command.stop_reason not in ("refusal", "max_tokens"):
        if turn.corrected or not more_steps:
            fault = Fault("invalid_output", f"the reply does not follow the schema: {command.mismatch}")
            _ended(decision, TurnEnded(turn.number, "error", command.at, fault))
        else:
            decision.emit(OutputMismatched(turn.number, command.mismatch))
            _next_step(decision, command.at)
    elif more_steps and (decision.state.queue or command.stop_reason == "pause_turn"):
        _next_step(decision, command.at)
    else:
        _ended(decision, TurnEnded(turn.number, command.stop_reason, command.at, detail=command.detail))


def _says_nothing(message: Message) -> bool:
    return not message.text.strip() and not any(isinstance(part, Media | ProviderPart) for part in message.parts)


def _fault(decision: Decision, command: DeliverFault) -> None:
    state = decision.state
    if not _is_current(state, command.turn, command.step):
        return
    turn = state.in_turn
    decision.emit(ModelFailed(command.turn, command.step, command.fault, command.partial, command.usage))
    if command.fault.kind == "context_overflow" and not turn.forced:
        before = decision.state.tokens
        _mask(decision, 1, 1)
        messages = decision.state.history.messages
        split = compaction.forced_split(messages, turn.options.compaction.keep_pairs)
        if split:
            decision.emit(CompactionStarted(split, before, forced=True))
            return
    _ended(decision, TurnEnded(turn.number, "error", command.at, command.fault))


# --- compaction ---


def _compact(decision: Decision, command: Compact) -> None:
    state = decision.state
    if state.phase is not Phase.IDLE:
        raise CommandRejected(
            f"session {state.session!r} is busy; compact() between turns, or let the turn compact by itself",
            session=state.session,
        )
    _mask(decision, command.compaction.mask_after_turns, command.compaction.mask_min_saving)
    state = decision.state
    policy = command.compaction
    split = compaction.pick_split(state.history.messages, policy.keep_pairs, policy.min_messages)
    if split:
        decision.emit(CompactionStarted(split, state.tokens))


def _summary(decision: Decision, command: DeliverSummary) -> None:
    state = decision.state
    if state.compacting is None or state.compacting.split != command.split:
        return
    started = state.compacting
    _install(decision, command)
    if decision.state.turn is None:
        return
    turn = decision.state.turn
    if not started.forced:
        decision.emit(StepStarted(turn.number, turn.step + 1, command.at))
    elif decision.state.history.tokens < state.history.tokens or state.tokens < started.tokens_before:
        # Shorter by a summary, or by the old results that were masked when it began.
        # The step that was refused for its size is asked again, under its own number.
        decision.emit(StepStarted(turn.number, turn.step, command.at))
    else:
        fault = Fault(
            "context_overflow", "the conversation does not fit into the model's window and cannot be made smaller"
        )
        _ended(decision, TurnEnded(turn.number, "error", command.at, fault))


def _install(decision: Decision, command: DeliverSummary) -> None:
    """The summary if it is smaller; else the oldest turns go, with a note; else nothing changes (L31, I35)."""
    state = decision.state
    messages = state.history.messages
    candidates: list[tuple[str, Message]] = []
    if command.text is not None and command.text.strip():
        candidates.append(("summary", compaction.summary_message(command.text)))
    candidates.append(("dropped", compaction.dropped_message(messages[: command.split])))
    for how, summary in candidates:
        history = compaction.installed(state.history, command.split, summary)
        if history.tokens < state.history.tokens and history.sound:
            decision.emit(
                CompactionEnded(
                    split=command.split,
                    tokens_before=state.history.tokens,
                    tokens_after=history.tokens,
                    messages_before=len(messages),
                    messages_after=len(history.messages),
                    how=how,
                    summary=summary,
                    usage=command.usage,
                    fault=command.fault,
                )
            )
            return
    _give_up_compaction(decision, command)


def _give_up_compaction(decision: Decision, command: DeliverSummary | None = None) -> None:
    state = decision.state
    split = state.compacting.split if state.compacting is not None else 0
    tokens, count = state.history.tokens, len(state.history.messages)
    decision.emit(
        CompactionEnded(
            split=split,
            tokens_before=tokens,
            tokens_after=tokens,
            messages_before=count,
            messages_after=count,
            how="unchanged",
            usage=command.usage if command is not None else NO_USAGE,
            fault=command.fault if command is not None else None,
        )
    )


# --- tools ---


def _find(state: State, call_id: CallId, phase: CallPhase) -> Call | None:
    if state.turn is None:
        return None
    return next((call for call in state.turn.calls if call.id == call_id and call.phase is phase), None)


def _is_open(state: State, call_id: CallId) -> bool:
    return state.turn is not None and any(
        call.id == call_id and call.phase is not CallPhase.ENDED for call in state.turn.calls
    )


def _require_phase(state: State, call_id: CallId, phase: CallPhase, complaint: str) -> None:
    if _find(state, call_id, phase) is None:
        raise CommandRejected(f"call {call_id!r} {complaint}; it may have ended or lapsed", call=call_id)


def _result(decision: Decision, command: DeliverResult) -> None:
    state = decision.state
    running = _find(state, command.call, CallPhase.RUNNING) or _find(state, command.call, CallPhase.HELD)
    if running is None:
        if not background.spilled_end(decision, command):
            decision.emit(CallWasLate(command.call, command.outcome))
        return
    decision.emit(
        CallEnded(
            call=command.call,
            outcome=command.outcome,
            content=command.content,
            images=command.images,
            latency_ms=command.latency_ms,
            full_output=command.full_output,
            internal=command.internal,
        )
    )
    _go_on_with_calls(decision, command.at)


def _go_on_with_calls(decision: Decision, at: float) -> None:
    """Start what may start; when every call has its outcome, settle, look for loops, and go on."""
    turn = decision.state.in_turn
    open_left = False
    for call in startable(turn.calls, turn.options.parallel_calls):
        decision.emit(CallStarted(call.id, at, call.attempt + 1))
        open_left = True
    if open_left or any(call.phase is not CallPhase.ENDED for call in turn.calls):
        return
    decision.emit(ToolsSettled(turn.number, turn.step))
    turn = decision.state.in_turn
    options = turn.options
    if options.loop_warn and turn.repeats >= options.loop_warn + options.loop_end:
        fault = Fault("no_progress", f"the same tool call gave the same result {turn.repeats} times in a row")
        _ended(decision, TurnEnded(turn.number, "error", at, fault))
        return
    if options.loop_warn and turn.repeats == options.loop_warn:
        decision.emit(LoopWarned(turn.number, turn.repeats))
    _next_step(decision, at)


# --- recovery ---


def _recover(decision: Decision, command: Recover) -> None:
    """Close what the dead process left open, so that the session serves again (J12, I3). Doing it twice changes nothing more (I17)."""
    _recover_turn(decision, command)
    background.recover(decision, command)


def _recover_turn(decision: Decision, command: Recover) -> None:
    state = decision.state
    if state.phase is Phase.TIDYING:
        decision.emit(RecoveryNoted(command.at, None))
        _give_up_compaction(decision)
        return
    turn = state.turn
    if turn is None:
        return
    open_calls = tuple(call for call in turn.calls if call.phase is not CallPhase.ENDED)
    decision.emit(RecoveryNoted(command.at, turn.number, tuple(call.id for call in open_calls)))
    # Output that a user has seen is never produced twice (L13): such a step is not asked again.
    if command.resume and not (state.phase is Phase.THINKING and turn.progressed):
        _resume_calls(decision, open_calls, command.at)
        return
    for call in open_calls:
        started = call.phase is CallPhase.RUNNING
        outcome = Outcome.UNKNOWN if started else Outcome.CANCELLED
        decision.emit(CallEnded(call.id, outcome, UNKNOWN if started else NEVER_STARTED))
    fault = Fault("process_ended", "the process ended during this turn; what was recorded until then is kept")
    if open_calls or state.phase is Phase.ACTING:
        decision.emit(ToolsSettled(turn.number, turn.step))
    kept = _draft(turn) if state.phase is Phase.THINKING else None
    _ended(decision, TurnEnded(turn.number, "error", command.at, fault, kept))


def _resume_calls(decision: Decision, open_calls: tuple[Call, ...], at: float) -> None:
    for call in open_calls:
        if call.phase is not CallPhase.RUNNING:
            continue
        if call.preparation.side_effect != "at_most_once" and call.attempt < REATTACH_MAX:
            decision.emit(CallStarted(call.id, at, call.attempt + 1))
        else:
            decision.emit(CallEnded(call.id, Outcome.UNKNOWN, UNKNOWN))
    if decision.state.phase is Phase.ACTING:
        _go_on_with_calls(decision, at)
