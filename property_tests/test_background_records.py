"""Events of tasks, notifications and schedules are what they were after a way through the journal's JSON (I10)."""

from __future__ import annotations

import random

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from trouper import codec
from trouper.core import notification as n
from trouper.core import schedule as s
from trouper.core import task as t
from trouper.core.ids import CallId, NotificationId, ScheduleId, SessionId, TaskId
from trouper.core.messages import Fault

ids = st.text("abc0_", min_size=1, max_size=6)
times = st.floats(0, 1e10)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)

new_tasks = st.builds(
    t.NewTask,
    id=ids.map(TaskId),
    session=ids.map(SessionId),
    kind=ids,
    title=texts,
    spec=st.dictionaries(texts, json, max_size=2),
    run_id=texts,
    metadata=st.dictionaries(texts, json, max_size=2),
    tags=st.lists(texts, max_size=2).map(tuple),
    origin_call=st.none() | ids.map(CallId),
    wake=st.sampled_from(["silent", "on_terminal", "on_activity"]),
    links=st.lists(st.builds(t.Link, texts, texts), max_size=2).map(tuple),
)
numbers = st.integers(0, 1_000)

FIELDS: dict[str, st.SearchStrategy[object]] = {
    "task": new_tasks,
    "attempt": numbers,
    "fire": numbers,
    "count": numbers,
    "delivery": numbers,
    "exact": st.booleans(),
    "owner": st.builds(t.Owner, texts, numbers, times),
    "progress": st.none() | st.builds(t.Progress, times, st.none() | times, st.none() | texts, st.none() | texts),
    "link": st.builds(t.Link, texts, texts),
    "error": st.none() | st.builds(Fault, texts, texts),
    "end": st.sampled_from(["succeeded", "failed", "cancelled", "interrupted"]),
    "missed": st.sampled_from(["skip", "once", "all"]),
    "task_id": ids.map(TaskId),
    "schedule_id": ids.map(ScheduleId),
    "id": ids,
    "ids": st.lists(ids.map(NotificationId), max_size=3).map(tuple),
    "task_ids": st.lists(ids.map(TaskId), max_size=3).map(tuple),
    "at": times,
    "due": times,
    "first": times,
    "next_at": times,
    "retry_at": times,
    "summary": texts,
    "detail": st.none() | texts,
    "text": texts,
    "title": texts,
    "reason": texts,
    "refusal": texts,
    "delta": texts,
    "stream": texts,
    "path": texts,
    "update": texts,
    "result": json,
    "request": json,
    "answer": json,
    "result_path": st.none() | texts,
    "internal": st.none() | texts,
    "action": st.builds(s.ScheduledRun, texts, json, texts, st.booleans()) | st.builds(s.ScheduledMessage, texts),
    "when": st.builds(s.OneShot, times) | st.builds(s.Cron, texts, texts),
}
SPECIAL: dict[tuple[type, str], st.SearchStrategy[object]] = {
    (s.ScheduleFiresSkipped, "reason"): st.sampled_from(["missed", "busy"]),
    (t.TaskMessaged, "message"): st.builds(t.TaskMessage, st.sampled_from(["to_task", "from_task"]), texts, times),
    (n.NotificationQueued, "notification"): st.builds(
        n.Notification,
        id=ids,
        kind=st.sampled_from(["task_failed", "generic"]),
        title=texts,
        body=texts,
        created_at=times,
    ),
}
EVENTS = (*codec.members(t.TaskEvent), *codec.members(n.NotificationEvent), *codec.members(s.ScheduleEvent))


def _events(kind: type) -> st.SearchStrategy[object]:
    return st.builds(
        kind, **{field.name: SPECIAL.get((kind, field.name), FIELDS.get(field.name)) for field in attrs.fields(kind)}
    )


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(EVENTS).flatmap(_events))
def test_every_event_comes_back_as_it_was(event: object) -> None:
    text = codec.dumps(codec.event_to_json(event))
    assert codec.event_from_json(codec.loads(text)) == event


def test_the_state_of_a_busy_session_survives_a_snapshot() -> None:
    """I12: tasks, notifications and schedules as plain JSON and back."""
    from test_task_properties import SESSIONS, Runtime

    runtime, choice = Runtime(), random.Random(7)
    for _ in range(600):
        runtime.random_step(choice)
    for session in SESSIONS:
        for value, kind in ((runtime.tasks[session], t.Tasks), (runtime.notifications[session], n.Notifications)):
            assert codec.from_json(codec.loads(codec.dumps(codec.to_json(value))), kind) == value
    schedules = s.Schedules()
    for command in (
        s.CreateSchedule(ScheduleId("a"), "t", s.Cron("* * * * *"), s.ScheduledMessage("x"), 0.0, "all"),
        s.CreateSchedule(ScheduleId("b"), "t", s.OneShot(9.0), s.ScheduledRun("dig", {}), 0.0),
        s.ClaimFires(200.0),
        s.CompleteFire(ScheduleId("b"), 1, 201.0),
    ):
        for event in s.decide(schedules, command):
            schedules = s.evolve(schedules, event)
    assert codec.from_json(codec.loads(codec.dumps(codec.to_json(schedules))), s.Schedules) == schedules
