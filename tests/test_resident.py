"""Sessions that are open and at rest: beyond `Limits.resident_sessions` they leave memory, and whoever asks for one again cannot tell that it was away."""

from __future__ import annotations

import gc
import random
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import trio
import trio.testing

from trouper import Budget, CommandRejected, Hooks, Limits, Runtime, Session, open_runtime, tool
from trouper.actors.feed import Feed
from trouper.actors.session import SESSION_RESTART, SessionActor
from trouper.cli.requests import answered
from trouper.core.ids import NotificationId
from trouper.core.notification import DeliverNotifications, QueueNotification
from trouper.ground import LOOKED_AT_MAX
from trouper.host import RuntimeEnded
from trouper.journal import open_log
from trouper.models import Scripted, call, reply
from trouper.resident import Resident
from trouper.roster import Roster, fold
from trouper.services.views import instant
from trouper.testing import CrashDisk, check_invariants, run_simulated
from trouper.testing.crash_disk import PowerCut

FEW = Limits(resident_sessions=2)


def talkative(*first: Any) -> Scripted:
    return Scripted([*first, reply("Yes.")], exhausted="repeat")


async def asked(runtime: Runtime, name: str = "s", *texts: str, **own: Any) -> None:
    """Somebody who opens a session, talks and lets go of it."""
    session = await runtime.session(name, **own)
    for text in texts or ("one",):
        assert (await session.ask(text)).error is None


async def crowd(runtime: Runtime, count: int = 3 * LOOKED_AT_MAX) -> None:
    """So many others come and go that whoever can be put to rest is."""
    for number in range(count):
        await runtime.session(f"other{number}")
    await trio.testing.wait_all_tasks_blocked()


def actor_of(runtime: Runtime, name: str = "s") -> SessionActor | None:
    resident = runtime._ground.sessions.get(name)
    return None if resident is None else resident.actor


def put_to_rest(runtime: Runtime, name: str = "s") -> None:
    """This one, at this very moment."""
    ground = runtime._ground
    ground._resident_max = max(1, len(ground.sessions) - 1)
    ground._recent = {name: None, **ground._recent}
    (rested,) = ground.put_to_rest()
    runtime._sessions.stop(rested.ref)
    assert rested.actor.session == name


async def _raise(error: Exception) -> None:
    raise error


# --- what is let go of, and comes back


async def test_a_session_that_nobody_holds_leaves_memory_and_comes_back_as_it_was(
    autojump_clock, open_checked, states_in_memory
):
    """A server that opens the session of each of its users on demand must not grow with each: RAM holds the working set."""
    async with open_checked(talkative(), limits=FEW) as runtime:
        session = await runtime.session("s", system="Be brief.")
        await session.ask("one")
        history, figures = session.history, session.statistics()
        del session
        await crowd(runtime)
        assert states_in_memory("s") == 0 and len(runtime._ground.sessions) == 2
        (info,) = (info for info in runtime.sessions() if info.id == "s")
        assert (info.phase, info.turns, info.open) == ("idle", 1, False)
        last = runtime._log.last
        again = await runtime.session("s")
        assert (again.history, again.statistics(), again.state.system) == (history, figures, "Be brief.")
        assert runtime._log.last == last, "to be put to rest and to come back is no event"
        assert (await again.ask("two")).text == "Yes." and again.state.turns == 2
        assert [each.seq async for each in _so_far(again)] == list(range(again.statistics().events))


async def _so_far(session: Session):
    last = session.statistics().events - 1
    async for each in session.events():
        yield each
        if each.seq == last:
            return


async def test_without_a_bound_all_stay(autojump_clock, open_checked):
    async with open_checked(talkative(), limits=Limits(resident_sessions=0)) as runtime:
        await crowd(runtime, 50)
        assert runtime.statistics().sessions == 50


async def test_those_that_were_asked_for_last_stay(autojump_clock, open_checked):
    async with open_checked(talkative(), limits=Limits(resident_sessions=3)) as runtime:
        for name in ("a", "b", "c", "a", "d"):
            await runtime.session(name)
        assert set(runtime._ground.sessions) == {"c", "a", "d"}
        await runtime.session("b")
        assert set(runtime._ground.sessions) == {"a", "d", "b"}


