"""An ask always ends: with the answer, or with a named error as soon as the answer can no longer come."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trouper.actors import (
    ActorGone,
    AlreadyAnswered,
    AskDeadlock,
    AskLost,
    AskTimeout,
    Cancelled,
    Crashed,
    Inbox,
    Killed,
    Normal,
    Ref,
    Reply,
    Request,
    Restart,
    RestartLimit,
    Stopped,
    Supervisor,
    open_mailbox,
    open_supervisor,
)

#: Virtual seconds. Nothing below takes any: a wait that reaches this bound hangs.
HANG_S = 10_000

Action = Callable[["Scene"], None]


@attrs.define
class Scene:
    """An actor whose first incarnation halts once, with the question at a given place, until it is told how to go on."""

    supervisor: Supervisor
    outer: trio.CancelScope
    place: str
    ref: Ref[str, str] | None = None
    reached: trio.Event = attrs.field(factory=trio.Event)
    go_on: trio.Event = attrs.field(factory=trio.Event)
    then: str = "carry on"

    async def actor(self, inbox: Inbox[str, str]) -> None:
        if self.place == "queued" and await self._halt():
            return
        async for message in inbox:
            assert isinstance(message, Request)
            if self.reached.is_set():
                message.reply("answer")
                continue
            reply = message.defer() if self.place == "deferred" else message
            if self.place == "after the answer":
                reply.reply("answer")
            if await self._halt():
                return
            if self.place != "after the answer":
                reply.reply("answer")

    async def _halt(self) -> bool:
        """Whether to return."""
        if self.reached.is_set():
            return False
        self.reached.set()
        await self.go_on.wait()
        if self.then == "raise":
            raise ValueError("crash")
        return self.then == "return"


PLACES = ("queued", "taken", "deferred", "after the answer")


def crash(scene: Scene) -> None:
    scene.then = "raise"
    scene.go_on.set()


def leave(scene: Scene) -> None:
    scene.then = "return"
    scene.go_on.set()


def carry_on(scene: Scene) -> None:
    scene.go_on.set()


def stop_with_grace(scene: Scene) -> None:
    assert scene.ref is not None
    scene.supervisor.stop(scene.ref, grace_s=2)  # It does not go on by itself: it is killed when the grace is over.


def stop_politely(scene: Scene) -> None:
    assert scene.ref is not None
    scene.supervisor.stop(scene.ref, grace_s=2)
    scene.go_on.set()


def stop_at_once(scene: Scene) -> None:
    assert scene.ref is not None
    scene.supervisor.stop(scene.ref, grace_s=0)


def cancel(scene: Scene) -> None:
    assert scene.ref is not None
    scene.supervisor.cancel(scene.ref)


def cancel_all(scene: Scene) -> None:
    scene.outer.cancel()


ALWAYS = Restart(on="always", limit=1, within_s=10)
SPENT = Restart(on="failure", limit=0, within_s=10)
NEVER = Restart(on="never")
LATER = Restart(on="failure", limit=1, within_s=10, delay_s=5)

#: What happens, the policy, and how the question ends for each place where it can be: an exit, "lost" or "answer".
FATES: list[tuple[Action, Restart, tuple[Any, Any, Any, Any]]] = [
    (carry_on, NEVER, ("answer", "answer", "answer", "answer")),
    (crash, NEVER, (Crashed, Crashed, Crashed, "answer")),
    (crash, SPENT, (RestartLimit, RestartLimit, RestartLimit, "answer")),
    (crash, ALWAYS, ("answer", "lost", "lost", "answer")),
    (crash, LATER, ("answer", "lost", "lost", "answer")),
    (leave, NEVER, (Normal, Normal, Normal, "answer")),
    (leave, ALWAYS, ("answer", "lost", "lost", "answer")),
    (stop_politely, NEVER, ("answer", "answer", "answer", "answer")),
    (stop_with_grace, ALWAYS, (Killed, Killed, Killed, "answer")),
    (stop_at_once, ALWAYS, (Killed, Killed, Killed, "answer")),
    (cancel, ALWAYS, (Cancelled, Cancelled, Cancelled, "answer")),
    (cancel_all, ALWAYS, (Cancelled, Cancelled, Cancelled, "answer")),
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("fate", "restart", "ends"), FATES, ids=[f"{f.__name__}-{r.on}-{r.limit}" for f, r, _ in FATES]
)
async def test_an_ask_ends_whatever_happens_to_the_actor(
    autojump_clock: MockClock, fate: Action, restart: Restart, ends: tuple[Any, ...], place: str
) -> None:
    """SEMANTICS, ask: each place where a question can be, times each thing that can happen to the actor."""
    expected = ends[PLACES.index(place)]
    outcome: list[object] = []
    told_at: list[float] = []

    async def ask(ref: Ref[str, str]) -> None:
        try:
            outcome.append(await ref.ask("question"))
        except (ActorGone, AskLost) as exc:
            outcome.append(exc)
        told_at.append(trio.current_time())

    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as askers:
            with trio.CancelScope() as outer:
                async with open_supervisor(report=lambda crash: None) as supervisor:
                    scene = Scene(supervisor, outer, place)
                    scene.ref = ref = supervisor.spawn("actor", scene.actor, restart=restart)
                    bystander = supervisor.spawn("bystander", _echo)
                    askers.start_soon(ask, ref)
                    await scene.reached.wait()
                    await wait_all_tasks_blocked()
                    began = trio.current_time()
                    fate(scene)
                    await trio.sleep(100)
                    assert len(outcome) == 1, "the asker was not told at once"
                    assert await bystander.ask("still there?") == "still there?"
    # At once: the only waits are the ones asked for.
    delay = restart.delay_s if (fate, place) == (crash, "queued") and expected == "answer" else 0
    grace = 2 if fate is stop_with_grace and expected is Killed else 0
    assert told_at[0] - began <= delay + grace
    (got,) = outcome
    match expected:
        case "answer":
            assert got == "answer"
        case "lost":
            assert isinstance(got, AskLost)
            assert isinstance(got.exit, Crashed | Normal)
        case _:
            assert isinstance(got, ActorGone)
            assert isinstance(got.exit, expected)
            assert got.taken == (place != "queued")


async def _echo(inbox: Inbox[str, str]) -> None:
    async for message in inbox:
        if isinstance(message, Request):
            message.reply(message.payload)


async def _busy_echo(inbox: Inbox[str, str]) -> None:
    """Several awaits between question and answer, a deferred answer among them."""
    async with trio.open_nursery() as nursery:

        async def answer(reply: Reply[str]) -> None:
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
            reply.reply("answer")

        async for message in inbox:
            await trio.lowlevel.checkpoint()
            if isinstance(message, Request):
                nursery.start_soon(answer, message.defer())
            await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("how", ["cancel", "stop", "kill", "outer"])
@pytest.mark.parametrize("steps", range(14))
async def test_an_ask_ends_for_an_end_at_every_step(autojump_clock: MockClock, steps: int, how: str) -> None:
    """SEMANTICS, ask: the end comes after 0, 1, 2... turns of the scheduler, until it comes too late to matter."""
    ended: list[str] = []

    async def ask(ref: Ref[str, str]) -> None:
        try:
            ended.append(await ref.ask("question"))
        except (ActorGone, AskLost) as exc:
            ended.append(type(exc).__name__)

    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as askers:
            with trio.CancelScope() as outer:
                async with open_supervisor() as supervisor:
                    ref = supervisor.spawn("echo", _busy_echo)
                    askers.start_soon(ask, ref)
                    for _ in range(steps):
                        await trio.lowlevel.checkpoint()
                    if how == "cancel":
                        supervisor.cancel(ref)
                    elif how == "outer":
                        outer.cancel()
                    else:
                        supervisor.stop(ref, grace_s=0 if how == "kill" else 5)
                    assert await ref.wait_exit() is not None
    assert len(ended) == 1
    assert ended[0] in ("answer", "ActorGone")


@pytest.mark.parametrize("steps", range(14))
async def test_an_asker_may_go_at_every_step_and_the_actor_carries_on(autojump_clock: MockClock, steps: int) -> None:
    """SEMANTICS, ask: a cancelled asker costs the actor nothing, and the next asker gets its own answer."""
    with trio.fail_after(HANG_S):
        async with open_supervisor() as supervisor:
            ref = supervisor.spawn("echo", _busy_echo)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ref.ask, "gone")
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            assert await ref.ask("question") == "answer"
            assert ref.exit is None


@pytest.mark.parametrize("steps", range(8))
async def test_a_shielded_ask_waits_for_its_answer_whatever_is_cancelled(autojump_clock: MockClock, steps: int) -> None:
    """SEMANTICS, ask: the answer comes first, and the cancel at the asker's next checkpoint."""
    answers: list[str] = []
    went_on = False

    async def ask(ref: Ref[str, str]) -> None:
        nonlocal went_on
        answers.append(await ref.ask_shielded("question"))
        await trio.lowlevel.checkpoint()
        went_on = True

    with trio.fail_after(HANG_S):
        async with open_supervisor() as supervisor:
            ref = supervisor.spawn("echo", _busy_echo)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, ref)
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                cancelled_first = not answers
                nursery.cancel_scope.cancel()
    # One that was cancelled before it had begun asks as well: whether it has begun is the scheduler's affair.
    assert answers == ["answer"]
    assert not (went_on and cancelled_first)


