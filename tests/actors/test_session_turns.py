"""Turns and steps (L1-L9, L24): what a turn takes, what it tells, and how it ends."""

from __future__ import annotations

import base64
import os
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from session_watch import names, recorded, seen, watched

from trouper import (
    CommandRejected,
    Compaction,
    Limits,
    Media,
    Runtime,
    ToolContext,
    TurnFailed,
    Usage,
    UsageError,
    open_runtime,
    tool,
)
from trouper.actors.environment import Environment
from trouper.actors.errors import MailboxFull
from trouper.core.events import InputReceived, ModelReplied, StepStarted, TurnEnded, TurnStarted
from trouper.core.live import CallAnnounced, TextDelta, ThinkingDelta
from trouper.core.messages import Message, Opaque, ProviderPart, Text, Thinking
from trouper.journal import verify
from trouper.journal.memory_disk import MemoryDisk
from trouper.models import (
    AuthFailed,
    CallEnd,
    CallStart,
    Done,
    PartChunk,
    Scripted,
    TextChunk,
    ThinkingChunk,
    UsageChunk,
    call,
    fail,
    reply,
    stall,
    think,
)
from trouper.session import SessionEnded
from trouper.testing.schedule import run_simulated


@tool(readonly=True)
async def look(n: int = 0) -> dict[str, int]:
    """Look at something."""
    return {"n": n}


async def test_a_turn_takes_a_prompt_attachments_a_system_prompt_and_the_history(
    autojump_clock, open_checked, tmp_path
):
    """L1"""
    picture = tmp_path / "a.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n....")
    model = Scripted([reply("One."), reply("Two.")])
    async with open_checked(model) as runtime:
        session = await runtime.session("s", system="Be brief.")
        await session.ask("first")
        await session.ask("second", attachments=[picture, Media("text/plain", "aGk=")])
    assert [request.system for request in model.requests] == ["Be brief.", "Be brief."]
    sent = model.requests[1].messages
    assert [message.role for message in sent] == ["user", "assistant", "user"]
    assert sent[0].text == "first" and sent[1].text == "One."
    text, image, plain = sent[2].parts
    assert text == Text("second")
    assert (image.mime_type, image.name) == ("image/png", "a.png")
    assert plain == Media("text/plain", "aGk=")


@pytest.mark.parametrize("stop", ["end_turn", "max_tokens", "refusal", "stop_sequence", "a_word_of_next_year"])
async def test_a_turn_ends_once_with_the_providers_own_stop_reason(autojump_clock, open_checked, journal, stop):
    """L1"""
    async with open_checked(Scripted([reply("So be it.", stop=stop)])) as runtime:
        session = await runtime.session("s")
        result = await session.ask("hello")
    assert (result.stop_reason, result.text, result.error) == (stop, "So be it.", None)
    assert [ended.stop_reason for ended in recorded(journal, TurnEnded)] == [stop]


async def test_a_refusal_says_why(autojump_clock, open_checked):
    """L1, M9"""
    model = Scripted([(TextChunk("No."), Done("refusal", "SAFETY"))])
    async with open_checked(model) as runtime:
        result = await (await runtime.session("s")).ask("hello")
    assert (result.stop_reason, result.detail) == ("refusal", "SAFETY")


async def test_a_failed_turn_is_a_result_with_a_classified_error(autojump_clock, open_checked, journal):
    """L1: `error`, with a classified error; api.md: `ask` raises only for misuse."""
    async with open_checked(Scripted([fail(AuthFailed("the key is wrong"))])) as runtime:
        session = await runtime.session("s")
        result = await session.ask("hello")
        assert (result.stop_reason, result.error.kind) == ("error", "auth")
        with pytest.raises(TurnFailed) as caught:
            result.raise_for_error()
        assert caught.value.fault == result.error
        assert session.history[-1].role == "user"  # The question stays; there is no answer.
    assert len(recorded(journal, TurnEnded)) == 1


async def test_a_turn_ends_as_max_steps_after_eight_steps(autojump_clock, open_checked, journal):
    """L2: the default cap is 8."""
    counter = iter(range(100))
    model = Scripted([lambda request: reply(call("look", n=next(counter)))], exhausted="repeat")
    async with open_checked(model, tools=[look]) as runtime:
        result = await (await runtime.session("s")).ask("go on")
    assert (result.stop_reason, result.steps, result.error) == ("max_steps", 8, None)
    assert len(model.requests) == 8
    assert [started.step for started in recorded(journal, StepStarted)] == [1, 2, 3, 4, 5, 6, 7, 8]


