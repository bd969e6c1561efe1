"""Models whose connections do not close when they are told to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from trouper.models.scripted import Scripted


class SlowToClose(Scripted):
    """Its connection takes three seconds to close, whatever happens."""

    @asynccontextmanager
    async def stream(self, request: Any) -> AsyncIterator[Any]:
        async with super().stream(request) as chunks:
            try:
                yield chunks
            finally:
                with trio.CancelScope(shield=True):
                    await self.wait_closed()

    async def wait_closed(self) -> None:
        await trio.sleep(3)


class Unending(SlowToClose):
    """Its connection does not close until somebody lets it."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.let_go = trio.Event()

    async def wait_closed(self) -> None:
        await self.let_go.wait()
