"""After the process died (J12, I3, I4, I17): a restart finds what was recorded, closes what was open, and the session serves again."""

from __future__ import annotations

import shutil
from contextlib import asynccontextmanager, closing

import attrs
import pytest
import trio
from session_watch import names, recorded, seen, wait_idle

from trouper import CommandRejected, Compaction, Limits, Rule, ToolContext, codec, open_runtime, tool
from trouper.codec import Record
from trouper.core.events import (
    ApprovalGiven,
    ApprovalRequested,
    CallEnded,
    CallStarted,
    ModelProgressed,
    RecoveryNoted,
    TurnEnded,
)
from trouper.core.history import problems
from trouper.core.ids import TaskId
from trouper.core.live import TextDelta
from trouper.core.messages import Outcome
from trouper.core.recovery import UNKNOWN
from trouper.core.task_events import BeatTask, TaskBeat
from trouper.journal import Entry, open_log, repair
from trouper.models import Scripted, call, reply, stall
from trouper.roster import SessionDamaged
from trouper.testing import CrashDisk, Fate
from trouper.tools.hooks import AfterTool, Hooks

RESUME = Limits(on_restart="resume")
runs: list[str] = []


@pytest.fixture(autouse=True)
def _clear() -> None:
    runs.clear()


@tool(readonly=True)
async def look(n: int = 0) -> int:
    """Looks for ten seconds."""
    runs.append(f"look {n}")
    await trio.sleep(10)
    return n


@tool(idempotent=True)
async def save(context: ToolContext, n: int = 0) -> str:
    """May be repeated: the key is the same every time."""
    runs.append(context.idempotency_key)
    await trio.sleep(10)
    return f"saved {n} at attempt {context.attempt}"


@tool(concurrency_class="money")
async def pay(n: int = 0) -> str:
    """May run once only."""
    runs.append(f"pay {n}")
    await trio.sleep(10)
    return "paid"


@asynccontextmanager
async def process(open_checked, disk, model, **settings):
    """A runtime on a simulated disk that syncs; its end is orderly unless the disk is taken away before."""
    async with open_checked(model, disk=disk, durability="fsync", **settings) as runtime:
        yield runtime


async def killed_at(open_checked, seconds, model, *, fate: str = "kill", text="go", **settings):
    """Start a turn, and take the disk as it is so many seconds later: what a killed process, or a power cut, leaves."""
    disk = CrashDisk()
    async with process(open_checked, disk, model, **settings) as runtime:
        session = await runtime.session("s")
        async with session.turn(text):
            await trio.sleep(seconds)
            return disk.fork() if fate == "kill" else disk.fork().crash(Fate.DROPPED)


@pytest.mark.parametrize("fate", ["kill", "power cut"])
async def test_a_turn_that_was_cut_off_is_ended_visibly(autojump_clock, open_checked, journal, fate):
    """J12: the default. Calls that ran have an unknown outcome; those that had not begun did nothing."""
    model = Scripted([reply("On it. ", call("look"), call("pay", n=1), call("pay", n=2))])
    disk = await killed_at(open_checked, 5, model, fate=fate, tools=[look, pay])
    assert sorted(runs) == ["look 0", "pay 1"]
    model = Scripted([reply("I see.")])
    async with process(open_checked, disk, model, tools=[look, pay]) as runtime:
        session = await runtime.session("s")
        assert (session.last.stop_reason, session.last.fault.kind) == ("error", "process_ended")
        assert (await session.ask("what happened?")).text == "I see."
    assert sorted(runs) == ["look 0", "pay 1"]  # Nothing ran again.
    (noted,) = recorded(journal, RecoveryNoted)
    assert noted.open_turn == 1 and len(noted.open_calls) == 3
    assert [ended.outcome for ended in recorded(journal, CallEnded)] == [
        Outcome.UNKNOWN,
        Outcome.UNKNOWN,
        Outcome.CANCELLED,
    ]
    answers = model.requests[0].messages[2].answers
    assert answers[1].content == UNKNOWN and "did nothing" in answers[2].content


