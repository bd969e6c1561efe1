"""What argparse makes of a command line, where its versions differ or it is wrong."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trouper.cli.arguments import Parser

#: Every command that has such an option was a bug of Trouper's, 70, or did as if it had not been given.
WITH_DASHES = (
    (("run", "hello", "--model=--"), "there is no model '--'"),
    (("run", "hello", "--tools=--"), "there are no tools '--'"),
    (("tasks", "--session=--"), "there is no session '--'"),
    (("tasks", "--state=--"), "invalid choice: '--'"),
    (("tasks", "--limit=--"), "'--' is not a whole number"),
    (("journal", "show", "--session=--"), "no session '--'"),
    (("schedules", "create", "--session", "main", "--tool=add", "--arguments=--"), "--arguments is not JSON"),
)


@pytest.mark.parametrize(("arguments", "words"), WITH_DASHES, ids=lambda each: " ".join(each))
def test_an_option_may_be_given_two_dashes(
    trouper: Callable[..., Any], root: Path, arguments: tuple[str, ...], words: str
) -> None:
    done = trouper(*arguments, "--root", root)
    assert done.code == 2 and words in done.err and done.err.count("\n") == 1


def test_behind_the_end_of_options_two_dashes_are_a_value(trouper: Callable[..., Any], root: Path) -> None:
    assert trouper("memory", "set", "--root", root, "--", "a", "b", "--").code == 0
    assert trouper("memory", "show", "a", "b", "--root", root).out.strip() == '"--"'


@pytest.mark.parametrize(
    ("arguments", "options", "values"),
    [
        (["--x=--", "a"], "--", ["a"]),
        (["--", "--x", "--"], None, ["--x", "--"]),
        (["a", "--", "b"], None, ["a", "b"]),
        (["--x", "--y", "--"], None, None),
        (["--", "--", "--"], None, ["--", "--"]),
        (["--"], None, []),
    ],
)
def test_only_the_first_that_stands_alone_ends_the_options(
    arguments: list[str], options: str | None, values: list[str] | None
) -> None:
    parser = Parser(prog="x", exit_on_error=False)
    parser.add_argument("--x")
    parser.add_argument("values", nargs="*")
    if values is None:
        with pytest.raises(Exception, match="expected one argument"):
            parser.parse_args(arguments)
    else:
        found = parser.parse_args(arguments)
        assert (found.x, found.values) == (options, values)


def test_what_is_no_option_is_named_as_it_was_given(trouper: Callable[..., Any], root: Path) -> None:
    done = trouper("sessions", "show", "--root", root, "--", "main", "--")
    assert done.code == 2 and "unrecognized arguments: --;" in done.err


@pytest.mark.parametrize(
    "named", ["--root", "--root, from there", "TROUPER_ROOT", "--profile", "TROUPER_PROFILE", "DIR"]
)
def test_a_command_that_is_to_be_typed_finds_the_root_wherever_it_is_typed(
    trouper: Callable[..., Any], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """Command line: what was to be typed looked at the default profile."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    place = tmp_path / ("trouper/profiles/-mine" if "PROFILE" in named.upper() else "it's $HOME")
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    root.rename(place)
    there: list[object] = []
    with monkeypatch.context() as before:
        match named:
            case "--root" | "DIR":
                there = [place] if named == "DIR" else ["--root", place]
            case "--root, from there":
                before.chdir(tmp_path)
                there = ["--root", place.name]
            case "--profile":
                there = ["--profile=-mine"]
            case _:
                before.setenv(named, str(place) if named == "TROUPER_ROOT" else place.name)
        asked = ("journal", "show", "--session", "nobody") if named == "DIR" else ("tasks", "show", "task_none")
        refused = trouper(*asked, *there)
    assert refused.code == 2, refused
    program, *typed = shlex.split(refused.err.split("`")[1])
    assert program == "trouper" and typed[0] == asked[0]
    found = trouper(*typed)
    assert found.code == 0 and ("main" in found.out if named == "DIR" else "dig" in found.out)


def test_where_no_root_is_named_a_command_is_typed_without_one(
    trouper: Callable[..., Any], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one was, in a command before this one."""
    trouper("tasks", "--root", root)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    (tmp_path / "trouper/profiles").mkdir(mode=0o700, parents=True)
    root.rename(tmp_path / "trouper/profiles/default")
    assert trouper("tasks", "show", "task_none").err.endswith("; `trouper tasks` lists them\n")
