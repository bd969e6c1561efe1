"""T5: hooks."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest
import trio

from trouper._errors import ConfigError
from trouper.tools import Allow, Deny, Hooks, InvalidArguments, Rewrite, tool
from trouper.tools.hooks import (
    PASS,
    AfterTool,
    AfterTurn,
    BeforeTool,
    BeforeTurn,
    SessionEnded,
    SessionStarted,
    Verdict,
)


@tool
async def deploy(target: str) -> str:
    return target


def answering(answer: Any) -> Hooks:
    async def before(call: BeforeTool) -> Any:
        return answer

    return Hooks(before_tool=before)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (None, PASS),
        (Allow(), PASS),
        (Deny("Not on a Friday."), Verdict(denied="Not on a Friday.")),
        (Rewrite({"target": "staging"}), Verdict(rewritten={"target": "staging"})),
    ],
)
async def test_before_hook_may_allow_deny_or_rewrite(answer: Any, verdict: Verdict) -> None:
    assert await answering(answer).ask_before_tool("s", deploy, {"target": "live"}) == verdict


async def test_plain_function_will_do() -> None:
    """T5."""
    seen: list[object] = []
    hooks = Hooks(before_tool=lambda call: Deny("Not on a Friday."), after_tool=seen.append)
    assert await hooks.ask_before_tool("s", deploy, {"target": "x"}) == Verdict(denied="Not on a Friday.")
    await hooks.tell(AfterTool("s", "deploy", {}, "ok"))
    assert len(seen) == 1


async def test_denial_without_a_reason_says_so() -> None:
    """T5: the model is not left with an empty answer."""
    verdict = await Hooks(before_tool=lambda call: Deny(" ")).ask_before_tool("s", deploy, {"target": "x"})
    assert verdict.denied == "Permission was denied by a check that gave no reason."


@pytest.mark.parametrize(
    "wrong", [{"before_tool": 3}, {"session_ended": "x"}, {"timeout_s": 0}, {"timeout_s": "3"}, {"timeout_s": True}]
)
def test_what_is_no_hook_is_refused_where_it_is_given(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"write an async function|give seconds"):
        Hooks(**wrong)


class Looking:
    async def __call__(self, event: object) -> AsyncIterator[None]:
        yield None


async def looking(_: str, event: object) -> AsyncIterator[None]:
    yield None


def guarding(event: object) -> Iterator[Deny]:
    yield Deny("Not on a Friday.")


@pytest.mark.parametrize("generator", [guarding, partial(looking, "on"), Looking(), Looking().__call__])
def test_a_generator_is_no_hook(generator: Any) -> None:
    """T5: nothing of it would run, and of one that looks on nobody would be told."""
    for name in ("session_started", "session_ended", "before_turn", "after_turn", "before_tool", "after_tool"):
        with pytest.raises(ConfigError, match=rf"{name}=.* is a generator, .* leave out its `yield`"):
            Hooks(**{name: generator})


async def test_no_hook_passes() -> None:
    assert await Hooks().ask_before_tool("s", deploy, {}) == PASS
    assert await Hooks().ask_before_turn("s", "hi") == PASS
    await Hooks().tell(AfterTurn("s", "end_turn"))


async def test_hook_sees_the_call_but_cannot_change_it_in_place() -> None:
    seen = []

    async def before(call: BeforeTool) -> None:
        seen.append((call.session, call.tool, call.call_id, dict(call.arguments)))
        call.arguments["target"] = "elsewhere"

    arguments = {"target": "live"}
    assert await Hooks(before_tool=before).ask_before_tool("s", deploy, arguments, "call_1_1_0") == PASS
    assert seen == [("s", "deploy", "call_1_1_0", {"target": "live"})]
    assert arguments == {"target": "live"}


async def test_rewrite_is_validated_again() -> None:
    verdict = await answering(Rewrite({"target": 5})).ask_before_tool("s", deploy, {"target": "live"})
    with pytest.raises(InvalidArguments):
        deploy.prepare(verdict.rewritten)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), [-float("inf")]])
async def test_rewrite_to_what_is_no_number_denies(number: Any, caplog: pytest.LogCaptureFixture) -> None:
    """T5: as null it was dropped, and the tool ran with its default."""

    @tool
    async def pay(amount: float = 100.0) -> float:
        """Pay."""
        return amount

    verdict = await answering(Rewrite({"amount": number})).ask_before_tool("s", pay, {"amount": 5.0})
    assert verdict.denied is not None and verdict.rewritten is None
    assert "give a finite number" in caplog.text


async def test_before_hook_that_raises_denies_without_telling_why(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(call: BeforeTool) -> None:
        raise RuntimeError("password is hunter2")

    with caplog.at_level(logging.ERROR):
        verdict = await Hooks(before_tool=broken).ask_before_tool("s", deploy, {})
    assert verdict.denied is not None
    assert "hunter2" not in verdict.denied
    assert "hunter2" in caplog.text


@pytest.mark.parametrize("answer", [True, False, "deny", {"deny": True}])
async def test_before_hook_that_returns_something_else_denies(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        assert (await answering(answer).ask_before_tool("s", deploy, {})).denied is not None
    assert "return None, Allow(), Deny(reason) or Rewrite(arguments)" in caplog.text


async def test_before_hook_that_hangs_denies(autojump_clock: trio.testing.MockClock) -> None:
    async def hangs(call: BeforeTool) -> None:
        await trio.sleep_forever()

    assert (await Hooks(before_tool=hangs, timeout_s=5).ask_before_tool("s", deploy, {})).denied is not None


async def test_cancelling_a_hook_is_no_denial(autojump_clock: trio.testing.MockClock) -> None:
    """L15: an interrupt is an interrupt."""

    async def hangs(call: BeforeTool) -> None:
        await trio.sleep_forever()

    with trio.move_on_after(1) as scope:
        await Hooks(before_tool=hangs).ask_before_tool("s", deploy, {})
        raise AssertionError("the cancellation must pass through")
    assert scope.cancelled_caught


async def test_before_turn_may_deny_but_not_rewrite() -> None:
    async def denies(turn: BeforeTurn) -> Deny:
        return Deny(f"no {turn.text}")

    async def rewrites(turn: BeforeTurn) -> Rewrite:
        return Rewrite({})

    assert await Hooks(before_turn=denies).ask_before_turn("s", "hi") == Verdict(denied="no hi")
    assert (await Hooks(before_turn=rewrites).ask_before_turn("s", "hi")).denied is not None


async def test_every_event_reaches_its_own_hook() -> None:
    seen: list[object] = []

    async def note(event: Any) -> None:
        seen.append(event)

    hooks = Hooks(session_started=note, session_ended=note, after_turn=note, after_tool=note)
    events = [
        SessionStarted("s"),
        AfterTool("s", "deploy", {}, "denied"),
        AfterTurn("s", "end_turn"),
        SessionEnded("s"),
    ]
    for event in events:
        await hooks.tell(event)  # type: ignore[arg-type]
    assert seen == events


async def test_after_hook_cannot_change_what_the_history_says() -> None:
    """I10, T5: it looks on."""

    def meddle(event: AfterTool) -> None:
        event.arguments["to"].append("mallory")
        event.content["sent"] = "never"

    arguments, content = {"to": ["ada"]}, {"sent": "at noon"}
    await Hooks(after_tool=meddle).tell(AfterTool("s", "send", arguments, "ok", content))
    assert (arguments, content) == ({"to": ["ada"]}, {"sent": "at noon"})


async def test_after_hook_that_raises_or_hangs_is_logged(
    caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    async def broken(event: AfterTool) -> None:
        raise RuntimeError("oops")

    async def hangs(event: AfterTurn) -> None:
        await trio.sleep_forever()

    with caplog.at_level(logging.ERROR):
        await Hooks(after_tool=broken).tell(AfterTool("s", "deploy", {}, "ok"))
        await Hooks(after_turn=hangs, timeout_s=1).tell(AfterTurn("s", "end_turn"))
    assert "oops" in caplog.text
    assert "was stopped" in caplog.text
