"""Journals of earlier versions, kept as files: opened, gone on with, and read by today's code (J14)."""

from __future__ import annotations

import shutil
from pathlib import Path

from trouper import open_runtime
from trouper.core.commands import SpillCalls
from trouper.core.task_record import TaskState
from trouper.models.scripted import Scripted, reply
from trouper.replay import open_journal

#: Two calls of one step that spilled, when each of them had a record of its own.
VERSION_1 = Path(__file__).parent / "journals" / "records-1"


async def test_a_session_of_version_1_goes_on(tmp_path: Path) -> None:
    """J14: its tasks and its words are there, with its snapshot and without."""
    for snapshots in (True, False):
        root = tmp_path / f"root-{snapshots}"
        shutil.copytree(VERSION_1, root)
        if not snapshots:
            shutil.rmtree(root / "snapshots")
        async with open_runtime(root, model=Scripted([reply("Here.")])) as runtime:
            session = await runtime.session("rest")
            assert [task.state for task in session.tasks()] == [TaskState.SUCCEEDED] * 2
            assert [len(task.entries) for task in session.tasks()] == [4, 4]
            assert [message.text for message in session.history if message.role == "assistant" and message.text] == [
                "They go on.",
                "Noted.",
            ]
            assert (await session.ask("still there?")).text == "Here."
        found = open_journal(root).verify()
        assert found.report.ok


async def test_calls_that_spilled_one_by_one_are_read_as_what_they_were(tmp_path: Path) -> None:
    """J14, I18: deciding on them again names what is recorded otherwise today."""
    root = tmp_path / "root"
    shutil.copytree(VERSION_1, root)
    journal = open_journal(root)
    spills = [record.cause for record in journal.records("rest") if type(record.cause) is SpillCalls]
    assert [[each.call for each in spill.calls] for spill in spills] == [["call_1_1_0"], ["call_1_1_1"]]
    assert all(spill.budget_ms == 50 and spill.owner.pid for spill in spills)
    assert "TaskSpilled" in str(journal.verify().divergences[0])
