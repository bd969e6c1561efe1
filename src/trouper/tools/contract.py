"""What a tool is (T1, T3), apart from how it is written down: see `define` for `@tool`.

    tool.prepare(arguments)            what the model sent -> arguments that fit the schema, or InvalidArguments for the model to read
    await tool.run(arguments, context) -> ToolResult; raises ToolError or ConnectionRequired; anything else is internal (L20)

Between the two stand policy, approval, hooks and the journal; so `run` takes plain JSON, the very value that was journaled.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import attrs
from attrs import Factory, evolve, field

from trouper._errors import ToolDefinitionError
from trouper.core.messages import Json, ToolSpec
from trouper.core.values import frozen
from trouper.tools.arguments import KEPT_AS_TEXT, Parsed, guarded
from trouper.tools.complaint import complaint, listed, summarised
from trouper.tools.context import SERVICE_NAMES
from trouper.tools.errors import InvalidArguments
from trouper.tools.off_loop import off_loop
from trouper.tools.repair import SchemaRepair, has_path_field
from trouper.tools.results import ToolResult, as_result, is_large
from trouper.tools.validation import Compiled, compiled_parameters, errors_in, is_deep

if TYPE_CHECKING:
    from trouper.tools.context import ToolContext

#: auto: runs when called. requires_approval: someone is asked first. client_side: the host runs it, not we.
Policy: TypeAlias = Literal["auto", "requires_approval", "client_side"]
#: pure: no effect that anyone could notice. idempotent: a repeat does no harm. at_most_once: never started twice for one call (I4).
SideEffect: TypeAlias = Literal["pure", "idempotent", "at_most_once"]
Phase: TypeAlias = Literal["started", "waiting", "completed", "failed"]
#: (phase, arguments) -> one short line, or None for the default one.
Narrate: TypeAlias = Callable[[Phase, Mapping[str, Json]], str | None]
Invoke: TypeAlias = Callable[[dict[str, Json], "ToolContext"], Awaitable[object]]

_POLICIES = ("auto", "requires_approval", "client_side")
#: What every provider takes.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}\Z")


@frozen
class Hints:
    """What a tool says about itself. `None`: it does not say, and the cautious reading holds."""

    readonly: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None
    supports_background: bool | None = None
    long_running: bool | None = None
    #: Calls that share a class run in order (L8).
    concurrency_class: str | None = None
    requires_secrets: bool | None = None
    #: The full output is kept under the session's files even when it fits the model.
    persist_output: bool | None = None

    @property
    def side_effect(self) -> SideEffect:
        """What the hints say of a second run: nothing more (`pure`, `idempotent`), or that there may be none (`at_most_once`)."""
        if self.readonly:
            return "pure"
        return "idempotent" if self.idempotent else "at_most_once"


NO_HINTS = Hints()
_YES_OR_NO = tuple(name for name in attrs.fields_dict(cast(Any, Hints)) if name != "concurrency_class")


@frozen(frequent=True)
class Prepared:
    """Arguments that fit the schema: what history, events and the tool all see (L17)."""

    arguments: dict[str, Json]
    #: What was repaired on the way; empty if nothing was.
    notes: tuple[str, ...] = ()


def can_be_named(name: object) -> bool:
    """Whether a tool can have this name."""
    return isinstance(name, str) and _NAME.match(name) is not None


def _checked_name(tool: Tool, attribute: object, name: Any) -> None:
    if not can_be_named(name):
        shown = name if not isinstance(name, str) or len(name) <= 80 else name[:80] + "..."
        raise ToolDefinitionError(
            f"{shown!r} cannot name a tool; use 1-64 letters, digits, '_' or '-', not starting with a digit or '-'",
            tool=name,
        )


def _checked_policy(tool: Tool, attribute: object, policy: str) -> None:
    if policy not in _POLICIES:
        raise ToolDefinitionError(
            f"tool {tool.name!r} has the policy {policy!r}; use one of {', '.join(_POLICIES)}", tool=tool.name
        )


def _checked_seconds(tool: Tool, attribute: Any, seconds: Any) -> None:
    number = isinstance(seconds, float) or (type(seconds) is int and seconds < 2**63)
    if seconds is not None and not (number and seconds >= 0):
        raise ToolDefinitionError(
            f"tool {tool.name!r} has {attribute.name}={seconds!r}; give seconds, 0 or more", tool=tool.name
        )


def _never_is_zero(seconds: Any) -> Any:
    """Infinity cannot be recorded; and a call's time-out is."""
    return 0 if seconds == float("inf") else seconds


def _checked_description(tool: Tool, attribute: object, description: Any) -> None:
    if not isinstance(description, str):
        raise ToolDefinitionError(
            f"tool {tool.name!r} has description={description!r}; say in text what it does", tool=tool.name
        )


