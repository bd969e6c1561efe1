"""Who wants notifications to wait: somebody types, or takes them himself (B15)."""

from __future__ import annotations

import trio


class Holds:
    """Holds may overlap; the last one to be released lets those go on who wait."""

    __slots__ = ("_count", "_released")

    def __init__(self) -> None:
        self._count = 0
        self._released: trio.Event | None = None

    @property
    def any(self) -> bool:
        return self._count > 0

    def hold(self) -> None:
        self._count += 1
        if self._count == 1:
            self._released = trio.Event()

    def release(self) -> None:
        self._count -= 1
        if not self._count and self._released is not None:
            self._released.set()

    async def wait_released(self) -> None:
        while self._count and self._released is not None:
            await self._released.wait()
