"""What a runtime offers to tools and hosts: memory, stores, files, questions; needs checked before anything is advertised (B21-B24, T7, T9, T16)."""

from __future__ import annotations

import json
import os
import stat
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from pressed_keys import CtrlC
from trouper import CommandRejected, InvalidName, Runtime, ToolContext, ToolResult, UsageError, open_runtime, tool
from trouper._errors import ToolDefinitionError
from trouper.actors.environment import Environment
from trouper.core.task_events import TaskInputRequested
from trouper.events import QuestionAsked
from trouper.journal import MemoryDisk, repair
from trouper.models.scripted import Scripted, call, reply
from trouper.services.memory import MemoryKeeper
from trouper.services.places import Places
from trouper.testing import run_simulated
from trouper.testing.invariants import check_invariants
from trouper.tools.builtin import (
    ask_user,
    default_tools,
    forget,
    kv_store,
    list_memories,
    read_file,
    recall,
    remember,
    secret_store,
)
from trouper.tools.context import Question

MEMORY_TOOLS = [remember, recall, forget, list_memories]


def answers(model: Scripted, request: int) -> list[Any]:
    return [answer.content for answer in model.requests[request].messages[-1].answers]


def placed(open_checked: Any, directory: Path) -> Any:
    return attrs.evolve(open_checked.environment(), directory=directory)


# --- whoever awaits ---


async def test_whatever_can_be_awaited_lets_others_have_their_turn(open_checked: Any, autojump_clock: Any) -> None:
    """Also where there is nothing to wait for: a program that looks again and again must not stand still, and can be cancelled (I6)."""

    @tool(background=True)
    async def quick() -> str:
        """Ends at once."""
        return "done"

    async with open_checked(Scripted([reply("Fine.")], exhausted="repeat"), tools=[quick]) as runtime:
        session = await runtime.session("a")
        task = await session.spawn("quick")
        await session.wait_task(task.id)
        for awaited in (
            *(lambda: session.ask("hello"), session.interrupt, session.compact, lambda: runtime.session("a")),
            *(lambda: session.wait_task(task.id), lambda: session.cancel(task.id), session.sweep_tasks),
            *(lambda: session.notify("Ding"), lambda: runtime.memory.remember("user", "tea", "green")),
            *(lambda: runtime.memory.recall("user", "tea"), lambda: runtime.memory.list("user")),
            *(lambda: runtime.memory.search("green"), lambda: runtime.memory.forget("user", "tea")),
            *(session.close, session.close),
        ):
            with trio.testing.assert_checkpoints():
                await awaited()


# --- needs ---


async def test_a_need_that_is_not_met_fails_before_the_journal_is_touched(
    open_checked: Any, autojump_clock: Any, tmp_path: Path
) -> None:
    """T7: at construction, before the tool is ever advertised."""

    @tool(needs=("subagents",))
    async def boss(context: ToolContext) -> str:
        """Needs others."""
        return ""

    with pytest.raises(ToolDefinitionError, match="'boss' needs 'subagents'"):
        async with open_runtime(tmp_path / "root", model=Scripted([]), tools=[boss]):
            raise AssertionError("never opened")
    assert not (tmp_path / "root").exists()
    async with open_checked(Scripted([])) as runtime:
        with pytest.raises(ToolDefinitionError, match="'boss' needs 'subagents'"):
            await runtime.session("a", tools=[boss])
        assert runtime.sessions() == []
        with pytest.raises(ToolDefinitionError, match="'read_file' needs 'files'"):
            await runtime.session(
                "a", tools=[read_file]
            )  # This journal is on a disk of its own, with nothing beside it.


async def test_all_calls_of_a_session_get_the_same_services(tmp_path: Path) -> None:
    """T7, B24: they are made when first asked for, also by tools in threads at the same time; two stores over one file would overwrite each other."""
    seen: list[tuple[Any, ...]] = []

    def services(context: ToolContext) -> tuple[Any, ...]:
        return tuple(getattr(context, name) for name in ("files", "kv", "secrets", "asker", "tasks", "schedules"))

    @tool
    def in_a_thread(context: ToolContext, n: int) -> None:
        """Looks at what there is."""
        seen.append(services(context))

    @tool
    async def in_the_loop(context: ToolContext, n: int) -> None:
        """Looks at what there is."""
        seen.append(services(context))

    calls = [call(name, n=n) for n in range(4) for name in ("in_a_thread", "in_the_loop")]
    model = Scripted([reply(*calls), reply("ok")], exhausted="cycle")
    async with open_runtime(tmp_path, model=model, tools=[in_a_thread, in_the_loop]) as runtime:
        for name in ("a", "b"):
            await (await runtime.session(name)).ask("go")
    assert len(seen) == 16 and len(set(seen[:8])) == len(set(seen[8:])) == 1
    assert not set(seen[0]) & set(seen[-1])  # Nothing is shared between sessions.


async def test_the_default_tools_work_in_a_runtime_without_a_root(autojump_clock: Any) -> None:
    """I21: in memory there are files too, in a directory of their own that is gone at the end."""
    script = [
        reply(call("write_file", path="a.txt", content="hello")),
        reply(call("read_file", path="a.txt")),
        reply("ok"),
    ]
    model = Scripted(script)
    async with open_runtime(model=model, tools=default_tools(), durability="memory") as runtime:
        session = await runtime.session("a")
        result = await session.ask("go")
        assert result.error is None and "hello" in json.dumps(answers(model, 2))
        files = runtime.files_of("a")
        assert files is not None and files.root.exists()
    assert not files.root.exists()


