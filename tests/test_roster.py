"""Sessions that have ended: the journal holds their past, memory what one of an earlier process takes; and whoever asks finds them as they were."""

from __future__ import annotations

import errno
import gc
import weakref
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

import trouper.snapshots
from trouper import CommandRejected, Limits, Runtime, Session, UsageError, open_runtime, tool
from trouper.actors.exits import Normal, RestartLimit
from trouper.actors.session import SESSION_RESTART, SessionActor
from trouper.cli.requests import answered
from trouper.core.events import SessionClosed
from trouper.journal import OsDisk, open_log, retire
from trouper.models import Scripted, call, reply
from trouper.replay import open_journal
from trouper.roster import Roster, SessionDamaged, fold
from trouper.testing import CrashDisk, check_invariants


def talkative(*first: Any) -> Scripted:
    return Scripted([*first, reply("Yes.")], exhausted="repeat")


@asynccontextmanager
async def process(open_checked, disk, model=None, **settings):
    """A runtime on a simulated disk that syncs."""
    async with open_checked(model or talkative(), disk=disk, durability="fsync", **settings) as runtime:
        yield runtime


async def served(runtime: Runtime, name: str = "s", *texts: str) -> Session:
    """A session that was opened, used and closed."""
    session = await runtime.session(name)
    for text in texts or ("one", "two"):
        await session.ask(text)
    await session.close("done")
    return session


async def fail_for_good(session: Session) -> None:
    """Crashes, until it is not begun again (I22)."""
    for _ in range(SESSION_RESTART.limit + 1):
        await trio.testing.wait_all_tasks_blocked()
        session._actor._nursery.start_soon(_raise, RuntimeError("a bug"))
    assert isinstance(await session._ref.wait_exit(), RestartLimit)


async def _raise(error: Exception) -> None:
    raise error


def views(runtime: Runtime, session: str) -> list[Any]:
    """All that a runtime says of a session without opening it."""
    return [
        [info for info in runtime.sessions() if info.id == session],
        runtime.tasks(session=session),
        runtime.notifications(session=session),
        runtime.schedules.list(session=session),
        runtime.statistics().known_sessions,
        runtime.statistics().sessions,
    ]


async def told(session: Session) -> list[tuple[int, Any]]:
    return [(each.seq, each.event) async for each in session.events()]


# --- what is let go of


@pytest.mark.parametrize("how", ["closed", "failed"])
async def test_the_state_of_a_session_that_has_ended_is_let_go_of(autojump_clock, open_checked, how, states_in_memory):
    """A server that opens and closes many sessions must not grow with each: the journal holds the past."""
    async with open_checked(talkative()) as runtime:
        session = await runtime.session("s")
        await session.ask("one")
        if how == "closed":
            await session.close()
        else:
            await fail_for_good(session)
            await runtime._ground.snapshots.write()
            runtime._sessions._failed.clear()  # The last few failures are kept on purpose, with their tracebacks.
        history = session.history
        del session
        assert states_in_memory("s") == 0
        (info,) = runtime.sessions()
        assert (info.phase, info.turns, info.open) == ("closed" if how == "closed" else "idle", 1, False)
        assert (await runtime.session("s")).history == history


async def test_a_session_that_is_looked_at_again_is_let_go_of_again(autojump_clock, open_checked, states_in_memory):
    async with open_checked(talkative()) as runtime:
        await served(runtime)
        for _ in range(3):
            session = await runtime.session("s")
            await session._ref.wait_exit()
            del session
            assert states_in_memory("s") == 0


async def test_what_is_kept_is_bounded_by_a_snapshot(autojump_clock, open_checked, monkeypatch):
    """J13: between two snapshots the states of closed sessions are kept, encoded; past a bound another one is written, which has them."""
    monkeypatch.setattr(trouper.snapshots, "LEFT_BYTES_MAX", 10_000)
    async with open_checked(talkative()) as runtime:
        for number in range(100):
            await served(runtime, f"s{number}")
        await trio.testing.wait_all_tasks_blocked()
        kept = runtime._ground.roster.kept()
        assert sum(len(each.section) for each in kept.values()) < 10_000
        assert [info.phase for info in runtime.sessions()] == ["closed"] * 100
        assert [len((await runtime.session(f"s{number}")).history) for number in range(100)] == [4] * 100