async def test_a_session_that_is_being_recovered_is_listed_as_the_journal_knows_it(autojump_clock, open_checked):
    """J12, api.md: `Runtime.sessions()`, from the first moment on."""
    disk = await killed_at(open_checked, 5, Scripted([reply(stall(100))]))
    async with process(open_checked, disk, Scripted([])) as runtime:
        (listed,) = runtime.sessions()
        assert (listed.id, listed.phase, listed.turns, listed.open) == ("s", "thinking", 1, True)
        await runtime.session("s")
        (listed,) = runtime.sessions()
        assert (listed.phase, listed.turns) == ("idle", 1)


async def test_what_a_user_has_seen_of_a_reply_is_kept(autojump_clock, open_checked, journal):
    """J12, L13: as far as the journal knows it."""
    disk = await killed_at(
        open_checked, 5, Scripted([reply(*["one ", "two ", "three ", "four ", "five ", "six ", "seven "])], delay_s=1.0)
    )
    model = Scripted([reply("Go on.")])
    async with process(open_checked, disk, model) as runtime:
        session = await runtime.session("s")
        assert session.last.text.startswith("one two three")
        assert session.history[-1].kind == "cut_short"
        await session.ask("and?")
    assert model.requests[0].messages[1].text == session.history[1].text


@pytest.mark.parametrize("fate", ["kill", "power cut"])
async def test_on_resume_what_is_safe_runs_again_and_the_turn_goes_on(autojump_clock, open_checked, journal, fate):
    """J12, I4: reads and idempotent calls run again, with their key; what may run once is of unknown outcome."""
    model = Scripted([reply("On it. ", call("look", n=7), call("save", n=8), call("pay"))])
    disk = await killed_at(open_checked, 5, model, fate=fate, tools=[look, save, pay], limits=RESUME)
    model = Scripted([reply("All settled."), reply("Yes.")])
    async with process(open_checked, disk, model, tools=[look, save, pay], limits=RESUME) as runtime:
        session = await runtime.session("s")
        await wait_idle(session)
        assert (session.last.text, session.last.stop_reason) == ("All settled.", "end_turn")
        assert (await session.ask("really?")).text == "Yes."
    assert sorted(runs) == ["look 7", "look 7", "pay 0", "s/call_1_1_1", "s/call_1_1_1"]
    looked, saved, paid = model.requests[0].messages[2].answers
    assert (looked.content, saved.content) == (7, "saved 8 at attempt 2")
    assert paid.outcome is Outcome.UNKNOWN
    assert [started.attempt for started in recorded(journal, CallStarted)] == [1, 1, 1, 2, 2]
    assert [spec.name for spec in model.requests[0].tools] == ["look", "save", "pay"]


async def test_on_resume_a_client_side_call_waits_until_the_time_that_was_set(autojump_clock, open_checked):
    """J12, T4: the time runs on while no process is there."""

    @tool(policy="client_side")
    async def show_map() -> None:
        """The host shows a map."""

    limits = Limits(on_restart="resume", answer_s=60.0)
    disk = await killed_at(open_checked, 5, Scripted([reply(call("show_map"))]), tools=[show_map], limits=limits)
    await trio.sleep(35)
    model = Scripted([reply("Nobody was there.")])
    async with process(open_checked, disk, model, tools=[show_map], limits=limits) as runtime:
        taken_up = trio.current_time()
        session = await runtime.session("s")
        await wait_idle(session)
        assert trio.current_time() - taken_up == pytest.approx(20, abs=0.5)
        assert session.last.text == "Nobody was there."
    assert model.requests[0].messages[-1].answers[0].outcome is Outcome.TIMEOUT


