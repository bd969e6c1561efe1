"""The world of a simulated run."""

from __future__ import annotations

from collections import Counter

import attrs

from trouper.runtime import Runtime
from trouper.testing.crash_disk import CrashDisk
from trouper.testing.sources import CountedIds
from trouper.tools.contract import Tool


@attrs.define
class World:
    """What outlives a process: the disk, the ids, the wall clock; and what the outside saw."""

    seed: int
    disk: CrashDisk
    #: The tools of whoever tests some.
    tools: tuple[Tool, ...] = ()
    ids: CountedIds = attrs.Factory(CountedIds)
    elapsed_ms: int = 0
    #: The process that runs now.
    runtime: Runtime | None = None
    story: list[str] = attrs.Factory(list)
    problems: list[str] = attrs.Factory(list)
    #: What the first of them was, if it was an exception.
    error: BaseException | None = None
    #: Executions of tools that may run only once, by call.
    executions: Counter[str] = attrs.Factory(Counter)

    def tell(self, line: str) -> None:
        self.story.append(line)

    def wrong(self, problem: str, error: BaseException | None = None) -> None:
        if not self.problems:
            self.error = error
        self.problems.append(problem)
