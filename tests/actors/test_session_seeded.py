"""What only an eye on every single step can see: nothing is ahead of the disk, nothing is told twice or left out, no permit is lost.

The bugs of `property_tests/seeded_bugs.py` that no other test would notice are caught here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing
from everywhere import ROOT, Stage, the_busy_script, warm_up

from trouper import Budget, Limits, codec, tool
from trouper.actors.feed import Feed, Lagged
from trouper.core.calls import Preparation
from trouper.core.commands import Approve, DeliverDue, DeliverReply, EndTurn, Interrupt, OpenSession, Submit
from trouper.core.decisions import step
from trouper.core.events import CallEnded, CallStarted, TurnEnded
from trouper.core.ids import NotificationId, call_id
from trouper.core.messages import Message, Text, ToolCall
from trouper.core.notification import NotificationState, QueueNotification
from trouper.core.session import State
from trouper.core.settings import TurnOptions
from trouper.journal import Log, open_log
from trouper.models.chunks import CallDelta, CallEnd, CallStart, Done, TextChunk
from trouper.models.scripted import Scripted, call, reply
from trouper.roster import Roster, fold
from trouper.runtime import Runtime
from trouper.testing import CrashDisk, Fate, run_simulated


class EachStep(trio.abc.Instrument):
    """Looks at something before every step that any task takes, and keeps what is wrong: trio lets no instrument raise."""

    def __init__(self) -> None:
        self.look: Callable[[], None] | None = None
        self.seen = 0
        self.wrong: list[BaseException] = []

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.look is not None:
            self.seen += 1
            try:
                self.look()
            except BaseException as error:
                self.wrong.append(error)


# --- nothing is ahead of the disk ---


def durable_events(log: Log, session: str) -> list[Any]:
    """The session's events that a power cut would leave, right now."""
    return events_up_to(log, session, log.durable)


def events_up_to(log: Log, session: str, last: int) -> list[Any]:
    found: list[Any] = []
    for raw in log.records(stream=session):
        if raw.seq <= last:
            found += codec.decode_events(raw.payload, raw.seq)[2]
    return found


async def watched_by_the_disk(stage: Stage, eye: EachStep) -> None:
    async with stage.open(the_busy_script()) as runtime:  # type: ignore[attr-defined]
        session = await warm_up(runtime)
        log, actor = runtime._log, session._actor
        safe = {log.durable: durable_events(log, "s")}

        def on_disk() -> list[Any]:
            if log.durable not in safe:
                safe[log.durable] = durable_events(log, "s")
            return safe[log.durable]

        def look() -> None:
            assert actor.next_seq <= len(on_disk()), "I15: the state is ahead of the disk"
            # What nobody could notice has to be written only; a killed process leaves it behind.
            kept = events_up_to(log, "s", log.last) if stage.unnoticed and stage.running else on_disk()
            begun = {event.call for event in kept if isinstance(event, CallStarted)}
            assert len(begun) >= len(stage.running), "I2: a tool runs, and its intent is not on the disk"
            ahead.append(stage.running and len(kept) > len(on_disk()))

        ahead: list[Any] = []
        eye.look = look
        told: list[Any] = []
        async with session.turn("do three things") as turn:
            async for event in turn:
                if type(event).__module__ == "trouper.core.events":
                    assert event in on_disk(), f"I15: {event} was told before it was on the disk"
                    told.append(event)
        eye.look = None
        recorded = durable_events(log, "s")
        assert told == recorded[len(recorded) - len(told) :]  # Each once, in order.
        assert any(ahead) is stage.unnoticed


