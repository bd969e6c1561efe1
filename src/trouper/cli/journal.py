"""`trouper journal`: look at a journal, check it, repair it. Needs no lock: it works while another process writes (J9)."""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from trouper import codec
from trouper._errors import UsageError
from trouper.cli.arguments import Parser, add_json, add_root, carry_out, count, root_of, text
from trouper.cli.describe import describe
from trouper.cli.endings import DAMAGED
from trouper.cli.owner import owner_of
from trouper.cli.terminal import Terminal, clean, clean_line, plural, size_of, when, when_exactly
from trouper.cli.views import check_readable, open_view
from trouper.journal import JournalError, RawRecord, open_log, open_reader
from trouper.journal.format import is_gap
from trouper.journal.reader import damaged
from trouper.roster import SessionDamaged

#: More than this makes browsers slow.
PAGE_RECORDS = 5_000
#: How often `tail --follow` looks for more, in seconds.
LOOK_S = 0.1


def main(arguments: Sequence[str]) -> int:
    return carry_out(_parser(), arguments)


def _parser() -> Parser:
    parser = Parser(prog="trouper journal", description=__doc__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)

    ls = commands.add_parser("ls", help="the sessions in a journal, or its files")
    ls.add_argument("--segments", action="store_true", help="list the files instead of the sessions")
    _finish(ls, _ls)

    show = commands.add_parser("show", help="records, one a line; or one of them whole")
    show.add_argument("--session", type=text, metavar="ID", help="of this session only")
    show.add_argument("--after", type=count, default=0, metavar="SEQ", help="begin behind this record")
    show.add_argument("--limit", type=count, metavar="N", help="at most so many records")
    show.add_argument("--record", type=count, metavar="SEQ", help="this one, whole")
    _finish(show, _show)

    tail = commands.add_parser("tail", help="the last records, and with --follow those to come")
    tail.add_argument("-n", "--lines", type=count, default=10, metavar="N", help="how many (default 10)")
    tail.add_argument("-f", "--follow", action="store_true", help="wait for more; end with Ctrl-C")
    tail.add_argument("--session", type=text, metavar="ID", help="of this session only")
    _finish(tail, _tail)

    verify = commands.add_parser("verify", help="check every byte; exit code 65 if something is wrong")
    _finish(verify, _verify)

    replay = commands.add_parser("replay", help="rebuild states from the records, and decide every command again")
    replay.add_argument("--session", type=text, metavar="ID", help="this session's steps or state")
    replay.add_argument("--at", type=count, metavar="SEQ", help="the state after this record, whole")
    replay.add_argument("--diff", nargs=2, type=count, metavar=("SEQ", "SEQ"), help="what changed between two records")
    replay.add_argument(
        "--fork", type=_target, metavar="DIR", help="write the records up to --at to a new journal in DIR"
    )
    _finish(replay, _replay)

    page = commands.add_parser(
        "html",
        help="a page to look at in a browser: who said what, and every event",
        description="A page to look at in a browser: who said what, and every event behind a click. "
        "Very long texts are cut, and say how much is left out; `trouper journal show --record` has them whole.",
    )
    page.add_argument("--session", type=text, metavar="ID", help="of this session only")
    page.add_argument("--after", type=count, default=0, metavar="SEQ", help="begin behind this record")
    page.add_argument(
        "--limit",
        type=count,
        default=PAGE_RECORDS,
        metavar="N",
        help=f"at most so many records (default {PAGE_RECORDS:,})",
    )
    page.add_argument(
        "-o", "--output", metavar="FILE", help="where to write it, anew (default, and -: standard output)"
    )
    add_root(page, positional=True)
    page.set_defaults(command=_html)

    repair = commands.add_parser("repair", help="write what is good of a damaged journal to a new one")
    repair.add_argument("directory", metavar="DIR", help="the damaged journal; it is only read")
    repair.add_argument("target", type=_target, metavar="NEW", help="where to write; must not exist")
    add_json(repair)
    repair.set_defaults(command=_repair, root=None, profile=None)

    archive = commands.add_parser("archive", help="pack away the segments that hold ended sessions only, or drop them")
    archive.add_argument("--drop", action="store_true", help="delete the records for good instead of packing them")
    _finish(archive, _archive)
    return parser


def _target(argument: str) -> str:
    """The type of an argument that names a directory to be made. Nothing at all would be the one that we are in."""
    if not argument:
        raise argparse.ArgumentTypeError("'' cannot be a directory")
    return argument


