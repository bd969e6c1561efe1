"""One actor's crash changes no other session (I23): the session that crashed is rebuilt from the journal, a few times, then it stays down, visibly (I22)."""

from __future__ import annotations

import pytest
import trio

from trouper import Scripted, open_runtime, tool
from trouper.actors import session as session_actor
from trouper.models.scripted import call, reply
from trouper.session import SessionEnded
from trouper.testing import check_invariants


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of sessions whose actor runs out of memory at the next decision."""
    broken: set[str] = set()
    real = session_actor.step

    def step(state, command):
        if state.session in broken:
            broken.discard(state.session)
            raise MemoryError
        return real(state, command)

    monkeypatch.setattr(session_actor, "step", step)
    return broken


async def test_a_session_that_crashes_is_rebuilt_and_its_neighbour_notices_nothing(
    failing: set[str], autojump_clock: trio.testing.MockClock
) -> None:
    """I23: MemoryError in an actor."""
    model = Scripted([reply("fine")], exhausted="repeat")
    async with open_runtime(model=model, durability="memory") as runtime:
        weak, strong = await runtime.session("weak"), await runtime.session("strong")
        assert (await weak.ask("hello")).text == "fine"
        before = strong.statistics().events
        failing.add("weak")
        with pytest.raises(SessionEnded, match="restarted"):
            await weak.ask("crash now")
        assert strong.statistics().events == before
        assert (await strong.ask("hello")).text == "fine"
        assert (await weak.ask("and you?")).text == "fine"
        assert weak.statistics().turns == 2
        assert check_invariants(runtime._log) == []


async def test_a_session_that_keeps_crashing_stays_down_and_says_so(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """I22: restarts stay within their limit, then a visible failure."""
    model = Scripted([reply("fine")], exhausted="repeat")
    async with open_runtime(model=model, durability="memory") as runtime:
        weak, strong = await runtime.session("weak"), await runtime.session("strong")
        real = session_actor.step

        def step(state, command):
            if state.session == "weak":
                raise MemoryError
            return real(state, command)

        monkeypatch.setattr(session_actor, "step", step)
        for _ in range(20):
            with pytest.raises(SessionEnded):
                await weak.ask("crash")
            await trio.sleep(0.1)
        assert weak._ref.exit is not None
        assert (await strong.ask("hello")).text == "fine"


async def test_a_tool_that_runs_out_of_memory_is_an_internal_error(autojump_clock: trio.testing.MockClock) -> None:
    """L20: the model is told one fixed sentence; the turn goes on."""

    @tool
    async def greedy() -> str:
        """Takes too much."""
        raise MemoryError

    model = Scripted([reply(call("greedy")), reply("I could not do that.")])
    async with open_runtime(model=model, tools=[greedy], durability="memory") as runtime:
        session = await runtime.session("s")
        assert (await session.ask("go")).text == "I could not do that."
        answer = session.history[2].answers[0]
        assert "internal error" in answer.content
        assert "MemoryError" not in answer.content
