"""No path leads out of the session's files (T17): hostile paths on a real tree, with the operator's files all around it."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from trouper.tools.guards.refusal import Refused
from trouper.tools.guards.rooted import RootedFiles

SECRET = b"SECRET of the operator"
#: What paths are made of: names that are there, ways up, links, special files, and what only looks like a name.
COMPONENTS = st.sampled_from(
    [
        *(
            "..",
            ".",
            "",
            "a",
            "sub",
            "one",
            "one-evil",
            "secret",
            "link_out",
            "link_up",
            "link_in",
            "dangling",
            "hard",
            "pipe",
            "new",
        ),
        *(
            "...",
            ".. ",
            "..\0",
            "\0",
            "a\n",
            "%2e%2e",
            "..\\",
            "~",
            "état",
            "e\u0301tat",
            "\u202e..",
            "x" * 255,
            "x" * 256,
            "\ud800",
        ),
        *("proc", "self", "root", "etc", "passwd", "/", "//", "\u2215", "\uff0e\uff0e", "C:", "con"),
    ]
)
PATHS = st.one_of(
    st.lists(COMPONENTS, min_size=1, max_size=8).map("/".join),
    st.lists(COMPONENTS, min_size=1, max_size=6).map(lambda parts: "/" + "/".join(parts)),
    st.text(max_size=40),
)
OPERATIONS = st.sampled_from(
    [
        "read",
        "write",
        "edit",
        "list",
        "stat",
        "delete",
        "delete_all",
        "rename",
        "rename_onto",
        "make_directory",
        "walk",
        "open_directory",
    ]
)


def build(base: Path) -> RootedFiles:
    files = RootedFiles(base / "state", "files", "one")
    files.write("a", b"mine")
    files.write("sub/a", b"mine too")
    inside = files.root
    for place in (base / "secret", base / "state" / "secret", base / "state" / "files" / "secret"):
        place.write_bytes(SECRET)
    shutil.copytree(inside, base / "state" / "files" / "one-evil")
    (base / "state" / "files" / "one-evil" / "secret").write_bytes(SECRET)
    (inside / "link_out").symlink_to(base / "secret")
    (inside / "link_up").symlink_to("..")
    (inside / "sub" / "link_up").symlink_to("/")
    (inside / "link_in").symlink_to("sub")
    (inside / "dangling").symlink_to(base / "planted")
    os.link(base / "secret", inside / "hard")
    os.mkfifo(inside / "pipe")
    return files


def outside(base: Path) -> dict[str, str]:
    """Everything but the session's files, with contents and modes."""
    found = {}
    for place in sorted(base.rglob("*")):
        name = str(place.relative_to(base))
        if name.startswith("state/files/one/"):
            continue
        status = place.lstat()
        content = hashlib.sha256(place.read_bytes()).hexdigest() if place.is_file() else ""
        found[name] = f"{status.st_mode:o} {content}"
    return found


def operation(files: RootedFiles, name: str, path: str) -> Callable[[], object]:
    def read_directory() -> list[str]:
        descriptor = files.open_directory(path)
        try:
            return os.listdir(descriptor)
        finally:
            os.close(descriptor)

    return {
        "read": lambda: files.read(path),
        "write": lambda: files.write(path, b"written"),
        "edit": lambda: files.edit(path, lambda data: data + b"!"),
        "list": lambda: files.list(path),
        "stat": lambda: files.stat(path),
        "delete": lambda: files.delete(path),
        "delete_all": lambda: files.delete(path, recursive=True),
        "rename": lambda: files.rename("a", path),
        "rename_onto": lambda: files.rename(path, "sub/here", replace=True),
        "make_directory": lambda: files.make_directory(path),
        "walk": lambda: list(files.walk(path)),
        "open_directory": read_directory,
    }[name]


@given(steps=st.lists(st.tuples(OPERATIONS, PATHS), min_size=1, max_size=6))
@settings(max_examples=120, deadline=None)
def test_nothing_outside_is_read_or_changed(steps: list[tuple[str, str]]) -> None:
    """Each step succeeds inside or is refused in words; what is outside stays as it was, and none of it is ever told."""
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory)
        files = build(base)
        before = outside(base)
        for name, path in steps:
            try:
                told = operation(files, name, path)()
            except Refused as error:
                assert error.message
                assert directory not in error.message
                continue
            assert SECRET not in repr(told).encode()
            assert "one-evil" not in repr(told) or "one-evil" in "".join(each for _, each in steps)
        assert outside(base) == before
        assert files.root.is_dir()
        assert not any(".trouper-tmp" in name for name in os.listdir(files.root))
