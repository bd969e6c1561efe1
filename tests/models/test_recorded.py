"""Recording and playing (M5): exact chunks, no secrets, a clear error where a recording does not fit; and streams from a journal."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from trouper import ConfigError, tool
from trouper.actors.draft import Draft
from trouper.core.calls import Preparation
from trouper.core.events import ModelReplied
from trouper.core.messages import Media, Message, Opaque, ProviderPart, Text, ToolSpec, Usage
from trouper.models import (
    CallDelta,
    CallEnd,
    CallStart,
    Cassette,
    CassetteMismatch,
    CassetteOver,
    Chunk,
    Done,
    HistoryRefused,
    KeepAlive,
    Model,
    ModelError,
    ModelRequest,
    NetworkFault,
    PartChunk,
    RateLimited,
    Recorded,
    Scripted,
    ServerFault,
    TextChunk,
    ThinkingChunk,
    UsageChunk,
    call,
    chunks_of,
    drop,
    fail,
    reply,
    stall,
)
from trouper.models.refusals import fault_of_event


def ask(words: str = "hello", **fields) -> ModelRequest:
    return ModelRequest((Message("user", (Text(words),)),), **fields)


async def played(model: Model, request: ModelRequest) -> list[Chunk]:
    async with model.stream(request) as chunks:
        return [chunk async for chunk in chunks]


class Bent(HistoryRefused):
    """A client's own class."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [(Bent("no"), HistoryRefused), (fault_of_event("p", b"?"), ServerFault), (RateLimited("slow"), RateLimited)],
    ids=str,
)
async def test_an_error_is_raised_again_as_what_it_is_a_case_of(
    tmp_path: Path, error: ModelError, kind: type[ModelError]
) -> None:
    """M5, M10: or a conversation whose history was refused and repaired would not be the same when it is played."""
    path = tmp_path / "cassette"
    with pytest.raises(type(error)):
        await played(Recorded(Scripted([fail(error)]), path), ask())
    with pytest.raises(ModelError) as caught:
        await played(Cassette(path), ask())
    assert (type(caught.value), caught.value.as_fault()) == (kind, error.as_fault())


EVERY_KIND: tuple[Chunk, ...] = (
    KeepAlive(),
    ThinkingChunk("hm"),
    ThinkingChunk("", "sig==", Opaque("p", {"x": [1, None]})),
    TextChunk("Grüße \u2028", Opaque("p", {"s": "t"})),
    TextChunk(""),
    CallStart(0, "look", "id-1", Opaque("p", {"sig": "a"})),
    CallDelta(0, '{"n": '),
    CallDelta(0, "1}"),
    CallEnd(0, {"n": 1}, Opaque("p", {"late": True})),
    PartChunk(Media("image/png", "AAAA")),
    PartChunk(ProviderPart(Opaque("p", {"kind": "new"}))),
    UsageChunk(Usage(input=3, cache_read=0)),
    Done("end_turn", "why"),
)


async def test_every_chunk_comes_back_as_it_was(tmp_path):
    """M5"""
    model = Recorded(Scripted([EVERY_KIND], name="scripted:x", context_window=77), tmp_path / "talk.jsonl")
    assert (model.name, model.context_window) == ("scripted:x", 77) and isinstance(model, Model)
    assert tuple(await played(model, ask())) == EVERY_KIND
    cassette = Cassette(tmp_path / "talk.jsonl")
    assert isinstance(cassette, Model)
    assert tuple(await played(cassette, ask())) == EVERY_KIND
    assert cassette.left == 0


async def test_faults_are_recorded_and_raised_again(tmp_path):
    """M5: with their kind, and where they came."""
    path = tmp_path / "talk.jsonl"
    model = Recorded(
        Scripted(
            [fail(RateLimited("slow", retry_after_s=3.0, status=429)), reply("begun", drop()), reply("cut", end=False)]
        ),
        path,
    )
    for _ in range(2):
        with pytest.raises((RateLimited, NetworkFault)):
            await played(model, ask())
    await played(model, ask())
    cassette = Cassette(path)
    with pytest.raises(RateLimited) as caught:
        await played(cassette, ask())
    assert (caught.value.message, caught.value.retry_after_s, caught.value.status) == ("slow", 3.0, 429)
    heard: list[Chunk] = []
    with pytest.raises(NetworkFault):
        async with cassette.stream(ask()) as chunks:
            async for chunk in chunks:
                heard.append(chunk)
    assert heard == [TextChunk("begun")]
    with pytest.raises(NetworkFault, match="cut off"):
        await played(cassette, ask())


async def test_a_caller_that_leaves_is_recorded_too(autojump_clock, tmp_path):
    """M5, I21"""
    inner = Scripted([reply("a", stall(60), "b")])
    model = Recorded(inner, tmp_path / "talk.jsonl")
    with trio.move_on_after(1):
        await played(model, ask())
    assert inner.open_streams == 0
    with pytest.raises(NetworkFault):
        await played(Cassette(tmp_path / "talk.jsonl"), ask())


async def test_a_cassette_is_for_its_owner_alone_and_holds_no_secrets(tmp_path):
    """M3, M5, I36"""
    path = tmp_path / "talk.jsonl"
    before = os.umask(0)
    try:
        model = Recorded(
            Scripted([reply("your key is KEY-123")]), path, redact=lambda text: text.replace("KEY-123", "[redacted]")
        )
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await played(model, ask("my key is KEY-123", extra={"headers": {"authorization": "HEADER-KEY"}}))
    written = path.read_text()
    assert "KEY-123" not in written and "HEADER-KEY" not in written and "[redacted]" in written


