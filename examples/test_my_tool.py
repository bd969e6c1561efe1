"""Property-testing a tool of your own, and an agent that uses it: run it with pytest, or as a program."""

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from trouper import Scripted, ToolContext, ToolError, open_runtime, tool
from trouper.journal import MemoryDisk, open_reader
from trouper.models import call, reply
from trouper.testing import check_invariants, run_simulated


@tool(readonly=True)
async def split_bill(total_cents: int, people: int) -> list[int]:
    """Split a bill as evenly as cents allow."""
    if people < 1:
        raise ToolError("a bill needs at least one person")
    share, left = divmod(total_cents, people)
    return [share + 1] * left + [share] * (people - left)


@given(st.integers(0, 10**9), st.integers(1, 100))
@settings(max_examples=50, deadline=None)
def test_shares_add_up_and_differ_by_a_cent_at_most(total: int, people: int) -> None:
    arguments = split_bill.prepare({"total_cents": total, "people": people}).arguments
    shares = trio.run(split_bill.run, arguments, ToolContext()).content
    assert sum(shares) == total and max(shares) - min(shares) <= 1


@given(st.integers(0, 10**6), st.integers(-2, 5), st.integers(0, 2**16))
@settings(max_examples=20, deadline=None)
def test_whatever_the_model_asks_the_journal_is_sound(total: int, people: int, seed: int) -> None:
    """The whole runtime in virtual time, with a drawn schedule; then every invariant over its journal."""
    disk = MemoryDisk()

    async def agent() -> str:
        model = Scripted([reply(call("split_bill", total_cents=total, people=people)), reply("Done.")])
        async with open_runtime("/state", model=model, tools=[split_bill], durability="memory", disk=disk) as runtime:
            return (await (await runtime.session("dinner")).ask("split it")).text

    assert run_simulated(agent, seed=seed) == "Done."
    assert check_invariants(open_reader("/state", disk=disk), complete=True) == []


if __name__ == "__main__":
    test_shares_add_up_and_differ_by_a_cent_at_most()
    test_whatever_the_model_asks_the_journal_is_sound()
    print("ok")