async def test_on_resume_what_the_policy_now_denies_does_not_run(autojump_clock, open_checked, journal):
    """J12, T4: also of the calls that had not begun; and the turn goes on."""
    model = Scripted([reply(call("save", n=1), call("pay", n=1), call("pay", n=2))])
    disk = await killed_at(open_checked, 5, model, tools=[save, pay])
    runs.clear()
    rules = [Rule("save", "deny"), Rule("pay", "deny", when=lambda arguments: arguments["n"] == 2), Rule("*", "allow")]
    async with process(
        open_checked, disk, Scripted([reply("I see.")]), tools=[save, pay], limits=RESUME, policies=rules
    ) as runtime:
        session = await runtime.session("s")
        await wait_idle(session)
        assert runs == []
        outcomes = [part.outcome for message in session.history if message.role == "tool" for part in message.parts]
        assert outcomes == [Outcome.DENIED, Outcome.UNKNOWN, Outcome.DENIED]
        assert session.last.text == "I see."


async def test_on_resume_a_model_that_had_said_nothing_is_asked_again(autojump_clock, open_checked, journal):
    """J12, L13"""
    disk = await killed_at(open_checked, 5, Scripted([reply(stall(60), "x")]), tools=[look], limits=RESUME)
    model = Scripted([reply("Here.")])
    async with process(open_checked, disk, model, tools=[look], limits=RESUME) as runtime:
        session = await runtime.session("s")
        await wait_idle(session)
        assert session.last.text == "Here."
    assert model.requests[0].messages[-1].text == "go"
    assert [spec.name for spec in model.requests[0].tools] == ["look"]


async def test_on_resume_output_that_was_seen_is_never_made_twice(autojump_clock, open_checked):
    """L13"""
    disk = await killed_at(open_checked, 5, Scripted([reply(*"abcdefghij")], delay_s=1.0), limits=RESUME)
    model = Scripted([])
    async with process(open_checked, disk, model, limits=RESUME) as runtime:
        session = await runtime.session("s")
        await wait_idle(session)
        assert session.last.fault.kind == "process_ended" and not model.requests


async def test_on_resume_an_approval_is_still_asked_for(autojump_clock, open_checked, journal):
    """J12, T4"""

    @tool(policy="requires_approval")
    async def deploy() -> str:
        """Deploys."""
        runs.append("deployed")
        return "done"

    disk = await killed_at(open_checked, 5, Scripted([reply(call("deploy"))]), tools=[deploy], limits=RESUME)
    async with process(open_checked, disk, Scripted([reply("Done.")]), tools=[deploy], limits=RESUME) as runtime:
        session = await runtime.session("s")
        (call_id,) = session.approvals
        await session.approve(call_id)
        await wait_idle(session)
        assert session.last.text == "Done." and runs == ["deployed"]
    assert len(recorded(journal, ApprovalRequested)) == 1


async def test_on_resume_a_call_whose_approval_has_lapsed_cannot_be_approved_any_more(
    autojump_clock, open_checked, journal
):
    """J12, T4: also by whoever comes before the timer of the new process."""

    @tool(policy="requires_approval")
    async def deploy() -> str:
        """Deploys."""
        runs.append("deployed")
        return "done"

    limits = Limits(on_restart="resume", approval_s=60.0)
    disk = await killed_at(open_checked, 5, Scripted([reply(call("deploy"))]), tools=[deploy], limits=limits)
    await trio.sleep(60)
    model = Scripted([reply("A pity.")])
    async with process(open_checked, disk, model, tools=[deploy], limits=limits) as runtime:
        session = await runtime.session("s")
        with pytest.raises(CommandRejected, match="lapsed"):
            await session.approve("call_1_1_0", always=True)
        await wait_idle(session)
        assert session.last.text == "A pity." and session.state.always == ()
    (answer,) = model.requests[0].messages[-1].answers
    assert answer.outcome is Outcome.DENIED and answer.content == "Permission was denied. Nobody answered in time."
    assert not runs and not recorded(journal, ApprovalGiven)


