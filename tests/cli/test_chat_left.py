"""What a chat says of what it leaves open, and of what it finds so."""

from __future__ import annotations

import pytest

from trouper.cli.chat_left import LINES_MAX, tasks_left, turn_found, turn_left, words_left
from trouper.core.calls import Call, CallPhase, Preparation
from trouper.core.history import History
from trouper.core.ids import CallId, SessionId, TaskId
from trouper.core.messages import NO_USAGE, Fault, Message, Outcome, Text, ToolAnswer, ToolCall
from trouper.core.recovery import UNKNOWN
from trouper.core.session import EndedTurn, Input, State, Turn
from trouper.core.settings import TurnOptions
from trouper.core.task_record import NewTask, Task, Tasks, TaskState
from trouper.core.values import changed

ATTEMPTS = 3


PAY = ToolCall(CallId("call_1_1_0"), "pay", {"amount": 99})
LOOK = ToolCall(CallId("call_1_1_1"), "look", {})
REPLY = Message("assistant", (Text("I pay."), PAY, LOOK))
NEWS = Message("user", (Text("A run has ended."),), "notification")
DIED = EndedTurn(1, "error", "", NO_USAGE, 1, Fault("process_ended", "the process ended"))


def answered(pay: str, look: str) -> Message:
    return Message(
        "tool", (ToolAnswer(PAY.id, "pay", Outcome.UNKNOWN, pay), ToolAnswer(LOOK.id, "look", Outcome.OK, look))
    )


def found(
    *messages: Message, last: EndedTurn | None = None, turn: Turn | None = None, taken_over: int = 0
) -> list[str]:
    history = History()
    for message in (Message("user", (Text("pay"),)), *messages):
        history = history.append(message)
    return turn_found(State(history=history, last=last, turn=turn), lambda call: call.name, taken_over)


def test_after_a_crash_only_the_calls_that_were_open_are_told_of() -> None:
    """J12: also when a notification was told since."""
    told = ["the last process ended in the middle of turn 1", "  ✗ pay (nobody knows whether it was done)"]
    assert found(REPLY, answered(UNKNOWN, "seen"), last=DIED) == told
    assert found(REPLY, answered(UNKNOWN, "seen"), NEWS, turn=Turn(2, 0.0, TurnOptions()), last=DIED) == told
    # It died in a later step, after the user had steered it.
    steered = Message("user", (Text("go on"),))
    assert found(REPLY, answered(UNKNOWN, "seen"), steered, last=DIED) == told[:1]


def test_a_turn_that_is_resumed_is_said_to_go_on_and_without_which_of_its_calls() -> None:
    """J12: its next words came as if nothing had been."""
    turn = Turn(1, 0.0, TurnOptions())
    told = ["turn 1 goes on: the last process ended in the middle of it", "  ✗ pay (nobody knows whether it was done)"]
    assert found(REPLY, answered(UNKNOWN, "seen"), turn=turn, taken_over=1) == told
    gone = ToolAnswer(PAY.id, "pay", Outcome.UNKNOWN, UNKNOWN)
    calls = (Call(PAY, Preparation(), CallPhase.ENDED, 1, gone), Call(LOOK, Preparation(), CallPhase.RUNNING, 2))
    assert found(REPLY, turn=changed(turn, calls=calls), taken_over=1) == told
    assert not found(REPLY, turn=changed(turn, calls=calls))  # One of our own, which somebody has begun meanwhile.


def test_many_calls_and_words_are_counted_rather_than_listed() -> None:
    """T11: and what is long is cut."""
    calls = tuple(
        Call(ToolCall(CallId(f"call_1_1_{number}"), "pay", {}), Preparation(), CallPhase.RUNNING, 1)
        for number in range(LINES_MAX + 2)
    )
    queue = tuple(Input(Message("user", (Text("x" * 5_000),))) for _ in range(LINES_MAX + 1))
    state = State(turn=Turn(1, 0.0, TurnOptions(), calls=calls), queue=queue)
    lines = turn_left(state, lambda call: call.name)
    assert lines[0] == "turn 1 is interrupted" and lines[-1] == "  and 2 more calls" and len(lines) == LINES_MAX + 2
    words = words_left(state)
    assert len(words) == LINES_MAX + 1 and words[-1] == "  and 1 more message" and max(map(len, words)) < 250


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