async def test_zero_means_no_cap_on_steps(autojump_clock, open_checked):
    """L2"""
    script = [reply(call("look", n=n)) for n in range(20)]
    async with open_checked(Scripted([*script, reply("Done.")]), tools=[look], limits=Limits(max_steps=0)) as runtime:
        result = await (await runtime.session("s")).ask("go on")
    assert (result.stop_reason, result.steps) == ("end_turn", 21)


async def test_tool_specs_stay_fixed_during_a_turn(autojump_clock, open_checked):
    """L3: a tool that is added while a turn runs is offered from the next turn on."""

    @tool
    async def grow(context: ToolContext) -> str:
        """Adds a tool."""
        session._actor.outfit.registry.add(look)
        return "grown"

    model = Scripted([reply(call("grow")), reply("Done."), reply("Done.")])
    async with open_checked(model, tools=[grow]) as runtime:
        session = await runtime.session("s")
        await session.ask("one")
        await session.ask("two")
    assert [[spec.name for spec in request.tools] for request in model.requests] == [
        ["grow"],
        ["grow"],
        ["grow", "look"],
    ]


async def test_the_system_prompt_stays_fixed_during_a_turn(autojump_clock, open_checked):
    """L3: as the tools do; also for whoever opens the session anew meanwhile, and with a summary in between (L28)."""
    words = "word " * 400
    model = Scripted([*[reply(words)] * 4, reply(call("look")), reply("A summary."), reply("Done."), reply("Next.")])

    @tool(readonly=True)
    async def look() -> str:
        """Looks, while the host changes its mind."""
        await runtime.session("s", system="Be long.")
        return words

    limits = Limits(compaction=Compaction(threshold=2_300, keep_pairs=1))
    async with open_checked(model, tools=[look], limits=limits) as runtime:
        session = await runtime.session("s", system="Be brief.")
        for _ in range(5):
            await session.ask("hello")
        assert session.state.system == "Be long."
        await session.ask("and now?")
    assert [(asked.purpose, asked.system) for asked in model.requests[4:]] == [
        ("turn", "Be brief."),
        ("compaction", "Be brief."),
        ("turn", "Be brief."),
        ("turn", "Be long."),
    ]


async def test_deltas_are_told_one_to_one_in_order_under_one_id_a_step(autojump_clock, open_checked, journal):
    """L4"""
    pieces = [" Let", " me", "", " look", ".\u2028", "\n"]
    model = Scripted(
        [
            (
                ThinkingChunk("hm"),
                ThinkingChunk("m."),
                ThinkingChunk("", signature="sealed"),
                *(TextChunk(piece) for piece in pieces),
                CallStart(0, "look"),
                CallEnd(0, {}),
                Done("tool_use"),
            ),
            reply("Seen.", deltas=2),
        ]
    )
    async with open_checked(model, tools=[look]) as runtime:
        session = await runtime.session("s")
        events, _ = await watched(session, "look")
        kept = session.history[1]
    texts = [event for event in events if isinstance(event, TextDelta)]
    thoughts = [event for event in events if isinstance(event, ThinkingDelta)]
    assert [event.text for event in texts] == [piece for piece in pieces if piece] + ["See", "n."]
    first, second = texts[: len(pieces) - 1], texts[len(pieces) - 1 :]
    assert len({event.message for event in first}) == len({event.message for event in second}) == 1
    assert first[0].message != second[0].message
    # The chunk that was nothing but a signature is told to nobody, and kept at its place.
    assert [event.text for event in thoughts] == ["hm", "m."]
    assert len({event.message for event in thoughts}) == 1 and thoughts[0].message != first[0].message
    assert kept.parts[0] == Thinking("hmm.", "sealed")
    assert [event.name for event in events if isinstance(event, CallAnnounced)] == ["look"]
    # The pieces can be told again from the journal, to the letter (M5).
    assert recorded(journal, ModelReplied)[0].cuts == (2, 2, *map(len, pieces))


