"""Whether a root is its user's alone to write: its `trouper.toml` names code, and says what that code may do."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from trouper._errors import WorldError
from trouper.journal.disk import check_owner
from trouper.tools.guards.names import on_disk

T = TypeVar("T")


class NotOurs(WorldError):
    """Somebody else decides what stands there, and it would run as the user who has asked."""

    exit_code = 77


def check_file(descriptor: int, directory: int, path: Path) -> None:
    """Of the root that `directory` is open for, and a file in it."""
    try:
        check_owner(directory, os.path.abspath(path.parent))
    except PermissionError as error:
        raise NotOurs(
            f"{str(path)!r} is not read, for what it names would run as you: {str(path.parent)!r} cannot be trusted "
            f"({error.strerror}); run as its owner, or give another --root"
        ) from None
    _check_file(os.fstat(descriptor), directory, path)


def check_code(names: Iterable[str], directory: int, root: Path) -> None:
    """Files with code that a root's configuration names, relative to it. Whoever may write in the directory may put others in their place."""
    for name in names:
        if os.path.isabs(name):
            continue  # Elsewhere it is for whoever has written the configuration to say whom to trust.
        if _others_may_write(os.fstat(directory)):
            raise NotOurs(
                f"{str(root)!r} can be written by other users, and {name!r} in it would run as you; "
                f"look at what is there, then chmod go-w {str(root)!r}"
            )
        try:
            found = os.stat(on_disk(name), dir_fd=directory)
        except (OSError, ValueError):
            continue  # Whoever loads it says what is wrong.
        _check_file(found, directory, root / name)


def _check_file(found: os.stat_result, directory: int, path: Path) -> None:
    # What the system's own user has put there is fine, as its links are.
    if found.st_uid not in (os.geteuid(), 0):
        raise NotOurs(
            f"{str(path)!r} belongs to user {found.st_uid}, not to {os.geteuid()}, and would run as you; "
            "look at what is in it, then make it yours, or remove it"
        )
    # In a directory that nobody else may enter, nobody else gets at it.
    if _others_may_write(found) and os.fstat(directory).st_mode & (stat.S_IXGRP | stat.S_IXOTH):
        raise NotOurs(
            f"{str(path)!r} can be written by other users, and would run as you; look at what is in it, then chmod go-w it"
        )


def _others_may_write(found: os.stat_result) -> bool:
    if found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and not _is_private(found.st_gid)


def _is_private(group: int) -> bool:
    """Many systems give each user a group of one's own, and then make whatever a user makes writable for it."""
    import grp
    import pwd

    user, found = _entry(pwd.getpwuid, os.geteuid()), _entry(grp.getgrgid, group)
    if user is None or found is None:
        # In a container, of somebody whom only its host knows: there, mostly, such a group has its user's number.
        return user is None and found is None and group == os.geteuid()
    return (found.gr_gid, found.gr_name) == (user.pw_gid, user.pw_name) and set(found.gr_mem) <= {user.pw_name}


def _entry(look_up: Callable[[int], T], number: int) -> T | None:
    try:
        return look_up(number)
    except KeyError:
        return None
