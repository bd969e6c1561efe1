"""Records as plain data: what tools hand to the model, and programs read as JSON.

All of it copies: a tool may well take something out of what it was shown, and the state changes by records only (I10).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from trouper.core import task_text
from trouper.core.messages import Json
from trouper.core.schedule import Cron, Schedule, ScheduledRun
from trouper.core.task_record import Task
from trouper.tools.structure import fresh


def instant(at: float | None) -> str | None:
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def task_line(task: Task) -> Mapping[str, Json]:
    """A task in a list."""
    found: dict[str, Json] = {
        "task_id": task.id,
        "title": task.about.title,
        "kind": task.about.kind,
        "tool": task.about.tool,
        "state": task.state.value,
        "created": instant(task.created_at),
        "finished": instant(task.finished_at),
    }
    if task.detail and not task.ended:
        found["detail"] = task.detail
    if task.progress is not None and not task.ended:
        found["progress"] = _progress(task)
    return {key: value for key, value in found.items() if value is not None}


def task_detail(task: Task, entries: int = 20) -> Mapping[str, Json]:
    """All that is worth knowing of a task (B12)."""
    about = task.about
    found: dict[str, Json] = {
        **task_line(task),
        "run_id": about.run_id or about.id,
        "arguments": fresh(about.spec.get("arguments")),
        "instructions": about.instructions or None,
        "requested_by": about.requested_by,
        "attempt": task.attempt,
        "started": instant(task.started_at),
        "heartbeat": instant(task.heartbeat_at),
        "summary": task.summary or None,
        "result": fresh(task.result),
        "result_path": task.result_path,
        "log_path": task_text.log_path(about) if task.result_path is not None else None,
        "error": None if task.error is None else {"kind": task.error.kind, "message": task.error.message},
        "input_request": fresh(task.input_request),
        "cancel_requested": instant(task.cancel_requested_at),
        "output_tail": task.output.tail or None,
        "artifacts": list(task.artifacts) or None,
        "links": [{"rel": link.rel, "target": link.target} for link in task.links] or None,
        "messages": [
            {"direction": each.direction, "text": each.text, "at": instant(each.at)} for each in task.messages[-20:]
        ]
        or None,
        "events": [
            {"at": instant(entry.at), "what": entry.what, **({"text": entry.text} if entry.text else {})}
            for entry in task.entries[-entries:]
        ]
        if entries > 0
        else None,
    }
    return {key: value for key, value in found.items() if value is not None}


def schedule_line(schedule: Schedule) -> Mapping[str, Json]:
    """A schedule, with the runs that it has started (B19)."""
    when, action = schedule.when, schedule.action
    found: dict[str, Json] = {
        "schedule_id": schedule.id,
        "title": schedule.title,
        "state": schedule.state.value,
        "next": instant(schedule.next_at),
        "fires": schedule.fires,
        "missed": schedule.missed,
        "skipped": schedule.skipped or None,
        "runs": list(schedule.runs) or None,
    }
    if isinstance(when, Cron):
        found |= {"cron": when.expression, "timezone": when.zone}
    else:
        found["at"] = instant(when.at)
    if isinstance(action, ScheduledRun):
        found |= {"tool": action.tool, "arguments": fresh(action.arguments)}
    else:
        found["message"] = action.text
    return {key: value for key, value in found.items() if value is not None}


def _progress(task: Task) -> Json:
    progress = task.progress
    assert progress is not None
    shown = {"current": progress.current, "total": progress.total, "unit": progress.unit, "label": progress.label}
    return {key: value for key, value in shown.items() if value is not None}
