"""What nobody could notice begins before its intent is durable, and shares the sync of its outcome; nobody sees either before (J1, J4, I2, I15)."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import trio

from trouper import ToolContext, codec, tool
from trouper.actors.journal import GATHER_S
from trouper.core.events import CallEnded, CallStarted, TurnEnded
from trouper.core.task_events import ReportTaskProgress, TaskProgressed
from trouper.core.values import changed
from trouper.journal import JournalFailed
from trouper.models.scripted import Scripted, call, reply
from trouper.runtime import Runtime
from trouper.session import Session
from trouper.testing import CrashDisk
from trouper.tools.contract import Tool


def syncs(disk: CrashDisk) -> int:
    return sum(step.operation == "sync" for step in disk.log)


def intents(runtime: Runtime, *, durable: bool) -> int:
    """How many calls have theirs in the journal: on the disk, or as far as it is written."""
    log = runtime._log
    records = [raw for raw in log.records(stream="s") if raw.seq <= log.durable or not durable]
    return sum(
        isinstance(event, CallStarted) for raw in records for event in codec.decode_events(raw.payload, raw.seq)[2]
    )


class Look:
    """A tool that looks at the journal when it begins, as one that says of itself what it is given."""

    def __init__(self, **says: Any) -> None:
        self.runtime: Runtime | None = None
        self.seen: list[tuple[int, int]] = []
        self.seconds = 0.0

        async def look() -> str:
            """Looks."""
            assert self.runtime is not None
            self.seen.append((intents(self.runtime, durable=False), intents(self.runtime, durable=True)))
            await trio.sleep(self.seconds)
            return "seen"

        self.tool: Tool = tool(**says)(look)


UNNOTICED = {"readonly": True, "open_world": False}


async def test_a_step_of_a_tool_that_nobody_could_notice_takes_one_sync(autojump_clock, open_checked) -> None:
    """J1: its intent and its outcome are synced together; for any other tool the intent comes first."""
    taken: dict[str, int] = {}
    for name, says in (("plain", {"readonly": True}), ("unnoticed", UNNOTICED)):
        look, disk = Look(**says), CrashDisk()
        model = Scripted([reply(call("look")), reply(call("look")), reply("Done.")])
        async with open_checked(model, tools=[look.tool], disk=disk, durability="fsync") as look.runtime:
            session = await look.runtime.session("s")
            before = syncs(disk)
            (await session.ask("look twice")).raise_for_error()
            taken[name] = syncs(disk) - before
    assert taken == {"plain": 6, "unnoticed": 4}


async def test_the_intent_is_written_when_it_begins(autojump_clock, open_checked) -> None:
    """I2: a killed process leaves it behind; only a power cut within milliseconds does not."""
    look = Look(**UNNOTICED)
    async with open_checked(
        Scripted([reply(call("look")), reply("Done.")]), tools=[look.tool], disk=CrashDisk(), durability="fsync"
    ) as look.runtime:
        await (await look.runtime.session("s")).ask("look")
    assert look.seen == [(1, 0)]


@pytest.mark.parametrize(
    "says", [{}, {"readonly": True}, {"idempotent": True, "open_world": False}, {"open_world": False}]
)
async def test_a_tool_that_somebody_could_notice_waits_for_its_intent(autojump_clock, open_checked, says) -> None:
    """I2: who asks somebody outside is noticed there; who does not say so might."""
    look = Look(**says)
    async with open_checked(
        Scripted([reply(call("look")), reply("Done.")]), tools=[look.tool], disk=CrashDisk(), durability="fsync"
    ) as look.runtime:
        await (await look.runtime.session("s")).ask("look")
    assert look.seen == [(1, 1)]


async def test_a_tool_that_can_say_something_waits_for_its_intent(autojump_clock, open_checked) -> None:
    """J4: its progress would be seen before the call."""
    seen: list[int] = []

    @tool(readonly=True, open_world=False)
    async def look(context: ToolContext) -> str:
        """Looks."""
        seen.append(intents(runtime, durable=True))
        return "seen"

    async with open_checked(
        Scripted([reply(call("look")), reply("Done.")]), tools=[look], disk=CrashDisk(), durability="fsync"
    ) as runtime:
        await (await runtime.session("s")).ask("look")
    assert seen == [1]


async def test_calls_of_one_reply_wait_if_one_of_them_has_to(autojump_clock, open_checked) -> None:
    """I2"""
    look, other = Look(**UNNOTICED), Look()
    tools = [look.tool, other.tool.with_(name="change")]
    async with open_checked(
        Scripted([reply(call("look"), call("change")), reply("Done.")]),
        tools=tools,
        disk=CrashDisk(),
        durability="fsync",
    ) as runtime:
        look.runtime = other.runtime = runtime
        await (await runtime.session("s")).ask("look and change")
    assert look.seen == other.seen == [(2, 2)]


async def test_whoever_watches_hears_of_a_slow_call_at_once(autojump_clock, open_checked) -> None:
    """J2, J4: when its intent is durable, which it is within the time that a sync may wait for others; not when it ends."""
    look, disk = Look(**UNNOTICED), CrashDisk()
    look.seconds = 60.0
    async with open_checked(
        Scripted([reply(call("look")), reply("Done.")]), tools=[look.tool], disk=disk, durability="fsync"
    ) as look.runtime:
        session = await look.runtime.session("s")
        async with session.turn("look") as turn:
            begun = trio.current_time()
            async for event in turn:
                if isinstance(event, CallStarted):
                    assert trio.current_time() - begun <= GATHER_S
                    assert intents(look.runtime, durable=True) == 1
                    assert [each.phase.value for each in session.state.in_turn.calls] == ["running"]
                if isinstance(event, CallEnded):
                    assert trio.current_time() - begun >= 60
    assert turn.result.text == "Done."


async def asked_in_the_tool(open_checked: Any, then: Any) -> list[Any]:
    """What a watcher hears of a turn in whose tool something is done, before its intent is durable."""
    heard: list[Any] = []

    @tool(readonly=True, open_world=False)
    async def look() -> str:
        """Looks, and does."""
        assert intents(runtime, durable=True) == 0 and session.state.phase.value == "thinking"
        nursery.start_soon(then, session)
        await trio.sleep(0.001)
        return "seen"

    async with open_checked(
        Scripted([reply(call("look")), reply("Done.")], exhausted="repeat"),
        tools=[look],
        disk=CrashDisk(),
        durability="fsync",
    ) as runtime:
        session = await runtime.session("s")
        async with trio.open_nursery() as nursery:
            async with session.turn("look") as turn:
                async for event in turn:
                    heard.append(event)
        assert (await session.ask("and now?")).error is None
        numbered = [told.seq async for told in _all_events(session)]
        assert numbered == list(range(len(numbered)))
    return heard


async def _all_events(session: Session) -> Any:
    last = session.statistics().events - 1
    async for told in session.events():
        yield told
        if told.seq == last:
            return


async def test_an_interrupt_that_comes_ahead_of_the_disk_ends_the_call_as_any_other(
    autojump_clock, open_checked
) -> None:
    """L15, L21: the call is on record as begun and as cancelled, in this order."""
    heard = await asked_in_the_tool(open_checked, lambda session: session.interrupt("enough"))
    told = [event for event in heard if isinstance(event, CallStarted | CallEnded | TurnEnded)]
    assert [type(event).__name__ for event in told] == ["CallStarted", "CallEnded", "TurnEnded"]
    assert told[1].outcome.value == "cancelled" and told[2].stop_reason == "interrupt"


async def test_what_a_user_adds_ahead_of_the_disk_steers_the_turn(autojump_clock, open_checked) -> None:
    """L10, I33: it is decided on after the call that it came behind, and told after it."""
    heard = await asked_in_the_tool(open_checked, lambda session: session.send("also this"))
    names = [type(event).__name__ for event in heard]
    added = names.index("InputReceived", 1)  # The first is the question.
    assert names.index("CallStarted") < added < names.index("TurnEnded")


async def test_what_a_run_reports_ahead_of_the_disk_comes_behind_the_call(autojump_clock, open_checked) -> None:
    """J4, I15: reports wait for no disk, and must not show what they follow on before it is durable."""
    heard: list[Any] = []

    @tool(background=True)
    async def slow() -> None:
        """Never ends by itself."""
        await trio.sleep_forever()

    @tool(readonly=True, open_world=False)
    async def look() -> str:
        """Looks, while a run says something."""
        await session._actor.deliver(ReportTaskProgress(run.id, 1, 1.0, "half way"))
        heard.append((intents(runtime, durable=True), session.statistics().events == session._actor.next_seq))
        return "seen"

    async with open_checked(
        Scripted([reply(call("look")), reply("Done.")]), tools=[look, slow], disk=CrashDisk(), durability="fsync"
    ) as runtime:
        session = await runtime.session("s")
        run = await session.spawn("slow")
        async with session.turn("look") as turn:
            async for event in turn:
                if isinstance(event, CallStarted | TaskProgressed):
                    heard.append(type(event).__name__)
        assert turn.result.text == "Done."
        await session.cancel(run.id)
    assert heard == [(1, True), "CallStarted", "TaskProgressed"]


async def test_an_output_is_kept_when_the_intent_of_its_call_is_durable(
    autojump_clock, open_checked, tmp_path: Path
) -> None:
    """J4, I15: a tool that nobody could notice leaves a file behind when its output is too long for the model."""
    disk, begun = CrashDisk(), trio.Event()
    found: list[bool] = []

    @tool(readonly=True, open_world=False)
    async def look() -> str:
        """Sees much."""
        begun.set()
        return "much " * 50_000

    def look_for_files() -> None:
        if begun.is_set():
            found.append(any(tmp_path.rglob("outputs/*.txt")))

    async with open_checked(
        Scripted([reply(call("look")), reply("Done.")]),
        tools=[look],
        disk=disk,
        durability="fsync",
        environment=changed(open_checked.environment(), directory=tmp_path),
    ) as runtime:
        session = await runtime.session("s")
        disk.stall("sync", look_for_files, times=None)
        assert (await session.ask("look")).text == "Done."
    assert found[:2] == [False, True], "the intent, then the outcome"


async def test_a_call_that_is_let_go_ahead_of_the_disk_goes_on(autojump_clock, open_checked) -> None:
    """B2: its budget runs out before its intent was synced."""

    @tool(readonly=True, open_world=False, background=True, budget_s=GATHER_S / 5)
    async def look() -> str:
        """Looks for long."""
        await trio.sleep(60)
        return "seen"

    async with open_checked(
        Scripted([reply(call("look")), reply("It goes on.")], exhausted="repeat"),
        tools=[look],
        disk=CrashDisk(),
        durability="fsync",
    ) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("look")).text == "It goes on."
        (task,) = runtime.tasks()
        await trio.sleep(61)
        assert runtime.task(task.id).state.value == "succeeded"


async def test_a_disk_that_fails_as_it_is_written_ahead_stops_everything(autojump_clock, open_checked) -> None:
    """J11: nobody waits for what will never be there."""
    disk = CrashDisk()
    look = Look(**UNNOTICED)

    async def ask() -> None:
        async with open_checked(
            Scripted([reply(call("look")), reply("Done.")]), tools=[look.tool], disk=disk, durability="fsync"
        ) as look.runtime:
            session = await look.runtime.session("s")
            disk.fail("write", errno.EIO, nth=2)  # The question, then the reply.
            with trio.fail_after(60):
                await session.ask("look")

    with pytest.raises(JournalFailed, match="recovery keeps all that was acknowledged"):
        await ask()
    assert look.seen == []