async def test_a_shielded_ask_ends_with_its_actor(autojump_clock: MockClock) -> None:
    """SEMANTICS, ask: as soon as the answer can no longer come."""

    async def sits(inbox: Inbox[str, str]) -> None:
        async for _ in inbox:
            await trio.sleep_forever()

    with trio.fail_after(HANG_S):
        async with open_supervisor() as supervisor:
            ref = supervisor.spawn("sits", sits)
            async with trio.open_nursery() as nursery:

                async def ask() -> None:
                    with pytest.raises(ActorGone):
                        await ref.ask_shielded("question")

                nursery.start_soon(ask)
                await wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
                supervisor.cancel(ref)


async def test_a_question_that_is_not_answered_before_the_next_message_is_lost(autojump_clock: MockClock) -> None:
    """SEMANTICS, ask: dropping is noticed when the actor takes its next message, with the remedy in the error."""

    async def deaf(inbox: Inbox[str, str]) -> None:
        async for _ in inbox:
            pass

    with trio.fail_after(HANG_S):
        async with open_supervisor() as supervisor:
            ref = supervisor.spawn("deaf", deaf)
            with pytest.raises(AskLost, match=r"'supervisor/deaf' let a question drop; .*defer\(\)") as lost:
                await ref.ask("hello?")
            assert lost.value.exit is None
            assert ref.exit is None


