"""Supervisors: names, crashes kept to themselves, what comes out of the block, nested supervisors. I20, I22, I23."""

from __future__ import annotations

import gc
import logging
import math
import weakref
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trouper import _errors
from trouper.actors import (
    ActorFailed,
    ActorGone,
    ActorNameTaken,
    Cancelled,
    Crash,
    Crashed,
    Inbox,
    Normal,
    Ref,
    Request,
    Restart,
    RestartLimit,
    Stopped,
    Supervisor,
    SupervisorClosed,
    is_failure,
    open_supervisor,
)


def quiet(crash: Crash) -> None:
    """Crashes are expected here."""


class Boom(Exception):
    pass


async def counter(inbox: Inbox[int | str, int], total: int = 0) -> None:
    async for message in inbox:
        match message:
            case int():
                total += message
            case "boom":
                raise Boom("secret")
            case Request():
                message.reply(total)


# -- names ------------------------------------------------------------------------------------------------------------


async def test_a_name_is_unique_while_its_actor_lives_and_free_after(autojump_clock: MockClock) -> None:
    """SEMANTICS, names."""
    async with open_supervisor(name="app") as supervisor:
        first = supervisor.spawn("counter", counter)
        with pytest.raises(ActorNameTaken, match="'app' has a living actor 'counter'"):
            supervisor.spawn("counter", counter)
        assert supervisor.find("counter") == first
        supervisor.stop(first)
        with pytest.raises(ActorNameTaken):  # Stopping is still living.
            supervisor.spawn("counter", counter)
        await first.wait_exit()
        assert supervisor.find("counter") is None
        second = supervisor.spawn("counter", counter, 5)
        assert await second.ask("total?") == 5
        assert first != second
        with pytest.raises(ActorGone):
            first.tell(1)


@pytest.mark.parametrize("name", ["", "a/b", "..", ".", "a b", "x" * 129, "é"])
async def test_an_unusable_name_is_refused(autojump_clock: MockClock, name: str) -> None:
    async with open_supervisor() as supervisor:
        with pytest.raises(_errors.InvalidName, match="is not usable"):
            supervisor.spawn(name, counter)
        assert supervisor.statistics().started == 0


@pytest.mark.parametrize(
    "given", [{"restart": "always"}, {"restart": None}, {"grace_s": "5"}, {"grace_s": -1.0}, {"grace_s": math.nan}]
)
async def test_a_policy_that_is_none_is_refused_where_it_is_given(
    autojump_clock: MockClock, given: dict[str, Any]
) -> None:
    """I23: it was read when the actor crashed, or was stopped, and then failed for all the others too."""
    async with open_supervisor(report=quiet) as supervisor:
        good = supervisor.spawn("good", counter)
        with pytest.raises(_errors.UsageError, match=f"{next(iter(given))}=.* of actor 'bad'"):
            supervisor.spawn("bad", counter, **given)
        assert supervisor.find("bad") is None
        assert await good.ask("total?") == 0


async def test_a_reference_that_has_ended_does_not_stop_the_next_of_its_name(autojump_clock: MockClock) -> None:
    async with open_supervisor() as supervisor:
        old = supervisor.spawn("counter", counter)
        supervisor.cancel(old)
        await old.wait_exit()
        new = supervisor.spawn("counter", counter)
        supervisor.stop(old)
        supervisor.cancel(old)
        assert await new.ask("total?") == 0


async def test_only_the_supervisor_of_an_actor_can_stop_it(autojump_clock: MockClock) -> None:
    async with open_supervisor(name="a") as one, open_supervisor(name="b") as other:
        ref = one.spawn("counter", counter)
        with pytest.raises(_errors.UsageError, match="'b' has no actor 'a/counter'"):
            other.stop(ref)
        with pytest.raises(_errors.UsageError, match="has no actor 'b/counter'"):
            other.stop("counter")


# -- crashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restart", [Restart(on="never"), Restart(limit=1), Restart(limit=0)])
async def test_a_crash_touches_no_sibling(autojump_clock: MockClock, restart: Restart) -> None:
    """I23: one actor's crash, restart or failure changes nothing for the others, not even their queued messages."""
    async with open_supervisor(report=quiet) as supervisor:
        bad = supervisor.spawn("bad", counter, restart=restart)
        siblings = [supervisor.spawn(f"good-{i}", counter, restart=Restart()) for i in range(5)]
        for i, ref in enumerate(siblings):
            ref.tell(i)
        bad.tell("boom")
        for i, ref in enumerate(siblings):
            ref.tell(i)
        await wait_all_tasks_blocked()
        assert [await ref.ask("total?") for ref in siblings] == [0, 2, 4, 6, 8]
        assert all(not actor.restarts for actor in supervisor.statistics().actors if actor.name != "supervisor/bad")


