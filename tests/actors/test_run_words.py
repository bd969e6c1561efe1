"""What a run says is put on the record of its task; where the session has no room for a word, it waits for the next time (B12, B13)."""

from __future__ import annotations

from typing import Any

import pytest

from trouper.actors.run import Run
from trouper.core.commands import Command
from trouper.core.ids import CallId, TaskId
from trouper.core.live import LiveEvent
from trouper.core.task_events import AddTaskArtifact, LinkTask, ReportTaskProgress, WriteTaskOutput
from trouper.core.task_record import LOG_MAX_CHARS


class Home:
    """A session that has room for so many words."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.taken: list[Command] = []

    def now(self) -> float:
        return 1.0

    def post(self, command: Command) -> bool:
        if len(self.taken) >= self.room:
            return False
        self.taken.append(command)
        return True

    def publish_live(self, event: LiveEvent) -> None:
        pass

    def redact_text(self, text: str) -> str:
        return text

    def said(self) -> None:
        pass

    def settled(self, text: str, paused: bool) -> int:
        return len(text)


def told(home: Home) -> list[Any]:
    """What each command says, in short."""
    said: list[Any] = []
    for command in home.taken:
        match command:
            case WriteTaskOutput(stream=stream, delta=delta):
                said.append((stream, delta[-5:]))
            case ReportTaskProgress(detail=detail, progress=progress):
                said.append((detail, None if progress is None else progress.current))
            case AddTaskArtifact(path=path):
                said.append(path)
            case LinkTask(link=link):
                said.append(link.target)
    return said


@pytest.mark.parametrize("room", range(6))
def test_what_finds_no_room_is_said_the_next_time_and_once(room: int) -> None:
    """B12, I25: a full mailbox refuses a word, and nothing of what the tool said is lost by that."""
    home = Home(room)
    run = Run(CallId("call_1_1_0"), home, None, None)  # type: ignore[arg-type]
    run.attach(TaskId("task_1"), 1)
    run.output("stdout", "first")
    run.output("stderr", "then!")
    run.status("digging")
    run.progress(3, 4, "", "")
    run.artifact("report.txt")
    run.link("order", "17")
    run.flush()
    assert len(home.taken) == min(room, 5) and run.has_news == (room < 5)
    home.room = 99
    run.flush()
    assert sorted(map(str, told(home))) == sorted(
        map(str, [("stdout", "first"), ("stderr", "then!"), ("digging", 3), "report.txt", "17"])
    )
    assert not run.has_news
    run.flush(final=True)
    assert len(home.taken) == 5


def test_the_last_of_an_endless_output_waits_for_room_too() -> None:
    """B12: past the cap of the log only its end is shown, which has to be the newest."""
    home = Home(99)
    run = Run(CallId("call_1_1_0"), home, None, None)  # type: ignore[arg-type]
    run.attach(TaskId("task_1"), 1)
    run.output("stdout", "x" * (LOG_MAX_CHARS + 1))
    run.flush()
    taken = len(home.taken)
    home.room = 0
    run.output("stdout", " more")
    run.flush()
    home.room = 99
    run.output("stdout", " last")
    run.flush()
    assert told(home)[taken:] == [("stdout", " last")] and home.taken[-1].delta == " more last"  # type: ignore[union-attr]
