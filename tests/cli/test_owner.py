"""Who has a root open, as it is looked up without a disturbance."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from trouper.cli import owner
from trouper.cli.owner import NAME, owner_of
from trouper.journal import open_log


def shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *lines: str) -> None:
    """What the system says of locks."""
    path = tmp_path / "locks"
    path.write_text("".join(f"{number}: {line}\n" for number, line in enumerate(lines, 1)))
    monkeypatch.setattr(owner, "_LOCKS", path)


def test_an_owner_is_seen_while_it_has_the_root_open(tmp_path: Path) -> None:
    """J9."""
    log = open_log(tmp_path / "root")
    assert owner_of(tmp_path / "root") == os.getpid()
    log.close()
    assert owner_of(tmp_path / "root") is None


def test_a_lock_on_another_file_with_the_same_number_owns_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J9: each file system has numbers of its own. Every change was refused, and blamed on a process that was gone."""
    root = tmp_path / "root"
    open_log(root).close()
    numbers = [os.stat(place).st_ino for place in (root / "lock", root)]
    other = os.getpid() + 1
    shown(
        monkeypatch,
        tmp_path,
        *(f"FLOCK  ADVISORY  WRITE {other} 99:99:{number} 0 EOF" for number in numbers),
        f"-> FLOCK  ADVISORY  WRITE {os.getpid()} 99:99:{numbers[0]} 0 EOF",
        f"POSIX  ADVISORY  WRITE {os.getpid()} 99:99:{numbers[0]} 0 EOF",
    )
    assert owner_of(root) is None


def test_an_owner_is_seen_where_the_system_shows_another_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J9: as overlay file systems do; whoever holds the lock has written its number into the file."""
    root = tmp_path / "root"
    open_log(root).close()
    inode = os.stat(root / "lock").st_ino
    shown(monkeypatch, tmp_path, f"FLOCK  ADVISORY  WRITE {os.getpid()} 99:99:{inode} 0 EOF")
    assert owner_of(root) == os.getpid()


def test_an_owner_whose_lock_file_was_deleted_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """J9: it has locked the directory too."""
    root = tmp_path / "root"
    open_log(root).close()
    found = os.stat(root)
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    shown(monkeypatch, tmp_path, f"FLOCK  ADVISORY  WRITE {os.getpid()} {place} 0 EOF")
    (root / "lock").unlink()
    assert owner_of(root) == 0


def test_an_owner_that_no_list_shows_is_seen_while_it_takes_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J9, B10: in another container. What it worked on had no process, and its calls could not be approved any more."""
    root = tmp_path / "root"
    shown(monkeypatch, tmp_path)
    log = open_log(root)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        monkeypatch.chdir(root)  # An address has room for about 100 bytes.
        listener.bind(NAME)
        listener.listen()
        assert owner_of(root) == os.getpid()
        (root / "lock").unlink()
        assert owner_of(root) == 0
    log.close()
    assert owner_of(root) is None