@pytest.mark.parametrize("on_restart", ["resume", "end"])
async def test_hooks_hear_of_the_calls_that_another_process_left_open(autojump_clock, open_checked, on_restart):
    """T5, J12: what became of a call is told, whichever process asked for it."""
    limits = Limits(on_restart=on_restart)
    model = Scripted([reply(call("save", n=1), call("pay", n=1), call("pay", n=2))])
    disk = await killed_at(open_checked, 5, model, tools=[save, pay], limits=limits)
    told: list[AfterTool] = []
    hooks = [Hooks(after_tool=told.append)]
    model = Scripted([reply("I see.")])
    async with process(open_checked, disk, model, tools=[save, pay], limits=limits, hooks=hooks) as runtime:
        await wait_idle(await runtime.session("s"))
    saved, second = ("ok", "ok") if on_restart == "resume" else ("unknown", "cancelled")
    outcomes = {(about.tool, about.arguments["n"], about.call_id): about.outcome for about in told}
    assert len(told) == 3 and outcomes == {
        ("save", 1, "call_1_1_0"): saved,
        ("pay", 1, "call_1_1_1"): "unknown",
        ("pay", 2, "call_1_1_2"): second,
    }


async def test_a_tool_that_is_gone_after_the_restart_is_told_to_the_model(autojump_clock, open_checked):
    """J12, L20"""
    disk = await killed_at(open_checked, 5, Scripted([reply(call("look"))]), tools=[look], limits=RESUME)
    model = Scripted([reply("A pity.")])
    async with process(open_checked, disk, model, tools=[save], limits=RESUME) as runtime:
        session = await runtime.session("s")
        await wait_idle(session)
        assert session.last.text == "A pity."
    assert model.requests[0].messages[-1].answers[0].outcome is Outcome.ERROR


async def test_recovering_twice_changes_nothing_more(autojump_clock, open_checked, journal):
    """I17"""
    disk = await killed_at(open_checked, 5, Scripted([reply(call("look"))]), tools=[look])
    async with process(open_checked, disk, Scripted([]), tools=[look]) as runtime:
        session = await runtime.session("s")
        once = session._state
        again = disk.fork()
    count = len(journal)
    async with process(open_checked, again, Scripted([]), tools=[look]) as runtime:
        assert (await runtime.session("s"))._state == once
    assert len(journal) == count and names(journal).count("RecoveryNoted") == 1


async def test_input_that_was_accepted_is_not_lost(autojump_clock, open_checked, journal):
    """I26: steering input that the dead process had not taken in comes with the next turn."""
    disk = CrashDisk()
    async with process(open_checked, disk, Scripted([reply(stall(50), "x")]), complete=False) as runtime:
        session = await runtime.session("s")
        async with session.turn("one"):
            await session.send("two")
            disk_then = disk.fork().crash(Fate.DROPPED)
    model = Scripted([reply("Both.")])
    async with process(open_checked, disk_then, model) as runtime:
        session = await runtime.session("s")
        assert session.statistics().queued_inputs == 1
        await session.ask("three")
    assert [m.text for m in model.requests[0].messages if m.role == "user"] == ["one", "two", "three"]


@pytest.mark.parametrize("limits", ["end", "resume"])
async def test_a_compaction_that_was_cut_off(autojump_clock, open_checked, journal, limits):
    """J12, L31"""
    settings = Limits(compaction=Compaction(threshold=140, keep_pairs=1, min_messages=4), on_restart=limits)
    model = Scripted([*[reply("word " * 40)] * 3, reply(stall(60), "A summary.")])
    disk = CrashDisk()
    async with process(open_checked, disk, model, limits=settings) as runtime:
        session = await runtime.session("s")
        for _ in range(3):
            await session.ask("more")
        async with session.turn("more"):
            await trio.sleep(1)
            assert session._state.compacting is not None
            disk = disk.fork()
    script = [reply("A summary."), reply("Here.")]
    async with process(open_checked, disk, Scripted(script), limits=settings) as runtime:
        session = await runtime.session("s")
        await wait_idle(session)
        if limits == "resume":
            assert session.last.text == "Here."
        else:
            assert session.last.fault.kind == "process_ended"
            assert (await session.ask("again")).text == "Here."
        assert not problems(session.history)


