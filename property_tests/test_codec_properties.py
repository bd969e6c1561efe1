"""Whatever is said is written, and read again as it was written: hostile values, opaque fields, older formats (I7, I10, J5, J14)."""

from __future__ import annotations

import json
import math
from typing import Any

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trouper import codec
from trouper.core import commands, events
from trouper.core.calls import Preparation
from trouper.core.ids import CallId
from trouper.core.messages import (
    Fault,
    Media,
    Message,
    Opaque,
    Outcome,
    Part,
    ProviderPart,
    Text,
    Thinking,
    ToolCall,
    Usage,
)
from trouper.core.settings import Budget, Compaction, TurnOptions
from trouper.roster import decode_section, encode_section
from trouper.testing.strategies import histories, json_values, opaques, texts

#: Anything a Python string can be, halves of a pair included.
hostile_texts = st.text(st.characters(), max_size=12) | st.sampled_from(
    ["\ud800", "a\udfffb", "\ude00\ud83d", "\x00", "\u2028", "\ufeff", "\r\n", '"\\', "\U0010ffff"]
)
wide = st.integers(-(10**40), 10**40) | st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64])
hostile = st.recursive(
    st.none() | st.booleans() | wide | st.floats() | hostile_texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(hostile_texts, inner, max_size=4),
    max_leaves=12,
)


def nested(depth: int) -> Any:
    value: Any = "core"
    for level in range(depth):
        value = [value] if level % 2 else {"k": value}
    return value


def written(cause: Any, *happened: Any, n: int = 3) -> codec.Record:
    return codec.Record("s", n, 2, 1_700_000_000.25, cause, happened)


def read(head: bytes, body: bytes) -> codec.Record:
    return codec.decode(head + b',"body":' + body + b"}")


