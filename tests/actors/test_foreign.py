"""What a model's client, a tool, a hook, a policy or a trigger raises ends its own call: never the session, and never the runtime (L20, L21, I23)."""

from __future__ import annotations

import asyncio
import gc
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import attrs
import pytest
import trio
from session_watch import recorded, seen

from trouper import CommandRejected, Hooks, Limits, open_runtime, tool
from trouper.actors.exits import RestartLimit
from trouper.actors.tool_call import INTERNAL
from trouper.actors.triggers import Every, Fired
from trouper.core.events import ApprovalRequested, CallEnded, TurnEnded
from trouper.core.live import TextDelta
from trouper.core.messages import Outcome
from trouper.foreign import CHAIN_CHARS, chain_of, from_outside
from trouper.models import Chunk, Done, Fallback, ModelRequest, Scripted, TextChunk, call, reply
from trouper.session import SessionEnded
from trouper.tools import Tool
from trouper.tools.policy import allow, deny


class Unprintable(SyntaxError):
    """What it is about is bytes, and the standard library cannot write that down."""

    def __init__(self) -> None:
        super().__init__("odd", ("a file", 1, 1, b"..."))


#: What is no `Exception`, and ends nobody but whoever raised it.
OWN = [SystemExit, GeneratorExit, asyncio.CancelledError, BaseException]


def test_of_a_very_long_chain_the_end_is_told_and_no_half_of_a_secret() -> None:
    """I36: to look through megabytes for secrets would hold up every session; and half of one would not be known as one."""
    secret = "a-long-password-0123456789"
    looked: list[int] = []

    def redact(text: str) -> str:
        looked.append(len(text))
        return text.replace(secret, "[redacted]")

    # Wherever the cut falls: also into one, and what is before it becomes shorter by all that is cut out.
    for more in range(len(secret)):
        told = chain_of(ValueError(f"{secret} " * 10_000 + "x" * more + " the end"), redact)
        assert told.rstrip().endswith("the end") and len(told) <= CHAIN_CHARS
        assert "password" not in told
    assert max(looked) < 2 * CHAIN_CHARS


class Client:
    """A model whose first stream does something odd, and whose others are fine."""

    name = "odd:client"
    context_window = None

    def __init__(self, first: Callable[[], AsyncIterator[Chunk]]) -> None:
        self.requests: list[ModelRequest] = []
        self._first = first

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[Chunk]]:
        self.requests.append(request)
        yield self._first() if len(self.requests) == 1 else _fine()


async def _fine() -> AsyncIterator[Chunk]:
    yield TextChunk("Fine.")
    yield Done("end_turn")


class WithReader(Scripted):
    """A client with two tasks beside its stream, one of which fails while it is cancelled."""

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[Chunk]]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_closes_badly)
            nursery.start_soon(trio.sleep_forever)
            async with super().stream(request) as chunks:
                yield chunks
            nursery.cancel_scope.cancel()


async def _closes_badly() -> None:
    try:
        await trio.sleep_forever()
    finally:
        raise OSError("the socket was closed")


def crashes(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "trouper.actors"]


@pytest.mark.parametrize(
    "raised",
    [SystemExit(3), BaseExceptionGroup("", [SystemExit(3), OSError()]), ExceptionGroup("", [OSError(), ValueError()])],
    ids=["exit", "exit in a group", "group"],
)
@pytest.mark.parametrize("progress", [True, False])
async def test_a_client_that_gives_up_ends_its_own_call(autojump_clock, open_checked, caplog, raised, progress):
    """L1, I23"""

    async def broken() -> AsyncIterator[Chunk]:
        if progress:
            yield TextChunk("Half a")
        raise raised

    async with open_checked(Client(broken)) as runtime:
        neighbour = await runtime.session("neighbour")
        session = await runtime.session("s")
        result = await session.ask("hello")
        assert (result.stop_reason, result.error.kind) == ("error", "other")
        assert (await session.ask("again")).text == "Fine."
        assert (await neighbour.ask("hello")).text == "Fine."
    assert not crashes(caplog)


class Opening(Client):
    """Fails outside of its stream of chunks: when it is asked, or as it is left."""

    def __init__(self, where: str, raised: BaseException) -> None:
        super().__init__(_fine)
        self._where = where
        self._raised = raised

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[Chunk]]:
        self.requests.append(request)
        if self._where == "opening" and len(self.requests) == 1:
            raise self._raised
        yield _fine()
        if self._where == "leaving" and len(self.requests) == 1:
            raise self._raised


