"""Secrets (B24): in a file of mode 0600, or in the system's keyring. Their values are in no journal, no log, no error and no `repr` (I36).

Whoever hands secrets to tools blanks them wherever text leaves the process (J8): those that are in files from the start (`values_in`), the others from when they are used.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import trio

from trouper._errors import ConfigError, UsageError, WorldError
from trouper.core.ids import check_name
from trouper.stores.atomic import make_private_directory, write_atomically
from trouper.threads import in_thread

SECRETS_MAX = 1_000
VALUE_MAX_CHARS = 65_536

_T = TypeVar("_T")


class SecretsExposed(WorldError):
    """Others can read the file: what is in it is no secret any more."""


class SecretsUnreadable(WorldError):
    """The file is not what this store writes."""


class FileSecrets:
    """One JSON file, read and written by this user alone."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = trio.Lock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._path)!r})"

    async def get(self, name: str) -> str | None:
        check_name(name, "secret")
        return (await self._run(self._load)).get(name)

    async def set(self, name: str, value: str) -> None:
        check_name(name, "secret")
        _check_value(name, value)

        def change() -> None:
            found = dict(self._load())
            if name not in found and len(found) >= SECRETS_MAX:
                raise UsageError(
                    f"there are {SECRETS_MAX} secrets already; delete some before {name!r} is added", name=name
                )
            found[name] = value
            self._save(found)

        await self._run(change)

    async def delete(self, name: str) -> bool:
        """Whether it was there."""
        check_name(name, "secret")

        def change() -> bool:
            found = dict(self._load())
            if found.pop(name, None) is None:
                return False
            self._save(found)
            return True

        return await self._run(change)

    async def names(self) -> Sequence[str]:
        return sorted(await self._run(self._load))

    async def _run(self, function: Callable[[], _T]) -> _T:
        async with self._lock:
            return await in_thread(function)

    def _load(self) -> dict[str, str]:
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return {}
        with open(fd, "rb") as file:
            mode = stat.S_IMODE(os.fstat(fd).st_mode)
            if mode & 0o077:
                raise SecretsExposed(
                    f"{str(self._path)!r} has mode {mode:o}, so others can read it; renew what is in it, then `chmod 600` it",
                    path=str(self._path),
                    mode=mode,
                )
            data = file.read()
        try:
            found = json.loads(data)
        except ValueError:  # Whose message may quote the data.
            found = None
        if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
            raise SecretsUnreadable(
                f"{str(self._path)!r} is not a JSON object of texts; move it away, or put it right",
                path=str(self._path),
            )
        return found

    def _save(self, values: dict[str, str]) -> None:
        make_private_directory(self._path.parent)
        write_atomically(self._path, json.dumps(values, indent=1).encode("ascii"))


def values_in(directory: Path) -> frozenset[str]:
    """What the files of a directory hold. One that is exposed or damaged is left to whoever asks for one of its secrets: then that is said."""
    found: set[str] = set()
    with contextlib.suppress(OSError):  # A directory that cannot be looked into: whoever opens what is in it says so.
        for path in sorted(directory.glob("*.json")):
            with contextlib.suppress(WorldError, OSError):
                found.update(FileSecrets(path)._load().values())
    return frozenset(found)


class Keyring(Protocol):
    """What is used of the `keyring` package, or of one of its backends."""

    def get_password(self, service: str, username: str) -> str | None: ...
    def set_password(self, service: str, username: str, password: str) -> None: ...
    def delete_password(self, service: str, username: str) -> None: ...


class KeyringSecrets:
    """The system's keyring. It cannot list what it holds, so the names, and only these, are in a file beside the session's."""

    def __init__(self, names_path: Path, service: str, keyring: Keyring | None = None) -> None:
        self._service = service
        self._names_path = names_path
        self._keyring = _system_keyring() if keyring is None else keyring
        self._lock = trio.Lock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(service={self._service!r})"

    async def get(self, name: str) -> str | None:
        check_name(name, "secret")
        return await self._run(lambda: self._keyring.get_password(self._service, name))

    async def set(self, name: str, value: str) -> None:
        check_name(name, "secret")
        _check_value(name, value)

        def change() -> None:
            names = self._load_names()
            if name not in names:
                if len(names) >= SECRETS_MAX:
                    raise UsageError(
                        f"there are {SECRETS_MAX} secrets already; delete some before {name!r} is added", name=name
                    )
                # The name first: a name without a value is harmless, a value that nobody can list is not.
                self._save_names([*names, name])
            self._keyring.set_password(self._service, name, value)

        await self._run(change)

    async def delete(self, name: str) -> bool:
        check_name(name, "secret")

        def change() -> bool:
            there = self._keyring.get_password(self._service, name) is not None
            if there:
                self._keyring.delete_password(self._service, name)
            names = self._load_names()
            if name in names:
                self._save_names([other for other in names if other != name])
            return there

        return await self._run(change)

    async def names(self) -> Sequence[str]:
        return sorted(await self._run(self._load_names))

    async def _run(self, function: Callable[[], _T]) -> _T:
        async with self._lock:
            return await in_thread(function)

    def _load_names(self) -> list[str]:
        try:
            return [name for name in self._names_path.read_text("ascii").splitlines() if name]
        except FileNotFoundError:
            return []

    def _save_names(self, names: Sequence[str]) -> None:
        make_private_directory(self._names_path.parent)
        write_atomically(self._names_path, "".join(f"{name}\n" for name in names).encode("ascii"))


def _system_keyring() -> Keyring:
    try:
        import keyring
    except ImportError:
        raise ConfigError(
            "the `keyring` package is not installed; `pip install 'trouper[keyring]'`, or keep secrets in a file"
        ) from None
    found: Keyring = keyring
    return found


def _check_value(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise UsageError(f"the secret {name!r} has to be text, and not empty; delete it instead", name=name)
    if len(value) > VALUE_MAX_CHARS:
        raise UsageError(
            f"the secret {name!r} is longer than {VALUE_MAX_CHARS} characters; keep a key here, and the rest encrypted",
            name=name,
        )


class LearnedSecrets:
    """Secrets whose values are known to whoever blanks them before anybody else gets to see them (J8)."""

    def __init__(self, store: FileSecrets | KeyringSecrets, learn: Callable[[str], None]) -> None:
        self._store = store
        self._learn = learn

    async def get(self, name: str) -> str | None:
        value = await self._store.get(name)
        if value is not None:
            self._learn(value)
        return value

    async def set(self, name: str, value: str) -> None:
        _check_value(name, value)
        self._learn(value)
        await self._store.set(name, value)

    async def delete(self, name: str) -> bool:
        return await self._store.delete(name)

    async def names(self) -> Sequence[str]:
        return await self._store.names()
