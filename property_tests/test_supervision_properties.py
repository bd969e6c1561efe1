"""Supervision under drawn programs and drawn schedules: I20, I22, I23, I24, I25, and that every ask and every monitor comes to its end.

A program is a list of things done to a few actors: messages, questions, crashes, stops, cancels, waits. It runs in virtual time with the
order of ready tasks drawn as well; what happened is then held against the promises of design/SEMANTICS.md.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from trouper.actors import (
    ActorGone,
    AskLost,
    AskTimeout,
    Ended,
    Exit,
    Inbox,
    Killed,
    MailboxFull,
    Normal,
    Ref,
    Reply,
    Request,
    Restart,
    RestartLimit,
    Supervisor,
    open_mailbox,
    open_supervisor,
)
from trouper.actors.restart import RestartWindow
from trouper.testing.schedule import run_simulated

ACTORS = 3
CAPACITY = 3
GRACE_S = 4.0
#: Virtual seconds after which a run counts as hung; programs last some tens of them.
HANG_S = 100_000.0

Deed = Literal["note", "boom", "leave", "sit", "slow", "drop", "defer", "settle"]


@attrs.frozen
class Tell:
    actor: int
    deed: Deed


@attrs.frozen
class Ask:
    actor: int
    deed: Deed
    timeout_s: float
    cancel_after_s: float


@attrs.frozen
class Stop:
    actor: int
    grace_s: float


@attrs.frozen
class Cancel:
    actor: int


@attrs.frozen
class Wait:
    for_s: float


@attrs.frozen
class Spawn:
    """Start the actor anew if it has ended."""

    actor: int


Step = Tell | Ask | Stop | Cancel | Wait | Spawn

_actor = st.integers(0, ACTORS - 1)
_deed: st.SearchStrategy[Any] = st.sampled_from(["note", "boom", "leave", "sit", "slow", "drop", "defer", "settle"])
_seconds = st.sampled_from([0.0, 0.5, 1.0, 2.0, 5.0])
_steps = st.one_of(
    st.builds(Tell, _actor, _deed),
    st.builds(Ask, _actor, _deed, st.sampled_from([1.0, 3.0, math.inf]), st.sampled_from([0.0, 1.0, math.inf])),
    st.builds(Stop, _actor, _seconds),
    st.builds(Cancel, _actor),
    st.builds(Wait, _seconds),
    st.builds(Spawn, _actor),
)
_policies = st.builds(
    Restart,
    on=st.sampled_from(["always", "failure", "never"]),
    limit=st.integers(0, 3),
    within_s=st.sampled_from([1.0, 2.0, 5.0]),
    delay_s=st.sampled_from([0.0, 0.5]),
)
_schedules = st.lists(st.integers(0, 7), max_size=40)


@attrs.define
class Life:
    """Everything seen of one actor, from its spawn to its end."""

    ref: Ref[Any, Any]
    policy: Restart
    accepted: list[int] = attrs.field(factory=list)
    handled: list[int] = attrs.field(factory=list)
    begun_at: list[float] = attrs.field(factory=list)
    inside: int = 0
    stopped: tuple[float, float] | None = None
    ended_at: float | None = None


@attrs.define
class World:
    policies: list[Restart]
    supervisor: Supervisor
    watcher: Inbox[Any, Any]
    nursery: trio.Nursery
    lives: list[Life] = attrs.field(factory=list)
    current: dict[int, Life] = attrs.field(factory=dict)
    asked: int = 0
    answered: list[object] = attrs.field(factory=list)
    number: int = 0

    # -- the actor ----------------------------------------------------------------------------------------------------

    async def worker(self, inbox: Inbox[Any, Any], life: list[Life]) -> None:
        (me,) = life
        me.begun_at.append(trio.current_time())
        me.inside += 1
        assert me.inside == 1, "two incarnations at once"
        owed: list[Reply[str]] = []
        try:
            async for message in inbox:
                number, deed = message.payload if isinstance(message, Request) else message
                me.handled.append(number)
                await self._do(deed, message, owed)
                if deed == "leave":
                    return
        finally:
            me.inside -= 1

    async def _do(self, deed: Deed, message: Any, owed: list[Reply[str]]) -> None:
        question = message if isinstance(message, Request) else None
        match deed:
            case "boom":
                raise ValueError("boom")
            case "sit":
                await trio.sleep(50)
            case "slow":
                await trio.sleep(0.5)
            case "settle":
                while owed:
                    owed.pop(0).reply("later")
            case "defer" if question is not None:
                owed.append(question.defer())
                return
        if question is not None and deed not in ("drop", "leave"):
            question.reply("answer")

    # -- the program --------------------------------------------------------------------------------------------------

    def spawn(self, actor: int) -> None:
        if self.supervisor.find(f"actor-{actor}") is not None:
            return
        box: list[Life] = []
        policy = self.policies[actor]
        ref = self.supervisor.spawn(f"actor-{actor}", self.worker, box, restart=policy, mailbox=CAPACITY)
        life = Life(ref, policy)
        box.append(life)
        self.lives.append(life)
        self.current[actor] = life
        self.watcher.monitor(ref)
        self.nursery.start_soon(self.note_end, life)

    async def note_end(self, life: Life) -> None:
        await life.ref.wait_exit()
        life.ended_at = trio.current_time()

    async def step(self, step: Step) -> None:
        match step:
            case Tell(actor, deed):
                life = self.current[actor]
                self.number += 1
                try:
                    life.ref.tell((self.number, deed))
                except (MailboxFull, ActorGone):
                    pass
                else:
                    life.accepted.append(self.number)
            case Ask():
                self.number += 1
                self.asked += 1
                self.nursery.start_soon(self.ask, self.current[step.actor], self.number, step)
            case Stop(actor, grace_s):
                life = self.current[actor]
                if life.stopped is None and life.ref.exit is None:
                    life.stopped = (trio.current_time(), grace_s)
                self.supervisor.stop(life.ref, grace_s=grace_s)
            case Cancel(actor):
                self.supervisor.cancel(self.current[actor].ref)
            case Wait(for_s):
                await trio.sleep(for_s)
            case Spawn(actor):
                self.spawn(actor)
        for life in self.lives:
            assert life.ref.statistics().queued <= CAPACITY  # I25

    async def ask(self, life: Life, number: int, step: Ask) -> None:
        with trio.move_on_after(step.cancel_after_s) as scope:
            try:
                self.answered.append(await life.ref.ask((number, step.deed), timeout_s=step.timeout_s))
            except (ActorGone, AskLost, AskTimeout, MailboxFull) as exc:
                self.answered.append(exc)
        if scope.cancelled_caught:
            self.answered.append("gave up")


async def _run(policies: list[Restart], program: list[Step], cancel_at_the_end: bool) -> World:
    with trio.fail_after(HANG_S), open_mailbox("watcher") as (_, watcher):
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as outer:
                async with open_supervisor(grace_s=GRACE_S, report=lambda crash: None) as supervisor:
                    world = World(policies, supervisor, watcher, nursery)
                    sums: list[int] = []
                    bystander = supervisor.spawn("bystander", _sum, sums)
                    for actor in range(ACTORS):
                        world.spawn(actor)
                    for i, step in enumerate(program):
                        await world.step(step)
                        await bystander.send(i)
                    left_at = trio.current_time()
                    if cancel_at_the_end:
                        outer.cancel()
            assert trio.current_time() - left_at <= GRACE_S  # I24: leaving costs one grace at most.
            assert all(life.ref.exit is not None and life.inside == 0 for life in world.lives)  # I20
        assert sums == list(range(len(program)))[: len(sums)]
        assert cancel_at_the_end or len(sums) == len(program)  # I23: the bystander missed nothing.
        told: list[Ended] = []
        while True:
            try:
                told.append(watcher.receive_nowait())
            except trio.WouldBlock:
                break
        # Monitors: each life's end once, with its reason.
        assert sorted(map(repr, told)) == sorted(repr(_ended(life)) for life in world.lives)
    return world


def _ended(life: Life) -> Ended:
    assert life.ref.exit is not None
    return Ended(life.ref.name, life.ref.exit, life.ref._mailbox.unread)


async def _sum(inbox: Inbox[int, None], seen: list[int]) -> None:
    async for message in inbox:
        assert isinstance(message, int)
        seen.append(message)


@settings(max_examples=150, deadline=None)
@given(
    policies=st.lists(_policies, min_size=ACTORS, max_size=ACTORS),
    program=st.lists(_steps, max_size=25),
    cancel_at_the_end=st.booleans(),
    schedule=_schedules,
)
def test_every_promise_holds_for_every_program_and_schedule(
    policies: list[Restart], program: list[Step], cancel_at_the_end: bool, schedule: list[int]
) -> None:
    """I20, I22, I23, I24, I25; asks and monitors end exactly once."""
    world = run_simulated(_run, policies, program, cancel_at_the_end, choices=schedule)
    assert len(world.answered) == world.asked
    for life in world.lives:
        _check_order(life)
        _check_restarts(life)
        _check_grace(life)


def _check_order(life: Life) -> None:
    """Handled at most once, in order; and what was told and accepted is handled before what was told later."""
    told = [number for number in life.handled if number in set(life.accepted)]
    assert told == life.accepted[: len(told)]
    assert len(set(life.handled)) == len(life.handled)


def _check_restarts(life: Life) -> None:
    """I22: at most `limit` restarts in any half-open window; if the limit is the reason, it was reached."""
    restarts = life.begun_at[1:]
    for i, last in enumerate(restarts):
        assert sum(last - at < life.policy.within_s for at in restarts[: i + 1]) <= life.policy.limit
    if isinstance(life.ref.exit, RestartLimit):
        assert life.ended_at is not None
        assert sum(life.ended_at - at < life.policy.within_s for at in restarts) >= life.policy.limit
    if life.policy.on == "never":
        assert not restarts


def _check_grace(life: Life) -> None:
    """I24: ended within the grace of its stop."""
    exit: Exit | None = life.ref.exit
    if life.stopped is not None:
        asked_at, grace_s = life.stopped
        assert life.ended_at is not None
        assert life.ended_at - asked_at <= grace_s
        assert not isinstance(exit, Normal | RestartLimit)
    if isinstance(exit, Killed):
        assert exit.grace_s <= max(5.0, GRACE_S)


@given(
    limit=st.integers(0, 4),
    within=st.integers(1, 8),
    gaps=st.lists(st.integers(0, 10), max_size=30),
)
def test_the_window_counts_as_a_plain_count_does(limit: int, within: int, gaps: list[int]) -> None:
    """I22: the forgetful window agrees with a count over all restarts ever made."""
    window = RestartWindow(Restart(limit=limit, within_s=within))
    made: list[int] = []
    now = 0
    for gap in gaps:
        now += gap
        expected = sum(now - within < at <= now for at in made) < limit
        assert window.allows(now) is expected
        if expected:
            window.record(now)
            made.append(now)
    assert window.total == len(made)


@settings(max_examples=60, deadline=None)
@given(schedule=_schedules, capacity=st.integers(1, 3), senders=st.integers(1, 4), each=st.integers(1, 5))
def test_send_loses_nothing_and_keeps_each_senders_order(
    schedule: list[int], capacity: int, senders: int, each: int
) -> None:
    """SEMANTICS, order: one sender's messages arrive in its order, whoever else sends, however full the mailbox."""

    async def main() -> list[tuple[int, int]]:
        got: list[tuple[int, int]] = []

        async def collect(inbox: Inbox[tuple[int, int], None]) -> None:
            async for message in inbox:
                assert not isinstance(message, Request)
                got.append(message)

        async def send(ref: Ref[tuple[int, int], None], sender: int) -> None:
            for i in range(each):
                await ref.send((sender, i))

        async with open_supervisor() as supervisor:
            ref = supervisor.spawn("collect", collect, mailbox=capacity)
            async with trio.open_nursery() as nursery:
                for sender in range(senders):
                    nursery.start_soon(send, ref, sender)
        return got

    got = run_simulated(main, choices=schedule)
    for sender in range(senders):
        assert [i for who, i in got if who == sender] == list(range(each))
    assert len(got) == senders * each
