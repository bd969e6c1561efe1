"""Where a running call's reports go: to whoever watches the session, live, and nowhere else. Without the secrets in them, as in the record (I36)."""

from __future__ import annotations

from collections.abc import Callable

from trouper.core.ids import CallId
from trouper.core.live import LiveEvent, ToolOutput, ToolProgress, ToolStatus
from trouper.core.values import frozen


@frozen(frequent=True)
class LiveSink:
    call: CallId
    publish: Callable[[LiveEvent], None]
    redact: Callable[[str], str]

    def progress(self, current: float | None, total: float | None, unit: str, label: str) -> None:
        self.publish(ToolProgress(self.call, current, total, self.redact(unit), self.redact(label)))

    def status(self, text: str) -> None:
        self.publish(ToolStatus(self.call, self.redact(text)))

    def output(self, stream: str, delta: str) -> None:
        # Piece by piece: who watches does not wait for the rest of a word. One that comes in halves is only cut out of the record.
        self.publish(ToolOutput(self.call, self.redact(stream), self.redact(delta)))
