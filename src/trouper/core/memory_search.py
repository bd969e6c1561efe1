"""What a search of the memory finds (B21). One meaning for all who search: the index on disk, and a walk over what is remembered where there is no disk.

Found is what holds every word of the query, or a word that begins so; if nothing does, what holds the query as it stands. Case, accents of Latin letters, and the forms
in which Unicode has one character several times (full width, ligatures, composed or not) make no difference.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator

from trouper.core.memory import Memory
from trouper.core.messages import Json
from trouper.core.values import frozen

QUERY_MAX_CHARS = 400
TERMS_MAX = 16
#: What is searched of one value; the rest is remembered all the same.
TEXT_MAX_CHARS = 65_536

_WORD = re.compile(r"[^\W_]+")
#: Only Latin letters lose their marks: in other scripts a letter with a mark is another letter.
_ACCENTS = re.compile(r"(?<=[a-z])[\u0300-\u036f]+")


@frozen
class Query:
    words: tuple[str, ...]
    #: Empty: nothing is looked for.
    text: str


@frozen
class Searched:
    """The text of a memory, folded."""

    key: str
    summary: str
    value: str

    @property
    def text(self) -> str:
        return f"{self.key}\n{self.summary}\n{self.value}"


def query_of(text: str) -> Query:
    text = folded(text.strip()[:QUERY_MAX_CHARS]).strip()
    return Query(words(text)[:TERMS_MAX], text)


def searched(memory: Memory) -> Searched:
    return Searched(folded(memory.key), folded(memory.summary), folded(" ".join(_texts(memory.value))))


def found(memories: Iterable[Memory], query: Query) -> tuple[Memory, ...]:
    """Those of `memories` that a search finds, in their order."""
    if not query.text:
        return ()
    texts = [(memory, searched(memory).text) for memory in memories]
    by_word = tuple(memory for memory, text in texts if query.words and _holds(words(text), query.words))
    return by_word or tuple(memory for memory, text in texts if query.text in text)


def words(text: str) -> tuple[str, ...]:
    """Of a folded text, in order. Letters and digits make a word; what else there is stands between words."""
    return tuple(_WORD.findall(text))


def folded(text: str) -> str:
    if text.isascii():
        return text.lower().replace("\0", " ")
    # Lone surrogates cannot be written as UTF-8; and for SQL a text may end at its first NUL.
    text = text.encode("utf-8", "replace").decode().replace("\0", " ")
    # Folding the case can bring forth marks and compatible characters anew, so it comes between two decompositions.
    text = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return unicodedata.normalize("NFKC", _ACCENTS.sub("", text))


def _holds(words: tuple[str, ...], terms: tuple[str, ...]) -> bool:
    return all(any(word.startswith(term) for word in words) for term in terms)


def _texts(value: Json) -> Iterator[str]:
    """Every word of a value, keys included, in order, up to a bound."""
    left, room = [value], TEXT_MAX_CHARS
    while left and room > 0:
        item = left.pop()
        if isinstance(item, dict):
            left += [part for pair in reversed(item.items()) for part in (pair[1], pair[0])]
        elif isinstance(item, list | tuple):
            left += reversed(item)
        elif item is not None and not isinstance(item, bool):
            text = str(item)[:room]
            room -= len(text)
            yield text
