"""Schedules through the runtime, in virtual time: fires, restarts, clocks that are set (B18-B20, I32)."""

from __future__ import annotations

import inspect
from typing import Any

import attrs
import pytest
import trio
from background_stage import Probe, events_of, until, until_quiet

from trouper import CommandRejected, Limits, Session, open_runtime, tool
from trouper.core.schedule import ScheduleState
from trouper.core.task_record import TaskState
from trouper.journal import JournalFailed
from trouper.models.scripted import Scripted, call, reply
from trouper.services.overview import ScheduleBook
from trouper.services.runs import Calendar
from trouper.session import SessionEnded
from trouper.testing.crash_disk import CrashDisk, PowerCut

HOUR = 3_600.0


def noted() -> Scripted:
    return Scripted([reply("noted")], exhausted="repeat")


@tool(background=True)
async def gone() -> str:
    """Is there at first."""
    return "done"


async def test_a_fire_starts_the_run_itself_and_the_monitor_lists_it(open_checked: Any, autojump_clock: Any) -> None:
    """B19: no model turn is needed; each run is a task, linked to its schedule."""
    probe = Probe()
    model = noted()
    async with open_checked(model, tools=[probe.slow()]) as runtime:
        session = await runtime.session("a")
        made = await session.create_schedule(title="Dig", cron="0 * * * *", tool="slow", arguments={"seconds": 1.0})
        await trio.sleep(3 * HOUR + 60.0)
        (schedule,) = session.schedules()
        assert len(probe.started) == 3 and len(schedule.runs) == 3
        assert [task.state for task in session.tasks()] == [TaskState.SUCCEEDED] * 3
        task = session.task(schedule.runs[0])
        assert task is not None and task.links[0].target == made["schedule_id"] and task.about.title == "Dig"
        assert await session.cancel_schedule(made["schedule_id"])
        await trio.sleep(5 * HOUR)
        assert len(probe.started) == 3  # I32: never for a cancelled schedule.
    # Every turn there was brought the end of a run; none was needed to start one.
    assert all("task succeeded" in request.messages[-1].text for request in model.requests)


async def test_a_message_comes_at_its_time_and_once(open_checked: Any, autojump_clock: Any) -> None:
    """B18: one-shot, RFC 3339; B19: by choice a message to the session."""
    model = noted()
    async with open_checked(model) as runtime:
        session = await runtime.session("a")
        await session.create_schedule(title="Tea", at="2026-01-01T05:00:00+01:00", message="the tea is ready")
        await trio.sleep(4 * HOUR - 1.0)
        assert not model.requests
        await trio.sleep(2.0)
        await until_quiet(session)
        assert session.schedules()[0].state is ScheduleState.FINISHED
        await trio.sleep(100 * HOUR)
    assert len(model.requests) == 1 and "> the tea is ready" in model.requests[0].messages[-1].text


async def test_bad_input_is_a_clear_error_of_the_hosts_tree(open_checked: Any, autojump_clock: Any) -> None:
    """B18, B19: exactly one of the two, something to say, a time to come, an expression and a zone that exist, at most 5 active, 60 s apart."""
    async with open_checked(noted(), tools=[Probe().slow()], limits=Limits(schedule_interval_s=300.0)) as runtime:
        session = await runtime.session("a")
        for options, told in [
            ({"message": "x"}, "exactly one of cron"),
            ({"message": "x", "cron": "0 * * * *", "at": "2030-01-01T00:00:00Z"}, "exactly one of cron"),
            ({"message": "x", "at": "2020-01-01T00:00:00Z"}, "in the past"),
            ({"message": "x", "at": "tomorrow"}, "RFC 3339"),
            ({"message": "x", "cron": "every day"}, "every day"),
            ({"message": "x", "cron": "0 0 31 2 *"}, "day-of-month"),
            ({"message": "x", "cron": "* * * * *"}, "300 s is the shortest"),
            ({"message": "x", "cron": "0 * * * *", "timezone": "Mars/Olympus"}, "Mars/Olympus"),
            ({"cron": "0 * * * *"}, "exactly one thing"),
            ({"cron": "0 * * * *", "message": ""}, "is empty; say what"),
            ({"cron": "0 * * * *", "message": " \n"}, "is empty; say what"),
            ({"cron": "0 * * * *", "tool": "slow", "message": "x"}, "exactly one thing"),
            ({"cron": "0 * * * *", "tool": "sluw"}, "Did you mean 'slow'"),
            ({"cron": "0 * * * *", "tool": "slow", "arguments": {"seconds": []}}, "seconds"),
            ({"cron": "0 * * * *", "message": "x", "missed": "never"}, "'skip', 'once' or 'all'"),
        ]:
            with pytest.raises(CommandRejected, match=told):
                await session.create_schedule(title="bad", **options)
        for number in range(5):
            await session.create_schedule(title=f"good {number}", cron="0 * * * *", message="x")
        with pytest.raises(CommandRejected, match="already has 5 active schedules"):
            await session.create_schedule(title="one more", cron="0 * * * *", message="x")
        for each in session.schedules():
            await session.cancel_schedule(each.id)


