"""What a line of a chat names."""

from __future__ import annotations

from pathlib import Path

import pytest
from terminal_driver import run

from trouper.cli.chat_commands import attachments_in
from trouper.testing.invariants import check_invariants


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("what's in @notes.txt and what's new", "notes.txt"),
        ("@notes.txt isn't long", "notes.txt"),
        ('What\'s in @"my notes.txt"?', "my notes.txt"),
        ("What's in @'my notes.txt'?", "my notes.txt"),
        (r"What's in @my\ notes.txt", "my notes.txt"),
        ("whose is @it's.txt", "it's.txt"),
        ('whose is @"it\'s.txt"', "it's.txt"),
        ("the café: @été–日本.txt", "été–日本.txt"),
        ("look at @notes.txt, please", "notes.txt"),
        ("have you read @notes.txt?", "notes.txt"),
        ("my notes (see @a.txt. and @notes.txt)", "notes.txt"),
        ("my notes (@notes.txt)", "notes.txt"),
        ("this ends in a dot: @dot.", "dot."),
    ],
)
def test_a_file_goes_along_whatever_stands_around_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, file: str
) -> None:
    """Command line, @file: two apostrophes held all between them together as one word, and the file was left out without a word."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / file).write_text("x")
    assert attachments_in(line).files == (file,)


def test_what_is_no_file_is_a_word_and_what_looks_like_one_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "drawer").mkdir()
    attached = attachments_in('ada@example.com, @ada, @, @"", @"open, @drawer/, @missing.txt. and @\0.txt')
    assert attached.files == ()
    assert attached.remarks == (
        "@drawer/, is a directory, and is sent as text; name files",
        "there is no file 'missing.txt'; @missing.txt. is sent as text",
        r"there is no file '\x00.txt'; " + "@\0.txt is sent as text",
    )


def test_a_file_that_is_named_twice_goes_along_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    assert attachments_in("@notes.txt @'notes.txt'").files == ("notes.txt",)


def test_a_model_that_was_chosen_in_the_chat_keeps_nobody_from_the_next_one(tmp_path: Path) -> None:
    """J12, B19: with anything left open, such as a schedule, the session was refused to every later chat and run, for want of the model that it was given."""
    root = str(tmp_path / "root")
    chat = ("chat", "--root", root, "--session", "main")
    done = run(*chat, input="hello\n/model simulated\nand now?\n")
    assert done.returncode == 0 and "model: simulated" in done.stdout, done
    when = ("--cron", "0 9 * * *", "--message", "Tea time")
    assert run("schedules", "create", "--root", root, "--session", "main", *when).returncode == 0
    again = run(*chat, input="hello again\n")
    assert again.returncode == 0 and "You said: hello again" in again.stdout, again
    assert not check_invariants(root)
