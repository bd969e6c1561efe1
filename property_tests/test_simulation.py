"""The whole runtime in virtual time: 500 seeds (10,000 with `make simulate`), each checked against every invariant."""

from __future__ import annotations

import logging
from collections import Counter

import pytest
import trio

from trouper import ToolContext, ToolError, tool
from trouper._errors import ToolDefinitionError
from trouper.testing import simulation

SEEDS = 500
CHUNK = 25


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Tools that fail are part of the plan; a log of them all would fill the memory."""
    caplog.set_level(logging.CRITICAL, logger="trouper")


@pytest.mark.parametrize("start", range(0, SEEDS, CHUNK))
def test_every_seed_keeps_the_invariants_and_comes_to_rest(start: int) -> None:
    """I1-I20, I26-I32: safety with faults on, liveness with faults off."""
    for seed in range(start, start + CHUNK):
        result = simulation.simulate(seed)
        assert result.records > 0


#: They need crashes or delays that fall together, and come once in hundreds of seeds, or never.
RARE = {
    "CallWasLate",
    "ScheduleFireAbandoned",
    "ScheduleFireReclaimed",
    "ScheduleFiresSkipped",
    "ScheduleRebased",
    "TaskEndedLate",
    "TaskUpdateRefused",
}


def test_whatever_can_happen_in_a_session_happens_in_a_few_seeds() -> None:
    """What never happens is never checked: whoever adds a kind of event has the simulator bring it about."""
    happened: set[str] = set()
    for seed in range(80):
        happened |= simulation.simulate(seed).events.keys()
    assert simulation.KINDS - happened - RARE == set()


#: Once broken, each by a mistake of its own.
@pytest.mark.parametrize("seed", [2863])
def test_seeds_that_once_broke_hold(seed: int) -> None:
    """2863: a snapshot outlived the records that it held (I13, I17)."""
    simulation.simulate(seed)


@pytest.mark.parametrize("seed", [1, 29, 42, 137])
def test_a_seed_is_the_same_run_again(seed: int) -> None:
    assert simulation.simulate(seed) == simulation.simulate(seed)


def test_a_broken_runtime_is_told_as_a_story(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator notices: a core that forgets to settle the tools of an interrupted turn does not pass."""
    from trouper.core import steps

    monkeypatch.setattr(steps, "startable", lambda calls, limit: ())
    with pytest.raises(simulation.SimulationFailed, match=r"seed \d+ breaks(.|\n)*the story(.|\n)*again: python -m"):
        for seed in range(20):
            simulation.simulate(seed)


def test_tools_of_ones_own_are_run_and_cut_off_and_hold_if_they_are_sound() -> None:
    """The simulator, pointed at a user's tools: one that may be repeated is, and one that may not never (I4)."""
    ran: Counter[tuple[str, str, str]] = Counter()

    @tool
    async def order(item: str, count: int = 1, *, context: ToolContext) -> str:
        """Order something."""
        ran["order", context.session_id, context.call_id] += 1
        await trio.sleep(0.2)
        if not item:
            raise ToolError("say what")
        return item * count

    @tool(idempotent=True, background=True)
    async def book(people: int, names: list[str], context: ToolContext) -> dict[str, int]:
        """Book a table."""
        ran["book", context.session_id, context.call_id] += 1
        await trio.sleep(5.0)
        return {"table": people + len(names)}

    repeated: set[str] = set()
    for seed in range(60):
        ran.clear()
        simulation.simulate(seed, tools=[order, book])
        repeated |= {name for (name, _, _), times in ran.items() if times > 1}
        if repeated and seed > 10:
            break
    assert repeated == {"book"}
    assert simulation.simulate(3, tools=[order, book]) == simulation.simulate(3, tools=[order, book])


