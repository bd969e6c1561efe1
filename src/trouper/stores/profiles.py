"""Profiles (B23): named roots in the user's data directory. Any other directory can be a root as well; it just has no name here.

<user data>/trouper/profiles/<name>/     a root: journal, sessions' files, memory, secrets
<user data>/trouper/default              the name of the default profile; without it, "default"
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from trouper._errors import ConfigError, UsageError, WorldError
from trouper.core.ids import check_name
from trouper.journal.disk import OsDisk
from trouper.journal.format import LOCK_NAME
from trouper.stores.atomic import make_private_directory, sync_directory, write_atomically

DEFAULT_NAME = "default"
#: Not a valid name, so that no profile can be called so.
_UNFINISHED = "~"


class ProfileNotFound(UsageError):
    """There is no profile of this name."""


class ProfileExists(UsageError):
    """The name is taken."""


class ProfileBusy(WorldError):
    """A process is using the profile."""


class HomeUnknown(ConfigError):
    """Nothing says where the user's data are."""


def default_root() -> Path:
    """The default profile's root, made if it is not there yet: where `open_runtime()` without a root works."""
    profiles = Profiles()
    name = profiles.default()
    with contextlib.suppress(ProfileExists):
        profiles.create(name)
    return profiles.path(name)


def _user_data() -> Path:
    import platformdirs

    try:
        base = platformdirs.user_data_dir("trouper", appauthor=False)
    except RuntimeError:  # Some versions say so, and others give a path that is relative to nothing in particular.
        base = ""
    if not os.path.isabs(base):
        raise HomeUnknown(
            "there is no home directory that profiles could be in (HOME is not set, or is no absolute path); set it, or name a root"
        )
    return Path(base)


class Profiles:
    """All calls block on the disk for a moment, and on another change; `copy` and `delete` for as long as there is data."""

    def __init__(self, base: Path | None = None) -> None:
        self._base = base = _user_data() if base is None else base
        self._roots = base / "profiles"

    def path(self, name: str) -> Path:
        """Where the profile is, or would be."""
        return self._roots / check_name(name, "profile")

    def names(self) -> tuple[str, ...]:
        try:
            with os.scandir(self._roots) as entries:
                found = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            return ()
        return tuple(name for name in found if _UNFINISHED not in name)

    def default(self) -> str:
        file = self._base / "default"
        try:
            return check_name(file.read_text("utf-8").strip(), "profile")
        except FileNotFoundError:
            return DEFAULT_NAME
        except (UsageError, UnicodeDecodeError):
            # Nobody has named it just now: whoever reads this has to be told where it stands.
            raise ConfigError(
                f"{str(file)!r} has to hold the name of the default profile, and does not; write one there, or remove the file",
                file=str(file),
            ) from None

    def set_default(self, name: str) -> None:
        self._known(name)
        with self._alone():
            self._known(name)
            self._name_default(name)

    def create(self, name: str) -> Path:
        root = self._free(name)
        make_private_directory(self._roots)
        with self._alone():
            try:
                root.mkdir(mode=0o700)
            except FileExistsError:
                raise ProfileExists(f"profile {name!r} exists already; choose another name", name=name) from None
            sync_directory(self._roots)
        return root

    def copy(self, name: str, new_name: str) -> Path:
        """All of it: journal, files, memory, secrets; no sockets, pipes and devices. The copy appears under its name when it is complete."""
        root, target = self._known(name), self._free(new_name)
        unfinished = self._roots / f"{new_name}{_UNFINISHED}copy"
        with self._alone(), self._held(name):
            self._free(new_name)
            shutil.rmtree(unfinished, ignore_errors=True)
            # Links stay links: what they lead to is not the profile's.
            shutil.copytree(root, unfinished, symlinks=True, ignore=_not_copied(root))
            os.rename(unfinished, target)
            sync_directory(self._roots)
        return target

    def rename(self, name: str, new_name: str) -> Path:
        root, target = self._known(name), self._free(new_name)
        with self._alone(), self._held(name):
            self._free(new_name)
            was_default = self.default() == name
            os.rename(root, target)
            sync_directory(self._roots)
            if was_default:
                self._name_default(new_name)
        return target

    def delete(self, name: str) -> None:
        """For good. The name is free at once; the default falls back to "default" if this was it."""
        root = self._known(name)
        doomed = self._roots / f"{name}{_UNFINISHED}deleted"
        with self._alone():
            with self._held(name):
                shutil.rmtree(doomed, ignore_errors=True)
                os.rename(root, doomed)
            shutil.rmtree(doomed)
            if self.default() == name:
                (self._base / "default").unlink(missing_ok=True)
            sync_directory(self._roots)

    def _name_default(self, name: str) -> None:
        write_atomically(self._base / "default", f"{name}\n".encode())

    def _known(self, name: str) -> Path:
        root = self.path(name)
        if root.is_symlink() or not root.is_dir():
            known = ", ".join(self.names()) or "none yet"
            raise ProfileNotFound(f"there is no profile {name!r}; there is: {known}", name=name)
        return root

    def _free(self, name: str) -> Path:
        root = self.path(name)
        if os.path.lexists(root):
            raise ProfileExists(f"profile {name!r} exists already; choose another name", name=name)
        return root

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One change at a time, whoever makes it: two copies under one name would be mixed."""
        directory = os.open(self._roots, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # Some network file systems lock files only.
                fcntl.flock(directory, fcntl.LOCK_EX)
            yield
        finally:
            os.close(directory)

    @contextlib.contextmanager
    def _held(self, name: str) -> Iterator[None]:
        """Keep every runtime out of the profile meanwhile, by the lock that runtimes take (J9)."""
        self._known(name)
        try:
            lock = OsDisk().lock(str(self.path(name) / LOCK_NAME), json.dumps({"pid": os.getpid()}))
        except BlockingIOError:
            raise ProfileBusy(f"profile {name!r} is in use by a running process; stop that first", name=name) from None
        try:
            yield
        finally:
            lock.close()


def _not_copied(root: Path) -> Callable[[str, list[str]], set[str]]:
    """The lock, and what holds no data: the control socket that a killed process has left, a pipe."""

    def left_out(directory: str, names: list[str]) -> set[str]:
        odd = {name for name in names if not _holds_data(os.lstat(os.path.join(directory, name)).st_mode)}
        return odd | {LOCK_NAME} if Path(directory) == root else odd

    return left_out


def _holds_data(mode: int) -> bool:
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)