async def test_the_model_makes_lists_and_cancels_schedules(open_checked: Any, autojump_clock: Any) -> None:
    """B18, T13: by the tools; spawn_background takes a schedule too (B6)."""
    from trouper.tools.builtin import cancel_schedule, create_schedule, list_schedules

    def cancel(request: Any) -> Any:
        return reply(*(call("cancel_schedule", schedule_id=each.id) for each in session.schedules()))

    model = Scripted(
        [
            reply(
                call("create_schedule", title="Tea", cron="0 16 * * *", timezone="Europe/London", message="tea"),
                call("spawn_background", tool="slow", args={"seconds": 1}, schedule={"cron": "30 * * * *"}),
                call(
                    "spawn_background",
                    tool="slow",
                    args={},
                    schedule={"cron": "0 * * * *", "at": "2030-01-01T00:00:00Z"},
                ),
                call("spawn_background", tool="slow", args={}, schedule={"at": "soon"}),
            ),
            reply(call("list_schedules")),
            cancel,
            reply("done"),
        ]
    )
    tools = [Probe().slow(), create_schedule, list_schedules, cancel_schedule]
    async with open_checked(model, tools=tools) as runtime:
        session = await runtime.session("a")
        await session.ask("go")
        assert [each.state for each in session.schedules()] == [ScheduleState.CANCELLED] * 2
    made, spawned, both, bad = (answer.content for answer in model.requests[1].messages[-1].answers)
    assert made["next"] == "2026-01-01T16:00:00.000Z" and made["timezone"] == "Europe/London"
    assert spawned["status"] == "scheduled" and spawned["next"] == "2026-01-01T00:30:00.000Z"
    assert "exactly one of cron" in both and "RFC 3339" in bad
    (listed,) = (answer.content for answer in model.requests[2].messages[-1].answers)
    assert {each["title"] for each in listed["schedules"]} == {"Tea", "Runs of slow"}


async def test_a_run_that_finds_no_place_waits_for_one(open_checked: Any, autojump_clock: Any, journal: Any) -> None:
    """B19, I19, I32: a due fire happens, as soon as a run of the session has ended."""
    probe = Probe()
    async with open_checked(noted(), tools=[probe.slow()], limits=Limits(runs_per_session=1)) as runtime:
        session = await runtime.session("a")
        spawned = await session.spawn("slow", {"seconds": 1.5 * HOUR + 30.0})
        made = await session.create_schedule(title="Dig", cron="0 * * * *", tool="slow", arguments={"seconds": 1.0})
        await trio.sleep(1.1 * HOUR)
        assert len(probe.started) == 1
        await until(session, lambda state: spawned.id not in state.tasks.live)
        ended_at = trio.current_time()
        await until(session, lambda state: state.tasks.live)
        assert trio.current_time() - ended_at < 0.5
        await trio.sleep(0.6 * HOUR)
        assert len(session.schedules()[0].runs) == 2
        await session.cancel_schedule(made["schedule_id"])
        await until_quiet(session)
    assert not [each for each in events_of(journal, "ScheduleFireCompleted") if each.refusal]