async def test_a_deferred_question_is_lost_when_its_reply_is_garbage(autojump_clock: MockClock) -> None:
    """SEMANTICS, ask: nobody holds the Reply any more, so nobody will answer."""

    async def forgetful(inbox: Inbox[str, str]) -> None:
        async for message in inbox:
            if isinstance(message, Request):
                message.defer()
                gc.collect()  # Not needed where references are counted.

    with trio.fail_after(HANG_S):
        async with open_supervisor() as supervisor:
            ref = supervisor.spawn("forgetful", forgetful)
            with pytest.raises(AskLost):
                await ref.ask("hello?")


async def test_answers_may_come_in_another_order_than_the_questions(autojump_clock: MockClock) -> None:
    async def backwards(inbox: Inbox[int, int]) -> None:
        owed: list[tuple[int, Reply[int]]] = []
        async for message in inbox:
            assert isinstance(message, Request)
            owed.append((message.payload, message.defer()))
            if len(owed) == 3:
                while owed:
                    payload, reply = owed.pop()
                    assert reply.reply(payload * 10)

    answers: list[int] = []

    async def ask(ref: Ref[int, int], i: int) -> None:
        answers.append(await ref.ask(i))

    with trio.fail_after(HANG_S):
        async with open_supervisor() as supervisor:
            ref = supervisor.spawn("backwards", backwards)
            async with trio.open_nursery() as nursery:
                for i in range(3):
                    nursery.start_soon(ask, ref, i)
            assert sorted(answers) == [0, 10, 20]
            assert ref.statistics().questions_open == 0


async def test_an_actor_may_answer_with_an_error_and_live(autojump_clock: MockClock) -> None:
    async def refusing(inbox: Inbox[str, str]) -> None:
        async for message in inbox:
            if isinstance(message, Request):
                message.fail(LookupError(message.payload))

    async with open_supervisor() as supervisor:
        ref = supervisor.spawn("refusing", refusing)
        for question in ("a", "b"):
            with pytest.raises(LookupError, match=question):
                await ref.ask(question)


