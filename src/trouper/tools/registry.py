"""Tools by name (T6): `Toolset`s are values to combine, filter and prefix; a `Registry` is what a session works with."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, TypeAlias, overload

from attrs import field, frozen

from trouper._errors import ToolDefinitionError
from trouper.core.messages import ToolSpec
from trouper.tools.complaint import clipped
from trouper.tools.contract import Tool
from trouper.tools.deferral import DEFER_OVER, TOOL_SEARCH, advertised, is_deferring, search_tool
from trouper.tools.define import tool as define_tool

_NAMES_SHOWN_MAX = 20


def _without_duplicates(tools: Iterable[Tool], where: str) -> dict[str, Tool]:
    found: dict[str, Tool] = {}
    for each in tools:
        if each.name in found:
            raise ToolDefinitionError(
                f"two tools of {where} are named {each.name!r}; rename one with .with_(name=...), or prefix its toolset",
                tool=each.name,
            )
        found[each.name] = each
    return found


def _gathered(sources: Iterable[ToolSource]) -> tuple[Tool, ...]:
    if isinstance(sources, Tool | str) or not isinstance(sources, Iterable):
        raise ToolDefinitionError(f"{sources!r} is no list of tools; write Toolset('name', [...])", tool=sources)
    return tuple(_flat(sources))


@frozen
class Toolset:
    """Some tools under a name. Every method gives a new one."""

    name: str
    tools: tuple[Tool, ...] = field(default=(), converter=_gathered)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ToolDefinitionError(f"a toolset is named {self.name!r}; write Toolset('name', [...])", tool=self.name)
        _without_duplicates(self.tools, f"toolset {self.name!r}")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its tools, in order."""
        return tuple(each.name for each in self.tools)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.tools)

    def __len__(self) -> int:
        return len(self.tools)

    def __add__(self, other: Toolset) -> Toolset:
        return Toolset(f"{self.name}+{other.name}", (*self.tools, *other.tools))

    def filter(self, keep: Callable[[Tool], bool]) -> Toolset:
        """The tools that `keep` says yes to."""
        return Toolset(self.name, tuple(each for each in self.tools if keep(each)))

    def only(self, *names: str) -> Toolset:
        """The tools named, and no others. A name that is not there is an error: it is a typing mistake, and would silently take a tool away."""
        self._check(names)
        return self.filter(lambda each: each.name in names)

    def without(self, *names: str) -> Toolset:
        """All but the tools named; a name that is not there is an error."""
        self._check(names)
        return self.filter(lambda each: each.name not in names)

    def prefix(self, prefix: str) -> Toolset:
        """Every name becomes `prefix` + `_` + name, so that two servers may have tools of the same name."""
        return Toolset(self.name, tuple(each.with_(name=f"{prefix}_{each.name}") for each in self.tools))

    def with_(self, **changes: Any) -> Toolset:
        """Every tool with some fields changed: `toolset.with_(policy="requires_approval")`."""
        return Toolset(self.name, tuple(each.with_(**changes) for each in self.tools))

    def _check(self, names: Iterable[str]) -> None:
        if missing := [name for name in names if name not in self.names]:
            raise ToolDefinitionError(
                f"toolset {self.name!r} has no tool {missing[0]!r}; it has {clipped(', '.join(self.names), 400)}",
                tool=missing[0],
                toolset=self.name,
            )


#: What a registry can be built from: tools, toolsets, and plain functions, which are made into tools.
ToolSource: TypeAlias = Tool | Toolset | Callable[..., Any]


def _flat(sources: Iterable[ToolSource]) -> Iterator[Tool]:
    for source in sources:
        if isinstance(source, Tool):
            yield source
        elif isinstance(source, Toolset):
            yield from source
        elif callable(source):
            yield define_tool(source)
        else:
            raise ToolDefinitionError(f"{source!r} is no tool; give functions, Tools or Toolsets", tool=source)