@pytest.mark.parametrize("seconds", [0.0, 0.5, 1.5, 2.5, 3.5, 5.0, 12.0, 13.5, 16.0])
@pytest.mark.parametrize("on_restart", ["end", "resume"])
async def test_whenever_the_power_goes_the_session_serves_again(
    autojump_clock, open_checked, journal, seconds, on_restart
):
    """I3, I17, I26: at every stage of a turn."""
    limits = Limits(on_restart=on_restart)
    script = [
        reply(stall(1), "Let me. ", stall(1), call("look", n=1), call("save", n=2), call("pay", n=3)),
        reply("Nearly. ", stall(2), "Done."),
    ]
    disk = CrashDisk()
    async with process(open_checked, disk, Scripted(script), tools=[look, save, pay], limits=limits) as runtime:
        session = await runtime.session("s")
        async with session.turn("go"):
            await trio.sleep(seconds)
            after = disk.fork().crash(seed=int(seconds * 10))
    model = Scripted([lambda request: reply("Fine.")], exhausted="repeat")
    async with process(open_checked, after, model, tools=[look, save, pay], limits=limits) as runtime:
        session = await runtime.session("s")
        await wait_idle(session)
        assert (await session.ask("still there?")).text == "Fine."
    assert runs.count("pay 3") <= 1  # I4
    assert names(journal).count("TurnStarted") == names(journal).count("TurnEnded")


@pytest.mark.parametrize("level", ["write", "fsync"])
async def test_a_real_directory_survives_a_process_that_is_gone(open_checked, tmp_path, level):
    """J12 on a real disk, in real time."""
    noted = trio.Event()

    @tool
    async def wait() -> str:
        """Waits for ever."""
        noted.set()
        await trio.sleep_forever()
        raise AssertionError

    model = Scripted([reply("One."), reply("On it. ", call("wait"))])
    async with open_runtime(tmp_path / "state", model=model, tools=[wait], durability=level) as runtime:
        session = await runtime.session("s", system="Be brief.")
        await session.ask("first")
        async with session.turn("second"):
            await noted.wait()
            shutil.copytree(tmp_path / "state", tmp_path / "killed")
    model = Scripted([reply("Here.")])
    async with open_runtime(tmp_path / "killed", model=model, tools=[wait], durability=level) as runtime:
        session = await runtime.session("s")
        assert session.last.fault.kind == "process_ended"
        assert (await session.ask("third")).text == "Here."
    assert [m.text for m in model.requests[0].messages if m.role == "user"] == ["first", "second", "third"]
    assert model.requests[0].system == "Be brief."
    open_checked.check_path(tmp_path / "killed")
    open_checked.check_path(tmp_path / "state")


async def test_an_orderly_end_and_a_new_beginning(autojump_clock, open_checked, journal):
    """J13, I12: from the snapshot, the session is what it was."""
    disk = CrashDisk()
    async with process(open_checked, disk, Scripted([reply(call("look")), reply("One.")]), tools=[look]) as runtime:
        session = await runtime.session("s", system="Be brief.")
        await session.ask("1")
        before = session._state
    model = Scripted([reply("Two.")])
    async with process(open_checked, disk.process(), model, tools=[look]) as runtime:
        assert [info.id for info in runtime.sessions()] == ["s"]
        session = await runtime.session("s")
        assert session._state == before
        await session.ask("2")
    assert len(model.requests[0].messages) == 5 and model.requests[0].system == "Be brief."
    assert [ended.turn for ended in recorded(journal, TurnEnded)] == [1, 2]


