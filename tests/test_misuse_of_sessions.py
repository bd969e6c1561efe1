"""Mistakes in the calls of a session, and calls that come too late: told at once, in the caller's words; nothing hangs, nothing is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio

from trouper import Runtime, Scripted, Session, UsageError, open_runtime, tool
from trouper._errors import ToolDefinitionError
from trouper.actors.triggers import Every
from trouper.home import WrongLoop
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


async def _read(events: Any) -> None:
    async for _ in events:
        return


async def _watched(session: Session) -> None:
    with session.watch() as events:
        await _read(events)


async def _acted(fired: object) -> None:
    raise AssertionError("it must never fire")


#: Ways to use a runtime `r` and its session `s`.
USES: dict[str, Callable[[Runtime, Session], Awaitable[object]]] = {
    "ask": lambda r, s: s.ask("hi"),
    "turn": lambda r, s: s.turn("hi").__aenter__(),
    "send": lambda r, s: s.send("hi"),
    "interrupt": lambda r, s: s.interrupt(),
    "cancel": lambda r, s: s.cancel("task_1"),
    "compact": lambda r, s: s.compact(),
    "close": lambda r, s: s.close(),
    "approve": lambda r, s: s.approve("call_1_1_0"),
    "answer": lambda r, s: s.answer("call_1_1_0", 1),
    "notify": lambda r, s: s.notify("hi"),
    "spawn": lambda r, s: s.spawn("dig"),
    "events": lambda r, s: _read(s.events()),
    "watch": lambda r, s: _watched(s),
    "notifications": lambda r, s: _read(s.notifications()),
    "session": lambda r, s: r.session("t"),
    "trigger": lambda r, s: _now(lambda: r.trigger("t", Every(1.0), _acted)),
    "stop_trigger": lambda r, s: r.stop_trigger("t"),
    "all events": lambda r, s: _read(r.events()),
    "remember": lambda r, s: r.memory.remember("notes", "a", 1),
    "search": lambda r, s: r.memory.search("a"),
}


async def _now(call: Callable[[], object]) -> None:
    call()


@pytest.mark.parametrize("use", USES)
async def test_another_threads_loop_is_told_how_to_call_and_disturbs_nobody(runtime: Runtime, use: str) -> None:
    """I23: woken from a loop that is not its own, a session would never be heard of again."""
    session = await runtime.session("s")
    caught: list[BaseException] = []

    def elsewhere() -> None:
        async def main() -> None:
            await USES[use](runtime, session)

        for run in (trio.run, asyncio.run):
            try:
                run(main) if run is trio.run else asyncio.run(main())
            except BaseException as error:
                caught.append(error)

    await trio.to_thread.run_sync(elsewhere)
    assert isinstance(caught[0], WrongLoop) and isinstance(caught[1], UsageError)
    assert "trio.from_thread.run(" in str(caught[0])
    assert (await session.ask("still there?")).text == "hello"
    assert [info.id for info in runtime.sessions()] == ["s"]


async def test_what_the_remedy_says_works(runtime: Runtime) -> None:
    session = await runtime.session("s")
    token = trio.lowlevel.current_trio_token()

    def elsewhere() -> str:
        async def main() -> str:
            asked = partial(trio.from_thread.run, session.ask, "hi", trio_token=token)
            return (await trio.to_thread.run_sync(asked)).text

        return trio.run(main)

    assert await trio.to_thread.run_sync(elsewhere) == "hello"