@pytest.mark.parametrize("kind", [*OWN, Unprintable])
@pytest.mark.parametrize("where", ["opening", "before it speaks", "as it speaks", "leaving", "before a fallback"])
async def test_nothing_that_a_client_raises_ends_more_than_its_call(autojump_clock, open_checked, caplog, where, kind):
    """I23: a library that was written for asyncio, or that closes its generators by hand, is no reason to end a runtime."""

    async def broken() -> AsyncIterator[Chunk]:
        if where == "as it speaks":
            yield TextChunk("Half a")
        raise kind

    model = Opening(where, kind()) if where in ("opening", "leaving") else Client(broken)
    whole = where in ("leaving", "before a fallback")
    async with open_checked(Fallback(model, Client(_fine)) if where == "before a fallback" else model) as runtime:
        neighbour = await runtime.session("neighbour")
        session = await runtime.session("s")
        result = await session.ask("hello")
        if whole:
            assert (result.text, result.error) == ("Fine.", None)
        else:
            assert (result.stop_reason, result.error.kind) == ("error", "other")
        assert (await session.ask("again")).text == "Fine."
        assert (await neighbour.ask("hello")).text == "Fine."
    assert not crashes(caplog)


@pytest.mark.parametrize("kind", [*OWN, Unprintable])
@pytest.mark.parametrize("asynchronous", [True, False])
async def test_nothing_that_a_tool_raises_ends_more_than_its_call(
    autojump_clock, open_checked, journal, caplog, kind, asynchronous
):
    """L20, I23"""

    @tool(name="odd")
    async def waits() -> str:
        """Raises."""
        raise kind

    @tool(name="odd", timeout_s=0)  # Never: the clock of this test does not wait for threads.
    def works() -> str:
        """Raises."""
        raise kind

    model = Scripted([reply(call("odd")), reply("Fine.")])
    async with open_checked(model, tools=[waits if asynchronous else works]) as runtime:
        assert (await (await runtime.session("s")).ask("go")).text == "Fine."
    (ended,) = recorded(journal, CallEnded)
    assert ended.outcome is Outcome.ERROR
    assert not crashes(caplog)


@pytest.mark.parametrize("kind", OWN)
async def test_nothing_that_a_parameters_class_raises_ends_more_than_the_call(
    autojump_clock, open_checked, journal, caplog, kind
):
    """L20, I23: its values are built before the call is allowed."""

    @attrs.define
    class Odd:
        number: int

        def __attrs_post_init__(self) -> None:
            raise kind

    async def take(odd) -> str:
        """Takes something odd."""
        return "taken"

    take.__annotations__["odd"] = Odd
    model = Scripted([reply(call("take", odd={"number": 1})), reply("Fine.")])
    async with open_checked(model, tools=[take]) as runtime:
        assert (await (await runtime.session("s")).ask("go")).text == "Fine."
    (ended,) = recorded(journal, CallEnded)
    assert (ended.outcome, ended.content) == (Outcome.ERROR, INTERNAL)
    assert not crashes(caplog)


@pytest.mark.parametrize("kind", OWN)
async def test_nothing_that_a_class_for_the_output_raises_comes_out_of_ask(autojump_clock, open_checked, kind):
    """I23: the turn has ended, and its result says what is wrong."""

    @attrs.define
    class Odd:
        number: int

        def __attrs_post_init__(self) -> None:
            raise kind

    async with open_checked(Scripted([reply('{"number": 1}')] * 2)) as runtime:
        session = await runtime.session("s")
        result = await session.ask("go", output=Odd)
        async with session.turn("go", output=Odd) as turn:
            assert await turn.wait_ended() == result
    assert result.output is None and result.error.kind == "invalid_output"
    assert result.error.message.endswith(f"made of it: {kind.__name__}")


