"""What every test of sessions stands on: a runtime in memory and in virtual time, whose journal is put through the checker when it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from trouper import Limits, Runtime, open_runtime
from trouper.actors.environment import Environment
from trouper.codec import Record
from trouper.core.history import problems
from trouper.journal.memory_disk import MemoryDisk
from trouper.testing.invariants import check_invariants, records_of
from trouper.testing.sources import CountedIds, VirtualWall, seeded

OpenChecked = Callable[..., AbstractAsyncContextManager[Runtime]]


@pytest.fixture
def journal() -> list[Record]:
    """The records of the test's journal, once its runtime is closed."""
    return []


@pytest.fixture
def open_checked(autojump_clock: trio.testing.MockClock, journal: list[Record]) -> OpenChecked:
    """`open_runtime` in memory. Its journal is checked at the end, and so is every request that its scripted model was sent (I5)."""

    @asynccontextmanager
    async def opened(model: Any = None, *, complete: bool = True, **settings: Any) -> AsyncIterator[Runtime]:
        wall = VirtualWall(autojump_clock)
        settings.setdefault("durability", "memory")
        settings.setdefault("disk", MemoryDisk())
        settings.setdefault(
            "environment",
            Environment(now=lambda: wall() / 1000, ids=CountedIds(), random=seeded(0, "jitter"), pid=1),
        )
        async with open_runtime("/state", model=model, **settings) as runtime:
            yield runtime
            await trio.testing.wait_all_tasks_blocked()
        journal[:] = read_journal(settings["disk"])
        wrong = check_invariants(journal, limits=settings.get("limits") or Limits(), complete=complete)
        assert not wrong, "\n".join(map(str, wrong))
        for request in getattr(model, "requests", ()):
            assert not problems(request.messages), f"an invalid request: {problems(request.messages)}"
        assert not getattr(model, "open_streams", 0), "a stream was left open (I21)"

    return opened


def read_journal(disk: Any, root: str = "/state") -> list[Record]:
    from trouper.journal.reader import Reader

    return list(records_of(Reader(disk, root)))
