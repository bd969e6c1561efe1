"""What every test of sessions stands on: a runtime in memory and in virtual time, whose journal is put through the checker when it ends."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from trouper import Limits, Runtime, open_runtime
from trouper.actors.environment import Environment
from trouper.codec import Record
from trouper.core.history import problems
from trouper.core.session import State
from trouper.journal.memory_disk import MemoryDisk
from trouper.journal.reader import Reader
from trouper.testing.invariants import check_invariants, records_of
from trouper.testing.sources import CountedIds, VirtualWall, seeded


def pytest_configure() -> None:
    """Signals as a terminal gives them to a program: `nohup` and shells that start something in the background ignore some, and what is ignored is inherited."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class OpenChecked:
    """`open_runtime` in memory. Its journal is checked at the end, and so is every request that its model was sent (I5).

    pytest-trio takes a clock only from a test's own arguments, so a test asks for `autojump_clock` as well.
    """

    def __init__(self, clock: trio.testing.MockClock, journal: list[Record]) -> None:
        self.journal = journal
        self.wall = VirtualWall(clock)
        self.ids = CountedIds()
        self._clock = clock

    @asynccontextmanager
    async def __call__(self, model: Any = None, *, complete: bool = True, **settings: Any) -> AsyncIterator[Runtime]:
        settings = {"durability": "memory", "disk": MemoryDisk(), "environment": self.environment(), **settings}
        root = settings.pop("root", "/state")
        assert trio.current_time() == self._clock.current_time(), "ask for autojump_clock in the test's own arguments"
        async with open_runtime(root, model=model, **settings) as runtime:
            yield runtime
            await trio.testing.wait_all_tasks_blocked()
        self.check(settings["disk"], root, settings.get("limits"), complete)
        for request in getattr(model, "requests", ()):
            assert not problems(request.messages), f"an invalid request: {problems(request.messages)}"
        assert not getattr(model, "open_streams", 0), "a stream was left open (I21)"

    def environment(self) -> Environment:
        return Environment(now=lambda: self.wall() / 1000, ids=self.ids, random=seeded(0, "jitter"), pid=1)

    def check(self, disk: Any, root: str = "/state", limits: Limits | None = None, complete: bool = True) -> None:
        """Every invariant that shows in a journal, over all of it."""
        self.journal[:] = records_of(Reader(disk, root))
        self._check(limits, complete)

    def check_path(self, root: Path, limits: Limits | None = None, complete: bool = True) -> None:
        """The same for a journal in a real directory."""
        self.journal[:] = records_of(root)
        self._check(limits, complete)

    def _check(self, limits: Limits | None, complete: bool) -> None:
        wrong = check_invariants(self.journal, limits=limits, complete=complete)
        assert not wrong, "\n".join(map(str, wrong))


@pytest.fixture
def journal() -> list[Record]:
    """The records of the test's journal, once its runtime is closed."""
    return []


@pytest.fixture
def open_checked(autojump_clock: trio.testing.MockClock, journal: list[Record]) -> OpenChecked:
    return OpenChecked(autojump_clock, journal)


@pytest.fixture
def states_in_memory() -> Callable[[str], int]:
    """How many states of a session somebody still holds; those that an earlier test has left behind are not counted."""

    def held() -> list[State]:
        gc.collect()
        return [each for each in gc.get_objects() if type(each) is State]

    # With the states themselves: else a new one could get the place of one that is gone, and pass for it.
    before = {id(each): each for each in held()}

    def count(session: str) -> int:
        return sum(each.session == session and id(each) not in before for each in held())

    return count


@pytest.fixture
def users_own() -> Iterator[Path]:
    """A directory of somebody whom modes bind, which they do not root."""
    with tempfile.TemporaryDirectory() as place:
        if os.geteuid() != 0:
            yield Path(place)
            return
        os.chown(place, 65534, 65534)
        os.seteuid(65534)
        try:
            yield Path(place)
        finally:
            os.seteuid(0)