@pytest.mark.parametrize("schema", [{"pattern": "["}, {"$ref": "#/nowhere"}, {"type": "nonsense"}])
async def test_a_schema_that_is_none_ends_the_call_and_not_the_session(
    autojump_clock, open_checked, journal, caplog, schema
):
    """T1, L20, I23: it is the tool's fault, told to the log and not to the model."""

    async def invoke(arguments, context) -> str:
        return "ran"

    odd = Tool(
        name="odd", description="Odd.", parameters={"type": "object", "properties": {"x": schema}}, invoke=invoke
    )
    model = Scripted([reply(call("odd", x="y")), reply("Fine.")])
    async with open_checked(model, tools=[odd]) as runtime:
        assert (await (await runtime.session("s")).ask("go")).text == "Fine."
    (ended,) = recorded(journal, CallEnded)
    assert (ended.outcome, ended.content) == (Outcome.ERROR, INTERNAL)
    assert "the parameters of tool 'odd' are not a JSON Schema" in caplog.text
    assert not crashes(caplog)


@pytest.mark.parametrize("kind", [*OWN, ValueError, Unprintable])
@pytest.mark.parametrize("hook", ["session_started", "after_tool", "after_turn", "session_ended"])
async def test_nothing_that_an_after_hook_raises_changes_anything(autojump_clock, open_checked, caplog, hook, kind):
    """T5, I23: it only looks on."""

    async def broken(event: object) -> None:
        raise kind

    model = Scripted([reply(call("t")), reply("Fine.")])
    async with open_checked(model, tools=[_harmless()], hooks=[Hooks(**{hook: broken})]) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("go")).text == "Fine."
        await session.close()
    assert not crashes(caplog)
    assert any("broken" in record.getMessage() for record in caplog.records)


async def test_a_hook_that_looks_on_comes_to_its_end_when_the_session_does(autojump_clock, open_checked):
    """T5: it had begun, and was cut off at the first thing that it waited for: the hook of a session's end never came further."""
    told: list[str] = []

    async def slow(event: object) -> None:
        await trio.sleep(1)
        told.append(type(event).__name__)

    hooks = [Hooks(after_tool=slow, after_turn=slow, session_ended=slow)]
    async with open_checked(Scripted([reply(call("t")), reply("Fine.")]), tools=[_harmless()], hooks=hooks) as runtime:
        session = await runtime.session("s")
        await session.ask("go")
        await session.close()
        assert sorted(told) == ["AfterTool", "AfterTurn", "SessionEnded"]
    told.clear()
    async with open_checked(Scripted([reply("Fine.")]), hooks=hooks) as runtime:
        await (await runtime.session("s")).ask("go")
    assert told == ["AfterTurn"]


async def test_hooks_hear_of_a_session_before_they_are_asked_about_its_turns(autojump_clock, open_checked):
    """T5: the two came in any order. A hundred sessions, since the scheduler may happen to run the right one first."""
    told: list[tuple[str, str]] = []

    async def note(event: Any) -> None:
        told.append((event.session, type(event).__name__))

    async def ask(name: str) -> None:
        await (await runtime.session(name)).ask("go")

    hooks = [Hooks(session_started=note, before_turn=note)]
    async with open_checked(Scripted([reply("Fine.")], exhausted="repeat"), hooks=hooks) as runtime:
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(ask, f"s{number}")
    for number in range(100):
        assert [kind for name, kind in told if name == f"s{number}"] == ["SessionStarted", "BeforeTurn"]


async def test_a_session_that_is_closed_starts_no_more(autojump_clock, tmp_path):
    """T5, I16: whoever opened it again to look at it had hooks told of a start, behind which no end would ever come."""
    told: list[str] = []

    def note(event: Any) -> None:
        told.append(type(event).__name__)

    hooks = [Hooks(session_started=note, session_ended=note)]
    for _ in range(2):
        async with open_runtime(tmp_path, model=Scripted([]), hooks=hooks) as runtime:
            await (await runtime.session("s")).close()
            await runtime.session("s")
    assert told == ["SessionStarted", "SessionEnded"]


