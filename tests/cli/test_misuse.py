"""Every command with wrong arguments, a missing root, a locked root, a damaged journal, no terminal: one line, the right code, no traceback."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio
from terminal_driver import COMMAND, PATIENCE_S, run

from trouper.cli import COMMANDS, hosting
from trouper.cli.doctor import KEYS
from trouper.cli.owner import NAME
from trouper.journal import open_log
from trouper.testing import check_invariants

LOOKING = (("sessions",), ("sessions", "show", "main"), ("tasks",), ("notifications",), ("schedules",), ("memory",))
CHANGING = (
    ("sessions", "close", "main"),
    ("sessions", "send", "main", "hello"),
    ("memory", "set", "people", "bob", "1"),
    ("memory", "forget", "people", "ada"),
    ("schedules", "create", "--session", "main", "--at", "2099-01-01T00:00:00Z", "--message", "hi"),
)
#: Nested deeper than anybody can follow.
DEEP = "[" * 50_000


def one_line(said: str) -> None:
    assert said.startswith("trouper: ") and said.count("\n") == 1 and "Traceback" not in said, said


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_there(trouper, command: str) -> None:
    done = trouper(command, "--help")
    assert done.code == 0 and done.out.startswith(f"usage: trouper {command}") and not done.err


def test_the_overview_lists_every_command(trouper) -> None:
    for arguments in ((), ("--help",), ("help",)):
        done = trouper(*arguments)
        assert done.code == 0 and all(f"  {name} " in done.out for name in COMMANDS)
    assert trouper("--version").out.startswith("trouper ")
    named = COMMANDS["journal"][1].split(", ")
    assert all(trouper("journal", name, "--help").code == 0 for name in named)
    assert sorted(named) == sorted(re.findall("^    ([a-z]+)  ", trouper("journal", "--help").out, re.MULTILINE))


@pytest.mark.parametrize(
    "wrong",
    [
        ("frob",),
        ("--frob",),
        ("demo", "--frob"),
        ("chat", "--session"),
        ("run",),
        ("run", ""),
        ("run", "hello", "--model", "llama"),
        ("run", "hello", "--tools", "nonsense"),
        ("run", "hello", "--session", "../x"),
        ("run", "hello", "--attach", "/no/such/file"),
        ("sessions", "frob"),
        ("sessions", "show"),
        ("sessions", "show", "nobody"),
        ("sessions", "close", "nobody"),
        ("sessions", "send", "main", "hello"),  # Nobody has it open who would answer.
        ("sessions", "show", "main", "--messages", "-1"),
        ("tasks", "--state", "frob"),
        ("tasks", "--limit", "-1"),
        ("tasks", "ls", "--limit", "many"),
        ("tasks", "show", "task_none"),
        ("tasks", "cancel", "task_none"),
        ("notifications", "ack", "note_none"),
        ("schedules", "create", "--session", "main"),
        ("schedules", "create", "--session", "main", "--cron", "x", "--message", "hi"),
        ("schedules", "create", "--session", "main", "--at", "1999-01-01T00:00:00Z", "--message", "hi"),
        ("schedules", "create", "--session", "main", "--cron", "0 9 * * *", "--tool", "add", "--arguments", "{"),
        ("schedules", "create", "--session", "main", "--cron", "0 9 * * *", "--tool", "nonsense"),
        (
            "schedules",
            "create",
            "--session",
            "main",
            "--at",
            "2099-01-01T00:00:00Z",
            "--tool",
            "x",
            "--arguments",
            DEEP,
        ),
        ("schedules", "create", "--session", "main", "--cron", "0 9 * * *", "--message", "hi", "--arguments", "{}"),
        (
            "schedules",
            "create",
            "--session",
            "main",
            "--at",
            "2099-01-01T00:00:00Z",
            "--message",
            "hi",
            "--zone",
            "UTC",
        ),
        ("schedules", "cancel", "schedule_none"),
        ("memory", "set", "people", "bob", DEEP),
        ("memory", "set", "people", "bob", "1", "--ttl", "nan"),
        ("memory", "set", "people", "bob", "1", "--ttl", "inf"),
        ("memory", "show", "people", "nobody"),
        ("memory", "set", "..", "x", "1"),
    ],
    ids=lambda wrong: " ".join(wrong)[:80],
)
def test_wrong_arguments_are_one_line_and_2(trouper, root: Path, wrong: tuple[str, ...]) -> None:
    where = () if wrong[0].startswith(("frob", "-")) or wrong[0] == "demo" else ("--root", root)
    done = trouper(*wrong, *where)
    assert done.code == 2, done
    one_line(done.err)


@pytest.mark.parametrize(
    "wrong",
    [
        ("schedules", "create", "--session", "main", "--every", "5"),
        ("journal", "verify", "state", "--frob"),
        ("sessions", "show", "main", "behind", "--", "--"),
        ("doctor", "--frob"),
    ],
    ids=" ".join,
)
def test_an_unknown_argument_is_answered_with_the_help_that_lists_those_there_are(
    trouper, wrong: tuple[str, ...]
) -> None:
    """Command line: that of the command above it lists sub-commands only."""
    done = trouper(*wrong)
    words = [word for word in wrong[:2] if not word.startswith("-")]
    assert done.code == 2 and done.err.endswith(f"; see trouper {' '.join(words)} --help\n"), done
    one_line(done.err)
    assert "\0" not in done.err


@pytest.mark.parametrize(
    "wrong", [("sessions", "show", "{}"), ("tasks", "--limit", "{}"), ("run", "x", "--model", "{}"), ("{}",)], ids=str
)
def test_what_to_do_is_in_sight_however_long_an_argument_is(trouper, root: Path, wrong: tuple[str, ...]) -> None:
    """The beginning of the line says what is wrong, its end what to do; in between, what was given is cut."""
    given = [argument.format("x" * 100_000) for argument in wrong]
    done = trouper(*given, *(("--root", root) if len(given) > 1 else ()))
    assert done.code == 2 and len(done.err) < 2_100 and "xxx … xxx" in done.err
    remedy = {"sessions": "lists them", "tasks": "tasks --help", "run": "or simulated"}.get(wrong[0], "trouper --help")
    assert done.err.endswith(remedy + "\n")
    one_line(done.err)


@pytest.mark.parametrize("command", [*LOOKING, *CHANGING], ids=" ".join)
def test_a_missing_root_is_one_line_and_66_and_nothing_is_made(
    trouper, tmp_path: Path, command: tuple[str, ...]
) -> None:
    done = trouper(*command, "--root", tmp_path / "nowhere")
    assert done.code == 66, done
    one_line(done.err)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("command", LOOKING, ids=" ".join)
def test_looking_works_while_somebody_owns_the_root(trouper, root: Path, command: tuple[str, ...]) -> None:
    """J9."""
    log = open_log(root)
    try:
        assert trouper(*command, "--root", root).code == 0
    finally:
        log.close()


@pytest.mark.parametrize("command", [*CHANGING, ("run", "hello"), ("chat",)], ids=" ".join)
def test_changing_a_root_whose_owner_takes_no_commands_is_one_line_and_75(
    trouper, root: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """J9: refused before anything happens, with the owner's process id."""
    monkeypatch.setattr(hosting, "BRIEF_S", 0.0)
    log = open_log(root)
    try:
        before = (root / "segment-00000001.log").read_bytes()
        done = trouper(*command, "--root", root)
        assert done.code == 75 and "process" in done.err, done
        one_line(done.err)
        assert (root / "segment-00000001.log").read_bytes() == before
    finally:
        log.close()


