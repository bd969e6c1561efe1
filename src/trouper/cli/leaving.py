"""The end of a program that runs a root: what it waits for is said, and nobody has to wait with it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from trouper.cli.endings import ending_signals, say
from trouper.core.messages import Outcome, ToolAnswer
from trouper.core.session import State
from trouper.runtime import Runtime

#: An end that takes longer than this says what it waits for.
LATE_S = 1.0


class Leaving:
    """Whether the end has begun, and of what."""

    def __init__(self) -> None:
        self.begun = trio.Event()
        self.runtime: Runtime | None = None

    def waits_for(self) -> str:
        """What has not stopped yet, as far as anybody can tell."""
        opened = {} if self.runtime is None else self.runtime._ground.sessions
        late = [
            f"{' and '.join(_cut_off(session.actor.state)) or 'what runs'} in session {name!r}"
            for name, session in opened.items()
            if session.ref.exit is None
        ]
        return f"{', '.join(late)} to stop" if late else "the root to be closed"


def _cut_off(state: State) -> list[str]:
    """The tools that were told to stop: of a step that has not ended, those without an answer; else those that were answered for."""
    if state.turn is not None and state.turn.calls:
        return sorted({call.request.name for call in state.turn.calls if call.is_begun and call.answer is None})
    for message in reversed(state.history.messages):
        if answers := [part for part in message.parts if isinstance(part, ToolAnswer)]:
            return sorted({each.name for each in answers if each.outcome in (Outcome.CANCELLED, Outcome.TIMEOUT)})
    return []


@asynccontextmanager
async def leaving_told() -> AsyncIterator[Leaving]:
    """An end of this block that takes its time says so, and a signal then ends the program at once, as it would one that has been killed.

    Nothing is lost by that: what is not recorded as interrupted by then, the next process finds open, as after any crash (J12). And a tool that shields itself from
    its cancel would keep the program alive for as long as it likes.
    """
    leaving = Leaving()
    telling = trio.CancelScope(shield=True)

    async def watch() -> None:
        try:
            await leaving.begun.wait()
        finally:  # Or it was cancelled, which begins the end as well.
            with telling:
                await trio.sleep(LATE_S)
                await _end_by_a_signal(leaving)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        try:
            yield leaving
        finally:
            telling.cancel()
            nursery.cancel_scope.cancel()


async def _end_by_a_signal(leaving: Leaving) -> None:
    codes = ending_signals()
    remedy = "; Ctrl-C ends without that" if signal.SIGINT in codes else ""
    if not codes:
        say(f"waits for {leaving.waits_for()}")
        return
    with trio.open_signal_receiver(*codes) as signals:
        say(f"waits for {leaving.waits_for()}{remedy}")
        async for number in signals:
            with contextlib.suppress(OSError):
                sys.stdout.flush()
            os._exit(codes[number])
