"""`async with` blocks that say how they are meant: what `open_runtime()` and `session.turn()` give."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, NoReturn, TypeVar

import trio

from trouper._errors import UsageError

T_co = TypeVar("T_co", covariant=True)


class BlockMisused(UsageError, AttributeError):
    """A block that was awaited, iterated or used without being entered, or entered twice; the message says what to write.

    Also an `AttributeError`, so that whoever only looks whether there is an attribute gets their answer.
    """


class Block(AbstractAsyncContextManager[T_co], Generic[T_co]):
    """Enter it once, with `async with`."""

    __slots__ = ("_entered", "_example", "_inside")

    def __init__(self, inside: AbstractAsyncContextManager[T_co], example: str) -> None:
        self._inside = inside
        self._example = example
        self._entered = False

    async def __aenter__(self) -> T_co:
        if self._entered:
            raise BlockMisused(f"this block was entered before, and works once; write `{self._example}` again")
        if not trio.lowlevel.in_trio_task():  # Where trio is the guest of another loop, it runs, and does not run this.
            raise UsageError(
                "Trouper runs on trio, and no trio loop runs here; start the program with trio.run(main), not with asyncio.run() "
                "(design/guides/migration.md says more)"
            )
        self._entered = True
        return await self._inside.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._inside.__aexit__(kind, error, trace)

    def _refuse(self, *_: object) -> NoReturn:
        raise BlockMisused(f"this is a block to enter; write `{self._example}`")

    __await__ = __aiter__ = __anext__ = __enter__ = __exit__ = _refuse

    def __getattr__(self, name: str) -> Any:
        raise BlockMisused(f"there is no {name!r} before the block is entered; write `{self._example}`", name=name)