async def test_a_crash_group_from_an_actors_own_nursery_is_a_crash(autojump_clock: MockClock) -> None:
    """An ExceptionGroup is an Exception like another."""

    async def with_nursery(inbox: Inbox[str, None]) -> None:
        async def fail() -> None:
            raise Boom

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            nursery.start_soon(trio.sleep_forever)

    async with open_supervisor(report=quiet) as supervisor:
        exit = await supervisor.spawn("actor", with_nursery).wait_exit()
    assert isinstance(exit, Crashed)
    assert isinstance(exit.exception, ExceptionGroup)
    assert exit.exception.subgroup(Boom) is not None


@pytest.mark.parametrize("how", ["cancel", "outer"])
async def test_a_failure_while_being_cancelled_is_recorded_and_the_cancel_goes_on(
    autojump_clock: MockClock, how: str
) -> None:
    """Cancelled and an error in one group: the error is the reason, and the cancellation reaches its scope."""

    async def both(inbox: Inbox[str, None]) -> None:
        async def fail_in_cleanup() -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise Boom

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail_in_cleanup)
            nursery.start_soon(trio.sleep_forever)

    with trio.CancelScope() as outer:
        async with open_supervisor(report=quiet) as supervisor:
            ref = supervisor.spawn("actor", both, restart=Restart(on="always"))
            sibling = supervisor.spawn("sibling", counter)
            await wait_all_tasks_blocked()
            if how == "outer":
                outer.cancel()
                await trio.sleep_forever()
            supervisor.cancel(ref)
            await ref.wait_exit()
            assert await sibling.ask("total?") == 0
    assert outer.cancelled_caught == (how == "outer")
    assert isinstance(ref.exit, Crashed)


async def test_nothing_begins_again_under_a_cancelled_block(autojump_clock: MockClock) -> None:
    """A permanent actor that swallows its cancellation is not restarted by a supervisor that is being cancelled."""
    lives = 0

    async def stubborn(inbox: Inbox[str, None]) -> None:
        nonlocal lives
        lives += 1
        try:
            await trio.sleep_forever()
        finally:
            raise Boom

    with trio.CancelScope() as outer:
        async with open_supervisor(report=quiet) as supervisor:
            ref = supervisor.spawn("stubborn", stubborn, restart=Restart(on="always", limit=100))
            await wait_all_tasks_blocked()
            outer.cancel()
            await trio.sleep_forever()
    assert lives == 1
    assert isinstance(ref.exit, Crashed)


def test_a_keyboard_interrupt_is_never_swallowed() -> None:
    """It is the program's, not the actor's: it ends the actor, the supervisor and the run."""
    refs: list[Ref[str, None]] = []

    async def interrupted(inbox: Inbox[str, None]) -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        async with open_supervisor() as supervisor:
            refs.append(supervisor.spawn("interrupted", interrupted, restart=Restart(on="always")))
            refs.append(supervisor.spawn("sibling", counter))  # type: ignore[arg-type]
            await trio.sleep_forever()

    with pytest.raises(BaseException) as raised:
        trio.run(main)
    interrupts = raised.value
    while isinstance(interrupts, BaseExceptionGroup):
        (interrupts,) = interrupts.exceptions
    assert isinstance(interrupts, KeyboardInterrupt)
    assert isinstance(refs[0].exit, Crashed)
    assert refs[1].exit == Cancelled()


