"""`trouper journal`: what it shows, and what it says to bad input: one line, the remedy, the right exit code."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from terminal_driver import in_order

from trouper import Scripted, codec, open_runtime
from trouper.core.commands import Close, Command, DeliverReply, OpenSession, Submit
from trouper.core.decisions import step
from trouper.core.messages import Message, Text
from trouper.core.session import Phase, State
from trouper.core.settings import TurnOptions
from trouper.journal import Entry, open_log
from trouper.journal.format import HEADER_MARK, decode_control, encode_control
from trouper.models import reply

Run = Callable[..., object]
COMMANDS = (("ls",), ("ls", "--segments"), ("show",), ("tail",), ("verify",), ("replay",), ("html",))


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def one_line(said: str) -> None:
    assert said.startswith("trouper: ")
    assert said.count("\n") == 1, said
    assert "Traceback" not in said


def test_ls_lists_the_sessions_with_what_they_are_up_to(trouper, filled: Path) -> None:
    done = trouper("journal", "ls", filled)
    assert done.code == 0 and not done.err
    assert "nobody writes" in done.out
    rows = [line.split() for line in done.out.splitlines()[2:]]
    assert [row[:3] for row in rows] == [["main", "idle", "3"], ["other", "idle", "1"]]
    found = {row["session"]: row for row in lines(trouper("journal", "ls", "--json", filled).out)}
    assert found["main"]["turns"] == 3 and found["main"]["live_tasks"] == 0


def test_ls_segments_lists_the_files(trouper, filled: Path) -> None:
    (row,) = lines(trouper("journal", "ls", "--segments", "--json", filled).out)
    assert row["segment"] == 1 and row["first"] == 1 and row["state"] == "sealed"
    assert os.path.getsize(str(row["file"])) == row["bytes"]
    assert "sealed" in trouper("journal", "ls", "--segments", filled).out


def test_show_tells_every_record_in_order(trouper, filled: Path) -> None:
    done = trouper("journal", "show", filled)
    assert done.code == 0
    in_order(
        done.out,
        "main#0  OpenSession",
        'InputReceived "what is 1 + 2?"',
        'ModelReplied 1.1 "Let me see.", calls add_up',
        "CallStarted call_1_1_0",
        "CallEnded call_1_1_0 ok",
        'ModelReplied 1.2 "It is 3."',
        "TurnEnded 1 end_turn",
        "TaskSpilled task_",
        "TaskSucceeded task_",
        "NotificationQueued task_succeeded",
        "NotificationsAcknowledged 1 notification",
        "other#0  OpenSession",
        "MemoryWritten people ada",
    )
    numbers = [row["seq"] for row in lines(trouper("journal", "show", "--json", filled).out)]
    assert numbers == list(range(1, len(numbers) + 1))


def test_show_can_be_narrowed(trouper, filled: Path) -> None:
    of_other = lines(trouper("journal", "show", "--json", "--session", "other", filled).out)
    assert {row["record"]["session"] for row in of_other} == {"other"}  # type: ignore[index]
    two = lines(trouper("journal", "show", "--json", "--after", "3", "--limit", "2", filled).out)
    assert [row["seq"] for row in two] == [4, 5]
    whole = trouper("journal", "show", "--record", "2", filled)
    assert json.loads(whole.out)["type"] == "Submit"


def test_what_is_shown_cannot_drive_a_terminal(trouper, filled: Path) -> None:
    """Security: escapes and bidi characters of a session are stripped."""
    for command in (
        ("journal", "show"),
        ("journal", "show", "--record"),
        ("journal", "replay"),
        ("sessions", "show", "other"),
    ):
        records = lines(trouper("journal", "show", "--json", "--session", "other", filled).out)
        extra = [str(records[1]["seq"])] if command[-1] == "--record" else []
        where = ["--root", filled]
        shown = trouper(*command, *extra, *where).out
        assert "red" in shown and "evil" in shown
        assert "\x1b" not in shown and "\u202e" not in shown


def test_tail_shows_the_last_and_follows_a_live_writer(root: Path) -> None:
    """J9: readers need no lock; what another process writes appears."""
    follower = subprocess.Popen(
        [sys.executable, "-m", "trouper.cli", "journal", "tail", "-n", "1", "-f", str(root)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert follower.stdout is not None
        assert "~memory#0  Remember" in follower.stdout.readline()
        assert "MemoryWritten" in follower.stdout.readline()
        subprocess.run(
            [sys.executable, "-m", "trouper.cli", "run", "hello", "--root", str(root), "--session", "third"],
            check=True,
            capture_output=True,
        )
        assert "third#0  OpenSession" in follower.stdout.readline()
        # To the end: a Ctrl-C while classes are made for records that are new to it is handled, too, but with `-m` Python then ends by the signal (130 to a shell, -2 here).
        while "TurnEnded" not in follower.stdout.readline():
            assert follower.poll() is None
        follower.send_signal(2)
        assert follower.wait(timeout=30) == 130
    finally:
        follower.kill()
        follower.communicate()


def test_verify_checks_every_byte(trouper, filled: Path) -> None:
    done = trouper("journal", "verify", filled)
    assert done.code == 0 and done.out.startswith("ok: every byte is as it was written")
    (report,) = lines(trouper("journal", "verify", "--json", filled).out)
    assert report["ok"] is True and report["damage"] == [] and report["records"] == report["last"]


def test_replay_decides_every_command_again(trouper, filled: Path) -> None:
    """I18."""
    done = trouper("journal", "replay", filled)
    assert done.code == 0
    in_order(
        done.out,
        "Submit -> thinking  waits for: model 1 1",
        "DeliverReply -> acting  waits for: call call_1_1_0 1",
        "ok: today's code decides",
    )
    *steps, verdict = lines(trouper("journal", "replay", "--json", filled).out)
    records = len(
        lines(trouper("journal", "show", "--json", filled).out)
    )  # Those of the memory have no step, and are decided again too.
    assert verdict == {"ok": True, "damage": [], "rerun": records, "divergences": [], "holes": [], "snapshots": []}
    assert 0 < len(steps) < records


def test_replay_gives_the_state_at_a_record_and_what_changed_between_two(trouper, filled: Path) -> None:
    (state,) = lines(trouper("journal", "replay", "--session", "main", "--at", "3", "--json", filled).out)
    assert state["phase"] == "acting"
    changed = trouper("journal", "replay", "--session", "main", "--diff", "2", "3", filled).out
    assert 'phase: "thinking" -> "acting"' in changed


def test_replay_forks_a_journal_that_a_runtime_goes_on_with(trouper, filled: Path, tmp_path: Path) -> None:
    done = trouper("journal", "replay", "--at", "3", "--session", "main", "--fork", tmp_path / "fork", filled)
    assert done.code == 0 and "wrote 3 records of 1 session" in done.out
    assert "a fork has the records alone; copy yourself what it is to have of files/" in done.out
    assert trouper("run", "again", "--session", "main", "--root", tmp_path / "fork").code == 0
    found = trouper("sessions", "--root", tmp_path / "fork").out
    assert found.splitlines()[1].split()[:3] == ["main", "idle", "2"]


def test_a_fork_from_before_a_session_began_is_one_line_and_2_and_nothing_is_written(
    trouper, filled: Path, tmp_path: Path
) -> None:
    done = trouper("journal", "replay", "--at", "1", "--session", "other", "--fork", tmp_path / "fork", filled)
    assert done.code == 2 and "session 'other' has no record up to 1" in done.err and done.err.count("\n") == 1
    assert not (tmp_path / "fork").exists()


def test_a_directory_without_a_name_is_not_the_one_that_we_are_in(trouper, filled: Path) -> None:
    for command in (("journal", "replay", filled, "--fork", ""), ("journal", "repair", filled, "")):
        done = trouper(*command)
        assert done.code == 2 and "'' cannot be a directory" in done.err and done.err.count("\n") == 1


def test_works_while_another_process_owns_the_root(trouper, root: Path) -> None:
    """J9: a second writer is refused with the owner's pid, readers are not."""
    log = open_log(root)
    try:
        assert "process" in trouper("journal", "ls", root).out
        for command in COMMANDS:
            assert trouper("journal", *command, root).code == 0
        refused = trouper("run", "hello", "--root", root)
        assert refused.code == 75 and f"process {os.getpid()}" in refused.err
        one_line(refused.err)
    finally:
        log.close()


