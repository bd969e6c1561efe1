"""What `RootedFiles` promises besides confinement (T17): whole writes, quotas that count, compare-and-swap, nothing left behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from trouper._errors import ConfigError
from trouper.tools.guards import rooted
from trouper.tools.guards.descriptors import FileRefused, content_hash
from trouper.tools.guards.names import NameRefused, parse_path
from trouper.tools.guards.rooted import Quota, RootedFiles


def at(tmp: Path, **options: object) -> RootedFiles:
    return RootedFiles(tmp / "state", "files", "one", **options)  # type: ignore[arg-type]


def test_paths_are_taken_apart() -> None:
    assert parse_path("a//b/./c/") == ("a", "b", "c")
    assert parse_path(".") == parse_path("") == parse_path("./") == ()
    assert parse_path("日本/café 1.txt") == ("日本", "café 1.txt")
    with pytest.raises(NameRefused, match="levels deep"):
        parse_path("d/" * 65 + "f")


SHOWS_AS_ANOTHER = (
    # Joiners that join nothing: at the beginning, at the end, before a dot or a blank, between letters that do not join, twice.
    "\u200d|a\u200db|\u200cx|\u200cها|é\u200dé|日\u200d本|é\u200d|ها\u200c|ها\u200c.txt|می\u200c ها"
    "|می\u200c\u200cها|ه\u200d\u200d|ক\u200d|👩\u200d|👩\u200dx|─\u200d─|e\u200d\u0301|۱\u200d|ש\u200cל"
    # Fillers, blanks and what is set apart to be ignored.
    "|a\u3164|\u115f|a\u034fb|\uffa0|\u2800|a\u2800|a\u2065|a\ufff3|a\U000e01f0| |\u3000\u00a0"
    # Selectors of what has no other shape.
    "|a\ufe0f|1\ufe0f|\ufe0f|❤\ufe0f\ufe0f|a\ufe00|a\U000e0100|a\u180b|a\u180e|ᠪᠠ\u180e"
    "|a\u2800b|⠓\u2800|🏴\U000e0067\U000e0062|🏴\U000e0061\U000e007f|a\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"
)


@pytest.mark.parametrize("name", SHOWS_AS_ANOTHER.split("|"))
def test_name_that_shows_as_nothing_or_as_another_is_refused(name: str) -> None:
    """security.md, row Names: twins, and a file that nobody sees in a listing."""
    with pytest.raises(NameRefused, match=r"do(es)? not show in a listing"):
        parse_path(f"d/{name}")


NEEDS_IT = (
    # Persian: a word and its ending, also of an abbreviation, a number, a word in brackets; a letter in the shape it has before another.
    "می\u200cخواهم.txt|PDF\u200cها.txt|iOS\u200cهای جدید.md|CD\u200cها|3\u200cبعدی.png"
    "|(PDF)\u200cها|۱۴۰۲ ه\u200d"
    # Hindi, Bengali (twice), Sinhala, Malayalam, Telugu (twice), Khmer, Mongolian.
    "|क्\u200dष.txt|র\u200d্যাব|গ\u200cু|ශ්\u200dරී|അവന്\u200d|ఫైల్\u200c|USB\u200cని|ប៊\u200cី|ᠪᠠᠢᠨ\u180eᠠ\u180b"
    "|👩\u200d💻|❤️\u200d🔥.md|👩🏽\u200d❤\ufe0f\u200d👨|🙂\u200d↔\ufe0f|1\ufe0f\u20e3"
    "|©\ufe0f|葛\U000e0100|晴\ufe00"
    # Braille between words; the flags of England, Scotland and Wales.
    "|⠓⠑⠇⠇⠕\u2800⠺⠕⠗⠇⠙"
    "|🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f.md"
    "|🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f"
    "|🏴\U000e0067\U000e0062\U000e0077\U000e006c\U000e0073\U000e007f"
)


@pytest.mark.parametrize("name", NEEDS_IT.split("|"))
def test_name_that_needs_what_does_not_show_is_kept(name: str) -> None:
    """T17: it is the ordinary spelling of a language, or shows as another sign."""
    assert parse_path(name) == (name,)


def test_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = at(tmp_path)
    files.write("a", b"old")

    def full(descriptor: int, data: bytes) -> None:
        os.write(descriptor, data[:1])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rooted, "write_all", full)
    with pytest.raises(FileRefused, match="disk is full"):
        files.write("a", b"new")
    assert files.read("a") == b"old"
    assert os.listdir(files.root) == ["a"]


def test_temporary_files_of_a_crash_are_swept_and_never_shown(tmp_path: Path) -> None:
    files = at(tmp_path)
    files.write("sub/a", b"x")
    for place in (files.root, files.root / "sub"):
        (place / ".trouper-tmp-deadbeef-1").write_bytes(b"half")
    assert [entry.name for entry in files.list()] == ["sub"]
    with pytest.raises(NameRefused, match="reserved"):
        files.read(".trouper-tmp-deadbeef-1")
    files.usage()
    assert sorted(place.name for place in files.root.rglob("*")) == ["a", "sub"]


def test_durable_writes_reach_the_disk_before_the_name_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    sync, rename = os.fsync, os.rename
    monkeypatch.setattr(os, "fsync", lambda descriptor: (steps.append("sync"), sync(descriptor))[1])
    monkeypatch.setattr(os, "rename", lambda *names, **where: (steps.append("rename"), rename(*names, **where))[1])
    at(tmp_path, durable=True).write("a", b"x")
    assert steps == ["sync", "rename", "sync"]


def test_quota_counts_what_is_there_and_lets_one_make_room(tmp_path: Path) -> None:
    files = at(tmp_path, quota=Quota(bytes_max=100, entries_max=5, file_bytes_max=80))
    files.write("a", bytes(80))
    with pytest.raises(FileRefused, match="one file may have 80"):
        files.write("b", bytes(81))
    with pytest.raises(FileRefused, match="limits are 100 bytes and 5 entries"):
        files.write("b", bytes(21))
    (files.root / "by_command").write_bytes(bytes(200))
    files.write("a", bytes(10))  # smaller than it was: the way out is never shut
    files.delete("by_command")
    files.write("b", bytes(80))
    assert files.usage() == rooted.Usage(90, 2)


def test_files_that_are_there_can_be_changed_however_many_a_command_has_made(tmp_path: Path) -> None:
    """T14, T17: an installer leaves some ten thousand; what was written before is still to be worked on, and nothing more is added by that."""
    files = at(tmp_path, quota=Quota(bytes_max=1000, entries_max=5, file_bytes_max=100))
    files.write("main.py", b"one")
    for number in range(10):
        (files.root / f"made-{number}").write_bytes(b"x")
    assert files.usage().entries == 11
    assert not files.write("main.py", b"one and two").created
    assert files.edit("main.py", lambda data: data + b" and three").size == 21
    assert not files.write_pieces("main.py", [b"four"]).created
    for add in (lambda: files.write("other.py", b"x"), lambda: files.make_directory("more")):
        with pytest.raises(FileRefused, match="5 entries: delete what is no longer needed"):
            add()


def test_quota_notices_files_that_commands_have_removed(tmp_path: Path) -> None:
    files = at(tmp_path, quota=Quota(bytes_max=100, entries_max=5, file_bytes_max=100))
    files.write("a", bytes(100))
    os.unlink(files.root / "a")
    files.write("b", bytes(100))


def test_compare_and_swap_has_one_winner(tmp_path: Path) -> None:
    """Through separate instances, as separate calls may have them."""
    at(tmp_path).write("n", b"0")
    start = content_hash(b"0")
    won: list[int] = []
    gate = threading.Barrier(8)

    def attempt(number: int) -> None:
        files = at(tmp_path)
        gate.wait()
        try:
            files.edit("n", lambda _: str(number).encode(), expected_hash=start)
        except FileRefused:
            return
        won.append(number)

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert at(tmp_path).read("n") == str(won[0]).encode()


def test_mode_is_kept_without_its_dangerous_bits(tmp_path: Path) -> None:
    files = at(tmp_path)
    files.write("run", b"#!/bin/sh\n")
    os.chmod(files.root / "run", 0o4755)
    files.edit("run", lambda data: data + b"true\n")
    assert (files.root / "run").stat().st_mode & 0o7777 == 0o755


def test_root_that_is_a_file_is_the_operators_to_mend(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(ConfigError, match="name a real directory"):
        at(tmp_path).write("a", b"x")


def test_nothing_is_moved_to_where_it_is_no_longer_counted(tmp_path: Path) -> None:
    """T17: two deep trees, one put below the other, would hide what is at the bottom from the quota, and from delete_file."""
    files = at(tmp_path)
    files.write("a/" * 40 + "big", b"x" * 100)
    files.write("b/" * 40 + "small", b"")
    before = files.usage()
    with pytest.raises(FileRefused, match="81 levels deep"):
        files.rename("a", "b/" * 40 + "a")
    assert files.usage() == before
    files.rename("a", "b/" * 23 + "a")
    assert files.usage().bytes == 100
    assert files.delete("b", recursive=True) == before.entries


@pytest.mark.parametrize("mode", [0o000, 0o200, 0o400, 0o500, 0o600])
def test_a_directory_that_may_not_be_used_is_refused_and_hinders_no_other(users_own: Path, mode: int) -> None:
    """T17, L20: commands may set any mode. It is the model's to hear of, and no reason not to write elsewhere."""
    files = at(users_own)
    files.write("shut/a", b"x")
    files.write("shut/deeper/b", b"x")
    files.write("open", b"x")
    (files.root / "shut").chmod(mode)
    try:
        for use in (
            lambda: files.write("shut/c", b"x"),
            lambda: files.edit("shut/a", lambda data: data + b"x"),
            lambda: files.delete("shut/a"),
            lambda: files.delete("shut", recursive=True),
            lambda: files.rename("open", "shut/open"),
            lambda: files.rename("shut/a", "a"),
        ):
            with pytest.raises(FileRefused, match="its mode forbids it"):
                use()
        for look in (lambda: files.read("shut/a"), lambda: files.stat("shut/a"), lambda: files.list("shut")):
            with nullcontext() if mode == 0o500 else pytest.raises(FileRefused, match="its mode forbids it"):
                look()
        assert files.usage().entries >= 2
        assert files.write("other", b"x").created
    finally:
        (files.root / "shut").chmod(0o700)


