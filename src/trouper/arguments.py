"""What `open_runtime` was given: checked in the caller's words, and with something for what was left out."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from trouper._errors import ConfigError
from trouper.actors.environment import EARLIEST_S, LATEST_S, Environment, within_calendar
from trouper.core.settings import Budget, Limits
from trouper.core.values import changed
from trouper.journal import Disk, Level
from trouper.models.protocol import Model, check_model
from trouper.services.places import Places
from trouper.tools.contract import Tool

T = TypeVar("T")


def check_arguments(root: object, model: object, tools: object, limits: object, budget: object) -> None:
    """A mistake in the call is told here, and not by a session later."""
    if root is not None and not isinstance(root, str | os.PathLike):
        raise ConfigError(f"root={root!r} is no directory; give its path, or leave it out for the default profile")
    if root is not None:
        _check_root(os.fspath(root))
    check_model(model)
    check_tools(tools)
    if not isinstance(limits, Limits):
        raise ConfigError(f"limits={limits!r} is no Limits; write limits=Limits(...)")
    check_budget(budget)


def all_of(kind: type[T], given: object, what: str) -> tuple[T, ...]:
    """What was given, each looked at. All of it at once: an iterator can be read only once, and rules that are lost on the way would forbid nothing."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError(f"{what}={given!r} is no list; write {what}=[{kind.__name__}(...)]")
    items = tuple(given)
    for item in items:
        if not isinstance(item, kind):
            raise ConfigError(f"{item!r} in {what} is no {kind.__name__}; write {what}=[{kind.__name__}(...)]")
    return items


def _check_root(name: object) -> None:
    if not name:
        raise ConfigError("the root is an empty name; give a directory, or leave it out for the default profile")
    if not isinstance(name, str):
        raise ConfigError(f"root={name!r} is not text; give the path of a directory as text")
    try:
        if b"\0" not in os.fsencode(name):
            return
    except UnicodeEncodeError:
        pass
    raise ConfigError(f"root={name!r} is a name that no directory can have; give another one")


def environment_of(environment: Environment | None) -> Environment:
    if environment is None:
        return Environment()
    if not isinstance(environment, Environment):
        raise ConfigError(f"environment={environment!r} is no Environment; leave it out, unless you test")
    at: object = environment.now()
    if isinstance(at, bool) or not isinstance(at, int | float) or not EARLIEST_S <= at <= LATEST_S:
        raise ConfigError(f"the clock of the environment says {at!r}, which is no date; give seconds since the epoch")
    return changed(environment, now=within_calendar(environment.now))


def check_disk(disk: object) -> None:
    if disk is not None and (isinstance(disk, type) or not isinstance(disk, Disk)):
        raise ConfigError(
            f"disk={disk!r} is no disk; leave it out, unless you test: then give a CrashDisk() or MemoryDisk()"
        )


def check_tools(tools: object) -> None:
    if isinstance(tools, Tool | str) or not isinstance(tools, Iterable):
        raise ConfigError(f"tools={tools!r} is no list of tools; write tools=[...]")


def check_budget(budget: object) -> None:
    if not isinstance(budget, Budget):
        raise ConfigError(f"budget={budget!r} is no Budget; write budget=Budget(...)")


def root_path(root: str | os.PathLike[str] | None, durability: Level) -> str:
    if root is not None:
        return os.path.abspath(os.fspath(root))
    if durability == "memory":
        return "/memory"
    from trouper.stores.profiles import default_root

    return str(default_root())


def places_for(
    root: str | os.PathLike[str] | None, path: str, durability: Level, disk: Disk | None, environment: Environment
) -> Places:
    """Beside the journal; a journal on a disk that is not the system's has nothing beside it, unless a directory is named."""
    if environment.directory is not None:
        return Places(environment.directory, keyring=environment.keyring)
    if disk is not None:
        return Places(None)
    if durability == "memory" and root is None:
        return Places(None, temporary=True, keyring=environment.keyring)
    return Places(Path(path), keyring=environment.keyring)


def default_model() -> Model:
    from trouper.models.simulated import Simulated

    return Simulated()