async def test_a_snapshot_before_its_time_is_worth_what_it_copies(autojump_clock, open_checked, monkeypatch):
    """J13: it holds every session, also those that it only copies; so what makes it due grows with it."""
    monkeypatch.setattr(trouper.snapshots, "LEFT_BYTES_MAX", 1)
    written: list[int] = []
    put_down = trouper.snapshots.Snapshots.put_down

    async def count(snapshots: Any, picture: Any) -> bool:
        written.append(len(picture.sections))
        return await put_down(snapshots, picture)

    monkeypatch.setattr(trouper.snapshots.Snapshots, "put_down", count)
    async with open_checked(talkative()) as runtime:
        for number in range(200):
            await served(runtime, f"s{number}")
            await trio.testing.wait_all_tasks_blocked()
        assert sum(written) < 10 * 200, "each was written ten times"
        kept = sum(len(each.section) for each in runtime._ground.roster.kept().values())
        assert kept <= runtime._log.snapshot().size / 4


# --- what stays


async def test_a_handle_that_somebody_holds_goes_on_answering(autojump_clock, open_checked):
    """I16: also after a snapshot, and beside one that was opened anew."""
    async with open_checked(talkative()) as runtime:
        session = await served(runtime)
        state = session.state
        await runtime._ground.snapshots.write()
        other = await runtime.session("s")
        assert session is not other
        for each in (session, other):
            assert (each.id, each.state, repr(each)) == ("s", state, "<Session 's' closed>")
            assert [message.text for message in each.history] == ["one", "Yes.", "two", "Yes."]
            assert each.statistics().phase == "closed" and each.last.text == "Yes."
            assert each.tasks().tasks == () and each.pending_notifications() == () and each.questions == ()
            events = await told(each)
            assert [seq for seq, _ in events] == list(range(each.statistics().events))
            assert isinstance(events[-1][1], SessionClosed) and events[-1][1].reason == "done"
            for asked in (each.ask("three"), each.send("three"), each.notify("Ding", "dong")):
                with pytest.raises(CommandRejected, match="'s' is closed"):
                    await asked
            await each.close()


async def test_the_files_of_a_closed_session_stay(tmp_path):
    """Its services are its handle's, as long as somebody holds that."""
    async with open_runtime(tmp_path, model=talkative(), durability="write") as runtime:
        session = await runtime.session("s")
        await runtime.services("s").kv.set("page", 3)
        runtime.files_of("s").write("notes", b"kept")
        await session.close()
        with pytest.raises(UsageError, match="session 's' is not open"):
            runtime.services("s")
        assert await session._desk.kv.get("page") == 3
        assert session._desk.files.read("notes") == runtime.files_of("s").read("notes") == b"kept"
        assert await (await runtime.session("s"))._desk.kv.get("page") == 3
        files = weakref.ref(session._desk.files)
        del session
        gc.collect()
        assert files() is None
    assert not check_invariants(tmp_path)


async def test_a_closed_session_that_two_ask_for_at_once_is_opened_once(autojump_clock, open_checked):
    found: list[Session] = []

    async def ask_for(runtime: Runtime) -> None:
        found.append(await runtime.session("s"))

    async with open_checked(talkative()) as runtime:
        state = (await served(runtime)).state
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(ask_for, runtime)
        assert found[0] is found[1] and found[0].state == state


async def test_who_follows_a_session_hears_of_its_close_and_comes_to_an_end(autojump_clock, open_checked):
    """I33: no gap, no repeat; one who resumes afterwards reads the same."""
    heard: list[tuple[int, Any]] = []

    async def follow(session: Session) -> None:
        async for each in session.events():
            heard.append((each.seq, each.event))

    async with open_checked(talkative()) as runtime:
        async with trio.open_nursery() as nursery:
            session = await runtime.session("s")
            nursery.start_soon(follow, session)
            await session.ask("one")
            await session.close()
            del session
        again = await runtime.session("s")
        assert heard == await told(again) and [seq for seq, _ in heard] == list(range(len(heard)))
        assert heard[3:] == [(each.seq, each.event) async for each in again.events(after=2)]