async def test_hooks_are_told_of_things_in_the_order_in_which_they_happened(autojump_clock, open_checked):
    """T5: the end of a session came before that of its turn, and that before those of its calls; and the next turn before the end of the last. Twenty sessions, since
    the scheduler may happen to run the right one first."""
    told: list[str] = []

    def note(event: Any) -> None:
        told.append(type(event).__name__)

    every = Hooks(note, note, note, note, note, note)
    waiting = _harmless().with_(policy="requires_approval")
    for _ in range(20):
        told.clear()
        script = [reply(call("t")), reply(call("t")), reply("Fine."), reply(call("t"), call("t"))]
        async with open_checked(Scripted(script), tools=[waiting], hooks=[every]) as runtime:
            session = await runtime.session("s")
            async with session.turn("go") as turn:
                async for event in turn:
                    if isinstance(event, ApprovalRequested):
                        await session.approve(event.call)
            async with session.turn("and on") as turn:
                async for event in turn:
                    if isinstance(event, ApprovalRequested) and event.call == "call_2_1_1":
                        await session.close()
        assert told == [
            "SessionStarted",
            *("BeforeTurn", "BeforeTool", "AfterTool", "BeforeTool", "AfterTool", "AfterTurn"),
            *("BeforeTurn", "BeforeTool", "BeforeTool", "AfterTool", "AfterTool", "AfterTurn"),
            "SessionEnded",
        ]


async def test_hooks_are_asked_about_a_run_after_they_were_told_of_what_went_before(autojump_clock, open_checked):
    """T5, B6: whoever started a run right after a turn had it judged by hooks that had not heard of the turn's end. Twenty sessions, for the same reason."""
    told: list[str] = []

    def note(event: Any) -> None:
        told.append(type(event).__name__)

    for _ in range(20):
        told.clear()
        hooks = Hooks(before_tool=note, after_turn=note)
        async with open_checked(
            Scripted([reply("Fine.")]), tools=[_harmless(background=True)], hooks=[hooks]
        ) as runtime:
            session = await runtime.session("s")
            await session.ask("go")
            await session.spawn("t", signal_on_completion=False)
            await session.close()
        assert told == ["AfterTurn", "BeforeTool"]


async def test_a_hook_that_never_ends_keeps_its_session_for_no_longer_than_the_grace(autojump_clock, open_checked):
    """T5, I24"""

    async def endless(event: object) -> None:
        await trio.sleep_forever()

    hooks = [Hooks(after_turn=endless, session_ended=endless)]
    async with open_checked(Scripted([reply("Fine.")]), hooks=hooks, limits=Limits(grace_s=3)) as runtime:
        session = await runtime.session("s")
        await session.ask("go")
        begun = trio.current_time()
        await session.close()
        assert trio.current_time() - begun == pytest.approx(3)


@pytest.mark.parametrize("how", ["ask", "compact", "send"])
async def test_a_hook_that_asks_something_of_its_session_at_its_end_is_refused(autojump_clock, open_checked, how):
    """T5, I24: it waited for an answer of the session, which waited for the hook, and so did the runtime, for good."""
    told: list[CommandRejected] = []

    async def goes_on(event: object) -> None:
        with pytest.raises(CommandRejected, match="is closed") as refused:
            await (session.compact() if how == "compact" else getattr(session, how)("And then?"))
        told.append(refused.value)

    async with open_checked(Scripted([reply("Fine.")]), hooks=[Hooks(session_ended=goes_on)]) as runtime:
        session = await runtime.session("s")
        await session.ask("go")
        begun = trio.current_time()
        await session.close()
        assert (len(told), trio.current_time() - begun) == (1, 0)


@pytest.mark.parametrize("hook", ["session_started", "after_turn", "session_ended"])
async def test_a_hook_that_closes_its_own_session_goes_on_at_once(autojump_clock, open_checked, hook):
    """T5, I24: it waited for the session, which waited for the hook, until the grace was over and the hook was cut off."""
    opened, ended = trio.Event(), trio.Event()

    async def closes(event: object) -> None:
        await opened.wait()
        await session.close("enough")
        assert session.state.phase.value == "closed"
        ended.set()

    begun = trio.current_time()
    async with open_checked(Scripted([reply("Fine.")]), hooks=[Hooks(**{hook: closes})]) as runtime:
        session = await runtime.session("s")
        opened.set()
        if hook == "after_turn":
            await session.ask("go")
        elif hook == "session_ended":
            await session.close()
        with trio.fail_after(60):
            await ended.wait()
        await session._ref.wait_exit()
        assert trio.current_time() == begun