async def test_a_session_has_what_it_was_given_also_when_it_comes_back(autojump_clock, open_checked):
    """Model, tools and budget are its own from when they were given (api.md): they are in no journal, and not lost for that."""

    @tool
    async def mine() -> str:
        """Its own."""
        return "mine"

    own = talkative(reply(call("mine")), reply("Mine."))
    async with open_checked(talkative(), limits=FEW) as runtime:
        await asked(runtime, model=own, tools=[mine], budget=Budget(steps=4))
        for _ in range(2):
            await crowd(runtime)
            assert actor_of(runtime) is None
            session = await runtime.session("s")
            outfit = session._actor.outfit
            assert outfit.model is own and outfit.registry.get("mine") is not None and outfit.budget.steps == 4
            del session
        await asked(runtime, "s", "two")
        assert len(own.requests) == 3
        await crowd(runtime)
        session = await runtime.session("s", budget=Budget(steps=3))
        assert session._actor.outfit.model is own
        assert (await session.ask("three")).error.kind == "budget"  # What was used before it was away counts.
        await session.close()
        assert runtime._ground.outfit_of("s") is None


async def test_hooks_hear_of_the_start_of_a_session_once(autojump_clock, open_checked):
    """T5: being away is nothing to hear of. After a crash they are told, as they always were."""
    heard: list[tuple[str, bool]] = []
    hooks = Hooks(session_started=lambda event: heard.append((event.session, event.resumed)))
    async with open_checked(talkative(), limits=FEW, hooks=[hooks]) as runtime:
        await asked(runtime)
        for _ in range(3):
            await crowd(runtime, 3)
            assert actor_of(runtime) is None
            await asked(runtime)
        assert [each for each in heard if each[0] == "s"] == [("s", False)]
        session = await runtime.session("s")
        session._actor._nursery.start_soon(_raise, RuntimeError("a bug"))
        await trio.testing.wait_all_tasks_blocked()
        assert [each for each in heard if each[0] == "s"] == [("s", False), ("s", True)]


async def test_a_models_client_keeps_nothing_for_a_session_at_rest(autojump_clock, open_checked):
    model = talkative()
    forgotten: list[str] = []
    model.forget_session = forgotten.append
    async with open_checked(model, limits=FEW) as runtime:
        await asked(runtime)
        await crowd(runtime, 2)
        assert forgotten == ["s"]
        await asked(runtime)


@pytest.mark.parametrize("slots", [(), ("closed", "inner")], ids=["weakly known", "not"])
async def test_the_model_of_a_session_at_rest_is_closed_with_the_runtime(autojump_clock, open_checked, slots):
    """I21: once, also if it is one that cannot be referred to weakly."""

    class Own:
        if slots:
            __slots__ = slots
        name, context_window = "own:one", None

        def __init__(self) -> None:
            self.inner, self.closed = talkative(), 0

        def stream(self, request):
            return self.inner.stream(request)

        async def aclose(self) -> None:
            self.closed += 1

    models = [Own(), Own()]
    async with open_checked(talkative(), limits=FEW) as runtime:
        for name, model in zip("ab", models, strict=True):
            await asked(runtime, name, model=model)
        await crowd(runtime)
        assert actor_of(runtime, "a") is actor_of(runtime, "b") is None
        await asked(runtime, "b")
        assert [model.closed for model in models] == [0, 0]
    assert [model.closed for model in models] == [1, 1]


# --- who would be missed stays


@tool(background=True)
async def dig(n: int = 0) -> int:
    """Takes its time."""
    await trio.sleep(5)
    return n


@contextmanager
def a_handle(session: Session):
    yield session


@contextmanager
def a_subscription(session: Session):
    yield session.events()


@contextmanager
def a_watch(session: Session):
    with session.watch():
        del session
        yield


@contextmanager
def an_inbox(session: Session):
    with session.notifications() as inbox:
        yield inbox


@contextmanager
def a_service(session: Session):
    service = session._ground.services(session.id).schedules
    del session
    yield service


@contextmanager
def all_services(session: Session):
    services = session._ground.services(session.id)
    del session
    yield services


@contextmanager
def a_hold(session: Session):
    holds = session._actor.notification_holds
    del session
    holds.hold()
    yield None
    holds.release()


@contextmanager
def a_feed(session: Session):
    feeds = session._actor.audience.ends
    feeds.append(feed := Feed(1))
    del session
    yield None
    feeds.remove(feed)


