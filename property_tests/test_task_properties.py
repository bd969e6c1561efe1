"""I19, I20, I28, I29 for tasks: random commands of many sessions, attempts that are stale or invented, owners that die."""

from __future__ import annotations

import random
from functools import reduce

from attrs import evolve as change
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from trouper._errors import CommandRejected
from trouper.core import notification as n
from trouper.core import task as t
from trouper.core.ids import NotificationId, SessionId, TaskId
from trouper.core.task_text import spawned_task

LIMITS = t.TaskLimits()
SESSIONS = tuple(SessionId(f"s{number}") for number in range(20))
ENDS: tuple[t.End, ...] = ("succeeded", "failed", "cancelled", "interrupted")


class Runtime:
    """Many sessions' tasks and notifications, stepped as the session does: decide, record, evolve; an end with its notification in one record."""

    def __init__(self) -> None:
        self.tasks: dict[SessionId, t.Tasks] = {name: t.Tasks() for name in SESSIONS}
        self.notifications: dict[SessionId, n.Notifications] = {name: n.Notifications() for name in SESSIONS}
        self.records: list[tuple[SessionId, tuple[t.TaskEvent | n.NotificationEvent, ...]]] = []
        self.made = 0
        self.clock = 0.0

    @property
    def active(self) -> int:
        return sum(tasks.active for tasks in self.tasks.values())

    def step(self, session: SessionId, command: t.TaskCommand) -> tuple[t.TaskEvent, ...]:
        before, active_before = self.tasks[session], self.active
        try:
            events = t.decide(before, command)
        except CommandRejected as rejected:
            scope = rejected.facts.get("scope")
            assert scope != "session" or before.active >= LIMITS.per_session
            assert scope != "runtime" or active_before >= LIMITS.per_runtime
            return ()
        assert t.decide(before, command) == events
        tasks, notifications = before, self.notifications[session]
        record: list[t.TaskEvent | n.NotificationEvent] = []
        for event in events:
            tasks = t.evolve(tasks, event)
            record.append(event)
            if isinstance(event, t.TasksArchived | t.TaskCreated):
                continue
            task = tasks.get(event.task_id)
            assert task is not None
            notice = n.about_task(task, event, NotificationId(f"ntf_{len(self.records)}_{len(record)}"))
            if notice is not None:
                queued = n.decide(notifications, notice)
                notifications = reduce(n.evolve, queued, notifications)
                record += queued
        self._check_step(before, tasks, command)
        self.tasks[session], self.notifications[session] = tasks, notifications
        self.records.append((session, tuple(record)))
        return events

    def _check_step(self, before: t.Tasks, after: t.Tasks, command: t.TaskCommand) -> None:
        assert after.active <= LIMITS.per_session  # I19
        for task_id, old in before.ended.items():
            new = after.ended.get(task_id)
            if new is None:
                assert isinstance(command, t.SweepTasks)
            elif new is not old:  # Terminal is final (I28): only the notes about what was turned away may change.
                assert change(new, refused=old.refused, late=old.late, entries=old.entries) == old
        attempt = getattr(command, "attempt", None)
        old_task = before.live.get(getattr(command, "task_id", TaskId("")))
        if attempt is not None and old_task is not None and attempt != old_task.attempt:
            new_task = after.get(old_task.id)
            assert new_task is not None  # A stale attempt writes nothing (I28).
            assert change(new_task, refused=old_task.refused, late=old_task.late, entries=old_task.entries) == old_task

    def random_step(self, choice: random.Random) -> None:
        self.clock += choice.choice((0.0, 1.0, 60.0, 86_400.0 * choice.random()))
        session = choice.choice(SESSIONS)
        self.step(session, self.random_command(choice, session))
        assert self.active <= LIMITS.per_runtime  # I19

    def random_command(self, choice: random.Random, session: SessionId) -> t.TaskCommand:
        at = self.clock
        ids = [*self.tasks[session].live, *list(self.tasks[session].ended)[-3:]]
        owner = t.Owner(f"instance-{choice.randrange(3)}", 1, 0.0)
        if not ids or choice.random() < 0.35:
            self.made += 1
            about = spawned_task(
                TaskId(f"task_{self.made}"),
                f"bg_{self.made}",
                session,
                None,
                "dig",
                {},
                reattachable=choice.random() < 0.5,
            )
            return t.CreateTask(about, at, owner if choice.random() < 0.9 else None, self.active)
        task_id = choice.choice(ids)
        task = self.tasks[session].get(task_id)
        assert task is not None
        attempt = task.attempt if choice.random() < 0.8 else choice.randrange(5)
        commands: tuple[t.TaskCommand, ...] = (
            t.StartTask(task_id, owner, at, self.active),
            t.RecoverTask(task_id, owner, choice.random() < 0.7, at, max(1, self.active)),
            t.ReportTaskProgress(task_id, attempt, at, "working", t.Progress(1, 2)),
            t.WriteTaskOutput(task_id, attempt, "stdout", "line\n", at),
            t.BeatTask(task_id, attempt, at),
            t.AddTaskArtifact(task_id, attempt, f"{choice.randrange(3)}.txt", at),
            t.AskTaskInput(task_id, attempt, "which?", at),
            t.AnswerTaskInput(task_id, "that", at),
            t.MessageTask(task_id, "to_task", "hello", at),
            t.MessageTask(task_id, "from_task", "hello", at, attempt),
            t.CancelTask(task_id, at),
            t.EndTask(task_id, attempt, choice.choice(ENDS), at, "over"),
            t.LinkTask(task_id, t.Link("parent", "x"), at),
        )
        return t.SweepTasks(at) if choice.random() < 0.01 else choice.choice(commands)

    def check_history(self) -> None:
        ends: dict[TaskId, int] = {}
        told: dict[TaskId, int] = {}
        for session in SESSIONS:
            tasks, notifications = t.Tasks(), n.Notifications()
            for name, record in self.records:
                if name != session:
                    continue
                for event in record:
                    if isinstance(event, n.NotificationQueued):
                        notifications = n.evolve(notifications, event)
                        if event.notification.kind.startswith("task_") and event.notification.task_id is not None:
                            task_id = event.notification.task_id
                            told[task_id] = told.get(task_id, 0) + 1
                            shown = tasks.get(task_id)
                            assert shown is not None and event.notification.kind == f"task_{shown.state.value}"  # I29
                    else:
                        tasks = t.evolve(tasks, event)  # type: ignore[arg-type]
                        if isinstance(event, t.TaskEnded):
                            ends[event.task_id] = ends.get(event.task_id, 0) + 1
            assert tasks == self.tasks[session] and notifications == self.notifications[session]  # I10
            assert all(not task.ended for task in tasks.live.values()) and all(
                task.ended for task in tasks.ended.values()
            )
            closed = reduce(t.evolve, t.abandon(tasks, 1e9, "closed"), tasks)
            assert not closed.live and t.outstanding(closed) == {}  # I20
        assert ends == told and set(ends.values()) <= {1}  # I29: one end, one notification, in one record.