@pytest.mark.parametrize("end", ["cancel", "crash"])
async def test_a_hook_in_a_turn_of_its_own_session_does_not_keep_it_from_ending(
    autojump_clock, open_checked, monkeypatch, end
):
    """T5, I24: it left its turn, shielded, and waited for a word of the session that it kept from ending, for good."""
    under_way = trio.Event()

    @tool(readonly=True)
    async def endless() -> None:
        under_way.set()
        await trio.sleep_forever()

    async def goes_on(event: object) -> None:
        if not under_way.is_set():
            await session.ask("And then?")

    def out_of_memory(*_: object) -> None:
        raise MemoryError

    model = Scripted([reply("Fine."), reply(call("endless")), reply("Still here.")])
    with trio.CancelScope() as outside:
        async with open_checked(model, tools=[endless], hooks=[Hooks(after_turn=goes_on)]) as runtime:
            session = await runtime.session("s")
            await session.ask("go")
            await under_way.wait()
            if end == "cancel":
                outside.cancel()
                await trio.lowlevel.checkpoint()
            with monkeypatch.context() as broken:
                broken.setattr("trouper.actors.recording.step", out_of_memory)
                with pytest.raises(SessionEnded, match="failed"):
                    await session.interrupt()
            assert (await session.ask("still there?")).text == "Still here."
    assert outside.cancelled_caught == (end == "cancel")


@pytest.mark.parametrize("kind", [*OWN, ValueError, Unprintable])
async def test_whatever_a_before_hook_raises_denies_what_it_guards(autojump_clock, open_checked, journal, caplog, kind):
    """T5, I23: a guard that is broken guards nothing, and takes nobody down."""

    async def broken(event: object) -> None:
        raise kind

    model = Scripted([reply(call("t")), reply("Fine.")])
    async with open_checked(model, tools=[_harmless()], hooks=[Hooks(before_tool=broken)]) as runtime:
        assert (await (await runtime.session("s")).ask("go")).text == "Fine."
    assert [ended.outcome for ended in recorded(journal, CallEnded)] == [Outcome.DENIED]
    async with open_checked(model, hooks=[Hooks(before_turn=broken)]) as runtime:
        with pytest.raises(CommandRejected, match="a hook denied this turn"):
            await (await runtime.session("s")).ask("go")
    assert not crashes(caplog)


@pytest.mark.parametrize("kind", [*OWN, ValueError, Unprintable])
@pytest.mark.parametrize("rule", [deny, allow])
async def test_whatever_a_policy_raises_is_read_the_cautious_way(
    autojump_clock, open_checked, journal, caplog, rule, kind
):
    """T4, I23"""

    def broken(arguments: object) -> bool:
        raise kind

    model = Scripted([reply(call("t")), reply("Fine.")])
    async with open_checked(model, tools=[_harmless()], policies=[rule("t", when=broken)]) as runtime:
        assert (await (await runtime.session("s")).ask("go")).text == "Fine."
    assert [ended.outcome for ended in recorded(journal, CallEnded)] == [Outcome.DENIED]
    assert not crashes(caplog)


@pytest.mark.parametrize("kind", OWN)
async def test_whatever_a_trigger_raises_is_a_crash_of_the_trigger(autojump_clock, open_checked, kind):
    """B25, I22, I23: it begins again within its limit, then it stays down; nobody else takes notice."""
    fired = 0

    async def act(event: Fired) -> None:
        nonlocal fired
        fired += 1
        raise kind

    async with open_checked(Scripted([reply("Fine.")])) as runtime:
        session = await runtime.session("s")
        ref = runtime.trigger("odd", Every(1.0), act)
        assert isinstance(await ref.wait_exit(), RestartLimit)
        assert fired == 6
        assert (await session.ask("hello")).text == "Fine."