@pytest.mark.parametrize("taken", [False, True])
async def test_a_timeout_says_whether_the_actor_had_begun(autojump_clock: MockClock, taken: bool) -> None:
    """SEMANTICS, ask: a question that was not taken when its time ran out never is."""
    with open_mailbox("slow") as (ref, inbox):
        async with trio.open_nursery() as nursery:

            async def take_and_sit() -> None:
                request = await inbox.receive()
                assert isinstance(request, Request)
                await trio.sleep(100)
                assert request.reply("too late") is False

            if taken:
                nursery.start_soon(take_and_sit)
            began = trio.current_time()
            with pytest.raises(AskTimeout, match=r"'slow' did not answer within 2.5 s") as timed_out:
                await ref.ask("question", timeout_s=2.5)
            assert trio.current_time() - began == 2.5
            assert timed_out.value.taken is taken
        assert ref.statistics().queued == 0
        with pytest.raises(trio.WouldBlock):
            inbox.receive_nowait()


async def test_an_answer_in_time_is_not_a_timeout(autojump_clock: MockClock) -> None:
    async with open_supervisor() as supervisor:
        assert await supervisor.spawn("echo", _echo).ask("yes", timeout_s=1) == "yes"


async def test_a_question_is_answered_once(autojump_clock: MockClock) -> None:
    with open_mailbox("box") as (ref, inbox):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ref.ask, "question")
            request = await inbox.receive()
            assert isinstance(request, Request)
            assert request.reply("answer")
            with pytest.raises(AlreadyAnswered, match=r"'str' to actor 'box' .*answer each question once"):
                request.reply("again")
            with pytest.raises(AlreadyAnswered):
                request.defer()


async def test_a_deferred_question_is_answered_through_its_reply_only(autojump_clock: MockClock) -> None:
    with open_mailbox("box") as (ref, inbox):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ref.ask, "question")
            request = await inbox.receive()
            assert isinstance(request, Request)
            reply = request.defer()
            with pytest.raises(AlreadyAnswered, match=r"the Reply that defer\(\) gave"):
                request.fail(ValueError())
            assert reply.reply("answer")
            with pytest.raises(AlreadyAnswered):
                reply.reply("again")


async def test_answering_after_a_crash_is_harmless(autojump_clock: MockClock) -> None:
    """The reply may have got to a task that outlives the actor; the asker has been told already."""
    escaped: list[Reply[str]] = []

    async def crashing(inbox: Inbox[str, str]) -> None:
        message = await inbox.receive()
        assert isinstance(message, Request)
        escaped.append(message.defer())
        raise ValueError

    async with open_supervisor(report=lambda crash: None) as supervisor:
        ref = supervisor.spawn("crashing", crashing)
        with pytest.raises(ActorGone):
            await ref.ask("question")
        assert escaped[0].reply("late") is False


async def test_an_actor_that_asks_itself_is_told_so(autojump_clock: MockClock) -> None:
    """SEMANTICS, ask: a wait for oneself is an error at once, not a hang."""

    async def narcissus(inbox: Inbox[str, str]) -> None:
        async for message in inbox:
            if isinstance(message, Request):
                await inbox.ref.ask("and me?")

    with trio.fail_after(HANG_S):
        async with open_supervisor(report=lambda crash: None) as supervisor:
            ref = supervisor.spawn("narcissus", narcissus)
            with pytest.raises(ActorGone) as gone:
                await ref.ask("who?")
    assert isinstance(gone.value.exit, Crashed)
    assert isinstance(gone.value.exit.exception, AskDeadlock)


async def test_actors_that_ask_each_other_in_a_ring_are_told_so(autojump_clock: MockClock) -> None:
    """SEMANTICS, ask: also through others. The last to ask gets the error, and the ring dissolves."""
    refs: list[Ref[str, str]] = []

    async def link(inbox: Inbox[str, str], i: int) -> None:
        async for message in inbox:
            assert isinstance(message, Request)
            try:
                message.reply(await refs[(i + 1) % 3].ask("next?"))
            except AskDeadlock:
                message.reply("the ring ends here")

    with trio.fail_after(HANG_S):
        async with open_supervisor() as supervisor:
            refs += [supervisor.spawn(f"link-{i}", link, i) for i in range(3)]
            assert await refs[0].ask("start") == "the ring ends here"


