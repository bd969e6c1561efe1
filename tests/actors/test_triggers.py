"""Triggers: every so often, on file changes, at times; supervised, each for itself (B25)."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from background_stage import until

from trouper import ConfigError, Scripted
from trouper.actors.triggers import Every, Fired, OnChange
from trouper.core.cron import Cron, OneShot
from trouper.models.scripted import reply


async def test_every_so_often_and_not_more_to_make_up(open_checked: Any, autojump_clock: Any) -> None:
    """B25: every N seconds; a slow function is not called twice at once, nor in a burst after."""
    at: list[float] = []

    async def act(fired: Fired) -> None:
        at.append(trio.current_time() - began)
        if len(at) == 2:
            await trio.sleep(25.0)

    async with open_checked(Scripted([])) as runtime:
        began = trio.current_time()
        runtime.trigger("tick", Every(10.0), act)
        await trio.sleep(65.0)
        assert at == pytest.approx([10.0, 20.0, 50.0, 60.0])
        assert await runtime.stop_trigger("tick") and not await runtime.stop_trigger("tick")
        await trio.sleep(100.0)
        assert len(at) == 4
    with pytest.raises(ConfigError, match="makes no sense"):
        Every(0.0)


async def test_a_plain_function_will_do_where_nothing_is_waited_for(open_checked: Any, autojump_clock: Any) -> None:
    """B25: it ran, and was then called a failure, until the trigger was given up."""
    fired: list[str] = []

    async with open_checked(Scripted([])) as runtime:
        trigger = runtime.trigger("tick", Every(10.0), lambda event: fired.append(event.trigger))
        await trio.sleep(35.0)
        assert fired == ["tick"] * 3 and trigger.exit is None


async def test_at_times_of_the_wall_clock(open_checked: Any, autojump_clock: Any) -> None:
    """B25: on schedule."""
    fired: list[tuple[str, float]] = []

    async def act(event: Fired) -> None:
        fired.append((event.trigger, event.at))

    async with open_checked(Scripted([])) as runtime:
        start = runtime.environment.now()
        runtime.trigger("hourly", Cron("0 * * * *"), act)
        once = runtime.trigger("once", OneShot(start + 90.0), act)
        await trio.sleep(2.5 * 3600.0)
        assert fired == [("once", start + 90.0), ("hourly", start + 3600.0), ("hourly", start + 7200.0)]
        assert once.exit is not None  # There is no second time.


async def test_one_that_fails_takes_nothing_else_down(open_checked: Any, autojump_clock: Any) -> None:
    """B25, I22, I23: it begins again within its limit, then stays down, visibly; others and sessions go on."""
    good = bad = 0

    async def fine(fired: Fired) -> None:
        nonlocal good
        good += 1

    async def broken(fired: Fired) -> None:
        nonlocal bad
        bad += 1
        raise RuntimeError("a bug in the host's function")

    async with open_checked(Scripted([reply("hello")])) as runtime:
        runtime.trigger("fine", Every(1.0), fine)
        ref = runtime.trigger("broken", Every(1.0), broken)
        session = await runtime.session("a")
        await trio.sleep(100.0)
        assert good in (99, 100) and bad == 6  # The first time, and five restarts.
        assert ref.exit is not None and "crashed" in str(ref.exit)
        assert (await session.ask("hi")).text == "hello"


async def test_a_trigger_can_wake_a_session(open_checked: Any, autojump_clock: Any) -> None:
    """B25: what it does is the host's choice: a message, a run, a notification."""
    model = Scripted([reply("good morning")])
    async with open_checked(model) as runtime:
        session = await runtime.session("a")
        runtime.trigger("wake", OneShot(runtime.environment.now() + 60.0), lambda fired: session.notify("Wake up"))
        await until(session, lambda state: state.turns == 1 and state.turn is None)
    assert "Wake up" in model.requests[0].messages[-1].text


async def test_changes_of_files_come_together(open_checked: Any, autojump_clock: Any) -> None:
    """B25: what the watcher tells at once is one fire."""
    fired: list[Fired] = []

    async def act(event: Fired) -> None:
        fired.append(event)

    async def watch(*paths: str) -> AsyncIterator[set[tuple[Any, str]]]:
        assert paths == ("inbox", "outbox")
        yield {("added", "inbox/b"), ("added", "inbox/a")}
        await trio.sleep(5.0)
        yield {("deleted", "inbox/a")}

    async with open_checked(Scripted([])) as runtime:
        runtime.trigger("files", OnChange(("inbox", "outbox"), watch), act)
        await trio.sleep(10.0)
    assert [event.changes for event in fired] == [
        (("added", "inbox/a"), ("added", "inbox/b")),
        (("deleted", "inbox/a"),),
    ]


async def test_without_the_package_that_watches_files_the_remedy_is_told_at_once(
    open_checked: Any, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B25: whoever set the trigger was told nothing, and the log said no more than ConfigError."""
    monkeypatch.setitem(sys.modules, "watchfiles", None)  # As if it were not installed.
    async with open_checked(Scripted([])) as runtime:
        with pytest.raises(ConfigError, match=r"pip install 'trouper\[watch\]'"):
            runtime.trigger("files", OnChange("."), print)


async def test_real_files_are_watched(tmp_path: Path) -> None:
    """B25: through watchfiles, on trio. In real time, since the system tells of changes when it likes."""
    from trouper import open_runtime

    seen = trio.Event()
    changes: list[tuple[str, str]] = []

    async def act(event: Fired) -> None:
        changes.extend(event.changes)
        seen.set()

    watched = tmp_path / "watched"
    watched.mkdir()
    with trio.fail_after(30.0):
        async with open_runtime(durability="memory", model=Scripted([])) as runtime:
            runtime.trigger("files", OnChange(watched), act)
            number = 0
            while not seen.is_set():  # The watcher is up when it answers.
                (watched / f"{number}.txt").write_text("x")
                number += 1
                with trio.move_on_after(0.1):
                    await seen.wait()
    assert changes and changes[0][0] in ("added", "modified") and changes[0][1].startswith(str(watched))
