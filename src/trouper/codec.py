"""Records to bytes and back; versions and upcasters.

A record is one decision: the command that caused it and the events that followed, in one line of the journal, so that they are durable together
or not at all. Its JSON, compact and ASCII:

    {"v":2,"type":"DeliverReply","id":"support:7:2","session":"support","n":7,"epoch":2,"at":1700000000.25,
     "body":{"cause":{...},"events":[{"type":"ModelReplied",...},{"type":"TurnEnded",...}]}}

Fields that have their default value are left out. Of the command only those fields are written that its first event does not repeat under the same
name: a reply's text stands in the journal once.
"""

from __future__ import annotations

import functools
import json
import math
import re
import types
import typing
from collections.abc import Callable, Hashable, Iterable, Mapping
from enum import Enum
from typing import Any

import attrs
import orjson
from cattrs import Converter

from trouper._errors import WorldError
from trouper.core import commands, events
from trouper.core.growing import Growing
from trouper.core.memory import MemoryCommand, MemoryEvent
from trouper.core.messages import Json, Part
from trouper.core.notification import NotificationCommand, NotificationEvent
from trouper.core.schedule import ScheduleCommand, ScheduledMessage, ScheduledRun, ScheduleEvent, When
from trouper.core.task_events import TaskCommand, TaskEvent
from trouper.core.values import changed, frozen
from trouper.reading import Reader, class_reader, tuple_reader
from trouper.writing import TaggedWriters, Writer, class_writer, tuple_writer

VERSION = 2


class UndecodableRecord(WorldError):
    """A record that this version cannot read: of a newer format, or not written by Trouper."""


@frozen(frequent=True)
class Record:
    """One decision of one session."""

    session: str
    #: Position in the session, contiguous from 0.
    n: int
    epoch: int
    #: Wall time, seconds since the epoch. Order is by sequence, never by this.
    at: float
    cause: Any
    events: tuple[Any, ...]
    #: Position in the journal; 0 while it has none.
    seq: int = 0

    @property
    def id(self) -> str:
        return f"{self.session}:{self.n}:{self.epoch}"


# --- values to JSON-able ones: cattrs, with tags where a union has to be told apart ---

_converter = Converter(detailed_validation=False)


def _is_tuple_of(kind: Any) -> bool:
    return typing.get_origin(kind) is tuple and typing.get_args(kind)[1:] == (Ellipsis,)


def _is_growing(kind: Any) -> bool:
    return typing.get_origin(kind) is Growing


def _generate_structure_growing(kind: Any) -> Callable[[Any, Any], Any]:
    member = typing.get_args(kind)[0]
    read = _converter.get_structure_hook(member)
    return lambda values, _: Growing(read(value, member) for value in values)


_converter.register_structure_hook_factory(_is_growing, _generate_structure_growing)
_converter.register_unstructure_hook_factory(_is_growing, lambda kind: tuple_writer(kind, _converter))
_converter.register_structure_hook_factory(_is_tuple_of, lambda kind: tuple_reader(kind, _converter))
_converter.register_unstructure_hook_factory(_is_tuple_of, lambda kind: tuple_writer(kind, _converter))
_converter.register_unstructure_hook_factory(attrs.has, lambda cls: class_writer(cls, _converter))
_converter.register_structure_hook_factory(attrs.has, lambda cls: class_reader(cls, _converter))


def _register_tagged(union: Any, tag: str) -> None:
    """Members of `union` carry their class's name under `tag`."""
    members: dict[str, type] = {cls.__name__: cls for cls in typing.get_args(union)}
    writers = TaggedWriters(_converter, tag)
    readers: dict[str, Reader] = {}

    def structure(value: Mapping[str, Any], _: Any) -> Any:
        name = value[tag]
        reader = readers.get(name)
        if reader is None:
            if name not in members:
                raise UndecodableRecord(
                    f"a part of kind {name!r} is unknown; a newer Trouper wrote this journal: upgrade to read it"
                )
            reader = readers[name] = class_reader(members[name], _converter)
        return reader(value)

    _converter.register_unstructure_hook(union, writers.write)
    _converter.register_structure_hook(union, structure)