@pytest.mark.parametrize("snapshot", [False, True], ids=["in memory", "in a snapshot"])
async def test_what_a_closed_session_has_besides_its_turns_is_still_listed(autojump_clock, open_checked, snapshot):
    """B13, I30: a notification that nobody has read, a task, a schedule; and it is refused what it was refused before."""

    @tool(background=True)
    async def dig(n: int = 0) -> int:
        """Takes its time."""
        await trio.sleep(5)
        return n

    async with open_checked(talkative(), tools=[dig]) as runtime:
        session = await runtime.session("s")
        with session.hold_notifications():
            task = await session.spawn("dig")
            await session.create_schedule(title="later", message="Now.", cron="0 9 * * *")
            await session.notify("Ding", "dong")
            await session.close()
        await served(runtime, "bare")
        before = [session.tasks(), session.pending_notifications(), session.schedules()]
        del session
        if snapshot:
            await runtime._ground.snapshots.write()
        assert runtime.task(task.id).state.value == "cancelled"
        assert runtime.tasks(session="s") == before[0] and runtime.tasks().tasks == before[0].tasks
        assert {each.notification for each in runtime.notifications()} >= set(before[1]) != set()
        assert tuple(each.schedule for each in runtime.schedules) == before[2] != ()
        assert await runtime.sweep_tasks() == 0
        again = await runtime.session("s")
        with pytest.raises(CommandRejected, match="closed"):
            await again.acknowledge(before[1][0].id)
        assert [again.tasks(), again.pending_notifications(), again.schedules()] == before


async def test_the_command_line_is_told_of_a_closed_session_what_it_was(autojump_clock, open_checked):
    """Through the control socket: known, and closed."""
    async with open_checked(talkative()) as runtime:
        await served(runtime)
        await runtime._ground.snapshots.write()
        refused = await answered(runtime, {"do": "send", "session": "s", "text": "three"})
        assert refused["ok"] is False and "closed" in refused["error"]
        unknown = await answered(runtime, {"do": "send", "session": "other", "text": "three"})
        assert unknown["ok"] is False and "there is no session 'other'" in unknown["error"]
        assert (await answered(runtime, {"do": "close", "session": "s"}))["ok"] is True


async def test_a_model_of_its_own_is_closed_with_the_runtime(autojump_clock, open_checked):
    """I21: also one that cannot be referred to weakly, whose session has been closed long before."""

    class Slotted:
        __slots__ = ("closed", "inner")
        name, context_window = "slotted:one", None

        def __init__(self) -> None:
            self.inner, self.closed = talkative(), 0

        def stream(self, request):
            return self.inner.stream(request)

        async def aclose(self) -> None:
            self.closed += 1

    model = Slotted()
    async with open_checked(talkative()) as runtime:
        session = await runtime.session("s", model=model)
        await session.ask("one")
        await session.close()
        assert model.closed == 0
    assert model.closed == 1


async def test_sessions_that_are_being_closed_when_their_runtime_ends_are_waited_for(autojump_clock, open_checked):
    """I20, I21: each ends when its tool has stopped, and by then the others are still to be waited for."""

    @tool
    async def slow(seconds: int) -> str:
        """Takes a while to stop."""
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(seconds)

    model = Scripted([reply(call("slow", seconds=number)) for number in (1, 2, 3)])
    async with trio.open_nursery() as nursery:
        async with open_checked(model, tools=[slow]) as runtime:
            handles = [await runtime.session(f"s{number}") for number in range(3)]
            for session in handles:
                await session.send("go")
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(session.close)
            await trio.testing.wait_all_tasks_blocked()
        assert [info.phase for info in runtime.sessions()] == ["closed"] * 3


# --- snapshots and restarts


