"""The key-value store of a session (B24)."""
# ruff: noqa: ASYNC240 - a look at a small local file holds nothing up here

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
import trio

from trouper._errors import InvalidName, UsageError
from trouper.stores import key_value
from trouper.stores.key_value import KeyValueStore, StoreFull, StoreUnreadable


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kv" / "s.json"


async def test_values_come_back_as_they_were_also_in_another_process(path: Path) -> None:
    store = KeyValueStore(path)
    values = {"none": None, "text": "é\ud800", "list": [1, 2.5, {"a": []}], "zero": 0, "false": False}
    for key, value in values.items():
        await store.set(key, value)
    again = KeyValueStore(path)
    for key, value in values.items():
        assert await again.get(key) == value
    assert list(await again.keys()) == sorted(values)
    assert await again.get("missing") is None


async def test_deleting_says_whether_it_was_there(path: Path) -> None:
    store = KeyValueStore(path)
    await store.set("k", 1)
    assert await store.delete("k") is True
    assert await store.delete("k") is False
    assert await store.keys() == []


async def test_the_file_is_the_users_alone_and_readable_json(path: Path) -> None:
    """J8."""
    await KeyValueStore(path).set("k", {"a": 1})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert json.loads(path.read_text()) == {"k": {"a": 1}}
    assert [entry.name for entry in path.parent.iterdir()] == ["s.json"]


async def test_writers_at_the_same_time_lose_nothing(path: Path) -> None:
    store = KeyValueStore(path)
    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(store.set, f"k{number}", number)
    assert len(await store.keys()) == 20


@pytest.mark.parametrize("key", ["", "..", "a/b", "x" * 129])
async def test_keys_are_names(path: Path, key: str) -> None:
    """B22."""
    store = KeyValueStore(path)
    for call in (store.get(key), store.delete(key), store.set(key, 1)):
        with pytest.raises(InvalidName):
            await call


@pytest.mark.parametrize("value", [float("nan"), object(), {1: 2}, (1, 2), b"x"])
async def test_what_is_not_json_is_refused(path: Path, value: object) -> None:
    with pytest.raises(UsageError, match="is not JSON"):
        await KeyValueStore(path).set("k", value)


async def test_it_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I25."""
    monkeypatch.setattr(key_value, "KEYS_MAX", 2)
    store = KeyValueStore(path)
    await store.set("a", 1)
    await store.set("b", 1)
    await store.set("b", 2)
    with pytest.raises(StoreFull, match="delete some"):
        await store.set("c", 1)
    with pytest.raises(StoreFull, match="keep it in a file"):
        await store.set("a", "x" * key_value.VALUE_MAX_CHARS)
    monkeypatch.setattr(key_value, "TOTAL_MAX_CHARS", 50)
    with pytest.raises(StoreFull, match="all values together"):
        await store.set("a", "x" * 60)
    assert await store.get("a") == 1


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff"])
async def test_a_damaged_file_is_named_and_left_alone(path: Path, data: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(data)
    with pytest.raises(StoreUnreadable, match=r"s\.json"):
        await KeyValueStore(path).set("k", 1)
    assert path.read_bytes() == data
