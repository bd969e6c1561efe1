"""`async with` blocks that say how they are meant: what `open_runtime()` and `session.turn()` give."""

from __future__ import annotations

from collections.abc import Callable
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

    __slots__ = ("_example", "_make", "_opened")

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[T_co]], example: str) -> None:
        self._make = make
        self._example = example
        self._opened: AbstractAsyncContextManager[T_co] | None = None

    async def __aenter__(self) -> T_co:
        if self._opened is not None:
            raise BlockMisused(f"this block was entered before, and works once; write `{self._example}` again")
        if not trio.lowlevel.in_trio_run():
            raise UsageError(
                "Trouper runs on trio, and no trio loop runs here; start the program with trio.run(main), not with asyncio.run() "
                "(design/guides/migration.md says more)"
            )
        self._opened = self._make()
        return await self._opened.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._opened is not None
        return await self._opened.__aexit__(kind, error, trace)

    def _refuse(self, *_: object) -> NoReturn:
        raise BlockMisused(f"this is a block to enter; write `{self._example}`")

    __await__ = __aiter__ = __anext__ = __enter__ = __exit__ = _refuse

    def __getattr__(self, name: str) -> Any:
        raise BlockMisused(f"there is no {name!r} before the block is entered; write `{self._example}`", name=name)