async def test_no_directory_is_made_for_tools_that_take_no_context(autojump_clock: Any) -> None:
    """T7: services are put together for those who look at them."""

    @tool
    async def look(n: int) -> int:
        """Takes no context."""
        return n

    model = Scripted([reply(call("look", n=1)), reply("ok")])
    async with open_runtime(model=model, tools=[look], durability="memory") as runtime:
        result = await (await runtime.session("a")).ask("go")
        assert result.error is None and answers(model, 1) == [1]
        assert runtime._ground.places._directory is None


async def test_a_copy_of_a_tool_with_another_way_to_run_gets_the_context(autojump_clock: Any) -> None:
    """T7: it may look at it, although the first one did not."""

    @tool
    async def look() -> str:
        """Takes no context."""
        return "nowhere"

    async def invoke(arguments: dict[str, Any], context: ToolContext) -> object:
        return context.session_id

    model = Scripted([reply(call("look")), reply("ok")])
    async with open_runtime(model=model, tools=[look.with_(invoke=invoke)], durability="memory") as runtime:
        await (await runtime.session("a")).ask("go")
    assert answers(model, 1) == ["a"]


async def test_sessions_have_files_of_their_own(open_checked: Any, autojump_clock: Any, tmp_path: Path) -> None:
    """T7, T17."""
    model = Scripted([reply(call("write_file", path="notes/a.txt", content="mine")), reply("ok")], exhausted="cycle")
    environment = placed(open_checked, tmp_path)
    async with open_checked(model, tools=default_tools(), environment=environment) as runtime:
        for name in ("one", "two"):
            await (await runtime.session(name)).ask("go")
    assert (tmp_path / "files" / "one" / "notes" / "a.txt").read_text() == "mine"
    assert stat.S_IMODE(os.stat(tmp_path / "files" / "two" / "notes" / "a.txt").st_mode) == 0o600


# --- outputs ---


async def test_an_output_that_was_cut_is_kept_whole_and_the_note_says_where(
    open_checked: Any, autojump_clock: Any, tmp_path: Path
) -> None:
    """T9: 64 KiB into the model, the full text under the session's files, readable by read_file."""

    @tool
    async def dump() -> str:
        """Much."""
        return "\n".join(f"line {number} {'x' * 80}" for number in range(5_000))

    script = [reply(call("dump")), reply(call("read_file", path="outputs/call_1_1_0.txt", offset=4_990)), reply("ok")]
    model = Scripted(script)
    environment = placed(open_checked, tmp_path)
    async with open_checked(model, tools=[dump, read_file], environment=environment) as runtime:
        await (await runtime.session("a")).ask("go")
    (cut,) = answers(model, 1)
    assert len(cut) <= 65_536 and "'outputs/call_1_1_0.txt'" in cut and "read_file" in cut
    assert "line 4995" in json.dumps(answers(model, 2))
    kept = (tmp_path / "files" / "a" / "outputs" / "call_1_1_0.txt").read_text()
    assert kept.count("\n") == 4_999
    # Without a place the note promises nothing.
    model = Scripted([reply(call("dump")), reply("ok")])
    async with open_checked(model, tools=[dump]) as runtime:
        await (await runtime.session("a")).ask("go")
    assert "outputs/" not in answers(model, 1)[0] and "left out" in answers(model, 1)[0]


async def test_outputs_are_kept_when_a_tool_wants_it(open_checked: Any, autojump_clock: Any, tmp_path: Path) -> None:
    """T9: persist_output, and a raw output, also when the model has seen it all."""

    @tool(persist_output=True)
    async def careful() -> str:
        """Kept."""
        return "short"

    @tool
    async def raw() -> ToolResult:
        """Has more to say than it shows."""
        return ToolResult({"lines": 2}, raw_output="one\ntwo\n")

    model = Scripted([reply(call("careful"), call("raw")), reply("ok")])
    async with open_checked(model, tools=[careful, raw], environment=placed(open_checked, tmp_path)) as runtime:
        await (await runtime.session("a")).ask("go")
    outputs = tmp_path / "files" / "a" / "outputs"
    assert (outputs / "call_1_1_0.txt").read_text() == "short"
    assert (outputs / "call_1_1_1.txt").read_text() == "one\ntwo\n"


# --- memory ---


async def test_memory_outlives_sessions_and_processes(autojump_clock: Any, tmp_path: Path) -> None:
    """B21: upsert keeps created; newest first; search; readable on disk; the journal is the truth."""
    async with open_runtime(tmp_path, model=Scripted([])) as runtime:
        first = await runtime.memory.remember("user", "tea", {"kind": "green"}, summary="What to drink")
        await runtime.memory.remember("user", "city", "Oslo")
        await trio.sleep(60.0)
        again = await runtime.memory.remember("user", "tea", {"kind": "black"}, summary="What to drink")
        assert again.created == first.created
        assert [memo.key for memo in await runtime.memory.list("user")] == ["tea", "city"]
        assert [memo.key for memo in await runtime.memory.search("black")] == ["tea"]
        assert await runtime.memory.forget("user", "city") and not await runtime.memory.forget("user", "city")
    document = json.loads((tmp_path / "memory" / "user" / "tea.json").read_text())
    assert document["value"] == {"kind": "black"}
    (tmp_path / "memory" / "user" / "tea.json").unlink()
    (tmp_path / "memory.sqlite3").write_bytes(b"no database")
    async with open_runtime(tmp_path, model=Scripted([])) as runtime:
        found = await runtime.memory.recall("user", "tea")
        assert found is not None and found.value == {"kind": "black"}
        assert [memo.key for memo in await runtime.memory.search("drink")] == ["tea"]
        assert (tmp_path / "memory" / "user" / "tea.json").exists()
        assert runtime.sessions() == []  # Its stream is no session.
    assert check_invariants(tmp_path) == []


