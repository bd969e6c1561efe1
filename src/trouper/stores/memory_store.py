"""The memory on disk (B21): each entry a readable JSON file, and an index to search them by their text.

    <root>/memory/<scope>/<key>.json      for people and other programs; reading only: what they write there is overwritten
    <root>/memory.sqlite3                 the index

Both are made from the journal's events, and are put right from them whenever they are missing, damaged or behind. What has lapsed has no file any more; the
index keeps it, and knows when it lapsed: a clock that runs ahead for a while takes nothing out of it. All calls block: use a thread.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import logging
import math
import os
import sqlite3
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from attrs import frozen

from trouper._errors import InvalidName
from trouper.core.ids import check_name
from trouper.core.memory import Memories, Memory, MemoryEvent, MemoryForgotten, MemoryWritten
from trouper.core.memory_search import query_of, searched, words
from trouper.stores.atomic import FILE_MODE, make_private_directory, unfinished, write_atomically

logger = logging.getLogger("trouper.memory")

#: A change of the tables below makes a new index, by this number.
INDEX_VERSION = 4

# The size is that of the readable file, and below 0 where there is none. The tokenizer only has to see the spaces between words: what a word is, and how it is folded, `trouper.core.memory_search` says.
_SCHEMA = f"""
CREATE TABLE entry (
    id INTEGER PRIMARY KEY, scope TEXT NOT NULL, key TEXT NOT NULL, updated_at REAL NOT NULL, expires_at REAL,
    size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, UNIQUE (scope, key)
);
CREATE INDEX lapsing ON entry (expires_at) WHERE expires_at IS NOT NULL AND size >= 0;
CREATE VIRTUAL TABLE words USING fts5 (key, summary, value, text UNINDEXED, tokenize = "ascii");
PRAGMA user_version = {INDEX_VERSION};
"""

#: What `_stamp` says of no file, and of one that may be there.
_NO_FILE, _HIDDEN = (-1, -1), (-2, -2)
#: The tables above, with those that the index of words is made of.
_TABLES = frozenset({"entry", "words", *(f"words_{part}" for part in ("data", "idx", "content", "docsize", "config"))})
_MAGIC = b"SQLite format 3\0"

#: Of one entry, whereas a full or broken disk is of all.
_IN_THE_WAY = (IsADirectoryError, NotADirectoryError, FileExistsError, PermissionError)


@frozen
class Hit:
    scope: str
    key: str


class MemoryStore:
    """Use `open_memory_store`, which brings the disk up to date first."""

    def __init__(self, root: Path) -> None:
        self._files = root / "memory"
        self._index_path = root / "memory.sqlite3"
        _refuse_link(self._files)
        make_private_directory(self._files)
        # Threads take turns: a connection serves one call at a time.
        self._lock = threading.Lock()
        #: What should have no file, and has one that cannot be removed.
        self._stuck: dict[tuple[str, str], None] = {}
        self._index = self._open_index()

    def close(self) -> None:
        with self._lock:
            self._index.close()

    def path(self, scope: str, key: str) -> Path:
        """Where the readable file of an entry is."""
        return self._files / check_name(scope, "scope") / f"{check_name(key, 'key')}.json"

    def apply(self, event: MemoryEvent) -> None:
        """Follow one event of the journal."""
        with self._lock, self._index:
            match event:
                case MemoryWritten(memory=memory):
                    self._write(memory)
                case MemoryForgotten(scope=scope, key=key):
                    self._remove(scope, key)

    def drop_lapsed(self, at: float) -> None:
        """What has lapsed by then is as if forgotten, to those who read the files too."""
        with self._lock, self._index:
            lapsed = self._index.execute("SELECT scope, key FROM entry WHERE expires_at <= ? AND size >= 0", (at,))
            for place in (*lapsed.fetchall(), *self._stuck):
                if self._remove_file(*place):
                    self._index.execute(
                        "UPDATE entry SET size = ?, mtime_ns = ? WHERE scope = ? AND key = ?", (*_NO_FILE, *place)
                    )

    def reconcile(self, memories: Memories, at: float = -math.inf) -> int:
        """Make the disk say what the journal says, and what is so at that time; returns how many entries were put right.

        What somebody has put in the way of one entry is told as its error, when all others are right.
        """
        wanted = {(memory.scope, memory.key): memory for scope in memories.scopes.values() for memory in scope.values()}
        changed = 0
        obstacle: OSError | None = None
        with self._lock, self._index:
            self._clear_unfinished()
            rows = self._index.execute("SELECT scope, key, updated_at, size, mtime_ns FROM entry").fetchall()
            known = {(scope, key): (updated_at, size, mtime_ns) for scope, key, updated_at, size, mtime_ns in rows}
            for scope, key in (*(known.keys() - wanted.keys()), *self._strays(wanted)):
                self._remove(scope, key)
                changed += 1
            for place, memory in wanted.items():
                there = _stamp(self.path(*place))
                is_right = known.get(place) == (memory.updated_at, *there)
                try:
                    if not memory.alive(at):
                        if there != _NO_FILE:
                            self._remove_file(*place)
                        if not is_right or there != _NO_FILE:
                            self._list(memory, *_NO_FILE)
                            changed += 1
                    elif there == _NO_FILE or not is_right:
                        self._write(memory)
                        changed += 1
                except _IN_THE_WAY as error:
                    obstacle = obstacle or error
        if obstacle is not None:
            raise obstacle
        return changed

    def begin_anew(self) -> None:
        """Throw the index away; `reconcile` fills the new one."""
        with self._lock:
            self._index.close()
            self._index = self._connect_anew()

    def search(self, text: str, *, at: float, scope: str | None = None, limit: int = 20) -> tuple[Hit, ...]:
        """Entries that hold all words of `text` (the beginnings will do), best first; if there are none, those that hold the text anywhere as it stands."""
        if scope is not None:
            check_name(scope, "scope")
        query = query_of(text)
        where = "(entry.expires_at IS NULL OR entry.expires_at > :at) AND (:scope IS NULL OR entry.scope = :scope)"
        values: dict[str, object] = {"at": at, "scope": scope, "limit": max(0, limit)}
        with self._lock:
            if query.words:
                # Quoted, a word is a word, whatever FTS5 might read into it.
                terms = " AND ".join(f'"{word}"*' for word in query.words)
                found = self._index.execute(
                    "SELECT entry.scope, entry.key FROM words JOIN entry ON entry.id = words.rowid "
                    f"WHERE words MATCH :terms AND {where} ORDER BY bm25(words, 4.0, 2.0, 1.0), entry.updated_at DESC LIMIT :limit",
                    {**values, "terms": terms},
                ).fetchall()
                if found:
                    return tuple(Hit(*row) for row in found)
            if not query.text:
                return ()
            found = self._index.execute(
                "SELECT entry.scope, entry.key FROM words JOIN entry ON entry.id = words.rowid "
                f"WHERE instr(words.text, :text) AND {where} ORDER BY entry.updated_at DESC LIMIT :limit",
                {**values, "text": query.text},
            ).fetchall()
            return tuple(Hit(*row) for row in found)

    # -- the index

    def _open_index(self) -> sqlite3.Connection:
        if not self._is_database():
            self._set_aside()  # Perhaps somebody keeps something there.
        try:
            return self._connect()
        except sqlite3.DatabaseError:
            # Damaged, or of another version.
            return self._connect_anew()

    def _connect_anew(self) -> sqlite3.Connection:
        """The index holds nothing of its own, so a new one does as well."""
        # The file itself is the last to go: sqlite takes what it finds beside one for a part of it.
        for suffix in ("-journal", "-wal", "-shm", ""):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self._index_path}{suffix}")
        return self._connect()

    def _is_database(self) -> bool:
        """Whether it begins as one, or as what a power cut leaves of one."""
        try:
            descriptor = os.open(self._index_path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return True
        try:
            begins = os.read(descriptor, len(_MAGIC))
        finally:
            os.close(descriptor)
        return begins == _MAGIC or not begins.strip(b"\0")

    def _set_aside(self) -> None:
        aside = next(path for n in itertools.count(1) if not os.path.lexists(path := f"{self._index_path}.aside-{n}"))
        os.rename(self._index_path, aside)
        logger.warning("%r is no index of the memory; it is %r now, and an index is made", str(self._index_path), aside)

    def _connect(self) -> sqlite3.Connection:
        # Made here, since sqlite would make it readable for others.
        os.close(os.open(self._index_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE))
        index = sqlite3.connect(self._index_path, check_same_thread=False)
        try:
            # Whole after a kill and a power cut, if perhaps behind: an index half of which is behind finds the wrong entries, and no check of it can tell.
            # Synced only where the changes are gathered into it. Nobody else opens it, so it needs no memory to share with them.
            index.execute("PRAGMA locking_mode = EXCLUSIVE")
            # Before anything is written to it: it may be somebody else's.
            if not _TABLES.issuperset(
                name for (name,) in index.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            ):
                said = "it is a database of somebody else's; move it away, and an index is made"
                raise FileExistsError(errno.EEXIST, said, str(self._index_path))
            index.execute("PRAGMA journal_mode = WAL")
            index.execute("PRAGMA synchronous = NORMAL")
            (version,) = index.execute("PRAGMA user_version").fetchone()
            if version == 0 and not index.execute("SELECT 1 FROM sqlite_master").fetchall():
                index.executescript(_SCHEMA)
            elif version != INDEX_VERSION:
                raise sqlite3.DatabaseError(f"index version {version}")
            elif index.execute("PRAGMA quick_check").fetchone() != ("ok",):
                raise sqlite3.DatabaseError("index damaged")
            index.execute(
                "SELECT count(*) FROM entry JOIN words ON words.rowid = entry.id WHERE words MATCH 'a'"
            ).fetchone()
        except BaseException:
            index.close()
            raise
        return index

    def _write(self, memory: Memory) -> None:
        path = self.path(memory.scope, memory.key)
        _refuse_link(path.parent)
        make_private_directory(path.parent)
        # The file first: a row that is behind is found out at the next start, and so is a file that does not fit its row.
        written = write_atomically(path, _document(memory), lasting=False)
        self._stuck.pop((memory.scope, memory.key), None)
        self._list(memory, written.st_size, written.st_mtime_ns)

    def _list(self, memory: Memory, size: int, mtime_ns: int) -> None:
        self._unlist(memory.scope, memory.key)
        row = self._index.execute(
            "INSERT INTO entry (scope, key, updated_at, expires_at, size, mtime_ns) VALUES (?, ?, ?, ?, ?, ?)",
            (memory.scope, memory.key, memory.updated_at, memory.expires_at, size, mtime_ns),
        ).lastrowid
        text = searched(memory)
        columns = (" ".join(words(part)) for part in (text.key, text.summary, text.value))
        self._index.execute(
            "INSERT INTO words (rowid, key, summary, value, text) VALUES (?, ?, ?, ?, ?)", (row, *columns, text.text)
        )

    def _remove(self, scope: str, key: str) -> None:
        self._remove_file(scope, key)
        self._unlist(scope, key)

    def _remove_file(self, scope: str, key: str) -> bool:
        """Whether it is gone. One that cannot be removed is told of once, and tried again with what lapses next: searching does without it."""
        path = self.path(scope, key)
        try:
            # Where there is no file, nothing of ours is left.
            with contextlib.suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError):
                _refuse_link(path.parent)
                path.unlink()
        except OSError as error:
            if (scope, key) not in self._stuck:
                logger.warning("what is forgotten or has lapsed can still be read: %s; it is tried again", error)
            self._stuck[scope, key] = None
            return False
        self._stuck.pop((scope, key), None)
        with contextlib.suppress(OSError):  # Not empty, or gone.
            path.parent.rmdir()
        return True

    def _unlist(self, scope: str, key: str) -> None:
        for (row,) in self._index.execute("SELECT id FROM entry WHERE scope = ? AND key = ?", (scope, key)).fetchall():
            self._index.execute("DELETE FROM words WHERE rowid = ?", (row,))
            self._index.execute("DELETE FROM entry WHERE id = ?", (row,))

    def _strays(self, wanted: dict[tuple[str, str], Memory]) -> Iterator[tuple[str, str]]:
        """Entries on disk that the journal does not know. What has not the form of an entry is none: somebody keeps it there."""
        for path in self._found("*.json"):
            place = (path.parent.name, path.stem)
            if place not in wanted and _is_name(place[1]) and _begins(path, _head(*place)):
                yield place

    def _clear_unfinished(self) -> None:
        """What a killed process was writing just then may have been forgotten since, and nobody would come by here again."""
        for path in self._found(unfinished("*.json")):
            key = path.name.removeprefix(".").removesuffix(".json.new")
            if _is_name(key):
                with contextlib.suppress(*_IN_THE_WAY, FileNotFoundError):
                    path.unlink()
                with contextlib.suppress(OSError):  # Not empty.
                    path.parent.rmdir()

    def _found(self, pattern: str) -> list[Path]:
        """Files in the directories of scopes. Where a link leads is no place of ours."""
        scopes = (each for each in self._files.iterdir() if _is_name(each.name) and not each.is_symlink())
        return sorted(path for scope in scopes for path in scope.glob(pattern))


def open_memory_store(root: Path, memories: Memories, at: float = -math.inf) -> MemoryStore:
    """The store of this root, in agreement with what the journal remembers, and with what of it has lapsed by then."""
    store = MemoryStore(root)
    try:
        try:
            store.reconcile(memories, at)
        except sqlite3.DatabaseError:
            # Its parts contradict each other, and that shows only when it is written to.
            store.begin_anew()
            store.reconcile(memories, at)
    except BaseException:
        store.close()
        raise
    return store


def _document(memory: Memory) -> bytes:
    document = {
        "scope": memory.scope,
        "key": memory.key,
        "summary": memory.summary,
        "value": memory.value,
        "metadata": dict(memory.metadata),
        "created": _utc(memory.created_at),
        "updated": _utc(memory.updated_at),
        "expires": None if memory.expires_at is None else _utc(memory.expires_at),
    }
    # Lone surrogates cannot be written as UTF-8.
    return (json.dumps(document, ensure_ascii=False, indent=2) + "\n").encode("utf-8", "replace")


def _head(scope: str, key: str) -> bytes:
    """How the document of an entry begins."""
    return json.dumps({"scope": scope, "key": key, "summary": ""}, ensure_ascii=False, indent=2)[:-4].encode()


def _begins(path: Path, head: bytes) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return os.read(descriptor, len(head)) == head
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _refuse_link(path: Path) -> None:
    """Nothing is written or removed where a link leads: that is not the root's."""
    if path.is_symlink():
        said = "it is a link, and has to be a directory; remove it, and one is made"
        raise NotADirectoryError(errno.ENOTDIR, said, str(path))


def _is_name(text: str) -> bool:
    try:
        check_name(text, "name")
    except InvalidName:
        return False
    return True


def _utc(at: float) -> str | None:
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return None  # Further off than a calendar goes.


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat(follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return _NO_FILE
    except PermissionError:
        return _HIDDEN
    return found.st_size, found.st_mtime_ns