def test_a_tool_that_breaks_is_told_with_its_arguments_and_a_short_program() -> None:
    """What a user's tool raises or returns that it should not."""

    @tool
    async def share(cents: int, people: int) -> int:
        """Each one's share."""
        return cents // people

    @tool
    async def names(some: list[str]) -> object:
        """Something else than JSON."""
        return some and object()

    @tool
    async def script(line: str) -> str:
        """A command-line program behind a tool."""
        raise SystemExit(2)

    @tool
    async def careless(item: str) -> str:
        """Keeps a cancel beyond its scope."""
        kept: list[trio.Cancelled] = []
        with trio.move_on_after(0.1):
            try:
                await trio.sleep_forever()
            except trio.Cancelled as cancel:
                kept.append(cancel)
                raise
        raise kept.pop()

    with pytest.raises(simulation.SimulationFailed) as raised:
        for number in range(20):
            simulation.simulate(number, tools=[share])
    told = str(raised.value).splitlines()
    assert "'share'" in told[1] and "'people': 0}" in told[1] and "ZeroDivisionError" in told[1]
    seed = told[0].split()[1]
    assert told[-2:] == ["  from trouper.testing import simulate", f"  simulate({seed}, tools=[share])"]
    with pytest.raises(simulation.SimulationFailed, match=r"'names' .* raised InvalidResult"):
        for number in range(20):
            simulation.simulate(number, tools=[names])
    for each, error in ((script, r"SystemExit\(2\)"), (careless, "Cancelled")):
        with pytest.raises(simulation.SimulationFailed, match=rf"'{each.name}' .* raised {error}"):
            for number in range(20):
                simulation.simulate(number, tools=[each])


def test_what_fails_as_planned_is_not_written_to_the_terminal_of_whoever_tests_a_tool(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Property-testing one's own tools: a run that found nothing wrong wrote pages of tracebacks. Whose tool is at fault gets the one that matters."""

    @tool
    async def share(cents: int, people: int) -> int:
        """Each one's share."""
        return cents // (people or 1)

    @tool
    async def unfair(cents: int, people: int) -> int:
        """Each one's share, if there is anybody."""
        return cents // people

    caplog.set_level(logging.WARNING, logger="trouper")
    simulation.simulate(0, tools=[share])
    assert "a bug in the tool" in caplog.text  # Whoever has set up a log has it all.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    before = list(logging.getLogger("trouper").handlers)
    simulation.simulate(0, tools=[share])
    with pytest.raises(simulation.SimulationFailed) as raised:
        for number in range(20):
            simulation.simulate(number, tools=[unfair])
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert capsys.readouterr().err == "" and logging.getLogger("trouper").handlers == before


def test_a_refusal_out_of_a_tools_own_nursery_is_no_mistake() -> None:
    """L20: the nursery puts a group around it, and the model is told of it like of any other."""

    @tool
    async def book(seats: int) -> str:
        """Asks two places at once."""

        async def full() -> None:
            await trio.sleep(0.1)
            raise ToolError("no seats left")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(full)
            nursery.start_soon(trio.sleep_forever)
        return "booked"

    assert any("'book'" in line for seed in range(5) for line in simulation.simulate(seed, tools=[book]).story)


def test_client_side_tools_of_ones_own_are_answered() -> None:
    """T4, I26: their turns wait for a client, and there is one."""

    @tool(policy="client_side")
    async def pick(colour: str) -> str:
        """Let the user pick."""
        raise AssertionError("this runs at the client's")

    for seed in range(8):
        simulation.simulate(seed, tools=[pick])
    assert simulation.simulate(3, tools=[pick]) == simulation.simulate(3, tools=[pick])


def test_tools_that_the_simulated_machine_cannot_have_are_told_at_once() -> None:
    """T7: by name, and not as a failure of the runtime."""

    @tool(needs=("files",))
    async def keep(text: str, context: ToolContext) -> str:
        """Write it down."""
        return text

    @tool
    async def slow(text: str) -> str:
        """Named as one of the simulator's."""
        return text

    with pytest.raises(ToolDefinitionError, match="'keep' needs 'files'"):
        simulation.simulate(1, tools=[keep])
    with pytest.raises(ToolDefinitionError, match="a tool named 'slow' of its own"):
        simulation.simulate(1, tools=[slow])
    simulation.simulate(1, tools=[slow.with_(name="mine")])


def test_the_command_runs_the_seeds_that_it_is_given_and_at_least_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulation.main(["--seeds", "2", "--start", "17"]) == 0
    assert "2 seeds hold" in capsys.readouterr().out
    for none in ("0", "-4"):
        with pytest.raises(SystemExit) as left:
            simulation.main(["--seeds", none])
        assert left.value.code == 2 and f"--seeds is {none}" in capsys.readouterr().err