@pytest.mark.parametrize("limits", [Limits(runs_per_session=2), Limits(runs_per_runtime=2)], ids=["session", "runtime"])
async def test_all_that_was_missed_is_run_as_places_come_free(
    open_checked: Any, autojump_clock: Any, journal: Any, limits: Limits
) -> None:
    """B18, I19, I32: eight fires were due, and there are two places: none is refused, and each runs once."""
    disk, probe = CrashDisk(), Probe()
    settings = {"disk": disk, "tools": [probe.slow()], "limits": limits}
    async with open_checked(noted(), **settings) as runtime:
        session = await runtime.session("a")
        await session.create_schedule(
            title="Dig", cron="0 * * * *", tool="slow", arguments={"seconds": 300.0}, missed="all"
        )
    await trio.sleep(8.5 * HOUR)
    async with open_checked(noted(), **{**settings, "disk": disk.process()}) as runtime:
        session = await runtime.session("a")
        await trio.sleep(1_300.0)  # Four times two, and what it takes to tell.
        assert len(probe.started) == 8
        (schedule,) = session.schedules()
        assert len(schedule.runs) == 8 and (schedule.skipped, schedule.abandoned) == (0, 0) and not schedule.claims
        await session.cancel_schedule(schedule.id)
        await until_quiet(session)
    done = events_of(journal, "ScheduleFireCompleted")
    assert sorted(each.fire for each in done) == list(range(1, 9)) and not any(each.refusal for each in done)


async def test_a_fire_that_waits_gets_a_place_that_another_session_leaves(
    open_checked: Any, autojump_clock: Any
) -> None:
    """I32: nobody tells it so; it looks again by itself."""
    probe = Probe()
    async with open_checked(noted(), tools=[probe.slow()], limits=Limits(runs_per_runtime=1)) as runtime:
        other = await runtime.session("b")
        await other.spawn("slow", {"seconds": 1.5 * HOUR})
        session = await runtime.session("a")
        await session.create_schedule(title="Dig", at="2026-01-01T01:00:00Z", tool="slow", arguments={"seconds": 1.0})
        await trio.sleep(1.5 * HOUR - 1.0)
        assert len(probe.started) == 1
        await trio.sleep(62.0)
        assert len(probe.started) == 2 and session.schedules()[0].state is ScheduleState.FINISHED
        await until_quiet(session)
        await until_quiet(other)


async def test_a_fire_that_waits_survives_restarts_and_a_cancelled_schedule_leaves_none(
    open_checked: Any, autojump_clock: Any
) -> None:
    """B18, I32: to wait is not to be tried; so no restart counts against it."""
    disk, probe = CrashDisk(), Probe()
    settings = {"tools": [probe.slow(idempotent=True)], "limits": Limits(runs_per_session=1)}
    async with open_checked(noted(), disk=disk, complete=False, **settings) as runtime:
        session = await runtime.session("a")
        spawned = await session.spawn("slow", {"seconds": 9 * HOUR})
        await session.create_schedule(title="Dig", at="2026-01-01T01:00:00Z", tool="slow", arguments={"seconds": 1.0})
        await session.create_schedule(title="Not", at="2026-01-01T01:00:00Z", tool="slow", arguments={"seconds": 2.0})
        await trio.sleep(1.1 * HOUR + 30.0)  # Between two tries.
        disk = disk.fork()
    for _ in range(2):
        async with open_checked(noted(), disk=disk, complete=False, **settings) as runtime:
            session = await runtime.session("a")
            await trio.sleep(300.0)
            assert [len(each.claims) for each in session.schedules()] == [1, 1]
            disk = disk.fork()
    async with open_checked(noted(), disk=disk, **settings) as runtime:
        session = await runtime.session("a")
        (not_wanted,) = (each for each in session.schedules() if each.title == "Not")
        assert await session.cancel_schedule(not_wanted.id)
        await session.cancel(spawned.id)
        await until(session, lambda state: not state.schedules.active)
        await until_quiet(session)
        runs = {each.title: len(each.runs) for each in session.schedules()}
        assert runs == {"Dig": 1, "Not": 0}


async def test_a_fire_that_waited_as_its_process_died_has_not_been_tried(
    open_checked: Any, autojump_clock: Any, journal: Any
) -> None:
    """I17, I32: the run that had its place is interrupted by the recovery; given that place at once, the fire would count as tried twice, and be given up after one more crash."""
    disk, probe = CrashDisk(), Probe()
    settings = {"tools": [probe.slow()], "limits": Limits(runs_per_session=1)}
    async with open_checked(noted(), disk=disk, complete=False, **settings) as runtime:
        session = await runtime.session("a")
        await session.spawn("slow", {"seconds": 9 * HOUR})
        await session.create_schedule(title="Dig", at="2026-01-01T01:00:00Z", tool="slow", arguments={"seconds": 1.0})
        await trio.sleep(1.1 * HOUR + 30.0)  # Between two tries.
        disk = disk.fork()
    async with open_checked(noted(), disk=disk, **settings) as runtime:
        session = await runtime.session("a")
        await until(session, lambda state: not state.schedules.active)
        await until_quiet(session)
        assert len(session.schedules()[0].runs) == 1
    assert len(events_of(journal, "TaskInterrupted")) == 1
    assert len(events_of(journal, "ScheduleFireResumed")) >= 1 and not events_of(journal, "ScheduleFireReclaimed")


