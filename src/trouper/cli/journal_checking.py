"""`trouper journal verify` and `replay`: whether every byte is as it was written, and what today's code makes of it."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path

from trouper import codec
from trouper._errors import UsageError
from trouper.cli.arguments import in_shell, root_of
from trouper.cli.describe import describe
from trouper.cli.endings import DAMAGED
from trouper.cli.terminal import Terminal, clean, clean_line, fitted, plural, size_of, when_exactly
from trouper.cli.views import check_readable


def verify(options: argparse.Namespace) -> int:
    from trouper.journal import verify as verify_bytes

    root, out = root_of(options), Terminal()
    check_readable(root)
    report = verify_bytes(root)
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
        f"checked {checked}; `trouper journal repair {in_shell(root)} NEW` writes a new journal without the damaged part"
    )
    return DAMAGED


def replay(options: argparse.Namespace) -> int:
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
            out.line(
                "a fork has the records alone; copy yourself what it is to have of files/, kv/, secrets/ and trouper.toml"
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
    return _replay_steps(root, journal, options, out)


def _replay_steps(root: Path, journal: object, options: argparse.Namespace, out: Terminal) -> int:
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
        waits = "  " + fitted(clean_line(f"waits for: {', '.join(owed)}"), max(40, out.width - 40)) if owed else ""
        out.line(
            out.style(f"{record.seq:>6}  {clean_line(record.session)}#{record.n}  ", "dim")
            + out.style(type(record.cause).__name__, "cyan")
            + f" -> {after.phase.value}{waits}"
        )
        for event in record.events:
            out.line(f"{'':>8}{fitted(clean_line(describe(event)), max(40, out.width - 10))}")
    verdict = journal.verify()
    if options.json:
        out.json(
            {
                "ok": verdict.ok,
                "damage": [str(damage) for damage in verdict.report.damage],
                "rerun": verdict.rerun,
                "divergences": [str(found) for found in verdict.divergences],
                "holes": [str(hole) for hole in verdict.holes],
                "snapshots": [str(found) for found in verdict.snapshots],
            }
        )
        return 0 if verdict.ok else DAMAGED
    for damage in verdict.report.damage:
        out.line(
            f"{out.style('damaged', 'red')}: {clean_line(str(damage))}; nothing was decided again, see `trouper journal repair {in_shell(root)} NEW`"
        )
    for hole in verdict.holes:
        out.line(f"{out.style('hole', 'yellow')}: {clean_line(str(hole))}")
    if verdict.report.ok and not verdict.divergences:
        out.line(f"{out.style('ok', 'green')}: today's code decides all {plural(verdict.rerun, 'command')} as recorded")
    for found in (*verdict.divergences, *verdict.snapshots):
        out.line(f"{out.style('differs', 'red')}: {clean_line(str(found))}")
    return 0 if verdict.ok else DAMAGED


def _jsonable(value: object) -> object:
    from trouper.replay.difference import MISSING

    return None if value is MISSING else value
