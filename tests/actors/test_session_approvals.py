"""Approvals and client-side calls inside a turn (T4, L20): asked for, given, denied, lapsed; silence is never approval."""

from __future__ import annotations

import pytest
import trio
from session_watch import recorded, seen, wait_idle

from trouper import CommandRejected, Limits, Rule, open_runtime, tool
from trouper._errors import UsageError
from trouper.core.events import ApprovalGiven, ApprovalRequested, CallEnded, CallHeld, CallStarted, CallWasLate
from trouper.core.messages import Outcome
from trouper.models import Scripted, call, reply
from trouper.testing import check_invariants

ran: list[str] = []


@pytest.fixture(autouse=True)
def _clear() -> None:
    ran.clear()


@tool(policy="requires_approval")
async def deploy(where: str) -> str:
    """Deploys."""
    ran.append(where)
    return f"deployed to {where}"


@tool(policy="client_side")
async def show_map(city: str) -> str:
    """The host shows a map."""
    raise AssertionError("the host answers this call")


@pytest.mark.parametrize("always", ["false", 1, None])
async def test_an_approval_for_every_later_call_is_one_in_so_many_words(autojump_clock, open_checked, always):
    """T4: the text of a form is true whatever it says. Refused, it is no approval of the one call either."""
    model = Scripted([reply(call("deploy", where="prod")), reply("Done.")])
    async with open_checked(model, tools=[deploy]) as runtime:
        session = await runtime.session("s")
        async with session.turn("deploy") as turn:
            asked = await seen(turn, ApprovalRequested)
            with pytest.raises(UsageError, match="says neither yes nor no; give True or False"):
                await session.approve(asked.call, always=always)
            assert session.approvals == (asked.call,) and not ran
            await session.deny(asked.call)


async def test_a_call_that_needs_approval_waits_for_it(autojump_clock, open_checked, journal):
    model = Scripted([reply(call("deploy", where="prod")), reply("Done.")])
    async with open_checked(model, tools=[deploy]) as runtime:
        session = await runtime.session("s")
        async with session.turn("deploy") as turn:
            asked = await seen(turn, ApprovalRequested)
            assert session.approvals == (asked.call,)
            await trio.sleep(100)
            assert not ran
            await session.approve(asked.call, by="ada")
            assert (await turn.wait_ended()).text == "Done."
    assert ran == ["prod"]
    assert recorded(journal, ApprovalGiven)[0].by == "ada"


async def test_always_holds_for_every_later_call_of_the_tool(autojump_clock, open_checked, journal):
    script = [reply(call("deploy", where=where)) for where in ("a", "b")]
    async with open_checked(Scripted([*script, reply("Done.")]), tools=[deploy]) as runtime:
        session = await runtime.session("s")
        async with session.turn("deploy") as turn:
            await session.approve((await seen(turn, ApprovalRequested)).call, always=True)
            await turn.wait_ended()
    assert ran == ["a", "b"] and len(recorded(journal, ApprovalRequested)) == 1


async def test_a_denial_is_the_models_to_read(autojump_clock, open_checked):
    model = Scripted([reply(call("deploy", where="prod")), reply("As you wish.")])
    async with open_checked(model, tools=[deploy]) as runtime:
        session = await runtime.session("s")
        async with session.turn("deploy") as turn:
            await session.deny((await seen(turn, ApprovalRequested)).call, "Not today.")
            await turn.wait_ended()
    (given,) = model.requests[1].messages[-1].answers
    assert given.outcome is Outcome.DENIED and "Not today." in given.content and not ran


async def test_silence_is_never_approval(autojump_clock, open_checked):
    """T4: an approval that nobody gives lapses as a denial."""
    model = Scripted([reply(call("deploy", where="prod")), reply("Nobody was there.")])
    async with open_checked(model, tools=[deploy], limits=Limits(approval_s=60.0)) as runtime:
        session = await runtime.session("s")
        begun = trio.current_time()
        async with session.turn("deploy") as turn:
            await turn.wait_ended()
        assert trio.current_time() - begun == pytest.approx(60, abs=0.5)
    assert model.requests[1].messages[-1].answers[0].outcome is Outcome.DENIED and not ran


