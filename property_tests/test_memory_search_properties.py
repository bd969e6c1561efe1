"""B21: a search finds the same on disk and without one, whatever is remembered and looked for."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import event, given
from hypothesis import strategies as st

from trouper.core.memory import Memories, Memory
from trouper.core.memory_search import found, query_of
from trouper.stores.memory_store import open_memory_store

#: Words that punctuation, accents, case, compatible forms, scripts without spaces and half characters make hard, and what stands between them.
HARD = (
    "crème CREME cre\u0300me Brûlée naïve straße STRASSE ǅ İstanbul ﬁgs Ｆｉｇｓ figs \u1e9e 𝓪 ² ٣",
    'don\'t don’t e-mail x_y C++ 3.14 50% a\\b "q" key: AND NEAR( * -- … ¿',
    "進捗 どうですか が か\u3099 한국 하 हिन्दी й и\u0306 ё е ά Σς א\u05b0 𐓀 𞤀 \ue000",
    "🦊 👩\u200d💻 ❤\ufe0f ❤ \ufe0f \u0301 \u200d \0 \ud83d",
)
PIECES = [piece for pieces in HARD for piece in pieces.split(" ")]
texts = st.lists(st.sampled_from([*PIECES, *" \n,"]), max_size=5).map("".join) | st.text(max_size=6)
values = st.recursive(
    texts | st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
corpora = st.lists(st.tuples(values, texts), max_size=6)


@given(corpora, st.lists(texts, min_size=1, max_size=8), st.data())
def test_the_index_finds_what_a_walk_finds(
    corpus: list[tuple[object, str]], looked_for: list[str], data: st.DataObject
) -> None:
    kept = {
        key: Memory("s", key, value, 1.0, float(n), summary)  # type: ignore[arg-type]
        for n, (value, summary) in enumerate(corpus)
        for key in (f"Key_{n}-figs.{n}",)
    }
    whole = [text for _, summary in corpus for text in (summary, summary[1:-1]) if text]
    if whole:
        looked_for = [*looked_for, data.draw(st.sampled_from(whole))]
    with tempfile.TemporaryDirectory() as root:
        store = open_memory_store(Path(root), Memories({"s": kept} if kept else {}))
        try:
            for text in looked_for:
                on_disk = {hit.key for hit in store.search(text, at=9.0)}
                assert on_disk == {memory.key for memory in found(kept.values(), query_of(text))}
                event("found" if on_disk else "nothing")
        finally:
            store.close()
