"""The session's pure core: decide, evolve, outstanding. No clock, no trio, no disk."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trouper._errors import CommandRejected, InternalError
from trouper.core.calls import CallPhase, Preparation
from trouper.core.commands import (
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
    Submit,
)
from trouper.core.decisions import decide, step
from trouper.core.events import (
    CallEnded,
    CallStarted,
    CallWasLate,
    CompactionEnded,
    CompactionStarted,
    InputReceived,
    SessionClosed,
    StepStarted,
    TurnEnded,
)
from trouper.core.history import problems
from trouper.core.ids import CallId, NotificationId, ScheduleId, SessionId, TaskId, call_id
from trouper.core.messages import Fault, Message, Outcome, Text, Thinking, ToolCall, Usage
from trouper.core.notification import DeliverNotifications, QueueNotification
from trouper.core.outstanding import (
    AwaitApproval,
    AwaitDeadline,
    AwaitWarning,
    CallModel,
    RunCall,
    Summarise,
    TakeQueued,
    is_at_rest,
    outstanding,
)
from trouper.core.schedule import CreateSchedule, Cron, ScheduledRun
from trouper.core.session import TRANSITIONS, Phase, State, evolve
from trouper.core.settings import Compaction, TurnOptions
from trouper.core.task_events import CreateTask
from trouper.core.task_record import NewTask
from trouper.core.values import changed

OPTIONS = TurnOptions()


def told(state: State, *commands: Command) -> State:
    for command in commands:
        state = step(state, command)[1]
    return state


def opened() -> State:
    return told(State(), OpenSession("s", 0.0))


def submit(text: str = "go", **fields: Any) -> Submit:
    return Submit(text, 1.0, fields.pop("options", OPTIONS), **fields)


def said(text: str, turn: int = 1, number: int = 1, stop: str = "end_turn", **fields: Any) -> DeliverReply:
    return DeliverReply(turn, number, Message("assistant", (Text(text),)), stop, 2.0, **fields)


def asked(*preparations: Preparation, turn: int = 1, number: int = 1) -> DeliverReply:
    """A reply that calls a tool once for each preparation."""
    calls = tuple(ToolCall(call_id(turn, number, i), "look", {"n": i}) for i in range(len(preparations)))
    return DeliverReply(turn, number, Message("assistant", calls), "tool_use", 2.0, preparations=preparations)


def result(index: int, content: Any = "ok", turn: int = 1, number: int = 1) -> DeliverResult:
    return DeliverResult(call_id(turn, number, index), Outcome.OK, 3.0, content=content)


RUN = Preparation()


def test_the_work_of_a_turn_is_what_its_state_says():
    """architecture.md: `outstanding(state)` is what the world still owes."""
    state = opened()
    assert outstanding(state) == {}
    state = told(state, submit())
    assert list(outstanding(state).values()) == [CallModel(1, 1)]
    state = told(state, asked(RUN, RUN))
    assert [type(work) for work in outstanding(state).values()] == [RunCall, RunCall]
    state = told(state, result(0))
    assert [work.call.id for work in outstanding(state).values() if isinstance(work, RunCall)] == ["call_1_1_1"]
    state = told(state, result(1))
    assert list(outstanding(state).values()) == [CallModel(1, 2)]
    state = told(state, said("done", number=2))
    assert state.phase is Phase.IDLE and outstanding(state) == {} and state.last.text == "done"


def test_a_state_at_rest_is_one_that_nothing_can_happen_to_by_itself():
    """J12: to take it up again changes nothing."""
    note = QueueNotification(NotificationId("note_1"), "generic", "Ding", "dong", 1.0, wake=False)
    quiet = told(opened(), submit(), said("done"), note)
    assert is_at_rest(opened()) and is_at_rest(quiet) and decide(quiet, Recover(9.0)) == ()
    task = NewTask(TaskId("task_1"), SessionId("s"), "background", "dig", {"tool": "dig"})
    planned = told(
        quiet, CreateSchedule(ScheduleId("sch_1"), "dig", Cron("0 * * * *"), ScheduledRun("dig", {}), at=1.0)
    )
    (schedule,) = planned.schedules.active.values()
    # A fire that waits for a place has no timer of its own; it is told when there is one.
    waiting = changed(planned.schedules, active={schedule.id: changed(schedule, next_at=None)})
    busy = [
        State(),
        told(quiet, submit()),
        told(quiet, changed(note, id=NotificationId("note_2"), wake=True)),
        told(quiet, DeliverNotifications(2.0, (note.id,))),
        told(quiet, CreateTask(task, 1.0)),  # Queued: it has no run yet.
        planned,
        changed(planned, schedules=waiting),
        told(quiet, Close(2.0)),
    ]
    assert [is_at_rest(state) for state in busy] == [False] * len(busy)


def test_keys_tell_a_piece_of_work_from_its_successor():
    """A step that is asked again after a compaction is new work, under the same number."""
    options = TurnOptions(compaction=Compaction(keep_pairs=1, min_messages=2))
    state = told(opened(), submit("x" * 400, options=options), said("y" * 400), submit("z" * 400, options=options))
    first = set(outstanding(state))
    overflow = Fault("context_overflow", "too long")
    state = told(state, DeliverFault(2, 1, overflow, 3.0))
    (work,) = outstanding(state).values()
    assert isinstance(work, Summarise)
    state = told(state, DeliverSummary(work.split, 4.0, "short"))
    assert list(outstanding(state).values()) == [CallModel(2, 1)] and set(outstanding(state)).isdisjoint(first)


def test_a_compaction_on_demand_asks_no_model_where_the_budget_is_spent():
    """L25, L34: that is decided with the command, so its record says why. One of before, which names no caps, asks."""
    state = told(opened(), submit("x" * 400), said("y" * 400, usage=Usage(90, 10)), submit("z" * 400), said("ok", 2))
    policy = Compaction(keep_pairs=1, min_messages=2)
    for spent, caps in {"tokens": {"token_cap": 100}, "steps": {"token_cap": 101, "step_cap": 2}}.items():
        (started, ended), after = step(state, Compact(5.0, policy, **caps))
        assert isinstance(started, CompactionStarted) and isinstance(ended, CompactionEnded)
        assert (ended.how, ended.fault.kind, ended.split) == ("unchanged", "budget", started.split)
        assert spent in ended.fault.message and after.phase is Phase.IDLE and after.history == state.history
    for caps in ({}, {"token_cap": 101, "step_cap": 3, "call_cap": 0}):
        (work,) = outstanding(told(state, Compact(5.0, policy, **caps))).values()
        assert isinstance(work, Summarise)


def test_timers_are_work_too():
    options = TurnOptions(wall_s=30.0)
    state = told(opened(), submit(options=options), asked(Preparation("ask")))
    kinds = {type(work) for work in outstanding(state).values()}
    assert kinds == {AwaitDeadline, AwaitWarning, AwaitApproval}
    assert [work.at for work in outstanding(state).values() if isinstance(work, AwaitDeadline)] == [31.0]


@pytest.mark.parametrize(
    "stale",
    [
        said("late", number=9),
        said("late", turn=9),
        DeliverFault(1, 9, Fault("network", "x"), 2.0),
        DeliverSummary(3, 2.0, "summary"),
        NoteRetry(1, 9, 1, Fault("network", "x"), 1.0),
        NoteProgress(1, 9, "x"),
        NoteBudget("runtime tokens", 9, 10),
        Interrupt(2.0, turn=9),
        EndTurn(9, "budget", 2.0),
        Deny(CallId("call_9_9_9"), 2.0),
        DeliverDue(2.0, OPTIONS),
    ],
    ids=lambda command: type(command).__name__,
)
def test_an_answer_that_nobody_waits_for_changes_nothing(stale):
    """decide returns nothing for a stale answer."""
    thinking = told(opened(), submit())
    if not isinstance(stale, NoteBudget):
        assert decide(thinking, stale) == ()
    idle = told(thinking, said("done"))
    assert decide(idle, stale) == ()


def test_a_late_result_is_recorded_and_changes_nothing():
    """I9"""
    state = told(opened(), submit(), asked(RUN), Interrupt(3.0))
    events, after = step(state, result(0))
    assert events == (CallWasLate(CallId("call_1_1_0"), Outcome.OK),) and after == state


@pytest.mark.parametrize(
    "command",
    [
        submit(),
        Compact(1.0, Compaction()),
        Approve(CallId("x"), 1.0),
        CancelCall(CallId("x"), 1.0),
        OpenSession("s", 1.0),
    ],
    ids=lambda command: type(command).__name__,
)
def test_misuse_in_mid_turn_is_refused_and_changes_nothing(command):
    state = told(opened(), submit())
    with pytest.raises(CommandRejected):
        decide(state, command)


def test_nothing_happens_before_a_session_is_opened_or_after_it_is_closed():
    """I16"""
    with pytest.raises(CommandRejected, match="never opened"):
        decide(State(), submit())
    closed = told(opened(), submit(), asked(RUN), Close(3.0, "bye"))
    assert closed.phase is Phase.CLOSED and not outstanding(closed)
    for command in (submit(), Compact(1.0, Compaction()), Configure("x"), OpenSession("s", 1.0)):
        with pytest.raises(CommandRejected, match="closed"):
            decide(closed, command)
    for command in (result(0), said("x"), Interrupt(4.0), Close(4.0), Recover(4.0)):
        assert decide(closed, command) == ()


def test_closing_in_mid_turn_ends_the_turn_and_its_calls_first():
    """I20"""
    state = told(opened(), submit(), asked(RUN, RUN), result(0))
    kinds = [type(event).__name__ for event in decide(state, Close(4.0, "bye"))]
    assert kinds == ["CallEnded", "ToolsSettled", "TurnEnded", "SessionClosed"]


def test_evolve_refuses_what_the_table_does_not_have():
    with pytest.raises(InternalError):
        evolve(opened(), StepStarted(1, 1, 1.0))
    with pytest.raises(InternalError):
        evolve(told(opened(), submit()), SessionClosed("x", 1.0))
    with pytest.raises(InternalError):
        evolve(State(), InputReceived("x", 1.0))


def test_a_reply_whose_calls_were_not_all_prepared_is_refused_loudly():
    """I1: a call that nobody looked at could never have an outcome."""
    with pytest.raises(InternalError, match="2 calls, of which 1 were prepared"):
        decide(told(opened(), submit()), changed(asked(RUN, RUN), preparations=(RUN,)))


def test_every_phase_but_closed_can_be_left():
    left = {before for (before, _), after in TRANSITIONS.items() if before is not after}
    assert set(Phase) - left == {Phase.CLOSED}


def test_input_is_queued_in_order_and_taken_in_at_once():
    """L10"""
    state = told(opened(), submit("one"), submit("two", steer=True), submit("three", steer=True))
    assert [waiting.message.text for waiting in state.queue] == ["two", "three"]
    state = told(state, said("first"))
    assert state.queue == () and [m.text for m in state.history.messages] == ["one", "first", "two", "three"]
    assert state.phase is Phase.THINKING and state.turn.step == 2


def test_input_without_a_turn_is_owed_one_unless_the_user_interrupted():
    """I26, L15"""
    one_step = TurnOptions(max_steps=1)
    state = told(opened(), submit("one", options=one_step), submit("two", steer=True), said("done"))
    assert list(outstanding(state).values()) == [TakeQueued()]
    state = told(state, DeliverDue(4.0, OPTIONS))
    assert state.turns == 2 and state.queue == ()
    state = told(opened(), submit("one"), submit("two", steer=True), Interrupt(3.0))
    assert state.held and outstanding(state) == {} and decide(state, DeliverDue(4.0, OPTIONS)) == ()
    state = told(state, submit("three"))
    assert [m.text for m in state.history.messages] == ["one", "two", "three"] and not state.held


def test_an_interrupt_keeps_what_was_said_and_answers_every_call():
    """L13, L21"""
    partial = Message("assistant", (Text("Once upon"),), "cut_short")
    state = told(opened(), submit(), Interrupt(3.0, "enough", partial=partial))
    assert state.history.messages[-1] == partial and state.last.text == "Once upon"
    state = told(opened(), submit(), NoteProgress(1, 1, "Once ", "hm"), NoteProgress(1, 1, "upon"), Interrupt(3.0))
    assert state.history.messages[-1].parts == (Thinking("hm"), Text("Once upon"))
    state = told(opened(), submit(), asked(RUN, RUN, RUN), result(1), Interrupt(3.0))
    assert [a.outcome.value for a in state.history.messages[-1].answers] == ["cancelled", "ok", "cancelled"]
    assert not problems(state.history.messages)


def test_a_call_refused_before_it_ran_still_has_one_outcome():
    """I1, L20"""
    refused = Preparation("refuse", content="no such tool")
    events = decide(told(opened(), submit()), asked(refused, RUN))
    assert [type(event) for event in events if isinstance(event, CallEnded | CallStarted)] == [CallEnded, CallStarted]
    state = told(opened(), submit(), asked(refused, refused))
    assert state.phase is Phase.THINKING and state.turn.step == 2  # Nothing to wait for: the model is asked again.


def test_an_approval_lets_the_call_start_and_a_denial_ends_it():
    """T4"""
    state = told(opened(), submit(), asked(Preparation("ask"), Preparation("ask")))
    assert [call.phase for call in state.turn.calls] == [CallPhase.ASKING, CallPhase.ASKING] and len(
        state.approvals
    ) == 2
    state = told(state, Approve(call_id(1, 1, 0), 3.0, always=True), Deny(call_id(1, 1, 1), 3.0, "no"))
    assert [call.phase for call in state.turn.calls] == [CallPhase.RUNNING, CallPhase.ENDED]
    assert state.always == ("look",) and state.approvals == ()


def test_usage_adds_up_and_failures_count():
    """L24"""
    state = told(
        opened(),
        submit(),
        DeliverReply(1, 1, asked(RUN).message, "x", 2.0, Usage(input=5), preparations=(RUN,)),
        result(0),
        DeliverFault(1, 2, Fault("auth", "no"), 4.0, usage=Usage(input=7, output=1)),
    )
    assert state.last.usage == state.spent.usage == Usage(input=12, output=1)
    assert (state.spent.steps, state.spent.tool_calls) == (2, 1)


def test_of_a_call_that_was_never_started_nobody_says_that_it_may_have_done_something():
    """L21: of one that ran, and of one that the host has in hand, nobody knows."""
    running, asking, held = RUN, Preparation("ask"), Preparation("hold")
    waiting = Preparation(concurrency_class="c")
    state = told(opened(), submit(), asked(running, asking, held, waiting, waiting))
    for ended in (told(state, Interrupt(5.0)), told(state, EndTurn(1, "budget", 5.0))):
        answers = [answer.content for answer in ended.history.messages[-1].answers]
        assert ["did nothing" in text for text in answers] == [False, True, False, False, True]
        assert ["may have done" in text for text in answers] == [True, False, True, True, False]
    for index, begun in enumerate((True, False, True, True, False)):
        [event] = [e for e in decide(state, CancelCall(call_id(1, 1, index), 5.0, "Why.")) if isinstance(e, CallEnded)]
        assert ("may have done" in event.content) is begun and event.content.endswith(" Why.")


def test_a_pause_with_nothing_before_it_is_a_silent_stop():
    """L9: without a limit of steps, the model would be asked again for ever."""
    state = told(opened(), submit(), DeliverReply(1, 1, Message("assistant", ()), "pause_turn", 2.0))
    assert state.phase is Phase.IDLE and state.last.fault.kind == "silent_stop"


def test_recovery_closes_what_was_open_and_is_idempotent():
    """I3, I17"""
    state = told(opened(), submit(), asked(RUN, Preparation("ask"), RUN), result(0))
    once = told(state, Recover(9.0))
    assert once.phase is Phase.IDLE and once.last.fault.kind == "process_ended"
    assert [a.outcome.value for a in once.history.messages[-1].answers] == ["ok", "cancelled", "unknown"]
    assert decide(once, Recover(10.0)) == ()


def test_recovery_with_resume_gives_up_after_three_attempts():
    """J12: a call that kills the process every time is not run for ever."""
    safe = Preparation(side_effect="idempotent")
    state = told(opened(), submit(), asked(safe))
    for attempt in (2, 3):
        state = told(state, Recover(9.0, resume=True))
        assert state.turn.calls[0].attempt == attempt
    state = told(state, Recover(9.0, resume=True))
    assert state.history.messages[-1].answers[0].outcome is Outcome.UNKNOWN and state.turn.step == 2


def test_recovery_with_resume_does_not_ask_for_ever_what_every_process_dies_of():
    """J12: three processes have asked for the same step, and none of them was heard of again. A new step starts anew."""
    state = told(opened(), submit(), asked(RUN), result(0))
    for restarts in (1, 2):
        state = told(state, Recover(9.0, resume=True))
        assert state.phase is Phase.THINKING and state.turn.restarts == restarts
    stepped = told(state, asked(RUN, number=2), result(0, number=2))
    assert stepped.turn.restarts == 0 and told(stepped, Recover(9.0, resume=True)).phase is Phase.THINKING
    state = told(state, Recover(9.0, resume=True))
    assert state.phase is Phase.IDLE and state.last.fault.kind == "process_ended"
    assert "3 processes have ended during this step" in state.last.fault.message
    assert decide(state, Recover(10.0, resume=True)) == ()


def test_recovery_with_resume_lets_an_approval_wait_however_often_the_process_starts():
    """J12, T4: nobody dies of a question."""
    state = told(opened(), submit(), asked(Preparation("ask")))
    for _ in range(5):
        state = told(state, Recover(9.0, resume=True))
    assert state.phase is Phase.ACTING and state.turn.calls[0].phase is CallPhase.ASKING


def test_recovery_with_resume_counts_a_compaction_after_the_calls_anew():
    """J12, L26: processes that ended while an approval was waited for did not die of the compaction that follows it."""
    options = TurnOptions(compaction=Compaction(threshold=300, keep_pairs=1, min_messages=2))
    state = told(opened(), submit(), said("Yes."), submit(options=options), asked(Preparation("ask"), turn=2))
    state = told(state, *[Recover(9.0, resume=True)] * 5)
    state = told(state, Approve(call_id(2, 1, 0), 10.0), result(0, "x" * 4_000, turn=2))
    for _ in range(2):
        assert state.phase is Phase.COMPACTING
        state = told(state, Recover(11.0, resume=True))
    assert state.phase is Phase.COMPACTING
    assert told(state, Recover(12.0, resume=True)).last.fault.kind == "process_ended"


def test_a_decision_does_not_look_at_anything_but_its_arguments():
    """I11, I18: the same state and command give the same events."""
    state = told(opened(), submit(), asked(RUN, Preparation("ask")))
    for command in (result(0), Interrupt(5.0), Recover(6.0), Close(7.0)):
        assert decide(state, command) == decide(state, command)


# --- properties ---

_PREPARATIONS = st.builds(
    Preparation,
    verdict=st.sampled_from(["run", "ask", "hold", "refuse"]),
    side_effect=st.sampled_from(["pure", "idempotent", "at_most_once"]),
    concurrency_class=st.sampled_from([None, "a", "b"]),
    content=st.just("refused"),
)


@st.composite
def _commands(draw: st.DrawFn, state: State) -> Command:
    """A command that somebody might send in this state, stale and foolish ones included."""
    turn = state.turn
    number, current = (turn.number, turn.step) if turn is not None else (state.turns, 1)
    open_calls = [call.id for call in turn.calls] if turn is not None else []
    call = draw(st.sampled_from([*open_calls, call_id(1, 1, 0), call_id(9, 9, 9)]))
    kind = draw(st.integers(0, 15))
    match kind:
        case 0 | 1:
            compaction = Compaction(threshold=draw(st.sampled_from([None, 40])), keep_pairs=1, min_messages=3)
            options = TurnOptions(
                max_steps=draw(st.integers(0, 3)),
                parallel_calls=draw(st.integers(1, 3)),
                compaction=compaction,
                loop_end=1,
                token_cap=draw(st.sampled_from([None, 50])),
                wall_s=draw(st.sampled_from([None, 5.0])),
            )
            return submit(draw(st.sampled_from(["go", "x" * 300])), options=options, steer=draw(st.booleans()))
        case 2 | 3 | 4:
            calls = draw(st.lists(_PREPARATIONS, max_size=3))
            parts: list[Any] = [Text(draw(st.sampled_from(["", " ", "words"])))]
            parts += [ToolCall(call_id(number, current, i), draw(st.sampled_from("ab")), {}) for i in range(len(calls))]
            stop = draw(st.sampled_from(["end_turn", "max_tokens", "pause_turn", "odd"]))
            mismatch = draw(st.sampled_from([None, None, "no"])) if not calls else None
            usage = draw(st.sampled_from([Usage(), Usage(input=30, output=5)]))
            return DeliverReply(
                number,
                current,
                Message("assistant", tuple(parts)),
                stop,
                2.0,
                usage,
                preparations=tuple(calls),
                mismatch=mismatch,
            )
        case 5:
            partial = draw(st.sampled_from([None, Message("assistant", (Text("par"),), "cut_short")]))
            fault = Fault(draw(st.sampled_from(["auth", "context_overflow"])), "x")
            return DeliverFault(number, current, fault, 2.0, partial)
        case 6 | 7 | 8:
            return DeliverResult(
                call, draw(st.sampled_from(list(Outcome))), 3.0, content=draw(st.sampled_from(["ok", "y" * 500]))
            )
        case 9:
            return draw(st.sampled_from([Approve(call, 3.0), Deny(call, 3.0), CancelCall(call, 3.0)]))
        case 10:
            return Interrupt(
                4.0, partial=draw(st.sampled_from([None, Message("assistant", (Text("cut"),), "cut_short")]))
            )
        case 11:
            split = state.compacting.split if state.compacting is not None else 3
            return DeliverSummary(split, 4.0, draw(st.sampled_from([None, "", "short", "z" * 4000])))
        case 12:
            return Recover(5.0, resume=draw(st.booleans()))
        case 13:
            return draw(st.sampled_from([NoteProgress(number, current, "par"), EndTurn(number, "budget", 5.0)]))
        case 14:
            return DeliverDue(5.0, OPTIONS)
        case _:
            return Compact(5.0, Compaction(keep_pairs=1, min_messages=3))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_whatever_is_asked_in_whatever_order_the_state_stays_sound(data):
    """I1, I5, I10, L1, L10: any history can be sent or repaired, no call ends twice, and a fold of the events gives the same state."""
    state, folded = opened(), opened()
    ends: list[str] = []
    open_turns = 0
    for _ in range(data.draw(st.integers(1, 25), label="commands")):
        command = data.draw(_commands(state))
        try:
            events, after = step(state, command)
        except CommandRejected:
            continue
        for event in events:
            folded = evolve(folded, event)
            if isinstance(event, CallEnded):
                ends.append(event.call)
            open_turns += (type(event).__name__ == "TurnStarted") - isinstance(event, TurnEnded)
        state = after
        assert folded == state
        assert state.phase is not Phase.PREPARING  # Never while waiting.
        assert len(ends) == len(set(ends))
        assert open_turns == (state.turn is not None)
        assert state.history.sound
        if state.phase in (Phase.THINKING, Phase.IDLE) and state.history.messages:
            assert not problems(state.history.messages)
        if state.turn is not None and state.phase is not Phase.COMPACTING:
            assert outstanding(state) or any(call.phase is CallPhase.HELD for call in state.turn.calls)