def test_a_ctrl_c_at_any_line_of_a_change_leaves_memory_and_journal_as_one() -> None:
    """B21, J2: it is heard before or after the change, never between the disk and what is remembered."""

    async def one_try(ctrl_c: CtrlC, nth: int) -> None:
        disk = MemoryDisk()
        async with open_runtime("/state", disk=disk, model=Scripted([]), durability="write") as runtime:
            with ctrl_c.pressed():
                await runtime.memory.remember("user", "tea", "green")
            with suppress(KeyboardInterrupt):  # One that was put off is heard at the next checkpoint.
                await trio.lowlevel.checkpoint()
            told = await runtime.memory.recall("user", "tea")
            await runtime.memory.remember("user", "city", "Oslo")
        async with open_runtime("/state", disk=disk, model=Scripted([]), durability="write") as runtime:
            assert ((await runtime.memory.recall("user", "tea")) is None) == (told is None), f"line {nth}"
            assert (await runtime.memory.recall("user", "city")) is not None

    for nth in range(1, 200):
        ctrl_c = CtrlC(MemoryKeeper._decide, nth)
        trio.run(one_try, ctrl_c, nth)
        if ctrl_c.lines < nth:
            break
    assert 10 < ctrl_c.lines < 199


async def test_memory_survives_in_snapshot_and_suffix(open_checked: Any, autojump_clock: Any) -> None:
    """J13, B21: three starts, with a snapshot between them."""
    from trouper.testing.crash_disk import CrashDisk

    disk = CrashDisk()
    for number in range(3):
        async with open_runtime(
            "/state", model=Scripted([reply("hi")]), disk=disk, environment=open_checked.environment()
        ) as runtime:
            assert [memo.key for memo in reversed(await runtime.memory.list("s"))] == [f"k{n}" for n in range(number)]
            await runtime.memory.remember("s", f"k{number}", number)
            await (await runtime.session(f"session{number}")).ask("hello")
            await trio.sleep(1.0)
        disk = disk.process()
    open_checked.check(disk)


async def test_memory_is_folded_from_its_records_if_the_snapshot_of_it_is_of_no_use(tmp_path: Path) -> None:
    """J13: a snapshot can always be built again; a flipped bit in the memory's part of it kept the runtime from opening at all."""
    async with open_runtime(tmp_path) as runtime:
        await runtime.memory.remember("s", "tea", "green")
        await runtime.memory.remember("s", "milk", "none")
        await runtime.memory.forget("s", "milk")
        await runtime.session("ada")
    (snapshot,) = (tmp_path / "snapshots").iterdir()
    snapshot.write_bytes(snapshot.read_bytes().replace(b"green", b"greem"))
    async with open_runtime(tmp_path) as runtime:
        assert [(memo.key, memo.value) for memo in await runtime.memory.list("s")] == [("tea", "green")]
        await runtime.memory.remember("s", "sugar", "two")
    async with open_runtime(tmp_path) as runtime:
        assert [memo.key for memo in await runtime.memory.list("s")] == ["sugar", "tea"]
    assert not check_invariants(tmp_path)


async def test_a_memory_that_has_lost_some_of_its_records_keeps_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """J10, I23: the repaired journal opens, also where what was lost is forgotten later on, and the hole is named."""
    root, repaired = tmp_path / "state", tmp_path / "repaired"
    async with open_runtime(root) as runtime:
        await runtime.memory.remember("s", "tea", "green")
        await runtime.memory.remember("s", "lost", "and gone")
        await runtime.memory.forget("s", "lost")
        await runtime.memory.remember("s", "sugar", "two")
        await (await runtime.session("ada")).ask("hello")
    segment = root / "segment-00000001.log"
    segment.write_bytes(segment.read_bytes().replace(b"and gone", b"and lone"))
    repair(root, repaired)
    for more in ("milk", "lemon"):
        async with open_runtime(repaired) as runtime:
            await runtime.memory.remember("s", more, "some")
            keys = [memo.key for memo in await runtime.memory.list("s")]
            assert (await (await runtime.session("ada")).ask("hello")).error is None
    assert keys == ["lemon", "milk", "sugar", "tea"]
    assert [each.message for each in caplog.records if "lost its events" in each.message] == [
        "the memory has lost its events 1 to 1; what is left of it is kept, and may hold what was forgotten then"
    ]


async def test_a_memory_is_there_when_it_is_on_the_disk_and_not_before(open_checked: Any, autojump_clock: Any) -> None:
    """I15, J4: who acts on it must not act on what a power cut takes."""
    slow = attrs.evolve(open_checked.environment(), sync_latency=lambda: 1.0)
    async with open_checked(Scripted([]), environment=slow, durability="fsync") as runtime:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.memory.remember, "s", "tea", "green")
            await trio.testing.wait_all_tasks_blocked()
            assert await runtime.memory.recall("s", "tea") is None
        assert await runtime.memory.recall("s", "tea") is not None


async def test_a_cancel_while_a_memory_is_on_its_way_leaves_what_is_remembered_and_journal_as_one(
    open_checked: Any, autojump_clock: Any
) -> None:
    """J2, I13: it is handed over, so it happens; else the next one would get its number."""
    disk = MemoryDisk()
    slow = attrs.evolve(open_checked.environment(), sync_latency=lambda: 1.0)
    async with open_checked(Scripted([]), environment=slow, durability="fsync", disk=disk) as runtime:
        with trio.move_on_after(0.1):
            await runtime.memory.remember("s", "tea", "green")
        told = [memo.key for memo in await runtime.memory.list("s")]
        await runtime.memory.remember("s", "milk", "none")
    async with open_checked(Scripted([]), disk=disk) as runtime:
        assert [memo.key for memo in await runtime.memory.list("s")] == ["milk", *told] == ["milk", "tea"]


