"""Foreign code: a model's client, a tool. What it raises ends its own call, and nothing else.

A cancel and a Ctrl-C come from outside and go on up. They may come in a group with something else, when a client's nursery was cancelled and its
clean-up failed: then they go on alone. The rest would crash a session for a call that nobody wants any more.
"""

from __future__ import annotations

import trio


def from_outside(error: BaseException) -> BaseException | None:
    """What of it has to be raised on; `None` if all of it is the call's own: also a library's wish to end the whole process."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(lambda each: not isinstance(each, BaseExceptionGroup) and _is_from_outside(each))[0]
    return error if _is_from_outside(error) else None


def _is_from_outside(error: BaseException) -> bool:
    if isinstance(error, trio.Cancelled):
        # One that no scope around us asked for was kept by the foreign code beyond its own.
        return trio.current_effective_deadline() <= trio.current_time()
    return isinstance(error, KeyboardInterrupt | GeneratorExit)


def alone(error: BaseException) -> BaseException:
    """The error itself, out of the groups that nurseries put around a single one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
