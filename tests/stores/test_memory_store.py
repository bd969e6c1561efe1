"""The memory on disk (B21): readable files and a search index, both made from the journal's events."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator
from functools import reduce
from pathlib import Path

import pytest

from trouper._errors import InvalidName
from trouper.core import memory as m
from trouper.core.memory import Memory
from trouper.stores.memory_store import Hit, MemoryStore, open_memory_store


def remembered(*commands: m.MemoryCommand) -> m.Memories:
    memories = m.Memories()
    for command in commands:
        memories = reduce(m.evolve, m.decide(memories, command), memories)
    return memories


FACTS = remembered(
    m.Remember("user", "name", "Ada Lovelace", at=1.0, summary="what she is called"),
    m.Remember("user", "diet", {"likes": ["crème brûlée", "figs"], "grams": 250}, at=2.0),
    m.Remember("project", "deadline", "2026-05-01", at=3.0, summary="Figs are due", ttl_s=100.0),
    m.Remember("project", "motto", "進捗どうですか", at=4.0),
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MemoryStore]:
    store = open_memory_store(tmp_path, FACTS)
    yield store
    store.close()


def found(store: MemoryStore, text: str, **options: object) -> list[str]:
    return [f"{hit.scope}/{hit.key}" for hit in store.search(text, **{"at": 5.0, **options})]  # type: ignore[arg-type]


def test_each_entry_is_a_plain_json_file(store: MemoryStore, tmp_path: Path) -> None:
    """B21: readable on disk as plain JSON files by other programs."""
    path = tmp_path / "memory" / "user" / "diet.json"
    assert path == store.path("user", "diet")
    assert json.loads(path.read_text("utf-8")) == {
        "scope": "user",
        "key": "diet",
        "summary": "",
        "value": {"likes": ["crème brûlée", "figs"], "grams": 250},
        "metadata": {},
        "created": "1970-01-01T00:00:02.000Z",
        "updated": "1970-01-01T00:00:02.000Z",
        "expires": None,
    }
    assert "crème" in path.read_text("utf-8")
    for made in (path, tmp_path / "memory.sqlite3"):
        assert stat.S_IMODE(made.stat().st_mode) == 0o600


def test_search_finds_words_beginnings_accents_and_numbers(store: MemoryStore) -> None:
    """B21: search over text."""
    assert found(store, "lovelace") == ["user/name"]
    assert found(store, "creme bru") == ["user/diet"]
    assert found(store, "250") == ["user/diet"]
    assert found(store, "called ada") == ["user/name"]
    assert found(store, "進捗") == ["project/motto"]
    assert found(store, "どうで") == ["project/motto"]  # Not the beginning of a word: found as it stands.
    assert found(store, "nothing of the kind") == []


def test_keys_count_more_than_summaries_and_these_more_than_values(store: MemoryStore) -> None:
    assert found(store, "figs") == ["project/deadline", "user/diet"]
    assert found(store, "figs", limit=1) == ["project/deadline"]
    assert found(store, "figs", scope="user") == ["user/diet"]


def test_what_has_expired_is_not_found(store: MemoryStore) -> None:
    assert found(store, "figs", at=103.0) == ["user/diet"]


@pytest.mark.parametrize(
    "text",
    [
        '"',
        "'",
        "a AND",
        "NEAR(",
        "*",
        "key:x",
        "--",
        "%",
        "_",
        "\\",
        "a\0b",
        "",
        "   ",
        "(" * 999,
        "x OR 1=1",
        "\ud83d",
    ],
)
def test_no_query_is_an_error(store: MemoryStore, text: str) -> None:
    assert isinstance(store.search(text, at=5.0), tuple)


def test_wildcards_of_sql_are_plain_characters(store: MemoryStore) -> None:
    assert found(store, "%") == [] and found(store, "_") == []


def test_nul_is_no_word_and_hides_none(store: MemoryStore) -> None:
    """B21: searched for alone it is found nowhere, and what stands behind one is found."""
    store.apply(m.MemoryWritten(Memory("user", "odd", "before\0behind the-curtain", 1.0, 1.0)))
    assert found(store, "\0") == [] and found(store, " \0 ") == []
    assert found(store, "behind") == ["user/odd"] and found(store, "e-cur") == ["user/odd"]


def test_scopes_are_names(store: MemoryStore) -> None:
    """B22."""
    with pytest.raises(InvalidName):
        store.search("x", at=5.0, scope="../x")
    with pytest.raises(InvalidName):
        store.path("user", "../../x")


def test_it_follows_events(store: MemoryStore, tmp_path: Path) -> None:
    for command in (
        m.Remember("user", "name", "Grace Hopper", at=9.0),
        m.Forget("project", "motto", at=9.0),
        m.Forget("project", "deadline", at=9.0),
    ):
        for event in m.decide(FACTS, command):
            store.apply(event)
    assert found(store, "hopper") == ["user/name"] and found(store, "lovelace") == []
    assert json.loads(store.path("user", "name").read_text())["value"] == "Grace Hopper"
    assert not (tmp_path / "memory" / "project").exists()


def test_opening_again_changes_nothing(store: MemoryStore, tmp_path: Path) -> None:
    store.close()
    again = MemoryStore(tmp_path)
    assert again.reconcile(FACTS) == 0
    again.close()


@pytest.mark.parametrize(
    "damage",
    ["delete files", "delete index", "garble index", "empty index", "old index", "edit a file", "stray file", "all"],
)
def test_whatever_is_missing_damaged_or_behind_is_put_right(tmp_path: Path, damage: str) -> None:
    """B21: projections, rebuilt from the journal."""
    open_memory_store(
        tmp_path, remembered(m.Remember("user", "name", "old", at=0.5), m.Remember("gone", "key", 1, at=0.5))
    ).close()
    open_memory_store(tmp_path, FACTS).close()
    index = tmp_path / "memory.sqlite3"
    match damage:
        case "delete files":
            for path in (tmp_path / "memory").rglob("*.json"):
                path.unlink()
        case "delete index":
            index.unlink()
        case "garble index":
            index.write_bytes(index.read_bytes()[:3_000] + b"\xff" * 3_000)
        case "empty index":
            index.write_bytes(b"")
        case "old index":
            import sqlite3

            connection = sqlite3.connect(index)
            connection.execute("PRAGMA user_version = 77")
            connection.commit()
            connection.close()
        case "edit a file":
            (tmp_path / "memory" / "user" / "name.json").write_text("{}")
        case "stray file":
            named = (tmp_path / "memory" / "user" / "name.json").read_text().replace('"name"', '"unknown"')
            (tmp_path / "memory" / "user" / "unknown.json").write_text(named)
        case _:
            index.unlink()
            for path in (tmp_path / "memory").rglob("*.json"):
                path.write_text("")
    store = open_memory_store(tmp_path, FACTS)
    try:
        assert found(store, "lovelace") == ["user/name"] and found(store, "crème") == ["user/diet"]
        files = sorted(str(path.relative_to(tmp_path / "memory")) for path in (tmp_path / "memory").rglob("*.json"))
        assert files == ["project/deadline.json", "project/motto.json", "user/diet.json", "user/name.json"]
        assert json.loads(store.path("user", "name").read_text())["value"] == "Ada Lovelace"
    finally:
        store.close()


def test_what_has_not_the_form_of_an_entry_is_somebodys_and_stays(tmp_path: Path) -> None:
    """B21: the directory may have been there before it was Trouper's; in it only what was made from the journal is put right."""
    theirs = tmp_path / "memory" / "notes" / "plan.json"
    theirs.parent.mkdir(parents=True)
    theirs.write_text('{"scope": "all", "key": "of it"}')
    (tmp_path / "memory" / "empty").mkdir()
    for _ in range(2):
        open_memory_store(tmp_path, FACTS).close()
    assert theirs.read_text() == '{"scope": "all", "key": "of it"}' and (tmp_path / "memory" / "empty").is_dir()