async def test_calls_win_over_text_which_is_their_preface(autojump_clock, open_checked):
    """L6"""
    model = Scripted([reply("Let me look. ", call("look", n=1), stop="end_turn"), reply("It is 1.")])
    async with open_checked(model, tools=[look]) as runtime:
        session = await runtime.session("s")
        result = await session.ask("look")
        preface = session.history[1]
    assert result.text == "It is 1." and result.steps == 2
    assert preface.text == "Let me look. " and len(preface.calls) == 1


async def test_the_assistant_message_is_in_the_history_before_its_tools_run(autojump_clock, open_checked):
    """L7"""
    found: list[Message] = []

    @tool
    async def peek(context: ToolContext) -> str:
        """Looks at the history from within."""
        found.append(session.history[-1])
        return "ok"

    model = Scripted([reply("Peeking. ", call("peek")), reply("Done.")])
    async with open_checked(model, tools=[peek]) as runtime:
        session = await runtime.session("s")
        await session.ask("go")
    assert found[0].role == "assistant" and found[0].text == "Peeking. " and found[0].calls[0].name == "peek"


@pytest.mark.parametrize(
    "silence",
    [(Done("end_turn"),), (TextChunk("  \n"), Done("end_turn")), (*think("hm", "sig"), Done("end_turn"))],
    ids=["nothing", "blank", "thinking"],
)
async def test_a_turn_without_a_word_is_an_error_of_its_own(autojump_clock, open_checked, journal, silence):
    """L9"""
    async with open_checked(Scripted([silence, reply("Here.")])) as runtime:
        session = await runtime.session("s")
        result = await session.ask("hello")
        assert (result.stop_reason, result.error.kind) == ("error", "silent_stop")
        assert (await session.ask("hello?")).text == "Here."
    assert [ended.stop_reason for ended in recorded(journal, TurnEnded)] == ["error", "end_turn"]


async def test_a_reply_that_is_a_picture_is_not_silent(autojump_clock, open_checked):
    """L9, M4: a part of another kind is something said."""
    part = ProviderPart(Opaque("p", {"drawing": [1, 2]}))
    async with open_checked(Scripted([(PartChunk(part), Done("end_turn"))])) as runtime:
        session = await runtime.session("s")
        result = await session.ask("draw")
        assert result.error is None and session.history[-1].parts == (part,)


async def test_two_turns_of_a_session_never_overlap(autojump_clock, open_checked, journal):
    """L10"""
    async with open_checked(Scripted([reply("One."), reply("Two.")], first_delay_s=5.0)) as runtime:
        session = await runtime.session("s")
        async with session.turn("one") as turn:
            with pytest.raises(CommandRejected, match="mid-turn"):
                await session.ask("two")
            await turn.wait_ended()
        assert (await session.ask("two")).text == "Two."
    assert [received.text for received in recorded(journal, InputReceived)] == ["one", "two"]


async def test_usage_is_summed_per_turn_and_session_and_none_is_not_zero(autojump_clock, open_checked):
    """L24 (seed 004: usage accumulates across steps; none when no step reported any)."""
    model = Scripted(
        [
            reply(call("look"), usage=Usage(input=10, output=2, cache_read=4)),
            reply("Done.", usage=Usage(input=20, output=3, reasoning=1)),
            reply("Again."),
        ]
    )
    async with open_checked(model, tools=[look]) as runtime:
        session = await runtime.session("s")
        first = await session.ask("one")
        second = await session.ask("two")
        whole = session.statistics().usage
        of_runtime = runtime.statistics().usage
    assert first.usage == Usage(input=30, output=5, cache_read=4, cache_write=None, reasoning=1)
    assert second.usage == Usage() and second.usage.total is None
    assert whole == of_runtime == first.usage


async def test_a_calls_cumulative_usage_counts_once(autojump_clock, open_checked):
    """L24, M10: within one call the last report counts."""
    model = Scripted(
        [
            (
                UsageChunk(Usage(input=5)),
                TextChunk("Hi."),
                UsageChunk(Usage(input=5, output=7)),
                Done("end_turn"),
            )
        ]
    )
    async with open_checked(model) as runtime:
        assert (await (await runtime.session("s")).ask("hello")).usage == Usage(input=5, output=7)


