"""A run that spills, with a crash at every write between its call and the acknowledged notification (B4, I15, I17, I29, I30).

The story is run once to count the steps of its disk; then once more for each step, with the power cut before it or the process killed there, and the
next process has to bring it to its end. Whatever the crash left: one terminal state, one notification, told at least once and acknowledged once.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
import trio.testing
from background_stage import Probe, events_of, until, until_quiet

from trouper import open_runtime
from trouper.actors.environment import Environment
from trouper.journal import JournalFailed
from trouper.journal.reader import Reader
from trouper.models.scripted import Scripted, call, reply
from trouper.session import SessionEnded
from trouper.testing.crash_disk import CrashDisk, Fate, PowerCut
from trouper.testing.invariants import check_invariants, records_of
from trouper.testing.schedule import run_simulated
from trouper.testing.sources import START_MS, CountedIds, VirtualWall, seeded

#: More than the story takes; a cut beyond its end is no cut.
STEPS_MAX = 200


@attrs.define
class World:
    """What outlives a process."""

    disk: CrashDisk = attrs.Factory(CrashDisk)
    ids: CountedIds = attrs.Factory(CountedIds)
    elapsed_ms: int = 0
    processes: int = 0
    probe: Any = None


def script() -> Scripted:
    def told(request: Any) -> Any:
        asked = request.messages[-1]
        if asked.kind == "notification":
            return reply("noted")
        if asked.role == "user" and any(call_.name == "slow" for m in request.messages for call_ in m.calls):
            return reply("nothing new")
        return reply(call("slow", seconds=5.0)) if asked.role == "user" else reply("it goes on")

    return Scripted([told] * 50)


def live(world: World, idempotent: bool) -> None:
    """One process, from its start to the end of the story."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    wall = VirtualWall(clock, START_MS + world.elapsed_ms)
    world.processes += 1
    environment = Environment(now=lambda: wall() / 1000, ids=world.ids, random=seeded(0, "jitter"), pid=world.processes)

    async def process() -> None:
        if world.probe is None:
            world.probe = Probe()
        async with open_runtime(
            "/state",
            model=script(),
            tools=[world.probe.slow(idempotent=idempotent)],
            disk=world.disk,
            environment=environment,
        ) as runtime:
            session = await runtime.session("a")
            await until(session, lambda state: state.turn is None)
            if not any(call_.name == "slow" for message in session.history for call_ in message.calls):
                await session.ask("go")
            await until_quiet(session)

    try:
        run_simulated(process, seed=1, clock=clock)
    finally:
        world.elapsed_ms += round(clock.current_time() * 1000) + 1_000


def is_crash(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(is_crash(each) for each in error.exceptions)
    return isinstance(error, PowerCut | JournalFailed | SessionEnded)


def kill_before(world: World, cut: int, idempotent: bool) -> None:
    """The world as a process leaves it that is killed before this step: what it has written is the kernel's, synced or not."""
    found: list[tuple[CrashDisk, list[str]]] = []

    def watch(step: Any) -> None:
        if step.number == cut:
            found.append((world.disk.fork(), list(world.probe.started) if world.probe is not None else []))

    world.disk.watch(watch)
    live(world, idempotent)  # To its end: what comes after the kill happens in no world.
    world.disk.watch(None)
    world.disk, started = found[0]
    world.probe.started[:] = started


def judge(world: World, where: str) -> tuple[str, int]:
    """The story's end on disk; how it ended, and how often it was told."""
    records = list(records_of(Reader(world.disk, "/state")))
    wrong = check_invariants(records, complete=True)
    assert not wrong, f"{where}: {wrong[0]}"
    created = events_of(records, "TaskSpilled")
    ends = events_of(records, "TaskSucceeded", "TaskFailed", "TaskCancelled", "TaskInterrupted")
    queued = events_of(records, "NotificationQueued")
    acknowledged = [id for event in events_of(records, "NotificationsAcknowledged") for id in event.ids]
    assert len(ends) == len(created) <= 1, where
    assert [event.notification.task_id for event in queued] == [event.task_id for event in ends], where
    assert acknowledged == [event.notification.id for event in queued], where
    delivered = [id for event in events_of(records, "NotificationsDelivered") for id in event.ids]
    assert set(delivered) == set(acknowledged), where
    return (type(ends[0]).__name__ if ends else "no task"), len(delivered)


def steps_of_the_story(idempotent: bool) -> int:
    world = World()
    live(world, idempotent)
    end, told = judge(world, "no crash")
    assert (end, told) == ("TaskSucceeded", 1)
    return world.disk.steps


@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "at most once"])
@pytest.mark.parametrize("fate", ["kept", "dropped", "torn", "killed"])
def test_a_crash_at_every_write_leaves_one_end_and_one_notification(idempotent: bool, fate: str) -> None:
    total = steps_of_the_story(idempotent)
    assert 20 < total < STEPS_MAX
    ends: dict[str, int] = {}
    told_again = crashes = 0
    for cut in range(1, total + 1):
        world = World()
        if fate == "killed":
            kill_before(world, cut, idempotent)
        else:
            world.disk.cut_power_before(cut)
            try:
                live(world, idempotent)
            except BaseException as error:
                assert is_crash(error), error
            else:
                continue
            fates = {"kept": Fate.KEPT, "dropped": Fate.DROPPED}
            world.disk = world.disk.crash(fates.get(fate), seed=cut)
        crashes += 1
        live(world, idempotent)
        end, told = judge(world, f"cut before step {cut}, {fate}")
        ends[end] = ends.get(end, 0) + 1
        told_again += told > 1
        if not idempotent:  # I4
            assert len(world.probe.started) == len(set(world.probe.started)), f"cut {cut}: {world.probe.started}"
    assert crashes >= total - 5
    # The crashes did hit every part of the story.
    assert ends.get("TaskSucceeded", 0) > 5
    assert told_again > 0
    assert idempotent or ends.get("TaskInterrupted", 0) > 0


def test_two_crashes_in_a_row_do_no_more_harm_than_one() -> None:
    """I17: recovery is itself cut, at every step of it."""
    total = steps_of_the_story(True)
    for first in range(8, total, 7):
        world = World()
        world.disk.cut_power_before(first)
        with pytest.raises(BaseException) as cut:
            live(world, True)
        assert is_crash(cut.value)
        base = world.disk.crash(seed=first)
        for second in range(1, 30, 3):
            again = World(base.fork(), CountedIds(world.ids.count), world.elapsed_ms, world.processes, world.probe)
            again.disk.cut_power_before(again.disk.steps + second)
            try:
                live(again, True)
            except BaseException as error:
                assert is_crash(error), error
                again.disk = again.disk.crash(seed=second)
                live(again, True)
            judge(again, f"cut before step {first}, then {second}")
