"""A journal opened for looking. Everything here is a fold of its records with the same `evolve` and `decide` as the live actors use."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import reduce
from itertools import chain
from typing import Any

from attrs import frozen

from trouper import checks, codec
from trouper._errors import TrouperError, UsageError, WorldError
from trouper.core import decisions, memory
from trouper.core.ids import is_session
from trouper.core.memory import Memories
from trouper.core.session import State, evolve
from trouper.core.values import changed
from trouper.journal import Entry, OsDisk, Reader, Report, open_log, open_reader
from trouper.journal import verify as verify_bytes
from trouper.journal.building import building
from trouper.journal.format import is_gap, stream_of
from trouper.journal.reader import opening_error
from trouper.replay.difference import Difference, differences, events_difference
from trouper.replay.pictured import Pictured, SnapshotDiffers


class ReplayGap(WorldError):
    """Records of this session are missing; `session`, `event` and `seq` say where. What comes behind cannot be folded."""

    exit_code = 65


class ReplayRefused(ReplayGap):
    """Today's code cannot fold a record of this session: what it says cannot have happened. Its fields are those of `ReplayGap`."""


@frozen
class Step:
    """One record: what was commanded, what followed, and the state on both sides."""

    record: codec.Record
    before: State
    after: State


@frozen
class Divergence:
    """Today's code decides otherwise than the journal says (I18)."""

    seq: int
    session: str
    command: str
    problem: str

    def __str__(self) -> str:
        return f"record {self.seq} of session {self.session!r}: {self.command} {self.problem}"


