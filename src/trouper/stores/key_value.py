"""A session's key-value pairs (B24): one small JSON file, written whole each time."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import trio

from trouper._errors import UsageError, WorldError
from trouper.core.ids import check_name
from trouper.core.messages import Json
from trouper.stores.atomic import make_private_directory, write_atomically
from trouper.threads import in_thread

KEYS_MAX = 1_000
VALUE_MAX_CHARS = 65_536
TOTAL_MAX_CHARS = 4 * 1_048_576

_T = TypeVar("_T")


class StoreFull(UsageError):
    """More keys, or larger values, than the store is made for."""


class StoreUnreadable(WorldError):
    """The file is not what this store writes."""


class KeyValueStore:
    """`await store.set("page", 3)`. Each change is on disk when the call returns; one instance writes, any program may read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = trio.Lock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._path)!r})"

    async def get(self, key: str) -> Json | None:
        check_name(key, "key")
        return (await self._run(self._load)).get(key)

    async def set(self, key: str, value: Json) -> None:
        check_name(key, "key")
        self._check_value(key, value)

        def change() -> None:
            found = self._load()
            if key not in found and len(found) >= KEYS_MAX:
                raise StoreFull(f"there are {KEYS_MAX} keys already; delete some before {key!r} is added", key=key)
            found[key] = value
            self._save(found, key)

        await self._run(change)

    async def delete(self, key: str) -> bool:
        """Whether it was there."""
        check_name(key, "key")

        def change() -> bool:
            found = self._load()
            if key not in found:
                return False
            del found[key]
            self._save(found, key)
            return True

        return await self._run(change)

    async def keys(self) -> Sequence[str]:
        return sorted(await self._run(self._load))

    def _check_value(self, key: str, value: Json) -> None:
        try:
            text = json.dumps(value, allow_nan=False, ensure_ascii=False)
            if json.loads(text) != value:
                raise TypeError("it would not come back the same")
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(
                f"the value of {key!r} is not JSON ({error}); use null, booleans, finite numbers, text, lists and objects"
            ) from None
        if len(text) > VALUE_MAX_CHARS:
            raise StoreFull(
                f"the value of {key!r} takes {len(text)} characters, and {VALUE_MAX_CHARS} is the limit; keep it in a file",
                key=key,
            )

    async def _run(self, function: Callable[[], _T]) -> _T:
        """In a thread, one at a time. A cancelled caller does not cut a write short: the thread is waited for."""
        async with self._lock:
            return await in_thread(function)

    def _load(self) -> dict[str, Json]:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        try:
            found = json.loads(data)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise StoreUnreadable(
                f"{str(self._path)!r} is not a JSON object; move it away, or put it right", path=str(self._path)
            )
        return found

    def _save(self, values: dict[str, Json], key: str) -> None:
        text = json.dumps(values, ensure_ascii=False, indent=1)
        if len(text) > TOTAL_MAX_CHARS:
            raise StoreFull(
                f"all values together would pass {TOTAL_MAX_CHARS} characters; delete some before {key!r} is set",
                key=key,
            )
        make_private_directory(self._path.parent)
        write_atomically(self._path, text.encode("utf-8", "surrogatepass"))
