"""Ctrl-C and SIGTERM end a runtime cleanly: what runs is interrupted and recorded, the journal is closed, the exit code says so."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path

import pytest
import trio
import trio.testing

from pressed_keys import CtrlC, press_at_every_line
from trouper import CommandRejected, open_runtime, tool
from trouper.actors.gate import Gate
from trouper.actors.session import SessionActor
from trouper.actors.triggers import Every, Fired
from trouper.core.events import CallEnded, TurnEnded
from trouper.core.messages import Outcome
from trouper.core.values import changed
from trouper.ground import TURNS_AT_ONCE
from trouper.host import RuntimeEnded
from trouper.journal import open_reader, verify
from trouper.models import Scripted, reply
from trouper.models.scripted import call
from trouper.session import Session, SessionEnded
from trouper.testing import CrashDisk
from trouper.testing.invariants import check_invariants, records_of

PROGRAM = """
import sys, trio
from trouper import Scripted, open_runtime, tool
from trouper.models.scripted import call, reply

@tool
async def wait() -> None:
    "Never ends by itself."
    try:
        print("waiting", flush=True)
        await trio.sleep_forever()
    finally:
        print("stopped", flush=True)

async def main():
    async with open_runtime(sys.argv[1], model=Scripted([reply(call("wait"))]), tools=[wait], durability="write") as runtime:
        session = await runtime.session("s")
        await session.ask("go")

trio.run(main)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_a_signal_ends_a_runtime_cleanly(tmp_path: Path, number: signal.Signals, code: int) -> None:
    root = tmp_path / "state"
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "waiting\n"
    program.send_signal(number)
    out, errors = program.communicate(timeout=60)
    assert out == "stopped\n"
    assert program.returncode in (code, 130), errors
    records = list(records_of(open_reader(root)))
    assert check_invariants(records, complete=True) == []
    events = [event for record in records for event in record.events]
    assert [event.outcome for event in events if isinstance(event, CallEnded)] == [Outcome.CANCELLED]
    assert [event.stop_reason for event in events if isinstance(event, TurnEnded)] == ["interrupt"]
    assert verify(root).ok


#: A turn with two tool steps on the real disk, with a Ctrl-C in the midst of one of its syncs.
PRESSED_IN_A_SYNC = """
import os, signal, sys, threading, trio
from trouper import Scripted, open_runtime, tool
from trouper.journal import OsDisk
from trouper.journal.disk import OsFile
from trouper.models.scripted import call, reply

syncs = 0

class PressingFile(OsFile):
    def sync(self):
        global syncs
        if threading.current_thread() is not threading.main_thread():
            syncs += 1
            if syncs == int(sys.argv[2]):
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        super().sync()

class PressingDisk(OsDisk):
    def create(self, path):
        return PressingFile(os.dup(super().create(path).fileno()))

@tool
async def note(n: int) -> int:
    "Takes no time."
    return n

async def main():
    model = Scripted([reply(call("note", n=1)), reply(call("note", n=2)), reply("done")])
    async with open_runtime(sys.argv[1], model=model, tools=[note], disk=PressingDisk()) as runtime:
        await (await runtime.session("s")).ask("go")
        print("answered", flush=True)

trio.run(main)
"""