@pytest.mark.parametrize("end", ["orderly", "killed", "power cut"])
@pytest.mark.parametrize("snapshots", [0, 1, 2])
async def test_a_closed_session_is_the_same_in_the_next_process(autojump_clock, open_checked, end, snapshots):
    """J13, I12, I17: from the records, from the snapshot that was the first to have it, and from one that only copied it."""
    disk = CrashDisk()
    async with process(open_checked, disk) as runtime:
        state = (await served(runtime, "early")).state
        other = await runtime.session("other")
        for _ in range(snapshots):
            await runtime._ground.snapshots.write()
            await other.ask("hello")
        late = (await served(runtime, "late", "only")).state
        left = disk.fork()
    disk = {"orderly": disk.process, "killed": left.kill, "power cut": left.crash}[end]()
    for _ in range(2):
        async with process(open_checked, disk) as runtime:
            assert {info.id: info.phase for info in runtime.sessions()} == {
                "early": "closed",
                "late": "closed",
                "other": "idle",
            }
            assert (await runtime.session("early")).state == state and (await runtime.session("late")).state == late
            assert (await (await runtime.session("other")).ask("and now?")).text == "Yes."
        disk = disk.process()


async def test_every_snapshot_holds_every_session_whether_it_has_ended_or_not(tmp_path):
    """I12, J13: snapshot and suffix are the full fold, for sessions that come and go between snapshots."""
    limits = Limits(snapshot_every=7)
    for _ in range(2):
        async with open_runtime(tmp_path, model=talkative(), durability="write", limits=limits) as runtime:
            for number in range(20):
                name = f"s{number}"
                if number % 3:
                    session = await runtime.session(name)
                    if session.state.phase.value != "closed":
                        await session.ask("hello")
                    if number % 3 == 1:
                        await session.close()
                else:
                    await runtime.session(name)
                await trio.testing.wait_all_tasks_blocked()
            listed = {info.id: (info.phase, info.turns) for info in runtime.sessions()}
        log = open_log(tmp_path, level="write")
        try:
            roster = Roster(log)
            assert {name: roster.glance(name) for name in roster.names()} == listed
            for name in listed:
                assert roster.load(name) == fold(record.payload for record in log.records(stream=name))
        finally:
            log.close()
    assert not check_invariants(tmp_path)


async def test_a_session_that_goes_on_while_a_snapshot_is_written_is_not_read_from_that(autojump_clock, open_checked):
    """I12: the snapshot has it as it was when it had failed; since then it was opened again, and has failed again."""
    async with open_checked(talkative()) as runtime:
        session = await runtime.session("s")
        await session.ask("one")
        await fail_for_good(session)
        snapshots, roster = runtime._ground.snapshots, runtime._ground.roster
        snapshots._let_go_of_failed()
        picture = snapshots.pictured()
        session = await runtime.session("s")
        await session.ask("two")
        await trio.sleep(SESSION_RESTART.within_s)
        await fail_for_good(session)
        snapshots._let_go_of_failed()
        assert await snapshots.put_down(picture)
        roster.go_on_from(runtime._log.snapshot(), picture.left, picture.held)
        assert roster.glance("s") == ("idle", 2)
        session = await runtime.session("s")
        assert (await session.ask("three")).error is None
        assert [message.text for message in session.history][::2] == ["one", "two", "three"]


async def test_a_session_that_failed_in_the_middle_of_a_decision_loses_nothing(
    autojump_clock, open_checked, monkeypatch
):
    """I12, I17: what was on its way to the disk is in the journal alone; a snapshot of what the session knew must not stand for it."""
    disk = CrashDisk()
    async with process(open_checked, disk) as runtime:
        session = await runtime.session("s")
        await session.ask("one")

        def crash(actor: SessionActor, taken: Any) -> Any:
            raise RuntimeError("a bug")

        with monkeypatch.context() as patched:
            patched.setattr(SessionActor, "_adopt", crash)
            for number in range(SESSION_RESTART.limit + 1):
                with pytest.raises(Exception, match=r"failed|ended"):
                    await session.send(f"more {number}")
            await session._ref.wait_exit()
        await runtime._ground.snapshots.write()
        left = disk.fork().kill()
        here = (await runtime.session("s")).state
    async with process(open_checked, left) as runtime:
        there = (await runtime.session("s")).state
        assert (there.turns, len(there.history.messages)) == (here.turns, len(here.history.messages))
        assert (await (await runtime.session("s")).ask("still there?")).text == "Yes."


