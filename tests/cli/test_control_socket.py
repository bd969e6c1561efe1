"""Commands change a root that another process owns through its control socket."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from terminal_driver import AtTerminal

from trouper import Limits, Runtime, Scripted, UsageError, codec, open_runtime, tool
from trouper.cli.control import CLOSING_S, IDLE_S, LINE_BYTES_MAX, OwnerForeign, _serve, ask_owner, serving
from trouper.cli.hosting import _change_here
from trouper.cli.owner import NAME
from trouper.cli.requests import answered
from trouper.core.notification import NotificationQueued
from trouper.events import StepStarted
from trouper.models import call, reply, stall
from trouper.testing import check_invariants

TOOLS = str(Path(__file__).with_name("slow_tools.py"))


@pytest.fixture
def owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[AtTerminal, Path]]:
    """A chat with a slow task running."""
    gates = tmp_path / "gates"
    gates.mkdir()
    monkeypatch.setenv("TEST_GATES", str(gates))
    # Longer than an address of a Unix socket may be.
    root = tmp_path / ("deep-" * 20) / "state"
    root.parent.mkdir(mode=0o700)
    with AtTerminal("chat", "--root", str(root), "--tools", TOOLS) as terminal:
        terminal.wait_for("/help for help")
        terminal.line("run harvest")
        terminal.wait_for("I will tell you when it is done.")
        yield terminal, root


def test_a_task_is_seen_and_cancelled_from_outside(trouper, owner: tuple[AtTerminal, Path]) -> None:
    """B5, B13: a read-only view of the task, and a cancel that reaches the tool at once."""
    terminal, root = owner
    (row,) = map(json.loads, trouper("tasks", "--state", "running", "--json", "--root", root).out.splitlines())
    assert row["session"] == "main" and row["about"]["spec"]["tool"] == "harvest"
    done = trouper("tasks", "cancel", row["id"], "--root", root)
    assert done.code == 0 and done.out == f"cancelled: {row['id']}\n"
    terminal.wait_for("■ cancelled: Background call of harvest")
    terminal.wait_for("News: Task cancelled")
    again = trouper("tasks", "cancel", row["id"], "--root", root)
    assert again.code == 2 and "has ended already" in again.err
    assert "cancelled" in trouper("tasks", "show", row["id"], "--root", root).out


def test_a_cancel_says_what_became_of_the_task(trouper, owner: tuple[AtTerminal, Path], tmp_path: Path) -> None:
    """B10, B11: left by a dead process, without its tool it ends as interrupted; it was told as cancelled."""
    _, root = owner
    (row,) = map(json.loads, trouper("tasks", "--state", "running", "--json", "--root", root).out.splitlines())
    left = [tmp_path / name for name in ("without", "in-json", "with")]
    for place in left:
        shutil.copytree(root, place, ignore=shutil.ignore_patterns(NAME))
    cancel = ("tasks", "cancel", row["id"], "--root")
    assert trouper(*cancel, left[0]).out == f"interrupted: {row['id']}\n"
    assert trouper("tasks", "--state", "interrupted", "--json", "--root", left[0]).out
    told = trouper(*cancel, left[1], "--json")
    assert told.code == 0 and json.loads(told.out) == {"ok": True, "task": row["id"], "state": "interrupted"}
    assert trouper(*cancel, left[2], "--tools", TOOLS).out == f"cancelled: {row['id']}\n"


def test_an_interrupt_says_whether_anything_ran(trouper, owner: tuple[AtTerminal, Path], tmp_path: Path) -> None:
    terminal, root = owner
    interrupt = ("sessions", "interrupt", "main", "--root")
    assert trouper(*interrupt, root).out == "nothing ran: main\n"
    terminal.line("run sell what=cow")
    terminal.wait_for('? sell {"what":"cow"}: /approve')
    shutil.copytree(root, tmp_path / "left", ignore=shutil.ignore_patterns(NAME))
    assert trouper(*interrupt, root).out == "interrupted: main\n"
    # So is a turn that a dead process left open: it ends as the root is opened, and so does the task.
    assert trouper(*interrupt, tmp_path / "left").out.startswith("interrupted: main\n  interrupted: task_")
    assert trouper(*interrupt, tmp_path / "left").out == "nothing ran: main\n"


def test_messages_schedules_and_memory_reach_the_owner(trouper, owner: tuple[AtTerminal, Path]) -> None:
    terminal, root = owner
    assert trouper("sessions", "send", "main", "hello from outside", "--root", root).code == 0
    terminal.wait_for("You said: hello from outside")
    made = trouper(
        "schedules", "create", "--session", "main", "--cron", "0 9 * * *", "--message", "hi", "--json", "--root", root
    )
    schedule = json.loads(made.out)["schedule_id"]
    assert schedule in trouper("schedules", "--root", root).out
    assert trouper("schedules", "cancel", schedule, "--root", root).code == 0
    assert schedule not in trouper("schedules", "--root", root).out
    assert trouper("memory", "set", "people", "ada", '{"likes": "tea"}', "--root", root).code == 0
    assert json.loads(trouper("memory", "show", "people", "ada", "--root", root).out) == {"likes": "tea"}
    refused = trouper("sessions", "close", "nobody", "--root", root)
    assert refused.code == 2 and "there is no session 'nobody'" in refused.err
    assert f"process {terminal.pid} has the root open and answers" in trouper("doctor", "--root", root).out


def test_a_call_is_approved_or_denied_from_outside(trouper, owner: tuple[AtTerminal, Path]) -> None:
    """T4: from another process, for the one call with its arguments, once; what was asked and who answered is journaled."""
    terminal, root = owner
    assert trouper("approvals", "--json", "--root", root).out == ""
    terminal.line("run sell what=cow")
    terminal.wait_for('? sell {"what":"cow"}: /approve')
    (row,) = map(json.loads, trouper("approvals", "--json", "--root", root).out.splitlines())
    assert (row["session"], row["tool"], row["arguments"]) == ("main", "sell", {"what": "cow"})
    cow = row["call"]
    assert cow in (shown := trouper("approvals", "ls", "--root", root).out) and '{"what":"cow"}' in shown
    done = trouper("approvals", "approve", cow, "--root", root)
    assert (done.code, done.out) == (0, f"approved: {cow} of main\n")
    terminal.wait_for("sold cow")
    again = trouper("approvals", "approve", cow, "--root", root)
    assert again.code == 2 and f"no call {cow!r} waits" in again.err
    late = ask_owner(root, {"do": "approve", "session": "main", "id": cow})
    assert late is not None and late["ok"] is False and late["exit_code"] == 2
    terminal.line("run sell what=barn")
    terminal.wait_for('? sell {"what":"barn"}: /approve')
    (row,) = map(json.loads, trouper("approvals", "--json", "--root", root).out.splitlines())
    denied = trouper("approvals", "deny", row["call"], "--reason", "We need it.", "--session", "main", "--root", root)
    assert denied.code == 0
    terminal.wait_for("We need it.")
    assert trouper("approvals", "--json", "--root", root).out == ""
    assert '"by":"command line"' in trouper("journal", "show", root, "--json").out


def test_a_run_for_scripts_waits_for_an_approval_if_told_to(
    trouper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T4: nobody to ask denies; `--ask` says that there is somebody."""
    root = tmp_path / "state"
    unasked = trouper("run", "run sell with what=a pig", "--root", root, "--tools", TOOLS, "--session", "a")
    assert unasked.code == 0 and "sold" not in unasked.out
    asked = ("run", "run sell with what=a hen", "--ask", "--root", str(root), "--tools", TOOLS, "--session", "b")
    with AtTerminal(*asked) as terminal:
        terminal.wait_for("call_1_1_0 of session b waits for an approval")
        assert trouper("approvals", "approve", "call_1_1_0", "--always", "--root", root).code == 0
        terminal.wait_for("sold")
        assert terminal.wait_end() == 0


