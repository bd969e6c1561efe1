"""The trio loop in which a runtime was opened. Its sessions wake each other in it, and nobody may do so from another one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

import trio

from trouper._errors import UsageError

_REMEDY = (
    "from a thread, call it with trio.from_thread.run(session.ask, text, trio_token=token), where token is "
    "trio.lowlevel.current_trio_token() of the loop that has the runtime; or open one runtime per trio.run()"
)
_R = TypeVar("_R")
#: How long a thread waits for what it has asked the loop to do: as long as it takes, unless the loop itself waits for the thread.
_WAIT_S = 1.0
#: In trio's guest mode the host's loop runs in the same thread: whoever waits there for trio would wait for ever.
_REMEDY_OF_GUESTS = (
    "have a task of trio's do it: token.run_sync_soon(nursery.start_soon, function), where nursery and token, "
    "trio.lowlevel.current_trio_token(), are those of the loop that has the runtime"
)


class WrongLoop(UsageError):
    """A session or a runtime was used outside of the trio loop that its runtime runs in: in another thread, or without trio."""


class Home:
    """Made where the runtime is."""

    __slots__ = ("_token",)

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()

    def check(self) -> None:
        """`WrongLoop` if this is called from elsewhere."""
        try:
            here = trio.lowlevel.current_trio_token()
        except RuntimeError:
            raise WrongLoop(f"no trio loop runs here, and this belongs to one; {_REMEDY}") from None
        if here is not self._token:
            raise WrongLoop(f"this belongs to a runtime in another trio loop; {_REMEDY}")
        if not trio.lowlevel.in_trio_task():
            raise WrongLoop(f"this is the loop that trio is a guest of, and no task of trio's; {_REMEDY_OF_GUESTS}")

    def call(self, function: Callable[..., _R], *values: object) -> _R | None:
        """Call a plain function in this loop, from whichever thread. `None` if the loop is over, or too busy to say what came of it."""
        try:
            here = trio.lowlevel.current_trio_token() is self._token
        except RuntimeError:
            here = False
        if here:
            return function(*values)
        called: Future[_R] = Future()
        try:
            self._token.run_sync_soon(_call, called, function, values)
        except trio.RunFinishedError:
            return None
        wait([called], _WAIT_S)
        return called.result() if called.done() else None


def _call(called: Future[Any], function: Callable[..., Any], values: tuple[object, ...]) -> None:
    try:
        called.set_result(function(*values))
    except BaseException as error:  # The thread's to see: what is raised here would end the loop.
        called.set_exception(error)