@settings(max_examples=2, deadline=None)
@given(st.integers(0, 2**32))
def test_ten_thousand_random_steps_stay_within_the_limits(seed: int) -> None:
    """I19: 5 per session, 64 per runtime, at every prefix; I28, I29."""
    runtime, choice = Runtime(), random.Random(seed)
    peak = 0
    for _ in range(10_000):
        runtime.random_step(choice)
        peak = max(peak, runtime.active)
    assert peak == LIMITS.per_runtime  # It did come to the limit, so the limit was tried.
    runtime.check_history()


class TaskMachine(RuleBasedStateMachine):
    """The same, with every choice drawn by hypothesis: a failure shrinks to a short program."""

    def __init__(self) -> None:
        super().__init__()
        self.runtime = Runtime()

    @rule(choice=st.randoms(use_true_random=False))
    def step(self, choice: random.Random) -> None:
        session = SESSIONS[choice.randrange(2)]
        self.runtime.clock += 1.0
        self.runtime.step(session, self.runtime.random_command(choice, session))

    @invariant()
    def outstanding_is_what_runs(self) -> None:
        for tasks in self.runtime.tasks.values():
            assert len(t.outstanding(tasks)) == tasks.active

    def teardown(self) -> None:
        self.runtime.check_history()


TestTasks = TaskMachine.TestCase
TestTasks.settings = settings(
    max_examples=30, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@given(
    st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.text(max_size=50)), max_size=30), st.integers(1, 400)
)
def test_log_and_tail_never_exceed_their_caps_and_the_log_is_a_prefix(
    parts: list[tuple[str, str]], repeat: int
) -> None:
    """B8."""
    output, whole, log = t.Output(), "", ""
    unbounded = t.Output()
    for stream, text in parts:
        output, logged = t.append_output(output, stream, text * repeat)
        log += logged
        if text:
            mark = (
                ""
                if stream == unbounded.stream
                else f"{'' if not whole or whole.endswith(chr(10)) else chr(10)}[{stream}] "
            )
            whole += mark + text * repeat
            unbounded = change(unbounded, stream=stream)
    assert output.tail == whole[-t.TAIL_MAX_CHARS :]
    assert output.truncated == (len(whole) > t.LOG_MAX_CHARS)
    if not output.truncated:
        assert log == whole and output.chars == len(whole)
    else:
        assert log.startswith(whole[: t.LOG_MAX_CHARS]) and len(log) < t.LOG_MAX_CHARS + 100
