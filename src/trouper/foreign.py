"""Foreign code: a model's client, a tool, a hook, a policy, a trigger. What it raises ends its own call, and nothing else (I23).

| raised | is | so |
|---|---|---|
| a cancel that a scope around us asked for | from outside | goes on up |
| `KeyboardInterrupt` | the user's, wherever it comes down | goes on up |
| `GeneratorExit` at the very place where we wait | our own coroutine being closed, with nobody left to run it | goes on up |
| a cancel that was kept beyond its scope, any other `GeneratorExit`, `SystemExit`, `asyncio.CancelledError`, any other | the call's own | ends the call |

What is from outside may come in a group with something else, when a client's nursery was cancelled and its clean-up failed: then it goes on alone. The rest
would crash a session for a call that nobody wants any more.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TypeAlias

import trio

#: Cuts the secrets out of a text (J8).
Redact: TypeAlias = Callable[[str], str]
#: Characters of a chain that are told; the error itself is at its end.
CHAIN_CHARS = 65_536
#: As long as a secret may be.
_SECRET_MAX = 1 << 15


def from_outside(error: BaseException) -> BaseException | None:
    """What of it has to be raised on; `None` if all of it is the call's own: also a library's wish to end the whole process."""
    if isinstance(error, BaseExceptionGroup):
        outside, own = error.split(lambda each: not isinstance(each, BaseExceptionGroup) and _is_from_outside(each))
        return error if own is None else outside
    return error if _is_from_outside(error) else None


def _is_from_outside(error: BaseException) -> bool:
    if isinstance(error, trio.Cancelled):
        # One that no scope around us asked for was kept by the foreign code beyond its own.
        return trio.current_effective_deadline() <= trio.current_time()
    if isinstance(error, GeneratorExit):
        # Closing a coroutine closes first what it waits for, each with an exception of its own: so ours was raised where we wait, and no deeper.
        return error.__traceback__ is not None and error.__traceback__.tb_next is None
    return isinstance(error, KeyboardInterrupt)


def chain_of(error: BaseException, redact: Redact) -> str:
    """What led to it, for a log: without the secrets that it may quote (I36), and the end of it if it is very long."""
    try:
        told = "".join(traceback.format_exception(error))
    except Exception:  # What it is made of is foreign too: a `SyntaxError` about bytes, say.
        told = f"{type(error).__name__}, which cannot be shown"
    if len(told) <= CHAIN_CHARS:
        return redact(told)
    # Of a message of megabytes only what is told is looked through, and before it as much as the second half of a secret may take: that alone would not be known as one.
    return redact(told[-CHAIN_CHARS - _SECRET_MAX :])[_SECRET_MAX:]


def alone(error: BaseException) -> BaseException:
    """The error itself, out of the groups that nurseries put around a single one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