@frozen
class Verdict:
    """The bytes, and the meaning: every command decided again with today's code, up to the first difference of each session.

    A session of which records are missing, because a repair or an explicit command took them out, is decided up to there; `holes` says where.
    """

    report: Report
    rerun: int
    divergences: tuple[Divergence, ...]
    holes: tuple[ReplayGap, ...] = ()
    snapshots: tuple[SnapshotDiffers, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the bytes are whole, today's code decides everything as recorded, and the next start begins with the states that follow from it."""
        return self.report.ok and not self.divergences and not self.snapshots


@frozen
class Forked:
    """The new journal that `Journal.fork` wrote."""

    root: str
    records: int
    sessions: tuple[str, ...]


class Journal:
    """Use `open_journal`."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    @property
    def root(self) -> str:
        """The directory that was opened."""
        return self._reader.root

    @property
    def sessions(self) -> tuple[str, ...]:
        """Every session that has a record, in the order of their first ones."""
        found: dict[str, None] = {}
        for raw in self._reader.lines():
            if not is_gap(raw.payload) and is_session(stream_of(raw.payload)):
                found[stream_of(raw.payload)] = None
        return tuple(found)

    @property
    def last(self) -> int:
        """The sequence of the last record; 0 in an empty journal."""
        live = self._reader.layout().live
        if live is not None and live.footer is not None:
            return live.footer.last
        last = live.header.first - 1 if live is not None else 0
        for raw in self._reader.lines(after=last):
            last = raw.seq
        return last

    def records(self, session: str | None = None, *, after: int = 0, upto: int | None = None) -> Iterator[codec.Record]:
        """Records with `after` < sequence <= `upto`, of one session or of all, in order; those of the memory (`~memory`) are among them."""
        if session is not None:
            self._known(session)
        checks.count(after, "after")
        if upto is not None:
            checks.count(upto, "upto")
        for found in self._found(session, after, upto):
            if isinstance(found, _Unreadable):
                raise found.error
            yield found

    def _found(
        self, session: str | None = None, after: int = 0, upto: int | None = None
    ) -> Iterator[codec.Record | _Unreadable]:
        """The same; one that cannot be read is given as that, and keeps nobody from those behind it."""
        for raw in self._reader.records(after=after, stream=session):
            if upto is not None and raw.seq > upto:
                return
            if is_gap(raw.payload):
                continue
            try:
                found: codec.Record | _Unreadable = codec.decode(raw.payload, raw.seq)
            except codec.UndecodableRecord as error:
                found = _Unreadable(stream_of(raw.payload), raw.seq, error)
            yield found

    def steps(self, session: str | None = None) -> Iterator[Step]:
        """Each record with the state of its session before and after it.

        A session of which records are missing, or cannot be folded, ends before that place; once all the others are through, the first such place is
        raised as `ReplayGap`.
        """
        if session is not None:
            self._only(session)
        fold = _Fold()
        for found in self._found(session):
            step = fold.step(found)
            if step is not None:
                yield step
        for hole in fold.holes.values():
            raise hole

    def state_at(self, seq: int, session: str | None = None) -> State:
        """The state of a session after the journal's record `seq` (0: before the first); a journal of one session needs no name."""
        name = self._only(session)
        self._check(seq)
        fold = _Fold()
        for found in self._found(name, upto=seq):
            fold.step(found)
            if fold.holes:
                raise fold.holes[name]
        return fold.states.get(name, State())

    def diff(self, before: int, after: int, session: str | None = None) -> tuple[Difference, ...]:
        """What changed in a session between two sequences."""
        name = self._only(session)
        return differences(self.state_at(before, name), self.state_at(after, name))

    def verify(self) -> Verdict:
        """Check every byte, then decide every recorded command again (I18), those of the memory too, and compare what the newest snapshot has with what follows (I12).

        Stops deciding for a session at its first difference.
        """
        report = verify_bytes(self.root, disk=self._reader.disk)
        if not report.ok:
            return Verdict(report, 0, ())
        found: dict[str, Divergence] = {}
        rerun = 0
        fold = _Fold()
        # Before the records are read: a writer beside us may make another snapshot meanwhile, of records that we did not see.
        with closing(Pictured(self._reader)) as pictured:
            for record in self._found():
                name = record.session
                if name in found:
                    continue
                if isinstance(record, _Unreadable):
                    found[name] = Divergence(record.seq, name, "it", f"cannot be read now: {record.error}")
                    continue
                if not fold.takes(record):
                    continue
                rerun += 1
                problem = fold.decide_again(record)
                if problem is not None:
                    found[name] = Divergence(record.seq, name, type(record.cause).__name__, problem)
                else:
                    pictured.compare(name, fold.reached[name], fold.state_of(name))
            wrong = pictured.wrong(fold.reached, {*found, *fold.holes})
        return Verdict(report, rerun, tuple(found.values()), tuple(fold.holes.values()), wrong)

    def fork(self, seq: int, target: str | os.PathLike[str], session: str | None = None) -> Forked:
        """A new journal in `target` that holds this one's records up to `seq`, of one session or of all, and nothing else of the root. Blocks.

        Opening a runtime on it goes on from there: a turn that was open at `seq` is closed as after a crash. The old journal is only read.
        The new one gets its name when it is complete; until then it is in `target` with `.tmp` behind it. What fails leaves neither; what a killed process has left there
        is taken away.
        """
        place = os.path.abspath(_path(target, "give the directory that is to hold the new one"))
        self._check(seq)
        if session is not None:
            self._known(session)
        records = self._found(session, upto=seq)
        first = next(records, None)
        if first is None:
            raise self._nothing_yet(seq, session)
        try:
            with building(OsDisk(), place) as unfinished:
                count, names = _copy(chain([first], records), unfinished)
        except OSError as error:
            raise opening_error(place, error, "written") from error
        return Forked(place, count, names)

    def _nothing_yet(self, seq: int, session: str | None) -> UsageError:
        whose = f"the journal {self.root!r}" if session is None else f"session {session!r}"
        begun = next(self._found(session), None)
        where = "it has none at all" if begun is None else f"its first one is {begun.seq}"
        return UsageError(f"{whose} has no record up to {seq}, so there is nothing to fork; {where}", seq=seq)

    def _only(self, session: str | None) -> str:
        """The name of a session that has states; the only one, if none is named."""
        if session is not None:
            if not is_session(self._known(session)):
                raise UsageError(
                    f"{session!r} is what was remembered, for all sessions, and has no states of a session; its records tell: records({session!r}), "
                    f"or `trouper journal show --session {session}`",
                    session=session,
                )
            return session
        names = self.sessions
        if len(names) != 1:
            raise UsageError(f"the journal {self.root!r} holds {len(names)} sessions; name one of them", sessions=names)
        return names[0]

    def _known(self, session: str) -> str:
        if isinstance(session, str):
            for raw in self._reader.records(stream=session):
                if not is_gap(raw.payload):
                    return session
        names = self.sessions
        there = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "") if names else "none"
        raise UsageError(f"the journal {self.root!r} has no session {session!r}; there is: {there}", session=session)

    def _check(self, seq: object) -> None:
        if not isinstance(seq, int) or isinstance(seq, bool) or seq < 0:
            raise UsageError(f"{seq!r} is no place in a journal; give a whole number from 0 up", seq=seq)
        last = self.last
        if seq > last:
            for _ in self._reader.records(after=last):
                pass  # Damage behind the last good record is told as what it is.
            raise UsageError(f"the journal {self.root!r} has no record {seq}; the last one is {last}", seq=seq)


def open_journal(path: str | os.PathLike[str]) -> Journal:
    """The journal in a directory, for reading: takes no lock, changes nothing."""
    return Journal(open_reader(_path(path, "give the directory that holds the segments")))