@pytest.mark.parametrize("number", range(1, 8))
def test_a_ctrl_c_in_any_sync_of_a_turn_ends_the_program_and_loses_nothing(tmp_path: Path, number: int) -> None:
    """J2, I10, I13: who waits for the disk gets its answer first; then the turn is interrupted like any other."""
    root = tmp_path / "state"
    program = textwrap.dedent(PRESSED_IN_A_SYNC)
    done = subprocess.run(
        [sys.executable, "-c", program, str(root), str(number)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode in (-signal.SIGINT, 130), done
    assert verify(root).ok
    records = list(records_of(open_reader(root)))
    assert check_invariants(records, complete=True) == []


def test_a_ctrl_c_at_any_line_by_which_a_turn_begins_takes_no_place_from_later_turns() -> None:
    """I23: a host that outlives it, and goes on, has as many turns at once as before."""

    async def one_try(ctrl_c: CtrlC) -> None:
        async with open_runtime(durability="memory", model=Scripted([reply("hi")], exhausted="repeat")) as runtime:
            session = await runtime.session("s")
            for _ in range(TURNS_AT_ONCE):
                with ctrl_c.pressed():
                    await session.ask("hello")
                with suppress(KeyboardInterrupt):
                    await trio.lowlevel.checkpoint()
            with trio.fail_after(5):  # Virtual: nothing here takes time, so whoever waits does so for ever.
                assert (await session.ask("still there?")).text == "hi"

    begins = (Session._through_the_gate, Session._submitted, SessionActor.begin_turn)
    press_at_every_line(one_try, *begins, Gate.enter, Gate.leave)


async def test_a_ctrl_c_in_a_tool_is_told_as_one_although_others_fell_over_it(autojump_clock):
    @tool
    async def press() -> None:
        """Is where a Ctrl-C came down."""
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        async with open_runtime(durability="memory", model=Scripted([reply(call("press"))]), tools=[press]) as runtime:
            session = await runtime.session("s")
            try:
                await session.ask("go")
            finally:
                raise ValueError("the caller's own")
    assert isinstance(caught.value.__cause__, BaseExceptionGroup)
    assert caught.value.__cause__.subgroup(ValueError) is not None


@pytest.mark.parametrize("error", [ValueError("own"), ExceptionGroup("own", [ValueError(1)])], ids=repr)
async def test_what_the_block_raises_comes_out_as_it_is_with_what_led_to_it(autojump_clock, error):
    """Habit 6, a block is all that a runtime is to its caller: its nurseries take nothing from an error and put nothing around it."""
    with pytest.raises(type(error)) as caught:
        async with open_runtime(durability="memory"):
            raise error from KeyError("why")
    assert caught.value is error
    assert isinstance(error.__cause__, KeyError) and error.__context__ is None


async def test_closing_a_runtime_right_after_a_turn_waits_for_nothing(autojump_clock, open_checked):
    """What only looks after things now and then is not waited for: a script ends when its work does."""
    async with open_checked() as runtime:
        session = await runtime.session("s")
        await session.ask("hello")
        before = trio.current_time()
    assert trio.current_time() == before


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_turn_that_is_just_beginning_ends_with_its_runtime(autojump_clock, open_checked, journal, cancelled):
    """I26, J12: its question is on its way to the disk, and the session does not know of it yet; the next process finds nothing open."""
    model = Scripted([reply("Never said.")])
    environment = changed(open_checked.environment(), sync_latency=lambda: 0.01)
    disk = CrashDisk()

    async def ask(session: Session) -> None:
        with suppress(SessionEnded):
            await session.ask("hello")

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with open_checked(model, disk=disk, durability="fsync", environment=environment) as runtime:
                session = await runtime.session("s")
                nursery.start_soon(ask, session)
                await trio.testing.wait_all_tasks_blocked()
                assert session._actor.in_flight is not None
                if cancelled:
                    scope.cancel()
    open_checked.check(disk)
    ends = [event.stop_reason for record in journal for event in record.events if isinstance(event, TurnEnded)]
    assert ends == ["interrupt"]


async def test_whoever_waits_for_a_run_from_outside_a_runtime_that_ends_is_told(autojump_clock, open_checked):
    """I21: a task of the host's, in a nursery around the runtime; and one that takes notifications."""
    ended: list[object] = []

    @tool(background=True)
    async def dig() -> None:
        """Takes its time."""
        await trio.sleep_forever()

    async def wait(session: Session, id: str) -> None:
        with pytest.raises(CommandRejected, match="has stopped while task"):
            await session.wait_task(id)
        ended.append(id)

    async def take(session: Session) -> None:
        async for _ in session.notifications():
            pass
        ended.append("notifications")

    with trio.fail_after(1_000.0):
        async with trio.open_nursery() as nursery:
            async with open_checked(Scripted([]), tools=[dig], complete=False) as runtime:
                session = await runtime.session("s")
                task = await session.spawn("dig")
                nursery.start_soon(wait, session, task.id)
                nursery.start_soon(take, session)
                await trio.testing.wait_all_tasks_blocked()
    assert sorted(map(str, ended)) == ["notifications", task.id]


@pytest.mark.parametrize("what", ["what happens", "its records", "all records"])
async def test_whoever_watches_from_outside_a_runtime_that_is_cancelled_comes_to_an_end(
    autojump_clock, open_checked, what
):
    """I21, I33: nothing more will come, and nobody waits for it."""
    seen: list[object] = []

    async def read(events: AsyncIterator[object]) -> None:
        async for each in events:
            seen.append(each)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope, ExitStack() as watching:
                async with open_checked(Scripted([reply("Hi.")])) as runtime:
                    session = await runtime.session("s")
                    feeds = {"its records": session.events, "all records": runtime.events}
                    watch = session.watch() if what == "what happens" else nullcontext(feeds[what]())
                    nursery.start_soon(read, watching.enter_context(watch))
                    await session.ask("hello")
                    scope.cancel()
    assert seen


async def test_whoever_opens_something_in_a_runtime_that_was_cancelled_hears_of_the_cancel(
    autojump_clock, open_checked
):
    """The tasks of a program that is cancelled run once more each, in any order: none of them may make an error of it."""

    async def act(fired: Fired) -> None: ...

    with trio.CancelScope() as scope:
        async with open_checked() as runtime:
            scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
                with pytest.raises(RuntimeEnded, match="was cancelled, and starts no session 'late'"):
                    await runtime.session("late")
                with pytest.raises(RuntimeEnded, match="was cancelled, and starts no trigger 'late'"):
                    runtime.trigger("late", Every(1), act)
            await runtime.session("late")
    assert scope.cancelled_caught


async def test_every_model_that_was_ever_used_is_closed_with_the_runtime(autojump_clock, open_checked):
    """I21: the runtime's own, one that a session had for a while, and one for a single turn; each once."""

    class Closing(Scripted):
        closed = 0

        async def aclose(self) -> None:
            self.closed += 1

    models = [Closing([reply("yes")], exhausted="repeat", name=f"m{number}") for number in range(4)]
    async with open_checked(models[0]) as runtime:
        session = await runtime.session("s")
        await session.ask("a")
        await runtime.session("s", model=models[1])
        await session.ask("b")
        await runtime.session("s", model=models[2])
        await session.ask("c")
        await session.ask("d", model=models[3])
        assert [model.closed for model in models] == [0, 0, 0, 0]
    assert [len(model.requests) for model in models] == [1, 1, 1, 1]
    assert [model.closed for model in models] == [1, 1, 1, 1]


async def test_a_model_that_cannot_be_referred_to_weakly_is_closed_too(autojump_clock, open_checked):
    """I21: how a class keeps its attributes is its own business."""

    class Slotted:
        __slots__ = ("closed", "inner")
        name, context_window = "slotted:one", None

        def __init__(self) -> None:
            self.inner, self.closed = Scripted([reply("yes")]), 0

        def stream(self, request):
            return self.inner.stream(request)

        async def aclose(self) -> None:
            self.closed += 1

    model = Slotted()
    async with open_checked(model) as runtime:
        assert (await (await runtime.session("s")).ask("a")).text == "yes"
    assert model.closed == 1
