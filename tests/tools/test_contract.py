"""T1-T3, T7: what a tool is, how `@tool` makes one, what it is handed and how it runs."""

from __future__ import annotations

import functools
import inspect
import pydoc
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from uuid import UUID

import attrs
import pytest
import trio
from trio.testing import MockClock

from trouper._errors import ToolDefinitionError
from trouper.core.ids import CallId, SessionId
from trouper.core.messages import ToolSpec
from trouper.tools import (
    ConnectionRequired,
    Hints,
    InvalidArguments,
    Param,
    Question,
    Reply,
    Services,
    Sink,
    Tool,
    ToolContext,
    ToolError,
    ToolResult,
    tool,
)
from trouper.tools.context import SilentSink

if TYPE_CHECKING:
    from trouper.tools.context import ToolContext as ContextForTypeCheckers  # noqa: F401


@tool(readonly=True, idempotent=True)
async def echo(message: Annotated[str, "The message to echo back"]) -> dict[str, Any]:
    """Echo back the provided message.

    Longer explanations are for people who read the source.
    """
    return {"echoed": message, "length": len(message)}


class Unit(Enum):
    CELSIUS = "c"
    FAHRENHEIT = "f"


@attrs.frozen
class Place:
    city: str
    country: str = "NL"


@attrs.frozen
class Window:
    start: date
    days: int = attrs.field(default=1, validator=attrs.validators.le(14))


# What it is.


def test_bare_decorator_makes_a_tool() -> None:
    """T1."""
    assert isinstance(echo, Tool)
    assert echo.name == "echo"
    assert echo.description == "Echo back the provided message."
    assert echo.parameters == {
        "type": "object",
        "properties": {"message": {"type": "string", "description": "The message to echo back"}},
        "required": ["message"],
        "additionalProperties": False,
    }


def test_spec_is_the_tool_as_the_model_sees_it() -> None:
    assert echo.spec == ToolSpec("echo", echo.description, echo.parameters)
    assert echo.spec is echo.spec


def test_display_name_is_derived_or_given() -> None:
    """T1: every tool has a name for people."""

    @tool
    async def get_current_time() -> str:
        return ""

    @tool(display_name="What time is it?")
    async def now() -> str:
        return ""

    assert echo.display_name == "Echo"
    assert get_current_time.display_name == "Get Current Time"
    assert now.display_name == "What time is it?"


def test_policy_is_auto_unless_said_otherwise() -> None:
    """T4."""
    assert echo.policy == "auto"

    @tool(policy="requires_approval")
    async def launch() -> None: ...

    assert launch.policy == "requires_approval"


def test_options_of_the_decorator_reach_the_tool() -> None:
    """T1, T3."""

    def line(phase: str, arguments: object) -> str:
        return phase

    @tool(
        name="deploy-it",
        description="Deploys.",
        background=True,
        idempotent=False,
        readonly=False,
        destructive=True,
        open_world=True,
        long_running=True,
        concurrency_class="deploys",
        requires_secrets=True,
        persist_output=True,
        budget_s=0.5,
        timeout_s=60,
        needs=("secrets",),
        deferrable=True,
        narrate=line,
        capability="ops",
    )
    async def deploy() -> None: ...

    assert deploy.hints == Hints(
        readonly=False,
        destructive=True,
        idempotent=False,
        open_world=True,
        supports_background=True,
        long_running=True,
        concurrency_class="deploys",
        requires_secrets=True,
        persist_output=True,
    )
    assert (deploy.name, deploy.description, deploy.budget_s, deploy.timeout_s) == ("deploy-it", "Deploys.", 0.5, 60)
    assert (deploy.needs, deploy.deferrable, deploy.narrate, deploy.capability) == (
        frozenset({"secrets"}),
        True,
        line,
        "ops",
    )
    assert deploy.supports_background
    assert deploy.concurrency_class == "deploys"


@pytest.mark.parametrize(
    ("hints", "expected"),
    [
        (Hints(), "at_most_once"),
        (Hints(readonly=False, idempotent=False), "at_most_once"),
        (Hints(idempotent=True), "idempotent"),
        (Hints(readonly=True), "pure"),
        (Hints(readonly=True, idempotent=True), "pure"),
    ],
)
def test_side_effect_class_reads_absent_hints_cautiously(hints: Hints, expected: str) -> None:
    """T3."""
    assert hints.side_effect == expected


