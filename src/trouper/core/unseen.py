"""Characters that nobody sees, though they count as letters, marks or symbols: a text with one in it looks like the text without it."""

from __future__ import annotations

from itertools import chain

#: They choose another shape for the character before them, where it has one: those of Mongolian, the two of emoji, and the many of kanji.
SELECTORS = frozenset(map(chr, chain((*range(0x180B, 0x180E), 0x180F), range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0))))
#: All of them: also the fillers and joiners, an empty pattern of dots, and what is set apart for more of the kind.
UNSEEN = SELECTORS.union(
    "\u034f\u115f\u1160\u17b4\u17b5\u2065\u2800\u3164\uffa0",
    map(chr, chain(range(0xFFF0, 0xFFF9), range(0xE0000, 0xE0100), range(0xE01F0, 0xE1000))),
)