@pytest.mark.parametrize("unnoticed", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_nothing_can_be_seen_that_a_power_cut_would_undo(seed: int, unnoticed: bool) -> None:
    """I2, I15, J4: checked before every single step of a turn with three tools and a compaction. Unnoticed: tools begin when their intent is written."""
    eye = EachStep()
    run_simulated(watched_by_the_disk, Stage(CrashDisk(), unnoticed=unnoticed), eye, seed=seed, instruments=[eye])
    assert eye.seen > 40 and not eye.wrong, eye.wrong[0]


async def acknowledged_is_kept(stage: Stage) -> None:
    """After each thing that a caller was told of, a power cut that drops all that is not synced changes nothing of it."""
    async with stage.open(the_busy_script()) as runtime:  # type: ignore[attr-defined]
        session = await runtime.session("s")
        await session.ask("hello")
        kept = recovered(stage.disk)
        assert kept == session._state
        async with session.turn("hello") as turn:
            begun = recovered(stage.disk)
            assert begun.turns == turn.number and begun.turn is not None


def recovered(disk: Any) -> State:
    log = open_log(ROOT, disk=disk.fork().crash(Fate.DROPPED))
    try:
        return Roster(log).load("s")[0]
    finally:
        log.close()


def test_what_a_caller_was_told_survives_a_power_cut() -> None:
    """I17: acknowledged is a subset of recovered."""
    run_simulated(acknowledged_is_kept, Stage(CrashDisk()), seed=1)


# --- snapshots ---


async def with_a_snapshot(stage: Stage, eye: EachStep, at: int) -> bool:
    """Take a snapshot before the nth step of a turn, and put it down after it; whether the turn had so many."""
    async with stage.open(the_busy_script()) as runtime:  # type: ignore[attr-defined]
        session = await warm_up(runtime)
        left = at
        pictures: list[Any] = []

        def look() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                pictures.append(runtime._ground.snapshots.pictured())

        eye.look = look
        await session.ask("do three things")
        eye.look = None
        for picture in pictures:
            await runtime._ground.snapshots.put_down(picture)
        log = open_log(ROOT, disk=stage.disk.fork())  # type: ignore[attr-defined]
        try:
            whole = fold(raw.payload for raw in log.records(stream="s"))
            assert Roster(log).load("s") == whole, "I12: snapshot and suffix are not the full fold"
            assert whole == (session._state, session._actor.next_seq)  # I10
        finally:
            log.close()
        return left <= 0


@pytest.mark.parametrize("unnoticed", [False, True])
def test_a_snapshot_at_any_step_of_a_turn_is_true(unnoticed: bool) -> None:
    """I12, J13: enumerated, not sampled; records in flight are none that a snapshot may claim."""
    at = 1
    while True:
        eye, stage = EachStep(), Stage(CrashDisk(), unnoticed=unnoticed)
        if not run_simulated(with_a_snapshot, stage, eye, at, seed=at, instruments=[eye]):
            break
        assert not eye.wrong, eye.wrong[0]
        at += 1
    assert at > 40


# --- those who watch ---


async def test_a_subscriber_gets_each_event_once_wherever_it_comes_from(autojump_clock, open_checked) -> None:
    """I33: its feed fills while it still reads the journal; what both hold is told once."""
    async with open_checked(Scripted([reply("Hi.")], exhausted="repeat")) as runtime:
        session = await runtime.session("s")
        await session.ask("one")
        early = session.events()
        await session.ask("two")
        late = session.events(after=4)
        await session.ask("three")
        last = session.statistics().events - 1
        seen = [told.seq for told in await read_to(early, last)]
        seen_late = [told.seq for told in await read_to(late, last)]
        records = runtime.events()
        await session.ask("four")
        # Now from the live feed, which held all of the above too.
        last = session.statistics().events - 1
        assert seen + [told.seq for told in await read_to(early, last)] == list(range(last + 1))
        assert seen_late + [told.seq for told in await read_to(late, last)] == list(range(5, last + 1))
        numbers = [record.seq for record in await read_to(records, runtime._log.last, lambda record: record.seq)]
        assert numbers == list(range(1, runtime._log.last + 1))


async def test_a_subscriber_that_lagged_reads_on_from_the_journal(autojump_clock, open_checked) -> None:
    """I33: no gap, however slow it is; and the session never waits for it."""
    limits = Limits(subscriber_events=3)
    async with open_checked(Scripted([reply("Hi.")], exhausted="repeat"), limits=limits) as runtime:
        session = await runtime.session("s")
        slow = session.events()
        seen = await one(slow)
        for _ in range(4):
            await session.ask("on and on")
            seen += await one(slow)
        last = session.statistics().events - 1
        seen += [told.seq for told in await read_to(slow, last)]
        await session.ask("once more")
        seen += [told.seq for told in await read_to(slow, session.statistics().events - 1)]
        assert seen == list(range(session.statistics().events))


async def one(subscription: Any) -> list[int]:
    with trio.fail_after(60):
        return [(await anext(subscription)).seq]


async def read_to(subscription: Any, last: int, number: Callable[[Any], int] = lambda told: told.seq) -> list[Any]:
    found = []
    with trio.fail_after(60):
        async for item in subscription:
            found.append(item)
            if number(item) >= last:
                return found
    raise AssertionError("the subscription ended early")


async def test_a_feed_is_bounded_and_says_when_it_lagged() -> None:
    """I25, I33: whoever publishes never waits, and never keeps more than the bound."""
    feed = Feed(3)
    for number in range(10):
        feed.push((number,))
    assert feed.waiting == 3
    assert [await feed.receive() for _ in range(3)] == [0, 1, 2]
    with pytest.raises(Lagged):
        await feed.receive()
    feed.push((10,))
    assert await feed.receive() == 10
    feed.end()
    with pytest.raises(StopAsyncIteration):
        await feed.receive()


# --- calls ---


async def test_a_call_whose_arguments_never_ended_is_not_run(autojump_clock, open_checked, journal) -> None:
    """L13: half-built calls never enter the history."""
    ran: list[int] = []

    @tool
    async def look(n: int = 0) -> int:
        """Looks at something."""
        ran.append(n)
        return n

    half = (
        TextChunk("Two at once. "),
        CallStart(0, "look"),
        CallDelta(0, '{"n": 1}'),
        CallEnd(0),
        CallStart(1, "look"),
        CallDelta(1, '{"n": 2'),
        Done("tool_use"),
    )
    async with open_checked(Scripted([half, reply("Done.")]), tools=[look]) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("look")).text == "Done."
        assert len(session.history[1].calls) == 1
    assert ran == [1]