async def test_a_session_is_read_from_its_records_where_the_snapshot_is_spoilt(tmp_path, caplog):
    """J13: a snapshot is never trusted."""
    async with open_runtime(tmp_path, model=talkative(), durability="write") as runtime:
        closed = (await served(runtime)).state
        await runtime._ground.snapshots.write()
        (path,) = tmp_path.glob("snapshots/*.snap")
        path.write_bytes(path.read_bytes().replace(b"Yes.", b"No!!"))
        assert (await runtime.session("s")).state == closed
        assert "its snapshot is of no use" in caplog.text
        await runtime._ground.snapshots.write()
        assert (await runtime.session("s")).state == closed
    assert not check_invariants(tmp_path)


async def test_a_session_whose_records_were_dropped_is_damaged_with_its_snapshot_and_no_new_one(tmp_path):
    """I16, J10, J15: its name was given to a new session, and nobody was told that anything was lost."""
    async with open_runtime(tmp_path, model=talkative(), durability="write") as runtime:
        await served(runtime, "gone", *["x" * 900_000] * 10)  # More than a segment holds.
    async with open_runtime(tmp_path, model=talkative(), durability="write") as runtime:
        await served(runtime, "kept")
        await runtime._ground.snapshots.write()
        seq = runtime._log.last
    assert retire(tmp_path, {"gone"}, fate="drop", before=seq)
    for path in tmp_path.glob("snapshots/*.snap"):
        path.write_bytes(path.read_bytes().replace(b"Yes.", b"No!!", 1))
    for _ in range(2):  # The second time, a newer snapshot says so.
        async with open_runtime(tmp_path, model=talkative(), durability="write") as runtime:
            with pytest.raises(SessionDamaged, match="its records were dropped"):
                await runtime.session("gone")
            assert (await runtime.session("kept")).state.turns == 2
            await runtime.memory.remember("a", "b", "c")
            await runtime._ground.snapshots.write()


async def test_a_snapshot_is_written_though_the_one_before_has_gone_from_the_disk(tmp_path):
    """J13: it can always be built again."""
    async with open_runtime(tmp_path, model=talkative(), durability="write") as runtime:
        snapshots = runtime._ground.snapshots
        closed = (await served(runtime)).state
        await snapshots.write()
        assert await snapshots.put_down(snapshots.pictured())
        for path in tmp_path.glob("snapshots/*.snap"):
            path.unlink()
        await snapshots.write()
        assert (await runtime.session("s")).state == closed
        assert [path.stem for path in tmp_path.glob("snapshots/*.snap")] == [f"snapshot-{runtime._log.last:020d}"]
    assert not check_invariants(tmp_path)


async def test_a_spoilt_section_that_nobody_reads_keeps_no_later_snapshot_from_being_written(tmp_path):
    """J13: it is copied from snapshot to snapshot; where that fails, the next one has it from the records."""
    async with open_runtime(tmp_path, model=talkative(), durability="write") as runtime:
        snapshots, roster = runtime._ground.snapshots, runtime._ground.roster
        states = {name: (await served(runtime, name)).state for name in ("a", "b")}
        await snapshots.write()
        (path,) = tmp_path.glob("snapshots/*.snap")
        path.write_bytes(path.read_bytes().replace(b"Yes.", b"No!!"))
        for name in ("c", "d"):
            states[name] = (await served(runtime, name)).state
            await snapshots.write()
        assert not roster.kept() and {name: roster.load(name)[0] for name in states} == states
        newest = runtime._log.snapshot()
        assert newest.sections.keys() == states.keys() and not newest.spoilt()
    assert not check_invariants(tmp_path)


async def test_a_section_that_is_spoilt_together_with_its_records_is_kept_as_damaged(tmp_path):
    """J13, I23: all other sessions are in the next snapshot as they were."""
    async with open_runtime(tmp_path, model=talkative(), durability="fsync") as runtime:
        snapshots, roster = runtime._ground.snapshots, runtime._ground.roster
        await served(runtime, "lost")
        known = (await served(runtime, "kept")).state
        await snapshots.write()
        for path in (*tmp_path.glob("snapshots/*.snap"), *tmp_path.glob("segment-*")):
            path.write_bytes(path.read_bytes().replace(b"Yes.", b"No!!", 2))
        roster.distrust(["lost"])
        await snapshots.write()
        sections = runtime._log.snapshot().sections
        assert sections["lost"] == "damaged" and sections["kept"] == "idle"
        assert roster.load("kept")[0] == known


