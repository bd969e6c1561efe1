"""The numbers by which the user of a chat says which one, when several calls or questions wait for an answer."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from trouper._errors import UsageError

_NUMBER = re.compile(r"[0-9]{1,9}")


class Numbers:
    """What was shown and waits for an answer, in the order in which it was. A number is used once: who types it means what was shown with it."""

    def __init__(self) -> None:
        self._last = 0
        #: Of what was shown and may still wait; `None` of what was alone when it was.
        self._of: dict[str, int | None] = {}

    def to_show(self, come_up: Iterable[str], waiting: Collection[str]) -> list[tuple[str, int | None]]:
        """What is to be shown now that these have come up: nothing twice; and when more than one waits, all that was not yet shown with its number.

        Once there were numbers, also what waits alone has one: a number that comes late would be taken for a word.
        """
        self._of = {id: number for id, number in self._of.items() if id in waiting}
        new = [id for id in come_up if id in waiting and id not in self._of]
        self._of.update(dict.fromkeys(new))
        if not new or (len(waiting) < 2 and not self._last):
            return [(id, None) for id in new]
        return [(id, self._numbered(id)) for id, number in self._of.items() if number is None]

    def _numbered(self, id: str) -> int:
        self._last += 1
        self._of[id] = self._last
        return self._last

    def shown(self, waiting: Collection[str]) -> list[str]:
        """Those that the user could see; what has come up since, nobody has looked at."""
        return [id for id in self._of if id in waiting]

    def names(self, waiting: Collection[str]) -> list[str]:
        """What the user says for each that was shown and waits: its number, or its id."""
        return [id if number is None else str(number) for id, number in self._of.items() if id in waiting]

    def chosen(self, text: str, waiting: Collection[str]) -> tuple[str | None, str]:
        """What a text that begins with a number is about, and the rest of it; `None` if it names none."""
        word, *rest = text.split(maxsplit=1) or [""]
        numbered = {number: id for id, number in self._of.items() if number is not None and id in waiting}
        # Where no number was ever shown, one is what the user wants to say. So is a longer one than any that was.
        if not _NUMBER.fullmatch(word) or int(word) > self._last:
            return None, text
        if int(word) not in numbered:
            raise UsageError(f"number {word} waits no longer; there is {', '.join(map(str, numbered)) or 'none'}")
        return numbered[int(word)], "".join(rest)

    def called(self, word: str, waiting: Collection[str]) -> str | None:
        """What a word is about that stands for one thing, and for nothing else: also what waits alone, and was shown without a number, may be called 1."""
        if word == "1" and not self._last:
            return next(iter(self.shown(waiting)), None)
        return self.chosen(word, waiting)[0]