@pytest.mark.parametrize("held", [a_handle, a_subscription, a_watch, an_inbox, a_service, all_services, a_hold, a_feed])
async def test_who_is_held_or_heard_stays(autojump_clock, open_checked, held):
    async with open_checked(talkative(), limits=FEW) as runtime:
        await asked(runtime)
        actor = actor_of(runtime)
        manager = held(await runtime.session("s"))
        holder = manager.__enter__()
        await crowd(runtime)
        assert actor_of(runtime) is actor
        await asked(runtime, "s", "two")  # It goes on, and nobody is told that it has ended.
        assert actor_of(runtime) is actor and actor.state.turns == 2
        manager.__exit__(None, None, None)
        del holder, manager, actor
        gc.collect()
        await crowd(runtime)
        assert actor_of(runtime) is None


async def test_a_handle_that_is_held_is_the_one_that_is_given_to_others(autojump_clock, open_checked):
    async with open_checked(talkative(), limits=FEW) as runtime:
        session = await runtime.session("s")
        await crowd(runtime)
        assert await runtime.session("s") is session
        await session.ask("one")
        assert session.state.turns == 1


@pytest.mark.parametrize("work", ["turn", "run", "schedule", "notification", "delivered", "approval", "hook"])
async def test_a_session_that_has_something_to_do_stays_until_it_is_done(autojump_clock, open_checked, work):
    """I26: what is owed to a session comes, whether or not anybody holds it."""

    @tool(policy="requires_approval")
    async def risky() -> str:
        """Needs a nod."""
        return "done"

    async def look_on(event: Any) -> None:
        await trio.sleep(5)

    settings: dict[str, Any] = {"tools": [dig, risky], "limits": FEW}
    if work == "hook":
        settings["hooks"] = [Hooks(after_turn=look_on)]
    model = talkative(reply(call("dig"))) if work == "turn" else talkative()
    async with open_checked(model, **settings) as runtime:
        session = await runtime.session("s", budget=Budget(inline_s=60))
        turns = 1
        if work == "turn":
            await session.send("go")
        elif work == "run":
            await session.spawn("dig")
        elif work == "schedule":
            at = instant(session._now() + 5)
            await session.create_schedule(title="later", message="Now.", at=at)
        elif work == "notification":
            session._actor.notification_holds.hold()
            await session.notify("Ding", "dong")
        elif work == "delivered":
            id = await session.notify("Ding", "dong", wake=False)
            await session._ask(DeliverNotifications(session._now(), (id,)))
            turns = 0
        elif work == "approval":
            model._scenes.insert(0, reply(call("risky")))
            with session.watch():
                await session.send("go")
                await trio.testing.wait_all_tasks_blocked()
        else:
            await session.ask("go")
        actor = session._actor
        del session
        await crowd(runtime)
        assert actor_of(runtime) is actor
        if work == "notification":
            actor.notification_holds.release()
        elif work == "delivered":
            await (await runtime.session("s")).acknowledge(id)
        elif work == "approval":
            (waits,) = (await runtime.session("s")).approvals
            await (await runtime.session("s")).approve(waits)
        await trio.sleep(10)
        assert actor.state.turns == turns and actor.state.turn is None
        await crowd(runtime)
        assert actor_of(runtime) is None
        del actor
        assert (await runtime.session("s")).state.turns == turns


async def test_what_is_on_its_way_to_the_disk_keeps_its_session_here(autojump_clock, open_checked):
    """I12: the state is without it."""
    async with open_checked(talkative(), limits=FEW) as runtime:
        await asked(runtime)
        actor = actor_of(runtime)
        actor.in_flight = runtime._log.last
        await crowd(runtime)
        assert actor_of(runtime) is actor
        actor.in_flight = None
        await crowd(runtime)
        assert actor_of(runtime) is None


async def test_what_waits_in_its_mailbox_keeps_a_session_here(autojump_clock, open_checked):
    """It was accepted: at rest nobody would take it."""
    async with open_checked(talkative(), limits=FEW) as runtime:
        await asked(runtime)
        await crowd(runtime, 1)
        actor = actor_of(runtime)
        assert actor.could_rest
        actor.post(QueueNotification(NotificationId("note_x"), "generic", "Ding", "dong", actor.now(), wake=False))
        assert not actor.could_rest
        await crowd(runtime)
        assert actor_of(runtime) is None
        assert [each.title for each in (await runtime.session("s")).pending_notifications()] == ["Ding"]


