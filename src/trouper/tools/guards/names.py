"""Which names a file may have, and how a path from the model is taken apart. Pure: no disk.

A name is refused when two people could read it differently: control characters and newlines forge lines of a listing, a right-to-left
override shows `exe.txt` for `txt.exe`, invisible characters and a second Unicode spelling of `é` make twins that look the same.
"""

from __future__ import annotations

import unicodedata

from trouper.tools.guards.refusal import Refused

NAME_BYTES_MAX = 255
PATH_BYTES_MAX = 4096
#: Deeper trees are refused: a walk holds its path in memory, and no honest layout needs more.
DEPTH_MAX = 64
#: Files being written are called so until they are whole. Reserved, hidden from listings.
TEMPORARY_PREFIX = ".trouper-tmp-"
_JOINERS = "\u200c\u200d"  # needed to write Persian, Hindi and many emoji
_UNREADABLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
#: Letters and marks that show as nothing, whatever their category says.
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")


class NameRefused(Refused):
    """The path itself is wrong, whatever is on the disk."""


def parse_path(path: str) -> tuple[str, ...]:
    """The components of a relative path: () for the root itself. Raises `NameRefused`."""
    if "\0" in path:
        raise NameRefused(f"path {_shown(path)} holds a NUL character; take it out", path=path)
    if path.startswith("/"):
        raise NameRefused(
            f"path {_shown(path)} is absolute; write it relative to the session's files, such as 'notes/a.txt' ('.' is the top)",
            path=path,
        )
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise NameRefused(
            f"path {_shown(path)} holds half of a surrogate pair; write valid Unicode", path=path
        ) from None
    if size > PATH_BYTES_MAX:
        raise NameRefused(f"path {_shown(path)} has {size} bytes; use at most {PATH_BYTES_MAX}", path=path)
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if len(parts) > DEPTH_MAX:
        raise NameRefused(f"path {_shown(path)} is {len(parts)} levels deep; use at most {DEPTH_MAX}", path=path)
    for part in parts:
        check_component(part)
    return parts


def check_component(name: str) -> None:
    """Raises `NameRefused` unless `name` can be one component of a path."""
    if name == "..":
        raise NameRefused("'..' is refused; write the path from the top of the session's files", path=name)
    size = len(name.encode(errors="replace"))
    if size > NAME_BYTES_MAX:
        raise NameRefused(f"name {_shown(name)} has {size} bytes; use at most {NAME_BYTES_MAX}", path=name)
    for index, character in enumerate(name):
        if character in _JOINERS:
            # Where there is nothing to join, it only makes a twin.
            shows = index > 0 and not name[index - 1].isascii()
        else:
            shows = character not in _BLANK and unicodedata.category(character) not in _UNREADABLE
        if not shows:
            raise NameRefused(
                f"name {_shown(name)} holds U+{ord(character):04X}, which does not show in a listing; use visible characters",
                path=name,
            )
    if not unicodedata.is_normalized("NFC", name):
        composed = unicodedata.normalize("NFC", name)
        raise NameRefused(
            f"name {_shown(name)} is spelt with decomposed characters, the twin of {composed!r}; use that spelling (NFC)",
            path=name,
        )
    if name.startswith(TEMPORARY_PREFIX):
        raise NameRefused(
            f"names that start with {TEMPORARY_PREFIX!r} are reserved; choose another than {_shown(name)}", path=name
        )


def reachable(name: str) -> bool:
    """Whether a name found on the disk can be given back as a path."""
    try:
        check_component(name)
    except NameRefused:
        return False
    return True


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 60 else text[:60] + "...")