async def test_decorated_function_is_still_callable() -> None:
    """A user's unit test calls it as if it were not a tool."""

    @tool
    def twice(word: str) -> str:
        return word * 2

    assert await echo("hi") == {"echoed": "hi", "length": 2}
    assert await echo(message="hi") == {"echoed": "hi", "length": 2}
    assert twice("ab") == "abab"
    assert list(inspect.signature(twice).parameters) == ["word"]
    assert twice.__name__ == "twice"


def test_the_class_of_tools_can_be_looked_at() -> None:
    """T1: `help(Tool)` and its signature say how a toolset makes one, whatever those of a single tool say."""
    assert list(inspect.signature(Tool).parameters)[:4] == ["name", "description", "parameters", "invoke"]
    assert "One tool." in pydoc.render_doc(Tool) and "message" in pydoc.render_doc(echo)


def test_tool_without_function_says_how_to_run_it() -> None:
    async def invoke(arguments: dict[str, Any], context: ToolContext) -> str:
        return "ran"

    bare = Tool("bare", "Made from a schema.", {"type": "object"}, invoke)
    with pytest.raises(TypeError, match=r"await tool\.run"):
        bare()


async def test_tool_can_be_made_from_a_schema_alone() -> None:
    """Toolsets of servers have no function with annotations."""

    async def invoke(arguments: dict[str, Any], context: ToolContext) -> object:
        return arguments["n"] + 1

    made = Tool("plus_one", "", {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}, invoke)
    assert (await made.run(made.prepare({"n": "4"}).arguments, ToolContext())).content == 5


def test_with_changes_some_fields() -> None:
    careful = echo.with_(name="careful_echo", policy="requires_approval")
    assert (careful.name, careful.policy, careful.parameters) == ("careful_echo", "requires_approval", echo.parameters)
    assert echo.policy == "auto"
    assert careful.spec.name == "careful_echo"


# What cannot be one.


@pytest.mark.parametrize("name", ["", "two words", "1st", "-x", "naïve", "x" * 65, "a\nb", "a.b", '{"fake": 1}'])
def test_name_that_some_provider_refuses_is_refused_at_definition(name: str) -> None:
    with pytest.raises(ToolDefinitionError, match="cannot name a tool; use"):
        echo.with_(name=name)


def test_unannotated_parameter_is_refused_with_the_remedy() -> None:
    with pytest.raises(
        ToolDefinitionError, match=r"parameter 'x' of tool 'untyped' has no annotation; write its type, as in `x: str`"
    ) as caught:

        @tool
        async def untyped(x):  # type: ignore[no-untyped-def]
            return x

    assert caught.value.parameter == "x"  # type: ignore[attr-defined]


def test_variadic_and_positional_only_parameters_are_refused() -> None:
    with pytest.raises(ToolDefinitionError, match="no name that a model could use"):

        @tool
        async def many(*items: str) -> None: ...

    with pytest.raises(ToolDefinitionError, match="no name that a model could use"):

        @tool
        async def anything(**items: str) -> None: ...

    with pytest.raises(ToolDefinitionError, match="no name that a model could use"):

        @tool
        async def placed(item: str, /) -> None: ...


