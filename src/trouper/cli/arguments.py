"""argparse, with errors of one line, and the options that every command shares."""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NoReturn

from trouper._errors import ConfigError, UsageError, WorldError

ROOT_VARIABLE = "TROUPER_ROOT"
PROFILE_VARIABLE = "TROUPER_PROFILE"
#: Bytes of the command line that the locale's encoding does not know.
_UNDECODED = re.compile("[\udc80-\udcff]")


#: How the root of this command was named, as an option for a shell; empty where it was not. See `to_type`.
_NAMED = ContextVar("_NAMED", default="")
#: Stands for a `--` that is a value while argparse looks for one that is not: the argument of a process cannot hold the character.
_DASHES = "\0--"


class Parser(argparse.ArgumentParser):
    """A mistake is a `UsageError` with one line, instead of the whole usage. And a `--` ends the options only where it stands alone, the first time.

    Some versions of argparse take every other for such an end as well, and drop it: in `--model=--`, and behind the first.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        options.setdefault("allow_abbrev", False)
        super().__init__(*arguments, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        if "--" in given:
            behind = given.index("--") + 1
            given[behind:] = [_DASHES if each == "--" else each for each in given[behind:]]
        parsed, unknown = super().parse_known_args(given, namespace)
        if unknown:  # Here, where it is known whose help has them: argparse leaves what a sub-command does not know to its parent.
            self.error(f"unrecognized arguments: {' '.join('--' if each == _DASHES else each for each in unknown)}")
        return parsed, unknown

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        if action.option_strings:
            arg_strings = [_DASHES if each == "--" else each for each in arg_strings]
        return super()._get_values(action, arg_strings)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        return super()._get_value(action, "--" if arg_string == _DASHES else arg_string)

    def print_help(self, file: Any = None) -> None:
        """Unlike argparse's, it fails where there is nobody to read it, or no room."""
        (sys.stdout if file is None else file).write(self.format_help())

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def text(argument: str) -> str:
    """The type of an argument that is text for people or models, not a path: UTF-8 whatever the locale makes of it."""
    return os.fsencode(argument).decode("utf-8", "replace") if _UNDECODED.search(argument) else argument


def seconds(argument: str) -> float:
    """The type of an argument that says how long."""
    try:
        number = float(argument)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{argument!r} is not a number of seconds")
    return number


def count(argument: str) -> int:
    """The type of an argument that says how many, or which."""
    try:
        number = int(argument)
    except ValueError:
        number = -1
    if number < 0:
        raise argparse.ArgumentTypeError(f"{argument!r} is not a whole number from 0 up")
    return number


def json_in(argument: str) -> Any:
    """The JSON in an argument. ValueError for what is none: that includes the numbers which only some readers of JSON know."""
    import json

    try:
        return json.loads(argument, parse_constant=_no_number, parse_float=_number)
    except RecursionError:
        raise UsageError("the JSON is nested too deep; make it flatter") from None


def _number(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _no_number(digits)


def _no_number(digits: str) -> NoReturn:
    raise ValueError(f"{digits} is no number that can be kept")


def add_root(parser: argparse.ArgumentParser, *, positional: bool = False, inherited: bool = False) -> None:
    """`--root` and `--profile`; with `positional`, the directory may also stand alone.

    `inherited`: for a sub-command whose parent takes them too; without one of its own, what the parent was given holds.
    """
    default = argparse.SUPPRESS if inherited else None
    if positional:
        parser.add_argument("directory", nargs="?", metavar="DIR", help="the root; the same as --root")
    parser.add_argument(
        "--root",
        metavar="DIR",
        default=default,
        help=f"the root directory (default: ${ROOT_VARIABLE}, or the profile's)",
    )
    parser.add_argument("--profile", metavar="NAME", default=default, help="a named root in the user's data directory")


def add_json(parser: argparse.ArgumentParser, *, inherited: bool = False) -> None:
    parser.add_argument(
        "--json",
        action="store_true",
        default=argparse.SUPPRESS if inherited else False,
        help="one JSON object per line, for programs",
    )


def add_ls(commands: argparse._SubParsersAction[Parser], about: str) -> Parser:
    """`ls`, which is what its command does without being told: so what it is to show may stand before it, too."""
    return commands.add_parser("ls", help=about, argument_default=argparse.SUPPRESS)


def add_agent(parser: argparse.ArgumentParser) -> None:
    """What the commands that run an agent share."""
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="gemini:..., openai:..., anthropic:..., or simulated (default: trouper.toml's, else simulated)",
    )
    parser.add_argument("--system", type=text, metavar="TEXT", help="the system prompt")
    add_tools(parser)


def add_tools(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tools",
        action="append",
        metavar="NAME",
        help="`default`, a built-in tool, a Python file or a module with tools; may be repeated",
    )


def finish(
    parser: argparse.ArgumentParser, command: Callable[[argparse.Namespace], int], *, inherited: bool = True
) -> None:
    """The end of a sub-command: where it looks, in which form it answers, and what carries it out."""
    add_root(parser, inherited=inherited)
    add_json(parser, inherited=inherited)
    parser.set_defaults(command=command)


def carry_out(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """Whichever sub-command was asked for. Its exit code."""
    options = parser.parse_args(arguments)
    code: int = options.command(options)
    return code


def to_type(command: str) -> str:
    """A command of `trouper` for the user to type, which finds the root that this one is about: wherever it is typed, for a chat is answered from another terminal."""
    return f"`trouper {command}{_NAMED.get()}`"


def in_shell(path: str | Path) -> str:
    """A path as it is typed, wherever that is."""
    from trouper.cli.terminal import clean_line

    with suppress(OSError):  # The directory that we are in may be gone.
        path = os.path.abspath(path)
    return clean_line(shlex.quote(str(path)))


def root_of(options: argparse.Namespace) -> Path:
    """The root that is meant. Nothing is made: a place that is not there is for the command to complain about, or to make."""
    named = getattr(options, "directory", None)
    if named is not None and options.root is not None and named != options.root:
        raise UsageError(f"two roots are given, {named!r} and {options.root!r}; give one")
    chosen = named if named is not None else options.root
    if chosen is not None and options.profile is not None:
        raise UsageError("--root and --profile exclude each other; give one")
    if chosen is None and options.profile is None:
        chosen = os.environ.get(ROOT_VARIABLE) or None
    if chosen is not None:
        if not chosen or "\0" in chosen:
            raise UsageError(f"{chosen!r} cannot be a directory; give a path")
        _NAMED.set(f" --root {in_shell(chosen)}")
        return Path(chosen)
    profile = os.environ.get(PROFILE_VARIABLE) or None if options.profile is None else options.profile
    _NAMED.set("" if profile is None else f" --profile={shlex.quote(profile)}")
    return _profile(profile)


def _profile(name: str | None) -> Path:
    from trouper.stores.profiles import HomeUnknown, Profiles

    try:
        profiles = Profiles()
        return profiles.path(profiles.default() if name is None else name)
    except HomeUnknown as error:
        raise ConfigError(f"{error.message}: give --root DIR, or set {ROOT_VARIABLE}") from None
    except OSError as error:
        unreadable = WorldError(
            f"the profiles cannot be read ({error.strerror}: {error.filename!r}); give --root DIR, or set {ROOT_VARIABLE}"
        )
        if isinstance(error, PermissionError):
            unreadable.exit_code = 77
        raise unreadable from None
