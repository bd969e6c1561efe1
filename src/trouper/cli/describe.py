"""Events in one line each, for people: in lists of records, in the demo, in `journal replay`."""

from __future__ import annotations

from typing import Any

from trouper.cli.terminal import clean_line, plural
from trouper.core.events import (
    ApprovalGiven,
    ApprovalRequested,
    ArgumentsRepaired,
    BudgetWarned,
    CallEnded,
    CallStarted,
    CallWasLate,
    CompactionEnded,
    InputReceived,
    ModelFailed,
    ModelReplied,
    ModelRetried,
    RecoveryNoted,
    SessionClosed,
    SessionOpened,
    StepStarted,
    TurnEnded,
    TurnStarted,
)
from trouper.core.memory import MemoryForgotten, MemoryWritten
from trouper.core.messages import Message
from trouper.core.notification import (
    NotificationQueued,
    NotificationsAcknowledged,
    NotificationsDelivered,
    NotificationsExpired,
    NotificationsRequeued,
)
from trouper.core.schedule import (
    ScheduleCancelled,
    ScheduleCreated,
    ScheduleFireClaimed,
    ScheduleFireCompleted,
    ScheduleFireDeferred,
    ScheduleFireResumed,
)
from trouper.core.task_events import TaskCreated, TaskEnded, TaskProgressed, TaskReattached, TaskSpilled, TaskStarted

TEXT_MAX = 60
MISTAKE_MAX = 120


def describe(event: Any, text_max: int = TEXT_MAX) -> str:
    """The event's name and what matters of it."""
    name = type(event).__name__
    about = clean_line(_about(event, text_max))
    return f"{name} {about}" if about else name


def _about(event: Any, text_max: int) -> str:
    match event:
        case SessionOpened(session=session, parent=parent):
            return session + (f" from {parent}" if parent else "")
        case InputReceived(text=text, attachments=attachments, kind=kind):
            extra = f" + {plural(len(attachments), 'attachment')}" if attachments else ""
            return f"{'' if kind == 'normal' else kind + ' '}{quoted(text, text_max)}{extra}"
        case TurnStarted(turn=turn, carrying=carrying):
            return f"{turn}" + (f" carrying {plural(len(carrying), 'notification')}" if carrying else "")
        case StepStarted(turn=turn, step=step):
            return f"{turn}.{step}"
        case ModelReplied(turn=turn, step=step, message=message):
            return f"{turn}.{step} {said(message, text_max)}"
        case ModelRetried(turn=turn, step=step, attempt=attempt, fault=fault):
            return f"{turn}.{step} attempt {attempt}: {fault.kind}"
        case ModelFailed(turn=turn, step=step, fault=fault):
            return f"{turn}.{step} {fault.kind}: {clean_line(fault.message, text_max)}"
        case CallStarted(call=call, attempt=attempt):
            return f"{call}" + (f" attempt {attempt}" if attempt > 1 else "")
        case CallEnded(call=call, outcome=outcome, task=task, internal=internal):
            goes_on = f", goes on as {task}" if task else ""
            return f"{call} {outcome.value}{goes_on}{went_wrong(internal, ': ')}"
        case CallWasLate(call=call, outcome=outcome):
            return f"{call} {outcome.value}"
        case ArgumentsRepaired(call=call, notes=notes):
            return f"{call}: {clean_line('; '.join(notes), text_max)}"
        case ApprovalRequested(call=call) | ApprovalGiven(call=call):
            return str(call)
        case BudgetWarned(what=what, spent=spent, cap=cap):
            return f"{what} {spent:g} of {cap:g}"
        case CompactionEnded(how=how, tokens_before=before, tokens_after=after):
            return f"{how}, {before} -> {after} tokens"
        case TurnEnded(turn=turn, stop_reason=reason, fault=fault, partial=partial):
            why = f": {fault.kind}" if fault is not None else ""
            return f"{turn} {reason}{why}" + (f", kept {quoted(partial.text, text_max)}" if partial else "")
        case RecoveryNoted(open_turn=turn, open_calls=calls):
            found = [f"turn {turn}"] if turn is not None else []
            return f"open: {', '.join([*found, *calls]) or 'a compaction'}"
        case SessionClosed(reason=reason):
            return reason
        case _:
            return _about_background(event, text_max)


def _about_background(event: Any, text_max: int) -> str:
    match event:
        case TaskCreated(task=task):
            return f"{task.id} {quoted(task.title, text_max)}"
        case TaskSpilled(task=task, reason=reason):
            return f"{task.id} {quoted(reason, text_max)}"
        case TaskStarted(task_id=task, owner=owner):
            return f"{task} by process {owner.pid}"
        case TaskReattached(task_id=task, attempt=attempt, owner=owner):
            return f"{task} attempt {attempt} by process {owner.pid}"
        case TaskProgressed(task_id=task, detail=detail, progress=progress):
            far = f" {progress.current:g}" + (f"/{progress.total:g}" if progress.total else "") if progress else ""
            return f"{task}{far}" + (f" {quoted(detail, text_max)}" if detail else "")
        case TaskEnded(task_id=task, attempt=attempt, internal=internal):
            return f"{task} attempt {attempt}{went_wrong(internal, ': ')}"
        case NotificationQueued(notification=note):
            return f"{note.kind} {quoted(note.title, text_max)}"
        case NotificationsDelivered(ids=ids) | NotificationsAcknowledged(ids=ids):
            return plural(len(ids), "notification")
        case NotificationsRequeued(ids=ids, reason=reason) | NotificationsExpired(ids=ids, reason=reason):
            return f"{plural(len(ids), 'notification')}: {clean_line(reason, text_max)}"
        case ScheduleCreated(id=schedule, title=title):
            return f"{schedule} {quoted(title, text_max)}"
        case (
            ScheduleFireClaimed(schedule_id=schedule, fire=fire)
            | ScheduleFireCompleted(schedule_id=schedule, fire=fire)
            | ScheduleFireDeferred(schedule_id=schedule, fire=fire)
            | ScheduleFireResumed(schedule_id=schedule, fire=fire)
        ):
            return f"{schedule} fire {fire}"
        case ScheduleCancelled(schedule_id=schedule):
            return str(schedule)
        case MemoryWritten(memory=memory):
            return f"{memory.scope} {memory.key}"
        case MemoryForgotten(scope=scope, key=key):
            return f"{scope} {key}"
        case _:
            return str(getattr(event, "task_id", None) or getattr(event, "schedule_id", None) or "")


def went_wrong(internal: str | None, before: str = "") -> str:
    """Of what went wrong inside a tool, the line that says most: the last one of a traceback."""
    lines = [line.strip(" |+-") for line in (internal or "").splitlines()]
    last = next((line for line in reversed(lines) if line), "")
    return f"{before}{clean_line(last, MISTAKE_MAX)}" if last else ""


def quoted(text: str, limit: int = TEXT_MAX) -> str:
    return f'"{clean_line(text, limit)}"'


def said(message: Message, limit: int = TEXT_MAX) -> str:
    """A reply: its words, and the tools that it calls."""
    parts = [quoted(message.text, limit)] if message.text.strip() else []
    parts += [f"calls {clean_line(call.name, limit)}" for call in message.calls]
    return ", ".join(parts) or "nothing"
