"""Code that a root names runs as whoever opens it: only its user may have written it."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path

import pytest
from terminal_driver import run

from trouper.cli.configuration import read_configuration
from trouper.cli.ownership import NotOurs
from trouper.journal import open_reader

STRANGER = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
TOOLS = """
import pathlib
from trouper import tool

(pathlib.Path(__file__).parent.parent / "has-run").touch()

@tool
def mine() -> str:
    "Mine."
    return ""
"""


@pytest.fixture
def planted(root: Path) -> Path:
    """A root with a journal, a configuration, and the tools that it names."""
    (root / "mine.py").write_text(TOOLS)
    (root / "trouper.toml").write_text("tools = ['mine.py']\n")
    (root / "mine.py").chmod(0o600)
    (root / "trouper.toml").chmod(0o600)
    return root


def in_the_hands_of_others(root: Path, how: str) -> None:
    match how:
        case "root":
            os.chown(root, STRANGER, STRANGER)
        case "link":
            root.rename(root.with_name("theirs"))
            root.symlink_to(root.with_name("theirs"))
            os.lchown(root, STRANGER, STRANGER)
        case "configuration" | "tools":
            os.chown(root / {"configuration": "trouper.toml", "tools": "mine.py"}[how], STRANGER, STRANGER)
        case "open root":
            root.chmod(0o777)
        case "open configuration":
            root.chmod(0o755)
            (root / "trouper.toml").chmod(0o666)
        case _:
            root.chmod(0o755)
            (root / "mine.py").chmod(0o666)


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("root", marks=as_root),
        pytest.param("link", marks=as_root),
        pytest.param("configuration", marks=as_root),
        pytest.param("tools", marks=as_root),
        "open root",
        "open configuration",
        "open tools",
    ],
)
def test_what_another_user_may_have_written_does_not_run(trouper, planted: Path, how: str) -> None:
    """Security, files (D): a wrong-owner directory, a planted file. The tools ran before the root was refused."""
    ran = planted.parent / "has-run"
    in_the_hands_of_others(planted, how)
    for command in (("run", "hi"), ("chat",), ("memory", "set", "s", "k", "v")):
        done = trouper(*command, "--root", planted)
        assert done.code == 77 and done.err.count("\n") == 1 and "run as you" in done.err
    found = trouper("doctor", "--root", planted)
    assert found.code == 1 and "problem  configuration: " in found.out and "would run as you" in found.out
    assert not ran.exists()
    assert trouper("sessions", "--root", planted).code == 0
    assert list(open_reader(planted).records())


def test_a_name_that_the_locale_cannot_say_is_looked_at_as_well(planted: Path) -> None:
    """The file that is looked at is the one that would run."""
    (planted / "mine.py").rename(planted / "täglich.py")
    (planted / "trouper.toml").write_text("tools = ['täglich.py']\n")
    planted.chmod(0o755)
    (planted / "täglich.py").chmod(0o666)
    done = run("run", "hi", "--root", str(planted), LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert done.returncode == 77 and "run as you" in done.stderr, done
    assert not (planted.parent / "has-run").exists()


def test_what_only_its_user_may_write_runs(trouper, planted: Path) -> None:
    """Whatever the modes of the files are: in a directory that nobody else may enter nobody gets at them."""
    (planted / "mine.py").chmod(0o666)
    (planted / "trouper.toml").chmod(0o666)
    planted.chmod(0o700)
    assert trouper("run", "hi", "--root", planted).code == 0
    assert (planted.parent / "has-run").exists()


@pytest.mark.parametrize("members", [[], ["somebody"]])
def test_a_group_that_is_ones_own_is_nobody_else(
    planted: Path, monkeypatch: pytest.MonkeyPatch, members: list[str]
) -> None:
    """Many systems give each user a group of one's own, and make whatever a user makes writable for it."""
    user, group = pwd.getpwuid(os.geteuid()), planted.stat().st_gid
    own = grp.struct_group((user.pw_name, "x", group, members))
    monkeypatch.setattr(
        pwd, "getpwuid", lambda _: pwd.struct_passwd((user.pw_name, "x", user.pw_uid, group, "", "", ""))
    )
    monkeypatch.setattr(grp, "getgrgid", lambda _: own)
    planted.chmod(0o775)
    (planted / "trouper.toml").chmod(0o664)
    if members:
        with pytest.raises(NotOurs, match="can be written by other users"):
            read_configuration(planted)
    else:
        assert read_configuration(planted).tools == ("mine.py",)


@as_root
@pytest.mark.parametrize("group", [0, STRANGER])
def test_a_group_with_ones_own_number_is_nobody_else_where_neither_has_a_name(
    planted: Path, monkeypatch: pytest.MonkeyPatch, group: int
) -> None:
    """`docker run --user $(id -u):$(id -g)`: the container knows neither. What the user had made was refused there, and nowhere else."""
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    monkeypatch.setattr(grp, "getgrgid", {}.__getitem__)
    os.chown(planted, -1, group)
    os.chown(planted / "trouper.toml", -1, group)
    planted.chmod(0o775)
    (planted / "trouper.toml").chmod(0o664)
    if group:
        with pytest.raises(NotOurs, match="can be written by other users"):
            read_configuration(planted)
    else:
        assert read_configuration(planted).tools == ("mine.py",)