async def test_stores_that_somebody_holds_are_those_that_the_session_has_when_it_comes_back(tmp_path):
    """B24: one instance writes."""
    async with open_runtime(tmp_path, model=talkative(), durability="write", limits=FEW) as runtime:
        await asked(runtime)
        kv, files, secrets = (getattr(runtime.services("s"), name) for name in ("kv", "files", "secrets"))
        actor = actor_of(runtime)
        await crowd(runtime)
        assert actor_of(runtime) is None
        session = await runtime.session("s")
        assert session._actor is not actor
        offered = runtime.services("s")
        assert offered.kv is kv and offered.files is files is runtime.files_of("s") and offered.secrets is secrets
    assert not check_invariants(tmp_path)


async def test_an_opening_looks_at_a_few_however_many_are_held(autojump_clock, open_checked, monkeypatch):
    looked: list[Resident] = []
    is_missed = Resident.is_missed.fget

    def count(resident: Resident) -> bool:
        looked.append(resident)
        return is_missed(resident)

    monkeypatch.setattr(Resident, "is_missed", property(count))
    async with open_checked(talkative(), limits=FEW) as runtime:
        held = [await runtime.session(f"s{number}") for number in range(100)]
        looked.clear()
        for number in range(10):
            await runtime.session(f"other{number}")
        assert len(looked) <= 10 * LOOKED_AT_MAX
        await crowd(runtime, 200)
        assert len(runtime._ground.sessions) < 130  # Those that are held keep no other here.
        del held
        await crowd(runtime, 30)
        assert len(runtime._ground.sessions) == 2


# --- at the same time


async def test_one_that_is_being_put_to_rest_is_opened_once_it_has_ended(autojump_clock, open_checked):
    """Two ask for it at once, and get the same one."""
    found: list[Session] = []

    async def ask_for(runtime: Runtime) -> None:
        found.append(await runtime.session("s"))

    async with open_checked(talkative()) as runtime:
        await asked(runtime)
        await runtime.session("other")
        state = runtime._ground.sessions["s"].actor.state
        put_to_rest(runtime)
        assert runtime._sessions.find("s") is not None
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(ask_for, runtime)
        assert found[0] is found[1] and found[0].state == state
        assert (await found[0].ask("two")).text == "Yes."


async def test_who_waits_for_one_that_is_being_put_to_rest_may_give_up(autojump_clock, open_checked):
    async with open_checked(talkative()) as runtime:
        await asked(runtime)
        await runtime.session("other")
        put_to_rest(runtime)
        with trio.CancelScope() as scope:
            scope.cancel()
            await runtime.session("s")
        assert scope.cancelled_caught and actor_of(runtime) is None
        await asked(runtime, "s", "two")


async def test_a_runtime_that_ends_meanwhile_opens_none(autojump_clock, open_checked, monkeypatch):
    """I24: who waits for the actor to end hears that the runtime has."""
    refused: list[Exception] = []

    async def ask_for(runtime: Runtime) -> None:
        with pytest.raises(RuntimeEnded, match="the runtime is closed") as raised:
            await runtime.session("s")
        refused.append(raised.value)

    async def leave_late(actor: SessionActor, reason: str) -> None:
        while not runtime._ground.closed:
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        async with open_checked(talkative()) as runtime:
            await asked(runtime)
            await runtime.session("other")
            monkeypatch.setattr(SessionActor, "_leave", leave_late)
            put_to_rest(runtime)
            nursery.start_soon(ask_for, runtime)
            await trio.testing.wait_all_tasks_blocked()
    assert refused and "s" not in runtime._ground.sessions


async def test_one_at_rest_is_found_by_those_who_know_its_name(autojump_clock, open_checked):
    """The control socket, the lists, a sweep."""
    async with open_checked(talkative(), tools=[dig], limits=FEW) as runtime:
        session = await runtime.session("s")
        task = await session.spawn("dig", signal_on_completion=False)
        await session.wait_task(task.id)
        listed = session.tasks()
        del session
        await crowd(runtime)
        assert actor_of(runtime) is None
        assert runtime.tasks(session="s") == listed and runtime.task(task.id).ended
        assert await runtime.sweep_tasks() == 0
        await crowd(runtime)
        assert (await answered(runtime, {"do": "send", "session": "s", "text": "hello"}))["ok"] is True
        await trio.testing.wait_all_tasks_blocked()
        await crowd(runtime)
        assert (await answered(runtime, {"do": "close", "session": "s"}))["ok"] is True
        with pytest.raises(CommandRejected, match="closed"):
            await (await runtime.session("s")).ask("more")


