"""Which names a file may have, and how a path from the model is taken apart. Pure: no disk.

A name is refused when two people could read it differently: control characters and newlines forge lines of a listing, a right-to-left
override shows `exe.txt` for `txt.exe`, invisible characters and a second Unicode spelling of `é` make twins that look the same.
What does not show by itself may stand where it changes how its neighbours look, or where the spelling of a language asks for it.
"""

from __future__ import annotations

import os
import re
import unicodedata

from trouper.core.unseen import SELECTORS, UNSEEN
from trouper.tools.guards.refusal import Refused

NAME_BYTES_MAX = 255
PATH_BYTES_MAX = 4096
#: Deeper trees are refused: a walk holds its path in memory, and no honest layout needs more.
DEPTH_MAX = 64
#: Files being written are called so until they are whole. Reserved, hidden from listings.
TEMPORARY_PREFIX = ".trouper-tmp-"
_UNREADABLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_NON_JOINER, _JOINER, _MONGOLIAN_SEPARATOR = "\u200c", "\u200d", "\u180e"
_JOINERS = frozenset((_NON_JOINER, _JOINER))
_MONGOLIAN_SELECTORS, _EMOJI_SELECTORS = frozenset("\u180b\u180c\u180d\u180f"), frozenset("\ufe0e\ufe0f")
#: Braille leaves a cell empty between words.
_BLANK_CELL, _CELLS = "\u2800", re.compile("[\u2801-\u28ff]")
_KEYS, _KEYCAP = frozenset("0123456789#*"), "\u20e3"
#: The combining class of the signs that take the vowel from a letter.
_VIRAMA = 9
#: The flags of England, Scotland and Wales: a black one, and letters behind it that do not show. Nothing else is written with these.
_FLAG, _FLAGS = (
    "\U0001f3f4",
    re.compile(
        "\U0001f3f4\U000e0067\U000e0062"
        "(?:\U000e0065\U000e006e\U000e0067|\U000e0073\U000e0063\U000e0074|\U000e0077\U000e006c\U000e0073)\U000e007f"
    ),
)
# Blocks of characters that joiners and selectors do something to.
_MONGOLIAN = re.compile("[\u1820-\u18aa]")
#: Letters take another shape beside others: Arabic, Syriac, N'Ko, Mandaic, Mongolian, Phags-pa; Manichaean to Old Uyghur, and Adlam.
_CURSIVE = re.compile(
    "[\u0600-\u077f\u07c0-\u07ff\u0840-\u08ff\u1807-\u18aa\ua840-\ua877"
    "\U00010ac0-\U00010aff\U00010b80-\U00010baf\U00010d00-\U00010d3f\U00010f30-\U00010fdf\U0001e900-\U0001e95f]"
)
#: Letters and marks melt into one sign: the scripts of India and its neighbours.
_INDIC = re.compile(
    "[\u0900-\u0dff\u0f00-\u109f\u1700-\u17ff\u1900-\u194f\u1a20-\u1aaf\u1b00-\u1bff\ua800-\ua82f\ua880-\ua8ff"
    "\ua930-\ua95f\ua980-\ua9ff\uaa00-\uaa7f\uaae0-\uaaff\uabc0-\uabff\U00011000-\U00011fff]"
)
_EMOJI = re.compile(
    "[\xa9\xae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u23ff\u24c2\u25a0-\u27bf\u2934\u2935\u2b00-\u2bff"
    "\u3030\u303d\u3297\u3299\U0001f000-\U0001faff]"
)
#: Signs that are written in several ways, each with a number: ideographs, and letters of Myanmar and Phags-pa.
_VARIED = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff\u1000-\u109f\uaa60-\uaa7f\ua840-\ua877]")


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
    if name and not name.strip():
        raise NameRefused(
            f"name {_shown(name)} is only blanks, which do not show in a listing; add visible characters", path=name
        )
    shown = _FLAGS.sub(_FLAG, name)
    for before, character, after in zip(f"\0{shown}", shown, f"{shown[1:]}\0", strict=False):
        hidden = character in UNSEEN or unicodedata.category(character) in _UNREADABLE
        if hidden and not _is_in_place(before, character, after):
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


def _is_in_place(before: str, character: str, after: str) -> bool:
    """Whether a character that does not show by itself does what it is for between these two: anywhere else it only makes a twin."""
    if character in _JOINERS and before not in _JOINERS:
        if unicodedata.combining(before) == _VIRAMA:
            return True  # At the end as well: so the last letter of many a word is written in Malayalam and Telugu.
        return _parts(before, after) if character == _NON_JOINER else _joins(before, after)
    if character == _BLANK_CELL:
        return _CELLS.match(before) is not None and _CELLS.match(after) is not None
    if character in _MONGOLIAN_SELECTORS:
        return _MONGOLIAN.match(before) is not None
    if character == _MONGOLIAN_SEPARATOR:
        return _MONGOLIAN.match(before) is not None and _MONGOLIAN.match(after) is not None
    if character in _EMOJI_SELECTORS:
        return _EMOJI.match(before) is not None or (before in _KEYS and after == _KEYCAP)
    return character in SELECTORS and _VARIED.match(before) is not None


def _parts(before: str, after: str) -> bool:
    """A word from its ending, which is not to be joined to it. The word may be an abbreviation of another script, a number, or in brackets."""
    is_ending = unicodedata.category(after)[0] in "LMN" and unicodedata.category(before)[0] not in "CZ"
    return is_ending and any(_CURSIVE.match(each) or _INDIC.match(each) for each in (before, after))


def _joins(before: str, after: str) -> bool:
    """A cursive letter to what may be nothing, which gives it another shape; an Indic letter to the mark behind it; emoji to one."""
    if any(_CURSIVE.match(each) and unicodedata.category(each)[0] in "LM" for each in (before, after)):
        return True
    if _INDIC.match(after) and unicodedata.category(after)[0] == "M":
        return True
    return _EMOJI.match(after) is not None and (_EMOJI.match(before) is not None or before in _EMOJI_SELECTORS)


def reachable(name: str) -> bool:
    """Whether a name found on the disk can be given back as a path."""
    try:
        check_component(name)
    except NameRefused:
        return False
    return True


def on_disk(name: str) -> str:
    """A name, or a path, as calls of the system take it. Its bytes are UTF-8, also where the locale's encoding is another, which may not even have its characters."""
    return os.fsdecode(name.encode(errors="surrogateescape"))


def from_disk(name: str) -> str:
    """And back: what a name that was found there says."""
    return os.fsencode(name).decode(errors="surrogateescape")


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 60 else text[:60] + "...")
