"""Errors of clients that others have written: whatever they carry, a session can keep it, and does not wait for ever because of it (M1, L11)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio

from trouper import Anthropic, ConfigError, Deadlines, Fault, Gemini, Limits, OpenAICompatible
from trouper.codec import Record
from trouper.core.events import ModelRetried
from trouper.models import Fallback, ModelError, RateLimited, Recorded, Scripted, fail, reply


class Bare(ModelError):
    """A class of somebody's own that never calls its base."""

    may_retry = True

    def __init__(self) -> None:
        Exception.__init__(self, "slow down")


class Odd(RateLimited):
    kind = 7  # type: ignore[assignment]


def retries(journal: list[Record]) -> list[ModelRetried]:
    return [event for record in journal for event in record.events if isinstance(event, ModelRetried)]


def odd(**fields: Any) -> ModelError:
    error = RateLimited("slow down")
    for name, value in fields.items():
        setattr(error, name, value)
    return error


@pytest.mark.parametrize(
    ("advice", "waited_s"),
    [("3", 3.0), (2, 2.0), (-5.0, 0.0), (" 0.5 ", 0.5)],
    ids=["text", "whole", "negative", "padded"],
)
async def test_advice_is_followed_in_whatever_form_it_comes(
    autojump_clock, open_checked, journal, advice: Any, waited_s: float
) -> None:
    """L11: a header's text, as a client of one's own hands it on."""
    model = Scripted([reply(fail(RateLimited("slow down", retry_after_s=advice))), reply("Fine.")])
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        began = trio.current_time()
        assert (await session.ask("go")).text == "Fine."
        assert trio.current_time() - began == pytest.approx(waited_s, abs=0.01)
    (retried,) = retries(journal)
    assert retried.fault.retry_after_s == waited_s


@pytest.mark.parametrize(
    "advice",
    ["soon", "", b"3", math.nan, math.inf, -math.inf, "nan", "inf", "1e999", [3], object(), True, "9" * 5_000, 10**400],
    ids=lambda advice: repr(advice)[:8],
)
async def test_advice_that_is_none_is_passed_over(autojump_clock, open_checked, journal, advice: Any) -> None:
    """L11: the usual delays hold then."""
    model = Scripted([reply(fail(RateLimited("slow down", retry_after_s=advice))), reply("Fine.")])
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        began = trio.current_time()
        assert (await session.ask("go")).text == "Fine."
        assert trio.current_time() - began <= 1.0
    (retried,) = retries(journal)
    assert retried.fault.retry_after_s is None


async def test_nobody_waits_for_days_because_a_provider_says_so(autojump_clock, open_checked) -> None:
    """L11: also where a step may take as long as it likes. The turn says why it ended, and how long the provider would have it wait."""
    model = Scripted([reply(fail(RateLimited("the month is over", retry_after_s=86_400.0))), reply("Fine.")])
    async with open_checked(model, limits=Limits(deadlines=Deadlines(step_s=None))) as runtime:
        session = await runtime.session("s")
        began = trio.current_time()
        result = await session.ask("go")
        assert trio.current_time() == began
        assert result.error is not None and result.error.kind == "rate_limit"
        assert result.error.retry_after_s == 86_400.0
        assert (await session.ask("again")).text == "Fine."


@pytest.mark.parametrize(
    "error",
    [Bare(), odd(message=b"\xff"), odd(message=None), odd(retryable="yes"), odd(retryable=None), Odd("slow down")],
    ids=["bare", "bytes", "no message", "retryable text", "retryable none", "kind"],
)
async def test_an_error_without_sane_fields_is_an_error_all_the_same(autojump_clock, open_checked, error) -> None:
    """M1, I23: it ends its call, and the journal can hold it."""
    async with open_checked(Scripted([reply(fail(error))] * 6 + [reply("Fine.")], exhausted="repeat")) as runtime:
        session = await runtime.session("s")
        await session.ask("go")
        result = await session.ask("again")
        assert result.text == "Fine." or result.error is not None
    assert isinstance(error.as_fault().message, str)


class Untold(RateLimited):
    """A class of somebody's own that tells of itself in a way of its own."""

    def __init__(self, told: Any) -> None:
        super().__init__("slow down")
        self._told = told

    def as_fault(self) -> Fault:
        if isinstance(self._told, Exception):
            raise self._told
        return self._told


@pytest.mark.parametrize(
    "told",
    [
        ValueError("no"),
        None,
        "slow down",
        Fault("rate_limit", None),  # type: ignore[arg-type]
        Fault("rate_limit", "slow down", retryable=True, retry_after_s=math.nan),
        Fault("rate_limit", "slow down", retryable=True, retry_after_s="3"),  # type: ignore[arg-type]
    ],
    ids=["raises", "nothing", "text", "no message", "nan", "text for seconds"],
)
async def test_an_error_that_cannot_be_told_ends_its_call_and_not_the_session(
    autojump_clock, open_checked, caplog, told: Any
) -> None:
    """M1, I23: the session crashed, and after a few of them stayed down."""
    model = Scripted([reply(fail(Untold(told)))] * 7 + [reply("Fine.")])
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        for _ in range(7):
            result = await session.ask("go")
            assert result.error is not None
            assert result.error.kind == "other" and result.error.message.endswith("raised Untold")
        assert (await session.ask("again")).text == "Fine."
    assert "crashed" not in caplog.text


@pytest.mark.parametrize(
    "error", [Bare(), odd(retry_after_s="soon"), odd(message=None)], ids=["bare", "text", "no message"]
)
async def test_wrappers_pass_on_an_error_that_they_do_not_know(autojump_clock, open_checked, tmp_path, error) -> None:
    """M1, M6: a fallback names it, a recording keeps it."""
    other = RateLimited("busy", retry_after_s=2.0)
    for wrapped in (
        Fallback(Scripted([reply(fail(other))] * 9), Scripted([reply(fail(error))] * 9)),
        Recorded(Scripted([reply(fail(error))] * 9), tmp_path / "cassette"),
    ):
        async with open_checked(wrapped) as runtime:
            result = await (await runtime.session("s")).ask("go")
            assert result.error is not None and "slow down" in result.error.message


@pytest.mark.parametrize("kind", [Gemini, OpenAICompatible, Anthropic])
@pytest.mark.parametrize("name", [None, 5, ""])
def test_what_names_no_model_is_a_setting_that_makes_no_sense(kind: type, name: object) -> None:
    with pytest.raises(ConfigError, match="is not a model's name; write one like"):
        kind(name, api_key="k")


@pytest.mark.parametrize("kind", [Gemini, OpenAICompatible, Anthropic])
def test_a_config_that_is_no_mapping_is_named(kind: type) -> None:
    with pytest.raises(ConfigError, match="mapping"):
        kind("some-model", api_key="k", config=5)