def test_a_snapshot_leaves_no_memory_out_that_is_on_the_disk_and_not_yet_remembered() -> None:
    """I12, I17: between the sync and the moment at which the memory takes it in, others may run; the next start would read on behind it."""
    forgotten: list[bool] = []

    async def picture(runtime: Runtime, seq: int) -> None:
        await runtime._ground.writer.wait_durable(seq)
        pictured = runtime._ground.snapshots.pictured()
        held = [name for name, _ in pictured.sections if name == "~memory"]
        forgotten.append(not held)
        assert held or pictured.seq < seq

    async def main() -> None:
        slow = Environment(sync_latency=lambda: 1.0)
        async with open_runtime("/state", model=Scripted([]), disk=MemoryDisk(), environment=slow) as runtime:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(runtime.memory.remember, "s", "tea", "green")
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(picture, runtime, runtime._log.last)

    for seed in range(16):
        run_simulated(main, seed=seed)
    assert set(forgotten) == {False, True}


async def test_a_run_that_asks_twice_at_once_is_answered_twice(open_checked: Any, autojump_clock: Any) -> None:
    """B11, I26: it waits for one at a time, and for the other when the first is settled."""

    @tool(background=True)
    async def curious(context: ToolContext) -> list[Any]:
        """Asks two things."""
        given: dict[str, Any] = {}

        async def ask(text: str) -> None:
            given[text] = (await context.ask_user(Question(text))).values

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "Where?")
            nursery.start_soon(ask, "When?")
        return [list(given["Where?"]), list(given["When?"])]

    model = Scripted([reply("Noted.")], exhausted="repeat")
    async with open_checked(model, tools=[curious]) as runtime:
        session = await runtime.session("a")
        with trio.fail_after(1_000.0):
            task = await session.spawn("curious")
            for _ in range(2):
                async for told in session.events():
                    if isinstance(told.event, TaskInputRequested) and session.task(task.id).input_request is not None:
                        break
                wanted = session.task(task.id).input_request["questions"][0]["text"]
                await session.answer_task(task.id, wanted.lower())
            ended = await session.wait_task(task.id)
    assert ended.result == [["where?"], ["when?"]]


async def test_a_secret_is_remembered_by_nobody(tmp_path: Path) -> None:
    """B24, I36: neither the journal nor the readable files nor the index hold one, and what is recalled is what was written."""

    @tool(background=True, needs=("secrets", "memory"))
    async def leak(context: ToolContext) -> dict[str, str]:
        """Remembers, prints and returns what it should not."""
        await context.secrets.set("password", "hunter2-hunter2")
        await context.memory.remember("user", "door", {"code": "hunter2-hunter2"}, summary="code hunter2-hunter2")
        context.output("stdout", "the password is hunter2-hunter2\n")
        return {"password": "hunter2-hunter2"}

    async with open_runtime(tmp_path, model=Scripted([reply("Noted.")], exhausted="repeat"), tools=[leak]) as runtime:
        session = await runtime.session("a")
        ended = await session.wait_task((await session.spawn("leak")).id)
        assert ended.state.value == "succeeded"
        door = await runtime.memory.recall("user", "door")
        assert door is not None and door.value == {"code": "[redacted]"} and door.summary == "code [redacted]"
        assert [memo.key for memo in await runtime.memory.search("redacted")] == ["door"]
        artifacts = tmp_path / "files" / "a" / ended.about.directory
        assert (artifacts / "output.log").read_text() == "[stdout] the password is [redacted]\n"
        assert json.loads((artifacts / "result.json").read_text())["result"] == {"password": "[redacted]"}
    assert check_invariants(tmp_path, secrets=["hunter2-hunter2"]) == []
    held = [path for path in tmp_path.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]  # noqa: ASYNC240
    assert held == [tmp_path / "secrets" / "a.json"]


async def test_the_readable_files_are_put_right_at_the_start_whether_anybody_asks_or_not(
    autojump_clock: Any, tmp_path: Path
) -> None:
    """B21: other programs read them, and cannot wait for somebody to search."""
    async with open_runtime(tmp_path, model=Scripted([])) as runtime:
        await runtime.memory.remember("user", "tea", "green")
    path = tmp_path / "memory" / "user" / "tea.json"
    path.unlink()
    async with open_runtime(tmp_path, model=Scripted([])):
        await trio.testing.wait_all_tasks_blocked()
        assert json.loads(path.read_text())["value"] == "green"


