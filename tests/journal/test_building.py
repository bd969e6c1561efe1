"""A new journal beside its place: what is left of one is taken away only by who may."""

from __future__ import annotations

from pathlib import Path

import pytest

from trouper.journal import JournalExists, JournalLocked, OsDisk, open_log, repair
from trouper.journal.building import MARKER_NAME, building


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_it_has_its_name_when_the_block_ends_and_nothing_else_is_left(tmp_path: Path) -> None:
    """J10."""
    place = tmp_path / "new"
    with building(OsDisk(), str(place)) as unfinished:
        Path(unfinished).mkdir()
        assert not place.exists()
    assert names(tmp_path) == ["new"]


def test_a_block_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """I21."""
    with pytest.raises(ZeroDivisionError), building(OsDisk(), str(tmp_path / "new")) as unfinished:
        Path(unfinished, "blobs").mkdir(parents=True)
        raise ZeroDivisionError
    assert names(tmp_path) == []


def test_of_a_link_in_what_is_taken_away_only_the_link_goes(tmp_path: Path) -> None:
    """I21: what it leads to is somebody's."""
    theirs = tmp_path / "theirs" / "kept"
    theirs.mkdir(parents=True)
    with pytest.raises(ZeroDivisionError), building(OsDisk(), str(tmp_path / "new")) as unfinished:
        Path(unfinished, "files").mkdir(parents=True)
        Path(unfinished, "files", "link").symlink_to(tmp_path / "theirs")
        raise ZeroDivisionError
    assert names(tmp_path) == ["theirs", "theirs/kept"]


def test_what_nobody_may_write_to_is_taken_away_as_well(users_own: Path) -> None:
    """I21: a copy has the modes of what it was made of. It stood in the way of every other try."""
    with pytest.raises(ZeroDivisionError), building(OsDisk(), str(users_own / "new")) as unfinished:
        shut = Path(unfinished, "files", "shut")
        (shut / "deeper").mkdir(parents=True)
        (shut / "link").symlink_to(users_own)
        for path in (shut / "deeper", shut):
            path.chmod(0o500)
        raise ZeroDivisionError
    assert names(users_own) == []


def test_while_another_is_at_it_nothing_is_taken_away(tmp_path: Path) -> None:
    """J9: the marker is locked for as long."""
    open_log(tmp_path / "old").close()
    with building(OsDisk(), str(tmp_path / "new")) as unfinished:
        Path(unfinished).mkdir()
        before = names(tmp_path)
        with pytest.raises(JournalLocked, match=r"writing to .*new\.tmp'; wait for it, or give another target"):
            repair(tmp_path / "old", tmp_path / "new")
        assert names(tmp_path) == before
    assert (tmp_path / "new").is_dir() and not (tmp_path / "new.tmp").exists()


def test_what_somebody_else_may_have_made_is_named_and_stays(tmp_path: Path) -> None:
    """J10: a journal that happens to have this name is no part of one that was being made."""
    open_log(tmp_path / "old").close()
    open_log(tmp_path / "new.tmp").close()
    before = names(tmp_path)
    with pytest.raises(JournalExists, match=r"new\.tmp' exists already; give another, or remove it first"):
        repair(tmp_path / "old", tmp_path / "new")
    assert names(tmp_path) == before


def test_what_somebody_has_put_beside_what_is_left_stays(tmp_path: Path) -> None:
    open_log(tmp_path / "old").close()
    (tmp_path / "new.tmp").mkdir()
    (tmp_path / "new.tmp" / MARKER_NAME).touch()
    (tmp_path / "new.tmp" / "mine").touch()
    repair(tmp_path / "old", tmp_path / "new")
    assert names(tmp_path / "new.tmp") == ["mine"]
