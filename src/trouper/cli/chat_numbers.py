"""The numbers by which the user of a chat says which one, when several calls or questions wait for an answer."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from trouper._errors import UsageError


class Numbers:
    """What was shown and waits for an answer, in the order in which it was. A number is used once: who types it means what was shown with it."""

    def __init__(self) -> None:
        self._last = 0
        #: Of what was shown and may still wait.
        self._of: dict[str, int] = {}
        #: Those that were shown with their number.
        self._told: set[str] = set()

    def to_show(self, come_up: Iterable[str], waiting: Collection[str]) -> list[tuple[str, int | None]]:
        """What is to be shown now that these have come up: nothing twice; and when more than one waits, all that was not yet shown with its number."""
        self._of = {id: number for id, number in self._of.items() if id in waiting}
        self._told &= self._of.keys()
        new = [id for id in come_up if id in waiting and id not in self._of]
        for id in new:
            self._last += 1
            self._of[id] = self._last
        if len(waiting) < 2:
            return [(id, None) for id in new]
        untold = [(id, number) for id, number in self._of.items() if id not in self._told] if new else []
        self._told.update(id for id, _ in untold)
        return list(untold)

    def shown(self, waiting: Collection[str]) -> list[str]:
        """Those that the user could see; what has come up since, nobody has looked at."""
        return [id for id in self._of if id in waiting]

    def chosen(self, text: str, waiting: Collection[str]) -> tuple[str | None, str]:
        """What a text that begins with a number is about, and the rest of it; `None` if it names none."""
        word, *rest = text.split(maxsplit=1) or [""]
        told = {self._of[id]: id for id in self.shown(waiting) if id in self._told}
        # Where no number was shown, one is what the user wants to say.
        if not told or not (word.isascii() and word.isdigit()) or int(word) > self._last:
            return None, text
        if int(word) not in told:
            raise UsageError(f"number {word} waits no longer; there is {', '.join(map(str, told))}")
        return told[int(word)], "".join(rest)