async def test_recordings_are_found_by_their_request_in_any_order(tmp_path):
    """M5"""
    path = tmp_path / "talk.jsonl"
    model = Recorded(Scripted([lambda r: reply(f"on {r.messages[-1].text}")], exhausted="repeat"), path)
    spec = ToolSpec("look", "Looks.", {"type": "object"})
    for words in ("a", "b", "a"):
        await played(model, ask(words, tools=(spec,), session="one", turn=1))
    cassette = Cassette(path)
    for words in ("b", "a", "a"):
        assert (await played(cassette, ask(words, tools=(spec,), session="two", attempt=2)))[0] == TextChunk(
            f"on {words}"
        )
    with pytest.raises(CassetteOver, match="all have been played"):
        await played(cassette, ask("a"))


@pytest.mark.parametrize(
    ("request_now", "says"),
    [
        (ask("another"), "message 0"),
        (ask("hello", system="Be brief."), "'system'"),
        (ModelRequest((*ask().messages, Message("assistant", (Text("x"),)))), "2 messages"),
    ],
)
async def test_a_request_that_was_never_recorded_says_in_what_it_differs(tmp_path, request_now, says):
    """M5"""
    model = Recorded(Scripted([reply("Hi.")]), tmp_path / "talk.jsonl")
    await played(model, ask())
    with pytest.raises(CassetteMismatch, match=says):
        await played(Cassette(tmp_path / "talk.jsonl"), request_now)


async def test_by_order_the_recordings_come_whatever_is_asked(tmp_path):
    """M5: in the order in which the calls were begun."""
    path = tmp_path / "talk.jsonl"
    model = Recorded(Scripted([reply("1"), reply("2")]), path)
    async with model.stream(ask()) as first:
        await played(model, ask())
        [chunk async for chunk in first]
    cassette = Cassette(path, match="order")
    assert [(await played(cassette, ask("whatever")))[0].text for _ in range(2)] == ["1", "2"]
    with pytest.raises(CassetteOver):
        await played(cassette, ask())


async def test_recording_again_appends(tmp_path):
    path = tmp_path / "talk.jsonl"
    for words in ("1", "2"):
        await played(Recorded(Scripted([reply(words)]), path), ask())
    assert Cassette(path).left == 2


def test_files_that_are_no_cassettes_are_named(tmp_path):
    (tmp_path / "bad").write_text('{"v": 1}\n')
    (tmp_path / "new").write_text('{"v": 9, "n": 0}\n')
    for name, says in (("none", "cannot be read"), ("bad", "line 1"), ("new", "version 9")):
        with pytest.raises(ConfigError, match=says):
            Cassette(tmp_path / name)
    with pytest.raises(ConfigError, match="cannot be written"):
        Recorded(Scripted([]), tmp_path / "no" / "such" / "directory")


@pytest.mark.parametrize("nothing", [None, 5, Scripted], ids=["none", "a number", "a class"])
def test_what_is_no_model_is_not_recorded(tmp_path, nothing):
    """M5: told where it is given, and not by each of its calls."""
    with pytest.raises(ConfigError, match=r"no model|is a class"):
        Recorded(nothing, tmp_path / "talk.jsonl")
    assert not os.listdir(tmp_path)


async def test_a_whole_conversation_is_played_again(autojump_clock, open_checked, journal, tmp_path):
    """M5"""

    @tool(readonly=True)
    async def look(n: int = 0) -> int:
        """Looks."""
        return n

    async def talk(model) -> list[str]:
        async with open_checked(model, tools=[look]) as runtime:
            session = await runtime.session("s")
            return [(await session.ask(words)).text for words in ("one", "two")]

    script = Scripted(
        [reply("Let me. ", call("look", n=3)), fail(RateLimited("slow")), reply("It is 3."), reply("Bye.")]
    )
    first = await talk(Recorded(script, tmp_path / "talk.jsonl"))
    events = [event for record in journal for event in record.events if isinstance(event, ModelReplied)]
    assert await talk(Cassette(tmp_path / "talk.jsonl")) == first == ["It is 3.", "Bye."]
    # The journal alone is enough as well.
    assert await talk(Cassette.of_replies(events)) == first


PIECES = st.one_of(
    st.text(max_size=5).map(TextChunk),
    st.text(min_size=1, max_size=5).map(ThinkingChunk),
    st.just(ThinkingChunk("", "sig")),
    st.builds(TextChunk, st.text(max_size=3), st.just(Opaque("p", {"a": 1}))),
    st.just(PartChunk(ProviderPart(Opaque("p", {"b": 2})))),
)


@given(st.lists(PIECES, max_size=12), st.lists(st.sampled_from(["a", "b"]), max_size=3))
def test_a_recorded_reply_gives_back_its_stream(pieces, calls):
    """M5: text and thinking in the very pieces that came."""
    draft = Draft()
    sent: list[Chunk] = list(pieces)
    for index, name in enumerate(calls):
        sent += [CallStart(index, name, f"id{index}"), CallEnd(index, {"n": index})]
    sent += [UsageChunk(Usage(input=1)), Done("end_turn")]
    for chunk in sent:
        draft.add(chunk)
    message = draft.message(1, 1, [{"n": index} for index in range(len(calls))])
    replied = ModelReplied(
        1, 1, message, "end_turn", Usage(input=1), None, tuple(Preparation() for _ in calls), tuple(draft.cuts)
    )
    told = chunks_of(replied)
    again = Draft()
    for chunk in told:
        again.add(chunk)
    assert again.message(1, 1, [{"n": index} for index in range(len(calls))]) == message
    said = [chunk for chunk in sent if isinstance(chunk, TextChunk | ThinkingChunk) and chunk.text]
    assert [
        (type(chunk), chunk.text) for chunk in told if isinstance(chunk, TextChunk | ThinkingChunk) and chunk.text
    ] == [(type(chunk), chunk.text) for chunk in said]