def _finish(parser: argparse.ArgumentParser, command: object) -> None:
    add_root(parser, positional=True)
    add_json(parser)
    parser.set_defaults(command=command)


# --- ls ---


def _ls(options: argparse.Namespace) -> int:
    root, out = root_of(options), Terminal()
    layout = check_readable(root)
    if options.segments:
        rows = []
        for segment in layout.segments:
            footer = segment.footer
            last = footer.last if footer is not None else None
            if segment.is_stub:
                fate = "archived" if segment.archive else "dropped"
            else:
                fate = "sealed" if segment.sealed else "live"
            if options.json:
                out.json(
                    {
                        "segment": segment.number,
                        "file": segment.path,
                        "first": segment.header.first,
                        "last": last,
                        "bytes": segment.size,
                        "epoch": segment.header.epoch,
                        "state": fate,
                    }
                )
            rows.append(
                (
                    segment.number,
                    segment.header.first,
                    "-" if last is None else last,
                    size_of(segment.size),
                    fate,
                    segment.path,
                )
            )
        if not options.json:
            out.table(("SEGMENT", "FIRST", "LAST", "SIZE", "STATE", "FILE"), rows)
        return 0
    with open_view(root) as view:
        found: list[tuple[str, str, int | None, int | None, int | None, int | None]] = []
        for name, state, events in view.each():
            if isinstance(state, SessionDamaged):
                found.append((name, "damaged", None, None, None, None))
                continue
            tasks, notes = len(state.tasks.live), len(state.notifications.pending)
            found.append((name, state.phase.value, state.turns, events, tasks, notes))
        recovery = view.log.recovery
    if options.json:
        names = ("session", "phase", "turns", "events", "live_tasks", "pending_notifications")
        for each in found:
            out.json(dict(zip(names, each, strict=True)))
        return 0
    owner = owner_of(root)
    held = "nobody writes" if owner is None else f"process {owner} writes" if owner else "another process writes"
    total = sum(segment.size for segment in layout.segments)
    out.line(
        f"{clean_line(recovery.journal)}: {plural(recovery.last, 'record')} in {plural(len(layout.segments), 'segment')} "
        f"({size_of(total)}), epoch {recovery.epoch}, {held}"
    )
    shown = [tuple("-" if cell is None else cell for cell in each) for each in found]
    out.table(("SESSION", "PHASE", "TURNS", "EVENTS", "TASKS", "NOTIFICATIONS"), shown)
    return 0


# --- show and tail ---


def _show(options: argparse.Namespace) -> int:
    root, out = root_of(options), Terminal()
    if options.record is not None and (options.session is not None or options.after or options.limit is not None):
        raise UsageError("--record names the one record to show; leave out --session, --after and --limit")
    if not options.json:
        check_readable(root)
    reader = open_reader(root)
    if options.record is not None:
        for raw in reader.records(after=max(0, options.record - 1)):
            if raw.seq >= options.record:
                if raw.seq == options.record:
                    _print_whole(out, raw, options.json)
                    return 0
                break
        raise UsageError(f"the journal has no record {options.record}; `trouper journal ls` says how many there are")
    shown = 0
    for raw in reader.records(after=options.after, stream=options.session):
        if options.limit is not None and shown >= options.limit:
            break
        _print(out, raw, options.json)
        shown += 1
    if not shown and options.session is not None and not any(reader.records(stream=options.session)):
        raise _no_session(options.session)
    if options.limit is None:
        _check_end(root)
    return 0


def _tail(options: argparse.Namespace) -> int:
    root, out = root_of(options), Terminal()
    if not options.json:
        check_readable(root)
    reader = open_reader(root)
    last: list[RawRecord] = []
    after = 0
    problem: JournalError | None = None
    try:
        for raw in reader.records(stream=options.session):
            after = raw.seq
            last.append(raw)
            if len(last) > options.lines:
                del last[0]
    except JournalError as error:
        problem = error  # What is before the damage is shown first.
    if not after and options.session is not None and not options.follow and problem is None:
        raise _no_session(options.session)
    for raw in last:
        _print(out, raw, options.json)
    out.stream.flush()
    if problem is not None:
        raise problem
    while options.follow:
        for raw in reader.records(after=after, stream=options.session):
            after = raw.seq
            _print(out, raw, options.json)
        out.stream.flush()
        time.sleep(LOOK_S)
    _check_end(root)
    return 0