@pytest.mark.parametrize("residents", [1, 2], ids=["it is put to rest", "it stays"])
@pytest.mark.parametrize("texts", [(), ("two",)], ids=["it is looked at", "it goes on"])
async def test_a_session_that_is_no_longer_damaged_is_kept_as_it_is(tmp_path, texts, residents):
    """J13, J15: whoever has put its records right, or has a Trouper that can fold them, has it in every snapshot from then on, whatever becomes of the records."""
    async with open_runtime(tmp_path, model=talkative(), durability="fsync") as runtime:
        for name in ("s", "other"):
            await (await runtime.session(name)).ask("one")
    async with open_runtime(tmp_path, model=talkative(), durability="fsync") as runtime:
        records = {path: path.read_bytes() for path in tmp_path.glob("segment-*")}
        for path in (*tmp_path.glob("snapshots/*.snap"), *records):
            path.write_bytes(path.read_bytes().replace(b"Yes.", b"No!!", 1))
        runtime._ground.roster.distrust(["s"])
        await runtime._ground.snapshots.write()
        assert dict(runtime._log.snapshot().sections) == {"s": "damaged", "other": "idle"}
    for path, whole in records.items():
        path.write_bytes(whole + path.read_bytes()[len(whole) :])
    few = Limits(resident_sessions=residents)
    async with open_runtime(tmp_path, model=talkative(), durability="fsync", limits=few) as runtime:
        session = await runtime.session("s")
        for text in texts:
            await session.ask(text)
        known = session.state
        del session
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(2):
            await (await runtime.session("other")).ask("more")
            await runtime._ground.snapshots.write()
            assert dict(runtime._log.snapshot().sections) == {"s": "idle", "other": "idle"}
    async with open_runtime(tmp_path, model=talkative(), durability="fsync") as runtime:
        assert (await runtime.session("s")).state == known
    assert not check_invariants(tmp_path)


async def test_a_session_whose_section_is_spoilt_is_kept_when_it_is_put_to_rest(tmp_path):
    """J13: it was let go of as if the snapshot had it, and was lost where its records were spoilt too."""
    async with open_runtime(tmp_path, model=talkative(), durability="fsync") as runtime:
        await (await runtime.session("s")).ask("one")
    async with open_runtime(
        tmp_path, model=talkative(), durability="fsync", limits=Limits(resident_sessions=1)
    ) as runtime:
        snapshots, roster = runtime._ground.snapshots, runtime._ground.roster
        known = (await runtime.session("s")).state
        for path in (*tmp_path.glob("snapshots/*.snap"), *tmp_path.glob("segment-*")):
            path.write_bytes(path.read_bytes().replace(b"Yes.", b"No!!", 1))
        await snapshots.write()  # Which finds it spoilt, and is not written.
        await trio.testing.wait_all_tasks_blocked()
        await runtime.session("other")
        await snapshots.write()
        assert "s" not in runtime._ground.sessions and roster.load("s")[0] == known
        assert dict(runtime._log.snapshot().sections) == {"s": "idle", "other": "idle"}


async def test_a_snapshot_for_which_there_is_no_descriptor_is_written_by_and_by(tmp_path, caplog):
    """J13: the one who writes them outlives that, and what sessions have left is let go of when there is one again."""

    class Crowded(OsDisk):
        is_crowded = False

        def list_dir(self, path: str) -> list[str]:
            if self.is_crowded:
                raise OSError(errno.EMFILE, "Too many open files", path)
            return super().list_dir(path)

    disk = Crowded()
    async with open_runtime(tmp_path, model=talkative(), durability="write", disk=disk) as runtime:
        snapshots, roster = runtime._ground.snapshots, runtime._ground.roster
        states = {"a": (await served(runtime, "a")).state}
        await snapshots.write()
        for name in ("b", "c"):
            states[name] = (await served(runtime, name)).state
            disk.is_crowded = True
            await snapshots.write()
        assert "Too many open files" in caplog.text and roster.kept().keys() == {"b", "c"}
        for path in tmp_path.glob("snapshots/*.snap"):
            path.write_bytes(path.read_bytes().replace(b"Yes.", b"No!!"))
        # The first finds that the section is spoilt; then its records have to be read, which cannot be done either.
        await snapshots.write()
        await snapshots.write()
        assert "too many files are open" in caplog.text and not roster.unreadable
        disk.is_crowded = False
        await snapshots.write()
        assert not roster.kept() and {name: roster.load(name)[0] for name in states} == states
    assert not check_invariants(tmp_path)


