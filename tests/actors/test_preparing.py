"""What is to become of a call, before anything runs: one `Preparer` serves all sessions that work with the same (L16-L20, T4)."""

from __future__ import annotations

from attrs import define, field

from trouper import Budget, Limits, tool
from trouper.actors.draft import OpenCall
from trouper.actors.preparing import Preparer
from trouper.core.messages import Json
from trouper.core.session import State
from trouper.core.values import changed
from trouper.tools.registry import Registry


@define
class Caller:
    session: str = "s"
    state: State = field(factory=State)
    is_watched: bool = False

    def redact_text(self, text: str) -> str:
        return text

    def redact_value(self, value: Json) -> Json:
        return value


def call(name: str, arguments: Json) -> OpenCall:
    made = OpenCall(name, None, None)
    made.arguments = arguments
    return made


def preparer(registry: Registry) -> Preparer:
    return Preparer(registry, (), (), Limits(), Budget())


async def test_a_tool_that_takes_the_name_of_another_is_judged_by_itself() -> None:
    """Tools may be replaced between two calls; what was said of the first does not hold for the second (I4)."""

    @tool(name="look", readonly=True, timeout_s=5)
    async def look(n: int) -> int:
        return n

    @tool(name="look", policy="requires_approval", timeout_s=7)
    async def other(n: int) -> int:
        return n

    registry = Registry([look])
    prepared = preparer(registry)
    first = (await prepared.prepare(call("look", {"n": 1}), Caller()))[1]
    registry.unregister("look")
    registry.add(other)
    watched = Caller(is_watched=True)
    second = (await prepared.prepare(call("look", {"n": 1}), watched))[1]
    approved = Caller(state=changed(State(), always=("look",)))
    third = (await prepared.prepare(call("look", {"n": 1}), approved))[1]
    assert (first.verdict, first.side_effect, first.timeout_s) == ("run", "pure", 5)
    assert (second.verdict, second.side_effect, second.timeout_s) == ("ask", "at_most_once", 7)
    assert (third.verdict, third.side_effect, third.timeout_s) == ("run", "at_most_once", 7)


async def test_notes_of_a_repair_belong_to_their_own_call() -> None:
    """L17: what was mended in one call is not said of the next."""

    @tool
    async def look(n: int) -> int:
        return n

    prepared = preparer(Registry([look]))
    arguments, mended = await prepared.prepare(call("look", {"n": "1"}), Caller())
    assert arguments == {"n": 1} and mended.notes
    _, clean = await prepared.prepare(call("look", {"n": 1}), Caller())
    assert clean.notes == ()


async def test_who_may_approve_is_asked_call_by_call() -> None:
    """T4: silence is never approval; one session that is watched does not speak for another."""

    @tool(policy="requires_approval")
    async def look(n: int) -> int:
        return n

    prepared = preparer(Registry([look]))
    verdicts = [
        (await prepared.prepare(call("look", {"n": 1}), caller))[1].verdict
        for caller in (Caller(is_watched=True), Caller(), Caller(is_watched=True))
    ]
    assert verdicts == ["ask", "refuse", "ask"]
