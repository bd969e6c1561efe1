"""Mistakes in the calls of a session, and calls that come too late: told at once, in the caller's words; nothing hangs, nothing is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio

from trouper import Media, Runtime, Scripted, Session, UsageError, open_runtime, tool
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
        ({"tools": "dig"}, "is no list of tools"),
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
    [
        ([bytes(10_000)], "cannot be attached; give the path"),
        (bytes(10_000), "cannot be attached; give the path"),
        ([Media("image/png", bytes(10_000))], "give it a mime_type, and data in base64"),  # type: ignore[arg-type]
        (["QUJD" * 2_500], "cannot be read"),
    ],
    ids=["bytes", "no list", "Media of bytes", "base64 for a path"],
)
async def test_of_what_cannot_be_attached_a_message_shows_only_the_beginning(
    runtime: Runtime, attachments: Any, words: str
) -> None:
    """A whole file, in place of its path, was the message: megabytes of it in a log or an answer."""
    session = await runtime.session("s")
    with pytest.raises(UsageError, match=words) as caught:
        await session.ask("hello", attachments=attachments)
    assert len(str(caught.value)) < 2_000


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
    with pytest.raises(RuntimeEnded, match="set triggers inside"):
        runtime.trigger("tick", Every(1.0), lambda fired: session.send("x"))
    uses: list[Any] = [
        lambda: session.ask("x"),
        lambda: session.send("x"),
        session.interrupt,
        session.compact,
        session.close,
    ]
    for use in uses:
        with pytest.raises(SessionEnded, match="session 's' is gone: its runtime is closed"):
            await use()
    with pytest.raises(SessionEnded):
        async with held:
            pass
    with trio.fail_after(10), session.watch() as events:
        assert [event async for event in events] == []
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


async def _awaited(use: Awaitable[object]) -> None:
    await use


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


def test_the_loop_that_trio_is_a_guest_of_is_told_so_and_what_the_remedy_says_works() -> None:
    """I23: both loops are in one thread, and trio seems to run where only its host does."""
    refused: dict[str, BaseException] = {}
    texts: list[str] = []

    async def guest(ready: Callable[[Any], None]) -> None:
        model = Scripted([reply("hello")], exhausted="repeat")
        async with (
            open_runtime(model=model, tools=[dig], durability="memory") as runtime,
            trio.open_nursery() as nursery,
        ):
            session = await runtime.session("s")
            done = trio.Event()

            async def answer() -> None:
                texts.append((await session.ask("still there?")).text)
                done.set()

            token = trio.lowlevel.current_trio_token()
            ready((runtime, session, lambda: token.run_sync_soon(nursery.start_soon, answer)))
            await done.wait()

    async def host() -> None:
        loop = asyncio.get_running_loop()
        opened, ended = loop.create_future(), loop.create_future()
        trio.lowlevel.start_guest_run(
            guest, opened.set_result, run_sync_soon_threadsafe=loop.call_soon_threadsafe, done_callback=ended.set_result
        )
        runtime, session, remedy = await opened
        for name, use in {**USES, "open_runtime": _opens_another}.items():
            try:
                await use(runtime, session)
            except Exception as error:
                refused[name] = error
        remedy()
        (await ended).unwrap()

    asyncio.run(host())
    assert {name: type(error) for name, error in refused.items() if not isinstance(error, UsageError)} == {}
    assert len(refused) == len(USES) + 1
    assert "token.run_sync_soon(nursery.start_soon, " in str(refused["ask"])
    assert texts == ["hello"]


async def _opens_another(runtime: Runtime, session: Session) -> None:
    async with open_runtime(durability="memory"):
        raise AssertionError("it must not be opened here")


async def test_a_turn_that_is_read_in_another_threads_loop_says_so_and_goes_on_in_its_own(runtime: Runtime) -> None:
    """I23: woken by a session of another loop, its reader would never be heard of again."""
    session = await runtime.session("s")
    async with session.turn("hi") as turn:

        def elsewhere() -> None:
            with pytest.raises(WrongLoop):
                trio.run(turn.wait_ended)
            with pytest.raises(WrongLoop):
                asyncio.run(turn.wait_ended())

        await trio.to_thread.run_sync(elsewhere)
        assert (await turn.wait_ended()).text == "hello"


async def _briefly(events: AsyncIterator[Any]) -> None:
    with trio.fail_after(1):  # It is told at once, or would wait for ever.
        await events.__anext__()


def _refused_elsewhere(events: AsyncIterator[Any]) -> None:
    with pytest.raises(WrongLoop):
        trio.run(_briefly, events)
    with pytest.raises(WrongLoop):
        asyncio.run(_awaited(events.__anext__()))


@pytest.mark.parametrize("whose", ["session", "runtime"])
async def test_events_that_are_read_on_in_another_threads_loop_say_so_and_go_on_in_their_own(
    runtime: Runtime, whose: str
) -> None:
    """I23, I33: also once what the journal holds has been read, and the reader would wait for what comes."""
    session = await runtime.session("s")
    await session.ask("hi")
    events = session.events() if whose == "session" else runtime.events()
    with trio.move_on_after(0.01):
        async for _ in events:
            pass  # Up to the point where the next one is waited for.

    await trio.to_thread.run_sync(_refused_elsewhere, events)
    await session.ask("and again")
    assert await events.__anext__() is not None


async def test_a_session_that_is_watched_from_another_threads_loop_says_so_and_goes_on_in_its_own(
    runtime: Runtime,
) -> None:
    """I23: the watch was begun here, and what comes of it is read elsewhere."""
    session = await runtime.session("s")
    with session.watch() as events:
        await trio.to_thread.run_sync(_refused_elsewhere, events)
        await session.ask("hi")
        assert await events.__anext__() is not None


def test_a_session_whose_runtime_is_closed_says_so_and_without_trio_that_it_needs_it() -> None:
    async def left() -> tuple[Runtime, Session]:
        async with open_runtime(durability="memory") as runtime:
            return runtime, await runtime.session("s")

    ended = trio.run(left)
    for use in ("ask", "interrupt", "send"):
        with pytest.raises(SessionEnded, match="its runtime is closed"):
            trio.run(USES[use], *ended)
        with pytest.raises(WrongLoop, match="no trio loop runs here"):
            asyncio.run(_awaited(USES[use](*ended)))


async def test_what_the_remedy_says_works(runtime: Runtime) -> None:
    session = await runtime.session("s")
    token = trio.lowlevel.current_trio_token()

    def elsewhere() -> str:
        async def main() -> str:
            asked = partial(trio.from_thread.run, session.ask, "hi", trio_token=token)
            return (await trio.to_thread.run_sync(asked)).text

        return trio.run(main)

    assert await trio.to_thread.run_sync(elsewhere) == "hello"


ITSELF: list[Any] = []
ITSELF.append(ITSELF)
#: What is no text, and what cannot even be looked up.
NO_TEXT: list[Any] = [None, 5, b"x", ["a"], {"a": 1}, {1}, object(), ITSELF]

TEXTS: dict[str, Callable[[Runtime, Session, Any], Any]] = {
    "interrupt": lambda r, s, v: s.interrupt(v),
    "close": lambda r, s, v: s.close(v),
    "cancel": lambda r, s, v: s.cancel(v),
    "cancel because": lambda r, s, v: s.cancel("task_1", v),
    "approve": lambda r, s, v: s.approve(v),
    "approve by": lambda r, s, v: s.approve("call_1_1_0", by=v),
    "deny": lambda r, s, v: s.deny(v),
    "deny because": lambda r, s, v: s.deny("call_1_1_0", v),
    "answer": lambda r, s, v: s.answer(v, 1),
    "task": lambda r, s, v: s.task(v),
    "wait_task": lambda r, s, v: s.wait_task(v),
    "message_task": lambda r, s, v: s.message_task(v, "hi"),
    "answer_task": lambda r, s, v: s.answer_task(v, 1),
    "acknowledge": lambda r, s, v: s.acknowledge(v),
    "requeue": lambda r, s, v: s.requeue(v),
    "requeue because": lambda r, s, v: s.requeue("note_1", reason=v),
    "cancel_schedule": lambda r, s, v: s.cancel_schedule(v),
    "answer_question": lambda r, s, v: s.answer_question(v, 1),
    "decline_question": lambda r, s, v: s.decline_question(v),
    "schedule a tool": lambda r, s, v: s.create_schedule(title="t", cron="0 0 * * *", tool=v),
    "any task": lambda r, s, v: r.task(v),
    "task_detail": lambda r, s, v: r.task_detail(v),
    "trigger": lambda r, s, v: r.trigger(v, Every(1.0), _acted),
    "stop_trigger": lambda r, s, v: r.stop_trigger(v),
    "services": lambda r, s, v: r.services(v),
    "files_of": lambda r, s, v: r.files_of(v),
}
OTHERS: dict[str, Callable[[Runtime, Session], Any]] = {
    "tasks of": lambda r, s: r.tasks(session=["s"]),
    "tasks before": lambda r, s: r.tasks(before="yesterday"),
    "own tasks before": lambda r, s: s.tasks(before=(1, 2, 3)),
    "notifications of": lambda r, s: r.notifications(session={"s"}),
    "schedules of": lambda r, s: r.schedules.list(session=["s"]),
    "entries": lambda r, s: r.task_detail("task_1", entries="all"),
    "list": lambda r, s: r.memory.list("notes", limit=-1),
    "search": lambda r, s: r.memory.search("a", limit=None),
    "session with tools": lambda r, s: r.session("t", tools=5),
    "services of a stranger": lambda r, s: r.services("nobody"),
    "arguments": lambda r, s: s.create_schedule(title="t", cron="0 0 * * *", tool="dig", arguments=[1]),
    "notify": lambda r, s: s.notify("a", dedupe_key=["k"]),
}


@pytest.mark.parametrize("use", TEXTS)
async def test_where_text_belongs_nothing_else_reaches_a_session(
    runtime: Runtime, caplog: pytest.LogCaptureFixture, use: str
) -> None:
    """I23: told to the caller; a session that fails on it would be down after a few."""
    session = await runtime.session("s")
    for value in NO_TEXT:
        if value is None and use == "schedule a tool":
            continue
        with pytest.raises(UsageError):
            found = TEXTS[use](runtime, session, value)
            if isinstance(found, Awaitable):
                await found
    assert (await session.ask("still there?")).text == "hello"
    assert not [record for record in caplog.records if record.name == "trouper.actors"]


@pytest.mark.parametrize("use", OTHERS)
async def test_other_mistakes_are_named_too(runtime: Runtime, use: str) -> None:
    session = await runtime.session("s")
    with pytest.raises(UsageError):
        found = OTHERS[use](runtime, session)
        if isinstance(found, Awaitable):
            await found
    assert (await session.ask("still there?")).text == "hello"


async def test_closing_a_session_that_fails_meanwhile_says_that_it_goes_on(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I16: closed is what was recorded as closed."""
    session = await runtime.session("s")

    def out_of_memory(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as broken:
        broken.setattr("trouper.actors.recording.step", out_of_memory)
        with pytest.raises(SessionEnded, match="failed while it handled this"):
            await session.close()
    assert (await (await runtime.session("s")).ask("still there?")).text == "hello"
    await session.close()
    assert session.state.phase.value == "closed"