async def test_a_disk_that_cannot_follow_costs_nobody_a_memory(
    autojump_clock: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """B21: the journal is the truth; the files catch up when they can."""
    async with open_runtime(tmp_path, model=Scripted([])) as runtime:
        await runtime.memory.remember("user", "tea", "green")
        (tmp_path / "memory" / "other").write_text("in the way of a directory")
        await runtime.memory.remember("other", "city", "Oslo")
        assert "could not follow" in caplog.text
        assert [memo.key for memo in await runtime.memory.search("oslo")] == ["city"]
        (tmp_path / "memory" / "other").unlink()
        assert [memo.key for memo in await runtime.memory.search("oslo")] == ["city"]
        assert json.loads((tmp_path / "memory" / "other" / "city.json").read_text())["value"] == "Oslo"
    # After the end it can still be looked at.
    assert [memo.key for memo in await runtime.memory.search("green")] == ["tea"]


@pytest.mark.parametrize(
    "obstacle", ["a directory", "a full directory", "a file for a scope", "a directory of no entry"]
)
async def test_what_is_in_the_way_of_one_memory_keeps_no_other_from_the_disk(
    autojump_clock: Any, tmp_path: Path, obstacle: str
) -> None:
    """B21: readable by other programs. What is remembered after it is written, and what is forgotten is gone."""
    files = tmp_path / "memory"
    async with open_runtime(tmp_path, model=Scripted([])) as runtime:
        for scope, key in [("b", "tea"), ("b", "milk"), ("c", "city")]:
            await runtime.memory.remember(scope, key, "here")
    if obstacle == "a file for a scope":
        (files / "b" / "tea.json").unlink()
        (files / "b" / "milk.json").unlink()
        (files / "b").rmdir()
        (files / "b").write_text("in the way")
    else:
        place = files / "b" / ("stray.json" if obstacle == "a directory of no entry" else "tea.json")
        place.unlink(missing_ok=True)
        place.mkdir()
        if obstacle == "a full directory":
            (place / "mine").write_text("to stay")
    async with open_runtime(tmp_path, model=Scripted([])) as runtime:
        await runtime.memory.remember("d", "new", "here")
        assert json.loads((files / "d" / "new.json").read_text())["value"] == "here"
        await runtime.memory.forget("c", "city")
        assert not (files / "c" / "city.json").exists()
        assert {memo.key for memo in await runtime.memory.search("here")} == {"tea", "milk", "new"}
        await runtime.memory.forget("b", "tea")  # Now nothing of ours is where the obstacle is.
        await runtime.memory.forget("b", "milk")
        await runtime.memory.remember("e", "newer", "here")
        assert {memo.key for memo in await runtime.memory.search("here")} == {"new", "newer"}
    assert (files / "e" / "newer.json").exists()


async def test_a_search_finds_the_same_with_and_without_a_disk(autojump_clock: Any, tmp_path: Path) -> None:
    """B21: punctuation, accents, case, and scripts without spaces."""
    texts = ["crème, BRÛLÉE!", "e-mail", "(mail)", "進捗どうですか", "どうで", "🦊", "don't", "dont", "lik"]
    async with open_runtime(tmp_path, model=Scripted([])) as runtime:
        await runtime.memory.remember("user", "diet", {"likes": "Creme brulee"}, summary="Don't forget")
        await runtime.memory.remember("user", "contact", "e-mail 🦊")
        await runtime.memory.remember("user", "motto", "進捗どうですか")
        on_disk = [{memo.key for memo in await runtime.memory.search(text)} for text in texts]
    # After its end a runtime leaves the disk alone.
    assert on_disk == [{memo.key for memo in await runtime.memory.search(text)} for text in texts]
    assert on_disk == [{"diet"}, *[{"contact"}] * 2, *[{"motto"}] * 2, {"contact"}, {"diet"}, set(), {"diet"}]
    assert check_invariants(tmp_path) == []


async def test_memories_lapse(open_checked: Any, autojump_clock: Any) -> None:
    """B21: TTL."""
    async with open_checked(Scripted([])) as runtime:
        await runtime.memory.remember("user", "code", 1234, ttl_s=30.0)
        await trio.sleep(29.0)
        assert await runtime.memory.recall("user", "code") is not None
        await trio.sleep(2.0)
        assert await runtime.memory.recall("user", "code") is None
        assert await runtime.memory.search("1234") == [] and await runtime.memory.list("user") == []
        await runtime.memory.remember("user", "pin", 1, ttl_s=1.0)
        await trio.sleep(2.0)
        assert not await runtime.memory.forget("user", "pin")  # It is as if forgotten already.
        assert runtime.memory.scopes() == ()
        assert await runtime.memory.forget_expired()


async def test_what_has_lapsed_is_on_disk_no_longer_than_until_the_next_start(
    open_checked: Any, autojump_clock: Any, tmp_path: Path
) -> None:
    """B21: TTL, for the other programs that read the files too."""
    async with open_runtime(tmp_path, model=Scripted([]), environment=open_checked.environment()) as runtime:
        await runtime.memory.remember("user", "code", 1234, ttl_s=30.0)
        await runtime.memory.remember("user", "name", "Ada", ttl_s=300.0)
        assert (tmp_path / "memory" / "user" / "code.json").exists()
    await trio.sleep(31.0)
    async with open_runtime(tmp_path, model=Scripted([]), environment=open_checked.environment()) as runtime:
        await trio.testing.wait_all_tasks_blocked()
        assert [memo.key for memo in await runtime.memory.search("Ada")] == ["name"]
        assert [path.name for path in (tmp_path / "memory" / "user").iterdir()] == ["name.json"]
        await runtime.memory.remember("user", "code", 5678)
        assert json.loads((tmp_path / "memory" / "user" / "code.json").read_text())["value"] == 5678


@pytest.mark.parametrize("what", ["a change", "a search"])
async def test_what_has_lapsed_leaves_the_disk_when_the_memory_is_next_changed_or_searched(
    open_checked: Any, autojump_clock: Any, tmp_path: Path, what: str
) -> None:
    """B21: TTL, for the other programs that read the files too; a runtime may be open for months."""
    async with open_runtime(tmp_path, model=Scripted([]), environment=open_checked.environment()) as runtime:
        await runtime.memory.remember("user", "code", 1234, ttl_s=30.0)
        await runtime.memory.remember("door", "pin", 5678, ttl_s=30.0)
        await runtime.memory.remember("user", "name", "Ada", ttl_s=300.0)
        await trio.sleep(31.0)
        if what == "a change":
            await runtime.memory.remember("user", "age", 36)
        else:
            assert not await runtime.memory.search("1234")
        left = {path.name for path in (tmp_path / "memory").rglob("*")}
        assert left - {"age.json"} == {"user", "name.json"}
        await runtime.memory.remember("user", "code", 91011)
        assert json.loads((tmp_path / "memory" / "user" / "code.json").read_text())["value"] == 91011


async def test_what_has_lapsed_and_cannot_be_removed_is_told_once_and_holds_up_no_search(
    open_checked: Any,
    autojump_clock: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """B21: each search closed the index for it, read everything that is remembered, and opened the index again; so did each start."""
    unlink = Path.unlink

    def refusing(path: Path, missing_ok: bool = False) -> None:
        if path.name == "code.json":
            raise PermissionError(1, "not permitted", str(path))
        unlink(path, missing_ok)

    stuck = tmp_path / "memory" / "user" / "code.json"
    monkeypatch.setattr(Path, "unlink", refusing)
    monkeypatch.setattr(MemoryKeeper, "_walk", lambda *_: pytest.fail("the index was left"))
    environment = open_checked.environment()
    for start in ("with it", "again"):
        async with open_runtime(tmp_path, model=Scripted([]), environment=environment) as runtime:
            if start == "with it":
                await runtime.memory.remember("user", "code", 1234, ttl_s=30.0)
                await runtime.memory.remember("user", "name", "Ada")
                await trio.sleep(31.0)
            for _ in range(3):
                assert [memo.key for memo in await runtime.memory.search("Ada")] == ["name"]
                await runtime.memory.remember("user", "age", 36)
                assert not await runtime.memory.search("1234")
            assert stuck.exists() and caplog.text.count("can still be read") == len(caplog.records) == 1
            caplog.clear()
            if start == "again":
                monkeypatch.setattr(Path, "unlink", unlink)
                assert not await runtime.memory.search("1234")
    assert not stuck.exists()


@pytest.mark.parametrize("seen", ["by a search", "at a start"])
async def test_a_clock_that_ran_ahead_for_a_while_takes_nothing_out_of_the_search(
    open_checked: Any, autojump_clock: Any, tmp_path: Path, seen: str
) -> None:
    """B21: what `recall` finds, `search` finds too."""
    ahead_s = 0.0
    given = open_checked.environment()
    environment = attrs.evolve(given, now=lambda: given.now() + ahead_s)
    path = tmp_path / "memory" / "user" / "code.json"
    async with open_runtime(tmp_path, model=Scripted([]), environment=environment) as runtime:
        await runtime.memory.remember("user", "code", 1234, ttl_s=30.0)
        if seen == "by a search":
            ahead_s = 60.0
            assert not await runtime.memory.search("1234") and not path.exists()
            ahead_s = 0.0
            assert [memo.key for memo in await runtime.memory.search("1234")] == ["code"]
    ahead_s = 60.0 if seen == "at a start" else 0.0
    async with open_runtime(tmp_path, model=Scripted([]), environment=environment) as runtime:
        if seen == "at a start":
            assert not await runtime.memory.search("1234") and not path.exists()
        ahead_s = 0.0
        assert [memo.key for memo in await runtime.memory.search("1234")] == ["code"]
    async with open_runtime(tmp_path, model=Scripted([]), environment=environment):
        await trio.testing.wait_all_tasks_blocked()
        assert json.loads(path.read_text())["value"] == 1234  # The readable file is back at the next start.


async def test_a_search_goes_on_where_the_index_cannot_be_written(
    open_checked: Any, autojump_clock: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """B21: on a full disk, say, on which what has lapsed cannot be noted as gone."""
    async with open_runtime(tmp_path, model=Scripted([]), environment=open_checked.environment()) as runtime:
        await runtime.memory.remember("user", "code", 1234, ttl_s=30.0)
        await runtime.memory.remember("user", "name", "Ada")
        await trio.sleep(31.0)
        store = runtime.memory._store
        assert store is not None
        store._index.execute("PRAGMA query_only = ON")
        for _ in range(3):
            assert [memo.key for memo in await runtime.memory.search("Ada")] == ["name"]
            assert not await runtime.memory.search("1234")
        assert caplog.text.count("could not leave the disk") == len(caplog.records) == 1
        assert runtime.memory._store is store


async def test_what_is_remembered_changes_by_a_record_only(open_checked: Any, autojump_clock: Any) -> None:
    """I10, B21: not when its giver goes on changing the value, nor when a reader changes what it was given."""
    async with open_checked(Scripted([])) as runtime:
        value, metadata = {"list": [1], "pair": (1, 2)}, {"tags": ["a"]}
        given = await runtime.memory.remember("s", "k", value, metadata=metadata)
        value["list"].append(2)  # type: ignore[attr-defined]
        metadata["tags"].append("b")
        for memo in (given, await runtime.memory.recall("s", "k"), *await runtime.memory.list("s")):
            assert memo is not None
            memo.value["list"].append(3)
            memo.metadata["tags"].append("c")
        memo = await runtime.memory.recall("s", "k")
        assert memo is not None and (memo.value, memo.metadata) == ({"list": [1], "pair": [1, 2]}, {"tags": ["a"]})


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "x" * 129, "ü", "a b"])
async def test_names_are_checked_everywhere(open_checked: Any, autojump_clock: Any, name: str) -> None:
    """B22: a named error, for scopes, keys and sessions."""
    async with open_checked(Scripted([])) as runtime:
        with pytest.raises(InvalidName):
            await runtime.memory.remember(name, "key", 1)
        with pytest.raises(InvalidName):
            await runtime.memory.remember("scope", name, 1)
        with pytest.raises(InvalidName):
            await runtime.session(name)


async def test_the_model_remembers(open_checked: Any, autojump_clock: Any, tmp_path: Path) -> None:
    """B21: remember, recall, forget, list; across sessions."""
    script = [
        reply(call("remember", key="tea", value="green", summary="What the user drinks")),
        reply(call("recall", text="drinks"), call("recall", key="tea"), call("list_memories"), call("recall")),
        reply(
            call("forget", key="tea"), call("forget", key="tea"), call("recall", key="tea"), call("forget", key="../x")
        ),
        reply("ok"),
    ]
    model = Scripted(script)
    async with open_checked(model, tools=MEMORY_TOOLS, environment=placed(open_checked, tmp_path)) as runtime:
        await (await runtime.session("a")).ask("go")
    searched, recalled, listed, neither = answers(model, 2)
    assert searched["memories"][0]["value"] == "green" and recalled["value"] == "green"
    assert listed["memories"][0]["key"] == "tea" and "not both" in neither
    gone, twice, missing, bad = answers(model, 3)
    assert gone["forgotten"] is True and twice["forgotten"] is False and missing["found"] is False
    assert "is not a valid name" in bad


# --- stores ---


async def test_key_values_are_the_sessions_own(tmp_path: Path) -> None:
    """B24. In real time: the stores work in threads, and a virtual clock runs on meanwhile."""
    model = Scripted([reply(call("kv_store", action="set", key="page", value=3)), reply("ok")], exhausted="cycle")
    async with open_runtime(tmp_path, model=model, tools=[kv_store]) as runtime:
        await (await runtime.session("one")).ask("go")
        assert await runtime.services("one").kv.get("page") == 3
        await runtime.session("two")
        assert await runtime.services("two").kv.get("page") is None
    assert check_invariants(tmp_path) == []


async def test_a_secret_is_asked_for_and_shows_nowhere(tmp_path: Path) -> None:
    """B24, T16, I36: the answer goes to the secret store; the model and the journal get a reference; a tool can use it."""
    used: list[str | None] = []

    @tool(needs=("secrets",))
    async def log_in(context: ToolContext, secret: str) -> str:
        """Uses a stored secret."""
        used.append(await context.secrets.get(secret))
        return "logged in"

    def use(request: Any) -> Any:
        reference = request.messages[-1].answers[0].content["answers"][0]["answer"]["secret"]
        return reply(call("log_in", secret=reference), call("secret_store", action="list"))

    question = {"text": "Your password?", "secret": True}
    model = Scripted([reply(call("ask_user", questions=[question])), use, reply("ok")])
    tools = [ask_user, log_in, secret_store]
    async with open_runtime(tmp_path, model=model, tools=tools) as runtime:
        session = await runtime.session("a")
        async with session.turn("go") as turn:
            async for event in turn:
                if isinstance(event, QuestionAsked):
                    assert event.texts == ("Your password?",)
                    await session.answer_question(event.question, "hunter2-hunter2")
        assert turn.result is not None and turn.result.text == "ok"
    assert used == ["hunter2-hunter2"]
    path = tmp_path / "secrets" / "a.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and "hunter2-hunter2" in path.read_text()
    assert check_invariants(tmp_path, secrets=["hunter2-hunter2"]) == []
    assert "hunter2" not in repr([request.messages for request in model.requests])


async def test_a_keyring_keeps_secrets_if_there_is_one(open_checked: Any, autojump_clock: Any, tmp_path: Path) -> None:
    """B24: the system keyring instead of a file."""

    class Ring:
        def __init__(self) -> None:
            self.held: dict[tuple[str, str], str] = {}

        def get_password(self, service: str, name: str) -> str | None:
            return self.held.get((service, name))

        def set_password(self, service: str, name: str, password: str) -> None:
            self.held[service, name] = password

        def delete_password(self, service: str, name: str) -> None:
            del self.held[service, name]

    ring = Ring()
    environment = attrs.evolve(placed(open_checked, tmp_path), keyring=ring)
    async with open_checked(Scripted([]), environment=environment) as runtime:
        await runtime.session("a")
        await runtime.services("a").secrets.set("key", "s3cret-value")
        assert await runtime.services("a").secrets.get("key") == "s3cret-value"
    assert list(ring.held.values()) == ["s3cret-value"]
    assert not any("s3cret" in path.read_text() for path in tmp_path.rglob("*") if path.is_file())  # noqa: ASYNC240


async def test_an_answer_that_comes_too_late_answers_no_other_question(tmp_path: Path) -> None:
    """T16, B11: the question was settled while the secret was on its way to its store; it is kept nowhere."""

    class SlowRing:
        def __init__(self) -> None:
            self.held: dict[str, str] = {}
            self.asked, self.may_go_on = threading.Event(), threading.Event()

        def get_password(self, service: str, name: str) -> str | None:
            return self.held.get(name)

        def set_password(self, service: str, name: str, password: str) -> None:
            self.asked.set()
            self.may_go_on.wait()
            self.held[name] = password

        def delete_password(self, service: str, name: str) -> None:
            del self.held[name]

    replies: list[object] = []

    @tool(background=True)
    async def log_in(context: ToolContext) -> None:
        """Asks for two things at once."""

        async def put(question: Question) -> None:
            replies.append((await context.asker.ask([question], call=context.call_id)).values)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(put, Question("The password?", secret=True))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(put, Question("Which one?", choices=("red", "blue")))

    ring = SlowRing()
    environment = Environment(keyring=ring)
    async with open_runtime(tmp_path, model=Scripted([]), tools=[log_in], environment=environment) as runtime:
        session = await runtime.session("a")
        task = await session.spawn("log_in", signal_on_completion=False)
        events = session.events()

        async def wait_asked() -> None:
            async for told in events:
                if isinstance(told.event, TaskInputRequested):
                    return

        async def answer_late(id: str) -> None:
            with pytest.raises(CommandRejected, match="it may have lapsed"):
                await session.answer_question(id, "hunter2-hunter2")

        await wait_asked()
        (password,) = (each for each in session.questions if each.questions[0].secret)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer_late, password.id)
            await trio.to_thread.run_sync(ring.asked.wait)
            await session.decline_question(password.id)
            await wait_asked()
            ring.may_go_on.set()
        assert (replies, ring.held) == ([()], {})
        await session.answer_task(task.id, "blue")
        await session.wait_task(task.id)
    assert replies == [(), ("blue",)]


