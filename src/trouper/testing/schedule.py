"""Which ready task runs first: chosen by a seed or drawn by a test, instead of at random.

trio shuffles the tasks that are ready, so that no program relies on their order. A test wants that shuffle to be different in every run
*and* the same again on demand. Importing hypothesis makes trio deterministic, but with one schedule for all examples; here the schedule is
an input like any other:

    >>> async def main():
    ...     order = []
    ...     async def note(name):
    ...         order.append(name)
    ...     async with trio.open_nursery() as nursery:
    ...         for name in "abc":
    ...             nursery.start_soon(note, name)
    ...     return "".join(order)
    >>> run_simulated(main, choices=[])
    'abc'
    >>> run_simulated(main, choices=[0, 2])
    'cab'
    >>> len({run_simulated(main, seed=seed) for seed in range(50)})
    6

Threads finish when they like, so a run is repeatable only if it uses none: hand `call_inline` to whatever takes a way to call blocking functions.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import trio
import trio.testing
from trio._core import _run

T = TypeVar("T")


class DrawnSchedule(random.Random):
    """trio's source of randomness, with the order of ready tasks taken from a list of small integers.

    Each choice moves one ready task ahead by that many places; 0, and the end of the list, leave them first in, first out. So a
    schedule that fails shrinks to the few moves that matter.
    """

    def __init__(self, choices: Sequence[int]) -> None:
        super().__init__(0)
        self._choices = iter(choices)

    def shuffle(self, x: Any) -> None:
        # trio hands over the batch sorted by age and then runs it from its end. This must not raise: it is inside the run loop.
        x.reverse()
        for last in range(len(x) - 1, 0, -1):
            ahead = next(self._choices, 0) % (last + 1)
            if ahead:
                x.insert(last, x.pop(last - ahead))


@contextmanager
def scheduled(*, seed: int | None = None, choices: Sequence[int] | None = None) -> Iterator[None]:
    """Let runs of trio inside this block take their order of tasks from `choices`, or from the seed (0 if neither is given)."""
    source = random.Random(seed or 0) if choices is None else DrawnSchedule(choices)
    kept = _run._r, _run._ALLOW_DETERMINISTIC_SCHEDULING
    _set_source(source, True)
    try:
        yield
    finally:
        _set_source(*kept)


def run_simulated(
    async_fn: Callable[..., Awaitable[T]],
    *args: Any,
    seed: int | None = None,
    choices: Sequence[int] | None = None,
    clock: trio.abc.Clock | None = None,
    instruments: Sequence[trio.abc.Instrument] = (),
) -> T:
    """`trio.run` in virtual time, with a schedule of its own; the same seed or choices give the same run again.

    A run that fails carries a note of how to repeat it. `clock` is for a test that keeps a hand on the time; by default a wait
    takes no time at all.
    """
    with scheduled(seed=seed, choices=choices):
        try:
            return trio.run(
                async_fn,
                *args,
                clock=clock or trio.testing.MockClock(autojump_threshold=0),
                instruments=instruments,
            )
        except BaseException as error:
            again = f"seed={seed or 0}" if choices is None else f"choices={list(choices)!r}"
            error.add_note(
                f"the same run again: run_simulated({getattr(async_fn, '__name__', async_fn)}, ..., {again})"
            )
            raise


async def call_inline(blocking: Callable[..., T], *args: Any) -> T:
    """Call a blocking function on the spot, at a checkpoint: stands in for `trio.to_thread.run_sync` where runs must repeat."""
    await trio.lowlevel.checkpoint()
    return blocking(*args)


def _set_source(source: random.Random, deterministic: bool) -> None:
    # Both are trio's own hooks for tests; pytest-trio sets the same two. The constant is declared Final, hence setattr.
    _run._r = source
    setattr(_run, "_ALLOW_DETERMINISTIC_SCHEDULING", deterministic)  # noqa: B010
