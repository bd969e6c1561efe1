"""Mistakes in the calls of a session, and calls that come too late: told at once, in the caller's words; nothing hangs, nothing is recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from trouper import Runtime, Scripted, UsageError, open_runtime, tool
from trouper._errors import ToolDefinitionError
from trouper.host import RuntimeEnded
from trouper.models.scripted import reply
from trouper.session import SessionEnded


@tool(background=True)
async def dig(deep: int = 1) -> int:
    """Dig."""
    return deep


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    async with open_runtime(
        model=Scripted([reply("hello")], exhausted="repeat"), tools=[dig], durability="memory"
    ) as opened:
        yield opened


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ({"system": 5}, "system=5 is no text"),
        ({"model": "gemini"}, "'gemini' is no model"),
        ({"model": Scripted}, "model=Scripted is a class"),
        ({"budget": 5}, r"write budget=Budget\(...\)"),
        ({"tools": "dig"}, "is no tool"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_a_wrong_option_of_a_session_is_named_and_no_session_is_made(
    runtime: Runtime, mistake: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        await runtime.session("s", **mistake)
    assert runtime.sessions() == []


@pytest.mark.parametrize(
    ("attachments", "words"),
    [("file.txt", r"write attachments=\[...\]"), (None, "no list"), ([5], "5 cannot be attached; give the path")],
)
async def test_attachments_that_are_none_are_named(runtime: Runtime, attachments: Any, words: str) -> None:
    session = await runtime.session("s")
    with pytest.raises(UsageError, match=words):
        await session.ask("x", attachments=attachments)
    assert session.history == ()


async def test_a_run_takes_a_tool_or_its_name_and_nothing_else(runtime: Runtime) -> None:
    session = await runtime.session("s")
    for which in (dig, "dig"):
        task = await session.spawn(which, {"deep": 3})
        assert (await session.wait_task(task.id)).result == 3
    for wrong in (dig.run, 5):
        with pytest.raises(UsageError, match="give a tool of this session, or its name"):
            await session.spawn(wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="is no mapping"):
        await session.spawn(dig, [1])  # type: ignore[arg-type]


async def test_events_are_followed_from_a_number(runtime: Runtime) -> None:
    session = await runtime.session("s")
    for follow in (session.events, runtime.events):
        with pytest.raises(UsageError, match="after='x' is no number"):
            follow(after="x")  # type: ignore[arg-type]
    assert session.statistics().watchers == 0


def test_what_is_no_function_is_no_tool() -> None:
    with pytest.raises(ToolDefinitionError, match="5 is no function"):
        tool(5)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="5 is no reply"):
        Scripted([5])  # type: ignore[list-item]


async def test_after_the_block_everything_says_so_and_nothing_hangs(autojump_clock: trio.testing.MockClock) -> None:
    async with open_runtime(model=Scripted([reply("hello")], exhausted="repeat"), durability="memory") as runtime:
        session = await runtime.session("s")
        await session.ask("x")
        held = session.turn("later")
    with pytest.raises(RuntimeEnded, match="inside its `async with open_runtime"):
        await runtime.session("new")
    uses: list[Any] = [lambda: session.ask("x"), lambda: session.send("x"), session.interrupt, session.compact]
    for use in uses:
        with pytest.raises(SessionEnded, match="session 's' is gone: its runtime is closed"):
            await use()
    with pytest.raises(SessionEnded):
        async with held:
            pass
    with trio.fail_after(10), session.watch() as events:
        assert [event async for event in events] == []
    await session.close()
    # Looking back is no mistake.
    assert len(session.history) == 2 and session.statistics().turns == 1
    assert [each.id for each in runtime.sessions()] == ["s"]