def _checked_hints(tool: Tool, attribute: object, hints: Hints) -> None:
    for name in _YES_OR_NO:
        said: object = getattr(hints, name)
        # Any text is true, "no" as well; and of a tool that says that it can be run twice, that is done.
        if not isinstance(said, bool | None):
            raise ToolDefinitionError(
                f"tool {tool.name!r} has {name}={said!r}; say True or False, or nothing", tool=tool.name
            )
    named: object = hints.concurrency_class
    if not isinstance(named, str | None):
        raise ToolDefinitionError(
            f"tool {tool.name!r} has concurrency_class={named!r}; give the class a name, as text",
            tool=tool.name,
        )


def _checked_parameters(tool: Tool, attribute: object, parameters: Mapping[str, Json]) -> None:
    if parameters.get("type") != "object":
        raise ToolDefinitionError(
            f"the parameters of tool {tool.name!r} must be a JSON Schema of type 'object'", tool=tool.name
        )


def _checked_needs(tool: Tool, attribute: object, needs: frozenset[str]) -> None:
    if strange := sorted(needs - set(SERVICE_NAMES)):
        raise ToolDefinitionError(
            f"tool {tool.name!r} needs {', '.join(map(repr, strange))}, which no host has; use some of {', '.join(SERVICE_NAMES)}",
            tool=tool.name,
        )


class _of_each_tool(property):
    """A property that the class itself does not have: `inspect.signature(Tool)` would take it for the function that the class stands for."""

    def __get__(self, tool: Any, owner: type | None = None) -> Any:
        if tool is None:
            raise AttributeError("only a tool has it, not the class")
        return super().__get__(tool, owner)


