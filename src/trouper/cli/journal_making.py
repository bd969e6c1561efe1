"""`trouper journal html`, `repair` and `archive`: what is made from a journal, and what is packed away."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

from trouper._errors import UsageError
from trouper.cli.arguments import root_of
from trouper.cli.journal_looking import check_end
from trouper.cli.terminal import Terminal, clean_line, plural, size_of
from trouper.cli.views import check_readable, open_view


def html(options: argparse.Namespace) -> int:
    from trouper.replay import Page, open_journal

    root, out = root_of(options), Terminal()
    named = None if options.output == "-" else options.output
    if named is None and out.is_terminal:
        raise UsageError("the page is for a browser: name a file with --output, or send it through a pipe")
    file = None if named is None else _page_file(root, named)
    check_readable(root)
    page = Page(open_journal(root), options.session, after=options.after, limit=options.limit)
    if file is None:
        for piece in page:
            out.stream.write(piece)
    else:
        from trouper.stores.atomic import write_atomically

        try:
            # For its owner alone, as the journal is; and whole, or not there.
            write_atomically(file, "".join(page).encode("ascii"))
        except OSError as error:
            raise type(error)(error.errno, error.strerror, named) from None  # Not under its temporary name.
        out.line(f"wrote {clean_line(options.output)}: {plural(len(page.sessions), 'session')}")
    if page.problem is not None:
        raise page.problem
    check_end(root)
    return 0


def _page_file(root: Path, named: str) -> Path:
    """Where a page goes: behind all links; and never in the place of what is no file, or is the journal's own, for it takes the place of whatever is there."""
    if not named or "\0" in named or named.endswith(os.sep) or os.path.isdir(named):
        raise UsageError(f"{named!r} cannot be a file; name one with --output")
    path = Path(os.path.realpath(named))
    # By its own name as well: what a pipe is called behind the links (`/dev/stdout`) cannot be looked up.
    if (os.path.lexists(path) or os.path.exists(named)) and not os.path.isfile(named):
        raise UsageError(f"{named!r} is no file; leave out --output, and send the page there: `> {named}`")
    if Path(os.path.realpath(root)) in path.parents and path.suffix != ".html":
        raise UsageError(f"{named!r} is in the root itself; write the page elsewhere, or to a name that ends in .html")
    return path


#: What belongs to a root, and is not made from its journal.
BELONGINGS = ("files", "kv", "secrets", "trouper.toml")
#: What is made from it, or is of the process that has it open.
_MADE = re.compile(r"segment-.*|snapshots|blobs|lock|reserve|memory|memory\.sqlite3.*|control\.sock|.*\.tmp")
#: More names than this are too many for one line.
_NAMES_SHOWN = 8


def repair(options: argparse.Namespace) -> int:
    """Of a root, not of a journal alone: without its files, secrets and policy, the new one would be another agent's."""
    from trouper.journal import repair as write_repaired
    from trouper.stores.belongings import bring_along

    out, root = Terminal(), Path(options.directory)
    check_readable(root)
    target = Path(os.path.realpath(options.target))
    for name in BELONGINGS:
        if Path(os.path.realpath(root / name)) in (target, *target.parents):
            raise UsageError(f"{options.target!r} is in what is to be copied, {name!r} of the root; name another place")
    copied: list[str] = []
    left: list[str] = []

    def complete(place: str) -> None:
        brought = bring_along(root, Path(place), BELONGINGS)
        copied.extend(brought.copied)
        left.extend(name for name in sorted(os.listdir(root)) if name not in BELONGINGS and not _MADE.fullmatch(name))
        left.extend(brought.left_out)

    repaired = write_repaired(root, options.target, complete=complete)
    gaps = [
        {
            "first": gap.first,
            "last": gap.last,
            "file": gap.damage.file,
            "offset": gap.damage.offset,
            "reason": gap.damage.reason,
        }
        for gap in repaired.gaps
    ]
    if options.json:
        told = {"target": repaired.target, "records": repaired.records, "last": repaired.last, "gaps": gaps}
        out.json({**told, "copied": copied, "left": left})
        return 0
    out.line(f"wrote {plural(repaired.records, 'record')} to {clean_line(repaired.target)}")
    if copied or left:
        out.line(f"copied as they are: {_named(copied)}; left where they are: {_named(left)}")
    for gap in repaired.gaps:
        if gap.last < gap.first:
            word, lost = "damage", f"after record {gap.last}, nothing known to be lost"
        elif gap.open_end:
            upto = f"up to record {gap.last} at least" if gap.last > gap.first else "nobody knows how much"
            word, lost = "gap", f"what came after record {gap.first - 1}, {upto}"
        else:
            word, lost = "gap", f"records {gap.first} to {gap.last}" if gap.last > gap.first else f"record {gap.first}"
        out.line(f"{out.style(word, 'yellow')}: {lost}: {clean_line(str(gap.damage))}")
    return 0


def _named(names: list[str]) -> str:
    shown = [clean_line(name, 100) for name in names[:_NAMES_SHOWN]]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "") or "none"


def archive(options: argparse.Namespace) -> int:
    """Nothing else ever deletes or packs a record (J15)."""
    from trouper.cli.hosting import once_free
    from trouper.core.session import Phase
    from trouper.journal import retire

    root, out = root_of(options), Terminal()
    with open_view(root) as view:
        ended = {name for name, state in view.states() if state.phase is Phase.CLOSED}
        snapshot = view.log.snapshot()
        # What no snapshot covers is read at the next start.
        covered = snapshot.seq if snapshot is not None else 0
    retired = once_free(lambda: retire(root, ended, fate="drop" if options.drop else "archive", before=covered))
    word = "dropped" if options.drop else "archived"
    for each in retired:
        if options.json:
            out.json(
                {
                    "segment": each.number,
                    "first": each.first,
                    "last": each.last,
                    "sessions": list(each.streams),
                    "archive": each.archive or None,
                    "bytes_before": each.bytes_before,
                    "bytes_after": each.bytes_after,
                    "blobs": each.blobs,
                }
            )
        else:
            out.line(
                f"{word} segment {each.number}: records {each.first} to {each.last} of {plural(len(each.streams), 'session')}, "
                f"{size_of(each.bytes_before)} -> {size_of(each.bytes_after)}"
            )
    if not retired and not options.json:
        out.line(
            "nothing to do: every full segment holds a session that is not closed, or records that no snapshot covers"
        )
    return 0
