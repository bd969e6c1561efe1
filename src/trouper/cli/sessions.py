"""`trouper sessions`: list, show, send to, interrupt and close sessions. Looking needs no lock; changes go through the process that owns the root."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from trouper import codec
from trouper.cli.arguments import Parser, add_tools, carry_out, count, finish, root_of, text, to_type
from trouper.cli.changing import change
from trouper.cli.describe import quoted
from trouper.cli.owner import owner_of
from trouper.cli.tasks import state_of
from trouper.cli.terminal import Terminal, clean, clean_line, plural, when
from trouper.cli.views import open_view
from trouper.core.messages import Message
from trouper.core.session import Phase, State
from trouper.roster import SessionDamaged

#: Phases in which nobody has anything to do.
_RESTING = frozenset((Phase.NEW, Phase.IDLE, Phase.CLOSED))


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="trouper sessions", description=__doc__)
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)
    finish(parser, _ls, inherited=False)

    finish(commands.add_parser("ls", help="all sessions (the default)"), _ls)
    show = commands.add_parser("show", help="one session: its state, its last messages")
    show.add_argument("session", metavar="ID")
    show.add_argument("--messages", type=count, default=10, metavar="N", help="how many messages (default 10)")
    finish(show, _show)
    send = commands.add_parser("send", help="send a message to a session that a process runs; its turn takes it in")
    send.add_argument("session", metavar="ID")
    send.add_argument("text", type=text)
    finish(send, _send)
    for name, about in (("interrupt", "end the turn that runs"), ("close", "end a session for good")):
        changing = commands.add_parser(name, help=about)
        changing.add_argument("session", metavar="ID")
        changing.add_argument("--reason", type=text, default="", help="kept in the journal")
        add_tools(changing)
        finish(changing, _change)
        changing.set_defaults(do=name)
    return carry_out(parser, arguments)


def _ls(options: argparse.Namespace) -> int:
    root, out = root_of(options), Terminal()
    rows: list[tuple[str, Phase | None, tuple[object, ...]]] = []
    told: list[dict[str, object]] = []
    with open_view(root) as view:
        for name, state, _ in view.each():
            if isinstance(state, SessionDamaged):
                told.append({"session": name, "phase": "damaged", "has_process": False})
                rows.append((name, None, ("-", "-", "-", "")))
                continue
            told.append(summary(name, state))
            live, pending = len(state.tasks.live), len(state.notifications.pending)
            rows.append((name, state.phase, (state.turns, live, pending, _last(state))))
    # Asked behind the records: what is in them is older than any process that has come since.
    has_process = owner_of(root) is not None
    if options.json:
        for each in told:
            out.json({"has_process": has_process, **each})
        return 0
    table = [
        (name, "damaged" if phase is None else phase_of(phase, has_process), *counts) for name, phase, counts in rows
    ]
    out.table(("SESSION", "PHASE", "TURNS", "TASKS", "NOTIFICATIONS", "LAST"), table)
    return 0


def phase_of(phase: Phase, has_process: bool) -> str:
    """The journal's word for it; whether anybody is at it only the lock of the root knows."""
    return phase.value if has_process or phase in _RESTING else f"{phase.value} (no process)"


def summary(name: str, state: State) -> dict[str, object]:
    last = state.last
    return {
        "session": name,
        "phase": state.phase.value,
        "turns": state.turns,
        "live_tasks": len(state.tasks.live),
        "pending_notifications": len(state.notifications.pending),
        "schedules": len(state.schedules.active),
        "queued_inputs": len(state.queue),
        "tokens": state.tokens,
        "usage": codec.to_json(state.spent.usage),
        "last_stop_reason": last.stop_reason if last is not None else None,
        "last_text": last.text if last is not None else None,
    }


def _last(state: State) -> str:
    return "" if state.last is None else f"{state.last.stop_reason}: {clean_line(state.last.text, 80)}"


def _show(options: argparse.Namespace) -> int:
    out = Terminal()
    with open_view(root_of(options)) as view:
        state = view.state(options.session)
    owner = owner_of(view.root)
    has_process = owner is not None
    messages = state.history.messages[-options.messages :] if options.messages > 0 else ()
    if options.json:
        told = {"has_process": has_process, **summary(options.session, state)}
        out.json({**told, "messages": [codec.to_json(message) for message in messages]})
        return 0
    out.line(
        f"{clean_line(options.session)}: {phase_of(state.phase, has_process)}, {plural(state.turns, 'turn')}, about {state.tokens} tokens to send"
    )
    if state.system:
        out.line(f"system: {quoted(state.system, 200)}")
    for task in state.tasks.live.values():
        out.line(f"task: {task.id} {state_of(task, owner)}, {clean_line(task.about.title, 80)}")
    for note in state.notifications.pending.values():
        out.line(f"notification: {note.state.value} since {when(note.created_at)}, {clean_line(note.title, 80)}")
    for message in messages:
        _message(out, message)
    return 0


def _message(out: Terminal, message: Message) -> None:
    kind = "" if message.kind == "normal" else f" ({message.kind})"
    out.line(out.style(f"{message.role}{kind}", "bold"))
    for line in clean(message.text).splitlines():
        out.line(f"  {line}")
    for call in message.calls:
        out.line(f"  calls {clean_line(call.name)} {clean_line(codec.dumps(call.arguments).decode(), 200)}")
    for answer in message.answers:
        out.line(
            f"  {clean_line(answer.name)}: {answer.outcome.value} {clean_line(codec.dumps(answer.content).decode(), 200)}"
        )


def _send(options: argparse.Namespace) -> int:
    change(
        root_of(options),
        {"do": "send", "session": options.session, "text": options.text},
        owner_only=f"nobody would answer; ask with {to_type('run --session ID TEXT')}, or start {to_type('chat')}",
    )
    return _done(options, "sent", {})


def _change(options: argparse.Namespace) -> int:
    request = {"do": options.do, "session": options.session, "reason": options.reason}
    answer = change(root_of(options), request, options.tools)
    if options.do == "close":
        return _done(options, "closed", {})
    _done(options, "interrupted" if answer.get("found", True) else "nothing ran", answer)
    ended = answer.get("ended")
    if not options.json and isinstance(ended, list):
        for each in ended:
            Terminal().line(f"  {clean_line(str(each['state']))}: {clean_line(str(each['task']))}")
    return 0


def _done(options: argparse.Namespace, what: str, more: dict[str, object]) -> int:
    out = Terminal()
    if options.json:
        out.json({"ok": True, "session": options.session, **more})
    else:
        out.line(f"{what}: {clean_line(options.session)}")
    return 0
