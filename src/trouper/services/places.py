"""Where a runtime keeps what is not its journal: sessions' files, key-value pairs, secrets, the memory's readable copy.

<directory>/files/<session>/          the files of a session, and nobody else's
<directory>/kv/<session>.json
<directory>/secrets/<session>.json    mode 0600
<directory>/memory/, memory.sqlite3
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from threading import Lock
from weakref import WeakValueDictionary

from trouper.core.ids import check_name
from trouper.redaction import Redactor, keys_in
from trouper.stores.key_value import KeyValueStore
from trouper.stores.secrets import FileSecrets, Keyring, KeyringSecrets, LearnedSecrets, values_in
from trouper.tools.guards.rooted import RootedFiles


class Places:
    """`directory=None`: there is no such place, and tools that need one are refused. `temporary`: made on first use, removed at the end."""

    def __init__(
        self,
        directory: Path | None,
        *,
        temporary: bool = False,
        keyring: Keyring | None = None,
        redactor: Redactor | None = None,
    ) -> None:
        #: Knows every secret that leaves its store.
        self.redactor = Redactor(keys_in()) if redactor is None else redactor
        self._directory = directory
        self._temporary = temporary
        self._keyring = keyring
        #: By session, for as long as somebody has them: all who do have the same ones, since each keeps its writers apart.
        self._files: WeakValueDictionary[str, RootedFiles] = WeakValueDictionary()
        self._key_values: WeakValueDictionary[str, KeyValueStore] = WeakValueDictionary()
        self._secrets: WeakValueDictionary[str, LearnedSecrets] = WeakValueDictionary()
        #: Tools ask in several threads, and between a look into one of these and an entry another may come.
        self._asked = Lock()
        if directory is not None:
            self.redactor.learn(*values_in(directory / "secrets"))

    @property
    def directory(self) -> Path | None:
        if self._directory is None and self._temporary:
            self._directory = Path(tempfile.mkdtemp(prefix="trouper-"))
        return self._directory

    @property
    def is_there(self) -> bool:
        return self._temporary or self._directory is not None

    @property
    def lasting(self) -> Path | None:
        """The directory, if it outlives the runtime."""
        return None if self._temporary else self._directory

    def files_of(self, session: str) -> RootedFiles | None:
        with self._asked:
            found = self._files.get(session)
            if found is None and self.directory is not None:
                found = RootedFiles(self.directory, "files", check_name(session, "session"))
                self._files[session] = found
            return found

    def key_values_of(self, session: str) -> KeyValueStore | None:
        with self._asked:
            found = self._key_values.get(session)
            if found is None and self.directory is not None:
                found = self._key_values[session] = KeyValueStore(self.directory / "kv" / f"{session}.json")
            return found

    def secrets_of(self, session: str) -> LearnedSecrets | None:
        with self._asked:
            found = self._secrets.get(session)
            if found is not None or self.directory is None:
                return found
            store: FileSecrets | KeyringSecrets = FileSecrets(self.directory / "secrets" / f"{session}.json")
            if self._keyring is not None:
                names = self.directory / "secrets" / f"{session}.names"
                store = KeyringSecrets(names, f"trouper/{self.directory}/{session}", self._keyring)
            found = self._secrets[session] = LearnedSecrets(store, self.redactor.learn)
            return found

    def close(self) -> None:
        if self._temporary and self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None
