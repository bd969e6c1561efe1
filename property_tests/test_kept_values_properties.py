"""L17, T2: what is kept of arguments and results can be journaled as it is, however odd it came; and no way there is shorter at the cost of another outcome."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trouper import codec
from trouper.tools.arguments import guarded, parse_arguments
from trouper.tools.results import as_result

texts = st.text(st.sampled_from('ab"\\{}[]:, \t\n\x00\x1fé世\udc80\ud83d'), max_size=8)
leaves = (
    texts
    | st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(2**70), max_value=2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
)
values: st.SearchStrategy[Any] = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3) | st.tuples(inner, inner),
    max_leaves=8,
)


@given(st.dictionaries(texts, values, max_size=3), st.booleans())
def test_streamed_arguments_are_those_of_the_parsed_object(given: dict[str, Any], escaped: bool) -> None:
    """L16, L17: the short way for plain ASCII text ends where the long one does."""
    buffer = json.dumps(given, ensure_ascii=escaped)
    streamed, parsed = parse_arguments(buffer), guarded(json.loads(buffer))
    assert (streamed.value, streamed.notes) == (parsed.value, parsed.notes)
    assert codec.loads(codec.dumps(streamed.value, exact=True)) == streamed.value


@given(values)
def test_any_result_can_be_kept(returned: Any) -> None:
    """T2, I10: half characters and integers past 64 bits included, wherever they are."""
    content = as_result(returned, "t").content
    assert codec.loads(codec.dumps(content, exact=True)) == content
