"""`trouper.toml`: one file in a root says how its agent is made. The environment and the command line go before it.

model = "gemini:gemini-3-flash"
system = "You answer in one sentence."
tools = ["default", "run_command", "my_tools.py"]
durability = "fsync"

[budget]                 # the fields of trouper.Budget
tokens = 200_000

[limits]                 # the fields of trouper.Limits
max_steps = 12

[policy]                 # tools by name, or "*"
ask = ["run_command"]
allow = ["*"]
"""

from __future__ import annotations

import os
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs import field, frozen

from trouper._errors import ConfigError
from trouper.core.settings import Budget, Limits
from trouper.tools.policy import Rule

FILE_NAME = "trouper.toml"
MODEL_VARIABLE = "TROUPER_MODEL"
FILE_BYTES_MAX = 1_000_000
DEFAULT_TOOLS = ("default", "remember", "recall", "forget", "list_memories")
_DURABILITIES = ("fsync", "write")
_EFFECTS = ("allow", "deny", "ask")
_KINDS: Mapping[type[Any], str] = {str: "text", list: "a list", dict: "a table"}


@frozen
class Configuration:
    """What a root's file says, checked."""

    path: Path
    found: bool = False
    model: str | None = None
    system: str | None = None
    tools: tuple[str, ...] = DEFAULT_TOOLS
    durability: typing.Literal["fsync", "write"] = "fsync"
    budget: Budget = field(factory=Budget)
    limits: Limits = field(factory=Limits)
    policies: tuple[Rule, ...] = ()

    def model_name(self, asked: str | None) -> str:
        """The command line goes before the environment, that before the file; without any, the simulated model serves."""
        return asked or os.environ.get(MODEL_VARIABLE) or self.model or "simulated"


def read_configuration(root: Path) -> Configuration:
    """The configuration of a root. No file is no mistake; a wrong one is, and the error says where."""
    path = root / FILE_NAME
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except (FileNotFoundError, NotADirectoryError):
        return Configuration(path)
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error.strerror}; make it readable, or remove it") from None
    try:
        if len(data) > FILE_BYTES_MAX:
            raise ValueError(f"larger than {FILE_BYTES_MAX} bytes")
        values = tomllib.loads(data.decode())
    except ValueError as error:
        raise ConfigError(f"{str(path)!r} is not TOML: {error}; correct it, or remove it") from None
    return _checked(path, values)


def _checked(path: Path, values: Mapping[str, Any]) -> Configuration:
    taken: dict[str, Any] = {"path": path, "found": True}
    for name, value in values.items():
        match name:
            case "model" | "system":
                taken[name] = _of(path, name, value, str)
            case "durability":
                if value not in _DURABILITIES:
                    raise _wrong(path, name, f"is {value!r}; use one of {', '.join(map(repr, _DURABILITIES))}")
                taken[name] = value
            case "tools":
                taken[name] = tuple(_of(path, "tools", item, str) for item in _of(path, name, value, list))
            case "budget":
                taken[name] = _group(path, name, value, Budget)
            case "limits":
                taken[name] = _group(path, name, value, Limits)
            case "policy":
                taken["policies"] = _policies(path, value)
            case _:
                known = "model, system, tools, durability, budget, limits, policy"
                raise _wrong(path, name, f"is no setting; there is: {known}")
    return Configuration(**taken)


def _group(path: Path, name: str, value: Any, cls: Any) -> Any:
    """A table as one of the option groups: unknown names and wrong types are mistakes."""
    table = _of(path, name, value, dict)
    hints = typing.get_type_hints(cls)
    given: dict[str, Any] = {}
    for key, item in table.items():
        where = f"{name}.{key}"
        if key not in hints:
            raise _wrong(path, where, f"is no setting; there is: {', '.join(hints)}")
        inner = hints[key]
        if attrs.has(inner):
            given[key] = _group(path, where, item, inner)
            continue
        if not _fits(item, inner):
            raise _wrong(path, where, f"is {item!r}; it has to be {_shown(inner)}")
        given[key] = (
            float(item)
            if isinstance(item, int) and not isinstance(item, bool) and _takes(inner, float) and not _takes(inner, int)
            else item
        )
    return cls(**given)


def _fits(value: Any, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in typing.get_args(hint))
    if origin is typing.Literal:
        return value in typing.get_args(hint)
    if isinstance(value, bool) or hint is bool:
        return hint is bool and isinstance(value, bool)
    if hint is float:
        return isinstance(value, int | float) and value >= 0
    if hint is int:
        return isinstance(value, int) and value >= 0
    return isinstance(value, hint) if isinstance(hint, type) else False


def _takes(hint: Any, kind: type) -> bool:
    return hint is kind or kind in typing.get_args(hint)


def _shown(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    parts = typing.get_args(hint) or (hint,)
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(repr(part) for part in parts)
    return " or ".join(names.get(part, str(part)) for part in parts if part is not type(None))


def _policies(path: Path, value: Any) -> tuple[Rule, ...]:
    rules: list[Rule] = []
    for effect, tools in _of(path, "policy", value, dict).items():
        if effect not in _EFFECTS:
            raise _wrong(path, f"policy.{effect}", f"is no effect; there is: {', '.join(_EFFECTS)}")
        rules += [
            Rule(_of(path, f"policy.{effect}", tool, str), effect)
            for tool in _of(path, f"policy.{effect}", tools, list)
        ]
    return tuple(rules)


def _of(path: Path, name: str, value: Any, kind: type[Any]) -> Any:
    if not isinstance(value, kind):
        shown = _KINDS[kind]
        raise _wrong(path, name, f"is {value!r}; it has to be {shown}")
    return value


def _wrong(path: Path, name: str, problem: str) -> ConfigError:
    return ConfigError(f"{str(path)!r}: {name} {problem}", file=str(path), setting=name)