def test_an_approval_needs_somebody_who_waits_for_it(trouper, root: Path) -> None:
    refused = trouper("approvals", "approve", "call_1_1_0", "--root", root)
    assert refused.code == 2 and "no call 'call_1_1_0' waits for an approval" in refused.err


def test_an_approval_that_nobody_could_act_on_is_refused_without_denying_that_a_call_waits(
    trouper, tmp_path: Path
) -> None:
    """T4, J12: what a dead process left waiting is no more for anybody to answer, and is told as that; unless the next one goes on with it."""
    root, left = tmp_path / "state", tmp_path / "left"
    asked = ("run", "run sell with what=a hen", "--ask", "--root", str(root), "--tools", TOOLS, "--session", "b")
    with AtTerminal(*asked) as terminal:
        terminal.wait_for("call_1_1_0 of session b waits for an approval")
        shutil.copytree(root, left, ignore=shutil.ignore_patterns(NAME))
    table, told = trouper("approvals", "--root", left).out.splitlines()
    assert "call_1_1_0" not in table
    assert told.startswith("call_1_1_0 of b waits no more: its process is gone") and told.endswith(
        'ask again: sell {"what":"a"}'
    )
    assert json.loads(trouper("approvals", "--json", "--root", left).out)["state"] == "lost"
    for answer in ("approve", "deny"):
        refused = trouper("approvals", answer, "call_1_1_0", "--root", left)
        assert refused.code == 2 and "call_1_1_0 of b waits no more" in refused.err and "start" not in refused.err[-20:]
    (left / "trouper.toml").write_text('[limits]\non_restart = "resume"\n')
    shown = trouper("approvals", "--root", left).out.splitlines()
    assert "call_1_1_0" in shown[1] and shown[2:] == [
        f"no process has the root open; start `trouper chat --root {left}`, and answer then"
    ]
    refused = trouper("approvals", "approve", "call_1_1_0", "--root", left)
    assert refused.code == 2 and f"start `trouper chat --root {left}`" in refused.err
    with AtTerminal("chat", "--root", str(left), "--tools", TOOLS, "--session", "b") as terminal:
        terminal.wait_for('? sell {"what":"a"}: /approve')
        assert json.loads(trouper("approvals", "--json", "--root", left).out)["state"] == "waiting"
        assert trouper("approvals", "approve", "call_1_1_0", "--root", left).code == 0
        terminal.wait_for("sold a")


