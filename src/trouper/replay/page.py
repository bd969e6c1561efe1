"""A journal as a page to look at: who said what, what ran, how it ended, and every event behind a click.

The page stands by itself, is plain ASCII, and as untrusting as a terminal: everything that comes out of the journal is escaped, what nobody can see is shown by its number,
and the page is forbidden to run or to load anything.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import attrs

from trouper import checks, codec
from trouper._errors import TrouperError
from trouper.core.events import CallEnded, InputReceived, ModelFailed, ModelReplied, TurnEnded
from trouper.core.messages import Json, Message, Thinking
from trouper.core.session import State
from trouper.replay.journal import Journal, Step

#: Of one text, so much is on the page; `trouper journal show --record` has it all.
TEXT_MAX = 4_000
#: What is no longer stands on one line.
LINE_MAX = 100
#: Control characters but line ends and tabs; characters that turn the direction of what follows, or that nobody can see; halves of characters.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 68rem; padding: 0 1rem }
table { border-collapse: collapse } th, td { text-align: left; padding: .15rem 1rem .15rem 0 }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .3rem 0; font: 13px/1.4 ui-monospace, monospace; unicode-bidi: isolate }
section { border-top: 1px solid #8884; padding: .4rem 0 }
header span, summary { color: GrayText; font-size: 13px } header b { font-weight: 600 }
.user pre, .reply pre { font: inherit } .user { border-left: .25rem solid #3b82f6; padding-left: .6rem }
.reply { border-left: .25rem solid #10b981; padding-left: .6rem } .tool { border-left: .25rem solid #a78bfa; padding-left: .6rem }
.end { border-left: .25rem solid #8888; padding-left: .6rem } .wrong { border-left: .25rem solid #ef4444; padding-left: .6rem }
"""


@attrs.define
class Overview:
    """One session of the page."""

    first: int
    records: int = 0
    state: State = attrs.Factory(State)


class Page:
    """The journal of all sessions, or of one, as HTML: iterate it for its pieces. What it could not show is in `problem`, and on the page."""

    def __init__(
        self, journal: Journal, session: str | None = None, *, after: int = 0, limit: int | None = None
    ) -> None:
        checks.count(after, "after")
        if limit is not None:
            checks.count(limit, "limit")
        self._journal = journal
        self._session = session
        self._after = after
        self._limit = limit
        self.sessions: dict[str, Overview] = {}
        #: Why the page ends before the journal does, or leaves something out; None if it does not.
        self.problem: TrouperError | None = None
        for step in self._steps():
            seen = self.sessions.setdefault(step.record.session, Overview(step.record.seq))
            seen.records += 1
            seen.state = step.after

    def _steps(self) -> Iterator[Step]:
        steps = self._journal.steps(self._session)
        while True:
            try:
                step = next(steps, None)
            except TrouperError as error:
                # Who named a session that is not there has to hear of it; what is damaged is shown as far as it goes.
                if not self.sessions:
                    raise
                self.problem = error
                return
            if step is None:
                return
            yield step

    def __iter__(self) -> Iterator[str]:
        root = _escaped(self._journal.root)
        yield (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
            f'<meta name="viewport" content="width=device-width"><title>Journal {root}</title><style>{_STYLE}</style></head>\n'
            f"<body><h1>Journal</h1><p>{root}</p>\n"
        )
        if self.problem is not None:
            yield f'<p class="wrong"><b>Not all of it can be shown:</b> {_escaped(str(self.problem))}</p>\n'
        yield from self._table()
        shown = passed = 0
        for step in self._steps():
            if step.record.seq <= self._after:
                continue
            if self._limit is not None and shown >= self._limit:
                passed += 1
                continue
            shown += 1
            yield _section(step)
        if passed:
            yield f"<p>{passed} more records are not on this page; see --after and --limit.</p>\n"
        yield "</body></html>\n"

    def _table(self) -> Iterator[str]:
        yield "<table><tr><th>session<th>phase<th>turns<th>records<th>tokens</tr>\n"
        for name, seen in self.sessions.items():
            tokens = seen.state.spent.usage.total
            yield (
                f'<tr><td><a href="#r{seen.first}">{_escaped(name)}</a><td>{seen.state.phase.value}<td>{seen.state.turns}'
                f"<td>{seen.records}<td>{'-' if tokens is None else tokens}</tr>\n"
            )
        yield "</table>\n"


def _section(step: Step) -> str:
    record = step.record
    at = datetime.fromtimestamp(record.at, UTC).isoformat(" ", "milliseconds").replace("+00:00", "Z")
    events = "".join(map(_event, record.events))
    return (
        f'<section id="r{record.seq}"><header><b>{record.seq}</b> <span>{at} {_escaped(record.session)}#{record.n} '
        f"{type(record.cause).__name__} &rarr; {step.after.phase.value}</span></header>{events}</section>\n"
    )


def _event(event: Any) -> str:
    """What people look for is there at once, and everything behind a click."""
    match event:
        case InputReceived(text=text, kind=kind):
            kind_of, told = "user", [_block(text)] if kind == "normal" else [f"<i>{_escaped(kind)}</i>", _block(text)]
        case ModelReplied(message=message):
            kind_of, told = "reply", _said(message)
        case CallEnded(call=call, outcome=outcome, content=content):
            kind_of = "tool" if outcome.value == "ok" else "wrong"
            told = [f"{_escaped(call)}: <b>{outcome.value}</b>", _block(_plain(content))]
        case ModelFailed(fault=fault):
            kind_of, told = "wrong", [f"<b>{_escaped(fault.kind)}</b>", _block(fault.message)]
        case TurnEnded(turn=turn, stop_reason=reason, fault=fault):
            kind_of = "end" if fault is None else "wrong"
            told = [f"turn {turn} ended: <b>{_escaped(reason)}</b>"]
            if fault is not None:
                told.append(_block(f"{fault.kind}: {fault.message}"))
        case _:
            kind_of, told = "", []
    whole = json.dumps(codec.event_to_json(event), indent=1, ensure_ascii=False, default=str)
    details = f"<details><summary>{type(event).__name__}</summary>{_block(whole)}</details>"
    return f'<div class="{kind_of}">{"".join(told)}{details}</div>'


def _said(message: Message) -> list[str]:
    told = []
    thought = "".join(part.text for part in message.parts if isinstance(part, Thinking))
    if thought:
        told.append(f"<details><summary>thinking</summary>{_block(thought)}</details>")
    if message.text:
        told.append(_block(message.text))
    told += [f"calls <b>{_escaped(call.name)}</b>{_block(_plain(call.arguments))}" for call in message.calls]
    return told


def _plain(value: Json) -> str:
    if isinstance(value, str):
        return value
    line = json.dumps(value, ensure_ascii=False, default=str)
    return line if len(line) <= LINE_MAX else json.dumps(value, indent=1, ensure_ascii=False, default=str)


def _block(text: str) -> str:
    cut = len(text) - TEXT_MAX
    if cut <= 0:
        return f"<pre>{_escaped(text)}</pre>"
    return f"<pre>{_escaped(text[:TEXT_MAX])}</pre><i>and {cut} more characters</i>"


def _escaped(text: str) -> str:
    seen = _UNSEEN.sub(lambda found: f"\\u{{{ord(found[0]):x}}}", text)
    return html.escape(seen).encode("ascii", "xmlcharrefreplace").decode()