async def test_records_of_sessions_that_nobody_has_opened_are_let_go_of_when_a_snapshot_has_them(
    autojump_clock, open_checked
):
    """J13, I12: after a crash they are read at the start, and a snapshot is as good."""
    disk = CrashDisk()
    async with process(open_checked, disk) as runtime:
        closed = (await served(runtime)).state
        idle = await runtime.session("idle")
        await idle.ask("hello")
        left = disk.fork()
        known = idle.state
    disk = left.kill()
    async with process(open_checked, disk) as runtime:
        assert runtime._ground.roster._suffix
        await (await runtime.session("other")).ask("hello")
        await runtime._ground.snapshots.write()
        assert not runtime._ground.roster._suffix
        assert (await runtime.session("s")).state == closed and (await runtime.session("idle")).state == known
        left = disk.fork()
    async with process(open_checked, left.kill()) as runtime:
        assert (await runtime.session("s")).state == closed and (await runtime.session("idle")).state == known


async def test_a_journal_with_closed_sessions_is_replayed_and_forked(tmp_path):
    """I10, I18: of what was let go of in memory nothing is missing in the journal."""
    root = tmp_path / "root"
    async with open_runtime(root, model=talkative(reply(call("now")), reply("Noon.")), durability="write") as runtime:
        state = (await served(runtime)).state
        await runtime._ground.snapshots.write()
        await runtime.session("s")
    journal = open_journal(root)
    assert journal.verify().ok and journal.state_at(journal.last, "s") == state
    *_, before, _ = (step.record.seq for step in journal.steps("s"))
    journal.fork(before, tmp_path / "fork", "s")
    async with open_runtime(tmp_path / "fork", model=talkative(), durability="write") as runtime:
        session = await runtime.session("s")
        assert (await session.ask("three")).text == "Yes." and len(session.history) == len(state.history.messages) + 2
    assert not check_invariants(root) and not check_invariants(tmp_path / "fork")


async def test_to_open_a_closed_session_again_reads_no_record(autojump_clock, open_checked, monkeypatch):
    """What it costs follows the session, not the length of the journal."""
    async with open_checked(talkative()) as runtime:
        await served(runtime, "first")
        await runtime._ground.snapshots.write()
        await served(runtime, "second")
        monkeypatch.setattr(runtime._log, "records", None)
        for name in ("first", "second"):
            session = await runtime.session(name)
            assert len(session.history) == 4 and await session._ref.wait_exit() == Normal()


async def test_a_session_that_begins_again_after_a_crash_reads_on_from_the_newest_snapshot(
    autojump_clock, open_checked, monkeypatch
):
    """J13, I12: whether that has it or not, what came before it need not be read."""
    async with open_checked(talkative()) as runtime:
        old = await runtime.session("old")
        await old.ask("one")
        await runtime._ground.snapshots.write()
        base, records = runtime._log.last, runtime._log.records
        young = await runtime.session("young")
        read_after: list[int] = []

        def watched(after: int = 0, stream: str | None = None) -> Any:
            read_after.append(after)
            return records(after, stream)

        monkeypatch.setattr(runtime._log, "records", watched)
        for session in (old, young):
            await session.ask("two")
            session._actor._nursery.start_soon(_raise, RuntimeError("a bug"))
            await trio.testing.wait_all_tasks_blocked()
            assert (await session.ask("three")).text == "Yes."
        assert read_after == [base, base]
        assert (old.state.turns, young.state.turns) == (3, 2)