@pytest.mark.parametrize("where", ["tool", "hook", "policy", "trigger", "model"])
async def test_a_ctrl_c_ends_the_runtime_wherever_it_comes_down(autojump_clock, open_checked, where):
    """It is the user's, not the code's in which it happens to arrive."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    async def soon_interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    async def broken() -> AsyncIterator[Chunk]:
        raise KeyboardInterrupt
        yield

    @tool(name="t")
    async def raises() -> str:
        """Raises."""
        raise KeyboardInterrupt

    model = Client(broken) if where == "model" else Scripted([reply(call("t")), reply("Fine.")])
    with pytest.raises(BaseException) as caught:
        async with open_checked(
            model,
            tools=[raises if where == "tool" else _harmless()],
            hooks=[Hooks(before_tool=soon_interrupted)] if where == "hook" else [],
            policies=[deny("t", when=interrupted)] if where == "policy" else [],
        ) as runtime:
            if where == "trigger":
                runtime.trigger("stop", Every(1.0), soon_interrupted)
                await trio.sleep_forever()
            await (await runtime.session("s")).ask("go")
    error = caught.value
    assert isinstance(error, KeyboardInterrupt) or (
        isinstance(error, BaseExceptionGroup) and error.subgroup(KeyboardInterrupt) is not None
    )


def _harmless(background=False):
    @tool(background=background)
    async def t() -> str:
        """Does nothing."""
        return "done"

    return t


async def test_a_cancel_that_nobody_asked_for_is_the_clients_own(autojump_clock, open_checked, caplog):
    """L1: kept by the client beyond its scope, it would look like the end of the session."""

    async def broken() -> AsyncIterator[Chunk]:
        kept: trio.Cancelled | None = None
        with trio.CancelScope() as scope:
            scope.cancel()
            try:
                await trio.sleep(1)
            except trio.Cancelled as cancelled:
                kept = cancelled
                raise
        assert kept is not None
        raise kept
        yield

    async with open_checked(Client(broken)) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("hello")).error.kind == "other"
        assert (await session.ask("again")).text == "Fine."
    assert not crashes(caplog)


@pytest.mark.parametrize("how", ["interrupt", "deadline", "leave"])
async def test_a_client_that_fails_while_it_is_cancelled_crashes_nothing(
    autojump_clock, open_checked, journal, caplog, how
):
    """L12, L15: what comes in a group with the cancel is logged, and changes nothing."""
    model = WithReader([(TextChunk("Half a"), Done("end_turn")), reply("Fine.")], delay_s=1000.0, first_delay_s=0.0)
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        async with session.turn("hello") as turn:
            await seen(turn, TextDelta)
            if how == "interrupt":
                await session.interrupt()
            elif how == "deadline":
                await turn.wait_ended()
        model._delay_s = 0.0
        # Its clean-up fails here too, after the reply was complete.
        assert (await session.ask("again")).text == "Fine."
    first = recorded(journal, TurnEnded)[0]
    if how == "deadline":
        assert first.fault is not None and first.fault.kind == "network"
    else:
        assert first.stop_reason == "interrupt" and first.partial is not None and first.partial.text == "Half a"
    assert not crashes(caplog)


async def test_closing_a_session_whose_client_fails_meanwhile(autojump_clock, open_checked, caplog):
    """I16, I21"""
    async with open_checked(WithReader([(TextChunk("Half a"), Done("end_turn"))], delay_s=1000.0)) as runtime:
        session = await runtime.session("s")
        async with session.turn("hello") as turn:
            await trio.sleep(10)
            await session.close()
            assert (await turn.wait_ended()).stop_reason == "interrupt"
    assert not crashes(caplog)


def _ends(how: str) -> Callable[[], AsyncIterator[Chunk]]:
    async def stream() -> AsyncIterator[Chunk]:
        try:
            yield TextChunk("All of it.")
            yield Done("end_turn")
        finally:
            match how:
                case "raises":
                    raise OSError("closing failed")
                case "hangs":
                    await trio.sleep_forever()
                case "goes on":
                    yield TextChunk("and more")

    return stream


@pytest.mark.parametrize("how", ["raises", "hangs", "goes on"])
async def test_a_reply_that_is_complete_stays_so_however_its_stream_closes(
    autojump_clock, open_checked, journal, caplog, how
):
    """L14: the end marker has come, and with it everything that there was to say."""
    async with open_checked(Client(_ends(how))) as runtime:
        session = await runtime.session("s")
        result = await session.ask("hello")
        assert (result.text, result.stop_reason, result.error) == ("All of it.", "end_turn", None)
        assert [message.kind for message in session.history] == ["normal", "normal"]
        assert (await session.ask("again")).text == "Fine."
    assert not crashes(caplog)


@pytest.mark.parametrize("how", ["interrupt", "time-out", "exit"])
async def test_a_tool_that_fails_while_it_is_cancelled_crashes_nothing(
    autojump_clock, open_checked, journal, caplog, how
):
    """L20, L21, I1"""

    @tool(timeout_s=5)
    async def busy() -> str:
        """Keeps two tasks."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_closes_badly)
            nursery.start_soon(trio.sleep_forever)
            if how == "exit":
                await trio.sleep(1)
                raise SystemExit(2)
        return "never"

    model = Scripted([reply(call("busy")), reply("Fine.")], exhausted="repeat")
    async with open_checked(model, tools=[busy]) as runtime:
        session = await runtime.session("s")
        async with session.turn("go") as turn:
            if how == "interrupt":
                await trio.sleep(1)
                await session.interrupt()
            await turn.wait_ended()
        assert (await session.ask("again")).text == "Fine."
    (ended,) = recorded(journal, CallEnded)
    assert ended.outcome is {"interrupt": Outcome.CANCELLED, "time-out": Outcome.TIMEOUT, "exit": Outcome.ERROR}[how]
    assert not crashes(caplog)