async def test_a_crash_of_the_actor_itself_is_survived_too(autojump_clock, open_checked, journal, caplog):
    """I22, I23: a bug of ours ends the turn, visibly; the session begins again from its journal, and others do not notice."""

    model = Scripted([reply(stall(1), "x")], exhausted="repeat")
    async with open_checked(model) as runtime:
        session, other = await runtime.session("s"), await runtime.session("other")
        async with session.turn("go") as turn, other.turn("go") as undisturbed:
            await trio.sleep(0.5)
            session._actor._nursery.start_soon(_raise, RuntimeError("a bug"))
            result = await turn.wait_ended()
            assert (await undisturbed.wait_ended()).text == "x"
        assert (result.stop_reason, result.error.kind) == ("error", "process_ended")
        assert (await session.ask("again")).text == "x"
    # The log says what was raised and where, not just that a nursery ended.
    assert "crashed with RuntimeError and begins again" in caplog.text and "in _raise" in caplog.text
    assert "a bug" not in caplog.text  # Its text may hold a secret.


async def test_a_crash_while_a_session_closes_keeps_nobody_waiting(autojump_clock, open_checked, journal):
    """I16, I21: begun again, it finds itself closed, and ends."""

    @tool
    async def slow() -> str:
        """Takes a while to stop."""
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(2)

    async with open_checked(Scripted([reply(call("slow"))]), tools=[slow]) as runtime:
        session = await runtime.session("s")
        await session.send("go")
        await trio.sleep(1)
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.close)
                await trio.sleep(1)
                session._actor._nursery.start_soon(_raise, RuntimeError("a bug"))
    assert names(journal)[-1] == "SessionClosed"


async def _raise(error: Exception) -> None:
    raise error


async def test_text_deltas_after_a_restart_have_ids_of_their_own(autojump_clock, open_checked):
    """L4"""
    disk = CrashDisk()
    ids: list[str] = []
    for _ in range(2):
        async with process(open_checked, disk, Scripted([reply("Hi.")])) as runtime:
            session = await runtime.session("s")
            async with session.turn("hello") as turn:
                ids.append((await seen(turn, TextDelta)).message)
                await turn.wait_ended()
        disk = disk.process()
    assert len(set(ids)) == 2


async def test_a_snapshot_holds_nothing_that_a_power_cut_can_take_from_the_journal(autojump_clock, open_checked):
    """I13, I17: what a model has said so far is noted without waiting for the disk; a snapshot of it waits."""
    disk = CrashDisk()
    model = Scripted([reply("one word, ", stall(0.3), "and another, ", stall(60.0), "and the last one")])
    async with open_runtime("/state", model=model, disk=disk, environment=open_checked.environment()) as runtime:
        session = await runtime.session("s")
        async with session.turn("go") as turn:
            async for event in turn:
                if isinstance(event, ModelProgressed):
                    break
            await runtime._ground.snapshots.write()
            left = disk.fork()
    cut = left.crash(Fate.DROPPED)
    environment = attrs.evolve(open_checked.environment(), pid=2)
    async with open_runtime("/state", model=Scripted([reply("again")]), disk=cut, environment=environment) as runtime:
        assert (await (await runtime.session("s")).ask("go on")).text == "again"
    open_checked.check(cut)


async def test_at_no_level_is_a_snapshot_ahead_of_the_journal_after_a_power_cut(autojump_clock, open_checked):
    """I13, I17: at level `write` nothing is synced but for a snapshot; what a model has said since the last one was in the next one, and on no disk."""
    disk = CrashDisk()
    model = Scripted([reply("one word, ", stall(0.3), "and another, ", stall(60.0), "and the last one")])
    environment = open_checked.environment()
    async with open_runtime("/state", model=model, disk=disk, environment=environment, durability="write") as runtime:
        session = await runtime.session("s")
        async with session.turn("go") as turn:
            await runtime._ground.snapshots.write()
            async for event in turn:
                if isinstance(event, ModelProgressed):
                    break
            await runtime._ground.snapshots.write()
            left = disk.fork()
    cut = left.crash(Fate.DROPPED)
    environment = attrs.evolve(open_checked.environment(), pid=2)
    async with open_runtime("/state", model=Scripted([reply("again")]), disk=cut, environment=environment) as runtime:
        assert (await (await runtime.session("s")).ask("go on")).text == "again"
    open_checked.check(cut)


