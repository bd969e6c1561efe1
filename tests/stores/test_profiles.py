"""Profiles (B23): list, create, copy, rename, delete, set default."""

from __future__ import annotations

import os
import socket
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trouper._errors import ConfigError, InvalidName
from trouper.journal.disk import OsDisk
from trouper.stores.profiles import ProfileBusy, ProfileExists, ProfileNotFound, Profiles, default_root


@pytest.fixture
def profiles(tmp_path: Path) -> Profiles:
    return Profiles(tmp_path / "data")


def test_there_is_none_at_first_and_the_default_has_a_name(profiles: Profiles) -> None:
    assert profiles.names() == () and profiles.default() == "default"


def test_a_profile_is_a_directory_of_the_users_own(profiles: Profiles) -> None:
    root = profiles.create("work")
    assert root == profiles.path("work") and root.is_dir()
    assert stat.S_IMODE(root.stat().st_mode) == 0o700 == stat.S_IMODE(root.parent.stat().st_mode)
    profiles.create("home")
    assert profiles.names() == ("home", "work")


def test_the_default_can_be_chosen_and_follows_a_rename(profiles: Profiles) -> None:
    profiles.create("work")
    profiles.set_default("work")
    assert Profiles(profiles._base).default() == "work"
    profiles.rename("work", "office")
    assert profiles.default() == "office" and profiles.names() == ("office",)
    profiles.delete("office")
    assert profiles.default() == "default" and profiles.names() == ()


def test_a_copy_has_everything_but_the_lock(profiles: Profiles, tmp_path: Path) -> None:
    root = profiles.create("work")
    (root / "files" / "s").mkdir(parents=True)
    (root / "files" / "s" / "lock").write_text("a session's file that is called so")
    (root / "lock").write_text("{}")
    secret = root / "secrets.json"
    secret.write_text("{}")
    secret.chmod(0o600)
    (tmp_path / "outside").write_text("not the profile's")
    (root / "link").symlink_to(tmp_path / "outside")
    copy = profiles.copy("work", "spare")
    assert (copy / "files" / "s" / "lock").exists() and not (copy / "lock").exists()
    assert stat.S_IMODE((copy / "secrets.json").stat().st_mode) == 0o600
    assert (copy / "link").is_symlink()
    assert profiles.names() == ("spare", "work")


def test_a_copy_leaves_out_what_holds_no_data(profiles: Profiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """B23: a killed process leaves its control socket behind, and a tool may leave a pipe; a profile with either could not be copied."""
    root = profiles.create("work")
    (root / "kept").write_text("kept")
    os.mkfifo(root / "pipe")
    monkeypatch.chdir(root)  # The whole path may be longer than a socket's address.
    with socket.socket(socket.AF_UNIX) as left:
        left.bind("control.sock")
    copy = profiles.copy("work", "spare")
    assert os.listdir(copy) == ["kept"] and (copy / "kept").read_text() == "kept"


def test_a_profile_in_use_is_left_alone(profiles: Profiles) -> None:
    """J9: by the very lock that a runtime takes."""
    root = profiles.create("work")
    lock = OsDisk().lock(str(root / "lock"), "{}")
    try:
        for call in (
            lambda: profiles.delete("work"),
            lambda: profiles.rename("work", "x"),
            lambda: profiles.copy("work", "x"),
        ):
            with pytest.raises(ProfileBusy, match="'work' is in use"):
                call()
    finally:
        lock.close()
    assert profiles.names() == ("work",)
    profiles.delete("work")
    assert profiles.names() == ()


def test_names_that_are_taken_missing_or_invalid_are_named_errors(profiles: Profiles) -> None:
    """B22."""
    profiles.create("a")
    profiles.create("b")
    with pytest.raises(ProfileExists):
        profiles.create("a")
    with pytest.raises(ProfileExists):
        profiles.rename("a", "b")
    with pytest.raises(ProfileExists):
        profiles.copy("a", "b")
    for call in (lambda: profiles.delete("c"), lambda: profiles.set_default("c"), lambda: profiles.copy("c", "d")):
        with pytest.raises(ProfileNotFound, match="there is: a, b"):
            call()
    for name in ("..", "a/b", "", "a~copy"):
        with pytest.raises(InvalidName):
            profiles.create(name)


def test_a_link_is_not_a_profile(profiles: Profiles, tmp_path: Path) -> None:
    profiles.create("a")
    (tmp_path / "elsewhere").mkdir()
    profiles.path("link").symlink_to(tmp_path / "elsewhere")
    assert profiles.names() == ("a",)
    with pytest.raises(ProfileNotFound):
        profiles.delete("link")
    with pytest.raises(ProfileExists):
        profiles.create("link")


def test_of_two_who_copy_under_one_name_one_is_refused(profiles: Profiles) -> None:
    """B23: the copy could be a mixture of both, and whoever was refused was not told why. Twenty times, since one may happen to be done before the other begins."""
    for source in ("a", "b"):
        profiles.create(source)
        for number in range(20):
            (profiles.path(source) / f"{source}{number}").write_text(source)

    for round in range(20):
        both = threading.Barrier(2)

        def copy(source: str, name: str = f"copy{round}", both: threading.Barrier = both) -> bool:
            both.wait()
            try:
                profiles.copy(source, name)
            except ProfileExists:
                return False
            return True

        with ThreadPoolExecutor(2) as threads:
            assert sorted(threads.map(copy, ("a", "b"))) == [False, True]
        held = os.listdir(profiles.path(f"copy{round}"))
        assert len(held) == 20 and len({name[0] for name in held}) == 1


def test_of_two_who_delete_one_profile_one_is_told_that_it_is_gone(profiles: Profiles) -> None:
    """B23: whoever came second was told in words of the operating system's. Twenty times, for the same reason."""
    for round in range(20):
        name, both = f"old{round}", threading.Barrier(2)
        profiles.create(name)

        def delete(_: int, name: str = name, both: threading.Barrier = both) -> bool:
            both.wait()
            try:
                profiles.delete(name)
            except ProfileNotFound:
                return False
            return True

        with ThreadPoolExecutor(2) as threads:
            assert sorted(threads.map(delete, range(2))) == [False, True]


def test_what_a_crash_left_half_done_is_no_profile(profiles: Profiles) -> None:
    profiles.create("a")
    (profiles.path("a").parent / "b~copy").mkdir()
    (profiles.path("a").parent / "a~deleted").mkdir()
    assert profiles.names() == ("a",)
    profiles.copy("a", "b")
    profiles.delete("a")
    assert profiles.names() == ("b",)


@pytest.mark.parametrize("held", [b"", b"../../etc\n", b"\xff\xfe", b"two\nlines"])
def test_a_file_that_names_no_default_is_named_itself(profiles: Profiles, held: bytes) -> None:
    """B23: whoever gave no name is not told that theirs is wrong."""
    file = profiles._base / "default"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(held)
    with pytest.raises(ConfigError, match="has to hold the name of the default profile") as caught:
        profiles.default()
    assert str(file) in caught.value.message


def test_the_default_root_is_in_the_users_data_directory_and_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B23: platformdirs."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    root = default_root()
    assert root.is_dir() and root.is_relative_to(tmp_path) and root.name == "default"
    assert default_root() == root
    profiles = Profiles()
    profiles.create("other")
    profiles.set_default("other")
    assert default_root() == root.with_name("other")
