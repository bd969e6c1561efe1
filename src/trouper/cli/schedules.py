"""`trouper schedules`: list, create and cancel schedules. They fire while some process has the root open."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from trouper import codec
from trouper._errors import UsageError
from trouper.cli.arguments import Parser, add_ls, add_tools, carry_out, finish, json_in, root_of, text, to_type
from trouper.cli.changing import change
from trouper.cli.terminal import Terminal, clean_line, when
from trouper.cli.views import open_view
from trouper.core.schedule import Cron, Schedule, ScheduledMessage


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="trouper schedules", description=__doc__)
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)
    _filters(parser, inherited=False)
    _filters(add_ls(commands, "active schedules, the next to fire first (the default)"))
    create = commands.add_parser("create", help="send a session a message, or run a tool, at a time or again and again")
    create.add_argument("--session", required=True, metavar="ID", help="whose schedule it is")
    create.add_argument("--at", metavar="TIME", help="once, RFC 3339: 2030-01-31T09:00:00Z")
    create.add_argument("--cron", metavar="FIELDS", help='again and again: "0 9 * * 1-5"')
    create.add_argument("--zone", metavar="NAME", help="the time zone of --cron (default UTC)")
    create.add_argument("--message", type=text, metavar="TEXT", help="what to send")
    create.add_argument("--tool", metavar="NAME", help="or the tool to run")
    create.add_argument("--arguments", type=text, metavar="JSON", help="the tool's arguments, a JSON object")
    create.add_argument("--title", type=text, default="")
    create.add_argument(
        "--missed", choices=("skip", "once", "all"), default="once", help="what becomes of missed fires (default once)"
    )
    add_tools(create)
    finish(create, _create)
    cancel = commands.add_parser("cancel", help="it will not fire again")
    cancel.add_argument("schedule", metavar="ID")
    add_tools(cancel)
    finish(cancel, _cancel)
    return carry_out(parser, arguments)


def _filters(parser: argparse.ArgumentParser, *, inherited: bool = True) -> None:
    parser.add_argument("--session", metavar="ID", help="only this session's")
    parser.add_argument("--all", action="store_true", help="also those that are over")
    finish(parser, _ls, inherited=inherited)


def _ls(options: argparse.Namespace) -> int:
    out = Terminal()
    found: list[tuple[str, Schedule]] = []
    with open_view(root_of(options)) as view:
        for name, state in view.states(options.session):
            over = state.schedules.settled.values() if options.all else ()
            found += [(name, schedule) for schedule in (*state.schedules.active.values(), *over)]
    found.sort(key=lambda pair: (pair[1].next_at is None, pair[1].next_at or 0.0))
    if options.json:
        for name, schedule in found:
            out.json({**codec.to_json(schedule), "session": name, "state": schedule.state.value})
        return 0
    out.table(
        ("SCHEDULE", "SESSION", "STATE", "NEXT", "FIRES", "WHEN", "TITLE"),
        [
            (each.id, name, each.state.value, when(each.next_at), each.fires, _when(each), _title(each))
            for name, each in found
        ],
    )
    return 0


def _when(schedule: Schedule) -> str:
    at = schedule.when
    return f"{at.expression} {at.zone}" if isinstance(at, Cron) else when(at.at)


def _title(schedule: Schedule) -> str:
    action = schedule.action
    return schedule.title or (action.text if isinstance(action, ScheduledMessage) else action.tool)


def _create(options: argparse.Namespace) -> int:
    if (options.message is None) == (options.tool is None):
        raise UsageError("a schedule does one thing; give either --message or --tool")
    if options.arguments is not None and options.tool is None:
        raise UsageError("--arguments are those of --tool; put them into the --message, or name the tool")
    if options.zone is not None and options.cron is None:
        raise UsageError("--zone is that of --cron; --at says its own, as in 2030-01-31T09:00:00+01:00")
    try:
        given = json_in(options.arguments) if options.arguments is not None else {}
    except ValueError as error:
        raise UsageError(f"--arguments is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise UsageError("--arguments has to be a JSON object")
    request = {
        "do": "schedule",
        "session": options.session,
        "at": options.at,
        "cron": options.cron,
        "zone": options.zone,
        "message": options.message,
        "tool": options.tool,
        "arguments": given,
        "title": options.title,
        "missed": options.missed,
    }
    answer = change(
        root_of(options), {name: value for name, value in request.items() if value is not None}, options.tools
    )
    out = Terminal()
    if options.json:
        out.json(answer)
    else:
        out.line(f"created: {clean_line(str(answer['schedule_id']))}")
    return 0


def _cancel(options: argparse.Namespace) -> int:
    root, out = root_of(options), Terminal()
    with open_view(root) as view:
        session = next((name for name, state in view.states() if state.schedules.get(options.schedule)), None)
    if session is None:
        raise UsageError(f"there is no schedule {options.schedule!r}; {to_type('schedules')} lists them")
    change(root, {"do": "unschedule", "session": session, "id": options.schedule}, options.tools)
    if options.json:
        out.json({"ok": True, "schedule": options.schedule})
    else:
        out.line(f"cancelled: {clean_line(options.schedule)}")
    return 0
