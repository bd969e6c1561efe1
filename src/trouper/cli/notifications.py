"""`trouper notifications`: list those that wait, acknowledge one. Looking needs no lock; changes go through the process that owns the root."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from trouper import codec
from trouper._errors import UsageError
from trouper.cli.arguments import Parser, add_ls, add_tools, carry_out, finish, root_of, to_type
from trouper.cli.changing import change
from trouper.cli.terminal import Terminal, clean_line, when
from trouper.cli.views import open_view
from trouper.core.notification import Notification


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="trouper notifications", description=__doc__)
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)
    _filters(parser, inherited=False)
    _filters(add_ls(commands, "those that wait, oldest first (the default)"))
    acknowledge = commands.add_parser("ack", help="take one as read: it will not be delivered")
    acknowledge.add_argument("notification", metavar="ID")
    add_tools(acknowledge)
    finish(acknowledge, _ack)
    return carry_out(parser, arguments)


def _filters(parser: argparse.ArgumentParser, *, inherited: bool = True) -> None:
    parser.add_argument("--session", metavar="ID", help="only this session's")
    parser.add_argument("--all", action="store_true", help="also those that are settled")
    finish(parser, _ls, inherited=inherited)


def _ls(options: argparse.Namespace) -> int:
    out = Terminal()
    found: list[tuple[str, Notification]] = []
    with open_view(root_of(options)) as view:
        for name, state in view.states(options.session):
            settled = state.notifications.settled.values() if options.all else ()
            found += [(name, note) for note in (*settled, *state.notifications.pending.values())]
    found.sort(key=lambda pair: (pair[1].created_at, pair[1].id))
    if options.json:
        for name, note in found:
            out.json({**codec.to_json(note), "session": name, "state": note.state.value})
        return 0
    out.table(
        ("NOTIFICATION", "SESSION", "STATE", "CREATED", "TITLE"),
        [(note.id, name, note.state.value, when(note.created_at), note.title) for name, note in found],
    )
    return 0


def _ack(options: argparse.Namespace) -> int:
    root, out = root_of(options), Terminal()
    with open_view(root) as view:
        session = next((name for name, state in view.states() if state.notifications.get(options.notification)), None)
    if session is None:
        raise UsageError(f"there is no notification {options.notification!r}; {to_type('notifications')} lists them")
    change(root, {"do": "acknowledge", "session": session, "id": options.notification}, options.tools)
    if options.json:
        out.json({"ok": True, "notification": options.notification})
    else:
        out.line(f"acknowledged: {clean_line(options.notification)}")
    return 0