def _check_end(root: Path) -> None:
    """Raises if records behind the last one are known to be lost: to whoever has read all that is left, the journal looks whole (J10)."""
    if open_reader(root).layout().too_new is not None:
        return  # Its lines are shown as they are.
    log = open_log(root, read_only=True)
    try:
        if log.recovery.damage:
            raise damaged(log.root, log.recovery.damage[0])
    finally:
        log.close()


def _no_session(name: str) -> UsageError:
    return UsageError(f"the journal has no session {name!r}; `trouper journal ls` lists them", session=name)


def _print(out: Terminal, raw: RawRecord, as_json: bool) -> None:
    if as_json:
        out.stream.write(f'{{"seq":{raw.seq},"record":{raw.payload.decode("ascii", "backslashreplace")}}}\n')
        return
    for line in lines_of(raw, out):
        out.line(line)


def lines_of(raw: RawRecord, out: Terminal) -> Iterator[str]:
    """A record for people: one line for what it was, and one for each event that followed."""
    if is_gap(raw.payload):
        gap = codec.loads(raw.payload)["body"]
        lost = f"records {gap['first']} to {gap['last']} are missing: {gap['reason']}"
        yield f"{raw.seq:>6}  {out.style('gap', 'red')}  {clean_line(lost)}"
        return
    record = codec.decode(raw.payload, raw.seq)
    head = f"{raw.seq:>6}  {when(record.at)}  {clean_line(record.session)}#{record.n}  "
    shown = [describe(event) for event in record.events]
    yield out.style(head, "dim") + out.style(type(record.cause).__name__, "cyan")
    for line in shown:
        yield f"{'':>8}{clean_line(line, max(40, out.width - 10))}"


def _print_whole(out: Terminal, raw: RawRecord, as_json: bool) -> None:
    if as_json:
        _print(out, raw, True)
        return
    import json

    out.line(clean(json.dumps(codec.loads(raw.payload), indent=2, ensure_ascii=False)))


# --- verify, replay, repair ---


def _verify(options: argparse.Namespace) -> int:
    from trouper.journal import verify

    root, out = root_of(options), Terminal()
    check_readable(root)
    report = verify(root)
    if options.json:
        out.json(
            {
                "ok": report.ok,
                "records": report.records,
                "last": report.last,
                "segments": report.segments,
                "bytes": report.bytes,
                "blobs": report.blobs,
                "torn_bytes": report.torn.size if report.torn is not None else 0,
                "damage": [
                    {"file": d.file, "offset": d.offset, "reason": d.reason, "sessions": list(d.sessions)}
                    for d in report.damage
                ],
                "snapshots": [{"file": d.file, "reason": d.reason} for d in report.snapshots],
            }
        )
        return 0 if report.ok else DAMAGED
    checked = f"{plural(report.records, 'record')}, {plural(report.segments, 'segment')}, {plural(report.blobs, 'blob')}, {size_of(report.bytes)}"
    for damage in report.damage:
        out.line(f"{out.style('damaged', 'red')}: {clean_line(str(damage))}")
    if report.torn is not None:
        out.line(
            f"torn: the last {plural(report.torn.size, 'byte')} of {clean_line(report.torn.file)} were never acknowledged; the next start sets them aside"
        )
    for snapshot in report.snapshots:
        out.line(f"unusable snapshot: {clean_line(str(snapshot))}; it will be built again")
    if report.ok:
        out.line(f"{out.style('ok', 'green')}: every byte is as it was written ({checked})")
        return 0
    out.line(
        f"checked {checked}; `trouper journal repair {clean_line(str(root))} NEW` writes a new journal without the damaged part"
    )
    return DAMAGED


def _replay(options: argparse.Namespace) -> int:
    from trouper.replay import open_journal

    root, out = root_of(options), Terminal()
    if options.diff is not None and (options.at is not None or options.fork is not None):
        raise UsageError("--diff names its two records itself; leave out --at and --fork")
    check_readable(root)
    journal = open_journal(root)
    if options.fork is not None:
        forked = journal.fork(journal.last if options.at is None else options.at, options.fork, options.session)
        if options.json:
            out.json({"root": forked.root, "records": forked.records, "sessions": list(forked.sessions)})
        else:
            out.line(
                f"wrote {plural(forked.records, 'record')} of {plural(len(forked.sessions), 'session')} to {clean_line(forked.root)}"
            )
        return 0
    if options.diff is not None:
        for difference in journal.diff(options.diff[0], options.diff[1], options.session):
            if options.json:
                out.json(
                    {
                        "path": difference.path,
                        "before": _jsonable(difference.before),
                        "after": _jsonable(difference.after),
                    }
                )
            else:
                out.line(clean_line(str(difference)))
        return 0
    if options.at is not None:
        state = codec.to_json(journal.state_at(options.at, options.session))
        if options.json:
            out.json(state)
        else:
            import json

            out.line(clean(json.dumps(codec.loads(codec.dumps(state)), indent=2, ensure_ascii=False)))
        return 0
    return _replay_steps(journal, options, out)


