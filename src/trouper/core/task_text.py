"""What the model, the user and `result.json` are told of a background run; and the tasks that a spill and a spawn make (B2-B4, B7, B9)."""

from __future__ import annotations

import json
from collections.abc import Mapping

from trouper.core.ids import CallId, SessionId, TaskId
from trouper.core.messages import Fault, Json, Outcome
from trouper.core.task_events import EndTask
from trouper.core.task_record import End, Link, NewTask, Output, Task

SUMMARY_MAX_CHARS = 4_000
ARGUMENTS_MAX_CHARS = 1_000
#: Longer results are in `result.json` only.
RESULT_KEPT_CHARS = 4_096
TITLE_MAX_CHARS = 200


def spilled_task(
    task_id: TaskId,
    session: SessionId,
    call_id: CallId,
    tool: str,
    arguments: Json,
    *,
    budget_ms: int,
    reattachable: bool,
    call_attempt: int = 1,
) -> NewTask:
    """The record of a call that took longer than the turn waits for it (B3)."""
    return NewTask(
        id=task_id,
        session=session,
        kind="tool",
        title=f"Background call of {tool}"[:TITLE_MAX_CHARS],
        spec={"tool": tool, "arguments": arguments, "reattachable": reattachable},
        instructions=(
            f"Call {call_id} of {tool!r} took longer than the {budget_ms} ms that the turn waits for it. "
            "The same execution goes on here until it ends."
        ),
        requested_by="inline budget",
        tags=("tool-call", tool),
        metadata={
            "call_id": call_id,
            "tool": tool,
            "arguments": arguments,
            "budget_ms": budget_ms,
            "call_attempt": call_attempt,
        },
        origin_call=call_id,
    )


def spawned_task(
    task_id: TaskId,
    run_id: str,
    session: SessionId,
    call_id: CallId | None,
    tool: str,
    arguments: Json,
    *,
    reattachable: bool,
    title: str = "",
    signal_on_completion: bool = True,
    links: tuple[Link, ...] = (),
    by: str = "",
) -> NewTask:
    """The record of a run that `spawn_background` or a schedule starts (B6, B7)."""
    return NewTask(
        id=task_id,
        session=session,
        kind="background",
        title=(title.strip() or f"Background run of {tool}")[:TITLE_MAX_CHARS],
        spec={"tool": tool, "arguments": arguments, "reattachable": reattachable},
        run_id=run_id,
        requested_by=by or ("spawn_background" if call_id is not None else "schedule"),
        tags=("background", tool),
        metadata={"call_id": call_id, "tool": tool, "arguments": arguments},
        origin_call=call_id,
        wake="on_terminal" if signal_on_completion else "silent",
        links=links,
    )


def spill_progress(tool: str, budget_ms: int) -> str:
    """The task's first progress entry."""
    return f"{tool!r} took longer than {budget_ms} ms and goes on in the background."


def spill_notice(tool: str, task_id: TaskId, budget_ms: int) -> Json:
    """The result that the model gets in place of the one it still has to wait for (B2)."""
    return {
        "status": "running",
        "task_id": task_id,
        "message": (
            f"{tool} takes longer than {budget_ms} ms and goes on in the background as task {task_id}. "
            "Carry on with the conversation; a notification will bring the result."
        ),
    }


def spawn_notice(task: NewTask, status: str = "running") -> Json:
    """What `spawn_background` returns at once (B7)."""
    return {
        "run_id": task.run_id,
        "task_id": task.id,
        "title": task.title,
        "tool": task.tool,
        "status": status,
        "signal_on_completion": task.wake != "silent",
        "artifact_dir": task.directory,
        "log_path": log_path(task),
        "result_path": result_path(task),
    }


def log_path(task: NewTask) -> str:
    return f"{task.directory}/output.log"


def result_path(task: NewTask) -> str:
    return f"{task.directory}/result.json"


