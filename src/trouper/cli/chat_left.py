"""What a chat leaves behind when it is left, in lines for people. Pure: looks at a session's state, and not at more of it than is told."""

from __future__ import annotations

from collections.abc import Sequence

from trouper.cli.terminal import clean_line, plural
from trouper.core.session import State
from trouper.core.task_record import Task, TaskState

#: Of each kind; whoever has more of them open sees how many.
LINES_MAX = 5
_TITLE_MAX = 80


def tasks_left(state: State, attempts_max: int) -> list[str]:
    """What the next process does with the tasks that are live: takes them up, or ends them (B10)."""
    tasks = list(state.tasks.live.values())
    ends = {task.id: why for task in tasks if (why := _why_ended(task, attempts_max))}
    taken_up = len(tasks) - len(ends)
    lines = [f"{plural(taken_up, 'background task')} will be taken up at the next start"] if taken_up else []
    ended = [
        f"the next start ends {task.id}, for {ends[task.id]}: {clean_line(task.about.title, _TITLE_MAX)}"
        for task in tasks
        if task.id in ends
    ]
    return lines + few(ended, "task")


def _why_ended(task: Task, attempts_max: int) -> str:
    """Why the next process does not go on with a task; empty if it does."""
    if task.state is TaskState.QUEUED:
        return ""
    if task.cancel_requested_at is not None:
        return "it was cancelled"
    if not task.about.spec.get("reattachable"):
        return "it cannot safely be run a second time"
    return f"it has been tried {task.attempt} times" if task.attempt >= attempts_max else ""


def few(lines: Sequence[str], thing: str) -> list[str]:
    """Not more of them than somebody reads; of the others, how many there are."""
    more = len(lines) - LINES_MAX
    return [*lines[:LINES_MAX], *([f"  and {plural(more, f'more {thing}')}"] if more > 0 else [])]