def same(left: Any, right: Any) -> bool:
    """Equal, and of equal types throughout: 1, 1.0 and True are three values in a journal."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    if attrs.has(type(left)):
        return all(same(getattr(left, f.name), getattr(right, f.name)) for f in attrs.fields(type(left)))
    if isinstance(left, float):
        return left == right and math.copysign(1.0, left) == math.copysign(1.0, right)
    return bool(left == right)


# --- hostile values ---


def _no_json(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


@settings(max_examples=300, deadline=None)
@given(hostile)
@example(float("nan"))
@example("NaN")
@example([{"a": float("inf")}, -0.0])
@example({"a": "\ud800", "b": 2**70})
@example(nested(300))
@example(None)
def test_any_value_is_written_and_then_read_exactly_as_it_was_written(value: Any) -> None:
    """J5: nothing that is said can fail to be written. What JSON cannot hold is replaced once, before anybody goes on with it (I10)."""
    result = commands.DeliverResult(CallId("c"), Outcome.OK, 7.0, content=value, internal="x")
    record = written(result, events.CallEnded(CallId("c"), Outcome.OK, value, internal="x"))
    try:
        line = codec.encode(record, exact=True)
    except codec.Inexact:
        record = codec.sanitised(record)
        line = codec.encode(record)
    head, body = line
    assert body.isascii() and head.isascii() and b"\n" not in head + body
    json.loads(body, parse_constant=_no_json)
    again = read(head, body)
    assert same(again, record)
    assert again.cause.content == again.events[0].content
    assert codec.decode_events(head + b',"body":' + body + b"}") == ("s", 3, record.events)
    assert codec.encode(again) == line  # Byte for byte: reading and writing is the same record.


@settings(max_examples=200, deadline=None)
@given(hostile)
def test_sanitising_twice_is_sanitising_once(value: Any) -> None:
    once = codec.loads(codec.dumps(value))
    assert same(codec.loads(codec.dumps(once)), once)


@settings(max_examples=100, deadline=None)
@given(json_values(12))
def test_plain_json_is_never_touched(value: Any) -> None:
    assert same(codec.loads(codec.dumps(value, exact=True)), value)


@given(wide)
def test_integers_keep_every_digit(number: int) -> None:
    """As text past 64 bits: ids of other systems are often wider, and few readers of JSON would keep them as numbers."""
    fits = -(2**63) <= number < 2**64
    assert codec.loads(codec.dumps({"id": number})) == {"id": number if fits else str(number)}


# --- every event and every command of a turn ---

ids = st.sampled_from(["call_1_1_0", "call_2_1_3"]).map(CallId)
times = st.floats(0, 4e9)
small = st.integers(0, 10**6)
parts: st.SearchStrategy[Part] = st.one_of(
    st.builds(Text, texts(), opaques("p")),
    st.builds(Thinking, texts(), st.none() | texts(), opaques("p")),
    st.builds(ToolCall, ids, texts(), st.dictionaries(texts(8), json_values()), st.none() | texts(), opaques("p")),
    st.builds(Media, st.just("image/png"), data=st.just("aGk="), opaque=opaques("p")),
    st.builds(lambda data: ProviderPart(Opaque("p", data)), st.dictionaries(texts(8), json_values(), max_size=2)),
)
messages = st.builds(
    lambda role, content, kind: Message(role, tuple(content), kind),
    st.sampled_from(["user", "assistant"]),
    st.lists(parts, max_size=4),
    st.sampled_from(["normal", "cut_short", "summary", "note", "notification"]),
)
usages = st.builds(Usage, *[st.none() | small] * 5)
faults = st.builds(Fault, texts(), texts(), st.booleans(), st.none() | times)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "session": st.just("s"),
    "parent": st.none() | st.just("t"),
    "own": st.lists(st.sampled_from(("budget", "model", "tools")), unique=True).map(tuple),
    "call": ids,
    "at": times,
    "expires_at": times,
    "deadline_at": st.none() | times,
    "delay_s": times,
    "approval_s": times,
    "latency_ms": st.none() | times,
    "spent": times,
    "cap": times,
    "system": st.none() | texts(),
    "detail": st.none() | texts(),
    "mismatch": st.none() | texts(),
    "full_output": st.none() | texts(),
    "internal": st.none() | texts(),
    "message": messages,
    "summary": st.none() | messages,
    "partial": st.none() | messages,
    "usage": usages,
    "retried": usages,
    "saved": st.lists(ids, max_size=3).map(tuple),
    "kept": st.lists(small, max_size=3).map(tuple),
    "fault": faults,
    "outcome": st.sampled_from(Outcome),
    "content": json_values(),
    "images": st.lists(st.builds(Media, st.just("image/png"), data=st.just("aGk=")), max_size=2).map(tuple),
    "attachments": st.lists(st.builds(Media, st.just("a/b"), uri=texts()), max_size=2).map(tuple),
    "kind": st.sampled_from(["normal", "note"]),
    "options": st.builds(
        TurnOptions,
        max_steps=small,
        window=st.none() | small,
        compaction=st.builds(Compaction, share=st.none() | st.floats(0, 1), threshold=st.none() | small),
        schema=st.none() | st.just({"type": "object", "properties": {"a": {"type": "integer"}}}),
    ),
    "budget": st.none() | st.builds(Budget, st.floats(0, 1e9), *[st.none() | small] * 3, st.none() | st.floats(0, 1e9)),
    "compaction": st.builds(Compaction, window=st.none() | small),
    "preparations": st.lists(
        st.builds(
            Preparation,
            verdict=st.sampled_from(["run", "ask", "hold", "refuse"]),
            side_effect=st.sampled_from(["pure", "idempotent", "at_most_once"]),
            budget_s=st.none() | times,
            notes=st.lists(texts(), max_size=2).map(tuple),
            outcome=st.sampled_from(Outcome),
            content=json_values(),
        ),
        max_size=2,
    ).map(tuple),
    "cuts": st.lists(small, max_size=4).map(tuple),
    "notes": st.lists(texts(), max_size=2).map(tuple),
    "open_calls": st.lists(ids, max_size=2).map(tuple),
    "open_turn": st.none() | small,
    "carrying": st.lists(texts(), max_size=2).map(tuple),
    "token_cap": st.none() | small,
    "step_cap": st.none() | small,
    "call_cap": st.none() | small,
    "task": st.none() | texts(),
    "is_answer": st.booleans(),
    "always": st.booleans(),
    "unasked": st.booleans(),
    "steer": st.booleans(),
    "forced": st.booleans(),
    "progressed": st.booleans(),
}
NUMBERS = ("turn", "step", "attempt", "repeats", "before", "split", "queue_max", "window")
NUMBERS += ("tokens_before", "tokens_after", "messages_before", "messages_after")
TEXTS = ("text", "thinking", "stop_reason", "by", "reason", "what", "problem", "how")
FIELDS |= dict.fromkeys(NUMBERS, small) | dict.fromkeys(TEXTS, texts())
EVENTS = codec.members(events.TurnEvent)
#: The others are about tasks and schedules: see `test_background_records`.
COMMANDS = tuple(
    kind
    for kind in codec.members(commands.TurnCommand)
    if kind not in (commands.SpillCalls, commands.DeliverDue, commands.ActFire, commands.Recover)
)


def built(kind: type) -> st.SearchStrategy[Any]:
    fields = attrs.fields(kind)
    missing = [field.name for field in fields if field.name not in FIELDS]
    assert not missing, f"{kind.__name__} has new fields {missing}: say here what they may hold"
    return st.builds(kind, **{field.name: FIELDS[field.name] for field in fields})


FIELDS["results"] = st.lists(built(commands.DeliverResult), max_size=2).map(tuple)


@settings(max_examples=250, deadline=None)
@given(
    st.sampled_from(COMMANDS).flatmap(built), st.lists(st.sampled_from(EVENTS).flatmap(built), min_size=1, max_size=3)
)
def test_every_record_comes_back_as_it_was(cause: Any, happened: list[Any]) -> None:
    """I10, I18: the events that a fold needs, and the command that a re-run needs, whatever the first event repeats of it."""
    record = written(cause, *happened)
    assert same(read(*codec.encode(record)), record)


@pytest.mark.parametrize("first", EVENTS, ids=lambda kind: kind.__name__)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_a_command_is_read_again_whatever_event_it_led_to(first: type, data: st.DataObject) -> None:
    """I18: fields that the first event repeats are left out only if they are the same."""
    happened = data.draw(built(first))
    cause = data.draw(st.sampled_from(COMMANDS).flatmap(built))
    shared = {f.name for f in attrs.fields(type(cause))} & {f.name for f in attrs.fields(first)}
    # Half of the time the event does repeat the command, as events of `decide` mostly do.
    for name in sorted(shared):
        if data.draw(st.booleans()):
            cause = attrs.evolve(cause, **{name: getattr(happened, name)})
    assert same(read(*codec.encode(written(cause, happened))).cause, cause)


@settings(max_examples=50, deadline=None)
@given(histories("p", 4))
def test_opaque_fields_are_byte_identical_at_the_same_place(conversation: tuple[Message, ...]) -> None:
    """I7: through the journal, and through a snapshot."""
    replies = [message for message in conversation if message.role == "assistant"]
    for number, message in enumerate(replies):
        prepared = tuple(Preparation() for _ in message.calls)
        cause = commands.DeliverReply(1, number, message, "end_turn", 1.0, preparations=prepared)
        happened = events.ModelReplied(1, number, message, "end_turn", preparations=prepared)
        again = read(*codec.encode(written(cause, happened)))
        assert same(again.events[0].message, message) and same(again.cause.message, message)
        assert repr(again.events[0].message) == repr(message)


# --- versions ---

OLD = -1


def _to_first(value: dict[str, Any]) -> dict[str, Any]:
    """A made-up older format: the reply's text stood in the event itself."""
    happened = []
    for event in value["body"]["events"]:
        if event["type"] == "ModelSpoke":
            message = {"role": "assistant", "parts": [{"part": "Text", "text": event["said"]}]}
            event = {"type": "ModelReplied", "turn": 1, "step": 1, "message": message, "stop_reason": event["why"]}
        happened.append(event)
    return {**value, "v": 0, "body": {**value["body"], "events": happened}}