@pytest.mark.parametrize("closed", [False, True], ids=["from an earlier process", "closed in this one"])
async def test_a_snapshot_that_is_written_while_a_session_is_opened_holds_it(autojump_clock, open_checked, closed):
    """I12, I17, J13: its actor has not read it yet; after a crash it would have been a new one, under the old name."""
    disk = CrashDisk()
    async with process(open_checked, disk, Scripted([reply("One.")])) as runtime:
        await (await runtime.session("s")).ask("1")
    disk = disk.process()
    model = Scripted([reply("Hi.")], exhausted="repeat")
    async with process(open_checked, disk, model) as runtime:
        await (await runtime.session("other")).ask("hello")
        if closed:
            session = await runtime.session("s")
            await session.ask("2")
            await session.close()
        runtime._start("s", runtime._outfit, None)  # As `runtime.session("s")` begins.
        await runtime._ground.snapshots.put_down(runtime._ground.snapshots.pictured())
        left = disk.fork().kill()
    async with process(open_checked, left, model) as runtime:
        listed = {info.id: (info.phase, info.turns) for info in runtime.sessions()}
        assert listed["s"] == (("closed", 2) if closed else ("idle", 1))
        if not closed:
            assert (await (await runtime.session("s")).ask("2")).text == "Hi."


@pytest.mark.parametrize(
    ("written", "told"),
    [
        pytest.param(b"TaskBeat", r"TaskBeat: KeyError\('task_x'\)", id="it cannot have happened"),
        pytest.param(b"NoSuchThing", "NoSuchThing", id="nobody knows what happened"),
    ],
)
async def test_a_session_that_cannot_be_folded_keeps_no_other_from_its_work(tmp_path, written, told):
    """I23: neither at the start nor in a list, and it is named as what it is, now and after a snapshot."""
    model = Scripted([reply("Hi.")], exhausted="repeat")
    async with open_runtime(tmp_path, model=model) as runtime:
        for name in ("whole", "strange"):
            session = await runtime.session(name)
            await session.ask("hello")
        following = session.statistics().events
    with closing(open_log(tmp_path)) as log:
        beat = TaskBeat(TaskId("task_x"), 1.0)
        record = Record("strange", following, log.epoch, 1.0, BeatTask(TaskId("task_x"), 1, 1.0), (beat,))
        head, body = codec.encode(record)
        log.append(Entry("strange", record.id, head, body.replace(b"TaskBeat", written)))
        log.flush()
    for _ in range(2):
        async with open_runtime(tmp_path, model=model) as runtime:
            assert {info.id: info.phase for info in runtime.sessions()} == {"whole": "idle", "strange": "damaged"}
            assert (await (await runtime.session("whole")).ask("go on")).text == "Hi."
            with pytest.raises(
                SessionDamaged, match=rf"'strange' cannot be folded .* its event {following} on .*{told}"
            ):
                await runtime.session("strange")


async def test_a_session_that_has_lost_records_stays_known_as_damaged(tmp_path):
    """J10, I13: also when a snapshot was written since; its name is not given to a new one."""
    old, new, model = tmp_path / "old", tmp_path / "new", Scripted([reply("Hi.")], exhausted="repeat")
    async with open_runtime(old, model=model) as runtime:
        for text in ("first", "second", "third"):
            for name in ("whole", "torn"):
                await (await runtime.session(name)).ask(f"{text} to {name}")
    (segment,) = old.glob("segment-*.log")
    segment.write_bytes(segment.read_bytes().replace(b"second to torn", b"SECOND to torn"))
    repair(old, new)
    for _ in range(3):
        async with open_runtime(new, model=model) as runtime:
            listed = {info.id: info.phase for info in runtime.sessions()}
            assert listed == {"whole": "idle", "torn": "damaged"}
            assert runtime.tasks().tasks == () and (await (await runtime.session("whole")).ask("go on")).text == "Hi."
            with pytest.raises(SessionDamaged, match="has lost its events"):
                await runtime.session("torn")