def test_a_writer_whose_lock_file_was_deleted_is_known_still(trouper, root: Path) -> None:
    """J9: a second writer is refused, so nobody may be told that there is none."""
    log = open_log(root)
    try:
        (root / "lock").unlink()
        assert "another process writes" in trouper("journal", "ls", root).out
        assert "another process has the root open" in trouper("doctor", "--root", root).out
        assert trouper("run", "hello", "--root", root).code == 75
    finally:
        log.close()
    assert "nobody writes" in trouper("journal", "ls", root).out


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_damaged_journal_is_named_with_the_remedy(trouper, damaged: Path, command: tuple[str, ...]) -> None:
    """J10: file, offset and sessions are named; never a silent skip."""
    done = trouper("journal", *command, damaged)
    if command[0] == "ls":  # Looks at the ends of the files and at the snapshot only.
        assert done.code == 0
        return
    assert done.code == 65
    said = done.out if command == ("verify",) else done.err
    assert "segment-00000001.log" in said and "at byte" in said and "repair" in said
    if command != ("verify",):
        one_line(done.err)


def test_html_is_a_page_for_its_owner_alone(trouper, filled: Path, tmp_path: Path) -> None:
    """J8: what is in the journal is as private on the page."""
    piped = trouper("journal", "html", filled)
    assert piped.code == 0 and piped.out.startswith("<!doctype html>") and piped.out.endswith("</html>\n")
    target = tmp_path / "page.html"
    target.write_text("an older one")
    done = trouper("journal", "html", filled, "-o", target)
    assert done.code == 0 and done.out == f"wrote {target}: 2 sessions\n"
    assert target.read_text() == piped.out and stat.S_IMODE(target.stat().st_mode) == 0o600
    assert "other" not in trouper("journal", "html", filled, "--session", "main").out
    assert trouper("journal", "html", filled, "--after", 1, "--limit", 1).out.count("<section") == 1
    for words, code in ((("--session", "nobody"), 2), (("--limit", "-1"), 2), (("-o", tmp_path / "no" / "page"), 74)):
        refused = trouper("journal", "html", filled, *words)
        assert refused.code == code
        one_line(refused.err)


