"""`trouper tasks`: list, show and cancel background runs. Looking needs no lock; changes go through the process that owns the root."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from trouper import codec
from trouper._errors import UsageError
from trouper.cli.arguments import Parser, add_ls, add_tools, carry_out, count, finish, root_of, text, to_type
from trouper.cli.changing import change
from trouper.cli.owner import owner_of
from trouper.cli.terminal import Terminal, clean, clean_line, when
from trouper.cli.views import open_view
from trouper.core.ids import SessionId
from trouper.core.task_record import TERMINAL, Task, TaskState, listing


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="trouper tasks", description=__doc__)
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)
    _filters(parser, inherited=False)
    ls = add_ls(commands, "all tasks, newest first (the default)")
    _filters(ls)
    show = commands.add_parser("show", help="one task: state, progress, result, past")
    show.add_argument("task", metavar="ID")
    finish(show, _show)
    cancel = commands.add_parser("cancel", help="stop a run; what it had done so far stays done")
    cancel.add_argument("task", metavar="ID")
    cancel.add_argument("--reason", type=text, default="cancelled on the command line", help="kept in the journal")
    add_tools(cancel)
    finish(cancel, _cancel)
    return carry_out(parser, arguments)


def _filters(parser: argparse.ArgumentParser, *, inherited: bool = True) -> None:
    parser.add_argument("--state", choices=[state.value for state in TaskState], help="only those in this state")
    parser.add_argument("--session", metavar="ID", help="only this session's")
    parser.add_argument("--kind", help="only of this kind: tool (a spilled call), background, subagent, monitor")
    default = argparse.SUPPRESS if inherited else 50
    parser.add_argument("--limit", type=count, default=default, metavar="N", help="at most so many (default 50)")
    finish(parser, _ls, inherited=inherited)


def _ls(options: argparse.Namespace) -> int:
    root, out = root_of(options), Terminal()
    with open_view(root) as view:
        found = [task for _, state in view.states(options.session) for task in state.tasks]
    # Asked behind the records: what is in them is older than any process that has come since.
    owner = owner_of(root)
    page = listing(
        found,
        state=TaskState(options.state) if options.state else None,
        kind=options.kind,
        session=SessionId(options.session) if options.session else None,
        limit=options.limit,
    )
    if options.json:
        for task in page.tasks:
            out.json(as_json(task, owner))
        return 0
    rows = [
        (task.id, task.about.session, state_of(task, owner), _far(task), when(task.created_at), task.about.title)
        for task in page.tasks
    ]
    out.table(("TASK", "SESSION", "STATE", "PROGRESS", "CREATED", "TITLE"), rows)
    if page.before is not None:
        out.line(f"these are the newest {len(rows)}; --limit says how many to show")
    return 0


def as_json(task: Task, owner: int | None) -> dict[str, object]:
    told = {"id": task.id, "session": task.about.session, "state": task.state.value}
    return {**codec.to_json(task), **told, "has_process": not task.ended and _is_worked_on(task, owner)}


def state_of(task: Task, owner: int | None) -> str:
    """The journal's word for it, and whether anybody is at it, which the journal cannot know."""
    return task.state.value if task.ended or _is_worked_on(task, owner) else f"{task.state.value} (no process)"


def _is_worked_on(task: Task, owner: int | None) -> bool:
    """The lock of the root says whether there is anybody at all (B10). Who has it need not have taken up what the last one left: it may lack the tool."""
    return owner is not None and (task.owner is None or owner in (0, task.owner.pid))


def _outlook(task: Task) -> str:
    """What becomes of a task that nobody works on (B10)."""
    if task.cancel_requested_at is not None:
        return "the next start ends it as cancelled"
    if task.state is TaskState.QUEUED:
        return "it begins when a process takes its session up"
    if task.about.spec.get("reattachable"):
        return f"it goes on when a process takes its session up that has the tool {clean_line(repr(task.about.tool))}"
    return "the next start ends it as interrupted: its tool cannot safely be run a second time"


def _far(task: Task) -> str:
    progress = task.progress
    if progress is None:
        return "-"
    return (
        f"{progress.current:g}"
        + (f"/{progress.total:g}" if progress.total else "")
        + (f" {progress.unit}" if progress.unit else "")
    )


def find(root: Path, id: str) -> Task:
    with open_view(root) as view:
        for _, state in view.states():
            task = state.tasks.get(id)
            if task is not None:
                return task
    raise UsageError(f"there is no task {id!r}; {to_type('tasks')} lists them", task=id)


def _show(options: argparse.Namespace) -> int:
    root, out = root_of(options), Terminal()
    task = find(root, options.task)
    owner = owner_of(root)
    if options.json:
        out.json(as_json(task, owner))
        return 0
    out.line(f"{task.id}: {state_of(task, owner)}, attempt {task.attempt}")
    if not task.ended and not _is_worked_on(task, owner):
        out.line(f"  no process works on it; {_outlook(task)}")
    rows = {
        "title": task.about.title,
        "session": task.about.session,
        "kind": task.about.kind,
        "tool": f"{task.about.tool} {codec.dumps(task.about.spec.get('arguments')).decode()}",
        "progress": _far(task),
        "created": when(task.created_at),
        "started": when(task.started_at),
        "finished": when(task.finished_at),
        "result": task.result_path or "-",
        "error": f"{task.error.kind}: {task.error.message}" if task.error is not None else "-",
    }
    for name, value in rows.items():
        out.line(f"  {name:<9} {clean_line(str(value), 200)}")
    for line in clean(task.summary).splitlines():
        out.line(f"  {line}")
    for entry in task.entries:
        out.line(f"  {when(entry.at)}  {clean_line(entry.what)}  {clean_line(entry.text, 120)}".rstrip())
    return 0


def _cancel(options: argparse.Namespace) -> int:
    root, out = root_of(options), Terminal()
    task = find(root, options.task)
    if task.ended:
        raise UsageError(f"task {options.task!r} has ended already ({task.state.value})", task=options.task)
    answer = change(
        root, {"do": "cancel", "session": task.about.session, "id": task.id, "reason": options.reason}, options.tools
    )
    # It may have come to another end meanwhile, or to none within the grace period.
    state = TaskState(answer.get("state", TaskState.CANCELLED))
    if options.json:
        out.json({"ok": True, "task": task.id, "state": state.value})
    else:
        told = state.value if state in TERMINAL else f"told to stop, and still {state.value}"
        out.line(f"{told}: {task.id}")
    return 0
