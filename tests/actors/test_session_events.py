"""Watching a session (I33): recorded events from any number on, without gap or repeat; a slow reader never delays anybody."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from session_watch import names, recorded, watched

from trouper import Limits, Runtime, Session, ToolContext, UsageError, open_runtime, tool
from trouper.actors.environment import Environment
from trouper.codec import Record
from trouper.core.events import TurnEnded
from trouper.core.live import CaughtUp, TextDelta
from trouper.core.task_events import TaskOutputWritten, TaskProgressed
from trouper.journal import open_reader
from trouper.journal.memory_disk import MemoryDisk, MemoryFile
from trouper.models import Scripted, call, reply, stall
from trouper.testing import CrashDisk, Fate, check_invariants


@tool(readonly=True)
async def look(n: int = 0) -> dict[str, int]:
    """Look at something."""
    return {"n": n}


async def collect(session, after: int, count: int) -> list:
    found = []
    async for event in session.events(after=after):
        found.append(event)
        if len(found) == count:
            break
    return found


@pytest.mark.parametrize("start", [-1, 0, 3, 9])
async def test_events_from_any_number_on_have_no_gap_and_no_repeat(autojump_clock, open_checked, journal, start):
    """I33: old ones from the journal, new ones as they come, as one sequence."""
    model = Scripted([reply(call("look")), reply("One."), reply("Two.")])
    async with open_checked(model, tools=[look]) as runtime:
        session = await runtime.session("s")
        await session.ask("1")
        total = session.statistics().events
        results: list = []

        async def read() -> None:
            results.extend(await collect(session, start, total + 5 - (start + 1)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.sleep(1)
            await session.ask("2")
    assert [event.seq for event in results] == list(range(start + 1, total + 5))
    whole = [event for record in journal for event in record.events]
    assert [event.event for event in results] == whole[start + 1 : total + 5]


async def test_a_reader_that_is_too_slow_reads_on_from_the_journal(autojump_clock, open_checked, journal):
    """I33: cut off, and caught up; the session never waits for it."""
    model = Scripted(
        [lambda request: reply(call("look", n=request.step)) if request.step < 30 else reply("Done.")],
        exhausted="repeat",
    )
    limits = Limits(max_steps=0, subscriber_events=4)
    async with open_checked(model, tools=[look], limits=limits) as runtime:
        session = await runtime.session("s")
        got: list[int] = []

        async def read_slowly() -> None:
            async for event in session.events():
                got.append(event.seq)
                await trio.sleep(1)
                if isinstance(event.event, TurnEnded):
                    return

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_slowly)
            await trio.sleep(0.5)
            begun = trio.current_time()
            await session.ask("go")
            assert trio.current_time() - begun < 1  # Nobody waited.
    assert got == list(range(len(got))) and len(got) > 100


class ReadCounted(MemoryDisk):
    """Counts the bytes that are read."""

    read = 0

    def open_read(self, path):
        disk, file = self, super().open_read(path)

        class Counted(MemoryFile):
            __slots__ = ()

            def pread(self, size, offset):
                found = super().pread(size, offset)
                disk.read += len(found)
                return found

        return Counted(file._node)


async def test_a_reader_that_lags_does_not_have_the_whole_journal_read_again(autojump_clock, open_checked):
    """I33: what others would wait for is what it missed, however long the journal is."""
    disk = ReadCounted()
    model = Scripted([reply("word " * 700)], exhausted="repeat")
    async with open_checked(model, limits=Limits(subscriber_events=2), disk=disk) as runtime:
        session = await runtime.session("s")
        reader, read, seqs = session.events(), [], []
        for _ in range(400):
            await session.ask("go")
            before = disk.read
            while not seqs or seqs[-1] < session.statistics().events - 1:
                told = await anext(reader)
                seqs.append(told.seq)
            read.append(disk.read - before)
        written = sum(len(node.data) for node in disk._files.values())
    assert seqs == list(range(len(seqs)))
    assert max(read[-50:]) < written / 2


async def test_a_slow_reader_of_a_turn_is_told_and_still_gets_the_result(autojump_clock, open_checked):
    """I33"""
    model = Scripted([reply(*"abcdefghijklmnopqrstuvwxyz")])
    async with open_checked(model, limits=Limits(subscriber_events=5)) as runtime:
        session = await runtime.session("s")
        async with session.turn("spell") as turn:
            await trio.sleep(5)
            events = [event async for event in turn]
        assert any(isinstance(event, CaughtUp) for event in events)
        assert turn.result.text == "abcdefghijklmnopqrstuvwxyz"


async def test_events_end_with_the_session(autojump_clock, open_checked):
    """I33, I16"""
    async with open_checked(Scripted([reply("Hi.")])) as runtime:
        session = await runtime.session("s")
        await session.ask("hello")
        async with trio.open_nursery() as nursery:
            seen: list = []

            async def read() -> None:
                seen.extend([event async for event in session.events()])

            nursery.start_soon(read)
            await trio.sleep(1)
            await session.close("done")
        assert type(seen[-1].event).__name__ == "SessionClosed"
        # A reader that comes late is told the same, and does not wait for more.
        with trio.fail_after(5):
            assert [event.seq async for event in session.events()] == [event.seq for event in seen]


async def test_the_runtime_tells_the_records_of_all_sessions_in_order(autojump_clock, open_checked, journal):
    """I33, api.md: `Runtime.events(after=seq)`."""
    async with open_checked(Scripted([reply("Hi.")], exhausted="repeat")) as runtime:
        a, b = await runtime.session("a"), await runtime.session("b")
        got: list = []

        async def read(after: int) -> None:
            async for record in runtime.events(after=after):
                got.append((record.seq, record.session))
                if len(got) == 6:
                    return

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, 0)
            await trio.sleep(1)
            await a.ask("1")
            await b.ask("2")
    assert [seq for seq, _ in got] == sorted({seq for seq, _ in got})
    assert [session for _, session in got] == ["a", "b", "a", "a", "b", "b"]


async def test_who_follows_all_sessions_misses_no_record_while_several_are_at_work(autojump_clock, open_checked):
    """I33: each tells of its records when it hears that they are safe, which is not the order of the journal; the memory's are among them."""
    async with open_checked(Scripted([reply("Hi.")], exhausted="repeat")) as runtime:
        got: list[int] = []

        async def read() -> None:
            async for record in runtime.events():
                got.append(record.seq)

        async def talk(name: str) -> None:
            session = await runtime.session(name)
            for number in range(20):
                await session.ask("hello")
                await runtime.memory.remember("scope", name, number)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            async with trio.open_nursery() as talking:
                for number in range(6):
                    talking.start_soon(talk, f"s{number}")
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        assert got == list(range(1, runtime.statistics().journal.last + 1))