class Registry:
    """The tools that a session has, in the order in which they were added.

    registry = Registry([order_status, files_toolset.without("delete_file")])

    @registry.tool(readonly=True)
    async def stock(item: str) -> int: ...
    """

    def __init__(
        self,
        sources: Iterable[ToolSource] = (),
        *,
        provides: Collection[str] | None = None,
        defer_over: int = DEFER_OVER,
    ) -> None:
        self._tools = _without_duplicates(_flat(sources), "the registry")
        self._defer_over = defer_over
        #: Built once per set of revealed tools: the specs of an unchanged registry are the same object, turn for turn.
        self._specs: dict[frozenset[str], tuple[ToolSpec, ...]] = {}
        if provides is not None:
            self.check_needs(provides)

    # Building.

    def add(self, *sources: ToolSource) -> Registry:
        """Adds tools; returns the registry, so that calls can be chained. A name that is taken is an error, and then nothing is added."""
        self._tools = _without_duplicates((*self._tools.values(), *_flat(sources)), "the registry")
        self._specs.clear()
        return self

    @overload
    def tool(self, function: Callable[..., Any], /) -> Tool: ...
    @overload
    def tool(self, /, **options: Any) -> Callable[[Callable[..., Any]], Tool]: ...
    def tool(
        self, function: Callable[..., Any] | None = None, /, **options: Any
    ) -> Tool | Callable[[Callable[..., Any]], Tool]:
        """As `@tool`, and adds the tool."""

        def define(function: Callable[..., Any]) -> Tool:
            made = define_tool(**options)(function)
            self.add(made)
            return made

        return define if function is None else define(function)

    def unregister(self, name: str) -> Tool | None:
        """Takes a tool out, and returns it; `None` if there was none."""
        self._specs.clear()
        return self._tools.pop(name, None)

    def check_needs(self, provided: Collection[str]) -> None:
        """Raises `ToolDefinitionError` if some tool needs a service that is not among `provided` (T7)."""
        unmet = [(each.name, need) for each in self._tools.values() for need in sorted(each.needs - set(provided))]
        if unmet:
            told = ", ".join(f"{name!r} needs {need!r}" for name, need in unmet[:_NAMES_SHOWN_MAX])
            raise ToolDefinitionError(
                f"the host does not offer what its tools need: {told}; have it offer this, or leave these tools out",
                tool=unmet[0][0],
                unmet=tuple(unmet),
            )

    # Reading.

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all tools, in order."""
        return tuple(self._tools)

    @property
    def deferring(self) -> bool:
        """Whether there are so many tools that deferrable ones are advertised as stubs (T8)."""
        return is_deferring(self._tools.values(), self._defer_over)

    def __len__(self) -> int:
        return len(self._tools)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def get(self, name: str) -> Tool | None:
        """The tool of this name, if there is one."""
        found = self._tools.get(name)
        if found is None and name == TOOL_SEARCH and self.deferring:
            return search_tool()
        return found

    def specs(self, revealed: frozenset[str] = frozenset()) -> tuple[ToolSpec, ...]:
        """What the model is offered. `revealed`: the deferred tools that a search has brought up in this session."""
        specs = self._specs.get(revealed)
        if specs is None:
            specs = self._specs[revealed] = advertised(self._tools.values(), revealed, self._defer_over)
        return specs

    def nearest(self, name: str, n: int = 3) -> list[str]:
        """The names most like `name`."""
        return difflib.get_close_matches(name[:64], self._tools, n=n, cutoff=0.5)

    def unknown(self, name: str) -> str:
        """What the model is told when it calls a tool that is not there (L20)."""
        text = f"There is no tool {clipped(name)!r}."
        if near := self.nearest(name):
            return f"{text} Did you mean {' or '.join(map(repr, near))}?"
        if not self._tools:
            return f"{text} There are no tools in this session."
        names = ", ".join(list(self._tools)[:_NAMES_SHOWN_MAX])
        return f"{text} The tools are: {names}{', ...' if len(self._tools) > _NAMES_SHOWN_MAX else ''}."

    def __repr__(self) -> str:
        return f"<Registry of {len(self._tools)}: {clipped(', '.join(self._tools), 200)}>"
