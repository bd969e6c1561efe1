"""What a model's client hands over: a chunk that is not what it says ends the call, and never the session (L1, M1, I23)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from trouper import Usage
from trouper.actors.draft import OPAQUE_DEPTH_MAX, Draft
from trouper.core.messages import Opaque, Outcome, Text, Thinking, ToolAnswer, ToolCall
from trouper.models import (
    CallDelta,
    CallEnd,
    CallStart,
    Chunk,
    Done,
    ModelRequest,
    PartChunk,
    Scripted,
    Switched,
    TextChunk,
    ThinkingChunk,
    UsageChunk,
    reply,
)


def nested(depth: int) -> Any:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


WRONG: dict[str, Any] = {
    "text that is bytes": TextChunk(b"abc"),  # type: ignore[arg-type]
    "text that is nothing": TextChunk(None),  # type: ignore[arg-type]
    "thinking that is bytes": ThinkingChunk(b"abc"),  # type: ignore[arg-type]
    "a signature that is bytes": ThinkingChunk("hm", b"sig"),  # type: ignore[arg-type]
    "fields that are not opaque": TextChunk("a", {"x": 1}),  # type: ignore[arg-type]
    "fields without a bottom": TextChunk("a", Opaque("p", {"x": nested(3_000)})),
    "a call without a name": CallStart(0, None),  # type: ignore[arg-type]
    "a call whose id is a number": CallStart(0, "look", 17),  # type: ignore[arg-type]
    "a fragment that is bytes": CallDelta(0, b"{}"),  # type: ignore[arg-type]
    "a part that is none": PartChunk("picture"),  # type: ignore[arg-type]
    "a call in the place of a part": PartChunk(ToolCall("c", "look", {})),  # type: ignore[arg-type]
    "an answer in the place of a part": PartChunk(ToolAnswer("c", "look", Outcome.OK, "x")),  # type: ignore[arg-type]
    "usage that is none": UsageChunk(None),  # type: ignore[arg-type]
    "usage in words": UsageChunk(Usage("12", 3)),  # type: ignore[arg-type]
    "usage beyond counting": UsageChunk(Usage(10**30, 3)),
    "usage that gives tokens back": UsageChunk(Usage(-5_000, 3)),
    "a switch without a reason": Switched(None),  # type: ignore[arg-type]
    "an end without a reason": Done(None),  # type: ignore[arg-type]
}


class Raw(Scripted):
    """Plays chunks that a script would refuse."""

    def __init__(self, chunk: Any) -> None:
        super().__init__([reply("Fine.")], exhausted="repeat", context_window=1_000)
        self._chunk = chunk

    @asynccontextmanager
    async def _odd(self) -> AsyncIterator[AsyncIterator[Chunk]]:
        async def chunks() -> AsyncIterator[Chunk]:
            yield self._chunk
            yield CallEnd(7)
            yield Done("end_turn")

        yield chunks()

    def stream(self, request: ModelRequest) -> Any:
        if self.requests:
            return super().stream(request)
        self.requests.append(request)
        return self._odd()


@pytest.mark.parametrize("chunk", WRONG.values(), ids=WRONG)
async def test_a_chunk_that_is_not_what_it_says_ends_the_call_and_not_the_session(
    autojump_clock, open_checked, caplog, chunk
):
    async with open_checked(Raw(chunk)) as runtime:
        session = await runtime.session("s")
        result = await session.ask("hello")
        assert (result.stop_reason, result.error.kind) == ("error", "other")
        # Whoever wrote the client is told what is wrong with it.
        assert "raised" not in result.error.message
        for _ in range(2):
            assert (await session.ask("again")).text == "Fine."
    assert "crashed" not in caplog.text


def test_fields_of_a_provider_may_be_nested_a_good_deal():
    draft = Draft()
    draft.add(TextChunk("a", Opaque("p", {"x": nested(OPAQUE_DEPTH_MAX - 2), "y": {"z": ["w"]}})))
    assert draft.text == "a"


def test_pieces_become_parts_and_a_signature_seals_its_own():
    """L4, I7"""
    draft = Draft()
    for chunk in (
        ThinkingChunk("a "),
        ThinkingChunk("thought"),
        ThinkingChunk("", "sig"),
        TextChunk("two "),
        TextChunk("words"),
        TextChunk("signed", Opaque("p", {"s": "x"})),
    ):
        draft.add(chunk)
    draft.add(Done("end_turn"))
    assert draft.message(1, 1, []).parts == (
        Thinking("a thought", "sig"),
        Text("two words"),
        Text("signed", Opaque("p", {"s": "x"})),
    )


def test_a_chunk_of_a_derived_class_is_taken_as_what_it_is_derived_from() -> None:
    """M1: a client may hang something of its own on its chunks."""

    class Marked(TextChunk):
        mark = 1

    draft = Draft()
    draft.add(Marked("Hello"))
    assert draft.text == "Hello"
