"""Records to bytes and back (J3, J7): exact, compact, ASCII; versions and upcasters; nothing that is said can fail to be written."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import types
import typing
from collections.abc import Mapping

import attrs
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trouper import codec
from trouper.codec import (
    Inexact,
    Record,
    UndecodableRecord,
    decode,
    decode_events,
    dumps,
    encode,
    loads,
    sanitised,
    upcast,
)
from trouper.core import commands, events
from trouper.core.calls import Preparation
from trouper.core.decisions import step
from trouper.core.events import CallEnded, InputReceived, ModelReplied, SessionOpened, TurnStarted
from trouper.core.ids import CallId
from trouper.core.messages import (
    Media,
    Message,
    Opaque,
    Outcome,
    ProviderPart,
    Text,
    Thinking,
    ToolAnswer,
    ToolCall,
    Usage,
)
from trouper.core.session import State
from trouper.core.settings import TurnOptions
from trouper.testing.strategies import histories, json_values, texts


def whole(record: Record) -> bytes:
    """The line's JSON, as the journal puts it together."""
    head, body = encode(record)
    return head + b',"body":' + body + b"}"


def record_of(cause: object, *made: object, n: int = 7) -> Record:
    return Record("support", n, 2, 1700000000.25, cause, made)


OPENED = record_of(commands.OpenSession("support", 1.0, "Be brief."), SessionOpened("support", 1.0, "Be brief."))
PARTS = (
    Text("Grüße\u2028", Opaque("p", {"sig": "é+/=", "n": [1, None, 0.5]})),
    Thinking("hm", "sig"),
    ToolCall(CallId("call_1_1_0"), "look", {"n": [1, {"deep": True}]}, "provider", Opaque("q", {})),
    Media("image/png", "AAAA", name="a.png"),
    ProviderPart(Opaque("p", {"kind": "new"})),
    ToolAnswer(CallId("call_1_1_0"), "look", Outcome.UNKNOWN, {"x": "y"}, (Media("image/png", "AAAA"),), "provider"),
)


def test_a_record_comes_back_as_it_was():
    """J3"""
    message = Message("assistant", PARTS, "cut_short")
    reply = commands.DeliverReply(
        1, 1, message, "end_turn", 2.0, Usage(input=1), "why", (Preparation(notes=("a",)),), (3, 4)
    )
    replied = ModelReplied(1, 1, message, "end_turn", Usage(input=1), "why", (Preparation(notes=("a",)),), (3, 4))
    record = record_of(reply, replied)
    assert decode(whole(record)) == record
    assert decode_events(whole(record)) == ("support", 7, (replied,))


def test_a_line_is_compact_ascii_and_leaves_out_what_is_default():
    """J3"""
    line = whole(OPENED)
    assert line.isascii() and b"\n" not in line and b": " not in line and b"parent" not in line
    value = json.loads(line)
    assert (value["v"], value["type"], value["id"], value["session"], value["n"], value["epoch"]) == (
        codec.VERSION,
        "OpenSession",
        "support:7:2",
        "support",
        7,
        2,
    )
    assert value["at"] == 1700000000.25


def test_the_cause_does_not_repeat_its_first_event():
    """J3: a reply's text stands in the journal once."""
    text = "unmistakable " * 50
    record = record_of(commands.Submit(text, 1.0, TurnOptions()), InputReceived(text, 1.0), TurnStarted(1, 1.0))
    assert whole(record).count(b"unmistakable unmistakable") <= 50
    assert whole(record).count(text.encode()) == 1
    assert decode(whole(record)) == record


def test_a_cause_that_differs_from_its_first_event_keeps_both():
    record = record_of(commands.Submit("said", 1.0, TurnOptions()), InputReceived("heard", 2.0))
    assert decode(whole(record)) == record
    # Equal to a default, and yet not what the event says.
    record = record_of(commands.Submit("x", 1.0, TurnOptions()), InputReceived("x", 1.0, kind="notification"))
    assert decode(whole(record)) == record
    record = record_of(commands.DeliverResult(CallId("c"), Outcome.OK, 1.0), CallEnded(CallId("c"), Outcome.OK, True))
    assert decode(whole(record)) == record


@given(histories())
def test_any_history_survives_byte_for_byte(messages):
    """I7"""
    reply = commands.DeliverSummary(1, 1.0)
    for message in messages:
        ended = events.CompactionEnded(1, 2, 1, 2, 1, "summary", message)
        assert decode(whole(record_of(reply, ended))).events == (ended,)