def _replay_steps(journal: object, options: argparse.Namespace, out: Terminal) -> int:
    """Every step with the phase that it led to; then the verdict of deciding everything again."""
    from trouper.core.outstanding import outstanding
    from trouper.replay import Journal, ReplayGap, Step

    assert isinstance(journal, Journal)

    def steps() -> Iterator[Step]:
        # A hole comes behind all other steps, and is told with the verdict.
        with contextlib.suppress(ReplayGap):
            yield from journal.steps(options.session)

    for step in steps():
        record, after = step.record, step.after
        owed = [" ".join(map(str, key)) for key in outstanding(after)]
        if options.json:
            out.json(
                {
                    "seq": record.seq,
                    "at": when_exactly(record.at),
                    "session": record.session,
                    "n": record.n,
                    "command": type(record.cause).__name__,
                    "events": [codec.event_to_json(event) for event in record.events],
                    "phase": after.phase.value,
                    "outstanding": owed,
                }
            )
            continue
        waits = "  " + clean_line(f"waits for: {', '.join(owed)}", max(40, out.width - 40)) if owed else ""
        out.line(
            out.style(f"{record.seq:>6}  {clean_line(record.session)}#{record.n}  ", "dim")
            + out.style(type(record.cause).__name__, "cyan")
            + f" -> {after.phase.value}{waits}"
        )
        for event in record.events:
            out.line(f"{'':>8}{clean_line(describe(event), max(40, out.width - 10))}")
    verdict = journal.verify()
    if options.json:
        out.json(
            {
                "ok": verdict.ok,
                "damage": [str(damage) for damage in verdict.report.damage],
                "rerun": verdict.rerun,
                "divergences": [str(found) for found in verdict.divergences],
                "holes": [str(hole) for hole in verdict.holes],
            }
        )
        return 0 if verdict.ok else DAMAGED
    for damage in verdict.report.damage:
        out.line(
            f"{out.style('damaged', 'red')}: {clean_line(str(damage))}; nothing was decided again, see `trouper journal repair`"
        )
    for hole in verdict.holes:
        out.line(f"{out.style('hole', 'yellow')}: {clean_line(str(hole))}")
    if verdict.ok:
        out.line(f"{out.style('ok', 'green')}: today's code decides all {plural(verdict.rerun, 'command')} as recorded")
    for divergence in verdict.divergences:
        out.line(f"{out.style('differs', 'red')}: {clean_line(str(divergence))}")
    return 0 if verdict.ok else DAMAGED


def _jsonable(value: object) -> object:
    from trouper.replay.difference import MISSING

    return None if value is MISSING else value


def _repair(options: argparse.Namespace) -> int:
    from trouper.journal import repair

    out = Terminal()
    check_readable(Path(options.directory))
    repaired = repair(options.directory, options.target)
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
        out.json({"target": repaired.target, "records": repaired.records, "last": repaired.last, "gaps": gaps})
        return 0
    out.line(f"wrote {plural(repaired.records, 'record')} to {clean_line(repaired.target)}")
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


# --- html ---


def _html(options: argparse.Namespace) -> int:
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
    _check_end(root)
    return 0


def _page_file(root: Path, named: str) -> Path:
    """Where a page goes: behind all links; and never in the place of what is no file, or is the journal's own, for it takes the place of whatever is there."""
    if not named or "\0" in named or named.endswith(os.sep) or os.path.isdir(named):
        raise UsageError(f"{named!r} cannot be a file; name one with --output")
    path = Path(os.path.realpath(named))
    if os.path.lexists(path) and not path.is_file():
        raise UsageError(f"{named!r} is no file; leave out --output, and send the page there: `> {named}`")
    if Path(os.path.realpath(root)) in path.parents and path.suffix != ".html":
        raise UsageError(f"{named!r} is in the root itself; write the page elsewhere, or to a name that ends in .html")
    return path


# --- archive ---


def _archive(options: argparse.Namespace) -> int:
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
