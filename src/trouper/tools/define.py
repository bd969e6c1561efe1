"""`@tool`: a tool from a typed function (T1).

    @tool(readonly=True)
    async def order_status(order_id: Annotated[str, "As printed on the receipt"]) -> dict:
        \"\"\"Look up one order.\"\"\"
        ...

The schema comes from the annotations, the description from the docstring. The result is a `Tool` that can still be called as the plain function.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints, overload

import trio

from trouper._errors import ToolDefinitionError
from trouper.core.messages import Json
from trouper.core.values import frozen
from trouper.threads import in_thread
from trouper.tools.complaint import clipped, listed, summarised
from trouper.tools.context import ToolContext
from trouper.tools.contract import Hints, Invoke, Narrate, Policy, Tool
from trouper.tools.docstring import parameter_texts, summary
from trouper.tools.schema import SchemaWriter, object_schema, with_default
from trouper.tools.structure import Structure, fresh, problems, structure_of, whole

#: Threads for tools that are plain functions. Their own, so that tools that hang can never keep the journal from its disk.
TOOL_THREADS_MAX = 32
_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("trouper_tool_threads")


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    display_name: str | None = None,
    readonly: bool | None = None,
    destructive: bool | None = None,
    idempotent: bool | None = None,
    open_world: bool | None = None,
    background: bool | Callable[..., Any] | None = None,
    long_running: bool | None = None,
    concurrency_class: str | None = None,
    requires_secrets: bool | None = None,
    persist_output: bool | None = None,
    policy: Policy = "auto",
    budget_s: float | None = None,
    timeout_s: float | None = None,
    needs: Collection[str] = (),
    deferrable: bool = False,
    narrate: Narrate | None = None,
    capability: str | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    display_name: str | None = None,
    readonly: bool | None = None,
    destructive: bool | None = None,
    idempotent: bool | None = None,
    open_world: bool | None = None,
    background: bool | Callable[..., Any] | None = None,
    long_running: bool | None = None,
    concurrency_class: str | None = None,
    requires_secrets: bool | None = None,
    persist_output: bool | None = None,
    policy: Policy = "auto",
    budget_s: float | None = None,
    timeout_s: float | None = None,
    needs: Collection[str] = (),
    deferrable: bool = False,
    narrate: Narrate | None = None,
    capability: str | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Makes a `Tool` from a function: bare, `@tool`, or with options, `@tool(idempotent=True)`.

    `background`: `True` if a call may go on in the background, or a function with the same parameters that is run there instead.
    Everything else is as in `Tool` and `Hints`.
    """
    # Where the decorator stands: names that only exist there can be used in annotations. `registry.tool` stands in between.
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") == "trouper.tools.registry":
        frame = frame.f_back

    def define(function: Callable[..., Any]) -> Tool:
        if isinstance(function, Tool):
            raise ToolDefinitionError(
                f"{function.name!r} is a tool already; use it as it is, or .with_(...) to change it", tool=function.name
            )
        if not callable(function):
            raise ToolDefinitionError(f"{function!r} is no function; write @tool above a function, or @tool(...)")
        called = name or str(getattr(function, "__name__", ""))
        if not called:
            raise ToolDefinitionError(f"{function!r} has no name of its own; give it one, tool(name=...)(...)")
        shape = read_signature(function, called, frame.f_locals)
        options: dict[str, Any] = {"display_name": display_name} if display_name is not None else {}
        doc = _doc(function) if not isinstance(function, type) else None
        invoke = _invoke(function, shape)
        return Tool(
            name=called,
            description=description or summary(doc) or called.replace("_", " "),
            parameters=shape.parameters,
            invoke=invoke,
            hints=Hints(
                readonly=readonly,
                destructive=destructive,
                idempotent=idempotent,
                open_world=open_world,
                supports_background=True if callable(background) else background,
                long_running=long_running,
                concurrency_class=concurrency_class,
                requires_secrets=requires_secrets,
                persist_output=persist_output,
            ),
            policy=policy,
            budget_s=budget_s,
            timeout_s=timeout_s,
            needs=frozenset([needs] if isinstance(needs, str) else needs),
            deferrable=deferrable,
            narrate=narrate,
            capability=capability,
            invoke_background=_invoke(background, shape) if callable(background) else None,
            contextless=invoke if shape.context is None else None,
            function=function,
            takes_digits=True,
            bind=shape.bind if shape.may_fail else None,
            **options,
        )

    return define if function is None else define(function)