_register_tagged(Part, "part")
_register_tagged(ScheduledRun | ScheduledMessage, "act")
_register_tagged(When, "when")

_EVENTS: dict[str, type] = {}
_COMMANDS: dict[str, type] = {}


def register(known_events: Iterable[type], known_commands: Iterable[type]) -> None:
    """Make classes known by name. Names are the format: two classes may not share one."""
    for table, classes in ((_EVENTS, known_events), (_COMMANDS, known_commands)):
        for cls in classes:
            if table.setdefault(cls.__name__, cls) is not cls:
                raise ValueError(f"two classes are called {cls.__name__!r} in the journal; rename one")


def members(union: Any) -> tuple[type, ...]:
    """The classes of a union; a class alone counts as a union of one."""
    return typing.get_args(union) if isinstance(union, types.UnionType) else (union,)


register(members(events.TurnEvent), members(commands.TurnCommand))
register(members(TaskEvent), members(TaskCommand))
register(members(NotificationEvent), members(NotificationCommand))
register(members(ScheduleEvent), members(ScheduleCommand))
register(members(MemoryEvent), members(MemoryCommand))


@functools.cache
def vocabulary() -> frozenset[str]:
    """Every word that is part of the format itself: names of classes and fields, and values of enums. No record can be read without them."""
    words: set[str] = set()
    left: list[Any] = [*_EVENTS.values(), *_COMMANDS.values()]
    seen: set[Any] = set()
    while left:
        kind = left.pop()
        if kind in seen:
            continue
        seen.add(kind)
        if isinstance(kind, type) and issubclass(kind, Enum):
            words |= {str(member.value) for member in kind}
        elif isinstance(kind, type) and attrs.has(kind):
            hints = typing.get_type_hints(kind)
            words |= {kind.__name__, *(field.name for field in attrs.fields(kind))}
            left += [hints[field.name] for field in attrs.fields(kind)]
        elif typing.get_origin(kind) is typing.Literal:
            words |= set(map(str, typing.get_args(kind)))
        else:
            left += [part for part in typing.get_args(kind) if isinstance(part, Hashable)]
    return frozenset(words)


_event_writers = TaggedWriters(_converter, "type")
_event_readers: dict[str, Reader] = {}


def event_to_json(event: Any) -> dict[str, Json]:
    return _event_writers.write(event)


def event_from_json(value: Mapping[str, Json]) -> Any:
    name = value["type"]
    reader = _event_readers.get(name)
    if reader is None:
        cls = _EVENTS.get(name)
        if cls is None:
            raise UndecodableRecord(
                f"an event of type {name!r} is unknown; a newer Trouper wrote this journal: upgrade to read it"
            )
        reader = _event_readers[name] = class_reader(cls, _converter)
    return reader(value)


def to_json(value: Any) -> Any:
    """Any value of the core as plain JSON-able data (snapshots, projections)."""
    return _converter.unstructure(value)


def from_json(value: Any, cls: Any) -> Any:
    return _converter.structure(value, cls)


# --- the cause: what the first event does not repeat ---

_cause_readers: dict[tuple[type, type], Reader] = {}


class _CauseWriters(dict[tuple[type, type], Writer]):
    """By the classes of a command and of the first event that followed, each made when it is first looked up."""

    def __missing__(self, kinds: tuple[type, type]) -> Writer:
        command, first = kinds
        repeated = {field.name for field in attrs.fields(first)}
        writer = self[kinds] = class_writer(command, _converter, repeated=repeated)
        return writer


_cause_writers = _CauseWriters()


def _cause_from_json(name: str, value: Mapping[str, Json], first: Any) -> Any:
    cls = _COMMANDS.get(name)
    if cls is None:
        raise UndecodableRecord(
            f"a command of type {name!r} is unknown; a newer Trouper wrote this journal: upgrade to read it"
        )
    kinds = cls, type(first)
    reader = _cause_readers.get(kinds)
    if reader is None:
        repeated = {field.name for field in attrs.fields(kinds[1])}
        reader = _cause_readers[kinds] = class_reader(cls, _converter, repeated)
    return reader(value, first)


