"""Mistakes in the call of `open_runtime`, and what users do to it: told at once, in their own words; nothing hangs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from trouper import (
    Compaction,
    ConfigError,
    Deadlines,
    Limits,
    Retry,
    Rule,
    Scripted,
    ToolError,
    UsageError,
    open_runtime,
    tool,
)
from trouper._errors import ToolDefinitionError
from trouper.actors import recording
from trouper.core.notification import NotificationsAcknowledged
from trouper.journal import MemoryDisk
from trouper.models.chunks import Chunk, Done, TextChunk
from trouper.models.fallback import Fallback
from trouper.models.scripted import call, reply, stall
from trouper.session import SessionEnded
from trouper.tools.policy import deny


@tool
async def fine() -> str:
    """Works."""
    return "fine"


@pytest.mark.parametrize(
    "mistake",
    [
        {"model": "gemini"},
        {"tools": fine},
        {"tools": 5},
        {"policies": ["allow"]},
        {"hooks": [3]},
        {"limits": 5},
        {"budget": 5},
        {"root": ""},
        {"root": 5},
        {"model": Scripted},
        {"root": b"state"},
        {"root": "a\0b"},
        {"root": "a\ud800b"},
        {"environment": 5},
        {"disk": 5},
        {"disk": "/dev/sda"},
        {"disk": MemoryDisk},
    ],
    ids=lambda mistake: next(iter(mistake)),
)
async def test_a_wrong_argument_is_named_at_the_call(mistake: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        async with open_runtime(**{"durability": "memory", **mistake}):
            pass


@pytest.mark.parametrize("schema", [{"type": "nope"}, {"type": "object", "properties": 5}])
async def test_a_schema_that_is_none_is_refused_before_the_model_is_asked(schema: dict[str, Any]) -> None:
    model = Scripted([reply("{}")])
    async with open_runtime(model=model, durability="memory") as runtime:
        with pytest.raises(UsageError, match="no valid JSON Schema"):
            await (await runtime.session("s")).ask("x", output=schema)
    assert model.requests == []


async def test_nobody_waits_for_a_session_that_failed_for_good(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """I22: the turn of an actor that crashes once too often ends with an error, it does not hang."""
    model = Scripted([reply("seen ", stall(5.0), "never")], exhausted="repeat")
    async with open_runtime(model=model, durability="memory") as runtime:
        session = await runtime.session("s")
        real = recording.step

        def step(state: Any, command: Any) -> Any:
            if type(command).__name__ in ("DeliverReply", "Recover"):
                raise MemoryError
            return real(state, command)

        monkeypatch.setattr(recording, "step", step)
        with trio.fail_after(1_000), pytest.raises(SessionEnded):
            await session.ask("x")


async def test_a_cancel_around_the_runtime_is_recorded_as_an_interrupt(
    tmp_path: Any, autojump_clock: trio.testing.MockClock
) -> None:
    """L15, L21: also when the application's own nursery is what is cancelled; what was said is kept."""
    with trio.move_on_after(1.0):
        async with open_runtime(
            tmp_path, model=Scripted([reply("seen text ", stall(30.0))]), durability="write"
        ) as runtime:
            await (await runtime.session("s")).ask("x")
    async with open_runtime(tmp_path, model=Scripted([reply("hello")]), durability="write") as runtime:
        session = await runtime.session("s")
        assert session.last is not None
        assert (session.last.stop_reason, session.last.text) == ("interrupt", "seen text ")
        assert (await session.ask("go on")).text == "hello"


async def test_a_tool_error_out_of_a_nursery_is_the_models_to_see_and_an_exit_is_no_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """T2, L20"""

    @tool
    async def grouped() -> None:
        """Fails inside a nursery."""
        async with trio.open_nursery():
            raise ToolError("readable")

    @tool
    async def leaves() -> None:
        """Wants to end the process."""
        raise SystemExit(3)

    model = Scripted([reply(call("grouped"), call("leaves")), reply("I see.")])
    async with open_runtime(model=model, tools=[grouped, leaves], durability="memory") as runtime:
        session = await runtime.session("s")
        assert (await session.ask("x")).text == "I see."
        told = [answer.content for answer in session.history[2].answers]
        assert told[0] == "readable"
        assert "internal error" in told[1]