@frozen
class Shape:
    """What a function's signature says, compiled."""

    tool: str
    parameters: Mapping[str, Json]
    #: name -> how its value is built; only those parameters where there is something to do
    structures: Mapping[str, Structure]
    #: The parameter that takes the context.
    context: str | None
    #: Whether building a value can fail although the schema was satisfied.
    may_fail: bool

    def bind(self, arguments: dict[str, Json]) -> dict[str, Any]:
        """The keyword arguments of the call. A copy: what the tool does to its arguments must not reach the history."""
        bound: dict[str, Any] = dict(arguments)
        for name, structure in self.structures.items():
            if name in bound:
                try:
                    bound[name] = structure(bound[name])
                except ToolDefinitionError:
                    raise
                except Exception as error:
                    raise listed(self.tool, _located(name, bound[name], error)) from error
        return bound


def _located(name: str, value: Json, error: Exception) -> list[tuple[str, str]]:
    """Where in a parameter's value structuring failed, and why."""
    found = []
    for path, text in problems(error):
        where = f"{name}.{path}" if path and path[0] != "[" else name + path
        found.append((where, clipped(text, 160) if path else f"{clipped(text, 160)}, got {summarised(value)}"))
    return found


def read_signature(function: Callable[..., Any], name: str, names: Mapping[str, Any]) -> Shape:
    """Schema and binding of a function's parameters. `names`: what is in scope where it was defined."""
    parameters = _parameters(function, name)
    hints = _hints(function, name, names)
    texts = parameter_texts(_doc(function))
    writer = SchemaWriter(name)
    properties: dict[str, Json] = {}
    required: list[str] = []
    structures: dict[str, Structure] = {}
    context: str | None = None
    for parameter in parameters:
        _check_kind(parameter, name)
        annotation = hints.get(parameter.name, parameter.empty)
        if annotation is parameter.empty:
            raise ToolDefinitionError(
                f"parameter {parameter.name!r} of tool {name!r} has no annotation; write its type, as in `{parameter.name}: str`",
                tool=name,
                parameter=parameter.name,
            )
        if _is_context(annotation):
            if context is not None:
                raise ToolDefinitionError(
                    f"tool {name!r} takes the context twice, as {context!r} and {parameter.name!r}; drop one", tool=name
                )
            context = parameter.name
            continue
        schema = writer.write(annotation, parameter.name)
        if parameter.name in texts and "description" not in schema:
            schema = {**schema, "description": texts[parameter.name]}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        else:
            schema = with_default(schema, parameter.default)
        properties[parameter.name] = schema
        if (structure := structure_of(annotation)) is not None:
            structures[parameter.name] = structure
    may_fail = any(structure not in (whole, fresh) for structure in structures.values())
    return Shape(name, object_schema(properties, required, writer.defs), structures, context, may_fail)


def _hints(function: Callable[..., Any], name: str, names: Mapping[str, Any]) -> dict[str, Any]:
    target = _underlying(function)
    try:
        return get_type_hints(target, include_extras=True)
    except NameError:
        pass
    except (TypeError, SyntaxError, AttributeError) as error:
        raise ToolDefinitionError(
            f"an annotation of tool {name!r} is none ({error}); write a type that Python can read", tool=name
        ) from error
    try:
        # Classes that are local to where the tool is defined, and ToolContext imported for type checking only.
        return get_type_hints(target, localns={"ToolContext": ToolContext, **names}, include_extras=True)
    except NameError as error:
        raise ToolDefinitionError(
            f"an annotation of tool {name!r} cannot be read ({error}); define or import what it names before the tool, and not under TYPE_CHECKING",
            tool=name,
        ) from error


def _underlying(function: Callable[..., Any]) -> Any:
    """The function that a partial, a static method or a callable object will run: the one with the annotations."""
    function = _unwrapped(function)
    return function if inspect.isroutine(function) else type(function).__call__


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, (functools.partial, staticmethod)):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    return function