async def test_who_follows_all_sessions_hears_of_the_last_record_of_a_runtime_that_is_closed(autojump_clock):
    """I33: the turn is interrupted, and while that is being written the reader looks for more."""
    got: list[str] = []
    environment = Environment(sync_latency=lambda: 1.0)

    async def read(records: AsyncIterator[Record]) -> None:
        async for record in records:
            got.extend(type(event).__name__ for event in record.events)
            await trio.sleep(0.25)

    async with trio.open_nursery() as nursery:
        async with open_runtime(
            "/state", model=Scripted([reply(stall(100))]), disk=MemoryDisk(), environment=environment
        ) as runtime:
            nursery.start_soon(read, runtime.events())
            await (await runtime.session("s")).send("hello")
    assert got[0] == "SessionOpened" and got[-1] == "TurnEnded"


async def test_nobody_who_counts_events_is_told_of_one_that_a_crash_could_take_back(autojump_clock):
    """I33, J4: its number would be given to something else, which whoever resumes from it would never hear of. Progress is written when it suits, so it has to wait."""
    disk, lost, kinds = CrashDisk(), [], set()

    def check(record: int) -> None:
        kept = [raw.seq for raw in open_reader("/state", disk=disk.fork().crash(Fate.DROPPED)).records()]
        if record not in kept:
            lost.append(record)

    @tool(background=True)
    async def dig(context: ToolContext) -> None:
        """Says what it does."""
        context.status("digging")
        context.output("stdout", "clay")
        await trio.sleep(1)

    async def follow_session(session: Session) -> None:
        async for told in session.events():
            check(told.record)
            kinds.add(type(told.event))

    async def follow_runtime(runtime: Runtime) -> None:
        async for record in runtime.events():
            check(record.seq)

    async with trio.open_nursery() as nursery:
        async with open_runtime("/state", disk=disk, tools=[dig]) as runtime:
            session = await runtime.session("s")
            nursery.start_soon(follow_session, session)
            nursery.start_soon(follow_runtime, runtime)
            task = await session.spawn("dig")
            await session.wait_task(task.id)
    assert lost == [] and {TaskOutputWritten, TaskProgressed} <= kinds
    assert check_invariants(open_reader("/state", disk=disk)) == []


