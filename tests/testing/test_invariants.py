"""The checker finds what it says it finds: for each invariant that shows in a journal, a sound journal that is broken by hand.

`rerun=False` throughout, but for I18: a mistake in `decide` is made again when it is asked again, so the checker has to see each of these by itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import trio
import trio.testing

from trouper import Budget, Compaction, Limits, Scripted, Session, ToolContext, UsageError, open_runtime, tool
from trouper.actors.environment import Environment
from trouper.codec import Record
from trouper.core.events import (
    CallEnded,
    CallHeld,
    CallStarted,
    CallWasLate,
    CompactionEnded,
    HistoryMasked,
    ModelReplied,
    RecoveryNoted,
    SessionClosed,
    SessionOpened,
    StepStarted,
    TurnEnded,
    TurnStarted,
)
from trouper.core.memory import MemoryWritten
from trouper.core.messages import Outcome, Usage
from trouper.core.notification import NotificationQueued, NotificationsDelivered
from trouper.core.schedule import ScheduleCancelled, ScheduleFireClaimed, ScheduleFireReclaimed
from trouper.core.session import Event
from trouper.core.task_events import TaskCreated, TaskEndedLate, TaskReattached, TaskSpilled, TaskSucceeded
from trouper.core.values import changed
from trouper.journal import MemoryDisk, open_reader
from trouper.journal.reader import Reader
from trouper.models import call, reply, stall
from trouper.testing import CountedIds, VirtualWall, check_invariants, run_simulated, simulate
from trouper.testing.invariants import records_of

SECRET = "swordfish-1234"
#: The session in which everything happens; beside it there are the memory, and one that was closed.
HERE = "busy"


@tool
async def pay(amount: int) -> str:
    """May run once only."""
    return "paid"


@tool(background=True)
async def crawl(context: ToolContext) -> str:
    """Goes on in the background."""
    await trio.sleep(5.0)
    return SECRET


@tool(policy="client_side")
async def locate() -> str:
    """The host answers."""
    raise NotImplementedError


async def _answer_held(session: Session) -> None:
    async for event in session.events():
        if isinstance(event.event, CallHeld):
            await session.answer(event.event.call, "here")
            return


async def _live(disk: MemoryDisk, environment: Environment) -> None:
    script = [
        reply(call("pay", amount=1), call("crawl"), usage=Usage(input=900, output=100)),
        reply("Paid, and on its way.", usage=Usage(input=900, output=100)),
        reply("The crawl is through."),
        reply(call("locate")),
        reply("Here."),
        reply("It is time."),
        reply("In short."),
        reply("Hello."),
    ]
    limits = Limits(compaction=Compaction(threshold=None, keep_pairs=1, min_messages=2), max_steps=4)
    async with open_runtime(
        "/state",
        model=Scripted(script),
        tools=[pay, crawl, locate],
        durability="memory",
        disk=disk,
        environment=environment,
        limits=limits,
        budget=Budget(tokens=100_000, steps=100, tool_calls=100),
    ) as runtime:
        busy = await runtime.session(HERE)
        await busy.ask("pay, and crawl")
        with busy.watch() as events:
            async for event in events:
                if isinstance(event, TurnEnded):
                    break
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_answer_held, busy)
            await busy.ask("where are we?")
        at = datetime.fromtimestamp(environment.now() + 60, UTC).isoformat()
        await busy.create_schedule(title="later", at=at, message="now")
        await trio.sleep(100.0)
        await busy.compact()
        await runtime.memory.remember("people", "ada", SECRET)
        over = await runtime.session("over")
        await over.ask("hello")
        await over.close()


Story = list[Record]


@pytest.fixture(scope="module")
def sound() -> Story:
    disk, clock = MemoryDisk(), trio.testing.MockClock(autojump_threshold=0)
    wall = VirtualWall(clock)
    run_simulated(_live, disk, Environment(now=lambda: wall() / 1000, ids=CountedIds(), pid=1), clock=clock)
    return list(records_of(Reader(disk, "/state")))


# --- breaking ---


def _where(story: Story, kind: type, session: str = HERE) -> int:
    """The first record in which such an event happened."""
    return next(
        i for i, each in enumerate(story) if each.session == session and any(isinstance(e, kind) for e in each.events)
    )


def _event(story: Story, kind: type, session: str = HERE) -> Any:
    return next(e for e in story[_where(story, kind, session)].events if isinstance(e, kind))


def _edited(story: Story, kind: type, edit: Callable[[Any], list[Event]], session: str = HERE) -> Story:
    """With others in place of the first such event."""
    index, found = _where(story, kind, session), _event(story, kind, session)
    events: list[Event] = []
    for event in story[index].events:
        events += edit(event) if event is found else [event]
    return [*story[:index], changed(story[index], events=tuple(events)), *story[index + 1 :]]


def _told(story: Story, index: int, *events: Event, epoch: int | None = None) -> Story:
    """With one more record behind that one."""
    before = story[index]
    record = changed(before, events=events, epoch=before.epoch if epoch is None else epoch)
    return [*story[: index + 1], record, *story[index + 1 :]]


def _numbered(story: Story) -> Story:
    """As a writer would have numbered it: only what was broken is broken."""
    counts: dict[str, int] = {}
    numbered = []
    for record in story:
        numbered.append(changed(record, n=counts.get(record.session, 0)))
        counts[record.session] = counts.get(record.session, 0) + len(record.events)
    return numbered


def _found(story: Story, **settings: Any) -> list[str]:
    return [violation.invariant for violation in check_invariants(story, **{"rerun": False, **settings})]


def test_a_sound_journal_is_sound(sound: Story) -> None:
    assert check_invariants(sound, complete=True) == []
    assert _numbered(sound) == sound


def _reattached(story: Story) -> TaskReattached:
    spilled = _event(story, TaskSpilled)
    return TaskReattached(spilled.task.id, 2, spilled.owner, spilled.at)


def _untold(story: Story) -> Story:
    """Up to where it would have been delivered."""
    story = _edited(story, NotificationQueued, lambda e: [])
    return story[: _where(story, NotificationsDelivered)]


def _cut_between_call_and_answer(story: Story) -> Story:
    """Another turn behind a compaction that takes a call, and leaves its answer."""
    story = _edited(story, CompactionEnded, lambda e: [changed(e, split=2, kept=())])
    again = _event(story, TurnStarted)
    return _told(story, _where(story, CompactionEnded), changed(again, turn=9), StepStarted(9, 1, 1.0))


def _last(story: Story) -> int:
    return max(i for i, each in enumerate(story) if each.session == HERE)


BREAKS: dict[str, tuple[str, Callable[[Story], Story]]] = {
    "a call ends twice": ("I1", lambda s: _edited(s, CallEnded, lambda e: [e, e])),
    "a turn ends with a call open": (
        "I1",
        lambda s: _told(s, _where(s, CallStarted), TurnEnded(1, "end_turn", 1.0)),
    ),
    "a call id is used in two turns": (
        "I1",
        lambda s: [*s[: _where(s, TaskSucceeded)], *s[1 : _where(s, TaskSucceeded)], *s[_where(s, TaskSucceeded) :]],
    ),
    "a call succeeds that never began": ("I2", lambda s: _edited(s, CallStarted, lambda e: [])),
    "a call is unknown that never began": (
        "I2",
        lambda s: _edited(
            _edited(s, CallStarted, lambda e: []), CallEnded, lambda e: [changed(e, outcome=Outcome.UNKNOWN)]
        ),
    ),
    "a recovery leaves a call as it was": (
        "I3",
        lambda s: _told(s, _where(s, CallStarted), RecoveryNoted(1.0, 1, ("call_1_1_0", "call_1_1_1"))),
    ),
    "a recovery overlooks a call": (
        "I3",
        lambda s: _told(
            s, _where(s, CallStarted), RecoveryNoted(1.0, 1, ("call_1_1_0",)), CallEnded("call_1_1_0", Outcome.UNKNOWN)
        ),
    ),
    "the next process goes on without a recovery": (
        "I3",
        lambda s: _told(s, _where(s, CallStarted), CallStarted("call_1_1_1", 1.0, 2), epoch=9),
    ),
    "a tool that is not idempotent starts twice": (
        "I4",
        lambda s: _edited(s, CallStarted, lambda e: [e, changed(e, attempt=2)]),
    ),
    "a call is summed up and its answer is not": ("I5", _cut_between_call_and_answer),
    "a call starts after its turn": (
        "I8",
        lambda s: _told(s, _where(s, CallHeld), changed(_event(s, CallStarted), attempt=2)),
    ),
    "a call starts that nobody asked for": (
        "I8",
        lambda s: _edited(s, CallStarted, lambda e: [e, changed(e, call="call_9_9_9")]),
    ),
    "a late result of a call that has not ended": (
        "I9",
        lambda s: _told(s, _where(s, CallStarted), CallWasLate("call_1_1_0", Outcome.OK)),
    ),
    "a late end of a run that goes on": (
        "I9",
        lambda s: _told(s, _where(s, TaskSpilled), TaskEndedLate(_event(s, TaskSpilled).task.id, 1, "succeeded", 1.0)),
    ),
    "a session is opened twice": ("I13", lambda s: _told(s, len(s) - 1, _event(s, SessionOpened))),
    "an event follows the end of its session": (
        "I16",
        lambda s: _told(s, _where(s, SessionClosed, "over"), _event(s, StepStarted)),
    ),
    "a session closes with a run alive": (
        "I20",
        lambda s: _told(s, _where(s, TaskSpilled) + 1, SessionClosed("", 1.0)),
    ),
    "a turn has more steps than it may": (
        "I27",
        lambda s: _edited(s, TurnStarted, lambda e: [changed(e, options=changed(e.options, max_steps=1))]),
    ),
    "a session has more steps than it may": (
        "I27",
        lambda s: _edited(s, TurnStarted, lambda e: [changed(e, options=changed(e.options, step_cap=1))]),
    ),
    "a step begins with the tokens spent": (
        "I27",
        lambda s: _edited(s, TurnStarted, lambda e: [changed(e, options=changed(e.options, token_cap=1000))]),
    ),
    "a step begins with the calls spent": (
        "I27",
        lambda s: _edited(s, TurnStarted, lambda e: [changed(e, options=changed(e.options, call_cap=2))]),
    ),
    "a run ends twice": ("I28", lambda s: _edited(s, TaskSucceeded, lambda e: [e, e])),
    "a run begins a second time": ("I28", lambda s: _edited(s, TaskSpilled, lambda e: [e, e])),
    "a run that has ended begins once more": (
        "I28",
        lambda s: _edited(s, TaskSucceeded, lambda e: [e, TaskCreated(_event(s, TaskSpilled).task, 1.0)]),
    ),
    "a stale attempt ends a run": (
        "I28",
        lambda s: _told(s, _where(s, TaskSpilled), _reattached(s)),
    ),
    "an attempt comes before its time": (
        "I28",
        lambda s: _told(s, _where(s, TaskSpilled), changed(_reattached(s), attempt=1)),
    ),
    "a run ends without a notification": ("I29", _untold),
    "a run's end is told twice": (
        "I29",
        lambda s: _edited(
            s, NotificationQueued, lambda e: [e, changed(e, notification=changed(e.notification, id="note_other"))]
        ),
    ),
    "a run's end is told as another": (
        "I29",
        lambda s: _edited(
            s, NotificationQueued, lambda e: [changed(e, notification=changed(e.notification, kind="task_failed"))]
        ),
    ),
    "a notification is delivered after it was acknowledged": (
        "I30",
        lambda s: _told(s, _last(s), _event(s, NotificationsDelivered)),
    ),
    "a turn leaves a notification for another": (
        "I31",
        lambda s: _edited(
            s,
            NotificationQueued,
            lambda e: [e, changed(e, notification=changed(e.notification, id="note_2", kind="generic"))],
        ),
    ),
    "a fire is claimed three times": (
        "I32",
        lambda s: _edited(
            s,
            ScheduleFireClaimed,
            lambda e: [e, *[ScheduleFireReclaimed(e.schedule_id, e.fire, e.at)] * 2],
        ),
    ),
    "a cancelled schedule fires": (
        "I32",
        lambda s: _edited(s, ScheduleFireClaimed, lambda e: [ScheduleCancelled(e.schedule_id, e.at), e]),
    ),
    "a writer goes on after the next one has begun": (
        "I34",
        lambda s: [changed(each, epoch=2 if each.session == HERE else 1) for each in s],
    ),
    "a compaction makes the context larger": (
        "I35",
        lambda s: _edited(s, CompactionEnded, lambda e: [changed(e, tokens_after=e.tokens_before + 1)]),
    ),
    "leaving out results makes the context larger": (
        "I35",
        lambda s: _told(s, _last(s), HistoryMasked(0, 100, 101)),
    ),
}


@pytest.mark.parametrize("broken", BREAKS)
def test_what_is_broken_is_found(sound: Story, broken: str) -> None:
    """I1-I5, I8, I9, I13, I16, I20, I27-I32, I34, I35"""
    invariant, break_it = BREAKS[broken]
    story = _numbered(break_it(sound))
    assert story != sound and invariant in _found(story)


@pytest.mark.parametrize("prepared", [0, 3], ids=["fewer", "more"])
def test_a_reply_with_other_calls_than_were_prepared_is_found(sound: Story, prepared: int) -> None:
    """I28: no fold takes it. The checker goes on to what else is wrong, and fails on nothing itself."""
    reply = _event(sound, ModelReplied)
    preparations = (*reply.preparations, *reply.preparations)[:prepared]
    story = _edited(sound, ModelReplied, lambda e: [changed(e, preparations=preparations)])
    assert "I28" in _found(story)


@pytest.mark.parametrize(
    ("invariant", "alter"),
    [
        pytest.param("I13", lambda r: changed(r, n=r.n + 1), id="a hole"),
        pytest.param("I13", lambda r: changed(r, epoch=0), id="an epoch that falls"),
    ],
)
def test_numbers_that_jump_and_epochs_that_fall_are_found(
    sound: Story, invariant: str, alter: Callable[[Record], Record]
) -> None:
    """I13"""
    index = _where(sound, CallStarted)
    assert invariant in _found([*sound[:index], alter(sound[index]), *sound[index + 1 :]])


def test_a_record_that_is_there_twice_is_found(sound: Story) -> None:
    """I14"""
    assert "I14" in _found([*sound, sound[-1]])


def test_what_is_decided_otherwise_is_found(sound: Story) -> None:
    """I18: of the sessions and of the memory."""
    for kind, session, alter in (
        (TurnEnded, HERE, lambda e: [changed(e, detail="altered")]),
        (MemoryWritten, "~memory", lambda e: [changed(e, memory=changed(e.memory, value=2))]),
    ):
        assert _found(_edited(sound, kind, alter, session), rerun=True) == ["I18"]


def test_more_runs_than_the_limits_allow_are_found(sound: Story) -> None:
    """I19: per session and per runtime."""
    assert "I19" in _found(sound, limits=Limits(runs_per_session=0))
    assert "I19" in _found(sound, limits=Limits(runs_per_runtime=0))


@pytest.mark.parametrize("kind", [TurnStarted, StepStarted, CallStarted, TaskSpilled, CompactionEnded])
def test_what_is_left_open_at_the_end_is_found(sound: Story, kind: type) -> None:
    """I26, I3"""
    index = _where(sound, kind)
    cut = [*sound[:index], *([] if kind is CompactionEnded else [sound[index]])]
    assert _found(cut) == []
    assert set(_found(cut, complete=True)) & {"I26", "I3"}


def test_what_waits_for_the_users_next_word_is_not_left_open() -> None:
    """I26: an interrupt sets aside what is queued behind the turn. Without one it is left open, and so it is once the user has said more."""
    disk = MemoryDisk()

    async def talk() -> None:
        async with open_runtime("/state", disk=disk, model=Scripted([reply(stall(60), "Late.")])) as runtime:
            session = await runtime.session("s")
            async with session.turn("one"):
                await session.send("two")
                await session.interrupt()

    run_simulated(talk, seed=1)
    story = list(records_of(open_reader("/state", disk=disk)))
    assert check_invariants(story, complete=True) == []
    ended = _edited(story, TurnEnded, lambda e: [changed(e, stop_reason="end_turn")], "s")
    assert _found(ended, complete=True) == ["I26"]
    assert _found(_numbered([*story, story[2]]), complete=True) == ["I26"]


def test_a_secret_is_found_wherever_it_stands(sound: Story) -> None:
    """I36: in what sessions say, and in what the memory was told."""
    for session in (HERE, "~memory"):
        assert _found([each for each in sound if each.session == session], secrets=[SECRET]).count("I36") >= 1


@pytest.mark.parametrize(
    "secret", ['sword"fish-1234', "sword\\fish-1234", "schwertf\u00efsch-1234", "sword\nfish-1234"]
)
def test_a_secret_is_found_however_json_writes_it(sound: Story, secret: str) -> None:
    """I36: a record is JSON, and what a model or a provider said may be JSON within that."""
    for content in (secret, [secret], json.dumps([secret]), json.dumps([secret], ensure_ascii=False)):

        def tell(event: CallEnded, content: Any = content) -> list[Event]:
            return [changed(event, content=content)]

        assert "I36" in _found(_edited(sound, CallEnded, tell), secrets=[secret])
    assert _found(sound, secrets=[secret]) == []


@pytest.mark.parametrize("given", ["swordfish-1234", [""], [b"swordfish-1234"]])
def test_secrets_are_texts(sound: Story, given: Any) -> None:
    """I36: of one text its letters would be looked for, and nothing stands everywhere."""
    with pytest.raises(UsageError, match="secrets"):
        check_invariants(sound, secrets=given)


@pytest.mark.parametrize("given", [5, None])
def test_what_is_no_journal_is_named(given: Any) -> None:
    with pytest.raises(UsageError, match="is no journal; give its directory"):
        check_invariants(given)


def test_a_seed_is_a_number() -> None:
    with pytest.raises(UsageError, match="the seed '17' is no number"):
        simulate("17")  # type: ignore[arg-type]