async def test_a_crash_is_logged_without_the_text_of_its_error(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """I36: name, kind and place; an error's text may hold a secret."""
    with caplog.at_level(logging.ERROR, "trouper.actors"):
        async with open_supervisor(name="app") as supervisor:
            ref = supervisor.spawn("counter", counter)
            ref.tell("boom")
            await ref.wait_exit()
    (record,) = caplog.records
    text = record.getMessage()
    assert "'app/counter' crashed with Boom and ended for good" in text
    assert "in counter" in text
    assert "secret" not in text.replace('Boom("secret")', "")  # The line of source is shown; the error's text is not.
    assert record.exc_info is None


async def test_a_faulty_report_changes_nothing(autojump_clock: MockClock) -> None:
    def faulty(crash: Crash) -> None:
        raise LookupError

    async with open_supervisor(report=faulty) as supervisor:
        ref = supervisor.spawn("counter", counter, restart=Restart())
        ref.tell("boom")
        assert await ref.ask("total?") == 0


# -- the block --------------------------------------------------------------------------------------------------------


async def test_an_error_in_the_block_comes_out_as_itself_and_cancels_the_actors(autojump_clock: MockClock) -> None:
    """Actors raise nothing into the block, so there is no group to unwrap."""
    with pytest.raises(Boom) as raised:
        async with open_supervisor() as supervisor:
            ref = supervisor.spawn("counter", counter)
            await wait_all_tasks_blocked()
            raise Boom
    assert raised.value.__context__ is None
    assert ref.exit == Cancelled()


async def test_a_supervisor_that_is_over_starts_nothing(autojump_clock: MockClock) -> None:
    async with open_supervisor(name="app") as supervisor:
        pass
    with pytest.raises(SupervisorClosed, match="supervisor 'app' is over and starts no 'late'"):
        supervisor.spawn("late", counter)


async def test_a_supervisor_that_is_stopping_starts_nothing(autojump_clock: MockClock) -> None:
    refused: list[str] = []

    async def tries_at_the_end(inbox: Inbox[str, None]) -> None:
        async for _ in inbox:
            pass
        with pytest.raises(SupervisorClosed):
            supervisor.spawn("late", counter)
        refused.append("late")

    async with open_supervisor() as supervisor:
        supervisor.spawn("actor", tries_at_the_end)
        await wait_all_tasks_blocked()
    assert refused == ["late"]


async def test_an_actor_may_start_others(autojump_clock: MockClock) -> None:
    async def boss(inbox: Inbox[str, None]) -> None:
        supervisor.spawn("made-by-boss", counter, 3)
        async for _ in inbox:
            pass

    async with open_supervisor() as supervisor:
        supervisor.spawn("boss", boss)
        await wait_all_tasks_blocked()
        ref = supervisor.find("made-by-boss")
        assert ref is not None
        assert await ref.ask("total?") == 3


def test_a_failure_is_told_from_an_order() -> None:
    assert is_failure(Crashed(Boom()))
    assert is_failure(RestartLimit(1, 1.0, Normal()))
    assert not any(is_failure(exit) for exit in (Normal(), Stopped(), Cancelled()))


# -- nested -----------------------------------------------------------------------------------------------------------


async def test_an_escalating_failure_ends_its_supervisor_and_its_siblings(autojump_clock: MockClock) -> None:
    """I22: where the policy says so, the visible failure is the supervisor's."""
    with pytest.raises(ActorFailed, match=r"'app/vital' crashed .*, and supervisor 'app' fails with it") as failed:
        async with open_supervisor(name="app", report=quiet) as supervisor:
            vital = supervisor.spawn("vital", counter, restart=Restart(limit=1, escalate=True))
            sibling = supervisor.spawn("sibling", counter)
            vital.tell("boom")
            await wait_all_tasks_blocked()
            assert await sibling.ask("total?") == 0  # Once is forgiven.
            vital.tell("boom")
            await trio.sleep_forever()
    assert isinstance(failed.value.exit, RestartLimit)
    assert isinstance(failed.value.__cause__, Boom)
    assert sibling.exit == Cancelled()


async def test_an_error_in_the_block_and_an_escalation_come_out_together(autojump_clock: MockClock) -> None:
    with pytest.raises(ExceptionGroup) as both:
        async with open_supervisor(report=quiet) as supervisor:
            supervisor.spawn("vital", counter, restart=Restart(on="never", escalate=True)).tell("boom")
            try:
                await trio.sleep_forever()
            finally:
                raise LookupError
    assert both.value.subgroup(ActorFailed) is not None
    assert both.value.subgroup(LookupError) is not None


def start_pair(group: Supervisor) -> None:
    group.spawn("vital", counter, restart=Restart(limit=1, within_s=10, escalate=True))
    group.spawn("plain", counter)


async def test_a_nested_supervisor_begins_again_with_all_its_actors(autojump_clock: MockClock) -> None:
    """A failure climbs one level: the group is restarted as a whole, its neighbours live on."""
    async with open_supervisor(name="app", report=quiet) as supervisor:
        group = supervisor.spawn_supervisor("group", start_pair, restart=Restart(limit=1, within_s=60))
        neighbour = supervisor.spawn("neighbour", counter)
        neighbour.tell(7)
        await wait_all_tasks_blocked()
        plain = supervisor.find("group/plain")
        vital = group.find("vital")
        assert plain is not None
        assert vital is not None
        plain.tell(5)
        extra = group.spawn("extra", counter)
        vital.tell("boom")
        vital.tell("boom")
        await wait_all_tasks_blocked()
        assert (plain.exit, extra.exit) == (Cancelled(), Cancelled())
        assert isinstance(vital.exit, RestartLimit)
        renewed = supervisor.find("group/plain")
        assert renewed is not None
        assert await renewed.ask("total?") == 0
        assert group.find("extra") is None
        assert await neighbour.ask("total?") == 7


async def test_escalation_climbs_to_the_top(autojump_clock: MockClock) -> None:
    """I22, I20: each level has its own limit; when all are spent, the failure comes out of the outermost block."""

    async def hopeless(inbox: Inbox[str, None]) -> None:
        lives.append("leaf")
        raise Boom

    def start_leaf(group: Supervisor) -> None:
        lives.append("group")
        group.spawn("leaf", hopeless, restart=Restart(limit=1, escalate=True))

    lives: list[str] = []
    with pytest.raises(ActorFailed) as failed:
        async with open_supervisor(name="app", report=quiet) as supervisor:
            supervisor.spawn_supervisor("group", start_leaf, restart=Restart(limit=2, escalate=True))
            await trio.sleep_forever()
    assert failed.value.name == "app/group"
    assert isinstance(failed.value.__cause__, ActorFailed)
    assert failed.value.__cause__.name == "app/group/leaf"
    assert lives == ["group", "leaf", "leaf"] * 3


async def test_what_is_spawned_before_a_nested_supervisor_runs_starts_with_it(autojump_clock: MockClock) -> None:
    async with open_supervisor() as supervisor:
        group = supervisor.spawn_supervisor("group")
        early = group.spawn("early", counter, 1)
        assert await early.ask("total?") == 1


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_what_never_started_ends_with_its_supervisor(autojump_clock: MockClock, how: str) -> None:
    """No reference is left hanging: not even one to an actor that never ran."""
    async with open_supervisor() as supervisor:

        def faulty(group: Supervisor) -> None:
            raise Boom

        group = supervisor.spawn_supervisor("group", faulty, restart=Restart(delay_s=10))
        await wait_all_tasks_blocked()
        waiting = group.spawn("waiting", counter)
        single = group.spawn("single", counter)
        getattr(group, how)(single)
        assert single.exit == (Stopped() if how == "stop" else Cancelled())
        getattr(supervisor, how)(group)
        with trio.fail_after(1):
            assert await waiting.wait_exit() == Cancelled()
        with pytest.raises(SupervisorClosed):
            group.spawn("late", counter)


async def test_nested_supervisors_end_after_their_actors_and_before_their_parent(autojump_clock: MockClock) -> None:
    """I20: every child ends before its parent's end, over three levels."""
    order: list[str] = []

    async def leaf(inbox: Inbox[str, None], name: str) -> None:
        try:
            async for _ in inbox:
                pass
            await trio.sleep(1)
        finally:
            order.append(name)

    def build(group: Supervisor) -> None:
        group.spawn("x", leaf, f"{group.name}/x")
        group.spawn("y", leaf, f"{group.name}/y")

    async with open_supervisor(name="top") as supervisor:
        for name in ("one", "two"):
            middle = supervisor.spawn_supervisor(name)
            middle.spawn_supervisor("deep", build)
        await wait_all_tasks_blocked()
        assert supervisor.find("one/deep/x") is not None
    assert order == ["top/two/deep/y", "top/two/deep/x", "top/one/deep/y", "top/one/deep/x"]


async def test_a_supervisor_keeps_hold_of_no_actor_that_has_ended(autojump_clock: MockClock) -> None:
    """Neither of those that were spawned before it was open, nor of those after: with an actor goes all that it knew."""

    class Knowing:
        async def run(self, inbox: Inbox[None, None]) -> None:
            await inbox.receive()

    async with open_supervisor(name="app") as supervisor:
        group = supervisor.spawn_supervisor("group")
        known: list[weakref.ref[Knowing]] = []
        for name in ("early", "late"):
            actor = Knowing()
            known.append(weakref.ref(actor))
            ref: Ref[None, None] = group.spawn(name, actor.run)
            del actor
            await wait_all_tasks_blocked()
            ref.tell(None)
            assert await ref.wait_exit() == Normal()
        gc.collect()
        assert [each() for each in known] == [None, None]