async def test_the_history_is_the_whole_conversation_with_calls_and_results(autojump_clock, open_checked):
    """L7 (seed 004: the end of a turn carries the full message history)."""
    model = Scripted([reply("Looking. ", call("look", n=3)), reply("It is 3.")])
    async with open_checked(model, tools=[look]) as runtime:
        session = await runtime.session("s")
        await session.ask("what is it?")
        roles = [message.role for message in session.history]
        answer = session.history[2].answers[0]
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert (answer.content, answer.outcome.value) == ({"n": 3}, "ok")


@pytest.mark.parametrize("prompt", ["", "   \n", 17, "x" * 101])
async def test_a_prompt_that_is_none_is_misuse(autojump_clock, open_checked, journal, prompt):
    """L1"""
    async with open_checked(Scripted([]), limits=Limits(input_chars=100)) as runtime:
        session = await runtime.session("s")
        with pytest.raises(UsageError):
            await session.ask(prompt)
    assert "InputReceived" not in names(journal)


async def test_attachments_that_are_missing_or_too_large_are_misuse(autojump_clock, open_checked, tmp_path):
    """L1"""
    (tmp_path / "big").write_bytes(b"x" * 2000)
    async with open_checked(Scripted([]), limits=Limits(attachment_bytes=1000)) as runtime:
        session = await runtime.session("s")
        with pytest.raises(UsageError, match="cannot be read"):
            await session.ask("look", attachments=[tmp_path / "none"])
        with pytest.raises(UsageError, match="2000 bytes"):
            await session.ask("look", attachments=[tmp_path / "big"])
        with pytest.raises(UsageError, match="bytes"):
            await session.ask("look", attachments=[Media("image/png", "A" * 2000)])
        with pytest.raises(UsageError, match="is an address"):
            await session.ask("look", attachments=["https://example.com/a.png"])
        (tmp_path / "empty").touch()
        with pytest.raises(UsageError, match="is empty"):
            await session.ask("look", attachments=[tmp_path / "empty"])
        with pytest.raises(UsageError, match=r"null (byte|character)"):
            await session.ask("look", attachments=["no\0name"])
        os.mkfifo(tmp_path / "pipe")
        for endless in (tmp_path / "pipe", "/dev/zero", tmp_path):
            with pytest.raises(UsageError, match="is no file"):
                await session.ask("look", attachments=[endless])
        with pytest.raises(UsageError, match="is not base64"):
            await session.ask("look", attachments=[Media("image/png", "no base64 at all")])
        for nothing in (Media("image/png"), Media("image/png", 5), Media(None, "QQ==")):
            with pytest.raises(UsageError, match="mime_type"):
                await session.ask("look", attachments=[nothing])


@pytest.mark.parametrize("size", [998, 999, 1000])
async def test_media_up_to_the_limit_to_the_byte_is_taken_as_a_file_of_that_size_is(
    autojump_clock, open_checked, tmp_path, size
):
    """L1: base64 is longer than what it holds by its padding, which counts for nothing."""
    (tmp_path / "a.bin").write_bytes(b"x" * size)
    ready = Media("image/png", base64.b64encode(b"x" * size).decode())
    async with open_checked(Scripted(["seen"]), limits=Limits(attachment_bytes=1000)) as runtime:
        result = await (await runtime.session("s")).ask("look", attachments=[tmp_path / "a.bin", ready])
    assert result.text == "seen"


@pytest.mark.parametrize("size", [1001, 1002, 1003])
async def test_media_over_the_limit_is_refused_with_the_size_it_has(autojump_clock, open_checked, size):
    """L1"""
    ready = Media("image/png", base64.b64encode(b"x" * size).decode())
    async with open_checked(Scripted([]), limits=Limits(attachment_bytes=1000)) as runtime:
        session = await runtime.session("s")
        with pytest.raises(UsageError, match=f"has {size} bytes"):
            await session.ask("look", attachments=[ready])


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("a.toml", b"[a]\nb = 1\n", "text/plain"),
        ("main.rs", b"fn main() {}\n", "text/plain"),
        ("Makefile", b"all:\n", "text/plain"),
        ("a.json", '{"a": "é"}'.encode(), "text/plain"),
        ("a.svg", b"<svg/>", "text/plain"),
        ("a.csv", b"a,b\n", "text/csv"),
        ("a.txt", b"\xe9", "text/plain"),
        ("a.pdf", b"%PDF-1.4\n", "application/pdf"),
        ("a.png", b"\x89PNG\r\n\x1a\n", "image/png"),
        ("a.csv.gz", b"\x1f\x8b\x08", "application/gzip"),
        ("a.unknown", b"\x00\x01", "application/octet-stream"),
    ],
)
async def test_a_file_of_text_is_attached_as_text_whatever_it_is_called(
    autojump_clock, open_checked, tmp_path, name, data, kind
):
    """L1: a type that only its name tells of is one that most providers do not show, or refuse."""
    (tmp_path / name).write_bytes(data)
    model = Scripted([reply("Seen.")])
    async with open_checked(model) as runtime:
        await (await runtime.session("s")).ask("look", attachments=[tmp_path / name])
    attached = model.requests[0].messages[0].parts[1]
    assert attached == Media(kind, base64.b64encode(data).decode(), name=name)