def test_unreadable_annotation_is_refused_with_the_remedy() -> None:
    with pytest.raises(
        ToolDefinitionError,
        match=r"an annotation of tool 'lost' cannot be read .*Nowhere.*; define or import what it names",
    ):

        @tool
        async def lost(x: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def test_generator_is_refused() -> None:
    with pytest.raises(ToolDefinitionError, match=r"is a generator; return one value"):

        @tool
        async def stream() -> AsyncIterator[int]:
            yield 1


def test_method_is_refused_until_it_is_bound() -> None:
    with pytest.raises(ToolDefinitionError, match=r"tool\(instance\.look\)"):

        class Unbound:
            @tool
            async def look(self, x: str) -> None: ...


async def test_bound_method_and_partial_and_callable_object_make_tools() -> None:
    class Shop:
        def __init__(self, stock: int) -> None:
            self.stock = stock

        async def left(self, item: str) -> str:
            """How many are left."""
            return f"{self.stock} of {item}"

        async def __call__(self, item: str) -> str:
            return f"called for {item}"

    shop = Shop(3)
    assert (await tool(shop.left).run({"item": "tea"}, ToolContext())).content == "3 of tea"
    assert (await tool(name="shop")(shop).run({"item": "tea"}, ToolContext())).content == "called for tea"
    assert (
        await tool(name="tea")(functools.partial(shop.left, item="tea")).run({}, ToolContext())
    ).content == "3 of tea"


async def test_decorator_that_hides_an_async_function_makes_a_tool() -> None:
    """T1: a plain wrapper that hands on the coroutine, and a static method."""
    said: list[str] = []

    class Heard(Sink):
        def status(self, text: str) -> None:
            said.append(text)

    def logged(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(**arguments: Any) -> Any:
            return function(**arguments)

        return wrapper

    @tool
    @logged
    async def double(number: int, context: ToolContext) -> int:
        await trio.lowlevel.checkpoint()
        context.status("doubling")
        return 2 * number

    class Shop:
        @tool
        @staticmethod
        async def left(item: str) -> str:
            return item

    assert (await double.run({"number": 4}, ToolContext(sink=Heard()))).content == 8
    assert said == ["doubling"]
    assert (await Shop.left.run({"item": "tea"}, ToolContext())).content == "tea"


def test_partial_is_described_as_its_function() -> None:
    """T1: not with the docstring of partials."""

    async def left(item: str, shop: str) -> None:
        """How many are left.

        Args:
            item: As on the label.
        """

    made = tool(name="left")(functools.partial(left, shop="x"))
    assert made.description == "How many are left."
    assert made.parameters["properties"]["item"]["description"] == "As on the label."


async def test_what_a_partial_fills_in_is_not_the_models_to_give() -> None:
    """T1: neither shown nor taken, by position or by keyword; and it may be what no model could send."""

    class Stock:
        left = 3

    async def count(item: str, shop: str, stock: Stock, unit: str = "pieces") -> str:
        return f"{stock.left} {unit} of {item} in {shop}"

    made = tool(name="count")(functools.partial(functools.partial(count, stock=Stock()), shop="Rome"))
    assert list(made.parameters["properties"]) == ["item", "unit"]
    assert (await made.run({"item": "tea"}, ToolContext())).content == "3 pieces of tea in Rome"
    with pytest.raises(InvalidArguments, match="shop: is not a parameter"):
        made.prepare({"item": "tea", "shop": "Oslo"})


def test_what_has_no_name_of_its_own_is_refused_with_the_way_to_give_one() -> None:
    """T1: a partial, an object that can be called."""

    async def left(item: str, shop: str) -> None: ...

    with pytest.raises(ToolDefinitionError, match=r"has no name of its own; give it one, tool\(name=\.\.\.\)"):
        tool(functools.partial(left, shop="x"))


def query(tenant: str, text: str, limit: int = 10) -> str:
    """Look something up."""
    return f"{limit} of {text} for {tenant}"


def dressed(function: Callable[..., str], *args: Any, **kwargs: Any) -> Callable[..., str]:
    """A partial that looks like its function."""
    return functools.update_wrapper(functools.partial(function, *args, **kwargs), function)


def logged(function: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> str:
        return function(*args, **kwargs)

    return wrapper


class Shop:
    def query(self, tenant: str, text: str, limit: int = 10) -> str:
        """Look something up."""
        return query(tenant, text, limit)

    query_acme = logged(dressed(query, tenant="acme"))


@pytest.mark.parametrize(
    "function",
    [
        dressed(query, tenant="acme"),
        dressed(query, "acme"),
        logged(dressed(query, tenant="acme")),
        logged(logged(dressed(logged(query), "acme"))),
        functools.partial(logged(dressed(query, "acme")), limit=10),
        logged(staticmethod(dressed(query, tenant="acme"))),
        functools.partial(logged(query), tenant="acme"),
        Shop().query_acme,
    ],
)
async def test_what_is_filled_in_under_decorators_is_not_the_models_to_give(function: Callable[..., str]) -> None:
    """T1: `functools.update_wrapper` makes a partial look like the function that it fills in."""
    made = tool(name="query")(function)
    assert [name for name in made.parameters["properties"] if name != "limit"] == ["text"]
    assert made.description == "Look something up."
    assert (await made.run({"text": "tea"}, ToolContext())).content == "10 of tea for acme"
    with pytest.raises(InvalidArguments, match="tenant: is not a parameter"):
        made.prepare({"text": "tea", "tenant": "EVIL"})


def test_partial_that_does_not_fit_its_function_is_refused_by_name() -> None:
    """T1."""
    with pytest.raises(
        ToolDefinitionError, match=r"cannot be read \(.*<function query at .*nope=3.*incorrect arguments"
    ):
        tool(name="query")(functools.partial(query, nope=3))


def test_function_that_wraps_itself_is_refused() -> None:
    """T1."""

    def loop(text: str) -> str:
        return text

    loop.__wrapped__ = loop  # type: ignore[attr-defined]
    with pytest.raises(ToolDefinitionError, match="the parameters of tool 'loop' cannot be read"):
        tool(loop)


def test_function_without_a_signature_is_refused() -> None:
    """T1."""
    with pytest.raises(ToolDefinitionError, match="the parameters of tool 'int' cannot be read"):
        tool(int)


async def test_union_takes_the_first_member_that_can_be_built() -> None:
    """T1: text that is no date may still be text; and each union in its own order, though Python takes them for equal."""

    @attrs.define
    class Note:
        when: str | date

    @tool
    async def early(when: date | str) -> str:
        return repr(when)

    @tool
    async def late(when: str | date) -> str:
        return repr(when)

    @tool
    async def noted(note: Note) -> str:
        return repr(note.when)

    @tool
    async def counted(when: date | int) -> str:
        return repr(when)

    today = {"when": "2026-02-03"}
    assert (await early.run(today, ToolContext())).content == "datetime.date(2026, 2, 3)"
    assert (await early.run({"when": "soon"}, ToolContext())).content == "'soon'"
    assert (await late.run(today, ToolContext())).content == "'2026-02-03'"
    assert (await noted.run({"note": today}, ToolContext())).content == "'2026-02-03'"
    with pytest.raises(InvalidArguments, match="day is out of range"):
        counted.prepare({"when": "2026-02-31"})


async def test_literal_may_be_some_members_of_an_enum() -> None:
    """T1."""

    class Size(Enum):
        SMALL = "s"
        LARGE = "l"
        HUGE = "h"

    async def order(size: Literal[Size.SMALL, Size.LARGE] = Size.SMALL) -> str:
        return repr(size)

    order.__annotations__["size"] = Literal[Size.SMALL, Size.LARGE]
    made = tool(order)
    assert made.parameters["properties"]["size"] == {"type": "string", "enum": ["s", "l"], "default": "s"}
    assert (await made.run({"size": "l"}, ToolContext())).content == "<Size.LARGE: 'l'>"
    with pytest.raises(InvalidArguments, match='expected one of "s", "l"'):
        made.prepare({"size": "h"})


class Shade(StrEnum):
    DARK = "dark"


class Level(IntEnum):
    LOW = 1


class Paint(str, Enum):  # noqa: UP042 - as it was written before StrEnum
    OIL = "oil"


@attrs.frozen
class Coat:
    shade: Shade
    level: Level = Level.LOW


async def test_enum_that_is_text_or_a_number_besides_arrives_as_its_member() -> None:
    """T1: enums."""

    @tool
    async def paint(shade: Shade, level: Level, kind: Paint, coats: list[Coat], by: dict[Shade, Level | None]) -> str:
        return repr((shade, level, kind, coats, by))

    arguments = {
        "shade": "dark",
        "level": 1.0,
        "kind": "oil",
        "coats": [{"shade": "dark", "level": 1}],
        "by": {"dark": 1},
    }
    expected = (Shade.DARK, Level.LOW, Paint.OIL, [Coat(Shade.DARK)], {Shade.DARK: Level.LOW})
    assert (await paint.run(paint.prepare(arguments).arguments, ToolContext())).content == repr(expected)


async def test_number_of_a_literal_is_the_one_that_was_written() -> None:
    """T1: for JSON 1.0 is 1, and some providers write every number so."""

    @tool
    async def page(number: Literal[1, 2, True, "all"], others: list[Literal[1, 2] | None]) -> str:
        return repr((number, others))

    for sent, expected in ((1.0, "1"), (True, "True"), ("all", "'all'"), (2, "2")):
        prepared = page.prepare({"number": sent, "others": [2.0, None]})
        assert (await page.run(prepared.arguments, ToolContext())).content == f"({expected}, [2, None])"


async def test_marker_beside_a_type_may_be_anything() -> None:
    """T1: `Annotated` takes what cannot be hashed, too."""

    @tool
    async def total(numbers: Annotated[list[int], {"min": 1}]) -> int:
        return sum(numbers)

    assert (await total.run({"numbers": [1, 2]}, ToolContext())).content == 3


def test_default_without_end_is_not_in_the_schema() -> None:
    """T1: JSON has no infinity, and a provider would refuse the whole request."""

    @tool
    async def wait(seconds: float = float("inf"), least: float = float("-inf")) -> None: ...

    assert wait.parameters["properties"] == {"seconds": {"type": "number"}, "least": {"type": "number"}}


def test_tool_of_a_tool_and_unknown_policy_and_negative_time_are_refused() -> None:
    with pytest.raises(ToolDefinitionError, match="is a tool already"):
        tool(echo)
    with pytest.raises(ToolDefinitionError, match="use one of auto, requires_approval, client_side"):
        echo.with_(policy="sometimes")
    with pytest.raises(ToolDefinitionError, match=r"timeout_s=-1; give seconds, 0 or more"):
        echo.with_(timeout_s=-1)
    with pytest.raises(ToolDefinitionError, match="budget_s=nan"):
        echo.with_(budget_s=float("nan"))
    with pytest.raises(ToolDefinitionError, match="must be a JSON Schema of type 'object'"):
        echo.with_(parameters={"type": "string"})
    with pytest.raises(ToolDefinitionError, match="needs 'time_machine', which no host has"):
        echo.with_(needs=frozenset({"time_machine"}))


def test_one_need_is_a_name_and_not_its_letters() -> None:
    @tool(needs="files")
    async def read(path: str) -> str:
        """Read."""
        return path

    assert read.needs == {"files"}


def test_schema_that_is_none_is_the_tools_fault() -> None:
    with pytest.raises(ToolDefinitionError, match="the parameters of tool 'echo' are not a JSON Schema"):
        echo.with_(parameters={"type": "object", "properties": {"x": {"type": "nonsense"}}}).prepare({})


def test_schema_never_makes_us_fetch_anything() -> None:
    """Security: a server's schema is untrusted."""
    with pytest.raises(ToolDefinitionError, match=r"leaves the schema"):
        echo.with_(parameters={"type": "object", "$ref": "http://169.254.169.254/schema.json"}).prepare({})


# How it runs.


async def test_arguments_are_structured_into_the_annotated_types() -> None:
    """T1: cattrs builds what the function declares."""
    seen: dict[str, Any] = {}

    @tool
    async def plan(
        place: Place,
        windows: list[Window],
        unit: Unit,
        order: UUID,
        at: datetime,
        path: Path,
        ratio: float,
        count: int,
        either: int | Place,
        pair: tuple[int, str],
        tags: set[str],
        mode: Literal["fast", "slow"] = "fast",
        note: str | None = None,
    ) -> None:
        seen.update(locals())

    arguments = {
        "place": {"city": "Delft"},
        "windows": [{"start": "2026-02-28", "days": 3}],
        "unit": "f",
        "order": "12345678-1234-5678-1234-567812345678",
        "at": "2026-02-28T10:00:00Z",
        "path": "a/b.txt",
        "ratio": 2,
        "count": 3.0,
        "either": {"city": "Gouda", "country": "NL"},
        "pair": [1, "x"],
        "tags": ["a", "b"],
    }
    await plan.run(plan.prepare(arguments).arguments, ToolContext())
    assert {name: seen[name] for name in arguments} == {
        "place": Place("Delft"),
        "windows": [Window(date(2026, 2, 28), 3)],
        "unit": Unit.FAHRENHEIT,
        "order": UUID("12345678-1234-5678-1234-567812345678"),
        "at": datetime(2026, 2, 28, 10, tzinfo=UTC),
        "path": Path("a/b.txt"),
        "ratio": 2.0,
        "count": 3,
        "either": Place("Gouda"),
        "pair": (1, "x"),
        "tags": {"a", "b"},
    }
    assert type(seen["ratio"]) is float
    assert type(seen["count"]) is int
    assert (seen["mode"], seen["note"]) == ("fast", None)


def test_what_only_structuring_can_tell_is_an_invalid_argument() -> None:
    """L19: a date that does not exist, a validator that objects; known before the tool runs."""

    @tool
    async def book(window: Window, on: date) -> None: ...

    with pytest.raises(
        InvalidArguments, match=r"- on: day is out of range for month, got string \"2026-02-30\""
    ) as caught:
        book.prepare({"window": {"start": "2026-02-28"}, "on": "2026-02-30"})
    assert caught.value.fields == ("on",)
    with pytest.raises(InvalidArguments) as caught:
        book.prepare({"window": {"start": "2026-02-28", "days": 99}, "on": "2026-02-28"})
    assert "14" in caught.value.message


@pytest.mark.parametrize(
    "hint", ["readonly", "idempotent", "destructive", "open_world", "background", "persist_output"]
)
def test_a_hint_is_yes_or_no(hint: str) -> None:
    """T3: absent is the cautious reading; "no", which is as true as any text, would be the bold one, and have a call run twice after a crash."""
    options: Any = {hint: "no"}
    with pytest.raises(ToolDefinitionError, match=f"tool 'pay' has .*{hint}='no'; say True or False"):

        @tool(**options)
        async def pay(amount: int) -> None: ...


@attrs.frozen
class Parcel:
    code: str = attrs.field(validator=attrs.validators.matches_re("[A-Z]+"))
    size: Any = attrs.field(default="s", validator=attrs.validators.in_(["s", "l"]))
    count: Any = attrs.field(default=1, validator=attrs.validators.instance_of(int))


@pytest.mark.parametrize(
    ("parcel", "told"),
    [
        ({"code": "a"}, "'code' must match regex '[A-Z]+' ('a' doesn't)"),
        ({"code": "A", "size": "m"}, "'size' must be in ['s', 'l'] (got 'm')"),
        ({"code": "A", "count": "2"}, "'count' must be <class 'int'> (got '2' that is a <class 'str'>)."),
    ],
)
def test_of_a_validator_of_attrs_the_model_reads_what_it_says(parcel: dict[str, str], told: str) -> None:
    """L19: some add the attribute and themselves to what they say, a line of Python that the model could make nothing of."""

    @tool
    async def send(parcel: Parcel, others: list[Parcel]) -> None: ...

    with pytest.raises(InvalidArguments) as caught:
        send.prepare({"parcel": parcel, "others": [{"code": "A"}, parcel]})
    assert caught.value.message.splitlines()[1].startswith(f"- parcel: {told}, got object")
    with pytest.raises(InvalidArguments) as caught:
        send.prepare({"parcel": {"code": "A"}, "others": [{"code": "A"}, parcel]})
    assert caught.value.message.splitlines()[1] == f"- others[1]: {told}"


async def test_tool_may_change_its_arguments_without_changing_history() -> None:
    """I10: the journaled arguments are shared; a tool gets its own copy."""

    @tool
    async def greedy(items: list[str], options: dict[str, Any], anything: Any) -> None:
        items.append("more")
        options["x"] = 1
        anything["y"] = 2

    arguments: dict[str, Any] = {"items": ["a"], "options": {}, "anything": {}}
    await greedy.run(arguments, ToolContext())
    assert arguments == {"items": ["a"], "options": {}, "anything": {}}


async def test_plain_function_runs_in_a_worker_thread() -> None:
    """T1."""

    @tool
    def where() -> str:
        return threading.current_thread().name

    assert (await where.run({}, ToolContext())).content != threading.current_thread().name


async def test_a_plain_function_takes_no_virtual_time(autojump_clock: MockClock) -> None:
    """T1: a mock clock runs on while a thread works, and every such call was a time-out in the simulator. There it is done on the spot."""
    said: list[str] = []

    class Heard(SilentSink):
        def status(self, text: str) -> None:
            said.append(text)

    @tool
    def count_words(text: str, context: ToolContext) -> int:
        context.status("counting")
        return len(text.split())

    with trio.fail_after(1):
        assert (await count_words.run({"text": "one two"}, ToolContext(sink=Heard()))).content == 2
    assert said == ["counting"] and trio.current_time() == 0


async def test_cancelling_does_not_wait_for_a_thread() -> None:
    """L21, I24: the turn is free at once; the thread ends on its own time."""
    release = threading.Event()
    started = trio.Event()
    token = trio.lowlevel.current_trio_token()

    @tool
    def stuck() -> None:
        token.run_sync_soon(started.set)
        release.wait(10)

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stuck.run, {}, ToolContext())
            await started.wait()
            nursery.cancel_scope.cancel()
        assert not release.is_set()
    finally:
        release.set()


async def test_exceptions_of_a_tool_pass_through() -> None:
    """T2, L20: what the model may read is told apart by type; anything else is internal."""

    @tool
    async def fails(how: str) -> Any:
        if how == "tool":
            raise ToolError("no order 17")
        if how == "connection":
            raise ConnectionRequired("github")
        raise RuntimeError("database password is hunter2")

    with pytest.raises(ToolError, match="no order 17") as tool_error:
        await fails.run({"how": "tool"}, ToolContext())
    assert tool_error.value.message == "no order 17"
    with pytest.raises(ConnectionRequired) as connection:
        await fails.run({"how": "connection"}, ToolContext())
    assert connection.value.provider == "github"
    with pytest.raises(RuntimeError, match="hunter2"):
        await fails.run({"how": "internal"}, ToolContext())


async def test_background_entry_point_may_differ() -> None:
    """T1."""

    async def build_slowly(target: str) -> str:
        return f"{target} in the background"

    @tool(background=build_slowly)
    async def build(target: str) -> str:
        return f"{target} in the foreground"

    @tool(background=True)
    async def same(target: str) -> str:
        return target

    assert build.supports_background
    assert (await build.run({"target": "x"}, ToolContext())).content == "x in the foreground"
    assert (await build.run_background({"target": "x"}, ToolContext())).content == "x in the background"
    assert (await same.run_background({"target": "x"}, ToolContext())).content == "x"


# What it is handed.


class Recorder:
    def __init__(self) -> None:
        self.seen: list[tuple[object, ...]] = []

    def progress(self, current: float | None, total: float | None, unit: str, label: str) -> None:
        self.seen.append(("progress", current, total, unit, label, threading.current_thread().name))

    def status(self, text: str) -> None:
        self.seen.append(("status", text))

    def output(self, stream: str, delta: str) -> None:
        self.seen.append(("output", stream, delta))


async def test_context_parameter_gets_the_context_and_is_not_in_the_schema() -> None:
    """T7."""

    @tool
    async def whoami(context: ToolContext, shout: bool = False) -> dict[str, Any]:
        return {
            "session": context.session_id,
            "call": context.call_id,
            "key": context.idempotency_key,
            "attempt": context.attempt,
        }

    assert list(whoami.parameters["properties"]) == ["shout"]
    context = ToolContext(SessionId("s1"), CallId("call_1_2_3"))
    assert (await whoami.run({}, context)).content == {
        "session": "s1",
        "call": "call_1_2_3",
        "key": "s1/call_1_2_3",
        "attempt": 1,
    }


async def test_context_may_be_optional_or_known_to_type_checkers_only() -> None:
    @tool
    async def optional(context: ToolContext | None = None) -> bool:
        return context is not None

    assert (await optional.run({}, ToolContext())).content is True
    assert await optional() is False
    assert optional.takes_context and not echo.takes_context


def test_a_tool_with_an_invoke_of_its_own_is_given_a_context() -> None:
    """T7: what it does with it nobody can know."""

    async def invoke(arguments: dict[str, Any], context: ToolContext) -> object:
        return context.call_id

    assert Tool("own", "Its own.", {"type": "object"}, invoke).takes_context
    assert echo.with_(invoke=invoke).takes_context
    assert not echo.with_(policy="requires_approval").takes_context


def test_two_contexts_are_refused() -> None:
    with pytest.raises(ToolDefinitionError, match="takes the context twice, as 'a' and 'b'"):

        @tool
        async def two(a: ToolContext, b: ToolContext) -> None: ...


async def test_reports_reach_the_sink_also_from_a_thread() -> None:
    """T7, B8."""
    sink = Recorder()

    @tool
    async def working(context: ToolContext) -> None:
        context.report_progress(1, 3, "files", "a.txt")
        context.status("reading")
        context.output("stdout", "line")

    @tool
    def threaded(context: ToolContext) -> None:
        context.report_progress(current=2)
        context.status("in a thread")
        context.output("stderr", "oops")

    context = ToolContext(sink=sink)
    await working.run({}, context)
    await threaded.run({}, context)
    here = threading.current_thread().name
    assert sink.seen == [
        ("progress", 1, 3, "files", "a.txt", here),
        ("status", "reading"),
        ("output", "stdout", "line"),
        ("progress", 2, None, "", "", here),
        ("status", "in a thread"),
        ("output", "stderr", "oops"),
    ]


async def test_a_plain_function_may_report_from_threads_of_its_own() -> None:
    """T7: from those that are not trio's, it was an error of trio's."""
    sink = Recorder()

    @tool
    def pooled(context: ToolContext) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(context.status, "in a pool").result()

    await pooled.run({}, ToolContext(sink=sink))
    assert sink.seen == [("status", "in a pool")]


async def test_what_a_report_raises_is_raised_to_the_thread_that_made_it() -> None:
    """I23: in the loop, it would end the whole program."""

    class Broken(Recorder):
        def status(self, text: str) -> None:
            raise LookupError(text)

    @tool
    def threaded(context: ToolContext) -> str:
        with pytest.raises(LookupError, match="in a thread"):
            context.status("in a thread")
        return "went on"

    assert (await threaded.run({}, ToolContext(sink=Broken()))).content == "went on"


def test_a_thread_that_outlives_its_loop_reports_to_nobody() -> None:
    sink, kept = Recorder(), list[ToolContext]()

    @tool
    def threaded(context: ToolContext) -> None:
        kept.append(context)

    trio.run(threaded.run, {}, ToolContext(sink=sink))
    kept[0].status("is anybody there?")
    assert sink.seen == []


@pytest.mark.parametrize(
    "need",
    [
        "files",
        "memory",
        "kv",
        "secrets",
        "notifications",
        "background",
        "subagents",
        "tasks",
        "schedules",
        "asker",
        "registry",
    ],
)
def test_service_that_the_host_lacks_is_a_clear_error(need: str) -> None:
    """T7."""
    with pytest.raises(ToolDefinitionError, match=rf"offers no '{need}'; declare it, @tool\(needs=\('{need}',\)\)"):
        getattr(ToolContext(), need)


async def test_a_call_without_a_task_is_told_how_to_have_messages() -> None:
    """T7: that it needs a 'run' was the remedy, and then that no host has such a thing."""
    with pytest.raises(ToolDefinitionError, match=r"'call_1_1_0' .* no task .* write @tool\(background=True\)"):
        await ToolContext().receive_message()


def test_clock_is_handed_in() -> None:
    with pytest.raises(ToolDefinitionError, match="offers no 'clock'"):
        ToolContext().now()
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert ToolContext(services=Services(clock=lambda: noon)).now() == noon


def test_services_say_which_needs_they_meet() -> None:
    @attrs.frozen
    class Here:
        root: Path = Path("/nowhere")

    services = Services(files=Here(), clock=lambda: datetime.now(UTC))
    assert services.provided == {"files", "clock"}
    assert ToolContext(services=services).files.root == Path("/nowhere")


async def test_questions_reach_the_user_and_come_back() -> None:
    """T16."""

    class Sofa:
        async def ask(
            self, questions: Sequence[Question], *, timeout_s: float | None = None, call: Any = None
        ) -> Reply:
            return Reply(
                "answered", tuple(question.choices[0] if question.choices else "text" for question in questions)
            )

    @tool(needs=("asker",))
    async def choose(context: ToolContext) -> Any:
        reply = await context.ask_user(Question("Which?", choices=("red", "blue")), Question("Why?"), timeout_s=5)
        return [reply.status, *reply.values]

    assert (await choose.run({}, ToolContext(services=Services(asker=Sofa())))).content == ["answered", "red", "text"]


async def test_spawn_and_notify_reach_the_host() -> None:
    """T7."""
    seen: list[object] = []

    class Host:
        async def spawn(self, tool: str, arguments: Any, **options: Any) -> dict[str, Any]:
            seen.append((tool, arguments, options))
            return {"task_id": "t1"}

        async def notify(
            self, title: str, body: str = "", *, kind: str = "generic", dedupe_key: str | None = None
        ) -> Any:
            seen.append((title, body, dedupe_key))
            return "n1"

    host: Any = Host()
    context = ToolContext(services=Services(background=host, notifications=host))
    assert await context.spawn("build", {"x": 1}, title="Build") == {"task_id": "t1"}
    assert await context.notify("Done", "All of it", dedupe_key="k") == "n1"
    assert seen == [("build", {"x": 1}, {"title": "Build", "call": context.call_id}), ("Done", "All of it", "k")]


def test_param_carries_description_and_limits() -> None:
    @tool
    async def page(limit: Annotated[int, Param("How many", ge=1, le=100)] = 10) -> None: ...

    assert page.parameters["properties"]["limit"] == {
        "type": "integer",
        "description": "How many",
        "minimum": 1,
        "maximum": 100,
        "default": 10,
    }
    assert page.prepare({"limit": 100}).arguments == {"limit": 100}
    with pytest.raises(InvalidArguments, match=r"- limit: expected at most 100, got integer 101"):
        page.prepare({"limit": 101})


async def test_result_type_is_one_class_for_all() -> None:
    assert await echo.run({"message": "x"}, ToolContext()) == ToolResult({"echoed": "x", "length": 1})


def test_an_annotation_that_is_no_type_is_named() -> None:
    """T1."""

    async def odd(x: Final[int] = 2) -> None:  # type: ignore[misc]
        """Odd."""

    with pytest.raises(ToolDefinitionError, match="an annotation of tool 'odd' is none"):
        tool(odd)
