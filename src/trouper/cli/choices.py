"""Models and tools by name, as the command line and `trouper.toml` give them."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from trouper._errors import ConfigError, UsageError
from trouper.models.protocol import Model
from trouper.tools.contract import Tool
from trouper.tools.guards.names import from_disk, on_disk


def model_named(name: str, *, delay_s: float = 0.0) -> Model:
    """`gemini:MODEL`, `openai:MODEL`, `anthropic:MODEL`, or `simulated`, which needs no key. `delay_s`: between the simulated model's words."""
    provider, _, model = name.partition(":")
    match provider:
        case "simulated" if name in (provider, "simulated:plain"):  # As it is called where it is shown.
            from trouper.models.simulated import Simulated

            return Simulated(delay_s=delay_s)
        case "gemini":
            from trouper.models.gemini import Gemini

            return Gemini.from_env(model) if model else Gemini.from_env()
        case "openai":
            from trouper.models.openai_compatible import OpenAICompatible

            return OpenAICompatible.from_env(_required(provider, model))
        case "anthropic":
            from trouper.models.anthropic import Anthropic

            return Anthropic.from_env(_required(provider, model))
        case _:
            raise UsageError(
                f"there is no model {name!r}; write gemini:NAME, openai:NAME, anthropic:NAME, or simulated", model=name
            )


def _required(provider: str, model: str) -> str:
    if not model:
        raise UsageError(f"which model of {provider}? write {provider}:NAME", provider=provider)
    return model


def tools_named(names: Iterable[str], near: Path | None = None) -> list[Tool]:
    """`default` (the default set), a built-in tool by name, a Python file or a module: every tool that is defined there.

    Files are looked for from `near`, the root whose configuration names them; without one, from where we are.
    """
    found: dict[str, Tool] = {}
    for name in names:
        for tool in _tools(name, near):
            if found.setdefault(tool.name, tool) is not tool:
                raise ConfigError(
                    f"two tools are named {tool.name!r}, the second from {name!r}; leave one out", tool=tool.name
                )
    return list(found.values())


def is_file(name: str) -> bool:
    """Whether a name of tools is that of a Python file."""
    return name.endswith(".py")


def _tools(name: str, near: Path | None) -> list[Tool]:
    from trouper.tools.builtin import BUILTIN, default_tools

    if name == "default":
        return list(default_tools())
    if name in BUILTIN:
        return [BUILTIN[name]]
    if is_file(name):
        return _defined_in(_from_file(name, near), name)
    if _may_be_module(name):
        return _defined_in(_imported(name), name)
    import difflib

    close = difflib.get_close_matches(name, BUILTIN, 1)
    hint = f"did you mean {close[0]!r}?" if close else "give `default`, a built-in tool, a Python file or a module"
    raise UsageError(f"there are no tools {name!r}; {hint}", tools=name)


def _may_be_module(name: str) -> bool:
    """Whether a module is meant. What has a dot in it can be nothing else, so that one which is not there is told with what it lacks."""
    if not all(name.split(".")):
        return False
    try:
        return "." in name or importlib.util.find_spec(name) is not None
    except ValueError:  # `__main__`, for one, is never found by its name.
        return False


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"the tools {name!r} cannot be imported: {error}; check the name", tools=name) from None
    except (Exception, SystemExit) as error:
        raise _broken(repr(name), error) from error


def _broken(place: str, error: BaseException) -> ConfigError:
    """The user's code may raise anything; a script that ends the program is no file of tools."""
    about = f": {error}" if str(error) else ""
    return ConfigError(f"the tools in {place} cannot be loaded: {type(error).__name__}{about}; correct the file")


def _from_file(name: str, near: Path | None) -> ModuleType:
    file = on_disk(name)
    # Whoever starts a root somewhere else means its tools, and not what happens to have their name there.
    path = Path(file) if near is None else near / file
    if not path.is_file():
        raise UsageError(
            f"there is no file {from_disk(file)!r} with tools; check the path (of several, give each its own --tools)",
            tools=name,
        )
    module_name = f"trouper_tools_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Annotations written as text are looked up by the module's name.
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise _broken(repr(from_disk(str(path))), error) from error
    return module


def _defined_in(module: ModuleType, name: str) -> list[Tool]:
    tools = [value for _, value in inspect.getmembers(module, lambda value: isinstance(value, Tool))]
    if not tools:
        raise ConfigError(f"{name!r} defines no tools; decorate some functions with @trouper.tool", tools=name)
    # The order in which they were defined, so that the model is told of them in the order of the file.
    order = {id(value): position for position, value in enumerate(vars(module).values())}
    return sorted({tool.name: tool for tool in tools}.values(), key=lambda tool: order.get(id(tool), 0))
