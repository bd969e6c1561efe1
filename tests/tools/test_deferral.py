"""T8: past 15 tools, deferrable schemas become stubs, and `tool_search` reveals them."""

from __future__ import annotations

import pytest

from trouper.tools import InvalidArguments, Registry, Services, Tool, ToolContext, revealed_by, tool
from trouper.tools.deferral import DEFER_OVER, TOOL_SEARCH


def deferred(name: str, description: str) -> Tool:
    @tool(name=name, description=description, deferrable=True)
    async def made(city: str, days: int = 1) -> str:
        return f"{name} {city}"

    return made


@tool
async def plain(x: str) -> str:
    """Plain."""
    return x


def registry(count: int = 15) -> Registry:
    tools = [deferred(f"tool_{number}", f"Number {number}. More words.") for number in range(count - 2)]
    return Registry(
        [
            plain,
            *tools,
            deferred("get_weather", "Tell the weather of a city. " + "x" * 500),
            deferred("get_news", "Tell the news."),
        ]
    )


def test_up_to_the_threshold_nothing_is_deferred() -> None:
    few = Registry(list(registry(14)))
    assert len(few) == DEFER_OVER
    assert not few.deferring
    assert all("properties" in spec.parameters for spec in few.specs())
    assert few.get(TOOL_SEARCH) is None


def test_past_the_threshold_deferrable_schemas_become_stubs() -> None:
    many = registry()
    assert len(many) == DEFER_OVER + 1
    assert many.deferring
    specs = {spec.name: spec for spec in many.specs()}
    assert list(specs) == [*many.names, TOOL_SEARCH]
    assert specs["plain"] == plain.spec
    stub = specs["get_weather"]
    assert stub.parameters == {"type": "object"}
    assert stub.description == "Tell the weather of a city. (Parameters not shown: call tool_search for them first.)"


def test_many_tools_none_of_them_deferrable_are_all_shown() -> None:
    many = Registry([plain.with_(name=f"p{number}") for number in range(40)])
    assert not many.deferring
    assert many.specs()[7].parameters == plain.parameters
    assert TOOL_SEARCH not in {spec.name for spec in many.specs()}


def test_revealed_tools_have_their_full_schema_and_their_old_place() -> None:
    many = registry()
    before, after = many.specs(), many.specs(frozenset({"get_weather"}))
    assert [spec.name for spec in before] == [spec.name for spec in after]
    changed = [new.name for old, new in zip(before, after, strict=True) if old != new]
    assert changed == ["get_weather"]
    assert many.specs(frozenset({"get_weather"})) is after


async def test_search_answers_with_full_schemas_and_says_what_it_revealed() -> None:
    many = registry()
    search = many.get(TOOL_SEARCH)
    assert search is not None
    context = ToolContext(services=Services(registry=many))
    result = await search.run(search.prepare({"query": "weather in a city", "limit": 1}).arguments, context)
    assert [found["name"] for found in result.content["tools"]] == ["get_weather"]
    assert result.content["tools"][0]["parameters"] == many.get("get_weather").parameters  # type: ignore[union-attr]
    assert revealed_by(result.content) == {"get_weather"}


async def test_search_by_name_and_in_vain() -> None:
    many = registry()
    search = many.get(TOOL_SEARCH)
    assert search is not None
    context = ToolContext(services=Services(registry=many))
    by_name = (await search.run({"query": "tool_3, get_news", "limit": 2}, context)).content
    assert [found["name"] for found in by_name["tools"]] == ["tool_3", "get_news"]
    vain = (await search.run({"query": "qqqq"}, context)).content
    assert vain["tools"] == []
    assert "get_weather" in vain["note"]
    assert revealed_by(vain) == frozenset()
    with pytest.raises(InvalidArguments):
        search.prepare({"query": "x", "limit": 99})


async def test_tools_that_are_not_deferred_are_not_found() -> None:
    many = registry()
    search = many.get(TOOL_SEARCH)
    assert search is not None
    result = await search.run({"query": "plain"}, ToolContext(services=Services(registry=many)))
    assert revealed_by(result.content) == frozenset()


async def test_stub_may_be_called_at_once_and_is_validated_in_full() -> None:
    """A model that guesses right is not punished; one that guesses wrong is told the fields."""
    weather = registry().get("get_weather")
    assert weather is not None
    assert (
        await weather.run(weather.prepare({"city": "Delft"}).arguments, ToolContext())
    ).content == "get_weather Delft"
    with pytest.raises(InvalidArguments, match="city: is required"):
        weather.prepare({})


def test_threshold_can_be_chosen_and_a_users_own_search_is_kept() -> None:
    @tool(name=TOOL_SEARCH)
    async def own(query: str) -> str:
        return query

    small = Registry([plain, deferred("a", "A."), own], defer_over=1)
    assert small.deferring
    assert [spec.name for spec in small.specs()] == ["plain", "a", TOOL_SEARCH]
    assert small.get(TOOL_SEARCH) is own


@pytest.mark.parametrize("content", [None, "text", [], {"tools": "x"}, {"tools": [1, {"name": 5}, {}]}])
def test_answer_of_another_shape_reveals_nothing(content: object) -> None:
    assert revealed_by(content) == frozenset()