async def test_what_comes_from_outside_goes_on_up_and_the_rest_does_not(autojump_clock):
    assert from_outside(ValueError()) is None and from_outside(SystemExit()) is None
    assert from_outside(ExceptionGroup("", [ValueError(), ExceptionGroup("", [OSError()])])) is None
    stop = KeyboardInterrupt()
    assert from_outside(stop) is stop
    mixed = from_outside(BaseExceptionGroup("", [ValueError(), BaseExceptionGroup("", [stop, OSError()])]))
    assert isinstance(mixed, BaseExceptionGroup)
    inner = mixed.exceptions[0]
    assert isinstance(inner, BaseExceptionGroup) and inner.exceptions == (stop,) and len(mixed.exceptions) == 1
    only = BaseExceptionGroup("", [BaseExceptionGroup("", [stop])])
    assert from_outside(only) is only
    with trio.CancelScope(deadline=math.inf) as scope:
        scope.cancel()
        try:
            await trio.sleep(1)
        except trio.Cancelled as cancelled:
            assert from_outside(cancelled) is cancelled
            raise


@pytest.mark.parametrize("time_out_s", [1.0, math.inf])
async def test_a_scope_that_a_tool_leaves_open_hits_nobody_else(
    autojump_clock, open_checked, journal, caplog, time_out_s
):
    """I23: a time-out in an async generator that was not read to its end stays in the task, and the work that follows is done by the same."""
    unread: list[AsyncIterator[int]] = []

    async def ticks() -> AsyncIterator[int]:
        with trio.move_on_after(time_out_s):
            while True:
                yield 1

    @tool
    async def first() -> int:
        unread.append(ticks())
        return await anext(unread[0])

    @tool
    async def slow() -> int:
        await trio.sleep(5)
        return 2

    script = [reply(call("first")), reply(call("slow")), reply("Done."), reply("Still here.")]
    async with open_checked(Scripted(script), tools=[first, slow]) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("go")).text == "Done."
        assert (await session.ask("and now?")).text == "Still here."
    assert [(end.outcome, end.content) for end in recorded(journal, CallEnded)] == [(Outcome.OK, 1), (Outcome.OK, 2)]
    assert "left a cancel scope open" in caplog.text
    await unread[0].aclose()


async def test_of_a_tool_that_leaves_a_scope_open_and_raises_no_secret_is_logged(autojump_clock, open_checked, caplog):
    """I36: its error is being handled when the scope is closed. What is logged of the scope does not tell it, and what is logged of the error is redacted."""
    key = "sk-" + "abcdefgh01234567" * 2
    unread: list[AsyncIterator[int]] = []

    async def ticks() -> AsyncIterator[int]:
        with trio.move_on_after(1000):
            while True:
                yield 1

    @tool
    async def careless() -> int:
        unread.append(ticks())
        await anext(unread[0])
        raise ValueError(f"the key {key} is not welcome")

    async with open_checked(Scripted([reply(call("careless")), reply("Done.")]), tools=[careless]) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("go")).text == "Done."
    (of_the_scope,) = [each for each in caplog.records if "left a cancel scope open" in each.getMessage()]
    assert of_the_scope.exc_info and of_the_scope.exc_info[1] and of_the_scope.exc_info[1].__context__ is None
    assert "is not welcome" in caplog.text
    assert key not in caplog.text
    await unread[0].aclose()


async def test_a_tool_with_a_nursery_that_is_cancelled_has_not_failed(autojump_clock, open_checked, journal, caplog):
    """L21: what comes out of the nursery is a group of cancels, and nothing else."""

    @tool(readonly=True, timeout_s=5)
    async def both() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(trio.sleep_forever)

    script = [reply(call("both")), reply(call("both")), reply("Done.")]
    async with open_checked(Scripted(script), tools=[both]) as runtime:
        session = await runtime.session("s")
        async with session.turn("go"):
            await trio.sleep(7)
        assert (await session.ask("again")).text == "Done."
    assert [end.outcome for end in recorded(journal, CallEnded)] == [Outcome.TIMEOUT, Outcome.CANCELLED]
    assert not caplog.records


