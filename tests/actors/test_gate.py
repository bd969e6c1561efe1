"""So many at a time (I25, B1)."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from trouper.actors.gate import Gate


async def test_those_who_wait_come_in_one_for_each_that_leaves_and_in_their_order() -> None:
    """I25: never more than there is room for."""
    gate, inside = Gate(2), list[int]()

    async def come(number: int) -> None:
        await gate.enter()
        inside.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(come, number)
            await wait_all_tasks_blocked()
        assert inside == [0, 1]
        for expected in ([0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]):
            gate.leave()
            await wait_all_tasks_blocked()
            assert inside == expected


async def test_whoever_gives_up_takes_nobodys_place() -> None:
    """I6: a cancel while waiting is as if one had never come."""
    gate = Gate(1)
    await gate.enter()
    with trio.move_on_after(0):
        await gate.enter()
    gate.leave()
    with trio.fail_after(0):
        await gate.enter()  # There is room, and it is taken without a checkpoint.