def _to_second(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "v": codec.VERSION}


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(codec.UPCASTERS, OLD, _to_first)
    monkeypatch.setitem(codec.UPCASTERS, 0, _to_second)


def test_an_older_record_is_brought_up_step_by_step(older: None) -> None:
    """J14: readers accept older versions through pure upcasters."""
    line = (
        b'{"v":-1,"type":"DeliverReply","id":"s:0:1","session":"s","n":0,"epoch":1,"at":1.5,'
        b'"body":{"cause":{"at":2.5},"events":[{"type":"ModelSpoke","said":"Hi.","why":"end_turn"}]}}'
    )
    record = codec.decode(line, 9)
    reply = events.ModelReplied(1, 1, Message("assistant", (Text("Hi."),)), "end_turn")
    assert record.events == (reply,)
    assert record.cause == commands.DeliverReply(1, 1, reply.message, "end_turn", 2.5)
    assert (record.session, record.n, record.epoch, record.at, record.seq) == ("s", 0, 1, 1.5, 9)
    assert codec.decode_events(line) == ("s", 0, (reply,))


@given(st.integers(-(2**31), 2**31).filter(lambda version: version not in (codec.VERSION, OLD, 0, *codec.UPCASTERS)))
def test_a_version_that_nobody_knows_is_refused_by_number(version: int) -> None:
    """J14"""
    value = {"v": version, "type": "Close", "session": "s", "n": 0, "epoch": 1, "at": 0.0, "body": {}}
    for read_it in (codec.decode, codec.decode_events):
        with pytest.raises(codec.UndecodableRecord, match="format version") as caught:
            read_it(codec.dumps(value))
        assert caught.value.facts["version"] == version
    with pytest.raises(codec.UndecodableRecord, match="upgrade" if version > codec.VERSION else "older release"):
        codec.upcast(value)


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda i: st.lists(i) | st.dictionaries(texts(5), i))
)
def test_json_that_is_no_record_is_refused_and_nothing_else_is_raised(value: Any) -> None:
    """L22, J10: reading never fails in a way that nobody expects."""
    for payload in (codec.dumps(value), codec.dumps({"v": codec.VERSION, "body": value})):
        for read_it in (codec.decode, codec.decode_events):
            with pytest.raises(codec.UndecodableRecord):
                read_it(payload)


@given(st.binary(max_size=40))
def test_bytes_that_are_no_json_are_refused(data: bytes) -> None:
    for read_it in (codec.decode, codec.decode_events):
        with pytest.raises(codec.UndecodableRecord):
            read_it(data)


def test_a_snapshot_of_another_version_is_of_no_use() -> None:
    """J13, J14: it is rebuilt, not guessed at."""
    from trouper.core.session import State

    section = encode_section(State(session="s"), 4)
    assert decode_section(section) == (State(session="s"), 4)
    with pytest.raises(codec.UndecodableRecord):
        decode_section(section.replace(b'"v":%d' % codec.VERSION, b'"v":%d' % (codec.VERSION + 1)))