@pytest.mark.parametrize("what", ["memory", "memory/user"])
def test_nothing_is_written_or_removed_where_a_link_leads(tmp_path: Path, what: str) -> None:
    """B21, security, paths: a symlinked parent. What stands there is another root's, say."""
    elsewhere, root = tmp_path / "elsewhere", tmp_path / "root"
    gone = remembered(m.Remember("user", "gone", "soon", at=1.0), m.Remember("user", "name", "Grace", at=2.0))
    open_memory_store(elsewhere, gone).close()
    (elsewhere / "memory" / "user" / ".name.json.new").touch()
    root.mkdir()
    if what == "memory":
        (root / "memory").symlink_to(elsewhere / "memory")
    else:
        open_memory_store(root, gone).close()
        shutil.rmtree(root / "memory" / "user")
        (root / "memory" / "user").symlink_to(elsewhere / "memory" / "user")
    before = {path: path.read_bytes() for path in (elsewhere / "memory").rglob("*.json*")}
    with pytest.raises(NotADirectoryError, match="it is a link"):
        open_memory_store(root, FACTS)
    assert before and {path: path.read_bytes() for path in (elsewhere / "memory").rglob("*.json*")} == before


def test_a_database_of_somebody_elses_in_the_place_of_the_index_is_left_as_it_is(tmp_path: Path) -> None:
    """B21: an index that is damaged is made anew; this is somebody's data."""
    import sqlite3

    index = tmp_path / "memory.sqlite3"
    connection = sqlite3.connect(index)
    connection.execute("CREATE TABLE words (word TEXT)")
    connection.execute("CREATE TABLE mine (entry TEXT)")
    connection.commit()
    connection.close()
    before = index.read_bytes()
    with pytest.raises(FileExistsError, match="move it away"):
        open_memory_store(tmp_path, FACTS)
    assert index.read_bytes() == before and [path.name for path in tmp_path.glob("memory.*")] == ["memory.sqlite3"]