def test_old_directories_are_made_private(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "files").mkdir()
    os.chmod(tmp_path / "state" / "files", 0o755)
    at(tmp_path).write("a", b"x")
    assert (tmp_path / "state" / "files").stat().st_mode & 0o777 == 0o700


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    files = at(tmp_path)
    files.write("d/a", b"x")
    (files.root / "link").symlink_to("d")
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else None
    for path in ("d/a", "link/a", "d/a/b", "missing/x", "d", "../x"):
        for action in (files.read, files.stat, files.list, files.delete, lambda path: files.write(path, b"y")):
            try:
                action(path)
            except (FileRefused, NameRefused):
                continue
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_write_in_pieces_is_whole_or_not_at_all_and_only_the_room_limits_it(tmp_path: Path) -> None:
    """T9, T17."""
    files = at(tmp_path, quota=Quota(bytes_max=100, entries_max=5, file_bytes_max=10))
    written = files.write_pieces("out/a", [b"x" * 30, b"", b"y" * 30])
    assert (written.size, written.created, written.hash) == (60, True, content_hash(b"x" * 30 + b"y" * 30))
    with pytest.raises(FileRefused, match="only 40 of the 100 bytes"):
        files.write_pieces("out/b", [b"z" * 30] * 2)
    assert not files.write_pieces("out/a", [b"z" * 100]).created  # The old one makes room for the new one.
    assert [entry.path for entry in files.walk()] == ["out", "out/a"]

    def broken() -> Iterator[bytes]:
        yield b"half"
        raise RuntimeError("broken off")

    with pytest.raises(RuntimeError):
        files.write_pieces("out/a", broken())
    assert b"".join(files.pieces("out/a")) == b"z" * 100
    assert sorted(os.listdir(files.root / "out")) == ["a"]


@pytest.mark.parametrize("size", [1, 3, 1 << 20])
def test_line_blocks_are_the_file_cut_after_line_ends(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooted, "_CHUNK", size)
    files = at(tmp_path)
    for content in (b"", b"\n", b"a", b"a\nbb\n\nccc", b"long line without an end", b"a\n" * 5):
        files.write("f", content)
        blocks = list(files.line_blocks("f"))
        assert b"".join(blocks) == content
        assert all(block.endswith(b"\n") for block in blocks[:-1])
