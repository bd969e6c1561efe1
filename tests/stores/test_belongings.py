"""What belongs to a root besides its journal, copied as it is, and nothing through a link."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from trouper.stores.belongings import DEPTH_MAX, Brought, bring_along


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root" / "files" / "main").mkdir(parents=True)
    (tmp_path / "new").mkdir()
    return tmp_path / "root"


def test_what_is_there_is_copied_with_modes_and_times(root: Path) -> None:
    """B24: what was private stays so."""
    (root / "secrets").mkdir(mode=0o700)
    for name, mode in (("secrets/main.json", 0o600), ("files/main/run", 0o755), ("files/main/shut", 0o400)):
        (root / name).write_bytes(b"x" * 3_000_000)
        (root / name).chmod(mode)
        os.utime(root / name, ns=(1_000, 2_000_000_001))
    (root / "files" / "main" / "closed").mkdir(mode=0o500)
    (root / "other").write_text("not asked for")
    new = root.parent / "new"
    assert bring_along(root, new, ("files", "kv", "secrets")) == Brought(("files", "secrets"), ())
    assert sorted(os.listdir(new)) == ["files", "secrets"]
    for path in [*root.glob("files/**/*"), *root.glob("secrets/**/*")]:
        before, after = path.stat(), (new / path.relative_to(root)).stat()
        assert (before.st_mode, before.st_mtime_ns) == (after.st_mode, after.st_mtime_ns), path
        assert path.is_dir() or path.read_bytes() == (new / path.relative_to(root)).read_bytes()


def test_links_stay_links_and_what_holds_no_data_is_told(root: Path) -> None:
    """security.md, row Paths: a link that a tool has made brings in nothing that is not the root's."""
    theirs = root.parent / "theirs"
    theirs.mkdir()
    (theirs / "key").write_text("secret")
    main = root / "files" / "main"
    (main / "directory").symlink_to(theirs)
    (main / "file").symlink_to("../../../theirs/key")
    (main / "nowhere").symlink_to("gone")
    os.mkfifo(main / "pipe")
    (root / "kv").symlink_to(theirs)
    (root / "trouper.toml").symlink_to("/etc/passwd")
    new = root.parent / "new"
    brought = bring_along(root, new, ("files", "kv", "secrets", "trouper.toml"))
    assert brought == Brought(("files",), ("files/main/pipe", "kv", "trouper.toml"))
    assert {path.name: os.readlink(path) for path in (new / "files" / "main").iterdir()} == {
        "directory": str(theirs),
        "file": "../../../theirs/key",
        "nowhere": "gone",
    }


def test_what_may_not_be_read_keeps_nothing_else_from_being_copied(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command of the model's may have made it so."""
    (root / "files" / "main" / "shut").write_text("x")
    (root / "files" / "main" / "then").write_text("y")
    given = os.open

    def refusing(name: str | Path, *rest: int, dir_fd: int | None = None) -> int:
        if name == "shut":
            raise PermissionError(errno.EACCES, "Permission denied", name)
        return given(name, *rest, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refusing)
    assert bring_along(root, root.parent / "new", ("files",)) == Brought(("files",), ("files/main/shut",))
    assert os.listdir(root.parent / "new" / "files" / "main") == ["then"]


@pytest.mark.parametrize(
    ("call", "bad"), [("stat", "bad"), ("open", "bad"), ("listdir", "shut"), ("read", "bad")], ids=lambda it: it
)
def test_what_a_damaged_disk_cannot_read_keeps_nothing_else_from_being_copied(
    root: Path, monkeypatch: pytest.MonkeyPatch, call: str, bad: str
) -> None:
    """J10: such a disk is why a root is repaired. It could not be, because of any one file."""
    main = root / "files" / "main"
    (main / "shut").mkdir()
    for name in ("bad", "then"):
        (main / name).write_text("x")
    damaged, works = (main / bad).stat().st_ino, getattr(os, call)

    def failing(name: str | int, *rest: int, **options: int) -> object:
        if name == bad or (isinstance(name, int) and os.fstat(name).st_ino == damaged):
            raise OSError(errno.EIO, "Input/output error", name)
        return works(name, *rest, **options)

    monkeypatch.setattr(os, call, failing)
    assert bring_along(root, root.parent / "new", ("files",)) == Brought(("files",), (f"files/main/{bad}",))
    monkeypatch.undo()
    assert {"bad", "shut", "then"} - set(os.listdir(root.parent / "new" / "files" / "main")) == {bad}


def test_what_is_left_out_as_a_whole_is_not_said_to_be_copied(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "kv").mkdir()
    works = os.listdir

    def refusing(directory: int) -> list[str]:
        if os.fstat(directory).st_ino == (root / "kv").stat().st_ino:
            raise PermissionError(errno.EACCES, "Permission denied")
        return works(directory)

    monkeypatch.setattr(os, "listdir", refusing)
    assert bring_along(root, root.parent / "new", ("files", "kv")) == Brought(("files",), ("kv",))


def test_the_root_may_be_known_by_a_link_to_it(root: Path) -> None:
    (root.parent / "link").symlink_to(root)
    assert bring_along(root.parent / "link", root.parent / "new", ("files",)) == Brought(("files",), ())


def test_what_becomes_a_link_while_it_is_looked_at_is_not_followed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """security.md, row Paths: swap between check and open."""
    (root / "files" / "main" / "a").write_text("mine")
    (root.parent / "theirs").mkdir()
    (root.parent / "theirs" / "a").write_text("secret")
    look = os.stat

    def swapping(name: str, **options: object) -> os.stat_result:
        found = look(name, **options)  # type: ignore[arg-type]
        if name == "main" and stat.S_ISDIR(found.st_mode):
            (root / "files" / "main").rename(root / "moved")
            (root / "files" / "main").symlink_to(root.parent / "theirs")
        return found

    monkeypatch.setattr(os, "stat", swapping)
    with pytest.raises(OSError):
        bring_along(root, root.parent / "new", ("files",))
    monkeypatch.undo()
    assert not list((root.parent / "new").rglob("a"))


def test_directories_without_end_are_an_error_that_names_them(root: Path) -> None:
    deep = root / "files"
    for _ in range(DEPTH_MAX + 5):
        deep = deep / "d"
    deep.mkdir(parents=True)
    with pytest.raises(OSError, match="directories in one another") as raised:
        bring_along(root, root.parent / "new", ("files",))
    assert raised.value.errno == errno.ELOOP and str(raised.value.filename).startswith(str(root / "files" / "d"))