@pytest.mark.parametrize("command", [CHANGING[0], *CHANGING[2:], ("journal", "archive")], ids=" ".join)
def test_a_change_waits_for_somebody_who_has_the_root_open_for_a_moment(
    trouper, root: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """J9: as another change has, of several that are made at once."""
    log = open_log(root)
    monkeypatch.setattr(time, "sleep", lambda _: log.close())  # While it waits.
    try:
        assert trouper(*command, "--root", root).code == 0
    finally:
        log.close()


@pytest.mark.parametrize("command", [("run", "hello"), ("chat",)], ids=" ".join)
def test_whoever_runs_a_root_waits_for_somebody_who_has_it_open_for_a_moment(
    trouper, root: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """J9: as a change has."""
    log, sleep = open_log(root), trio.sleep

    async def while_it_waits(seconds: float) -> None:
        if seconds == hosting.LOOK_S:
            log.close()
        await sleep(seconds)

    monkeypatch.setattr(trio, "sleep", while_it_waits)
    try:
        with open(os.devnull) as nothing:
            monkeypatch.setattr(sys, "stdin", nothing)
            done = trouper(*command, "--root", root)
        assert (done.code, done.err) == (0, "")
    finally:
        log.close()
    assert not check_invariants(root)


@pytest.mark.parametrize("command", [("run", "hello"), ("chat",)], ids=" ".join)
def test_nobody_waits_for_an_owner_that_takes_commands(
    trouper, root: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """J9: it is there to stay, so the answer comes at once."""
    monkeypatch.setattr(hosting, "BRIEF_S", math.inf)
    log = open_log(root)
    try:
        with socket.socket(socket.AF_UNIX) as listener, contextlib.chdir(root):
            listener.bind(NAME)
            listener.listen()
            done = trouper(*command, "--root", root)
    finally:
        log.close()
    assert done.code == 75, done
    one_line(done.err)


@pytest.mark.parametrize("command", [("run", "hello"), ("chat",), ("memory", "set", "a", "b", "1")], ids=" ".join)
def test_a_damaged_journal_is_not_written_to(trouper, damaged: Path, command: tuple[str, ...]) -> None:
    """J10."""
    (damaged / "segment-00000001.log").write_bytes((damaged / "segment-00000001.log").read_bytes()[:-200])
    before = (damaged / "segment-00000001.log").read_bytes()
    done = trouper(*command, "--root", damaged)
    assert done.code == 65, done
    one_line(done.err)
    assert (damaged / "segment-00000001.log").read_bytes() == before


def test_a_wrong_configuration_is_one_line_and_78(trouper, root: Path) -> None:
    (root / "trouper.toml").write_text("modle = 'x'")
    done = trouper("run", "hello", "--root", root)
    assert done.code == 78 and "modle" in done.err
    one_line(done.err)


def test_a_missing_key_is_one_line_and_78(trouper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    done = trouper("run", "hello", "--model", "gemini:gemini-3-flash", "--root", tmp_path / "new")
    assert done.code == 78 and "GEMINI_API_KEY" in done.err
    one_line(done.err)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["bad/name", "", ".."])
@pytest.mark.parametrize("command", [("run", "hello"), ("chat",)], ids=" ".join)
def test_a_session_that_cannot_be_named_so_is_one_line_and_2_and_nothing_is_made(
    trouper, tmp_path: Path, command: tuple[str, ...], name: str
) -> None:
    """Command line: it left a root behind without a session, also in the place of the default profile."""
    done = trouper(*command, "--session", name, "--root", tmp_path / "new")
    assert done.code == 2 and f"session {name!r} is not a valid name" in done.err
    one_line(done.err)
    assert not (tmp_path / "new").exists()


def test_a_bug_is_one_line_that_says_so(trouper, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trouper.cli import sessions

    def broken(arguments: object) -> int:
        raise RuntimeError("oh\nno \x1b[31m")

    monkeypatch.setattr(sessions, "main", broken)
    done = trouper("sessions")
    assert done.code == 70 and "bug of Trouper" in done.err and "\x1b" not in done.err
    one_line(done.err)


def test_doctor_says_what_is_wrong_and_what_to_do(
    trouper, root: Path, damaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("GEMINI_API_KEY", "GOOGLE_API_KEY", "TROUPER_MODEL"):
        monkeypatch.delenv(variable, raising=False)
    root.chmod(0o755)
    (root / "trouper.toml").write_text("model = 'gemini:gemini-3-flash'")
    done = trouper("doctor", "--root", root, "--json")
    found = {row["check"]: row for row in map(json.loads, done.out.splitlines())}
    assert done.code == 1
    assert found["root"]["status"] == "problem" and "chmod 700" in found["root"]["message"]
    assert found["model"]["status"] == "problem" and "GEMINI_API_KEY" in found["model"]["message"]
    assert found["journal"]["status"] == "problem" and "repair" in found["journal"]["message"]
    fresh = trouper("doctor", "--root", tmp_path / "nowhere")
    assert fresh.code == 0 and "is not there yet" in fresh.out


def test_doctor_says_where_a_root_that_is_not_there_yet_cannot_be_made(
    trouper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said that the first `trouper run` makes it, and that ended with "no permission"."""
    really = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path and really(path, mode))
    done = trouper("doctor", "--root", tmp_path / "share" / "root")
    assert done.code == 1 and f"root: {str(tmp_path / 'share' / 'root')!r} cannot be made" in done.out
    assert f"{str(tmp_path)!r} cannot be written; give another --root, or set TROUPER_ROOT" in done.out


def test_doctor_does_not_say_that_a_root_behind_a_file_will_be_made(trouper, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = trouper("doctor", "--root", tmp_path / "file" / "root")
    assert done.code == 1 and f"root: {str(tmp_path / 'file')!r} is not a directory; give another --root" in done.out
    assert "makes it" not in done.out


@pytest.mark.parametrize("name", ["lock", "reserve", "control.sock"])
def test_doctor_names_what_is_in_the_way_of_the_runtimes_own_files(trouper, root: Path, name: str) -> None:
    (root / name).unlink(missing_ok=True)
    (root / name).mkdir()
    done = trouper("doctor", "--root", root)
    assert done.code == 1 and f"{str(root / name)!r} is none of Trouper's; move it away" in done.out
    refused = trouper("run", "hello", "--root", root)
    assert refused.code == 74
    one_line(refused.err)
    assert not list(root.glob("control.sock.*"))


def test_doctor_names_a_link_in_the_place_of_the_memorys_readable_copy(trouper, root: Path, tmp_path: Path) -> None:
    """B21, security, paths: nothing is written where it leads."""
    (root / "memory").rename(tmp_path / "elsewhere")
    (root / "memory").symlink_to(tmp_path / "elsewhere")
    done = trouper("doctor", "--root", root)
    assert done.code == 1 and f"{str(root / 'memory')!r} is none of Trouper's; move it away" in done.out
    before = sorted(path.read_bytes() for path in (tmp_path / "elsewhere").rglob("*.json"))
    assert trouper("memory", "set", "people", "bob", "1", "--root", root).code == 0
    assert before and sorted(path.read_bytes() for path in (tmp_path / "elsewhere").rglob("*.json")) == before


@pytest.mark.parametrize("name", ["segment-00000001.log", "lock", "reserve"])
def test_nobody_waits_for_a_pipe_that_stands_where_the_journal_has_a_file(root: Path, name: str) -> None:
    """J10. In processes of their own: whoever waits for a pipe waits for ever."""
    (root / name).unlink()
    os.mkfifo(root / name, 0o600)
    refused = run("run", "hello", "--root", str(root))
    assert refused.returncode == 74
    one_line(refused.stderr)
    done = run("doctor", "--root", str(root))
    assert done.returncode == 1 and f"{str(root / name)!r}" in done.stdout and not done.stderr


@pytest.mark.parametrize("name", ["lock", "reserve"])
def test_doctor_names_a_file_of_the_runtimes_that_may_not_be_written(
    trouper, root: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    really = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != name and really(path, mode))
    done = trouper("doctor", "--root", root)
    assert done.code == 1 and f"{str(root / name)!r} cannot be written; chmod 600 it" in done.out


def test_doctor_does_not_send_anybody_to_chmod_on_a_read_only_file_system(
    trouper, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.statvfs(root)
    fields = [*really]
    fields[8] |= os.ST_RDONLY  # f_flag
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(fields))
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    done = trouper("doctor", "--root", root)
    assert done.code == 1 and f"{str(root)!r} lies on a read-only file system" in done.out
    assert "mount it writable, or give another --root" in done.out and "chmod" not in done.out


def test_doctor_is_content_with_a_healthy_root(trouper, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TROUPER_MODEL", raising=False)
    done = trouper("doctor", "--root", root)
    assert done.code == 0 and "problem" not in done.out and "every byte as it was written" in done.out


def test_doctor_does_not_take_a_schedule_that_waits_for_its_time_for_open_work(
    trouper, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the guide's own order of commands it came out as something to look after."""
    monkeypatch.delenv("TROUPER_MODEL", raising=False)
    schedule = ("--session", "main", "--cron", "0 9 * * 1-5", "--message", "What is new?")
    assert trouper("schedules", "create", *schedule, "--root", root).code == 0
    done = trouper("doctor", "--root", root)
    assert done.code == 0 and "note" not in done.out


def test_doctor_asks_for_no_key_where_none_is_needed(trouper, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("TROUPER_MODEL", "openai:llama")
    assert "problem  model: openai:llama: no key; set OPENAI_API_KEY" in trouper("doctor", "--root", root).out
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:11434/v1")
    assert "ok       model: openai:llama: it needs no key" in trouper("doctor", "--root", root).out


@pytest.mark.parametrize("provider", ["gemini", "openai", "anthropic"])
def test_doctor_takes_no_other_mistake_for_a_missing_key(
    trouper, root: Path, monkeypatch: pytest.MonkeyPatch, provider: str
) -> None:
    """By what the error is, not by a word in it: the address that makes no sense has one."""
    for variables in KEYS.values():
        for variable in variables:
            monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TROUPER_MODEL", f"{provider}:some-model")
    done = trouper("doctor", "--root", root)
    assert done.code == 1 and f"{provider}:some-model: no key; set {' or '.join(KEYS[provider])}" in done.out
    for variable in ("GOOGLE_GEMINI_BASE_URL", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"):
        monkeypatch.setenv(variable, "ftp://key.example")
    done = trouper("doctor", "--root", root)
    assert done.code == 1 and "no key" not in done.out and "'ftp://key.example' is not an http(s) address" in done.out


@pytest.mark.parametrize("address", ["http://[::1", "http://host:99999", "http://host:x", "http://:1", "host"])
@pytest.mark.parametrize("provider", ["gemini", "openai", "anthropic"])
def test_an_address_that_makes_no_sense_is_one_line_and_78(
    trouper, root: Path, monkeypatch: pytest.MonkeyPatch, provider: str, address: str
) -> None:
    for variable in ("GOOGLE_GEMINI_BASE_URL", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"):
        monkeypatch.setenv(variable, address)
    for variable, *_ in KEYS.values():
        monkeypatch.setenv(variable, "some-key")
    done = trouper("run", "hello", "--model", f"{provider}:some-model", "--root", root)
    assert done.code == 78 and f"base_url {address!r} is not an http(s) address" in done.err
    one_line(done.err)


@pytest.mark.parametrize("given", ["NaN", "[Infinity]", "1e999", "plain words"])
def test_what_is_no_json_is_remembered_as_the_text_it_is(trouper, root: Path, given: str) -> None:
    """J5: no NaN; and nothing else in its place."""
    assert trouper("memory", "set", "people", "bob", given, "--root", root).code == 0
    assert json.loads(trouper("memory", "show", "people", "bob", "--root", root).out) == given


def test_an_interrupt_of_a_session_that_does_nothing_says_so(trouper, root: Path) -> None:
    """It said that the session was interrupted."""
    done = trouper("sessions", "interrupt", "main", "--root", root)
    assert (done.code, done.out) == (0, "nothing ran: main\n")
    told = trouper("sessions", "interrupt", "main", "--json", "--root", root)
    assert json.loads(told.out) == {"ok": True, "session": "main", "found": False, "ended": []}


def test_a_closed_session_is_nothing_to_chat_with(trouper, root: Path) -> None:
    assert trouper("sessions", "close", "main", "--root", root).code == 0
    for command in (("chat", "--session", "main"), ("run", "hello", "--session", "main")):
        done = trouper(*command, "--root", root)
        assert done.code == 2 and "'main' is closed" in done.err and done.out == ""
        one_line(done.err)


def test_run_gives_the_reply_and_its_exit_code(trouper, tmp_path: Path) -> None:
    done = trouper("run", "what is 6 * 7?", "--root", tmp_path / "new")
    assert done.code == 0 and done.out == "6 * 7 = 42.\n" and not done.err
    *events, result = map(json.loads, trouper("run", "hello", "--json", "--root", tmp_path / "new").out.splitlines())
    assert result["type"] == "result" and result["text"] == "You said: hello" and result["stop_reason"] == "end_turn"
    assert [event["type"] for event in events if not event.get("live")][-2:] == ["ModelReplied", "TurnEnded"]
    assert "".join(event["text"] for event in events if event["type"] == "TextDelta") == "You said: hello"


def test_run_that_stops_short_or_fails_says_so_by_its_code(trouper, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir(mode=0o700)
    (tmp_path / "root" / "trouper.toml").write_text("[limits]\nmax_steps = 1")
    done = trouper("run", "what is 6 * 7?", "--root", tmp_path / "root")
    assert done.code == 3 and "max_steps" in done.err
    one_line(done.err)


def test_run_reads_the_prompt_from_stdin_and_waits_for_background_work(tmp_path: Path) -> None:
    tools = tmp_path / "tools.py"
    tools.write_text(
        "import trio\nfrom trouper import tool\n@tool(background=True, budget_s=0.0)\nasync def dig() -> str:\n    'Dig.'\n    await trio.sleep(0.05)\n    return 'a hole'\n"
    )
    done = run("run", "-", "--wait", "--tools", str(tools), "--root", str(tmp_path / "new"), input="run dig\n")
    assert done.returncode == 0, done.stderr
    assert "News: Task succeeded" in done.stdout and "a hole" in done.stdout


def test_run_that_leaves_background_work_behind_says_what_becomes_of_it(tmp_path: Path) -> None:
    """B10: whoever is told "I will tell you" should know that nobody will, if nobody stays."""
    tools = tmp_path / "tools.py"
    tools.write_text(
        "import trio\nfrom trouper import tool\n@tool(background=True, budget_s=0.0)\nasync def dig() -> str:\n    'Dig.'\n    await trio.sleep_forever()\n"
    )
    done = run("run", "run dig", "--tools", str(tools), "--session", "s", "--root", str(tmp_path / "new"))
    assert done.returncode == 0 and "dig" in done.stdout
    assert "1 background task of session s cannot go on without this process" in done.stderr and "--wait" in done.stderr
    one_line(done.stderr)
    assert not run("run", "hello", "--root", str(tmp_path / "other")).stderr


def test_run_reads_no_more_of_an_endless_stdin_than_a_prompt_may_have(tmp_path: Path) -> None:
    with open("/dev/zero", "rb") as endless:
        done = subprocess.run(
            [*COMMAND, "run", "-", "--root", str(tmp_path / "new")],
            stdin=endless,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    assert done.returncode == 2 and "more than 67108864 bytes; save it, and use --attach FILE" in done.stderr
    one_line(done.stderr)


def test_chat_without_a_terminal_takes_lines_and_ends_with_them(tmp_path: Path) -> None:
    done = run("chat", "--root", str(tmp_path / "new"), input="hello\n/nonsense\n/history\nwhat is 2 * 3?\n")
    assert done.returncode == 0 and not done.stderr and "\x1b" not in done.stdout
    shown = done.stdout
    places = [
        shown.index(part)
        for part in ("> hello", "You said: hello", "! there is no /nonsense", "> what is 2 * 3?", "2 * 3 = 6.")
    ]
    assert places == sorted(places)


def test_a_line_of_a_chat_that_begins_with_a_slash_can_be_sent_and_any_space_ends_a_command(tmp_path: Path) -> None:
    done = run("chat", "--root", str(tmp_path / "new"), input="/etc/hosts\n /etc/hosts\n/model\tsimulated\n/help\n")
    assert done.returncode == 0 and "! there is no /etc/hosts; see /help" in done.stdout
    assert "You said: /etc/hosts" in " ".join(done.stdout.split()) and "  model: simulated" in done.stdout
    assert "A space before the / sends the line as it is." in done.stdout


@pytest.mark.parametrize("command", [("run", "hello"), ("chat",)], ids=" ".join)
def test_a_closed_pipe_ends_run_and_chat_quietly(tmp_path: Path, command: tuple[str, ...]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "trouper.cli", *command, "--root", str(tmp_path / "new")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stdin is not None
    try:
        process.stdin.write("hello\n")
        process.stdin.close()
    except BrokenPipeError:
        pass
    process.stdin = process.stdout = None
    _, said = process.communicate(timeout=60)
    assert process.returncode == 141 and said == ""
