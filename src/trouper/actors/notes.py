"""What a model has said is noted while it speaks, also when it falls silent in mid-sentence (J1, L13).

One actor for all calls of a runtime: a timer for each would cost more than many a call. It sleeps while nobody speaks.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

from trouper.actors.alarm import Alarm
from trouper.actors.reference import Inbox

if TYPE_CHECKING:
    from trouper.actors.model_call import ModelCall

#: A crash loses at most this much of what was seen, and the time of one write.
TICK_S = 0.5


class Notes:
    """The model calls under way."""

    __slots__ = ("_alarm", "_calls")

    def __init__(self) -> None:
        self._calls: dict[ModelCall, None] = {}
        self._alarm = Alarm()

    def add(self, call: ModelCall) -> None:
        self._calls[call] = None
        if self._alarm.at == math.inf:
            self._alarm.hasten(trio.current_time() + TICK_S)

    def discard(self, call: ModelCall) -> None:
        self._calls.pop(call, None)

    async def run(self, inbox: Inbox[None, None]) -> None:
        self._set_alarm()
        while await self._alarm.wait(inbox):
            for call in tuple(self._calls):
                call.note()
            self._set_alarm()

    def _set_alarm(self) -> None:
        if self._calls:
            self._alarm.hasten(trio.current_time() + TICK_S)
