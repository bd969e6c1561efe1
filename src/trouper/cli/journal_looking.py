"""`trouper journal ls`, `show` and `tail`: what is in a journal, as it is."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

from trouper import codec
from trouper._errors import UsageError
from trouper.cli.arguments import root_of, to_type
from trouper.cli.describe import describe
from trouper.cli.owner import owner_of
from trouper.cli.terminal import Terminal, clean, clean_line, fitted, plural, size_of, when
from trouper.cli.views import check_readable, open_view
from trouper.journal import JournalError, RawRecord, open_log, open_reader
from trouper.journal.format import is_gap
from trouper.journal.reader import damaged
from trouper.roster import SessionDamaged

#: How often `tail --follow` looks for more, in seconds.
LOOK_S = 0.1


def ls(options: argparse.Namespace) -> int:
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


def show(options: argparse.Namespace) -> int:
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
        raise UsageError(f"the journal has no record {options.record}; {to_type('journal ls')} says how many there are")
    shown = 0
    for raw in reader.records(after=options.after, stream=options.session):
        if options.limit is not None and shown >= options.limit:
            break
        _print(out, raw, options.json)
        shown += 1
    if not shown and options.session is not None and not any(reader.records(stream=options.session)):
        raise _no_session(options.session)
    if options.limit is None:
        check_end(root)
    return 0


def tail(options: argparse.Namespace) -> int:
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
    check_end(root)
    return 0


def check_end(root: Path) -> None:
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
    return UsageError(f"the journal has no session {name!r}; {to_type('journal ls')} lists them", session=name)


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
        yield f"{'':>8}{fitted(clean_line(line), max(40, out.width - 10))}"


def _print_whole(out: Terminal, raw: RawRecord, as_json: bool) -> None:
    if as_json:
        _print(out, raw, True)
        return
    import json

    out.line(clean(json.dumps(codec.loads(raw.payload), indent=2, ensure_ascii=False)))