async def test_without_anybody_to_ask_the_call_is_denied_at_once(autojump_clock, open_checked):
    model = Scripted([reply(call("deploy", where="prod")), reply("Nobody was there.")])
    async with open_checked(model, tools=[deploy]) as runtime:
        session = await runtime.session("s")
        begun = trio.current_time()
        await session.send("deploy")
        while session.last is None:
            await trio.sleep(0.1)
        assert trio.current_time() - begun < 2
    assert model.requests[1].messages[-1].answers[0].outcome is Outcome.DENIED and not ran


async def test_an_interrupt_ends_an_approval_too(autojump_clock, open_checked, journal):
    """L21"""
    async with open_checked(Scripted([reply(call("deploy", where="prod")), reply("Fine.")]), tools=[deploy]) as runtime:
        session = await runtime.session("s")
        async with session.turn("deploy") as turn:
            asked = await seen(turn, ApprovalRequested)
            await session.interrupt()
        assert session.approvals == ()
        with pytest.raises(CommandRejected, match="not waiting"):
            await session.approve(asked.call)
        assert (await session.ask("and?")).text == "Fine."
    assert recorded(journal, CallEnded)[0].outcome is Outcome.CANCELLED and not ran


async def test_an_approval_binds_the_call_as_it_stands(autojump_clock, open_checked):
    """T4: neither unknown nor ended calls can be approved."""
    async with open_checked(Scripted([reply("Hi.")]), tools=[deploy]) as runtime:
        session = await runtime.session("s")
        with pytest.raises(CommandRejected):
            await session.approve("call_9_9_9")
        await session.ask("hello")


async def test_a_rule_may_ask_for_any_tool(autojump_clock, open_checked, journal):
    @tool(readonly=True)
    async def look() -> str:
        """Looks."""
        return "seen"

    model = Scripted([reply(call("look"), call("deploy", where="x")), reply("Done.")])
    rules = [Rule("look", "ask"), Rule("deploy", "allow")]
    async with open_checked(model, tools=[look, deploy], policies=rules) as runtime:
        session = await runtime.session("s")
        async with session.turn("go") as turn:
            asked = await seen(turn, ApprovalRequested)
            await session.approve(asked.call)
            await turn.wait_ended()
    assert asked.call == "call_1_1_0"
    assert {given.outcome for given in model.requests[1].messages[-1].answers} == {Outcome.OK}


@pytest.mark.parametrize("error", [False, True])
async def test_a_client_side_call_is_answered_by_the_host(autojump_clock, open_checked, journal, error):
    model = Scripted([reply(call("show_map", city="Ulm")), reply("There.")])
    async with open_checked(model, tools=[show_map]) as runtime:
        session = await runtime.session("s")
        async with session.turn("where?") as turn:
            held = await seen(turn, CallHeld)
            await session.answer(held.call, {"shown": True, "at": (48.4, 9.98)}, error=error)
            assert (await turn.wait_ended()).text == "There."
    (given,) = model.requests[1].messages[-1].answers
    assert given.content == {"shown": True, "at": [48.4, 9.98]}
    assert given.outcome is (Outcome.ERROR if error else Outcome.OK)
    assert not recorded(journal, CallStarted)


async def test_what_a_client_answers_is_cut_to_what_a_model_may_be_told(autojump_clock, tmp_path):
    """T9: the client is no more to be trusted with the context than a tool is; nothing is lost, and nothing is kept of what was not asked for."""
    model = Scripted([reply(call("show_map", city="Ulm")), reply("There.")])
    async with open_runtime(tmp_path, model=model, tools=[show_map], durability="write") as runtime:
        session = await runtime.session("s")
        async with session.turn("where?") as turn:
            held = await seen(turn, CallHeld)
            with pytest.raises(CommandRejected):
                await session.answer("call_7_7_7", "x" * 100_000)
            await session.answer(held.call, "\x1b[31m" + "north\n" * 50_000)
            await turn.wait_ended()
        files = runtime.files_of("s")
        assert [entry.path for entry in files.walk()] == ["outputs", "outputs/call_1_1_0.txt"]
        assert files.read("outputs/call_1_1_0.txt").decode().strip() == ("north\n" * 50_000).strip()
    (given,) = model.requests[1].messages[-1].answers
    assert len(given.content.encode()) <= 65_536 and given.content.startswith("north\n")
    assert "'outputs/call_1_1_0.txt'" in given.content
    assert check_invariants(tmp_path) == []