def last_output(output: Output) -> str:
    """What a record knows of a log that nobody has any more."""
    if output.chars <= len(output.tail):
        return output.tail
    lost = output.chars - len(output.tail)
    return f"[system] {lost} characters before this were lost with the process; the journal has them\n{output.tail}"


def says_failed(content: Json) -> bool:
    """Many tools report failure in their answer: `{"ok": false, ...}` is a failed run (B4). Only a true `false` counts."""
    return isinstance(content, Mapping) and content.get("ok") is False


def end_of(outcome: Outcome, content: Json) -> End:
    match outcome:
        case Outcome.OK:
            return "failed" if says_failed(content) else "succeeded"
        case Outcome.ERROR | Outcome.TIMEOUT | Outcome.DENIED:
            return "failed"
        case Outcome.CANCELLED:
            return "cancelled"
        case Outcome.UNKNOWN:
            return "interrupted"


def end_command(
    task: Task,
    attempt: int,
    outcome: Outcome,
    content: Json,
    *,
    at: float,
    saved: bool = True,
    internal: str | None = None,
) -> EndTask:
    """How a run's end is reported: state, summary, error, and the result if it is short. `content` is what the model may see (L20, B9)."""
    end = end_of(outcome, content)
    return EndTask(
        task_id=task.id,
        attempt=attempt,
        end=end,
        at=at,
        summary=summary_text(task.about, end, content),
        result=content if end == "succeeded" and len(shown(content)) <= RESULT_KEPT_CHARS else None,
        result_path=result_path(task.about) if saved else None,
        error=None if end == "succeeded" else Fault(_fault_kind(outcome), clip(_failure(content), SUMMARY_MAX_CHARS)),
        internal=internal,
    )


def summary_text(task: NewTask, end: End, content: Json) -> str:
    """Which call it was, and what came of it."""
    call = f"Call:\n{task.tool}({clip(shown(task.spec.get('arguments')), ARGUMENTS_MAX_CHARS)})"
    match end:
        case "succeeded":
            return f"{call}\nReturn value:\n{clip(shown(_unwrap(content)), SUMMARY_MAX_CHARS)}"
        case "failed":
            return f"{call}\nError:\n{clip(_failure(content), SUMMARY_MAX_CHARS)}"
        case "cancelled":
            return f"{call}\nCancelled before it returned."
        case "interrupted":
            return f"{call}\nInterrupted: nobody knows how far it got."


def result_document(end: End, content: Json) -> Json:
    """What is written to `result.json`."""
    return {"status": end, "result": content} if end == "succeeded" else {"status": end, "error": _failure(content)}


def result_told(task: Task) -> Json:
    """What a run that succeeded has come to: its result, or, of one too long for the record, what the model is told of it, which says where the whole is."""
    if task.result is not None or task.summary == summary_text(task.about, "succeeded", None):
        return task.result
    return notification_body(task)


def notification_title(task: Task) -> str:
    return f"Task {task.state.value}: {task.about.title}"


def notification_body(task: Task) -> str:
    """The one signal of a run's end: what it was, what came of it, and where to read more (B9)."""
    about = task.about
    lines = [f"run: {about.run_id or about.id}", f"task: {about.id}", f"tool: {about.tool}"]
    if task.result_path is not None:
        lines += [f"result: {task.result_path}", f"log: {log_path(about)}"]
    return "\n".join([*lines, task.summary])


def _failure(content: Json) -> str:
    if isinstance(content, Mapping) and content.get("error") is not None:
        return shown(content["error"])
    return "no reason was given" if content is None else shown(content)


def _unwrap(content: Json) -> Json:
    """`{"ok": true, "result": x}` says no more than x."""
    if isinstance(content, Mapping) and content.get("ok") is True and "result" in content:
        return content["result"]
    return content


def _fault_kind(outcome: Outcome) -> str:
    return "error" if outcome is Outcome.OK else outcome.value


def shown(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)


def clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}\n[{len(text) - limit} more characters]"
