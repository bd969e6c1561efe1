"""`trouper doctor`: checks keys, disk, locks, versions, configuration and the journal, and says what to do. Changes nothing; exit code 1 if something is wrong."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from attrs import frozen

from trouper import __version__
from trouper._errors import ConfigError, MissingKey, TrouperError, WorldError
from trouper.cli.arguments import Parser, add_json, add_root, in_shell, root_of, to_type
from trouper.cli.configuration import FILE_NAME, Configuration, read_configuration
from trouper.cli.control import ask_owner, is_in_the_way
from trouper.cli.endings import of_the_system
from trouper.cli.owner import NAME, owner_of
from trouper.cli.printed import printed_aside
from trouper.cli.terminal import Terminal, clean_message, plural, size_of
from trouper.cli.views import check_readable, open_view
from trouper.core.outstanding import outstanding
from trouper.core.schedule import AwaitDue
from trouper.core.session import State
from trouper.journal.format import LOCK_NAME, RESERVE_NAME
from trouper.roster import SessionDamaged
from trouper.tools.contract import Tool

FREE_BYTES_MIN = 200_000_000
#: Larger journals are checked byte by byte on request only.
VERIFY_BYTES_MAX = 256_000_000
#: Which variables hold the key of a provider's models.
KEYS = {
    "gemini": ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
    "openai": ("OPENAI_API_KEY",),
    "anthropic": ("ANTHROPIC_API_KEY",),
}


@frozen
class Finding:
    check: str
    status: Literal["ok", "note", "problem"]
    message: str


#: A name, and what is found under it.
Check = tuple[str, Callable[[], Iterator[Finding]]]


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="trouper doctor", description=__doc__)
    parser.add_argument("--deep", action="store_true", help="check every byte of the journal, however large")
    add_root(parser)
    add_json(parser)
    options = parser.parse_args(arguments)
    out = Terminal()
    problems = 0
    for finding in _examine(options):
        problems += finding.status == "problem"
        if options.json:
            out.json({"check": finding.check, "status": finding.status, "message": finding.message})
        else:
            colour = {"ok": "green", "note": "yellow", "problem": "red"}[finding.status]
            out.line(f"{out.style(f'{finding.status:<8}', colour)} {finding.check}: {clean_message(finding.message)}")
    return 1 if problems else 0


def _examine(options: argparse.Namespace) -> Iterator[Finding]:
    try:
        checks = _checks(root_of(options), deep=options.deep)
    except (ConfigError, WorldError) as error:  # Of the environment; what has nothing to do with it can be looked at.
        checks = _checks_without_root(error)
    for name, check in checks:
        yield from _guarded(name, check)


def _checks(root: Path, *, deep: bool) -> list[Check]:
    return [
        ("version", _version),
        ("root", lambda: _root(root)),
        ("disk", lambda: _disk(root)),
        ("configuration", lambda: _configuration(root)),
        ("owner", lambda: _owner(root)),
        ("journal", lambda: _journal(root, deep=deep)),
    ]


def _checks_without_root(problem: TrouperError) -> list[Check]:
    return [
        ("version", _version),
        ("root", lambda: iter([Finding("root", "problem", problem.message)])),
        ("configuration", lambda: _agent(Configuration(Path(FILE_NAME)))),
    ]


def _guarded(name: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """What stops one check is its finding; the others go on."""
    try:
        yield from check()
    except TrouperError as error:
        yield Finding(name, "problem", error.message)
    except OSError as error:
        yield Finding(name, "problem", of_the_system(error) or str(error))


def _version() -> Iterator[Finding]:
    where = f"Trouper {__version__}, Python {platform.python_version()}, {platform.system()}"
    yield Finding("version", "ok" if sys.version_info >= (3, 11) else "problem", where)


def _root(root: Path) -> Iterator[Finding]:
    if not os.path.lexists(root):
        yield _root_to_be(root)
        return
    if not root.is_dir():
        yield Finding("root", "problem", f"{str(root)!r} is not a directory; give another --root")
        return
    found = root.stat()
    if os.statvfs(root).f_flag & os.ST_RDONLY:
        yield Finding(
            "root",
            "problem",
            f"{str(root)!r} lies on a read-only file system, so it can only be looked at; mount it writable, or give another --root",
        )
    elif found.st_uid != os.getuid():
        yield Finding(
            "root", "problem", f"{str(root)!r} belongs to another user; run as that user, or give another --root"
        )
    elif stat.S_IMODE(found.st_mode) & 0o077:
        yield Finding("root", "problem", f"{str(root)!r} can be read by others; chmod 700 it")
    elif not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        yield Finding("root", "problem", f"{str(root)!r} cannot be written; chmod u+rwx it")
    else:
        yield from _own_files(root)


def _root_to_be(root: Path) -> Finding:
    """Whether the first command that needs the root can make it."""
    place = _nearest(root)
    if not place.is_dir():
        return Finding("root", "problem", f"{str(place)!r} is not a directory; give another --root")
    if not os.access(place, os.W_OK | os.X_OK):
        return Finding(
            "root",
            "problem",
            f"{str(root)!r} cannot be made, for {str(place)!r} cannot be written; give another --root, or set TROUPER_ROOT",
        )
    return Finding("root", "note", f"{str(root)!r} is not there yet; the first {to_type('chat')} or `run` makes it")


def _nearest(root: Path) -> Path:
    """The root, or what there is already of the path to it."""
    place = root
    while not place.exists():
        place = place.parent
    return place


def _own_files(root: Path) -> Iterator[Finding]:
    """What stands where the runtime keeps something of its own, and can be no such thing."""
    wrong = [root / name for name in (LOCK_NAME, RESERVE_NAME) if not _is_file_or_nothing(root / name)]
    if is_in_the_way(root / NAME):
        wrong.append(root / NAME)
    memory = root / "memory"
    if memory.is_symlink() or (memory.exists() and not memory.is_dir()):
        wrong.append(memory)
    for path in wrong:
        yield Finding("root", "problem", f"{str(path)!r} is none of Trouper's; move it away, and it is made anew")
    for path in (root / LOCK_NAME, root / RESERVE_NAME):
        if path not in wrong and path.exists() and not os.access(path, os.R_OK | os.W_OK):
            wrong.append(path)
            yield Finding("root", "problem", f"{str(path)!r} cannot be written; chmod 600 it")
    if not wrong:
        yield Finding("root", "ok", str(root))


def _is_file_or_nothing(path: Path) -> bool:
    return not os.path.lexists(path) or stat.S_ISREG(path.lstat().st_mode)


def _disk(root: Path) -> Iterator[Finding]:
    place = _nearest(root)
    free = shutil.disk_usage(place).free
    if free < FREE_BYTES_MIN:
        yield Finding(
            "disk",
            "problem",
            f"{size_of(free)} are free at {str(place)!r}; free some space, or new turns will be refused",
        )
    else:
        yield Finding("disk", "ok", f"{size_of(free)} free")


def _configuration(root: Path) -> Iterator[Finding]:
    configuration = read_configuration(root)
    file = str(configuration.path) if configuration.found else f"no {FILE_NAME}: the defaults hold"
    yield Finding("configuration", "ok", file)
    yield from _agent(configuration)


def _agent(configuration: Configuration) -> Iterator[Finding]:
    yield from _guarded("model", lambda: _model(configuration))
    yield from _guarded("tools", lambda: _tools(configuration))


def _model(configuration: Configuration) -> Iterator[Finding]:
    name = configuration.model_name(None)
    provider = name.partition(":")[0]
    has_key = any(os.environ.get(variable) for variable in KEYS.get(provider, ()))
    try:
        configuration.model_made()  # Complains of a name that is none, and of a key that is missing where one is needed.
    except MissingKey as error:
        if not error.variables:  # None that could be set would be sent there.
            raise
        yield Finding("model", "problem", f"{name}: no key; set {' or '.join(error.variables)}")
    else:
        yield Finding("model", "ok", f"{name}: {'a key is set' if has_key else 'it needs no key'}")
    others = [each for each, names in KEYS.items() if each != provider and any(os.environ.get(n) for n in names)]
    if others:
        yield Finding("keys", "ok", f"also set: {', '.join(others)}")


def _tools(configuration: Configuration) -> Iterator[Finding]:
    with printed_aside():
        tools = configuration.tools_made()
    yield Finding("tools", "ok", plural(len(tools), "tool"))
    yield from _guarded("policy", lambda: _policies(configuration, tools))


def _policies(configuration: Configuration, tools: Sequence[Tool]) -> Iterator[Finding]:
    if rules := configuration.policies_for(tools):
        yield Finding("policy", "ok", plural(len(rules), "rule"))


def _owner(root: Path) -> Iterator[Finding]:
    if not root.is_dir():
        return
    owner = owner_of(root)
    if owner is None:
        left = (
            " (a control socket of a process that is gone is left; the next start replaces it)"
            if (root / NAME).exists()
            else ""
        )
        yield Finding("owner", "ok", f"nobody has the root open{left}")
        return
    who = f"process {owner}" if owner else "another process"
    answer = ask_owner(root, {"do": "ping"})
    if answer is None:
        yield Finding(
            "owner", "note", f"{who} has the root open and takes no commands; only looking is possible from here"
        )
    else:
        yield Finding("owner", "ok", f"{who} has the root open and answers")


def _journal(root: Path, *, deep: bool) -> Iterator[Finding]:
    from trouper.journal import JournalNotFound, verify

    try:
        layout = check_readable(root)
    except JournalNotFound:
        yield Finding("journal", "note", "there is none yet")
        return
    size = sum(segment.size for segment in layout.segments)
    if size > VERIFY_BYTES_MAX and not deep:
        yield Finding(
            "journal", "note", f"{size_of(size)} in {plural(len(layout.segments), 'segment')}; --deep checks every byte"
        )
    else:
        report = verify(root)
        for damage in report.damage:
            yield Finding("journal", "problem", f"damaged: {damage}; see `trouper journal repair {in_shell(root)} NEW`")
        if report.torn is not None:
            yield Finding(
                "journal",
                "note",
                f"the last {plural(report.torn.size, 'byte')} are torn: a process was killed; the next start sets them aside",
            )
        if report.ok:
            yield Finding(
                "journal",
                "ok",
                f"{plural(report.records, 'record')}, {size_of(report.bytes)}, every byte as it was written",
            )
        else:
            return
    with open_view(root) as view:
        each = list(view.each())
    for _, state, _ in each:
        if isinstance(state, SessionDamaged):
            yield Finding("sessions", "problem", state.message)
    busy = [name for name, state, _ in each if isinstance(state, State) and _is_open(state)]
    if busy:
        shown = ", ".join(busy[:5]) + (", ..." if len(busy) > 5 else "")
        yield Finding("sessions", "note", f"{plural(len(busy), 'session')} with open work: {shown}")


def _is_open(state: State) -> bool:
    """Whether there is work that was begun, or has to be; a schedule that waits for its time is none."""
    return any(not isinstance(owed, AwaitDue) for owed in outstanding(state).values())