async def test_work_that_nobody_wants_any_more_is_stopped_at_once(autojump_clock, open_checked) -> None:
    """I8, L21: an interrupt cancels what runs; it does not merely stop waiting for it."""
    stopped: list[str] = []

    @tool
    async def wait_long(name: str) -> str:
        """Would take an hour."""
        try:
            await trio.sleep(3_600.0)
        except trio.Cancelled:
            stopped.append(name)
            raise
        return name

    model = Scripted([reply(call("wait_long", name="a"), call("wait_long", name="b")), reply("Next.")])
    async with open_checked(model, tools=[wait_long]) as runtime:
        session = await runtime.session("s")
        async with session.turn("wait") as turn:
            async for event in turn:
                if isinstance(event, CallStarted) and event.call.endswith("_1"):
                    break
            await trio.sleep(1.0)
            begun = trio.current_time()
            await session.interrupt()
            assert sorted(stopped) == ["a", "b"] and trio.current_time() == begun
        assert (await session.ask("go on")).text == "Next."


def told(state: State, *commands: Any) -> State:
    for command in commands:
        _, state = step(state, command)
    return state


def asked(turn: int) -> DeliverReply:
    request = ToolCall(call_id(turn, 1, 0), "rm", {"path": "x"})
    message = Message("assistant", (request,))
    return DeliverReply(turn, 1, message, "tool_use", 3.0, preparations=(Preparation("ask"),))


@pytest.mark.parametrize("always", [False, True])
def test_an_approval_holds_for_one_call_unless_it_says_always(always: bool) -> None:
    """T4"""
    opened = told(State(), OpenSession("s", 1.0), Submit("tidy up", 2.0, TurnOptions()), asked(1))
    assert opened.approvals and not opened.always
    state = told(opened, Approve(call_id(1, 1, 0), 4.0, "me", always))
    assert state.always == (("rm",) if always else ())
    assert not state.approvals


# --- notifications and permits ---


@pytest.mark.parametrize(
    ("end", "left"),
    [
        (Interrupt(5.0), NotificationState.QUEUED),
        (DeliverReply(1, 1, Message("assistant", (Text("Noted."),)), "end_turn", 5.0), None),
        (DeliverReply(1, 1, Message("assistant", ()), "end_turn", 5.0), NotificationState.QUEUED),
        (EndTurn(1, "budget", 5.0), NotificationState.QUEUED),
    ],
    ids=["interrupt", "told", "silent stop", "budget"],
)
def test_a_notification_is_settled_by_how_its_turn_ended(end: Any, left: NotificationState | None) -> None:
    """I30: acknowledged when the turn that carried it is done, told again when that was cut short."""
    name = NotificationId("n1")
    state = told(
        State(),
        OpenSession("s", 1.0),
        QueueNotification(name, "generic", "The build", "It is done.", 2.0),
        DeliverDue(3.0, TurnOptions()),
    )
    assert state.carrying == (name,)
    assert state.notifications.pending[name].state is NotificationState.DELIVERED
    state = told(state, end)
    assert state.turn is None and not state.carrying
    if left is None:
        assert name not in state.notifications.pending
    else:
        assert state.notifications.pending[name].state is left


async def test_runs_that_ended_give_their_permits_back(autojump_clock, open_checked, journal) -> None:
    """I19, B6: one run at a time is allowed, and many come one after the other."""

    @tool(background=True, idempotent=True)
    async def dig(n: int) -> int:
        """Takes a while."""
        await trio.sleep(5.0)
        return n

    async def settled(runtime: Runtime) -> None:
        while session._state.tasks.live or session._state.notifications.pending or session._state.turn:
            await trio.sleep(1.0)

    def script(request: Any) -> Any:
        last = request.messages[-1]
        return reply(call("dig", n=len(request.messages))) if last.text == "dig" else reply("Good.")

    limits = Limits(runs_per_session=1, runs_per_runtime=1)
    model = Scripted([script], exhausted="repeat")
    async with open_checked(model, tools=[dig], limits=limits, budget=Budget(inline_s=0.1)) as runtime:
        session = await runtime.session("s")
        for _ in range(3):
            await session.ask("dig")
            assert runtime.permits.total == 1
            await settled(runtime)
            assert runtime.permits.total == 0
    spilled = [e.task for record in journal for e in record.events if isinstance(e, CallEnded)]
    assert len(spilled) == 3 and all(spilled), "a call had to wait although there was room for its run"
    ends = [e.stop_reason for record in journal for e in record.events if isinstance(e, TurnEnded)]
    assert set(ends) == {"end_turn"}
