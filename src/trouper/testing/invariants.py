"""The invariants of `design/INVARIANTS.md`, checked over a journal: one walk, every record, all sessions.

    problems = check_invariants(path)        # a directory, an open log or reader, or records
    assert not problems

A checker of its own: it folds with the same `evolve` as everybody, but counts calls, turns, tasks and notifications by itself from the events, so that a mistake
in `decide` shows. What it cannot see in a journal (work that started before its intent was durable, a task left behind) the simulator watches for.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from attrs import Factory, define, frozen

from trouper import codec, replay
from trouper._errors import TrouperError, UsageError
from trouper.core import history, memory
from trouper.core.calls import Preparation
from trouper.core.decisions import step
from trouper.core.events import (
    CallEnded,
    CallHeld,
    CallStarted,
    CallWasLate,
    CompactionEnded,
    HistoryMasked,
    InputReceived,
    ModelReplied,
    RecoveryNoted,
    SessionClosed,
    SessionOpened,
    StepStarted,
    TurnEnded,
    TurnStarted,
)
from trouper.core.ids import is_session
from trouper.core.memory import Memories
from trouper.core.messages import Outcome
from trouper.core.notification import (
    BATCH_MAX,
    NotificationQueued,
    NotificationsAcknowledged,
    NotificationsDelivered,
)
from trouper.core.schedule import ScheduleCancelled, ScheduleFireClaimed, ScheduleFireReclaimed, ScheduleFireResumed
from trouper.core.session import Phase, State, evolve
from trouper.core.settings import Limits
from trouper.core.task_events import (
    TaskCancelled,
    TaskCreated,
    TaskEnded,
    TaskEndedLate,
    TaskFailed,
    TaskInterrupted,
    TaskReattached,
    TaskSpilled,
    TaskStarted,
    TaskSucceeded,
)
from trouper.journal import Log, Reader, open_reader
from trouper.journal.format import is_gap
from trouper.replay.difference import events_difference

T = TypeVar("T")

#: How the end of a run is told.
_KINDS: Mapping[type[TaskEnded], str] = {
    TaskSucceeded: "task_succeeded",
    TaskFailed: "task_failed",
    TaskCancelled: "task_cancelled",
    TaskInterrupted: "task_interrupted",
}
#: Outcomes that only an execution can have, and of them those that a host can give a call which it was handed.
_EXECUTED = frozenset({Outcome.OK, Outcome.TIMEOUT, Outcome.UNKNOWN})
_ANSWERED = frozenset({Outcome.OK, Outcome.TIMEOUT})


@frozen
class Violation:
    """One broken invariant, and where."""

    invariant: str
    session: str
    #: The number of the event in its session.
    event: int
    problem: str

    def __str__(self) -> str:
        return f"{self.invariant} at event {self.event} of session {self.session!r}: {self.problem}"


Journal = str | os.PathLike[str] | Log | Reader | replay.Journal | Iterable[codec.Record]


def check_invariants(
    journal: Journal,
    *,
    limits: Limits | None = None,
    complete: bool = False,
    rerun: bool = True,
    secrets: Iterable[str] = (),
) -> list[Violation]:
    """Every violation found; an empty list is what you want.

    `limits`: those that the runtime had, if they were not the usual ones (I19). `complete`: no turn, call or message may be left open at the end (faults are off and everybody has had time, I26); runs and notifications may wait for
    another process, and what an interrupt left queued for the user's next word. `rerun`: decide every recorded command again and compare
    (I18). `secrets`: texts that may stand nowhere (I36).
    """
    checker = _Checker(limits or Limits(), rerun, _as_written(secrets))
    for record in records_of(journal):
        checker.record(record)
    return checker.finished(complete)


def records_of(journal: Journal) -> Iterator[codec.Record]:
    """The records of whatever a journal is given as."""
    if isinstance(journal, str | os.PathLike):
        journal = open_reader(journal)
    if isinstance(journal, Log | Reader):
        for raw in journal.records():
            if not is_gap(raw.payload):
                yield codec.decode(raw.payload, raw.seq)
    elif isinstance(journal, replay.Journal):
        yield from journal.records()
    elif isinstance(journal, Iterable):
        yield from journal
    else:
        raise UsageError(f"{journal!r} is no journal; give its directory, or what open_journal() gave")


def _as_written(secrets: Iterable[str]) -> frozenset[str]:
    """How each may stand in a record, which is ASCII JSON: a quote, a backslash, an accent or a line end is escaped there, and in JSON within JSON twice."""
    if isinstance(secrets, str):
        raise UsageError("secrets are a list of texts, not one text; write secrets=[...]")
    found: set[str] = set()
    given: Iterable[object] = secrets
    for secret in given:
        if not isinstance(secret, str) or not secret:
            raise UsageError(f"{secret!r} in secrets is no text that could stand anywhere; leave it out")
        inside = {secret, *(json.dumps(secret, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False))}
        found |= {json.dumps(each)[1:-1] for each in inside}
    return frozenset(found)


@define
class _Watched:
    """What the checker knows of one session, counted from its events."""

    state: State = Factory(State)
    #: The same, as deciding every command again led to it; None if that led elsewhere. A story of its own: a history that is told a second time is copied, and
    #: a checker that copied it for each record would take time by the square of a session's length.
    decided: State | None = None
    walk: history.Walk = Factory(history.Walk)
    next_event: int = 0
    epoch: int = 0
    closed: bool = False
    #: An event was no legal move: what comes behind it means nothing, and is not looked at.
    lost: bool = False
    turns_open: set[int] = Factory(set)
    turns_ended: set[int] = Factory(set)
    #: The last turn was cut off by an interrupt, or by the end of its process, and nothing was said since: what was queued waits for the user's next word.
    set_aside: bool = False
    requested: dict[str, Preparation] = Factory(dict)
    turn_of: dict[str, int] = Factory(dict)
    starts: Counter[str] = Factory(Counter)
    ends: Counter[str] = Factory(Counter)
    open_calls: set[str] = Factory(set)
    #: Handed to the host: an answer or a time-out of these is the host's.
    held: set[str] = Factory(set)
    #: Begun by a process that is gone, with how often they had started then: the recovery ends or starts each (I3).
    orphaned: dict[str, int] = Factory(dict)
    live_tasks: set[str] = Factory(set)
    #: Which attempt each run is in; 0 while it is queued.
    attempts: Counter[str] = Factory(Counter)
    task_ends: dict[str, str] = Factory(dict)
    end_notes: Counter[str] = Factory(Counter)
    acknowledged: set[str] = Factory(set)
    claims: Counter[tuple[str, int]] = Factory(Counter)
    cancelled_schedules: set[str] = Factory(set)


class _Checker:
    def __init__(self, limits: Limits, rerun: bool, secrets: frozenset[str]) -> None:
        self._limits = limits
        self._rerun = rerun
        self._secrets = secrets
        self._sessions: dict[str, _Watched] = {}
        self._memory = _Watched()
        self._memories = Memories()
        self._ids: set[str] = set()
        #: Of the writer, whatever session it wrote for last.
        self._epoch = 0
        self._found: list[Violation] = []
        self._at = ("", 0)

    def _wrong(self, invariant: str, problem: str) -> None:
        self._found.append(Violation(invariant, *self._at, problem))

    def record(self, record: codec.Record) -> None:
        watched = self._sessions.setdefault(record.session, _Watched()) if is_session(record.session) else self._memory
        self._at = (record.session, record.n)
        risen = record.epoch > watched.epoch
        self._check_envelope(watched, record)
        self._check_secrets(record)
        if not watched.lost and watched is self._memory:
            self._check_memory(record)
        elif not watched.lost:
            before = watched.state
            if risen:
                self._check_recovered(watched, record)
            self._check_events(watched, record)
            if self._rerun:
                self._at = (record.session, record.n)
                self._check_rerun(watched, before, record)
        watched.next_event = record.n + len(record.events)

    def _check_secrets(self, record: codec.Record) -> None:
        if self._secrets:
            body = b"".join(codec.encode(record)).decode("ascii")
            if any(secret in body for secret in self._secrets):
                self._wrong("I36", "a secret stands in the journal")

    def _check_recovered(self, watched: _Watched, record: codec.Record) -> None:
        """Another process writes: before anything else it looks after what the one before it had begun."""
        begun = {call: watched.starts[call] for call in sorted(watched.open_calls) if watched.starts[call]}
        if begun and not any(isinstance(event, RecoveryNoted) for event in record.events):
            self._wrong("I3", f"another process goes on, and nothing became of {', '.join(begun)}")

    def _check_events(self, watched: _Watched, record: codec.Record) -> None:
        for offset, event in enumerate(record.events):
            self._at = (record.session, record.n + offset)
            try:
                watched.state = evolve(watched.state, event)
            except Exception as error:  # A pure fold: whatever it raises is about this event.
                self._wrong("I28", f"{type(event).__name__} is no legal move: {error}")
                watched.lost = True
            self._check_event(watched, event)
            if watched.lost:
                return
        for call, starts in watched.orphaned.items():
            if not watched.ends[call] and watched.starts[call] == starts:
                self._wrong("I3", f"call {call!r} is open after the recovery")
        watched.orphaned.clear()

    def _check_envelope(self, watched: _Watched, record: codec.Record) -> None:
        if record.n != watched.next_event:
            self._wrong("I13", f"the number is {record.n}, expected {watched.next_event}")
        if record.epoch < watched.epoch:
            self._wrong("I13", f"epoch {record.epoch} comes after {watched.epoch}")
        if record.epoch < self._epoch:
            self._wrong("I34", f"the writer of epoch {record.epoch} goes on after that of epoch {self._epoch}")
        watched.epoch = record.epoch
        self._epoch = max(self._epoch, record.epoch)
        if record.id in self._ids:
            self._wrong("I14", f"event id {record.id!r} stands in the journal twice")
        self._ids.add(record.id)
        if watched.closed and any(not isinstance(event, CallWasLate) for event in record.events):
            self._wrong("I16", f"{type(record.events[0]).__name__} after the session was closed")

    def _check_memory(self, record: codec.Record) -> None:
        """The runtime's own stream: the same rules, with the fold of the memory (I10, I13, I18)."""
        before = self._memories
        try:
            for event in record.events:
                self._memories = memory.evolve(self._memories, event)
        except Exception as error:  # As pure as the fold of a session.
            self._wrong("I28", f"{type(event).__name__} is no legal move: {error}")
            self._memory.lost = True
        if self._rerun:
            self._compare(record, lambda: (memory.decide(before, record.cause), None))

    def _check_rerun(self, watched: _Watched, before: State, record: codec.Record) -> None:
        state = before if watched.decided is None else watched.decided
        watched.decided = self._compare(record, lambda: step(state, record.cause))

    def _compare(self, record: codec.Record, decide_again: Callable[[], tuple[tuple[Any, ...], T]]) -> T | None:
        """The state that deciding it again leads to, if that is the one that is recorded."""
        command = type(record.cause).__name__
        try:
            again, after = decide_again()
        except TrouperError as error:
            self._wrong("I18", f"{command} is refused now: {error}")
        except Exception as error:  # As pure as the fold.
            self._wrong("I18", f"{command} fails now: {error!r}")
        else:
            if again == record.events:
                return after
            self._wrong("I18", f"{command} decides otherwise now: {events_difference(record.events, again)}")
        return None

    def _check_event(self, watched: _Watched, event: object) -> None:
        state = watched.state
        match event:
            case TurnStarted(turn=turn, carrying=carried):
                if watched.turns_open:
                    self._wrong("L10", f"turn {turn} overlaps {sorted(watched.turns_open)}")
                watched.turns_open.add(turn)
                if carried and state.notifications.queued and len(carried) < BATCH_MAX:
                    self._wrong(
                        "I31", f"turn {turn} leaves {len(state.notifications.queued)} notifications for another"
                    )
            case InputReceived():
                watched.set_aside = False
            case TurnEnded(turn=turn, stop_reason=stop_reason, fault=fault):
                watched.set_aside = stop_reason == "interrupt" or (fault is not None and fault.kind == "process_ended")
                if turn not in watched.turns_open or turn in watched.turns_ended:
                    self._wrong("L1", f"turn {turn} ended twice or never started")
                watched.turns_open.discard(turn)
                watched.turns_ended.add(turn)
                if watched.open_calls:
                    self._wrong("I1", f"turn {turn} ended with open calls {sorted(watched.open_calls)}")
                if problems := watched.walk.problems(state.history.messages):
                    self._wrong("I5", f"after turn {turn}: {problems[0]}")
            case StepStarted():
                if problems := watched.walk.problems(state.history.messages):
                    self._wrong("I5", problems[0])
                self._check_budget(watched)
            case ModelReplied(turn=turn, message=message, preparations=preparations):
                # If there are more of the one than of the other, the fold has said so.
                for call, prepared in zip(message.calls, preparations, strict=False):
                    if call.id in watched.requested:
                        self._wrong("I1", f"call id {call.id!r} is used twice")
                    watched.requested[call.id] = prepared
                    watched.turn_of[call.id] = turn
                    watched.open_calls.add(call.id)
            case CallHeld(call=call):
                watched.held.add(call)
            case CallStarted(call=call):
                self._check_start(watched, call)
            case CallEnded(call=call, outcome=outcome):
                watched.ends[call] += 1
                if watched.ends[call] > 1:
                    self._wrong("I1", f"call {call!r} has {watched.ends[call]} outcomes")
                answered = outcome in _ANSWERED and call in watched.held
                if outcome in _EXECUTED and not watched.starts[call] and not answered:
                    self._wrong("I2", f"call {call!r} ended as {outcome.value} without an intent")
                watched.open_calls.discard(call)
            case CallWasLate(call=call):
                if not watched.ends[call]:
                    self._wrong("I9", f"call {call!r} has a late result, and no other")
            case RecoveryNoted(open_calls=calls):
                if missed := watched.open_calls.difference(calls):
                    self._wrong("I3", f"the recovery overlooks {sorted(missed)}")
                watched.orphaned = {call: watched.starts[call] for call in calls if watched.starts[call]}
            case HistoryMasked(tokens_before=before, tokens_after=after):
                if after >= before:
                    self._wrong("I35", f"leaving out results took the history from {before} to {after} tokens")
            case CompactionEnded(tokens_before=before, tokens_after=after, summary=summary):
                if summary is not None and after >= before:
                    self._wrong("I35", f"a compaction took the history from {before} to {after} tokens")
            case SessionOpened():
                if watched.next_event:
                    self._wrong("I13", "the session was opened twice")
            case SessionClosed():
                watched.closed = True
                if watched.live_tasks or state.turn is not None:
                    self._wrong("I20", f"closed with children left: {sorted(watched.live_tasks)}")
            case _:
                self._check_part(watched, event)

    def _check_start(self, watched: _Watched, call: str) -> None:
        watched.starts[call] += 1
        prepared = watched.requested.get(call)
        if prepared is None:
            self._wrong("I8", f"call {call!r} starts, but no reply asked for it")
            return
        if prepared.side_effect == "at_most_once" and watched.starts[call] > 1:
            self._wrong("I4", f"call {call!r} of a tool that is not idempotent starts {watched.starts[call]} times")
        if watched.turn_of[call] not in watched.turns_open:
            self._wrong("I8", f"call {call!r} of turn {watched.turn_of[call]} starts after that turn")
        if watched.ends[call]:
            self._wrong("I8", f"call {call!r} starts after its end")

    def _check_budget(self, watched: _Watched) -> None:
        turn, spent = watched.state.turn, watched.state.spent
        if turn is None:
            return
        options = turn.options
        if options.step_cap is not None and spent.steps > options.step_cap:
            self._wrong("I27", f"{spent.steps} steps with a budget of {options.step_cap}")
        if options.max_steps and turn.step > options.max_steps:
            self._wrong("I27", f"step {turn.step} of at most {options.max_steps}")
        tokens = spent.usage.total or 0
        if options.token_cap is not None and tokens >= options.token_cap:
            self._wrong("I27", f"a step begins with {tokens} tokens spent of {options.token_cap}")
        if options.call_cap and spent.tool_calls >= options.call_cap:
            self._wrong("I27", f"a step begins with {spent.tool_calls} tool calls made of {options.call_cap}")

    def _check_part(self, watched: _Watched, event: object) -> None:
        match event:
            case TaskCreated(task=new):
                self._check_new(watched, new.id)
                watched.live_tasks.add(new.id)
            case TaskStarted() | TaskReattached():
                watched.attempts[event.task_id] += 1
                self._check_attempt(watched, event)
                self._check_permits(watched)
            case TaskSpilled(task=new):
                self._check_new(watched, new.id)
                watched.live_tasks.add(new.id)
                watched.attempts[new.id] = 1
                self._check_permits(watched)
            case TaskSucceeded() | TaskFailed() | TaskCancelled() | TaskInterrupted():
                if event.task_id in watched.task_ends:
                    self._wrong("I28", f"task {event.task_id!r} ended twice")
                self._check_attempt(watched, event)
                watched.task_ends[event.task_id] = _KINDS[type(event)]
                watched.live_tasks.discard(event.task_id)
            case TaskEndedLate(task_id=task_id, attempt=attempt):
                if task_id in watched.live_tasks and attempt == watched.attempts[task_id]:
                    self._wrong("I9", f"attempt {attempt} of task {task_id!r} ended late, and the task did not")
            case NotificationQueued():
                self._check_queued(watched, event)
            case NotificationsDelivered(ids=ids):
                if again := watched.acknowledged.intersection(ids):
                    self._wrong("I30", f"delivered after they were acknowledged: {sorted(again)}")
            case NotificationsAcknowledged(ids=ids):
                watched.acknowledged.update(ids)
            case (
                ScheduleFireClaimed(schedule_id=schedule, fire=fire)
                | ScheduleFireReclaimed(schedule_id=schedule, fire=fire)
            ):
                watched.claims[schedule, fire] += 1
                if watched.claims[schedule, fire] > 2:
                    self._wrong(
                        "I32",
                        f"fire {fire} of schedule {schedule!r} was claimed {watched.claims[schedule, fire]} times",
                    )
                if schedule in watched.cancelled_schedules:
                    self._wrong("I32", f"schedule {schedule!r} fires although it was cancelled")
            case ScheduleFireResumed(schedule_id=schedule, fire=fire):
                # It had waited, and nothing was done: this is a claim of its own.
                watched.claims[schedule, fire] = 1
                if schedule in watched.cancelled_schedules:
                    self._wrong("I32", f"schedule {schedule!r} fires although it was cancelled")
            case ScheduleCancelled(schedule_id=schedule):
                watched.cancelled_schedules.add(schedule)
            case _:
                pass

    def _check_new(self, watched: _Watched, task_id: str) -> None:
        if task_id in watched.live_tasks or task_id in watched.task_ends:
            self._wrong("I28", f"task {task_id!r} begins a second time")

    def _check_attempt(self, watched: _Watched, event: TaskStarted | TaskReattached | TaskEnded) -> None:
        current = watched.attempts[event.task_id]
        if event.attempt != current:
            self._wrong(
                "I28",
                f"{type(event).__name__} of task {event.task_id!r} is of attempt {event.attempt}, the task is in {current}",
            )

    def _check_permits(self, watched: _Watched) -> None:
        active = watched.state.tasks.active
        if active > self._limits.runs_per_session:
            self._wrong("I19", f"{active} runs at once, the limit is {self._limits.runs_per_session}")
        everywhere = sum(each.state.tasks.active for each in self._sessions.values())
        if everywhere > self._limits.runs_per_runtime:
            self._wrong("I19", f"{everywhere} runs at once in all sessions")

    def _check_queued(self, watched: _Watched, event: NotificationQueued) -> None:
        key = event.notification.dedupe_key
        if key is not None and event.notification.kind.startswith("task_"):
            watched.end_notes[key] += 1
            if watched.end_notes[key] > 1:
                self._wrong("I29", f"{watched.end_notes[key]} notifications for one end: {key!r}")
            ended = watched.task_ends.get(event.notification.task_id or "")
            if key == f"{event.notification.task_id}:end" and ended != event.notification.kind:
                self._wrong("I29", f"{key!r} is told as {event.notification.kind}, and is {ended}")

    def finished(self, complete: bool) -> list[Violation]:
        for name, watched in self._sessions.items():
            self._at = (name, watched.next_event)
            if watched.lost:
                continue
            if not watched.closed:
                for task_id in watched.task_ends:
                    if not watched.end_notes[f"{task_id}:end"]:
                        self._wrong("I29", f"task {task_id!r} ended without a notification")
            if complete:
                self._check_complete(watched)
        return self._found

    def _check_complete(self, watched: _Watched) -> None:
        if watched.state.phase not in (Phase.IDLE, Phase.CLOSED):
            self._wrong("I26", f"nothing is left to do, but the session is {watched.state.phase.value}")
        if watched.state.queue and not watched.set_aside:
            self._wrong("I26", f"{len(watched.state.queue)} accepted messages reached no turn")
        if watched.open_calls:
            self._wrong("I3", f"calls are still open: {sorted(watched.open_calls)}")
