"""Blocks used otherwise than meant: a named error that says what to write, whatever the mistake."""

from __future__ import annotations

import asyncio

import pytest

from trouper import Scripted, UsageError, open_runtime
from trouper.block import BlockMisused
from trouper.models.scripted import reply


async def test_a_runtime_that_is_not_entered_says_how_to() -> None:
    block = open_runtime(durability="memory")
    written = r"`async with open_runtime\(\.\.\.\) as runtime:`"
    with pytest.raises(BlockMisused, match=written):
        await block  # type: ignore[misc]
    with pytest.raises(BlockMisused, match=f"no 'session' before .*{written}"):
        await block.session("s")  # type: ignore[attr-defined]
    with pytest.raises(BlockMisused, match=written):
        with block:  # type: ignore[attr-defined]
            pass
    assert not hasattr(block, "anything")
    async with block:
        pass
    with pytest.raises(BlockMisused, match=f"works once; write {written} again"):
        async with block:
            pass


async def test_a_turn_that_is_not_entered_says_how_to_and_asks_no_model() -> None:
    model = Scripted([reply("hello")], exhausted="repeat")
    async with open_runtime(model=model, durability="memory") as runtime:
        session = await runtime.session("s")
        written = r"`async with session\.turn\(\.\.\.\) as turn:`"
        with pytest.raises(BlockMisused, match=written):
            await session.turn("x")  # type: ignore[misc]
        with pytest.raises(BlockMisused, match=written):
            async for _ in session.turn("x"):  # type: ignore[attr-defined]
                pass
        assert model.requests == []
        block = session.turn("x")
        async with block as turn:
            first = [event async for event in turn]
            assert first and [event async for event in turn] == []  # A turn is told once.
        with pytest.raises(BlockMisused, match="works once"):
            async with block:
                pass
        assert (await session.ask("y")).text == "hello"


def test_under_asyncio_the_error_names_trio() -> None:
    async def main() -> None:
        async with open_runtime(durability="memory"):
            pass

    with pytest.raises(UsageError, match=r"trio\.run\(main\), not with asyncio\.run"):
        asyncio.run(main())