class Bare:
    """What one writes first: without a context manager around it."""

    async def stream(self, request):
        yield TextChunk("Here.")
        yield Done("end_turn")


class Awaited:
    async def stream(self, request):
        return [TextChunk("Here."), Done("end_turn")]


@pytest.mark.parametrize(
    "model",
    ["gemini", Scripted, object(), Bare(), Awaited()],
    ids=["name", "class", "object", "generator", "coroutine"],
)
async def test_a_model_that_is_none_is_misuse(autojump_clock, open_checked, journal, model):
    """M6: told where it is given."""
    async with open_checked(Scripted([])) as runtime:
        session = await runtime.session("s")
        with pytest.raises(UsageError, match="model"):
            await session.ask("hello", model=model)
    assert not recorded(journal, TurnStarted)


async def test_the_model_of_a_session_and_of_one_turn_can_be_changed(autojump_clock, open_checked):
    """M6: per-session change and per-turn override."""
    usual, other, once = (
        Scripted([reply(name)], exhausted="repeat", name=f"scripted:{name}") for name in ("usual", "other", "once")
    )
    async with open_checked(usual) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("1")).text == "usual"
        assert (await session.ask("2", model=once)).text == "once"
        assert (await session.ask("3")).text == "usual"
        await runtime.session("s", model=other)
        assert (await session.ask("4")).text == "other"
        assert (await (await runtime.session("t")).ask("5")).text == "usual"


def test_a_model_for_one_turn_is_for_that_turn_alone():
    """M6: input that was there first starts its turn with the session's own model, though both wait together."""

    async def main() -> list[str]:
        usual, once = (Scripted([reply(f"from {name}")], name=f"test:{name}") for name in ("usual", "once"))
        async with open_runtime("/state", model=usual, durability="memory") as runtime:
            session = await runtime.session("s")
            refused: list[str] = []

            async def ask() -> None:
                try:
                    await session.ask("second", model=once)
                except CommandRejected:
                    refused.append("refused")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.send, "first")
                nursery.start_soon(ask)
            while session.last is None:
                await trio.sleep(1)
            return [*refused, session.last.text]

    assert run_simulated(main, choices=[]) == ["refused", "from usual"]


@pytest.mark.parametrize("prompt", ["hello", "hello \ud800"], ids=["plain", "written differently than said"])
@pytest.mark.parametrize("seed", range(6))
def test_models_of_one_name_are_not_mistaken_for_each_other(seed, prompt):
    """M6: whoever begins the turn, it runs with the model that was given for it, and not with one that another was given."""

    async def main() -> None:
        usual, once = (Scripted([reply(f"from {name}")], exhausted="repeat") for name in ("usual", "once"))
        async with open_runtime("/state", model=usual, durability="memory") as runtime:
            session = await runtime.session("s")

            async def ask(expected: str, **how) -> None:
                with suppress(CommandRejected):
                    assert (await session.ask(prompt, **how)).text == expected

            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(ask, "from once", model=once))
                nursery.start_soon(ask, "from usual")

    run_simulated(main, seed=seed)


async def test_each_turn_records_the_model_that_it_ran_with(autojump_clock, open_checked, journal):
    """M6"""
    usual, once = Scripted([reply("a")], name="test:usual"), Scripted([reply("b")], name="test:once")
    async with open_checked(usual) as runtime:
        session = await runtime.session("s")
        await session.ask("1")
        await session.ask("2", model=once)
    assert [started.options.model for started in recorded(journal, TurnStarted)] == ["test:usual", "test:once"]