async def test_a_turn_that_nobody_attends_denies_what_needs_an_approval(autojump_clock: trio.testing.MockClock) -> None:
    """T4: silence is never approval, and nobody is made to wait for it."""
    asks = fine.with_(policy="requires_approval")
    model = Scripted([reply(call("fine")), reply("Denied, then.")])
    async with open_runtime(model=model, tools=[asks], durability="memory") as runtime:
        session = await runtime.session("s")
        async with session.turn("x", attended=False) as turn:
            async for _ in turn:
                pass
        assert turn.result is not None
        assert turn.result.text == "Denied, then."


async def test_what_was_said_before_a_silence_is_on_record(autojump_clock: trio.testing.MockClock) -> None:
    """J1, L13: no later chunk has to come for it."""
    model = Scripted([reply("I have wired the money. ", stall(60.0))])
    async with open_runtime(model=model, durability="memory") as runtime:
        session = await runtime.session("s")
        async with session.turn("x") as turn:
            with trio.move_on_after(2.0):
                async for _ in turn:
                    pass
            assert session.state.turn is not None
            assert session.state.turn.draft_text == "I have wired the money. "


async def test_changing_one_thing_of_an_open_session_leaves_the_rest_as_it_was(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """M6: a session's own model stays when only its tools are changed."""
    own = Scripted([reply("from its own model")])
    async with open_runtime(model=Scripted([reply("from the runtime's")]), durability="memory") as runtime:
        await runtime.session("s", model=own)
        session = await runtime.session("s", tools=[fine])
        assert (await session.ask("x")).text == "from its own model"


async def test_what_waits_is_listed_however_much_is_settled(autojump_clock: trio.testing.MockClock) -> None:
    """B14"""
    async with open_runtime(model=Scripted([reply("ok")], exhausted="repeat"), durability="memory") as runtime:
        session = await runtime.session("s")
        for number in range(5):
            await session.notify(f"old {number}")
        async for told in session.events():
            if isinstance(told.event, NotificationsAcknowledged):
                break
        with session.hold_notifications():
            await session.notify("new")
            listed = [each.notification.title for each in runtime.notifications(limit=2)]
            assert listed == ["old 4", "new"]


RECORDED_SECONDS = ("approval_s", "task_retention_s", "notification_expire_s", "schedule_interval_s")
SECONDS = ["1", None, -1.0, float("nan"), True, [1], 10**400]


@pytest.mark.parametrize(
    ("group", "setting", "values"),
    [
        *((Deadlines, name, SECONDS) for name in ("connect_s", "first_event_s", "idle_s")),
        (Deadlines, "step_s", [value for value in SECONDS if value is not None]),
        *((Retry, name, SECONDS) for name in ("first_delay_s", "max_delay_s")),
        *((Retry, name, [*SECONDS, 1.5]) for name in ("opens", "attempts")),
        *((Compaction, name, [*SECONDS, 1.5]) for name in ("keep_pairs", "min_messages", "mask_after_turns")),
        *((Compaction, name, ["1", -1, 1.5, True]) for name in ("threshold", "window")),
        (Compaction, "share", ["1", -1, True, [1]]),
        *((Limits, name, [5, None, "x", {}]) for name in ("deadlines", "retry", "compaction", "on_restart")),
        (Limits, "grace_s", SECONDS),
        (Limits, "heartbeat_s", [*SECONDS, 0]),
        *((Limits, name, [*SECONDS, 1.5]) for name in ("attachment_bytes", "notification_attempts", "mailbox")),
        *((Limits, name, [*SECONDS, float("inf")]) for name in RECORDED_SECONDS),
        (Limits, "answer_s", [*(value for value in SECONDS if value is not None), float("inf")]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_setting_that_makes_no_sense_is_named_where_it_is_made(group: Any, setting: str, values: list[Any]) -> None:
    """I23: and not by a session that fails on it later."""
    for value in values:
        with pytest.raises(ConfigError, match=setting):
            made = group(**{setting: value})
            Limits(compaction=made)  # Turns are recorded with theirs: it is looked at where it is given.


@pytest.mark.parametrize(
    "options",
    [
        *({name: value} for name in ("timeout_s", "budget_s") for value in ("1", -1, float("nan"), True, [1], 10**400)),
        {"concurrency_class": 5},
        {"concurrency_class": ["a"]},
        {"description": 5},
    ],
    ids=str,
)
def test_a_tool_with_an_option_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    """T1"""
    with pytest.raises(ToolDefinitionError):
        tool(**options)(fine.function)


async def test_a_tool_may_take_for_ever(autojump_clock: trio.testing.MockClock) -> None:
    """B2: infinity is recorded as what never comes."""

    @tool(timeout_s=float("inf"))
    async def slow() -> str:
        """Takes its time."""
        await trio.sleep(80_000.0)
        return "done"

    async with open_runtime(
        model=Scripted([reply(call("slow")), reply("Fine.")]), tools=[slow], durability="memory"
    ) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("go")).text == "Fine."
        assert session.history[2].answers[0].content == "done"


@pytest.mark.parametrize(
    "change",
    [{"name": 5}, {"context_window": "large"}, {"context_window": -1}, {"context_window": 1.5}],
)
async def test_a_model_that_says_nonsense_of_itself_is_refused(change: dict[str, Any]) -> None:
    """M1"""

    class Odd:
        name: Any = "odd:model"
        context_window: Any = None

        def stream(self, request: object) -> Any:
            raise AssertionError

    model: Any = Odd()
    for name, value in change.items():
        setattr(model, name, value)
    with pytest.raises(ConfigError, match=next(iter(change)).partition("_")[0]):
        async with open_runtime(model=model, durability="memory"):
            pass


async def test_a_model_is_whatever_streams() -> None:
    """M1: one small protocol; a name and a window may be there, and need not."""

    class Plain:
        @asynccontextmanager
        async def stream(self, request: object) -> AsyncIterator[AsyncIterator[Chunk]]:
            async def chunks() -> AsyncIterator[Chunk]:
                yield TextChunk("Hello.")
                yield Done("end_turn")

            yield chunks()

    class Broken:
        def stream(self, request: object) -> Any:
            raise ZeroDivisionError

    async with open_runtime(model=Plain(), durability="memory") as runtime:
        session = await runtime.session("s")
        assert (await session.ask("Hi")).text == "Hello."
        assert await session.compact() is None  # Too short; and that nothing is known of its window is no hindrance.
        failed = await (await runtime.session("t", model=Broken())).ask("Hi")
        assert failed.error is not None and "Broken" in failed.error.message
        both = await runtime.session("u", model=Fallback(Broken(), Plain()))
        assert (await both.ask("Hi")).text == "Hello."


@pytest.mark.parametrize("wrong", [{"reason": 5}, {"tool": 5}, {"tool": None}], ids=str)
def test_a_rule_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    """T4"""
    with pytest.raises(ConfigError):
        Rule(**{"tool": "t", "effect": "deny", **wrong})


async def test_rules_and_tools_from_a_generator_are_kept(autojump_clock: Any) -> None:
    """T4: a rule that was lost on the way would forbid nothing."""
    ran: list[str] = []

    @tool
    async def erase() -> str:
        ran.append("erase")
        return "gone"

    model = Scripted([reply(call("erase")), reply("Done.")])
    rules = (deny(name) for name in ["erase"])
    tools = (each for each in [erase])
    async with open_runtime(model=model, durability="memory", tools=tools, policies=rules) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("go")).text == "Done."
    assert ran == []


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "guards nothing" in each.getMessage()]


async def test_a_rule_for_no_tool_is_warned_of_with_the_first_session(
    autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """T4: a misspelt name leaves the tool that was meant to the other rules. Said once; a built-in tool that is not in use may have a rule."""
    rules = [Rule("fine_", "ask"), Rule("drop_all", "deny"), Rule("run_command", "deny"), Rule("*", "allow")]
    async with open_runtime(durability="memory", tools=[fine], policies=rules) as runtime:
        for name in ("a", "b"):
            await runtime.session(name)
    told = "a rule says %r for the tool %r, but the runtime has no such tool%s: unless a session brings it along, the rule guards nothing"
    assert warned(caplog) == [
        told % ("ask", "fine_", " (did you mean 'fine'?)"),
        told % ("deny", "drop_all", ""),
    ]


@pytest.mark.parametrize("shared", [[], [fine]], ids=["no shared tools", "shared tools"])
async def test_rules_for_tools_of_sessions_are_not_warned_of(
    autojump_clock: Any, caplog: pytest.LogCaptureFixture, shared: list[Any]
) -> None:
    """T4: rules are the runtime's, also for tools that only some of its sessions have."""
    rules = [Rule("find", "ask"), Rule("*", "allow")]
    async with open_runtime(durability="memory", tools=shared, policies=rules) as runtime:
        await runtime.session("a", tools=[fine] if shared else None)
        await runtime.session("b")
    assert warned(caplog) == []
