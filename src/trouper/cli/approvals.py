"""`trouper approvals`: list the calls that wait for somebody's approval, approve or deny them. Looking needs no lock; the answer goes to the process that owns the root.

An approval is for the one call that is listed, with the arguments it is listed with.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path

from attrs import frozen

from trouper._errors import ConfigError, UsageError
from trouper.cli.arguments import Parser, carry_out, finish, root_of, text, to_type
from trouper.cli.changing import change
from trouper.cli.owner import owner_of
from trouper.cli.terminal import Terminal, clean_line, in_full, when
from trouper.cli.views import View, open_view
from trouper.core.calls import Call


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="trouper approvals", description=__doc__)
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)
    _finish(parser, _ls, inherited=False)
    _finish(commands.add_parser("ls", help="those that wait, by session (the default)"), _ls)
    approve = commands.add_parser("approve", help="let a call run, as it is listed")
    approve.add_argument("call", metavar="ID")
    approve.add_argument("--always", action="store_true", help="and every later call of this tool in its session")
    _finish(approve, _approve)
    deny = commands.add_parser("deny", help="refuse a call; the model is told")
    deny.add_argument("call", metavar="ID")
    deny.add_argument("--reason", type=text, default="", help="what the model is told")
    _finish(deny, _deny)
    return carry_out(parser, arguments)


def _finish(
    parser: argparse.ArgumentParser, command: Callable[[argparse.Namespace], int], *, inherited: bool = True
) -> None:
    parser.add_argument(
        "--session",
        metavar="ID",
        default=argparse.SUPPRESS if inherited else None,
        help="only this session's; needed when calls of two sessions have the same ID",
    )
    finish(parser, command, inherited=inherited)


class Outlook(Enum):
    """What becomes of the calls of a root that wait."""

    WAITING = "waiting"
    #: Its process is gone, and the next one asks again.
    RESUMED = "resumed"
    #: Its process is gone, and the next one closes the call.
    LOST = "lost"


@frozen
class Waiting:
    """A call that waits for its approval, or did when its process ended."""

    session: str
    call: Call
    expires_at: float
    outlook: Outlook

    def as_json(self) -> dict[str, object]:
        request = self.call.request
        return {
            "session": self.session,
            "call": request.id,
            "tool": request.name,
            "arguments": request.arguments,
            "expires_at": self.expires_at,
            "state": self.outlook.value,
        }


def waiting(view: View, session: str | None) -> list[Waiting]:
    found = []
    for name, state in view.states(session):
        calls = {call.id: call for call in state.turn.calls} if state.turn is not None else {}
        found += [(name, calls[id], expires_at) for id, expires_at in state.approvals if id in calls]
    # Looked at behind the records: what is in them is older than any process that has come since.
    outlook = _outlook(view.root) if found else Outlook.WAITING
    return [Waiting(*each, outlook) for each in found]


def _outlook(root: Path) -> Outlook:
    if owner_of(root) is not None:
        return Outlook.WAITING
    # Here: they load the models and the tools, and mostly there is an owner.
    from trouper.cli.configuration import read_configuration
    from trouper.cli.ownership import NotOurs

    try:
        on_restart = read_configuration(root).limits.on_restart
    except (ConfigError, NotOurs):
        return Outlook.LOST  # Whoever starts here next is told what is wrong with it.
    return Outlook.RESUMED if on_restart == "resume" else Outlook.LOST


def _ls(options: argparse.Namespace) -> int:
    out = Terminal()
    with open_view(root_of(options)) as view:
        found = waiting(view, options.session)
    if options.json:
        for each in found:
            out.json(each.as_json())
        return 0
    rows = [
        (
            each.call.id,
            each.session,
            when(each.expires_at),
            each.call.request.name,
            in_full(each.call.request.arguments),
        )
        for each in found
        if each.outlook is not Outlook.LOST
    ]
    out.table(("CALL", "SESSION", "LAPSES", "TOOL", "ARGUMENTS"), rows, cut=False)
    if any(each.outlook is Outlook.RESUMED for each in found):
        out.line(f"no process has the root open; start {to_type('chat')}, and answer then")
    for each in found:
        if each.outlook is Outlook.LOST:
            request = each.call.request
            out.line(f"{_lost(each)}: {clean_line(request.name)} {in_full(request.arguments)}")
    return 0


def _lost(call: Waiting) -> str:
    return (
        f"{clean_line(call.call.id)} of {clean_line(call.session)} waits no more: its process is gone, and the next start closes the call, "
        'unless it goes on with turns (limits.on_restart = "resume"); ask again'
    )


def _approve(options: argparse.Namespace) -> int:
    return _answer(options, {"do": "approve", "always": options.always}, "approved")


def _deny(options: argparse.Namespace) -> int:
    return _answer(options, {"do": "deny", "reason": options.reason}, "denied")


def _answer(options: argparse.Namespace, request: dict[str, object], done: str) -> int:
    root, out = root_of(options), Terminal()
    with open_view(root) as view:
        found = [each for each in waiting(view, options.session) if each.call.id == options.call]
    if not found:
        raise UsageError(f"no call {options.call!r} waits for an approval; {to_type('approvals')} lists those that do")
    if len(found) > 1:
        sessions = ", ".join(repr(each.session) for each in found)
        raise UsageError(f"calls {options.call!r} of {sessions} wait for an approval; say which with --session")
    if found[0].outlook is Outlook.LOST:
        raise UsageError(f"call {_lost(found[0])}")
    session = found[0].session
    change(
        root,
        {**request, "session": session, "id": options.call},
        owner_only=f"nobody is there to run the call, or to tell the model; start {to_type('chat')}, and answer then",
    )
    if options.json:
        out.json({"ok": True, "session": session, "call": options.call})
    else:
        out.line(f"{done}: {clean_line(options.call)} of {clean_line(session)}")
    return 0
