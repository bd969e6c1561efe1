"""Triggers (B25): every so often, when files change, or at times of the wall clock, call a function. Each is an actor of its own under supervision.

A trigger whose function raises, whatever it raises, begins again, within its limit; then it stays down, visibly, and no other trigger or session takes notice. Triggers belong to
the host's program and last as long as the runtime: what has to survive a restart is a session's schedule.
"""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator, Callable
from importlib.util import find_spec
from inspect import isasyncgenfunction, isawaitable, isgeneratorfunction
from typing import Any, TypeAlias

import attrs
import trio
from attrs import field

from trouper._errors import ConfigError, UsageError
from trouper.actors.reference import Inbox
from trouper.actors.restart import Restart
from trouper.core.cron import Cron, OneShot, next_fire, parse_when
from trouper.core.values import frozen
from trouper.foreign import from_outside

#: With the two kinds of time, so that whoever sets a trigger finds all that it may fire by in one place.
__all__ = [
    "TRIGGER_RESTART",
    "Act",
    "Cron",
    "Every",
    "Fired",
    "OnChange",
    "OneShot",
    "TriggerFailed",
    "When",
    "check_trigger",
    "run_trigger",
]

TRIGGER_RESTART = Restart(on="failure", limit=5, within_s=60.0, delay_s=0.5)
#: The wall clock may be set: it is looked at this often.
_LOOK_AT_CLOCK_S = 60.0
_WATCH_FOR_MS = 250


def _positive(instance: object, attribute: Any, value: Any) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise ConfigError(f"a trigger every {value!r} s makes no sense; give seconds, more than 0", seconds=value)


def _paths(value: str | os.PathLike[str] | tuple[str | os.PathLike[str], ...]) -> tuple[str, ...]:
    given: Any = (value,) if isinstance(value, str | os.PathLike) else value
    try:
        paths = tuple(os.fspath(path) for path in given)
    except TypeError:
        paths = (given,)
    if not paths:
        raise ConfigError("a trigger on changes of no path never fires; name a file or a directory")
    if not all(isinstance(path, str) for path in paths):
        raise ConfigError(f"a trigger on changes of {value!r} makes no sense; name files or directories")
    return paths


#: (paths) -> sets of (what happened, path). By default `watchfiles.awatch`.
Watch: TypeAlias = Callable[..., AsyncIterator[set[tuple[Any, str]]]]


@frozen
class Every:
    """Every `seconds`. A function that takes longer than that is not called more often to make up for it."""

    seconds: float = field(validator=_positive)


@attrs.frozen  # By its own name: type checkers know of this one that a single path is converted.
class OnChange:
    """When a file below one of `paths` is added, modified or deleted; changes that come together are told together."""

    paths: tuple[str, ...] = field(converter=_paths)
    watch: Watch | None = None


When: TypeAlias = Every | OnChange | Cron | OneShot


@frozen
class Fired:
    trigger: str
    #: Wall time, seconds since the epoch.
    at: float
    #: For `OnChange`: what happened ("added", "modified", "deleted"), and to which path.
    changes: tuple[tuple[str, str], ...] = ()


#: Async, or a plain function where nothing is waited for.
Act: TypeAlias = Callable[[Fired], object]


class TriggerFailed(UsageError):
    """A trigger's function raised what is meant to end a program or a task: `SystemExit`, say. It ends the trigger."""


def check_trigger(when: object, act: object, now: float) -> None:
    """What would only show when it fires is told here, to whoever made the mistake."""
    if not callable(act):
        raise ConfigError(f"a trigger calls a function, and {act!r} is none; give a function of one `Fired`")
    if isasyncgenfunction(act) or isgeneratorfunction(act):
        raise ConfigError(f"a trigger calls {act!r}, a generator, of which nothing would run; leave out its `yield`")
    match when:
        case OnChange(paths, None):
            _check_watching(paths)
        case Every() | OnChange():
            pass
        case Cron(expression, zone):
            parse_when(now=now, cron=expression, zone=zone)
        case OneShot(at):
            if not at > now:
                raise ConfigError(f"a trigger at {at!r} is over before it begins; give a time to come", at=at)
        case _:
            raise ConfigError(
                f"a trigger cannot fire by {when!r}; give Every(...), OnChange(...), Cron(...) or OneShot(...)"
            )


def _check_watching(paths: tuple[str, ...]) -> None:
    """What the watcher would stumble over. The log, which has no text of an error, would not name it."""
    if find_spec("watchfiles") is None:
        raise ConfigError(
            "the `watchfiles` package is not installed; `pip install 'trouper[watch]'` to trigger on file changes"
        )
    for path in paths:
        if not os.path.exists(path):
            raise ConfigError(
                f"there is no {path!r} to watch; make it first, or watch the directory that it will be in"
            )


async def run_trigger(inbox: Inbox[Any, Any], name: str, when: When, act: Act, now: Callable[[], float]) -> None:
    """The actor. Ends when it is asked to, and with the one fire of a `OneShot`."""
    async with trio.open_nursery() as nursery:

        async def fire() -> None:
            try:
                match when:
                    case Every(seconds):
                        await _every(seconds, name, act, now)
                    case OnChange():
                        await _on_change(when, name, act, now)
                    case Cron() | OneShot():
                        await _on_time(when, name, act, now)
            except Exception:
                raise
            except BaseException as raised:
                if (outside := from_outside(raised)) is not None:
                    raise outside from None
                # As any other crash of an actor: left as it is, it would end the program.
                raise TriggerFailed(f"trigger {name!r} raised {type(raised).__name__}", trigger=name) from raised
            nursery.cancel_scope.cancel()

        nursery.start_soon(fire)
        async for _ in inbox:
            pass
        nursery.cancel_scope.cancel()


async def _call(act: Act, fired: Fired) -> None:
    answer = act(fired)
    if isawaitable(answer):
        await answer


async def _every(seconds: float, name: str, act: Act, now: Callable[[], float]) -> None:
    due = trio.current_time() + seconds
    while True:
        await trio.sleep_until(due)
        await _call(act, Fired(name, now()))
        missed = max(0, int((trio.current_time() - due) // seconds))
        due += seconds * (missed + 1)


async def _on_time(when: Cron | OneShot, name: str, act: Act, now: Callable[[], float]) -> None:
    after = now()
    while (due := next_fire(when, after)) is not None:
        while (left := due - now()) > 0:  # noqa: ASYNC110 - there is no event for a clock that is set
            await trio.sleep(min(left, _LOOK_AT_CLOCK_S))
        after = max(due, now())
        await _call(act, Fired(name, after))


async def _on_change(when: OnChange, name: str, act: Act, now: Callable[[], float]) -> None:
    watch = when.watch
    if watch is None:
        from watchfiles import awatch

        # It looks up this often whether it is still wanted; its own default would hold up a shutdown for 5 s.
        watch = functools.partial(awatch, rust_timeout=_WATCH_FOR_MS)
    async for changes in watch(*when.paths):
        told = sorted((getattr(kind, "name", str(kind)), path) for kind, path in changes)
        await _call(act, Fired(name, now(), tuple(told)))
