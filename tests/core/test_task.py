"""Tasks (B2-B5, B8, B10-B13) at the level of decide and evolve."""

from __future__ import annotations

from functools import reduce

import pytest
from attrs import evolve as change

from trouper._errors import CommandRejected, InternalError
from trouper.core import task as t
from trouper.core.ids import CallId, SessionId, TaskId
from trouper.core.lifecycle import draw_mermaid, terminal_states
from trouper.core.messages import Fault, Outcome
from trouper.core.task_text import (
    clip,
    end_command,
    end_of,
    log_path,
    notification_body,
    notification_title,
    result_document,
    spawn_notice,
    spawned_task,
    spill_notice,
    spill_progress,
    spilled_task,
    summary_text,
)

OWNER = t.Owner("instance-1", 100, 0.0)
NEXT_OWNER = t.Owner("instance-2", 101, 50.0)
SESSION = SessionId("s")
S = t.TaskState


def new(number: int = 1, **changes: object) -> t.NewTask:
    task = spawned_task(
        TaskId(f"task_{number}"), f"bg_{number}", SESSION, CallId("call_1_0_0"), "dig", {"depth": 2}, reattachable=True
    )
    return change(task, **changes)  # type: ignore[arg-type]


def run(tasks: t.Tasks, *commands: t.TaskCommand) -> t.Tasks:
    for command in commands:
        tasks = reduce(t.evolve, t.decide(tasks, command), tasks)
    return tasks


def running(number: int = 1, **changes: object) -> t.Tasks:
    return run(t.Tasks(), t.CreateTask(new(number, **changes), at=1.0, owner=OWNER))


def the(tasks: t.Tasks, number: int = 1) -> t.Task:
    found = tasks.get(f"task_{number}")
    assert found is not None
    return found


ID = TaskId("task_1")


# --- lifecycle ---


def test_the_states_and_the_final_ones_are_those_of_the_spec() -> None:
    """B11."""
    assert [state.value for state in S] == [
        "queued", "running", "awaiting_input", "succeeded", "failed", "cancelled", "interrupted",
    ]  # fmt: skip
    assert terminal_states(t.TRANSITIONS, S) == t.TERMINAL == {S.SUCCEEDED, S.FAILED, S.CANCELLED, S.INTERRUPTED}


def test_the_table_draws_itself_for_the_docs() -> None:
    """B11: shown in the docs."""
    drawn = draw_mermaid(t.TRANSITIONS)
    assert "running --> awaiting_input: TaskInputRequested" in drawn
    assert "awaiting_input --> running: TaskInputAnswered, TaskReattached" in drawn
    assert "interrupted --> [*]" in drawn


def test_a_task_with_an_owner_starts_at_once() -> None:
    task = the(running())
    assert (task.state, task.attempt, task.owner) == (S.RUNNING, 1, OWNER)
    assert (task.created_at, task.started_at, task.heartbeat_at, task.finished_at) == (1.0, 1.0, 1.0, None)


def test_a_task_without_one_waits_until_it_is_started() -> None:
    tasks = run(t.Tasks(), t.CreateTask(new(), at=1.0))
    assert the(tasks).state is S.QUEUED and tasks.active == 0 and t.outstanding(tasks) == {}
    tasks = run(tasks, t.StartTask(ID, OWNER, at=2.0))
    assert the(tasks).state is S.RUNNING and the(tasks).started_at == 2.0
    assert t.decide(tasks, t.StartTask(ID, OWNER, at=3.0)) == ()


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled", "interrupted"])
def test_each_end_is_final(end: t.End) -> None:
    """B11, I28: terminal is final; what comes after changes nothing but a count."""
    ended = run(running(), t.EndTask(ID, 1, end, at=5.0, summary="over"))
    task = the(ended)
    assert task.state.value == end and task.finished_at == 5.0 and not ended.live
    later = run(
        ended,
        t.EndTask(ID, 1, "failed", at=6.0),
        t.ReportTaskProgress(ID, 1, at=6.0, detail="still here"),
        t.WriteTaskOutput(ID, 1, "stdout", "boo", at=6.0),
        t.BeatTask(ID, 1, at=6.0),
        t.CancelTask(ID, at=6.0),
        t.RecoverTask(ID, NEXT_OWNER, reattachable=True, at=6.0),
    )
    assert change(the(later), refused=0, late=(), entries=task.entries) == task
    assert the(later).refused == 3