async def test_a_turn_keeps_its_model_to_the_end_although_the_session_changes(autojump_clock, open_checked):
    """M6, L3: a change takes effect with the next turn."""
    other = Scripted([reply("other")])

    @tool
    async def switch() -> str:
        """Changes the session's model."""
        await runtime.session("s", model=other)
        return "switched"

    usual = Scripted([reply(call("switch")), reply("usual")])
    async with open_checked(usual, tools=[switch]) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("1")).text == "usual"
        assert (await session.ask("2")).text == "other"


async def test_leaving_the_block_early_interrupts_the_turn(autojump_clock, open_checked, journal):
    """api.md: leaving the block early interrupts the turn."""
    async with open_checked(Scripted([reply("a", "b", "c"), reply("Next.")], delay_s=1.0)) as runtime:
        session = await runtime.session("s")
        async with session.turn("hello") as turn:
            await seen(turn, TextDelta)
        assert turn.result.stop_reason == "interrupt" and turn.result.text == "a"
        assert (await session.ask("again")).text == "Next."
    assert [ended.stop_reason for ended in recorded(journal, TurnEnded)] == ["interrupt", "end_turn"]


async def test_a_cancelled_caller_leaves_a_session_that_goes_on(autojump_clock, open_checked, journal):
    """I6"""
    async with open_checked(Scripted([reply("slow"), reply("Here.")], first_delay_s=10.0)) as runtime:
        session = await runtime.session("s")
        with trio.move_on_after(1.0) as scope:
            await session.ask("hello")
        assert scope.cancelled_caught
        assert (await session.ask("again")).text == "Here."
    assert [ended.stop_reason for ended in recorded(journal, TurnEnded)] == ["interrupt", "end_turn"]


@pytest.mark.parametrize("how", ["ask", "turn"])
async def test_a_caller_that_is_cancelled_already_begins_no_turn(autojump_clock, open_checked, how):
    """I6: as with everything else that can be awaited; the session has heard of nothing."""
    async with open_checked(Scripted([reply("Here.")])) as runtime:
        session = await runtime.session("s")
        with trio.CancelScope() as scope:
            scope.cancel()
            if how == "ask":
                await session.ask("hello")
            async with session.turn("hello"):
                pass
        assert scope.cancelled_caught and session.state.turns == 0
        assert (await session.ask("again")).text == "Here."


def _syncing_for_a_second(model: Scripted, **settings: Any) -> AbstractAsyncContextManager[Runtime]:
    """A runtime whose disk takes that long, of virtual time, for every record."""
    environment = Environment(sync_latency=lambda: 1.0)
    return open_runtime(
        "/state", model=model, durability="fsync", disk=MemoryDisk(), environment=environment, **settings
    )


async def test_without_syncs_records_stand_in_their_order_however_long_a_sync_would_take(autojump_clock):
    """J3, I13: what nobody waits for is not overtaken by what somebody does."""
    disk = MemoryDisk()
    model = Scripted([reply("Once ", stall(3), "upon ", stall(1.2), "a ", stall(0.7), "time.")], exhausted="repeat")
    environment = Environment(sync_latency=lambda: 1.0)
    async with (
        open_runtime("/state", model=model, durability="write", disk=disk, environment=environment) as runtime,
        trio.open_nursery() as nursery,
    ):
        for n in range(5):
            session = await runtime.session(f"s{n}")
            await trio.sleep(0.37)
            nursery.start_soon(session.ask, "tell me")
    assert verify("/state", disk=disk).ok


async def test_leaving_a_turn_ends_it_although_its_session_has_no_room_for_a_word(autojump_clock):
    """I6, I25: what is refused for want of room is what users want, not the end of what they left."""
    refused: list[MailboxFull] = []

    async def notify() -> None:
        try:
            await session.notify("Ding")
        except MailboxFull as error:
            refused.append(error)

    model = Scripted([reply("Once ", stall(100), "upon a time."), reply("Noted.")])
    async with (
        _syncing_for_a_second(model, limits=Limits(mailbox=1)) as runtime,
        trio.open_nursery() as nursery,
    ):
        session = await runtime.session("s")
        async with session.turn("hello") as turn:
            async for event in turn:
                if isinstance(event, TextDelta):
                    break
            for _ in range(3):
                nursery.start_soon(notify)
            await trio.testing.wait_all_tasks_blocked()
            assert refused and "'s' has 1 requests waiting, which is Limits.mailbox" in str(refused[0])
        assert turn.result.stop_reason == "interrupt"


