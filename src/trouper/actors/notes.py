"""What a model has said is noted while it speaks, also when it falls silent in mid-sentence (J1, L13).

One actor for all calls of a runtime: a timer for each would cost more than many a call. It sleeps while nobody speaks.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from trouper.actors.errors import ActorGone, MailboxFull
from trouper.actors.reference import Inbox, Ref

if TYPE_CHECKING:
    from trouper.actors.model_call import ModelCall

#: A crash loses at most this much of what was seen, and the time of one write.
TICK_S = 0.5


class Notes:
    """The model calls under way."""

    def __init__(self) -> None:
        self._calls: dict[ModelCall, None] = {}
        self._ref: Ref[None, None] | None = None
        self._awake = False

    def add(self, call: ModelCall) -> None:
        self._calls[call] = None
        if not self._awake and self._ref is not None:
            with suppress(MailboxFull, ActorGone):
                self._ref.tell(None)
                self._awake = True

    def discard(self, call: ModelCall) -> None:
        self._calls.pop(call, None)

    async def run(self, inbox: Inbox[None, None]) -> None:
        self._ref = inbox.ref
        async for _ in inbox:
            while self._calls:
                await trio.sleep(TICK_S)
                for call in tuple(self._calls):
                    call.note()
            self._awake = False