def test_an_event_that_the_table_does_not_know_is_refused_by_evolve() -> None:
    """B11: the legal moves are enforced, not only drawn."""
    ended = run(running(), t.EndTask(ID, 1, "succeeded", at=5.0))
    with pytest.raises(InternalError, match="TaskStarted has no move from 'succeeded'"):
        t.evolve(ended, t.TaskStarted(ID, 2, OWNER, 6.0))


def test_a_request_for_input_waits_for_an_answer() -> None:
    """B11: input request -> awaiting_input; an answer -> running."""
    tasks = run(running(), t.AskTaskInput(ID, 1, {"question": "which?"}, at=2.0))
    assert the(tasks).state is S.AWAITING_INPUT and the(tasks).input_request == {"question": "which?"}
    with pytest.raises(CommandRejected, match="has asked already"):
        t.decide(tasks, t.AskTaskInput(ID, 1, "again", at=2.5))
    tasks = run(tasks, t.AnswerTaskInput(ID, "this one", at=3.0))
    assert the(tasks).state is S.RUNNING and the(tasks).input_request is None
    with pytest.raises(CommandRejected, match="asks for nothing"):
        t.decide(tasks, t.AnswerTaskInput(ID, "late", at=4.0))


# --- limits ---


def test_the_sixth_run_of_a_session_is_refused_until_one_ends() -> None:
    """B6, I19."""
    tasks = t.Tasks()
    for number in range(5):
        tasks = run(tasks, t.CreateTask(new(number), at=1.0, owner=OWNER))
    with pytest.raises(CommandRejected, match="5 is the limit; wait for one to end, or cancel one") as caught:
        t.decide(tasks, t.CreateTask(new(9), at=2.0, owner=OWNER))
    assert caught.value.facts["scope"] == "session"
    tasks = run(tasks, t.EndTask(TaskId("task_0"), 1, "failed", at=3.0), t.CreateTask(new(9), at=4.0, owner=OWNER))
    assert tasks.active == 5


def test_the_65th_run_of_a_runtime_is_refused() -> None:
    """B6, I19."""
    assert t.decide(t.Tasks(), t.CreateTask(new(), at=1.0, owner=OWNER, active_in_runtime=63))
    with pytest.raises(CommandRejected, match="64 is the limit") as caught:
        t.decide(t.Tasks(), t.CreateTask(new(), at=1.0, owner=OWNER, active_in_runtime=64))
    assert caught.value.facts["scope"] == "runtime"


def test_a_run_that_awaits_input_keeps_its_permit_and_a_queued_one_has_none() -> None:
    limits = t.TaskLimits(per_session=1)
    tasks = run(running(), t.AskTaskInput(ID, 1, "?", at=2.0), t.CreateTask(new(2), at=2.0, limits=limits))
    assert tasks.active == 1
    with pytest.raises(CommandRejected, match="active background runs"):
        t.decide(tasks, t.StartTask(TaskId("task_2"), OWNER, at=3.0, limits=limits))


def test_the_queue_is_bounded() -> None:
    """I25."""
    limits = t.TaskLimits(queued=2)
    tasks = run(t.Tasks(), t.CreateTask(new(1), at=1.0, limits=limits), t.CreateTask(new(2), at=1.0, limits=limits))
    with pytest.raises(CommandRejected, match="queued tasks"):
        t.decide(tasks, t.CreateTask(new(3), at=1.0, limits=limits))


def test_an_id_is_used_once() -> None:
    with pytest.raises(CommandRejected, match="exists already"):
        t.decide(running(), t.CreateTask(new(), at=2.0))


# --- fencing and recovery ---


