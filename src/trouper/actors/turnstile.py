"""One at a time: who decides for a session while several tasks may bring it a command."""

from __future__ import annotations

from types import TracebackType

import trio


class Turnstile:
    """Held in a `with` block by whoever `taken` let through. One task at most waits for it to be free: the actor, who comes for all the others."""

    __slots__ = ("_free", "taken")

    def __init__(self) -> None:
        self.taken = False
        # Made only if somebody waits.
        self._free: trio.Event | None = None

    async def wait_free(self) -> None:
        """Shielded: who waits holds commands that others believe to be delivered. It is short: the holder waits for the disk at most."""
        with trio.CancelScope(shield=True):
            while self.taken:
                if self._free is None:
                    self._free = trio.Event()
                await self._free.wait()

    def __enter__(self) -> None:
        assert not self.taken, "two tasks decide for one session"
        self.taken = True

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.taken = False
        if self._free is not None:
            self._free.set()
            self._free = None