def test_what_is_no_database_at_all_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """B21: it may be what a broken disk has left of an index, or somebody's notes."""
    index = tmp_path / "memory.sqlite3"
    for number, text in enumerate(("my notes", "more notes"), 1):
        index.write_text(text)
        store = open_memory_store(tmp_path, FACTS)
        assert found(store, "lovelace") == ["user/name"]
        store.close()
        assert (tmp_path / f"memory.sqlite3.aside-{number}").read_text() == text
    assert "is no index of the memory" in caplog.text


def test_what_a_killed_process_was_writing_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B21: it may have been forgotten since, and is there to be read until the same key is written again."""
    store, forgotten = open_memory_store(tmp_path, FACTS), m.Remember("gone", "a.json", "nobody is to know", at=6.0)

    def killed(*_: object) -> None:
        raise SystemExit

    for command in (forgotten, m.Remember("user", "diet", "figs", at=6.0)):
        for event in m.decide(FACTS, command):
            with monkeypatch.context() as dying, pytest.raises(SystemExit):
                dying.setattr(os, "replace", killed)
                store.apply(event)
    store.close()
    (tmp_path / "memory" / "user" / ".theirs.new").write_text("none of ours")
    assert len(list((tmp_path / "memory").rglob(".*.json.new"))) == 2
    open_memory_store(tmp_path, FACTS).close()
    left = {path.name for path in (tmp_path / "memory").rglob("*") if path.suffix != ".json"}
    assert left == {"project", "user", ".theirs.new"}


def test_an_index_whose_parts_contradict_each_other_is_made_anew(tmp_path: Path) -> None:
    """B21: a projection, rebuilt from the journal; also where only writing to it shows that something is wrong."""
    open_memory_store(tmp_path, remembered(m.Remember("user", "name", "old", at=0.5))).close()
    import sqlite3

    index = sqlite3.connect(tmp_path / "memory.sqlite3")
    index.execute("INSERT INTO words (rowid, key) SELECT max(id) + 1, 'nobody' FROM entry")
    index.commit()
    index.close()
    store = open_memory_store(tmp_path, FACTS)
    try:
        assert found(store, "lovelace") == ["user/name"] and found(store, "crème") == ["user/diet"]
        assert found(store, "old") == [] and found(store, "nobody") == []
        assert json.loads(store.path("user", "name").read_text())["value"] == "Ada Lovelace"
    finally:
        store.close()


def test_whatever_part_of_a_change_a_power_cut_leaves_of_the_index_it_is_put_right(tmp_path: Path) -> None:
    """B21, J3: nothing orders the blocks of a file that is not synced; each of those that differ may be the only one on the medium, or the only one that is not."""
    first = tmp_path / "first"
    facts = remembered(*(m.Remember("user", f"key-{n}", f"first {n}", at=float(n)) for n in range(40)))
    open_memory_store(first, facts).close()
    before = _index_files(first)
    store = open_memory_store(first, facts)
    for event in m.decide(facts, m.Remember("user", "key-39", "second", at=50.0)):
        store.apply(event)
        facts = m.evolve(facts, event)
    after = _index_files(first)  # A killed process closes nothing.
    for number, left in enumerate(_left_by_power_cuts(before, after)):
        root = tmp_path / f"cut-{number}"
        shutil.copytree(first / "memory", root / "memory")
        for name, data in left.items():
            (root / name).write_bytes(data)
        again = open_memory_store(root, facts)
        try:
            assert found(again, "second", at=60.0) == ["user/key-39"], f"cut {number}"
            assert sorted(found(again, "first", at=60.0, limit=100)) == sorted(f"user/key-{n}" for n in range(39))
        finally:
            again.close()
    store.close()


def _index_files(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in root.glob("memory.sqlite3*")}


def _left_by_power_cuts(before: dict[str, bytes], after: dict[str, bytes]) -> Iterator[dict[str, bytes]]:
    blocks = [
        (name, at)
        for name, data in after.items()
        for at in range(0, len(data), 4096)
        if data[at : at + 4096] != before.get(name, b"")[at : at + 4096]
    ]
    for block in blocks:
        for written in ({block}, set(blocks) - {block}):
            left = {name: bytearray(before.get(name, b"")) for name in after}
            for name, at in written:
                part = after[name][at : at + 4096]
                left[name].extend(bytes(max(0, at + len(part) - len(left[name]))))
                left[name][at : at + len(part)] = part
            yield {name: bytes(data) for name, data in left.items()}


def test_odd_but_legal_names_and_values_do_no_harm(tmp_path: Path) -> None:
    memories = remembered(
        m.Remember(".hidden", "a.json", "dots", at=1.0),
        m.Remember("memory.sqlite3", "x" * 128, "long", at=1.0),
        m.Remember("s", "surrogate", "half \ud83d emoji", at=1.0),
        m.Remember("s", "big", ["word"] * 20_000, at=1.0),
    )
    store = open_memory_store(tmp_path, memories)
    try:
        assert store.search("dots", at=2.0) == (Hit(".hidden", "a.json"),)
        assert store.search("emoji", at=2.0) == (Hit("s", "surrogate"),)
        assert store.reconcile(memories) == 0
    finally:
        store.close()


def test_an_expiry_beyond_every_calendar_does_not_keep_the_store_shut(tmp_path: Path) -> None:
    """Older journals may hold one."""
    far = Memory("s", "k", "value", 1.0, 1.0, expires_at=1e300)
    store = open_memory_store(tmp_path, m.Memories({"s": {"k": far}}))
    try:
        assert store.search("value", at=2.0) == (Hit("s", "k"),)
        assert json.loads(store.path("s", "k").read_text())["expires"] is None
    finally:
        store.close()