def test_a_superseded_attempt_writes_nothing_its_end_included() -> None:
    """B8, B11, I28, I9: refused, counted, and a late end recorded as late."""
    tasks = run(running(), t.RecoverTask(ID, NEXT_OWNER, reattachable=True, at=60.0))
    before = the(tasks)
    assert (before.attempt, before.owner) == (2, NEXT_OWNER)
    tasks = run(
        tasks,
        t.ReportTaskProgress(ID, 1, at=61.0, detail="stale"),
        t.WriteTaskOutput(ID, 1, "stdout", "stale", at=61.0),
        t.BeatTask(ID, 1, at=61.0),
        t.AddTaskArtifact(ID, 1, "stale.txt", at=61.0),
        t.AskTaskInput(ID, 1, "stale?", at=61.0),
        t.MessageTask(ID, "from_task", "stale", at=61.0, attempt=1),
        t.EndTask(ID, 1, "succeeded", at=62.0, summary="stale"),
    )
    after = the(tasks)
    assert after.refused == 6 and after.late == (1,)
    assert change(after, refused=0, late=(), entries=before.entries) == before
    assert t.decide(tasks, t.EndTask(ID, 1, "succeeded", at=63.0)) == ()
    assert the(run(tasks, t.EndTask(ID, 2, "succeeded", at=64.0))).state is S.SUCCEEDED


def test_refusals_are_counted_up_to_a_bound() -> None:
    """A fenced-off writer must not fill the journal."""
    tasks = run(running(), t.RecoverTask(ID, NEXT_OWNER, reattachable=True, at=60.0))
    for _ in range(40):
        tasks = run(tasks, t.WriteTaskOutput(ID, 1, "stdout", "x", at=61.0))
    assert the(tasks).refused == t.REFUSALS_MAX


def test_recovery_tries_three_times_then_interrupts() -> None:
    """B10: attempt + 1, at most 3."""
    tasks = running()
    for number in (2, 3):
        owner = t.Owner(f"instance-{number}", number, 0.0)
        tasks = run(tasks, t.RecoverTask(ID, owner, reattachable=True, at=60.0 * number))
        assert (the(tasks).state, the(tasks).attempt) == (S.RUNNING, number)
    tasks = run(tasks, t.RecoverTask(ID, t.Owner("instance-4", 4, 0.0), reattachable=True, at=300.0))
    assert the(tasks).state is S.INTERRUPTED and "3 is the limit" in the(tasks).summary


def test_a_tool_with_side_effects_is_not_run_again() -> None:
    """B10, I4: it ends as interrupted."""
    tasks = run(running(), t.RecoverTask(ID, NEXT_OWNER, reattachable=False, at=60.0))
    task = the(tasks)
    assert task.state is S.INTERRUPTED and task.attempt == 1
    assert task.error is not None and task.error.kind == "interrupted"


def test_recovery_twice_equals_once() -> None:
    """J12."""
    once = run(running(), t.RecoverTask(ID, NEXT_OWNER, reattachable=True, at=60.0))
    assert t.decide(once, t.RecoverTask(ID, NEXT_OWNER, reattachable=True, at=61.0)) == ()


def test_a_run_that_was_being_cancelled_ends_cancelled_after_a_crash() -> None:
    tasks = run(running(), t.CancelTask(ID, at=2.0), t.RecoverTask(ID, NEXT_OWNER, reattachable=True, at=60.0))
    assert the(tasks).state is S.CANCELLED


def test_recovery_asks_again_for_input_that_was_not_given() -> None:
    tasks = run(
        running(), t.AskTaskInput(ID, 1, "?", at=2.0), t.RecoverTask(ID, NEXT_OWNER, reattachable=True, at=60.0)
    )
    assert the(tasks).state is S.RUNNING and the(tasks).input_request is None


def test_recovery_needs_no_second_permit_but_heeds_lowered_limits() -> None:
    """B10: same permits; I19."""
    tasks = run(running(1), t.CreateTask(new(2), at=1.0, owner=OWNER))
    two = t.TaskLimits(per_session=2, per_runtime=2)
    recover = t.RecoverTask(ID, NEXT_OWNER, reattachable=True, at=60.0, active_in_runtime=2, limits=two)
    assert isinstance(t.decide(tasks, recover)[0], t.TaskReattached)
    one = t.TaskLimits(per_session=1)
    tasks = run(tasks, change(recover, limits=one), change(recover, limits=one, task_id=TaskId("task_2")))
    assert the(tasks, 1).state is S.INTERRUPTED and the(tasks, 2).state is S.RUNNING