def test_whoever_looks_at_a_root_that_others_may_write_sees_its_calls(trouper, tmp_path: Path) -> None:
    """T4: its configuration is not read, which is for whoever opens it to be told."""
    root, left = tmp_path / "state", tmp_path / "left"
    asked = ("run", "run sell with what=a hen", "--ask", "--root", str(root), "--tools", TOOLS)
    with AtTerminal(*asked) as terminal:
        terminal.wait_for("waits for an approval")
        shutil.copytree(root, left, ignore=shutil.ignore_patterns(NAME))
    (left / "trouper.toml").write_text('[limits]\non_restart = "resume"\n')
    (left / "trouper.toml").chmod(0o666)
    left.chmod(0o755)
    listed = trouper("approvals", "--json", "--root", left)
    assert listed.code == 0 and json.loads(listed.out)["state"] == "lost"


def test_the_socket_is_the_owners_alone(owner: tuple[AtTerminal, Path]) -> None:
    """Security, sockets: 0600 in a directory of 0700; garbage and endless lines only cost the one who sends them."""
    terminal, root = owner
    assert stat.S_IMODE(os.stat(root / NAME).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(root).st_mode) == 0o700
    for sent in (b"garbage\n", b"[1, 2]\n", b"[" * 200_000 + b"\n", b"x" * 2_000_000):
        with socket.socket(socket.AF_UNIX) as plain:
            descriptor = os.open(root, os.O_RDONLY)
            plain.connect(f"/proc/self/fd/{descriptor}/{NAME}")
            os.close(descriptor)
            plain.settimeout(30)
            try:
                plain.sendall(sent)
                answer = plain.recv(65_536)
            except (BrokenPipeError, ConnectionResetError):
                answer = b""
            assert answer == b"" or json.loads(answer)["ok"] is False
    answer = ask_owner(root, {"do": "ping"})
    assert answer is not None and answer["pid"] == terminal.pid
    unknown = ask_owner(root, {"do": "explode"})
    assert unknown is not None and unknown["ok"] is False


def test_a_socket_that_a_killed_owner_left_is_no_hindrance(trouper, owner: tuple[AtTerminal, Path]) -> None:
    terminal, root = owner
    terminal.kill()
    terminal.wait_end()
    assert (root / NAME).exists()
    done = trouper("sessions", "close", "main", "--tools", TOOLS, "--root", root)
    assert done.code == 0, done
    assert "closed" in trouper("sessions", "--root", root).out


