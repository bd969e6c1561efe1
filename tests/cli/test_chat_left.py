"""What a chat says of what it leaves behind."""

from __future__ import annotations

import pytest

from trouper.cli.chat_left import LINES_MAX, tasks_left
from trouper.core.ids import SessionId, TaskId
from trouper.core.session import State
from trouper.core.task_record import NewTask, Task, Tasks, TaskState

ATTEMPTS = 3


def task(
    name: str, *, again: bool, state: TaskState = TaskState.RUNNING, attempt: int = 1, cancelled: bool = False
) -> Task:
    about = NewTask(TaskId(name), SessionId("main"), "tool", f"Run \x1b[31m{name}", {"reattachable": again})
    return Task(about, state, 0.0, 0.0, attempt=attempt, cancel_requested_at=1.0 if cancelled else None)


def left(*tasks: Task) -> list[str]:
    return tasks_left(State(tasks=Tasks({each.id: each for each in tasks})), ATTEMPTS)


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (task("a", again=True), "1 background task will be taken up at the next start"),
        (task("a", again=False, state=TaskState.QUEUED), "1 background task will be taken up at the next start"),
        (task("a", again=False), "the next start ends a, for it cannot safely be run a second time: Run a"),
        (task("a", again=True, attempt=3), "the next start ends a, for it has been tried 3 times: Run a"),
        (task("a", again=True, cancelled=True), "the next start ends a, for it was cancelled: Run a"),
    ],
    ids=["may run again", "has not begun", "may not", "often enough", "cancelled"],
)
def test_of_each_task_it_is_said_what_the_next_start_does_with_it(one: Task, said: str) -> None:
    """B10: as recovery decides."""
    assert left(one) == [said]


def test_many_tasks_that_end_are_counted_rather_than_listed() -> None:
    ended = left(*(task(f"task{number}", again=False) for number in range(LINES_MAX + 3)))
    assert len(ended) == LINES_MAX + 1 and ended[-1] == "  and 3 more tasks"
    assert not left()
