"""From one command to one record: decide, write down what follows, hand it to the journal.

What is written is what is true: if the journal cannot hold a command as it is (a secret in it is cut out, half a character is replaced), it is the command as
the journal holds it that is decided on. So the state of the running session is the one that a replay finds (I10, I36).
"""

from __future__ import annotations

from contextlib import suppress

from trouper import codec
from trouper._errors import CommandRejected
from trouper.actors.ground import Ground
from trouper.core.commands import Command, NoteProgress, NoteRetry
from trouper.core.decisions import step
from trouper.core.session import State
from trouper.core.task_events import BeatTask, ReportTaskProgress, WriteTaskOutput
from trouper.core.values import frozen
from trouper.journal import Entry

#: Commands that are worth nothing after a crash of the machine: written, but nobody waits for the disk (J1).
_BUFFERED = frozenset({NoteProgress, NoteRetry, ReportTaskProgress, WriteTaskOutput, BeatTask})
#: What starts new work, and is refused while the disk is full (J11).
_OPENING = frozenset({"Submit", "OpenSession", "Compact", "SpillCalls", "CreateTask", "CreateSchedule"})


@frozen(frequent=True)
class Taken:
    """A command that something followed from. Its record is on its way to the disk, and nobody may see its effect before it is there (J4)."""

    record: codec.Record
    #: Where it stands in the journal.
    seq: int
    #: The state after it.
    state: State
    #: Whether somebody has to wait until it is on the disk.
    durable: bool
    #: The number of the session's next event.
    next_seq: int


def take(ground: Ground, session: str, state: State, n: int, command: Command, *, again: bool = False) -> Taken | None:
    """Decide on the command, and append what follows as event `n` of the session and those after it; None if nothing follows.

    Raises `CommandRejected`, or `JournalFull` for what begins something new; then nothing was written.
    """
    events, after = step(state, command)
    if not events:
        return None
    record = codec.Record(session, n, ground.epoch, ground.environment.now(), command, events)
    writable, id, head, body = codec.written(record, ground.redact, exact=not again)
    if writable is not record:
        return take(ground, session, state, n, writable.cause, again=True)
    kind = type(command)
    durable = kind not in _BUFFERED
    seq = ground.writer.append(Entry(session, id, head, body, durable, kind.__name__ in _OPENING))
    if after.tasks is not state.tasks:
        ground.permits.hold(session, after.tasks.active)
    return Taken(record, seq, after, durable, n + len(events))


_rehearsed: set[type] = set()


def is_rehearsed(kind: type) -> bool:
    return kind in _rehearsed


def rehearse(state: State, command: Command) -> None:
    """Decide on a command that may come, write it down for nobody, and forget it: to decide changes nothing.

    For what must not be late when it comes. The first command of its kind takes some milliseconds more than the second, in which the classes and writers are made
    that it needs; once they are there, this does nothing.
    """
    if is_rehearsed(type(command)):
        return
    with suppress(CommandRejected):
        events, _ = step(state, command)
        if events:
            codec.encode(codec.Record("", 0, 0, 0.0, command, events))
            _rehearsed.add(type(command))