async def test_live_events_and_recorded_ones_come_in_one_order(autojump_clock, open_checked):
    """L4, I15: a step's text comes after its beginning and before the record of its end."""
    events, _ = [], None
    async with open_checked(Scripted([reply("a", stall(1), "b")])) as runtime:
        events, _ = await watched(await runtime.session("s"), "go")
    kinds = [type(event).__name__ for event in events]
    assert (
        kinds.index("StepStarted") < kinds.index("TextDelta") < kinds.index("ModelReplied") < kinds.index("TurnEnded")
    )
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["a", "b"]


async def test_readers_that_leave_are_forgotten(autojump_clock, open_checked, journal):
    """I21"""
    async with open_checked(Scripted([reply("Hi.")])) as runtime:
        session = await runtime.session("s")
        for _ in range(20):
            with trio.move_on_after(1):
                async for _ in session.events():
                    pass
        await trio.testing.wait_all_tasks_blocked()
        assert session.statistics().watchers == 0
        await session.ask("hello")
    assert len(recorded(journal, TurnEnded)) == 1 and names(journal)[-1] == "TurnEnded"


async def test_two_tasks_that_read_one_turn_are_told_so(autojump_clock, open_checked):
    """A feed has one reader: the second one is refused, and the first one goes on."""
    async with open_checked(Scripted([reply(stall(5), "x")])) as runtime:
        session = await runtime.session("s")
        async with session.turn("go") as turn, trio.open_nursery() as nursery:
            nursery.start_soon(turn.wait_ended)
            await trio.sleep(1)
            with pytest.raises(UsageError, match="two tasks"):
                await turn.wait_ended()
    assert turn.result is not None and turn.result.text == "x"


async def test_looking_for_rare_events_in_a_long_journal_keeps_nobody_waiting(autojump_clock, open_checked):
    """I33: the journal is read a block at a time, and others run in between."""
    turns_of_others = 0
    looking = False

    async def other() -> None:
        nonlocal turns_of_others
        while True:
            await trio.lowlevel.checkpoint()
            turns_of_others += looking

    model = Scripted([reply("Yes.")], exhausted="repeat")
    async with open_checked(model) as runtime:
        mine, busy = await runtime.session("mine"), await runtime.session("busy")
        await mine.ask("first")
        for _ in range(25):  # Ten blocks.
            await busy.ask("x" * 400_000)
        await mine.ask("last")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            looking = True
            seen = []
            async with mine.events() as events:
                async for event in events:
                    seen.append(event.seq)
                    if len(seen) == mine._actor.next_seq:
                        break
            looking = False
            nursery.cancel_scope.cancel()
    assert seen == list(range(len(seen)))
    assert turns_of_others >= 5