def values(hint: typing.Any) -> st.SearchStrategy:
    """Any value of a field's type, as its annotation says."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is typing.Any:
        return json_values()
    if isinstance(hint, typing.NewType):
        return values(hint.__supertype__)
    if origin is typing.Literal:
        return st.sampled_from(inner)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values(each) for each in inner])
    if origin is tuple:
        if inner[-1] is Ellipsis:
            return st.lists(values(inner[0]), max_size=2).map(tuple)
        return st.tuples(*map(values, inner))
    if origin in (dict, Mapping):
        return st.dictionaries(texts(5), json_values(), max_size=2)
    if hint is Message:
        return histories().map(lambda found: found[0] if found else Message("user", (Text("x"),)))
    if attrs.has(hint):
        return instances(hint)
    plain = {
        str: texts(12),
        int: st.integers(0, 10**9),
        float: st.floats(0, 2e9),
        bool: st.booleans(),
        type(None): st.none(),
    }
    return plain[hint] if hint in plain else st.sampled_from(hint)


@functools.cache
def instances(kind: type) -> st.SearchStrategy:
    hints = typing.get_type_hints(kind)
    return st.builds(
        kind, **{field.alias: st.deferred(lambda f=field: values(hints[f.name])) for field in attrs.fields(kind)}
    )


EVENTS = sorted(codec._EVENTS.values(), key=lambda kind: kind.__name__)
COMMANDS = sorted(codec._COMMANDS.values(), key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_event_survives(kind, data):
    """J3, I10: all kinds, any values."""
    event = data.draw(instances(kind))
    assert decode(whole(record_of(commands.Interrupt(1.0), event))).events == (event,)


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_command_survives_as_a_cause(kind, data):
    """J3, I18: whatever its first event repeats of it."""
    command = data.draw(instances(kind))
    first = data.draw(st.sampled_from(EVENTS).flatmap(instances))
    assert decode(whole(record_of(command, first))).cause == command


def test_every_event_and_command_is_known_by_name():
    """J7: class names are the format."""
    for union in (events.TurnEvent, commands.TurnCommand):
        for kind in codec.members(union):
            assert attrs.has(kind)
    with pytest.raises(ValueError, match="two classes"):
        codec.register([type("InputReceived", (), {})], [])


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (float("nan"), None),
        (math.inf, None),
        ("\ud800x", "\ufffdx"),
        ("\ud83d\ude00", "\U0001f600"),
        ({"\udc00": 1}, {"\ufffd": 1}),
        ({1: 2}, {"1": 2}),
        (Outcome.OK, "ok"),
        (frozenset({"b", "a"}), ["a", "b"]),
        ((1, 2), [1, 2]),
    ],
    ids=["nan", "infinity", "surrogate", "pair", "key", "number key", "enum", "set", "tuple"],
)
def test_nothing_that_is_said_can_fail_to_be_written(value, plain):
    written = dumps({"value": value})
    assert written.isascii() and loads(written) == {"value": plain}


@given(json_values())
def test_json_survives_exactly(value):
    assert loads(dumps(value, exact=True)) == value
    assert json.loads(dumps(value)) == value  # Any reader of JSON gets the same.


def test_what_cannot_be_written_exactly_is_said_to_be_so():
    """I10"""
    record = record_of(commands.Submit("a\ud800", 1.0, TurnOptions()), InputReceived("a\ud800", 1.0))
    with pytest.raises(Inexact):
        encode(record, exact=True)
    clean = sanitised(record)
    assert clean.events == (InputReceived("a\ufffd", 1.0),) and clean.cause.text == "a\ufffd"
    encode(clean, exact=True)
    assert decode(whole(record)) == decode(whole(clean)) == clean


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"nonsense",
        b"[]",
        b"{}",
        b'{"v":1}',
        b'{"v":1,"type":"Submit","session":"s","n":0,"epoch":1,"at":1.0,"body":{"cause":{},"events":[]}}',
        b'{"v":1,"type":"Submit","session":"s","n":0,"epoch":1,"at":1.0,"body":{"cause":{},"events":[{"type":"NewThing"}]}}',
        b'{"v":1,"type":"NewCommand","session":"s","n":0,"epoch":1,"at":1.0,"body":{"cause":{},"events":[{"type":"StepStarted","turn":1,"step":1,"at":1.0}]}}',
    ],
)
def test_what_is_no_record_is_named(payload):
    with pytest.raises(UndecodableRecord):
        decode(payload)


def changed_everywhere(value: object, other: object) -> typing.Iterator[object]:
    """The value again and again, each time with one thing in it replaced by `other`."""
    yield other
    if isinstance(value, dict):
        for key, inner in value.items():
            for changed in changed_everywhere(inner, other):
                yield {**value, key: changed}
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            for changed in changed_everywhere(inner, other):
                yield [*value[:index], changed, *value[index + 1 :]]


@pytest.mark.parametrize("other", [None, True, -1, 0.5, "other", [], [None], {}, {"part": "Text"}], ids=repr)
def test_a_wrong_value_anywhere_is_named_or_harmless(other):
    """J14: a record that passed its checksum may still be somebody else's; whatever it says, it is no riddle."""
    message = Message("assistant", PARTS, "cut_short")
    reply = commands.DeliverReply(1, 1, message, "end_turn", 2.0, Usage(input=1), "why", (Preparation(notes=("a",)),))
    replied = ModelReplied(1, 1, message, "end_turn", Usage(input=1), "why", (Preparation(notes=("a",)),), (3, 4))
    for value in changed_everywhere(loads(whole(record_of(reply, replied, TurnStarted(2, 1.0)))), other):
        for read in (decode, decode_events):
            with contextlib.suppress(UndecodableRecord):
                read(dumps(value))