@pytest.mark.parametrize("always", [False, True])
async def test_a_client_side_call_that_was_approved_is_still_the_hosts(autojump_clock, open_checked, journal, always):
    """T4: a rule may ask for a client-side tool; the approval lets the host run it, and nobody else."""
    model = Scripted([reply(call("show_map", city="Ulm")), reply(call("show_map", city="Bonn")), reply("There.")])
    async with open_checked(model, tools=[show_map], policies=[Rule("*", "ask")]) as runtime:
        session = await runtime.session("s")
        async with session.turn("where?") as turn:
            for number in range(2):
                if number == 0 or not always:
                    asked = await seen(turn, ApprovalRequested)
                    await session.approve(asked.call, always=always)
                held = await seen(turn, CallHeld)
                await session.answer(held.call, "shown")
            assert (await turn.wait_ended()).text == "There."
    assert [given.content for given in model.requests[2].messages[-1].answers] == ["shown"]
    assert len(recorded(journal, CallHeld)) == 2 and not recorded(journal, CallStarted)


@pytest.mark.parametrize(
    ("limits", "own", "waits_s"),
    [
        (Limits(answer_s=60.0), None, 60.0),
        (Limits(answer_s=60.0), 90.0, 90.0),
        (Limits(), None, 3_600.0),
        (Limits(answer_s=None), None, None),
        (Limits(answer_s=60.0), 0, None),
    ],
)
@pytest.mark.parametrize("policies", [(), (Rule("*", "ask"),)], ids=["at once", "after an approval"])
async def test_a_client_side_call_that_nobody_answers_ends_in_time(
    autojump_clock, open_checked, limits, own, waits_s, policies
):
    """T4, L20, I26: silence is an outcome, which the model is told; only who says so waits without limit."""
    model = Scripted([reply(call("show_map", city="Ulm")), reply("Nobody was there.")])
    shown = show_map.with_(timeout_s=own)
    async with open_checked(model, tools=[shown], limits=limits, policies=policies) as runtime:
        session = await runtime.session("s")
        async with session.turn("where?") as turn:
            if policies:
                await session.approve((await seen(turn, ApprovalRequested)).call)
            begun = trio.current_time()
            held = await seen(turn, CallHeld)
            if waits_s is None:
                await trio.sleep(80_000.0)
                await session.answer(held.call, "shown")
            with trio.fail_after(100_000.0):
                assert (await turn.wait_ended()).text == "Nobody was there."
            if waits_s is not None:
                assert trio.current_time() - begun == pytest.approx(waits_s, abs=0.5)
                with pytest.raises(CommandRejected, match="is not waiting for an answer"):
                    await session.answer(held.call, "too late")
    (given,) = model.requests[1].messages[-1].answers
    if waits_s is None:
        assert given.outcome is Outcome.OK
    else:
        assert given.outcome is Outcome.TIMEOUT and given.content.endswith("has not said in time that it did.")


async def test_an_answer_that_is_no_json_is_refused_and_the_call_waits_on(autojump_clock, open_checked):
    """T2: nothing is told to the model that the host has not said."""
    model = Scripted([reply(call("show_map", city="Ulm")), reply("There.")])
    looped: list[object] = []
    looped.append(looped)
    async with open_checked(model, tools=[show_map]) as runtime:
        session = await runtime.session("s")
        async with session.turn("where?") as turn:
            held = await seen(turn, CallHeld)
            for odd in (float("nan"), {"at": [float("inf")]}, object(), {1, 2}, b"bytes", looped):
                with pytest.raises(UsageError, match="the answer is not JSON"):
                    await session.answer(held.call, odd)
            await session.answer(held.call, "shown")
            assert (await turn.wait_ended()).text == "There."