# --- lines ---


def encode(record: Record, *, exact: bool = False) -> tuple[bytes, bytes]:
    """Head and body of the record's JSON: an object without its closing brace, and the value of its `body`.

    With `exact`, raises `Inexact` if reading it again would give something else; see `sanitised`.
    """
    return _encoded(record, record.id, exact)


def _encoded(record: Record, id: str, exact: bool) -> tuple[bytes, bytes]:
    head = {
        "v": VERSION,
        "type": type(record.cause).__name__,
        "id": id,
        "session": record.session,
        "n": record.n,
        "epoch": record.epoch,
        "at": record.at,
    }
    return orjson.dumps(head)[:-1], dumps(_body(record), exact=exact)


def _body(record: Record) -> dict[str, Json]:
    cause, happened = record.cause, record.events
    first = happened[0]
    events: list[Json] = []
    for event in happened:
        events.append(_event_writers[type(event)](event))
    return {"cause": _cause_writers[type(cause), type(first)](cause, first), "events": events}


def written(record: Record, redact: Callable[[bytes], bytes], *, exact: bool) -> tuple[Record, str, bytes, bytes]:
    """The record as the journal can hold it, with its id, and the head and body of its JSON.

    What is written is what is true. So if it is another record (a secret was cut out, half a character replaced), its cause is to be decided on anew, and
    what follows is written with `exact=False`: then it is the record itself, whatever had to be replaced once more.
    """
    id = record.id
    try:
        head, body = _encoded(record, id, exact)
    except Inexact:
        return sanitised(record), id, b"", b""
    clean = redact(body)
    return record if clean is body or not exact else reread(record, clean), id, head, clean


def sanitised(record: Record) -> Record:
    """The record as it will be read again: without lone surrogates, and whatever else JSON cannot hold."""
    return reread(record, dumps(_body(record)))


def reread(record: Record, body: bytes) -> Record:
    """The record with what its body says now: for a body from which something was cut."""
    value = loads(body)
    read = tuple(event_from_json(event) for event in value["events"])
    cause = _cause_from_json(type(record.cause).__name__, value["cause"], read[0])
    return changed(record, cause=cause, events=read)


def decode(payload: bytes, seq: int = 0) -> Record:
    """The record that a line's JSON holds; older versions are brought up to this one first."""
    value = loads(payload)
    try:
        value = upcast(value)
        body = value["body"]
        decoded = tuple(event_from_json(event) for event in body["events"])
        cause = _cause_from_json(value["type"], body["cause"], decoded[0])
        n, epoch, at = value["n"], value["epoch"], value["at"]
        if type(n) is not int or type(epoch) is not int or not isinstance(at, float | int):
            raise TypeError(f"n, epoch and at are {n!r}, {epoch!r} and {at!r}")
        return Record(value["session"], n, epoch, at, cause, decoded, seq)
    except UndecodableRecord:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise UndecodableRecord(f"record {seq} is not one that Trouper writes: {error!r}", seq=seq) from error


def decode_events(payload: bytes, seq: int = 0) -> tuple[str, int, tuple[Any, ...]]:
    """Session, position and events of a record, without its cause: all that a fold needs."""
    value = loads(payload)
    try:
        if value["v"] != VERSION:
            value = upcast(value)
        n = value["n"]
        if type(n) is not int:
            raise TypeError(f"n is {n!r}")
        return value["session"], n, tuple(map(event_from_json, value["body"]["events"]))
    except UndecodableRecord:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UndecodableRecord(f"record {seq} is not one that Trouper writes: {error!r}", seq=seq) from error


def _spills_together(value: dict[str, Any]) -> dict[str, Json]:
    """In version 1 every call that spilled had a record of its own."""
    value = {**value, "v": 2}
    if value["type"] == "SpillCall":
        cause = dict(value["body"]["cause"])
        cause["calls"] = [{"call": cause.pop("call"), "task_id": cause.pop("task_id")}]
        value |= {"type": "SpillCalls", "body": {**value["body"], "cause": cause}}
    return value