# --- cancelling ---


def test_cancelling_a_run_stops_wanting_it_and_bounds_the_wait() -> None:
    """B5, I24: the run's scope goes at once; the end comes within the grace period even if the tool ignores it."""
    tasks = running()
    assert t.outstanding(tasks) == {("run", ID, 1): t.RunTask(ID, 1)}
    tasks = run(tasks, t.CancelTask(ID, at=10.0, reason="no longer needed"))
    assert t.outstanding(tasks) == {("stop", ID, 1): t.AwaitTaskStopped(ID, 1)}
    assert t.decide(tasks, t.CancelTask(ID, at=11.0)) == ()
    tasks = run(tasks, t.EndTask(ID, 1, "cancelled", at=15.0))
    assert t.outstanding(tasks) == {}
    late = t.decide(tasks, t.EndTask(ID, 1, "succeeded", at=20.0, summary="did it after all"))
    assert late == (t.TaskEndedLate(ID, 1, "succeeded", 20.0, "did it after all"),)
    assert the(reduce(t.evolve, late, tasks)).state is S.CANCELLED


def test_cancelling_a_queued_task_ends_it() -> None:
    tasks = run(t.Tasks(), t.CreateTask(new(), at=1.0), t.CancelTask(ID, at=2.0))
    assert the(tasks).state is S.CANCELLED


def test_cancelling_what_does_not_exist_says_so() -> None:
    with pytest.raises(CommandRejected, match="there is no task 'task_7'"):
        t.decide(t.Tasks(), t.CancelTask(TaskId("task_7"), at=1.0))


def test_a_session_that_closes_leaves_no_task() -> None:
    """I20."""
    tasks = run(running(1), t.CreateTask(new(2), at=1.0))
    tasks = reduce(t.evolve, t.abandon(tasks, 9.0, "session closed"), tasks)
    assert not tasks.live and {task.state for task in tasks} == {S.CANCELLED}


# --- what a run says ---


def test_progress_status_and_heartbeat_are_kept() -> None:
    """B8, B12."""
    tasks = run(
        running(),
        t.ReportTaskProgress(ID, 1, at=2.0, detail="digging"),
        t.ReportTaskProgress(ID, 1, at=3.0, progress=t.Progress(1, 4, "m", "depth")),
        t.BeatTask(ID, 1, at=4.0),
        t.AddTaskArtifact(ID, 1, "hole.png", at=5.0),
        t.AddTaskArtifact(ID, 1, "hole.png", at=5.5),
        t.LinkTask(ID, t.Link("schedule", "sch_1"), at=6.0),
    )
    task = the(tasks)
    assert task.detail == "digging" and task.progress == t.Progress(1, 4, "m", "depth")
    assert task.heartbeat_at == 4.0 and task.updated_at == 6.0
    assert task.artifacts == ("hole.png",) and task.links == (t.Link("schedule", "sch_1"),)
    assert [entry.what for entry in task.entries] == ["created", "started", "progress", "artifact"]


def test_messages_go_both_ways() -> None:
    """B12."""
    tasks = run(
        running(),
        t.MessageTask(ID, "to_task", "hurry", at=2.0),
        t.MessageTask(ID, "from_task", "ok", at=3.0, attempt=1),
    )
    assert [(m.direction, m.text) for m in the(tasks).messages] == [("to_task", "hurry"), ("from_task", "ok")]
    ended = run(tasks, t.EndTask(ID, 1, "succeeded", at=4.0))
    with pytest.raises(CommandRejected, match="succeeded and cannot be sent messages"):
        t.decide(ended, t.MessageTask(ID, "to_task", "still there?", at=5.0))


def test_what_the_state_keeps_of_the_past_is_bounded() -> None:
    tasks = running()
    for number in range(200):
        tasks = run(tasks, t.MessageTask(ID, "to_task", str(number), at=2.0))
    task = the(tasks)
    assert len(task.messages) == t.MESSAGES_MAX and len(task.entries) == t.ENTRIES_MAX
    assert task.messages[-1].text == "199"
    assert [entry.n for entry in task.entries] == list(range(152, 202))  # Numbers go on, so ids can be made of them.