async def test_an_answer_to_a_call_that_waits_for_none_is_refused(autojump_clock, open_checked, journal):
    """T4: unknown, run by a tool, waiting for an approval, answered already, or ended: the client is told, and nothing is recorded."""
    running, go_on = trio.Event(), trio.Event()

    @tool(budget_s=1000.0)
    async def slow() -> str:
        """Takes its time."""
        running.set()
        await go_on.wait()
        return "done"

    model = Scripted(
        [reply(call("show_map", city="Ulm"), call("slow"), call("deploy", where="x")), reply("There."), reply("Bye.")]
    )
    async with open_checked(model, tools=[show_map, slow, deploy]) as runtime:
        session = await runtime.session("s")
        with pytest.raises(CommandRejected, match="call 'call_1_1_0' is not waiting for an answer; "):
            await session.answer("call_1_1_0", "early")
        async with session.turn("where?") as turn:
            held = await seen(turn, CallHeld)
            await running.wait()
            for other in ("call_1_1_1", "call_1_1_2", "call_7_7_7", "", held.call.upper()):
                with pytest.raises(CommandRejected, match="is not waiting for an answer"):
                    await session.answer(other, "forged")
            await session.answer(held.call, "shown")
            with pytest.raises(CommandRejected, match="is not waiting for an answer"):
                await session.answer(held.call, "shown again")
            go_on.set()
            await session.deny("call_1_1_2")
            assert (await turn.wait_ended()).text == "There."
        with pytest.raises(CommandRejected, match="is not waiting for an answer"):
            await session.answer(held.call, "much later")
        assert (await session.ask("thanks")).text == "Bye."
    assert [given.content for given in model.requests[1].messages[-1].answers[:2]] == ["shown", "done"]
    assert not recorded(journal, CallWasLate)


async def test_a_denial_of_a_call_that_waits_for_no_approval_is_refused(autojump_clock, open_checked):
    """T4: as an approval is."""
    async with open_checked(Scripted([reply(call("deploy", where="x")), reply("Fine.")]), tools=[deploy]) as runtime:
        session = await runtime.session("s")
        async with session.turn("go") as turn:
            asked = await seen(turn, ApprovalRequested)
            with pytest.raises(CommandRejected, match="call 'call_9_9_9' is not waiting for an approval"):
                await session.deny("call_9_9_9")
            await session.deny(asked.call)
            with pytest.raises(CommandRejected, match="is not waiting for an approval"):
                await session.deny(asked.call)
            assert (await turn.wait_ended()).text == "Fine."


async def test_of_an_approval_and_a_denial_at_once_one_is_refused(autojump_clock, open_checked):
    """T4: who denied it was told that it was denied, and it ran. Twenty times, since the scheduler may happen to run the denial first."""
    script = [reply(call("deploy", where="prod")), reply("Fine.")] * 20
    async with open_checked(Scripted(script), tools=[deploy]) as runtime:
        session = await runtime.session("s")

        async def answer(name: str) -> None:
            try:
                await getattr(session, name)(asked.call)
            except CommandRejected:
                refused.append(name)

        for _ in range(20):
            ran.clear()
            refused: list[str] = []
            async with session.turn("go") as turn:
                asked = await seen(turn, ApprovalRequested)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(answer, "approve")
                    nursery.start_soon(answer, "deny")
                await turn.wait_ended()
            assert refused == (["deny"] if ran else ["approve"])


async def test_a_turn_with_a_pending_approval_can_be_steered(autojump_clock, open_checked):
    """L10"""
    model = Scripted([reply(call("deploy", where="prod")), reply("Understood.")])
    async with open_checked(model, tools=[deploy]) as runtime:
        session = await runtime.session("s")
        async with session.turn("deploy") as turn:
            asked = await seen(turn, ApprovalRequested)
            await session.send("wait, to staging!")
            await session.deny(asked.call)
            await turn.wait_ended()
        await wait_idle(session)
    assert [m.text for m in model.requests[1].messages if m.role == "user"] == ["deploy", "wait, to staging!"]