async def test_a_place_that_a_fire_cannot_use_is_for_the_next(open_checked: Any, autojump_clock: Any) -> None:
    """I32: the first that waits has lost its tool; the second does not wait for another run to end, nor until it looks again."""
    disk, probe = CrashDisk(), Probe()
    slow = probe.slow(idempotent=True)
    limits = Limits(runs_per_session=1)
    async with open_checked(noted(), disk=disk, complete=False, tools=[slow, gone], limits=limits) as runtime:
        session = await runtime.session("a")
        spawned = await session.spawn("slow", {"seconds": 9 * HOUR})
        await session.create_schedule(title="Gone", at="2026-01-01T01:00:00Z", tool="gone")
        await session.create_schedule(title="Dig", at="2026-01-01T01:01:00Z", tool="slow", arguments={"seconds": 1.0})
        await trio.sleep(1.1 * HOUR + 30.0)  # Between two tries.
        disk = disk.fork()
    async with open_checked(noted(), disk=disk, tools=[slow], limits=limits) as runtime:
        session = await runtime.session("a")
        await trio.sleep(10.0)
        await session.cancel(spawned.id)
        await until(session, lambda state: spawned.id not in state.tasks.live)
        ended_at = trio.current_time()
        await until(session, lambda state: not state.schedules.active)
        assert trio.current_time() - ended_at < 0.5
        assert {each.title: len(each.runs) for each in session.schedules()} == {"Gone": 0, "Dig": 1}
        await until_quiet(session)


async def test_where_there_are_no_places_at_all_a_fire_is_told_as_refused(
    open_checked: Any, autojump_clock: Any
) -> None:
    """B19: it would wait for ever."""
    model = noted()
    async with open_checked(model, tools=[Probe().slow()], limits=Limits(runs_per_session=0)) as runtime:
        session = await runtime.session("a")
        await session.create_schedule(title="Dig", at="2026-01-01T01:00:00Z", tool="slow")
        await trio.sleep(1.1 * HOUR)
        await until_quiet(session)
    assert "nothing could be started" in model.requests[0].messages[-1].text


async def test_a_schedule_outlives_its_process_and_makes_up_for_what_was_missed(
    open_checked: Any, autojump_clock: Any
) -> None:
    """B18: survives a restart; missed fires by policy: skip, once, all up to a cap."""
    disk = CrashDisk()
    async with open_runtime("/state", model=noted(), disk=disk, environment=open_checked.environment()) as runtime:
        for missed in ("skip", "once", "all"):
            session = await runtime.session(missed)
            await session.create_schedule(title=missed, cron="0 * * * *", message=f"missed {missed}", missed=missed)
    await trio.sleep(6.5 * HOUR)
    model = noted()
    disk = disk.process()
    environment = attrs.evolve(open_checked.environment(), pid=2)
    async with open_runtime("/state", model=model, disk=disk, environment=environment) as runtime:
        await trio.sleep(60.0)
        told = {request.session: request.messages[-1].text.count("> missed") for request in model.requests}
        assert told == {"once": 1, "all": 6}
        fires = {each.session: (each.schedule.fires, each.schedule.skipped) for each in runtime.schedules}
        assert fires == {"skip": (0, 6), "once": (1, 5), "all": (6, 0)}
        await trio.sleep(HOUR)
        assert {each.session: each.schedule.fires for each in runtime.schedules} == {"skip": 1, "once": 2, "all": 7}
        for each in runtime.schedules.list(state="active"):
            assert await runtime.schedules.cancel(each.schedule.id)
        for name in ("skip", "once", "all"):
            await until_quiet(await runtime.session(name))
    open_checked.check(disk)