#: From each older version to the next, pure: takes a record's JSON, returns it in the newer form. One is added with every change of format.
UPCASTERS: dict[int, Callable[[dict[str, Json]], dict[str, Json]]] = {1: _spills_together}


def upcast(
    value: dict[str, Json], upcasters: Mapping[int, Callable[[dict[str, Json]], dict[str, Json]]] | None = None
) -> Any:
    known = UPCASTERS if upcasters is None else upcasters
    version = value["v"]
    while version != VERSION:
        step = known.get(version)
        if step is None:
            raise UndecodableRecord(
                f"this record has format version {version}; this Trouper reads version {VERSION}"
                f"{' and older ones' if known else ''}: {'upgrade' if version > VERSION else 'use an older release'} to read it",
                version=version,
            )
        value = step(value)
        version = value["v"]
    return value


# --- JSON ---

_INT_MAX = 2**64 - 1
_INT_MIN = -(2**63)
_NOT_ASCII = re.compile("[^\x00-\x7f]")
#: What is nested deeper than this is left out: the fast writer would refuse it, and so would many a reader.
_DEPTH_MAX = 200
_TOO_DEEP = "(nested too deep)"


class Inexact(Exception):
    """A value that JSON cannot hold as it is."""


def dumps(value: Any, *, exact: bool = False) -> bytes:
    """Compact ASCII JSON. NaN and infinities become null, lone surrogates U+FFFD, integers past 64 bits text: nothing that is said can fail to be written, unless `exact`."""
    try:
        data = orjson.dumps(value, default=_plain)
    except (TypeError, orjson.JSONEncodeError):
        if exact:
            raise Inexact from None
        return json.dumps(_sanitised(value), separators=(",", ":"), allow_nan=False).encode("ascii")
    # The writer makes null of a number that is none, without a word.
    if exact and data.find(b"null") >= 0 and has_no_number(value):
        raise Inexact
    return data if data.isascii() else _NOT_ASCII.sub(_escaped, data.decode()).encode("ascii")


def has_no_number(value: Any) -> bool:
    """Whether NaN or an infinity is in there."""
    match value:
        case float():
            return not math.isfinite(value)
        case Mapping():
            return any(map(has_no_number, value.values()))
        case list() | tuple():
            return any(map(has_no_number, value))
        case _:
            return False


def loads(data: bytes) -> Any:
    """As `json.loads`, but fast."""
    try:
        return orjson.loads(data)
    except ValueError as error:
        raise UndecodableRecord(f"not JSON: {error}") from error


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    if attrs.has(type(value)):
        return to_json(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _sanitised(value: Any, within: tuple[int, ...] = ()) -> Any:
    """`within`: the containers around it, by identity: one that holds itself would have no end."""
    if id(value) in within or len(within) > _DEPTH_MAX:
        return _TOO_DEEP
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case bool() | None:
            return value
        case int():
            # As text it keeps every digit; as a number few readers of JSON would.
            return value if _INT_MIN <= value <= _INT_MAX else digits(value)
        case float():
            return value if value == value and value not in (float("inf"), float("-inf")) else None
        case Mapping():
            within = (*within, id(value))
            return {_sanitised(_in_words(key)): _sanitised(inner, within) for key, inner in value.items()}
        case list() | tuple():
            within = (*within, id(value))
            return [_sanitised(inner, within) for inner in value]
        case Enum():
            return value.value
        case _:
            return _sanitised(to_json(value), within) if attrs.has(type(value)) else _sanitised(_in_words(value))


def digits(value: int) -> str:
    """A whole number as text, however long."""
    try:
        return str(value)
    except ValueError:  # Python writes no more than some thousand of them, but in powers of two.
        return hex(value)


def _in_words(value: object) -> str:
    try:
        return str(value)
    except Exception:  # A class of somebody's own.
        return f"<{type(value).__name__}>"