def _doc(function: Callable[..., Any]) -> str | None:
    """A partial's own docstring tells what partials are."""
    return inspect.getdoc(_unwrapped(function))


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    try:
        return list(_signature(function).parameters.values())
    except (TypeError, ValueError, RecursionError) as error:  # The last: what says that it wraps itself.
        raise ToolDefinitionError(
            f"the parameters of tool {name!r} cannot be read ({error}); wrap it in a function of your own, with annotations",
            tool=name,
        ) from error


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """As `inspect.signature`, which takes a partial that is dressed as its function (`functools.update_wrapper`) for that function: but what a partial fills in,
    it does in whatever dress, and under whatever decorators."""
    if isinstance(function, staticmethod):
        return _signature(function.__func__)
    if isinstance(function, types.MethodType):
        return inspect.signature(types.MethodType(_with_signature(function.__func__), function.__self__))
    if isinstance(function, functools.partial):
        left = inspect.signature(functools.partial(_with_signature(function.func), *function.args, **function.keywords))
        # There what it gives by keyword is a default. But it was filled in by code, and is not the model's to change.
        return left.replace(
            parameters=[each for each in left.parameters.values() if each.name not in function.keywords]
        )
    if hasattr(function, "__wrapped__") and not hasattr(function, "__signature__"):
        return _signature(function.__wrapped__)
    return inspect.signature(function)


def _with_signature(function: Callable[..., Any]) -> Callable[..., Any]:
    def undressed() -> None: ...

    undressed.__signature__ = _signature(function)  # type: ignore[attr-defined]
    undressed.__qualname__ = getattr(function, "__qualname__", type(function).__qualname__)  # As errors name it.
    return undressed


def _check_kind(parameter: inspect.Parameter, name: str) -> None:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        raise ToolDefinitionError(
            f"parameter {str(parameter)!r} of tool {name!r} has no name that a model could use; give each parameter a name, or take one dict or list",
            tool=name,
            parameter=parameter.name,
        )
    if parameter.name in ("self", "cls") and parameter.annotation is parameter.empty:
        raise ToolDefinitionError(
            f"tool {name!r} is a method that has no instance yet; leave the method as it is, and make the tool of a bound one, tool(instance.{name})",
            tool=name,
            parameter=parameter.name,
        )


def _is_context(annotation: object) -> bool:
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, types.UnionType):
        return any(_is_context(member) for member in get_args(annotation))
    return isinstance(annotation, type) and issubclass(annotation, ToolContext)


def _invoke(function: Callable[..., Any], shape: Shape) -> Invoke:
    """How to run `function` on arguments that fit its schema."""
    bind, takes_context = shape.bind, shape.context
    call = _underlying(function)
    if inspect.iscoroutinefunction(call):
        # Not async itself: it would stay on the stack for as long as the tool runs, and add nothing.
        def invoke(arguments: dict[str, Json], context: ToolContext) -> Awaitable[object]:
            bound = bind(arguments)
            if takes_context is not None:
                bound[takes_context] = context
            returned: Awaitable[object] = function(**bound)
            return returned

        return invoke
    if inspect.isasyncgenfunction(call) or inspect.isgeneratorfunction(call):
        raise ToolDefinitionError(
            f"tool {shape.tool!r} is a generator; return one value, and report on the way with context.output(...)",
            tool=shape.tool,
        )

    async def invoke_in_thread(arguments: dict[str, Json], context: ToolContext) -> object:
        bound = bind(arguments)
        if takes_context is not None:
            bound[takes_context] = context.in_thread()
        # Abandoned on cancel: a thread cannot be stopped, and an interrupt or a time-out must not wait for it. The thread ends on its own
        # time, holding its place in the limiter till then; the call is recorded as cancelled, and nobody reads what it returns.
        # In a tuple, since trio takes a coroutine that comes out of a thread for a mistake: a lambda or a decorator around an async function
        # looks plain until it is called.
        (returned,) = await in_thread(lambda: (function(**bound),), abandon_on_cancel=True, limiter=_threads())
        return await returned if inspect.isawaitable(returned) else returned

    return invoke_in_thread


def _threads() -> trio.CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        limiter = trio.CapacityLimiter(TOOL_THREADS_MAX)
        _limiter.set(limiter)
        return limiter