@attrs.frozen(eq=False, repr=False)
class Tool:
    """One tool. `@tool` makes it from a function; a toolset (an MCP server's, say) makes it from a schema and an `invoke` of its own."""

    name: str = field(validator=_checked_name)
    description: str = field(validator=_checked_description)
    #: JSON Schema of the arguments, an object.
    parameters: Mapping[str, Json] = field(validator=_checked_parameters)
    #: Runs the tool on arguments that fit the schema.
    invoke: Invoke
    display_name: str = field(
        default=Factory(lambda self: str(self.name).replace("_", " ").replace("-", " ").title(), takes_self=True)
    )
    hints: Hints = field(default=NO_HINTS, validator=_checked_hints)
    policy: Policy = field(default="auto", validator=_checked_policy)
    #: How long a turn waits before a background-capable call is let go (B1); `None`: as the session says.
    budget_s: float | None = field(default=None, validator=_checked_seconds)
    #: When the call is given up; `None`: as the session says; 0: never.
    timeout_s: float | None = field(default=None, validator=_checked_seconds, converter=_never_is_zero)
    #: The services that the tool cannot do without (T7).
    needs: frozenset[str] = field(default=frozenset(), validator=_checked_needs)
    #: Its schema may be left out until the model searches for it (T8).
    deferrable: bool = False
    narrate: Narrate | None = None
    #: A tag that hosts may filter by.
    capability: str | None = None
    #: How the tool runs in the background, if other than in the foreground.
    invoke_background: Invoke | None = None
    #: `invoke` once more, if it is known not to look at its context; what takes its place, in a copy of the tool, may well do so.
    contextless: Invoke | None = None
    #: The plain function that the tool was made from, for calling it in a unit test.
    function: Callable[..., Any] | None = None
    #: Whether `invoke` takes the digits of an integer past 64 bits, which are kept as text, for the integer. `@tool` sees to that.
    takes_digits: bool = False
    #: Builds the typed values of the arguments, where that can fail beyond what a schema checks: then it raises `InvalidArguments`.
    bind: Callable[[dict[str, Json]], Any] | None = None

    @cached_property
    def spec(self) -> ToolSpec:
        """The tool as the model sees it."""
        return ToolSpec(self.name, self.description, self.parameters)

    @property
    def side_effect(self) -> SideEffect:
        """What a second run would do: see `Hints.side_effect`."""
        return self.hints.side_effect

    @property
    def supports_background(self) -> bool:
        """Whether a call may go on in the background."""
        return bool(self.hints.supports_background)

    @property
    def concurrency_class(self) -> str | None:
        """Calls that share a class run in order (L8)."""
        return self.hints.concurrency_class

    @property
    def takes_context(self) -> bool:
        """Whether `invoke` may look at its context. If not, none has to be made for it."""
        return self.invoke is not self.contextless

    @cached_property
    def is_unnoticed(self) -> bool:
        """Whether nobody could tell that it ever ran, had it not been recorded: it says that it changes nothing, and reaches for nothing outside; and it has no way to us."""
        return self.hints.readonly is True and self.hints.open_world is False and not self.takes_context

    @cached_property
    def validator(self) -> Compiled:
        """The compiled schema. `ToolDefinitionError` if it is none."""
        return compiled_parameters(self.parameters, self.name)

    @cached_property
    def _repair(self) -> SchemaRepair:
        return SchemaRepair(self.parameters)

    @cached_property
    def _has_paths(self) -> bool:
        return has_path_field(self.parameters)

    @cached_property
    def _has_nested_alternatives(self) -> bool:
        """Whether alternatives may hold alternatives, to any depth."""
        text = str(self.parameters)
        return "'$ref'" in text and ("'anyOf'" in text or "'oneOf'" in text)

    def prepare(self, arguments: object) -> Prepared:
        """The arguments, repaired if need be (L18). Raises `InvalidArguments`, whose message is for the model (L19)."""
        return self.fit(guarded(arguments))

    def fit(self, parsed: Parsed) -> Prepared:
        """The same, of arguments that are safe to keep already: see `parse_arguments`."""
        value, notes = parsed.value, parsed.notes
        if type(value) is not dict or not self.validator.is_valid(value):
            value, notes = self._repaired(value, notes)
        if self._has_paths and any(
            type(each) is list or type(each) is dict or (type(each) is str and each[:1] == "[")
            for each in value.values()
        ):
            # The one repair of a value that fits: see `repair`.
            linkless, more = self._repair.unlink(value)
            if more and self.validator.is_valid(linkless):
                value, notes = linkless, notes + more
        if self.bind is not None:
            self.bind(value)
        return Prepared(value, notes)

    def _repaired(self, value: Json, notes: tuple[str, ...]) -> tuple[dict[str, Json], tuple[str, ...]]:
        given = value
        if value is None:
            value, notes = {}, (*notes, "took null for no arguments")
        mended, more = self._repair.mend(value)
        if type(mended) is dict and self.validator.is_valid(mended):
            kept = guarded(mended)
            if self.takes_digits or not kept.notes:
                return kept.value, notes + more + tuple(note for note in kept.notes if note not in notes)
            raise InvalidArguments(
                f"tool {self.name!r} takes no integers past 64 bits; send smaller ones, or, where a number need not be whole, write 1e20"
            )
        if type(given) is not dict:
            raise listed(self.name, [("arguments", f"expected object, got {summarised(given)}")])
        # A long integer that was sent as one is told as one.
        shown = mended if KEPT_AS_TEXT in notes else given
        if self._has_nested_alternatives and is_deep(shown):
            wrong = self._repair.misfits(shown) or ["arguments"]
            raise listed(self.name, [(name, "does not fit, somewhere inside; send it simpler") for name in wrong])
        raise complaint(self.name, errors_in(shown, self.validator), self.parameters.get("properties", {}))

    async def run(self, arguments: dict[str, Json], context: ToolContext) -> ToolResult:
        """Runs the tool on prepared arguments."""
        returned = await self.invoke(arguments, context)
        if is_large(returned):
            return await off_loop(lambda: as_result(returned, self.name, large=True))
        return as_result(returned, self.name, large=False)

    async def run_background(self, arguments: dict[str, Json], context: ToolContext) -> ToolResult:
        """Runs the tool as a background run; the same as `run` unless it has an entry point of its own for this."""
        returned = await (self.invoke_background or self.invoke)(arguments, context)
        if is_large(returned):
            return await off_loop(lambda: as_result(returned, self.name, large=True))
        return as_result(returned, self.name, large=False)

    def with_(self, **changes: Any) -> Tool:
        """The same tool with some fields changed: `read_file.with_(policy="requires_approval")`."""
        return evolve(self, **changes)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The plain function, so that a decorated one is still what it was."""
        if self.function is None:
            raise TypeError(
                f"tool {self.name!r} was not made from a function; use `await tool.run(arguments, context)`"
            )
        return self.function(*args, **kwargs)

    @property
    def __name__(self) -> str:
        return cast(str, getattr(self.function, "__name__", self.name))

    @_of_each_tool
    def __wrapped__(self) -> Callable[..., Any]:
        # What `inspect.signature` and `help` look for.
        if self.function is None:
            raise AttributeError("__wrapped__")
        return self.function

    def __repr__(self) -> str:
        return f"<Tool {self.name!r}>"


__all__ = [
    "NO_HINTS",
    "Hints",
    "InvalidArguments",
    "Narrate",
    "Phase",
    "Policy",
    "Prepared",
    "SideEffect",
    "Tool",
    "ToolResult",
]