async def test_an_answer_to_a_task_that_asks_for_a_secret_goes_to_the_secret_store(tmp_path: Path) -> None:
    """B11, B24, I36: whichever way the host answers."""

    @tool(background=True)
    async def log_in(context: ToolContext) -> dict[str, Any]:
        """Asks for a password."""
        given = await context.ask_user(Question("Your password?", secret=True))
        return {"given": list(given.values)}

    model = Scripted([reply("Noted.")], exhausted="repeat")
    async with open_runtime(tmp_path, model=model, tools=[log_in]) as runtime:
        session = await runtime.session("a")
        task = await session.spawn("log_in")
        async for _ in session.events():
            if session.questions:
                break
        await session.answer_task(task.id, "hunter2-hunter2")
        ended = await session.wait_task(task.id)
        (reference,) = ended.result["given"]
        assert await runtime.services("a").secrets.get(reference["secret"]) == "hunter2-hunter2"
    assert check_invariants(tmp_path, secrets=["hunter2-hunter2"]) == []


# --- questions ---


async def test_questions_are_answered_declined_or_lapse(open_checked: Any, autojump_clock: Any) -> None:
    """T16: choices are checked; silence is no answer."""
    two = [{"text": "Colour?", "choices": ["red", "blue"]}, {"text": "Which?", "choices": ["a", "b"], "multiple": True}]
    one = [{"text": "Why?"}]
    model = Scripted(
        [
            reply(call("ask_user", questions=two)),
            reply(call("ask_user", questions=one)),
            reply(call("ask_user", questions=one, timeout_s=60)),
            reply("ok"),
        ]
    )
    async with open_checked(model, tools=[ask_user]) as runtime:
        session = await runtime.session("a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.ask, "go")
            await trio.sleep(500.0)  # T16: the user takes his time, more than a tool's time-out.
            (pending,) = session.questions
            with pytest.raises(UsageError, match="2 parts"):
                await session.answer_question(pending.id, "red")
            with pytest.raises(UsageError, match="'green' is not among the choices"):
                await session.answer_question(pending.id, "green", ["a"])
            await session.answer_question(pending.id, "red", ["a", "b"])
            assert pending not in session.questions  # Also before the tool has taken the answer.
            await trio.sleep(1.0)
            await session.decline_question(session.questions[0].id)
            with pytest.raises(CommandRejected, match="no question"):
                await session.answer_question(pending.id, "red", ["a"])
        assert not session.questions
    assert answers(model, 1)[0]["answers"][1]["answer"] == ["a", "b"]
    assert answers(model, 2)[0] == {"status": "declined"}
    assert answers(model, 3)[0] == {"status": "timed_out"}


async def test_a_secret_needs_a_place(open_checked: Any, autojump_clock: Any) -> None:
    """B24: rather no answer than a value that is kept nowhere safe."""
    model = Scripted([reply(call("ask_user", questions=[{"text": "Key?", "secret": True}])), reply("ok")])
    async with open_checked(model, tools=[ask_user]) as runtime:
        session = await runtime.session("a")
        result = await session.ask("go")
        assert result.text == "ok" and not session.questions


# --- where they are kept


class _Interrupted(str):
    """The name of a session. The first thread that looks it up for the `at`th time stops there until another one, which asks the same, has its answer or cannot get one meanwhile."""

    def stop(self, at: int, ask: Callable[[], Any]) -> None:
        self.left, self.first, self.got = at, threading.current_thread(), []
        self.other = threading.Thread(target=lambda: self.got.append(ask()))

    def __hash__(self) -> int:
        if threading.current_thread() is self.first:
            self.left -= 1
            if self.left == 0:
                self.other.start()
                self.other.join(0.05)  # It may have to wait for us: then it goes on behind us.
        return str.__hash__(self)

    __eq__ = str.__eq__


@pytest.mark.parametrize("at", range(1, 5))
@pytest.mark.parametrize("which", ["files_of", "key_values_of", "secrets_of"])
def test_whoever_asks_for_a_store_in_whatever_thread_has_the_same_one(tmp_path: Path, which: str, at: int) -> None:
    """Each store keeps its writers apart: of two for one session, one would overwrite what the other has written."""
    places = Places(tmp_path)
    name = _Interrupted("s")
    name.stop(at, lambda: getattr(places, which)(name))
    mine = getattr(places, which)(name)
    if name.other.ident is not None:
        name.other.join()
        assert name.got == [mine]
    assert getattr(places, which)("s") is mine


def test_a_place_for_a_while_is_one_whoever_asks_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I21: of two that were made at once, one stayed behind, with what was written there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    places = Places(None, temporary=True)
    make, other = tempfile.mkdtemp, threading.Thread(target=places.key_values_of, args=("s",))

    def interrupted(**how: str) -> str:
        if other.ident is None:
            other.start()
            other.join(0.05)
        return make(**how)

    monkeypatch.setattr(tempfile, "mkdtemp", interrupted)
    assert places.files_of("s") is not None
    other.join()
    assert len(list(tmp_path.iterdir())) == 1
    places.close()
    assert not list(tmp_path.iterdir())
