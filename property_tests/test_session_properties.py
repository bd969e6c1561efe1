"""The pure core under any commands in any order: valid ones, stale ones, nonsense (I1, I3-I5, I8-I10, I12, I16-I18, I20, I28-I30)."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import reduce
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from trouper import codec
from trouper._errors import UsageError
from trouper.core import task as t
from trouper.core.calls import CallPhase, Preparation
from trouper.core.commands import (
    ActFire,
    Approve,
    CancelCall,
    Close,
    Compact,
    Configure,
    DeliverDue,
    DeliverFault,
    DeliverReply,
    DeliverResult,
    DeliverResults,
    DeliverSummary,
    Deny,
    EndTurn,
    Interrupt,
    LapseCall,
    NoteBudget,
    NoteProgress,
    NoteRetry,
    OpenSession,
    Recover,
    Spill,
    SpillCalls,
    Submit,
)
from trouper.core.decisions import decide, step
from trouper.core.events import (
    BudgetWarned,
    CallEnded,
    CallHeld,
    CallStarted,
    CallWasLate,
    LoopWarned,
    SessionClosed,
    TurnEnded,
)
from trouper.core.history import problems
from trouper.core.ids import CallId, NotificationId, ScheduleId, SessionId, TaskId, call_id
from trouper.core.messages import Fault, Message, Opaque, Outcome, Part, Text, Thinking, ToolCall, Usage
from trouper.core.notification import (
    AcknowledgeNotifications,
    DeliverBatch,
    DeliverNotifications,
    QueueNotification,
    RequeueNotifications,
)
from trouper.core.outstanding import CallModel, RunCall, Summarise, TakeQueued, is_at_rest, outstanding
from trouper.core.schedule import (
    ActOnFire,
    CancelSchedule,
    ClaimFires,
    CreateSchedule,
    Cron,
    OneShot,
    ScheduledMessage,
    ScheduledRun,
    ScheduleFinished,
    ScheduleFireAbandoned,
)
from trouper.core.session import Event, Phase, State, evolve
from trouper.core.settings import Budget, Compaction, TurnOptions
from trouper.core.task_text import spawned_task
from trouper.roster import SessionDamaged, decode_section, encode_section, fold
from trouper.testing.invariants import check_invariants

OWNERS = tuple(t.Owner(f"instance-{n}", n, 0.0) for n in range(2))
OPTIONS = (
    TurnOptions(loop_warn=2, loop_end=1),
    TurnOptions(max_steps=2, parallel_calls=1, wall_s=60.0),
    TurnOptions(step_cap=6, call_cap=8, token_cap=2_000),
    TurnOptions(max_steps=0, compaction=Compaction(threshold=80, keep_pairs=1, min_messages=2, mask_min_saving=5)),
    TurnOptions(schema={"type": "object"}, notification_attempts=2),
)
FAULTS = (
    Fault("network", "gone", retryable=True),
    Fault("context_overflow", "too long"),
    Fault("auth", "no"),
)
PREPARATIONS = (
    Preparation(),
    Preparation(side_effect="pure", budget_s=0.3),
    Preparation(side_effect="idempotent", concurrency_class="db", notes=("parsed",)),
    Preparation(concurrency_class="db", budget_s=0.3),
    Preparation("ask"),
    Preparation("hold"),
    Preparation("refuse", outcome=Outcome.DENIED, content="no"),
)
CONTENTS: tuple[Any, ...] = ("done", {"n": [1, 2.5, None]}, "x" * 200, "")
STOPS = ("end_turn", "max_tokens", "refusal", "pause_turn")
TEXTS = ("", "  ", "Hello. ", "A longer answer, with é and \u2028 in it. " * 3)


class Conversation:
    """One session of the pure core, stepped as its actor does; every step is checked, and every record kept."""

    def __init__(self, tell_story: Callable[[str], None] = lambda line: None) -> None:
        self.tell_story = tell_story
        self.state = State()
        self.records: list[codec.Record] = []
        self.next_event = 0
        self.epoch = 1
        self.clock = 1_000.0
        self.made = 0
        #: Calls whose intent is recorded.
        self.intents: set[CallId] = set()
        #: And those that were given to the host to carry out.
        self.begun: set[CallId] = set()

    # -- one step

    def tell(self, command: Any) -> tuple[Any, ...]:
        before = self.state
        self.tell_story(f"told.tell({command!r})  # {before.phase.value}")
        try:
            events, after = step(before, command)
        except UsageError as refusal:  # Whatever else is raised is a mistake of ours.
            assert str(refusal)
            self._refused_again(before, command)
            return ()
        assert decide(before, command) == events  # I18: a decision is a function.
        assert reduce(evolve, events, before) == after  # I10
        if before.phase is Phase.CLOSED:
            assert events == () and after == before  # I16
        if not events:
            assert after == before  # Stale: of no effect.
            return ()
        self._keep(command, events)
        self.state = after
        self._check(before, command, events)
        return events

    def _refused_again(self, before: State, command: Any) -> None:
        try:
            step(before, command)
        except UsageError:
            return
        raise AssertionError(f"{command} was refused, and then it was not")

    def _keep(self, command: Any, events: tuple[Any, ...]) -> None:
        record = codec.Record("s", self.next_event, self.epoch, self.clock, command, events)
        head, body = codec.encode(record, exact=True)
        assert codec.decode(head + b',"body":' + body + b"}") == record  # I7, I10
        self.records.append(record)
        self.intents |= {event.call for event in events if isinstance(event, CallStarted)}
        self.begun |= {event.call for event in events if isinstance(event, CallStarted | CallHeld)}
        self.next_event += len(events)

    def _check(self, before: State, command: Any, events: tuple[Any, ...]) -> None:
        if before.turn is not None and any(isinstance(event, CallWasLate) for event in events):
            # I9: late, and of no effect; what came in time at the same moment has the one that it has.
            in_time = [event for event in events if not isinstance(event, CallWasLate)]
            assert reduce(evolve, in_time, before) == self.state
            assert not in_time or isinstance(command, DeliverResults)
        for event in events:
            if isinstance(event, CallEnded) and event.task is not None:
                assert self.state.tasks.get(event.task) is not None, "B2: a call spilled, and nothing records its run"
        if any(isinstance(event, TurnEnded) for event in events):
            ended = self.state.last
            assert ended is not None and (ended.fault is not None) == (ended.stop_reason in ("error", "budget"))

    # -- what must hold between any two steps

    def check_state(self) -> None:
        state = self.state
        assert state.phase is not Phase.PREPARING  # Only ever inside a decision.
        assert state.history.sound
        if state.phase is Phase.THINKING:
            assert problems(state.history.messages) == []  # I5: this is what is sent now.
        assert (state.turn is not None) == (state.phase in (Phase.THINKING, Phase.ACTING, Phase.COMPACTING))
        assert (state.compacting is not None) == (state.phase in (Phase.COMPACTING, Phase.TIDYING))
        self.check_work()

    def check_work(self) -> None:
        """Every phase owes the world something that brings it on, and nothing else (I26)."""
        state, work = self.state, outstanding(self.state)
        kinds = [type(piece) for piece in work.values()]
        assert kinds.count(CallModel) == (state.phase is Phase.THINKING)
        assert kinds.count(Summarise) == (state.compacting is not None)
        running = {piece.call.id for piece in work.values() if isinstance(piece, RunCall)}
        calls = state.turn.calls if state.turn is not None and state.phase is Phase.ACTING else ()
        assert running == {call.id for call in calls if call.phase is CallPhase.RUNNING}
        assert running <= self.intents  # I2: no work without its intent.
        assert {id for id, _ in state.approvals} == {call.id for call in calls if call.phase is CallPhase.ASKING}
        if state.phase is Phase.ACTING:
            waiting = [call for call in calls if call.phase in (CallPhase.RUNNING, CallPhase.ASKING, CallPhase.HELD)]
            assert waiting, "nothing would ever bring this turn on"
            assert len(running) <= state.in_turn.options.parallel_calls  # L8
            classes = [c.preparation.concurrency_class for c in calls if c.phase is CallPhase.RUNNING]
            assert classes.count("db") <= 1  # L8: in order, one after the other.
        if state.phase is Phase.IDLE:
            assert (TakeQueued in kinds) == bool(state.queue and not state.held)
            assert (DeliverBatch in kinds) == any(item.wake for item in state.notifications.queued)
        else:
            assert TakeQueued not in kinds and DeliverBatch not in kinds
        runs = sum(isinstance(piece, t.RunTask | t.AwaitTaskStopped) for piece in work.values())
        assert runs == state.tasks.active
        assert state.phase is not Phase.CLOSED or not (work or state.tasks.live or state.schedules.active)  # I20

    def check_snapshot(self) -> None:
        """I12: a snapshot is the state, and snapshot and suffix are the full fold."""
        assert decode_section(encode_section(self.state, self.next_event)) == (self.state, self.next_event)

    def check_replay(self) -> None:
        payloads = [head + b',"body":' + body + b"}" for head, body in map(codec.encode, self.records)]
        assert fold(payloads) == (self.state, self.next_event)  # I10
        half, n = fold(payloads[: len(payloads) // 2])
        state, n = decode_section(encode_section(half, n))
        assert fold(payloads, state, n) == (self.state, self.next_event)  # I12
        wrong = check_invariants(self.records)
        assert not wrong, "\n".join(map(str, wrong))

    # -- drawing commands

    def now(self) -> float:
        self.clock += 1.0
        return self.clock

    def a_call(self, choice: random.Random) -> CallId:
        known = [call.id for call in self.state.turn.calls] if self.state.turn is not None else []
        known += [task.about.origin_call for task in self.state.tasks.live.values() if task.about.origin_call]
        return choice.choice(known) if known and choice.random() < 0.85 else call_id(choice.randrange(3), 1, 0)

    def a_step(self, choice: random.Random) -> tuple[int, int]:
        turn = self.state.turn
        if turn is None or choice.random() < 0.1:
            return choice.randrange(4), choice.randrange(3)
        return turn.number, turn.step

    def a_message(self, choice: random.Random) -> Message:
        parts: list[Part] = [Text(choice.choice(TEXTS))]
        if choice.random() < 0.3:
            parts.insert(0, Thinking("hm", "sig", Opaque("p", {"s": "c2ln"})))
        return Message("assistant", tuple(parts), "cut_short")

    def a_reply(self, choice: random.Random, *, calls: int) -> DeliverReply:
        turn, number = self.a_step(choice)
        parts = list(self.a_message(choice).parts)
        prepared = []
        for index in range(calls):
            opaque = Opaque("p", {"sig": f"{index}=="}) if choice.random() < 0.3 else None
            parts.append(ToolCall(call_id(turn, number, index), choice.choice(("look", "dig")), {"n": 1}, None, opaque))
            prepared.append(choice.choice(PREPARATIONS))
        return DeliverReply(
            turn,
            number,
            Message("assistant", tuple(parts)),
            choice.choice(STOPS),
            self.now(),
            usage=choice.choice((Usage(), Usage(input=choice.randrange(300), output=7))),
            preparations=tuple(prepared),
            mismatch=choice.choice((None, "no object")),
        )

    def a_task(self, choice: random.Random) -> TaskId:
        known = [*self.state.tasks.live, *list(self.state.tasks.ended)[-2:]]
        return choice.choice(known) if known else TaskId("task_0")

    def turn_command(self, choice: random.Random) -> Any:
        """What brings a turn on, as its children and its users would."""
        turn, number = self.a_step(choice)
        state = self.state
        split = state.compacting.split if state.compacting is not None else choice.randrange(4)
        match choice.randrange(8):
            case 0 | 1:
                return self.a_reply(choice, calls=0)
            case 2 | 3:
                return self.a_reply(choice, calls=choice.randrange(1, 4))
            case 4:
                partial = self.a_message(choice) if choice.random() < 0.5 else None
                return DeliverFault(turn, number, choice.choice(FAULTS), self.now(), partial)
            case 5:
                return DeliverSummary(split, self.now(), choice.choice((None, "", "short", "y" * 2_000)))
            case 6:
                return NoteProgress(turn, number, choice.choice(TEXTS), "hm")
            case _:
                return choice.choice((NoteRetry(turn, number, 1, FAULTS[0], 1.0), NoteBudget("runtime tokens", 8, 10)))

    def call_command(self, choice: random.Random) -> Any:
        call, at = self.a_call(choice), self.now()
        match choice.randrange(9):
            case 0 | 1 | 2 | 3 if self.begun:
                first = self.a_result(at, choice)
                if choice.random() < 0.7:
                    return first
                # At one moment; be it twice for one call, or for one that has ended.
                return DeliverResults((first, *(self.a_result(at, choice) for _ in range(2))))
            case 4:
                return Approve(call, at, "me", always=choice.random() < 0.3)
            case 5:
                return Deny(call, at, choice.choice(("", "too dangerous")))
            case 6:
                return choice.choice((CancelCall(call, at), LapseCall(call, at)))
            case _:
                self.made += 2
                others = () if choice.random() < 0.5 else (Spill(self.a_call(choice), TaskId(f"task_{self.made - 1}")),)
                spills = (Spill(call, TaskId(f"task_{self.made}")), *others)
                return SpillCalls(spills, OWNERS[self.epoch % 2], at, 300, self.state.tasks.active)

    def a_result(self, at: float, choice: random.Random) -> DeliverResult:
        """Of a call that runs, or that did once: who has begun nothing has no result."""
        drawn = self.a_call(choice)
        call = drawn if drawn in self.begun else choice.choice(sorted(self.begun))
        outcome = choice.choice((Outcome.OK, Outcome.OK, Outcome.ERROR))
        return DeliverResult(call, outcome, at, content=choice.choice(CONTENTS))

    def outside_command(self, choice: random.Random) -> Any:
        at = self.now()
        options = choice.choice(OPTIONS)
        turn = choice.choice((None, self.state.turns, 99))
        partial = self.a_message(choice) if choice.random() < 0.5 else None
        match choice.randrange(10):
            case 0 | 1 | 2:
                return Submit(
                    choice.choice(("hi", "go on" * 40)), at, options, steer=choice.random() < 0.7, queue_max=3
                )
            case 3 | 4:
                return Interrupt(at, "enough", turn, partial)
            case 5:
                return EndTurn(
                    turn or 0, "budget", at, Fault("budget", "time is up"), partial, unasked=choice.random() < 0.2
                )
            case 6:
                return Compact(at, Compaction(keep_pairs=1, min_messages=2, mask_min_saving=1))
            case 7 | 8:
                return DeliverDue(at, options)
            case _:
                configure = choice.choice((Configure(None), Configure("Be brief.", ("tools",), Budget(steps=9))))
                return choice.choice((configure, OpenSession("s", at)))

    def background_command(self, choice: random.Random) -> Any:
        at, task_id = self.now(), self.a_task(choice)
        found = self.state.tasks.get(task_id)
        attempt = found.attempt if found is not None and choice.random() < 0.8 else choice.randrange(3)
        self.made += 1
        about = spawned_task(
            TaskId(f"task_{self.made}"),
            f"bg_{self.made}",
            SessionId("s"),
            None,
            "dig",
            {},
            reattachable=choice.random() < 0.5,
        )
        return choice.choice(
            (
                t.CreateTask(about, at, OWNERS[self.epoch % 2], self.state.tasks.active),
                t.EndTask(task_id, attempt, choice.choice(("succeeded", "failed", "cancelled")), at, "over"),
                t.EndTask(task_id, attempt, choice.choice(("succeeded", "failed", "cancelled")), at, "over"),
                t.CancelTask(task_id, at),
                t.MessageTask(task_id, "from_task", "hello", at, attempt),
                t.AskTaskInput(task_id, attempt, {"which": 1}, at),
                t.AnswerTaskInput(task_id, "that", at),
                t.SweepTasks(at),
            )
        )

    def notification_command(self, choice: random.Random) -> Any:
        at = self.now()
        self.made += 1
        known = tuple(self.state.notifications.pending) or (NotificationId("none"),)
        some = (choice.choice(known),)
        return choice.choice(
            (
                QueueNotification(
                    NotificationId(f"n_{self.made}"), "generic", "t", "b", at, wake=choice.random() < 0.7
                ),
                DeliverNotifications(at, ids=some),
                AcknowledgeNotifications(some, at),
                RequeueNotifications(some, "the host would not", at),
            )
        )

    def schedule_command(self, choice: random.Random) -> Any:
        self.clock += choice.choice((0.0, 70.0, 4_000.0))
        at = self.now()
        known = tuple(self.state.schedules.active) or (ScheduleId("none"),)
        fires = [piece for piece in outstanding(self.state).values() if isinstance(piece, ActOnFire)]
        self.made += 1
        if fires and choice.random() < 0.6:
            fire = choice.choice(fires)
            task = None
            if isinstance(fire.action, ScheduledRun):
                task = spawned_task(
                    TaskId(f"task_{self.made}"), "bg", SessionId("s"), None, "dig", {}, reattachable=True
                )
            return ActFire(fire.schedule_id, fire.fire, at, task, OWNERS[self.epoch % 2], "" if task else "gone")
        when = choice.choice((Cron("* * * * *"), OneShot(at + 10.0)))
        action = choice.choice((ScheduledMessage("water the plants"), ScheduledRun("dig", {})))
        return choice.choice(
            (
                CreateSchedule(ScheduleId(f"sch_{self.made}"), "t", when, action, at, "all"),
                ClaimFires(at),
                ClaimFires(at),
                CancelSchedule(choice.choice(known), at),
                ActFire(choice.choice(known), choice.randrange(4), at),
            )
        )

    def recover(self, choice: random.Random) -> None:
        """The process dies and another takes over: the state is what the journal says, and recovering twice is once (I3, I17)."""
        self.check_snapshot()
        self.epoch += 1
        resume = choice.random() < 0.5
        safe = tuple(id for id in self.state.tasks.live if choice.random() < 0.5)
        command = Recover(
            self.now(), resume, OWNERS[self.epoch % 2], safe, max(1, self.state.tasks.active), notification_attempts=3
        )
        before = self.state
        assert not (is_at_rest(before) and decide(before, command)), "what rests is not changed by being taken up again"
        self.tell(command)
        if self.state.phase in (Phase.NEW, Phase.CLOSED):
            return
        if not resume:
            assert self.state.turn is None, "I3: a turn is still open after recovery"
            # A fire that was claimed anew and still not acted on counts as a second crash: it is given up, visibly (I32).
            again = [
                e for e in decide(self.state, command) if not isinstance(e, ScheduleFireAbandoned | ScheduleFinished)
            ]
            assert not again, f"I17: recovering again adds {again}"
        for record_event in self.records[-1].events if self.records and self.state is not before else ():
            if isinstance(record_event, CallStarted):
                prepared = next(c.preparation for c in before.in_turn.calls if c.id == record_event.call)
                was_running = any(
                    c.id == record_event.call and c.phase is CallPhase.RUNNING for c in before.in_turn.calls
                )
                assert not was_running or prepared.side_effect != "at_most_once"  # I4

    def come_to_rest(self) -> None:
        """Faults are off: whatever is owed is delivered, politely; then nothing is left to do (I26)."""
        for _ in range(400):
            work = list(outstanding(self.state).values())
            if not self._serve(work):
                break
        else:
            raise AssertionError(f"still at work after 400 steps: {outstanding(self.state)}")
        assert self.state.phase in (Phase.IDLE, Phase.NEW, Phase.CLOSED)
        assert not self.state.tasks.live and not (self.state.queue and not self.state.held)
        assert self.state.phase is Phase.CLOSED or not any(item.wake for item in self.state.notifications.queued)

    def _serve(self, work: list[Any]) -> bool:
        state = self.state
        if state.phase is Phase.ACTING and state.turn is not None:
            call = next(call for call in state.turn.calls if call.phase is not CallPhase.ENDED)
            if call.phase is CallPhase.ASKING:
                self.tell(Approve(call.id, self.now()))
            else:
                call = next(c for c in state.turn.calls if c.phase in (CallPhase.RUNNING, CallPhase.HELD))
                self.tell(DeliverResult(call.id, Outcome.OK, self.now(), content=f"result {self.clock}"))
            return True
        for piece in work:
            match piece:
                case CallModel(turn, number):
                    said = Message("assistant", (Text("Done."),))
                    self.tell(DeliverReply(turn, number, said, "end_turn", self.now()))
                case Summarise(split):
                    self.tell(DeliverSummary(split, self.now(), "short"))
                case TakeQueued() | DeliverBatch():
                    self.tell(DeliverDue(self.now(), TurnOptions()))
                case t.RunTask(task_id, attempt):
                    self.tell(t.EndTask(task_id, attempt, "succeeded", self.now(), "done"))
                case t.AwaitTaskStopped(task_id, attempt):
                    self.tell(t.EndTask(task_id, attempt, "cancelled", self.now(), "stopped"))
                case RunCall(call):
                    self.tell(DeliverResult(call.id, Outcome.OK, self.now(), content="done"))
                case ActOnFire(schedule_id, fire, _, _):
                    self.tell(ActFire(schedule_id, fire, self.now(), refusal="not now"))
                case _:
                    continue  # A timer that is not up.
            return True
        return False


class SessionMachine(RuleBasedStateMachine):
    """Every choice drawn by hypothesis: a failure shrinks to a short program."""

    def __init__(self) -> None:
        super().__init__()
        self.told = Conversation(note)

    choices = st.randoms(use_true_random=False)

    @initialize(early=st.booleans())
    def open(self, early: bool) -> None:
        if early:  # Before it is open, there is nothing that it could do.
            assert self.told.tell(Submit("hello?", 1.0, OPTIONS[0])) == ()
            assert self.told.tell(Close(1.0)) == ()
        self.told.tell(OpenSession("s", self.told.now(), "Be kind."))

    @rule(choice=choices)
    def submit(self, choice: random.Random) -> None:
        self.told.tell(Submit("hello", self.told.now(), choice.choice(OPTIONS)))

    @rule(choice=choices)
    def bring_on(self, choice: random.Random) -> None:
        self.told.tell(self.told.turn_command(choice))

    @rule(choice=choices)
    def reply_with_calls(self, choice: random.Random) -> None:
        self.told.tell(self.told.a_reply(choice, calls=choice.randrange(1, 4)))

    @rule(choice=choices)
    def settle_call(self, choice: random.Random) -> None:
        self.told.tell(self.told.call_command(choice))

    @rule(choice=choices)
    def settle_calls(self, choice: random.Random) -> None:
        for _ in range(3):
            self.told.tell(self.told.call_command(choice))

    @rule(choice=choices)
    def disturb(self, choice: random.Random) -> None:
        self.told.tell(self.told.outside_command(choice))

    @rule(choice=choices)
    def work_beside(self, choice: random.Random) -> None:
        family = choice.choice(
            (self.told.background_command, self.told.notification_command, self.told.schedule_command)
        )
        self.told.tell(family(choice))

    @rule(choice=choices)
    def crash(self, choice: random.Random) -> None:
        self.told.recover(choice)

    @rule(choice=choices)
    def close(self, choice: random.Random) -> None:
        if choice.random() < 0.15:
            events = self.told.tell(Close(self.told.now(), "enough"))
            assert not events or isinstance(events[-1], SessionClosed)

    @invariant()
    def is_sound(self) -> None:
        self.told.check_state()

    def teardown(self) -> None:
        self.told.check_snapshot()
        self.told.come_to_rest()
        self.told.check_replay()


TestSession = SessionMachine.TestCase
TestSession.settings = settings(
    max_examples=50, stateful_step_count=35, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_many_long_conversations_keep_every_invariant() -> None:
    """The same commands, drawn faster and for longer than hypothesis would."""
    met: set[str] = set()
    for seed in range(40):
        choice = random.Random(seed)
        told = Conversation()
        told.tell(OpenSession("s", told.now()))
        families = (
            told.turn_command,
            told.turn_command,
            told.call_command,
            told.call_command,
            told.outside_command,
            told.background_command,
            told.notification_command,
            told.schedule_command,
        )
        for number in range(120):
            told.tell(choice.choice(families)(choice))
            told.check_state()
            if number % 40 == 39:
                told.recover(choice)
        told.check_snapshot()
        if seed % 3:  # Else it is closed in the middle of whatever it does.
            told.come_to_rest()
        if seed % 2 or not seed % 3:
            told.tell(Close(told.now(), "enough"))
            told.check_state()
            for family in families:
                assert told.tell(family(choice)) == ()  # I16
        told.check_replay()
        met |= {type(event).__name__ for record in told.records for event in record.events}
    missing = {kind.__name__ for kind in get_args(Event)} - met - RARE
    assert not missing, f"never happened, so never checked: {sorted(missing)}"


#: Events that need more than a session to come about, or have tests of their own.
RARE = {
    "LoopWarned",
    "TaskProgressed",
    "TaskOutputWritten",
    "TaskBeat",
    "TaskArtifactAdded",
    "TaskLinked",
    "TaskUpdateRefused",
    "TasksArchived",
    "TaskReattached",
    "ScheduleRebased",
    "ScheduleFiresSkipped",
    "ScheduleFireReclaimed",
    "ScheduleFireDeferred",
    "ScheduleFireResumed",
    "ScheduleFireAbandoned",
    "NotificationsExpired",
}


def test_a_call_has_one_outcome_however_often_it_is_answered() -> None:
    """I1, I9: the first answer counts, the others are late."""
    told = Conversation()
    told.tell(OpenSession("s", 1.0))
    told.tell(Submit("go", 2.0, TurnOptions()))
    calls = tuple(ToolCall(call_id(1, 1, n), "look", {"n": n}) for n in range(2))
    told.tell(DeliverReply(1, 1, Message("assistant", calls), "tool_use", 3.0, preparations=(Preparation(),) * 2))
    first = told.tell(DeliverResult(calls[1].id, Outcome.OK, 4.0, content="b"))
    assert [type(event) for event in first] == [CallEnded]
    assert told.tell(DeliverResult(calls[1].id, Outcome.ERROR, 5.0, content="c")) == (
        CallWasLate(calls[1].id, Outcome.ERROR),
    )
    told.tell(DeliverResult(calls[0].id, Outcome.OK, 6.0, content="a"))
    # L7: in the order in which they were declared, whatever order they finished in.
    assert [answer.content for answer in told.state.history.messages[-1].answers] == ["a", "b"]


def test_results_that_come_together_are_one_decision() -> None:
    """I1, I9, L7: each call has its outcome, a second one is late, and the turn goes on once, when all have theirs."""
    told = Conversation()
    told.tell(OpenSession("s", 1.0))
    told.tell(Submit("go", 2.0, TurnOptions()))
    calls = tuple(ToolCall(call_id(1, 1, n), "look", {"n": n}) for n in range(3))
    told.tell(DeliverReply(1, 1, Message("assistant", calls), "tool_use", 3.0, preparations=(Preparation(),) * 3))
    results = [DeliverResult(calls[n].id, Outcome.OK, 4.0, content=n) for n in (2, 0, 2)]
    assert [type(event).__name__ for event in told.tell(DeliverResults(tuple(results)))] == [
        "CallEnded",
        "CallEnded",
        "CallWasLate",
    ]
    events = told.tell(DeliverResults((DeliverResult(calls[1].id, Outcome.OK, 5.0, content=1),)))
    assert [type(event).__name__ for event in events] == ["CallEnded", "ToolsSettled", "StepStarted"]
    assert [answer.content for answer in told.state.history.messages[-1].answers] == [0, 1, 2]


def a_round(told: Conversation, content: str) -> tuple[Any, ...]:
    """One step with one call and its result."""
    turn = told.state.in_turn
    asked = ToolCall(call_id(turn.number, turn.step, 0), "look", {"n": 1})
    told.tell(
        DeliverReply(
            turn.number,
            turn.step,
            Message("assistant", (asked,)),
            "tool_use",
            told.now(),
            preparations=(Preparation(),),
        )
    )
    return told.tell(DeliverResult(asked.id, Outcome.OK, told.now(), content=content))


@pytest.mark.parametrize("warn", [1, 2, 3])
@pytest.mark.parametrize("end", [1, 2])
@pytest.mark.parametrize("steered", [False, True])
def test_the_loop_guard_counts_exactly(warn: int, end: int, steered: bool) -> None:
    """L23: a warning at the nth identical round, the end so many later; a different result or a word from the user starts anew."""
    told = Conversation()
    told.tell(OpenSession("s", 1.0))
    options = TurnOptions(max_steps=0, loop_warn=warn, loop_end=end)
    told.tell(Submit("go", 2.0, options))
    for _ in range(warn - 1):
        assert not any(isinstance(event, LoopWarned) for event in a_round(told, "same"))
    if steered:
        told.tell(Submit("try the other one", told.now(), options, steer=True))
        a_round(told, "same")  # Takes the words in, after its own result was counted.
    else:
        a_round(told, "different")
    rounds = 0
    while told.state.turn is not None:
        rounds += 1
        events = a_round(told, "same")
        assert any(isinstance(event, LoopWarned) for event in events) == (rounds == warn)
        assert rounds <= warn + end
    assert rounds == warn + end
    assert told.state.last is not None and told.state.last.fault is not None
    assert told.state.last.fault.kind == "no_progress"
    told.check_replay()


@pytest.mark.parametrize("cap", [5, 10, 11])
def test_a_budget_is_warned_of_once_and_never_overspent(cap: int) -> None:
    """L25, I27: one warning at 80 %, then the end; not one step more than the budget, in however many turns."""
    told = Conversation()
    told.tell(OpenSession("s", 1.0))
    options = TurnOptions(max_steps=0, step_cap=cap, loop_warn=0)
    said = []
    for _ in range(3):
        said += told.tell(Submit("go", told.now(), options))
        while told.state.turn is not None and told.state.turn.step % 4:
            said += a_round(told, f"result {told.clock}")
        said += told.tell(Interrupt(told.now()))
    while told.state.last is None or told.state.last.stop_reason != "budget":
        said += told.tell(Submit("go on", told.now(), options))
        while told.state.turn is not None:
            said += a_round(told, f"result {told.clock}")
    assert told.state.spent.steps == cap
    warned = [event for event in said if isinstance(event, BudgetWarned)]
    assert [event.what for event in warned] == ["steps"] and warned[0].spent == -(-cap * 4 // 5)
    told.check_replay()


def test_a_hole_in_a_journal_is_never_passed_over() -> None:
    """I13: a fold without one of its records would be a lie."""
    told = Conversation()
    told.tell(OpenSession("s", 1.0))
    told.tell(Submit("go", 2.0, TurnOptions()))
    told.tell(Interrupt(3.0))
    told.tell(Submit("again", 4.0, TurnOptions()))
    payloads = [head + b',"body":' + body + b"}" for head, body in map(codec.encode, told.records)]
    for missing in range(len(payloads) - 1):
        with pytest.raises(SessionDamaged, match="has lost its events"):
            fold(payloads[:missing] + payloads[missing + 1 :])
    # What a snapshot holds already is passed over, once or twice.
    state, n = fold(payloads[:2])
    assert fold(payloads, state, n) == fold(payloads[:3] + payloads[1:]) == (told.state, told.next_event)
