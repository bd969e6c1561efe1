"""Where a running call's reports go: to whoever watches the session, live, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

from trouper.core.ids import CallId
from trouper.core.live import LiveEvent, ToolOutput, ToolProgress, ToolStatus
from trouper.core.values import frozen


@frozen(frequent=True)
class LiveSink:
    call: CallId
    publish: Callable[[LiveEvent], None]

    def progress(self, current: float | None, total: float | None, unit: str, label: str) -> None:
        self.publish(ToolProgress(self.call, current, total, unit, label))

    def status(self, text: str) -> None:
        self.publish(ToolStatus(self.call, text))

    def output(self, stream: str, delta: str) -> None:
        self.publish(ToolOutput(self.call, stream, delta))
