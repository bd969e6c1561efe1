"""What the runs of a session say is put on their records, and that they are alive: by one task for all of them (B8)."""

from __future__ import annotations

import trio

from trouper.actors.run import Run

#: Reports to the records are at least this far apart.
REPORT_EVERY_S = 0.25


class Reporter:
    """At work as long as there are runs: `add` says when `report` has to be started."""

    def __init__(self, heartbeat_s: float) -> None:
        self._heartbeat_s = heartbeat_s
        # A dict for its order.
        self._runs: dict[Run, None] = {}
        self._news = trio.Event()
        self._at_work = False

    def said(self) -> None:
        """Some run has something for the record."""
        self._news.set()

    def add(self, run: Run) -> bool:
        """Whether somebody has to start `report`."""
        self._runs[run] = None
        if run.has_news:
            self._news.set()
        idle, self._at_work = not self._at_work, True
        return idle

    def discard(self, run: Run) -> None:
        self._runs.pop(run, None)
        if not self._runs:
            self._news.set()

    async def report(self) -> None:
        """Beat, and write down what was said, until the last run is over."""
        next_beat = trio.current_time() + self._heartbeat_s
        while self._runs:
            with trio.move_on_at(next_beat):
                await self._news.wait()
                self._news = trio.Event()
                if not self._runs:
                    break
                for run in self._runs:
                    run.flush()
                await trio.sleep(REPORT_EVERY_S)
            if trio.current_time() >= next_beat:
                next_beat = trio.current_time() + self._heartbeat_s
                for run in self._runs:
                    run.beat()
        self._at_work = False