async def test_a_ring_with_a_deferred_answer_is_no_deadlock(autojump_clock: MockClock) -> None:
    """A question that was put off may be answered by another task while its actor waits."""

    async def front(inbox: Inbox[str, str]) -> None:
        async for message in inbox:
            assert isinstance(message, Request)
            message.reply("front" if message.payload == "name?" else await back.ask("via back"))

    async def behind(inbox: Inbox[str, str]) -> None:
        async with trio.open_nursery() as nursery:
            async for message in inbox:
                assert isinstance(message, Request)
                nursery.start_soon(_answer_later, message.defer())
                asked.append(await front_ref.ask("name?"))

    asked: list[str] = []
    with trio.fail_after(HANG_S):
        async with open_supervisor() as supervisor:
            back = supervisor.spawn("back", behind)
            front_ref = supervisor.spawn("front", front)
            assert await front_ref.ask("go") == "later"
            await wait_all_tasks_blocked()
            assert asked == ["front"]


async def _answer_later(reply: Reply[str]) -> None:
    await trio.sleep(1)
    reply.reply("later")


async def test_stop_ends_with_stopped_when_the_question_was_answered(autojump_clock: MockClock) -> None:
    async with open_supervisor() as supervisor:
        ref = supervisor.spawn("echo", _echo)
        assert await ref.ask("x") == "x"
        supervisor.stop(ref)
        with pytest.raises(ActorGone, match="is stopping"):
            await ref.ask("late")
        assert await ref.wait_exit() == Stopped()


@pytest.mark.parametrize("when", ["queued", "taken", "asked later"])
@pytest.mark.parametrize("how", ["ends", "crashes"])
async def test_a_task_of_an_actor_that_has_hung_up_is_told_at_once(autojump_clock: MockClock, when: str, how: str):
    """The actor waits for its task, which waits for the actor: shielded, for good. Whoever else asks waits for the next life."""
    told: list[BaseException] = []
    lives: list[int] = []

    async def own(ref: Ref[str, str]) -> None:
        if when == "asked later":
            with trio.CancelScope(shield=True):
                await wait_all_tasks_blocked()
        with trio.move_on_after(HANG_S, shield=True), pytest.raises(AskLost) as lost:
            await ref.ask("mine")
        told.append(lost.value)

    async def actor(inbox: Inbox[str, str]) -> None:
        lives.append(len(lives))
        if len(lives) > 1:
            async for message in inbox:
                assert isinstance(message, Request)
                message.reply("theirs")
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(own, inbox.ref)
            if when != "asked later":
                await wait_all_tasks_blocked()
            if when == "taken":
                assert isinstance(await inbox.receive(), Request)
            inbox.hang_up()
            nursery.cancel_scope.cancel()
        if how == "crashes":
            raise ValueError

    async with open_supervisor(report=lambda _: None) as supervisor:
        ref: Ref[str, str] = supervisor.spawn("actor", actor, restart=Restart(on="always"))
        await wait_all_tasks_blocked()
        assert await ref.ask("theirs") == "theirs"
    assert [getattr(error, "exit", 0) for error in told] == [None]
    assert trio.current_time() < HANG_S


async def test_what_others_ask_of_an_actor_that_has_hung_up_waits_for_its_next_life(autojump_clock: MockClock) -> None:
    """Also what was there before: they are not whom it waits for."""
    lives: list[int] = []
    hung_up = trio.Event()

    async def actor(inbox: Inbox[str, str]) -> None:
        lives.append(len(lives))
        if len(lives) > 1:
            async for message in inbox:
                if isinstance(message, Request):
                    message.reply(message.payload)
                else:
                    answers.append(message)
            return
        await wait_all_tasks_blocked()
        inbox.hang_up()
        hung_up.set()
        await trio.sleep(1)

    answers: list[str] = []

    async def ask(ref: Ref[str, str], question: str) -> None:
        answers.append(await ref.ask(question))

    async with open_supervisor() as supervisor, trio.open_nursery() as nursery:
        ref: Ref[str, str] = supervisor.spawn("actor", actor, restart=Restart(on="always"))
        nursery.start_soon(ask, ref, "before")
        await hung_up.wait()
        nursery.start_soon(ask, ref, "after")
        ref.tell("told")  # Kept, too.
        await wait_all_tasks_blocked()
        assert (ref.statistics().queued, answers) == (3, [])
        assert await ref.ask("last") == "last"
    assert sorted(answers) == ["after", "before", "told"]
