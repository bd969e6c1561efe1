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
ask = ["run_command", "deploy"]
allow = ["*"]
absent = ["deploy"]      # may be missing; a rule for any other tool that is not there is a mistake
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
from attrs import field, frozen

from trouper._errors import ConfigError, UsageError
from trouper.cli.choices import is_file, model_named, tools_named
from trouper.cli.endings import SHORTAGES
from trouper.cli.ownership import check_code, check_file
from trouper.core.settings import Budget, Limits
from trouper.models.protocol import Model
from trouper.tools.contract import Tool
from trouper.tools.equipping import equipped, rules_for_nothing
from trouper.tools.policy import Rule

FILE_NAME = "trouper.toml"
MODEL_VARIABLE = "TROUPER_MODEL"
FILE_BYTES_MAX = 1_000_000
DEFAULT_TOOLS = ("default", "remember", "recall", "forget", "list_memories")
_DURABILITIES = ("fsync", "write")
_EFFECTS = ("allow", "deny", "ask")
_LIKE_A_KEY = re.compile("key|token|secret|password", re.IGNORECASE)
_NO_FILES = {stat.S_IFIFO: "a pipe", stat.S_IFDIR: "a directory", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
#: What begins and ends a statement of TOML, and what only looks like it: comments, texts.
_PIECES = re.compile(
    "#[^\n]*"
    r'|"""(?:[^\\"]|\\.|"(?!""))*"{3,5}'
    "|'''(?:[^']|'(?!''))*'{3,5}"
    r'|"(?:[^\\"\n]|\\.)*"'
    "|'[^'\n]*'"
    r"|[\[\]{}\n]",
    re.DOTALL,
)
_KINDS: Mapping[type[Any], str] = {str: "text", list: "a list", dict: "a table"}


@frozen
class Source:
    """The file that settings are from: what is wrong is said with its place."""

    path: Path
    text: str = field(default="", repr=False)

    def place(self, setting: str) -> str:
        """The file, and the line where the setting stands."""
        line = self._line(tuple(setting.split(".")))
        return repr(str(self.path)) + (f", line {line}" if line is not None else "")

    def wrong(self, setting: str, problem: str) -> ConfigError:
        message = _without_keys(f"{self.place(setting)}: {setting} {problem}")
        return ConfigError(message, file=str(self.path), setting=setting)

    def _line(self, keys: tuple[str, ...]) -> int | None:
        """The parser tells no lines: the statement that brings the setting in is looked for, each by itself."""
        # What is still to be found in the table that the statements belong to; none of them can, where it is another.
        wanted: tuple[str, ...] | None = keys
        for line, statement in _statements(self.text):
            is_header = statement.lstrip(" \t").startswith("[")
            if wanted is None and not is_header:
                continue
            rest, value = _followed(keys if is_header or wanted is None else wanted, tomllib.loads(statement))
            if not rest:
                return line
            if is_header:
                wanted = rest if value == {} else None
        return None


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Each with the line that it begins on: a line, or several where a value goes on."""
    line, begin, depth = 1, 0, 0
    for piece in _PIECES.finditer(text + "\n"):
        match piece[0]:
            case "[" | "{":
                depth += 1
            case "]" | "}":
                depth -= 1
            case "\n" if not depth:
                statement = text[begin : piece.end()]
                yield line, statement
                line, begin = line + statement.count("\n"), piece.end()


def _followed(keys: tuple[str, ...], value: Any) -> tuple[tuple[str, ...], Any]:
    """As far as the keys lead from here: those that are left, and the value that they are left at."""
    while keys and isinstance(value, dict) and keys[0] in value:
        keys, value = keys[1:], value[keys[0]]
    return keys, value


@contextmanager
def blaming(place: str | None, *, wholly: bool = False) -> Iterator[None]:
    """A name that makes no sense is a mistake of the place that it was written at; None: of the command line, where it stays what it is.

    `wholly`: so is what the name leads to; else that is the environment's, as a key is that is missing.
    """
    try:
        yield
    except UsageError as error:
        if place is None or (isinstance(error, ConfigError) and not wholly):
            raise
        raise ConfigError(_without_keys(f"{place}: {error.message}"), **error.facts) from None


def _without_keys(message: str) -> str:
    """A key may have been written where a setting stands; a message goes to terminals, and into the logs of those who build and test."""
    from trouper.redaction import Redactor, keys_in

    return Redactor(keys_in()).text(message)


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
    #: Tools that may have rules without being there.
    absent: tuple[str, ...] = ()
    source: Source = field(default=attrs.Factory(lambda self: Source(self.path), takes_self=True), repr=False, eq=False)

    def model_name(self, asked: str | None) -> str:
        """The command line goes before the environment, that before the file; without any, the simulated model serves."""
        if asked is not None:
            return asked  # Also an empty one, of a variable that a script has not set: nobody wants to be served by another model for that.
        return os.environ.get(MODEL_VARIABLE) or (self.model if self.model is not None else "simulated")

    def model_made(self, asked: str | None = None, *, delay_s: float = 0.0) -> Model:
        from_file = not os.environ.get(MODEL_VARIABLE)
        with blaming(None if asked is not None else self.source.place("model") if from_file else MODEL_VARIABLE):
            return model_named(self.model_name(asked), delay_s=delay_s)

    def tools_made(self, asked: Sequence[str] | None = None) -> list[Tool]:
        with blaming(self.source.place("tools") if asked is None else None, wholly=True):
            return tools_named(self.tools, self.path.parent) if asked is None else tools_named(asked)

    def policies_for(self, tools: Sequence[Tool]) -> tuple[Rule, ...]:
        """The rules, of which each is for a tool that there is: one that guards nothing was meant to guard something."""
        names = equipped(tools).names if self.policies else ()
        all_known = True
        if rules_for_nothing(self._expected_to_apply(), names):
            # The command line may have named others than the file, whose rules are for its own.
            try:
                names = (*names, *equipped(self.tools_made()).names)
            except ConfigError:  # They are not to run, so that they need not be here.
                all_known = False
        for rule, near in rules_for_nothing(self._expected_to_apply(), names):
            if not (near or all_known):
                continue  # Perhaps for one of those.
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "correct the name."
            problem = f"has a rule for {rule.tool!r}, but there is no such tool; {hint}"
            raise self.source.wrong(f"policy.{rule.effect}", f"{problem} If it may be missing, add it to policy.absent")
        return self.policies

    def _expected_to_apply(self) -> list[Rule]:
        return [rule for rule in self.policies if rule.tool not in self.absent]


def read_configuration(root: Path) -> Configuration:
    """The configuration of a root. No file is no mistake; a wrong one is, and the error says where."""
    path = root / FILE_NAME
    try:
        directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in SHORTAGES:
            raise
        return Configuration(path)  # Then the root itself is missing or wrong, and whoever opens it says how.
    try:
        configuration = _configured(path, _read(directory, path))
        check_code((name for name in configuration.tools if is_file(name)), directory, root)
        return configuration
    except FileNotFoundError:
        return Configuration(path)
    except OSError as error:
        if error.errno in SHORTAGES:
            raise
        raise ConfigError(f"{str(path)!r} cannot be read: {error.strerror}; make it readable, or remove it") from None
    finally:
        os.close(directory)


def _read(directory: int, path: Path) -> bytes:
    # Without waiting for somebody who writes into a pipe that happens to have this name, and without taking a terminal for ours.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(FILE_NAME, flags, dir_fd=directory)
    try:
        kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
        if kind != stat.S_IFREG:
            raise ConfigError(
                f"{str(path)!r} is {_NO_FILES.get(kind, 'something else')}, not a file; remove it, or name it otherwise"
            )
        check_file(descriptor, directory, path)
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(FILE_BYTES_MAX + 1)
    finally:
        os.close(descriptor)


def _configured(path: Path, data: bytes) -> Configuration:
    try:
        return _checked(*_parsed(path, data))
    except RecursionError:  # In the parser, or behind it, where a mistake is told with its place.
        raise ConfigError(f"{str(path)!r} is nested too deep; make it flatter, or remove it") from None


def _parsed(path: Path, data: bytes) -> tuple[Source, dict[str, Any]]:
    try:
        if len(data) > FILE_BYTES_MAX:
            raise ValueError(f"larger than {FILE_BYTES_MAX} bytes")
        text = data.decode("utf-8-sig")  # Some editors begin every file with a mark.
        return Source(path, text), tomllib.loads(text)
    except ValueError as error:
        raise ConfigError(f"{str(path)!r} is not TOML: {error}; correct it, or remove it") from None


def _checked(source: Source, values: Mapping[str, Any]) -> Configuration:
    taken: dict[str, Any] = {"path": source.path, "found": True, "source": source}
    for name, value in values.items():
        match name:
            case "model" | "system":
                taken[name] = _of(source, name, value, str)
            case "durability":
                if value not in _DURABILITIES:
                    raise source.wrong(name, f"is {value!r}; use one of {', '.join(map(repr, _DURABILITIES))}")
                taken[name] = value
            case "tools":
                taken[name] = tuple(_of(source, "tools", item, str) for item in _of(source, name, value, list))
            case "budget":
                taken[name] = _group(source, name, value, Budget)
            case "limits":
                taken[name] = _group(source, name, value, Limits)
            case "policy":
                taken["policies"], taken["absent"] = _policies(source, value)
            case _:
                known = "model, system, tools, durability, budget, limits, policy"
                keys = "; keys come from the environment" if _LIKE_A_KEY.search(name) else ""
                raise source.wrong(name, f"is no setting; there is: {known}{keys}")
    return Configuration(**taken)


def _group(source: Source, name: str, value: Any, cls: Any) -> Any:
    """A table as one of the option groups: unknown names and wrong types are mistakes."""
    table = _of(source, name, value, dict)
    hints = typing.get_type_hints(cls)
    given: dict[str, Any] = {}
    for key, item in table.items():
        where = f"{name}.{key}"
        if key not in hints:
            raise source.wrong(where, f"is no setting; there is: {', '.join(hints)}")
        inner = hints[key]
        if attrs.has(inner):
            given[key] = _group(source, where, item, inner)
        elif not _fits(item, inner):
            raise source.wrong(where, f"is {item!r}; it has to be {_shown(inner)}")
        else:
            given[key] = item
        try:
            cls(**{key: given[key]})
        except ConfigError as error:  # Of the right type, and yet no sensible value.
            raise ConfigError(f"{source.place(where)}: {error.message}", file=str(source.path), setting=where) from None
        # Only now: a whole number may be too large to be another.
        if isinstance(item, int) and not isinstance(item, bool) and _takes(inner, float) and not _takes(inner, int):
            given[key] = float(item)
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
    names = {int: "a whole number from 0 up", float: "a number from 0 up", bool: "true or false", str: "text"}
    parts = typing.get_args(hint) or (hint,)
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(repr(part) for part in parts)
    return " or ".join(names.get(part, str(part)) for part in parts if part is not type(None))


def _policies(source: Source, value: Any) -> tuple[tuple[Rule, ...], tuple[str, ...]]:
    """The rules, and the tools that may be missing."""
    rules: list[Rule] = []
    absent: tuple[str, ...] = ()
    table = _of(source, "policy", value, dict)
    for key, tools in table.items():
        where = f"policy.{key}"
        if key not in (*_EFFECTS, "absent"):
            raise source.wrong(
                where, f"is no effect; there is: {', '.join(_EFFECTS)}; and absent, for tools that may be missing"
            )
        names = [_of(source, where, tool, str) for tool in _of(source, where, tools, list)]
        if key == "absent":
            absent = tuple(names)
            continue
        try:
            rules += [Rule(name, key) for name in names]
        except ConfigError as error:
            message = _without_keys(f"{source.place(where)}: {error.message}")
            raise ConfigError(message, file=str(source.path), setting=where) from None
    # A list that matches nothing denies (T4), also if it is empty; to a runtime, no rules at all are no list.
    found = (
        tuple(rules)
        if rules or not table.keys() & set(_EFFECTS)
        else (Rule("*", "deny", reason="No rule allows this call."),)
    )
    return found, absent


def _of(source: Source, name: str, value: Any, kind: type[Any]) -> Any:
    if not isinstance(value, kind):
        raise source.wrong(name, f"is {value!r}; it has to be {_KINDS[kind]}")
    return value