async def ticks_within(seconds: float) -> AsyncIterator[int]:
    with trio.move_on_after(seconds):
        while True:
            yield 1


async def test_a_tool_that_is_cut_off_with_a_scope_left_open_ends_its_own_call_only(
    autojump_clock, open_checked, journal, caplog
):
    """I23, B2: it reads from an async generator with a time-out inside, and is cancelled between two items: nobody closes the generator."""
    unread: list[AsyncIterator[int]] = []

    async def read(seconds: float) -> int:
        unread.append(ticks_within(seconds))
        async for _ in unread[-1]:
            await trio.sleep(100)
        return 0

    @tool(readonly=True, timeout_s=5)
    async def times_out() -> int:
        return await read(math.inf)

    @tool(readonly=True, timeout_s=50)
    async def runs_into_it() -> int:
        return await read(2)

    @tool(readonly=True)
    async def beside() -> int:
        await trio.sleep(10)
        return 1

    calls = [call(each.name) for each in (times_out, runs_into_it, beside)]
    script = [reply(*calls), reply("Done."), reply(call("times_out")), reply("Still here.")]
    async with open_checked(Scripted(script), tools=[times_out, runs_into_it, beside]) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("go")).text == "Done."
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.ask, "again")
            await trio.sleep(1)
            await session.interrupt()
        assert (await session.ask("and now?")).text == "Still here."
    ended = [end.outcome for end in recorded(journal, CallEnded)]
    assert ended == [Outcome.ERROR, Outcome.TIMEOUT, Outcome.OK, Outcome.CANCELLED]
    assert "begins again" not in caplog.text
    for each in unread:
        await each.aclose()


async def test_a_client_that_is_cut_off_with_a_scope_left_open_ends_its_own_call_only(
    autojump_clock, open_checked, caplog
):
    """I23, L12: the attempt has failed, and the next one is made."""
    unread: list[AsyncIterator[int]] = []

    class Careless(Client):
        @asynccontextmanager
        async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[Chunk]]:
            self.requests.append(request)
            if len(self.requests) < 3:
                unread.append(ticks_within(math.inf if len(self.requests) == 1 else 2))
                await anext(unread[-1])
                await trio.sleep(60)
            yield _fine()

    model = Careless(_fine)
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        result = await session.ask("go")
        assert result.error is not None and "raised Cancelled" in result.error.message
        assert [request.attempt for request in model.requests] == [1, 2]
        assert (await session.ask("and now?")).text == "Fine."
    assert "begins again" not in caplog.text
    for each in unread:
        await each.aclose()


def test_a_coroutine_that_is_being_closed_is_not_kept_from_it():
    """The rest of a trio that has broken down is collected as garbage: then nothing may be awaited any more."""
    met: list[BaseException | None] = []

    @contextmanager
    def block() -> Iterator[None]:
        yield

    async def foreign() -> None:
        await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)

    async def stands_in_for_a_call() -> None:
        try:
            with block():
                await foreign()
        except BaseException as error:
            met.append(from_outside(error))
            raise

    suspended = stands_in_for_a_call()
    suspended.send(None)
    del suspended
    gc.collect()
    assert [type(each) for each in met] == [GeneratorExit]
    assert from_outside(GeneratorExit()) is None


@pytest.mark.parametrize("kind", [*OWN, RuntimeError])
async def test_a_client_that_cannot_be_closed_keeps_nobody_else_from_it(autojump_clock, open_checked, kind):
    """I16, I23: the runtime ends as it would have, and the other clients are closed."""
    closed: list[str] = []

    class Closing(Scripted):
        async def aclose(self) -> None:
            closed.append(self.name)
            if self.name == "bad":
                raise kind

    first = Closing([reply("Fine.")], name="bad")
    async with open_checked(first) as runtime:
        assert (await (await runtime.session("s")).ask("hello")).text == "Fine."
        other = await runtime.session("t", model=Closing([reply("Well.")], name="good"))
        assert (await other.ask("hello")).text == "Well."
    assert closed == ["bad", "good"]