def test_a_word_that_its_field_does_not_know_is_named():
    """J14"""
    line = whole(record_of(commands.Submit("hi", 1.0, TurnOptions()), InputReceived("hi", 1.0, (), "note")))
    with pytest.raises(UndecodableRecord, match="'sonnet'"):
        decode(line.replace(b'"kind":"note"', b'"kind":"sonnet"'))


def test_a_part_of_a_newer_kind_is_named():
    line = whole(
        record_of(
            commands.DeliverSummary(1, 1.0), events.CompactionEnded(1, 2, 1, 2, 1, "x", Message("user", (Text("x"),)))
        )
    )
    with pytest.raises(UndecodableRecord, match="upgrade"):
        decode(line.replace(b'"part":"Text"', b'"part":"Hologram"'))


def test_older_versions_are_brought_up_step_by_step():
    """J7"""
    calls: list[int] = []

    def newer(version: int):
        def up(value):
            calls.append(version)
            return {**value, "v": version + 1, "seen": [*value.get("seen", ()), version]}

        return up

    chain = {version: newer(version) for version in range(codec.VERSION - 3, codec.VERSION)}
    assert upcast({"v": codec.VERSION - 3}, chain)["seen"] == list(chain) == calls
    with pytest.raises(UndecodableRecord, match="upgrade"):
        upcast({"v": codec.VERSION + 1}, chain)
    with pytest.raises(UndecodableRecord, match="older release"):
        upcast({"v": codec.VERSION - 4}, chain)


def test_a_state_survives_a_snapshot():
    """I12: as plain data and back."""
    state = State()
    for command in (
        commands.OpenSession("s", 1.0, "Be brief."),
        commands.Submit("hello", 1.0, TurnOptions(wall_s=5.0), attachments=(Media("a/b", "AA"),)),
        commands.DeliverReply(
            1, 1, Message("assistant", PARTS[:3]), "tool_use", 2.0, Usage(input=4), None, (Preparation(),)
        ),
        commands.Submit("and", 2.0, TurnOptions(), steer=True),
    ):
        state = step(state, command)[1]
    written = dumps(codec.to_json(state))
    assert codec.from_json(loads(written), State) == state
    assert orjson.loads(written)


class _Mute:
    def __str__(self) -> str:
        raise RuntimeError("it does not say")


def _nested(depth: int) -> list:
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


def test_what_has_no_end_or_no_words_is_written_all_the_same():
    """J1: nothing that is said can fail to be written."""
    itself: list = ["a"]
    itself.append(itself)
    ring: dict = {"n": 1}
    ring["ring"] = {"inner": ring}
    assert codec.loads(codec.dumps(itself)) == ["a", "(nested too deep)"]
    assert codec.loads(codec.dumps(ring)) == {"n": 1, "ring": {"inner": "(nested too deep)"}}
    assert codec.loads(codec.dumps([1j, _Mute(), {_Mute(): 1}])) == ["1j", "<_Mute>", {"<_Mute>": 1}]
    assert codec.loads(codec.dumps([10**5000])) == [hex(10**5000)]
    assert b"too deep" in codec.dumps(_nested(5_000))
    twice = ["b"]
    assert codec.loads(codec.dumps([10**30, twice, twice])) == [str(10**30), ["b"], ["b"]]
