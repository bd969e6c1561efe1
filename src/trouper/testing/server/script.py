"""Which reply a request gets. The plays of `trouper.models.scripted` serve here as well: in process or over HTTP, the script is the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from trouper.models import scripted
from trouper.models._errors import ModelError
from trouper.models.chunks import Chunk
from trouper.testing.server.faults import Drop, Fault, Stall, Status
from trouper.testing.server.listener import SeenRequest

Item: TypeAlias = Chunk | Fault
#: The items of one reply, or a function that makes them for a request.
Turn: TypeAlias = Sequence[Item | scripted.Item] | Callable[[SeenRequest], Sequence[Item | scripted.Item]]

_DAILY = {
    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
    "violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel"}],
}


class Script:
    """Turns in order, one for each request that asks the model; then the last again, or an error."""

    def __init__(self, turns: Iterable[Turn], *, repeat_last: bool = False) -> None:
        self._turns = list(turns)
        self._repeat_last = repeat_last
        self._next = 0

    def add(self, *turns: Turn) -> None:
        self._turns.extend(turns)

    def reply_to(self, request: SeenRequest) -> Sequence[Item]:
        if self._next < len(self._turns):
            turn = self._turns[self._next]
            self._next += 1
        elif self._repeat_last and self._turns:
            turn = self._turns[-1]
        else:
            return (Status(500, f"the script has no reply to request {self._next + 1}; add a turn"),)
        return [_item(item) for item in (turn(request) if callable(turn) else turn)]


def _item(item: Item | scripted.Item) -> Item:
    match item:
        case scripted.Stall(seconds):
            return Stall(seconds)
        case scripted.Drop():
            return Drop()
        case scripted.Fail(error):
            return _fault(error)
        case _:
            return item


def _fault(error: ModelError) -> Fault:
    """The status by which a provider would tell of this error."""
    wait = error.retry_after_s
    match error.kind:
        case "network":
            return Drop()
        case "rate_limit":
            return Status(429, error.message, retry_delay_s=wait)
        case "quota":
            return Status(429, error.message, details=(_DAILY,))
        case "auth":
            return Status(401, error.message)
        case "context_overflow":
            return Status(400, f"The input token count exceeds the maximum number of tokens allowed. {error.message}")
        case "bad_request":
            return Status(400, error.message)
        case _:
            return Status(error.status or 503, error.message, retry_delay_s=wait)