def _path(given: object, remedy: str) -> str:
    name = os.fspath(given) if isinstance(given, str | os.PathLike) else given
    try:
        if isinstance(name, str) and name and b"\0" not in os.fsencode(name):
            return name
    except UnicodeEncodeError:
        pass
    raise UsageError(f"{given!r} is no path of a journal; {remedy}", path=given)


@frozen
class _Unreadable:
    """A record that today's code cannot read, in the place of which it stands."""

    session: str
    seq: int
    error: codec.UndecodableRecord


class _Fold:
    """The states of sessions as their records come; a session of which some are missing, or cannot be folded, is folded no further."""

    def __init__(self) -> None:
        self.states: dict[str, State] = {}
        self._memories = Memories()
        self.holes: dict[str, ReplayGap] = {}
        #: How many events of each were taken.
        self.reached: dict[str, int] = {}

    def state_of(self, name: str) -> State | Memories:
        return self.states.get(name, State()) if is_session(name) else self._memories

    def step(self, record: codec.Record | _Unreadable) -> Step | None:
        """Fold one record; None if it is behind a hole, or not a session's."""
        name = record.session
        if not is_session(name):
            return None
        if isinstance(record, _Unreadable):
            if name not in self.holes:
                self._refuse(name, record.seq, self.reached.get(name, 0), str(record.error))
            return None
        if not self.takes(record):
            return None
        before = after = self.states.get(name, State())
        try:
            for event in record.events:
                after = evolve(after, event)
        except Exception as error:  # A pure fold: whatever it raises is about this record.
            self._refuse(name, record.seq, record.n, _said(error))
            return None
        self.states[name] = after
        return Step(record, before, after)

    def _refuse(self, name: str, seq: int, event: int, why: str) -> None:
        self.holes[name] = ReplayRefused(
            f"today's code cannot fold record {seq} of session {name!r}: {why}; "
            "look at the states before it, or at other sessions",
            session=name,
            event=event,
            seq=seq,
        )

    def takes(self, record: codec.Record) -> bool:
        """Whether this record is the next one of its stream; False from the first hole on."""
        name = record.session
        if name in self.holes:
            return False
        wanted = self.reached.get(name, 0)
        if record.n != wanted:
            self.holes[name] = ReplayGap(
                f"session {name!r} has a hole before event {record.n} (expected {wanted}), at record {record.seq}; "
                "look at the states before it, or at other sessions",
                session=name,
                event=record.n,
                seq=record.seq,
            )
            return False
        self.reached[name] = record.n + len(record.events)
        return True

    def decide_again(self, record: codec.Record) -> str | None:
        """Fold a record by deciding its command: None, or in what that differs from what is recorded. Such a stream is at its end."""
        try:
            again, after = self._decided(record.session, record.cause)
        except TrouperError as error:
            return f"is refused now: {error}"
        except Exception as error:  # Pure as well: whatever it raises is about this record.
            return f"fails now: {error!r}"
        if again != record.events:
            return f"decides otherwise now: {events_difference(record.events, again)}"
        # Equal events lead to equal states. To fold them here as well would tell the same story twice, and copy the history for each record.
        if is_session(record.session):
            self.states[record.session] = after
        else:
            self._memories = after
        return None

    def _decided(self, name: str, command: Any) -> tuple[tuple[Any, ...], Any]:
        """What follows from a command, and the state that it leads to."""
        if is_session(name):
            return decisions.step(self.states.get(name, State()), command)
        events = memory.decide(self._memories, command)
        return events, reduce(memory.evolve, events, self._memories)


def _said(error: Exception) -> str:
    """Without the remedy, if it is one of ours: that is for a live session."""
    return str(error).partition(";")[0] if isinstance(error, TrouperError) else repr(error)


def _copy(records: Iterable[codec.Record | _Unreadable], target: str) -> tuple[int, tuple[str, ...]]:
    """How many records a new journal was given, and of which sessions."""
    names: dict[str, None] = {}
    count = 0
    fold = _Fold()
    with closing(open_log(target)) as log:
        for record in records:
            fold.step(record)
            for hole in fold.holes.values():
                # What is behind it would be a session that nobody can open.
                if isinstance(hole, ReplayRefused):
                    raise hole
                raise ReplayGap(
                    f"session {hole.facts['session']!r} has lost the events before record {record.seq}; "
                    "fork from before that record, or another session by its name",
                    **hole.facts,
                )
            if isinstance(record, _Unreadable):  # The memory's.
                raise record.error
            # A new journal counts its epochs anew.
            copied = changed(record, epoch=log.epoch)
            log.append(Entry(copied.session, copied.id, *codec.encode(copied)))
            log.flush()
            names[record.session] = None
            count += 1
    return count, tuple(names)