async def test_one_that_has_failed_after_it_came_back_is_read_from_the_journal(autojump_clock, open_checked):
    """I12, I22."""
    async with open_checked(talkative(), limits=FEW) as runtime:
        await asked(runtime)
        await runtime._ground.snapshots.write()
        await crowd(runtime)
        await asked(runtime, "s", "two")
        session = await runtime.session("s")
        for _ in range(SESSION_RESTART.limit + 1):
            await trio.testing.wait_all_tasks_blocked()
            assert session.state.turns == 2
            session._actor._nursery.start_soon(_raise, RuntimeError("a bug"))
        await session._ref.wait_exit()
        await crowd(runtime)
        session = await runtime.session("s")
        assert [message.text for message in session.history][::2] == ["one", "two"]
        assert (await session.ask("three")).error is None


@pytest.mark.parametrize("meanwhile", ["at once", "a snapshot", "a crowd"])
async def test_one_that_has_failed_for_good_is_opened_again_with_what_it_was_given(
    autojump_clock, open_checked, meanwhile
):
    """api.md, I27: else it had the model, the tools and the budget of the runtime, and was held to nothing any more."""
    heard: list[tuple[str, bool]] = []
    hooks = Hooks(session_started=lambda event: heard.append((event.session, event.resumed)))

    @tool
    async def everything() -> str:
        """Not for everybody."""
        return "done"

    own = talkative()
    async with open_checked(talkative(), tools=[everything], limits=FEW, hooks=[hooks]) as runtime:
        await asked(runtime, model=own, tools=[], budget=Budget(steps=1))
        session = await runtime.session("s")
        for _ in range(SESSION_RESTART.limit + 1):
            await trio.testing.wait_all_tasks_blocked()
            session._actor._nursery.start_soon(_raise, RuntimeError("a bug"))
        await session._ref.wait_exit()
        del session
        heard.clear()
        if meanwhile == "a snapshot":
            await runtime._ground.snapshots.write()
        elif meanwhile == "a crowd":
            await crowd(runtime)
        session = await runtime.session("s")
        outfit = session._actor.outfit
        assert outfit.model is own and outfit.registry.get("everything") is None
        assert (await session.ask("two")).error.kind == "budget"
        assert [each for each in heard if each[0] == "s"] == [("s", True)]  # As after every crash.


# --- snapshots and restarts


async def test_what_no_snapshot_has_is_kept_and_no_more(autojump_clock, open_checked):
    """J13: one that was only looked at is still what the snapshot has."""
    async with open_checked(talkative(), limits=FEW) as runtime:
        roster = runtime._ground.roster
        await asked(runtime)
        await crowd(runtime, 2)
        assert "s" in roster.kept()
        await runtime._ground.snapshots.write()
        assert roster.kept() == {}
        state = (await runtime.session("s")).state
        await crowd(runtime, 2)
        assert actor_of(runtime) is None and roster.kept() == {}
        assert (await runtime.session("s")).state == state
        await asked(runtime, "s", "two")
        await crowd(runtime, 2)
        assert actor_of(runtime) is None and set(roster.kept()) == {"s"}
        assert (await runtime.session("s")).state.turns == 2


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_comes_in_between_nothing_is_lost(autojump_clock, open_checked, seed):
    """I12, I17, J13: turns, rests and returns, a close, a crash, while snapshots are pictured, written and taken over; then the process is killed."""
    draw = random.Random(seed)
    disk = CrashDisk()
    turns = dict.fromkeys("abcd", 0)
    closed: set[str] = set()
    pictures: list[Any] = []
    async with open_checked(talkative(), disk=disk, durability="fsync", limits=FEW) as runtime:
        snapshots = runtime._ground.snapshots
        for _ in range(60):
            name = draw.choice("abcd")
            match draw.choice(("ask", "ask", "look", "picture", "write", "crash", "close")):
                case "ask" if name not in closed:
                    await asked(runtime, name)
                    turns[name] += 1
                case "crash" if name not in closed:
                    session = await runtime.session(name)
                    session._actor._nursery.start_soon(_raise, RuntimeError("a bug"))
                    await trio.sleep(SESSION_RESTART.within_s)
                    del session
                case "close" if draw.random() < 0.1:
                    await (await runtime.session(name)).close()
                    closed.add(name)
                case "picture":
                    pictures.append(snapshots.pictured())
                case "write" if pictures:
                    picture = pictures.pop()
                    pictures.clear()
                    if await snapshots.put_down(picture):
                        await snapshots._hand_over(picture)
                case _:
                    assert (await runtime.session(name)).state.turns == turns[name]
            for known in runtime.sessions():
                assert known.turns == turns[known.id]
        assert len(runtime._ground.sessions) <= 2
        left = disk.fork().kill()
        known = {name: (await runtime.session(name)).state for name in turns}
    async with open_checked(talkative(), disk=left, durability="fsync", limits=FEW) as runtime:
        for name, state in known.items():
            found = (await runtime.session(name)).state
            assert (found.turns, found.history.messages[:]) == (state.turns, state.history.messages[:])