def test_the_log_is_capped_with_one_visible_note_and_the_tail_stays_live() -> None:
    """B8: 262,144 characters, a truncation note, a live tail of 2,048."""
    output, log = t.Output(), ""
    for number in range(300):
        output, text = t.append_output(output, "stdout", f"{number:03}" + "x" * 1_021)
        log += text
    assert log.count("[system] output truncated at 262144 characters") == 1
    assert len(log) == t.LOG_MAX_CHARS + len("\n[system] output truncated at 262144 characters\n")
    assert output.chars == t.LOG_MAX_CHARS and output.truncated
    assert len(output.tail) == t.TAIL_MAX_CHARS and "299x" in output.tail


def test_output_names_its_stream_when_it_changes() -> None:
    output, first = t.append_output(t.Output(), "stdout", "a\nb")
    output, second = t.append_output(output, "stdout", "c\n")
    output, third = t.append_output(output, "stderr", "oh")
    assert first + second + third == "[stdout] a\nbc\n[stderr] oh"
    assert t.append_output(output, "stderr", "") == (output, "")


def test_output_past_the_cap_costs_the_journal_no_more_than_the_tail() -> None:
    tasks = run(running(), t.WriteTaskOutput(ID, 1, "stdout", "x" * (t.LOG_MAX_CHARS + 1), at=2.0))
    (written,) = t.decide(tasks, t.WriteTaskOutput(ID, 1, "stdout", "y" * 50_000, at=3.0))
    assert isinstance(written, t.TaskOutputWritten) and len(written.delta) == t.TAIL_MAX_CHARS


# --- lists and retention ---


def test_lists_filter_and_page_newest_first() -> None:
    """B13."""
    tasks = t.Tasks()
    for number in range(10):
        command = t.CreateTask(new(number, kind="tool" if number % 2 else "background"), at=float(number))
        tasks = run(tasks, command)
    tasks = run(tasks, t.CancelTask(TaskId("task_3"), at=50.0))
    first = t.listing(tasks, limit=4)
    assert [task.id for task in first.tasks] == ["task_9", "task_8", "task_7", "task_6"]
    tasks = run(tasks, t.CreateTask(new(10), at=60.0))  # A newcomer does not shift the pages.
    second = t.listing(tasks, limit=4, before=first.before)
    third = t.listing(tasks, limit=4, before=second.before)
    assert [task.id for task in (*second.tasks, *third.tasks)] == [f"task_{n}" for n in (5, 4, 3, 2, 1, 0)]
    assert third.before is None
    assert [task.id for task in t.listing(tasks, state=S.CANCELLED).tasks] == ["task_3"]
    assert len(t.listing(tasks, kind="tool").tasks) == 5
    assert t.listing(tasks, session=SessionId("other")).tasks == ()


def test_ended_tasks_are_kept_until_they_are_swept() -> None:
    """B13: 30 days, by an explicit sweep; 0 = for ever."""
    day = 86_400.0
    tasks = run(running(1), t.EndTask(ID, 1, "succeeded", at=day), t.CreateTask(new(2), at=day, owner=OWNER))
    assert t.decide(tasks, t.SweepTasks(at=30.9 * day)) == ()
    assert t.decide(tasks, t.SweepTasks(at=99 * day, limits=t.TaskLimits(retention_s=0))) == ()
    swept = run(tasks, t.SweepTasks(at=31 * day))
    assert swept.get("task_1") is None and swept.archived == 1 and the(swept, 2).state is S.RUNNING
    assert t.decide(swept, t.EndTask(ID, 1, "failed", at=32 * day)) == ()  # Long gone: nothing to be late for.


# --- texts ---


def test_a_spilled_call_makes_a_task_that_says_all_about_itself() -> None:
    """B3."""
    about = spilled_task(
        TaskId("task_1"), SESSION, CallId("call_1_0_0"), "dig", {"depth": 2}, budget_ms=300, reattachable=False
    )
    assert about.metadata == {
        "call_id": "call_1_0_0",
        "tool": "dig",
        "arguments": {"depth": 2},
        "budget_ms": 300,
        "call_attempt": 1,
    }
    assert about.origin_call == "call_1_0_0" and about.requested_by and about.tags == ("tool-call", "dig")
    assert "300 ms" in about.instructions and about.tool == "dig" and about.directory == ".background/task_1"
    assert "300 ms" in spill_progress("dig", 300)