async def test_a_cancel_of_a_caller_together_with_its_runtime_is_nothing_but_a_cancel(autojump_clock):
    """I6: the question is still in the mailbox of a session that is busy with the disk, and ends with everything else."""
    with trio.move_on_after(5.5) as scope:
        async with (
            _syncing_for_a_second(Scripted([reply("Never.")])) as runtime,
            trio.open_nursery() as nursery,
        ):
            session = await runtime.session("s")
            await trio.sleep_until(5.0)
            nursery.start_soon(partial(runtime.session, "s", system="Be brief."))
            await trio.sleep(0.1)
            await session.ask("hello")
    assert scope.cancelled_caught


async def test_a_turn_whose_caller_is_cancelled_as_a_busy_session_begins_it_is_ended(autojump_clock):
    """I6: the session has heard of it, after something else, and is recording it; whoever asked has to learn that, or nobody could end it."""
    model = Scripted([reply("Never ", stall(100), "ever."), reply("Here.")])
    async with (
        _syncing_for_a_second(model) as runtime,
        trio.open_nursery() as nursery,
    ):
        session = await runtime.session("s")
        await trio.sleep_until(5.0)
        nursery.start_soon(partial(runtime.session, "s", system="Be brief."))  # Recorded from 5 to 6.
        await trio.sleep_until(5.1)
        with trio.move_on_at(6.5) as scope:
            await session.ask("hello")  # Recorded from 6 to 7.
        assert scope.cancelled_caught and session.state.turns == 1 and session.state.turn is None
        assert (await session.ask("again")).text == "Here."


async def test_a_result_is_there_also_for_who_reads_it_after_later_turns(autojump_clock, open_checked):
    """L1: each turn has its own result, however late it is read."""
    model = Scripted([reply("One."), reply("Two."), reply("Three.")])
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        async with session.turn("1") as slow:
            await trio.sleep(1)
            assert (await session.ask("2")).text == "Two."
            assert (await session.ask("3")).text == "Three."
            assert (await slow.wait_ended()).text == "One."


async def test_a_closed_session_is_over(autojump_clock, open_checked, journal):
    """I16"""
    async with open_checked(Scripted([reply("x")], first_delay_s=5.0)) as runtime:
        session = await runtime.session("s")
        async with session.turn("hello"):
            await session.close("enough")
        with pytest.raises((SessionEnded, CommandRejected)):
            await session.ask("again")
        await session.close()
        again = await runtime.session("s")
        with pytest.raises((SessionEnded, CommandRejected), match="closed"):
            await again.ask("still there?")
    assert names(journal)[-2:] == ["TurnEnded", "SessionClosed"]


async def test_a_close_that_was_not_recorded_is_not_told_as_one(autojump_clock, open_checked, journal):
    """I15, J4: the next runtime would find the session open."""
    async with open_checked(Scripted([reply("x")])) as runtime:
        session = await runtime.session("s")
        await session.ask("hello")
    with pytest.raises(SessionEnded, match="its runtime is closed; open that again"):
        await session.close()
    assert names(journal)[-1] == "TurnEnded"


async def test_a_closed_session_can_be_looked_at_whenever_it_is_opened(autojump_clock, open_checked):
    """I16: also while the actor that read it from the journal is on its way out."""
    async with open_checked(Scripted([reply("Here.")])) as runtime:
        session = await runtime.session("s", system="Be brief.")
        await session.ask("hello")
        await session.close()
        for _ in range(5):
            opened = await runtime.session("s", system="Be brief.")
            assert opened.history[-1].text == "Here." and opened.statistics().phase == "closed"
        with pytest.raises(CommandRejected, match="closed"):
            await runtime.session("s", system="Be long.")


async def test_a_turn_that_is_given_up_while_something_has_to_go_first_leaves_nothing_behind(
    autojump_clock, open_checked
):
    """I6: it never began; its model is forgotten, and the next turn is asked of the session's own."""
    async with open_checked(Scripted([reply("by the session's own")], exhausted="repeat")) as runtime:
        session = await runtime.session("s")
        with session._ground.door.going_first():
            with trio.move_on_after(1):
                await session.ask("go", model=Scripted([reply("by another")]))
        assert session.state.turns == 0 and session._actor.overrides == []
        assert (await session.ask("go")).text == "by the session's own"