@pytest.mark.parametrize("hours", [-3.0, -0.5, 0.5, 30.0])
async def test_a_clock_that_is_set_makes_nothing_happen_twice(
    open_checked: Any, autojump_clock: Any, journal: list[Any], hours: float
) -> None:
    """B18, B20: back by less than a day, each due time is dealt with once; forward, what was passed over is made up for once."""
    async with open_checked(noted()) as runtime:
        session = await runtime.session("a")
        await session.create_schedule(title="Bell", cron="0 * * * *", message="ding")
        await trio.sleep(2.2 * HOUR)
        assert session.schedules()[0].fires == 2
        open_checked.wall.leap(hours=hours)
        await trio.sleep(8 * HOUR)
        await session.cancel_schedule(session.schedules()[0].id)
        await until_quiet(session)
    dues = [event.due for event in events_of(journal, "ScheduleFireClaimed")]
    assert len(dues) == len(set(dues)) and len(dues) >= 2 + (8 + min(0.0, hours)) - 1


async def test_a_clock_that_was_far_ahead_is_noticed(
    open_checked: Any, autojump_clock: Any, journal: list[Any]
) -> None:
    """B18: a schedule that has seen the year 2030 does not wait for it once the clock is right again."""
    async with open_checked(noted()) as runtime:
        session = await runtime.session("a")
        open_checked.wall.leap(years=4)
        await session.create_schedule(title="Bell", cron="0 * * * *", message="ding")
        await trio.sleep(2.2 * HOUR)
        open_checked.wall.leap(years=-4)
        await trio.sleep(5 * HOUR)
        assert session.schedules()[0].fires >= 6
        await session.cancel_schedule(session.schedules()[0].id)
        await until_quiet(session)
    assert len(events_of(journal, "ScheduleRebased")) == 1


async def test_a_spring_of_days_in_no_time(open_checked: Any, autojump_clock: Any, journal: list[Any]) -> None:
    """B20: time is injected. Sixty mornings in Berlin, the change to summer time among them, each once."""
    model = noted()
    open_checked.wall.leap(hours=24 * 59)
    async with open_checked(model, limits=Limits(max_steps=1)) as runtime:
        session = await runtime.session("a")
        await session.create_schedule(title="Morning", cron="30 2 * * *", timezone="Europe/Berlin", message="ding")
        await trio.sleep(60 * 24 * HOUR)
        assert session.schedules()[0].fires == 60
        await session.cancel_schedule(session.schedules()[0].id)
        await until_quiet(session)
    dues = [event.due for event in events_of(journal, "ScheduleFireClaimed")]
    assert len(set(dues)) == 60 and sorted(dues) == dues


async def test_a_crash_at_any_step_of_a_fire_acts_at_least_once_and_at_most_twice(
    open_checked: Any, autojump_clock: Any
) -> None:
    """B18, I32: claimed and journaled before it acts, completed after; every write between the two is cut once."""

    async def life(disk: CrashDisk, pid: int) -> Scripted:
        model = noted()
        environment = attrs.evolve(open_checked.environment(), pid=pid)
        async with open_runtime("/state", model=model, disk=disk, environment=environment) as runtime:
            session = await runtime.session("a")
            if not session.schedules():
                at = environment.utc().replace(microsecond=0).timestamp() + 600.0
                from trouper.services.views import instant

                await session.create_schedule(title="Bell", at=instant(at), message="ding")
            await until(session, lambda state: not state.schedules.active)
            await until_quiet(session)
        return model

    whole = CrashDisk()
    begun = whole.steps
    await life(whole, 1)
    total = whole.steps
    cuts = 0
    for cut in range(begun + 1, total + 1):
        disk = CrashDisk()
        disk.cut_power_before(cut)
        try:
            await life(disk, 2)
        except BaseException as error:
            assert _is_power_cut(error), error
        else:
            continue
        cuts += 1
        disk = disk.crash(seed=cut)
        await life(disk, 3)
        open_checked.check(disk)
        messages = events_of(open_checked.journal, "NotificationQueued")
        assert len(messages) >= 1
        for schedule in {each.notification.schedule_id for each in messages}:
            assert sum(each.notification.schedule_id == schedule for each in messages) == 1
    assert cuts > 10


def _is_power_cut(error: BaseException) -> bool:
    """Or what follows from one."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_power_cut(each) for each in error.exceptions)
    return isinstance(error, PowerCut | JournalFailed | SessionEnded)


def test_what_a_schedule_takes_is_the_same_wherever_it_is_made() -> None:
    """api.md: by name, with its default, for whoever reads the signature; a misspelt one was told of a class that no host has ever seen."""
    calendar, session, book = (
        [
            (each.name, each.default)
            for each in inspect.signature(made).parameters.values()
            if each.kind is each.KEYWORD_ONLY
        ]
        for made in (Calendar.create, Session.create_schedule, ScheduleBook.create)
    )
    assert calendar == session == book