@pytest.mark.parametrize(
    "named", ["", ".", "..", "/", "new/", "dir", "pipe", "device", "root/segment-00000001.log", "root/lock", "link"]
)
def test_a_page_never_takes_the_place_of_what_is_no_file_or_is_the_journals_own(
    trouper, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """J15: nothing but `archive` deletes a record."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dir").mkdir()
    os.mkfifo("pipe")
    os.symlink("/dev/null", "device")
    os.symlink("root/segment-00000001.log", "link")
    before = _files(tmp_path)
    done = trouper("journal", "html", root, "-o", named)
    assert done.code == 2, done
    one_line(done.err)
    assert _files(tmp_path) == before
    assert trouper("journal", "verify", root).code == 0


def test_a_page_for_a_pipe_that_is_named_by_its_number_is_sent_to_standard_output(trouper, filled: Path) -> None:
    """`-o /dev/stdout | ...`: what it is called behind that link is nowhere to be found."""
    reading, writing = os.pipe()
    done = trouper("journal", "html", filled, "-o", f"/dev/fd/{writing}")
    os.close(writing)
    os.close(reading)
    assert done.code == 2 and "is no file; leave out --output" in done.err
    one_line(done.err)


def _files(place: Path) -> dict[Path, tuple[int, int, int]]:
    found = {path: path.lstat() for path in place.rglob("*")}
    return {path: (about.st_ino, about.st_mode, about.st_mtime_ns) for path, about in found.items()}


def test_a_page_goes_where_links_lead_and_to_standard_output(trouper, root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "page")
    assert trouper("journal", "html", root, "-o", tmp_path / "link").code == 0
    assert (tmp_path / "link").is_symlink() and (tmp_path / "page").read_text().startswith("<!doctype html>")
    assert trouper("journal", "html", root, "-o", root / "page.html").code == 0
    assert trouper("journal", "html", root, "-o", "-").out == (root / "page.html").read_text()
    missing = trouper("journal", "html", root, "-o", tmp_path / "nowhere" / "page")
    assert missing.code == 74 and repr(str(tmp_path / "nowhere" / "page")) in missing.err
    one_line(missing.err)


@pytest.mark.parametrize("form", [(), ("--follow",), ("--session", "main")], ids=" ".join)
def test_tail_shows_what_is_before_the_damage_and_then_the_error(trouper, damaged: Path, form: tuple[str, ...]) -> None:
    """J10: it can be read up to there."""
    for done in (trouper("journal", "tail", "-n", "2", *form, *how, damaged) for how in (("--json",), ())):
        assert done.code == 65 and done.err.count("\n") == 1 and "is damaged" in done.err
        if done.out.startswith("{"):
            assert [line["seq"] for line in lines(done.out)] == [3, 4]
        else:
            in_order(done.out, "     3  ", "     4  ")


def test_help_says_that_a_page_cuts_long_texts(trouper) -> None:
    assert "Very long texts are cut" in trouper("journal", "html", "--help").out
    assert "in full" not in trouper("journal", "--help").out


def test_repair_writes_a_new_journal_with_an_explicit_gap(trouper, damaged: Path, tmp_path: Path) -> None:
    """J10."""
    done = trouper("journal", "repair", damaged, tmp_path / "new")
    assert done.code == 0 and "gap: record" in done.out
    assert trouper("journal", "verify", tmp_path / "new").code == 0
    shown = trouper("journal", "show", tmp_path / "new").out
    assert "gap  records" in shown or "gap  record" in shown
    again = trouper("journal", "repair", damaged, tmp_path / "new")
    assert again.code == 73 and "exists already" in again.err
    one_line(again.err)


@pytest.fixture
def lived_in(damaged: Path) -> Path:
    """A root with more in it than a journal, as runtimes and users leave it."""
    for name, mode in (("files/main/sub/notes.md", 0o600), ("files/main/run.sh", 0o700), ("kv/main.json", 0o600)):
        _put(damaged / name, mode)
    _put(damaged / "secrets" / "main.json", 0o600)
    (damaged / "trouper.toml").write_text('[policy]\ndeny = ["*"]\n')
    for name in ("memory/user/tea.json", "memory.sqlite3", "control.sock", "my_tools.py", "torn/x"):
        _put(damaged / name, 0o600)
    return damaged


def _put(path: Path, mode: int) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text('{"a": "b"}')
    path.chmod(mode)


def test_repair_writes_a_root_that_goes_on_with_its_files_secrets_and_policy(
    trouper, lived_in: Path, tmp_path: Path
) -> None:
    """J10, T4: without trouper.toml it would go on without a policy."""
    new = tmp_path / "new"
    done = trouper("journal", "repair", lived_in, new)
    assert done.code == 0
    assert "copied as they are: files, kv, secrets, trouper.toml; left where they are: my_tools.py, torn\n" in done.out
    assert {path.name for path in new.iterdir()} == {
        *("files", "kv", "secrets", "trouper.toml"),
        *(path.name for path in new.glob("segment-*")),
    }
    for name, mode in (("files/main/run.sh", 0o700), ("secrets", 0o700), ("secrets/main.json", 0o600)):
        assert stat.S_IMODE((new / name).stat().st_mode) == mode
    assert (new / "files" / "main" / "sub" / "notes.md").read_text() == '{"a": "b"}'
    denied = trouper("run", "run read_file path=sub/notes.md", "--session", "new", "--root", new)
    assert "denied" in denied.out
    told = json.loads(trouper("journal", "repair", lived_in, tmp_path / "again", "--json").out)
    assert told["copied"] == ["files", "kv", "secrets", "trouper.toml"] and told["left"] == ["my_tools.py", "torn"]


@pytest.mark.parametrize("inside", ["files", "files/main/new", "kv/../secrets/new"])
def test_a_repair_into_what_is_to_be_copied_is_refused(trouper, lived_in: Path, inside: str) -> None:
    """Else it would copy its own copy."""
    done = trouper("journal", "repair", lived_in, f"{lived_in}/{inside}")
    assert done.code == 2 and "in what is to be copied" in done.err
    one_line(done.err)


def test_a_repair_whose_files_cannot_be_copied_leaves_nothing_behind_and_no_root_that_looks_whole(
    trouper, lived_in: Path, tmp_path: Path
) -> None:
    """J10, I21. What links lead to stays, whoever clears away."""
    deep = lived_in / "files" / "main" / "z"
    for _ in range(110):
        deep = deep / "z"
    deep.mkdir(parents=True)
    theirs = tmp_path / "theirs"
    _put(theirs / "kept", 0o600)
    (lived_in / "files" / "main" / "link").symlink_to(theirs)
    done = trouper("journal", "repair", lived_in, tmp_path / "new")
    assert done.code == 74 and "directories in one another" in done.err
    one_line(done.err)
    assert not list(tmp_path.glob("new*")) and (theirs / "kept").exists()


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_root_that_is_missing_a_file_or_empty_is_a_line_and_66(
    trouper, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for place, words in (
        ("nowhere", "there is no journal"),
        ("file", "is a file"),
        ("file/inside", "is a file"),
        ("empty", "holds no journal"),
    ):
        done = trouper("journal", *command, tmp_path / place)
        assert done.code == 66 and words in done.err, done
        one_line(done.err)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_an_unreadable_root_is_a_line_and_77(trouper, root: Path) -> None:
    root.chmod(0)
    try:
        done = trouper("journal", "ls", root)
        assert done.code == 77
        one_line(done.err)
    finally:
        root.chmod(0o700)


def test_a_newer_format_is_a_line_that_says_upgrade(trouper, root: Path) -> None:
    """J14."""
    segment = root / "segment-00000001.log"
    header, rest = segment.read_bytes().split(b"\n", 1)
    fields = decode_control(HEADER_MARK, header)
    assert fields is not None
    fields.pop("crc", None)
    segment.write_bytes(encode_control(HEADER_MARK, {**fields, "version": 99}).rstrip(b"\n") + b"\n" + rest)
    for command in (("ls",), ("show",), ("tail",), ("verify",), ("replay",)):
        done = trouper("journal", *command, root)
        assert done.code not in (0, 70) and "upgrade" in done.err, done
        one_line(done.err)


def test_wrong_arguments_are_a_line_and_2(trouper, filled: Path) -> None:
    for wrong in (
        ("journal",),
        ("journal", "frob"),
        ("journal", "ls", "--frob"),
        ("journal", "show", filled, "--after", "-1"),
        ("journal", "show", filled, "--limit", "many"),
        ("journal", "show", filled, "--record", "9999"),
        ("journal", "show", filled, "--session", "nobody"),
        ("journal", "show", filled, "--record", "2", "--session", "main"),
        ("journal", "tail", filled, "--session", "nobody"),
        ("journal", "replay", filled, "--session", "nobody"),
        ("journal", "replay", filled, "--diff", "1", "2", "--at", "3"),
        ("journal", "replay", filled, "--at", "3"),
        ("journal", "ls", filled, "--root", "/elsewhere"),
        ("journal", "ls", "--root", filled, "--profile", "x"),
        ("journal", "repair", filled),
    ):
        done = trouper(*wrong)
        assert done.code == 2, (wrong, done)
        one_line(done.err)


def test_a_closed_pipe_ends_quietly(filled: Path) -> None:
    """`| head`: no traceback, no message."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "trouper.cli", "journal", "show", str(filled)],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    assert done.returncode == 141 and done.stderr == ""


@pytest.fixture
def long(tmp_path: Path) -> Path:
    """A root with a closed session in several segments, and one that goes on."""
    root = tmp_path / "long"
    log = open_log(root, segment_bytes=4096)
    state, n = State(), 0
    commands: list[Command] = [OpenSession("old", 1.5)]
    for turn in range(1, 20):
        commands.append(Submit("x" * 300, 1.5, TurnOptions()))
        commands.append(DeliverReply(turn, 1, Message("assistant", (Text("Yes."),)), "end_turn", 1.5))
    for command in (*commands, Close(1.5)):
        events, state = step(state, command)
        record = codec.Record("old", n, log.epoch, 1.5, command, events)
        n += len(events)
        log.append(Entry(record.session, record.id, *codec.encode(record)))
        log.sync()
    assert state.phase is Phase.CLOSED
    log.close()

    async def go_on() -> None:
        async with open_runtime(root, model=Scripted([reply("Hello.")])) as runtime:
            await (await runtime.session("new")).ask("hello")

    trio.run(go_on)
    return root


@pytest.mark.parametrize("fate", ["archived", "dropped"])
def test_archive_packs_or_drops_what_only_closed_sessions_need(trouper, long: Path, fate: str) -> None:
    """J15: by an explicit command, and the journal goes on."""
    segments = len(list(long.glob("segment-*.log")))
    records = len(lines(trouper("journal", "show", "--json", long).out))
    done = trouper("journal", "archive", long, *(["--drop"] if fate == "dropped" else []))
    assert done.code == 0 and done.out.count(f"{fate} segment") == segments - 1
    states = [row["state"] for row in lines(trouper("journal", "ls", "--segments", "--json", long).out)]
    assert states == [fate] * (segments - 1) + ["sealed"]
    assert trouper("journal", "verify", long).code == 0
    left = lines(trouper("journal", "show", "--json", long).out)
    assert (len(left) == records) is (fate == "archived")
    rows = {row["session"]: row["phase"] for row in lines(trouper("journal", "ls", "--json", long).out)}
    assert rows == {"old": "closed", "new": "idle"}
    again = trouper("journal", "archive", long)
    assert again.code == 0 and again.out.startswith("nothing to do")


def test_archive_leaves_alone_what_another_process_writes(trouper, long: Path) -> None:
    """J9, J15"""
    log = open_log(long)
    try:
        done = trouper("journal", "archive", long)
    finally:
        log.close()
    assert done.code == 75
    one_line(done.err)


def test_replay_tells_a_hole_and_goes_on_with_the_other_sessions(trouper, damaged: Path, tmp_path: Path) -> None:
    """J10, I18"""
    assert trouper("journal", "repair", damaged, tmp_path / "new").code == 0
    done = trouper("journal", "replay", tmp_path / "new")
    assert done.code == 0 and done.err == ""
    assert "hole: session" in done.out and "other#" in done.out
    *_, verdict = lines(trouper("journal", "replay", "--json", tmp_path / "new").out)
    assert verdict["ok"] and len(verdict["holes"]) == 1


@pytest.mark.parametrize("command", [("show",), ("show", "--json"), ("tail",), ("html",)], ids=" ".join)
def test_whoever_is_shown_all_that_is_left_is_told_that_more_is_lost(
    trouper, root: Path, command: tuple[str, ...]
) -> None:
    """J10: never a silent skip; the snapshot knows of records that are gone."""
    segment = root / "segment-00000001.log"
    segment.write_bytes(b"".join(segment.read_bytes().splitlines(keepends=True)[:4]))
    done = trouper("journal", *command, root)
    assert done.code == 65 and done.out, "what is there is shown all the same"
    assert "the journal ends with record 3" in done.err and "repair" in done.err
    one_line(done.err)
    assert trouper("journal", "show", "--limit", "2", root).code == 0, "nobody has asked for the end"


def test_replay_says_what_is_damaged_where_every_record_left_can_be_read(trouper, root: Path) -> None:
    """J10: never a silent skip; the snapshot knows of records that are gone."""
    segment = root / "segment-00000001.log"
    kept = segment.read_bytes().splitlines(keepends=True)[:4]
    segment.write_bytes(b"".join(kept))
    done = trouper("journal", "replay", root)
    assert done.code == 65 and "damaged: " in done.out and "the journal ends with record 3" in done.out
    assert "repair" in done.out.splitlines()[-1]
    *_, verdict = lines(trouper("journal", "replay", "--json", root).out)
    (damage,) = verdict["damage"]
    assert not verdict["ok"] and "the journal ends with record 3" in damage


@pytest.mark.parametrize(
    "command",
    [("sessions", "ls"), ("sessions", "show", "main"), ("tasks", "ls"), ("memory", "ls"), ("journal", "ls")],
    ids=" ".join,
)
def test_what_a_snapshot_remembers_is_not_shown_for_what_the_journal_says(
    trouper, root: Path, command: tuple[str, ...]
) -> None:
    """J10: never a silent skip; the records that the snapshot was made of are gone."""
    segment = root / "segment-00000001.log"
    segment.write_bytes(b"".join(segment.read_bytes().splitlines(keepends=True)[:4]))
    done = trouper(*command, "--root", root)
    assert done.code == 65 and done.out == ""
    assert "the journal ends with record 3, and a snapshot was made after" in done.err and "repair" in done.err
    one_line(done.err)


def test_a_segment_that_cannot_be_read_at_all_can_be_repaired(trouper, long: Path, tmp_path: Path) -> None:
    """J10: a directory in its place stands for a medium that gives nothing."""
    (long / "segment-00000002.log").unlink()
    (long / "segment-00000002.log").mkdir()
    done = trouper("journal", "verify", long)
    assert done.code == 65 and "the disk cannot read it: Is a directory" in done.out
    done = trouper("journal", "repair", long, tmp_path / "new")
    assert done.code == 0 and "gap: records" in done.out
    assert trouper("journal", "verify", tmp_path / "new").code == 0
    for command in ("ls", "show", "replay"):
        done = trouper("journal", command, long)
        assert done.code in (65, 74)
        one_line(done.err)


@pytest.mark.parametrize(
    "command", [("show",), ("tail",), ("replay",), ("replay", "--at", "2"), ("html",)], ids=" ".join
)
def test_a_session_whose_name_is_no_text_is_one_that_is_not_there(
    trouper, filled: Path, command: tuple[str, ...]
) -> None:
    """B22: bytes on the command line that the locale does not know are no name of any session."""
    done = trouper("journal", *command, "--session", os.fsdecode(b"\xff\xfe"), "--root", filled)
    assert done.code == 2 and "has no session" in done.err
    one_line(done.err)
