"""The command line: `trouper <command>`. Each family of commands is a module that is imported when it is asked for.

endings.py     exit codes; what an error says and how it ends the program
streams.py     stdin, stdout and stderr, read and written to the end
arguments.py   argparse with one-line errors; --root, --profile, and commands to type that name them
loading.py, changing.py    modules, when they are needed; those that a change takes
terminal.py    what goes to a terminal or a pipe: cleaned, coloured only where somebody looks
stdin_lines.py  lines of standard input, without a thread
configuration.py, choices.py    trouper.toml and the environment; models and tools by name
hosting.py, requests.py, leaving.py    running a root, what can be asked of who does, and how that ends
views.py, owner.py, control.py  what a root holds, who owns it, and how to ask the owner
describe.py    one line for every event
demo*.py, chat*.py, run.py, journal*.py, sessions.py, approvals.py, tasks.py, notifications.py, schedules.py, memory.py, doctor.py
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # Imported only by checkers: see `main`.
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

#: command -> its module, and what it is for
COMMANDS = {
    "demo": ("demo", "see it work: no key, no network"),
    "chat": ("chat", "talk to an agent; resumes after a crash"),
    "run": ("run", "one turn, for scripts"),
    "sessions": ("sessions", "list, show and close sessions"),
    "approvals": ("approvals", "list calls that wait for an approval, approve or deny them"),
    "tasks": ("tasks", "list, show and cancel background runs"),
    "notifications": ("notifications", "list and acknowledge notifications"),
    "schedules": ("schedules", "list, create and cancel schedules"),
    "memory": ("memory", "list, show, write and forget memories"),
    "journal": ("journal", "ls, show, tail, verify, replay, html, repair, archive"),
    "doctor": ("doctor", "check keys, disk, locks, versions and the journal"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Never raises for a user's mistake."""
    try:
        from contextvars import copy_context

        from trouper.cli.endings import ended

        arguments = list(sys.argv[1:] if argv is None else argv)
        # What a command notes for itself (`arguments.to_type`) ends with it.
        return ended(lambda: copy_context().run(_dispatch, arguments))
    except KeyboardInterrupt:
        # Pressed before `ended` was there to say so, or while it did. Up to here nothing is imported that takes time.
        return 130


def run_module() -> NoReturn:
    """For `python -m`: run the command that the program was started with, and end with its code."""
    code = main()
    # A Ctrl-C that came down in text that was being executed is noted by the interpreter even if it was caught, and so started, Python would end by that
    # signal in place of the code. Whatever is executed next makes it forget.
    exec("")
    sys.exit(code)


def _dispatch(arguments: list[str]) -> int:
    from trouper._errors import UsageError

    first = arguments[0] if arguments else "--help"
    if first in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if first in ("-V", "--version"):
        from trouper import __version__

        print(f"trouper {__version__}")
        return 0
    if first not in COMMANDS:
        import difflib

        near = difflib.get_close_matches(first, COMMANDS, 1)
        hint = f"did you mean {near[0]!r}?" if near else "see trouper --help"
        raise UsageError(f"there is no command {first!r}; {hint}")
    import importlib

    from trouper.cli.loading import loading

    with loading():
        module = importlib.import_module(f"trouper.cli.{COMMANDS[first][0]}")
    code: int = module.main(arguments[1:])
    return code


def _overview() -> str:
    lines = ["usage: trouper <command> [options]", "", "An actor-model runtime for AI agents.", "", "commands:"]
    lines += [f"  {name:<14} {about}" for name, (_, about) in COMMANDS.items()]
    lines += [
        "",
        "`trouper <command> --help` says more. Without --root or --profile, the default profile is used;",
        "TROUPER_ROOT names another directory. Exit codes: design/guides/command-line.md.",
    ]
    return "\n".join(lines)