async def test_a_client_that_does_not_read_its_answer_is_let_go(autojump_clock: Any) -> None:
    """Security, sockets: a slow reader does not keep its place for ever; the others want to be heard, too."""
    ours, theirs = trio.testing.lockstep_stream_pair()
    slots = trio.CapacityLimiter(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_serve, ours, _pong, slots, set())
        await theirs.send_all(b'{"do": "ping"}\n')
        with trio.fail_after(IDLE_S + 1):
            async with slots:
                pass


async def test_requests_that_come_together_are_answered_one_by_one() -> None:
    """Also those that are no JSON: a mistake is an answer."""
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_serve, ours, _pong, trio.CapacityLimiter(1), set())
        await theirs.send_all(b'{"do": "ping"}\nnonsense\n{"do": "pi')
        await theirs.send_all(b'ng"}\n')
        await theirs.send_eof()
        answers = b"".join([bytes(part) async for part in theirs]).splitlines()
    assert [json.loads(each)["ok"] for each in answers] == [True, False, True]
    assert json.loads(answers[1])["error"] == "the line is no JSON; send one object a line"


async def test_a_process_without_descriptors_left_answers_when_it_has_some_again(tmp_path: Path) -> None:
    """J11, security, sockets: that somebody cannot be let in for now does not end the one who listens."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as plain:
        async with serving(tmp_path, _pong):
            taken: list[int] = []
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
            try:
                with contextlib.suppress(OSError):
                    for _ in range(256):
                        taken.append(os.dup(descriptor))
                plain.connect(f"/proc/self/fd/{descriptor}/{NAME}")
                await trio.testing.wait_all_tasks_blocked()
            finally:
                for each in (*taken, descriptor):
                    os.close(each)
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            plain.sendall(b'{"do": "ping"}\n')
            plain.settimeout(30)
            assert json.loads(await trio.to_thread.run_sync(plain.recv, 65_536)) == {"ok": True}


SCHEDULE = ("schedules", "create", "--session", "main", "--at", "2099-01-01T00:00:00Z", "--message", "hi")
MEMORY = ("memory", "set", "people", "bob", "1")


@contextlib.contextmanager
def ending(root: Path, *, reads: bool, says: bytes = b"") -> Iterator[None]:
    """An owner that ends when one client has come; it may hear what that one wants, and say something."""
    with socket.socket(socket.AF_UNIX) as listener:
        with contextlib.chdir(root):
            listener.bind(NAME)
        listener.listen()

        def hang_up() -> None:
            with listener.accept()[0] as client:
                if reads:
                    client.recv(65_536)
                    client.sendall(says)
                listener.close()
                (root / NAME).unlink()

        serving_one = threading.Thread(target=hang_up)
        serving_one.start()
        yield
        serving_one.join()


@pytest.mark.parametrize(
    ("command", "reads", "says"),
    [
        (SCHEDULE, False, b""),
        (SCHEDULE, True, b'{"ok": false, "begun": false}\n'),
        (MEMORY, False, b""),
        (MEMORY, True, b""),
    ],
)
def test_what_an_owner_that_is_ending_has_not_done_is_done_all_the_same(
    trouper, root: Path, command: tuple[str, ...], reads: bool, says: bytes
) -> None:
    """J9: once; a memory may be written twice, for that makes no difference."""
    with ending(root, reads=reads, says=says):
        done = trouper(*command, "--root", root)
    assert (done.code, done.err) == (0, "")
    assert len(trouper("schedules", "--json", "--root", root).out.splitlines()) == (command is SCHEDULE)
    assert not check_invariants(root)


@pytest.mark.parametrize("says", [b"", b'{"ok": fal', b'{"ok": false, "begun": true}\n'])
def test_what_an_owner_may_have_done_before_it_ended_is_for_the_user_to_look_at(
    trouper, root: Path, says: bytes
) -> None:
    """J9: exit code 75, and nothing is done twice."""
    with ending(root, reads=True, says=says):
        done = trouper(*SCHEDULE, "--root", root)
    assert done.code == 75 and f"may be done or not: look with `trouper schedules --root {root}`" in done.err, done
    assert trouper("schedules", "--json", "--root", root).out == ""


@pytest.mark.parametrize(
    "says",
    [
        "[]",
        "1",
        "null",
        "{}",
        "nonsense",
        '{"ok": 1}',
        '{"ok": false}',
        '{"ok": false, "error": "no", "exit_code": "x"}',
        '{"ok": false, "error": "no", "exit_code": -5}',
        '{"ok": false, "error": "no", "exit_code": 0}',
        '{"ok": false, "error": "no", "exit_code": true}',
        '{"ok": false, "error": "no", "exit_code": 256}',
        '{"ok": false, "begun": 3}',
    ],
)
def test_an_answer_that_makes_no_sense_is_no_answer(trouper, root: Path, says: str) -> None:
    """Security, socket: 75, and where to look; it ended the command as a bug of Trouper's, or with a code that means nothing."""
    with ending(root, reads=True, says=says.encode() + b"\n"):
        done = trouper(*SCHEDULE, "--root", root)
    assert done.code == 75 and "makes no sense, so this may be done or not: look with" in done.err, done


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the system does not say who listens")
def test_whoever_listens_for_another_user_is_told_nothing_and_not_believed(
    trouper, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Security, socket: the listener is known by its user, as a client is."""
    heard: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listener:
        with contextlib.chdir(root):
            listener.bind(NAME)
        listener.listen()
        me = os.geteuid()
        with monkeypatch.context() as other, pytest.raises(OwnerForeign, match="another user listens") as caught:
            other.setattr(os, "geteuid", lambda: me + 1)
            ask_owner(root, {"do": "ping"})
        with listener.accept()[0] as client:
            heard.append(client.recv(65_536))
    assert heard == [b""] and caught.value.exit_code == 77


async def test_a_request_that_is_longer_than_an_owner_takes_is_told_so(tmp_path: Path) -> None:
    """Security, caps on frames: 2, and not that the owner has hung up."""
    long = {"do": "remember", "value": "x" * LINE_BYTES_MAX}
    assert ask_owner(tmp_path, long) is None  # Nobody's limit but that of the memory itself.
    async with serving(tmp_path, _pong):
        with pytest.raises(UsageError, match=rf"takes {LINE_BYTES_MAX}; make it shorter") as caught:
            await trio.to_thread.run_sync(ask_owner, tmp_path, long)
        room = LINE_BYTES_MAX - len(codec.dumps({"do": "ping", "x": ""})) - 1
        assert await trio.to_thread.run_sync(ask_owner, tmp_path, {"do": "ping", "x": "x" * room}) == {"ok": True}
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_what_the_user_has_where_the_socket_belongs_is_named_and_stays(trouper, tmp_path: Path, kind: str) -> None:
    """Nothing of the user's is replaced, and no journal begun beside it."""
    root = tmp_path / "root"
    root.mkdir(mode=0o700)
    match kind:
        case "file":
            (root / NAME).write_text("mine")
        case "directory":
            (root / NAME).mkdir()
        case _:
            (root / NAME).symlink_to("elsewhere")
    before = os.lstat(root / NAME)
    for command in (("run", "hi"), ("chat",)):
        done = trouper(*command, "--root", root)
        assert done.code == 74 and f"{str(root / NAME)!r} is no socket" in done.err and "move it away" in done.err
    assert os.listdir(root) == [NAME] and os.path.samestat(os.lstat(root / NAME), before)


async def test_a_socket_that_is_no_more_ours_is_left_where_it_is(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        async with serving(tmp_path, _pong):
            (tmp_path / NAME).unlink()
            with contextlib.chdir(tmp_path):
                listener.bind(NAME)
        assert (tmp_path / NAME).is_socket()


async def test_what_an_owner_has_begun_with_when_it_ends_is_answered(tmp_path: Path) -> None:
    """J9: whoever asked need not guess."""
    begun, done, told = trio.Event(), trio.Event(), []

    async def answer(request: Any) -> dict[str, Any]:
        begun.set()
        await done.wait()
        return {"ok": True}

    async def ask() -> None:
        told.append(await trio.to_thread.run_sync(ask_owner, tmp_path, {"do": "cancel"}))

    async def end_it() -> None:
        await trio.testing.wait_all_tasks_blocked()
        done.set()

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with serving(tmp_path, answer):
                nursery.start_soon(ask)
                await begun.wait()
                nursery.start_soon(end_it)
                scope.cancel()
    assert told == [{"ok": True}]


async def test_an_owner_that_ends_waits_only_so_long_for_what_it_has_begun_with(
    tmp_path: Path, autojump_clock: Any
) -> None:
    begun = trio.Event()

    async def answer(request: Any) -> dict[str, Any]:
        begun.set()
        await trio.sleep_forever()
        return {}

    descriptor = os.open(tmp_path, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as plain:
        with trio.fail_after(CLOSING_S + 1):
            async with serving(tmp_path, answer):
                plain.connect(f"/proc/self/fd/{descriptor}/{NAME}")
                plain.sendall(b'{"do": "ping"}\n')
                await begun.wait()
        assert plain.recv(1) == b""
    os.close(descriptor)


@pytest.mark.parametrize("do", ["close", "interrupt", "cancel"])
async def test_a_runtime_that_is_ending_says_that_nothing_was_begun(tmp_path: Path, do: str) -> None:
    """J9, L21."""
    request = {"do": do, "session": "main", "id": "call_1_1_0"}
    with trio.CancelScope() as scope:
        async with open_runtime(tmp_path / "state", model=Scripted([])) as runtime:
            await runtime.session("main")
            scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
                cancelled = await answered(runtime, request)
    closed = await answered(runtime, request)
    for told in (cancelled, closed):
        assert (told["ok"], told["exit_code"], told["begun"]) == (False, 75, False), told


async def test_whoever_opens_a_root_for_a_change_does_not_answer_in_the_models_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B15: the notification is told to the model that is meant, by who runs the root next."""

    async def is_asked(runtime: Runtime, request: Any) -> dict[str, Any]:
        session = await runtime.session("main")
        with session.watch() as events, trio.fail_after(30):
            while session.state.turns < 2:
                await anext(events)
        await trio.testing.wait_all_tasks_blocked()
        return {"ok": True}

    @tool(background=True, budget_s=0.0)
    async def dig() -> None:
        """Dig a hole."""
        await trio.sleep(0.05)  # Longer than the turn waits for it, which is not at all.

    script = Scripted([reply(call("dig")), reply("It digs.")])
    async with open_runtime(tmp_path / "state", model=script, tools=[dig]) as runtime:
        session = await runtime.session("main")
        with session.hold_notifications(), session.watch() as events, trio.fail_after(30):
            await session.ask("dig")
            while not isinstance(await anext(events), NotificationQueued):
                pass
    monkeypatch.setattr("trouper.cli.hosting.answered", is_asked)
    assert await _change_here(tmp_path / "state", {}, ()) == {"ok": True}
    script = Scripted([reply("It has dug.")])
    async with open_runtime(tmp_path / "state", model=script, tools=[dig]) as runtime:
        session = await runtime.session("main")
        with session.watch() as events, trio.fail_after(30):
            while session.state.notifications.pending:
                await anext(events)
    told = [message.text for message in session.history if message.role == "assistant" and message.text]
    assert told == ["It digs.", "It has dug."]


async def test_a_change_leaves_to_the_next_process_what_a_dead_one_left_open(tmp_path: Path) -> None:
    """J12, B10: the turn goes on with the model that is meant, and the run with the tool that only its own program has."""
    alive, left = tmp_path / "alive", tmp_path / "left"
    dug = trio.Event()

    @tool(background=True, idempotent=True, budget_s=0.0)
    async def dig() -> None:
        """Dig a hole."""
        await dug.wait()

    script = Scripted([reply(call("dig")), reply(stall(1_000.0), "Never said.")])
    async with open_runtime(alive, model=script, tools=[dig]) as runtime:
        session = await runtime.session("main")
        async with session.turn("dig") as turn:
            async for event in turn:
                if isinstance(event, StepStarted) and event.step == 2:
                    break
            shutil.copytree(alive, left)  # What a process leaves behind that is killed now.
    request = {"do": "remember", "scope": "people", "key": "bob", "value": 1}
    assert (await _change_here(left, request, ()))["ok"]
    script, limits = Scripted([reply("It digs on."), reply("It has dug.")]), Limits(on_restart="resume")
    async with open_runtime(left, model=script, tools=[dig], limits=limits) as runtime:
        session = await runtime.session("main")
        with session.watch() as events, trio.fail_after(30):
            while session.state.turn is not None:
                await anext(events)
            [task] = session.tasks()
            assert (session.last.text, task.state.value, task.attempt) == ("It digs on.", "running", 2)
            dug.set()
            assert (await session.wait_task(task.id)).state.value == "succeeded"
        assert (await runtime.memory.recall("people", "bob")).value == 1


async def _pong(request: Any) -> dict[str, Any]:
    return {"ok": True}
