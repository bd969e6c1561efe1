"""The writer on a disk that crashes: many tasks append and wait, in drawn schedules; what one of them was told is true for ever (I17, J2)."""

from __future__ import annotations

import functools
import random

import attrs
import pytest
import trio
from journal_workload import check_recovered, entry, open_small

from trouper.actors.journal import Inline, JournalWriter
from trouper.testing import CrashDisk, Fate, PowerCut, run_simulated, seeded

TASKS = 6
EACH = 8


@attrs.define
class Told:
    """What the tasks of one run did and were told, kept outside of it."""

    submitted: list[str] = attrs.field(factory=list)
    #: The highest sequence of which a task was told that it is durable.
    acked: int = 0
    cancelled: int = 0
    boundaries: list[tuple[CrashDisk, int, str]] = attrs.field(factory=list)


async def chatter(writer: JournalWriter, told: Told, draw: random.Random) -> None:
    sender = writer.open_sender()
    try:
        for _ in range(EACH):
            if draw.random() < 0.5:
                await trio.sleep(draw.choice((0, 0, 0.001, 0.02)))
            number = len(told.submitted)
            durable = draw.random() < 0.75
            seq = sender.append(entry(number, durable=durable, stream=f"s{number % 4}"))
            told.submitted.append(f"e{number}")
            assert seq == len(told.submitted)
            if durable:
                with trio.CancelScope() as scope:
                    if draw.random() < 0.2:
                        scope.cancel()
                        told.cancelled += 1
                    # Shielded: it returns only when the record is safe, whether or not the caller is cancelled.
                    await sender.wait_durable(seq)
                    told.acked = max(told.acked, seq)
    finally:
        sender.close()


async def life(disk: CrashDisk, told: Told, seed: int, *, slow: bool) -> None:
    draw = seeded(seed, "chatter")
    log = open_small(disk)
    writer = JournalWriter(log, sync=Inline(latency=lambda: draw.choice((0.0, 0.001, 0.03))) if slow else Inline())
    async with trio.open_nursery() as nursery:
        await nursery.start(writer.run)
        for _ in range(TASKS):
            nursery.start_soon(chatter, writer, told, draw)
    log.close()


def lived(seed: int, *, slow: bool) -> Told:
    disk, told = CrashDisk(), Told()
    disk.watch(lambda step: told.boundaries.append((disk.fork(), told.acked, str(step))))
    run_simulated(functools.partial(life, disk, told, seed, slow=slow), seed=seed)
    return told


@pytest.mark.parametrize("slow", [False, True], ids=["at_once", "slow_disk"])
@pytest.mark.parametrize("seed", range(6))
def test_what_a_task_was_told_survives_a_power_cut_at_every_boundary(seed: int, slow: bool) -> None:
    told = lived(seed, slow=slow)
    assert len(told.submitted) == TASKS * EACH
    assert told.cancelled
    for number, (disk, acked, step) in enumerate(told.boundaries):
        for fate in (Fate.KEPT, Fate.DROPPED, Fate.GARBLED, Fate.TORN):
            check_recovered(disk.crash(fate, seed=number), told.submitted, acked, note=f"{number}: {step}")
        check_recovered(disk.crash(seed=number), told.submitted, acked, note=f"{number}: {step}")


def test_a_seed_gives_the_same_journal_again() -> None:
    """Simulations repeat: the same seed makes the same calls on the disk, in the same order."""
    first, second = lived(3, slow=True), lived(3, slow=True)
    assert [step for _, _, step in first.boundaries] == [step for _, _, step in second.boundaries]
    assert first.submitted == second.submitted
    different = lived(4, slow=True)
    assert [step for _, _, step in first.boundaries] != [step for _, _, step in different.boundaries]


def test_one_sync_covers_many_tasks() -> None:
    """J2: who appends while a sync runs, or in the same turn of the scheduler, shares one."""
    told = lived(1, slow=True)
    syncs = sum("'sync'" in step for _, _, step in told.boundaries)
    assert syncs < len(told.submitted)


def test_a_power_cut_in_a_sync_ends_every_waiter() -> None:
    """A disk that is gone ends all who wait; nobody is left hanging in a shield."""
    plain = CrashDisk()
    open_small(plain)
    for step in range(plain.steps + 1, plain.steps + 30, 3):
        disk, told = CrashDisk(), Told()
        disk.cut_power_before(step)

        async def bounded(disk: CrashDisk = disk, told: Told = told) -> None:
            with trio.fail_after(3600):  # Of virtual time; a hang would otherwise be one.
                await life(disk, told, 1, slow=False)

        with pytest.raises(BaseExceptionGroup) as caught:
            run_simulated(bounded, seed=step)
        assert caught.value.split(trio.TooSlowError)[0] is None
        # Each task may have had an entry taken that it never heard of.
        submitted = [*told.submitted, *(f"e{len(told.submitted) + n}" for n in range(TASKS))]
        check_recovered(disk.crash(seed=step), submitted, told.acked)


def test_the_error_of_a_cut_is_no_ordinary_exception() -> None:
    assert not issubclass(PowerCut, Exception)