async def test_every_snapshot_holds_every_session_whether_it_rests_or_not(tmp_path):
    """I12, J13: snapshot and suffix are the full fold."""
    limits = Limits(snapshot_every=7, resident_sessions=3)
    for _ in range(2):
        async with open_runtime(tmp_path, model=talkative(), durability="write", limits=limits) as runtime:
            for number in range(40):
                await asked(runtime, f"s{number * 7 % 10}")
                await trio.testing.wait_all_tasks_blocked()
            listed = {info.id: (info.phase, info.turns) for info in runtime.sessions()}
        log = open_log(tmp_path, level="write")
        try:
            roster = Roster(log)
            assert {name: roster.glance(name) for name in roster.names()} == listed
            for name in listed:
                assert roster.load(name) == fold(record.payload for record in log.records(stream=name))
        finally:
            log.close()
    assert not check_invariants(tmp_path)


# --- at every step


class AtStep(trio.abc.Instrument):
    """Does something right before the nth step that any task takes, counted from `arm()`."""

    def __init__(self, step: int, action: Any) -> None:
        self._step, self._action, self.seen, self.is_armed = step, action, 0, False

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.is_armed:
            self.seen += 1
            if self.seen == self._step:
                self._action()


@asynccontextmanager
async def simulated(disk: CrashDisk):
    async with open_runtime("/state", model=talkative(), disk=disk, limits=FEW) as runtime:
        yield runtime


async def to_and_fro(runtime: Runtime, *, heard: dict[str, int]) -> None:
    for name in ("a", "b", "c", "a", "d", "b"):
        await asked(runtime, name)
        heard[name] = heard.get(name, 0) + 1


@pytest.mark.parametrize("seed", range(3))
def test_cancelling_whoever_opens_sessions_at_every_step_loses_none(seed):
    """I6: enumerated, not sampled; in the midst of it others are put to rest and come back."""

    async def scenario(disk: CrashDisk, at: AtStep, scope: trio.CancelScope) -> None:
        heard: dict[str, int] = {}
        async with simulated(disk) as runtime:
            at.is_armed = True
            with scope:
                await to_and_fro(runtime, heard=heard)
            at.is_armed = False
            for name, turns in heard.items():
                session = await runtime.session(name)
                assert session.state.turns in (turns, turns + 1)
                assert (await session.ask("and now?")).error is None

    step = 0
    while True:
        step += 1
        disk, scope = CrashDisk(), trio.CancelScope()
        at = AtStep(step, scope.cancel)
        run_simulated(scenario, disk, at, scope, seed=seed, instruments=[at])
        assert not check_invariants(_reader(disk), complete=True)
        if at.seen < step:
            break
    assert step > 40


def test_a_power_cut_at_every_step_loses_no_turn_that_was_answered():
    """I1, J12: whether or not its session was at rest by then."""

    async def until_dark(disk: CrashDisk, heard: dict[str, int]) -> None:
        async with simulated(disk) as runtime:
            await to_and_fro(runtime, heard=heard)
            await runtime._ground.snapshots.write()
            await to_and_fro(runtime, heard=heard)

    async def next_day(disk: CrashDisk, heard: dict[str, int]) -> None:
        async with simulated(disk) as runtime:
            for name, turns in heard.items():
                session = await runtime.session(name)
                assert session.state.turns in (turns, turns + 1)
                assert (await session.ask("and now?")).error is None

    cut = 0
    while True:
        cut += 1
        disk, heard = CrashDisk(), {}
        disk.cut_power_before(cut)
        try:
            run_simulated(until_dark, disk, heard, seed=cut)
        except BaseException as error:
            if not _is_cut(error):
                raise
        else:
            break
        left = disk.crash(seed=cut)
        run_simulated(next_day, left, heard, seed=cut)
        assert not check_invariants(_reader(left), complete=True)
    assert cut > 40


def _is_cut(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_is_cut(each) for each in error.exceptions)
    return isinstance(error, PowerCut) or (error.__cause__ is not None and _is_cut(error.__cause__))


def _reader(disk: CrashDisk):
    from trouper.journal import open_reader

    return open_reader("/state", disk=disk)