def test_the_spill_notice_says_how_long_that_it_goes_on_and_as_which_task() -> None:
    """B2."""
    notice = spill_notice("dig", TaskId("task_1"), 300)
    assert notice["task_id"] == "task_1"
    for words in ("takes longer than 300 ms", "goes on in the background", "task_1", "notification"):
        assert words in notice["message"]


def test_a_spawn_returns_its_ids_and_paths() -> None:
    """B7."""
    notice = spawn_notice(new())
    assert notice["run_id"] == "bg_1" and notice["task_id"] == "task_1" and notice["status"] == "running"
    assert notice["artifact_dir"] == ".background/bg_1"
    assert notice["log_path"] == ".background/bg_1/output.log" == log_path(new())
    assert notice["result_path"] == ".background/bg_1/result.json"


def test_a_title_is_given_if_none_is() -> None:
    assert (
        spawned_task(ID, "bg_1", SESSION, None, "dig", {}, reattachable=True, title="  ").title
        == "Background run of dig"
    )


@pytest.mark.parametrize(
    ("outcome", "content", "end"),
    [
        (Outcome.OK, {"ok": True, "result": 1}, "succeeded"),
        (Outcome.OK, {"ok": False, "error": "boom"}, "failed"),
        (Outcome.OK, {"ok": None}, "succeeded"),
        (Outcome.OK, {"ok": 0}, "succeeded"),
        (Outcome.OK, "ok=false", "succeeded"),
        (Outcome.OK, None, "succeeded"),
        (Outcome.ERROR, "boom", "failed"),
        (Outcome.TIMEOUT, "too slow", "failed"),
        (Outcome.DENIED, "no", "failed"),
        (Outcome.CANCELLED, None, "cancelled"),
        (Outcome.UNKNOWN, None, "interrupted"),
    ],
)
def test_how_a_run_ends(outcome: Outcome, content: object, end: t.End) -> None:
    """B4: a response with ok=false counts as failed; only a true `false` does."""
    assert end_of(outcome, content) == end


def test_the_summary_shows_call_and_return_value() -> None:
    """B4."""
    text = summary_text(new(), "succeeded", {"ok": True, "result": {"found": "gold"}})
    assert "dig(" in text and '"depth": 2' in text and "Return value:" in text and '"found": "gold"' in text
    assert "Error:\nboom" in summary_text(new(), "failed", {"ok": False, "error": "boom"})


def test_an_end_carries_short_results_and_leaves_long_ones_on_disk() -> None:
    short = end_command(the(running()), 1, Outcome.OK, {"n": 1}, at=5.0)
    assert short.result == {"n": 1} and short.result_path == ".background/bg_1/result.json" and short.error is None
    long = end_command(the(running()), 1, Outcome.OK, "x" * 100_000, at=5.0)
    assert long.result is None and len(long.summary) < 6_000 and "more characters" in long.summary
    failed = end_command(the(running()), 1, Outcome.TIMEOUT, "took 120 s", at=5.0)
    assert failed.error == Fault("timeout", "took 120 s")


def test_result_json_says_status_and_result_or_error() -> None:
    """B9."""
    assert result_document("succeeded", {"n": 1}) == {"status": "succeeded", "result": {"n": 1}}
    assert result_document("failed", "boom") == {"status": "failed", "error": "boom"}


def test_the_signal_names_run_title_tool_summary_and_paths() -> None:
    """B9."""
    tasks = running()
    task = the(run(tasks, end_command(the(tasks), 1, Outcome.OK, "gold", at=5.0)))
    body = notification_body(task)
    assert notification_title(task) == "Task succeeded: Background run of dig"
    for part in ("bg_1", "task_1", "tool: dig", "gold", ".background/bg_1/result.json", ".background/bg_1/output.log"):
        assert part in body


def test_clipped_text_says_how_much_is_missing() -> None:
    assert clip("abcdef", 4) == "abcd\n[2 more characters]" and clip("abcd", 4) == "abcd"
